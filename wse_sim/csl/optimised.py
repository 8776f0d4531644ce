"""Cost model of the optimizations of the vendor's compiler, which is based on LLVM: rows that an optimizing
compiler would remove cost nothing.

The rows remain, so values are those of the unoptimized code. Free are

* calls of short leaf functions, and of functions with one call: their bodies are inlined;
* functions that only compute, if all their calls have known arguments: their results are constants;
* comparisons of an inlined function's result, if every return has a known result: each return jumps directly
  to its arm;
* the control of an innermost loop with a known number of iterations, if all iterations together have few
  instructions: it is unrolled;
* a load of a scalar variable that is in a register: loaded or stored before in the same basic block, with no
  store, call or vector operation in between that could access the variable.

A variable of one value that the program only reads is the constant that it begins with
(:func:`read_only_variables`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set

from wse_sim.csl import types as ty
from wse_sim.csl.code import COST, INT32, JUMPS, NO_RESULT, Code
from wse_sim.csl.data_words import roots_of
from wse_sim.csl.values import Dsd, Global, to_bits
from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm.opcodes import Form, Op

INLINED_INSTRUCTIONS = 24
UNROLLED_INSTRUCTIONS = 150
"""LLVM's default limit for full unrolling, in instructions."""
SIZES = {COST["free"]: 0, COST["alu32"]: 2, COST["dsd_add"]: 5, COST["dsd_change"]: 2}
"""Number of instructions of a row by its cost class, if it is not one."""
LOADS = frozenset(int(op) for op in (Op.LD_I16, Op.LD_U16, Op.LD_I32, Op.LD_U32))
READS = {
    int(op): how
    for op, how in (
        (Op.LD_I16, (1, True)),
        (Op.LD_U16, (1, False)),
        (Op.LD_I32, (2, True)),
        (Op.LD_U32, (2, False)),
        (Op.LD_64, (4, True)),
    )
}
"""Loads: words, and whether the number is signed."""
LOWEST_64 = (1 << 64) - 1
STORES = frozenset(int(op) for op in (Op.ST_16, Op.ST_32))
OTHER_STORES = frozenset(int(op) for op in (Op.ST_64, Op.STX_16, Op.STX_32))
COMPUTES = frozenset(range(Op.MATH)) - {Op.CALL, Op.CALLR, Op.END}
"""Opcodes that only compute and jump, without functions of the math library."""
KNOWN_JUMPS = frozenset(
    int(op) for op in (Op.JZ, Op.JNZ, Op.JEQI, Op.JNEI, Op.JLTI, Op.JLEI, Op.JGTI, Op.JGEI)
)
"""Jumps that compare a register with a known number."""
SHORT_READS = frozenset((int(O.Sys.TSC_READ), int(O.Sys.X_COORD), int(O.Sys.Y_COORD)))
"""System operations that take few instructions."""
CALLS = frozenset(int(op) for op in (Op.CALL, Op.CALLR, Op.SYS))


def inlined_size(code: Code) -> int:
    """Return the number of instructions of a function; library routines of the machine count as too long to
    inline."""
    if _is_library(code):
        return INLINED_INSTRUCTIONS + 1
    return _instructions(code, 0, len(code.rows))


def inline_calls(order: Sequence[Code], roots: Iterable[Code]) -> None:
    """Set the cost of calls of short functions and of functions with one call to zero, and that of their
    returns.

    `order` has callees first. LLVM removes a function with a single call after inlining it, so its length
    does not matter.
    """
    apart = {id(code) for code in roots}
    calls = Counter(
        id(payload) for code in order for _, kind, payload in code.fixes if kind in ("call", "tail")
    )
    inside: set[int] = set()
    for code in order:
        short = _calls_nothing(code, inside) and inlined_size(code) <= INLINED_INSTRUCTIONS
        once = calls[id(code)] == 1 and not _is_library(code)
        if id(code) not in apart and not code.cyclic and (short or once):
            inside.add(id(code))
    for code in order:
        for row, kind, callee in code.fixes:
            if kind == "call" and id(callee) in inside:
                code.costs[row] = COST["free"]
                thread_jumps(code, row, callee)
        if id(code) in inside:
            code.costs = [
                COST["free"] if row[0] == Op.RET else cost
                for row, cost in zip(code.rows, code.costs, strict=True)
            ]


def fold_calls(order: Sequence[Code], roots: Iterable[Code]) -> None:
    """Set the cost of functions that only compute to zero if all their calls have known arguments, because
    their results are constants.

    Such a function may call functions of the same kind, whose arguments are then known too.
    """
    apart = {id(code) for code in roots}
    pure: set[int] = set()
    sites: dict[int, list[tuple[Code, int]]] = {}
    for code in order:
        callees = {row: callee for row, kind, callee in code.fixes if kind == "call"}
        for row, callee in callees.items():
            sites.setdefault(id(callee), []).append((code, row))
        if not code.cyclic and all(
            row[0] in COMPUTES or (i in callees and id(callees[i]) in pure) for i, row in enumerate(code.rows)
        ):
            pure.add(id(code))
    folded: set[int] = set()
    for code in reversed(order):  # callers first
        calls = sites.get(id(code), [])
        if id(code) not in pure or id(code) in apart or not calls:
            continue
        if all(row in caller.known or id(caller) in folded for caller, row in calls):
            folded.add(id(code))
            code.costs = [COST["free"]] * len(code.rows)
            for caller, row in calls:
                caller.costs[row] = COST["free"]


def thread_jumps(code: Code, call: int, callee: Code) -> None:
    """Set the cost of comparisons of a call's result to zero if every return of the inlined function has a
    known result (jump threading)."""
    targets = {row[3] for row in callee.rows if row[0] in JUMPS}
    for i, row in enumerate(callee.rows):
        if row[0] == Op.RET and (i in targets or i == 0 or callee.rows[i - 1][:2] != [Op.LDI, 0]):
            return
    targets = {row[3] for row in code.rows if row[0] in JUMPS}
    held = {code.rows[call][1]}
    for i in range(call + 1, len(code.rows)):
        op, a, b, _ = code.rows[i]
        if i in targets:
            return
        if op == Op.MOV and b in held:
            held.add(a)
        elif (op in KNOWN_JUMPS and a in held) or (
            op == Op.JMP and i > call + 1 and code.rows[i - 1][0] in KNOWN_JUMPS
        ):
            code.costs[i] = COST["free"]
        else:
            return


def _is_library(code: Code) -> bool:
    """Return whether a function is a routine of the machine's library, whose instructions are not public: it
    stays a call.

    Reading a time stamp or a core's position takes few instructions. The library's code for the three words
    of a time stamp is inline (its source is public), and a published operation between two time stamps
    includes no cycles for calls.
    """
    return any(row[0] == Op.SYS and row[3] not in SHORT_READS for row in code.rows)


def _calls_nothing(code: Code, inside: Set[int]) -> bool:
    """Return whether a function calls only functions that are inlined."""
    return all(
        kind == "call" and id(callee) in inside for _, kind, callee in code.fixes if kind in ("call", "tail")
    )


def unroll(code: Code, body: int, control: int, turns: int) -> None:
    """Unroll a loop of `turns` iterations, with its body at row `body` and its control at row `control`: if
    it is short, its control is free."""
    if _has_loop(code, body, control):
        return
    once = _instructions(code, body, control)
    inner = sum(more for row, more in code.unrolled.items() if body <= row < control)
    size = (once + inner) * turns
    if size > UNROLLED_INSTRUCTIONS:
        return
    code.unrolled[body] = size - once
    code.costs[control:] = [COST["free"]] * (len(code.rows) - control)


def _has_loop(code: Code, first: int, end: int) -> bool:
    """Return whether these rows contain a loop that is not unrolled: a map, or a backward jump that is not
    free."""
    return COST["map_start"] in code.costs[first:end] or any(
        code.rows[i][0] in JUMPS
        and code.costs[i] != COST["free"]
        and first <= code.labels[code.rows[i][3]] <= i
        for i in range(first, end)
    )


def _instructions(code: Code, first: int, end: int) -> int:
    """Return the number of the vendor machine's instructions for some rows; an operation also loads its
    descriptors, and a call includes its body."""
    issues = {i: payload for i, kind, payload in code.fixes if kind == "vector"}
    callees = {i: payload for i, kind, payload in code.fixes if kind in ("call", "tail")}
    total = 0
    for i in range(first, end):
        total += SIZES.get(code.costs[i], 1)
        if i in issues:
            total += sum(form == Form.DSD for form in issues[i][O.V_DEST : O.V_DEST + 4])
        elif i in callees:
            total += len(callees[i].rows)
    return total


def read_only_variables(order: Sequence[Code], reached: Set[int]) -> None:
    """Make variables that are only read constants if their value is a descriptor, a number or a truth value.

    LLVM does this for internal variables that have loads as their only uses (its pass "globalopt").  `reached` are the variables, by identity, that
    something else than this code can write: the host, or what holds their address.  One without an initial value stays, for the sanitizer.
    What else a compiler would then know, such as the turns of a loop or the arm of an `if`, is not followed.
    """
    loads: list[tuple[Code, int, Global]] = []
    others: set[int] = set(reached)
    for code in order:
        for i, kind, payload in code.fixes:
            if kind == "dsd":
                others.update(id(root) for root in roots_of(payload))
            elif kind == "address":
                if isinstance(payload, Global) and _is_load(code, i):
                    loads.append((code, i + 1, payload))
                else:
                    others.add(id(payload))
    for code, i, variable in loads:
        if id(variable) not in others and variable.decl.value is not None:
            _make_constant(code, i, variable)


def _is_load(code: Code, i: int) -> bool:
    """Return whether row i has the address of a variable and only serves the load of its first words in the next row."""
    return i in code.direct and code.rows[i][3] == 0 and code.rows[i + 1][0] in READS


def _make_constant(code: Code, i: int, variable: Global) -> None:
    """Replace the load of a variable in row i by its initial value; arrays, structures and pointers stay."""
    op, register, _, _ = code.rows[i]
    words, is_signed = READS[op]
    if isinstance(variable.data, Dsd) and op == Op.LD_64:
        code.rows[i] = [int(Op.LDK), register, 0, 0]
        code.fixes.append((i, "dsd", variable.data))
    elif isinstance(variable.type, (ty.IntType, ty.FloatType)) or variable.type is ty.BOOL:
        bits = to_bits(variable.type, variable.data) & ((1 << 16 * words) - 1)
        number = bits - (1 << 16 * words) if is_signed and bits >> (16 * words - 1) else bits
        code.costs[i] = COST["move"]
        if number in INT32:
            code.rows[i] = [int(Op.LDI), register, 0, number]
        else:
            code.rows[i] = [int(Op.LDK), register, 0, 0]
            code.fixes.append((i, "constant", number & LOWEST_64))


def keep_scalars(code: Code) -> None:
    """Set the cost of loads of scalar variables that are already in a register to zero; row addresses must be
    filled in."""
    scalar = {i for i, kind, payload in code.fixes if kind == "address" and _is_scalar(payload.type)}
    targets = {row[3] for row in code.rows if row[0] in JUMPS}
    address: dict[int, int] = {}  # register -> address of a scalar variable in it
    held: set[int] = set()  # addresses of variables that are in a register
    for i, (op, a, b, c) in enumerate(code.rows):
        if i in targets:
            address, held = {}, set()
        at = address.get(b, -1) if op in LOADS or op in STORES else -1
        if op in LOADS:
            if at >= 0 and c == 0:
                if at in held:
                    code.costs[i] = COST["free"]
                held.add(at)
        elif op in STORES:
            held = (held if at >= 0 else set()) | ({at} if at >= 0 and c == 0 else set())
        elif op in OTHER_STORES or op in CALLS:
            held = set()
        elif op == Op.VEC:
            held -= {address[r] for r in range(b, b + 4) if r in address}
        if i in scalar and op == Op.LDI:
            address[a] = c
        elif op not in NO_RESULT:
            address.pop(a, None)
        if op in CALLS:  # results and the callee's window
            address = {r: at for r, at in address.items() if r < a}


def _is_scalar(t: ty.Type) -> bool:
    return t.words <= 2 and not isinstance(t, (ty.ArrayType, ty.StructType))
