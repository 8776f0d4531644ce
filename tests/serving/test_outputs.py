"""Outputs of a run: series compared with the requests, tables, the timeline, the page."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.browser import faults, headless, wait
from tests.serving.made import open_of, table_of_ticks
from wse_sim.cli.serve_files import request_columns, series_columns, write_files
from wse_sim.files import Values
from wse_sim.report.chart import Chart, ChartLine, ChartMark
from wse_sim.report.serving_page import ServingPage, render_serving
from wse_sim.report.serving_trace import perfetto_of, trace_of
from wse_sim.serving.base import SAMPLED, TICK_S, Load, ServingError, ServingRules
from wse_sim.serving.bounds import bounds_of
from wse_sim.serving.curve import curve_of, point_of
from wse_sim.serving.metrics import bench_result
from wse_sim.serving.run import Replica, Serving, serve
from wse_sim.serving.series import columns_of
from wse_sim.serving.workload import drawn_load, shortened

MS_TICKS = round(1e-3 / TICK_S)
REPLICA = Replica(table_of_ticks([[MS_TICKS] * 8] * 3), ServingRules(blocks=500, turn_tokens=8))
GOALS = {"ttft": 30.0}


@pytest.fixture(scope="module")
def serving() -> Serving:
    return serve(
        drawn_load(300, rate=60.0, inputs="uniform:1:60", outputs="uniform:1:12"), REPLICA, replicas=2
    )


@pytest.mark.slow
def test_samples_are_what_requests_say(serving: Serving) -> None:
    """Running and waiting requests at each sample are counted from the requests' own times; also sums at the end, and
    mean busy fractions.

    A sample shows the state after the last turn was formed, which enters a millisecond after the one before: so much older
    it may be, not more.
    """
    sampled, served = serving.sampled, serving.served
    columns = columns_of(sampled, sampled.total, blocks=1000, draw=None)
    before = np.arange(-MS_TICKS, 1, MS_TICKS // 20)
    spans = (
        ("running", served.admitted_ticks, served.last_ticks),
        ("waiting", served.arrival_ticks, served.admitted_ticks),
    )
    for name, start, end in spans:
        for at, seen in zip(sampled.at_ticks[1:-1], columns[name][1:-1], strict=True):
            counts = [int(((start <= at + dt) & (end > at + dt)).sum()) for dt in before]
            assert min(counts) - 1 <= seen <= max(counts) + 1  # two replicas may be seen at different times
    assert columns["running"].max() > 3
    assert sampled.total[-1, SAMPLED.index("emitted")] == served.counters["emitted"]
    np.testing.assert_array_equal(sampled.total[-1, len(SAMPLED) :], served.busy_ticks)
    np.testing.assert_array_equal(sampled.single.sum(axis=0), sampled.total)
    assert (sampled.total[-1, :3] == 0).all()
    span = np.diff(columns["time_s"], prepend=0.0)
    assert float(span @ columns["output_tokens_per_s"]) == pytest.approx(served.counters["emitted"])
    assert float(span @ columns["busy_1"]) * 2 == pytest.approx(served.busy_ticks[1] * TICK_S)
    assert columns["kv_usage"].max() <= 1


def made_page(serving: Serving, title: str = "a run") -> ServingPage:
    data: Values = bench_result(serving.load, serving.served, model="m", rate=60.0, goals=GOALS)
    bound = bounds_of(serving.load, REPLICA.rules, REPLICA.table)
    data["wse_sim"] = {
        "wafers": 2, "systems": 1, "replicas": 2, "regions": 3, "turns": 9, "kv_blocks_most": 4, "running_most": 3,
        "preemptions": 0, "recomputed_tokens": 0, "bounds": vars(bound), "binds": serving.sentence, "search": [],
        "energy": None, "notes": ["<i>"], "seed": 0,
    }  # fmt: skip

    def at(rate: float) -> Load:
        return drawn_load(80, rate=rate, inputs="uniform:1:60", outputs="uniform:1:12")

    curve = curve_of(at, (10.0, 60.0, 400.0), REPLICA, goals=GOALS)
    return ServingPage(title, "60 requests/s", serving, data, None, GOALS, curve)


def test_files_agree_with_each_other(serving: Serving, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    write_files(tmp_path, made_page(serving))
    rows = list(csv.DictReader((tmp_path / "requests.csv").open()))
    table = parquet.read_table(tmp_path / "requests.parquet").to_pydict()
    assert len(rows) == 300 == len(table["ttft_s"])
    for name, column in table.items():
        assert [float(row[name]) for row in rows] == pytest.approx([float(v) for v in column], nan_ok=True)
    parts = np.array([table[name] for name in ("queue_time_s", "prompt_time_s", "completion_time_s")])
    np.testing.assert_allclose(parts.sum(axis=0), table["latency_s"], atol=1e-12)
    assert set(table["replica"]) == {0, 1}
    result = json.loads((tmp_path / "result.json").read_text())
    assert float(np.mean(table["ttft_s"])) * 1e3 == pytest.approx(result["mean_ttft_ms"])
    series = parquet.read_table(tmp_path / "series.parquet").to_pydict()
    assert set(series["replica"]) == {"all", "0", "1"}
    assert (tmp_path / "report.html").stat().st_size < 400_000


def test_the_timeline_holds_every_turn_of_its_window(serving: Serving) -> None:
    """Over the complete run the turns' times add up to the busy time of each region; a window has the turns that
    overlap it.
    """
    packets = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    whole = trace_of(serving.load, REPLICA, 2, (0.0, 30.0))
    busy = [sum(t.end - t.start for t in whole.turns if t.region == region) for region in range(3)]
    assert busy == serving.served.busy_ticks.tolist()
    part = trace_of(serving.load, REPLICA, 2, (1.0, 1.1))
    low, high = part.window
    assert sorted(part.turns, key=str) == sorted(
        (t for t in whole.turns if t.start < high and t.end > low), key=str
    )
    lasts = serving.served.last_ticks
    for _, number, kind, start, end in whole.requests:
        if kind == "answers":
            assert (start, end) == (serving.served.first_ticks[number], lasts[number])
    read = packets.Trace()
    read.ParseFromString(perfetto_of(part, "a run", ["a", "b", "c"]))
    begins = [p.track_event.name for p in read.packet if p.track_event.type == 1]
    assert sum("token" in name for name in begins) == len(part.turns)
    with pytest.raises(ServingError, match="choose another window"):
        trace_of(open_of((0, 1, 1)), REPLICA, 1, (50.0, 51.0))


def test_the_page_is_whole_and_safe(serving: Serving) -> None:
    text = render_serving(made_page(serving, "</script><b>x"))
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)\s*=", text)
    assert "<b>x" not in text
    assert "<i>" not in text.partition('id="notes"')[2]
    assert "Bottleneck: " in text
    assert text.count('<svg class="chart"') == 3 + 3 + 4
    assert "goal 30 ms" in text


def test_a_chart_keeps_peaks_and_odd_values() -> None:
    """The largest of 10,000 points is drawn; one point, equal values and logarithms over zero also give a chart."""
    y = np.zeros(10_000)
    y[4321] = 7.0
    svg = Chart("a", "x", "y", [ChartLine("l", np.arange(10_000.0), y)], [ChartMark("m", y=7.0)]).svg()
    top = re.search(r'points="([^"]+)"', svg)
    assert top is not None
    heights = [float(pair.split(",")[1]) for pair in top.group(1).split()]
    assert len(heights) <= 400
    assert min(heights) < 30 < max(heights)
    for values in ([5.0], [0.0, 0.0], [3.0, 3.0], [0.0, 1e9], [-2.0, 4.0]):
        for log in (False, None):
            assert (
                "nan"
                not in Chart("a", "x", "y", [ChartLine("l", values, values)], log_x=log, log_y=log).svg()
            )


def test_a_curve_ends_where_a_queue_grows(serving: Serving) -> None:
    """Three regions of 1 ms with turns of one decode give at most 1,000 tokens/s; a point far over it is not steady."""
    curve = made_page(serving).curve
    assert [point.is_steady for point in curve] == [True, True, False]
    assert curve[0].tokens_per_s < curve[1].tokens_per_s <= 1000
    assert curve[2].p99_ttft_ms > curve[1].p99_ttft_ms > curve[0].median_ttft_ms
    point = point_of(60.0, serving, GOALS)
    assert point.goodput is not None
    assert point.goodput <= point.requests_per_s


def test_requests_beyond_the_context_fail_and_their_users_go_on() -> None:
    """A user's requests have 2, 20 and 3 tokens, and the second is longer than 10: the third follows the first."""
    load = drawn_load(4, arrivals="users:1:2", inputs="2", outputs="1")
    load = Load(load.arrival_ticks, np.array([2, 20, 3, 4]), load.output_tokens, load.after, load.think_ticks)
    short = shortened(load, 10)
    assert short.input_tokens.tolist() == [2, 3, 4]
    assert short.after.tolist() == [-1, 0, 1]
    found = bench_result(short, serve(short, REPLICA).served, model="m", rate="inf")
    assert (found["num_prompts"], found["completed"], found["failed"]) == (4, 3, 1)
    assert "1 requests are longer than the context of 10 tokens (the longest has 21)" in short.notes[0]
    with pytest.raises(ServingError, match="every request is longer"):
        shortened(load, 2)
    assert shortened(load, 21) is load


@pytest.mark.slow
def test_the_page_lives_in_a_browser(serving: Serving, tmp_path: Path) -> None:
    """The page has no faults and uses no network; the tooltip has the values of a point; light and dark differ."""
    page = tmp_path / "report.html"
    page.write_text(render_serving(made_page(serving)))
    with headless(tmp_path / "profile") as browser:
        browser.get(f"file://{page}")
        wait(browser, "!!(window.serving && window.serving.isReady)")
        assert faults(browser) == []
        said = browser.execute_script(
            "const c = document.querySelector('svg.chart'), b = c.getBoundingClientRect();"
            "c.dispatchEvent(new PointerEvent('pointermove', {clientX: b.left + b.width / 2, clientY: b.top + b.height / 2}));"
            "return document.querySelector('.tip').innerText"
        )
        assert "first token (ms): " in said
        assert "fraction of requests: " in said
        colors = [browser.execute_script("return getComputedStyle(document.body).backgroundColor")]
        browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
        )
        colors.append(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))
        assert colors[0] != colors[1]
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True},
        )
        wait(browser, "document.documentElement.scrollWidth === 390")


def test_columns_of_requests_and_series_have_one_length(serving: Serving) -> None:
    for columns in (request_columns(serving), series_columns(serving)):
        assert len({len(column) for column in columns.values()}) == 1
