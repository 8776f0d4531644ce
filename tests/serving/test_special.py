"""Drafts, prompts read elsewhere, routers, packed weights and loads of experts, against closed forms and published
laws.
"""

from __future__ import annotations

import collections
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from tests.serving.made import open_of, table_of_ticks
from wse_sim import api
from wse_sim.compiler.plan import Infeasible
from wse_sim.csl.compiler import compile_program
from wse_sim.errors import ConfigError, ModelError
from wse_sim.fabric.vm.session import Session
from wse_sim.hardware import load_wafer
from wse_sim.kernels.blocks.mesh import joined_gemv, tree_allreduce
from wse_sim.modes.generation.decoder import LayerWork, Product
from wse_sim.modes.generation.expert_cores import apart_cycles, fullest_mean
from wse_sim.modes.generation.joined_layer import joined_layer_cycles, met
from wse_sim.modes.generation.plan import GenerationPlan
from wse_sim.modes.generation.quantized_weights import (
    GROUP,
    SOURCES,
    group_cycles,
    loaded,
    packed,
    probabilities,
    read_loads,
)
from wse_sim.serving.base import (
    EdgeLink,
    PrefillElsewhere,
    ServingError,
    ServingRules,
    Speculation,
    open_load,
)
from wse_sim.serving.bounds import bounds_of
from wse_sim.serving.fast_blocks import mixed as mixed_fast
from wse_sim.serving.fast_engine import serve_fast
from wse_sim.serving.line import serve_reference
from wse_sim.serving.special import edge_of, read_drafting, read_prefill, speculation_keys, speculation_of
from wse_sim.serving.speculation import (
    acceptance_to_pay,
    bounds_of_speculation,
    expected_tokens,
    mixed,
)
from wse_sim.serving.traces import load_of

TABLE = table_of_ticks([[100, 110, 120, 130, 140, 150, 160, 170]] * 4)


# Speculation


def test_tokens_of_a_cycle_are_those_of_leviathan() -> None:
    """Leviathan, Kalman, Matias 2023, equation 1: with equal acceptance a, E = (1 - a^(K + 1)) / (1 - a)."""
    for a, drafts in ((0.6, 2), (0.8, 5), (0.9, 10)):
        assert expected_tokens((a,) * drafts) == pytest.approx((1 - a ** (drafts + 1)) / (1 - a))
        assert acceptance_to_pay(expected_tokens((a,) * drafts), drafts) == pytest.approx(a)
    assert acceptance_to_pay(4.0, 2) > 1  # three drafts and more are never enough


def test_drafts_are_accepted_as_often_as_asked_and_make_answers_as_fast_as_the_closed_form() -> None:
    """For a lone answer of 20,000 tokens, the draws are within 5 standard errors, the rate within 1 % of E / (lam(K +
    1) + D).
    """
    spec = Speculation((0.8, 0.5, 0.3), 50, 300, 20, 3)
    rules = ServingRules(blocks=2000, turn_tokens=8, speculation=spec)
    served = serve_fast(open_of((0, 4, 20_000)), rules, TABLE)
    counters = served.counters
    law, cycles = np.cumprod(spec.acceptance), counters["drafts"]
    errors = np.sqrt(law * (1 - law) / cycles)
    assert (np.abs(served.accepted_at / cycles - law) < 5 * errors).all()
    rate = counters["emitted"] / float(served.last_ticks[0] - served.first_ticks[0]) / 1e-10
    wanted = bounds_of_speculation(spec, TABLE, context=1000)
    assert rate == pytest.approx(wanted.user_tokens_per_s, rel=0.01)
    assert rate <= 1.01 * bounds_of(open_of((0, 4, 20_000)), rules, TABLE).user_tokens_per_s
    keys = speculation_keys(served, rules)
    assert keys["spec_decode_acceptance_length"] == pytest.approx(1 + law.sum(), rel=0.02)


def test_drafts_that_are_never_accepted_cost_what_their_turns_cost_and_sure_ones_save_them() -> None:
    """For an answer of 9 tokens with 2 + 2 drafts, certain ones need ceil(8 / 3) turns after the first token,
    impossible ones 8.
    """
    for a, turns in ((1.0, 3), (0.0, 8)):
        spec = Speculation((a, a))
        served = serve_fast(
            open_of((0, 1, 9)), ServingRules(blocks=9, turn_tokens=8, speculation=spec), TABLE
        )
        assert served.counters["turns"] == 1 + turns
        assert served.counters["emitted"] == 9


def test_a_number_is_mixed_alike_by_both_engines() -> None:
    """The value equals the published finalizer of MurmurHash3: fmix64(1) = 0xb456bcfc34c2cb2c."""
    assert mixed(1) == 0xB456BCFC34C2CB2C
    for number in (0, 1, 2**63 - 1, -5, 0x123456789ABCDEF):
        own = getattr(mixed_fast, "py_func", mixed_fast)
        with np.errstate(over="ignore"):
            assert int(own(np.int64(number))) & (2**64 - 1) == mixed(number)


@pytest.mark.parametrize(
    "text", ["", "draft:3:0.5", "mtp:0:0.5", "mtp:2:1.5", "mtp:2:0.1,0.2,0.3", "prompt:2:", "mtp:x:0.5", "guess:2:0.5", "mtp:2:nan"]
)  # fmt: skip
def test_drafts_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ServingError, match="; give"):
        read_drafting(text)


# Prompts that are read elsewhere


def test_a_handed_over_cache_takes_its_prompt_and_its_way() -> None:
    """10 tokens take 7 ticks each on the machine and 3 each on the link, plus a hop of 5.

    After: 70 + 30 + 5.  Layer by layer: the link is done before the machine, and the last of 5 layers (2 tokens' worth) follows: 70 + 6 + 5.
    A second prompt waits for the machine: 140 + 6 + 5.
    """
    times = 7 * np.arange(50)
    for streams, first, second in ((False, 105, 175), (True, 81, 151)):
        prefill = PrefillElsewhere(times, 1, streams, 5)
        rules = ServingRules(blocks=50, turn_tokens=4, edge=EdgeLink(3 * 1024, 5), prefill=prefill)
        for serve in (serve_reference, serve_fast):
            served = serve(open_of((0, 10, 1), (0, 10, 1)), rules, TABLE)
            assert served.first_ticks.tolist() == [first, second]
            assert served.counters["computed"] == 0


def test_a_line_of_wafers_reads_a_prompt_as_a_lone_replica_does() -> None:
    """The first token of a lone prompt is that of the replica itself, plus the transfer of the cache."""
    alone = serve_fast(open_of((0, 30, 1)), ServingRules(blocks=50, turn_tokens=7), TABLE).first_ticks[0]
    prefill = PrefillElsewhere(None, 2, streams=False)
    rules = ServingRules(blocks=50, turn_tokens=7, edge=EdgeLink(1024, 9), prefill=prefill)
    served = serve_fast(open_of((0, 30, 1), (0, 30, 1), (0, 30, 1)), rules, TABLE)
    assert served.first_ticks.tolist()[:2] == [alone + 30 + 9, alone + 60 + 9]  # two lines, one link
    assert served.first_ticks[2] > alone + 60 + 9


def test_prefill_machines_wait_as_queueing_theory_says() -> None:
    """M/D/1: one machine has Poisson arrivals at 0.8 of its rate and negligible decodes: the mean wait is rho / (2 (1 -
    rho)) services.
    """
    rng, count, service, rho = np.random.default_rng(5), 200_000, 1000, 0.8
    arrivals = np.cumsum(rng.exponential(service / rho, count)).round().astype(np.int64)
    ones = np.ones(count, np.int64)
    prefill = PrefillElsewhere(np.array([0, service]), 1, streams=False)
    rules = ServingRules(blocks=10**6, most_running=10**5, turn_tokens=1, edge=EdgeLink(0), prefill=prefill)
    served = serve_fast(open_load(arrivals, ones, ones), rules, TABLE)
    waits = served.first_ticks - arrivals - service
    parts = waits.reshape(100, -1).mean(axis=1)
    assert abs(waits.mean() - rho / (2 * (1 - rho)) * service) < 5 * parts.std() / 10


@pytest.mark.parametrize("text", ["foreign:0", "foreign:nan", "foreign:", "wafers:0", "wafers:x", "near:3"])
def test_prefill_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ServingError, match="; give"):
        read_prefill(text, 10)


def test_measured_prompts_are_linear_between_their_rows(tmp_path: Path) -> None:
    file = tmp_path / "prompts.json"
    file.write_text("[[10, 1e-3], [20, 3e-3]]")
    found = read_prefill(f"foreign:{file}", 40).ticks
    assert found is not None
    assert (found[[0, 10, 15, 30]] * 1e-10).tolist() == pytest.approx([0.0, 1e-3, 2e-3, 5e-3])
    file.write_text("[[10, 1e-3], [5, 3e-3]]")
    with pytest.raises(ConfigError, match="increasing"):
        read_prefill(f"foreign:{file}", 40)


# Replicas


def test_less_loaded_replicas_wait_less_than_those_that_take_turns() -> None:
    """Join the shortest queue waits less than round robin does, for requests of unlike lengths."""
    rng, count = np.random.default_rng(2), 3000
    load = open_load(
        np.cumsum(rng.exponential(220, count)).astype(np.int64),
        rng.choice([1, 60], count), np.ones(count, np.int64),
    )  # fmt: skip
    rules = ServingRules(blocks=10**4, turn_tokens=8)
    turns, looked = (
        float((serve_fast(load, rules, TABLE, 4, router).first_ticks - load.arrival_ticks).mean())
        for router in ("round-robin", "least-loaded")
    )
    assert looked < 0.9 * turns


def test_a_router_that_knows_prompts_finds_more_of_them() -> None:
    rng, count = np.random.default_rng(2), 400
    begun = rng.integers(0, 9, (8, 32))
    content = [begun[rng.integers(8)] for _ in range(count)]
    load = open_load(np.arange(count) * 300, np.full(count, 32), np.full(count, 3))
    load = dataclasses.replace(load, content=content)
    rules = ServingRules(blocks=14, block_tokens=4, turn_tokens=8, prefix_cache=True)
    by_turns, by_prefix = (
        serve_fast(load, rules, TABLE, 4, router).counters["cached"]
        for router in ("round-robin", "prefix-aware")
    )
    assert by_prefix > 1.5 * by_turns


def test_the_first_by_priority_is_the_first_served() -> None:
    load = dataclasses.replace(
        open_of((0, 20, 1), (1, 20, 1), (1, 20, 1)), priority=np.array([0, 5, 1], np.int64)
    )
    rules = ServingRules(blocks=50, most_running=1, turn_tokens=4, by_priority=True)
    assert np.argsort(serve_fast(load, rules, TABLE).first_ticks).tolist() == [0, 2, 1]


def test_priorities_are_read_from_lines_of_json(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(
        '{"timestamp": 0, "input_length": 9, "output_length": 4}\n'
        '{"timestamp": 1, "input_length": 9, "output_length": 4, "priority": 3}\n'
    )
    found = load_of(f"mooncake:{file}").priority
    assert found is not None
    assert found.tolist() == [0, 3]


# Weights of 8 and 4 bits, experts


@pytest.mark.parametrize("bits", [8, 4])
def test_the_program_unpacks_what_numpy_unpacks(bits: int) -> None:
    """Values of the program are compared with numpy; its cycles are the price of a group."""
    wafer, lanes = load_wafer("wse3"), 16 // bits
    program = compile_program(
        SOURCES / "layout.csl", arch="wse2", params={"elements": GROUP, "bits": bits}, memcpy=True
    )
    session = Session(program.image, wafer)
    for call in ("fill", "unpack"):
        session.advance("cycle", cycles=1000)
        session.launch(0, 0, 1, 1, call, [])
        session.advance("commands")
    image = program.image
    core = next(k for k in image.core_class if k >= 0)
    places = {s.name: s.address for s in image.classes[core].symbols}
    x, y = divmod(int(np.flatnonzero(np.asarray(image.core_class) >= 0)[0]), image.cols)[::-1]
    places = {
        name: int(session.peek(x, y, at, 1)[0]) for name, at in places.items() if name in ("words", "weights")
    }
    words = session.peek(x, y, places["words"], GROUP // lanes).astype(np.uint16)
    assert words.tolist() == [(i * 40503 + 12345) % 2**16 for i in range(GROUP // lanes)]
    numbers = np.concatenate([words >> (bits * lane) & (2**bits - 1) for lane in range(lanes)])
    wanted = (numbers.astype(np.float16) - np.float16(2 ** (bits - 1))) * np.float16(0.25)
    found = session.peek(x, y, places["weights"], GROUP).astype(np.uint16).view(np.float16)
    np.testing.assert_array_equal(found, wanted)
    assert group_cycles(bits, wafer) > GROUP / wafer.peak_fma_fp16_per_cycle


def test_unpacking_is_paid_once_for_all_tokens_of_a_turn() -> None:
    wafer = load_wafer("wse3")
    work = LayerWork(1024, 1024, 1024, (Product(1024, 4096, 2.0, 1.0),), 0.0, 0.0, 2 * 1024 * 4096)
    tile = 16 * 64  # of 64 x 64 cores
    for tokens in (1, 8):
        more = joined_layer_cycles(packed(work, 4, wafer), tokens, 64, wafer).total
        plain = joined_layer_cycles(work, tokens, 64, wafer).total
        assert float(more - plain) == pytest.approx(2 * tile / GROUP * group_cycles(4, wafer))


@pytest.mark.slow
def test_fewer_bits_leave_more_cache_and_need_fewer_wafers() -> None:
    def planned(bits: str, systems: int = 1) -> GenerationPlan | Infeasible:
        options = api.RunOptions(
            mode="generation", phase="inference", batch=1, seq=2048, wafer="wse3", systems=systems,
            mode_options={"prompt": 200, "grid": 300, "weights_bits": bits},
        )  # fmt: skip
        found = api.plan_of(api.read("llama3-8b", options), options)
        assert isinstance(found, GenerationPlan | Infeasible)
        return found

    full, half = planned("16"), planned("8")
    assert isinstance(full, GenerationPlan)
    assert isinstance(half, GenerationPlan)
    assert (
        half.memory.weights_bytes < full.memory.weights_bytes
    )  # of the fullest core: that of the ends, in fp16
    assert half.max_context > 1.5 * full.max_context
    assert half.decode_cycles > full.decode_cycles


def test_experts_that_tokens_meet() -> None:
    """Equal loads as a table are the uniform case; identical tokens use as many experts as one token; skewed ones use
    fewer than uniform.
    """
    product = Product(64, 64, 2.0, 1.0, groups=8, share=2.0)
    plain = LayerWork(64, 64, 64, (product,), 0.0, 0.0, 0)
    alike = dataclasses.replace(plain, expert_loads=probabilities((1.0,) * 8, 2.0))
    skewed = dataclasses.replace(
        plain, expert_loads=probabilities((50.0, 9.0, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0), 2.0)
    )
    same = dataclasses.replace(plain, is_identical=True)
    for tokens in (1, 5, 30):
        of = [float(met(work, product, tokens)[0]) for work in (plain, alike, skewed, same)]
        assert of[0] == pytest.approx(of[1])
        assert of[3] == 1.0
        assert of[3] <= of[2] <= of[0] + 1e-9
    assert float(met(plain, product, 1000)[0]) == pytest.approx(4.0)
    # Tokens drawn one by one: 5 tokens of 2 of 8 experts meet 8 (1 - 0.75^5) different ones.
    rng = np.random.default_rng(1)
    drawn = np.mean(
        [len(set(np.concatenate([rng.choice(8, 2, False) for _ in range(5)]))) for _ in range(4000)]
    )
    assert 2 * float(met(plain, product, 5)[0]) == pytest.approx(drawn, rel=0.01)


@pytest.mark.parametrize("loads", [(1.0,) * 8, (50.0, 9.0, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0)])
def test_the_fullest_expert_is_waited_for(loads: tuple[float, ...]) -> None:
    """Tokens draw two different ones of eight experts; a lone token fills one expert, identical ones all of theirs.

    The counts of experts are not quite independent, which the closed form takes them to be: 6 %.
    """
    rng = np.random.default_rng(2)
    race = rng.exponential(1 / np.array(loads), (3000, 6, 8)).argsort(axis=2)[:, :, :2]
    counts = (race[..., None] == np.arange(8)).sum(axis=(1, 2))
    chances = (counts.mean(axis=0) / 6).tolist()
    picked = tuple(sorted(collections.Counter(chances).items()))
    assert fullest_mean(6, picked, False) == pytest.approx(counts.max(axis=1).mean(), rel=0.06)
    assert fullest_mean(1, picked, False) == 1.0
    assert fullest_mean(6, picked, True) == 6.0
    assert fullest_mean(3000, ((0.25, 8),), False) == pytest.approx(3000 / 4, rel=0.1)


def test_experts_on_cores_of_their_own_on_paper() -> None:
    """Four experts, two per token, are on 8 x 8 cores: squares of 4 x 4, with tiles of 16 x 8 for a matrix of 64 x 32.

    One token: two products of a kind (gate and up) work at once for both experts, so each is paid once; its vector of 8 features a
    line goes to two experts: 8 words.  A core holds the tile of one expert, four times as large as that of one of four.
    """
    wafer = load_wafer("wse3")
    wide, back = Product(64, 32, 4.0, 1.0, 4, 2.0), Product(32, 64, 2.0, 1.0, 4, 2.0)
    work = LayerWork(64, 64, 64, (wide, back), 0.0, 0.0, 0, is_apart=True)
    assert work.expert_sides(8) == (4, 4)
    assert work.weights_of_core(8) == 2 * 16 * 8 + 8 * 16
    way = 8 * wafer.wavelet_cycles + wafer.vector_start_cycles + 8 * wafer.hop_cycles + wafer.handover_cycles
    one = joined_gemv(16, 8, 1, wafer) + tree_allreduce(8, 4, 2, wafer, vertical=True)
    assert apart_cycles(work, wide, 1, 8, wafer).total == pytest.approx(2 * float(one.total) + way)
    two = joined_gemv(8, 16, 1, wafer) + tree_allreduce(16, 4, 2, wafer)
    added = 16 / wafer.peak_fma_fp16_per_cycle
    assert apart_cycles(work, back, 1, 8, wafer).total == pytest.approx(float(two.total) + way + added)
    with pytest.raises(ModelError, match="experts apart need a model with experts"):
        loaded(LayerWork(8, 8, 8, (Product(8, 8, 1.0, 1.0),), 0.0, 0.0, 0), "uniform", "apart")


def test_loads_that_are_none_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "loads.json"
    for data in ([1.0] * 3, [1.0, 2.0, 3.0, -1.0], [1.0, 2.0, 3.0, "x"], {"a": 1}):
        file.write_text(json.dumps(data))
        with pytest.raises(ModelError, match="; give"):
            read_loads(str(file), 4)


def test_a_plan_prices_edges_and_drafts() -> None:
    """GPT-2 small on one wafer sends 12 layers of 2 x 768 numbers of 2 bytes over its edge; mtp drafts with a layer and
    the head.
    """
    options = api.RunOptions(
        mode="generation", phase="inference", batch=1, seq=1024, wafer="wse3", mode_options={"prompt": 200}
    )
    plan = api.plan_of(api.read("gpt2-small", options), options)
    assert isinstance(plan, GenerationPlan)
    edge = edge_of(plan)
    assert edge.ticks_of(1024) == pytest.approx(
        1024 * 12 * 2 * 768 * 2 / plan.wafer.io_bytes_per_s / 1e-10, rel=1e-3
    )
    one, two = (speculation_of(read_drafting(f"mtp:{k}:0.5"), plan, None).tail_ticks for k in (1, 2))
    assert two == pytest.approx(2 * one, abs=1)
    drafts = speculation_of(read_drafting("draft:gpt2-small:2:0.5"), plan, plan)
    assert drafts.delay_ticks >= 2 * plan.latency_s / 1e-10 > drafts.busy_ticks > 0
