"""Resources of a pipelined run: the host's input, bundles of links, queues in front of regions."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.engine.engine_plans import chain, free_cluster
from wse_sim.engine.result import Result, Slice
from wse_sim.errors import WseError
from wse_sim.modes import simulate
from wse_sim.report import heatmap, html, trace


def on_track(result: Result, track: str) -> list[Slice]:
    """Return the slices of one track in order of time."""
    return [piece for piece in result.timeline if piece.track == track]


def test_link_tracks_carry_every_byte() -> None:
    """Two batches of 12 samples, 8 bytes each way over two streams: 192 bytes on each of four tracks."""
    result = simulate(chain([(3, 5), (4, 4), (2, 6)], batch=12), extrapolate=False)
    tracks = {piece.track for piece in result.timeline if piece.track.startswith("links ")}
    assert tracks == {"links s0 > s1", "links s1 > s0", "links s1 > s2", "links s2 > s1"}
    for track in tracks:
        assert sum(piece.bytes for piece in on_track(result, track)) == 24 * 8
    assert sum(
        piece.bytes for piece in result.timeline if piece.category in ("activations", "gradients")
    ) == sum(result.conservation[f"{name}_sent_bytes"] for name in ("activations", "gradients"))


@pytest.mark.parametrize(
    ("rows", "begin", "end"),
    [
        # 3 cycles, all rows at the end: 8 bytes over one link need 8 / B cycles.
        (1, 3 - 8 / 4, 3),
        # Four rows: the first leaves after 3 / 4 of a cycle, the last after 3.
        (4, 0.75, 3),
    ],
)
def test_words_leave_from_the_first_row_to_the_last(rows: int, begin: float, end: float) -> None:
    """The first sample of the first stage, by hand."""
    plan = chain([(3, 5), (4, 4)], batch=4, rows_per_sample=rows)
    wafer = plan.wafer.derive(link_bytes_per_cycle=4.0, wavelet_cycles=1.0)
    result = simulate(dataclasses.replace(plan, wafer=wafer))
    first = on_track(result, "links s0 > s1")[0]
    assert first.start_s == pytest.approx(begin, abs=1e-6)
    assert first.start_s + first.duration_s == pytest.approx(end, abs=1e-6)


@pytest.mark.parametrize("jitter", [0.0, 0.3])
def test_host_track_ends_where_the_source_starts(jitter: float) -> None:
    """The host takes 14 to 26 cycles per sample and 12 of transfer: every sample starts when it has arrived."""
    plan = chain([(3, 5), (1, 1)], batch=12, cluster=free_cluster(worker_samples_per_s=0.05))
    result = simulate(plan, jitter=jitter, seed=3, extrapolate=False)
    ends = [piece.start_s + piece.duration_s for piece in on_track(result, "host input")]
    starts = [piece.start_s for piece in on_track(result, "s0") if piece.name.startswith("forward")]
    assert len(ends) == len(starts) == 24
    assert all(a <= b + 1e-9 for a, b in zip(ends, starts, strict=True))
    # The backward pass of the sample before may hold the cores for a moment.
    assert sum(abs(a - b) < 1e-6 for a, b in zip(ends, starts, strict=True)) >= 20
    assert sum(piece.bytes for piece in on_track(result, "host input")) == 24 * 4


def test_queues_by_hand() -> None:
    """A fast stage before a slow one fills the stream between them; a slow one before a fast one does not."""
    queues = {use.name: use for use in simulate(chain([(1, 1), (9, 9), (1, 1)], batch=20)).queues}
    assert (queues["s1"].samples, queues["s1"].capacity, queues["s1"].bytes) == (2, 2, 24.0)
    assert queues["s2"].samples == 1
    # 24 bytes: two samples from s0 and the gradient of one from s2.
    assert queues["s0"].samples == 1


def test_queues_stay_within_their_capacity() -> None:
    """Random chains: the high water is at most the capacity, and a lone stage has none."""
    for seed in range(5):
        times = [(1.0 + (7 * seed + 3 * i) % 5, 1.0 + (5 * seed + i) % 4) for i in range(6)]
        result = simulate(chain(times, batch=30, rows_per_sample=3))
        assert all(0 < use.samples <= use.capacity for use in result.queues)
        drawn = heatmap.map_values(result, "queue")
        cores = {use.name: use.region.cores for use in result.kernels if use.region}
        assert np.nansum(drawn) == sum(use.samples * cores[use.name] for use in result.queues)
    alone = simulate(chain([(3, 5)], batch=8))
    assert [(use.samples, use.capacity, use.bytes) for use in alone.queues] == [
        (0, 0, 0.0)
    ]  # no stream leads there


def test_weight_streaming_has_no_queues(streamed: Result) -> None:
    """There are no regions and no streams between them: the layer is left out, and a request for it states why."""
    assert "queue" not in {layer["key"] for layer in html.payload(streamed)["layers"]}
    with pytest.raises(WseError, match="has no queues"):
        heatmap.draw_map(streamed, "queue")


def test_traces_have_the_resources(tmp_path: Path) -> None:
    """Host and links are resource tracks of the file; without a trace there are none."""
    plan = chain([(3, 5), (4, 4)], batch=12, rows_per_sample=4)
    lines = trace.write_trace(simulate(plan), tmp_path / "run.json")
    assert lines.regions == ("s0", "s1")
    assert lines.resources == ("host input", "links s0 > s1", "links s1 > s0")
    assert simulate(plan, trace=False).timeline == ()
