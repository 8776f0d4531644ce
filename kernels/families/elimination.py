"""Direct solution of linear systems: `b` matrices of n x n with r right-hand columns, by elimination in order.

Mapping: a matrix on one core, p = ceil(b / cores) of them in sequence, or on q x q cores with its rows and columns in
rotation, e(x) = ceil(x / q).  Step k eliminates the m = n - k - 1 numbers below a pivot from rows of i = m + r numbers;
substitution then goes back over k rows.  I_v(x) = cycles of one element of a map around a product of x numbers::

    pivot           T = 2 o + reciprocal + 1
    elimination     T = 3 o + e(m) / mul + e(i) / mov + e(m) I_v(e(i))
    substitution    T = 3 o + 2 e(r) / mul + e(k) I_v(e(r))
    over q cores    T = w(max(e(m), e(i))) + 2 (q hop + handover) in elimination, w(e(r)) + ... in substitution

`kind`: "solve"; "triangular": without elimination; "cholesky": columns are divided by the roots of their pivots, both
triangles are computed.  Without r there is no substitution, as for a determinant.  The fastest q is used.

Pivots are taken in order: no row is searched for or moved, as LAPACK's and torch's programs do.  FLOPs are 0, as in
torch's counter.  The program is a matrix per core; only the equations of multicast support the cost of q > 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.fabric.format.builder import Buffer, scalar
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.fabric.format.program import Fn
from wse_sim.graph import Kernel, Tensor, frozen
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.lines import new_builder
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.equations import (
    bytes_of,
    ceil_div,
    ceil_rate,
    fill_cycles,
    fma_rate,
    mov_rate,
    per_core,
    words,
)
from wse_sim.kernels.contract.family import (
    Array,
    Attrs,
    Case,
    Cost,
    Dims,
    Family,
    Flow,
    Footprint,
    How,
    Kept,
    ProgramOptions,
    Role,
    Size,
    Tiling,
)
from wse_sim.kernels.contract.parameters import Attributes, attribute, sizes
from wse_sim.kernels.contract.registry import register
from wse_sim.kernels.contract.tape import DATA, WEIGHT, Tape

KINDS = ("solve", "triangular", "cholesky")


@dataclass(frozen=True)
class EliminationAttributes(Attributes):
    """Attributes of a direct solution."""

    kind: str = attribute("solve", "what is computed", choices=KINDS)


class Elimination(Family):
    """The family of direct solutions of linear systems."""

    name = "elimination"
    role = Role.MIXER
    cheaper = "solve smaller systems, or iterate with products"
    dims = sizes(b="matrices", n="rows and columns of a matrix")
    more_dims = sizes(r="right-hand columns")
    mappings = ("stationary", "streamed")
    lies = "a matrix on each core, or on a square of cores"
    programs = "a matrix per core, forward"
    bands = "3 %"
    sums_rows = True
    attributes = EliminationAttributes
    flows = Flow(is_barrier=True)  # the first result needs all numbers of a matrix

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Return the bytes of matrices with their right-hand columns, pivots and factors, and of code."""
        dtype = self.asked(tiling, how).dtype
        n, wide = int(dims["n"]), _pitch(dims, wafer)
        numbers = per_core(dims["b"] * n * wide, tiling)
        beside = 2.0 * n + wide + wafer.fp32_bank_period_words
        return Footprint(
            buffers_bytes=(numbers + np.minimum(numbers, beside)) * bytes_of(dtype),
            code_bytes=wafer.kernel_code_bytes,
        )

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost on the fastest number of cores per matrix."""
        _, dtype, attrs = self.asked(tiling, how)
        kind, cores = EliminationAttributes.of(attrs).kind, tiling.rows * tiling.cols
        b, n, r = dims["b"], int(dims["n"]), int(dims.get("r", 0))
        fits = np.where(_fits(dims, wafer, dtype), 0.0, np.inf)
        best = ceil_div(b, cores) * steps_cost(n, r, 1, kind, wafer, dtype) + Cost(idle=0.0 * cores + fits)
        q = 2
        while q <= n:
            fits = np.where(b * q * q <= cores, 0.0, np.inf)
            best = best.or_faster(steps_cost(n, r, q, kind, wafer, dtype) + Cost(idle=fits))
            q *= 2
        if tiling.mapping == "stationary":
            best = best + Cost(idle=fill_cycles(tiling.rows, tiling.cols, wafer))
        return best

    def compute(self, x: Array, y: Array | None = None, *, kind: str = "solve", dtype: str = "fp32") -> Array:
        """Return x^-1 y of matrices (..., n, n) and right-hand sides (..., n, r); the lower factor of "cholesky"; or,
        without `y`, the eliminated matrices."""
        given = [core.rounded(one, dtype) for one in (x, y) if one is not None]
        m = np.concatenate(given, -1).astype(np.float32)
        n = x.shape[-1]
        for k in range(n if kind != "triangular" else 0):
            inverse = -1 / m[..., k, k, None]
            if kind == "cholesky":
                m[..., k:, k] *= 1 / np.sqrt(m[..., k, k, None])
                m[..., k + 1 :, k + 1 :] -= m[..., k + 1 :, k, None] * m[..., None, k + 1 :, k]
            else:
                factors = m[..., k + 1 :, k] * inverse
                m[..., k + 1 :, k + 1 :] += factors[..., None] * m[..., k, None, k + 1 :]
        if kind == "cholesky":
            return core.rounded(np.tril(m), dtype)
        if y is None:
            return core.rounded(m, dtype)
        for k in reversed(range(n)):
            m[..., k, n:] /= m[..., k, k, None]
            m[..., :k, n:] -= m[..., :k, k, None] * m[..., k, None, n:]
        return core.rounded(m[..., n:], dtype)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return the program of a matrix per core, with its right-hand columns behind its rows.

        Raises
        ------
        KernelError
            For more than one matrix per core, or matrices that a core has no room for.
        """
        _, dtype, attrs = self.asked(tiling, options, "fp32")
        b, n, r = (int(dims.get(name, 0)) for name in "bnr")
        rows, cols, kind = int(tiling.rows), int(tiling.cols), EliminationAttributes.of(attrs).kind
        if b > rows * cols or not _fits(dims, wafer, dtype):
            raise KernelError(
                f"elimination: {b} matrices of {n} x {n} with {r} columns on {rows} x {cols} cores have no fabric program; "
                "use a matrix per core that it has room for, or --timing model"
            )
        builder, wide = new_builder(rows, cols, wafer), _pitch(dims, wafer)
        period = int(wafer.fp32_bank_period_words)
        matrix = builder.buffer("matrix", n * wide, dtype, bank=0)
        pivots, factors, row = (
            builder.buffer(name, size, dtype, bank=bank)
            for name, size, bank in (("pivots", n, 2), ("factors", n, 4), ("row", wide + period, 6))
        )
        k = builder.core_class("core")
        emit_steps(k, (matrix, pivots, factors, row), n, r, kind, dtype, period)
        builder.place(k, None)
        rng = np.random.default_rng(int(options.get("seed", 0)))
        drawn, right = rng.standard_normal((rows, cols, n, n)), rng.standard_normal((rows, cols, n, r))
        drawn = drawn @ drawn.swapaxes(-1, -2) / n + 2 * np.eye(n)  # every pivot is positive
        x, y = (core.rounded(one.astype(np.float32), dtype) for one in (drawn, right))
        given = np.zeros((rows, cols, n, wide), np.float32)
        given[..., :n], given[..., n : n + r] = np.triu(x) if kind == "triangular" else x, y
        expected = np.full(given.shape, np.nan, np.float32)
        if kind == "cholesky":
            lower = np.tril_indices(n)
            expected[:, :, *lower] = self.compute(x, kind=kind, dtype=dtype)[:, :, *lower]
        elif r:
            expected[..., n : n + r] = self.compute(
                np.triu(x) if kind == "triangular" else x, y, kind=kind, dtype=dtype
            )
        else:
            expected[..., *np.triu_indices(n)] = self.compute(x, dtype=dtype)[..., *np.triu_indices(n)]
        return Case(
            builder.build(),
            builder.config,
            {"matrix": given.reshape(rows, cols, -1)},
            {"matrix": expected.reshape(rows, cols, -1)},
            tolerance=1e-4 if dtype == "fp32" else 0.1,
        )

    def keeps(self, kernel: Kernel, trained: frozenset[str], tensors: Mapping[str, Tensor]) -> Kept:
        """Return the matrix, which is solved again, and the result, which products need; an inverse and a Cholesky factor
        need the result only, a determinant the matrix only."""
        matrix, right = _operands(kernel, tensors)
        is_factor = EliminationAttributes.of(kernel.attrs).kind == "cholesky"
        needs_result = is_factor or "r" in kernel.dims
        needs_matrix = right is not None or not needs_result
        kept = (matrix,) * (needs_matrix and matrix in kernel.inputs)
        return Kept((*kept, *(kernel.outputs if needs_result else ())))

    def gradients(self, kernel: Kernel, gradient: str, tape: Tape) -> None:
        """Emit the solution with the transposed matrix, and the products with the result.

        Of an inverse X two products, X^T g X^T; of a determinant the transposed inverse; of a Cholesky factor L a product
        L^T g and two triangular solutions.
        """
        matrix, right = _operands(kernel, tape.tensors)
        (result,), dims = kernel.outputs, kernel.dims
        kind = EliminationAttributes.of(kernel.attrs).kind
        emit = _Emitted(kernel, tape)
        if kind == "cholesky":
            if matrix in tape.wanted:
                product = emit.product("dl", (result, gradient), result)
                half = emit.solution("dh", (product, result), result, "triangular")
                emit.solution("dx", (half, result), matrix, "triangular")
        elif right is not None:
            if tape.wanted & {matrix, right}:
                found = emit.solution("dy", (gradient, matrix), right, kind)
                if matrix in tape.wanted:
                    emit.product("dx", (found, result), matrix)
        elif matrix in tape.wanted and "r" in dims:
            half = emit.product("dh", (result, gradient), result)
            emit.product("dx", (half, result), matrix)
        elif matrix in tape.wanted:
            emit.solution("dx", (gradient, matrix), matrix, kind)


def _operands(kernel: Kernel, tensors: Mapping[str, Tensor]) -> tuple[str, str | None]:
    """Return the matrix, which is square, and the right-hand side, if there is one."""
    given = [*kernel.inputs, *kernel.parameters]
    n = kernel.dims["n"]
    matrix = next((name for name in given if tensors[name].shape[-2:] == (n, n)), given[0])
    return matrix, next((name for name in given if name != matrix), None)


@dataclass(frozen=True)
class _Emitted:
    """Writes the gradient kernels of a solution."""

    kernel: Kernel
    tape: Tape

    def product(self, suffix: str, given: tuple[str, ...], target: str) -> str:
        """Write a product of a gradient with the result, and return its result, a gradient of `target`."""
        own = self.kernel.dims
        dims = frozen(b=own["b"], m=own["n"], k=own.get("r", own["n"]), n=own["n"])
        sample = "k" if self.kernel.sample_dim == "r" else self.kernel.sample_dim
        return self._kernel(suffix, given, target, "batch_gemm", dims, frozen(), sample)

    def solution(self, suffix: str, given: tuple[str, ...], target: str, kind: str) -> str:
        """Write a solution with the transposed matrix, and return its result, a gradient of `target`."""
        dims = frozen({"r": self.kernel.dims["n"], **self.kernel.dims})
        return self._kernel(
            suffix, given, target, "elimination", dims, frozen(kind=kind), self.kernel.sample_dim
        )

    def _kernel(
        self,
        suffix: str,
        given: tuple[str, ...],
        target: str,
        of: str,
        dims: Dims,
        attrs: Attrs,
        sample: str | None,
    ) -> str:
        tape, weights = self.tape, self.kernel.parameters
        if target not in tape.wanted or target in self.kernel.outputs:
            made = tape.gradient(target)  # between two kernels
        else:
            made = tape.give_weight(target) if target in weights else tape.give(target)
        tape.emit(
            self.kernel,
            suffix,
            WEIGHT if target in weights else DATA,
            tuple(name for name in given if name not in weights),
            (made,),
            family=of,
            dims=dims,
            attrs=attrs,
            sample_dim=sample,
            parameters=tuple(name for name in given if name in weights),
        )
        return made


def _pitch(dims: Dims, wafer: Wafer) -> int:
    return pitch_of(int(dims["n"]), int(dims.get("r", 0)), int(wafer.fp32_bank_period_words))


def _fits(dims: Dims, wafer: Wafer, dtype: str) -> bool:
    """Return whether a core has room for a matrix with its right-hand columns, pivots, factors and a row."""
    n, wide = int(dims["n"]), _pitch(dims, wafer)
    held = (n * wide + 2 * n + wide + wafer.fp32_bank_period_words) * bytes_of(dtype)
    return bool(held + wafer.kernel_code_bytes <= wafer.sram_usable_bytes)


def pitch_of(n: int, r: int, period: int) -> int:
    """Return the elements from a row of the matrix and its right-hand columns to the next one, which begins in the same
    bank: `period` words of fp32 later the banks are the same."""
    return period * int(ceil_div(n + r, period))


def steps_cost(n: int, r: int, q: int, kind: str, wafer: Wafer, dtype: str) -> Cost:
    """Return the cost of a matrix on q x q cores."""
    o, moves = wafer.vector_start_cycles, mov_rate(dtype, wafer)
    products = fma_rate(dtype, wafer, "fp16")
    k = np.arange(n)
    m, behind = ceil_div(n - 1 - k, q), ceil_div(r, q)
    inner = m if kind == "cholesky" else ceil_div(n - 1 - k + r, q)
    apart = 2 * (q * wafer.hop_cycles + wafer.handover_cycles) * (q > 1)
    pivot = wafer.divide_cycles + (wafer.sqrt_cycles if kind == "cholesky" else 0.0)
    total = Cost(special=n * pivot, compute=1.0 * n, startup=2.0 * o * n)

    def mapped(elements: Size, inner: Size) -> float:
        each = wafer.map_element_cycles + wafer.map_vector_cycles * (np.asarray(inner) > 1)
        return float(np.sum(elements * (each + ceil_rate(inner, products)) * (np.asarray(inner) > 0)))

    if kind == "cholesky":  # the column of the pivot is scaled, and moved back
        columns = ceil_rate(m + 1, products) + ceil_rate(m + 1, moves)
        total = total + Cost(compute=float(np.sum(columns)) - n, startup=o * n)
    if kind != "triangular":
        row = 0 if kind == "cholesky" else ceil_rate(inner, moves) * (m > 0)
        sent = np.sum(np.maximum(words(m, dtype), words(inner, dtype))) * wafer.wavelet_cycles * (q > 1)
        compute = float(np.sum(row + ceil_rate(m, products))) + mapped(m, inner)
        starts = (2 if kind == "cholesky" else 3) * (n - 1)
        total = total + Cost(compute=compute, startup=o * starts, fabric=float(sent), idle=n * apart)
    if r and kind != "cholesky":
        compute = 2 * n * float(ceil_rate(behind, products)) + mapped(ceil_div(k, q), behind)
        sent = n * words(behind, dtype) * wafer.wavelet_cycles * (q > 1)
        total = total + Cost(compute=compute, startup=o * (3 * n - 1), fabric=float(sent), idle=n * apart)
    return total


def emit_steps(
    k: CoreClass, buffers: Sequence[Buffer], n: int, r: int, kind: str, dtype: str, period: int
) -> None:
    """Write elimination and substitution on a matrix, with negative reciprocals of its pivots.

    The row of the pivot is copied so that its words are in other banks than those of the rows that change.
    """
    matrix, pivots, factors, row = buffers
    wide = pitch_of(n, r, period)

    def at(line: int, col: int, length: int, stride: int = 1) -> Operand:
        return matrix.dsd(line * wide + col, length, stride)

    for i in range(n):
        m, pivot = n - 1 - i, pivots.dsd(i, 1)
        inner = m if kind == "cholesky" else m + r
        k.map(Fn.RSQRT if kind == "cholesky" else Fn.RECIPROCAL, pivot, at(i, i, 1), dtype=dtype)
        if kind == "cholesky":
            k.mul(row.dsd(i % period, m + 1), at(i, i, m + 1, wide), pivots.dsd(i, m + 1, 0), dtype=dtype)
            k.mov(at(i, i, m + 1, wide), row.dsd(i % period, m + 1), dtype=dtype)
        else:
            k.mul(pivot, pivot, scalar(-1.0), dtype=dtype)
        if not m or kind == "triangular":
            continue
        given = scalar(-1.0) if kind == "cholesky" else pivots.dsd(i, m, 0)
        k.mul(factors.dsd(0, m), at(i + 1, i, m, wide), given, dtype=dtype)
        held = row.dsd(i % period + 1, inner)
        if kind != "cholesky":
            k.mov(held, at(i, i + 1, inner), dtype=dtype)
        k.fmac_vectors(at(i + 1, i + 1, inner), factors.dsd(0, m), held, inner, dst_stride=wide, dtype=dtype)
    for i in reversed(range(n if r and kind != "cholesky" else 0)):
        held = row.dsd(n % period, r)
        k.mul(held, at(i, n, r), pivots.dsd(i, r, 0), dtype=dtype)
        if i:
            k.fmac_vectors(at(0, n, r), at(0, i, i, wide), held, r, dst_stride=wide, dtype=dtype)
        k.mul(at(i, n, r), held, scalar(-1.0), dtype=dtype)


FAMILY = register(Elimination())
