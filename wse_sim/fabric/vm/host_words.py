"""Words that the host sends to cores and takes from them, as arrays: a copy to all cores of a wafer is one row per core."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.vm import state as S

Array = npt.NDArray[Any]


class SentWords:
    """Injections (n, INJECTION_FIELDS): of those for one core, color and port, each begins when the one before it has ended."""

    def __init__(self, n_cores: int) -> None:
        self._n_cores = n_cores
        self.clear()

    def clear(self) -> None:
        """Drop all words that were sent."""
        self._parts: list[Array] = []
        self._words: list[Array] = []
        self._n_rows = self._n_words = 0
        self.heads: Array = np.zeros(0, np.int64)
        self._tails: dict[tuple[int, int], Array] = {}

    @property
    def rows(self) -> Array:
        """All injections; the machine changes them in place."""
        if len(self._parts) != 1:
            self._parts = [np.concatenate([np.zeros((0, S.INJECTION_FIELDS), np.int64), *self._parts])]
        return self._parts[0]

    @property
    def words(self) -> Array:
        """The words that the rows point at."""
        if len(self._words) != 1:
            self._words = [np.concatenate([np.zeros(0, np.uint32), *self._words])]
        return self._words[0]

    def add(
        self, cores: Array, slot: int, port: int, words: Array, *, begin: int, period_milli: int, flag: int
    ) -> None:
        """Send ``words`` (cores, n), uint32, one to a core every `period_milli` / 1000 cycles from cycle `begin` on; `port` -1: to the core itself."""
        k, n = words.shape
        if not n or not k:
            return
        index = self._n_rows + np.arange(k)
        rows = np.zeros((k, S.INJECTION_FIELDS), np.int64)
        rows[:, S.I_CORE], rows[:, S.I_SLOT], rows[:, S.I_PORT], rows[:, S.I_FLAG] = cores, slot, port, flag
        rows[:, S.I_POS] = self._n_words + n * np.arange(k)
        rows[:, S.I_END] = rows[:, S.I_POS] + n
        rows[:, S.I_TIME], rows[:, S.I_PERIOD], rows[:, S.I_NEXT] = 1000 * begin, period_milli, -1
        tails = self._tails.setdefault((slot, port), np.full(self._n_cores, -1, np.int64))
        before = tails[cores]
        follows = (before >= 0) & (port != S.WAKE_PORT)
        if follows.any():
            known = self.rows
            follows[follows] = known[before[follows], S.I_POS] < known[before[follows], S.I_END]
            known[before[follows], S.I_NEXT] = index[follows]
        self.heads = np.concatenate([self.heads, index[~follows]])
        tails[cores] = index
        self._parts.append(rows)
        self._words.append(np.ascontiguousarray(words, np.uint32).ravel())
        self._n_rows += k
        self._n_words += words.size


class ReceivedWords:
    """Words received from cores that were not read yet, per color."""

    def __init__(self) -> None:
        self._parts: dict[int, list[Array]] = {}

    def put(self, rows: Array) -> None:
        """Add rows (core, slot, word, cycle) that arrived since the last call."""
        rows = rows[np.argsort(rows[:, 3], kind="stable")]
        for slot in np.unique(rows[:, 1]):
            self._parts.setdefault(int(slot), []).append(rows[rows[:, 1] == slot][:, [0, 2]])

    def take(self, slot: int, cores: Array, n: int | None = None) -> Array:
        """The first `n` words (cores, n) of every core, or all of one core (1, count); `cores` ascend."""
        parts = self._parts.get(slot, [])
        rows = np.concatenate([np.zeros((0, 2), np.int64), *parts])
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        first = np.searchsorted(rows[:, 0], cores)
        if n is None:
            n = int(np.searchsorted(rows[:, 0], cores[0], side="right") - first[0])
        at = first[:, None] + np.arange(n)
        taken = rows[at, 1].astype(np.uint32)
        left = np.ones(len(rows), bool)
        left[at] = False
        self._parts[slot] = [rows[left]]
        return taken
