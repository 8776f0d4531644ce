"""Lowering of a code class to run-time code: expressions with control flow, and every task and function that
the linker requests."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

from wse_sim.csl import lower_builtins, lower_map, lower_vector, tree
from wse_sim.csl import types as ty
from wse_sim.csl.builtins import BUILTINS, Builtin, builtins_of
from wse_sim.csl.code import Code, Run
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.evaluate import Evaluator, Scope, Signal
from wse_sim.csl.lower_calls import Target, leaves
from wse_sim.csl.lower_loops import LoopLowerer
from wse_sim.csl.tiles import freeze
from wse_sim.csl.values import VOID_VALUE, Function, Operand, Value
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


class Lowerer(LoopLowerer):
    """Compiler of one function and, through the unit, of the functions that it calls."""

    builtins = RUN_TIME

    def exec(self, node: tree.Node, scope: Scope) -> Signal:
        """Lower a statement, and record for debuggers which names are visible in its rows."""
        code, first = self.code, len(self.code.rows)
        signal = super().exec(node, scope)
        if len(code.rows) > first and not isinstance(node, tree.Block):
            code.see(scope, first)
        return signal

    # ---- expressions with control flow
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
                self.expect(self.trial(node.right, scope))
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

    def x_Block(self, node: tree.Block, scope: Scope) -> Operand:
        if not node.statements:
            return VOID_VALUE
        code = self.code
        regs = [code.alloc() for _ in range(8)]
        expected, self.expected = self.expected, None
        target = Target(node.label, code.label(), kind="value", regs=regs, wanted=expected)
        self.targets.append(target)
        plain = tree.Block(node.at, node.statements)
        end = self.locals_end
        self.locals_end = max(end, code.next)
        self.exec(plain, scope)
        self.locals_end = end
        self.targets.pop()
        code.bind(target.leave)
        if target.type is None:
            code.release(regs[0])
            return VOID_VALUE
        code.release(regs[0] + len(target.regs))
        return self.numbered(target.type, iter(target.regs), node.at)

    def x_IfExpr(self, node: tree.IfExpr, scope: Scope) -> Operand:
        code = self.code
        expected, self.expected = self.expected, None
        other, done = code.label(), code.label()
        mark = code.next
        known = self.branch(node.test, scope, other, False)
        if known is not None:
            if node.no is None and not known:
                return VOID_VALUE
            chosen = node.yes if known else node.no
            assert chosen is not None
            if expected is not None and isinstance(chosen, (tree.IfExpr, tree.Switch, tree.Block)):
                self.expected = expected
            return self.eval(chosen, scope)
        arms = [node.yes] if node.no is None else [node.yes, node.no]
        t = expected if expected is not None and expected.runtime else self.joined_type(arms, scope, node.at)
        if node.no is None and t is not ty.VOID:
            raise CslError(
                node.at,
                f"an 'if' without 'else' has no value where its condition is false; add an 'else' with a '{t}'",
            )
        regs = self.join_registers(t, mark, node.at)
        self.arm_value(node.yes, scope, t, regs)
        code.jump(Op.JMP, 0, 0, done, node.at)
        code.bind(other)
        if node.no is not None:
            self.arm_value(node.no, scope, t, regs)
        code.bind(done)
        return VOID_VALUE if t is ty.VOID else self.numbered(t, iter(regs), node.at)

    def join_registers(self, t: ty.Type, mark: int, at: int) -> list[int]:
        self.code.release(mark)
        return [self.code.alloc() for _ in leaves(t, at)]

    def arm_value(self, node: tree.Node, scope: Scope, t: ty.Type, regs: list[int]) -> None:
        mark, end = self.code.next, self.locals_end
        value = self.load(self.eval_as(node, scope, t), node.at)
        if t is not ty.VOID:
            for item, reg in zip(self.scalars(value, node.at), regs, strict=True):
                self.move(item, reg, mark, node.at)
        self.code.release(mark)
        self.locals_end = end

    def joined_type(self, arms: list[tree.Node], scope: Scope, at: int) -> ty.Type:
        """Return the type of a value with several arms, by evaluating them and discarding the emitted code.

        Raises
        ------
        CslError
            If no arm has a run-time type.
        """
        found = [self.trial(a, scope) for a in arms]
        if all(t is found[0] for t in found) and found[0].runtime:
            return found[0]
        concrete = [t for t in found if t.runtime and t is not ty.VOID]
        if not concrete:
            raise CslError(at, "a value chosen at run time needs a type; use @as")
        return max(concrete, key=lambda t: getattr(t, "bits", 0))

    def trial(self, node: tree.Node, scope: Scope) -> ty.Type:
        code = self.code
        saved = (
            len(code.rows),
            len(code.fixes),
            len(code.labels),
            len(code.frame),
            len(code.callees),
            code.next,
            code.barrier,
            self.locals_end,
        )
        t: ty.Type = self.eval(node, scope).type
        rows, fixes, labels, frame, callees, code.next, code.barrier, self.locals_end = saved
        del (
            code.rows[rows:],
            code.costs[rows:],
            code.places[rows:],
            code.fixes[fixes:],
            code.labels[labels:],
            code.frame[frame:],
            code.callees[callees:],
        )
        return t

    def x_Switch(self, node: tree.Switch, scope: Scope) -> Operand:
        expected, self.expected = self.expected, None
        value = self.eval(node.subject, scope)
        if type(value) is Value:
            chosen = self.chosen_arm(node, value, scope)
            if chosen is None:
                raise CslError(node.at, "no arm of the switch takes this value, and there is no 'else'")
            return self.eval(chosen, scope)
        code = self.code
        t = (
            expected
            if expected is not None and expected.runtime
            else self.joined_type([b for _, b in node.arms], scope, node.at)
        )
        regs = [code.alloc() for _ in leaves(t, node.at)]
        done = code.label()
        arms, default = self.dispatch(node, value, scope)
        code.jump(Op.JMP, 0, 0, default if default is not None else done, node.at)
        for label, body in arms:
            code.bind(label)
            self.arm_value(body, scope, t, regs)
            code.jump(Op.JMP, 0, 0, done, node.at)
        code.bind(done)
        return VOID_VALUE if t is ty.VOID else self.numbered(t, iter(regs), node.at)


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
