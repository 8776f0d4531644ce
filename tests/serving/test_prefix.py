"""The prefix cache finds blocks with equal beginnings, and counts nothing twice."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from tests.serving.made import open_of, replicas, table_of_ticks
from wse_sim.serving.base import Load, ServingRules
from wse_sim.serving.blocks import BlockPool, PrefixKeys
from wse_sim.serving.latency import TurnTable
from wse_sim.serving.line import serve_reference

TABLE = table_of_ticks([[10] * 16])


def alike(*contents: list[int], output: int = 2) -> Load:
    """Make requests one after the other, each with the ids of its prompt."""
    load = open_of(*((10_000 * n, len(ids), output) for n, ids in enumerate(contents)))
    return dataclasses.replace(load, content=tuple(np.array(ids, np.int64) for ids in contents))


def served_tokens(load: Load, **rules: int) -> tuple[int, int]:
    """Return the tokens that were computed, and that were found."""
    given_ = {"blocks": 50, "block_tokens": 4, "turn_tokens": 16, "prefix_cache": True, **rules}
    counters = serve_reference(load, ServingRules(**given_), TABLE).counters
    return counters["computed"], counters["cached"]


def test_full_blocks_of_the_same_beginning_are_found() -> None:
    """With blocks of 4, 10 equal tokens have two complete blocks; with 8 equal tokens of 8 the last token is computed
    anyway.
    """
    ten = list(range(10))
    assert served_tokens(alike(ten, ten)) == (11 + 3, 8)
    eight = list(range(8))
    assert served_tokens(alike(eight, eight)) == (9 + 5, 4)
    # Alike from the second token on is not alike from the start.
    assert served_tokens(alike(ten, [99, *ten[1:]])) == (22, 0)
    # The answer's own tokens are nobody else's: a block that holds one is not shared.
    assert served_tokens(alike(list(range(7)), list(range(9)), output=5)) == (11 + 9, 4)


def test_what_was_taken_for_others_is_gone() -> None:
    """With six blocks, a prompt of three and then one of five others, at most the first block of the first prompt is
    left.
    """
    first, other = list(range(12)), list(range(100, 120))
    computed, cached = served_tokens(alike(first, other, first), blocks=6)
    assert cached in (0, 4)
    assert computed == 13 + 21 + 13 - cached
    assert served_tokens(alike(first, other, first), blocks=12) == (13 + 21 + 13 - 8, 8)


def test_ids_of_runs_of_tokens_are_blocks_of_them() -> None:
    """An id of 8 tokens is two blocks of 4; prompts of 20 tokens share their first id."""
    load = dataclasses.replace(alike([1, 2, 3], [1, 9, 3]), content_tokens=8)
    load = dataclasses.replace(load, input_tokens=np.array([20, 20]))
    assert served_tokens(load) == (21 + 21 - 8, 8)


@examples(60)
@given(replicas(), st.integers(0, 2**32 - 1))
def test_tokens_are_conserved_and_alike_prompts_are_never_later(
    given_: tuple[Load, ServingRules, TurnTable], seed: int
) -> None:
    load, rules, table = given_
    rng = np.random.default_rng(seed)
    content = tuple(rng.integers(0, 2, int(n)) * (np.arange(n) > n // 2) for n in load.input_tokens)
    load = dataclasses.replace(load, content=content)
    served = serve_reference(load, dataclasses.replace(rules, prefix_cache=True), table)
    done = served.completed
    lengths = int((load.input_tokens + load.output_tokens - 1)[done].sum())
    counters = served.counters
    assert counters["computed"] == lengths + counters["recomputed"] - counters["cached"]
    assert counters["emitted"] == int(load.output_tokens[done].sum())
    assert counters["blocks_most"] <= rules.blocks


@examples(60)
@given(
    st.lists(
        st.tuples(st.sampled_from(["grow", "release", "share"]), st.integers(0, 3), st.integers(1, 9)),
        max_size=60,
    )
)
def test_a_pool_neither_loses_nor_makes_blocks(steps: list[tuple[str, int, int]]) -> None:
    """The users of every block are the requests that hold it; free blocks are held by no request."""
    load = alike([0] * 40, [0] * 40, [1] * 40, [0] * 40)
    pool, held = BlockPool(12, 4, PrefixKeys(load, 4)), [[], [], [], []]
    for what, number, tokens in steps:
        mine = held[number]
        if what == "release":
            pool.release(mine)
        elif what == "share" and not mine:
            pool.share(mine, pool.found(number, 4 * tokens))
        elif what == "grow" and pool.has_room(4 * (len(mine) + 1), mine):
            pool.grow(mine, 4 * (len(mine) + 1))
            pool.register(number, mine, 4 * (len(mine) - 1), 4 * len(mine))
        used = {block for blocks in held for block in blocks}
        assert pool.free == 12 - len(used)
        assert all(len(set(blocks)) == len(blocks) for blocks in held)
