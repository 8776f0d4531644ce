"""Engines of other hardware: steps on paper, and real runs of vLLM where their files are available."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from wse_sim.errors import ConfigError
from wse_sim.serving.base import TICK_S, ServingRules, open_load
from wse_sim.serving.line import serve_reference
from wse_sim.serving.metrics import request_times
from wse_sim.serving.profiles import AllReduce, EngineProfile, ExpertRanks
from wse_sim.serving.traces import load_of


def write(folder: Path, **tables: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in tables.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


DENSE = "layer,tokens,time_us\n" + "".join(
    f"{name},{n},{(5 + n) * k}\n"
    for k, name in enumerate(("embedding", "layernorm", "o_proj"), 1)
    for n in (1, 9)
)
SEQUENCE = "layer,sequences,time_us\nlm_head,1,100\nlm_head,3,140\n"
ATTENTION = "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n" + "".join(
    f"{chunk},{before},{decodes},{context},{chunk + before / 10 + decodes * context / 100}\n"
    for chunk in (0, 4) for before in ((0,) if not chunk else (0, 100))
    for decodes in (0, 1, 3) for context in ((0,) if not decodes else (100, 300))
    if chunk or decodes
)  # fmt: skip


def test_a_step_on_paper(tmp_path: Path) -> None:
    """Two layers process a chunk of 4 tokens after 50, and decodes at 200 and 400: 6 tokens, two of which are answers.

    embedding 11; a layer: layernorm 2 x 22, o_proj 33, attention 4 + 5 + 2 x 300 / 100 = 15, so 92; head of two 120:
    11 + 2 x 92 + 120 = 315 us.  With all-reduces of 2 (10 us + 6 x 8 x 2 / 2 / 16 bytes/us) = 26 us, four more of them.
    """
    folder = write(tmp_path, dense=DENSE, per_sequence=SEQUENCE, attention=ATTENTION)
    step = [(4, 54, False), (1, 200, True), (1, 400, True)]
    assert EngineProfile(folder, 2).ticks_of(step) * TICK_S * 1e6 == pytest.approx([315.0])
    linked = EngineProfile(folder, 2, all_reduce=AllReduce(hidden=8, latency_s=10e-6, link_bytes_per_s=16e6))
    assert linked.ticks_of(step) * TICK_S * 1e6 == pytest.approx([315.0 + 4 * 26])


def test_uneven_contexts_weigh_the_longest(tmp_path: Path) -> None:
    """alpha is 0.5 in the bucket of the step and 0.25 elsewhere: contexts of 100 and 300 take 2 x (200 + alpha 100) /
    100.
    """
    folder = write(
        tmp_path / "tp1", dense="layer,tokens,time_us\n", per_sequence="layer,sequences,time_us\n", attention=ATTENTION,
        skew_fit="pc,n_label,skew_rate_label,kv_big_label,kp_label,alpha,n_samples\n0,n<=2,sr<=70%,kvB<=1k,kp=0,0.5,4\n",
    )  # fmt: skip
    (tmp_path / "meta.yaml").write_text("skew_fit: {enabled: true, per_tp: {1: {alpha_default: 0.25}}}\n")
    decodes = [(1, 100, True), (1, 300, True)]
    assert EngineProfile(folder, 1).ticks_of(decodes) * TICK_S * 1e6 == pytest.approx([5.0])
    three = [*decodes, (1, 300, True)]  # beyond the bucket of two
    assert EngineProfile(folder, 1).ticks_of(three) * TICK_S * 1e6 == pytest.approx(
        [3 * (233 + 0.25 * 67) / 100]
    )
    (tmp_path / "meta.yaml").write_text("skew_fit: {enabled: false}\n")
    assert EngineProfile(folder, 1).ticks_of(decodes) * TICK_S * 1e6 == pytest.approx([4.0])


@pytest.mark.parametrize("name", ["dense", "per_sequence", "attention"])
def test_tables_that_are_none_are_refused(tmp_path: Path, name: str) -> None:
    tables = {"dense": DENSE, "per_sequence": SEQUENCE, "attention": ATTENTION}
    folder = write(tmp_path, **{**tables, name: tables[name].replace("9", "x").replace("140", "y")})
    with pytest.raises(ConfigError, match="is it the right file"):
        EngineProfile(folder, 2) if name != "attention" else EngineProfile(
            write(tmp_path, attention="prefill_chunk\n1\n"), 2
        )
    (folder / f"{name}.csv").unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        EngineProfile(folder, 2)


def test_a_step_of_experts_on_paper(tmp_path: Path) -> None:
    """Two ranks of four experts, two per token: 3 tokens of each use 2 (1 - (1/2)^6) = 1.96875 of a rank's two.

    embedding 8, a layer: 2 x 16 of layernorm, 24 of o_proj, attention 3; experts between 10 + 3 for one and 20 + 3 for two:
    22.6875; exchange 2 x 5 us and 3 x (2 x 8 + 4) x 2 bytes over 10 bytes/us = 12; head of three 140.
    """
    moe = "tokens,activated_experts,time_us\n" + "".join(
        f"{n},{experts},{10 * experts + n}\n" for n in (1, 5) for experts in (1, 2)
    )
    folder = write(tmp_path, dense=DENSE, per_sequence=SEQUENCE, attention=ATTENTION, moe=moe)
    ranks = ExpertRanks(experts=4, per_token=2, ranks=2, hidden=8, latency_s=5e-6, link_bytes_per_s=10e6)
    step = [(1, 100, True)] * 3
    found = EngineProfile(folder, 2, experts=ranks).ticks_of(step) * TICK_S * 1e6
    assert found == pytest.approx([8 + 2 * (32 + 24 + 3 + 22.6875 + 22) + 140])


# The link that LLMServingSim assumes between two devices; its network counts a GB as 2^30 bytes.
LINK = {"latency_s": 20e-6, "link_bytes_per_s": 16.0 * 2**30}


class Run(NamedTuple):
    """A run of vLLM, the tables of its hardware, and the tolerance of its mean times."""

    folder: str
    profile: str
    workload: str
    layers: int
    blocks: int | None  # where the run's file has none: what LLMServingSim found
    most_tpot: float
    most_e2el: float
    all_reduce: AllReduce | None = None
    experts: ExpertRanks | None = None


RUNS = [
    Run("RTX4090/Llama-3.1-8B", "RTX4090/meta-llama/Llama-3.1-8B/bf16/tp1", "llama-3.1-8b", 32, None, 0.017, 0.022),
    Run("RTXPRO6000/Llama-3.1-8B", "RTXPRO6000/meta-llama/Llama-3.1-8B/bf16/tp1", "llama-3.1-8b", 32, 36578, 0.017, 0.022),
    Run("RTXPRO6000/Qwen3-32B", "RTXPRO6000/Qwen/Qwen3-32B/bf16/tp2", "qwen3-32b", 64, 28614, 0.03, 0.03,
        all_reduce=AllReduce(5120, **LINK)),
    # Its two ranks step together, which ours do not: reported, not asked for.
    Run("RTXPRO6000/Qwen3-30B-A3B-Instruct-2507", "RTXPRO6000/Qwen/Qwen3-30B-A3B-Instruct-2507/bf16/tp1",
        "qwen3-30b-a3b", 48, 38590, 0.08, 0.09, experts=ExpertRanks(128, 8, 2, 2048, **LINK)),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("WSE_SIM_LLMSERVINGSIM"), reason="needs a checkout of LLMServingSim")
@pytest.mark.parametrize("run", RUNS, ids=[run.folder for run in RUNS])
def test_runs_of_vllm_are_met(run: Run) -> None:
    """The requests are those that were queued, with their words, on vLLM's number of blocks: mean times of all
    requests.
    """
    root = Path(os.environ["WSE_SIM_LLMSERVINGSIM"])
    folder = root / "bench" / "examples" / run.folder / "vllm"
    about = json.loads((folder / "meta.json").read_text())
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    asked = load_of(f"llmservingsim:{root}/workloads/sharegpt-{run.workload}-300-sps10.jsonl")
    rows.sort(key=lambda row: int(row["request_id"].removeprefix("bench-")))
    assert asked.content is not None
    assert asked.input_tokens.tolist() == [row["input_toks"] for row in rows]
    queued, first, last, answer = (
        np.array([row[name] for row in rows])
        for name in ("queued_ts", "first_token_ts", "last_token_ts", "output_toks")
    )
    order = np.argsort(queued, kind="stable")
    engine = about["engine_kwargs"]
    rules = ServingRules(
        (about.get("kv_cache") or {}).get("num_gpu_blocks") or run.blocks, 16, engine["max_num_seqs"],
        engine["max_num_batched_tokens"], engine["max_num_seqs"], prefix_cache=True,
    )  # fmt: skip
    arrival = np.rint((queued[order] - queued.min()) / TICK_S).astype(np.int64)
    load = dataclasses.replace(
        open_load(arrival, asked.input_tokens[order], answer[order]),
        content=tuple(asked.content[number] for number in order.tolist()),
    )
    tables = root / "profiler" / "perf" / run.profile
    times = EngineProfile(tables, run.layers, all_reduce=run.all_reduce, experts=run.experts)
    replicas = run.experts.ranks if run.experts else 1
    found = request_times(load, serve_reference(load, rules, times, replicas))
    off = {
        "ttft": found["ttft"].mean() / (1e3 * (first - queued).mean()) - 1,
        "tpot": np.nanmean(found["tpot"]) / (1e3 * ((last - first) / (answer - 1)).mean()) - 1,
        "e2el": found["e2el"].mean() / (1e3 * (last - queued).mean()) - 1,
    }
    assert abs(off["tpot"]) < run.most_tpot, off
    assert abs(off["e2el"]) < run.most_e2el, off
