"""Lowering of operands and places that are known only at run time: registers, memory, members and elements.

One file, because every kind of place (register, memory, member, element) is read and written by the same few
helpers.
"""

from __future__ import annotations

from collections.abc import Sequence

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.builtins_dsd import check_element, check_reach
from wse_sim.csl.code import INT32, Agg, Code, FrameCell, Local, Mem, Run
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.evaluate import Evaluator, Scope, assign
from wse_sim.csl.layout import EvaluatedUnit
from wse_sim.csl.lower_bits import load_bits, store_packed
from wse_sim.csl.lower_map import clear_words, copy_words
from wse_sim.csl.lowering import LowererParts
from wse_sim.csl.strict import judges
from wse_sim.csl.values import Cell, Dsd, Entry, Fifo, Global, Operand, Ref, Value, is_zero, register_form
from wse_sim.csl.walk import Walk
from wse_sim.fabric.vm.opcodes import Op


def width(t: ty.Type) -> str:
    """Return the width class of a scalar in the cost table: "16", "32" or "64"."""
    bits = getattr(t, "bits", 16)
    return "16" if bits <= 16 else "32" if bits <= 32 else "64"


class PlaceLowerer(Walk, LowererParts):
    """Lowerer of places, which emits rows into `code`."""

    unit: EvaluatedUnit
    evaluator: Evaluator  # of the code class; it is asked where all operands are known
    is_code = True

    code: Code
    locals_end: int  # first register above the named variables: only temporaries may be renamed
    in_index: bool = False

    def index_value(self, node: tree.Node, scope: Scope) -> Operand:
        """Evaluate an index at the cost of 16-bit arithmetic, because addresses have 16 bits."""
        outside, self.in_index = self.in_index, True
        try:
            return self.eval(node, scope)
        finally:
            self.in_index = outside

    def price_width(self, t: ty.Type) -> str:
        """Return the width class that determines the cost of a sum or product of type `t`."""
        return "16" if self.in_index else width(t)

    def look_at_reach(self, value: Operand, arg: tree.Node, scope: Scope) -> None:
        """Check that a known descriptor stays in its array; a variable is checked when linking, if no code
        assigns it."""
        check_reach(value, arg.at)
        variable = self.variable_of(arg, scope)
        if variable is not None:
            self.unit.taken.setdefault(id(variable), (variable, arg.at))

    def look_at_element(
        self, value: Operand, arg: tree.Node, scope: Scope, wanted: ty.FloatType, name: str
    ) -> None:
        """Check the element type of a known descriptor in an operation; a variable is checked when linking,
        if no code assigns it."""
        check_element(value, wanted, name, arg.at)
        variable = self.variable_of(arg, scope)
        if variable is not None:
            self.unit.elements.setdefault((id(variable), wanted), (variable, name, arg.at))

    def variable_of(self, arg: tree.Node, scope: Scope) -> Global | None:
        """Return the program variable that an expression consists of, or None."""
        if not (
            isinstance(arg, tree.Name) or (isinstance(arg, tree.Member) and isinstance(arg.base, tree.Name))
        ):
            return None
        place = self.access(arg, scope)
        return (
            place.root if type(place) is Ref and isinstance(place.root, Global) and not place.path else None
        )

    # ---- operands
    def register(self, value: Operand, at: int) -> int:
        """Return the register of a scalar operand; a known value is loaded into a new one.

        Raises
        ------
        CslError
            If the operand is an array or a structure.
        """
        if type(value) is Run or type(value) is Local:
            return value.reg
        if type(value) is Value:
            return self.load_constant(value, self.code.alloc(), at)
        value = self.load(value, at)
        if isinstance(value, (Agg, Mem)):
            raise CslError(
                at, f"a value of type '{value.type}' cannot be used here; use its fields or elements"
            )
        return self.register(value, at)

    def load_constant(self, value: Value, reg: int, at: int) -> int:
        t, data = value.type, value.data
        code = self.code
        if isinstance(t, ty.PointerType) and isinstance(data, int):  # the address of a register
            self.constant(data, reg, at)
        elif isinstance(t, ty.PointerType):
            code.emit(Op.LDI, reg, 0, data.words(), "move", at)
            code.fix("address", data.root)
            self.use(data.root)
        elif isinstance(data, (Dsd, Fifo)):
            # A descriptor is in memory: the cost is that of the operation that loads it.
            code.emit(Op.LDK, reg, 0, 0, "free", at)
            code.fix("dsd", data)
            if isinstance(data, Dsd) and data.ref is not None:
                self.use(data.ref.root)
            if isinstance(data, Fifo):
                self.use(data.buffer.root)
        elif isinstance(t, (ty.StructType, ty.ArrayType)) or not (ty.is_number(t) or t.runtime):
            raise CslError(at, f"a value of type '{t}' exists only at compile time")
        elif t is ty.VOID:
            raise CslError(at, "a void value cannot be used here")
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
        """Record that a variable needs memory."""
        self.unit.used.setdefault(id(root), root)

    def emit(self, op: Op, b: int, c: int, cost: str, t: ty.Type, at: int) -> Run:
        """Emit a row with a new register for its result, and return the result."""
        reg = self.code.alloc()
        self.code.emit(op, reg, b, c, cost, at)
        return Run(t, reg, at)

    def move(self, value: Operand, reg: int, mark: int, at: int) -> None:
        """Move a scalar to a register."""
        if type(value) is Value:
            self.load_constant(value, reg, at)
            return
        source = self.register(value, at)
        if source != reg and not self.code.retarget(source, reg, mark):
            cost = (
                "free" if isinstance(value.type, ty.DsdType) else "move"
            )  # the operation that uses a descriptor loads it
            self.code.emit(Op.MOV, reg, source, 0, cost, at)

    def settle(self, value: Operand, mark: int, at: int) -> int:
        """Move a named scalar to a separate register and return it."""
        self.code.release(mark)
        reg = self.code.alloc()
        self.move(value, reg, mark, at)
        self.code.release(reg + 1)
        self.locals_end = reg + 1
        return reg

    # ---- places
    def in_memory(self, root: Cell) -> bool:
        return isinstance(root, FrameCell) or (isinstance(root, Global) and root.kind == "var")

    def local_place(self, found: Entry, node: tree.Name) -> Operand:
        if isinstance(found, Cell):
            return Ref(found, (), found.type)
        assert isinstance(found, Operand)
        return found

    def ensure(self, g: Global) -> None:
        if g.state != Global.READY:
            self.evaluator.ensure(g)

    def comptime_eval(self, node: tree.Node, scope: Scope) -> Value:
        return self.unit.comptime.known(node, scope)

    def address(self, place: Operand, at: int) -> Mem:
        """Return a place in memory as a `Mem`."""
        if type(place) is Ref:
            self.use(place.root)
            bit = place.bit()
            return Mem(place.type, at, place.root, offset=place.words(), mutable=place.root.mutable, bit=bit)
        assert type(place) is Mem
        return place

    def load(self, place: Operand, at: int) -> Operand:
        if type(place) is Ref:
            if not self.in_memory(place.root):
                return self.evaluator.load(place, at)
            return self.load_memory(self.address(place, at), at)
        if type(place) is Mem:
            return self.load_memory(place, at)
        if type(place) is Local:
            return Run(place.type, place.reg, at)
        return place

    def load_memory(self, mem: Mem, at: int) -> Operand:
        t = mem.type
        if isinstance(t, ty.StructType) and t.kind == "struct" and not self.has_array(t):
            mem = self.simple(mem, at)
            return Agg(t, [self.load_memory(self.part(mem, t, i, at), at) for i in range(len(t.fields))], at)
        if isinstance(t, (ty.StructType, ty.ArrayType)):
            return mem if mem.bit < 0 else load_bits(self, mem, at)
        if t is ty.VOID:
            return Value(t, None)
        if mem.bit >= 0:
            return load_bits(self, mem, at)
        if not t.runtime:
            raise CslError(at, f"a value of type '{t}' cannot be read at run time")
        name, cost = self.memory_op(t)
        if isinstance(t, ty.DsdType):  # the operation that uses or changes a descriptor reads it from memory
            cost = "free"
        return self.access_memory(f"LD{{}}_{name}", mem, self.code.alloc(), cost.format("load"), t, at)

    def memory_op(self, t: ty.Type) -> tuple[str, str]:
        if t.words == 4:
            return "64", "{}64"
        signed = isinstance(t, ty.IntType) and t.signed
        return f"{'I' if signed else 'U'}{16 * t.words}", f"{{}}{16 * t.words}"

    def access_memory(self, op: str, mem: Mem, reg: int, cost: str, t: ty.Type, at: int) -> Run:
        """Emit one load or store; it is indexed if the scale equals the element size."""
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
                code.direct.add(len(code.rows) - 1)
            code.emit(Op[op.format("")], reg, base, 0, cost, at)
            return Run(t, reg, at)
        code.emit(Op[op.format("")], reg, mem.base, mem.offset, cost, at)
        if mem.root is not None:
            code.fix("address", mem.root)
        return Run(t, reg, at)

    def base_register(self, mem: Mem, at: int) -> int:
        """Return a register with the address of a place."""
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
        """Return the same place without an index."""
        if mem.index is None:
            return mem
        index = mem.index
        if mem.scale != 1:
            index = self.emit(Op.MULI_I16, index, mem.scale, "alu16", ty.U16, at).reg
        if mem.base is not None:
            index = self.emit(Op.ADD_U16, index, mem.base, "alu16", ty.U16, at).reg
        return Mem(mem.type, at, mem.root, index, mem.offset, mutable=mem.mutable, bit=mem.bit)

    def has_array(self, t: ty.StructType) -> bool:
        return any(
            isinstance(f, ty.ArrayType)
            or (isinstance(f, ty.StructType) and (f.kind == "union" or self.has_array(f)))
            for _, f in t.fields
        )

    def store(self, place: Operand, value: Operand, at: int) -> None:
        if type(place) is Ref and not self.in_memory(place.root):
            if isinstance(place.root, Global) or not place.root.mutable:
                raise CslError(at, f"'{place.root.name}' is a constant and cannot be assigned")
            assign(self, place, value, at)
            return
        if type(place) is Local:
            if not place.mutable:
                raise CslError(at, f"'{place.name}' is a constant and cannot be assigned")
            value = self.coerce(value, place.type, at)
            self.move(value, place.reg, self.code.next if type(value) is Value else self.locals_end, at)
            return
        if not isinstance(place, (Ref, Mem)):
            raise CslError(at, "this cannot be assigned: it is a constant or a parameter, and no variable")
        if type(place) is Ref and isinstance(place.type, ty.DsdType):
            self.unit.assigned.add(id(place.root))
        mem = self.address(place, at)
        if not mem.mutable:
            raise CslError(at, "this cannot be assigned: it is read through a pointer to const")
        self.store_memory(mem, self.coerce(value, mem.type, at), at)

    def store_memory(self, mem: Mem, value: Operand, at: int) -> None:
        t = mem.type
        if mem.bit >= 0 or (isinstance(t, ty.StructType) and t.is_loose):
            store_packed(self, mem, value, at)
        elif isinstance(t, ty.StructType):
            self.store_struct(mem, t, value, at)
        elif isinstance(t, ty.ArrayType):
            self.store_array(mem, t, value, at)
        elif t is not ty.VOID:
            source = self.register(value, at)
            op, cost = {1: ("ST{}_16", "store16"), 2: ("ST{}_32", "store32"), 4: ("ST{}_64", "store64")}[
                t.words
            ]
            if isinstance(t, ty.DsdType) and self.code.makes_dsd(source):
                cost = "free"  # a change writes its field in memory
            self.access_memory(op, mem, source, cost, t, at)

    def store_struct(self, mem: Mem, t: ty.StructType, value: Operand, at: int) -> None:
        value = self.load(value, at)
        if type(value) is Mem:
            copy_words(self, mem, value, t.words, at)
            return
        mem = self.simple(mem, at)
        for i, (_, inner) in enumerate(t.fields):
            item = value.items[i] if type(value) is Agg else Value(inner, value.data[i])
            if t.kind == "union" and type(item) is Value and is_zero(item.data) and i:
                continue
            self.store_memory(self.part(mem, t, i, at), self.coerce(item, inner, at), at)

    def store_array(self, mem: Mem, t: ty.ArrayType, value: Operand, at: int) -> None:
        if type(value) is Value and len(value.data) <= 8:
            value = Agg(t, [Value(t.element, x) for x in value.data], at)
        if type(value) is Agg:
            mem = self.simple(mem, at)
            for i, item in enumerate(value.items):
                place = Mem(t.element, at, mem.root, mem.base, mem.offset + i * t.element.words)
                self.store_memory(place, self.coerce(item, t.element, at), at)
            return
        if type(value) is Value:
            if all(not x for x in value.data if not isinstance(x, list)) and not isinstance(
                t.element, (ty.StructType, ty.ArrayType)
            ):
                clear_words(self, mem, t.words, at)
                return
            value = self.address(self.constant_array(value, at), at)
        copy_words(self, mem, self.address(value, at), t.words, at)

    def constant_array(self, value: Value, at: int) -> Ref:
        """Return memory with a constant array; equal constants share it."""
        key = (value.type, repr(value.data))
        cells = self.unit.constants
        if key not in cells:
            cells[key] = Cell("constant", value.type, value.data, False, at)
        self.use(cells[key])
        return Ref(cells[key], (), value.type)

    # ---- members and elements
    def field(self, base: Operand, place: int, at: int) -> Operand:
        t = base.type
        assert isinstance(t, ty.StructType)
        if type(base) is Agg:
            return base.items[place]
        if type(base) is Mem:
            return self.part(base, t, place, at)
        if type(base) is Run:
            raise CslError(at, f"a value of type '{t}' has no member here")
        return self.evaluator.field(base, place, at)

    def part(self, mem: Mem, t: ty.StructType, place: int, at: int) -> Mem:
        """Return the place of a field of a structure in memory."""
        mem = self.simple(mem, at)
        start = t.start(place) + max(mem.bit, 0)
        bit = start % 16 if mem.bit >= 0 or t.shifts[place] >= 0 else -1
        offset = mem.offset + start // 16
        return Mem(t.fields[place][1], at, mem.root, mem.base, offset, mutable=mem.mutable, bit=bit)

    def index(self, base: Operand, indices: Sequence[Operand], at: int) -> Operand:
        known = all(type(i) is Value for i in indices)
        if known and isinstance(base, (Ref, Value)) and not isinstance(base.type, ty.PointerType):
            return self.known_element(base, indices, at)
        t = base.type
        for i in indices:
            if not ty.is_int(i.type) and not isinstance(i.type, ty.EnumType):
                raise CslError(at, f"an index must be an integer, found '{i.type}'")
        if isinstance(t, ty.PointerType):
            return self.pointer_index(self.load(base, at), indices, at)
        if isinstance(t, ty.ArrayType):
            if type(base) is Value:
                base = self.constant_array(base, at)
            if type(base) is Agg:
                if known:
                    return base.items[self.flat_index(t, indices, at)]
                base = self.spill(base, at)
            return self.element(self.address(base, at), t, indices, at)
        if not known:
            raise CslError(at, f"an element of '{t}' must be chosen at compile time")
        return self.known_element(base, indices, at)

    def spill(self, value: Operand, at: int) -> Mem:
        """Store an array or a structure of operands in a temporary, and return its place."""
        cell = self.frame_cell("temporary", value.type, at)
        mem = self.address(Ref(cell, (), value.type), at)
        self.store_memory(mem, value, at)
        return mem

    def frame_cell(self, name: str, t: ty.Type, at: int) -> FrameCell:
        cell = FrameCell(name, t, None, True, at)
        cell.frame = self.code
        self.code.frame.append(cell)
        return cell

    def element(self, mem: Mem, t: ty.ArrayType, indices: Sequence[Operand], at: int) -> Mem:
        words = t.element.words
        flat, offset = self.flat(t, indices, at)
        offset = mem.offset + offset * words
        if flat is None:
            mem = self.simple(mem, at)
            return Mem(t.element, at, mem.root, mem.base, offset, mutable=mem.mutable)
        mem = self.simple(mem, at)
        return Mem(t.element, at, mem.root, mem.base, offset, flat, words, mutable=mem.mutable)

    def flat(self, t: ty.ArrayType, indices: Sequence[Operand], at: int) -> tuple[int | None, int]:
        """Return a row-major index as the register of its run-time part (None without one) and its known
        part.

        Raises
        ------
        CslError
            If a known index is out of range, or the number of indices is wrong.
        """
        if len(indices) != len(t.shape):
            raise CslError(
                at,
                f"an array of type '{t}' has {len(t.shape)} dimensions but {len(indices)} indices are given",
            )
        reg: int | None = None
        known = 0
        for n, i in zip(t.shape, indices, strict=True):
            if reg is not None and n != 1:
                reg = self.emit(Op.MULI_I16, reg, n, "mul16", ty.I16, at).reg
            known *= n
            if type(i) is Value:
                if not 0 <= i.data < n:
                    raise CslError(at, f"index {i.data} is outside the array '{t}' (0 to {n - 1})")
                known += i.data
            else:
                other = self.register(i, at)
                reg = other if reg is None else self.emit(Op.ADD_I16, reg, other, "alu16", ty.I16, at).reg
        return reg, known

    def pointer_index(self, pointer: Operand, indices: Sequence[Operand], at: int) -> Operand:
        t = pointer.type
        assert isinstance(t, ty.PointerType)
        if not t.many:
            return self.index(self.deref(pointer, at), indices, at)
        if len(indices) != 1:
            raise CslError(at, f"a pointer of type '{t}' takes one index but {len(indices)} are given")
        words = t.target.words
        mutable = not t.const
        i = indices[0]
        if type(pointer) is Value:
            ref: Ref = pointer.data
            array = ref.type if isinstance(ref.type, ty.ArrayType) and ref.type.element is t.target else None
            if array is not None and type(i) is Value and not 0 <= i.data < array.count:
                raise CslError(
                    at,
                    f"index {i.data} is outside the array '{array}' that the pointer points to (0 to {array.count - 1})",
                )
            self.use(ref.root)
            mem = Mem(t.target, at, ref.root, None, ref.words(), mutable=mutable)
        else:
            mem = Mem(t.target, at, None, self.register(pointer, at), 0, mutable=mutable)
        if type(i) is Value:
            mem.offset += i.data * words
            return mem
        return Mem(t.target, at, mem.root, mem.base, mem.offset, self.register(i, at), words, mutable=mutable)

    def deref(self, pointer: Operand, at: int) -> Operand:
        t = pointer.type
        if not isinstance(t, ty.PointerType):
            raise CslError(at, f"a value of type '{t}' is not a pointer")
        if t.many:
            raise CslError(at, f"a pointer of type '{t}' is read with an index, as in p[0]")
        if type(pointer) is Value:
            ref: Ref = pointer.data
            if ref.type is t.target:
                return ref
            self.use(ref.root)
            return Mem(t.target, at, ref.root, None, ref.words(), mutable=not t.const)
        return Mem(t.target, at, None, self.register(pointer, at), 0, mutable=not t.const)

    def address_of(self, node: tree.Node, scope: Scope, at: int) -> Operand:
        place = self.access(node, scope)
        if isinstance(place, (Mem, Ref)) and (place.bit if type(place) is Mem else place.bit()) >= 0:
            raise CslError(
                at,
                f"this field of type '{place.type}' shares a word of its packed structure and has no address; copy it into a variable",
            )
        if type(place) is Mem:
            t = ty.pointer(place.type, not place.mutable)
            return Run(t, self.base_register(place, at), at)
        if isinstance(place, (Agg, Run)):
            if isinstance(node, tree.Name):
                raise CslError(at, f"'&' needs a variable; declare '{node.id}' with var")
            place = self.spill(place, at)
            return Run(ty.pointer(place.type), self.base_register(place, at), at)
        if type(place) is Local:
            raise CslError(at, "'&' needs a variable, an element or a field")
        if type(place) is Value:
            place = self.constant_place(node, place, scope)
        if type(place) is not Ref:
            raise CslError(at, "'&' needs a variable, an element or a field")
        if judges(self, scope) and type(place.root) is Cell and place.root.mutable:
            raise CslError(at, f"'{place.root.name}' is a comptime variable, which has no address")
        self.unit.assigned.add(id(place.root))
        return Value(ty.pointer(place.type, not place.root.mutable), place)

    def constant_place(self, node: tree.Node, value: Value, scope: Scope) -> Operand:
        if isinstance(value.type, ty.ArrayType):
            return self.constant_array(value, node.at)
        return self.evaluator.constant_place(node, value, scope)
