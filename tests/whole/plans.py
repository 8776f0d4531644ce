"""Corners of wafers, weights by name, and outputs beside PyTorch's, for tests of whole models."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from wse_sim.hardware import Wafer, load_wafer
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole import WholeRun, run_whole

Floats = NDArray[np.float32]


def corner(side: int, base: str = "wse2", **constants: Any) -> Wafer:
    """Return a corner of a wafer of `side` x `side` cores, with as many channels of the host per row as the wafer has."""
    size = dict.fromkeys(("rows", "cols", "program_rows", "program_cols"), side)
    return load_wafer(base).derive(**{**size, "io_channels_per_edge": side // 4, **constants})


def weights_of(model: nn.Module) -> dict[str, Floats]:
    """Return the parameters and buffers by name."""
    return {name: value.detach().numpy() for name, value in model.state_dict().items()}


def beside_pytorch(model: nn.Module, plan: PipelinedPlan, x: torch.Tensor) -> tuple[WholeRun, Floats]:
    """Run samples on the fabric; return the run, and the outputs of the model in the same shape (rows, N)."""
    run = run_whole(plan, weights_of(model), x.numpy())
    with torch.no_grad():
        return run, model(x).numpy().reshape(run.outputs.shape)
