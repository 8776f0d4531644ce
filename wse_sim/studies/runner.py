"""A study from its description to rows in the store.

spec -> settings -> requests -> (those that the store lacks) -> tasks -> rows -> store
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wse_sim.errors import WseError
from wse_sim.studies.evaluate import DONE, MISFIT, REFUSED, Row
from wse_sim.studies.expand import settings
from wse_sim.studies.pool import Dask, Inline, Pool, Task, cut
from wse_sim.studies.provenance import provenance
from wse_sim.studies.schema import StudySpec, study_from
from wse_sim.studies.settings import Request, Resolver
from wse_sim.studies.store import FILE, Store

CAPTURE_S = 4.0
RUN_S = {"weight-streaming": 0.06, "pipelined": 3.0, "generation": 0.05, "auto": 3.0}
"""Seconds of a capture and of a run on one core, about: for estimates where the store has no run of the mode."""
DRAW_S = 0.02  # per draw and run
LINK = "study.json"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Planned:
    """What a study will do: settings with their requests; `faults` of settings that make no run."""

    spec: StudySpec
    numbered: tuple[tuple[int, dict[str, Any], str], ...]  # number, setting, key
    requests: Mapping[str, Request]  # by key
    faults: Mapping[str, str] = field(default_factory=dict)  # key -> sentence

    @property
    def graphs(self) -> int:
        """Graphs that are captured if nothing is in the store."""
        return len({request.graph_key for request in self.requests.values()})

    def groups(self, keys: Iterable[str]) -> list[list[Request]]:
        """The requests of these keys by graph, the largest groups first."""
        found: dict[str, list[Request]] = {}
        for key in keys:
            request = self.requests[key]
            found.setdefault(request.graph_key, []).append(request)
        return sorted(found.values(), key=len, reverse=True)


def plan(spec: StudySpec, chosen: Iterable[Mapping[str, Any]] | None = None, first: int = 0) -> Planned:
    """Settings (or those `chosen`) with their requests, nothing run.

    A setting whose values do not go together is a fault of that setting: it becomes a row with the sentence.
    """
    resolver = Resolver(spec)
    numbered, requests, faults = [], {}, {}
    for number, setting in enumerate(settings(spec) if chosen is None else chosen, first):
        try:
            request = resolver.request(setting)
            key = request.key
            requests[key] = request
        except WseError as fault:
            key = "refused-" + _digest([spec.derive, dict(setting)])
            faults[key] = str(fault)
        numbered.append((number, dict(setting), key))
    return Planned(spec, tuple(numbered), requests, faults)


def planned_sweep(spec: StudySpec) -> Planned:
    """All settings of a sweep.

    Raises
    ------
    WseError
        If not one of them makes a run.
    """
    planned = plan(spec)
    if not planned.numbered:
        raise WseError("no setting of the study meets its constraints; loosen them or vary more")
    if not planned.requests:
        raise WseError(f"no setting of the study makes a run: {next(iter(planned.faults.values()))}")
    return planned


def _digest(data: object) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()[:24]


def estimate_s(planned: Planned, keys: Sequence[str], store: Store | None, workers: int) -> float:
    """Seconds that the runs of these keys take, about: from the store's own runs where it has some."""
    per_run: dict[str, float] = {}
    total = 0.0
    for key in keys:
        mode = planned.requests[key].options.mode
        if mode not in per_run:
            per_run[mode] = run_s(mode, store, planned.spec.draws)
        total += per_run[mode]
    graphs = len({planned.requests[key].graph_key for key in keys})
    per_worker = -(-graphs // max(1, workers)) if graphs else 0
    return total / max(1, workers) + per_worker * CAPTURE_S


def run_s(mode: str, store: Store | None, draws: int) -> float:
    """Seconds of a run of a mode, about."""
    measured = store.seconds_of(mode) if store is not None else None
    return measured if measured is not None else RUN_S.get(mode, RUN_S["auto"]) + DRAW_S * draws


class Folder:
    """The folder of a study: its description, the store (or where that is), a lock."""

    def __init__(self, path: Path, store: Path | None = None) -> None:
        self.path = path
        self.store = store or path / FILE

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder: a second command is refused, one that was killed holds nothing.

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
        """Note which study of which store the folder shows."""
        data = {"store": os.path.relpath(self.store, self.path), "study": study, "name": name}
        part = self.path / f".{LINK}"
        part.write_text(json.dumps(data) + "\n", encoding="utf-8")
        part.replace(self.path / LINK)

    @staticmethod
    def opened(path: Path) -> tuple[Folder, int, str]:
        """The folder of a study that ran, the number of the study in its store, its name.

        Raises
        ------
        WseError
            If the folder holds no study.
        """
        from wse_sim.files import read_json

        if not (path / LINK).is_file():
            raise WseError(f"{path} holds no study; run 'wse-sim study STUDY.yaml --out {path}' first")
        data = read_json(path / LINK)
        try:
            return Folder(path, (path / data["store"]).resolve()), int(data["study"]), str(data["name"])
        except (KeyError, TypeError, ValueError):
            raise WseError(f"{path / LINK} is damaged; run the study again: its rows are kept") from None


@dataclass
class Progress:
    """Counts what is done, and says so with rate and remaining time."""

    total: int
    say: Say
    done: int = 0
    misfits: int = 0
    begun: float = field(default_factory=time.monotonic)
    of_store: int = 0

    def add(self, rows: Sequence[Row]) -> None:
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
    """How a study ended: counts by status, how many runs the store had already, seconds."""

    study: int
    counts: Mapping[str, int]
    reused: int
    seconds: float


def run_study(
    spec: StudySpec | Mapping[str, Any],
    out: str | Path,
    *,
    name: str = "study",
    store: str | Path | None = None,
    workers: int = 2,
    scheduler: str | None = None,
    memory_limit: str | int = "auto",
    say: Say = lambda text: None,
    tell: Say = lambda text: None,
) -> Ran:
    """Run what the store lacks of a study; the same call goes on where another was cut off.

    `workers` 0 runs in this process.  `say` is told the progress, `tell` lines that stay (the dashboard's address).

    Raises
    ------
    WseError
        If the study is malformed, the folder is in use, the store cannot be written, or the scheduler goes away: all
        rows written before are kept.
    """
    spec = spec if isinstance(spec, StudySpec) else study_from(spec)
    folder = Folder(Path(out), None if store is None else Path(store))
    folder.path.mkdir(parents=True, exist_ok=True)
    with folder.locked():
        if spec.mode == "search":
            from wse_sim.studies.search import run_search

            return run_search(
                spec, folder, name, lambda: make_pool(workers, scheduler, memory_limit, tell), say
            )
        planned = planned_sweep(spec)
        with Store(folder.store) as opened:
            number = opened.study(stated(spec))
            folder.remember(number, name)
            opened.drop_members(number)
            opened.add_members(number, ((n, key, setting) for n, setting, key in planned.numbered))
            made_with = opened.made_with(provenance())
            opened.put([Row(key, REFUSED, message=text) for key, text in planned.faults.items()], made_with)
            there = opened.finished(planned.requests)
            missing = [key for key in planned.requests if key not in there]
            begun = time.monotonic()
            if missing:
                pool = make_pool(min(workers, len(missing)), scheduler, memory_limit, tell)
                try:
                    _work(planned, missing, pool, opened, made_with, Progress(len(missing), say))
                finally:
                    pool.close()
            return Ran(number, opened.counts(number), len(there), time.monotonic() - begun)


def stated(spec: StudySpec) -> dict[str, Any]:
    """What a study's file says, as plain data."""
    return spec.model_dump(mode="json", by_alias=True, exclude_none=True)


def make_pool(workers: int, scheduler: str | None, memory_limit: str | int, tell: Say) -> Pool:
    """Where tasks run."""
    if scheduler is None and workers == 0:
        return Inline()
    pool = Dask(workers, scheduler, memory_limit)
    if pool.dashboard:
        tell(f"dashboard: {pool.dashboard}")
    return pool


def _work(
    planned: Planned, missing: Sequence[str], pool: Pool, store: Store, made_with: int, progress: Progress
) -> None:
    """Submit all tasks, write rows as they come."""
    for group in planned.groups(missing):
        for task in tasks_of(group, pool, store, planned.spec.draws):
            pool.submit(task)
    for rows in pool.finished():
        store.put(rows, made_with)
        progress.add(rows)


def tasks_of(group: Sequence[Request], pool: Pool, store: Store, draws: int) -> list[Task]:
    """The settings of one graph as tasks."""
    return cut(group, pool.workers, run_s(group[0].options.mode, store, draws))


def summary(ran: Ran) -> str:
    """One line for people."""
    counts = ran.counts
    parts = [f"{sum(counts.values()):,} runs: {counts[DONE]:,} with a result"]
    parts += [f"{counts[MISFIT]:,} do not fit"] if counts[MISFIT] else []
    parts += [f"{counts[REFUSED]:,} whose options do not go together"] if counts[REFUSED] else []
    parts += (
        [f"{counts['died']:,} lost with their worker (the same command tries them again)"]
        if counts["died"]
        else []
    )
    reused = f"; {ran.reused:,} were in the store" if ran.reused else ""
    return f"{', '.join(parts)}{reused}; {ran.seconds:,.1f} s"
