"""Layers of a generating model: their cycles by fabric programs, part by part.

A part that was run at its own size takes the program's cycles; another one takes those of its formula times the
ratio of a smaller run.  What no part stands for keeps its formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from wse_sim.compiler.wafer_llm_parts import LayerPart
from wse_sim.hardware import Wafer
from wse_sim.kernels.contract.family import Cost
from wse_sim.timing.corners import Measured
from wse_sim.timing.plans import ROUNDING, Bench, Progress, silent
from wse_sim.timing.rows import Rows, TimingReport, TimingRow
from wse_sim.timing.store import Store, open_store


class Layer(NamedTuple):
    """A layer by formula, the parts of it that programs measure, and why the rest keeps its formula."""

    cost: Cost
    parts: Sequence[LayerPart]
    rest: str = "no part stands for it"


def time_layer(
    name: str, layer: Layer, wafer: Wafer, *, store: Store | None = None, progress: Progress = silent
) -> TimingReport:
    """Measure a layer; its only factor, by its name, is its cycles by fabric programs over those by formula."""
    bench = Bench(wafer, store or open_store(), progress)
    bench.run([part.corner for part in layer.parts])
    rows, kept = Rows(), Rows()
    total = float(np.asarray(layer.cost.total))
    left, more = total, 0.0
    for part in layer.parts:
        found = bench.found(part.corner)
        row = _row(name, part, found)
        (kept if found.reason else rows).add(row)
        left -= row.model_cycles
        more += row.difference_cycles
    if left > ROUNDING * total:
        kept.add(TimingRow("layer", name, "rest", "", 1, left, left, 1.0, layer.rest))
    factors = {name: (total + more) / total}
    return TimingReport(factors, rows.all(), kept.all(), bench.notes, bench.corners, bench.cached)


def _row(phase: str, part: LayerPart, found: Measured) -> TimingRow:
    corner = part.corner
    cycles = float(np.asarray(corner.cost.total))
    ratio, why = found.ratio, found.why
    if part.runs and not found.reason:
        once = found.fabric_cycles - part.extra_cycles
        ratio = part.runs * once / cycles
        own = Measured(cycles / part.runs, once, found.issue_cycles)
        why = own.why
    return TimingRow(
        corner.family, phase, corner.part, corner.tile, max(1, part.runs), cycles, ratio * cycles, ratio, why
    )
