"""Simulated time beside the clock of the wall: one task moves the lines on and hands tokens to those who wait for them.

The simulation never looks at the clock: times in answers are exact whatever the host does.  What is late on the wall is
sent together; nothing drifts.  If the host cannot keep pace, simulated time falls behind, and requests arrive at its present.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from wse_sim.endpoint.metrics import ServiceMetrics
from wse_sim.errors import WseError
from wse_sim.serving.base import TICK_S
from wse_sim.serving.live import LiveLine, LiveTimes, TokensBack
from wse_sim.serving.run import Replica

SLICE_TICKS = round(2e-3 / TICK_S)
"""Simulated time between two looks at the sockets."""


class QueueFullError(WseError):
    """As many requests wait as are allowed."""


@dataclass
class Caller:
    """Who waits for the tokens of a request."""

    line: LiveLine
    number: int
    input_tokens: int
    output_tokens: int
    back: asyncio.Queue[TokensBack] = field(default_factory=asyncio.Queue)
    times: LiveTimes | None = None  # when it is complete


class ServicePump:
    """Replicas that share requests in turn."""

    def __init__(
        self,
        replica: Replica,
        replicas: int,
        *,
        time_scale: float,
        most_waiting: int,
        metrics: ServiceMetrics,
    ) -> None:
        self.lines = [LiveLine(replica) for _ in range(replicas)]
        self.time_scale, self.most_waiting, self.metrics = time_scale, most_waiting, metrics
        self._callers: dict[tuple[int, int], Caller] = {}
        self._places = {id(line): place for place, line in enumerate(self.lines)}
        self._turn = 0
        self._wake = asyncio.Event()
        self._began = asyncio.get_running_loop().time()

    @property
    def waiting(self) -> int:
        """Requests that wait to be admitted."""
        return sum(line.waiting for line in self.lines)

    def present(self) -> int:
        """The simulated present, in ticks; with a time scale of 0 it is where the simulation is."""
        if not self.time_scale:
            return max(line.now for line in self.lines)
        wall_s = asyncio.get_running_loop().time() - self._began
        return round(wall_s / self.time_scale / TICK_S)

    def submit(self, requests: Sequence[tuple[Sequence[int], int]]) -> list[Caller]:
        """Requests of (ids of the prompt's tokens, tokens of the answer) that come now.

        Raises
        ------
        QueueFullError
            If as many wait as are allowed.
        ServingError
            If one fits neither context nor cache; then none is taken.
        """
        waiting, running = self.waiting, sum(line.running for line in self.lines)
        unfinished = sum(caller.times is None for caller in self._callers.values())
        room = 0 if waiting else sum(line.rules.most_running for line in self.lines) - running
        if unfinished - running + len(requests) > self.most_waiting + room:
            raise QueueFullError(
                f"{unfinished - running} requests wait, the limit is {self.most_waiting}; try again later (--max-queue)"
            )
        for content, output_tokens in requests:
            self.lines[0].check(len(content), output_tokens)
        return [self._submitted(content, output_tokens) for content, output_tokens in requests]

    def _submitted(self, content: Sequence[int], output_tokens: int) -> Caller:
        line = self.lines[self._turn % len(self.lines)]
        self._turn += 1
        if line.next_at() is None:  # at rest: nothing is late
            self._deliver(line, max(line.now, self.present()))
        number = line.submit(line.now, len(content), output_tokens, content)
        caller = Caller(line, number, len(content), output_tokens)
        self._callers[self._places[id(line)], number] = caller
        self.metrics.came(len(content))
        self._wake.set()
        return caller

    def leave(self, caller: Caller) -> None:
        """Nobody waits for a request any more: it is complete, or the client has gone."""
        if self._callers.pop((self._places[id(caller.line)], caller.number), None) is None:
            return
        self.metrics.left(caller.line, caller.number)
        if caller.times is None:
            self.metrics.ended("abort")
        caller.line.forget(caller.number)
        self._wake.set()

    async def run(self) -> None:
        """Move the lines on for ever."""
        while True:
            ats = [at for line in self.lines if (at := line.next_at()) is not None]
            self._wake.clear()
            if not ats:
                self._gauges()
                await self._wake.wait()
                continue
            delay_s = (min(ats) - self.present()) * TICK_S * self.time_scale
            if delay_s > 0:
                try:
                    await asyncio.wait_for(self._wake.wait(), delay_s)
                except TimeoutError:
                    pass
                else:
                    continue
            to = min(max(self.present(), min(ats)), min(ats) + SLICE_TICKS)
            for line in self.lines:
                self._deliver(line, to)
            self._gauges()
            await asyncio.sleep(0)

    def _deliver(self, line: LiveLine, to: int) -> None:
        place = self._places[id(line)]
        for token in line.advance(to):
            caller = self._callers.get((place, token.number))
            if caller is None:
                continue
            if token.is_last:
                caller.times = line.times(token.number)
                self.metrics.done(caller.times, caller.input_tokens, caller.output_tokens)
            self.metrics.token(caller.line, token)
            caller.back.put_nowait(token)
        for tokens in line.turn_tokens:
            self.metrics.turn(tokens)
        line.turn_tokens.clear()

    def _gauges(self) -> None:
        self.metrics.state(self.lines)
