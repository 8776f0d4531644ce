"""When a vector operation issues: descriptors that were loaded just before it are on their way, those loaded long before are there.

An operation issues ``vector_start`` cycles after the last change of a descriptor register that it names, at the earliest ``vector_issue`` cycles
after the code before it.  One that names descriptors in memory loads them itself.  A compiler loads a descriptor that it knows some instructions
before its use.  One that the program may change is loaded when the operation comes, and the operation waits ``vector_load`` cycles for it.  What
happened before is read from the rows above it; a row that others jump to has no certain past, and its registers count as loaded long before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm.image import Image
from wse_sim.fabric.vm.opcodes import COST_CLASSES, Form, Op

Array = npt.NDArray[Any]
JUMPS = tuple(int(op) for op in Op if op.name[0] == "J")
ENDS = (Op.JMP, Op.RET, Op.END, Op.CALL, Op.CALLR)
NO_RESULT = (
    *JUMPS,
    Op.NOP,
    Op.ST_16,
    Op.ST_32,
    Op.ST_64,
    Op.STX_16,
    Op.STX_32,
    Op.DSR_LOAD,
    Op.DSR_BASE,
    Op.VEC,
    Op.ACT,
    Op.BLOCK,
)
"""Rows whose first operand is no register that they fill, as far as they can be above an operation."""
MAPPED = 1 << 20
"""Added to the start of a mapped operation."""


def vector_starts(image: Image, code: Array, price: Array, costs: Mapping[str, int]) -> Array:
    """Cycles before every vector operation, loads of descriptors apart; 0 in all other rows.  A mapped one has its own price, and `MAPPED`."""
    found = np.zeros(len(code), np.int64)
    targets = set(code[np.isin(code[:, 0], JUMPS), 3].tolist())
    mapped = COST_CLASSES.index("mapped")
    for row in np.flatnonzero(code[:, 0] == Op.VEC).tolist():
        if image.cost_class[row] == mapped:
            found[row] = price[row] + costs["vector_start"] + MAPPED
        else:
            found[row] = _start(image, code, price, found, targets, row, costs)
    return found


def _start(
    image: Image,
    code: Array,
    price: Array,
    found: Array,
    targets: set[int],
    row: int,
    costs: Mapping[str, int],
) -> int:
    issue = image.vector_issues[code[row, 3]]
    forms = issue[O.V_DEST : O.V_DEST + 4].tolist()
    if Form.DSR not in forms or Form.DSD in forms:
        first = int(code[row, 2])
        known = all(
            _is_known(code, targets, row, first + k) for k, form in enumerate(forms) if form == Form.DSD
        )
        return int(costs["vector_start" if known else "vector_load"])
    named = {int(issue[O.V_DSR0 + k]) for k, form in enumerate(forms) if form == Form.DSR}
    passed, at = 0, row
    longest = max(costs["vector_start"], costs["vector_load"])
    while passed < longest and at not in targets and at > 0:
        at -= 1
        op = int(code[at, 0])
        if op in ENDS:
            break
        if _changed(image, code[at]) in named:
            known = op != Op.DSR_LOAD or _is_known(code, targets, at, int(code[at, 2]))
            wait = costs["vector_start" if known else "vector_load"]
            return int(max(costs["vector_issue"], wait - passed))
        passed += int(price[at]) if op != Op.VEC else max(costs["vector_issue"], int(found[at]) % MAPPED) + 1
    return int(costs["vector_issue"])


def _is_known(code: Array, targets: set[int], row: int, register: int) -> bool:
    """Return whether `register` holds a descriptor that was known at compile time, as the rows above `row` say."""
    while row not in targets and row > 0:
        row -= 1
        op, result, source = (int(v) for v in code[row, :3])
        if op in ENDS:
            return False
        if result == register and op not in NO_RESULT:
            if op != Op.MOV:
                return op == Op.LDK
            register = source
    return False


def _changed(image: Image, row: Array) -> int:
    """The descriptor register that a row loads or changes, as file * 64 + id, or -1."""
    if row[0] == Op.DSR_LOAD:
        load = image.dsr_loads[row[3]]
        return int(load[O.L_FILE]) * 64 + int(load[O.L_ID])
    return int(row[3]) if row[0] == Op.DSR_BASE else -1
