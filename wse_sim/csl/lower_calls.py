"""Lowering of functions, tasks and calls.

Functions are compiled once per set of compile-time arguments and argument types. A function may call itself:
a tail call without arguments and result is a jump, and any other call takes a new window of registers per
level.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.code import Agg, Code, Run
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.evaluate import Scope, Signal
from wse_sim.csl.lower_expr import ExpressionLowerer
from wse_sim.csl.strict import judges
from wse_sim.csl.values import VOID_VALUE, Function, Operand, Ref, Value
from wse_sim.fabric.vm.opcodes import Op

if TYPE_CHECKING:
    from wse_sim.csl.layout import EvaluatedUnit

END: Signal = ("end",)


@dataclass
class Target:
    """Loop, labelled block or inlined function that a jump can leave."""

    label: str | None
    leave: int
    again: int | None = None
    kind: str = "loop"
    type: ty.Type | None = None
    regs: list[int] = field(default_factory=list)
    left: bool = False
    repeated: bool = False
    wanted: ty.Type | None = None


def leaves(t: ty.Type, at: int) -> list[ty.Type]:
    """Return the types of a value's scalars in the order of its fields.

    Raises
    ------
    CslError
        If the value cannot be passed in registers.
    """
    if isinstance(t, ty.StructType) and t.kind == "struct":
        return [leaf for _, f in t.fields for leaf in leaves(f, at)]
    if isinstance(t, (ty.ArrayType, ty.StructType)):
        raise CslError(
            at, f"a value of type '{t}' cannot be passed or returned at run time; pass a pointer to it"
        )
    return [] if t is ty.VOID else [t]


class CallLowerer(ExpressionLowerer):
    """Lowerer of functions and of calls between them."""

    def __init__(self, unit: EvaluatedUnit, code: Code) -> None:
        super().__init__(unit)
        self.evaluator = unit.evaluator
        self.code = code
        self.locals_end = 0
        self.targets: list[Target] = []
        self.result: ty.Type = ty.VOID
        self.addressed: set[str] = set()
        self.expected: ty.Type | None = None

    # ---- functions
    def function(self, fn: Function, given: Mapping[str, Operand], result: ty.Type) -> None:
        """Lower the body of a function; its run-time parameters are in r0.. of its window."""
        node = fn.node
        if node.body is None:
            raise CslError(node.at, f"'{fn.name}' is declared without a body")
        self.unit.compiler.reached.add(node.at)
        scope = Scope(fn.instance)
        scope.result = self.result = result
        self.addressed = addressed_names(node, self.unit.compiler.addressed)
        code = self.code
        for name, operand in given.items():
            scope.names[name] = operand if type(operand) is Value else self.parameter(operand.type, node.at)
        self.locals_end = code.next
        for name in self.addressed & set(given):
            value = scope.names[name]
            if type(value) is Run:
                cell = self.frame_cell(name, value.type, node.at)
                self.store_memory(self.address(Ref(cell, (), value.type), node.at), value, node.at)
                scope.names[name] = cell
        self.body(node, scope, result)

    def body(self, node: tree.Function, scope: Scope, result: ty.Type) -> None:
        assert node.body is not None
        if self.exec(node.body, scope) is None:
            if result is not ty.VOID:
                raise CslError(
                    node.at, f"'{node.name}' may end without a return; it must return a '{result}'"
                )
            self.code.emit(Op.RET, 0, 0, 0, "return", node.at)
        self.code.finish()

    def parameter(self, t: ty.Type, at: int) -> Operand:
        """Allocate the registers of a parameter, in the order of its scalars."""
        if isinstance(t, ty.StructType) and t.kind == "struct":
            return Agg(t, [self.parameter(f, at) for _, f in t.fields], at)
        leaves(t, at)
        return Run(t, self.code.alloc(), at)

    def task(self, fn: Function, kind: str) -> None:
        """Lower a task; its wavelet is in r0 when it starts."""
        node = fn.node
        scope = Scope(fn.instance)
        scope.result = self.result = ty.VOID
        self.addressed = addressed_names(node, self.unit.compiler.addressed)
        types = [self.type_of(p.type, scope) if p.type is not None else ty.U32 for p in node.params]
        self.code.alloc(max(1, len(types)))
        self.check_task(fn, kind, types)
        if len(types) == 2:
            self.code.emit(Op.SHRI, 1, 0, 16, "free", node.at)
        for i, (p, t) in enumerate(zip(node.params, types, strict=True)):
            scope.names[str(p.name)] = self.word_argument(t, i, node.at)
        self.locals_end = self.code.next
        self.body(node, scope, ty.VOID)

    def check_task(self, fn: Function, kind: str, types: list[ty.Type]) -> None:
        node = fn.node
        if kind == "local" and types:
            raise CslError(node.at, f"a local task takes no arguments, and '{fn.name}' has {len(types)}")
        for p, t in zip(node.params, types, strict=True):
            wide = t.words == 2 and len(types) == 1
            if (
                not isinstance(t, (ty.IntType, ty.FloatType))
                or not (t.words == 1 or wide)
                or getattr(t, "bits", 0) not in (16, 32)
            ):
                raise CslError(
                    p.at,
                    f"the argument '{p.name}' of a task has type '{t}'; it takes one 32-bit or one or two 16-bit numbers",
                )
        if kind == "control" and len(types) > 1:
            raise CslError(
                node.at, f"a control task takes at most one argument, but '{fn.name}' has {len(types)}"
            )

    def word_argument(self, t: ty.Type, reg: int, at: int) -> Run:
        """Convert the raw word in a register to the argument type of a task or a host call."""
        if isinstance(t, ty.IntType):
            if t.bits in (8, 16, 32) and t is not ty.U32:
                self.code.emit(Op[f"WRAP_{'I' if t.signed else 'U'}{t.bits}"], reg, reg, 0, "free", at)
        elif t.words == 1:
            self.code.emit(Op.WRAP_U16, reg, reg, 0, "free", at)
        return Run(t, reg, at)

    # ---- calls
    def call(self, fn: Function, args: Sequence[Operand], at: int) -> Operand:
        raise CslError(at, "calls of run-time code go through x_Call")

    def x_Call(self, node: tree.Call, scope: Scope) -> Operand:
        callee = self.known(node.callee, scope)
        if not isinstance(callee.data, Function):
            raise CslError(node.at, f"a value of type '{callee.type}' cannot be called")
        fn: Function = callee.data
        if fn.node.kind == "task" and judges(self, scope):  # old releases compiled such a call
            raise CslError(node.at, f"'{fn.name}' is a task and cannot be called; activate it with @activate")
        if len(node.args) != len(fn.node.params):
            self.check_count(fn, len(node.args), node.at)
        inner = Scope(fn.instance)
        window = self.code.next
        args: list[Operand] = []
        given: dict[str, Operand] = {}
        mixed, known = False, True
        for p, arg in zip(fn.node.params, node.args, strict=True):
            mark = self.code.next
            value = self.eval_as(arg, scope, None if p.type is None else self.type_of(p.type, inner))
            value = self.load(value, arg.at)
            if type(value) is Value and isinstance(value.data, dict) and has_run(value):
                mixed = True
            elif p.comptime and type(value) is not Value:
                raise CslError(
                    arg.at, f"the parameter '{p.name}' of '{fn.name}' must be known at compile time"
                )
            elif not self.static(value, p.comptime):
                known &= type(value) is Value
                value = self.argument(value, mark, arg.at)
            inner.names[str(p.name)] = given[str(p.name)] = value
            args.append(value)
        result = self.type_of(fn.node.result, inner)
        if mixed:
            return self.inlined(fn, inner, result, node.at)
        if not result.runtime and result is not ty.VOID:
            return self.unit.comptime.call(fn, args, node.at)
        code = self.unit.function(fn, given, result, node.at)
        row = self.code.emit(Op.CALL, window, 0, 0, "call", node.at)
        if result is ty.VOID and all(type(v) is Value for v in given.values()):
            self.code.plain.add(row)
        if known:
            self.code.known.add(row)
        self.code.fix("call", code)
        self.code.callees.append((code, window))
        self.code.release(window)
        return self.results(result, node.at)

    def static(self, value: Operand, comptime: bool) -> bool:
        """Return whether an argument is bound when the function is compiled."""
        return type(value) is Value and (comptime or not value.type.runtime or value.type is ty.VOID)

    def argument(self, value: Operand, mark: int, at: int) -> Operand:
        """Move an argument to the registers from `mark` on."""
        t = value.type
        items = self.scalars(value, at)
        self.gather(items, mark, at)
        self.code.release(mark + len(items))
        self.code.window = max(self.code.window, self.code.next)
        return self.numbered(t, iter(range(mark, mark + len(items))), at)

    def numbered(self, t: ty.Type, regs: Iterator[int], at: int) -> Operand:
        """Return a value of type `t` whose scalars are in the registers that `regs` yields."""
        if isinstance(t, ty.StructType):
            return Agg(t, [self.numbered(f, regs, at) for _, f in t.fields], at)
        return Run(t, next(regs), at)

    def scalars(self, value: Operand, at: int) -> list[Operand]:
        """Return the scalar operands of a value, in the order of its fields."""
        t = value.type
        leaves(t, at)
        if not isinstance(t, ty.StructType):
            return [value]
        items = (
            value.items
            if type(value) is Agg
            else [Value(f, x) for (_, f), x in zip(t.fields, value.data, strict=True)]
        )
        return [
            s
            for (_, f), i in zip(t.fields, items, strict=True)
            for s in self.scalars(self.load(self.coerce(i, f, at), at), at)
        ]

    def gather(self, items: Sequence[Operand], start: int, at: int) -> None:
        """Move scalars to consecutive registers, without overwriting any before it is read."""
        code = self.code
        wanted = range(start, start + len(items))
        clash = any(type(i) is Run and i.reg in wanted and i.reg != start + k for k, i in enumerate(items))
        if clash:
            code.next = max(code.next, start + len(items))
            fresh = []
            for i in items:
                if type(i) is Run:
                    i = self.emit(Op.MOV, i.reg, 0, "move", i.type, at)
                fresh.append(i)
            items = fresh
        code.window = max(code.window, start + len(items))
        single = len(items) == 1
        for k, item in enumerate(items):
            self.move(item, start + k, max(start, self.locals_end) if single else 1 << 30, at)

    def results(self, t: ty.Type, at: int) -> Operand:
        """Return the value that a call left in the first registers of its window."""
        if t is ty.VOID:
            return VOID_VALUE
        return self.parameter(t, at)

    def inlined(self, fn: Function, inner: Scope, result: ty.Type, at: int) -> Operand:
        """Lower a function's body at its call, for arguments that mix run-time values into anonymous
        structures."""
        if len(self.targets) > 40:
            raise CslError(at, f"'{fn.name}' is expanded inside itself")
        code = self.code
        regs = [code.alloc() for _ in leaves(result, at)]
        target = Target(None, code.label(), kind="function", type=result, regs=regs)
        saved = self.result, self.addressed, self.locals_end
        self.result, self.addressed, self.locals_end = (
            result,
            addressed_names(fn.node, self.unit.compiler.addressed),
            code.next,
        )
        inner.result = result
        self.targets.append(target)
        self.unit.compiler.reached.add(fn.node.at)
        assert fn.node.body is not None
        self.exec(fn.node.body, inner)
        self.targets.pop()
        self.result, self.addressed, self.locals_end = saved
        code.bind(target.leave)
        code.release(regs[-1] + 1 if regs else code.next)
        return VOID_VALUE if result is ty.VOID else self.numbered(result, iter(regs), at)


def has_run(value: Value) -> bool:
    """Return whether an anonymous structure has operands that are known only at run time."""
    if type(value) is not Value:
        return True
    if not isinstance(value.data, dict):
        return False
    return any(has_run(v) for v in value.data.values())


def addressed_names(node: tree.Function, known: dict[int, set[str]]) -> set[str]:
    """Return the names whose address is taken in a function; `known` caches the answers."""
    key = id(node)
    if key not in known:
        found: set[str] = set()
        _collect(node.body, found)
        known[key] = found
    return known[key]


def _collect(node: object, found: set[str]) -> None:
    if isinstance(node, (list, tuple)):
        for item in node:
            _collect(item, found)
        return
    if not isinstance(node, tree.Node):
        return
    if isinstance(node, tree.Unary) and node.op == "&":
        base = node.operand
        while isinstance(base, (tree.Member, tree.Index)) or (
            isinstance(base, tree.Builtin) and base.name == "@field"
        ):
            base = base.args[0] if isinstance(base, tree.Builtin) else base.base
        if isinstance(base, tree.Name):
            found.add(base.id)
    for name in tree.fields_of(type(node)):
        _collect(getattr(node, name), found)
