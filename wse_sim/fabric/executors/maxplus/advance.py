# mypy: disable-error-code="assignment"
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
import numpy.typing as npt

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
    ROUTER,
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
    reconsider,
)
from wse_sim.fabric.executors.maxplus.sign import sign
from wse_sim.fabric.format import program as P
from wse_sim.fabric.format.lower import C_MILLI, C_PER, C_START
from wse_sim.fabric.format.program import Program
from wse_sim.jit import bare_kernel

# Fields of a core, one record; the ring follows: (node, x0) per cell, then the pop times of the last cells.
(PC, TIME, STATE, STEPS, STARTED, MILLI, TURNS, TURNS_END, PUSHED, POPPED, LAST_POP, WAIT, QUEUED, IN_COUNT, OUT_COUNT, BUSY_COUNT) = (
    0, 1, 2, 3, 4, 5, 6, 10, 10, 11, 12, 13, 14, 15, 16, 17,
)  # fmt: skip
RECEIVED, LIMIT, RING_READY, ANCHOR, RING = 18, 19, 20, 21, 22
NO_STEP, ARRIVAL, OWN_CLOCK = 0, 1, 2  # what the first step with a fabric operand waited for (ANCHOR)
READY, HALTED, ABSENT = 0, 1, 2
WAIT_NOTHING, WAIT_RING, WAIT_TURN, WAIT_NEVER, WAIT_START = -1, -2, -3, -4, -5

# Settings and scalars of a run.
(S_SIZE, S_RING, S_RING_MASK, S_DELAY, S_QUEUE, S_LOG, S_PAUSE, S_MARGIN, S_FRESH) = range(9)
# Clock and load of the ordered routers, round robin or not, slots; sign the streams or not.
(S_NOW, S_HANGING, S_TURNS, S_SLOTS, S_SIGN) = range(9, 14)
N_SETTINGS = 14
EMPTY, LOG_FULL, TOO_LONG = 0, 1, 2
LATEST = 2**30

_HALT, _LOOP, _ENDLOOP, _BUSY = (int(op) for op in (P.Op.HALT, P.Op.LOOP, P.Op.ENDLOOP, P.Op.BUSY))

# Columns of the decoded program: what a visit needs, in one cache line; slots are -1 where the operand is not fabric.
(O_OP, O_N, O_PARAM, O_LEVEL, O_TARGET, O_A, O_B, O_D, O_START, O_PER, O_MILLI, O_WHOLE, O_PART) = range(13)
OP_FIELDS = 16


def decode(program: Program, costs: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """int64 (n_instr, OP_FIELDS): fields and costs of every instruction."""
    code = program.code
    ops = np.zeros((max(1, len(code)), OP_FIELDS), np.int64)
    for column, field in (
        (O_OP, P.OP),
        (O_N, P.N),
        (O_PARAM, P.N_PARAM),
        (O_LEVEL, P.LEVEL),
        (O_TARGET, P.TARGET),
    ):
        ops[: len(code), column] = code[:, field]
    joins = ops[: len(code), O_OP] == P.Op.JOIN  # of a thread that is idle by then
    ops[: len(code)][joins, O_OP], ops[: len(code)][joins, O_N], ops[: len(code)][joins, O_PARAM] = (
        _BUSY,
        0,
        -1,
    )
    vector = code[:, P.OP] >= P.FIRST_VECTOR_OP
    for column, place in ((O_A, P.A), (O_B, P.B), (O_D, P.D)):
        fabric = vector & (code[:, place + P.KIND] == P.Kind.FABRIC)
        ops[: len(code), column] = np.where(fabric, code[:, place + P.BUF], -1)
    for column, field in ((O_START, C_START), (O_PER, C_PER), (O_MILLI, C_MILLI)):
        ops[: len(code), column] = costs[:, field]
    ops[:, O_WHOLE], ops[:, O_PART] = np.divmod(ops[:, O_MILLI], 1000)
    return ops


@bare_kernel
def solve(  # type: ignore[no-untyped-def]
    nodes, times, cores, stack, log, ops, params, leaf_of, ring_of, violated, routers, members, wheel, signs, s
):  # fmt: skip
    """Visit actors until nothing can advance (EMPTY), or the log is full and must be grown (LOG_FULL).

    One function on purpose: handing over the arrays would cost more than the equations of a short transfer.  Sections:
    next actor, ordered router, router, ring, program of a core with its two step loops.
    """
    room = log.shape[0] - s[S_MARGIN]
    q, delay, ring_size, ring_mask, pausing = s[S_QUEUE], s[S_DELAY], s[S_RING], s[S_RING_MASK], s[S_PAUSE]
    pops = RING + 2 * (ring_mask + 1)
    size, n_log, fresh, n_cores = s[S_SIZE], s[S_LOG], s[S_FRESH], np.int64(cores.shape[0])
    now, hanging, signing = s[S_NOW], s[S_HANGING], s[S_SIGN]
    outcome = EMPTY
    while True:
        # ---- next actor: top of the stack, else the next core that has not begun -------------------------
        if n_log >= room:
            outcome = LOG_FULL
            break
        if size == 0:
            while fresh < n_cores and cores[fresh, WAIT] != WAIT_START:
                fresh += 1
            if fresh == n_cores:
                if hanging == 0:
                    break
                # ---- ordered router with the earliest candidate: one cycle of arbitration ----------------
                f, now = next_router(now, routers, wheel)
                hanging -= 1
                first, count = np.int64(routers[f, R_FIRST]), np.int64(routers[f, R_COUNT])
                at = first_in_turn(f, nodes, members, routers) if s[S_TURNS] else np.int64(0)
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
                        routers[f, R_POINTER] = nodes[u, SLOT] + 1 if nodes[u, SLOT] + 1 < s[S_SLOTS] else 0
                        size = granted(
                            u, now, nodes, times, cores, stack, size, QUEUED, WAIT, WAIT_START, PUSHED, POPPED
                        )
                        if signing:
                            sign(2 * u, now, signs)
                routers[f, R_DONE] = now
                if again != NEVER:
                    hanging += hang(f, again, routers, wheel)
                continue
            actor = ~fresh
        else:
            size -= 1
            actor = np.int64(stack[size])
        if actor >= 0:
            # ---- router: every word that the parent has sent and all targets have room for ---------------
            u = actor
            nodes[u, IN_STACK] = 0
            if nodes[u, ROUTER] >= 0:
                hanging += reconsider(u, now, nodes, times, routers, wheel, q)
                continue
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
                continue
            length = np.int64(nodes[u, LENGTH])
            off, mask = np.int64(nodes[u, OFF]), np.int64(nodes[u, MASK])
            p_off, p_mask = np.int64(nodes[parent, OFF]), np.int64(nodes[parent, MASK])
            for k in range(first, last):
                times[off + (k & mask)] = times[p_off + (k & p_mask)] + length
            if leaf >= 0:
                depth, y_off, y_mask = (
                    np.int64(nodes[u, DEPTH]),
                    np.int64(nodes[u, Y_OFF]),
                    np.int64(nodes[u, Y_MASK]),
                )
                for k in range(max(first, depth), min(last, nodes[u, READ] + depth)):
                    x = np.int64(times[y_off + ((k - depth) & y_mask)]) + 1
                    if x > times[off + (k & mask)]:
                        times[off + (k & mask)] = x
            for i in range(CHILD0, CHILD0 + 4):
                c = nodes[u, i]
                if c < 0:
                    break
                c_length, c_off, c_mask = (
                    np.int64(nodes[c, LENGTH]),
                    np.int64(nodes[c, OFF]),
                    np.int64(nodes[c, MASK]),
                )
                behind = q * c_length
                for k in range(max(first, behind), min(last, nodes[c, F] + behind)):
                    x = np.int64(times[c_off + ((k - behind) & c_mask)]) + c_length
                    if x > times[off + (k & mask)]:
                        times[off + (k & mask)] = x
                if nodes[c, IN_STACK] == 0:
                    nodes[c, IN_STACK] = 1
                    stack[size] = c
                    size += 1
            nodes[u, F] = last
            if signing:
                for k in range(first, last):
                    sign(2 * u, np.int64(times[off + (k & mask)]), signs)
            behind = q * length
            for k in range(
                first, min(last, sent - behind)
            ):  # empty unless the parent ran ahead of its credits
                if times[off + (k & mask)] + length > times[p_off + ((k + behind) & p_mask)]:
                    violated[nodes[u, ROOT]] = 1
            if nodes[u, LOGGED]:
                start, step = np.int64(nodes[u, RUN_START]), np.int64(nodes[u, RUN_STEP])
                n, previous = np.int64(nodes[u, RUN_N]), np.int64(nodes[u, RUN_LAST])
                for k in range(first, last):
                    x = np.int64(times[off + (k & mask)])
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
                nodes[u, RUN_START], nodes[u, RUN_STEP], nodes[u, RUN_N], nodes[u, RUN_LAST] = (
                    start,
                    step,
                    n,
                    previous,
                )
            if (
                leaf >= 0
                and (cores[leaf, WAIT] == u or cores[leaf, WAIT] == WAIT_START)
                and cores[leaf, QUEUED] == 0
            ):
                cores[leaf, QUEUED] = 1
                stack[size] = ~leaf
                size += 1
            if sent - first >= window:  # the parent may have been waiting for this
                above = np.int64(nodes[parent, PARENT])
                if above < 0:
                    c = nodes[parent, NODE_CORE]
                    if cores[c, PUSHED] > cores[c, POPPED] and cores[c, QUEUED] == 0:
                        cores[c, QUEUED] = 1
                        stack[size] = ~c
                        size += 1
                elif nodes[parent, IN_STACK] == 0 and nodes[above, F] > sent:
                    nodes[parent, IN_STACK] = 1
                    stack[size] = parent
                    size += 1
            continue
        # ---- ring: words leave first in first out while the first router has room ------------------------
        core = ~actor
        cores[core, QUEUED] = 0
        popped, pushed = np.int64(cores[core, POPPED]), np.int64(cores[core, PUSHED])
        while popped < pushed:
            cell = RING + 2 * (popped & ring_mask)
            u = np.int64(cores[core, cell])
            k, child = np.int64(nodes[u, F]), np.int64(nodes[u, CHILD0])
            if k >= np.int64(nodes[child, F]) + nodes[child, WINDOW]:
                break
            x = max(np.int64(cores[core, cell + 1]) + delay, np.int64(cores[core, LAST_POP]) + 1)
            length = np.int64(nodes[child, LENGTH])
            behind = k - q * length
            if 0 <= behind < nodes[child, F]:
                x = max(x, np.int64(times[nodes[child, OFF] + (behind & nodes[child, MASK])]) + length)
            times[nodes[u, OFF] + (k & nodes[u, MASK])] = x
            nodes[u, F] = k + 1
            cores[core, LAST_POP] = x
            cores[core, pops + (popped & ring_mask)] = x
            if signing:
                sign(2 * u, x, signs)
            popped += 1
            if nodes[child, IN_STACK] == 0:
                nodes[child, IN_STACK] = 1
                stack[size] = child
                size += 1
        cores[core, POPPED] = popped
        if cores[core, STATE] != READY:
            continue
        # ---- program: until it waits for a word, for the ring, for its turn, or halts --------------------
        row, t, wait = np.int64(cores[core, PC]), np.int64(cores[core, TIME]), np.int64(WAIT_NOTHING)
        while True:
            op = ops[row, O_OP]
            if op == _HALT:
                cores[core, STATE] = HALTED
                break
            if cores[core, STARTED] == 0:
                n = np.int64(ops[row, O_N])
                if ops[row, O_PARAM] >= 0:
                    n = max(np.int64(0), np.int64(params[ops[row, O_PARAM], core]))
            else:
                n = np.int64(0)
            if op == _LOOP:
                level = np.int64(ops[row, O_LEVEL])
                if level == 0 and pausing and n > 0:
                    if cores[core, LIMIT] <= 0:
                        wait = np.int64(WAIT_TURN)
                        break
                    cores[core, LIMIT] -= 1
                cores[core, TURNS + level] = n
                if n == 0:
                    row = np.int64(ops[row, O_TARGET])
            elif op == _ENDLOOP:
                level = np.int64(ops[row, O_LEVEL])
                left = np.int64(cores[core, TURNS + level]) - 1
                if level == 0 and pausing and left > 0:
                    if cores[core, LIMIT] <= 0:
                        wait = np.int64(WAIT_TURN)
                        break
                    cores[core, LIMIT] -= 1
                cores[core, TURNS + level] = left
                if left > 0:
                    row = np.int64(ops[row, O_TARGET])
            elif op == _BUSY:
                t += n
                cores[core, BUSY_COUNT] += n
            else:
                per = ops[row, O_PER]
                if cores[core, STARTED] == 0:
                    begun = t
                    t += ops[row, O_START]
                    if per == 0:
                        if n > 0:
                            t += max(np.int64(1), (999 + ops[row, O_MILLI] * n) // 1000)
                        cores[core, STEPS] = 0
                    else:
                        cores[core, STEPS] = n if per == 1 else (n + 1) >> 1
                        cores[core, MILLI] = 999
                    cores[core, STARTED] = 1
                    cores[core, BUSY_COUNT] += t - begun
                steps = np.int64(cores[core, STEPS])
                if steps > 0:
                    a, b = np.int64(-1), np.int64(-1)
                    if ops[row, O_A] >= 0:
                        a = np.int64(leaf_of[core, ops[row, O_A]])
                        if a < 0:
                            wait = np.int64(WAIT_NEVER)
                    if ops[row, O_B] >= 0:
                        b = np.int64(leaf_of[core, ops[row, O_B]])
                        if b < 0:
                            wait = np.int64(WAIT_NEVER)
                    if wait != WAIT_NOTHING:
                        break
                    first, first_b, n = np.int64(0), np.int64(0), steps
                    off, mask, y_off, y_mask, depth, seen = 0, 0, 0, 0, 0, 0
                    off_b, mask_b = 0, 0
                    if b >= 0:
                        if a < 0:
                            a, b = b, a
                        else:
                            first_b = np.int64(nodes[b, READ])
                            if nodes[b, F] - first_b < n:
                                n = nodes[b, F] - first_b
                                wait = b
                            off_b, mask_b = np.int64(nodes[b, OFF]), np.int64(nodes[b, MASK])
                    if a >= 0:
                        first, seen = np.int64(nodes[a, READ]), np.int64(nodes[a, F])
                        if seen - first <= n and seen - first < steps:
                            n = seen - first
                            wait = a
                        off, mask, depth = (
                            np.int64(nodes[a, OFF]),
                            np.int64(nodes[a, MASK]),
                            np.int64(nodes[a, DEPTH]),
                        )
                        y_off, y_mask = np.int64(nodes[a, Y_OFF]), np.int64(nodes[a, Y_MASK])
                    milli, whole, part = (
                        np.int64(cores[core, MILLI]),
                        np.int64(ops[row, O_WHOLE]),
                        np.int64(ops[row, O_PART]),
                    )
                    if signing and n > 0 and cores[core, ANCHOR] == NO_STEP:
                        y = np.int64(-1)
                        if a >= 0:
                            y = np.int64(times[off + (first & mask)]) + 1
                        if b >= 0:
                            y = max(y, np.int64(times[off_b + (first_b & mask_b)]) + 1)
                        cores[core, ANCHOR] = ARRIVAL if y >= t else OWN_CLOCK
                    begun, stalled, stalled_out, bad = t, np.int64(0), np.int64(0), False
                    if ops[row, O_D] < 0:
                        for k in range(first, first + n):
                            y = np.int64(times[off + (k & mask)]) + 1
                            if b >= 0:
                                y = max(y, np.int64(times[off_b + ((k - first + first_b) & mask_b)]) + 1)
                            if y > t:
                                stalled += y - t
                            else:
                                y = t
                            times[y_off + (k & y_mask)] = y
                            if signing:
                                sign(2 * a + 1, y, signs)
                                if b >= 0:
                                    sign(2 * b + 1, y, signs)
                            if k + depth < seen and y + 1 > times[off + ((k + depth) & mask)]:
                                bad = True
                            if b >= 0:
                                kb = k - first + first_b
                                times[nodes[b, Y_OFF] + (kb & nodes[b, Y_MASK])] = y
                                ahead = kb + nodes[b, DEPTH]
                                if ahead < nodes[b, F] and y + 1 > times[off_b + (ahead & mask_b)]:
                                    violated[nodes[b, ROOT]] = 1
                            t = y + whole
                            if part > 0:
                                milli += part
                                if milli >= 1000:
                                    milli -= 1000
                                    t += 1
                    else:
                        out = np.int64(ring_of[core, ops[row, O_D]])
                        child = np.int64(nodes[out, CHILD0])
                        length = np.int64(nodes[child, LENGTH])
                        limit, done = (
                            np.int64(nodes[child, F]) + nodes[child, WINDOW],
                            np.int64(nodes[child, F]),
                        )
                        out_off, out_mask = np.int64(nodes[out, OFF]), np.int64(nodes[out, MASK])
                        c_off, c_mask = np.int64(nodes[child, OFF]), np.int64(nodes[child, MASK])
                        word, last_pop = np.int64(nodes[out, F]), np.int64(cores[core, LAST_POP])
                        i = np.int64(0)
                        while i < n:
                            y = t
                            if a >= 0:
                                y = max(y, np.int64(times[off + ((first + i) & mask)]) + 1)
                            if b >= 0:
                                y = max(y, np.int64(times[off_b + ((first_b + i) & mask_b)]) + 1)
                            if pushed - popped >= ring_size:  # stuck before this visit began, so it still is
                                wait = np.int64(WAIT_RING)
                                cores[core, RING_READY] = y
                                break
                            stalled += y - t
                            if pushed >= ring_size:
                                space = np.int64(cores[core, pops + ((pushed - ring_size) & ring_mask)])
                                if space > y:
                                    stalled_out += space - y
                                    y = space
                            if a >= 0:
                                k = first + i
                                times[y_off + (k & y_mask)] = y
                                if signing:
                                    sign(2 * a + 1, y, signs)
                                if k + depth < seen and y + 1 > times[off + ((k + depth) & mask)]:
                                    bad = True
                            if b >= 0:
                                if signing:
                                    sign(2 * b + 1, y, signs)
                                k = first_b + i
                                times[nodes[b, Y_OFF] + (k & nodes[b, Y_MASK])] = y
                                ahead = k + nodes[b, DEPTH]
                                if ahead < nodes[b, F] and y + 1 > times[off_b + (ahead & mask_b)]:
                                    violated[nodes[b, ROOT]] = 1
                            if (
                                popped == pushed and word < limit
                            ):  # the ring is drained: the word leaves at once
                                x = max(y + delay, last_pop + 1)
                                behind = word - q * length
                                if 0 <= behind < done:
                                    x = max(x, np.int64(times[c_off + (behind & c_mask)]) + length)
                                times[out_off + (word & out_mask)] = x
                                if signing:
                                    sign(2 * out, x, signs)
                                word += 1
                                last_pop = x
                                cores[core, pops + (pushed & ring_mask)] = x
                                popped += 1
                            else:
                                cell = RING + 2 * (pushed & ring_mask)
                                cores[core, cell], cores[core, cell + 1] = out, y
                            pushed += 1
                            t = y + whole
                            milli += part
                            if milli >= 1000:
                                milli -= 1000
                                t += 1
                            i += 1
                        n = i
                        cores[core, LAST_POP], cores[core, PUSHED], cores[core, POPPED] = (
                            last_pop,
                            pushed,
                            popped,
                        )
                        if word > nodes[out, F]:
                            nodes[out, F] = word
                            if nodes[child, IN_STACK] == 0:
                                nodes[child, IN_STACK] = 1
                                stack[size] = child
                                size += 1
                    if bad:
                        violated[nodes[a, ROOT]] = 1
                    cores[core, MILLI], cores[core, STEPS] = milli, steps - n
                    cores[core, IN_COUNT] += stalled
                    cores[core, OUT_COUNT] += stalled_out
                    cores[core, BUSY_COUNT] += t - begun - stalled - stalled_out
                    if n > 0:
                        for u in (a, b):
                            if u < 0:
                                break
                            before = np.int64(nodes[u, READ])
                            nodes[u, READ] = before + n
                            cores[core, RECEIVED] += n
                            here = np.int64(nodes[u, F])
                            if (
                                here - before >= nodes[u, READ_WINDOW]
                                and nodes[u, IN_STACK] == 0
                                and nodes[nodes[u, PARENT], F] > here
                            ):
                                nodes[u, IN_STACK] = 1
                                stack[size] = u
                                size += 1
                    if wait != WAIT_NOTHING:
                        break
                cores[core, STARTED] = 0
            row += 1
        cores[core, PC], cores[core, TIME], cores[core, WAIT] = row, t, wait
        if t > LATEST:
            outcome = TOO_LONG
            break
    s[S_SIZE], s[S_LOG], s[S_FRESH], s[S_NOW], s[S_HANGING] = size, n_log, fresh, now, hanging
    return outcome
