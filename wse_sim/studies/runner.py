"""A study from its description to rows in the store.

spec -> settings -> requests -> (those that the store lacks) -> tasks -> rows -> store
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wse_sim.studies.evaluate import DONE, MISFIT, REFUSED, StudyRow
from wse_sim.studies.folder import Folder, Progress, Ran, Say, stated
from wse_sim.studies.planned import Planned, planned_sweep, run_s
from wse_sim.studies.pool import Dask, Inline, Pool, Portion, cut
from wse_sim.studies.provenance import provenance
from wse_sim.studies.schema import StudySpec, study_from
from wse_sim.studies.search import run_search
from wse_sim.studies.settings import Request
from wse_sim.studies.store import Store


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
            opened.put(
                [StudyRow(key, REFUSED, message=text) for key, text in planned.faults.items()], made_with
            )
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


NO_DASHBOARD = "none, it needs bokeh; pip install 'wse-sim[dashboard]'"


def make_pool(workers: int, scheduler: str | None, memory_limit: str | int, tell: Say) -> Pool:
    """Where tasks run."""
    if scheduler is None and workers == 0:
        return Inline()
    pool = Dask(workers, scheduler, memory_limit)
    tell(f"dashboard: {pool.dashboard or NO_DASHBOARD}")
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


def tasks_of(group: Sequence[Request], pool: Pool, store: Store, draws: int) -> list[Portion]:
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
