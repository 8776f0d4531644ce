"""Compares random models on the fabric with the event engine and PyTorch: one line per model, then the distribution of
the error.

    python -m benchmarks.random_models --seed 1 --count 60 [--json] [--keep]

Every model is drawn by its seed (:mod:`benchmarks.drawn_models`), and none is left out: refused, does not fit, stalled and crashed
are counted.  A difference is the cycles of the fabric over those of the event engine, less one: of a sample in a steady stream in
inference, of a batch in training and with streamed weights.  The engine runs three plans of each model::

    composed   prices of the programs that are stepped: the plan of ``--whole-fabric``
    run        the plan of a run without it
    plain      the plan with the option prices=plain, as every large model has it
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from typing import Any

import numpy as np
import torch

from benchmarks import measurements
from benchmarks.distribution import FIT, outcomes, summary
from benchmarks.drawn_models import Case, drawn
from wse_sim import api
from wse_sim.compiler.plan import Infeasible
from wse_sim.engine.options import Options
from wse_sim.engine.trace import RunTrace
from wse_sim.errors import DeadlockError, WseError
from wse_sim.fabric.result import FabricResult
from wse_sim.graph import KernelGraph
from wse_sim.modes.base import expect
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.result import PipelinedMeasure
from wse_sim.modes.pipelined.run import PipelinedRun
from wse_sim.modes.weight_streaming.plan import WeightStreamingPlan
from wse_sim.whole import compare_streaming, compare_training, compare_with_engine, inputs_over_rows
from wse_sim.whole.streaming.run import engine_step
from wse_sim.whole.values import check_values

Row = dict[str, Any]
SAMPLES = 10  # of the first half of a steady stream


class _NoFitError(Exception):
    """A plan that does not fit; the text states the bottleneck."""


def compiled(
    case: Case, graph: KernelGraph, prices: str | None = None, loss: str | None = None
) -> PipelinedPlan | WeightStreamingPlan:
    """Return a plan of the case; `prices` of a pipeline are those of a run unless others are requested."""
    how: dict[str, Any] = {"mode": "weight-streaming"}
    if not case.is_streamed:
        how = {"mode": "pipelined", "replicas": 1, "placer": case.placer, "prices": prices, "loss": loss}
    plan = api.compile(graph, wafer=case.wafer(), batch=case.batch, **how)
    if isinstance(plan, Infeasible):
        raise _NoFitError(plan.message)
    return expect(plan, WeightStreamingPlan if case.is_streamed else PipelinedPlan)


def lowered(case: Case) -> KernelGraph:
    """Return the graph of a run without ``--whole-fabric``."""
    trains = {"training": True, "optimizer": "sgd"} if case.training else {}
    return api.lower(case.model, (torch.zeros(1, *case.shape),), **trains)


def measure(case: Case) -> Row:
    """Measure one model: the outcome, values compared with PyTorch, cycles of the fabric and of both plans in the event
    engine.
    """
    began = time.process_time()
    row: Row = {
        "seed": case.seed, "kind": case.kind, "shape": list(case.shape), "phase": case.phase, "side": case.side, "base": case.base,
        "batch": case.batch,
    } | ({} if case.is_streamed else {"placer": case.placer})  # fmt: skip
    try:
        row |= {"outcome": "run", **_composed(case)}
    except _NoFitError as told:
        row |= {"outcome": FIT, "told": str(told)}
    except DeadlockError as told:
        row |= {"outcome": "stalled", "told": str(told)}
    except WseError as told:
        row |= {"outcome": "refused", "told": str(told)}
    except Exception:
        row |= {"outcome": "crashed", "told": traceback.format_exc(limit=-2)}
    if row["outcome"] == "run":
        for name, prices in (("run", None), ("plain", "plain")):
            try:
                row[f"{name}_cycles"] = _without_option(case, row, prices)
                row[name] = row["fabric_cycles"] / row[f"{name}_cycles"] - 1
            except _NoFitError as told:
                row[f"{name}_told"] = str(told)
    return row | {"cpu_s": round(time.process_time() - began, 2)}


def _composed(case: Case) -> Row:
    """Return the fabric, the engine with the plan that prices it, and the largest error of a value."""
    plan = compiled(case, inputs_over_rows(lowered(case), streamed=case.is_streamed))
    if isinstance(plan, WeightStreamingPlan):
        streamed = compare_streaming(plan)
        engine, fabric, of = streamed.engine_step, streamed.fabric_step, streamed.fabric
        extra: Row = {"edge_bytes_per_s": streamed.edge_bytes_per_s}
        closed = np.isclose(sum(streamed.engine_times), engine)
    elif case.training:
        trained = compare_training(plan)
        engine, fabric, of = trained.engine_step, trained.fabric_step, trained.fabric
        extra = {"same_order": trained.same_order, "regions": len(trained.regions)}
        closed = _engine(plan)[1]
    else:
        found = compare_with_engine(plan, SAMPLES)
        engine, fabric, of = found.engine_period, found.fabric_period, found.fabric
        extra = {"same_order": found.same_order, "regions": len(found.regions)}
        closed = _engine(plan)[1]
    checked = _values(case, plan)
    return {
        "engine_cycles": engine,
        "fabric_cycles": fabric,
        "composed": fabric / engine - 1,
        "books_closed": bool(closed) and _closed(of),
        **extra,
        **checked,
    }


def _values(case: Case, plan: PipelinedPlan | WeightStreamingPlan) -> Row:
    """Return the worst tensor against a PyTorch that rounds alike, of its largest element; one step."""
    samples = case.batch if case.training or case.is_streamed else 4
    torch.manual_seed(case.seed + 1)
    x = torch.randn(samples, *case.shape).half().float()
    labels = None
    if case.training:
        with torch.no_grad():
            outputs = case.model(x)
        rows = outputs.numel() // outputs.shape[-1]
        labels = np.arange(rows) % outputs.shape[-1]
    loss = "squared error" if case.is_streamed else "cross entropy"
    found = check_values(case.model, plan, x.numpy(), labels, rate=0.05, loss=loss)
    worst = max(found.values, key=lambda one: one.rounded_error)
    return {"worst_error": worst.rounded_error, "worst": f"{worst.kind} {worst.name}"}


def _closed(fabric: FabricResult) -> bool:
    """Return whether no word is left, and no core was busy and stalled for longer than the run."""
    return bool(fabric.words_left == 0 and fabric.idle.min() >= 0)


def _engine(plan: PipelinedPlan) -> tuple[float, bool]:
    """Return the cycles of a batch in the event engine with free input, and whether every region's time adds up to it."""
    run = PipelinedRun(plan, Options(steps=2), None, RunTrace(is_on=False, unit_s=1.0))
    run.execute()
    measure = PipelinedMeasure(run)
    return measure.step_cycles, bool(np.allclose(measure.books.sum(axis=1), measure.step_cycles, rtol=1e-6))


def _without_option(case: Case, row: Row, prices: str | None) -> float:
    """Return the cycles in the event engine with a plan of a run without ``--whole-fabric``, per sample or batch."""
    loss = "squared error" if case.training else None  # the loss of the comparison
    plan = compiled(case, lowered(case), prices, loss)
    if isinstance(plan, WeightStreamingPlan):
        return engine_step(plan, row["edge_bytes_per_s"])[0]
    step = _engine(plan)[0]
    return step if case.training else step / case.batch


def told(row: Row) -> str:
    """Return a line for the screen."""
    head = f"{row['seed']:5d} {row['kind']:14s} {row['phase']:9s} {row['base']} {row['side']:2d} "
    if row["outcome"] != "run":
        return f"{head} {row['outcome']}: {row['told']}"
    plans = " ".join(
        f"{row[name]:+8.1%}" if name in row else "no plan".rjust(8) for name in ("composed", "run", "plain")
    )
    return f"{head} {plans}  values {row['worst_error']:.3%}  {row['cpu_s']:.1f} s"


def main() -> None:
    """Draw, measure, print."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.random_models", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seed", type=int, default=1, help="the first of successive seeds")
    parser.add_argument("--count", type=int, default=60, help="how many models")
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    parser.add_argument("--keep", action="store_true", help="put the rows into docs/measured.json")
    options = parser.parse_args()
    rows = []
    for seed in range(options.seed, options.seed + options.count):
        rows.append(measure(drawn(seed)))
        if not options.json:
            print(told(rows[-1]), flush=True)
    found = {"outcomes": outcomes(rows), "summary": summary(rows)}
    if options.json:
        print(json.dumps({**found, "rows": rows}, indent=1))
    else:
        print(json.dumps(found))
    if options.keep:
        kept = [{key: value for key, value in row.items() if key != "cpu_s"} for row in rows]
        measurements.keep("random_models", {"seed": options.seed, "rows": kept}, "cycles; no clock")


if __name__ == "__main__":
    main()
