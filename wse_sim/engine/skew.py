"""Models systems of different speed in one step: a collective over them waits for the slowest.

Symbols: S systems, a the spread that a user states (no source states how large it is, the default is 0)::

    time of system s       its cycles times 1 + a u_s,    u_s uniform in (-1, 1), drawn again in every step
    time of the slowest    times 1 + a max u_s,           on average 1 + a (S - 1) / (S + 1)

The maximum of S numbers that are uniform in (0, 1) is S / (S + 1) on average. A single system waits for no
other, and nothing is drawn.
"""

from __future__ import annotations

import random


def slowest_factors(systems: int, skew: float, seed: int, steps: int) -> list[float]:
    """Return the time of the slowest of `systems` relative to the mean, for each of `steps` steps.

    >>> slowest_factors(1, 0.5, seed=7, steps=2), slowest_factors(16, 0.0, seed=7, steps=1)
    ([1.0, 1.0], [1.0])
    """
    if systems < 2 or not skew:
        return [1.0] * steps
    draw = random.Random(f"skew {seed}")  # other numbers than those of the host
    return [1.0 + skew * max(draw.uniform(-1.0, 1.0) for _ in range(systems)) for _ in range(steps)]


def expected_factor(systems: int, skew: float) -> float:
    """Return the expected time of the slowest system relative to the mean.

    >>> round(expected_factor(3, 0.1), 9)
    1.05
    """
    return 1.0 + skew * (systems - 1) / (systems + 1)
