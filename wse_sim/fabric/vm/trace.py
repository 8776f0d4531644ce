"""A trace of chosen cores: what they did in each cycle of a span, the words of their routers and queues, and back-pressure per link.

Within the span the fabric is stepped a cycle at a time and looked at; results and cycles stay as they are.  Scalar code is run in stretches
(up to the next vector operation, function of the machine or end of a task), so a stretch is one entry, named by its first line.  Two forms
are written: a timeline that Perfetto and chrome://tracing read (a cycle is a microsecond), and lines in the form of the vendor's ``sim.log``.
"""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from typing import Any, TypedDict

import numpy as np

from wse_sim.errors import ProgramError
from wse_sim.fabric.vm import loop as L
from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm.image import Image
from wse_sim.fabric.vm.opcodes import VECTOR_OPS
from wse_sim.fabric.vm.session import Array, Look, Session
from wse_sim.hardware.wafer import Wafer

MOST_CORES, MOST_EVENTS = 256, 400_000
PORTS = "NESWR"
_SIDES = ("north", "east", "south", "west", "core")
_LOG_ORDER = (1, 0, 3, 2, 4)  # E, N, W, S, R: slots of a departing field
_STATES = {
    S.BUSY: "busy",
    S.WAIT_INPUT: "waits for input",
    S.WAIT_OUTPUT: "waits for room",
    S.WAIT_THREAD: "waits for a microthread",
}
WORDS_IN, WORDS_OUT = 10, 11


class Word(TypedDict):
    """A word that a router took or gave: cycle, core, color, input side, output mask (0: it landed and waits), value, kind, identity."""

    cycle: int
    core: int
    color: int
    port: int
    out: int
    value: int
    control: bool
    ident: int


@dataclasses.dataclass
class TraceSpan:
    """One activity of a core's thread from cycle `first` to `last`, inclusive."""

    core: int
    thread: int
    first: int
    last: int
    name: str
    where: str
    state: str


class Tracer:
    """Looks at cores after each cycle.

    Raises
    ------
    ProgramError
        If a core is not of the program, none or too many are named, or the span is empty.
    """

    def __init__(
        self,
        image: Image,
        cores: list[tuple[int, int]],
        cycles: tuple[int, int],
        most_events: int = MOST_EVENTS,
    ) -> None:
        for x, y in cores:
            if not (0 <= x < image.cols and 0 <= y < image.rows):
                raise ProgramError(
                    f"core ({x}, {y}) cannot be traced: it is outside the rectangle of {image.cols} x {image.rows}"
                )
        if not 1 <= len(cores) <= MOST_CORES:
            raise ProgramError(f"{len(cores)} cores are too many to trace; name 1 to {MOST_CORES}")
        self.first, self.end = cycles
        if not 0 <= self.first < self.end:
            raise ProgramError(
                f"cycles {self.first}:{self.end} are an empty span; give FIRST:END with FIRST below END"
            )
        self.image, self.cores = image, np.array([y * image.cols + x for x, y in cores], np.int64)
        self.spans: list[TraceSpan] = []
        self.words: list[Word] = []
        self.pressure: list[tuple[int, int, int, int]] = []  # cycle, core, side, 1 from then on or 0
        self.most, self.cut_at = most_events, -1
        self._open: dict[tuple[int, int], TraceSpan] = {}
        self._before: dict[str, Array] = {}
        self._idents: dict[int, deque[int]] = {}
        self._next_ident = 1
        self._pressed: dict[tuple[int, int], bool] = {}

    # -- looking

    def begin(self, m: S.Machine) -> None:
        """Take the state before the first cycle."""
        self._before = self._state(m)

    def look(self, m: S.Machine, cycle: int) -> None:
        """Record what happened in a completed cycle."""
        if self.cut_at >= 0:
            return
        now = self._state(m)
        for i, c in enumerate(self.cores):
            self._threads(m, i, int(c), cycle, now)
        self._links(now, cycle)
        self._routers(m, now, cycle)
        self._before = now
        if len(self.spans) + len(self.words) + len(self.pressure) > self.most:
            self.cut_at = cycle

    def _state(self, m: S.Machine) -> dict[str, Array]:
        n, cores = self.image.n_cores, self.cores
        return {
            "core": m.core[cores].copy(), "threads": m.threads[:, cores, : S.OPERAND0].copy(), "links": m.links[cores].copy(),
            "blocked": m.blocked[cores].copy(), "count": m.q_count.reshape(-1, n, 5)[:, cores].astype(np.int64),
            "head": m.q_head.reshape(-1, n, 5)[:, cores].astype(np.int64), "rstate": m.rstate.reshape(-1, n)[:, cores].astype(np.int64),
        }  # fmt: skip

    def _threads(self, m: S.Machine, i: int, c: int, cycle: int, now: dict[str, Array]) -> None:
        core, state = now["core"][i], int(now["core"][i][S.STATE])
        for k in range(S.N_THREADS):
            th, old = now["threads"][k, i], self._before["threads"][k, i]
            if k and (th[S.T_OP] > 0 or old[S.T_OP] > 0):
                row = th if th[S.T_OP] > 0 else old
                waits = (int(core[S.WAITS_INPUT]) >> k & 1, int(core[S.WAITS_ROOM]) >> k & 1)
                what = "waits for input" if waits[0] else "waits for room" if waits[1] else "runs"
                self._note(c, k, cycle, _operation(row), self.image.where(int(row[S.T_PC])), what)
            elif k:
                self._close(c, k)
        mode = int(core[S.MODE])
        if state == S.REST and mode in (S.IDLE, S.HALTED, S.NO_PROGRAM):
            self._close(c, 0)
            return
        before = self._before["core"][i]
        is_vector = mode == S.VECTOR or int(before[S.MODE]) == S.VECTOR
        row = now["threads"][0, i] if now["threads"][0, i][S.T_OP] > 0 else self._before["threads"][0, i]
        pc = int(row[S.T_PC]) if is_vector else int(core[S.PC])
        task = self._task(c, int(core[S.TASK]))
        name = f"{task}: {_operation(row)}" if is_vector else task
        held = self._open.get((c, 0))
        where = self.image.where(pc)
        if not is_vector and held is not None and held.name == name and int(before[S.LEFT]) > 0:
            where = held.where  # the stretch continues
        self._note(c, 0, cycle, name, where, _STATES.get(state, "rests"))

    def _task(self, c: int, task: int) -> str:
        if task >= 64:
            return "command of the host" if task == 64 else "handler of an empty queue"
        k = int(self.image.core_class[c])
        names = {t.id: t.name for t in self.image.classes[k].tasks} if k >= 0 else {}
        return f"task {names.get(task, task)}"

    def _note(self, c: int, k: int, cycle: int, name: str, where: str, state: str) -> None:
        held = self._open.get((c, k))
        if (
            held is not None
            and (held.name, held.where, held.state) == (name, where, state)
            and held.last == cycle - 1
        ):
            held.last = cycle
            return
        self._open[c, k] = span = TraceSpan(c, k, cycle, cycle, name, where, state)
        self.spans.append(span)

    def _close(self, c: int, k: int) -> None:
        self._open.pop((c, k), None)

    def _links(self, now: dict[str, Array], cycle: int) -> None:
        held = now["blocked"] > self._before["blocked"]
        for i, c in enumerate(self.cores):
            for q in range(5):
                if bool(held[i, q]) != self._pressed.get((int(c), q), False):
                    self._pressed[int(c), q] = bool(held[i, q])
                    self.pressure.append((cycle, int(c), q, int(held[i, q])))

    def _routers(self, m: S.Machine, now: dict[str, Array], cycle: int) -> None:
        """Words that left queues of the routers, then those that landed in them."""
        gone = (now["head"] - self._before["head"]) % int(m.sets[S.CAP])
        came = now["count"] - self._before["count"] + gone
        left: dict[tuple[int, int], int] = {}  # (slot, core) that gave a word in this cycle: its identity
        n = self.image.n_cores
        for slot, i, port in np.argwhere(gone > 0):
            c = int(self.cores[i])
            e = (int(slot) * n + c) * 5 + int(port)
            at = int(self._before["head"][slot, i, port])
            held = self._idents.get(e)
            ident = held.popleft() if held else self._fresh()
            left[int(slot), c] = ident
            pair = int(m.route[(int(slot) * n + c) * 4 + (int(self._before["rstate"][slot, i]) & 3)])
            flag = int(m.q_flag[e, at])
            self._word(cycle, c, m, int(slot), int(port), pair >> 5, int(m.q_word[e, at]), flag, ident)
        for slot, i, port in np.argwhere(came > 0):
            c = int(self.cores[i])
            e = (int(slot) * n + c) * 5 + int(port)
            queue = self._idents.setdefault(e, deque())
            for k in range(int(came[slot, i, port])):
                up = self._beside(c, int(port))
                ident = left.get((int(slot), up)) or self._fresh()
                queue.append(ident)
                at = (
                    int(now["head"][slot, i, port])
                    + int(now["count"][slot, i, port])
                    - int(came[slot, i, port])
                    + k
                ) % int(m.sets[S.CAP])
                self._word(
                    cycle, c, m, int(slot), int(port), 0, int(m.q_word[e, at]), int(m.q_flag[e, at]), ident
                )

    def _word(
        self,
        cycle: int,
        c: int,
        m: S.Machine,
        slot: int,
        port: int,
        out: int,
        value: int,
        flag: int,
        ident: int,
    ) -> None:
        color = int(m.color_of[slot])
        self.words.append(
            Word(
                cycle=cycle,
                core=c,
                color=color,
                port=port,
                out=out,
                value=value,
                control=flag == S.CONTROL_WORD,
                ident=ident,
            )
        )

    def _fresh(self) -> int:
        self._next_ident += 1
        return self._next_ident - 1

    def _beside(self, c: int, port: int) -> int:
        dx, dy = ((0, -1), (1, 0), (0, 1), (-1, 0), (0, 0))[port]
        x, y = c % self.image.cols + dx, c // self.image.cols + dy
        return (
            y * self.image.cols + x
            if port < 4 and 0 <= x < self.image.cols and 0 <= y < self.image.rows
            else -1
        )

    # -- writing

    def _place(self, c: int) -> tuple[int, int]:
        return c % self.image.cols, c // self.image.cols

    def timeline(self) -> str:
        """JSON of trace events: a process per core; tracks of its main thread, microthreads, words and links."""
        events: list[dict[str, Any]] = []
        for c in (int(c) for c in self.cores):
            events.append(
                {
                    "ph": "M",
                    "pid": c,
                    "name": "process_name",
                    "args": {"name": "core ({}, {})".format(*self._place(c))},
                }
            )
            names = {
                0: "main thread",
                WORDS_IN: "words that land in the router",
                WORDS_OUT: "words that leave the router",
            }
            names |= {k: f"microthread {k - 1}" for k in range(1, S.N_THREADS)}
            events += [
                {"ph": "M", "pid": c, "tid": t, "name": "thread_name", "args": {"name": name}}
                for t, name in names.items()
            ]
        for s in self.spans:
            args = {"place": s.where, "state": s.state}
            label = s.name if s.state in ("busy", "runs") else f"{s.name} ({s.state})"
            events.append(
                {
                    "ph": "X",
                    "pid": s.core,
                    "tid": s.thread,
                    "ts": s.first,
                    "dur": s.last - s.first + 1,
                    "name": label,
                    "args": args,
                }
            )
        for w in self.words:
            sides = "".join(PORTS[q] for q in range(5) if w["out"] >> q & 1)
            way = f"to {sides}" if w["out"] else f"from {PORTS[w['port']]}"
            tid = WORDS_OUT if w["out"] else WORDS_IN
            name = f"color {w['color']} {way}"
            args = {"value": f"{w['value']:#010x}", "control": str(w["control"]), "word": str(w["ident"])}
            events.append(
                {
                    "ph": "X",
                    "pid": w["core"],
                    "tid": tid,
                    "ts": w["cycle"],
                    "dur": 1,
                    "name": name,
                    "args": args,
                }
            )
        for cycle, c, q, on in self.pressure:
            events.append(
                {"ph": "C", "pid": c, "ts": cycle, "name": f"back-pressure {_SIDES[q]}", "args": {"held": on}}
            )
        about = {
            "cycles": f"{self.first}:{self.end}",
            "cut at cycle": str(self.cut_at) if self.cut_at >= 0 else "no",
        }
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}) + "\n"

    def log(self) -> str:
        """Lines of the form of ``sim.log``, in the order of cycles."""
        lines: list[tuple[int, int, str]] = []
        starts = {(s.core, s.first) for s in self.spans if s.thread == 0}
        for s in self.spans:
            x, y = self._place(s.core)
            if s.thread == 0:
                op = s.name.rpartition(": ")[2].replace(" ", "_").upper()
                lines.append(
                    (
                        s.first,
                        0,
                        f"P{x}.{y}: Id: 0, Instr: 1, Seq: 0, Pipe: 2, Msg: [EX OP] ^ 0x{_line(s.where):04x}: T0 {op}",
                    )
                )
                if (s.core, s.last + 1) not in starts:
                    lines.append(
                        (s.last + 1, 0, f"P{x}.{y}: Id: 0, Instr: 1, Seq: 0, Pipe: 2, Msg: [EX OP] IDLE")
                    )
        for w in self.words:
            x, y = self._place(w["core"])
            out = "".join(PORTS[q] if w["out"] >> q & 1 else " " for q in _LOG_ORDER)
            data = w["value"] & 0xFFFFFFFF
            landing = "-" if w["out"] else PORTS[w["port"]]
            taken = ", to_ce_from_router" if w["out"] >> 4 & 1 else ""
            lines.append(
                (
                    w["cycle"], 1,
                    f"P{x}.{y} (hwtile) wavelet C{w['color']} ctrl={int(w['control'])}, idx={data >> 16:04x}, data={data & 0xFFFF:04x} "
                    f"({data:08x}({data:08x})), half=0, ident={w['ident']:016x} landing={landing} departing=/{out}/{taken}",
                )
            )  # fmt: skip
        head = f"@{self.first} dimX={self.image.cols}, dimY={self.image.rows}\n"
        return head + "".join(f"@{cycle} {text}\n" for cycle, _, text in sorted(lines))


class TracedSession(Session):
    """A session that looks at some cores in each cycle of a span."""

    def __init__(self, image: Image, wafer: Wafer, tracer: Tracer, **how: Any) -> None:
        super().__init__(image, wafer, **{**how, "threads": 1})
        self.tracer = tracer

    def _run_watched(
        self, injections: Array, last: int, asked: int, still_cycles: int, look: Look | None
    ) -> int:
        tracer = self.tracer
        while self.cycle < tracer.end and tracer.cut_at < 0:
            now = self.cycle
            if now < tracer.first:
                why = super()._run_watched(injections, min(last, tracer.first), asked, still_cycles, look)
            else:
                tracer.begin(self.machine)
                why = self._run_alone(injections, min(last, now + 1), asked)
                if self.cycle > now:
                    tracer.look(self.machine, now)
            if why != L.AT_CYCLE or self.cycle >= last:
                return why
        return super()._run_watched(injections, last, asked, still_cycles, look)


def _operation(row: Array) -> str:
    op = int(row[S.T_OP]) - 1
    return VECTOR_OPS[op] if 0 <= op < len(VECTOR_OPS) else "vector operation"


def _line(where: str) -> int:
    """The line of ``file:line (function)``."""
    number = where.partition(" (")[0].rpartition(":")[2]
    return int(number) if number.isdigit() else 0
