"""Requests of files: public traces, read as they are published.

    azure:FILE.csv            TIMESTAMP, ContextTokens, GeneratedTokens
    mooncake:FILE.jsonl       timestamp (ms), input_length, output_length, hash_ids
    burstgpt:FILE.csv         Timestamp (s), Request tokens, Response tokens; rows with 0 response tokens are failures
    bailian:FILE.jsonl        timestamp (s), input_length, output_length, hash_ids
    llmservingsim:FILE.jsonl  input_toks, output_toks, arrival_time_ns; of a session arrival_time_ns and sub_requests, each of which
                              comes tool_duration_ns after the answer before it
    vidur:FILE.csv            arrived_at (s), num_prefill_tokens, num_decode_tokens
    lengths:FILE.csv          num_prefill_tokens, num_decode_tokens; arrivals are drawn
    sharegpt:FILE.json        conversations of {from, value}: lengths alone, characters / 4; arrivals are drawn

A faulty row is one sentence with file, line, field and value.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np

from wse_sim.errors import ConfigError
from wse_sim.files import Values, read_json, refusal
from wse_sim.serving.base import NEVER, UNTIMED_FORMS, Load, ServingError, ticks
from wse_sim.serving.workload import MOST_TOKENS, Lengths

CONTENT_TOKENS = {"mooncake": 512, "bailian": 16}  # tokens that an id of the file stands for
CHARACTERS_PER_TOKEN = 4  # of English text: the rule of thumb of tokenizers' documentation
MOST_SECONDS = 10**9


class TraceRow(NamedTuple):
    """One request of a file."""

    arrival_s: float
    input_tokens: int
    output_tokens: int
    content: tuple[int, ...] = ()  # ids of its tokens, or of runs of tokens
    priority: int = 0  # the smaller the sooner
    pause_s: float | None = None  # after the answer to the row before; None: it comes at its own time


def load_of(
    named: str,
    *,
    scale_rate: float = 1.0,
    limit: int | None = None,
    arrive: Callable[[Lengths, Lengths], Load] | None = None,
) -> Load:
    """The requests of `FORM:FILE`.

    Parameters
    ----------
    scale_rate
        Divides the times between requests.
    limit
        Most requests, the first ones of the file.
    arrive
        When requests of these prompts and answers come, for a form without times; None: all at once.

    Raises
    ------
    ServingError, ConfigError
        If there is no such form, or the file is not of that form.
    """
    form, colon, name = named.partition(":")
    if form not in FORMS or not colon or not name:
        raise ServingError(
            f"workload '{named[:80]}' is no FORM:FILE; use one of {', '.join(FORMS)}, e.g. azure:trace.csv"
        )
    if not scale_rate > 0:
        raise ServingError(
            f"scale rate {scale_rate} is not positive; give how many times as fast requests come"
        )
    left_out: list[str] = []
    rows = list(itertools.islice(FORMS[form](Path(name), left_out), limit))
    if not rows:
        raise ServingError(f"{name} has no request of form {form}; is it the right file?")
    order = sorted(
        range(len(rows)), key=lambda number: rows[number].arrival_s
    )  # equal times keep their order
    place = np.empty(len(rows), np.int64)
    place[order] = np.arange(len(rows))
    after = np.array([NEVER if rows[n].pause_s is None else place[n - 1] for n in order], np.int64)
    rows = [rows[number] for number in order]
    table = np.array([row[:3] for row in rows], float)
    arrival = ticks((table[:, 0] - table[0, 0]) / scale_rate)
    notes = (
        (f"{len(left_out):,} rows of {name} are failures ({left_out[0]}); they are left out",)
        if left_out
        else ()
    )
    sizes = table[:, 1].astype(np.int64), table[:, 2].astype(np.int64)
    if arrive is not None and form in UNTIMED_FORMS:
        load = dataclasses.replace(arrive(*sizes), notes=notes)
    else:
        pauses = ticks(np.array([row.pause_s or 0.0 for row in rows]))
        load = Load(arrival, *sizes, after, pauses, notes)
    if any(row.priority for row in rows):
        load = dataclasses.replace(load, priority=np.array([row.priority for row in rows], np.int64))
    size = CONTENT_TOKENS.get(form, 1)
    if not all(len(row.content) * size >= row.input_tokens for row in rows):
        return load  # the file does not say what prompts hold
    content = tuple(np.array(row.content, np.int64) for row in rows)
    return dataclasses.replace(load, content=content, content_tokens=size)


def _azure(path: Path, left_out: list[str]) -> Iterator[TraceRow]:
    for line, row in _csv(path, ("TIMESTAMP", "ContextTokens", "GeneratedTokens")):
        text = row["TIMESTAMP"].strip()
        try:
            when, _, fraction = text.partition(".")
            if fraction and not (fraction.isascii() and fraction.isdecimal()):
                raise ValueError
            at = datetime.fromisoformat(when).timestamp() + float(f"0.{fraction}" if fraction else 0)
        except ValueError:
            raise _fault(path, line, "TIMESTAMP", text, "give a date and a time") from None
        asked, answer = (_count(path, line, name, row[name]) for name in ("ContextTokens", "GeneratedTokens"))
        yield TraceRow(_seconds(path, line, "TIMESTAMP", at), asked, answer)


def _burstgpt(path: Path, left_out: list[str]) -> Iterator[TraceRow]:
    for line, row in _csv(path, ("Timestamp", "Request tokens", "Response tokens")):
        answer = _count(path, line, "Response tokens", row["Response tokens"], least=0)
        if answer == 0:
            left_out.append("0 response tokens")
            continue
        asked = _count(path, line, "Request tokens", row["Request tokens"])
        yield TraceRow(_seconds(path, line, "Timestamp", row["Timestamp"]), asked, answer)


def _vidur(path: Path, left_out: list[str]) -> Iterator[TraceRow]:
    for line, row in _csv(path, ("arrived_at", "num_prefill_tokens", "num_decode_tokens")):
        asked, answer = _prefill_decode(path, line, row)
        yield TraceRow(_seconds(path, line, "arrived_at", row["arrived_at"]), asked, answer)


def _lengths(path: Path, left_out: list[str]) -> Iterator[TraceRow]:
    for line, row in _csv(path, ("num_prefill_tokens", "num_decode_tokens")):
        yield TraceRow(0.0, *_prefill_decode(path, line, row))


def _prefill_decode(path: Path, line: int, row: dict[str, str]) -> tuple[int, int]:
    names = "num_prefill_tokens", "num_decode_tokens"
    asked, answer = (_count(path, line, name, row[name]) for name in names)
    return asked, answer


def _hashed(unit_s: float, path: Path, left_out: list[str]) -> Iterator[TraceRow]:
    """Mooncake (milliseconds) and Bailian (seconds)."""
    for line, row in _jsonl(path):
        at = _seconds(path, line, "timestamp", row.get("timestamp"), unit_s=unit_s)
        asked, answer = (
            _count(path, line, name, row.get(name)) for name in ("input_length", "output_length")
        )
        ids = _ids(path, line, "hash_ids", row.get("hash_ids", []))
        yield TraceRow(at, asked, answer, ids, _priority(path, line, row))


def _llmservingsim(path: Path, left_out: list[str]) -> Iterator[TraceRow]:
    for line, row in _jsonl(path):
        at = _seconds(path, line, "arrival_time_ns", row.get("arrival_time_ns"), unit_s=1e-9)
        priority, pause_s = _priority(path, line, row), None
        calls = row.get("sub_requests", [row])
        if not isinstance(calls, list) or not calls or not all(isinstance(call, dict) for call in calls):
            raise _fault(path, line, "sub_requests", calls, "give a list of objects")
        for call in calls:
            asked, answer = (
                _count(path, line, name, call.get(name)) for name in ("input_toks", "output_toks")
            )
            ids = _ids(path, line, "input_tok_ids", call.get("input_tok_ids", []))
            yield TraceRow(at, asked, answer, ids, priority, pause_s)
            name = "tool_duration_ns"
            pause_s = _seconds(path, line, name, call.get(name, 0), unit_s=1e-9)


def _sharegpt(path: Path, left_out: list[str]) -> Iterator[TraceRow]:
    data = read_json(path, "trace")
    if not isinstance(data, list):
        raise ConfigError(f"{path} holds no list of conversations; give a file of ShareGPT")
    for number, item in enumerate(data):
        turns = item.get("conversations") if isinstance(item, dict) else None
        if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
            raise ConfigError(
                f"{path}: entry {number} has no list 'conversations'; correct it or leave it out"
            )
        texts = [(turn.get("from"), turn.get("value")) for turn in turns]
        for (one, asked), (two, answer) in itertools.pairwise(texts):
            if one in ("human", "user") and two in ("gpt", "assistant") and asked and answer:
                long, short = (max(1, len(str(text)) // CHARACTERS_PER_TOKEN) for text in (asked, answer))
                yield TraceRow(0.0, long, short)


FORMS: dict[str, Callable[[Path, list[str]], Iterator[TraceRow]]] = {
    "azure": _azure,
    "mooncake": functools.partial(_hashed, 1e-3),
    "bailian": functools.partial(_hashed, 1.0),
    "burstgpt": _burstgpt,
    "llmservingsim": _llmservingsim,
    "vidur": _vidur,
    "lengths": _lengths,
    "sharegpt": _sharegpt,
}


def _csv(path: Path, names: Iterable[str]) -> Iterator[tuple[int, dict[str, str]]]:
    with _opened(path) as file:
        reader = csv.DictReader(file)
        try:
            missing = [name for name in names if name not in (reader.fieldnames or ())]
            if missing:
                raise ConfigError(
                    f"{path} has no column '{missing[0]}' in its first line; is it of that form?"
                )
            for row in reader:
                yield reader.line_num, {name: row[name] or "" for name in names}
        except csv.Error as fault:
            raise ConfigError(
                f"{path}: line {reader.line_num + 1} is no line of CSV ({fault}); correct it"
            ) from None


def _jsonl(path: Path) -> Iterator[tuple[int, Values]]:
    with _opened(path) as file:
        for line, text in enumerate(file, 1):
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict):
                raise ConfigError(
                    f"{path}: line {line} is no object of JSON ('{text.strip()[:60]}'); correct the line"
                )
            yield line, row


def _opened(path: Path) -> TextIO:
    try:
        return path.open(encoding="utf-8-sig", errors="replace", newline="")
    except OSError as fault:
        raise ConfigError(f"trace {refusal(fault) or path}") from None


def _number(value: object) -> float | None:
    """A finite number, from a number or a plain text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and (not value.isascii() or "_" in value):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if np.isfinite(number) else None


def _count(path: Path, line: int, field: str, value: object, least: int = 1) -> int:
    number = _number(value)
    if number is None or number != int(number) or not least <= number <= MOST_TOKENS:
        raise _fault(path, line, field, value, f"give a whole number from {least} to {MOST_TOKENS:,}")
    return int(number)


def _priority(path: Path, line: int, row: Values) -> int:
    """An optional field of lines of JSON."""
    return _count(path, line, "priority", row.get("priority", 0), least=0)


def _ids(path: Path, line: int, field: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(one) is int and 0 <= one < 2**63 for one in value):
        raise _fault(path, line, field, value, "give a list of whole numbers")
    return tuple(value)


def _seconds(path: Path, line: int, field: str, value: object, unit_s: float = 1.0) -> float:
    number = _number(value)
    if number is None or not 0 <= number * unit_s <= MOST_SECONDS * 4:
        raise _fault(path, line, field, value, "give a time that is not negative")
    return number * unit_s


def _fault(path: Path, line: int, field: str, value: object, remedy: str) -> ConfigError:
    return ConfigError(f"{path}: line {line} has {field} '{str(value)[:60]}'; {remedy}")
