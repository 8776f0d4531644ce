"""Lowering of builtins with run-time effects: tasks, and machine operations that the libraries use."""

from __future__ import annotations

import re
from collections.abc import Sequence

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.builtins_program import register_address
from wse_sim.csl.builtins_tasks import space_of, task_number
from wse_sim.csl.code import Run
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.evaluate import Scope
from wse_sim.csl.evaluation import count
from wse_sim.csl.lowering import LowererParts
from wse_sim.csl.printer import show
from wse_sim.csl.strict import check_activation
from wse_sim.csl.values import FALSE, VOID_VALUE, Operand, Ref, Value
from wse_sim.fabric.vm.opcodes import SYSTEM_BUILTINS, Op, Sys


# ---- tasks
def b_is_comptime(low: LowererParts, node: tree.Builtin, scope: Scope) -> Value:
    return FALSE


def b_activate(low: LowererParts, node: tree.Builtin, scope: Scope) -> Operand:
    count(node, 1)
    value = low.eval(node.args[0], scope)
    check_activation(low, value, node, scope)
    number = task_number(low, value, node.at)
    low.code.emit(Op.ACT, 0, low.register(number, node.at), 0, "task_bit", node.at)
    return VOID_VALUE


def block_bit(low: LowererParts, node: tree.Builtin, scope: Scope, op: Op) -> Operand:
    count(node, 1)
    value = low.eval(node.args[0], scope)
    space = space_of(value, node.at)
    number = value if space else task_number(low, value, node.at)
    low.code.emit(op, 0, low.register(number, node.at), space, "task_bit", node.at)
    return VOID_VALUE


def b_block(low: LowererParts, node: tree.Builtin, scope: Scope) -> Operand:
    return block_bit(low, node, scope, Op.BLOCK)


def b_unblock(low: LowererParts, node: tree.Builtin, scope: Scope) -> Operand:
    return block_bit(low, node, scope, Op.UNBLOCK)


# ---- the machine
def system_builtin(low: LowererParts, node: tree.Builtin, scope: Scope) -> Operand:
    """Lower a builtin that is a function of the machine."""
    function = SYSTEM_BUILTINS[node.name]
    _, result, *types = function.builtin
    count(node, len(types))
    values = [
        low.coerce(low.eval(a, scope), TYPES[t], node.at) for a, t in zip(node.args, types, strict=True)
    ]
    return system(low, function, values, TYPES[result], node.at)


def system(low: LowererParts, function: Sys, args: Sequence[Operand], result: ty.Type, at: int) -> Operand:
    """Emit a `SYS` row with its arguments in consecutive registers, and return its result."""
    start = low.code.next
    low.code.reserve(start, len(args))
    for i, value in enumerate(args):
        low.move(value, start + i, 1 << 30, at)
    reg = -1
    if result is not ty.VOID:
        low.code.reserve(start, max(1, len(args)))
        reg = start
    low.code.emit(Op.SYS, reg, start, function, function.cost, at)
    low.code.release(start + 1 if reg >= 0 else start)
    return VOID_VALUE if reg < 0 else Run(result, reg, at)


def b___sys(low: LowererParts, node: tree.Builtin, scope: Scope) -> Operand:
    """Lower `@__sys(result type, "NAME", arguments...)`."""
    result = low.type_of(node.args[0], scope)
    name = low.data(node.args[1], scope, ty.COMPTIME_STRING)
    values = []
    for a in node.args[2:]:
        value = low.eval(a, scope)
        if value.type is ty.COMPTIME_INT:
            value = low.coerce(value, ty.I32, a.at)
        values.append(value)
    return system(low, Sys[name], values, result, node.at)


def b___print(low: LowererParts, node: tree.Builtin, scope: Scope) -> Operand:
    """Lower `@__print("format", "kinds", values...)`, which writes text to the host's log."""
    return record(low, node, scope, Sys.PRINT)


def b___trace(low: LowererParts, node: tree.Builtin, scope: Scope) -> Operand:
    """Lower `@__trace("key", "kinds", values...)`, which records values for the host."""
    return record(low, node, scope, Sys.TRACE)


def record(low: LowererParts, node: tree.Builtin, scope: Scope, sys: Sys) -> Operand:
    text, kinds = (low.data(a, scope, ty.COMPTIME_STRING) for a in node.args[:2])
    return write_record(low, text, kinds, [low.eval(a, scope) for a in node.args[2:]], sys, node)


def b___format(low: LowererParts, node: tree.Builtin, scope: Scope) -> Operand:
    """Lower `@__format("text {}", end, with coordinates, .{ values })`, which writes text to the host's
    log."""
    text, end = (low.data(a, scope, ty.COMPTIME_STRING) for a in node.args[:2])
    given = low.eval(node.args[3], scope).data
    values, kinds = list(given.values()), ""
    pieces = PIECES.findall(text)
    places = [p[1:-1] for p in pieces if PLACE.fullmatch(p)]
    text = "".join("{}" if PLACE.fullmatch(p) else LITERAL.get(p, p) for p in pieces) + end
    for k, value in enumerate(values):
        kinds += kind_of(value.type, places[k] if k < len(places) else "")
    if low.condition(node.args[2], scope):
        text, kinds = "PE({},{}): " + text, "uu" + kinds
        here = [system(low, s, [], ty.U16, node.at) for s in (Sys.X_COORD, Sys.Y_COORD)]
        values = here + values
    if len(given) != len(places):
        raise CslError(node.at, f"the format has {len(places)} places, and {len(given)} values are given")
    return write_record(low, text, kinds, values, Sys.PRINT, node)


def write_record(
    low: LowererParts, text: str, kinds: str, values: Sequence[Operand], sys: Sys, node: tree.Builtin
) -> Operand:
    start = low.code.next
    low.code.reserve(start, 1 + len(values))
    low.code.emit(Op.LDI, start, 0, 0, "move", node.at)
    low.code.fix("print", (text, kinds))
    for i, value in enumerate(values):
        if value.type is ty.COMPTIME_STRING:
            low.code.emit(Op.LDI, start + 1 + i, 0, 0, "move", node.at)
            low.code.fix("print", (value.data, ""))
        else:
            if value.type in (ty.COMPTIME_INT, ty.COMPTIME_FLOAT):
                value = low.coerce(value, ty.I32 if value.type is ty.COMPTIME_INT else ty.F32, node.at)
            low.move(value, start + 1 + i, 1 << 30, node.at)
    low.code.emit(Op.SYS, -1, start, sys, "print", node.at)
    low.code.release(start)
    return VOID_VALUE


def b_assert(low: LowererParts, node: tree.Builtin, scope: Scope) -> Operand:
    count(node, 1)
    code = low.code
    over = code.label()
    known = low.branch(node.args[0], scope, over, True)
    if known:
        return VOID_VALUE
    reg = code.alloc()
    code.emit(Op.LDI, reg, 0, 0, "free", node.at)
    code.fix("assert", f"@assert({show(node.args[0])})")
    code.emit(Op.SYS, -1, reg, Sys.ASSERT_FAIL, "free", node.at)
    code.bind(over)
    code.release(reg)
    return VOID_VALUE


def b_queue_flush(low: LowererParts, node: tree.Builtin, scope: Scope) -> Operand:
    count(node, 1)
    queue = low.eval(node.args[0], scope)
    if queue.type not in (ty.INPUT_QUEUE, ty.OUTPUT_QUEUE):
        raise CslError(node.args[0].at, f"@queue_flush takes an input or output queue, found '{queue.type}'")
    is_input = Value(ty.U16, int(queue.type is ty.INPUT_QUEUE))
    return system(low, Sys.QUEUE_FLUSH, [queue, is_input], ty.VOID, node.at)


def exported_by_id(
    low: LowererParts, node: tree.Builtin, scope: Scope, number: tree.Node, wanted: ty.Type | None
) -> Operand:
    """Return the value of the exported variable with an id, of type `wanted`; without `wanted`, of a
    pointer cast to words.

    Raises
    ------
    CslError
        If the program exports no such variable.
    """
    layout, state = low.unit.compiler.layout, low.unit.program
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
    low.expected = words if wanted is None else wanted
    return low.eval(arms[0][1] if len(arms) == 1 else tree.Switch(node.at, number, arms), inner)


def b_get_tensor_ptr(low: LowererParts, node: tree.Builtin, scope: Scope) -> Operand:
    count(node, 1)
    return exported_by_id(low, node, scope, node.args[0], None)


def b_get_symbol_value(low: LowererParts, node: tree.Builtin, scope: Scope) -> Operand:
    count(node, 2)
    return exported_by_id(low, node, scope, node.args[1], low.type_of(node.args[0], scope))


def b_get_config(low: LowererParts, node: tree.Builtin, scope: Scope) -> Operand:
    count(node, 1, 2)
    return system(low, Sys.READ_CONFIG, [register_address(low, node, scope, 1)], ty.U16, node.at)


def b_set_config(low: LowererParts, node: tree.Builtin, scope: Scope) -> Operand:
    count(node, 2, 3)
    value = low.coerce(low.eval(node.args[1], scope), ty.U16, node.args[1].at)
    values = [register_address(low, node, scope, 2), value]
    return system(low, Sys.WRITE_CONFIG, values, ty.VOID, node.at)


b_get_config_unchecked = b_get_config
b_set_config_unchecked = b_set_config


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
