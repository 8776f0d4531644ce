"""Worker processes of the portfolio. Each one holds the problem and the bank of curves in use.

A task is a pure function of its arguments, so that the result does not depend on the process that runs it.
The clock only stops tasks: one that would exceed the wall seconds allotted to it shortens its schedule, and
its outcome states this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import numpy as np

from wse_sim.compiler.placement.anneal import Annealer
from wse_sim.compiler.placement.compact import compact
from wse_sim.compiler.placement.curves import build_curves
from wse_sim.compiler.placement.peel import Peeler, Seed
from wse_sim.compiler.placement.problem import Block, ListedShapes, PlacementProblem, wire_length
from wse_sim.compiler.placement.windows import solve_window
from wse_sim.worker_processes import Copies, may_start

COMPACT_LIMIT = 1500  # most blocks that are compacted; 1000 take 0.3 s per round


@dataclass(frozen=True)
class SeedTask:
    """A run of the peel dynamic program for one order of blocks, at one level index of the bank `levels`."""

    levels: tuple[float, ...]
    order: tuple[int, ...]
    level: int
    keep: int
    longest: int
    room: tuple[int, int]
    thrift: float = 0.3
    deadline: float = float("inf")  # the task does not start after it, by time.monotonic()


@dataclass(frozen=True)
class AnnealTask:
    """An annealing of one tree for `work` units, followed by compaction."""

    levels: tuple[float, ...]
    tree: tuple[int, ...]
    level: int
    seed: int
    work: int
    temperatures: tuple[float, float]
    lambdas: tuple[float, float]
    allotted_s: float = float("inf")  # wall seconds from its start
    deadline: float = float("inf")


@dataclass(frozen=True)
class WindowTask:
    """A window: the blocks `free` of the rectangles (x, y, w, h each) are placed again by constraint
    programming.
    """

    rects: tuple[tuple[int, ...], ...]
    level: float
    free: tuple[int, ...]
    seconds: float  # limit by the solver's deterministic clock
    deadline: float = float("inf")


Task = SeedTask | AnnealTask | WindowTask


@dataclass(frozen=True)
class TaskOutcome:
    """The trees found (best first, with level values), the compacted rectangles, and the work used.

    `stopped` states whether the clock stopped or shortened the task.
    """

    seeds: tuple[tuple[float, float, tuple[int, ...]], ...]
    rects: np.ndarray | None
    level: float
    cost: float
    work: float
    stopped: bool
    seconds: float = 0.0  # wall seconds of the annealing


class Worker:
    """The problem, the bank of curves and the annealer, which a process keeps between tasks."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        self.levels: tuple[float, ...] = ()
        self.annealer: Annealer | None = None

    def on(self, levels: tuple[float, ...]) -> Annealer:
        """Return the annealer with the bank of `levels`."""
        if self.annealer is None or levels != self.levels:
            self.levels = levels
            self.annealer = Annealer(self.problem, build_curves(self.problem, np.array(levels)))
        return self.annealer

    def seed(self, task: SeedTask) -> TaskOutcome:
        """Run the peel dynamic program of a task."""
        if time.monotonic() > task.deadline:
            return TaskOutcome((), None, 0.0, float("inf"), 0.0, True)
        annealer = self.on(task.levels)
        peeler = Peeler(annealer, np.array(task.order, dtype=np.int64))
        found = peeler.seeds(
            task.level, keep=task.keep, room=task.room, longest=task.longest, thrift=task.thrift
        )
        return self._outcome(annealer, found, float(peeler.work[0]), False)

    def anneal(self, task: AnnealTask) -> TaskOutcome:
        """Run the annealing of a task."""
        start = time.monotonic()
        if start > task.deadline:
            return TaskOutcome((), None, 0.0, float("inf"), 0.0, True)
        annealer = self.on(task.levels)
        result = annealer.run(
            np.array(task.tree, dtype=np.int32),
            task.level,
            seed=task.seed,
            work=task.work,
            temperatures=task.temperatures,
            lambdas=task.lambdas,
            deadline=min(start + task.allotted_s, task.deadline),
        )
        seeds = [Seed(result.tree, result.level, result.cost)]
        outcome = self._outcome(annealer, seeds, result.work, result.cut, compact_until=task.deadline)
        return replace(outcome, seconds=result.seconds)

    def window(self, task: WindowTask) -> TaskOutcome:
        """Solve the window of a task; the work of the outcome is in processor seconds."""
        wall_s = task.deadline - time.monotonic()
        if wall_s <= 0:
            return TaskOutcome((), None, 0.0, float("inf"), 0.0, True)
        rects = np.array(task.rects, dtype=np.int64)
        found = solve_window(self.problem, rects, task.level, list(task.free), task.seconds, wall_s)
        if found.rects is None:
            return TaskOutcome((), None, 0.0, float("inf"), found.seconds, found.cut)
        wire = wire_length(self.problem, *found.rects.T)
        cost = self.problem.time_weight * task.level + self.problem.wire_weight * wire
        return TaskOutcome((), found.rects, task.level, cost, found.seconds, found.cut)

    def run(self, task: Task) -> TaskOutcome:
        """Run a task of any kind."""
        if isinstance(task, SeedTask):
            return self.seed(task)
        return self.window(task) if isinstance(task, WindowTask) else self.anneal(task)

    def _outcome(
        self,
        annealer: Annealer,
        found: list[Seed],
        work: float,
        stopped: bool,
        compact_until: float | None = None,
    ) -> TaskOutcome:
        """Return the outcome of a task for the trees `found`, compacting the best one until time
        `compact_until`.
        """
        levels = annealer.bank.levels
        if not found or not np.isfinite(found[0].cost):
            return TaskOutcome((), None, 0.0, float("inf"), work, stopped)
        top = found[0]
        rects, _width = annealer.layout(top.tree, top.level)
        if compact_until is not None and len(rects) <= COMPACT_LIMIT:
            rects = compact(self.problem, rects, deadline=compact_until)
            stopped |= time.monotonic() > compact_until
        level = float(levels[top.level])
        wire = wire_length(self.problem, *rects.T)
        cost = self.problem.time_weight * level + self.problem.wire_weight * wire
        seeds = tuple((s.cost, float(levels[s.level]), tuple(s.tree.tolist())) for s in found)
        return TaskOutcome(seeds, rects, level, cost, work, stopped)


_bench: list[Worker] = []


def _start(problem: PlacementProblem) -> None:
    """Create the worker of this process."""
    _bench[:] = [Worker(problem)]


def _work(task: Task) -> TaskOutcome:
    """Run a task in the worker of this process."""
    return _bench[0].run(task)


def warm_up() -> None:
    """Compile or load every kernel once, so that forked workers have them and clocks start afterwards."""
    blocks = tuple(Block(str(i), ListedShapes([(2, 3, 1.0), (3, 2, 1.0)])) for i in range(3))
    problem = PlacementProblem(8, 8, blocks, ((0, 1, 1.0), (1, 2, 1.0)))
    bench = Worker(problem)
    found = bench.seed(SeedTask((1.0,), (0, 1, 2), 0, 4, 3, (8, 8)))
    for _cost, _level, tree in found.seeds[:1]:
        bench.anneal(AnnealTask((1.0,), tree, 0, 0, 200, (1.0, 0.1), (1.0, 1.0)))


class Crew:
    """A group of `processes` worker processes for tasks; with one process, or in a process that may
    have none, tasks run in the caller's."""

    def __init__(self, problem: PlacementProblem, processes: int) -> None:
        self.bench = Worker(problem)
        self.processes = processes
        self.copies = Copies(processes, _start, problem) if processes > 1 and may_start() else None

    def run(self, tasks: Sequence[Task], done: Callable[[TaskOutcome], None]) -> list[TaskOutcome]:
        """Return the outcomes in the order of `tasks`; `done` is called with each one as soon as it is
        complete.
        """
        results: list[TaskOutcome | None] = [None] * len(tasks)
        for index, outcome in self._finished(tasks):
            results[index] = outcome
            done(outcome)
        return [r for r in results if r is not None]

    def _finished(self, tasks: Sequence[Task]) -> Iterator[tuple[int, TaskOutcome]]:
        """Yield the index and the outcome of each task as soon as it is complete."""
        if self.copies is None:
            for index, task in enumerate(tasks):
                yield index, self.bench.run(task)
            return
        futures: dict[Future[TaskOutcome], int] = {
            self.copies.submit(_work, task): i for i, task in enumerate(tasks)
        }
        for future in self.copies.as_completed(futures):
            yield futures[future], future.result()

    def close(self, abort: bool) -> None:
        """Stop the workers; with `abort`, do not wait for their tasks."""
        if self.copies is not None:
            self.copies.close(abort=abort)
