"""The plan of a study: its settings with their requests, and an estimate of the run time; nothing is run."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from wse_sim.errors import WseError
from wse_sim.studies.expand import dimensions, settings
from wse_sim.studies.schema import StudySpec
from wse_sim.studies.settings import Request, Resolver
from wse_sim.studies.store import Store

CHUNK = 2000
"""Settings that are planned at a time."""
CAPTURE_S = 4.0
RUN_S = {"weight-streaming": 0.06, "pipelined": 30.0, "generation": 0.5, "auto": 30.0}
"""Approximate seconds of a capture and of a run on one core, for estimates where the store has no run of the mode."""
DRAW_S = 0.01  # per draw and run


@dataclass(frozen=True)
class Planned:
    """A planned study: settings with their requests; `faults` explains the settings that cannot be run."""

    spec: StudySpec
    numbered: tuple[tuple[int, dict[str, Any], str], ...]  # number, setting, key
    requests: Mapping[str, Request]  # by key
    faults: Mapping[str, str] = field(default_factory=dict)  # key -> sentence

    @property
    def graphs(self) -> int:
        """Number of graphs to capture if the store is empty."""
        return len({request.graph_key for request in self.requests.values()})

    def groups(self, keys: Iterable[str]) -> list[list[Request]]:
        """Return the requests of these keys by graph, the largest groups first."""
        found: dict[str, list[Request]] = {}
        for key in keys:
            request = self.requests[key]
            found.setdefault(request.graph_key, []).append(request)
        return sorted(found.values(), key=len, reverse=True)


def plan(
    spec: StudySpec,
    chosen: Iterable[Mapping[str, Any]] | None = None,
    first: int = 0,
    resolver: Resolver | None = None,
) -> Planned:
    """Plan settings (or those `chosen`, numbered from `first`) with their requests, without running them.

    A setting with inconsistent values is a fault of that setting: it becomes a row with the message.
    """
    resolver = resolver or Resolver(spec)
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
    """Plan all settings of a sweep.

    Raises
    ------
    WseError
        If none of the settings makes a run.
    """
    planned = plan(spec)
    if not planned.numbered:
        raise WseError("no setting of the study meets its constraints; loosen them or vary more")
    if not planned.requests:
        raise WseError(f"no setting of the study makes a run: {next(iter(planned.faults.values()))}")
    return planned


def planned_chunks(spec: StudySpec, size: int = CHUNK) -> Iterator[Planned]:
    """Yield the settings of a sweep in chunks of `size`, each planned just before it runs.

    Raises
    ------
    WseError
        If none of the settings makes a run; raised before the first chunk.
    """
    resolver, every = Resolver(spec), settings(spec)
    held: list[Planned] = []
    first = 0
    has_run = False
    while chosen := list(itertools.islice(every, size)):
        planned = plan(spec, chosen, first, resolver)
        first += len(chosen)
        held.append(planned)
        has_run = has_run or bool(planned.requests)
        if has_run:
            yield from held
            held.clear()
    if not first:
        raise WseError("no setting of the study meets its constraints; loosen them or vary more")
    if not has_run:
        raise WseError(f"no setting of the study makes a run: {next(iter(held[0].faults.values()))}")


def count_of(spec: StudySpec) -> int:
    """Return the number of settings of a sweep; constraints are evaluated for each setting."""
    if spec.conditions:
        return sum(1 for _ in settings(spec))
    return prod(len(axis) for axis in dimensions(spec))


def _digest(data: object) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()[:24]


def estimate_s(planned: Planned, keys: Sequence[str], store: Store | None, workers: int) -> float:
    """Return the approximate seconds for the runs of these keys, from runs in the store if it has some."""
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
    """Return the approximate seconds of a run of a mode."""
    measured = store.seconds_of(mode) if store is not None else None
    return measured if measured is not None else RUN_S.get(mode, RUN_S["auto"]) + DRAW_S * draws
