# mypy: disable-error-code="assignment"
"""Static graph of the max-plus executor: queues, their connections and delays.

Reach: from every (core, slot) on which some instruction sends, the routes are followed once: all positions of a switch that a command
can move, and the initial position of any other. Routers that the equations do not cover are marked: a merge (a slot enters by two
inputs), a switch that may move, an input that is closed.
``shared[r]`` holds the output ports of router r that two or more slots use.

Actors ("nodes"), numbered tree by tree in the order of the walk, because that is the order in which they run:

* ring node    (core, slot) that sends: its words leave the core's output ring.
* router node  (core, slot) that branches, feeds a core, or uses a shared port.  A router that does none of these can
  never hold a word back on its own, so its delay is added to the edge:  L = sum of L_i, window q L.

A core's input queue is no node of its own but part of the router node in front of it.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.executors.router import turning_outputs
from wse_sim.fabric.format import program as P
from wse_sim.fabric.format.lower import C_MILLI, C_PER, Lowered
from wse_sim.fabric.format.program import IntArray, Kind, Op, Program
from wse_sim.jit import kernel

# Columns of a node, one record of 128 bytes: two cache lines.
(
    F,
    LENGTH,
    WINDOW,
    OFF,
    MASK,
    PARENT,
    CHILD0,
    CHILD1,
    CHILD2,
    CHILD3,
    LEAF,
    READ,
    DEPTH,
    READ_WINDOW,
    Y_OFF,
    Y_MASK,
) = range(16)
(ROOT, IN_STACK, LOGGED, RUN_START, RUN_STEP, RUN_N, RUN_LAST, CORE, SLOT, PORTS, IS_RING) = range(16, 27)
ROUTER, EARLIEST = 27, 28  # time-ordered router of the node, -1 = none; when its next word may move
NODE_FIELDS = 32
NEVER = 2**31 - 1
NO_LEAF, DEAD = -1, -2  # DEAD: a router without outputs keeps its words forever

RAMP, RAMP_BIT = 4, 16
MERGE, TURNS, SHUT = (
    1,
    2,
    4,
)  # marks of a router: two inputs of a slot, a switch that may turn, a word at an input that is shut


@dataclasses.dataclass
class Graph:
    """Nodes int32 (n, NODE_FIELDS); ``leaf_of``, ``ring_of`` int32 (R, slots), -1 = none; ``shared`` uint8 (R,).

    ``inputs`` uint8 (slots, R): active input ports; ``solid`` uint8 (R,): routers with a node for every slot that
    reaches them; ``order_of`` int32 (R,): number among the routers that are advanced in time order, -1 = none.
    """

    nodes: npt.NDArray[np.int32]
    leaf_of: npt.NDArray[np.int32]
    ring_of: npt.NDArray[np.int32]
    shared: npt.NDArray[np.uint8]
    solid: npt.NDArray[np.uint8]
    order_of: npt.NDArray[np.int32]
    inputs: npt.NDArray[np.uint8]
    pool: int
    tx: IntArray
    turns: npt.NDArray[np.uint8]


def static_routes(program: Program) -> tuple[IntArray, IntArray]:
    """Return the input and output port masks (n_cfg,) at the initial switch position."""
    at = np.arange(len(program.cfg_initial))
    return program.cfg_rx[at, program.cfg_initial], program.cfg_tx[at, program.cfg_initial]


def steering(program: Program) -> npt.NDArray[np.bool_]:
    """Return (n_instr,): instructions that send a control wavelet or an advance mark."""
    op, advance = program.code[:, P.OP], program.code[:, P.ADVANCE]
    return np.asarray((op == Op.CONTROL) | ((op > Op.CONTROL) & (advance > 0)))


def steered_slots(program: Program) -> npt.NDArray[np.bool_]:
    """Return (slots,): commands are sent on the slot, so its switches may move."""
    steered = np.zeros(max(1, program.n_slots), bool)
    steered[program.code[steering(program), P.D + P.BUF]] = True
    return steered


def class_sends(program: Program) -> npt.NDArray[np.bool_]:
    """Return (n_classes, slots): some instruction of the class sends on the slot."""
    sends = np.zeros((len(program.class_names), max(1, program.n_slots)), bool)
    code = program.code
    sending = (code[:, P.OP] >= P.FIRST_VECTOR_OP) & (code[:, P.D + P.KIND] == Kind.FABRIC)
    sends[program.class_of_instruction()[sending], code[sending, P.D + P.BUF]] = True
    return sends


def longest_transfer(program: Program, costs: npt.NDArray[np.int64], limit: int) -> npt.NDArray[np.int32]:
    """Return (slots,): most words one instruction sends on the slot, at most `limit`."""
    words = np.ones(max(1, program.n_slots), np.int64)
    for i in np.flatnonzero(
        (program.code[:, P.OP] >= P.FIRST_VECTOR_OP) & (program.code[:, P.D + P.KIND] == Kind.FABRIC)
    ):
        row = program.code[i]
        n = int(row[P.N]) if row[P.N_PARAM] < 0 else int(program.params[row[P.N_PARAM]].max(initial=0))
        slot = row[P.D + P.BUF]
        words[slot] = max(words[slot], -(-n // max(1, int(costs[i, C_PER]))))
    return np.minimum(words, limit).astype(np.int32)


def slow_slots(program: Program, costs: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return (slots,): some instruction reads the slot slower than a word a cycle, so credits will bind."""
    slow = np.zeros(max(1, program.n_slots), bool)
    for place in (P.A, P.B):
        rows = (program.code[:, P.OP] >= P.FIRST_VECTOR_OP) & (program.code[:, place + P.KIND] == Kind.FABRIC)
        slow[program.code[rows & (costs[:, C_MILLI] > 1000), place + P.BUF]] = True
    return slow


@kernel
def reach(  # type: ignore[no-untyped-def]
    rows, cols, route, rx_of, tx_of, any_tx_of, positions, steered, sends, core_class, inputs, shared, used, marks, stack
):  # fmt: skip
    """Follow all routes; return the numbers of visited routers and of sending (core, slot) pairs."""
    n_slots, n = route.shape
    visited, sources = np.int64(0), np.int64(0)
    for slot in range(n_slots):
        for core in range(n):
            if not sends[core_class[core], slot]:
                continue
            sources += 1
            stack[0], sp = core * 8 + RAMP, 1
            while sp > 0:
                sp -= 1
                r, port = stack[sp] >> 3, stack[sp] & 7
                bit, cfg = np.uint8(1 << port), route[slot, r]
                turns = steered[slot] and positions[cfg] > 1
                if turns:
                    marks[r] |= np.uint8(TURNS)
                elif rx_of[cfg] & bit == 0:
                    marks[r] |= np.uint8(SHUT)
                if inputs[slot, r] != 0:
                    if inputs[slot, r] & bit == 0:
                        marks[r] |= np.uint8(MERGE)
                    inputs[slot, r] |= bit
                    continue
                inputs[slot, r] = bit
                visited += 1
                tx = any_tx_of[cfg] if turns else tx_of[cfg]
                shared[r] |= used[r] & tx
                used[r] |= tx
                for q in range(4):
                    if (tx >> q) & 1:
                        other = r - cols if q == 0 else (r + 1 if q == 1 else (r + cols if q == 2 else r - 1))
                        stack[sp] = other * 8 + (q + 2) % 4
                        sp += 1
    return visited, sources


@kernel
def grow_trees(  # type: ignore[no-untyped-def]
    cols, route, tx_of, turns, sends, core_class, skip, shared, solid, order_of, depth, words, hop, turn_cost, die_edges, crossing, q,
    exact,
    nodes, leaf_of, ring_of, stack, edges,
):  # fmt: skip
    """Create the nodes of all trees of cores outside `skip`; return (nodes, pool of times).

    `nodes` comes zeroed; `stack`, `edges`: routers to visit, with the node above and the length so far.
    """
    n_slots, n = route.shape
    count, pool = np.int64(0), np.int64(0)
    for slot in range(n_slots):
        slot_depth = np.int64(depth[slot])
        for core in range(n):
            if skip[core] or not sends[core_class[core], slot]:
                continue
            root = count
            count += 1
            nodes[root, IS_RING] = 1
            nodes[root, PARENT], nodes[root, LEAF], nodes[root, ROUTER] = -1, NO_LEAF, -1
            nodes[root, ROOT], nodes[root, CORE], nodes[root, SLOT] = root, core, slot
            for i in range(CHILD0, CHILD0 + 4):
                nodes[root, i] = -1
            ring_of[core, slot] = root
            wide = np.int64(0) if exact[slot * n + core] else np.int64(words[slot])
            stack[0], edges[0, 0], edges[0, 1], sp = core, root, 1, 1
            while sp > 0:
                sp -= 1
                r, parent, length = stack[sp], edges[sp, 0], edges[sp, 1]
                while True:
                    cfg = route[slot, r]
                    tx = np.int64(tx_of[cfg])
                    mesh = tx & 15
                    if mesh == 0 or mesh & (mesh - 1) != 0 or tx & (RAMP_BIT | shared[r]) or solid[r]:
                        break
                    port = 0 if mesh == 1 else (1 if mesh == 2 else (2 if mesh == 4 else 3))
                    length += hop + (turn_cost if (turns[cfg] >> port) & 1 else 0)
                    length += crossing if (die_edges[r] >> port) & 1 else 0
                    r = (
                        r - cols
                        if port == 0
                        else (r + 1 if port == 1 else (r + cols if port == 2 else r - 1))
                    )
                u = count
                count += 1
                nodes[u, PARENT], nodes[u, LENGTH] = parent, length
                nodes[u, ROOT], nodes[u, CORE], nodes[u, SLOT] = root, r, slot
                nodes[u, WINDOW] = max(q * length, wide)
                nodes[u, PORTS] = tx
                nodes[u, ROUTER], nodes[u, EARLIEST] = order_of[r], NEVER
                nodes[u, LOGGED] = 1 if tx & shared[r] and order_of[r] < 0 else 0
                i = CHILD0
                while nodes[parent, i] >= 0:
                    i += 1
                nodes[parent, i] = u
                for i in range(CHILD0, CHILD0 + 4):
                    nodes[u, i] = -1
                # own times: as many words as the own credit, the children or the core can lag behind
                need = q * length
                if tx & RAMP_BIT:
                    nodes[u, LEAF], nodes[u, DEPTH] = r, slot_depth
                    nodes[u, READ_WINDOW] = max(slot_depth, wide)
                    need = max(need, max(slot_depth, wide))
                    leaf_of[r, slot] = u
                    size = np.int64(1)
                    while size < slot_depth:
                        size *= 2
                    nodes[u, Y_OFF], nodes[u, Y_MASK] = pool, size - 1
                    pool += size
                else:
                    nodes[u, LEAF] = DEAD if tx == 0 else NO_LEAF
                nodes[u, MASK] = need
                if nodes[parent, MASK] < max(q * length, wide):
                    nodes[parent, MASK] = max(q * length, wide)
                for port in range(4):
                    if (mesh >> port) & 1:
                        stack[sp] = (
                            r - cols
                            if port == 0
                            else (r + 1 if port == 1 else (r + cols if port == 2 else r - 1))
                        )
                        edges[sp, 0] = u
                        edges[sp, 1] = hop + (turn_cost if (turns[cfg] >> port) & 1 else 0)
                        edges[sp, 1] += crossing if (die_edges[r] >> port) & 1 else 0
                        sp += 1
            for u in range(root, count):
                need, size = nodes[u, MASK], np.int64(1)
                while size < need:
                    size *= 2
                nodes[u, OFF], nodes[u, MASK] = pool, size - 1
                pool += size
    return count, pool


@dataclasses.dataclass
class Reach:
    """Outcome of :func:`reach`: sizes, active inputs, shared output ports, marks of routers; ``tx`` at initial positions."""

    inputs: npt.NDArray[np.uint8]
    shared: npt.NDArray[np.uint8]
    marks: npt.NDArray[np.uint8]
    sends: npt.NDArray[np.bool_]
    tx: IntArray
    visited: int
    sources: int


def follow_routes(program: Program) -> Reach:
    """Find the routers that a word can ever reach."""
    n, slots = program.n_cores, max(1, program.n_slots)
    sends = class_sends(program)
    rx, tx = static_routes(program)
    any_tx = np.bitwise_or.reduce(program.cfg_tx, axis=1)
    inputs = np.zeros((slots, n), np.uint8)
    shared, used, marks = np.zeros(n, np.uint8), np.zeros(n, np.uint8), np.zeros(n, np.uint8)
    visited, sources = reach(
        program.rows, program.cols, program.route, rx, tx, any_tx, program.cfg_positions, steered_slots(program), sends,
        program.core_class, inputs, shared, used, marks, np.zeros(4 * n + 8, np.int64),
    )  # fmt: skip
    return Reach(inputs, shared, marks, sends, tx, int(visited), int(sources))


def build_graph(
    lowered: Lowered,
    found: Reach,
    skip: npt.NDArray[np.bool_],
    exact: npt.NDArray[np.bool_],
    ordered: npt.NDArray[np.bool_],
    *,
    speculate: bool,
    whole: bool = False,
) -> Graph:
    """Return the nodes of all trees outside `skip`; trees named by `exact` (slot * R + core) get exact windows.

    Routers of `ordered` (all if `whole`) get a node for every slot that reaches them.
    """
    program, config, costs = lowered.program, lowered.config, lowered.costs
    n, slots = program.n_cores, max(1, program.n_slots)
    turns = turning_outputs(program)
    order_of = np.where(ordered, np.cumsum(ordered) - 1, -1).astype(np.int32)
    solid = (ordered | whole).astype(np.uint8)
    nodes = np.zeros((found.visited + found.sources, NODE_FIELDS), np.int32)
    leaf_of = np.full((n, slots), -1, np.int32)
    ring_of = np.full((n, slots), -1, np.int32)
    words = longest_transfer(program, costs, 256 if n < 200_000 else 64)
    words *= speculate & ~slow_slots(program, costs)
    count, pool = grow_trees(
        program.cols, program.route, found.tx, turns, found.sends, program.core_class, skip, found.shared, solid, order_of,
        program.input_depth, words, config.hop_cycles, config.turn_cycles, program.die_edges,
        config.die_crossing_cycles, config.router_queue_wavelets, exact,
        nodes, leaf_of, ring_of, np.zeros(4 * n + 8, np.int64), np.zeros((4 * n + 8, 2), np.int64),
    )  # fmt: skip
    return Graph(
        nodes[:count],
        leaf_of,
        ring_of,
        found.shared,
        solid,
        order_of,
        found.inputs,
        int(pool),
        found.tx,
        turns,
    )
