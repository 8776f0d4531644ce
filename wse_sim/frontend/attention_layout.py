"""Attributes of an attention kernel that describe the layout of its operands and the factor of its scores.

Views cost nothing on the machine, so a graph leaves them out. Code that computes values has to know the
position of each feature. This module applies the views to element numbers. With B samples of T tokens, H
heads of d features, token (b, t) in row r(b, t) of a tensor, and P parts in that tensor (P = 3 if queries,
keys and values are slices of one tensor, else 1), part p has the usual layout if::

    element (b, h, t, i) = r(b, t) P H d + p H d + h d + i        r = b T + t  or  t B + b
"""

from __future__ import annotations

from itertools import pairwise
from math import isclose, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wse_sim.frontend.trace import VIEWS, Argument, Node, Trace
from wse_sim.graph import Attr

Elements = NDArray[np.int32]
MOST_ELEMENTS = 2**20
"""Largest tensor that is analysed (a few milliseconds); larger ones get no layout attribute."""

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

    `scale` is the factor of the scores if it is not 1 / sqrt(d); `packed` is true if queries, keys and values
    are parts of one tensor in the usual layout; `unusual` is "order" for another layout, or "scores" if the
    scores pass through more than a factor and a mask.
    """
    scale, usual = node.kwargs.get("scale"), 1 / sqrt(dims["d"])
    attrs: dict[str, Attr] = {}
    if isinstance(scale, (int, float)) and not isclose(scale, usual, rel_tol=1e-6):
        attrs["scale"] = float(scale)
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
    if dims["kv"] != t or dims.get("kv_heads", heads) != heads or size > MOST_ELEMENTS:
        return None
    taken = []
    for place, operand in enumerate(node.args[:3]):
        base, part = trace.base(operand), elements_of(trace, operand)
        if base is None or part is None or (base.elements, base.shape[-1]) != (size, row):
            return None
        if part.size != size // parts:
            return None
        if place == 1 and node.op == "wse.attention":  # its keys are transposed, as a right factor
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
    if node is None:
        return None
    seen: Elements = np.arange(node.elements, dtype=np.int32).reshape(node.shape)
    for view, part in reversed(views):
        found = _pieces(seen, view)[part] if view.op in _CUT else _viewed(seen, view)
        if found is None:
            return None
        seen = found
    return seen


def _pieces(seen: Elements, node: Node) -> list[Elements]:
    if node.op == "unbind":
        return list(np.moveaxis(seen, node.arg(1, "dim", 0), 0))
    axis = node.arg(2, "dim", 0)
    ends = np.cumsum([0, *(shape[axis] for shape in node.shapes)])
    return [seen.take(range(first, last), axis) for first, last in pairwise(ends)]


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
    if node.op == "permute":
        return seen.transpose(args[1])
    if node.op == "select":
        return seen.take(args[2], axis=args[1])
    if node.op == "slice":
        axis = node.arg(1, "dim", 0) % seen.ndim
        cut = slice(node.arg(2, "start"), node.arg(3, "end"), node.arg(4, "step", 1))
        return seen[(slice(None),) * axis + (cut,)]
    if node.op in ("expand", "expand_as") and seen.shape == node.shape:
        return seen
    return None
