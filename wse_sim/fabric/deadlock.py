"""Explanation of a deadlock: which cores wait for what, on which color, and the cycle of waits."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

import networkx as nx
import numpy as np
import numpy.typing as npt

from wse_sim.errors import DeadlockError
from wse_sim.fabric.executors.base import WAITS_INPUT, WAITS_OUTPUT, WAITS_TASK, WAITS_THREAD, Waits
from wse_sim.fabric.format import program as P
from wse_sim.fabric.format.program import Program

KINDS = {WAITS_INPUT: "input", WAITS_OUTPUT: "output", WAITS_THREAD: "thread", WAITS_TASK: "task"}
RAMP = 4
MAX_REPORTED = 1000
MAX_NODES = 20_000
SHOWN = 4  # of a cycle of waits, in a message
Array = npt.NDArray[np.integer]
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
    """A program that stopped at `cycle` with `unfinished` cores; `cycle_of_waits` is empty if a sender is missing.

    ``waits`` names the first cores; ``everything``, rows (row, column, WAITS_*, color), what every core waits for.
    """

    cycle: int
    unfinished: int
    waits: tuple[Wait, ...]
    cycle_of_waits: tuple[str, ...]
    everything: npt.NDArray[np.int64] = dataclasses.field(compare=False, repr=False)

    def message(self) -> str:
        """Return one sentence: a waiting core and what it waits for, the number of others, and the cycle of
        waits."""
        others = self.unfinished - 1
        more = f", and {others:,} other core{'s' if others > 1 else ''} wait{'' if others > 1 else 's'}"
        loop = " -> ".join(self.cycle_of_waits[:SHOWN])
        if len(self.cycle_of_waits) > SHOWN:
            loop += f" -> ... ({len(self.cycle_of_waits):,} in all)"
        return (
            f"deadlock at cycle {self.cycle}: {self.waits[0]}{more if others else ''}"
            f"{f'; cycle of waits: {loop}' if loop else ''}; receive before the buffers are full, or send with a microthread"
        )

    __str__ = message

    def told(self, path: str | Path | None = None) -> str:
        """Return the sentence and where all waits are listed: in `path`, or in a temporary file if that
        cannot be written."""
        try:
            path = path or _temporary_file()
            self.write(path)
        except OSError:
            path = _temporary_file()
            self.write(path)
        return f"{self.message()}; all waits are listed in {path}"

    def write(self, path: str | Path) -> None:
        """Write the sentence, the cycle of waits, and all waits of all cores, one per line."""
        waits = (
            str(Wait(row, col, KINDS[kind], color)) for row, col, kind, color in self.everything.tolist()
        )
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text("\n".join((self.message(), *self.cycle_of_waits, *waits)) + "\n", "utf-8")

    def error(self) -> DeadlockError:
        """Return the error for callers that require the program to end."""
        return DeadlockError(self.message())


def _temporary_file() -> str:
    with tempfile.NamedTemporaryFile(prefix="wse-sim-deadlock-", suffix=".txt", delete=False) as file:
        return file.name


def explain(program: Program, waits: Waits, cycle: int) -> Deadlock:
    """Return the waits of every unfinished core, and one cycle of waits among cores and router queues."""
    unfinished = np.flatnonzero(waits.unfinished)
    cores, kinds, slots = waits.wants.T
    colors = np.where(slots >= 0, program.slot_color[slots] if program.n_slots else -1, -1)
    everything = np.column_stack([cores // program.cols, cores % program.cols - program.west, kinds, colors])
    _, first = np.unique(cores, return_index=True)
    named = (
        Wait(row, col, KINDS[kind], color)
        for row, col, kind, color in everything[first[:MAX_REPORTED]].tolist()
    )
    loop = _cycle(program, waits, unfinished[:MAX_REPORTED])
    return Deadlock(cycle, len(unfinished), tuple(named), loop, everything)


def _cycle(program: Program, waits: Waits, unfinished: Array) -> tuple[str, ...]:
    graph: nx.DiGraph = nx.DiGraph()
    open_nodes: list[Node] = [(int(core),) for core in reversed(unfinished)]
    seen: set[Node] = set(open_nodes)
    while open_nodes and len(seen) < MAX_NODES:
        node = open_nodes.pop()
        for other, slot in _targets(program, waits, node):
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


def _targets(program: Program, waits: Waits, node: Node) -> list[tuple[Node, int]]:
    """Return what `node` waits for, with the slot concerned."""
    if len(node) == 3:
        return _queue_targets(program, waits, *node)
    targets: list[tuple[Node, int]] = []
    core = node[0]
    first, end = np.searchsorted(waits.wants[:, 0], (core, core + 1))
    for _, kind, slot in waits.wants[first:end]:
        if kind == WAITS_INPUT:
            targets.append((_upstream(program, waits, core, int(slot)), int(slot)))
        elif kind == WAITS_OUTPUT:
            head_slot = int(waits.ring_slot[core])
            targets.append(((core, RAMP, head_slot), head_slot))
    return targets


def _queue_targets(program: Program, waits: Waits, core: int, port: int, slot: int) -> list[tuple[Node, int]]:
    """Return the targets without room; the core itself if its input queue is full."""
    cfg, position = program.route[slot, core], waits.position[slot, core]
    if not (program.cfg_rx[cfg, position] >> port) & 1:
        return []
    targets: list[tuple[Node, int]] = []
    tx = int(program.cfg_tx[cfg, position])
    for q in range(5):
        if not (tx >> q) & 1:
            continue
        if q == RAMP:
            if waits.full[slot, core]:
                targets.append(((core,), slot))
            continue
        other = core + (-program.cols, 1, program.cols, -1)[q]
        if waits.waiting[slot, other, (q + 2) % 4] > 0:
            targets.append(((other, (q + 2) % 4, slot), slot))
    return targets


def _upstream(program: Program, waits: Waits, core: int, slot: int) -> Node:
    """Return the queue with a word, or the core, from which a color must come; at merges one input is
    followed."""
    for _ in range(program.n_cores):
        cfg, position = program.route[slot, core], waits.position[slot, core]
        rx = int(program.cfg_rx[cfg, position])
        for port in range(5):
            if (rx >> port) & 1 and waits.waiting[slot, core, port] > 0:
                return (core, port, slot)
        ports = [port for port in range(5) if (rx >> port) & 1]
        if not ports:
            return (core,)
        if RAMP in ports:
            if waits.ring_slot[core] >= 0:
                return (core, RAMP, int(waits.ring_slot[core]))
            return (core,)
        core += (-program.cols, 1, program.cols, -1)[ports[0]]
    return (core,)
