# mypy: disable-error-code="assignment"
"""The max-plus equations of the executor, solved actor by actor without a clock.

With x_u(k) the cycle in which word k leaves router u, y_u(k) the one in which its core reads it, q the
words per queue and hop, and D = 2 T_R - 1:

    router   x_u(k) = max( x_parent(k) + L_u , x_c(k - q L_c) + L_c over children c , y_u(k - depth) + 1 )
    ring     x_s(k) = max( x0(j) + D , previous pop of any color + 1 , x_c(k - q L_c) + L_c )
    core     y_u(k) = max( t , x_u(k) + 1 over the inputs of the step ) ;  t = y + cycles of the step
             a step that sends also waits for the ring:  y >= pop(j - ring) , and x0(j) = y

Every cycle of dependencies has a positive delay, so the equations have exactly one solution, which does not
depend on the order of visits. An actor is visited when something that it waits for has advanced. The worklist
is a stack, so that a transfer is followed down its tree while the tree is in the cache.

Speculation: with WINDOW > q L a parent runs ahead of its child as if credits never limited it. When word k is popped later, its credit is compared with the time already assigned to word k + q L. A difference marks the tree (``violated``), whose results are then discarded. With WINDOW = q L the test never applies.

The functions share one file, because they are compiled into one.
"""

from __future__ import annotations

import numpy as np

from wse_sim.fabric.executors.maxplus.graph import (
    CHILD0,
    DEPTH,
    IN_STACK,
    LENGTH,
    MASK,
    OFF,
    PARENT,
    READ,
    READ_WINDOW,
    ROOT,
    ROUTER,
    WINDOW,
    Y_MASK,
    Y_OFF,
    F,
)
from wse_sim.fabric.executors.maxplus.network import arbitrate, drain_ring, move_words, visit_node
from wse_sim.fabric.executors.maxplus.order import (
    reconsider,
)
from wse_sim.fabric.executors.maxplus.records import (
    ANCHOR,
    ARRIVAL,
    BUSY_COUNT,
    EMPTY,
    HALTED,
    IN_COUNT,
    LAST_POP,
    LATEST,
    LIMIT,
    LOG_FULL,
    MILLI,
    NO_STEP,
    O_A,
    O_B,
    O_D,
    O_LEVEL,
    O_MILLI,
    O_N,
    O_OP,
    O_PARAM,
    O_PART,
    O_PER,
    O_START,
    O_TARGET,
    O_WHOLE,
    OP_BUSY,
    OP_ENDLOOP,
    OP_HALT,
    OP_LOOP,
    OUT_COUNT,
    OWN_CLOCK,
    PC,
    POPPED,
    PUSHED,
    QUEUED,
    READY,
    RECEIVED,
    RING,
    RING_READY,
    ROUNDS,
    S_DELAY,
    S_FRESH,
    S_HANGING,
    S_LOG,
    S_MARGIN,
    S_NOW,
    S_PAUSE,
    S_QUEUE,
    S_RING,
    S_RING_MASK,
    S_SIGN,
    S_SIZE,
    S_SLOTS,
    S_TURNS,
    STARTED,
    STATE,
    STEPS,
    TIME,
    TOO_LONG,
    WAIT,
    WAIT_NEVER,
    WAIT_NOTHING,
    WAIT_RING,
    WAIT_START,
    WAIT_TURN,
    Rules,
)
from wse_sim.fabric.executors.maxplus.sign import sign
from wse_sim.jit import bare_kernel, inlined_kernel


@inlined_kernel
def begin(core, row, n, t, net, code):  # type: ignore[no-untyped-def]
    """Start a vector instruction of n elements in cycle t: its start cost, or all of it if it has no fabric operand."""
    cores, ops = net.cores, code.ops
    begun, per = t, ops[row, O_PER]
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
    return t


@inlined_kernel
def read(u, k, y, seen, net, rules):  # type: ignore[no-untyped-def]
    """Let the core read word k of node u in cycle y; return True if a speculated word is too early (`seen`
    words have arrived)."""
    nodes, times = net.nodes, net.times
    times[nodes[u, Y_OFF] + (k & nodes[u, Y_MASK])] = y
    if rules.signing:
        sign(2 * u + 1, y, net.signs)
    ahead = k + nodes[u, DEPTH]
    return ahead < seen and y + 1 > times[nodes[u, OFF] + (ahead & nodes[u, MASK])]


@inlined_kernel
def receive(core, row, a, b, n, t, net, code, rules):  # type: ignore[no-untyped-def]
    """Run n steps that read node a, and b if given, and send nothing; return (cycle, stalled cycles)."""
    nodes, times, cores = net.nodes, net.times, net.cores
    first, seen = np.int64(nodes[a, READ]), np.int64(nodes[a, F])
    off, mask, depth = np.int64(nodes[a, OFF]), np.int64(nodes[a, MASK]), np.int64(nodes[a, DEPTH])
    y_off, y_mask = np.int64(nodes[a, Y_OFF]), np.int64(nodes[a, Y_MASK])
    first_b, off_b, mask_b = np.int64(0), np.int64(0), np.int64(0)
    if b >= 0:
        first_b = np.int64(nodes[b, READ])
        off_b, mask_b = np.int64(nodes[b, OFF]), np.int64(nodes[b, MASK])
    milli, stalled, bad = np.int64(cores[core, MILLI]), np.int64(0), False
    whole, part = np.int64(code.ops[row, O_WHOLE]), np.int64(code.ops[row, O_PART])
    for k in range(first, first + n):
        y = np.int64(times[off + (k & mask)]) + 1
        if b >= 0:
            y = max(y, np.int64(times[off_b + ((k - first + first_b) & mask_b)]) + 1)
        if y > t:
            stalled += y - t
        else:
            y = t
        times[y_off + (k & y_mask)] = y
        if rules.signing:
            sign(2 * a + 1, y, net.signs)
        if k + depth < seen and y + 1 > times[off + ((k + depth) & mask)]:
            bad = True
        if b >= 0 and read(b, k - first + first_b, y, nodes[b, F], net, rules):
            net.violated[nodes[b, ROOT]] = 1
        t = y + whole
        if part > 0:
            milli += part
            if milli >= 1000:
                milli -= 1000
                t += 1
    if bad:
        net.violated[nodes[a, ROOT]] = 1
    cores[core, MILLI] = milli
    return t, stalled


@inlined_kernel
def send(core, row, a, b, n, t, net, code, rules, size):  # type: ignore[no-untyped-def]
    """Run up to n steps that read a and b, if they are nodes, and send.

    Return (steps, cycle, stalled on input, stalled on output, stack size).

    Fewer than n if the ring is full.
    """
    nodes, times, cores = net.nodes, net.times, net.cores
    popped, pushed = np.int64(cores[core, POPPED]), np.int64(cores[core, PUSHED])
    first, seen, off, mask = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    if a >= 0:
        first, seen = np.int64(nodes[a, READ]), np.int64(nodes[a, F])
        off, mask = np.int64(nodes[a, OFF]), np.int64(nodes[a, MASK])
    first_b, off_b, mask_b = np.int64(0), np.int64(0), np.int64(0)
    if b >= 0:
        first_b = np.int64(nodes[b, READ])
        off_b, mask_b = np.int64(nodes[b, OFF]), np.int64(nodes[b, MASK])
    out = np.int64(code.ring_of[core, code.ops[row, O_D]])
    child = np.int64(nodes[out, CHILD0])
    length, done = np.int64(nodes[child, LENGTH]), np.int64(nodes[child, F])
    limit = done + nodes[child, WINDOW]
    out_off, out_mask = np.int64(nodes[out, OFF]), np.int64(nodes[out, MASK])
    c_off, c_mask = np.int64(nodes[child, OFF]), np.int64(nodes[child, MASK])
    word, last_pop = np.int64(nodes[out, F]), np.int64(cores[core, LAST_POP])
    milli, stalled, stalled_out, bad = np.int64(cores[core, MILLI]), np.int64(0), np.int64(0), False
    whole, part = np.int64(code.ops[row, O_WHOLE]), np.int64(code.ops[row, O_PART])
    i = np.int64(0)
    while i < n:
        y = t
        if a >= 0:
            y = max(y, np.int64(times[off + ((first + i) & mask)]) + 1)
        if b >= 0:
            y = max(y, np.int64(times[off_b + ((first_b + i) & mask_b)]) + 1)
        if pushed - popped >= rules.ring:  # stuck before this visit began, so it still is
            cores[core, RING_READY] = y
            break
        stalled += y - t
        if pushed >= rules.ring:
            space = np.int64(cores[core, rules.pops + ((pushed - rules.ring) & rules.ring_mask)])
            if space > y:
                stalled_out += space - y
                y = space
        if a >= 0 and read(a, first + i, y, seen, net, rules):
            bad = True
        if b >= 0 and read(b, first_b + i, y, nodes[b, F], net, rules):
            net.violated[nodes[b, ROOT]] = 1
        if popped == pushed and word < limit:  # the ring is drained: the word leaves at once
            x = max(y + rules.delay, last_pop + 1)
            behind = word - rules.queue * length
            if 0 <= behind < done:
                x = max(x, np.int64(times[c_off + (behind & c_mask)]) + length)
            times[out_off + (word & out_mask)] = x
            if rules.signing:
                sign(2 * out, x, net.signs)
            word += 1
            last_pop = x
            cores[core, rules.pops + (pushed & rules.ring_mask)] = x
            popped += 1
        else:
            cell = RING + 2 * (pushed & rules.ring_mask)
            cores[core, cell], cores[core, cell + 1] = out, y
        pushed += 1
        t = y + whole
        milli += part
        if milli >= 1000:
            milli -= 1000
            t += 1
        i += 1
    if bad:
        net.violated[nodes[a, ROOT]] = 1
    cores[core, LAST_POP], cores[core, PUSHED], cores[core, POPPED] = last_pop, pushed, popped
    cores[core, MILLI] = milli
    if word > nodes[out, F]:
        nodes[out, F] = word
        size = visit_node(child, net, size)
    return i, t, stalled, stalled_out, size


@inlined_kernel
def note_anchor(core, a, b, t, net):  # type: ignore[no-untyped-def]
    """Record what the first step of a core waits for: a word, or its own clock."""
    net.cores[core, ANCHOR] = OWN_CLOCK
    for u in (a, b):
        if u >= 0:
            k = np.int64(net.nodes[u, READ]) & net.nodes[u, MASK]
            if np.int64(net.times[net.nodes[u, OFF] + k]) >= t - 1:
                net.cores[core, ANCHOR] = ARRIVAL


@inlined_kernel
def take_steps(core, row, t, net, code, rules, size):  # type: ignore[no-untyped-def]
    """Step a fabric instruction as far as words and room allow; return (cycle, what the core waits for, size)."""
    nodes, cores, ops = net.nodes, net.cores, code.ops
    steps, wait = np.int64(cores[core, STEPS]), np.int64(WAIT_NOTHING)
    a, b = np.int64(-1), np.int64(-1)
    if ops[row, O_A] >= 0:
        a = np.int64(code.leaf_of[core, ops[row, O_A]])
        if a < 0:
            return t, np.int64(WAIT_NEVER), size
    if ops[row, O_B] >= 0:
        b = np.int64(code.leaf_of[core, ops[row, O_B]])
        if b < 0:
            return t, np.int64(WAIT_NEVER), size
    n = steps
    if b >= 0:
        if a < 0:
            a, b = b, a
        elif nodes[b, F] - np.int64(nodes[b, READ]) < n:
            n = nodes[b, F] - np.int64(nodes[b, READ])
            wait = b
    if a >= 0:
        came = np.int64(nodes[a, F]) - np.int64(nodes[a, READ])
        if came <= n and came < steps:
            n = came
            wait = a
    if rules.signing and n > 0 and cores[core, ANCHOR] == NO_STEP:
        note_anchor(core, a, b, t, net)
    begun, stalled_out = t, np.int64(0)
    if ops[row, O_D] < 0:
        t, stalled = receive(core, row, a, b, n, t, net, code, rules)
    else:
        taken, t, stalled, stalled_out, size = send(core, row, a, b, n, t, net, code, rules, size)
        if taken < n:
            n = taken
            wait = np.int64(WAIT_RING)
    cores[core, STEPS] = steps - n
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
            if here - before >= nodes[u, READ_WINDOW] and nodes[nodes[u, PARENT], F] > here:
                size = visit_node(u, net, size)
    return t, wait, size


@inlined_kernel
def run_core(core, net, code, rules, size):  # type: ignore[no-untyped-def]
    """Run a core's program until it waits for a word, for the ring or for its turn, or halts; return (its
    cycle, size)."""
    cores, ops = net.cores, code.ops
    row, t, wait = np.int64(cores[core, PC]), np.int64(cores[core, TIME]), np.int64(WAIT_NOTHING)
    while True:
        op = ops[row, O_OP]
        if op == OP_HALT:
            cores[core, STATE] = HALTED
            break
        n = np.int64(0)
        if cores[core, STARTED] == 0:
            n = np.int64(ops[row, O_N])
            if ops[row, O_PARAM] >= 0:
                n = max(np.int64(0), np.int64(code.params[ops[row, O_PARAM], core]))
        if op == OP_LOOP or op == OP_ENDLOOP:
            level = np.int64(ops[row, O_LEVEL])
            if op == OP_ENDLOOP:
                n = np.int64(cores[core, ROUNDS + level]) - 1
            if level == 0 and rules.pausing and n > 0:
                if cores[core, LIMIT] <= 0:
                    wait = np.int64(WAIT_TURN)
                    break
                cores[core, LIMIT] -= 1
            cores[core, ROUNDS + level] = n
            if (n == 0) == (op == OP_LOOP):  # an empty loop is left, a loop with rounds left begins again
                row = np.int64(ops[row, O_TARGET])
        elif op == OP_BUSY:
            t += n
            cores[core, BUSY_COUNT] += n
        else:
            if cores[core, STARTED] == 0:
                t = begin(core, row, n, t, net, code)
            if cores[core, STEPS] > 0:
                t, wait, size = take_steps(core, row, t, net, code, rules, size)
                if wait != WAIT_NOTHING:
                    break
            cores[core, STARTED] = 0
        row += 1
    cores[core, PC], cores[core, TIME], cores[core, WAIT] = row, t, wait
    return t, size


@bare_kernel
def solve(net, code, ordered, s):  # type: ignore[no-untyped-def]
    """Visit actors until nothing can advance (EMPTY), or the log is full and must be grown (LOG_FULL).

    All called functions are inlined, because passing the arrays would cost more than the equations of a short
    transfer.
    """
    nodes, cores = net.nodes, net.cores
    room = net.log.shape[0] - s[S_MARGIN]
    pops = RING + 2 * (s[S_RING_MASK] + 1)
    rules = Rules(
        s[S_QUEUE], s[S_DELAY], s[S_RING], s[S_RING_MASK], pops, s[S_PAUSE], s[S_SIGN], s[S_TURNS], s[S_SLOTS]
    )
    size, n_log, fresh, n_cores = s[S_SIZE], s[S_LOG], s[S_FRESH], np.int64(cores.shape[0])
    now, hanging = s[S_NOW], s[S_HANGING]
    outcome = EMPTY
    while True:
        if n_log >= room:
            outcome = LOG_FULL
            break
        if size > 0:
            size -= 1
            actor = np.int64(net.stack[size])
        else:  # the next core that has not begun, else the ordered router with the earliest candidate
            while fresh < n_cores and cores[fresh, WAIT] != WAIT_START:
                fresh += 1
            if fresh == n_cores:
                if hanging == 0:
                    break
                size, now, more = arbitrate(now, net, ordered, rules, size)
                hanging += more
                continue
            actor = ~fresh
        if actor >= 0:
            nodes[actor, IN_STACK] = 0
            if nodes[actor, ROUTER] >= 0:
                hanging += reconsider(
                    actor, now, nodes, net.times, ordered.routers, ordered.wheel, rules.queue
                )
            else:
                size, n_log = move_words(actor, net, rules, size, n_log)
            continue
        core = ~actor
        cores[core, QUEUED] = 0
        size = drain_ring(core, net, rules, size)
        if cores[core, STATE] == READY:
            t, size = run_core(core, net, code, rules, size)
            if t > LATEST:
                outcome = TOO_LONG
                break
    s[S_SIZE], s[S_LOG], s[S_FRESH], s[S_NOW], s[S_HANGING] = size, n_log, fresh, now, hanging
    return outcome
