"""Reads files that a run on a Cerebras system leaves next to its log: ``performance.json`` and ``compile_report.txt``.

performance.json   written by the trainers of the vendor's Model Zoo, releases 1.6 to 2.10: `total_samples`, `total_time`
                   (s), `samples_per_sec`; older ones add `est_samples_per_sec`, the compiler's estimate.  Its rate counts
                   checkpoints and evaluation; a log tells more.
compile_report.txt written by the compiler of pipelined execution: "Estimated Overall Performance", `Samples/s` and more.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from wse_sim.errors import ConfigError
from wse_sim.files import read_json, read_text

PERFORMANCE, COMPILE_REPORT = "performance.json", "compile_report.txt"
SAME = 0.01
"""Relative difference between a rate and its samples over its time that rounding may make."""
_SAMPLES = re.compile(r"^\s*Samples/s:\s*(\S+)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Performance:
    """The content of performance.json; `estimate` is the compiler's, or None."""

    path: Path
    samples_per_s: float
    estimate: float | None


def read_performance(path: Path) -> Performance:
    """Read ``performance.json``.

    Raises
    ------
    ConfigError
        If it is not JSON, lacks a key, or its numbers are not positive or contradict each other.
    """
    data = read_json(path)
    if not isinstance(data, dict):
        raise ConfigError(
            f"{path}: holds a {type(data).__name__}, the object that a trainer writes is needed"
        )
    samples = _positive(path, data, "total_samples")
    seconds = _positive(path, data, "total_time")
    rate = _positive(path, data, "samples_per_sec")
    if abs(samples / seconds / rate - 1.0) > SAME:
        raise ConfigError(
            f"{path}: total_samples / total_time is {samples / seconds:.6g}, samples_per_sec is {rate:.6g}; give the file as the trainer wrote it"
        )
    estimate = data.get("est_samples_per_sec") or None
    return Performance(path, rate, None if estimate is None else _positive(path, data, "est_samples_per_sec"))


def _positive(path: Path, data: dict[str, object], key: str) -> float:
    value = data.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        what = "is missing" if key not in data else f"is {value!r}, a number is needed"
        raise ConfigError(f"{path}: key '{key}' {what}; give the file as the trainer wrote it")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not (math.isfinite(number) and number > 0):
        raise ConfigError(
            f"{path}: key '{key}' is {number:g}; a positive number is needed; give a run with at least one step"
        )
    return number


def read_compile_report(path: Path) -> float:
    """Return the compiler's estimate of samples per second.

    Raises
    ------
    ConfigError
        If the file has no such line, several, or no positive number in it.
    """
    found = _SAMPLES.findall(read_text(path))
    if len(found) != 1:
        raise ConfigError(
            f"{path}: holds {len(found)} lines 'Samples/s:'; one is needed; give a whole compile report"
        )
    try:
        value = float(found[0])
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(
            f"{path}: 'Samples/s: {found[0][:40]}' is not a positive number; give a whole compile report"
        )
    return value
