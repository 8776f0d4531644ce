"""Blocks that run forward again: what is stored, its cost, and when it is chosen; computed by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.handmade import transformer
from wse_sim.compiler.block_recompute import NOTE, block_recompute
from wse_sim.compiler.plan import Infeasible
from wse_sim.compiler.pricing import Prices
from wse_sim.compiler.sizing import Sizer
from wse_sim.errors import ModelError
from wse_sim.hardware import load_cluster, load_wafer
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.steps import compile_pipelined
from wse_sim.modes.simulation import simulate

WAFER, CLUSTER = load_wafer("wse2"), load_cluster()
SMALL = WAFER.derive(rows=132, cols=137, program_rows=130, program_cols=130)
GRAPH = transformer(6, 128, 4, 128)


def sizers() -> tuple[Sizer, Sizer]:
    """Return the stages that keep everything, and stages of blocks that run again."""
    prices = Prices(SMALL, {"training": True})
    return Sizer(GRAPH, SMALL, prices), Sizer(GRAPH, SMALL, prices, again=block_recompute(GRAPH))


def test_only_block_inputs_stay_for_all_samples_in_flight():
    """The first stage of block 0 stores 128 x 128 x 2 bytes of input for all samples, and its own operands for those in
    the block.

    The barrier of each of the 6 blocks makes the depth a little over 6 periods from the first block, and a
    little over 1 to the end of it: ceil(2 d) + 2 = 15 and 5 samples.
    """
    kept, again = sizers()
    first = min(again.again.held_bytes, key=[g.name for g in again.groups].index)
    group = next(g for g in again.groups if g.name == first)
    saved = group.forward.saved_bytes
    assert again.again.held_bytes[first] == 128 * 128 * 2
    assert kept.in_flight[first] == 15
    assert kept.activation_bytes(group) == 15 * saved
    assert again.activation_bytes(group) == 5 * saved + 15 * 128 * 128 * 2
    total = [sum(sizer.activation_bytes(g) for g in sizer.groups) for sizer in (kept, again)]
    assert total[1] < 0.7 * total[0]


def test_a_stage_of_a_block_pays_a_second_forward_pass():
    """The backward pass takes a forward pass longer inside blocks, and as long as before outside."""
    kept, again = sizers()
    inside = 0
    for group in kept.groups:
        forward, backward = kept.stage_cost(group, 10, 10)
        same, longer = again.stage_cost(group, 10, 10)
        more = float(np.asarray(longer.total - backward.total))
        assert float(np.asarray(forward.total)) == float(np.asarray(same.total))
        expected = float(np.asarray(forward.total)) if again.again.runs_again(group.name) else 0.0
        assert more == pytest.approx(expected)
        inside += again.again.runs_again(group.name)
    assert 0 < inside < len(kept.groups)


@pytest.mark.slow
def test_blocks_run_again_only_where_memory_asks_for_it():
    """With little SRAM the model fits in no other way; with enough it is as fast as before, unless recomputation is
    requested.
    """
    tight = SMALL.derive(sram_bytes=14 * 1024)
    graph = transformer(6, 128, 8, 512)
    assert isinstance(compile_pipelined(graph, tight, CLUSTER, batch=16, recompute="none"), Infeasible)
    made = compile_pipelined(graph, tight, CLUSTER, batch=16)
    assert isinstance(made, PipelinedPlan), made.message
    assert NOTE in made.notes
    assert all(s.memory.total_bytes <= tight.sram_usable_bytes for s in made.stages)
    assert simulate(made, trace=False).samples_per_s > 0

    free, full = (
        compile_pipelined(GRAPH, SMALL, CLUSTER, batch=16, recompute=way, layouts=False)
        for way in (None, "full")
    )
    assert isinstance(free, PipelinedPlan)
    assert isinstance(full, PipelinedPlan)
    assert NOTE not in free.notes
    assert 1.05 < full.pace_cycles / free.pace_cycles < 2.0  # a third pass beside two
    with pytest.raises(ModelError, match="use one of none, attention, full"):
        compile_pipelined(GRAPH, SMALL, CLUSTER, batch=16, recompute="some")


@pytest.mark.slow
def test_less_sram_never_makes_a_deep_model_faster():
    """Less SRAM steps through all choices: everything kept, scores recomputed, blocks recomputed, infeasible."""
    graph = transformer(6, 128, 8, 256)
    paces = []
    for kib in (48, 14, 12, 11, 10, 9):
        made = compile_pipelined(graph, SMALL.derive(sram_bytes=kib * 1024), CLUSTER, batch=16)
        paces.append(float("inf") if isinstance(made, Infeasible) else made.pace_cycles)
    assert all(b >= a * 0.995 for a, b in itertools.pairwise(paces)), paces
