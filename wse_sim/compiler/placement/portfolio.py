"""Portfolio: peel seeds over orders and levels, annealing from different seeds, restarts, compaction.

The budget is counted in work units (see :mod:`anneal`), by a fixed rate from the time limit, so that the
result depends only on the problem, the seed and the time limit. A free machine needs about two thirds of the
limit for it. The limit also holds on the clock: every task has its part of the seconds left. If a busy or
slow machine does less work in them than planned, schedules are shortened, and the result's notes state this.

The range of levels needs no tuning to the weights: a level ``T`` can win only while ``time_weight * T`` is
below the best cost, so the best seed bounds the range from above.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from wse_sim.compiler.placement.curves import area_bound, curve_span, last_level, level_grid
from wse_sim.compiler.placement.peel import dataflow_orders
from wse_sim.compiler.placement.polish import polish
from wse_sim.compiler.placement.portfolio_processes import AnnealTask, Crew, SeedTask, warm_up
from wse_sim.compiler.placement.problem import Placement, PlacementProblem, Progress, finish
from wse_sim.compiler.placement.search import Clock, TreeSearch
from wse_sim.compiler.placement.snake import FIRST_S, SnakePlacer
from wse_sim.compiler.placement.windows import is_available

WORK_PER_S = 8_000_000  # annealing units per second and process: three quarters of the rate at 2.5 GHz
WORK_SPAN = 704  # entries per curve at which this rate holds; with longer curves a unit takes longer
PEEL_UNITS = 8.0  # peel units that take as long as one annealing unit
USED_FRACTION = 0.85  # of the time limit; the rest is for starting, levels and compaction
SEED_FRACTION = 0.2
SEED_BATCH = 8  # seed tasks between two checks of the budget
SEED_SECONDS = 0.4  # fraction of the time limit after which the clock ends the seeds
FINISH_SECONDS = 0.05  # fraction of the time limit kept for the last compaction and the answer
START_S = 3.0  # seconds beyond the limit for processes, levels and curves, which short limits cannot contain
# (temperature at the start as a fraction of the wire cost; penalty of overflow at the start and at the end in
# units of one column's fraction of the time). A low temperature with a high penalty improves a seed locally.
# A high temperature with a low penalty explores placements far from it. Which one wins depends on the
# instance, so all are run.
SETTLE = (0.02, 2.0, 4.0)
EXPLORE = [(0.04, 0.2, 1.0), (0.05, 2.0, 4.0), (0.08, 0.3, 1.5), (0.1, 1.0, 3.0)]
# work units per block below which an annealing is too short: then fewer are run, but at least two
LEAST_SETTLE = 30_000
LEAST_EXPLORE = 100_000
WINDOW_FRACTION = 0.12  # of the time limit, for local windows solved by constraint programming
SETTLE_FRACTION = 0.12  # of the annealing, for SETTLED seeds; more if bands of levels add seeds
SETTLED = 12
BAND = 1.05
MOST_BANDS = 8
LEAST_SPREAD, MOST_SPREAD = 0.04, 0.2  # fractions of the level by which exploring may change it, up or down
MAX_LEVELS = 200
FINE_LEVELS = 160
COARSE_RATIO = 1.12
FAR_RATIO = 1.3
COARSE_LEVELS = 24


CUT = "the clock cut the search short: another run with this seed may differ; raise the time limit"


class PortfolioPlacer:
    """Placer by peel seeds, annealing over slicing trees and compaction by linear programs, in several
    processes.
    """

    anneals = True

    def __init__(self, processes: int = 2, watch_clock: bool = True) -> None:
        """Create a placer that searches in `processes` processes.

        Without `watch_clock` it does all planned work, however long that takes.
        """
        self.processes = processes
        self.watch_clock = watch_clock

    def place(
        self,
        problem: PlacementProblem,
        *,
        seed: int = 0,
        time_limit_s: float = 60.0,
        progress: Progress | None = None,
    ) -> Placement:
        """Return the best placement found within the time limit; after an interrupt, the best one until then.

        On fabrics with dead cores, or if the search finds none, it is that of :class:`SnakePlacer`.

        Raises
        ------
        PlacementError
            If there is no placement.
        """
        if problem.blocked:
            return SnakePlacer().place(problem, seed=seed, time_limit_s=time_limit_s, progress=progress)
        clock = self._clock(time_limit_s, curve_span(problem))
        # if time has no weight, the smallest blocks are the best, and the search starts with them
        last = time.monotonic() + time_limit_s + FIRST_S
        bound = area_bound(problem, last) if problem.time_weight > 0 else last_level(problem)
        crew = Crew(problem, self.processes)
        search = TreeSearch(problem, crew, clock, progress)
        notes: list[str] = []
        abort = True
        try:
            _search_all(search, bound, seed, self.anneals)
            abort = False
        except KeyboardInterrupt:
            if search.rects is None:
                raise
            notes.append("interrupted: this is the best placement found until then")
        finally:
            crew.close(abort)
        if search.rects is None:
            left_s = min(max(clock.end - time.monotonic(), 0.1 * time_limit_s), time_limit_s)
            rows = SnakePlacer().place(problem, seed=seed, time_limit_s=left_s, progress=progress)
            return replace(rows, notes=(*rows.notes, CUT)) if search.stopped else rows
        if search.stopped:
            notes.append(CUT)
        return finish(problem, search.rects, search.level, tuple(notes))

    def _clock(self, limit_s: float, span: int) -> Clock:
        """Return the budget of a search whose time limit starts now.

        The search gets at least half of the limit, however long it takes to compile the kernels.
        """
        start = time.monotonic()
        warm_up()
        slower = max(1.0, 0.3 + 0.7 * span / WORK_SPAN)  # moves and wire do not depend on the span
        work = WORK_PER_S / slower * USED_FRACTION * limit_s * self.processes
        window_s = WINDOW_FRACTION * limit_s * self.processes
        if not self.watch_clock:
            return Clock(work, window_s, *[float("inf")] * 3)
        end = max(start + limit_s, time.monotonic() + 0.5 * limit_s) + START_S
        seeds_end = end - (1.0 - SEED_SECONDS) * limit_s if self.anneals else end
        last = end - FINISH_SECONDS * limit_s
        return Clock(work, window_s, last, last - WINDOW_FRACTION * limit_s, seeds_end)


class PeelPlacer(PortfolioPlacer):
    """Placer by the portfolio's seeds alone: the peel dynamic program over levels and orders, within
    seconds.
    """

    anneals = False


def _search_all(search: TreeSearch, bound: float, seed: int, anneals: bool) -> None:
    """Run all phases: coarse seeds, seeds in the range of levels, annealing, and restarts in narrower
    ranges.
    """
    problem, clock = search.problem, search.clock
    n = len(problem.blocks)
    rng = np.random.default_rng(seed)
    orders = _orders(problem, rng)
    used = _coarse_seeds(search, bound, orders[:1], n)
    if not search.trees:
        return  # the caller falls back to the placer snake
    if search.cost <= problem.time_weight * bound * (1 + 1e-9):
        return  # no placement is cheaper
    high = _window_top(search, bound)
    levels = level_grid(problem, bound * (1 - 1e-7), high, MAX_LEVELS if n <= 300 else 60)
    used += _window_seeds(search, levels, orders, n, used)
    if not anneals:
        return
    clock.left_work = left = max(clock.total_work - used, 0.25 * clock.total_work)
    scale = 1.0 if n <= 300 else 0.25
    search.phase = "settling"
    bands = _best_per_band(search.trees, MOST_BANDS)
    settle = SETTLE_FRACTION * (1 + len(bands) / SETTLED)
    many = max(2, int((SETTLED + len(bands)) * scale))
    many = _affordable(search, settle * left, many, LEAST_SETTLE)
    first = _mixed(_pick(search.trees, SETTLED), bands, many)
    levels = _with_levels(levels, [t[1] for t in first])
    search.anneal(_anneal_tasks(search, first, levels, settle * left, rng, [SETTLE]))
    search.phase = "exploring"
    spread = float(np.clip(0.25 * np.log(high / bound), LEAST_SPREAD, MOST_SPREAD))
    for fraction, basins in ((0.5, 4), (0.25, 3), (0.25, 2)):
        fraction *= 1 - settle
        best = _pick(search.trees, max(1, int(basins * scale)))
        low = min(t[1] for t in best) * (1 - spread)
        top = min(max(t[1] for t in best) * (1 + spread), max(_window_top(search, bound), best[0][1]))
        fine = level_grid(problem, max(low, bound * (1 - 1e-7)), top, FINE_LEVELS if n <= 300 else 60)
        fine = _with_levels(fine, [t[1] for t in best])
        starts = [tree for tree in best for _ in EXPLORE[: max(1, int(len(EXPLORE) * scale))]]
        starts = starts[: _affordable(search, fraction * left, len(starts), LEAST_EXPLORE)]
        search.anneal(_anneal_tasks(search, starts, fine, fraction * left, rng, EXPLORE))
        spread = max(0.5 * spread, LEAST_SPREAD)
    if search.rects is not None and problem.wire_weight > 0 and is_available():
        search.phase = "windows"
        polish(search, rng)


def _affordable(search: TreeSearch, work: float, most: int, least: int) -> int:
    """Return how many annealings of at least `least` units per block the remaining work allows, from 2 to
    `most`.
    """
    many = int(search.clock.able(work) / (least * len(search.problem.blocks)))
    return min(most, max(many, 2))


def _orders(problem: PlacementProblem, rng: np.random.Generator) -> list[np.ndarray]:
    """Return the dataflow orders of the blocks and their reverses."""
    ea, eb, _ = problem.edge_arrays()
    found = dataflow_orders(len(problem.blocks), ea, eb)
    return [o for order in found for o in (order, order[::-1].copy())]


def _window_top(search: TreeSearch, bound: float) -> float:
    """Return the highest level that can still win, at most the highest level of a tree."""
    weight = search.problem.time_weight
    worst = max(t[1] for t in search.trees)
    return max(min(search.cost / weight, worst) if weight > 0 else worst, bound)


def _peel_effort(n: int) -> tuple[int, int]:
    """Return the states kept per number of blocks, and the most blocks per group; both decrease for large
    `n`.
    """
    return int(np.clip(20000 // n, 12, 400)), n if n <= 250 else int(4 * np.sqrt(n))


def _thrifts(n: int) -> tuple[float, ...]:
    """Return the weights of wasted area in seeds; a second, high one if there are many blocks and few states
    are kept.
    """
    return (0.3,) if n <= 150 else (0.3, 3.0)


def _rooms(search: TreeSearch, areas: float) -> list[tuple[int, int]]:
    """Return the rectangles to peel: the fabric, and smaller ones if the blocks leave much of it free."""
    W, H = search.problem.width, search.problem.height
    rooms = [(W, H)]
    for fill in (0.95, 0.85):
        scale = np.sqrt(areas / fill / (W * H))
        if scale < 0.97:
            rooms.append((max(1, int(W * scale)), max(1, int(H * scale))))
    if areas / (W * H) < 0.85:
        rooms.append((W, max(1, int(H * areas / (0.93 * W * H)))))
    return rooms


def _least_area(problem: PlacementProblem, level: float) -> float:
    """Return the sum of the smallest areas of all blocks at a level."""
    total = 0.0
    cache: dict[object, float] = {}
    for block in problem.blocks:
        key = block.shapes.key()
        if key not in cache:
            front = block.shapes.front(level)
            cache[key] = float((front.widths * front.heights).min()) if front.widths.size else np.inf
        total += cache[key]
    return total


def _coarse_seeds(search: TreeSearch, bound: float, orders: list[np.ndarray], n: int) -> float:
    """Make seeds on a geometric sequence of levels until a higher level cannot help; return the work used.

    After four levels in a row without a better cost, the steps are wider: short wire may still win at a much
    higher level.
    """
    problem = search.problem
    last, most = last_level(problem), 0.5 * SEED_FRACTION * search.clock.total_work
    keep, longest = _peel_effort(n)
    starts = [(tuple(o.tolist()), thrift) for o in orders for thrift in _thrifts(n)]
    used = 0.0
    best, since = float("inf"), 0
    level = bound if n == 1 else bound * 1.02
    for _ in range(4 * COARSE_LEVELS):
        if search.clock.seeds_over(bool(search.trees)):
            search.stopped = True
            break
        tasks = []
        for room in _rooms(search, _least_area(problem, level)):
            tasks += [
                SeedTask((level,), o, 0, max(keep // 4, 12), longest, room, thrift, search.clock.end)
                for o, thrift in starts
            ]
        used += sum(o.work for o in search.run(tasks)) / PEEL_UNITS
        if search.cost < best - 1e-9:
            best, since = search.cost, 0
        elif np.isfinite(best):
            since += 1
        hopeless = problem.time_weight * level > best or level > last or used > most
        if np.isfinite(best) and hopeless:
            break
        if since >= 4:
            level *= FAR_RATIO
        else:
            level *= 1.035 if level < bound * COARSE_RATIO else COARSE_RATIO
    return used


def _window_seeds(
    search: TreeSearch, levels: np.ndarray, orders: list[np.ndarray], n: int, used: float
) -> float:
    """Make seeds at levels in an order that halves the gaps, within a fraction of the budget; return the work
    used.
    """
    problem = search.problem
    keep, longest = _peel_effort(n)
    starts = [(tuple(o.tolist()), thrift) for o in orders for thrift in _thrifts(n)]
    spent = 0.0
    names = tuple(levels.tolist())
    waiting: list[SeedTask] = []
    for index in _halving(len(levels)):
        if problem.time_weight * levels[index] <= search.cost:
            for room in _rooms(search, _least_area(problem, float(levels[index]))):
                waiting += [
                    SeedTask(names, o, index, keep, longest, room, thrift, search.clock.seeds_end)
                    for o, thrift in starts
                ]
        while len(waiting) >= SEED_BATCH:
            if used + spent > SEED_FRACTION * search.clock.total_work:
                return spent
            if search.clock.seeds_over(True):
                search.stopped = True
                return spent
            spent += sum(o.work for o in search.run(waiting[:SEED_BATCH])) / PEEL_UNITS
            waiting = waiting[SEED_BATCH:]
    return spent + sum(o.work for o in search.run(waiting)) / PEEL_UNITS


def _halving(count: int) -> list[int]:
    """Return the indices 0..count-1 in an order in which each one is in one of the largest gaps between those
    before.
    """
    bits = max(count - 1, 1).bit_length()
    reverse = [int(format(i, f"0{bits}b")[::-1], 2) for i in range(1 << bits)]
    return [i for i in reverse if i < count]


def _pick(
    trees: list[tuple[float, float, tuple[int, ...]]], many: int
) -> list[tuple[float, float, tuple[int, ...]]]:
    """Return up to `many` of the best trees, no two of equal cost and at most two of one level."""
    chosen: list[tuple[float, float, tuple[int, ...]]] = []
    costs: set[float] = set()
    per_level: dict[float, int] = {}
    for tree in sorted(trees, key=lambda t: (t[0], t[1], t[2])):
        if round(tree[0], 6) in costs or per_level.get(tree[1], 0) >= 2:
            continue
        costs.add(round(tree[0], 6))
        per_level[tree[1]] = per_level.get(tree[1], 0) + 1
        chosen.append(tree)
        if len(chosen) == many:
            break
    return chosen


def _best_per_band(
    trees: list[tuple[float, float, tuple[int, ...]]], most: int
) -> list[tuple[float, float, tuple[int, ...]]]:
    """Return the best tree of each of at most `most` bands of levels, none narrower than ``BAND``.

    Seeds at higher levels have unused area. Only annealing turns it into shorter wire, so over a wide range
    of levels their present cost predicts little.
    """
    low, high = min(t[1] for t in trees), max(t[1] for t in trees)
    many = min(most, int(np.log(high / low) / np.log(BAND)))
    best: dict[int, tuple[float, float, tuple[int, ...]]] = {}
    for tree in sorted(trees, key=lambda t: (t[0], t[1], t[2])):
        if many > 1:
            best.setdefault(min(int(many * np.log(tree[1] / low) / np.log(high / low)), many - 1), tree)
    return sorted(best.values())


def _mixed(
    first: list[tuple[float, float, tuple[int, ...]]],
    second: list[tuple[float, float, tuple[int, ...]]],
    many: int,
) -> list[tuple[float, float, tuple[int, ...]]]:
    """Return `many` trees, alternating between both lists, without duplicates."""
    pairs = [tree for pair in zip(first, second, strict=False) for tree in pair]
    rest = first[len(second) :] + second[len(first) :]
    return list(dict.fromkeys(pairs + rest))[:many]


def _with_levels(levels: np.ndarray, more: list[float]) -> np.ndarray:
    """Return the union of levels, in ascending order."""
    return np.unique(np.concatenate([levels, np.array(more)]))


def _anneal_tasks(
    search: TreeSearch,
    trees: list[tuple[float, float, tuple[int, ...]]],
    levels: np.ndarray,
    work: float,
    rng: np.random.Generator,
    settings: list[tuple[float, float, float]],
) -> list[AnnealTask]:
    """Return one annealing task per tree with an equal part of `work`, cycling through the `settings`."""
    problem = search.problem
    names = tuple(levels.tolist())
    tasks = []
    for i, (cost, level, tree) in enumerate(trees):
        heat, lenient, strict = settings[i % len(settings)]
        wire = max(cost - problem.time_weight * level, 1e-3 * cost, 1e-6)
        per_column = max(problem.time_weight * level, wire) / problem.width
        start = heat * wire
        tasks.append(
            AnnealTask(
                names,
                tree,
                int(np.searchsorted(levels, level)),
                int(rng.integers(1 << 62)),
                int(work / len(trees)),
                (start, 0.01 * start),
                (lenient * per_column, strict * per_column),
            )
        )
    return tasks
