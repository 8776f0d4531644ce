"""A number with bounds, as results store it; :mod:`wse_sim.uncertainty` computes the bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from wse_sim.serialize import saved


@saved
@dataclass(frozen=True)
class Interval:
    """The interval from `low` to `high` contains the true value with a probability of `percent`; `value` is
    the prediction."""

    value: float
    low: float
    high: float
    percent: float = 90.0

    @property
    def half_width(self) -> float:
        """Half of the width, relative to the value."""
        return (self.high - self.low) / 2 / self.value if self.value else math.nan

    def holds(self, value: float) -> bool:
        """Return whether a measurement is inside the interval."""
        return self.low <= value <= self.high

    def text(self, unit: str = "") -> str:
        """``1,206 samples/s (1,050 to 1,340, 90 %)``."""
        number = f"{_digits(self.value)} {unit}".strip()
        return f"{number} ({_digits(self.low)} to {_digits(self.high)}, {self.percent:g} %)"

    def inverse(self, factor: float) -> Interval:
        """Return the interval of `factor` divided by the value: a time, if this is a rate."""
        return Interval(factor / self.value, factor / self.high, factor / self.low, self.percent)

    def times(self, factor: float) -> Interval:
        """Return the interval of a multiple of the value."""
        return Interval(self.value * factor, self.low * factor, self.high * factor, self.percent)

    def as_dict(self) -> dict[str, float]:
        """Return the interval as JSON data."""
        return {"value": self.value, "low": self.low, "high": self.high, "percent": self.percent}


def _digits(value: float) -> str:
    whole = float(f"{value:.4g}")
    return f"{whole:,.0f}" if abs(whole) >= 1000 else f"{whole:.4g}"
