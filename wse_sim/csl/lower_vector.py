"""Lowering of vector operations, DSDs and DSRs.

Operands of a vector operation are in consecutive registers: the destination, the sources, and then the
operands of its options.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.builtins_dsd import PRIORITIES
from wse_sim.csl.code import Run
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.evaluate import Scope
from wse_sim.csl.lower_expr import ExpressionLowerer
from wse_sim.csl.values import VOID_VALUE, Dsd, Dsr, Function, Operand, Value
from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm.opcodes import Form, Op

DSR_FILES = {"dsr_dest": O.DSR_DEST, "dsr_src0": O.DSR_SRC0, "dsr_src1": O.DSR_SRC1, "xdsr": 3}
ON_CONTROL = {"terminate": 1, "activate": 2, "unblock": 3}
H, S, W16, W32 = ty.F16, ty.F32, "16", "32"
# Operation -> types of destination and sources: a float type, or the width of a raw number.
Kind = ty.FloatType | str
KINDS: dict[str, Kind] = {"s": S, "h": H, "w": W16, "d": W32}
VECTOR = {name: tuple(KINDS[k] for k in op.kinds) for name, op in O.VECTOR_OPERATIONS.items()}
OPTIONS = ("async", "activate", "unblock", "on_control", "priority", "index", "ut_id")
LOAD_OPTIONS = (
    "async",
    "activate",
    "unblock",
    "save_address",
    "single_step",
    "ut_id",
    "priority",
    "on_control",
)


# Fields of a vector operation for which 0 is a valid value: -1 is "none".
OPTIONAL_FIELDS = (
    *(O.V_DSR0, O.V_DSR1, O.V_DSR2, O.V_DSR3, O.V_ACTIVATE, O.V_UNBLOCK, O.V_THREAD, O.V_INDEX),
    O.V_CONTROL_TASK,
)


def vector_row(op: str) -> list[int]:
    """Return a row of the table of vector operations without options."""
    row = [0] * O.VECTOR_FIELDS
    row[O.V_OP] = O.VECTOR_OPS.index(op)
    for field in OPTIONAL_FIELDS:
        row[field] = -1
    return row


class VectorLowerer(ExpressionLowerer):
    """Lowerer of vector operations and their descriptors."""

    if TYPE_CHECKING:  # defined by subclasses

        def settle(self, value: Operand, mark: int, at: int) -> int: ...
        def argument(self, value: Operand, mark: int, at: int) -> Operand: ...
        def results(self, t: ty.Type, at: int) -> Operand: ...
        def inlined(self, fn: Function, inner: Scope, result: ty.Type, at: int) -> Operand: ...

    # ---- vector operations
    def x_Builtin(self, node: tree.Builtin, scope: Scope) -> Operand:
        kinds = VECTOR.get(node.name[1:])
        if kinds is not None:
            return self.vector(node, scope, kinds)
        return super().x_Builtin(node, scope)

    def vector(self, node: tree.Builtin, scope: Scope, kinds: tuple[Kind, ...]) -> Operand:
        code, at = self.code, node.at
        args = list(node.args)
        if not len(kinds) <= len(args) <= len(kinds) + 1:
            raise CslError(
                at,
                f"{node.name} takes {len(kinds)} operands and options but {len(args)} arguments are given",
            )
        start = code.next
        row = vector_row(node.name[1:])
        self.reserve(start, len(kinds))
        fifo = fabric = dsr = False
        of_integers = H not in kinds and S not in kinds and not node.name.startswith("@mov")
        operands: list[Operand] = []
        for i, (arg, kind) in enumerate(zip(args, kinds, strict=False)):
            code.next = start + len(kinds)
            form, value = self.vector_operand(arg, scope, kind, i)
            if form == Form.DSD and isinstance(kind, ty.FloatType) and len(kinds) > 2:
                self.look_at_element(value, arg, scope, kind, node.name)
            operands.append(value)
            if form == Form.SCALAR and of_integers:
                self.check_integer(value, node.name, arg.at)
            row[O.V_DEST + i] = form
            if form == Form.DSR:
                row[O.V_DSR0 + i] = DSR_FILES[value.data.file] * 64 + value.data.id
                dsr = True
            else:
                self.move(value, start + i, max(start + len(kinds), self.locals_end), arg.at)
                fifo |= value.type is ty.FIFO
                fabric |= value.type in (ty.FABIN, ty.FABOUT)
        self.check_operands(node.name, operands, [a.at for a in args[: len(kinds)]])
        if (
            all(f in (Form.SCALAR, Form.POINTER) for f in row[O.V_DEST : O.V_DEST + len(kinds)])
            and row[O.V_DEST] == Form.SCALAR
        ):
            raise CslError(at, f"the destination of {node.name} must be a DSD, a DSR or a pointer")
        code.next = start + len(kinds)
        if len(args) > len(kinds):
            self.vector_options(args[-1], scope, row, start)
        if row[O.V_ASYNC] and not fabric and not dsr and not fifo:
            raise CslError(
                args[-1].at, "an asynchronous operation needs a fabin_dsd, a fabout_dsd or a FIFO as operand"
            )
        result = -1
        if fifo and not row[O.V_ASYNC]:
            result = start
        code.emit(Op.VEC, result, start, 0, "vector", at)
        code.fix("vector", tuple(row))
        code.release(start + 1 if result >= 0 else start)
        return Run(ty.BOOL, result, at) if result >= 0 else VOID_VALUE

    def check_integer(self, value: Operand, name: str, at: int) -> None:
        if isinstance(value.type, ty.FloatType):
            raise CslError(
                at, f"{name} computes with integers, found '{value.type}'; use an operation of floats"
            )

    def reserve(self, start: int, n: int) -> None:
        self.code.next = start + n
        self.code.window = max(self.code.window, start + n)

    def vector_operand(self, arg: tree.Node, scope: Scope, kind: Kind, place: int) -> tuple[int, Operand]:
        value = self.eval(arg, scope)
        t = value.type
        if isinstance(t, ty.DsdType) or t is ty.FIFO:
            self.look_at_reach(value, arg, scope)
            return Form.DSD, value
        if isinstance(t, ty.DsrType):
            return Form.DSR, value
        if isinstance(t, ty.PointerType):
            if isinstance(t.target, (ty.DsdType, ty.DsrType)) or t.target is ty.FIFO:
                raise CslError(
                    arg.at, f"an operand of type '{t}' is the address of a descriptor; leave the & out"
                )
            if place and not isinstance(t.target, ty.ArrayType):
                return Form.POINTER, value
            if isinstance(t.target, ty.ArrayType) and t.target.count != 1:
                raise CslError(arg.at, f"an operand of type '{t}' must be a DSD; make one with @get_dsd")
            return Form.POINTER, value
        return Form.SCALAR, self.vector_scalar(value, kind, arg.at)

    def vector_scalar(self, value: Operand, kind: Kind, at: int) -> Operand:
        """Convert a scalar operand to the type of its operand position; raw numbers keep their type.

        Raises
        ------
        CslError
            If it cannot be an operand there.
        """
        t = value.type
        half = ty.NAMED[self.options.fp16]
        if isinstance(kind, ty.FloatType):
            return self.coerce(value, half if kind is H else kind, at)
        words = 1 if kind == W16 else 2
        if t is ty.COMPTIME_INT:
            signed = value.data < 0
            return self.coerce(value, ty.int_type(signed, 16 * words), at)
        if t is ty.COMPTIME_FLOAT:
            return self.coerce(value, half if words == 1 else ty.F32, at)
        if not t.runtime or t.words != words or isinstance(t, (ty.StructType, ty.ArrayType)):
            if isinstance(t, (ty.IntType, ty.FloatType)) and t.words < words:
                return self.coerce(
                    value, ty.F32 if isinstance(t, ty.FloatType) else ty.int_type(t.signed, 32), at
                )
            raise CslError(at, f"this operand must be a DSD, a DSR or a number of {kind} bits, found '{t}'")
        return value

    def vector_options(self, arg: tree.Node, scope: Scope, row: list[int], start: int) -> None:
        given = self.eval(arg, scope)
        if given.type is not ty.COMPTIME_STRUCT:
            raise CslError(
                arg.at, f"the options are a structure such as .{{ .async = true }}, found '{given.type}'"
            )
        if self.judges(scope) and {"activate", "unblock"} <= set(given.data):
            raise CslError(arg.at, "at most one of activate and unblock may be specified")
        for name, value in given.data.items():
            if name not in OPTIONS:
                raise CslError(arg.at, f"there is no option '{name}'; the options are {', '.join(OPTIONS)}")
            if name == "async":
                row[O.V_ASYNC] = int(self.truth(value, arg.at))
            elif name == "activate":
                row[O.V_ACTIVATE] = self.option_id(value, start, arg.at)
            elif name == "unblock":
                row[O.V_UNBLOCK] = self.option_id(value, start, arg.at)
            elif name == "on_control":
                self.on_control(value, row, start, arg.at)
            elif name == "priority":
                row[O.V_PRIORITY] = self.choice(value, PRIORITIES, "priority", arg.at)
            elif name == "ut_id":
                row[O.V_THREAD] = self.option_id(value, start, arg.at)
            else:
                row[O.V_INDEX] = self.extra(
                    self.coerce(
                        value, ty.U16 if not getattr(value.type, "signed", False) else ty.I16, arg.at
                    ),
                    start,
                    arg.at,
                )

    def truth(self, value: Operand, at: int) -> bool:
        if value.type is not ty.BOOL or type(value) is not Value:
            raise CslError(at, "this option is true or false, known at compile time")
        return bool(value.data)

    def extra(self, value: Operand, start: int, at: int) -> int:
        """Move an operand to a register after the others; return its offset from `start`."""
        reg = self.code.alloc()
        self.move(value, reg, reg, at)
        self.code.release(reg + 1)
        return reg - start  # type: ignore[no-any-return]

    def option_id(self, value: Operand, start: int, at: int) -> int:
        """Return the number of a task or a handle, or a reference to the register that contains it."""
        if isinstance(value.type, ty.FnType):
            value = self.task_number(value, at)
        if not isinstance(value.type, (ty.HandleType, ty.IntType)):
            raise CslError(at, f"expected a task or an id, found '{value.type}'")
        if type(value) is Value:
            return int(value.data)
        return O.USE_REGISTER + self.extra(value, start, at)

    def on_control(self, value: Operand, row: list[int], start: int, at: int) -> None:
        fields = value.data if isinstance(value.data, dict) else {}
        for name, inner in fields.items():
            if name not in ON_CONTROL:
                raise CslError(
                    at,
                    "on_control takes .{ .terminate = true }, .{ .activate = task } or .{ .unblock = task }",
                )
            if name == "terminate":
                row[O.V_ON_CONTROL] = int(self.truth(inner, at))
            else:
                row[O.V_ON_CONTROL] = ON_CONTROL[name]
                row[O.V_CONTROL_TASK] = self.option_id(inner, start, at)

    # ---- DSDs and DSRs
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

    def b_load_to_dsr(self, node: tree.Builtin, scope: Scope) -> Operand:
        self.count(node, 2, 3)
        dsr, dsd = self.known(node.args[0], scope), self.eval(node.args[1], scope)
        if not isinstance(dsr.data, Dsr):
            raise CslError(
                node.args[0].at, f"@load_to_dsr takes a DSR first, found '{dsr.type}'; make one with @get_dsr"
            )
        if not isinstance(dsd.type, ty.DsdType) and dsd.type is not ty.FIFO:
            raise CslError(node.args[1].at, f"@load_to_dsr takes a DSD second, found '{dsd.type}'")
        self.look_at_reach(dsd, node.args[1], scope)
        if self.judges(scope):
            self.check_load(dsr.data.file, dsd.type, node.args[1].at)
        row = [0] * O.LOAD_FIELDS
        row[O.L_FILE], row[O.L_ID] = DSR_FILES[dsr.data.file], dsr.data.id
        row[O.L_ACTIVATE] = row[O.L_UNBLOCK] = row[O.L_THREAD] = row[O.L_CONTROL_TASK] = -1
        if len(node.args) > 2:
            self.load_options(node.args[2], scope, row)
        cost = "dsr_load_4d" if dsd.type is ty.MEM4D else "dsr_load"
        self.code.emit(Op.DSR_LOAD, 0, self.register(dsd, node.at), 0, cost, node.at)
        self.code.fix("dsr", tuple(row))
        return VOID_VALUE

    def load_options(self, arg: tree.Node, scope: Scope, row: list[int]) -> None:
        given = self.eval(arg, scope).data
        flags = {"async": O.L_ASYNC, "save_address": O.L_SAVE_ADDRESS, "single_step": O.L_SINGLE_STEP}
        ids = {"activate": O.L_ACTIVATE, "unblock": O.L_UNBLOCK, "ut_id": O.L_THREAD}
        for name, value in given.items():
            if name in flags:
                row[flags[name]] = int(self.truth(value, arg.at))
            elif name in ids:
                if type(value) is not Value:
                    raise CslError(
                        arg.at, f"the option '{name}' of @load_to_dsr must be known at compile time"
                    )
                row[ids[name]] = self.option_id(value, 0, arg.at)
            elif name == "priority":
                row[O.L_PRIORITY] = self.choice(value, PRIORITIES, "priority", arg.at)
            elif name == "on_control":
                inner = [0] * O.VECTOR_FIELDS
                inner[O.V_CONTROL_TASK] = -1
                self.on_control(value, inner, 0, arg.at)
                row[O.L_ON_CONTROL], row[O.L_CONTROL_TASK] = inner[O.V_ON_CONTROL], inner[O.V_CONTROL_TASK]
            else:
                raise CslError(
                    arg.at, f"@load_to_dsr has no option '{name}'; its options are {', '.join(LOAD_OPTIONS)}"
                )

    def b_set_dsr_base_addr(self, node: tree.Builtin, scope: Scope) -> Operand:
        self.count(node, 2)
        dsr = self.known(node.args[0], scope)
        if not isinstance(dsr.data, Dsr):
            raise CslError(node.args[0].at, f"@set_dsr_base_addr takes a DSR first, found '{dsr.type}'")
        pointer = self.address_argument(node.args[1], scope)
        number = DSR_FILES[dsr.data.file] * 64 + dsr.data.id
        self.code.emit(Op.DSR_BASE, 0, self.register(pointer, node.at), number, "dsr_change", node.at)
        return VOID_VALUE
