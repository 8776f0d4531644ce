"""Searches for the best setting: Optuna proposes settings, the pool runs them, the store keeps them.

One objective is searched with a tree of Parzen estimators, several with NSGA-II.  Settings that do not fit or
violate a constraint are rated by the size of the violation, so that the search learns the boundary. An
interrupted search continues with the store: stored trials are reported to the sampler again.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from wse_sim.errors import WseError
from wse_sim.studies.evaluate import DIED, DONE, MISFIT, REFUSED, StudyRow
from wse_sim.studies.expand import defaults
from wse_sim.studies.folder import Folder, Progress, Ran, Say, stated
from wse_sim.studies.parameters import parameter, parameters
from wse_sim.studies.pool import Pool, Portion
from wse_sim.studies.provenance import provenance
from wse_sim.studies.quantities import MISS as NEED_OVER_LIMIT
from wse_sim.studies.schema import AxisRange, Search, StudySpec, axis_values
from wse_sim.studies.store import Store
from wse_sim.studies.study_plan import plan

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial, Trial

AHEAD = 2  # trials per worker that are proposed before the first of them has ended
MISS = "missed"
FARTHEST = 10.0
"""Constraint violation assigned to settings with inconsistent values, and to those that need ten times the
limit or more."""
NSGA_POPULATION = 24


def corner(spec: StudySpec) -> dict[str, Any]:
    """Return one setting of the search: the first value of every axis."""
    assert spec.search is not None
    first: dict[str, Any] = {}
    for name, axis in spec.search.over.items():
        whole = parameter(name).kind is int
        first[name] = (round(axis.low) if whole else axis.low) if isinstance(axis, AxisRange) else axis[0]
    return {**spec.fixed, **{name: parameter(name).check(value) for name, value in first.items()}}


def run_search(spec: StudySpec, folder: Folder, name: str, make: Callable[[], Pool], say: Say) -> Ran:
    """Run the trials that the store lacks.

    Raises
    ------
    WseError
        If Optuna is missing, the store cannot be written, or the scheduler goes away.
    """
    begun = time.monotonic()
    with Store(folder.store) as store:
        study = store.study(stated(spec))
        folder.remember(study, name)
        _Search(spec, store, study).run(make, say)
        counts = store.counts(study)
        return Ran(study, counts, 0, time.monotonic() - begun)


class _Search:
    """A running search: Optuna's study and the store."""

    def __init__(self, spec: StudySpec, store: Store, study: int) -> None:
        try:
            import optuna
        except ImportError:
            raise WseError(
                "mode search needs optuna, which is not installed; pip install 'wse-sim[study]'"
            ) from None
        assert spec.search is not None
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.optuna = optuna
        self.spec, self.search, self.store, self.study = spec, spec.search, store, study
        self.names = list(self.search.objectives)
        self.space = {name: self._distribution(name) for name in self.search.over}
        self.conditions = spec.conditions
        read = set().union(*(c.names for c in self.conditions)) if self.conditions else set()
        self.unset = defaults({n for n in read if n in parameters()} - set(spec.fixed) - set(self.space))
        self.made_with = store.made_with(provenance())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # constraints are an "experimental" part of the samplers
            self.sampler = self._sampler(self.search)
            self.optuna_study = optuna.create_study(
                directions=list(self.search.objectives.values()), sampler=self.sampler
            )

    def _sampler(self, search: Search) -> BaseSampler:
        samplers = self.optuna.samplers
        if len(search.objectives) > 1:
            size = min(NSGA_POPULATION, max(4, search.trials // 4))
            return samplers.NSGAIISampler(population_size=size, seed=search.seed, constraints_func=_missed)
        return samplers.TPESampler(
            seed=search.seed, constraints_func=_missed, constant_liar=True, multivariate=True
        )

    def _distribution(self, name: str) -> BaseDistribution:
        kinds, axis, known = self.optuna.distributions, self.search.over[name], parameter(name)
        if isinstance(axis, AxisRange) and axis.steps is None and axis.step is None:
            is_log = axis.scale == "log"
            if known.kind is int:
                return kinds.IntDistribution(round(axis.low), round(axis.high), log=is_log)
            return kinds.FloatDistribution(axis.low, axis.high, log=is_log)
        # By index, because values may be lists, and a sampler requires plain values.
        return kinds.IntDistribution(0, len(axis_values(name, axis)) - 1)

    def _values(self, proposed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the setting for Optuna's proposed values."""
        found = {}
        for name, value in proposed.items():
            axis = self.search.over[name]
            by_place = not (isinstance(axis, AxisRange) and axis.steps is None and axis.step is None)
            found[name] = axis_values(name, axis)[value] if by_place else parameter(name).check(value)
        return found

    def _proposal(self, setting: Mapping[str, Any]) -> dict[str, Any]:
        """Return the proposal that yields a setting: the inverse of :meth:`_values`."""
        found = {}
        for name, kept in setting.items():
            if name not in self.space:
                continue
            axis, value = self.search.over[name], kept
            if not (isinstance(axis, AxisRange) and axis.steps is None and axis.step is None):
                value = [_plain(v) for v in axis_values(name, axis)].index(_plain(kept))
            found[name] = value
        return found

    def run(self, make: Callable[[], Pool], say: Say) -> None:
        """Run all trials; those in the store are reported to the sampler instead."""
        number = self._remembered()
        progress = Progress(self.search.trials - number, say)
        if progress.total <= 0:
            return
        pool = make()
        try:
            self._trials(pool, number, progress)
        finally:
            pool.close()

    def _remembered(self) -> int:
        """Report the stored trials to the sampler; return the number of the next trial."""
        highest = -1
        for row in self.store.rows(self.study):
            if row["status"] == DIED:
                continue
            highest = max(highest, row["number"])
            kept = StudyRow(row["key"], row["status"], row["outputs"])
            values, missed = self._judged(row["parameters"], kept)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.optuna_study.add_trial(
                    self.optuna.trial.create_trial(
                        params=self._proposal(row["parameters"]),
                        distributions=self.space,
                        values=values,
                        user_attrs={MISS: missed},
                        system_attrs={"constraints": (missed,)},
                    )
                )
        return highest + 1

    def _trials(self, pool: Pool, number: int, progress: Progress) -> None:
        """Keep the pool busy, and report each row to the sampler when it arrives."""
        waiting: dict[str, list[tuple[Any, dict[str, Any]]]] = {}
        ahead = max(AHEAD, AHEAD * pool.workers) if pool.workers > 1 else 1
        while True:
            while number < self.search.trials and sum(map(len, waiting.values())) < ahead:
                self._propose(pool, number, waiting, progress)
                number += 1
            if not waiting:
                if number >= self.search.trials:
                    return
                continue
            rows = next(pool.finished(), None)
            if rows is None:
                continue
            self.store.put(rows, self.made_with)
            for row in rows:
                for trial, setting in waiting.pop(row.key):
                    self._tell(trial, setting, row)
                    progress.add([row])

    def _propose(self, pool: Pool, number: int, waiting: dict[str, list[Any]], progress: Progress) -> None:
        """Propose a trial: submit it, or report it at once if it is stored or its values are inconsistent."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trial = self.optuna_study.ask(self.space)
        setting = {**self.spec.fixed, **self._values(trial.params)}
        planned = plan(self.spec, [setting])
        key = planned.numbered[0][2]
        self.store.add_members(self.study, [(number, key, setting)])
        if key in planned.faults:
            row = StudyRow(key, REFUSED, message=planned.faults[key])
            self.store.put([row], self.made_with)
        elif key in waiting:
            waiting[key].append((trial, setting))
            return
        else:
            known = self.store.run(key)
            if known is None or known.status == DIED:
                waiting[key] = [(trial, setting)]
                pool.submit(Portion((planned.requests[key],)))
                return
            row = known
        self._tell(trial, setting, row)
        progress.add([row])

    def _tell(self, trial: Trial, setting: Mapping[str, Any], row: StudyRow) -> None:
        values, missed = self._judged(setting, row)
        trial.set_user_attr(MISS, missed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.optuna_study.tell(trial, values)

    def _judged(self, setting: Mapping[str, Any], row: StudyRow) -> tuple[list[float], float]:
        """Return the objectives of a row, and its constraint violation (0 or less if all constraints
        hold)."""
        values = [row.outputs.get(name) for name in self.names]
        if row.status != DONE or any(value is None for value in values):
            worst = [0.0 if way == "maximize" else 1e30 for way in self.search.objectives.values()]
            return worst, _distance(row)
        given = {**self.unset, **setting, **row.outputs}
        missed = sum(c.excess(given) for c in self.conditions if c.names <= set(given))
        return [float(value) for value in values if value is not None], missed


def _distance(row: StudyRow) -> float:
    """Return the violation of a row without a result: need divided by limit, and at least 1."""
    if row.status != MISFIT:
        return FARTHEST
    return min(FARTHEST, max(1.0, row.outputs.get(NEED_OVER_LIMIT, FARTHEST)))


def _plain(value: object) -> object:
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _missed(trial: FrozenTrial) -> tuple[float, ...]:
    return (float(trial.user_attrs.get(MISS, FARTHEST)),)
