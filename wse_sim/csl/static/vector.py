"""Analysis of one core's vector operations: their operands, length, cost, and effect on memory.

It follows :mod:`wse_sim.fabric.vm.operands`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

from wse_sim.csl.static import values as V
from wse_sim.csl.static.course import NotStaticError, Operand
from wse_sim.csl.static.values import Unknown, Value
from wse_sim.csl.static.walk import Walker
from wse_sim.fabric.vm import arithmetic as A
from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm import semantics as M
from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm.issue_times import MAPPED
from wse_sim.fabric.vm.opcodes import DsdKind, Form

_COPIES = ("mov16", "mov32", "fmovs", "fmovh")
_MEMORY = (DsdKind.MEM1D, DsdKind.MEM4D, DsdKind.CIRCBUF)
_FABRIC = (DsdKind.FABIN, DsdKind.FABOUT)
_DSD_BASE_MASK = ~(0xFFFF << 4)


class VectorWalker(Walker):
    """Base class that resolves vector operations; subclasses handle operations on the fabric and asynchronous
    ones."""

    # -- for subclasses

    @abstractmethod
    def _fabric(self, operands: list[Operand], n: int | None, cost: int, options: dict[str, int]) -> None:
        """Handle an operation with a fabric or FIFO operand; an operation without end has no `n`."""

    @abstractmethod
    def _on_memory(self, op: int, n: int | None, cost: int, collides: bool, options: dict[str, int]) -> None:
        """Handle an operation on memory alone."""

    @abstractmethod
    def _fifo(self) -> Operand:
        """Return the operand for a FIFO."""

    def _sends_control(self) -> None:
        """Handle an operation that sends control wavelets."""

    def _success(self, operands: list[Operand]) -> Value:
        """Return the result value of a vector operation."""
        return 1

    # -- operations

    def _vector(self, target: int, first: int, row: int) -> None:
        issue, op = self.t.issues[row], self.t.issues[row][O.V_OP]
        operands = [self._operand(issue, place, first, op) for place in range(4)]
        loads = sum(issue[O.V_DEST + k] == Form.DSD for k in range(4))
        if issue[O.V_DEST] == issue[O.V_SRC0] == Form.DSD and operands[0].dsd == operands[1].dsd:
            loads -= 1
        shapes = sum(
            issue[O.V_DEST + k] == Form.DSD and operands[k].dsd & 15 == DsdKind.MEM4D for k in range(4)
        )
        if issue[O.V_DEST] == issue[O.V_SRC0] == Form.DSD and operands[0].dsd == operands[1].dsd:
            shapes -= operands[0].dsd & 15 == DsdKind.MEM4D
        t, sets = self.t, self.t.sets
        start = (
            t.late[self.pc] - (MAPPED if t.late[self.pc] > MAPPED // 2 else 0) + int(sets[S.DSR_COST]) * loads
        )
        start += int(sets[S.SHAPE_COST]) * shapes
        described = (Form.DSD, Form.DSR)
        if any(
            issue[O.V_DEST + k] in described and x.form == S.MEMORY and 1 + x.base == self.last[0]
            for k, x in enumerate(operands)
            if k
        ):
            start += max(int(sets[S.DEPENDENT]) - (self.spent - self.last[1]), 0)
        self.spent = max(self.spent + start, 0)
        n, cost, collides = self._extent(operands, op)
        on_fabric = any(x.form in (S.INPUT, S.OUTPUT, S.FIFO) for x in operands)
        options = self._options(issue, operands, first)
        if on_fabric:
            self._fabric(operands, n, cost, options)
        else:
            self._on_memory(op, n, cost, collides, options)
        self._apply(op, operands, 0 if n is None else n, bool(options["is_async"]))
        if not options["is_async"]:
            one = n == 1 and operands[0].form == S.MEMORY
            self.last = (1 + operands[0].base if one else 0, self.spent)
        if target >= 0:
            self.put(target, self._success(operands))

    def _finish(self, options: dict[str, int]) -> None:
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
        """Return the value of an id in an issue row: a constant, a register, or a constant of the class."""
        if value >= O.USE_CONSTANT:
            return int(self.cls.constants[value - O.USE_CONSTANT])
        if value >= O.USE_REGISTER:
            return self.known(self.get(first + value - O.USE_REGISTER), "a task that is activated")
        return value

    def _options(self, issue: list[int], operands: list[Operand], first: int) -> dict[str, int]:
        found: dict[str, int] = {
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
                base + M.signed(self.known(self.get(first + issue[O.V_INDEX]), "an address"), 16)
            ) & 0xFFFF
        if kind == DsdKind.MEM1D:
            step = M.signed(dsd >> 36, 16) * width
        elif kind == DsdKind.MEM4D:
            step, n = width, self._field(dsd, O.DsdField.LENGTH)
        else:
            step = width * int(self.t.image.rings[(dsd >> 36) & 0xFFFF, 2])
        return Operand(S.MEMORY, base, step, width, dsd, number, n=n)

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
            if color == O.NO_COLOR or self.t.sets[S.IS_WSE3]:
                color = state.output_color.get(queue, color)
            if dsd >> 52 & 1 or dsd >> 56 & 1:
                self._sends_control()
        if queue < 0 or not 0 <= color < 24:
            raise NotStaticError(f"an operation at {self.where()} names a queue without a color")
        return Operand(form, dsd=dsd, dsr=number, color=color, queue=queue, n=n, endless=n == O.ENDLESS)

    def _extent(self, operands: list[Operand], op: int) -> tuple[int | None, int, bool]:
        """Return the length (None without end), the cost per element in 1/1000 cycle, and whether two reads
        collide."""
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
        room = operands[0].n if operands[0].form == S.MEMORY else 0
        if room:  # a shorter destination in memory limits the length
            length = min(length, room)
        if length == 0 and not has_length:
            length = 1
        column = A.COST_COLLIDING if collides else (A.COST_MEMORY if reads >= 2 else A.COST)
        return (None if endless and length == 0 else length), int(vop[op, column]), collides

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
        """Return why the result of arithmetic is unknown: data if any element of a source is."""
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
        """Apply the effect of an operation on memory and registers; an asynchronous operation may have it at
        any time."""
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
                    self.state.dsr[x.dsr] = M.signed((held & _DSD_BASE_MASK) | (last & 0xFFFF) << 4, 64)
