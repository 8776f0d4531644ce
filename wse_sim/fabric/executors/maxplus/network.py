# mypy: disable-error-code="assignment"
"""Words in transit: visits of routers and rings, and the cycles in which words move.

The equations are in the docstring of :mod:`~wse_sim.fabric.executors.maxplus.advance`.
"""

from __future__ import annotations

import numpy as np

from wse_sim.fabric.executors.maxplus.graph import (
    CHILD0,
    DEPTH,
    EARLIEST,
    IN_STACK,
    LEAF,
    LENGTH,
    LOGGED,
    MASK,
    NEVER,
    OFF,
    PARENT,
    PORTS,
    READ,
    READ_WINDOW,
    ROOT,
    RUN_LAST,
    RUN_N,
    RUN_START,
    RUN_STEP,
    SLOT,
    WINDOW,
    Y_MASK,
    Y_OFF,
    F,
)
from wse_sim.fabric.executors.maxplus.graph import CORE as NODE_CORE
from wse_sim.fabric.executors.maxplus.order import (
    R_COUNT,
    R_DONE,
    R_FIRST,
    R_POINTER,
    first_in_turn,
    granted,
    hang,
    next_router,
)
from wse_sim.fabric.executors.maxplus.records import LAST_POP, POPPED, PUSHED, QUEUED, RING, WAIT, WAIT_START
from wse_sim.fabric.executors.maxplus.sign import sign
from wse_sim.jit import inlined_kernel


@inlined_kernel
def visit_node(u, net, size):  # type: ignore[no-untyped-def]
    """Push node u onto the stack unless it is there; return the stack's size."""
    if net.nodes[u, IN_STACK] == 0:
        net.nodes[u, IN_STACK] = 1
        net.stack[size] = u
        size += 1
    return size


@inlined_kernel
def visit_core(c, net, size):  # type: ignore[no-untyped-def]
    """Push core c onto the stack unless it is there; return the stack's size."""
    if net.cores[c, QUEUED] == 0:
        net.cores[c, QUEUED] = 1
        net.stack[size] = ~c
        size += 1
    return size


@inlined_kernel
def arbitrate(now, net, ordered, rules, size):  # type: ignore[no-untyped-def]
    """Run one cycle of the ordered router with the earliest candidate; return (stack size, cycle, waiting
    routers)."""
    nodes, routers, members = net.nodes, ordered.routers, ordered.members
    f, now = next_router(now, routers, ordered.wheel)
    hanging = np.int64(-1)
    first, count = np.int64(routers[f, R_FIRST]), np.int64(routers[f, R_COUNT])
    at = first_in_turn(f, nodes, members, routers) if rules.in_turns else np.int64(0)
    taken, again = np.int64(0), np.int64(NEVER)
    for _ in range(count):
        u = np.int64(members[first + at])
        at = at + 1 if at + 1 < count else np.int64(0)
        if nodes[u, EARLIEST] > now:
            again = min(again, np.int64(nodes[u, EARLIEST]))
        elif nodes[u, PORTS] & taken:
            again = now + 1
        else:
            taken |= nodes[u, PORTS]
            routers[f, R_POINTER] = nodes[u, SLOT] + 1 if nodes[u, SLOT] + 1 < rules.slots else 0
            size = granted(
                u, now, nodes, net.times, net.cores, net.stack, size, QUEUED, WAIT, WAIT_START, PUSHED, POPPED
            )
            if rules.signing:
                sign(2 * u, now, net.signs)
    routers[f, R_DONE] = now
    if again != NEVER:
        hanging += hang(f, again, routers, ordered.wheel)
    return size, now, hanging


@inlined_kernel
def log_moves(u, first, last, net, n_log):  # type: ignore[no-untyped-def]
    """Extend the open arithmetic run of node u by its moves first .. last - 1; return the number of log
    entries."""
    nodes, log = net.nodes, net.log
    off, mask = np.int64(nodes[u, OFF]), np.int64(nodes[u, MASK])
    start, step = np.int64(nodes[u, RUN_START]), np.int64(nodes[u, RUN_STEP])
    n, previous = np.int64(nodes[u, RUN_N]), np.int64(nodes[u, RUN_LAST])
    for k in range(first, last):
        x = np.int64(net.times[off + (k & mask)])
        if n > 1 and x - previous == step:
            n += 1
        elif n == 1:
            step = x - previous
            n = 2
        else:
            if n > 0:
                log[n_log, 0], log[n_log, 1], log[n_log, 2], log[n_log, 3] = u, start, step, n
                n_log += 1
            start, step, n = x, 0, 1
        previous = x
    nodes[u, RUN_START], nodes[u, RUN_STEP] = start, step
    nodes[u, RUN_N], nodes[u, RUN_LAST] = n, previous
    return n_log


@inlined_kernel
def move_words(u, net, rules, size, n_log):  # type: ignore[no-untyped-def]
    """Move all words that the parent has sent and the targets have room for out of node u; return (size, log
    entries)."""
    nodes, times, cores = net.nodes, net.times, net.cores
    parent = np.int64(nodes[u, PARENT])
    first, leaf, window = np.int64(nodes[u, F]), np.int64(nodes[u, LEAF]), np.int64(nodes[u, WINDOW])
    sent = np.int64(nodes[parent, F])
    last = sent
    if leaf >= 0:
        last = min(last, np.int64(nodes[u, READ]) + nodes[u, READ_WINDOW])
    for i in range(CHILD0, CHILD0 + 4):
        c = nodes[u, i]
        if c < 0:
            break
        last = min(last, np.int64(nodes[c, F]) + nodes[c, WINDOW])
    if last <= first or leaf < -1:
        return size, n_log
    length = np.int64(nodes[u, LENGTH])
    off, mask = np.int64(nodes[u, OFF]), np.int64(nodes[u, MASK])
    p_off, p_mask = np.int64(nodes[parent, OFF]), np.int64(nodes[parent, MASK])
    for k in range(first, last):
        times[off + (k & mask)] = times[p_off + (k & p_mask)] + length
    if leaf >= 0:
        depth = np.int64(nodes[u, DEPTH])
        y_off, y_mask = np.int64(nodes[u, Y_OFF]), np.int64(nodes[u, Y_MASK])
        for k in range(max(first, depth), min(last, nodes[u, READ] + depth)):
            x = np.int64(times[y_off + ((k - depth) & y_mask)]) + 1
            if x > times[off + (k & mask)]:
                times[off + (k & mask)] = x
    for i in range(CHILD0, CHILD0 + 4):
        c = nodes[u, i]
        if c < 0:
            break
        c_length = np.int64(nodes[c, LENGTH])
        c_off, c_mask = np.int64(nodes[c, OFF]), np.int64(nodes[c, MASK])
        behind = rules.queue * c_length
        for k in range(max(first, behind), min(last, nodes[c, F] + behind)):
            x = np.int64(times[c_off + ((k - behind) & c_mask)]) + c_length
            if x > times[off + (k & mask)]:
                times[off + (k & mask)] = x
        size = visit_node(c, net, size)
    nodes[u, F] = last
    if rules.signing:
        for k in range(first, last):
            sign(2 * u, np.int64(times[off + (k & mask)]), net.signs)
    behind = rules.queue * length
    for k in range(first, min(last, sent - behind)):  # empty unless the parent ran ahead of its credits
        if times[off + (k & mask)] + length > times[p_off + ((k + behind) & p_mask)]:
            net.violated[nodes[u, ROOT]] = 1
    if nodes[u, LOGGED]:
        n_log = log_moves(u, first, last, net, n_log)
    if leaf >= 0 and (cores[leaf, WAIT] == u or cores[leaf, WAIT] == WAIT_START):
        size = visit_core(leaf, net, size)
    if sent - first >= window:  # the parent may have been waiting for this
        above = np.int64(nodes[parent, PARENT])
        if above < 0:
            c = nodes[parent, NODE_CORE]
            if cores[c, PUSHED] > cores[c, POPPED]:
                size = visit_core(c, net, size)
        elif nodes[above, F] > sent:
            size = visit_node(parent, net, size)
    return size, n_log


@inlined_kernel
def drain_ring(core, net, rules, size):  # type: ignore[no-untyped-def]
    """Move words out of a ring, first in first out, while the first router has room; return the stack's
    size."""
    nodes, times, cores = net.nodes, net.times, net.cores
    popped, pushed = np.int64(cores[core, POPPED]), np.int64(cores[core, PUSHED])
    while popped < pushed:
        cell = RING + 2 * (popped & rules.ring_mask)
        u = np.int64(cores[core, cell])
        k, child = np.int64(nodes[u, F]), np.int64(nodes[u, CHILD0])
        if k >= np.int64(nodes[child, F]) + nodes[child, WINDOW]:
            break
        x = max(np.int64(cores[core, cell + 1]) + rules.delay, np.int64(cores[core, LAST_POP]) + 1)
        length = np.int64(nodes[child, LENGTH])
        behind = k - rules.queue * length
        if 0 <= behind < nodes[child, F]:
            x = max(x, np.int64(times[nodes[child, OFF] + (behind & nodes[child, MASK])]) + length)
        times[nodes[u, OFF] + (k & nodes[u, MASK])] = x
        nodes[u, F] = k + 1
        cores[core, LAST_POP] = x
        cores[core, rules.pops + (popped & rules.ring_mask)] = x
        if rules.signing:
            sign(2 * u, x, net.signs)
        popped += 1
        size = visit_node(child, net, size)
    cores[core, POPPED] = popped
    return size
