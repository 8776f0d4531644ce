"""Compile-time evaluation of expressions, types and conversions."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from wse_sim.csl import mathlib, tree
from wse_sim.csl import types as ty
from wse_sim.csl.builtins import BUILTINS, Builtin, check_bitcast, no_builtin
from wse_sim.csl.coerce import arithmetic, coerce_known, compare, convert
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.evaluate_places import DIRECTIONS, MAX_DEPTH, PlaceEvaluator, Scope
from wse_sim.csl.lanes import Lanes, integer
from wse_sim.csl.strict import check_cases, check_enums, check_sides, demand, judges
from wse_sim.csl.values import (
    FALSE,
    TRUE,
    VOID_VALUE,
    Cell,
    Dsd,
    Function,
    Global,
    Operand,
    Range,
    Ref,
    Value,
    copy,
    from_words,
    show,
    words_of,
    zero,
)


class ExpressionEvaluator(PlaceEvaluator):
    """Evaluator of known expressions."""

    builtins: Mapping[str, Builtin] = BUILTINS

    # ---- expressions
    def x_Name(self, node: tree.Name, scope: Scope) -> Operand:
        found = self.lookup(node, scope)
        if type(found) is Value:
            return found
        return self.load(self.access(node, scope), node.at)

    def x_Number(self, node: tree.Number, scope: Scope) -> Value:
        return Value(ty.COMPTIME_INT if isinstance(node.value, int) else ty.COMPTIME_FLOAT, node.value)

    def x_Bool(self, node: tree.Bool, scope: Scope) -> Value:
        return TRUE if node.value else FALSE

    def x_String(self, node: tree.String, scope: Scope) -> Value:
        return Value(ty.COMPTIME_STRING, node.value)

    def x_Char(self, node: tree.Char, scope: Scope) -> Value:
        return Value(ty.U8, ord(node.value) & 255)

    def x_Member(self, node: tree.Member, scope: Scope) -> Operand:
        return self.load(self.access(node, scope), node.at)

    x_Index = x_Member
    x_Deref = x_Member

    def x_Unary(self, node: tree.Unary, scope: Scope) -> Operand:
        if node.op == "&":
            return self.address_of(node.operand, scope, node.at)
        value = self.eval(node.operand, scope)
        if node.op == "~" and judges(self, scope):
            demand(
                self,
                value.type is not ty.COMPTIME_INT,
                node.at,
                "'~' of a comptime_int; give it a fixed width, as in ~@as(u16, 5)",
            )
        return self.unary(node.op, value, node.at)

    def address_of(self, node: tree.Node, scope: Scope, at: int) -> Operand:
        place = self.access(node, scope)
        if type(place) is Value:
            place = self.constant_place(node, place, scope)
        if type(place) is not Ref:
            raise CslError(at, "'&' needs a variable, an element or a field")
        return Value(ty.pointer(place.type, not place.root.mutable), place)

    def constant_place(self, node: tree.Node, value: Value, scope: Scope) -> Operand:
        """Return a place for a constant whose address is taken; a module's scalar constant always has the
        same place."""
        if value.type.runtime and value.type is not ty.VOID:
            if isinstance(node, tree.Name):
                found = self.lookup(node, scope)
                if isinstance(found, Global):
                    return Ref(found, (), found.type)
            return Ref(Cell("constant", value.type, value.data, False, node.at), (), value.type)
        return value

    def unary(self, op: str, value: Operand, at: int) -> Operand:
        t, data = value.type, value.data
        if op == "-":
            if isinstance(t, ty.IntType):
                return Value(t, t.wrap(-data))
            if ty.is_number(t):
                return Value(t, -data)
        elif op == "~":
            if isinstance(t, ty.IntType):
                return Value(t, t.wrap(~data))
            if t is ty.COMPTIME_INT:
                return Value(t, ~data)
        elif t is ty.BOOL:
            if type(data) is Lanes:
                return Value(t, data == 0)
            return FALSE if data else TRUE
        raise CslError(at, f"'{op}' of a value of type '{t}' is not defined")

    def x_Binary(self, node: tree.Binary, scope: Scope) -> Operand:
        op = node.op
        if op in {"and", "or"}:
            return self.logical(node, scope)
        left, right = self.sides(node, scope)
        if self.options.strict:
            check_sides(self, op, left, right, node, scope)
        return self.binary(op, left, right, node.at)

    def sides(self, node: tree.Binary, scope: Scope) -> tuple[Operand, Operand]:
        """Evaluate both sides of an operator; subclasses also assign types to values that are chosen at run
        time."""
        return self.eval(node.left, scope), self.eval(node.right, scope)

    def logical(self, node: tree.Binary, scope: Scope) -> Operand:
        left = self.condition(node.left, scope)
        if left == (node.op == "or"):
            return TRUE if left else FALSE
        return TRUE if self.condition(node.right, scope) else FALSE

    def condition(self, node: tree.Node, scope: Scope) -> bool:
        value = self.known(node, scope)
        if value.type is not ty.BOOL:
            raise CslError(
                node.at, f"a condition must be a bool, found '{value.type}'; compare it, as in x != 0"
            )
        return value.data  # type: ignore[no-any-return]

    def binary(self, op: str, left: Operand, right: Operand, at: int) -> Operand:
        if op in ("==", "!=", "<", "<=", ">", ">="):
            answer = compare(op, left, right, at)
            if type(answer) is Lanes:
                return Value(ty.BOOL, answer)
            return TRUE if answer else FALSE
        return arithmetic(op, left, right, at)

    def x_IfExpr(self, node: tree.IfExpr, scope: Scope) -> Operand:
        if self.condition(node.test, scope):
            return self.eval(node.yes, scope)
        if node.no is None:
            raise CslError(node.at, "the condition is false and there is no 'else' that gives a value")
        return self.eval(node.no, scope)

    def x_ComptimeExpr(self, node: tree.ComptimeExpr, scope: Scope) -> Operand:
        return self.comptime_eval(node.value, scope)

    def x_Tensor(self, node: tree.Tensor, scope: Scope) -> Value:
        return Value(ty.COMPTIME_STRUCT, {"tensor": Value(ty.MODULE, (node, scope))})

    def x_Switch(self, node: tree.Switch, scope: Scope) -> Operand:
        value = self.known(node.subject, scope)
        arm = self.chosen_arm(node, value, scope)
        if arm is None:
            raise CslError(node.at, f"no arm of the switch takes {show(value)}, and there is no 'else'")
        return self.eval(arm, scope)

    def chosen_arm(self, node: tree.Switch, value: Value, scope: Scope) -> tree.Node | None:
        default = None
        check_cases(self, node, value.type, scope)
        for keys, body in node.arms:
            if keys is None:
                default = body
            elif any(compare("==", value, self.known(k, scope), k.at) for k in keys):
                return body
        return default

    def x_Block(self, node: tree.Block, scope: Scope) -> Operand:
        if not node.statements:
            return VOID_VALUE
        signal = self.exec(node, scope)
        if signal is None:
            return VOID_VALUE
        if signal[0] == "break" and signal[1] == node.label:
            return signal[2] if signal[2] is not None else VOID_VALUE
        raise CslError(
            node.at, f"a '{signal[0]}' leaves a block that is used as a value; use 'break :label value'"
        )

    def x_Literal(self, node: tree.Literal, scope: Scope) -> Operand:
        known = self.unit.compiler.literals.get(id(node))
        if known is not None:
            return known
        value = self.literal(node, scope)
        if type(value) is Value and plain(node, scope):
            self.unit.compiler.literals[id(node)] = value
        return value

    def literal(self, node: tree.Literal, scope: Scope) -> Operand:
        fields: dict[str | int, Operand] = {}
        for k, (name, inner) in enumerate(node.fields):
            if name in fields:
                raise CslError(inner.at, f"the field '{name}' is given twice")
            fields[k if name is None else name] = self.eval(inner, scope)
        if any(n is None for n, _ in node.fields) and any(n is not None for n, _ in node.fields):
            raise CslError(node.at, "a literal has either names for all fields or for none")
        value = Value(ty.COMPTIME_STRUCT, fields)
        if node.type is None:
            return value
        return self.coerce(value, self.type_of(node.type, scope), node.at)

    def x_Builtin(self, node: tree.Builtin, scope: Scope) -> Operand:
        function = self.builtins.get(node.name)
        if function is None:
            raise no_builtin(node, self.builtins)
        return function(self, node, scope)

    def x_Call(self, node: tree.Call, scope: Scope) -> Operand:
        callee = self.known(node.callee, scope)
        if not isinstance(callee.data, Function):
            raise CslError(node.at, f"a value of type '{callee.type}' cannot be called")
        if callee.data.node.kind == "task":
            raise CslError(
                node.at, f"'{callee.data.name}' is a task and cannot be called; activate it with @activate"
            )
        return self.call(callee.data, [self.eval(a, scope) for a in node.args], node.at)

    def check_count(self, fn: Function, given: int, at: int) -> None:
        if given != len(fn.node.params):
            raise CslError(at, f"'{fn.name}' takes {len(fn.node.params)} arguments but {given} are given")

    def call(self, fn: Function, args: Sequence[Operand], at: int) -> Operand:
        """Evaluate a function call at compile time.

        Raises
        ------
        CslError
            If the function has no body, is called with the wrong number of arguments, or calls itself too
            deeply.
        """
        node = fn.node
        self.check_count(fn, len(args), at)
        if node.body is None:
            raise CslError(at, f"'{fn.name}' is declared without a body")
        if self.depth >= MAX_DEPTH:
            raise CslError(
                at,
                f"calls at compile time are nested deeper than {MAX_DEPTH}; '{fn.name}' seems to call itself endlessly",
            )
        scope = Scope(fn.instance)
        for p, value in zip(node.params, args, strict=True):
            t = None if p.type is None else self.type_of(p.type, scope)
            value = value if t is None else self.coerce(value, t, at)
            scope.names[p.name] = Value(value.type, copy(value.data))  # type: ignore[index]
        result = scope.result = self.type_of(node.result, scope)
        self.unit.compiler.reached.add(node.at)
        self.depth += 1
        try:
            signal = self.exec(node.body, scope)
        finally:
            self.depth -= 1
        if signal is None or signal[0] != "return":
            if result is not ty.VOID:
                raise CslError(node.at, f"'{fn.name}' ends without a return; it must return a '{result}'")
            return VOID_VALUE
        return signal[1]

    # ---- types
    def x_PointerType(self, node: tree.PointerType, scope: Scope) -> Value:
        return Value(ty.TYPE, ty.pointer(self.type_of(node.target, scope), node.const, node.many))

    def x_ArrayType(self, node: tree.ArrayType, scope: Scope) -> Value:
        shape = []
        for size in node.sizes:
            n = self.data(size, scope, ty.COMPTIME_INT)
            if n < 0:
                raise CslError(size.at, f"the size of an array is {n}; it must not be negative")
            shape.append(n)
        element = self.type_of(node.element, scope)
        if judges(self, scope) and isinstance(element, ty.ArrayType):
            raise CslError(
                node.at,
                "the elements of an array must not be arrays; write its dimensions together, as [2, 3]T",
            )
        return Value(ty.TYPE, ty.array(tuple(shape), element))

    def x_FnType(self, node: tree.FnType, scope: Scope) -> Value:
        params = tuple(None if p.type is None else self.type_of(p.type, scope) for p in node.params)
        return Value(ty.TYPE, ty.function(node.kind, params, self.type_of(node.result, scope)))

    def x_StructType(self, node: tree.StructType, scope: Scope) -> Value:
        fields = [(str(f.name), self.type_of(f.type, scope)) for f in node.fields if f.type is not None]
        names = [n for n, _ in fields]
        for n, f in zip(names, node.fields, strict=True):
            if names.count(n) > 1:
                raise CslError(f.at, f"the field '{n}' is declared twice")
        key = (id(node), tuple(t for _, t in fields))
        known = self.unit.compiler.structs
        if key not in known:
            t = known[key] = ty.StructType(fields, node.kind, node.layout)
            for place, ((n, inner), f) in enumerate(zip(fields, node.fields, strict=True)):
                if t.shifts[place] >= 0 and not can_share_word(inner):
                    raise CslError(
                        f.at,
                        f"the field '{n}' of type '{inner}' begins or ends inside a word of this packed structure; a field that shares "
                        "a word is an integer, a float, a bool, an enum, a pointer or a packed structure",
                    )
        return Value(ty.TYPE, known[key])

    def x_EnumType(self, node: tree.EnumType, scope: Scope) -> Value:
        base = self.type_of(node.base, scope)
        key = (id(node), (base,))
        known = self.unit.compiler.structs
        if key not in known:
            names: dict[str, int] = {}
            given = {name: self.data(value, scope, base) for name, value in node.names if value is not None}
            free = (n for n in itertools.count() if n not in given.values())
            for name, _ in node.names:
                if name in names:
                    raise CslError(node.at, f"the enum names '{name}' twice")
                number = given[name] if name in given else next(free)
                if number in names.values():
                    raise CslError(node.at, f"the enum gives the value {number} twice, to '{name}' as well")
                if isinstance(base, ty.IntType) and not base.low <= number <= base.high:
                    raise CslError(
                        node.at, f"'{name}' is {number}, which does not fit the type '{base}' of the enum"
                    )
                names[name] = number
            known[key] = ty.EnumType(base, names)
        return Value(ty.TYPE, known[key])

    # ---- variables of anonymous structures
    def with_layout(self, value: Operand) -> Operand:
        """Convert an anonymous structure whose fields all have run-time types to a value of a structure type;
        return other values unchanged."""
        if value.type is not ty.COMPTIME_STRUCT or type(value) is not Value or not value.data:
            return value
        fields: list[tuple[str, ty.Type]] = []
        given: dict[str | int, Operand] = {}
        for name, inner in value.data.items():
            inner = self.with_layout(inner)
            if not inner.type.runtime or inner.type is ty.VOID:
                return value
            fields.append((str(name), inner.type))
            given[name] = inner
        is_tuple = isinstance(next(iter(given)), int)
        key = ("anonymous", is_tuple, tuple(fields))
        known = self.unit.compiler.structs
        if key not in known:
            label = ", ".join(str(t) if is_tuple else f".{n}: {t}" for n, t in fields)
            known[key] = ty.StructType(fields, label=f".{{ {label} }}", is_tuple=is_tuple)
        t = known[key]
        assert isinstance(t, ty.StructType)
        return self.aggregate(t, list(given.values()), 0)

    # ---- conversions
    def coerce(self, value: Operand, t: ty.Type, at: int) -> Operand:
        """Convert `value` to type `t` if the language does so implicitly.

        Raises
        ------
        CslError
            If it does not.
        """
        if value.type is t:
            return value
        if value.type is ty.COMPTIME_STRUCT and type(value) is Value:
            if isinstance(t, ty.StructType):
                return self.aggregate(t, self.struct_fields(value, t, at), at)
            if isinstance(t, ty.ArrayType):
                return self.aggregate(t, self.array_items(value, t, at), at)
        if t is ty.COMPTIME_STRUCT and isinstance(value.type, ty.StructType) and type(value) is Value:
            pairs = zip(value.type.fields, value.data, strict=True)
            return Value(t, {n: Value(f, x) for (n, f), x in pairs})
        return self.coerce_scalar(value, t, at)

    def coerce_scalar(self, value: Operand, t: ty.Type, at: int) -> Operand:
        return coerce_known(value, t, at)

    def struct_fields(self, value: Value, t: ty.StructType, at: int) -> list[Operand]:
        given = dict(value.data)
        if given and all(isinstance(k, int) for k in given):
            given = {n: given[i] for i, (n, _) in enumerate(t.fields) if i in given}
        items: list[Operand] = []
        for name, inner in t.fields:
            if name not in given:
                if t.kind == "union":
                    items.append(Value(inner, zero(inner)))
                    continue
                raise CslError(at, f"the field '{name}' of '{t}' is missing")
            items.append(self.coerce(given.pop(name), inner, at))
        if given or len(value.data) > len(t.fields):
            extra = next(iter(given), len(t.fields))
            raise CslError(at, f"'{t}' has no field '{extra}'; its fields are {', '.join(t.index)}")
        return items

    def array_items(self, value: Value, t: ty.ArrayType, at: int) -> list[Operand]:
        fields = value.data
        if any(isinstance(k, str) for k in fields):
            raise CslError(at, f"an array of type '{t}' takes elements without names")
        if len(fields) == t.shape[0] and len(t.shape) > 1:
            inner = ty.array(t.shape[1:], t.element)
            rows = [self.coerce(v, inner, at) for v in fields.values()]
            return [Value(t.element, x) for row in rows for x in row.data]
        if len(fields) != t.count:
            raise CslError(at, f"an array of type '{t}' takes {t.count} elements but {len(fields)} are given")
        return [self.coerce(v, t.element, at) for v in fields.values()]

    def aggregate(self, t: ty.Type, items: Sequence[Operand], at: int) -> Operand:
        for item in items:
            if type(item) is not Value:
                raise CslError(at, "every element must be known at compile time here")
        return Value(t, [copy(item.data) for item in items])

    # ---- conversions and functions of known operands
    def convert(self, value: Operand, t: ty.Type, at: int) -> Operand:
        """Convert a value as `@as` does, enums included."""
        if isinstance(value.type, ty.EnumType) and ty.is_int(t):
            value = Value(value.type.base, value.data)
        if isinstance(value.type, ty.EnumType):
            check_enums(self, value.type, t, at)
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

    def bitcast(self, value: Operand, t: ty.Type, at: int) -> Operand:
        check_bitcast(value.type, t, at)
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

    def retype(self, value: Operand, t: ty.Type) -> Operand:
        """Reinterpret the bits of a value as another type."""
        return Value(t, integer(value.data))

    def ptrcast(self, value: Operand, t: ty.PointerType) -> Operand:
        return Value(t, value.data)

    def make_range(self, t: ty.Type, values: Sequence[Operand], node: tree.Builtin) -> Operand:
        numbers = [self.coerce(v, t, a.at).data for v, a in zip(values, node.args[1:], strict=True)]
        start, stop, step = (0, numbers[0], 1) if len(numbers) == 1 else numbers
        if step == 0:
            raise CslError(node.at, "the step of a range must not be 0")
        return Value(ty.RANGE, Range(t, start, stop, step))

    def math(self, name: str, args: Sequence[Operand], at: int) -> Operand:
        t = args[0].type
        return Value(t, mathlib.evaluate(name, [a.data for a in args], t))

    def absolute(self, value: Operand, at: int) -> Operand:
        return Value(value.type, abs(value.data))

    def run_dsd(self, frame: Dsd, parts: Mapping[str, Operand], at: int) -> Operand:
        raise CslError(at, "the fields of this DSD must be known at compile time here")

    def scaled(self, value: Operand, factor: int, at: int) -> Operand:
        return Value(ty.I16, value.data * factor)

    def change_dsd(self, op: str, dsd: Operand, amount: Operand, at: int) -> Operand:
        raise CslError(at, "this must be known at compile time here")


def can_share_word(t: ty.Type) -> bool:
    """Return whether a field of this type may begin inside a word."""
    if isinstance(t, ty.StructType):
        return t.layout == "packed"
    return not isinstance(t, (ty.ArrayType, ty.DsdType))


def plain(node: tree.Node, scope: Scope) -> bool:
    """Return whether a literal consists only of numbers, strings and directions, so that its value is the
    same everywhere."""
    if isinstance(node, tree.Literal):
        return node.type is None and all(plain(v, scope) for _, v in node.fields)
    if isinstance(node, tree.Name):
        return node.id in DIRECTIONS and node.id not in scope.instance.members
    return isinstance(node, (tree.Number, tree.Bool, tree.String))
