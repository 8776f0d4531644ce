"""Draws constants at quasi-random positions of their ranges.

Symbols: a constant has the value v and a range (l, h) that holds the true value with a probability of 90 %; z is a
standard normal score, z5 = 1.645 its 95 % quantile.  Its quantile function is monotone, with v at the median::

    x(z) = v + (h - v) |z| / z5      above the median
    x(z) = v - (v - l) |z| / z5      below

If all three are positive the same is done with their logarithms, so no draw is negative; otherwise the draw stops
at 0.  Constants that were fitted together have correlated scores (`correlations` of the wafer's file).  Integers
(hops, ramps, depths) are rounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from wse_sim.hardware import Cluster, Wafer
from wse_sim.hardware.constants import Constant

Z95 = 1.6448536269514722
"""95 % quantile of the normal distribution: where a range ends."""
SAMPLES = 64
SEED = 1
MOST_SCORE = 3.0  # a range does not determine its far tails
UNUSED = ("scalar_", "power_limited_clock_hz")
"""Constants that no formula of a kernel or a mode reads: prices of register cores, and a clock that counts as `clock_hz` where it is requested."""


@dataclass(frozen=True)
class Ranged:
    """A constant with a range: its owner ("wafer" or "cluster"), its name, and its declaration."""

    owner: str
    name: str
    stated: Constant

    def at(self, score: float) -> float | int:
        """Return the constant's value at a standard normal score."""
        low, high = self.stated.range or (0.0, 0.0)
        value = self.stated.value
        assert isinstance(value, (int, float))  # a range is stated of numbers only
        fraction, end = min(abs(score), MOST_SCORE) / Z95, high if score > 0 else low
        if min(value, end) > 0:
            found = value * (end / value) ** fraction
        else:
            found = max(0.0, value + (end - value) * fraction)
        return max(0 if low <= 0 else 1, round(found)) if isinstance(value, int) else found


@dataclass(frozen=True)
class DrawnMachine:
    """Wafer and cluster with some of their constants changed."""

    wafer: Wafer
    cluster: Cluster


def ranged(wafer: Wafer, cluster: Cluster | None = None) -> tuple[Ranged, ...]:
    """Return the constants of both whose range is wider than a point."""
    sets = [("wafer", wafer.provenance)] + ([("cluster", cluster.provenance)] if cluster is not None else [])
    return tuple(
        Ranged(owner, name, stated)
        for owner, provenance in sets
        for name, stated in provenance.items()
        if stated.range is not None and stated.range[0] < stated.range[1] and not name.startswith(UNUSED)
    )


def machine_at(
    wafer: Wafer, cluster: Cluster, constants: Sequence[Ranged], scores: Sequence[float]
) -> DrawnMachine:
    """Return both with the constants at their scores."""
    found = [(c.owner, c.name, c.at(score)) for c, score in zip(constants, scores, strict=True)]
    return changed(wafer, cluster, found)


def changed(wafer: Wafer, cluster: Cluster, values: Sequence[tuple[str, str, float | int]]) -> DrawnMachine:
    """Return both with other values: (owner, name, value) each."""
    of_wafer = {name: value for owner, name, value in values if owner == "wafer"}
    of_cluster = {name: value for owner, name, value in values if owner == "cluster"}
    return DrawnMachine(wafer.model_copy(update=of_wafer), cluster.model_copy(update=of_cluster))


def draws(
    wafer: Wafer, cluster: Cluster, constants: Sequence[Ranged], samples: int = SAMPLES
) -> Iterator[DrawnMachine]:
    """Yield `samples` machines: a Sobol sequence of scores, correlated where constants were fitted together."""
    scores = _scores(len(constants), samples) @ _mixing(constants, wafer.correlations).T
    for row in scores:
        yield machine_at(wafer, cluster, constants, row.tolist())


@lru_cache(maxsize=8)
def _scores(dimensions: int, samples: int) -> NDArray[np.float64]:
    """Return (samples, dimensions) independent normal scores."""
    from scipy.stats import norm, qmc

    power = max(1, math.ceil(math.log2(samples)))
    unit = qmc.Sobol(max(1, dimensions), scramble=True, rng=np.random.default_rng(SEED)).random_base2(power)
    found: NDArray[np.float64] = norm.ppf(np.clip(unit[:samples, :dimensions], 1e-6, 1 - 1e-6))
    return found


def _mixing(constants: Sequence[Ranged], correlations: Mapping[str, float]) -> NDArray[np.float64]:
    """Return (dimensions, dimensions) matrix that gives independent scores the stated correlations."""
    index = {c.name: i for i, c in enumerate(constants) if c.owner == "wafer"}
    matrix = np.eye(len(constants))
    for pair, value in correlations.items():
        a, _, b = pair.partition(" ")
        if a in index and b in index:
            matrix[index[a], index[b]] = matrix[index[b], index[a]] = value
    values, vectors = np.linalg.eigh(matrix)
    root: NDArray[np.float64] = vectors * np.sqrt(np.maximum(values, 0.0))
    return root / np.linalg.norm(root, axis=1, keepdims=True)
