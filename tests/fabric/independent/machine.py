"""Routers, links and the run, by the text of the specification: plain Python, cycle by cycle."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.fabric.independent.cores import INPUT, OUTPUT, Core, Word
from tests.fabric.independent.prices import step_milli
from wse_sim.fabric.format import program as P
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Command, Program

RAMP = 4
NEIGHBOUR = ((-1, 0), (0, 1), (1, 0), (0, -1))


class Queue:
    """Words with the cycle from which they may leave; free space is that at the start of a cycle."""

    def __init__(self, latency: int, depth: int) -> None:
        self.latency, self.depth = latency, depth
        self.words: deque[tuple[int, Word]] = deque()
        self.left: deque[int] = deque()  # cycles of departures whose credits are under way
        self.high = 0

    def has_room(self, t: int) -> bool:
        """Return whether a word fits; credits take as long as words: x(k) >= x_child(k - depth) + latency."""
        while self.left and self.left[0] + self.latency <= t:
            self.left.popleft()
        return len(self.words) + len(self.left) < self.depth

    def head(self, t: int) -> Word | None:
        """Return the word that may leave in cycle t."""
        return self.words[0][1] if self.words and self.words[0][0] <= t else None

    def push(self, word: Word, t: int) -> None:
        """Append a word that is sent in cycle t."""
        self.words.append((t + self.latency, word))

    def pop(self, t: int) -> Word:
        """Remove the word that leaves in cycle t."""
        self.left.append(t)
        return self.words.popleft()[1]


@dataclasses.dataclass
class Outcome:
    """The outcome of a run: arrays (R, ...) like those of an executor's result, in row-major order of all cores."""

    cycles: int
    halt: Any
    busy: Any
    stalled_in: Any
    stalled_out: Any
    links: Any
    blocked: Any
    queue_high: Any
    sent: Any
    received: Any
    words_left: int
    unfinished: Any
    memory: Any


class Machine:
    """All cores and routers of a program."""

    def __init__(self, program: Program, config: FabricConfig, inputs: Mapping[str, Any]) -> None:
        self.program, self.config = program, config
        self.n = program.n_cores
        self.code: list[list[int]] = program.code.tolist()
        self.costs: dict[int, int] = {}
        self.memory = np.zeros(program.arena_elements, np.float32)
        for name, values in inputs.items():
            info = program.buffers[name]
            data = np.asarray(values, np.float32)
            if info.dtype == "fp16":
                data = data.astype(np.float16).astype(np.float32)
            self.memory[info.base : info.base + data.size] = data.reshape(-1)
        self.route = program.route.tolist()
        self.rx, self.tx = program.cfg_rx.tolist(), program.cfg_tx.tolist()
        slots = program.n_slots
        self.position = [
            [int(program.cfg_initial[self.route[s][u]]) for u in range(self.n)] for s in range(slots)
        ]
        self.queues: dict[tuple[int, int, int], Queue] = {}  # slot, core, input port
        self.inputs: dict[tuple[int, int], Queue] = {}
        self.rings: list[deque[tuple[int, int, Word]]] = [deque() for _ in range(self.n)]
        self.ring_high = [0] * self.n
        self.pointer = [0] * self.n
        self.free = {}  # (core, port) -> 1/1000 cycle
        self.links = np.zeros((self.n, 5), np.int64)
        self.blocked = np.zeros((self.n, 5), np.int64)
        self.cores = [Core(u, program, config, self) for u in range(self.n)]
        self.landing: dict[int, list[Queue]] = {}  # queues in which words land, by cycle
        self.quiet: list[
            Any
        ] = []  # of cycles in which nothing happens: ports and cores that wait, words in queues
        self.held: dict[int, int] = {}  # router -> words in its queues

    # ---- what cores ask ----------------------------------------------------------------------

    def cost_of(self, pc: int) -> int:
        """Return the cost of a step or an element in 1/1000 cycle."""
        if pc not in self.costs:
            self.costs[pc] = step_milli(self.program, self.config, self.code[pc])
        return self.costs[pc]

    def input_queue(self, core: int, slot: int) -> Queue:
        """Return the input queue of a color."""
        key = (core, slot)
        if key not in self.inputs:
            self.inputs[key] = Queue(1, int(self.program.input_depth[slot]))
        return self.inputs[key]

    def input_heads(self, core: int, slot: int, t: int) -> list[Word]:
        """Return the words that are there."""
        return [word for ready, word in self.input_queue(core, slot).words if ready <= t]

    def input_head(self, core: int, slot: int, t: int) -> Word | None:
        """Return the first of them."""
        return self.input_queue(core, slot).head(t)

    def take(self, core: int, slot: int, t: int) -> Word:
        """Take a word out of the input queue."""
        return self.input_queue(core, slot).pop(t)

    def ring_room(self, core: int, words: int) -> bool:
        """Return a pop and a push may share a cycle."""
        return len(self.rings[core]) + words <= self.config.ring_wavelets

    def push(self, core: int, slot: int, word: Word, t: int) -> None:
        """Put a word into the output ring."""
        self.rings[core].append(
            (t + 2 * self.config.ramp_cycles + self.config.forward_cycles - 2, slot, word)
        )
        self.ring_high[core] = max(self.ring_high[core], len(self.rings[core]))

    # ---- the fabric --------------------------------------------------------------------------

    def router_queue(self, slot: int, core: int, port: int) -> Queue:
        """Return the queue of a color at an input of a router."""
        key = (slot, core, port)
        if key not in self.queues:
            latency = 1
            if port != RAMP:
                d_row, d_col = NEIGHBOUR[port]
                parent = core + d_row * self.program.cols + d_col
                latency = self.latency(slot, parent, (port + 2) % 4)
            self.queues[key] = Queue(latency, self.config.router_queue_wavelets * latency)
        return self.queues[key]

    def latency(self, slot: int, core: int, port: int) -> int:
        """Return the cycles of the link that leaves a router by a port."""
        found = self.config.hop_cycles
        cfg, sideways = self.route[slot][core], 10 >> port % 2 & 15  # ports across the direction
        for position in range(int(self.program.cfg_positions[cfg])):
            inputs = self.rx[cfg][position] & sideways
            if self.tx[cfg][position] >> port & 1 and inputs:
                found += self.config.turn_cycles
                break
        if self.program.die_edges[core] >> port & 1:
            found += self.config.die_crossing_cycles
        return found

    def target(self, slot: int, core: int, port: int) -> Queue:
        """Return the destination of a word that leaves by a port."""
        if port == RAMP:
            return self.input_queue(core, slot)
        d_row, d_col = NEIGHBOUR[port]
        return self.router_queue(slot, core + d_row * self.program.cols + d_col, (port + 2) % 4)

    def step_router(self, u: int, t: int) -> None:
        """Make all moves of a router in one cycle."""
        slots = self.program.n_slots
        moved, wanted = 0, 0
        first = self.pointer[u] if self.config.round_robin else 0
        for k in range(slots):
            s = (first + k) % slots
            cfg, at = self.route[s][u], self.position[s][u]
            rx, tx = self.rx[cfg][at], self.tx[cfg][at]
            for offset in range(5):
                port = (t + offset) % 5
                queue = self.queues.get((s, u, port))
                if rx >> port & 1 and queue is not None and (word := queue.head(t)) is not None:
                    break
            else:
                continue
            outputs = [p for p in range(5) if tx >> p & 1]
            wanted |= sum(1 << p for p in outputs)
            if not outputs or any(moved >> p & 1 or not self.link_free(u, p, t) for p in outputs):
                continue
            into = [p for p in outputs if p != RAMP or not word.is_control or word.is_seen]
            targets = [self.target(s, u, p) for p in into]
            if not all(each.has_room(t) for each in targets):
                continue
            queue.pop(t)
            self.held[u] -= 1
            onward = self.act(s, u, cfg, word)
            for p, each in zip(into, targets, strict=True):
                each.push(onward, t)
                self.landing.setdefault(t + each.latency, []).append(each)
                if p != RAMP:
                    self.count(u + NEIGHBOUR[p][0] * self.program.cols + NEIGHBOUR[p][1])
            for p in outputs:
                self.links[u, p] += 1
                self.use_link(u, p, t)
                moved |= 1 << p
            self.pointer[u] = (s + 1) % slots
            self.any_move = True
        self.waiting += [(u, p) for p in range(5) if wanted >> p & 1 and not moved >> p & 1]

    def count(self, u: int) -> None:
        """Count one more word in the queues of a router."""
        self.held[u] = self.held.get(u, 0) + 1

    def link_free(self, u: int, port: int, t: int) -> bool:
        """Return whether a link is free: one of w cycles per word takes the next word in the cycle in which it becomes
        free.
        """
        return self.free.get((u, port), 0) < 1000 * (t + 1)

    def use_link(self, u: int, port: int, t: int) -> None:
        """Send a word over a link."""
        self.free[u, port] = max(self.free.get((u, port), 0), 1000 * t) + self.config.wavelet_milli

    def act(self, s: int, u: int, cfg: int, word: Word) -> Word:
        """Turn the switch after the word has left; return the word that continues."""
        if word.mark == P.FLAG_CONTROL:
            command = word.commands[0]
            self.turn(s, u, cfg, command)
            pop = self.program.cfg_pop[cfg]
            if pop == 1 or (pop == 2 and command == Command.ADVANCE):
                return dataclasses.replace(word, commands=(*word.commands[1:], int(Command.NOP)))
        elif word.mark != P.FLAG_DATA:
            self.turn(s, u, cfg, Command.ADVANCE)
            if word.mark == P.FLAG_ADVANCE_LOCAL:
                return dataclasses.replace(word, mark=P.FLAG_DATA)
        return word

    def turn(self, s: int, u: int, cfg: int, command: int) -> None:
        """Apply one command at one switch."""
        if command == Command.RESET:
            self.position[s][u] = 0
        elif command == Command.ADVANCE:
            n = int(self.program.cfg_positions[cfg])
            at = self.position[s][u] + 1
            self.position[s][u] = at if at < n else (0 if self.program.cfg_ring[cfg] else n - 1)

    def step_ring(self, u: int, t: int) -> None:
        """Move one word per cycle from the output ring to the router."""
        ring = self.rings[u]
        if ring and ring[0][0] <= t and (queue := self.router_queue(ring[0][1], u, RAMP)).has_room(t):
            queue.push(ring.popleft()[2], t)
            self.landing.setdefault(t + 1, []).append(queue)
            self.count(u)
            self.any_move = True

    def run(self, max_cycles: int = 1_000_000) -> Outcome:
        """Run until all cores have finished or nothing moves."""
        live = [core for core in self.cores if core.pc >= 0]
        for core in self.cores:
            if core.pc < 0:
                core.halted = 0
        c = self.config
        longest = (
            c.hop_cycles
            + c.turn_cycles
            + c.die_crossing_cycles
            + 2 * c.ramp_cycles
            + c.forward_cycles
            + c.wavelet_milli // 1000
        )
        t = stopped = 0
        while t < max_cycles:
            self.any_move, self.waiting = False, []
            for u in [u for u, held in self.held.items() if held]:
                self.step_router(u, t)
            for u in range(self.n):
                if self.rings[u]:
                    self.step_ring(u, t)
            marks = [(q, sum(ready <= t + 1 for ready, _ in q.words)) for q in self.landing.pop(t + 1, ())]
            for core in live:
                self.any_move |= core.cycle(t)
            live = [core for core in live if core.halted < 0]
            self.quiet.append(
                (self.waiting, [(core, core.why) for core in live if core.why in (INPUT, OUTPUT)], marks)
            )
            t += 1
            if self.any_move or self.is_under_way(t - 1):
                self.count_waits()
                stopped = t
            elif t - stopped > longest:
                break
        for u, p in self.quiet[0][0] if self.quiet else ():
            self.blocked[u, p] += 1  # routers still count in the cycle in which all has stopped
        return self.outcome(stopped)

    def is_under_way(self, t: int) -> bool:
        """Return whether a word that is the first of its queue or ring comes later, by time alone."""
        queues = (*self.queues.values(), *self.inputs.values())
        return any(ring and ring[0][0] > t for ring in self.rings) or any(
            q.words and q.words[0][0] > t for q in queues
        )

    def count_waits(self) -> None:
        """Count the waits of the cycles up to one in which something happened."""
        for ports, cores, marks in self.quiet:
            for queue, words in marks:
                queue.high = max(queue.high, words)
            for u, p in ports:
                self.blocked[u, p] += 1
            for core, why in cores:
                core.stalled_in += why == INPUT
                core.stalled_out += why == OUTPUT
        self.quiet = []

    def outcome(self, t: int) -> Outcome:
        """Return the counters at the end."""
        self.t = t
        halt = np.array([self.final(core) for core in self.cores])
        unfinished = halt < 0
        cycles = t if unfinished.any() else int(halt.max())
        high = np.zeros((self.n, 3), np.int64)
        for (_, u, _), queue in self.queues.items():
            high[u, 0] = max(high[u, 0], queue.high)
        for (u, _), queue in self.inputs.items():
            high[u, 2] = max(high[u, 2], queue.high)
        high[:, 1] = self.ring_high

        def each(name: str) -> Any:
            return np.array([getattr(core, name) for core in self.cores])

        words = sum(len(q.words) for q in (*self.queues.values(), *self.inputs.values())) + sum(
            map(len, self.rings)
        )
        return Outcome(
            cycles, halt, each("busy"), each("stalled_in"), each("stalled_out"), self.links, self.blocked, high, each("sent"),
            each("received"), words, unfinished, self.memory,
        )  # fmt: skip

    def final(self, core: Core) -> int:
        """Return the halt cycle, -1 of a core that has not finished."""
        if core.halted >= 0:
            return core.halted
        waits = any(core.runnable(k, self.t) for k in range(len(core.tasks)))
        return -1 if core.running or core.threads or waits else core.last_issue + 1
