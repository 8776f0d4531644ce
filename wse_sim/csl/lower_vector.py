"""Lowering of vector operations, DSDs and DSRs.

Operands of a vector operation are in consecutive registers: the destination, the sources, and then the
operands of its options.
"""

from __future__ import annotations

from wse_sim.csl import tree
from wse_sim.csl import types as ty
from wse_sim.csl.builtins_dsd import PRIORITIES, address_argument, choice
from wse_sim.csl.builtins_tasks import task_number
from wse_sim.csl.code import Run
from wse_sim.csl.diagnostics import CslError
from wse_sim.csl.evaluate import Scope
from wse_sim.csl.evaluation import count
from wse_sim.csl.lowering import LowererParts
from wse_sim.csl.strict import check_load, check_operands, judges
from wse_sim.csl.values import VOID_VALUE, Dsr, Operand, Value
from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm.opcodes import Form, Op

DSR_FILES = {"dsr_dest": O.DSR_DEST, "dsr_src0": O.DSR_SRC0, "dsr_src1": O.DSR_SRC1, "xdsr": 3}
ON_CONTROL = {"terminate": 1, "activate": 2, "unblock": 3}
H, S, W16, W32 = ty.F16, ty.F32, "16", "32"
# Operation -> types of destination and sources: a float type, or the width of a raw number.
Kind = ty.FloatType | str
KINDS: dict[str, Kind] = {"s": S, "h": H, "w": W16, "d": W32}
VECTOR = {name: tuple(KINDS[k] for k in op.kinds) for name, op in O.VECTOR_OPERATIONS.items()}
OPTIONS = ("async", "activate", "unblock", "on_control", "priority", "index", "ut_id")
LOAD_OPTIONS = (
    "async",
    "activate",
    "unblock",
    "save_address",
    "single_step",
    "ut_id",
    "priority",
    "on_control",
)


# Fields of a vector operation for which 0 is a valid value: -1 is "none".
OPTIONAL_FIELDS = (
    *(O.V_DSR0, O.V_DSR1, O.V_DSR2, O.V_DSR3, O.V_ACTIVATE, O.V_UNBLOCK, O.V_THREAD, O.V_INDEX),
    O.V_CONTROL_TASK,
)


def vector_row(op: str) -> list[int]:
    """Return a row of the table of vector operations without options."""
    row = [0] * O.VECTOR_FIELDS
    row[O.V_OP] = O.VECTOR_OPS.index(op)
    for field in OPTIONAL_FIELDS:
        row[field] = -1
    return row


# ---- vector operations
def vector(low: LowererParts, node: tree.Builtin, scope: Scope) -> Operand:
    code, at, kinds = low.code, node.at, VECTOR[node.name[1:]]
    args = list(node.args)
    if not len(kinds) <= len(args) <= len(kinds) + 1:
        raise CslError(
            at,
            f"{node.name} takes {len(kinds)} operands and options but {len(args)} arguments are given",
        )
    start = code.next
    row = vector_row(node.name[1:])
    low.code.reserve(start, len(kinds))
    fifo = fabric = dsr = False
    of_integers = H not in kinds and S not in kinds and not node.name.startswith("@mov")
    operands: list[Operand] = []
    for i, (arg, kind) in enumerate(zip(args, kinds, strict=False)):
        code.next = start + len(kinds)
        form, value = vector_operand(low, arg, scope, kind, i)
        if form == Form.DSD and isinstance(kind, ty.FloatType) and len(kinds) > 2:
            low.look_at_element(value, arg, scope, kind, node.name)
        operands.append(value)
        if form == Form.SCALAR and of_integers:
            check_integer(value, node.name, arg.at)
        row[O.V_DEST + i] = form
        if form == Form.DSR:
            row[O.V_DSR0 + i] = DSR_FILES[value.data.file] * 64 + value.data.id
            dsr = True
        else:
            low.move(value, start + i, max(start + len(kinds), low.locals_end), arg.at)
            fifo |= value.type is ty.FIFO
            fabric |= value.type in (ty.FABIN, ty.FABOUT)
    check_operands(low, node.name, operands, [a.at for a in args[: len(kinds)]])
    if (
        all(f in (Form.SCALAR, Form.POINTER) for f in row[O.V_DEST : O.V_DEST + len(kinds)])
        and row[O.V_DEST] == Form.SCALAR
    ):
        raise CslError(at, f"the destination of {node.name} must be a DSD, a DSR or a pointer")
    code.next = start + len(kinds)
    if len(args) > len(kinds):
        vector_options(low, args[-1], scope, row, start)
    if row[O.V_ASYNC] and not fabric and not dsr and not fifo:
        raise CslError(
            args[-1].at, "an asynchronous operation needs a fabin_dsd, a fabout_dsd or a FIFO as operand"
        )
    result = -1
    if fifo and not row[O.V_ASYNC]:
        result = start
    code.emit(Op.VEC, result, start, 0, "vector", at)
    code.fix("vector", tuple(row))
    code.release(start + 1 if result >= 0 else start)
    return Run(ty.BOOL, result, at) if result >= 0 else VOID_VALUE


def check_integer(value: Operand, name: str, at: int) -> None:
    if isinstance(value.type, ty.FloatType):
        raise CslError(at, f"{name} computes with integers, found '{value.type}'; use an operation of floats")


def vector_operand(
    low: LowererParts, arg: tree.Node, scope: Scope, kind: Kind, place: int
) -> tuple[int, Operand]:
    value = low.eval(arg, scope)
    t = value.type
    if isinstance(t, ty.DsdType) or t is ty.FIFO:
        low.look_at_reach(value, arg, scope)
        return Form.DSD, value
    if isinstance(t, ty.DsrType):
        return Form.DSR, value
    if isinstance(t, ty.PointerType):
        if isinstance(t.target, (ty.DsdType, ty.DsrType)) or t.target is ty.FIFO:
            raise CslError(
                arg.at, f"an operand of type '{t}' is the address of a descriptor; leave the & out"
            )
        if place and not isinstance(t.target, ty.ArrayType):
            return Form.POINTER, value
        if isinstance(t.target, ty.ArrayType) and t.target.count != 1:
            raise CslError(arg.at, f"an operand of type '{t}' must be a DSD; make one with @get_dsd")
        return Form.POINTER, value
    return Form.SCALAR, vector_scalar(low, value, kind, arg.at)


def vector_scalar(low: LowererParts, value: Operand, kind: Kind, at: int) -> Operand:
    """Convert a scalar operand to the type of its operand position; raw numbers keep their type.

    Raises
    ------
    CslError
        If it cannot be an operand there.
    """
    t = value.type
    half = ty.NAMED[low.options.fp16]
    if isinstance(kind, ty.FloatType):
        return low.coerce(value, half if kind is H else kind, at)
    words = 1 if kind == W16 else 2
    if t is ty.COMPTIME_INT:
        signed = value.data < 0
        return low.coerce(value, ty.int_type(signed, 16 * words), at)
    if t is ty.COMPTIME_FLOAT:
        return low.coerce(value, half if words == 1 else ty.F32, at)
    if not t.runtime or t.words != words or isinstance(t, (ty.StructType, ty.ArrayType)):
        if isinstance(t, (ty.IntType, ty.FloatType)) and t.words < words:
            return low.coerce(value, ty.F32 if isinstance(t, ty.FloatType) else ty.int_type(t.signed, 32), at)
        raise CslError(at, f"this operand must be a DSD, a DSR or a number of {kind} bits, found '{t}'")
    return value


def vector_options(low: LowererParts, arg: tree.Node, scope: Scope, row: list[int], start: int) -> None:
    given = low.eval(arg, scope)
    if given.type is not ty.COMPTIME_STRUCT:
        raise CslError(
            arg.at, f"the options are a structure such as .{{ .async = true }}, found '{given.type}'"
        )
    if judges(low, scope) and {"activate", "unblock"} <= set(given.data):
        raise CslError(arg.at, "at most one of activate and unblock may be specified")
    for name, value in given.data.items():
        if name not in OPTIONS:
            raise CslError(arg.at, f"there is no option '{name}'; the options are {', '.join(OPTIONS)}")
        if name == "async":
            row[O.V_ASYNC] = int(truth(value, arg.at))
        elif name == "activate":
            row[O.V_ACTIVATE] = option_id(low, value, start, arg.at)
        elif name == "unblock":
            row[O.V_UNBLOCK] = option_id(low, value, start, arg.at)
        elif name == "on_control":
            on_control(low, value, row, start, arg.at)
        elif name == "priority":
            row[O.V_PRIORITY] = choice(value, PRIORITIES, "priority", arg.at)
        elif name == "ut_id":
            row[O.V_THREAD] = option_id(low, value, start, arg.at)
        else:
            row[O.V_INDEX] = extra(
                low,
                low.coerce(value, ty.U16 if not getattr(value.type, "signed", False) else ty.I16, arg.at),
                start,
                arg.at,
            )


def truth(value: Operand, at: int) -> bool:
    if value.type is not ty.BOOL or type(value) is not Value:
        raise CslError(at, "this option is true or false, known at compile time")
    return bool(value.data)


def extra(low: LowererParts, value: Operand, start: int, at: int) -> int:
    """Move an operand to a register after the others; return its offset from `start`."""
    reg = low.code.alloc()
    low.move(value, reg, reg, at)
    low.code.release(reg + 1)
    return reg - start  # type: ignore[no-any-return]


def option_id(low: LowererParts, value: Operand, start: int, at: int) -> int:
    """Return the number of a task or a handle, or a reference to the register that contains it."""
    if isinstance(value.type, ty.FnType):
        value = task_number(low, value, at)
    if not isinstance(value.type, (ty.HandleType, ty.IntType)):
        raise CslError(at, f"expected a task or an id, found '{value.type}'")
    if type(value) is Value:
        return int(value.data)
    return O.USE_REGISTER + extra(low, value, start, at)


def on_control(low: LowererParts, value: Operand, row: list[int], start: int, at: int) -> None:
    fields = value.data if isinstance(value.data, dict) else {}
    for name, inner in fields.items():
        if name not in ON_CONTROL:
            raise CslError(
                at,
                "on_control takes .{ .terminate = true }, .{ .activate = task } or .{ .unblock = task }",
            )
        if name == "terminate":
            row[O.V_ON_CONTROL] = int(truth(inner, at))
        else:
            row[O.V_ON_CONTROL] = ON_CONTROL[name]
            row[O.V_CONTROL_TASK] = option_id(low, inner, start, at)


# ---- DSDs and DSRs


def b_load_to_dsr(low: LowererParts, node: tree.Builtin, scope: Scope) -> Operand:
    count(node, 2, 3)
    dsr, dsd = low.known(node.args[0], scope), low.eval(node.args[1], scope)
    if not isinstance(dsr.data, Dsr):
        raise CslError(
            node.args[0].at, f"@load_to_dsr takes a DSR first, found '{dsr.type}'; make one with @get_dsr"
        )
    if not isinstance(dsd.type, ty.DsdType) and dsd.type is not ty.FIFO:
        raise CslError(node.args[1].at, f"@load_to_dsr takes a DSD second, found '{dsd.type}'")
    low.look_at_reach(dsd, node.args[1], scope)
    if judges(low, scope):
        check_load(low, dsr.data.file, dsd.type, node.args[1].at)
    row = [0] * O.LOAD_FIELDS
    row[O.L_FILE], row[O.L_ID] = DSR_FILES[dsr.data.file], dsr.data.id
    row[O.L_ACTIVATE] = row[O.L_UNBLOCK] = row[O.L_THREAD] = row[O.L_CONTROL_TASK] = -1
    if len(node.args) > 2:
        load_options(low, node.args[2], scope, row)
    cost = "dsr_load_4d" if dsd.type is ty.MEM4D else "dsr_load"
    low.code.emit(Op.DSR_LOAD, 0, low.register(dsd, node.at), 0, cost, node.at)
    low.code.fix("dsr", tuple(row))
    return VOID_VALUE


def load_options(low: LowererParts, arg: tree.Node, scope: Scope, row: list[int]) -> None:
    given = low.eval(arg, scope).data
    flags = {"async": O.L_ASYNC, "save_address": O.L_SAVE_ADDRESS, "single_step": O.L_SINGLE_STEP}
    ids = {"activate": O.L_ACTIVATE, "unblock": O.L_UNBLOCK, "ut_id": O.L_THREAD}
    for name, value in given.items():
        if name in flags:
            row[flags[name]] = int(truth(value, arg.at))
        elif name in ids:
            if type(value) is not Value:
                raise CslError(arg.at, f"the option '{name}' of @load_to_dsr must be known at compile time")
            row[ids[name]] = option_id(low, value, 0, arg.at)
        elif name == "priority":
            row[O.L_PRIORITY] = choice(value, PRIORITIES, "priority", arg.at)
        elif name == "on_control":
            inner = [0] * O.VECTOR_FIELDS
            inner[O.V_CONTROL_TASK] = -1
            on_control(low, value, inner, 0, arg.at)
            row[O.L_ON_CONTROL], row[O.L_CONTROL_TASK] = inner[O.V_ON_CONTROL], inner[O.V_CONTROL_TASK]
        else:
            raise CslError(
                arg.at, f"@load_to_dsr has no option '{name}'; its options are {', '.join(LOAD_OPTIONS)}"
            )


def b_set_dsr_base_addr(low: LowererParts, node: tree.Builtin, scope: Scope) -> Operand:
    count(node, 2)
    dsr = low.known(node.args[0], scope)
    if not isinstance(dsr.data, Dsr):
        raise CslError(node.args[0].at, f"@set_dsr_base_addr takes a DSR first, found '{dsr.type}'")
    pointer = address_argument(low, node.args[1], scope)
    number = DSR_FILES[dsr.data.file] * 64 + dsr.data.id
    low.code.emit(Op.DSR_BASE, 0, low.register(pointer, node.at), number, "dsr_change", node.at)
    return VOID_VALUE
