"""Performance functions of the ISPD 2020 kernels and their Pareto sets of shapes.

Formal arguments of one convolution: H, W (outputs), R, S (filter), C, K (channels), T (stride). Execution
arguments h, w, c, k: the number of parts that each dimension is divided into.

    height = h * w * (c + 1)            width = 3 * k
    time   = ceil(H/h) * ceil(W/w) * ceil(C/c) * ceil(K/k) * R * S / T / T
    memory = C/c * K/k * R * S + (W + S - 1)/w * (H + R - 1)/h * K/k

A ``dblock`` is three and a ``cblock`` four convolutions with common h and w. The height, time and memory of a
block are the largest of its convolutions; its width is the sum of theirs.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from wse_sim.compiler.placement.problem import Front
from wse_sim.jit import kernel

ROUNDING = 1e-9
H_, W_, R_, S_, C_, K_, T_ = range(7)


def inner_convolutions(kind: str, formal: tuple[float, ...]) -> np.ndarray:
    """Return the convolutions of a kernel, (m, 7) of H, W, R, S, C, K, T.

    `formal` is (H, W, R, S, C, K, T) for ``conv`` and (H, W, F) for ``dblock`` and ``cblock``.
    """
    if kind == "conv":
        return np.array([formal], dtype=np.float64)
    H, W, F = formal
    if kind == "dblock":
        rows = [(H, W, 1, 1, F, F / 4, 1), (H, W, 3, 3, F / 4, F / 4, 1), (H, W, 1, 1, F / 4, F, 1)]
    else:
        rows = [
            (H, W, 1, 1, F / 2, F / 4, 1),
            (H, W, 3, 3, F / 4, F / 4, 2),
            (H / 2, W / 2, 1, 1, F / 4, F, 1),
            (H, W, 1, 1, F / 2, F, 2),
        ]
    return np.array(rows, dtype=np.float64)


def evaluate_kernel(
    convs: np.ndarray, h: int, w: int, c: tuple[int, ...], k: tuple[int, ...]
) -> tuple[int, int, float, float]:
    """Return the height and width in tiles, the time and the memory of a kernel with execution arguments h,
    w, c, k.
    """
    height = width = 0
    time = memory = 0.0
    for (H, W, R, S, C, K, T), ci, ki in zip(convs.tolist(), c, k, strict=True):
        height = max(height, h * w * (ci + 1))
        width += 3 * ki
        steps = np.ceil(H / h) * np.ceil(W / w) * np.ceil(C / ci) * np.ceil(K / ki)
        time = max(time, float(steps * R * S / T / T))
        memory = max(memory, C / ci * K / ki * R * S + (W + S - 1) / w * (H + R - 1) / h * K / ki)
    return height, width, time, memory


@kernel
def _front_kernel(
    convs: np.ndarray,
    level: float,
    memlimit: float,
    span: int,
    best_w: np.ndarray,
    best_t: np.ndarray,
    arg: np.ndarray,
) -> None:
    """Write the least width for each height to `best_w` (span + 1,), with its time and (h, w, c).

    `best_t` (span + 1,) and `arg` (span + 1, 3) receive these. Heights without a shape get a width above
    `span`.
    """
    m = convs.shape[0]
    best_w[:] = 3 * span + 3
    best_t[:] = 0.0
    steps_c = np.ones((m, span + 1))
    part_c = np.ones((m, span + 1))
    c_top = 1
    for i in range(m):
        C = convs[i, 4]
        c_top = max(c_top, int(np.ceil(C)))
        for c in range(1, span + 1):
            cc = min(float(c), np.ceil(C))
            steps_c[i, c] = np.ceil(C / cc) * convs[i, 2] * convs[i, 3]
            part_c[i, c] = C / cc * convs[i, 2] * convs[i, 3]
    h_top = int(np.ceil(convs[:, 0].max()))
    w_top = int(np.ceil(convs[:, 1].max()))
    steps_hw = np.ones(m)
    halo = np.ones(m)
    for h in range(1, min(h_top, span // 2) + 1):
        for w in range(1, min(w_top, span // (2 * h)) + 1):
            for i in range(m):
                steps_hw[i] = np.ceil(convs[i, 0] / h) * np.ceil(convs[i, 1] / w)
                halo[i] = (convs[i, 1] + convs[i, 3] - 1) / w * (convs[i, 0] + convs[i, 2] - 1) / h
            for c in range(1, min(c_top, span // (h * w) - 1) + 1):
                height = h * w * (c + 1)
                total = 0
                worst = 0.0
                for i in range(m):
                    K = convs[i, 5]
                    unit = steps_hw[i] * steps_c[i, c] / (convs[i, 6] * convs[i, 6])
                    parts = np.floor(level / unit + 1e-9)
                    if parts < 1.0:
                        total = 3 * span
                        break
                    need = np.ceil(K * (part_c[i, c] + halo[i]) / memlimit - 1e-9)
                    k = max(1.0, np.ceil(K / parts - 1e-12), need)
                    if k > np.ceil(K):
                        total = 3 * span
                        break
                    total += int(k)
                    if 3 * total > span:
                        break
                    worst = max(worst, unit * np.ceil(K / k))
                width = 3 * total
                if width <= span and (
                    width < best_w[height] or (width == best_w[height] and worst < best_t[height])
                ):
                    best_w[height] = width
                    best_t[height] = worst
                    arg[height, 0] = h
                    arg[height, 1] = w
                    arg[height, 2] = c


class ContestShapes:
    """Shapes of one contest kernel with sides up to `span` tiles and at most `memlimit` words per tile."""

    def __init__(self, kind: str, formal: tuple[float, ...], memlimit: float, span: int) -> None:
        self.convs = inner_convolutions(kind, formal)
        self.memlimit = float(memlimit)
        self.span = int(span)
        self._key = (kind, tuple(formal), self.memlimit, self.span)
        self._cache: dict[float, tuple[Front, np.ndarray]] = {}

    def key(self) -> Hashable:
        """Return the kind, the formal arguments, the memory limit and the span."""
        return self._key

    def _solve(self, level: float) -> tuple[Front, np.ndarray]:
        """Return the Pareto set of shapes at a level and the arguments (h, w, c) of each shape; results are
        cached.
        """
        hit = self._cache.get(level)
        if hit is not None:
            return hit
        best_w = np.zeros(self.span + 1, dtype=np.int64)
        best_t = np.zeros(self.span + 1)
        arg = np.zeros((self.span + 1, 3), dtype=np.int64)
        _front_kernel(self.convs, float(level), self.memlimit, self.span, best_w, best_t, arg)
        before = np.concatenate(([self.span + 1], np.minimum.accumulate(best_w)[:-1]))
        heights = np.flatnonzero((best_w < before) & (best_w <= self.span))
        found = Front(best_w[heights], heights, best_t[heights]), arg[heights]
        if len(self._cache) > 64:  # bounded: a search uses thousands of levels
            self._cache.clear()
        self._cache[level] = found
        return found

    def front(self, level: float) -> Front:
        """Return the Pareto set of (width, height) with time <= `level` within the memory limit."""
        return self._solve(level)[0]

    def arguments(
        self, width: int, height: int, level: float
    ) -> tuple[int, int, tuple[int, ...], tuple[int, ...]] | None:
        """Return the execution arguments h, w, c, k of the front's shape `width` x `height`; None if it is
        not in the front.
        """
        front, arg = self._solve(level)
        where = np.flatnonzero((front.widths == width) & (front.heights == height))
        if where.size == 0:
            return None
        h, w, c_all = (int(v) for v in arg[where[0]])
        cs, ks = [], []
        for H, W, R, S, C, K, T in self.convs.tolist():
            c = min(c_all, int(np.ceil(C)))
            unit = np.ceil(H / h) * np.ceil(W / w) * np.ceil(C / c) * R * S / T / T
            parts = np.floor(level / unit + ROUNDING)
            fill = C / c * R * S + (W + S - 1) / w * (H + R - 1) / h
            need = np.ceil(K * fill / self.memlimit - ROUNDING)
            cs.append(c)
            ks.append(int(max(1.0, np.ceil(K / parts - 1e-12), need)))
        return h, w, tuple(cs), tuple(ks)

    def fit(self, size: tuple[int, int], level: float) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
        """Return the execution arguments of the fastest shape in the front at `level` within `size` (width,
        height).
        """
        front = self.front(level)
        inside = np.flatnonzero((front.widths <= size[0]) & (front.heights <= size[1]))
        best = int(inside[np.argmin(front.times[inside])])
        found = self.arguments(int(front.widths[best]), int(front.heights[best]), level)
        if found is None:  # cannot occur: the shape is from the same front
            raise AssertionError("a shape of the front has no arguments")
        return found
