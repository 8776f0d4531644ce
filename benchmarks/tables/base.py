"""Shared parts of all tables: their list, Markdown, numbers as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks import numbers

Rows = Iterable[Sequence[str]]
TABLES: dict[str, Callable[[], str]] = {}


def table(name: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    """Register the function that writes a table."""

    def keep(make: Callable[[], str]) -> Callable[[], str]:
        TABLES[name] = make
        return make

    return keep


def markdown(head: Sequence[str], rows: Rows) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def group(name: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the numbers of one group of the file."""
    found: Mapping[str, Mapping[str, Any]] = numbers.read()["groups"][name]["numbers"]
    return found


def percent(fraction: float, digits: int = 1, sign: bool = True) -> str:
    """Return a fraction as text, with its sign unless asked otherwise."""
    return (
        f"{fraction:+.{digits}%}".replace("%", " %") if sign else f"{fraction:.{digits}%}".replace("%", " %")
    )


def quantity(value: float, digits: int = 4) -> str:
    """Return a number with `digits` digits that count, with commas between thousands, never with an exponent."""
    whole = float(f"{value:.{digits}g}")
    return f"{whole:,.0f}" if whole >= 10 ** (digits - 1) else f"{whole:.{digits}g}"
