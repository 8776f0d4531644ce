"""The store: SQLite with one row per run, named by the key of everything that the run depends on.

Tables: `runs` (key, status, outputs, bounds, binding, message, seconds, made with what and when), `names` (lists of names of
outputs), `provenance` (versions and sources, once), `studies` (descriptions by their hash), `members` (the runs of a study in
order, with the parameters that its description does not fix).  A store holds many studies; what they have in common is run once.

Outputs and bounds are JSON arrays: the digest of a list of names, then a number for each of them.  A store of
schema 1 has objects by name instead, which are also supported.

Rows are written in transactions to a write-ahead log that is flushed to disk. After any kill -9, all rows of
completed transactions exist, and none of an incomplete one.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wse_sim.errors import ConfigError, WseError
from wse_sim.files import exists, is_file
from wse_sim.studies.evaluate import DIED, DONE, MISFIT, REFUSED, StudyRow

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 2
READS = ("1", "2")
BUSY_S = 60.0  # two studies may write to one store alternately
KEYS_AT_ONCE = 500
FILE = "runs.sqlite"

_TABLES = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS provenance (id INTEGER PRIMARY KEY, digest TEXT UNIQUE NOT NULL, data TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS runs (
  key TEXT PRIMARY KEY, status TEXT NOT NULL, mode TEXT NOT NULL, binding TEXT NOT NULL, message TEXT NOT NULL,
  outputs TEXT NOT NULL, low TEXT NOT NULL, high TEXT NOT NULL, seconds REAL NOT NULL,
  made_with INTEGER NOT NULL REFERENCES provenance(id), made_at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS names (digest TEXT PRIMARY KEY, names TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS studies (
  id INTEGER PRIMARY KEY, digest TEXT UNIQUE NOT NULL, spec TEXT NOT NULL, begun_at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS members (
  study INTEGER NOT NULL REFERENCES studies(id), number INTEGER NOT NULL, key TEXT NOT NULL, parameters TEXT NOT NULL,
  PRIMARY KEY (study, number)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS members_key ON members (key);
"""


def _connected(path: Path, *, readonly: bool) -> sqlite3.Connection:
    """Open a file. For reading, the file is not changed, and no other file is created next to it."""
    if not readonly:
        return sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    # A log next to the file means that a process writes it or was killed; without a log the file is complete.
    how = "mode=ro" if exists(f"{path}-wal", "store") else "immutable=1"
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?{how}", uri=True, timeout=BUSY_S, isolation_level=None
    )


class Store:
    """A file of runs; use it as a context manager."""

    def __init__(self, path: str | Path, *, readonly: bool = False) -> None:
        self.path = Path(path)
        if readonly and not is_file(self.path, "store"):
            raise ConfigError(f"store {self.path} does not exist; run the study first")
        self._names: dict[str, list[str]] = {}  # names that this transaction has written
        self._read_names: dict[str, list[str]] = {}
        with self._told():
            self.db = _connected(self.path, readonly=readonly)
            try:
                self._begin(readonly=readonly)
            except BaseException:
                self.db.close()
                raise

    def _begin(self, *, readonly: bool) -> None:
        """Create the tables, or check that existing ones belong to a store; views are rejected, since they
        may never end."""
        self.db.execute("PRAGMA trusted_schema=OFF")
        odd = self.db.execute("SELECT name FROM sqlite_master WHERE type IN ('view', 'trigger')").fetchone()
        if odd is not None:
            raise ConfigError(
                f"store {self.path} holds '{str(odd[0])[:40]}', which studies do not write; name another store"
            )
        if not readonly:
            self.db.execute("PRAGMA journal_mode=WAL")
            self.db.execute("PRAGMA synchronous=FULL")
            self.db.execute("PRAGMA foreign_keys=ON")
            self.db.executescript(_TABLES)
        found = self.db.execute("SELECT value FROM about WHERE name='schema'").fetchone()
        if not readonly and (found is None or found[0] in READS):
            self.db.execute("INSERT OR REPLACE INTO about VALUES ('schema', ?)", (str(SCHEMA),))
        elif found is None or found[0] not in READS:
            raise ConfigError(
                f"store {self.path} has schema {found and found[0]}, this version reads {SCHEMA}; name another store"
            )

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *fault: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; a store that was never used contains no data."""
        self.db.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn faults of SQLite into one-sentence errors; stored rows are kept."""
        try:
            yield
        except sqlite3.OperationalError as fault:
            text = str(fault)
            if "full" in text or "disk I/O" in text:
                raise WseError(
                    f"store {self.path}: writing failed ({text}); make room and run the same command: "
                    "all rows written before are kept"
                ) from None
            if "locked" in text or "busy" in text:
                raise WseError(
                    f"store {self.path} is locked by another program ({text}); wait for it or name another store"
                ) from None
            raise WseError(f"store {self.path} cannot be used ({text}); name another one") from None
        except sqlite3.DatabaseError as fault:
            raise WseError(
                f"store {self.path} is not a store of runs or is damaged ({fault}); name another one"
            ) from None

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Cursor]:
        with self._told():
            cursor = self.db.cursor()
            cursor.execute("BEGIN IMMEDIATE")
            try:
                yield cursor
            except BaseException:
                if self.db.in_transaction:
                    cursor.execute("ROLLBACK")
                raise
            cursor.execute("COMMIT")

    # What is written

    def made_with(self, data: Mapping[str, Any]) -> int:
        """Return the number of a provenance."""
        text = json.dumps(data, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:32]
        with self._writing() as cursor:
            cursor.execute("INSERT OR IGNORE INTO provenance (digest, data) VALUES (?, ?)", (digest, text))
            found = cursor.execute("SELECT id FROM provenance WHERE digest=?", (digest,)).fetchone()
        return int(found[0])

    def study(self, spec: Mapping[str, Any]) -> int:
        """Return the number of a study, found by the content of its file; a new study is added."""
        text = json.dumps(spec, sort_keys=True, default=str)
        digest = hashlib.sha256(text.encode()).hexdigest()[:32]
        with self._writing() as cursor:
            cursor.execute(
                "INSERT OR IGNORE INTO studies (digest, spec, begun_at) VALUES (?, ?, ?)",
                (digest, text, time.time()),
            )
            found = cursor.execute("SELECT id FROM studies WHERE digest=?", (digest,)).fetchone()
        return int(found[0])

    def add_members(self, study: int, rows: Iterable[tuple[int, str, Mapping[str, Any]]]) -> None:
        """Store the runs of a study: number, key, parameters."""
        fixed = self._fixed(study)
        with self._writing() as cursor:
            cursor.executemany(
                "INSERT OR REPLACE INTO members VALUES (?, ?, ?, ?)",
                (
                    (
                        study,
                        number,
                        key,
                        _compact({n: v for n, v in given.items() if n not in fixed or fixed[n] != v}),
                    )
                    for number, key, given in rows
                ),
            )

    def _fixed(self, study: int) -> dict[str, Any]:
        """Return the fixed settings of a study, which rows omit."""
        spec = next((spec for number, spec in self.studies() if number == study), {})
        found = spec.get("fixed", {})
        return found if isinstance(found, dict) else {}

    def _named(self, cursor: sqlite3.Cursor, values: Mapping[str, float]) -> str:
        """Return values by name as an array that starts with the digest of the names, which are stored
        once."""
        names = _compact(list(values))
        digest = hashlib.sha256(names.encode()).hexdigest()[:12]
        if digest not in self._names:
            cursor.execute("INSERT OR IGNORE INTO names VALUES (?, ?)", (digest, names))
            self._names[digest] = list(values)
        return _compact([digest, *values.values()])

    def drop_members(self, study: int) -> None:
        """Remove the list of a study's runs; the runs themselves remain."""
        with self._writing() as cursor:
            cursor.execute("DELETE FROM members WHERE study=?", (study,))

    def put(self, rows: Sequence[StudyRow], made_with: int) -> None:
        """Write finished runs in one transaction; a run that died is overwritten, a finished one is kept."""
        now = time.time()
        with self._writing() as cursor:
            self._names.clear()  # a rolled-back transaction has left nothing
            cursor.executemany(
                f"INSERT INTO runs VALUES (?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT(key) DO UPDATE SET "
                "status=excluded.status, mode=excluded.mode, binding=excluded.binding, message=excluded.message, "
                "outputs=excluded.outputs, low=excluded.low, high=excluded.high, seconds=excluded.seconds, "
                f"made_with=excluded.made_with, made_at=excluded.made_at WHERE runs.status='{DIED}'",
                [
                    (
                        row.key, row.status, row.mode, row.binding, row.message,
                        *(self._named(cursor, values) for values in (row.outputs, row.low, row.high)),
                        row.seconds, made_with, now,
                    )
                    for row in rows
                ],
            )  # fmt: skip

    # What is read

    def finished(self, keys: Iterable[str]) -> set[str]:
        """Return the keys that need not run again: all stored ones, except those whose worker died."""
        wanted = list(keys)
        found: set[str] = set()
        with self._told():
            for start in range(0, len(wanted), KEYS_AT_ONCE):
                some = wanted[start : start + KEYS_AT_ONCE]
                marks = ",".join("?" * len(some))
                query = f"SELECT key FROM runs WHERE status<>'{DIED}' AND key IN ({marks})"
                found.update(key for (key,) in self.db.execute(query, some))
        return found

    def run(self, key: str) -> StudyRow | None:
        """Return the row of a run, or None."""
        query = "SELECT status, outputs, low, high, mode, binding, message, seconds FROM runs WHERE key=?"
        with self._told():
            found = self.db.execute(query, (key,)).fetchone()
        if found is None:
            return None
        outputs, low, high = (self._values(text, "outputs", key) for text in found[1:4])
        return StudyRow(key, found[0], outputs, low, high, *found[4:])

    def studies(self) -> list[tuple[int, dict[str, Any]]]:
        """Return number and description of every study, the latest last."""
        with self._told():
            rows = self.db.execute("SELECT id, spec FROM studies ORDER BY begun_at, id").fetchall()
        return [(number, self._object(spec, "spec", number)) for number, spec in rows]

    def spec_of(self, study: int) -> dict[str, Any]:
        """Return the stored description of a study."""
        found = next((spec for number, spec in self.studies() if number == study), None)
        if found is None:
            raise ConfigError(f"store {self.path} contains no study {study}; run the study first")
        return found

    def counts(self, study: int) -> dict[str, int]:
        """Return the number of members by status; "missing" ones have not run yet."""
        with self._told():
            rows = self.db.execute(
                "SELECT coalesce(runs.status, 'missing'), count(*) FROM members LEFT JOIN runs USING (key) "
                "WHERE members.study=? GROUP BY 1",
                (study,),
            ).fetchall()
        found = dict.fromkeys((DONE, MISFIT, REFUSED, DIED, "missing"), 0)
        return found | dict(rows)

    def causes(self, study: int) -> list[tuple[str, str, int]]:
        """Return status, cause and number of runs without a result; a cause is the bottleneck, or the message
        without numbers."""
        with self._told():
            rows = self.db.execute(
                "SELECT runs.status, runs.binding, runs.message FROM members JOIN runs USING (key) "
                f"WHERE members.study=? AND runs.status<>'{DONE}'",
                (study,),
            ).fetchall()
        found: dict[tuple[str, str], int] = {}
        for status, binding, message in rows:
            cause = (
                binding if status == MISFIT else re.sub(r"\d[\d,.e+-]*", "N", str(message)).partition(";")[0]
            )
            found[status, cause] = found.get((status, cause), 0) + 1
        return [(*key, count) for key, count in sorted(found.items(), key=lambda item: -item[1])]

    def seconds_of(self, mode: str) -> float | None:
        """Return the mean seconds of the runs of a mode, if there are any."""
        with self._told():
            found = self.db.execute(
                "SELECT avg(seconds) FROM (SELECT seconds FROM runs WHERE mode=? AND status='done' LIMIT 1000)",
                (mode,),
            ).fetchone()
        return None if found[0] is None else float(found[0])

    def rows(self, study: int) -> Iterator[dict[str, Any]]:
        """Yield the members of a study that have run, in order: number, parameters, and the run's row."""
        query = (
            "SELECT members.number, members.parameters, members.key, status, mode, binding, message, outputs, low, "
            "high, seconds FROM members JOIN runs USING (key) WHERE members.study=? ORDER BY members.number"
        )
        names = (
            "number",
            "parameters",
            "key",
            "status",
            "mode",
            "binding",
            "message",
            "outputs",
            "low",
            "high",
        )
        fixed = self._fixed(study)
        with self._told():
            for row in self.db.execute(query, (study,)):
                data = dict(zip((*names, "seconds"), row, strict=True))
                number = data["number"]
                if not all(isinstance(data[name], str) for name in ("status", "mode", "binding", "message")):
                    raise self._damaged("text", number)
                if not isinstance(data["seconds"], int | float):
                    raise self._damaged("seconds", number)
                data["parameters"] = {**fixed, **self._object(data["parameters"], "parameters", number)}
                for name in ("outputs", "low", "high"):
                    data[name] = self._values(data[name], name, number)
                    if not all(_is_plain(value) for value in data[name].values()):
                        raise self._damaged(name, number)
                yield data

    def _values(self, text: object, name: str, number: object) -> dict[str, Any]:
        """Return numbers by name, from an array after the digest of its names, or from an object of schema
        1."""
        try:
            found = json.loads(text) if isinstance(text, str) else None
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            return found
        if not isinstance(found, list) or not found or not isinstance(found[0], str):
            raise self._damaged(name, number)
        names = self._names_of(found[0])
        if names is None or len(names) != len(found) - 1:
            raise self._damaged(name, number)
        return dict(zip(names, found[1:], strict=True))

    def _names_of(self, digest: str) -> list[str] | None:
        if digest not in self._read_names:
            kept = self.db.execute("SELECT names FROM names WHERE digest=?", (digest,)).fetchone()
            try:
                names = None if kept is None else json.loads(kept[0])
            except (TypeError, ValueError, RecursionError):
                names = None
            if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
                return None
            self._read_names[digest] = names
        return self._read_names[digest]

    def _object(self, text: object, name: str, number: object) -> dict[str, Any]:
        """Parse a column that contains a JSON object."""
        try:
            found = json.loads(text) if isinstance(text, str) else None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._damaged(name, number)
        return found

    def _damaged(self, name: str, number: object) -> ConfigError:
        return ConfigError(
            f"store {self.path} is damaged: '{name}' of row {str(number)[:20]} is not what a study writes; "
            "run the study into another folder"
        )

    def frame(self, study: int, outputs: Sequence[str] | None = None) -> pd.DataFrame:
        """Return the rows of a study as a data frame: parameters, outputs with `.low` and `.high`, binding,
        seconds, key."""
        try:
            import pandas as pd
        except ImportError:
            raise WseError(
                "a data frame needs pandas, which is not installed; pip install 'wse-sim[study]'"
            ) from None
        return pd.DataFrame([_flat(row, outputs) for row in self.rows(study)])


def _flat(row: Mapping[str, Any], outputs: Sequence[str] | None) -> dict[str, Any]:
    found: dict[str, Any] = {"number": row["number"]}
    found |= {name: _cell(value) for name, value in row["parameters"].items()}
    for name in row["outputs"] if outputs is None else outputs:
        found[name] = row["outputs"].get(name)
        if name in row["low"]:
            found[f"{name}.low"], found[f"{name}.high"] = row["low"].get(name), row["high"].get(name)
    return found | {name: row[name] for name in ("status", "mode", "binding", "message", "seconds", "key")}


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _is_plain(value: object) -> bool:
    """Return whether an output is a finite number or None."""
    return value is None or (isinstance(value, int | float) and isfinite(value))


def _cell(value: object) -> object:
    return json.dumps(value) if isinstance(value, list | dict) else value
