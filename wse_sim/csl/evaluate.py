"""The comptime interpreter: expressions and statements whose values are known now.

`eval(node, scope)` gives a value, `access(node, scope)` a place (`Ref`) where there is one.  A statement gives None or a signal:
a tuple ("break", label, value), ("continue", label) or ("return", value).  :mod:`wse_sim.csl.lower` inherits from it and emits code
where an operand is known at run time only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.builtins import Builtins
from wse_sim.csl.coerce import arithmetic, coerce_known, common_type, compare, misfit
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.modules import Global, Instance
from wse_sim.csl.values import (
    FALSE,
    TRUE,
    VOID_VALUE,
    Cell,
    Function,
    Operand,
    Range,
    Ref,
    Value,
    copy,
    round_float,
    show,
    zero,
)

Signal = tuple[Any, ...] | None
DIRECTIONS = {d: Value(ty.DIRECTION, d) for d in ("NORTH", "SOUTH", "EAST", "WEST", "RAMP")}
TYPE_VALUES = {n: Value(ty.TYPE, t) for n, t in ty.NAMED.items()}
MAX_DEPTH = 180
MAX_STEPS = 200_000_000


class Scope:
    """Names of a block; `instance` is the module around it."""

    __slots__ = ("instance", "names", "parent", "result")

    def __init__(self, instance: Instance, parent: Scope | None = None) -> None:
        self.names: dict[str, Any] = {}
        self.parent = parent
        self.instance = instance
        self.result: ty.Type | None = parent.result if parent is not None else None


class Evaluator(Builtins):
    """Evaluates known values in one unit (the layout or a code class)."""

    def __init__(self, unit: Any, strict: bool = False) -> None:
        self.unit = unit
        self.strict = strict  # inside run-time code: variables of the program have no value yet
        self.options = unit.options
        self.depth = 0
        self.steps = 0
        names = [n for n in dir(type(self)) if n.startswith(("x_", "s_"))]
        self.expressions: dict[type, Callable[..., Any]] = {}
        self.statements: dict[type, Callable[..., Signal]] = {}
        for n in names:
            table = self.expressions if n[0] == "x" else self.statements
            table[getattr(tree, n[2:])] = getattr(self, n)

    # ---- entry points
    def eval(self, node: tree.Node, scope: Scope) -> Any:
        return self.expressions[node.__class__](node, scope)

    def exec(self, node: tree.Node, scope: Scope) -> Signal:
        return self.statements[node.__class__](node, scope)

    def known(self, node: tree.Node, scope: Scope) -> Value:
        """The value of an expression that must be known now."""
        value = self.eval(node, scope)
        if value.__class__ is not Value:
            raise CslError(node.at, "this must be known at compile time, and it is known at run time only")
        return value  # type: ignore[no-any-return]

    def eval_as(self, node: tree.Node, scope: Scope, t: ty.Type | None) -> Any:
        """The value of an expression where type `t` is wanted (None: any)."""
        value = self.eval(node, scope)
        return value if t is None else self.coerce(value, t, node.at)

    def data(self, node: tree.Node, scope: Scope, t: ty.Type) -> Any:
        return self.coerce(self.known(node, scope), t, node.at).data

    def type_of(self, node: tree.Node, scope: Scope) -> ty.Type:
        value = self.known(node, scope)
        if value.type is not ty.TYPE:
            raise CslError(node.at, f"expected a type, found a value of type '{value.type}'")
        return value.data  # type: ignore[no-any-return]

    # ---- names
    def lookup(self, node: tree.Name, scope: Scope) -> Any:
        """A value, a cell, a global or a function."""
        name = node.id
        inner: Scope | None = scope
        while inner is not None:
            found = inner.names.get(name)
            if found is not None:
                return found
            inner = inner.parent
        member = scope.instance.members.get(name)
        if member is not None:
            return member
        found = DIRECTIONS.get(name) or TYPE_VALUES.get(name)
        if found is not None:
            return found
        named = ty.named_type(name)
        if named is not None:
            return Value(ty.TYPE, named)
        raise CslError(node.at, f"'{name}' is not declared{self.similar(name, scope)}")

    def similar(self, name: str, scope: Scope) -> str:
        import difflib

        known = list(scope.instance.members)
        inner: Scope | None = scope
        while inner is not None:
            known += list(inner.names)
            inner = inner.parent
        close = difflib.get_close_matches(name, known, 1)
        return f"; did you mean '{close[0]}'?" if close else ""

    def member_value(self, found: Global | Function) -> Any:
        """A global or function as an operand (globals: a place if they have one)."""
        if isinstance(found, Function):
            return Value(self.function_type(found), found)
        self.ensure(found)
        if found.kind == "var" or isinstance(found.type, (ty.ArrayType, ty.StructType)):
            return self.global_place(found)
        return Value(found.type, found.data)

    def global_place(self, found: Global) -> Any:
        return Ref(found, (), found.type)

    def ensure(self, g: Global) -> None:
        """Evaluate the declaration of a global, once."""
        if g.state == Global.READY:
            return
        decl = g.decl
        if g.state == Global.BUSY:
            raise CslError(decl.at, f"the value of '{g.name}' depends on itself")
        g.state = Global.BUSY
        try:
            scope = Scope(g.instance)
            t = None if decl.type is None else self.type_of(decl.type, scope)
            given = g.instance.params.get(g.name) if decl.kind == "param" else None
            if given is not None:
                value = self.given_param(given, t, decl)
            elif decl.value is None:
                if decl.kind == "param":
                    raise CslError(
                        decl.at,
                        f"the parameter '{g.name}' has no value; pass it where this file is used, or with --params",
                    )
                if t is None:
                    raise CslError(decl.at, f"'{g.name}' has neither a type nor a value")
                value = Value(t, zero(t))
            else:
                value = self.comptime_eval(decl.value, scope)
                if t is not None:
                    value = self.coerce(value, t, decl.value.at)
            if (
                decl.kind == "var"
                and not value.type.runtime
                and value.type in (ty.COMPTIME_INT, ty.COMPTIME_FLOAT)
            ):
                raise CslError(decl.at, f"the variable '{g.name}' needs a type: its value is a {value.type}")
            for word, amount in decl.attributes:
                if word == "align":
                    g.align = self.data(amount, scope, ty.COMPTIME_INT)
            g.type, g.data = value.type, copy(value.data) if decl.kind == "var" else value.data
            if (
                value.type is ty.TYPE
                and isinstance(value.data, (ty.StructType, ty.EnumType))
                and "#" in value.data.name
            ):
                value.data.name = g.name
            g.state = Global.READY
        finally:
            if g.state == Global.BUSY:
                g.state = Global.UNSEEN

    def given_param(self, given: Value, t: ty.Type | None, decl: tree.Declaration) -> Value:
        if t is None:
            return given
        if given.type is ty.COMPTIME_STRING and t is not ty.COMPTIME_STRING:
            return self.parse_param(given.data, t, decl)
        return self.coerce(given, t, decl.at)

    def parse_param(self, text: str, t: ty.Type, decl: tree.Declaration) -> Value:
        """A parameter of the command line, typed by its declaration."""
        try:
            if ty.is_int(t):
                return self.coerce(Value(ty.COMPTIME_INT, int(text, 0)), t, decl.at)
            if ty.is_float(t):
                return self.coerce(Value(ty.COMPTIME_FLOAT, float(text)), t, decl.at)
            if t is ty.BOOL and text in ("true", "false", "0", "1"):
                return TRUE if text in ("true", "1") else FALSE
            if isinstance(t, ty.HandleType):
                return Value(t, int(text, 0))
        except ValueError as error:
            raise CslError(
                decl.at, f"the parameter '{decl.name}' has type '{t}'; '{text}' is no such value"
            ) from error
        raise CslError(decl.at, f"the parameter '{decl.name}' has type '{t}'; '{text}' cannot be read as one")

    def comptime_eval(self, node: tree.Node, scope: Scope) -> Value:
        """Evaluate where the context demands a known value."""
        return self.known(node, scope)

    def function_type(self, fn: Function) -> ty.FnType:
        if fn.type is None:
            scope = Scope(fn.instance)
            params: list[ty.Type | None] = []
            for p in fn.node.params:
                try:
                    params.append(None if p.type is None else self.type_of(p.type, scope))
                except CslError:
                    params.append(None)  # depends on an earlier parameter
            try:
                result: ty.Type | None = self.type_of(fn.node.result, scope)
            except CslError:
                result = None
            fn.type = ty.function(fn.node.kind, tuple(params), result)
        return fn.type

    # ---- places
    def access(self, node: tree.Node, scope: Scope) -> Any:
        """A place where the expression names one, else its value."""
        kind = node.__class__
        if kind is tree.Name:
            found = self.lookup(node, scope)  # type: ignore[arg-type]
            if found.__class__ is Value:
                return found
            if isinstance(found, (Global, Function)):
                return self.member_value(found)
            return self.local_place(found)
        if kind is tree.Member:
            return self.member(self.access(node.base, scope), node.name, node.at)  # type: ignore[attr-defined]
        if kind is tree.Index:
            base = self.access(node.base, scope)  # type: ignore[attr-defined]
            return self.index(base, [self.eval(i, scope) for i in node.indices], node.at)  # type: ignore[attr-defined]
        if kind is tree.Deref:
            return self.deref(self.load(self.access(node.base, scope), node.at), node.at)  # type: ignore[attr-defined]
        return self.eval(node, scope)

    def local_place(self, found: Any) -> Any:
        if found.__class__ is not Cell:
            raise CslError(
                getattr(found, "at", -1), "this is known at run time only, and it is needed at compile time"
            )
        return Ref(found, (), found.type)

    def load(self, place: Any, at: int) -> Any:
        """The value at a place."""
        if place.__class__ is Ref:
            if self.strict and place.root.mutable and isinstance(place.root, Global):
                raise CslError(
                    at,
                    f"the variable '{place.root.name}' is known at run time only, and it is needed at compile time",
                )
            return Value(place.type, copy(self.look(place)))
        return place

    def look(self, ref: Ref) -> Any:
        """The data at a place, not copied."""
        root = ref.root
        if isinstance(root, Global):
            self.ensure(root)
        data = root.data
        for step in ref.path:
            data = data[step]
        return data

    def store(self, place: Any, value: Any, at: int) -> None:
        if place.__class__ is not Ref:
            raise CslError(at, "this cannot be assigned: it names no variable")
        root = place.root
        if not root.mutable:
            raise CslError(at, f"'{root.name}' is a constant and cannot be assigned")
        if place.type is ty.COMPTIME_STRUCT or root.type is ty.COMPTIME_STRUCT:
            value = Value(value.type, value.data)
        data = copy(self.coerce(value, place.type, at).data)
        if not place.path:
            root.data = data
            return
        inner = root.data
        for step in place.path[:-1]:
            inner = inner[step]
        inner[place.path[-1]] = data

    def member(self, base: Any, name: str, at: int) -> Any:
        t = base.type
        if isinstance(t, ty.PointerType):
            base = self.deref(self.load(base, at), at)
            t = base.type
        if t is ty.MODULE:
            return self.module_member(self.load(base, at).data, name, at)
        if t is ty.COMPTIME_STRUCT:
            fields = self.look(base) if base.__class__ is Ref else base.data
            found = fields.get(name)
            if found is None:
                names = ", ".join(str(k) for k in fields) or "none"
                raise CslError(at, f"the structure has no field '{name}'; its fields are {names}")
            return found
        if isinstance(t, ty.StructType):
            place = t.index.get(name)
            if place is None:
                raise CslError(at, f"'{t}' has no field '{name}'; its fields are {', '.join(t.index)}")
            return self.field(base, place, at)
        if t is ty.TYPE and isinstance(base.data, ty.EnumType):
            if name not in base.data.names:
                raise CslError(at, f"the enum has no '{name}'; it has {', '.join(base.data.names)}")
            return Value(base.data, base.data.names[name])
        raise CslError(at, f"a value of type '{t}' has no member '{name}'")

    def field(self, base: Any, place: int, at: int) -> Any:
        t = base.type
        inner = t.fields[place][1]
        if base.__class__ is Ref:
            return Ref(base.root, (*base.path, place), inner)
        return Value(inner, base.data[place])

    def module_member(self, module: Instance, name: str, at: int) -> Any:
        found = module.members.get(name)
        if found is None:
            raise CslError(
                at, f"the module '{module.path}' has no '{name}'; it has {', '.join(sorted(module.members))}"
            )
        return self.member_value(found)

    def flat_index(self, t: ty.ArrayType, indices: list[Any], at: int) -> int:
        if len(indices) != len(t.shape):
            if len(indices) == 1 and t.count == t.shape[0]:
                pass
            else:
                raise CslError(
                    at,
                    f"an array of type '{t}' has {len(t.shape)} dimensions, and {len(indices)} indices are given",
                )
        flat = 0
        for n, i in zip(t.shape, indices, strict=True):
            k = i.data
            if not ty.is_int(i.type):
                raise CslError(at, f"an index must be an integer, found '{i.type}'")
            if not 0 <= k < n and not self.unit.probing:
                raise CslError(at, f"index {k} is outside of the array '{t}' (0 to {n - 1})")
            flat = flat * n + k
        return flat

    def index(self, base: Any, indices: list[Any], at: int) -> Any:
        t = base.type
        if isinstance(t, ty.PointerType):
            pointer = self.load(base, at)
            return self.pointer_index(pointer, indices, at)
        if isinstance(t, ty.ArrayType):
            flat = self.flat_index(t, indices, at)
            if base.__class__ is Ref:
                return Ref(base.root, (*base.path, flat), t.element)
            return Value(t.element, base.data[flat])
        if t is ty.COMPTIME_STRUCT:
            fields = self.look(base) if base.__class__ is Ref else base.data
            key = indices[0].data
            if key not in fields:
                raise CslError(at, f"the structure has no element {key}; it has {len(fields)}")
            return fields[key]
        if t is ty.COMPTIME_STRING:
            text, k = self.load(base, at).data, indices[0].data
            if not 0 <= k < len(text):
                raise CslError(at, f"index {k} is outside of a string of {len(text)} characters")
            return Value(ty.U8, ord(text[k]) & 255)
        raise CslError(at, f"a value of type '{t}' has no elements")

    def pointer_index(self, pointer: Value, indices: list[Any], at: int) -> Any:
        t = pointer.type
        assert isinstance(t, ty.PointerType)
        ref: Ref = pointer.data
        if not t.many:
            return self.index(self.deref(pointer, at), indices, at)
        if len(indices) != 1:
            raise CslError(at, f"a pointer of type '{t}' takes one index, and {len(indices)} are given")
        k = indices[0].data
        if isinstance(ref.type, ty.ArrayType) and ref.type.element is t.target:
            return Ref(ref.root, (*ref.path, k), t.target)
        if ref.path and ref.type is t.target:
            return Ref(ref.root, (*ref.path[:-1], ref.path[-1] + k), t.target)
        if k == 0 and ref.type is t.target:
            return ref
        raise CslError(at, f"a pointer of type '{t}' to a '{ref.type}' is read at run time only")

    def deref(self, pointer: Any, at: int) -> Any:
        t = pointer.type
        if not isinstance(t, ty.PointerType):
            raise CslError(at, f"a value of type '{t}' is no pointer")
        if t.many:
            raise CslError(at, f"a pointer of type '{t}' is read with an index, as in p[0]")
        ref: Ref = pointer.data
        if ref.type is t.target:
            return ref
        if isinstance(ref.type, ty.ArrayType) and ref.type.element is t.target:
            return Ref(ref.root, (*ref.path, 0), t.target)
        if (
            isinstance(ref.type, ty.ArrayType)
            and isinstance(t.target, ty.ArrayType)
            and ref.type.count == t.target.count
        ):
            return Ref(ref.root, ref.path, t.target)
        raise CslError(at, f"a pointer of type '{t}' to a '{ref.type}' is read at run time only")

    # ---- expressions
    def x_Name(self, node: tree.Name, scope: Scope) -> Any:
        found = self.lookup(node, scope)
        if found.__class__ is Value:
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

    def x_Member(self, node: tree.Member, scope: Scope) -> Any:
        return self.load(self.access(node, scope), node.at)

    x_Index = x_Member
    x_Deref = x_Member

    def x_Unary(self, node: tree.Unary, scope: Scope) -> Any:
        if node.op == "&":
            return self.address_of(node.operand, scope, node.at)
        return self.unary(node.op, self.eval(node.operand, scope), node.at)

    def address_of(self, node: tree.Node, scope: Scope, at: int) -> Any:
        place = self.access(node, scope)
        if place.__class__ is Value:
            place = self.constant_place(node, place, scope)
        if place.__class__ is not Ref:
            raise CslError(at, "'&' needs a variable, an element or a field")
        return Value(ty.pointer(place.type, not place.root.mutable), place)

    def constant_place(self, node: tree.Node, value: Value, scope: Scope) -> Any:
        """A constant whose address is taken gets a place; a scalar constant of a module always the same."""
        if value.type.runtime and value.type is not ty.VOID:
            if isinstance(node, tree.Name):
                found = self.lookup(node, scope)
                if isinstance(found, Global):
                    return Ref(found, (), found.type)
            return Ref(Cell("constant", value.type, value.data, False, node.at), (), value.type)
        return value

    def unary(self, op: str, value: Any, at: int) -> Any:
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
            return FALSE if data else TRUE
        raise CslError(at, f"'{op}' of a value of type '{t}' is not defined")

    def x_Binary(self, node: tree.Binary, scope: Scope) -> Any:
        op = node.op
        if op in {"and", "or"}:
            return self.logical(node, scope)
        return self.binary(op, self.eval(node.left, scope), self.eval(node.right, scope), node.at)

    def logical(self, node: tree.Binary, scope: Scope) -> Any:
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

    def binary(self, op: str, left: Any, right: Any, at: int) -> Any:
        if op in ("==", "!=", "<", "<=", ">", ">="):
            return TRUE if compare(op, left, right, at) else FALSE
        return arithmetic(op, left, right, at)

    def x_IfExpr(self, node: tree.IfExpr, scope: Scope) -> Any:
        if self.condition(node.test, scope):
            return self.eval(node.yes, scope)
        if node.no is None:
            raise CslError(node.at, "the condition is false and there is no 'else' that gives a value")
        return self.eval(node.no, scope)

    def x_ComptimeExpr(self, node: tree.ComptimeExpr, scope: Scope) -> Any:
        return self.comptime_eval(node.value, scope)

    def x_Tensor(self, node: tree.Tensor, scope: Scope) -> Value:
        return Value(ty.COMPTIME_STRUCT, {"tensor": Value(ty.MODULE, (node, scope))})

    def x_Switch(self, node: tree.Switch, scope: Scope) -> Any:
        value = self.known(node.subject, scope)
        arm = self.chosen_arm(node, value, scope)
        if arm is None:
            raise CslError(node.at, f"no arm of the switch takes {show(value)}, and there is no 'else'")
        return self.eval(arm, scope)

    def chosen_arm(self, node: tree.Switch, value: Value, scope: Scope) -> tree.Node | None:
        default = None
        for keys, body in node.arms:
            if keys is None:
                default = body
            elif any(compare("==", value, self.known(k, scope), k.at) for k in keys):
                return body
        return default

    def x_Block(self, node: tree.Block, scope: Scope) -> Any:
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

    def x_Literal(self, node: tree.Literal, scope: Scope) -> Any:
        known = self.unit.compiler.literals.get(id(node))
        if known is not None:
            return known
        value = self.literal(node, scope)
        if value.__class__ is Value and plain(node, scope):
            self.unit.compiler.literals[id(node)] = value
        return value

    def literal(self, node: tree.Literal, scope: Scope) -> Any:
        fields: dict[Any, Any] = {}
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

    def x_Call(self, node: tree.Call, scope: Scope) -> Any:
        callee = self.known(node.callee, scope)
        if not isinstance(callee.data, Function):
            raise CslError(node.at, f"a value of type '{callee.type}' cannot be called")
        if callee.data.node.kind == "task":
            raise CslError(
                node.at, f"'{callee.data.name}' is a task and cannot be called; activate it with @activate"
            )
        return self.call(callee.data, [self.eval(a, scope) for a in node.args], node.at)

    def check_count(self, fn: Function, args: list[Any], at: int) -> None:
        if len(args) != len(fn.node.params):
            raise CslError(
                at, f"'{fn.name}' takes {len(fn.node.params)} arguments, and {len(args)} are given"
            )

    def call(self, fn: Function, args: list[Any], at: int) -> Any:
        """Run a function now."""
        node = fn.node
        self.check_count(fn, args, at)
        if node.body is None:
            raise CslError(at, f"'{fn.name}' is declared without a body")
        if self.depth >= MAX_DEPTH:
            raise CslError(
                at,
                f"calls at compile time are nested deeper than {MAX_DEPTH}; '{fn.name}' seems to call itself without end",
            )
        scope = Scope(fn.instance)
        for p, value in zip(node.params, args, strict=True):
            t = None if p.type is None else self.type_of(p.type, scope)
            value = value if t is None else self.coerce(value, t, at)
            scope.names[p.name] = Value(value.type, copy(value.data))  # type: ignore[index]
        result = scope.result = self.type_of(node.result, scope)
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
        return Value(ty.TYPE, ty.array(tuple(shape), self.type_of(node.element, scope)))

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
            known[key] = ty.StructType(fields, node.kind, node.layout)
        return Value(ty.TYPE, known[key])

    def x_EnumType(self, node: tree.EnumType, scope: Scope) -> Value:
        base = self.type_of(node.base, scope)
        key = (id(node), (base,))
        known = self.unit.compiler.structs
        if key not in known:
            names: dict[str, int] = {}
            n = 0
            for name, value in node.names:
                n = n if value is None else self.data(value, scope, base)
                if name in names:
                    raise CslError(node.at, f"the enum names '{name}' twice")
                names[name] = n
                n += 1
            known[key] = ty.EnumType(base, names)
        return Value(ty.TYPE, known[key])

    # ---- conversions
    def coerce(self, value: Any, t: ty.Type, at: int) -> Any:
        """`value` as a value of type `t`, where the language converts by itself."""
        if value.type is t:
            return value
        if value.type is ty.COMPTIME_STRUCT and value.__class__ is Value:
            if isinstance(t, ty.StructType):
                return self.aggregate(t, self.struct_fields(value, t, at), at)
            if isinstance(t, ty.ArrayType):
                return self.aggregate(t, self.array_items(value, t, at), at)
        if t is ty.COMPTIME_STRUCT and isinstance(value.type, ty.StructType) and value.__class__ is Value:
            pairs = zip(value.type.fields, value.data, strict=True)
            return Value(t, {n: Value(f, x) for (n, f), x in pairs})
        return self.coerce_scalar(value, t, at)

    def coerce_scalar(self, value: Any, t: ty.Type, at: int) -> Any:
        return coerce_known(value, t, at)

    def struct_fields(self, value: Value, t: ty.StructType, at: int) -> list[Any]:
        given = dict(value.data)
        if given and all(isinstance(k, int) for k in given):
            given = {n: given[i] for i, (n, _) in enumerate(t.fields) if i in given}
        items = []
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

    def array_items(self, value: Value, t: ty.ArrayType, at: int) -> list[Any]:
        fields = value.data
        if any(isinstance(k, str) for k in fields):
            raise CslError(at, f"an array of type '{t}' takes elements without names")
        if len(fields) == t.shape[0] and len(t.shape) > 1:
            inner = ty.array(t.shape[1:], t.element)
            rows = [self.coerce(v, inner, at) for v in fields.values()]
            return [Value(t.element, x) for row in rows for x in row.data]
        if len(fields) != t.count:
            raise CslError(
                at, f"an array of type '{t}' takes {t.count} elements, and {len(fields)} are given"
            )
        return [self.coerce(v, t.element, at) for v in fields.values()]

    def aggregate(self, t: ty.Type, items: list[Any], at: int) -> Operand:
        for item in items:
            if item.__class__ is not Value:
                raise CslError(at, "every element must be known at compile time here")
        return Value(t, [copy(item.data) for item in items])

    # ---- statements
    def s_Block(self, node: tree.Block, scope: Scope) -> Signal:
        inner = Scope(scope.instance, scope)
        statements = self.statements
        for statement in node.statements:
            signal = statements[statement.__class__](statement, inner)
            if signal is not None:
                if (
                    signal[0] == "break"
                    and signal[1] is not None
                    and signal[1] == node.label
                    and signal[2] is None
                ):
                    return None
                return signal
        return None

    def s_Comptime(self, node: tree.Comptime, scope: Scope) -> Signal:
        return self.exec(node.body, scope)

    def s_ExprStatement(self, node: tree.ExprStatement, scope: Scope) -> Signal:
        self.eval(node.value, scope)
        return None

    def declare(self, node: tree.Declaration, scope: Scope, entry: Any) -> None:
        if node.name in scope.names:
            raise CslError(node.at, f"'{node.name}' is declared twice in this block")
        scope.names[node.name] = entry

    def s_Declaration(self, node: tree.Declaration, scope: Scope) -> Signal:
        t = None if node.type is None else self.type_of(node.type, scope)
        if node.value is None:
            if t is None:
                raise CslError(node.at, f"'{node.name}' has neither a type nor a value")
            if node.kind == "const":
                raise CslError(node.at, f"the constant '{node.name}' has no value")
            value = Value(t, zero(t))
        else:
            value = self.known(node.value, scope)
            if t is not None:
                value = self.coerce(value, t, node.value.at)
        if node.kind == "const":
            self.declare(node, scope, Value(value.type, copy(value.data)))
        else:
            self.declare(node, scope, Cell(node.name, value.type, copy(value.data), True, node.at))
        return None

    def s_Assign(self, node: tree.Assign, scope: Scope) -> Signal:
        if isinstance(node.target, tree.Name) and node.target.id == "_":
            self.eval(node.value, scope)
            return None
        place = self.target(node, scope)
        value = self.eval(node.value, scope)
        if node.op != "=":
            value = self.binary(node.op[:-1], self.load(place, node.at), value, node.at)
        self.store(place, value, node.at)
        return None

    def target(self, node: tree.Assign, scope: Scope) -> Any:
        """The place that an assignment writes."""
        place = self.access(node.target, scope)
        if isinstance(node.target, tree.Name) and place.__class__ in (Value, Operand):
            raise CslError(node.at, f"'{node.target.id}' is a constant and cannot be assigned")
        return place

    def s_If(self, node: tree.If, scope: Scope) -> Signal:
        if self.condition(node.test, scope):
            return self.exec(node.yes, scope)
        return None if node.no is None else self.exec(node.no, scope)

    def s_Switch(self, node: tree.Switch, scope: Scope) -> Signal:
        value = self.known(node.subject, scope)
        arm = self.chosen_arm(node, value, scope)
        if arm is None:
            return None
        return self.run_arm(arm, scope)

    def run_arm(self, arm: tree.Node, scope: Scope) -> Signal:
        if isinstance(arm, (tree.Block, tree.Switch)):
            return self.exec(arm, scope)
        self.eval(arm, scope)
        return None

    def tick(self, at: int) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise CslError(at, f"evaluation at compile time does not end after {MAX_STEPS} iterations")

    def s_While(self, node: tree.While, scope: Scope) -> Signal:
        while self.condition(node.test, scope):
            self.tick(node.at)
            signal = self.exec(node.body, scope)
            if signal is not None:
                done, signal = self.leave(signal, node.label)
                if done:
                    return signal
            if node.step is not None:
                self.exec(node.step, scope)
        return None

    def leave(self, signal: tuple[Any, ...], label: str | None) -> tuple[bool, Signal]:
        """What a signal out of a body does to its loop: (the loop ends, signal to hand on)."""
        if signal[0] == "return" or (signal[1] is not None and signal[1] != label):
            return True, signal
        return signal[0] == "break", None

    def items_of(self, value: Value, at: int) -> Iterable[Value]:
        if isinstance(value.data, Range):
            return (Value(value.data.element, i) for i in value.data)
        if isinstance(value.type, ty.ArrayType):
            element = value.type.element
            return (Value(element, copy(x)) for x in value.data)
        if value.type is ty.COMPTIME_STRUCT:
            return list(value.data.values())
        if value.type is ty.COMPTIME_STRING:
            return (Value(ty.U8, ord(c) & 255) for c in value.data)
        raise CslError(at, f"'for' runs over a range or an array, found '{value.type}'")

    def s_For(self, node: tree.For, scope: Scope) -> Signal:
        over = self.known(node.over, scope)
        for k, item in enumerate(self.items_of(over, node.over.at)):
            self.tick(node.at)
            inner = Scope(scope.instance, scope)
            inner.names[node.names[0]] = item
            if len(node.names) > 1:
                inner.names[node.names[1]] = Value(ty.U16, k)
            signal = self.exec(node.body, inner)
            if signal is not None:
                done, signal = self.leave(signal, node.label)
                if done:
                    return signal
        return None

    def s_Return(self, node: tree.Return, scope: Scope) -> Signal:
        result = scope.result
        value = VOID_VALUE if node.value is None else self.known(node.value, scope)
        if result is not None:
            if node.value is None and result is not ty.VOID:
                raise CslError(node.at, f"the function must return a '{result}'")
            value = self.coerce(value, result, node.at)
        return ("return", Value(value.type, copy(value.data)))

    def s_Break(self, node: tree.Break, scope: Scope) -> Signal:
        return ("break", node.label, None if node.value is None else self.eval(node.value, scope))

    def s_Continue(self, node: tree.Continue, scope: Scope) -> Signal:
        return ("continue", node.label)


def plain(node: tree.Node, scope: Scope) -> bool:
    """Whether a literal is made of numbers, strings and directions only: the same value wherever it is evaluated."""
    if isinstance(node, tree.Literal):
        return node.type is None and all(plain(v, scope) for _, v in node.fields)
    if isinstance(node, tree.Name):
        return node.id in DIRECTIONS and node.id not in scope.instance.members
    return isinstance(node, (tree.Number, tree.Bool, tree.String))


__all__ = ["DIRECTIONS", "Evaluator", "Scope", "Signal", "common_type", "misfit", "round_float"]
