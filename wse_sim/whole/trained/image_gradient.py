"""The gradient of an image from the sums of its windows: every row of cores adds its part, and rows that
share channels combine.

Symbols: an image of H x W pixels of C channels in pairs, padding q; a result of H' x W' pixels. Next to a row
of cores is one core with an fp32 *plane* for every pair of channels of its row::

    row     sums of a pixel  >  added to the planes where its elements came from
    line    after every line of the result, the finished lines of the image, rounded to fp16:
            pairs that the row above has as well    > row above, with those of the row below
            others                                  > sent, pixel by pixel, the rows in sequence, during the sums of the next line

The rows of a pair are adjacent, so a row passes at most its first pair up, and receives at most its last one
from below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from wse_sim.fabric.format.builder import Builder, Switch, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import PAIR, IntArray
from wse_sim.whole.regions.shared_color import advance_of
from wse_sim.whole.regions.windows import At, Windows

COLLECT, CHAIN, BELOW, SEND, CLEAR = 2, 3, 4, 5, 6  # microthreads; the first one is the inlet's


@dataclass(frozen=True)
class Piece:
    """Sums of a row for adjacent taps of one pair of channels: plane, line under the window, first tap,
    number of taps."""

    plane: int
    line: int
    tap: int
    taps: int


@dataclass(frozen=True)
class Folding:
    """Geometry of the gradient of an image over rows of cores.

    Attributes
    ----------
    windows : Windows
        Windows of the convolution, with an even number of channels.
    words : Sequence[IntArray]
        By row: first elements of its words in the runs of a window, pair by pair of channels.
    """

    windows: Windows
    words: Sequence[IntArray]

    # ---- where things lie ------------------------------------------------------------------------------------------

    @property
    def pitch(self) -> int:
        """Elements of a plane from one line to the next."""
        columns = self.windows.columns
        return PAIR * (columns.size + 2 * columns.around)

    @property
    def plane(self) -> int:
        """Elements of a plane."""
        lines = self.windows.lines
        return (lines.size + 2 * lines.around) * self.pitch

    @property
    def line(self) -> int:
        """Elements of a line of the image in a plane."""
        return PAIR * self.windows.columns.size

    @cached_property
    def pairs(self) -> list[range]:
        """Pairs of channels of every row."""
        found = [one % self.windows.run % self.windows.channels // PAIR for one in self.words]
        return [range(int(one.min()), int(one.max()) + 1) for one in found]

    @property
    def planes(self) -> int:
        """Largest number of planes of a row."""
        return max(map(len, self.pairs))

    def pieces(self, row: int) -> list[Piece]:
        """Return the sums that a row adds for a window, in the order of its words."""
        out: list[Piece] = []
        for word in self.words[row].tolist():
            line, inside = divmod(word, self.windows.run)
            tap, channel = divmod(inside, self.windows.channels)
            plane = channel // PAIR - self.pairs[row].start
            last = out[-1] if out else None
            if last and (last.plane, last.line, last.tap + last.taps) == (plane, line, tap):
                out[-1] = Piece(plane, line, last.tap, last.taps + 1)
            else:
                out.append(Piece(plane, line, tap, 1))
        return out

    def goes_up(self, row: int) -> bool:
        """Return whether the row above has its first pair as well."""
        return row > 0 and self.pairs[row - 1].stop > self.pairs[row].start

    def comes_up(self, row: int) -> bool:
        """Return whether the row below has its last pair as well."""
        return row < len(self.words) - 1 and self.goes_up(row + 1)

    def sends(self, row: int) -> range:
        """Return the planes whose sums end in a row."""
        return range(int(self.goes_up(row)), len(self.pairs[row]))

    @cached_property
    def senders(self) -> list[int]:
        """Rows that send, in order."""
        return [row for row in range(len(self.words)) if self.sends(row)]

    def finished(self) -> list[int]:
        """Return the number of image lines that become complete after each line of the result."""
        lines = self.windows.lines
        ready = [min(lines.size, max(0, lines.first(y + 1))) for y in range(lines.results - 1)]
        return np.diff([0, *ready, lines.size]).tolist()

    def stretches(self) -> list[tuple[int, int]]:
        """Return runs (first, number) of result lines with the same program, which can be one loop."""
        finished, out = [0, *self.finished()], list[tuple[int, int]]()
        for y in range(len(finished) - 1):
            if out and finished[y : y + 2] == finished[out[-1][0] : out[-1][0] + 2]:
                out[-1] = (out[-1][0], out[-1][1] + 1)
            else:
                out.append((y, 1))
        return out

    @property
    def held_bytes(self) -> int:
        """Bytes that a core needs for planes and outgoing lines."""
        return self.planes * (4 * self.plane + 2 * max(self.finished()) * self.line)

    def cells(self, top: Cell) -> tuple[Cell, ...]:
        """Return the cells from the outlet, next to the first row, to the last sender."""
        return tuple((top[0] + i, top[1]) for i in range(self.senders[-1] + 1))


class FoldingCores:
    """Programs and routes of the column of cores that fold gradients.

    Parameters
    ----------
    top : Cell
        The core next to the first row.
    west : int
        Color on which the sums of a row arrive.
    chain : tuple[int, int]
        Colors on which even and odd rows send to the row above.
    back : tuple[int, str]
        Color of the gradient, and the ports by which the first core sends.
    """

    def __init__(
        self,
        b: Builder,
        name: str,
        folding: Folding,
        top: Cell,
        west: int,
        chain: tuple[int, int],
        back: tuple[int, str],
    ) -> None:
        self.folding, self.west, self.chain, self.back = folding, west, chain, back[0]
        rows, most = len(folding.words), max(folding.finished())
        where = (slice(top[0], top[0] + rows), top[1])
        self.planes = b.buffer(f"{name}.planes", folding.planes * folding.plane, "fp32", where)
        self.leaving = b.buffer(f"{name}.leaving", folding.planes * most * folding.line, "fp16", where)
        self.apart = most * folding.line
        for i in range(rows):
            cell = (top[0] + i, top[1])
            if folding.goes_up(i):
                b.route(chain[i % 2], cell, rx="R", tx="N")
                b.route(chain[i % 2], (cell[0] - 1, cell[1]), rx="S", tx="R")
            if i > folding.senders[-1]:
                continue
            onward = "N" if i else back[1]
            if i in folding.senders:
                switch = Switch([{"rx": "S"}], ring=True) if i < folding.senders[-1] else None
                b.route(back[0], cell, rx="R", tx=onward, switch=switch)
            else:
                b.route(back[0], cell, rx="S", tx=onward)

    def sample(self, core: CoreClass, row: int) -> None:
        """Add the sums of a sample; send its gradient except for the last finished lines."""
        folding = self.folding
        finished, columns = folding.finished(), folding.windows.columns.results
        done = np.cumsum([0, *finished]).tolist()
        for y, count in folding.stretches():
            pixels = (finished[y - 1] if y else 0) * folding.windows.columns.size
            each, left = divmod(pixels, columns)
            with core.loop(count):
                with core.loop(columns):
                    self._collect(core, row, At(y, 0, "yx"))
                    self._send(core, row, 0, each)
                if left:
                    with core.loop(left):
                        self._send(core, row, each * columns, 1)
                self._finish(core, row, done[y], finished[y])
        if folding.goes_up(row):
            # Words of all colors share one output queue, so words for the row above go first.
            core.join(CHAIN)

    def _shares(self) -> tuple[int, int, int]:
        """Return how many pixels of the last finished lines leave per result pixel, at the end of each result
        line, and at the very end."""
        windows = self.folding.windows
        pixels = self.folding.finished()[-1] * windows.columns.size
        each = pixels // (windows.lines.results * windows.columns.results)
        pixels -= each * windows.lines.results * windows.columns.results
        return each, *divmod(pixels, windows.lines.results)

    def last_lines(self, core: CoreClass, row: int) -> Callable[[At], None]:
        """Return the function that sends a part of the last lines during the unfolding of the same sample."""
        each, more, _ = self._shares()
        columns = self.folding.windows.columns.results
        line = each * columns + more

        def beside(at: At) -> None:
            first = at.line * line + (at.column * each if at.counted == "yx" else each * columns)
            self._send(core, row, first, each if at.counted == "yx" else more, at, (PAIR * line, PAIR * each))

        return beside

    def end(self, core: CoreClass, row: int) -> None:
        """Send the remaining pixels, and wait until all transfers of the sample are done."""
        _, _, left = self._shares()
        if left:
            pixels = self.folding.finished()[-1] * self.folding.windows.columns.size
            with core.loop(left):
                self._send(core, row, pixels - left, 1)
        for thread in (*self._threads(row), CLEAR):
            core.join(thread)

    def _threads(self, row: int) -> list[int]:
        """Return the microthreads that a row uses."""
        folding = self.folding
        used = [(COLLECT, True), (CHAIN, folding.goes_up(row)), (SEND, bool(folding.sends(row)))]
        return [thread for thread, is_used in used if is_used]

    def _collect(self, core: CoreClass, row: int, at: At) -> None:
        folding, windows = self.folding, self.folding.windows
        steps = (windows.lines.stride * folding.pitch, windows.columns.stride * PAIR)
        for piece in folding.pieces(row):
            place = piece.plane * folding.plane + piece.line * folding.pitch + piece.tap * PAIR
            part = at.part(self.planes, place + at.line * steps[0], PAIR * piece.taps, steps)
            core.add(part, part, fabric_in(self.west), start="none", thread=COLLECT, priority="high")

    def _finish(self, core: CoreClass, row: int, first: int, count: int) -> None:
        """Move the lines from `first` on (plus the loop counter) out of the planes, and pass shared ones to
        the row above."""
        if not count:
            return
        folding = self.folding
        around = folding.windows.lines.around, folding.windows.columns.around
        for thread in self._threads(row):
            core.join(thread)
        step = count * folding.pitch
        for plane in range(len(folding.pairs[row])):
            place = plane * folding.plane + (around[0] + first) * folding.pitch + PAIR * around[1]
            for j in range(count):
                line = self.planes.dsd(place + j * folding.pitch, folding.line, step=step)
                core.mov(self._lines(plane, j, 1), line, start="none")
        self._pass_on(core, row, count)
        for plane in range(len(folding.pairs[row])):
            # No sums arrive for these lines before the next sample, so clearing them may overlap with all
            # that follows.
            place = plane * folding.plane + (around[0] + first) * folding.pitch + PAIR * around[1]
            cleared = self.planes.dsd(place, (count - 1) * folding.pitch + folding.line, step=step)
            core.mov(cleared, scalar(0.0), start="none", thread=CLEAR, priority="low")

    def _pass_on(self, core: CoreClass, row: int, count: int) -> None:
        """Pass on the finished lines of pairs that other rows have as well."""
        folding = self.folding
        up, below = fabric_out(self.chain[row % 2]), fabric_in(self.chain[(row + 1) % 2])
        last = len(folding.pairs[row]) - 1
        own, other = self._lines(0, 0, count), self._lines(last, 0, count)
        if folding.goes_up(row) and folding.comes_up(row) and last == 0:
            core.add(up, own, below, dtype="fp16", start="none", thread=CHAIN)
            return
        if folding.goes_up(row):
            core.mov(up, own, dtype="fp16", start="none", thread=CHAIN)
        if folding.comes_up(row):
            core.add(other, other, below, dtype="fp16", start="none", thread=BELOW)

    def _lines(self, plane: int, first: int, count: int) -> Operand:
        line = self.folding.line
        return self.leaving.dsd(plane * self.apart + first * line, count * line)

    def _send(
        self,
        core: CoreClass,
        row: int,
        first: int,
        count: int,
        at: At | None = None,
        steps: tuple[int, int] = (0, 0),
    ) -> None:
        """Send `count` pixels of the finished lines from `first` on (plus the loop counter, or `steps` per
        place)."""
        folding = self.folding
        planes = folding.sends(row)
        if not planes or not count:
            return
        if folding.comes_up(row):
            core.join(BELOW)
        advance = advance_of(folding.senders.index(row), len(folding.senders))
        at, steps = (at, steps) if at else (At(0, 0, "x"), (0, PAIR * count))
        for pixel in range(count):
            for plane in planes:
                turn = advance if plane == planes[-1] else None
                word = at.part(self.leaving, plane * self.apart + PAIR * (first + pixel), PAIR, steps)
                core.mov(fabric_out(self.back, turn), word, dtype="fp16", start="none", thread=SEND)
