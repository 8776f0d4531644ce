"""The Pareto front (rows that no other row dominates), and the recommended row of it.

A row dominates another if it is no worse in every objective and better in one. The recommended row of the front has the smallest loss
against the best value of each objective, in logarithms::

    d = sqrt(sum over objectives of ln(value / best)^2)        the least d

So a loss of one tenth has the same weight in every objective, for any range of the front.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wse_sim.studies import labels

Direction = str  # maximize, minimize


@dataclass(frozen=True)
class Chosen:
    """The recommended row of a front, with the reason in one sentence."""

    index: int
    why: str


def front(values: NDArray[np.float64], directions: Sequence[Direction]) -> NDArray[np.int64]:
    """Return the indices of rows of `values` (rows, objectives) on the Pareto front, sorted by the first
    objective."""
    costs = values * np.array([-1.0 if way == "maximize" else 1.0 for way in directions])
    order = np.lexsort(costs.T[::-1])
    kept: list[int] = []
    seen: set[tuple[float, ...]] = set()
    for index in order:
        row = costs[index]
        if tuple(row) in seen:
            continue  # the same point again
        others = costs[kept]
        if len(others) and bool(np.any(np.all(others <= row, axis=1) & np.any(others < row, axis=1))):
            continue
        kept.append(int(index))
        seen.add(tuple(row))
    return np.array(kept, np.int64)


def choose(
    values: NDArray[np.float64],
    names: Sequence[str],
    directions: Sequence[Direction],
    settings: Sequence[Mapping[str, Any]],
) -> Chosen | None:
    """Return the row of the front nearest to the ideal; None without rows."""
    found = front(values, directions)
    if not len(found):
        return None
    points = values[found]
    tops = [
        points[:, i].max() if way == "maximize" else points[:, i].min() for i, way in enumerate(directions)
    ]
    best = np.array(tops, float)
    tiny = np.finfo(float).tiny
    lost = np.log(np.maximum(np.abs(points), tiny)) - np.log(np.maximum(np.abs(best), tiny))
    index = int(found[int(np.argmin(np.sqrt((lost**2).sum(axis=1))))])
    return Chosen(index, _why(values[index], best, names, directions, settings[index], len(found)))


def _why(
    row: NDArray[np.float64],
    best: NDArray[np.float64],
    names: Sequence[str],
    directions: Sequence[Direction],
    given: Mapping[str, Any],
    size: int,
) -> str:
    where = ", ".join(labels.setting(name, value) for name, value in given.items())
    if len(names) == 1:
        word = "most" if directions[0] == "maximize" else "least"
        return (
            f"{where} has the {word} {labels.short(names[0])}: {labels.quantity(names[0], rounded(row[0]))}"
        )
    parts = []
    for name, value, top, way in zip(names, row, best, directions, strict=True):
        word = (
            "best"
            if math.isclose(value, top, rel_tol=1e-9)
            else f"{100 * value / top:.0f} % of the {'most' if way == 'maximize' else 'least'}"
        )
        parts.append(f"{labels.quantity(name, rounded(value))} ({word})")
    count = f"{size} point" + ("s" if size > 1 else "")
    return f"Pareto front: {count}. Recommended: {where} (smallest loss against the best of each objective): {', '.join(parts)}"


def rounded(value: float) -> float:
    """Round to four significant digits."""
    return float(f"{value:.4g}")


def shown(value: object, digits: int = 4) -> str:
    """Return a value as text for display; a float that is not whole has `digits` digits, and no exponent below 1e7.

    >>> shown(154213.7), shown(0.012345), shown(1234567.0)
    ('154,200', '0.01235', '1,234,567')
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e7):
        return f"{int(value):,}"
    significant = float(f"{value:.{digits}g}")
    return f"{significant:,.0f}" if 10**digits <= abs(significant) < 1e7 else f"{value:,.{digits}g}"
