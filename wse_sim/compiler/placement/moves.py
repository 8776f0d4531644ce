"""Moves of the annealing over slicing trees. Each one logs its writes, so that it can be undone.

A move returns the two inner nodes from which curves must be recomputed up to the root (-1 for none), or
``(-2, -2)`` if it does not apply.
"""

# mypy: disable-error-code="arg-type,return-value,assignment"
# numba infers these types; in the stubs of NumPy its integers are not int
from __future__ import annotations

import numpy as np

from wse_sim.jit import helper_kernel, kernel


@kernel
def draw_bits(rng: np.ndarray) -> int:
    """Return the next 31 random bits of the xorshift generator `rng` (1,) uint64."""
    s = rng[0]
    s ^= s << np.uint64(13)
    s ^= s >> np.uint64(7)
    s ^= s << np.uint64(17)
    rng[0] = s
    return np.int64(s >> np.uint64(33))


@helper_kernel
def draw_below(rng: np.ndarray, top: int) -> int:
    """Return a random integer in [0, top)."""
    return (draw_bits(rng) * top) >> 31


@helper_kernel
def put(tree: np.ndarray, at: int, value: int, log: np.ndarray) -> None:
    """Write one entry of `tree` and log its old value; `log` (entries, 2) has the number of writes in its
    first row.
    """
    count = log[0, 0] + 1
    log[count, 0] = at
    log[count, 1] = tree[at]
    log[0, 0] = count
    tree[at] = value


@helper_kernel
def undo(tree: np.ndarray, log: np.ndarray) -> None:
    """Undo all logged writes, the last one first, and clear the log."""
    for i in range(log[0, 0], 0, -1):
        tree[log[i, 0]] = log[i, 1]
    log[0, 0] = 0


@helper_kernel
def replace_child(tree: np.ndarray, big_n: int, parent: int, old: int, new: int, log: np.ndarray) -> None:
    """Replace the child `old` of `parent` by `new`; if `parent` is -1, make `new` the root."""
    if parent < 0:
        put(tree, 4 * big_n, new, log)
    elif tree[parent] == old:
        put(tree, parent, new, log)
    else:
        put(tree, big_n + parent, new, log)
    put(tree, 2 * big_n + new, parent, log)


@helper_kernel
def is_within(tree: np.ndarray, big_n: int, node: int, ancestor: int) -> bool:
    """Return whether `node` is `ancestor` or below it."""
    while node >= 0:
        if node == ancestor:
            return True
        node = tree[2 * big_n + node]
    return False


@helper_kernel
def regraft(
    n: int, tree: np.ndarray, adj_ptr: np.ndarray, adj: np.ndarray, rng: np.ndarray, log: np.ndarray
) -> tuple[int, int]:
    """Detach a leaf, or sometimes a subtree, and insert it at another place in the tree.

    The place is next to a neighbour in the graph, or next to a node above that neighbour, or next to a random
    node.
    """
    big_n = 2 * n - 1
    root = tree[4 * big_n]
    choice = draw_below(rng, 16)
    if choice < 13:
        x = draw_below(rng, n)
    else:
        x = n + draw_below(rng, n - 1)
    if x == root:
        return -2, -2
    target = -1
    if x < n and choice < 10 and adj_ptr[x + 1] > adj_ptr[x]:
        target = np.int64(adj[adj_ptr[x] + draw_below(rng, adj_ptr[x + 1] - adj_ptr[x])])
        while draw_below(rng, 8) < 3 and tree[2 * big_n + target] >= 0:
            target = np.int64(tree[2 * big_n + target])
    else:
        target = draw_below(rng, big_n)
    p = np.int64(tree[2 * big_n + x])
    s = np.int64(tree[p])
    if s == x:
        s = np.int64(tree[big_n + p])
    if target == p:
        target = s
    if is_within(tree, big_n, target, x):
        return -2, -2
    g = np.int64(tree[2 * big_n + p])
    replace_child(tree, big_n, g, p, s, log)
    up = np.int64(tree[2 * big_n + target])
    replace_child(tree, big_n, up, target, p, log)
    bits = draw_below(rng, 4)
    if bits & 1:
        put(tree, p, x, log)
        put(tree, big_n + p, target, log)
    else:
        put(tree, p, target, log)
        put(tree, big_n + p, x, log)
    put(tree, 2 * big_n + target, p, log)
    put(tree, 3 * big_n + p, bits >> 1, log)
    return g, p


@helper_kernel
def swap_nodes(
    n: int, tree: np.ndarray, adj_ptr: np.ndarray, adj: np.ndarray, rng: np.ndarray, log: np.ndarray
) -> tuple[int, int]:
    """Exchange two nodes, mostly leaves. The move does not apply if one is below the other."""
    big_n = 2 * n - 1
    choice = draw_below(rng, 8)
    if choice < 5:
        x, z = draw_below(rng, n), draw_below(rng, n)
    elif choice < 7:
        x, z = draw_below(rng, n), draw_below(rng, big_n)
    else:
        x, z = draw_below(rng, big_n), draw_below(rng, big_n)
    if is_within(tree, big_n, x, z) or is_within(tree, big_n, z, x):
        return -2, -2
    px, pz = np.int64(tree[2 * big_n + x]), np.int64(tree[2 * big_n + z])
    if px == pz:
        left = tree[px]
        put(tree, px, tree[big_n + px], log)
        put(tree, big_n + px, left, log)
        return -1, -1
    at_x = px if tree[px] == x else big_n + px
    at_z = pz if tree[pz] == z else big_n + pz
    put(tree, at_x, z, log)
    put(tree, at_z, x, log)
    put(tree, 2 * big_n + x, pz, log)
    put(tree, 2 * big_n + z, px, log)
    return px, pz


@helper_kernel
def swap_children(tree: np.ndarray, big_n: int, node: int, log: np.ndarray) -> None:
    """Swap the left and the right subtree of `node`; curves do not change."""
    left = tree[node]
    put(tree, node, tree[big_n + node], log)
    put(tree, big_n + node, left, log)


@helper_kernel
def mirror(n: int, tree: np.ndarray, node: int, kind: int, stack: np.ndarray, log: np.ndarray) -> None:
    """Mirror a subtree: swap the children of its nodes whose cut is `kind`. Curves do not change.

    Stops swapping when the log is full.
    """
    big_n = 2 * n - 1
    top = 1
    stack[0] = node
    while top > 0:
        top -= 1
        at = stack[top]
        if at >= n:
            if tree[3 * big_n + at] == kind and log[0, 0] < log.shape[0] - 4:
                swap_children(tree, big_n, at, log)
            stack[top] = tree[at]
            stack[top + 1] = tree[big_n + at]
            top += 2


@helper_kernel
def rotate(n: int, tree: np.ndarray, rng: np.ndarray, log: np.ndarray) -> tuple[int, int]:
    """Apply a tree rotation to an inner node and its inner child: ((a b) c) becomes (a (b c)) or the reverse.

    Half of the time the two nodes also exchange their cuts.
    """
    big_n = 2 * n - 1
    p = n + draw_below(rng, n - 1)
    take_left = draw_below(rng, 2)
    q = np.int64(tree[p]) if take_left else np.int64(tree[big_n + p])
    if q < n:
        return -2, -2
    g = np.int64(tree[2 * big_n + p])
    replace_child(tree, big_n, g, p, q, log)
    inner_at = big_n + q if take_left else q
    inner = np.int64(tree[inner_at])
    put(tree, inner_at, p, log)
    put(tree, 2 * big_n + p, q, log)
    put(tree, p if take_left else big_n + p, inner, log)
    put(tree, 2 * big_n + inner, p, log)
    if draw_below(rng, 2):
        cut_p = tree[3 * big_n + p]
        put(tree, 3 * big_n + p, tree[3 * big_n + q], log)
        put(tree, 3 * big_n + q, cut_p, log)
    return p, -1


@helper_kernel
def propose(
    n: int,
    tree: np.ndarray,
    adj_ptr: np.ndarray,
    adj: np.ndarray,
    rng: np.ndarray,
    stack: np.ndarray,
    log: np.ndarray,
) -> tuple[int, int]:
    """Draw a random move and apply it; the tree needs at least two leaves."""
    big_n = 2 * n - 1
    dice = draw_below(rng, 100)
    if dice < 40:
        return regraft(n, tree, adj_ptr, adj, rng, log)
    if dice < 57:
        return swap_nodes(n, tree, adj_ptr, adj, rng, log)
    if dice < 72:
        return rotate(n, tree, rng, log)
    node = n + draw_below(rng, n - 1)
    if dice < 82:
        put(tree, 3 * big_n + node, 1 - tree[3 * big_n + node], log)
        return node, -1
    if dice < 91:
        swap_children(tree, big_n, node, log)
        return -1, -1
    if dice < 97:
        mirror(n, tree, node, draw_below(rng, 2), stack, log)
        return -1, -1
    up = np.int64(tree[2 * big_n + node])
    if up < 0 or tree[3 * big_n + up] == tree[3 * big_n + node]:
        return -2, -2
    cut = tree[3 * big_n + node]
    put(tree, 3 * big_n + node, tree[3 * big_n + up], log)
    put(tree, 3 * big_n + up, cut, log)
    return node, -1
