"""Timing of a plan from fabric programs instead of formulas.

A phase or stage is far too large to be run wavelet by wavelet, so each kernel is measured on a corner of
its rectangle: S x S cores that hold the same tile as the cores of the plan, for a few turns.  Symbols: c_m
and c_f cycles by formula and on the fabric, for n and for 2 n turns of the same tile::

    ratio       r = (c_f(2n) - c_f(n)) / (c_m(2n) - c_m(n))      the steady state, without fill
    kernel      C + (r - 1) P                                    C formula of the kernel, P its steady product
    factor      of a stage or phase: sum over its kernels / sum of their formulas

A ratio is worked out once per tile, wafer and mapping.  Kernels without a program keep the formula and
are listed with the reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from wse_sim.compiler.plan import PipelinedPlan, Plan
from wse_sim.compiler.streaming_work import with_recompute
from wse_sim.engine.result import Result
from wse_sim.engine.simulation import simulate
from wse_sim.errors import ConfigError, WseError
from wse_sim.graph import Kernel, Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels import Tiling, family
from wse_sim.kernels.base import Cost
from wse_sim.kernels.equations import ceil_div, per_core

SIDE = 4  # cores per side of the measured corner
TURNS = 6  # n: words per core of a triggered product
ELEMENTS = 256  # n: elements per core of a pointwise kernel, at most
SAME = 0.02  # a ratio this near to one counts as equal
TIMINGS = ("model", "fabric", "both")


@dataclass(frozen=True)
class Measured:
    """A tile measured on the fabric: steady cycles of a turn by formula and as run, and the reason."""

    model_cycles: float
    fabric_cycles: float
    issue_cycles: float  # of the fabric's cycles, those in which the core issues
    reason: str = ""  # why there is no measurement

    @property
    def ratio(self) -> float:
        """Fabric over formula; 1 where nothing was measured."""
        return self.fabric_cycles / self.model_cycles if not self.reason else 1.0


@dataclass(frozen=True)
class TimingRow:
    """Kernels of one tile in a plan; cycles are sums over all of them, per micro-batch or sample."""

    family: str
    phase: str
    tile: str
    count: int
    model_cycles: float
    fabric_cycles: float
    ratio: float
    why: str


@dataclass(frozen=True)
class TimingReport:
    """Factors for :func:`wse_sim.engine.simulation.simulate`, and what they come from."""

    factors: Mapping[str, float]
    rows: tuple[TimingRow, ...]
    model_only: tuple[TimingRow, ...]
    notes: tuple[str, ...]

    @property
    def measured_share(self) -> float:
        """Share of the plan's cycles that belong to kernels measured on the fabric."""
        measured = sum(row.model_cycles for row in self.rows)
        total = measured + sum(row.model_cycles for row in self.model_only)
        return measured / total if total else 0.0

    def text(self) -> str:
        """Which kernels differ and why, as text."""
        lines = [f"{'kernel':<14} {'phase':<16} {'tile':<22} {'count':>6} {'fabric/model':>12}  why"]
        order = sorted(self.rows, key=lambda row: -abs(row.fabric_cycles - row.model_cycles))
        for row in (*order, *self.model_only):
            ratio = f"{row.ratio:.3f}" if row in self.rows else "model only"
            lines.append(
                f"{row.family:<14} {row.phase:<16} {row.tile:<22} {row.count:>6} {ratio:>12}  {row.why}"
            )
        lines.append(f"measured on the fabric: {self.measured_share:.0%} of the cycles of the formulas")
        return "\n".join([*lines, *self.notes])


@dataclass(frozen=True)
class Timed:
    """A plan simulated with one timing source or both."""

    model: Result | None
    fabric: Result | None
    report: TimingReport | None


def run_timed(plan: Plan, timing: str = "both", **options: Any) -> Timed:
    """Simulate a plan with formulas, with fabric programs, or both; `options` are those of `simulate`.

    Raises
    ------
    ConfigError
        If the timing is unknown.
    """
    if timing not in TIMINGS:
        raise ConfigError(f"timing '{timing}' is unknown; use one of {', '.join(TIMINGS)}")
    model = simulate(plan, **options) if timing != "fabric" else None
    if timing == "model":
        return Timed(model, None, None)
    report = fabric_factors(plan)
    return Timed(model, simulate(plan, timing=report.factors, **options), report)


def fabric_factors(plan: Plan, progress: Callable[[str], None] = lambda text: None) -> TimingReport:
    """Measure the kernels of a plan on the fabric; names without a measurement keep the factor 1."""
    factors: dict[str, float] = {}
    rows: dict[tuple[str, ...], TimingRow] = {}
    totals: dict[str, list[float]] = {}
    for name, kernel, tiling in _kernels(plan):
        cost, part, found, tile = _measure(kernel, tiling, plan.wafer, progress)
        steady = part.total - part.idle
        timed = cost.total + (found.ratio - 1.0) * steady
        model_cycles, fabric_cycles = float(np.asarray(cost.total)), float(np.asarray(timed))
        sums = totals.setdefault(name, [0.0, 0.0])
        sums[0] += model_cycles
        sums[1] += fabric_cycles
        key = (kernel.family, str(kernel.phase), tile, found.reason)
        before = rows.get(key)
        rows[key] = TimingRow(
            family=kernel.family,
            phase=str(kernel.phase),
            tile=tile,
            count=1 + (before.count if before else 0),
            model_cycles=model_cycles + (before.model_cycles if before else 0.0),
            fabric_cycles=fabric_cycles + (before.fabric_cycles if before else 0.0),
            ratio=found.ratio,
            why=found.reason or _why(found),
        )
    for name, (model_cycles, fabric_cycles) in totals.items():
        if model_cycles > 0 and fabric_cycles != model_cycles:
            factors[name] = fabric_cycles / model_cycles
    return TimingReport(
        factors=factors,
        rows=tuple(row for key, row in rows.items() if not key[-1]),
        model_only=tuple(row for key, row in rows.items() if key[-1]),
        notes=(
            f"scaled down: {SIDE} x {SIDE} cores with the tile of the plan, {TURNS} and {2 * TURNS} turns; the "
            "difference is the steady state, fill keeps its formula",
        ),
    )


def _why(found: Measured) -> str:
    if abs(found.ratio - 1.0) <= SAME:
        return "as the formula"
    more = found.fabric_cycles - found.model_cycles
    waiting = found.fabric_cycles - found.issue_cycles
    part = "the core waits for words" if waiting > abs(more) / 2 else "starts and tasks between vectors"
    if more < 0:
        part = "the formula counts more than the program issues"
    return f"{more:+.4g} of {found.model_cycles:.4g} cycles a turn: {part}"


def _kernels(plan: Plan) -> Iterator[tuple[str, Kernel, Tiling]]:
    """(name of stage or phase, kernel, tiling) of everything whose cycles a plan states."""
    if isinstance(plan, PipelinedPlan):
        known = {kernel.name: kernel for kernel in plan.graph.kernels}
        for stage in plan.stages:
            rows = stage.region.rows
            cols = max(1, stage.region.compute_cores // rows)
            for name in stage.kernels:
                kernel = known.get(name)
                if kernel is not None and str(kernel.phase) != "update":
                    yield stage.name, kernel, Tiling(rows, cols, "stationary")
        return
    work = with_recompute(plan.graph, plan.recompute)
    rows, cols = plan.wafer.program_rows, plan.wafer.program_cols
    for phase, item in zip(plan.phases, work, strict=True):
        yield phase.name, item.kernel, Tiling(rows, cols, "streamed", lanes=plan.lanes)


def _measure(
    kernel: Kernel, tiling: Tiling, wafer: Wafer, progress: Callable[[str], None]
) -> tuple[Cost, Cost, Measured, str]:
    """(formula of the kernel, formula of the measured part, measurement, text of the tile)."""
    cost = _cost(kernel, kernel.dims, tiling, wafer, kernel.attrs)
    if kernel.family == "gemm" and kernel.phase is not Phase.WEIGHT_GRADIENT:
        bare = {key: value for key, value in kernel.attrs.items() if key != "fused"}
        dims, small, tile = _product_tile(kernel, tiling, wafer)
        part = _cost(kernel, kernel.dims, tiling, wafer, bare)
        step = {"streamed": "n", "stationary": "m"}[tiling.mapping]
        return cost, part, _ratio(kernel, dims, small, wafer, bare, step, TURNS, progress), tile
    if tuple(family(kernel.family).dims) == ("elements",) and kernel.phase is Phase.FORWARD:
        count = int(per_core(kernel.dims["elements"], tiling))
        small = Tiling(1, 1, tiling.mapping)
        start = max(1, min(ELEMENTS, count))
        found = _ratio(kernel, {}, small, wafer, dict(kernel.attrs), "elements", start, progress)
        return cost, _issued(cost), found, f"{count} elements"
    reason = "no program for this mapping and phase"
    return cost, Cost(), Measured(1.0, 1.0, 0.0, reason), ""


def _cost(
    kernel: Kernel, dims: Mapping[str, Any], tiling: Tiling, wafer: Wafer, attrs: Mapping[str, Any]
) -> Cost:
    found: Cost = family(kernel.family).cost(
        dims, tiling, wafer, phase=kernel.phase, dtype=kernel.dtype, attrs=attrs
    )
    return found


def _issued(cost: Cost) -> Cost:
    """What the core itself does; a pointwise program finds its operands in place, so waiting is left out."""
    return Cost(compute=cost.compute, special=cost.special, startup=cost.startup)


def _product_tile(kernel: Kernel, tiling: Tiling, wafer: Wafer) -> tuple[dict[str, int], Tiling, str]:
    """Dimensions (all but the turns) of the corner with the same tile, its tiling, and its name."""
    m, k, n = (int(kernel.dims[name]) for name in "mkn")
    rows, cols = int(tiling.rows), int(tiling.cols)
    if tiling.mapping == "streamed":
        lanes = int(tiling.lanes)
        f, v = int(ceil_div(k, cols // lanes)), int(ceil_div(m, lanes * rows))
        return {"m": v * SIDE, "k": f * SIDE}, Tiling(SIDE, SIDE, "streamed"), f"{f} words on {v} tokens"
    times = {}
    for name in ("kn", "nk"):
        way = dataclasses.replace(tiling, options={"orientation": name})
        times[name] = float(np.asarray(_cost(kernel, kernel.dims, way, wafer, kernel.attrs).total))
    if times["nk"] < times["kn"]:
        rows, cols = cols, rows
    f, v = int(ceil_div(k, rows)), int(ceil_div(n, cols))
    small = Tiling(SIDE, SIDE, "stationary", options={"orientation": "kn"})
    return {"k": f * SIDE, "n": v * SIDE}, small, f"{f} words on {v} outputs"


_KNOWN: dict[Any, Measured] = {}


def _ratio(
    kernel: Kernel,
    dims: Mapping[str, int],
    tiling: Tiling,
    wafer: Wafer,
    attrs: dict[str, Any],
    step: str,
    start: int,
    progress: Callable[[str], None],
) -> Measured:
    """Steady cycles from runs of `start` and twice as many turns (or elements); kept per tile."""
    key = (
        kernel.family,
        str(kernel.phase),
        kernel.dtype,
        tuple(sorted(dims.items())),
        (tiling.mapping, step, start),
        tuple(sorted((name, str(value)) for name, value in attrs.items())),
        tuple(getattr(wafer, name) for name in type(wafer).model_fields if name != "provenance"),
    )
    if key not in _KNOWN:
        progress(f"fabric {kernel.family} {dict(dims)}")
        try:
            _KNOWN[key] = _steady(kernel, dims, tiling, wafer, attrs, step, start)
        except WseError as fault:
            _KNOWN[key] = Measured(1.0, 1.0, 0.0, str(fault))
    return _KNOWN[key]


def _steady(
    kernel: Kernel,
    dims: Mapping[str, int],
    tiling: Tiling,
    wafer: Wafer,
    attrs: Mapping[str, Any],
    step: str,
    start: int,
) -> Measured:
    from wse_sim.fabric.run import run_program

    model, fabric, issue = [], [], []
    for turns in (start, 2 * start):
        sized = {**dims, step: turns}
        cost = _cost(kernel, sized, tiling, wafer, attrs)
        model.append(float(np.asarray((_issued(cost) if step == "elements" else cost).total)))
        case = family(kernel.family).program(
            sized, tiling, wafer, dtype=kernel.dtype, attrs=attrs, phase=kernel.phase, seed=0
        )
        result = run_program(case.program, case.config, functional=False)
        if result.deadlock is not None:
            raise ConfigError(f"the program of '{kernel.family}' stopped: {result.deadlock}")
        fabric.append(float(result.cycles))
        issue.append(float(result.busy.max()))
    per = start if step != "elements" else 1
    return Measured(
        model_cycles=(model[1] - model[0]) / per,
        fabric_cycles=(fabric[1] - fabric[0]) / per,
        issue_cycles=(issue[1] - issue[0]) / per,
    )
