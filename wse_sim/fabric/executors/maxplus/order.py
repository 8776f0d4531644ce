# mypy: disable-error-code="assignment"
"""Routers in which colors meet, advanced in time order by the arbitration rule of the oracle.

A router whose arbitration chooses cannot move whole transfers: its next word depends on what the other colors do in
that very cycle.  All nodes of such a router are *ordered*: they move one cycle at a time.  Everything else keeps
its bursts, so the clock exists only here.

When no other actor can advance, every fact that is still unknown follows from a move of an ordered router, and every
such move is at or after t, the earliest cycle in which one may move.  All delays are at least one cycle, so unknown
facts lie after t: all ordered routers with a candidate at t can arbitrate at t as the oracle does.

    candidate of node u   e_u = max( x_parent(k) + L_u , x_c(k - q L_c) + L_c , y_u(k - depth) + 1 ),   k = words moved
    cycle t               slots in round-robin order from the pointer; granted if e_u <= t and no output port is taken

Routers that wait for a cycle are in a timing wheel of buckets (cycle modulo its size), as doubly linked
lists.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.executors.maxplus.graph import (
    CHILD0,
    DEPTH,
    EARLIEST,
    IN_STACK,
    IS_RING,
    LEAF,
    LENGTH,
    MASK,
    NEVER,
    OFF,
    PARENT,
    READ,
    ROUTER,
    SLOT,
    WINDOW,
    Y_MASK,
    Y_OFF,
    F,
)
from wse_sim.fabric.executors.maxplus.graph import CORE as NODE_CORE
from wse_sim.fabric.format.program import Program
from wse_sim.jit import inlined_kernel

# Columns of an ordered router: its members, round-robin pointer, cycle it waits for, neighbours in that
# bucket, last cycle it was looked at.
(R_FIRST, R_COUNT, R_POINTER, R_AT, R_NEXT, R_BEFORE, R_DONE) = range(7)
ROUTER_FIELDS = 8
WHEEL = 1024  # buckets; a power of two


class Ordered(NamedTuple):
    """``routers`` int32 (n, ROUTER_FIELDS); ``members`` int32: their nodes, by slot; ``wheel`` int32 (WHEEL,)."""

    routers: npt.NDArray[np.int32]
    members: npt.NDArray[np.int32]
    wheel: npt.NDArray[np.int32]


def order_routers(nodes: npt.NDArray[np.int32], n_routers: int) -> Ordered:
    """Return the ordered routers before cycle 0; `nodes` are numbered slot by slot."""
    inside = np.flatnonzero(nodes[:, ROUTER] >= 0)
    members = inside[np.argsort(nodes[inside, ROUTER], kind="stable")].astype(np.int32)
    routers = np.zeros((n_routers, ROUTER_FIELDS), np.int32)
    routers[:, R_COUNT] = np.bincount(nodes[inside, ROUTER], minlength=n_routers)
    routers[1:, R_FIRST] = np.cumsum(routers[:-1, R_COUNT])
    routers[:, R_AT] = NEVER
    routers[:, R_NEXT], routers[:, R_BEFORE], routers[:, R_DONE] = -1, -1, -1
    return Ordered(routers, members, np.full(WHEEL, -1, np.int32))


def similar_routers(
    program: Program, label: npt.NDArray[np.int32], flagged: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Return (R,): `flagged` and all routers of their components with the program and routes of one of them.

    If one of many equal routers has a collision, the others usually do as well; unnecessary ordering only
    costs time.
    """
    planes = np.stack([label, program.core_class, *program.route]).astype(np.int64)
    key = np.zeros(program.n_cores, np.int64)
    for plane in planes:  # dense number of the distinct columns so far
        _, key = np.unique(key * (int(plane.max(initial=0)) + 1) + plane, return_inverse=True)
    marked = np.zeros(int(key.max(initial=0)) + 1, bool)
    marked[key[flagged]] = True
    return marked[key]


@inlined_kernel
def unhang(f, routers, wheel):  # type: ignore[no-untyped-def]
    """Remove router f from its bucket of the timing wheel."""
    before, following = routers[f, R_BEFORE], routers[f, R_NEXT]
    if before < 0:
        wheel[routers[f, R_AT] & (WHEEL - 1)] = following
    else:
        routers[before, R_NEXT] = following
    if following >= 0:
        routers[following, R_BEFORE] = before
    routers[f, R_AT] = NEVER


@inlined_kernel
def hang(f, at, routers, wheel):  # type: ignore[no-untyped-def]
    """Schedule router f for cycle `at` or earlier; return the number of routers added to the wheel."""
    more = 1
    if routers[f, R_AT] != NEVER:
        if routers[f, R_AT] <= at:
            return 0
        unhang(f, routers, wheel)
        more = 0
    head = np.int64(wheel[at & (WHEEL - 1)])
    routers[f, R_AT], routers[f, R_NEXT], routers[f, R_BEFORE] = at, head, -1
    if head >= 0:
        routers[head, R_BEFORE] = f
    wheel[at & (WHEEL - 1)] = f
    return more


@inlined_kernel
def candidate(u, nodes, times, q):  # type: ignore[no-untyped-def]
    """Return the cycle from which the next word of node u may move; NEVER if that is not known yet."""
    k, parent, leaf = np.int64(nodes[u, F]), np.int64(nodes[u, PARENT]), np.int64(nodes[u, LEAF])
    if leaf < -1 or nodes[parent, F] <= k:
        return np.int64(NEVER)
    at = np.int64(times[nodes[parent, OFF] + (k & nodes[parent, MASK])]) + nodes[u, LENGTH]
    if leaf >= 0:
        behind = k - nodes[u, DEPTH]
        if behind >= nodes[u, READ]:
            return np.int64(NEVER)
        if behind >= 0:
            at = max(at, np.int64(times[nodes[u, Y_OFF] + (behind & nodes[u, Y_MASK])]) + 1)
    for i in range(CHILD0, CHILD0 + 4):
        c = np.int64(nodes[u, i])
        if c < 0:
            break
        length = np.int64(nodes[c, LENGTH])
        behind = k - q * length
        if behind >= nodes[c, F]:
            return np.int64(NEVER)
        if behind >= 0:
            at = max(at, np.int64(times[nodes[c, OFF] + (behind & nodes[c, MASK])]) + length)
    return at


@inlined_kernel
def reconsider(u, now, nodes, times, routers, wheel, q):  # type: ignore[no-untyped-def]
    """Update when the next word of node u may move; return the number of routers added to the wheel."""
    f = np.int64(nodes[u, ROUTER])
    at = candidate(u, nodes, times, q)
    nodes[u, EARLIEST] = at
    if at == NEVER:
        return 0
    return hang(f, max(at, np.int64(routers[f, R_DONE]) + 1, now), routers, wheel)


@inlined_kernel
def next_router(now, routers, wheel):  # type: ignore[no-untyped-def]
    """Remove and return the router with the earliest cycle of the non-empty wheel; cycles start at `now`."""
    while True:
        f = np.int64(wheel[now & (WHEEL - 1)])
        while f >= 0 and routers[f, R_AT] != now:  # others wait for a later lap
            f = np.int64(routers[f, R_NEXT])
        if f >= 0:
            unhang(f, routers, wheel)
            return f, now
        now += 1


@inlined_kernel
def granted(u, t, nodes, times, cores, stack, size, queued, waits, start, pushed, popped):  # type: ignore[no-untyped-def]
    """Move the next word of node u in cycle t; returns the stack's size after everything affected is on it.

    The last five arguments are columns of the core records and the wait code of a core that has not begun.
    """
    k, parent = np.int64(nodes[u, F]), np.int64(nodes[u, PARENT])
    times[nodes[u, OFF] + (k & nodes[u, MASK])] = t
    nodes[u, F], nodes[u, EARLIEST] = k + 1, NEVER
    for i in range(CHILD0, CHILD0 + 4):
        c = np.int64(nodes[u, i])
        if c < 0:
            break
        if nodes[c, IN_STACK] == 0:
            nodes[c, IN_STACK] = 1
            stack[size] = c
            size += 1
    leaf = np.int64(nodes[u, LEAF])
    if leaf >= 0 and (cores[leaf, waits] == u or cores[leaf, waits] == start) and cores[leaf, queued] == 0:
        cores[leaf, queued] = 1
        stack[size] = ~leaf
        size += 1
    sent = np.int64(nodes[parent, F])
    if sent - k >= nodes[u, WINDOW]:  # the parent may have been waiting for this
        if nodes[parent, IS_RING]:
            c = np.int64(nodes[parent, NODE_CORE])
            if cores[c, pushed] > cores[c, popped] and cores[c, queued] == 0:
                cores[c, queued] = 1
                stack[size] = ~c
                size += 1
        elif nodes[parent, IN_STACK] == 0 and nodes[nodes[parent, PARENT], F] > sent:
            nodes[parent, IN_STACK] = 1
            stack[size] = parent
            size += 1
    if sent > k + 1 and nodes[u, IN_STACK] == 0:
        nodes[u, IN_STACK] = 1
        stack[size] = u
        size += 1
    return size


@inlined_kernel
def first_in_turn(f, nodes, members, routers):  # type: ignore[no-untyped-def]
    """Return the index of the member whose slot is next in round-robin order."""
    first, count, pointer = (
        np.int64(routers[f, R_FIRST]),
        np.int64(routers[f, R_COUNT]),
        routers[f, R_POINTER],
    )
    for i in range(count):
        if nodes[members[first + i], SLOT] >= pointer:
            return np.int64(i)
    return np.int64(0)
