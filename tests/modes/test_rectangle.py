"""Part of the wafer: more rows or columns make no step slower, and a plan states what it does not use."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest

import wse_sim
from tests.handmade import transformer
from wse_sim.compiler.plan import Infeasible
from wse_sim.hardware import Wafer, load_cluster, load_wafer
from wse_sim.modes.weight_streaming import WeightStreaming
from wse_sim.modes.weight_streaming.options import StreamingChoice
from wse_sim.modes.weight_streaming.parts import PartTimes
from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan
from wse_sim.modes.weight_streaming.rectangle import (
    LEAST_GAIN,
    SIZES,
    free_seconds,
    may_gain,
    on_fewer_cores,
    rectangle_of,
)
from wse_sim.modes.weight_streaming.steps import compile_streaming
from wse_sim.report.views import busy_fraction
from wse_sim.serialize import load, save

WAFER, CLUSTER = load_wafer("wse2").derive(launch_floor_s=36e-6), load_cluster("default")
"""With an eighth of the floor, so that the way of words sets the pace of a small model on a large wafer."""

GRAPH = transformer(2, 256, 4, 64, training=True)


def larger(rows: int, cols: int) -> Wafer:
    """Return a wafer of this many times the rows and columns."""
    more, wider = WAFER.program_rows * (rows - 1), WAFER.program_cols * (cols - 1)
    fields = {"rows": WAFER.rows + more, "program_rows": WAFER.program_rows + more}
    fields |= {"cols": WAFER.cols + wider, "program_cols": WAFER.program_cols + wider}
    return Wafer.model_validate(WAFER.model_dump() | fields)


def plan_on(wafer: Wafer, batch: int = 1, rectangle: tuple[int, int] | None = None) -> WeightStreamingPlan:
    """Return the plan of a small transformer; on all of the rectangle where one is given."""
    found = compile_streaming(GRAPH, wafer, CLUSTER, batch=batch, choice=StreamingChoice(rectangle=rectangle))
    assert isinstance(found, WeightStreamingPlan)
    return found


@pytest.mark.parametrize("times", [(8, 1), (1, 8), (4, 2)])
def test_more_cores_are_no_slower(times: tuple[int, int]) -> None:
    """On a complete wafer of eight times the cores a sample takes over 0.5 % longer, because its words travel farther."""
    wafer = larger(*times)
    before, after = free_seconds(plan_on(WAFER)), free_seconds(plan_on(wafer))
    whole = free_seconds(plan_on(wafer, rectangle=(wafer.program_rows, wafer.program_cols)))
    assert whole > 1.005 * before
    assert after < 1.005 * before


def test_a_plan_says_what_it_leaves_out_and_is_that_of_a_smaller_wafer(tmp_path: Path) -> None:
    wafer = larger(8, 1)
    plan = plan_on(wafer)
    rows, cols = rectangle_of(plan)
    assert rows < wafer.program_rows
    assert any(
        f"{rows} x {cols} of {wafer.program_rows} x {wafer.program_cols} cores" in n for n in plan.notes
    )
    assert plan.wafer == wafer  # nobody asked for a smaller one
    result = wse_sim.simulate(plan)
    assert busy_fraction(result) <= rows * cols / wafer.program_cores  # the cores that are left out are idle
    save(plan, tmp_path, "plan")
    assert load(tmp_path, "plan") == plan
    small = Wafer.model_validate(wafer.model_dump() | {"program_rows": rows, "program_cols": cols})
    assert plan.phases == plan_on(small, rectangle=(rows, cols)).phases


def test_no_size_of_the_ladder_is_better_by_more_than_the_least_gain() -> None:
    """Compared with all sizes, one axis at a time, the search misses little by its limited patience."""
    wafer = larger(8, 1)
    plan = plan_on(wafer)
    rows, cols = rectangle_of(plan)
    every = [(size, cols) for size in SIZES if size < wafer.program_rows]
    every += [(rows, size) for size in SIZES if size < wafer.program_cols]
    best = min(free_seconds(plan_on(wafer, rectangle=one)) for one in every)
    assert free_seconds(plan) <= (1 + 2 * LEAST_GAIN) * best


def test_drawn_constants_keep_the_rectangle() -> None:
    plan = plan_on(larger(8, 1))
    again = WeightStreaming().repriced(plan, plan.wafer.derive(clock_hz=2 * plan.wafer.clock_hz), CLUSTER)
    assert isinstance(again, WeightStreamingPlan)
    assert rectangle_of(again) == rectangle_of(plan)


def test_a_plan_that_floors_bind_tries_no_part() -> None:
    plan = plan_on(WAFER)
    assert not may_gain(plan)
    assert on_fewer_cores(plan, lambda: pytest.fail("timed"), lambda one: pytest.fail(f"tried {one}")) is plan


@pytest.mark.parametrize(
    "options",
    [
        {"batch": 8},
        {"batch": 8, "recompute": "full", "density": 0.25},
        {"batch": 2, "micro_batch": 1},
        {"batch": 64, "lanes": 3},
    ],
)
def test_parts_are_timed_as_their_plans_are(options: dict[str, object]) -> None:
    """Parts priced together as columns equal a plan of each, float for float; a part that fits no sample is infinite."""
    choice = StreamingChoice(**options)

    def attempt(rectangle: tuple[int, int]) -> WeightStreamingPlan | Infeasible:
        # What the search fixes is the micro-batch of the whole; the lanes are free.
        given = choice.replace(rectangle=rectangle, micro_batch=whole.micro_batch)
        return compile_streaming(GRAPH, WAFER, CLUSTER, batch=choice.batch, choice=given)

    whole = compile_streaming(GRAPH, WAFER, CLUSTER, batch=choice.batch, choice=choice)
    assert isinstance(whole, WeightStreamingPlan)
    sizes = [(768, 750), (96, 750), (96, 24), (990, 3), (2, 2), (1, 1)]
    found = list(
        PartTimes(GRAPH, whole, choice.replace(micro_batch=whole.micro_batch), attempt).seconds(sizes)
    )
    too_narrow = [size for size in sizes if size[1] < (choice.lanes or 1)]
    assert [found.pop() for _ in too_narrow] == [inf] * len(too_narrow)
    plans = [attempt(size) for size in sizes if size not in too_narrow]
    assert found == [inf if isinstance(plan, Infeasible) else free_seconds(plan) for plan in plans]
    assert found[-1] == inf or too_narrow
    assert len(set(found)) > 2
