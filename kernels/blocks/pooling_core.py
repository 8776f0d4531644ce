"""Pooling on one core, which stores some channels of an image: the lines of each window are reduced first,
then its columns.

Symbols: an image of H x W pixels of e channels, windows of r lines and s columns, stride z, T pixels of the result::

    lines      for every line of the result r vectors of W e elements
    columns    s vectors over the whole result and the gaps between windows, or of T elements per channel where
               lines follow each other without a gap; the faster

The first vector is moved, or the first two are combined in one instruction, whichever is faster. Maxima are
computed in fp16, means are summed in fp32. Padding lines are skipped; padding columns are stored next to the
lines. Cores of a column send their words of a pixel in sequence, so each waits (cores - 1) e / 2 cycles per
pixel; the queues hide the last of these words.

With several columns, each but the first has a band of lines of the result. Bands of a row send in sequence to the core
of the first column, which sends the words of a pixel in sequence with the others of its column.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar

import numpy as np

from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.windows import PAIR, Band, Windows
from wse_sim.kernels.contract.equations import ceil_div, divisors, fill_cycles, up_to
from wse_sim.kernels.contract.family import Cost, Dims, Size, Tiling
from wse_sim.kernels.contract.parameters import Attributes, spaced

IMAGE, LINES, RESULT = "image", "lines", "result"  # buffers of a core
BANKS = {IMAGE: 2, LINES: 0, RESULT: 2}
SIXTEEN, THIRTY_TWO = 1, 2  # 16-bit words of an element
FP16_BYTES = 2  # of a 16-bit word


@dataclass(frozen=True)
class BufferPart:
    """Elements of a buffer: the first one, the stride, and the distance to those of the next repetition."""

    buffer: str
    first: int = 0
    stride: int = 1
    apart: int = 0

    def moved(self, elements: int) -> BufferPart:
        """Return the same place, `elements` further on."""
        return replace(self, first=self.first + elements)


@dataclass(frozen=True)
class PoolStep:
    """An instruction, repeated `turns` times: mov, add, sub, mul, max or step (1 if positive, else 0);
    without reads it writes zeros."""

    op: str
    turns: int
    length: int
    to: BufferPart
    reads: tuple[BufferPart, ...] = ()


def words_apart(channels: Size, rows: Size) -> Size:
    """Return the words of a pixel on the fullest of `rows` cores."""
    words = channels // PAIR
    return ceil_div(words, np.minimum(words, rows))


def most_streams(channel_words: int, cores: int, most: int) -> int:
    """Return the largest number of parallel streams of an image, up to `most`, of equally many of the `cores`, which have
    equally many words of a pixel."""
    return 1 if channel_words % cores else divisors(cores, most)[-1]


def bands_on(windows: Windows, cols: Size) -> Size:
    """Return the bands of lines on a region with `cols` columns: one on one column; with a further column of cores that
    collect the results of a row, one on each other column."""
    counts = spaced(range(1, windows.most_bands + 1))
    return up_to(counts, np.asarray(cols) - 1)


def different(bands: Sequence[Band]) -> set[Windows]:
    """Return the different windows of bands: those between the first and the last ones are alike."""
    return {band.windows for band in bands}


class ImageCore:
    """A core with `each` channels of an image, or of a band of its lines."""

    windows: Windows
    each: int
    wafer: Wafer

    @property
    def pixels(self) -> int:
        """Pixels of the image."""
        return self.windows.lines.size * self.windows.columns.size

    @property
    def results(self) -> int:
        """Pixels of the result, T."""
        return self.windows.lines.results * self.windows.columns.results


class PoolCore(ImageCore):
    """A core with instructions on maxima in fp16 or sums in fp32; `banks` are those of its buffers, by name, and `received` are
    the buffers of what arrives, in fp16."""

    is_max: bool
    banks: ClassVar[Mapping[str, int]]
    received: ClassVar[tuple[str, ...]] = (IMAGE,)

    def cycles(self, steps: Sequence[PoolStep]) -> float:
        """Return the cycles of instructions: starts and elements."""
        return float(sum(map(self._cycles, steps)))

    def _cycles(self, step: PoolStep) -> float:
        """Return the cycles of an instruction; two reads from the same bank take twice as long."""
        wafer, start = self.wafer, ceil(self.wafer.vector_start_cycles)
        rates = {
            "mov": (wafer.mov_fp16_per_cycle, wafer.mov_fp32_per_cycle),
            "max": (wafer.max_fp16_per_cycle, wafer.max_fp32_per_cycle),
            "step": (wafer.max_fp16_per_cycle, wafer.max_fp32_per_cycle),
            "mul": (wafer.fma_fp16_per_cycle, wafer.mul_fp32_per_cycle),
        }
        adds = (wafer.add_fp16_per_cycle, wafer.add_fp32_memory_per_cycle)
        rate = rates.get(step.op, adds)[0 if self.is_max else 1]
        period = wafer.sram_banks // 2 if self.is_max else wafer.fp32_bank_period_words
        met = {
            (self.banks[read.buffer] + self.wide_of(read.buffer) * read.first) % period for read in step.reads
        }
        slow = wafer.bank_conflict_factor if len(set(step.reads)) > len(met) else 1.0
        return step.turns * (start + ceil(step.length / rate * slow))

    def wide_of(self, buffer: str) -> int:
        """Return the number of 16-bit words of an element."""
        return SIXTEEN if self.is_max or buffer in self.received else THIRTY_TWO


class ApartCore(ImageCore, ABC):
    """A core that sends its results, one core of a column after the other."""

    @property
    @abstractmethod
    def moved(self) -> float:
        """Words received and sent."""

    @property
    @abstractmethod
    def bytes(self) -> float:
        """Bytes of images, results and what is between."""

    @abstractmethod
    def issued_cycles(self) -> float:
        """Return the issue cycles per image: words received and sent, and all instructions."""

    @abstractmethod
    def inlet_cycles(self, heard: int) -> float:
        """Return the cycles of its inlet, which receives `heard` words per pixel."""

    def turn_cycles(self, cores: int) -> float:
        """Return the cycles that a core waits while the other cores of its column send; its queues hide some
        of them."""
        wafer = self.wafer
        queued = max(wafer.output_queue_wavelets) + wafer.ramp_cycles + wafer.router_queue_wavelets
        return float(max(0, self.results * self.each // PAIR - queued) * (cores - 1))


CoreOf = Callable[[Windows, int], ApartCore]
"""Makes the core that has windows and a number of words of a pixel."""


def apart_cost(
    core_of: CoreOf, windows: Windows, dims: Dims, tiling: Tiling, wafer: Wafer, said: Attributes
) -> Cost:
    """Return the cost of channels over the rows of cores and bands of lines over the columns: the fullest core, with its
    waits to send, or the links of image and result, in as many streams as there may be.

    An inlet stores lines that two bands have, and sends them twice.
    """
    channel_words = windows.channels // PAIR
    words, bands = np.broadcast_arrays(
        words_apart(windows.channels, tiling.rows), bands_on(windows, tiling.cols)
    )
    found = dict[tuple[int, int], tuple[float, float, float, float]]()
    pairs = np.stack([words.reshape(-1), bands.reshape(-1)], 1)
    for n, count in map(tuple, np.unique(pairs, axis=0).tolist()):
        cores, parts = int(ceil_div(channel_words, n)), windows.bands(count)
        heard, given = (
            most_streams(channel_words, cores, most) for most in (said.most_bundles, said.most_results)
        )
        has_links = heard >= said.least_bundles and given >= said.least_results
        core = max((core_of(part, n) for part in different(parts)), key=lambda core: core.issued_cycles())
        issued, turns = core.issued_cycles(), core.turn_cycles(cores // given)
        again = 2 * n * windows.columns.size * sum(part.shared for part in parts)
        link = core_of(windows, n).inlet_cycles(channel_words // heard) + again
        if count > 1:
            results = windows.lines.results * windows.columns.results * n * (cores // given)
            link = max(link, wafer.wavelet_cycles * results)
        link = link if has_links else np.inf
        found[n, count] = (issued - core.moved, core.moved, max(0.0, link - issued - turns), turns)
    values = np.array([found[n, count] for n, count in map(tuple, pairs.tolist())])
    compute, ramp, inward, outward = (dims["b"] * values[:, i].reshape(words.shape) for i in range(4))
    return Cost(
        compute=compute,
        ramp=ramp,
        idle=fill_cycles(tiling.rows, tiling.cols, wafer) + 0.0 * compute,
        stalled_input=inward,
        stalled_output=outward,
    )


def apart_bytes(core_of: CoreOf, windows: Windows, tiling: Tiling) -> Size:
    """Return the bytes of the fullest core of channels over the rows and bands of lines over the columns."""
    words, bands = np.broadcast_arrays(
        words_apart(windows.channels, tiling.rows), bands_on(windows, tiling.cols)
    )

    def bytes_of(n: int, count: int) -> float:
        return max(core_of(part, n).bytes for part in different(windows.bands(count)))

    found = {
        pair: bytes_of(*pair)
        for pair in set(zip(words.reshape(-1).tolist(), bands.reshape(-1).tolist(), strict=True))
    }
    each = zip(words.reshape(-1).tolist(), bands.reshape(-1).tolist(), strict=True)
    return np.array([found[pair] for pair in each]).reshape(words.shape)


@dataclass(frozen=True)
class PooledCore(ApartCore, PoolCore):
    """The instructions of the maximum or the sum of windows."""

    windows: Windows
    each: int
    is_max: bool
    wafer: Wafer
    banks = BANKS

    @property
    def pitch(self) -> int:
        """Pixels from one line to the next, including padding."""
        columns = self.windows.columns
        wide = max(
            columns.size + columns.around, columns.first(columns.results - 1) + columns.around + columns.taps
        )
        return int(ceil_div(wide, PAIR)) * PAIR

    @property
    def held(self) -> int:
        """Elements of the buffers of lines and of the result."""
        return self.windows.lines.results * self.pitch * self.each

    @property
    def moved(self) -> float:
        """Words received and sent."""
        return (self.pixels + self.results) * self.each / PAIR

    @property
    def bytes(self) -> float:
        """Bytes of two images, and of what the steps store."""
        between = len((LINES, RESULT)) * self.held * (SIXTEEN if self.is_max else THIRTY_TWO)
        return float(FP16_BYTES * (2 * self.pixels * self.each + between))

    def inlet_cycles(self, heard: int) -> float:
        """Return the cycles of its inlet, which receives `heard` words per pixel."""
        return float(self.wafer.wavelet_cycles * self.pixels * heard)

    def issued_cycles(self) -> float:
        """Return the issue cycles per image: words received and sent, and all instructions."""
        return self.moved + self.cycles(self.steps())

    def steps(self) -> list[PoolStep]:
        """Return the instructions: over the lines of the windows, then over their columns."""
        each = self.each
        lines, columns, pitch = self.windows.lines, self.windows.columns, self.pitch * each
        row, margin = columns.size * each, columns.around * each
        out: list[PoolStep] = []
        for place, count in lines.spans():
            taps = [tap for tap in range(lines.taps) if 0 <= lines.first(place) + tap < lines.size]
            met = [BufferPart(IMAGE, (lines.first(place) + tap) * row, 1, lines.stride * row) for tap in taps]
            out += self._combined(BufferPart(LINES, place * pitch + margin, 1, pitch), met, count, row)
        if columns.taps == 1:
            return out
        # All columns at once, including gaps between windows; or channel by channel, if lines are contiguous.
        met = [BufferPart(LINES, tap * each) for tap in range(columns.taps)]
        at_once = self._combined(
            BufferPart(RESULT), met, 1, lines.results * pitch - (columns.taps - 1) * each
        )
        if self.pitch != columns.stride * columns.results:
            return out + at_once
        to, *met = (replace(one, stride=columns.stride * each, apart=1) for one in (BufferPart(RESULT), *met))
        one_by_one = self._combined(to, met, each, lines.results * columns.results)
        return out + min(at_once, one_by_one, key=self.cycles)

    def _combined(self, to: BufferPart, met: Sequence[BufferPart], turns: int, length: int) -> list[PoolStep]:
        """Return the instructions that reduce several places to one: the first is moved, or the first two
        combined."""
        op = "max" if self.is_max else "add"
        first = PoolStep("mov", turns, length, to, (met[0],))
        rest = [PoolStep(op, turns, length, to, (to, one)) for one in met[1:]]
        if not rest:
            return [first]
        direct = PoolStep(op, turns, length, to, (met[0], met[1]))
        return min([first, *rest], [direct, *rest[1:]], key=self.cycles)
