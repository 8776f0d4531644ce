"""Convolutions on the fabric: images pixel by pixel through regions whose inlets unfold them, beside PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.whole.test_dense_chain import wafer
from wse_sim import api
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole import compare_with_engine, inputs_over_rows, run_whole

CASES: dict[str, tuple[list[nn.Module], tuple[int, int, int], int]] = {
    "strides and zeros around": (
        [nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 6, 3, stride=2, padding=1), nn.ReLU(),
         nn.Flatten(), nn.Linear(54, 8)],
        (1, 12, 12), 20,
    ),
    "odd channels, even taps, lines longer than columns": (
        [nn.Conv2d(3, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(80, 6)], (3, 6, 5), 16,
    ),
    "an image comes out, no bias": ([nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1, bias=False)], (2, 4, 6), 16),
}  # fmt: skip


def made(name: str) -> tuple[nn.Sequential, PipelinedPlan]:
    """Model and plan of a case."""
    layers, shape, side = CASES[name]
    model = nn.Sequential(*layers).float()
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, *shape),)))
    plan = api.compile(graph, mode="pipelined", wafer=wafer(side), batch=16, replicas=1)
    assert isinstance(plan, PipelinedPlan)
    return model, plan


def weights_of(model: nn.Module) -> dict[str, Any]:
    """Parameters by name."""
    return {name: value.detach().numpy() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("name", CASES)
def test_images_come_out_as_from_pytorch(name: str) -> None:
    """Three images in flight.  Every layer rounds to fp16 (2^-11 relative) twice: sums, and sums with bias."""
    torch.manual_seed(2)
    model, plan = made(name)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    images = torch.randn(3, *CASES[name][1]).half()
    run = run_whole(plan, weights_of(model), images.float().numpy())
    with torch.no_grad():
        wanted = model.half()(images).float().numpy().reshape(3, -1)
    bound = 4 * len(plan.stages) * 2.0**-11 * np.abs(wanted).max()
    assert np.abs(run.outputs - wanted).max() < bound
    assert np.abs(run.outputs).max() > 50 * bound  # the bound would tell values from none
    assert run.fabric.words_left == 0


def test_regions_issue_what_their_instructions_take() -> None:
    """The busiest core of every region, and all start in the order of the layers."""
    _, plan = made("strides and zeros around")
    found = compare_with_engine(plan, 4)
    for region in found.regions:
        assert region.busiest == pytest.approx(region.issued, abs=1.0), region
    assert found.same_order


def test_cycles_of_the_last_row_on_paper() -> None:
    """4 channels of 4 x 6 pixels to 2 filters of one tap on a column of v = 2 outputs: T = 24 pixels.

    Two rows with k = 2 inputs: 2 x 1 products (two a cycle) and 2 sums, and a word sent: 5 cycles a pixel, 120.
    """
    _, plan = made("an image comes out, no bias")
    region = compare_with_engine(plan, 4).regions[1]
    assert region.busiest == 120
