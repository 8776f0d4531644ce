"""The ISPD 2020 contest of wafer-scale placement: read, place, evaluate, write and draw instances.

    cost = wdeltat * max_time + wlength * L1 + wadapter * A

The formula of the adapter cost A is not public. It is left out, and a result whose ``wadapter`` is not 0 has
a note on this. L1 is the sum of |dx| + |dy| between rectangle centres over kernel-to-kernel edges; input and
output nodes are ignored.

The contest counts y from the south, the placers count it from the north. Neither cost nor legality depends on
this, so y passes between them unchanged. Files and pictures use the contest's convention.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from wse_sim.compiler.contest_graph import ContestGraph, parse_kgraph, read_kgraph
from wse_sim.compiler.contest_paint import (
    KernelPlace,
    format_placement,
    parse_placement,
    read_paint,
    read_placement,
)
from wse_sim.compiler.placement.contest_shapes import ContestShapes, evaluate_kernel
from wse_sim.compiler.placement.problem import Progress, first_illegality, wire_length
from wse_sim.errors import PlacementError

__all__ = [
    "ContestGraph",
    "ContestResult",
    "KernelPlace",
    "check_contest",
    "draw",
    "evaluate",
    "format_placement",
    "lower_bound",
    "parse_kgraph",
    "parse_placement",
    "place_graph",
    "read_kgraph",
    "read_placement",
    "run_contest",
]

_FAR = 10**9  # tiles: beyond any fabric, and sums stay within 64 bits


@dataclass(frozen=True)
class ContestResult:
    """A legal placement with its cost; times are in the contest's steps, lengths in tiles."""

    graph: ContestGraph
    placement: tuple[KernelPlace, ...]
    rects: np.ndarray
    max_time: float
    wire_l1: float
    cost: float
    lower_bound: float
    wall_s: float = 0.0
    legal: bool = True
    notes: tuple[str, ...] = ()

    def write(self, path: str | Path) -> None:
        """Write the placement to a file in the contest's format."""
        Path(path).write_text(format_placement(self.graph, self.placement), encoding="utf-8")


def evaluate(graph: ContestGraph, placement: tuple[KernelPlace, ...]) -> ContestResult:
    """Return a placement with its time, wire, cost and lower bound.

    Raises
    ------
    PlacementError
        If the placement is illegal; the message names the first fault (arguments, memory or position).
    """
    rects = np.zeros((len(placement), 4), dtype=np.int64)
    max_time = 0.0
    for i, (kernel, place) in enumerate(zip(graph.kernels, placement, strict=True)):
        convs = kernel.convolutions()
        limits = [("h", place.h, convs[0, 0]), ("w", place.w, convs[0, 1])]
        limits += [("c", c, convs[j, 4]) for j, c in enumerate(place.c)]
        limits += [("k", k, convs[j, 5]) for j, k in enumerate(place.k)]
        for symbol, value, top in limits:
            if not 1 <= value <= math.ceil(top):
                raise PlacementError(
                    f"kernel {kernel.name!r} has execution argument {symbol}={value} outside 1..{math.ceil(top)}; "
                    "choose one inside"
                )
        height, width, steps, memory = evaluate_kernel(convs, place.h, place.w, place.c, place.k)
        if memory > graph.memlimit * (1 + 1e-12):
            raise PlacementError(
                f"kernel {kernel.name!r} needs {memory:.1f} words per tile but the limit is {graph.memlimit:g}; "
                "divide it into more parts"
            )
        max_time = max(max_time, steps)
        w, h = (height, width) if place.rotated else (width, height)
        if max(abs(place.x), abs(place.y), w, h) > _FAR:
            raise PlacementError(
                f"kernel {kernel.name!r} covers x {place.x}..{place.x + w}, y {place.y}..{place.y + h} but the "
                f"fabric is {graph.width} x {graph.height}; move it inside"
            )
        rects[i] = (place.x, place.y, w, h)
    wrong = first_illegality(graph.width, graph.height, [k.name for k in graph.kernels], rects)
    if wrong is not None:
        raise PlacementError(wrong)
    wire = wire_length(graph.problem(), *rects.T)
    notes: tuple[str, ...] = ()
    if graph.wadapter:
        notes = (f"adapter cost left out: its formula is not public (weight {graph.wadapter:g})",)
    if len(graph.kernels) > 1 and not graph.edges:
        notes += (
            f"the graph has {len(graph.kernels)} kernels and no edges: no wire is counted; is the file complete?",
        )
    cost = graph.wdeltat * max_time + graph.wlength * wire
    return ContestResult(graph, placement, rects, max_time, wire, cost, lower_bound(graph), notes=notes)


def lower_bound(graph: ContestGraph) -> float:
    """Return the least time at which the kernels' smallest areas fit in the fabric, ignoring memory.

    This is the bound that publications on the contest use; it holds for every placement. The search itself
    uses a tighter bound, in which the shapes respect the memory limit. Returns 0, which is also a bound, if
    the computation exceeds 20 s or the kernels do not fit at any time.
    """
    from wse_sim.compiler.placement.curves import BOUND_S, area_bound

    try:
        return area_bound(replace(graph, memlimit=math.inf).problem(), time.monotonic() + BOUND_S)
    except PlacementError:
        return 0.0


def check_contest(kgraph: str | Path, placement: str | Path) -> ContestResult:
    """Evaluate a placement file for the graph in another file.

    Raises
    ------
    ConfigError
        If the graph file cannot be read.
    PlacementError
        If the placement file cannot be read or the placement is illegal; the message names the first fault.
    """
    graph = read_kgraph(kgraph)
    places, notes = read_paint(graph, placement)
    result = evaluate(graph, places)
    return replace(result, notes=result.notes + notes)


def run_contest(
    path: str | Path,
    placer: str = "portfolio",
    time_limit_s: float = 60.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> ContestResult:
    """Read the instance in `path`, place it and evaluate the placement as the contest does."""
    return place_graph(read_kgraph(path), placer, time_limit_s, seed, progress)


def place_graph(
    graph: ContestGraph,
    placer: str = "portfolio",
    time_limit_s: float = 60.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> ContestResult:
    """Place `graph` and evaluate the placement as the contest does."""
    from wse_sim.compiler.placers import rectangle_placer

    start = time.perf_counter()
    problem = graph.problem()
    found = rectangle_placer(placer).place(problem, seed=seed, time_limit_s=time_limit_s, progress=progress)
    places = []
    for i, block in enumerate(problem.blocks):
        shapes = block.shapes
        turned = bool(found.rotated[i])
        w, h = int(found.width[i]), int(found.height[i])
        if not isinstance(shapes, ContestShapes):
            raise PlacementError(f"kernel {block.name!r} has no execution arguments; use contest shapes")
        fitted = shapes.fit((h, w) if turned else (w, h), found.level)
        places.append(KernelPlace(block.name, *fitted, int(found.x[i]), int(found.y[i]), turned))
    result = evaluate(graph, tuple(places))
    wall = time.perf_counter() - start
    return replace(result, wall_s=wall, notes=result.notes + found.notes)


def draw(result: ContestResult, path: str | Path) -> None:
    """Write a picture of the placement to `path`: kernels shaded by their depth in the dataflow, edges as
    lines.
    """
    from wse_sim.compiler.placement.picture import draw_rectangles

    graph, rects = result.graph, result.rects
    used = float(np.sum(rects[:, 2] * rects[:, 3])) / (graph.width * graph.height)
    title = (
        f"{graph.name}: time {result.max_time:g} steps, L1 {result.wire_l1:g} tiles, "
        f"cost {result.cost:g}, {100 * used:.1f} % of tiles used"
    )
    names = [kernel.name for kernel in graph.kernels]
    draw_rectangles(path, (graph.width, graph.height), rects, names, graph.edges, title)
