"""Cost of a stationary product in a region of a whole model on the fabric: whole words; the last row finishes
outputs.

Symbols: T tokens of W words of inputs (two elements each) and N outputs, R rows and C columns; w
multiply-accumulates per cycle, o = vector_start_cycles; v = 2 ceil(ceil(N / C) / 2) outputs of a column, m
words of a row.  Cycles per sample::

    row          T (2 m ceil(v / w) + v)
    last row     the same for its words, plus T v / 2 words sent, plus o + T v / rate per operation

The last row gets fewer words, so that it takes no longer than the others. If only bias and ReLU are fused, it
may have none: the first row adds the bias, the last row applies ReLU as the sums arrive (T (v / rate + v /
2)), and R - 1 rows share the words. Otherwise the rows wait while the last row finishes outputs: the time of
its operations and sends, minus the time of 14 / v tokens, whose sums fit in the queues between two cores.
This sets the pace of the region; the waiting cores are stalled on input.

With a slow function or a residual, rows may finish tokens in rotation: F rows take part, where F is the
largest divisor of T up to R, and the sums of T / F tokens return to each. The fastest variant is counted, as
:mod:`wse_sim.whole.regions` selects it::

    row          T (2 m ceil(v / w) + v) + T / F (3 v / 2 [+ v / 2 of a residual] + o + v / rate per operation except the bias)

A residual waits in stores next to the last row, one core each. A store receives every word, deals it out to
the columns, and ends a token with a control word. It limits the pace to::

    store        T (N / 2 + ceil(N / v) v / 2 + 1)

If there are at least three moving columns (C / efficiency - C), rows may finish tokens in rotation next to
keepers: stores of a row's residual, which also receive its results and send them in sequence. One core deals
every token to the keeper of its row; l is the time of a word on a link::

    handed       (T + T / F) (l N / 2 + 2)         keeper    T / F (3 N / 2 + ceil(N / v) v / 2 + 1)

The link next to the last row's keeper carries the residuals of all rows and the results of that row. The
columns of a row wait for each other when they send: N / 2 cycles per token, minus the time of 14 / v tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.elements import op_rate
from wse_sim.kernels.blocks.products import chain_latency
from wse_sim.kernels.contract.equations import SPECIAL_FUNCTIONS, bytes_of, ceil_div, fill_cycles
from wse_sim.kernels.contract.family import Cost, Size, Tiling

PAIR = 2  # fp16 elements of a word
QUEUED_WORDS = 14  # of sums between two cores: output queue, router, input queue
TURN_CYCLES = 2  # from the last word of one forwarding instruction to the first word of the next
LEAST_MOVING = 3  # moving columns: one of inlets, two of stores
LIGHT = frozenset({"bias", "relu"})
"""Operations that need no separate instruction."""


class _Way(NamedTuple):
    """A variant of finishing outputs, with its cycles per sample."""

    issued: Size
    stalled: Size
    beside: Size  # of the cores that store or forward a residual
    stores: Size  # rows that have a store of the residual
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
    """A layer of `tokens` tokens, `words` words of inputs and `outputs`; with `shares`, rows may finish
    tokens in rotation.

    With `waits` or `shares`, the time that rows wait for the last one is included. With `most_bundles`, the
    cores next to the rows are included: the inlet that receives the bundles with its row's words, and the
    stores of a residual.
    """

    tokens: Size
    words: Size
    outputs: Size
    fused: str
    tiling: Tiling
    wafer: Wafer
    shares: bool = False
    waits: bool = False
    most_bundles: int = 0

    def cost(self) -> Cost:
        """Return the cost per sample: cycles of the busiest core, and its stall at the pace of the region."""
        issued, stalled, beside, *_ = self._chosen
        if self.most_bundles:
            heard = self.tokens * _heard(self.words, self._chosen, self.most_bundles, self.wafer)
            stalled = np.maximum(stalled, np.maximum(heard, beside) - issued)
        sums = 1.0 * self.tokens * self.v
        rows, cols = self.tiling.rows, self.tiling.cols
        idle = fill_cycles(rows, cols, self.wafer) + chain_latency(rows, self.wafer)
        return Cost(compute=issued - sums, fabric=sums, idle=idle + 0.0 * self.v, stalled_input=stalled)

    @property
    def store_bytes(self) -> Size:
        """Bytes of the fullest store of a residual: two samples of its tokens; a keeper also stores two results."""
        share = ceil_div(self.tokens, self._chosen.stores) + (self._chosen.stores > 1)
        return 2 * bytes_of("fp16") * share * self.outputs

    @cached_property
    def items(self) -> tuple[str, ...]:
        """Work on the outputs, in order."""
        return tuple(part.strip() for part in self.fused.split(",") if part.strip())

    @cached_property
    def v(self) -> Size:
        """Outputs of a column."""
        return PAIR * ceil_div(ceil_div(self.outputs, self.tiling.cols), PAIR)

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
        stored = has_residual * self.tokens * stored_cycles(self.outputs, self.v)
        one, rows = np.ones_like(issued), self._rows
        found = _Way(
            issued, stalled * (self.shares or self.waits), stored + 0.0 * issued, one, rows, fullest, one < 1
        )
        each = ceil_div(self.words, rows)
        others = []
        if set(self.items) <= LIGHT:
            others.append(
                _Way(
                    self._flowing(),
                    0.0 * one,
                    0.0 * one,
                    one,
                    self._rows_above,
                    ceil_div(self.words, self._rows_above),
                    one > 0,
                )
            )
        if self.shares and has_residual:
            others.append(self._kept())
        elif self.shares and not SPECIAL_FUNCTIONS.isdisjoint(self.items):
            turns = finishing_rows(self.tokens, self._rows)
            others.append(_Way(self._in_turn(turns), 0.0 * one, 0.0 * one, one, rows, each, one > 0))
        for other in others:
            new, old = other.cycles, found.cycles
            is_taken = (new < old) | ((new == old) & (other.paced <= found.paced))
            found = _Way(*(np.where(is_taken, a, b) for a, b in zip(other, found, strict=True)))
        return found

    def _kept(self) -> _Way:
        """Return the variant whose rows finish tokens in rotation next to keepers; infinite cycles if there
        is no room for those."""
        turns = finishing_rows(self.tokens, self._rows - 1)
        issued = np.where(has_keepers(self.tiling.cols, self.wafer), self._in_turn(turns), np.inf)
        each = ceil_div(self.words, self._rows) * self._per_word + self.v
        stalled = self.tokens / turns * waits_for_columns(self.outputs, self.v, each)
        handed = kept_cycles(self.tokens, self.outputs, turns, self.v, self.wafer)
        return _Way(issued, stalled, handed, turns, self._rows, ceil_div(self.words, self._rows), turns > 0)

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
        rate = min(1.0, self.wafer.max_fp32_per_cycle) if "relu" in self.items else 1.0
        last = self.v / rate + self.v / PAIR
        return np.where(self.tiling.rows > 1, self.tokens * np.maximum(each, last), np.inf)

    def _in_turn(self, turns: Size) -> Size:
        """Return the cycles if `turns` rows finish outputs in rotation; infinite for a single row or token."""
        rounds = ceil_div(self.tokens, turns)
        size = rounds * self.v
        items = (item for item in self.items if item != "bias")
        work = rounds * sum(_item_cycles(item, self.v, self.wafer) for item in items)
        moved = size + size / PAIR * (1 + ("residual" in self.items))
        each = self.tokens * (ceil_div(self.words, self._rows) * self._per_word + self.v) + moved + work
        return np.where((self._rows > 1) & (turns > 1), each, np.inf)


def finishing_rows(tokens: Size, rows: Size) -> Size:
    """Return the number of rows that finish tokens in rotation: the largest divisor of the tokens up to `rows`."""
    count, found = int(np.max(tokens)), np.ones_like(rows)
    for part in range(2, count + 1):
        if count % part == 0:
            found = np.where(rows >= part, part, found)
    return found


def has_keepers(cols: Size, wafer: Wafer) -> NDArray[np.bool_]:
    """Return whether a region with `cols` compute columns has room for keepers and stores: at least three
    moving columns."""
    moving = np.ceil(cols / wafer.pipeline_efficiency - 1e-9) - cols
    return np.asarray(moving >= LEAST_MOVING)


def waits_for_columns(outputs: Size, v: Size, each: Size) -> Size:
    """Return the cycles that a row waits when its columns send a token in sequence; queued sums hide some
    tokens of `each` cycles."""
    return np.maximum(0.0, (outputs - v) / PAIR - each * QUEUED_WORDS / v)


def kept_cycles(tokens: Size, outputs: Size, turns: Size, v: Size, wafer: Wafer) -> Size:
    """Return the cycles per sample of the core that deals a residual to keepers of `turns` rows, or of a
    keeper if larger."""
    token = wafer.wavelet_cycles * outputs / PAIR + TURN_CYCLES
    handed = tokens * token + tokens / turns * token
    return np.maximum(handed, tokens / turns * (outputs + stored_cycles(outputs, v)))


def stored_cycles(outputs: Size, v: Size) -> Size:
    """Return the cycles per token of a residual's store: words in, words out to columns of `v` outputs, a
    control word."""
    return outputs / PAIR + ceil_div(outputs, v) * v / PAIR + 1.0


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


def _heard(words: Size, way: _Way, most_bundles: int, wafer: Wafer) -> Size:
    """Return the cycles per token of an inlet, which receives all bundles with words of its row.

    If all rows have equally many words, bundles end where rows do.
    """
    each, rows = way.each, way.fed
    found = np.inf + 0.0 * each
    for count in (count for count in range(1, most_bundles + 1) if most_bundles % count == 0):
        size = words / count
        ends_with_rows = np.where(rows % count == 0, 1.0, np.where(count % rows == 0, count // rows, np.inf))
        bundles = np.minimum(np.where(way.is_even, ends_with_rows, np.inf), ceil_div(each, size) + 1.0)
        found = np.minimum(found, hearing_cycles(np.minimum(bundles, count) * size, each, wafer))
    return found


def _item_cycles(item: str, size: Size, wafer: Wafer) -> Size:
    if item in SPECIAL_FUNCTIONS:
        return np.ceil(wafer.vector_start_cycles) + size * wafer.special_element_cycles
    return np.ceil(wafer.vector_start_cycles) + np.ceil(size / op_rate(item, "fp16", wafer))
