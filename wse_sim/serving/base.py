"""The types that workloads, schedulers, engines and metrics share: loads, rules and served requests.

Times are int64 ticks of 0.1 ns, so that engines agree bit for bit in any order of summation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from wse_sim.errors import WseError

TICK_S = 1e-10
"""Seconds of a tick; int64 ticks last 29 years."""

MOST_TICKS = 2**62
MOST_TURN_TOKENS = 4096
MOST_REPLICAS = 4096
GAP_BINS_PER_FACTOR_E = 64
GAP_BINS = 1200
FIRST_GAP_TICKS = 10_000  # 1 us
NEVER = -1

GAP_EDGES = np.rint(FIRST_GAP_TICKS * np.exp(np.arange(1, GAP_BINS) / GAP_BINS_PER_FACTOR_E)).astype(np.int64)
"""Upper edges of all bins but the last of the histogram of gaps between tokens, (GAP_BINS - 1,) ticks; 1.6 % wide."""

Ticks = NDArray[np.int64]


def nothing() -> Ticks:
    """Return an empty column."""
    return np.zeros(0, np.int64)


class ServingError(WseError):
    """The load, the scheduler or the machine is invalid as stated."""


def ticks(seconds: NDArray[np.floating]) -> Ticks:
    """Return a number of seconds in ticks, rounded."""
    return np.rint(seconds / TICK_S).astype(np.int64)


UNTIMED_FORMS = "lengths", "sharegpt"  # of files without arrival times


def is_untimed(named: str) -> bool:
    """Return whether a workload given as FORM:FILE has no arrival times (a `fields` form with an empty first name has
    none).
    """
    form, _, name = named.partition(":")
    return form in UNTIMED_FORMS or (form == "fields" and name.startswith(","))


@dataclass(frozen=True)
class Load:
    """Requests in order of arrival, one row each.

    `after` is the request that must end before this one arrives, `think_ticks` later (-1: none; the request
    arrives at its own time).  A request has at most one successor.
    """

    arrival_ticks: Ticks  # (requests,)
    input_tokens: Ticks
    output_tokens: Ticks
    after: Ticks
    think_ticks: Ticks
    notes: tuple[str, ...] = ()
    content: Sequence[Ticks] | None = None  # of each prompt: ids of its tokens, or of groups of tokens
    content_tokens: int = 1  # tokens of such a group
    refused: int = 0  # further requests that are longer than the context, and fail
    priority: Ticks | None = None  # of each request, smaller first; None: all equal

    def __post_init__(self) -> None:
        columns = [self.input_tokens, self.output_tokens, self.after, self.think_ticks]
        columns += [] if self.priority is None else [self.priority]
        sizes = {len(column) for column in columns}
        if sizes != {len(self.arrival_ticks)}:
            raise ServingError(
                f"columns of a load have {sorted(sizes | {len(self.arrival_ticks)})} rows; give equal ones"
            )
        for name, column in (("input", self.input_tokens), ("output", self.output_tokens)):
            if len(column) and int(column.min()) < 1:
                row = int(column.argmin())
                raise ServingError(f"request {row} has {int(column[row])} {name} tokens; give at least 1")
        if len(self.arrival_ticks) and int(np.diff(self.arrival_ticks).min(initial=0)) < 0:
            raise ServingError("requests are not in order of arrival; sort them by their time")
        for name in ("arrival_ticks", "input_tokens", "output_tokens", "after", "think_ticks"):
            if getattr(self, name).dtype != np.int64:
                raise ServingError(
                    f"{name} of a load holds {getattr(self, name).dtype}; give integers as int64"
                )
        self._check_after(np.flatnonzero(self.after >= 0))

    def _check_after(self, waits: NDArray[np.intp]) -> None:
        """Check that a request waits only for another existing request, for which no other request waits."""
        after = self.after[waits]
        wrong = (after >= len(self)) | (after == waits)
        if wrong.any():
            row = int(waits[wrong][0])
            raise ServingError(
                f"request {row} waits for request {int(self.after[row])} of {len(self)}; name another one of them"
            )
        if len(np.unique(after)) < len(after):
            taken = after[np.flatnonzero(np.bincount(after)[after] > 1)[0]]
            raise ServingError(
                f"several requests wait for request {int(taken)}; only one may, so let them wait for each other"
            )

    def __len__(self) -> int:
        return len(self.arrival_ticks)

    @property
    def is_closed(self) -> bool:
        """Whether some requests wait for the end of others."""
        return bool((self.after >= 0).any())

    def only(self, kept: NDArray[np.bool_]) -> Load:
        """Return a part of the requests; a request whose predecessor is left out arrives at its own time."""
        rows, place = np.flatnonzero(kept), np.cumsum(kept) - 1
        after = self.after[rows]
        follows = (after >= 0) & kept[after]
        return replace(
            self, arrival_ticks=self.arrival_ticks[rows], input_tokens=self.input_tokens[rows],
            output_tokens=self.output_tokens[rows], after=np.where(follows, place[after], NEVER),
            think_ticks=self.think_ticks[rows],
            content=None if self.content is None else tuple(self.content[row] for row in rows.tolist()),
            priority=None if self.priority is None else self.priority[rows],
        )  # fmt: skip


def open_load(
    arrival_ticks: Ticks, input_tokens: Ticks, output_tokens: Ticks, notes: tuple[str, ...] = ()
) -> Load:
    """Return an open load: every request arrives at its stated time."""
    nobody = np.full(len(arrival_ticks), NEVER, np.int64)
    return Load(arrival_ticks, input_tokens, output_tokens, nobody, np.zeros_like(nobody), notes)


@dataclass(frozen=True)
class Speculation:
    """`len(acceptance)` drafted tokens are verified together with the known one; :mod:`wse_sim.serving.speculation`.

    `acceptance[i]` is the probability that draft i is accepted if all previous ones were. The drafts of a
    request occupy the draft model's line for `busy_ticks` and are ready `delay_ticks` after their start; the
    last region spends `tail_ticks` on drafts for one request.
    """

    acceptance: tuple[float, ...]
    busy_ticks: int = 0
    delay_ticks: int = 0
    tail_ticks: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.acceptance or not all(0 <= a <= 1 for a in self.acceptance):
            raise ServingError(
                f"acceptance {self.acceptance} is invalid; give a probability from 0 to 1 for each draft"
            )
        if not 0 <= self.busy_ticks <= self.delay_ticks:
            raise ServingError(
                f"drafts that occupy {self.busy_ticks} ticks cannot be there after {self.delay_ticks}"
            )


@dataclass(frozen=True)
class EdgeLink:
    """The link that carries keys and values through the edge of a replica's wafers; transfers are served
    first come, first served."""

    token_ticks_1024: int  # 1,024 tokens
    hop_ticks: int = 0

    def ticks_of(self, tokens: int) -> int:
        """Return the ticks for which a number of tokens occupies the link."""
        return (tokens * self.token_ticks_1024 + 1023) >> 10


@dataclass(frozen=True)
class PrefillElsewhere:
    """Prefill on other machines, which send keys and values; see :mod:`wse_sim.serving.prefill_transfer`.

    Either machines that take `ticks[p]` for a prompt of p tokens, one prompt after the other, or `lines` of wafers with the same
    table of turns. `streams`: each layer is sent when it is finished; the last one of `layers` is sent at the end.
    """

    ticks: Ticks | None = None  # (longest + 1,)
    lines: int = 1
    streams: bool = True
    layers: int = 1


@dataclass(frozen=True)
class ServingRules:
    """The rules of the scheduler.

    The cache of a replica consists of `blocks` blocks of `block_tokens` tokens each. A turn has at most
    `turn_tokens` tokens, and at most `joined` requests that decode take part in it. With `reserve` a request
    is admitted only when there are enough blocks for its whole answer, so that none is preempted. With
    `prefix_cache` a request reuses the full blocks of tokens that another request began with. With
    `by_priority` requests are admitted by priority, then by arrival, and preempted in the opposite order.
    With `swap` a preempted request keeps what it computed: its cache leaves and returns through the `edge`.
    """

    blocks: int
    block_tokens: int = 16
    most_running: int = 256
    turn_tokens: int = 8
    joined: int = 1
    reserve: bool = False
    prefix_cache: bool = False
    by_priority: bool = False
    swap: bool = False
    speculation: Speculation | None = None
    edge: EdgeLink | None = None
    prefill: PrefillElsewhere | None = None

    def __post_init__(self) -> None:
        if (self.swap or self.prefill is not None) and self.edge is None:
            raise ServingError("a swap, and prefill elsewhere, need an edge; give what a token takes there")
        for name in ("blocks", "block_tokens", "most_running", "turn_tokens", "joined"):
            if getattr(self, name) < 1:
                raise ServingError(
                    f"{name.replace('_', ' ')} {getattr(self, name)} is too small; give at least 1"
                )

    def fits(self, input_tokens: int, output_tokens: int) -> bool:
        """Return whether a single request fits in the cache; its last token is never read again."""
        return -(-(input_tokens + output_tokens - 1) // self.block_tokens) <= self.blocks


@dataclass(frozen=True)
class Served:
    """The result of an engine, one row per request; :data:`NEVER` marks what did not happen (the request
    exceeds the cache).

    `gaps` is the histogram of the times between two tokens of a request, binned by :data:`GAP_EDGES`.
    `counters` are totals: turns, emitted, computed, recomputed and cached tokens, preemptions, gap_ticks (the
    sum of all gaps), running_most, blocks_most, drafts (turns of a request with drafts), and drafted,
    accepted, swapped (brought back) and handed (handed over after prefill elsewhere) tokens.
    """

    arrival_ticks: Ticks
    admitted_ticks: Ticks
    first_ticks: Ticks
    last_ticks: Ticks
    preemptions: Ticks
    gaps: Ticks  # (GAP_BINS,)
    busy_ticks: Ticks  # (regions,)
    counters: dict[str, int] = field(default_factory=dict)
    cached: Ticks = field(
        default_factory=nothing
    )  # tokens that were found when the request was admitted first
    accepted: Ticks = field(default_factory=nothing)  # drafted tokens of the request's answer
    replica: Ticks = field(default_factory=nothing)  # replica that served the request
    accepted_at: Ticks = field(default_factory=nothing)  # drafts that were accepted, by their position
    prefill_busy_ticks: Ticks = field(
        default_factory=nothing
    )  # of the regions of wafers for prefill, (regions,)
    samples: tuple[Ticks, ...] = ()
    """State of each replica at multiples of its `every_ticks`, (samples, len(SAMPLED) + regions): :data:`SAMPLED`, then busy ticks.

    A sample is the state after the most recent turn was formed; the last row is the state at the end.
    """
    every_ticks: tuple[int, ...] = ()

    @property
    def completed(self) -> NDArray[np.bool_]:
        """Whether each request was answered, (requests,)."""
        return np.asarray(self.last_ticks != NEVER)

    def only(self, kept: NDArray[np.bool_]) -> Served:
        """This result restricted to the requests in `kept`; totals over requests are unchanged."""
        return replace(
            self, arrival_ticks=self.arrival_ticks[kept], admitted_ticks=self.admitted_ticks[kept],
            first_ticks=self.first_ticks[kept], last_ticks=self.last_ticks[kept], preemptions=self.preemptions[kept],
            cached=self.cached[kept], accepted=self.accepted[kept], replica=self.replica[kept],
        )  # fmt: skip


class RunInterrupted(KeyboardInterrupt):
    """Raised when a run is interrupted; carries the result so far.

    Attributes
    ----------
    served
        The result until then, including requests that were not answered yet.
    is_answered
        Whether each request was answered, (requests,).
    """

    def __init__(self, served: Served, is_answered: NDArray[np.bool_]) -> None:
        super().__init__("interrupted")
        self.served, self.is_answered = served, is_answered


COUNTERS = (
    "turns",
    "emitted",
    "computed",
    "recomputed",
    "cached",
    "preemptions",
    "gap_ticks",
    "running_most",
    "blocks_most",
    "drafts",
    "drafted",
    "accepted",
    "swapped",
    "handed",
)

SAMPLED = ("running", "waiting", "blocks", "emitted", "computed", "recomputed", "cached", "preemptions")
"""The columns that engines sample: running and waiting requests, blocks in use, and the counters so far."""

FIRST_SAMPLE_TICKS = 10**6  # 0.1 ms


def most_samples(replicas: int) -> int:
    """Return the largest number of samples per replica; beyond it, every second sample is dropped and the
    interval doubles."""
    return 1024 if replicas <= 64 else 128
