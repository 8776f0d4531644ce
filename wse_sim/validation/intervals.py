"""Intervals of points: each prediction priced again at draws of the constants, with the model's own error.

A point that a suite holds is judged by an own error that knows nothing of its group: see docs/validation.md.
"""

from __future__ import annotations

from collections.abc import Callable

from wse_sim import api
from wse_sim.compiler.plan import Infeasible
from wse_sim.errors import WseError
from wse_sim.hardware import load_cluster
from wse_sim.uncertainty.draws import SAMPLES, Machine
from wse_sim.uncertainty.interval import Interval, interval_of
from wse_sim.uncertainty.own_error import own_error
from wse_sim.uncertainty.spread import Figures, plan_spread, spread_of
from wse_sim.validation.predict import predict_on, stated_run, wafer_of
from wse_sim.validation.suite import Point

TIMES = ("step_s", "step_ms")  # quantities that fall as the rate rises


def point_ratios(point: Point, samples: int = SAMPLES) -> list[float]:
    """What draws of the constants make of a point's quantity, relative to the stated constants.

    Raises
    ------
    WseError
        If the point cannot be run.
    """
    wafer = wafer_of(point)
    name = point.subject.partition(".")[2]
    if point.subject.startswith("model.") and name not in ("prefill", "decode"):
        graph, options = stated_run(point, wafer)
        if options.mode == "auto":
            found = api.run(graph, options)
            plan = found if isinstance(found, Infeasible) else found.plan
        else:
            plan = api.plan_of(graph, options)
        if isinstance(plan, Infeasible):
            return []
        rates = plan_spread(plan, samples).ratios("samples_per_s")
        return [1 / ratio for ratio in rates] if point.quantity in TIMES else rates
    return spread_of(_evaluated(point), wafer, load_cluster(), samples).ratios("value")


def _evaluated(point: Point) -> Callable[[Machine], Figures]:
    def evaluate(machine: Machine) -> Figures:
        value = predict_on(point, machine.wafer).predicted
        return {"value": value} if value else {}

    return evaluate


def point_interval(
    point: Point, predicted: float, percent: float, own: float | None = None
) -> Interval | None:
    """The interval around a prediction; None where the point cannot be priced again."""
    try:
        ratios = point_ratios(point)
    except WseError:
        return None
    if own is None:
        own = own_error(point.subject)
    return interval_of(predicted, ratios, own, percent)
