"""State of the fast engine: rows of requests, which all replicas share, and arrays for each replica."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wse_sim.jit_bundles import by_pointer
from wse_sim.serving.base import (
    COUNTERS,
    FIRST_SAMPLE_TICKS,
    GAP_BINS,
    NEVER,
    SAMPLED,
    Load,
    ServingError,
    ServingRules,
    most_samples,
)
from wse_sim.serving.latency import TurnTable
from wse_sim.serving.prompt_tokens import flat_contents
from wse_sim.serving.speculation import threshold

Int = NDArray[np.int64]
Short = NDArray[np.int32]
ENDLESS = 2**62
MOST_HELD = 2**28  # most block slots of running requests

# Places in the array of scalars of a replica
(
    FREE, RUNNING, READY, PROMPTS, NEXT, BACK_FROM, BACK_TO, ADMISSIONS, HEAD, TAIL, WAITING, WAITING_BLOCKS, NOW, IDLE,
    ENTERS, DRAFT_FREE, LINK_FREE, MACHINE_FREE, MOVE_FROM, MOVE_TO, FREE_ROWS, STREAK, STREAK_OF, SHIFT,
    SKIPPED, SCALARS,
) = range(26)  # fmt: skip
(
    TURNS, EMITTED, COMPUTED, RECOMPUTED, CACHED, PREEMPTIONS, GAP_TICKS, RUNNING_MOST, BLOCKS_MOST, DRAFTS, DRAFTED, ACCEPTED,
    SWAPPED, HANDED,
) = range(14)  # fmt: skip  # as COUNTERS


@by_pointer
class Table(NamedTuple):
    """A :class:`TurnTable` as arrays for machine code."""

    layers: Int
    base: Int
    head: Int
    deep: Int
    grid: int


@by_pointer
class Limits(NamedTuple):
    """The rules for machine code."""

    blocks: int
    block: int
    most_running: int
    turn: int
    joined: int
    reserve: bool
    prefix: bool
    by_priority: bool
    swap: bool
    thresholds: Int  # of the drafts
    draft_busy: int
    draft_delay: int
    draft_tail: int
    seed: int
    token_ticks_1024: int  # of the edge
    hop: int
    elsewhere: int  # lines of wafers that read prompts; -1: other machines, 0: none
    elsewhere_ticks: Int  # of machines, by tokens
    streams: bool
    stream_layers: int
    jumps: bool  # repeating rounds are added in one step
    routed: bool  # requests are assigned to a replica on arrival


@by_pointer
class Requests(NamedTuple):
    """State of all requests, one row each."""

    input: Int
    output: Int
    priority: Int
    after: Int  # who follows
    think: Int
    starts: Int  # where the content of its prompt begins in `ids`
    ids: Int
    unit: int  # tokens of an id
    computed: Int
    emitted: Int
    held: Int  # blocks
    flying: Int  # turns in the line
    order: Int  # of admission; NEVER while it does not run
    ready_at: Int
    away: Int  # tokens beyond the edge
    arrival: Int
    admitted: Int
    first: Int
    last: Int
    preemptions: Int
    cached: Int
    accepted: Int
    replica: Int
    chain: Int  # key of its last full block
    row: Int  # of its blocks
    behind: Int  # next in the queue; left child in a heap
    other: Int  # right child in a heap
    enters: Int  # when its last turn entered, if it was a decode alone
    leaves: Int


@by_pointer
class Replica(NamedTuple):
    """State of one replica; the state of several replicas has one more leading axis."""

    at: Int  # scalars
    tally: Int  # counters
    running: Int  # in order of admission
    ready: Int  # decode next
    prompts: Int  # running, with tokens of a prompt to compute, in order of admission
    back: Int  # ring: request
    back_at: Int  # ring: ticks
    back_emits: Int  # ring: tokens that may be emitted
    moving: Int  # ring: request whose cache is handed over
    moving_at: Int
    moving_found: Int  # tokens that were there
    left: Int  # when each region is free, (regions,)
    left_before: Int  # a round ago
    lines: Int  # the same of wafers for prefill, (lines, regions)
    before: Short  # free blocks, in the order in which they are taken: a ring through the last place
    behind: Short
    users: Short
    key_of: Int
    keys: Int  # open addressing
    block_of: Short
    rows: Short  # blocks of running requests, (rows, longest)
    free_rows: Int
    gaps: Int
    busy: Int
    prefill_busy: Int
    accepted_at: Int
    samples: Int  # (most + 1, columns); the last row is what was seen last
    sampled: Int  # rows, ticks between two of them, whether nothing has happened since the last row was seen
    pending: Int  # how many, and then arrivals of a closed load to come, in order of time, then number, from last to first


def limits_of(rules: ServingRules, is_routed: bool) -> Limits:
    """Return the rules for machine code."""
    spec, edge, prefill = rules.speculation, rules.edge, rules.prefill
    acceptance = spec.acceptance if spec else ()
    return Limits(
        rules.blocks, rules.block_tokens, rules.most_running, rules.turn_tokens, rules.joined, rules.reserve,
        rules.prefix_cache, rules.by_priority, rules.swap,
        np.array([threshold(a) for a in acceptance], np.int64),
        spec.busy_ticks if spec else 0, spec.delay_ticks if spec else 0, spec.tail_ticks if spec else 0,
        spec.seed if spec else 0, edge.token_ticks_1024 if edge else 0, edge.hop_ticks if edge else 0,
        0 if prefill is None else -1 if prefill.ticks is not None else prefill.lines,
        zeros(0) if prefill is None or prefill.ticks is None else prefill.ticks,
        bool(prefill and prefill.streams), prefill.layers if prefill else 1,
        rules.joined == 1 and not rules.prefix_cache and not acceptance, is_routed,
    )  # fmt: skip


def requests_of(load: Load, rules: ServingRules) -> Requests:
    """Return the rows of a load."""
    count = len(load)
    follower, waits = nevers(count), load.after >= 0
    follower[load.after[waits]] = np.flatnonzero(waits)
    starts, ids = flat_contents(load.content if rules.prefix_cache else None, count)
    # Columns of one kind of memory: machine code is compiled once, whether a load was read or cut from a larger one.
    return Requests(
        input=np.ascontiguousarray(load.input_tokens), output=np.ascontiguousarray(load.output_tokens),
        priority=zeros(count) if load.priority is None else np.ascontiguousarray(load.priority), after=follower,
        think=np.ascontiguousarray(load.think_ticks),
        starts=starts, ids=ids, unit=load.content_tokens, computed=zeros(count), emitted=zeros(count), held=zeros(count),
        flying=zeros(count), order=nevers(count), ready_at=zeros(count), away=zeros(count),
        arrival=load.arrival_ticks.copy(), admitted=nevers(count), first=nevers(count), last=nevers(count),
        preemptions=zeros(count), cached=zeros(count), accepted=zeros(count), replica=nevers(count),
        chain=zeros(count if rules.prefix_cache else 1), row=zeros(count if rules.prefix_cache else 1),
        behind=nevers(count), other=nevers(count if rules.by_priority else 1),
        enters=nevers(count), leaves=zeros(count),
    )  # fmt: skip


def replicas_of(load: Load, rules: ServingRules, table: TurnTable, count: int) -> Replica:
    """`count` empty replicas, one after the other along the first axis."""
    most = min(rules.most_running, max(1, len(load)))
    # Turns queue before a slow region; every part of a turn in the line occupies a token of the cache.
    longest = int((load.input_tokens + load.output_tokens).sum())
    ring = _power_of_two(min(rules.blocks * rules.block_tokens, longest) + 1)
    moving = _power_of_two(most + 1) if rules.prefill else 1
    blocks = rules.blocks if rules.prefix_cache else 0
    rows, width = 1, 1
    if rules.prefix_cache:
        needs = -(-(load.input_tokens + load.output_tokens) // rules.block_tokens)
        rows, width = min(most, blocks), min(blocks, int(needs.max(initial=1)))
    if count * rows * width > MOST_HELD:
        raise ServingError(
            f"{rows:,} running requests of up to {width:,} blocks are too many for a prefix cache in the fast engine; "
            f"use --max-num-seqs {max(1, MOST_HELD // width // count)} or --engine reference"
        )
    lines = max(1, rules.prefill.lines) if rules.prefill else 1
    drafts = len(rules.speculation.acceptance) if rules.speculation else 0
    regions = table.regions
    made = Replica(
        at=zeros(count, SCALARS), tally=zeros(count, len(COUNTERS)), running=zeros(count, most), ready=zeros(count, most),
        prompts=zeros(count, most), back=zeros(count, ring), back_at=zeros(count, ring), back_emits=zeros(count, ring),
        moving=zeros(count, moving), moving_at=zeros(count, moving), moving_found=zeros(count, moving),
        left=zeros(count, regions), left_before=zeros(count, regions), lines=zeros(count, lines, regions), before=_short(count, blocks + 1),
        behind=_short(count, blocks + 1), users=_short(count, blocks + 1), key_of=zeros(count, blocks + 1),
        keys=zeros(count, _power_of_two(2 * blocks)), block_of=_short(count, _power_of_two(2 * blocks)),
        rows=_short(count, rows, width), free_rows=zeros(count, rows), gaps=zeros(count, GAP_BINS), busy=zeros(count, regions),
        prefill_busy=zeros(count, regions), accepted_at=zeros(count, drafts),
        samples=zeros(count, most_samples(count) + 1, len(SAMPLED) + regions), sampled=zeros(count, 3),
        pending=zeros(count, 1 + (int((load.after < 0).sum()) if load.is_closed else 0)),
    )  # fmt: skip
    made.at[:, [HEAD, TAIL]] = NEVER
    made.sampled[:, 1] = FIRST_SAMPLE_TICKS
    made.at[:, FREE], made.at[:, FREE_ROWS] = rules.blocks, rows
    made.free_rows[:] = np.arange(rows)
    places = np.arange(blocks + 1)
    made.behind[:], made.before[:] = (places + 1) % (blocks + 1), (places - 1) % (blocks + 1)
    return made


def zeros(*shape: int) -> Int:
    """Return an array of zeros."""
    return np.zeros(shape, np.int64)


def nevers(count: int) -> Int:
    """Return a column of `count` times, all :data:`NEVER`."""
    return np.full(count, NEVER, np.int64)


def _short(*shape: int) -> Short:
    return np.zeros(shape, np.int32)


def _power_of_two(least: int) -> int:
    return 1 << max(0, least - 1).bit_length()
