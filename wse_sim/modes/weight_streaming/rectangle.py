"""Choice of a part of the wafer: fewer rows or columns if long routes cost more time than the additional cores save.

A phase takes at least the latency of its routes, which grows with rows and columns. A short step (small batch or small model) needs few
cores, so the compiler may leave rows and columns unused.  Symbols: R rows, C columns::

    candidates  R, C, and all of 2, 3, 4, 6, 8, 12, ... below them, whatever the wafer
    search      rows, then columns, from large to small; it ends after PATIENCE sizes that gain less than STEP_GAIN
    result      the fastest rectangle, if it takes LEAST_GAIN less time than all of the wafer

The candidates do not depend on the wafer, so a larger wafer has all candidates of a smaller one: more rows are no slower.
Routers of idle rows still pass words, so the bandwidth of the edges stays the same [assumed].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from wse_sim.compiler.plan import Infeasible
from wse_sim.engine.host import InputPath
from wse_sim.modes.weight_streaming.lanes import Rectangle
from wse_sim.modes.weight_streaming.plan import StreamedPhase, WeightStreamingPlan
from wse_sim.modes.weight_streaming.recurrence import step_seconds

Attempt = Callable[[Rectangle], WeightStreamingPlan | Infeasible]
Seconds = Callable[[Sequence[Rectangle]], Iterator[float]]
"""Function from rectangles to seconds of a step: infinite if it does not fit."""

SIZES = tuple(sorted({2 << n for n in range(20)} | {3 << n for n in range(20)}))
LEAST_GAIN = 2e-3
"""Least gain, as a fraction of the step time, for which rows or columns are left out."""

STEP_GAIN = 5e-4  # least gain of one size over another, as a fraction of the time
PATIENCE = 4  # sizes in a row that gain less, after which smaller ones are not tried
FREE_INPUT = InputPath(workers=1, worker_s=1e-15, io_s=1e-15, link_s=1e-15)


def rectangle_of(plan: WeightStreamingPlan) -> Rectangle:
    """Return the rows and columns that the kernels of a plan use."""
    return plan.used.program_rows, plan.used.program_cols


def on_fewer_cores(
    plan: WeightStreamingPlan, timer: Callable[[], Seconds], attempt: Attempt
) -> WeightStreamingPlan:
    """Return the plan on the fastest rectangle, with a note; unchanged if the whole wafer is as fast.

    `timer` makes the function that times rectangles, PATIENCE of them at a time; `attempt` makes the plan of
    one.
    """
    if not may_gain(plan):
        return plan
    seconds = timer()
    whole_s = best_s = free_seconds(plan)
    fastest = whole = rectangle_of(plan)
    for axis in (0, 1):
        smaller = [size for size in reversed(SIZES) if size < whole[axis]]
        ladder = [(size, fastest[1]) if axis == 0 else (fastest[0], size) for size in smaller]
        slower = 0
        for rectangle, step_s in zip(ladder, _ahead(seconds, ladder), strict=False):
            if step_s < best_s * (1 - STEP_GAIN):
                fastest, best_s, slower = rectangle, step_s, 0
            else:
                slower += 1
            if slower == PATIENCE:
                break
    gain = 1.0 - best_s / whole_s
    if gain < LEAST_GAIN:
        return plan
    best = attempt(fastest)
    assert isinstance(best, WeightStreamingPlan)  # `timer` has found that it fits
    (rows, cols), (all_rows, all_cols) = fastest, whole
    note = (
        f"kernels use {rows} x {cols} of {all_rows} x {all_cols} cores: routes are shorter, so a step takes "
        f"{100 * gain:.2f} % less time (the bandwidth of the edges stays the same: assumed)"
    )
    return replace(best, notes=(*best.notes, note))


def _ahead(seconds: Seconds, rectangles: Sequence[Rectangle]) -> Iterator[float]:
    """Yield the seconds of the rectangles, priced in groups that the search needs in any case."""
    for first in range(0, len(rectangles), PATIENCE):
        yield from seconds(rectangles[first : first + PATIENCE])


def free_seconds(plan: WeightStreamingPlan) -> float:
    """Return the seconds of a step without the host."""
    return step_seconds(plan, FREE_INPUT)


def may_gain(plan: WeightStreamingPlan) -> bool:
    """Return whether a step with no travel time would be shorter by enough; most plans have other bottlenecks."""
    clock = plan.wafer.clock_hz
    edge = min(plan.wafer.io_bytes_per_s, plan.cluster.swarmx_bytes_per_s, plan.cluster.memoryx_bytes_per_s)

    def seconds(phase: StreamedPhase, *, with_way: bool) -> float:
        size = max(phase.edge_weight_bytes, phase.edge_gradient_bytes)
        moves_s = size / edge + (phase.way_cycles / clock if size and with_way else 0.0)
        cycles = phase.compute_cycles - (0.0 if with_way else phase.parts.get("idle", 0.0))
        return max(cycles / clock, moves_s, phase.floor_s) + phase.spill_bytes / edge

    with_way = sum(seconds(phase, with_way=True) for phase in plan.phases)
    without = sum(seconds(phase, with_way=False) for phase in plan.phases)
    return 1.0 - without / with_way > LEAST_GAIN if with_way else False
