"""Requests from files: public traces in their published formats.

    azure:FILE.csv            TIMESTAMP, ContextTokens, GeneratedTokens
    mooncake:FILE.jsonl       timestamp (ms), input_length, output_length, hash_ids
    burstgpt:FILE.csv         Timestamp (s), Request tokens, Response tokens; rows with 0 response tokens are failures
    bailian:FILE.jsonl        timestamp (s), input_length, output_length, hash_ids
    llmservingsim:FILE.jsonl  input_toks, output_toks, arrival_time_ns; of a session arrival_time_ns and sub_requests, each of which
                              comes tool_duration_ns after the answer before it
    vidur:FILE.csv            arrived_at (s), num_prefill_tokens, num_decode_tokens
    lengths:FILE.csv          num_prefill_tokens, num_decode_tokens; arrivals are drawn
    sharegpt:FILE.json        conversations of {from, value}: lengths alone, characters / 4; arrivals are drawn; also as JSON lines
    fields:ARRIVAL,INPUT,OUTPUT:FILE   any other CSV or JSON lines by the names of its fields (:mod:`wse_sim.serving.trace_rows`)

A faulty row is one sentence with file, line, field and value.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from wse_sim.errors import ConfigError
from wse_sim.files import read_json
from wse_sim.serving.base import NEVER, Load, ServingError, is_untimed, ticks
from wse_sim.serving.trace_rows import (
    CHARACTERS_PER_TOKEN,
    TraceRow,
    count_of,
    csv_rows,
    date_of,
    fault_of,
    ids_of,
    json_rows,
    named_rows,
    opened,
    priority_of,
    seconds_of,
)
from wse_sim.serving.workload import Lengths

FIELDS = "fields"
CONTENT_TOKENS = {"mooncake": 512, "bailian": 16}  # tokens per id of the file


def load_of(
    named: str,
    *,
    scale_rate: float = 1.0,
    limit: int | None = None,
    arrive: Callable[[Lengths, Lengths], Load] | None = None,
) -> Load:
    """Return the requests of `FORM:FILE`.

    Parameters
    ----------
    scale_rate
        Divides the times between requests.
    limit
        Largest number of requests; the first ones of the file are read.
    arrive
        Function that draws arrivals for requests of a form without times; None: all arrive at once.

    Raises
    ------
    ServingError, ConfigError
        If there is no such form, or the file is not of that form.
    """
    form, colon, name = named.partition(":")
    if form not in FORMS or not colon or not name:
        raise ServingError(
            f"workload '{named[:80]}' is not FORM:FILE; use one of {', '.join(FORMS)}, e.g. azure:trace.csv"
        )
    if not scale_rate > 0:
        raise ServingError(
            f"scale rate {scale_rate} is not positive; give how many times as fast requests come"
        )
    left_out: list[str] = []
    read = FORMS[form]
    if form == FIELDS:
        names, _, name = name.partition(":")
        read = functools.partial(named_rows, names)
    rows = list(itertools.islice(read(Path(name), left_out), limit))
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
    if arrive is not None and is_untimed(named):
        load = dataclasses.replace(arrive(*sizes), notes=notes)
    else:
        pauses = ticks(np.array([row.pause_s or 0.0 for row in rows]))
        load = Load(arrival, *sizes, after, pauses, notes)
    if any(row.priority for row in rows):
        load = dataclasses.replace(load, priority=np.array([row.priority for row in rows], np.int64))
    size = CONTENT_TOKENS.get(form, 1)
    if not all(len(row.content) * size >= row.input_tokens for row in rows):
        return load  # the file does not state the content of prompts
    content = tuple(np.array(row.content, np.int64) for row in rows)
    return dataclasses.replace(load, content=content, content_tokens=size)


def _azure(path: Path, left_out: list[str]) -> Iterator[TraceRow]:
    for line, row in csv_rows(path, ("TIMESTAMP", "ContextTokens", "GeneratedTokens")):
        at = date_of(path, line, "TIMESTAMP", row["TIMESTAMP"].strip())
        asked, answer = (
            count_of(path, line, name, row[name]) for name in ("ContextTokens", "GeneratedTokens")
        )
        yield TraceRow(at, asked, answer)


def _burstgpt(path: Path, left_out: list[str]) -> Iterator[TraceRow]:
    for line, row in csv_rows(path, ("Timestamp", "Request tokens", "Response tokens")):
        answer = count_of(path, line, "Response tokens", row["Response tokens"], least=0)
        if answer == 0:
            left_out.append("0 response tokens")
            continue
        asked = count_of(path, line, "Request tokens", row["Request tokens"])
        yield TraceRow(seconds_of(path, line, "Timestamp", row["Timestamp"]), asked, answer)


def _vidur(path: Path, left_out: list[str]) -> Iterator[TraceRow]:
    for line, row in csv_rows(path, ("arrived_at", "num_prefill_tokens", "num_decode_tokens")):
        asked, answer = _prefill_decode(path, line, row)
        yield TraceRow(seconds_of(path, line, "arrived_at", row["arrived_at"]), asked, answer)


def _lengths(path: Path, left_out: list[str]) -> Iterator[TraceRow]:
    for line, row in csv_rows(path, ("num_prefill_tokens", "num_decode_tokens")):
        yield TraceRow(0.0, *_prefill_decode(path, line, row))


def _prefill_decode(path: Path, line: int, row: dict[str, str]) -> tuple[int, int]:
    names = "num_prefill_tokens", "num_decode_tokens"
    asked, answer = (count_of(path, line, name, row[name]) for name in names)
    return asked, answer


def _hashed(unit_s: float, path: Path, left_out: list[str]) -> Iterator[TraceRow]:
    """Read the formats of Mooncake (milliseconds) and Bailian (seconds)."""
    for line, row in json_rows(path):
        at = seconds_of(path, line, "timestamp", row.get("timestamp"), unit_s=unit_s)
        asked, answer = (
            count_of(path, line, name, row.get(name)) for name in ("input_length", "output_length")
        )
        ids = ids_of(path, line, "hash_ids", row.get("hash_ids", []))
        yield TraceRow(at, asked, answer, ids, priority_of(path, line, row))


def _llmservingsim(path: Path, left_out: list[str]) -> Iterator[TraceRow]:
    for line, row in json_rows(path):
        at = seconds_of(path, line, "arrival_time_ns", row.get("arrival_time_ns"), unit_s=1e-9)
        priority, pause_s = priority_of(path, line, row), None
        calls = row.get("sub_requests", [row])
        if not isinstance(calls, list) or not calls or not all(isinstance(call, dict) for call in calls):
            raise fault_of(path, line, "sub_requests", calls, "give a list of objects")
        for call in calls:
            asked, answer = (
                count_of(path, line, name, call.get(name)) for name in ("input_toks", "output_toks")
            )
            ids = ids_of(path, line, "input_tok_ids", call.get("input_tok_ids", []))
            yield TraceRow(at, asked, answer, ids, priority, pause_s)
            name = "tool_duration_ns"
            pause_s = seconds_of(path, line, name, call.get(name, 0), unit_s=1e-9)


def _sharegpt(path: Path, left_out: list[str]) -> Iterator[TraceRow]:
    with opened(path) as file:
        is_lines = file.read(1) == "{"
    data = (row for _, row in json_rows(path)) if is_lines else read_json(path, "trace")
    if not is_lines and not isinstance(data, list):
        raise ConfigError(f"{path} contains no list of conversations; give a file of ShareGPT")
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
    FIELDS: functools.partial(named_rows, ""),
}
