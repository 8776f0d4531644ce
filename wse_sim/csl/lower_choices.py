"""Lowering of expressions with control flow: blocks, `if` and `switch` as values."""

from __future__ import annotations

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.evaluate import Scope
from wse_sim.csl.lower_calls import CallLowerer, Target, leaves
from wse_sim.csl.lower_statements import dispatch
from wse_sim.csl.values import VOID_VALUE, Operand, Value
from wse_sim.fabric.vm.opcodes import Op


def x_Block(low: CallLowerer, node: tree.Block, scope: Scope) -> Operand:
    if not node.statements:
        return VOID_VALUE
    code = low.code
    regs = [code.alloc() for _ in range(8)]
    expected, low.expected = low.expected, None
    target = Target(node.label, code.label(), kind="value", regs=regs, wanted=expected)
    low.targets.append(target)
    plain = tree.Block(node.at, node.statements)
    end = low.locals_end
    low.locals_end = max(end, code.next)
    low.exec(plain, scope)
    low.locals_end = end
    low.targets.pop()
    code.bind(target.leave)
    if target.type is None:
        code.release(regs[0])
        return VOID_VALUE
    code.release(regs[0] + len(target.regs))
    return low.numbered(target.type, iter(target.regs), node.at)


def x_IfExpr(low: CallLowerer, node: tree.IfExpr, scope: Scope) -> Operand:
    code = low.code
    expected, low.expected = low.expected, None
    other, done = code.label(), code.label()
    mark = code.next
    known = low.branch(node.test, scope, other, False)
    if known is not None:
        if node.no is None and not known:
            return VOID_VALUE
        chosen = node.yes if known else node.no
        assert chosen is not None
        if expected is not None and isinstance(chosen, (tree.IfExpr, tree.Switch, tree.Block)):
            low.expected = expected
        return low.eval(chosen, scope)
    arms = [node.yes] if node.no is None else [node.yes, node.no]
    t = expected if expected is not None and expected.runtime else joined_type(low, arms, scope, node.at)
    if node.no is None and t is not ty.VOID:
        raise CslError(
            node.at,
            f"an 'if' without 'else' has no value where its condition is false; add an 'else' with a '{t}'",
        )
    regs = join_registers(low, t, mark, node.at)
    arm_value(low, node.yes, scope, t, regs)
    code.jump(Op.JMP, 0, 0, done, node.at)
    code.bind(other)
    if node.no is not None:
        arm_value(low, node.no, scope, t, regs)
    code.bind(done)
    return VOID_VALUE if t is ty.VOID else low.numbered(t, iter(regs), node.at)


def join_registers(low: CallLowerer, t: ty.Type, mark: int, at: int) -> list[int]:
    low.code.release(mark)
    return [low.code.alloc() for _ in leaves(t, at)]


def arm_value(low: CallLowerer, node: tree.Node, scope: Scope, t: ty.Type, regs: list[int]) -> None:
    mark, end = low.code.next, low.locals_end
    value = low.load(low.eval_as(node, scope, t), node.at)
    if t is not ty.VOID:
        for item, reg in zip(low.scalars(value, node.at), regs, strict=True):
            low.move(item, reg, mark, node.at)
    low.code.release(mark)
    low.locals_end = end


def joined_type(low: CallLowerer, arms: list[tree.Node], scope: Scope, at: int) -> ty.Type:
    """Return the type of a value with several arms, by evaluating them and discarding the emitted code.

    Raises
    ------
    CslError
        If no arm has a run-time type.
    """
    found = [trial(low, a, scope) for a in arms]
    if all(t is found[0] for t in found) and found[0].runtime:
        return found[0]
    concrete = [t for t in found if t.runtime and t is not ty.VOID]
    if not concrete:
        raise CslError(at, "a value chosen at run time needs a type; use @as")
    return max(concrete, key=lambda t: getattr(t, "bits", 0))


def trial(low: CallLowerer, node: tree.Node, scope: Scope) -> ty.Type:
    code = low.code
    saved = (
        len(code.rows),
        len(code.fixes),
        len(code.labels),
        len(code.frame),
        len(code.callees),
        code.next,
        code.barrier,
        low.locals_end,
    )
    t: ty.Type = low.eval(node, scope).type
    rows, fixes, labels, frame, callees, code.next, code.barrier, low.locals_end = saved
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


def x_Switch(low: CallLowerer, node: tree.Switch, scope: Scope) -> Operand:
    expected, low.expected = low.expected, None
    value = low.eval(node.subject, scope)
    if type(value) is Value:
        chosen = low.chosen_arm(node, value, scope)
        if chosen is None:
            raise CslError(node.at, "no arm of the switch takes this value, and there is no 'else'")
        return low.eval(chosen, scope)
    code = low.code
    t = (
        expected
        if expected is not None and expected.runtime
        else joined_type(low, [b for _, b in node.arms], scope, node.at)
    )
    regs = [code.alloc() for _ in leaves(t, node.at)]
    done = code.label()
    arms, default = dispatch(low, node, value, scope)
    code.jump(Op.JMP, 0, 0, default if default is not None else done, node.at)
    for label, body in arms:
        code.bind(label)
        arm_value(low, body, scope, t, regs)
        code.jump(Op.JMP, 0, 0, done, node.at)
    code.bind(done)
    return VOID_VALUE if t is ty.VOID else low.numbered(t, iter(regs), node.at)
