"""Reprices a run, a kernel or a comparison at every draw of the constants.

The plan stays: regions, routes, lanes and micro-batches are those that were chosen with the stated constants.  Ratios
between draws come from :meth:`wse_sim.modes.base.Mode.quick_figures`, the value itself from the whole simulation.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from wse_sim.compiler.plan import Infeasible, Plan
from wse_sim.engine.result import Result
from wse_sim.hardware import Cluster, Wafer, load_cluster
from wse_sim.modes.base import PricesDraws
from wse_sim.modes.registry import mode_named, mode_of
from wse_sim.report.views import energy
from wse_sim.uncertainty.draws import SAMPLES, DrawnMachine, draws, ranged
from wse_sim.uncertainty.interval import Interval, check_percent, interval_of
from wse_sim.uncertainty.model_error import own_error
from wse_sim.uncertainty.processes import in_processes

Figures = Mapping[str, float]
POWER = "system_power_w"
"""Power of a system: its range is between published values, so no error of the model is added."""
IDLE, WORK = "power_idle_w", "power_active_w"
# The first token is decode's, whose parts a chunk of a prompt is made of; its error is the larger one, too.
GENERATION = {"prefill_tokens_per_s": "model.prefill"}


@dataclass(frozen=True)
class Spread:
    """Figures at the stated constants and at every draw, by name."""

    base: Figures
    drawn: tuple[Figures, ...]

    def ratios(self, name: str) -> list[float]:
        """Return the ratios of a figure at each draw to its value at the stated constants."""
        return [figures[name] / self.base[name] for figures in self.drawn if figures]


def spread_of(
    evaluate: Callable[[DrawnMachine], Figures],
    wafer: Wafer,
    cluster: Cluster,
    samples: int = SAMPLES,
    workers: int = 1,
) -> Spread:
    """Evaluate at the stated constants and at `samples` draws of them, on `workers` processes."""
    constants = ranged(wafer, cluster)
    base = evaluate(DrawnMachine(wafer, cluster))
    machines = list(draws(wafer, cluster, constants, samples))
    drawn = in_processes(lambda number: dict(evaluate(machines[number])), len(machines), workers)
    return Spread(base, tuple(drawn))


Again = Callable[[Wafer, Cluster], Plan | Infeasible]
"""Compiles again for another machine."""


def plan_figures(plan: Plan, again: Again | None = None) -> Callable[[DrawnMachine], Figures]:
    """Return a function that prices the plan, or one that is made `again`, on another machine; no figures where it does
    not fit.
    """
    mode = mode_of(plan)

    def evaluate(machine: DrawnMachine) -> Figures:
        make = again or functools.partial(mode.repriced, plan)
        priced = make(machine.wafer, machine.cluster)
        return {} if isinstance(priced, Infeasible) else _powered(mode.quick_figures(priced), priced.wafer)

    return evaluate


def _powered(figures: Figures, wafer: Wafer) -> dict[str, float]:
    """Return the figures, and the power of an idle system and of one at work; none stay none."""
    return {**figures, IDLE: wafer.power_idle_w, WORK: wafer.power_active_w} if figures else {}


def plan_spread(plan: Plan, samples: int = SAMPLES, workers: int = 1, again: Again | None = None) -> Spread:
    """Return the spread of a plan's figures: in one pass over all draws where the mode has one."""
    mode = mode_of(plan)
    if again is None and workers < 2 and isinstance(mode, PricesDraws):
        stated = DrawnMachine(plan.wafer, plan.cluster)
        machines = [stated, *draws(plan.wafer, plan.cluster, ranged(plan.wafer, plan.cluster), samples)]
        found = mode.drawn_figures(plan, [(machine.wafer, machine.cluster) for machine in machines])
        if found is not None:
            base, *drawn = (
                _powered(figures, one.wafer) for figures, one in zip(found, machines, strict=True)
            )
            return Spread(base, tuple(drawn))
    return spread_of(plan_figures(plan, again), plan.wafer, plan.cluster, samples, workers)


def subject_of(result: Result) -> str:
    """Return the subject of the suites that a result belongs to."""
    if mode_named(result.mode).counts == "token":
        return "model.decode"
    return "model.training" if result.phase == "training" else "model.evaluation"


def result_intervals(
    result: Result,
    percent: float = 90.0,
    samples: int = SAMPLES,
    *,
    workers: int = 1,
    again: Again | None = None,
) -> dict[str, Interval]:
    """Return the intervals of a result's rates, times and energies, by name.

    `workers` processes price the draws; with `again` every draw is compiled again instead of priced again.

    Raises
    ------
    ConfigError
        If `percent` is outside 50 to 99.
    """
    check_percent(percent)
    return intervals_from(result, plan_spread(result.plan, samples, workers, again), percent)


def intervals_from(result: Result, spread: Spread, percent: float) -> dict[str, Interval]:
    """Return the intervals of a result from a spread that is known."""
    subject = subject_of(result)
    spent = energy(result)
    powers, base = _powers(spread, spent.busy_fraction), spread.base["samples_per_s"]
    values: dict[str, float] = {"samples_per_s": result.samples_per_s, **result.figures}
    own = {name: own_error(GENERATION.get(name, subject)) for name in spread.base}
    found = {
        name: interval_of(values[name], spread.ratios(name), own[name], percent)
        for name in spread.base
        if values.get(name)
    }
    rates = [figures["samples_per_s"] / base for figures in spread.drawn if figures]
    found[POWER] = interval_of(spent.power_w, powers, 0.0, percent)
    per_sample = [watts / rate for watts, rate in zip(powers, rates, strict=True)]
    found["sample_joules"] = interval_of(spent.sample_joules, per_sample, own_error(subject), percent)
    found["step_s"] = found["samples_per_s"].inverse(result.samples_per_s * result.step_s)
    found["step_joules"] = found["sample_joules"].times(result.batch)
    if spent.token_joules:
        found["token_joules"] = found["sample_joules"].times(spent.token_joules / spent.sample_joules)
    return found


def _powers(spread: Spread, used: float) -> list[float]:
    """Return the ratios of a system's power at each draw to that at the stated constants, with a fraction `used` of its
    cores working.
    """

    def power(figures: Figures) -> float:
        return figures[IDLE] + used * (figures[WORK] - figures[IDLE])

    return [power(figures) / power(spread.base) for figures in spread.drawn if figures]


def kernel_spread(
    name: str, params: Mapping[str, object], wafer: Wafer, quantity: str = "cycles", samples: int = SAMPLES
) -> Spread:
    """Return the spread of a kernel's closed form."""
    return spread_of(kernel_figures(name, params, quantity), wafer, load_cluster(), samples)


def kernel_figures(
    name: str, params: Mapping[str, object], quantity: str = "cycles"
) -> Callable[[DrawnMachine], Figures]:
    """Return a function that prices a kernel on another machine."""
    from wse_sim.bench.command import measure  # loads all that runs programs

    def evaluate(machine: DrawnMachine) -> Figures:
        return {quantity: float(measure(name, params, machine.wafer, quantity=quantity).value)}

    return evaluate


def kernel_interval(
    name: str,
    params: Mapping[str, object],
    wafer: Wafer,
    *,
    value: float | None = None,
    quantity: str = "cycles",
    percent: float = 90.0,
    samples: int = SAMPLES,
) -> Interval:
    """Return the interval of a kernel's cycles (or another `quantity`); `value` replaces the closed form's.

    Raises
    ------
    ConfigError
        If `percent` is outside 50 to 99.
    """
    check_percent(percent)
    spread = kernel_spread(name, params, wafer, quantity, samples)
    centre = spread.base[quantity] if value is None else value
    return interval_of(centre, spread.ratios(quantity), own_error(f"kernel.{name}"), percent)


@dataclass(frozen=True)
class Lead:
    """The faster of two results, and the probability that it is faster."""

    faster: str
    slower: str
    ratio: Interval
    probability: float


def compare_interval(
    rows: Sequence[Result | Infeasible], percent: float = 90.0, samples: int = SAMPLES
) -> Lead | None:
    """Return the probability that the faster of two feasible results is really faster: both are priced at the same
    draws.

    Common constants (clock, vector rates) cancel; the results' own errors are independent.
    """
    from scipy.stats import norm

    feasible = sorted((row for row in rows if isinstance(row, Result)), key=lambda row: -row.samples_per_s)
    if len(feasible) < 2:
        return None
    first, second = feasible[:2]
    spreads = [plan_spread(row.plan, samples) for row in (first, second)]
    pairs = zip(*(spread.drawn for spread in spreads), strict=True)
    base = spreads[0].base["samples_per_s"] / spreads[1].base["samples_per_s"]
    ratios = [a["samples_per_s"] / b["samples_per_s"] / base for a, b in pairs if a and b]
    own = (own_error(subject_of(first)) ** 2 + own_error(subject_of(second)) ** 2) ** 0.5
    value = first.samples_per_s / second.samples_per_s
    ratio = interval_of(value, ratios, own, percent)
    sigma = max(own / float(norm.ppf(0.95)), 1e-9)
    chance = sum(float(norm.cdf(math.log(value * r) / sigma)) for r in ratios) / max(1, len(ratios))
    return Lead(first.mode, second.mode, ratio, chance)
