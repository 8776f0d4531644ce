"""Inlets that deal the lines of an image out to cores with bands of them, and cores that send their pixels.

A band has the lines of the image that its lines of the result read. Lines that two bands read are stored in the inlet as they
are sent to the first, and sent to the second before those that follow. The cores of a row take their bands in sequence
(:mod:`wse_sim.whole.regions.shared_color`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wse_sim.fabric.format.builder import Buffer, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.fabric.format.program import Command
from wse_sim.kernels.blocks.windows import PAIR, Band, Windows


class ImageBuffers(NamedTuple):
    """Buffers of an inlet: for words of other rows, for zeros, for lines that two bands read."""

    others: Buffer
    zeros: Buffer
    shared: Buffer


@dataclass(frozen=True)
class ImageInlet:
    """An inlet that receives an image of `columns` pixels a line on the first of its `colors` and deals it out on the second.

    `words` of a pixel: those before its row's, its row's, and those behind. It sends `gap` pixels of zeros between lines.
    """

    core: CoreClass
    colors: tuple[int, int]
    buffers: ImageBuffers
    columns: int
    words: tuple[int, int, int]
    gap: int

    @property
    def line(self) -> int:
        """Elements of a line that the row has."""
        return PAIR * self.words[1] * self.columns

    def deal(self, bands: Sequence[Band]) -> None:
        """Deal out an image."""
        again = 0
        for number, band in enumerate(bands):
            fresh = band.bottom - band.top - again - band.shared
            advance = "path" if number < len(bands) - 1 else None
            parts = [(self._again, again), (self._pass_on, fresh), (self._pass_on_and_store, band.shared)]
            parts = [(part, count) for part, count in parts if count]
            for part, count in parts[:-1]:
                part(count, None, ends=False)
            part, count = parts[-1]
            part(count, advance, ends=True)
            again = band.shared
        if len(bands) > 1:
            self.core.control(self.colors[1], Command.RESET, start="none")

    def _gap(self) -> None:
        if self.gap:
            zeros = self.buffers.zeros.dsd(0, self.gap * PAIR * self.words[1])
            self.core.mov(fabric_out(self.colors[1]), zeros, dtype="fp16", start="none")

    def _lines(
        self, count: int, advance: str | None, ends: bool, line: Callable[[int, str | None], None]
    ) -> None:
        """Write lines, from the first, with zeros between them, and behind them unless they end a band; `line` writes one,
        whose number counts up in a loop."""
        with self.core.loop(count - 1):
            if count > 1:
                line(0, None)
                self._gap()
        line(count - 1, advance)
        if not ends:
            self._gap()

    def _held(self, number: int, *, loops: bool) -> Operand:
        return self.buffers.shared.dsd(number * self.line, self.line, step=self.line if loops else 0)

    def _again(self, count: int, advance: str | None, *, ends: bool) -> None:
        """Send lines that the band before has as well."""

        def line(number: int, advance: str | None) -> None:
            held = self._held(number, loops=number < count - 1)
            self.core.mov(fabric_out(self.colors[1], advance), held, dtype="fp16", start="none")

        self._lines(count, advance, ends, line)

    def _pass_on(self, count: int, advance: str | None, *, ends: bool) -> None:
        """Pass lines on as they arrive."""

        def line(_: int, advance: str | None) -> None:
            others = self.words[0] + self.words[2]
            pixels = 1 if others else self.columns
            with self.core.loop(self.columns // pixels - 1):
                if others:
                    self._pixel(fabric_out(self.colors[1]), pixels)
            self._pixel(fabric_out(self.colors[1], advance), pixels)

        self._lines(count, advance, ends, line)

    def _pass_on_and_store(self, count: int, advance: str | None, *, ends: bool) -> None:
        """Store lines that the next band has as well, and send them."""

        def line(number: int, advance: str | None) -> None:
            loops, each = number < count - 1, PAIR * self.words[1]
            first = number * self.line
            with self.core.loop(self.columns):
                self._pixel(
                    self.buffers.shared.dsd(first, each, step=each, outer_step=self.line if loops else 0), 1
                )
            held = self._held(number, loops=loops)
            self.core.mov(fabric_out(self.colors[1], advance), held, dtype="fp16", start="none")

        self._lines(count, advance, ends, line)

    def _pixel(self, own: Operand, pixels: int) -> None:
        """Write the words of pixels: those of other rows are dropped."""
        source = fabric_in(self.colors[0])
        for part, words in enumerate(self.words):
            if words:
                target = own if part == 1 else self.buffers.others.dsd(0, PAIR * words)
                self.core.mov(target, source, length=PAIR * words * pixels, dtype="fp16", start="none")


def send_pixels(
    core: CoreClass,
    windows: Windows,
    result: Buffer,
    each: int,
    steps: tuple[int, int],
    outs: tuple[Operand, Operand],
    send: Callable[[Operand, Operand], None],
) -> None:
    """Send the pixels of a result, `each` elements, `steps` elements apart along a line and from line to line; the last one
    to the second of `outs` if they differ."""
    lines, columns, (along, down) = windows.lines.results, windows.columns.results, steps
    if outs[0] == outs[1]:
        with core.loop(lines), core.loop(columns):
            send(outs[0], result.dsd(0, each, step=along, outer_step=down))
        return
    if lines > 1:
        with core.loop(lines - 1), core.loop(columns):
            send(outs[0], result.dsd(0, each, step=along, outer_step=down))
    last = (lines - 1) * down
    if columns > 1:
        with core.loop(columns - 1):
            send(outs[0], result.dsd(last, each, step=along))
    send(outs[1], result.dsd(last + (columns - 1) * along, each))
