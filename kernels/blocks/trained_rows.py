"""Cost of a stationary product and its gradients in a region of a network that trains on the fabric.

Symbols: T tokens of K inputs and N outputs; R rows with inputs, and below them a row that finishes outputs; C
columns; w multiply-accumulates and m maxima of sums per cycle; o the start of an instruction, l that of a
loaded one::

    k = 2 ceil(ceil(K / 2) / R)        inputs of a row: words hold two
    v = 2 ceil(ceil(N / C) / 2)        outputs of a column

Inputs and their gradients travel in G parallel streams, results and theirs in H (:class:`Streams`). Equal groups of rows
and of columns have one stream each, so whole rows and columns round once per stream::

    k = 2 ceil(ceil(K / 2 G) / floor(R / G))        v = 2 ceil(ceil(N / 2 H) / floor(C / H))

Below, K and N are the features of one stream and C the columns of one, where they count links, moving cores and dealt
words. With H > 1 gradients arrive below the last row, and R is one less.

The busiest core or the busiest link sets the pace of a region, separately for the forward and the backward
pass. Words travel on one link in each direction::

    forward    row             T (k ceil(v / w) + v)
               last row        T v / m + T v / 2 [+ T v / 2 of a residual] [+ slope of ReLU, some tokens at a time]
               core of a row   T (l K / 2 + k / 2): it deals its words out while the link waits for it
               links           T K / 2,  T N / 2
               end             T (N / 2 + C v / 2 + 1) of a residual
    backward   row             T (v / 2 + k ceil(v / w) [+ v ceil(k / w) + k, if inputs have gradients])
               last row        T v / 2 (2 + [1, if inputs have gradients] + [1 of a residual])
                               + bias: T / p (l + p v / w), p tokens at a time
               core of a row   T 3 k / 2                                                if inputs have gradients
               links           T K / 2                                                  the same
               sums            L T K / 2 of L layers that read the same inputs, next to their regions
               end             T (C v / 2 + 1)
               sum             Q T N / 2 of Q readers of the result

Sums of input gradients run west through C columns, those of b tokens together, while the row works on the next b: it may
be ahead of them by the q = a / k tokens whose inputs fit in its queue of a elements. Here c = hop + 2 T_R + 1 is the
time from one column to the next, and l that of a word on a link::

    loop         T / (b + q) (C c + l b k)

b is the least divisor of T with which this loop takes no longer than the row (:func:`tokens_together`).

Functions but ReLU are separate kernels, and so is ReLU of a sum with a residual.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.products import chain_latency
from wse_sim.kernels.blocks.word_rows import PAIR
from wse_sim.kernels.contract.equations import ceil_div, fill_cycles, relay_cycles
from wse_sim.kernels.contract.family import Cost, Size, Tiling
from wse_sim.kernels.contract.parameters import spaced

FEED_QUEUE = 0
"""Input queue of a row, in which inputs wait."""
GROUP = 8
"""Least number of elements in a group of tokens on the last row."""
MOST_STREAMS = 256
"""Most parallel streams of a tensor that are tried."""
MOST_TOGETHER = 128
"""Most elements of a core whose sums run west together, which it has twice in fp32: 1 KiB."""


FP16_BYTES, FP32_BYTES = 2, 4


def _tried(counts: range, words: Size) -> list[int]:
    """Return the numbers of streams that are tried: some at a distance, and those with equally many of the `words` of a
    token in each, so that rows or columns may have equally many as well."""
    even = (count for count in counts if np.all(words % count == 0))
    return sorted({*spaced(counts, dense=4, step=1.4), *even})


def backward_row_cycles(k: Size, v: Size, wafer: Wafer, *, passes_on: bool) -> Size:
    """Return the issue cycles per token of a core of a row in the backward pass."""
    weights = v / PAIR + k * ceil_div(v, wafer.fma_mixed_per_cycle)
    return weights + passes_on * (v * ceil_div(k, wafer.fma_mixed_per_cycle) + k)


def tokens_together(tokens: Size, k: Size, v: Size, cols: Size, wafer: Wafer) -> Size:
    """Return the tokens of a sample whose input gradients run west through `cols` columns together: the least divisor of
    `tokens` with which the way takes no longer than the work of the cores, or the largest for which a core has room.

    >>> from wse_sim.hardware import load_wafer
    >>> [int(tokens_together(128, 8, 28, cols, load_wafer("wse2"))) for cols in (16, 256, 1024)]
    [1, 8, 16]
    """
    each = backward_row_cycles(k, v, wafer, passes_on=True)
    found = 0 * np.asarray(k) + 0 * np.asarray(v) + 0 * np.asarray(cols) + 1
    is_late = _loop_cycles(found, k, cols, wafer) > each
    for part in range(2, int(np.max(tokens)) + 1):
        if int(np.max(tokens)) % part or not np.any(is_late):
            continue
        grows = is_late & (part * k <= MOST_TOGETHER)
        found = np.where(grows, part, found)
        is_late = grows & (_loop_cycles(found, k, cols, wafer) > each)
    return found


def _loop_cycles(together: Size, k: Size, cols: Size, wafer: Wafer) -> Size:
    """Return the cycles per token of sums that run west, if `together` tokens do so together."""
    ahead = PAIR * wafer.input_queue_wavelets[FEED_QUEUE] // k  # of several samples, if one has fewer tokens
    way = cols * relay_cycles(wafer) + together * k * wafer.wavelet_cycles
    return way / (together + ahead)


class Streams(NamedTuple):
    """Parallel streams of the inputs of a layer, and of its results."""

    inputs: Size = 1
    results: Size = 1


ONE_EACH = Streams()


@dataclass(frozen=True)
class TrainedRows:
    """Cycles per sample of a layer, forward and backward; the rows of `tiling` are those with inputs."""

    tokens: Size
    inputs: Size
    features: Size
    fused: str
    tiling: Tiling
    wafer: Wafer
    passes_on: bool  # gradients of the inputs are requested
    layers: int = 1  # that read the same inputs; a core sums their gradients
    streams: Streams = ONE_EACH
    readers: int = 1  # of the result; a core sums their gradients

    def with_streams(self, fewest: Streams, most: Streams) -> TrainedRows:
        """Return the layer with the fastest numbers of streams, `fewest` to `most`: those of the results first, as if
        inputs had as many as they need; with the fewest if it has room for none of them."""
        heard, given = (
            range(int(low), max(int(low), min(int(high), MOST_STREAMS)) + 1)
            for low, high in zip(fewest, most, strict=True)
        )
        found = self._fastest(given, lambda count: Streams(fewest.inputs, count), heard=False)
        chosen = found.streams.results
        return found._fastest(heard, lambda count: Streams(count, chosen), heard=True)

    def _fastest(self, counts: range, streams: Callable[[int], Streams], *, heard: bool) -> TrainedRows:
        """Return the layer with the fastest of `streams` of these counts; with `heard`, streams of the inputs count."""
        least = np.inf + 0.0 * self.v
        best = Streams(*(one + 0 * self.v for one in streams(counts.start)))
        for count in _tried(counts, ceil_div(self.inputs if heard else self.features, PAIR)):
            tried = replace(self, streams=streams(count))
            cycles = np.where(tried.has_room, tried.cycles(heard=heard), np.inf)
            is_less = cycles < least
            least = np.where(is_less, cycles, least)
            best = Streams(
                *(np.where(is_less, new, old) for new, old in zip(tried.streams, best, strict=True))
            )
        return replace(self, streams=best)

    @property
    def has_room(self) -> Size:
        """Whether every stream has a row, or a column, and at least one word."""
        count, results = self.streams
        # A region leaves a row to the gradients of several streams of results.
        inputs_fit = (count <= np.maximum(1, self.tiling.rows - 1)) & (count <= ceil_div(self.inputs, PAIR))
        results_fit = (results <= self.cols) & (results <= ceil_div(self.features, PAIR))
        return inputs_fit & results_fit & ((self.tiling.rows > 1) | np.equal(results, 1))

    def cycles(self, *, heard: bool = True) -> Size:
        """Return the cycles of a sample, both passes; without `heard` as if inputs had as many streams as needed."""
        return self._forward(heard=heard)[1] + self._backward(heard=heard)[1]

    @cached_property
    def items(self) -> tuple[str, ...]:
        """Work on the outputs, in order."""
        return tuple(part.strip() for part in self.fused.split(",") if part.strip())

    @property
    def cols(self) -> Size:
        """Number of compute columns: a narrow region gives one to the cores that send input gradients."""
        return np.where(self._is_narrow, np.maximum(1, self.tiling.cols - 1), self.tiling.cols)

    @property
    def _is_narrow(self) -> Size:
        """Whether a region has one moving column, but needs two."""
        efficiency = self.wafer.pipeline_efficiency
        return self.passes_on & (self.tiling.cols * (1 - efficiency) <= efficiency)

    @cached_property
    def rows(self) -> Size:
        """Number of rows with inputs, R."""
        below = np.greater(self.streams.results, 1)  # a row of cores that deal gradients out
        return np.maximum(1, np.minimum(self.tiling.rows - below, ceil_div(self.inputs, PAIR)))

    @cached_property
    def k(self) -> Size:
        """Inputs of a row."""
        return PAIR * ceil_div(self._words_in, np.maximum(1, self.rows // self.streams.inputs))

    @cached_property
    def v(self) -> Size:
        """Outputs of a column."""
        return PAIR * ceil_div(self._words_out, self._dealt)

    @property
    def _words_in(self) -> Size:
        """Words per token of a stream of inputs."""
        return ceil_div(ceil_div(self.inputs, PAIR), self.streams.inputs)

    @property
    def _words_out(self) -> Size:
        """Words per token of a stream of results."""
        return ceil_div(ceil_div(self.features, PAIR), self.streams.results)

    @property
    def _dealt(self) -> Size:
        """Columns with outputs of one stream."""
        return np.maximum(1, self.cols // self.streams.results)

    @property
    def _has_relu(self) -> bool:
        return "relu" in self.items

    @property
    def _has_residual(self) -> bool:
        return "residual" in self.items

    @cached_property
    def _groups(self) -> tuple[Size, Size]:
        """Groups of tokens of a sample on the last row, and elements of one group."""
        tokens = int(np.max(self.tokens))
        at_once = np.full_like(self.v, tokens)
        for part in range(tokens - 1, 0, -1):
            if tokens % part == 0:
                at_once = np.where(part * self.v >= GROUP, part, at_once)
        return tokens // at_once, at_once * self.v

    def held_bytes(self, samples: int) -> Size:
        """Return the bytes of a core of the last row, or next to a row, with `samples` in flight: groups of outputs and of
        residuals wait in two buffers each, groups of gradients in two more with their fp32 sums; derivatives of ReLU, and
        inputs, stay for all samples."""
        size, (_, group) = self.tokens * self.v, self._groups
        waiting = 2 * FP16_BYTES * (1 + self._has_residual) * group
        kept = samples * FP16_BYTES * size * self._has_relu
        last = (
            waiting + kept + 2 * FP16_BYTES * group + ("bias" in self.items) * FP32_BYTES * (group + self.v)
        )
        beside = FP16_BYTES * (samples * self.tokens * self.k + 2 * self.k + PAIR * self._words_in)
        return np.maximum(last, beside)

    # ---- forward ---------------------------------------------------------------------------------------------------

    @property
    def forward(self) -> tuple[Size, Size]:
        """Issue cycles of the busiest core, and cycles per sample, which may be longer because of links or
        moving cores."""
        return self._forward(heard=True)

    def _forward(self, *, heard: bool) -> tuple[Size, Size]:
        t, k, v = self.tokens, self.k, self.v
        links, moving = [t * self._words_out], [0.0 * v]
        if heard:
            links.append(t * self._words_in)
            moving.append(t * (self.wafer.wavelet_cycles * self._words_in + k / PAIR))
        if self._has_residual:
            moving.append(t * (self._words_out + self._dealt * v / PAIR + 1))
        issued = np.maximum(self._sums(self.k), self._last_forward())
        return issued, self._paced(issued, moving, links)

    def _sums(self, inputs: Size) -> Size:
        return self.tokens * (inputs * ceil_div(self.v, self.wafer.fma_mixed_per_cycle) + self.v)

    def _last_forward(self) -> Size:
        wafer, size = self.wafer, self.tokens * self.v
        maxima = min(1.0, wafer.max_fp32_per_cycle) if self._has_relu else 1.0
        cycles = size / maxima + size / PAIR * (1 + self._has_residual)
        if not self._has_relu:
            return cycles
        groups, elements = self._groups
        start = np.ceil(wafer.vector_start_loaded_cycles)
        return cycles + groups * (start + np.ceil(elements / wafer.max_fp16_per_cycle))

    # ---- backward --------------------------------------------------------------------------------------------------

    @property
    def of_inputs(self) -> Size:
        """Cycles of the gradient of the inputs on a row."""
        return self.tokens * (self.v * ceil_div(self.k, self.wafer.fma_mixed_per_cycle) + self.k)

    @property
    def backward(self) -> tuple[Size, Size]:
        """Issue cycles of the busiest core and cycles per sample in the backward pass, as :attr:`forward`."""
        return self._backward(heard=True)

    def _backward(self, *, heard: bool) -> tuple[Size, Size]:
        t, k, v, size = self.tokens, self.k, self.v, self.tokens * self.v
        row = t * backward_row_cycles(k, v, self.wafer, passes_on=self.passes_on)
        links, moving = [t * (self._dealt * v / PAIR + 1)], [0.0 * size]
        if self.passes_on:
            sent = self._words_in if heard else 0 * k
            links.append(t * sent)
            moving += [t * 1.5 * k, t * _loop_cycles(self._together, k, self.cols, self.wafer)]
            moving.append((self.layers > 1) * self.layers * t * sent)
        moving.append((self.readers > 1) * self.readers * t * self._words_out)
        last = size / PAIR * (2 + self.passes_on + self._has_residual)
        if "bias" in self.items:
            groups, elements = self._groups
            start = np.ceil(self.wafer.vector_start_loaded_cycles)
            last = last + groups * (start + np.ceil(elements / self.wafer.fma_mixed_per_cycle))
        issued = np.maximum(row, last)
        return issued, self._paced(issued, moving, links)

    @property
    def _together(self) -> Size:
        """Tokens whose input gradients run west together."""
        return tokens_together(self.tokens, self.k, self.v, self.cols, self.wafer)

    @property
    def together_bytes(self) -> Size:
        """Bytes of a core for the input gradients of tokens that run west together, beyond those of one token."""
        return 2 * FP32_BYTES * (self._together - 1) * self.k

    def _paced(self, issued: Size, moving: list[Size], links: list[Size]) -> Size:
        slowest = issued
        for cycles in (*moving, *(link * self.wafer.wavelet_cycles for link in links)):
            slowest = np.maximum(slowest, cycles)
        return slowest

    # ---- kernels ---------------------------------------------------------------------------------------------------

    def forward_cost(self) -> Cost:
        """Return the cost of the product and its fused operations."""
        issued, cycles = self.forward
        rows, cols = self.tiling.rows + 1, self.tiling.cols
        idle = fill_cycles(rows, cols, self.wafer) + chain_latency(rows, self.wafer)
        return Cost(compute=issued, stalled_input=cycles - issued, idle=idle)

    def weight_gradient_cost(self) -> Cost:
        """Return the cost of the backward pass except for the gradient of the inputs."""
        issued, cycles = self.backward
        return Cost(compute=issued - self.passes_on * self.of_inputs, stalled_input=cycles - issued)

    def input_gradient_cost(self) -> Cost:
        """Return the cost of the gradient of the inputs; its sums run along a row."""
        rows, cols = self.tiling.rows + 1, self.tiling.cols
        idle = fill_cycles(rows, cols, self.wafer) + chain_latency(cols, self.wafer)
        return Cost(compute=1.0 * self.of_inputs, idle=idle)
