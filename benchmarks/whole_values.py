"""Compares values of whole models on the fabric with PyTorch, for :mod:`benchmarks.whole_fabric`: two steps of training
each.

Errors are of the largest element of a tensor: against fp32, and against a PyTorch that rounds where the fabric does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from wse_sim import api
from wse_sim.hardware import load_wafer
from wse_sim.whole import inputs_over_rows
from wse_sim.whole.values import check_values

Row = dict[str, Any]
Make = Callable[[], nn.Module]
STEPS, RATE = 2, 0.05


def moved(model: nn.Module) -> nn.Module:
    """Return the model with parameters away from their defaults, in fp16 numbers."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((parameter + 0.1 * torch.randn_like(parameter)).half())
    return model


def measure_values(
    name: str, make: Make, shape: tuple[int, ...], side: int, batch: int, choices: Row | None = None
) -> Row:
    """Two steps of a model on `side` x `side` cores."""
    size = {"rows": side, "cols": side, "program_rows": side, "program_cols": side}
    streamed = (choices or {}).get("mode") == "weight-streaming"
    outer = {"rows": side + 2} if streamed else {}
    wafer = load_wafer("wse2").derive(**size | outer, io_channels_per_edge=1 if streamed else side // 4)
    torch.manual_seed(0)
    model = moved(make())
    lowered = api.lower(model, (torch.zeros(1, *shape),), training=True, optimizer="sgd")
    graph = inputs_over_rows(lowered, streamed=streamed)
    how: Row = {"mode": "pipelined", "replicas": 1} if not streamed else {}
    plan = api.compile(graph, wafer=wafer, batch=batch, **how, **(choices or {}))
    x = torch.randn(batch, *shape).half().float()
    with torch.no_grad():
        outputs = model(x)
    rows = outputs.numel() // outputs.shape[-1] if len(shape) == len(("tokens", "features")) else batch
    labels = np.arange(rows) % (outputs.numel() // rows)
    loss = "squared error" if streamed else "cross entropy"
    found = check_values(model, plan, x.numpy(), labels, rate=RATE, steps=STEPS, loss=loss)
    return {
        "model": name,
        "shape": shape,
        "side": side,
        "batch": batch,
        **(choices or {}),
        "steps": STEPS,
        "errors": {kind: found.largest(kind) for kind in found.kinds},
        "selected": found.selected,
        "turned": found.turned,
        "turned_on_fabric": found.turned_on_fabric,
    }
