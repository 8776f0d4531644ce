"""The inner loops of the router: the cost of a route, the cheapest route to a sink, the loads of legs.

Symbols are those of :mod:`wse_sim.compiler.routing` and :mod:`wse_sim.compiler.nets`. Sums are evaluated in
NumPy's order, so that routes of equal cost are equal in both implementations.
"""

# mypy: disable-error-code="assignment"
# numba infers these types; in the stubs of NumPy its integers are not int
from __future__ import annotations

from math import floor

import numpy as np

from wse_sim.jit import helper_kernel, kernel

NORTH, EAST, SOUTH, WEST = range(4)
CONGESTION = 40.0
OVERLOAD = 2000.0
CROWD = 0.5
CROWDED = 8.0  # nets at a router
MOST_CORNERS = 4
BLOCK = 128  # most elements that NumPy adds up without halving


@helper_kernel
def _line(r0: int, c0: int, r1: int, c1: int) -> tuple[int, int, int, int]:
    """Return the direction of a leg, the row or column of its line, and its low and high end."""
    if r0 == r1:
        return (EAST if c1 > c0 else WEST), r0, min(c0, c1), max(c0, c1)
    return (SOUTH if r1 > r0 else NORTH), c0, min(r0, r1), max(r0, r1)


@helper_kernel
def _links(
    r0: int, c0: int, r1: int, c1: int, width: int, rows: int, cols: int
) -> tuple[int, int, int, int, int]:
    """Return the cores that a leg's links leave, as :func:`wse_sim.compiler.nets.links_of`."""
    direction, line, low, high = _line(r0, c0, r1, c1)
    if direction in (EAST, WEST):
        first = min(max(0, line - width // 2), max(0, rows - width))
        shift = 1 if direction == WEST else 0
        return first, min(rows, first + width), low + shift, high + shift, direction
    first = min(max(0, line - width // 2), max(0, cols - width))
    shift = 1 if direction == NORTH else 0
    return low + shift, high + shift, first, min(cols, first + width), direction


@helper_kernel
def _routers(
    r0: int, c0: int, r1: int, c1: int, width: int, rows: int, cols: int
) -> tuple[int, int, int, int]:
    """Return the routers that a leg crosses, as :func:`wse_sim.compiler.nets.routers_of`."""
    a, b, c, d, direction = _links(r0, c0, r1, c1, width, rows, cols)
    if direction in (EAST, WEST):
        return a, b, min(c0, c1), max(c0, c1) + 1
    return min(r0, r1), max(r0, r1) + 1, c, d


@helper_kernel
def _block_sum(x: np.ndarray, at: int, n: int) -> float:
    """Return the sum of `n` elements from index `at`, at most 128, in NumPy's order of eight partial sums."""
    if n < 8:
        total = 0.0
        for i in range(n):
            total += x[at + i]
        return total
    s0, s1, s2, s3 = x[at], x[at + 1], x[at + 2], x[at + 3]
    s4, s5, s6, s7 = x[at + 4], x[at + 5], x[at + 6], x[at + 7]
    i = 8
    while i < n - n % 8:
        s0 += x[at + i]
        s1 += x[at + i + 1]
        s2 += x[at + i + 2]
        s3 += x[at + i + 3]
        s4 += x[at + i + 4]
        s5 += x[at + i + 5]
        s6 += x[at + i + 6]
        s7 += x[at + i + 7]
        i += 8
    total = ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))
    while i < n:
        total += x[at + i]
        i += 1
    return total


@kernel
def pairwise_sum(x: np.ndarray) -> float:
    """Return the sum of all elements in NumPy's order: halves of halves down to at most 128 elements.

    An explicit stack is used, because cached machine code cannot call itself.
    """
    if x.size <= BLOCK:
        return _block_sum(x, 0, x.size)
    todo, sums = (
        np.zeros((64, 3), np.int64),
        np.zeros(64),
    )  # (first index, elements, whether to add the last two sums instead)
    todo[0, 1] = x.size
    left, known = 1, 0
    while left:
        left -= 1
        at, n, is_joined = todo[left]
        if is_joined:
            known -= 1
            sums[known - 1] += sums[known]
        elif n <= BLOCK:
            sums[known] = _block_sum(x, at, n)
            known += 1
        else:
            half = n // 2
            half -= half % 8
            todo[left] = (0, 0, 1)
            todo[left + 1] = (at + half, n - half, 0)
            todo[left + 2] = (at, half, 0)
            left += 3
    return float(sums[0])


@kernel
def _leg_cost(
    loads: np.ndarray,
    crowd: np.ndarray,
    leg: tuple[int, int, int, int],
    width: int,
    size: float,
    capacity: float,
) -> float:
    """Return the cost of a leg's links; the parallel links share `size` bytes per sample."""
    r0, r1, c0, c1, direction = _links(leg[0], leg[1], leg[2], leg[3], width, loads.shape[0], loads.shape[1])
    is_row = direction in (EAST, WEST)
    n, side = (c1 - c0, r1 - r0) if is_row else (r1 - r0, c1 - c0)
    own = size / max(1, side)
    squares, over = np.empty(n), np.empty(n)  # summed here: the order of BLAS depends on the CPU
    most, is_over = np.zeros(n, np.int64), False
    for i in range(n):
        fullest = -np.inf
        for j in range(side):
            row, col = (r0 + j, c0 + i) if is_row else (r0 + i, c0 + j)
            fullest = max(fullest, loads[row, col, direction])
            most[i] = max(most[i], crowd[row, col])
        use = (fullest + own) / capacity
        squares[i] = use * use
        over[i] = max(use - 1.0, 0.0)
        is_over |= over[i] > 0.0
    above = pairwise_sum(over) if is_over else 0.0
    crowded = 0.0  # a sum of squared eighths, which is exact
    for i in range(n):
        crowded += (most[i] / CROWDED) * (most[i] / CROWDED)
    return n + CONGESTION * pairwise_sum(squares) + OVERLOAD * above + CROWD * crowded


@kernel
def _way_cost(
    loads: np.ndarray,
    crowd: np.ndarray,
    closed: np.ndarray,
    way: np.ndarray,
    count: int,
    width: int,
    size: float,
    capacity: float,
    bound: float,
) -> float:
    """Return the cost of a route of `count` corners.

    The cost is infinite if it is not below `bound`, or if the route touches a closed router.
    """
    total = 0.0
    for k in range(count - 1):
        a, b, c, d = way[k, 0], way[k, 1], way[k + 1, 0], way[k + 1, 1]
        if closed.size:
            r0, r1, c0, c1 = _routers(a, b, c, d, width, loads.shape[0], loads.shape[1])
            for row in range(r0, r1):
                for col in range(c0, c1):
                    if closed[row, col]:
                        return np.inf
        total += _leg_cost(loads, crowd, (a, b, c, d), width, size, capacity)
        if total >= bound:
            return np.inf
    return total


@helper_kernel
def _rounded(x: float) -> int:
    """Return the nearest integer; of two, the even one."""
    low = floor(x)
    part = x - low
    if part > 0.5 or (part == 0.5 and low % 2 != 0):
        return low + 1
    return low


@helper_kernel
def _between(
    start: int, end: int, across: int, reach: np.ndarray, gap: int, size: int, out: np.ndarray
) -> int:
    """Write candidate positions of the middle leg of a route to `out` and return their number.

    The candidates are between the two ends, and one just behind the start on the side away from the end. If
    both ends are on one line, they bypass it on either side, at fractions of the length `across`.
    """
    count = 0
    for k in range(2 * reach.size + 2):
        if k < 2 * reach.size:
            fraction = reach[k // 2]
            if start != end:
                if k % 2:
                    continue
                line = _rounded(start + fraction * (end - start))
            else:
                line = start + (1 if k % 2 else -1) * _rounded(fraction * across)
        elif k == 2 * reach.size:
            if start > end:
                continue
            line = start - gap
        else:
            if start < end:
                continue
            line = start + gap
        is_new = 0 <= line < size and line not in (start, end)
        for i in range(count):
            is_new &= out[i] != line
        if is_new:
            out[count] = line
            count += 1
    return count


@helper_kernel
def _add_corner(way: np.ndarray, count: int, row: int, col: int) -> int:
    """Add a corner to a route unless the route already has it; return the number of corners."""
    for i in range(count):
        if way[i, 0] == row and way[i, 1] == col:
            return count
    way[count, 0], way[count, 1] = row, col
    return count + 1


@helper_kernel
def _fits(width: int, face: np.ndarray, row: int, next_row: int) -> bool:
    """Return whether a bundle fits through the side by which a route leaves a region.

    `face` has the rows and columns of the region, or -1 if there is none.
    """
    if face[0] < 0:
        return True
    return width <= (face[0] if row == next_row else face[1])


@kernel
def best_way(
    loads: np.ndarray,
    crowd: np.ndarray,
    closed: np.ndarray,
    points: np.ndarray,
    faces: np.ndarray,
    sink: tuple[int, int],
    reach: np.ndarray,
    width: int,
    size: float,
    capacity: float,
) -> tuple[float, int, np.ndarray]:
    """Return the cheapest route from one of `points` to a sink: its cost, its number of corners and its
    corners (4, 2).

    If several routes have equal cost, the first is returned; the cost is infinite if there is no route.
    `faces` (points + 1, 2) are the rows and columns of the regions at the points and, in the last row, at the
    sink; -1 without a region. `closed` is empty if no router is closed.
    """
    least, corners = np.inf, 0
    best, way = np.zeros((MOST_CORNERS, 2), np.int64), np.zeros((MOST_CORNERS, 2), np.int64)
    rows, cols = loads.shape[0], loads.shape[1]
    lines = np.zeros(2 * reach.size + 2, np.int64)
    to_row, to_col = sink
    for p in range(points.shape[0]):
        row, col = points[p, 0], points[p, 1]
        for kind in range(3):  # both Ls, Zs with the middle leg on a row, Zs with it on a column
            if kind == 0:
                tries = 2
            elif kind == 1:
                tries = _between(row, to_row, abs(col - to_col), reach, width + 1, rows, lines)
            else:
                tries = _between(col, to_col, abs(row - to_row), reach, width + 1, cols, lines)
            for k in range(tries):
                count = _add_corner(way, 0, row, col)
                if kind == 0 and k == 0:
                    count = _add_corner(way, count, row, to_col)
                elif kind == 0:
                    count = _add_corner(way, count, to_row, col)
                elif kind == 1:
                    count = _add_corner(way, count, lines[k], col)
                    count = _add_corner(way, count, lines[k], to_col)
                else:
                    count = _add_corner(way, count, row, lines[k])
                    count = _add_corner(way, count, to_row, lines[k])
                count = _add_corner(way, count, to_row, to_col)
                if count > 1 and not (
                    _fits(width, faces[p], way[0, 0], way[1, 0])
                    and _fits(width, faces[-1], way[count - 1, 0], way[count - 2, 0])
                ):
                    continue
                cost = _way_cost(loads, crowd, closed, way, count, width, size, capacity, least)
                if cost < least:
                    least, corners = cost, count
                    for i in range(MOST_CORNERS):  # an assignment of arrays takes long to compile
                        best[i, 0], best[i, 1] = way[i, 0], way[i, 1]
    return least, corners, best


@kernel
def touches(closed: np.ndarray, row: int, col: int, width: int) -> bool:
    """Return whether a bundle that starts and ends at one router touches a closed router."""
    r0, r1, c0, c1 = _routers(row, col, row, col, width, closed.shape[0], closed.shape[1])
    return bool(closed[r0:r1, c0:c1].any())


@kernel
def add_legs(
    loads: np.ndarray,
    crowd: np.ndarray,
    legs: np.ndarray,
    width: int,
    size: float,
    ways: int,
    ends: np.ndarray,
    sign: int,
) -> None:
    """Add bytes to the links of `legs` (n, 4), in one direction or both (`ways`), except inside the regions
    `ends`.

    Also adds `sign` to the number of nets at every router of each leg.
    """
    rows, cols = loads.shape[0], loads.shape[1]
    for n in range(legs.shape[0]):
        start_row, start_col, end_row, end_col = legs[n, 0], legs[n, 1], legs[n, 2], legs[n, 3]
        for back in range(ways):
            if back:
                r0, r1, c0, c1, way = _links(end_row, end_col, start_row, start_col, width, rows, cols)
            else:
                r0, r1, c0, c1, way = _links(start_row, start_col, end_row, end_col, width, rows, cols)
            links = (r1 - r0) if way in (EAST, WEST) else (c1 - c0)
            load = sign * size / links
            for row in range(r0, r1):
                for col in range(c0, c1):
                    loads[row, col, way] += load
            for e in range(ends.shape[0]):
                for row in range(max(r0, ends[e, 0]), min(r1, ends[e, 1])):
                    for col in range(max(c0, ends[e, 2]), min(c1, ends[e, 3])):
                        loads[row, col, way] -= load
        r0, r1, c0, c1 = _routers(start_row, start_col, end_row, end_col, width, rows, cols)
        for row in range(r0, r1):
            for col in range(c0, c1):
                crowd[row, col] += sign


@kernel
def meeting_pairs(boxes: np.ndarray, owner: np.ndarray, met: np.ndarray) -> np.ndarray:
    """Return the pairs (n, 2) of nets with overlapping boxes, in the order of these boxes; set `met` at
    each pair.

    `boxes` (b, 4) are half-open ranges (row0, row1, col0, col1), `owner` (b,) the net of each, ascending.
    """
    pairs = np.empty((met.size // 2, 2), np.int64)  # the second of a pair is the later net
    count = 0
    for i in range(boxes.shape[0]):
        r0, r1, c0, c1, net = boxes[i, 0], boxes[i, 1], boxes[i, 2], boxes[i, 3], owner[i]
        for k in range(i + 1, boxes.shape[0]):
            if boxes[k, 0] < r1 and r0 < boxes[k, 1] and boxes[k, 2] < c1 and c0 < boxes[k, 3]:
                other = owner[k]
                if other != net and not met[net, other]:
                    met[net, other] = True
                    pairs[count, 0], pairs[count, 1] = net, other
                    count += 1
    return pairs[:count]
