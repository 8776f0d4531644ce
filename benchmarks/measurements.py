"""Measurements of this program's speed and search, stored in ``docs/measured.json`` for the tables of the pages.

A golden number (:mod:`benchmarks.numbers`) is equal on every machine; these depend on the machine and its load, so each
entry says where, when and by which command it was made.  A benchmark with ``--keep`` replaces the values of its entry; if
it replaces all of them, the entry is noted as made from the present sources (:mod:`benchmarks.stale`).
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Any

from benchmarks import stale
from benchmarks.numbers import ROOT

Row = dict[str, Any]
"""A row of a measurement: plain numbers, texts and lists of them by name."""

FILE = ROOT / "docs" / "measured.json"


def read(name: str) -> Mapping[str, Any]:
    """Return one entry: command, when, where, values and related data."""
    found: Mapping[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))[name]
    return found


def keep(name: str, values: Mapping[str, Any], where: str) -> None:
    """Replace values of an entry by those of today; keys that were not run keep theirs."""
    every = json.loads(FILE.read_text(encoding="utf-8"))
    entry = every[name]
    is_whole = entry["values"].keys() <= values.keys()
    entry["values"] = {**entry["values"], **values}
    entry["when"], entry["where"] = datetime.date.today().isoformat(), where
    FILE.write_text(json.dumps(every, indent=1) + "\n", encoding="utf-8")
    if is_whole:
        stale.made([name])
