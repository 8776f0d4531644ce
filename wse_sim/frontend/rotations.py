"""How rotations of positions pair the features of a head, and which features attention and rotations take head by head.

With T tokens of W features, a value (B, H, T, d) or (B, T, H, d) takes features ``first`` to ``first + H d`` head by head if::

    element (b, h, t, i) = (b T + t) W + first + h d + i

Heads may also be apart, as in a product that makes queries, keys and values head by head. The views are applied to arrays whose memory is never touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wse_sim.frontend.attention_layout import ATTENTION, HEAD_AXES, MOST_ELEMENTS, Elements, viewed
from wse_sim.frontend.trace import Argument, Node, NodeRef, Trace
from wse_sim.graph.access import Runs, runs_of

ROTARY = "wse.rotary"
NORMS = ("rms_norm", "layer_norm", "native_layer_norm", "_fused_rms_norm", "wse.rms_norm", "wse.layer_norm")
SWAPS = ("transpose", "swapaxes", "swapdims")
OF_HEADS = (ROTARY, *NORMS)
"""Operators that work on every head of a token by itself, if their operand has a dimension of heads."""
_CUTS = ("slice", "split", "split_with_sizes", "chunk")
TABLES = (".cos", ".sin")
"""Suffixes of the name of a rotation: its cosines and sines."""
NEIGHBOURS = 2  # features of a block
Taken = tuple[str, int, int]


def block_of(trace: Trace, value: Argument, turned: Node, tables: tuple[Argument, ...]) -> int:
    """Return the features of a block of `value` whose halves (x1, x2) become (-x2, x1) in ``turned``, a concatenation or a
    stack: all for halves of heads, 2 for neighbours; 0 if it does something else, or if the `tables` depend on inputs."""
    parts = turned.args[0] if turned.args else ()
    if not isinstance(parts, tuple) or len(parts) != 2 or any(_is_dynamic(trace, one) for one in tables):
        return 0
    first, base = trace.node(parts[0]), trace.base(value)
    rank = len(turned.shape)
    if first is None or first.op != "neg" or base is None or turned.arg(1, "dim", 0) not in (-1, rank - 1):
        return 0
    whole: Elements = np.empty(base.elements, np.int8)
    x, negated, plain = (viewed(trace, one, whole) for one in (value, first.args[0], parts[1]))
    if x is None or negated is None or plain is None or x.shape[-1] % 2:
        return 0
    half = x.shape[-1] // 2
    if turned.op == "cat" and _is(negated, x[..., half:]) and _is(plain, x[..., :half]):
        return 2 * half
    if turned.op == "stack" and _is(negated, x[..., 1::2]) and _is(plain, x[..., ::2]):
        return NEIGHBOURS
    return 0


def joined_heads(trace: Trace, turned: Sequence[Node]) -> tuple[Argument, int]:
    """Return the value whose equal consecutive parts the rotations `turned` turn, in order, and the features of their
    blocks; None and 0 if they do something else. The first part may turn by rows and the second by columns of an image."""
    blocks = {int(one.kwargs.get("block", 0)) for one in turned}
    pieces = [trace.node(one.args[0]) for one in turned]
    cut = pieces[0] if pieces[0] is None or pieces[0].op != "getitem" else trace.node(pieces[0].args[0])
    value = cut.args[0] if cut is not None and cut.op in _CUTS else None
    base, owner = trace.base(value), trace.node(value)
    if len(blocks) > 1 or not min(blocks) or base is None or owner is None:
        return None, 0
    whole: Elements = np.empty(base.elements, np.int8)
    x, width = viewed(trace, value, whole), turned[0].shape[-1]
    views = [viewed(trace, one.args[0], whole) for one in turned]
    if x is None or x.shape[-1] != width * len(turned) or any(len(one.args) != 3 for one in turned):
        return None, 0
    is_in_order = all(
        view is not None and _is(view, x[..., i * width : (i + 1) * width]) for i, view in enumerate(views)
    )
    return (value, min(blocks)) if is_in_order else (None, 0)


def heads_taken(
    trace: Trace, node: Node, tensor_of: Mapping[str, str]
) -> tuple[tuple[Taken, ...], tuple[Runs, ...]]:
    """Return the operands of attention, of a rotation or of a norm of heads, in order: the tensor, the first and the end of the
    features that are taken head by head, and for operands whose heads are not next to one another the features of all heads in
    order; (), () if one is taken otherwise."""
    out: list[Taken] = []
    apart: list[Runs] = []
    sizes = dict(node.kwargs.get("sizes") or ())
    for place, operand in enumerate(node.args[: 3 if node.op in ATTENTION else 1]):
        turned = node.op == ATTENTION[1] and place == 1  # its keys are transposed, as a right factor
        swapped = trace.node(operand) if turned else None
        if (
            swapped is not None
            and swapped.op in SWAPS
            and {one % HEAD_AXES for one in swapped.args[1:3]} == {2, 3}
        ):
            operand, turned = swapped.args[0], False
        ref = _before_repeats(trace, operand)
        base = trace.base(ref)
        axes = (2,) if node.op in ATTENTION else (1, 2)
        found = _place_of(trace, ref, axes, turned=turned, samples=int(sizes.get("b", 0)))
        if found is None or base is None or base.name not in tensor_of:
            return (), ()
        channels = found.channels
        is_next = bool((np.diff(channels) == 1).all())
        first = int(channels[0]) if is_next else 0
        out.append((tensor_of[base.name], first, first + len(channels)))
        apart.append(runs_of(channels))
    return tuple(out), () if all(len(runs) == 1 and runs[0][2] == 1 for runs in apart) else tuple(apart)


def attributes_of(trace: Trace, node: Node) -> dict[str, int]:
    """Return the attributes of a rotation: the features of its blocks, and those that turn, if not all of a head do."""
    cosines, block = [trace.node(one) for one in node.args[1::2]], int(node.kwargs.get("block", 0))
    turned = sum(one.shape[-1] for one in cosines if one is not None and one.shape)
    if not block or turned % block:
        return {}
    return {"block": block} | ({"turned": turned} if turned < node.shape[-1] else {})


def whole_head(trace: Trace, turned: Node, rest: Node) -> Argument:
    """Return the value whose first features a rotation turns and whose other features are `rest`; None for other slices."""
    first = trace.node(turned.args[0])
    if first is None or first.op != "slice" or rest.op != "slice" or first.args[0] != rest.args[0]:
        return None
    whole = trace.node(first.args[0])
    width = first.shape[-1]
    if whole is None or whole.shape[-1] != width + rest.shape[-1] or first.arg(2, "start") not in (None, 0):
        return None
    return NodeRef(whole.name) if rest.arg(2, "start") == width else None


def _is_dynamic(trace: Trace, ref: Argument) -> bool:
    node = trace.node(ref)
    return node is None or node.dynamic


def _is(one: Elements, other: Elements) -> bool:
    """Return whether two views have the same elements of one array in the same order."""
    starts = [view.__array_interface__["data"][0] for view in (one, other)]
    strides = zip(one.strides, other.strides, one.shape, strict=False)
    return (
        one.shape == other.shape
        and starts[0] == starts[1]
        and all(a == b for a, b, size in strides if size > 1)
    )


def _before_repeats(trace: Trace, ref: Argument) -> Argument:
    """Return keys or values before every head is repeated for a group of queries; `ref` without such a repetition."""
    node = whole = trace.node(ref)
    while node is not None and node.op in ("clone", "contiguous", "reshape", "view", "_unsafe_view"):
        below = trace.node(node.args[0])
        if below is not None and below.op == "expand" and len(below.shape) == HEAD_AXES + 1:
            b, heads, group, *rest = below.shape
            source = trace.node(below.args[0])
            if (
                source is not None
                and source.shape == (b, heads, 1, *rest)
                and whole is not None
                and whole.shape == (b, heads * group, *rest)
            ):
                within = trace.node(source.args[0]) if source.op == "unsqueeze" else None
                return (
                    NodeRef(within.name) if within is not None and within.shape == (b, heads, *rest) else ref
                )
        if below is None or below.elements != node.elements:
            break
        node = below
    return ref


class _Place(NamedTuple):
    """The place of a value in its tensor: the axis of the tokens, and the features of a token, head by head."""

    axis: int
    channels: NDArray[np.integer]


def _place_of(
    trace: Trace, ref: Argument, axes: tuple[int, ...], *, turned: bool = False, samples: int = 0
) -> _Place | None:
    """Return the place of a value in its tensor, with the tokens on one of `axes`; None if it does not take features head by head.
    Samples and heads may be one dimension of `samples` samples."""
    base = trace.base(ref)
    if base is None or not base.elements:
        return None
    whole: Elements = np.empty(base.elements, np.int8)
    seen, rows = viewed(trace, ref, whole), _rows(trace, base)
    if seen is None or rows is None:
        return None
    is_view = np.may_share_memory(seen, whole)
    if not is_view:  # a reshape copies
        seen = viewed(trace, ref, np.arange(base.elements)) if base.elements <= MOST_ELEMENTS else None
    if seen is None:
        return None
    if seen.ndim == HEAD_AXES - 1 and samples and seen.shape[0] % samples == 0:
        seen = seen.reshape(samples, -1, *seen.shape[1:])
    if seen.ndim != HEAD_AXES:
        return None
    seen = seen.swapaxes(-1, -2) if turned else seen
    for axis in axes:
        by_token = seen.swapaxes(1, 2) if axis == 2 else seen
        if by_token.shape[1] != rows.tokens:
            continue
        channels = _channels(by_token, rows, whole if is_view else None)
        if channels is not None:
            return _Place(axis, channels)
    return None


def _channels(by_token: Elements, rows: _Rows, whole: Elements | None) -> NDArray[np.integer] | None:
    """Return the features of a token that (samples, tokens, heads, d) takes of a tensor, in order; None if it takes others for
    other tokens. With a tensor's memory `whole` the elements are known by their strides, else by their numbers."""
    heads, d = by_token.shape[2:]
    h, i = np.arange(heads)[:, None], np.arange(d)
    if whole is not None:
        first = by_token.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        strides = [
            stride if size > 1 else 0 for stride, size in zip(by_token.strides, by_token.shape, strict=True)
        ]
        wanted = [
            stride if size > 1 else 0 for stride, size in zip(rows.strides, by_token.shape[:2], strict=True)
        ]
        if strides[:2] != wanted:
            return None
        places = first + h * strides[2] + i * strides[3]
    else:
        steps = [np.arange(size) * stride for size, stride in zip(by_token.shape, rows.strides, strict=False)]
        places = by_token[0, 0]
        if not (by_token == steps[0][:, None, None, None] + steps[1][:, None, None] + places).all():
            return None
    if rows.of_head:  # a result head by head, of which all heads are taken in order
        is_whole = (places == h * rows.of_head + i).all() and heads * d == rows.width
        return np.arange(rows.width) if is_whole else None
    return places.reshape(-1) if places.max() < rows.width else None


class _Rows(NamedTuple):
    """Tokens of a tensor, elements from sample to sample and from token to token, and from head to head of a result that is stored
    head by head (0: all features of a token are next to one another), and features of a token."""

    tokens: int
    strides: tuple[int, int]
    of_head: int
    width: int


def _rows(trace: Trace, base: Node) -> _Rows | None:
    """Return where the tokens of a tensor are; None if that is not known."""
    if base.op in OF_HEADS and len(base.shape) == HEAD_AXES:
        found = _place_of(trace, base.args[0], (1, 2))
        if found is None:
            return None
        if found.axis == 1:
            _, tokens, heads, d = base.shape
            return _Rows(tokens, (tokens * heads * d, heads * d), 0, heads * d)
        _, heads, tokens, d = base.shape
        return _Rows(tokens, (tokens * heads * d, d), tokens * d, heads * d)
    if len(base.shape) != HEAD_AXES - 1:
        return None
    _, tokens, width = base.shape
    return _Rows(tokens, (tokens * width, width), 0, width)
