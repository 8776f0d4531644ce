"""Cost of a stationary product in a region of a whole model on the fabric: whole words; the last row finishes
outputs.

Symbols: T tokens of W words of inputs (two elements each) and N outputs, R rows and C columns; w
multiply-accumulates per cycle, o = vector_start_cycles; v = 2 ceil(ceil(N / C) / 2) outputs of a column, m = ceil(W / (R - 1))
words of a row.  Cycles per sample::

    row          T (2 m ceil(v / w) + v)
    last row     T (v + v / 2), with ReLU v / rate instead of v, with a residual v / 2 more, and ReLU after it a separate operation

The first row adds the bias, the last row finishes the sums as they arrive and has no words.

A residual waits in stores between the inlets and its source. The last store of each of its k bundles receives
every word, deals it out to its columns, and ends a token with a control word. Bundles that enter over other
rows than the last one share the links of sums down a column; l is the time of a word on a link::

    store        T (2 n + 1)         link    T l (v + n),  n = ceil(N / 2 k) words of a bundle

Stores hold parts of samples, and share two samples in all moving cores except the inlets (C / efficiency - C columns, less one;
a narrow region gives up a column for one).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

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


@dataclass(frozen=True)
class WordRows:
    """A layer of `tokens` tokens, `words` words of inputs and `outputs`.

    With `most_bundles`, the cores next to the rows are included: the inlet that receives the bundles with its row's words, and the
    stores of a residual, which may come in `residuals` bundles. With `results` bundles of results, each has the
    outputs of a column.
    """

    tokens: Size
    words: Size
    outputs: Size
    fused: str
    tiling: Tiling
    wafer: Wafer
    most_bundles: int = 0
    residuals: int = 1
    results: int = 0

    def cost(self) -> Cost:
        """Return the cost per sample: cycles of the busiest core, and its stall at the pace of the region."""
        issued = self._issued
        stalled = 0.0 * issued
        if self.most_bundles:
            more, heard = self._heard()
            issued = issued + self.tokens * more
            stalled = np.maximum(stalled, np.maximum(self.tokens * heard, self._handed()) - issued)
        if self.results:
            stalled = np.where(self.outputs // self.v >= self.results, stalled, np.inf)
        sums = 1.0 * self.tokens * self.v
        rows, cols = self.tiling.rows, self.tiling.cols
        idle = fill_cycles(rows, cols, self.wafer) + chain_latency(rows, self.wafer)
        return Cost(compute=issued - sums, fabric=sums, idle=idle + 0.0 * self.v, stalled_input=stalled)

    @property
    def store_bytes(self) -> Size:
        """Bytes of the fullest store of a residual: its part of two samples."""
        moving = np.maximum(LEAST_MOVING, moving_columns(self.tiling.cols, self.wafer))
        stores = np.maximum(1, self.tiling.rows * (moving - 1))
        return 2 * bytes_of("fp16") * self.tokens * self.outputs / stores

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
    def _fed(self) -> Size:
        """Rows with words: all but the last."""
        return np.maximum(1, np.minimum(self.tiling.rows - 1, self.words))

    @cached_property
    def _each(self) -> Size:
        """Words of the fullest row."""
        return ceil_div(self.words, self._fed)

    @cached_property
    def _issued(self) -> Size:
        """Cycles per sample of the busiest core."""
        last = flowing_cycles(self.items, self.v, self.wafer)
        return 1.0 * self.tokens * np.maximum(self._each * self._per_word + self.v, last)

    def _handed(self) -> Size:
        """Return the cycles of the stores of a residual and of the links that it shares, in the fastest number
        of bundles."""
        if "residual" not in self.items:
            return 0.0
        most = np.minimum(self._fed + 1, self.outputs // self.v)
        ways = [
            np.where((k <= most) | (k == 1), residual_cycles(self.outputs, self.v, k, self.wafer), np.inf)
            for k in spaced(range(1, self.residuals + 1))
        ]
        return self.tokens * np.minimum.reduce(ways)

    def _heard(self) -> tuple[Size, Size]:
        """Return, per token, the cycles that a row works longer because bundles end where rows do, and those
        of its inlet, which receives all bundles with words of its row: for the fastest number of bundles.

        A row has words of up to MOST_HEARD bundles, or groups of rows have one bundle each.
        """
        each, rows, most = self._each, self._fed, self.most_bundles
        least, more, heard = np.inf + 0.0 * each, 0.0 * each, np.inf + 0.0 * each
        total = int(np.max(self.words))
        divisors = [count for count in range(1, min(most, total) + 1) if total % count == 0]
        counts: list[Size] = [*divisors, *spaced(range(2, most + 1)), np.minimum(rows, most)]
        for count in counts:
            size = ceil_div(self.words, count)
            is_whole = np.equal(self.words % count, 0)
            alone = ceil_div(size, np.maximum(1, rows // count))
            several = np.where(
                np.equal(count % rows, 0),
                count // rows,
                np.minimum(count, ceil_div(each - 1, np.maximum(1, self.words // count)) + 1.0),
            )
            has_rows = np.logical_or(is_whole, np.equal(rows % count, 0))
            ways = (
                (
                    alone,
                    1.0,
                    np.logical_and(np.greater_equal(rows, count), has_rows),
                ),
                (each, several, np.less_equal(several, MOST_HEARD)),
            )
            for words, bundles, is_possible in ways:
                extra = np.maximum(0, words - each) * self._per_word
                arriving = hearing_cycles(bundles * size, words, self.wafer, self.tokens)
                cycles = np.where(
                    is_possible, np.maximum(self._issued / self.tokens + extra, arriving), np.inf
                )
                is_less = cycles < least
                least = np.where(is_less, cycles, least)
                more, heard = np.where(is_less, extra, more), np.where(is_less, arriving, heard)
        return more, heard


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
    """Return the cycles per token of a residual in `bundles`. Its last store receives two words per cycle, deals all
    words out, one per cycle, and ends with a control word; a link that it shares with sums may take longer.

    >>> from wse_sim.hardware import load_wafer
    >>> [float(residual_cycles(768, 36, count, load_wafer("wse2"))) for count in (1, 2, 4)]
    [577.0, 289.0, 145.0]
    """
    words = ceil_div(ceil_div(outputs, PAIR), bundles)
    shared = wafer.wavelet_cycles * (words + v * (bundles > 1))
    return np.maximum(1.5 * words + 1.0, shared)


def hearing_cycles(words: Size, each: Size, wafer: Wafer, tokens: Size) -> Size:
    """Return the cycles per token of an inlet that receives `words` words and deals out its row's `each`
    words.

    All received words arrive over one ramp, whatever their bundles; the inlet deals out in the cycles between
    them. Dealt words count twice: a word advances when the last of its readers takes it, and inlets deal at different times.
    They count once where inlets deal together, those of a sample of one token when they have it, and the link catches up with
    one word per cycle.

    >>> from wse_sim.hardware import load_wafer
    >>> [float(hearing_cycles(16, 3, load_wafer("wse2"), tokens)) for tokens in (1, 2)]
    [19.0, 22.0]
    """
    times = np.minimum(2, tokens) if wafer.wavelet_cycles <= 1 else 2
    return np.maximum(wafer.wavelet_cycles * words, 1.0 * words + times * each)


def _item_cycles(item: str, size: Size, wafer: Wafer) -> Size:
    if item in SPECIAL_FUNCTIONS:
        return np.ceil(wafer.vector_start_cycles) + size * wafer.special_element_cycles
    return np.ceil(wafer.vector_start_cycles) + np.ceil(size / op_rate(item, "fp16", wafer))
