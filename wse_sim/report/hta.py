"""The four time breakdowns of Holistic Trace Analysis, and files that the analysis can load.

Symbols, per wafer, in cycles: ``K`` all slices, ``C`` those of computation, ``|.|`` the time they cover
together::

    busy = |K|            idle = span - |K|
    compute = |C|         non-compute = |K| - |C|
    overlap = |C and M| / |M|        M: slices of communication (activations, gradients, sync)

Times in the files are real microseconds with fractions.  The analysis rounds them to whole microseconds, so very
short slices lose precision there, not in the file.
"""

from __future__ import annotations

import csv
import json
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from wse_sim.engine.result import Result, Slice
from wse_sim.files import csv_cell
from wse_sim.report import views
from wse_sim.report.views import union
from wse_sim.units import cycles_to_us

# The analysis tells kinds of kernels by their names: "nccl...Kernel" communicates (its development version
# asks for "nccl" only), "Memcpy..." and "dma..." are memory, everything else computes, except names that
# contain one of these words.
_MISREAD = re.compile(r"Memcpy|Memset|dma|Sync|nccl", re.IGNORECASE)
_PREFIX = {
    "gradients": "ncclKernel:gradients ",
    "activations": "ncclKernel:activations ",
    "sync": "ncclKernel:fabric ",
    "stall": "ncclKernel:stall ",
    "weights": "Memcpy HtoD weights ",
    "input": "Memcpy HtoD input ",
    "spill": "Memcpy DtoH spill ",
}
MEMORY = frozenset({"weights", "input", "spill"})
COMMUNICATION = frozenset({"activations", "gradients", "sync", "stall"})


@dataclass(frozen=True)
class Temporal:
    """Cycles in which a wafer computes, only moves data, or is idle."""

    span_cycles: int
    compute_cycles: int
    non_compute_cycles: int
    idle_cycles: int


@dataclass(frozen=True)
class KernelTime:
    """Cycles of all slices of one kernel (steps and samples together)."""

    name: str
    kind: str  # computation, communication, memory
    calls: int
    cycles: int


@dataclass(frozen=True)
class Durations:
    """Durations of one kernel's calls on one wafer, in cycles; `spread_cycles` is their standard deviation."""

    rank: int
    name: str
    kind: str
    calls: int
    sum_cycles: int
    mean_cycles: float
    spread_cycles: float
    least_cycles: int
    most_cycles: int


@dataclass(frozen=True)
class Breakdown:
    """The four breakdowns of one wafer.

    `causes` are core-seconds of the step over all regions: busy, stalled on input, stalled on output,
    idle; they add up to the core-seconds of all regions.  `overlap` is the fraction of communication time
    during which something computes (NaN-free: 0 where nothing communicates).
    """

    temporal: Temporal
    causes: dict[str, float]
    kernels: tuple[KernelTime, ...]
    overlap: float


def breakdown(result: Result) -> Breakdown:
    """Break the simulated time of the timeline and the core time of the step down."""
    clock = views.clock_of(result)
    every: list[tuple[float, float]] = []
    compute: list[tuple[float, float]] = []
    moving: list[tuple[float, float]] = []
    kernels: dict[tuple[str, str], list[int]] = defaultdict(list)
    for item in result.timeline:
        start, end = views.integer_cycles(item, clock)
        kind = kind_of(item.category)
        every.append((start, end))
        (compute if kind == "computation" else moving).append((start, end))
        kernels[_name(item), kind].append(end - start)
    spans, computing = union(every), union(compute)
    communication = [
        views.integer_cycles(item, clock) for item in result.timeline if item.category in COMMUNICATION
    ]
    span = int(spans[-1][1] - spans[0][0]) if spans else 0
    busy, working = _length(spans), _length(computing)
    merged = union(communication)
    both = _length(merged) + working - _length(union([*merged, *computing]))
    return Breakdown(
        temporal=Temporal(span, working, busy - working, span - busy),
        causes=_causes(result),
        kernels=tuple(
            sorted(
                (KernelTime(name, kind, len(times), sum(times)) for (name, kind), times in kernels.items()),
                key=lambda row: (-row.cycles, row.name),
            )
        ),
        overlap=both / _length(merged) if merged else 0.0,
    )


def durations(results: Result | Sequence[Result]) -> tuple[Durations, ...]:
    """Return the distribution of every kernel's durations on every wafer, the largest totals first.

    Parameters
    ----------
    results
        One result, whose systems run alike and get the same rows; or one result per system, for systems that
        differ (seeds of the jitter).
    """
    each = [results] * results.systems if isinstance(results, Result) else list(results)
    rows: list[Durations] = []
    known: dict[int, list[tuple[str, str, list[int]]]] = {}
    for rank, result in enumerate(each):
        if id(result) not in known:
            clock = views.clock_of(result)
            found: dict[tuple[str, str], list[int]] = defaultdict(list)
            for item in result.timeline:
                start, end = views.integer_cycles(item, clock)
                found[hta_name(item.track, item.name, item.category), kind_of(item.category)].append(
                    end - start
                )
            known[id(result)] = [(name, kind, times) for (name, kind), times in found.items()]
        for name, kind, times in known[id(result)]:
            rows.append(distribution(rank, name, kind, times))
    return tuple(sorted(rows, key=lambda row: (-row.sum_cycles, row.name, row.rank)))


def distribution(rank: int, name: str, kind: str, times: list[int]) -> Durations:
    """Return the distribution of one kernel's durations, in cycles."""
    return Durations(
        rank,
        name,
        kind,
        len(times),
        sum(times),
        statistics.fmean(times),
        statistics.pstdev(times),
        min(times),
        max(times),
    )


def kind_of(category: str) -> str:
    """Return the kind of kernel ("communication", "memory" or "computation") for a slice's category."""
    if category in COMMUNICATION:
        return "communication"
    return "memory" if category in MEMORY else "computation"


def _length(spans: Iterable[tuple[float, float]]) -> int:
    return int(sum(end - start for start, end in spans))


def _causes(result: Result) -> dict[str, float]:
    names = ("busy", "stalled_input", "stalled_output", "idle")
    return {
        f"{name}_core_s": float(sum(area.times_s[i] * area.region.cores for area in result.areas))
        for i, name in enumerate(names)
    }


def hta_name(track: str, plain: str, category: str) -> str:
    """Return a name from which the analysis derives the right kind; `plain` is the slice's name without
    numbers."""
    prefix = _PREFIX.get(category, "")
    text = f"{track}/{plain}" if not prefix else plain
    # A name that happens to contain a keyword ("async_copy") would change its kind.
    return prefix + _MISREAD.sub(lambda word: f"{word.group()[0]}_{word.group()[1:]}", text)


def _name(item: Slice) -> str:
    return hta_name(item.track, item.role or item.name, item.category)


def write_hta(result: Result, folder: str | Path) -> list[Path]:
    """Write one file per wafer (rank) for Holistic Trace Analysis; all systems run alike.

    Returns the files.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    clock = views.clock_of(result)
    regions, resources = views.tracks(result)
    stream_of = {track: index for index, track in enumerate((*regions, *resources))}
    rows = []
    for item in result.timeline:
        start, end = views.integer_cycles(item, clock)
        kind = kind_of(item.category)
        args: dict[str, Any] = {"stream": stream_of[item.track], "device": 0, "bytes": int(item.bytes)}
        if kind == "memory" and end > start:
            args["memory bandwidth (GB/s)"] = item.bytes / (end - start) * clock / 1e9
        rows.append(
            {"ph": "X", "cat": "gpu_memcpy" if kind == "memory" else "kernel",
             "name": _name(item), "pid": 0, "tid": stream_of[item.track],
             "ts": cycles_to_us(start, clock), "dur": cycles_to_us(end - start, clock), "args": args}
        )  # fmt: skip
    rows.sort(key=lambda row: (row["ts"], row["tid"]))
    paths = []
    for rank in range(result.systems):
        data = {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": result.systems},
            "otherData": {"clock_hz": clock, "time_unit": "microseconds of simulated time"},
            "displayTimeUnit": "ms",
            "traceEvents": rows,
        }
        path = folder / f"rank{rank}.json"
        # Indented only at the top: the rank is looked for line by line, as '"rank": 0' with the space.
        path.write_text(lines(data), encoding="utf-8")
        paths.append(path)
    write_durations(durations(result), folder / "durations.csv")
    return paths


def write_durations(rows: Iterable[Durations], path: Path) -> None:
    """Write the distributions as a table: one line per kernel and wafer."""
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(field.name for field in fields(Durations))
        table.writerows([csv_cell(value) for value in astuple(row)] for row in rows)


def lines(data: dict[str, Any]) -> str:
    """Return the text of a file: one event per line, indented only at the top level."""
    rows = data["traceEvents"]
    head = json.dumps({key: value for key, value in data.items() if key != "traceEvents"}, indent=1)
    body = ",\n".join(json.dumps(row) for row in rows)
    return f'{head[:-2]},\n "traceEvents": [\n{body}\n]\n}}\n'
