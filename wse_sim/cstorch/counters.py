"""Counters and timings of a run, and their report in the format of traced backends.

A metric is a list of samples (seconds or bytes); its report gives the number, the sum, the rate of the values per
second of the window and percentiles over the last samples.  A counter is a number.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field

from wse_sim.cstorch.stores import of_run

# Samples that a metric keeps for percentiles.
KEPT = 1024
PERCENTILES = (1, 5, 10, 20, 50, 80, 90, 95, 99)
# Metrics and counters of the short report.
SHORT = (
    "CompileTime",
    "TraceTime",
    "ReplayTime",
    "ClosureTime",
    "CheckpointTime",
    "InputWaitTime",
    "WaferStepTime",
)
SHORT_COUNTERS = ("CachedCompile", "UncachedCompile", "StepsDone", "ClosuresRun", "ReadsRefused")

_lock = threading.Lock()


@dataclass
class Samples:
    """Samples of one kind: (seconds since the epoch, value)."""

    total: int = 0
    accumulator: float = 0.0
    samples: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=KEPT))


_metrics: dict[str, Samples] = of_run({})
_counters: dict[str, int] = of_run({})


def count(name: str, n: int = 1) -> None:
    """Count an event."""
    with _lock:
        _counters[name] = _counters.get(name, 0) + n


def timed(name: str, seconds: float) -> None:
    """Add a sample (seconds; bytes for names that end with ``Data``)."""
    with _lock:
        metric = _metrics.setdefault(name, Samples())
        metric.total += 1
        metric.accumulator += seconds
        metric.samples.append((time.time(), seconds))


def counter_names() -> list[str]:
    """Return the names of the counters that are not zero."""
    return sorted(_counters)


def counter_value(name: str) -> int | None:
    """Return a counter, or None."""
    return _counters.get(name)


def metric_names() -> list[str]:
    """Return the names of the metrics that have samples."""
    return sorted(_metrics)


def metric_data(name: str) -> tuple[int, float, list[tuple[float, float]]] | None:
    """Return (number of samples, their sum, the last samples as (time, value)), or None."""
    metric = _metrics.get(name)
    return None if metric is None else (metric.total, metric.accumulator, list(metric.samples))


def clear_all() -> None:
    """Forget all counters and metrics."""
    with _lock:
        _metrics.clear()
        _counters.clear()


clear_counters = clear_all
clear_metrics = clear_all


def _is_bytes(name: str) -> bool:
    return name.endswith("Data")


def in_words(seconds: float) -> str:
    """``01h02m03s004ms005.600us``, from the first unit that is not zero."""
    parts: list[str] = []
    left = seconds
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("m", 60.0), ("s", 1.0), ("ms", 1e-3)):
        n = int(left / size + 1e-12)
        if n or parts:
            parts.append(f"{n:0{3 if unit == 'ms' else 2}d}{unit}")
        left = max(0.0, left - n * size)
    parts.append(f"{left * 1e6:07.3f}us")
    return "".join(parts)


def _value(name: str, value: float) -> str:
    if not _is_bytes(name):
        return in_words(value)
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if value >= size:
            return f"{value / size:.2f}{unit}"
    return f"{value:.2f}B"


def percentile(values: list[float], fraction: float) -> float:
    """Return the value below which a fraction (0 to 100) of sorted values lies: the nearest rank."""
    return values[min(len(values) - 1, int(fraction / 100 * len(values)))]


def _report_metric(name: str, metric: Samples) -> list[str]:
    values = sorted(v for _, v in metric.samples)
    window = metric.samples[-1][0] - metric.samples[0][0]
    lines = [
        f"Metric: {name}",
        f"  TotalSamples: {metric.total}",
        f"  Accumulator: {_value(name, metric.accumulator)}",
    ]
    if window > 0:
        lines.append(f"  ValueRate: {_value(name, sum(values) / window)} / second")
        lines.append(f"  Rate: {len(values) / window:.6g} / second")
    lines.append(
        "  Percentiles: " + "; ".join(f"{p}%={_value(name, percentile(values, p))}" for p in PERCENTILES)
    )
    return lines


def _report(metrics: list[str], counters: list[str]) -> str:
    lines: list[str] = []
    with _lock:
        for name in metrics:
            if name in _metrics:
                lines += _report_metric(name, _metrics[name])
        for name in counters:
            if name in _counters:
                lines += [f"Counter: {name}", f"  Value: {_counters[name]}"]
    return "\n".join(lines) + ("\n" if lines else "")


def metrics_report() -> str:
    """Return all metrics and counters, as text."""
    return _report(metric_names(), counter_names())


def short_metrics_report(
    counter_names: list[str] | None = None, metric_names: list[str] | None = None
) -> str:
    """Return a report of the most important metrics and counters, or of the named ones."""
    return _report(list(metric_names or SHORT), list(counter_names or SHORT_COUNTERS))


report = metrics_report


def as_dict() -> dict[str, dict[str, float | int]]:
    """Return the report as a dict: ``{"metrics": {name: {...}}, "counters": {name: n}}``."""
    out: dict[str, dict[str, float | int]] = {}
    with _lock:
        for name, metric in _metrics.items():
            values = sorted(v for _, v in metric.samples)
            out[name] = {
                "total_samples": metric.total,
                "accumulator": metric.accumulator,
                "p50": percentile(values, 50),
            }
    return out


def counters() -> dict[str, int]:
    with _lock:
        return dict(_counters)
