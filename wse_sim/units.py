"""Cycles to seconds, bytes per second to bytes per cycle: converted here alone.  And numbers as texts spell them."""

from __future__ import annotations

import inspect

BYTES_PER_WAVELET = 4
BYTES_PER_DTYPE = {
    "fp32": 4,
    "fp16": 2,
    "bf16": 2,
    "cbfloat16": 2,
    "int8": 1,
    "int32": 4,
    "int64": 8,
    "bool": 1,
}


def cycles_to_s(cycles: float, clock_hz: float) -> float:
    """Time in seconds of `cycles` at `clock_hz`."""
    return cycles / clock_hz


def cycles_to_us(cycles: float, clock_hz: float) -> float:
    """Time in microseconds of `cycles`, the unit of trace files; six decimals (picoseconds) are kept."""
    return round(1e6 * cycles / clock_hz, 6)


def cycles_to_ns(cycles: float, clock_hz: float) -> int:
    """Time of `cycles` in whole nanoseconds, the finest unit of Perfetto's files."""
    return round(1e9 * cycles / clock_hz)


def s_to_cycles(time_s: float, clock_hz: float) -> float:
    """Cycles at `clock_hz` in `time_s` seconds."""
    return time_s * clock_hz


MOST_DIGITS = 18  # fits 64 bits


def counted(text: str) -> int | None:
    """The integer that `text` spells in ASCII digits, or None.

    Python's `int` also takes `1_0`, Arabic digits and blanks, and fails on `²` and on 5,000 digits.

    >>> counted("12"), counted("-1"), counted("²"), counted("")
    (12, None, None, None)
    """
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS else None


def summary(documented: object) -> str:
    """First paragraph of a docstring on one line; "" without a docstring.

    >>> summary(cycles_to_s)
    'Time in seconds of `cycles` at `clock_hz`.'
    """
    return " ".join((inspect.getdoc(documented) or "").partition("\n\n")[0].split())
