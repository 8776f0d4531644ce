"""Handlers of operators without matrix products: elementwise work, moves, reductions, scans."""

from __future__ import annotations

from math import prod

from wse_sim.frontend.classify import HANDLERS, Draft, handles, shape_of, unsupported
from wse_sim.frontend.trace import Node, Trace

_ACTIVATIONS = (
    "relu gelu silu sigmoid tanh hardtanh softplus leaky_relu elu selu mish hardswish hardsigmoid relu6 prelu "
    "celu glu log_sigmoid log_sigmoid_forward softsign threshold rrelu"
)
_BINARY = (
    "add sub mul div maximum minimum pow rsub where masked_fill eq ne lt le gt ge logical_and logical_or "
    "logical_xor bitwise_and bitwise_or bitwise_xor remainder fmod floor_divide addcmul addcdiv lerp atan2 clamp "
    "clamp_min clamp_max true_divide copysign heaviside bitwise_left_shift bitwise_right_shift fmin fmax __and__ __or__ hypot outer xlogy mul_add clip masked_fill_"
)
_UNARY = (
    "exp log neg abs sqrt rsqrt sin cos reciprocal bitwise_not logical_not erf log1p expm1 floor ceil round sign "
    "square log2 log10 isnan isinf isfinite sinh cosh tan atan exp2 nan_to_num trunc sgn erfinv frac logit"
)
_LAYOUT = (
    "cat stack constant_pad_nd pad roll repeat repeat_interleave copy flip index gather index_select take_along_dim "
    "index_put index_add index_copy scatter scatter_add slice_scatter select_scatter unfold tril triu masked_scatter "
    "one_hot im2col col2im scatter_reduce _index_put_impl index_fill fill reflection_pad2d replication_pad2d "
    "view_as_complex view_as_real diag_embed unfold_copy as_strided hstack vstack rot90 tile meshgrid"
)
_REDUCTIONS = (
    "sum mean amax amin argmax argmin any all linalg_vector_norm norm var std max min prod var_mean std_mean "
    "native_norm count_nonzero histc nansum frobenius_norm aminmax cosine_similarity"
)

# What a move is called when several operators are the same move.
_MOVES = {
    "index": "gather",
    "gather": "gather",
    "index_select": "gather",
    "take_along_dim": "gather",
    "index_put": "scatter",
    "index_add": "scatter",
    "index_copy": "scatter",
    "scatter": "scatter",
    "scatter_add": "scatter",
    "constant_pad_nd": "pad",
    "stack": "cat",
    "hstack": "cat",
    "vstack": "cat",
    "repeat": "copy",
    "repeat_interleave": "copy",
    "tile": "copy",
    "as_strided": "copy",
}


def _sample(node: Node, name: str) -> str | None:
    return name if node.dynamic else None


@handles(_ACTIVATIONS)
def _activation(node: Node, trace: Trace) -> Draft:
    by_tanh = node.op == "gelu" and node.kwargs.get("approximate") == "tanh"
    attrs = {"function": "gelu_tanh" if by_tanh else node.op}
    return Draft("activation", {"elements": node.elements}, _sample(node, "elements"), attrs)


@handles(_BINARY, _UNARY)
def _elementwise(node: Node, trace: Trace) -> Draft:
    inputs = max(1, sum(1 for ref in node.refs() if not trace.is_constant(ref)))
    return Draft(
        "elementwise",
        {"elements": node.elements},
        _sample(node, "elements"),
        {"ops": node.op, "inputs": inputs},
    )


@handles("dropout", "native_dropout", "feature_dropout", "alpha_dropout")
def _dropout(node: Node, trace: Trace) -> Draft:
    return Draft(
        "dropout",
        {"elements": node.elements},
        _sample(node, "elements"),
        {"p": float(node.arg(1, "p", 0.5))},
        [node.args[0]],
    )


@handles("embedding", "embedding_bag", "_embedding_bag")
def _embedding(node: Node, trace: Trace) -> Draft:
    vocab, cols = shape_of(trace, node.args[0])
    index = shape_of(trace, node.args[1])
    return Draft(
        "embedding",
        {"rows": prod(index), "cols": cols, "vocab": vocab},
        _sample(node, "rows"),
        {},
        list(node.args[:2]),
    )


@handles(_LAYOUT)
def _layout(node: Node, trace: Trace) -> Draft:
    table = trace.base(node.args[0]) if node.args else None
    if node.op in ("index", "index_select", "gather") and table is not None and table.kind == "parameter":
        rows = node.elements // max(1, table.shape[-1])
        dims = {"rows": max(1, rows), "cols": table.shape[-1], "vocab": max(1, prod(table.shape[:-1]))}
        return Draft("embedding", dims, _sample(node, "rows"))
    return Draft(
        "layout", {"elements": node.elements}, _sample(node, "elements"), {"op": _MOVES.get(node.op, node.op)}
    )


@handles(_REDUCTIONS)
def _reduce(node: Node, trace: Trace) -> Draft:
    whole = prod(shape_of(trace, node.args[0]))
    rows = max(1, min(node.elements, whole))
    kind = "max" if "max" in node.op or "min" in node.op else "mean" if node.op == "mean" else "sum"
    # The batch is summed away where the result has no dimension left for it.
    sample = ("cols" if rows == 1 or not node.shape else "rows") if node.dynamic else None
    return Draft("reduce", {"rows": rows, "cols": max(1, whole // rows)}, sample, {"op": kind})


@handles("topk", "sort", "argsort", "kthvalue", "median")
def _topk(node: Node, trace: Trace) -> Draft:
    shape = shape_of(trace, node.args[0])
    cols = shape[-1] if shape else 1
    k = int(node.args[1]) if node.op in ("topk", "kthvalue") else cols
    return Draft("topk", {"rows": max(1, prod(shape) // cols), "cols": cols, "k": k}, _sample(node, "rows"))


@handles("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin")
def _cumulative(node: Node, trace: Trace) -> Draft:
    shape = shape_of(trace, node.args[0])
    steps = shape[node.args[1]] if shape else 1
    dims = {"steps": steps, "width": 1, "batch": max(1, node.elements // steps)}
    return Draft("scan", dims, _sample(node, "batch"), {"kind": "cumsum"})


@handles("lstm", "gru", "rnn_tanh", "rnn_relu")
def _recurrent(node: Node, trace: Trace) -> Draft:
    x = shape_of(trace, node.args[0])
    if len(x) != 3 or not isinstance(node.args[2], tuple):
        raise unsupported(node, "works on packed sequences, and only padded ones are known")
    weights = [shape_of(trace, w) for w in node.args[2]]
    batch_first = bool(node.args[-1]) if isinstance(node.args[-1], bool) else False
    batch, steps = (x[0], x[1]) if batch_first else (x[1], x[0])
    matrices = sum(prod(w) for w in weights if len(w) == 2)
    dims = {"steps": steps, "width": node.shape[-1], "batch": batch, "weights": matrices}
    return Draft("scan", dims, "batch", {"kind": node.op})


@handles("wse.rotary")
def _rotary(node: Node, trace: Trace) -> Draft:
    cols = node.shape[-1]
    dims = {"elements": node.elements, "rows": node.elements // cols, "cols": cols}
    return Draft("generated", dims, _sample(node, "elements"), {"ops": "rotary", "inputs": 1}, [node.args[0]])


@handles(
    "zero arange full zeros ones zeros_like ones_like full_like empty scalar_tensor eye new_zeros new_ones new_full"
)
@handles(
    "empty_like rand randn rand_like randn_like randint bernoulli new_empty linspace normal empty_permuted"
)
def _created(node: Node, trace: Trace) -> Draft:
    return Draft("layout", {"elements": max(1, node.elements)}, None, {"op": "fill"})


def known_operators() -> list[str]:
    """All operators that become kernels, by name."""
    return sorted(HANDLERS)
