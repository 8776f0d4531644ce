"""Constraint programming (CP-SAT of OR-tools) for small problems: an optimum with a proof.

The program chooses one shape per block among its alternatives and integer positions, so that rectangles do
not overlap, and minimizes the cost. The result of the placer ``snake`` is the hint, so that there is an
answer for any time limit. Costs are rounded to 1/1000 inside the solver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wse_sim.compiler.placement.curves import area_bound, level_grid
from wse_sim.compiler.placement.problem import Placement, PlacementProblem, Progress, finish
from wse_sim.compiler.placement.snake import SnakePlacer
from wse_sim.errors import ConfigError

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, IntVar

MOST_BLOCKS = 24
MOST_LEVELS = 60
SCALE = 1000
WORK_RATE = 0.5  # deterministic solver units per second of the limit: so low that the clock rarely ends first


class ExactPlacer:
    """CP-SAT on the whole problem; it proves the optimum over the sampled levels if time allows."""

    def place(
        self,
        problem: PlacementProblem,
        *,
        seed: int = 0,
        time_limit_s: float = 60.0,
        progress: Progress | None = None,
    ) -> Placement:
        """Return the best placement found; a note states whether it was proved optimal.

        Raises
        ------
        ConfigError
            If OR-tools is not installed or the problem has more than `MOST_BLOCKS` blocks.
        PlacementError
            If the placer ``snake`` finds no placement.
        """
        try:
            from ortools.sat.python import cp_model
        except ImportError:
            raise ConfigError(
                "the placer 'exact' needs OR-tools; install ortools or use 'portfolio'"
            ) from None
        n = len(problem.blocks)
        if n > MOST_BLOCKS:
            raise ConfigError(
                f"the placer 'exact' takes at most {MOST_BLOCKS} blocks but there are {n}; use 'portfolio'"
            )
        start = SnakePlacer().place(problem, seed=seed, time_limit_s=time_limit_s)
        shapes = _alternatives(problem, start)
        model = cp_model.CpModel()
        parts = _build(model, problem, shapes, start)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = seed % (1 << 31)
        solver.parameters.max_deterministic_time = WORK_RATE * time_limit_s
        solver.parameters.max_time_in_seconds = time_limit_s  # on a busy machine it ends the search first
        status = solver.solve(model)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return start
        rects = np.array([[solver.value(v) for v in row] for row in parts], dtype=np.int64)
        level = max(
            min(t for w, h, t in shapes[i] if w == rects[i, 2] and h == rects[i, 3]) for i in range(n)
        )
        note = (
            "proved optimal over the sampled levels" if status == cp_model.OPTIMAL else "not proved optimal"
        )
        found = finish(problem, rects, level, (note,))
        if progress is not None:
            progress("exact", found.cost)
        return found if found.cost <= start.cost else start


def _alternatives(problem: PlacementProblem, start: Placement) -> list[list[tuple[int, int, float]]]:
    """Return (width, height, time) of the shapes of each block at levels that could still win, rotated ones
    included.
    """
    bound = area_bound(problem)
    weight = problem.time_weight
    high = max(start.level, start.max_time, start.cost / weight if weight > 0 else 0.0)
    levels = level_grid(problem, bound * (1 - 1e-7), min(high, 8 * max(bound, start.max_time)), MOST_LEVELS)
    levels = np.unique(np.append(levels, [start.level, start.max_time]))
    result = []
    for i, block in enumerate(problem.blocks):
        best: dict[tuple[int, int], float] = {}
        for level in levels:
            front = block.shapes.front(float(level))
            for w, h, t in zip(
                front.widths.tolist(), front.heights.tolist(), front.times.tolist(), strict=True
            ):
                for pair in ((w, h), (h, w)) if problem.rotate else ((w, h),):
                    if pair[0] <= problem.width and pair[1] <= problem.height:
                        best[pair] = min(t, best.get(pair, np.inf))
        own = (int(start.width[i]), int(start.height[i]))
        best.setdefault(own, start.max_time)
        result.append([(w, h, t) for (w, h), t in sorted(best.items())])
    return result


def _build(
    model: CpModel, problem: PlacementProblem, shapes: list[list[tuple[int, int, float]]], start: Placement
) -> list[list[IntVar]]:
    """Add the constraints, the objective and the hint to the model; return the variables x, y, w, h of each
    block.
    """
    W, H = problem.width, problem.height
    top = int(np.ceil(max(t for row in shapes for _, _, t in row) * SCALE))
    longest = model.new_int_var(0, top, "longest")
    rows, x_spans, y_spans = [], [], []
    for i, row in enumerate(shapes):
        x, y = model.new_int_var(0, W, f"x{i}"), model.new_int_var(0, H, f"y{i}")
        w, h = model.new_int_var(1, W, f"w{i}"), model.new_int_var(1, H, f"h{i}")
        t = model.new_int_var(0, top, f"t{i}")
        model.add_allowed_assignments([w, h, t], [(a, b, round(c * SCALE)) for a, b, c in row])
        model.add(longest >= t)
        x_end, y_end = model.new_int_var(0, W, f"xe{i}"), model.new_int_var(0, H, f"ye{i}")
        x_spans.append(model.new_interval_var(x, w, x_end, f"xs{i}"))
        y_spans.append(model.new_interval_var(y, h, y_end, f"ys{i}"))
        for variable, value in ((x, start.x[i]), (y, start.y[i]), (w, start.width[i]), (h, start.height[i])):
            model.add_hint(variable, int(value))
        rows.append([x, y, w, h])
    for left, bottom, wide, high in problem.blocked:
        x_spans.append(model.new_fixed_size_interval_var(left, wide, f"bx{left}_{bottom}"))
        y_spans.append(model.new_fixed_size_interval_var(bottom, high, f"by{left}_{bottom}"))
    model.add_no_overlap_2d(x_spans, y_spans)
    terms = []
    for e, (a, b, weight) in enumerate(problem.edges):
        for axis, extent in ((0, W), (1, H)):
            apart = model.new_int_var(0, 2 * extent, f"d{e}_{axis}")
            difference = 2 * rows[a][axis] + rows[a][2 + axis] - 2 * rows[b][axis] - rows[b][2 + axis]
            model.add_abs_equality(apart, difference)
            terms.append((round(problem.wire_weight * weight * SCALE / 2), apart))
    # both factors are weights in units of 1/SCALE; times are in 1/SCALE as well, so distances are multiplied
    model.minimize(
        round(problem.time_weight * SCALE) * longest + sum(SCALE * factor * apart for factor, apart in terms)
    )
    return rows
