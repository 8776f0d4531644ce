"""ISPD 2020 wafer-scale placement contest: read, evaluate, place, write and draw.

    cost = wdeltat * max_time + wlength * L1 + wadapter * A

The formula of the adapter cost A is not public: it is left out, and a result whose ``wadapter`` is
not 0 says so in its notes.  L1 sums |dx| + |dy| between rectangle centres over kernel-to-kernel
edges; input and output nodes are ignored.
"""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from wse_sim.compiler.contest_graph import KernelGraph, parse_kgraph, read_kgraph
from wse_sim.compiler.placers.contest_shapes import ContestShapes, evaluate_kernel
from wse_sim.compiler.placers.problem import Progress, first_illegality, wire_length
from wse_sim.errors import PlacementError

__all__ = [
    "ContestResult",
    "KernelGraph",
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

INNER_COUNT = {"conv": 1, "dblock": 3, "cblock": 4}
_FAR = 10**9  # tiles: no fabric reaches there, and sums stay within 64 bits

_SET = re.compile(r"^\s*(\S+?)\s*=\s*([A-Za-z]+)\s*\(([^)]*)\)")
_PLACE = re.compile(r"^\s*(\S+?)\s*:\s*place\s*\(([^)]*)\)")


@dataclass(frozen=True)
class KernelPlace:
    """One placed kernel: execution arguments, lower-left tile, and whether it is turned (R90)."""

    name: str
    h: int
    w: int
    c: tuple[int, ...]
    k: tuple[int, ...]
    x: int
    y: int
    rotated: bool


@dataclass(frozen=True)
class ContestResult:
    """A legal placement with its cost; times in the contest's steps, lengths in tiles."""

    graph: KernelGraph
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
        """Write the placement in the contest's format."""
        Path(path).write_text(format_placement(self.graph, self.placement))


def format_placement(graph: KernelGraph, placement: tuple[KernelPlace, ...]) -> str:
    """Text of a placement in the contest's format."""
    lines = []
    for kernel, place in zip(graph.kernels, placement, strict=True):
        numbers = (*kernel.formal, place.h, place.w, *place.c, *place.k)
        lines.append(f"{kernel.name} = {kernel.kind}( {' '.join(map(str, numbers))} )")
    for place in placement:
        lines.append(f"{place.name} : place({place.x} {place.y} {'R90' if place.rotated else 'R0'})")
    return "\n".join(lines) + "\n"


def read_placement(graph: KernelGraph, path: str | Path) -> tuple[KernelPlace, ...]:
    """Read a placement file of `graph`."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PlacementError(
            f"the placement {str(path)!r} cannot be read ({error}); check the path"
        ) from None
    return parse_placement(graph, text)


def parse_placement(graph: KernelGraph, text: str) -> tuple[KernelPlace, ...]:
    """Kernel places of the text of a placement, in the order of the graph's kernels."""
    sets: dict[str, tuple[str, list[int]]] = {}
    places: dict[str, tuple[int, int, bool]] = {}
    known = {k.name for k in graph.kernels}
    for number, line in enumerate(text.splitlines(), 1):
        is_set, is_place = _SET.match(line), _PLACE.match(line)
        found = is_set or is_place
        if found is None:
            if line.strip():
                raise PlacementError(
                    f"line {number} of the placement, {line.strip()[:60]!r}, is neither 'NAME = KIND( ... )' "
                    "nor 'NAME : place(X Y R0|R90)'; correct it"
                )
            continue
        name = found[1]
        if name not in known or name in (sets if is_set else places):
            why = "is given twice" if name in known else "is not in the graph"
            raise PlacementError(f"kernel {name!r} on line {number} of the placement {why}; remove the line")
        words = found[found.re.groups].replace(",", " ").split()
        try:
            if is_set:
                sets[name] = (is_set[2].lower(), [int(word) for word in words])
            else:
                x, y, turn = words
                places[name] = (int(x), int(y), {"R0": False, "R90": True}[turn.upper()])
        except (ValueError, KeyError):
            raise PlacementError(
                f"line {number} of the placement, {line.strip()[:60]!r}, has a word that is not allowed there; "
                "give integers and R0 or R90"
            ) from None
    result = []
    for kernel in graph.kernels:
        if kernel.name not in sets or kernel.name not in places:
            line = "execution arguments" if kernel.name not in sets else "place(...)"
            raise PlacementError(f"kernel {kernel.name!r} has no {line} in the placement; add the line")
        kind, numbers = sets[kernel.name]
        formal, rest = numbers[: len(kernel.formal)], numbers[len(kernel.formal) :]
        m = INNER_COUNT[kernel.kind]
        if kind != kernel.kind or tuple(formal) != kernel.formal or len(rest) != 2 + 2 * m:
            raise PlacementError(
                f"kernel {kernel.name!r} is {kind}{tuple(numbers)} in the placement but {kernel.kind}{kernel.formal} "
                f"with {2 + 2 * m} execution arguments in the graph; correct the line"
            )
        x, y, turned = places[kernel.name]
        result.append(
            KernelPlace(
                kernel.name, rest[0], rest[1], tuple(rest[2 : 2 + m]), tuple(rest[2 + m :]), x, y, turned
            )
        )
    return tuple(result)


def evaluate(graph: KernelGraph, placement: tuple[KernelPlace, ...]) -> ContestResult:
    """Cost of a placement; PlacementError names the first illegality (arguments, memory, place)."""
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
                "cut it into more parts"
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
    cost = graph.wdeltat * max_time + graph.wlength * wire
    return ContestResult(graph, placement, rects, max_time, wire, cost, lower_bound(graph), notes=notes)


def lower_bound(graph: KernelGraph) -> float:
    """Least time at which the kernels' least areas sum to the fabric or less, memory left out.

    This is the bound that publications on the contest use; it holds for every placement.  The
    search itself uses the tighter one in which the shapes respect the memory limit.
    """
    from wse_sim.compiler.placers.curves import area_bound

    return area_bound(replace(graph, memlimit=math.inf).problem())


def check_contest(kgraph: str | Path, placement: str | Path) -> ContestResult:
    """Evaluate a placement file against a graph file; PlacementError names the first illegality."""
    graph = read_kgraph(kgraph)
    return evaluate(graph, read_placement(graph, placement))


def run_contest(
    path: str | Path,
    placer: str = "portfolio",
    time_limit_s: float = 60.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> ContestResult:
    """Place the instance in `path` and evaluate it with the contest's evaluator."""
    return place_graph(read_kgraph(path), placer, time_limit_s, seed, progress)


def place_graph(
    graph: KernelGraph,
    placer: str = "portfolio",
    time_limit_s: float = 60.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> ContestResult:
    """Place `graph` and evaluate it with the contest's evaluator."""
    from wse_sim.compiler.placers import get_placer

    start = time.perf_counter()
    problem = graph.problem()
    found = get_placer(placer).place(problem, seed=seed, time_limit_s=time_limit_s, progress=progress)
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
    """Picture of the placement: kernels shaded by their depth in the dataflow, edges as lines."""
    from wse_sim.compiler.placers.picture import draw_rectangles

    graph, rects = result.graph, result.rects
    used = float(np.sum(rects[:, 2] * rects[:, 3])) / (graph.width * graph.height)
    title = (
        f"{graph.name}: time {result.max_time:g} steps, L1 {result.wire_l1:g} tiles, "
        f"cost {result.cost:g}, {used:.1%} of tiles used"
    )
    names = [kernel.name for kernel in graph.kernels]
    draw_rectangles(path, (graph.width, graph.height), rects, names, graph.edges, title)
