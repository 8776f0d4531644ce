"""One prediction per subject: how a point's parameters become a run.

model.training     compile and simulate the step of the stated model in the stated mode
model.evaluation   the same, forward only
model.prefill      one layer of matrix products on a grid of cores, times the layers
model.decode       one token through one layer on a grid, times the layers
kernel.NAME        the fabric program or the cost of that kernel (:mod:`wse_sim.kernels.command`)

Everything comes from the point's parameters; nothing depends on its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wse_sim import api
from wse_sim.compiler.streaming import StreamingChoice
from wse_sim.engine.result import Result
from wse_sim.errors import ConfigError, WseError
from wse_sim.hardware import Wafer, load_wafer
from wse_sim.validation.suite import Point

MODES = {
    "weight_streaming": "weight-streaming",
    "weight-streaming": "weight-streaming",
    "pipelined": "pipelined",
}


@dataclass(frozen=True)
class Prediction:
    """What the simulator says of a point; `reason` tells why it was not run."""

    predicted: float | None
    binding: str = ""
    reason: str = ""


def predict(point: Point, timing: str = "model") -> Prediction:
    """Predict a point; a point that cannot be run comes back with the reason."""
    try:
        wafer = load_wafer(point.system)
        if "clock_hz" in point.params:
            wafer = wafer.derive(clock_hz=float(point.params["clock_hz"]))
        kind, _, name = point.subject.partition(".")
        if kind == "kernel":
            return _kernel(name, point, wafer, timing)
        if name in ("training", "evaluation"):
            return _model(point, wafer, name, timing)
        if name in ("prefill", "decode"):
            return _grid(point, wafer, name)
    except KeyError as missing:
        return Prediction(None, reason=f"the point lacks the parameter {missing}")
    except WseError as fault:
        return Prediction(None, reason=str(fault))
    return Prediction(None, reason=f"subject '{point.subject}' is unknown")


def _need(point: Point, quantities: tuple[str, ...]) -> None:
    if point.quantity not in quantities:
        raise ConfigError(
            f"quantity '{point.quantity}' is unknown for {point.subject}; use {', '.join(quantities)}"
        )


def _model(point: Point, wafer: Wafer, phase: str, timing: str) -> Prediction:
    _need(point, ("samples_per_s", "tokens_per_s", "step_s"))
    params = point.params
    mode = MODES.get(str(params["mode"]))
    if mode is None:
        raise ConfigError(f"mode '{params['mode']}' is unknown; use pipelined or weight_streaming")
    model = {"name": point.id, **params["model"]}
    options = api.RunOptions(
        mode=mode,
        phase="training" if phase == "training" else "inference",
        batch=int(params["batch"]),
        systems=int(params.get("systems", 1)),
        wafer=wafer,
        timing=timing,
        streaming=StreamingChoice(
            micro_batch=params.get("micro_batch"),
            lanes=params.get("lanes"),
            weight_density=1.0 - float(params.get("sparsity", 0.0)),
        ),
    )
    result = api.run(model, options)
    if not isinstance(result, Result):
        return Prediction(None, binding=result.binding, reason=result.message)
    rate = result.samples_per_s
    values = {"samples_per_s": rate, "step_s": result.step_s, "tokens_per_s": rate * _tokens(params["model"])}
    return Prediction(values[point.quantity], binding=result.binding)


def _tokens(model: dict[str, Any]) -> int:
    return int(model.get("seq", 1))


def _grid(point: Point, wafer: Wafer, phase: str) -> Prediction:
    from wse_sim.kernels import wafer_llm

    _need(point, ("tokens_per_s", "cycles_per_layer"))
    params = point.params
    if phase == "prefill":
        answer = wafer_llm.prefill(params["model"], wafer, grid=params["grid"], tokens=params["tokens"])
    else:
        answer = wafer_llm.decode(
            params["model"],
            wafer,
            grid=params["grid"],
            groups=params.get("groups"),
            context=params["context"],
        )
    value = answer.tokens_per_s if point.quantity == "tokens_per_s" else answer.cycles_per_layer
    return Prediction(float(value), binding=answer.binding)


def _kernel(name: str, point: Point, wafer: Wafer, timing: str) -> Prediction:
    from wse_sim.kernels.command import measure

    answer = measure(name, point.params, wafer, quantity=point.quantity, timing=timing)
    return Prediction(float(answer.value), binding=answer.binding)
