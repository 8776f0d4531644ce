"""Builtins with effects at run time: vector operations, DSDs and DSRs, `@map`, tasks, and what the libraries ask of the machine.

Operands of a vector operation lie in consecutive registers: destination, sources, and behind them what the options need.
"""

from __future__ import annotations

import re
from typing import Any

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.builtins_dsd import PRIORITIES
from wse_sim.csl.code import Mem, Run
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.evaluate import Scope
from wse_sim.csl.lower_expr import ExpressionLowerer
from wse_sim.csl.values import TRUE, VOID_VALUE, Dsd, Dsr, Fifo, Function, Ref, Value
from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm.opcodes import Form, Op, Sys

DSR_FILES = {"dsr_dest": O.DSR_DEST, "dsr_src0": O.DSR_SRC0, "dsr_src1": O.DSR_SRC1, "xdsr": 3}
ON_CONTROL = {"terminate": 1, "activate": 2, "unblock": 3}
H, S, W16, W32 = ty.F16, ty.F32, "16", "32"
# Operation -> types of destination and sources: a float type, or the width of a raw number.
VECTOR: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("mov16", "popcnt", "clz", "ctz"), (W16, W16)),
    **dict.fromkeys(
        ("add16", "addc16", "sub16", "and16", "or16", "xor16", "sll16", "slr16", "sar16", "mul16"),
        (W16, W16, W16),
    ),
    "mov32": (W32, W32),
    **dict.fromkeys(("add32", "sub32", "and32", "or32", "xor32"), (W32, W32, W32)),
    **{n + "s": (S, S) for n in ("fmov", "fneg", "fabs", "fnorm")},
    **{n + "s": (S, S, S) for n in ("fadd", "fsub", "fmul", "fmax")},
    **{n + "h": (H, H) for n in ("fmov", "fneg", "fabs", "fnorm")},
    **{n + "h": (H, H, H) for n in ("fadd", "fsub", "fmul", "fmax")},
    "fmacs": (S, S, S, S),
    "fmach": (H, H, H, H),
    "fmachs": (S, S, H, H),
    "faddhs": (S, S, H),
    "fscales": (S, S, W16),
    "fscaleh": (H, H, W16),
    "fh2s": (S, H),
    "fs2h": (H, S),
    "fh2xp16": (W16, H),
    "fs2xp16": (W16, S),
    "xp162fh": (H, W16),
    "xp162fs": (S, W16),
}
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


class RuntimeBuiltins(ExpressionLowerer):
    """Mixed into the lowerer; overrides builtins of the evaluator where code must be emitted."""

    settle: Any
    argument: Any
    results: Any

    # ---- vector operations
    def x_Builtin(self, node: tree.Builtin, scope: Scope) -> Any:
        kinds = VECTOR.get(node.name[1:])
        if kinds is not None:
            return self.vector(node, scope, kinds)
        return super().x_Builtin(node, scope)

    def vector(self, node: tree.Builtin, scope: Scope, kinds: tuple[Any, ...]) -> Any:
        code, at = self.code, node.at
        args = list(node.args)
        if not len(kinds) <= len(args) <= len(kinds) + 1:
            raise CslError(
                at,
                f"{node.name} takes {len(kinds)} operands and options, and {len(args)} arguments are given",
            )
        start = code.next
        row = [0] * O.VECTOR_FIELDS
        row[O.V_OP] = O.VECTOR_OPS.index(node.name[1:])
        for k in (
            O.V_DSR0,
            O.V_DSR1,
            O.V_DSR2,
            O.V_DSR3,
            O.V_ACTIVATE,
            O.V_UNBLOCK,
            O.V_THREAD,
            O.V_INDEX,
            O.V_CONTROL_TASK,
        ):
            row[k] = -1
        self.reserve(start, len(kinds))
        fifo = fabric = dsr = False
        for i, (arg, kind) in enumerate(zip(args, kinds, strict=False)):
            code.next = start + len(kinds)
            form, value = self.vector_operand(arg, scope, kind, i)
            row[O.V_DEST + i] = form
            if form == Form.DSR:
                row[O.V_DSR0 + i] = DSR_FILES[value.data.file] * 64 + value.data.id
                dsr = True
            else:
                self.move(value, start + i, max(start + len(kinds), self.locals_end), arg.at)
                fifo |= value.type is ty.FIFO
                fabric |= value.type in (ty.FABIN, ty.FABOUT)
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

    def reserve(self, start: int, n: int) -> None:
        self.code.next = start + n
        self.code.window = max(self.code.window, start + n)

    def vector_operand(self, arg: tree.Node, scope: Scope, kind: Any, place: int) -> tuple[int, Any]:
        value = self.eval(arg, scope)
        t = value.type
        if isinstance(t, ty.DsdType) or t is ty.FIFO:
            return Form.DSD, value
        if isinstance(t, ty.DsrType):
            return Form.DSR, value
        if isinstance(t, ty.PointerType):
            if place and not isinstance(t.target, ty.ArrayType):
                return Form.POINTER, value
            if isinstance(t.target, ty.ArrayType) and t.target.count != 1:
                raise CslError(arg.at, f"an operand of type '{t}' must be a DSD; make one with @get_dsd")
            return Form.POINTER, value
        return Form.SCALAR, self.vector_scalar(value, kind, arg.at)

    def vector_scalar(self, value: Any, kind: Any, at: int) -> Any:
        """A scalar operand in the type of its place; raw numbers keep theirs."""
        t = value.type
        if isinstance(kind, ty.FloatType):
            return self.coerce(value, kind, at)
        words = 1 if kind == W16 else 2
        if t is ty.COMPTIME_INT:
            signed = value.data < 0
            return self.coerce(value, ty.int_type(signed, 16 * words), at)
        if t is ty.COMPTIME_FLOAT:
            return self.coerce(value, ty.F16 if words == 1 else ty.F32, at)
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

    def truth(self, value: Any, at: int) -> bool:
        if value.type is not ty.BOOL or value.__class__ is not Value:
            raise CslError(at, "this option is true or false, known at compile time")
        return bool(value.data)

    def extra(self, value: Any, start: int, at: int) -> int:
        """Place an operand behind the others; its offset."""
        reg = self.code.alloc()
        self.move(value, reg, reg, at)
        self.code.release(reg + 1)
        return reg - start  # type: ignore[no-any-return]

    def option_id(self, value: Any, start: int, at: int) -> int:
        """A task or a handle as a number, or where its register lies."""
        if isinstance(value.type, ty.FnType):
            value = self.task_number(value, at)
        if not isinstance(value.type, (ty.HandleType, ty.IntType)):
            raise CslError(at, f"expected a task or an id, found '{value.type}'")
        if value.__class__ is Value:
            return int(value.data)
        return O.USE_REGISTER + self.extra(value, start, at)

    def on_control(self, value: Any, row: list[int], start: int, at: int) -> None:
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
    def run_dsd(self, frame: Dsd, parts: dict[str, Any], at: int) -> Any:
        """A DSD from fields of which some are known at run time only."""
        t = ty.NAMED[frame.kind]
        known = {n: p.data for n, p in parts.items() if p.__class__ is Value}
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
                fields=frame.fields,
                element=frame.element,
            )
        dsd: Any = Value(t, start)
        if base is not None and "base" not in known:
            dsd = self.change_dsd("DSD_BASE", dsd, base, at)
        if "offset" in parts and ("offset" not in known or "base" not in known):
            dsd = self.change_dsd("DSD_ADD", dsd, self.scaled(parts["offset"], element, at), at)
        if "extent" in parts and "extent" not in known:
            dsd = self.change_dsd("DSD_LEN", dsd, parts["extent"], at)
        if "stride" in parts and "stride" not in known:
            dsd = self.change_dsd("DSD_STRIDE", dsd, parts["stride"], at)
        return dsd

    def fabric_bits(self, t: ty.Type, frame: Dsd, parts: dict[str, Any], at: int) -> Run:
        """A fabric DSD whose color or queue is known at run time: its bits are put together."""
        known = {n: p.data for n, p in parts.items() if p.__class__ is Value}
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

    def scaled(self, value: Any, factor: int, at: int) -> Any:
        if value.__class__ is Value:
            return Value(ty.I16, ty.I16.wrap(value.data * factor))
        if factor == 1:
            return value
        return self.emit(Op.MULI_I16, self.register(value, at), factor, "alu16", ty.I16, at)

    def change_dsd(self, op: str, dsd: Any, amount: Any, at: int) -> Run:
        if ty.is_int(amount.type) and amount.type is ty.COMPTIME_INT:
            amount = self.coerce(amount, ty.I16, at)
        return self.emit(
            Op[op], self.register(dsd, at), self.register(amount, at), "dsd_change", dsd.type, at
        )

    def b_load_to_dsr(self, node: tree.Builtin, scope: Scope) -> Any:
        self.count(node, 2, 3)
        dsr, dsd = self.known(node.args[0], scope), self.eval(node.args[1], scope)
        if not isinstance(dsr.data, Dsr):
            raise CslError(
                node.args[0].at, f"@load_to_dsr takes a DSR first, found '{dsr.type}'; make one with @get_dsr"
            )
        if not isinstance(dsd.type, ty.DsdType) and dsd.type is not ty.FIFO:
            raise CslError(node.args[1].at, f"@load_to_dsr takes a DSD second, found '{dsd.type}'")
        row = [0] * O.LOAD_FIELDS
        row[O.L_FILE], row[O.L_ID] = DSR_FILES[dsr.data.file], dsr.data.id
        row[O.L_ACTIVATE] = row[O.L_UNBLOCK] = row[O.L_THREAD] = row[O.L_CONTROL_TASK] = -1
        if len(node.args) > 2:
            self.load_options(node.args[2], scope, row)
        self.code.emit(Op.DSR_LOAD, 0, self.register(dsd, node.at), 0, "dsr_load", node.at)
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
                if value.__class__ is not Value:
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

    def b_set_dsr_base_addr(self, node: tree.Builtin, scope: Scope) -> Any:
        self.count(node, 2)
        dsr = self.known(node.args[0], scope)
        if not isinstance(dsr.data, Dsr):
            raise CslError(node.args[0].at, f"@set_dsr_base_addr takes a DSR first, found '{dsr.type}'")
        pointer = self.address_argument(node.args[1], scope)
        number = DSR_FILES[dsr.data.file] * 64 + dsr.data.id
        self.code.emit(Op.DSR_BASE, 0, self.register(pointer, node.at), number, "dsr_change", node.at)
        return VOID_VALUE

    # ---- @map
    def b_map(self, node: tree.Builtin, scope: Scope) -> Any:
        """A loop: the next element of every vector operand, the call, the store; it ends with the shortest operand."""
        if len(node.args) < 2:
            raise CslError(node.at, "@map takes a function, its inputs and a destination")
        code, at = self.code, node.at
        callee = self.known(node.args[0], scope)
        if not isinstance(callee.data, Function):
            raise CslError(node.args[0].at, f"@map takes a function first, found '{callee.type}'")
        fn = callee.data
        mark, end = code.next, self.locals_end
        inner = Scope(fn.instance)
        result = self.type_of(fn.node.result, inner)
        inputs = node.args[1:] if result is ty.VOID else node.args[1:-1]
        if len(inputs) != len(fn.node.params):
            raise CslError(
                at, f"'{fn.name}' takes {len(fn.node.params)} arguments, and @map has {len(inputs)} inputs"
            )
        operands = [self.map_operand(a, scope) for a in inputs]
        target = None if result is ty.VOID else self.map_operand(node.args[-1], scope)
        counter = self.settle(Value(ty.U16, 0), code.next, at)
        count = self.map_count([*operands, *([] if target is None else [target])], at)
        body, done = code.label(), code.label()
        code.jump(Op.JLE, count, counter, done, at)
        code.bind(body)
        window = code.next
        given = {}
        for p, operand, arg in zip(fn.node.params, operands, inputs, strict=True):
            here = code.next
            t = None if p.type is None else self.type_of(p.type, inner)
            value = self.map_element(operand, t, counter, arg.at)
            if t is not None:
                value = self.coerce(value, t, arg.at)
            if not (value.__class__ is Value and (p.comptime or not value.type.runtime)):
                value = self.argument(value, here, arg.at)
            given[str(p.name)] = inner.names[str(p.name)] = value
        called = self.unit.function(fn, given, result, at)
        code.emit(Op.CALL, window, 0, 0, "call", at)
        code.fix("call", called)
        code.callees.append((called, window))
        code.release(window)
        if target is not None:
            self.map_store(target, self.results(result, at), counter, at)
        code.release(window)
        code.emit(Op.ADDI_U16, counter, counter, 1, "alu16", at)
        code.jump(Op.JLT, counter, count, body, at)
        code.bind(done)
        for operand in [*operands, *([] if target is None else [target])]:
            self.map_finish(operand, counter, at)
        code.release(mark)
        self.locals_end = end
        return VOID_VALUE

    def map_operand(self, arg: tree.Node, scope: Scope) -> Any:
        """A vector operand in a register of its own; others as they are."""
        value = self.eval(arg, scope)
        if value.type is ty.FIFO:
            raise CslError(arg.at, "@map does not take a FIFO")
        if isinstance(value.type, ty.DsrType):
            number = DSR_FILES[value.data.file] * 64 + value.data.id
            run = self.emit(Op.DSR_GET, 0, number, "dsr_change", ty.MEM1D, arg.at)
            reg = self.settle(run, self.code.next, arg.at)
            return (Run(ty.MEM1D, reg, arg.at), None, number)
        if isinstance(value.type, ty.DsdType):
            element = value.data.element if value.__class__ is Value else None
            reg = self.settle(value, self.code.next, arg.at)
            if value.type in (ty.FABIN, ty.FABOUT):
                one = self.register(Value(ty.U16, 1), arg.at)
                single = self.emit(Op.DSD_LEN, reg, one, "dsd_change", value.type, arg.at)
                place = self.settle(single, self.code.next, arg.at)
                return (Run(value.type, place, arg.at), element, None, reg)
            return (Run(value.type, reg, arg.at), element, None)
        if value.__class__ is Run and value.reg >= self.locals_end:
            reg = self.settle(value, self.code.next, arg.at)
            return Run(value.type, reg, arg.at)
        return value

    def map_count(self, operands: list[Any], at: int) -> int:
        """A register with the length of the shortest vector operand."""
        code = self.code
        count = None
        for operand in operands:
            if not isinstance(operand, tuple):
                continue
            source = operand[3] if len(operand) > 3 else operand[0].reg
            n = self.settle(
                self.emit(Op.DSD_GET, source, O.DsdField.TOTAL, "dsd_change", ty.U16, at), code.next, at
            )
            if count is None:
                count = n
                continue
            keep = code.label()
            code.jump(Op.JLE, count, n, keep, at)
            code.emit(Op.MOV, count, n, 0, "move", at)
            code.bind(keep)
        if count is None:
            raise CslError(
                at, "@map needs a DSD or a DSR among its operands: nothing says how often the function runs"
            )
        return count

    def map_element(self, operand: Any, t: Any, counter: int, at: int) -> Any:
        if not isinstance(operand, tuple):
            return operand
        dsd, element = operand[0], operand[1]
        t = element if t is None else t
        if t is None:
            raise CslError(
                at, "the type of this element is not known; give the parameter of the function a type"
            )
        if dsd.type is ty.FABIN:
            cell = self.frame_cell("element", t, at)
            self.use(cell)
            self.element_move(Value(ty.pointer(t), Ref(cell, (), t)), dsd, t, at)
            return self.load(Ref(cell, (), t), at)
        place = self.emit(self.address_op(t, at), dsd.reg, counter, "free", ty.U16, at)
        return self.load(Mem(t, at, None, place.reg), at)

    def address_op(self, t: ty.Type, at: int) -> Op:
        if t.words not in (1, 2) or isinstance(t, (ty.StructType, ty.ArrayType)):
            raise CslError(at, f"@map takes 16- and 32-bit elements, found '{t}'")
        return Op.DSD_ADDR16 if t.words == 1 else Op.DSD_ADDR32

    def map_store(self, target: Any, value: Any, counter: int, at: int) -> None:
        if not isinstance(target, tuple):
            if not isinstance(target.type, ty.PointerType):
                raise CslError(
                    at, f"the destination of @map must be a DSD, a DSR or a pointer, found '{target.type}'"
                )
            self.store(self.deref(target, at), value, at)
            return
        dsd = target[0]
        if dsd.type is ty.FABOUT:
            self.element_move(dsd, value, value.type, at)
            return
        place = self.emit(self.address_op(value.type, at), dsd.reg, counter, "free", ty.U16, at)
        self.store(Mem(value.type, at, None, place.reg), value, at)

    def map_finish(self, operand: Any, counter: int, at: int) -> None:
        """A DSR that keeps its address goes on behind the last element."""
        if isinstance(operand, tuple) and len(operand) == 3 and operand[2] is not None:
            start = self.code.next
            self.reserve(start, 2)
            self.constant(operand[2], start, at)
            place = self.emit(Op.DSD_ADDR16, operand[0].reg, counter, "free", ty.U16, at)
            self.code.emit(Op.DSD_BASE, start + 1, operand[0].reg, place.reg, "free", at)
            self.code.emit(Op.SYS, -1, start, Sys.DSR_SAVE, "free", at)
            self.code.release(start)

    def element_move(self, dest: Any, source: Any, t: ty.Type, at: int) -> None:
        """One element over the fabric."""
        start = self.code.next
        self.reserve(start, 2)
        row = [0] * O.VECTOR_FIELDS
        for k in (
            O.V_DSR0,
            O.V_DSR1,
            O.V_DSR2,
            O.V_DSR3,
            O.V_ACTIVATE,
            O.V_UNBLOCK,
            O.V_THREAD,
            O.V_INDEX,
            O.V_CONTROL_TASK,
        ):
            row[k] = -1
        row[O.V_OP] = O.VECTOR_OPS.index("mov16" if t.words == 1 else "mov32")
        for i, value in enumerate((dest, source)):
            kind = (
                Form.DSD
                if isinstance(value.type, ty.DsdType)
                else Form.POINTER
                if isinstance(value.type, ty.PointerType)
                else Form.SCALAR
            )
            row[O.V_DEST + i] = kind
            self.move(value, start + i, 1 << 30, at)
        self.code.emit(Op.VEC, -1, start, 0, "vector", at)
        self.code.fix("vector", tuple(row))
        self.code.release(start)

    # ---- copies of memory
    def words_dsd(self, mem: Mem, n: int, at: int) -> Any:
        frame = Dsd("mem1d_dsd", None, 0, n)
        run = Run(ty.MEM1D, self.register(Value(ty.MEM1D, frame), at), at)
        return self.emit(Op.DSD_BASE, run.reg, self.base_register(mem, at), "free", ty.MEM1D, at)

    def copy_words(self, dest: Mem, source: Mem, n: int, at: int) -> None:
        """Copy n words of memory by the vector engine."""
        self.element_vector("mov16", self.words_dsd(dest, n, at), self.words_dsd(source, n, at), at)

    def clear_words(self, dest: Mem, n: int, at: int) -> None:
        self.element_vector("mov16", self.words_dsd(dest, n, at), Value(ty.U16, 0), at)

    def element_vector(self, op: str, dest: Any, source: Any, at: int) -> None:
        start = self.code.next
        self.reserve(start, 2)
        row = [0] * O.VECTOR_FIELDS
        for k in (
            O.V_DSR0,
            O.V_DSR1,
            O.V_DSR2,
            O.V_DSR3,
            O.V_ACTIVATE,
            O.V_UNBLOCK,
            O.V_THREAD,
            O.V_INDEX,
            O.V_CONTROL_TASK,
        ):
            row[k] = -1
        row[O.V_OP] = O.VECTOR_OPS.index(op)
        for i, value in enumerate((dest, source)):
            row[O.V_DEST + i] = Form.DSD if isinstance(value.type, ty.DsdType) else Form.SCALAR
            self.move(value, start + i, 1 << 30, at)
        self.code.emit(Op.VEC, -1, start, 0, "vector", at)
        self.code.fix("vector", tuple(row))
        self.code.release(start)

    # ---- tasks
    def b_activate(self, node: tree.Builtin, scope: Scope) -> Any:
        self.count(node, 1)
        number = self.task_number(self.eval(node.args[0], scope), node.at)
        self.code.emit(Op.ACT, 0, self.register(number, node.at), 0, "task_bit", node.at)
        return VOID_VALUE

    def block_bit(self, node: tree.Builtin, scope: Scope, op: Op) -> Any:
        self.count(node, 1)
        value = self.eval(node.args[0], scope)
        space = self.space(value, node.at)
        number = value if space else self.task_number(value, node.at)
        self.code.emit(op, 0, self.register(number, node.at), space, "task_bit", node.at)
        return VOID_VALUE

    def b_block(self, node: tree.Builtin, scope: Scope) -> Any:
        return self.block_bit(node, scope, Op.BLOCK)

    def b_unblock(self, node: tree.Builtin, scope: Scope) -> Any:
        return self.block_bit(node, scope, Op.UNBLOCK)

    # ---- the machine
    def system(self, name: Sys, args: list[Any], result: ty.Type, cost: str, at: int) -> Any:
        """`SYS`: arguments in consecutive registers."""
        start = self.code.next
        self.reserve(start, len(args))
        for i, value in enumerate(args):
            self.move(value, start + i, 1 << 30, at)
        reg = -1
        if result is not ty.VOID:
            self.reserve(start, max(1, len(args)))
            reg = start
        self.code.emit(Op.SYS, reg, start, name, cost, at)
        self.code.release(start + 1 if reg >= 0 else start)
        return VOID_VALUE if reg < 0 else Run(result, reg, at)

    def b___sys(self, node: tree.Builtin, scope: Scope) -> Any:
        """`@__sys(result type, "NAME", arguments...)`."""
        result = self.type_of(node.args[0], scope)
        name = self.data(node.args[1], scope, ty.COMPTIME_STRING)
        values = []
        for a in node.args[2:]:
            value = self.eval(a, scope)
            if value.type is ty.COMPTIME_INT:
                value = self.coerce(value, ty.I32, a.at)
            values.append(value)
        return self.system(Sys[name], values, result, sys_cost(name), node.at)

    def b___print(self, node: tree.Builtin, scope: Scope) -> Any:
        """`@__print("format", "kinds", values...)`: text for the host's log."""
        return self.record(node, scope, Sys.PRINT)

    def b___trace(self, node: tree.Builtin, scope: Scope) -> Any:
        """`@__trace("key", "kinds", values...)`: values kept for the host."""
        return self.record(node, scope, Sys.TRACE)

    def record(self, node: tree.Builtin, scope: Scope, sys: Sys) -> Any:
        text, kinds = (self.data(a, scope, ty.COMPTIME_STRING) for a in node.args[:2])
        return self.write_record(text, kinds, [self.eval(a, scope) for a in node.args[2:]], sys, node)

    def b___format(self, node: tree.Builtin, scope: Scope) -> Any:
        """`@__format("text {}", end, with coordinates, .{ values })`."""
        text, end = (self.data(a, scope, ty.COMPTIME_STRING) for a in node.args[:2])
        given = self.eval(node.args[3], scope).data
        values, kinds = list(given.values()), ""
        pieces = PIECES.findall(text)
        places = [p[1:-1] for p in pieces if PLACE.fullmatch(p)]
        text = "".join("{}" if PLACE.fullmatch(p) else LITERAL.get(p, p) for p in pieces) + end
        for k, value in enumerate(values):
            kinds += kind_of(value.type, places[k] if k < len(places) else "")
        if self.condition(node.args[2], scope):
            text, kinds = "PE({},{}): " + text, "uu" + kinds
            here = [self.system(s, [], ty.U16, "coordinate", node.at) for s in (Sys.X_COORD, Sys.Y_COORD)]
            values = here + values
        if len(given) != len(places):
            raise CslError(node.at, f"the format has {len(places)} places, and {len(given)} values are given")
        return self.write_record(text, kinds, values, Sys.PRINT, node)

    def write_record(self, text: str, kinds: str, values: list[Any], sys: Sys, node: tree.Builtin) -> Any:
        start = self.code.next
        self.reserve(start, 1 + len(values))
        self.code.emit(Op.LDI, start, 0, 0, "move", node.at)
        self.code.fix("print", (text, kinds))
        for i, value in enumerate(values):
            if value.type is ty.COMPTIME_STRING:
                self.code.emit(Op.LDI, start + 1 + i, 0, 0, "move", node.at)
                self.code.fix("print", (value.data, ""))
            else:
                if value.type in (ty.COMPTIME_INT, ty.COMPTIME_FLOAT):
                    value = self.coerce(value, ty.I32 if value.type is ty.COMPTIME_INT else ty.F32, node.at)
                self.move(value, start + 1 + i, 1 << 30, node.at)
        self.code.emit(Op.SYS, -1, start, sys, "print", node.at)
        self.code.release(start)
        return VOID_VALUE

    def b_assert(self, node: tree.Builtin, scope: Scope) -> Any:
        self.count(node, 1)
        code = self.code
        over = code.label()
        known = self.branch(node.args[0], scope, over, True)
        if known:
            return VOID_VALUE
        reg = code.alloc()
        code.emit(Op.LDI, reg, 0, 0, "free", node.at)
        code.fix("assert", "the assertion does not hold")
        code.emit(Op.SYS, -1, reg, Sys.ASSERT_FAIL, "free", node.at)
        code.bind(over)
        code.release(reg)
        return VOID_VALUE

    def math(self, name: str, args: list[Any], at: int) -> Any:
        if all(a.__class__ is Value for a in args):
            return super().math(name, args, at)
        t = args[0].type
        regs = [self.register(a, at) for a in args]
        if t is ty.F16:
            regs = [self.emit(Op.H2F, r, 0, "convert", ty.F32, at).reg for r in regs]
        if name == "pow":
            run = self.emit(Op.POW, regs[0], regs[1], "math_pow", ty.F32, at)
        else:
            run = self.emit(Op.MATH, regs[0], O.MATH_FUNCTIONS.index(name), math_cost(name), ty.F32, at)
        return run if t is ty.F32 else self.emit(Op.F2H, run.reg, 0, "convert", t, at)

    def absolute(self, value: Any, at: int) -> Any:
        if value.__class__ is Value:
            return super().absolute(value, at)
        t = value.type
        return self.emit(
            Op.FABS if t is ty.F32 else Op.HABS, self.register(value, at), 0, f"f{t.bits}_move", t, at
        )

    def b_random16(self, node: tree.Builtin, scope: Scope) -> Any:
        self.count(node, 0)
        return self.system(Sys.RANDOM16, [], ty.U16, "random", node.at)

    def b_set_active_prng(self, node: tree.Builtin, scope: Scope) -> Any:
        self.count(node, 1)
        return self.system(
            Sys.SET_PRNG,
            [self.coerce(self.eval(node.args[0], scope), ty.U16, node.at)],
            ty.VOID,
            "register",
            node.at,
        )

    def b_queue_flush(self, node: tree.Builtin, scope: Scope) -> Any:
        self.count(node, 1)
        return self.system(Sys.QUEUE_FLUSH, [self.eval(node.args[0], scope)], ty.VOID, "register", node.at)

    def b_get_config(self, node: tree.Builtin, scope: Scope) -> Any:
        self.count(node, 1)
        return self.system(
            Sys.READ_CONFIG,
            [self.coerce(self.eval(node.args[0], scope), ty.U16, node.at)],
            ty.U16,
            "config",
            node.at,
        )

    def b_set_config(self, node: tree.Builtin, scope: Scope) -> Any:
        self.count(node, 2)
        values = [self.coerce(self.eval(a, scope), ty.U16, a.at) for a in node.args]
        return self.system(Sys.WRITE_CONFIG, values, ty.VOID, "config", node.at)

    b_get_config_unchecked = b_get_config
    b_set_config_unchecked = b_set_config

    def is_fifo(self, value: Any) -> bool:
        return value.__class__ is Value and isinstance(value.data, Fifo)

    def true(self) -> Value:
        return TRUE


PLACE = re.compile(r"\{[^{}]*\}")
PIECES = re.compile(r"\{\{|\{[^{}]*\}|\}\}|[{}]|[^{}]+")
LITERAL = {"{": "{{", "}": "}}"}  # as the machine's log wants them


def kind_of(t: ty.Type, place: str) -> str:
    """The letter of a value in a printed record; `place` is what stands in its braces (X hexadecimal, b binary)."""
    if place in ("X", "b"):
        return {"X": "XY", "b": "BC"}[place][t.words > 1]
    if t is ty.COMPTIME_STRING:
        return "s"
    if t is ty.BOOL:
        return "b"
    if t is ty.F32 or t is ty.COMPTIME_FLOAT:
        return "f"
    if t is ty.F16:
        return "h"
    return "u" if isinstance(t, ty.IntType) and not t.signed else "d"


def sys_cost(name: str) -> str:
    if name.startswith("TSC"):
        return "tsc"
    if name in ("X_COORD", "Y_COORD", "FABRIC_X", "FABRIC_Y"):
        return "coordinate"
    if name in ("RANDOM16", "SET_PRNG", "SEED_PRNG"):
        return "random"
    return (
        "task_bit"
        if name == "UNBLOCK_CMD_STREAM"
        else "config"
        if name.startswith(("SET_", "READ_", "WRITE_"))
        else "register"
    )


def math_cost(name: str) -> str:
    name = {
        "exp2": "exp",
        "log2": "log",
        "log10": "log",
        "sinh": "exp",
        "cosh": "exp",
        "floor": "round",
        "ceil": "round",
        "trunc": "round",
    }.get(name, name)
    name = {"asin": "tan", "acos": "tan", "atan": "tan"}.get(name, name)
    return f"math_{name}" if f"math_{name}" in O.COST_CLASSES else "math_exp"
