"""Routes of streams avoid links that cannot carry the words of all streams at the pace of the plan."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.whole.test_dense_chain import plan_of
from wse_sim import api
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole import compare_with_engine, inputs_over_rows
from wse_sim.whole import network as networks
from wse_sim.whole.network import network_program
from wse_sim.whole.paths import PORTS, Cell, Grid, direction
from wse_sim.whole.run import stepped
from wse_sim.whole.trees import Tree, found_way


@pytest.mark.parametrize(("rows", "words", "is_straight"), [(3, 10, True), (3, 11, False), (1, 11, True)])
def test_a_way_goes_around_a_link_that_cannot_carry_its_words_as_well(
    rows: int, words: float, is_straight: bool
) -> None:
    """40 words pass a link that carries 50: 10 more may share it, 11 more go around, if there is another route."""
    grid = Grid(rows, 6)
    middle = rows // 2
    taken = (middle, 2), (middle, 3)
    grid.words[taken], grid.limit = 40.0, 50.0
    ends: tuple[Cell, Cell] = (middle, 0), (middle, 5)
    way = found_way(grid, ends[0], [ends[1]], [ends[0]], lambda _: 1.0, [0], words)
    assert way is not None
    assert (way.parents.get(taken[1]) == taken[0]) == is_straight
    assert grid.words[taken] == 40 + words * is_straight


def test_a_link_carries_a_word_in_each_cycle_of_the_slowest_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other regions are faster, but no sample comes sooner: the pace of the plan is the limit of links."""
    limits, laid = [], networks.trees_of

    def trees_of(plan: PipelinedPlan, grid: Grid, *others: Any) -> tuple[Tree, ...]:
        limits.append(grid.limit)
        return laid(plan, grid, *others)

    monkeypatch.setattr(networks, "trees_of", trees_of)
    plan = plan_of(inputs_over_rows(api.lower(normed(), (torch.zeros(1, 16, 64),))), 48)
    network_program(plan, 1)
    slowest = max(stage.forward_cycles for stage in plan.stages)
    assert limits == [slowest / plan.wafer.wavelet_cycles]
    assert min(stage.forward_cycles for stage in plan.stages) < slowest


@pytest.mark.slow
def test_no_link_has_more_words_than_the_pace_allows() -> None:
    """Norm, layer, norm, layer: the words of streams are counted by their trees, and those that regions send over their
    own links.

    Before, words on their way to the second norm crossed its cores, and its results crossed the last row of the layer before: 1,024
    words on a link, where a sample takes 639 cycles.
    """
    plan = plan_of(inputs_over_rows(api.lower(normed(), (torch.zeros(1, 16, 64),))), 48)
    made = network_program(plan, 1)
    words: dict[tuple[Cell, Cell], float] = {}
    for region in made.regions:
        for link, count in region.link_words.items():
            words[link] = words.get(link, 0.0) + count
    for tree in made.trees:
        each = plan.graph.tensors[tree.tensor].elements / 2 / tree.bundles
        for cell, parent in tree.parents.items():
            words[parent, cell] = words.get((parent, cell), 0.0) + each
    assert max(words.values()) <= plan.pace_cycles


@pytest.mark.slow
def test_a_layer_between_two_norms_keeps_the_pace_of_the_plan() -> None:
    """It took 66 % longer when two streams shared a link."""
    plan = plan_of(inputs_over_rows(api.lower(normed(), (torch.zeros(1, 16, 64),))), 48)
    assert compare_with_engine(plan, 6).fabric_period == pytest.approx(plan.pace_cycles, rel=0.02)


def normed() -> nn.Sequential:
    """Two layers, a norm before each."""
    return nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64))


class Skip(nn.Module):
    """A layer, two more around which its results pass, and one on their sum."""

    def __init__(self, features: int, inner: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(features, features), nn.Linear(features, outputs)
        self.inner = nn.Sequential(nn.Linear(features, inner), nn.ReLU(), nn.Linear(inner, features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        y = self.first(x)
        return self.last(y + self.inner(y))


def test_words_of_a_residual_are_among_those_of_its_region() -> None:
    """The words that a region states for the links over which it deals out a residual are those that the fabric counts,
    and streams of other tensors pass where the pace leaves room: 12 tokens of 64 features, whose bundle shared a link with others."""
    torch.manual_seed(0)
    plan = plan_of(inputs_over_rows(api.lower(Skip(64, 24, 20), (torch.zeros(1, 12, 64),))), 40)
    made = network_program(plan, 2)
    (region,) = [one for one in made.regions if getattr(one, "residuals", 0)]
    counted = stepped(made.program, made.config, None).link_wavelets / made.samples
    laid = made.laid_words
    checked = 0
    for bundle in range(region.residuals):  # type: ignore[attr-defined]
        for (row, col), there in pairwise(region._residual_way(bundle)):  # type: ignore[attr-defined]
            port = PORTS.index(direction((row, col), there))
            stated = region.link_words[(row, col), there]
            assert counted[row, col, port] == stated + laid[row, col, port]
            assert counted[row, col, port] <= plan.pace_cycles
            checked += 1
    assert checked > 3


def test_a_laid_plan_has_the_words_on_its_links() -> None:
    """A link that two bundles share limits the event engine as well as the fabric."""
    torch.manual_seed(0)
    plan = plan_of(inputs_over_rows(api.lower(Skip(64, 24, 20), (torch.zeros(1, 12, 64),))), 40)
    made = network_program(plan, 1)
    np.testing.assert_allclose(made.laid_plan().link_bytes_per_sample, 4 * made.laid_words, rtol=1e-6)
