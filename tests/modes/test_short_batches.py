"""Batches of few samples: fill, drain and update count, and better hardware is never slower."""

from __future__ import annotations

import dataclasses
from math import inf

import pytest

from tests.handmade import transformer
from wse_sim import api
from wse_sim.compiler.compute_columns import ComputeColumns
from wse_sim.compiler.pricing import Prices
from wse_sim.compiler.shelves import Box, with_columns
from wse_sim.compiler.sizing import Sizer, make_groups
from wse_sim.engine.options import Options
from wse_sim.engine.trace import RunTrace
from wse_sim.errors import WseError
from wse_sim.frontend import load_model
from wse_sim.graph.optimizers import optimizer_of
from wse_sim.hardware import load_cluster, load_wafer
from wse_sim.modes.pipelined import batches, layout_cycles, steps
from wse_sim.modes.pipelined.compiled_schedule import quick_step_cycles
from wse_sim.modes.pipelined.estimate import batch_cycles, links_of, step_cycles
from wse_sim.modes.pipelined.layout_cycles import LayoutCycles
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.run import PipelinedRun, free_step_cycles
from wse_sim.modes.pipelined.steps import compile_pipelined

CLUSTER = load_cluster()
SMALL = load_wafer("wse2").derive(rows=132, cols=137, program_rows=130, program_cols=130)
GRAPH = transformer(2, 128, 4, 32)
PERCEPTRON = {"family": "mlp", "layers": 4, "hidden": 50, "input": 784, "classes": 10, "activation": "relu"}


def plan(wafer=SMALL, batch=8, graph=GRAPH) -> PipelinedPlan:
    """Return a plan of the small transformer."""
    made = compile_pipelined(graph, wafer, CLUSTER, batch=batch)
    assert isinstance(made, PipelinedPlan)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 4, 16])
def test_the_estimate_is_the_simulation_where_nothing_else_counts(batch):
    """Without the host, fill + samples + drain + update by formula are near the discrete events.

    A batch ends when the last stage is updated; the next one has begun by then in stages that were updated before,
    which the formula leaves out: a seventh for one sample.
    """
    made = plan(batch=batch)
    assert step_cycles(made) == pytest.approx(free_step_cycles(made), rel=0.15)


@pytest.mark.slow
def test_one_sample_by_hand():
    """One sample in one stage takes its forward pass, its fill, its backward pass and the update."""
    made = plan(batch=1)
    first = made.stages[0]
    alone = batch_cycles([first], [], 1, first.cycles_per_sample, training=True)
    by_hand = first.forward_cycles + first.latency_cycles + first.backward_cycles + first.update_cycles
    assert alone == pytest.approx(by_hand)
    pace, once = first.cycles_per_sample, max(first.forward_cycles, first.backward_cycles)
    loop = (by_hand - first.update_cycles) / first.in_flight  # it holds that many samples for so long
    high = by_hand + 2 * pace
    low = max(3 * pace + first.update_cycles, by_hand + 2 * max(loop, once))
    assert batch_cycles([first], [], 3, pace, training=True) == pytest.approx((high + low) / 2)
    assert batch_cycles([first], [], 3, 100.0, training=False) == 300.0


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("batch", [2, 5, 24])
def test_the_quick_schedule_is_that_of_the_discrete_events(batch, parallel):
    """Two batches, every pass: the compiled schedule and the processes of the engine end in the same cycle."""
    made = plan(batch=batch)
    stages = [
        dataclasses.replace(stage, parallel=parallel and k % 2 == 1, rows_per_sample=1 + k % 3)
        if parallel
        else stage
        for k, stage in enumerate(made.stages)
    ]
    made = dataclasses.replace(made, stages=tuple(stages))
    run = PipelinedRun(made, Options(steps=2, extrapolate=False), None, RunTrace(is_on=False, unit_s=1.0))
    run.execute()
    events = run.records[1].end - run.records[0].end
    assert quick_step_cycles(made.stages, links_of(made), batch) == pytest.approx(events, rel=1e-9)


@pytest.mark.slow
def test_layouts_are_compared_by_what_their_plans_take(monkeypatch):
    """With arrays instead of stages the schedule is the same except for the routes, or a formula near to it."""
    batch = 4
    made = plan(batch=batch)
    groups = make_groups(GRAPH.with_samples(1), SMALL)
    assert [stage.name for stage in made.stages] == [group.name for group in groups]
    graph = GRAPH.with_samples(1)
    sizer = Sizer(graph, SMALL, Prices(SMALL, {"training": True, "optimizer": optimizer_of(graph).name}))
    boxes = [
        Box(at.row, at.col, at.rows, at.cols, at.rows, at.compute_cores // at.rows)
        for at in (stage.region for stage in made.stages)
    ]
    bound = LayoutCycles(sizer, batch)(boxes)
    simulated = free_step_cycles(made)
    assert 0.97 * simulated <= bound <= 1.001 * simulated  # straight ways are the shortest, up to half a core
    monkeypatch.setattr(layout_cycles, "QUICK", 0)
    assert LayoutCycles(sizer, batch)(boxes) == pytest.approx(step_cycles(made), rel=0.03)
    tiny = SMALL.derive(sram_reserved_bytes=SMALL.sram_bytes - 64)
    assert LayoutCycles(sizer.priced_on(tiny), batch)(boxes) == inf


@pytest.mark.slow
def test_a_layout_whose_links_bind_is_compared_by_its_links():
    """The same rectangles have a crowded link: a batch of 16 takes 16 rounds on that link, as the result states."""
    made = plan(batch=16)
    crowded = made.link_bytes_per_sample * (10 * made.pace_cycles / made.link_cycles)
    slow = dataclasses.replace(made, link_bytes_per_sample=crowded)
    assert steps._batch_cycles(slow) == pytest.approx(160 * made.pace_cycles, rel=1e-5)
    assert steps._batch_cycles(slow) > steps._batch_cycles(made)


@pytest.mark.slow
def test_the_layouts_to_choose_from_do_not_depend_on_the_constants():
    """Faster arithmetic and slower starts give the same layouts; another size of wafer or batch gives others."""
    graph = load_model(PERCEPTRON, training=True).with_samples(1)

    def layouts(wafer, samples=8):
        batches._found_before.clear()
        sizer = Sizer(graph, wafer, Prices(wafer, {"training": True, "optimizer": optimizer_of(graph).name}))
        return batches.reference_layouts(sizer, samples)

    first = layouts(SMALL)
    assert len(first) > 50
    assert layouts(SMALL.derive(fma_mixed_per_cycle=8.0, vector_start_cycles=30.0, hop_cycles=3)) == first
    assert layouts(SMALL, samples=100) != first
    few, most = with_columns(first[0], ComputeColumns(0.9))
    assert all(a.compute_cols <= b.compute_cols <= a.cols for a, b in zip(few, most, strict=True))
    assert few == first[0]  # more may compute, none has to


@pytest.mark.slow
def test_sram_that_is_left_keeps_more_samples_and_they_pay(monkeypatch):
    """A pipeline with a long fill keeps few samples by sizing alone; the remaining SRAM lets it run at its pace."""
    monkeypatch.setattr(steps, "NOTICEABLE", 2.0)  # the layout is the same for both
    roomy = plan(load_wafer("wse2"), batch=64)
    monkeypatch.setattr(steps, "deepened", lambda sizer, stages, *rest: tuple(stages))
    tight = plan(load_wafer("wse2"), batch=64)
    assert [one.region for one in roomy.stages] == [one.region for one in tight.stages]
    assert roomy.in_flight > tight.in_flight
    assert max(stage.memory.total_bytes for stage in roomy.stages) <= SMALL.sram_usable_bytes
    assert free_step_cycles(roomy) < 0.8 * free_step_cycles(tight)


@pytest.mark.slow
def test_a_short_batch_gets_other_rectangles_and_is_faster(monkeypatch):
    """The plan for throughput leaves cores unused and updates for long; faster arithmetic made that worse."""
    graph = load_model(PERCEPTRON, training=True)
    fast = SMALL.derive(fma_mixed_per_cycle=8.0)
    mindful = [free_step_cycles(plan(wafer, graph=graph)) for wafer in (SMALL, fast)]
    monkeypatch.setattr(steps, "NOTICEABLE", 2.0)  # never look at the batch
    careless = [free_step_cycles(plan(wafer, graph=graph)) for wafer in (SMALL, fast)]
    assert careless[1] > 1.5 * careless[0]  # the fault that this choice repairs
    assert mindful[1] <= 1.01 * mindful[0] < 0.5 * careless[0]


def test_long_batches_keep_the_plan_for_throughput(monkeypatch):
    """Where fill and update do not count nothing is searched: equal plans."""
    mindful = plan(batch=100_000)
    monkeypatch.setattr(steps, "NOTICEABLE", 2.0)
    assert [stage.region for stage in plan(batch=100_000).stages] == [
        stage.region for stage in mindful.stages
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "better",
    [
        {"fma_mixed_per_cycle": 8.0},
        {"fma_mixed_per_cycle": 200.0},
        {"link_bytes_per_cycle": 8.0},
        {"vector_start_cycles": 1.0},
        {"rows": 200, "program_rows": 198},
        {"cols": 207, "program_cols": 200},
        {"sram_bytes": 98304},
    ],
    ids=str,
)
def test_better_hardware_is_never_slower(better):
    """With faster arithmetic, wider links, more rows and columns the time of the batch grows by less than 1 %."""
    before, after = plan(), plan(SMALL.derive(**better))
    assert free_step_cycles(after) <= 1.01 * free_step_cycles(before)


@pytest.mark.parametrize("size", [(1, 1), (10, 10), (100, 1)], ids=str)
def test_the_compiler_takes_no_more_lanes_than_there_are_columns(size):
    """Lanes chosen by the compiler fit every wafer; those of a user are compared with its columns."""
    rows, cols = size
    tiny = load_wafer("wse2").derive(rows=rows, cols=cols, program_rows=rows, program_cols=cols)
    graph = load_model(PERCEPTRON, training=True)
    made = api.compile(graph, tiny, mode="weight-streaming", batch=4)
    assert 1 <= made.lanes <= cols
    with pytest.raises(WseError, match="lanes"):
        api.compile(graph, tiny, mode="weight-streaming", batch=4, lanes=cols + 1)
