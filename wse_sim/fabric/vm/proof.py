"""Proof of a standstill: from what the host waits for through the graph of waits to the cause, the cause first.

Every core that keeps the host waiting is a root.  From each one the graph of :mod:`wse_sim.fabric.vm.waits` is followed to what cannot happen:
a leaf, or a cycle of waits.  The strongest of these that a root reaches is its cause; equal causes at several cores are told once.
"""

from __future__ import annotations

import dataclasses
import re
from collections import deque
from collections.abc import Iterable

import networkx as nx
import numpy as np

from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm.image import Image
from wse_sim.fabric.vm.waits import BLOCKED, REST, Node, WaitGraph, Why

MOST_NODES = 20_000
PER_GROUP = 3
"""Cores examined per place of a program, as representatives of all that wait there."""
SOFT = 0.3
"""Weight of a cause that is found behind one of several alternatives."""
MOST_CAUSES, MOST_LINES = 3, 12
_QUEUES = ("thread", "out", "router", "in", "inject")
"""Nodes with an operation or words; a cycle without any consists of idle cores."""
_NUMBER = re.compile(r"\d+")


@dataclasses.dataclass(frozen=True)
class Cause:
    """Why something cannot happen; ``chain``: what waits for it, up to the host; ``cores``: the number of
    waits that it causes.

    ``is_rest``: a core is idle or running, with no known obstacle.
    """

    text: str
    chain: tuple[str, ...]
    cores: int
    is_rest: bool = False

    def lines(self, waits: int) -> list[str]:
        """The cause, then who waits for it, a long chain by its ends."""
        more = (
            f" (the cause of {self.cores:,} of {waits:,} waits, with other numbers at other cores)"
            if self.cores > 1
            else ""
        )
        chain = [f"  therefore {text}" for text in self.chain]
        if len(chain) > MOST_LINES:
            half = MOST_LINES // 2
            chain = [*chain[:half], f"  ... {len(chain) - 2 * half} more steps ...", *chain[-half:]]
        return [self.text + more, *chain]


@dataclasses.dataclass(frozen=True)
class StandstillProof:
    """A standstill: the first cycle without progress, how many waits the host has, and their causes, the strongest first."""

    since: int
    waits: int
    causes: tuple[Cause, ...]

    def text(self) -> str:
        """Lines: the first cause with its chain, then the others."""
        if not self.causes:
            return f"nothing has happened since cycle {self.since:,}, and no core waits for a queue; a task was never activated"
        first, *others = self.causes[:MOST_CAUSES]
        lines = first.lines(self.waits)
        for i, cause in enumerate(others, 2):
            own = cause.lines(self.waits)
            lines += [f"cause {i}: {own[0]}", *own[1:]]
        if len(self.causes) > MOST_CAUSES:
            lines.append(f"{len(self.causes) - MOST_CAUSES} more causes")
        return f"nothing has happened since cycle {self.since:,}, because " + "\n".join(lines)


def prove(machine: S.Machine, image: Image, sending: Iterable[tuple[int, int, int]] = ()) -> StandstillProof:
    """The causes of a standstill.  ``sending``: (core, slot, port or -1) of words that the host still has to send."""
    waits = WaitGraph(machine, image)
    roots = _roots(machine, sending)
    chosen = _stand_ins(waits, roots)
    known = _explored(waits, chosen)
    cycles = _cycles(known)
    found: dict[Node, Cause] = {}
    score: dict[Node, float] = {}
    for root, count in chosen.items():
        best = _cause(root, known, cycles)
        if best is None:
            continue
        node, path, weight = best
        text = cycles[node] if node in cycles else known[node].text
        chain = tuple(line for line in dict.fromkeys(known[n].text for n in reversed(path)) if line != text)
        if node in found:  # the longest chain says most
            kept = found[node]
            chain, count = max(kept.chain, chain, key=len), kept.cores + count
        found[node], score[node] = (
            Cause(text, chain, count, node[0] == "main" and known[node].weight <= REST),
            max(weight, score.get(node, 0.0)),
        )
    order = sorted(found, key=lambda n: (-score[n], -found[n].cores, n))
    return StandstillProof(first_idle_cycle(machine), len(roots), tuple(_merged(found[n] for n in order)))


def first_idle_cycle(m: S.Machine) -> int:
    """Return the cycle after the last one in which a core worked or a word entered a queue."""
    last = int(m.core[:, S.LAST_BUSY].max(initial=0))
    last = max(last, 1 + int(m.iq_last.max(initial=-1)))
    holding = np.flatnonzero(m.waiting > 0)
    if len(holding):
        stamps = m.q_stamp.reshape(-1, len(m.waiting), 5, m.q_stamp.shape[-1])[:, holding]
        words = m.q_count.reshape(-1, len(m.waiting), 5)[:, holding] > 0
        last = max(last, int(stamps[words].max(initial=0)))
    return min(last, int(m.size[S.CLOCK]))


def _roots(m: S.Machine, sending: Iterable[tuple[int, int, int]]) -> list[Node]:
    found: list[Node] = [("command", int(c), 0, 0) for c in np.flatnonzero(m.core[:, S.ARMED])]
    if m.size[S.OUTSTANDING]:
        found += [("host", int(c), int(slot), 0) for slot, c in zip(*np.nonzero(m.credit > 0), strict=True)]
    found += [("inject", c, slot, port) for c, slot, port in sending]
    if not found:
        found = [
            ("thread", int(c), int(k), 0)
            for k, c in zip(*np.nonzero(m.threads[:, :, S.T_OP] > 0), strict=True)
        ]
    return found


def _stand_ins(waits: WaitGraph, roots: list[Node]) -> dict[Node, int]:
    """Return some roots for every place of every program, each with the number of roots that it represents."""
    groups: dict[tuple[object, ...], list[Node]] = {}
    core, threads = waits.m.core, waits.m.threads
    for node in roots:
        c = node[1]
        lines = tuple(int(threads[k, c, S.T_PC]) for k in waits.live(c))
        key = (node[0], node[2:], int(core[c, S.CLASS]), int(core[c, S.MODE]), int(core[c, S.PC]), lines)
        groups.setdefault(key, []).append(node)
    found: dict[Node, int] = {}
    for nodes in groups.values():
        at = sorted({0, len(nodes) // 2, len(nodes) - 1})[:PER_GROUP]
        for i, k in enumerate(at):
            found[nodes[k]] = len(nodes) // len(at) + (len(nodes) % len(at) if i == 0 else 0)
    return found


def _explored(waits: WaitGraph, roots: Iterable[Node]) -> dict[Node, Why]:
    known: dict[Node, Why] = {}
    open_nodes = deque(roots)
    while open_nodes and len(known) < MOST_NODES:
        node = open_nodes.popleft()
        if node not in known:
            known[node] = waits.why(node)
            open_nodes += [*known[node].after, *known[node].ways]
    for node in open_nodes:
        known.setdefault(node, Why(waits.why(node).text, weight=0))
    return known


def _cycles(known: dict[Node, Why]) -> dict[Node, str]:
    """Nodes that are on cycles of certain waits, with the cycle in words."""
    graph = nx.DiGraph((a, b) for a, why in known.items() for b in why.after if b in known)
    found: dict[Node, str] = {}
    for part in nx.strongly_connected_components(graph):
        some = min(part)
        if len(part) == 1 and not graph.has_edge(some, some):
            continue
        if not any(
            node[0] in _QUEUES for node in part
        ):  # cores at rest, of which each waits for a word of the others
            found |= {node: known[node].text for node in part if node[0] == "main"}
            continue
        edges = nx.find_cycle(graph.subgraph(part), some)
        texts = list(dict.fromkeys(known[edge[0]].text for edge in edges))
        shown = (
            texts
            if len(texts) <= MOST_LINES
            else [*texts[: MOST_LINES // 2], "...", *texts[-MOST_LINES // 2 :]]
        )
        text = (
            f"{len(texts)} waits form a cycle: "
            + ", which needs that ".join(shown)
            + ", which needs the first"
        )
        for node in part:
            found[node] = text
    return found


def _cause(
    root: Node, known: dict[Node, Why], cycles: dict[Node, str]
) -> tuple[Node, list[Node], float] | None:
    """The strongest leaf or cycle behind a root, the nodes on the way to it, its weight."""
    at: dict[Node, tuple[int, Node | None]] = {root: (0, None)}
    order = deque([root])
    best: tuple[float, int, Node] | None = None
    steps = {root: 0}
    while order:
        node = order.popleft()
        soft = at[node][0]
        why = known[node]
        in_cycle = REST if node in cycles and cycles[node] == why.text else BLOCKED
        weight = float(in_cycle if node in cycles else why.weight) * SOFT**soft
        if weight and (best is None or (weight, -steps[node]) > best[:2]):
            best = (weight, -steps[node], node)
        for after, is_soft in [*((n, 0) for n in why.after), *((n, 1) for n in why.ways)]:
            if after in known and (after not in at or at[after][0] > soft + is_soft):
                at[after], steps[after] = (soft + is_soft, node), steps[node] + 1
                order.append(after) if is_soft else order.appendleft(after)
    if best is None:
        return None
    path, node_on = [], at[best[2]][1]
    while node_on is not None:
        path.append(node_on)
        node_on = at[node_on][1]
    return best[2], list(reversed(path)), best[0]


def _merged(causes: Iterable[Cause]) -> list[Cause]:
    """Merge causes whose sentences differ only in numbers (places, colors, counts)."""
    found: dict[str, Cause] = {}
    for cause in causes:
        key = _NUMBER.sub("#", cause.text)
        if key in found:
            kept = found[key]
            longest = max(kept, cause, key=lambda c: len(c.chain))
            found[key] = dataclasses.replace(longest, cores=kept.cores + cause.cores)
        else:
            found[key] = cause
    return list(found.values())
