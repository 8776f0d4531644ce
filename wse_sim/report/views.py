"""Views of a result that tables, pictures and the page share: folded kernels, time bins, totals.

No function changes the result, and all return new values, so repeated calls give equal answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.plan import CoreMemory, Region
from wse_sim.engine.result import KernelUse, Result, Slice
from wse_sim.hardware import Wafer
from wse_sim.units import BYTES_PER_WAVELET, s_to_cycles

BUSY_CATEGORIES = frozenset({"compute", "update"})
"""Categories of slices in which the cores of a region compute."""


@dataclass(frozen=True)
class KernelGroup:
    """Kernels that are equal except for the block or the replica that they belong to.

    Times are means over the members weighted by their cores; `core_s` is the busy core-seconds of all.
    """

    name: str
    family: str
    phase: str
    members: int
    runs: int  # regions (pipelined), or runs of the kernel per step (weight streaming)
    cores: int
    busy_s: float
    stalled_input_s: float
    stalled_output_s: float
    idle_s: float
    core_s: float
    flops: float
    utilization: float
    bound: str
    bound_fraction: float
    memory_bytes: float

    @property
    def total_s(self) -> float:
        """Time the region existed: busy, stalled and idle."""
        return self.busy_s + self.stalled_input_s + self.stalled_output_s + self.idle_s

    def fraction(self, time_s: float) -> float:
        """`time_s` as a fraction of the region's time."""
        return time_s / self.total_s if self.total_s else 0.0


def fold(kernels: Iterable[KernelUse], *, folded: bool = True) -> list[KernelGroup]:
    """Group equal kernels of repeated layers, the most busy core-seconds first."""
    groups: dict[tuple[str, str, str], list[KernelUse]] = defaultdict(list)
    for use in kernels:
        name = (use.block or use.name) if folded else use.name
        groups[name, use.family, use.phase].append(use)
    rows = [_group(*key, uses) for key, uses in groups.items()]
    return sorted(rows, key=lambda row: (-row.core_s, row.name, row.phase))


def _group(name: str, family: str, phase: str, uses: Sequence[KernelUse]) -> KernelGroup:
    weights = np.array([use.cores for use in uses], float)
    weights = weights / weights.sum() if weights.sum() else np.full(len(uses), 1 / len(uses))
    busy = np.array([use.busy_s for use in uses])

    def mean(values: Iterable[float]) -> float:
        return float(np.dot(weights, np.fromiter(values, float, len(uses))))

    work = busy * weights
    by_work = work / work.sum() if work.sum() else weights
    worst = max(uses, key=lambda use: (use.busy_s * use.cores, use.name))
    return KernelGroup(
        name=uses[0].name if len(uses) == 1 else name,
        family=family,
        phase=phase,
        members=len(uses),
        runs=sum(1 if use.region is not None else use.count for use in uses),
        cores=round(sum(use.cores for use in uses) / len(uses)),
        busy_s=mean(use.busy_s for use in uses),
        stalled_input_s=mean(use.stalled_input_s for use in uses),
        stalled_output_s=mean(use.stalled_output_s for use in uses),
        idle_s=mean(use.idle_s for use in uses),
        core_s=float(sum(use.busy_s * use.cores for use in uses)),
        flops=float(sum(use.flops for use in uses)),
        utilization=float(np.dot(by_work, [use.utilization for use in uses])),
        bound=worst.bound,
        bound_fraction=float(np.dot(by_work, [use.bound_fraction for use in uses])),
        memory_bytes=max(use.memory.total_bytes for use in uses),
    )


def clock_of(result: Result) -> float:
    """Clock in Hz by which a result's times become cycles."""
    return result.plan.wafer.clock_hz


def integer_cycles(span: Slice, clock_hz: float) -> tuple[int, int]:
    """Start and end of a slice in whole cycles.

    Both ends are rounded (not start and duration), so that slices which nest or touch keep doing so.
    """
    start = round(s_to_cycles(span.start_s, clock_hz))
    return start, round(s_to_cycles(span.start_s + span.duration_s, clock_hz))


def tracks(result: Result) -> tuple[list[str], list[str]]:
    """Return the names of the tracks of areas in the order of the plan, then of all other tracks."""
    areas = [track.name for track in result.tracks if track.area >= 0]
    return areas, [track.name for track in result.tracks if track.area < 0]


@dataclass(frozen=True)
class TimeBins:
    """Busy fractions over simulated time: `fractions` has shape (areas, bins), and every area is a rectangle
    of cores."""

    areas: tuple[Region, ...]
    start_s: float
    end_s: float
    fractions: NDArray[np.float64]

    @property
    def bin_s(self) -> float:
        """Length of one bin."""
        return (self.end_s - self.start_s) / self.fractions.shape[1]


def time_bins(result: Result, bins: int = 50, window_s: tuple[float, float] | None = None) -> TimeBins | None:
    """Return the fractions of each bin in which an area computes, from the slices of its track; nested slices count
    once.

    None if the timeline has no slices of areas.  The bins cover the simulated time of the timeline, which
    differs from the step where samples were added by the steady-state rule, or `window_s`.
    """
    areas = {area.track: area.region for area in result.areas}
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for span in result.timeline:
        if span.category in BUSY_CATEGORIES and span.track in areas:
            spans[span.track].append((span.start_s, span.start_s + span.duration_s))
    if not spans:
        return None
    start, end = window_s or time_extent(result)
    if end <= start:
        return None
    edges = np.linspace(start, end, bins + 1)
    width = (end - start) / bins
    order = [track for track in areas if track in spans]
    fractions = np.array([covered(union(spans[track]), edges) / width for track in order])
    return TimeBins(tuple(areas[track] for track in order), start, end, fractions)


def time_extent(result: Result) -> tuple[float, float]:
    """Start and end of the simulated time that the timeline shows."""
    if not result.timeline:
        return 0.0, 0.0
    start = min(span.start_s for span in result.timeline)
    return min(0.0, start), max(span.start_s + span.duration_s for span in result.timeline)


def notes(result: Result) -> list[str]:
    """Return the notes of plan and run, each once."""
    return list(dict.fromkeys([*result.plan.notes, *result.notes]))


def union(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Disjoint spans that cover the same time, in order."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def covered(spans: Sequence[tuple[float, float]], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Covered time of each bin between `edges`, for disjoint spans in order."""
    if not spans:
        return np.zeros(len(edges) - 1)
    starts, ends = np.array(spans, float).T
    done = np.concatenate([[0.0], np.cumsum(ends - starts)])
    position = np.searchsorted(starts, edges, side="right")
    before = done[position]
    inside = position > 0
    # The span that is open at an edge counts only up to the edge.
    before[inside] -= np.maximum(0.0, ends[position[inside] - 1] - edges[inside])
    return np.diff(before)


def shade(span: Slice) -> str:
    """Color key of a slice: its category, with computation split into forward and backward."""
    return span.direction if span.category == "compute" and span.direction else span.category


def link_totals(result: Result) -> dict[str, float]:
    """Return the wavelets per step and system over all links of each direction."""
    sums = result.link_wavelets.sum(axis=(0, 1), dtype=np.float64)
    return {name: float(sums[i]) for i, name in enumerate(("north", "east", "south", "west"))}


def busiest_link(result: Result) -> tuple[float, tuple[int, int, int], float]:
    """Return the wavelets of the most loaded link, its (row, col, direction), and its fraction of the link's capacity."""
    links = result.link_wavelets
    if links.size == 0:
        return 0.0, (0, 0, 0), 0.0
    row, col, direction = (int(i) for i in np.unravel_index(int(links.argmax()), links.shape))
    most = float(links[row, col, direction])
    wafer = result.plan.wafer
    capacity = s_to_cycles(result.step_s, wafer.clock_hz) * wafer.link_bytes_per_cycle / BYTES_PER_WAVELET
    return most, (row, col, direction), most / capacity if capacity else 0.0


def fullest_core(result: Result) -> CoreMemory:
    """Memory of the fullest core of the wafer."""
    found = [use.memory for use in result.kernels] + [area.memory for area in result.areas]
    return max(found, key=lambda memory: memory.total_bytes, default=CoreMemory())


@dataclass(frozen=True)
class Energy:
    """Energy of a step; `token_joules` 0 without tokens.

    `busy_fraction` are the cores of the wafer that compute, over the time of the step.  `idle_joules` is the energy of the step if
    systems drew idle power all the time, `work_joules` if they drew that of a system at work.
    """

    step_joules: float
    sample_joules: float
    power_w: float
    statement: str
    token_joules: float = 0.0
    busy_fraction: float = 1.0
    idle_joules: float = 0.0
    work_joules: float = 0.0


def busy_fraction(result: Result) -> float:
    """Return the fraction of the wafer's cores times the step in which kernels run: areas by their cores, 1 if there
    are none.
    """
    if not result.areas:
        return 1.0
    cores = result.plan.wafer.program_cores
    return min(1.0, sum(area.fractions[0] * area.region.cores for area in result.areas) / cores)


def energy(result: Result) -> Energy:
    """Return the energy of a step: a system draws between its idle and its full power, in proportion to its busy cores.

    With P0 and P the power of an idle system and of one at work, u the busy fraction (:func:`busy_fraction`)::

        E = systems x step x (P0 + u (P - P0))

    P0 and P are measured: P in a stencil run that keeps all cores at work.  That power rises in proportion between them is assumed
    (nobody published a third point), so the ends are given with it: idle all the time, at work all the time.  How power divides among
    the parts of a system is not published, and is not said here.
    """
    wafer = result.plan.wafer
    used = busy_fraction(result)
    idle, work = (
        watts * result.step_s * result.systems for watts in (wafer.power_idle_w, wafer.power_active_w)
    )
    step = idle + used * (work - idle)
    sample = step / result.batch if result.batch else 0.0
    tokens = 1 if result.phase == "decode" else int(result.plan.graph.facts.get("seq", 0))
    return Energy(
        step_joules=step,
        sample_joules=sample,
        power_w=wafer.power_idle_w + used * (wafer.power_active_w - wafer.power_idle_w),
        statement=(
            f"between {wafer.power_idle_w:,.0f} W of an idle system and {wafer.power_active_w:,.0f} W of one at work, both measured "
            f"for other work, in proportion to the busy cores (assumed); without MemoryX, SwarmX and hosts"
        ),
        token_joules=sample / tokens if tokens else 0.0,
        busy_fraction=used,
        idle_joules=idle,
        work_joules=work,
    )


def dead_cores(wafer: Wafer) -> NDArray[np.bool_]:
    """Return (rows, cols) mask of dead cores."""
    mask = np.zeros((wafer.rows, wafer.cols), bool)
    for row, col in wafer.dead_cores:
        mask[row, col] = True
    mask[list(wafer.dead_rows), :] = True
    return mask
