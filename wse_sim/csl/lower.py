"""Run-time code: tasks and functions to bytecode.

A statement gives None, or ("end",) if control never goes past it.  An `if` or `switch` with a known condition keeps one arm and does not
look at the other.  Functions are compiled once per set of compile-time arguments and argument types.  A function may call itself: as the
last thing that it does this is a jump, else it takes a window of registers per level.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.code import Agg, Code, Local, Mem, Run, RunRange
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.evaluate import Evaluator, Scope, Signal
from wse_sim.csl.layout import freeze
from wse_sim.csl.lower_builtins import RuntimeBuiltins
from wse_sim.csl.lower_expr import INT32
from wse_sim.csl.modules import Global
from wse_sim.csl.values import VOID_VALUE, Cell, Function, Range, Ref, Value, copy, register_form, zero
from wse_sim.fabric.vm.opcodes import Op

END: Signal = ("end",)


@dataclass
class Target:
    """A loop, a labelled block or an inlined function that a jump can leave."""

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
    """Scalars of a value in the order of its fields."""
    if isinstance(t, ty.StructType) and t.kind == "struct":
        return [leaf for _, f in t.fields for leaf in leaves(f, at)]
    if isinstance(t, (ty.ArrayType, ty.StructType)):
        raise CslError(
            at, f"a value of type '{t}' cannot be passed or returned at run time; pass a pointer to it"
        )
    return [] if t is ty.VOID else [t]


class Lowerer(RuntimeBuiltins):
    """Compiles one function (and, through the unit, those it calls)."""

    def __init__(self, unit: Any, code: Code) -> None:
        super().__init__(unit)
        self.code = code
        self.locals_end = 0
        self.targets: list[Target] = []
        self.result: ty.Type = ty.VOID
        self.addressed: set[str] = set()
        self.expected: ty.Type | None = None

    # ---- functions
    def function(self, fn: Function, given: dict[str, Any], result: ty.Type) -> None:
        """Body of a function: parameters that are no compile-time values lie in r0.. of its window."""
        node = fn.node
        if node.body is None:
            raise CslError(node.at, f"'{fn.name}' is declared without a body")
        scope = Scope(fn.instance)
        scope.result = self.result = result
        self.addressed = addressed_names(node, self.unit.compiler.addressed)
        code = self.code
        for name, value in given.items():
            scope.names[name] = value if value.__class__ is Value else self.parameter(value.type, node.at)
        self.locals_end = code.next
        for name in self.addressed & set(given):
            value = scope.names[name]
            if value.__class__ is Run:
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

    def parameter(self, t: ty.Type, at: int) -> Any:
        """Registers of a parameter, in the order of its scalars."""
        if isinstance(t, ty.StructType) and t.kind == "struct":
            return Agg(t, [self.parameter(f, at) for _, f in t.fields], at)
        leaves(t, at)
        return Run(t, self.code.alloc(), at)

    def task(self, fn: Function, kind: str) -> None:
        """A task: the wavelet lies in r0 when it starts."""
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
                node.at, f"a control task takes one argument at most, and '{fn.name}' has {len(types)}"
            )

    def word_argument(self, t: ty.Type, reg: int, at: int) -> Run:
        """A register that holds a raw word becomes a value of a task's or a host call's argument type."""
        if isinstance(t, ty.IntType):
            if t.bits in (8, 16, 32) and t is not ty.U32:
                self.code.emit(Op[f"WRAP_{'I' if t.signed else 'U'}{t.bits}"], reg, reg, 0, "free", at)
        elif t.words == 1:
            self.code.emit(Op.WRAP_U16, reg, reg, 0, "free", at)
        return Run(t, reg, at)

    # ---- calls
    def call(self, fn: Function, args: list[Any], at: int) -> Any:
        raise CslError(at, "calls of run-time code go through x_Call")

    def x_Call(self, node: tree.Call, scope: Scope) -> Any:
        callee = self.known(node.callee, scope)
        if not isinstance(callee.data, Function):
            raise CslError(node.at, f"a value of type '{callee.type}' cannot be called")
        fn: Function = callee.data
        if fn.node.kind == "task":
            raise CslError(node.at, f"'{fn.name}' is a task and cannot be called; activate it with @activate")
        if len(node.args) != len(fn.node.params):
            self.check_count(fn, node.args, node.at)
        inner = Scope(fn.instance)
        window = self.code.next
        args: list[Any] = []
        mixed = False
        for p, arg in zip(fn.node.params, node.args, strict=True):
            mark = self.code.next
            value = self.eval_as(arg, scope, None if p.type is None else self.type_of(p.type, inner))
            value = self.load(value, arg.at)
            if value.__class__ is Value and isinstance(value.data, dict) and has_run(value):
                mixed = True
            elif p.comptime and value.__class__ is not Value:
                raise CslError(
                    arg.at, f"the parameter '{p.name}' of '{fn.name}' must be known at compile time"
                )
            elif not self.static(value, p.comptime):
                value = self.argument(value, mark, arg.at)
            inner.names[str(p.name)] = value
            args.append(value)
        result = self.type_of(fn.node.result, inner)
        if mixed:
            return self.inlined(fn, inner, result, node.at)
        if not result.runtime and result is not ty.VOID:
            return self.unit.comptime.call(fn, args, node.at)
        code = self.unit.function(fn, inner.names, result, node.at)
        row = self.code.emit(Op.CALL, window, 0, 0, "call", node.at)
        if result is ty.VOID and all(v.__class__ is Value for v in inner.names.values()):
            self.code.plain.add(row)
        self.code.fix("call", code)
        self.code.callees.append((code, window))
        self.code.release(window)
        return self.results(result, node.at)

    def static(self, value: Any, comptime: bool) -> bool:
        """Whether an argument is bound when the function is compiled."""
        return value.__class__ is Value and (comptime or not value.type.runtime or value.type is ty.VOID)

    def argument(self, value: Any, mark: int, at: int) -> Any:
        """Place an argument in the registers from `mark` on."""
        t = value.type
        items = self.scalars(value, at)
        self.gather(items, mark, at)
        self.code.release(mark + len(items))
        self.code.window = max(self.code.window, self.code.next)
        return self.numbered(t, iter(range(mark, mark + len(items))), at)

    def numbered(self, t: ty.Type, regs: Any, at: int) -> Any:
        if isinstance(t, ty.StructType):
            return Agg(t, [self.numbered(f, regs, at) for _, f in t.fields], at)
        return Run(t, next(regs), at)

    def scalars(self, value: Any, at: int) -> list[Any]:
        """The scalar operands of a value, in the order of its fields."""
        t = value.type
        leaves(t, at)
        if not isinstance(t, ty.StructType):
            return [value]
        items = (
            value.items
            if value.__class__ is Agg
            else [Value(f, x) for (_, f), x in zip(t.fields, value.data, strict=True)]
        )
        return [
            s
            for (_, f), i in zip(t.fields, items, strict=True)
            for s in self.scalars(self.load(self.coerce(i, f, at), at), at)
        ]

    def gather(self, items: list[Any], start: int, at: int) -> None:
        """Bring scalars into consecutive registers, none of them overwritten before it is read."""
        code = self.code
        wanted = range(start, start + len(items))
        clash = any(
            i.__class__ is Run and i.reg in wanted and i.reg != start + k for k, i in enumerate(items)
        )
        if clash:
            code.next = max(code.next, start + len(items))
            fresh = []
            for i in items:
                if i.__class__ is Run:
                    i = self.emit(Op.MOV, i.reg, 0, "move", i.type, at)
                fresh.append(i)
            items = fresh
        code.window = max(code.window, start + len(items))
        single = len(items) == 1
        for k, item in enumerate(items):
            self.move(item, start + k, max(start, self.locals_end) if single else 1 << 30, at)

    def results(self, t: ty.Type, at: int) -> Any:
        """The value that a call left in the registers from the window on."""
        if t is ty.VOID:
            return VOID_VALUE
        return self.parameter(t, at)

    def inlined(self, fn: Function, inner: Scope, result: ty.Type, at: int) -> Any:
        """The body in place: for arguments that mix run-time values into anonymous structures."""
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
        assert fn.node.body is not None
        self.exec(fn.node.body, inner)
        self.targets.pop()
        self.result, self.addressed, self.locals_end = saved
        code.bind(target.leave)
        code.release(regs[-1] + 1 if regs else code.next)
        return VOID_VALUE if result is ty.VOID else self.numbered(result, iter(regs), at)

    # ---- statements
    def s_Block(self, node: tree.Block, scope: Scope) -> Signal:
        inner = Scope(scope.instance, scope)
        code = self.code
        mark, end = code.next, self.locals_end
        target = None
        if node.label is not None:
            target = Target(node.label, code.label(), kind="block")
            self.targets.append(target)
        signal = None
        self.locals_end = max(end, code.next)
        for statement in node.statements:
            signal = self.exec(statement, inner)
            code.release(max(self.locals_end, mark))
            if signal is not None:
                break
        if target is not None:
            self.targets.pop()
            code.bind(target.leave)
            if target.left:
                signal = None
        code.release(mark)
        self.locals_end = end
        return signal

    def s_Comptime(self, node: tree.Comptime, scope: Scope) -> Signal:
        self.unit.comptime.exec(node.body, scope)
        return None

    def s_Declaration(self, node: tree.Declaration, scope: Scope) -> Signal:
        if node.comptime:
            return self.unit.comptime.s_Declaration(node, scope)  # type: ignore[no-any-return]
        t = None if node.type is None else self.type_of(node.type, scope)
        mark = self.code.next
        if node.value is None:
            if t is None:
                raise CslError(node.at, f"'{node.name}' has neither a type nor a value")
            if node.kind == "const":
                raise CslError(node.at, f"the constant '{node.name}' has no value")
            value: Any = Value(t, zero(t))
        else:
            value = self.eval_as(node.value, scope, t)
        if node.kind == "const":
            self.declare(node, scope, self.constant_entry(node, value, mark))
        else:
            self.declare(node, scope, self.variable(node, value, mark))
        return None

    def constant_entry(self, node: tree.Declaration, value: Any, mark: int) -> Any:
        """What the name of a `const` stands for."""
        value = self.load(value, node.at)
        if value.__class__ is Value:
            if has_run(value):
                self.locals_end = self.code.next
            return Value(value.type, copy(value.data)) if isinstance(value.data, list) else value
        if value.__class__ is Mem or (value.__class__ is Agg and isinstance(value.type, ty.ArrayType)):
            cell = self.frame_cell(node.name, value.type, node.at)
            self.store_memory(self.address(Ref(cell, (), value.type), node.at), value, node.at)
            cell.mutable = False
            return cell
        if value.__class__ is Agg:
            items = [
                self.emit(Op.MOV, i.reg, 0, "move", i.type, node.at) if i.__class__ is Run else i
                for i in value.items
            ]
            self.locals_end = self.code.next
            return Agg(value.type, items, node.at)
        if value.__class__ is RunRange:
            self.locals_end = self.code.next
            return value
        return Run(value.type, self.settle(value, mark, node.at), node.at)

    def settle(self, value: Any, mark: int, at: int) -> int:
        """A register of its own for a named scalar."""
        self.code.release(mark)
        reg = self.code.alloc()
        self.move(value, reg, mark, at)
        self.code.release(reg + 1)
        self.locals_end = reg + 1
        return reg

    def variable(self, node: tree.Declaration, value: Any, mark: int) -> Any:
        t = value.type
        if t in (ty.COMPTIME_INT, ty.COMPTIME_FLOAT):
            raise CslError(
                node.at, f"the variable '{node.name}' needs a type, as in 'var {node.name}: i16 = ...'"
            )
        if not t.runtime:
            if value.__class__ is not Value or has_run(value):
                raise CslError(node.at, f"a variable of type '{t}' exists at compile time only")
            return Cell(node.name, t, copy(value.data), True, node.at)
        if isinstance(t, (ty.ArrayType, ty.StructType)) or node.name in self.addressed:
            cell = self.frame_cell(node.name, t, node.at)
            self.use(cell)
            self.store_memory(self.address(Ref(cell, (), t), node.at), value, node.at)
            self.code.release(mark)
            return cell
        if t is ty.VOID:
            return value
        return Local(node.name, t, self.settle(value, mark, node.at), True, node.at)

    def s_If(self, node: tree.If, scope: Scope) -> Signal:
        code = self.code
        other = code.label()
        known = self.branch(node.test, scope, other, False)
        if known is not None:
            if known:
                return self.arm(node.yes, scope)
            return None if node.no is None else self.arm(node.no, scope)
        first = self.arm(node.yes, scope)
        if node.no is None:
            code.bind(other)
            return None
        done = code.label()
        if first is None:
            code.jump(Op.JMP, 0, 0, done, node.at)
        code.bind(other)
        second = self.arm(node.no, scope)
        code.bind(done)
        return END if first is not None and second is not None else None

    def arm(self, node: tree.Node, scope: Scope) -> Signal:
        """A statement with a scope of its own."""
        mark, end = self.code.next, self.locals_end
        self.locals_end = max(end, mark)
        signal = self.exec(node, Scope(scope.instance, scope))
        self.code.release(mark)
        self.locals_end = end
        return signal

    def s_Switch(self, node: tree.Switch, scope: Scope) -> Signal:
        value = self.eval(node.subject, scope)
        if value.__class__ is Value:
            chosen = self.chosen_arm(node, value, scope)
            return None if chosen is None else self.switch_arm(chosen, scope)
        code = self.code
        done = code.label()
        tests, default = self.dispatch(node, value, scope)
        code.jump(Op.JMP, 0, 0, default if default is not None else done, node.at)
        ended = default is not None
        for label, body in tests:
            code.bind(label)
            signal = self.switch_arm(body, scope)
            if signal is None:
                ended = False
                code.jump(Op.JMP, 0, 0, done, node.at)
        code.bind(done)
        return END if ended else None

    def dispatch(
        self, node: tree.Switch, value: Any, scope: Scope
    ) -> tuple[list[tuple[int, tree.Node]], int | None]:
        """Compare and jump to every arm; the arms with their labels, and the label of `else`."""
        code = self.code
        reg = self.register(value, node.at)
        arms: list[tuple[int, tree.Node]] = []
        default = None
        for keys, body in node.arms:
            label = code.label()
            arms.append((label, body))
            if keys is None:
                default = label
                continue
            for key in keys:
                case = self.coerce(self.known(key, scope), value.type, key.at)
                number = register_form(
                    value.type.base if isinstance(value.type, ty.EnumType) else value.type, case.data
                )
                if number in INT32:
                    code.jump(Op.JEQI, reg, number, label, key.at)
                else:
                    code.jump(Op.JEQ, reg, self.register(case, key.at), label, key.at)
        return arms, default

    def switch_arm(self, body: tree.Node, scope: Scope) -> Signal:
        if isinstance(body, (tree.Block, tree.Switch)):
            return self.arm(body, scope)
        mark = self.code.next
        self.eval(body, scope)
        self.code.release(mark)
        return None

    # ---- loops
    def s_While(self, node: tree.While, scope: Scope) -> Signal:
        if node.unroll:
            return self.unrolled_while(node, scope)
        code = self.code
        body, test = code.label(), code.label()
        target = Target(node.label, code.label(), code.label())
        code.jump(Op.JMP, 0, 0, test, node.at)
        code.bind(body)
        self.targets.append(target)
        self.arm(node.body, scope)
        self.targets.pop()
        assert target.again is not None
        code.bind(target.again)
        if node.step is not None:
            self.arm(node.step, scope)
        code.bind(test)
        mark = code.next
        known = self.branch(node.test, scope, body, True)
        code.release(mark)
        if known:
            code.jump(Op.JMP, 0, 0, body, node.at)
        code.bind(target.leave)
        return END if known and not target.left else None

    def unrolled_while(self, node: tree.While, scope: Scope) -> Signal:
        code = self.code
        leave = code.label()
        count = 0
        while self.unit.comptime.condition(node.test, scope):
            count += 1
            self.check_unroll(count, node.at)
            if self.iteration(node, scope, leave):
                break
            if node.step is not None:
                self.exec(node.step, scope)
        code.bind(leave)
        return None

    def check_unroll(self, count: int, at: int) -> None:
        limit = self.options.max_inlined_iterations
        if count > limit:
            raise CslError(
                at,
                f"an inline loop has more than {limit} iterations; raise --max-inlined-iterations or drop 'inline'",
            )

    def iteration(self, node: tree.While | tree.For, scope: Scope, leave: int) -> bool:
        """One iteration of an unrolled loop; True if nothing can follow it."""
        target = Target(node.label, leave, self.code.label())
        self.targets.append(target)
        signal = self.arm(node.body, scope)
        self.targets.pop()
        assert target.again is not None
        self.code.bind(target.again)
        return signal is not None and not target.repeated

    def s_For(self, node: tree.For, scope: Scope) -> Signal:
        mark, end = self.code.next, self.locals_end
        over = self.access(node.over, scope)
        if over.__class__ is Ref and not self.in_memory(over.root):
            over = self.load(over, node.over.at)
        if isinstance(over.type, ty.PointerType):
            over = self.deref(self.load(over, node.over.at), node.over.at)
        signal = self.loop_over(node, over, scope)
        self.code.release(mark)
        self.locals_end = end
        return signal

    def loop_over(self, node: tree.For, over: Any, scope: Scope) -> Signal:
        at = node.over.at
        if node.unroll or (over.__class__ is Value and isinstance(over.data, (dict, str))):
            return self.unrolled_for(node, self.known_items(over, at), scope)
        if over.type is ty.RANGE:
            if over.__class__ is Value:
                r: Range = over.data
                if len(r) == 0:
                    return None
                over = RunRange(
                    r.element,
                    Value(r.element, r.start),
                    Value(ty.COMPTIME_INT, r.stop),
                    Value(ty.COMPTIME_INT, r.step),
                    at,
                )
                return self.counted(node, over, scope, True)
            return self.counted(node, over, scope, False)
        if not isinstance(over.type, ty.ArrayType):
            raise CslError(at, f"'for' runs over a range or an array, found '{over.type}'")
        return self.over_array(node, over, scope)

    def known_items(self, over: Any, at: int) -> list[Any]:
        if over.__class__ is Value:
            return list(self.items_of(over, at))
        if isinstance(over.type, ty.ArrayType) and len(over.type.shape) == 1:
            return [self.load(self.index(over, [Value(ty.U16, i)], at), at) for i in range(over.type.count)]
        raise CslError(at, "an inline loop runs over what is known at compile time")

    def unrolled_for(self, node: tree.For, items: list[Any], scope: Scope) -> Signal:
        leave = self.code.label()
        if node.unroll:
            self.check_unroll(len(items), node.at)
        for k, item in enumerate(items):
            inner = Scope(scope.instance, scope)
            inner.names[node.names[0]] = item
            if len(node.names) > 1:
                inner.names[node.names[1]] = Value(ty.U16, k)
            self.locals_end = max(self.locals_end, self.code.next)
            if self.iteration(node, inner, leave):
                break
        self.code.bind(leave)
        return None

    def counted(self, node: tree.For, over: RunRange, scope: Scope, certain: bool) -> Signal:
        """A loop over a range; `certain`: it has at least one iteration.  The test stands at the end."""
        code, at = self.code, node.at
        cost = "alu32" if over.element.words > 1 else "alu16"
        i = self.settle(self.coerce(over.start, over.element, at), code.next, at)
        stop = self.bound(over.stop, at)
        step = self.bound(over.step, at)
        counter = None
        inner = Scope(scope.instance, scope)
        inner.names[node.names[0]] = Run(over.element, i, at)
        if len(node.names) > 1:
            counter = self.settle(Value(ty.U16, 0), code.next, at)
            inner.names[node.names[1]] = Run(ty.U16, counter, at)
        body = code.label()
        target = Target(node.label, code.label(), code.label())
        if not certain:
            self.range_test(i, stop, step, target.leave, False, at)
        code.bind(body)
        self.targets.append(target)
        self.arm(node.body, inner)
        self.targets.pop()
        assert target.again is not None
        code.bind(target.again)
        if isinstance(step, int):
            code.emit(Op.ADDI_I64, i, i, step, cost, at)
        else:
            code.emit(Op.ADD_I64, i, i, step.reg, cost, at)
        if counter is not None:
            code.emit(Op.ADDI_I64, counter, counter, 1, "alu16", at)
        self.range_test(i, stop, step, body, True, at)
        code.bind(target.leave)
        return None

    def bound(self, value: Any, at: int) -> Any:
        """A bound of a loop: a number that fits a row, or a register of its own."""
        if value.__class__ is Value:
            if value.data in INT32:
                return value.data
            value = Value(ty.I64, value.data)
        return Run(value.type, self.settle(value, self.code.next, at), at)

    def range_test(self, i: int, stop: Any, step: Any, label: int, inside: bool, at: int) -> None:
        """Jump to `label` if the counter is (`inside`) or is not within the range."""
        code = self.code
        if isinstance(step, int):
            down = step < 0
            if isinstance(stop, int):
                op = (Op.JGTI if inside else Op.JLEI) if down else (Op.JLTI if inside else Op.JGEI)
                code.jump(op, i, stop, label, at)
                return
            a, b = (stop.reg, i) if down else (i, stop.reg)
            if inside:
                code.jump(Op.JLT, a, b, label, at)
            else:
                code.jump(Op.JLE, b, a, label, at)
            return
        negative, done = code.label(), code.label()
        skip = label if not inside else done
        code.jump(Op.JLTI, step.reg, 0, negative, at)
        code.jump(Op.JEQI, step.reg, 0, skip, at)
        self.range_test(i, stop, 1, label, inside, at)
        code.jump(Op.JMP, 0, 0, done, at)
        code.bind(negative)
        self.range_test(i, stop, -1, label, inside, at)
        code.bind(done)

    def over_array(self, node: tree.For, over: Any, scope: Scope) -> Signal:
        code, at = self.code, node.at
        t = over.type
        if t.count == 0:
            return None
        if over.__class__ is Value:
            over = self.constant_array(over, at)
        elif over.__class__ is Agg:
            over = self.spill(over, at)
        mem = self.simple(self.address(over, at), at)
        flat = ty.array((t.count,), t.element)
        mem = Mem(flat, at, mem.root, mem.base, mem.offset)
        i = self.settle(Value(ty.U16, 0), code.next, at)
        body = code.label()
        target = Target(node.label, code.label(), code.label())
        code.bind(body)
        inner = Scope(scope.instance, scope)
        item = self.load(self.element(mem, flat, [Run(ty.U16, i, at)], at), at)
        inner.names[node.names[0]] = (
            item
            if item.__class__ is Mem
            else Run(item.type, self.settle(item, i + 1, at), at)
            if item.__class__ is Run
            else item
        )
        if len(node.names) > 1:
            inner.names[node.names[1]] = Run(ty.U16, i, at)
        self.locals_end = max(self.locals_end, code.next)
        self.targets.append(target)
        self.arm(node.body, inner)
        self.targets.pop()
        assert target.again is not None
        code.bind(target.again)
        code.emit(Op.ADDI_I64, i, i, 1, "alu16", at)
        code.jump(Op.JLTI, i, t.count, body, at)
        code.bind(target.leave)
        return None

    # ---- jumps
    def s_Return(self, node: tree.Return, scope: Scope) -> Signal:
        result = self.result
        if node.value is None:
            if result is not ty.VOID:
                raise CslError(node.at, f"the function must return a '{result}'")
            value: Any = VOID_VALUE
        else:
            value = self.load(self.eval_as(node.value, scope, result), node.at)
        target = next((t for t in reversed(self.targets) if t.kind == "function"), None)
        if target is not None:
            self.leave_with(target, value, node.at)
            return END
        if result is not ty.VOID:
            items = self.scalars(value, node.at)
            self.gather_result(items, node.at)
        self.code.emit(Op.RET, 0, 0, 0, "return", node.at)
        return END

    def gather_result(self, items: list[Any], at: int) -> None:
        if len(items) == 1:
            self.move(items[0], 0, self.locals_end, at)
        else:
            self.code.next = max(self.code.next, len(items))
            self.gather(items, 0, at)

    def leave_with(self, target: Target, value: Any, at: int) -> None:
        """Store the value of a block or an inlined function and jump behind it."""
        if target.regs:
            for item, reg in zip(self.scalars(value, at), target.regs, strict=True):
                self.move(item, reg, self.locals_end, at)
        target.left = True
        self.code.jump(Op.JMP, 0, 0, target.leave, at)

    def find(self, label: str | None, at: int, what: str) -> Target:
        for target in reversed(self.targets):
            if target.kind == "function":
                break
            if label is None and target.kind == "loop":
                return target
            if label is not None and target.label == label:
                return target
        if label is None:
            raise CslError(at, f"'{what}' stands outside of a loop")
        raise CslError(at, f"there is no loop or block with the label '{label}' around this '{what}'")

    def s_Break(self, node: tree.Break, scope: Scope) -> Signal:
        target = self.find(node.label, node.at, "break")
        if node.value is not None:
            if target.kind != "value":
                raise CslError(node.at, "this 'break' gives a value, and its block is no expression")
            value = self.load(self.eval(node.value, scope), node.at)
            if target.type is None and target.wanted is not None:
                value = self.coerce(value, target.wanted, node.at)
            if target.type is None:
                if value.type in (ty.COMPTIME_INT, ty.COMPTIME_FLOAT):
                    raise CslError(node.at, "the value of a block at run time needs a type; use @as")
                target.type = value.type
                target.regs = target.regs[: len(leaves(value.type, node.at))]
            self.leave_with(target, self.coerce(value, target.type, node.at), node.at)
            return END
        target.left = True
        self.code.jump(Op.JMP, 0, 0, target.leave, node.at)
        return END

    def s_Continue(self, node: tree.Continue, scope: Scope) -> Signal:
        target = self.find(node.label, node.at, "continue")
        if target.again is None:
            raise CslError(node.at, "'continue' needs a loop")
        target.repeated = True
        self.code.jump(Op.JMP, 0, 0, target.again, node.at)
        return END

    def s_Assign(self, node: tree.Assign, scope: Scope) -> Signal:
        if node.op != "=" or (isinstance(node.target, tree.Name) and node.target.id == "_"):
            return super().s_Assign(node, scope)
        place = self.target(node, scope)
        t = None if place.type is ty.COMPTIME_STRUCT else place.type
        self.store(place, self.eval_as(node.value, scope, t), node.at)
        return None

    # ---- expressions with control flow
    def eval_as(self, node: tree.Node, scope: Scope, t: ty.Type | None) -> Any:
        """Arms of a value that is chosen at run time take the type that is wanted."""
        if t is not None and isinstance(node, (tree.IfExpr, tree.Switch, tree.Block)):
            self.expected = t
        value = self.eval(node, scope)
        self.expected = None
        return value if t is None else self.coerce(value, t, node.at)

    def x_Block(self, node: tree.Block, scope: Scope) -> Any:
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

    def x_IfExpr(self, node: tree.IfExpr, scope: Scope) -> Any:
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
        """The type of a value with several arms: found by a trial that is taken back."""
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

    def x_Switch(self, node: tree.Switch, scope: Scope) -> Any:
        expected, self.expected = self.expected, None
        value = self.eval(node.subject, scope)
        if value.__class__ is Value:
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


def has_run(value: Value) -> bool:
    """Whether an anonymous structure holds operands that are known at run time only."""
    if value.__class__ is not Value:
        return True
    if not isinstance(value.data, dict):
        return False
    return any(has_run(v) for v in value.data.values())


def addressed_names(node: tree.Function, known: dict[int, set[str]]) -> set[str]:
    """Names whose address is taken anywhere in a function; `known` keeps the answers while the tree lives."""
    key = id(node)
    if key not in known:
        found: set[str] = set()
        _collect(node.body, found)
        known[key] = found
    return known[key]


def _collect(node: Any, found: set[str]) -> None:
    if isinstance(node, (list, tuple)):
        for item in node:
            _collect(item, found)
        return
    if not isinstance(node, tree.Node):
        return
    if isinstance(node, tree.Unary) and node.op == "&":
        base = node.operand
        while isinstance(base, (tree.Member, tree.Index)):
            base = base.base
        if isinstance(base, tree.Name):
            found.add(base.id)
    for name in fields_of(type(node)):
        _collect(getattr(node, name), found)


_fields: dict[type, tuple[str, ...]] = {}


def fields_of(kind: type) -> tuple[str, ...]:
    if kind not in _fields:
        _fields[kind] = tuple(n for n in kind.__dataclass_fields__ if n != "at")  # type: ignore[attr-defined]
    return _fields[kind]


class ProgramCode:
    """Run-time code of one code class; what the linker reads.

    Symbols: `used` variables that need memory, `functions` by (function, compile-time arguments, argument types).
    """

    def __init__(self, unit: Any) -> None:
        self.unit = unit
        unit.used = {}
        unit.constants = {}
        unit.comptime = Evaluator(unit, strict=True)
        unit.function = self.function
        self.functions: dict[Any, Code] = {}

    def function(self, fn: Function, given: dict[str, Any], result: ty.Type, at: int) -> Code:
        """The code of a function for these arguments (operands that are not `Value` are run-time parameters)."""
        key = (id(fn), tuple(freeze(v) if v.__class__ is Value else v.type for v in given.values()))
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
        """The code of a function without arguments (a handler)."""
        if fn.node.kind == "task":
            return self.task(fn, "local")
        lowerer = Lowerer(self.unit, Code("probe"))
        scope = Scope(fn.instance)
        types = [lowerer.type_of(p.type, scope) for p in fn.node.params if p.type is not None]
        given = {str(p.name): Run(t, 0, at) for p, t in zip(fn.node.params, types, strict=True)}
        return self.function(fn, given, lowerer.type_of(fn.node.result, scope), at)

    def task(self, fn: Function, kind: str) -> Code:
        key = (id(fn), "task")
        if key not in self.functions:
            code = Code(fn.name)
            self.functions[key] = code
            Lowerer(self.unit, code).task(fn, kind)
        return self.functions[key]

    def exported(self, fn: Function, at: int) -> tuple[Code, list[ty.Type]]:
        """Entry of a function that the host calls: u32 words become arguments."""
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

    def startup(self, items: list[tuple[Any, ...]]) -> Code | None:
        """What comptime blocks ask of the registers: run once, before everything else."""
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


def initial_data(root: Any, unit: Any) -> Any:
    """Data of a variable at the start, or None (zeros)."""
    if isinstance(root, Global):
        unit.evaluator.ensure(root)
    return root.data
