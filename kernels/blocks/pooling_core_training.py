"""Trainable pooling on one core: the columns of each window are reduced first, then its lines; the backward
pass reverses this.

Symbols: an image of H x W pixels of e channels, windows of s taps either way, stride z, T pixels of the
result, g their gradients.  Windows have the same distance within and across lines: a line is padded to a
multiple of z pixels, and positions between its last window and the next line count as windows with gradient
0. A *stage* reduces s taps to one. One instruction covers all windows of a channel (stride 1: of all
channels) over columns, or those of a line over lines::

    maximum   y = v_0;   for j = 1 .. s - 1:   n_j = [v_j > y];   y = max(y, v_j)          n_j are kept
    back      for j = s - 1 .. 1:   dv_j += g n_j;   g = g - g n_j;                        dv_0 += g
    mean      y = sum of v_j;       back: dv_j += g;    scaled as it leaves, both ways

So the first of several equal pixels wins, within a line and then among lines, as in PyTorch. Gradients of
windows that do not overlap are written instead of added. Maxima are in fp16, sums in fp32. While a core sends
its words of a pixel, the other cores of its column wait.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.pooling_core import (
    IMAGE,
    LINES,
    RESULT,
    BufferPart,
    PoolCore,
    PoolStep,
    words_apart,
)
from wse_sim.kernels.blocks.windows import PAIR, Windows
from wse_sim.kernels.contract.equations import ceil_div, fill_cycles
from wse_sim.kernels.contract.family import Cost, Dims, Size, Tiling

TAKEN = "taken"
WON_COLUMNS, WON_LINES = "won in columns", "won in lines"
GRADIENT, LINES_BACK, IMAGE_BACK, SHARE = "gradient", "lines back", "image back", "share"
BANKS = {
    TAKEN: 2, IMAGE: 2, LINES: 0, RESULT: 0, WON_COLUMNS: 0, WON_LINES: 0,
    GRADIENT: 2, LINES_BACK: 2, IMAGE_BACK: 2, SHARE: 0,
}  # fmt: skip
KEPT = (WON_COLUMNS, WON_LINES)
"""Buffers that exist once per sample in flight."""


@dataclass(frozen=True)
class _Stage:
    """The taps of all windows in one direction: repetitions and elements per instruction."""

    taps: int
    is_apart: bool  # windows do not overlap
    turns: int
    length: int
    source: BufferPart  # the first tap
    tap: int  # elements from tap to tap
    to: BufferPart
    won: BufferPart
    mask: int  # elements of a tap's mask


@dataclass(frozen=True)
class TrainedPoolCore(PoolCore):
    """The instructions of the forward and the backward pass of a core with `each` channels of an image."""

    windows: Windows
    each: int
    is_max: bool
    wafer: Wafer
    banks = BANKS
    received = (TAKEN, IMAGE, GRADIENT)

    @property
    def wide(self) -> int:
        """Window positions per line, including those in the gap to the next line."""
        columns = self.windows.columns
        reach = max(columns.around + columns.size, (columns.results - 1) * columns.stride + columns.taps)
        return int(ceil_div(reach, columns.stride))

    @property
    def pitch(self) -> int:
        """Elements of a padded line of the image."""
        return self.wide * self.windows.columns.stride * self.each

    @property
    def is_filled(self) -> bool:
        """Whether a line is padded: longer than the image's, or starting later."""
        return self.pitch != self.windows.columns.size * self.each

    @property
    def is_spread(self) -> bool:
        """Whether windows are between lines."""
        return self.wide != self.windows.columns.results

    @property
    def image(self) -> int:
        """Elements of an image, including those that its last windows read beyond it."""
        columns, count = self.windows.columns, self.windows.lines.size * self.wide
        reach = (count - 1) * columns.stride + columns.taps
        return max(count * columns.stride, reach) * self.each

    @property
    def lines_held(self) -> int:
        """Lines under windows, including padding."""
        lines = self.windows.lines
        return max(lines.around + lines.size, (lines.results - 1) * lines.stride + lines.taps)

    @property
    def sizes(self) -> dict[str, int]:
        """Elements of the buffers in use; for buffers that exist per sample, those of one sample."""
        line, columns, lines = self.wide * self.each, self.windows.columns, self.windows.lines
        taken = self.pixels * self.each if self.is_filled else self.image
        found = {
            TAKEN: max(taken, self.results * self.each),
            LINES: self.lines_held * line,
            RESULT: lines.results * line,
            LINES_BACK: self.lines_held * line,
            IMAGE_BACK: self.image,
        }
        if self.is_filled:
            found[IMAGE] = self.image
        if self.is_spread:
            found[GRADIENT] = lines.results * line
        if self.is_max:
            found[WON_COLUMNS] = max(1, columns.taps - 1) * lines.size * line
            found[WON_LINES] = max(1, lines.taps - 1) * lines.results * line
            found[SHARE] = max(lines.size, lines.results) * line
        return found

    # ---- instructions ----------------------------------------------------------------------------------------------

    def _columns(self, image: str, lines: str) -> _Stage:
        columns, each = self.windows.columns, self.each
        count, at = self.windows.lines.size * self.wide, self.windows.lines.around * self.wide * each
        if columns.stride == 1:
            turns, length, from_, stride, apart = 1, count * each, 1, 1, 0
        else:
            turns, length, from_, stride, apart = each, count, columns.stride * each, each, 1
        return _Stage(
            columns.taps, columns.taps <= columns.stride, turns, length, BufferPart(image, 0, from_, apart), each,
            BufferPart(lines, at, stride, apart), BufferPart(WON_COLUMNS, 0, stride, apart), count * each,
        )  # fmt: skip

    def _lines(self, lines: str, result: str) -> _Stage:
        axis, line = self.windows.lines, self.wide * self.each
        turns, length = (1, axis.results * line) if axis.stride == 1 else (axis.results, line)
        apart = line if turns > 1 else 0
        return _Stage(
            axis.taps, axis.taps <= axis.stride, turns, length, BufferPart(lines, 0, 1, axis.stride * apart), line,
            BufferPart(result, 0, 1, apart), BufferPart(WON_LINES, 0, 1, apart), axis.results * line,
        )  # fmt: skip

    def forward(self) -> list[PoolStep]:
        """Return the instructions from a received image to the result."""
        image = IMAGE if self.is_filled else TAKEN
        out = []
        if self.is_filled:
            columns = self.windows.columns
            row = columns.size * self.each
            to = BufferPart(IMAGE, columns.around * self.each, 1, self.pitch)
            out.append(PoolStep("mov", self.windows.lines.size, row, to, (BufferPart(TAKEN, 0, 1, row),)))
        make = self._maxima if self.is_max else self._sums
        return out + make(self._columns(image, LINES)) + make(self._lines(LINES, RESULT))

    def backward(self) -> list[PoolStep]:
        """Return the instructions from received gradients of the result to those of the image."""
        gradient, axis, out = TAKEN, self.windows.lines, list[PoolStep]()
        if self.is_spread:
            gradient, row = GRADIENT, self.windows.columns.results * self.each
            to = BufferPart(GRADIENT, 0, 1, self.wide * self.each)
            out.append(PoolStep("mov", axis.results, row, to, (BufferPart(TAKEN, 0, 1, row),)))
        for stage, back, held in (
            (self._lines(LINES_BACK, gradient), LINES_BACK, self.lines_held * self.wide * self.each),
            (self._columns(IMAGE_BACK, LINES_BACK), IMAGE_BACK, self.image),
        ):
            if not stage.is_apart:
                out.append(PoolStep("mov", 1, held, BufferPart(back)))
            out += self._maxima_back(stage) if self.is_max else self._sums_back(stage)
        return out

    def _maxima(self, stage: _Stage) -> list[PoolStep]:
        if stage.taps == 1:
            return [self._step("mov", stage, stage.to, stage.source)]
        out, best = [], stage.source
        for j in range(1, stage.taps):
            tap, won = stage.source.moved(j * stage.tap), stage.won.moved((j - 1) * stage.mask)
            out += [
                self._step("sub", stage, won, tap, best),
                self._step("step", stage, won, won),
                self._step("max", stage, stage.to, best, tap),
            ]
            best = stage.to
        return out

    def _maxima_back(self, stage: _Stage) -> list[PoolStep]:
        """Return the instructions that give the first tap the gradient that no other tap takes."""
        share = replace(stage.won, buffer=SHARE)
        if stage.taps == 1:
            return [self._step("mov", stage, stage.source, stage.to)]
        out = []
        for j in range(stage.taps - 1, 0, -1):
            tap, won = stage.source.moved(j * stage.tap), stage.won.moved((j - 1) * stage.mask)
            if stage.is_apart:
                rest = stage.source if j == 1 else stage.to
                out += [
                    self._step("mul", stage, tap, stage.to, won),
                    self._step("sub", stage, rest, stage.to, tap),
                ]
                continue
            rest = share if j == 1 else stage.to
            out += [
                self._step("mul", stage, share, stage.to, won),
                self._step("add", stage, tap, tap, share),
                self._step("sub", stage, rest, stage.to, share),
            ]
        if not stage.is_apart:
            out.append(self._step("add", stage, stage.source, stage.source, share))
        return out

    def _sums(self, stage: _Stage) -> list[PoolStep]:
        taps = [stage.source.moved(j * stage.tap) for j in range(stage.taps)]
        if len(taps) == 1:
            return [self._step("mov", stage, stage.to, *taps)]
        first = self._step("add", stage, stage.to, *taps[:2])
        return [first, *(self._step("add", stage, stage.to, stage.to, tap) for tap in taps[2:])]

    def _sums_back(self, stage: _Stage) -> list[PoolStep]:
        taps = [stage.source.moved(j * stage.tap) for j in range(stage.taps)]
        if stage.is_apart:
            return [self._step("mov", stage, tap, stage.to) for tap in taps]
        return [self._step("add", stage, tap, tap, stage.to) for tap in taps]

    def _step(self, op: str, stage: _Stage, to: BufferPart, *reads: BufferPart) -> PoolStep:
        return PoolStep(op, stage.turns, stage.length, to, reads)

    # ---- cycles ----------------------------------------------------------------------------------------------------

    @property
    def moved_cycles(self) -> float:
        """Cycles per sample and pass for received and sent words."""
        return (self.pixels + self.results) * self.each / PAIR


def trained_apart_cost(
    dims: Dims, around: int, is_max: bool, is_forward: bool, tiling: Tiling, wafer: Wafer
) -> Cost:
    """Return the cost of one pass on the fullest core of one column; further columns of the rectangle are not
    used.

    A core waits while the others send their words of every pixel: T pixels forward, H W backward. The link to the cores takes
    the words of every pixel that arrives, and a control word that lets the first core receive again.
    """
    windows = Windows.sized(dims, around)
    words = np.asarray(words_apart(int(dims["c"]) // PAIR * PAIR, tiling.rows))
    found = {n: TrainedPoolCore(windows, PAIR * n, is_max, wafer) for n in np.unique(words).tolist()}
    moved = {n: core.moved_cycles for n, core in found.items()}
    issued = {n: core.cycles(core.forward() if is_forward else core.backward()) for n, core in found.items()}

    def each(table: dict[int, float]) -> Size:
        return dims["b"] * np.vectorize(table.__getitem__, otypes=[float])(words)

    pixels = dims["out_h"] * dims["out_w"] if is_forward else dims["h"] * dims["w"]
    cores = ceil_div(int(dims["c"]) // PAIR, words)
    waits = 1.0 * dims["b"] * (cores - 1) * words * pixels
    zero = 0.0 * tiling.rows * tiling.cols
    idle = fill_cycles(tiling.rows, tiling.cols, wafer) + zero
    cost = Cost(compute=each(issued) + zero, ramp=each(moved) + zero, idle=idle, stalled_output=waits + zero)
    arriving = dims["h"] * dims["w"] if is_forward else dims["out_h"] * dims["out_w"]
    link = wafer.wavelet_cycles * dims["b"] * arriving * (cores * words + (cores > 1))
    return cost + Cost(stalled_input=np.maximum(0.0, link - (cost.total - cost.idle)))
