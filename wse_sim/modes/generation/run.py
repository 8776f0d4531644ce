"""The schedule of generation: requests alternate in the regions, one token each.

Symbols as in :mod:`wse_sim.modes.generation.steps`.  The first prompt runs alone through all regions, chunk
after chunk; then B requests, whose prompts count as already read, send one token after the other around::

    a region holds a token for      l c_d / f + h        its layers, and the transfer to the next region
    a request sends its next token  when the last one is back at the first region

Round k of a request is its k-th token.  After the first rounds the slowest region sets the distance of
requests, and a round takes max(latency, B stage): the closed form of the plan.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import simpy

from wse_sim.engine.options import Options
from wse_sim.engine.result import Slice
from wse_sim.engine.trace import CountingEnvironment, RunTrace
from wse_sim.modes.generation.plan import GenerationPlan, LayerRegion, PromptTurn

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
        self._of_token = [
            (item, self.plan.token_work_s(item), item.token_handover_s) for item in self.plan.regions
        ]
        self.ends = [[] for _ in range(self.plan.batch)]

    @property
    def round_s(self) -> float:
        """Seconds of the last round of the first request."""
        ends = self.ends[0]
        before = ends[-2] if len(ends) > 1 else self.first_token_s
        return ends[-1] - before

    def execute(self) -> None:
        """Simulate the prompt and all rounds."""
        self.env.process(self._prompt())
        self.env.run()

    def _prompt(self) -> Events:
        """Send the turns of the prompt down the line of regions; after the last one all requests start."""
        turns = [turn for turn in self.plan.reading.turns for _ in range(turn.count)]
        came: list[simpy.Store] = [simpy.Store(self.env) for _ in self.plan.regions]
        for number in range(len(turns)):
            came[0].put(number)
        regions = [self.env.process(self._read(place, turns, came)) for place in range(len(came))]
        yield regions[-1]
        self.first_token_s = self.env.now
        for request in range(self.plan.batch):
            self.env.process(self._request(request))

    def _read(self, place: int, turns: list[PromptTurn], came: list[simpy.Store]) -> Events:
        """Run one region: every turn in order of arrival, then send it to the next region."""
        item = self.plan.regions[place]
        for turn in turns:
            number = yield came[place].get()
            work, way = self.plan.turn_s(turn, item)
            name = "prompt" if len(turns) == 1 else f"chunk {number} of the prompt"
            yield from self._visit(item, "prompt", name, work, way, turn.tokens)
            if place + 1 < len(came):
                came[place + 1].put(number)

    def _request(self, request: int) -> Events:
        for number in range(self.options.steps):
            name = f"token {number} of request {request}"
            for place, (item, work, way) in zip(self._regions, self._of_token, strict=True):
                with place.request() as turn:
                    yield turn
                    yield from self._visit(item, "token", name, work, way, 1, request, number)
            self.ends[request].append(self.env.now)
            if self.options.progress is not None:
                self.options.progress(number + 1, self.options.steps)

    def _visit(
        self,
        item: LayerRegion,
        role: str,
        name: str,
        work: float,
        way: float,
        tokens: int,
        flow: int = -1,
        step: int = 0,
    ) -> Events:
        start, trace = self.env.now, self.trace
        yield self.env.timeout(work)
        if trace.is_on:
            trace.span(Slice(item.name, name, "compute", start, work, 0.0, flow, "forward", role, step))
        if way:
            self.sent += tokens
            yield self.env.timeout(way)
            self.received += tokens
            if trace.is_on:
                size, handed = float(2 * self.plan.hidden * tokens), f"hand over {name}"
                trace.span(Slice(item.name, handed, "activations", start + work, way, size, flow, role=role))
