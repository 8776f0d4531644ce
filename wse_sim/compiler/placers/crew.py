"""Worker processes of the portfolio: each holds the problem and the curves of the bank in use.

A task is a pure function of its arguments, so that the result does not depend on which process ran
it.  The safety stop alone looks at clocks: a worker that has used clearly more processor seconds than
the time limit, or many times the limit in wall seconds, cuts its task short and says so.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import numpy as np

from wse_sim.compiler.placers.anneal import Annealer
from wse_sim.compiler.placers.compact import compact
from wse_sim.compiler.placers.curves import build_curves
from wse_sim.compiler.placers.peel import Peeler, Seed
from wse_sim.compiler.placers.problem import Block, ListedShapes, PlacementProblem, wire_length

WALL_FACTOR = 8.0  # processor seconds are the limit proper: a busy machine must not change the result
START_S = 2.0  # levels and curves, which no short limit can pay for
COMPACT_LIMIT = 400  # blocks; above, the linear programs take longer than they save


@dataclass(frozen=True)
class SeedTask:
    """Peel DP for one order of blocks at one level index of the bank `levels`."""

    levels: tuple[float, ...]
    order: tuple[int, ...]
    level: int
    keep: int
    longest: int
    room: tuple[int, int]


@dataclass(frozen=True)
class AnnealTask:
    """Annealing of one tree for `work` units, then compaction."""

    levels: tuple[float, ...]
    tree: tuple[int, ...]
    level: int
    seed: int
    work: int
    temperatures: tuple[float, float]
    lambdas: tuple[float, float]


@dataclass(frozen=True)
class Outcome:
    """Trees found (best first, levels by value), the compacted rectangles and the work used."""

    seeds: tuple[tuple[float, float, tuple[int, ...]], ...]
    rects: np.ndarray | None
    level: float
    cost: float
    work: float
    stopped: bool


class Bench:
    """Problem, bank of curves and annealer, kept between tasks of one process."""

    def __init__(self, problem: PlacementProblem, time_limit_s: float) -> None:
        self.problem = problem
        self.limit_s = time_limit_s
        self.cpu_start = time.process_time()
        self.wall_start = time.perf_counter()
        self.levels: tuple[float, ...] = ()
        self.annealer: Annealer | None = None

    def overdue(self) -> bool:
        """Whether the safety stop is due."""
        cpu = time.process_time() - self.cpu_start
        wall = time.perf_counter() - self.wall_start
        return cpu > 1.2 * self.limit_s + START_S or wall > WALL_FACTOR * (self.limit_s + START_S)

    def on(self, levels: tuple[float, ...]) -> Annealer:
        """The annealer on the bank of `levels`."""
        if self.annealer is None or levels != self.levels:
            self.levels = levels
            self.annealer = Annealer(self.problem, build_curves(self.problem, np.array(levels)))
        return self.annealer

    def seed(self, task: SeedTask) -> Outcome:
        """Run the peel DP."""
        if self.overdue():
            return Outcome((), None, 0.0, float("inf"), 0.0, True)
        annealer = self.on(task.levels)
        peeler = Peeler(annealer, np.array(task.order, dtype=np.int64))
        found = peeler.seeds(task.level, keep=task.keep, room=task.room, longest=task.longest)
        return self._outcome(annealer, found, float(peeler.work[0]), False, squeeze=False)

    def anneal(self, task: AnnealTask) -> Outcome:
        """Run the annealing."""
        annealer = self.on(task.levels)
        late = self.overdue()
        result = annealer.run(
            np.array(task.tree, dtype=np.int32),
            task.level,
            seed=task.seed,
            work=0 if late else task.work,
            temperatures=task.temperatures,
            lambdas=task.lambdas,
            stop=self.overdue,
        )
        return self._outcome(
            annealer,
            [Seed(result.tree, result.level, result.cost)],
            float(task.work),
            late or self.overdue(),
            squeeze=True,
        )

    def _outcome(
        self, annealer: Annealer, found: list[Seed], work: float, stopped: bool, squeeze: bool
    ) -> Outcome:
        levels = annealer.bank.levels
        if not found or not np.isfinite(found[0].cost):
            return Outcome((), None, 0.0, float("inf"), work, stopped)
        top = found[0]
        rects, _width = annealer.layout(top.tree, top.level)
        if squeeze and len(rects) <= COMPACT_LIMIT:
            rects = compact(self.problem, rects)
        level = float(levels[top.level])
        wire = wire_length(self.problem, *rects.T)
        cost = self.problem.time_weight * level + self.problem.wire_weight * wire
        seeds = tuple((s.cost, float(levels[s.level]), tuple(s.tree.tolist())) for s in found)
        return Outcome(seeds, rects, level, cost, work, stopped)


_bench: list[Bench] = []


def _start(problem: PlacementProblem, time_limit_s: float) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent alone handles an interrupt
    _bench[:] = [Bench(problem, time_limit_s)]


def _work(task: SeedTask | AnnealTask) -> Outcome:
    bench = _bench[0]
    return bench.seed(task) if isinstance(task, SeedTask) else bench.anneal(task)


def warm_up() -> None:
    """Compile or load every kernel once, so that forked workers have them and clocks start after."""
    blocks = tuple(Block(str(i), ListedShapes([(2, 3, 1.0), (3, 2, 1.0)])) for i in range(3))
    problem = PlacementProblem(8, 8, blocks, ((0, 1, 1.0), (1, 2, 1.0)))
    bench = Bench(problem, 60.0)
    found = bench.seed(SeedTask((1.0,), (0, 1, 2), 0, 4, 3, (8, 8)))
    for _cost, _level, tree in found.seeds[:1]:
        bench.anneal(AnnealTask((1.0,), tree, 0, 0, 200, (1.0, 0.1), (1.0, 1.0)))


class Crew:
    """Runs tasks in `processes` workers, or in this process when that is 1."""

    def __init__(self, problem: PlacementProblem, time_limit_s: float, processes: int) -> None:
        warm_up()
        self.bench = Bench(problem, time_limit_s)
        self.pool: ProcessPoolExecutor | None = None
        if processes > 1:
            method = "fork" if sys.platform.startswith("linux") else "spawn"
            self.pool = ProcessPoolExecutor(
                processes, multiprocessing.get_context(method), _start, (problem, time_limit_s)
            )

    def run(self, tasks: list[Any], done: Callable[[Outcome], None]) -> list[Outcome]:
        """Outcomes in the order of `tasks`; `done` sees each as soon as it is there."""
        results: list[Outcome | None] = [None] * len(tasks)
        for index, outcome in self._finished(tasks):
            results[index] = outcome
            done(outcome)
        return [r for r in results if r is not None]

    def _finished(self, tasks: list[Any]) -> Iterator[tuple[int, Outcome]]:
        if self.pool is None:
            for index, task in enumerate(tasks):
                yield index, self.bench.seed(task) if isinstance(task, SeedTask) else self.bench.anneal(task)
            return
        futures: dict[Future[Outcome], int] = {
            self.pool.submit(_work, task): i for i, task in enumerate(tasks)
        }
        for future in as_completed(futures):
            yield futures[future], future.result()

    def close(self, abort: bool) -> None:
        """Let the workers go; `abort` does not wait for their tasks."""
        if self.pool is None:
            return
        workers = list((getattr(self.pool, "_processes", None) or {}).values())
        self.pool.shutdown(wait=not abort, cancel_futures=True)
        if abort:
            for worker in workers:
                worker.terminate()
