"""Options of a serving run: machine, load, rules and search."""

from __future__ import annotations

from typing import ClassVar, Literal

from wse_sim.errors import WseError
from wse_sim.options import (
    MOST_CORES,
    MOST_COUNT,
    MOST_SEED,
    MOST_SYSTEMS,
    ClockOption,
    ClusterOption,
    Declared,
    Real,
    WaferOption,
    Whole,
    option,
)
from wse_sim.serving.base import MOST_REPLICAS, MOST_TURN_TOKENS, ServingError, is_untimed

DEFAULT_CONTEXT, DEFAULT_PROMPT = 8192, 512
"""Tokens that a replica is made for where no load says how long requests are."""


class ServingOptions(Declared):
    """Options of ``wse-sim serve``; those that vLLM also has keep vLLM's names and meanings."""

    fault: ClassVar[type[WseError]] = ServingError

    wafer: WaferOption = "wse3"
    cluster: ClusterOption = "default"
    clock: ClockOption = "nominal"
    systems: Whole | None = option(
        None, "Wafers of a replica (default: the fewest that fit).", unit="systems", ge=1, le=MOST_SYSTEMS
    )
    replicas: Whole = option(
        1, "Copies of the model, which share the requests.", unit="replicas", ge=1, le=MOST_REPLICAS
    )
    context: Whole | None = option(
        None, "Longest context (default: that of the longest request).", unit="tokens", ge=1, le=MOST_COUNT
    )
    grid: Whole | None = option(
        None, "Rows of a region (default: the fastest region that fits).", unit="cores", ge=1, le=MOST_CORES
    )
    grid_cols: Whole | None = option(
        None, "Columns of a region (default: as many as rows).", unit="cores", ge=1, le=MOST_CORES
    )
    turns: str | None = option(None, "Table of turns instead of a plan: a JSON file, as --emit-turns writes.")
    workload: str | None = option(
        None,
        "Requests of a file: azure:, mooncake:, bailian:, burstgpt:, llmservingsim:, vidur:, lengths:, sharegpt:FILE or "
        "fields:ARRIVAL,INPUT,OUTPUT:FILE (default: drawn).",
    )
    requests: Whole = option(
        1000, "Requests to draw, or the maximum to read.", unit="requests", ge=1, le=10**8
    )
    rate: Real | None = option(
        None, "Drawn requests per second (default: all at once).", unit="requests/s", gt=0, le=10**9
    )
    scale_rate: Real = option(1.0, "Speed-up of the arrivals of a file.", gt=0, le=10**6)
    arrivals: str = option(
        "poisson", "poisson, gamma:B, constant, ramp:A:B, or users:N[:SECONDS], who think between requests."
    )
    input: str = option(
        "lognormal:512:512",
        "Tokens of a drawn prompt: N, uniform:A:B, normal:M:S, lognormal:M:S or zipf:A:MAX.",
    )
    output: str = option("lognormal:200:200", "Tokens of a drawn answer, as --input.")
    seed: Whole = option(0, "Seed of random draws.", ge=0, le=MOST_SEED)
    max_num_seqs: Whole = option(256, "Maximum number of running requests.", unit="requests", ge=1, le=10**6)
    max_num_batched_tokens: Whole | None = option(
        None,
        "Maximum number of tokens per turn (default: the chunk with the earliest first token).",
        unit="tokens", ge=1, le=MOST_TURN_TOKENS,
    )  # fmt: skip
    joined: Whole = option(
        1, "Maximum number of decodes per turn.", unit="requests", ge=1, le=MOST_TURN_TOKENS
    )
    block_size: Whole = option(16, "Tokens per cache block.", unit="tokens", ge=1, le=10**6)
    kv_blocks: Whole | None = option(
        None, "Blocks of a replica's cache (default: as many as fit).", unit="blocks", ge=1, le=10**9
    )
    admission: Literal["length", "reserve"] = option(
        "length",
        "length (blocks for the current length) or reserve (for the whole answer: no request is preempted).",
    )
    prefix_caching: bool = option(
        False, "Share cache blocks between prompts with equal beginnings, where the file states them."
    )
    policy: Literal["fcfs", "priority"] = option(
        "fcfs", "fcfs, or priority (the smaller first) where the file states it, then arrival."
    )
    preemption: Literal["recompute", "swap"] = option(
        "recompute",
        "What happens to a preempted request: its cache is recomputed, or swapped out through the edge.",
    )
    router: Literal["round-robin", "least-loaded", "least-outstanding", "prefix-aware"] = option(
        "round-robin", "Which replica takes a request."
    )
    speculate: str | None = option(
        None,
        "Drafts: draft:MODEL:K:A, mtp:K:A or prompt:K:A; K drafts accepted with probability A (or A1,A2,..).",
    )
    prefill: str | None = option(
        None, "Prompts are read elsewhere: foreign:TOKENS_PER_S, foreign:FILE, or wafers:N for each replica."
    )
    handover: Literal["stream", "after"] = option(
        "stream", "When caches that are read elsewhere move: layer by layer, or at the end."
    )
    weights_bits: Literal["16", "8", "4"] = option("16", "Bits of a resident weight of a layer.")
    experts: str = option("uniform", "Experts that tokens take: uniform, identical or table:FILE of loads.")
    expert_layout: Literal["spread", "apart"] = option(
        "spread", "Where experts are: spread (each on all cores) or apart (each on its own cores)."
    )
    engine: Literal["fast", "reference"] = option(
        "fast", "fast (machine code) or reference (SimPy); equal bit for bit."
    )
    goodput: str | None = option(
        None, 'Goals in ms, such as "ttft:200 tpot:5": the requests that meet them make the goodput.'
    )
    search: Literal["none", "rate", "wafers"] = option(
        "none", "With goals: search for the highest rate that meets them, or the fewest wafers for the load."
    )
    dollars_per_wafer_hour: Real | None = option(
        None, "Price of a wafer-hour, for the price of a million tokens.", unit="dollars", gt=0, le=10**9
    )
    attain: Real = option(0.99, "Fraction of the requests that must meet the goals.", gt=0, le=1)
    max_wafers: Whole = option(
        64, "Maximum number of wafers in a search.", unit="systems", ge=1, le=MOST_SYSTEMS
    )

    @property
    def draws_arrivals(self) -> bool:
        """Whether arrivals are drawn from a distribution instead of read from a file."""
        return self.workload is None or is_untimed(self.workload)
