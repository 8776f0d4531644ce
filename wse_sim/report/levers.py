"""Levers: changes that make a run faster, and by how much; its sensitivity to constants, kernels and the batch.

Each lever is changed alone and the plan stays the same, as in :mod:`wse_sim.uncertainty.sensitivity`: a
constant of wafer or cluster by a tenth, a count of the cluster by one, the cycles of kernels to nine tenths,
the batch to twice its size. Gains are ratios of :meth:`wse_sim.modes.base.Mode.quick_figures`; a larger batch
also distributes the fixed cost of a step over more samples.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from wse_sim.compiler.plan import Infeasible, Plan
from wse_sim.engine.result import Result
from wse_sim.hardware import Cluster, Wafer
from wse_sim.hardware.constants import Constant
from wse_sim.modes.base import Mode, Placed, PricesDraws, Rebatches
from wse_sim.modes.registry import mode_named
from wse_sim.report.text import percent

TENTH = 0.1
LEAST = 1e-3
"""Smaller gains are left out."""
SHOWN = 6
TOGETHER = 8  # constants changed per pass if every machine is priced separately
RATE = "samples_per_s"
Machine = tuple[Wafer, Cluster]


@dataclass(frozen=True)
class Lever:
    """A parameter, its change, the relative gain of samples/s, and the evidence behind a constant."""

    name: str
    change: str
    gain: float
    evidence: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.change} (+{percent(self.gain)})"


_last: list[
    tuple[weakref.ref[Result], tuple[Lever, ...]]
] = []  # text and page of one run request the same levers


def levers_of(result: Result) -> tuple[Lever, ...]:
    """Return the levers that make a run faster, the largest gain first; ties: known constants before assumed ones.

    The levers of the last result are cached.

    Examples
    --------
    >>> import wse_sim
    >>> print(levers_of(wse_sim.run("fc-mnist", mode="pipelined", batch=256))[0])
    input_workers_per_system 2 instead of 1 (+100.0 %)
    """
    for last, levers in _last:
        if last() is result:
            return levers
    _last[:] = [(weakref.ref(result), _found(result))]
    return _last[0][1]


def _found(result: Result) -> tuple[Lever, ...]:
    mode, plan = mode_named(result.mode), result.plan
    if not plan.graph.kernels:  # nothing to price
        return ()
    base = float(mode.quick_figures(plan)[RATE])
    found = [*_constants(mode, plan, base), *_kernels(mode, plan, base), *_batch(mode, result, base)]
    kept = (lever for lever in found if lever.gain >= LEAST)
    return tuple(sorted(kept, key=lambda lever: (-round(lever.gain, 4), lever.evidence == "assumed")))


def _constants(mode: Mode, plan: Plan, base: float) -> Iterator[Lever]:
    """Yield levers that raise constants, or lower those that are costs."""
    sets = (("wafer", plan.wafer), ("cluster", plan.cluster))
    stated = {
        (owner, name): constant
        for owner, part in sets
        for name, constant in part.provenance.items()
        if constant.acts == "models" and _is_movable(owner, constant)
    }
    higher = _gains(mode, plan, base, {key: _moved(constant, 1) for key, constant in stated.items()})
    costs = {key: _moved(stated[key], -1) for key, gain in higher.items() if gain < 0}
    lower = _gains(mode, plan, base, costs)
    for (owner, name), gain in (*higher.items(), *lower.items()):
        constant = stated[owner, name]
        up = gain == higher[owner, name]
        if isinstance(constant.value, int):
            change = f"{_moved(constant, 1 if up else -1)} instead of {constant.value}"
        else:
            change = f"{100 * TENTH:.0f} % {'higher' if up else 'lower'}"
        yield Lever(name, change, gain, constant.evidence)


def _is_movable(owner: str, constant: Constant) -> bool:
    """Return whether a plan can be priced with another value; integers of the wafer define its geometry and
    cannot change."""
    value = constant.value
    return isinstance(value, float | int) and value > 0 and (isinstance(value, float) or owner == "cluster")


def _moved(constant: Constant, sign: int) -> float | int:
    value = constant.value
    assert isinstance(value, float | int)
    return value + sign if isinstance(value, int) else value * (1 + sign * TENTH)


Key = tuple[str, str]  # owner and name of a constant


def _gains(mode: Mode, plan: Plan, base: float, values: Mapping[Key, float | int]) -> dict[Key, float]:
    """Return the relative gain for each constant, changed alone to its value."""
    keys = list(values)
    if isinstance(mode, PricesDraws):
        figures = (
            mode.drawn_figures(plan, [_machine(plan, [(key, values[key])]) for key in keys]) if keys else []
        )
        if figures is not None:
            return {key: one.get(RATE, 0.0) / base - 1 for key, one in zip(keys, figures, strict=True)}
    found = dict.fromkeys(keys, 0.0)
    for start in range(0, len(keys), TOGETHER):
        group = keys[start : start + TOGETHER]
        if _gain(mode, plan, base, [(key, values[key]) for key in group]):
            found.update({key: _gain(mode, plan, base, [(key, values[key])]) for key in group})
    return found


def _gain(mode: Mode, plan: Plan, base: float, changes: Sequence[tuple[Key, float | int]]) -> float:
    priced = mode.repriced(plan, *_machine(plan, changes))
    return -1.0 if isinstance(priced, Infeasible) else float(mode.quick_figures(priced)[RATE]) / base - 1


def _machine(plan: Plan, changes: Iterable[tuple[Key, float | int]]) -> Machine:
    of: dict[str, dict[str, float | int]] = {"wafer": {}, "cluster": {}}
    for (owner, name), value in changes:
        of[owner][name] = value
    return plan.wafer.model_copy(update=of["wafer"]), plan.cluster.model_copy(update=of["cluster"])


def _kernels(mode: Mode, plan: Plan, base: float) -> Iterator[Lever]:
    """Yield the levers that make all kernels of a family faster."""
    families: dict[str, dict[str, None]] = {}
    for part in mode.work(plan):
        family = part.kernel.family if isinstance(part, Placed) else part.name
        families.setdefault(family, {})[part.name] = None
    change = f"{100 * TENTH:.0f} % faster"
    for family, names in families.items():
        faster = mode.scaled(plan, dict.fromkeys(names, 1 - TENTH))
        gain = float(mode.quick_figures(faster)[RATE]) / base - 1
        if len(names) == 1:
            yield Lever(f"kernel {next(iter(names))}", change, gain)
        else:
            yield Lever(f"all {len(names)} kernels of family {family}", change, gain)


def _batch(mode: Mode, result: Result, base: float) -> Iterator[Lever]:
    """Yield the lever that doubles the batch; the fixed cost of a step is then paid once for twice the
    samples."""
    twice, rate = 2 * result.batch, base
    if isinstance(mode, Rebatches):
        larger = mode.with_batch(result.plan, twice)
        if isinstance(larger, Infeasible):
            return
        rate = float(mode.quick_figures(larger)[RATE])
    once_s = max(0.0, result.step_s - result.batch / base)
    faster = twice / (once_s + twice / rate) * result.step_s / result.batch - 1
    yield Lever("batch", f"{twice:,} instead of {result.batch:,}", faster)
