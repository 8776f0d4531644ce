"""Cost of a convolution that trains on the whole fabric: the busiest of its cores, or of the links at its
ends.

Symbols: an image of H x W pixels of C channels; N filters of r x s taps; T pixels of the result; R rows and
C' columns of cores, the last row without inputs; k = 2 m inputs and v = 2 ceil(ceil(N / C') / 2) outputs of a
core; w multiply-accumulates and x maxima per cycle, o and l the start of an instruction (l: only its
descriptors advance), c cycles of a word on a link::

                 forward                              weights                    additional for the image
    row          T (k ceil(v / w) + v)                T (v / 2 + k ceil(v / w))  T (v ceil(k / w) + k)
    last row     T (v + v / 2) + T / p (l + p v / x)  T v + o + T v / w          T v / 2
    its inlet    c H W C / 2 + T m                    T m                        (below)
    a link       c T N / 2                            c T (u v / 2 + 1)          c max(0, H W C / 2 - T (u v / 2 + 1))

u = ceil(N / v) columns in use. Each gets a part of the gradients of every pixel, and a control word follows where there are
several. m = ceil(r s / e) words of a row if the e rows of each pair of channels are at most R - 1 in all, else those
of an even partition; P pairs of channels of a row. p is the number of result pixels with at least 16 outputs
of a column.

The gradient of an image leaves line by line of the H' lines of the result, each of which finishes a = c H W C
/ (2 H') of its words. These leave during the sums of the next line, the last ones during the pass of the
weights (B cycles). Between two lines the inlets round finished words to fp16 and add them over the rows of a
pair, while the rows wait; with b cycles of a row for a line::

    b + (H' - 1) max(a, b) + max(a, B) + H W (P + 1)            H W P if a row has all of its pairs

The inlet of a row issues, per sample, T (k + m) cycles for the sums and the inputs of its row, H W (P + 1) (or P) for words
to and from other rows and words that leave, and the moves out of the planes and their zeros, at y elements per cycle. The
larger of both numbers of cycles is followed by a wait: the inlet sends inputs for the weights only when it has the last
sums, which pass all columns, and a row starts with the next sums when it has its last inputs::

    2 H W P / y + P (H W_2 - 4 n q) / y + (u - 1) (relay + hop) + handover

n of the result's lines finish lines of the image; a line of a plane has W_2 = 2 (W + 2 q) elements with its padding q.

The backward pass consists of two kernels: the cost of the image kernel is the total minus the cost of the
weights alone. The last row stores two images of gradients, derivatives of one and, with a bias, fp32 sums of
its gradients: 10 T v bytes, 6 without. Program: :mod:`wse_sim.whole.trained.convolution`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.products import chain_latency
from wse_sim.kernels.blocks.word_rows import PAIR
from wse_sim.kernels.contract.equations import ceil_div, fill_cycles, relay_cycles
from wse_sim.kernels.contract.family import Attrs, Cost, Dims, Size, Tiling
from wse_sim.kernels.families.conv2d.attributes import Conv2dAttributes

GROUP = 16
"""Least number of elements of the last row per instruction on slopes."""


def trained_cost(dims: Dims, tiling: Tiling, wafer: Wafer, phase: Phase, attrs: Attrs) -> Cost:
    """Return the cost of one image: forward, weight gradient or input gradient."""
    stated = Conv2dAttributes.of(attrs)
    if phase is Phase.INPUT_GRADIENT:
        turned = {"h": "out_h", "w": "out_w", "c": "k", "k": "c", "out_h": "h", "out_w": "w"}
        dims = {name: dims[turned.get(name, name)] for name in dims}
    region = _Region(dims, tiling, wafer)
    if phase is Phase.FORWARD:
        return _cost(region.forward(stated.fused)) + Cost(idle=region.fill)
    alone = region.backward(has_bias=stated.has_bias, has_dx=False)
    if phase is Phase.WEIGHT_GRADIENT:
        return _cost(alone)
    both = region.backward(has_bias=stated.has_bias, has_dx=True)
    return Cost(compute=both[0] - alone[0], stalled_input=_waits(both) - _waits(alone))


def last_row_bytes(dims: Dims, tiling: Tiling, wafer: Wafer, attrs: Attrs) -> Size:
    """Return the bytes of a last-row core with one image in flight."""
    region = _Region(dims, tiling, wafer)
    each = 10 if Conv2dAttributes.of(attrs).has_bias else 6
    return each * region.pixels * region.outputs + wafer.kernel_code_bytes


Busiest = tuple[Size, Size]
"""Cycles of the busiest compute core, and of the slowest resource, for which it may wait."""


def _cost(busiest: Busiest) -> Cost:
    return Cost(compute=busiest[0], stalled_input=_waits(busiest))


def _waits(busiest: Busiest) -> Size:
    core, other = busiest
    return np.maximum(0.0, other - core)


@dataclass(frozen=True)
class _Region:
    """A forward convolution on a rectangle of cores."""

    dims: Dims
    tiling: Tiling
    wafer: Wafer

    @property
    def pixels(self) -> Size:
        """Pixels of the result, T."""
        return self.dims["b"] * self.dims["out_h"] * self.dims["out_w"]

    @property
    def image_words(self) -> Size:
        """Words of an image."""
        return self.dims["b"] * self.dims["h"] * self.dims["w"] * self.dims["c"] / PAIR

    @property
    def result_words(self) -> Size:
        """Words of a result."""
        return self.pixels * self.dims["k"] / PAIR

    @property
    def outputs(self) -> Size:
        """Outputs of a core, v."""
        return PAIR * ceil_div(ceil_div(self.dims["k"], self.tiling.cols), PAIR)

    @property
    def words(self) -> Size:
        """Words of a row, m."""
        c, taps = self.dims["c"], self.dims["r"] * self.dims["s"]
        whole = self.dims["r"] * ceil_div(self.dims["s"] * c, PAIR)
        rows = np.minimum(np.maximum(1, self.tiling.rows - 1), whole)
        even = ceil_div(whole, rows)
        if c % PAIR:
            return even
        each = ceil_div(taps, even)  # rows of a pair of channels
        return np.where(each * (c // PAIR) <= rows, ceil_div(taps, each), even)

    @property
    def pairs(self) -> Size:
        """Pairs of channels of a row: its words may begin in one and end in the next."""
        c, taps = self.dims["c"], self.dims["r"] * self.dims["s"]
        most = np.minimum(c // PAIR, ceil_div(self.words, taps) + (self.words % taps > 1))
        each = ceil_div(taps, self.words)
        return np.where(each * (c // PAIR) <= np.maximum(1, self.tiling.rows - 1), 1, np.maximum(1, most))

    @property
    def fill(self) -> Size:
        """Cycles until the first result."""
        rows, cols = self.tiling.rows, self.tiling.cols
        return fill_cycles(rows, cols, self.wafer) + chain_latency(rows, self.wafer) + 0.0 * self.outputs

    def forward(self, fused: str) -> Busiest:
        """Return the cycles of an image forward."""
        pixels, m, v, wafer = self.pixels, self.words, self.outputs, self.wafer
        row = pixels * (PAIR * m * ceil_div(v, wafer.fma_mixed_per_cycle) + v)
        last = pixels * v * 1.5
        if "relu" in fused:
            last = pixels * (v / min(1.0, wafer.max_fp32_per_cycle) + v / PAIR)
            start = np.ceil(wafer.vector_start_loaded_cycles)
            group = self._group()
            last = last + pixels / group * (start + np.ceil(group * v / wafer.max_fp16_per_cycle))
        # The link of the image waits while its inlet deals.
        inlet = wafer.wavelet_cycles * self.image_words + pixels * m
        link = wafer.wavelet_cycles * self.result_words
        return np.maximum(row, last), np.maximum(inlet, link)

    def _group(self) -> Size:
        """Pixels of a group, p: the smallest divisor of the pixels that gives at least GROUP outputs, or all
        pixels."""
        pixels = int(self.pixels)
        divisors = np.array([p for p in range(1, pixels + 1) if pixels % p == 0])
        wanted = np.minimum(ceil_div(GROUP, self.outputs), pixels)
        return divisors[np.searchsorted(divisors, wanted)]

    def _line_by_line(self, weights: Size, image: Size) -> Size:
        """Return the cycles of a backward pass with the image gradient; rows take `weights` and `image`
        cycles for the products."""
        lines, plane = self.dims["out_h"], self.dims["b"] * self.dims["h"] * self.dims["w"]
        leaves = self.wafer.wavelet_cycles * self.image_words / lines
        shared = self.words < self.dims["r"] * self.dims["s"]
        between = plane * (self.pairs + shared)
        of_line = image / lines
        return of_line + (lines - 1) * np.maximum(leaves, of_line) + np.maximum(leaves, weights) + between

    def _inlet_cycles(self) -> Size:
        """Return the cycles that an inlet issues for the gradients of an image and of the weights."""
        dims, rate = self.dims, self.wafer.mov_fp32_per_cycle
        plane, lines = dims["h"] * dims["w"], np.minimum(dims["h"], dims["out_h"])
        around = np.maximum(0, dims["s"] - 1) // 2  # of a line of a plane, on either side
        wide = dims["h"] * PAIR * (dims["w"] + 2 * around) - lines * PAIR * 2 * around
        shared = self.words < dims["r"] * dims["s"]
        moved = self.pairs * (PAIR * plane + wide) / rate + plane * (self.pairs + shared)
        return self.pixels * self.words * (PAIR + 1) + dims["b"] * moved

    def _ripple(self) -> Size:
        """Return the cycles of the last sums on their way along a row to its inlet."""
        columns = ceil_div(self.dims["k"], self.outputs)
        return (columns - 1) * (relay_cycles(self.wafer) + self.wafer.hop_cycles) + self.wafer.handover_cycles

    def backward(self, *, has_bias: bool, has_dx: bool) -> Busiest:
        """Return the cycles of an image backward, with or without the gradient of the image."""
        pixels, m, v, wafer = self.pixels, self.words, self.outputs, self.wafer
        k, w = PAIR * m, wafer.fma_mixed_per_cycle
        row = pixels * (v / PAIR + k * ceil_div(v, w) + has_dx * (v * ceil_div(k, w) + k))
        last = pixels * v / PAIR * (2 + has_dx)
        if has_bias:
            last = last + np.ceil(wafer.vector_start_cycles) + np.ceil(pixels * v / w)
        inlet = pixels * m
        # The gradients of a pixel are dealt to the columns one after the other, with zeros beyond the filters and a control word.
        columns = ceil_div(self.dims["k"], v)
        link = wafer.wavelet_cycles * pixels * (columns * v / PAIR + (columns > 1))
        if has_dx:
            lines = self._line_by_line(
                pixels * (v / PAIR + k * ceil_div(v, w)), pixels * (v * ceil_div(k, w) + k)
            )
            inlet = np.maximum(lines, self._inlet_cycles()) + self._ripple()
            link = np.maximum(link, wafer.wavelet_cycles * self.image_words)
        return np.maximum(row, last), np.maximum(inlet, link)
