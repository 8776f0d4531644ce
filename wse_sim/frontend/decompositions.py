"""Decomposes operators without a kernel by torch's rules.

An ATen operator that has no handler and is neither a view nor the root of a pattern is replaced by torch's
decomposition, repeatedly, until no such operator can be decomposed. Operators with a handler are not
decomposed. Most operators of linear algebra have no decomposition, so an error names the operator as the user
wrote it.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, cast

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch.export import ExportedProgram

from wse_sim.frontend import pairs
from wse_sim.frontend.classify_rows import known_operators
from wse_sim.frontend.cleanup import FREE
from wse_sim.frontend.linear_systems import SYSTEMS
from wse_sim.frontend.parts import NotBySortError, Table, by_sort
from wse_sim.frontend.patterns import PATTERNS
from wse_sim.frontend.trace import NO_WORK

MOST_ROUNDS = 6
"""Most rounds of decomposition; parts that are nested deeper are not decomposed."""
_WHOLE = (
    "linalg_",
    "cholesky",
    "lu_",
    "svd",
    "matrix_exp",
    "_sparse",
    "to_sparse",
    "to_dense",
)
_TAKEN_APART = frozenset(
    [
        "linalg_norm",
        "linalg_matrix_norm",
        "linalg_cross",
        "linalg_matrix_power",
        "linalg_multi_dot",
        "linalg_diagonal",
        "linalg_vander",
    ]
)
_aten = torch.ops.aten


def _distances(x: Tensor, y: Tensor, p: float, mode: int | None = None) -> Tensor:
    """Return the p-norms of x_i - y_j for all pairs of rows."""
    apart = (x.unsqueeze(-2) - y.unsqueeze(-3)).abs()
    if p == 0:
        return (apart != 0).to(x.dtype).sum(-1)
    if p == float("inf"):
        return apart.amax(-1)
    if p == 1:
        return apart.sum(-1)
    if p == 2:
        return (apart * apart).sum(-1).sqrt()
    return apart.pow(p).sum(-1).pow(1 / p)


def _places(boundaries: Tensor, values: Tensor, *, out_int32: bool = False, right: bool = False,
            side: str | None = None, sorter: Tensor | None = None) -> Tensor:  # fmt: skip
    """Return the number of boundaries below each value, or not above it if `right` is true."""
    if sorter is not None:
        boundaries = boundaries.gather(-1, sorter)
    row = boundaries.unsqueeze(-2)
    below = row <= values.unsqueeze(-1) if right or side == "right" else row < values.unsqueeze(-1)
    return below.sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


def _drawn(weights: Tensor, samples: int, replacement: bool = False, *, generator: object = None) -> Tensor:
    """Draw indices in proportion to weights, as torch does.

    The indices are those with the largest ratio of weight to an exponential random number. Drawing several
    with replacement is not supported.
    """
    if replacement and samples > 1:
        return NotImplemented
    scored = weights / -torch.rand_like(weights).log()
    return scored.topk(samples, -1)[1]


def _summed_products(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return beta * x + alpha * torch.bmm(a, b).sum(0)


def _on_diagonal(x: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Return x with its main diagonal replaced by src; other diagonals and non-square x are not supported."""
    if x.shape[dim1] != x.shape[dim2] or offset:
        return NotImplemented
    places = torch.ones_like(src, dtype=torch.bool)
    return torch.where(places.diag_embed(0, dim1, dim2), src.diag_embed(0, dim1, dim2), x)


def _is_whole(x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None) -> bool:
    """Return whether sizes and strides cover all elements of x in order."""
    steps = [prod(size[i + 1 :]) for i in range(len(size))]
    ordered = all(n == 1 or a == b for n, a, b in zip(size, stride, steps, strict=True))
    return ordered and not offset and prod(size) == x.numel()


def _whole(x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None) -> Tensor:
    return x.reshape(size) if _is_whole(x, size, stride, offset) else NotImplemented


def _strided_written(
    x: Tensor, src: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> Tensor:
    """Return x with src at the places that sizes and strides state; only for x with its elements in order."""
    if _is_whole(x, size, stride, offset):
        return src.reshape(x.shape)
    if not x.is_contiguous():
        return NotImplemented
    places = torch.full((1,), offset or 0, dtype=torch.long, device=x.device)
    for count, step in zip(size, stride, strict=True):
        places = (places.unsqueeze(-1) + step * torch.arange(count, device=x.device)).reshape(-1)
    return _put(x, places, src)


def _put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Return x with the elements of source at places that count the elements of x in order."""
    flat = x.reshape(-1)
    return flat.index_put((index.reshape(-1),), source.reshape(-1), accumulate).reshape(x.shape)


def _index_reduced(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Return x with the rows of source combined at their places along a dimension."""
    wide = [1] * source.dim()
    wide[dim] = -1
    places = index.view(wide).expand_as(source)
    return x.scatter_reduce(dim, places, source, reduce, include_self=include_self)


_How = tuple[Sequence[int], Sequence[int], Sequence[int], bool, Sequence[int], int, Sequence[bool]]


def _convolution_gradients(
    g: Tensor, x: Tensor, weight: Tensor, bias_sizes: Sequence[int] | None, *how: object
) -> tuple[Tensor | None, ...]:
    """Return the gradients of operand, weights and bias as convolutions.

    `how` are the arguments of ``aten.convolution_backward`` from the stride on. Transposed convolutions are
    not supported.
    """
    stride, padding, dilation, transposed, _, groups, wanted = cast(_How, how)
    if transposed:
        return NotImplemented
    spatial = range(2, x.dim())
    first = second = third = None
    if wanted[0]:
        reached = [
            (g.shape[d] - 1) * stride[d - 2]
            - 2 * padding[d - 2]
            + dilation[d - 2] * (weight.shape[d] - 1)
            + 1
            for d in spatial
        ]
        more = [x.shape[d] - n for d, n in zip(spatial, reached, strict=True)]
        first = _aten.convolution(g, weight, None, stride, padding, dilation, True, more, groups)
    if wanted[1]:
        parts = []
        for a, b in zip(x.chunk(groups, 1), g.chunk(groups, 1), strict=True):
            met = _operand_by_gradient(a, b, stride, padding, dilation)
            for d in spatial:
                met = met.narrow(d, 0, weight.shape[d])
            parts.append(met.transpose(0, 1))
        second = torch.cat(parts)
    if wanted[2]:
        third = g.sum((0, *spatial))
    return first, second, third


def _operand_by_gradient(
    x: Tensor, g: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    """Return the convolution of x with the gradient that is the gradient of the weights.

    Channels and samples change places, and stride and dilation change places.
    """
    x, g = x.transpose(0, 1), g.transpose(0, 1)
    return _aten.convolution(x, g, None, dilation, padding, stride, False, [0] * len(stride), 1)


def _by_cholesky(y: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    """Solve two triangular systems, with a Cholesky factor and with its transpose."""
    half = torch.linalg.solve_triangular(factor.mT if upper else factor, y, upper=False)
    return torch.linalg.solve_triangular(factor if upper else factor.mT, half, upper=True)


_OWN: dict[OpOverload, Callable[..., Any]] = {
    _aten.diagonal_scatter.default: _on_diagonal,
    _aten.as_strided.default: _whole,
    _aten.as_strided_scatter.default: _strided_written,
    _aten.put.default: _put,
    _aten.index_reduce.default: _index_reduced,
    _aten.convolution_backward.default: _convolution_gradients,
    _aten._cdist_forward.default: _distances,
    _aten.searchsorted.Tensor: _places,
    _aten.multinomial.default: _drawn,
    _aten.addbmm.default: _summed_products,
    _aten.cholesky_solve.default: _by_cholesky,
}


def decomposed(program: ExportedProgram, name_of: Callable[[OpOverload], str]) -> ExportedProgram:
    """Return a program with unknown operators decomposed; `name_of` returns an operator's name."""
    known = {
        *known_operators(),
        *NO_WORK,
        *FREE,
        *pairs.FREE,
        *(root for pattern in PATTERNS for root in pattern.roots),
    }
    for _ in range(MOST_ROUNDS):
        unknown = _unknown(program, known, name_of)
        table = {
            target: found for target in unknown if (found := _parts_of(target, name_of(target))) is not None
        }
        if not table:
            break
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                program = _taken_apart(program, table, is_all=len(table) == len(unknown))
            except Exception:  # of any type: a decomposition may reject these operands
                break  # lowering then raises an error that names the operator
    return program


def _taken_apart(program: ExportedProgram, table: Table, *, is_all: bool) -> ExportedProgram:
    """Return the program with the operators in `table` decomposed.

    Unless `table` has all unknown operators (`is_all`), torch traces the program again, which also decomposes
    operators without an entry that are composites of others (``real``).
    """
    if is_all:
        with contextlib.suppress(NotBySortError):
            return by_sort(program, table)
    return program.run_decompositions(cast(Any, table))


def _unknown(
    program: ExportedProgram, known: set[str], name_of: Callable[[OpOverload], str]
) -> list[OpOverload]:
    """Return the ATen operators without a handler, among those that depend on inputs, weights or buffers."""
    kinds = {spec.arg.name: spec.kind.name for spec in program.graph_signature.input_specs}
    live: set[torch.fx.Node] = set()
    found: dict[OpOverload, None] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder" and kinds.get(node.name) != "CONSTANT_TENSOR":
            live.add(node)
        if node.op != "call_function" or live.isdisjoint(node.all_input_nodes):
            continue
        live.add(node)
        if (
            isinstance(node.target, OpOverload)
            and node.target.namespace == "aten"
            and not node.target._schema.is_mutable  # a functional program changes only counters in place
            and name_of(node.target) not in known
        ):
            found[node.target] = None
    return list(found)


def _parts_of(target: OpOverload, name: str) -> Callable[..., Any] | None:
    """Return the decomposition of an operator; None if there is none."""
    if target in _OWN:
        return _OWN[target]
    if name in SYSTEMS or (name.startswith(_WHOLE) and name not in _TAKEN_APART):
        return None
    if target in decomposition_table:
        return decomposition_table[target]
    whole = torch.export.default_decompositions()
    return whole[target] if target in whole else None  # noqa: SIM401 - a table without get()
