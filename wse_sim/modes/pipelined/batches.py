"""Pipeline layouts for batches whose time depends on fill, drain and update as well as on the pace.

For endless batches, every stage should have the fewest cores that keep the pace of the slowest. In a short
batch, fill, latency and update of the other stages count as well: unused cores can shorten these, and a large
region may take longer to fill than it saves.

**Better hardware is never slower.** If the constants of a wafer controlled the search, it would find
different layouts whenever a constant changes, and better hardware could become slower, because neighbouring
layouts differ by several percent. So the search uses *reference machines* (:func:`reference_wafers`): the
size, SRAM and defects of the given wafer, with fixed constants. The resulting layouts depend only on the
model, the batch and the size of the wafer; the constants only choose among them. With C the set of layouts
and t(L, c) the cycles of a batch,

    T(c) = min over L in C of t(L, c)     falls with c if every t(L, c) does.

The disadvantage is that a layout is occasionally slightly slower than one optimized for its machine. Several different references
(slow arithmetic, slow starts and hops) keep this small.

A search tries, with the update's part in the time of a stage (:meth:`wse_sim.compiler.sizing.Sizer.amortised`):

equal     all stages equally fast, on a number of cores
unequal   the slowest stage within a *slack* of that; the cores go where they shorten the path of a sample most
narrow    the same on a part of the columns: regions nearer to a square, and to each other

Numbers of cores and columns come from fixed lists instead of fractions of the wafer, so that a larger wafer
tries all layouts of a smaller one. Then the best layout is improved by single steps and by random steps (with
a fixed seed): some or all kinds of stages get other numbers of cores, or the columns change. Improvements are
kept.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from math import inf

import numpy as np

from wse_sim.compiler.defects import usable_cores
from wse_sim.compiler.pins import pinned_size
from wse_sim.compiler.shelves import Box, place_shelves, shelf_placers
from wse_sim.compiler.sizing import FloatArray, Sizer
from wse_sim.hardware import Wafer, load_wafer
from wse_sim.hardware.wafer import UNITS
from wse_sim.modes.pipelined.layout_cycles import LayoutCycles

Layout = list[Box]
EQUAL_SLACK = 1.02
SLACKS = (1.05, 1.1, 1.2, 1.4, 1.7, 2.0, 3.0, 5.0, 10.0, inf)
CORES = tuple(64.0 * 2 ** (step / 2) for step in range(48))
COLS = tuple(round(4 * 2 ** (step / 4)) for step in range(48))
FILL_WEIGHT = 2.0  # a sample fills every region forward and backward
PROMISING = 1.05  # of the cycles to beat: if no coarse trial comes so near, the search ends
STEPS = (1.35, 1.15, 1.06, 1.025)  # of the targets
SPREAD, LEAST_SPREAD, MOST_SPREAD = 0.2, 0.03, 0.5  # of random steps, in the logarithm of the targets
FRACTION_MOVED, TOGETHER, WIDTH_MOVED = (
    0.4,
    0.3,
    0.2,
)  # kinds that a step moves, part of it for all, other columns
TRIED_STAGES = 10_000  # stages times trials of the last part
MANY_STAGES, PATIENCE = (
    60,
    0.33,
)  # with more stages, the search ends after this part of the random trials without improvement
LEAST_PATIENCE = 12
MOST_TRIALS = 100  # random ones; half as many single steps
KEPT = 200  # layouts of a search
REMEMBERED = 8  # cached results per process
PACE_STEP = 1.005  # within which the shelves of a trial keep the requested cycles
FINE = STEPS[-2:]  # of the single steps after the random ones


GEOMETRY = (
    *(
        "rows",
        "cols",
        "program_rows",
        "program_cols",
        "rows_per_die",
        "cols_per_die",
        "sram_bytes",
        "sram_reserved_bytes",
    ),
    *("dead_cores", "dead_rows", "defect_repair", "defect_links"),
)
"""Fields that a reference machine takes from the given wafer."""
ARITHMETIC = tuple(
    f"{what}_per_cycle"
    for what in (
        "fma_fp16",
        "fma_mixed",
        "fma_fp32",
        "add_fp16",
        "add_fp32",
        "mul_fp32",
        "mov_fp16",
        "mov_fp32",
    )
)
STARTS = ("vector_start_cycles", "loop_cycles", "step_cycles", "task_start_cycles", "hop_cycles")


def reference_wafers(wafer: Wafer) -> tuple[Wafer, ...]:
    """Return the machines for the search of layouts: with the size of `wafer`, and constants of a WSE-2 and
    two variants."""
    own = load_wafer("wse2").model_copy(update={name: getattr(wafer, name) for name in GEOMETRY})
    slow = {name: getattr(own, name) / 2 for name in ARITHMETIC}
    late = {name: getattr(own, name) * 2 for name in STARTS}
    return own, own.model_copy(update=slow), own.model_copy(update=late)


@dataclass(frozen=True, eq=False)
class Trial:
    """One trial of the shelves: target cycles (groups,) and a fraction of the columns, with the result."""

    targets: FloatArray
    width: int  # index into the ladder of columns
    cycles: float  # of a batch; infinite if it does not fit
    layout: Layout


class LayoutSearch:
    """A descent over slack, cores and columns, followed by single and random steps.

    `merit` returns the cycles of a batch with a layout, `samples` of it are on one replica.
    """

    def __init__(self, sizer: Sizer, samples: int, merit: Callable[[Layout], float]) -> None:
        self.sizer = sizer.amortised(samples)
        self.merit = merit
        self.trials = min(MOST_TRIALS, TRIED_STAGES // len(sizer.copies))
        wafer = sizer.wafer
        most = usable_cores(wafer) * wafer.pipeline_efficiency
        self.cores = [cores for cores in CORES if cores < most] or [most]
        self.cols = [cols for cols in COLS if cols < wafer.program_cols] + [wafer.program_cols]
        self._found: dict[tuple[bytes, int], Trial] = {}
        self._placers = shelf_placers(self.sizer)
        kinds: dict[object, int] = {}
        alike = [tuple(kernel.signature for kernel in group.kernels) for group in sizer.groups]
        self._kind_of = np.array([kinds.setdefault(one, len(kinds)) for one in alike], np.int64)

    def layouts(self, to_beat: float) -> list[tuple[float, Layout]]:
        """Return pairs (cycles, layout), the best first."""
        top = len(self.cols) - 1
        paces = {k: pace for k, cores in enumerate(self.cores) if (pace := self.sizer.pace_for(cores))}
        if not paces:
            return []

        def unequal(slack: int, cores: int, width: int = top) -> float:
            if not (0 <= slack < len(SLACKS) and cores in paces and 0 <= width <= top):
                return inf
            slowest = SLACKS[slack] * paces[cores]
            return self._cycles(self.sizer.latency_targets(self.cores[cores], slowest, FILL_WEIGHT), width)

        for pace in paces.values():
            self._cycles(np.full(len(self.sizer.groups), EQUAL_SLACK * pace), top)
        largest = max(paces)
        best = min(((slack, largest, top) for slack in range(0, len(SLACKS), 3)), key=lambda at: unequal(*at))
        best = min(
            (best, *((best[0], cores, top) for cores in list(paces)[::3])), key=lambda at: unequal(*at)
        )
        if unequal(*best) < to_beat * PROMISING:
            narrower = ((*best[:2], width) for width in range(top, max(top - 12, -1), -2))
            best = min((best, *narrower), key=lambda at: unequal(*at))
        while unequal(*best) < to_beat * PROMISING:
            slack, cores, width = best
            near = [(slack + step, cores, width) for step in (-1, 1)]
            near += [(slack, cores + step, width) for step in (-1, 1)]
            near += [(slack, cores, width + step) for step in (-1, 1)]
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
        """Improve the best trial by single steps, then random steps, then fine single steps; each kind finds
        what others miss."""
        trials = self.trials
        self._descend(best, trials // 2)
        self._wander(best, trials)
        self._descend(min(self._found.values(), key=lambda trial: trial.cycles), trials // 3, FINE)

    def _descend(self, best: Trial, trials: int, steps: tuple[float, ...] = STEPS) -> None:
        """Change single kinds, all of them, or the columns, in ever finer steps."""
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
                    width = min(max(best.width + step, 0), len(self.cols) - 1)
                    trial = self._trial(best.targets * change, width)
                    trials -= len(self._found) - known
                    if trial.cycles < best.cycles:
                        best, is_better = trial, True
                    if trials <= 0:
                        return

    def _wander(self, best: Trial, trials: int) -> None:
        """Try random steps, because the cycles of neighbouring layouts vary irregularly: shelves end at other
        stages."""
        draw = np.random.default_rng(0)
        kinds = int(self._kind_of.max()) + 1
        spread, in_vain = SPREAD, 0
        patience = max(LEAST_PATIENCE, PATIENCE * trials) if len(self.sizer.copies) > MANY_STAGES else trials
        for _ in range(trials):
            moved = draw.standard_normal(kinds) * (draw.random(kinds) < FRACTION_MOVED)
            moved += TOGETHER * draw.standard_normal()
            step = int(draw.integers(-1, 2)) * int(draw.random() < WIDTH_MOVED)
            width = min(max(best.width + step, 0), len(self.cols) - 1)
            # rounded, as the last bit of numpy's exp depends on the CPU, and a bit decides where shelves break
            factors = np.exp(spread * moved).round(9)
            trial = self._trial(best.targets * factors[self._kind_of], width)
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
            placed = place_shelves(
                self.sizer, targets, placers=self._placers, cols=self.cols[width], step=PACE_STEP
            )
            if placed is None:
                self._found[key] = Trial(targets, width, inf, [])
            else:
                scaled = targets * (placed[0] / targets.max())
                self._found[key] = Trial(scaled, width, self.merit(placed[1]), placed[1])
        return self._found[key]


_found_before: dict[Hashable, list[Layout]] = {}
"""Last results of :func:`reference_layouts`, by the values that they depend on; a sweep over constants reuses
them."""


def reference_layouts(sizer: Sizer, samples: int) -> list[Layout]:
    """Return promising layouts that do not depend on the wafer's constants: the best of the searches on all
    references."""
    key = (
        tuple(
            (sizer.kind(group), sizer.in_flight[group.name], pinned_size(group.forward))
            for group in sizer.groups
        ),
        (tuple(sizer.edges), samples, sizer.replicas, repr(sizer.prices.options)),
        tuple(getattr(sizer.wafer, name) for name in GEOMETRY),
    )
    if key not in _found_before:
        found = _search_references(sizer, samples)
        while len(_found_before) >= REMEMBERED:
            _found_before.pop(next(iter(_found_before)))
        _found_before[key] = found
    return _found_before[key]


def _search_references(sizer: Sizer, samples: int) -> list[Layout]:
    out: dict[tuple[Box, ...], None] = {}
    large = len(sizer.copies) > MANY_STAGES
    for wafer in reference_wafers(sizer.wafer)[: 1 if large else None]:
        is_own = all(vars(wafer)[name] == vars(sizer.wafer)[name] for name in UNITS)
        other = sizer if is_own else sizer.priced_on(wafer)
        placed = place_shelves(other, step=PACE_STEP)
        if placed is None:
            continue
        merit = LayoutCycles(other, samples)
        search = LayoutSearch(other, samples, merit)
        best = search.layouts(merit(placed[1]))[:KEPT]
        out.update(dict.fromkeys(tuple(boxes) for boxes in (placed[1], *(layout for _, layout in best))))
    return [list(boxes) for boxes in out]
