"""Bands of adjacent rows, one thread each: the messages between them, and when they continue.

A band stores *ghosts* of its neighbours' queues into which it pushes. In cycle t it sends each neighbour

    pushes into the neighbour's queues,  pops of its own queues into which the neighbour pushes

once its words have moved; with both, queue and ghost have the same state on both sides. So a band waits once
per cycle, for two neighbours, and may be up to one cycle ahead of them: messages have two buffers, by the
parity of t. Payload needs no message: of a queue, one side writes the cells and the index of the next word,
the other the index of the oldest.

A quiet band (nothing moved) may be part of the end of the run, or of a period in which nothing happens. It
continues alone once it knows of a band that is not quiet in this cycle; if all are quiet, they end or jump
together. A band that is ahead of it has seen a busy band, or has jumped, which it shows: no band jumps twice
before all have jumped once.
"""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wse_sim.fabric.executors.wavelet.planes import (
    BAND,
    BANDS,
    N_ROWS,
    ONE,
    POP,
    PUSH,
    RECORD,
    SPINS,
    STRIDE,
    ZERO,
    Array,
    Band,
    touch,
)
from wse_sim.fabric.format.program import Program
from wse_sim.fabric.threads import LINES, LOOKS, cut, own_words
from wse_sim.jit import give_way, helper_kernel, inlined_kernel, load_acquire, store_release, trailing_zeros

# The state that a band publishes to the others, in separate cache lines.
(SENT, STATUS, STOPPED, JUMPED, DISTANCE) = range(5)
# cycles told; status (see show); 2 cycle + half of a fault; 1 + cycle of the last jump; its length
LINE = LINES
NEVER_STOPPED = np.int64(1) << 62
# State of a band at the end of a cycle: it has no work left; nothing happens until a count ends.
QUIET, CALM = 1, 2
FARTHEST = (1 << 30) - 1  # cycles of one jump
# What a band does after a cycle: it waits for the others, ends, or continues by that many cycles.
UNDECIDED, END = -1, 0


class Edges(NamedTuple):
    """Messages between bands: by parity of the cycle, band, side (0 the band above, 1 below), word."""

    shown: Array  # int64 (bands * LINE,)
    changed: Array  # uint64 (2, bands, 2, words): slots with pushes or pops
    moves: Array  # uint64 (2, bands, 2, words, slots, 2): pushes into the neighbour, pops of the own queue


def make_edges(program: Program, bands: list[Band]) -> Edges:
    """Return empty message buffers."""
    n, words, slots = len(bands), -(-program.cols // 64), max(1, program.n_slots)
    shown = own_words(n * LINE, dtype=np.int64)
    shown[STOPPED::LINE] = NEVER_STOPPED
    words = 0 if n == 1 else -(-words // LINES) * LINES  # a single band has no neighbours
    return Edges(shown, own_words(2, n, 2, words), own_words(2, n, 2, words, slots, 2))


def split_rows(program: Program, n: int) -> list[Band]:
    """Split the program into at most `n` bands with similar numbers of routes and programs."""
    weights = (program.route != 0).sum(axis=0) + 2 * (program.class_entry[program.core_class] >= 0)
    per_row = weights.reshape(program.rows, program.cols).sum(axis=1) + 1
    return bands_of(program, cut(per_row, min(n, program.rows)))


def bands_of(program: Program, starts: list[int]) -> list[Band]:
    """Return the bands that begin at row 0 and at every row of `starts`."""
    ends = [*starts, program.rows]
    return [Band(first, end, program.rows) for first, end in zip([0, *starts], ends, strict=True)]


@helper_kernel
def tell_neighbours(t, routers, edges, size, sets):
    """Send the moves of cycle t to the bands above and below."""
    rec, band, words = routers.rec, size[BAND], sets[STRIDE] - 1
    for side in range(2):
        if (side == 0 and band == 0) or (side == 1 and band == sets[BANDS] - 1):
            continue
        ghost, own = (0, 1) if side == 0 else (size[N_ROWS] + 1, size[N_ROWS])
        theirs, ours = (2, 0) if side == 0 else (0, 2)  # ports of the queues at this edge
        changed, moves = edges.changed[t & 1, band, side], edges.moves[t & 1, band, side]
        for w in range(words):
            g, f = ghost * sets[STRIDE] + w + 1, own * sets[STRIDE] + w + 1
            todo = routers.touched[g] | routers.touched[f]
            changed[w] = todo
            while todo != ZERO:
                slot = trailing_zeros(todo)
                todo &= todo - ONE
                moves[w, slot, 0] = rec[g, slot * RECORD + PUSH + 8 * theirs]
                moves[w, slot, 1] = rec[f, slot * RECORD + POP + 8 * ours]
    store_release(edges.shown, band * LINE + SENT, t + 1)


@helper_kernel
def hear_neighbours(t, routers, edges, size, sets):
    """Apply the neighbours' messages of cycle t: pushes into the queues at the edges, pops of the ghosts."""
    rec, band, words = routers.rec, size[BAND], sets[STRIDE] - 1
    for side in range(2):
        if (side == 0 and band == 0) or (side == 1 and band == sets[BANDS] - 1):
            continue
        ghost, own = (0, 1) if side == 0 else (size[N_ROWS] + 1, size[N_ROWS])
        theirs, ours = (2, 0) if side == 0 else (0, 2)
        other = band - 1 if side == 0 else band + 1
        changed, moves = edges.changed[t & 1, other, 1 - side], edges.moves[t & 1, other, 1 - side]
        for w in range(words):
            g, f = ghost * sets[STRIDE] + w + 1, own * sets[STRIDE] + w + 1
            todo = changed[w]
            while todo != ZERO:
                slot = trailing_zeros(todo)
                todo &= todo - ONE
                if moves[w, slot, 0] != ZERO:
                    rec[f, slot * RECORD + PUSH + 8 * ours] |= moves[w, slot, 0]
                    touch(f, slot, routers, size)
                if moves[w, slot, 1] != ZERO:
                    rec[g, slot * RECORD + POP + 8 * theirs] = moves[w, slot, 1]
                    touch(g, slot, routers, size)


@helper_kernel
def forget_ghosts(routers, size, sets):
    """Deactivate ghosts, whose words this band does not move."""
    for row in (0, size[N_ROWS] + 1):
        for w in range(sets[STRIDE] - 1):
            routers.active[row * sets[STRIDE] + w + 1] = ZERO


@helper_kernel
def have_told(t, edges, size, sets):
    """Return True once both neighbours have sent their moves of cycle t; False if they have not after a while."""
    band = size[BAND]
    for other in (band - 1, band + 1):
        if other < 0 or other >= sets[BANDS]:
            continue
        left = sets[SPINS]
        while load_acquire(edges.shown, other * LINE + SENT) <= t:
            left -= 1
            if left <= 0:
                return False
            if left % LOOKS == 0:
                give_way()
    return True


@inlined_kernel
def stop(edges, size, moment):
    """Signal to the other bands that this band has met a fault: 2 cycle, + 1 if in its second half."""
    store_release(edges.shown, size[BAND] * LINE + STOPPED, moment)


@helper_kernel
def is_stopped(edges, sets, moment):
    """Return whether some band has met a fault before `moment`."""
    for other in range(sets[BANDS]):
        if load_acquire(edges.shown, other * LINE + STOPPED) < moment:
            return True
    return False


@inlined_kernel
def show(t, rest, ahead, edges, size):
    """Publish the state of this band after cycle t; `ahead`: cycles until a timer ends, 0 if none runs."""
    store_release(edges.shown, size[BAND] * LINE + STATUS, ((t + 1) << 32) | (ahead << 2) | rest)


@inlined_kernel
def decide_rest(all_quiet, all_calm, ahead):
    """Decide what quiet bands do together; `ahead`: cycles until the first timer ends, 0 if none runs."""
    if all_quiet:
        return END
    if all_calm and ahead > 0:
        return ahead
    return 1


@inlined_kernel
def tell_jump(t, distance, edges, size):
    """Publish that this band advances by `distance` cycles after cycle t."""
    store_release(edges.shown, size[BAND] * LINE + DISTANCE, distance)
    store_release(edges.shown, size[BAND] * LINE + JUMPED, t + 1)


@helper_kernel
def agree(t, rest, ahead, edges, size, sets):
    """Return what a quiet band does after cycle t: UNDECIDED while unknown, END, or the cycles by which to
    advance."""
    every, first = rest, ahead
    for other in range(sets[BANDS]):
        if other == size[BAND]:
            continue
        left = sets[SPINS]
        status = load_acquire(edges.shown, other * LINE + STATUS)
        while status >> 32 <= t:
            left -= 1
            if left <= 0:
                return UNDECIDED
            if left % LOOKS == 0:
                give_way()
            status = load_acquire(edges.shown, other * LINE + STATUS)
        if status >> 32 > t + 1:
            if load_acquire(edges.shown, other * LINE + JUMPED) == t + 1:
                distance = load_acquire(edges.shown, other * LINE + DISTANCE)
                tell_jump(t, distance, edges, size)  # a third band may look at this one first
                return distance
            return np.int64(1)
        if status & 3 == 0:
            return np.int64(1)
        every &= status & 3
        theirs = (status >> 2) & FARTHEST
        if theirs > 0 and (first == 0 or theirs < first):
            first = theirs
    distance = decide_rest(every & QUIET != 0, every & CALM != 0, first)
    if distance > 1:
        tell_jump(t, distance, edges, size)
    return distance
