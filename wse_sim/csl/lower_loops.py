"""Lowering of loops: unrolled if their iterations must be known at compile time, counted over a range, or
over an array."""

from __future__ import annotations

from collections.abc import Sequence

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.code import Agg, Mem, Run, RunRange
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.evaluate import Scope, Signal, items_of
from wse_sim.csl.lower_calls import END, CallLowerer, Target
from wse_sim.csl.lower_expr import INT32
from wse_sim.csl.lower_statements import arm
from wse_sim.csl.optimised import unroll
from wse_sim.csl.values import Operand, Range, Ref, Value
from wse_sim.fabric.vm.opcodes import Op


# ---- loops
def s_While(low: CallLowerer, node: tree.While, scope: Scope) -> Signal:
    if node.unroll:
        return unrolled_while(low, node, scope)
    code = low.code
    body, test = code.label(), code.label()
    target = Target(node.label, code.label(), code.label())
    code.jump(Op.JMP, 0, 0, test, node.at)
    code.bind(body)
    low.targets.append(target)
    arm(low, node.body, scope)
    low.targets.pop()
    assert target.again is not None
    code.bind(target.again)
    if node.step is not None:
        arm(low, node.step, scope)
    code.bind(test)
    mark = code.next
    known = low.branch(node.test, scope, body, True)
    code.release(mark)
    if known:
        code.jump(Op.JMP, 0, 0, body, node.at)
    code.bind(target.leave)
    return END if known and not target.left else None


def unrolled_while(low: CallLowerer, node: tree.While, scope: Scope) -> Signal:
    code = low.code
    leave = code.label()
    count = 0
    while low.unit.comptime.condition(node.test, scope):
        count += 1
        check_unroll(low, count, node.at)
        if iteration(low, node, scope, leave):
            break
        if node.step is not None:
            low.exec(node.step, scope)
    code.bind(leave)
    return None


def check_unroll(low: CallLowerer, count: int, at: int) -> None:
    limit = low.options.max_inlined_iterations
    if count > limit:
        raise CslError(
            at,
            f"an inline loop has more than {limit} iterations; raise --max-inlined-iterations or drop 'inline'",
        )


def iteration(low: CallLowerer, node: tree.While | tree.For, scope: Scope, leave: int) -> bool:
    """Lower one iteration of an unrolled loop; return True if no iteration can follow it."""
    target = Target(node.label, leave, low.code.label())
    low.targets.append(target)
    signal = arm(low, node.body, scope)
    low.targets.pop()
    assert target.again is not None
    low.code.bind(target.again)
    return signal is not None and not target.repeated


def s_For(low: CallLowerer, node: tree.For, scope: Scope) -> Signal:
    mark, end = low.code.next, low.locals_end
    over = low.access(node.over, scope)
    if type(over) is Ref and not low.in_memory(over.root):
        over = low.load(over, node.over.at)
    if isinstance(over.type, ty.PointerType):
        over = low.deref(low.load(over, node.over.at), node.over.at)
    signal = loop_over(low, node, over, scope)
    low.code.release(mark)
    low.locals_end = end
    return signal


def loop_over(low: CallLowerer, node: tree.For, over: Operand, scope: Scope) -> Signal:
    at = node.over.at
    if node.unroll or (type(over) is Value and isinstance(over.data, (dict, str))):
        return unrolled_for(low, node, known_items(low, over, at), scope)
    if over.type is ty.RANGE:
        if type(over) is Value:
            r: Range = over.data
            if len(r) == 0:
                return None
            known = RunRange(
                r.element,
                Value(r.element, r.start),
                Value(ty.COMPTIME_INT, r.stop),
                Value(ty.COMPTIME_INT, r.step),
                at,
            )
            return counted(low, node, known, scope, len(r))
        assert type(over) is RunRange
        return counted(low, node, over, scope, 0)
    if not isinstance(over.type, ty.ArrayType):
        raise CslError(at, f"'for' runs over a range or an array, found '{over.type}'")
    return over_array(low, node, over, scope)


def known_items(low: CallLowerer, over: Operand, at: int) -> list[Operand]:
    if type(over) is Value:
        return list(items_of(over, at))
    if isinstance(over.type, ty.ArrayType) and len(over.type.shape) == 1:
        return [low.load(low.index(over, [Value(ty.U16, i)], at), at) for i in range(over.type.count)]
    raise CslError(at, "an inline loop runs over what is known at compile time")


def unrolled_for(low: CallLowerer, node: tree.For, items: Sequence[Operand], scope: Scope) -> Signal:
    leave = low.code.label()
    if node.unroll:
        check_unroll(low, len(items), node.at)
    for k, item in enumerate(items):
        inner = Scope(scope.instance, scope)
        inner.names[node.names[0]] = item
        if len(node.names) > 1:
            inner.names[node.names[1]] = Value(ty.U16, k)
        low.locals_end = max(low.locals_end, low.code.next)
        if iteration(low, node, inner, leave):
            break
    low.code.bind(leave)
    return None


def counted(low: CallLowerer, node: tree.For, over: RunRange, scope: Scope, turns: int) -> Signal:
    """Lower a loop over a range, with the test at its end; `turns` is its number of iterations, 0 if
    unknown."""
    code, at = low.code, node.at
    cost = "alu32" if over.element.words > 1 else "alu16"
    i = low.settle(low.coerce(over.start, over.element, at), code.next, at)
    stop = bound(low, over.stop, at)
    step = bound(low, over.step, at)
    counter = None
    inner = Scope(scope.instance, scope)
    inner.names[node.names[0]] = Run(over.element, i, at, linear=True)
    if len(node.names) > 1:
        counter = low.settle(Value(ty.U16, 0), code.next, at)
        inner.names[node.names[1]] = Run(ty.U16, counter, at, linear=True)
    body = code.label()
    target = Target(node.label, code.label(), code.label())
    if not turns:
        range_test(low, i, stop, step, target.leave, False, at)
    code.bind(body)
    first = len(code.rows)
    low.targets.append(target)
    arm(low, node.body, inner)
    low.targets.pop()
    assert target.again is not None
    code.bind(target.again)
    control = len(code.rows)
    if isinstance(step, int):
        code.emit(Op.ADDI_I64, i, i, step, cost, at)
    else:
        code.emit(Op.ADD_I64, i, i, step.reg, cost, at)
    if counter is not None:
        code.emit(Op.ADDI_I64, counter, counter, 1, "alu16", at)
    range_test(low, i, stop, step, body, True, at)
    if turns:
        unroll(code, first, control, turns)
    code.bind(target.leave)
    return None


def bound(low: CallLowerer, value: Operand, at: int) -> int | Run:
    """Return a bound of a loop: a number that fits a row, or a separate register."""
    if type(value) is Value:
        if value.data in INT32:
            return value.data
        value = Value(ty.I64, value.data)
    return Run(value.type, low.settle(value, low.code.next, at), at)


def range_test(
    low: CallLowerer, i: int, stop: int | Run, step: int | Run, label: int, inside: bool, at: int
) -> None:
    """Emit a jump to `label` if the counter is within the range (`inside`), or is not."""
    code = low.code
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
    range_test(low, i, stop, 1, label, inside, at)
    code.jump(Op.JMP, 0, 0, done, at)
    code.bind(negative)
    range_test(low, i, stop, -1, label, inside, at)
    code.bind(done)


def over_array(low: CallLowerer, node: tree.For, over: Operand, scope: Scope) -> Signal:
    code, at = low.code, node.at
    t = over.type
    assert isinstance(t, ty.ArrayType)
    if t.count == 0:
        return None
    if type(over) is Value:
        over = low.constant_array(over, at)
    elif type(over) is Agg:
        over = low.spill(over, at)
    mem = low.simple(low.address(over, at), at)
    flat = ty.array((t.count,), t.element)
    mem = Mem(flat, at, mem.root, mem.base, mem.offset)
    i = low.settle(Value(ty.U16, 0), code.next, at)
    body = code.label()
    target = Target(node.label, code.label(), code.label())
    code.bind(body)
    first = len(code.rows)
    inner = Scope(scope.instance, scope)
    item = low.load(low.element(mem, flat, [Run(ty.U16, i, at)], at), at)
    inner.names[node.names[0]] = (
        item
        if type(item) is Mem
        else Run(item.type, low.settle(item, i + 1, at), at)
        if type(item) is Run
        else item
    )
    if len(node.names) > 1:
        inner.names[node.names[1]] = Run(ty.U16, i, at)
    low.locals_end = max(low.locals_end, code.next)
    low.targets.append(target)
    arm(low, node.body, inner)
    low.targets.pop()
    assert target.again is not None
    code.bind(target.again)
    control = len(code.rows)
    code.emit(Op.ADDI_I64, i, i, 1, "alu16", at)
    code.jump(Op.JLTI, i, t.count, body, at)
    unroll(code, first, control, t.count)
    code.bind(target.leave)
    return None
