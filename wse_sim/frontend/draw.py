"""Draws a kernel graph as SVG: one box per kernel; a repeated block is drawn once, in a frame with its count.

Kernels are in columns in their order, forward kernels on the left and gradient and update kernels on the
right. Arrows between neighbours are straight; longer ones are curves on the left of the column.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

from wse_sim.atomic_files import write_whole
from wse_sim.graph import Kernel, KernelGraph, Phase
from wse_sim.kernels import family

_BOX_WIDTH, _BOX_HEIGHT, _GAP, _MARGIN, _COLUMN = 330, 38, 22, 40, 520


@dataclass
class _Column:
    """Kernels below each other, with frames around repeated blocks."""

    kernels: list[Kernel]
    x: int
    y: dict[str, int] = field(default_factory=dict)
    frames: list[tuple[int, int, str]] = field(default_factory=list)


def draw_graph(graph: KernelGraph, path: Path | str, phases: Iterable[Phase] = tuple(Phase)) -> Path:
    """Write the picture of a kernel graph and return its path.

    Parameters
    ----------
    graph
        The graph to draw.
    path
        The ``.svg`` file.
    phases
        The phases to draw.
    """
    return write_whole(path, svg_of(graph, phases))


def svg_of(graph: KernelGraph, phases: Iterable[Phase] = tuple(Phase)) -> str:
    """Return the picture as SVG text."""
    wanted = set(phases)
    shown, representative, counts = _fold(graph)
    columns = []
    for i, group in enumerate(
        ((Phase.FORWARD,), (Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT, Phase.UPDATE))
    ):
        members = [k for k in shown if k.phase in group and k.phase in wanted]
        if members:
            columns.append(_place(members, counts, _MARGIN + 60 + i * _COLUMN))
    height = max((max(c.y.values()) for c in columns), default=0) + _BOX_HEIGHT + 2 * _MARGIN
    width = _MARGIN * 2 + 60 + max(1, len(columns)) * _COLUMN
    title = f"{graph.name}: {len(graph)} kernels, {graph.samples} sample{'s' if graph.samples > 1 else ''}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{_MARGIN}" y="24" font-size="15" font-weight="bold">{escape(title)}</text>',
    ]
    for column in columns:
        parts += [_frame(column.x, *frame) for frame in column.frames]
    parts += _streams(graph, columns, representative)
    for column in columns:
        parts += [_box(kernel, column) for kernel in column.kernels]
    return "\n".join([*parts, "</svg>\n"])


def _fold(graph: KernelGraph) -> tuple[list[Kernel], dict[str, str], dict[str, str]]:
    """Return the kernels to draw, the drawn kernel for each repeated one, and the frame labels by drawn
    kernel.
    """
    representative: dict[str, str] = {}
    counts: dict[str, str] = {}
    for repeat in graph.repeats:
        first = repeat.instances[0]
        for instance in repeat.instances:
            representative.update(zip(instance, first, strict=True))
        counts.update(dict.fromkeys(first, f"{repeat.container} x {repeat.count}"))
    shown = [k for k in graph.kernels if representative.get(k.name, k.name) == k.name]
    return shown, representative, counts


def _place(kernels: list[Kernel], counts: dict[str, str], x: int) -> _Column:
    column = _Column(kernels, x)
    y, start, label = 2 * _MARGIN, 0, ""
    for kernel in kernels:
        own = counts.get(kernel.name, "")
        if own != label:
            if label:
                column.frames.append((start, y - _GAP, label))
                y += _GAP
            if own:
                y += _GAP
            start, label = y, own
        column.y[kernel.name] = y
        y += _BOX_HEIGHT + _GAP
    if label:
        column.frames.append((start, y - _GAP, label))
    return column


def _frame(x: int, top: int, bottom: int, label: str) -> str:
    return (
        f'<rect x="{x - 14}" y="{top - 22}" width="{_BOX_WIDTH + 28}" height="{bottom - top + 32}" rx="8" '
        f'fill="#fafafa" stroke="#888" stroke-dasharray="5 3"/>'
        f'<text x="{x - 6}" y="{top - 8}" fill="#555">{escape(label)}</text>'
    )


def _box(kernel: Kernel, column: _Column) -> str:
    y = column.y[kernel.name]
    fused = f" +{kernel.attrs['fused']}" if kernel.attrs.get("fused") else ""
    dims = " ".join(f"{d}={n}" for d, n in kernel.dims.items())
    name = kernel.name if len(kernel.name) < 46 else "…" + kernel.name[-45:]
    return (
        f"<g><title>{escape(f'{kernel.name} {kernel.family} {dims} {kernel.source}')}</title>"
        f'<rect x="{column.x}" y="{y}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="4" '
        f'fill="{family(kernel.family).color}" stroke="#555"/>'
        f'<text x="{column.x + 8}" y="{y + 15}">{escape(name)}</text>'
        f'<text x="{column.x + 8}" y="{y + 31}" font-size="10" fill="#333">{escape(_short(f"{kernel.family}{fused}  {dims}"))}</text></g>'
    )


def _short(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _streams(graph: KernelGraph, columns: list[_Column], representative: dict[str, str]) -> list[str]:
    where = {name: (column.x, y) for column in columns for name, y in column.y.items()}
    drawn: dict[tuple[str, str], None] = {}
    for maker, reader, _ in graph.edges():
        a, b = representative.get(maker, maker), representative.get(reader, reader)
        if a in where and b in where and a != b:
            drawn[a, b] = None
    parts = []
    for a, b in drawn:
        (xa, ya), (xb, yb) = where[a], where[b]
        if xa != xb:  # from the forward column to the gradients: one faint curve
            path = f"M{xa + _BOX_WIDTH} {ya + 19}C{xa + _BOX_WIDTH + 90} {ya + 19} {xb - 90} {yb + 19} {xb} {yb + 19}"
            parts.append(f'<path d="{path}" fill="none" stroke="#bbb" stroke-width="0.7"/>')
        elif 0 < yb - ya <= _BOX_HEIGHT + 3 * _GAP:
            x = xa + _BOX_WIDTH // 2
            parts.append(f'<path d="M{x} {ya + _BOX_HEIGHT}L{x} {yb}" stroke="#555" marker-end="url(#tip)"/>')
        else:
            bow = xa - 24 - min(60, abs(yb - ya) // 12)
            path = f"M{xa} {ya + 26}C{bow} {ya + 26} {bow} {yb + 12} {xb} {yb + 12}"
            parts.append(f'<path d="{path}" fill="none" stroke="#777" marker-end="url(#tip)"/>')
    return parts
