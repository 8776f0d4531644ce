"""Traces: files that viewers accept, whose sums are those of the result."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from collections import defaultdict
from pathlib import Path

import pytest

from wse_sim.engine.result import Result, Slice, Track
from wse_sim.errors import WseError
from wse_sim.report import hta, trace, views


def read_perfetto(path: Path) -> tuple[dict[str, int], dict[int, int], list[str]]:
    """Return the cycles per track (outermost slices), events per flow, and annotations of a Perfetto file."""
    pb2 = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    event = pb2.TrackEvent
    names: dict[int, str] = {}
    stacks: dict[int, list[int]] = defaultdict(list)
    cycles: dict[str, int] = defaultdict(int)
    flows: dict[int, int] = defaultdict(int)
    notes = []
    for packet in pb2.Trace.FromString(path.read_bytes()).packet:
        if packet.HasField("track_descriptor"):
            names[packet.track_descriptor.uuid] = packet.track_descriptor.name
            continue
        item = packet.track_event
        stack = stacks[item.track_uuid]
        if item.type == event.TYPE_SLICE_BEGIN:
            stack.append(packet.timestamp)
            for flow in (*item.flow_ids, *item.terminating_flow_ids):
                flows[flow] += 1
        elif item.type == event.TYPE_SLICE_END:
            start = stack.pop()
            assert packet.timestamp >= start
            if not stack:
                cycles[names[item.track_uuid]] += packet.timestamp - start
        elif item.type == event.TYPE_INSTANT:
            notes += [f"{note.name}={note.string_value}" for note in item.debug_annotations]
    assert not any(stacks.values())
    return cycles, flows, notes


def test_perfetto_slices_sum_to_the_busy_cycles(wafer_result: Result, tmp_path: Path) -> None:
    """Every region's track has the busy time of its kernel, in real nanoseconds."""
    trace.write_trace(wafer_result, tmp_path / "run.pftrace")
    cycles, flows, notes = read_perfetto(tmp_path / "run.pftrace")
    for use in wafer_result.kernels:
        # Twelve slices, each end rounded to a cycle, and then to a nanosecond.
        assert cycles[use.name] == pytest.approx(use.busy_s * 1e9, abs=36)
    assert set(flows.values()) == {60}
    assert "left_out=nothing" in notes
    assert any(note.startswith("clock_hz=1.1e+09") for note in notes)


def test_traces_are_bounded_and_say_what_they_left_out(wafer_result: Result, tmp_path: Path) -> None:
    """A trace can be limited to a window, some regions, or a number of events."""
    lines = trace.timeline(wafer_result, regions=["transformer.h.0.*"])
    assert len(lines.regions) == 8
    assert "of 726 slices outside" in lines.left_out
    lines = trace.timeline(wafer_result, cycles=(0, 100_000))
    assert all(span.start < 100_000 for spans in lines.spans.values() for span in spans)
    lines = trace.write_trace(wafer_result, tmp_path / "t.pftrace", max_events=120)
    assert sum(len(spans) for spans in lines.spans.values()) + 20 <= 120
    assert "limit of 120 events" in lines.left_out
    with pytest.raises(WseError, match="no region matches 'nothing'"):
        trace.timeline(wafer_result, regions=["nothing"])
    with pytest.raises(WseError, match="is empty"):
        trace.timeline(wafer_result, cycles=(5, 5))


def test_slices_that_overlap_partly_move_to_their_own_track(small_result: Result) -> None:
    """[0, 10], [2, 5] inside, [8, 12] overlapping: the last cannot nest."""
    clock = small_result.plan.wafer.clock_hz
    rows = tuple(
        Slice("links", "s", "sync", a / clock, (b - a) / clock) for a, b in ((0, 10), (2, 5), (8, 12))
    )
    lines = trace.timeline(dataclasses.replace(small_result, timeline=rows, tracks=(Track("links"),)))
    assert [(span.start, span.end) for span in lines.spans["links"]] == [(0, 10), (2, 5)]
    assert [(span.start, span.end) for span in lines.spans["links (overlapping)"]] == [(8, 12)]


def test_chrome_json_has_the_fields_that_viewers_need(streamed: Result, tmp_path: Path) -> None:
    """Complete slices with ts and dur in real microseconds, integer pid and tid, the clock in otherData."""
    trace.write_trace(streamed, tmp_path / "run.json")
    data = json.loads((tmp_path / "run.json").read_text())
    slices = [event for event in data["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == len(streamed.timeline)
    assert all(isinstance(event["tid"], int) and event["dur"] >= 0 for event in slices)
    assert sum(event["args"]["cycles"] for event in slices) == sum(
        b - a for a, b in (views.integer_cycles(item, 1.1e9) for item in streamed.timeline)
    )
    # The slices' own times, each rounded to a cycle of 1 / 1100 us at both ends.
    assert sum(event["dur"] for event in slices) == pytest.approx(
        1e6 * sum(item.duration_s for item in streamed.timeline), abs=len(slices) / 1100
    )
    assert max(event["ts"] + event["dur"] for event in slices) == pytest.approx(
        1e6 * max(item.start_s + item.duration_s for item in streamed.timeline), abs=0.01
    )
    assert {"M", "X", "s", "f"} <= {event["ph"] for event in data["traceEvents"]} <= set("MXstfC")
    assert data["otherData"]["clock_hz"] == "1.1e+09"
    trace.write_trace(streamed, tmp_path / "run.json.gz")
    assert (tmp_path / "run.json.gz").read_bytes()[:2] == b"\x1f\x8b"


def test_hta_files_follow_its_rules(streamed: Result, tmp_path: Path) -> None:
    """There is one *.json per rank, with the rank on its own line after a space, integers, streams and categories."""
    paths = hta.write_hta(streamed, tmp_path / "hta")
    # The distribution of durations: the same sums as the breakdown, once per wafer.
    rows = list(csv.DictReader((tmp_path / "hta" / "durations.csv").open()))
    assert len(rows) == streamed.systems * len(hta.breakdown(streamed).kernels)
    by_name = {(row.name, row.kind): row for row in hta.breakdown(streamed).kernels}
    for row in rows:
        one = by_name[row["name"], row["kind"]]
        assert (int(row["calls"]), int(row["sum_cycles"])) == (one.calls, one.cycles)
        assert int(row["least_cycles"]) <= float(row["mean_cycles"]) <= int(row["most_cycles"])
    assert [path.name for path in paths] == ["rank0.json", "rank1.json"]
    for rank, path in enumerate(paths):
        text = path.read_text()
        found = [match for line in text.splitlines() if (match := re.search(r'"rank":\s+(\d+)', line))]
        assert [int(match.group(1)) for match in found] == [rank]
        data = json.loads(text)
        assert data["distributedInfo"]["world_size"] == 2
        last_us = max(event["ts"] + event["dur"] for event in data["traceEvents"])
        end_s = max(item.start_s + item.duration_s for item in streamed.timeline)
        assert last_us == pytest.approx(1e6 * end_s, abs=0.01)  # real time, not cycles
        for event in data["traceEvents"]:
            assert isinstance(event["args"]["stream"], int)
            assert event["args"]["stream"] >= 0
            assert event["cat"].startswith(("kernel", "gpu_mem"))
            assert "correlation" not in event["args"]


def test_hta_names_sort_slices_into_the_right_kind() -> None:
    """The analysis derives the kind from the name alone."""
    assert hta.hta_name("out", "wte", "gradients") == "ncclKernel:gradients wte"
    assert hta.hta_name("in", "wte", "weights") == "Memcpy HtoD weights wte"
    assert not re.search("dma|Sync|Memcpy", hta.hta_name("h.0", "dma_Sync", "compute"))


def test_breakdown_by_hand(small_result: Result) -> None:
    """Compute [0, 10] and [20, 30], gradients [5, 25]: 30 long, 20 compute, 10 only moves, no idle."""
    clock = small_result.plan.wafer.clock_hz
    rows = (
        Slice("a", "x 0", "compute", 0, 10 / clock, role="x", sample=0),
        Slice("a", "x 1", "compute", 20 / clock, 10 / clock, role="x", sample=1),
        Slice("out", "g", "gradients", 5 / clock, 20 / clock),
    )
    found = hta.breakdown(dataclasses.replace(small_result, timeline=rows, tracks=(Track("a"), Track("out"))))
    assert found.temporal == hta.Temporal(30, 20, 10, 0)
    assert found.overlap == pytest.approx(0.5)  # [5, 10] and [20, 25] of [5, 25]
    assert [(row.name, row.calls, row.cycles) for row in found.kernels] == [
        ("a/x", 2, 20),
        ("ncclKernel:gradients g", 1, 20),
    ]


def test_idle_causes_add_up_to_all_core_time(wafer_result: Result, streamed: Result) -> None:
    """Busy time and all causes of not being busy add up to the core-seconds of the step."""
    for run in (wafer_result, streamed):
        cores = sum(area.region.cores for area in run.areas)
        assert sum(hta.breakdown(run).causes.values()) == pytest.approx(cores * run.step_s, rel=1e-9)


def test_hta_itself_agrees(streamed: Result, tmp_path: Path) -> None:
    """Holistic Trace Analysis loads the files and finds the same temporal breakdown and overlap."""
    analysis = pytest.importorskip("hta.trace_analysis", reason="HolisticTraceAnalysis is not installed")
    hta.write_hta(streamed, tmp_path)
    found = analysis.TraceAnalysis(trace_dir=str(tmp_path))
    ours = hta.breakdown(streamed)
    for _, row in found.get_temporal_breakdown(visualize=False).iterrows():
        # It rounds both ends of every slice to a microsecond.
        slack, us = len(streamed.timeline), 1e6 / streamed.plan.wafer.clock_hz
        assert row["compute_time(us)"] == pytest.approx(ours.temporal.compute_cycles * us, abs=slack)
        assert row["non_compute_time(us)"] == pytest.approx(ours.temporal.non_compute_cycles * us, abs=slack)
        assert row["idle_time(us)"] == pytest.approx(ours.temporal.idle_cycles * us, abs=slack)
    overlap = found.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"]
    assert overlap.iloc[0] == pytest.approx(100 * ours.overlap, abs=2)
    kernels = found.get_gpu_kernel_breakdown(visualize=False, num_kernels=100)[1]
    mine = {row.name: row.cycles for row in ours.kernels}
    for _, row in kernels[kernels["name"] != "others"].iterrows():
        assert row["sum (us)"] == pytest.approx(mine[row["name"]] * us, abs=slack)
