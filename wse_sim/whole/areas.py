"""What every program of a whole model says of itself, so that its times can be compared with the event engine's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Program

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class FabricPlace:
    """The compute cores of a region.

    `ahead_cycles`: what a core issues to take in operands of its first sample that may come before the last of them.
    """

    name: str
    rows: slice
    cols: slice
    ahead_cycles: float = field(default=0.0, kw_only=True)


@dataclass(frozen=True)
class StreamLinks:
    """Links side by side that a stream uses, and how long its ways are, next to what the plan gives it."""

    tensor: str
    planned_links: int
    links: int
    planned_hops: int
    least_hops: int
    most_hops: int


class Made(Protocol):
    """A plan as one fabric program."""

    @property
    def program(self) -> Program:
        """Of all regions and streams."""
        ...

    @property
    def config(self) -> FabricConfig:
        """Of its fabric."""
        ...

    @property
    def areas(self) -> tuple[FabricPlace, ...]:
        """The regions in the order of the plan's stages."""
        ...

    @property
    def stream_links(self) -> tuple[StreamLinks, ...]:
        """The streams."""
        ...

    @property
    def laid_words(self) -> NDArray[np.float64]:
        """(rows, cols, 4) words of a sample on every link, of all streams on their ways."""
        ...

    def inputs(self, weights: dict[str, Floats], values: Floats) -> dict[str, Floats]:
        """Buffers of a run: parameters by name, and the rows of all samples (rows, K)."""
        ...

    def outputs(self, read: dict[str, Floats]) -> NDArray[np.float16]:
        """(rows, N) from what the host collected, by buffer."""
        ...
