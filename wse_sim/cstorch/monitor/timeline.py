"""Files of a capture: Perfetto, Chrome JSON, Holistic Trace Analysis.

Two process groups on one axis of seconds that begins with the capture: the wafer (the tracks of the simulated step,
once per step, at the step's wafer time) and the client (trace, replay, closures, loader, checkpoint, in real time).  A
flow leads from each step of the wafer to its closures.  One tick is a nanosecond.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wse_sim.atomic_files import write_whole
from wse_sim.errors import WseError
from wse_sim.report import hta
from wse_sim.report.trace import edges

if TYPE_CHECKING:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket

NS = 1e9
OVERLAP = " (overlapping)"
STEPS = "steps"
CLIENT_ORDER = ("step", "input", "trace", "lower", "simulate", "replay", "closure", "checkpoint")


@dataclass
class Event:
    """A slice in nanoseconds."""

    start: int
    end: int
    name: str
    category: str
    bytes: float = 0.0
    flow: int = 0  # ids begin at 1; 0 is none


@dataclass
class TrackGroup:
    """A process: tracks by name, in order."""

    name: str
    pid: int
    tracks: dict[str, list[Event]] = field(default_factory=dict)


def groups(data: dict[str, Any]) -> list[TrackGroup]:
    """Return the two groups of a capture, slices of a track nested and in the order of time."""
    wafer, client = TrackGroup("wafer", 1), TrackGroup("client", 2)
    wafer.tracks[STEPS], client.tracks[STEPS] = [], []
    for number, start, length, wafer_start, wafer_length, program in data["steps"]:
        client.tracks[STEPS].append(_event(start, length, f"ProfilerStep#{number}", "step"))
        if wafer_start is None:
            continue
        held = data["programs"][str(program)]
        wafer.name = f"wafer: {held['name']}, {held['mode']} on {held['systems']} x {held['wafer']}"
        step = _event(wafer_start, wafer_length, f"ProfilerStep#{number}", "step")
        step.flow = int(number)
        wafer.tracks[STEPS].append(step)
        for track, name, category, offset, duration, size in held["slices"]:
            event = _event(wafer_start + offset, duration, name, category, size)
            wafer.tracks.setdefault(held["tracks"][track], []).append(event)
        if wafer_length > held["step_s"] * (1 + 1e-9):
            waited = _event(wafer_start + held["step_s"], wafer_length - held["step_s"], "stall", "stall")
            wafer.tracks.setdefault("stalls", []).append(waited)
    for kind in sorted({row[0] for row in data["client"]}, key=lambda k: ((*CLIENT_ORDER, k)).index(k)):
        rows = [_event(start, length, name or k, k) for k, name, start, length in data["client"] if k == kind]
        client.tracks[kind] = rows
    for event in client.tracks.get("closure", []):
        event.flow = next(
            (
                int(n)
                for n, start, length, *_ in data["steps"]
                if start * NS <= event.start <= (start + length) * NS
            ),
            0,
        )
    for group in (wafer, client):
        group.tracks = {n: part for name, events in group.tracks.items() for n, part in _nested(name, events)}
    return [wafer, client]


def _event(start_s: float, length_s: float, name: str, category: str, size: float = 0.0) -> Event:
    return Event(round(start_s * NS), round((start_s + length_s) * NS), name, category, size)


def _nested(name: str, events: list[Event]) -> Iterator[tuple[str, list[Event]]]:
    """Slices of a track; those that overlap another only partly go to tracks of their own."""
    rest = sorted(events, key=lambda e: (e.start, -e.end))
    while True:
        kept: list[Event] = []
        late: list[Event] = []
        ends: list[int] = []
        for event in rest:
            while ends and ends[-1] <= event.start:
                ends.pop()
            if ends and event.end > ends[-1]:
                # A nanosecond is rounding, more is an overlap.
                if event.end - ends[-1] > 1:
                    late.append(event)
                    continue
                event.end = ends[-1]
            kept.append(event)
            ends.append(event.end)
        yield name, kept
        if not late:
            return
        rest, name = late, name + OVERLAP


def _ends_of_flows(found: list[TrackGroup]) -> dict[int, Event]:
    """The last slice of every flow that has at least two."""
    seen: dict[int, list[Event]] = defaultdict(list)
    for group in found:
        for events in group.tracks.values():
            for event in events:
                if event.flow:
                    seen[event.flow].append(event)
    return {
        flow: max(events, key=lambda e: (e.start, e.end)) for flow, events in seen.items() if len(events) > 1
    }


# -- Chrome -------------------------------------------------------------------------------------------


def chrome(data: dict[str, Any]) -> dict[str, Any]:
    """Chrome's JSON, times in microseconds."""
    rows: list[dict[str, Any]] = []
    found = groups(data)
    last = _ends_of_flows(found)
    for group in found:
        rows.append(
            {
                "ph": "M",
                "pid": group.pid,
                "tid": 0,
                "ts": 0,
                "name": "process_name",
                "args": {"name": group.name},
            }
        )
        for tid, (track, events) in enumerate(group.tracks.items(), start=1):
            rows.append(
                {
                    "ph": "M",
                    "pid": group.pid,
                    "tid": tid,
                    "ts": 0,
                    "name": "thread_name",
                    "args": {"name": track},
                }
            )
            rows.append(
                {
                    "ph": "M",
                    "pid": group.pid,
                    "tid": tid,
                    "ts": 0,
                    "name": "thread_sort_index",
                    "args": {"sort_index": tid},
                }
            )
            for event in events:
                row = {
                    "ph": "X",
                    "pid": group.pid,
                    "tid": tid,
                    "ts": event.start / 1e3,
                    "dur": (event.end - event.start) / 1e3,
                }
                rows.append(
                    {**row, "name": event.name, "cat": event.category, "args": {"bytes": event.bytes}}
                )
                if event.flow in last:
                    kind = "f" if last[event.flow] is event else "s" if group.pid == 1 else "t"
                    flow = {
                        "ph": kind,
                        "pid": group.pid,
                        "tid": tid,
                        "ts": event.start / 1e3,
                        "id": event.flow,
                    }
                    rows.append(
                        {**flow, "name": "closures", "cat": "flow", **({"bp": "e"} if kind == "f" else {})}
                    )
    return {"traceEvents": rows, "displayTimeUnit": "ns"}


# -- Perfetto -----------------------------------------------------------------------------------------


def perfetto(data: dict[str, Any]) -> bytes:
    """Return a serialized Perfetto trace.

    Raises:
        WseError: the package perfetto is missing.
    """
    try:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackDescriptor, TrackEvent
        from perfetto.trace_builder.proto_builder import TraceProtoBuilder
    except ImportError as fault:
        raise WseError(
            "a Perfetto trace needs the package perfetto, which is not installed; pip install perfetto, "
            "or write a file that ends in .json"
        ) from fault
    builder = TraceProtoBuilder()
    uuid = 0

    def packet() -> TracePacket:
        made = builder.add_packet()
        made.trusted_packet_sequence_id = 1
        return made

    def describe(name: str, parent: int, rank: int, pid: int = 0) -> int:
        nonlocal uuid
        uuid += 1
        made = packet()
        if uuid == 1:
            made.sequence_flags = 1  # the sequence starts here
        track = made.track_descriptor
        track.uuid, track.child_ordering = uuid, TrackDescriptor.EXPLICIT
        if pid:
            track.process.pid, track.process.process_name = pid, name
        else:
            track.name, track.parent_uuid, track.sibling_order_rank = name, parent, rank
        return uuid

    found = groups(data)
    last = _ends_of_flows(found)
    for group in found:
        process = describe(group.name, 0, 0, group.pid)
        for rank, (name, events) in enumerate(group.tracks.items()):
            track = describe(name, process, rank)
            for tick, event in edges(events):
                made = packet()
                made.timestamp = max(0, tick)
                made.track_event.track_uuid = track
                if event is None:
                    made.track_event.type = TrackEvent.TYPE_SLICE_END
                    continue
                made.track_event.type = TrackEvent.TYPE_SLICE_BEGIN
                made.track_event.name = event.name
                made.track_event.categories.append(event.category)
                if event.bytes:
                    size = made.track_event.debug_annotations.add()
                    size.name, size.double_value = "bytes", event.bytes
                if event.flow in last:
                    ids = (
                        made.track_event.terminating_flow_ids
                        if last[event.flow] is event
                        else made.track_event.flow_ids
                    )
                    ids.append(event.flow)
    return bytes(builder.serialize())


# -- files --------------------------------------------------------------------------------------------


def write(data: dict[str, Any], path: str | Path) -> Path:
    """Write a capture: Chrome JSON if the name ends in .json or .json.gz, else Perfetto.

    Raises:
        WseError: the capture contains no step, or a package is missing.
    """
    if not data["steps"]:
        raise WseError("the capture contains no complete step: the run ended first; capture fewer steps")
    path = Path(path)
    if path.name.endswith(".json"):
        return write_whole(path, json.dumps(chrome(data)) + "\n")
    if path.name.endswith(".json.gz"):
        return write_whole(path, gzip.compress(json.dumps(chrome(data)).encode(), mtime=0))
    return write_whole(path, perfetto(data))


def write_hta(data: dict[str, Any], folder: str | Path) -> list[Path]:
    """One file per system for Holistic Trace Analysis, with the client's steps as its iteration marks; ``durations.csv``.

    Times are real microseconds with fractions; the analysis rounds them to whole ones.
    """
    if not data["steps"]:
        raise WseError("the capture contains no complete step: the run ended first; capture fewer steps")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    wafer, client = groups(data)
    systems = max((p["systems"] for p in data["programs"].values()), default=1)
    rows: list[dict[str, Any]] = []
    for tid, (track, events) in enumerate(wafer.tracks.items()):
        for event in events:
            row = {
                "ph": "X",
                "pid": 0,
                "tid": tid,
                "ts": event.start / 1e3,
                "dur": (event.end - event.start) / 1e3,
            }
            if track == STEPS:
                # The marks are on a thread of the processor side, as torch's profiler writes them.
                rows.append({**row, "pid": 1, "cat": "user_annotation", "name": event.name, "args": {}})
                continue
            memory = hta.kind_of(event.category) == "memory"
            args: dict[str, Any] = {"stream": tid, "device": 0, "bytes": int(event.bytes)}
            if memory and event.end > event.start:
                args["memory bandwidth (GB/s)"] = event.bytes / (event.end - event.start)
            name = hta.hta_name(track, event.name, event.category)
            rows.append({**row, "cat": "gpu_memcpy" if memory else "kernel", "name": name, "args": args})
    for tid, (track, events) in enumerate(client.tracks.items(), start=len(wafer.tracks)):
        if track == STEPS:
            continue
        rows += [
            {
                "ph": "X",
                "pid": 1,
                "tid": tid,
                "ts": e.start / 1e3,
                "dur": (e.end - e.start) / 1e3,
                "cat": "cpu_op",
                "name": f"client::{e.name}",
                "args": {},
            }
            for e in events
        ]
    rows.sort(key=lambda row: (row["ts"], row["tid"]))
    paths = []
    for rank in range(systems):
        held = {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": systems},
            "otherData": {"time_unit": "microseconds"},
            "displayTimeUnit": "ms",
            "traceEvents": rows,
        }
        path = folder / f"rank{rank}.json"
        path.write_text(hta.lines(held), encoding="utf-8")
        paths.append(path)
    clock_hz = next((float(p["clock_hz"]) for p in data["programs"].values()), 1e9)
    hta.write_durations(_durations(wafer, systems, clock_hz), folder / "durations.csv")
    return paths


def _durations(wafer: TrackGroup, systems: int, clock_hz: float) -> list[hta.Durations]:
    """Return the duration of each kernel over the captured steps, on every system."""
    found: dict[tuple[str, str], list[int]] = {}
    for track, events in wafer.tracks.items():
        for event in events if track != STEPS else ():
            key = hta.hta_name(track, event.name, event.category), hta.kind_of(event.category)
            found.setdefault(key, []).append(round((event.end - event.start) * clock_hz / 1e9))
    rows = [hta.distribution(rank, *key, times) for rank in range(systems) for key, times in found.items()]
    return sorted(rows, key=lambda row: (-row.sum_cycles, row.name, row.rank))
