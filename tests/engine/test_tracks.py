"""Tracks of a timeline: those of its areas first, in the order of the plan."""

from __future__ import annotations

from wse_sim.compiler.plan import CoreMemory, Region
from wse_sim.engine.result import Area, Slice, Track, tracks_of


def test_areas_first_then_resources_by_name() -> None:
    """An area without activity has no track, and a resource has one without an area."""
    areas = [
        Area(name, Region(0, k, 1, 1, 1), name, (1.0, 0.0, 0.0, 0.0), CoreMemory())
        for k, name in enumerate(("second", "idle", "first"))
    ]
    timeline = [
        Slice(name, "sample 0", "compute", 0.0, 1.0)
        for name in ("wafer io", "first", "input workers", "second")
    ]
    assert tracks_of(timeline, areas) == (
        Track("second", 0), Track("first", 2), Track("input workers"), Track("wafer io"),
    )  # fmt: skip
