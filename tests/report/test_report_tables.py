"""Tables and JSON: the right names, widths and sums, and the same answer when called twice."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from wse_sim.compiler.plan import Infeasible
from wse_sim.engine.result import Result
from wse_sim.errors import WseError
from wse_sim.report import tables, views

FIVE = (
    "Samples/s",
    "Compute Samples/s",
    "Transmission Samples/s",
    "Active PEs (%)",
    "Compute Utilization (%)",
)
KEYS = {
    "feasible",
    "binding",
    "samples_per_s",
    "compute_samples_per_s",
    "transmission_samples_per_s",
    "active_pe_fraction",
    "compute_utilization",
    "step_s",
    "mfu",
    "mode",
    "model",
    "batch",
    "systems",
    "kernels",
    "memory",
    "notes",
}


def test_the_five_known_lines_come_first_and_in_order(wafer_result: Result) -> None:
    """Users look for the lines of the compile report of the real machine."""
    lines = str(tables.summary(wafer_result)).splitlines()
    assert [line[:24].strip() for line in lines[2:7]] == list(FIVE)


def test_every_line_fits_into_80_columns_without_colors(
    wafer_result: Result, streamed: Result, infeasible: Infeasible
) -> None:
    """A terminal of 80 columns shows the summary unbroken; a pipe gets no escape codes."""
    for text in (
        *(tables.summary_text(run) for run in (wafer_result, streamed, infeasible)),
        tables.comparison_text([wafer_result, streamed, infeasible]),
    ):
        assert max(len(line) for line in text.splitlines()) <= 80
        assert "\x1b" not in text


def test_asking_twice_gives_the_same(wafer_result: Result) -> None:
    """Formatting must not change the numbers."""
    first = tables.summary_text(wafer_result), json.dumps(tables.as_json(wafer_result))
    assert first == (tables.summary_text(wafer_result), json.dumps(tables.as_json(wafer_result)))


def test_json_is_strict_and_has_the_keys(wafer_result: Result, streamed: Result) -> None:
    """Other programs read the numbers by these keys."""
    for run in (wafer_result, streamed):
        data = json.loads(json.dumps(tables.as_json(run), allow_nan=False))
        assert set(data) >= KEYS
        assert data["feasible"] is True
        assert len(data["kernels"]) == len(run.kernels)
        assert data["samples_per_s"] == run.samples_per_s


def test_json_of_a_misfit_says_what_binds(infeasible: Infeasible) -> None:
    """A model that does not fit has an answer: need, limit, unit, one sentence."""
    data = tables.as_json(infeasible)
    assert data["feasible"] is False
    assert (data["binding"], data["need"], data["limit"], data["unit"]) == ("SRAM", 2.8e12, 4.18e10, "bytes")
    assert data["message"] == infeasible.message


def test_folding_keeps_all_core_time(wafer_result: Result) -> None:
    """Sixty kernels of eight layers fold to eight rows that hold the same core-seconds."""
    rows = views.fold(wafer_result.kernels)
    assert len(rows) == 8
    assert sum(row.members for row in rows) == 60
    total = sum(use.busy_s * use.cores for use in wafer_result.kernels)
    assert sum(row.core_s for row in rows) == pytest.approx(total, rel=1e-12)
    for row in rows:
        assert row.total_s == pytest.approx(wafer_result.step_s, rel=1e-9)


def test_kernels_with_different_ends_do_not_fold(wafer_result: Result) -> None:
    """ln_1 and ln_2 of a block are two kernels."""
    names = {row.name for row in views.fold(wafer_result.kernels)}
    assert {"transformer.h.*.ln_1", "transformer.h.*.ln_2"} <= names


def test_tables_sort_and_limit(wafer_result: Result) -> None:
    """The options are those of the profiler, sort_by and row_limit; the remaining rows are counted."""
    text = tables.table(wafer_result, sort_by="name", row_limit=3)
    assert text.index("attn ") < text.index("attn.c_attn")
    assert "(5 more)" in text
    with pytest.raises(WseError, match="cannot be sorted by 'color'"):
        tables.table(wafer_result, sort_by="color")


def test_data_frame_has_a_row_per_kernel(wafer_result: Result) -> None:
    """The frame has one row per kernel."""
    pytest.importorskip("pandas")
    frame = tables.to_dataframe(wafer_result)
    assert len(frame) == 60
    assert frame["busy_s"].sum() == pytest.approx(sum(use.busy_s for use in wafer_result.kernels))


def test_a_step_costs_the_power_that_its_busy_cores_say(wafer_result: Result) -> None:
    """The power is between 16,100 W of an idle CS-2 and 22,800 W of one at work, by core-seconds of kernels, counted
    kernel by kernel.
    """
    spent = views.energy(wafer_result)
    cores = wafer_result.plan.wafer.program_cores
    core_s = sum(
        use.busy_s * (use.region.cores if use.region is not None else use.cores)
        for use in wafer_result.kernels
    )
    used = core_s / cores / wafer_result.step_s
    assert 0.05 < used < 0.95
    assert spent.busy_fraction == pytest.approx(used, rel=1e-6)
    assert spent.power_w == pytest.approx(16_100 + used * 6_700)
    span_s = wafer_result.step_s * wafer_result.systems
    assert spent.step_joules == pytest.approx(spent.power_w * span_s)
    assert (spent.idle_joules, spent.work_joules) == pytest.approx((16_100 * span_s, 22_800 * span_s))
    assert spent.sample_joules * wafer_result.batch == pytest.approx(spent.step_joules)
    assert "16,100 W of an idle system" in spent.statement


def test_importing_the_report_pulls_no_heavy_library() -> None:
    """The command line must start at once."""
    code = (
        "import sys; from wse_sim.report import heatmap, hta, html, tables, trace, views; "
        "print([name for name in ('matplotlib', 'plotly', 'pandas', 'rich', 'jinja2', 'perfetto') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.slow
def test_layers_that_are_only_numbers_keep_their_names() -> None:
    """Blocks of a model share a name like `h.*.ln_1`; the 0 and 3 of a plain nn.Sequential are different layers."""
    from wse_sim.frontend import load_model
    from wse_sim.graph.blocks import common_names

    names = common_names(load_model("gpt2-small", seq=64, training=True))
    assert names["h.11.attn.qkv"] == "h.*.attn.qkv"
    assert names["h.0.ln_1"] == "h.*.ln_1"
    assert "wte" not in names
