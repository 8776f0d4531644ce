"""Layers of a generating model: their cycles by fabric programs, part by part.

A part that was run at its own size takes the program's cycles; another one takes those of its formula times the
ratio of a smaller run.  What no part stands for keeps its formula.
"""

from __future__ import annotations

import numpy as np

from wse_sim.hardware import Wafer
from wse_sim.modes.base import Layer, Part
from wse_sim.timing.bench import ROUNDING, Bench, Progress, silent
from wse_sim.timing.probes import Measured
from wse_sim.timing.rows import Rows, TimingReport, TimingRow
from wse_sim.timing.store import MeasurementStore, open_store


def time_layer(
    layer: Layer, wafer: Wafer, *, store: MeasurementStore | None = None, progress: Progress = silent
) -> TimingReport:
    """Measure a layer; its only factor, by its name, is its cycles by fabric programs over those by formula."""
    bench = Bench(wafer, store or open_store(), progress)
    rows, kept = Rows(), Rows()
    factors = {layer.name: measure_layer(layer, bench, rows, kept)}
    return TimingReport(factors, rows.all(), kept.all(), bench.notes, bench.probes, bench.cached)


def measure_layer(layer: Layer, bench: Bench, rows: Rows, kept: Rows) -> float:
    """Put the parts of a layer into the rows; returns its cycles on the fabric over those of its formula."""
    bench.run([part.probe for part in layer.parts])
    total = float(np.asarray(layer.cost.total))
    left, more = total, 0.0
    for part in layer.parts:
        found = bench.found(part.probe)
        row = _row(layer.name, part, found)
        (kept if found.reason else rows).add(row)
        left -= row.model_cycles
        more += row.difference_cycles
    if left > ROUNDING * total:
        kept.add(TimingRow("layer", layer.name, "rest", "", 1, left, left, 1.0, layer.rest))
    return (total + more) / total


def _row(phase: str, part: Part, found: Measured) -> TimingRow:
    probe = part.probe
    cycles = float(np.asarray(probe.cost.total))
    ratio, why = found.ratio, found.why
    if part.runs and not found.reason:
        once = found.fabric_cycles - part.extra_cycles
        ratio = part.runs * once / cycles
        own = Measured(cycles / part.runs, once, found.issue_cycles)
        why = own.why
    return TimingRow(
        probe.family,
        phase,
        probe.part,
        probe.tile,
        max(1, round(part.runs)),
        cycles,
        ratio * cycles,
        ratio,
        why,
    )
