"""The walk over names, places and expressions that the compile-time evaluator and the lowerer share.

`eval(node, scope)` returns an operand, and `access(node, scope)` a place if there is one. What operands do
(arithmetic, conversions, reading and writing of places) and what statements do is not here: for known
operands it is in :mod:`wse_sim.csl.evaluate`, for operands of run time in the lowerer, which has an evaluator
for the known ones.

One file, because names, places and expressions call each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.builtins import BUILTINS, Builtin, field_name, field_place, no_builtin
from wse_sim.csl.coerce import compare
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.evaluation import Evaluation
from wse_sim.csl.lanes import Lanes
from wse_sim.csl.modules import Scope
from wse_sim.csl.strict import check_cases, check_sides, demand, judges
from wse_sim.csl.type_expressions import TYPE_EXPRESSIONS
from wse_sim.csl.values import (
    FALSE,
    TRUE,
    Entry,
    Function,
    Global,
    Instance,
    Operand,
    Ref,
    Value,
    zero,
)

if TYPE_CHECKING:
    from wse_sim.csl.unit import CodeUnit


Signal = tuple[Any, ...] | None
DIRECTIONS = {d: Value(ty.DIRECTION, d) for d in ("NORTH", "SOUTH", "EAST", "WEST", "RAMP")}
TYPE_VALUES = {n: Value(ty.TYPE, t) for n, t in ty.NAMED.items()}
FOREIGN_TYPES = {
    "float": "f32", "double": "f32", "half": "f16", "char": "u8", "short": "i16", "int": "i16 or i32", "uint": "u16 or u32", "long": "i32",
    "usize": "u16", "string": "comptime_string",
}  # fmt: skip
"""Type names of other languages, with their names in CSL."""


class Walk(Evaluation):
    """Walk over the expressions of one unit (the layout or a code class)."""

    builtins: Mapping[str, Builtin] = BUILTINS
    expressions: Mapping[type, Callable[..., Operand]]
    statements: Mapping[type, Callable[..., Signal]]

    def __init_subclass__(cls, handlers: tuple[ModuleType, ...] = ()) -> None:
        """Collect the functions `x_NODE` and `s_NODE` of the class and of modules by the type of node."""
        found = {n: getattr(cls, n) for n in dir(cls)}
        for module in handlers:
            found.update(vars(module))
        by_node = {n: f for n, f in found.items() if n.startswith(("x_", "s_"))}
        own = {getattr(tree, n[2:]): f for n, f in by_node.items() if n[0] == "x"}
        cls.expressions = {**TYPE_EXPRESSIONS, **own}
        cls.statements = {getattr(tree, n[2:]): f for n, f in by_node.items() if n[0] == "s"}

    def __init__(self, unit: CodeUnit, strict: bool = False) -> None:
        self.unit = unit
        self.strict = strict  # inside run-time code: variables of the program have no value yet
        self.options = unit.options
        self.depth = 0

    # ---- entry points
    def eval(self, node: tree.Node, scope: Scope) -> Operand:
        """Evaluate an expression to an operand."""
        return self.expressions[node.__class__](self, node, scope)

    def exec(self, node: tree.Node, scope: Scope) -> Signal:
        """Execute a statement; return None or the signal that leaves it."""
        return self.statements[node.__class__](self, node, scope)

    def known(self, node: tree.Node, scope: Scope) -> Value:
        """Return the value of an expression that must be known at compile time.

        Raises
        ------
        CslError
            If it is not.
        """
        value = self.eval(node, scope)
        if type(value) is not Value:
            raise CslError(node.at, "this must be known at compile time but is known only at run time")
        return value  # type: ignore[no-any-return]

    def eval_as(self, node: tree.Node, scope: Scope, t: ty.Type | None) -> Operand:
        """Evaluate an expression, and convert it to type `t` if one is given."""
        value = self.eval(node, scope)
        return value if t is None else self.coerce(value, t, node.at)

    def data(self, node: tree.Node, scope: Scope, t: ty.Type) -> Any:
        """Return the data of a known expression, converted to type `t`."""
        return self.coerce(self.known(node, scope), t, node.at).data

    def type_of(self, node: tree.Node, scope: Scope) -> ty.Type:
        """Return the type that an expression evaluates to.

        Raises
        ------
        CslError
            If its value is not a type.
        """
        value = self.known(node, scope)
        if value.type is not ty.TYPE:
            raise CslError(node.at, f"expected a type, found a value of type '{value.type}'")
        return value.data  # type: ignore[no-any-return]

    def condition(self, node: tree.Node, scope: Scope) -> bool:
        value = self.known(node, scope)
        if value.type is not ty.BOOL:
            raise CslError(
                node.at, f"a condition must be a bool, found '{value.type}'; compare it, as in x != 0"
            )
        return value.data  # type: ignore[no-any-return]

    def effect(self, act: Callable[..., None], *args: object) -> None:
        """Apply the effect of a builtin; evaluators of several iterations at once delay it."""
        act(*args)

    def cores(self, index: int | Lanes) -> npt.NDArray[np.int64]:
        return np.array([index], np.int64)

    # ---- names
    def lookup(self, node: tree.Name, scope: Scope) -> Entry:
        """Return the value, cell, global or function that a name refers to.

        Raises
        ------
        CslError
            If the name is not declared.
        """
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

        if name in FOREIGN_TYPES:
            return f"; the type is {FOREIGN_TYPES[name]} in CSL"
        known = list(scope.instance.members)
        inner: Scope | None = scope
        while inner is not None:
            known += list(inner.names)
            inner = inner.parent
        close = difflib.get_close_matches(name, known, 1)
        return f"; did you mean '{close[0]}'?" if close else ""

    def member_value(self, found: Global | Function) -> Operand:
        """Return a global or function as an operand; a global is a place if it has one."""
        if isinstance(found, Function):
            return Value(self.function_type(found), found)
        self.ensure(found)
        if found.kind == "var" or isinstance(found.type, (ty.ArrayType, ty.StructType)):
            return self.global_place(found)
        return Value(found.type, found.data)

    def global_place(self, found: Global) -> Operand:
        return Ref(found, (), found.type)

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
    def access(self, node: tree.Node, scope: Scope) -> Operand:
        """Return the place that an expression names, or its value if it names none."""
        kind = node.__class__
        if kind is tree.Name:
            found = self.lookup(node, scope)  # type: ignore[arg-type]
            if type(found) is Value:
                return found
            if isinstance(found, (Global, Function)):
                return self.member_value(found)
            return self.local_place(found, node)  # type: ignore[arg-type]
        if kind is tree.Member:
            return self.member(self.access(node.base, scope), node.name, node.at)  # type: ignore[attr-defined]
        if kind is tree.Index:
            base = self.access(node.base, scope)  # type: ignore[attr-defined]
            return self.index(base, [self.index_value(i, scope) for i in node.indices], node.at)  # type: ignore[attr-defined]
        if kind is tree.Deref:
            return self.deref(self.load(self.access(node.base, scope), node.at), node.at)  # type: ignore[attr-defined]
        if kind is tree.Builtin and node.name == "@field":  # type: ignore[attr-defined]
            return field_place(self, node, scope)  # type: ignore[arg-type]
        return self.eval(node, scope)

    def index_value(self, node: tree.Node, scope: Scope) -> Operand:
        """Evaluate an index; the lowerer also computes the cost of its arithmetic."""
        return self.eval(node, scope)

    def look(self, ref: Ref) -> Any:
        """Return the data at a place, without copying it."""
        root = ref.root
        if isinstance(root, Global):
            self.ensure(root)
        data = root.data
        for step in ref.path:
            data = data[step]
        return data

    def member(self, base: Operand, name: str, at: int) -> Operand:
        t = base.type
        if isinstance(t, ty.PointerType):
            base = self.deref(self.load(base, at), at)
            t = base.type
        if t is ty.MODULE:
            return self.module_member(self.load(base, at).data, name, at)
        if t is ty.COMPTIME_STRUCT:
            fields = self.look(base) if type(base) is Ref else base.data
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

    def module_member(self, module: Instance, name: str, at: int) -> Operand:
        found = module.members.get(name)
        if found is None:
            raise CslError(
                at, f"the module '{module.path}' has no '{name}'; it has {', '.join(sorted(module.members))}"
            )
        return self.member_value(found)

    def flat_index(self, t: ty.ArrayType, indices: Sequence[Operand], at: int) -> int:
        """Return the row-major index of an element.

        Raises
        ------
        CslError
            If the number of indices is wrong or an index is out of range.
        """
        if len(indices) != len(t.shape):
            if len(indices) == 1 and t.count == t.shape[0]:
                pass
            else:
                raise CslError(
                    at,
                    f"an array of type '{t}' has {len(t.shape)} dimensions but {len(indices)} indices are given",
                )
        flat = 0
        for n, i in zip(t.shape, indices, strict=True):
            k = i.data
            if not ty.is_int(i.type):
                raise CslError(at, f"an index must be an integer, found '{i.type}'")
            if not 0 <= k < n and not self.unit.probing:
                raise CslError(at, f"index {k} is outside the array '{t}' (0 to {n - 1})")
            flat = flat * n + k
        return flat

    def known_element(self, base: Operand, indices: Sequence[Operand], at: int) -> Operand:
        """Return an element whose indices are known, of something other than a pointer."""
        t = base.type
        if isinstance(t, ty.ArrayType):
            flat = self.flat_index(t, indices, at)
            if type(base) is Ref:
                return Ref(base.root, (*base.path, flat), t.element)
            return Value(t.element, base.data[flat])
        if t is ty.COMPTIME_STRUCT:
            fields = self.look(base) if type(base) is Ref else base.data
            key = indices[0].data
            if key not in fields:
                raise CslError(at, f"the structure has no element {key}; it has {len(fields)}")
            return fields[key]
        if isinstance(t, ty.StructType) and t.is_tuple and len(indices) == 1:
            k = indices[0].data
            if not 0 <= k < len(t.fields):
                raise CslError(at, f"index {k} is outside the tuple of {len(t.fields)} fields")
            return self.field(base, k, at)
        if t is ty.COMPTIME_STRING:
            text, k = self.load(base, at).data, indices[0].data
            if not 0 <= k < len(text):
                raise CslError(at, f"index {k} is outside a string of {len(text)} characters")
            return Value(ty.U8, ord(text[k]) & 255)
        raise CslError(at, f"a value of type '{t}' has no elements")

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

    def x_Binary(self, node: tree.Binary, scope: Scope) -> Operand:
        op = node.op
        if op in {"and", "or"}:
            return self.logical(node, scope)
        left, right = self.sides(node, scope)
        if self.options.strict:
            check_sides(self, op, left, right, node, scope)
        return self.binary(op, left, right, node.at)

    def sides(self, node: tree.Binary, scope: Scope) -> tuple[Operand, Operand]:
        """Evaluate both sides of an operator; the lowerer also assigns types to values that are chosen at run
        time."""
        return self.eval(node.left, scope), self.eval(node.right, scope)

    def x_ComptimeExpr(self, node: tree.ComptimeExpr, scope: Scope) -> Operand:
        return self.comptime_eval(node.value, scope)

    def x_Tensor(self, node: tree.Tensor, scope: Scope) -> Value:
        return Value(ty.COMPTIME_STRUCT, {"tensor": Value(ty.MODULE, (node, scope))})

    def chosen_arm(self, node: tree.Switch, value: Value, scope: Scope) -> tree.Node | None:
        default = None
        check_cases(self, node, value.type, scope)
        for keys, body in node.arms:
            if keys is None:
                default = body
            elif any(compare("==", value, self.known(k, scope), k.at) for k in keys):
                return body
        return default

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

    def check_count(self, fn: Function, given: int, at: int) -> None:
        if given != len(fn.node.params):
            raise CslError(at, f"'{fn.name}' takes {len(fn.node.params)} arguments but {given} are given")

    # ---- conversions
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

    # ---- statements
    def s_ExprStatement(self, node: tree.ExprStatement, scope: Scope) -> Signal:
        self.eval(node.value, scope)
        return None

    def declare(self, node: tree.Declaration, scope: Scope, entry: Entry) -> None:
        if node.name in scope.names:
            raise CslError(node.at, f"'{node.name}' is declared twice in this block")
        scope.names[node.name] = entry

    def s_Assign(self, node: tree.Assign, scope: Scope) -> Signal:
        if isinstance(node.target, tree.Name) and node.target.id == "_":
            self.eval(node.value, scope)
            return None
        if self.assigned_field(node, scope):
            return None
        place = self.target(node, scope)
        value = self.eval(node.value, scope) if node.op == "=" else self.compound_value(node, place, scope)
        if node.op != "=":
            value = self.binary(node.op[:-1], self.load(place, node.at), value, node.at)
        self.store(place, value, node.at)
        return None

    def compound_value(self, node: tree.Assign, place: Operand, scope: Scope) -> Operand:
        """Evaluate the right side of `place op= value`."""
        return self.eval(node.value, scope)

    def assigned_field(self, node: tree.Assign, scope: Scope) -> bool:
        """Assign to a field of an anonymous compile-time structure; return False if the target is something
        else."""
        target = node.target
        if isinstance(target, tree.Member):
            base, name = self.access(target.base, scope), target.name
        elif isinstance(target, tree.Builtin) and target.name == "@field" and len(target.args) == 2:
            base, name = self.access(target.args[0], scope), field_name(self, target, scope)
        else:
            return False
        if type(base) is not Ref or base.type is not ty.COMPTIME_STRUCT or base.path or not base.root.mutable:
            return False
        old = self.member(base, name, node.at)
        value = self.eval(node.value, scope)
        if node.op != "=":
            value = self.binary(node.op[:-1], old, value, node.at)
        base.root.data = {**base.root.data, name: self.coerce(value, old.type, node.at)}
        return True

    def target(self, node: tree.Assign, scope: Scope) -> Operand:
        """Return the place that an assignment writes.

        Raises
        ------
        CslError
            If it is a constant or is read through a pointer to const.
        """
        place = self.access(node.target, scope)
        if isinstance(node.target, tree.Name) and type(place) is Value:
            raise CslError(node.at, f"'{node.target.id}' is a constant and cannot be assigned")
        pointer = named_pointer(node.target)
        if pointer is not None:
            t = self.access(pointer, scope).type
            if isinstance(t, ty.PointerType) and t.const:
                raise CslError(node.at, "this cannot be assigned: it is read through a pointer to const")
        return place


def plain(node: tree.Node, scope: Scope) -> bool:
    """Return whether a literal consists only of numbers, strings and directions, so that its value is the
    same everywhere."""
    if isinstance(node, tree.Literal):
        return node.type is None and all(plain(v, scope) for _, v in node.fields)
    if isinstance(node, tree.Name):
        return node.id in DIRECTIONS and node.id not in scope.instance.members
    return isinstance(node, (tree.Number, tree.Bool, tree.String))


def named_pointer(node: tree.Node) -> tree.Name | None:
    """Return the name at the root of a place if at most one explicit dereference leads from it to the place,
    else None.

    The name itself is not such a place.
    """
    if isinstance(node, tree.Name):
        return None
    steps = 0
    while isinstance(node, (tree.Member, tree.Index, tree.Deref)):
        steps += isinstance(node, tree.Deref)
        node = node.base
    return node if isinstance(node, tree.Name) and steps <= 1 else None
