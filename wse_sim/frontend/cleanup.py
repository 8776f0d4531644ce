"""Cleans up a trace: operators that cost nothing on the machine are removed before kernels are matched.

The steps are, in order: broadcasts become views, arguments that only provide a shape are dropped, operators
on empty tensors become zeros, disabled dropout and casts become views (the precision level decides types),
operators whose result has no reader are removed, equal operators on the same values in one module are
merged, except for products, attention and random operators, and a concatenation that begins with the tensors
of another one takes its result. Products with one expert's weights represent its share of the experts.
"""

from __future__ import annotations

import numpy as np

from wse_sim.frontend.expert_stacks import group_experts
from wse_sim.frontend.trace import Node, NodeRef, Trace, renamed, shape_operand

_CASTS = frozenset(["to", "_to_copy", "type_as", "float", "half", "bfloat16", "double"])
# PT2E and torchao store int8 weights as buffers that are dequantised; that operator is free here.
_QUANTISERS = (
    "quantized_decomposed.quantize",
    "quantized_decomposed.dequantize",
    "torchao.quantize_affine",
    "torchao.dequantize_affine",
)
_DROPOUTS = frozenset(["dropout", "dropout_", "feature_dropout", "alpha_dropout", "native_dropout"])
FREE = _CASTS | _DROPOUTS | {"broadcast_tensors", "meshgrid", "atleast_1d"}
"""Operators that the clean-up removes or replaces."""
_RANDOM = frozenset(
    [
        "rand",
        "randn",
        "rand_like",
        "randn_like",
        "randint",
        "bernoulli",
        "normal",
        "normal_functional",
        "randperm",
        "multinomial",
    ]
)


# Equal products are not merged: torch's FLOP counter counts both, and the program runs both.
_PRODUCTS = frozenset(["linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "bilinear"])


def clean(trace: Trace) -> Trace:
    """Clean a trace in place and return it; the trace's log states the number of changes of each kind."""
    off = cast = 0
    _undo_broadcasts(trace)
    _expand_repeated(trace)
    _forget_shapes(trace)
    _leave_out_nothing(trace)
    _slice_by_constants(trace)
    for node in trace:
        if node.kind != "call":
            continue
        if node.op in _DROPOUTS and not is_active_dropout(node):
            node.op, off = "dropout_off", off + 1
        elif node.op in _CASTS or node.op.startswith(("prims.convert_element_type", *_QUANTISERS)):
            node.op, cast = "no_op_cast", cast + 1
            node.args = node.args[:1]
    dead = trace.prune()
    same = _merge_equal(trace)
    longer = _continue_concatenations(trace)
    experts = group_experts(trace)
    folded = sum(1 for n in trace if n.kind == "call" and trace.is_constant(NodeRef(n.name)))
    for count, what in (
        (off, "dropout switched off"),
        (cast, "casts left to the precision level"),
        (dead, "operators without readers dropped"),
        (same, "equal operators of one module merged"),
        (longer, "concatenations continue another one or are of one tensor"),
        (experts, "products with one of equally loaded experts represent its share of them"),
        (folded, "operators on constants folded"),
    ):
        if count:
            trace.log.append(f"clean-up: {count} {what}")
    return trace


def _undo_broadcasts(trace: Trace) -> None:
    """Replace `broadcast_tensors(a, b)[i]` and similar operators by a view of their i-th operand."""
    for node in trace:
        source = trace.node(node.args[0]) if node.op == "getitem" else None
        if source is not None and source.op in ("broadcast_tensors", "meshgrid", "atleast_1d"):
            node.op, node.args = "expand", (source.args[0][node.args[1]],)
            trace.forget_users()


def _expand_repeated(trace: Trace) -> None:
    """Replace repetitions of a tensor that no input changes along dimensions of length one by views, which move nothing.

    A parameter that is repeated for every sample, ``tokens.repeat(len(x), 1, 1)``, is an example.
    """
    for node in trace:
        source = trace.node(node.args[0]) if node.kind == "call" and node.op == "repeat" else None
        if source is None or source.dynamic or len(source.shape) != len(node.shape):
            continue
        if all(old in (new, 1) for old, new in zip(source.shape, node.shape, strict=True)):
            node.op, node.args = "expand", (node.args[0], node.shape)
            trace.forget_users()


def _forget_shapes(trace: Trace) -> None:
    """Drop operands that only provide a shape, such as x in `zeros_like(x)`."""
    found = False
    for node in trace:
        place = shape_operand(node.op) if node.kind == "call" else None
        if place is not None and place < len(node.args) and isinstance(node.args[place], NodeRef):
            node.args = (*node.args[:place], None, *node.args[place + 1 :])
            found = True
    if found:
        trace.spread()
        trace.forget_users()


def _leave_out_nothing(trace: Trace) -> None:
    """Replace operators that make empty tensors by zeros.

    An example is a selection of rows by a mask that is false everywhere in the example.
    """
    empty = [
        n
        for n in trace
        if n.kind == "call" and n.dynamic and n.shapes and 0 in n.shape and len(n.shapes) == 1
    ]
    for node in empty:
        node.op, node.args, node.kwargs = "zeros", (node.shape,), {}
    if empty:
        trace.spread()
        trace.forget_users()


def _slice_by_constants(trace: Trace) -> None:
    """Replace selections by constant places at equal distances, as in ``x[..., [-1], :]``, by slices, which move nothing."""
    for node in trace:
        if node.kind != "call" or node.op != "index" or not isinstance(node.args[1], tuple):
            continue
        source, (index, *more) = (
            trace.node(node.args[0]),
            [one for one in node.args[1] if one is not None] or [None],
        )
        if (
            source is None
            or not source.dynamic
            or more
            or not isinstance(index, NodeRef)
            or not trace.is_constant(index)
        ):
            continue
        axis, found = node.args[1].index(index), trace.evaluate(index.name)
        if found is None or found.dtype == bool or found.ndim != 1 or not found.size:
            continue
        places = found.astype(int) % source.shape[axis]
        step = int(places[1] - places[0]) if len(places) > 1 else 1
        if step > 0 and (np.diff(places) == step).all():
            node.op, node.args = "slice", (node.args[0], axis, int(places[0]), int(places[-1]) + 1, step)
            trace.forget_users()


def is_active_dropout(node: Node) -> bool:
    """Return whether a dropout node drops elements."""
    p, train = node.arg(1, "p", 0.5), node.arg(2, "train", True)
    return bool(train) and isinstance(p, (int, float)) and p > 0


def _merge_equal(trace: Trace) -> int:
    """Merge equal operators of one module, such as a helper called twice on one value; return how many."""
    seen: dict[str, str] = {}
    merged: dict[str, str] = {}
    for node in trace:  # readers come after the node that they read
        _rename(node, merged)
        if node.kind != "call" or node.op in _DROPOUTS or node.op in _RANDOM or "dropout" in node.op:
            continue
        if node.op == "scaled_dot_product_attention":
            continue  # it may apply dropout
        if node.op in _PRODUCTS or node.op.startswith("conv"):
            continue
        key = repr(
            (
                *(node.layer, node.op, node.overload, node.trains, node.args),
                sorted(node.kwargs.items(), key=lambda i: i[0]),
            )
        )
        first = seen.setdefault(key, node.name)
        if first != node.name:
            merged[node.name] = first
    if merged:
        trace.rename_results(merged)
        trace.prune()
    return len(merged)


def _rename(node: Node, names: dict[str, str]) -> None:
    """Let a node read the nodes to which `names` maps its operands."""
    if not names.keys().isdisjoint(ref.name for ref in node.refs()):
        node.args = tuple(renamed(item, names) for item in node.args)
        node.kwargs = {key: renamed(item, names) for key, item in node.kwargs.items()}


def _continue_concatenations(trace: Trace) -> int:
    """Let concatenations that begin with all tensors of another one take its result instead; return how many. One of a
    single tensor becomes a view; tensors without elements are left out.

    In DenseNets, layer n concatenates the results of all layers before it, so each tensor had a stream to each later layer.
    """
    known: dict[tuple[object, ...], str] = {}
    single: dict[str, str] = {}
    changed = 0
    for node in trace:
        _rename(node, single)
        parts = node.args[0] if node.op == "cat" else None
        if not isinstance(parts, tuple) or not all(isinstance(part, NodeRef) for part in parts):
            continue
        full = tuple(part for part in parts if (one := trace.node(part)) is None or 0 not in one.shape)
        if 0 < len(full) < len(parts):  # a cache of keys begins as an empty tensor
            parts, node.args, changed = full, (full, *node.args[1:]), changed + 1
        if len(parts) == 1:
            single[node.name], changed = parts[0].name, changed + 1
            node.op, node.args = "alias", parts  # if it is a result of the model
            continue
        along, longest = int(str(node.arg(1, "dim") or 0)) % len(node.shape), len(parts) - 1
        for count in range(longest, 1, -1):
            if (begun := known.get((along, *parts[:count]))) is not None:
                node.args = ((NodeRef(begun), *parts[count:]), *node.args[1:])
                changed += 1
                break
        known.setdefault((along, *parts), node.name)
    if changed:
        trace.prune()
    return changed
