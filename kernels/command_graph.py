"""Commands of the families of the graph that work on a rectangle: their parameters, and the call that these make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wse_sim.graph import Phase
from wse_sim.kernels.base import Tiling
from wse_sim.kernels.command import Call, KernelCommand, Parameter

HALF = Parameter("dtype", "fp16", "precision of what rests", ("fp32", "fp16"))
FULL = Parameter("dtype", "fp32", "precision", ("fp32", "fp16"))


def _streamed(p: Mapping[str, Any]) -> Tiling:
    return Tiling(p["rows"], p["cols"], "streamed")


def _gradient(p: Mapping[str, Any]) -> Call:
    dims = {name: p[name] for name in "mkn"}
    return Call("gemm", dims, _streamed(p), p["dtype"], phase=Phase.WEIGHT_GRADIENT)


def _batch_gemm(p: Mapping[str, Any]) -> Call:
    tiling = Tiling(p["rows"], p["cols"], p["mapping"])
    return Call("batch_gemm", {name: p[name] for name in "bmkn"}, tiling, p["dtype"])


def _grouped_gemm(p: Mapping[str, Any]) -> Call:
    dims = {name: p[name] for name in ("m", "k", "n", "groups")}
    return Call("grouped_gemm", dims, _streamed(p), p["dtype"])


def _conv2d(p: Mapping[str, Any]) -> Call:
    dims = {"b": 1, "r": 3, "s": 3, "stride": 1, **{name: p[name] for name in ("w", "c", "k")}}
    dims |= {"h": p["rows"], "out_h": p["rows"], "out_w": p["w"]}
    return Call("conv2d", dims, _streamed(p), p["dtype"])


def _optimizer(p: Mapping[str, Any]) -> Call:
    return Call("optimizer", {"elements": p["elements"]}, _streamed(p), "fp32", {"algorithm": p["algorithm"]})


def _dropout(p: Mapping[str, Any]) -> Call:
    return Call("dropout", {"elements": p["elements"]}, _streamed(p), p["dtype"], {"p": 0.1})


def _embedding(p: Mapping[str, Any]) -> Call:
    dims = {"rows": p["m"], "cols": p["n"], "vocab": p["vocab"]}
    tiling = Tiling(p["rows"], p["cols"], p["mapping"])
    return Call("embedding", dims, tiling, p["dtype"], phase=Phase(p["phase"]))


def _layout(p: Mapping[str, Any]) -> Call:
    return Call("layout", {"elements": p["elements"]}, _streamed(p), p["dtype"], {"op": p["op"]})


def _resample(p: Mapping[str, Any]) -> Call:
    side, scale = p["side"], p["scale"]
    dims = {"b": 1, "h": side, "w": side, "c": p["c"], "out_h": scale * side, "out_w": scale * side}
    return Call("resample", dims, _streamed(p), p["dtype"], {"mode": p["mode"]}, Phase(p["phase"]))


def _cross_entropy(p: Mapping[str, Any]) -> Call:
    return Call("cross_entropy", {"rows": p["m"], "cols": p["n"]}, Tiling(p["rows"], p["cols"], "grid"))


def _scan(p: Mapping[str, Any]) -> Call:
    dims = {name: p[name] for name in ("steps", "width", "batch")}
    tiling = Tiling(1, p["rows"] * p["cols"], "stationary") if p["kind"] == "lstm" else _streamed(p)
    return Call("scan", dims, tiling, p["dtype"], {"kind": p["kind"]}, Phase(p["phase"]))


def _generated(p: Mapping[str, Any]) -> Call:
    attrs = {"ops": p["ops"], "inputs": 1 + len(p["ops"].split(","))}
    return Call("generated", {"elements": p["elements"]}, _streamed(p), p["dtype"], attrs)


def _pool2d(p: Mapping[str, Any]) -> Call:
    side, window = p["side"], p["window"]
    dims = {"b": 1, "h": side * window, "w": side * window, "c": p["c"], "r": window, "s": window}
    dims |= {"stride": window, "out_h": side, "out_w": side}
    return Call("pool2d", dims, _streamed(p), p["dtype"], {"kind": "max"})


def _phase(backward: str) -> Parameter:
    return Parameter("phase", "forward", "phase of training", ("forward", backward))


def _sizes(**sizes: int) -> tuple[Parameter, ...]:
    named = tuple(Parameter(name, size, f"dimension {name}") for name, size in sizes.items())
    return (*named, Parameter("rows", 4, "rows of cores"), Parameter("cols", 4, "columns of cores"))


GRAPH_COMMANDS = (
    KernelCommand(
        "weight_gradient",
        "streamed weight gradient: m features, k tokens, n outputs",
        (*_sizes(m=128, k=128, n=32), HALF),
        _gradient,
    ),
    KernelCommand(
        "batch_gemm",
        "b independent products, one per sub-rectangle",
        (
            *_sizes(b=4, m=64, k=64, n=32),
            HALF,
            Parameter("mapping", "streamed", "mapping", ("streamed", "stationary")),
        ),
        _batch_gemm,
    ),
    KernelCommand(
        "grouped_gemm",
        "streamed products of groups of rows, each with its own weights",
        (*_sizes(m=192, k=64, n=24, groups=3), HALF),
        _grouped_gemm,
    ),
    KernelCommand(
        "conv2d",
        "3 x 3 convolution of an image of `rows` lines, k filters over c channels",
        (*_sizes(w=32, c=8, k=32), HALF),
        _conv2d,
    ),
    KernelCommand(
        "optimizer",
        "optimizer update of fp32 weights",
        (
            *_sizes(elements=4096),
            Parameter("algorithm", "adamw", "algorithm", ("sgd", "momentum", "adam", "adamw")),
        ),
        _optimizer,
    ),
    KernelCommand("dropout", "random mask times a scale", (*_sizes(elements=4096), FULL), _dropout),
    KernelCommand(
        "embedding",
        "gather of m vectors of n elements, or the scatter-add of their gradients",
        (
            *_sizes(m=64, n=256, vocab=128),
            FULL,
            Parameter("mapping", "streamed", "mapping", ("streamed", "stationary")),
            _phase("weight_gradient"),
        ),
        _embedding,
    ),
    KernelCommand(
        "layout",
        "copy to a neighbour, fill, or transpose of a matrix tiled on a square of cores",
        (
            *_sizes(elements=6400),
            HALF,
            Parameter("op", "transpose", "operator", ("copy", "fill", "transpose")),
        ),
        _layout,
    ),
    KernelCommand(
        "resample",
        "enlargement of an image of side x side pixels and c channels",
        (
            *_sizes(side=16, c=16, scale=2),
            HALF,
            Parameter("mode", "nearest", "mode", ("nearest", "bilinear", "bicubic")),
            _phase("input_gradient"),
        ),
        _resample,
    ),
    KernelCommand(
        "cross_entropy",
        "loss of m rows of n logits, hand-written, fp32",
        _sizes(m=16, n=256),
        _cross_entropy,
    ),
    KernelCommand(
        "generated",
        "a generated chain of elementwise operators",
        (*_sizes(elements=4096), Parameter("ops", "mul,add", "operators: add, sub, mul, max"), FULL),
        _generated,
    ),
    KernelCommand(
        "pool2d",
        "maximum over windows; side x side outputs of c channels",
        (*_sizes(side=16, c=8, window=2), FULL),
        _pool2d,
    ),
    KernelCommand(
        "scan",
        "recurrence over steps",
        (
            *_sizes(steps=16, width=128, batch=8),
            FULL,
            Parameter(
                "kind", "selective", "kind (lstm: all cores in one row)", ("lstm", "selective", "cumsum")
            ),
            _phase("input_gradient"),
        ),
        _scan,
    ),
)
