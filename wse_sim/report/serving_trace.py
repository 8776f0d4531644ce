"""The timeline of a run of serving for Perfetto: a track for each region, with its turns, and one for each request.

The reference engine simulates the load up to the end of the window, so a late window of a long run takes
long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wse_sim.errors import WseError
from wse_sim.serving.base import NEVER, TICK_S, Load, ServingError
from wse_sim.serving.line import ServingLine, ServingReplicas
from wse_sim.serving.router import ROUND_ROBIN
from wse_sim.serving.run import Replica
from wse_sim.serving.scheduler import TurnPart

if TYPE_CHECKING:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket
    from perfetto.trace_builder.proto_builder import TraceProtoBuilder

MOST_TURNS = 200_000
NS_PER_TICK = TICK_S * 1e9


@dataclass(frozen=True)
class RegionTurn:
    """A turn in a region: ticks, and its parts as (request, tokens, context, tokens that it may emit)."""

    replica: int
    region: int
    start: int
    end: int
    parts: tuple[tuple[int, int, int, int], ...]


class _RecordedReplicas(ServingReplicas):
    """Replicas that record the turns of a window."""

    def __init__(
        self, load: Load, replica: Replica, replicas: int, router: str, window: tuple[int, int]
    ) -> None:
        super().__init__(load, replica.rules, replica.table, replicas, router)
        self.window = window
        self.turns: list[RegionTurn] = []
        self._places = {id(line): place for place, line in enumerate(self.lines)}

    def left(self, line: ServingLine, place: int, begun: int, turn: tuple[TurnPart, ...]) -> None:
        end = int(self.env.now)
        if begun < self.window[1] and end > self.window[0]:
            parts = tuple((p.request.number, p.tokens, p.context, p.emits) for p in turn)
            self.turns.append(RegionTurn(self._places[id(line)], place, begun, end, parts))
            if len(self.turns) > MOST_TURNS:
                raise ServingError(
                    f"the window of the timeline holds more than {MOST_TURNS:,} turns; choose a shorter one"
                )

    def play(self) -> None:
        """Run to the end of the window, and until every turn that entered in it has left."""
        self.begin()
        whole = int(self.latency.ticks_of([(1, 1, 1)]).sum())
        self.env.run(until=self.window[1] + whole)


@dataclass(frozen=True)
class ServingTrace:
    """Turns of a window, and the spans of requests: waiting, prefill, answering."""

    window: tuple[int, int]
    turns: tuple[RegionTurn, ...]
    requests: tuple[tuple[int, int, str, int, int], ...]  # replica, request, kind, start, end in ticks


def trace_of(
    load: Load, replica: Replica, replicas: int, window_s: tuple[float, float], router: str = ROUND_ROBIN
) -> ServingTrace:
    """Simulate a load up to the end of a window, and record the events in the window.

    Raises
    ------
    ServingError
        If the window holds too many turns, or nothing.
    """
    window = (round(window_s[0] / TICK_S), round(window_s[1] / TICK_S))
    service = _RecordedReplicas(load, replica, replicas, router, window)
    service.play()
    if not service.turns:
        raise ServingError(
            f"nothing happens from {window_s[0]:g} to {window_s[1]:g} s; choose another window of the timeline"
        )
    return ServingTrace(window, tuple(service.turns), tuple(_spans(service)))


def _spans(service: _RecordedReplicas) -> Iterator[tuple[int, int, str, int, int]]:
    low, high = service.window
    columns = (service.replica, service.arrival, service.admitted, service.first, service.last)
    rows = zip(*(column.tolist() for column in columns), service.requests, strict=True)
    for number, (which, arrival, admitted, first, last, request) in enumerate(rows):
        is_done = request.emitted == request.output_tokens
        ends = [
            ("waits", arrival, admitted),
            ("is read", admitted, first),
            ("answers", first, last if is_done else high),
        ]
        for kind, start, end in ends:
            if start == NEVER or start >= high or which == NEVER:
                break
            end = high if end == NEVER else min(end, high)
            if end > max(start, low):
                yield which, number, kind, start, end


def perfetto_of(trace: ServingTrace, title: str, names: Sequence[str]) -> bytes:
    """Return the trace as Perfetto's protobuf; `names` are those of the regions.

    Raises
    ------
    WseError
        If the package perfetto is missing.
    """
    try:
        from perfetto.trace_builder.proto_builder import TraceProtoBuilder
    except ImportError as fault:
        raise WseError(
            "a timeline needs the package perfetto, which is not installed; pip install 'wse-sim[report]'"
        ) from fault
    return _Packets(TraceProtoBuilder(), trace, title, names).serialized()


class _Packets:
    """A process for each replica: its regions first, then its requests."""

    def __init__(
        self, builder: TraceProtoBuilder, trace: ServingTrace, title: str, names: Sequence[str]
    ) -> None:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackDescriptor, TrackEvent

        self.builder, self.trace, self.title, self.names = builder, trace, title, names
        self.events, self.order = TrackEvent, TrackDescriptor.EXPLICIT
        self.tracks: dict[tuple[int, str], int] = {}

    def serialized(self) -> bytes:
        for turn in sorted(self.trace.turns, key=lambda one: (one.start, one.region)):
            track = self._track(turn.replica, f"{turn.region:03d} {self.names[turn.region]}", turn.region)
            tokens = sum(part[1] for part in turn.parts)
            numbers = ", ".join(str(part[0]) for part in turn.parts)
            event = self._event(turn.start, self.events.TYPE_SLICE_BEGIN, track)
            event.track_event.name = f"{tokens} token{'s' * (tokens != 1)} of {numbers}"
            note = event.track_event.debug_annotations.add()
            note.name = "request, tokens, context, emits"
            note.string_value = "; ".join(f"{a}, {b}, {c}, {d}" for a, b, c, d in turn.parts)
            self._event(turn.end, self.events.TYPE_SLICE_END, track)
        for replica, number, kind, start, end in sorted(self.trace.requests, key=lambda one: one[3]):
            track = self._track(replica, f"request {number}", 10_000 + number)
            event = self._event(start, self.events.TYPE_SLICE_BEGIN, track)
            event.track_event.name = kind
            self._event(end, self.events.TYPE_SLICE_END, track)
        return bytes(self.builder.serialize())

    def _track(self, replica: int, name: str, rank: int) -> int:
        process = self.tracks.get((replica, ""))
        if process is None:
            process = self.tracks[replica, ""] = len(self.tracks) + 1
            packet = self._packet()
            if len(self.tracks) == 1:
                packet.sequence_flags = 1  # SEQ_INCREMENTAL_STATE_CLEARED
            packet.track_descriptor.uuid = process
            packet.track_descriptor.child_ordering = self.order
            packet.track_descriptor.process.pid = replica + 1
            packet.track_descriptor.process.process_name = f"{self.title}, replica {replica}"
        found = self.tracks.get((replica, name))
        if found is None:
            found = self.tracks[replica, name] = len(self.tracks) + 1
            track = self._packet().track_descriptor
            track.uuid, track.name, track.parent_uuid, track.sibling_order_rank = found, name, process, rank
        return found

    def _packet(self) -> TracePacket:
        packet = self.builder.add_packet()
        packet.trusted_packet_sequence_id = 1
        return packet

    def _event(self, tick: int, kind: int, track: int) -> TracePacket:
        packet = self._packet()
        packet.timestamp = round(tick * NS_PER_TICK)
        packet.track_event.type, packet.track_event.track_uuid = kind, track
        return packet
