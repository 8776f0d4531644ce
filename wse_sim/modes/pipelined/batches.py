"""Layouts of a pipeline for batches in which fill, drain and update count beside the pace.

Stages of the least cores that keep the pace of the slowest are right for endless batches.  In a short one the
fill, latency and update of the others count as well: cores that the pace leaves over shorten them, and a large
region may take longer to fill than it saves.  Tried are, with the update's share in the time of a stage
(:meth:`wse_sim.compiler.sizing.Sizer.amortised`):

equal     all stages as fast as each other, at the least pace by area times a *slack*, on as many cores as that takes
unequal   the slowest stage within the slack; what that frees of a *share* of the cores goes where it shortens
          the path of a sample most
narrow    the same on a part of the columns: regions nearer to a square, and to each other

Then the best goes on by single steps and by random ones (of a fixed seed): some kinds of stages get other cores, or
all of them, or other columns, and what helps is kept.  Without them another constant of the hardware would pick another place of
the grid, and better hardware could lose by that: the neighbours of a layout differ by several percent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np

from wse_sim.compiler.defects import usable_cores
from wse_sim.compiler.shelves import Box, place_shelves, shelf_placers
from wse_sim.compiler.sizing import FloatArray, Sizer

Layout = list[Box]
EQUAL_SLACKS = (1.02, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
SLACKS = (1.05, 1.1, 1.2, 1.4, 1.7, 2.0, 3.0, 5.0, 10.0, inf)
SHARES = (0.95, 0.8, 0.65, 0.5, 0.35, 0.25, 0.15, 0.1, 0.06, 0.03, 0.015, 0.007, 0.003)
WIDTHS = (1.0, 0.84, 0.71, 0.59, 0.5, 0.42, 0.35, 0.3, 0.25, 0.18, 0.125)
FILL_WEIGHT = 2.0  # a sample fills every region forward and backward
PROMISING = 1.05  # of the cycles to beat: if no coarse trial comes so near, the search ends
STEPS = (1.35, 1.15, 1.06, 1.025)  # of the targets
SPREAD, LEAST_SPREAD, MOST_SPREAD = 0.2, 0.03, 0.5  # of random steps, in the logarithm of the targets
SHARE_MOVED, TOGETHER, WIDTH_MOVED = (
    0.4,
    0.3,
    0.2,
)  # kinds that a step moves, part of it for all, other columns
TRIED_STAGES = 10_000  # stages times trials of the last part
MANY_STAGES, PATIENCE = 60, 0.33  # beyond so many stages this part of the random trials in vain ends them
LEAST_PATIENCE = 12
MOST_TRIALS = 300  # random ones; half as many single steps
PACE_STEP = 1.005  # within which the shelves of a trial keep the asked cycles
FINE = STEPS[-2:]  # of the single steps after the random ones


@dataclass(frozen=True, eq=False)
class Trial:
    """What the shelves are asked for: cycles of all groups (groups,) and a fraction of the columns; what came out."""

    targets: FloatArray
    width: int  # index into WIDTHS
    cycles: float  # of a batch; infinite if it does not fit
    layout: Layout


class LayoutSearch:
    """A descent over slack, share and width, then single and random steps.

    `merit` says how many cycles a batch takes with a layout, `samples` of it lie on one replica.
    """

    def __init__(self, sizer: Sizer, samples: int, merit: Callable[[Layout], float]) -> None:
        self.sizer = sizer.amortised(samples)
        self.merit = merit
        self.cores = usable_cores(sizer.wafer) * (1 - sizer.wafer.transmission_core_share)
        self._found: dict[tuple[bytes, int], Trial] = {}
        self._placers = shelf_placers(self.sizer)
        kinds: dict[object, int] = {}
        alike = [tuple(kernel.signature for kernel in group.kernels) for group in sizer.groups]
        self._kind_of = np.array([kinds.setdefault(one, len(kinds)) for one in alike], np.int64)

    def layouts(self, to_beat: float) -> list[tuple[float, Layout]]:
        """(cycles, layout), the best first."""
        ideal = self.sizer.pace_for(self.cores)
        if ideal is None:
            return []

        def unequal(slack: int, share: int, width: int = 0) -> float:
            if not (0 <= slack < len(SLACKS) and 0 <= share < len(SHARES) and 0 <= width < len(WIDTHS)):
                return inf
            cores = SHARES[share] * self.cores
            return self._cycles(self.sizer.latency_targets(cores, SLACKS[slack] * ideal, FILL_WEIGHT), width)

        for slack in EQUAL_SLACKS:
            self._cycles(np.full(len(self.sizer.groups), slack * ideal), 0)
        best = min(((slack, 2, 0) for slack in range(0, len(SLACKS), 3)), key=lambda at: unequal(*at))
        best = min(
            (best, *((best[0], share, 0) for share in range(0, len(SHARES), 3))), key=lambda at: unequal(*at)
        )
        if unequal(*best) < to_beat * PROMISING:
            best = min((best, *((*best[:2], width) for width in (2, 4, 6, 8))), key=lambda at: unequal(*at))
        while unequal(*best) < to_beat * PROMISING:
            slack, share, width = best
            near = [(slack + step, share, width) for step in (-1, 1)]
            near += [(slack, share + step, width) for step in (-1, 1)]
            near += [(slack, share, width + step) for step in (-1, 1)]
            following = min((best, *near), key=lambda at: unequal(*at))
            if following == best:
                break
            best = following
        first = min(self._found.values(), key=lambda trial: trial.cycles, default=None)
        if first is not None and first.cycles < to_beat * PROMISING:
            self._refine(first)
        found = {one.cycles: one.layout for one in self._found.values() if one.cycles < inf}
        return sorted(found.items(), key=lambda one: one[0])

    def _refine(self, best: Trial) -> None:
        """From the best trial on by single steps, then by random ones, then by fine single steps: each fails where others help."""
        trials = min(MOST_TRIALS, TRIED_STAGES // len(self.sizer.copies))
        self._descend(best, trials // 2)
        self._wander(best, trials)
        self._descend(min(self._found.values(), key=lambda trial: trial.cycles), trials // 3, FINE)

    def _descend(self, best: Trial, trials: int, steps: tuple[float, ...] = STEPS) -> None:
        """Single kinds, all of them, or the columns, in steps that become finer."""
        kinds = range(int(self._kind_of.max()) + 1)
        for factor in steps:
            is_better = True
            while is_better:
                is_better = False
                single = [
                    np.where(self._kind_of == k, times, 1.0) for k in kinds for times in (1 / factor, factor)
                ]
                all_ = [np.full(len(self._kind_of), times) for times in (1 / factor, factor)]
                moves = [(all_[0] ** 0, -1), (all_[0] ** 0, 1), *((change, 0) for change in (*all_, *single))]
                for change, step in moves:
                    known = len(self._found)
                    width = min(max(best.width + step, 0), len(WIDTHS) - 1)
                    trial = self._trial(best.targets * change, width)
                    trials -= len(self._found) - known
                    if trial.cycles < best.cycles:
                        best, is_better = trial, True
                    if trials <= 0:
                        return

    def _wander(self, best: Trial, trials: int) -> None:
        """Random steps: neighbouring layouts differ by chance, as shelves break at other stages."""
        draw = np.random.default_rng(0)
        kinds = int(self._kind_of.max()) + 1
        spread, in_vain = SPREAD, 0
        patience = max(LEAST_PATIENCE, PATIENCE * trials) if len(self.sizer.copies) > MANY_STAGES else trials
        for _ in range(trials):
            moved = draw.standard_normal(kinds) * (draw.random(kinds) < SHARE_MOVED)
            moved += TOGETHER * draw.standard_normal()
            step = int(draw.integers(-1, 2)) * int(draw.random() < WIDTH_MOVED)
            width = min(max(best.width + step, 0), len(WIDTHS) - 1)
            trial = self._trial(best.targets * np.exp(spread * moved)[self._kind_of], width)
            if trial.cycles < best.cycles:
                best, spread, in_vain = trial, min(1.5 * spread, MOST_SPREAD), 0
                continue
            spread, in_vain = max(0.96 * spread, LEAST_SPREAD), in_vain + 1
            if in_vain >= patience:
                return

    def _cycles(self, targets: FloatArray | None, width: int) -> float:
        return inf if targets is None else self._trial(targets, width).cycles

    def _trial(self, targets: FloatArray, width: int) -> Trial:
        key = targets.tobytes(), width
        if key not in self._found:
            cols = max(1, round(WIDTHS[width] * self.sizer.wafer.program_cols))
            placed = place_shelves(self.sizer, targets, placers=self._placers, cols=cols, step=PACE_STEP)
            if placed is None:
                self._found[key] = Trial(targets, width, inf, [])
            else:
                scaled = targets * (placed[0] / targets.max())
                self._found[key] = Trial(scaled, width, self.merit(placed[1]), placed[1])
        return self._found[key]
