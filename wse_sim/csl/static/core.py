"""One core of a class from the start of a function to its end, with what is known of its values.

The course of a program is *static* if no unknown value decides a jump, an address, a length or which task runs.  The core is followed as the
machine runs it; what it does on the fabric comes out as a list of steps:

    Step    cycles of the main thread before it, then one operation on the fabric of n steps of `milli` / 1000 cycles

Between two operations the cycles are those of the machine: prices of opcodes, starts and cycles of operations on memory, picks of tasks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from wse_sim.csl.static import values as V
from wse_sim.csl.static.values import Unknown, Value
from wse_sim.errors import WseError
from wse_sim.fabric.vm import arithmetic as A
from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm.image import DATA, LOCAL, Image
from wse_sim.fabric.vm.opcodes import DsdKind, Form, Op, Sys

Array = npt.NDArray[Any]
MOST_OPCODES = 2_000_000
MAIN = 0
_COPIES = ("mov16", "mov32", "fmovs", "fmovh")
_MEMORY = (DsdKind.MEM1D, DsdKind.MEM4D, DsdKind.CIRCBUF)
_FABRIC = (DsdKind.FABIN, DsdKind.FABOUT)
_DSD_BASE_MASK = ~(0xFFFF << 4)
_FREE_SYSTEM = {
    Sys.PRINT,
    Sys.TRACE,
    Sys.TSC_ENABLE,
    Sys.TSC_DISABLE,
    Sys.TSC_RESET,
    Sys.SET_PRNG,
    Sys.SEED_PRNG,
}
_UNKNOWN_SYSTEM = {
    Sys.TSC_VALUE: V.CLOCK, Sys.RANDOM16: V.RANDOM, Sys.PERF_COUNTER: V.CLOCK, Sys.IQ_EMPTY: V.MACHINE, Sys.OQ_EMPTY: V.MACHINE,
    Sys.IS_ACTIVE: V.MACHINE, Sys.DRAINED: V.MACHINE,
}  # fmt: skip
_UNARY_FLOATS = (Op.MATH, Op.FNEG, Op.FABS, Op.HNEG, Op.HABS, Op.H2F, Op.F2H, Op.I2F, Op.F2I)
_POSITIONS = {Sys.X_COORD, Sys.Y_COORD, Sys.FABRIC_X, Sys.FABRIC_Y}


class NotStaticError(WseError):
    """Why the course of a core is not proved static; a sentence with the place in the source."""


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation on the fabric: `n` elements in steps of `per_step` that take `milli` / 1000 issue cycles each.

    ``inputs`` and ``output``: (color, queue).  ``where``: place in the source.
    """

    n: int
    per_step: int
    milli: int
    inputs: tuple[tuple[int, int], ...]
    output: tuple[int, int] | None
    where: str

    @property
    def issue_cycles(self) -> int:
        """Cycles without a stall."""
        steps = -(-self.n // self.per_step)
        cost, rest = 0, 999
        for _ in range(steps if self.milli % 1000 else 0):
            total = rest + self.milli
            cycles = max(1, total // 1000)
            rest = max(0, total - 1000 * cycles)
            cost += cycles
        return cost if self.milli % 1000 else steps * max(1, self.milli // 1000)


@dataclasses.dataclass(frozen=True)
class Step:
    """Main-thread cycles, then an operation; ``beside``: cycles of the main thread that pass beside it; None: the end."""

    cycles: int
    operation: Operation | None
    beside: int = 0


@dataclasses.dataclass
class Course:
    """What a class does after a launch; ``released``: cycles from the last operation to the release of the command stream, -1: none."""

    steps: list[Step]
    released: int = -1
    opcodes: int = 0

    @property
    def tail_cycles(self) -> int:
        """Cycles from the release of the command stream until the core is at rest."""
        return self.steps[-1].cycles - max(0, self.released)


@dataclasses.dataclass
class CoreState:
    """What lasts between launches of one class: memory words, DSRs, task bits."""

    memory: list[Value]
    dsr: dict[int, Value] = dataclasses.field(default_factory=dict)
    load_of: dict[int, int] = dataclasses.field(default_factory=dict)  # DSR number -> row of dsr_loads
    active: int = 0
    blocked: int = 0
    threads_blocked: int = 0
    map_rest: int = 0
    output_color: dict[int, int] = dataclasses.field(default_factory=dict)
    input_color: dict[int, int] = dataclasses.field(default_factory=dict)
    queue_of: dict[int, int] = dataclasses.field(default_factory=dict)  # color -> input queue
    exported: list[tuple[int, int]] = dataclasses.field(
        default_factory=list
    )  # words (first, end) that the host may write

    def forget(self) -> None:
        """The host may have written: what it can reach is unknown."""
        for first, end in self.exported:
            self.memory[first:end] = [V.DATA] * (end - first)

    def copy(self) -> CoreState:
        """A copy that can change."""
        return dataclasses.replace(
            self,
            memory=list(self.memory),
            dsr=dict(self.dsr),
            load_of=dict(self.load_of),
            output_color=dict(self.output_color),
            input_color=dict(self.input_color),
            queue_of=dict(self.queue_of),
        )


@dataclasses.dataclass(frozen=True)
class Tables:
    """What all classes share: code with prices, settings of the machine, costs of vector operations."""

    image: Image
    code: list[list[int]]
    price: list[int]
    late: list[int]
    issues: list[list[int]]
    loads: list[list[int]]
    vop: Array
    sets: Array

    @classmethod
    def of(cls, machine: S.Machine, image: Image) -> Tables:
        """Tables of a machine made from `image`."""
        code = machine.code.reshape(-1, 4)
        rows = [[int(op & 255), int(a), int(b), int(c)] for op, a, b, c in code]
        return cls(
            image, rows, [int(p) for p in code[:, 0] >> 8], machine.late_price.tolist(), machine.issues.tolist(), machine.loads.tolist(),
            machine.vop, machine.sets,
        )  # fmt: skip


@dataclasses.dataclass
class Operand:
    """A resolved operand: where its elements lie, or a color, or a value."""

    form: int  # a form of state.py
    base: int = 0
    step: int = 0  # words
    width: int = 1
    dsd: int = 0
    dsr: int = -1
    color: int = -1
    queue: int = -1
    n: int | None = None  # length that it gives; None: none
    endless: bool = False
    value: Value = 0


@dataclasses.dataclass
class _Open:
    """An operation in flight beside the main thread."""

    thread: int
    operation: Operation
    activate: int
    unblock: int
    before: int
    beside: int = 0


class Core:
    """Follows one core; :meth:`launch` gives its course and leaves the state behind it."""

    def __init__(self, tables: Tables, number: int, state: CoreState, place: tuple[int, int] | None = None):
        self.t, self.cls, self.state, self.place = tables, tables.image.classes[number], state, place
        self.tasks = {task.id: task for task in self.cls.tasks}
        self.order = sorted(
            self.cls.tasks, key=lambda task: (not task.high_priority, task.kind != LOCAL, task.id)
        )
        self.regs: dict[int, Value] = {}
        self.pc = self.window = 0
        self.calls: list[tuple[int, int]] = []
        self.spent = 0
        self.open: _Open | None = None
        self.course = Course([])
        self.ended = False
        self.takes_words = True

    # -- the run

    def launch(self, entry: int, arguments: tuple[int, ...] = ()) -> Course:
        """The course of a call of the function at `entry`, until nothing runs any more.

        Raises
        ------
        NotStaticError
            With the reason in one sentence.
        """
        self.spent = int(self.t.sets[S.PICK])
        self.regs = dict(enumerate(arguments))
        self.state.forget()
        self._run(entry)
        return self.wait()

    def begin_alone(self, entry: int) -> Course:
        """The course before the first command: code at `entry` (-1: none), then what is active; no word arrives."""
        self.takes_words = False
        return self.launch(entry) if entry >= 0 else self.wait()

    def wait(self) -> Course:
        """The course of a core that gets no command: what is active runs, then it is at rest."""
        while self._next_task():
            pass
        self._add(Step(self.spent, None))
        return self.course

    def _add(self, step: Step) -> None:
        self.course.steps.append(step)
        self.spent = 0

    def _next_task(self) -> bool:
        task = next((t for t in self.order if self._is_runnable(t.id)), None)
        if task is None:
            if self.open is None:
                return self._take_word()
            self._close()
            return True
        if self.open is not None and self.open.activate >= 0:
            raise NotStaticError(
                f"task '{task.name}' runs beside the operation at {self.open.operation.where}, whose end activates a task: their order depends on times"
            )
        self.state.active &= ~(1 << task.id)
        self.spent += int(self.t.sets[S.PICK])
        self.regs = {0: 0}
        self._run(task.entry)
        return True

    def _is_runnable(self, task: int) -> bool:
        return bool(self.state.active >> task & 1) and not self.state.blocked >> task & 1

    def _take_word(self) -> bool:
        """A data task runs on a word that arrives, if one color alone can bring it."""
        ready = [t for t in self.order if t.kind == DATA and not self.state.blocked >> t.id & 1]
        if not ready or not self.takes_words or self.course.released >= 0:
            return False
        if len(ready) > 1:
            raise NotStaticError(
                f"words start task '{ready[0].name}' or '{ready[1].name}': their order depends on times"
            )
        task, (color, queue) = ready[0], self._channel(ready[0].id)
        self._add(Step(self.spent, Operation(1, 1, 1000, ((color, queue),), None, f"task '{task.name}'")))
        self.spent = int(self.t.sets[S.PICK]) - 1
        self.regs = {0: V.WORD}
        self._run(task.entry)
        return True

    def _channel(self, task: int) -> tuple[int, int]:
        if self.t.sets[S.IS_WSE3]:
            return self.state.input_color.get(task, -1), task
        return task, self.state.queue_of.get(task, -1)

    def _close(self) -> None:
        """The operation in flight is through: its task runs next."""
        done = self.open
        assert done is not None
        self.open = None
        self.course.steps.append(Step(done.before, done.operation, done.beside + self.spent))
        self.spent = 0
        if done.activate >= 0:
            self.state.active |= 1 << done.activate
        if done.unblock >= 0:
            self.state.blocked &= ~(1 << done.unblock)

    # -- scalar code

    def where(self) -> str:
        """The place of the present row of code."""
        return self.t.image.where(self.pc)

    def known(self, value: Value, what: str) -> int:
        """A value that decides something."""
        if isinstance(value, Unknown):
            raise NotStaticError(f"{what} at {self.where()} depends on {value.cause}")
        return value

    def get(self, register: int) -> Value:
        """A register of the present window."""
        return self.regs.get(self.window + register, 0)

    def put(self, register: int, value: Value) -> None:
        self.regs[self.window + register] = value

    def load(self, address: int, words: int) -> Value:
        """Raw bits at a word address."""
        memory = self.state.memory
        if address < 0 or address + words > len(memory):
            raise NotStaticError(
                f"address {address} at {self.where()} lies outside the memory of the program"
            )
        total = 0
        for i in range(words):
            word = memory[address + i]
            if isinstance(word, Unknown):
                return V.first_unknown(*memory[address : address + words]) or word
            total |= word << (16 * i)
        return total

    def store(self, address: int, words: int, value: Value) -> None:
        memory = self.state.memory
        if address < 0 or address + words > len(memory):
            raise NotStaticError(
                f"address {address} at {self.where()} lies outside the memory of the program"
            )
        for i in range(words):
            memory[address + i] = value if isinstance(value, Unknown) else (value >> (16 * i)) & 0xFFFF

    def _run(self, entry: int) -> None:
        """A task from its entry to its end."""
        self.pc, self.window, self.calls = entry, 0, []
        self.ended = False
        code, price = self.t.code, self.t.price
        taken = int(self.t.sets[S.TAKEN])
        while not self.ended:
            op, a, b, c = code[self.pc]
            self.course.opcodes += 1
            if self.course.opcodes > MOST_OPCODES:
                raise NotStaticError(f"more than {MOST_OPCODES:,} opcodes run, the last at {self.where()}")
            self.spent += price[self.pc]
            if op in V.BINARY or op in V.DIVISIONS:
                self.put(a, self._binary(op, self.get(b), self.get(c)))
            elif op in V.IMMEDIATE:
                x = self.get(b)
                self.put(a, x if isinstance(x, Unknown) else V.IMMEDIATE[op](x, c))
            elif op in V.JUMPS or op in V.JUMPS_IMMEDIATE:
                x, y = self.known(self.get(a), "a branch"), b
                if op in V.JUMPS:
                    y = self.known(self.get(b), "a branch")
                if (V.JUMPS if op in V.JUMPS else V.JUMPS_IMMEDIATE)[op](x, y):
                    self.pc = c - 1
                    self.spent += taken
            elif op in V.LOADS:
                self._load(op, a, b, c)
            elif op in V.STORES:
                self._store(op, a, b, c)
            elif op in V.FLOATS:
                self.put(a, self._float(op, a, b, c))
            else:
                self._other(op, a, b, c)
            self.pc += 1

    def _binary(self, op: int, x: Value, y: Value) -> Value:
        if isinstance(x, Unknown) or isinstance(y, Unknown):
            return V.first_unknown(x, y) or V.MACHINE
        if op in V.BINARY:
            return V.BINARY[op](x, y)
        if y == 0:
            raise NotStaticError(f"a division by zero at {self.where()}")
        return V.DIVISIONS[op](x, y)

    def _float(self, op: int, a: int, b: int, c: int) -> Value:
        """A result of floating point: known for the plainest operations on f32."""
        x, y = self.get(b), 0 if op in _UNARY_FLOATS else self.get(c)
        unknown = V.first_unknown(x, y, self.get(a) if op == Op.FMA else 0)
        if unknown is not None:
            return unknown
        if op not in V.FLOAT_BINARY:
            return V.FLOAT
        assert isinstance(x, int)
        assert isinstance(y, int)
        with np.errstate(all="ignore"):
            return V.FLOAT_BINARY[op](x, y)

    def _address(self, b: int, c: int, scale: int) -> int:
        base = self.known(self.get(b), "an address")
        return base + (scale * self.known(self.get(c), "an address") if scale else c)

    def _load(self, op: int, a: int, b: int, c: int) -> None:
        words, is_signed, scale = V.LOADS[Op(op)]
        base, index = self.get(b), self.get(c) if scale else 0
        for part in (base, index):
            if isinstance(
                part, Unknown
            ):  # which value is loaded depends on data; so does the value, and nothing else
                self.put(a, part)
                return
        value = self.load(self._address(b, c, scale), words)
        self.put(a, V.signed(value, 16 * words) if is_signed and not isinstance(value, Unknown) else value)

    def _store(self, op: int, a: int, b: int, c: int) -> None:
        words, scale = V.STORES[Op(op)]
        self.store(self._address(b, c, scale), words, self.get(a))

    def _other(self, op: int, a: int, b: int, c: int) -> None:
        state = self.state
        if op == Op.LDI:
            self.put(a, c)
        elif op == Op.LDK:
            self.put(a, V.signed(int(self.cls.constants[c]), 64))
        elif op == Op.MOV:
            self.put(a, self.get(b))
        elif op == Op.JMP:
            self.pc = c - 1
        elif op in (Op.CALL, Op.CALLR):
            to = c if op == Op.CALL else self.known(self.get(b), "a call")
            self.calls.append((self.pc, self.window))
            self.window += a
            self.pc = to - 1
        elif op == Op.RET and self.calls:
            self.pc, self.window = self.calls.pop()
        elif op in (Op.RET, Op.END):
            self.ended = True
        elif op in (Op.DSD_BASE, Op.DSD_ADD, Op.DSD_LEN, Op.DSD_STRIDE):
            self.put(a, self._changed_dsd(op, self.get(b), self.get(c)))
        elif op == Op.DSD_GET:
            dsd = self.get(b)
            self.put(a, dsd if isinstance(dsd, Unknown) else self._field(dsd, c))
        elif op in (Op.DSD_ADDR16, Op.DSD_ADDR32):
            self.put(a, self._element_address(self.get(b), self.get(c), 1 if op == Op.DSD_ADDR16 else 2))
        elif op == Op.DSR_LOAD:
            load = self.t.loads[c]
            number = load[O.L_FILE] * 64 + load[O.L_ID]
            state.dsr[number], state.load_of[number] = self.get(b), c
        elif op == Op.DSR_BASE:
            state.dsr[c] = self._changed_dsd(Op.DSD_BASE, state.dsr.get(c, 0), self.get(b))
        elif op == Op.DSR_GET:
            self.put(a, state.dsr.get(c, 0))
        elif op == Op.VEC:
            self._vector(a, b, c)
        elif op == Op.ACT:
            state.active |= 1 << (self.known(self.get(b), "the task that is activated") & 63)
        elif op in (Op.BLOCK, Op.UNBLOCK):
            self._block(op, b, c)
        elif op == Op.SYS:
            self._system(a, b, c)
        elif op != Op.NOP:
            raise NotStaticError(f"an opcode {op} at {self.where()} that the proof does not know")

    def _block(self, op: int, b: int, space: int) -> None:
        bit = 1 << (self.known(self.get(b), "the task that is blocked") & 63)
        state = self.state
        if space == O.Space.MICROTHREAD:
            raise NotStaticError(
                f"a microthread is blocked at {self.where()}, which the proof does not follow"
            )
        if op == Op.BLOCK:
            self.spent += self.t.late[self.pc]
            state.blocked |= bit
        else:
            state.blocked &= ~bit

    def _changed_dsd(self, op: int, dsd: Value, value: Value) -> Value:
        if isinstance(dsd, Unknown):
            return dsd
        if isinstance(value, Unknown):
            return value
        low = {Op.DSD_BASE: 4, Op.DSD_ADD: 4, Op.DSD_LEN: 20, Op.DSD_STRIDE: 36}[Op(op)]
        if op == Op.DSD_ADD:
            value += dsd >> 4
        return V.signed((dsd & ~(0xFFFF << low)) | ((value & 0xFFFF) << low), 64)

    def _shape(self, row: int) -> list[int]:
        return [int(v) for v in self.t.image.shapes[row]]

    def _field(self, dsd: int, field: int) -> int:
        kind = dsd & 15
        if field == O.DsdField.KIND:
            return kind
        if field == O.DsdField.BASE:
            return (dsd >> 4) & 0xFFFF
        if field in (O.DsdField.LENGTH, O.DsdField.TOTAL):
            n = (dsd >> 20) & 0xFFFF
            if kind != DsdKind.MEM4D:
                return n
            shape = self._shape(n)
            return int(np.prod(shape[1 : 1 + shape[0]]))
        if field == O.DsdField.STRIDE:
            return V.signed(dsd >> 36, 16)
        return (dsd >> 4) & 31 if field == O.DsdField.COLOR else (dsd >> 9) & 15

    def _element_address(self, dsd: Value, n: Value, width: int) -> Value:
        if isinstance(dsd, Unknown):
            return dsd
        if isinstance(n, Unknown):
            return n
        kind, base = dsd & 15, (dsd >> 4) & 0xFFFF
        if kind == DsdKind.MEM4D:
            shape = self._shape((dsd >> 20) & 0xFFFF)
            inner, jumps = 1, 0
            for k in range(shape[0]):
                extent = max(1, shape[1 + k])
                jumps += shape[5 + k] * (n // inner - n // (inner * extent))
                inner *= extent
            return base + width * jumps
        if kind == DsdKind.CIRCBUF:
            first, size, stride = (int(v) for v in self.t.image.rings[(dsd >> 36) & 0xFFFF])
            return first + (base - first + width * n * stride) % max(size, 1)
        return base + width * n * V.signed(dsd >> 36, 16)

    # -- functions of the machine

    def _system(self, a: int, b: int, function: int) -> None:
        fn = Sys(function)
        result: Value | None = None
        self.spent += self.t.late[self.pc]
        if fn == Sys.TSC_READ:
            self.store(self.known(self.get(b), "an address"), 3, V.CLOCK)
        elif fn in _UNKNOWN_SYSTEM:
            result = _UNKNOWN_SYSTEM[fn]
        elif fn in _POSITIONS:
            result = self._position(fn)
        elif fn == Sys.UNBLOCK_CMD_STREAM:
            if self.open is not None:
                raise NotStaticError(
                    f"the command stream is released at {self.where()} while an operation is in flight"
                )
            if self.course.released < 0:
                self.course.released = self.spent - self.t.late[self.pc]
        elif fn == Sys.DSR_SAVE:
            number = self.known(self.get(b), "a register")
            self.state.dsr[number] = self.get(b + 1)
        elif fn not in _FREE_SYSTEM:
            result = self._changed(fn, b)
        if a >= 0:
            self.put(a, 0 if result is None else result)

    def _changed(self, fn: Sys, first: int) -> Value | None:
        """A function that changes routers or queues, or looks at them."""
        raise NotStaticError(
            f"{fn.name.lower()} at {self.where()} changes the machine while the program runs"
        )

    def _position(self, fn: Sys) -> Value:
        if self.place is None:
            return V.POSITION
        x, y = self.place
        dx, dy = self.t.image.offset
        return {Sys.X_COORD: x, Sys.Y_COORD: y, Sys.FABRIC_X: x + dx, Sys.FABRIC_Y: y + dy}[fn]

    # -- vector operations

    def _vector(self, target: int, first: int, row: int) -> None:
        issue, op = self.t.issues[row], self.t.issues[row][O.V_OP]
        operands = [self._operand(issue, place, first, op) for place in range(4)]
        loads = sum(issue[O.V_DEST + k] == Form.DSD for k in range(4))
        if issue[O.V_DEST] == issue[O.V_SRC0] == Form.DSD and operands[0].dsd == operands[1].dsd:
            loads -= 1
        t, sets = self.t, self.t.sets
        start = t.late[self.pc] + int(sets[S.START_LOADED]) + int(sets[S.DSR_COST]) * loads
        self.spent = max(self.spent + start, 0)
        n, cost, collides = self._extent(operands, op)
        on_fabric = any(x.form in (S.INPUT, S.OUTPUT, S.FIFO) for x in operands)
        options = self._options(issue, operands, first)
        if on_fabric:
            self._fabric(operands, n, cost, options)
        else:
            self._on_memory(op, n, cost, collides, options)
        self._apply(op, operands, 0 if n is None else n, options["is_async"])
        if target >= 0:
            self.put(target, self._success(operands))

    def _success(self, operands: list[Operand]) -> Value:
        """What a vector operation answers."""
        return 1

    def _on_memory(self, op: int, n: int | None, cost: int, collides: bool, options: dict[str, Any]) -> None:
        """An operation on memory alone: the main thread waits for it."""
        if options["is_async"]:
            raise NotStaticError(f"an operation on memory runs beside the main thread at {self.where()}")
        if self.open is not None:
            raise NotStaticError(
                f"the operation at {self.where()} runs beside that at {self.open.operation.where}: two operations share the core"
            )
        if n is None:
            raise NotStaticError(f"an operation without end at {self.where()}")
        sets, cycles = self.t.sets, self._memory_cycles(n, cost, collides, op)
        if self.t.late[self.pc] < 0:
            milli = (
                self.state.map_rest + int(sets[S.MAP_MILLI]) + (int(sets[S.MAP_VECTOR_MILLI]) if n > 1 else 0)
            )
            self.state.map_rest = milli % 1000
            cycles += milli // 1000
        self.spent += cycles
        self._finish(options)

    def _finish(self, options: dict[str, Any]) -> None:
        if options["activate"] >= 0:
            self.state.active |= 1 << options["activate"]
        if options["unblock"] >= 0:
            self.state.blocked &= ~(1 << options["unblock"])

    def _memory_cycles(self, n: int, cost: int, collides: bool, op: int) -> int:
        wide = int(self.t.vop[op, A.ISSUE])
        if wide == 1:
            return (n * cost + 999) // 1000
        return min(n, 2 if collides else 1) + (max(n - wide, 0) * cost + 999) // 1000

    def _id(self, value: int, first: int) -> int:
        """An id of an issue row: constant, register or constant of the class."""
        if value >= O.USE_CONSTANT:
            return int(self.cls.constants[value - O.USE_CONSTANT])
        if value >= O.USE_REGISTER:
            return self.known(self.get(first + value - O.USE_REGISTER), "a task that is activated")
        return value

    def _options(self, issue: list[int], operands: list[Operand], first: int) -> dict[str, Any]:
        found: dict[str, Any] = {
            "is_async": issue[O.V_ASYNC] != 0,
            "activate": self._id(issue[O.V_ACTIVATE], first),
            "unblock": self._id(issue[O.V_UNBLOCK], first),
            "on_control": issue[O.V_ON_CONTROL],
        }
        for operand in operands[:3]:
            row = self.state.load_of.get(operand.dsr, -1)
            if row < 0:
                continue
            load = self.t.loads[row]
            if load[O.L_ASYNC] or operand.form in (S.INPUT, S.OUTPUT):
                found["is_async"] |= bool(load[O.L_ASYNC])
                for key, column in (("activate", O.L_ACTIVATE), ("unblock", O.L_UNBLOCK)):
                    if load[column] >= 0 and found[key] < 0:
                        found[key] = self._id(load[column], first)
                found["on_control"] = load[O.L_ON_CONTROL] or found["on_control"]
        return found

    def _operand(self, issue: list[int], place: int, first: int, op: int) -> Operand:
        form = issue[O.V_DEST + place]
        width = int(self.t.vop[op, place])
        if form == Form.NONE:
            return Operand(S.NOTHING)
        value = self.get(first + place)
        if form == Form.SCALAR:
            return Operand(S.VALUE, width=width, value=value)
        if form == Form.POINTER:
            return Operand(S.MEMORY, self.known(value, "an address") & 0xFFFF, 0, width)
        number = issue[O.V_DSR0 + place] if form == Form.DSR else -1
        if number >= 0:
            value = self.state.dsr.get(number, 0)
        dsd = self.known(value, "an address or length")
        kind = dsd & 15
        if kind in _FABRIC:
            return self._fabric_operand(dsd, number)
        if kind == DsdKind.FIFO:
            return self._fifo()
        if kind not in _MEMORY:
            raise NotStaticError(f"an operand without a descriptor at {self.where()}")
        n, base = (dsd >> 20) & 0xFFFF, (dsd >> 4) & 0xFFFF
        if dsd >> 53 & 1 and issue[O.V_INDEX] >= 0:
            base = (
                base + V.signed(self.known(self.get(first + issue[O.V_INDEX]), "an address"), 16)
            ) & 0xFFFF
        if kind == DsdKind.MEM1D:
            step = V.signed(dsd >> 36, 16) * width
        elif kind == DsdKind.MEM4D:
            step, n = width, self._field(dsd, O.DsdField.LENGTH)
        else:
            step = width * int(self.t.image.rings[(dsd >> 36) & 0xFFFF, 2])
        return Operand(S.MEMORY, base, step, width, dsd, number, n=n)

    def _fifo(self) -> Operand:
        raise NotStaticError(f"a FIFO at {self.where()}: when it is empty or full depends on times")

    def _sends_control(self) -> None:
        raise NotStaticError(
            f"control wavelets leave at {self.where()}: switches move while the program runs"
        )

    def _fabric_operand(self, dsd: int, number: int) -> Operand:
        color, queue, n, state = (dsd >> 4) & 31, (dsd >> 9) & 15, (dsd >> 20) & 0xFFFF, self.state
        if dsd & 15 == DsdKind.FABIN:
            if queue == O.NO_QUEUE:
                queue = state.queue_of.get(color, -1)
            elif color != O.NO_COLOR and not self.t.sets[S.IS_WSE3]:
                state.queue_of.setdefault(color, queue)
            if color == O.NO_COLOR or self.t.sets[S.IS_WSE3]:
                color = state.input_color.get(queue, color)
            form = S.INPUT
        else:
            form, queue = S.OUTPUT, 0 if queue == O.NO_QUEUE else queue
            if color == O.NO_COLOR:
                color = state.output_color.get(queue, -1)
            if dsd >> 52 & 1 or dsd >> 56 & 1:
                self._sends_control()
        if queue < 0 or not 0 <= color < 24:
            raise NotStaticError(f"an operation at {self.where()} names a queue without a color")
        return Operand(form, dsd=dsd, dsr=number, color=color, queue=queue, n=n, endless=n == O.ENDLESS)

    def _extent(self, operands: list[Operand], op: int) -> tuple[int | None, int, bool]:
        """Length (None: without end), cost of an element in 1/1000 cycle, whether two reads collide."""
        sets, vop = self.t.sets, self.t.vop
        length, endless, has_length = 0, False, False
        reads, bank, collides = 0, 0, False
        for place in (1, 2, 0, 3):
            x = operands[place]
            if place < 3 and x.n is not None:
                has_length = True
                if x.endless:
                    endless = True
                elif length == 0:
                    length = x.n
            if place > 0 and x.form == S.MEMORY and x.step and x.n is not None:
                reads += 1
                in_one_bank = x.dsd & 15 == DsdKind.MEM1D and x.width == 2 and x.step & 7 == 0
                mine = x.base % int(sets[S.BANK_PERIOD_32] if x.width == 2 else sets[S.BANK_PERIOD_16])
                collides |= (reads == 2 and mine == bank) or in_one_bank
                bank = mine
        if length == 0 and not has_length:
            length = 1
        column = A.COST_COLLIDING if collides else (A.COST_MEMORY if reads >= 2 else A.COST)
        return (None if endless and length == 0 else length), int(vop[op, column]), collides

    def _fabric(self, operands: list[Operand], n: int | None, cost: int, options: dict[str, Any]) -> None:
        where = self.where()
        if self.open is not None:
            raise NotStaticError(
                f"the operation at {where} runs beside that at {self.open.operation.where}: two operations share the core"
            )
        if n is None:
            raise NotStaticError(f"the operation at {where} has no end")
        if options["on_control"]:
            raise NotStaticError(f"a control wavelet ends the operation at {where}")
        simd = max((x.dsd >> 54) & 3 for x in operands if x.form in (S.INPUT, S.OUTPUT))
        if simd >= O.Simd.SIMD_64:
            raise NotStaticError(f"the operation at {where} moves two wavelets a step, which is stepped")
        if self.course.released >= 0:
            raise NotStaticError(f"the operation at {where} follows the release of the command stream")
        inputs = tuple((x.color, x.queue) for x in operands[1:3] if x.form == S.INPUT)
        output = (operands[0].color, operands[0].queue) if operands[0].form == S.OUTPUT else None
        per_step = 2 if simd else 1
        operation = Operation(n, per_step, max(1000, cost * per_step), inputs, output, where)
        if options["is_async"]:
            self.open = _Open(1, operation, options["activate"], options["unblock"], self.spent)
            self.spent = 0
            return
        self._add(Step(self.spent, operation))
        self._finish(options)

    def _addresses(self, x: Operand, n: int) -> Iterator[int]:
        kind = x.dsd & 15
        if kind in (DsdKind.MEM4D, DsdKind.CIRCBUF):
            for i in range(n):
                address = self._element_address((x.dsd & _DSD_BASE_MASK) | x.base << 4, i, x.width)
                assert isinstance(address, int)
                yield address
        else:
            yield from (x.base + i * x.step for i in range(n))

    def _cause(self, operands: list[Operand], n: int) -> Unknown:
        """What the result of arithmetic is unknown for: data if any element of a source is."""
        found: Unknown | None = None
        for x in operands[1:]:
            if x.form in (S.INPUT, S.FIFO):
                return V.WORD
            values = (
                (self.load(at, x.width) for at in self._addresses(x, n if x.step else 1))
                if x.form == S.MEMORY
                else iter([x.value])
            )
            for value in values:
                if isinstance(value, Unknown):
                    found = V.first_unknown(value, found or 0)
        return found or V.FLOAT

    def _apply(self, op: int, operands: list[Operand], n: int, is_async: bool) -> None:
        """What the operation leaves in memory and registers; one beside the main thread may do so at any time."""
        destination, source = operands[0], operands[1]
        if destination.form == S.MEMORY:
            is_copy = O.VECTOR_OPS[op] in _COPIES and source.form in (S.MEMORY, S.VALUE) and not is_async
            result: Value = source.value if is_copy and source.form == S.VALUE else V.FLOAT
            if not is_copy:
                result = self._cause(operands, n)
            elements = self._addresses(source, n) if is_copy and source.form == S.MEMORY else None
            for address in self._addresses(destination, n):
                value = result if elements is None else self.load(next(elements), source.width)
                self.store(address, destination.width, value)
        for x in operands[:3]:
            row = self.state.load_of.get(x.dsr, -1)
            if x.form == S.MEMORY and row >= 0 and self.t.loads[row][O.L_SAVE_ADDRESS]:
                last = list(self._addresses(x, n + 1))[-1] if x.dsd & 15 != DsdKind.MEM4D else x.base
                held = self.state.dsr[x.dsr]
                if isinstance(held, int):
                    self.state.dsr[x.dsr] = V.signed((held & _DSD_BASE_MASK) | (last & 0xFFFF) << 4, 64)
