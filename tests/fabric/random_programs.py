"""Random fabric programs by seed, for differential tests between executors.

Routes are trees from random sources (X then Y), some with merges, some with switches that turn inputs or outputs; senders and receivers mostly agree on the number of
words, so most programs end; shuffled instructions, switches and blocked tasks make some deadlock.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from tests.fabric.random_switches import BACK, CONTROL_TASK, STEP, Batch, Core, SwitchedColor
from wse_sim.errors import ProgramError
from wse_sim.fabric.format.builder import Builder, CoreClass, Switch, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import WAVELET
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Command, Fn, Program

SIZE = 64  # elements of every buffer


@dataclasses.dataclass
class _Action:
    """One vector instruction (or several) of a core; `words` in total."""

    kind: str  # "send", "batches", "receive", "forward", "busy", "map", "memory"
    color: int = -1
    words: int = 0
    source: int = -1
    pieces: tuple[int, ...] = ()
    thread: int = 0
    control: bool = False
    batches: tuple[Batch, ...] = ()


@dataclasses.dataclass(frozen=True)
class RandomProgram:
    """A program and values (rows, cols, SIZE) for its buffers."""

    program: Program
    inputs: dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Features:
    """Fractions of the ingredients; set one to 0 to leave it out."""

    merges: float = 0.3
    switches: float = 0.2
    tasks: float = 0.25
    threads: float = 0.3
    shuffles: float = 0.15
    half: float = 0.25
    loops: float = 0.3
    slow: float = 0.3
    queues: float = 0.2
    forks: float = 0.15


class _Maker:
    def __init__(self, seed: int, config: FabricConfig, features: Features) -> None:
        self.rng = np.random.default_rng(seed)
        rng = self.rng
        self.config, self.features = config, features
        self.rows = int(rng.integers(1, 7))
        self.cols = int(rng.integers(1, 9)) if rng.random() < 0.8 else int(rng.integers(60, 70))
        if self.cols > 10:
            self.rows = min(self.rows, 2)
        if self.rows * self.cols < 2:
            self.cols = 2
        self.b = Builder(self.rows, self.cols, config)
        self.actions: dict[Core, list[_Action]] = {}
        self.data_tasks: dict[Core, list[int]] = {}
        self.half: dict[int, bool] = {}
        self.control_tasks: set[Core] = set()

    def chance(self, name: str) -> bool:
        return bool(self.rng.random() < getattr(self.features, name))

    def core(self) -> Core:
        return int(self.rng.integers(self.rows)), int(self.rng.integers(self.cols))

    # ---- routes ------------------------------------------------------------------------------

    def walk(self, src: Core, dst: Core, x_first: bool) -> list[str]:
        east = dst[1] - src[1]
        south = dst[0] - src[0]
        x = ["E" if east > 0 else "W"] * abs(east)
        y = ["S" if south > 0 else "N"] * abs(south)
        return x + y if x_first else y + x

    def tree_color(self, color: int) -> None:
        """Make sources with trees; a later source may join an earlier tree."""
        rx: dict[Core, set[str]] = {}
        tx: dict[Core, set[str]] = {}
        x_first = bool(self.rng.random() < 0.5)
        sources: dict[Core, int] = {}
        limit = 40 if self.cols < 10 else 24
        for _ in range(int(self.rng.integers(1, 4))):
            src = self.core()
            joins = src in rx
            if (joins and not self.chance("merges")) or src in sources:
                continue
            forwardable = [a for a in self.actions.get(src, []) if a.kind == "receive" and a.thread == 0]
            words = int(self.rng.integers(1, limit))
            if forwardable and self.rng.random() < 0.6 and not self.half[forwardable[-1].color]:
                words = -1  # decided below: the words of the stream that is forwarded
            fresh_rx, fresh_tx = {k: set(v) for k, v in rx.items()}, {k: set(v) for k, v in tx.items()}
            fresh_rx.setdefault(src, set()).add("R")
            fresh_tx.setdefault(src, set())
            ok = True
            if not joins:
                mine = {src}
                for _ in range(int(self.rng.integers(1, 5))):
                    dst = self.core()
                    if dst == src:
                        continue
                    at = src
                    for step in self.walk(src, dst, x_first):
                        fresh_tx[at].add(step)
                        at = (at[0] + STEP[step][0], at[1] + STEP[step][1])
                        fresh_rx.setdefault(at, set()).add(BACK[step])
                        if at in tx and at not in mine:
                            ok = ok and self.chance("merges")
                            break
                        mine.add(at)
                        fresh_tx.setdefault(at, set())
                    else:
                        fresh_tx[dst].add("R")
                ok = ok and bool(fresh_tx[src])
            if not ok or not self.loop_free(src, fresh_tx):
                continue
            rx, tx = fresh_rx, fresh_tx
            if words < 0:
                action = forwardable[-1]
                self.actions[src].remove(action)
                words = action.words
                self.actions[src].append(_Action("forward", color, words, action.color, thread=0))
            else:
                pieces = self.split(words)
                thread = int(self.rng.integers(1, 4)) if self.chance("threads") else 0
                self.actions.setdefault(src, []).append(_Action("send", color, words, -1, pieces, thread))
            sources[src] = words
        if not sources:
            return
        self.half[color] = self.chance("half") and not any(
            a.color == color or a.source == color
            for acts in self.actions.values()
            for a in acts
            if a.kind == "forward"
        )
        expected: dict[Core, int] = {}
        for src, words in sources.items():
            for dst in self.reach(src, tx):
                expected[dst] = expected.get(dst, 0) + words
        for dst, words in expected.items():
            if self.chance("tasks") and not self.half[color] and self.rng.random() < 0.5:
                self.data_tasks.setdefault(dst, []).append(color)
                continue
            thread = int(self.rng.integers(1, 4)) if self.chance("threads") else 0
            self.actions.setdefault(dst, []).append(
                _Action("receive", color, words, -1, self.split(words), thread)
            )
        for at in sorted(set(rx) | set(tx)):
            if rx.get(at) and tx.get(at):
                self.b.route(color, at, rx="".join(sorted(rx[at])), tx="".join(sorted(tx[at])))

    def loop_free(self, src: Core, tx: dict[Core, set[str]]) -> bool:
        seen = set()
        todo = [src]
        while todo:
            at = todo.pop()
            if at in seen:
                return False
            seen.add(at)
            todo += [(at[0] + STEP[s][0], at[1] + STEP[s][1]) for s in sorted(tx.get(at, ())) if s != "R"]
        return True

    def reach(self, src: Core, tx: dict[Core, set[str]]) -> list[Core]:
        found, todo = [], [src]
        while todo:
            at = todo.pop()
            for s in sorted(tx.get(at, ())):
                if s == "R":
                    found.append(at)
                else:
                    todo.append((at[0] + STEP[s][0], at[1] + STEP[s][1]))
        return found

    def star_color(self, color: int) -> None:
        """Make senders of one row that alternate by switches; their last word or a control wavelet advances these."""
        row = int(self.rng.integers(self.rows))
        n = min(self.cols, int(self.rng.integers(2, 8)))
        if n < 2:
            return
        self.half[color] = False
        by_control = bool(self.rng.random() < 0.5)
        words = [int(self.rng.integers(1, 12)) for _ in range(n - 1)]
        for i in range(1, n):
            switch = Switch(
                [{"rx": "E"}],
                ring=bool(self.rng.random() < 0.2),
                pop=str(self.rng.choice(["always", "on_advance"])),
            )
            self.b.route(color, (row, i), rx="R", tx="W", switch=None if i == n - 1 else switch)
            self.actions.setdefault((row, i), []).append(
                _Action("send", color, words[i - 1], -2, (words[i - 1],), 0, by_control)
            )
        self.b.route(color, (row, 0), rx="E", tx="R")
        self.actions.setdefault((row, 0), []).append(
            _Action("receive", color, sum(words), -1, self.split(sum(words)), 0)
        )

    def forked_color(self, color: int) -> None:
        """Make switches that turn outputs, by marks and by commands that some cores see."""
        made = SwitchedColor(self.rng, self.rows, self.cols, self.turns)
        if any(words % self.turns for words in made.words.values()):
            return  # turns differ, but the instructions of a loop do not
        self.half[color] = False
        for at, router in made.routers.items():
            self.b.route(color, at, router.rx[0], router.tx[0], router.switch())
        action = _Action("batches", color, 1, -1, (1,), batches=tuple(made.batches))
        self.actions.setdefault(made.source, []).append(action)
        for at, words in made.words.items():
            words //= self.turns
            if self.chance("tasks") and self.rng.random() < 0.5:
                self.data_tasks.setdefault(at, []).append(color)
            else:
                self.actions.setdefault(at, []).append(
                    _Action("receive", color, words, -1, self.split(words))
                )
        self.control_tasks |= {at for at in sorted(made.commanded) if self.chance("tasks")}

    def split(self, words: int) -> tuple[int, ...]:
        if words > 1 and self.rng.random() < 0.4:
            cut = int(self.rng.integers(1, words))
            return cut, words - cut
        return (words,)

    # ---- cores -------------------------------------------------------------------------------

    def instruction(
        self, k: CoreClass, action: _Action, piece: int, buffers: dict, thread: int, **done: Any
    ) -> None:
        rng = self.rng
        x, y, h = buffers["x"], buffers["y"], buffers["h"]
        start = str(rng.choice(["none", "none", "loaded", "code"]))
        options: dict = {"start": start, "thread": thread, **done}
        if thread:
            options["priority"] = str(rng.choice(["low", "low", "medium", "high"]))
        half = self.half.get(action.color, False)
        scale = 2 if half else 1
        piece_elements = min(piece * scale, SIZE)
        if half:
            options["dtype"] = "fp16"
            if (piece + thread) % 2:
                options["wire"] = "fp16x4"
        mem = h if half else x
        if action.kind == "send":
            advance = None
            if action.source == -2 and not action.control:
                advance = "local"
            if rng.random() < 0.3:
                k.mul(fabric_out(action.color, advance), mem.dsd(0, piece_elements), scalar(0.5), **options)
            else:
                k.mov(fabric_out(action.color, advance), mem.dsd(0, piece_elements), **options)
            if action.control:
                k.control(action.color, Command.ADVANCE, start="none")
        elif action.kind == "batches":
            for batch in action.batches:
                batch.write(k, action.color, x.dsd(0, SIZE))
        elif action.kind == "forward":
            k.add(fabric_out(action.color), fabric_in(action.source), x.dsd(0, piece_elements), **options)
        elif action.kind == "receive":
            choice = int(rng.integers(6)) if self.chance("slow") else 0
            source, n = fabric_in(action.color), piece_elements
            dst = h if half else y
            if choice == 0:
                k.mov(dst.dsd(0, n), source, **options)
            elif choice == 1:
                k.add(dst.dsd(3, n, 0), source, dst.dsd(3, n, 0), length=n, **options)
            elif choice == 2:
                k.fmac(dst.dsd(0, n), dst.dsd(0, n), source, scalar(0.25), **options)
            elif choice == 3:
                k.mac(dst.dsd(0, n), source, mem.dsd(0, n), **options)
            elif choice == 4:
                inner = int(rng.integers(1, 14))
                k.fmac_vectors(
                    dst.dsd(0, inner),
                    source,
                    mem.dsd(0, inner),
                    inner,
                    length=n,
                    triggered=bool(rng.random() < 0.5),
                    **options,
                )
            else:
                k.max(dst.dsd(0, n), source, mem.dsd(0, n), **options)
        elif action.kind == "busy":
            k.busy(piece)
        elif action.kind == "map":
            k.map(Fn(int(rng.integers(0, 11))), y.dsd(0, 2), x.dsd(0, 2), **options)
        else:
            k.add(y.dsd(0, piece), x.dsd(0, piece), y.dsd(0, piece), **options)

    def core_class(self, at: Core, buffers: dict) -> None:
        rng = self.rng
        actions = self.actions.get(at, [])
        if self.chance("shuffles") and len(actions) > 1:
            i = int(rng.integers(len(actions) - 1))
            actions[i], actions[i + 1] = actions[i + 1], actions[i]
        elif rng.random() < 0.7:
            actions.sort(key=lambda a: a.color if a.kind != "forward" else a.source)
        for _ in range(int(rng.integers(0, 3))):
            kind = str(rng.choice(["busy", "busy", "memory", "map"]))
            place = int(rng.integers(len(actions) + 1))
            actions.insert(place, _Action(kind, pieces=(int(rng.integers(1, 30)),), words=1))
        k = self.b.core_class(f"core {at}")
        tasks = []
        if at in self.control_tasks:
            with k.body(k.control_task(CONTROL_TASK, high=bool(rng.random() < 0.5))):
                k.busy(int(rng.integers(0, 6)))
        for color in self.data_tasks.get(at, []):
            task = k.data_task(color, high=bool(rng.random() < 0.5))
            with k.body(task):
                k.busy(int(rng.integers(0, 6)))
                k.add(buffers["y"].dsd(7, 1), buffers["y"].dsd(7, 1), WAVELET, start="none")
        for action in actions:
            if action.thread and rng.random() < 0.3:
                blocked = bool(rng.random() < 0.2)
                task = k.local_task(blocked=blocked)
                with k.body(task):
                    k.busy(int(rng.integers(1, 9)))
                    k.mov(buffers["y"].dsd(0, 5), buffers["x"].dsd(3, 5), start="loaded")
                tasks.append((action, task, blocked))
        turns = self.turns
        with k.loop(turns):
            for action in actions:
                pieces = action.pieces or (action.words,)
                for i, piece in enumerate(pieces):
                    done: dict = {}
                    for owner, task, blocked in tasks:
                        if owner is action and i == len(pieces) - 1:
                            done = {"activate": task}
                            if blocked and rng.random() < 0.8:
                                k.unblock(task)
                    self.instruction(k, action, piece, buffers, action.thread, **done)
                if action.thread and rng.random() < 0.3:
                    k.join(action.thread)
        self.b.place(k, at)

    def make(self) -> RandomProgram:
        rng = self.rng
        self.turns = int(rng.integers(2, 5)) if self.chance("loops") else 1
        for color in range(int(rng.integers(1, 5))):
            if self.chance("forks"):
                self.forked_color(color)
            elif self.chance("switches") and self.turns == 1:
                self.star_color(color)
            else:
                self.tree_color(color)
            if self.chance("queues"):
                self.b.input_queue(color, int(rng.integers(0, 8)))
        buffers = {
            "x": self.b.buffer("x", SIZE),
            "y": self.b.buffer("y", SIZE, bank=int(rng.integers(0, 8))),
            "h": self.b.buffer("h", SIZE, "fp16"),
        }
        for at in sorted(set(self.actions) | set(self.data_tasks) | self.control_tasks):
            self.core_class(at, buffers)
        shape = (self.rows, self.cols, SIZE)
        inputs = {name: rng.standard_normal(shape).astype(np.float32) for name in buffers}
        return RandomProgram(self.b.build(), inputs)


@functools.lru_cache(
    maxsize=4
)  # several executors in turn get one program; test_contract.py: none changes it
def random_program(seed: int, config: FabricConfig, features: Features | None = None) -> RandomProgram:
    """Return the program of `seed`; seeds whose routes cannot be built are replaced by the next one in a fixed
    sequence.
    """
    for attempt in range(50):
        try:
            return _Maker(seed + 1_000_003 * attempt, config, features or Features()).make()
        except ProgramError:
            continue
    raise ProgramError(f"seed {seed} gives no program in 50 attempts; use another seed")
