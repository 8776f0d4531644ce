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
from wse_sim.csl.walk import Walk
from wse_sim.fabric.vm.opcodes import Op


# ---- statements
def s_Block(low: CallLowerer, node: tree.Block, scope: Scope) -> Signal:
    inner = Scope(scope.instance, scope)
    code = low.code
    mark, end = code.next, low.locals_end
    target = None
    if node.label is not None:
        target = Target(node.label, code.label(), kind="block")
        low.targets.append(target)
    signal = None
    low.locals_end = max(end, code.next)
    for statement in node.statements:
        signal = low.exec(statement, inner)
        code.release(max(low.locals_end, mark))
        if signal is not None:
            break
    if target is not None:
        low.targets.pop()
        code.bind(target.leave)
        if target.left:
            signal = None
    code.release(mark)
    low.locals_end = end
    return signal


def s_Comptime(low: CallLowerer, node: tree.Comptime, scope: Scope) -> Signal:
    low.unit.comptime.exec(node.body, scope)
    return None


def s_Declaration(low: CallLowerer, node: tree.Declaration, scope: Scope) -> Signal:
    if node.comptime:
        return low.unit.comptime.s_Declaration(node, scope)
    t = None if node.type is None else low.type_of(node.type, scope)
    mark = low.code.next
    if node.value is None:
        if t is None:
            raise CslError(node.at, f"'{node.name}' has neither a type nor a value")
        if node.kind == "const":
            raise CslError(node.at, f"the constant '{node.name}' has no value")
        value: Operand = Value(t, zero(t))
    else:
        value = low.eval_as(node.value, scope, t)
    if node.kind == "const":
        low.declare(node, scope, constant_entry(low, node, value, mark))
    else:
        low.declare(node, scope, variable(low, node, value, mark))
    return None


def constant_entry(low: CallLowerer, node: tree.Declaration, value: Operand, mark: int) -> Entry:
    """Return the scope entry of a `const`."""
    value = low.load(value, node.at)
    if type(value) is Value:
        if has_run(value):
            low.locals_end = low.code.next
        return Value(value.type, copy(value.data)) if isinstance(value.data, list) else value
    if type(value) is Mem or (type(value) is Agg and isinstance(value.type, ty.ArrayType)):
        cell = low.frame_cell(node.name, value.type, node.at)
        low.store_memory(low.address(Ref(cell, (), value.type), node.at), value, node.at)
        cell.mutable = False
        return cell
    if type(value) is Agg:
        items = [
            low.emit(Op.MOV, i.reg, 0, "move", i.type, node.at) if type(i) is Run else i for i in value.items
        ]
        low.locals_end = low.code.next
        return Agg(value.type, items, node.at)
    if type(value) is RunRange:
        low.locals_end = low.code.next
        return value
    return Run(value.type, low.settle(value, mark, node.at), node.at)


def variable(low: CallLowerer, node: tree.Declaration, value: Operand, mark: int) -> Entry:
    value = low.with_layout(value)
    t = value.type
    if t in (ty.COMPTIME_INT, ty.COMPTIME_FLOAT):
        raise CslError(
            node.at, f"the variable '{node.name}' needs a type, as in 'var {node.name}: i16 = ...'"
        )
    if not t.runtime:
        if type(value) is not Value or has_run(value):
            raise CslError(node.at, f"a variable of type '{t}' exists only at compile time")
        return Cell(node.name, t, copy(value.data), True, node.at)
    if isinstance(t, (ty.ArrayType, ty.StructType)) or node.name in low.addressed:
        cell = low.frame_cell(node.name, t, node.at)
        low.use(cell)
        low.store_memory(low.address(Ref(cell, (), t), node.at), value, node.at)
        low.code.release(mark)
        return cell
    if t is ty.VOID:
        return value
    return Local(node.name, t, low.settle(value, mark, node.at), True, node.at)


def s_If(low: CallLowerer, node: tree.If, scope: Scope) -> Signal:
    code = low.code
    other = code.label()
    known = low.branch(node.test, scope, other, False)
    if known is not None:
        if known:
            return arm(low, node.yes, scope)
        return None if node.no is None else arm(low, node.no, scope)
    first = arm(low, node.yes, scope)
    if node.no is None:
        code.bind(other)
        return None
    done = code.label()
    if first is None:
        code.jump(Op.JMP, 0, 0, done, node.at)
    code.bind(other)
    second = arm(low, node.no, scope)
    code.bind(done)
    return END if first is not None and second is not None else None


def arm(low: CallLowerer, node: tree.Node, scope: Scope) -> Signal:
    """Lower a statement in its own scope."""
    mark, end = low.code.next, low.locals_end
    low.locals_end = max(end, mark)
    signal = low.exec(node, Scope(scope.instance, scope))
    low.code.release(mark)
    low.locals_end = end
    return signal


def s_Switch(low: CallLowerer, node: tree.Switch, scope: Scope) -> Signal:
    value = low.eval(node.subject, scope)
    if type(value) is Value:
        chosen = low.chosen_arm(node, value, scope)
        return None if chosen is None else switch_arm(low, chosen, scope)
    code = low.code
    done = code.label()
    tests, default = dispatch(low, node, value, scope)
    code.jump(Op.JMP, 0, 0, default if default is not None else done, node.at)
    ended = default is not None
    for label, body in tests:
        code.bind(label)
        signal = switch_arm(low, body, scope)
        if signal is None:
            ended = False
            code.jump(Op.JMP, 0, 0, done, node.at)
    code.bind(done)
    return END if ended else None


def dispatch(
    low: CallLowerer, node: tree.Switch, value: Operand, scope: Scope
) -> tuple[list[tuple[int, tree.Node]], int | None]:
    """Emit comparisons that jump to the arms of a switch; return the arms with their labels, and the
    label of `else`."""
    code = low.code
    check_cases(low, node, value.type, scope)
    reg = low.register(value, node.at)
    arms: list[tuple[int, tree.Node]] = []
    default = None
    for keys, body in node.arms:
        label = code.label()
        arms.append((label, body))
        if keys is None:
            default = label
            continue
        for key in keys:
            case = low.coerce(low.known(key, scope), value.type, key.at)
            number = register_form(
                value.type.base if isinstance(value.type, ty.EnumType) else value.type, case.data
            )
            if number in INT32:
                code.jump(Op.JEQI, reg, number, label, key.at)
            else:
                code.jump(Op.JEQ, reg, low.register(case, key.at), label, key.at)
    if default is None and arms and covers(node, value.type):
        code.costs[-1] = COST["free"]  # only the last value is left
    return arms, default


def switch_arm(low: CallLowerer, body: tree.Node, scope: Scope) -> Signal:
    if isinstance(body, (tree.Block, tree.Switch)):
        return arm(low, body, scope)
    mark = low.code.next
    low.eval(body, scope)
    low.code.release(mark)
    return None


# ---- jumps
def s_Return(low: CallLowerer, node: tree.Return, scope: Scope) -> Signal:
    result = low.result
    if node.value is None:
        if result is not ty.VOID:
            raise CslError(node.at, f"the function must return a '{result}'")
        value: Operand = VOID_VALUE
    else:
        value = low.load(low.eval_as(node.value, scope, result), node.at)
    target = next((t for t in reversed(low.targets) if t.kind == "function"), None)
    if target is not None:
        leave_with(low, target, value, node.at)
        return END
    if result is not ty.VOID:
        items = low.scalars(value, node.at)
        gather_result(low, items, node.at)
    low.code.emit(Op.RET, 0, 0, 0, "return", node.at)
    return END


def gather_result(low: CallLowerer, items: Sequence[Operand], at: int) -> None:
    if len(items) == 1:
        low.move(items[0], 0, low.locals_end, at)
    else:
        low.code.next = max(low.code.next, len(items))
        low.gather(items, 0, at)


def leave_with(low: CallLowerer, target: Target, value: Operand, at: int) -> None:
    """Store the value of a block or an inlined function, and jump to its end."""
    if target.regs:
        for item, reg in zip(low.scalars(value, at), target.regs, strict=True):
            low.move(item, reg, low.locals_end, at)
    target.left = True
    low.code.jump(Op.JMP, 0, 0, target.leave, at)


def find(low: CallLowerer, label: str | None, at: int, what: str) -> Target:
    for target in reversed(low.targets):
        if target.kind == "function":
            break
        if label is None and target.kind == "loop":
            return target
        if label is not None and target.label == label:
            return target
    if label is None:
        raise CslError(at, f"'{what}' is outside a loop")
    raise CslError(at, f"there is no loop or block with the label '{label}' around this '{what}'")


def s_Break(low: CallLowerer, node: tree.Break, scope: Scope) -> Signal:
    target = find(low, node.label, node.at, "break")
    if node.value is not None:
        if target.kind != "value":
            raise CslError(node.at, "this 'break' gives a value, and its block is not an expression")
        value = low.load(low.eval(node.value, scope), node.at)
        if target.type is None and target.wanted is not None:
            value = low.coerce(value, target.wanted, node.at)
        if target.type is None:
            if value.type in (ty.COMPTIME_INT, ty.COMPTIME_FLOAT):
                raise CslError(node.at, "the value of a block at run time needs a type; use @as")
            target.type = value.type
            target.regs = target.regs[: len(leaves(value.type, node.at))]
        leave_with(low, target, low.coerce(value, target.type, node.at), node.at)
        return END
    target.left = True
    low.code.jump(Op.JMP, 0, 0, target.leave, node.at)
    return END


def s_Continue(low: CallLowerer, node: tree.Continue, scope: Scope) -> Signal:
    target = find(low, node.label, node.at, "continue")
    if target.again is None:
        raise CslError(node.at, "'continue' needs a loop")
    target.repeated = True
    low.code.jump(Op.JMP, 0, 0, target.again, node.at)
    return END


def s_Assign(low: CallLowerer, node: tree.Assign, scope: Scope) -> Signal:
    if node.op != "=" or (isinstance(node.target, tree.Name) and node.target.id == "_"):
        return Walk.s_Assign(low, node, scope)
    if low.assigned_field(node, scope):
        return None
    place = low.target(node, scope)
    t = None if place.type is ty.COMPTIME_STRUCT else place.type
    low.store(place, low.eval_as(node.value, scope, t), node.at)
    return None


def covers(node: tree.Switch, t: ty.Type) -> bool:
    """Return whether the arms of a switch without `else` name every value of a type."""
    named = sum(len(keys) for keys, _ in node.arms if keys is not None)
    if isinstance(t, ty.EnumType):
        return named == len(t.names)
    return t is ty.BOOL and named == 2
