"""Finds kernels that read operands in an order other than the stored one, or only in part.

Views cost nothing on the machine, so a graph leaves them out. Code that computes values from a graph has to
know which operands a kernel does not read in the expected order, so the kernel names them. The expected
orders are:

* the weight of a product as (N, K), so a plain product ``x @ w`` reads it transposed;
* for attention (B, H, T, d), token by token, each with the features of all heads;
* for anything else the stored order of elements.

An attention kernel states the order of its operands itself (:mod:`wse_sim.frontend.attention_layout`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

import numpy as np

from wse_sim.frontend.attention_layout import ATTENTION, HEAD_AXES, SAME_ORDER, Elements, elements_of, viewed
from wse_sim.frontend.trace import VIEWS, Argument, Node, NodeRef, Trace
from wse_sim.graph import Tensor
from wse_sim.graph.access import IMAGE, PIXELS, Runs, channel_axis, runs_of

MOST_ELEMENTS = 2**18
"""Most elements of a tensor whose views are compared element by element; those of a larger one by their strides."""
MOST_CUT_ELEMENTS = 2**22
"""The same where only some channels are taken (some 50 milliseconds)."""
SOFTMAXES = ("softmax", "_softmax", "log_softmax", "_log_softmax", "_safe_softmax")
COMMUTATIVE = ("add", "mul", "maximum", "minimum")
IMAGE_SHAPE = ("samples", "channels", "lines", "columns")
ROWS = ".rows"
"""Suffix of a kernel's name: the rows that the kernel reads through a view."""
WEIGHT_OF = {"mm": 1, "matmul": 1, "addmm": 2, "bmm": 1, "baddbmm": 2}
"""Operators that read a weight as (K, N), with the position of that operand."""


def reordered(
    trace: Trace, nodes: Iterable[Node], tensor_of: Mapping[str, str], samples: int
) -> tuple[str, ...]:
    """Return the tensors that these operators read in an order other than the expected one."""
    found = []
    for node in nodes:
        if node.op in ATTENTION:
            continue
        weight = node.args[WEIGHT_OF[node.op]] if node.op in WEIGHT_OF else None
        for ref in node.refs():
            base = trace.base(ref)
            if base is None or base.name not in tensor_of:
                continue
            is_weight = weight is not None and base.kind == "parameter"
            turned = is_weight and ref == weight
            is_left = is_weight and ref == node.args[WEIGHT_OF[node.op] - 1]
            straight = is_straight(trace, ref, samples, turned=turned) and not is_left
            if not (straight and _keeps_order(node)):
                found.append(tensor_of[base.name])
    return tuple(dict.fromkeys(found))


def transposed_weight(trace: Trace, node: Node, tensor_of: Mapping[str, str]) -> str:
    """Return the name of the weight that a product reads as (K, N); "" if there is none."""
    weight = trace.node(node.args[WEIGHT_OF[node.op]]) if node.op in WEIGHT_OF else None
    is_plain = weight is not None and weight.kind == "parameter" and len(weight.shape) == 2
    return tensor_of.get(weight.name, "") if weight is not None and is_plain else ""


def channels_taken(
    trace: Trace,
    nodes: Sequence[Node],
    tensor_of: Mapping[str, str],
    tensors: Mapping[str, Tensor],
    samples: int,
) -> tuple[tuple[str, Runs], ...]:
    """Return the activations that these operators take, each with the channels that it takes: :attr:`Access.slices`.

    The result is empty if all take all channels in order, or if one is read through another view.
    """
    rank, made = len(nodes[0].shape), {node.name for node in nodes}
    is_joined = nodes[0].op == "cat"
    if is_joined and int(str(nodes[0].arg(1, "dim") or 0)) % rank != channel_axis(rank):
        return ()
    found, is_cut = [], is_joined
    for node in nodes:
        for ref in node.refs():
            base = trace.base(ref)
            if base is None or not base.dynamic or base.name not in tensor_of:
                continue
            is_whole = is_straight(trace, ref, samples)
            if base.name in made:
                if not is_whole:
                    return ()
                continue
            count = base.shape[channel_axis(len(base.shape))] if base.shape else 1
            runs = ((0, count, 1),) if is_whole else _cut(trace, ref, base)
            is_stored = base.op not in ATTENTION and (
                is_whole or tensors[tensor_of[base.name]].shape == base.shape
            )
            if not runs or not is_stored or not _keeps_order(node) or node.op in ATTENTION:
                return ()
            is_cut |= not is_whole
            found.append((tensor_of[base.name], runs))
    return tuple(found) if is_cut else ()


def _cut(trace: Trace, ref: Argument, base: Node) -> Runs:
    """Return the channels that a view takes of a tensor, each with all its elements; () if it takes others."""
    seen = elements_of(trace, ref) if base.elements <= MOST_CUT_ELEMENTS and len(base.shape) > 1 else None
    axis = channel_axis(len(base.shape))
    outer, inner = prod(base.shape[:axis]), prod(base.shape[axis + 1 :])
    if seen is None or not seen.size or seen.size % (outer * inner):
        return ()
    cut = seen.reshape(outer, -1, inner)
    channels = cut[0, :, 0] // inner
    whole = np.arange(base.elements, dtype=np.int32).reshape(outer, -1, inner)
    is_cut = channels.max() < base.shape[axis] and np.array_equal(cut, whole[:, channels])
    return runs_of(channels) if is_cut else ()


def view_taken(
    trace: Trace, nodes: Sequence[Node], tensor_of: Mapping[str, str], samples: int
) -> tuple[str, int | None]:
    """Return the kind of the single view through which these operators read rows, and the token it selects.

    The kind is "pixels" for the pixels of an image (samples, channels, lines, columns), one after the other,
    each with all channels, and "rows" for any other view. It is "" if there is no view, if there are several,
    or if the same tensor is also read without the view. The token is its number if the view is one token of a
    tensor (samples, tokens, features), else None.
    """
    made = {node.name for node in nodes}
    refs = [ref for node in nodes for ref in node.refs()]
    bases = [(ref, base) for ref in refs if (base := trace.base(ref)) is not None and base.name not in made]
    views = [
        (ref, base)
        for ref, base in bases
        if base.name in tensor_of and base.kind != "parameter" and not is_straight(trace, ref, samples)
    ]
    if len(views) != 1 or not all(_keeps_order(node) and node.op not in ATTENTION for node in nodes):
        return "", None
    ref, base = views[0]
    if sum(other is base for _, other in bases) > 1 or base.op in ATTENTION:
        return "", None
    if base.elements > MOST_ELEMENTS:
        return _view_of_large(trace, ref, base)
    seen = elements_of(trace, ref) if base.elements <= MOST_ELEMENTS else None
    if seen is None or not seen.size or len(base.shape) not in (3, 4):
        return "rows", None
    numbers = np.arange(base.elements).reshape(base.shape)
    if len(base.shape) == 4:
        pixels = numbers.transpose(0, 2, 3, 1).reshape(-1)
        return ("pixels" if np.array_equal(seen.reshape(-1), pixels) else "rows"), None
    token = int(seen.flat[0]) // base.shape[-1]
    is_token = token < base.shape[1] and np.array_equal(seen.reshape(-1), numbers[:, token].reshape(-1))
    return "rows", token if is_token else None


def _view_of_large(trace: Trace, ref: Argument, base: Node) -> tuple[str, int | None]:
    """Return the same of a tensor whose elements are not compared one by one, by the strides of the view.

    The views are applied to an array whose memory is never touched.
    """
    whole: Elements = np.empty(base.elements, np.int8)
    seen = viewed(trace, ref, whole)
    if seen is None or not seen.size or not np.may_share_memory(seen, whole):
        return "rows", None
    first = seen.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    if len(base.shape) == 4 and seen.size == whole.size:
        samples, channels, lines, columns = base.shape
        pixels = (samples, lines * columns, channels), (channels * lines * columns, 1, lines * columns)
        return ("pixels" if first == 0 and _has_strides(seen, whole, *pixels) else "rows"), None
    if len(base.shape) == 3 and seen.size == base.shape[0] * base.shape[2]:
        samples, tokens, features = base.shape
        token = (samples, features), (tokens * features, 1)
        is_token = first % features == 0 and _has_strides(seen, whole, *token)
        return "rows", first // features if is_token else None
    return "rows", None


def channels_moved(
    trace: Trace, nodes: Sequence[Node], tensor_of: Mapping[str, str], samples: int
) -> tuple[tuple[str, str], ...]:
    """Return the tensors that these operators read with the channels in another place, and as what: :attr:`Access.channels`.

    A tensor that is also read in another way is left out. If a view between two operators makes an image of pixels, what the first
    ones read counts as read through it, parameters too.
    """
    made, found = {node.name for node in nodes}, dict[str, set[str]]()
    for node in nodes:
        bases = [(ref, base) for ref in node.refs() if (base := trace.base(ref)) is not None]
        for ref, base in bases:
            if base.name in made and not is_straight(trace, ref, samples):
                if _moved(trace, ref, base) != IMAGE:
                    return ()
                found = {name: {_TURNED.get(way, "") for way in ways} for name, ways in found.items()}
        for ref, base in bases:
            if base.name not in made and base.name in tensor_of:
                is_moved = _keeps_order(node) and node.op not in ATTENTION and base.kind != "parameter"
                is_moved = is_moved and not is_straight(trace, ref, samples)
                way = _moved(trace, ref, base) if is_moved else ""
                found.setdefault(tensor_of[base.name], set()).add(way)
    ways = ((name, next(iter(ways))) for name, ways in found.items() if len(ways) == 1)
    return tuple((name, way) for name, way in ways if way)


_TURNED = {"": IMAGE, PIXELS: ""}
"""How a tensor is read if what an operator makes of it is read as an image of pixels."""


def _moved(trace: Trace, ref: Argument, base: Node) -> str:
    """Return PIXELS or IMAGE if a view moves only the channels of a tensor, else "", by its strides."""
    whole: Elements = np.empty(base.elements, np.int8)
    seen = viewed(trace, ref, whole)
    if seen is None or seen.size != whole.size or not seen.size or not np.may_share_memory(seen, whole):
        return ""
    if len(base.shape) == len(IMAGE_SHAPE):
        samples, channels, lines, columns = base.shape
        size = lines * columns
        if _has_strides(seen, whole, (samples, size, channels), (channels * size, 1, size)):
            return PIXELS
    if seen.ndim == len(IMAGE_SHAPE):
        samples, channels, lines, columns = seen.shape
        strides = (channels * lines * columns, 1, columns * channels, channels)
        if _has_strides(seen, whole, seen.shape, strides):
            return IMAGE
    return ""


def _has_strides(seen: Elements, whole: Elements, shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return whether a view of `whole`, reshaped without a copy, has these strides where there are several elements."""
    found = seen.reshape(shape)
    pairs = zip(found.strides, strides, shape, strict=True)
    return np.may_share_memory(found, whole) and all(a == b for a, b, size in pairs if size > 1)


def rows_joined(trace: Trace, node: Node, tensor_of: Mapping[str, str]) -> tuple[str, ...]:
    """Return the tensors that an operator concatenates along the rows of its result, in order.

    The result must be (samples, rows, features); for other operators the names are empty.
    """
    rank = len(node.shape)
    if node.op != "cat" or rank != 3 or int(str(node.arg(1, "dim") or 0)) % rank != 1:
        return ()
    bases = [trace.base(ref) for ref in node.refs()]
    names = [tensor_of.get(base.name, "") for base in bases if base is not None]
    return tuple(names) if len(names) == len(bases) and all(names) else ()


def operand_order(trace: Trace, nodes: Sequence[Node], tensor_of: Mapping[str, str]) -> tuple[str, ...]:
    """Return the tensors that a chain of operators reads, beginning with that of the first value.

    The result is empty if an operator does not continue from the previous value. An operator with the
    previous value as its second operand is accepted only if it is commutative.
    """
    found: list[str] = []
    before = ""
    for node in nodes:
        bases = [base for ref in node.refs() if (base := trace.base(ref)) is not None]
        names = [base.name for base in bases]
        if before:
            if names.count(before) != 1 or (names[0] != before and node.op not in COMMUTATIVE):
                return ()
            names.remove(before)
        if any(name not in tensor_of for name in names):
            return ()
        found += [tensor_of[name] for name in names]
        before = node.name
    return tuple(found)


def _keeps_order(node: Node) -> bool:
    """Return whether an operator writes rows in the order in which it reads them.

    A softmax must be along the last dimension, and an einsum must have the form of a linear layer.
    """
    if node.op in SOFTMAXES:
        return node.arg(1, "dim") in (-1, len(node.shape) - 1)
    if node.op != "einsum":
        return True
    left, _, right = str(node.args[0]).replace(" ", "").partition("->")
    x, _, weight = left.partition(",")
    return x == weight == right or (x[-1:] == weight[-1:] != "" and right == x[:-1] + weight[:-1])


def is_straight(trace: Trace, ref: Argument, samples: int, *, turned: bool = False) -> bool:
    """Return whether a value has the elements of its base tensor in their usual order; those of a tensor that no input changes may
    repeat for every sample.

    With `turned`, the usual order is that of the transposed tensor.
    """
    node, base = trace.node(ref), trace.base(ref)
    if node is None or base is None:
        return True
    if not base.dynamic and node.op in ("expand", "repeat") and node.elements == samples * base.elements:
        source = trace.node(node.args[0])
        if source is not None and node.shape == (samples, *source.shape[1:]):
            return is_straight(trace, NodeRef(source.name), samples, turned=turned)
    if not turned and base.op not in ATTENTION and _is_reshaped(trace, node):
        return True
    if base.elements > MOST_ELEMENTS and not turned:
        return _has_usual_strides(trace, node, base, samples)
    seen = elements_of(trace, ref) if base.elements <= MOST_ELEMENTS else None
    if seen is None:
        return False
    if turned:
        return seen.ndim > 1 and bool((seen.swapaxes(-1, -2).reshape(-1) == np.arange(base.elements)).all())
    usual = _usual(np.arange(base.elements), base, samples)
    return any(seen.size == one.size and bool((seen.reshape(-1) == one.reshape(-1)).all()) for one in usual)


def _usual(whole: Elements, base: Node, samples: int) -> list[Elements]:
    """Return the elements of a tensor in its usual orders."""
    numbers = whole.reshape(base.shape)
    sizes = dict(base.kwargs.get("sizes") or ())
    if (
        base.op in ATTENTION
        and len(base.shape) == HEAD_AXES - 1
        and base.shape[0] == sizes.get("b", 0) * sizes.get("heads", 0)
    ):
        numbers = numbers.reshape(int(sizes["b"]), -1, *base.shape[1:])  # samples and heads are one dimension
    if base.op in ATTENTION and numbers.ndim == HEAD_AXES:
        numbers = numbers.swapaxes(1, 2)  # the kernel writes token by token, with all heads
    # Sample by sample, or token by token.
    if samples > 1 and len(base.shape) > 1 and samples in base.shape[:2]:
        return [numbers, numbers.swapaxes(0, 1)]
    if base.dynamic and samples > 1 and len(base.shape) == 2 and base.shape[0] % samples == 0:
        # One dimension has the tokens of all samples.
        return [numbers, numbers.reshape(-1, samples, base.shape[1]).swapaxes(0, 1)]
    return [numbers]


def _has_usual_strides(trace: Trace, node: Node, base: Node, samples: int) -> bool:
    """Return whether the strides of a view, before its last reshapes, are those of a usual order.

    The views are applied to an array whose memory is never touched.
    """
    while node is not base and node.kind == "call" and node.op in SAME_ORDER:
        source = trace.node(node.args[0])
        if source is None or source.elements != node.elements:
            break
        node = source
    if node.elements != base.elements:  # a part of the tensor
        return False
    whole: Elements = np.empty(base.elements, np.int8)
    seen = viewed(trace, NodeRef(node.name), whole)
    if seen is None or not np.may_share_memory(seen, whole):
        return False
    return any(
        seen.shape == one.shape
        and all(a == b for a, b, size in zip(seen.strides, one.strides, one.shape, strict=True) if size > 1)
        for one in _usual(whole, base, samples)
    )


def _is_reshaped(trace: Trace, node: Node) -> bool:
    """Return whether all views of a value keep all elements in their order."""
    while node.kind == "call" and node.op in VIEWS:
        source = trace.node(node.args[0])
        if source is None:
            return False
        first_result = node.op == "getitem" and source.op not in VIEWS and node.args[1] == 0
        if not first_result and (node.op not in SAME_ORDER or source.elements != node.elements):
            return False
        node = source
    return True
