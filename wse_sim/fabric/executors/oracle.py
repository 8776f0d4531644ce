"""The oracle: every router and every core, every cycle, in plain loops.  The definition of correct.

Symbols as in :mod:`wse_sim.fabric.format.program`.  Each queue entry carries a time stamp: of a word, the first cycle in which
it may leave; of a free cell, the first cycle in which it may be filled again.  So nothing depends on the order in which
routers are visited: cell k of an edge of length L is filled at x(k) with stamp x(k) + L and freed at its
pop with stamp pop + L, which is x(k) >= pop(k - q L) + L with q L cells.
"""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.executors import core as C
from wse_sim.fabric.executors.core import (
    BUSY,
    FAULT,
    IDLE,
    core_cycle,
    is_finished,
    leaf_push,
    ring_head,
    ring_pop,
)
from wse_sim.fabric.executors.raw import RawRun
from wse_sim.fabric.format import program as P
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.lower import lower
from wse_sim.fabric.format.program import Program
from wse_sim.jit import bare_kernel, helper_kernel

RAMP = 4
R_WORD, R_META, R_IDENT, Q_COUNT = C.R_WORD, C.R_META, C.R_IDENT, C.Q_COUNT
LEAF0, LEAF_WIDTH, DEPTH0, COUNTS, SENT = C.LEAF0, C.LEAF_WIDTH, C.DEPTH0, C.COUNTS, C.SENT
FLAG_CONTROL, FLAG_LOCAL, FLAG_PATH = P.FLAG_CONTROL, P.FLAG_ADVANCE_LOCAL, P.FLAG_ADVANCE_PATH
ADVANCE, RESET = int(P.Command.ADVANCE), int(P.Command.RESET)

# Columns of the settings handed to the loop.
(ROWS, COLS, SLOTS, HOP, TURN_COST, QUEUE, WAVELET_MILLI, ROUND_ROBIN, STRICT, MAX_CYCLES, BIN, BINS) = range(
    12
)
# Outcome of the loop: kind, cycle, core, slot.
DONE, STUCK, TWO_INPUTS, OUT_OF_BOUNDS, TOO_LONG = range(5)
TRACE_MOVE, TRACE_ISSUE = 0, 1


@helper_kernel
def neighbour(core, port, cols):
    """Core on the other side of a mesh port."""
    if port == 0:
        return core - cols
    if port == 1:
        return core + 1
    if port == 2:
        return core + cols
    return core - 1


@helper_kernel
def edge_length(core, slot, port, route, turns, sets):
    """Cycles of the link that leaves `core` by `port` on `slot`."""
    length = sets[HOP]
    if (turns[route[slot, core]] >> port) & 1:
        length += sets[TURN_COST]
    return length


@helper_kernel
def advanced(position, cfg, command, cfg_positions, cfg_ring):
    """Switch position after a command."""
    if command == RESET:
        return 0
    if command == ADVANCE:
        if position + 1 < cfg_positions[cfg]:
            return position + 1
        return 0 if cfg_ring[cfg] else position
    return position


@helper_kernel
def popped_payload(word, pop_mode, command):
    """Control payload after a router has handled its first command."""
    if pop_mode == 0 or (pop_mode == 2 and command != ADVANCE):
        return word
    return ((word & 0xFFFF) >> 2) | (word & 0x3F0000) | ((((word >> 24) & 0xFF) >> 1) << 24)


@helper_kernel
def put(e, word, flag, ident, stamp, q_count, q_head, cells, flags, idents, stamps, cap):
    """Append a word to queue `e` of `cap` cells."""
    i = (q_head[e] + q_count[e]) % cap
    cells[e, i], flags[e, i], idents[e, i], stamps[e, i] = np.uint32(word), flag, ident, stamp
    q_count[e] += 1


@helper_kernel
def record(trace, outcome, t, core, kind, slot, port, tx, word, flag, ident):
    """Append one event to the trace."""
    row = outcome[4]
    trace[row, 0], trace[row, 1], trace[row, 2], trace[row, 3], trace[row, 4] = t, core, kind, slot, port
    trace[row, 5], trace[row, 6], trace[row, 7], trace[row, 8] = tx, word, flag, ident
    outcome[4] += 1


@bare_kernel
def step(
    sets, route, cfg_rx, cfg_tx, cfg_positions, cfg_ring, cfg_pop, turns, position, pointer,
    q_count, q_head, cells, flags, idents, stamps, port_free, st, lay, code, costs, params, tasks, class_tasks,
    buffers, arena, links, blocked, router_high, bins, trace, outcome, states, last_op,
):  # fmt: skip
    """Run to the end; counters and `outcome` (kind, cycle, core, slot, trace rows) are filled in."""
    n_cores, n_slots = sets[ROWS] * sets[COLS], sets[SLOTS]
    t = np.int64(0)
    while True:
        moved = False
        pending = False  # something waits for the clock alone
        for core in range(n_cores):
            taken, wanted = np.int64(0), np.int64(0)
            first = pointer[core] if sets[ROUND_ROBIN] else np.int64(0)
            for turn in range(n_slots):
                slot = (first + turn) % n_slots
                cfg = route[slot, core]
                if cfg == 0:
                    continue
                rx, tx = (
                    np.int64(cfg_rx[cfg, position[slot, core]]),
                    np.int64(cfg_tx[cfg, position[slot, core]]),
                )
                port = np.int64(-1)
                for k in range(5):
                    p = (t + k) % 5
                    e = (slot * n_cores + core) * 5 + p
                    if q_count[e] == 0:
                        continue
                    cap = sets[QUEUE]
                    if p != RAMP:
                        cap *= edge_length(
                            neighbour(core, p, sets[COLS]), slot, (p + 2) % 4, route, turns, sets
                        )
                    here = np.int64(0)  # words at the start of the cycle
                    for i in range(q_count[e]):
                        here += stamps[e, (q_head[e] + i) % cap] <= t
                    router_high[core] = max(router_high[core], here)
                    if (rx >> p) & 1:
                        if stamps[e, q_head[e]] > t:
                            pending = True
                        elif port < 0:
                            port = p
                        elif sets[STRICT]:
                            outcome[0], outcome[1], outcome[2], outcome[3] = TWO_INPUTS, t, core, slot
                            return
                if port < 0 or tx == 0:
                    continue
                wanted |= tx
                e = (slot * n_cores + core) * 5 + port
                word, flag = np.int64(cells[e, q_head[e]]), np.int64(flags[e, q_head[e]])
                hidden = flag == FLAG_CONTROL and (word >> 24) & 1  # no core sees it
                ready = (tx & taken) == 0
                for q in range(5):
                    if not (tx >> q) & 1:
                        continue
                    if port_free[core, q] > 1000 * t:
                        ready, pending = False, True
                    if q == RAMP:
                        if (
                            not hidden
                            and st[core, lay[LEAF0] + slot * lay[LEAF_WIDTH] + Q_COUNT] >= lay[DEPTH0 + slot]
                        ):
                            ready = False
                        continue
                    f = (slot * n_cores + neighbour(core, q, sets[COLS])) * 5 + (q + 2) % 4
                    cap = sets[QUEUE] * edge_length(core, slot, q, route, turns, sets)
                    if q_count[f] >= cap:
                        ready = False
                    elif stamps[f, (q_head[f] + q_count[f]) % cap] > t:
                        ready, pending = False, True
                if not ready:
                    continue
                # the move
                moved = True
                taken |= tx
                pointer[core] = (slot + 1) % n_slots
                ident = idents[e, q_head[e]]
                length = np.int64(1)
                if port != RAMP:
                    length = edge_length(
                        neighbour(core, port, sets[COLS]), slot, (port + 2) % 4, route, turns, sets
                    )
                stamps[e, q_head[e]] = t + length
                q_head[e] = (q_head[e] + 1) % (sets[QUEUE] * length)
                q_count[e] -= 1
                if flag == FLAG_CONTROL:
                    command = word & 3
                    position[slot, core] = advanced(
                        position[slot, core], cfg, command, cfg_positions, cfg_ring
                    )
                    word = popped_payload(word, cfg_pop[cfg], command)
                elif flag != 0:
                    position[slot, core] = advanced(
                        position[slot, core], cfg, ADVANCE, cfg_positions, cfg_ring
                    )
                for q in range(5):
                    if not (tx >> q) & 1:
                        continue
                    links[core, q] += 1
                    port_free[core, q] = max(port_free[core, q], 1000 * t - 999) + sets[WAVELET_MILLI]
                    if q == RAMP:
                        if not hidden:
                            leaf_push(st[core], core, slot, word, flag if flag == FLAG_CONTROL else 0, t, lay)
                        continue
                    length = edge_length(core, slot, q, route, turns, sets)
                    other = neighbour(core, q, sets[COLS])
                    f = (slot * n_cores + other) * 5 + (q + 2) % 4
                    onward = 0 if flag == FLAG_LOCAL else flag
                    put(
                        f,
                        word,
                        onward,
                        ident,
                        t + length,
                        q_count,
                        q_head,
                        cells,
                        flags,
                        idents,
                        stamps,
                        sets[QUEUE] * length,
                    )
                if outcome[4] < trace.shape[0]:
                    record(trace, outcome, t, core, TRACE_MOVE, slot, port, tx, word, flag, ident)
            for q in range(5):
                if ((wanted & ~taken) >> q) & 1:
                    blocked[core, q] += 1
        for core in range(n_cores):
            r = ring_head(st[core], core, t, lay)
            if r == 0:
                pending = True
            elif r > 0:
                slot, flag = np.int64(st[core, r + R_META]) & 255, np.int64(st[core, r + R_META]) >> 8
                e = (slot * n_cores + core) * 5 + RAMP
                if q_count[e] >= sets[QUEUE]:
                    continue
                if stamps[e, (q_head[e] + q_count[e]) % sets[QUEUE]] > t:
                    pending = True
                    continue
                ident = np.int64(core) * 1000003 + st[core, r + R_IDENT]
                put(
                    e,
                    np.int64(st[core, r + R_WORD]),
                    flag,
                    ident,
                    t + 1,
                    q_count,
                    q_head,
                    cells,
                    flags,
                    idents,
                    stamps,
                    sets[QUEUE],
                )
                ring_pop(st[core], core, lay)
                moved = True
        for core in range(n_cores):
            if outcome[4] < trace.shape[0]:
                op = np.int64(st[core, lay[C.THREAD0]])
                if op != last_op[core]:
                    last_op[core] = op
                    record(trace, outcome, t, core, TRACE_ISSUE, op, 0, 0, 0, 0, 0)
            states[core] = core_cycle(
                st[core], core, t, lay, code, costs, params, tasks, class_tasks, buffers, arena
            )
            if states[core] == FAULT:
                outcome[0], outcome[1], outcome[2] = OUT_OF_BOUNDS, t, core
                return
            if states[core] == BUSY:
                moved = True
        if not moved and not pending:
            break
        for core in range(n_cores):
            if states[core] != IDLE:
                st[core, COUNTS + states[core] - 1] += np.int32(1)
            if states[core] == BUSY and t // sets[BIN] < bins.shape[0]:
                bins[t // sets[BIN], core] += 1
        t += 1
        if t >= sets[MAX_CYCLES]:
            outcome[0], outcome[1] = TOO_LONG, t
            return
    outcome[0], outcome[1] = DONE, t
    for core in range(n_cores):
        if not is_finished(st[core], core, lay):
            outcome[0] = STUCK


def turning_outputs(program: Program) -> npt.NDArray[np.uint8]:
    """Port mask per route config: outputs that some input reaches by a change of direction."""
    turns = np.zeros(len(program.cfg_rx), np.uint8)
    for i in range(4):
        for q in range(4):
            if i != q and q != (i + 2) % 4:
                both = ((program.cfg_rx >> i) & 1) & ((program.cfg_tx >> q) & 1)
                turns |= (both.any(axis=1).astype(np.uint8) << q).astype(np.uint8)
    return turns


def run_oracle(
    program: Program,
    config: FabricConfig,
    arena: npt.NDArray[np.float32],
    *,
    functional: bool,
    strict: bool,
    max_cycles: int,
    bins: int = 0,
    bin_cycles: int = 1,
    trace_rows: int = 0,
) -> RawRun:
    """Run `program`; `arena` is changed in place when `functional`."""
    n, slots = program.n_cores, max(1, program.n_slots)
    turns = turning_outputs(program)
    longest = config.hop_cycles + (config.turn_cycles if turns.any() else 0)
    cap = config.router_queue_wavelets * longest
    queues = slots * n * 5
    st, lay = C.make_state(program, config, functional=functional)
    sets = np.array(
        [program.rows, program.cols, program.n_slots, config.hop_cycles, config.turn_cycles,
         config.router_queue_wavelets, config.wavelet_milli, config.round_robin, strict, max_cycles,
         max(1, bin_cycles), bins], np.int64,
    )  # fmt: skip
    position = np.zeros((slots, n), np.int64)
    position[: program.n_slots] = program.cfg_initial[program.route]
    q_count, q_head = np.zeros(queues, np.int64), np.zeros(queues, np.int64)
    cells, flags = np.zeros((queues, cap), np.uint32), np.zeros((queues, cap), np.uint8)
    idents, stamps = np.zeros((queues, cap), np.int64), np.zeros((queues, cap), np.int64)
    links, blocked = np.zeros((n, 5), np.int64), np.zeros((n, 5), np.int64)
    high = np.zeros(n, np.int64)
    busy_bins = np.zeros((bins, n), np.int32)
    trace, outcome = np.zeros((trace_rows, 9), np.int64), np.zeros(5, np.int64)
    step(
        sets, program.route, program.cfg_rx, program.cfg_tx, program.cfg_positions, program.cfg_ring, program.cfg_pop,
        turns, position, np.zeros(n, np.int64), q_count, q_head, cells, flags, idents, stamps,
        np.zeros((n, 5), np.int64), st, lay, program.code, lower(program, config), program.params, program.tasks,
        program.class_tasks, program.buffer_table, arena, links, blocked, high, busy_bins, trace, outcome,
        np.zeros(n, np.int64), np.full(n if trace_rows else 0, -2, np.int64),
    )  # fmt: skip
    waiting = q_count.reshape(slots, n, 5)
    return RawRun(st, lay, outcome, links, blocked, high, waiting, position, busy_bins, trace[: outcome[4]])
