"""Metrics under vLLM's current names, and older names that dashboards still use; all times are simulated seconds."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from wse_sim.serving.base import TICK_S
from wse_sim.serving.live import LiveReplicas, LiveTimes, TokensBack

# vLLM's own edges begin at 1 ms and more; tokens of a wafer come faster.
FAST = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 3e-4, 5e-4, 7.5e-4)
SECONDS = (
    *FAST, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
TURN_TOKENS = (1, 2, 4, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024, 2048, 4096)
LABELS = ("model_name", "engine")


class ServiceMetrics:
    """Gauges, counters and histograms in their own registry."""

    def __init__(self, model: str, block_tokens: int, blocks: int) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"model_name": model, "engine": "0"}
        self.running = self._gauge("vllm:num_requests_running", "Requests that run.")
        self.waiting = self._gauge("vllm:num_requests_waiting", "Requests that wait.")
        self.usage = [
            self._gauge(f"vllm:{name}", "Fraction of the cache's blocks in use (1: all).")
            for name in ("kv_cache_usage_perc", "gpu_cache_usage_perc")
        ]
        self.queries, self.hits = (
            [self._counter(f"vllm:{before}prefix_cache_{name}", text) for before in ("", "gpu_")]
            for name, text in (
                ("queries", "Prompt tokens that were looked up in the cache."),
                ("hits", "Prompt tokens that were found in the cache."),
            )
        )
        self.preemptions = self._counter("vllm:num_preemptions", "Preemptions.")
        self.prompts = self._counter("vllm:prompt_tokens", "Tokens of prompts that were read.")
        self.answers = self._counter("vllm:generation_tokens", "Tokens of answers.")
        self._success = Counter(
            "vllm:request_success",
            "Requests that ended.",
            (*LABELS, "finished_reason"),
            registry=self.registry,
        )
        for reason in ("stop", "length", "abort"):
            self._success.labels(**self._labels, finished_reason=reason)
        self.first = self._histogram("vllm:time_to_first_token_seconds", "Time to the first token.", SECONDS)
        self.gap = [
            self._histogram(f"vllm:{name}", "Time between two tokens.", SECONDS)
            for name in ("inter_token_latency_seconds", "time_per_output_token_seconds")
        ]
        self.each = self._histogram(
            "vllm:request_time_per_output_token_seconds", "Mean time per token of a request.", SECONDS
        )
        self.whole = self._histogram("vllm:e2e_request_latency_seconds", "Time of a whole answer.", SECONDS)
        self.queue = self._histogram("vllm:request_queue_time_seconds", "Time until admission.", SECONDS)
        self.prefill = self._histogram(
            "vllm:request_prefill_time_seconds", "Time from admission to the first token.", SECONDS
        )
        self.decode = self._histogram(
            "vllm:request_decode_time_seconds", "Time from the first token to the last.", SECONDS
        )
        self.inference = self._histogram(
            "vllm:request_inference_time_seconds", "Time from admission to the last token.", SECONDS
        )
        self.asked = self._histogram("vllm:request_prompt_tokens", "Tokens of a prompt.", TOKENS)
        self.given = self._histogram("vllm:request_generation_tokens", "Tokens of an answer.", TOKENS)
        self.most = [
            self._histogram(f"vllm:{name}", "Tokens that were requested.", TOKENS)
            for name in ("request_params_max_tokens", "request_max_num_generation_tokens")
        ]
        self.turns = self._histogram("vllm:iteration_tokens_total", "Tokens of a turn.", TURN_TOKENS)
        info = Gauge(
            "vllm:cache_config_info",
            "The cache.",
            ("engine", "block_size", "num_gpu_blocks"),
            registry=self.registry,
        )
        info.labels(engine="0", block_size=str(block_tokens), num_gpu_blocks=str(blocks)).set(1)
        self._before: dict[int, int] = {}
        self.counted = {
            "preemptions": [self.preemptions],
            "cached": self.hits,
            "drafts": [self._counter("vllm:spec_decode_num_drafts", "Turns that verified drafts.")],
            "drafted": [self._counter("vllm:spec_decode_num_draft_tokens", "Tokens that were drafted.")],
            "accepted": [
                self._counter("vllm:spec_decode_num_accepted_tokens", "Drafted tokens that were accepted.")
            ],
        }
        self._seen = dict.fromkeys(self.counted, 0)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, LABELS, registry=self.registry).labels(**self._labels)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, LABELS, registry=self.registry).labels(**self._labels)

    def _histogram(self, name: str, text: str, edges: Sequence[float]) -> Histogram:
        return Histogram(name, text, LABELS, registry=self.registry, buckets=edges).labels(**self._labels)

    def came(self, input_tokens: int) -> None:
        """Count the tokens of a prompt that came: each may be found in the cache."""
        for queries in self.queries:
            queries.inc(input_tokens)

    def token(self, times: LiveTimes, token: TokensBack) -> None:
        """Record tokens of an answer that came back; those of one turn share their time."""
        self.answers.inc(token.tokens)
        before = self._before.get(token.number)
        if before is None:
            self.first.observe((token.at - times.arrival) * TICK_S)
        else:
            for gap in self.gap:
                gap.observe((token.at - before) * TICK_S)
        if token.is_last:
            self._before.pop(token.number, None)
        else:
            self._before[token.number] = token.at

    def done(self, times: LiveTimes, input_tokens: int, output_tokens: int) -> None:
        """A request is complete."""
        self.prompts.inc(input_tokens)
        self.asked.observe(input_tokens)
        self.given.observe(output_tokens)
        for most in self.most:
            most.observe(output_tokens)
        self.whole.observe((times.last - times.arrival) * TICK_S)
        self.queue.observe((times.admitted - times.arrival) * TICK_S)
        self.prefill.observe((times.first - times.admitted) * TICK_S)
        self.decode.observe((times.last - times.first) * TICK_S)
        self.inference.observe((times.last - times.admitted) * TICK_S)
        if output_tokens > 1:
            self.each.observe((times.last - times.first) * TICK_S / (output_tokens - 1))
        self.ended("length")

    def ended(self, reason: str) -> None:
        """A request ended, for a reason of vLLM's: length or abort."""
        self._success.labels(**self._labels, finished_reason=reason).inc()

    def left(self, number: int) -> None:
        """Forget a request that is complete or that the client left."""
        self._before.pop(number, None)

    def turn(self, tokens: int) -> None:
        """Record a turn that entered the first region."""
        self.turns.observe(tokens)

    def state(self, service: LiveReplicas) -> None:
        """Record the present state of all replicas."""
        self.running.set(service.running)
        self.waiting.set(service.waiting)
        for usage in self.usage:
            usage.set(service.usage)
        for name, counters in self.counted.items():
            seen = service.tally(name)
            for counter in counters:
                counter.inc(seen - self._seen[name])
            self._seen[name] = seen
