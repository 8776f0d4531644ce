"""When a vector operation issues: descriptors that were loaded just before it are on their way, those loaded long before are there.

An operation issues ``vector_start`` cycles after the last change of a descriptor register that it names, at the earliest ``vector_issue`` cycles
after the code before it.  One that names descriptors in memory loads them itself.  A compiler loads a descriptor that it knows some instructions
before its use.  One that the program may change is loaded when the operation comes, and the operation waits ``vector_load`` cycles for it.  What
happened before is read from the rows above it; a row that others jump to has no certain past, and its registers count as loaded long before.

A descriptor of several dimensions needs an extended register and stride registers too (:func:`further_registers`).  The machine counts
:data:`MOST_REGISTERS` for each of them when it runs; what a descriptor that is known needs less is taken off here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm.image import Image
from wse_sim.fabric.vm.opcodes import COST_CLASSES, DsdKind, Form, Op
from wse_sim.hardware.scalar_costs import MOST_REGISTERS

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


def further_registers(shape: Array) -> int:
    """Registers besides its DSR that a descriptor of several dimensions needs if it is known, by a row of the image's shapes.

    An XDSR, and a stride register for every dimension but the fastest; the second needs none if the stride of the fastest is one.

    >>> further_registers(np.array([2, 9, 9, 1, 1, 1, 3, 0, 0])), further_registers(np.array([2, 9, 9, 1, 1, 2, 3, 0, 0]))
    (1, 2)
    """
    dimensions, stride = int(shape[0]), int(shape[5])
    return 1 + max(0, dimensions - 1 - (dimensions > 1 and stride == 1))


def known_loads(image: Image, code: Array) -> Array:
    """Registers that every row loads less than :data:`MOST_REGISTERS` a descriptor of several dimensions, because it is known."""
    found = np.zeros(len(code), np.int64)
    targets = set(code[np.isin(code[:, 0], JUMPS), 3].tolist())
    for row in np.flatnonzero((code[:, 0] == Op.VEC) | (code[:, 0] == Op.DSR_LOAD)).tolist():
        forms = [int(Form.DSD)]
        if code[row, 0] == Op.VEC:
            forms = image.vector_issues[code[row, 3], O.V_DEST : O.V_DEST + 4].tolist()
        values = [
            _known(image, code, targets, row, int(code[row, 2]) + k) if form == Form.DSD else None
            for k, form in enumerate(forms)
        ]
        if len(values) > 1 and values[0] == values[1]:
            values[0] = None  # a destination that is source 0 is loaded once
        rows = [v >> 20 & 0xFFFF for v in values if v is not None and v & 15 == DsdKind.MEM4D]
        shapes = [image.shapes[r] for r in rows if r < len(image.shapes)]
        found[row] = sum(MOST_REGISTERS - further_registers(shape) for shape in shapes)
    return found


def _known(image: Image, code: Array, targets: set[int], row: int, register: int) -> int | None:
    """The descriptor in `register` that was known at compile time; that of the first class if classes differ."""
    constant = _constant(code, targets, row, register)
    tables = [cls.constants for cls in image.classes if 0 <= constant < len(cls.constants)]
    return int(tables[0][constant]) if tables else None


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
    return _constant(code, targets, row, register) >= 0


def _constant(code: Array, targets: set[int], row: int, register: int) -> int:
    """Number of the constant in `register`, as the rows above `row` say; -1: it holds none."""
    while row not in targets and row > 0:
        row -= 1
        op, result, source, constant = (int(v) for v in code[row])
        if op in ENDS:
            return -1
        if result == register and op not in NO_RESULT:
            if op != Op.MOV:
                return constant if op == Op.LDK else -1
            register = source
    return -1


def _changed(image: Image, row: Array) -> int:
    """The descriptor register that a row loads or changes, as file * 64 + id, or -1."""
    if row[0] == Op.DSR_LOAD:
        load = image.dsr_loads[row[3]]
        return int(load[O.L_FILE]) * 64 + int(load[O.L_ID])
    return int(row[3]) if row[0] == Op.DSR_BASE else -1
