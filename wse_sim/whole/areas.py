"""Common interface of fabric programs of complete models, for comparison with the event engine."""

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
    """The compute cores of a region, as a rectangle of the fabric.

    `ahead_cycles`: cycles in which a core reads operands of its first sample that may arrive before the last
    operand does.
    """

    name: str
    rows: slice
    cols: slice
    ahead_cycles: float = field(default=0.0, kw_only=True)


@dataclass(frozen=True)
class StreamLinks:
    """Parallel links and route lengths of a stream on the fabric, and the plan's values for both."""

    tensor: str
    planned_links: int
    links: int
    planned_hops: int
    least_hops: int
    most_hops: int


class Made(Protocol):
    """A plan that was compiled to one fabric program."""

    @property
    def program(self) -> Program:
        """The fabric program with all regions and streams."""
        ...

    @property
    def config(self) -> FabricConfig:
        """Configuration of the fabric that the program runs on."""
        ...

    @property
    def areas(self) -> tuple[FabricPlace, ...]:
        """The regions in the order of the plan's stages."""
        ...

    @property
    def stream_links(self) -> tuple[StreamLinks, ...]:
        """Links and route lengths of every stream."""
        ...

    @property
    def laid_words(self) -> NDArray[np.float64]:
        """Words per sample on every link, summed over all streams: (rows, cols, 4), in the order N, E, S, W."""
        ...

    def inputs(self, weights: dict[str, Floats], values: Floats) -> dict[str, Floats]:
        """Return the input buffers of a run by name, from parameters by name and the rows of all samples
        (rows, K)."""
        ...

    def outputs(self, read: dict[str, Floats]) -> NDArray[np.float16]:
        """Return the outputs (rows, N), given the host's output buffers by name."""
        ...
