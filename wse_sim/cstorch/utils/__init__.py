"""Helpers around a step: data, tracking, summaries, structures."""

from importlib import import_module

import torch

from wse_sim.cstorch import faults
from wse_sim.cstorch.batches import infer_batch_size
from wse_sim.cstorch.distributed import CSConfig
from wse_sim.cstorch.utils.call_once import call_once

__all__ = ["CSConfig", "call_once", "extract_loss", "infer_batch_size"]

# Loaded when they are first used: scripts name them without an import of their own.
_MODULES = ("benchmark", "data", "kernel", "nest", "num_kv_groups", "tensorboard", "tracker", "utils")


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def extract_loss(outputs: object) -> torch.Tensor:
    """Return the loss among what a model returns: the tensor itself, the first of a tuple, or the entry "loss".

    Raises
    ------
    ProgramError
        If there is none.
    """
    if isinstance(outputs, torch.Tensor):
        return outputs
    if isinstance(outputs, dict) and "loss" in outputs:
        return outputs["loss"]
    if isinstance(outputs, list | tuple) and outputs and isinstance(outputs[0], torch.Tensor):
        return outputs[0]
    if hasattr(outputs, "loss"):
        return outputs.loss
    raise faults.program_error(f"a model returned a {type(outputs).__name__} without a loss; return the loss")
