"""Numbers of parallel streams that are chosen before regions have their shapes, and samples for which they have room."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.whole.plans import corner
from tests.whole.test_room import FEATURES, TOKENS, Block
from wse_sim import api
from wse_sim.frontend import load_model
from wse_sim.graph import KernelGraph, Phase
from wse_sim.modes.base import expect
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole import inputs_over_rows
from wse_sim.whole.room import with_room
from wse_sim.whole.trained.link_choice import chosen_streams
from wse_sim.whole.trained.round_sizes import round_sizes
from wse_sim.whole.trained.rounds import regions_of, with_links_of_regions

SIDE = 56


class Skip(nn.Module):
    """A layer and a norm with a skip around them, which elementwise work adds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.norm, self.end = nn.LayerNorm(FEATURES), nn.Linear(FEATURES, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        x = self.first(x)
        return self.end(x + self.norm(self.layer(x)))


def laid(model: type[nn.Module] = Block, samples: int = 1) -> KernelGraph:
    torch.manual_seed(0)
    example = (torch.zeros(samples, TOKENS, FEATURES),)
    return inputs_over_rows(api.lower(model(), example, training=True, optimizer="sgd"))


def test_tied_tensors_have_one_number_of_streams_for_which_cores_have_room():
    """The skips tie all tensors of the residual stream: both norms and both sums have one number, which divides the 24 words
    of a token.  Two samples of gradients are 6,144 bytes, and a core has 2,480 (as in test_room): at least 3 streams."""
    wafer = corner(SIDE, sram_bytes=8_192)
    graph = laid()
    counts = chosen_streams(graph, wafer)
    skip = counts["first.out"]
    norms = [one for one in graph.kernels if one.family == "norm" and one.phase is Phase.FORWARD]
    assert {counts[name] for one in norms for name in (*one.inputs, *one.outputs)} == {skip}
    assert skip >= 3
    assert FEATURES // 2 % skip == 0


def test_regions_of_a_plan_have_the_streams_that_its_prices_count():
    """Prices count the chosen numbers, so no region is slower with the numbers that exist; a tensor has fewer where they keep the
    pace as well."""
    wafer = corner(SIDE)
    how = {"mode": "pipelined", "batch": 4, "replicas": 1, "schedule": "1f1b"}
    plan = expect(api.compile(laid(), wafer, **how), PipelinedPlan)
    counts = chosen_streams(laid(), wafer)
    found = [(one, name) for one in regions_of(plan, plan.stages) for name in one.bundles if name in counts]
    assert found
    assert all(1 <= one.bundles[name] <= counts[name] for one, name in found)
    assert with_links_of_regions(plan).pace_cycles == plan.pace_cycles


@pytest.mark.parametrize("model", [Block, Skip])
def test_regions_have_room_for_the_samples_in_flight_for_which_they_are_planned(model: type[nn.Module]):
    """The bytes that prices count are those of the programs, for a graph of any batch."""
    wafer = corner(SIDE, sram_bytes=16_384)
    graph = with_room(laid(model, 8), wafer, 12)
    plan = expect(api.compile(graph, wafer, mode="pipelined", batch=12, schedule="gpipe"), PipelinedPlan)
    assert min(one.most_in_flight() for one in regions_of(plan, plan.stages)) >= 12


def test_a_round_has_no_more_samples_than_its_regions_have_room_for():
    """A smaller core has room for fewer samples, and more of them share the fill."""
    sizes = [round_sizes(laid(), corner(SIDE, sram_bytes=size), 64) for size in (49_152, 16_384)]
    assert max(sizes[0]) > max(sizes[1])
    assert sizes[0][0] > 1
    assert all(64 % size == 0 for size in sizes[0])


@pytest.mark.slow
def test_a_large_transformer_in_training_runs_near_its_area_bound():
    """Its rounds hold more than the four samples that alternating passes of its skips would leave room for."""
    graph = load_model("bert-base", batch=64, training=True, optimizer="sgd")
    how = {"mode": "pipelined", "batch": 64, "replicas": 1, "prices": "composed"}
    plan = expect(api.compile(graph, "wse2", **how, schedule="1f1b"), PipelinedPlan)
    assert plan.pace_cycles < 1.2 * plan.lower_bound_cycles
    in_rounds = expect(api.compile(graph, "wse2", **how), PipelinedPlan)
    assert in_rounds.round_samples >= 8
