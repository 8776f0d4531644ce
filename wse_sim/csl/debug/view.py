"""State of the cores at a session's present place: frames, variables, tasks, queues, routes, and senders of
queued words."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import numpy as np

from wse_sim.csl.debug.lines import DebugError, LineTable
from wse_sim.csl.debug.values import Datum, Expression, Types, ValuePlace
from wse_sim.fabric.vm import breakpoints
from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm.image import CONTROL, DATA, CoreClass, Image, Symbol
from wse_sim.fabric.vm.replay import ReplaySession

PORTS = "NESWR"
_MODES = (
    "at rest",
    "runs",
    "starts a vector operation",
    "in a vector operation",
    "ends a task",
    "halted",
    "no program",
    "runs",
)


@dataclasses.dataclass(frozen=True)
class Frame:
    """Active function of a core: the next row (for a caller, the row of its call), and the start of its
    registers."""

    row: int
    window: int


@dataclasses.dataclass(frozen=True)
class QueuedWord:
    """Word in a queue with its sender."""

    value: int
    is_control: bool
    origin: str


@dataclasses.dataclass(frozen=True)
class QueueState:
    """Queue of a core or its router, with its words, the first one first."""

    name: str
    color: int
    words: tuple[QueuedWord, ...]


class View:
    """Read-only view of a session's cores."""

    def __init__(self, session: ReplaySession, image: Image) -> None:
        self.session, self.image, self.types, self.lines = session, image, Types(image), LineTable(image)

    # -- cores and rows

    def name(self, core: int) -> str:
        """Return the name of a core, ``core (x, y)``."""
        return f"core ({core % self.image.cols}, {core // self.image.cols})"

    def where(self, row: int) -> str:
        """Return ``file:line (function)`` of a row, with the file's name only."""
        file, line, function = self.lines.where(row)
        shown = f"{Path(file).name if not file.startswith('<') else file}:{line}"
        return f"{shown} ({function})" if function else shown

    def cls(self, core: int) -> CoreClass | None:
        """Return the class of a core, or None for a core without a program."""
        k = int(self.image.core_class[core])
        return self.image.classes[k] if k >= 0 else None

    def depth(self, core: int) -> int:
        """Return the number of calls that are active on a core."""
        return int(self.session.machine.core[core, S.DEPTH])

    def entries(self, core: int) -> set[int]:
        """Return the first rows of a core's tasks and of its functions for the host."""
        cls = self.cls(core)
        if cls is None:
            return set()
        functions = {symbol.address for symbol in cls.symbols if symbol.kind == "function"}
        return functions | {task.entry for task in cls.tasks}

    def frames(self, core: int) -> list[Frame]:
        """Return the active functions of the main thread, innermost first; empty for an idle core."""
        m = self.session.machine
        row = m.core[core]
        if int(row[S.MODE]) in (S.IDLE, S.ENDING, S.HALTED, S.NO_PROGRAM):
            return []
        found = [Frame(self.session.row(core), int(row[S.WINDOW]))]
        calls = m.calls[: m.core.shape[0] * int(m.sets[S.CALLS]) * 2].reshape(-1, int(m.sets[S.CALLS]), 2)[
            core
        ]
        for pc, window in calls[: int(row[S.DEPTH])][::-1].tolist():
            found.append(Frame(breakpoints.row_of(pc - 1, self.session.n_rows), window))
        return found

    def task(self, core: int) -> str:
        """Return the task that the main thread runs, or has run last."""
        number, cls = int(self.session.machine.core[core, S.TASK]), self.cls(core)
        if number >= 64:
            return "a command of the host" if number == 64 else "the handler of an empty queue"
        names = {task.id: task.name for task in cls.tasks} if cls is not None else {}
        return f"task {names.get(number, number)}"

    def state(self, core: int) -> str:
        """Return the state of a core in one line."""
        row = self.session.machine.core[core]
        mode = int(row[S.MODE])
        threads = [k - 1 for k in range(1, S.N_THREADS) if int(row[S.LIVE]) >> k & 1]
        also = f"; microthreads {', '.join(map(str, threads))} in flight" if threads else ""
        frames = self.frames(core)
        at = f" at {self.where(frames[0].row)} in {self.task(core)}" if frames else ""
        return f"{self.name(core)} {_MODES[mode]}{at}{also}"

    # -- variables

    def locals(self, core: int, frame: int = 0) -> list[ValuePlace]:
        """Return the names that are visible at the present row of a frame, with their places; empty without
        such a frame."""
        frames = self.frames(core)
        if not 0 <= frame < len(frames):
            return []
        row, first = (
            frames[frame].row,
            core * int(self.session.machine.sets[S.REGISTERS]) + frames[frame].window,
        )
        found: dict[str, tuple[int, ValuePlace]] = {}
        for name, kind, reg, address, begin, end in self.image.local_names:
            if begin <= row < end and (name not in found or found[name][0] <= begin):
                bits = int(self.session.machine.regs[first + reg]) if reg >= 0 else 0
                found[name] = (begin, ValuePlace(name, kind, address, bits))
        return [place for _, place in found.values()]

    def globals(self, core: int) -> list[Symbol]:
        """Return the variables of a core's program."""
        cls = self.cls(core)
        return [s for s in cls.symbols if s.kind == "var"] if cls is not None else []

    def named(self, core: int, name: str, frame: int = 0) -> ValuePlace:
        """Return a local name, or a variable of a core's program.

        A variable that has the same name as an exported pointer to it takes precedence over the pointer.

        Raises
        ------
        DebugError
            If there is no such name.
        """
        for place in self.locals(core, frame):
            if place.name == name:
                return place
        variables = self.globals(core)
        hidden = [s for s in variables if "#" in s.name and s.name.partition(".")[2] == name]
        for symbol in (*hidden, *(s for s in variables if s.name == name)):
            return ValuePlace(name, symbol.type, symbol.address)
        known = [place.name for place in self.locals(core, frame)] + [s.name for s in variables]
        raise DebugError(
            f"{self.name(core)} has no variable '{name}' here; it has {', '.join(known) or 'none'}"
        )

    def _expression(self, core: int, frame: int) -> Expression:
        x, y = core % self.image.cols, core // self.image.cols
        return Expression(
            self.types,
            lambda name: self.named(core, name, frame),
            lambda address, n: self.session.peek(x, y, address, n).tolist(),
        )

    def value(self, core: int, text: str, frame: int = 0) -> Datum:
        """Evaluate an expression on a core, in the scope of a frame.

        Raises
        ------
        DebugError
            If it is not an expression, or a name does not exist.
        """
        return self._expression(core, frame).value(text)

    def of_place(self, core: int, place: ValuePlace) -> Datum:
        """Return the value of a variable or a part of one."""
        return self._expression(core, 0).of_place(place)

    def place(self, core: int, text: str, frame: int = 0) -> ValuePlace:
        """Return the variable, or the part of one, that a text names.

        Raises
        ------
        DebugError
            If it is another expression, or a name does not exist.
        """
        found = self._expression(core, frame).place(text)
        if found is None:
            raise DebugError(f"'{text}' is no variable and no element or field of one")
        return found

    def check(self, condition: str) -> None:
        """Check the syntax of a condition.

        Raises
        ------
        DebugError
            If it is not an expression.
        """
        if condition:
            try:
                ast.parse(re.sub(r"#\d+\.", "_", condition).replace(".*", ""), mode="eval")
            except (SyntaxError, ValueError):
                raise DebugError(
                    f"the condition '{condition}' is not an expression, as in 'i == 3'"
                ) from None

    # -- queues and routes

    def _origin(self, row: np.ndarray) -> str:
        sender, pc, cycle = (int(v) for v in row)
        if sender < 0:
            return f"the host, cycle {cycle:,}"
        return f"{self.name(sender)} at {self.where(breakpoints.row_of(pc, self.session.n_rows))}, cycle {cycle:,}"

    def queues(self, core: int) -> list[QueueState]:
        """Return the input and output queues that are bound or contain words, and the router queues that
        contain words."""
        m, found = self.session.machine, []
        for kind, count, head, word, meta, origin, bound, depth in (
            ("input", m.iq_count, m.iq_head, m.iq_word, m.iq_meta, m.iq_from, m.in_color, m.in_depth),
            ("output", m.oq_count, m.oq_head, m.oq_word, m.oq_meta, m.oq_from, m.out_color, m.out_depth),
        ):
            for q in range(count.shape[0]):
                places = [(int(head[q, core]) + i) % int(depth[q]) for i in range(int(count[q, core]))]
                slot = int(meta[q, core, places[0]]) & 63 if places else int(bound[core, q])
                if slot < 0:
                    continue
                words = tuple(
                    QueuedWord(int(word[q, core, i]), int(meta[q, core, i]) >> 6 == S.CONTROL_WORD, self._origin(origin[q, core, i]))
                    for i in places
                )  # fmt: skip
                found.append(QueueState(f"{kind} queue {q}", int(m.color_of[slot]), words))
        return found + self._router_queues(core)

    def _router_queues(self, core: int) -> list[QueueState]:
        m, n, found = self.session.machine, self.image.n_cores, []
        for slot in range(int(m.sets[S.SLOTS])):
            for port in range(5):
                e = (slot * n + core) * 5 + port
                places = [(int(m.q_head[e]) + i) % int(m.sets[S.CAP]) for i in range(int(m.q_count[e]))]
                words = tuple(
                    QueuedWord(
                        int(m.q_word[e, i]),
                        int(m.q_flag[e, i]) == S.CONTROL_WORD,
                        self._origin(m.q_from[e, i]),
                    )
                    for i in places
                )
                if words:
                    found.append(QueueState(f"router, from {PORTS[port]}", int(m.color_of[slot]), words))
        return found

    def head(self, core: int, queue: int) -> str:
        """Describe the first word of an input queue and its sender."""
        m = self.session.machine
        if not int(m.iq_count[queue, core]):
            return f"a word of input queue {queue}"
        i = int(m.iq_head[queue, core])
        color = int(m.color_of[int(m.iq_meta[queue, core, i]) & 63])
        return f"word {int(m.iq_word[queue, core, i]):#010x} of color {color}, sent by {self._origin(m.iq_from[queue, core, i])}"

    def routes(self, core: int) -> list[str]:
        """Return one line per color with routes at a core's router; * marks the present switch position."""
        m, n, found = self.session.machine, self.image.n_cores, []
        for slot in range(int(m.sets[S.SLOTS])):
            rs = slot * n + core
            pairs = [int(m.route[rs * 4 + k]) for k in range(4)]
            if not any(pairs):
                continue
            at = int(m.rstate[rs]) & 3
            ways = [
                f"{'*' if k == at else ''}{_ports(p & 31)} -> {_ports(p >> 5)}"
                for k, p in enumerate(pairs)
                if p
            ]
            torn = ", torn down" if int(m.rstate[rs]) & S.TORN else ""
            found.append(f"color {int(m.color_of[slot])}: {', '.join(ways)}{torn}")
        return found

    # -- tasks

    def tasks(self, core: int) -> list[str]:
        """Return one line per task of a core: name, kind, number, and whether it is active, blocked or
        running."""
        row, cls = self.session.machine.core[core], self.cls(core)
        found = []
        for task in cls.tasks if cls is not None else ():
            marks = [
                name
                for name, is_so in (
                    ("active", int(row[S.ACTIVE]) >> task.id & 1),
                    ("blocked", int(row[S.BLOCKED]) >> task.id & 1),
                    ("runs", int(row[S.TASK]) == task.id and bool(self.frames(core))),
                )
                if is_so
            ]
            found.append(f"{task.name}: {task.kind} task {task.id}{', ' if marks else ''}{', '.join(marks)}")
        return found

    def task_entry(self, core: int, task: int) -> int:
        """Return the first row of a task, or -1 if there is none."""
        cls = self.cls(core)
        return next((t.entry for t in cls.tasks if t.id == task), -1) if cls is not None else -1

    def task_queue(self, core: int, task: int) -> int:
        """Return the input queue whose words start a task, or -1 if it is unknown or there is none."""
        cls, m = self.cls(core), self.session.machine
        for other in cls.tasks if cls is not None else ():
            if other.id != task or other.kind not in (DATA, CONTROL):
                continue
            if other.kind == CONTROL:
                waits = [q for q in range(m.iq_count.shape[0]) if int(m.iq_count[q, core])]
                return waits[0] if len(waits) == 1 else -1
            if self.image.arch == "wse3":
                return task
            slot = int(m.slot_of[task])
            return int(m.color_queue[core, slot]) if slot >= 0 else -1
        return -1

    def input_queue_of(self, core: int, row: int) -> int:
        """Return the input queue that the operation on a row's line reads or has read last, or -1 if it reads
        none."""
        m = self.session.machine
        for k in range(S.N_THREADS):
            th = m.threads[k, core]
            if self.lines.where(breakpoints.row_of(int(th[S.T_PC]), self.session.n_rows)) != self.lines.where(
                row
            ):
                continue
            for place in (1, 2):
                o = S.OPERAND0 + place * S.OPERAND_FIELDS
                if th[o + S.P_FORM] == S.INPUT:
                    return int(th[o + S.P_QUEUE])
        return -1


def _ports(mask: int) -> str:
    return "".join(PORTS[k] for k in range(5) if mask >> k & 1) or "-"
