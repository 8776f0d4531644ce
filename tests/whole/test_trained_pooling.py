"""Pooling that trains, alone on its fabric: values and gradients against PyTorch, ties among them; cycles against closed forms."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.generated import examples
from tests.whole.alone import EPS, Alone, check_alone, counted, issued, region_alone
from tests.whole.test_trained import RATE, training_plan
from wse_sim.kernels.blocks.pooling_core_training import trained_apart_cost
from wse_sim.kernels.contract.family import Tiling
from wse_sim.whole.trained import trained_network
from wse_sim.whole.trained.pooling import TrainedPooling
from wse_sim.whole.values import check_values

Image = tuple[int, int, int]
POOLS: dict[str, tuple[nn.Module, Image]] = {
    "maxima": (nn.MaxPool2d(2), (4, 8, 8)),
    "overlapping maxima": (nn.MaxPool2d(3, 2), (4, 7, 9)),
    "maxima over a border": (nn.MaxPool2d(3, 2, 1), (6, 8, 7)),
    "a maximum for every pixel": (nn.MaxPool2d(3, 1, 1), (2, 5, 6)),
    "maxima with gaps": (nn.MaxPool2d(2, 3), (4, 9, 8)),
    "means": (nn.AvgPool2d(2), (4, 6, 8)),
    "means over a border": (nn.AvgPool2d(3, 2, 1), (4, 8, 8)),
    "a mean for every pixel": (nn.AvgPool2d(3, 1, 1), (4, 5, 6)),
    "means of all": (nn.AdaptiveAvgPool2d(1), (6, 5, 5)),
}


@cache
def region(name: str, side: int = 16) -> TrainedPooling:
    """Return the region of a pooling behind a convolution, in a plan of training."""
    pool, (channels, lines, columns) = POOLS[name]
    return pooling(pool, (channels, lines, columns), side)


def pooling(pool: nn.Module, image: Image, side: int = 16) -> TrainedPooling:
    """Return the cases as above."""
    layers = [nn.Conv2d(image[0], image[0], 1), pool, nn.Flatten(), nn.LazyLinear(4)]
    model = nn.Sequential(*layers)
    model(torch.zeros(1, *image))
    plan = training_plan(model, image, side)
    found = region_alone(TrainedPooling, plan, "1")
    assert isinstance(found, TrainedPooling)
    return found


def checked(
    found: TrainedPooling, pool: nn.Module, *, samples: int, in_flight: int, whole: bool = True
) -> Alone:
    """Return a batch against autograd; `whole` numbers after a ReLU: most windows have several largest pixels."""
    rng = np.random.default_rng(1)
    graph, (name,) = found.graph, found.operands
    shape, result = graph.tensors[name].shape[1:], graph.tensors[found.kernel.outputs[0]].shape[1:]
    x = rng.normal(0, 2, (samples, *shape))
    x = np.maximum(np.round(x), 0) if whole else x
    gradient = rng.normal(size=(samples, *result))
    # Sums of up to nine gradients in fp16 have eight roundings.
    return check_alone(found, pool, {name: x}, gradient, {}, in_flight=in_flight, roundings=6)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("name", POOLS)
def test_values_equal_those_of_autograd(name: str, whole: bool) -> None:
    """Result and gradient of the image; three rounds of two images."""
    checked(region(name), POOLS[name][0], samples=6, in_flight=2, whole=whole)


@pytest.mark.slow
@examples(8)
@given(
    taps=st.integers(1, 4),
    stride=st.integers(1, 4),
    around=st.integers(0, 2),
    is_max=st.booleans(),
    lines=st.integers(4, 7),
    columns=st.integers(4, 7),
    words=st.integers(1, 3),
    rounds=st.integers(1, 2),
    in_flight=st.integers(1, 3),
)
def test_any_window_and_any_number_in_flight(
    taps: int,
    stride: int,
    around: int,
    is_max: bool,
    lines: int,
    columns: int,
    words: int,
    rounds: int,
    in_flight: int,
) -> None:
    """Windows that overlap, touch or leave gaps, over borders or not."""
    make = nn.MaxPool2d if is_max else nn.AvgPool2d
    pool = make(taps, stride, min(around, taps // 2))
    found = pooling(pool, (2 * words, lines, columns))
    checked(found, pool, samples=rounds * in_flight, in_flight=in_flight)


@pytest.mark.parametrize("name", POOLS)
def test_there_is_no_update(name: str) -> None:
    """Three images take the time that they add to a batch, without an update."""
    found = region(name)
    assert counted(found, 3, 3).max() == 3 * issued(found)


def test_cycles_on_paper() -> None:
    """Maxima of 2 x 2 of 2 channels of 8 x 8 pixels on one core; start o = 21; a cycle takes 4 sums or products, 1 maximum or step.

    Columns: both channels o + 32 elements: sub, step, max.   Lines: 4 times o + 8; their taps are 8 elements apart, in equal
    banks, so sub and max take twice as long.   Back: mul, sub of the same lengths; the two that lines subtract are in equal
    banks.   In and out: 64 + 16 words, twice.
    """
    found, o = pooling(nn.MaxPool2d(2), (2, 8, 8)), 21
    columns = 2 * ((o + 8) + (o + 32) + (o + 32) + 2 * (o + 8))
    lines = 4 * ((o + 2 * 2) + (o + 8) + (o + 2 * 8) + (o + 2) + (o + 2 * 2))
    assert issued(found) == columns + lines + 2 * (64 + 16)


@pytest.mark.slow
def test_a_network_with_pooling_trains() -> None:
    """A small LeNet: four images in flight, two rounds; loss, outputs, gradients and updates beside a PyTorch that rounds where streams do."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(24, 6),
    )  # fmt: skip
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
        parameter.data = parameter.data.half().float()
    x, labels = torch.randn(8, 1, 12, 12).half().float(), torch.arange(8) % 6
    plan = training_plan(model, (1, 12, 12), 20)
    assert trained_network(plan, 8, most_in_flight=4).batch.in_flight == 4
    found = check_values(model, plan, x.numpy(), labels.numpy(), rate=RATE, in_flight=4)
    assert all(found.worst(kind).rounded_error < 8 * EPS for kind in found.kinds), found.text()


@pytest.mark.slow
def test_the_plan_counts_turns_as_waiting() -> None:
    """Three cores of a word each, 8 x 8 pixels made 4 x 4: a core waits for two words of 64 + 16 pixels, and issues the rest.

    On the fabric a sample more takes what the plan states, less some words that wait in queues while their core continues.
    """
    found, pool = pooling(nn.MaxPool2d(2), (6, 8, 8)), nn.MaxPool2d(2)
    dims, tiling = found.kernel.dims, Tiling(3, 1, "stationary")
    planned = [trained_apart_cost(dims, 0, True, way, tiling, found.wafer) for way in (True, False)]
    assert sum(float(cost.total - cost.idle - cost.stalled_output) for cost in planned) == int(
        dims["b"]
    ) * issued(found)
    each = sum(float(cost.total - cost.idle) for cost in planned) / int(dims["b"])
    assert each == issued(found) + 2 * (64 + 16)
    batches = [checked(found, pool, samples=n, in_flight=n).fabric.cycles for n in (4, 8)]
    assert (batches[1] - batches[0]) / 4 == pytest.approx(each, rel=0.05)
