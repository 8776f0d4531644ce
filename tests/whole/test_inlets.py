"""Words at the ends of regions have a price: closed forms of inlets, links and lone samples against stepped programs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.drawn_models import Branches
from tests.whole.test_dense_chain import graph_of, network
from wse_sim import api
from wse_sim.hardware import Wafer, load_wafer
from wse_sim.kernels import Tiling
from wse_sim.kernels.blocks.chain_rows import MOST_INLETS, chain_rows
from wse_sim.kernels.contract.equations import pointwise
from wse_sim.kernels.contract.parameters import Bundles
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole import compare_training, inputs_over_rows
from wse_sim.whole.run import stepped
from wse_sim.whole.training import training_program


def corner(base: str, side: int) -> Wafer:
    """Return a corner of a wafer."""
    sides = {"rows": side, "cols": side, "program_rows": side, "program_cols": side}
    return load_wafer(base).derive(**sides, io_channels_per_edge=side // 4)


def chain_plan(sizes: tuple[int, ...], base: str, side: int, batch: int) -> PipelinedPlan:
    """Return a chain that trains, as it is on the fabric."""
    graph = graph_of(network(sizes), sizes[0], training=True, optimizer="sgd")
    plan = api.compile(inputs_over_rows(graph), corner(base, side), mode="pipelined", batch=batch, replicas=1)
    assert isinstance(plan, PipelinedPlan)
    return plan


@pytest.mark.thinned(1)
@pytest.mark.parametrize("base", ["wse2", "wse3"])
def test_inlets_issue_what_the_price_of_a_chain_says(base: str) -> None:
    """An inlet receives i words of a sample and sends d on, forward and backward: i + 2 d cycles, whatever the links
    take.

    Rows that have a word less than others take 3 cycles from that: heard once, dealt out twice.  A layer has as many inlets as its
    price where they find ways.
    """
    samples = 6
    plan = chain_plan((64, 32, 10), base, 16, samples)
    made = training_program(plan, samples)
    busy = stepped(made.program, made.config, None).busy
    for layout, stage in zip(made.layouts, plan.stages, strict=True):
        rows = stage.region.rows
        of = chain_rows(
            layout.k, layout.n, layout.items, Tiling(rows - 1, stage.region.compute_cores // rows), plan.wafer,
            has_dx=stage is not plan.stages[0],
        )  # fmt: skip
        assert len(layout.fed) <= of.inlets
        heard, dealt = of.through_inlet(len(layout.fed))
        found = {number: busy[layout.inlet(number)] / samples for number in range(len(layout.fed))}
        fullest = max(found, key=lambda number: found[number])
        shares = [len(layout.rows[i].inputs) for i in layout.fed[fullest]]
        short = sum((max(len(row.inputs) for row in layout.rows) - share) // 2 for share in shares)
        rounds = max(len(row.inputs) for row in layout.rows) // 2
        assert heard + 2 * dealt - 3 * short - 2 * rounds <= found[fullest] <= heard + 2 * dealt
        if not short and len(shares) == -(-(len(layout.rows) - 1) // len(layout.fed)):
            assert found[fullest] == heard + 2 * dealt


def test_the_host_feeds_more_inlets_than_hear_one_stream_between_regions() -> None:
    """An inlet of the first layer receives only the words of its rows, so there are enough inlets to keep the cores at
    work.
    """
    first, second = training_program(chain_plan((160, 24, 10), "wse2", 32, 24), 4).layouts[:2]
    assert len(first.fed) > MOST_INLETS >= len(second.fed)


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "side"), [((196, 64, 64, 10), 48), ((256, 96, 96, 96, 16), 40)])
def test_a_chain_with_many_inlets_keeps_the_pace_of_its_cores(sizes: tuple[int, ...], side: int) -> None:
    """A batch of 32: the steps of both simulators; with four inlets the first two took 9 and 15 % longer on the fabric."""
    assert compare_training(chain_plan(sizes, "wse2", side, 32)).difference == pytest.approx(0, abs=0.07)


@pytest.mark.slow
@pytest.mark.parametrize("base", ["wse2", "wse3"])
def test_a_lone_sample_takes_the_sum_of_its_parts_through_a_chain_and_back(base: str) -> None:
    """Nothing overlaps for one sample, so the engine's step consists of fills and routes: links of 1 or 1.125 cycles
    per word, hops, corners, dies.

    Before inlets, turns and the ways of the program were counted, the fabric took 34 % more on WSE-2 and 55 % on WSE-3.
    """
    plan = dataclasses.replace(chain_plan((96, 48, 32), base, 24, 8), batch=1)
    assert compare_training(plan).difference == pytest.approx(0, abs=0.15)


def test_two_operands_share_the_links_of_an_elementwise_region() -> None:
    """Forward the words of both arrive over one link, and backward the gradients of both leave over one: 2 W cycles per
    sample each.

    8 tokens of 32 features are W = 128 words.  The work itself is 2 elements a core, so without links the price was the start
    of an instruction and few words: the fabric took 74 % more than the engine, 22 % now.
    """
    wse2 = corner("wse2", 24)
    one = Bundles(1, 16)
    alone = pointwise(256, Tiling(8, 16), wse2, dtype="fp16", issue=0.25, inputs=2, bundles=one)
    assert float(np.asarray(alone.total - alone.idle)) == 2 * 128
    torch.manual_seed(1)
    model = nn.Sequential(Branches(32, 32, "-"), nn.Linear(32, 8))
    graph = api.lower(model, (torch.zeros(1, 8, 32),), training=True, optimizer="sgd")
    plan = api.compile(inputs_over_rows(graph), wse2, mode="pipelined", batch=8, replicas=1)
    assert isinstance(plan, PipelinedPlan)
    sub = next(stage for stage in plan.stages if stage.family == "elementwise")
    assert min(sub.forward_cycles, sub.backward_cycles) >= 2 * 128
    assert compare_training(plan).difference == pytest.approx(0, abs=0.3)


def test_a_region_as_high_as_the_wafer_computes_on_one_row_less() -> None:
    """Cells that send one after the other block a column for streams: 768 elements on 31 of 32 rows and 12 columns are
    4 per core, not 2.
    """
    wse2 = corner("wse2", 32)
    high, low = (
        pointwise(
            768, Tiling(rows, 12), wse2, dtype="fp16", special=1, inputs=2, bundles=Bundles(1, 16)
        ).special
        for rows in (32, 31)
    )
    assert high == low == 4 * wse2.special_element_cycles
