"""Bands of adjacent rows, one thread each: the messages between them at the end of a cycle.

A band depends on another band in a cycle in two ways only: a word that crosses the edge enters a queue of the
neighbour, and whether it may depends on the free cells of that queue. A band keeps a *ghost* of each queue
that it fills across an edge: the number of words in it, and when its cells become free. At the end of a cycle
it posts

    the words that it sent across the edge,  the words that it took out of queues which the neighbour fills

and both sides are up to date. Cells and words of a cycle count from the next one on, so a band needs no data
of the present cycle. Then all bands know the sums of what each shows (words and commands that the host waits
for, active cores, faults), decide alike, and end or continue together. Shown values have two buffers, by the
parity of the round: no band is two rounds ahead.
"""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.threads import LINES, LOOKS, SPINS, own_words
from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm.queues import enter
from wse_sim.jit import (
    bare_kernel,
    give_way,
    helper_kernel,
    inlined_kernel,
    is_interpreted,
    load_acquire,
    store_release,
)
from wse_sim.jit_bundles import by_pointer

Array = npt.NDArray[Any]

# What a band shows; of all bands together these are sums, but SOONEST is the least.
(COMMANDS_LEFT, WORDS_LEFT, INJECTING, FULL, FAULTS, MOVED, PENDING, READY, ROUTERS, RINGS, ABOVE, BELOW, SOONEST) = range(
    13
)  # fmt: skip
# Where a band is: its cores are FIRST .. END - 1; POSTED + side: moves of this round.
(FIRST, END, INDEX, BANDS, LOOKS_LEFT, ROUND, POSTED) = range(7)
N_PLACE = 8
ROUNDS_SHOWN, STOPPED = 0, 1  # in a line of `rounds`
POP, PUSH = 0, 1
# A router moves at most five words in a cycle, one of them across this edge.
MOVES_A_ROUTER = 6
NEVER = np.int64(1) << 62


@by_pointer
class Band(NamedTuple):
    """One band, and the data that all bands share."""

    place: Array  # int64 (N_PLACE,)
    mine: Array  # int64 (LINES,): what it is about to show
    every: Array  # int64 (LINES,): of all bands together; one band alone: the same array
    room_count: Array  # as q_count, of ghosts only
    room_head: Array
    room_stamp: Array
    moves: Array  # int64 (2, bands, 2, moves, 4): by parity, band, side (0 above, 1 below): queue and kind, word, flag, stamp
    shown: Array  # int64 (2, bands, LINES)
    rounds: Array  # int64 (bands * LINES,)


@inlined_kernel
def post(x, side, kind, e, word, flag, stamp):
    """Post a move at queue `e` to the band above (0) or below (1)."""
    j = x.place[POSTED + side]
    row = x.moves[x.place[ROUND] & 1, x.place[INDEX], side, j]
    row[0], row[1], row[2], row[3] = 2 * e + kind, word, flag, stamp
    x.place[POSTED + side] = j + 1


@inlined_kernel
def enter_ghost(x, e):
    """A word enters a queue of the neighbour."""
    x.room_count[e] += np.uint8(1)


@helper_kernel
def tell(x):
    """Show the other bands what this band has done."""
    place, k = x.place, x.place[ROUND]
    for side in range(2):
        x.mine[ABOVE + side] = place[POSTED + side]
        place[POSTED + side] = 0
    for i in range(x.mine.shape[0]):
        x.shown[k & 1, place[INDEX], i] = x.mine[i]
    store_release(x.rounds, place[INDEX] * LINES + ROUNDS_SHOWN, k + 1)


@helper_kernel
def is_stopped(x):
    """True if a band has been given up."""
    return load_acquire(x.rounds, x.place[INDEX] * LINES + STOPPED) != 0


@helper_kernel
def hear(x, m):
    """True once all bands have shown this round: their sums, and the neighbours' moves, are in."""
    place, k = x.place, x.place[ROUND]
    for other in range(place[BANDS]):
        left = place[LOOKS_LEFT]
        while load_acquire(x.rounds, other * LINES + ROUNDS_SHOWN) <= k:
            left -= 1
            if left <= 0:
                return False
            if left % LOOKS == 0:
                give_way()
    for i in range(SOONEST):
        x.every[i] = 0
        for other in range(place[BANDS]):
            x.every[i] += x.shown[k & 1, other, i]
    x.every[SOONEST] = NEVER
    for other in range(place[BANDS]):
        x.every[SOONEST] = min(x.every[SOONEST], x.shown[k & 1, other, SOONEST])
    for side in range(2):
        other = place[INDEX] - 1 if side == 0 else place[INDEX] + 1
        if other < 0 or other >= place[BANDS]:
            continue
        for j in range(x.shown[k & 1, other, BELOW if side == 0 else ABOVE]):
            take_over(x.moves[k & 1, other, 1 - side, j], x, m)
    place[ROUND] = k + 1
    return True


@inlined_kernel
def take_over(move, x, m):
    """A move of a neighbour: a word came into a queue, or left one whose ghost is here."""
    e, kind = move[0] >> 1, move[0] & 1
    if kind == POP:
        head = np.int64(x.room_head[e])
        x.room_stamp[e, head] = move[3]
        x.room_head[e] = np.uint8((head + 1) % m.sets[S.CAP])
        x.room_count[e] -= np.uint8(1)
        return
    n_cores = m.sets[S.ROWS] * m.sets[S.COLS]
    rs = e // 5
    enter(e, rs % n_cores, rs // n_cores, move[1], move[2], move[3], m)


# ---- cutting a machine, and putting it together ------------------------------------------------


@bare_kernel
def copy_ghosts(starts, sets, q_count, q_head, q_stamp, room_count, room_head, room_stamp):
    """Ghosts of the queues on both sides of every edge."""
    cols = sets[S.COLS]
    n_cores = sets[S.ROWS] * cols
    for row in starts:
        for side in range(2):
            first, port = (row * cols, 0) if side == 0 else ((row - 1) * cols, 2)
            for slot in range(sets[S.SLOTS]):
                for c in range(first, first + cols):
                    e = (slot * n_cores + c) * 5 + port
                    room_count[e], room_head[e] = q_count[e], q_head[e]
                    for i in range(sets[S.CAP]):
                        room_stamp[e, i] = q_stamp[e, i]


@bare_kernel
def deal_wheel(wheel, chain, ends, wheels, counts):
    """Distribute the cores with running timers over the bands."""
    for k in range(wheel.shape[0]):
        c = np.int64(wheel[k])
        wheel[k] = -1
        while c >= 0:
            following = np.int64(chain[c])
            band = 0
            while c >= ends[band]:
                band += 1
            chain[c] = wheels[band, k]
            wheels[band, k] = c
            counts[band] += 1
            c = following


@bare_kernel
def gather_wheel(wheel, chain, wheels):
    """The reverse."""
    for band in range(wheels.shape[0]):
        for k in range(wheel.shape[0]):
            c = np.int64(wheels[band, k])
            wheels[band, k] = -1
            while c >= 0:
                following = np.int64(chain[c])
                chain[c] = wheel[k]
                wheel[k] = c
                c = following


def one_band(machine: S.Machine) -> Band:
    """All rows as one band, which has no neighbour."""
    n = int(machine.sets[S.ROWS] * machine.sets[S.COLS])
    place, mine = own_words(N_PLACE, dtype=np.int64), own_words(LINES, dtype=np.int64)
    place[END], place[BANDS] = n, 1
    bytes_, words = np.zeros(1, np.uint8), np.zeros((1, 1), np.int64)
    return Band(
        place, mine, mine, bytes_, bytes_, words, np.zeros((1, 1, 1, 1, 1), np.int64),
        np.zeros((1, 1, 1), np.int64), own_words(LINES, dtype=np.int64),
    )  # fmt: skip


class Bands:
    """A machine cut at some rows: lists, counters and logs of every band are its own, everything else belongs to the machine."""

    def __init__(self, machine: S.Machine, starts: list[int], *, in_turns: bool) -> None:
        sets = machine.sets
        rows, cols = int(sets[S.ROWS]), int(sets[S.COLS])
        n = len(starts) + 1
        self._starts = np.array(starts, np.int64)
        self._ends = np.array([*starts, rows], np.int64) * cols
        self.in_turns = in_turns or is_interpreted()
        self._wheels = np.full((n, S.WHEEL), -1, np.int32)
        queues = machine.q_count.shape[0]
        ghosts = (
            S.lazy_zeros((queues,), np.uint8, is_sparse=True), S.lazy_zeros((queues,), np.uint8, is_sparse=True),
            S.lazy_zeros(machine.q_stamp.shape, np.int64, is_sparse=True),
        )  # fmt: skip
        shared = (
            *ghosts, own_words(2, n, 2, MOVES_A_ROUTER * cols, 4, dtype=np.int64),
            own_words(2, n, LINES, dtype=np.int64), own_words(n * LINES, dtype=np.int64),
        )  # fmt: skip
        self.machines, self.bands = [], []
        for i, (first, end) in enumerate(zip([0, *self._ends[:-1]], self._ends, strict=True)):
            own = int(end - first)
            place = own_words(N_PLACE, dtype=np.int64)
            place[:ROUND] = first, end, i, n, 1 if self.in_turns else SPINS
            self.bands.append(
                Band(place, own_words(LINES, dtype=np.int64), own_words(LINES, dtype=np.int64), *shared)
            )
            self.machines.append(
                machine._replace(
                    size=own_words(S.SIZES, dtype=np.int64), router_list=np.zeros(own, np.int32),
                    ready=np.zeros((2, own), np.int32), rings_list=np.zeros(own, np.int32), wheel=self._wheels[i],
                    log=S.lazy_zeros((2 * own + 4096, S.LOG_FIELDS), np.int64, is_sparse=True),
                    drained=S.lazy_zeros((6 * own + 65536, 4), np.int64, is_sparse=True), profile=np.zeros_like(machine.profile),
                )
            )  # fmt: skip

    def stop(self) -> None:
        """No band waits for another."""
        self.bands[0].rounds[STOPPED::LINES] = 1

    def band_of(self, cores: Array) -> Array:
        """Band of every core."""
        return np.searchsorted(self._ends, cores, side="right")

    def deal(self, machine: S.Machine) -> None:
        """Distribute the lists of the machine over the bands."""
        size, parity = machine.size, int(machine.size[S.PARITY])
        timed = np.zeros(len(self.bands), np.int64)
        deal_wheel(machine.wheel, machine.chain, self._ends, self._wheels, timed)
        routers = machine.router_list[: size[S.N_ROUTERS]]
        ready = machine.ready[parity, : size[S.N_READY]]
        rings = machine.rings_list[: size[S.N_RINGS]]
        for i, part in enumerate(self.machines):
            part.size[:] = 0
            for name in (S.CLOCK, S.PARITY):
                part.size[name] = size[name]
            for field, cores, target in (
                (S.N_ROUTERS, routers, part.router_list), (S.N_READY, ready, part.ready[parity]),
                (S.N_RINGS, rings, part.rings_list),
            ):  # fmt: skip
                own = cores[self.band_of(cores) == i]
                target[: len(own)] = own
                part.size[field] = len(own)
            part.size[S.N_TIMED] = timed[i]
            self.machines[i] = part._replace(host_words=machine.host_words)
        for name in (S.PENDING_COMMANDS, S.OUTSTANDING):
            self.machines[0].size[name] = size[name]
        m = machine
        x = self.bands[0]
        copy_ghosts(
            self._starts, m.sets, m.q_count, m.q_head, m.q_stamp, x.room_count, x.room_head, x.room_stamp
        )  # fmt: skip

    def gather(self, machine: S.Machine) -> None:
        """Merge the lists of the bands into those of the machine."""
        gather_wheel(machine.wheel, machine.chain, self._wheels)
        size, sizes = machine.size, np.array([part.size for part in self.machines])
        for name in (S.CLOCK, S.PARITY):
            size[name] = sizes[0, name]
        for name in (S.PENDING_COMMANDS, S.OUTSTANDING, S.FAULTS, S.N_TIMED):
            size[name] = sizes[:, name].sum()
        parity = int(size[S.PARITY])
        for field, target, lists in (
            (S.N_ROUTERS, machine.router_list, [part.router_list for part in self.machines]),
            (S.N_READY, machine.ready[parity], [part.ready[parity] for part in self.machines]),
            (S.N_RINGS, machine.rings_list, [part.rings_list for part in self.machines]),
        ):
            cores = np.concatenate([one[:n] for one, n in zip(lists, sizes[:, field], strict=True)])
            target[: len(cores)] = cores
            size[field] = len(cores)
        for part in self.machines:
            machine.profile[:] += part.profile
            part.profile[:] = 0
