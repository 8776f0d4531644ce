# mypy: disable-error-code="assignment"
"""Steady state of programs that loop: proved on snapshots, then whole rounds are added instead of simulated.

The run pauses when every core has taken i rounds of its outer loops and nothing else can advance.  That state does not
depend on the order of evaluation.  Compare it with the state one round later, component by component:

    same instruction, same inner loop counts, same words in rings and queues, and every time that can still bind
    (core clocks, last q L and unread words of every node, last reads, last pops of the ring) later by one constant lambda.

The equations know no absolute time and no absolute word index, so the next round repeats the last one lambda later, and so
on.  M rounds are added at once: times + M lambda, word counts and counters + M times their increase.

The certificate needs the skipped moves too.  With P the moves of the last round, they are P + j lambda, 1 <= j <= M:
P must be free of collisions modulo lambda, and copies of P are logged as far as they overlap, at any router,
with moves before P (first copies) or after the skipped rounds (last copies).

Snapshot, comparison and extrapolation share one file, because together they prove one statement.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.executors.maxplus import records as K
from wse_sim.fabric.executors.maxplus.collisions import COUNT, NODE, START, STEP, by_router
from wse_sim.fabric.executors.maxplus.graph import (
    CHILD0,
    CORE,
    DEPTH,
    LEAF,
    LENGTH,
    MASK,
    OFF,
    PARENT,
    PORTS,
    READ,
    SLOT,
    Y_MASK,
    Y_OFF,
    F,
)
from wse_sim.fabric.executors.maxplus.sign import LAST, mix
from wse_sim.jit import helper_kernel, kernel

MIN_ROUNDS = 8  # with fewer, pausing costs more than it saves
MAX_PERIOD = 1 << 22
MAX_COPIES = 64
_PAIRS_IN_A_ROW = 6


@kernel
def release_round(cores, rounds, free, label, stack, s):  # type: ignore[no-untyped-def]
    """Allow `rounds` more rounds (all of them in components of `free`) and queue the cores that wait for one."""
    for c in range(cores.shape[0]):
        cores[c, K.LIMIT] = K.LATEST if free[label[c]] else cores[c, K.LIMIT] + rounds
        if cores[c, K.WAIT] == K.WAIT_TURN and cores[c, K.QUEUED] == 0:
            cores[c, K.QUEUED] = 1
            stack[s[K.S_SIZE]] = ~c
            s[K.S_SIZE] += 1


@kernel
def compare_cores(cores, old, label, ring_size, ring_mask, ok, period, rounds):  # type: ignore[no-untyped-def]
    """Clear ``ok`` of components with a core whose state is not the old one later by one constant."""
    pops = K.RING + 2 * (ring_mask + 1)
    for c in range(cores.shape[0]):
        mine = label[c]
        if not ok[mine] or (cores[c, K.TIME] == old[c, K.TIME] and cores[c, K.PC] == old[c, K.PC] and cores[c, K.STEPS] == old[c, K.STEPS]
                            and cores[c, K.PUSHED] == old[c, K.PUSHED] and cores[c, K.POPPED] == old[c, K.POPPED]
                            and cores[c, K.WAIT] == old[c, K.WAIT] and cores[c, K.ROUNDS] == old[c, K.ROUNDS]):  # fmt: skip
            continue
        delta = np.int64(cores[c, K.TIME]) - old[c, K.TIME]
        if period[mine] < 0:
            period[mine] = delta
        same = delta == period[mine] and delta > 0 and old[c, K.ROUNDS] - cores[c, K.ROUNDS] == 1
        for field in (
            K.PC,
            K.STATE,
            K.STEPS,
            K.STARTED,
            K.MILLI,
            K.ROUNDS + 1,
            K.ROUNDS + 2,
            K.ROUNDS + 3,
            K.WAIT,
            K.LIMIT,
        ):
            same = same and cores[c, field] == old[c, field]
        pushed, popped = np.int64(old[c, K.PUSHED]), np.int64(old[c, K.POPPED])
        more = cores[c, K.PUSHED] - pushed
        same = same and cores[c, K.POPPED] - popped == more
        if same and more > 0:
            same = pushed >= ring_size and np.int64(cores[c, K.LAST_POP]) - old[c, K.LAST_POP] == delta
            for j in range(max(0, pushed - ring_size), popped):
                now, then = pops + ((j + more) & ring_mask), pops + (j & ring_mask)
                same = same and np.int64(cores[c, now]) - old[c, then] == delta
            for j in range(popped, pushed):
                now, then = K.RING + 2 * ((j + more) & ring_mask), K.RING + 2 * (j & ring_mask)
                same = same and cores[c, now] == old[c, then]
                same = same and np.int64(cores[c, now + 1]) - old[c, then + 1] == delta
        elif same and pushed > popped:
            same = False  # words that neither leave nor age would have to be compared in absolute time
        if not same:
            ok[mine] = 0
        rounds[mine] = min(rounds[mine], np.int64(cores[c, K.ROUNDS]))


@kernel
def compare_nodes(nodes, old_f, old_read, times, old_times, label, q, ok, period):  # type: ignore[no-untyped-def]
    """Compare backlogs and all times of a node that can still bind."""
    for u in range(nodes.shape[0]):
        mine = label[nodes[u, CORE]]
        moved, was = np.int64(nodes[u, F]), np.int64(old_f[u])
        if not ok[mine] or (moved == was and nodes[u, READ] == old_read[u]):
            continue
        more, delta = moved - was, period[mine]
        same, history = True, np.int64(0)
        parent = nodes[u, PARENT]
        if parent >= 0:
            same = nodes[parent, F] - moved == old_f[parent] - was
            history = q * nodes[u, LENGTH] - (nodes[parent, F] - moved)
        for i in range(CHILD0, CHILD0 + 4):
            c = nodes[u, i]
            if c < 0:
                break
            same = same and moved - nodes[c, F] == was - old_f[c]
            history = max(history, moved - nodes[c, F])
        if nodes[u, LEAF] >= 0:
            unread = moved - nodes[u, READ]
            same = same and unread == was - old_read[u]
            history = max(history, unread)
            read, lag = np.int64(old_read[u]), nodes[u, DEPTH] - unread
            same = same and read >= lag
            if same:
                for k in range(read - lag, read):
                    now, then = (
                        nodes[u, Y_OFF] + ((k + more) & nodes[u, Y_MASK]),
                        nodes[u, Y_OFF] + (k & nodes[u, Y_MASK]),
                    )
                    same = same and np.int64(times[now]) - old_times[then] == delta
        same = same and was >= history
        if same:
            for k in range(was - history, was):
                now, then = (
                    nodes[u, OFF] + ((k + more) & nodes[u, MASK]),
                    nodes[u, OFF] + (k & nodes[u, MASK]),
                )
                same = same and np.int64(times[now]) - old_times[then] == delta
        if not same:
            ok[mine] = 0


@kernel
def collides_with_itself(log, first, last, nodes, label, ok, period, stamps):  # type: ignore[no-untyped-def]
    """Clear ``ok`` where two colors of the last round meet on a port modulo the period."""
    for i in range(first, last):
        u = log[i, NODE]
        r = nodes[u, CORE]
        mine = label[r]
        if not ok[mine]:
            continue
        mark = np.int64(r) * 32 + nodes[u, SLOT] + 1
        x = np.int64(log[i, START])
        for _ in range(log[i, COUNT]):
            residue = x % period[mine]
            for port in range(5):
                if (nodes[u, PORTS] >> port) & 1:
                    seen = stamps[port, residue]
                    if seen != 0 and seen != mark and (seen - 1) // 32 == r:
                        ok[mine] = 0
                    stamps[port, residue] = mark
            x += log[i, STEP]


@kernel
def add_rounds_to_cores(cores, old, label, skipped, period, ring_size, ring_mask, scratch):  # type: ignore[no-untyped-def]
    """Advance the cores of components with ``skipped`` > 0 by that many rounds."""
    pops = K.RING + 2 * (ring_mask + 1)
    for c in range(cores.shape[0]):
        m = skipped[label[c]]
        if m == 0 or cores[c, K.ROUNDS] == old[c, K.ROUNDS]:
            continue
        shift = m * period[label[c]]
        more = np.int64(cores[c, K.PUSHED]) - old[c, K.PUSHED]
        for field in (
            K.IN_COUNT,
            K.OUT_COUNT,
            K.BUSY_COUNT,
            K.RECEIVED,
            K.ROUNDS,
            K.PUSHED,
            K.POPPED,
            K.TIME,
            K.LAST_POP,
            K.RING_READY,
        ):
            cores[c, field] += m * (np.int64(cores[c, field]) - old[c, field])
        if more == 0:
            continue
        for j in range(ring_mask + 1):
            scratch[j, 0], scratch[j, 1], scratch[j, 2] = (
                cores[c, K.RING + 2 * j],
                cores[c, K.RING + 2 * j + 1],
                cores[c, pops + j],
            )
        for j in range(ring_mask + 1):
            to = (j + m * more) & ring_mask
            cores[c, K.RING + 2 * to], cores[c, K.RING + 2 * to + 1] = scratch[j, 0], scratch[j, 1] + shift
            cores[c, pops + to] = scratch[j, 2] + shift


@kernel
def add_rounds_to_nodes(nodes, old_f, old_read, times, label, skipped, period, scratch):  # type: ignore[no-untyped-def]
    """Advance the nodes likewise, with their times at the positions of the later words."""
    for u in range(nodes.shape[0]):
        mine = label[nodes[u, CORE]]
        more = (np.int64(nodes[u, F]) - old_f[u]) * skipped[mine]
        if more == 0:
            continue
        shift = skipped[mine] * period[mine]
        nodes[u, F] += more
        if nodes[u, LEAF] >= 0:
            nodes[u, READ] += more
            rotate(times, nodes[u, Y_OFF], nodes[u, Y_MASK], more, shift, scratch)
        rotate(times, nodes[u, OFF], nodes[u, MASK], more, shift, scratch)


@kernel
def sign_rounds(nodes, old_f, old_read, label, skipped, period, signs):  # type: ignore[no-untyped-def]
    """Mix the added rounds into the signatures of all streams that moved in the round they repeat."""
    for u in range(nodes.shape[0]):
        mine = label[nodes[u, CORE]]
        for part in range(2):
            row = 2 * u + part
            now, before = (nodes[u, F], old_f[u]) if part == 0 else (nodes[u, READ], old_read[u])
            if skipped[mine] > 0 and now > before:
                for value in (skipped[mine], period[mine], np.int64(before), np.int64(now)):
                    mix(row, value, signs)
                signs[row, LAST] += skipped[mine] * period[mine]


@helper_kernel
def rotate(times, off, mask, more, shift, scratch):  # type: ignore[no-untyped-def]
    """Move the time of word k to the position of word k + more, `shift` cycles later."""
    for j in range(mask + 1):
        scratch[j] = times[off + j]
    for j in range(mask + 1):
        times[off + ((j + more) & mask)] = scratch[j] + shift


@kernel
def count_copies(log, first, last, n_log, nodes, label, skipped, period, before, low, high, after):  # type: ignore[no-untyped-def]
    """Compute times per router: last move before the round, first and last move in it, first move after
    skipped rounds."""
    for i in range(n_log):
        r = nodes[log[i, NODE], CORE]
        if skipped[label[r]] == 0:
            continue
        start = np.int64(log[i, START])
        end = start + np.int64(log[i, STEP]) * (log[i, COUNT] - 1)
        if i < first:
            before[r] = max(before[r], end)
        elif i < last:
            low[r], high[r] = min(low[r], start), max(high[r], end)
        else:
            after[r] = min(after[r], start)


@kernel
def log_copies(  # type: ignore[no-untyped-def]
    log, first, last, n_log, nodes, label, skipped, period, before, low, high, after, limit, count_only
):  # fmt: skip
    """Append copies of the round that overlap with other moves; returns their number, -1 if more than `limit` a router."""
    added = np.int64(0)
    for i in range(first, last):
        r = nodes[log[i, NODE], CORE]
        m, lam = skipped[label[r]], period[label[r]]
        if m == 0:
            continue
        early = min(m, max(np.int64(0), (before[r] - low[r]) // lam))
        late = (
            min(m - early, max(np.int64(0), m - (after[r] - high[r] - 1) // lam))
            if after[r] <= high[r] + m * lam
            else np.int64(0)
        )
        if early + late > limit:
            return np.int64(-1)
        if not count_only:
            for k in range(early + late):
                j = k + 1 if k < early else m - (k - early)
                row = n_log + added + k
                log[row, NODE], log[row, START] = log[i, NODE], log[i, START] + j * lam
                log[row, STEP], log[row, COUNT] = log[i, STEP], log[i, COUNT]
        added += early + late
    return added


@dataclasses.dataclass
class Skip:
    """Rounds that were added: the log rows of the round they repeat, rounds and period per component."""

    first: int
    last: int
    rounds: npt.NDArray[np.int64]
    period: npt.NDArray[np.int64]


class SteadyState:
    """Watches a paused run; :meth:`boundary` is called whenever every core has taken its rounds."""

    def __init__(self, nodes: npt.NDArray[np.int32], label: npt.NDArray[np.int32], n_cores: int) -> None:
        self.label = label
        self.free = np.zeros(n_cores, np.uint8)  # components that run to their end
        self.skips: list[Skip] = []
        self._pairs, self._next_jump = 0, 4
        self._old: tuple[npt.NDArray[np.int32], ...] | None = None
        self._old_log = 0
        self._scratch = np.zeros(int(nodes[:, MASK].max(initial=0)) + 16, np.int64)

    def boundary(
        self,
        nodes: npt.NDArray[np.int32],
        times: npt.NDArray[np.int32],
        cores: npt.NDArray[np.int32],
        log: npt.NDArray[np.int32],
        signs: npt.NDArray[np.int64],
        s: npt.NDArray[np.int64],
    ) -> int:
        """Compare with the last round and skip what is steady; returns the rounds to run before the next call."""
        if self._old is not None:
            self._try_to_skip(nodes, times, cores, log, signs, s)
            self._old = None
            self._pairs += 1
            if self._pairs > _PAIRS_IN_A_ROW:
                self._next_jump *= 2
                return self._next_jump
        self._old = (cores.copy(), nodes[:, F].copy(), nodes[:, READ].copy(), times.copy())
        self._old_log = int(s[K.S_LOG])
        return 1

    def _try_to_skip(
        self,
        nodes: npt.NDArray[np.int32],
        times: npt.NDArray[np.int32],
        cores: npt.NDArray[np.int32],
        log: npt.NDArray[np.int32],
        signs: npt.NDArray[np.int64],
        s: npt.NDArray[np.int64],
    ) -> None:
        assert self._old is not None
        old_cores, old_f, old_read, old_times = self._old
        n, label = len(cores), self.label
        ok = (1 - self.free).astype(np.uint8)
        period, rounds = np.full(n, -1, np.int64), np.full(n, K.LATEST, np.int64)
        compare_cores(cores, old_cores, label, s[K.S_RING], s[K.S_RING_MASK], ok, period, rounds)
        ok[(period <= 0) | (period > MAX_PERIOD) | (rounds < 3)] = 0
        if not ok.any():
            return
        compare_nodes(nodes, old_f, old_read, times, old_times, label, s[K.S_QUEUE], ok, period)
        first, last = self._old_log, int(s[K.S_LOG])
        _, order = by_router(log[first:last], last - first, nodes, n)
        stamps = np.zeros((5, int(period.max(initial=1)) + 1), np.int64)
        collides_with_itself(log[first:last][order], 0, last - first, nodes, label, ok, period, stamps)
        skipped = np.where(ok == 1, rounds - 2, 0)
        latest = np.where(skipped > 0, skipped * period, 0).max(initial=0) + int(
            cores[:, K.TIME].max(initial=0)
        )
        if not skipped.any() or latest > K.LATEST:
            return
        period[skipped == 0] = 0
        ring = np.zeros((int(s[K.S_RING_MASK]) + 1, 3), np.int64)
        add_rounds_to_cores(cores, old_cores, label, skipped, period, s[K.S_RING], s[K.S_RING_MASK], ring)
        if s[K.S_SIGN]:
            sign_rounds(nodes, old_f, old_read, label, skipped, period, signs)
        add_rounds_to_nodes(nodes, old_f, old_read, times, label, skipped, period, self._scratch)
        self.free[skipped > 0] = 1
        self.skips.append(Skip(first, last, skipped, period))

    def complete_log(
        self, log: npt.NDArray[np.int32], n_log: int, nodes: npt.NDArray[np.int32]
    ) -> tuple[npt.NDArray[np.int32], int] | None:
        """Log with the copies that could meet other moves; None if there are too many."""
        end = n_log
        for skip in self.skips:
            n = len(self.free)
            before, low = np.full(n, -1, np.int64), np.full(n, K.LATEST, np.int64)
            high, after = np.full(n, -1, np.int64), np.full(n, 4 * K.LATEST, np.int64)
            common = (
                skip.first,
                skip.last,
                n_log,
                nodes,
                self.label,
                skip.rounds,
                skip.period,
                before,
                low,
                high,
                after,
            )
            count_copies(log, *common)
            place = (skip.first, skip.last, end, *common[3:])
            added = log_copies(log, *place, MAX_COPIES, True)
            if added < 0:
                return None
            if end + added > len(log):
                log = np.concatenate([log[:end], np.empty((added, 4), np.int32)])
            end += log_copies(log, *place, MAX_COPIES, False)
        return log, end
