"""The schedule of generation: requests take turns in the regions, one token each.

Symbols as in :mod:`wse_sim.modes.generation.steps`.  The first prompt runs alone through all regions; then B
requests, whose prompts are taken as done, send token after token around::

    a region holds a token for      l c_d / f + h        its layers, and the way to the next region
    a request sends its next token  when the last one is back at the first region

Round k of a request is its k-th token.  After the first rounds the requests are spaced by the slowest region, and
a round takes max(latency, B stage): the closed form of the plan.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import simpy

from wse_sim.engine.options import Options
from wse_sim.engine.result import Slice
from wse_sim.engine.trace import CountingEnvironment, RunTrace
from wse_sim.modes.generation.plan import GenerationPlan, LayerRegion

Events = Generator[simpy.Event, object, None]


@dataclass
class GenerationRun:
    """One simulation of a plan; times in seconds."""

    plan: GenerationPlan
    options: Options
    trace: RunTrace
    ends: list[list[float]] = field(default_factory=list)  # per request, of its rounds
    first_token_s: float = 0.0
    sent: int = 0  # hidden states that left a region
    received: int = 0

    def __post_init__(self) -> None:
        self.env = CountingEnvironment()
        self._regions = [simpy.Resource(self.env, 1) for _ in self.plan.regions]
        self.ends = [[] for _ in range(self.plan.batch)]

    @property
    def round_s(self) -> float:
        """Seconds of the last round of the first request."""
        ends = self.ends[0]
        before = ends[-2] if len(ends) > 1 else self.first_token_s
        return ends[-1] - before

    def execute(self) -> None:
        """Run the prompt and all rounds."""
        self.env.process(self._prompt())
        self.env.run()

    def _prompt(self) -> Events:
        for item in self.plan.regions:
            work, way = self.plan.prompt_work_s(item), item.prompt_handover_s
            yield from self._visit(item, "prompt", -1, work, way)
        self.first_token_s = self.env.now
        for request in range(self.plan.batch):
            self.env.process(self._request(request))

    def _request(self, request: int) -> Events:
        for number in range(self.options.steps):
            for place, item in zip(self._regions, self.plan.regions, strict=True):
                with place.request() as turn:
                    yield turn
                    work, way = self.plan.token_work_s(item), item.token_handover_s
                    yield from self._visit(item, "token", number, work, way, request)
            self.ends[request].append(self.env.now)
            if self.options.progress is not None:
                self.options.progress(number + 1, self.options.steps)

    def _visit(
        self, item: LayerRegion, role: str, number: int, work: float, way: float, request: int = 0
    ) -> Events:
        start, flow = self.env.now, request if number >= 0 else -1
        name = role if number < 0 else f"{role} {number} of request {request}"
        yield self.env.timeout(work)
        self.trace.span(
            Slice(item.name, name, "compute", start, work, 0.0, flow, "forward", role, max(number, 0))
        )
        if way:
            size = float(2 * self.plan.hidden * (self.plan.prompt if number < 0 else 1))
            self.sent += 1
            yield self.env.timeout(way)
            self.received += 1
            self.trace.span(
                Slice(item.name, f"hand over {name}", "activations", start + work, way, size, flow, role=role)
            )
