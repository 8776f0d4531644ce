"""Intervals of points: each prediction is repriced at draws of the constants, and the model's own error is added.

A point that a suite holds is judged by an own error that knows nothing of its group: see docs/validation.md.
"""

from __future__ import annotations

from collections.abc import Callable

from wse_sim import api
from wse_sim.compiler.plan import Infeasible
from wse_sim.errors import WseError
from wse_sim.hardware import load_cluster
from wse_sim.uncertainty.draws import SAMPLES, DrawnMachine
from wse_sim.uncertainty.interval import Interval, interval_of
from wse_sim.uncertainty.model_error import own_error
from wse_sim.uncertainty.spread import Figures, plan_figures, spread_of
from wse_sim.validation.predict import predict_on, stated_run, wafer_of
from wse_sim.validation.suite import Point

TIMES = ("step_s", "step_ms")  # quantities that fall as the rate rises


def point_figure(point: Point, stated: float | None = None) -> Callable[[DrawnMachine], float]:
    """Return a function that predicts the point on another machine; the plan of a model stays as it is.

    `stated` is the prediction with the stated constants, if it is known.

    Raises
    ------
    WseError
        If the point cannot be run.
    """
    wafer = wafer_of(point)
    name = point.subject.partition(".")[2]
    if not point.subject.startswith("model.") or name in ("prefill", "decode"):
        return lambda machine: predict_on(point, machine.wafer).predicted or 0.0
    graph, options = stated_run(point, wafer)
    if options.mode == "auto":
        found = api.run(graph, options)
        plan = found if isinstance(found, Infeasible) else found.plan
    else:
        plan = api.plan_of(graph, options)
    if isinstance(plan, Infeasible):
        return lambda machine: 0.0
    figures, cluster = plan_figures(plan), plan.cluster
    at_rest = stated if stated is not None else predict_on(point, wafer).predicted or 0.0
    base = figures(DrawnMachine(wafer, cluster))["samples_per_s"]

    def figure(machine: DrawnMachine) -> float:
        # The cluster of a point (its workers) is that of its plan, with the constants that are drawn.
        workers = cluster.input_workers_per_system
        around = machine.cluster.model_copy(update={"input_workers_per_system": workers})
        ratio = figures(DrawnMachine(machine.wafer, around)).get("samples_per_s", 0.0) / base
        return at_rest / ratio if ratio and point.quantity in TIMES else at_rest * ratio

    return figure


def point_ratios(
    point: Point, samples: int = SAMPLES, figure: Callable[[DrawnMachine], float] | None = None
) -> list[float]:
    """Return the ratios of a point's quantity at draws of the constants to its value at the stated constants.

    Raises
    ------
    WseError
        If the point cannot be run.
    """
    price = figure or point_figure(point, 1.0)

    def evaluate(machine: DrawnMachine) -> Figures:
        value = price(machine)
        return {"value": value} if value else {}

    wafer, cluster = wafer_of(point), load_cluster(str(point.params.get("cluster", "default")))
    if not evaluate(DrawnMachine(wafer, cluster)):
        return []
    return spread_of(evaluate, wafer, cluster, samples).ratios("value")


def point_interval(
    point: Point, predicted: float, percent: float, own: float | None = None
) -> Interval | None:
    """Return the interval around a prediction; None where the point cannot be priced again."""
    try:
        ratios = point_ratios(point)
    except WseError:
        return None
    if own is None:
        own = own_error(point.subject)
    return interval_of(predicted, ratios, own, percent)
