"""Expressions whose operands are known at run time only: registers, memory, arithmetic, conversions, comparisons."""

from __future__ import annotations

from typing import Any

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.code import Agg, Code, FrameCell, Local, Mem, Run, RunRange
from wse_sim.csl.coerce import can_widen, common_type, misfit, pointer_fits
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.evaluate import Evaluator, Scope
from wse_sim.csl.modules import Global
from wse_sim.csl.values import FALSE, TRUE, Cell, Dsd, Dsr, Fifo, Ref, Value, register_form
from wse_sim.fabric.vm.opcodes import Op

ARITH = {"+": "ADD", "-": "SUB", "*": "MUL", "/": "DIV", "%": "MOD", "<<": "SHL"}
BITS = {"&": Op.AND, "|": Op.OR, "^": Op.XOR}
FLOATS = {"+": "ADD", "-": "SUB", "*": "MUL", "/": "DIV"}
SWAPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
INT32 = range(-(1 << 31), 1 << 31)


def width(t: ty.Type) -> str:
    """The width class of a scalar in the cost table."""
    bits = getattr(t, "bits", 16)
    return "16" if bits <= 16 else "32" if bits <= 32 else "64"


def suffix(t: ty.IntType) -> str | None:
    """The suffix of an opcode that wraps in exactly this type."""
    return f"{'I' if t.signed else 'U'}{t.bits}" if t.bits in (16, 32) else None


class ExpressionLowerer(Evaluator):
    """Emits rows into `code`."""

    code: Code
    copy_words: Any
    clear_words: Any
    locals_end: int  # first register above the named variables: only temporaries may be renamed

    # ---- operands
    def register(self, value: Any, at: int) -> int:
        """The register of a scalar operand; a known value is loaded."""
        if value.__class__ is Run or value.__class__ is Local:
            return value.reg  # type: ignore[no-any-return]
        if value.__class__ is Value:
            return self.load_constant(value, self.code.alloc(), at)
        value = self.load(value, at)
        if value.__class__ in (Agg, Mem):
            raise CslError(
                at, f"a value of type '{value.type}' cannot stand here; use its fields or elements"
            )
        return self.register(value, at)

    def load_constant(self, value: Value, reg: int, at: int) -> int:
        t, data = value.type, value.data
        code = self.code
        if isinstance(t, ty.PointerType):
            code.emit(Op.LDI, reg, 0, data.words(), "move", at)
            code.fix("address", data.root)
            self.use(data.root)
        elif isinstance(data, (Dsd, Fifo)):
            code.emit(Op.LDK, reg, 0, 0, "dsd_change", at)
            code.fix("dsd", data)
            if isinstance(data, Dsd) and data.ref is not None:
                self.use(data.ref.root)
            if isinstance(data, Fifo):
                self.use(data.buffer.root)
        elif isinstance(t, (ty.StructType, ty.ArrayType)) or not (ty.is_number(t) or t.runtime):
            raise CslError(at, f"a value of type '{t}' exists at compile time only")
        elif t is ty.VOID:
            raise CslError(at, "a void value has no use here")
        else:
            if t is ty.COMPTIME_INT or t is ty.COMPTIME_FLOAT:
                raise CslError(at, f"this {t} needs a type at run time; declare it or use @as")
            self.constant(register_form(t, data), reg, at)
        return reg

    def constant(self, number: int, reg: int, at: int) -> int:
        if number in INT32:
            self.code.emit(Op.LDI, reg, 0, number, "move", at)
        else:
            self.code.emit(Op.LDK, reg, 0, 0, "move", at)
            self.code.fix("constant", number)
        return reg

    def use(self, root: Cell) -> None:
        """A variable needs memory."""
        self.unit.used.setdefault(id(root), root)  # type: ignore[attr-defined]

    def emit(self, op: Op, b: int, c: int, cost: str, t: ty.Type, at: int) -> Run:
        """A row with a fresh register for its result."""
        reg = self.code.alloc()
        self.code.emit(op, reg, b, c, cost, at)
        return Run(t, reg, at)

    def move(self, value: Any, reg: int, mark: int, at: int) -> None:
        """Bring a scalar into a register."""
        if value.__class__ is Value:
            self.load_constant(value, reg, at)
            return
        source = self.register(value, at)
        if source != reg and not self.code.retarget(source, reg, mark):
            self.code.emit(Op.MOV, reg, source, 0, "move", at)

    # ---- places
    def in_memory(self, root: Any) -> bool:
        return isinstance(root, FrameCell) or (isinstance(root, Global) and root.kind == "var")

    def local_place(self, found: Any) -> Any:
        return Ref(found, (), found.type) if isinstance(found, Cell) else found

    def ensure(self, g: Global) -> None:
        if g.state != Global.READY:
            self.unit.evaluator.ensure(g)

    def comptime_eval(self, node: tree.Node, scope: Scope) -> Value:
        return self.unit.comptime.known(node, scope)  # type: ignore[no-any-return]

    def address(self, place: Any, at: int) -> Mem:
        """Any place as a `Mem`."""
        if place.__class__ is Ref:
            self.use(place.root)
            return Mem(place.type, at, place.root, offset=place.words(), mutable=place.root.mutable)
        return place  # type: ignore[no-any-return]

    def load(self, place: Any, at: int) -> Any:
        kind = place.__class__
        if kind is Ref:
            if not self.in_memory(place.root):
                return super().load(place, at)
            return self.load_memory(self.address(place, at), at)
        if kind is Mem:
            return self.load_memory(place, at)
        if kind is Local:
            return Run(place.type, place.reg, at)
        return place

    def load_memory(self, mem: Mem, at: int) -> Any:
        t = mem.type
        if isinstance(t, ty.StructType) and t.kind == "struct" and not self.has_array(t):
            mem = self.simple(mem, at)
            return Agg(t, [self.load_memory(self.field(mem, i, at), at) for i in range(len(t.fields))], at)
        if isinstance(t, (ty.StructType, ty.ArrayType)):
            return mem
        if t is ty.VOID:
            return Value(t, None)
        if not t.runtime:
            raise CslError(at, f"a value of type '{t}' cannot be read at run time")
        name, cost = self.memory_op(t)
        return self.access_memory(f"LD{{}}_{name}", mem, self.code.alloc(), cost.format("load"), t, at)

    def memory_op(self, t: ty.Type) -> tuple[str, str]:
        if t.words == 4:
            return "64", "{}64"
        signed = isinstance(t, ty.IntType) and t.signed
        return f"{'I' if signed else 'U'}{16 * t.words}", f"{{}}{16 * t.words}"

    def access_memory(self, op: str, mem: Mem, reg: int, cost: str, t: ty.Type, at: int) -> Run:
        """One load or store row; indexed where the scale is the size of the element."""
        code = self.code
        if mem.index is not None and mem.base is None and mem.scale == 1:
            mem = Mem(mem.type, at, mem.root, mem.index, mem.offset)
        if mem.index is not None and mem.scale == t.words and t.words < 4:
            base = mem.base
            if base is None or mem.offset or mem.root is not None:
                base = self.base_register(Mem(t, at, mem.root, mem.base, mem.offset), at)
            code.emit(Op[op.format("X")], reg, base, mem.index, cost, at)
            return Run(t, reg, at)
        mem = self.simple(mem, at)
        if mem.base is None:  # the machine addresses memory directly: loading the address costs nothing
            base = code.alloc()
            code.emit(Op.LDI, base, 0, mem.offset, "free", at)
            if mem.root is not None:
                code.fix("address", mem.root)
            code.emit(Op[op.format("")], reg, base, 0, cost, at)
            return Run(t, reg, at)
        code.emit(Op[op.format("")], reg, mem.base, mem.offset, cost, at)
        if mem.root is not None:
            code.fix("address", mem.root)
        return Run(t, reg, at)

    def base_register(self, mem: Mem, at: int) -> int:
        """Address of a place as a register."""
        code = self.code
        if mem.index is not None:
            index = mem.index
            if mem.scale != 1:
                index = self.emit(Op.MULI_I16, index, mem.scale, "alu16", ty.U16, at).reg
            if mem.base is not None:
                index = self.emit(Op.ADD_U16, index, mem.base, "alu16", ty.U16, at).reg
            mem = Mem(mem.type, at, mem.root, index, mem.offset)
        if mem.base is None:
            reg = code.alloc()
            code.emit(Op.LDI, reg, 0, mem.offset, "move", at)
            if mem.root is not None:
                code.fix("address", mem.root)
            return reg
        if mem.root is None and mem.offset == 0:
            return mem.base
        reg = code.alloc()
        code.emit(Op.ADDI_U16, reg, mem.base, mem.offset, "alu16", at)
        if mem.root is not None:
            code.fix("address", mem.root)
        return reg

    def simple(self, mem: Mem, at: int) -> Mem:
        """The same place without an index."""
        if mem.index is None:
            return mem
        index = mem.index
        if mem.scale != 1:
            index = self.emit(Op.MULI_I16, index, mem.scale, "alu16", ty.U16, at).reg
        if mem.base is not None:
            index = self.emit(Op.ADD_U16, index, mem.base, "alu16", ty.U16, at).reg
        return Mem(mem.type, at, mem.root, index, mem.offset, mutable=mem.mutable)

    def has_array(self, t: ty.StructType) -> bool:
        return any(
            isinstance(f, ty.ArrayType)
            or (isinstance(f, ty.StructType) and (f.kind == "union" or self.has_array(f)))
            for _, f in t.fields
        )

    def store(self, place: Any, value: Any, at: int) -> None:
        kind = place.__class__
        if kind is Ref and not self.in_memory(place.root):
            if isinstance(place.root, Global) or not place.root.mutable:
                raise CslError(at, f"'{place.root.name}' is a constant and cannot be assigned")
            super().store(place, value, at)
            return
        if kind is Local:
            if not place.mutable:
                raise CslError(at, f"'{place.name}' is a constant and cannot be assigned")
            value = self.coerce(value, place.type, at)
            self.move(value, place.reg, self.code.next if value.__class__ is Value else self.locals_end, at)
            return
        if kind not in (Ref, Mem):
            raise CslError(at, "this cannot be assigned: it is a constant or a parameter, and no variable")
        mem = self.address(place, at)
        if not mem.mutable:
            raise CslError(at, "this cannot be assigned: it is read through a pointer to const")
        self.store_memory(mem, self.coerce(value, mem.type, at), at)

    def store_memory(self, mem: Mem, value: Any, at: int) -> None:
        t = mem.type
        if isinstance(t, ty.StructType):
            self.store_struct(mem, t, value, at)
        elif isinstance(t, ty.ArrayType):
            self.store_array(mem, t, value, at)
        elif t is not ty.VOID:
            source = self.register(value, at)
            op, cost = {1: ("ST{}_16", "store16"), 2: ("ST{}_32", "store32"), 4: ("ST{}_64", "store64")}[
                t.words
            ]
            self.access_memory(op, mem, source, cost, t, at)

    def store_struct(self, mem: Mem, t: ty.StructType, value: Any, at: int) -> None:
        value = self.load(value, at)
        if value.__class__ is Mem:
            self.copy_words(mem, value, t.words, at)
            return
        mem = self.simple(mem, at)
        for i, (_, inner) in enumerate(t.fields):
            item = value.items[i] if value.__class__ is Agg else Value(inner, value.data[i])
            if (
                t.kind == "union"
                and item.__class__ is Value
                and not isinstance(inner, ty.ArrayType)
                and not item.data
                and i
            ):
                continue
            self.store_memory(self.field(mem, i, at), self.coerce(item, inner, at), at)

    def store_array(self, mem: Mem, t: ty.ArrayType, value: Any, at: int) -> None:
        if value.__class__ is Value and len(value.data) <= 8:
            value = Agg(t, [Value(t.element, x) for x in value.data], at)
        if value.__class__ is Agg:
            mem = self.simple(mem, at)
            for i, item in enumerate(value.items):
                place = Mem(t.element, at, mem.root, mem.base, mem.offset + i * t.element.words)
                self.store_memory(place, self.coerce(item, t.element, at), at)
            return
        if value.__class__ is Value:
            if all(not x for x in value.data if not isinstance(x, list)) and not isinstance(
                t.element, (ty.StructType, ty.ArrayType)
            ):
                self.clear_words(mem, t.words, at)
                return
            value = self.address(self.constant_array(value, at), at)
        self.copy_words(mem, self.address(value, at), t.words, at)

    def constant_array(self, value: Value, at: int) -> Ref:
        """Memory that holds a constant array; equal constants share it."""
        key = (value.type, repr(value.data))
        cells = self.unit.constants  # type: ignore[attr-defined]
        if key not in cells:
            cells[key] = Cell("constant", value.type, value.data, False, at)
        self.use(cells[key])
        return Ref(cells[key], (), value.type)

    # ---- members and elements
    def field(self, base: Any, place: int, at: int) -> Any:
        t = base.type
        inner = t.fields[place][1]
        if base.__class__ is Agg:
            return base.items[place]
        if base.__class__ is Mem:
            mem = self.simple(base, at)
            return Mem(inner, at, mem.root, mem.base, mem.offset + t.offsets[place], mutable=mem.mutable)
        if base.__class__ is Run:
            raise CslError(at, f"a value of type '{t}' has no member here")
        return super().field(base, place, at)

    def index(self, base: Any, indices: list[Any], at: int) -> Any:
        known = all(i.__class__ is Value for i in indices)
        if known and base.__class__ in (Ref, Value) and not isinstance(base.type, ty.PointerType):
            return super().index(base, indices, at)
        t = base.type
        for i in indices:
            if not ty.is_int(i.type) and not isinstance(i.type, ty.EnumType):
                raise CslError(at, f"an index must be an integer, found '{i.type}'")
        if isinstance(t, ty.PointerType):
            return self.pointer_index(self.load(base, at), indices, at)
        if isinstance(t, ty.ArrayType):
            if base.__class__ is Value:
                base = self.constant_array(base, at)
            if base.__class__ is Agg:
                if known:
                    return base.items[self.flat_index(t, indices, at)]
                base = self.spill(base, at)
            return self.element(self.address(base, at), t, indices, at)
        if not known:
            raise CslError(at, f"an element of '{t}' must be chosen at compile time")
        return super().index(base, indices, at)

    def spill(self, value: Any, at: int) -> Mem:
        """A temporary in memory for an array or a structure made of operands."""
        cell = self.frame_cell("temporary", value.type, at)
        mem = self.address(Ref(cell, (), value.type), at)
        self.store_memory(mem, value, at)
        return mem

    def frame_cell(self, name: str, t: ty.Type, at: int) -> FrameCell:
        cell = FrameCell(name, t, None, True, at)
        cell.frame = self.code
        self.code.frame.append(cell)
        return cell

    def element(self, mem: Mem, t: ty.ArrayType, indices: list[Any], at: int) -> Mem:
        words = t.element.words
        flat, offset = self.flat(t, indices, at)
        offset = mem.offset + offset * words
        if flat is None:
            mem = self.simple(mem, at)
            return Mem(t.element, at, mem.root, mem.base, offset, mutable=mem.mutable)
        mem = self.simple(mem, at)
        return Mem(t.element, at, mem.root, mem.base, offset, flat, words, mutable=mem.mutable)

    def flat(self, t: ty.ArrayType, indices: list[Any], at: int) -> tuple[int | None, int]:
        """Row-major index: register of its run-time part (or None) and its known part."""
        if len(indices) != len(t.shape):
            raise CslError(
                at,
                f"an array of type '{t}' has {len(t.shape)} dimensions, and {len(indices)} indices are given",
            )
        reg: int | None = None
        known = 0
        for n, i in zip(t.shape, indices, strict=True):
            if reg is not None and n != 1:
                reg = self.emit(Op.MULI_I16, reg, n, "mul16", ty.I16, at).reg
            known *= n
            if i.__class__ is Value:
                if not 0 <= i.data < n:
                    raise CslError(at, f"index {i.data} is outside of the array '{t}' (0 to {n - 1})")
                known += i.data
            else:
                other = self.register(i, at)
                reg = other if reg is None else self.emit(Op.ADD_I16, reg, other, "alu16", ty.I16, at).reg
        return reg, known

    def pointer_index(self, pointer: Any, indices: list[Any], at: int) -> Any:
        t = pointer.type
        assert isinstance(t, ty.PointerType)
        if not t.many:
            return self.index(self.deref(pointer, at), indices, at)
        if len(indices) != 1:
            raise CslError(at, f"a pointer of type '{t}' takes one index, and {len(indices)} are given")
        words = t.target.words
        mutable = not t.const
        if pointer.__class__ is Value:
            ref: Ref = pointer.data
            self.use(ref.root)
            mem = Mem(t.target, at, ref.root, None, ref.words(), mutable=mutable)
        else:
            mem = Mem(t.target, at, None, self.register(pointer, at), 0, mutable=mutable)
        i = indices[0]
        if i.__class__ is Value:
            mem.offset += i.data * words
            return mem
        return Mem(t.target, at, mem.root, mem.base, mem.offset, self.register(i, at), words, mutable=mutable)

    def deref(self, pointer: Any, at: int) -> Any:
        t = pointer.type
        if not isinstance(t, ty.PointerType):
            raise CslError(at, f"a value of type '{t}' is no pointer")
        if t.many:
            raise CslError(at, f"a pointer of type '{t}' is read with an index, as in p[0]")
        if pointer.__class__ is Value:
            ref: Ref = pointer.data
            if ref.type is t.target:
                return ref
            self.use(ref.root)
            return Mem(t.target, at, ref.root, None, ref.words(), mutable=not t.const)
        return Mem(t.target, at, None, self.register(pointer, at), 0, mutable=not t.const)

    def address_of(self, node: tree.Node, scope: Scope, at: int) -> Any:
        place = self.access(node, scope)
        if place.__class__ is Mem:
            t = ty.pointer(place.type, not place.mutable)
            return Run(t, self.base_register(place, at), at)
        if place.__class__ in (Agg, Run):
            if isinstance(node, tree.Name):
                raise CslError(at, f"'&' needs a variable; declare '{node.id}' with var")
            place = self.spill(place, at)
            return Run(ty.pointer(place.type), self.base_register(place, at), at)
        if place.__class__ is Local:
            raise CslError(at, "'&' needs a variable, an element or a field")
        if place.__class__ is Value:
            place = self.constant_place(node, place, scope)
        if place.__class__ is not Ref:
            raise CslError(at, "'&' needs a variable, an element or a field")
        return Value(ty.pointer(place.type, not place.root.mutable), place)

    def constant_place(self, node: tree.Node, value: Value, scope: Scope) -> Any:
        if isinstance(value.type, ty.ArrayType):
            return self.constant_array(value, node.at)
        return super().constant_place(node, value, scope)

    # ---- arithmetic
    def unary(self, op: str, value: Any, at: int) -> Any:
        if value.__class__ is Value:
            return super().unary(op, value, at)
        t = value.type
        reg = self.register(value, at)
        if op == "-":
            if isinstance(t, ty.FloatType):
                return self.emit(Op.FNEG if t is ty.F32 else Op.HNEG, reg, 0, f"f{t.bits}_move", t, at)
            if isinstance(t, ty.IntType):
                return self.binary("-", Value(t, 0), value, at)
        elif op == "~" and isinstance(t, ty.IntType):
            if t.signed or t.bits < 32:
                return self.emit(Op.XORI, reg, -1 if t.signed else t.mask, f"alu{width(t)}", t, at)
            return self.binary("^", value, Value(t, t.mask), at)
        elif op == "!" and t is ty.BOOL:
            return self.emit(Op.XORI, reg, 1, "alu16", t, at)
        raise CslError(at, f"'{op}' of a value of type '{t}' is not defined")

    def binary(self, op: str, left: Any, right: Any, at: int) -> Any:
        if left.__class__ is Value and right.__class__ is Value:
            if isinstance(left.type, ty.PointerType) or isinstance(right.type, ty.PointerType):
                pass
            else:
                return super().binary(op, left, right, at)
        if op in NEGATED:
            return self.comparison(op, left, right, at)
        if op in ("<<", ">>"):
            return self.shift(op, left, right, at)
        t = common_type(left, right, op, at)
        left, right = self.coerce(left, t, at), self.coerce(right, t, at)
        if isinstance(t, ty.IntType):
            return self.integer(op, t, left, right, at)
        if isinstance(t, ty.FloatType) and op in FLOATS:
            return self.floating(op, t, left, right, at)
        if t is ty.BOOL and op in BITS:
            return self.emit(BITS[op], self.register(left, at), self.register(right, at), "alu16", t, at)
        raise CslError(at, f"'{op}' between '{left.type}' and '{right.type}' is not defined")

    def floating(self, op: str, t: ty.FloatType, left: Any, right: Any, at: int) -> Run:
        if t not in (ty.F16, ty.F32):
            raise CslError(at, f"arithmetic of type '{t}' at run time is not simulated; use f16 or f32")
        row = Op[("F" if t is ty.F32 else "H") + FLOATS[op]]
        kind = "div" if op == "/" else "mul" if op == "*" else "add"
        return self.emit(row, self.register(left, at), self.register(right, at), f"f{t.bits}_{kind}", t, at)

    def integer(self, op: str, t: ty.IntType, left: Any, right: Any, at: int) -> Run:
        if left.__class__ is Value and op in ("+", "*", "&", "|", "^"):
            left, right = right, left
        cost = {"*": "mul", "/": "div", "%": "div"}.get(op, "alu") + width(t)
        if right.__class__ is Value:
            quick = self.immediate(op, t, left, right.data, cost, at)
            if quick is not None:
                return quick
        a, b = self.register(left, at), self.register(right, at)
        if op in BITS:
            return self.emit(BITS[op], a, b, cost, t, at)
        end = suffix(t)
        if end is None:
            end = "U64" if op in ("/", "%") and not t.signed and t.bits == 64 else "I64"
            return self.wrapped(self.emit(Op[f"{ARITH[op]}_{end}"], a, b, cost, t, at), t, at)
        return self.emit(Op[f"{ARITH[op]}_{end}"], a, b, cost, t, at)

    def immediate(self, op: str, t: ty.IntType, left: Any, n: int, cost: str, at: int) -> Run | None:
        """The form with the number in the row, where there is one."""
        end = suffix(t)
        if op in BITS:
            if n in INT32:
                row = {"&": Op.ANDI, "|": Op.ORI, "^": Op.XORI}[op]
                return self.emit(row, self.register(left, at), n, cost, t, at)
            return None
        if op == "-":
            op, n = "+", -n
        if op == "+" and n in INT32:
            run = self.emit(Op[f"ADDI_{end or 'I64'}"], self.register(left, at), n, cost, t, at)
            return run if end else self.wrapped(run, t, at)
        if op == "*" and end and n in INT32:
            if n > 0 and n & (n - 1) == 0:
                return self.emit(
                    Op[f"SHLI_{end}"], self.register(left, at), n.bit_length() - 1, "alu" + width(t), t, at
                )
            return self.emit(Op[f"MULI_{end}"], self.register(left, at), n, cost, t, at)
        return None

    def wrapped(self, run: Run, t: ty.IntType, at: int) -> Run:
        """Bring a 64-bit result into a type of odd width."""
        if t.bits < 64:
            self.code.emit(Op.WRAPS if t.signed else Op.WRAPU, run.reg, run.reg, t.bits, "free", at)
        return run

    def shift(self, op: str, left: Any, right: Any, at: int) -> Run:
        t = left.type
        if t is ty.COMPTIME_INT or not isinstance(t, ty.IntType) or not ty.is_int(right.type):
            if t is ty.COMPTIME_INT and isinstance(right.type, ty.IntType):
                left, t = self.coerce(left, right.type, at), right.type
            else:
                raise CslError(
                    at,
                    f"'{op}' between '{left.type}' and '{right.type}'; both must be integers of a fixed width",
                )
        cost = f"alu{width(t)}"
        a = self.register(left, at)
        if right.__class__ is Value:
            n = right.data
            if n < 0:
                raise CslError(at, f"shift by {n}; the amount must not be negative")
            end = suffix(t)
            if op == "<<" and end:
                return self.emit(Op[f"SHLI_{end}"], a, n, cost, t, at)
            if op == ">>" and not (t.bits == 64 and not t.signed):
                return self.emit(Op.SHRI, a, min(n, 63), cost, t, at)
            right = Value(ty.U16, min(n, 65535))
        b = self.register(right, at)
        if op == "<<":
            return self.wrapped(self.emit(Op[f"SHL_{suffix(t) or 'I64'}"], a, b, cost, t, at), t, at)
        return self.emit(Op.SHR_U64 if t.bits == 64 and not t.signed else Op.SHR, a, b, cost, t, at)

    # ---- comparisons
    def comparable(self, op: str, left: Any, right: Any, at: int) -> tuple[ty.Type, Any, Any]:
        a, b = left.type, right.type
        if ty.is_number(a) and ty.is_number(b):
            t: ty.Type = common_type(left, right, op, at)
            return t, self.coerce(left, t, at), self.coerce(right, t, at)
        if a is not b and not (isinstance(a, ty.PointerType) and isinstance(b, ty.PointerType)):
            raise CslError(at, f"'{op}' between '{a}' and '{b}'; both sides must have one type")
        if a.words not in (1, 2, 4) or isinstance(a, (ty.StructType, ty.ArrayType)):
            raise CslError(at, f"'{op}' between values of type '{a}' is not defined")
        return a, left, right

    def comparison(self, op: str, left: Any, right: Any, at: int) -> Run:
        t, left, right = self.comparable(op, left, right, at)
        if op in (">", ">="):
            op, left, right = SWAPPED[op], right, left
        a, b = self.register(left, at), self.register(right, at)
        if isinstance(t, ty.FloatType):
            lead = "F" if t is ty.F32 else "H"
            name = {"==": "EQ", "!=": "EQ", "<": "LT", "<=": "LE"}[op]
            run = self.emit(Op[lead + name], a, b, f"f{t.bits}_add", ty.BOOL, at)
            return run if op != "!=" else self.emit(Op.XORI, run.reg, 1, "alu16", ty.BOOL, at)
        name = {"==": "EQ", "!=": "NE", "<": "LT", "<=": "LE"}[op]
        if isinstance(t, ty.IntType) and t.bits == 64 and not t.signed and name in ("LT", "LE"):
            name += "U64"
        return self.emit(Op[name], a, b, f"alu{width(t)}", ty.BOOL, at)

    def branch(self, node: tree.Node, scope: Scope, target: int, when: bool) -> bool | None:
        """Jump to `target` if the condition is `when`, else go on.  Returns the condition if it is known now (nothing is emitted)."""
        code = self.code
        mark = code.next
        if isinstance(node, tree.Unary) and node.op == "!":
            known = self.branch(node.operand, scope, target, not when)
            return None if known is None else not known
        if isinstance(node, tree.Binary) and node.op in ("and", "or"):
            return self.branch_logical(node, scope, target, when)
        if isinstance(node, tree.Binary) and node.op in NEGATED:
            left, right = self.eval(node.left, scope), self.eval(node.right, scope)
            if (
                left.__class__ is Value
                and right.__class__ is Value
                and not isinstance(left.type, ty.PointerType)
            ):
                return self.binary(node.op, left, right, node.at).data  # type: ignore[no-any-return]
            self.branch_compare(node.op if when else NEGATED[node.op], node.op, left, right, target, node.at)
            code.release(mark)
            return None
        value = self.eval(node, scope)
        if value.type is not ty.BOOL:
            raise CslError(
                node.at, f"a condition must be a bool, found '{value.type}'; compare it, as in x != 0"
            )
        if value.__class__ is Value:
            return value.data  # type: ignore[no-any-return]
        code.jump(Op.JNZ if when else Op.JZ, self.register(value, node.at), 0, target, node.at)
        code.release(mark)
        return None

    def branch_logical(self, node: tree.Binary, scope: Scope, target: int, when: bool) -> bool | None:
        """Short circuit: `a and b` is false as soon as a is; `a or b` true as soon as a is."""
        deciding = node.op == "or"
        code = self.code
        if when == deciding:
            known = self.branch(node.left, scope, target, when)
            if known is not None:
                return known if known == deciding else self.branch(node.right, scope, target, when)
            known = self.branch(node.right, scope, target, when)
            if known is not None and known == when:
                code.jump(Op.JMP, 0, 0, target, node.at)
            return None
        over = code.label()
        known = self.branch(node.left, scope, over, deciding)
        if known is not None:
            return known if known == deciding else self.branch(node.right, scope, target, when)
        known = self.branch(node.right, scope, target, when)
        if known is not None and known == when:
            code.jump(Op.JMP, 0, 0, target, node.at)
        code.bind(over)
        return None

    def branch_compare(self, op: str, written: str, left: Any, right: Any, target: int, at: int) -> None:
        """Jump if `left op right`; floats keep the operator as written (not-a-number is unordered)."""
        code = self.code
        t, left, right = self.comparable(written, left, right, at)
        if isinstance(t, ty.FloatType) or (isinstance(t, ty.IntType) and t.bits == 64 and not t.signed):
            run = self.comparison(written, left, right, at)
            code.jump(Op.JNZ if op == written else Op.JZ, run.reg, 0, target, at)
            return
        if left.__class__ is Value and not isinstance(left.type, ty.PointerType):
            op, left, right = SWAPPED[op], right, left
        if right.__class__ is Value and not isinstance(right.type, ty.PointerType):
            number = register_form(t, right.data)
            if number in INT32:
                row = {
                    "==": Op.JEQI,
                    "!=": Op.JNEI,
                    "<": Op.JLTI,
                    "<=": Op.JLEI,
                    ">": Op.JGTI,
                    ">=": Op.JGEI,
                }[op]
                code.jump(row, self.register(left, at), number, target, at)
                return
        a, b = self.register(left, at), self.register(right, at)
        if op in (">", ">="):
            op, a, b = SWAPPED[op], b, a
        code.jump({"==": Op.JEQ, "!=": Op.JNE, "<": Op.JLT, "<=": Op.JLE}[op], a, b, target, at)

    def logical(self, node: tree.Binary, scope: Scope) -> Any:
        code = self.code
        done, other = code.label(), code.label()
        mark = code.next
        rows = len(code.rows)
        known = self.branch(node, scope, other, False)
        if known is not None and len(code.rows) == rows:
            return TRUE if known else FALSE
        code.release(mark)
        reg = code.alloc()
        code.emit(Op.LDI, reg, 0, 1, "move", node.at)
        code.jump(Op.JMP, 0, 0, done, node.at)
        code.bind(other)
        code.emit(Op.LDI, reg, 0, 0, "move", node.at)
        code.bind(done)
        return Run(ty.BOOL, reg, node.at)

    # ---- conversions
    def coerce_scalar(self, value: Any, t: ty.Type, at: int) -> Any:
        if value.__class__ is Value:
            return super().coerce_scalar(value, t, at)
        s = value.type
        if can_widen(s, t):
            if s is ty.F16 and t is ty.F32:
                return self.emit(Op.H2F, self.register(value, at), 0, "convert", t, at)
            return self.retype(value, t)
        if isinstance(s, ty.PointerType) and isinstance(t, ty.PointerType) and pointer_fits(s, t):
            return self.retype(value, t)
        if (
            isinstance(s, ty.ArrayType)
            and isinstance(t, ty.ArrayType)
            and s.count == t.count
            and s.element is t.element
            and value.__class__ is Mem
        ):
            return Mem(t, at, value.root, value.base, value.offset, value.index, value.scale)
        raise misfit(value, t, at)

    def aggregate(self, t: ty.Type, items: list[Any], at: int) -> Any:
        if all(i.__class__ is Value for i in items):
            return super().aggregate(t, items, at)
        return Agg(t, items, at)

    def retype(self, value: Any, t: ty.Type) -> Any:
        if value.__class__ is Value:
            return super().retype(value, t)
        return Run(t, self.register(value, value.at), value.at)

    def convert(self, value: Any, t: ty.Type, at: int) -> Any:
        if value.__class__ is Value:
            return super().convert(value, t, at)
        s = value.type
        if s is t:
            return value
        if isinstance(s, ty.EnumType):
            s = s.base
        if isinstance(t, ty.EnumType) and ty.is_int(s):
            return self.retype(self.convert(Run(s, self.register(value, at), at), t.base, at), t)
        number = ty.is_number(s) or s is ty.BOOL
        if not number or not (ty.is_number(t) or t is ty.BOOL):
            return self.coerce(value, t, at)
        reg = self.register(value, at)
        if t is ty.BOOL:
            return self.comparison("!=", Run(s, reg, at), Value(s, 0.0 if ty.is_float(s) else 0), at)
        if isinstance(s, ty.FloatType):
            if isinstance(t, ty.FloatType):
                return self.emit(Op.H2F if t is ty.F32 else Op.F2H, reg, 0, "convert", t, at)
            if s is ty.F16:
                reg = self.emit(Op.H2F, reg, 0, "convert", ty.F32, at).reg
            run = self.emit(Op.F2I, reg, 0, "convert", t, at)
            return self.narrow(run, t, at, "free")
        if isinstance(t, ty.FloatType):
            run = self.emit(Op.I2F, reg, 0, "convert", ty.F32, at)
            return run if t is ty.F32 else self.emit(Op.F2H, run.reg, 0, "convert", t, at)
        if t in (ty.COMPTIME_INT, ty.COMPTIME_FLOAT):
            raise CslError(at, f"a value that is known at run time only cannot become a {t}")
        if s is ty.BOOL or can_widen(s, t):
            return Run(t, reg, at)
        return self.narrow(Run(s, reg, at), t, at, f"alu{width(t)}")

    def narrow(self, run: Run, t: ty.Type, at: int, cost: str) -> Run:
        """The low bits of a register under an integer type."""
        assert isinstance(t, ty.IntType)
        if t.bits == 64:
            return Run(t, run.reg, at)
        if t.bits in (8, 16, 32):
            return self.emit(Op[f"WRAP_{'I' if t.signed else 'U'}{t.bits}"], run.reg, 0, cost, t, at)
        return self.emit(Op.WRAPS if t.signed else Op.WRAPU, run.reg, t.bits, cost, t, at)

    def bitcast(self, value: Any, t: ty.Type, at: int) -> Any:
        s = value.type
        if isinstance(s, ty.PointerType) and value.__class__ is Value:
            value = Run(s, self.register(value, at), at)
        if value.__class__ is Value:
            return super().bitcast(value, t, at)
        if value.__class__ in (Agg, Mem):
            if s.words != t.words:
                self.check_bitcast(s, t, at)
            place = value if value.__class__ is Mem else self.spill(value, at)
            return self.load(Mem(t, at, place.root, place.base, place.offset, place.index, place.scale), at)
        if isinstance(t, (ty.StructType, ty.ArrayType)):
            cell = self.frame_cell("bitcast", t, at)
            self.use(cell)
            self.store_memory(Mem(s, at, cell), value, at)
            return self.load(Mem(t, at, cell), at)
        self.check_bitcast(s, t, at)
        if isinstance(t, ty.IntType) and not (isinstance(s, ty.IntType) and s is t):
            signed = isinstance(s, ty.IntType) and s.signed
            if t.signed or signed or (isinstance(s, ty.IntType) and s.bits != t.bits):
                return self.narrow(Run(s, self.register(value, at), at), t, at, "free")
        elif isinstance(s, ty.IntType) and s.signed:
            other = ty.int_type(False, 16 * t.words)
            return self.retype(self.narrow(Run(s, self.register(value, at), at), other, at, "free"), t)
        return self.retype(value, t)

    def ptrcast(self, value: Any, t: ty.PointerType) -> Any:
        if value.__class__ is Value:
            return super().ptrcast(value, t)
        return self.retype(value, t)

    # ---- ranges
    def make_range(self, t: ty.Type, values: list[Any], node: tree.Builtin) -> Any:
        if all(v.__class__ is Value for v in values):
            return super().make_range(t, values, node)
        parts = [self.coerce(v, t, a.at) for v, a in zip(values, node.args[1:], strict=True)]
        start, stop, step = (Value(t, 0), parts[0], Value(t, 1)) if len(parts) == 1 else parts
        if step.__class__ is Value and step.data == 0:
            raise CslError(node.at, "the step of a range is 0; it must not be")
        return RunRange(t, start, stop, step, node.at)

    def b_is_comptime(self, node: tree.Builtin, scope: Any) -> Value:
        return FALSE

    def is_dsr(self, value: Any) -> bool:
        return value.__class__ is Value and isinstance(value.data, Dsr)
