"""Generation as a mode: a pipeline of regions, the cache that fits, the effect of several wafers, and its pictures."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise

import numpy as np
import pytest
from typer.testing import CliRunner

from wse_sim import api
from wse_sim.compiler.plan import Infeasible
from wse_sim.engine.result import Result
from wse_sim.errors import ModelError
from wse_sim.hardware import load_wafer
from wse_sim.kernels.blocks.mesh import best_groups, tree_allreduce
from wse_sim.modes import load_result
from wse_sim.modes.generation.decoder import LayerShape, decoder_of, stated_layer
from wse_sim.modes.generation.layer import decode_layer_cycles, ends_cycles
from wse_sim.modes.generation.plan import RESTING
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


@pytest.mark.slow
def test_one_region_decodes_layer_after_layer_and_then_the_head():
    # 700 x 700 leaves one region on the wafer: no hand-over, eight layers one after the other.
    answer, wafer = run(grid=700, context=2048), load_wafer("wse2")
    layer = decode_layer_cycles(answer.plan.layer, 2048, 700, wafer).total
    ends = ends_cycles(decoder_of(_GRAPHS[2048]), 700, wafer).total
    assert (len(answer.plan.regions), answer.plan.layers_per_region) == (1, 8)
    assert answer.samples_per_s == pytest.approx(wafer.clock_hz / (8 * layer + ends), rel=1e-12)
    assert sum(answer.kernels[0].parts.values()) == pytest.approx(answer.step_s)


@pytest.mark.slow
def test_requests_fill_the_pipeline_and_then_share_it():
    # Four regions of two layers: four requests run side by side, more take turns.
    rates = {batch: run(grid=360, context=1024, batch=batch) for batch in (1, 2, 4, 8)}
    assert len(rates[1].plan.regions) == 4
    assert rates[2].samples_per_s == pytest.approx(2 * rates[1].samples_per_s)
    assert rates[8].binding == "stage"
    assert rates[8].samples_per_s == pytest.approx(rates[4].samples_per_s, rel=0.02)
    assert rates[8].figures["tokens_per_s_per_user"] == pytest.approx(rates[8].samples_per_s / 8)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("batch", [1, 3, 5, 9])
@pytest.mark.parametrize("systems", [1, 2])
def test_the_simulated_round_is_the_closed_form(batch, systems):
    """Requests that alternate in a ring of regions settle at max(latency, requests x slowest region)."""
    answer = run(grid=360, context=1024, batch=batch, systems=systems)
    assert answer.step_s == pytest.approx(token_s(answer.plan), rel=1e-12)
    assert (
        answer.conservation["hidden_states_sent_bytes"]
        == answer.conservation["hidden_states_received_bytes"]
        > 0
    )


def test_the_host_exchanges_numbers_of_tokens():
    """A token is a number of 32 bits; the rate of the line is that of tokens."""
    answer = run(grid=360, context=1024)
    assert answer.transmission_samples_per_s == load_wafer("wse2").io_bytes_per_s / 4


@pytest.mark.slow
def test_generation_has_a_map_a_timeline_and_areas_like_the_other_modes(tmp_path):
    answer = run(grid=360, context=1024, batch=4)
    busy, used = answer.core_map("busy"), np.zeros(answer.core_map("busy").shape, bool)
    for area in answer.areas:
        used[area.region.row :, area.region.col :][: area.region.rows, : area.region.cols] = True
        assert sum(area.fractions) == pytest.approx(1)
    assert used.sum() == 4 * 360**2
    assert (busy[used] > 0).all()
    assert (busy[~used] == 0).all()
    assert (answer.link_wavelets[~used] == 0).all()
    assert {span.role for span in answer.timeline} == {"prompt", "token"}
    # Chunks of the prompt are in all regions at once, so regions together work longer than the first token takes.
    reading = [span for span in answer.timeline if span.role == "prompt" and span.category == "compute"]
    first_token_s, work_s = answer.figures["time_to_first_token_s"], {}
    for span in reading:
        work_s[span.track] = work_s.get(span.track, 0.0) + span.duration_s
    assert max(work_s.values()) <= first_token_s < sum(work_s.values())
    answer.save(tmp_path)
    assert load_result(tmp_path) == answer


@pytest.mark.slow
def test_an_all_reduce_crosses_the_middle_of_its_line_more_than_its_ends():
    """One region, one request: words of a line by the closed form of the page, all cores of a column alike."""
    answer = run(grid=700, context=2048)
    d, f, s = -(-2048 // 700), -(-5632 // 700), -(-2048 // 700)
    # Two norms and the last one's share, maximum and sum; values and queries, keys and values of a quarter; gate, up.
    down = 8 * (4 + 1 / 8 + 2 * d + 2 * 1 + 2 * f)
    south = answer.link_wavelets[:700, :700, 2]
    assert south.max() == pytest.approx(2 * down)
    assert (south == south[:, :1]).all()
    assert answer.link_wavelets[:700, :700, 1].max() == 2 * 8 * (s + 2 * d)


@pytest.mark.slow
def test_the_longest_context_is_the_longest_that_runs():
    answer = run(grid=360, context=360, prompt=360, batch=3)
    longest = answer.plan.max_context
    assert run(grid=360, context=longest, prompt=360, batch=3).plan.max_context == longest
    beyond = generate(grid=360, context=longest + 1, prompt=360, batch=3)
    assert isinstance(beyond, Infeasible)
    assert beyond.binding == "SRAM"
    assert longest <= answer.plan.max_context_wafer


@pytest.mark.slow
def test_more_wafers_hold_more_cache_and_never_lower_the_total_rate():
    one, two = (run(grid=360, context=1024, batch=16, systems=systems) for systems in (1, 2))
    assert two.plan.max_context > one.plan.max_context
    assert two.samples_per_s > one.samples_per_s
    assert two.plan.handover_s > one.plan.handover_s


@pytest.mark.slow
def test_a_longer_prompt_takes_longer_to_the_first_token():
    times = [run(grid=360, prompt=prompt).figures["time_to_first_token_s"] for prompt in (256, 1024, 2048)]
    assert times == sorted(times)


@pytest.mark.slow
def test_a_larger_grid_is_not_faster_for_ever():
    # Hops bind decode: measured 2,700 tokens/s on 420 x 420 and 2,243 on 660 x 660 for LLaMA-3 8B.
    wide = [run(grid=grid).samples_per_s for grid in (300, 500, 700)]
    assert wide[0] > wide[1] > wide[2]


def test_a_rectangle_holds_what_no_square_does():
    """Three layers on two squares of 120 x 120 cores are two on one of them; on 120 x 240 cores all three share the
    region.

    A layer has 12 h^2 = 2.8 M weights, 5.5 MB: 768 bytes of a core for two layers on a square, 576 for three on the
    rectangle.  Memory between the two holds the rectangle only.
    """
    model = {
        "family": "decoder",
        "layers": 3,
        "hidden": 480,
        "heads": 4,
        "ffn": 1920,
        "vocab": 480,
        "seq": 120,
    }
    graph = api.load_model({"name": "three", "model": model}, seq=120, training=False)
    small = load_wafer("wse2").model_copy(update={"program_rows": 120, "program_cols": 240})
    options = {"mode": "generation", "phase": "inference", "batch": 1, "prompt": 4, "chunk": 1}
    square = api.compile(graph, small, **options, grid=120)
    wide = api.compile(graph, small, **options, grid=120, grid_cols=240)
    assert square.is_square
    assert square.prefill_cycles is not None
    need = [plan.memory.weights_bytes for plan in (square, wide)]
    assert need[0] - need[1] == pytest.approx(768 - 576, abs=64)  # and the tables of both
    assert wide.memory.total_bytes < square.memory.total_bytes
    sram = small.sram_reserved_bytes + int(wide.memory.total_bytes) + 8
    usable = small.model_copy(update={"sram_bytes": sram})
    found = api.compile(graph, usable, **options)
    assert not isinstance(found, Infeasible)
    assert not found.is_square
    assert found.prefill_cycles is None
    assert found.reading.way == RESTING
    chosen = {"mode_options": {"prompt": 4, "chunk": 1}, "trace": False}
    result = api.run(graph, mode="generation", phase="inference", batch=1, wafer=usable, **chosen)
    assert result.figures["time_to_first_token_s"] == pytest.approx(found.first_token_s, rel=1e-9)
    assert result.figures["prefill_tokens_per_s"] > 0
    assert any("rectangles" in note for note in result.notes)


def test_a_decoder_that_mixes_tokens_without_attention_is_noted():
    """A running sum as wide as the stream has no price in this mode; a narrow one, as of experts, is part of a choice."""
    import torch
    from torch import nn

    class Hybrid(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.qkv, self.out, self.norm, self.width = (
                nn.Linear(64, 192),
                nn.Linear(64, 64),
                nn.LayerNorm(64),
                width,
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(self.norm(x)).unflatten(2, (3, 4, 16)).permute(2, 0, 3, 1, 4)
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = self.out(y.transpose(1, 2).flatten(2))
            return x + torch.cumsum(x[:, :, : self.width], 1).mean(2, keepdim=True)

    for width, unpriced in ((64, (("scan", 1),)), (16, ())):
        graph = api.load_model((Hybrid(width), (torch.zeros(1, 32, 64),)), training=False)
        assert decoder_of(graph).unpriced == unpriced
        plan = api.compile(graph, mode="generation", phase="inference", batch=1, grid=120)
        assert any(note.startswith("too fast") for note in plan.notes) == bool(unpriced)


@pytest.mark.slow
def test_consecutive_regions_touch():
    """Rows of regions are traversed back and forth, so that a token moves to a neighbour; only a new wafer is far."""
    graph = api.load_model(
        {"name": "many", "model": SMALL | {"layers": 18, "hidden": 512, "ffn": 512}}, seq=64, training=False
    )
    plan = api.compile(graph, mode="generation", phase="inference", batch=1, grid=180, grid_cols=200)
    places = [item.region for item in plan.regions]
    assert len(places) > plan.wafer.program_cols // 200  # more than one row of regions
    for one, other in pairwise(places):
        assert abs(one.row - other.row) // 180 + abs(one.col - other.col) // 200 == 1


def test_a_line_costs_what_runs_along_it():
    """Scores are summed along the rows, values and statistics down the columns.

    With more columns than rows only what runs along rows waits longer: hops of scores, of the attention output (one square
    product of four), and of the down projection.
    """
    wafer, layer = (
        load_wafer("wse2").model_copy(update={"rows_per_die": 1e4, "cols_per_die": 1e4}),
        LayerShape(960, 1920),
    )
    square, wide = (decode_layer_cycles(layer, 960, sides, wafer).idle for sides in (120, (120, 240)))

    def far(line: int) -> float:
        return float(tree_allreduce(1, line, best_groups(line), wafer).idle)

    assert wide - square == pytest.approx(3 * (far(240) - far(120)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"batch": 0}, "batch 0"),
        ({"grid": 300, "grid_cols": 2000}, "grid_cols 2000"),
        ({"grid_cols": 300}, "grid_cols 300 needs the rows"),
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


@pytest.mark.slow
def test_the_graph_of_a_published_shape_is_the_published_layer():
    """Every head with its own keys: the products of the paper, in the published order of sizes."""
    full = api.load_model({"name": "full", "model": SMALL | {"kv_heads": 16}}, seq=512, training=False)
    layer = decoder_of(full).layer
    assert set(layer.products) == set(LayerShape(2048, 5632).work().products)
    assert layer.more_instructions == pytest.approx(0, abs=1)


@pytest.mark.slow
def test_decoders_of_every_kind_are_read_from_their_graphs():
    """Grouped keys, experts, a plain network with biases and layer norms, tied and untied tables are read."""
    grouped = decoder_of(api.load_model({"name": "small", "model": SMALL}, seq=512, training=False))
    assert (grouped.layer.query, grouped.layer.key, grouped.layers) == (2048, 512, 8)
    assert grouped.head == (2048, 32000)
    assert grouped.tables == 2 * 32000 * 2048
    experts = SMALL | {"family": "moe", "layers": 2, "experts": 8, "experts_per_token": 2}
    mixed = decoder_of(api.load_model({"name": "moe", "model": experts}, seq=512, training=False)).layer
    assert {(p.k, p.n, p.times, p.groups) for p in mixed.products if p.groups > 1} == {
        (2048, 5632, 4.0, 8),
        (5632, 2048, 2.0, 8),
    }
    assert mixed.weights_of_core(256) > 4 * grouped.layer.weights_of_core(256)
    gpt = decoder_of(api.load_model("gpt2-small", seq=256, training=False))
    assert gpt.tables == (50257 + 1024) * 768
    assert gpt.layer.means == pytest.approx(25 / 12)


def test_a_head_size_of_its_own_and_norms_on_heads_cost_what_they_add():
    """Twice the width of the heads gives wider products and all-reduces; a norm on heads two more statistics and roots."""
    wafer = load_wafer("wse3")
    plain = LayerShape(1024, 3072).work()
    sizes = {"hidden": 1024, "ffn": 3072, "heads": 16, "kv_heads": 8, "head_dim": 128, "qk_norm": True}
    stated = stated_layer(sizes)
    assert (stated.query, stated.key, stated.norms) == (2048, 1024, 4.0)
    normed = dataclasses.replace(plain, norms=4.0, more_instructions=12.0)
    more = (
        decode_layer_cycles(normed, 2048, 256, wafer).total
        - decode_layer_cycles(plain, 2048, 256, wafer).total
    )
    scalar = 2 * wafer.sqrt_cycles + 4 * wafer.divide_cycles + 12 * wafer.vector_start_cycles
    assert more == pytest.approx(scalar + 2 * tree_allreduce(1, 256, best_groups(256), wafer).total)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "says"), [("bert-base", "sees later tokens"), ("resnet18", "no kernel of attention")]
)
def test_what_is_no_decoder_is_refused(model, says):
    with pytest.raises(ModelError, match=says):
        api.run(model, mode="generation", phase="inference")


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt2-small", "mistral-7b"])
def test_the_other_decoders_run(model):
    answer = api.run(model, mode="generation", phase="inference", seq=512, batch=1)
    assert answer.figures["tokens_per_s_per_user"] > 500
    assert answer.plan.regions[-1].has_ends


@pytest.mark.slow
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


@pytest.mark.slow
def test_ends_lie_beside_the_squares_where_these_are_full():
    """LLaMA-3 8B on 660 x 660 cores has layers of 2 x 6.98 G bytes of 435,600 x 45.0 kB = 19.6 GB, as published.

    Tables of 2 x 128,256 x 4,096 elements in fp16 are 2.1 GB: with cache and buffers too much for the square.  South of
    it 994 - 660 = 334 rows are free: a square of 334 x 334 cores.
    """
    answer = api.run(
        api.load_model("llama3-8b", seq=4096, training=False),
        mode="generation",
        phase="inference",
        batch=1,
        mode_options={"grid": 660},
    )
    assert isinstance(answer, Result)
    plan = answer.plan
    layers, ends = plan.regions
    assert (layers.region.rows, layers.region.cols, layers.layers) == (660, 660, 32)
    assert (ends.region.row, ends.region.col, ends.region.rows, ends.region.cols) == (660, 0, 334, 334)
    assert ends.has_ends
    assert not layers.has_ends
    assert 2 * 2 * 128_256 * 4_096 / ends.region.cores < plan.wafer.sram_usable_bytes
    assert answer.active_pe_fraction == pytest.approx((660**2 + 334**2) / plan.wafer.cores)
