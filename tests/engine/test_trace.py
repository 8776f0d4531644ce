"""The trace of a run keeps a bounded number of spans, and says so."""

from __future__ import annotations

import pytest

from wse_sim.engine import trace
from wse_sim.engine.result import Slice


def span(track: str, start: float) -> Slice:
    return Slice(track, "sample", "compute", start, 1.0)


def test_spans_of_resources_have_a_limit_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for three spans of regions and two of resources, four of each leave 3 + 2, in seconds, and a note on either."""
    monkeypatch.setattr(trace, "MAX_RESOURCE_SLICES", 2)
    recorder = trace.RunTrace(is_on=True, unit_s=0.5, limit=3)
    for k in range(4):
        recorder.span(span("wafer io", k), is_resource=True)
        recorder.span(span("region", k))
    starts = [(one.track, one.start_s, one.duration_s) for one in recorder.slices()]
    assert starts == [("region", k / 2, 0.5) for k in range(3)] + [("wafer io", k / 2, 0.5) for k in range(2)]
    assert [note.rpartition("first ")[2] for note in recorder.notes()] == [
        "3 slices",
        "2 slices of host and links",
    ]


def test_a_trace_that_is_off_keeps_nothing_and_says_nothing() -> None:
    recorder = trace.RunTrace(is_on=True, unit_s=1.0).off()
    recorder.span(span("wafer io", 0.0), is_resource=True)
    recorder.span(span("region", 0.0))
    assert recorder.slices() == recorder.notes() == ()
