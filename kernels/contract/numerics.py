"""The arithmetic of the cores, compiled by numba: the operations that every `compute` uses.

Values are float32 arrays; every number is representable in the requested precision.

    fp32       every operation rounds to fp32
    fp16       IEEE binary16, ties to even
    bf16       upper 16 bits of fp32, ties to even
    cbfloat16  1 sign, 6 exponent, 9 mantissa bits. The vendor publishes no further details; assumed: bias 31, ties to
               even, no subnormals (below 2^-30 becomes 0), overflow to infinity
    int8       weights only: one scale per matrix, products and sums in fp32

Mixed accumulation: products of 16-bit operands are summed in fp32; results round to 16 bits once, when they
are stored. With ``half`` sums round to the 16-bit type after every multiply-accumulate.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wse_sim.fabric.format.values import round_f16
from wse_sim.jit import kernel
from wse_sim.kernels.contract.equations import check_precision

Array = NDArray[np.float32]
FP32, FP16, BF16, CB16 = 0, 1, 2, 3
CODES = {"fp32": FP32, "fp16": FP16, "bf16": BF16, "cbfloat16": CB16, "int8": FP32}

UNARY = (
    *("copy", "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "exp", "log", "sqrt", "rsqrt", "neg"),
    *("abs", "square", "reciprocal", "erf", "softplus", "sin", "cos"),
)
BINARY = ("add", "sub", "mul", "div", "max", "min", "pow")
SUM, SQUARES, MAXIMUM, MINIMUM = 0, 1, 2, 3


@kernel
def round_to(x, code):  # type: ignore[no-untyped-def]
    """Return one float32 number rounded to the precision of `code`."""
    if code == 0:
        return x
    if code == 1:
        return round_f16(x)
    if not math.isfinite(x):
        return x
    bits = np.int64(np.float32(x).view(np.uint32))
    shift = 16 if code == 2 else 14  # mantissa bits that are dropped
    bits = bits + (np.int64(1) << (shift - 1)) - 1 + ((bits >> shift) & 1)
    y = np.uint32((bits >> shift) << shift).view(np.float32)
    if code == 3:
        if abs(y) < np.float32(2.0**-30):
            return np.float32(0.0)
        if abs(y) >= np.float32(2.0**32):
            return np.float32(np.inf) if y > 0 else np.float32(-np.inf)
    return y


@kernel
def _round_all(x, out, code):  # type: ignore[no-untyped-def]
    """Round a flat array."""
    for i in range(x.size):
        out[i] = round_to(x[i], code)


@kernel
def _products(a, b, acc, parts, code, half):  # type: ignore[no-untyped-def]
    """Compute acc (m, n) += a (m, k) b (k, n), with k in `parts` pieces: one per core of the chain, the
    farthest first."""
    m, k = a.shape
    n = b.shape[1]
    piece = -(-k // parts)
    local = np.zeros(n, np.float32)
    for i in range(m):
        for part in range(parts - 1, -1, -1):
            local[:] = 0.0
            for p in range(part * piece, min(k, (part + 1) * piece)):
                for j in range(n):
                    s = local[j] + np.float32(a[i, p] * b[p, j])
                    local[j] = round_to(s, code) if half else s
            for j in range(n):
                s = acc[i, j] + local[j]
                acc[i, j] = round_to(s, code) if half else s


@kernel
def _row_reduce(x, out, parts, op):  # type: ignore[no-untyped-def]
    """Reduce rows of x (rows, cols) in fp32: each of `parts` cores reduces its columns, then a chain combines
    them."""
    rows, cols = x.shape
    piece = -(-cols // parts)
    for r in range(rows):
        total = np.float32(0.0)
        for part in range(parts - 1, -1, -1):
            first, last = part * piece, min(cols, (part + 1) * piece)
            if first >= last:
                continue
            local = x[r, first] * x[r, first] if op == 1 else x[r, first]
            for c in range(first + 1, last):
                v = x[r, c]
                if op == 0:
                    local += v
                elif op == 1:
                    local += v * v
                elif op == 2:
                    local = max(local, v)
                else:
                    local = min(local, v)
            if last == cols:
                total = local
            elif op < 2:
                total += local
            elif op == 2:
                total = max(total, local)
            else:
                total = min(total, local)
        out[r] = total


@kernel
def unary_value(x, fn):  # type: ignore[no-untyped-def]
    """Return a function of one element; `fn` is its index in UNARY."""
    if fn == 1:
        return max(x, 0.0)
    if fn == 2:
        return 0.5 * x * (1.0 + math.erf(x * 0.7071067811865476))
    if fn == 3:
        return 0.5 * x * (1.0 + math.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    if fn == 4:
        return x / (1.0 + math.exp(-x))
    if fn == 5:
        return math.tanh(x)
    if fn == 6:
        return 1.0 / (1.0 + math.exp(-x))
    if fn == 7:
        return math.exp(x)
    if fn == 8:
        return math.log(x) if x > 0 else -math.inf
    if fn == 9:
        return math.sqrt(x)
    if fn == 10:
        return 1.0 / math.sqrt(x)
    if fn == 11:
        return -x
    if fn == 12:
        return abs(x)
    if fn == 13:
        return x * x
    if fn == 14:
        return 1.0 / x
    if fn == 15:
        return math.erf(x)
    if fn == 16:
        return max(x, 0.0) + math.log(1.0 + math.exp(-abs(x)))
    if fn == 17:
        return math.sin(x)
    if fn == 18:
        return math.cos(x)
    return x


@kernel
def unary_slope(x, fn):  # type: ignore[no-untyped-def]
    """Return the derivative of an activation function (relu to sigmoid) at one element."""
    if fn == 1:
        return 1.0 if x > 0 else 0.0
    if fn == 2:
        return 0.5 * (1.0 + math.erf(x * 0.7071067811865476)) + x * 0.3989422804014327 * math.exp(
            -0.5 * x * x
        )
    if fn == 3:
        t = math.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))
        return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * 0.7978845608028654 * (1.0 + 0.134145 * x * x)
    if fn == 4:
        s = 1.0 / (1.0 + math.exp(-x))
        return s * (1.0 + x * (1.0 - s))
    if fn == 5:
        t = math.tanh(x)
        return 1.0 - t * t
    if fn == 6:
        s = 1.0 / (1.0 + math.exp(-x))
        return s * (1.0 - s)
    return 1.0


@kernel
def _unary_all(x, g, out, fn, code, slope):  # type: ignore[no-untyped-def]
    """Write fn(x), or g fn'(x), to `out`; flat arrays."""
    for i in range(x.size):
        y = g[i] * unary_slope(x[i], fn) if slope else unary_value(x[i], fn)
        out[i] = round_to(np.float32(y), code)


@kernel
def _binary_all(a, b, out, op, code):  # type: ignore[no-untyped-def]
    """Write a op b to `out`; flat arrays of equal length."""
    for i in range(out.size):
        u, v = a[i], b[i]
        if op == 0:
            y = u + v
        elif op == 1:
            y = u - v
        elif op == 2:
            y = u * v
        elif op == 3:
            y = u / v
        elif op == 4:
            y = max(u, v)
        elif op == 5:
            y = min(u, v)
        else:
            y = np.float32(math.pow(u, v))
        out[i] = round_to(np.float32(y), code)


@kernel
def _keep_all(out, seed, first, p):  # type: ignore[no-untyped-def]
    """Write a counter-based random mask: 1 / (1 - p) where element `first + i` is kept, else 0."""
    scale = np.float32(1.0 / (1.0 - p)) if p < 1.0 else np.float32(0.0)
    for i in range(out.size):
        z = np.uint64(seed + 1) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(first + i) * np.uint64(
            0xD1342543DE82EF95
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
        uniform = np.float64(z >> np.uint64(11)) * 2.0**-53
        out[i] = scale if uniform >= p else np.float32(0.0)


@kernel
def _scatter_all(out, ids, values):  # type: ignore[no-untyped-def]
    """Add values[r] to out[ids[r]] for every row r."""
    for r in range(ids.size):
        for c in range(values.shape[1]):
            out[ids[r], c] += values[r, c]


def code_of(dtype: str) -> int:
    """Return the code of a precision.

    Raises
    ------
    KernelError
        If the precision is unknown.
    """
    check_precision(dtype)
    return CODES[dtype]


def as_float(x: ArrayLike) -> Array:
    """Return a contiguous, writeable float32 array, so that numba compiles only once."""
    x = np.ascontiguousarray(x, dtype=np.float32)
    return x if x.flags.writeable else x.copy()


def rounded(x: ArrayLike, dtype: str) -> Array:
    """Return the array with every element rounded to a precision."""
    x, code = as_float(x), code_of(dtype)
    if code == FP32:
        return x
    out = np.empty_like(x)
    _round_all(x.reshape(-1), out.reshape(-1), code)
    return out


def quantised(weights: ArrayLike) -> tuple[Array, np.float32]:
    """Return symmetric int8 weights (as float32 integers), and the single scale of the matrix."""
    w = as_float(weights)
    scale = np.float32(max(float(np.abs(w).max(initial=0.0)), 1e-30) / 127.0)
    return np.rint(w / scale).astype(np.float32), scale


def matmul(a: ArrayLike, b: ArrayLike, dtype: str = "fp32", *, parts: int = 1, half: bool = False) -> Array:
    """Return a (..., m, k) times b (..., k, n), with k over `parts` cores; leading dimensions are independent
    products."""
    code = code_of(dtype)
    scale = np.float32(1.0)
    if dtype == "int8":
        b, scale = quantised(b)
    a, b = rounded(a, dtype), rounded(b, dtype)
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    left = np.broadcast_to(a, (*lead, *a.shape[-2:])).reshape(-1, *a.shape[-2:])
    right = np.broadcast_to(b, (*lead, *b.shape[-2:])).reshape(-1, *b.shape[-2:])
    acc = np.zeros((left.shape[0], a.shape[-2], b.shape[-1]), np.float32)
    for i in range(left.shape[0]):
        parts_here = max(1, min(parts, a.shape[-1]))
        _products(as_float(left[i]), as_float(right[i]), acc[i], parts_here, code, half)
    return rounded(acc.reshape(*lead, *acc.shape[1:]) * scale, dtype)


def row_reduce(x: ArrayLike, op: int, parts: int = 1) -> Array:
    """Reduce the last dimension in fp32, and keep it with length 1."""
    x = as_float(x)
    flat = x.reshape(-1, x.shape[-1])
    out = np.empty(flat.shape[0], np.float32)
    _row_reduce(flat, out, max(1, min(parts, x.shape[-1])), op)
    return out.reshape(*x.shape[:-1], 1)


def unary(fn: str, x: ArrayLike, dtype: str = "fp32") -> Array:
    """Return fn(x) for every element."""
    x = as_float(x)
    out = np.empty_like(x)
    _unary_all(x.reshape(-1), x.reshape(-1), out.reshape(-1), UNARY.index(fn), code_of(dtype), False)
    return out


def unary_gradient(fn: str, x: ArrayLike, g: ArrayLike, dtype: str = "fp32") -> Array:
    """Return g fn'(x) for every element."""
    x, g = as_float(x), as_float(g)
    out = np.empty_like(x)
    _unary_all(x.reshape(-1), g.reshape(-1), out.reshape(-1), UNARY.index(fn), code_of(dtype), True)
    return out


def binary(op: str, a: ArrayLike, b: ArrayLike, dtype: str = "fp32") -> Array:
    """Return a op b for every element, with broadcasting."""
    shape = np.broadcast_shapes(np.shape(a), np.shape(b))
    a, b = (as_float(np.broadcast_to(as_float(v), shape)) for v in (a, b))
    out = np.empty_like(a)
    _binary_all(a.reshape(-1), b.reshape(-1), out.reshape(-1), BINARY.index(op), code_of(dtype))
    return out


def keep_mask(shape: tuple[int, ...], p: float, seed: int) -> Array:
    """Return a scaled dropout mask, which depends on the seed but not on the tiling."""
    out = np.empty(shape, np.float32)
    _keep_all(out.reshape(-1), seed, 0, p)
    return out


def scatter_add(ids: ArrayLike, values: ArrayLike, rows: int) -> Array:
    """Return a table (rows, cols) with the rows of `values` (n, cols) summed by id."""
    values = as_float(values)
    out = np.zeros((rows, values.shape[-1]), np.float32)
    _scatter_all(out, np.ascontiguousarray(ids, np.int64).reshape(-1), values.reshape(-1, values.shape[-1]))
    return out
