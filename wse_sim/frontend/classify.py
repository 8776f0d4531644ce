"""Maps operators to kernel families, with one small function per group of ATen operators.

Each handler returns the family, dimensions and attributes of the kernel for one node. An operator without a
handler raises :class:`~wse_sim.errors.UnsupportedOpError`, which names it and the user's line.

It is one file because it is a list of PyTorch operators and their families.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from wse_sim.errors import UnsupportedOpError
from wse_sim.frontend.masks import mask_kind
from wse_sim.frontend.trace import Argument, Node, NodeRef, Trace
from wse_sim.kernels.blocks.windows import surround


@dataclass
class Draft:
    """The family, dimensions and attributes of a kernel that has no name and no tensors yet."""

    family: str
    dims: dict[str, int]
    sample_dim: str | None
    attrs: dict[str, Any] = field(default_factory=dict)
    # Arguments in the order of the kernel's inputs; None means all arguments of the node.
    operands: list[Any] | None = None


Handler = Callable[[Node, Trace], Draft]
HANDLERS: dict[str, Handler] = {}


def handles(*operators: str) -> Callable[[Handler], Handler]:
    """Return a decorator that registers a handler for operators; a text may contain several names."""

    def put(handler: Handler) -> Handler:
        for operator in " ".join(operators).split():
            HANDLERS[operator] = handler
        return handler

    return put


def classify(node: Node, trace: Trace) -> Draft:
    """Return the kernel for a node.

    Raises
    ------
    UnsupportedOpError
        If the operator has no handler, or its handler does not support this use of it.
    """
    handler = HANDLERS.get(node.op)
    if handler is None:
        raise unsupported(node)
    return handler(node, trace)


# Operators of matrix products and convolutions.
PRODUCTS = frozenset(
    [
        "linear",
        "addmm",
        "mm",
        "bmm",
        "baddbmm",
        "matmul",
        "einsum",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "convolution",
        "scaled_dot_product_attention",
    ]
)


MERGED = {
    "attention": ("b", "heads", "kv_heads"),
    "conv2d": ("b", "c", "k"),
    "conv3d": ("b", "c", "k"),
    "indexed": ("tables", "rows", "vocab"),
}
"""The dimension of the samples by family, and the dimensions with which a model may merge them."""


def opaque(node: Node) -> Draft:
    """Return a kernel that moves the elements of the result, for an operator without a handler."""
    return Draft(
        "layout", {"elements": max(1, node.elements)}, "elements" if node.dynamic else None, {"op": "unknown"}
    )


_REMEDIES = {
    "quantize_per_tensor": (
        "makes a quantised type, which is not supported",
        "use PT2E or torchao int8 weights",
    ),
    "quantize_per_channel": (
        "makes a quantised type, which is not supported",
        "use PT2E or torchao int8 weights",
    ),
    "to_sparse": (
        "makes a sparse tensor, which is not supported",
        "stay dense: call to_dense() before the model",
    ),
}


_STEMS: tuple[tuple[str, str], ...] = (
    ("linalg_", "iterate with products (Newton-Schulz for inverses and orthogonal factors, power iteration for norms)"),
    ("matrix_exp", "sum the first terms of its series with products"),
    ("_sparse", "stay dense: call to_dense() first"),
)  # fmt: skip
"""Prefixes of operator names, with their remedies."""


def unsupported(node: Node, why: str = "has no kernel and no rule", remedy: str = "") -> UnsupportedOpError:
    """Return the error for a node that cannot be lowered, with the user's line, the reason and a remedy."""
    place = node.source or f"module {node.layer or '(top)'}"
    if node.op in _REMEDIES:
        why, remedy = _REMEDIES[node.op]
    remedy = remedy or next((text for stem, text in _STEMS if node.op.startswith(stem)), "")
    remedy = remedy or "rewrite it with supported operators or add it with wse_sim.register_operator"
    return UnsupportedOpError(f"operator {node.op} at {place} {why}; {remedy}")


def shape_of(trace: Trace, value: Argument) -> tuple[int, ...]:
    """Return the shape of an argument; () for scalars."""
    node = trace.node(value)
    return node.shape if node is not None else ()


_DIM_THIRD = frozenset(["topk", "kthvalue", "norm", "linalg_vector_norm", "cosine_similarity"])
_SORTS = frozenset(["sort", "argsort", "topk", "kthvalue", "mode"])


def axes(node: Node, trace: Trace) -> tuple[int, ...]:
    """Return the dimensions along which an operator sums, sorts or scans, as positive numbers.

    An operator that states none works along the last dimension if it sorts, and along all others if it does not.
    """
    rank = len(shape_of(trace, node.args[0]))
    by_keyword = node.overload in ("stable", "correction") and len(node.args) == 1
    stated = node.kwargs.get("dim") if by_keyword else node.arg(2 if node.op in _DIM_THIRD else 1, "dim")
    given = stated if isinstance(stated, tuple) else (stated,)
    if not given or not all(isinstance(dim, int) and not isinstance(dim, bool) for dim in given):
        return tuple(range(max(0, rank - 1) if node.op in _SORTS else 0, rank))
    return tuple(sorted(int(dim) % max(1, rank) for dim in given))


def batch_of(trace: Trace, *values: Argument) -> bool:
    """Return whether any of the values depends on the model's inputs."""
    return any((node := trace.node(v)) is not None and node.dynamic for v in values)


# --- matrix products


def product(
    node: Node, trace: Trace, x: Argument, weight: Argument, k: int, n: int, bias: Argument = None
) -> Draft:
    """Return the kernel of x (m, k) times weight (k, n).

    It is a gemm if the second operand does not depend on the inputs, else a product of activations.
    """
    m = max(1, node.elements // n)
    sample = "m" if batch_of(trace, x) else None
    if trace.is_parameter(weight) or not batch_of(trace, weight):
        fused = {"fused": "bias"} if bias is not None else {}
        return Draft("gemm", {"m": m, "k": k, "n": n}, sample, fused, [x, weight, bias])
    return Draft("batch_gemm", {"b": 1, "m": m, "k": k, "n": n}, sample, {}, [x, weight, bias])


@handles("linear")
def _linear(node: Node, trace: Trace) -> Draft:
    x, weight = node.args[0], node.args[1]
    shape = shape_of(trace, weight)
    return product(node, trace, x, weight, shape[-1], shape[0] if len(shape) > 1 else 1, node.arg(2, "bias"))


@handles("addmm")
def _addmm(node: Node, trace: Trace) -> Draft:
    bias, x, weight = node.args[:3]
    return _two_dimensional(node, trace, x, weight, bias)


@handles("mm")
def _mm(node: Node, trace: Trace) -> Draft:
    return _two_dimensional(node, trace, node.args[0], node.args[1])


def _two_dimensional(node: Node, trace: Trace, x: Argument, weight: Argument, bias: Argument = None) -> Draft:
    if trace.is_parameter(x) and not trace.is_parameter(weight):  # W x: the gemm's rows are the columns of x
        (n, k), m = shape_of(trace, x)[-2:], shape_of(trace, weight)[-1]
        draft = Draft("gemm", {"m": m, "k": k, "n": n}, None, {}, [weight, x, bias])
        draft.sample_dim = "m" if batch_of(trace, weight) else None
        return draft
    k, n = shape_of(trace, weight)[-2:]
    return product(node, trace, x, weight, k, n, bias)


@handles("matmul", "bmm", "baddbmm", "mv", "dot", "linalg_vecdot")
def _matmul(node: Node, trace: Trace) -> Draft:
    bias = node.args[0] if node.op == "baddbmm" else None
    x, y = node.args[1:3] if node.op == "baddbmm" else node.args[:2]
    a, b = shape_of(trace, x), shape_of(trace, y)
    if len(b) == 1 and len(a) == 2 and trace.is_parameter(x) and not trace.is_parameter(y):
        return Draft("gemm", {"m": 1, "k": b[0], "n": a[0]}, None, {}, [y, x])
    if len(b) == 1:
        return product(node, trace, x, y, b[0], 1)
    if len(b) == 2 and len(a) != 1:
        return (
            _two_dimensional(node, trace, x, y, bias)
            if len(a) == 2
            else product(node, trace, x, y, b[0], b[1])
        )
    k, n = b[-2:]
    m = a[-2] if len(a) > 1 else 1
    draft = batched(node, trace, x, y, node.elements // max(1, m * n), m, k, n)
    if bias is not None and not trace.is_constant(bias):
        draft.operands = [x, y, bias]
    return draft


def batched(node: Node, trace: Trace, x: Argument, y: Argument, b: int, m: int, k: int, n: int) -> Draft:
    """Return the kernel of b products (m, k) times (k, n); b grows with the batch."""
    sample = "b" if batch_of(trace, x, y) else None
    return Draft("batch_gemm", {"b": b, "m": m, "k": k, "n": n}, sample, {}, [x, y])


def spelled_out(names: Sequence[str], right: str, shapes: Sequence[tuple[int, ...]]) -> tuple[list[str], str]:
    """Replace '...' by letters in the operand names and the result of an einsum; return both.

    The longest '...' gets as many unused letters as it has dimensions, a shorter one the last of them.
    """
    free = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in "".join(names)]
    ranks = [len(shape) - len(name.replace("...", "")) for name, shape in zip(names, shapes, strict=True)]
    most = max(rank for rank, name in zip(ranks, names, strict=True) if "..." in name)
    dots = "".join(free[:most])
    return [
        name.replace("...", dots[most - rank :]) for name, rank in zip(names, ranks, strict=True)
    ], right.replace("...", dots)


@handles("einsum")
def _einsum(node: Node, trace: Trace) -> Draft:
    equation, operands = str(node.args[0]).replace(" ", ""), list(node.args[1])
    left, _, right = equation.partition("->")
    names, shapes = left.split(","), [shape_of(trace, o) for o in operands]
    if len(names) > 2:
        raise unsupported(node, f"is used as '{equation}', and only sums of one or two operands are known")
    if "..." in equation:
        names, right = spelled_out(names, right, shapes)
    if len(names) == 1:
        return Draft("layout", {"elements": node.elements}, "elements", {"op": "transpose"}, operands)
    sizes: dict[str, int] = {}
    ones: set[str] = set()
    for name, shape in zip(names, shapes, strict=True):
        for letter, extent in zip(name, shape, strict=True):
            sizes[letter] = max(extent, sizes.get(letter, 1))  # a dimension of size 1 is broadcast
            ones.update(letter if extent == 1 else "")
    x, y = operands
    first, second = names
    if trace.is_parameter(x) and not trace.is_parameter(y):
        (x, y), (first, second) = (y, x), (second, first)
    size = lambda letters: prod(sizes[c] for c in sizes if c in letters)  # noqa: E731
    both = set(first) & set(second) & set(right)
    summed = (set(first) & set(second)) - set(right) - ones  # torch sums broadcast dimensions separately
    k = size(summed)
    m, n = size((set(first) - set(second)) & set(right)), size((set(second) - set(first)) & set(right))
    if not summed:  # torch computes an elementwise product
        return Draft(
            "elementwise", {"elements": node.elements}, "elements", {"ops": "mul", "inputs": 2}, operands
        )
    if not both:
        return product(node, trace, x, y, k, n)
    return batched(node, trace, x, y, size(both), m, k, n)


@handles("_grouped_mm", "transformers.grouped_mm_fallback")
def _grouped(node: Node, trace: Trace) -> Draft:
    x, weight = node.args[:2]
    groups, k, n = shape_of(trace, weight)
    m = node.elements // n
    return Draft(
        "grouped_gemm",
        {"m": m, "k": k, "n": n, "groups": groups},
        "m",
        {},
        [x, weight, *node.args[2:3]],
    )


@handles("_int_mm")
def _integer_product(node: Node, trace: Trace) -> Draft:
    draft = _two_dimensional(node, trace, node.args[0], node.args[1])
    draft.attrs["weights"] = "int8"
    return draft


# --- convolutions, pools, images


def _pair(value: Argument, rank: int, default: int = 1) -> list[int]:
    if isinstance(value, int):
        return [value] * rank
    sizes = [item for item in value if isinstance(item, int)] if isinstance(value, (tuple, list)) else []
    if not sizes or not isinstance(value, (tuple, list)) or len(sizes) < len(value):
        return [default] * rank
    return sizes * (rank if len(sizes) == 1 else 1)


_SIDES = ("d", "h", "w")
_TAPS = ("t", "r", "s")


def _sides(rank: int, names: tuple[str, ...], sizes: Sequence[int], least: int = 2) -> dict[str, int]:
    """Return the sizes of the last `rank` dimensions by name; missing ones below `least` have size 1."""
    values = [1] * (max(rank, least) - rank) + [*sizes]
    return dict(zip(names[-max(rank, least) :], values, strict=True))


@handles("conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d")
def _conv(node: Node, trace: Trace) -> Draft:
    x, weight, bias = node.args[0], node.args[1], node.arg(2, "bias")
    shape, kernel = shape_of(trace, x), shape_of(trace, weight)
    rank = len(kernel) - 2
    whole = node.op == "convolution"
    transposed = "transpose" in node.op or (whole and bool(node.arg(6, "transposed", False)))
    groups = int(node.arg(8 if whole else 6, "groups", 1))
    spread = _pair(node.arg(7 if "transpose" in node.op else 5, "dilation", 1), rank)
    strides = _pair(node.arg(3, "stride", 1), rank)
    dims = {"b": shape[0] if len(shape) == rank + 2 else 1, **_sides(rank, _SIDES, shape[-rank:])}
    dims |= {"c": shape[-rank - 1], "k": node.shape[-rank - 1], **_sides(rank, _TAPS, kernel[2:])}
    dims["stride"] = max(strides[-2:])
    if rank == 3:
        dims["stride_d"] = strides[0]
    out = _sides(rank, _SIDES, node.shape[-rank:])
    dims |= {f"out_{name}": size for name, size in out.items()}
    attrs: dict[str, Any] = {"groups": groups}
    if max(spread) > 1:
        attrs["dilation"] = max(spread)
    if transposed:
        attrs["transposed"] = True
    elif rank < 3 and max(strides) > 2:
        padding = node.arg(4, "padding", 0)
        # A string is "valid" (no padding) here, because "same" allows no stride.
        attrs |= _zeros(dims, strides, _pair(0 if isinstance(padding, str) else padding, rank))
    if bias is not None:
        attrs["fused"] = "bias"
    return Draft("conv3d" if rank == 3 else "conv2d", dims, "b", attrs, [x, weight, bias])


def _zeros(dims: Mapping[str, int], strides: Sequence[int], padding: Sequence[int]) -> dict[str, Any]:
    """Return the padding attributes of a convolution with a stride above 2, without defaults."""
    pads = {*padding, *([0] if len(padding) == 1 else [])}  # a 1-D convolution has no padding above its line
    if len({*strides}) > 1 or len(pads) > 1:
        return {"uneven": True}
    return {} if surround(dims) in pads else {"around": max(pads)}


@handles(
    "max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices avg_pool1d avg_pool2d"
)
@handles("avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d")
@handles(
    "adaptive_max_pool2d adaptive_max_pool3d mkldnn_max_pool2d _adaptive_avg_pool2d _adaptive_avg_pool3d"
)
@handles("max_pool1d_with_indices lp_pool2d")
def _pool(node: Node, trace: Trace) -> Draft:
    shape = shape_of(trace, node.args[0])
    rank = next(int(digit) for digit in node.op if digit.isdigit())
    sizes, out = shape[-rank:], node.shape[-rank:]
    if "adaptive" in node.op:
        window = [-(-many // few) for many, few in zip(sizes, out, strict=True)]
        stride = max(max(1, many // few) for many, few in zip(sizes, out, strict=True))
    else:
        window = _pair(node.args[1], rank)
        stride = max(_pair(node.arg(2, "stride", 0) or node.args[1], rank))
    dims = {"b": max(1, prod(shape[: -rank - 1])), **_sides(rank, _SIDES, sizes), "c": shape[-rank - 1]}
    dims |= {**_sides(rank, _TAPS, window), "stride": stride}
    dims |= {f"out_{name}": size for name, size in _sides(rank, _SIDES, out).items()}
    attrs: dict[str, Any] = {"kind": "max" if "max" in node.op else "avg", **_borders(node, rank, dims)}
    return Draft("pool3d" if rank == 3 else "pool2d", dims, "b", attrs, [node.args[0]])


def _borders(node: Node, rank: int, dims: Mapping[str, int]) -> dict[str, Any]:
    """Return the padding attributes of a pooling without defaults; "uneven" marks windows that differ."""
    axes = [
        (dims[side], dims[tap], dims[f"out_{side}"])
        for side, tap in zip(_SIDES, _TAPS, strict=True)
        if side in dims
    ]
    if "adaptive" in node.op:
        even = all(many == few * window and window == dims["stride"] for many, window, few in axes if few > 1)
        return (
            {} if even and all(window == many for many, window, few in axes if few == 1) else {"uneven": True}
        )
    around = _pair(node.arg(3, "padding", 0), rank)
    is_max = "max" in node.op
    counted = is_max or max(around) == 0 or bool(node.arg(5, "count_include_pad", True))
    whole = node.arg(4, "dilation", 1) if is_max else 1
    strides = _pair(node.arg(2, "stride", 0) or node.args[1], rank)
    inside = all((few - 1) * dims["stride"] + window <= many + 2 * max(around) for many, window, few in axes)
    alike = (
        (rank > 1 or not max(around))
        and len(set(around)) == 1
        and len(set(strides)) == 1
        and set(_pair(whole, rank)) == {1}
    )
    plain = inside and alike and counted and "lp_" not in node.op
    plain = plain and (is_max or node.arg(6, "divisor_override", None) is None)
    return ({"around": max(around)} if max(around) else {}) | ({} if plain else {"uneven": True})


@handles(
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d upsample_linear1d"
)
@handles("_upsample_nearest_exact2d _upsample_nearest_exact3d upsample_bilinear2d upsample_bicubic2d")
@handles("upsample_trilinear3d _upsample_bilinear2d_aa _upsample_bicubic2d_aa grid_sampler grid_sampler_2d")
@handles("grid_sampler_3d pixel_shuffle pixel_unshuffle")
def _resample(node: Node, trace: Trace) -> Draft:
    (b, _, *sizes), (_, c, *out) = shape_of(trace, node.args[0]), node.shape
    # The slices of a volume are consecutive lines of one image.
    h, w, out_h, out_w = prod(sizes[:-1]), sizes[-1], prod(out[:-1]), out[-1]
    dims = {"b": b, "c": c, "h": h, "w": w, "out_h": out_h, "out_w": out_w}
    attrs: dict[str, Any] = {"op": node.op}
    if node.op.endswith("_aa"):
        attrs["antialias"] = True
    if node.op.endswith("3d") and "sampler" in node.op:
        attrs["mode"] = "trilinear"
    return Draft("resample", dims, "b", attrs)


# --- attention and rows


@handles("scaled_dot_product_attention", "wse.attention")
def _attention(node: Node, trace: Trace) -> Draft:
    q, k, v = node.args[:3]
    sizes = node.kwargs.get("sizes")
    if sizes is None:
        shape, keys, values = shape_of(trace, q), shape_of(trace, k), shape_of(trace, v)
        heads = shape[-3] if len(shape) > 3 else 1
        b = prod(shape[:-2]) // heads
        dims = {"b": b, "heads": heads, "kv_heads": heads, "q": shape[-2], "kv": keys[-2], "d": shape[-1]}
        dims["kv_heads"] = distinct_heads(trace, k, keys[-3] if len(keys) > 3 else 1)
        value_width = values[-1]
    else:
        dims, value_width = dict(sizes), node.kwargs["value_width"]
    mask = node.arg(3, "attn_mask")
    causal = bool(node.arg(5, "is_causal", False))
    kind = "causal" if causal else "dense" if node.kwargs.get("masked") else mask_kind(trace, mask)
    attrs: dict[str, Any] = {"causal": kind == "causal"}
    p = node.arg(4, "dropout_p", 0.0) or 0.0
    attrs["dropout"] = float(p)
    if kind == "dense":
        attrs["mask"] = "dense"
    if value_width != dims["d"]:
        attrs["value_width"] = value_width
    operands = [q, k, v] + ([mask, *node.args[6:]] if kind == "dense" else [])
    sample = "b" if batch_of(trace, q, k, v) else None
    return Draft("attention", dims, sample, attrs, operands)


def distinct_heads(trace: Trace, key: Argument, heads: int) -> int:
    """Return the number of distinct heads of k, before a view repeated them for grouped queries."""
    node, seen = trace.node(key), heads
    while node is not None and (node.op == "repeat_interleave" or (node.kind == "call" and node.refs())):
        source = trace.node(node.refs()[0])
        if source is None or (
            node.op not in ("expand", "repeat_interleave") and source.elements != node.elements
        ):
            break
        if source.elements and node.elements > source.elements and node.elements % source.elements == 0:
            seen = seen * source.elements // node.elements
        node = source
        if node.kind != "call" or node.op not in _HEAD_VIEWS:
            break
    return max(1, seen)


_HEAD_VIEWS = frozenset(
    [
        "expand",
        "view",
        "reshape",
        "unsqueeze",
        "transpose",
        "permute",
        "contiguous",
        "clone",
        "repeat_interleave",
        "no_op_cast",
        "_unsafe_view",
    ]
)


TORCH_LAYER_EPS, TORCH_RMS_EPS = 1e-5, 2.0**-23  # torch's defaults for fp32 norms


def _rows(node: Node, trace: Trace, cols: int) -> dict[str, int]:
    elements = prod(shape_of(trace, node.args[0]))
    return {"rows": max(1, elements // max(1, cols)), "cols": cols}


@handles("layer_norm native_layer_norm rms_norm wse.rms_norm _fused_rms_norm wse.layer_norm")
def _norm(node: Node, trace: Trace) -> Draft:
    given = node.args[1] if not node.op.startswith("wse.") else node.shape[-1:]
    kind = "rms" if "rms" in node.op else "layer"
    sample = "rows" if node.dynamic else None
    operands = [a for a in node.args if isinstance(a, NodeRef)]
    attrs = {"kind": kind} | _offset(node, 3 if kind == "rms" else 4)
    if node.op.endswith("layer_norm") and node.arg(2, "weight") is None and node.arg(3, "bias") is not None:
        attrs |= {"affine": "shift"}
    return Draft("norm", _rows(node, trace, prod(given)), sample, attrs, operands)


def _offset(node: Node, place: int) -> dict[str, float]:
    """Return the epsilon that a norm adds to the variance.

    It is argument `place` of torch's own norms, and `eps` of a norm that a pattern found.
    """
    if node.op.startswith("wse."):
        return {"eps": float(node.kwargs["eps"])}
    default = TORCH_RMS_EPS if "rms" in node.op else TORCH_LAYER_EPS
    stated = node.arg(place, "eps")
    return {"eps": default if stated is None else float(stated)}


@handles("_weight_norm", "_weight_norm_interface")
def _weight_norm(node: Node, trace: Trace) -> Draft:
    """Return the kernel that normalizes each row of a weight and multiplies it by a learned length."""
    rows = max(1, prod(shape_of(trace, node.args[1])))
    dims = {"rows": rows, "cols": max(1, node.elements // rows)}
    return Draft("norm", dims, None, {"kind": "rms"}, list(node.args[:2]))


@handles("group_norm", "native_group_norm", "instance_norm")
def _group_norm(node: Node, trace: Trace) -> Draft:
    shape = node.shape
    groups = shape[1]
    if node.op == "group_norm":
        groups = int(node.args[1])
    elif node.op == "native_group_norm":
        groups = int(node.args[6])
    cols = prod(shape[1:]) // groups
    operands = [a for a in node.args if isinstance(a, NodeRef)]
    return Draft("norm", _rows(node, trace, cols), "rows", {"kind": "group"}, operands)


@handles(
    "batch_norm _native_batch_norm_legit_no_training _native_batch_norm_legit_functional _native_batch_norm_legit"
)
@handles("cudnn_batch_norm native_batch_norm _batch_norm_with_update_functional _batch_norm_no_update")
def _batch_norm(node: Node, trace: Trace) -> Draft:
    training = bool(node.arg(5, "training", False)) and "no_training" not in node.op
    operands = [a for a in node.args[:3] if isinstance(a, NodeRef)]
    attrs: dict[str, Any] = {"kind": "batch", "statistics": "batch" if training else "running"}
    if isinstance(eps := node.arg(6 if "no_training" in node.op else 7, "eps"), float):
        attrs["eps"] = eps
    return Draft("norm", _rows(node, trace, node.shape[1]), "rows", attrs, operands)


@handles("softmax", "_softmax", "log_softmax", "_log_softmax", "logsumexp", "_safe_softmax")
def _softmax(node: Node, trace: Trace) -> Draft:
    shape = shape_of(trace, node.args[0])
    cols = prod(shape[dim] for dim in axes(node, trace)) if shape else 1
    attrs = {"log": node.op in ("log_softmax", "_log_softmax", "logsumexp")}
    return Draft("softmax", _rows(node, trace, cols), "rows" if node.dynamic else None, attrs)


@handles("cross_entropy_loss nll_loss nll_loss_nd nll_loss_forward nll_loss2d wse.cross_entropy")
@handles(
    "binary_cross_entropy binary_cross_entropy_with_logits mse_loss l1_loss smooth_l1_loss huber_loss kl_div"
)
def _loss(node: Node, trace: Trace) -> Draft:
    shape = shape_of(trace, node.args[0])
    if node.op.startswith(("cross_entropy", "nll", "wse")):
        cols = shape[1] if len(shape) > 1 else shape[-1]
        return Draft(
            "cross_entropy", {"rows": prod(shape) // cols, "cols": cols}, "rows", {}, list(node.args[:2])
        )
    dims = {"elements": prod(shape), "rows": 1, "cols": prod(shape)}
    return Draft("generated", dims, "elements", {"ops": node.op + ",sum", "inputs": 2}, list(node.args[:2]))
