"""Lowering of statements: declarations, choices and jumps.

A statement returns None, or ("end",) if control never continues after it. An `if` or `switch` with a known
condition lowers one arm and ignores the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.code import COST, Agg, Local, Mem, Run, RunRange
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.evaluate import Scope, Signal
from wse_sim.csl.lower_calls import END, CallLowerer, Target, has_run, leaves
from wse_sim.csl.lower_expr import INT32
from wse_sim.csl.strict import check_cases
from wse_sim.csl.values import VOID_VALUE, Cell, Entry, Operand, Ref, Value, copy, register_form, zero
from wse_sim.fabric.vm.opcodes import Op


class StatementLowerer(CallLowerer):
    """Lowerer of declarations, choices and jumps."""

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
            return self.unit.comptime.s_Declaration(node, scope)
        t = None if node.type is None else self.type_of(node.type, scope)
        mark = self.code.next
        if node.value is None:
            if t is None:
                raise CslError(node.at, f"'{node.name}' has neither a type nor a value")
            if node.kind == "const":
                raise CslError(node.at, f"the constant '{node.name}' has no value")
            value: Operand = Value(t, zero(t))
        else:
            value = self.eval_as(node.value, scope, t)
        if node.kind == "const":
            self.declare(node, scope, self.constant_entry(node, value, mark))
        else:
            self.declare(node, scope, self.variable(node, value, mark))
        return None

    def constant_entry(self, node: tree.Declaration, value: Operand, mark: int) -> Entry:
        """Return the scope entry of a `const`."""
        value = self.load(value, node.at)
        if type(value) is Value:
            if has_run(value):
                self.locals_end = self.code.next
            return Value(value.type, copy(value.data)) if isinstance(value.data, list) else value
        if type(value) is Mem or (type(value) is Agg and isinstance(value.type, ty.ArrayType)):
            cell = self.frame_cell(node.name, value.type, node.at)
            self.store_memory(self.address(Ref(cell, (), value.type), node.at), value, node.at)
            cell.mutable = False
            return cell
        if type(value) is Agg:
            items = [
                self.emit(Op.MOV, i.reg, 0, "move", i.type, node.at) if type(i) is Run else i
                for i in value.items
            ]
            self.locals_end = self.code.next
            return Agg(value.type, items, node.at)
        if type(value) is RunRange:
            self.locals_end = self.code.next
            return value
        return Run(value.type, self.settle(value, mark, node.at), node.at)

    def settle(self, value: Operand, mark: int, at: int) -> int:
        """Move a named scalar to a separate register and return it."""
        self.code.release(mark)
        reg = self.code.alloc()
        self.move(value, reg, mark, at)
        self.code.release(reg + 1)
        self.locals_end = reg + 1
        return reg

    def variable(self, node: tree.Declaration, value: Operand, mark: int) -> Entry:
        value = self.with_layout(value)
        t = value.type
        if t in (ty.COMPTIME_INT, ty.COMPTIME_FLOAT):
            raise CslError(
                node.at, f"the variable '{node.name}' needs a type, as in 'var {node.name}: i16 = ...'"
            )
        if not t.runtime:
            if type(value) is not Value or has_run(value):
                raise CslError(node.at, f"a variable of type '{t}' exists only at compile time")
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
        """Lower a statement in its own scope."""
        mark, end = self.code.next, self.locals_end
        self.locals_end = max(end, mark)
        signal = self.exec(node, Scope(scope.instance, scope))
        self.code.release(mark)
        self.locals_end = end
        return signal

    def s_Switch(self, node: tree.Switch, scope: Scope) -> Signal:
        value = self.eval(node.subject, scope)
        if type(value) is Value:
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
        self, node: tree.Switch, value: Operand, scope: Scope
    ) -> tuple[list[tuple[int, tree.Node]], int | None]:
        """Emit comparisons that jump to the arms of a switch; return the arms with their labels, and the
        label of `else`."""
        code = self.code
        check_cases(self, node, value.type, scope)
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
        if default is None and arms and covers(node, value.type):
            code.costs[-1] = COST["free"]  # only the last value is left
        return arms, default

    def switch_arm(self, body: tree.Node, scope: Scope) -> Signal:
        if isinstance(body, (tree.Block, tree.Switch)):
            return self.arm(body, scope)
        mark = self.code.next
        self.eval(body, scope)
        self.code.release(mark)
        return None

    # ---- jumps
    def s_Return(self, node: tree.Return, scope: Scope) -> Signal:
        result = self.result
        if node.value is None:
            if result is not ty.VOID:
                raise CslError(node.at, f"the function must return a '{result}'")
            value: Operand = VOID_VALUE
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

    def gather_result(self, items: Sequence[Operand], at: int) -> None:
        if len(items) == 1:
            self.move(items[0], 0, self.locals_end, at)
        else:
            self.code.next = max(self.code.next, len(items))
            self.gather(items, 0, at)

    def leave_with(self, target: Target, value: Operand, at: int) -> None:
        """Store the value of a block or an inlined function, and jump to its end."""
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
            raise CslError(at, f"'{what}' is outside a loop")
        raise CslError(at, f"there is no loop or block with the label '{label}' around this '{what}'")

    def s_Break(self, node: tree.Break, scope: Scope) -> Signal:
        target = self.find(node.label, node.at, "break")
        if node.value is not None:
            if target.kind != "value":
                raise CslError(node.at, "this 'break' gives a value, and its block is not an expression")
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
        if self.assigned_field(node, scope):
            return None
        place = self.target(node, scope)
        t = None if place.type is ty.COMPTIME_STRUCT else place.type
        self.store(place, self.eval_as(node.value, scope, t), node.at)
        return None


def covers(node: tree.Switch, t: ty.Type) -> bool:
    """Return whether the arms of a switch without `else` name every value of a type."""
    named = sum(len(keys) for keys, _ in node.arms if keys is not None)
    if isinstance(t, ty.EnumType):
        return named == len(t.names)
    return t is ty.BOOL and named == 2
