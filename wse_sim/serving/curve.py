"""Load curves: the same requests at several rates (or numbers of users), one point each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wse_sim.serving.base import TICK_S, Load
from wse_sim.serving.metrics import request_times
from wse_sim.serving.router import ROUND_ROBIN
from wse_sim.serving.run import Replica, Serving, attained, is_steady, serve

CURVE_REQUESTS = 10_000  # most requests of a point: enough for a 99th percentile
FRACTIONS = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0, 1.1)
"""Loads of a curve over rates, as fractions of the closed-form bound on requests per second."""
USER_FACTORS = (0.125, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Loads of a curve over users, as multiples of the requested number of users."""


@dataclass(frozen=True)
class CurvePoint:
    """A run at one load; times in ms, rates per second."""

    load: float  # requests that arrive per second, or users
    requests_per_s: float
    goodput: float | None  # requests per second within the goals
    median_ttft_ms: float
    p99_ttft_ms: float
    median_tpot_ms: float
    tokens_per_s: float  # of all users, counting only answers
    tokens_per_s_per_user: float  # of the median request
    attained: float | None  # fraction within the goals
    is_steady: bool  # no queue grows


def point_of(load: float, found: Serving, goals: Mapping[str, float] | None) -> CurvePoint:
    """Return the point of a curve for a run."""
    served, times = found.served, request_times(found.load, found.served)
    done = served.completed
    if not done.any():
        return CurvePoint(load, 0.0, None, 0.0, 0.0, 0.0, 0.0, 0.0, None, False)
    span_s = float(served.last_ticks[done].max() - served.arrival_ticks[done].min()) * TICK_S
    tpot = times["tpot"][~np.isnan(times["tpot"])]
    met = None if goals is None else attained(found, goals)
    middle = float(np.median(tpot)) if len(tpot) else 0.0
    return CurvePoint(
        load=load,
        requests_per_s=int(done.sum()) / span_s,
        goodput=None if met is None else met * len(found.load) / span_s,
        median_ttft_ms=float(np.median(times["ttft"])),
        p99_ttft_ms=float(np.percentile(times["ttft"], 99)),
        median_tpot_ms=middle,
        tokens_per_s=served.counters["emitted"] / span_s,
        tokens_per_s_per_user=1e3 / middle if middle else 0.0,
        attained=met,
        is_steady=found.load.is_closed or is_steady(found),
    )


def curve_of(
    load_at: Callable[[float], Load],
    loads: Sequence[float],
    replica: Replica,
    *,
    replicas: int = 1,
    goals: Mapping[str, float] | None = None,
    router: str = ROUND_ROBIN,
) -> tuple[CurvePoint, ...]:
    """Return one point of the curve for each of `loads`; `load_at` generates the requests of a load."""
    return tuple(
        point_of(load, serve(load_at(load), replica, replicas=replicas, router=router), goals)
        for load in loads
    )
