"""A value with its bounds.

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
from dataclasses import dataclass

import numpy as np

from wse_sim.errors import ConfigError

LEAST_PERCENT, MOST_PERCENT = 50.0, 99.0


@dataclass(frozen=True)
class Interval:
    """`low` to `high` hold the true value with a probability of `percent`; `value` is what is predicted."""

    value: float
    low: float
    high: float
    percent: float = 90.0

    @property
    def half_width(self) -> float:
        """Half of the width, relative to the value."""
        return (self.high - self.low) / 2 / self.value if self.value else math.nan

    def holds(self, value: float) -> bool:
        """Whether a measurement lies inside."""
        return self.low <= value <= self.high

    def text(self, unit: str = "") -> str:
        """``1,206 samples/s (1,050 to 1,340, 90 %)``."""
        number = f"{_digits(self.value)} {unit}".strip()
        return f"{number} ({_digits(self.low)} to {_digits(self.high)}, {self.percent:g} %)"

    def inverse(self, factor: float) -> Interval:
        """The interval of `factor` over the value: of a time, where this is a rate."""
        return Interval(factor / self.value, factor / self.high, factor / self.low, self.percent)

    def times(self, factor: float) -> Interval:
        """The interval of a multiple."""
        return Interval(self.value * factor, self.low * factor, self.high * factor, self.percent)

    def as_dict(self) -> dict[str, float]:
        """As JSON data."""
        return {"value": self.value, "low": self.low, "high": self.high, "percent": self.percent}


def _digits(value: float) -> str:
    whole = float(f"{value:.4g}")
    return f"{whole:,.0f}" if abs(whole) >= 1000 else f"{whole:.4g}"


def check_percent(percent: float) -> None:
    """Reject probabilities that ranges of 90 % say nothing of.

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
    """The interval around `value` from the `ratios` at the draws and the own error (90 %, in logarithms)."""
    from scipy.stats import norm

    check_percent(percent)
    tail = (1 - percent / 100) / 2
    logs = np.log(np.asarray([ratio for ratio in ratios if ratio > 0] or [1.0]))
    down, up = np.quantile(logs, (tail, 1 - tail))
    own = own_error * float(norm.ppf(1 - tail) / norm.ppf(0.95))
    low = math.exp(-math.hypot(max(0.0, -float(down)), own))
    high = math.exp(math.hypot(max(0.0, float(up)), own))
    return Interval(value, value * low, value * high, percent)
