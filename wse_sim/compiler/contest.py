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

from wse_sim.compiler.placers.contest_shapes import ContestShapes, evaluate_kernel, inner_convolutions
from wse_sim.compiler.placers.problem import Block, PlacementProblem, Progress, first_illegality, wire_length
from wse_sim.errors import ConfigError, PlacementError

FORMAL_KEYS = {
    "conv": ("h", "w", "r", "s", "c", "k", "t", "u"),
    "dblock": ("h", "w", "f"),
    "cblock": ("h", "w", "f"),
}
INNER_COUNT = {"conv": 1, "dblock": 3, "cblock": 4}

_NODE = re.compile(r"^\s*([A-Za-z]+)\s*\[\s*(\d+)\s*\](?!\s*:)(.*)$")
_EDGE = re.compile(r"([A-Za-z]+)\s*\[\s*(\d+)\s*\]\s*:\s*\w*\s*->\s*([A-Za-z]+)\s*\[\s*(\d+)\s*\]")
_PAIR = re.compile(r"([A-Za-z_]+)\s*=\s*(?:'([^']*)'|\"([^\"]*)\"|([^\s,]+))")
_SET = re.compile(r"^\s*(\S+?)\s*=\s*([A-Za-z]+)\s*\(([^)]*)\)")
_PLACE = re.compile(r"^\s*(\S+?)\s*:\s*place\s*\(([^)]*)\)")


@dataclass(frozen=True)
class ContestKernel:
    """One kernel: its name, kind (conv, dblock, cblock) and formal arguments in file order."""

    name: str
    kind: str
    formal: tuple[int, ...]

    def convolutions(self) -> np.ndarray:
        """Inner convolutions (m, 7) of H, W, R, S, C, K, T."""
        return inner_convolutions(self.kind, self.formal[:7])


@dataclass(frozen=True)
class KernelGraph:
    """A contest instance: fabric and memory in tiles and words, weights, kernels and edges."""

    width: int
    height: int
    memlimit: float
    wdeltat: float
    wlength: float
    wadapter: float
    kernels: tuple[ContestKernel, ...]
    edges: tuple[tuple[int, int], ...]
    name: str = ""

    def problem(self) -> PlacementProblem:
        """The instance as a general placement problem."""
        span = max(self.width, self.height)
        return PlacementProblem(
            self.width,
            self.height,
            tuple(
                Block(k.name, ContestShapes(k.kind, k.formal[:7], self.memlimit, span)) for k in self.kernels
            ),
            tuple((a, b, 1.0) for a, b in self.edges),
            self.wdeltat,
            self.wlength,
        )


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


def read_kgraph(path: str | Path) -> KernelGraph:
    """Read a ``.kgraph`` file, tolerant of white space, line ends and the case of keys."""
    path = Path(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"the kernel graph {str(path)!r} cannot be read ({error.strerror}); check the path"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"the kernel graph {str(path)!r} is not text; give a .kgraph file") from None
    return parse_kgraph(text, path.stem)


def parse_kgraph(text: str, name: str = "") -> KernelGraph:
    """Build the graph of the text of a ``.kgraph`` file."""
    header: dict[str, str] = {}
    kernels: dict[int, ContestKernel] = {}
    ends: set[int] = set()
    raw_edges: list[tuple[int, int]] = []
    for line in text.splitlines():
        edge = _EDGE.search(line)
        node = _NODE.match(line)
        if edge:
            raw_edges.append((int(edge[2]), int(edge[4])))
        elif node and node[1].lower() in ("input", "output"):
            ends.add(int(node[2]))
        elif node:
            index = int(node[2])
            if index in kernels or index in ends:
                raise ConfigError(f"the kernel graph defines node {index} twice; number every node once")
            kernels[index] = _parse_kernel(node[1].lower(), index, node[3])
        else:
            for key, quoted, double, bare in _PAIR.findall(line):
                header.setdefault(key.lower(), quoted or double or bare)
    if not kernels:
        raise ConfigError("the kernel graph has 0 kernels; give at least one conv, dblock or cblock line")
    order = {index: position for position, index in enumerate(kernels)}
    edges = []
    for a, b in raw_edges:
        for end in (a, b):
            if end not in kernels and end not in ends:
                raise ConfigError(
                    f"an edge of the kernel graph names node {end}, which is not defined; define it"
                )
        if a in kernels and b in kernels:
            edges.append((order[a], order[b]))
    names = [k.name for k in kernels.values()]
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise ConfigError(f"two kernels of the graph are named {twice!r}; give every kernel its own name")
    return KernelGraph(
        int(_header_number(header, "width")),
        int(_header_number(header, "height")),
        _header_number(header, "memlimit"),
        _header_number(header, "wdeltat"),
        _header_number(header, "wlength"),
        _header_number(header, "wadapter", 0.0),
        tuple(kernels.values()),
        tuple(edges),
        name,
    )


def _header_number(header: dict[str, str], key: str, default: float | None = None) -> float:
    """Non-negative number of a header line; fabric sides and memory must be positive."""
    raw = header.get(key)
    if raw is None:
        if default is not None:
            return default
        raise ConfigError(f"the kernel graph has no {key!r} in its header; add a line {key}=NUMBER")
    try:
        value = float(raw)
    except ValueError:
        value = math.nan
    weight = key.startswith("w") and key != "width"
    if not math.isfinite(value) or value < 0 or (not weight and value < 1):
        raise ConfigError(
            f"the kernel graph has {key}={raw}; give a {'non-negative' if weight else 'positive'} number"
        )
    return value


def _parse_kernel(kind: str, index: int, rest: str) -> ContestKernel:
    if kind not in FORMAL_KEYS:
        raise ConfigError(f"node {index} of the kernel graph is a {kind!r}; use conv, dblock or cblock")
    found: dict[str, str] = {}
    name = f"k{index}"
    for key, quoted, double, bare in _PAIR.findall(rest):
        if key.lower() == "name":
            name = quoted or double or bare
        else:
            found[key.lower()] = quoted or double or bare
    if kind == "conv":
        found.setdefault("t", found.get("u", "1"))
        found.setdefault("u", found["t"])
    values = []
    for key in FORMAL_KEYS[kind]:
        raw = found.get(key, "")
        if not raw.isdigit() or int(raw) < 1:
            raise ConfigError(f"{kind} {name!r} has {key}={raw or 'nothing'}; give a positive integer")
        values.append(int(raw))
    if kind == "conv" and values[6] != values[7]:
        raise ConfigError(
            f"conv {name!r} has strides T={values[6]} and U={values[7]}; the contest takes equal ones"
        )
    return ContestKernel(name, kind, tuple(values))


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
        rects[i] = (place.x, place.y, height, width) if place.rotated else (place.x, place.y, width, height)
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
