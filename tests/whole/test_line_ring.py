"""Inlets of convolutions that store lines instead of images: which lines are where, values beside PyTorch, and cycles."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.whole.plans import corner, weights_of
from tests.whole.test_dense_chain import plan_of
from wse_sim import api
from wse_sim.kernels.blocks import line_ring
from wse_sim.kernels.blocks.line_ring import LineRing, ring_of
from wse_sim.kernels.blocks.windows import Axis
from wse_sim.whole import compare_with_engine, inputs_over_rows, network, run_whole


@pytest.mark.parametrize("taps", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_lines_stay_until_all_windows_have_read_them(taps: int, stride: int) -> None:
    """A store of slots is filled as the core fills it; every step finds its lines, and those that arrive overwrite none of them."""
    for size in range(taps, 24):
        for around in range((taps + 1) // 2):
            axis = Axis(size, taps, stride, around, (size + 2 * around - taps) // stride + 1)
            for block in range(1, axis.results + 1):
                _check(LineRing(axis, block))


def _check(ring: LineRing) -> None:
    axis, last, store = ring.axis, len(ring.steps) - 1, dict[int, tuple[int, int]]()

    def receive(image: int, lines: range) -> None:
        slots = [ring.slot(line) for line in lines]
        assert slots == list(range(slots[0], slots[0] + len(slots))) if slots else True  # one instruction
        store.update((slot, (image, line)) for slot, line in zip(slots, lines, strict=True))

    receive(0, ring.arrives(0))
    for image in (0, 1):
        for step, places in enumerate(ring.steps):
            if step < last or ring.arrives(last + 1):
                receive(image, ring.arrives(step + 1))
            elif ring.overlaps:
                receive(image + 1, ring.arrives(0))
            assert [place for first, count in ring.runs(step) for place in range(first, first + count)] == [
                *places
            ]
            for first, count in ring.runs(step):
                for turn in range(count):
                    for tap in range(axis.taps):
                        line = axis.first(first + turn) + tap
                        if 0 <= line < axis.size:
                            slot = ring.slot(axis.first(first) + tap) + turn * axis.stride
                            assert store[slot] == (image, line)
        if not ring.overlaps:
            receive(image + 1, ring.arrives(0))
    again = ring.steady[: len(ring.steady) // ring.period * ring.period]
    for step in again:  # a loop over a period repeats its slots
        same = again[(step - again.start) % ring.period]
        starts = [(ring.slot(ring.axis.first(first)), count) for first, count in ring.runs(step)]
        assert starts == [(ring.slot(ring.axis.first(first)), count) for first, count in ring.runs(same)]
    assert sum(len(ring.arrives(step)) for step in range(last + 2)) == axis.size


CASES: dict[str, tuple[list[nn.Module], tuple[int, int, int], int]] = {
    "two convolutions": ([nn.Conv2d(4, 4, 3, 1, 1), nn.ReLU(), nn.Conv2d(4, 6, 3, 1, 1)], (4, 12, 10), 2),
    "no lines around": ([nn.Conv2d(4, 4, 3)], (4, 13, 10), 1),
    "odd channels": ([nn.Conv2d(3, 4, 7, 2, 3)], (3, 20, 20), 3),
    "lines behind the last window": ([nn.Conv2d(2, 4, 4, 4)], (2, 18, 16), 2),
    "one step of several": ([nn.Conv2d(2, 4, 3, 1, 1)], (2, 12, 8), 5),
}


@pytest.mark.parametrize("name", CASES)
def test_values_of_lines_equal_those_of_images(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No inlet may store two images, and steps have at most so many lines; three images follow each other."""
    layers, shape, block = CASES[name]
    monkeypatch.setattr(line_ring, "images_bytes", lambda windows: 10**9)
    monkeypatch.setattr(line_ring, "ring_of", lambda axis, most: ring_of(axis, LineRing(axis, block).slots))
    torch.manual_seed(3)
    model = nn.Sequential(*layers).half().float()
    plan = plan_of(inputs_over_rows(api.lower(model, (torch.zeros(1, *shape),))), 40)
    assert all(not region.takes_whole for region in network.network_program(plan, 1).regions)
    images = torch.randn(3, *shape).half().float()
    run = run_whole(plan, weights_of(model), images.numpy())
    with torch.no_grad():
        wanted = model(images).numpy().reshape(3, -1)
    assert np.abs(run.outputs - wanted).max() < 6 * 2.0**-11 * np.abs(wanted).max()


@pytest.mark.slow
def test_an_image_of_long_lines_has_a_program() -> None:
    """Two images of 3 x 64 x 64 elements are 49,152 bytes, more than a core has; an inlet stores lines of a third of the words."""
    torch.manual_seed(4)
    layers = [nn.Conv2d(3, 8, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(512, 10)]
    model = nn.Sequential(*layers).half().float()
    plan = plan_of(inputs_over_rows(api.lower(model, (torch.zeros(1, 3, 64, 64),))), 44)
    found = compare_with_engine(plan, 3)
    assert found.fabric_period == pytest.approx(found.engine_period, rel=0.02)
    assert found.fabric_period == pytest.approx(plan.pace_cycles, rel=0.02)
    images = torch.randn(2, 3, 64, 64).half().float()
    run = run_whole(plan, weights_of(model), images.numpy())
    with torch.no_grad():
        wanted = model(images).numpy()
    assert np.abs(run.outputs - wanted).max() < 10 * 2.0**-11 * np.abs(wanted).max()
    assert corner(44).sram_usable_bytes < 2 * 2 * 3 * 64 * 64
