"""A line that serves requests as they come: the reference engine, moved on to the present by whoever owns it.

    line = LiveLine(replica)
    number = line.submit(at, input_tokens=100, output_tokens=20, content=ids)
    for token in line.advance(to): ...        what came back until then

Times are ticks of the simulation; nothing here looks at a clock.  Requests that are done are forgotten.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from wse_sim.serving.base import NEVER, ServingError, open_load
from wse_sim.serving.blocks import Key
from wse_sim.serving.line import Events, ServingLine
from wse_sim.serving.run import Replica
from wse_sim.serving.scheduler import QueuedRequest, TurnPart, TurnScheduler


class TokensBack(NamedTuple):
    """Tokens of an answer that came back at a tick."""

    number: int
    count: int
    at: int
    is_last: bool


class LiveTimes(NamedTuple):
    """Ticks of a request so far; -1 where it has not happened."""

    arrival: int
    admitted: int
    first: int
    last: int


class LiveLine(ServingLine):
    """One replica whose requests are not known before they come."""

    def __init__(self, replica: Replica) -> None:
        nothing = np.zeros(0, np.int64)
        super().__init__(open_load(nothing, nothing, nothing), replica.rules, replica.table)
        self.most_context = replica.table.most_context
        self._came: dict[int, QueuedRequest] = {}
        self._back: list[TokensBack] = []
        self._gone: set[int] = set()
        self._next = 0
        for name in ("arrival", "admitted", "first", "last"):
            setattr(self, name, defaultdict(lambda: NEVER))
        self.requests = self._came  # type: ignore[assignment]  # by number, as the list of a load
        self.turn_tokens: list[int] = []  # of turns that began; whoever reads them clears them
        self._chains: dict[int, list[int]] = {}
        if self.rules.prefix_cache:
            self.scheduler = TurnScheduler(self.rules, self._key)
        self.begin()

    @property
    def now(self) -> int:
        """The present, in ticks."""
        return int(self.env.now)

    @property
    def waiting(self) -> int:
        """Requests that wait to be admitted."""
        return len(self.scheduler.waiting)

    @property
    def running(self) -> int:
        """Requests that run."""
        return len(self.scheduler.running)

    def next_at(self) -> int | None:
        """The tick of the next event; None while nothing is under way."""
        at = self.env.peek()
        return None if at == float("inf") else int(at)

    def check(self, input_tokens: int, output_tokens: int) -> None:
        """Refuse what no replica can hold.

        Raises
        ------
        ServingError
            If a request is longer than the context or the cache.
        """
        whole = input_tokens + output_tokens
        if input_tokens < 1 or output_tokens < 1:
            raise ServingError(
                f"a request of {input_tokens} tokens that asks for {output_tokens} is none; give at least 1 of each"
            )
        if whole > self.most_context:
            raise ServingError(
                f"a prompt of {input_tokens:,} tokens and an answer of {output_tokens:,} exceed the context of "
                f"{self.most_context:,} tokens; shorten one of them"
            )
        if not self.rules.fits(input_tokens, output_tokens):
            cache = self.rules.blocks * self.rules.block_tokens
            raise ServingError(
                f"a prompt of {input_tokens:,} tokens and an answer of {output_tokens:,} exceed the cache of a replica "
                f"({cache:,} tokens); shorten one of them"
            )

    def submit(self, at: int, input_tokens: int, output_tokens: int, content: Sequence[int] = ()) -> int:
        """A request that comes at a tick which is not past; its number.

        `content` are ids of the prompt's tokens, for a prefix cache.

        Raises
        ------
        ServingError
            If it fits neither context nor cache.
        """
        self.check(input_tokens, output_tokens)
        number, self._next = self._next, self._next + 1
        self._came[number] = QueuedRequest(number, input_tokens, output_tokens)
        if self.rules.prefix_cache:
            self._chains[number] = _chain(content, self.rules.block_tokens)
        self.env.process(self._arrive(number, max(0, at - self.now)))
        return number

    def _key(self, number: int, block: int) -> Key:
        """Of a block: all tokens up to its end, if they are those of the prompt; else itself alone."""
        chain = self._chains.get(number, [])
        return chain[block] if block < len(chain) else (number, block)

    def _arrive(self, number: int, delay: int) -> Events:
        yield self.env.timeout(delay)
        if number in self._came:  # else whoever asked has gone already
            yield from super()._arrive(number, 0)

    def left(self, place: int, begun: int, turn: tuple[TurnPart, ...]) -> None:
        """Count the tokens of turns."""
        if place == 0:
            self.turn_tokens.append(sum(part.tokens for part in turn))

    def times(self, number: int) -> LiveTimes:
        """Ticks of a request that is not forgotten yet."""
        return LiveTimes(
            int(self.arrival[number]), int(self.admitted[number]), int(self.first[number]), int(self.last[number])
        )  # fmt: skip

    def advance(self, to: int) -> list[TokensBack]:
        """Play all events up to a tick, that tick included; what came back."""
        self._back = []
        if to >= self.now:
            self.env.run(until=self.env.timeout(to - self.now))
            # Events of this instant that were scheduled behind the timeout.
            while self.env.peek() <= to:
                self.env.step()
        return self._back

    def forget(self, number: int) -> None:
        """Drop what is kept of a request; one that is under way is ended: nobody reads its answer."""
        request = self._came.get(number)
        if request is not None and request.emitted < request.output_tokens:
            self._gone.add(number)
            # No more tokens of it are computed; what is in the line comes back and is dropped.
            request.input_tokens = request.computed - request.emitted
            self._drop(request)
            return
        for column in (self._came, self._chains, self.arrival, self.admitted, self.first, self.last):
            column.pop(number, None)  # type: ignore[union-attr]

    def _drop(self, request: QueuedRequest) -> None:
        """End a request of which nothing is in the line."""
        if request.in_flight:
            return
        plan = self.scheduler
        for queue in (plan.waiting, plan.running, plan.ready):
            if request in queue:
                queue.remove(request)
        plan.pool.release(request.blocks)
        self._gone.discard(request.number)
        request.output_tokens = request.emitted
        self.forget(request.number)
        self._rouse()

    def _leave(self, turn: tuple[TurnPart, ...]) -> None:
        before = {part.request.number: part.request.emitted for part in turn}
        super()._leave(turn)
        now = self.now
        for number, emitted in before.items():
            request = self._came[number]
            if number in self._gone:
                self._drop(request)
            elif request.emitted > emitted:
                is_last = request.emitted == request.output_tokens
                self._back.append(TokensBack(number, request.emitted - emitted, now, is_last))


def _chain(content: Sequence[int], size: int) -> list[int]:
    """Keys of the full blocks of a prompt."""
    found, before = [], 0
    for end in range(size, len(content) + 1, size):
        before = hash((before, *content[end - size : end]))
        found.append(before)
    return found


def replay(replica: Replica, rows: Sequence[tuple[int, int, int]], step: int) -> dict[int, LiveTimes]:
    """Serve (arrival, input, output) rows in steps of so many ticks; the times of each."""
    line, waiting, done = LiveLine(replica), list(rows), 0
    while done < len(rows):
        to = line.now + step
        while waiting and waiting[0][0] <= to:
            at, input_tokens, output_tokens = waiting.pop(0)
            line.submit(at, input_tokens, output_tokens)
        done += sum(token.is_last for token in line.advance(to))
    return {number: line.times(number) for number in range(len(rows))}
