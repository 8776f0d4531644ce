"""Tables and loads for tests."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import strategies as st

from wse_sim.serving.base import (
    NEVER,
    EdgeLink,
    Load,
    PrefillElsewhere,
    ServingRules,
    Speculation,
    open_load,
)
from wse_sim.serving.latency import TurnTable
from wse_sim.serving.router import ROUTERS


def table_of_ticks(
    base: list[list[int]], *, grid: int = 1000, deep: list[int] | None = None, head: list[int] | None = None
) -> TurnTable:
    """Return a table of given ticks; without `deep`, contexts cost nothing up to 1,000 slots."""
    rows = np.array([[0, *row] for row in base], np.int64)
    return TurnTable(
        grid,
        np.ones(len(rows), np.int64),
        rows,
        np.array(head or [0] * len(rows), np.int64),
        np.array(deep or [0] * 1001, np.int64),
    )


def open_of(*rows: tuple[int, int, int]) -> Load:
    """Return an open load of (arrival ticks, input tokens, output tokens)."""
    return open_load(*(np.array(column, np.int64) for column in zip(*rows, strict=True)))


@st.composite
def replicas(draw: st.DrawFn) -> tuple[Load, ServingRules, TurnTable]:
    """Draw a small load, open or closed, rules that sometimes preempt, and an uneven table."""
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    regions, turn, count = draw(st.integers(1, 5)), draw(st.integers(1, 12)), draw(st.integers(1, 30))
    base = np.cumsum(rng.integers(1, 2000, (regions, turn + 1)), axis=1)
    base[:, 0] = 0
    deep = np.concatenate([[0, 0], np.cumsum(rng.integers(0, 50, 99))])
    table = TurnTable(
        int(rng.integers(3, 20)), rng.integers(0, 5, regions), base, rng.integers(0, 300, regions), deep
    )
    rules = ServingRules(
        blocks=draw(st.integers(8, 60)),
        block_tokens=draw(st.integers(1, 8)),
        most_running=draw(st.integers(1, 12)),
        turn_tokens=turn,
        joined=draw(st.integers(1, 6)),
        reserve=draw(st.booleans()),
    )
    sizes = rng.integers(1, 40, count), rng.integers(1, 30, count)
    users = draw(st.integers(0, 4))
    if not users:
        span = draw(st.sampled_from([1, 5_000, 200_000]))
        return open_load(np.sort(rng.integers(0, span, count)), *sizes), rules, table
    after = np.arange(count) - users
    after[after < 0] = NEVER
    think = rng.integers(0, draw(st.sampled_from([1, 3000])), count)  # without, many come at one instant
    return Load(np.zeros(count, np.int64), *sizes, after, think), rules, table


@st.composite
def services(draw: st.DrawFn) -> tuple[Load, ServingRules, TurnTable, int, str]:
    """Draw :func:`replicas` with every option, several replicas, and a router."""
    load, rules, table = draw(replicas())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count, size = len(load), draw(st.integers(1, 5))
    if draw(st.booleans()):  # prompts that begin like one of two others
        whole = rng.integers(0, 2, (2, 40))
        content = []
        for tokens in load.input_tokens.tolist():
            ids = whole[rng.integers(2)][: -(-tokens // size)].copy()
            ids[rng.integers(0, 40) :] = 7
            content.append(ids)
        load = dataclasses.replace(load, content=content, content_tokens=size)
    if draw(st.booleans()):
        load = dataclasses.replace(load, priority=rng.integers(0, 3, count))
    edge = EdgeLink(int(rng.integers(0, 300 * 1024)), int(rng.integers(0, 500)))
    speculation = prefill = None
    if drafts := draw(st.integers(0, 4)):
        busy = draw(st.sampled_from([0, 30, 3000]))
        delay = busy + int(rng.integers(0, 2000))
        tail = draw(st.sampled_from([0, 200]))
        acceptance = tuple(rng.choice([0.0, 0.4, 0.8, 1.0], drafts).tolist())
        speculation = Speculation(acceptance, busy, delay, tail, draw(st.integers(0, 2**31)))
    way = draw(st.sampled_from(["here", "machines", "wafers"]))
    if way != "here":
        times = np.concatenate([[0], np.cumsum(rng.integers(0, 500, 200))]) if way == "machines" else None
        prefill = PrefillElsewhere(
            times, int(rng.integers(1, 4)), bool(rng.integers(2)), int(rng.integers(1, 9))
        )
    rules = dataclasses.replace(
        rules,
        prefix_cache=load.content is not None or draw(st.booleans()),
        by_priority=draw(st.booleans()),
        swap=draw(st.booleans()),
        speculation=speculation,
        edge=edge,
        prefill=prefill,
    )
    return load, rules, table, draw(st.integers(1, 3)), draw(st.sampled_from(ROUTERS))
