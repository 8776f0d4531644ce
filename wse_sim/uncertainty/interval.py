"""Computes the bounds of a value.

Symbols: r ratios of the value at the draws to the value at the stated constants, q(r) their quantile, e the 90 %
half-width of the model's own error in logarithms, z(p) the normal score that holds p on both sides together::

    up    u = ln q_{(1+p)/2}(r)      down   d = - ln q_{(1-p)/2}(r)        at least 0
    high  v exp(sqrt(u^2 + (e z(p) / z(0.9))^2))        low   v exp(-sqrt(d^2 + (e z(p) / z(0.9))^2))

Both causes are taken as independent: the constants say what is not known of the machine, the own error what the model
leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from wse_sim.engine.bounds import Interval
from wse_sim.errors import ConfigError

__all__ = ["Interval", "check_percent", "interval_of"]

LEAST_PERCENT, MOST_PERCENT = 50.0, 99.0


def check_percent(percent: float) -> None:
    """Raise :class:`ConfigError` for a probability too far from the 90 % for which ranges are stated.

    Raises
    ------
    ConfigError
        One sentence.
    """
    if not LEAST_PERCENT <= percent <= MOST_PERCENT:
        raise ConfigError(
            f"interval {percent:g} % is outside {LEAST_PERCENT:g} to {MOST_PERCENT:g} %; ranges are stated for 90 %"
        )


def interval_of(value: float, ratios: Sequence[float], own_error: float, percent: float = 90.0) -> Interval:
    """Return the interval around `value` from the `ratios` at the draws and the own error (90 %, in logarithms)."""
    from scipy.stats import norm

    check_percent(percent)
    tail = (1 - percent / 100) / 2
    logs = np.log(np.asarray([ratio for ratio in ratios if ratio > 0] or [1.0]))
    down, up = np.quantile(logs, (tail, 1 - tail))
    own = own_error * float(norm.ppf(1 - tail) / norm.ppf(0.95))
    low = math.exp(-math.hypot(max(0.0, -float(down)), own))
    high = math.exp(math.hypot(max(0.0, float(up)), own))
    return Interval(value, value * low, value * high, percent)
