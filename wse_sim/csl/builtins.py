"""Builtins that are evaluated at compile time; those with run-time effects are in
:mod:`wse_sim.csl.lower_builtins`.

Function `b_NAME` takes the evaluator, the node and the scope, and returns the value of `@NAME(...)`; :data:`BUILTINS` is the table of them.

One file, because it is the list of the builtins.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

from wse_sim.csl import builtins_dsd, builtins_layout, builtins_program, builtins_tasks, tree
from wse_sim.csl import types as ty
from wse_sim.csl.builtins_program import at_start, deferred
from wse_sim.csl.diagnostics import CslError, where
from wse_sim.csl.evaluation import Evaluation, count
from wse_sim.csl.modules import Scope
from wse_sim.csl.parse import parse_type
from wse_sim.csl.strict import judges
from wse_sim.csl.values import (
    FALSE,
    TRUE,
    VOID_VALUE,
    Operand,
    Range,
    Ref,
    Value,
    is_packed,
    show,
    zero,
)
from wse_sim.fabric.vm.opcodes import SYSTEM_BUILTINS, VECTOR_OPS

HANDLE_LIMITS = {"color": 23, "input_queue": 7, "ut_id": 7, "control_task_id": 63}
_FIFO_LENGTH = "a FIFO takes its length from the other operand; change that one with @set_dsd_length"
RUN_TIME_BUILTINS = frozenset(
    {*SYSTEM_BUILTINS, "@queue_flush", "@get_tensor_ptr", "@get_symbol_value", "@map"}
)
ABSENT = {
    "@set_fifo_read_length": _FIFO_LENGTH,
    "@set_fifo_write_length": _FIFO_LENGTH,
}
"""Builtins of the language that are not supported, each with its replacement."""


def is_same(one: Value, two: Value) -> bool:
    """Return whether two fields of one name are equal or the first one is void, which programs before release
    1.0 may merge."""
    return one.type is ty.VOID or (one.type is two.type and one.data == two.data)


# ---- conversions
def b_as(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    count(node, 2)
    return ev.convert(ev.eval(node.args[1], scope), ev.type_of(node.args[0], scope), node.at)


def b_bitcast(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    count(node, 2)
    return ev.bitcast(ev.eval(node.args[1], scope), ev.type_of(node.args[0], scope), node.at)


def check_bitcast(s: ty.Type, t: ty.Type, at: int) -> None:
    """Check that both types of a bitcast have the same width.

    Raises
    ------
    CslError
        If they have not.
    """
    exact = is_packed(s) or is_packed(t)
    a, b = (ty.bits_of(u) if exact else 16 * u.words for u in (s, t))
    if a == 0 or a != b:
        raise CslError(
            at, f"@bitcast from '{s}' ({a} bits) to '{t}' ({b} bits); both must have the same width"
        )


def b_ptrcast(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    count(node, 2)
    t = ev.type_of(node.args[0], scope)
    value = ev.eval(node.args[1], scope)
    if not isinstance(t, ty.PointerType):
        raise CslError(node.at, f"@ptrcast needs a pointer type; '{t}' is not one")
    if not isinstance(value.type, ty.PointerType):
        raise CslError(node.at, f"@ptrcast takes a pointer, found '{value.type}'")
    return ev.ptrcast(value, t)


# ---- types
def b_type_of(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    count(node, 1)
    return Value(ty.TYPE, ev.access(node.args[0], scope).type)


def b_is_same_type(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    count(node, 2)
    return TRUE if ev.type_of(node.args[0], scope) is ev.type_of(node.args[1], scope) else FALSE


def b_is_arch(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    count(node, 1)
    name = ev.data(node.args[0], scope, ty.COMPTIME_STRING)
    if name not in ("wse1", "wse2", "wse3"):
        raise CslError(node.at, f'\'{name}\' is not an architecture; use "wse2" or "wse3"')
    return TRUE if ev.options.arch == name else FALSE


def b_is_comptime(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    return TRUE


def b_fp16(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    return Value(ty.TYPE, ty.NAMED[ev.options.fp16])


def b_element_type(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    return Value(ty.TYPE, array_type(ev, node, scope).element)


def b_element_count(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    count(node, 1)
    value = ev.access(node.args[0], scope)
    if value.type is ty.COMPTIME_STRUCT:
        return Value(ty.COMPTIME_INT, len(ev.look(value) if type(value) is Ref else value.data))
    return Value(ty.COMPTIME_INT, array_type(ev, node, scope).count)


def b_rank(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    return Value(ty.COMPTIME_INT, len(array_type(ev, node, scope).shape))


def b_dimensions(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    t = array_type(ev, node, scope)
    return Value(ty.array((len(t.shape),), ty.U32), list(t.shape))


def array_type(ev: Evaluation, node: tree.Builtin, scope: Scope) -> ty.ArrayType:
    count(node, 1)
    value = ev.access(node.args[0], scope)
    t = value.data if value.type is ty.TYPE else value.type
    if isinstance(t, ty.PointerType) and isinstance(t.target, ty.ArrayType):
        t = t.target
    if not isinstance(t, ty.ArrayType):
        raise CslError(node.at, f"{node.name} takes an array or the type of one, found '{t}'")
    return t


# ---- arrays and ranges
def b_zeros(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    count(node, 1)
    t = ev.type_of(node.args[0], scope)
    return Value(t, zero(t))


def b_constants(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    count(node, 2)
    t = ev.type_of(node.args[0], scope)
    if not isinstance(t, ty.ArrayType):
        raise CslError(node.args[0].at, f"@constants takes the type of an array, found '{t}'")
    value = ev.coerce(ev.eval(node.args[1], scope), t.element, node.at)
    return ev.aggregate(t, [value] * t.count, node.at)


def b_range(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    if len(node.args) not in (2, 4):
        raise CslError(
            node.at,
            f"@range takes (type, stop) or (type, start, stop, step) but {len(node.args)} arguments are given",
        )
    t = ev.type_of(node.args[0], scope)
    if not ty.is_int(t):
        raise CslError(node.args[0].at, f"@range takes an integer type, found '{t}'")
    values = [ev.eval(a, scope) for a in node.args[1:]]
    return ev.make_range(t, values, node)


def range_part(ev: Evaluation, node: tree.Builtin, scope: Scope, part: str) -> Value:
    count(node, 1)
    value = ev.known(node.args[0], scope)
    if not isinstance(value.data, Range):
        raise CslError(node.at, f"{node.name} takes a range, found '{value.type}'")
    return Value(value.data.element, getattr(value.data, part))


def b_range_start(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    return range_part(ev, node, scope, "start")


def b_range_stop(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    return range_part(ev, node, scope, "stop")


def b_range_step(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    return range_part(ev, node, scope, "step")


# ---- structures and strings
def b_concat_structs(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    count(node, 2)
    parts = []
    for a in node.args:
        value = ev.coerce(ev.eval(a, scope), ty.COMPTIME_STRUCT, a.at)
        parts.append(value.data)
    one, two = parts
    if one and two and any(isinstance(k, str) for k in one) != any(isinstance(k, str) for k in two):
        raise CslError(node.at, "@concat_structs takes two structures with names or two without")
    if one and isinstance(next(iter(one)), int):
        return Value(ty.COMPTIME_STRUCT, dict(enumerate([*one.values(), *two.values()])))
    both = sorted(
        (k for k in set(one) & set(two) if judges(ev, scope) or not is_same(one[k], two[k])), key=str
    )
    if both and isinstance(both[0], str):
        raise CslError(node.at, f"both structures have a field '{both[0]}'; a name may occur only once")
    return Value(ty.COMPTIME_STRUCT, {**one, **two})


def field_name(ev: Evaluation, node: tree.Builtin, scope: Scope) -> str:
    return str(ev.data(node.args[1], scope, ty.COMPTIME_STRING))


def field_place(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    """Return the field that `@field` names, as a place if it has one."""
    count(node, 2)
    return ev.member(ev.access(node.args[0], scope), field_name(ev, node, scope), node.at)


def b_field(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    return ev.load(field_place(ev, node, scope), node.at)


def b_has_field(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    count(node, 2)
    value = ev.access(node.args[0], scope)
    name = field_name(ev, node, scope)
    t = value.data if value.type is ty.TYPE else value.type
    if isinstance(t, ty.StructType):
        return TRUE if name in t.index else FALSE
    if isinstance(t, ty.EnumType):
        return TRUE if name in t.names else FALSE
    inner = ev.look(value) if type(value) is Ref else value.data
    if isinstance(inner, dict):
        return TRUE if name in inner else FALSE
    return TRUE if name in getattr(inner, "members", ()) else FALSE


def b_strcat(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    return Value(ty.COMPTIME_STRING, "".join(ev.data(a, scope, ty.COMPTIME_STRING) for a in node.args))


def b_strlen(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    count(node, 1)
    return Value(ty.COMPTIME_INT, len(ev.data(node.args[0], scope, ty.COMPTIME_STRING)))


def b_get_array(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    count(node, 1)
    text = ev.data(node.args[0], scope, ty.COMPTIME_STRING)
    return Value(ty.array((len(text),), ty.U8), [ord(c) & 255 for c in text])


def b_get_string_from_byte(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    count(node, 1)
    return Value(ty.COMPTIME_STRING, chr(ev.data(node.args[0], scope, ty.U8)))


def b_get_int(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    count(node, 1)
    value = ev.eval(node.args[0], scope)
    t = value.type
    if not isinstance(t, (ty.HandleType, ty.EnumType)) and not ty.is_int(t):
        raise CslError(node.at, f"@get_int takes a color, a queue, an id, an enum or an integer, found '{t}'")
    if ty.is_int(t):
        return value
    return ev.retype(value, t.base if isinstance(t, ty.EnumType) else ty.U16)


b_get_color_id = b_get_int
"""Older name of `@get_int` for colors, of the first releases."""


def b_import_comptime_value(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    count(node, 2)
    name = ev.data(node.args[1], scope, ty.COMPTIME_STRING)
    text = name if name.lstrip()[:1] in ("[", "{") else json_file(ev, name, scope, node.at)
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError) as error:
        what = "" if text is name else f"'{name}' "
        raise CslError(node.at, f"@import_comptime_value takes JSON: {what}{error}") from error
    wanted = ev.type_of(node.args[0], scope)
    value = from_json(ev, plain, scope, node.at)
    if isinstance(wanted, ty.HandleType) and ty.is_int(value.type):
        return Value(wanted, value.data)
    return ev.coerce(value, wanted, node.at)


def json_file(ev: Evaluation, name: str, scope: Scope, at: int) -> str:
    """Return the text of a file next to the module, or else below the layout's folder.

    Raises
    ------
    CslError
        If the file cannot be read.
    """
    path = ev.unit.compiler.files.find(name, scope.instance.path)
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise CslError(at, f"@import_comptime_value cannot read '{name}' (as {path}): {why}") from error


def from_json(ev: Evaluation, plain: object, scope: Scope, at: int) -> Value:
    """Convert a JSON value to a compile-time value; a field's name may include its type, as in
    "size:u16".

    Raises
    ------
    CslError
        If the value contains null.
    """
    if plain is None:
        raise CslError(at, "JSON null has no value here; leave the field out")
    if isinstance(plain, list):
        return Value(ty.COMPTIME_STRUCT, {i: from_json(ev, x, scope, at) for i, x in enumerate(plain)})
    if isinstance(plain, dict):
        found: dict[str | int, Operand] = {}
        for label, inner in plain.items():
            name, colon, kind = str(label).partition(":")
            value: Operand = from_json(ev, inner, scope, at)
            if colon:
                wanted = ev.type_of(parse_type(kind), scope)
                value = (
                    Value(wanted, value.data)
                    if isinstance(wanted, ty.HandleType)
                    else ev.coerce(value, wanted, at)
                )
            found[name.strip()] = value
        return Value(ty.COMPTIME_STRUCT, found)
    return json_scalar(plain)


# ---- checks
def b_comptime_assert(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    count(node, 1, 2)
    if not ev.condition(node.args[0], scope):
        text = ": " + ev.data(node.args[1], scope, ty.COMPTIME_STRING) if len(node.args) > 1 else ""
        raise CslError(node.at, f"assertion failed{text}")
    return VOID_VALUE


def b_comptime_print(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    text = " ".join(show(ev.known(a, scope)) for a in node.args)
    ev.effect(ev.unit.compiler.notes.append, f"{where(node.at)}: {text}")
    return VOID_VALUE


def b_assert(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    count(node, 1)
    if not ev.condition(node.args[0], scope):
        raise CslError(node.at, "assertion failed")
    return VOID_VALUE


# ---- handles
def handle(ev: Evaluation, node: tree.Builtin, scope: Scope, name: str, low: int, high: int) -> Operand:
    count(node, 1)
    value = ev.eval(node.args[0], scope)
    t = ty.HANDLES[name]
    if isinstance(value.type, ty.HandleType):
        value = ev.retype(value, ty.U16)
    if not ty.is_int(value.type):
        raise CslError(node.at, f"{node.name} takes an integer, found '{value.type}'")
    if name == "color" and judges(ev, scope):
        high = HANDLE_LIMITS["color"]
    if type(value) is Value and not low <= value.data <= high:
        raise CslError(
            node.at,
            f"{node.name}({value.data}): the {name} must be {low} to {high} on {ev.options.arch}",
        )
    return ev.retype(value, t)


def b_get_color(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    return handle(ev, node, scope, "color", 0, 31)


def b_get_input_queue(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    return handle(ev, node, scope, "input_queue", 0, 7)


def b_get_output_queue(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    return handle(ev, node, scope, "output_queue", 0, 7 if ev.options.wse3 else 5)


def b_get_ut_id(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    return handle(ev, node, scope, "ut_id", 0, 7)


def b_get_local_task_id(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    return handle(ev, node, scope, "local_task_id", 8 if ev.options.wse3 else 0, 30)


def b_get_control_task_id(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    return handle(ev, node, scope, "control_task_id", 0, 63)


def b_get_data_task_id(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    count(node, 1)
    value = ev.eval(node.args[0], scope)
    wanted = ty.INPUT_QUEUE if ev.options.wse3 else ty.COLOR
    if value.type is not wanted:
        raise CslError(
            node.at,
            f"@get_data_task_id takes a value of type '{wanted}' on {ev.options.arch}, found '{value.type}'",
        )
    return ev.retype(value, ty.DATA_TASK_ID)


# ---- internal builtins of the bundled libraries
def b___math(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    """Evaluate `@__math("sqrt", x[, y])`, a function of f32 or f16."""
    name = ev.data(node.args[0], scope, ty.COMPTIME_STRING)
    args = [ev.eval(a, scope) for a in node.args[1:]]
    return ev.math(name, args, node.at)


def b___fabs(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    """Evaluate `@__fabs(x)`, the absolute value of a float."""
    value = ev.eval(node.args[0], scope)
    return ev.absolute(value, node.at)


def b___sys(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Operand:
    """Schedule a system operation without a result for the start of the program, if it is in a comptime
    block.

    Raises
    ------
    CslError
        If it has a result or is not in a program's comptime block.
    """
    if ev.strict or ev.unit.program is None or ev.type_of(node.args[0], scope) is not ty.VOID:
        raise CslError(node.at, "this is known only at run time")
    at_start(ev, node, scope, [ev.known(a, scope) for a in node.args[2:]])
    return VOID_VALUE


def b___class(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    """Evaluate `@__class(T)`: "int", "float" or the name of the type's class, for generic libraries."""
    t = ev.type_of(node.args[0], scope)
    kind = "int" if ty.is_int(t) else "float" if ty.is_float(t) else type(t).__name__
    return Value(ty.COMPTIME_STRING, kind)


def b___bits(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    """Evaluate `@__bits(T)`, the number of bits of a number type."""
    return Value(ty.COMPTIME_INT, getattr(ev.type_of(node.args[0], scope), "bits", 0))


def b___signed(ev: Evaluation, node: tree.Builtin, scope: Scope) -> Value:
    return TRUE if getattr(ev.type_of(node.args[0], scope), "signed", True) else FALSE


def json_scalar(plain: object) -> Value:
    """Convert a JSON scalar to a compile-time value."""
    if isinstance(plain, bool):
        return TRUE if plain else FALSE
    if isinstance(plain, int):
        return Value(ty.COMPTIME_INT, plain)
    if isinstance(plain, float):
        return Value(ty.COMPTIME_FLOAT, plain)
    if isinstance(plain, str):
        return Value(ty.COMPTIME_STRING, plain)
    return VOID_VALUE


Builtin = Callable[..., Operand]
"""From evaluator, node and scope to the value."""


def builtins_of(*modules: ModuleType) -> dict[str, Builtin]:
    """Return the functions `b_NAME` of modules as builtins, by name."""
    return {f"@{n[2:]}": f for module in modules for n, f in vars(module).items() if n.startswith("b_")}


BUILTINS: dict[str, Builtin] = {
    **{name: deferred for name, function in SYSTEM_BUILTINS.items() if function.builtin[1] == "void"},
    **builtins_of(builtins_layout, builtins_tasks, builtins_program, builtins_dsd, sys.modules[__name__]),
}


def no_builtin(node: tree.Builtin, known: Iterable[str]) -> CslError:
    """Return the error for a builtin that has no function in the table `known`."""
    name = node.name
    if name in ABSENT:
        return CslError(node.at, f"{name} is not part of this machine: {ABSENT[name]}")
    if name in RUN_TIME_BUILTINS:
        return CslError(
            node.at,
            f"{name} runs on the core only, and this is evaluated at compile time; call it in a function or task",
        )
    public = [k for k in known if not k.startswith("@__")]
    close = difflib.get_close_matches(name, [*public, *SYSTEM_BUILTINS, *(f"@{op}" for op in VECTOR_OPS)], 1)
    return CslError(
        node.at, f"there is no builtin '{name}'" + (f"; did you mean '{close[0]}'?" if close else "")
    )
