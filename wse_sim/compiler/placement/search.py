"""State of one search of the portfolio: the best rectangles, the pool of trees, work and clock."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from wse_sim.compiler.placement.portfolio_processes import AnnealTask, Crew, Task, TaskOutcome
from wse_sim.compiler.placement.problem import PlacementProblem, Progress, wire_length


@dataclass
class Clock:
    """The budget of a search: work in annealing units, seconds for windows, and the ends of its phases.

    Ends are in seconds of ``time.monotonic()``.
    """

    total_work: float
    window_s: float
    end: float
    anneal_end: float
    seeds_end: float
    left_work: float = 0.0
    rate: float = float("inf")  # annealing units per second, as measured last

    def seeds_over(self, found: bool) -> bool:
        """Return whether the time for seeds is over; until a tree is `found`, they may use the whole time."""
        return time.monotonic() > (self.seeds_end if found else self.end)

    def able(self, work: float) -> float:
        """Return how much of `work` the remaining seconds allow at the measured rate."""
        left_s = max(0.0, self.anneal_end - time.monotonic())
        if not np.isfinite(self.rate * left_s):
            return work
        return min(work, self.rate * left_s * min(1.0, work / max(self.left_work, 1.0)))

    def share_s(self, work: float, tasks: int, processes: int) -> float:
        """Return the wall seconds for each of `tasks` tasks that together do `work` units of the remaining
        work.
        """
        left_s = max(0.0, self.anneal_end - time.monotonic())
        turns = -(-tasks // processes)
        return left_s * min(1.0, work / max(self.left_work, 1.0)) / turns


@dataclass
class TreeSearch:
    """State of one search: the best rectangles, the pool of trees and the budget."""

    problem: PlacementProblem
    crew: Crew
    clock: Clock
    progress: Progress | None
    rects: np.ndarray | None = None
    level: float = 0.0
    cost: float = float("inf")
    trees: list[tuple[float, float, tuple[int, ...]]] = field(default_factory=list)
    stopped: bool = False
    phase: str = "seeds"
    reported: float = float("inf")

    def take(self, outcome: TaskOutcome) -> None:
        """Keep the rectangles of an outcome if they are better, and report a lower cost."""
        self.stopped |= outcome.stopped
        if outcome.rects is None:
            return
        # outcomes arrive in any order; if costs are equal, the bytes of the rectangles decide
        old = b"" if self.rects is None else self.rects.tobytes()
        if (round(outcome.cost, 6), outcome.rects.tobytes()) < (round(self.cost, 6), old):
            self.rects, self.level, self.cost = outcome.rects, outcome.level, outcome.cost
            if self.progress is not None and outcome.cost < self.reported - 1e-9:
                self.reported = outcome.cost
                self.progress(self.phase, self.cost)

    def note(self, outcome: TaskOutcome) -> None:
        """Record only whether an outcome was cut short."""
        self.stopped |= outcome.stopped

    def keep(self, rects: np.ndarray) -> None:
        """Keep rectangles at the present level if they are better."""
        wire = wire_length(self.problem, *rects.T)
        cost = self.problem.time_weight * self.level + self.problem.wire_weight * wire
        self.take(TaskOutcome((), rects, self.level, cost, 0.0, False))

    def run(self, tasks: Sequence[Task]) -> list[TaskOutcome]:
        """Run tasks and add their trees to the pool, in the order of the tasks."""
        outcomes = self.crew.run(tasks, self.take)
        for outcome in outcomes:
            self.trees.extend(outcome.seeds)
        return outcomes

    def anneal(self, tasks: list[AnnealTask]) -> None:
        """Run annealing tasks, each within an equal part of the seconds left for their work."""
        work = float(sum(task.work for task in tasks))
        clock, processes = self.clock, self.crew.processes
        allotted_s = clock.share_s(work, len(tasks), processes)
        timed = [replace(task, allotted_s=allotted_s, deadline=clock.anneal_end) for task in tasks]
        outcomes = self.run(timed)
        clock.left_work -= work
        seconds = sum(outcome.seconds for outcome in outcomes)
        if seconds > 0:
            clock.rate = processes * sum(outcome.work for outcome in outcomes) / seconds
