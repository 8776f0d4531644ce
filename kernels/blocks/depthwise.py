"""Depthwise convolution on one core, which stores the padded images of some channels.

Symbols: an image of H x W pixels of e channels, q lines and columns of zeros around it, P = W + 2 q pixels of a line; filters of
r lines and s columns, stride z, T = H' W' pixels of the result.  A tap of a channel is one instruction on the whole image::

    e r s (o + L / w)            L = (H' - 1) P + W', results between lines too; w: fused multiplications a cycle
    or e r s H' (o + W' / w)     line by line, where that is faster
    o + e L' / (rate of maxima)  ReLU of all L' results that are held

Filters are in fp16, sums in fp32; the first tap adds the bias. Cores of a column send their words of a pixel
in sequence, as in pooling (:mod:`wse_sim.kernels.blocks.pooling_core`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil

from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.pooling_core import ApartCore, CoreOf, apart_bytes, apart_cost, words_apart
from wse_sim.kernels.blocks.windows import PAIR, Windows, surround
from wse_sim.kernels.contract.equations import bytes_of
from wse_sim.kernels.contract.family import Attrs, Cost, Dims, Footprint, Tiling
from wse_sim.kernels.contract.parameters import Attributes, ProductAttributes


@dataclass(frozen=True)
class DepthwiseCore(ApartCore):
    """A core with `each` channels of an image and their filters."""

    windows: Windows
    each: int
    has_relu: bool
    wafer: Wafer

    @property
    def wide(self) -> int:
        """Pixels of a padded line, P."""
        columns = self.windows.columns
        return columns.size + 2 * columns.around

    @property
    def held(self) -> int:
        """Stored pixels, including the padding zeros."""
        lines = self.windows.lines
        below = (lines.results - 1) * lines.stride + lines.taps
        return max(lines.size + lines.around, below) * self.wide

    @property
    def margin(self) -> int:
        """Zeros before the first pixel and after the last; they are never overwritten."""
        return self.windows.lines.around * self.wide + self.windows.columns.around

    @property
    def received(self) -> int:
        """Pixels that arrive: the image, and zeros between its lines."""
        return self.windows.lines.size * self.wide - 2 * self.windows.columns.around

    @property
    def taps(self) -> int:
        """Taps of a filter."""
        return self.windows.lines.taps * self.windows.columns.taps

    @cached_property
    def is_at_once(self) -> bool:
        """Whether one instruction applies a tap to the whole image instead of to one line."""
        return self._tap_cycles(at_once=True) <= self._tap_cycles(at_once=False)

    @property
    def vector(self) -> tuple[int, int]:
        """Number of vector instructions per tap and channel, and results of each instruction."""
        lines, columns = self.windows.lines.results, self.windows.columns.results
        return (1, (lines - 1) * self.wide + columns) if self.is_at_once else (lines, columns)

    @property
    def pitch(self) -> int:
        """Results from line to line."""
        return self.wide if self.is_at_once else self.windows.columns.results

    @property
    def sums(self) -> int:
        """Results that are stored."""
        return (self.windows.lines.results - 1) * self.pitch + self.windows.columns.results

    def _tap_cycles(self, *, at_once: bool) -> float:
        lines, columns = self.windows.lines.results, self.windows.columns.results
        turns, length = (1, (lines - 1) * self.wide + columns) if at_once else (lines, columns)
        return turns * (ceil(self.wafer.vector_start_cycles) + ceil(length / self.wafer.fma_mixed_per_cycle))

    @property
    def bytes(self) -> float:
        """Bytes of two padded images, and of sums including the gaps between lines."""
        return float(self.each * (2 * bytes_of("fp16") * self.held + bytes_of("fp32") * self.sums))

    @property
    def moved(self) -> float:
        """Words received, including zeros between lines, plus words sent."""
        return (self.received + self.results) * self.each / PAIR

    def issued_cycles(self) -> float:
        """Return the issue cycles per image: words received and sent, and all instructions."""
        taps = self.each * self.taps * self._tap_cycles(at_once=self.is_at_once)
        count = self.sums * self.each
        relu = ceil(self.wafer.vector_start_cycles) + ceil(count / self.wafer.max_fp32_per_cycle)
        return float(self.moved + taps + self.has_relu * relu)

    def inlet_cycles(self, heard: int) -> float:
        """Return the cycles of its inlet, which receives `heard` words per pixel and also sends zeros."""
        zeros = (self.received - self.pixels) * self.each // PAIR
        return float(self.wafer.wavelet_cycles * (self.pixels * heard + zeros))


def has_own_filters(dims: Dims, groups: int) -> bool:
    """Return whether every channel has a separate filter."""
    return bool(groups == int(dims["c"]) == int(dims["k"]) > 1)


def _core_of(dims: Dims, attrs: Attrs, wafer: Wafer) -> tuple[CoreOf, Windows]:
    """Return what makes a core, and the windows of the complete image."""
    has_relu = "relu" in ProductAttributes.of(attrs).fused.split(",")
    windows = Windows.sized(dims, surround(dims, attrs))
    return (lambda part, words: DepthwiseCore(part, PAIR * words, has_relu, wafer)), windows


def depthwise_cost(dims: Dims, attrs: Attrs, tiling: Tiling, wafer: Wafer) -> Cost:
    """Return the cost of channels over the rows of cores, and of bands of lines over the columns."""
    core_of, windows = _core_of(dims, attrs, wafer)
    return apart_cost(core_of, windows, dims, tiling, wafer, Attributes.of(attrs))


def depthwise_footprint(dims: Dims, attrs: Attrs, tiling: Tiling, wafer: Wafer) -> Footprint:
    """Return the bytes of the fullest core: filters and bias, two padded images, and sums including the gaps
    between lines."""
    core_of, windows = _core_of(dims, attrs, wafer)
    each = PAIR * words_apart(dims["c"], tiling.rows)
    return Footprint(
        weights_bytes=1.0 * each * (dims["r"] * dims["s"] * bytes_of("fp16") + bytes_of("fp32")),
        buffers_bytes=apart_bytes(core_of, windows, tiling),
        code_bytes=wafer.kernel_code_bytes,
    )
