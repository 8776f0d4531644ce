"""Energy and cost of a run: wafers draw power, and are paid for, during the whole run.

With P0 and P the power of an idle and of a busy system, u the busy fraction of its regions weighted by their cores::

    E = wafers x span x (P0 + u (P - P0))

It is not published whether power falls like this between turns, so the result includes both limits: idle all
the time, and busy all the time. Hosts and networks are not included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wse_sim.modes.generation.plan import GenerationPlan
from wse_sim.serving.base import TICK_S, Served

HOUR_S = 3600.0


@dataclass(frozen=True)
class PowerDraw:
    """Power of one replica's wafers: watts per system, number of systems, and each region's fraction of all cores."""

    idle_w: float
    active_w: float
    systems: int
    core_fractions: tuple[float, ...]


@dataclass(frozen=True)
class ServingEnergy:
    """Energy of all wafers; `low` and `high` are those of wafers that are always idle, or always busy."""

    wafers: int
    span_s: float
    power_w: float
    joules_per_output_token: float
    low: float
    high: float

    def dollars_per_million_tokens(self, dollars_per_wafer_hour: float, tokens: int) -> float:
        """Return the price per million tokens, if the run generated `tokens` tokens."""
        return dollars_per_wafer_hour * self.wafers * self.span_s / HOUR_S / tokens * 1e6


def draw_of(plan: GenerationPlan) -> PowerDraw:
    """Return the power of a plan's wafers."""
    wafer = plan.wafer
    cores = plan.systems * wafer.program_cores
    fractions = tuple(item.region.cores / cores for item in plan.regions)
    return PowerDraw(wafer.power_idle_w, wafer.power_active_w, plan.systems, fractions)


@dataclass(frozen=True)
class HelperWafers:
    """Wafers that draft or read prompts for a replica, and the fraction of the time that they are busy."""

    systems: int
    busy: float


def energy_of(
    served: Served, draw: PowerDraw, replicas: int, helpers: Sequence[HelperWafers] = ()
) -> ServingEnergy:
    """Return the energy of a run, first arrival to last token; the `helpers` of a replica are wafers like
    those that decode.

    Example
    -------
    >>> import numpy as np
    >>> one = np.zeros(1, np.int64)
    >>> served = Served(one, one, one, one + 10**10, one, one, np.array([5 * 10**9]), {"emitted": 100})
    >>> energy_of(served, PowerDraw(10.0, 20.0, 1, (1.0,)), 1).joules_per_output_token  # 15 W for a second
    0.15
    """
    done = served.completed
    wafers = replicas * (draw.systems + sum(one.systems for one in helpers))
    tokens = max(1, served.counters["emitted"])
    if not done.any():
        return ServingEnergy(wafers, 0.0, draw.idle_w * wafers, 0.0, 0.0, 0.0)
    span_s = float(served.last_ticks[done].max() - served.arrival_ticks[done].min()) * TICK_S
    busy = served.busy_ticks / replicas * TICK_S / span_s
    used = sum(float(part) * cores for part, cores in zip(busy, draw.core_fractions, strict=True))
    used = replicas * (used * draw.systems + sum(one.systems * one.busy for one in helpers)) / wafers
    idle_w, active_w = wafers * draw.idle_w, wafers * draw.active_w
    power_w = idle_w + used * (active_w - idle_w)
    mean, low, high = (watts * span_s / tokens for watts in (power_w, idle_w, active_w))
    return ServingEnergy(wafers, span_s, power_w, mean, low, high)
