"""Bands of rows that run in parallel: division of rows, threads that run bands, and memory without false
sharing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

SPINS = 1 << 20  # polls of another band before Python regains control: at most a second
LOOKS = 4096  # polls of another band before another thread may use the processor core: several microseconds
LINES = 16  # words of two cache lines, which processors fetch together


def own_words(*shape: int, dtype: type[np.uint64] | type[np.int64] = np.uint64) -> npt.NDArray[Any]:
    """Return zeros of 64 bits in separate cache lines, which avoids false sharing between threads."""
    length = math.prod(shape)
    raw = np.zeros(length + 2 * LINES, dtype)
    skip = -(raw.ctypes.data // 8) % LINES
    return raw[skip : skip + length].reshape(shape)


def cut(weights: npt.NDArray[np.int64], n: int) -> list[int]:
    """Return where parts 1 .. n - 1 of `weights` start; parts have at least one entry and about equal
    sums."""
    total = np.cumsum(weights)
    starts: list[int] = []
    for i in range(1, n):
        best = int(np.searchsorted(total, total[-1] * i / n)) + 1
        starts.append(min(max(best, (starts[-1] if starts else 0) + 1), len(weights) - (n - i)))
    return starts


def run_bands(bands: Sequence[Callable[[], bool]], stop: Callable[[], None], *, in_turns: bool) -> None:
    """Call every band until it is done; a band returns whether it must be called again.

    With `in_turns` all bands share this thread. If one raises, `stop` tells the others not to wait for it.
    """
    if len(bands) == 1 or in_turns:
        left = list(bands)
        while left:
            left = [band for band in left if band()]
        return
    try:
        with ThreadPoolExecutor(len(bands) - 1) as pool:
            others = [pool.submit(_run_band, band, stop) for band in bands[1:]]
            _run_band(bands[0], stop)
            for other in others:
                other.result()
    except BaseException:
        stop()
        raise


def _run_band(band: Callable[[], bool], stop: Callable[[], None]) -> None:
    try:
        while band():
            time.sleep(0)  # lets another thread have this core
    except BaseException:
        stop()
        raise
