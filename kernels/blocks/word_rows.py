"""Cost of a stationary product in a region of a whole model on the fabric: whole words; the last row finishes
outputs.

Symbols: T tokens of W words of inputs (two elements each) and N outputs, R rows and C columns; w
multiply-accumulates per cycle, o = vector_start_cycles; v = 2 ceil(ceil(N / C) / 2) outputs of a column, m
words of a row.  Cycles per sample::

    row          T (2 m ceil(v / w) + v)
    last row     the same for its words, plus T v / 2 words sent, plus o + T v / rate per operation

The last row gets fewer words, so that it takes no longer than the others. If only bias, residual and ReLU are
fused, it may have none: the first row adds the bias, the last row finishes the sums as they arrive (T (v +
v / 2), with ReLU v / rate instead of v, with a residual v / 2 more, and ReLU after it a separate operation),
and R - 1 rows share the words. Otherwise the rows wait while the last row finishes outputs: the time of its
operations and sends, minus the time of 14 / v tokens, whose sums fit in the queues between two cores. This
sets the pace of the region; the waiting cores are stalled on input.

A residual waits in stores between the inlets and its source. The last store of each of its k bundles receives
every word, deals it out to its columns, and ends a token with a control word. Bundles that enter over other
rows than the last one share the links of sums down a column; l is the time of a word on a link::

    store        T (2 n + 1)         link    T l (v + n),  n = ceil(N / 2 k) words of a bundle

If the last row has no inputs, stores hold parts of samples, and share two samples in all moving cores except
the inlets (C / efficiency - C columns, less one; a narrow region gives up a column for one). Otherwise k = 1, and one store holds two samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.elements import op_rate
from wse_sim.kernels.blocks.products import chain_latency
from wse_sim.kernels.contract.equations import SPECIAL_FUNCTIONS, bytes_of, ceil_div, fill_cycles
from wse_sim.kernels.contract.family import Cost, Size, Tiling
from wse_sim.kernels.contract.parameters import spaced

PAIR = 2  # fp16 elements of a word
QUEUED_WORDS = 14  # of sums between two cores: output queue, router, input queue
MOST_HEARD = 3  # bundles that the core next to a row can receive, one microthread each
LEAST_MOVING = 2  # moving columns: one of inlets, one of stores
FLOWING = ("bias", "residual", "relu")
"""Operations that the last row runs on sums as they arrive, in this order."""


class _Way(NamedTuple):
    """A variant of finishing outputs, with its cycles per sample."""

    issued: Size
    stalled: Size
    beside: Size  # of the cores that store a residual, and of the links that it shares
    stores: Size  # cores that share two samples of the residual
    fed: Size  # rows with inputs
    each: Size  # words of the fullest of them
    is_even: Size  # whether no row has two words more than another

    @property
    def paced(self) -> Size:
        return self.issued + self.stalled

    @property
    def cycles(self) -> Size:
        return np.maximum(self.paced, self.beside)


@dataclass(frozen=True)
class WordRows:
    """A layer of `tokens` tokens, `words` words of inputs and `outputs`.

    With `waits`, the time that rows wait for the last one is included. With `most_bundles`, the cores next to the rows are included: the inlet that receives the bundles with its row's words, and the
    stores of a residual, which may come in `residuals` bundles. With `results` bundles of results, each has the
    outputs of a column.
    """

    tokens: Size
    words: Size
    outputs: Size
    fused: str
    tiling: Tiling
    wafer: Wafer
    waits: bool = False
    most_bundles: int = 0
    residuals: int = 1
    results: int = 0

    def cost(self) -> Cost:
        """Return the cost per sample: cycles of the busiest core, and its stall at the pace of the region."""
        issued, stalled, beside, *_ = self._chosen
        if self.most_bundles:
            more, heard = self._heard()
            issued = issued + self.tokens * more
            stalled = np.maximum(stalled, np.maximum(self.tokens * heard, beside) - issued)
        if self.results:
            stalled = np.where(self.outputs // self.v >= self.results, stalled, np.inf)
        sums = 1.0 * self.tokens * self.v
        rows, cols = self.tiling.rows, self.tiling.cols
        idle = fill_cycles(rows, cols, self.wafer) + chain_latency(rows, self.wafer)
        return Cost(compute=issued - sums, fabric=sums, idle=idle + 0.0 * self.v, stalled_input=stalled)

    @property
    def store_bytes(self) -> Size:
        """Bytes of the fullest store of a residual: its part of two samples."""
        return 2 * bytes_of("fp16") * self.tokens * self.outputs / self._chosen.stores

    @cached_property
    def items(self) -> tuple[str, ...]:
        """Work on the outputs, in order."""
        return tuple(part.strip() for part in self.fused.split(",") if part.strip())

    @cached_property
    def v(self) -> Size:
        """Outputs of a column."""
        return PAIR * ceil_div(ceil_div(self.outputs, self._cols), PAIR)

    @cached_property
    def _cols(self) -> Size:
        """Columns that compute: a narrow region gives one up to the stores of a residual."""
        cols = self.tiling.cols
        if "residual" not in self.items:
            return cols
        is_narrow = moving_columns(cols, self.wafer) < LEAST_MOVING
        return np.where(is_narrow, np.maximum(1, cols - 1), cols)

    @property
    def _per_word(self) -> Size:
        return PAIR * ceil_div(self.v, self.wafer.fma_mixed_per_cycle)

    @cached_property
    def _rows(self) -> Size:
        """Rows with words."""
        return np.minimum(self.tiling.rows, self.words)

    @property
    def _rows_above(self) -> Size:
        """Rows with words, if the last row has none."""
        return np.maximum(1, np.minimum(self.tiling.rows - 1, self.words))

    @cached_property
    def _chosen(self) -> _Way:
        """The fastest variant of finishing outputs."""
        has_residual = "residual" in self.items
        issued, stalled, fullest = self._finishing()
        one, rows = np.ones_like(issued), self._rows
        stored = has_residual * self.tokens * residual_cycles(self.outputs, self.v, 1, self.wafer) + 0.0 * one
        found = _Way(issued, stalled * self.waits, stored, one, rows, fullest, one < 1)
        if not is_light(self.items):
            return found
        moving = np.maximum(LEAST_MOVING, moving_columns(self.tiling.cols, self.wafer))
        rows_above = self._rows_above
        other = _Way(
            self._flowing() + 0.0 * one,
            0.0 * one,
            self._handed() + 0.0 * one,
            np.maximum(1, self.tiling.rows * (moving - 1)) * one,
            rows_above,
            ceil_div(self.words, rows_above),
            one > 0,
        )
        new, old = other.cycles, found.cycles
        is_taken = (new < old) | ((new == old) & (other.paced <= found.paced))
        return _Way(*(np.where(is_taken, a, b) for a, b in zip(other, found, strict=True)))

    def _handed(self) -> Size:
        """Return the cycles of the stores of a residual and of the links that it shares, in the fastest number
        of bundles."""
        if "residual" not in self.items:
            return 0.0
        most = np.minimum(self._rows_above + 1, self.outputs // self.v)
        ways = [
            np.where((k <= most) | (k == 1), residual_cycles(self.outputs, self.v, k, self.wafer), np.inf)
            for k in spaced(range(1, self.residuals + 1))
        ]
        return self.tokens * np.minimum.reduce(ways)

    def _heard(self) -> tuple[Size, Size]:
        """Return, per token, the cycles that a row works longer because bundles end where rows do, and those
        of its inlet, which receives all bundles with words of its row: for the fastest number of bundles.

        A row has words of up to MOST_HEARD bundles; where rows have equally many words, groups of them may have one
        bundle each.
        """
        way, most = self._chosen, self.most_bundles
        each, rows = way.each, way.fed
        least, more, heard = np.inf + 0.0 * each, 0.0 * each, np.inf + 0.0 * each
        total = int(np.max(self.words))
        divisors = [count for count in range(1, min(most, total) + 1) if total % count == 0]
        counts: list[Size] = [*divisors, *spaced(range(2, most + 1)), np.minimum(rows, most)]
        for count in counts:
            size = ceil_div(self.words, count)
            is_whole = np.equal(self.words % count, 0)
            alone = ceil_div(size, np.maximum(1, rows // count))
            several = np.where(
                np.logical_and(way.is_even, np.equal(count % rows, 0)),
                count // rows,
                np.minimum(count, ceil_div(each - 1, np.maximum(1, self.words // count)) + 1.0),
            )
            has_rows = np.logical_or(is_whole, np.equal(rows % count, 0))
            ways = (
                (
                    alone,
                    1.0,
                    np.logical_and(way.is_even, np.logical_and(np.greater_equal(rows, count), has_rows)),
                ),
                (each, several, np.less_equal(several, MOST_HEARD)),
            )
            for words, bundles, is_possible in ways:
                extra = np.maximum(0, words - each) * self._per_word
                arriving = hearing_cycles(bundles * size, words, self.wafer)
                cycles = np.where(is_possible, np.maximum(way.paced / self.tokens + extra, arriving), np.inf)
                is_less = cycles < least
                least = np.where(is_less, cycles, least)
                more, heard = np.where(is_less, extra, more), np.where(is_less, arriving, heard)
        return more, heard

    def _finishing(self) -> tuple[Size, Size, Size]:
        """Return, for a last row that multiplies as well, the issue cycles of the busiest core, the wait
        cycles, and the words of a row."""
        tokens, words, v, per_word, rows = self.tokens, self.words, self.v, self._per_word, self._rows
        o, size = np.ceil(self.wafer.vector_start_cycles), tokens * v
        moved = size / PAIR * (1 + ("residual" in self.items))
        finish = moved + sum(_item_cycles(item, size, self.wafer) for item in self.items)
        others = np.maximum(1, rows - 1)
        less = ceil_div(finish, tokens * per_word)
        most = np.minimum(ceil_div(words + less, rows), ceil_div(words - 1, others))
        last = np.maximum(np.maximum(1, np.minimum(most - less, words // rows)), words - most * others)
        last = np.where(rows > 1, last, words)
        alone = np.where(rows > 1, 0.0, tokens * (o + np.ceil(v / self.wafer.mov_fp32_per_cycle) - v))
        most_above = ceil_div(words - last, others)
        above = np.where(rows > 1, tokens * (most_above * per_word + v), 0.0)
        busiest = np.maximum(above, tokens * (last * per_word + v) + finish + alone)
        held_up = np.maximum(0.0, finish - busiest / tokens * QUEUED_WORDS / v)
        fullest = np.where(rows > 1, np.maximum(most_above, last), words)
        return busiest, np.where(rows > 1, held_up, 0.0), fullest

    def _flowing(self) -> Size:
        """Return the cycles if the last row has no inputs; infinite for a single row."""
        each = ceil_div(self.words, self._rows_above) * self._per_word + self.v
        last = flowing_cycles(self.items, self.v, self.wafer)
        return np.where(self.tiling.rows > 1, self.tokens * np.maximum(each, last), np.inf)


def is_light(items: Sequence[str]) -> bool:
    """Return whether a last row without inputs can finish outputs with these operations as sums arrive."""
    return tuple(items) == tuple(item for item in FLOWING if item in items)


def flowing_cycles(items: Sequence[str], v: Size, wafer: Wafer) -> Size:
    """Return the cycles per token of a last row that finishes `v` sums of a column as they arrive, and sends
    them."""
    if "residual" not in items:
        rate = min(1.0, wafer.max_fp32_per_cycle) if "relu" in items else 1.0
        return v / rate + v / PAIR
    return 2.0 * v + (_item_cycles("relu", v, wafer) if "relu" in items else 0.0)


def moving_columns(cols: Size, wafer: Wafer) -> Size:
    """Return the moving columns of a region with `cols` compute columns."""
    return np.ceil(cols / wafer.pipeline_efficiency - 1e-9) - cols


def residual_cycles(outputs: Size, v: Size, bundles: int, wafer: Wafer) -> Size:
    """Return the cycles per token of a residual in `bundles`. Its last store receives all words, deals them
    out and ends with a control word; a link that it shares with sums may take longer.

    >>> from wse_sim.hardware import load_wafer
    >>> [float(residual_cycles(768, 36, count, load_wafer("wse2"))) for count in (1, 2, 4)]
    [769.0, 385.0, 193.0]
    """
    words = ceil_div(ceil_div(outputs, PAIR), bundles)
    shared = wafer.wavelet_cycles * (words + v * (bundles > 1))
    return np.maximum(PAIR * words + 1.0, shared)


def hearing_cycles(words: Size, each: Size, wafer: Wafer) -> Size:
    """Return the cycles per token of an inlet that receives `words` words and deals out its row's `each`
    words.

    All received words arrive over one ramp, whatever their bundles; the inlet deals out in the cycles between
    them. Dealt words count twice: a word advances when the last of its readers takes it, and inlets deal at
    different times.

    >>> from wse_sim.hardware import load_wafer
    >>> float(hearing_cycles(16, 3, load_wafer("wse2")))
    22.0
    """
    return np.maximum(wafer.wavelet_cycles * words, 1.0 * words + 2 * each)


def _item_cycles(item: str, size: Size, wafer: Wafer) -> Size:
    if item in SPECIAL_FUNCTIONS:
        return np.ceil(wafer.vector_start_cycles) + size * wafer.special_element_cycles
    return np.ceil(wafer.vector_start_cycles) + np.ceil(size / op_rate(item, "fp16", wafer))
