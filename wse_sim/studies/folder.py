"""The folder of a study (description, location of the store, lock), and progress and outcome of a run."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wse_sim.atomic_files import write_whole
from wse_sim.errors import WseError
from wse_sim.files import is_file, read_json
from wse_sim.studies.evaluate import DONE, StudyRow
from wse_sim.studies.schema import StudySpec
from wse_sim.studies.store import FILE

LINK = "study.json"
Say = Callable[[str], None]


def plain_name(stem: str) -> str:
    """Return the name of a study, from its file, without characters that are invalid in file names on other
    systems."""
    name = "".join(c if c.isprintable() and c not in "/\\" else "_" for c in stem)
    return f"_{name[1:]}" if name.startswith(".") else name


class Folder:
    """The folder of a study: its description, the store (or its location), and a lock."""

    def __init__(self, path: Path, store: Path | None = None) -> None:
        self.path = path
        self.store = store or path / FILE

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder against a second command; the lock of a killed process is released.

        Raises
        ------
        WseError
            If another command works in the folder.
        """
        with (self.path / ".lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                file.seek(0)
                owner = file.read().strip() or "unknown"
                raise WseError(
                    f"another command (process {owner}) works in {self.path}; wait for it or name another folder"
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def remember(self, study: int, name: str) -> None:
        """Record which study of which store the folder shows."""
        data = {"store": os.path.relpath(self.store, self.path), "study": study, "name": name}
        write_whole(self.path / LINK, json.dumps(data) + "\n")

    @staticmethod
    def opened(path: Path) -> tuple[Folder, int, str]:
        """Return the folder of a study that ran, the number of the study in its store, its name.

        Raises
        ------
        WseError
            If the folder contains no study.
        """
        if not is_file(path / LINK, "study", WseError):
            raise WseError(f"{path} contains no study; run 'wse-sim study STUDY.yaml --out {path}' first")
        data = read_json(path / LINK)
        try:
            name = str(data["name"])
            if not name or name.startswith(".") or any(c in "/\\" or not c.isprintable() for c in name):
                raise WseError(
                    f"{path / LINK} names its study {name[:80]!r}, which is a path; tables are named by it: give a plain name"
                )
            return Folder(path, (path / data["store"]).resolve()), int(data["study"]), name
        except (KeyError, TypeError, ValueError, OverflowError):
            raise WseError(f"{path / LINK} is damaged; run the study again: its rows are kept") from None


@dataclass
class Progress:
    """Counts finished runs and reports the count with rate and remaining time."""

    total: int
    say: Say
    done: int = 0
    misfits: int = 0
    begun: float = field(default_factory=time.monotonic)

    def add(self, rows: Sequence[StudyRow]) -> None:
        """Count finished rows."""
        self.done += len(rows)
        self.misfits += sum(row.status != DONE for row in rows)
        rate = self.done / max(1e-9, time.monotonic() - self.begun)
        left = (self.total - self.done) / rate if rate else 0.0
        odd = f", {self.misfits:,} without a result" if self.misfits else ""
        self.say(f"{self.done:,} of {self.total:,} runs{odd}; {rate:,.3g} per second, {_span(left)} left")


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@dataclass(frozen=True)
class Ran:
    """Outcome of a study: counts by status, runs that the store already had, seconds, and causes of runs
    without a result."""

    study: int
    counts: Mapping[str, int]
    reused: int
    seconds: float
    causes: Sequence[tuple[str, str, int]] = ()


def stated(spec: StudySpec) -> dict[str, Any]:
    """Return the content of a study's file as plain data."""
    return spec.model_dump(mode="json", by_alias=True, exclude_none=True)
