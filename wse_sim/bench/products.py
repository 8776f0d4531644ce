"""Commands of products, convolutions, pooling and elementwise work: their parameters, and the calls these make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from wse_sim.bench.contract import KernelCommand, KernelRequest, Parameter, stated
from wse_sim.bench.graph import FULL, HALF, sizes
from wse_sim.graph import Phase
from wse_sim.kernels.contract.family import Tiling

BACKWARD = Parameter("phase", "forward", "phase of training", ("forward", "input_gradient"))
PHASE = Parameter("phase", "forward", "phase of training", (*BACKWARD.choices, "weight_gradient"))
MAPPING = Parameter("mapping", "streamed", "mapping", ("streamed", "stationary"))


def _tiling(p: Mapping[str, Any]) -> Tiling:
    return Tiling(p["rows"], p["cols"], p.get("mapping", "streamed"))


def _weight_gradient(p: Mapping[str, Any]) -> KernelRequest:
    dims = {name: p[name] for name in "mkn"}
    return KernelRequest("gemm", dims, _tiling(p), p["dtype"], phase=Phase.WEIGHT_GRADIENT)


def _sparse_gemm(p: Mapping[str, Any]) -> KernelRequest:
    dims, attrs = {name: p[name] for name in "mkn"}, {"density": p["density"]}
    return KernelRequest(
        "gemm", dims, Tiling(p["rows"], p["cols"], "streamed", lanes=p["lanes"]), p["dtype"], attrs
    )


def _fused_gemm(p: Mapping[str, Any]) -> KernelRequest:
    return KernelRequest(
        "gemm", {name: p[name] for name in "mkn"}, _tiling(p), p["dtype"], {"fused": p["fused"]}
    )


def _batch_gemm(p: Mapping[str, Any]) -> KernelRequest:
    return KernelRequest("batch_gemm", {name: p[name] for name in "bmkn"}, _tiling(p), p["dtype"])


def _grouped_gemm(p: Mapping[str, Any]) -> KernelRequest:
    dims = {name: p[name] for name in ("m", "k", "n", "groups")}
    return KernelRequest("grouped_gemm", dims, _tiling(p), p["dtype"], phase=Phase(p["phase"]))


def _conv2d(p: Mapping[str, Any]) -> KernelRequest:
    phase, stride, size = Phase(p["phase"]), p["stride"], p["taps"]
    small = {"h": p["rows"] * p["lines"], "w": p["w"]}
    large = {name: stride * value for name, value in small.items()}
    transposed = phase is Phase.INPUT_GRADIENT
    image, result = (small, large) if transposed else (large, small)
    dims = {"b": 1, **image, "c": p["c"], "k": p["k"], "r": size, "s": size, "stride": stride}
    dims |= {"out_h": result["h"], "out_w": result["w"]}
    attrs = {"groups": p["groups"], **({"transposed": True} if transposed else {})}
    return KernelRequest("conv2d", dims, _tiling(p), p["dtype"], attrs, phase)


def _conv3d(p: Mapping[str, Any]) -> KernelRequest:
    small = {"d": p["slices"], "h": p["rows"] * p["lines"], "w": p["w"]}
    taps = dict.fromkeys(("t", "r", "s"), p["taps"])
    dims = {"b": 1, **small, "c": p["c"], "k": p["k"], **taps, "stride": 1, "stride_d": 1}
    dims |= {f"out_{name}": size for name, size in small.items()}
    return KernelRequest("conv3d", dims, _tiling(p), p["dtype"], {"groups": p["groups"]}, Phase(p["phase"]))


def _pool3d(p: Mapping[str, Any]) -> KernelRequest:
    side, window = p["side"], p["window"]
    dims = {"b": 1, **dict.fromkeys("dhw", side * window), "c": p["c"], **dict.fromkeys("trs", window)}
    dims |= {"stride": window, **dict.fromkeys(("out_d", "out_h", "out_w"), side)}
    return KernelRequest("pool3d", dims, _tiling(p), p["dtype"], {"kind": p["kind"]}, Phase(p["phase"]))


def _pool2d(p: Mapping[str, Any]) -> KernelRequest:
    side, window = p["side"], p["window"]
    dims = {"b": 1, "h": side * window, "w": side * window, "c": p["c"], "r": window, "s": window}
    dims |= {"stride": window, "out_h": side, "out_w": side}
    return KernelRequest("pool2d", dims, _tiling(p), p["dtype"], {"kind": p["kind"]}, Phase(p["phase"]))


def _elements(name: str, *attrs: str) -> Callable[[Mapping[str, Any]], KernelRequest]:
    """A call of a family whose dimension is `elements`; operators of a chain bring an operand each."""

    def call(p: Mapping[str, Any]) -> KernelRequest:
        given = {key: p[key] for key in attrs}
        if "ops" in given:
            given["inputs"] = 1 + len(p["ops"].split(","))
        dims = {"elements": p["elements"]} | ({"rows": p["rows"]} if name == "generated" else {})
        phase = Phase.UPDATE if name == "optimizer" else Phase(p["phase"])
        return KernelRequest(name, dims, _tiling(p), p.get("dtype", "fp32"), given, phase)

    return call


PRODUCT_COMMANDS = (
    KernelCommand(
        "weight_gradient",
        "weight gradient of a product: m features, k tokens, n outputs",
        (*sizes(m=128, k=128, n=32), HALF, MAPPING),
        _weight_gradient,
    ),
    KernelCommand(
        "sparse_gemm",
        "streamed product with a fraction of nonzero weights",
        (
            *sizes(m=128, k=256, n=32),
            HALF,
            stated("gemm", "density", 0.25),
            Parameter("lanes", 1, "lanes"),
        ),
        _sparse_gemm,
    ),
    KernelCommand(
        "fused_gemm",
        "product with operators fused to its outputs",
        (
            *sizes(m=128, k=128, n=32),
            HALF,
            MAPPING,
            stated("gemm", "fused", "bias,gelu"),
        ),
        _fused_gemm,
    ),
    KernelCommand(
        "batch_gemm",
        "b independent products, each on a sub-rectangle; several per core if they are more than cores",
        (*sizes(b=4, m=64, k=64, n=32), HALF, MAPPING),
        _batch_gemm,
    ),
    KernelCommand(
        "grouped_gemm",
        "products of groups of rows, each with its own weights",
        (*sizes(m=192, k=64, n=24, groups=3), HALF, MAPPING, PHASE),
        _grouped_gemm,
    ),
    KernelCommand(
        "conv2d",
        "convolution with `lines` lines of w results per row of cores, k filters over c channels",
        (
            *sizes(w=32, c=8, k=32),
            HALF,
            MAPPING,
            PHASE,
            Parameter("lines", 1, "lines per row of cores"),
            Parameter("taps", 3, "lines and columns of taps"),
            Parameter("stride", 1, "stride"),
            stated("conv2d", "groups"),
        ),
        _conv2d,
    ),
    KernelCommand(
        "pool2d",
        "pooling over windows; side x side outputs of c channels",
        (
            *sizes(side=16, c=8, window=2),
            FULL,
            stated("pool2d", "kind"),
            BACKWARD,
        ),
        _pool2d,
    ),
    KernelCommand(
        "conv3d",
        "convolution of volumes: `slices` slices of `lines` lines of w results per row of cores",
        (
            *sizes(w=32, c=4, k=16),
            HALF,
            MAPPING,
            Parameter("phase", "forward", "phase of training", ("forward", "weight_gradient")),
            Parameter("slices", 4, "slices of a volume"),
            Parameter("lines", 1, "lines per row of cores"),
            Parameter("taps", 3, "slices, lines and columns of taps"),
            stated("conv3d", "groups"),
        ),
        _conv3d,
    ),
    KernelCommand(
        "pool3d",
        "pooling of volumes; side x side x side outputs of c channels",
        (*sizes(side=8, c=4, window=2), FULL, stated("pool3d", "kind"), BACKWARD),
        _pool3d,
    ),
    KernelCommand(
        "optimizer",
        "optimizer update of fp32 weights",
        (
            *sizes(elements=4096),
            stated("optimizer", "algorithm"),
        ),
        _elements("optimizer", "algorithm"),
    ),
    KernelCommand(
        "dropout",
        "random mask times a scale",
        (*sizes(elements=4096), FULL, BACKWARD, stated("dropout", "p")),
        _elements("dropout", "p"),
    ),
    KernelCommand(
        "activation",
        "an activation function",
        (*sizes(elements=4096), FULL, BACKWARD, stated("activation", "function")),
        _elements("activation", "function"),
    ),
    KernelCommand(
        "elementwise",
        "a chain of elementwise operators",
        (*sizes(elements=4096), FULL, BACKWARD, stated("elementwise", "ops")),
        _elements("elementwise", "ops"),
    ),
    KernelCommand(
        "generated",
        "a generated chain of elementwise operators; sum, mean, amax or amin may end it",
        (*sizes(elements=4096), FULL, BACKWARD, stated("generated", "ops", "mul,add")),
        _elements("generated", "ops"),
    ),
)
