"""Why a program stopped: which cores wait for what, on which color, and the cycle of waits."""

from __future__ import annotations

import dataclasses

import networkx as nx
import numpy as np

from wse_sim.errors import DeadlockError
from wse_sim.fabric.executors import core as C
from wse_sim.fabric.executors.raw import RawRun
from wse_sim.fabric.format import program as P
from wse_sim.fabric.format.program import Kind, Op, Program

RAMP = 4
MAX_REPORTED = 1000
MAX_NODES = 20_000
Node = tuple[int, ...]  # (core,) or (core, port, slot) of a router queue


@dataclasses.dataclass(frozen=True)
class Wait:
    """One core (row, col) that waits: `kind` is "input", "output", "thread" or "task"; color -1 if none."""

    row: int
    col: int
    kind: str
    color: int

    def __str__(self) -> str:
        what = {
            "input": f"a word of color {self.color}",
            "output": f"room to send color {self.color}",
            "thread": "a microthread",
            "task": "a blocked task",
        }[self.kind]
        return f"core ({self.row}, {self.col}) waits for {what}"


@dataclasses.dataclass(frozen=True)
class Deadlock:
    """A program that stopped at `cycle` with `unfinished` cores; `cycle_of_waits` is empty if a sender is missing."""

    cycle: int
    unfinished: int
    waits: tuple[Wait, ...]
    cycle_of_waits: tuple[str, ...]

    def message(self) -> str:
        """One sentence."""
        loop = f"; cycle of waits: {' -> '.join(self.cycle_of_waits)}" if self.cycle_of_waits else ""
        return (
            f"deadlock at cycle {self.cycle}: {self.unfinished} cores never finish, the first: {self.waits[0]}{loop}; "
            "receive before the buffers are full, or send with a microthread"
        )

    def error(self) -> DeadlockError:
        """The fault to raise for callers who need the program to end."""
        return DeadlockError(self.message())


def explain(program: Program, raw: RawRun) -> Deadlock:
    """Waits of every unfinished core and one cycle of waits among cores and router queues."""
    from wse_sim.fabric.run import finished_cores

    unfinished = np.flatnonzero(~finished_cores(raw))
    waits = []
    for core in unfinished[:MAX_REPORTED]:
        row, col = divmod(int(core), program.cols)
        kind, slot = _waits_of(program, raw, int(core))[0]
        color = int(program.slot_color[slot]) if slot >= 0 else -1
        waits.append(Wait(row, col - program.west, kind, color))
    return Deadlock(
        int(raw.outcome[1]), len(unfinished), tuple(waits), _cycle(program, raw, [int(c) for c in unfinished])
    )


def _waits_of(program: Program, raw: RawRun, core: int) -> list[tuple[str, int]]:
    """(kind, slot) of everything this core waits for."""
    st, lay, found = raw.st[core], raw.lay, []
    for k in range(int(lay[C.THREADS])):
        row = int(st[int(lay[C.THREAD0]) + k * C.THREAD_FIELDS + C.INSTR])
        if row < 0:
            continue
        code = program.code[row]
        left = int(st[int(lay[C.THREAD0]) + k * C.THREAD_FIELDS + C.ITEMS])
        words = 2 if code[P.WIRE] == P.Wire.FP16X4 and left > 2 else 1
        for place in (P.A, P.B):
            if code[place + P.KIND] == Kind.FABRIC and _leaf(raw, core, int(code[place + P.BUF])) < words:
                found.append(("input", int(code[place + P.BUF])))
        if code[P.D + P.KIND] == Kind.FABRIC and st[C.RING_COUNT] + words > lay[C.RING_SIZE]:
            found.append(("output", int(code[P.D + P.BUF])))
    if found:
        return found
    running = st[C.MAIN] == C.MAIN_RUNNING and len(program.code)
    if running and program.code[int(st[C.PC]), P.OP] in (Op.JOIN, Op.HALT):
        return [("thread", -1)]
    return [("task", -1)]


def _leaf(raw: RawRun, core: int, slot: int) -> int:
    return int(raw.st[core, int(raw.lay[C.LEAF0]) + slot * int(raw.lay[C.LEAF_WIDTH]) + C.Q_COUNT])


def _cycle(program: Program, raw: RawRun, unfinished: list[int]) -> tuple[str, ...]:
    graph: nx.DiGraph = nx.DiGraph()
    open_nodes: list[Node] = [(core,) for core in reversed(unfinished[:MAX_REPORTED])]
    seen: set[Node] = set(open_nodes)
    while open_nodes and len(seen) < MAX_NODES:
        node = open_nodes.pop()
        for other, slot in _targets(program, raw, node):
            graph.add_edge(node, other, slot=slot)
            if other not in seen:
                seen.add(other)
                open_nodes.append(other)
    try:
        edges = nx.find_cycle(graph)
    except nx.NetworkXNoCycle:
        return ()
    return tuple(
        f"{_name(program, tail)} [color {program.slot_color[graph.edges[tail, head]['slot']]}]"
        for tail, head in edges
    )


def _name(program: Program, node: Node) -> str:
    core = f"core {program.core_name(node[0])}"
    return core if len(node) == 1 else f"router {program.core_name(node[0])} input {P.PORT_NAMES[node[1]]}"


def _targets(program: Program, raw: RawRun, node: Node) -> list[tuple[Node, int]]:
    """What `node` waits for, with the slot concerned."""
    if len(node) == 3:
        return _queue_targets(program, raw, *node)
    targets: list[tuple[Node, int]] = []
    core = node[0]
    for kind, slot in _waits_of(program, raw, core):
        if kind == "input":
            targets.append((_upstream(program, raw, core, slot), slot))
        elif kind == "output":
            head = C.RING0 + C.RING_FIELDS * int(raw.st[core, C.RING_HEAD]) + C.R_META
            head_slot = int(raw.st[core, head]) & 255
            targets.append(((core, RAMP, head_slot), head_slot))
    return targets


def _queue_targets(program: Program, raw: RawRun, core: int, port: int, slot: int) -> list[tuple[Node, int]]:
    """Targets without room; the core itself where its input queue is full."""
    cfg, position = program.route[slot, core], raw.position[slot, core]
    if not (program.cfg_rx[cfg, position] >> port) & 1:
        return []
    targets: list[tuple[Node, int]] = []
    tx = int(program.cfg_tx[cfg, position])
    for q in range(5):
        if not (tx >> q) & 1:
            continue
        if q == RAMP:
            if _leaf(raw, core, slot) >= int(raw.lay[C.DEPTH0 + slot]):
                targets.append(((core,), slot))
            continue
        other = core + (-program.cols, 1, program.cols, -1)[q]
        if raw.waiting[slot, other, (q + 2) % 4] > 0:
            targets.append(((other, (q + 2) % 4, slot), slot))
    return targets


def _upstream(program: Program, raw: RawRun, core: int, slot: int) -> Node:
    """The queue with a word, or the core, from which a color must come; one input is followed at merges."""
    for _ in range(program.n_cores):
        cfg, position = program.route[slot, core], raw.position[slot, core]
        rx = int(program.cfg_rx[cfg, position])
        for port in range(5):
            if (rx >> port) & 1 and raw.waiting[slot, core, port] > 0:
                return (core, port, slot)
        ports = [port for port in range(5) if (rx >> port) & 1]
        if not ports:
            return (core,)
        if RAMP in ports:
            if raw.st[core, C.RING_COUNT] > 0:
                head = C.RING0 + C.RING_FIELDS * int(raw.st[core, C.RING_HEAD]) + C.R_META
                return (core, RAMP, int(raw.st[core, head]) & 255)
            return (core,)
        core += (-program.cols, 1, program.cols, -1)[ports[0]]
    return (core,)
