"""Random samples and labels for a model, as ``run --whole-fabric --check-values`` draws them.

A batch of fp16 numbers is drawn from a normal distribution, and a label for each of its rows, both from one
seed.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import nn

from wse_sim.errors import ModelError
from wse_sim.graph import KernelGraph, TensorKind
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan
from wse_sim.user_code import guarded
from wse_sim.whole.host_part import CROSS_ENTROPY, SQUARED
from wse_sim.whole.regions.contract import IMAGE_AXES
from wse_sim.whole.values import CheckedValues, check_values, result_of

STEPS = 2
"""Steps of training: the second one starts from weights that the fabric has updated."""
Made = tuple[nn.Module, Sequence[object], Mapping[str, object]]
"""A module with example arguments (args, kwargs)."""


def check_module(spec: str, made: Made) -> None:
    """Check that the module has weights, and takes one floating-point tensor with the samples in its first
    dimension.

    Raises
    ------
    ModelError
        If it does not.
    """
    model, args, kwargs = made
    if len(args) != 1 or kwargs or not isinstance(args[0], torch.Tensor):
        raise ModelError(
            f"{spec} takes {len(args)} arguments and {len(kwargs)} by name, and --check-values draws one tensor of samples; "
            "give a model of one tensor"
        )
    if not args[0].is_floating_point():
        raise ModelError(
            f"{spec} takes {args[0].dtype} (tokens), and --check-values draws numbers; give the model behind its tables, which "
            "takes their rows"
        )
    for name, value in model.state_dict().items():
        if isinstance(value, torch.Tensor) and value.device.type == "meta":
            raise ModelError(
                f"parameter '{name}' of {spec} is on 'meta' and has no values; let the factory make it on the CPU"
            )


def _is_batch_first(graph: KernelGraph) -> bool:
    """Return whether the first dimension of every input is that of the samples. A plan has those of its graph; the example may have
    more."""
    inputs = [one for one in graph.tensors.values() if one.kind is TensorKind.INPUT]
    return all(one.shape[:1] == (graph.samples,) for one in inputs)


def check_random(
    spec: str, made: Made, plan: PipelinedPlan | WeightStreamingPlan, seed: int = 0
) -> CheckedValues:
    """Check a random batch through the plan of a module (:func:`check_values`): one step of inference, or two
    of training.

    A pipeline trains with cross entropy, streamed weights with squared error.

    Raises
    ------
    ModelError
        If the plan is not covered, or if the first dimension of the module's argument does not hold its samples.
    DeadlockError
        If the program stops.
    """
    model, (example, *_), _ = made
    shape = tuple(getattr(example, "shape", ()))
    if not shape or (isinstance(plan, PipelinedPlan) and not _is_batch_first(plan.graph)):
        raise ModelError(
            f"{spec} takes a tensor of shape {shape} for {plan.graph.samples} samples, and --check-values draws samples along "
            "the first dimension; give a model that has them there (batch_first)"
        )
    chance = np.random.default_rng(seed)
    drawn = chance.standard_normal((plan.batch, *shape[1:])).astype(np.float16).astype(np.float32)
    with guarded(f"'{spec}'", ModelError), torch.no_grad():
        outputs = result_of(copy.deepcopy(model).float().cpu().eval(), torch.tensor(drawn))
    labels = None
    if plan.graph.training:
        rows = plan.batch if drawn.ndim == IMAGE_AXES else outputs.numel() // outputs.shape[-1]
        labels = chance.integers(0, outputs.numel() // rows, rows)
    loss = SQUARED if isinstance(plan, WeightStreamingPlan) else CROSS_ENTROPY
    return check_values(model, plan, drawn, labels, loss=loss, steps=STEPS)
