"""A study from its description to rows in the store.

spec -> settings -> requests -> (those that the store lacks) -> tasks -> rows -> store

Settings are planned in chunks, and tasks are submitted as long as fewer than AHEAD per worker wait. So a
study of 100,000 settings starts after its first chunk, and never stores more than a few thousand requests.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wse_sim.studies.evaluate import DIED, DONE, MISFIT, REFUSED, StudyRow
from wse_sim.studies.folder import Folder, Progress, Ran, Say, stated
from wse_sim.studies.pool import Dask, Inline, Pool, Portion, cut
from wse_sim.studies.provenance import provenance
from wse_sim.studies.schema import StudySpec, study_from
from wse_sim.studies.search import run_search
from wse_sim.studies.settings import Request
from wse_sim.studies.store import Store
from wse_sim.studies.study_plan import CHUNK, Planned, count_of, planned_chunks, run_s


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
    """Run all settings of a study that the store lacks; the same call resumes an interrupted study.

    With `workers` 0 the study runs in this process. `say` receives progress, `tell` lines that should remain
    visible (the dashboard's address).

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
            return run_search(
                spec, folder, name, lambda: make_pool(workers, scheduler, memory_limit, tell), say
            )
        chunks = planned_chunks(spec)
        first = next(chunks)  # raises before anything is written
        with Store(folder.store) as opened:
            number = opened.study(stated(spec))
            folder.remember(number, name)
            opened.drop_members(number)
            begun, total = time.monotonic(), count_of(spec)
            work = _Work(opened, number, opened.made_with(provenance()), Progress(total, say))
            try:
                for planned in itertools.chain([first], chunks):
                    missing = work.missing(planned)
                    if missing and work.pool is None:
                        most = workers if total > CHUNK else min(workers, len(missing))
                        work.pool = make_pool(most, scheduler, memory_limit, tell)
                    work.hand_out(planned, missing)
                work.drain(0)
            finally:
                if work.pool is not None:
                    work.pool.close()
            spent = time.monotonic() - begun
            return Ran(number, opened.counts(number), work.reused, spent, opened.causes(number))


NO_DASHBOARD = "none, it needs bokeh; pip install 'wse-sim[dashboard]'"


def make_pool(workers: int, scheduler: str | None, memory_limit: str | int, tell: Say) -> Pool:
    """Return the pool in which tasks run."""
    if scheduler is None and workers == 0:
        return Inline()
    pool = Dask(workers, scheduler, memory_limit)
    tell(f"dashboard: {pool.dashboard or NO_DASHBOARD}")
    return pool


MOST_CAUSES = 5  # that a summary names
AHEAD = 4
"""Tasks per worker that wait or run; more are planned and submitted when some have ended."""


@dataclass
class _Work:
    """A running sweep: the store, the submitted tasks, and the writing of rows."""

    store: Store
    study: int
    made_with: int
    progress: Progress
    pool: Pool | None = None
    reused: int = 0
    asked: set[str] = field(default_factory=set)

    def missing(self, planned: Planned) -> list[str]:
        """Store the members of a chunk and the rows of its faults; return the keys that must run."""
        self.store.add_members(self.study, ((n, key, setting) for n, setting, key in planned.numbered))
        self.store.put(
            [StudyRow(key, REFUSED, message=text) for key, text in planned.faults.items()], self.made_with
        )
        keys = [key for key in planned.requests if key not in self.asked]
        there = self.store.finished(keys)
        self.reused += len(there)
        self.asked.update(keys)
        found = [key for key in keys if key not in there]
        self.progress.total -= len(planned.numbered) - len(found)
        return found

    def hand_out(self, planned: Planned, missing: Sequence[str]) -> None:
        """Submit the tasks of a chunk to the pool; write rows while too many tasks wait."""
        if self.pool is None:
            return
        for group in planned.groups(missing):
            left = max(len(missing), self.progress.total - self.progress.done)
            for task in tasks_of(group, self.pool, self.store, planned.spec.draws, left):
                self.drain(AHEAD * self.pool.workers)
                self.pool.submit(task)

    def drain(self, most: int) -> None:
        """Write rows until at most `most` tasks are left."""
        if self.pool is None or self.pool.pending <= most:
            return
        for rows in self.pool.finished():
            self.store.put(rows, self.made_with)
            self.progress.add(rows)
            if self.pool.pending <= most:
                return


def tasks_of(group: Sequence[Request], pool: Pool, store: Store, draws: int, left: int) -> list[Portion]:
    """Return the settings of one graph as tasks; the study still has `left` settings to run."""
    return cut(group, pool.workers, run_s(group[0].options.mode, store, draws), left)


def summary(ran: Ran) -> str:
    """Return a summary line, and a line for each of the most frequent causes of missing results."""
    counts = ran.counts
    parts = [f"{sum(counts.values()):,} runs: {counts[DONE]:,} with a result"]
    parts += [f"{counts[MISFIT]:,} do not fit"] if counts[MISFIT] else []
    parts += [f"{counts[REFUSED]:,} refused"] if counts[REFUSED] else []
    parts += (
        [f"{counts['died']:,} lost with their worker (the same command tries them again)"]
        if counts["died"]
        else []
    )
    reused = f"; {ran.reused:,} were in the store" if ran.reused else ""
    words = {MISFIT: "does not fit", REFUSED: "refused", DIED: "lost"}
    lines = [
        f"  {count:,} x {words.get(status, status)}: {cause}"
        for status, cause, count in ran.causes[:MOST_CAUSES]
    ]
    if len(ran.causes) > MOST_CAUSES:
        lines.append(f"  and {sum(count for *_, count in ran.causes[MOST_CAUSES:]):,} more, by other causes")
    return "\n".join([f"{', '.join(parts)}{reused}; {ran.seconds:,.1f} s", *lines])
