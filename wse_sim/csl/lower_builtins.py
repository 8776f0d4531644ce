"""Lowering of builtins with run-time effects: tasks, and machine operations that the libraries use."""

from __future__ import annotations

import re
from collections.abc import Sequence

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.code import Run
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.evaluate import Scope
from wse_sim.csl.lower_map import MapLowerer
from wse_sim.csl.printer import show
from wse_sim.csl.values import TRUE, VOID_VALUE, Fifo, Operand, Ref, Value
from wse_sim.fabric.vm.opcodes import SYSTEM_BUILTINS, Op, Sys
from wse_sim.fabric.vm.semantics import FUNCTIONS, NAMES


class RuntimeBuiltins(MapLowerer):
    """Builtins that emit code, a base class of the lowerer."""

    expected: ty.Type | None  # type to which the arms of the next choice are converted

    # ---- tasks
    def b_activate(self, node: tree.Builtin, scope: Scope) -> Operand:
        self.count(node, 1)
        value = self.eval(node.args[0], scope)
        self.check_activation(value, node, scope)
        number = self.task_number(value, node.at)
        self.code.emit(Op.ACT, 0, self.register(number, node.at), 0, "task_bit", node.at)
        return VOID_VALUE

    def block_bit(self, node: tree.Builtin, scope: Scope, op: Op) -> Operand:
        self.count(node, 1)
        value = self.eval(node.args[0], scope)
        space = self.space(value, node.at)
        number = value if space else self.task_number(value, node.at)
        self.code.emit(op, 0, self.register(number, node.at), space, "task_bit", node.at)
        return VOID_VALUE

    def b_block(self, node: tree.Builtin, scope: Scope) -> Operand:
        return self.block_bit(node, scope, Op.BLOCK)

    def b_unblock(self, node: tree.Builtin, scope: Scope) -> Operand:
        return self.block_bit(node, scope, Op.UNBLOCK)

    # ---- the machine
    def x_Builtin(self, node: tree.Builtin, scope: Scope) -> Operand:
        function = SYSTEM_BUILTINS.get(node.name)
        if function is None:
            return super().x_Builtin(node, scope)
        _, result, *types = function.builtin
        self.count(node, len(types))
        values = [
            self.coerce(self.eval(a, scope), TYPES[t], node.at) for a, t in zip(node.args, types, strict=True)
        ]
        return self.system(function, values, TYPES[result], node.at)

    def system(self, function: Sys, args: Sequence[Operand], result: ty.Type, at: int) -> Operand:
        """Emit a `SYS` row with its arguments in consecutive registers, and return its result."""
        start = self.code.next
        self.reserve(start, len(args))
        for i, value in enumerate(args):
            self.move(value, start + i, 1 << 30, at)
        reg = -1
        if result is not ty.VOID:
            self.reserve(start, max(1, len(args)))
            reg = start
        self.code.emit(Op.SYS, reg, start, function, function.cost, at)
        self.code.release(start + 1 if reg >= 0 else start)
        return VOID_VALUE if reg < 0 else Run(result, reg, at)

    def b___sys(self, node: tree.Builtin, scope: Scope) -> Operand:
        """Lower `@__sys(result type, "NAME", arguments...)`."""
        result = self.type_of(node.args[0], scope)
        name = self.data(node.args[1], scope, ty.COMPTIME_STRING)
        values = []
        for a in node.args[2:]:
            value = self.eval(a, scope)
            if value.type is ty.COMPTIME_INT:
                value = self.coerce(value, ty.I32, a.at)
            values.append(value)
        return self.system(Sys[name], values, result, node.at)

    def b___print(self, node: tree.Builtin, scope: Scope) -> Operand:
        """Lower `@__print("format", "kinds", values...)`, which writes text to the host's log."""
        return self.record(node, scope, Sys.PRINT)

    def b___trace(self, node: tree.Builtin, scope: Scope) -> Operand:
        """Lower `@__trace("key", "kinds", values...)`, which records values for the host."""
        return self.record(node, scope, Sys.TRACE)

    def record(self, node: tree.Builtin, scope: Scope, sys: Sys) -> Operand:
        text, kinds = (self.data(a, scope, ty.COMPTIME_STRING) for a in node.args[:2])
        return self.write_record(text, kinds, [self.eval(a, scope) for a in node.args[2:]], sys, node)

    def b___format(self, node: tree.Builtin, scope: Scope) -> Operand:
        """Lower `@__format("text {}", end, with coordinates, .{ values })`, which writes text to the host's
        log."""
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
            here = [self.system(s, [], ty.U16, node.at) for s in (Sys.X_COORD, Sys.Y_COORD)]
            values = here + values
        if len(given) != len(places):
            raise CslError(node.at, f"the format has {len(places)} places, and {len(given)} values are given")
        return self.write_record(text, kinds, values, Sys.PRINT, node)

    def write_record(
        self, text: str, kinds: str, values: Sequence[Operand], sys: Sys, node: tree.Builtin
    ) -> Operand:
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

    def b_assert(self, node: tree.Builtin, scope: Scope) -> Operand:
        self.count(node, 1)
        code = self.code
        over = code.label()
        known = self.branch(node.args[0], scope, over, True)
        if known:
            return VOID_VALUE
        reg = code.alloc()
        code.emit(Op.LDI, reg, 0, 0, "free", node.at)
        code.fix("assert", f"@assert({show(node.args[0])})")
        code.emit(Op.SYS, -1, reg, Sys.ASSERT_FAIL, "free", node.at)
        code.bind(over)
        code.release(reg)
        return VOID_VALUE

    def math(self, name: str, args: Sequence[Operand], at: int) -> Operand:
        if all(type(a) is Value for a in args):
            return super().math(name, args, at)
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
            return super().absolute(value, at)
        t = value.type
        assert isinstance(t, ty.FloatType)
        return self.emit(
            Op.FABS if t is ty.F32 else Op.HABS, self.register(value, at), 0, f"f{t.bits}_move", t, at
        )

    def b_queue_flush(self, node: tree.Builtin, scope: Scope) -> Operand:
        self.count(node, 1)
        queue = self.eval(node.args[0], scope)
        if queue.type not in (ty.INPUT_QUEUE, ty.OUTPUT_QUEUE):
            raise CslError(
                node.args[0].at, f"@queue_flush takes an input or output queue, found '{queue.type}'"
            )
        is_input = Value(ty.U16, int(queue.type is ty.INPUT_QUEUE))
        return self.system(Sys.QUEUE_FLUSH, [queue, is_input], ty.VOID, node.at)

    def exported_by_id(
        self, node: tree.Builtin, scope: Scope, number: tree.Node, wanted: ty.Type | None
    ) -> Operand:
        """Return the value of the exported variable with an id, of type `wanted`; without `wanted`, of a
        pointer cast to words.

        Raises
        ------
        CslError
            If the program exports no such variable.
        """
        layout, state = self.unit.compiler.layout, self.unit.program
        inner = Scope(scope.instance, scope)
        words = ty.pointer(ty.U16, many=True)
        inner.names["#words"] = Value(ty.TYPE, words)
        arms: list[tuple[list[tree.Node] | None, tree.Node]] = []
        for k, name in enumerate(layout.names if layout is not None else ()):
            symbol = state.symbols.get(name) if state is not None else None
            if symbol is None or not isinstance(symbol.target, Ref) or symbol.target.path:
                continue
            t = symbol.target.type
            if t is not wanted if wanted is not None else not isinstance(t, ty.PointerType):
                continue
            inner.names[f"#{k}"] = symbol.target.root
            value: tree.Node = tree.Name(node.at, f"#{k}")
            if wanted is None:
                value = tree.Builtin(node.at, "@ptrcast", [tree.Name(node.at, "#words"), value])
            arms.append(([tree.Number(node.at, k)], value))
        if not arms:
            what = "pointer" if wanted is None else f"variable of type '{wanted}'"
            raise CslError(
                node.at,
                f"{node.name}: the program exports no {what}; name one with @export_name and @export_symbol",
            )
        arms[-1] = (None, arms[-1][1])  # the result for another id is undefined
        self.expected = words if wanted is None else wanted
        return self.eval(arms[0][1] if len(arms) == 1 else tree.Switch(node.at, number, arms), inner)

    def b_get_tensor_ptr(self, node: tree.Builtin, scope: Scope) -> Operand:
        self.count(node, 1)
        return self.exported_by_id(node, scope, node.args[0], None)

    def b_get_symbol_value(self, node: tree.Builtin, scope: Scope) -> Operand:
        self.count(node, 2)
        return self.exported_by_id(node, scope, node.args[1], self.type_of(node.args[0], scope))

    def b_get_config(self, node: tree.Builtin, scope: Scope) -> Operand:
        self.count(node, 1, 2)
        return self.system(Sys.READ_CONFIG, [self.register_address(node, scope, 1)], ty.U16, node.at)

    def b_set_config(self, node: tree.Builtin, scope: Scope) -> Operand:
        self.count(node, 2, 3)
        value = self.coerce(self.eval(node.args[1], scope), ty.U16, node.args[1].at)
        values = [self.register_address(node, scope, 2), value]
        return self.system(Sys.WRITE_CONFIG, values, ty.VOID, node.at)

    b_get_config_unchecked = b_get_config
    b_set_config_unchecked = b_set_config

    def is_fifo(self, value: Operand) -> bool:
        return type(value) is Value and isinstance(value.data, Fifo)

    def true(self) -> Value:
        return TRUE


TYPES: dict[str, ty.Type] = {str(t): t for t in (ty.VOID, ty.BOOL, ty.U16, ty.U32)}
PLACE = re.compile(r"\{[^{}]*\}")
PIECES = re.compile(r"\{\{|\{[^{}]*\}|\}\}|[{}]|[^{}]+")
LITERAL = {"{": "{{", "}": "}}"}  # escapes in the format of the machine's log


def kind_of(t: ty.Type, place: str) -> str:
    """Return the kind letter of a value in a printed record; `place` is the text in its braces (X
    hexadecimal, b binary)."""
    if place in ("X", "b"):
        return {"X": "XY", "b": "BC"}[place][t.words > 1]
    if t is ty.COMPTIME_STRING:
        return "s"
    if t is ty.BOOL:
        return "b"
    if t is ty.F32 or t is ty.COMPTIME_FLOAT:
        return "f"
    if t in ty.HALVES:
        return "h"
    return "u" if isinstance(t, ty.IntType) and not t.signed else "d"
