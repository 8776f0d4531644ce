"""Placement of the compiler's own kernels: slowest kernel first, wire second, dead cores avoided."""

from __future__ import annotations

from dataclasses import replace

from wse_sim.compiler.placers.problem import Placement, PlacementProblem, Progress

# one cycle of the slowest kernel outweighs any wire: a kernel pair is at most width + height apart
EFFORTS = {"fast": 4.0, "normal": 20.0, "best": 60.0}


def time_first(problem: PlacementProblem, share: float = 1e-3) -> PlacementProblem:
    """The problem with wire worth at most `share` of the time at the area bound.

    Wire is measured against every edge crossing half the fabric, so that the exchange rate does not
    depend on the number of edges.
    """
    from wse_sim.compiler.placers.curves import area_bound

    total = sum(abs(weight) for _a, _b, weight in problem.edges)
    reach = max(total * (problem.width + problem.height) / 2.0, 1.0)
    return replace(problem, time_weight=1.0, wire_weight=share * area_bound(problem) / reach)


def place_rectangles(
    problem: PlacementProblem,
    *,
    effort: str = "fast",
    seed: int = 0,
    time_limit_s: float | None = None,
    processes: int = 1,
    progress: Progress | None = None,
) -> Placement:
    """Place the problem's blocks with the least slowest time, then the least wire.

    The problem's own weights are replaced (see :func:`time_first`), and ``cost`` of the result is in
    those.  Rotation and dead cores are taken from the problem.  `effort` is ``fast`` (peel dynamic
    program and a short annealing, seconds), ``normal`` or ``best``; `time_limit_s` overrides it.
    """
    from wse_sim.compiler.placers.portfolio import PortfolioPlacer
    from wse_sim.errors import ConfigError

    if effort not in EFFORTS:
        raise ConfigError(f"there is no placement effort {effort!r}; use one of {', '.join(EFFORTS)}")
    limit = EFFORTS[effort] if time_limit_s is None else time_limit_s
    return PortfolioPlacer(processes).place(
        time_first(problem), seed=seed, time_limit_s=limit, progress=progress
    )
