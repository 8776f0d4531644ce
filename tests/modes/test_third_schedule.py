"""A mode is one file or folder: the interface of every mode, and a third schedule that no other file refers to."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.modes.alternating import Alternating
from wse_sim import api
from wse_sim.compiler.flow import check_steps
from wse_sim.errors import ConfigError, ModelError
from wse_sim.modes import (
    MODES,
    forget_mode,
    load_result,
    mode_named,
    option_names,
    options_of,
    register_mode,
    resting,
    streaming,
)
from wse_sim.modes.pipelined.steps import ATTEMPT, STEPS
from wse_sim.options import GenerationOptions
from wse_sim.report import html, tables


@pytest.fixture
def alternating():
    register_mode(Alternating())
    yield "alternating"
    forget_mode("alternating")


@pytest.mark.slow
def test_a_third_schedule_compiles_runs_and_reports(alternating, tmp_path):
    """Two halves: twice the areas of one, half of them in the south, and the rate is the sum of both."""
    result = api.run("fc-mnist", mode=alternating, batch=64)
    half = len(result.plan.half.stages)
    assert len(result.areas) == 2 * half
    assert min(area.region.row for area in result.areas[half:]) >= result.plan.shift
    assert result.core_map("busy")[result.plan.shift :].sum() == pytest.approx(
        result.core_map("busy")[: result.plan.shift].sum(), rel=1e-6
    )
    assert ("halves", f"2 of {result.plan.shift} rows") in result.facts
    assert "alternating" in tables.summary_text(result)
    assert "two halves take samples in turn" in html.render(result)
    result.save(tmp_path)
    assert load_result(tmp_path) == result
    assert "alternating" in [row.mode for row in api.compare("fc-mnist", batch=64)]


def test_the_command_line_takes_a_mode_of_ones_own():
    """``--mode package.module:NAME`` registers it."""
    from wse_sim.cli import app

    try:
        found = CliRunner().invoke(
            app,
            ["run", "fc-mnist", "--batch", "64", "--mode", "tests.modes.alternating:Alternating", "--json"],
        )
        assert found.exit_code == 0, found.output
        assert json.loads(found.stdout)["mode"] == "alternating"
    finally:
        forget_mode("alternating")


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_every_mode_shows_its_steps(mode):
    """A step describes its work in a sentence, and reads only what is given or written before."""
    assert mode.steps
    for item in mode.steps:
        assert item.about.endswith(".")
    assert len({item.name for item in mode.steps}) == len(mode.steps)


def test_an_order_in_which_a_step_lacks_its_input_is_refused():
    given = {"graph", "wafer", "cluster", "options"}
    check_steps(STEPS, given)
    check_steps(ATTEMPT, given | {"replicas", "again"})
    with pytest.raises(ConfigError, match="reads 'mended'"):
        check_steps(list(reversed(STEPS)), given | {"plan"})


@pytest.mark.slow
def test_the_pipelined_mode_reads_its_own_options():
    """It read `recompute` of weight streaming's choice; now an option that it does not have is refused."""
    graph = api.load_model("fc-mnist", training=True)
    assert api.compile(graph, mode="pipelined", batch=8, recompute="none").mode == "pipelined"
    with pytest.raises(ModelError, match="no option 'lanes'"):
        api.compile(graph, mode="pipelined", batch=8, lanes=2)
    with pytest.raises(ModelError, match="mode 'spatial' is unknown"):
        api.run(graph, mode="spatial")


@pytest.mark.parametrize(
    ("mode", "asked", "lacks"),
    [
        ("pipelined", {"lanes": 2}, "lanes"),
        ("pipelined", {"density": 0.5}, "density"),
        ("pipelined", {"micro_batch": 4}, "micro_batch"),
        ("generation", {"recompute": "full"}, "recompute"),
    ],
)
def test_a_named_mode_without_a_given_option_is_a_fault(mode, asked, lacks):
    """The option was once ignored; it applies to the mode that has it, so a comparison accepts it."""
    graph = api.load_model("fc-mnist", training=mode == "pipelined")
    with pytest.raises(ModelError, match=f"mode {mode} has no option '{lacks}'; it has"):
        api.run(graph, mode=mode, batch=8, **asked)


@pytest.mark.slow
def test_a_comparison_gives_every_mode_its_options():
    """Weight streaming reads the density, and the pipeline does not."""
    rows = {row.mode: row for row in api.compare("fc-mnist", batch=64, density=0.5, trace=False)}
    assert rows["weight-streaming"].plan.weight_density == 0.5
    assert rows["pipelined"].feasible


def test_options_of_generation_are_declared_once():
    """The mode reads a part of the declaration from which the command line is made; a fault is one of its sentences."""
    assert option_names(mode_named("generation")) == (
        "batch", "prompt", "grid", "grid_cols", "groups", "chunk", "weights_bits", "experts", "expert_layout",
    )  # fmt: skip
    assert set(option_names(mode_named("generation"))) < set(GenerationOptions.model_fields)
    with pytest.raises(ModelError, match="grid 0 is too small; give 1 to 1,000,000 cores"):
        options_of(mode_named("generation"), {"grid": 0})


@pytest.mark.slow
def test_modes_are_chosen_by_what_they_are():
    """Callers ask for a property of a mode: weights are resident or streamed; results count samples or tokens."""
    assert (resting().name, streaming().name) == ("pipelined", "weight-streaming")
    assert {mode.name: mode.counts for mode in MODES} == {
        "pipelined": "sample",
        "weight-streaming": "sample",
        "pipelined-systems": "sample",
        "generation": "token",
    }
    outside = [
        file
        for folder in ("cli", "compiler", "validation", "uncertainty", "timing", "report", "engine")
        for file in (Path(api.__file__).parent / folder).rglob("*.py")
    ]
    outside += [Path(api.__file__).parent / name for name in ("api.py", "baselines.py")]
    named = [
        file.name
        for file in outside
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in ("weight-streaming", "generation")
    ]
    assert named == []  # examples in docstrings may
