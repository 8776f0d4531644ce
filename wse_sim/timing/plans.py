"""The kernels of a plan and the factors of its stages or phases.

Symbols as at the top of the package; P' = P times the share of the kernel's cycles that the plan counts:
a pipelined stage leaves out `idle` (samples follow each other), a phase with zero weights multiplies less.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from wse_sim.compiler.plan import Plan
from wse_sim.compiler.pricing import Prices
from wse_sim.compiler.scores import works_out_again
from wse_sim.engine.result import Result
from wse_sim.errors import WseError
from wse_sim.graph import Kernel, Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels import Tiling, family
from wse_sim.kernels.blocks.probes import fill_corners
from wse_sim.kernels.contract.family import Corner, Cost, Family
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.simulation import simulate
from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan
from wse_sim.modes.weight_streaming.work import with_recompute
from wse_sim.timing.corners import Measured, measure, unmeasured
from wse_sim.timing.rows import Rows, TimingReport, TimingRow
from wse_sim.timing.store import Store, key_of, open_store

ROUNDING = 1e-9  # of a kernel's cycles: less than that is left over by rounding
Progress = Callable[[str], None]


def silent(_: str) -> None:
    """Show no progress."""
    return


@dataclass(frozen=True)
class Timed:
    """A plan simulated with formulas and with fabric programs, and where the two differ."""

    model: Result
    fabric: Result
    report: TimingReport


def simulate_fabric(
    plan: Plan, *, cache: Path | str | None = None, measuring: Progress = silent, **options: Any
) -> tuple[Result, TimingReport]:
    """Simulate a plan with the cycles of fabric programs.

    Parameters
    ----------
    cache
        Folder in which measurements are kept; "none" keeps nothing.  Default: the user's cache folder.
    measuring
        Called with a line of text before each corner that has to run.
    options
        Those of :func:`wse_sim.modes.simulation.simulate`.
    """
    report = fabric_factors(plan, store=open_store(cache), progress=measuring)
    result = simulate(plan, timing=report.factors, **options)
    return dataclasses.replace(result, notes=(*result.notes, report.summary)), report


def run_timed(plan: Plan, *, model: Result | None = None, **options: Any) -> Timed:
    """Simulate a plan with formulas (unless that `model` result is given) and with fabric programs.

    `options` are those of :func:`simulate_fabric`.
    """
    fabric, report = simulate_fabric(plan, **options)
    if model is None:
        plain = {name: value for name, value in options.items() if name not in {"cache", "measuring"}}
        model = simulate(plan, **plain)
    return Timed(model, fabric, report)


@dataclass(frozen=True)
class Placed:
    """A kernel of a plan: the stage or phase it belongs to, and its cycles as the plan counts them."""

    name: str
    kernel: Kernel
    tiling: Tiling
    cycles: float
    fill_cycles: float  # of these, the fill of the rectangle
    scale: float = 1.0  # the plan's cycles over the formula's, fill aside
    again: Kernel | None = None  # the forward kernel whose special elements it works out once more

    def share_of(self, cost: Cost) -> float:
        """Cycles of the plan that a part of the formula makes up."""
        steady = self.scale * _number(cost.total - cost.idle)
        return steady + (_number(cost.idle) if self.fill_cycles else 0.0)

    def row(self, part: str, tile: str, cycles: float, ratio: float, why: str) -> TimingRow:
        """A row of the report for a part of this kernel."""
        family, phase = self.kernel.family, str(self.kernel.phase)
        return TimingRow(family, phase, part, tile, 1, cycles, ratio * cycles, ratio, why)


def fabric_factors(plan: Plan, *, store: Store | None = None, progress: Progress = silent) -> TimingReport:
    """Measure the kernels of a plan on the fabric; names without a measurement keep the factor 1."""
    placed = list(_placed(plan))
    known = _Corners(plan.wafer)
    wanted = [known.of(item) for item in placed]
    bench = Bench(plan.wafer, store or open_store(), progress)
    bench.run([corner for corners, _ in wanted for corner in corners])
    rows, kept = Rows(), Rows()
    totals: dict[str, list[float]] = {}
    for item, (corners, reason) in zip(placed, wanted, strict=True):
        parts = [(corner, bench.found(corner)) for corner in corners]
        more = account(item, parts, reason, rows, kept)
        sums = totals.setdefault(item.name, [0.0, 0.0])
        sums[0] += item.cycles
        sums[1] += item.cycles + more
    factors = {name: timed / model for name, (model, timed) in totals.items() if model > 0 and timed != model}
    return TimingReport(factors, rows.all(), kept.all(), bench.notes, bench.corners, bench.cached)


def account(
    item: Placed, parts: Sequence[tuple[Corner, Measured]], reason: str, rows: Rows, kept: Rows
) -> float:
    """Put the parts of a kernel into the rows; returns the cycles by which the fabric is slower."""
    left, more = item.cycles, 0.0
    for corner, found in parts:
        cycles = item.share_of(corner.cost)
        row = item.row(corner.part, corner.tile, cycles, found.ratio, found.why)
        (kept if found.reason else rows).add(row)
        left -= cycles
        more += row.difference_cycles
    if left > ROUNDING * item.cycles:
        why = reason or "starts and waits that no corner stands for"
        kept.add(item.row("rest" if parts else "", "", left, 1.0, why))
    return more


class Bench:
    """Runs corners, each distinct one once; what the store knows is not run."""

    def __init__(self, wafer: Wafer, store: Store, progress: Progress) -> None:
        self.wafer, self.store, self.progress = wafer, store, progress
        self._keys: dict[int, str] = {}
        self.corners = self.cached = 0

    def run(self, corners: Sequence[Corner]) -> None:
        """Measure all of them."""
        distinct: dict[str, Corner] = {}
        for corner in corners:
            if id(corner) not in self._keys:
                self._keys[id(corner)] = key_of(corner, self.wafer)
            distinct.setdefault(self._keys[id(corner)], corner)
        missing = {key: corner for key, corner in distinct.items() if self.store.get(key) is None}
        self.corners += len(distinct)
        self.cached += len(distinct) - len(missing)
        for number, (key, corner) in enumerate(missing.items(), 1):
            self.progress(f"fabric {number} of {len(missing)}: {corner.family} {corner.part}, {corner.tile}")
            self.store.put(key, self._measured(corner))

    def _measured(self, corner: Corner) -> Measured:
        try:
            return measure(corner, self.wafer)
        except WseError as fault:
            return unmeasured(str(fault))

    def found(self, corner: Corner) -> Measured:
        """The measurement of a corner that was run."""
        return self.store.get(self._keys[id(corner)]) or unmeasured("the corner did not run")

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the factors should know."""
        scaled = "scaled down: corners of a few cores with the tile of the plan; the difference is the steady state"
        return (scaled, self.store.fault) if self.store.fault else (scaled,)


class _Corners:
    """Corners of kernels, worked out once per signature and tiling, or the reason why there are none."""

    def __init__(self, wafer: Wafer) -> None:
        self.wafer = wafer
        self._known: dict[Any, tuple[tuple[Corner, ...], str]] = {}

    def of(self, item: Placed) -> tuple[tuple[Corner, ...], str]:
        tiling = item.tiling
        key = (item.kernel.signature, tiling.rows, tiling.cols, tiling.mapping, tiling.lanes)
        if key not in self._known:
            corners, reason = corners_of(item.kernel, tiling, self.wafer)
            fill = item.fill_cycles - sum(_number(corner.cost.idle) for corner in corners)
            if corners and fill > 0:
                corners = (*corners, *fill_corners(fill, tiling, self.wafer))
            if item.again is not None:
                forward, _ = corners_of(item.again, tiling, self.wafer)
                corners = (
                    *corners,
                    *(once_more(corner) for corner in forward if _number(corner.cost.special)),
                )
            self._known[key] = corners, reason
        return self._known[key]


def once_more(corner: Corner) -> Corner:
    """The special elements of a forward kernel's corner, worked out again in its backward pass."""
    return dataclasses.replace(corner, part=f"{corner.part} again", cost=Cost(special=corner.cost.special))


def corners_of(kernel: Kernel, tiling: Tiling, wafer: Wafer) -> tuple[tuple[Corner, ...], str]:
    """(corners, "") of a kernel, or ((), reason)."""
    found = family(kernel.family)
    try:
        corners = tuple(
            found.corners(
                kernel.dims, tiling, wafer, phase=kernel.phase, dtype=kernel.dtype, attrs=kernel.attrs
            )
        )
    except WseError as fault:
        return (), str(fault)
    if corners:
        return corners, ""
    if getattr(type(found), "program", Family.program) is Family.program:
        return (), "the family has no program"
    return (), f"no program for {str(kernel.phase).replace('_', ' ')}, {tiling.mapping}"


def _placed(plan: Plan) -> Iterator[Placed]:
    """Everything whose cycles a plan states."""
    return (
        _of_stages(plan) if isinstance(plan, PipelinedPlan) else _of_phases(cast(WeightStreamingPlan, plan))
    )


def _of_stages(plan: PipelinedPlan) -> Iterator[Placed]:
    prices = Prices(plan.wafer)
    for stage in plan.stages:
        rows = stage.region.rows
        cols = max(1, stage.region.compute_cores // rows)
        tiling = Tiling(rows, cols, "stationary")
        kernels = [plan.graph.kernel(name) for name in stage.kernels]
        forward = next(kernel for kernel in kernels if kernel.phase is Phase.FORWARD)
        for kernel in kernels:
            if kernel.phase is not Phase.UPDATE:
                cost = prices.cost(kernel, rows, cols, "stationary")
                again = forward if works_out_again(kernel) else None
                cycles = _number(cost.total - cost.idle)
                if again is not None:
                    cycles += _number(prices.cost(forward, rows, cols, "stationary").special)
                yield Placed(stage.name, kernel, tiling, cycles, 0.0, again=again)


def _of_phases(plan: WeightStreamingPlan) -> Iterator[Placed]:
    rows, cols = plan.wafer.program_rows, plan.wafer.program_cols
    tiling = Tiling(rows, cols, "streamed", lanes=plan.lanes)
    prices = Prices(plan.wafer)
    work = with_recompute(plan.graph, plan.recompute)
    for phase, item in zip(plan.phases, work, strict=True):
        cost = prices.cost(item.kernel, rows, cols, "streamed", plan.lanes)
        fill, whole = _number(cost.idle), _number(cost.total)
        scale = (phase.compute_cycles - fill) / (whole - fill) if whole > fill else 1.0
        yield Placed(phase.name, item.kernel, tiling, phase.compute_cycles, fill, scale)


def _number(value: Any) -> float:
    return float(np.asarray(value))
