"""Weights over the edges of the wafer: complete words per column, each once, for any number of lanes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.whole.test_dense_chain import network
from tests.whole.test_streaming import plan_of, wafer
from wse_sim.engine.options import Options
from wse_sim.engine.trace import RunTrace
from wse_sim.graph import Phase
from wse_sim.modes.weight_streaming.graph_facts import whole_words
from wse_sim.modes.weight_streaming.links import WEST, program_region, streaming_wavelets
from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan
from wse_sim.modes.weight_streaming.run import StreamingRun
from wse_sim.whole.streaming.edges import arriving_blocks
from wse_sim.whole.streaming.program import streamed_program


def streaming_plan(
    sizes: tuple[int, ...], rows: int, cols: int, batch: int, *, training: bool = False, lanes: int = 1
) -> WeightStreamingPlan:
    """Dense layers on a small wafer with two rows of cores above and below the programs."""
    return plan_of(network(sizes), wafer(rows, cols, 2), batch, training=training, lanes=lanes)


def test_a_column_takes_whole_words() -> None:
    """196 inputs over 24 columns are 9 each and 10 in words: 240. 64 are 3 and 4: 96. 192 and 48 divide evenly."""
    plan = streaming_plan((196, 64, 64, 192, 48, 10), 24, 24, 48)
    found = [phase.filled for phase in plan.phases if phase.phase is Phase.FORWARD]
    assert found == [240 / 196, 96 / 64, 96 / 64, 1.0, 1.0]
    kernel = plan.graph.kernel(plan.phases[0].kernel)
    assert whole_words(kernel, 96) == 384 / 196  # three features each, and none on the last columns
    assert whole_words(kernel, 98) == 1.0


def test_what_bounds_a_phase_that_the_edges_set_the_pace_of() -> None:
    """Two layers of 48 to 48 on 4 x 48 columns, at a word in 4 cycles: 48 words of weights a round, 192 cycles.

    The first one: 48 rounds of weights and a word of biases for each column, and the way: 50 cycles over the wafer, two ramps (5 in all), and 47
    cores, 6 cycles each.  In the meantime words of the second one fill its queues and so cross the edge no more: 8 in the ring of
    a core that sends, 2 in each of two routers, 6 in the queue of the next one, and two rounds of one word: 20 for each column.
    But the edge was free for the way alone: 337 cycles.
    """
    plan = streaming_plan((48, 48, 48), 4, 48, 4)
    slow = plan.wafer.derive(io_bytes_per_s=plan.wafer.clock_hz)
    free = [dataclasses.replace(phase, floor_s=0.0) for phase in plan.phases]
    run = StreamingRun(
        dataclasses.replace(plan, wafer=slow, phases=tuple(free)),
        Options(steps=1),
        None,
        RunTrace(is_on=False, unit_s=1.0),
    )
    run.execute()
    first, second = run.books.phases.sum(axis=1) * plan.wafer.clock_hz
    way = 50 + 5 + 47 * 6
    assert [phase.way_cycles for phase in plan.phases] == [way, way]
    assert first == pytest.approx(49 * 192 + way, rel=1e-9)
    assert second == pytest.approx(first - way, rel=1e-9)
    assert [phase.ahead_bytes for phase in plan.phases] == [4 * 48 * 20] * 2


@pytest.mark.thinned(3)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("sizes", "cols"), [((196, 64, 64, 10), 24), ((64, 32, 10), 48)])
def test_as_many_bytes_as_the_program_sends(sizes: tuple[int, ...], cols: int, training: bool) -> None:
    """The plan counts the words of all feeders, 4 bytes each, except for a bias in words."""
    plan = streaming_plan(sizes, 8, cols, 16, training=training)
    made = streamed_program(plan)
    words = sum(size * times for size, times in arriving_blocks(made.layout)) * made.layout.cols
    assert sum(phase.edge_weight_bytes for phase in plan.phases) == pytest.approx(4 * words, rel=0.06)


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_every_weight_crosses_the_edge_once(lanes: int) -> None:
    """Column by column, weights of the east half of a lane enter from the east and continue to the first lane."""
    plan = streaming_plan((64, 64, 12), 6, 12, 48, lanes=lanes)
    assert isinstance(plan, WeightStreamingPlan)
    area, found = program_region(plan.wafer, lanes), streaming_wavelets(plan, 0.0)
    words = sum(phase.edge_weight_bytes for phase in plan.phases) / 4
    lane = area.cols // lanes
    wanted = np.zeros(area.cols)
    for j in range(lane // 2, lane):
        wanted[j + 1 :] += words / lane / area.rows  # from the last column to column j of the first lane
    row = found[area.row + 2, area.col : area.col + area.cols, WEST]
    assert row == pytest.approx(wanted, rel=1e-5)
    assert row[-1] * area.rows <= words / 2 * (1 + 1e-6)
