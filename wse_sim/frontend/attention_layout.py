"""Attributes of an attention kernel that describe the layout of its operands and the factor of its scores.

Views cost nothing on the machine, so a graph leaves them out. Code that computes values has to know the
position of each feature. This module applies the views to element numbers. With B samples of T tokens, H
heads of d features, token (b, t) in row r(b, t) of a tensor, and P parts in that tensor (P = 3 if queries,
keys and values are slices of one tensor, else 1), part p has the usual layout if::

    element (b, h, t, i) = r(b, t) P H d + p H d + h d + i        r = b T + t  or  t B + b
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import isclose, prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wse_sim.frontend.trace import VIEWS, Argument, Node, Trace
from wse_sim.graph import Attr

ATTENTION = ("scaled_dot_product_attention", "wse.attention")
HEAD_AXES = 4  # samples, heads and tokens in either order, features of a head
Elements = NDArray[np.integer]
MOST_ELEMENTS = 2**20
"""Largest tensor whose element numbers are compared where a reshape copies (a few milliseconds); larger ones get
no layout attribute then."""

_SAME = frozenset(
    ["alias", "detach", "contiguous", "clone", "lift_fresh", "lift_fresh_copy", "positive", "dropout_off", "no_op_cast"]
)  # fmt: skip
_RESHAPED = frozenset(
    ["view", "reshape", "unsqueeze", "squeeze", "flatten", "unflatten", "_unsafe_view", "reshape_as", "_reshape_alias"]
)  # fmt: skip
SAME_ORDER = _SAME | _RESHAPED
"""Views whose elements keep their order."""
_SWAPPED = frozenset(["transpose", "swapaxes", "swapdims"])
_CUT = frozenset(["split", "split_with_sizes", "chunk", "unbind"])


def stated(trace: Trace, node: Node, dims: dict[str, int]) -> dict[str, Attr]:
    """Return the attributes of an attention kernel that differ from the usual; `dims` are its dimensions.

    `scale` is the factor of the scores if it is not 1 / sqrt(d); `cap` is their bound, if they have one; `packed` is true if queries, keys and values
    are parts of one tensor in the usual layout; `unusual` is "order" for another layout, or "scores" if the
    scores pass through more than a factor and a mask.
    """
    scale, usual = node.kwargs.get("scale"), 1 / sqrt(dims["d"])
    attrs: dict[str, Attr] = {}
    if isinstance(scale, (int, float)) and not isclose(scale, usual, rel_tol=1e-6):
        attrs["scale"] = float(scale)
    if cap := node.kwargs.get("cap"):
        attrs["cap"] = float(cap)  # type: ignore[arg-type]
    if node.kwargs.get("reshaped", False):
        attrs["unusual"] = "scores"
    bases = [trace.base(operand) for operand in node.args[:3]]
    one = bases[0] is not None and all(base is bases[0] for base in bases)
    lies = _lies(trace, node, dims, 3 if one else 1)
    if lies and one:
        attrs["packed"] = True
    elif lies is False and not one:
        attrs["unusual"] = "order"
    return attrs


def _lies(trace: Trace, node: Node, dims: dict[str, int], parts: int) -> bool | None:
    """Return whether queries, keys and values have the usual layout; None if that is not analysed."""
    b, heads, t, d = (dims[name] for name in ("b", "heads", "q", "d"))
    row, size = parts * heads * d, parts * b * t * heads * d
    if dims["kv"] != t or dims.get("kv_heads", heads) != heads:
        return None
    for operand in node.args[:3]:
        base = trace.base(operand)
        if base is None or (base.elements, base.shape[-1]) != (size, row):
            return None
    shape = b, heads, t, d
    found = _strides(trace, node, shape)
    if found is not None:
        offsets = [part * heads * d for part in range(parts)] if parts > 1 else 3 * [0]
        orders = (t * row, d, row, 1), (row, d, b * row, 1)  # by sample, by token
        return any(
            all(
                _same(strides, order, shape) and first == offset
                for (first, strides), offset in zip(found, offsets, strict=True)
            )
            for order in orders
        )
    return _compared(trace, node, dims, parts) if size <= MOST_ELEMENTS else None


def _same(strides: Sequence[int], others: Sequence[int], shape: Sequence[int]) -> bool:
    """Return whether strides are equal on all axes with more than one element."""
    return all(one == other for one, other, size in zip(strides, others, shape, strict=True) if size > 1)


def _strides(trace: Trace, node: Node, shape: tuple[int, ...]) -> list[tuple[int, tuple[int, ...]]] | None:
    """Return the first element and the strides of queries, keys and values as (B, H, T, d), in their base tensors;
    None if a reshape copies.

    The views are applied to arrays whose memory is never touched.
    """
    out = []
    for place, operand in enumerate(node.args[:3]):
        base = trace.base(operand)
        whole: Elements = np.empty(0 if base is None else base.elements, np.int8)
        part = viewed(trace, operand, whole)
        if part is None or part.size != prod(shape):
            return None
        if place == 1 and node.op == "wse.attention":  # its keys are transposed, as a right factor
            part = part.swapaxes(-1, -2)
        part = part.reshape(shape)
        if not np.may_share_memory(part, whole):
            return None
        first = part.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        out.append((first, part.strides))
    return out


def _compared(trace: Trace, node: Node, dims: dict[str, int], parts: int) -> bool | None:
    """Return the same by the numbers of all elements."""
    b, heads, t, d = (dims[name] for name in ("b", "heads", "q", "d"))
    size, taken = parts * b * t * heads * d, []
    for place, operand in enumerate(node.args[:3]):
        part = elements_of(trace, operand)
        if part is None or part.size != size // parts:
            return None
        if place == 1 and node.op == "wse.attention":
            part = part.swapaxes(-1, -2)
        taken.append(part.reshape(b, heads, t, d))
    numbers = np.arange(size, dtype=np.int32)
    by_sample = numbers.reshape(b, t, parts, heads, d).transpose(2, 0, 3, 1, 4)
    by_token = numbers.reshape(t, b, parts, heads, d).transpose(2, 1, 3, 0, 4)
    found = np.stack(taken)
    return any(bool((found == usual).all()) for usual in (by_sample, by_token))


def elements_of(trace: Trace, ref: Argument) -> Elements | None:
    """Return the element numbers of a value in the tensor that it is a view of, in the shape of the value.

    Return None if a view is not supported here.
    """
    node = trace.base(ref)
    return None if node is None else viewed(trace, ref, np.arange(node.elements, dtype=np.int32))


def viewed(trace: Trace, ref: Argument, whole: Elements) -> Elements | None:
    """Apply the views of a value to the flat elements of the tensor that it is a view of."""
    node = trace.node(ref)
    views: list[tuple[Node, int]] = []  # a view and the number of its piece
    while node is not None and node.kind == "call" and node.op in VIEWS:
        part = node.args[1] if node.op == "getitem" else 0
        if node.op == "getitem":
            node = trace.node(node.args[0])
            if node is None or node.op not in _CUT:
                return None
        views.append((node, part))
        node = trace.node(node.args[0])
    if node is None or node.elements != whole.size:
        return None
    seen: Elements = whole.reshape(node.shape)
    for view, part in reversed(views):
        found = _pieces(seen, view)[part] if view.op in _CUT else _viewed(seen, view)
        if found is None:
            return None
        seen = found
    return seen


def _pieces(seen: Elements, node: Node) -> list[Elements]:
    if node.op == "unbind":
        return list(np.moveaxis(seen, node.arg(1, "dim", 0), 0))
    axis = node.arg(2, "dim", 0) % seen.ndim
    ends = np.cumsum([0, *(shape[axis] for shape in node.shapes)])
    return [seen[(slice(None),) * axis + (slice(first, last),)] for first, last in pairwise(ends)]


def _viewed(seen: Elements, node: Node) -> Elements | None:
    """Apply one view to the element numbers of a value."""
    args: tuple[Any, ...] = node.args
    if node.op in _SAME:
        return seen
    if node.op in _RESHAPED and seen.size == node.elements:
        return seen.reshape(node.shape)
    if node.op in _SWAPPED:
        return seen.swapaxes(args[1], args[2])
    if node.op in ("t", "mT") and seen.ndim > 1:
        return seen.swapaxes(-1, -2)
    if node.op == "numpy_T":
        return seen.T
    if node.op == "movedim":
        return np.moveaxis(seen, args[1], args[2])
    if node.op == "permute":
        return seen.transpose(args[1])
    if node.op == "select":
        return seen[(slice(None),) * (args[1] % seen.ndim) + (args[2],)]
    if node.op == "slice":
        axis = node.arg(1, "dim", 0) % seen.ndim
        cut = slice(node.arg(2, "start"), node.arg(3, "end"), node.arg(4, "step", 1))
        return seen[(slice(None),) * axis + (cut,)]
    if node.op in ("expand", "expand_as", "broadcast_to") and seen.shape == node.shape:
        return seen
    return None
