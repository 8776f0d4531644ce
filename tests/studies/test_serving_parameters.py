"""Serving in studies: its options are parameters, its numbers outputs; a row equals the command's answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from wse_sim import door
from wse_sim.cli import app
from wse_sim.errors import WseError
from wse_sim.files import read_yaml
from wse_sim.studies import serving_parameters
from wse_sim.studies.data import better
from wse_sim.studies.parameters import parameter
from wse_sim.studies.quantities import is_output
from wse_sim.studies.runner import run_study
from wse_sim.studies.schema import read_study, study_from
from wse_sim.studies.store import Store
from wse_sim.studies.study_plan import plan

FIXED = {
    "model": "gpt2-small", "wafer": "wse3", "serve.context": 1024, "serve.requests": 40, "serve.input": "uniform:20:200",
    "serve.output": "20", "serve.goodput": "ttft:50",
}  # fmt: skip


def spec(**more: object) -> dict[str, object]:
    return {"fixed": FIXED, "outputs": ["p99_ttft_ms", "wafers"], "draws": 0, **more}


def test_options_are_parameters_with_their_limits() -> None:
    assert parameter("serve.rate").check(3) == 3.0
    for name, value in (("serve.rate", 0), ("serve.search", "best"), ("serve.requests", 1.5)):
        with pytest.raises(WseError, match=r"; (give|use)"):
            parameter(name).check(value)
    for name, value in (
        ("serve.users", 0),
        ("serve.users", 1.5),
        ("serve.users", True),
        ("serve.think_s", -1),
    ):
        with pytest.raises(WseError, match="give"):
            parameter(name).check(value)
    for name in ("serve.wafer", "serve.turns", "serve.systems"):
        with pytest.raises(WseError, match="is unknown"):
            parameter(name)


def test_users_are_numbers_that_become_arrivals() -> None:
    assert serving_parameters.given({"users": 20, "think_s": 1.5, "seed": 3}) == {
        "arrivals": "users:20:1.5",
        "seed": 3,
    }
    for fields in ({"think_s": 1.0}, {"users": 3, "arrivals": "poisson"}):
        with pytest.raises(WseError, match=r"; (add|keep)"):
            serving_parameters.given(fields)


def test_outputs_are_known_with_their_direction() -> None:
    assert all(map(is_output, ("capacity_rps", "p99_tpot_ms", "users", "joules_per_output_token")))
    assert [better(name) for name in ("wafers", "users", "p99_ttft_ms", "capacity_rps_per_wafer")] == [
        "minimize", "maximize", "minimize", "maximize",
    ]  # fmt: skip


def test_keys_tell_settings_of_serving_apart(tmp_path: Path) -> None:
    """Rate, wafers and the content of a trace change the key; the spelling of a default does not."""
    trace = tmp_path / "a.csv"

    def key(**setting: object) -> str:
        return plan(study_from(spec(fixed={**FIXED, **setting}))).numbered[0][2]

    keys = [key(), key(**{"serve.rate": 3}), key(systems=2), key(**{"serve.seed": 1})]
    for rows in ("2024-01-01 00:00:00,5,5\n", "2024-01-01 00:00:00,5,6\n"):
        trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
        keys.append(key(**{"serve.workload": f"azure:{trace}"}))
    assert len(set(keys)) == len(keys)
    assert key(**{"serve.seed": 0}) == keys[0]


def test_the_shipped_study_reads() -> None:
    path = Path(__file__).parents[2] / "examples" / "studies" / "wafers_for_users.yaml"
    assert len(read_yaml(path, "study")["grid"]["model"]) == 3
    assert read_study(path).fixed["serve.search"] == "wafers"


@pytest.mark.slow
def test_rows_are_what_the_command_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rows are a search for a rate, and a run; a goal that cannot be met is a row that states this."""
    ran = run_study(
        spec(zip=[{"serve.search": ["rate", "none", "wafers"], "serve.goodput": ["ttft:50", "ttft:50", "ttft:0.001"]}],
             fixed={k: v for k, v in FIXED.items() if k != "serve.goodput"} | {"serve.rate": 40, "serve.max_wafers": 3}),
        tmp_path, workers=0,
    )  # fmt: skip
    with Store(tmp_path / "runs.sqlite") as store:
        rows = list(store.rows(ran.study))
    assert [row["status"] for row in rows] == ["done", "done", "misfit"]
    assert "no 3 wafers meet ttft:0.001" in rows[2]["message"]
    for row in rows[:2]:
        words = ["serve", "gpt2-small", "--json", "-q", "--rate", "40", "--goodput", "ttft:50"]
        for name in ("context", "requests", "input", "output"):
            words += [f"--{name}", str(FIXED[f"serve.{name}"])]
        words += ["--search", row["parameters"]["serve.search"]]
        assert door.run(typer.main.get_command(app), words) == 0
        said = json.loads(capsys.readouterr().out)
        for name in ("p99_ttft_ms", "mean_tpot_ms", "output_throughput"):
            assert row["outputs"][name] == said[name]
        assert row["outputs"].get("capacity_rps") == said["wse_sim"]["capacity_rps"]
        assert row["outputs"]["wafers"] == said["wse_sim"]["wafers"] == 1


@pytest.mark.slow
def test_optuna_searches_over_options_of_serving(tmp_path: Path) -> None:
    """Of three chunks the search keeps the one with the highest rate, which a sweep over them confirms."""
    pytest.importorskip("optuna")
    fixed = {**FIXED, "serve.search": "rate", "serve.requests": 60}
    chunks = [1, 4, 16]
    found = {}
    for name, more in (
        ("sweep", {"grid": {"serve.max_num_batched_tokens": chunks}}),
        ("search", {"mode": "search", "search": {
            "objectives": {"capacity_rps_per_wafer": "maximize"}, "trials": 8, "over": {"serve.max_num_batched_tokens": chunks}}}),
    ):  # fmt: skip
        ran = run_study(
            {"fixed": fixed, "outputs": ["capacity_rps_per_wafer"], "draws": 0, **more},
            tmp_path / name, workers=0, store=tmp_path / "runs.sqlite",
        )  # fmt: skip
        with Store(tmp_path / "runs.sqlite") as store:
            rows = list(store.rows(ran.study))
        found[name] = max(
            (row["outputs"]["capacity_rps_per_wafer"], row["parameters"]["serve.max_num_batched_tokens"])
            for row in rows
        )
    assert found["search"] == found["sweep"]
