"""Layers of a generating model: their cycles by fabric programs, part by part.

A part that was run at its own size takes the program's cycles; another one takes those of its formula times the
ratio of a smaller run.  What no part stands for keeps its formula.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wse_sim.compiler.plan import Infeasible
from wse_sim.hardware import Wafer
from wse_sim.kernels.contract.family import Cost
from wse_sim.modes.generation.layer import LayerShape, decode_layer_cycles, prefill_layer_cycles
from wse_sim.modes.generation.layer_parts import LayerPart, decode_parts, prefill_parts
from wse_sim.modes.generation.steps import (
    Generation,
    generate,
    machine_of,
    on_grid,
    read_decoder,
)
from wse_sim.options import GenerationOptions
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


def decoded_layer(
    shape: LayerShape, context: int, grid: int, wafer: Wafer, groups: int | None = None
) -> Layer:
    """A layer for one token with `context` keys, with the parts that programs measure."""
    cost = decode_layer_cycles(shape, context, grid, wafer, groups=groups)
    return Layer(cost, decode_parts(shape, context, grid, wafer, groups))


def prefilled_layer(shape: LayerShape, tokens: int, grid: int, wafer: Wafer) -> Layer:
    """A layer over a prompt, with the parts that programs measure."""
    return Layer(
        prefill_layer_cycles(shape, tokens, grid, wafer),
        prefill_parts(shape, tokens, grid, wafer),
        "the first skew of the operands and the row all-reduces have no program",
    )


@dataclass(frozen=True)
class TimedGeneration:
    """Generation by formulas and by fabric programs on the same regions; `reports` of "decode" and "prefill"."""

    model: Generation
    fabric: Generation
    reports: Mapping[str, TimingReport]


def generate_both(
    model: str | Mapping[str, Any],
    options: GenerationOptions | None = None,
    *,
    cache: Path | str | None = None,
    progress: Progress = silent,
) -> TimedGeneration | Infeasible:
    """Generation by formulas, and on the same grid by the cycles of fabric programs.

    `cache` is the folder of measurements, as for :func:`wse_sim.timing.simulate_fabric`.

    Raises
    ------
    ModelError
        As :func:`generate`.
    """
    options = options or GenerationOptions()
    answer = generate(model, options)
    if isinstance(answer, Infeasible):
        return answer
    wafer, cluster = machine_of(options)
    name, sizes = read_decoder(model)
    shape = LayerShape(int(sizes.hidden or 0), int(sizes.ffn or 0))
    decode = decoded_layer(shape, options.context, answer.grid, wafer, options.groups)
    prefill = prefilled_layer(shape, answer.prompt, answer.grid, wafer)
    store = open_store(cache)
    reports = {
        layer: time_layer(layer, stated, wafer, store=store, progress=progress)
        for layer, stated in (("decode", decode), ("prefill", prefill))
    }
    factors = {layer: report.factors[layer] for layer, report in reports.items()}
    fabric = on_grid(name, sizes, options, wafer, cluster, answer.grid, factors)
    if isinstance(fabric, Infeasible):
        return fabric
    notes = (f"{layer} {report.summary}" for layer, report in reports.items())
    return TimedGeneration(answer, replace(fabric, notes=(*fabric.notes, *notes)), reports)
