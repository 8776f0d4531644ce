"""Words at the ends of regions have a price: closed forms of inlets, links and lone samples against stepped programs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.drawn_models import Branches
from tests.whole.plans import corner
from tests.whole.test_dense_chain import graph_of, network
from wse_sim import api
from wse_sim.kernels import Tiling
from wse_sim.kernels.contract.equations import pointwise
from wse_sim.kernels.contract.parameters import Bundles
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole import compare_training, inputs_over_rows


def chain_plan(sizes: tuple[int, ...], base: str, side: int, batch: int) -> PipelinedPlan:
    """Return a chain that trains, as it is on the fabric."""
    graph = graph_of(network(sizes), sizes[0], training=True, optimizer="sgd")
    plan = api.compile(inputs_over_rows(graph), corner(side, base), mode="pipelined", batch=batch, replicas=1)
    assert isinstance(plan, PipelinedPlan)
    return plan


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "side", "within"), [((196, 64, 64, 10), 48, 0.10), ((256, 96, 96, 96, 16), 40, 0.13)]
)
def test_a_chain_with_many_inlets_keeps_the_pace_of_its_cores(
    sizes: tuple[int, ...], side: int, within: float
) -> None:
    """A batch of 32: the steps of both simulators; with four inlets they took 9 and 15 % longer on the fabric.

    The second chain has more links since they are chosen before placement: its step fell by 16 % in the engine, to 4,814 cycles,
    and by less on the fabric, to 5,404, since 32 samples mostly fill and drain the pipeline.
    """
    assert compare_training(chain_plan(sizes, "wse2", side, 32)).difference == pytest.approx(0, abs=within)


@pytest.mark.slow
@pytest.mark.parametrize(("base", "within"), [("wse2", 0.15), ("wse3", 0.45)])
def test_a_lone_sample_takes_the_sum_of_its_parts_through_layers_and_back(base: str, within: float) -> None:
    """Nothing overlaps for one sample, so the engine's step consists of fills and routes.

    On WSE-3 sums take longer from row to row than the fill of the price says.
    """
    plan = dataclasses.replace(chain_plan((96, 48, 32), base, 24, 8), batch=1)
    assert compare_training(plan).difference == pytest.approx(0, abs=within)


def test_two_operands_share_the_links_of_an_elementwise_region() -> None:
    """Forward the words of both arrive over the same links, and backward the gradients of both leave over them: 2 W
    cycles per sample each on one link, and a quarter of that on four.

    8 tokens of 32 features are W = 128 words.  The work itself is 2 elements a core, so without links the price was the start
    of an instruction and few words: the fabric took 74 % more than the engine.
    """
    wse2 = corner(24)
    one = Bundles(1, 16)
    alone = pointwise(256, Tiling(8, 16), wse2, dtype="fp16", issue=0.25, inputs=2, bundles=one)
    assert float(np.asarray(alone.total - alone.idle)) == 2 * 128
    torch.manual_seed(1)
    model = nn.Sequential(Branches(32, 32, "-"), nn.Linear(32, 8))
    graph = api.lower(model, (torch.zeros(1, 8, 32),), training=True, optimizer="sgd")
    plan = api.compile(inputs_over_rows(graph), wse2, mode="pipelined", batch=8, replicas=1)
    assert isinstance(plan, PipelinedPlan)
    sub = next(stage for stage in plan.stages if stage.family == "generated")
    links = next(dict(one.attrs)["most_bundles"] for one in plan.graph.kernels if one.name == sub.name)
    assert links > 1
    assert min(sub.forward_cycles, sub.backward_cycles) >= 2 * 128 / links
    assert compare_training(plan).difference == pytest.approx(0, abs=0.18)


def test_a_region_as_high_as_the_wafer_computes_on_one_row_less() -> None:
    """Cells that send one after the other block a column for streams: 768 elements on 31 of 32 rows and 12 columns are
    4 per core, not 2.
    """
    wse2 = corner(32)
    high, low = (
        pointwise(
            768, Tiling(rows, 12), wse2, dtype="fp16", special=1, inputs=2, bundles=Bundles(1, 16)
        ).special
        for rows in (32, 31)
    )
    assert high == low == 4 * wse2.special_element_cycles
