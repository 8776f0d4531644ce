"""Timelines for Perfetto: native protobuf, or Chrome JSON for other viewers.

Times are real: whole nanoseconds in Perfetto's format, microseconds with fractions in Chrome's.  The clock is in
the trace's metadata, and a slice says its cycles.  A region or resource is a track; the slices of a track nest.  A trace is bounded: by a
window of cycles, by regions, by a number of events, and states what it left out.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from wse_sim.engine.result import Result, Slice
from wse_sim.errors import WseError
from wse_sim.report import views
from wse_sim.units import cycles_to_ns, cycles_to_us, s_to_cycles

if TYPE_CHECKING:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket
    from perfetto.trace_builder.proto_builder import TraceProtoBuilder

MAX_EVENTS = 500_000
OVERFLOW = " (overlapping)"


@dataclass(frozen=True)
class Span:
    """A slice in whole cycles."""

    start: int
    end: int
    source: Slice

    @property
    def cycles(self) -> int:
        """Duration."""
        return self.end - self.start


@dataclass(frozen=True)
class Timeline:
    """Content of a trace file: spans by track, parents before the slices nested in them."""

    clock_hz: float
    regions: tuple[str, ...]
    resources: tuple[str, ...]
    spans: dict[str, list[Span]]
    counters: dict[str, list[tuple[int, float]]]
    left_out: str  # empty if nothing was

    @property
    def metadata(self) -> dict[str, str]:
        """Clock, unit of time, and what was left out."""
        return {
            "clock_hz": f"{self.clock_hz:.9g}",
            "time": f"simulated time; 1 cycle is {1e9 / self.clock_hz:.4g} ns at {self.clock_hz / 1e9:.6g} GHz",
            "left_out": self.left_out or "nothing",
        }


def timeline(
    result: Result,
    cycles: tuple[int, int] | None = None,
    regions: Sequence[str] | None = None,
    max_events: int = MAX_EVENTS,
) -> Timeline:
    """Choose what a trace shows.

    Parameters
    ----------
    cycles
        Keep slices that overlap the window (A, B); none is cut in two.
    regions
        Names or patterns (``transformer.h.0.*``) of the region tracks to keep; resources always stay.
    max_events
        Keep at most that many slices and counter points together, the first in time.

    Raises
    ------
    WseError
        If the window is empty or a region is unknown.
    """
    clock = views.clock_of(result)
    region_tracks, resources = views.tracks(result)
    chosen = _chosen(region_tracks, regions)
    if cycles is not None and cycles[1] <= cycles[0]:
        raise WseError(
            f"the window of cycles {cycles[0]}:{cycles[1]} is empty; give A:B with A smaller than B"
        )
    kept = set(chosen) | set(resources)
    found = [Span(*views.integer_cycles(item, clock), item) for item in result.timeline if item.track in kept]
    total = len(result.timeline)
    if cycles is not None:
        found = [span for span in found if span.start < cycles[1] and span.end > cycles[0]]
    found.sort(key=lambda span: (span.start, -span.end, span.source.track))
    points = {
        name: [
            (tick, value)
            for tick, value in ((round(s_to_cycles(time, clock)), value) for time, value in series)
            if cycles is None or cycles[0] <= tick < cycles[1]
        ]
        for name, series in result.counters.items()
    }
    limit = max(0, max_events - sum(len(series) for series in points.values()))
    cut = found[:limit]
    reasons = (
        [f"{total - len(found)} of {total} slices outside the chosen cycles and regions"]
        if total > len(found)
        else []
    )
    if len(cut) < len(found):
        reasons.append(
            f"{len(found) - len(cut)} of {len(found)} slices from cycle {found[limit].start} on (limit of {max_events} events)"
        )
    by_track: dict[str, list[Span]] = defaultdict(list)
    for span in cut:
        by_track[span.source.track].append(span)
    spans: dict[str, list[Span]] = {}
    for track in (*chosen, *resources):
        spans.update(_nesting(track, by_track[track]))
    more = [track for track in spans if track.endswith(OVERFLOW)]
    return Timeline(clock, tuple(chosen), (*resources, *more), spans, points, "; ".join(reasons))


def _chosen(tracks: Sequence[str], patterns: Sequence[str] | None) -> list[str]:
    if patterns is None:
        return list(tracks)
    for pattern in patterns:
        if not any(fnmatchcase(track, pattern) for track in tracks):
            near = ", ".join(tracks[:3])
            raise WseError(f"no region matches '{pattern}'; use names or patterns such as {near}")
    return [track for track in tracks if any(fnmatchcase(track, pattern) for pattern in patterns)]


def _nesting(track: str, spans: Sequence[Span]) -> dict[str, list[Span]]:
    """Return the spans of a track; those that overlap another only partly go to their own track.

    Viewers drop or misplace slices that do not nest.
    """
    out: dict[str, list[Span]] = {track: []}
    rest = list(spans)
    name = track
    while rest:
        late: list[Span] = []
        open_ends: list[int] = []
        for span in rest:
            while open_ends and open_ends[-1] <= span.start:
                open_ends.pop()
            if open_ends and span.end > open_ends[-1]:
                late.append(span)
            else:
                out.setdefault(name, []).append(span)
                open_ends.append(span.end)
        rest, name = late, name + OVERFLOW
    return out


class _Bounded(Protocol):
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


B = TypeVar("B", bound=_Bounded)


def edges(spans: Iterable[B]) -> Iterator[tuple[int, B | None]]:
    """Begins (with the span) and ends (None) of nested spans in the order of time."""
    open_ends: list[int] = []
    for span in spans:
        while open_ends and open_ends[-1] <= span.start:
            yield open_ends.pop(), None
        yield span.start, span
        open_ends.append(span.end)
    while open_ends:
        yield open_ends.pop(), None


def write_trace(
    result: Result,
    path: str | Path,
    cycles: tuple[int, int] | None = None,
    regions: Sequence[str] | None = None,
    max_events: int = MAX_EVENTS,
) -> Timeline:
    """Write a trace: Chrome JSON if `path` ends in ``.json`` or ``.json.gz``, else Perfetto protobuf.

    Returns the timeline that was written; :attr:`Timeline.left_out` describes what was omitted.

    Raises
    ------
    WseError
        As :func:`timeline`; or if the package perfetto is missing.
    """
    lines = timeline(result, cycles, regions, max_events)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.name.endswith((".json", ".json.gz")):
        text = json.dumps(chrome_trace(result, lines))
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress(text.encode(), mtime=0))
        else:
            path.write_text(text + "\n", encoding="utf-8")
    else:
        path.write_bytes(perfetto_trace(result, lines))
    return lines


def perfetto_trace(result: Result, lines: Timeline) -> bytes:
    """Return the timeline as a serialized Perfetto trace.

    Raises
    ------
    WseError
        If the package perfetto is missing.
    """
    try:
        from perfetto.trace_builder.proto_builder import TraceProtoBuilder
    except ImportError as fault:
        raise WseError(
            "a Perfetto trace needs the package perfetto, which is not installed; pip install perfetto, "
            "or write a file that ends in .json"
        ) from fault
    return _PerfettoWriter(TraceProtoBuilder(), result, lines).serialized()


class _PerfettoWriter:
    """Packets of one trace.  Tracks are a tree: wafer, then regions, resources and counters."""

    SEQUENCE = 1

    def __init__(self, builder: TraceProtoBuilder, result: Result, lines: Timeline) -> None:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackDescriptor, TrackEvent

        self.builder, self.lines, self.events, self.descriptors = builder, lines, TrackEvent, TrackDescriptor
        self.uuids = 0
        name = f"{result.model}, {result.mode} on {result.plan.wafer.name} ({lines.metadata['time']})"
        self.wafer = self._track(name, pid=1)
        self.run = self._track("run", self.wafer, 0)
        self.groups = {
            "regions": self._track("regions", self.wafer, 1),
            "resources": self._track("resources", self.wafer, 2),
            "counters": self._track("counters", self.wafer, 3),
        }

    def serialized(self) -> bytes:
        """Return all packets as bytes."""
        start = min((spans[0].start for spans in self.lines.spans.values() if spans), default=0)
        packet = self._event(start, self.events.TYPE_INSTANT, self.run)
        packet.track_event.name = "about this trace"
        for key, text in self.lines.metadata.items():
            note = packet.track_event.debug_annotations.add()
            note.name, note.string_value = key, text
        last = _last_of_flows(self.lines)
        for group, names in (("regions", self.lines.regions), ("resources", self.lines.resources)):
            for rank, name in enumerate(names):
                uuid = self._track(name, self.groups[group], rank)
                self._slices(uuid, self.lines.spans.get(name, []), last)
        for rank, (name, series) in enumerate(self.lines.counters.items()):
            uuid = self._track(name, self.groups["counters"], rank, unit="count")
            for tick, value in series:
                packet = self._event(tick, self.events.TYPE_COUNTER, uuid)
                packet.track_event.double_counter_value = value
        return bytes(self.builder.serialize())

    def _track(self, name: str, parent: int = 0, rank: int = 0, pid: int = 0, unit: str = "") -> int:
        self.uuids += 1
        packet = self.builder.add_packet()
        packet.trusted_packet_sequence_id = self.SEQUENCE
        if self.uuids == 1:
            packet.sequence_flags = 1  # SEQ_INCREMENTAL_STATE_CLEARED: the sequence starts here
        track = packet.track_descriptor
        track.uuid = self.uuids
        track.child_ordering = self.descriptors.EXPLICIT
        if pid:
            track.process.pid, track.process.process_name = pid, name
            return self.uuids
        track.name, track.parent_uuid, track.sibling_order_rank = name, parent, rank
        if unit:
            track.counter.unit_name = unit
        return self.uuids

    def _event(self, tick: int, kind: int, uuid: int) -> TracePacket:
        packet = self.builder.add_packet()
        packet.timestamp = cycles_to_ns(max(0, tick), self.lines.clock_hz)
        packet.trusted_packet_sequence_id = self.SEQUENCE
        packet.track_event.type = kind
        packet.track_event.track_uuid = uuid
        return packet

    def _slices(self, uuid: int, spans: Sequence[Span], last: dict[int, Span]) -> None:
        for tick, span in edges(spans):
            if span is None:
                self._event(tick, self.events.TYPE_SLICE_END, uuid)
                continue
            event = self._event(tick, self.events.TYPE_SLICE_BEGIN, uuid).track_event
            event.name = span.source.name
            event.categories.append(span.source.category)
            length = event.debug_annotations.add()
            length.name, length.uint_value = "cycles", span.cycles
            if span.source.bytes:
                size = event.debug_annotations.add()
                size.name, size.double_value = "bytes", span.source.bytes
            flow = span.source.flow
            if flow in last:
                # Ids of flows must not be zero.
                (event.terminating_flow_ids if last[flow] is span else event.flow_ids).append(flow + 1)


def _last_of_flows(lines: Timeline) -> dict[int, Span]:
    """Return the last slice of every flow that connects at least two slices."""
    last: dict[int, Span] = {}
    count: dict[int, int] = defaultdict(int)
    for spans in lines.spans.values():
        for span in spans:
            flow = span.source.flow
            if flow >= 0:
                count[flow] += 1
                if flow not in last or span.start >= last[flow].start:
                    last[flow] = span
    return {flow: span for flow, span in last.items() if count[flow] > 1}


def chrome_trace(result: Result, lines: Timeline) -> dict[str, Any]:
    """Return the timeline as Chrome's JSON, in real microseconds with fractions."""
    pid = 1
    clock = lines.clock_hz
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": pid, "tid": 0, "ts": 0, "name": "process_name",
         "args": {"name": f"{result.model}, {result.mode} on {result.plan.wafer.name}"}}
    ]  # fmt: skip
    flows: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for tid, track in enumerate((*lines.regions, *lines.resources), start=1):
        for kind, value in (("thread_name", {"name": track}), ("thread_sort_index", {"sort_index": tid})):
            events.append({"ph": "M", "pid": pid, "tid": tid, "ts": 0, "name": kind, "args": value})
        for span in lines.spans.get(track, []):
            events.append(
                {"ph": "X", "pid": pid, "tid": tid, "ts": cycles_to_us(span.start, clock),
                 "dur": cycles_to_us(span.cycles, clock), "name": span.source.name, "cat": span.source.category,
                 "args": {"cycles": span.cycles, "bytes": span.source.bytes}}
            )  # fmt: skip
            if span.source.flow >= 0:
                flows[span.source.flow].append((span.start, tid))
    for flow, ends in flows.items():
        ends.sort()
        for i, (start, tid) in enumerate(ends if len(ends) > 1 else []):
            kind = "s" if i == 0 else "f" if i == len(ends) - 1 else "t"
            event = {
                "ph": kind,
                "pid": pid,
                "tid": tid,
                "ts": cycles_to_us(start, clock),
                "id": flow,
                "name": "flow",
                "cat": "flow",
            }
            events.append(event | ({"bp": "e"} if kind == "f" else {}))
    for name, series in lines.counters.items():
        for tick, count in series:
            events.append(
                {
                    "ph": "C",
                    "pid": pid,
                    "tid": 0,
                    "ts": cycles_to_us(tick, clock),
                    "name": name,
                    "args": {"value": count},
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": lines.metadata}
