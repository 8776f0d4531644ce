"""Commands of the families of the graph that work on a rectangle: their parameters, and the call that these make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wse_sim.bench.contract import KernelCommand, KernelRequest, Parameter, stated
from wse_sim.graph import Phase
from wse_sim.kernels.contract.family import Tiling
from wse_sim.kernels.families.scan.recurrent import RECURRENT

HALF = Parameter("dtype", "fp16", "precision of the stationary operand", ("fp32", "fp16"))
FULL = Parameter("dtype", "fp32", "precision", ("fp32", "fp16"))


def _streamed(p: Mapping[str, Any]) -> Tiling:
    return Tiling(p["rows"], p["cols"], "streamed")


def _embedding(p: Mapping[str, Any]) -> KernelRequest:
    dims = {"rows": p["m"], "cols": p["n"], "vocab": p["vocab"]}
    tiling = Tiling(p["rows"], p["cols"], p["mapping"])
    return KernelRequest("embedding", dims, tiling, p["dtype"], phase=Phase(p["phase"]))


def _layout(p: Mapping[str, Any]) -> KernelRequest:
    return KernelRequest("layout", {"elements": p["elements"]}, _streamed(p), p["dtype"], {"op": p["op"]})


def _fft(p: Mapping[str, Any]) -> KernelRequest:
    return KernelRequest("fft", {"rows": p["lines"], "n": p["n"]}, _streamed(p), p["dtype"])


def _elimination(p: Mapping[str, Any]) -> KernelRequest:
    dims = {"b": p["matrices"], "n": p["n"], "r": p["right"]}
    return KernelRequest("elimination", dims, _streamed(p), p["dtype"], {"kind": p["kind"]})


def _resample(p: Mapping[str, Any]) -> KernelRequest:
    side, scale = p["side"], p["scale"]
    dims = {"b": 1, "h": side, "w": side, "c": p["c"], "out_h": scale * side, "out_w": scale * side}
    return KernelRequest("resample", dims, _streamed(p), p["dtype"], {"mode": p["mode"]}, Phase(p["phase"]))


def _scan(p: Mapping[str, Any]) -> KernelRequest:
    dims = {name: p[name] for name in ("steps", "width", "batch")}
    tiling = Tiling(1, p["rows"] * p["cols"], "stationary") if p["kind"] in RECURRENT else _streamed(p)
    return KernelRequest("scan", dims, tiling, p["dtype"], {"kind": p["kind"]}, Phase(p["phase"]))


def _phase(backward: str) -> Parameter:
    return Parameter("phase", "forward", "phase of training", ("forward", backward))


def sizes(**given: int) -> tuple[Parameter, ...]:
    """Parameters of a family's dimensions and of a rectangle of cores."""
    named = tuple(Parameter(name, size, f"dimension {name}") for name, size in given.items())
    return (*named, Parameter("rows", 4, "rows of cores"), Parameter("cols", 4, "columns of cores"))


GRAPH_COMMANDS = (
    KernelCommand(
        "embedding",
        "gather of m vectors of n elements, or the scatter-add of their gradients",
        (
            *sizes(m=64, n=256, vocab=128),
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
            *sizes(elements=6400),
            HALF,
            stated("layout", "op", "transpose", choices=("copy", "fill", "transpose")),
        ),
        _layout,
    ),
    KernelCommand(
        "fft",
        "Fourier transforms of lines of n = 2^k complex points, at most one line on a core",
        (*sizes(lines=16, n=64), FULL),
        _fft,
    ),
    KernelCommand(
        "elimination",
        "solution of linear systems, at most one matrix on a core",
        (*sizes(matrices=16, n=16, right=4), FULL, stated("elimination", "kind", "solve")),
        _elimination,
    ),
    KernelCommand(
        "resample",
        "enlargement of an image of side x side pixels and c channels",
        (
            *sizes(side=16, c=16, scale=2),
            HALF,
            stated("resample", "mode", "nearest", choices=("nearest", "bilinear", "bicubic")),
            _phase("input_gradient"),
        ),
        _resample,
    ),
    KernelCommand(
        "scan",
        "recurrence over steps",
        (
            *sizes(steps=16, width=128, batch=8),
            FULL,
            stated("scan", "kind", "selective", help="recurrence; with weights all cores are in one row"),
            _phase("input_gradient"),
        ),
        _scan,
    ),
)
