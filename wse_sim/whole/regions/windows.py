"""The elements that the windows of a convolution or pooling read from a stored image, pixel by pixel of the
result.

Symbols: an image of H x W pixels of C channels; windows of r lines and s columns, stride z; padding q. A
window reads r *runs* of s C elements, each padded to whole words.

Padding zeros are not stored in the image. Windows that cross the border have separate instructions: a run
outside the image is sent from a buffer of zeros; of a run that is partly outside, the inner part is sent
between zeros. With an odd C, in training, a word may contain a zero and an element, so the inner part is first moved
between stored zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from wse_sim.fabric.format.builder import Buffer, Builder, Place, fabric_out
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.kernels.blocks.windows import PAIR, Axis, Windows

Part = tuple[int, int, int]
"""Part of a run: line under the window, first element of the run, number of elements."""


@dataclass(frozen=True)
class At:
    """A pixel of the result, plus the loop counters of an instruction: lines (y), columns (x), the innermost
    last."""

    line: int
    column: int
    counted: str = ""

    def part(self, held: Buffer, place: int, count: int, steps: tuple[int, int]) -> Operand:
        """Return `count` elements from `place`; `steps` are the elements from one window to the next,
        vertically and horizontally."""
        down, along = steps
        apart = [along if axis == "x" else down for axis in reversed(self.counted)] + [0, 0]
        return held.dsd(place, count, step=apart[0], outer_step=apart[1])


class Unfolding:
    """The instructions with which inlets send the window elements of their stored images; `slot` gives the place of a line."""

    def __init__(
        self, b: Builder, name: str, where: Place, windows: Windows, slot: Callable[[int], int] = int
    ) -> None:
        self.windows, self.slot = windows, slot
        slots = len(windows.columns.over) * windows.lines.taps
        self.zeros = b.buffer(f"{name}.zeros", windows.run, "fp16", where)
        self.edges = b.buffer(f"{name}.edges", windows.run * max(1, slots), "fp16", where)

    def emit(self, core: CoreClass, color: int, image: Buffer, begin: int, end: int) -> None:
        """Send the window elements `begin` to `end`, pixel by pixel of the result."""
        self.emit_parts(core, color, image, list(self.parts(begin, end)))

    def emit_lines(
        self, core: CoreClass, color: int, held: Buffer, places: tuple[int, int], parts: Sequence[Part]
    ) -> None:
        """Send parts of runs of lines of the result, (first, number), whose windows are a stride apart."""
        place, count = places
        with core.loop(count):
            for column, columns in self.windows.columns.spans():
                with core.loop(columns):
                    for part in parts:
                        self._part(core, color, held, At(place, column, "yx"), part)

    def emit_parts(
        self,
        core: CoreClass,
        color: int,
        image: Buffer,
        parts: Sequence[Part],
        beside: Callable[[At], None] | None = None,
    ) -> None:
        """Send any parts of runs; `beside` is called after every pixel ("yx") and every line ("y")."""
        for line, lines in self.windows.lines.spans():
            with core.loop(lines):
                for column, columns in self.windows.columns.spans():
                    with core.loop(columns):
                        at = At(line, column, "yx")
                        for part in parts:
                            self._part(core, color, image, at, part)
                        if beside is not None:
                            beside(at)
                if beside is not None:
                    beside(At(line, 0, "y"))

    def parts(self, begin: int, end: int) -> Iterator[Part]:
        """Yield the runs between two elements, as (line under the window, first element of the run, number)."""
        while begin < end:
            tap, inside = divmod(begin, self.windows.run)
            count = min(end - begin, self.windows.run - inside)
            yield tap, inside, count
            begin += count

    def _part(self, core: CoreClass, color: int, image: Buffer, at: At, part: Part) -> None:
        windows, (tap, inside, count) = self.windows, part
        lines, columns, c = windows.lines, windows.columns, windows.channels
        line, column = lines.first(at.line) + tap, columns.first(at.column)
        first, end = inside, inside + count
        if not columns.holds(at.column):
            first = max(first, -column * c)
            end = min(end, min(columns.size - column, columns.taps) * c)
        if not 0 <= line < lines.size or first >= end:
            core.mov(fabric_out(color), self.zeros.dsd(0, count), dtype="fp16", start="none")
            return
        met = at.part(
            image,
            windows.at(self.slot(line), column) + first,
            end - first,
            (lines.stride * columns.size * c, columns.stride * c),
        )
        before, behind = first - inside, inside + count - end
        if before % PAIR or behind % PAIR:
            slot = columns.over.index(at.column) * lines.taps + tap
            held = slot * windows.run
            core.mov(self.edges.dsd(held + first, end - first), met, dtype="fp16", start="loaded")
            core.mov(fabric_out(color), self.edges.dsd(held + inside, count), dtype="fp16", start="none")
            return
        for zeros, moved in ((before, None), (0, met), (behind, None)):
            if moved is not None:
                core.mov(fabric_out(color), moved, dtype="fp16", start="none")
            elif zeros:
                core.mov(fabric_out(color), self.zeros.dsd(0, zeros), dtype="fp16", start="none")


__all__ = ["At", "Axis", "Part", "Unfolding", "Windows"]
