"""The kernels of a plan and the factors of its stages or phases.

Symbols as at the top of the package; P' = P times the fraction of the kernel's cycles that the plan counts:
a pipelined stage leaves out `idle` (samples follow each other), a phase with zero weights multiplies less.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wse_sim.compiler.plan import Plan
from wse_sim.engine.result import Result
from wse_sim.errors import WseError
from wse_sim.graph import Kernel
from wse_sim.hardware import Wafer
from wse_sim.kernels import Tiling, family
from wse_sim.kernels.blocks.probes import fill_probes
from wse_sim.kernels.contract.family import Cost, Family, Probe
from wse_sim.modes import mode_of, simulate
from wse_sim.modes.base import Layer, Placed
from wse_sim.timing.bench import ROUNDING, Bench, Progress, silent
from wse_sim.timing.layers import measure_layer
from wse_sim.timing.probes import Measured
from wse_sim.timing.rows import Rows, TimingReport, TimingRow
from wse_sim.timing.store import MeasurementStore, open_store


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
        Called with a line of text before each probe that has to run.
    options
        Those of :func:`wse_sim.modes.simulation.simulate`.
    """
    report = fabric_factors(plan, store=open_store(cache), progress=measuring)
    result = simulate(plan, timing=report.factors, **options)
    return dataclasses.replace(result, notes=(*result.notes, report.summary)), report


def run_timed(plan: Plan, *, model: Result | None = None, **options: Any) -> Timed:
    """Simulate a plan twice: with formulas (`model` replaces that run) and with cycles of fabric programs.

    `options` are those of :func:`simulate_fabric`.
    """
    fabric, report = simulate_fabric(plan, **options)
    if model is None:
        plain = {name: value for name, value in options.items() if name not in {"cache", "measuring"}}
        model = simulate(plan, **plain)
    return Timed(model, fabric, report)


def share_of(item: Placed, cost: Cost) -> float:
    """Cycles of the plan that a part of a kernel's formula makes up."""
    steady = item.scale * _number(cost.total - cost.idle)
    return steady + (_number(cost.idle) if item.fill_cycles else 0.0)


def row_of(item: Placed, part: str, tile: str, cycles: float, ratio: float, why: str) -> TimingRow:
    """A row of the report for a part of a kernel."""
    family, phase = item.kernel.family, str(item.kernel.phase)
    return TimingRow(family, phase, part, tile, 1, cycles, ratio * cycles, ratio, why)


def fabric_factors(
    plan: Plan, *, store: MeasurementStore | None = None, progress: Progress = silent
) -> TimingReport:
    """Measure the kernels of a plan on the fabric; names without a measurement keep the factor 1."""
    work = list(mode_of(plan).work(plan))
    placed = [item for item in work if isinstance(item, Placed)]
    layers = [item for item in work if isinstance(item, Layer)]
    known = _Probes(plan.wafer)
    wanted = [known.of(item) for item in placed]
    bench = Bench(plan.wafer, store or open_store(), progress)
    bench.run([probe for probes, _ in wanted for probe in probes])
    rows, kept = Rows(), Rows()
    totals: dict[str, list[float]] = {}
    for item, (probes, reason) in zip(placed, wanted, strict=True):
        parts = [(probe, bench.found(probe)) for probe in probes]
        more = account(item, parts, reason, rows, kept)
        sums = totals.setdefault(item.name, [0.0, 0.0])
        sums[0] += item.cycles
        sums[1] += item.cycles + more
    factors = {name: timed / model for name, (model, timed) in totals.items() if model > 0 and timed != model}
    for layer in layers:
        factors[layer.name] = measure_layer(layer, bench, rows, kept)
    return TimingReport(factors, rows.all(), kept.all(), bench.notes, bench.probes, bench.cached)


def account(
    item: Placed, parts: Sequence[tuple[Probe, Measured]], reason: str, rows: Rows, kept: Rows
) -> float:
    """Put the parts of a kernel into the rows; returns the cycles by which the fabric is slower."""
    left, more = item.cycles, 0.0
    for probe, found in parts:
        cycles = share_of(item, probe.cost)
        row = row_of(item, probe.part, probe.tile, cycles, found.ratio, found.why)
        (kept if found.reason else rows).add(row)
        left -= cycles
        more += row.difference_cycles
    if left > ROUNDING * item.cycles:
        why = reason or "starts and waits that no probe represents"
        kept.add(row_of(item, "rest" if parts else "", "", left, 1.0, why))
    return more


class _Probes:
    """Probes of kernels, computed once per signature and tiling, or the reason why there are none."""

    def __init__(self, wafer: Wafer) -> None:
        self.wafer = wafer
        self._known: dict[Any, tuple[tuple[Probe, ...], str]] = {}

    def of(self, item: Placed) -> tuple[tuple[Probe, ...], str]:
        tiling = item.tiling
        key = (item.kernel.signature, tiling.rows, tiling.cols, tiling.mapping, tiling.lanes)
        if key not in self._known:
            probes, reason = probes_of(item.kernel, tiling, self.wafer)
            fill = item.fill_cycles - sum(_number(probe.cost.idle) for probe in probes)
            if probes and fill > 0:
                probes = (*probes, *fill_probes(fill, tiling, self.wafer))
            if item.again is not None:
                forward, _ = probes_of(item.again, tiling, self.wafer)
                probes = (
                    *probes,
                    *(once_more(probe) for probe in forward if _number(probe.cost.special)),
                )
            self._known[key] = probes, reason
        return self._known[key]


def once_more(probe: Probe) -> Probe:
    """The special elements of a forward kernel's probe, recomputed in its backward pass."""
    return dataclasses.replace(probe, part=f"{probe.part} again", cost=Cost(special=probe.cost.special))


def probes_of(kernel: Kernel, tiling: Tiling, wafer: Wafer) -> tuple[tuple[Probe, ...], str]:
    """(probes, "") of a kernel, or ((), reason)."""
    found = family(kernel.family)
    try:
        probes = tuple(
            found.probes(
                kernel.dims, tiling, wafer, phase=kernel.phase, dtype=kernel.dtype, attrs=kernel.attrs
            )
        )
    except WseError as fault:
        return (), str(fault)
    if probes:
        return probes, ""
    if getattr(type(found), "program", Family.program) is Family.program:
        return (), "the family has no program"
    return (), f"no program for {str(kernel.phase).replace('_', ' ')}, {tiling.mapping}"


def _number(value: object) -> float:
    return float(np.asarray(value))
