"""Rates of a run, in seconds of the clock that it is given (the wafer's, in a simulated run).

rate = (1 - a) * previous + a * samples since the last look / time since the last look,  a = 0.6
global rate = samples so far / time since the start
"""

from __future__ import annotations

import time
from collections.abc import Callable

# Fraction of the newest rate in `rate`: the smoothing of the published logs.
SMOOTHING = 0.6


def _own_clock() -> tuple[bool, float]:
    return False, time.perf_counter()


run_clock: Callable[[], tuple[bool, float]] = _own_clock
"""(whether it is the wafer's, seconds) of the run's clock; set where backends are made."""


class Rate(float):
    """A number that can also be called: older programs call ``tracker.rate()``, later ones read ``tracker.rate``."""

    def __call__(self) -> float:
        return float(self)


class RateTracker:
    """Counts samples and gives rates.

    Args:
        smoothing_factor: weight of the previous rate.
        clock: seconds; default that of the run: the wafer's where it is simulated, else the process's own.
    """

    def __init__(
        self, smoothing_factor: float = 1.0 - SMOOTHING, clock: Callable[[], float] | None = None
    ) -> None:
        self.smoothing_factor = smoothing_factor
        self._given = clock
        self.reset()

    def _clock(self) -> float:
        if self._given is not None:
            return self._given()
        on_wafer, now = run_clock()
        if on_wafer != getattr(self, "_on_wafer", on_wafer):  # the backend came after this tracker
            self._start_s = self._last_s = now
        self._on_wafer = on_wafer
        return now

    def reset(self) -> None:
        """Reset samples and start time."""
        self._start_s = self._last_s = self._clock()
        self._samples = self._last_samples = 0.0
        self._rate: float | None = None

    def reset_time(self, offset_s: float = 0.0) -> None:
        """Reset the start time and keep the samples."""
        self._start_s = self._last_s = self._clock() - offset_s

    def add(self, count: float) -> None:
        """Count samples."""
        self._samples += count

    @property
    def rate(self) -> Rate:
        """Return the samples per second since the last call, smoothed with the previous rate."""
        now, samples = self._clock(), self._samples - self._last_samples
        elapsed = now - self._last_s
        if elapsed > 0 and samples > 0:
            local = samples / elapsed
            self._rate = (
                local
                if self._rate is None
                else self.smoothing_factor * self._rate + (1 - self.smoothing_factor) * local
            )
            self._last_s, self._last_samples = now, self._samples
        return Rate(self._rate or 0.0)

    @property
    def global_rate(self) -> Rate:
        """Samples per second since the start."""
        elapsed = self._clock() - self._start_s
        return Rate(self._samples / elapsed if elapsed > 0 else 0.0)

    @property
    def total_samples(self) -> Rate:
        return Rate(self._samples)

    @property
    def total_count(self) -> float:
        return self._samples

    # Older trainers add up these two.
    @property
    def _count(self) -> float:
        return self._last_samples

    @property
    def _partial_count(self) -> float:
        return self._samples - self._last_samples

    @property
    def total_time(self) -> Rate:
        """Seconds since the start."""
        return Rate(self._clock() - self._start_s)

    def elapsed_seconds(self) -> float:
        return self.total_time
