"""A batch of a streamed model on the fabric: values, and its time compared with the event engine's.

Symbols: c(i) cycles of a program of the first i passes.  Pass i takes ``c(i) - c(i - 1)`` cycles: what it adds to the step.

The engine's phases take no launch floor here: the floor is time of the host that prepares a launch, and no property of
the fabric.  Gradients are means over the batch, as those of PyTorch's loss with ``reduction="mean"``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wse_sim.engine.options import Options
from wse_sim.engine.trace import RunTrace
from wse_sim.errors import ModelError
from wse_sim.fabric.result import FabricResult
from wse_sim.graph import Phase
from wse_sim.modes.weight_streaming.links import streaming_wavelets
from wse_sim.modes.weight_streaming.plan import StreamedPhase, WeightStreamingPlan
from wse_sim.modes.weight_streaming.run import StreamingRun
from wse_sim.whole.run import check_weights, stepped
from wse_sim.whole.streaming.layout import Pass
from wse_sim.whole.streaming.program import StreamedProgram, streamed_program

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class StreamedRun:
    """What one batch gave: outputs (T, N); in training the mean loss, mean gradients and new weights by parameter."""

    made: StreamedProgram
    outputs: Floats
    fabric: FabricResult
    loss: float = 0.0
    gradients: Mapping[str, Floats] = dataclasses.field(default_factory=dict)
    weights: Mapping[str, Floats] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class PassCycles:
    """Cycles of one pass: as the engine counts them, and what it adds to the step on the fabric."""

    name: str
    engine: float
    fabric: float


@dataclass(frozen=True)
class ComparedStreaming:
    """Cycles of one step, from the first word of weights to the last of the program.

    `engine_times` and `times` are cycles busy, stalled on input, stalled on output and idle: of every core in the engine,
    and of the mean core of the program rectangle.  `link_words` cross the busiest link of that rectangle: plan, fabric.
    """

    tokens: int
    lanes: int
    edge_bytes_per_s: float
    engine_step: float
    fabric_step: float
    passes: tuple[PassCycles, ...]
    engine_times: tuple[float, ...]
    times: tuple[float, ...]
    link_words: tuple[float, float]
    fabric: FabricResult = dataclasses.field(repr=False)

    @property
    def difference(self) -> float:
        """Step of the fabric over that of the engine, less one."""
        return self.fabric_step / self.engine_step - 1

    def as_json(self) -> dict[str, object]:
        """Plain numbers."""
        kept = (one for one in dataclasses.fields(self) if one.name != "fabric")
        plain = {one.name: getattr(self, one.name) for one in kept}
        return {**plain, "passes": [dataclasses.asdict(one) for one in self.passes]}

    def text(self) -> str:
        """A few lines for the screen."""
        head = (
            f"whole model on the fabric: {self.fabric_step:.6g} cycles for a step of {self.tokens} rows in {self.lanes} "
            f"lanes, {self.engine_step:.6g} by the event engine without launch floors ({self.difference:+.1%}); "
            f"the edges carry {self.edge_bytes_per_s / 1e9:.4g} GB/s in both"
        )
        rows = [
            f"  {one.name}: {one.fabric:.6g} cycles, {one.engine:.6g} in the plan ({one.fabric / one.engine - 1:+.1%})"
            for one in self.passes
            if one.engine
        ]
        return "\n".join([head, *rows])


def run_streamed(plan: WeightStreamingPlan, weights: Mapping[str, Floats], values: Floats) -> StreamedRun:
    """The outputs of all rows `values` (T, K), with `weights` by the names of the graph's parameters.

    Raises
    ------
    ModelError
        If the plan is not covered, weights are missing, or the rows are not those of the plan.
    DeadlockError
        If the program stops.
    """
    if plan.graph.training:
        raise ModelError("the plan is made for training; use train_streamed with it, or plan an inference")
    return _stepped(plan, weights, values, None)


def train_streamed(
    plan: WeightStreamingPlan,
    weights: Mapping[str, Floats],
    values: Floats,
    labels: NDArray[np.int64],
    *,
    rate: float,
) -> StreamedRun:
    """One step of stochastic gradient descent on half the squared error to one-hot `labels` (T,).

    The update is the host's, as it is MemoryX's: fp32 weights less `rate` times the mean gradient.

    Raises
    ------
    ModelError
        If the plan is not covered, weights are missing, or the rows are not those of the plan.
    DeadlockError
        If the program stops.
    """
    if not plan.graph.training:
        raise ModelError("the plan is made for inference; use run_streamed with it, or plan a training")
    run = _stepped(plan, weights, values, labels)
    rows = np.float32(len(values))
    gradients = {name: summed / rows for name, summed in run.made.gradients(run.fabric).items()}
    updated = {name: weights[name] - np.float32(rate) * mean for name, mean in gradients.items()}
    wanted = np.zeros_like(run.outputs)
    wanted[np.arange(len(values)), labels] = 1
    loss = float(((run.outputs - wanted) ** 2).sum() / 2 / rows)
    return dataclasses.replace(run, loss=loss, gradients=gradients, weights=updated)


def _stepped(
    plan: WeightStreamingPlan,
    weights: Mapping[str, Floats],
    values: Floats,
    labels: NDArray[np.int64] | None,
) -> StreamedRun:
    check_weights(plan.graph, weights)
    made = streamed_program(plan)
    lay = made.layout
    shape = (lay.tokens, lay.layers[0].k)
    if np.size(values) != np.prod(shape):
        raise ModelError(
            f"the samples have the shape {np.shape(values)}, the plan is of {shape}; give a batch of the plan"
        )
    rows = np.asarray(values, np.float32).reshape(shape)
    result = stepped(made.program, made.config, made.inputs(weights, rows, labels))
    outputs = made.gathered(result.read(f"x{len(lay.layers)}"), lay.layers[-1].n)
    return StreamedRun(made, outputs, result)


def compare_streaming(plan: WeightStreamingPlan) -> ComparedStreaming:
    """Step and passes of both simulators; samples are on the wafer, launches cost nothing.

    A small wafer has few rows next to its programs: the engine's edges carry no more than their streams do.

    Raises
    ------
    ModelError
        If the plan is not covered.
    """
    whole = streamed_program(plan)
    edge = min(plan.wafer.io_bytes_per_s, whole.edge_bytes_per_s)
    step_cycles, engine = engine_step(plan, edge)
    clock = plan.wafer.clock_hz
    runs = []
    for count in range(1, len(whole.layout.passes) + 1):
        made = streamed_program(plan, count)
        runs.append(stepped(made.program, made.config, None))
    ends = [0.0, *(float(run.cycles) for run in runs)]
    result, area = runs[-1], whole.layout.area
    place = (slice(area.row, area.row + area.rows), slice(area.col, area.col + area.cols))
    states = (result.busy, result.stalled_in, result.stalled_out, result.idle)
    rows = engine.books.phases.sum(axis=1) * clock
    counted = {phase.name: float(cycles) for phase, cycles in zip(plan.phases, rows, strict=True)}
    passes = tuple(
        PassCycles(
            _name(one),
            sum(counted[phase.name] for phase in plan.phases if _belongs(plan, phase, one, whole)),
            after - before,
        )
        for one, before, after in zip(whole.layout.passes, ends[:-1], ends[1:], strict=True)
    )
    return ComparedStreaming(
        whole.layout.tokens,
        plan.lanes,
        edge,
        step_cycles,
        ends[-1],
        passes,
        tuple(float(cycles) for cycles in engine.books.phases.sum(axis=0) * clock),
        tuple(float(state[place].mean()) for state in states),
        (
            float(streaming_wavelets(plan, 0.0)[place].max()),
            float(result.link_wavelets[place][:, :, :4].max()),
        ),
        result,
    )


def engine_step(plan: WeightStreamingPlan, edge_bytes_per_s: float) -> tuple[float, StreamingRun]:
    """Cycles of the first step in the event engine and its run: edges of that rate, launches cost nothing."""
    phases = tuple(dataclasses.replace(phase, floor_s=0.0) for phase in plan.phases)
    wafer = plan.wafer.derive(io_bytes_per_s=edge_bytes_per_s)
    free = dataclasses.replace(plan, wafer=wafer, phases=phases)
    engine = StreamingRun(free, Options(steps=1), None, RunTrace(is_on=False, unit_s=1.0))
    engine.execute()
    return engine.step_s * plan.wafer.clock_hz, engine


def _name(one: Pass) -> str:
    suffix = {"forward": "", "weights": ".dw", "inputs": ".dx", "loss": ".loss"}[one.kind]
    return f"{one.layer.name}{suffix}"


def _belongs(plan: WeightStreamingPlan, phase: StreamedPhase, one: Pass, whole: StreamedProgram) -> bool:
    """Whether the engine's phase is (part of) a pass; a gradient of the inputs includes the slope before it, the loss the last."""
    kernel = plan.graph.kernel(phase.kernel)
    forward = kernel.forward or kernel.name
    if kernel.family != "gemm":
        if one.kind == "loss":
            return forward == one.layer.name
        return one.kind == "inputs" and forward == whole.layout.layers[one.layer.number - 1].name
    kinds = {Phase.FORWARD: "forward", Phase.WEIGHT_GRADIENT: "weights", Phase.INPUT_GRADIENT: "inputs"}
    return forward == one.layer.name and kinds[phase.phase] == one.kind
