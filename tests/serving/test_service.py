"""The complete path: a plan's table, replicas, the numbers of a run, searches, and the command."""

from __future__ import annotations

import csv
import json
import statistics
import time
from pathlib import Path

import numpy as np
import pytest
import typer

from tests.serving.made import open_of, table_of_ticks
from wse_sim import api, door
from wse_sim.cli import app
from wse_sim.errors import WseError
from wse_sim.modes.generation.plan import GenerationPlan
from wse_sim.serving import fast_engine, run
from wse_sim.serving.base import TICK_S, Load, ServingError, ServingRules
from wse_sim.serving.energy import draw_of, energy_of
from wse_sim.serving.latency import read_table, table_of
from wse_sim.serving.metrics import bench_result, read_goals, request_times
from wse_sim.serving.round_robin import shares
from wse_sim.serving.workload import drawn_load

MS_TICKS = round(1e-3 / TICK_S)


@pytest.fixture(scope="module")
def plan() -> GenerationPlan:
    options = api.RunOptions(
        mode="generation", phase="inference", batch=1, seq=1024, wafer="wse3", mode_options={"prompt": 200}
    )
    found = api.plan_of(api.read("gpt2-small", options), options)
    assert isinstance(found, GenerationPlan)
    return found


@pytest.mark.slow
def test_a_lone_request_takes_what_the_plan_says(plan: GenerationPlan) -> None:
    """The first token is the plan's, to a tick for each turn and region, plus the return to the entry; a decode takes
    its latency.
    """
    replica = run.replica_of(plan, most_context=1024)
    served = run.serve(open_of((0, 200, 1)), replica).served
    assert served.first_ticks[0] * TICK_S == pytest.approx(
        plan.first_token_s + plan.regions[-1].token_handover_s, abs=200 * TICK_S
    )
    one = replica.table.turn_ticks(1, answers=1, slots_cost=replica.table.deep_of(1024))
    assert one.sum() * TICK_S == pytest.approx(plan.latency_s, abs=50 * TICK_S)


def test_a_table_is_written_and_read_back(plan: GenerationPlan, tmp_path: Path) -> None:
    table = table_of(plan, most_tokens=8, most_context=1024)
    table.save(tmp_path / "turns.json")
    again = read_table(tmp_path / "turns.json")
    for name in ("layers", "base", "head", "deep"):
        np.testing.assert_array_equal(getattr(table, name), getattr(again, name))
    data = json.loads((tmp_path / "turns.json").read_text())
    for change in (
        {"grid": 0},
        {"regions": []},
        {"deep_s": [0]},
        {"deep_s": [0, -1]},
        {"regions": [{"layers": 1}]},
    ):
        (tmp_path / "odd.json").write_text(json.dumps({**data, **change}))
        with pytest.raises(WseError, match="not a table of turns"):
            read_table(tmp_path / "odd.json")


REPLICA = run.Replica(table_of_ticks([[MS_TICKS] * 8] * 3), ServingRules(blocks=500, turn_tokens=8))


def test_replicas_share_the_requests_in_turn() -> None:
    """Two replicas of a load are two runs of its halves."""
    load = drawn_load(40, rate=100.0, inputs="uniform:1:40", outputs="uniform:1:9")
    whole = run.serve(load, REPLICA, replicas=2).served
    for which in (0, 1):
        half = Load(*(getattr(load, name)[which::2] for name in (
            "arrival_ticks", "input_tokens", "output_tokens", "after", "think_ticks")))  # fmt: skip
        np.testing.assert_array_equal(whole.last_ticks[which::2], run.serve(half, REPLICA).served.last_ticks)
    users = drawn_load(40, arrivals="users:6", inputs="5", outputs="5")
    rows = shares(users, 4)
    assert [sorted({int(n) % 6 for n in part}) for part in rows] == [[0, 4], [1, 5], [2], [3]]


@pytest.mark.parametrize("router", ["round-robin", "least-loaded"])
def test_an_interrupt_keeps_what_was_answered(monkeypatch: pytest.MonkeyPatch, router: str) -> None:
    """After some checks for interrupts, answered requests have the times of the complete run, and others are missing."""
    load = drawn_load(200, rate=100.0, inputs="uniform:1:40", outputs="uniform:1:9")
    whole = run.serve(load, REPLICA, replicas=2, router=router)
    looks, place = iter(range(100)), fast_engine._serve_routed

    def look(*given: object) -> object:
        if next(looks) == 12:
            raise KeyboardInterrupt
        return place(*given) if given else time.perf_counter()

    monkeypatch.setattr(fast_engine, "STEPS", 10)
    monkeypatch.setattr(fast_engine.time, "monotonic", look)
    monkeypatch.setattr(fast_engine, "_serve_routed", look)
    cut = run.serve(load, REPLICA, replicas=2, router=router, keeps=True)
    assert cut.is_cut
    assert 0 < len(cut.load) < 200
    assert f"of 200 requests {len(cut.load)} were answered" in cut.notes[-1]
    rows = np.searchsorted(load.arrival_ticks, cut.served.arrival_ticks)
    np.testing.assert_array_equal(cut.served.last_ticks, whole.served.last_ticks[rows])
    assert bench_result(cut.load, cut.served, model="m", rate=100.0)["failed"] == 0
    looks = iter(range(100))
    with pytest.raises(KeyboardInterrupt):
        run.serve(load, REPLICA, replicas=2, router=router)


@pytest.mark.slow
def test_an_interrupted_command_writes_what_was_answered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table_of_ticks([[MS_TICKS] * 8] * 3).save(tmp_path / "turns.json")
    looks = iter(range(100))

    def look() -> float:
        if next(looks) == 12:
            raise KeyboardInterrupt
        return 0.0

    monkeypatch.setattr(fast_engine.time, "monotonic", look)
    words = "none", "--turns", str(tmp_path / "turns.json"), "--rate", "50", "--requests", "1000", "-q"
    status, text = called(capsys, *words, "--input", "9", "--output", "5", "--out", str(tmp_path / "out"))
    assert status == 130
    assert "interrupted after" in text
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert 0 < result["completed"] == result["num_prompts"] < 1000
    assert (tmp_path / "out" / "report.html").exists()


def test_the_numbers_of_a_run_are_those_of_its_requests() -> None:
    """The numbers are compared with plain Python over single requests, and the histogram of gaps within its bins of 1.6
    %.
    """
    load = drawn_load(60, rate=60.0, inputs="uniform:1:60", outputs="uniform:1:12")
    served = run.serve(load, REPLICA).served
    found = bench_result(load, served, model="m", rate=60.0, goals={"ttft": 8.0, "tpot": 3.5})
    rows = list(zip(*(c.tolist() for c in (
        served.arrival_ticks, served.first_ticks, served.last_ticks, load.output_tokens)), strict=True))  # fmt: skip
    ttft = [(first - arrival) / MS_TICKS for arrival, first, _, _ in rows]
    tpot = [(last - first) / (n - 1) / MS_TICKS for _, first, last, n in rows if n > 1]
    assert found["mean_ttft_ms"] == pytest.approx(statistics.fmean(ttft))
    assert found["std_ttft_ms"] == pytest.approx(statistics.pstdev(ttft))
    assert found["median_tpot_ms"] == pytest.approx(statistics.median(tpot))
    span = (max(last for _, _, last, _ in rows) - min(arrival for arrival, *_ in rows)) / MS_TICKS / 1e3
    assert found["duration"] == pytest.approx(span)
    assert found["output_throughput"] == pytest.approx(sum(load.output_tokens.tolist()) / span)
    good = sum(
        (first - arrival) / MS_TICKS <= 8 and (n == 1 or (last - first) / (n - 1) / MS_TICKS <= 3.5)
        for arrival, first, last, n in rows
    )
    assert 0 < good < 60
    assert found["request_goodput"] == pytest.approx(good / span)
    most = max(sum(a <= at < last for a, _, last, _ in rows) for at, *_ in rows)
    assert found["max_concurrent_requests"] == most
    gaps = sum(last - first for _, first, last, _ in rows) / sum(n - 1 for *_, n in rows) / MS_TICKS
    assert found["mean_itl_ms"] == pytest.approx(gaps)
    assert found["p50_itl_ms"] == pytest.approx(3.0, rel=0.016)  # three regions of a millisecond
    assert set(request_times(load, served)) == {"queue", "ttft", "tpot", "e2el"}


def test_the_highest_rate_lies_below_the_closed_bound_and_is_tight() -> None:
    """At the found rate the goals are met; at a tenth more they are not, with the same draws."""
    goals = {"ttft": 60.0}

    def load_at(rate: float) -> Load:
        return drawn_load(600, rate=rate, inputs="uniform:1:60", outputs="uniform:1:12")

    rate, best = run.capacity(load_at, REPLICA, goals)
    assert best is not None
    assert 0 < rate <= 1.05 * best.bounds.requests_per_s
    assert run.attained(best, goals) >= 0.99
    more = run.serve(load_at(1.1 * rate), REPLICA)
    assert run.attained(more, goals) < 0.99 or not run.is_steady(more)
    assert run.capacity(load_at, REPLICA, {"ttft": 1.0}) == (0.0, None)


def test_the_fewest_replicas_meet_the_goals_and_one_less_does_not() -> None:
    load, goals = (
        drawn_load(400, arrivals="users:60", inputs="uniform:1:60", outputs="uniform:1:12"),
        {"ttft": 60.0},
    )
    count, best = run.fewest_replicas(load, REPLICA, goals)
    assert best is not None
    assert 1 < count < 64
    assert run.attained(best, goals) >= 0.99
    assert run.attained(run.serve(load, REPLICA, replicas=count - 1), goals) < 0.99
    assert run.fewest_replicas(load, REPLICA, {"ttft": 0.5}, most=4) == (4, None)


def test_energy_lies_between_that_of_idle_and_of_busy_wafers(plan: GenerationPlan) -> None:
    """Twice as many replicas with half the load each draw twice the idle power; cost follows from wafers and time
    alone.
    """
    load = drawn_load(200, rate=100.0, inputs="uniform:1:60", outputs="uniform:1:12")
    replica = run.replica_of(plan, most_context=1024)
    one, two = (energy_of(run.serve(load, replica, replicas=n).served, draw_of(plan), n) for n in (1, 2))
    assert one.low < one.joules_per_output_token < one.high
    assert two.low == pytest.approx(2 * one.low * two.span_s / one.span_s)
    tokens = int(load.output_tokens.sum())
    assert one.joules_per_output_token * tokens == pytest.approx(one.power_w * one.span_s)
    assert two.dollars_per_million_tokens(36.0, tokens) == pytest.approx(2 * two.span_s * 0.01 / tokens * 1e6)


@pytest.mark.parametrize("text", ["", "ttft", "ttft:x", "ttft:-1", "ttft:1 ttft:2", "latency:3", "ttft:nan"])
def test_goals_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ServingError, match="; give"):
        read_goals(text)


def called(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Return exit status, and the printed text."""
    status = door.run(typer.main.get_command(app), ["serve", *words])
    streams = capsys.readouterr()
    return status, streams.out + streams.err


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The command runs from a model to files; the table that it writes gives the same times again, with both engines."""
    load = ("--requests", "30", "--rate", "40", "--input", "uniform:20:200", "--output", "20", "-q")
    out, turns = tmp_path / "out", tmp_path / "turns.json"
    status, text = called(capsys, "gpt2-small", *load, "--out", str(out), "--emit-turns", str(turns))
    assert status == 0
    assert "30 requests" in text
    assert "no schedule beats" in text
    result = json.loads((out / "result.json").read_text())
    assert (result["completed"], result["wse_sim"]["wafers"]) == (30, 1)
    rows = list(csv.DictReader((out / "requests.csv").open()))
    assert len(rows) == 30
    assert sum(float(row["ttft_s"]) for row in rows) / 30 == pytest.approx(result["mean_ttft_ms"] / 1e3)
    chunk = str(result["wse_sim"]["turn_tokens"])
    for engine in ("fast", "reference"):
        status, text = called(
            capsys, "none", *load, "--turns", str(turns), "--engine", engine, "--json",
            "--max-num-batched-tokens", chunk, "--kv-blocks", str(result["wse_sim"]["kv_blocks"]),
        )  # fmt: skip
        assert status == 0
        assert json.loads(text)["mean_e2el_ms"] == result["mean_e2el_ms"]


def test_wafers_are_searched_and_a_misfit_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    load = (
        "--requests",
        "60",
        "--arrivals",
        "users:30",
        "--input",
        "200",
        "--output",
        "20",
        "-q",
        "--max-wafers",
        "8",
    )
    status, text = called(capsys, "gpt2-small", *load, "--goodput", "ttft:1000", "--search", "wafers")
    assert status == 0
    assert "wafers a replica" in text
    status, text = called(capsys, "gpt2-small", *load, "--goodput", "ttft:0.001", "--search", "wafers")
    assert status == 1
    assert "no 8 wafers meet ttft:0.001: the first token of a lone mean request takes" in text


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("resnet18",), "decoder"),
        (("none",), "give a model, or none with --turns"),
        (("gpt2-small", "--search", "rate"), "needs goals"),
        (("gpt2-small", "--rate", "0"), "rate 0"),
        (("gpt2-small", "--workload", "azure:/nowhere.csv"), "nowhere"),
        (
            ("gpt2-small", "--max-num-batched-tokens", "4000"),
            "no cache fits in addition to the rows of a turn of 4000 tokens",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_cannot_be_served_is_a_sentence(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    status, text = called(capsys, *words, "-q")
    assert status == 2
    assert said in text
    assert len(text.strip().splitlines()) == 1
