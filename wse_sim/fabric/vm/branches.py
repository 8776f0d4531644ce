"""Cost of a jump: nothing if the row is free, and only its comparison if a compiler makes its arms
conditional.

The machine has no branch prediction: a jump waits for its comparison, and for the new rows if it is taken.
Its instructions can be conditional, so the compiler (LLVM's if-conversion) writes a short `if` without a
jump: every instruction of both arms issues, and those of the other arm have no effect. Traces of the vendor's
simulator show both.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from wse_sim.fabric.vm.issue_times import Array
from wse_sim.fabric.vm.opcodes import Op

CONDITIONAL = tuple(int(op) for op in Op if op.name[0] == "J" and op != Op.JMP)
_LAST_PLAIN = int(Op.STX_32)
PLAIN = frozenset(
    op for op in range(_LAST_PLAIN + 1) if op not in {*CONDITIONAL, Op.JMP, Op.CALL, Op.CALLR, Op.RET, Op.END}
)
"""Opcodes that can be conditional: moves, arithmetic, loads and stores."""
MOST_ROWS = 6


def branch_prices(code: Array, price: Array, costs: Mapping[str, int]) -> tuple[Array, Array]:
    """Prices with those of short arms, and the cycles that a jump costs in addition where it is taken (rows of `code`)."""
    found = price.copy()
    toll = np.where(np.isin(code[:, 0], CONDITIONAL) & (price > 0), costs["branch_taken"], 0)
    most = (
        costs["branch"] + costs["branch_taken"] - costs["alu16"]
    )  # of a jump that is taken, without its comparison
    targets = np.bincount(code[code[:, 0] == Op.JMP, 3], minlength=len(code) + 1)
    targets += np.bincount(code[np.isin(code[:, 0], CONDITIONAL), 3], minlength=len(code) + 1)
    for row in np.flatnonzero(toll).tolist():
        first, end = row + 1, int(code[row, 3])
        other = 0
        if first < end <= row + 1 + MOST_ROWS and code[end - 1, 0] == Op.JMP:  # the arm ends behind an `else`
            beyond = int(code[end - 1, 3])
            if (
                not end < beyond <= end + MOST_ROWS
                or targets[end] != 1
                or not _plain(code, targets, end, beyond)
            ):
                continue
            other, end = int(price[end:beyond].sum()), end - 1
        if not first < end <= row + 1 + MOST_ROWS or not _plain(code, targets, first, end):
            continue
        own = int(price[first:end].sum())
        if own + other > most:
            continue
        found[row], toll[row] = costs["alu16"], own
        if code[end, 0] == Op.JMP and other:
            found[end] = other
    return found, toll


def _plain(code: Array, targets: Array, first: int, end: int) -> bool:
    """Return whether rows `first` to `end` are plain, and no jump leads between them."""
    return not targets[first + 1 : end].any() and all(op in PLAIN for op in code[first:end, 0].tolist())
