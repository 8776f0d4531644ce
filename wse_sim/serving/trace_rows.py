"""Rows of request files and their fields; an error is one sentence with file, line, field and value.

A file in another format is read by the names of its fields, ``fields:ARRIVAL,INPUT,OUTPUT:FILE``. ARRIVAL is in seconds, in the unit
that follows its name (@ms, @us or @ns), or a date; without it arrivals are drawn. INPUT and OUTPUT are numbers of tokens, or texts
whose characters are counted (the first request decides).  A line of JSON may hold a list of objects instead of one request: each takes what it lacks from the line.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np

from wse_sim.errors import ConfigError
from wse_sim.files import Values, refusal
from wse_sim.serving.base import ServingError
from wse_sim.serving.workload import MOST_TOKENS

CHARACTERS_PER_TOKEN = 4  # of English text: the rule of thumb of tokenizers' documentation
MOST_SECONDS = 10**9
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


class TraceRow(NamedTuple):
    """One request of a file."""

    arrival_s: float
    input_tokens: int
    output_tokens: int
    content: tuple[int, ...] = ()  # ids of its tokens, or of groups of tokens
    priority: int = 0  # smaller values first
    pause_s: float | None = None  # after the answer to the previous row; None: it arrives at its own time


def csv_rows(path: Path, names: Iterable[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line number and fields of every row of a CSV file with these columns."""
    with opened(path) as file:
        reader = csv.DictReader(file)
        try:
            missing = [name for name in names if name not in (reader.fieldnames or ())]
            if missing:
                first = ", ".join(reader.fieldnames or ())[:80]
                raise ConfigError(
                    f"{path} has no column '{missing[0]}'; its first line, read between commas, names {first!r}"
                )
            for row in reader:
                yield reader.line_num, {name: row[name] or "" for name in names}
        except csv.Error as fault:
            raise ConfigError(
                f"{path}: line {reader.line_num + 1} is not a line of CSV ({fault}); correct it"
            ) from None


def json_rows(path: Path) -> Iterator[tuple[int, Values]]:
    """Yield line number and object of every line of a JSON Lines file."""
    with opened(path) as file:
        for line, text in enumerate(file, 1):
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict):
                raise ConfigError(
                    f"{path}: line {line} is not a JSON object ('{text.strip()[:60]}'); correct the line"
                )
            yield line, row


def opened(path: Path) -> TextIO:
    """Open the file for reading."""
    try:
        return path.open(encoding="utf-8-sig", errors="replace", newline="")
    except OSError as fault:
        raise ConfigError(f"trace {refusal(fault) or path}") from None


def number_of(value: object) -> float | None:
    """Return a finite number, from a number or a text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and (not value.isascii() or "_" in value):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if np.isfinite(number) else None


def count_of(path: Path, line: int, field: str, value: object, least: int = 1) -> int:
    """Return a number of tokens."""
    number = number_of(value)
    if number is None or number != int(number) or not least <= number <= MOST_TOKENS:
        raise fault_of(path, line, field, value, f"give an integer from {least} to {MOST_TOKENS:,}")
    return int(number)


def priority_of(path: Path, line: int, row: Values) -> int:
    """Return the optional priority of a JSON line."""
    return count_of(path, line, "priority", row.get("priority", 0), least=0)


def ids_of(path: Path, line: int, field: str, value: object) -> tuple[int, ...]:
    """Parse a list of token ids, or of ids of runs of tokens."""
    if not isinstance(value, list) or not all(type(one) is int and 0 <= one < 2**63 for one in value):
        raise fault_of(path, line, field, value, "give a list of integers")
    return tuple(value)


def seconds_of(path: Path, line: int, field: str, value: object, unit_s: float = 1.0) -> float:
    """Return a time, in seconds."""
    number = number_of(value)
    if number is None or not 0 <= number * unit_s <= MOST_SECONDS * 4:
        raise fault_of(path, line, field, value, "give a time that is not negative")
    return number * unit_s


def fault_of(path: Path, line: int, field: str, value: object, remedy: str) -> ConfigError:
    """Return the error for a field that cannot be parsed."""
    return ConfigError(f"{path}: line {line} has {field} '{str(value)[:60]}'; {remedy}")


def date_of(path: Path, line: int, field: str, text: str) -> float:
    """Return a date and time as seconds, with or without time zone, and with any number of decimals of a
    second."""
    try:
        zone = re.search(r"(Z|[+-]\d\d:?\d\d)?$", text)
        bare = text[: zone.start()] if zone and zone[0] else text
        when, _, fraction = bare.partition(".")
        if fraction and not (fraction.isascii() and fraction.isdecimal()):
            raise ValueError
        at = datetime.fromisoformat(when + (zone[0] if zone and ":" in when else "")).timestamp()
        at += float(f"0.{fraction}" if fraction else 0)
    except ValueError:
        raise fault_of(path, line, field, text, "give a date and a time") from None
    return seconds_of(path, line, field, at)


def named_rows(names: str, path: Path, left_out: list[str]) -> Iterator[TraceRow]:
    """Yield requests by the names of their fields."""
    fields = [name.strip() for name in names.split(",")]
    if len(fields) != 3 or not all(fields[1:]) or path == Path():
        raise ServingError(
            f"fields '{names[:80]}' are not three; give fields:ARRIVAL,INPUT,OUTPUT:FILE, e.g. fields:time@ms,prompt,answer:log.csv"
        )
    at, _, unit = fields[0].partition("@")
    if unit and unit not in UNITS:
        raise ServingError(f"unit '{unit[:20]}' of field '{at}' is not known; use @{', @'.join(UNITS)}")
    with opened(path) as file:
        is_json = file.read(1) == "{"
    rows = json_rows(path) if is_json else csv_rows(path, [name for name in (at, *fields[1:]) if name])
    texts: list[bool] = []
    for line, row in rows:
        for item in _items(row):
            whole = {**row, **item}
            values = [whole.get(name) for name in fields[1:]]
            texts = texts or [_is_text(value) for value in values]
            when = _when(path, line, at, whole.get(at), UNITS[unit or "s"]) if at else 0.0
            asked, answer = map(partial(_length, path, line), fields[1:], values, texts)
            yield TraceRow(when, asked, answer)


def _items(row: Values | dict[str, str]) -> Iterable[Values]:
    """Return the requests of a line: the line itself, or the objects of its only list of objects."""
    lists = [
        value
        for value in row.values()
        if isinstance(value, list) and value and all(isinstance(x, dict) for x in value)
    ]
    return lists[0] if len(lists) == 1 else [{}]


def _when(path: Path, line: int, field: str, value: object, unit_s: float) -> float:
    if isinstance(value, str) and number_of(value.strip()) is None:
        return date_of(path, line, field, value.strip())
    return seconds_of(path, line, field, value, unit_s)


def _is_text(value: object) -> bool:
    """Return whether a field is a text that is not a number; the first request decides for all."""
    return isinstance(value, str) and bool(value.strip()) and number_of(value.strip()) is None


def _length(path: Path, line: int, field: str, value: object, is_text: bool) -> int:
    """Return the tokens of a text or a number."""
    if not is_text:
        return count_of(path, line, field, value)
    if not isinstance(value, str) or not value:
        raise fault_of(path, line, field, value, "give a text, as in the first line")
    return max(1, len(value) // CHARACTERS_PER_TOKEN)
