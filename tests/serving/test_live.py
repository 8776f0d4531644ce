"""Replicas that receive requests while they run have the times of the reference engine; aborted requests leave nothing
behind.
"""

from __future__ import annotations

import pickle
from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from tests.serving.made import open_of, replicas, table_of_ticks
from wse_sim.serving.base import TICK_S, Load, ServingError, ServingRules
from wse_sim.serving.latency import TurnTable
from wse_sim.serving.line import serve_reference
from wse_sim.serving.live import LiveReplicas, LiveTimes
from wse_sim.serving.predictor import Predictor
from wse_sim.serving.run import Replica


def replay(replica: Replica, rows: list[tuple[int, int, int]], step: int) -> dict[int, LiveTimes]:
    """Serve (arrival, input, output) rows in steps of that many ticks; the times of each."""
    line, waiting, done = LiveReplicas(replica), list(rows), 0
    while done < len(rows):
        to = line.now + step
        while waiting and waiting[0][0] <= to:
            at, input_tokens, output_tokens = waiting.pop(0)
            line.submit(input_tokens, output_tokens, delay=max(0, at - line.now))
        done += sum(token.is_last for token in line.advance(to))
    return {number: line.times(number) for number in range(len(rows))}


@pytest.mark.slow
@examples(40)
@given(replicas(), st.integers(50, 20_000))
def test_steps_of_any_size_give_the_times_of_a_run(
    given_: tuple[Load, ServingRules, TurnTable], step: int
) -> None:
    """Arrivals become known at the end of the step in which they occur, so both engines put them there."""
    load, rules, table = given_
    fits = [rules.fits(int(p), int(o)) for p, o in zip(load.input_tokens, load.output_tokens, strict=True)]
    rows = [
        (int(at) // step * step, int(p), int(o))
        for at, p, o in zip(np.sort(load.arrival_ticks)[fits], load.input_tokens[fits], load.output_tokens[fits], strict=True)
    ]  # fmt: skip
    if not rows:
        return
    live = replay(Replica(table, rules), rows, step)
    served = serve_reference(open_of(*rows), rules, table)
    for number, times in live.items():
        assert times == (
            served.arrival_ticks[number], served.admitted_ticks[number], served.first_ticks[number],
            served.last_ticks[number],
        )  # fmt: skip


@examples(25)
@given(replicas(), st.integers(0, 2**32 - 1))
def test_who_goes_leaves_no_blocks_and_no_request(
    given_: tuple[Load, ServingRules, TurnTable], seed: int
) -> None:
    """Some of the requests end at random times; the others are answered, and the cache is empty at the end."""
    load, rules, table = given_
    rng = np.random.default_rng(seed)
    line, waits = LiveReplicas(Replica(table, rules)), {}
    for p, o in zip(load.input_tokens.tolist(), load.output_tokens.tolist(), strict=True):
        if rules.fits(p, o):
            waits[line.submit(p, o)] = o
        for token in line.advance(line.now + int(rng.integers(0, 30_000))):
            waits[token.number] -= token.tokens
        if waits and rng.random() < 0.4:
            number = int(rng.choice(list(waits)))
            if waits.pop(number):
                line.forget(number)
    while line.next_at() is not None:
        for token in line.advance(line.now + 10**6):
            waits[token.number] -= token.tokens
    assert not any(waits.values())
    assert line.lines[0].scheduler.pool.free == rules.blocks
    assert (line.running, line.waiting) == (0, 0)


def test_equal_beginnings_are_found_in_the_cache() -> None:
    rules = ServingRules(blocks=40, block_tokens=4, turn_tokens=8, prefix_cache=True)
    line = LiveReplicas(Replica(table_of_ticks([[100] * 8] * 2), rules))
    for ids in ((1, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 4, 5, 6, 7, 8, 10), (2, 2, 3, 4, 5, 6, 7, 8, 9)):
        line.submit(len(ids), 2, ids)
        line.advance(line.now + 10**6)
    assert line.tally("cached") == 8  # two blocks of the second, none of the third


TABLE = table_of_ticks(
    [[1000, 1500, 1900, 2200], [900, 1700, 2600, 3400]], grid=10, deep=[0, 0, 7, 20, 40], head=[0, 300]
)
RULES = ServingRules(blocks=50, block_tokens=4, turn_tokens=4, joined=2)


def test_a_predictor_has_the_numbers_of_the_table_and_is_pickled() -> None:
    """The numbers equal those that the reference reads from the table, in each region and in total."""
    predictor = pickle.loads(pickle.dumps(Predictor(Replica(TABLE, RULES))))
    for prefill, decode, ends in (
        ([], [5], 0), ([(3, 3)], [], 1), ([(2, 12)], [31, 9], 0), ([(1, 40), (2, 2)], [11], 1),
    ):  # fmt: skip
        parts = [(1, c, 1) for c in decode]
        parts += [(n, c, int(k < ends)) for k, (n, c) in enumerate(prefill)]
        ticks = TABLE.ticks_of(parts)
        found = predictor.turn_s(prefill, decode, ends=ends)
        assert found.stage_s == ticks.max() * TICK_S
        assert found.latency_s == ticks.sum() * TICK_S
        assert predictor.stages_s(prefill, decode, ends=ends) == tuple((ticks * TICK_S).tolist())
    assert (predictor.kv_blocks, predictor.regions, predictor.limits.turn_tokens) == (50, 2, 4)


@pytest.mark.parametrize(
    ("prefill", "decode"), [([], []), ([(5, 5)], []), ([], [41]), ([(1, 100)], [3]), ([(4, 4)], [1])]
)
def test_turns_beyond_the_limits_are_refused(prefill: list[tuple[int, int]], decode: list[int]) -> None:
    with pytest.raises(ServingError, match="give 1 to 4 tokens"):
        Predictor(Replica(TABLE, RULES)).turn_s(prefill, decode)


def test_a_scheduler_of_ones_own_on_the_predictor_gives_the_run() -> None:
    """A first-come, first-served scheduler with one request at a time uses only the predictor: it equals a run that
    admits one at a time.
    """
    rules = ServingRules(blocks=50, block_tokens=4, most_running=1, turn_tokens=4)
    load = open_of((0, 9, 3), (10, 4, 2), (20_000, 1, 4))
    served = serve_reference(load, rules, TABLE)
    predictor, now, firsts, lasts = Predictor(Replica(TABLE, rules)), 0.0, [], []
    waiting = deque(
        zip(load.arrival_ticks * TICK_S, load.input_tokens.tolist(), load.output_tokens.tolist(), strict=True)
    )
    while waiting:
        arrival, prompt, output = waiting.popleft()
        now = max(now, arrival)
        free = [now, now]  # when each region is free
        for begin in range(0, prompt, 4):
            end, at = min(prompt, begin + 4), free[0]
            for region, took in enumerate(predictor.stages_s([(end - begin, end)], ends=int(end == prompt))):
                at = free[region] = max(free[region], at) + took
        now = free[-1]
        firsts.append(now)
        for context in range(prompt + 1, prompt + output):
            now += predictor.turn_s(decode=[context]).latency_s
        lasts.append(now)
    assert firsts == pytest.approx(served.first_ticks * TICK_S, abs=1e-12)
    assert lasts == pytest.approx(served.last_ticks * TICK_S, abs=1e-12)
