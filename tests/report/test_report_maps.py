"""Maps: the drawn values add up to those of the result."""

from __future__ import annotations

import base64
import gzip
from pathlib import Path

import numpy as np
import pytest

from wse_sim.engine.result import FRACTIONS, LINK_QUANTITIES, QUANTITIES, Result
from wse_sim.errors import WseError
from wse_sim.report import bottleneck, heatmap, html, views


def test_shares_add_up_on_every_core(wafer_result: Result, streamed: Result) -> None:
    """Busy, stalled on input, stalled on output and idle add up to a core's time."""
    for run in (wafer_result, streamed):
        total = sum(heatmap.map_values(run, name) for name in FRACTIONS)
        used = heatmap.used_cores(run)
        assert np.allclose(total[used], 1.0, atol=1e-6)
        assert np.isnan(total[~used]).all()


def test_busy_map_sums_to_busy_core_time(wafer_result: Result) -> None:
    """The sum of the picture's cells x step equals the sum over kernels of busy seconds x cores of the region."""
    drawn = np.nansum(heatmap.map_values(wafer_result, "busy")) * wafer_result.step_s
    stated = sum(use.busy_s * use.region.cores for use in wafer_result.kernels if use.region)
    assert drawn == pytest.approx(stated, rel=1e-5)


def test_link_maps_sum_to_the_traffic(wafer_result: Result) -> None:
    """The four panels together carry every wavelet of the result."""
    drawn = sum(heatmap.map_values(wafer_result, name).sum() for name in LINK_QUANTITIES)
    assert drawn == pytest.approx(float(wafer_result.link_wavelets.sum(dtype=float)), rel=1e-9)
    assert sum(views.link_totals(wafer_result).values()) == pytest.approx(drawn, rel=1e-9)


def test_time_bins_sum_to_the_slices(wafer_result: Result, streamed: Result) -> None:
    """Fifty bins hold as many busy seconds as the slices of all areas."""
    for run in (wafer_result, streamed):
        bins = views.time_bins(run, 50)
        assert bins is not None
        slices = sum(item.duration_s for item in run.timeline if item.category == "compute")
        assert bins.fractions.sum() * bins.bin_s == pytest.approx(slices, rel=1e-9)
        assert bins.fractions.max() <= 1 + 1e-9
        assert bins.fractions.min() >= -1e-9


def test_nested_slices_count_once() -> None:
    """[0, 4] with [1, 2] inside and [3, 6] overlapping cover 6; bins of 2: 2, 2, 2."""
    spans = views.union([(0, 4), (1, 2), (3, 6)])
    assert spans == [(0, 6)]
    assert views.covered(spans, np.array([0.0, 2.0, 4.0, 6.0, 8.0])).tolist() == [2, 2, 2, 0]
    # Two spans with a gap: bin [1, 3] sees 1 of the first and 0.5 of the second.
    assert views.covered([(0, 2), (2.5, 4)], np.array([1.0, 3.0, 5.0])).tolist() == [1.5, 1.0]


def test_the_page_carries_every_slice(wafer_result: Result) -> None:
    """The timeline of the page has all slices; the browser joins them."""
    packed = html.timeline_slices(wafer_result)
    raw = gzip.decompress(base64.b64decode(packed["data"]))
    rows = np.frombuffer(raw, "<f8").reshape(-1, 5)
    assert len(rows) == packed["count"] == len(wafer_result.timeline)
    assert rows[:, 1].sum() == pytest.approx(
        sum(item.duration_s for item in wafer_result.timeline), rel=1e-12
    )
    assert {packed["kinds"][int(kind)] for kind in rows[:, 3]} == {"forward", "backward", "input"}
    assert (np.diff(rows[:, 0]) >= 0).all()


@pytest.mark.thinned(2)
@pytest.mark.parametrize("quantity", ["busy", "sram", "kernel", "queue", "links"])
def test_pictures_of_a_small_fabric(small_result: Result, tmp_path: Path, quantity: str) -> None:
    """Every quantity can be drawn at 4 x 4."""
    path = tmp_path / "map.png"
    heatmap.draw_map(small_result, quantity, path, dies=True)
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_pictures_of_a_wafer_are_equal_when_drawn_twice(wafer_result: Result, tmp_path: Path) -> None:
    """No date or random number gets into a picture."""
    for name in ("one.png", "two.png"):
        heatmap.draw_map(wafer_result, "busy", tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()


@pytest.mark.slow
def test_a_window_of_time_is_drawn(wafer_result: Result, tmp_path: Path) -> None:
    """Half of the step, drawn alone, has the busy time of the slices in it."""
    half = wafer_result.step_s / 2
    values = heatmap.map_values(wafer_result, "busy", (0.0, half))
    first = wafer_result.kernels[0]
    inside = sum(
        max(0.0, min(half, item.start_s + item.duration_s) - item.start_s)
        for item in wafer_result.timeline
        if item.track == first.name
    )
    assert first.region is not None
    assert values[first.region.row, first.region.col] == pytest.approx(inside / half)
    heatmap.draw_map(wafer_result, "busy", tmp_path / "half.png", time=(0.0, half))


def test_maps_name_the_bottleneck(small_result: Result, streamed: Result) -> None:
    """A map with one color needs its reason: the subtitle of every map is the bottleneck of the run."""
    for run in (small_result, streamed):
        expected = f"Bottleneck: {bottleneck.named(run)}"
        for figure in (heatmap.draw_map(run, "busy"), heatmap.draw_links(run), heatmap.draw_time(run)):
            texts = [figure.get_suptitle(), *(text.get_text() for text in figure.axes[0].texts)]
            assert any(expected in text.replace("\n", " ") for text in texts)


def test_unknown_maps_are_refused(small_result: Result) -> None:
    """One sentence names what there is."""
    with pytest.raises(WseError, match="no map of 'heat'"):
        heatmap.draw_map(small_result, "heat")
    with pytest.raises(WseError, match="over time"):
        heatmap.draw_map(small_result, "sram", time=(0, 1))
    with pytest.raises(WseError, match="one shape"):
        heatmap.draw_fabric_map({"a": np.zeros((2, 2)), "b": np.zeros((3, 2))})


def test_fabric_maps_of_a_row_of_cores(tmp_path: Path) -> None:
    """Results of fabric programs come as plain arrays, often one row."""
    heatmap.draw_fabric_map({"busy": np.arange(8).reshape(1, 8)}, tmp_path / "row.png", label="cycles")
    assert (tmp_path / "row.png").exists()


def unpack(packed: dict) -> np.ndarray:
    """Unpack a map as the browser does."""
    raw = gzip.decompress(base64.b64decode(packed["data"]))
    if packed["kind"] == "f4":
        return np.frombuffer(raw, np.uint8).reshape(4, -1).T.copy().view("<f4").ravel()
    return np.asarray(packed["palette"], np.float32)[np.frombuffer(raw, "<" + packed["kind"])]


@pytest.mark.slow
def test_packed_maps_are_exact(wafer_result: Result) -> None:
    """The page carries the result's own values, bit by bit."""
    for name in QUANTITIES:
        values = wafer_result.core_map(name)
        assert np.array_equal(unpack(html.packed(values)), values.ravel())


@pytest.mark.slow
def test_maps_without_repetition_are_rounded_and_say_so() -> None:
    """Four maps of a million different numbers each must leave the page small; the page states the precision that was
    lost.
    """
    values = np.random.default_rng(1).random((996, 757), np.float32)
    packed = html.packed(values)
    assert len(packed["data"]) <= html.ROUNDED_ABOVE_BYTES
    assert packed["rounded"] >= 8
    assert np.allclose(unpack(packed), values.ravel(), rtol=1 / packed["rounded"], atol=0)
    some = np.random.default_rng(1).random((300, 300), np.float32)
    packed = html.packed(some)
    assert not packed["rounded"]
    assert np.array_equal(unpack(packed), some.ravel())
