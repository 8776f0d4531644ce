"""Links of any length and time per wavelet, on the bit planes of the wavelet executor.

A queue e behind a link of L cycles has q L cells.  Two counters per queue, 64 of each in bit-sliced words, hold what
its two ends see:

    words(e, t)  words that may leave:   + 1 at push + L,  - 1 at pop
    cells(e, t)  cells that are free:    - 1 at push,      + 1 at pop + L

OCC is words > 0 and FULL is cells = 0; a push or pop of cycle t is in both from t + 1 on, what it causes L cycles later
waits in a wheel of planes.  L is 1 at the ramp, ``hop_cycles`` straight on, plus ``turn_cycles`` where the direction
changes, plus ``die_crossing_cycles`` over the edge of a die.

A port that takes M / 1000 > 1 cycles a wavelet keeps a debt d, in units of gcd(M, 1000) / 1000 cycles: it may carry
a word while d < one cycle, each word adds M, each cycle takes one away, and d never falls below 0.
"""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.executors.trees import link_lengths
from wse_sim.fabric.executors.wavelet.planes import (
    FULL,
    N_TOUCHED,
    N_WORK,
    OCC,
    ONE,
    POP,
    PUSH,
    RAMP,
    RECORD,
    RX,
    STRIDE,
    TOP,
    TURNED,
    ZERO,
    Array,
    Band,
    Routers,
    tx_at,
)
from wse_sim.fabric.executors.wavelet.routers import full_behind
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Program
from wse_sim.fabric.threads import own_words
from wse_sim.jit import bare_kernel, helper_kernel, inlined_kernel, trailing_zeros

WORDS, CELLS = 0, 1


class Links(NamedTuple):
    """Counters of the queues, words and credits in flight on the links, and the debts of the ports."""

    level: Array  # uint64 (n_f, slots, 5, 2, bits): words that may leave, free cells
    arriving: Array  # uint64 (longest + 1, n_f, slots, 5): pushes by the cycle in which they arrive
    returning: Array  # uint64, the same: cells by the cycle in which the sender sees them free
    due: Array  # uint64 (longest + 1, n_f): slots with something in the two
    due_list: Array  # int64 (longest + 1, n_f)
    n_due: Array  # int64 (longest + 1,)
    lengths: Array  # int64 (4,): straight, with a turn, both over the edge of a die
    crossed: Array  # uint8 (n_f,): port mask of inputs behind the edge of a die
    debt: Array  # uint64 (n_f, 5, bits), or empty
    settled: Array  # int64 (n_f,): cycle of the debts
    rates: Array  # int64 (2,): debt of a word, of a cycle


def crossed_inputs(program: Program, band: Band) -> npt.NDArray[np.uint8]:
    """Port mask (n_f,) of the inputs behind the edge of a die: 64 routers of a row share it; ghosts included."""
    crossed = np.zeros(band.words(program.cols), np.uint8)
    first, end = band.cores(program.cols, ghosts=True)
    cores = np.arange(first, end)
    stride = -(-program.cols // 64) + 1
    f = (cores // program.cols - band.first + 1) * stride + cores % program.cols // 64 + 1
    crossed[f] = program.die_edges[first:end]
    return crossed


def make_links(
    program: Program, config: FabricConfig, routers: Routers, band: Band, turned: npt.NDArray[np.uint8]
) -> Links:
    """Empty queues of a band; marks the inputs of `routers` whose link turns (``turned``, port masks (slots, R))."""
    lengths = link_lengths(program, config)
    n_f, slots = routers.rec.shape[0], max(1, program.n_slots)
    deepest, longest = config.router_queue_wavelets * int(lengths[3]), int(lengths[3])
    unit = math.gcd(config.wavelet_milli, 1000)
    rates = np.array([config.wavelet_milli // unit, 1000 // unit], np.int64)
    debt_bits = int(rates.sum()).bit_length() if config.wavelet_milli > 1000 else 0
    wheel = (longest + 1, n_f)
    links = Links(
        np.zeros((n_f, slots, 5, 2, deepest.bit_length()), np.uint64), np.zeros((*wheel, slots, 5), np.uint64),
        np.zeros((*wheel, slots, 5), np.uint64), np.zeros(wheel, np.uint64), np.zeros(wheel, np.int64),
        own_words(longest + 1, dtype=np.int64), lengths, crossed_inputs(program, band), np.zeros((n_f if debt_bits else 0, 5, debt_bits), np.uint64),
        np.zeros(n_f, np.int64), rates,
    )  # fmt: skip
    queue_cells = config.router_queue_wavelets * np.array([1, *lengths])
    here = band.cores(program.cols, ghosts=True)
    fill_cells(
        routers.rec, links.level, turned, program.die_edges, queue_cells, program.cols, band.first, *here
    )  # fmt: skip
    return links


def no_links() -> Links:
    """Return placeholders for a loop over short links, which never reads them."""
    planes = (np.zeros(shape, np.uint64) for shape in ((1,) * 5, (1,) * 4, (1,) * 4, (1, 1), (1, 1, 1)))
    level, arriving, returning, due, debt = planes
    some, none = np.zeros(2, np.int64), np.zeros(1, np.uint8)
    return Links(
        level, arriving, returning, due, np.zeros((1, 1), np.int64), some, some, none, debt, some, some
    )


@bare_kernel
def fill_cells(rec, level, turned, die_edges, queue_cells, cols, first_row, first, end):
    """All cells of cores first .. end - 1 free; the planes of the links that turn."""
    stride = (cols + 63) // 64 + 1
    for slot in range(turned.shape[0]):
        for core in range(first, end):
            f = (core // cols - first_row + 1) * stride + (core % cols) // 64 + 1
            mask = ONE << np.uint64((core % cols) & 63)
            for p in range(5):
                turns = p != RAMP and (turned[slot, core] >> p) & 1
                kind = (1 if turns else 0) + (2 if (die_edges[core] >> p) & 1 else 0)
                cells = queue_cells[0] if p == RAMP else queue_cells[1 + kind]
                if turns:
                    rec[f, slot * RECORD + TURNED + 8 * p] |= mask
                for k in range(level.shape[4]):
                    if (cells >> k) & 1:
                        level[f, slot, p, CELLS, k] |= mask


@inlined_kernel
def add(counter, bits):
    """Add one to 64 bit-sliced counters."""
    k = 0
    while bits != ZERO:
        old = counter[k]
        counter[k] = old ^ bits
        bits &= old
        k += 1


@inlined_kernel
def subtract(counter, bits):
    """Take one from 64 bit-sliced counters."""
    k = 0
    while bits != ZERO:
        old = counter[k]
        counter[k] = old ^ bits
        bits &= ~old
        k += 1


@inlined_kernel
def above_zero(counter):
    """Return which of 64 bit-sliced counters are not zero."""
    some = ZERO
    for k in range(counter.shape[0]):
        some |= counter[k]
    return some


@inlined_kernel
def raise_high(high, counter):
    """Bit-sliced maximum of `high` and `counter`, kept in `high`."""
    larger, equal = ZERO, ~ZERO
    for j in range(counter.shape[0]):
        k = counter.shape[0] - 1 - j
        larger |= equal & counter[k] & ~high[k]
        equal &= ~(counter[k] ^ high[k])
    if larger != ZERO:
        for k in range(counter.shape[0]):
            high[k] = (high[k] & ~larger) | (counter[k] & larger)


@inlined_kernel
def schedule(planes, f, slot, p, bits, t, turned, links):
    """Let `bits` of queue p come out of `planes` after the length of its link."""
    for turns in range(2):
        part = bits & turned if turns == 1 else bits & ~turned
        if part == ZERO:
            continue
        kind = turns + 2 * ((np.int64(links.crossed[f]) >> p) & 1)
        length = np.int64(1) if p == RAMP else links.lengths[kind]
        k = (t + length) % planes.shape[0]
        planes[k, f, slot, p] |= part
        if links.due[k, f] == ZERO:
            links.due_list[k, links.n_due[k]] = f
            links.n_due[k] += 1
        links.due[k, f] |= ONE << np.uint64(slot)


@helper_kernel
def come_due(t, links, routers, tally, size):
    """Deliver the words and the credits that arrive in cycle t."""
    k = t % links.due.shape[0]
    for j in range(links.n_due[k]):
        f = links.due_list[k, j]
        record = routers.rec[f]
        todo = links.due[k, f]
        links.due[k, f] = ZERO
        while todo != ZERO:
            slot = trailing_zeros(todo)
            todo &= todo - ONE
            o = slot * RECORD
            for p in range(5):
                words, cells = links.arriving[k, f, slot, p], links.returning[k, f, slot, p]
                if words != ZERO:
                    counter = links.level[f, slot, p, WORDS]
                    add(counter, words)
                    raise_high(tally.high[f], counter)
                    record[o + OCC + 8 * p] |= words
                    routers.active[f] |= ONE << np.uint64(slot)
                    links.arriving[k, f, slot, p] = ZERO
                if cells != ZERO:
                    add(links.level[f, slot, p, CELLS], cells)
                    record[o + FULL + 8 * p] &= ~cells
                    links.returning[k, f, slot, p] = ZERO
        if routers.active[f] != ZERO and routers.listed[f] == 0:
            routers.listed[f] = 1
            routers.work[size[N_WORK]] = f
            size[N_WORK] += 1
    links.n_due[k] = 0


@helper_kernel
def settle_long(t, links, routers, size):
    """Pops and pushes of cycle t become the new state, and what they cause later is scheduled."""
    for j in range(size[N_TOUCHED]):
        f = routers.touched_list[j]
        record = routers.rec[f]
        todo = routers.touched[f]
        routers.touched[f] = ZERO
        while todo != ZERO:
            slot = trailing_zeros(todo)
            todo &= todo - ONE
            o = slot * RECORD
            left = ZERO
            for p in range(5):
                i = o + 8 * p
                pop, push = record[i + POP], record[i + PUSH]
                if pop != ZERO:
                    counter = links.level[f, slot, p, WORDS]
                    subtract(counter, pop)
                    record[i + OCC] = above_zero(counter)
                    schedule(links.returning, f, slot, p, pop, t, record[i + TURNED], links)
                    record[i + POP] = ZERO
                if push != ZERO:
                    counter = links.level[f, slot, p, CELLS]
                    subtract(counter, push)
                    record[i + FULL] |= push & ~above_zero(counter)
                    schedule(links.arriving, f, slot, p, push, t, record[i + TURNED], links)
                    record[i + PUSH] = ZERO
                left |= record[i + OCC]
            if left != ZERO:
                routers.active[f] |= ONE << np.uint64(slot)
            else:
                routers.active[f] &= ~(ONE << np.uint64(slot))


# ---- time per wavelet -----------------------------------------------------------------------


@inlined_kernel
def below(counter, value):
    """Return which of 64 bit-sliced counters are below `value`: the last borrow of a subtraction."""
    borrow = ZERO
    for k in range(counter.shape[0]):
        if (value >> k) & 1:
            borrow |= ~counter[k]
        else:
            borrow &= ~counter[k]
    return borrow


@inlined_kernel
def take_down(counter, value):
    """64 bit-sliced counters less `value`, at least 0."""
    kept = ~below(counter, value)
    borrow = ZERO
    for k in range(counter.shape[0]):
        old = counter[k]
        if (value >> k) & 1:
            counter[k] = ~(old ^ borrow) & kept
            borrow |= ~old
        else:
            counter[k] = (old ^ borrow) & kept
            borrow &= ~old


@helper_kernel
def find_slow_ports(f, t, links, routers):
    """Bring the debts of word f to cycle t; ports that owe a cycle or more are slow."""
    cycles = t - links.settled[f]
    links.settled[f] = t
    for q in range(5):
        debt = links.debt[f, q]
        for _ in range(cycles):
            if above_zero(debt) == ZERO:
                break
            take_down(debt, links.rates[1])
        routers.slow[q] = ZERO
        if above_zero(debt) != ZERO:
            routers.slow[q] = ~below(debt, links.rates[1])


@helper_kernel
def add_debts(f, links, routers):
    """Every port that carried a word owes its time."""
    for q in range(5):
        bits = routers.granted[q]
        if bits == ZERO:
            continue
        debt = links.debt[f, q]
        carry = ZERO
        for k in range(debt.shape[0]):
            one = bits if (links.rates[0] >> k) & 1 else ZERO
            old = debt[k]
            debt[k] = old ^ one ^ carry
            carry = (old & one) | (carry & (old | one))


# ---- does anything wait for the clock alone ----------------------------------------------------


@inlined_kernel
def returning_behind(k, f, slot, q, stride, planes):
    """Return routers whose output q leads to a queue that gets a credit back when the wheel is at k."""
    if q == 0:
        return planes[k, f - stride, slot, 2]
    if q == 1:
        return (planes[k, f, slot, 3] >> ONE) | (planes[k, f + 1, slot, 3] << TOP)
    if q == 2:
        return planes[k, f + stride, slot, 0]
    return (planes[k, f, slot, 1] << ONE) | (planes[k, f - 1, slot, 1] >> TOP)


@helper_kernel
def waits_for_clock(links, routers, size, sets):
    """True if a word is under way to an empty queue that takes it, or a word waits for a cell that is coming back."""
    rec = routers.rec
    for k in range(links.due.shape[0]):
        for j in range(links.n_due[k]):
            f = links.due_list[k, j]
            todo = links.due[k, f]
            while todo != ZERO:
                slot = trailing_zeros(todo)
                todo &= todo - ONE
                for p in range(5):
                    o = slot * RECORD + 8 * p
                    if links.arriving[k, f, slot, p] & rec[f, o + RX] & ~rec[f, o + OCC] != ZERO:
                        return True
    for j in range(size[N_WORK]):
        f = routers.work[j]
        todo = routers.active[f]
        while todo != ZERO:
            slot = trailing_zeros(todo)
            todo &= todo - ONE
            o = slot * RECORD
            here = ZERO
            for p in range(5):
                here |= rec[f, o + OCC + 8 * p] & rec[f, o + RX + 8 * p]
            for q in range(4):
                out = here & rec[f, o + tx_at(q)]
                if out == ZERO or out & full_behind(rec, f, o, q, sets[STRIDE]) == ZERO:
                    continue
                out &= full_behind(rec, f, o, q, sets[STRIDE])
                for k in range(links.due.shape[0]):
                    if out & returning_behind(k, f, slot, q, sets[STRIDE], links.returning) != ZERO:
                        return True
    return False
