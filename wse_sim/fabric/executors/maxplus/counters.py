"""Counters of a solved graph: words per link, words left in every queue, the cycle in which nothing moves.

A router that was folded into an edge p -> u at distance l from p, with the rest L_u - l behind it, has moved

    m = min( F_p , F_u + q (L_u - l) )   words, the last one at   max( x_p(m-1) + l , x_u(m-1 - q (L_u - l)) + L_u - l ).

A deadlocked run stops when nothing waits only for the clock. After its last move, these may still arrive:

* the oldest word of every queue, on the link before it: word m arrives at x_p(m) + l.  If a credit made it leave its router
  later, that was the credit of this queue, and with q >= 2 it arrives no later than the cycle after the last move out of it.
* credits on their way back to a router that holds its word k for another output: until x_u(k - q L_u) + L_u.

The trees are walked exactly as :func:`wse_sim.fabric.executors.maxplus.graph.grow_trees` did, so that the nodes come in the
order of their numbers.
"""

from __future__ import annotations

import numpy as np

from wse_sim.fabric.executors.maxplus.graph import (
    DEAD,
    DEPTH,
    LEAF,
    LENGTH,
    MASK,
    OFF,
    PARENT,
    RAMP,
    RAMP_BIT,
    READ,
    ROOT,
    F,
)
from wse_sim.jit import helper_kernel, kernel


@helper_kernel
def neighbour(r, port, cols):  # type: ignore[no-untyped-def]
    """Return the core on the other side of a mesh port."""
    if port == 0:
        return r - cols
    if port == 1:
        return r + 1
    if port == 2:
        return r + cols
    return r - 1


@helper_kernel
def time_of(u, k, nodes, times):  # type: ignore[no-untyped-def]
    """Return the cycle in which word k left node u; -1 before the first word."""
    if k < 0:
        return np.int64(-1)
    return np.int64(times[nodes[u, OFF] + (k & nodes[u, MASK])])


@kernel
def count_links(  # type: ignore[no-untyped-def]
    cols, route, tx_of, turns, sends, core_class, skip, ignore, shared, hop, turn_cost, die_edges, crossing, q, nodes, times, links, waiting,
    keep_waiting, solid, stack, edges, chain,
):  # fmt: skip
    """Fill ``links`` (R, 5) and, if requested, ``waiting`` (slots, R, 5); return the end of all moves, and
    words left.

    `skip`: sources without nodes; `ignore`: sources whose trees are not counted.
    """
    n_slots, n = route.shape
    count, end, left = np.int64(0), np.int64(0), np.int64(0)
    for slot in range(n_slots):
        for core in range(n):
            if skip[core] or not sends[core_class[core], slot]:
                continue
            root, counted = count, not ignore[core]
            count += 1
            stack[0], edges[0], sp = core * 8 + RAMP, 1, 1
            while sp > 0:
                sp -= 1
                r, port_in, length, links_in = stack[sp] >> 3, stack[sp] & 7, edges[sp], np.int64(0)
                while True:  # routers folded into the edge
                    cfg = route[slot, r]
                    tx = tx_of[cfg]
                    mesh = tx & 15
                    if mesh == 0 or mesh & (mesh - 1) != 0 or tx & (RAMP_BIT | shared[r]) or solid[r]:
                        break
                    port = 0 if mesh == 1 else (1 if mesh == 2 else (2 if mesh == 4 else 3))
                    chain[links_in, 0], chain[links_in, 1], chain[links_in, 2], chain[links_in, 3] = (
                        r,
                        port,
                        length,
                        port_in,
                    )
                    links_in += 1
                    length += hop + (turn_cost if (turns[cfg] >> port) & 1 else 0)
                    length += crossing if (die_edges[r] >> port) & 1 else 0
                    r, port_in = neighbour(r, port, cols), (port + 2) % 4
                u = count
                count += 1
                parent = nodes[u, PARENT]
                sent, taken = np.int64(nodes[parent, F]), np.int64(nodes[u, F])
                before = sent
                for i in range(links_in if counted else 0):
                    rest = length - chain[i, 2]
                    moved = min(sent, taken + q * rest)
                    if moved > 0:
                        behind = moved - 1 - q * rest
                        last = time_of(parent, moved - 1, nodes, times) + chain[i, 2]
                        if 0 <= behind < taken:
                            last = max(last, time_of(u, behind, nodes, times) + rest)
                        end = max(end, last + 1)
                    if moved < before:
                        end = max(end, time_of(parent, moved, nodes, times) + chain[i, 2])
                    links[chain[i, 0], chain[i, 1]] += moved
                    if keep_waiting:
                        waiting[slot, chain[i, 0], chain[i, 3]] += before - moved
                    before = moved
                if counted:
                    left += sent - taken
                if keep_waiting and counted:
                    waiting[slot, r, port_in] += before - taken
                if counted and taken > 0:
                    end = max(end, time_of(u, taken - 1, nodes, times) + 1)
                if counted and taken < before:
                    end = max(end, time_of(parent, taken, nodes, times) + length)
                above, behind = np.int64(nodes[parent, PARENT]), sent - q * length
                if counted and above >= 0 and nodes[above, F] > sent and 0 <= behind < taken:
                    end = max(end, time_of(u, behind, nodes, times) + length)
                if counted and nodes[u, LEAF] >= 0:
                    left += taken - nodes[u, READ]
                if nodes[u, LEAF] == DEAD:
                    continue
                if counted and nodes[u, LEAF] >= 0:
                    links[r, RAMP] += taken
                cfg = route[slot, r]
                mesh = tx_of[cfg] & 15
                for port in range(4):
                    if (mesh >> port) & 1:
                        links[r, port] += taken if counted else 0
                        stack[sp] = neighbour(r, port, cols) * 8 + (port + 2) % 4
                        edges[sp] = hop + (turn_cost if (turns[cfg] >> port) & 1 else 0)
                        edges[sp] += crossing if (die_edges[r] >> port) & 1 else 0
                        sp += 1
            if counted and nodes[root, F] > 0:
                end = max(end, time_of(root, np.int64(nodes[root, F]) - 1, nodes, times) + 1)
    return end, left


@kernel
def speculated_too_far(nodes, q, violated):  # type: ignore[no-untyped-def]
    """Mark trees in which a parent moved words for which its child or core never had room."""
    any_marked = False
    for u in range(nodes.shape[0]):
        parent = nodes[u, PARENT]
        late = parent >= 0 and nodes[parent, F] - q * nodes[u, LENGTH] > nodes[u, F]
        if late or (nodes[u, LEAF] >= 0 and nodes[u, F] - nodes[u, DEPTH] > nodes[u, READ]):
            violated[nodes[u, ROOT]] = 1
        if violated[nodes[u, ROOT]]:
            any_marked = True
    return any_marked
