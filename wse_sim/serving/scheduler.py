"""Selection of the requests of a turn: the rules of vLLM's V1 scheduler, in front of a line of regions.

When the first region is free, a turn is formed:

1. *Decodes*, in the order in which their last tokens came back, up to `joined`.  One that needs a block while none is free
   preempts the youngest running request that has nothing in flight and is not older than itself, perhaps itself.
2. *Prompts* of running requests, oldest first, as many tokens as the turn has left; blocks as in 1.  If none can be had, no
   younger prompt takes its place.
3. *Admission*, first come first served, unless 1 or 2 preempted a request or left one without a block: blocks
   for the current length, minus those in a prefix cache, must be free. With `reserve`, so must blocks for the
   whole answer, which are then held.

With priorities, a smaller one and then an earlier arrival goes first in 3, and the last one in that order is preempted in 1 and 2.

With speculation a request that decodes puts its known token and drafts into the turn, as many as fit in the
turn and the answer needs. It emits the accepted drafts and one more token, and releases the slots of the
others. It is ready again when its next drafts are.  A request whose prompt is read elsewhere holds blocks
from its admission on, and decodes when they are filled.

A preempted request loses its blocks, waits at the head, and computes its prompt and the tokens of its answer
again.  Tokens count as computed when their turn enters, because turns do not overtake. A request that has
computed all its tokens emits one when the turn leaves the last region. With `swap`, it keeps its computed
cache, which leaves through the edge and returns when the request is admitted again; no turn that uses its
blocks enters before the cache has left.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from wse_sim.serving.base import NEVER, ServingRules
from wse_sim.serving.blocks import BlockPool, Key
from wse_sim.serving.latency import Latency
from wse_sim.serving.prefill_transfer import EdgeState, PrefillState
from wse_sim.serving.speculation import accepted_drafts

Rank = tuple[int, int, int]


@dataclass
class QueuedRequest:
    """State of a request in the scheduler."""

    number: int
    input_tokens: int
    output_tokens: int
    priority: int = 0
    arrival: int = 0
    computed: int = 0  # tokens whose keys and values are in the cache
    emitted: int = 0  # tokens of the answer that came back
    blocks: list[int] = field(default_factory=list)
    in_flight: int = 0  # turns in the line
    admission: int = NEVER  # order in which it was admitted last
    has_run: bool = False  # was admitted before
    ready_at: int = 0  # tick at which it can take part again
    away: int = 0  # tokens beyond the edge
    cached: int = 0  # tokens found when it was admitted first
    accepted: int = 0  # drafts

    @property
    def length(self) -> int:
        """Number of known tokens: the prompt and the answer so far."""
        return self.input_tokens + self.emitted

    @property
    def left(self) -> int:
        """Known tokens that are not computed."""
        return self.length - self.computed


class TurnPart(NamedTuple):
    """The tokens of one request in a turn; afterwards `context` tokens are computed, and `emits` of them may
    emit a token."""

    request: QueuedRequest
    tokens: int
    context: int
    emits: int


class Returned(NamedTuple):
    """A request that emitted `tokens` tokens, and whether its answer is complete."""

    request: QueuedRequest
    tokens: int
    is_done: bool


class TurnScheduler:
    """The state of a replica: waiting and running requests, and free blocks."""

    def __init__(
        self, rules: ServingRules, latency: Latency, keys: Callable[[int, int], Key] | None = None
    ) -> None:
        self.rules = rules
        self.pool = BlockPool(rules.blocks, rules.block_tokens, keys)
        self.waiting: deque[QueuedRequest] = deque()
        self.running: list[QueuedRequest] = []  # in order of admission
        self.ready: list[QueuedRequest] = []  # requests that decode next, in order of readiness
        self.handed: list[
            tuple[int, QueuedRequest, int]
        ] = []  # (when, request, tokens that were there), of this turn
        self.enters_at = 0  # no turn before this tick: preempted caches are still being sent out
        self._admissions = 0
        self._draft_free_at = 0
        self.edge = EdgeState(rules.edge) if rules.edge else None
        self.prefill = PrefillState(rules.prefill, latency, rules.turn_tokens) if rules.prefill else None
        self.tally = dict.fromkeys(
            ("recomputed", "preemptions", "computed", "cached", "drafts", "drafted", "accepted", "swapped", "handed",
             "running_most", "blocks_most"), 0,
        )  # fmt: skip
        self.accepted_at = [0] * (len(rules.speculation.acceptance) if rules.speculation else 0)
        self.preemptions: list[int] = []  # numbers of requests, as they were preempted

    @property
    def load(self) -> int:
        """Return the blocks in use plus those that waiting requests will need."""
        waiting = sum(self.pool.needed(request.length) for request in self.waiting)
        return self.rules.blocks - self.pool.free + waiting

    def arrives(self, request: QueuedRequest) -> None:
        """Add a request to the queue."""
        if self.rules.by_priority:
            bisect.insort(self.waiting, request, key=self._rank)
        else:
            self.waiting.append(request)

    def form(self, now: int) -> tuple[tuple[TurnPart, ...], list[QueuedRequest]]:
        """Return the next turn (empty if no request can take part), and the requests admitted for the first
        time."""
        tally = self.tally
        self.handed = []
        while True:
            before, admitted = tally["preemptions"], []
            parts: list[TurnPart] = []
            self._decodes(parts, now)
            is_short = self._prompts(parts, now)
            if not is_short and tally["preemptions"] == before:
                admitted = self._admissions_of(parts, now)
            if parts or tally["preemptions"] == before:
                break
        tally["running_most"] = max(tally["running_most"], len(self.running))
        tally["blocks_most"] = max(tally["blocks_most"], self.rules.blocks - self.pool.free)
        tally["computed"] += sum(part.tokens for part in parts)
        return tuple(parts), admitted

    def wakes_at(self, now: int) -> int | None:
        """Return the tick at which a running request that is not ready now becomes ready, without other
        events."""
        later = [one.ready_at for one in self.running if one.ready_at > now and not one.in_flight]
        return min(later, default=None)

    def returned(self, turn: Iterable[TurnPart], now: int) -> list[Returned]:
        """Process a turn that left the last region; return the requests that emitted tokens."""
        found = []
        for request, tokens, context, emits in turn:
            request.in_flight -= 1
            if not emits:
                continue
            count = self._verified(request, emits, context - tokens)
            request.emitted += count
            is_done = request.emitted == request.output_tokens
            found.append(Returned(request, count, is_done))
            if is_done:
                self.pool.release(request.blocks)
                self.running.remove(request)
            else:
                self._ready_again(request, now)
        return found

    def is_there(self, request: QueuedRequest, found: int, now: int) -> list[Returned]:
        """Process a transferred cache; the first token arrives with it."""
        self.pool.register(request.number, request.blocks, found, request.computed)
        return self.returned([TurnPart(request, request.computed - found, request.computed, 1)], now)

    # Speculation

    def _verified(self, request: QueuedRequest, emits: int, before: int) -> int:
        """Return the tokens that a part of a turn emits, and release the slots of rejected drafts."""
        spec, drafts = self.rules.speculation, emits - 1
        if spec is None or not drafts:
            return 1
        accepted = accepted_drafts(spec, request.number, request.emitted + 1, drafts)
        request.computed -= drafts - accepted
        request.accepted += accepted
        self.pool.register(request.number, request.blocks, before, request.computed)
        if not self.rules.reserve:
            self.pool.trim(request.blocks, request.computed)
        for name, more in (("drafts", 1), ("drafted", drafts), ("accepted", accepted)):
            self.tally[name] += more
        for place in range(accepted):
            self.accepted_at[place] += 1
        return 1 + accepted

    def _ready_again(self, request: QueuedRequest, now: int) -> None:
        """Mark a request as ready again: when its token is back and its next drafts are ready."""
        request.ready_at, spec = now, self.rules.speculation
        if spec is not None and spec.delay_ticks:
            begin = max(now, self._draft_free_at)
            self._draft_free_at = begin + spec.busy_ticks
            request.ready_at = begin + spec.delay_ticks
        bisect.insort(self.ready, request, key=lambda one: one.ready_at)

    # The three rules

    def _decodes(self, parts: list[TurnPart], now: int) -> None:
        """Apply rule 1: add the decodes of a turn."""
        budget, drafts = self.rules.turn_tokens, len(self.accepted_at)
        while self.ready and len(parts) < self.rules.joined and budget:
            request = self.ready[0]
            if request.ready_at > now:
                break
            size = min(1 + drafts, request.output_tokens - request.emitted, budget)
            if self._room(request, size, now):  # else it was preempted itself
                self.ready.remove(request)
                self._take(request, size, parts, drafts=size - 1)
                budget -= size

    def _prompts(self, parts: list[TurnPart], now: int) -> bool:
        """Apply rule 2: add prompt tokens; return whether a request is left without a block."""
        budget = self.rules.turn_tokens - sum(part.tokens for part in parts)
        taken = {id(part.request) for part in parts}
        for request in list(self.running):
            if budget == 0:
                return False
            if (
                request.admission == NEVER
                or id(request) in taken
                or request in self.ready
                or request.left <= 0
                or request.ready_at > now
            ):
                continue
            size = min(request.left, budget)
            if not self._room(request, size, now):
                return True
            self._take(request, size, parts)
            budget -= size
        return False

    def _admissions_of(self, parts: list[TurnPart], now: int) -> list[QueuedRequest]:
        """Apply rule 3: admit requests; return those admitted for the first time."""
        budget, first = self.rules.turn_tokens - sum(part.tokens for part in parts), []
        while self.waiting and budget and len(self.running) < self.rules.most_running:
            request = self.waiting[0]
            whole = request.input_tokens + request.output_tokens - 1 if self.rules.reserve else request.length
            found = self.pool.found(request.number, request.length)
            if not self.pool.has_room(whole, found):
                break
            self.waiting.popleft()
            self.running.append(request)
            request.admission, self._admissions = self._admissions, self._admissions + 1
            self.pool.share(request.blocks, found)
            request.computed, request.ready_at = len(found) * self.rules.block_tokens, now
            if not request.has_run:
                first.append(request)
                request.cached = request.computed
            request.has_run = True
            size = self._begins(request, whole, budget, parts, now)
            budget -= size
        return first

    def _begins(
        self, request: QueuedRequest, whole: int, budget: int, parts: list[TurnPart], now: int
    ) -> int:
        """Start an admitted request; return the number of its tokens in this turn.

        This is 0 if its cache was swapped out or is prefilled elsewhere; then the transfer starts.
        """
        found, away = request.computed, request.away
        request.away = 0
        self.tally["cached"] += max(0, found - away)
        if self.edge is not None and away > found:
            self.pool.grow(request.blocks, whole)
            self.tally["swapped"] += away - found
            request.computed = away
            request.ready_at = self.edge.moves(away - found, now) + self.edge.link.hop_ticks
            if request.emitted and request.left == 1:
                bisect.insort(self.ready, request, key=lambda one: one.ready_at)
            return 0
        if self.edge is not None and self.prefill is not None:
            self.pool.grow(request.blocks, whole)
            self.tally["handed"] += request.left
            there = self.prefill.there(found, request.length, now, self.edge)
            request.computed, request.in_flight = request.length, 1
            self.handed.append((there, request, found))
            return 0
        size = min(request.left, budget)
        self.pool.grow(request.blocks, whole if self.rules.reserve else found + size)
        self._take(request, size, parts)
        return size

    # Blocks

    def _rank(self, request: QueuedRequest) -> Rank:
        """Sort key of a request; smaller keys go first and keep their blocks."""
        if self.rules.by_priority:
            return request.priority, request.arrival, request.number
        return request.admission, 0, 0

    def _room(self, request: QueuedRequest, tokens: int, now: int) -> bool:
        """Allocate blocks for more tokens of a running request, preempting later requests if needed; return
        the success."""
        need = self.pool.needed(request.computed + tokens) - len(request.blocks)
        while need > self.pool.free:
            resting = [
                one for one in self.running if not one.in_flight and self._rank(one) >= self._rank(request)
            ]
            if not resting:
                return False
            victim = max(resting, key=self._rank)
            self._preempt(victim, now)
            if victim is request:
                return False
        self.pool.grow(request.blocks, request.computed + tokens)
        return True

    def _take(self, request: QueuedRequest, size: int, parts: list[TurnPart], drafts: int = 0) -> None:
        if not drafts:  # else when they are verified
            self.pool.register(request.number, request.blocks, request.computed, request.computed + size)
        request.computed += size
        request.in_flight += 1
        parts.append(TurnPart(request, size, request.computed, 0 if request.left > 0 else 1 + drafts))

    def _preempt(self, request: QueuedRequest, now: int) -> None:
        self.pool.release(request.blocks)
        self.running.remove(request)
        if request in self.ready:
            self.ready.remove(request)
        if self.rules.swap and self.edge is not None:
            request.away = request.computed
            self.enters_at = max(self.enters_at, self.edge.moves(request.away, now))
        else:
            self.tally["recomputed"] += request.computed
        self.tally["preemptions"] += 1
        self.preemptions.append(request.number)
        request.computed, request.admission = 0, NEVER
        if self.rules.by_priority:
            self.arrives(request)
        else:
            self.waiting.appendleft(request)
