"""A whole model on the fabric beside the event engine, on 14 plans of inference and 4 of training: JSON on standard output.

    python -m benchmarks.whole_fabric

Sizes of layers, wafers, placers, batches and links differ.  Inference: steady cycles per sample of both, busy, stalled
and idle, order of starts, link loads; the largest error of an output against PyTorch in fp16, over the largest output.
Training: cycles of a batch of 64 samples, and busy cycles.
"""

from __future__ import annotations

import json
import time
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from wse_sim import api
from wse_sim.errors import ModelError
from wse_sim.hardware import load_wafer
from wse_sim.modes.base import expect
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole import compare_training, compare_with_engine, inputs_over_rows, run_whole

Row = dict[str, Any]

PLANS: tuple[tuple[tuple[int, ...], int, Row, Row], ...] = (
    ((196, 64, 64, 10), 48, {}, {}),
    ((196, 64, 64, 10), 48, {}, {"placer": "snake"}),
    ((196, 64, 64, 10), 96, {}, {}),
    ((128, 128, 128, 32), 32, {}, {}),
    ((256, 96, 96, 96, 16), 40, {}, {}),
    ((64, 64), 24, {}, {}),
    ((400, 120, 84, 10), 24, {}, {}),
    ((400, 120, 84, 10), 16, {}, {}),
    ((128, 128, 128, 32), 20, {}, {}),
    ((400, 120, 84, 10), 24, {}, {"placer": "peel"}),
    ((128, 128, 128, 32), 32, {"hop_cycles": 2, "turn_cycles": 20, "wavelet_cycles": 1.125}, {}),
    ((196, 64, 64, 10), 48, {}, {"batch": 8}),
    ((256, 96, 96, 96, 16), 40, {"wavelet_cycles": 2.0}, {}),
    ((128, 128, 128, 32), 40, {}, {"placer": "snake"}),
)
TRAINED: tuple[tuple[tuple[int, ...], int], ...] = (
    ((64, 32, 32, 10), 24),
    ((196, 64, 64, 10), 48),
    ((128, 128, 128, 32), 32),
    ((400, 120, 84, 10), 24),
)


def network(sizes: tuple[int, ...]) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def measure(sizes: tuple[int, ...], side: int, constants: Row, choices: Row) -> Row:
    """One plan."""
    size = {"rows": side, "cols": side, "program_rows": side, "program_cols": side}
    wafer = load_wafer("wse2").derive(**size, io_channels_per_edge=side // 4, **constants)
    model = network(sizes)
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, sizes[0]),)))
    made = api.compile(graph, mode="pipelined", wafer=wafer, replicas=1, **{"batch": 64, **choices})
    plan = expect(made, PipelinedPlan)
    began = time.process_time()
    named = {"sizes": sizes, "side": side, **constants, **choices}
    try:
        found = compare_with_engine(plan)
    except ModelError as refusal:
        return {**named, "refused": str(refusal)}
    torch.manual_seed(1)
    x = torch.randn(8, sizes[0]).half()
    weights = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    outputs = run_whole(plan, weights, x.float().numpy()).outputs
    with torch.no_grad():
        wanted = model.half()(x).float().numpy()
    return {
        **named,
        **found.as_json(),
        "difference": found.difference,
        "output_error": float(np.abs(outputs - wanted).max() / np.abs(wanted).max()),
        "cpu_s": time.process_time() - began,
    }


def measure_training(sizes: tuple[int, ...], side: int) -> Row:
    """One plan that trains."""
    size = {"rows": side, "cols": side, "program_rows": side, "program_cols": side}
    wafer = load_wafer("wse2").derive(**size, io_channels_per_edge=side // 4)
    graph = api.lower(network(sizes), (torch.zeros(1, sizes[0]),), training=True, optimizer="sgd")
    how: Row = {"mode": "pipelined", "batch": 64}
    made = api.compile(inputs_over_rows(graph), wafer=wafer, replicas=1, **how)
    found = compare_training(expect(made, PipelinedPlan))
    return {"sizes": sizes, "side": side, **found.as_json(), "difference": found.difference}


if __name__ == "__main__":
    print(
        json.dumps(
            {
                "inference": [measure(*plan) for plan in PLANS],
                "training": [measure_training(*plan) for plan in TRAINED],
            },
            indent=1,
        )
    )
