"""Replicas that serve requests as they arrive: the reference engine, advanced in time by its owner.

    service = LiveReplicas(replica)
    number = service.submit(input_tokens=100, output_tokens=20, content=ids)     at the current tick
    for tokens in service.advance(to): ...                                       tokens that came back until then

Times are ticks of the simulation, independent of any clock. :meth:`forget` drops completed requests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from wse_sim.serving.base import NEVER, ServingError, open_load
from wse_sim.serving.blocks import Key
from wse_sim.serving.line import Events, ServingLine, ServingReplicas
from wse_sim.serving.router import ROUND_ROBIN
from wse_sim.serving.run import Replica
from wse_sim.serving.scheduler import QueuedRequest, Returned, TurnPart, TurnScheduler


class TokensBack(NamedTuple):
    """Tokens of an answer that came back at tick `at`."""

    number: int
    tokens: int
    at: int
    is_last: bool


class LiveTimes(NamedTuple):
    """Ticks of a request's events so far; -1 for those that have not happened."""

    arrival: int
    admitted: int
    first: int
    last: int


class LiveReplicas(ServingReplicas):
    """Replicas whose requests arrive while the simulation runs."""

    def __init__(self, replica: Replica, replicas: int = 1, router: str = ROUND_ROBIN) -> None:
        nothing = np.zeros(0, np.int64)
        load = open_load(nothing, nothing, nothing)
        super().__init__(load, replica.rules, replica.table, replicas, router)
        self.most_samples = 0  # no gaps are recorded
        self.most_context = replica.table.most_context
        self._came: dict[int, QueuedRequest] = {}
        self._chains: dict[int, list[int]] = {}
        self._back: list[TokensBack] = []
        self._gone: set[int] = set()
        self._next = 0
        for name in ("arrival", "admitted", "first", "last", "replica"):
            setattr(self, name, defaultdict(lambda: NEVER))
        self.requests = self._came  # type: ignore[assignment]  # by number, as the list of a load
        self.turn_tokens: list[int] = []  # of turns that passed a first region; the reader clears them
        if self.rules.prefix_cache:
            for line in self.lines:
                line.scheduler = TurnScheduler(self.rules, self.latency, self._key)

    @property
    def now(self) -> int:
        """The current tick."""
        return int(self.env.now)

    @property
    def waiting(self) -> int:
        """Number of requests that wait for admission."""
        return sum(len(line.scheduler.waiting) for line in self.lines)

    @property
    def running(self) -> int:
        """Number of running requests."""
        return sum(len(line.scheduler.running) for line in self.lines)

    @property
    def usage(self) -> float:
        """Fraction of all blocks in use."""
        free = sum(line.scheduler.pool.free for line in self.lines)
        return 1 - free / (self.rules.blocks * len(self.lines))

    def tally(self, name: str) -> int:
        """Return a counter, summed over the replicas."""
        return sum(line.scheduler.tally[name] for line in self.lines)

    def next_at(self) -> int | None:
        """Tick of the next event; None if nothing is pending."""
        at = self.env.peek()
        return None if at == float("inf") else int(at)

    def check(self, input_tokens: int, output_tokens: int) -> None:
        """Raise :class:`ServingError` if no replica can hold such a request.

        Raises
        ------
        ServingError
            If a request is longer than the context or the cache.
        """
        whole = input_tokens + output_tokens
        if input_tokens < 1 or output_tokens < 1:
            raise ServingError(
                f"a request of {input_tokens} tokens that asks for {output_tokens} is invalid; give at least 1 of each"
            )
        said = f"a prompt of {input_tokens:,} tokens and an answer of {output_tokens:,} exceed the"
        if whole > self.most_context:
            raise ServingError(f"{said} context of {self.most_context:,} tokens; shorten one of them")
        if not self.rules.fits(input_tokens, output_tokens):
            cache = self.rules.blocks * self.rules.block_tokens
            raise ServingError(f"{said} cache of a replica ({cache:,} tokens); shorten one of them")

    def submit(
        self, input_tokens: int, output_tokens: int, content: Sequence[int] = (), delay: int = 0
    ) -> int:
        """Submit a request that arrives now, or `delay` ticks later; return its number.

        `content` are ids of the prompt's tokens, for a prefix cache.

        Raises
        ------
        ServingError
            If it exceeds the context or the cache.
        """
        self.check(input_tokens, output_tokens)
        number, self._next = self._next, self._next + 1
        self._came[number] = QueuedRequest(number, input_tokens, output_tokens)
        if self.rules.prefix_cache:
            self._chains[number] = _chain(content, self.rules.block_tokens)
        self.env.process(self._arrive(number, delay))
        return number

    def times(self, number: int) -> LiveTimes:
        """Return the ticks of a request that has not been forgotten."""
        return LiveTimes(
            int(self.arrival[number]), int(self.admitted[number]), int(self.first[number]), int(self.last[number])
        )  # fmt: skip

    def advance(self, to: int) -> list[TokensBack]:
        """Simulate all events up to and including tick `to`; return the tokens that came back."""
        self._back = []
        if to >= self.now:
            self.env.run(until=self.env.timeout(to - self.now))
            while self.env.peek() <= to:  # events at this tick after that of the timeout
                self.env.step()
        return self._back

    def forget(self, number: int) -> None:
        """Forget a request; a running one is aborted, because its answer is no longer needed."""
        request = self._came.get(number)
        if request is not None and request.emitted < request.output_tokens:
            self._gone.add(number)
            # No more of its tokens are computed; those in the line return and are dropped.
            request.input_tokens = request.computed - request.emitted
            self._drop(request)
            return
        for column in (
            self._came,
            self._chains,
            self.arrival,
            self.admitted,
            self.first,
            self.last,
            self.replica,
        ):
            column.pop(number, None)  # type: ignore[union-attr]

    def emits(self, returned: Returned) -> None:
        """Record tokens of an answer for the caller of :meth:`advance`."""
        super().emits(returned)
        number = returned.request.number
        if number in self._gone:
            self.env.process(self._dropped_soon(returned.request))
        else:
            self._back.append(TokensBack(number, returned.tokens, self.now, returned.is_done))

    def left(self, line: ServingLine, place: int, begun: int, turn: tuple[TurnPart, ...]) -> None:
        """Record the tokens of a turn; drop aborted requests that have nothing left in the line."""
        if place == 0:
            self.turn_tokens.append(sum(part.tokens for part in turn))
        if place + 1 == self.latency.regions:
            for part in turn:
                if part.request.number in self._gone:
                    self.env.process(self._dropped_soon(part.request))

    def _dropped_soon(self, request: QueuedRequest) -> Events:
        """Drop an aborted request after its turn has returned, which happens at this tick."""
        yield self.env.timeout(0)
        if request.number in self._gone:
            self._drop(request)

    def _drop(self, request: QueuedRequest) -> None:
        """Drop a request that has nothing left in the line."""
        if request.in_flight:
            return
        for line in self.lines:
            plan = line.scheduler
            for queue in (plan.waiting, plan.running, plan.ready):
                if request in queue:
                    queue.remove(request)
        place = int(self.replica[request.number])
        if place != NEVER:
            self.lines[place].scheduler.pool.release(request.blocks)
            self.lines[place].rouse()
        self._gone.discard(request.number)
        request.output_tokens = request.emitted
        self.forget(request.number)

    def _arrive(self, number: int, delay: int) -> Events:
        yield self.env.timeout(delay)
        if number in self._came:  # otherwise the request has been forgotten
            yield from super()._arrive(number, 0)

    def _place(self, request: QueuedRequest) -> int:
        if self.router == ROUND_ROBIN:
            return request.number % len(self.lines)
        return super()._place(request)

    def _key(self, number: int, block: int) -> Key:
        """Cache key of a block: for a block of the prompt, all tokens up to its end; otherwise unique to this
        request."""
        chain = self._chains.get(number, [])
        return chain[block] if block < len(chain) else (number, block)


def _chain(content: Sequence[int], size: int) -> list[int]:
    """Return the keys of the full blocks of a prompt."""
    found, before = [], 0
    for end in range(size, len(content) + 1, size):
        before = hash((before, *content[end - size : end]))
        found.append(before)
    return found
