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

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any

import numpy as np

from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.pooling_core import most_streams, words_apart
from wse_sim.kernels.blocks.windows import PAIR, Windows, surround
from wse_sim.kernels.contract.equations import bytes_of, ceil_div, fill_cycles
from wse_sim.kernels.contract.family import Cost, Dims, Footprint, Tiling
from wse_sim.kernels.contract.parameters import Attributes, ProductAttributes


@dataclass(frozen=True)
class DepthwiseCore:
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
        return (lines.size + 2 * lines.around) * self.wide

    @property
    def margin(self) -> int:
        """Zeros before the first pixel and after the last; they are never overwritten."""
        return self.windows.lines.around * self.wide + self.windows.columns.around

    @property
    def received(self) -> int:
        """Pixels that arrive: the image, and zeros between its lines."""
        return self.held - 2 * self.margin

    @property
    def pixels(self) -> int:
        """Pixels of the image."""
        return self.windows.lines.size * self.windows.columns.size

    @property
    def results(self) -> int:
        """Pixels of the result, T."""
        return self.windows.lines.results * self.windows.columns.results

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
    def moved(self) -> float:
        """Words received, including zeros between lines, plus words sent."""
        return (self.received + self.results) * self.each / PAIR

    def issued_cycles(self) -> float:
        """Return the issue cycles per image: words received and sent, and all instructions."""
        taps = self.each * self.taps * self._tap_cycles(at_once=self.is_at_once)
        count = self.sums * self.each
        relu = ceil(self.wafer.vector_start_cycles) + ceil(count / self.wafer.max_fp32_per_cycle)
        return float(self.moved + taps + self.has_relu * relu)

    def turn_cycles(self, cores: int) -> float:
        """Return the cycles that a core waits while the other cores of its column send; its queues hide some
        of them."""
        wafer = self.wafer
        queued = max(wafer.output_queue_wavelets) + wafer.ramp_cycles + wafer.router_queue_wavelets
        return float(max(0, self.results * self.each // PAIR - queued) * (cores - 1))

    def inlet_cycles(self, heard: int) -> float:
        """Return the cycles of its inlet, which receives `heard` words per pixel and also sends zeros."""
        return self.wafer.wavelet_cycles * (
            self.pixels * heard + (self.received - self.pixels) * self.each // PAIR
        )


def has_own_filters(dims: Mapping[str, Any], groups: int) -> bool:
    """Return whether every channel has a separate filter."""
    return bool(groups == int(dims["c"]) == int(dims["k"]) > 1)


def _core(dims: Dims, words: int, attrs: Mapping[str, Any], wafer: Wafer) -> DepthwiseCore:
    fused = ProductAttributes.of(attrs).fused
    return DepthwiseCore(
        Windows.sized(dims, surround(dims, attrs)), PAIR * words, "relu" in fused.split(","), wafer
    )


def depthwise_cost(dims: Dims, attrs: Mapping[str, Any], tiling: Tiling, wafer: Wafer) -> Cost:
    """Return the cost of the fullest core of one column; further columns of the rectangle are not used."""
    channel_words, stated = int(dims["c"]) // PAIR, Attributes.of(attrs)
    words = np.asarray(words_apart(channel_words * PAIR, tiling.rows))
    found = dict[int, tuple[float, ...]]()
    for n in np.unique(words).tolist():
        core, cores = _core(dims, n, attrs, wafer), int(ceil_div(channel_words, n))
        heard, given = (
            most_streams(channel_words, cores, most) for most in (stated.most_bundles, stated.most_results)
        )
        issued, turns = core.issued_cycles(), core.turn_cycles(cores // given)
        waits = max(0.0, core.inlet_cycles(channel_words // heard) - issued - turns)
        found[n] = (issued - core.moved, core.moved, waits, turns)
    like = np.zeros(np.broadcast_shapes(np.shape(tiling.rows), np.shape(tiling.cols)))
    compute, ramp, inward, outward = (
        dims["b"] * np.vectorize(lambda n, i=i: found[n][i], otypes=[float])(words) + like for i in range(4)
    )
    return Cost(
        compute=compute,
        ramp=ramp,
        idle=fill_cycles(tiling.rows, tiling.cols, wafer) + like,
        stalled_input=inward,
        stalled_output=outward,
    )


def depthwise_footprint(dims: Dims, attrs: Mapping[str, Any], tiling: Tiling, wafer: Wafer) -> Footprint:
    """Return the bytes of the fullest core: filters and bias, two padded images, and sums including the gaps
    between lines."""
    each = PAIR * words_apart(dims["c"], tiling.rows)
    around = surround(dims, attrs)
    wide = dims["w"] + 2 * around
    half, whole = bytes_of("fp16"), bytes_of("fp32")
    images = 2 * half * (dims["h"] + 2 * around) * wide
    return Footprint(
        weights_bytes=1.0 * each * (dims["r"] * dims["s"] * half + whole),
        buffers_bytes=1.0 * each * (images + whole * dims["out_h"] * wide),
        code_bytes=wafer.kernel_code_bytes,
    )
