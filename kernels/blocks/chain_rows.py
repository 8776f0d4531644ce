"""Cost of a dense layer in a trainable chain with one row per sample: its pace, and the latency of one
sample.

Symbols: K inputs and N outputs; C columns and R rows of cores with inputs, plus a last row without; w
multiply-accumulates per cycle, o = vector_start_cycles, l = wavelet_cycles; k = 2 ceil(ceil(K / 2) / R)
inputs and v = 2 ceil(ceil(N / C) / 2) outputs of a core. G inlets with r = ceil(R / G) rows each: at most
four, or at most 32 in a layer that the host feeds. An inlet receives i words per sample: all K / 2 words of a
stream between regions, or r k / 2 words from the host, which has one link per inlet. It deals out d = k / 2
(r + [1, if r > 1]) words: in each round one word to every row, then a control word. Cycles per sample of each
kind of core and of each link::

    row          forward   k ceil(v / w) + v                                products; sums down
                 backward  v / 2 + k ceil(v / w)                            gradients in; those of the weights
                           [+ v ceil(k / w) + k]                            gradients of the inputs; sums west
    first row    backward  the same [+ o + v]                               gradient of a bias below ReLU
    last row     forward   v + v / 2 [+ o + v / add] [+ o + v / max]        sums in, outputs out; bias; ReLU
                 backward  v [+ v / 2] [+ 2 o + v / max + v / mul]            gradients in and up, a second time for the inputs; slope
                           [+ o + v]                                        gradient of a bias without ReLU
    inlet        forward   i + d         backward   d                       an inlet keeps a sample and deals it out twice
    links        forward   l i, l d, l C v / 2                              in, dealt out, outputs
                 backward  l d, l (C v / 2 + 1) [, l K / 2]                 dealt out, gradients in, gradients on

A term in brackets applies if the inputs have a gradient, or if the layer has that operation. The pace is that
of the kind of compute core with the largest sum over both passes, because passes alternate on a core. An
inlet or a link sets the pace of a pass that takes longer there.

The latency of a single sample is the sum of the following steps, which do not overlap. h is the time of a
hop, t = turn_cycles, c = hop + 2 T_R + 1 the time of a relay; vertical hops include die edges, averaged over
all rows of the fabric::

    forward      l i                  the inlet keeps it          backward     l (C v / 2 + 1)        dealt to the columns
                 max(l d, row's)      dealt out, products                      slope, v / 2, R h      up the columns
                 (r + C) h + 2 t                                               [o + v + v / 2]        a second time, after a bias
                 R c + v              sums down the rows                       [v ceil(k / w) + C c + k + 3 k / 2]  sums west, collected
                 bias, ReLU, v / 2                                             or max(l d, k ceil(v / w))

The fill is the amount by which this latency exceeds the pace. In the event engine the passes overlap: they
share the cores, but have separate links and inlets.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.elements import op_rate
from wse_sim.kernels.blocks.word_rows import PAIR
from wse_sim.kernels.contract.equations import ceil_div, ceil_rate, relay_cycles
from wse_sim.kernels.contract.family import Cost, Size, Tiling

MOST_INLETS = 4  # of a region; between regions, all inlets receive the same stream
MOST_INLETS_OF_HOST = 32  # of a region that the host feeds, which has a link for each
INLET_FRACTION = 0.8  # of the compute cores' time that an inlet may take, so that they do not wait for it
Pair = tuple[Size, Size]
"""A value for the forward pass and one for the backward pass."""


@dataclass(frozen=True)
class ChainRows:
    """Cycles per sample of a layer; `tiling` counts only rows with inputs; `has_dx`: inputs have
    gradients."""

    inputs: Size
    outputs: Size
    items: frozenset[str]
    tiling: Tiling
    wafer: Wafer
    has_dx: bool

    @cached_property
    def rows(self) -> Size:
        """Number of rows of cores with inputs, R."""
        return np.minimum(self.tiling.rows, ceil_div(self.inputs, PAIR))

    @cached_property
    def k(self) -> Size:
        """Inputs of a core."""
        return PAIR * ceil_div(ceil_div(self.inputs, PAIR), self.rows)

    @cached_property
    def v(self) -> Size:
        """Outputs of a core."""
        return PAIR * ceil_div(ceil_div(self.outputs, self.tiling.cols), PAIR)

    @property
    def _sent(self) -> Size:
        """Words that all columns send per sample."""
        return ceil_div(self.outputs, self.v) * self.v / PAIR

    @cached_property
    def _products(self) -> Size:
        return 1.0 * self.k * ceil_rate(self.v, self.wafer.fma_mixed_per_cycle)

    @cached_property
    def _of_inputs(self) -> Size:
        return self.v * ceil_rate(self.k, self.wafer.fma_mixed_per_cycle)

    @cached_property
    def _start(self) -> float:
        return float(np.ceil(self.wafer.vector_start_cycles))

    @property
    def _finish(self) -> Size:
        """Bias and ReLU of the last row."""
        o, v, wafer = self._start, self.v, self.wafer
        bias = ("bias" in self.items) * (o + ceil_rate(v, wafer.add_fp16_per_cycle))
        return bias + self._bends * (o + ceil_rate(v, wafer.max_fp16_per_cycle))

    @property
    def _slope(self) -> Size:
        v, wafer = self.v, self.wafer
        rates = wafer.max_fp16_per_cycle, op_rate("mul", "fp16", wafer)
        return self._bends * (2 * self._start + sum(ceil_rate(v, rate) for rate in rates))

    @property
    def _bends(self) -> bool:
        return "relu" in self.items

    @property
    def _sums_bias(self) -> bool:
        """Whether the last row sums the gradient of the bias; with ReLU the first row does."""
        return "bias" in self.items and not self._bends

    # ---- cores that compute ------------------------------------------------------------------------------------------

    @cached_property
    def _cores(self) -> tuple[Pair, Pair, Pair, Size]:
        """Cycles per pass of the slowest kind of core, the parts for moved words and instruction starts, and
        zeros."""
        v, k, o, zero = self.v, self.k, self._start, 0.0 * (self.k * self.v)
        bias = o + v
        back = v / PAIR + self._products + (self._of_inputs + k if self.has_dx else zero)
        first = self._products + v, back + (("bias" in self.items) and self._bends) * bias
        last = (
            v + v / PAIR + self._finish + zero,
            v + self.has_dx * v / PAIR + self._slope + self._sums_bias * bias + zero,
        )
        is_last = sum(last) > sum(first)
        starts = o * (("bias" in self.items) + self._bends)
        starts_back = o * (2.0 * self._bends + self._sums_bias)
        moved = v * 1.5, v + self.has_dx * v / PAIR
        return (
            _either(is_last, last, first),
            _either(is_last, moved, (1.0 * v, v / PAIR + self.has_dx * k)),
            _either(is_last, (starts, starts_back), (0.0, o * ("bias" in self.items and self._bends))),
            zero,
        )

    # ---- inlets and links --------------------------------------------------------------------------------------------

    def through_inlet(self, inlets: Size) -> Pair:
        """Return the words per sample that one of `inlets` inlets receives, and the words, with control
        words, that it deals per pass."""
        rows = ceil_div(self.rows, inlets)
        each = self.k / PAIR
        heard = ceil_div(self.inputs, PAIR) if self.has_dx else rows * each
        return heard + 0.0 * each, each * (rows + (rows > 1))

    @cached_property
    def inlets(self) -> Size:
        """Fewest inlets that take no longer than a fraction of the cores' time; the largest number if none
        suffices."""
        limit = INLET_FRACTION * sum(self._cores[0])
        most = MOST_INLETS if self.has_dx else MOST_INLETS_OF_HOST
        found = np.minimum(most, self.rows)
        for count in range(most - 1, 0, -1):
            heard, dealt = self.through_inlet(count)
            is_enough = (heard + 2 * dealt <= limit) & (count <= self.rows)
            found = np.where(is_enough, count, found)
        return found

    @property
    def _paced(self) -> Pair:
        """Cycles per sample of each pass: those of the cores, of an inlet or of a link, whichever is
        slowest."""
        heard, dealt = self.through_inlet(self.inlets)
        link = self.wafer.wavelet_cycles
        forward = heard + dealt, link * heard, link * dealt, link * self._sent
        backward = [dealt, link * dealt, link * (self._sent + 1)]
        if self.has_dx:
            backward.append(link * ceil_div(self.inputs, PAIR))
        forward_cycles, backward_cycles = self._cores[0]
        for cycles in forward:
            forward_cycles = np.maximum(forward_cycles, cycles)
        for cycles in backward:
            backward_cycles = np.maximum(backward_cycles, cycles)
        return forward_cycles, backward_cycles

    # ---- a sample alone ----------------------------------------------------------------------------------------------

    @property
    def _alone(self) -> Pair:
        """Cycles from the first received word to the last sent word, in each pass."""
        wafer, v, k, rows, cols = self.wafer, self.v, self.k, self.rows, self.tiling.cols
        link, hop, relay = wafer.wavelet_cycles, wafer.hop_cycles, relay_cycles(wafer)
        heard, dealt = self.through_inlet(self.inlets)
        edge = _crossing_of_row(wafer)
        way = (
            ceil_div(rows, self.inlets) * (hop + edge)
            + cols * hop
            + 2 * wafer.turn_cycles
            + wafer.handover_cycles
        )
        forward = (
            link * heard
            + np.maximum(link * dealt, self._products)
            + way
            + rows * (relay + edge)
            + v
            + self._finish
            + v / PAIR
        )
        backward = link * (self._sent + 1) + cols * hop + 2 * wafer.handover_cycles
        backward = backward + self._slope + v / PAIR + rows * (hop + edge)
        if self.has_dx:
            again = self._sums_bias * (self._start + v) + v / PAIR
            collected = k / PAIR + rows * (hop + edge)
            backward = backward + again + self._of_inputs + cols * relay + 2 * k + collected
        else:
            backward = backward + np.maximum(link * dealt, self._products)
        return forward, backward

    def costs(self) -> tuple[Cost, Cost]:
        """Return the costs of the forward and the backward pass; the fill counts as idle."""
        cores, moved, starts, zero = self._cores
        out = []
        for issued, paced, alone, words, start in zip(
            cores, self._paced, self._alone, moved, starts, strict=True
        ):
            out.append(
                Cost(
                    compute=issued - start - words,
                    fabric=words + zero,
                    startup=start + zero,
                    idle=np.maximum(0.0, alone - paced),
                    stalled_input=paced - issued,
                )
            )
        return out[0], out[1]


def chain_rows(
    inputs: Size, outputs: Size, fused: Iterable[str], tiling: Tiling, wafer: Wafer, *, has_dx: bool
) -> ChainRows:
    """Return the costs of a layer; `fused` names the operations on its outputs."""
    return ChainRows(inputs, outputs, frozenset(fused), tiling, wafer, has_dx)


def _crossing_of_row(wafer: Wafer) -> float:
    """Return the extra cycles per row for crossing die edges, averaged over all rows of the fabric."""
    return wafer.die_crossing_cycles * (wafer.die_rows - 1) / max(1, wafer.rows - 1)


def _either(where: Size, these: tuple[Size, Size], those: tuple[Size, Size]) -> Pair:
    found = [np.where(where, a, b) for a, b in zip(these, those, strict=True)]
    return found[0], found[1]
