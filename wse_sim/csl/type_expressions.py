"""Expressions that are types: pointers, arrays, functions, structures and enums."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.evaluation import Evaluation
from wse_sim.csl.modules import Scope
from wse_sim.csl.strict import judges
from wse_sim.csl.values import Operand, Value


def pointer_type(ev: Evaluation, node: tree.PointerType, scope: Scope) -> Value:
    return Value(ty.TYPE, ty.pointer(ev.type_of(node.target, scope), node.const, node.many))


def array_type(ev: Evaluation, node: tree.ArrayType, scope: Scope) -> Value:
    shape = []
    for size in node.sizes:
        n = ev.data(size, scope, ty.COMPTIME_INT)
        if n < 0:
            raise CslError(size.at, f"the size of an array is {n}; it must not be negative")
        shape.append(n)
    element = ev.type_of(node.element, scope)
    if judges(ev, scope) and isinstance(element, ty.ArrayType):
        raise CslError(
            node.at,
            "the elements of an array must not be arrays; write its dimensions together, as [2, 3]T",
        )
    return Value(ty.TYPE, ty.array(tuple(shape), element))


def fn_type(ev: Evaluation, node: tree.FnType, scope: Scope) -> Value:
    params = tuple(None if p.type is None else ev.type_of(p.type, scope) for p in node.params)
    return Value(ty.TYPE, ty.function(node.kind, params, ev.type_of(node.result, scope)))


def struct_type(ev: Evaluation, node: tree.StructType, scope: Scope) -> Value:
    fields = [(str(f.name), ev.type_of(f.type, scope)) for f in node.fields if f.type is not None]
    names = [n for n, _ in fields]
    for n, f in zip(names, node.fields, strict=True):
        if names.count(n) > 1:
            raise CslError(f.at, f"the field '{n}' is declared twice")
    key = (id(node), tuple(t for _, t in fields))
    known = ev.unit.compiler.structs
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


def enum_type(ev: Evaluation, node: tree.EnumType, scope: Scope) -> Value:
    base = ev.type_of(node.base, scope)
    key = (id(node), (base,))
    known = ev.unit.compiler.structs
    if key not in known:
        names: dict[str, int] = {}
        given = {name: ev.data(value, scope, base) for name, value in node.names if value is not None}
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


def can_share_word(t: ty.Type) -> bool:
    """Return whether a field of this type may begin inside a word."""
    if isinstance(t, ty.StructType):
        return t.layout == "packed"
    return not isinstance(t, (ty.ArrayType, ty.DsdType))


TYPE_EXPRESSIONS: dict[type, Callable[..., Operand]] = {
    tree.PointerType: pointer_type,
    tree.ArrayType: array_type,
    tree.FnType: fn_type,
    tree.StructType: struct_type,
    tree.EnumType: enum_type,
}
