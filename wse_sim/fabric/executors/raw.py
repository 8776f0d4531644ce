"""What a stepped executor hands over: plain arrays, before they become a result."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt


@dataclasses.dataclass(frozen=True)
class RawRun:
    """State rows (R, width) and layout of the cores, outcome (kind, cycle, core, slot), counters per router.

    ``links``, ``blocked`` (R, 5); ``router_high`` (R,); ``waiting`` (slots, R, 5) words left in router queues;
    ``position`` (slots, R) switch positions; ``bins`` (n, R) busy cycles per bin; ``trace`` (rows, 9).
    """

    st: npt.NDArray[np.int32]
    lay: npt.NDArray[np.int64]
    outcome: npt.NDArray[np.int64]
    links: npt.NDArray[np.int64]
    blocked: npt.NDArray[np.int64]
    router_high: npt.NDArray[np.int64]
    waiting: npt.NDArray[np.integer]
    position: npt.NDArray[np.integer]
    bins: npt.NDArray[np.int32]
    trace: npt.NDArray[np.int64]
