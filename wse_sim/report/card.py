"""Cards: the notebook display of a result, a plan, a graph, a comparison, or a model that does not fit.

A card is one piece of HTML without scripts or files: a title, a few rows, and a small map of the wafer as SVG. It uses the colors of
the surrounding page, so it is readable on light and on dark backgrounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape

from wse_sim.compiler.plan import Infeasible, Plan, Region
from wse_sim.engine.result import Result
from wse_sim.graph import KernelGraph
from wse_sim.hardware.cluster import Cluster
from wse_sim.hardware.wafer import Wafer
from wse_sim.report import tables
from wse_sim.report.text import kib, percent, seconds, si

MAP_PIXELS = 220
MOST_REGIONS = 3000
"""Largest number of regions on a small map; if there are more, the largest regions are drawn."""

# viridis at 0, 1/4, 1/2, 3/4 and 1
_COLORS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
_STYLE = "display:inline-flex;gap:1.5em;flex-wrap:wrap;align-items:flex-start;border:1px solid #8886;border-radius:6px;padding:.6em 1em;margin:.2em 0"
_FAMILIES = 6  # rows of a graph's card

Rows = Sequence[tuple[str, str]]


def card(item: object) -> str:
    """Return the HTML card of a result, a plan, a graph, a comparison, a machine or a model that does not
    fit.

    Example
    -------
    >>> from wse_sim.compiler.plan import Infeasible
    >>> "does not fit" in card(Infeasible("pipelined", "m", "SRAM", 2.0, 1.0, "bytes", "weights", "use a smaller model"))
    True
    """
    if isinstance(item, Result):
        return _result(item)
    if isinstance(item, Infeasible):
        return _card(f"{item.model}, {item.mode}: does not fit", [], note=item.message)
    if isinstance(item, KernelGraph):
        return _graph(item)
    if isinstance(item, Wafer | Cluster):
        return _machine(item)
    if isinstance(item, tuple):
        return _comparison(item)
    return _plan(item)  # type: ignore[arg-type]  # a plan of any mode, one's own too


def _result(result: Result) -> str:
    title = f"{result.model}, {result.mode}, {result.phase}, batch {result.batch:,}, {result.plan.wafer.name}"
    rows = [
        *tables.headline(result),
        ("Step time", seconds(result.step_s)),
        ("MFU", percent(result.mfu)),
    ]
    areas = [(area.region, area.fractions[0], area.name) for area in result.areas]
    picture = _map(result.plan.wafer, areas, "fraction of the step in which a core computes")
    return _card(title, rows, note=tables.binding_lines(result)[0], picture=picture)


def _plan(plan: Plan) -> str:
    regions = [(stage.region, stage.name) for stage in getattr(plan, "stages", ())]
    count = max(1, len(regions) - 1)
    areas = [(region, number / count, name) for number, (region, name) in enumerate(regions)]
    rows = [
        ("Wafer", f"{plan.wafer.name}, {plan.wafer.rows:,} x {plan.wafer.cols:,} cores"),
        ("Batch", f"{plan.batch:,}"),
        ("Kernels", f"{len(plan.graph):,}"),
    ]
    rows += [("Regions", f"{len(regions):,}")] if regions else []
    phases = getattr(plan, "phases", ())
    rows += [("Phases", f"{len(phases):,}")] if phases else []
    picture = _map(plan.wafer, areas, "order in the dataflow") if areas else ""
    return _card(
        f"Plan of {plan.graph.name}, {plan.mode}", rows, note="; ".join(plan.notes[:1]), picture=picture
    )


def _machine(machine: Wafer | Cluster) -> str:
    """Return the five most requested constants, and the number of constants by kind of evidence."""
    if isinstance(machine, Wafer):
        rows = [
            ("Cores", f"{machine.rows:,} x {machine.cols:,}"),
            ("of a program", f"{machine.program_rows:,} x {machine.program_cols:,}"),
            ("SRAM per core", f"{kib(machine.sram_bytes)}, {kib(machine.sram_usable_bytes)} usable"),
            ("Clock", si(machine.clock_hz, "Hz")),
            ("fp16 peak", si(machine.peak_fp16_flops_per_s, "FLOP/s")),
        ]
        what = "wafer"
    else:
        rows = [
            ("Systems", f"up to {machine.max_systems:,}"),
            ("MemoryX", si(machine.memoryx_bytes, "B")),
            ("Weights, into the fabric", si(machine.memoryx_bytes_per_s, "B/s")),
            ("SwarmX, of a link", si(machine.swarmx_bytes_per_s, "B/s")),
            ("Input workers of a system", f"{machine.input_workers_per_system:,}"),
        ]
        what = "cluster"
    kinds = Counter(constant.evidence for constant in machine.provenance.values())
    evidence = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    note = f"{sum(kinds.values())} constants by their evidence: {evidence}; wse-sim show {what} {machine.name} lists them"
    return _card(f"{what.capitalize()} {machine.name}", rows, note=note)


def _graph(graph: KernelGraph) -> str:
    flops: Counter[str] = Counter()
    for kernel in graph:
        flops[kernel.family] += kernel.flops
    samples = "1 sample" if graph.samples == 1 else f"{graph.samples:,} samples"
    rows = [
        ("Kernels", f"{len(graph):,}"),
        ("Parameters", f"{graph.parameters:,}"),
        ("Work", f"{si(graph.total_flops, 'FLOP')} for {samples}"),
        *((family, si(work, "FLOP")) for family, work in flops.most_common(_FAMILIES) if work),
    ]
    return _card(f"{graph.name}, {'training' if graph.training else 'inference'}", rows)


def _comparison(rows: Sequence[Result | Infeasible]) -> str:
    """Return the compared modes as a table, with the cells of :func:`wse_sim.report.tables.comparison`."""
    columns = tables.comparison_columns(rows)
    names = dict.fromkeys(name for column in columns for name in column)
    head = "".join(f"<th style='text-align:left'>{escape(row.mode)}</th>" for row in rows)
    body = "".join(
        f"<tr><th style='text-align:left;font-weight:normal'>{escape(name)}</th>"
        + "".join(
            f"<td style='text-align:left;max-width:26em;white-space:normal'>{escape(column.get(name, '-'))}</td>"
            for column in columns
        )
        + "</tr>"
        for name in names
    )
    title = escape(rows[0].model) if rows else "no modes"
    return f"<div style='{_STYLE}'><div><b>{title}</b><table style='color:inherit;font:inherit'><tr><th></th>{head}</tr>{body}</table></div></div>"


def _card(title: str, rows: Rows, *, note: str = "", picture: str = "") -> str:
    lines = "".join(
        f"<tr><td style='text-align:left'>{escape(name)}</td><td style='text-align:right'><b>{escape(value)}</b></td></tr>"
        for name, value in rows
    )
    table = f"<table style='color:inherit;font:inherit'>{lines}</table>" if lines else ""
    below = f"<div style='max-width:34em'>{escape(note)}</div>" if note else ""
    return f"<div style='{_STYLE}'><div><b>{escape(title)}</b>{table}{below}</div>{picture}</div>"


def _map(wafer: Wafer, areas: Iterable[tuple[Region, float, str]], what: str) -> str:
    """Return the regions of a wafer, colored by their values (0 to 1), as SVG; the tooltip of a region has
    its name."""
    drawn = sorted(areas, key=lambda item: -item[0].cores)[:MOST_REGIONS]
    scale = MAP_PIXELS / max(wafer.rows, wafer.cols)
    width, height = wafer.cols * scale, wafer.rows * scale
    shapes = "".join(
        f"<rect x='{area.col * scale:.1f}' y='{area.row * scale:.1f}' width='{max(0.4, area.cols * scale):.1f}' "
        f"height='{max(0.4, area.rows * scale):.1f}' fill='{_color(value)}'>"
        f"<title>{escape(name)}: {value:.2f}</title></rect>"
        for area, value, name in drawn
    )
    return (
        f"<div><svg width='{width:.0f}' height='{height:.0f}' viewBox='0 0 {width:.1f} {height:.1f}' role='img' "
        f"aria-label='map of the wafer: {escape(what)}'><rect width='100%' height='100%' fill='#8883'/>{shapes}</svg>"
        f"<div style='font-size:80%;opacity:.8'>{escape(what)}, 0 dark to 1 bright</div></div>"
    )


def _color(value: float) -> str:
    """Return a color of viridis, interpolated linearly between five points."""
    at = min(1.0, max(0.0, value)) * (len(_COLORS) - 1)
    low = min(int(at), len(_COLORS) - 2)
    parts = (round(a + (b - a) * (at - low)) for a, b in zip(_COLORS[low], _COLORS[low + 1], strict=True))
    return "#" + "".join(f"{part:02x}" for part in parts)
