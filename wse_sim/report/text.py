"""Formats numbers for readers: with a unit, and with at most four digits."""

from __future__ import annotations

import math

_PREFIXES = (
    (1e15, "P", "quadrillion"),
    (1e12, "T", "trillion"),
    (1e9, "G", "billion"),
    (1e6, "M", "million"),
    (1e3, "k", "thousand"),
)


def number(value: float) -> str:
    """Format a number with four significant digits, thousands separators and no exponent in the usual range."""
    if not math.isfinite(value):
        return "n/a"
    if value == 0:
        return "0"
    if abs(value) >= 1e15 or abs(value) < 1e-3:
        return f"{value:.3g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def si(value: float, unit: str) -> str:
    """`value` with a decimal prefix: ``41.8 GB``."""
    if not math.isfinite(value):
        return f"n/a {unit}"
    # A prefix goes with a unit's sign (GB); with a whole word (wavelets) goes a number word.
    is_word = len(unit) > 4
    for factor, prefix, word in _PREFIXES:
        if abs(value) >= factor:
            return (
                f"{value / factor:.4g} {word} {unit}" if is_word else f"{value / factor:.4g} {prefix}{unit}"
            )
    return f"{value:.4g} {unit}"


def kib(value_bytes: float) -> str:
    """Return the bytes of one core in KiB."""
    return f"{value_bytes / 1024:.1f} KiB"


def seconds(value_s: float) -> str:
    """Return a time with the prefix that leaves one to three digits before the point; hours stay seconds."""
    if not math.isfinite(value_s):
        return "n/a"
    if abs(value_s) < 1e-15:  # far less than a cycle: the rest of a difference
        return "0 s"
    if abs(value_s) >= 1e4:
        return f"{value_s:,.0f} s"
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(value_s) >= factor:
            return f"{value_s / factor:.4g} {unit}"
    return f"{value_s / 1e-9:.4g} ns"


def percents(fraction: float) -> str:
    """Return a fraction of one in percent without the sign: one decimal, more where the value is small but not zero."""
    return percent(fraction).removesuffix(" %")


def percent(fraction: float) -> str:
    """Return a fraction of one in percent, one decimal; two digits where it is small but not zero, no smaller than
    0.001.
    """
    if not math.isfinite(fraction):
        return "n/a"
    if 0 < fraction < 1e-5:
        return "under 0.001 %"
    if fraction and abs(fraction) < 5e-4:  # small, but not nothing
        return f"{100 * fraction:.2g} %"
    return f"{100 * fraction:.1f} %"


PREFIXED = ("Hz", "bytes/s", "s", "W", "J")
"""Units that are shown with decimal prefixes."""


def amount(value: object, unit: str) -> str:
    """Return a value with its unit: 1.1 GHz, 150 GB/s, 288 us; counts with commas; the unit "1" is not shown.

    >>> amount(1.1e9, "Hz"), amount(49152, "bytes"), amount(26.071, "samples/s"), amount("adam", "1")
    ('1.1 GHz', '49,152 bytes', '26.071 samples/s', 'adam')
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"{value} {'' if unit == '1' else unit}".rstrip()
    if unit == "s":
        return seconds(value)
    if unit in PREFIXED:
        return si(value, unit.replace("bytes", "B"))
    digits = f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
    return digits if unit == "1" else f"{digits} {unit}"


def shorten(text: str, width: int) -> str:
    """Shorten `text` to at most `width` characters. The last whole parts of a dotted name are kept, which identify a
    module best; without a dot to cut at, the beginning.

    >>> shorten("h.*.attn.out (again)", 15), shorten("cross_entropy", 10)
    ('…out (again)', 'cross_ent…')
    """
    if len(text) <= width:
        return text
    end = text[len(text) - width :]  # with the character that gives way to the mark
    _, dot, parts = end.partition(".")
    return f"…{parts}" if dot and parts else f"{text[: width - 1]}…"
