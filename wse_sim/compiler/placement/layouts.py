"""Layout of complete slicing trees, and the orientation of the groups of a peeled tree."""

# mypy: disable-error-code="arg-type,return-value,assignment"
# numba infers these types; in the stubs of NumPy its integers are not int
from __future__ import annotations

import numpy as np

from wse_sim.compiler.placement.moves import mirror, swap_children, undo
from wse_sim.compiler.placement.slicing import new_slicing, realise, root_width, wire_of
from wse_sim.jit import kernel


@kernel
def layout_kernel(
    n: int, tree: np.ndarray, leaf: np.ndarray, pool: np.ndarray, base: int, cell: np.ndarray
) -> int:
    """Write the cells (N, 4) of a tree whose leaves have the curves `leaf` (n,); return the root width.

    If the root width reaches the length of a curve, the cells are not written.
    """
    s = new_slicing(n, tree, pool, leaf, base)
    width = root_width(s)
    if width < pool.shape[1]:
        realise(s, cell)
    return width


@kernel
def turn_kernel(
    n: int,
    tree: np.ndarray,
    leaf: np.ndarray,
    pool: np.ndarray,
    base: int,
    fabric_w: int,
    spine: np.ndarray,
    group: np.ndarray,
    kinds: np.ndarray,
    ea: np.ndarray,
    eb: np.ndarray,
    ew: np.ndarray,
) -> float:
    """Choose the side and direction of every group of a peeled tree in place; return the wire, infinite if
    too wide.

    ``spine`` (g,) is the inner node that joins the group and the rest (-1 for none), ``group`` (g,) the
    group's top node, ``kinds`` (g,) its cut. Groups change sides and are mirrored one after the other while
    that shortens the wire. Only the order of children changes, so curves stay valid.
    """
    big_n = 2 * n - 1
    s = new_slicing(n, tree, pool, leaf, base)
    cell = np.zeros((big_n, 4), dtype=np.int32)
    log = np.zeros((4 * big_n + 8, 2), dtype=np.int64)
    if root_width(s) > fabric_w:
        return np.inf
    realise(s, cell)
    best = wire_of(cell, ea, eb, ew)
    for _ in range(4):
        better = False
        for g in range(group.shape[0]):
            for how in range(1, 4):
                if how & 1:
                    if spine[g] < 0:
                        continue
                    swap_children(tree, big_n, spine[g], log)
                if how & 2:
                    mirror(n, tree, group[g], kinds[g], s.stack, log)
                realise(s, cell)
                wire = wire_of(cell, ea, eb, ew)
                if wire < best - 1e-9:
                    best = wire
                    better = True
                    log[0, 0] = 0
                else:
                    undo(tree, log)
        if not better:
            break
    return best
