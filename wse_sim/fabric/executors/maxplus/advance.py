# mypy: disable-error-code="assignment"
"""The max-plus equations of the executor, solved actor by actor without a clock.

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

from typing import Any, NamedTuple

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
from wse_sim.jit import bare_kernel, inlined_kernel

Array = npt.NDArray[Any]

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


class Net(NamedTuple):
    """Actors and what is known of them.  ``times``: moves and reads of all nodes in circular stretches."""

    nodes: Array
    times: Array
    cores: Array
    stack: Array
    log: Array
    violated: Array
    signs: Array


class Code(NamedTuple):
    """Decoded instructions, parameters per core, and the nodes (R, slots) of input queues and rings."""

    ops: Array
    params: Array
    leaf_of: Array
    ring_of: Array


class Rules(NamedTuple):
    """Scalars that no visit changes; ``pops``: column of the cores' records where the pop times of the ring begin."""

    queue: int
    delay: int
    ring: int
    ring_mask: int
    pops: int
    pausing: int
    signing: int
    in_turns: int
    slots: int


@inlined_kernel
def visit_node(u, net, size):  # type: ignore[no-untyped-def]
    """Put node u on the stack unless it is there; returns the stack's size."""
    if net.nodes[u, IN_STACK] == 0:
        net.nodes[u, IN_STACK] = 1
        net.stack[size] = u
        size += 1
    return size


@inlined_kernel
def visit_core(c, net, size):  # type: ignore[no-untyped-def]
    """Put core c on the stack unless it is there; returns the stack's size."""
    if net.cores[c, QUEUED] == 0:
        net.cores[c, QUEUED] = 1
        net.stack[size] = ~c
        size += 1
    return size


@inlined_kernel
def arbitrate(now, net, ordered, rules, size):  # type: ignore[no-untyped-def]
    """One cycle of the ordered router with the earliest candidate: (size of the stack, cycle, routers that hang)."""
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
    """Extend the open arithmetic run of node u by its moves first .. last - 1; returns the entries of the log."""
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
    """Every word that the parent has sent and all targets have room for leaves router node u: (size, log entries)."""
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
    """Words leave a ring first in first out while the first router has room; returns the stack's size."""
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
    """The core reads word k of node u in cycle y; True if a word that was speculated comes too early (`seen` words came)."""
    nodes, times = net.nodes, net.times
    times[nodes[u, Y_OFF] + (k & nodes[u, Y_MASK])] = y
    if rules.signing:
        sign(2 * u + 1, y, net.signs)
    ahead = k + nodes[u, DEPTH]
    return ahead < seen and y + 1 > times[nodes[u, OFF] + (ahead & nodes[u, MASK])]


@inlined_kernel
def receive(core, row, a, b, n, t, net, code, rules):  # type: ignore[no-untyped-def]
    """n steps that read node a, and b if there is one, and send nothing: (cycle, stalled cycles)."""
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
    """Up to n steps that read a and b, where they are nodes, and send: (steps, cycle, stalled on input, on output, size).

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
    """What the first step of a core waits for: a word, or its own clock."""
    y = np.int64(-1)
    for u in (a, b):
        if u >= 0:
            k = np.int64(net.nodes[u, READ]) & net.nodes[u, MASK]
            y = max(y, np.int64(net.times[net.nodes[u, OFF] + k]) + 1)
    net.cores[core, ANCHOR] = ARRIVAL if y >= t else OWN_CLOCK


@inlined_kernel
def take_steps(core, row, t, net, code, rules, size):  # type: ignore[no-untyped-def]
    """Steps of a fabric instruction, as many as words and room allow: (cycle, what the core waits for, size)."""
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
    """Run a core's program until it waits for a word, for the ring or for its turn, or halts: (its cycle, size)."""
    cores, ops = net.cores, code.ops
    row, t, wait = np.int64(cores[core, PC]), np.int64(cores[core, TIME]), np.int64(WAIT_NOTHING)
    while True:
        op = ops[row, O_OP]
        if op == _HALT:
            cores[core, STATE] = HALTED
            break
        n = np.int64(0)
        if cores[core, STARTED] == 0:
            n = np.int64(ops[row, O_N])
            if ops[row, O_PARAM] >= 0:
                n = max(np.int64(0), np.int64(code.params[ops[row, O_PARAM], core]))
        if op == _LOOP or op == _ENDLOOP:
            level = np.int64(ops[row, O_LEVEL])
            if op == _ENDLOOP:
                n = np.int64(cores[core, TURNS + level]) - 1
            if level == 0 and rules.pausing and n > 0:
                if cores[core, LIMIT] <= 0:
                    wait = np.int64(WAIT_TURN)
                    break
                cores[core, LIMIT] -= 1
            cores[core, TURNS + level] = n
            if (n == 0) == (op == _LOOP):  # an empty loop is left, a loop with turns left begins again
                row = np.int64(ops[row, O_TARGET])
        elif op == _BUSY:
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

    Everything it calls is inlined: handing over the arrays would cost more than the equations of a short transfer.
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
