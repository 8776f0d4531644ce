"""A prompt in chunks: the cost of a chunk, the sequence of chunks, and their use of cache."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wse_sim import api
from wse_sim.compiler.plan import Infeasible
from wse_sim.engine.options import Options
from wse_sim.engine.result import Result
from wse_sim.engine.trace import RunTrace
from wse_sim.errors import ModelError
from wse_sim.hardware import load_wafer
from wse_sim.modes import mode_of
from wse_sim.modes.generation.decoder import LayerShape, LayerWork, Product, stated_layer
from wse_sim.modes.generation.joined_layer import deep_cycles, joined_layer_cycles, met
from wse_sim.modes.generation.layer import decode_layer_cycles, prefill_layer_cycles
from wse_sim.modes.generation.line import line_s
from wse_sim.modes.generation.plan import MOVING, RESTING, GenerationPlan, PromptTurn, Reading
from wse_sim.modes.generation.run import GenerationRun

SIZES = {
    "family": "decoder", "layers": 8, "hidden": 2048, "heads": 16, "kv_heads": 4, "ffn": 5632, "vocab": 32000,
    "activation": "swiglu", "positions": "rotary", "seq": 2048,
}  # fmt: skip
LAYERS = {
    "published": LayerShape(4096, 14336),
    "norms on heads": stated_layer({"hidden": 1024, "ffn": 3072, "heads": 16, "kv_heads": 8, "qk_norm": True}),
    "experts": stated_layer({"hidden": 2048, "ffn": 768, "heads": 32, "kv_heads": 4, "experts": 128, "experts_per_token": 8}),
}  # fmt: skip
LAYERS["experts apart"] = dataclasses.replace(LAYERS["experts"], is_apart=True)  # type: ignore[type-var]
GRAPHS: dict[tuple[int, int], object] = {}

PLAIN = LayerWork(8, 8, 8, (), 0.0, 0.0, 0)  # a layer whose experts are all alike


def generate(
    context: int = 1024, layers: int = 8, systems: int = 1, **options: object
) -> Result | Infeasible:
    if (context, layers) not in GRAPHS:
        model = {"name": "small", "model": SIZES | {"layers": layers}}
        GRAPHS[context, layers] = api.load_model(model, seq=context, training=False)
    graph, options = GRAPHS[context, layers], {"grid": 360} | options
    return api.run(
        graph, mode="generation", phase="inference", batch=1, systems=systems, mode_options=options
    )


def run(**options: object) -> Result:
    answer = generate(**options)  # type: ignore[arg-type]
    assert isinstance(answer, Result)
    return answer


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize(("wafer", "grid"), [("wse2", 120), ("wse3", 301)])
def test_one_token_at_once_is_decode(layer, wafer, grid):
    """The values are equal bit for bit, and the cost of context beyond a slot is added to that of any context."""
    machine = load_wafer(wafer)
    alone = joined_layer_cycles(layer, 1, grid, machine).total
    assert alone == decode_layer_cycles(layer, grid, grid, machine).total
    deep = deep_cycles(layer, 5, grid, machine)
    assert alone + deep == pytest.approx(decode_layer_cycles(layer, 5 * grid - 7, grid, machine).total)


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_tokens_together_take_longer_than_fewer_and_less_than_one_by_one(layer):
    wafer = load_wafer("wse3")
    tokens = np.array([1, 2, 3, 8, 16, 33, 64, 300])
    cycles = np.asarray(joined_layer_cycles(layer, tokens, 300, wafer).total)
    assert (np.diff(cycles) > 0).all()
    assert (cycles[1:] < tokens[1:] * cycles[0]).all()
    assert cycles.tolist() == [float(joined_layer_cycles(layer, int(n), 300, wafer).total) for n in tokens]


def test_eight_tokens_of_a_small_layer_by_hand():
    """Hidden 4, ffn 4 on 4 x 4 cores in two groups, a tile of one number for every product.

    Against one token: an all-reduce sends 4 words of two instead of 1, through the six streams of its root; that are
    7 products (3 words more each), 4 statistics, scores and values (3 more each).  A product of one weight is 8 maps
    of one number or one of 8: S + L + (o_map(8) + v(8)) against 8 (L + o_map(1) + v(1)).  Attention takes eight
    times its two products.  Two tokens for each core of a line: special functions twice, 3 elements of 8 tokens are 12 words.
    """
    wafer, layer = load_wafer("wse2"), LayerShape(4, 4)
    one, eight = (float(joined_layer_cycles(layer, n, 4, wafer, groups=2).total) for n in (1, 8))
    streams = wafer.tree_root_streams * 3 * (7 + 4 + 1 + 1)
    single = wafer.loop_cycles + wafer.map_element_cycles + 1
    column = wafer.step_cycles + wafer.loop_cycles + wafer.map_element_cycles + wafer.map_vector_cycles + 2
    products = 7 * (min(8 * single, column) - single) + 2 * 7 * single
    special = 3 * wafer.exp_cycles + 2 * wafer.sqrt_cycles + 5 * wafer.divide_cycles
    short = wafer.decode_layer_instructions * 8 / wafer.peak_fma_fp16_per_cycle
    assert eight - one == pytest.approx(streams * wafer.wavelet_cycles + products + special + 12 + short)


def test_tokens_meet_more_experts_than_one_of_them():
    """Of 4 experts each token takes 2 at random: two tokens miss one with (1/2)^2, so they meet 3 with 4/3 tokens each."""
    expert = Product(8, 8, 4.0, 1.0, groups=4, share=2.0)
    more, rows = met(PLAIN, expert, 2)
    assert (more, rows) == (1.5, 2)
    assert met(PLAIN, expert, 1) == (1.0, 1)
    assert met(PLAIN, Product(8, 8, 4.0, 1.0), 7) == (1.0, 7)
    drawn = np.random.default_rng(1).random((4000, 5, 4)).argsort(axis=2)[:, :, :2]
    distinct = np.mean([len(set(of.ravel())) for of in drawn])
    assert met(PLAIN, expert, 5)[0] * 2.0 == pytest.approx(distinct, rel=0.01)


@given(
    st.integers(1, 7).flatmap(
        lambda regions: st.lists(
            st.tuples(st.integers(1, 9), st.lists(st.integers(0, 50), min_size=regions, max_size=regions)),
            min_size=1,
            max_size=5,
        )
    )
)
def test_the_flow_line_is_its_recurrence(turns):
    """c_r = max(c_r of the turn before, c_(r-1)) + t_r, turn after turn."""
    free = [0] * len(turns[0][1])
    for count, times in turns:
        for _ in range(count):
            before = 0
            for region, time in enumerate(times):
                before = free[region] = max(free[region], before) + time
    assert line_s([times for _, times in turns], [count for count, _ in turns]) == free[-1]


@pytest.mark.thinned(4)
@pytest.mark.parametrize("layers", [8, 7])
@pytest.mark.parametrize(("systems", "chunk"), [(1, 3), (1, 7), (2, 16), (2, None), (1, 2048)])
def test_closed_form_and_run_agree(layers, systems, chunk):
    """Equal and unequal regions are compared, with the routes inside a wafer and between two, and a shorter last chunk."""
    answer = run(context=1024, prompt=421, layers=layers, systems=systems, chunk=chunk)
    quick = mode_of(answer.plan).quick_figures(answer.plan)["time_to_first_token_s"]
    assert answer.figures["time_to_first_token_s"] == pytest.approx(quick, rel=1e-11)
    sent, received = (answer.conservation[f"hidden_states_{way}_bytes"] for way in ("sent", "received"))
    assert sent == received
    assert sum(turn.count * turn.tokens for turn in answer.plan.reading.turns) == 421


@pytest.mark.parametrize("layers", [8, 7])
def test_equal_chunks_take_the_slowest_region_and_then_the_way_through_all(layers):
    """(n - 1) max t + sum t is simulated: nine chunks, equal and unequal regions, no route between them."""
    plan = run(layers=layers, prompt=360, chunk=40).plan
    assert isinstance(plan, GenerationPlan)
    reading = Reading(RESTING, 40, (PromptTurn(9, 40, 1000.0, 300.0, 0.0, 0.0),))
    plan = dataclasses.replace(plan, reading=reading)
    played = GenerationRun(plan, Options(steps=1), RunTrace(is_on=False, unit_s=1.0))
    played.execute()
    cycles = [1000.0 * item.layers + 300.0 * item.has_ends for item in plan.regions]
    assert played.first_token_s * plan.wafer.clock_hz == pytest.approx(8 * max(cycles) + sum(cycles))


def test_chunks_beat_one_block_where_regions_wait_for_each_other():
    chunks, block = run(prompt=512), run(prompt=512, chunk=512)
    assert (chunks.plan.reading.way, block.plan.reading.way) == (RESTING, MOVING)
    ratio = block.figures["time_to_first_token_s"] / chunks.figures["time_to_first_token_s"]
    assert ratio > 2
    for same in ("tokens_per_s_per_user", "prefill_tokens_per_s", "max_context"):
        assert chunks.figures[same] == pytest.approx(block.figures[same], rel=1e-11)


def test_one_block_is_the_way_of_the_prompt_through_all_regions():
    """L c_p / f, the ends, and three ways between four regions: P hops, a task, tiles of ceil(p / P) ceil(d / P)."""
    answer, wafer = run(prompt=512, chunk=512), load_wafer("wse2")
    plan = answer.plan
    layers = 8 * prefill_layer_cycles(plan.layer, 512, 360, wafer).total
    way = 360 * wafer.hop_cycles + wafer.task_start_cycles + 2 * 6 * 2 / wafer.link_bytes_per_cycle
    cycles = layers + plan.prompt_end_cycles + 3 * way
    assert answer.figures["time_to_first_token_s"] == pytest.approx(cycles / wafer.clock_hz)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("prompt", [16, 200, 1000])
def test_the_chosen_chunk_is_the_earliest_of_those_that_leave_cache(prompt):
    """Every chunk length is tried; those with half of the cache next to four tokens compete, by the bytes of their
    rows.
    """
    chosen = run(prompt=prompt)
    plan, d, f = chosen.plan, -(-2048 // 360), -(-5632 // 360)
    memory = plan.memory
    room = plan.wafer.sram_usable_bytes - memory.code_bytes - memory.weights_bytes
    rows = 2 * (2 * d + 3 * f)  # the queries are narrower than the network
    asked = [run(prompt=prompt, chunk=n) for n in (1, 2, 3, 4, 5, 8, 12, 16, 24, 32, 48) if n < prompt]
    fair = [a for a in asked if room - rows * a.plan.reading.chunk >= 0.6 * (room - 4 * rows)]
    assert len(fair) > 5
    best = min(a.figures["time_to_first_token_s"] for a in fair)
    assert chosen.figures["time_to_first_token_s"] <= best * (1 + 1e-12)
    assert room - rows * plan.reading.chunk >= 0.4 * (room - 4 * rows)
    note = f"prompt in chunks of {plan.reading.chunk} tokens with resident weights: the earliest first token"
    assert any(text.startswith(note) for text in chosen.notes)


@pytest.mark.slow
def test_rows_of_a_chunk_are_taken_from_the_cache():
    """The longest context with a chunk is the longest that runs with it, and a longer chunk leaves less."""
    longest = [run(context=1024, prompt=360, chunk=n).plan.max_context for n in (40, 80, 160)]
    assert longest[0] > longest[1] > longest[2]
    assert run(context=longest[1], prompt=360, chunk=80).plan.max_context == longest[1]
    with pytest.raises(ModelError, match="chunk 80 needs"):
        generate(context=longest[1] + 1, prompt=360, chunk=80)


def test_a_chunk_that_does_not_fit_says_which_does():
    with pytest.raises(
        ModelError, match=r"chunk 1000 needs [\d,]+ bytes of a core on 360 x 360.*use at most"
    ) as said:
        generate(prompt=1024, chunk=1000)
    most = int(str(said.value).split("use at most ")[1].split(",")[0])
    assert run(prompt=1024, chunk=most).plan.reading.chunk == most
    with pytest.raises(ModelError, match=f"chunk {most + 1} needs"):
        generate(prompt=1024, chunk=most + 1)


@pytest.mark.parametrize(
    ("chunk", "says"), [(0, "chunk 0"), (-3, "chunk -3"), (2.5, "chunk 2.5"), ("x", "chunk 'x'")]
)
def test_a_chunk_is_a_positive_number(chunk, says):
    with pytest.raises(ModelError, match=says):
        generate(chunk=chunk)
