"""The max-plus equations of the stream executor, solved actor by actor without a clock.

With x_u(k) the cycle in which word k leaves router u, y_u(k) the one in which its core reads it, q the
words per queue and hop, and D = 2 T_R - 1:

    router   x_u(k) = max( x_parent(k) + L_u , x_c(k - q L_c) + L_c over children c , y_u(k - depth) + 1 )
    ring     x_s(k) = max( x0(j) + D , previous pop of any color + 1 , x_c(k - q L_c) + L_c )
    core     y_u(k) = max( t , x_u(k) + 1 over the inputs of the step ) ;  t = y + cycles of the step
             a step that sends also waits for the ring:  y >= pop(j - ring) , and x0(j) = y

Every cycle of dependencies has a positive delay, so times that satisfy all equations are *the* times, in whatever order
actors were visited.  An actor is visited when something it waits for has advanced; the worklist is a
stack, so that a transfer runs down its tree while the tree is in the cache.

Speculation: with WINDOW > q L a parent runs ahead of its child as if credits never bound.  Whoever pops word k later
compares its credit with the time already given to word k + q L; a difference marks the tree (``violated``), and the run
is void for it.  With WINDOW = q L the test never applies.
"""

from __future__ import annotations

import numpy as np

from wse_sim.fabric import program as P
from wse_sim.fabric.lower import C_MILLI, C_PER, C_START
from wse_sim.fabric.stream_build import (
    CHILD0,
    DEPTH,
    F,
    IN_STACK,
    IS_RING,
    LEAF,
    LENGTH,
    LOGGED,
    MASK,
    OFF,
    PARENT,
    READ,
    READ_WINDOW,
    ROOT,
    RUN_LAST,
    RUN_N,
    RUN_START,
    RUN_STEP,
    WINDOW,
    Y_MASK,
    Y_OFF,
)
from wse_sim.fabric.stream_build import CORE as NODE_CORE
from wse_sim.jit import kernel

# Fields of a core, one record; the ring follows: (node, x0) per cell, then the pop times of the last cells.
(PC, TIME, STATE, STEPS, STARTED, MILLI, TURNS, TURNS_END, PUSHED, POPPED, LAST_POP, WAIT, QUEUED, IN_COUNT, OUT_COUNT, BUSY_COUNT) = (
    0, 1, 2, 3, 4, 5, 6, 10, 10, 11, 12, 13, 14, 15, 16, 17,
)  # fmt: skip
RECEIVED, LIMIT, RING_READY, RING = 18, 19, 20, 21
READY, HALTED, ABSENT = 0, 1, 2
WAIT_NOTHING, WAIT_RING, WAIT_TURN, WAIT_NEVER = -1, -2, -3, -4

# Settings and scalars of a run.
(S_SIZE, S_RING, S_RING_MASK, S_DELAY, S_QUEUE, S_LOG, S_PAUSE, S_MARGIN) = range(8)
N_SETTINGS = 8
EMPTY, LOG_FULL, TOO_LONG = 0, 1, 2
LATEST = 2**30

_HALT, _LOOP, _ENDLOOP, _BUSY, _CONTROL = (int(op) for op in (P.Op.HALT, P.Op.LOOP, P.Op.ENDLOOP, P.Op.BUSY, P.Op.CONTROL))
_FABRIC = int(P.Kind.FABRIC)
OP, N, N_PARAM, LEVEL, TARGET = P.OP, P.N, P.N_PARAM, P.LEVEL, P.TARGET
A_KIND, A_SLOT, B_KIND, B_SLOT = P.A + P.KIND, P.A + P.BUF, P.B + P.KIND, P.B + P.BUF
D_KIND, D_SLOT = P.D + P.KIND, P.D + P.BUF


@kernel
def push_node(u, nodes, stack, s):  # type: ignore[no-untyped-def]
    """Queue a node once."""
    if nodes[u, IN_STACK] == 0:
        nodes[u, IN_STACK] = 1
        stack[s[S_SIZE]] = u
        s[S_SIZE] += 1


@kernel
def push_core(c, cores, stack, s):  # type: ignore[no-untyped-def]
    """Queue a core once."""
    if cores[c, QUEUED] == 0:
        cores[c, QUEUED] = 1
        stack[s[S_SIZE]] = ~c
        s[S_SIZE] += 1


@kernel
def log_times(u, first, last, nodes, times, log, s):  # type: ignore[no-untyped-def]
    """Extend the arithmetic run of node `u` by words first .. last - 1."""
    off, mask = nodes[u, OFF], nodes[u, MASK]
    start, step, n, previous = nodes[u, RUN_START], nodes[u, RUN_STEP], nodes[u, RUN_N], nodes[u, RUN_LAST]
    for k in range(first, last):
        x = times[off + (k & mask)]
        if n > 1 and x - previous == step:
            n += 1
        elif n == 1:
            step = x - previous
            n = 2
        else:
            if n > 0:
                i = s[S_LOG]
                log[i, 0], log[i, 1], log[i, 2], log[i, 3] = u, start, step, n
                s[S_LOG] = i + 1
            start, step, n = x, 0, 1
        previous = x
    nodes[u, RUN_START], nodes[u, RUN_STEP], nodes[u, RUN_N], nodes[u, RUN_LAST] = start, step, n, previous


@kernel
def visit_node(u, nodes, times, cores, stack, log, violated, s):  # type: ignore[no-untyped-def]
    """Move every word of router node `u` that its parent has sent and its targets have room for."""
    parent = nodes[u, PARENT]
    first, leaf, q = np.int64(nodes[u, F]), nodes[u, LEAF], s[S_QUEUE]
    last = np.int64(nodes[parent, F])
    if leaf >= 0:
        last = min(last, np.int64(nodes[u, READ]) + nodes[u, READ_WINDOW])
    for i in range(CHILD0, CHILD0 + 4):
        c = nodes[u, i]
        if c < 0:
            break
        last = min(last, np.int64(nodes[c, F]) + nodes[c, WINDOW])
    if last <= first or leaf < -1:
        return
    length = nodes[u, LENGTH]
    off, mask = nodes[u, OFF], nodes[u, MASK]
    p_off, p_mask = nodes[parent, OFF], nodes[parent, MASK]
    for k in range(first, last):
        times[off + (k & mask)] = times[p_off + (k & p_mask)] + length
    if leaf >= 0:
        depth = np.int64(nodes[u, DEPTH])
        y_off, y_mask = nodes[u, Y_OFF], nodes[u, Y_MASK]
        for k in range(max(first, depth), min(last, nodes[u, READ] + depth)):
            times[off + (k & mask)] = max(times[off + (k & mask)], times[y_off + ((k - depth) & y_mask)] + 1)
    for i in range(CHILD0, CHILD0 + 4):
        c = nodes[u, i]
        if c < 0:
            break
        c_length = np.int64(nodes[c, LENGTH])
        window = q * c_length
        c_off, c_mask = nodes[c, OFF], nodes[c, MASK]
        for k in range(max(first, window), min(last, nodes[c, F] + window)):
            times[off + (k & mask)] = max(times[off + (k & mask)], times[c_off + ((k - window) & c_mask)] + c_length)
    nodes[u, F] = last
    window = q * length
    for k in range(first, min(last, nodes[parent, F] - window)):
        if times[off + (k & mask)] + length > times[p_off + ((k + window) & p_mask)]:
            violated[nodes[u, ROOT]] = 1
    if nodes[u, LOGGED]:
        log_times(u, first, last, nodes, times, log, s)
    if nodes[parent, F] - first >= nodes[u, WINDOW]:
        if nodes[parent, IS_RING]:
            push_core(nodes[parent, NODE_CORE], cores, stack, s)
        else:
            push_node(parent, nodes, stack, s)
    for i in range(CHILD0, CHILD0 + 4):
        c = nodes[u, i]
        if c < 0:
            break
        push_node(c, nodes, stack, s)
    if leaf >= 0 and cores[leaf, WAIT] == u:
        push_core(leaf, cores, stack, s)


@kernel
def drain(c, cores, nodes, times, stack, s):  # type: ignore[no-untyped-def]
    """Let words leave the output ring of core `c`, first in first out; True if one left."""
    popped, moved = cores[c, POPPED], False
    pops = RING + 2 * (s[S_RING_MASK] + 1)
    while popped < cores[c, PUSHED]:
        cell = RING + 2 * (popped & s[S_RING_MASK])
        u = cores[c, cell]
        k = np.int64(nodes[u, F])
        child = nodes[u, CHILD0]
        if k >= nodes[child, F] + nodes[child, WINDOW]:
            break
        x = max(cores[c, cell + 1] + s[S_DELAY], np.int64(cores[c, LAST_POP]) + 1)
        length = np.int64(nodes[child, LENGTH])
        behind = k - s[S_QUEUE] * length
        if 0 <= behind < nodes[child, F]:
            x = max(x, np.int64(times[nodes[child, OFF] + (behind & nodes[child, MASK])]) + length)
        times[nodes[u, OFF] + (k & nodes[u, MASK])] = x
        nodes[u, F] = k + 1
        cores[c, LAST_POP] = x
        cores[c, pops + (popped & s[S_RING_MASK])] = x
        popped += 1
        push_node(child, nodes, stack, s)
        moved = True
    cores[c, POPPED] = popped
    return moved


@kernel
def release(u, first, nodes, stack, s):  # type: ignore[no-untyped-def]
    """After reads from word `first` on: wake the router if it waited for room."""
    if nodes[u, F] - first >= nodes[u, READ_WINDOW]:
        push_node(u, nodes, stack, s)


@kernel
def receive(c, a, b, cost, cores, nodes, times, stack, violated, s):  # type: ignore[no-untyped-def]
    """Steps that only read: all that are there; returns the node waited for, or WAIT_NOTHING if the steps are done."""
    n = np.int64(cores[c, STEPS])
    n = min(n, np.int64(nodes[a, F]) - nodes[a, READ])
    if b >= 0:
        n = min(n, np.int64(nodes[b, F]) - nodes[b, READ])
    t, milli, stalled = np.int64(cores[c, TIME]), np.int64(cores[c, MILLI]), np.int64(0)
    start = t
    first = np.int64(nodes[a, READ])
    first_b = np.int64(nodes[b, READ]) if b >= 0 else np.int64(0)
    off, mask, y_off, y_mask = nodes[a, OFF], nodes[a, MASK], nodes[a, Y_OFF], nodes[a, Y_MASK]
    depth, seen = np.int64(nodes[a, DEPTH]), np.int64(nodes[a, F])
    bad = False
    for i in range(n):
        k = first + i
        y = np.int64(times[off + (k & mask)]) + 1
        if b >= 0:
            y = max(y, np.int64(times[nodes[b, OFF] + ((first_b + i) & nodes[b, MASK])]) + 1)
        if y > t:
            stalled += y - t
        else:
            y = t
        times[y_off + (k & y_mask)] = y
        if k + depth < seen and y + 1 > times[off + ((k + depth) & mask)]:
            bad = True
        if b >= 0:
            kb = first_b + i
            times[nodes[b, Y_OFF] + (kb & nodes[b, Y_MASK])] = y
            ahead = kb + nodes[b, DEPTH]
            if ahead < nodes[b, F] and y + 1 > times[nodes[b, OFF] + (ahead & nodes[b, MASK])]:
                violated[nodes[b, ROOT]] = 1
        if cost == 1000:
            t = y + 1
        else:
            total = milli + cost
            cycles = total // 1000
            milli = total - 1000 * cycles
            t = y + cycles
    if bad:
        violated[nodes[a, ROOT]] = 1
    cores[c, MILLI] = milli
    cores[c, TIME] = t
    cores[c, STEPS] -= n
    cores[c, IN_COUNT] += stalled
    cores[c, BUSY_COUNT] += t - start - stalled
    nodes[a, READ] += n
    cores[c, RECEIVED] += n
    release(a, first, nodes, stack, s)
    if b >= 0:
        nodes[b, READ] += n
        cores[c, RECEIVED] += n
        release(b, first_b, nodes, stack, s)
    if cores[c, STEPS] == 0:
        return np.int64(WAIT_NOTHING)
    return np.int64(a) if nodes[a, F] == nodes[a, READ] else np.int64(b)


@kernel
def send(c, a, b, out, cost, cores, nodes, times, stack, violated, s):  # type: ignore[no-untyped-def]
    """Steps that send, with up to two inputs; returns what is waited for, or WAIT_NOTHING."""
    steps, t, milli = np.int64(cores[c, STEPS]), np.int64(cores[c, TIME]), np.int64(cores[c, MILLI])
    first = np.int64(nodes[a, READ]) if a >= 0 else np.int64(0)
    first_b = np.int64(nodes[b, READ]) if b >= 0 else np.int64(0)
    kept = np.int64(nodes[out, OFF]), np.int64(nodes[out, MASK])
    child = nodes[out, CHILD0]
    length, window = np.int64(nodes[child, LENGTH]), np.int64(nodes[child, WINDOW])
    exact = s[S_QUEUE] * length
    ring_mask, ring_size = s[S_RING_MASK], s[S_RING]
    pops = RING + 2 * (ring_mask + 1)
    done, wait, moved = np.int64(0), np.int64(WAIT_NOTHING), False
    stalled_in, stalled_out, start = np.int64(0), np.int64(0), t
    while done < steps:
        if a >= 0 and nodes[a, F] <= first + done:
            wait = np.int64(a)
            break
        if b >= 0 and nodes[b, F] <= first_b + done:
            wait = np.int64(b)
            break
        y = t
        if a >= 0:
            y = max(y, np.int64(times[nodes[a, OFF] + ((first + done) & nodes[a, MASK])]) + 1)
        if b >= 0:
            y = max(y, np.int64(times[nodes[b, OFF] + ((first_b + done) & nodes[b, MASK])]) + 1)
        pushed, popped = np.int64(cores[c, PUSHED]), np.int64(cores[c, POPPED])
        if pushed - popped >= ring_size and not drain(c, cores, nodes, times, stack, s):
            wait = np.int64(WAIT_RING)
            cores[c, RING_READY] = y
            break
        popped = np.int64(cores[c, POPPED])
        stalled_in += y - t
        if pushed >= ring_size:
            room = np.int64(cores[c, pops + ((pushed - ring_size) & ring_mask)])
            if room > y:
                stalled_out += room - y
                y = room
        if a >= 0:
            k = first + done
            times[nodes[a, Y_OFF] + (k & nodes[a, Y_MASK])] = y
            ahead = k + nodes[a, DEPTH]
            if ahead < nodes[a, F] and y + 1 > times[nodes[a, OFF] + (ahead & nodes[a, MASK])]:
                violated[nodes[a, ROOT]] = 1
        if b >= 0:
            k = first_b + done
            times[nodes[b, Y_OFF] + (k & nodes[b, Y_MASK])] = y
            ahead = k + nodes[b, DEPTH]
            if ahead < nodes[b, F] and y + 1 > times[nodes[b, OFF] + (ahead & nodes[b, MASK])]:
                violated[nodes[b, ROOT]] = 1
        cores[c, PUSHED] = pushed + 1
        k = np.int64(nodes[out, F])
        if popped == pushed and k < nodes[child, F] + window:  # the ring is drained: the word leaves at once
            x = max(y + s[S_DELAY], np.int64(cores[c, LAST_POP]) + 1)
            behind = k - exact
            if 0 <= behind < nodes[child, F]:
                x = max(x, np.int64(times[nodes[child, OFF] + (behind & nodes[child, MASK])]) + length)
            times[kept[0] + (k & kept[1])] = x
            nodes[out, F] = k + 1
            cores[c, LAST_POP] = x
            cores[c, pops + (pushed & ring_mask)] = x
            cores[c, POPPED] = pushed + 1
            moved = True
        else:
            cell = RING + 2 * (pushed & ring_mask)
            cores[c, cell], cores[c, cell + 1] = out, y
        total = milli + cost
        cycles = total // 1000
        milli = total - 1000 * cycles
        t = y + cycles
        done += 1
    cores[c, TIME], cores[c, MILLI], cores[c, STEPS] = t, milli, steps - done
    cores[c, IN_COUNT] += stalled_in
    cores[c, OUT_COUNT] += stalled_out
    cores[c, BUSY_COUNT] += t - start - stalled_in - stalled_out
    if a >= 0 and done > 0:
        nodes[a, READ] += done
        cores[c, RECEIVED] += done
        release(a, first, nodes, stack, s)
    if b >= 0 and done > 0:
        nodes[b, READ] += done
        cores[c, RECEIVED] += done
        release(b, first_b, nodes, stack, s)
    if moved:
        push_node(child, nodes, stack, s)
    return wait


@kernel
def input_node(c, row, kind, slot, code, leaf_of):  # type: ignore[no-untyped-def]
    """Node in front of the input queue that an operand reads; WAIT_NEVER if no word can ever come."""
    if code[row, kind] != _FABRIC:
        return np.int64(WAIT_NOTHING)
    u = np.int64(leaf_of[c, code[row, slot]])
    return u if u >= 0 else np.int64(WAIT_NEVER)


@kernel
def visit_core(c, cores, nodes, times, stack, code, costs, params, leaf_of, ring_of, violated, s):  # type: ignore[no-untyped-def]
    """Run the program of core `c` until it waits for a word, for the ring, for its turn, or halts."""
    drain(c, cores, nodes, times, stack, s)
    if cores[c, STATE] != READY:
        return
    cores[c, WAIT] = WAIT_NOTHING
    while True:
        row = np.int64(cores[c, PC])
        op = code[row, OP]
        if op == _HALT:
            cores[c, STATE] = HALTED
            return
        if cores[c, STARTED] == 0:
            n = code[row, N] if code[row, N_PARAM] < 0 else np.int64(max(0, params[code[row, N_PARAM], c]))
        else:
            n = np.int64(0)
        level = code[row, LEVEL]
        if op == _LOOP:
            if level == 0 and cores[c, LIMIT] == 0 and s[S_PAUSE]:
                cores[c, WAIT] = WAIT_TURN
                return
            cores[c, TURNS + level] = n
            if n == 0:
                cores[c, PC] = code[row, TARGET]
            elif level == 0:
                cores[c, LIMIT] -= 1
        elif op == _ENDLOOP:
            if level == 0 and cores[c, TURNS] > 1:
                if cores[c, LIMIT] == 0 and s[S_PAUSE]:
                    cores[c, WAIT] = WAIT_TURN
                    return
                cores[c, LIMIT] -= 1
            cores[c, TURNS + level] -= 1
            if cores[c, TURNS + level] > 0:
                cores[c, PC] = code[row, TARGET]
        elif op == _BUSY:
            cores[c, TIME] += n
            cores[c, BUSY_COUNT] += n
        else:
            per = costs[row, C_PER]
            if cores[c, STARTED] == 0:
                cores[c, STARTED] = 1
                cores[c, TIME] += costs[row, C_START]
                cores[c, BUSY_COUNT] += costs[row, C_START]
                if per == 0:
                    if n > 0:
                        cycles = max(np.int64(1), (999 + costs[row, C_MILLI] * n) // 1000)
                        cores[c, TIME] += cycles
                        cores[c, BUSY_COUNT] += cycles
                    cores[c, STEPS] = 0
                else:
                    cores[c, STEPS] = (n + per - 1) // per
                    cores[c, MILLI] = 999
            if cores[c, STEPS] > 0:
                a = input_node(c, row, A_KIND, A_SLOT, code, leaf_of)
                b = input_node(c, row, B_KIND, B_SLOT, code, leaf_of)
                if a == WAIT_NOTHING:
                    a, b = b, a
                cost = costs[row, C_MILLI]
                if a == WAIT_NEVER or b == WAIT_NEVER:
                    wait = np.int64(WAIT_NEVER)
                elif code[row, D_KIND] == _FABRIC:
                    out = ring_of[c, code[row, D_SLOT]]
                    wait = send(c, a, b, out, cost, cores, nodes, times, stack, violated, s)
                else:
                    wait = receive(c, a, b, cost, cores, nodes, times, stack, violated, s)
                if wait != WAIT_NOTHING:
                    cores[c, WAIT] = wait
                    return
            cores[c, STARTED] = 0
        cores[c, PC] += 1


@kernel
def solve(nodes, times, cores, stack, log, code, costs, params, leaf_of, ring_of, violated, s):  # type: ignore[no-untyped-def]
    """Visit actors until nothing can advance (EMPTY), or the log is full and must be grown (LOG_FULL)."""
    room = log.shape[0] - s[S_MARGIN]
    while s[S_SIZE] > 0:
        if s[S_LOG] >= room:
            return LOG_FULL
        s[S_SIZE] -= 1
        u = stack[s[S_SIZE]]
        if u >= 0:
            nodes[u, IN_STACK] = 0
            visit_node(u, nodes, times, cores, stack, log, violated, s)
        else:
            c = ~u
            cores[c, QUEUED] = 0
            visit_core(c, cores, nodes, times, stack, code, costs, params, leaf_of, ring_of, violated, s)
            if cores[c, TIME] > LATEST:
                return TOO_LONG
    return EMPTY
