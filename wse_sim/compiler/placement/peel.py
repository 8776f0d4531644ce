"""Peel dynamic program: start trees for the annealing, and a fast placer by itself.

Blocks are taken in dataflow order. A state is (number of blocks placed ``i``, remaining width ``W``,
remaining height ``H``). A transition peels a group, the blocks ``i..j-1``, off the remaining rectangle as one
of

    0 row across      next to each other, as low as their widths within W allow
    1 row upright     stacked, as narrow as their heights within H allow
    2 stack across    each spans the whole width W
    3 stack upright   each spans the whole height H

The wire of a group is estimated. Along the group, an edge inside it counts exactly. An edge that leaves
counts the rest of the group plus half its other side. An edge that enters counts the distance from the
group's start. For each ``i`` the best states by estimated wire and waste are kept. End states become slicing
trees, whose groups are then mirrored and moved to either side by exact evaluation.
"""

# mypy: disable-error-code="arg-type,return-value,assignment"
# numba infers these types; in the stubs of NumPy its integers are not int
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wse_sim.compiler.placement.anneal import Annealer
from wse_sim.jit import helper_kernel, kernel

HASH = 1 << 14


@helper_kernel
def _least_thickness(prefix: np.ndarray, i: int, j: int, room: int, top: int) -> int:
    """Return the least s <= top with prefix[j, s] - prefix[i, s] <= room, or -1 if there is none."""
    if prefix[j, top] - prefix[i, top] > room:
        return -1
    low, high = 0, top
    while high - low > 1:
        middle = (low + high) >> 1
        if prefix[j, middle] - prefix[i, middle] <= room:
            high = middle
        else:
            low = middle
    return high


@helper_kernel
def _group_wire(
    prefix: np.ndarray,
    i: int,
    j: int,
    at: int,
    half: float,
    out_ptr: np.ndarray,
    out: np.ndarray,
    out_w: np.ndarray,
    in_ptr: np.ndarray,
    into: np.ndarray,
    in_w: np.ndarray,
) -> float:
    """Return the estimated wire of the group i..j-1, placed along prefix[:, at] with half of its other side
    `half`.
    """
    total = 0.0
    start, end = prefix[i, at], prefix[j, at]
    for a in range(i, j):
        centre = 0.5 * (prefix[a, at] + prefix[a + 1, at])
        for e in range(out_ptr[a], out_ptr[a + 1]):
            b = out[e]
            if b < j:
                total += out_w[e] * (0.5 * (prefix[b, at] + prefix[b + 1, at]) - centre)
            else:
                total += out_w[e] * (end - centre + half)
        for e in range(in_ptr[a], in_ptr[a + 1]):
            if into[e] < i:
                total += in_w[e] * (centre - start)
    return total


@kernel
def _prune(rows: np.ndarray, count: int, keep: int, table: np.ndarray) -> int:
    """Keep the `keep` rows with the lowest scores (column 3), one per (W, H); return their number."""
    order = np.argsort(rows[:count, 3])
    kept = np.empty((min(keep, count), rows.shape[1]))
    table[:] = -1
    many = 0
    for o in order:
        key = np.int64(rows[o, 0]) * 100003 + np.int64(rows[o, 1])
        slot = (key * 2654435761) % HASH
        while table[slot] >= 0 and table[slot] != key:
            slot = (slot + 1) % HASH
        if table[slot] == key:
            continue
        table[slot] = key
        kept[many] = rows[o]
        many += 1
        if many == kept.shape[0]:
            break
    rows[:many] = kept[:many]
    return many


@kernel
def peel_kernel(
    width: int,
    height: int,
    across: np.ndarray,
    upright: np.ndarray,
    areas: np.ndarray,
    out_ptr: np.ndarray,
    out: np.ndarray,
    out_w: np.ndarray,
    in_ptr: np.ndarray,
    into: np.ndarray,
    in_w: np.ndarray,
    wire_weight: float,
    waste_weight: float,
    keep: int,
    longest: int,
    states: np.ndarray,
    counts: np.ndarray,
    work: np.ndarray,
) -> None:
    """Fill `states` (n + 1, cap, 8): W, H, wire, score, blocks before, state before, kind, thickness.

    `across` (n + 1, S) are prefix sums of the least widths within each height, `upright` those of the least
    heights within each width, `areas` (n + 1,) those of the least areas. `counts` (n + 1,) are the states per
    number of blocks placed. A group has at most `longest` blocks.
    """
    n = areas.shape[0] - 1
    cap = states.shape[1]
    table = np.empty(HASH, dtype=np.int64)
    counts[:] = 0
    states[0, 0, 0] = width
    states[0, 0, 1] = height
    states[0, 0, 2] = 0.0
    states[0, 0, 3] = 0.0
    counts[0] = 1
    spent = 0
    for i in range(n):
        counts[i] = _prune(states[i], counts[i], keep, table)
        for s in range(counts[i]):
            W, H = int(states[i, s, 0]), int(states[i, s, 1])
            if W < 1 or H < 1:
                continue
            for kind in range(4):
                if i == 0 and width == height and kind % 2 == 1:
                    continue  # the mirror image of the other two kinds
                fails = 0
                for j in range(i + 1, min(n, i + longest) + 1):
                    if kind == 0:
                        thick = _least_thickness(across, i, j, W, H)
                    elif kind == 1:
                        thick = _least_thickness(upright, i, j, H, W)
                    elif kind == 2:
                        thick = upright[j, W] - upright[i, W]
                    else:
                        thick = across[j, H] - across[i, H]
                    if thick < 0 or thick > (H if kind % 2 == 0 else W):
                        break
                    if kind < 2 and j == i + 1:
                        continue  # a row of one block equals a stack of one block
                    new_w = W if kind % 2 == 0 else W - thick
                    new_h = H - thick if kind % 2 == 0 else H
                    rest = areas[n] - areas[j]
                    spent += 4
                    if rest > new_w * new_h:
                        fails += 1
                        if fails > 8 and kind >= 2:
                            break
                        continue
                    spent += (j - i) // 2
                    if kind == 0:
                        wire = _group_wire(
                            across, i, j, thick, 0.5 * thick, out_ptr, out, out_w, in_ptr, into, in_w
                        )
                    elif kind == 1:
                        wire = _group_wire(
                            upright, i, j, thick, 0.5 * thick, out_ptr, out, out_w, in_ptr, into, in_w
                        )
                    elif kind == 2:
                        wire = _group_wire(upright, i, j, W, 0.5 * W, out_ptr, out, out_w, in_ptr, into, in_w)
                    else:
                        wire = _group_wire(across, i, j, H, 0.5 * H, out_ptr, out, out_w, in_ptr, into, in_w)
                    wire += states[i, s, 2]
                    waste = 0.0
                    if j < n:
                        waste = width * height - float(new_w * new_h) - areas[j]
                    score = wire_weight * wire + waste_weight * waste
                    if counts[j] == cap:
                        counts[j] = _prune(states[j], cap, keep, table)
                        spent += cap
                    at = counts[j]
                    states[j, at, 0] = new_w
                    states[j, at, 1] = new_h
                    states[j, at, 2] = wire
                    states[j, at, 3] = score
                    states[j, at, 4] = i
                    states[j, at, 5] = s
                    states[j, at, 6] = kind
                    states[j, at, 7] = thick
                    counts[j] += 1
    order = np.argsort(states[n, : counts[n], 3])
    states[n, : counts[n]] = states[n, : counts[n]][order]
    work[0] += spent


def dataflow_orders(n: int, ea: np.ndarray, eb: np.ndarray) -> list[np.ndarray]:
    """Return a depth-first topological order of the blocks, and a breadth-first one if it differs.

    In a cycle, the block with the fewest missing inputs comes first.
    """
    orders: list[np.ndarray] = []
    for depth_first in (True, False):
        missing = np.bincount(eb, minlength=n)
        follow: list[list[int]] = [[] for _ in range(n)]
        for a, b in zip(ea.tolist(), eb.tolist(), strict=True):
            follow[a].append(b)
        ready = [i for i in range(n - 1, -1, -1) if missing[i] == 0]
        done = np.zeros(n, dtype=bool)
        order: list[int] = []
        while len(order) < n:
            if not ready:
                ready.append(int(np.argmin(np.where(done, n + len(ea), missing))))
            node = ready.pop() if depth_first else ready.pop(0)
            if done[node]:
                continue
            done[node] = True
            order.append(node)
            for b in follow[node]:
                missing[b] -= 1
                if missing[b] == 0 and not done[b]:
                    ready.append(b)
        found = np.array(order, dtype=np.int64)
        if not any(np.array_equal(found, o) for o in orders):
            orders.append(found)
    return orders


@dataclass
class Seed:
    """A slicing tree, the level index that it was made for, and its exact cost there."""

    tree: np.ndarray
    level: int
    cost: float


class Peeler:
    """The peel dynamic program with the bank of an annealer, for one order of the blocks."""

    def __init__(self, annealer: Annealer, order: np.ndarray) -> None:
        self.annealer = annealer
        self.order = order
        n = annealer.n
        place = np.empty(n, dtype=np.int64)
        place[order] = np.arange(n)
        a, b = place[annealer.ea], place[annealer.eb]
        first, second = np.minimum(a, b), np.maximum(a, b)
        self.out_ptr, self.out, self.out_w = _rows(n, first, second, annealer.ew)
        self.in_ptr, self.into, self.in_w = _rows(n, second, first, annealer.ew)
        self.work = np.zeros(1, dtype=np.int64)

    def seeds(
        self,
        level: int,
        *,
        keep: int,
        room: tuple[int, int],
        take: int = 4,
        longest: int = 10**6,
        thrift: float = 0.3,
    ) -> list[Seed]:
        """Return up to `take` trees at level index `level` inside `room` (width, height), the cheapest first.

        `keep` states are kept per number of blocks; a group has at most `longest` blocks. `thrift` weighs
        wasted area against wire in the choice of states: at 1, a wasted core costs as much as it adds to the
        time if the work of all blocks were spread over the fabric.
        """
        an = self.annealer
        bank = an.bank
        n = an.n
        rows = bank.curve_of[level][self.order]
        curves = bank.curves[rows].astype(np.int64)
        curves[:, :, 0] = 16000
        across = np.zeros((n + 1, bank.span), dtype=np.int32)
        upright = np.zeros((n + 1, bank.span), dtype=np.int32)
        across[1:] = np.cumsum(curves[:, 0], axis=0)
        upright[1:] = np.cumsum(curves[:, 1], axis=0)
        least = (curves[:, 0] * np.arange(bank.span))[:, 1:].min(axis=1)
        areas = np.concatenate(([0.0], np.cumsum(least.astype(np.float64))))
        states = np.zeros((n + 1, 4 * keep, 8))
        counts = np.zeros(n + 1, dtype=np.int64)
        scale = an.problem.wire_weight if an.problem.wire_weight > 0 else 1e-3
        peel_kernel(
            room[0],
            room[1],
            across,
            upright,
            areas,
            self.out_ptr,
            self.out,
            self.out_w,
            self.in_ptr,
            self.into,
            self.in_w,
            scale,
            thrift * max(an.problem.time_weight * bank.levels[level], scale) / (room[0] * room[1]),
            keep,
            longest,
            states,
            counts,
            self.work,
        )
        found = []
        for s in range(min(take, int(counts[n]))):
            groups = self._groups(states, n, s)
            seed = self._tree(groups, level, room[1])
            if np.isfinite(seed.cost):
                found.append(seed)
        return sorted(found, key=lambda seed: seed.cost)

    def _groups(self, states: np.ndarray, n: int, s: int) -> list[tuple[int, int, int]]:
        """Return the groups that lead to the end state `s` as (first block, end, kind), in the order of
        peeling.
        """
        groups = []
        j = n
        while j > 0:
            i, kind = int(states[j, s, 4]), int(states[j, s, 6])
            s = int(states[j, s, 5])
            groups.append((i, j, kind))
            j = i
        return groups[::-1]

    def _tree(self, groups: list[tuple[int, int, int]], level: int, height: int) -> Seed:
        """Return the tree of the groups, each with the side and direction that give the least wire."""
        builder = TreeBuilder(self.annealer.n)
        spine, tops, kinds = [], [], []
        rest = -1
        for i, j, kind in reversed(groups):
            cut = 0 if kind in (0, 3) else 1
            node = builder.comb(self.order[i:j].tolist(), cut)
            tops.append(node)
            kinds.append(cut)
            spine.append(-1 if rest < 0 else builder.join(node, rest, 1 if kind in (0, 2) else 0))
            rest = node if rest < 0 else spine[-1]
        tree = builder.finish(rest, height)
        self.work[0] += 20 * len(groups) * self.annealer.n
        cost = self.annealer.turn_groups(
            tree,
            level,
            np.array(spine, dtype=np.int64),
            np.array(tops, dtype=np.int64),
            np.array(kinds, dtype=np.int64),
        )
        return Seed(tree, level, cost)


class TreeBuilder:
    """The flat array of a slicing tree, built from the leaves upwards."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.size = 2 * n - 1
        self.tree = np.full(4 * self.size + 2, -1, dtype=np.int32)
        self.next = n

    def join(self, a: int, b: int, cut: int) -> int:
        """Add an inner node over `a` and `b` and return it."""
        node = self.next
        self.next += 1
        t, size = self.tree, self.size
        t[node], t[size + node], t[3 * size + node] = a, b, cut
        t[2 * size + a] = t[2 * size + b] = node
        return node

    def comb(self, members: list[int], cut: int) -> int:
        """Add a balanced subtree of one cut over `members` and return its top; a comb has the same
        geometry.
        """
        while len(members) > 1:
            pairs = [self.join(members[i], members[i + 1], cut) for i in range(0, len(members) - 1, 2)]
            members = pairs + members[len(pairs) * 2 :]
        return members[0]

    def finish(self, root: int, height: int) -> np.ndarray:
        """Set the root and its height, and return the array."""
        self.tree[4 * self.size] = root
        self.tree[4 * self.size + 1] = height
        return self.tree


def _rows(
    n: int, source: np.ndarray, other: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return edges in compressed row format by `source`: pointers (n + 1,), ends (e,), weights (e,)."""
    order = np.argsort(source, kind="stable")
    pointer = np.concatenate(([0], np.cumsum(np.bincount(source, minlength=n))))
    return pointer.astype(np.int64), other[order].astype(np.int64), weight[order]
