"""One self-contained page of a run: numbers, the bottleneck, a zoomable wafer map, sources of constants.

The page contains every map in compressed form, as indices into its distinct values. The browser unpacks it and draws only the visible
cells on a canvas (level of detail), never one node per core. The script does not use a plotting library, which would be most of the
file and of the time to the first picture.
"""

from __future__ import annotations

import base64
import gzip
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.plan import CoreMemory, Infeasible, Region, Stream
from wse_sim.engine.result import LINK_QUANTITIES, Result
from wse_sim.hardware import Cluster, Wafer
from wse_sim.report import bottleneck, hta, tables, views
from wse_sim.report.fabric_counters import MeasuredCounters
from wse_sim.report.heatmap import DIRECTIONS, scale_end, used_cores
from wse_sim.report.levers import SHOWN, levers_of
from wse_sim.report.pages import as_json, parts_of, templates
from wse_sim.report.text import shorten, si
from wse_sim.report.treemap import treemap

BINS = 50
MAX_STREAMS = 25
MAX_COUNTER_POINTS = 1500
PALETTE_LIMIT = 65536
# Of one packed map; maps repeat within a kernel, so that a whole page has about 1 MB.
ROUNDED_ABOVE_BYTES = 700_000
MANTISSA_BITS = (14, 12, 10, 8, 6, 4, 3, 2)  # tried in this order; float32 has 23

LAYERS = (
    ("busy", "Compute", "fraction of the step", "mean"),
    ("stalled_input", "Stalled on input", "fraction of the step", "mean"),
    ("stalled_output", "Stalled on output", "fraction of the step", "mean"),
    ("idle", "Idle", "fraction of the step", "mean"),
    ("sram", "SRAM", "bytes per core", "mean"),
    ("queue", "Queue high water", "samples in the fullest stream into the region", "max"),
    *((f"link_{name[0]}", f"Link {name}", "wavelets per step", "max") for name in DIRECTIONS),
)
"""Key, title, unit, and how the cells of a block become one when zoomed out."""


def write_report(
    result: Result | Infeasible, path: str | Path, bins: int = BINS, measured: MeasuredCounters | None = None
) -> Path:
    """Write the page; `path` is the file, or a folder that gets ``report.html``.

    `measured`: counters of the same plan's run on the fabric.

    Raises
    ------
    WseError
        If jinja2 is not installed.
    """
    path = Path(path)
    if path.suffix not in (".html", ".htm"):
        path = path / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(result, bins, measured), encoding="utf-8")
    return path


def render(result: Result | Infeasible, bins: int = BINS, measured: MeasuredCounters | None = None) -> str:
    """Return the page as text.

    Raises
    ------
    WseError
        If jinja2 is not installed.
    """
    environment = templates("wse_sim.report", "the HTML report")
    parts = {
        name: parts_of("wse_sim.report", file)
        for name, file in (("style", "report.css"), ("script", "report.js"), ("timeline", "timeline.js"))
    }
    if isinstance(result, Infeasible):
        return environment.get_template("infeasible.html.j2").render(result=result, si=si, **parts)
    return environment.get_template("report.html.j2").render(
        **_content(result),
        **parts,
        measured=measured,
        data=as_json(payload(result, bins, measured)),
    )


def payload(result: Result, bins: int = BINS, measured: MeasuredCounters | None = None) -> dict[str, Any]:
    """Return the data for the page's script: packed maps, regions, time bins, timeline."""
    wafer = result.plan.wafer
    over_time = views.time_bins(result, bins)
    used = used_cores(result)
    return {
        "rows": wafer.rows,
        "cols": wafer.cols,
        "die": [wafer.rows_per_die, wafer.cols_per_die],
        "kernels": [use.name for use in result.kernels],
        "families": [use.family for use in result.kernels],
        "regions": [_rectangle(area.name, area.region) for area in result.areas],
        "marks": _marks(result),
        "used": packed(used.astype(np.float32)),
        "kernel": packed(result.core_map("kernel")),
        "layers": [
            _layer(key, title, unit, fold, result.core_map(key), used)
            for key, title, unit, fold in LAYERS
            if key != "queue" or result.queues
        ]
        + [
            _layer(one.key, one.title, one.unit, one.fold, one.values, used)
            for one in (measured.maps if measured else ())
        ],
        "time": None
        if over_time is None
        else {
            "start_s": over_time.start_s,
            "end_s": over_time.end_s,
            "areas": [[a.row, a.col, a.rows, a.cols] for a in over_time.areas],
            "fractions": np.round(over_time.fractions, 5).tolist(),
        },
        "timeline": timeline_slices(result),
        "counters": {name: _thinned(points) for name, points in result.counters.items()},
    }


def _layer(
    key: str, title: str, unit: str, fold: str, values: NDArray[np.float32], used: NDArray[np.bool_]
) -> dict[str, Any]:
    """Return a map with its texts; `end` is the end of its color scale."""
    shown = values.astype(float) if key.startswith("link_") else np.where(used, values, np.nan)
    end = scale_end(shown, is_fraction=unit.startswith("fraction"))
    return {"key": key, "title": title, "unit": unit, "fold": fold, "end": end, **packed(values)}


def _marks(result: Result) -> dict[str, Any]:
    """Return the places to highlight on the map: the slowest region and the busiest link."""
    slowest = bottleneck.slowest_area(result)
    most, (row, col, direction), fraction = views.busiest_link(result)
    return {
        "slowest": None if slowest is None else _rectangle(slowest.name, slowest.region),
        "link": {"row": row, "col": col, "layer": LINK_QUANTITIES[direction], "fraction": fraction}
        if most
        else None,
    }


def _rectangle(name: str, area: Region) -> list[str | int]:
    return [name, area.row, area.col, area.rows, area.cols]


def packed(values: NDArray[np.float32]) -> dict[str, Any]:
    """Return a map as indices into its distinct values, gzipped and in base64; exact unless ``rounded`` is set.

    Maps of more than 65,536 distinct values travel as bytes of float32, sorted by significance; if that
    is too large, with fewer bits of mantissa: then ``rounded`` is the n of "right to one part in n".
    """
    flat = np.ascontiguousarray(values, np.float32).ravel()
    palette, index = np.unique(flat, return_inverse=True)
    top = float(palette[-1])
    if len(palette) <= PALETTE_LIMIT:
        kind = "u1" if len(palette) <= 256 else "u2"
        data = _zipped(index.astype("<" + kind).tobytes())
        if len(data) <= ROUNDED_ABOVE_BYTES:
            return {"kind": kind, "data": data, "palette": palette.tolist(), "top": top, "rounded": 0}
    data, parts = _zipped(_planes(flat)), 0
    for bits in MANTISSA_BITS:
        if len(data) <= ROUNDED_ABOVE_BYTES:
            break
        data, parts = _zipped(_planes(rounded(flat, bits))), 2 << bits
    return {"kind": "f4", "data": data, "palette": [], "top": top, "rounded": parts}


def rounded(values: NDArray[np.float32], bits: int) -> NDArray[np.float32]:
    """Return `values` rounded to `bits` bits of mantissa: accurate to one part in ``2 ** (bits + 1)``."""
    step = np.uint32(1 << (23 - bits))
    return ((values.view(np.uint32) + step // 2) & ~(step - np.uint32(1))).view(np.float32)


def _planes(flat: NDArray[np.float32]) -> bytes:
    return np.ascontiguousarray(flat.astype("<f4").view(np.uint8).reshape(-1, 4).T).tobytes()


def _zipped(data: bytes) -> str:
    # No time stamp: equal results give equal pages.
    return base64.b64encode(gzip.compress(data, compresslevel=6, mtime=0)).decode("ascii")


def timeline_slices(result: Result) -> dict[str, Any]:
    """Return all slices in order of start, packed: rows of (start_s, duration_s, track, kind, name).

    The page merges slices that are too short to be shown separately.
    """
    regions, others = views.tracks(result)
    tracks = {track: i for i, track in enumerate((*others, *regions))}
    kinds: dict[str, int] = {}
    names: dict[str, int] = {}
    rows = [
        (
            item.start_s,
            item.duration_s,
            tracks[item.track],
            kinds.setdefault(views.shade(item), len(kinds)),
            names.setdefault(item.name, len(names)),
        )
        for item in sorted(result.timeline, key=lambda item: (item.start_s, item.track))
    ]
    return {
        "tracks": list(tracks),
        "kinds": list(kinds),
        "names": list(names),
        "count": len(rows),
        "end_s": views.time_extent(result)[1],
        "data": _zipped(np.array(rows, "<f8").tobytes()),
    }


def _thinned(points: tuple[tuple[float, float], ...]) -> list[list[float]]:
    step = max(1, -(-len(points) // MAX_COUNTER_POINTS))
    return [list(point) for point in points[::step]]


def _content(result: Result) -> dict[str, Any]:
    import markupsafe

    wafer, plan = result.plan.wafer, result.plan
    groups = views.fold(result.kernels)
    total = sum(row.core_s for row in groups) or 1.0
    most, (row, col, direction), fraction = views.busiest_link(result)
    fullest = views.fullest_core(result)
    links = [result.core_map(name) for name in LINK_QUANTITIES]
    levers = levers_of(result)
    return {
        "result": result,
        "headline": tables.headline(result),
        "meanings": bottleneck.MEANINGS,
        "resources": bottleneck.RESOURCES,
        "bottleneck": bottleneck.sentence(result, levers),
        "levers": levers[:SHOWN],
        "bindings": sorted(result.bindings.items(), key=lambda item: (-item[1], item[0])),
        "facts": tables.facts(result),
        "groups": groups,
        "treemap": ""
        if bottleneck.slowest_area(result)
        else markupsafe.Markup(treemap(groups, result.step_s)),
        "core_total_s": total,
        "memories": _memories(result),
        "fullest": fullest,
        "usable_bytes": wafer.sram_usable_bytes,
        "link_totals": views.link_totals(result),
        "link_means": {
            n: float(m[m > 0].mean()) if (m > 0).any() else 0.0
            for n, m in zip(DIRECTIONS, links, strict=True)
        },
        "busiest": {
            "wavelets": most,
            "row": row,
            "col": col,
            "direction": DIRECTIONS[direction],
            "fraction": fraction,
        },
        "streams": _streams(result),
        "conservation": sorted(result.conservation.items()),
        "energy": views.energy(result),
        "breakdown": hta.breakdown(result),
        "constants": [("Wafer", _constants(wafer)), ("Cluster", _constants(plan.cluster))],
        "model_facts": sorted(plan.graph.facts.items()),
        "plan_facts": _plan_facts(result),
        "notes": views.notes(result),
        "shorten": shorten,
        "count_means": tables.COUNT_MEANS,
    }


def _memories(result: Result) -> list[tuple[str, CoreMemory, int]]:
    """Return the distinct memory footprints, the fullest first, with the number of kernels that share
    each."""
    found: dict[tuple[str, CoreMemory], int] = {}
    for use in result.kernels:
        name = (use.block or use.name) if use.region is not None else "all cores in use"
        found[name, use.memory] = found.get((name, use.memory), 0) + 1
    best: dict[str, tuple[CoreMemory, int]] = {}
    for (name, memory), count in found.items():
        old = best.get(name)
        fuller = old is None or memory.total_bytes > old[0].total_bytes
        best[name] = (memory if fuller or old is None else old[0], count + (old[1] if old else 0))
    rows = [(name, memory, count) for name, (memory, count) in best.items()]
    return sorted(rows, key=lambda row: (-row[1].total_bytes, row[0]))


def _streams(result: Result) -> list[Stream]:
    rows = sorted(
        result.streams,
        key=lambda s: (-(s.bytes_per_sample + s.backward_bytes_per_sample) * s.hops, s.tensor, s.consumer),
    )
    return rows[:MAX_STREAMS]


def _constants(part: Wafer | Cluster) -> list[tuple[str, Any]]:
    return sorted(part.provenance.items())


def _plan_facts(result: Result) -> list[tuple[str, str]]:
    rows = [("mode", result.mode), ("systems", str(result.systems)), ("batch", str(result.batch))]
    more = [("events", f"{result.events:,}"), ("samples added", f"{result.extrapolated_samples:,}")]
    return [*rows, *result.facts, *more]
