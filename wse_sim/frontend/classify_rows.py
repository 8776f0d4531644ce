"""Handlers of operators without matrix products: elementwise work, moves, reductions and scans."""

from __future__ import annotations

from math import prod

from wse_sim.frontend.classify import HANDLERS, Draft, axes, handles, shape_of, unsupported
from wse_sim.frontend.rotations import attributes_of
from wse_sim.frontend.trace import Argument, Node, NodeRef, Trace

ACTIVATIONS = (
    "relu gelu silu sigmoid tanh hardtanh softplus leaky_relu elu selu mish hardswish hardsigmoid relu6 prelu "
    "celu glu log_sigmoid log_sigmoid_forward softsign threshold rrelu"
)
BINARY = (
    "add sub mul div maximum minimum pow rsub where masked_fill eq ne lt le gt ge logical_and logical_or "
    "logical_xor bitwise_and bitwise_or bitwise_xor remainder fmod floor_divide addcmul addcdiv lerp atan2 clamp "
    "clamp_min clamp_max true_divide copysign heaviside bitwise_left_shift bitwise_right_shift fmin fmax __and__ __or__ hypot outer xlogy mul_add clip masked_fill_"
)
UNARY = (
    "exp log neg abs sqrt rsqrt sin cos reciprocal bitwise_not logical_not erf log1p expm1 floor ceil round sign "
    "square log2 log10 isnan isinf isfinite sinh cosh tan atan exp2 nan_to_num trunc sgn erfinv frac logit "
    "acos asin acosh asinh atanh erfc lgamma digamma i0 i0e i1 i1e"
)
_LAYOUT = (
    "cat stack constant_pad_nd pad roll repeat repeat_interleave copy flip "
    "slice_scatter select_scatter unfold tril triu masked_scatter one_hot im2col col2im index_fill fill reflection_pad2d replication_pad2d "
    "diag_embed unfold_copy as_strided hstack vstack rot90 tile meshgrid"
)
REDUCTIONS = (
    "sum mean amax amin argmax argmin any all linalg_vector_norm norm var std max min prod var_mean std_mean "
    "native_norm count_nonzero histc nansum frobenius_norm aminmax cosine_similarity"
)

# Names of moves that several operators share.
_MOVES = {
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


@handles(ACTIVATIONS)
def _activation(node: Node, trace: Trace) -> Draft:
    by_tanh = node.op == "gelu" and node.kwargs.get("approximate") == "tanh"
    attrs = {"function": "gelu_tanh" if by_tanh else node.op}
    return Draft("activation", {"elements": node.elements}, _sample(node, "elements"), attrs)


@handles(BINARY, UNARY)
def _elementwise(node: Node, trace: Trace) -> Draft:
    inputs = max(1, sum(1 for ref in node.refs() if not trace.is_constant(ref)))
    factor = node.kwargs.get("alpha", 1)  # multiplies the second operand of a sum or a difference
    return Draft(
        "elementwise",
        {"elements": node.elements},
        _sample(node, "elements"),
        {"ops": node.op if factor == 1 else f"mul,{node.op}", "inputs": inputs},
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
    return _moved(node, _MOVES.get(node.op, node.op))


def _moved(node: Node, how: str) -> Draft:
    return Draft("layout", {"elements": node.elements}, _sample(node, "elements"), {"op": how})


@handles("index", "gather", "index_select", "take_along_dim")
def _taken(node: Node, trace: Trace) -> Draft:
    """Return the kernel that looks up rows of a weight or gathers vectors of activations."""
    source, table = trace.base(node.args[0]), shape_of(trace, node.args[0])
    found = _places(node, trace, table, node.args[1 if node.op in ("index", "take_along_dim") else 2])
    if source is not None and source.kind == "parameter":
        # Indices of all dimensions take single numbers.
        is_number = node.op == "index" and found is not None and found[1] == len(table) - 1
        cols = 1 if is_number else source.shape[-1]
        rows, vocab = node.elements // max(1, cols), prod(source.shape) // max(1, cols)
        dims = {"rows": max(1, rows), "cols": cols, "vocab": max(1, vocab)}
        return Draft("embedding", dims, _sample(node, "rows"))
    if found is None or not node.elements:
        return _moved(node, "gather")
    apart = node.op in _ELEMENTWISE and not _is_repeated(trace, found[2])
    dims = _vectors(table, *found[:2], node.elements, apart=apart, samples=node.dynamic)
    return Draft("indexed", dims, _tables(node, dims), {"op": "gather"}, [node.args[0], found[2]])


_MEETS = {"sum": "add", "amax": "max", "amin": "min", "prod": "mul", "mean": "add"}


@handles(
    "index_put", "_index_put_impl", "index_add", "index_copy", "scatter", "scatter_add", "scatter_reduce"
)
def _brought(node: Node, trace: Trace) -> Draft:
    """Return the kernel that scatters vectors to rows of a table, where they are stored or combined."""
    target = node.args[0]
    put = node.op in ("index_put", "_index_put_impl")
    value = node.args[2] if put else node.args[3]
    found = _places(node, trace, node.shape, node.args[1] if put else node.args[2])
    vectors = shape_of(trace, value)
    if found is None or not prod(vectors) or trace.is_constant(value) or not isinstance(value, NodeRef):
        return _moved(node, "scatter")
    adds = node.op in ("index_add", "scatter_add") or (put and bool(node.arg(3, "accumulate", False)))
    op = (
        _MEETS.get(str(node.arg(4, "reduce", "")), "add")
        if node.op == "scatter_reduce"
        else "add"
        if adds
        else "set"
    )
    apart = node.op in _ELEMENTWISE and not _is_repeated(trace, found[2])
    dims = _vectors(node.shape, *found[:2], prod(vectors), apart=apart, samples=node.dynamic)
    return Draft("indexed", dims, _tables(node, dims), {"op": op}, [value, target, found[2]])


def _places(
    node: Node, trace: Trace, table: tuple[int, ...], index: Argument
) -> tuple[int, int, Argument] | None:
    """Return the first and last dimension of a table that an index addresses, and the index.

    Return None for masks and for indexed dimensions that are not adjacent.
    """
    if node.op in ("index", "index_put", "_index_put_impl"):
        parts = list(index) if isinstance(index, tuple) else [index]
        at = [i for i, part in enumerate(parts) if isinstance(part, NodeRef)]
        masked = any(getattr(trace.node(part), "dtype", "") == "bool" for part in parts)
        if not at or masked or at[-1] - at[0] + 1 != len(at):
            return None
        return at[0], at[-1], parts[at[0]]
    stated = node.arg(2, "dim") if node.op == "take_along_dim" else node.args[1]
    if stated is None:  # along all elements in order
        return (0, len(table) - 1, index) if table else None
    dim = int(stated) % max(1, len(table))
    return (dim, dim, index) if table else None


def _tables(node: Node, dims: dict[str, int]) -> str | None:
    """Return the dimension of separate tables if it grows with the batch, else None."""
    return "tables" if node.dynamic and "tables" in dims else None


# Operators whose index has an entry for each element, not for each vector.
_ELEMENTWISE = frozenset(["gather", "take_along_dim", "scatter", "scatter_add", "scatter_reduce"])


def _is_repeated(trace: Trace, index: Argument) -> bool:
    """Return whether an index has one entry per vector, repeated over its features."""
    node = trace.node(index)
    source = trace.node(node.args[0]) if node is not None and node.op in ("expand", "expand_as") else None
    return source is not None and bool(source.shape) and source.shape[-1] == 1


def _vectors(
    table: tuple[int, ...], first: int, last: int, elements: int, *, apart: bool, samples: bool
) -> dict[str, int]:
    """Return the dimensions of a gather or scatter: the table's dimensions before the indexed ones count
    tables, those after them count features.

    If `apart` is true, each feature has its own index, so each is a table of single elements. If `samples` is
    true, there is one table per sample, so the number of tables grows with the batch.
    """
    before, vocab, after = prod(table[:first]), prod(table[first : last + 1]), prod(table[last + 1 :])
    if apart:
        before, after = before * after, 1
    rows = max(1, elements // max(1, before * after))
    sizes = {"rows": rows, "cols": max(1, after), "vocab": max(1, vocab)}
    return {"tables": before, **sizes} if before > 1 or (samples and first > 0) else sizes


@handles(REDUCTIONS)
def _reduce(node: Node, trace: Trace) -> Draft:
    whole = prod(shape_of(trace, node.args[0]))
    rows = max(1, min(node.elements, whole))
    kind = "max" if "max" in node.op or "min" in node.op else "mean" if node.op == "mean" else "sum"
    # If the result has no dimension left for the batch, the sum is over the batch.
    is_whole = not node.shape or (rows == 1 and 0 in axes(node, trace))
    sample = ("cols" if is_whole else "rows") if node.dynamic else None
    return Draft("reduce", {"rows": rows, "cols": max(1, whole // rows)}, sample, {"op": kind})


@handles("topk", "sort", "argsort", "kthvalue", "median", "nanmedian", "mode")
def _topk(node: Node, trace: Trace) -> Draft:
    shape = shape_of(trace, node.args[0])
    cols = prod(shape[dim] for dim in axes(node, trace)) if shape else 1
    k = int(node.arg(1, "k", cols)) if node.op in ("topk", "kthvalue") else cols
    return Draft("topk", {"rows": max(1, prod(shape) // cols), "cols": cols, "k": k}, _sample(node, "rows"))


@handles("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin")
def _cumulative(node: Node, trace: Trace) -> Draft:
    shape = shape_of(trace, node.args[0])
    steps = prod(shape[dim] for dim in axes(node, trace)) if shape else 1
    dims = {"steps": steps, "width": 1, "batch": max(1, node.elements // steps)}
    return Draft("scan", dims, _sample(node, "batch"), {"kind": "cumsum"})


_RECURRENT = frozenset(["lstm", "gru", "rnn_tanh", "rnn_relu"])
_ALONG = frozenset(["reduce", "softmax", "topk", "scan"])


def works_along(draft: Draft, node: Node) -> bool:
    """Return whether a kernel sums, sorts or scans along dimensions that its operator states."""
    return draft.family in _ALONG and node.op not in _RECURRENT


@handles("wse_sim.ctc")
def _alignments(node: Node, trace: Trace) -> Draft:
    steps, batch, states = shape_of(trace, node.args[0])
    dims = {"steps": steps, "states": states, "batch": batch}
    return Draft("ctc", dims, _sample(node, "batch"), {}, [node.args[0]])


@handles("lstm", "gru", "rnn_tanh", "rnn_relu")
def _recurrent(node: Node, trace: Trace) -> Draft:
    x = shape_of(trace, node.args[0])
    if len(x) != 3 or not isinstance(node.args[2], tuple):
        raise unsupported(node, "works on packed sequences, and only padded ones are known")
    # Each layer and direction has weights of input and state, and optionally two biases and a projection.
    weights = [shape_of(trace, w) for w in node.args[2]]
    ways = int(node.args[4]) * (2 if bool(node.args[7]) else 1)
    each = len(weights) // ways
    batch_first = bool(node.args[-1]) if isinstance(node.args[-1], bool) else False
    batch, steps = (x[0], x[1]) if batch_first else (x[1], x[0])
    matrices = sum(prod(w) for w in weights if len(w) == 2)
    dims = {"steps": steps, "width": node.shape[-1], "batch": batch, "weights": matrices}
    dims["of_input"] = sum(prod(weights[each * i]) for i in range(ways // int(node.args[4])))
    dims["of_state"] = sum(prod(weights[each * i + 1]) for i in range(ways))
    return Draft("scan", dims, "batch", {"kind": node.op} | _initial_states(node, trace))


def _initial_states(node: Node, trace: Trace) -> dict[str, str]:
    """Return the attribute that tells which initial states of a recurrent layer are parameters.

    It is stated only if they differ from the default, in which a computed hidden state is the second input.
    """
    given = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    bases = dict(zip("hc", map(trace.base, given), strict=False))
    learned = {at: base.name for at, base in bases.items() if base is not None and base.kind == "parameter"}
    if len({*learned.values()}) < len(learned):  # one parameter is both
        learned.pop("c")
    if learned:
        return {"initial": "".join(learned)}
    computed = [at for at, base in bases.items() if base is not None and base.dynamic]
    return {"initial": "-"} if computed == ["c"] else {}


@handles("wse.rotary")
def _rotary(node: Node, trace: Trace) -> Draft:
    cols = node.shape[-1]
    dims = {"elements": node.elements, "rows": node.elements // cols, "cols": cols}
    return Draft("rotary", dims, _sample(node, "elements"), attributes_of(trace, node), [node.args[0]])


@handles(
    "zero arange full zeros ones zeros_like ones_like full_like empty scalar_tensor eye new_zeros new_ones new_full"
)
@handles(
    "empty_like rand randn rand_like randn_like randint bernoulli new_empty linspace normal normal_functional empty_permuted"
)
def _created(node: Node, trace: Trace) -> Draft:
    return Draft("layout", {"elements": max(1, node.elements)}, None, {"op": "fill"})


def known_operators() -> list[str]:
    """Return the sorted names of all operators that have a handler."""
    return sorted(HANDLERS)
