"""Local windows: a few neighbouring blocks are placed and shaped again while all others stay (CP-SAT).

A window is a small set of blocks that are close to each other or share edges. Inside the box around them,
which is widened a little, their positions and their shapes at the level are free. Blocks outside are
obstacles and ends of edges. The program minimizes the wire of the window's edges, so a window never makes the
placement worse. Its placements need not be slicing trees.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wse_sim.compiler.placement.problem import PlacementProblem, first_illegality, wire_length

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, IntVar, LinearExpr

MARGIN = 0.02  # fraction of the fabric's longer side by which the box exceeds the window's blocks
SCALE = 1000  # factor of edge weights that are not integers
START_COST_S = 0.1  # processor seconds to build and presolve a window, measured with 5 to 7 blocks
SECONDS_PER_UNIT = 4.0  # processor seconds per deterministic unit of the solver, measured: 2 to 5


@dataclass(frozen=True)
class Edges:
    """Edges of a problem: sources and destinations (e,) int32, and integer weights (e,) int64."""

    source: np.ndarray
    destination: np.ndarray
    weight: np.ndarray

    @classmethod
    def of(cls, problem: PlacementProblem) -> Edges:
        """Return the edges of `problem`; weights that are not integers are scaled and rounded."""
        a, b, weight = problem.edge_arrays()
        whole = np.array_equal(weight, np.rint(weight))
        return cls(a, b, np.rint(weight if whole else weight * SCALE).astype(np.int64))


def choose_window(
    rects: np.ndarray, edges: Edges, seed: int, size: int, rng: np.random.Generator
) -> list[int]:
    """Choose up to `size` blocks around block `seed`: near ones first, with preference for shared edges."""
    n = len(rects)
    low, high = rects[:, :2], rects[:, :2] + rects[:, 2:]
    thickness = float(np.median(rects[:, 2:].min(axis=1)))
    near = np.full(n, np.inf)
    links = np.zeros(n)
    jitter = 0.5 * thickness * rng.random(n)
    inside = [seed]
    while len(inside) < min(size, n):
        last = inside[-1]
        apart = np.maximum(np.maximum(low - high[last], low[last] - high), 0).sum(axis=1)
        near = np.minimum(near, apart)
        np.add.at(links, edges.destination[edges.source == last], 1.0)
        np.add.at(links, edges.source[edges.destination == last], 1.0)
        score = near - 0.3 * thickness * links + jitter
        score[inside] = np.inf
        inside.append(int(np.argmin(score)))
    return sorted(inside)


@dataclass(frozen=True)
class WindowResult:
    """Rectangles (n, 4) with less wire, or None; processor seconds by the solver's deterministic clock.

    ``cut`` states that the wall clock ended the search, so another run may find something else.
    """

    rects: np.ndarray | None
    seconds: float
    cut: bool


def is_available() -> bool:
    """Return whether OR-tools is installed."""
    return importlib.util.find_spec("ortools") is not None


def solve_window(
    problem: PlacementProblem,
    rects: np.ndarray,
    level: float,
    free: list[int],
    seconds: float,
    wall_s: float = float("inf"),
) -> WindowResult:
    """Place the blocks `free` again, within `seconds` of the deterministic clock and `wall_s` of the wall
    clock.
    """
    from ortools.sat.python import cp_model

    edges = Edges.of(problem)
    model = cp_model.CpModel()
    parts = _blocks(model, problem, rects, level, free, _box(problem, rects, free))
    wire = _wire(model, edges, rects, parts)
    if not wire:
        return WindowResult(None, START_COST_S, False)
    before = _wire_of(edges, rects, free)
    total = sum(factor * apart for factor, apart in wire)
    model.add(total <= before)
    model.minimize(total)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.catch_sigint_signal = False  # the caller handles interrupts
    units = seconds / SECONDS_PER_UNIT
    solver.parameters.max_deterministic_time = units
    if np.isfinite(wall_s):
        solver.parameters.max_time_in_seconds = wall_s
    status = solver.solve(model)
    used = float(solver.response_proto.deterministic_time)
    cut = status != cp_model.OPTIMAL and used < 0.95 * units and solver.wall_time >= 0.95 * wall_s
    spent = START_COST_S + SECONDS_PER_UNIT * used
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE) or round(solver.objective_value) >= before:
        return WindowResult(None, spent, cut)
    found = rects.copy()
    for i, row in parts.items():
        found[i] = [solver.value(v) for v in row]
    return WindowResult(found, spent, cut)


def merge(
    problem: PlacementProblem, rects: np.ndarray, windows: list[tuple[list[int], np.ndarray]]
) -> np.ndarray:
    """Return the rectangles with every window (its blocks, its rectangles) that still shortens the wire.

    Windows are solved in parallel, each as if the others stayed, so together they may overlap. They are
    therefore applied one after the other, and illegal ones are skipped.
    """
    names = [block.name for block in problem.blocks]
    wire = wire_length(problem, *rects.T)
    for free, found in windows:
        trial = rects.copy()
        trial[free] = found[free]
        less = wire_length(problem, *trial.T)
        if less < wire - 1e-9 and first_illegality(problem.width, problem.height, names, trial) is None:
            rects, wire = trial, less
    return rects


def _box(problem: PlacementProblem, rects: np.ndarray, free: list[int]) -> tuple[int, int, int, int]:
    """Return the corners x0, y0, x1, y1 of the box in which the window's blocks may move."""
    margin = int(np.ceil(MARGIN * max(problem.width, problem.height)))
    low = rects[free, :2].min(axis=0) - margin
    high = (rects[free, :2] + rects[free, 2:]).max(axis=0) + margin
    x0, y0 = (int(v) for v in np.maximum(low, 0))
    return x0, y0, min(int(high[0]), problem.width), min(int(high[1]), problem.height)


def _blocks(
    model: CpModel,
    problem: PlacementProblem,
    rects: np.ndarray,
    level: float,
    free: list[int],
    box: tuple[int, int, int, int],
) -> dict[int, tuple[IntVar, IntVar, IntVar, IntVar]]:
    """Return variables x, y, w, h of every free block, which overlap neither each other nor the other
    blocks.
    """
    from ortools.sat.python import cp_model

    x0, y0, x1, y1 = box
    parts: dict[int, tuple[IntVar, IntVar, IntVar, IntVar]] = {}
    x_spans, y_spans = [], []
    for i in free:
        shapes = _shapes(problem, i, rects[i], level, (x1 - x0, y1 - y0))
        x, y = model.new_int_var(x0, x1, ""), model.new_int_var(y0, y1, "")
        w = model.new_int_var_from_domain(cp_model.Domain.from_values([s[0] for s in shapes]), "")
        h = model.new_int_var_from_domain(cp_model.Domain.from_values([s[1] for s in shapes]), "")
        model.add_allowed_assignments([w, h], shapes)
        x_spans.append(model.new_interval_var(x, w, model.new_int_var(x0, x1, ""), ""))
        y_spans.append(model.new_interval_var(y, h, model.new_int_var(y0, y1, ""), ""))
        parts[i] = (x, y, w, h)
        for variable, value in zip(parts[i], rects[i].tolist(), strict=True):
            model.add_hint(variable, value)
    fixed = np.ones(len(rects), dtype=bool)
    fixed[free] = False
    fixed &= (rects[:, 0] < x1) & (rects[:, 0] + rects[:, 2] > x0)
    fixed &= (rects[:, 1] < y1) & (rects[:, 1] + rects[:, 3] > y0)
    for x, y, w, h in rects[fixed].tolist():
        x_spans.append(model.new_fixed_size_interval_var(x, w, ""))
        y_spans.append(model.new_fixed_size_interval_var(y, h, ""))
    model.add_no_overlap_2d(x_spans, y_spans)
    return parts


def _shapes(
    problem: PlacementProblem, block: int, rect: np.ndarray, level: float, room: tuple[int, int]
) -> list[tuple[int, int]]:
    """Return (width, height) of the block's shapes at `level` within `room`, its present shape included."""
    front = problem.blocks[block].shapes.front(level)
    found = {(int(rect[2]), int(rect[3]))}
    for w, h in zip(front.widths.tolist(), front.heights.tolist(), strict=True):
        for pair in ((w, h), (h, w)) if problem.rotate else ((w, h),):
            if pair[0] <= room[0] and pair[1] <= room[1]:
                found.add(pair)
    return sorted(found)


def _wire(
    model: CpModel, edges: Edges, rects: np.ndarray, parts: dict[int, tuple[IntVar, IntVar, IntVar, IntVar]]
) -> list[tuple[int, IntVar]]:
    """Return the weight and the doubled distance per axis of every edge that ends in the window."""

    def centre(i: int, axis: int) -> LinearExpr | int:
        if i in parts:
            return 2 * parts[i][axis] + parts[i][2 + axis]
        return int(2 * rects[i, axis] + rects[i, 2 + axis])

    reach = 2 * int((rects[:, :2] + rects[:, 2:]).max() + rects[:, 2:].max()) + 2
    terms = []
    for a, b, weight in zip(
        edges.source.tolist(), edges.destination.tolist(), edges.weight.tolist(), strict=True
    ):
        if weight == 0 or (a not in parts and b not in parts):
            continue
        for axis in (0, 1):
            apart = model.new_int_var(0, 2 * reach, "")
            difference = centre(a, axis) - centre(b, axis)
            model.add(apart >= difference)
            model.add(apart >= -difference)
            terms.append((weight, apart))
    return terms


def _wire_of(edges: Edges, rects: np.ndarray, free: list[int]) -> int:
    """Return the doubled wire of the edges that end in the window, as the model computes it."""
    ends = np.isin(edges.source, free) | np.isin(edges.destination, free)
    middle = 2 * rects[:, :2] + rects[:, 2:]
    apart = np.abs(middle[edges.source[ends]] - middle[edges.destination[ends]]).sum(axis=1)
    return int((edges.weight[ends] * apart).sum())
