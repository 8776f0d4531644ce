"""Compile-time interpreter of expressions and statements.

`eval(node, scope)` returns a value, and `access(node, scope)` a place (`Ref`) if there is one. A statement
returns None or a signal: a tuple ("break", label, value), ("continue", label) or ("return", value).
:mod:`wse_sim.csl.lower` inherits from it and emits code where an operand is known only at run time.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.builtins import field_name
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.evaluate_expr import ExpressionEvaluator
from wse_sim.csl.evaluate_places import LOOKS, MAX_CPU_S, MAX_STEPS, Scope, Signal
from wse_sim.csl.values import (
    VOID_VALUE,
    Cell,
    Entry,
    Operand,
    Range,
    Ref,
    Value,
    copy,
    zero,
)


class Evaluator(ExpressionEvaluator):
    """Compile-time interpreter for one unit (the layout or a code class)."""

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

    def declare(self, node: tree.Declaration, scope: Scope, entry: Entry) -> None:
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

    def items_of(self, value: Value, at: int) -> Iterable[Value]:
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


__all__ = ["Evaluator", "Scope", "Signal"]
