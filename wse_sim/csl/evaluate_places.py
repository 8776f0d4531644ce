"""Compile-time evaluation of names and places: lookup, reading, writing and indexing.

One file, because reading, writing and indexing distinguish the same cases.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.builtins import field_place
from wse_sim.csl.diagnostics import NOWHERE, CslError
from wse_sim.csl.evaluation import Evaluation
from wse_sim.csl.modules import Scope
from wse_sim.csl.values import (
    FALSE,
    TRUE,
    Cell,
    CommandLineText,
    Entry,
    Function,
    Global,
    Instance,
    Operand,
    Ref,
    Value,
    copy,
    zero,
)

if TYPE_CHECKING:
    from wse_sim.csl.lanes import Lanes
    from wse_sim.csl.unit import CodeUnit

Signal = tuple[Any, ...] | None
DIRECTIONS = {d: Value(ty.DIRECTION, d) for d in ("NORTH", "SOUTH", "EAST", "WEST", "RAMP")}
TYPE_VALUES = {n: Value(ty.TYPE, t) for n, t in ty.NAMED.items()}
MAX_DEPTH = 180
FOREIGN_TYPES = {
    "float": "f32", "double": "f32", "half": "f16", "char": "u8", "short": "i16", "int": "i16 or i32", "uint": "u16 or u32", "long": "i32",
    "usize": "u16", "string": "comptime_string",
}  # fmt: skip
"""Type names of other languages, with their names in CSL."""
MAX_STEPS = 200_000_000
MAX_CPU_S = 60.0
"""Processor time limit of compile-time loops in seconds: a hundred times the longest time of a published program."""

LOOKS = 10_000  # iterations between two checks of the time limit


class PlaceEvaluator(Evaluation):
    """Evaluator of names and places of one unit (the layout or a code class)."""

    def __init__(self, unit: CodeUnit, strict: bool = False) -> None:
        self.unit = unit
        self.strict = strict  # inside run-time code: variables of the program have no value yet
        self.options = unit.options
        self.depth = 0
        self.steps = 0
        self.began_s = time.process_time()
        names = [n for n in dir(type(self)) if n.startswith(("x_", "s_"))]
        self.expressions: dict[type, Callable[..., Operand]] = {}
        self.statements: dict[type, Callable[..., Signal]] = {}
        for n in names:
            table = self.expressions if n[0] == "x" else self.statements
            table[getattr(tree, n[2:])] = getattr(self, n)

    # ---- entry points
    def eval(self, node: tree.Node, scope: Scope) -> Operand:
        """Evaluate an expression to an operand."""
        return self.expressions[node.__class__](node, scope)

    def exec(self, node: tree.Node, scope: Scope) -> Signal:
        """Execute a statement; return None or the signal that leaves it."""
        return self.statements[node.__class__](node, scope)

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

    def ensure(self, g: Global) -> None:
        """Evaluate the declaration of a global, once.

        Raises
        ------
        CslError
            If the declaration is invalid or depends on itself.
        """
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
                value: Operand = self.given_param(given, t, decl)
            elif decl.value is None:
                if decl.kind == "param":
                    raise no_value(g)
                if t is None:
                    raise CslError(decl.at, f"'{g.name}' has neither a type nor a value")
                value = Value(t, zero(t))
            else:
                value = self.comptime_eval(decl.value, scope)
                if t is not None:
                    value = self.coerce(value, t, decl.value.at)
            if decl.kind == "var" and self.unit.program is not None:
                value = self.with_layout(value)
            if (
                decl.kind == "var"
                and not value.type.runtime
                and value.type in (ty.COMPTIME_INT, ty.COMPTIME_FLOAT)
            ):
                raise CslError(decl.at, f"the variable '{g.name}' needs a type: its value is a {value.type}")
            if decl.kind == "var" and value.type is ty.ANYOPAQUE:
                raise CslError(
                    decl.at, f"the variable '{g.name}' has type 'anyopaque', which only pointers point to"
                )
            for word, amount in decl.attributes:
                if word == "align":
                    g.align = self.data(amount, scope, ty.COMPTIME_INT)
                    if g.align < 1 or g.align & (g.align - 1):
                        raise CslError(
                            amount.at, f"align({g.align}): the alignment in bytes must be a power of two"
                        )
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

    def given_param(self, given: Value, t: ty.Type | None, decl: tree.Declaration) -> Operand:
        if t is None:
            return literal(given.data) if isinstance(given.data, CommandLineText) else given
        if given.type is ty.COMPTIME_STRING and t is not ty.COMPTIME_STRING:
            return self.parse_param(given.data, t, decl)
        return self.coerce(given, t, decl.at)

    def parse_param(self, text: str, t: ty.Type, decl: tree.Declaration) -> Operand:
        """Convert the text of a command-line parameter to the type of its declaration.

        Raises
        ------
        CslError
            If the text is not a value of this type.
        """
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
                decl.at, f"the parameter '{decl.name}' has type '{t}'; '{text}' is not a value of this type"
            ) from error
        raise CslError(decl.at, f"the parameter '{decl.name}' has type '{t}'; '{text}' cannot be read as one")

    def comptime_eval(self, node: tree.Node, scope: Scope) -> Value:
        """Evaluate an expression in a context that requires a known value."""
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
        """Evaluate an index; subclasses also compute the cost of its arithmetic."""
        return self.eval(node, scope)

    def with_layout(self, value: Operand) -> Operand:  # a subclass creates the type
        return value

    def local_place(self, found: Entry, node: tree.Name) -> Operand:
        if type(found) is not Cell:
            raise CslError(
                node.at,
                f"'{node.id}' is known only at run time but is needed at compile time; use a comptime variable, a const or a param",
            )
        return Ref(found, (), found.type)

    def load(self, place: Operand, at: int) -> Operand:
        """Return the value at a place; return other operands unchanged."""
        if type(place) is Ref:
            if self.strict and place.root.mutable and isinstance(place.root, Global):
                raise CslError(
                    at,
                    f"the variable '{place.root.name}' is known only at run time but is needed at compile time",
                )
            return Value(place.type, copy(self.look(place)))
        return place

    def look(self, ref: Ref) -> Any:
        """Return the data at a place, without copying it."""
        root = ref.root
        if isinstance(root, Global):
            self.ensure(root)
        data = root.data
        for step in ref.path:
            data = data[step]
        return data

    def store(self, place: Operand, value: Operand, at: int) -> None:
        """Assign a value to a place.

        Raises
        ------
        CslError
            If the place is a constant, or the value does not convert to its type.
        """
        if type(place) is not Ref:
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

    def field(self, base: Operand, place: int, at: int) -> Operand:
        t = base.type
        assert isinstance(t, ty.StructType)
        inner = t.fields[place][1]
        if type(base) is Ref:
            return Ref(base.root, (*base.path, place), inner)
        return Value(inner, base.data[place])

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

    def index(self, base: Operand, indices: Sequence[Operand], at: int) -> Operand:
        t = base.type
        if isinstance(t, ty.PointerType):
            pointer = self.load(base, at)
            return self.pointer_index(pointer, indices, at)
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

    def pointer_index(self, pointer: Operand, indices: Sequence[Operand], at: int) -> Operand:
        t = pointer.type
        assert isinstance(t, ty.PointerType)
        ref: Ref = pointer.data
        if not t.many:
            return self.index(self.deref(pointer, at), indices, at)
        if len(indices) != 1:
            raise CslError(at, f"a pointer of type '{t}' takes one index but {len(indices)} are given")
        k = indices[0].data
        if isinstance(ref.type, ty.ArrayType) and ref.type.element is t.target:
            return Ref(ref.root, (*ref.path, k), t.target)
        if ref.path and ref.type is t.target:
            return Ref(ref.root, (*ref.path[:-1], ref.path[-1] + k), t.target)
        if k == 0 and ref.type is t.target:
            return ref
        raise CslError(at, f"a pointer of type '{t}' to a '{ref.type}' can be read only at run time")

    def deref(self, pointer: Operand, at: int) -> Operand:
        t = pointer.type
        if not isinstance(t, ty.PointerType):
            raise CslError(at, f"a value of type '{t}' is not a pointer")
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
        raise CslError(at, f"a pointer of type '{t}' to a '{ref.type}' can be read only at run time")


def no_value(g: Global) -> CslError:
    """Return the error for a parameter without a value: at the import of a library, or else at the
    declaration."""
    instance = g.instance
    if instance.library and instance.imported_at != NOWHERE:
        return CslError(
            instance.imported_at, f"{instance.path} needs a value for its parameter '{g.name}'; pass it here"
        )
    return CslError(
        g.decl.at, f"the parameter '{g.name}' has no value; pass it where this file is used, or with --params"
    )


def literal(text: str) -> Value:
    """Parse `text` as a literal of the language: an integer, a float, a Boolean, or else a string."""
    if text in ("true", "false"):
        return TRUE if text == "true" else FALSE
    if text[:1] in set("-.0123456789"):  # float() also reads words such as 'inf'
        with contextlib.suppress(ValueError):
            return Value(ty.COMPTIME_INT, int(text, 0))
        with contextlib.suppress(ValueError):
            return Value(ty.COMPTIME_FLOAT, float(text))
    return Value(ty.COMPTIME_STRING, str(text))
