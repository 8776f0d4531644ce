"""Commands of attention and of the row-wise families: their parameters, and the call that these make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from wse_sim.bench.contract import KernelCommand, KernelRequest, Parameter, stated
from wse_sim.bench.graph import FULL, sizes
from wse_sim.graph import Phase
from wse_sim.kernels.contract.family import Tiling

LANES = Parameter("lanes", 1, "lanes of the streamed mapping")
PHASE = Parameter("phase", "forward", "phase of training", ("forward", "input_gradient"))
GRADIENTS = Parameter(
    "phase", "forward", "phase of training", ("forward", "input_gradient", "weight_gradient")
)
ON_LINES = Parameter("mapping", "streamed", "mapping", ("streamed", "stationary"))
ON_GRID = Parameter(
    "mapping",
    "grid",
    "grid: written by hand, fp32; else a training kernel",
    ("grid", "streamed", "stationary"),
)


def _rows(name: str, *attrs: str) -> Callable[[Mapping[str, Any]], KernelRequest]:
    def call(p: Mapping[str, Any]) -> KernelRequest:
        dims = {"rows": p["m"], "cols": p["n"]} | ({"k": p["k"]} if "k" in p else {})
        tiling = Tiling(p["rows"], p["cols"], p["mapping"], lanes=p["lanes"])
        dtype = "fp32" if p["mapping"] == "grid" else p["dtype"]
        return KernelRequest(
            name, dims, tiling, dtype, {key: p[key] for key in attrs}, Phase(p.get("phase", "forward"))
        )

    return call


def _attention(p: Mapping[str, Any]) -> KernelRequest:
    dims = {name: p[name] for name in ("b", "heads", "q", "kv", "d")} | {"kv_heads": p["heads"]}
    options = {"groups": p["groups"]}
    tiling = Tiling(p["rows"], p["cols"], p["mapping"], lanes=p["lanes"], options=options)
    attrs = {"part": p["part"], "dropout": 0.1 if p["dropout"] else 0.0}
    return KernelRequest("attention", dims, tiling, "fp16", attrs, Phase(p["phase"]))


def _alignments(p: Mapping[str, int]) -> KernelRequest:
    dims = {"steps": p["steps"], "states": p["states"], "batch": p["rows"]}
    return KernelRequest("ctc", dims, Tiling(p["rows"], p["cols"], "stationary"), "fp32")


ROW_COMMANDS = (
    KernelCommand(
        "ctc",
        "sum over all alignments of frames and labels (CTC), fp32; one sequence on each row of cores",
        (
            Parameter("steps", 8, "frames"),
            Parameter("states", 64, "states of a sequence, twice as many as labels"),
            Parameter("rows", 4, "rows of cores"),
            Parameter("cols", 4, "columns of cores"),
        ),
        _alignments,
    ),
    KernelCommand(
        "attention",
        "attention of one head of one sample, fp16; grid: prefill, or decode if q is 1",
        (
            *sizes(b=1, heads=1, q=64, kv=64, d=64),
            *(Parameter("mapping", "streamed", "mapping", ("streamed", "stationary", "grid")), LANES, PHASE),
            stated("attention", "part"),
            Parameter("dropout", False, "dropout of the probabilities"),
            stated("attention", "groups"),
        ),
        _attention,
    ),
    KernelCommand(
        "softmax",
        "softmax of m rows of n elements",
        (*sizes(m=16, n=256), FULL, ON_GRID, LANES, PHASE, stated("softmax", "log")),
        _rows("softmax", "log"),
    ),
    KernelCommand(
        "norm",
        "layer or RMS norm of m rows of n elements",
        (
            *sizes(m=16, n=256),
            FULL,
            ON_GRID,
            LANES,
            GRADIENTS,
            stated("norm", "kind", choices=("layer", "rms")),
        ),
        _rows("norm", "kind"),
    ),
    KernelCommand(
        "cross_entropy",
        "loss of m rows of n logits",
        (*sizes(m=16, n=256), FULL, ON_GRID, LANES, PHASE),
        _rows("cross_entropy"),
    ),
    KernelCommand(
        "row_reduce",
        "reduction of m rows of n elements, each along a lane",
        (
            *(*sizes(m=16, n=256), FULL, ON_LINES, LANES, PHASE),
            stated("reduce", "op"),
        ),
        _rows("reduce", "op"),
    ),
    KernelCommand(
        "topk",
        "the k largest of m rows of n elements, and their indices",
        (*sizes(m=64, n=16, k=2), FULL, ON_LINES, LANES),
        _rows("topk"),
    ),
)
