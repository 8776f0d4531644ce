"""Cores by the text of the specification: one issue slot, a main thread, microthreads and tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.fabric.independent.prices import F32, compute, packed, rounded_half, unpacked
from wse_sim.fabric.format import program as P
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Each, Kind, Op, Program, TaskKind, Wire

BUSY, INPUT, OUTPUT, IDLE = "busy", "input", "output", "idle"
HIGH, MEDIUM, LOW = range(3)


@dataclasses.dataclass
class Word:
    """A wavelet: 32 bits of data, or commands of a control wavelet."""

    bits: int = 0
    mark: int = P.FLAG_DATA
    commands: tuple[int, ...] = ()
    task: int = P.NO_TASK
    is_seen: bool = True

    @property
    def is_control(self) -> bool:
        """True if the word has commands."""
        return self.mark == P.FLAG_CONTROL


@dataclasses.dataclass
class Vector:
    """A vector instruction in progress: the remaining elements, and the turns of the enclosing loops when it began."""

    row: list[int]
    n: int
    turns: tuple[int, int]
    word: Word | None
    cost_milli: int
    done: int = 0
    left_cycles: int = 0  # of the step at work
    spent_milli: int = 0
    is_last: bool = False
    met: set[int] = dataclasses.field(default_factory=set)  # destinations of an FMACV that have a product


class Core:
    """One core. `machine` has its queues by slot, `inputs[slot]`, and receives its words: `ring`."""

    def __init__(self, index: int, program: Program, config: FabricConfig, machine: Any) -> None:
        self.index, self.program, self.config, self.machine = index, program, config, machine
        self.code: list[list[int]] = machine.code
        kind = int(program.core_class[index])
        self.tasks = program.tasks[program.class_tasks[kind] : program.class_tasks[kind + 1]].tolist()
        self.active = [bool(task[P.T_ACTIVE]) for task in self.tasks]
        self.blocked = [bool(task[P.T_BLOCKED]) for task in self.tasks]
        self.later: list[Callable[[], None]] = []
        self.pc = int(program.class_entry[kind])
        self.turns: dict[int, int] = {}
        self.loops: list[int] = []
        self.busy_left = 0  # cycles of scalar code
        self.paid = False  # the start of the instruction at pc
        self.vector: Vector | None = None  # of the main thread
        self.threads: dict[int, Vector] = {}
        self.word: Word | None = None
        self.running = self.pc >= 0
        self.halted = -1
        self.last_issue = -1
        self.busy = self.stalled_in = self.stalled_out = self.sent = self.received = 0
        self.why = IDLE

    # ---- the main thread's code without time -----------------------------------------------

    def value(self, row: list[int]) -> int:
        """Return the length of an instruction, the turns of a loop or cycles."""
        return int(self.program.params[row[P.N_PARAM], self.index]) if row[P.N_PARAM] >= 0 else row[P.N]

    def advance(self, t: int) -> None:
        """Run what takes no time, up to what needs the issue slot or waits."""
        while self.running and self.halted < 0 and not self.busy_left and self.vector is None:
            row = self.code[self.pc]
            op = row[P.OP]
            if op == Op.HALT:
                if not self.threads:
                    self.halted = t
                return
            if op == Op.TASK_END:
                self.running = False
                return
            if op == Op.LOOP:
                if self.value(row):
                    self.loops.append(self.pc)
                    self.turns[self.pc] = 0
                    self.pc += 1
                else:
                    self.pc = row[P.TARGET] + 1
            elif op == Op.ENDLOOP:
                head = row[P.TARGET]
                self.turns[head] += 1
                if self.turns[head] < self.value(self.code[head]):
                    self.pc = head + 1
                else:
                    self.loops.pop()
                    self.pc += 1
            elif op == Op.BUSY:
                self.busy_left = self.value(row)
                self.pc += 1
            elif op in (Op.ACTIVATE, Op.BLOCK, Op.UNBLOCK):
                self.apply(op, row[P.TARGET])
                self.pc += 1
            elif op == Op.JOIN:
                if row[P.THREAD] in self.threads:
                    return
                self.pc += 1
            elif not self.launch(row):
                return

    def apply(self, op: int, task: int) -> None:
        """Activate, block or unblock a task."""
        if op == Op.ACTIVATE:
            self.active[task] = True
        else:
            self.blocked[task] = op == Op.BLOCK

    def launch(self, row: list[int]) -> bool:
        """Begin a vector instruction; False if a microthread is still running."""
        thread = row[P.THREAD]
        if thread and thread in self.threads:
            return False
        if not self.paid:
            self.paid = True
            self.busy_left = (self.config.start_code_cycles, self.config.start_loaded_cycles, 0)[row[P.START]]
            if self.busy_left:
                return True
        self.paid = False
        self.pc += 1
        inner = [*[self.turns[pc] for pc in reversed(self.loops)][:2], 0, 0]
        if row[P.OP] == Op.CONTROL:
            made = Vector(row, 1, (0, 0), None, 1000)
        else:
            cost = self.machine.cost_of(self.pc - 1)
            made = Vector(row, self.value(row), (inner[0], inner[1]), self.word, cost)
        if not made.n:
            self.finished(made)
        elif thread:
            self.threads[thread] = made
        else:
            self.vector = made
        return True

    def finished(self, vector: Vector) -> None:
        """Apply the effect of an ended microthread on a task one cycle later."""
        kind, task = vector.row[P.DONE_KIND], vector.row[P.DONE_TASK]
        if kind:
            self.later.append(lambda: self.apply(Op.ACTIVATE if kind == 1 else Op.UNBLOCK, task))

    # ---- tasks --------------------------------------------------------------------------------

    def runnable(self, task: int, t: int) -> bool:
        """Return whether a task may be picked, blocked or not."""
        kind, key = self.tasks[task][P.T_KIND], self.tasks[task][P.T_KEY]
        if kind == TaskKind.LOCAL:
            return self.active[task]
        if kind == TaskKind.DATA:
            word = self.machine.input_head(self.index, key, t)
            return word is not None and not word.is_control
        return self.control_slot(key, t) is not None

    def control_slot(self, key: int, t: int) -> int | None:
        """The first color whose head is a control wavelet for task `key`."""
        for slot in range(self.program.n_slots):
            word = self.machine.input_head(self.index, slot, t)
            if word is not None and word.is_control and word.task == key:
                return slot
        return None

    def pick(self, t: int) -> bool:
        """Start the first task that may run."""
        for number, task in enumerate(self.tasks):
            if self.blocked[number] or not self.runnable(number, t):
                continue
            self.word = None
            if task[P.T_KIND] == TaskKind.LOCAL:
                self.active[number] = False
            else:
                slot = (
                    task[P.T_KEY] if task[P.T_KIND] == TaskKind.DATA else self.control_slot(task[P.T_KEY], t)
                )
                self.word = self.machine.take(self.index, slot, t)
                self.received += 1
            self.running, self.pc = True, task[P.T_ENTRY]
            self.busy_left = self.config.task_pick_cycles
            return True
        return False

    @property
    def is_done(self) -> bool:
        """Return whether nothing is left to do, as far as this core can know."""
        return self.halted >= 0 or not (self.running or self.threads or any(self.active))

    # ---- one cycle ----------------------------------------------------------------------------

    def cycle(self, t: int) -> bool:
        """Return the issue slot of cycle t; whether it was used."""
        if self.halted >= 0:
            return False
        for change in self.later:
            change()
        self.later = []
        self.advance(t)
        if not self.running and self.halted < 0 and self.pick(t):
            self.advance(t)
        if self.halted >= 0:
            return False
        reasons = []
        order = sorted(self.threads, key=lambda k: (self.threads[k].row[P.PRIORITY], k))
        early = [k for k in order if self.threads[k].row[P.PRIORITY] != LOW]
        late = [k for k in order if self.threads[k].row[P.PRIORITY] == LOW]
        issued = False
        for number in [*early, 0, *late]:
            why = self.issue_main(t) if number == 0 else self.issue(self.threads[number], t)
            if why is None:
                issued = True
                break
            reasons.append(why)
        if issued:
            self.busy += 1
            self.last_issue, self.why = t, BUSY
            for number in [k for k, each in self.threads.items() if each.is_last and not each.left_cycles]:
                self.finished(self.threads.pop(number))
            if self.vector is not None and self.vector.is_last and not self.vector.left_cycles:
                self.finished(self.vector)
                self.vector = None
            return True
        self.why = next((why for why in reasons if why != IDLE), IDLE)
        return False

    def issue_main(self, t: int) -> str | None:
        """Return None if the main thread took the slot."""
        if self.busy_left:
            self.busy_left -= 1
            return None
        if self.vector is not None:
            return self.issue(self.vector, t)
        return IDLE

    def issue(self, vector: Vector, t: int) -> str | None:
        """Return a cycle of a vector instruction: None if it took the slot, else why not."""
        if vector.left_cycles:
            vector.left_cycles -= 1
            return None
        row = vector.row
        slots = [row[p + P.BUF] for p in (P.A, P.B) if row[p + P.KIND] == Kind.FABRIC]
        sends = row[P.D + P.KIND] == Kind.FABRIC
        per_word = 2 if row[P.WIRE] in (Wire.FP16X2, Wire.FP16X4) else 1
        left = vector.n - vector.done
        words = min(2 if row[P.WIRE] == Wire.FP16X4 else 1, -(-left // per_word))
        for slot in slots:
            heads = self.machine.input_heads(self.index, slot, t)
            if heads and heads[0].is_control:
                self.machine.take(self.index, slot, t)
                self.received += 1
                vector.is_last = bool(row[P.ON_CONTROL])
                return None
            if len(heads) < words:
                return INPUT
        if sends and not self.machine.ring_room(self.index, words):
            return OUTPUT
        if row[P.OP] == Op.CONTROL:
            self.send(row[P.D + P.BUF], control_word(row[P.IMM]), t)
            vector.is_last = True
            return None
        count = min(words * per_word, left) if slots or sends else left
        is_indexed = row[P.OP] == Op.FMACV and row[P.FN] & Each.INDEXED
        taken: dict[int, list[Any]] = {}
        for slot in slots:
            elements: list[Any] = []
            for _ in range(words):
                bits = self.machine.take(self.index, slot, t).bits
                elements += [bits] if is_indexed else unpacked(bits, row[P.WIRE])
                self.received += 1
            taken[slot] = elements
        results = self.elements(vector, count, taken)
        vector.is_last = vector.done == vector.n
        if sends:
            for first in range(0, count, per_word):
                last = first + per_word >= count and vector.is_last
                mark = (
                    (P.FLAG_DATA, P.FLAG_ADVANCE_LOCAL, P.FLAG_ADVANCE_PATH)[row[P.ADVANCE]]
                    if last
                    else P.FLAG_DATA
                )
                bits = packed(results[first : first + per_word], row[P.WIRE])
                self.send(row[P.D + P.BUF], Word(bits, mark), t)
        before, vector.spent_milli = (
            vector.spent_milli,
            vector.spent_milli + (1 if slots or sends else count) * vector.cost_milli,
        )
        vector.left_cycles = max(1, -(-vector.spent_milli // 1000) - -(-before // 1000)) - 1
        return None

    def send(self, slot: int, word: Word, t: int) -> None:
        """Put a word into the output ring."""
        self.machine.push(self.index, slot, word, t)
        self.sent += 1

    # ---- values ---------------------------------------------------------------------------------

    def address(self, row: list[int], place: int, vector: Vector, i: int) -> int:
        """Place of an element in the memory of all buffers."""
        inner, outer = vector.turns
        at = (
            row[place + P.OFFSET]
            + i * row[place + P.STRIDE]
            + inner * row[place + P.STEP]
            + outer * row[place + P.OUTER_STEP]
        )
        entry = self.program.buffer_table[row[place + P.BUF]]
        r, c = divmod(self.index, self.program.cols)
        cell = (r - int(entry[P.B_ROW])) * int(entry[P.B_COLS]) + c - int(entry[P.B_COL])
        assert 0 <= at < entry[P.B_LENGTH]
        return int(entry[P.B_BASE]) + cell * int(entry[P.B_LENGTH]) + at

    def elements(self, vector: Vector, count: int, taken: dict[int, list[Any]]) -> list[Any]:
        """Compute `count` elements; results that travel are returned."""
        row, out = vector.row, []
        memory = self.machine.memory
        is_half = row[P.D + P.KIND] == Kind.MEMORY and self.program.buffer_table[row[P.D + P.BUF], P.B_DTYPE]

        def read(place: int, i: int, k: int) -> Any:
            kind = row[place + P.KIND]
            if kind == Kind.MEMORY:
                return memory[self.address(row, place, vector, i)]
            if kind == Kind.FABRIC:
                return taken[row[place + P.BUF]][k]
            if kind == Kind.SCALAR:
                return np.uint32(row[P.IMM]).view(F32)
            if kind == Kind.WAVELET:
                assert vector.word is not None
                return unpacked(vector.word.bits, row[P.WIRE])[0]
            return F32(0)

        def write(at: int, value: Any) -> None:
            memory[at] = rounded_half(value) if is_half else value

        for k in range(count):
            i = vector.done + k
            if row[P.OP] == Op.FMACV:
                self.column(vector, i, read(P.A, i, k), write)
                continue
            d = read(P.D, i, k) if row[P.OP] == Op.MAC else F32(0)
            value = compute(row, d, read(P.A, i, k), read(P.B, i, k), read(P.S, i, k))
            if row[P.D + P.KIND] == Kind.MEMORY:
                write(self.address(row, P.D, vector, i), value)
            else:
                out.append(value)
        vector.done += count
        return out

    def column(self, vector: Vector, i: int, a: Any, write: Callable[[int, Any], None]) -> None:
        """Compute element i of an FMACV: its vector of products."""
        row, memory, j = vector.row, self.machine.memory, i
        if row[P.FN] & Each.INDEXED:
            j, a = a >> 16, unpacked(a, Wire.FP16)[0]
        for m in range(row[P.M]):
            to = self.address(row, P.D, vector, m) + i * row[P.D_OUTER]
            with np.errstate(all="ignore"):
                value = a * memory[self.address(row, P.B, vector, m) + j * row[P.B_OUTER]]
                if not row[P.FN] & Each.FRESH or to in vector.met:
                    value = memory[to] + value
            vector.met.add(to)
            write(to, value)


def control_word(payload: int) -> Word:
    """Return a control wavelet: eight commands of two bits, a task, a mask of commands that no core sees."""
    commands = tuple(payload >> 2 * i & 3 for i in range(8))
    return Word(0, P.FLAG_CONTROL, commands, payload >> 16 & 63, not payload >> 24)
