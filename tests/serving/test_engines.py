"""Both engines obey the rules: they are equal bit for bit, lose nothing, and have the waits of queueing theory."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import cases, examples
from tests.serving.made import open_of, replicas, services, table_of_ticks
from wse_sim.serving.base import (
    NEVER,
    EdgeLink,
    Load,
    PrefillElsewhere,
    Served,
    ServingError,
    ServingRules,
    open_load,
)
from wse_sim.serving.fast_engine import play, serve_fast
from wse_sim.serving.fast_state import SKIPPED
from wse_sim.serving.latency import TurnTable
from wse_sim.serving.line import serve_reference
from wse_sim.serving.router import ROUND_ROBIN

COLUMNS = (
    "arrival_ticks",
    "admitted_ticks",
    "first_ticks",
    "last_ticks",
    "preemptions",
    "gaps",
    "busy_ticks",
    "every_ticks",
    "cached",
    "accepted",
    "replica",
    "accepted_at",
    "prefill_busy_ticks",
)


def both(
    load: Load, rules: ServingRules, table: TurnTable, replicas: int = 1, router: str = ROUND_ROBIN
) -> Served:
    """Return the answer of both engines, which must be one."""
    slow, fast = (serve(load, rules, table, replicas, router) for serve in (serve_reference, serve_fast))
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(slow, name), getattr(fast, name), name)
    for one, other in zip(slow.samples, fast.samples, strict=True):
        np.testing.assert_array_equal(one, other)
    assert slow.counters == fast.counters
    return fast


@examples(150)
@given(st.one_of(replicas().map(lambda one: (*one, 1, ROUND_ROBIN)), services()))
def test_engines_are_equal_and_conserve_tokens(
    given_: tuple[Load, ServingRules, TurnTable, int, str],
) -> None:
    """Every token is computed once, except the last of an answer and tokens found or read elsewhere; preempted ones are
    computed again, and rejected ones additionally.
    """
    load, rules, table, replicas_, router = given_
    served = both(load, rules, table, replicas_, router)
    counters = served.counters
    done = served.completed
    fits = np.array(
        [rules.fits(int(p), int(o)) for p, o in zip(load.input_tokens, load.output_tokens, strict=True)]
    )
    np.testing.assert_array_equal(done, fits)
    lengths = load.input_tokens + load.output_tokens - 1
    again = counters["recomputed"] + counters["drafted"] - counters["accepted"]
    elsewhere = counters["cached"] + counters["handed"]
    assert counters["computed"] == int(lengths[done].sum()) + again - elsewhere
    assert counters["emitted"] == int(load.output_tokens[done].sum())
    assert counters["gap_ticks"] == int((served.last_ticks - served.first_ticks)[done].sum())
    assert int(served.gaps.sum()) == counters["emitted"] - int(done.sum()) - counters["accepted"]
    assert counters["accepted"] == int(served.accepted.sum()) == int(served.accepted_at.sum())
    assert counters["blocks_most"] <= rules.blocks
    assert counters["running_most"] <= rules.most_running
    assert int(served.preemptions.sum()) == counters["preemptions"]
    assert not (rules.reserve and counters["preemptions"])
    assert not (rules.swap and counters["recomputed"])
    ordered = (served.arrival_ticks, served.admitted_ticks, served.first_ticks, served.last_ticks)
    for before, after in itertools.pairwise(ordered):
        assert (before[done] <= after[done]).all()
    # A tight line: no region works longer than from the first arrival to the last token.
    if done.any():
        span = served.last_ticks.max() - served.arrival_ticks[done].min()
        assert served.busy_ticks.max() <= replicas_ * span


@examples(40)
@given(replicas())
def test_time_has_no_unit(given_: tuple[Load, ServingRules, TurnTable]) -> None:
    """If all input times are tripled, all output times are tripled."""
    load, rules, table = given_
    slower = TurnTable(table.grid, table.layers, 3 * table.base, 3 * table.head, 3 * table.deep)
    later = dataclasses.replace(load, arrival_ticks=3 * load.arrival_ticks, think_ticks=3 * load.think_ticks)
    one, three = serve_fast(load, rules, table), serve_fast(later, rules, slower)
    done = one.completed
    for name in ("first_ticks", "last_ticks"):
        np.testing.assert_array_equal(3 * getattr(one, name)[done], getattr(three, name)[done])


@pytest.mark.slow
@examples(25)
@given(st.integers(0, 2**32 - 1))
def test_rounds_that_repeat_are_added_as_they_are_played(seed: int) -> None:
    """Long answers of few requests on a line of uneven regions are compared with the reference, which plays every turn.

    Caches that are on their way for long, of preempted requests or read elsewhere, have no part in the rounds of the others.
    """
    rng = np.random.default_rng(seed)
    regions, count = int(rng.integers(1, 5)), int(rng.integers(1, 6))
    layers, base = rng.integers(0, 3, regions), np.cumsum(rng.integers(1, 900, (regions, 5)), axis=1)
    base[:, 0] = 0
    deep = np.concatenate([[0, 0], np.cumsum(rng.integers(0, 40, 40))])
    table = TurnTable(int(rng.integers(20, 90)), layers, base, rng.integers(0, 90, regions), deep)
    rules = ServingRules(
        blocks=int(rng.integers(40, 200)), block_tokens=int(rng.integers(4, 17)), turn_tokens=4,
        swap=bool(rng.integers(2)), reserve=bool(rng.integers(2)), edge=EdgeLink(int(rng.integers(3_000_000)), 9),
        prefill=PrefillElsewhere(np.arange(500) * 300, streams=bool(rng.integers(2))) if rng.integers(2) else None,
    )  # fmt: skip
    arrivals = np.sort(rng.integers(0, 300_000, count))
    load = open_load(arrivals, rng.integers(1, 20, count), rng.integers(1, 400, count))
    both(load, rules, table)


def test_a_cache_on_its_way_is_no_part_of_rounds_that_repeat() -> None:
    """Two requests decode alternately while the prompt of a third is read elsewhere: rounds are those of two."""
    rules = ServingRules(
        blocks=9, block_tokens=7, most_running=3, turn_tokens=2, edge=EdgeLink(261_311, 318),
        prefill=PrefillElsewhere(np.arange(100) * 255, streams=False),
    )  # fmt: skip
    deep = [0, 0, 13, 28, 30, 33, 33, 41, 81, 113, 158, 183, *range(200, 2000, 20)]
    table = table_of_ticks([[2975, 3997]], grid=8, head=[237], deep=deep)
    both(open_of((0, 35, 10), (0, 4, 17), (0, 3, 5), (0, 27, 25)), rules, table)


@pytest.mark.slow
def test_most_turns_of_a_lone_answer_are_added_at_once() -> None:
    """One request of 1,000 tokens with slots of 100: at most ten rounds begin another slot, and each repetition is
    found after a few turns.
    """
    table = table_of_ticks([[7, 9], [5, 8]], grid=100)
    rules = ServingRules(blocks=1000, turn_tokens=2)
    _, every, _ = play(open_of((0, 3, 1000)), rules, table, 1, ROUND_ROBIN)
    assert every.at[0, SKIPPED] > 900
    both(open_of((0, 3, 1000)), rules, table)


def test_a_lone_request_on_paper() -> None:
    """There are two regions of 10 + 2 n and 20 + n ticks, a prompt of 5 in turns of 2, then two decodes.

    Turns of 2, 2, 1 tokens take 14, 14, 12 in the first region: done at 14, 28, 40.  In the second 22, 22, 21: 36, 58, 79, the
    first token.  A decode takes 12 + 21 = 33: 112 and 145.
    """
    table = table_of_ticks([[12, 14], [21, 22]])
    served = both(open_of((0, 5, 3)), ServingRules(blocks=10, turn_tokens=2), table)
    assert (served.first_ticks[0], served.last_ticks[0]) == (79, 145)
    assert served.counters["gap_ticks"] == 66
    assert served.busy_ticks.tolist() == [14 + 14 + 12 + 12 + 12, 22 + 22 + 21 + 21 + 21]


def test_a_preempted_request_computes_its_tokens_again() -> None:
    """Four blocks of 2 tokens serve two requests of 2 + 4: the younger loses its blocks when both have a length of 4
    and need more.

    One region, a tick a turn of one token, one decode a turn.  Both are admitted (a block each), grow to two blocks each with
    their third token; the first to need a third block is the older one.
    """
    table = table_of_ticks([[1, 1, 1, 1]])
    rules = ServingRules(blocks=4, block_tokens=2, turn_tokens=4, joined=2)
    served = both(open_of((0, 2, 4), (0, 2, 4)), rules, table)
    assert served.preemptions.tolist() == [0, 1]
    assert served.counters["recomputed"] == 4
    assert served.last_ticks[0] < served.last_ticks[1]


def test_blocks_for_the_whole_answer_are_held_from_the_start() -> None:
    """Two requests need three blocks each and four are free: they run one after the other."""
    table = table_of_ticks([[1, 1, 1, 1]])
    rules = ServingRules(blocks=4, block_tokens=2, turn_tokens=4, joined=2, reserve=True)
    served = both(open_of((0, 2, 4), (0, 2, 4)), rules, table)
    assert served.admitted_ticks[1] == served.last_ticks[0]


def test_a_request_longer_than_the_cache_fails_alone() -> None:
    table = table_of_ticks([[5, 5]])
    served = both(
        open_of((0, 2, 2), (0, 50, 2), (0, 2, 2)),
        ServingRules(blocks=3, block_tokens=2, turn_tokens=2),
        table,
    )
    assert served.completed.tolist() == [True, False, True]
    assert served.last_ticks[1] == served.admitted_ticks[1] == NEVER


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("rho", "sizes"),
    [(0.5, (1,)), (0.9, (1,)), (0.7, (1, 9))],
    ids=["M/D/1, half", "M/D/1, nine tenths", "M/G/1"],
)
def test_waits_are_those_of_queueing_theory(rho: float, sizes: tuple[int, ...]) -> None:
    """Pollaczek and Khinchine give a wait of lambda E[S^2] / (2 (1 - rho)).

    One region, turns of one token, requests of `sizes` tokens of prompt and one of answer: each takes as many turns of 1,000
    ticks as its prompt has tokens, first come first served.
    """
    count, tick = cases(400_000), 1000
    rng = np.random.default_rng(7)
    prompts = rng.choice(sizes, count)
    mean, square = float(np.mean(sizes)), float(np.mean(np.square(sizes)))
    arrivals = np.cumsum(rng.exponential(tick * mean / rho, count)).round().astype(np.int64)
    load = open_load(arrivals, prompts, np.ones(count, np.int64))
    rules = ServingRules(blocks=10**6, turn_tokens=1, most_running=10**5)
    served = serve_fast(load, rules, table_of_ticks([[tick]]))
    waits = served.first_ticks - arrivals - prompts * tick
    wanted = rho / (tick * mean) * tick**2 * square / (2 * (1 - rho))
    # The error of the mean of a correlated series: batches of 100 parts.
    parts = waits[: count // 100 * 100].reshape(100, -1).mean(axis=1)
    assert abs(waits.mean() - wanted) < 5 * parts.std() / 10 + 0.5
    # Little: requests in the system are arrivals a tick times the time in it.
    inside = np.concatenate([np.ones(count), -np.ones(count)])
    times = np.concatenate([arrivals, served.last_ticks])
    order = np.argsort(times, kind="stable")
    spans = np.diff(times[order])
    integral = float(np.dot(np.cumsum(inside[order])[:-1], spans))
    assert integral == pytest.approx(float((served.last_ticks - arrivals).sum()), rel=1e-12)


def test_a_queue_of_exponential_services_is_m_m_1() -> None:
    """One request runs at a time, in one turn with as many ticks as its prompt has tokens: exponential, 500 on average.

    At a load of 0.8 the mean wait is rho / (mu - lambda) = 2,000 ticks, and one waits longer than t with probability
    rho exp(-(mu - lambda) t).
    """
    count, mean, rho = cases(400_000), 500.0, 0.8
    rng = np.random.default_rng(11)
    prompts = np.ceil(rng.exponential(mean, count)).astype(np.int64)
    arrivals = np.cumsum(rng.exponential((mean + 0.5) / rho, count)).round().astype(np.int64)
    longest = int(prompts.max())
    rules = ServingRules(blocks=10**6, turn_tokens=longest, most_running=1)
    load = open_load(arrivals, prompts, np.ones(count, np.int64))
    served = serve_fast(load, rules, table_of_ticks([list(range(1, longest + 1))]))
    np.testing.assert_array_equal(served.last_ticks - served.admitted_ticks, prompts)
    waits = (served.admitted_ticks - arrivals).astype(float)
    for found, wanted in [
        (waits, rho * (mean + 0.5) / (1 - rho)),
        *((waits > t, rho * np.exp(-(1 - rho) / (mean + 0.5) * t)) for t in (0.0, 1000.0, 5000.0)),
    ]:
        parts = found[: count // 100 * 100].reshape(100, -1).mean(axis=1)
        # Whole ticks: a mean half a tick long, arrivals rounded to half a tick.
        assert abs(found.mean() - wanted) < 5 * parts.std() / 10 + 0.002 * wanted


@pytest.mark.slow
@pytest.mark.parametrize("users", [1, 3, 20])
def test_users_who_never_think_meet_the_bounds(users: int) -> None:
    """R regions of 100 ticks: N users get min(N / (R t), 1 / t) tokens a tick, if answers are long."""
    regions, tick, tokens = 8, 100, 200
    after = np.arange(4 * users) - users
    after[after < 0] = NEVER
    ones = np.ones(4 * users, np.int64)
    load = Load(0 * ones, ones, tokens * ones, after, 0 * ones)
    served = both(
        load,
        ServingRules(blocks=10**5, turn_tokens=1, most_running=users),
        table_of_ticks([[tick]] * regions),
    )
    rate = served.counters["emitted"] / int(served.last_ticks.max())
    assert rate == pytest.approx(min(users / (regions * tick), 1 / tick), rel=0.01)


@pytest.mark.parametrize(
    ("load", "rules", "says"),
    [
        (open_of((0, 5, 5)), ServingRules(9, turn_tokens=3), "turns of 3 tokens exceed the 2 of the table"),
        (open_of((0, 1, 1), (0, 1500, 600)), ServingRules(999), "contexts of 2100 tokens exceed the 2000 of the table"),
        (open_of((0, 9, 2)), ServingRules(9, edge=EdgeLink(1), prefill=PrefillElsewhere(np.arange(10))), "exceed the 9"),
    ],
)  # fmt: skip
def test_what_is_beyond_a_table_is_said_before_it_is_read(load: Load, rules: ServingRules, says: str) -> None:
    """Machine code does not check whether a row exists."""
    table = table_of_ticks([[10, 11]], grid=1000, deep=[0, 0, 5])
    rules = rules if "turns" in says else dataclasses.replace(rules, turn_tokens=2)
    with pytest.raises(ServingError, match=says):
        serve_fast(load, rules, table)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"after": np.array([NEVER, 7])}, "request 1 waits for request 7 of 2"),
        ({"after": np.array([NEVER, 1])}, "request 1 waits for request 1 of 2"),
        ({"input_tokens": np.array([1.0, 2.0])}, "input_tokens of a load holds float64"),
    ],
)
def test_a_load_that_machine_code_cannot_follow_is_refused(change: dict[str, np.ndarray], says: str) -> None:
    with pytest.raises(ServingError, match=says):
        dataclasses.replace(open_of((0, 1, 1), (5, 2, 2)), **change)


def test_two_cannot_wait_for_one() -> None:
    rows = np.zeros(3, np.int64)
    with pytest.raises(ServingError, match="several requests wait for request 0"):
        Load(rows, rows + 1, rows + 1, np.array([NEVER, 0, 0]), rows)


def test_no_replica_serves_nothing() -> None:
    with pytest.raises(ServingError, match="0 replicas are outside 1 to"):
        serve_fast(open_of((0, 1, 1)), ServingRules(9, turn_tokens=1), table_of_ticks([[10]]), 0)
