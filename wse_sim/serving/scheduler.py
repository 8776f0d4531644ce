"""Who takes part in a turn: the rules of vLLM's V1 scheduler, before a line of regions.

When the first region is free, a turn is formed:

1. *Decodes*, in the order in which their last tokens came back, up to `joined`.  One that needs a block while none is free
   preempts the youngest running request that has nothing in flight and is not older than itself, perhaps itself.
2. *Prompts* of running requests, oldest first, as many tokens as the turn has left; blocks as in 1.  If none can be had, no
   younger prompt takes its place.
3. *Admission*, first come first served, unless 1 or 2 preempted somebody or left somebody without a block: blocks for the
   whole present length, less those that a prefix cache has, must be free.  Of `reserve`, blocks for the whole answer, which are then held.

A preempted request loses its blocks, waits at the head, and computes its prompt and the tokens of its answer again.  Tokens
count as computed when their turn enters, since nobody overtakes.  A request that has computed all its tokens emits one
when the turn leaves the last region.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from wse_sim.serving.base import NEVER, ServingRules
from wse_sim.serving.blocks import BlockPool, Key


@dataclass
class QueuedRequest:
    """A request as the scheduler sees it."""

    number: int
    input_tokens: int
    output_tokens: int
    computed: int = 0  # tokens whose keys and values are in the cache
    emitted: int = 0  # tokens of the answer that came back
    blocks: list[int] = field(default_factory=list)
    in_flight: int = 0  # turns in the line
    admission: int = NEVER  # order in which it was admitted last
    has_run: bool = False  # was admitted before

    @property
    def length(self) -> int:
        """Tokens that are known: the prompt and the answer so far."""
        return self.input_tokens + self.emitted

    @property
    def left(self) -> int:
        """Known tokens that are not computed."""
        return self.length - self.computed


class TurnPart(NamedTuple):
    """Tokens of one request in a turn; `context` tokens are computed when it is done."""

    request: QueuedRequest
    tokens: int
    context: int
    emits: bool


class TurnScheduler:
    """The state of a replica: who waits, who runs, which blocks are free."""

    def __init__(self, rules: ServingRules, keys: Callable[[int, int], Key] | None = None) -> None:
        self.rules = rules
        self.pool = BlockPool(rules.blocks, rules.block_tokens, keys)
        self.waiting: deque[QueuedRequest] = deque()
        self.running: list[QueuedRequest] = []  # in order of admission
        self.ready: list[QueuedRequest] = []  # decode next, in the order in which they came back
        self._admissions = 0
        self.recomputed = self.preempted = self.computed = self.cached = 0
        self.preemptions: list[int] = []  # numbers of requests, as they were preempted
        self.running_most = self.blocks_most = 0

    def arrives(self, request: QueuedRequest) -> None:
        """A request joins the queue."""
        self.waiting.append(request)

    def form(self) -> tuple[tuple[TurnPart, ...], list[QueuedRequest]]:
        """The next turn, empty if nobody can take part, and who was admitted for the first time."""
        while True:
            before, admitted = self.preempted, []
            parts: list[TurnPart] = []
            self._decodes(parts)
            is_short = self._prompts(parts)
            if not is_short and self.preempted == before:
                admitted = self._admissions_of(parts)
            if parts or self.preempted == before:
                break
        self.running_most = max(self.running_most, len(self.running))
        self.blocks_most = max(self.blocks_most, self.rules.blocks - self.pool.free)
        self.computed += sum(part.tokens for part in parts)
        return tuple(parts), admitted

    def returned(self, turn: Iterable[TurnPart]) -> list[QueuedRequest]:
        """A turn left the last region: the requests that emitted a token, those that are complete among them."""
        emitting = []
        for request, _, _, emits in turn:
            request.in_flight -= 1
            if not emits:
                continue
            request.emitted += 1
            emitting.append(request)
            if request.emitted == request.output_tokens:
                self.pool.release(request.blocks)
                self.running.remove(request)
            else:
                self.ready.append(request)
        return emitting

    # The three rules

    def _decodes(self, parts: list[TurnPart]) -> None:
        """Rule 1."""
        most = min(self.rules.joined, self.rules.turn_tokens)
        while self.ready and len(parts) < most:
            request = self.ready[0]
            if self._room(request, 1):  # else it was preempted itself
                self.ready.remove(request)
                self._take(request, 1, parts)

    def _prompts(self, parts: list[TurnPart]) -> bool:
        """Rule 2; whether somebody is left without a block."""
        budget = self.rules.turn_tokens - len(parts)
        taken = {id(part.request) for part in parts}
        for request in list(self.running):
            if budget == 0:
                return False
            if (
                request.admission == NEVER
                or id(request) in taken
                or request in self.ready
                or not request.left
            ):
                continue
            size = min(request.left, budget)
            if not self._room(request, size):
                return True
            self._take(request, size, parts)
            budget -= size
        return False

    def _admissions_of(self, parts: list[TurnPart]) -> list[QueuedRequest]:
        """Rule 3; who was admitted for the first time."""
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
            if not request.has_run:
                first.append(request)
            request.has_run = True
            self.pool.share(request.blocks, found)
            request.computed = len(found) * self.rules.block_tokens
            self.cached += request.computed
            size = min(request.left, budget)
            self.pool.grow(request.blocks, whole if self.rules.reserve else request.computed + size)
            self._take(request, size, parts)
            budget -= size
        return first

    # Blocks

    def _room(self, request: QueuedRequest, tokens: int) -> bool:
        """Take blocks for more tokens of a running request, from younger ones that rest if need be."""
        need = self.pool.needed(request.computed + tokens) - len(request.blocks)
        while need > self.pool.free:
            resting = [
                one for one in self.running if not one.in_flight and one.admission >= request.admission
            ]
            if not resting:
                return False
            victim = max(resting, key=lambda one: one.admission)
            self._preempt(victim)
            if victim is request:
                return False
        self.pool.grow(request.blocks, request.computed + tokens)
        return True

    def _take(self, request: QueuedRequest, size: int, parts: list[TurnPart]) -> None:
        self.pool.register(request.number, request.blocks, request.computed, request.computed + size)
        request.computed += size
        request.in_flight += 1
        parts.append(TurnPart(request, size, request.computed, not request.left))

    def _preempt(self, request: QueuedRequest) -> None:
        self.pool.release(request.blocks)
        self.running.remove(request)
        if request in self.ready:
            self.ready.remove(request)
        self.recomputed += request.computed
        self.preempted += 1
        self.preemptions.append(request.number)
        request.computed, request.admission = 0, NEVER
        self.waiting.appendleft(request)
