"""A batch of a streamed model on the fabric: its values, and its time compared with the event engine's.

With c(i) the cycles of a program of the first i passes, pass i takes ``c(i) - c(i - 1)`` cycles: what it adds
to the step. The engine's phases have no launch floor here, because the floor is host time for a launch and
not a property of the fabric. Gradients are means over the batch, like those of a PyTorch loss with
``reduction="mean"``.
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
    """Results of one batch: outputs (T, N); in training also mean loss, and mean gradients and new weights by
    parameter."""

    made: StreamedProgram
    outputs: Floats
    fabric: FabricResult
    loss: float = 0.0
    gradients: Mapping[str, Floats] = dataclasses.field(default_factory=dict)
    weights: Mapping[str, Floats] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class PassCycles:
    """Cycles of one pass: in the engine, and what it adds to the step on the fabric."""

    name: str
    engine: float
    fabric: float


@dataclass(frozen=True)
class ComparedStreaming:
    """Cycles of one step, from the first word of weights to the last of the program.

    `engine_times` and `times` are cycles busy, stalled on input, stalled on output and idle: of every core in
    the engine, and of the mean core of the program rectangle. `link_words` are the words on the busiest link
    of that rectangle, in the plan and on the fabric.
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
        """Relative difference of the step times: fabric / engine - 1."""
        return self.fabric_step / self.engine_step - 1

    def as_json(self) -> dict[str, object]:
        """Return all numbers as a JSON-serializable dictionary."""
        kept = (one for one in dataclasses.fields(self) if one.name != "fabric")
        plain = {one.name: getattr(self, one.name) for one in kept}
        return {**plain, "passes": [dataclasses.asdict(one) for one in self.passes]}

    def text(self) -> str:
        """Return a summary of a few lines for the terminal."""
        head = (
            f"whole model on the fabric: {self.fabric_step:.6g} cycles for a step of {self.tokens} rows in {self.lanes} "
            f"lanes, {self.engine_step:.6g} by the event engine without launch floors ({100 * self.difference:+.1f} %); "
            f"the edges carry {self.edge_bytes_per_s / 1e9:.4g} GB/s in both"
        )
        rows = [
            f"  {one.name}: {one.fabric:.6g} cycles, {one.engine:.6g} in the plan ({100 * (one.fabric / one.engine - 1):+.1f} %)"
            for one in self.passes
            if one.engine
        ]
        return "\n".join([head, *rows])


def run_streamed(plan: WeightStreamingPlan, weights: Mapping[str, Floats], values: Floats) -> StreamedRun:
    """Return the outputs for all rows `values` (T, K); `weights` are by parameter name of the graph.

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
    """Run one step of stochastic gradient descent on half the squared error to one-hot `labels` (T,).

    The host updates the weights, as MemoryX does: fp32 weights minus `rate` times the mean gradient.

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
    """Compare step and pass times of the fabric and the event engine; samples are already on the wafer,
    launches cost nothing.

    A small wafer has few rows next to its programs, so the engine's edge bandwidth is limited to that of
    their streams.

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
    """Return the cycles of the first step in the event engine, and the run, with the given edge bandwidth and
    free launches."""
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
    """Return whether an engine phase belongs to a pass; input gradients include the derivative before them,
    the loss the last one."""
    kernel = plan.graph.kernel(phase.kernel)
    forward = kernel.forward or kernel.name
    if kernel.family != "gemm":
        if one.kind == "loss":
            return forward == one.layer.name
        return one.kind == "inputs" and forward == whole.layout.layers[one.layer.number - 1].name
    kinds = {Phase.FORWARD: "forward", Phase.WEIGHT_GRADIENT: "weights", Phase.INPUT_GRADIENT: "inputs"}
    return forward == one.layer.name and kinds[phase.phase] == one.kind
