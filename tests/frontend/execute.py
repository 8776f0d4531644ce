"""Computes kernel graphs by the kernels' `compute` faces, on values that PyTorch recorded.

:func:`record` runs the captured ATen graph and keeps the value of every operator.  :func:`run_kernel`
gives one kernel the recorded values of its operands and returns its result, to be compared with the
recorded value of the operator that the kernel ends with.

One file, because it is one table: a function per family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import torch

from wse_sim.frontend.build import LoweredModel, lower_trace
from wse_sim.frontend.capture import export, trace_exported
from wse_sim.frontend.precision import precision_of
from wse_sim.frontend.trace import Node, NodeRef
from wse_sim.graph import Kernel
from wse_sim.kernels import family
from wse_sim.kernels.blocks.elements import ALIASES
from wse_sim.kernels.blocks.on_tables import OnTables
from wse_sim.kernels.contract.numerics import BINARY, UNARY

SPLIT = {"parts": 3}  # every reduction is split over this many cores


class _Recorder(torch.fx.Interpreter):
    """Runs a graph and keeps every value; `instead` may replace the value of an operator."""

    def __init__(self, module: Any, instead: Callable[[str, dict[str, Any]], Any] | None = None) -> None:
        super().__init__(module)
        self.values: dict[str, Any] = {}
        self.instead = instead

    def run_node(self, node: torch.fx.Node) -> Any:
        given = self.instead(node.name, self.values) if self.instead else None
        value = super().run_node(node) if given is None else given
        self.values[node.name] = value
        return value


@dataclass
class Recorded:
    """A lowered model with its weights, its inputs and the value of every operator."""

    lowered: LoweredModel
    program: Any
    inputs: list[Any]
    values: dict[str, Any]  # results of operators
    leaves: dict[str, Any]  # weights, buffers, inputs by the trace's names
    result: Any


def record(module: torch.nn.Module, args: Any, kwargs: Any = None) -> Recorded:
    """Capture, lower in fp32 and run a module with real weights."""
    module.eval()
    program = export(module, args, kwargs, False).run_decompositions({})
    ties = {other: names[0] for names in _same(module).values() for other in names[1:]}
    lowered = lower_trace(trace_exported(program, ties), precision=precision_of("fp32"), training=False)
    user = iter(x for x in torch.utils._pytree.tree_leaves((tuple(args), dict(kwargs or {}))))
    inputs, leaves = [], {}
    for spec in program.graph_signature.input_specs:
        if spec.kind.name == "USER_INPUT":
            value = next(user)
            leaves[spec.arg.name] = value
        else:
            value = program.state_dict.get(spec.target, program.constants.get(spec.target))
            leaves[ties.get(spec.target, spec.target)] = value
        inputs.append(value)
    recorder = _Recorder(program.graph_module)
    with torch.no_grad():
        result = recorder.run(*inputs)
        eager = torch.utils._pytree.tree_leaves(module(*args, **(kwargs or {})))[0]
    torch.testing.assert_close(torch.utils._pytree.tree_leaves(result)[0], eager, rtol=1e-4, atol=1e-5)
    return Recorded(lowered, program, inputs, recorder.values, leaves, eager)


def _same(module: torch.nn.Module) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        found.setdefault(id(parameter), []).append(name)
    return found


def check_every_kernel(model: Recorded, tolerance: float = 1e-4) -> dict[str, float]:
    """Return the largest relative error of every kernel, each on recorded operands; errors above the limit raise."""
    faults = {}
    for kernel in model.lowered.graph:
        nodes = model.lowered.nodes_of[kernel.name]
        check_operands(model.lowered, kernel, nodes)
        ours = run_kernel(kernel, model.lowered, model.values, model.leaves)
        faults[kernel.name] = relative(ours, model.values[nodes[-1].name])
        assert faults[kernel.name] < tolerance, (kernel, nodes, faults[kernel.name])
    return faults


def run_whole(model: Recorded) -> Any:
    """Return the model's result with every kernel fed by the kernels before it: only views are PyTorch's."""
    ends = {nodes[-1].name: name for name, nodes in model.lowered.nodes_of.items()}
    inside = {n.name for nodes in model.lowered.nodes_of.values() for n in nodes[:-1]}

    def instead(name: str, values: dict[str, Any]) -> Any:
        if name in inside:  # a poisoned value: nobody but the kernel may read it
            return torch.utils._pytree.tree_map(lambda x: torch.full_like(x, torch.nan), model.values[name])
        if name not in ends:
            return None
        kernel = model.lowered.graph.kernel(ends[name])
        ours = run_kernel(kernel, model.lowered, values, model.leaves)
        whole = model.values[name]
        value = torch.empty_like(_first(whole))  # with its strides: views after it rely on them
        value.copy_(torch.from_numpy(np.ascontiguousarray(ours)))
        return (value, *whole[1:]) if isinstance(whole, tuple) else value

    recorder = _Recorder(model.program.graph_module, instead)
    with torch.no_grad():
        return torch.utils._pytree.tree_leaves(recorder.run(*model.inputs))[0]


def relative(ours: Any, theirs: Any) -> float:
    """Return the largest difference over the largest value."""
    theirs = _first(theirs).detach().numpy()
    assert np.shape(ours) == theirs.shape, (np.shape(ours), theirs.shape)
    scale = float(np.abs(theirs).max(initial=0)) or 1.0
    return float(np.abs(np.asarray(ours, np.float64) - theirs).max(initial=0)) / scale


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) else value


def check_operands(lowered: LoweredModel, kernel: Kernel, nodes: tuple[Node, ...]) -> None:
    """Check that the operands of the kernel are exactly the activations and weights that the operators read."""
    inside, read = {n.name for n in nodes}, set()
    for node in nodes:
        for ref in node.refs():
            base = lowered.trace.base(ref)
            if base is not None and base.name not in inside and not lowered.trace.is_constant(ref):
                read.add(lowered.tensor_of[base.name])
    stated = {*kernel.inputs, *kernel.parameters}
    stated -= {t for t in stated if str(lowered.graph.tensors[t].kind) == "constant"}
    assert read == stated, (kernel.name, read, stated)
    assert lowered.tensor_of[nodes[-1].name] == kernel.outputs[0]


# --- one kernel


class _Values:
    """Values of arguments as arrays, and which argument is the current result."""

    def __init__(self, lowered: LoweredModel, values: Mapping[str, Any], leaves: Mapping[str, Any]) -> None:
        self.trace, self.values, self.leaves = lowered.trace, values, leaves

    def __call__(self, argument: Any) -> Any:
        if not isinstance(argument, NodeRef):
            return argument
        value = self.leaves[argument.name] if argument.name in self.leaves else self.values[argument.name]
        return value.detach().numpy()

    def carried(self, argument: Any, before: Node, value: Any) -> Any:
        """Return `value`, the result of `before`, as `argument` sees it through views; None if it belongs to another."""
        base = self.trace.base(argument)
        if base is None or base.name != before.name:
            return None
        views, node = [], self.trace.node(argument)
        while node is not None and node.name != before.name:
            views.append(node)
            node = self.trace.node(node.refs()[0])
        value = value.reshape(before.shape)
        for view in reversed(views):
            assert view.op in _PLAIN_VIEWS, view.op
            value = value.swapaxes(*view.args[1:]) if view.op == "transpose" else value.reshape(view.shape)
        return value


_PLAIN_VIEWS = (
    "view",
    "reshape",
    "_unsafe_view",
    "flatten",
    "dropout_off",
    "no_op_cast",
    "contiguous",
    "clone",
)
_PLAIN_VIEWS += ("unsqueeze", "squeeze", "transpose", "alias", "detach", "getitem")


def run_kernel(
    kernel: Kernel, lowered: LoweredModel, values: Mapping[str, Any], leaves: Mapping[str, Any]
) -> Any:
    """Return the result of one kernel on the values of its operands."""
    nodes, of = lowered.nodes_of[kernel.name], _Values(lowered, values, leaves)
    if kernel.family in ("elementwise", "activation", "generated"):
        return _chain(kernel, nodes, of).reshape(nodes[-1].shape)
    if kernel.family == "conv2d":
        return _conv(kernel, nodes, of).reshape(nodes[-1].shape)
    result = _RUN[kernel.family](kernel, nodes[0], of)
    return _epilogue(kernel, nodes, 1, result, of).reshape(nodes[-1].shape)


def _function(node: Node) -> str:
    return "gelu_tanh" if node.kwargs.get("approximate") == "tanh" else node.op


def _epilogue(kernel: Kernel, nodes: tuple[Node, ...], first: int, result: Any, of: _Values) -> Any:
    """Apply what is fused to a product, in the order of the kernel's attribute."""
    parts = [p for p in str(kernel.attrs.get("fused", "")).split(",") if p and p != "bias"]
    for index, part in zip(range(first, len(nodes)), parts, strict=True):
        node = nodes[index]
        if part in ("residual", "scale"):
            result = _step(node, nodes[index - 1], result, of)
        else:
            assert part == _function(node), (kernel, node)
            result = of.carried(node.args[0], nodes[index - 1], result)
            result = family("activation").compute(result, function=_function(node))
    return result


def _step(node: Node, before: Node, result: Any, of: _Values) -> Any:
    """Apply one elementwise operator to the current result."""
    ops, operands = _told(node, before, result, of)
    return family("elementwise").compute(*operands, ops=ops)


_FLIPPED = {"add": "add", "mul": "mul", "sub": "neg,add", "div": "reciprocal,mul", "maximum": "maximum"}


def _told(node: Node, before: Node | None, result: Any, of: _Values) -> tuple[str, list[Any]]:
    """Return (operators, operands) of a node as a chain; the first operand is `result`, the value of `before`."""
    assert node.op in (*BINARY, *ALIASES) or len(node.args) == 1 or _function(node) in UNARY, node
    arguments = list(node.args[: 2 if node.op in (*BINARY, *ALIASES) else 1])
    assert node.kwargs.get("alpha", 1) == 1
    if before is None:
        return _function(node), [of(a) for a in arguments]
    seen = [of.carried(a, before, result) for a in arguments]
    place = next(i for i, s in enumerate(seen) if s is not None)
    others = [
        of(a) if s is None else s for i, (a, s) in enumerate(zip(arguments, seen, strict=True)) if i != place
    ]
    return (_FLIPPED[node.op] if place else _function(node)), [seen[place], *others]


def _chain(kernel: Kernel, nodes: tuple[Node, ...], of: _Values) -> Any:
    """Apply consecutive elementwise operators, by one call where no view is between them."""
    stated = str(kernel.attrs.get("ops") or kernel.attrs.get("function"))
    assert stated == ",".join(n.op for n in nodes), (stated, nodes)
    if kernel.family == "activation":
        return family("activation").compute(of(nodes[0].args[0]), function=_function(nodes[0]))
    told, operands = _told(nodes[0], None, None, of)
    result = family(kernel.family).compute(*operands, ops=told)
    for before, node in pairwise(nodes):
        more, given = _told(node, before, result, of)
        told, operands = f"{told},{more}", [*operands, *given[1:]]
        result = family(kernel.family).compute(*given, ops=more)
    if all(n.shape == nodes[0].shape for n in nodes):
        np.testing.assert_allclose(family(kernel.family).compute(*operands, ops=told), result, rtol=1e-5)
    return result


def _gemm(kernel: Kernel, node: Node, of: _Values) -> Any:
    d = kernel.dims
    bias, x, weights = node.args[:3] if node.op == "addmm" else (node.arg(2, "bias"), *node.args[:2])
    weights = of(weights).T if node.op == "linear" else of(weights)
    assert weights.shape == (d["k"], d["n"])
    return family("gemm").compute(of(x).reshape(d["m"], d["k"]), weights, of(bias), **SPLIT)


def _batch_gemm(kernel: Kernel, node: Node, of: _Values) -> Any:
    d, (a, b) = kernel.dims, node.args[:2]
    return family("batch_gemm").compute(
        of(a).reshape(d["b"], d["m"], d["k"]), of(b).reshape(d["b"], d["k"], d["n"]), **SPLIT
    )


def _attention(kernel: Kernel, node: Node, of: _Values) -> Any:
    d = kernel.dims
    q, k, v = (of(a) for a in node.args[:3])
    assert q.shape == (d["b"], d["heads"], d["q"], d["d"])
    step = k.shape[1] // d["kv_heads"]  # heads that a view repeated
    k, v = k[:, ::step], v[:, ::step]
    scale = node.kwargs.get("scale")
    assert scale is None or abs(scale - d["d"] ** -0.5) < 1e-6
    mask = of(node.arg(3, "attn_mask")) if kernel.attrs.get("mask") == "dense" else None
    if mask is not None and mask.dtype == bool:
        mask = np.where(mask, np.float32(0), np.float32(-1e30))
    return family("attention").compute(q, k, v, causal=kernel.attrs["causal"], mask=mask, **SPLIT)


def _norm(kernel: Kernel, node: Node, of: _Values) -> Any:
    d, kind = kernel.dims, kernel.attrs["kind"]
    if kind == "batch":
        scale, shift = _folded(node, of)
        around = (-1, *[1] * (len(node.shape) - 2))
        x = of(node.args[0])
        return family("elementwise").compute(x, scale.reshape(around), shift.reshape(around), ops="mul,add")
    assert kind in ("layer", "rms")
    if node.op.startswith("wse."):
        weights, eps = node.args[1:], node.kwargs["eps"]
    else:
        at = 3 if kind == "rms" else 4
        weights, eps = node.args[2:at], node.arg(at, "eps", None if kind == "rms" else 1e-5)
    x = of(node.args[0]).reshape(d["rows"], d["cols"])
    eps = float(np.finfo(np.float32).eps) if eps is None else eps
    return family("norm").compute(x, *(of(w) for w in weights), kind=kind, eps=eps, **SPLIT)


_NORMS = ("batch_norm", "_native_batch_norm_legit_no_training")


def _folded(norm: Node, of: _Values) -> tuple[Any, Any]:
    """Return scale and shift of a batch norm with running statistics."""
    weight, bias, mean, variance = (of(a) for a in norm.args[1:5])
    scale = weight / np.sqrt(variance + norm.args[7 if norm.op == _NORMS[0] else 6])
    return scale, bias - mean * scale


def _conv(kernel: Kernel, nodes: tuple[Node, ...], of: _Values) -> Any:
    """Return a convolution of channels-last values; a batch norm after it is folded into its weights."""
    node, d = nodes[0], kernel.dims
    filters, bias = of(node.args[1]).transpose(2, 3, 1, 0), of(node.arg(2, "bias"))
    first = 1
    if len(nodes) > 1 and nodes[1].op in _NORMS:
        scale, shift = _folded(nodes[1], of)
        assert bias is None
        filters, bias, first = filters * scale, shift, 2
    padding = (*node.arg(4, "padding", (0,)), 0)[0]
    image = of(node.args[0]).transpose(0, 2, 3, 1)
    assert (image.shape, filters.shape[:2]) == ((d["b"], d["h"], d["w"], d["c"]), (d["r"], d["s"]))
    result = family("conv2d").compute(
        image, filters, stride=d["stride"], padding=padding, groups=kernel.attrs["groups"], **SPLIT
    )
    if bias is not None:
        result = family("elementwise").compute(result, bias, ops="add")
    return _epilogue(kernel, nodes, first, result.transpose(0, 3, 1, 2), of)


def _pool(kernel: Kernel, node: Node, of: _Values) -> Any:
    d, image = kernel.dims, of(node.args[0]).transpose(0, 2, 3, 1)
    padding = 0 if "adaptive" in node.op else (*(node.arg(3, "padding", (0,)) or (0,)), 0)[0]
    result = family("pool2d").compute(
        image, window=d["r"], stride=d["stride"], padding=padding, kind=kernel.attrs["kind"]
    )
    return result.transpose(0, 3, 1, 2)


def _reduce(kernel: Kernel, node: Node, of: _Values) -> Any:
    x, axes = of(node.args[0]), node.args[1]
    last = tuple(range(x.ndim - len(axes), x.ndim))
    rows = np.moveaxis(x, axes, last).reshape(kernel.dims["rows"], kernel.dims["cols"])
    return family("reduce").compute(rows, op=kernel.attrs["op"], **SPLIT)


def _softmax(kernel: Kernel, node: Node, of: _Values) -> Any:
    assert node.args[1] in (-1, len(node.shape) - 1)
    return family("softmax").compute(of(node.args[0]), log=kernel.attrs["log"], **SPLIT)


def _embedding(kernel: Kernel, node: Node, of: _Values) -> Any:
    table, ids = of(node.args[0]), of(node.args[1])
    assert table.shape == (kernel.dims["vocab"], kernel.dims["cols"])
    assert prod(ids.shape) == kernel.dims["rows"]
    return family("embedding").compute(ids, table)


def _rotary(kernel: Kernel, node: Node, of: _Values) -> Any:
    turned = family("rotary")
    assert isinstance(turned, OnTables)
    x, work = of(node.args[0]), turned.work(kernel.dims, kernel.attrs)
    tables = [np.concatenate([of(a) for a in node.args[number::2]], -1) for number in (1, 2)]
    held = [work.table(number, table, x.shape[-1]) for number, table in enumerate(tables)]
    return turned.compute(x, *held, **kernel.attrs)


def _layout(kernel: Kernel, node: Node, of: _Values) -> Any:
    op = kernel.attrs["op"]
    if op == "cat":
        return family("layout").compute(*(of(a) for a in node.args[0]), op=op, axes=node.arg(1, "dim", 0))
    raise AssertionError(node)


def _indexed(kernel: Kernel, node: Node, of: _Values) -> Any:
    """Return a gather along axis 1 by an index that is the same for all features: each sample is a table."""
    assert (kernel.attrs["op"], node.op, node.args[1]) == ("gather", "gather", 1), node
    tables, ids = of(node.args[0]), of(node.args[2])
    assert len(tables) == kernel.dims["tables"]
    assert (ids == ids[..., :1]).all()
    return np.stack([family("indexed").compute(x, i[:, 0]) for x, i in zip(tables, ids, strict=True)])


def _cross_entropy(kernel: Kernel, node: Node, of: _Values) -> Any:
    logits, labels = (of(a) for a in node.args[:2])
    return np.asarray(family("cross_entropy").compute(logits, labels, **SPLIT))


_RUN: dict[str, Callable[[Kernel, Node, _Values], Any]] = {
    "gemm": _gemm,
    "batch_gemm": _batch_gemm,
    "attention": _attention,
    "norm": _norm,
    "pool2d": _pool,
    "reduce": _reduce,
    "softmax": _softmax,
    "embedding": _embedding,
    "rotary": _rotary,
    "layout": _layout,
    "indexed": _indexed,
    "cross_entropy": _cross_entropy,
}
