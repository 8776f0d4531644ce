"""Lowering of `@map`, and of copies of memory by the vector engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.code import COST, Mem, Run
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.evaluate import Scope
from wse_sim.csl.lower_vector import DSR_FILES, vector_row
from wse_sim.csl.lowering import LowererParts
from wse_sim.csl.values import VOID_VALUE, Dsd, Function, Operand, Ref, Value
from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm.opcodes import Form, Op, Sys


class Elements(NamedTuple):
    """Vector operand of `@map`, with its DSD in a separate register."""

    dsd: Run
    element: ty.Type | None  # None if unknown
    dsr: int | None = None  # number of its DSR, if it is in one
    whole: int | None = None  # register of the whole fabric DSD, whose elements are moved one by one


def check_directions(
    inputs: Sequence[Operand | Elements], target: Operand | Elements | None, nodes: Sequence[tree.Node]
) -> None:
    """Check that inputs of `@map` are not fabric outputs and that its output is not a fabric input; the last
    of `nodes` is the destination.

    Raises
    ------
    CslError
        If a direction is wrong.
    """
    for operand, node in zip(inputs, nodes, strict=False):
        if isinstance(operand, Elements) and operand.dsd.type is ty.FABOUT:
            raise CslError(node.at, "an input of @map is a fabout_dsd; words are written to it, not read")
    if isinstance(target, Elements) and target.dsd.type is ty.FABIN:
        raise CslError(nodes[-1].at, "the output of @map is a fabin_dsd; words are read from it, not written")


# ---- @map
def b_map(low: LowererParts, node: tree.Builtin, scope: Scope) -> Operand:
    """Lower `@map` to a loop over the elements of the shortest vector operand: load the elements, call
    the function, store its result."""
    if len(node.args) < 2:
        raise CslError(node.at, "@map takes a function, its inputs and a destination")
    code, at = low.code, node.at
    callee = low.known(node.args[0], scope)
    if not isinstance(callee.data, Function):
        raise CslError(node.args[0].at, f"@map takes a function first, found '{callee.type}'")
    fn = callee.data
    mark, end = code.next, low.locals_end
    inner = Scope(fn.instance)
    result = low.type_of(fn.node.result, inner)
    inputs = node.args[1:] if result is ty.VOID else node.args[1:-1]
    if len(inputs) != len(fn.node.params):
        raise CslError(
            at, f"'{fn.name}' takes {len(fn.node.params)} arguments, and @map has {len(inputs)} inputs"
        )
    operands = [map_operand(low, a, scope) for a in inputs]
    target = None if result is ty.VOID else map_operand(low, node.args[-1], scope)
    check_directions(operands, target, [*inputs, node.args[-1]])
    counter = low.settle(Value(ty.U16, 0), code.next, at)
    count = map_count(low, [*operands, *([] if target is None else [target])], at)
    body, done = code.label(), code.label()
    head = len(code.rows)
    code.jump(Op.JLE, count, counter, done, at)
    code.bind(body)
    first_row = len(code.rows)
    window = code.next
    given: dict[str, Operand] = {}
    for p, operand, arg in zip(fn.node.params, operands, inputs, strict=True):
        here = code.next
        t = None if p.type is None else low.type_of(p.type, inner)
        value = map_element(low, operand, t, counter, arg.at)
        if t is not None:
            value = low.coerce(value, t, arg.at)
        if not (type(value) is Value and (p.comptime or not value.type.runtime)):
            value = low.argument(value, here, arg.at)
        given[str(p.name)] = inner.names[str(p.name)] = value
    repeated = result is ty.VOID and is_register_operation(low, fn, inner)
    if repeated:
        low.inlined(fn, inner, result, at)
    else:
        called = low.unit.function(fn, given, result, at)
        code.emit(Op.CALL, window, 0, 0, "call", at)
        code.fix("call", called)
        code.callees.append((called, window))
    code.release(window)
    if target is not None:
        map_store(low, target, low.results(result, at), counter, at)
    code.release(window)
    code.emit(Op.ADDI_U16, counter, counter, 1, "alu16", at)
    code.jump(Op.JLT, counter, count, body, at)
    if repeated:
        code.costs[head] = COST["map_start"]
        vector = int(Op.VEC)
        for row in range(first_row, len(code.rows)):
            code.costs[row] = COST["mapped" if code.rows[row][0] == vector else "free"]
    code.bind(done)
    for operand in [*operands, *([] if target is None else [target])]:
        map_finish(low, operand, counter, at)
    code.release(mark)
    low.locals_end = end
    return VOID_VALUE


def is_register_operation(low: LowererParts, fn: Function, inner: Scope) -> bool:
    """Return whether a function is one vector operation on loaded registers and its arguments, which the
    machine repeats by itself."""
    body = fn.node.body
    statements = body.statements if isinstance(body, tree.Block) else []
    if len(statements) != 1 or not isinstance(statements[0], tree.ExprStatement):
        return False
    operation = statements[0].value
    if not isinstance(operation, tree.Builtin) or operation.name.lstrip("@") not in O.VECTOR_OPS:
        return False
    arguments = {str(p.name) for p in fn.node.params}
    for arg in operation.args:
        if not isinstance(arg, tree.Name):
            return False
        if arg.id not in arguments and not isinstance(low.eval(arg, inner).type, ty.DsrType):
            return False
    return True


def map_operand(low: LowererParts, arg: tree.Node, scope: Scope) -> Operand | Elements:
    """Move a vector operand to a separate register; return other operands unchanged."""
    value = low.eval(arg, scope)
    if value.type is ty.FIFO:
        raise CslError(arg.at, "@map does not take a FIFO")
    if isinstance(value.type, ty.DsrType):
        number = DSR_FILES[value.data.file] * 64 + value.data.id
        run = low.emit(Op.DSR_GET, 0, number, "dsr_change", ty.MEM1D, arg.at)
        reg = low.settle(run, low.code.next, arg.at)
        return Elements(Run(ty.MEM1D, reg, arg.at), None, number)
    if isinstance(value.type, ty.DsdType):
        low.look_at_reach(value, arg, scope)
        element = value.data.element if type(value) is Value else None
        reg = low.settle(value, low.code.next, arg.at)
        if value.type in (ty.FABIN, ty.FABOUT):
            one = low.register(Value(ty.U16, 1), arg.at)
            single = low.emit(Op.DSD_LEN, reg, one, "dsd_change", value.type, arg.at)
            place = low.settle(single, low.code.next, arg.at)
            return Elements(Run(value.type, place, arg.at), element, None, reg)
        return Elements(Run(value.type, reg, arg.at), element)
    if type(value) is Run and value.reg >= low.locals_end:
        reg = low.settle(value, low.code.next, arg.at)
        return Run(value.type, reg, arg.at)
    return value


def map_count(low: LowererParts, operands: Sequence[Operand | Elements], at: int) -> int:
    """Return a register with the length of the shortest vector operand.

    Raises
    ------
    CslError
        If there is no vector operand.
    """
    code = low.code
    count = None
    for operand in operands:
        if not isinstance(operand, Elements):
            continue
        source = operand.dsd.reg if operand.whole is None else operand.whole
        n = low.settle(
            low.emit(Op.DSD_GET, source, O.DsdField.TOTAL, "dsd_change", ty.U16, at), code.next, at
        )
        if count is None:
            count = n
            continue
        keep = code.label()
        code.jump(Op.JLE, count, n, keep, at)
        code.emit(Op.MOV, count, n, 0, "move", at)
        code.bind(keep)
    if count is None:
        raise CslError(
            at, "@map needs a DSD or a DSR among its operands: nothing states how often the function runs"
        )
    return count


def map_element(
    low: LowererParts, operand: Operand | Elements, t: ty.Type | None, counter: int, at: int
) -> Operand:
    if not isinstance(operand, Elements):
        return operand
    dsd = operand.dsd
    t = operand.element if t is None else t
    if t is None:
        raise CslError(at, "the type of this element is not known; give the parameter of the function a type")
    if dsd.type is ty.FABIN:
        cell = low.frame_cell("element", t, at)
        low.use(cell)
        element_move(low, Value(ty.pointer(t), Ref(cell, (), t)), dsd, t, at)
        return low.load(Ref(cell, (), t), at)
    place = low.emit(address_op(t, at), dsd.reg, counter, "free", ty.U16, at)
    return low.load(Mem(t, at, None, place.reg), at)


def address_op(t: ty.Type, at: int) -> Op:
    if t.words not in (1, 2) or isinstance(t, (ty.StructType, ty.ArrayType)):
        raise CslError(at, f"@map takes 16- and 32-bit elements, found '{t}'")
    return Op.DSD_ADDR16 if t.words == 1 else Op.DSD_ADDR32


def map_store(low: LowererParts, target: Operand | Elements, value: Operand, counter: int, at: int) -> None:
    if not isinstance(target, Elements):
        if not isinstance(target.type, ty.PointerType):
            raise CslError(
                at, f"the destination of @map must be a DSD, a DSR or a pointer, found '{target.type}'"
            )
        low.store(low.deref(target, at), value, at)
        return
    dsd = target.dsd
    if dsd.type is ty.FABOUT:
        element_move(low, dsd, value, value.type, at)
        return
    place = low.emit(address_op(value.type, at), dsd.reg, counter, "free", ty.U16, at)
    low.store(Mem(value.type, at, None, place.reg), value, at)


def map_finish(low: LowererParts, operand: Operand | Elements, counter: int, at: int) -> None:
    """Move a DSR that saves its address behind the last element."""
    if isinstance(operand, Elements) and operand.dsr is not None:
        start = low.code.next
        low.code.reserve(start, 2)
        low.constant(operand.dsr, start, at)
        place = low.emit(Op.DSD_ADDR16, operand.dsd.reg, counter, "free", ty.U16, at)
        low.code.emit(Op.DSD_BASE, start + 1, operand.dsd.reg, place.reg, "free", at)
        low.code.emit(Op.SYS, -1, start, Sys.DSR_SAVE, "free", at)
        low.code.release(start)


def element_move(low: LowererParts, dest: Operand, source: Operand, t: ty.Type, at: int) -> None:
    """Move one element from or to the fabric."""
    element_vector(low, "mov16" if t.words == 1 else "mov32", dest, source, at)


# ---- copies of memory
def words_dsd(low: LowererParts, mem: Mem, n: int, at: int) -> Operand:
    frame = Dsd("mem1d_dsd", None, 0, n)
    run = Run(ty.MEM1D, low.register(Value(ty.MEM1D, frame), at), at)
    return low.emit(Op.DSD_BASE, run.reg, low.base_register(mem, at), "free", ty.MEM1D, at)


def copy_words(low: LowererParts, dest: Mem, source: Mem, n: int, at: int) -> None:
    """Copy n words of memory by the vector engine."""
    element_vector(low, "mov16", words_dsd(low, dest, n, at), words_dsd(low, source, n, at), at)


def clear_words(low: LowererParts, dest: Mem, n: int, at: int) -> None:
    element_vector(low, "mov16", words_dsd(low, dest, n, at), Value(ty.U16, 0), at)


def element_vector(low: LowererParts, op: str, dest: Operand, source: Operand, at: int) -> None:
    """Emit a vector operation with a destination, one source and no options."""
    start = low.code.next
    low.code.reserve(start, 2)
    row = vector_row(op)
    for i, value in enumerate((dest, source)):
        kind = (
            Form.DSD
            if isinstance(value.type, ty.DsdType)
            else Form.POINTER
            if isinstance(value.type, ty.PointerType)
            else Form.SCALAR
        )
        row[O.V_DEST + i] = kind
        low.move(value, start + i, 1 << 30, at)
    low.code.emit(Op.VEC, -1, start, 0, "vector", at)
    low.code.fix("vector", tuple(row))
    low.code.release(start)
