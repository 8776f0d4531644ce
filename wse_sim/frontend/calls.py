"""Lowering of recorded calls: a module whose ``forward`` repeats them (:mod:`wse_sim.cstorch.tape`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from wse_sim.frontend import capture
from wse_sim.frontend.api import Lowering, _finish
from wse_sim.frontend.precision import precision_of
from wse_sim.graph import KernelGraph


def lower_calls(
    module: torch.nn.Module,
    args: Sequence[Any],
    *,
    name: str,
    samples: int,
    training: bool,
    optimizer: str = "adamw",
    precision: str = "mixed",
    recompute: str = "none",
) -> KernelGraph:
    """The kernel graph of recorded calls for `samples` samples.

    Raises
    ------
    ModelError
        If torch cannot capture a call, or an operator has no kernel.
    """
    trace = capture.trace_module(module, args, training=training, name=name)
    return _finish(trace, Lowering(training, optimizer, recompute, precision_of(precision)), samples)[0]
