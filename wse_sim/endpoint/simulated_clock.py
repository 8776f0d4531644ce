"""Simulated time in addition to the clock of the wall: one task moves the lines on and hands tokens to those who wait for them.

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
from wse_sim.serving.live import LiveReplicas, LiveTimes, TokensBack

SLICE_TICKS = round(2e-3 / TICK_S)
"""Simulated time between two looks at the sockets."""


class QueueFullError(WseError):
    """Raised when as many requests wait as are allowed."""


@dataclass
class Caller:
    """Who waits for the tokens of a request."""

    number: int
    input_tokens: int
    output_tokens: int
    back: asyncio.Queue[TokensBack] = field(default_factory=asyncio.Queue)
    times: LiveTimes | None = None  # when it is complete


class ServicePump:
    """The lines of a service, and who waits for their tokens."""

    def __init__(
        self, service: LiveReplicas, *, time_scale: float, most_waiting: int, metrics: ServiceMetrics
    ) -> None:
        self.service, self.time_scale, self.most_waiting = service, time_scale, most_waiting
        self.metrics = metrics
        self._callers: dict[int, Caller] = {}
        self._wake = asyncio.Event()
        self._began = asyncio.get_running_loop().time()

    def present(self) -> int:
        """The simulated present, in ticks; with a time scale of 0 it is where the simulation is."""
        if not self.time_scale:
            return self.service.now
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
        service = self.service
        waiting, running = service.waiting, service.running
        unfinished = sum(caller.times is None for caller in self._callers.values())
        room = 0 if waiting else service.rules.most_running * len(service.lines) - running
        if unfinished - running + len(requests) > self.most_waiting + room:
            raise QueueFullError(
                f"{unfinished - running} requests wait, the limit is {self.most_waiting}; try again later (--max-queue)"
            )
        for content, output_tokens in requests:
            service.check(len(content), output_tokens)
        return [self._submitted(content, output_tokens) for content, output_tokens in requests]

    def _submitted(self, content: Sequence[int], output_tokens: int) -> Caller:
        service = self.service
        if service.next_at() is None:  # at rest: nothing is late
            self._deliver(max(service.now, self.present()))
        caller = Caller(service.submit(len(content), output_tokens, content), len(content), output_tokens)
        self._callers[caller.number] = caller
        self.metrics.came(len(content))
        self._wake.set()
        return caller

    def leave(self, caller: Caller) -> None:
        """Forget a request: it is complete, or the client has disconnected."""
        if self._callers.pop(caller.number, None) is None:
            return
        self.metrics.left(caller.number)
        if caller.times is None:
            self.metrics.ended("abort")
        self.service.forget(caller.number)
        self._wake.set()

    async def run(self) -> None:
        """Move the lines on forever."""
        while True:
            at = self.service.next_at()
            self._wake.clear()
            self.metrics.state(self.service)
            if at is None:
                await self._wake.wait()
                continue
            delay_s = (at - self.present()) * TICK_S * self.time_scale
            if delay_s > 0:
                try:
                    await asyncio.wait_for(self._wake.wait(), delay_s)
                except TimeoutError:
                    pass
                else:
                    continue
            self._deliver(min(max(self.present(), at), at + SLICE_TICKS))
            await asyncio.sleep(0)

    def _deliver(self, to: int) -> None:
        for token in self.service.advance(to):
            caller = self._callers.get(token.number)
            if caller is None:
                continue
            times = self.service.times(token.number)
            if token.is_last:
                caller.times = times
                self.metrics.done(times, caller.input_tokens, caller.output_tokens)
            self.metrics.token(times, token)
            caller.back.put_nowait(token)
        for tokens in self.service.turn_tokens:
            self.metrics.turn(tokens)
        self.service.turn_tokens.clear()
