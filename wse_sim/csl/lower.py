"""Lowering of a code class to run-time code: the lowerer of one function, and every task and function that
the linker requests."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

from wse_sim.csl import (
    lower_builtins,
    lower_choices,
    lower_loops,
    lower_map,
    lower_statements,
    lower_vector,
    tree,
)
from wse_sim.csl import types as ty
from wse_sim.csl.builtins import BUILTINS, Builtin, builtins_of
from wse_sim.csl.code import Code, Run
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.evaluate import Evaluator, Scope, Signal
from wse_sim.csl.lower_calls import CallLowerer
from wse_sim.csl.lower_choices import trial
from wse_sim.csl.tiles import freeze
from wse_sim.csl.values import Function, Operand, Value
from wse_sim.fabric.vm.opcodes import SYSTEM_BUILTINS, Op

if TYPE_CHECKING:
    from wse_sim.csl.layout import EvaluatedUnit


RUN_TIME: dict[str, Builtin] = {
    **BUILTINS,
    **dict.fromkeys(SYSTEM_BUILTINS, lower_builtins.system_builtin),
    **{f"@{name}": lower_vector.vector for name in lower_vector.VECTOR},
    **builtins_of(lower_builtins, lower_map, lower_vector),
}
"""Builtins in code of the core: those that emit code, and for the rest those of the compile-time evaluator."""


class Lowerer(CallLowerer, handlers=(lower_statements, lower_loops, lower_choices)):
    """Compiler of one function and, through the unit, of the functions that it calls."""

    builtins = RUN_TIME

    def exec(self, node: tree.Node, scope: Scope) -> Signal:
        """Lower a statement, and record for debuggers which names are visible in its rows."""
        code, first = self.code, len(self.code.rows)
        signal = super().exec(node, scope)
        if len(code.rows) > first and not isinstance(node, tree.Block):
            code.see(scope, first)
        return signal

    # ---- values that are chosen at run time
    def eval_as(self, node: tree.Node, scope: Scope, t: ty.Type | None) -> Operand:
        """Evaluate an expression as type `t`; the arms of a value that is chosen at run time are converted to
        it."""
        if t is not None and isinstance(node, (tree.IfExpr, tree.Switch, tree.Block)):
            self.expected = t
        value = self.eval(node, scope)
        self.expected = None
        return value if t is None else self.coerce(value, t, node.at)

    def sides(self, node: tree.Binary, scope: Scope) -> tuple[Operand, Operand]:
        """Evaluate both sides of an operator; a value that is chosen at run time takes the type of the other
        side."""
        if node.op in ("<<", ">>") or not (is_choice(node.left) or is_choice(node.right)):
            return super().sides(node, scope)
        if is_choice(node.left):
            if not is_choice(node.right):
                self.expect(trial(self, node.right, scope))
            left = self.eval(node.left, scope)
        else:
            left = self.eval(node.left, scope)
        self.expected = None
        if is_choice(node.right):
            self.expect(left.type)
        right = self.eval(node.right, scope)
        self.expected = None
        return left, right

    def expect(self, t: ty.Type) -> None:
        """Convert the arms of the next choice to type `t`, if it is a run-time number."""
        self.expected = t if ty.is_number(t) and t.runtime else None

    def compound_value(self, node: tree.Assign, place: Operand, scope: Scope) -> Operand:
        if is_choice(node.value) and node.op not in ("<<=", ">>="):
            self.expect(place.type)
        value = self.eval(node.value, scope)
        self.expected = None
        return value

    def index_value(self, node: tree.Node, scope: Scope) -> Operand:
        if is_choice(node):
            self.expect(ty.I16)
        value = super().index_value(node, scope)
        self.expected = None
        return value


def is_choice(node: tree.Node) -> bool:
    """Return whether an expression has alternative arms."""
    return isinstance(node, (tree.IfExpr, tree.Switch, tree.Block))


class ProgramCode:
    """Run-time code of one code class, which the linker reads.

    `functions` contains code by function, compile-time arguments and argument types; the unit's `used` are
    the variables that need memory.
    """

    def __init__(self, unit: EvaluatedUnit) -> None:
        self.unit = unit
        unit.used = {}
        unit.assigned = set()
        unit.taken = {}
        unit.elements = {}
        unit.constants = {}
        unit.comptime = Evaluator(unit, strict=True)
        unit.function = self.function
        self.functions: dict[Hashable, Code] = {}

    def function(self, fn: Function, given: Mapping[str, Operand], result: ty.Type, at: int) -> Code:
        """Return the code of a function for these arguments; operands that are not `Value` are run-time
        parameters."""
        key = (id(fn), tuple(freeze(v) if type(v) is Value else v.type for v in given.values()))
        found = self.functions.get(key)
        if found is not None:
            if not found.done:
                found.cyclic = True
            return found
        code = Code(fn.name)
        code.key = key
        self.functions[key] = code
        Lowerer(self.unit, code).function(fn, dict(given), result)
        return code

    def plain(self, fn: Function, at: int) -> Code:
        """Return the code of a handler, which is a task or a function."""
        if fn.node.kind == "task":
            return self.task(fn, "local")
        lowerer = Lowerer(self.unit, Code("probe"))
        scope = Scope(fn.instance)
        types = [lowerer.type_of(p.type, scope) for p in fn.node.params if p.type is not None]
        given = {str(p.name): Run(t, 0, at) for p, t in zip(fn.node.params, types, strict=True)}
        return self.function(fn, given, lowerer.type_of(fn.node.result, scope), at)

    def task(self, fn: Function, kind: str) -> Code:
        """Return the code of a task of kind "local", "data" or "control"."""
        key = (id(fn), "task")
        if key not in self.functions:
            code = Code(fn.name)
            self.functions[key] = code
            Lowerer(self.unit, code).task(fn, kind)
        return self.functions[key]

    def exported(self, fn: Function, at: int) -> tuple[Code, list[ty.Type]]:
        """Return the code of a function that the host calls, and its argument types.

        The code converts the 32-bit words of the host to the arguments.

        Raises
        ------
        CslError
            If an argument has a type that the host cannot pass.
        """
        if fn.node.kind == "task":
            return self.task(fn, "local"), []
        code = Code(fn.name)
        lowerer = Lowerer(self.unit, code)
        scope = Scope(fn.instance)
        types = []
        for p in fn.node.params:
            if p.type is None:
                raise CslError(
                    p.at,
                    f"the exported function '{fn.name}' has a parameter of type 'anytype'; give it a type",
                )
            types.append(lowerer.type_of(p.type, scope))
        given = {
            str(p.name): Run(t, i, fn.node.at)
            for i, (p, t) in enumerate(zip(fn.node.params, types, strict=True))
        }
        inner = self.function(fn, given, lowerer.type_of(fn.node.result, scope), at)
        for t, p in zip(types, fn.node.params, strict=True):
            if t.words > 2 or not (isinstance(t, (ty.IntType, ty.FloatType, ty.PointerType)) or t is ty.BOOL):
                raise CslError(
                    p.at,
                    f"the host cannot pass a '{t}'; exported functions take 16- and 32-bit numbers and pointers",
                )
        if all(t in (ty.U32, ty.F32) for t in types):
            return inner, types
        code.alloc(len(types))
        for i, t in enumerate(types):
            lowerer.word_argument(t, i, fn.node.at)
        code.emit(Op.CALL, 0, 0, 0, "free", fn.node.at)
        code.fix("call", inner)
        code.callees.append((inner, 0))
        code.emit(Op.RET, 0, 0, 0, "free", fn.node.at)
        code.finish()
        return code, types

    def startup(self, items: list[tuple[tree.Builtin, Scope]]) -> Code | None:
        """Return code for the register settings of comptime blocks, which runs once before everything else;
        None without settings."""
        if not items:
            return None
        code = Code("start")
        lowerer = Lowerer(self.unit, code)
        for node, scope in items:
            lowerer.eval(node, scope)
            code.release(0)
        code.emit(Op.RET, 0, 0, 0, "free", items[0][0].at)
        code.finish()
        return code
