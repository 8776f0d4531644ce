"""A grid of cores, and the layout of a product's matrix on it.

A layer alternates between two directions. A matrix has its inputs over the rows of cores and its outputs over
the columns, and its sums are all-reduced down the columns. The results are then spread over the columns, as
the inputs of a matrix in the other direction, whose sums are all-reduced along the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from wse_sim.kernels.contract.family import Count, Size

Sides = Count | tuple[Count, Count]
"""A square by its side, or rows and columns."""


def sides(grid: Sides) -> tuple[Count, Count]:
    """Return the rows and columns of a grid.

    Example
    -------
    >>> sides(360), sides((750, 994))
    ((360, 360), (750, 994))
    """
    return grid if isinstance(grid, tuple) else (grid, grid)


@dataclass(frozen=True)
class Lying:
    """`times` products per token whose tile is k x n, with sums all-reduced along lines of `line` cores."""

    times: float
    k: Size
    n: Size
    line: Count
    vertical: bool
