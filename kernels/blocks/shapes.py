"""Shape of a triggered product (cores along the words, cores along the sums, rounds), and its operands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import EllipsisType

import numpy as np
from numpy.typing import NDArray

from wse_sim.fabric.format.builder import Index


@dataclass(frozen=True)
class TriggeredShape:
    """`feeds` cores along a multicast, `sums` along a reduction; f words per round over vectors of v.

    `parts`: words of the rounds that share the f vectors, in order (empty: one round with all of them).
    `groups`: consecutive products with separate vectors. `lanes`: equal copies next to each other. `kept`:
    words of a round that arrive; the others are zero weights.
    """

    feeds: int
    sums: int
    rounds: int
    f: int
    v: int
    vertical: bool  # words come down the columns
    parts: tuple[int, ...] = ()
    groups: int = 1
    lanes: int = 1
    kept: int = 0
    offset: int = 0  # first core along the sums

    def at(self, feed: Index | EllipsisType, total: int | EllipsisType) -> tuple[Index, Index]:
        """Return the cell of a position along the feed and along the sums (0: feeder or collector, then the
        cores)."""
        sums: Index
        if isinstance(total, EllipsisType):
            sums = slice(self.offset + 1, self.offset + 1 + self.sums)
        else:
            sums = self.offset + total
        words = slice(1, 1 + self.feeds) if isinstance(feed, EllipsisType) else feed
        return (words, sums) if self.vertical else (sums, words)

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of all lanes, including feeders and collectors."""
        sides = (self.feeds + 1, self.lanes * (self.sums + 1))
        return sides if self.vertical else (sides[1], sides[0])

    @property
    def lane(self) -> tuple[TriggeredShape, ...]:
        """Return one shape per lane."""
        return tuple(replace(self, lanes=1, offset=i * (self.sums + 1)) for i in range(self.lanes))

    @property
    def pieces(self) -> tuple[int, ...]:
        """Numbers of words of the rounds that share the vectors."""
        return self.parts or (self.f,)


@dataclass(frozen=True)
class Operands:
    """Streamed words (lanes, sums, groups, rounds, f) and stationary operands (lanes, feeds, sums, groups, f, v)."""

    words: NDArray[np.float32]
    rest: NDArray[np.float32]
