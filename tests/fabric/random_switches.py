"""Random trees whose switches turn outputs, and the words that arrive at every core: a walk by the rules, without time.

One core sends, and words of one color stay in order on their way, so every router meets words and commands in the order
in which they were sent.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from wse_sim.fabric.format.builder import CoreClass, Switch, fabric_out
from wse_sim.fabric.format.classes import Operand
from wse_sim.fabric.format.program import NO_TASK, Command

STEP = {"N": (-1, 0), "E": (0, 1), "S": (1, 0), "W": (0, -1)}
BACK = {"N": "S", "E": "W", "S": "N", "W": "E"}
CONTROL_TASK = 3
Core = tuple[int, int]


@dataclasses.dataclass
class Router:
    """The positions of one router on the route of a color: inputs and outputs."""

    rx: list[str]
    tx: list[str]
    ring: bool
    pop: str
    at: int

    def act(self, command: Command) -> None:
        """Turn the switch."""
        if command == Command.RESET:
            self.at = 0
        elif command == Command.ADVANCE:
            last = self.at + 1 == len(self.tx)
            self.at = (0 if self.ring else self.at) if last else self.at + 1

    def switch(self) -> Switch | None:
        """Return the positions after position 0."""
        if len(self.tx) == 1:
            return None
        later = [{"rx": rx, "tx": tx} for rx, tx in zip(self.rx[1:], self.tx[1:], strict=True)]
        return Switch(later, self.ring, self.pop, self.at)


@dataclasses.dataclass(frozen=True)
class Batch:
    """Words, the mark of the last one, and the commands of the following control wavelet."""

    words: int
    mark: str | None = None
    commands: tuple[Command, ...] = ()
    ignore: bool = True
    task_id: int = NO_TASK

    def write(self, k: CoreClass, color: int, source: Operand) -> None:
        """Write the instructions that send the batch."""
        k.mov(fabric_out(color, self.mark), source, length=self.words, start="none")
        if self.commands:
            k.control(color, *self.commands, task_id=self.task_id, ignore=self.ignore, start="none")


class SwitchedColor:
    """A tree over `rows` x `cols` cores from a random source, with at least one switch that has several outputs."""

    def __init__(self, rng: np.random.Generator, rows: int, cols: int, turns: int) -> None:
        self.rng = rng
        self.source: Core = (int(rng.integers(rows)), int(rng.integers(cols)))
        ways = self._tree(rows, cols)
        self.routers = {at: self._router(at, ways) for at in ways}
        self.batches = [self._batch() for _ in range(int(rng.integers(2, 6)))]
        self.words: dict[Core, int] = {}
        self.commanded: set[Core] = set()
        starts = {at: router.at for at, router in self.routers.items()}
        for _ in range(turns):
            for batch in self.batches:
                self._send(batch)
        for at, start in starts.items():
            self.routers[at].at = start

    def _tree(self, rows: int, cols: int) -> dict[Core, str]:
        """Return, for each core, the directions to its children, its own input last (`R` of the source)."""
        rng = self.rng
        self.inputs = {self.source: "R"}
        ways: dict[Core, str] = {self.source: ""}
        for _ in range(int(rng.integers(2, 14))):
            near = list(ways)[-3:] if rng.random() < 0.7 else list(ways)
            at = near[int(rng.integers(len(near)))]
            step = str(rng.choice(list("NESW")))
            to = at[0] + STEP[step][0], at[1] + STEP[step][1]
            if 0 <= to[0] < rows and 0 <= to[1] < cols and to not in ways:
                ways[at] += step
                ways[to], self.inputs[to] = "", BACK[step]
        return ways

    def _router(self, at: Core, ways: dict[Core, str]) -> Router:
        rng, own = self.rng, self.inputs[at]
        outputs = ways[at] + ("R" if at != self.source and (not ways[at] or rng.random() < 0.4) else "")
        n = int(rng.integers(2, 5)) if len(outputs) > 1 and rng.random() < 0.8 else 1
        tx = [outputs] if n == 1 else [self._some(outputs) for _ in range(n)]
        shut = [n > 1 and rng.random() < 0.03 for _ in tx]
        rx = ["NESWR".replace(own, "")[:1] if each else own for each in shut]
        initial = int(rng.integers(n)) if rng.random() < 0.3 else 0
        pop = str(rng.choice(["always", "always", "on_advance", "never"]))
        return Router(rx, tx, bool(rng.random() < 0.5), pop if n > 1 else "always", initial)

    def _some(self, outputs: str) -> str:
        chosen = [port for port in outputs if self.rng.random() < 0.5]
        return "".join(chosen) or str(self.rng.choice(list(outputs)))

    def _batch(self) -> Batch:
        rng, words = self.rng, int(self.rng.integers(1, 9))
        kind = int(rng.integers(6))
        if kind < 2:
            return Batch(words, ("local", "path")[kind])
        if kind == 2:
            return Batch(words)
        commands = [Command.NOP, Command.ADVANCE, Command.ADVANCE, Command.RESET]
        chosen = tuple(commands[int(rng.integers(4))] for _ in range(int(rng.integers(1, 5))))
        task = CONTROL_TASK if rng.random() < 0.5 else NO_TASK
        return Batch(words, None, chosen, bool(rng.random() < 0.7), task)

    def _send(self, batch: Batch) -> None:
        for i in range(batch.words):
            self._walk(batch.mark if i == batch.words - 1 else None, None)
        if batch.commands:
            self._walk(None, batch)

    def _walk(self, mark: str | None, control: Batch | None) -> None:
        """Move one word from the source to all cores that receive it; the commands of a control wavelet pop on the way."""
        way = [(self.source, mark, control.commands if control else ())]
        while way:
            at, mark, commands = way.pop()
            router = self.routers[at]
            if router.rx[router.at] != self.inputs[at]:
                continue  # it waits forever; the program may stop
            outputs = router.tx[router.at]
            if control is not None:
                first = commands[0] if commands else Command.NOP
                router.act(first)
                if router.pop == "always" or (router.pop == "on_advance" and first == Command.ADVANCE):
                    commands = commands[1:]
            elif mark:
                router.act(Command.ADVANCE)
            onward = mark if mark == "path" else None
            for port in outputs:
                if port != "R":
                    way.append(((at[0] + STEP[port][0], at[1] + STEP[port][1]), onward, commands))
                elif control is None:
                    self.words[at] = self.words.get(at, 0) + 1
                elif not control.ignore:
                    self.commanded.add(at)
