"""Builtins that are evaluated at compile time; those with run-time effects are in
:mod:`wse_sim.csl.lower_builtins`.

Method `b_NAME` takes the node and the scope, and returns the value of `@NAME(...)`.

One file, because it is the list of the builtins.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from wse_sim.csl import mathlib, tree
from wse_sim.csl import types as ty
from wse_sim.csl.builtins_dsd import DsdBuiltins
from wse_sim.csl.builtins_program import ProgramBuiltins
from wse_sim.csl.coerce import convert
from wse_sim.csl.diagnostics import CslError, where
from wse_sim.csl.lanes import integer
from wse_sim.csl.modules import Scope
from wse_sim.csl.parse import parse_type
from wse_sim.csl.values import (
    FALSE,
    TRUE,
    VOID_VALUE,
    Operand,
    Range,
    Ref,
    Value,
    from_words,
    is_packed,
    show,
    words_of,
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


class Builtins(DsdBuiltins, ProgramBuiltins):
    """Builtins without run-time effects."""

    def x_Builtin(self, node: tree.Builtin, scope: Scope) -> Operand:
        method = getattr(self, "b_" + node.name[1:], None)
        if method is None:
            if node.name in ABSENT:
                raise CslError(node.at, f"{node.name} is not part of this machine: {ABSENT[node.name]}")
            if node.name in RUN_TIME_BUILTINS:
                raise CslError(
                    node.at,
                    f"{node.name} runs on the core only, and this is evaluated at compile time; call it in a function or task",
                )
            raise CslError(node.at, f"there is no builtin '{node.name}'{self.near_builtin(node.name)}")
        return method(node, scope)

    def near_builtin(self, name: str) -> str:
        import difflib

        known = ["@" + n[2:] for n in dir(self) if n.startswith("b_") and not n.startswith("b___")]
        known += [*SYSTEM_BUILTINS, *(f"@{name}" for name in VECTOR_OPS)]
        close = difflib.get_close_matches(name, known, 1)
        return f"; did you mean '{close[0]}'?" if close else ""

    def count(self, node: tree.Builtin, low: int, high: int | None = None) -> None:
        """Check the number of arguments of a builtin.

        Raises
        ------
        CslError
            If it is not `low` to `high`.
        """
        high = low if high is None else high
        if not low <= len(node.args) <= high:
            wanted = f"{low}" if low == high else f"{low} to {high}"
            raise CslError(
                node.at,
                f"{node.name} takes {wanted} argument{'' if wanted == '1' else 's'} but {len(node.args)} are given",
            )

    # ---- conversions
    def b_as(self, node: tree.Builtin, scope: Scope) -> Operand:
        self.count(node, 2)
        return self.convert(self.eval(node.args[1], scope), self.type_of(node.args[0], scope), node.at)

    def convert(self, value: Operand, t: ty.Type, at: int) -> Operand:
        """Convert a value as `@as` does, enums included."""
        if isinstance(value.type, ty.EnumType) and ty.is_int(t):
            value = Value(value.type.base, value.data)
        if isinstance(value.type, ty.EnumType):
            self.check_enums(value.type, t, at)
        if isinstance(value.data, dict):
            return self.coerce(value, t, at)
        if isinstance(t, ty.EnumType) and ty.is_int(value.type):
            number = convert(value, t.base, at).data
            if number not in t.names.values():
                raise CslError(
                    at,
                    f"{number} is not a value of the enum; it has {', '.join(f'{n} = {k}' for n, k in t.names.items())}",
                )
            return Value(t, number)
        return convert(value, t, at)

    def b_bitcast(self, node: tree.Builtin, scope: Scope) -> Operand:
        self.count(node, 2)
        return self.bitcast(self.eval(node.args[1], scope), self.type_of(node.args[0], scope), node.at)

    def bitcast(self, value: Operand, t: ty.Type, at: int) -> Operand:
        self.check_bitcast(value.type, t, at)
        if isinstance(value.type, (ty.PointerType, ty.DsdType)) or isinstance(
            t, (ty.PointerType, ty.DsdType)
        ):
            raise CslError(at, f"@bitcast from '{value.type}' to '{t}' is known only at run time")
        words = words_of(value.type, value.data)
        if words is None:
            raise CslError(
                at, f"@bitcast from '{value.type}' takes a variable here; assign the value to a 'var' first"
            )
        return Value(t, from_words(t, words))

    def check_bitcast(self, s: ty.Type, t: ty.Type, at: int) -> None:
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

    def b_ptrcast(self, node: tree.Builtin, scope: Scope) -> Operand:
        self.count(node, 2)
        t = self.type_of(node.args[0], scope)
        value = self.eval(node.args[1], scope)
        if not isinstance(t, ty.PointerType):
            raise CslError(node.at, f"@ptrcast needs a pointer type; '{t}' is not one")
        if not isinstance(value.type, ty.PointerType):
            raise CslError(node.at, f"@ptrcast takes a pointer, found '{value.type}'")
        return self.ptrcast(value, t)

    def ptrcast(self, value: Operand, t: ty.PointerType) -> Operand:
        return Value(t, value.data)

    # ---- types
    def b_type_of(self, node: tree.Builtin, scope: Scope) -> Value:
        self.count(node, 1)
        return Value(ty.TYPE, self.access(node.args[0], scope).type)

    def b_is_same_type(self, node: tree.Builtin, scope: Scope) -> Value:
        self.count(node, 2)
        return TRUE if self.type_of(node.args[0], scope) is self.type_of(node.args[1], scope) else FALSE

    def b_is_arch(self, node: tree.Builtin, scope: Scope) -> Value:
        self.count(node, 1)
        name = self.data(node.args[0], scope, ty.COMPTIME_STRING)
        if name not in ("wse1", "wse2", "wse3"):
            raise CslError(node.at, f'\'{name}\' is not an architecture; use "wse2" or "wse3"')
        return TRUE if self.options.arch == name else FALSE

    def b_is_comptime(self, node: tree.Builtin, scope: Scope) -> Value:
        return TRUE

    def b_fp16(self, node: tree.Builtin, scope: Scope) -> Value:
        return Value(ty.TYPE, ty.NAMED[self.options.fp16])

    def b_element_type(self, node: tree.Builtin, scope: Scope) -> Value:
        return Value(ty.TYPE, self.array_type(node, scope).element)

    def b_element_count(self, node: tree.Builtin, scope: Scope) -> Value:
        self.count(node, 1)
        value = self.access(node.args[0], scope)
        if value.type is ty.COMPTIME_STRUCT:
            return Value(ty.COMPTIME_INT, len(self.look(value) if type(value) is Ref else value.data))
        return Value(ty.COMPTIME_INT, self.array_type(node, scope).count)

    def b_rank(self, node: tree.Builtin, scope: Scope) -> Value:
        return Value(ty.COMPTIME_INT, len(self.array_type(node, scope).shape))

    def b_dimensions(self, node: tree.Builtin, scope: Scope) -> Value:
        t = self.array_type(node, scope)
        return Value(ty.array((len(t.shape),), ty.U32), list(t.shape))

    def array_type(self, node: tree.Builtin, scope: Scope) -> ty.ArrayType:
        self.count(node, 1)
        value = self.access(node.args[0], scope)
        t = value.data if value.type is ty.TYPE else value.type
        if isinstance(t, ty.PointerType) and isinstance(t.target, ty.ArrayType):
            t = t.target
        if not isinstance(t, ty.ArrayType):
            raise CslError(node.at, f"{node.name} takes an array or the type of one, found '{t}'")
        return t

    # ---- arrays and ranges
    def b_zeros(self, node: tree.Builtin, scope: Scope) -> Value:
        self.count(node, 1)
        t = self.type_of(node.args[0], scope)
        return Value(t, zero(t))

    def b_constants(self, node: tree.Builtin, scope: Scope) -> Operand:
        self.count(node, 2)
        t = self.type_of(node.args[0], scope)
        if not isinstance(t, ty.ArrayType):
            raise CslError(node.args[0].at, f"@constants takes the type of an array, found '{t}'")
        value = self.coerce(self.eval(node.args[1], scope), t.element, node.at)
        return self.aggregate(t, [value] * t.count, node.at)

    def b_range(self, node: tree.Builtin, scope: Scope) -> Operand:
        if len(node.args) not in (2, 4):
            raise CslError(
                node.at,
                f"@range takes (type, stop) or (type, start, stop, step) but {len(node.args)} arguments are given",
            )
        t = self.type_of(node.args[0], scope)
        if not ty.is_int(t):
            raise CslError(node.args[0].at, f"@range takes an integer type, found '{t}'")
        values = [self.eval(a, scope) for a in node.args[1:]]
        return self.make_range(t, values, node)

    def make_range(self, t: ty.Type, values: Sequence[Operand], node: tree.Builtin) -> Operand:
        numbers = [self.coerce(v, t, a.at).data for v, a in zip(values, node.args[1:], strict=True)]
        start, stop, step = (0, numbers[0], 1) if len(numbers) == 1 else numbers
        if step == 0:
            raise CslError(node.at, "the step of a range must not be 0")
        return Value(ty.RANGE, Range(t, start, stop, step))

    def range_part(self, node: tree.Builtin, scope: Scope, part: str) -> Value:
        self.count(node, 1)
        value = self.known(node.args[0], scope)
        if not isinstance(value.data, Range):
            raise CslError(node.at, f"{node.name} takes a range, found '{value.type}'")
        return Value(value.data.element, getattr(value.data, part))

    def b_range_start(self, node: tree.Builtin, scope: Scope) -> Value:
        return self.range_part(node, scope, "start")

    def b_range_stop(self, node: tree.Builtin, scope: Scope) -> Value:
        return self.range_part(node, scope, "stop")

    def b_range_step(self, node: tree.Builtin, scope: Scope) -> Value:
        return self.range_part(node, scope, "step")

    # ---- structures and strings
    def b_concat_structs(self, node: tree.Builtin, scope: Scope) -> Value:
        self.count(node, 2)
        parts = []
        for a in node.args:
            value = self.coerce(self.eval(a, scope), ty.COMPTIME_STRUCT, a.at)
            parts.append(value.data)
        one, two = parts
        if one and two and any(isinstance(k, str) for k in one) != any(isinstance(k, str) for k in two):
            raise CslError(node.at, "@concat_structs takes two structures with names or two without")
        if one and isinstance(next(iter(one)), int):
            return Value(ty.COMPTIME_STRUCT, dict(enumerate([*one.values(), *two.values()])))
        both = sorted(
            (k for k in set(one) & set(two) if self.judges(scope) or not is_same(one[k], two[k])), key=str
        )
        if both and isinstance(both[0], str):
            raise CslError(node.at, f"both structures have a field '{both[0]}'; a name may occur only once")
        return Value(ty.COMPTIME_STRUCT, {**one, **two})

    def field_name(self, node: tree.Builtin, scope: Scope) -> str:
        return str(self.data(node.args[1], scope, ty.COMPTIME_STRING))

    def field_place(self, node: tree.Builtin, scope: Scope) -> Operand:
        """Return the field that `@field` names, as a place if it has one."""
        self.count(node, 2)
        return self.member(self.access(node.args[0], scope), self.field_name(node, scope), node.at)

    def b_field(self, node: tree.Builtin, scope: Scope) -> Operand:
        return self.load(self.field_place(node, scope), node.at)

    def b_has_field(self, node: tree.Builtin, scope: Scope) -> Value:
        self.count(node, 2)
        value = self.access(node.args[0], scope)
        name = self.field_name(node, scope)
        t = value.data if value.type is ty.TYPE else value.type
        if isinstance(t, ty.StructType):
            return TRUE if name in t.index else FALSE
        if isinstance(t, ty.EnumType):
            return TRUE if name in t.names else FALSE
        inner = self.look(value) if type(value) is Ref else value.data
        if isinstance(inner, dict):
            return TRUE if name in inner else FALSE
        return TRUE if name in getattr(inner, "members", ()) else FALSE

    def b_strcat(self, node: tree.Builtin, scope: Scope) -> Value:
        return Value(ty.COMPTIME_STRING, "".join(self.data(a, scope, ty.COMPTIME_STRING) for a in node.args))

    def b_strlen(self, node: tree.Builtin, scope: Scope) -> Value:
        self.count(node, 1)
        return Value(ty.COMPTIME_INT, len(self.data(node.args[0], scope, ty.COMPTIME_STRING)))

    def b_get_array(self, node: tree.Builtin, scope: Scope) -> Value:
        self.count(node, 1)
        text = self.data(node.args[0], scope, ty.COMPTIME_STRING)
        return Value(ty.array((len(text),), ty.U8), [ord(c) & 255 for c in text])

    def b_get_string_from_byte(self, node: tree.Builtin, scope: Scope) -> Value:
        self.count(node, 1)
        return Value(ty.COMPTIME_STRING, chr(self.data(node.args[0], scope, ty.U8)))

    def b_get_int(self, node: tree.Builtin, scope: Scope) -> Operand:
        self.count(node, 1)
        value = self.eval(node.args[0], scope)
        t = value.type
        if not isinstance(t, (ty.HandleType, ty.EnumType)) and not ty.is_int(t):
            raise CslError(
                node.at, f"@get_int takes a color, a queue, an id, an enum or an integer, found '{t}'"
            )
        if ty.is_int(t):
            return value
        return self.retype(value, t.base if isinstance(t, ty.EnumType) else ty.U16)

    b_get_color_id = b_get_int
    """Older name of `@get_int` for colors, of the first releases."""

    def retype(self, value: Operand, t: ty.Type) -> Operand:
        """Reinterpret the bits of a value as another type."""
        return Value(t, integer(value.data))

    def b_import_comptime_value(self, node: tree.Builtin, scope: Scope) -> Operand:
        self.count(node, 2)
        name = self.data(node.args[1], scope, ty.COMPTIME_STRING)
        text = name if name.lstrip()[:1] in ("[", "{") else self.json_file(name, scope, node.at)
        try:
            plain = json.loads(text)
        except (ValueError, RecursionError) as error:
            what = "" if text is name else f"'{name}' "
            raise CslError(node.at, f"@import_comptime_value takes JSON: {what}{error}") from error
        wanted = self.type_of(node.args[0], scope)
        value = self.from_json(plain, scope, node.at)
        if isinstance(wanted, ty.HandleType) and ty.is_int(value.type):
            return Value(wanted, value.data)
        return self.coerce(value, wanted, node.at)

    def json_file(self, name: str, scope: Scope, at: int) -> str:
        """Return the text of a file next to the module, or else below the layout's folder.

        Raises
        ------
        CslError
            If the file cannot be read.
        """
        path = self.unit.compiler.files.find(name, scope.instance.path)
        try:
            return Path(path).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise CslError(at, f"@import_comptime_value cannot read '{name}' (as {path}): {why}") from error

    def from_json(self, plain: object, scope: Scope, at: int) -> Value:
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
            return Value(ty.COMPTIME_STRUCT, {i: self.from_json(x, scope, at) for i, x in enumerate(plain)})
        if isinstance(plain, dict):
            found: dict[str | int, Operand] = {}
            for label, inner in plain.items():
                name, colon, kind = str(label).partition(":")
                value: Operand = self.from_json(inner, scope, at)
                if colon:
                    wanted = self.type_of(parse_type(kind), scope)
                    value = (
                        Value(wanted, value.data)
                        if isinstance(wanted, ty.HandleType)
                        else self.coerce(value, wanted, at)
                    )
                found[name.strip()] = value
            return Value(ty.COMPTIME_STRUCT, found)
        return from_json(plain)

    # ---- checks
    def b_comptime_assert(self, node: tree.Builtin, scope: Scope) -> Value:
        self.count(node, 1, 2)
        if not self.condition(node.args[0], scope):
            text = ": " + self.data(node.args[1], scope, ty.COMPTIME_STRING) if len(node.args) > 1 else ""
            raise CslError(node.at, f"assertion failed{text}")
        return VOID_VALUE

    def b_comptime_print(self, node: tree.Builtin, scope: Scope) -> Value:
        text = " ".join(show(self.known(a, scope)) for a in node.args)
        self.effect(self.unit.compiler.notes.append, f"{where(node.at)}: {text}")
        return VOID_VALUE

    def b_assert(self, node: tree.Builtin, scope: Scope) -> Operand:
        self.count(node, 1)
        if not self.condition(node.args[0], scope):
            raise CslError(node.at, "assertion failed")
        return VOID_VALUE

    # ---- handles
    def handle(self, node: tree.Builtin, scope: Scope, name: str, low: int, high: int) -> Operand:
        self.count(node, 1)
        value = self.eval(node.args[0], scope)
        t = ty.HANDLES[name]
        if isinstance(value.type, ty.HandleType):
            value = self.retype(value, ty.U16)
        if not ty.is_int(value.type):
            raise CslError(node.at, f"{node.name} takes an integer, found '{value.type}'")
        if name == "color" and self.judges(scope):
            high = HANDLE_LIMITS["color"]
        if type(value) is Value and not low <= value.data <= high:
            raise CslError(
                node.at,
                f"{node.name}({value.data}): the {name} must be {low} to {high} on {self.options.arch}",
            )
        return self.retype(value, t)

    def b_get_color(self, node: tree.Builtin, scope: Scope) -> Operand:
        return self.handle(node, scope, "color", 0, 31)

    def b_get_input_queue(self, node: tree.Builtin, scope: Scope) -> Operand:
        return self.handle(node, scope, "input_queue", 0, 7)

    def b_get_output_queue(self, node: tree.Builtin, scope: Scope) -> Operand:
        return self.handle(node, scope, "output_queue", 0, 7 if self.options.wse3 else 5)

    def b_get_ut_id(self, node: tree.Builtin, scope: Scope) -> Operand:
        return self.handle(node, scope, "ut_id", 0, 7)

    def b_get_local_task_id(self, node: tree.Builtin, scope: Scope) -> Operand:
        return self.handle(node, scope, "local_task_id", 8 if self.options.wse3 else 0, 30)

    def b_get_control_task_id(self, node: tree.Builtin, scope: Scope) -> Operand:
        return self.handle(node, scope, "control_task_id", 0, 63)

    def b_get_data_task_id(self, node: tree.Builtin, scope: Scope) -> Operand:
        self.count(node, 1)
        value = self.eval(node.args[0], scope)
        wanted = ty.INPUT_QUEUE if self.options.wse3 else ty.COLOR
        if value.type is not wanted:
            raise CslError(
                node.at,
                f"@get_data_task_id takes a value of type '{wanted}' on {self.options.arch}, found '{value.type}'",
            )
        return self.retype(value, ty.DATA_TASK_ID)

    # ---- internal builtins of the bundled libraries
    def b___math(self, node: tree.Builtin, scope: Scope) -> Operand:
        """Evaluate `@__math("sqrt", x[, y])`, a function of f32 or f16."""
        name = self.data(node.args[0], scope, ty.COMPTIME_STRING)
        args = [self.eval(a, scope) for a in node.args[1:]]
        return self.math(name, args, node.at)

    def math(self, name: str, args: Sequence[Operand], at: int) -> Operand:
        t = args[0].type
        return Value(t, mathlib.evaluate(name, [a.data for a in args], t))

    def b___fabs(self, node: tree.Builtin, scope: Scope) -> Operand:
        """Evaluate `@__fabs(x)`, the absolute value of a float."""
        value = self.eval(node.args[0], scope)
        return self.absolute(value, node.at)

    def absolute(self, value: Operand, at: int) -> Operand:
        return Value(value.type, abs(value.data))

    def b___sys(self, node: tree.Builtin, scope: Scope) -> Operand:
        """Schedule a system operation without a result for the start of the program, if it is in a comptime
        block.

        Raises
        ------
        CslError
            If it has a result or is not in a program's comptime block.
        """
        if self.strict or self.unit.program is None or self.type_of(node.args[0], scope) is not ty.VOID:
            raise CslError(node.at, "this is known only at run time")
        self.at_start(node, scope, [self.known(a, scope) for a in node.args[2:]])
        return VOID_VALUE

    def b___class(self, node: tree.Builtin, scope: Scope) -> Value:
        """Evaluate `@__class(T)`: "int", "float" or the name of the type's class, for generic libraries."""
        t = self.type_of(node.args[0], scope)
        kind = "int" if ty.is_int(t) else "float" if ty.is_float(t) else type(t).__name__
        return Value(ty.COMPTIME_STRING, kind)

    def b___bits(self, node: tree.Builtin, scope: Scope) -> Value:
        """Evaluate `@__bits(T)`, the number of bits of a number type."""
        return Value(ty.COMPTIME_INT, getattr(self.type_of(node.args[0], scope), "bits", 0))

    def b___signed(self, node: tree.Builtin, scope: Scope) -> Value:
        return TRUE if getattr(self.type_of(node.args[0], scope), "signed", True) else FALSE


def from_json(plain: object) -> Value:
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
