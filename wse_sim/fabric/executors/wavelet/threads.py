"""One thread per band, or the bands take turns in one thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from wse_sim.fabric.executors.wavelet.bands import LINE, STOPPED, Edges

SPINS = 1 << 20  # looks at another band before Python gets a word: a second at most


def run_bands(bands: Sequence[Callable[[], bool]], edges: Edges, *, in_turns: bool) -> None:
    """Call every band until it is through; each says whether it must be called again."""
    if len(bands) == 1 or in_turns:
        left = list(bands)
        while left:
            left = [band for band in left if band()]
        return
    try:
        with ThreadPoolExecutor(len(bands) - 1) as pool:
            others = [pool.submit(_run_band, band, edges) for band in bands[1:]]
            _run_band(bands[0], edges)
            for other in others:
                other.result()
    except BaseException:
        edges.shown[STOPPED::LINE] = -1
        raise


def _run_band(band: Callable[[], bool], edges: Edges) -> None:
    try:
        while band():
            time.sleep(0)  # lets another thread have this core
    except BaseException:
        edges.shown[STOPPED::LINE] = -1  # nobody waits for this band any more
        raise
