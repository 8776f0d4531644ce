"""Words of the host as arrays, against lists per core."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm.host_words import ReceivedWords, SentWords

CORES = 6
REGIONS = st.lists(st.sets(st.integers(0, CORES - 1), min_size=1), min_size=1, max_size=6)


@given(REGIONS, st.lists(st.integers(1, 3), min_size=6, max_size=6))
def test_words_of_a_core_come_one_after_another(regions: list[set[int]], counts: list[int]) -> None:
    """Every core has one first injection and a chain of those behind it, in the order of the calls, with its own words."""
    sent, wanted = SentWords(CORES), {core: [] for core in range(CORES)}
    for number, (region, n) in enumerate(zip(regions, counts, strict=False)):
        cores = np.array(sorted(region))
        words = 100 * number + 10 * cores[:, None] + np.arange(n)
        sent.add(cores, 2, -1, words, begin=7, period_milli=1500, flag=S.DATA_WORD)
        for core, row in zip(cores.tolist(), words.tolist(), strict=True):
            wanted[core] += row
    rows, found = sent.rows, {core: [] for core in range(CORES)}
    for head in sent.heads.tolist():
        core = int(rows[head, S.I_CORE])
        assert not found[core]
        while head >= 0:
            assert rows[head, S.I_CORE] == core
            found[core] += sent.words[rows[head, S.I_POS] : rows[head, S.I_END]].tolist()
            head = int(rows[head, S.I_NEXT])
    assert found == wanted


def test_an_injection_that_ended_is_no_predecessor() -> None:
    """The next copy to that core begins by itself."""
    sent = SentWords(2)
    for _ in range(2):
        sent.add(np.arange(2), 0, -1, np.ones((2, 1)), begin=0, period_milli=1000, flag=0)
        sent.rows[0, S.I_POS] = sent.rows[0, S.I_END]  # the machine has sent the word of core 0
    assert sent.heads.tolist() == [0, 1, 2]
    assert sent.rows[:, S.I_NEXT].tolist() == [-1, 3, -1, -1]


@given(st.lists(st.lists(st.tuples(st.integers(0, CORES - 1), st.integers(0, 2)), max_size=20), max_size=4))
def test_words_are_taken_in_the_order_in_which_they_came(batches: list[list[tuple[int, int]]]) -> None:
    """Batches of (core, color) with rising words: all of one core, then the first of every core that has one."""
    received, lists, word = ReceivedWords(), {}, 0
    for batch in batches:
        rows = []
        for core, slot in batch:
            rows.append((core, slot, word, word // 3))
            lists.setdefault((core, slot), []).append(word)
            word += 1
        received.put(np.array(rows, np.int64).reshape(-1, 4))
    for slot in range(3):
        assert received.take(slot, np.array([2]))[0].tolist() == lists.pop((2, slot), [])
        cores = [core for core in range(CORES) if (core, slot) in lists]
        if cores:
            first = received.take(slot, np.array(cores), 1)
            assert first.ravel().tolist() == [lists[core, slot][0] for core in cores]
            for core in cores:
                assert received.take(slot, np.array([core]))[0].tolist() == lists[core, slot][1:]
