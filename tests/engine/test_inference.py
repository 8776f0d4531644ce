"""Generation: a pipeline of regions, the cache that fits, and what several wafers change."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from wse_sim.compiler.plan import Infeasible
from wse_sim.errors import ModelError
from wse_sim.hardware import load_wafer
from wse_sim.modes.generation.layer import decode
from wse_sim.modes.generation.steps import Generation, generate
from wse_sim.options import GenerationOptions

SMALL = {
    "family": "decoder", "layers": 8, "hidden": 2048, "heads": 16, "kv_heads": 4, "ffn": 5632, "vocab": 32000,
    "activation": "swiglu", "positions": "rotary", "seq": 2048,
}  # fmt: skip


def run(model=SMALL, **options) -> Generation:
    answer = generate(model, GenerationOptions(**options))
    assert isinstance(answer, Generation)
    return answer


def test_one_region_decodes_at_the_rate_of_the_published_kernels():
    # 700 x 700 leaves one region on the wafer: no hand-over, eight layers one after the other.
    answer = run(grid=700, context=2048)
    alone = decode(SMALL, load_wafer("wse2"), grid=700, context=2048)
    assert (answer.regions, answer.layers_per_region) == (1, 8)
    assert answer.tokens_per_s == pytest.approx(alone.tokens_per_s, rel=1e-12)
    assert sum(answer.parts.values()) == pytest.approx(1 / answer.tokens_per_s)


def test_requests_fill_the_pipeline_and_then_share_it():
    # Four regions of two layers: four requests run side by side, more take turns.
    rates = {batch: run(grid=360, context=1024, batch=batch) for batch in (1, 2, 4, 8)}
    assert rates[1].regions == 4
    assert rates[2].tokens_per_s == pytest.approx(2 * rates[1].tokens_per_s)
    assert rates[8].binding == "stage"
    assert rates[8].tokens_per_s == pytest.approx(rates[4].tokens_per_s, rel=0.02)
    assert rates[8].tokens_per_s_per_user == pytest.approx(rates[8].tokens_per_s / 8)


def test_the_longest_context_is_the_longest_that_runs():
    answer = run(grid=360, context=360, prompt=360, batch=3)
    longest = answer.max_context
    assert run(grid=360, context=longest, prompt=360, batch=3).max_context == longest
    beyond = generate(SMALL, GenerationOptions(grid=360, context=longest + 1, prompt=360, batch=3))
    assert isinstance(beyond, Infeasible)
    assert beyond.binding == "SRAM"
    assert longest <= answer.max_context_wafer


def test_more_wafers_hold_more_cache_and_never_lower_the_total_rate():
    one, two = (run(grid=360, context=1024, batch=16, systems=systems) for systems in (1, 2))
    assert two.max_context > one.max_context
    assert two.tokens_per_s > one.tokens_per_s
    assert two.parts["handover"] > one.parts["handover"]


def test_a_longer_prompt_takes_longer_to_the_first_token():
    times = [run(grid=360, context=2048, prompt=prompt).time_to_first_token_s for prompt in (256, 1024, 2048)]
    assert times == sorted(times)


def test_a_larger_grid_is_not_faster_for_ever():
    # Hops bind decode: measured 2,700 tokens/s on 420 x 420 and 2,243 on 660 x 660 for LLaMA-3 8B.
    wide = [run(grid=grid, context=2048).tokens_per_s_per_user for grid in (300, 500, 700)]
    assert wide[0] > wide[1] > wide[2]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"batch": 0}, "batch 0"),
        ({"grid": 2000}, "grid 2000"),
        ({"systems": 1000}, "1000 systems"),
        ({"prompt": 9000}, "prompt 9000"),
        ({"grid": 200, "groups": 300}, "groups 300"),
    ],
)
def test_impossible_requests_are_sentences(change, says):
    with pytest.raises(ModelError, match=says):
        generate(SMALL, GenerationOptions(**change))


def test_a_model_without_gate_is_refused():
    with pytest.raises(ModelError, match="swiglu"):
        generate("gpt2-small")


def test_the_command_prints_json_and_text():
    import typer

    from wse_sim.cli.generate import generate_command

    app = typer.Typer()
    app.command()(generate_command)
    found = CliRunner().invoke(app, ["llama3-8b", "--context", "1024", "--json"])
    assert json.loads(found.stdout)["batch"] == 1
    assert "time to first token" in CliRunner().invoke(app, ["llama3-8b"]).stdout
    misfit = CliRunner().invoke(app, ["llama3-70b"])
    assert (misfit.exit_code, "does not fit" in misfit.stdout) == (1, True)
