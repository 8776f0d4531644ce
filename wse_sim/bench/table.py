"""The kernels that can be run by name: their parameters, and the call of a family that these make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from wse_sim.bench.contract import KernelCommand, KernelRequest, Parameter, stated
from wse_sim.bench.graph import GRAPH_COMMANDS
from wse_sim.bench.products import PRODUCT_COMMANDS
from wse_sim.bench.rows import ROW_COMMANDS
from wse_sim.kernels.contract.family import Tiling

ROWS = Parameter("rows", 1, "rows of cores; each row is one line")
CORES = Parameter("cores", 16, "cores of the line")
WORDS = Parameter("words", 64, "elements per core")
DTYPE = Parameter("dtype", "fp32", "precision", ("fp32", "fp16"))


def _line(name: str) -> Callable[[Mapping[str, Any]], KernelRequest]:
    def call(p: Mapping[str, Any]) -> KernelRequest:
        options = {key: p[key] for key in ("group", "groups", "axis", "line") if key in p}
        tiling = Tiling(p["rows"], p["cores"], "grid", p.get("algorithm", ""), options=options)
        return KernelRequest(name, {"words": p["words"]}, tiling, p["dtype"])

    return call


def _rectangle(name: str) -> Callable[[Mapping[str, Any]], KernelRequest]:
    def call(p: Mapping[str, Any]) -> KernelRequest:
        options = {"line": p["line"], "group": p["group"]}
        tiling = Tiling(p["rows"], p["cols"], "grid", p["algorithm"], options=options)
        return KernelRequest(name, {"words": p["words"]}, tiling, p["dtype"])

    return call


def _point_to_point(p: Mapping[str, Any]) -> KernelRequest:
    tiling = Tiling(1, 1, "grid", options={"direction": p["direction"]})
    return KernelRequest("point_to_point", {"words": p["words"], "hops": p["hops"]}, tiling, p["dtype"])


def _shift(p: Mapping[str, Any]) -> KernelRequest:
    tiling = Tiling(p["rows"], p["cols"], "grid")
    return KernelRequest("shift", {"tile": p["tile"], "distance": p["distance"]}, tiling, p["dtype"])


def _vector_op(p: Mapping[str, Any]) -> KernelRequest:
    attrs = {"op": p["op"], "bank_conflict": p["bank_conflict"]}
    return KernelRequest("vector_op", {"elements": p["elements"]}, Tiling(1, 1, "grid"), p["dtype"], attrs)


def _gemv(p: Mapping[str, Any]) -> KernelRequest:
    tiling = Tiling(p["rows"], p["cols"], "grid", p["algorithm"], options={"groups": p["groups"]})
    return KernelRequest("gemv", {"m": p["m"], "n": p["n"]}, tiling, p["dtype"])


def _gemm(p: Mapping[str, Any]) -> KernelRequest:
    dims = {name: p[name] for name in "mkn"}
    if p["algorithm"] in {"streamed", "stationary"}:
        options = {"orientation": "kn"}
        tiling = Tiling(p["rows"], p["cols"], p["algorithm"], lanes=p["lanes"], options=options)
    else:
        # The program of Cannon starts from skewed operands.
        options = {"bank_conflict": p["bank_conflict"], "skew": p["algorithm"] != "cannon"}
        tiling = Tiling(p["rows"], p["cols"], "grid", p["algorithm"], options=options)
    return KernelRequest("gemm", dims, tiling, p["dtype"])


def _halo(p: Mapping[str, Any]) -> KernelRequest:
    return KernelRequest("halo", {"nz": p["nz"]}, Tiling(p["rows"], p["cols"], "grid"), p["dtype"])


def _stencil25(p: Mapping[str, Any]) -> KernelRequest:
    tiling = Tiling(p["rows"], p["cols"], "grid", options={"steps": p["steps"]})
    return KernelRequest("stencil25", {"nz": p["nz"], "block": p["block"]}, tiling, p["dtype"])


def _square(side: int) -> tuple[Parameter, Parameter]:
    return Parameter("rows", side, "rows of cores"), Parameter("cols", side, "columns of cores")


def _sizes(**sizes: int) -> tuple[Parameter, ...]:
    return tuple(Parameter(name, size, f"dimension {name}") for name, size in sizes.items())


COLLECTIVE_COMMANDS = (
    KernelCommand(
        "broadcast",
        "multicast from one core along every row (axis row) or to the rectangle (both)",
        (ROWS, CORES, WORDS, DTYPE, stated("broadcast", "axis")),
        _line("broadcast"),
    ),
    KernelCommand(
        "reduce",
        "sum of every row of cores to its first core",
        (ROWS, CORES, WORDS, DTYPE, stated("line_reduce", "algorithm"), stated("line_reduce", "group")),
        _line("line_reduce"),
    ),
    KernelCommand(
        "reduce2d",
        "sum of a rectangle to its north-west core",
        (
            *(*_square(8), WORDS, DTYPE, Parameter("algorithm", "xy", "order", ("xy", "snake"))),
            *(stated("reduce2d", "line"), stated("reduce2d", "group")),
        ),
        _rectangle("reduce2d"),
    ),
    KernelCommand(
        "allreduce",
        "sum of every row, known to all its cores",
        (
            *(ROWS, CORES, WORDS, DTYPE),
            *(stated("allreduce", name) for name in ("group", "algorithm", "groups")),
        ),
        _line("allreduce"),
    ),
    *(
        KernelCommand(
            name,
            f"{what} along every row of cores: half of a ring all-reduce",
            (ROWS, CORES, WORDS, DTYPE),
            _line(name),
        )
        for name, what in (
            ("reduce_scatter", "each core ends with a piece of the sums"),
            ("all_gather", "each core ends with the pieces of all"),
        )
    ),
    KernelCommand(
        "allreduce2d",
        "sum of a rectangle, known to all its cores",
        (
            *(*_square(8), WORDS, DTYPE),
            Parameter("algorithm", "auto", "order", ("corner", "rows_columns", "auto")),
            *(stated("allreduce2d", "line"), stated("allreduce2d", "group")),
        ),
        _rectangle("allreduce2d"),
    ),
)

MOVEMENT_COMMANDS = (
    KernelCommand(
        "point_to_point",
        "one message over some links in one direction",
        (
            Parameter("hops", 4, "links"),
            Parameter("words", 1, "elements"),
            stated("point_to_point", "direction"),
            DTYPE,
        ),
        _point_to_point,
    ),
    KernelCommand(
        "shift",
        "a tile of every core passed on by a number of columns, core by core",
        (
            *(Parameter("rows", 4, "rows of cores"), Parameter("cols", 12, "columns of cores")),
            Parameter("distance", 4, "columns that a tile travels"),
            Parameter("tile", 16, "elements of a tile"),
            Parameter("dtype", "fp16", "precision", ("fp16",)),
        ),
        _shift,
    ),
)

COMPUTE_COMMANDS = (
    KernelCommand(
        "vector_op",
        "one vector instruction in the memory of one core",
        (
            stated("vector_op", "op"),
            Parameter("elements", 1024, "elements"),
            DTYPE,
            stated("vector_op", "bank_conflict"),
        ),
        _vector_op,
    ),
    KernelCommand(
        "gemv",
        "matrix-vector product with a K-tree all-reduce",
        (
            *_sizes(m=256, n=256),
            *_square(16),
            stated("gemv", "groups"),
            Parameter("dtype", "fp16", "precision", ("fp32", "fp16")),
            Parameter("algorithm", "mesh", "algorithm", ("mesh",)),
        ),
        _gemv,
    ),
    KernelCommand(
        "gemm",
        "matrix product",
        (
            *_sizes(m=64, k=64, n=64),
            *_square(8),
            DTYPE,
            Parameter(
                "algorithm", "summa", "algorithm", ("summa", "mesh", "cannon", "streamed", "stationary")
            ),
            Parameter("lanes", 1, "lanes of the streamed mapping"),
            stated("gemm", "bank_conflict"),
        ),
        _gemm,
    ),
    KernelCommand(
        "halo", "five-point stencil with halo exchange", (*_sizes(nz=64), *_square(8), DTYPE), _halo
    ),
    KernelCommand(
        "stencil25",
        "25-point stencil of the wave equation",
        (*_sizes(nz=100, block=100), *_square(10), stated("stencil25", "steps"), DTYPE),
        _stencil25,
    ),
)

COMMANDS = (
    *(*COLLECTIVE_COMMANDS, *MOVEMENT_COMMANDS, *COMPUTE_COMMANDS),
    *(*GRAPH_COMMANDS, *PRODUCT_COMMANDS, *ROW_COMMANDS),
)
