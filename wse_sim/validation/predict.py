"""Predicts a point: a rule per subject turns the point's parameters into a run.

model.training     compile and simulate the step of the stated model in the stated mode
model.evaluation   the same, forward only
model.prefill      one layer of matrix products on a grid of cores, times the layers
model.decode       one token through one layer on a grid, times the layers
kernel.NAME        the fabric program or the cost of that kernel (:mod:`wse_sim.bench.command`)
csl.program        a published program in CSL, compiled and run; `program` states it (:mod:`wse_sim.csl.timed`)

Everything comes from the point's parameters; nothing depends on its name.  Parameters of a model run:
`model` (sizes, or the name of a shipped model) or `graph` (the folder of a compile of ``wse-sim script``), `mode`, `batch` (over all systems), `systems`,
`micro_batch`, `choose_micro_batch` (else `largest`, as published runs show), `lanes`, `recompute`, `train`, `lora`, `lora_on`, `sparsity` (fraction of zero weights), `seq`, `optimizer`, `precision`,
`cluster`, `workers` (input workers per system), `clock_hz`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from wse_sim import api
from wse_sim.compiler.plan import Infeasible
from wse_sim.engine.result import Result
from wse_sim.errors import ConfigError, WseError
from wse_sim.frontend.parameters import named_model
from wse_sim.graph import KernelGraph
from wse_sim.hardware import Wafer, load_cluster, load_wafer
from wse_sim.modes import competing, streaming
from wse_sim.modes.generation.decoder import stated_layer
from wse_sim.modes.generation.layer_parts import decoded_layer, prefilled_layer
from wse_sim.report.views import energy
from wse_sim.serialize import load
from wse_sim.timing import fabric_factors
from wse_sim.timing.layers import time_layer
from wse_sim.validation.suite import Point
from wse_sim.whole.over_plain import FamilyProof, by_family, priced_parts

# Parameters of a point that are options of a run, by the names of their declaration.
RUN_PARAMETERS = ("systems", "micro_batch", "choose_micro_batch", "lanes", "recompute")
PARTIAL = ("train", "lora", "lora_on")
# What impossible values of a point's parameters can raise besides the faults with a sentence of their own.
VALUE_FAULTS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)

MAX_ROUTER_CYCLES = 5.0e8  # cores times cycles of a fabric program that validation still runs

KernelTiming = str
WaferChange = Callable[[Wafer], Wafer]


@dataclass(frozen=True)
class Prediction:
    """The simulator's prediction for a point; `reason` explains why it was not run."""

    predicted: float | None
    binding: str = ""
    reason: str = ""
    mode: str = ""  # of a model that was planned
    families: tuple[FamilyProof, ...] = ()  # what of its time rests on composed prices


def predict(
    point: Point,
    timing: KernelTiming = "model",
    change: WaferChange | None = None,
    sources: Path | None = None,
) -> Prediction:
    """Predict a point; if it cannot be run, the prediction has the reason.

    `change` derives the wafer that is used from the point's (for refits of its constants); `sources` is the folder of published programs.
    """
    if point.fault:
        return Prediction(None, reason=point.fault)
    try:
        answer = _predict(point, timing, change, sources)
    except WseError as fault:
        return Prediction(None, reason=str(fault))
    except VALUE_FAULTS as fault:
        if isinstance(fault, KeyError) and fault.args and isinstance(fault.args[0], str):
            return Prediction(None, reason=f"the point lacks the parameter '{fault.args[0]}'")
        return Prediction(None, reason=f"the point's parameters make no run: {type(fault).__name__}: {fault}")
    return answer


def wafer_of(point: Point) -> Wafer:
    """Return the wafer of a point, with the clock that the point states."""
    wafer = load_wafer(point.system)
    if "clock_hz" in point.params:
        wafer = wafer.derive(clock_hz=float(point.params["clock_hz"]))
    return wafer


def _predict(
    point: Point, timing: KernelTiming, change: WaferChange | None, sources: Path | None
) -> Prediction:
    wafer = wafer_of(point)
    if change is not None:
        wafer = change(wafer)
    return predict_on(point, wafer, timing, sources)


def predict_on(
    point: Point, wafer: Wafer, timing: KernelTiming = "model", sources: Path | None = None
) -> Prediction:
    """Predict a point on a given wafer; faults are raised.

    Raises
    ------
    WseError
        If the point states no run.
    """
    kind, _, name = point.subject.partition(".")
    if kind == "kernel":
        return _kernel(name, point, wafer, timing)
    if kind == "model" and name in ("training", "evaluation", "inference"):
        return _model(point, wafer, timing)
    if kind == "model" and name in ("prefill", "decode"):
        return _grid(point, wafer, name, timing)
    if point.subject == "csl.program":
        return _program(point, wafer, sources)
    raise ConfigError(
        f"subject '{point.subject}' is unknown; use model.training, model.evaluation, model.prefill, "
        "model.decode, kernel.NAME or csl.program"
    )


def _value(point: Point, values: Mapping[str, float]) -> float:
    if point.quantity not in values:
        raise ConfigError(
            f"quantity '{point.quantity}' is unknown for {point.subject}; use {', '.join(values)}"
        )
    return float(values[point.quantity])


@lru_cache(maxsize=4)
def _graph(
    model: str,
    seq: int | None,
    training: bool,
    optimizer: str,
    precision: str,
    partial: tuple[tuple[str, Any], ...],
) -> KernelGraph:
    """Return the kernel graph of a model stated in JSON; points often differ in batch and systems only."""
    return api.load_model(
        json.loads(model),
        seq=seq,
        training=training,
        optimizer=optimizer,
        precision=precision,
        **dict(partial),
    )


@lru_cache(maxsize=4)
def _captured(folder: str, training: bool) -> KernelGraph:
    """Return the graph that a training script left in a folder; training or not is part of it."""
    graph = load(Path(folder), "graph")
    if not isinstance(graph, KernelGraph) or graph.training != training:
        kind = (
            f"a {'training' if graph.training else 'forward'} graph"
            if isinstance(graph, KernelGraph)
            else "no graph"
        )
        raise ConfigError(
            f"{folder}: holds {kind}, the point needs one of {'training' if training else 'a forward pass'}"
        )
    return graph


def _sizes(stated: str | Mapping[str, object]) -> str:
    """Return the model of a point as JSON: a name, or its sizes."""
    if isinstance(stated, str):
        return json.dumps(stated)
    sizes = dict(stated)
    name = str(sizes.pop("name", sizes.get("family", "model")))
    return json.dumps({"name": name, "model": sizes}, sort_keys=True)


def stated_run(point: Point, wafer: Wafer) -> tuple[KernelGraph, api.RunOptions]:
    """Return the graph and the options of a point that runs a whole model.

    Raises
    ------
    WseError
        If the point states no run.
    """
    phase = point.subject.partition(".")[2]
    params = point.params
    mode = str(params.get("mode", streaming().name)).replace("_", "-")
    known = [found.name for found in competing()]
    if mode not in (*known, api.AUTO):
        raise ConfigError(f"mode '{params['mode']}' is unknown; use one of {', '.join((*known, api.AUTO))}")
    training = phase == "training"
    if "graph" in params:
        graph = _captured(str(params["graph"]), training)
    else:
        graph = _graph(
            _sizes(params["model"]),
            params.get("seq"),
            training,
            str(params.get("optimizer", "adamw")),
            str(params.get("precision", "mixed")),
            tuple((name, params[name]) for name in PARTIAL if training and params.get(name) is not None),
        )
    cluster = load_cluster(str(params.get("cluster", "default")))
    if "workers" in params:
        cluster = cluster.derive(input_workers_per_system=int(params["workers"]))
    stated = {name: params[name] for name in RUN_PARAMETERS if params.get(name) is not None}
    if mode == streaming().name:
        stated.setdefault("choose_micro_batch", "largest")
    options = api.RunOptions(
        mode=mode,
        phase="training" if training else "inference",
        batch=params["batch"],
        wafer=wafer,
        cluster=cluster,
        density=1.0 - float(params.get("sparsity", 0.0)),
        **stated,
    )
    return graph, options


def _model(point: Point, wafer: Wafer, timing: KernelTiming) -> Prediction:
    graph, options = stated_run(point, wafer)
    result = _simulated(graph, options, timing)
    if not isinstance(result, Result):
        return Prediction(None, binding=result.binding, reason=result.message)
    rate, spent = result.samples_per_s, energy(result)
    values = {
        "samples_per_s": rate,
        "tokens_per_s": rate * int(graph.facts.get("seq", 1)),
        "steps_per_s": 1.0 / result.step_s,
        "step_s": result.step_s,
        "step_ms": 1e3 * result.step_s,
        "mfu": result.mfu,
        "power_w": spent.power_w,
        "power_kw": spent.power_w / 1e3,
        "step_joules": spent.step_joules,
        "sample_joules": spent.sample_joules,
        "token_joules": spent.token_joules,
    }
    families = by_family(priced_parts(result.plan))
    return Prediction(_value(point, values), binding=result.binding, mode=result.plan.mode, families=families)


def _simulated(graph: KernelGraph, options: api.RunOptions, timing: KernelTiming) -> Result | Infeasible:
    """Return the run without its timeline, by formulas or with the factors of fabric programs."""
    if options.mode == "auto":
        return api.run(graph, options.replace(timing=timing))
    plan = api.plan_of(graph, options)
    if isinstance(plan, Infeasible):
        return plan
    factors = fabric_factors(plan).factors if timing == "fabric" else "model"
    return api.simulate(plan, timing=factors, trace=False)


def _program(point: Point, wafer: Wafer, sources: Path | None) -> Prediction:
    """Return the cycles that a published program in CSL counts itself."""
    from wse_sim.csl.timed import timed_cycles, timed_run

    run = timed_run(point.params["program"], point.id)
    if sources is None:
        raise ConfigError(
            f"the program of {point.id} is not part of this repository; clone its source ({point.source}) and give the folder around it by --sources"
        )
    cycles = timed_cycles(sources, run, wafer, point.system)
    return Prediction(_value(point, {"cycles": cycles}), binding="program")


def _grid(point: Point, wafer: Wafer, phase: str, timing: KernelTiming) -> Prediction:
    from wse_sim.modes.generation import layer as wafer_llm

    params = point.params
    model = params["model"]
    if isinstance(model, str):
        model = named_model(model).model.model_dump()
    shape = stated_layer(model)
    batch = int(params.get("batch", 1))  # requests take turns: more of them take longer at the same rate
    grid = int(params["grid"])
    if phase == "prefill":
        tokens = int(params["tokens"])
        answer = wafer_llm.prefill(model, wafer, grid=grid, tokens=tokens)
        layer = prefilled_layer(shape, tokens, grid, wafer)
    else:
        tokens, context, groups = 1, int(params["context"]), params.get("groups")
        answer = wafer_llm.decode(model, wafer, grid=grid, groups=groups, context=context)
        layer = decoded_layer(shape, context, grid, wafer, groups)
    if timing == "fabric":
        slower = time_layer(layer, wafer).factors[phase]
        answer = dataclasses.replace(
            answer,
            tokens_per_s=answer.tokens_per_s / slower,
            cycles_per_layer=answer.cycles_per_layer * slower,
        )
    values = {
        "tokens_per_s": answer.tokens_per_s,
        "cycles_per_layer": answer.cycles_per_layer,
        "seconds": batch * tokens / answer.tokens_per_s,
        "milliseconds": 1e3 * batch * tokens / answer.tokens_per_s,
    }
    return Prediction(_value(point, values), binding=answer.binding)


def _kernel(name: str, point: Point, wafer: Wafer, timing: KernelTiming) -> Prediction:
    from wse_sim.bench.command import measure

    params = point.params
    if timing == "fabric" and "steps" not in params:  # steps in time are scaled down by the kernel itself
        cycles = measure(name, params, wafer).value
        cores = int(params.get("rows", 1)) * int(params.get("cols", params.get("cores", 1)))
        if cycles * cores > MAX_ROUTER_CYCLES:
            raise ConfigError(
                f"{cores:,} cores for {cycles:,.0f} cycles are {cycles * cores:.2g} router cycles, the limit of "
                f"--timing fabric is {MAX_ROUTER_CYCLES:.2g}; use --timing model"
            )
    answer = measure(name, params, wafer, quantity=point.quantity, timing=timing)
    return Prediction(float(answer.value), binding=answer.binding)
