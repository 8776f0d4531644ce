"""Lowering of expressions whose operands are known only at run time: arithmetic, comparisons and conversions.

One file, because every expression uses the conversions at its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.builtins import check_bitcast
from wse_sim.csl.code import Agg, Mem, Run, RunRange
from wse_sim.csl.coerce import can_widen, common_type, misfit, pointer_fits
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.evaluate import Scope
from wse_sim.csl.lower_places import INT32, PlaceLowerer, width
from wse_sim.csl.strict import check_enums, check_sides
from wse_sim.csl.values import FALSE, TRUE, Dsd, Operand, Value, register_form
from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm.opcodes import Op
from wse_sim.fabric.vm.semantics import FUNCTIONS, NAMES

ARITH = {"+": "ADD", "-": "SUB", "*": "MUL", "/": "DIV", "%": "MOD", "<<": "SHL"}
BITS = {"&": Op.AND, "|": Op.OR, "^": Op.XOR}
FLOATS = {"+": "ADD", "-": "SUB", "*": "MUL", "/": "DIV"}
SWAPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}


def suffix(t: ty.IntType) -> str | None:
    """Return the suffix of the opcodes that wrap at exactly this type, or None."""
    return f"{'I' if t.signed else 'U'}{t.bits}" if t.bits in (16, 32) else None


def moves_evenly(op: str, left: Operand, right: Operand) -> bool:
    """Return whether a result changes by the same amount per loop iteration: a sum of such values, or a
    product of one with a known number."""
    known = [type(side) is Value for side in (left, right)]
    linear = [type(side) is Run and side.linear for side in (left, right)]
    return (
        any(linear) and all(k or x for k, x in zip(known, linear, strict=True)) and (op != "*" or any(known))
    )


class ExpressionLowerer(PlaceLowerer):
    """Lowerer of expressions, which emits rows into `code`."""

    # ---- arithmetic
    def unary(self, op: str, value: Operand, at: int) -> Operand:
        if type(value) is Value:
            return self.evaluator.unary(op, value, at)
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

    def binary(self, op: str, left: Operand, right: Operand, at: int) -> Operand:
        if type(left) is Value and type(right) is Value:
            if isinstance(left.type, ty.PointerType) or isinstance(right.type, ty.PointerType):
                pass
            else:
                return self.evaluator.binary(op, left, right, at)
        if op in NEGATED:
            return self.comparison(op, left, right, at)
        if op in ("<<", ">>"):
            return self.shift(op, left, right, at)
        t = common_type(left, right, op, at)
        left, right = self.coerce(left, t, at), self.coerce(right, t, at)
        if isinstance(t, ty.IntType):
            run = self.integer(op, t, left, right, at)
            run.linear = op in ("+", "-", "*") and moves_evenly(op, left, right)
            return run
        if isinstance(t, ty.FloatType) and op in FLOATS:
            return self.floating(op, t, left, right, at)
        if t is ty.BOOL and op in BITS:
            return self.emit(BITS[op], self.register(left, at), self.register(right, at), "alu16", t, at)
        raise CslError(at, f"'{op}' between '{left.type}' and '{right.type}' is not defined")

    def floating(self, op: str, t: ty.FloatType, left: Operand, right: Operand, at: int) -> Run:
        self.check_half(t, at)
        row = Op[("F" if t is ty.F32 else "H") + FLOATS[op]]
        kind = "div" if op == "/" else "mul" if op == "*" else "add"
        return self.emit(row, self.register(left, at), self.register(right, at), f"f{t.bits}_{kind}", t, at)

    def integer(self, op: str, t: ty.IntType, left: Operand, right: Operand, at: int) -> Run:
        if type(left) is Value and op in ("+", "*", "&", "|", "^"):
            left, right = right, left
        cost = {"*": "mul", "/": "div", "%": "div"}.get(op, "alu")
        cost += width(t) if cost == "div" else self.price_width(t)
        if op in ("/", "%") and type(right) is Value and right.data:
            # A compiler divides by a known number by shifts or by a multiplication with the high half of the product.
            n = abs(int(right.data))
            cost = ("alu" if n & (n - 1) == 0 else "mul") + {"16": "32", "32": "64", "64": "64"}[width(t)]
        elif op == "*" and moves_evenly(op, left, right):
            cost = "alu" + self.price_width(t)  # a compiler adds the factor in every round of the loop
        if type(right) is Value:
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

    def immediate(self, op: str, t: ty.IntType, left: Operand, n: int, cost: str, at: int) -> Run | None:
        """Emit the form of an operation with the number in its row, or return None if there is none."""
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
                    Op[f"SHLI_{end}"],
                    self.register(left, at),
                    n.bit_length() - 1,
                    "alu" + self.price_width(t),
                    t,
                    at,
                )
            return self.emit(Op[f"MULI_{end}"], self.register(left, at), n, cost, t, at)
        return None

    def wrapped(self, run: Run, t: ty.IntType, at: int) -> Run:
        """Wrap a 64-bit result at the width of its type."""
        if t.bits < 64:
            self.code.emit(Op.WRAPS if t.signed else Op.WRAPU, run.reg, run.reg, t.bits, "free", at)
        return run

    def shift(self, op: str, left: Operand, right: Operand, at: int) -> Run:
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
        if type(right) is Value:
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
    def comparable(self, op: str, left: Operand, right: Operand, at: int) -> tuple[ty.Type, Operand, Operand]:
        a, b = left.type, right.type
        if ty.is_number(a) and ty.is_number(b):
            t: ty.Type = common_type(left, right, op, at)
            return t, self.coerce(left, t, at), self.coerce(right, t, at)
        if a is not b and not (isinstance(a, ty.PointerType) and isinstance(b, ty.PointerType)):
            raise CslError(at, f"'{op}' between '{a}' and '{b}'; both sides must have the same type")
        if a.words not in (1, 2, 4) or isinstance(a, (ty.StructType, ty.ArrayType)):
            raise CslError(at, f"'{op}' between values of type '{a}' is not defined")
        return a, left, right

    def comparison(self, op: str, left: Operand, right: Operand, at: int) -> Run:
        t, left, right = self.comparable(op, left, right, at)
        if op in (">", ">="):
            op, left, right = SWAPPED[op], right, left
        a, b = self.register(left, at), self.register(right, at)
        if isinstance(t, ty.FloatType):
            self.check_half(t, at)
            lead = "F" if t is ty.F32 else "H"
            name = {"==": "EQ", "!=": "EQ", "<": "LT", "<=": "LE"}[op]
            run = self.emit(Op[lead + name], a, b, f"f{t.bits}_add", ty.BOOL, at)
            return run if op != "!=" else self.emit(Op.XORI, run.reg, 1, "alu16", ty.BOOL, at)
        name = {"==": "EQ", "!=": "NE", "<": "LT", "<=": "LE"}[op]
        if isinstance(t, ty.IntType) and t.bits == 64 and not t.signed and name in ("LT", "LE"):
            name += "U64"
        return self.emit(Op[name], a, b, f"alu{width(t)}", ty.BOOL, at)

    def branch(self, node: tree.Node, scope: Scope, target: int, when: bool) -> bool | None:
        """Emit a jump to `target` if the condition equals `when`.

        Return the condition without such a jump if it is known at compile time, else None.
        """
        code = self.code
        mark = code.next
        if isinstance(node, tree.Unary) and node.op == "!":
            known = self.branch(node.operand, scope, target, not when)
            return None if known is None else not known
        if isinstance(node, tree.Binary) and node.op in ("and", "or"):
            return self.branch_logical(node, scope, target, when)
        if isinstance(node, tree.Binary) and node.op in NEGATED:
            left, right = self.sides(node, scope)
            if self.options.strict:
                check_sides(self, node.op, left, right, node, scope)
            if type(left) is Value and type(right) is Value and not isinstance(left.type, ty.PointerType):
                return self.binary(node.op, left, right, node.at).data  # type: ignore[no-any-return]
            self.branch_compare(node.op if when else NEGATED[node.op], node.op, left, right, target, node.at)
            code.release(mark)
            return None
        value = self.eval(node, scope)
        if value.type is not ty.BOOL:
            raise CslError(
                node.at, f"a condition must be a bool, found '{value.type}'; compare it, as in x != 0"
            )
        if type(value) is Value:
            return value.data  # type: ignore[no-any-return]
        code.jump(Op.JNZ if when else Op.JZ, self.register(value, node.at), 0, target, node.at)
        code.release(mark)
        return None

    def branch_logical(self, node: tree.Binary, scope: Scope, target: int, when: bool) -> bool | None:
        """Emit a short-circuit jump: `a and b` is false as soon as `a` is, and `a or b` true as soon as `a`
        is."""
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

    def branch_compare(
        self, op: str, written: str, left: Operand, right: Operand, target: int, at: int
    ) -> None:
        """Emit a jump if `left op right`; floats are compared by the operator as written, because
        not-a-number is unordered."""
        code = self.code
        t, left, right = self.comparable(written, left, right, at)
        if isinstance(t, ty.FloatType) or (isinstance(t, ty.IntType) and t.bits == 64 and not t.signed):
            run = self.comparison(written, left, right, at)
            code.jump(Op.JNZ if op == written else Op.JZ, run.reg, 0, target, at)
            return
        if type(left) is Value and not isinstance(left.type, ty.PointerType):
            op, left, right = SWAPPED[op], right, left
        if type(right) is Value and not isinstance(right.type, ty.PointerType):
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

    def logical(self, node: tree.Binary, scope: Scope) -> Operand:
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
    def check_half(self, t: ty.Type, at: int) -> None:
        """Check that a 16-bit float type is the program's: a program has only one of them at run time.

        Raises
        ------
        CslError
            If it is another one.
        """
        if t in ty.HALVES and t.name != self.options.fp16:
            raise CslError(
                at,
                f"'{t}' at run time in a program of '{self.options.fp16}': it needs --fp16-format={t}, and all 16-bit floats of run time "
                "are of that format then",
            )

    def coerce_scalar(self, value: Operand, t: ty.Type, at: int) -> Operand:
        if type(value) is Value:
            return self.evaluator.coerce_scalar(value, t, at)
        s = value.type
        if can_widen(s, t):
            if s in ty.HALVES and t is ty.F32:
                self.check_half(s, at)
                return self.emit(Op.H2F, self.register(value, at), 0, "convert", t, at)
            return self.retype(value, t)
        if isinstance(s, ty.PointerType) and isinstance(t, ty.PointerType) and pointer_fits(s, t):
            return self.retype(value, t)
        if (
            isinstance(s, ty.ArrayType)
            and isinstance(t, ty.ArrayType)
            and s.count == t.count
            and s.element is t.element
            and type(value) is Mem
        ):
            return Mem(t, at, value.root, value.base, value.offset, value.index, value.scale)
        raise misfit(value, t, at)

    def aggregate(self, t: ty.Type, items: Sequence[Operand], at: int) -> Operand:
        if all(type(i) is Value for i in items):
            return self.evaluator.aggregate(t, items, at)
        return Agg(t, items, at)

    def retype(self, value: Operand, t: ty.Type) -> Operand:
        if type(value) is Value:
            return self.evaluator.retype(value, t)
        return Run(t, self.register(value, value.at), value.at)

    def convert(self, value: Operand, t: ty.Type, at: int) -> Operand:
        if type(value) is Value:
            return (
                self.coerce(value, t, at)
                if isinstance(value.data, dict)
                else self.evaluator.convert(value, t, at)
            )
        s = value.type
        if s is t:
            return value
        if isinstance(s, ty.EnumType):
            check_enums(self, s, t, at)
            s = s.base
        if isinstance(t, ty.EnumType) and ty.is_int(s):
            return self.retype(self.convert(Run(s, self.register(value, at), at), t.base, at), t)
        number = ty.is_number(s) or s is ty.BOOL
        if not number or not (ty.is_number(t) or t is ty.BOOL):
            return self.coerce(value, t, at)
        self.check_half(s, at)
        self.check_half(t, at)
        reg = self.register(value, at)
        if t is ty.BOOL:
            return self.comparison("!=", Run(s, reg, at), Value(s, 0.0 if ty.is_float(s) else 0), at)
        if isinstance(s, ty.FloatType):
            if isinstance(t, ty.FloatType):
                return self.emit(Op.H2F if t is ty.F32 else Op.F2H, reg, 0, "convert", t, at)
            if s in ty.HALVES:
                reg = self.emit(Op.H2F, reg, 0, "convert", ty.F32, at).reg
            run = self.emit(Op.F2U if t is ty.U64 else Op.F2I, reg, 0, "convert", t, at)
            return self.narrow(run, t, at, "free")
        if isinstance(t, ty.FloatType):
            run = self.emit(Op.U2F if s is ty.U64 else Op.I2F, reg, 0, "convert", ty.F32, at)
            return run if t is ty.F32 else self.emit(Op.F2H, run.reg, 0, "convert", t, at)
        if t in (ty.COMPTIME_INT, ty.COMPTIME_FLOAT):
            raise CslError(at, f"a value that is known only at run time cannot become a {t}")
        if s is ty.BOOL or can_widen(s, t):
            return Run(t, reg, at)
        same = isinstance(s, ty.IntType) and isinstance(t, ty.IntType) and s.bits == t.bits
        return self.narrow(Run(s, reg, at), t, at, "free" if same else f"alu{width(t)}")

    def narrow(self, run: Run, t: ty.Type, at: int, cost: str) -> Run:
        """Return the low bits of a register as an integer type."""
        assert isinstance(t, ty.IntType)
        if t.bits == 64:
            return Run(t, run.reg, at)
        if t.bits in (8, 16, 32):
            return self.emit(Op[f"WRAP_{'I' if t.signed else 'U'}{t.bits}"], run.reg, 0, cost, t, at)
        return self.emit(Op.WRAPS if t.signed else Op.WRAPU, run.reg, t.bits, cost, t, at)

    def bitcast(self, value: Operand, t: ty.Type, at: int) -> Operand:
        s = value.type
        known_address = isinstance(t, ty.PointerType) and isinstance(s, ty.IntType)
        if (isinstance(s, ty.PointerType) or known_address) and type(value) is Value:
            value = Run(s, self.register(value, at), at)
        if type(value) is Value:
            return self.evaluator.bitcast(value, t, at)
        check_bitcast(s, t, at)
        if isinstance(value, (Agg, Mem)):
            place = value if type(value) is Mem else self.spill(value, at)
            found = self.load(Mem(t, at, place.root, place.base, place.offset, place.index, place.scale), at)
            if isinstance(t, ty.IntType) and t.bits % 16:  # the remaining bits of the last word are unused
                return self.narrow(Run(t, self.register(found, at), at), t, at, "free")
            return found
        if isinstance(t, (ty.StructType, ty.ArrayType)):
            cell = self.frame_cell("bitcast", t, at)
            self.use(cell)
            self.store_memory(Mem(s, at, cell), value, at)
            return self.load(Mem(t, at, cell), at)
        if isinstance(t, ty.IntType) and not (isinstance(s, ty.IntType) and s is t):
            signed = isinstance(s, ty.IntType) and s.signed
            if t.signed or signed or (isinstance(s, ty.IntType) and s.bits != t.bits):
                return self.narrow(Run(s, self.register(value, at), at), t, at, "free")
        elif isinstance(s, ty.IntType) and s.signed:
            other = ty.int_type(False, 16 * t.words)
            return self.retype(self.narrow(Run(s, self.register(value, at), at), other, at, "free"), t)
        return self.retype(value, t)

    def ptrcast(self, value: Operand, t: ty.PointerType) -> Operand:
        if type(value) is Value:
            return self.evaluator.ptrcast(value, t)
        return self.retype(value, t)

    # ---- ranges
    def make_range(self, t: ty.Type, values: Sequence[Operand], node: tree.Builtin) -> Operand:
        if all(type(v) is Value for v in values):
            return self.evaluator.make_range(t, values, node)
        parts = [self.coerce(v, t, a.at) for v, a in zip(values, node.args[1:], strict=True)]
        start, stop, step = (Value(t, 0), parts[0], Value(t, 1)) if len(parts) == 1 else parts
        if type(step) is Value and step.data == 0:
            raise CslError(node.at, "the step of a range must not be 0")
        return RunRange(t, start, stop, step, node.at)

    # ---- descriptors
    def run_dsd(self, frame: Dsd, parts: Mapping[str, Operand], at: int) -> Operand:
        """Return a DSD some of whose fields are known only at run time."""
        t = ty.NAMED[frame.kind]
        known = {n: p.data for n, p in parts.items() if type(p) is Value}
        element = frame.element.words if frame.element is not None else 1
        base = parts.get("base")
        if base is None:
            if any(n in parts and n not in known for n in ("color", "queue")):
                return self.fabric_bits(t, frame, parts, at)
            start = Dsd(
                frame.kind,
                length=known.get("extent", 0),
                color=known.get("color"),
                queue=known.get("queue"),
                fields=frame.fields,
            )
        else:
            ref = known.get("base")
            offset = known.get("offset", 0) * element if ref is not None else 0
            start = Dsd(
                frame.kind,
                ref,
                offset,
                known.get("extent", 0),
                known.get("stride", 1),
                frame.shape,
                fields=frame.fields,
                element=frame.element,
            )
        dsd: Operand = Value(t, start)
        if base is not None and "base" not in known:
            dsd = self.change_dsd("DSD_BASE", dsd, base, at)
        if "offset" in parts and ("offset" not in known or "base" not in known):
            dsd = self.change_dsd("DSD_ADD", dsd, self.scaled(parts["offset"], element, at), at)
        if "extent" in parts and "extent" not in known:
            dsd = self.change_dsd("DSD_LEN", dsd, parts["extent"], at)
        if "stride" in parts and "stride" not in known:
            dsd = self.change_dsd("DSD_STRIDE", dsd, parts["stride"], at)
        return dsd

    def fabric_bits(self, t: ty.Type, frame: Dsd, parts: Mapping[str, Operand], at: int) -> Run:
        """Return a fabric DSD whose color or queue is known only at run time; its bits are combined by
        instructions."""
        known = {n: p.data for n, p in parts.items() if type(p) is Value}
        start = Dsd(
            frame.kind,
            length=known.get("extent", 0),
            color=known.get("color", 0),
            queue=known.get("queue", 0),
            fields=frame.fields,
        )
        run = Run(t, self.register(Value(t, start), at), at)
        for name, (low, _) in (("color", O.DSD_COLOR), ("queue", O.DSD_QUEUE)):
            if name in parts and name not in known:
                bits = self.emit(Op.MULI_U32, self.register(parts[name], at), 1 << low, "free", ty.U32, at)
                run = self.emit(Op.OR, run.reg, bits.reg, "dsd_change", t, at)
        if "extent" in parts and "extent" not in known:
            return self.change_dsd("DSD_LEN", run, parts["extent"], at)
        return run

    def scaled(self, value: Operand, factor: int, at: int) -> Operand:
        if type(value) is Value:
            return Value(ty.I16, ty.I16.wrap(value.data * factor))
        if factor == 1:
            return value
        return self.emit(Op.MULI_I16, self.register(value, at), factor, "alu16", ty.I16, at)

    def change_dsd(self, op: str, dsd: Operand, amount: Operand, at: int) -> Run:
        if ty.is_int(amount.type) and amount.type is ty.COMPTIME_INT:
            amount = self.coerce(amount, ty.I16, at)
        cost = "dsd_add" if op == "DSD_ADD" else "dsd_change"
        return self.emit(Op[op], self.register(dsd, at), self.register(amount, at), cost, dsd.type, at)

    # ---- functions of floats
    def math(self, name: str, args: Sequence[Operand], at: int) -> Operand:
        if all(type(a) is Value for a in args):
            return self.evaluator.math(name, args, at)
        t = args[0].type
        regs = [self.register(a, at) for a in args]
        if t in ty.HALVES:
            self.check_half(t, at)
            regs = [self.emit(Op.H2F, r, 0, "convert", ty.F32, at).reg for r in regs]
        if name == "pow":
            run = self.emit(Op.POW, regs[0], regs[1], "math_pow", ty.F32, at)
        else:
            run = self.emit(Op.MATH, regs[0], NAMES.index(name), FUNCTIONS[name].cost, ty.F32, at)
        return run if t is ty.F32 else self.emit(Op.F2H, run.reg, 0, "convert", t, at)

    def absolute(self, value: Operand, at: int) -> Operand:
        if type(value) is Value:
            return self.evaluator.absolute(value, at)
        t = value.type
        assert isinstance(t, ty.FloatType)
        return self.emit(
            Op.FABS if t is ty.F32 else Op.HABS, self.register(value, at), 0, f"f{t.bits}_move", t, at
        )
