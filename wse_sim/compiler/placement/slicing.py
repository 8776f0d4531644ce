"""Slicing trees with shape curves, as arrays for numba.

A tree over ``n`` leaves has ``N = 2n - 1`` nodes; node ``i < n`` is block ``i``. It is stored in one int32
array ``tree`` (4N + 2,): left child, right child, parent and cut of every node, then the root and the height
that the root may use. Cut 0 puts the children next to each other, cut 1 stacks them.

``pool`` (rows, S) int16 holds curves. A curve of kind 0 gives the least width within each height, one of kind
1 the least height within each width. Rows ``2u + kind`` are the leaves' curves. After them come two buffers
per inner node, each with both kinds; a rejected move returns to the old buffer. A node adds its children's
curves of the kind of its cut. If its parent needs the other kind, the curve is transposed on demand.
"""

# mypy: disable-error-code="arg-type,return-value,assignment"
# numba infers these types; in the stubs of NumPy its integers are not int
from __future__ import annotations

from typing import NamedTuple

import numpy as np

from wse_sim.jit import helper_kernel, kernel

CAP16 = np.int16(16000)


class Slicing(NamedTuple):
    """A slicing tree with its curves, and scratch arrays for traversals.

    ``tree`` (4N + 2,) and ``pool`` (rows, S) are described in the module's docstring. ``leaf`` (n,) is the
    curve of every block, ``base`` the first row after the leaves' curves. ``cur`` (N,) is the valid buffer of
    a node, ``turned`` (2N,) states whether a buffer has its transposed curve, and ``stamp`` (N,) is the last
    move that changed a node. ``touched`` lists the nodes whose buffer this move switched. ``order`` and
    ``stack`` (N + 2,) are scratch. ``work`` (4,) holds the units of work done, the number of this move and
    the number of touched nodes.
    """

    n: int
    tree: np.ndarray
    pool: np.ndarray
    leaf: np.ndarray
    base: int
    cur: np.ndarray
    turned: np.ndarray
    stamp: np.ndarray
    touched: np.ndarray
    order: np.ndarray
    stack: np.ndarray
    work: np.ndarray


class Cells(NamedTuple):
    """The positions of the nodes of a tree, updated only where a move changes them.

    ``cell`` (N, 5) int32 holds x, y, w, h of every node's cell and the cut of its parent; ``centre`` (n, 2)
    is twice the centres of the blocks; ``fresh`` (N, 5) is scratch. ``changed`` (N,) is the last move that
    changed the node or one below it. ``moved`` (N,) lists the nodes whose cells this move changed.
    """

    cell: np.ndarray
    centre: np.ndarray
    fresh: np.ndarray
    changed: np.ndarray
    moved: np.ndarray


@kernel
def new_slicing(n: int, tree: np.ndarray, pool: np.ndarray, leaf: np.ndarray, base: int) -> Slicing:
    """Return the slicing of a tree with all curves computed."""
    big_n = 2 * n - 1
    s = Slicing(
        n,
        tree,
        pool,
        leaf,
        base,
        np.zeros(big_n, dtype=np.int64),
        np.zeros(2 * big_n, dtype=np.int8),
        np.zeros(big_n, dtype=np.int64),
        np.zeros(4 * big_n, dtype=np.int64),
        np.zeros(big_n + 2, dtype=np.int64),
        np.zeros(big_n + 2, dtype=np.int64),
        np.zeros(4, dtype=np.int64),
    )
    s.work[1] = 1
    rebuild(s)
    return s


@helper_kernel
def add_curves(pool: np.ndarray, a: int, b: int, out: int) -> None:
    """Write the sum of the curves in rows `a` and `b`, capped, to row `out`."""
    row_a = pool[a]
    row_b = pool[b]
    row_o = pool[out]
    for i in range(row_a.shape[0]):
        s = np.int16(row_a[i] + row_b[i])
        row_o[i] = s if s < CAP16 else CAP16


@helper_kernel
def first_at_most(row: np.ndarray, most: int) -> int:
    """Return the least index at which the non-increasing `row` is at most `most`; its last entry must be."""
    low, high = -1, row.shape[0] - 1
    while high - low > 1:
        middle = (low + high) >> 1
        if row[middle] <= most:
            high = middle
        else:
            low = middle
    return high


@helper_kernel
def transpose_curve(pool: np.ndarray, source: int, out: int) -> None:
    """Write the transpose of the non-increasing curve in row `source` to row `out`.

    Only the heights at which the width still decreases are visited.
    """
    span = pool.shape[1]
    row_s = pool[source]
    row_o = pool[out]
    row_o[:] = CAP16
    least = row_s[span - 1]
    if least >= span:
        return
    lowest = first_at_most(row_s, span - 1)
    for h in range(first_at_most(row_s, least), lowest - 1, -1):
        row_o[np.uint16(row_s[h])] = h
    widest = np.int64(row_s[lowest])
    low = CAP16
    for w in range(least, widest + 1):
        v = row_o[w]
        low = v if v < low else low
        row_o[w] = low
    row_o[widest + 1 :] = low


@helper_kernel
def form_row(
    node: int,
    kind: int,
    s: Slicing,
) -> int:
    """Return the row of the node's curve of `kind`, which is transposed first if needed."""
    n = s.n
    if node < n:
        return 2 * s.leaf[node] + kind
    slot = 2 * (node - n) + s.cur[node]
    row = s.base + 2 * slot
    own = s.tree[3 * (2 * n - 1) + node]
    if own != kind and s.turned[slot] == 0:
        transpose_curve(s.pool, row + own, row + kind)
        s.turned[slot] = 1
        s.work[0] += 12
    return row + kind


@helper_kernel
def update_node(
    node: int,
    s: Slicing,
) -> None:
    """Recompute the node's curve of its cut's kind in its other buffer.

    The buffer is switched once per move, and the node is then listed as touched.
    """
    n, tree, work, cur, stamp = s.n, s.tree, s.work, s.cur, s.stamp
    big_n = 2 * n - 1
    kind = tree[3 * big_n + node]
    a = form_row(tree[node], kind, s)
    b = form_row(tree[big_n + node], kind, s)
    if stamp[node] != work[1]:
        stamp[node] = work[1]
        cur[node] = 1 - cur[node]
        s.touched[work[2]] = node
        work[2] += 1
    slot = 2 * (node - n) + cur[node]
    s.turned[slot] = 0
    add_curves(s.pool, a, b, s.base + 2 * slot + kind)
    work[0] += 2


@helper_kernel
def preorder(s: Slicing) -> int:
    """Write the inner nodes to `order`, parents first; return their number."""
    n, tree, order, stack = s.n, s.tree, s.order, s.stack
    big_n = 2 * n - 1
    top = 1
    stack[0] = tree[4 * big_n]
    count = 0
    while top > 0:
        top -= 1
        node = stack[top]
        if node >= n:
            order[count] = node
            count += 1
            stack[top] = tree[node]
            stack[top + 1] = tree[big_n + node]
            top += 2
    return count


@helper_kernel
def rebuild(
    s: Slicing,
) -> None:
    """Recompute the curves of all inner nodes, children first."""
    for i in range(preorder(s) - 1, -1, -1):
        update_node(s.order[i], s)


@helper_kernel
def root_width(
    s: Slicing,
) -> int:
    """Return the least width of the whole tree within the root's height."""
    root = 4 * (2 * s.n - 1)
    return s.pool[form_row(s.tree[root], 0, s), s.tree[root + 1]]


@helper_kernel
def cut_cell(
    cell: np.ndarray,
    node: int,
    s: Slicing,
) -> None:
    """Set x, y, w, h of the two children of an inner `node` in `cell`.

    Together they are centred along the direction in which they follow each other.
    """
    tree, pool, big_n = s.tree, s.pool, 2 * s.n - 1
    kind, a, b = tree[3 * big_n + node], tree[node], tree[big_n + node]
    x, y, w, h = cell[node, 0], cell[node, 1], cell[node, 2], cell[node, 3]
    row_a = form_row(a, kind, s)
    row_b = form_row(b, kind, s)
    if kind == 0:
        ea, eb = np.int64(pool[row_a, h]), np.int64(pool[row_b, h])
        start = x + (w - ea - eb) // 2
        cell[a, 0], cell[a, 1], cell[a, 2], cell[a, 3] = start, y, ea, h
        cell[b, 0], cell[b, 1], cell[b, 2], cell[b, 3] = start + ea, y, eb, h
    else:
        ea, eb = np.int64(pool[row_a, w]), np.int64(pool[row_b, w])
        start = y + (h - ea - eb) // 2
        cell[a, 0], cell[a, 1], cell[a, 2], cell[a, 3] = x, start, w, ea
        cell[b, 0], cell[b, 1], cell[b, 2], cell[b, 3] = x, start + ea, w, eb


@helper_kernel
def realise(
    s: Slicing,
    cell: np.ndarray,
) -> None:
    """Compute x, y, w, h of all cells into `cell` (N, 4) int32; leaves get the size of their block.

    The root width must be below the cap. Unused space is divided equally between both sides, because
    neighbours that are centred in a common strip have no wire across it.
    """
    n, tree, pool, leaf, stack = s.n, s.tree, s.pool, s.leaf, s.stack
    big_n = 2 * n - 1
    root = tree[4 * big_n]
    height = tree[4 * big_n + 1]
    cell[root, 0] = 0
    cell[root, 1] = 0
    cell[root, 2] = pool[form_row(root, 0, s), height]
    cell[root, 3] = height
    stack[0] = 2 * root
    top = 1
    while top > 0:
        top -= 1
        code = stack[top]
        node = code >> 1
        outer = code & 1
        x, y, w, h = cell[node, 0], cell[node, 1], cell[node, 2], cell[node, 3]
        if node < n:
            if outer == 0:
                real = pool[2 * leaf[node] + 1, w]
                cell[node, 1] = y + (h - real) // 2
                cell[node, 3] = real
            else:
                real = pool[2 * leaf[node], h]
                cell[node, 0] = x + (w - real) // 2
                cell[node, 2] = real
            continue
        kind = tree[3 * big_n + node]
        a, b = tree[node], tree[big_n + node]
        cut_cell(cell, node, s)
        stack[top] = 2 * a + kind
        stack[top + 1] = 2 * b + kind
        top += 2


@kernel
def wire_of(cell: np.ndarray, ea: np.ndarray, eb: np.ndarray, ew: np.ndarray) -> float:
    """Return the weighted L1 distance between the centres of the cells at the edges' ends."""
    total = 0.0
    for e in range(ea.shape[0]):
        a = ea[e]
        b = eb[e]
        dx = 2 * (cell[a, 0] - cell[b, 0]) + cell[a, 2] - cell[b, 2]
        dy = 2 * (cell[a, 1] - cell[b, 1]) + cell[a, 3] - cell[b, 3]
        total += ew[e] * (abs(dx) + abs(dy))
    return 0.5 * total


@helper_kernel
def mark_changed(tree: np.ndarray, big_n: int, log: np.ndarray, changed: np.ndarray, stamp: int) -> None:
    """Stamp in `changed` (N,) every node that the logged writes touched, and all nodes above it."""
    for i in range(1, log[0, 0] + 1):
        at = log[i, 0]
        if at >= 4 * big_n:
            continue
        node = np.int64(at % big_n)
        while node >= 0 and changed[node] != stamp:
            changed[node] = stamp
            node = np.int64(tree[2 * big_n + node])


@helper_kernel
def realise_changes(
    s: Slicing,
    c: Cells,
) -> int:
    """Update the layout of :func:`realise` after a move, and list the nodes whose cells changed in `moved`.

    A subtree that the move did not touch (its stamp in `changed` is older) and whose size is unchanged keeps
    its inner layout: it is shifted, or skipped if it stays in place. Returns the number of nodes in `moved`.
    """
    n, tree, pool, leaf, stack = s.n, s.tree, s.pool, s.leaf, s.stack
    cell, centre, fresh, changed, moved, stamp = c.cell, c.centre, c.fresh, c.changed, c.moved, s.work[1]
    big_n = 2 * n - 1
    root = tree[4 * big_n]
    height = tree[4 * big_n + 1]
    fresh[root, 0] = 0
    fresh[root, 1] = 0
    fresh[root, 2] = pool[form_row(root, 0, s), height]
    fresh[root, 3] = height
    fresh[root, 4] = 0
    stack[0] = root
    top = 1
    count = 0
    while top > 0:
        top -= 1
        node = stack[top]
        x, y, w, h = fresh[node, 0], fresh[node, 1], fresh[node, 2], fresh[node, 3]
        outer = fresh[node, 4]
        same = changed[node] != stamp and cell[node, 2] == w and cell[node, 3] == h
        dx, dy = x - cell[node, 0], y - cell[node, 1]
        if same and (node >= n or cell[node, 4] == outer):
            if dx == 0 and dy == 0:
                continue
            moved[count] = node
            count += 1
            cell[node, 0] = x
            cell[node, 1] = y
            cell[node, 4] = outer
            if node < n:
                centre[node, 0] += 2 * dx
                centre[node, 1] += 2 * dy
            else:
                a, b = tree[node], tree[big_n + node]
                for k in range(5):
                    fresh[a, k] = cell[a, k]
                    fresh[b, k] = cell[b, k]
                fresh[a, 0] += dx
                fresh[a, 1] += dy
                fresh[b, 0] += dx
                fresh[b, 1] += dy
                stack[top] = a
                stack[top + 1] = b
                top += 2
            continue
        moved[count] = node
        count += 1
        for k in range(5):
            cell[node, k] = fresh[node, k]
        if node < n:
            if outer == 0:
                real = np.int64(pool[2 * leaf[node] + 1, w])
                centre[node, 0] = 2 * x + w
                centre[node, 1] = 2 * (y + (h - real) // 2) + real
            else:
                real = np.int64(pool[2 * leaf[node], h])
                centre[node, 0] = 2 * (x + (w - real) // 2) + real
                centre[node, 1] = 2 * y + h
            continue
        kind = tree[3 * big_n + node]
        a, b = tree[node], tree[big_n + node]
        cut_cell(fresh, node, s)
        fresh[a, 4] = kind
        fresh[b, 4] = kind
        stack[top] = a
        stack[top + 1] = b
        top += 2
    return count


@helper_kernel
def wire_between(centre: np.ndarray, ea: np.ndarray, eb: np.ndarray, ew: np.ndarray) -> float:
    """Return the weighted L1 distance between the edges' ends; `centre` (n, 2) holds twice the centres."""
    total = 0.0
    for e in range(ea.shape[0]):
        a = ea[e]
        b = eb[e]
        total += ew[e] * (abs(centre[a, 0] - centre[b, 0]) + abs(centre[a, 1] - centre[b, 1]))
    return 0.5 * total
