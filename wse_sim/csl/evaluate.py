"""Compile-time interpreter: what known operands and statements do.

A statement returns None or a signal: a tuple ("break", label, value), ("continue", label) or ("return", value).
The lowerer has an evaluator, which it asks where all operands are known.

One file, because the language has one meaning of a known value.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wse_sim.csl import mathlib, tree
from wse_sim.csl import types as ty
from wse_sim.csl.builtins import check_bitcast
from wse_sim.csl.coerce import arithmetic, coerce_known, compare, convert
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.lanes import Lanes, integer
from wse_sim.csl.modules import Scope
from wse_sim.csl.parameters import given_param, no_value
from wse_sim.csl.strict import check_enums
from wse_sim.csl.values import (
    FALSE,
    TRUE,
    VOID_VALUE,
    Cell,
    Dsd,
    Entry,
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
from wse_sim.csl.walk import Signal, Walk

if TYPE_CHECKING:
    from wse_sim.csl.unit import CodeUnit


MAX_DEPTH = 180
MAX_STEPS = 200_000_000
MAX_CPU_S = 60.0
"""Processor time limit of compile-time loops in seconds: a hundred times the longest time of a published program."""

LOOKS = 10_000  # iterations between two checks of the time limit


class Evaluator(Walk):
    """Compile-time interpreter for one unit (the layout or a code class)."""

    def __init__(self, unit: CodeUnit, strict: bool = False) -> None:
        super().__init__(unit, strict)
        self.steps = 0
        self.began_s = time.process_time()

    # ---- declarations of modules
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
                value: Operand = given_param(self, given, t, decl)
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

    def comptime_eval(self, node: tree.Node, scope: Scope) -> Value:
        """Evaluate an expression in a context that requires a known value."""
        return self.known(node, scope)

    # ---- places
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
        assign(self, place, value, at)

    def field(self, base: Operand, place: int, at: int) -> Operand:
        t = base.type
        assert isinstance(t, ty.StructType)
        inner = t.fields[place][1]
        if type(base) is Ref:
            return Ref(base.root, (*base.path, place), inner)
        return Value(inner, base.data[place])

    def index(self, base: Operand, indices: Sequence[Operand], at: int) -> Operand:
        if isinstance(base.type, ty.PointerType):
            return self.pointer_index(self.load(base, at), indices, at)
        return self.known_element(base, indices, at)

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

    # ---- operators and choices
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

    def binary(self, op: str, left: Operand, right: Operand, at: int) -> Operand:
        if op in ("==", "!=", "<", "<=", ">", ">="):
            answer = compare(op, left, right, at)
            if type(answer) is Lanes:
                return Value(ty.BOOL, answer)
            return TRUE if answer else FALSE
        return arithmetic(op, left, right, at)

    def logical(self, node: tree.Binary, scope: Scope) -> Operand:
        left = self.condition(node.left, scope)
        if left == (node.op == "or"):
            return TRUE if left else FALSE
        return TRUE if self.condition(node.right, scope) else FALSE

    def x_IfExpr(self, node: tree.IfExpr, scope: Scope) -> Operand:
        if self.condition(node.test, scope):
            return self.eval(node.yes, scope)
        if node.no is None:
            raise CslError(node.at, "the condition is false and there is no 'else' that gives a value")
        return self.eval(node.no, scope)

    def x_Switch(self, node: tree.Switch, scope: Scope) -> Operand:
        value = self.known(node.subject, scope)
        arm = self.chosen_arm(node, value, scope)
        if arm is None:
            raise CslError(node.at, f"no arm of the switch takes {show(value)}, and there is no 'else'")
        return self.eval(arm, scope)

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

    # ---- calls
    def x_Call(self, node: tree.Call, scope: Scope) -> Operand:
        callee = self.known(node.callee, scope)
        if not isinstance(callee.data, Function):
            raise CslError(node.at, f"a value of type '{callee.type}' cannot be called")
        if callee.data.node.kind == "task":
            raise CslError(
                node.at, f"'{callee.data.name}' is a task and cannot be called; activate it with @activate"
            )
        return self.call(callee.data, [self.eval(a, scope) for a in node.args], node.at)

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

    # ---- conversions and functions
    def coerce_scalar(self, value: Operand, t: ty.Type, at: int) -> Operand:
        return coerce_known(value, t, at)

    def aggregate(self, t: ty.Type, items: Sequence[Operand], at: int) -> Operand:
        for item in items:
            if type(item) is not Value:
                raise CslError(at, "every element must be known at compile time here")
        return Value(t, [copy(item.data) for item in items])

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

    # ---- statements
    def s_Block(self, node: tree.Block, scope: Scope) -> Signal:
        inner = Scope(scope.instance, scope)
        statements = self.statements
        for statement in node.statements:
            signal = statements[statement.__class__](self, statement, inner)
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

    def s_Declaration(self, node: tree.Declaration, scope: Scope) -> Signal:
        t = None if node.type is None else self.type_of(node.type, scope)
        if node.value is None:
            if t is None:
                raise CslError(node.at, f"'{node.name}' has neither a type nor a value")
            if node.kind == "const":
                raise CslError(node.at, f"the constant '{node.name}' has no value")
            value: Operand = Value(t, zero(t))
        else:
            value = self.known(node.value, scope)
            if t is not None:
                value = self.coerce(value, t, node.value.at)
        if node.kind == "const":
            self.declare(node, scope, Value(value.type, copy(value.data)))
        else:
            self.declare(node, scope, Cell(node.name, value.type, copy(value.data), True, node.at))
        return None

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
        """Count an iteration of a compile-time loop.

        Raises
        ------
        CslError
            If loops have exceeded the limit of iterations or of processor time.
        """
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise CslError(at, f"evaluation at compile time does not end after {MAX_STEPS} iterations")
        if self.steps % LOOKS == 0 and time.process_time() - self.began_s > MAX_CPU_S:
            raise CslError(
                at,
                f"evaluation at compile time takes more than {MAX_CPU_S:g} s of processor time; it may not end",
            )

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
        """Return the effect of a body's signal on its loop: (whether the loop ends, signal to pass on)."""
        if signal[0] == "return" or (signal[1] is not None and signal[1] != label):
            return True, signal
        return signal[0] == "break", None

    def s_For(self, node: tree.For, scope: Scope) -> Signal:
        over = self.known(node.over, scope)
        for k, item in enumerate(items_of(over, node.over.at)):
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
        value: Operand = VOID_VALUE if node.value is None else self.known(node.value, scope)
        if result is not None:
            if node.value is None and result is not ty.VOID:
                raise CslError(node.at, f"the function must return a '{result}'")
            value = self.coerce(value, result, node.at)
        return ("return", Value(value.type, copy(value.data)))

    def s_Break(self, node: tree.Break, scope: Scope) -> Signal:
        return ("break", node.label, None if node.value is None else self.eval(node.value, scope))

    def s_Continue(self, node: tree.Continue, scope: Scope) -> Signal:
        return ("continue", node.label)


def items_of(value: Value, at: int) -> Iterable[Value]:
    """Return the items over which a `for` loop runs."""
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


def assign(walk: Walk, place: Ref, value: Operand, at: int) -> None:
    """Convert a value to the type of a variable of compile time, and store it there."""
    root = place.root
    if place.type is ty.COMPTIME_STRUCT or root.type is ty.COMPTIME_STRUCT:
        value = Value(value.type, value.data)
    data = copy(walk.coerce(value, place.type, at).data)
    if not place.path:
        root.data = data
        return
    inner = root.data
    for step in place.path[:-1]:
        inner = inner[step]
    inner[place.path[-1]] = data


__all__ = ["Evaluator", "Scope", "Signal"]
