"""The starts of regions: the work on all operands, in both simulators."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.whole.test_dense_chain import plan_of
from tests.whole.test_regions import Block
from tests.whole.test_trained import Skip, training_plan
from wse_sim import api
from wse_sim.fabric.executors.base import BusyBins
from wse_sim.whole import compare_training, compare_with_engine, inputs_over_rows
from wse_sim.whole.areas import FabricPlace
from wse_sim.whole.start_times import first_busy, same_order


def test_an_operand_taken_in_early_is_no_start() -> None:
    """In bins of 10 cycles a core receives a residual for 4 cycles in the second, and works from the fourth on."""
    busy = np.zeros((6, 1, 2), np.int64)
    busy[1, 0, 1], busy[3:, 0, :] = 4, 10
    run: Any = SimpleNamespace(busy_bins=busy, cycles=60)
    place, bins = FabricPlace("layer", slice(0, 1), slice(0, 2)), BusyBins(6, 10)
    assert first_busy(run, place, bins) == 10
    assert first_busy(run, place, bins, ahead=4) == 30
    assert first_busy(run, place, bins, ahead=100) == 60  # never: the end of the run


def test_a_last_row_that_waits_for_sums_is_no_start() -> None:
    """The last of three rows receives a residual in the second bin; the first two work from the fourth on."""
    busy = np.zeros((6, 3, 1), np.int64)
    busy[1, 2], busy[3:, :2] = 10, 10
    run: Any = SimpleNamespace(busy_bins=busy, cycles=60)
    place = FabricPlace("layer", slice(0, 3), slice(0, 1), start_rows=slice(0, 2))
    assert first_busy(run, place, BusyBins(6, 10)) == 30


@pytest.mark.parametrize(
    ("engine", "fabric", "within", "same"),
    [
        ([0, 5, 9], [0, 50, 60], 0, True),
        ([0, 5, 9], [0, 60, 50], 0, False),
        ([0, 5, 9], [0, 60, 50], 10, True),  # one bin apart: neither is first
        ([0, 5, 5], [0, 60, 50], 0, True),  # the engine has no order either
        ([], [], 0, True),
    ],
)
def test_starts_of_one_bin_have_no_order(
    engine: list[float], fabric: list[float], within: float, same: bool
) -> None:
    """Two regions count as swapped if both simulators distinguish their starts."""
    assert same_order(engine, fabric, within) is same


def test_a_layer_starts_after_the_branch_that_it_adds() -> None:
    """x + c(b(x)): c has the words of x before b does, and its first product after those of b."""
    graph = inputs_over_rows(api.lower(Skip(16), (torch.zeros(1, 4, 16),)))
    found = compare_with_engine(plan_of(graph, 32), 2)
    assert [region.name for region in found.regions] == ["a", "b", "c"]
    starts = [region.started for region in found.regions]
    assert starts == sorted(starts)
    assert found.same_order


@pytest.mark.slow
def test_a_block_that_trains_starts_as_the_engine_says() -> None:
    """Attention sends all tokens at the end, norms as they are ready: the last region starts within 15 % of the plan."""
    found = compare_training(training_plan(Block(16, 2, nn.ReLU()), (4, 16), 64, 4))
    assert found.same_order
    last = found.regions[-1]
    assert last.name == "loss"
    assert last.started == pytest.approx(last.engine_started, rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["norms", "functions"])
def test_rows_leave_as_their_cores_finish_them(kind: str) -> None:
    """Three norms, or functions, between layers: if their rows left together, the last region would start after another time
    of a sample for each: behind norms 1.4 times as late."""
    between = {"norms": lambda: nn.LayerNorm(32), "functions": nn.GELU}[kind]
    layers = [part for _ in range(3) for part in (nn.Linear(32, 32), between())]
    found = compare_training(training_plan(nn.Sequential(*layers, nn.Linear(32, 8)), (24, 32), 48, 8))
    assert found.same_order
    for region in found.regions:
        assert region.started == pytest.approx(region.engine_started, rel=0.12, abs=80)


@pytest.mark.slow
@pytest.mark.parametrize(("features", "heads", "bundles"), [(32, 1, 2), (32, 2, 4), (48, 1, 3)])
def test_every_link_between_regions_carries_what_the_map_says(
    features: int, heads: int, bundles: int
) -> None:
    """Norms, attention in one or two bands, layers of several bundles: counted words of every link are those of the
    routes.

    Links inside regions have more: those on which inlets distribute what they received.  Bundles of the widest tensor, 16 x 4 features of
    two elements per word, set the busiest link.  They end where groups of rows of its reader end: 2 or 4 with 32 features, 3 with 48.
    """
    block = Block(features, heads, nn.ReLU())
    graph = inputs_over_rows(api.lower(block, (torch.zeros(1, 16, features),)))
    found = compare_with_engine(plan_of(graph, 96), 2)
    words = found.link_words
    assert words.unequal == 0
    assert words.laid == words.fabric == 16 * 4 * features / 2 / bundles
    assert words.moving >= words.fabric
    counted = found.fabric.link_wavelets[:, :, :4] / 4
    assert np.all(words.streams <= counted + 1)  # a control word of a run has fewer than its samples
    assert words.streams.sum() > 0.1 * counted.sum()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["block", "skip", "chain"])
def test_every_link_between_regions_that_train_carries_what_the_map_says(model: str) -> None:
    """Activations, gradients, their stores and sums, the loss; one more or one fewer link of a route would be a
    difference.
    """
    made, shape, side = {
        "block": (Block(16, 2, nn.ReLU()), (4, 16), 64),
        "skip": (Skip(16), (4, 16), 32),
        "chain": (nn.Sequential(nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 32)), (96,), 24),
    }[model]
    found = compare_training(training_plan(made, shape, side, 4))
    words = found.link_words
    assert words.unequal == 0
    assert words.laid == words.fabric
    assert np.all(words.streams <= found.fabric.link_wavelets[:, :, :4] / 4 + 0.01)
