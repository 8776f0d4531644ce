"""Generation as a mode: a pipeline of regions, the cache that fits, what several wafers change, and its pictures."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from wse_sim import api
from wse_sim.compiler.plan import Infeasible
from wse_sim.engine.result import Result
from wse_sim.errors import ModelError
from wse_sim.hardware import load_wafer
from wse_sim.modes import load_result
from wse_sim.modes.generation.layer import decode
from wse_sim.modes.generation.steps import token_s

SMALL = {
    "family": "decoder", "layers": 8, "hidden": 2048, "heads": 16, "kv_heads": 4, "ffn": 5632, "vocab": 32000,
    "activation": "swiglu", "positions": "rotary", "seq": 2048,
}  # fmt: skip
_GRAPHS: dict[int, object] = {}


def generate(context=2048, batch=1, systems=1, **options) -> Result | Infeasible:
    if context not in _GRAPHS:
        _GRAPHS[context] = api.load_model({"name": "small", "model": SMALL}, seq=context, training=False)
    return api.run(
        _GRAPHS[context],
        mode="generation",
        phase="inference",
        batch=batch,
        systems=systems,
        mode_options=options,
    )


def run(**options) -> Result:
    answer = generate(**options)
    assert isinstance(answer, Result)
    return answer


def test_one_region_decodes_at_the_rate_of_the_published_kernels():
    # 700 x 700 leaves one region on the wafer: no hand-over, eight layers one after the other.
    answer = run(grid=700, context=2048)
    alone = decode(SMALL, load_wafer("wse2"), grid=700, context=2048)
    assert (len(answer.plan.regions), answer.plan.layers_per_region) == (1, 8)
    assert answer.samples_per_s == pytest.approx(alone.tokens_per_s, rel=1e-12)
    assert sum(answer.kernels[0].parts.values()) == pytest.approx(answer.step_s)


def test_requests_fill_the_pipeline_and_then_share_it():
    # Four regions of two layers: four requests run side by side, more take turns.
    rates = {batch: run(grid=360, context=1024, batch=batch) for batch in (1, 2, 4, 8)}
    assert len(rates[1].plan.regions) == 4
    assert rates[2].samples_per_s == pytest.approx(2 * rates[1].samples_per_s)
    assert rates[8].binding == "stage"
    assert rates[8].samples_per_s == pytest.approx(rates[4].samples_per_s, rel=0.02)
    assert rates[8].figures["tokens_per_s_per_user"] == pytest.approx(rates[8].samples_per_s / 8)


@pytest.mark.parametrize("batch", [1, 3, 5, 9])
@pytest.mark.parametrize("systems", [1, 2])
def test_the_simulated_round_is_the_closed_form(batch, systems):
    """Requests that take turns in a ring of regions settle at max(latency, requests x slowest region)."""
    answer = run(grid=360, context=1024, batch=batch, systems=systems)
    assert answer.step_s == pytest.approx(token_s(answer.plan), rel=1e-12)
    assert (
        answer.conservation["hidden_states_sent_bytes"]
        == answer.conservation["hidden_states_received_bytes"]
        > 0
    )


def test_generation_has_a_map_a_timeline_and_areas_like_the_other_modes(tmp_path):
    answer = run(grid=360, context=1024, batch=4)
    busy, used = answer.core_map("busy"), np.zeros(answer.core_map("busy").shape, bool)
    for area in answer.areas:
        used[area.region.row :, area.region.col :][: area.region.rows, : area.region.cols] = True
        assert sum(area.shares) == pytest.approx(1)
    assert used.sum() == 4 * 360**2
    assert (busy[used] > 0).all()
    assert (busy[~used] == 0).all()
    assert (answer.link_wavelets[~used] == 0).all()
    assert {span.role for span in answer.timeline} == {"prompt", "token"}
    first = [span for span in answer.timeline if span.role == "prompt" and span.category == "compute"]
    assert sum(span.duration_s for span in first) <= answer.figures["time_to_first_token_s"]
    answer.save(tmp_path)
    assert load_result(tmp_path) == answer


def test_an_all_reduce_crosses_the_middle_of_its_line_more_than_its_ends():
    """One region, one request: words of a line by the closed form of the page, all cores of a column alike."""
    answer = run(grid=700, context=2048)
    d, f, s = -(-2048 // 700), -(-5632 // 700), -(-2048 // 700)
    down = 8 * (4 + 4 * d + 2 * f)
    south = answer.link_wavelets[:700, :700, 2]
    assert south.max() == 2 * down
    assert (south == south[:, :1]).all()
    assert answer.link_wavelets[:700, :700, 1].max() == 2 * 8 * (s + 2 * d)


def test_the_longest_context_is_the_longest_that_runs():
    answer = run(grid=360, context=360, prompt=360, batch=3)
    longest = answer.plan.max_context
    assert run(grid=360, context=longest, prompt=360, batch=3).plan.max_context == longest
    beyond = generate(grid=360, context=longest + 1, prompt=360, batch=3)
    assert isinstance(beyond, Infeasible)
    assert beyond.binding == "SRAM"
    assert longest <= answer.plan.max_context_wafer


def test_more_wafers_hold_more_cache_and_never_lower_the_total_rate():
    one, two = (run(grid=360, context=1024, batch=16, systems=systems) for systems in (1, 2))
    assert two.plan.max_context > one.plan.max_context
    assert two.samples_per_s > one.samples_per_s
    assert two.plan.handover_s > one.plan.handover_s


def test_a_longer_prompt_takes_longer_to_the_first_token():
    times = [run(grid=360, prompt=prompt).figures["time_to_first_token_s"] for prompt in (256, 1024, 2048)]
    assert times == sorted(times)


def test_a_larger_grid_is_not_faster_for_ever():
    # Hops bind decode: measured 2,700 tokens/s on 420 x 420 and 2,243 on 660 x 660 for LLaMA-3 8B.
    wide = [run(grid=grid).samples_per_s for grid in (300, 500, 700)]
    assert wide[0] > wide[1] > wide[2]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"batch": 0}, "batch 0"),
        ({"grid": 2000}, "grid 2000"),
        ({"systems": 1000}, "1000 systems"),
        ({"prompt": 9000}, "prompt 9000"),
        ({"grid": 200, "groups": 300}, "groups 300"),
        ({"lanes": 4}, "no option 'lanes'"),
    ],
)
def test_impossible_requests_are_sentences(change, says):
    with pytest.raises(ModelError, match=says):
        generate(**change)


def test_a_model_without_gate_is_refused():
    with pytest.raises(ModelError, match="swiglu"):
        api.run("gpt2-small", mode="generation", phase="inference")


def test_the_command_prints_json_and_text_and_draws(tmp_path):
    import typer

    from wse_sim.cli.generate import generate_command

    app = typer.Typer()
    app.command()(generate_command)
    model = tmp_path / "small.yaml"
    model.write_text(json.dumps({"name": "small", "source": "made up", "model": SMALL}))
    out = tmp_path / "out"
    found = CliRunner().invoke(app, [str(model), "--context", "1024", "--json", "--out", str(out)])
    assert json.loads(found.stdout)["figures"]["max_context"] > 1024
    assert {"result.json", "report.html", "heatmap_compute.png", "timeline.pftrace"} <= {
        p.name for p in out.iterdir()
    }
    assert "time to first token" in CliRunner().invoke(app, [str(model), "--context", "1024"]).stdout
    misfit = CliRunner().invoke(app, ["llama3-70b"])
    assert (misfit.exit_code, "does not fit" in misfit.stdout) == (1, True)
