"""The oracle: steps every router and every core in every cycle, in plain loops. It is the definition of
correct.

Symbols as in :mod:`wse_sim.fabric.format.program`.  Each queue entry carries a time stamp: of a word, the first cycle in which
it may leave; of a free cell, the first cycle in which it may be filled again.  So nothing depends on the order in which
routers are visited: cell k of an edge of length L is filled at x(k) with stamp x(k) + L and freed at its
pop with stamp pop + L, which is x(k) >= pop(k - q L) + L with q L cells.

It is one file, so that the definition can be read from top to bottom.
"""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.executors import core as C
from wse_sim.fabric.executors.base import TRACE_FIELDS, TRACE_ISSUE, TRACE_MOVE, Options, Reason, Run
from wse_sim.fabric.executors.core import (
    BUSY,
    DONE,
    FAULT,
    IDLE,
    OUT_OF_BOUNDS,
    OUTCOME_FIELDS,
    STUCK,
    TOO_LONG,
    TWO_INPUTS,
    core_cycle,
    is_finished,
    leaf_push,
    ring_head,
    ring_pop,
)
from wse_sim.fabric.executors.final_state import Final, finish
from wse_sim.fabric.executors.router import (
    ADVANCE,
    RAMP,
    advanced,
    neighbour,
    popped_payload,
    turning_outputs,
)
from wse_sim.fabric.format import program as P
from wse_sim.fabric.format.lower import Lowered
from wse_sim.fabric.format.memory import Inputs, Memory, new_memory
from wse_sim.fabric.format.program import Program
from wse_sim.jit import bare_kernel, helper_kernel
from wse_sim.jit_bundles import by_pointer

R_WORD, R_META, R_IDENT, Q_COUNT = C.R_WORD, C.R_META, C.R_IDENT, C.Q_COUNT
LEAF0, LEAF_WIDTH, DEPTH0, COUNTS, THREAD0 = C.LEAF0, C.LEAF_WIDTH, C.DEPTH0, C.COUNTS, C.THREAD0
FLAG_CONTROL, FLAG_LOCAL = P.FLAG_CONTROL, P.FLAG_ADVANCE_LOCAL

# Columns of the settings handed to the loop.
(ROWS, COLS, SLOTS, HOP, TURN_COST, CROSSING, QUEUE, WAVELET_MILLI, ROUND_ROBIN, STRICT, MAX_CYCLES, BIN) = (
    range(12)
)
# Marks of a cycle: something moved or worked; something waits for the clock alone.
MOVED, PENDING = range(2)
Array = npt.NDArray[Any]


@by_pointer
class Routes(NamedTuple):
    """Routes of the program and the state of the routers."""

    route: Array  # (slots, R): configuration
    rx: Array  # (configurations, positions): input ports
    tx: Array  # output ports
    positions: Array  # (configurations,)
    ring: Array
    pop: Array
    turns: Array  # (configurations,): output ports after a turn
    die_edges: Array  # (R,): ports that lead over the edge of a die
    position: Array  # (slots, R): switch position
    pointer: Array  # (R,): first slot of the round robin
    port_free: Array  # (R, 5): 1/1000 cycle from which the port is free


@by_pointer
class Queues(NamedTuple):
    """Router queues, e = (slot R + core) 5 + port; words (e, cells)."""

    count: Array
    head: Array
    words: Array
    flags: Array
    idents: Array
    stamps: Array


@by_pointer
class Cores(NamedTuple):
    """State and program of all cores, see :mod:`wse_sim.fabric.executors.core`."""

    st: Array
    lay: Array
    code: Array
    costs: Array
    params: Array
    tasks: Array
    class_tasks: Array
    buffers: Array
    memory: Array


@by_pointer
class Tally(NamedTuple):
    """Counters and records of a run."""

    links: Array  # (R, 5)
    blocked: Array  # (R, 5)
    high: Array  # (R,)
    bins: Array  # (bins, R)
    states: Array  # (R,): what a core did in this cycle
    trace: Array  # (rows, TRACE_FIELDS)
    last_op: Array  # (R,) if there is a trace


@helper_kernel
def edge_length(core, slot, port, routes, sets):
    """Return the cycles of the link that leaves `core` by `port` on `slot`."""
    length = sets[HOP]
    if (routes.turns[routes.route[slot, core]] >> port) & 1:
        length += sets[TURN_COST]
    if (routes.die_edges[core] >> port) & 1:
        length += sets[CROSSING]
    return length


@helper_kernel
def cells_of(core, slot, port, routes, sets):
    """Return the cells of the queue at input `port`: the words that the link before it holds, or one cycle's
    words at the ramp."""
    if port == RAMP:
        return sets[QUEUE]
    return sets[QUEUE] * edge_length(neighbour(core, port, sets[COLS]), slot, (port + 2) % 4, routes, sets)


@helper_kernel
def put(e, word, flag, ident, stamp, queues, cap):
    """Append a word to queue `e` of `cap` cells."""
    i = (queues.head[e] + queues.count[e]) % cap
    queues.words[e, i], queues.flags[e, i] = np.uint32(word), flag
    queues.idents[e, i], queues.stamps[e, i] = ident, stamp
    queues.count[e] += 1


@helper_kernel
def record(t, core, kind, slot, port, tx, word, flag, ident, trace, outcome):
    """Append one event to the trace, if it has room."""
    row = outcome[4]
    if row >= trace.shape[0]:
        return
    trace[row, 0], trace[row, 1], trace[row, 2], trace[row, 3], trace[row, 4] = t, core, kind, slot, port
    trace[row, 5], trace[row, 6], trace[row, 7], trace[row, 8] = tx, word, flag, ident
    outcome[4] += 1


@helper_kernel
def choose_input(t, core, slot, rx, routes, queues, tally, marks, sets, outcome):
    """Return the input port whose oldest word may leave, in the cycle's order; -1 if none, -2 if two inputs
    are a fault."""
    port = np.int64(-1)
    for k in range(5):
        p = (t + k) % 5
        e = (slot * sets[ROWS] * sets[COLS] + core) * 5 + p
        if queues.count[e] == 0:
            continue
        cap = cells_of(core, slot, p, routes, sets)
        here = np.int64(0)  # words at the start of the cycle
        for i in range(queues.count[e]):
            here += queues.stamps[e, (queues.head[e] + i) % cap] <= t
        tally.high[core] = max(tally.high[core], here)
        if (rx >> p) & 1:
            if queues.stamps[e, queues.head[e]] > t:
                marks[PENDING] = 1
            elif port < 0:
                port = p
            elif sets[STRICT]:
                outcome[0], outcome[1], outcome[2], outcome[3] = TWO_INPUTS, t, core, slot
                return np.int64(-2)
    return port


@helper_kernel
def has_room(t, core, slot, tx, hidden, routes, queues, cores, marks, sets):
    """Return whether every output port is free, and every queue behind it can accept a word, in cycle t."""
    lay, ready = cores.lay, True
    for q in range(5):
        if not (tx >> q) & 1:
            continue
        if routes.port_free[core, q] > 1000 * t:
            ready, marks[PENDING] = False, 1
        if q == RAMP:
            held = cores.st[core, lay[LEAF0] + slot * lay[LEAF_WIDTH] + Q_COUNT]
            if not hidden and held >= lay[DEPTH0 + slot]:
                ready = False
            continue
        f = (slot * sets[ROWS] * sets[COLS] + neighbour(core, q, sets[COLS])) * 5 + (q + 2) % 4
        cap = sets[QUEUE] * edge_length(core, slot, q, routes, sets)
        if queues.count[f] >= cap:
            ready = False
        elif queues.stamps[f, (queues.head[f] + queues.count[f]) % cap] > t:
            ready, marks[PENDING] = False, 1
    return ready


@helper_kernel
def move(t, core, slot, port, tx, hidden, routes, queues, cores, tally, sets, outcome):
    """Move the oldest word of input `port` out of all ports of `tx`."""
    e = (slot * sets[ROWS] * sets[COLS] + core) * 5 + port
    head, cfg = queues.head[e], routes.route[slot, core]
    word, flag = np.int64(queues.words[e, head]), np.int64(queues.flags[e, head])
    ident = queues.idents[e, head]
    length = np.int64(1)
    if port != RAMP:
        length = edge_length(neighbour(core, port, sets[COLS]), slot, (port + 2) % 4, routes, sets)
    queues.stamps[e, head] = t + length
    queues.head[e] = (head + 1) % (sets[QUEUE] * length)
    queues.count[e] -= 1
    if flag != 0:
        command = word & 3 if flag == FLAG_CONTROL else np.int64(ADVANCE)
        routes.position[slot, core] = advanced(
            routes.position[slot, core], cfg, command, routes.positions, routes.ring
        )
        if flag == FLAG_CONTROL:
            word = popped_payload(word, routes.pop[cfg], command)
    for q in range(5):
        if not (tx >> q) & 1:
            continue
        tally.links[core, q] += 1
        routes.port_free[core, q] = max(routes.port_free[core, q], 1000 * t - 999) + sets[WAVELET_MILLI]
        if q == RAMP:
            if not hidden:
                kept = flag if flag == FLAG_CONTROL else np.int64(0)
                leaf_push(cores.st[core], core, slot, word, kept, t, cores.lay)
            continue
        length = edge_length(core, slot, q, routes, sets)
        f = (slot * sets[ROWS] * sets[COLS] + neighbour(core, q, sets[COLS])) * 5 + (q + 2) % 4
        onward = np.int64(0) if flag == FLAG_LOCAL else flag
        put(f, word, onward, ident, t + length, queues, sets[QUEUE] * length)
    record(t, core, TRACE_MOVE, slot, port, tx, word, flag, ident, tally.trace, outcome)


@helper_kernel
def move_words(t, core, routes, queues, cores, tally, marks, sets, outcome):
    """Run one cycle of a router: slots in round-robin order; every output port is granted at most once."""
    taken, wanted, n_slots = np.int64(0), np.int64(0), sets[SLOTS]
    first = routes.pointer[core] if sets[ROUND_ROBIN] else np.int64(0)
    for turn in range(n_slots):
        slot = (first + turn) % n_slots
        cfg = routes.route[slot, core]
        if cfg == 0:
            continue
        at = routes.position[slot, core]
        rx, tx = np.int64(routes.rx[cfg, at]), np.int64(routes.tx[cfg, at])
        port = choose_input(t, core, slot, rx, routes, queues, tally, marks, sets, outcome)
        if port == -2:
            return
        if port < 0 or tx == 0:
            continue
        wanted |= tx
        e = (slot * sets[ROWS] * sets[COLS] + core) * 5 + port
        word, flag = np.int64(queues.words[e, queues.head[e]]), queues.flags[e, queues.head[e]]
        hidden = flag == FLAG_CONTROL and (word >> 24) & 1 == 1  # no core sees it
        ready = has_room(t, core, slot, tx, hidden, routes, queues, cores, marks, sets)
        if not ready or (tx & taken) != 0:
            continue
        marks[MOVED] = 1
        taken |= tx
        routes.pointer[core] = (slot + 1) % n_slots
        move(t, core, slot, port, tx, hidden, routes, queues, cores, tally, sets, outcome)
    for q in range(5):
        if ((wanted & ~taken) >> q) & 1:
            tally.blocked[core, q] += 1


@helper_kernel
def push_ring(t, core, queues, cores, marks, sets):
    """Move the oldest word of a core's ring into its router if it is due and a cell is free."""
    st, lay = cores.st, cores.lay
    r = ring_head(st[core], core, t, lay)
    if r == 0:
        marks[PENDING] = 1
    elif r > 0:
        slot, flag = np.int64(st[core, r + R_META]) & 255, np.int64(st[core, r + R_META]) >> 8
        e = (slot * sets[ROWS] * sets[COLS] + core) * 5 + RAMP
        if queues.count[e] >= sets[QUEUE]:
            return
        if queues.stamps[e, (queues.head[e] + queues.count[e]) % sets[QUEUE]] > t:
            marks[PENDING] = 1
            return
        ident = np.int64(core) * 1000003 + st[core, r + R_IDENT]
        put(e, np.int64(st[core, r + R_WORD]), flag, ident, t + 1, queues, sets[QUEUE])
        ring_pop(st[core], core, lay)
        marks[MOVED] = 1


@helper_kernel
def run_core(t, core, cores, tally, marks, outcome):
    """Run one cycle of a core."""
    if tally.trace.shape[0] > 0:
        op = np.int64(cores.st[core, cores.lay[THREAD0]])
        if op != tally.last_op[core]:
            tally.last_op[core] = op
            record(t, core, TRACE_ISSUE, op, 0, 0, 0, 0, 0, tally.trace, outcome)
    tally.states[core] = core_cycle(
        cores.st[core], core, t, cores.lay, cores.code, cores.costs, cores.params, cores.tasks, cores.class_tasks,
        cores.buffers, cores.memory,
    )  # fmt: skip
    if tally.states[core] == FAULT:
        outcome[0], outcome[1], outcome[2] = OUT_OF_BOUNDS, t, core
    if tally.states[core] == BUSY:
        marks[MOVED] = 1


@bare_kernel
def loop(routes, queues, cores, tally, marks, sets, outcome):
    """Run to the end; counters and `outcome` (kind, cycle, core, slot, trace rows) are filled in."""
    n_cores = sets[ROWS] * sets[COLS]
    t = np.int64(0)
    while True:
        marks[MOVED], marks[PENDING] = 0, 0
        for core in range(n_cores):
            move_words(t, core, routes, queues, cores, tally, marks, sets, outcome)
            if outcome[0] == TWO_INPUTS:
                return
        for core in range(n_cores):
            push_ring(t, core, queues, cores, marks, sets)
        for core in range(n_cores):
            run_core(t, core, cores, tally, marks, outcome)
            if outcome[0] == OUT_OF_BOUNDS:
                return
        if marks[MOVED] == 0 and marks[PENDING] == 0:
            break
        for core in range(n_cores):
            state = tally.states[core]
            if state != IDLE:
                cores.st[core, COUNTS + state - 1] += np.int32(1)
            if state == BUSY and t // sets[BIN] < tally.bins.shape[0]:
                tally.bins[t // sets[BIN], core] += 1
        t += 1
        if t >= sets[MAX_CYCLES]:
            outcome[0], outcome[1] = TOO_LONG, t
            return
    outcome[0], outcome[1] = DONE, t
    for core in range(n_cores):
        if not is_finished(cores.st[core], core, cores.lay):
            outcome[0] = STUCK


class Oracle:
    """The plain, slow executor that defines correctness; the only one that records a trace."""

    name = "oracle"

    def can_run(self, program: Program, options: Options) -> Reason | None:
        """Return None: the oracle runs every program."""
        return None

    def run(self, lowered: Lowered, inputs: Inputs | None, options: Options) -> Run:
        """See :class:`wse_sim.fabric.executors.base.Executor`."""
        return self.step(lowered, new_memory(lowered.program, inputs, functional=options.functional), options)

    def step(self, lowered: Lowered, memory: Memory, options: Options) -> Run:
        """See :class:`wse_sim.fabric.executors.base.SteppedExecutor`."""
        program, config = lowered.program, lowered.config
        n, slots = program.n_cores, max(1, program.n_slots)
        turns = turning_outputs(program)
        longest = config.hop_cycles + (config.turn_cycles if turns.any() else 0)
        longest += config.die_crossing_cycles if program.die_edges.any() else 0
        cap = config.router_queue_wavelets * longest
        st, lay = C.make_state(program, config, functional=options.functional)
        position = np.zeros((slots, n), np.int64)
        position[: program.n_slots] = program.cfg_initial[program.route]
        routes = Routes(
            program.route, program.cfg_rx, program.cfg_tx, program.cfg_positions, program.cfg_ring, program.cfg_pop,
            turns, program.die_edges, position, np.zeros(n, np.int64), np.zeros((n, 5), np.int64),
        )  # fmt: skip
        count = np.zeros(slots * n * 5, np.int64)
        shape = (len(count), cap)
        queues = Queues(
            count, np.zeros_like(count), np.zeros(shape, np.uint32), np.zeros(shape, np.uint8),
            np.zeros(shape, np.int64), np.zeros(shape, np.int64),
        )  # fmt: skip
        cores = Cores(
            st, lay, program.code, lowered.costs, program.params, program.tasks, program.class_tasks,
            program.buffer_table, memory,
        )  # fmt: skip
        trace = np.zeros((options.trace_rows, TRACE_FIELDS), np.int64)
        tally = Tally(
            np.zeros((n, 5), np.int64), np.zeros((n, 5), np.int64), np.zeros(n, np.int64),
            np.zeros((options.bin_count, n), np.int32), np.zeros(n, np.int64), trace,
            np.full(n if options.trace_rows else 0, -2, np.int64),
        )  # fmt: skip
        sets = np.array(
            [program.rows, program.cols, program.n_slots, config.hop_cycles, config.turn_cycles,
             config.die_crossing_cycles, config.router_queue_wavelets, config.wavelet_milli, config.round_robin, options.strict,
             options.max_cycles, options.bin_cycles], np.int64,
        )  # fmt: skip
        outcome = np.zeros(OUTCOME_FIELDS, np.int64)
        loop(routes, queues, cores, tally, np.zeros(2, np.int64), sets, outcome)
        final = Final(
            st, lay, outcome, tally.links, tally.blocked, tally.high, count.reshape(slots, n, 5), position, tally.bins,
            trace[: outcome[4]],
        )  # fmt: skip
        return finish(program, final, memory, options)
