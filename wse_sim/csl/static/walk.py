"""Analysis of one core's scalar code with abstract values: registers, memory, jumps, and functions of the
machine.

The semantics of opcodes are those of :mod:`wse_sim.fabric.vm.semantics`; costs are those of the machine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from wse_sim.csl.static import values as V
from wse_sim.csl.static.course import CoreState, NotStaticError, Tables
from wse_sim.csl.static.values import Unknown, Value
from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm import semantics as M
from wse_sim.fabric.vm.opcodes import DsdKind, Op, Sys

MOST_OPCODES = 2_000_000
_UNKNOWN = {"clock": V.CLOCK, "random": V.RANDOM, "machine": V.MACHINE}


class Walker(ABC):
    """Base class that follows scalar code; subclasses handle vectors, the command stream and routers."""

    def __init__(self, tables: Tables, number: int, state: CoreState, place: tuple[int, int] | None = None):
        self.t, self.cls, self.state, self.place = tables, tables.image.classes[number], state, place
        self.tasks = {task.id: task for task in self.cls.tasks}
        self.operations = M.scalar_operations(tables.image.half)
        self.regs: dict[int, Value] = {}
        self.pc = self.window = self.spent = self.opcodes = 0
        self.calls: list[tuple[int, int]] = []
        self.ended = False

    # -- for subclasses

    @abstractmethod
    def _vector(self, target: int, first: int, row: int) -> None:
        """Handle a vector operation."""

    @abstractmethod
    def _release(self) -> None:
        """Handle the release of the command stream."""

    @abstractmethod
    def _changed(self, fn: Sys, first: int) -> Value | None:
        """Handle a function that changes or reads routers or queues; return its result."""

    # -- registers and memory

    def where(self) -> str:
        """Return the source place of the present row of code."""
        return self.t.image.where(self.pc)

    def known(self, value: Value, what: str) -> int:
        """Return a value that decides the course.

        Raises
        ------
        NotStaticError
            If it is unknown.
        """
        if isinstance(value, Unknown):
            raise NotStaticError(f"{what} at {self.where()} depends on {value.cause}")
        return value

    def get(self, register: int) -> Value:
        """Return a register of the present window; 0 if it was never written."""
        return self.regs.get(self.window + register, 0)

    def put(self, register: int, value: Value) -> None:
        """Set a register of the present window."""
        self.regs[self.window + register] = value

    def load(self, address: int, words: int) -> Value:
        """Return the raw bits at a word address, or the unknown value if a word is unknown.

        Raises
        ------
        NotStaticError
            If the address is outside the memory.
        """
        memory = self.state.memory
        if address < 0 or address + words > len(memory):
            raise NotStaticError(f"address {address} at {self.where()} is outside the memory of the program")
        total = 0
        for i in range(words):
            word = memory[address + i]
            if isinstance(word, Unknown):
                return V.first_unknown(*memory[address : address + words]) or word
            total |= word << (16 * i)
        return total

    def store(self, address: int, words: int, value: Value) -> None:
        """Store a value at a word address.

        Raises
        ------
        NotStaticError
            If the address is outside the memory.
        """
        memory = self.state.memory
        if address < 0 or address + words > len(memory):
            raise NotStaticError(f"address {address} at {self.where()} is outside the memory of the program")
        for i in range(words):
            memory[address + i] = value if isinstance(value, Unknown) else (value >> (16 * i)) & 0xFFFF

    def _run(self, entry: int) -> None:
        """Follow code from an entry to the end of the task."""
        self.pc, self.window, self.calls = entry, 0, []
        self.ended = False
        self.last = (
            0,
            0,
        )  # 1 + address of the element that the last operation wrote, and the time from which others could issue
        code, price = self.t.code, self.t.price
        while not self.ended:
            op, a, b, c = code[self.pc]
            self.opcodes += 1
            if self.opcodes > MOST_OPCODES:
                raise NotStaticError(f"more than {MOST_OPCODES:,} opcodes run, the last at {self.where()}")
            self.spent += price[self.pc]
            if op in self.operations:
                self.put(a, self._computed(op, self.get(b), 0 if op in M.UNARY else self.get(c)))
            elif op in M.IMMEDIATE:
                x = self.get(b)
                self.put(a, x if isinstance(x, Unknown) else M.IMMEDIATE[op](x, c))
            elif op in M.JUMPS or op in M.JUMPS_IMMEDIATE:
                x, y = self.known(self.get(a), "a branch"), b
                if op in M.JUMPS:
                    y = self.known(self.get(b), "a branch")
                if (M.JUMPS if op in M.JUMPS else M.JUMPS_IMMEDIATE)[op](x, y):
                    self.spent += self.t.late[self.pc]
                    self.pc = c - 1
            elif op in M.LOADS:
                self._load(op, a, b, c)
            elif op in M.STORES:
                self._store(op, a, b, c)
            else:
                self._other(op, a, b, c)
            self.pc += 1

    def _computed(self, op: int, x: Value, y: Value) -> Value:
        if isinstance(x, Unknown) or isinstance(y, Unknown):
            return V.first_unknown(x, y) or V.MACHINE
        if op in M.DIVISIONS and y == 0:
            raise NotStaticError(f"a division by zero at {self.where()}")
        return self.operations[op](x, y)

    def _address(self, b: int, c: int, scale: int) -> int:
        base = self.known(self.get(b), "an address")
        return base + (scale * self.known(self.get(c), "an address") if scale else c)

    def _load(self, op: int, a: int, b: int, c: int) -> None:
        words, is_signed, scale = M.LOADS[Op(op)]
        base, index = self.get(b), self.get(c) if scale else 0
        for part in (base, index):
            if isinstance(part, Unknown):  # the value depends on the unknown address, and nothing else does
                self.put(a, part)
                return
        value = self.load(self._address(b, c, scale), words)
        self.put(a, M.signed(value, 16 * words) if is_signed and not isinstance(value, Unknown) else value)

    def _store(self, op: int, a: int, b: int, c: int) -> None:
        words, scale = M.STORES[Op(op)]
        self.store(self._address(b, c, scale), words, self.get(a))

    def _other(self, op: int, a: int, b: int, c: int) -> None:
        state = self.state
        if op == Op.LDI:
            self.put(a, c)
        elif op == Op.LDK:
            self.put(a, M.signed(int(self.cls.constants[c]), 64))
        elif op == Op.MOV:
            self.put(a, self.get(b))
        elif op == Op.FMA:
            d, x, y = self.get(a), self.get(b), self.get(c)
            if isinstance(d, Unknown) or isinstance(x, Unknown) or isinstance(y, Unknown):
                self.put(a, V.first_unknown(d, x, y) or V.MACHINE)
            else:
                self.put(a, M.multiply_add(d, x, y))
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
            raise NotStaticError(f"an opcode {op} at {self.where()} that the proof does not handle")

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
        return M.signed((dsd & ~(0xFFFF << low)) | ((value & 0xFFFF) << low), 64)

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
            return M.signed(dsd >> 36, 16)
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
        return base + width * n * M.signed(dsd >> 36, 16)

    # -- functions of the machine

    def _system(self, a: int, b: int, function: int) -> None:
        fn = Sys(function)
        result: Value | None = None
        self.spent += self.t.late[self.pc]
        if fn == Sys.TSC_READ:
            self.store(self.known(self.get(b), "an address"), 3, V.CLOCK)
        elif fn.course in _UNKNOWN:
            result = _UNKNOWN[fn.course]
        elif fn.course == "position":
            result = self._position(fn)
        elif fn == Sys.UNBLOCK_CMD_STREAM:
            self._release()
        elif fn == Sys.DSR_SAVE:
            number = self.known(self.get(b), "a register")
            self.state.dsr[number] = self.get(b + 1)
        elif fn.course != "free":
            result = self._changed(fn, b)
        if a >= 0:
            self.put(a, 0 if result is None else result)

    def _position(self, fn: Sys) -> Value:
        if self.place is None:
            return V.POSITION
        x, y = self.place
        dx, dy = self.t.image.offset
        return {Sys.X_COORD: x, Sys.Y_COORD: y, Sys.FABRIC_X: x + dx, Sys.FABRIC_Y: y + dy}[fn]
