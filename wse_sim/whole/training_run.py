"""One batch of training on the fabric: its values, and its time compared with the event engine's.

A model is a network of regions (:mod:`wse_sim.whole.trained`). Gradients are means over the rows of the batch, like
those of a PyTorch loss with ``reduction="mean"``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wse_sim.engine.accounts import BUSY
from wse_sim.errors import ModelError
from wse_sim.fabric.result import FabricResult
from wse_sim.modes.pipelined.loss import with_loss
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole.coverage import check_plan
from wse_sim.whole.host_part import finished, loss_of
from wse_sim.whole.network import leaving_of
from wse_sim.whole.run import (
    ComparedRegions,
    LinkWords,
    RegionTimes,
    busiest_links,
    check_weights,
    engine_run,
    rows_leaving,
    rows_of,
    stepped,
)
from wse_sim.whole.split_products import with_derived, without_derived
from wse_sim.whole.start_times import (
    core_waits,
    engine_starts,
    engine_waits,
    first_busy,
    start_bins,
)
from wse_sim.whole.stream_routes import with_ways
from wse_sim.whole.trained import TrainedNetwork, trained_network
from wse_sim.whole.trained.coverage import check_any
from wse_sim.whole.trained.rounds import in_rounds, with_bundles

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class TrainedRun:
    """Results of one batch: mean loss, outputs (rows, N), and mean gradients and new weights by parameter."""

    made: TrainedNetwork
    loss: float
    outputs: NDArray[np.float16]
    gradients: dict[str, Floats]
    weights: dict[str, Floats]
    fabric: FabricResult


@dataclass(frozen=True)
class TrainedTimes(RegionTimes):
    """Cycles of one batch, and the samples in flight in the plan and on the fabric."""

    planned_in_flight: int
    in_flight: int


@dataclass(frozen=True)
class ComparedTraining(ComparedRegions):
    """Cycles of one batch, from its first word to the last updated weight.

    The engine's step follows the program's schedule of rounds; `alternating_step` is the engine's step time
    with alternating passes (1F1B) instead.
    """

    samples: int
    engine_step: float
    fabric_step: float
    regions: tuple[TrainedTimes, ...]
    link_words: LinkWords
    alternating_step: float
    starts_within: float
    fabric: FabricResult = field(repr=False)

    @property
    def difference(self) -> float:
        """Relative difference of the step times: fabric / engine - 1."""
        return self.fabric_step / self.engine_step - 1

    @property
    def cycles_per_sample(self) -> float:
        """Cycles per sample on the fabric, averaged over the batch."""
        return self.fabric_step / self.samples

    def as_json(self) -> dict[str, object]:
        """Return all numbers as a JSON-serializable dictionary."""
        return {
            "samples": self.samples,
            "engine_step": self.engine_step,
            "fabric_step": self.fabric_step,
            "regions": [dataclasses.asdict(region) for region in self.regions],
            "busiest_link_words_per_sample": self.link_words.as_json(),
            "same_order_of_starts": self.same_order,
            "alternating_step": self.alternating_step,
        }

    def text(self) -> str:
        """Return a summary of a few lines for the terminal."""
        head = (
            f"whole model on the fabric: {self.fabric_step:.6g} cycles for a batch of {self.samples} samples, "
            f"{self.engine_step:.6g} by the event engine ({100 * self.difference:+.1f} %); alternating passes "
            f"(1F1B) would take {self.alternating_step:.6g} there"
        )
        rows = [
            f"{r.told('')}; {r.in_flight} samples in flight, {r.planned_in_flight} in the plan"
            for r in self.regions
        ]
        return "\n".join([head, *rows])


def train_whole(
    plan: PipelinedPlan,
    weights: Mapping[str, Floats],
    values: Floats,
    labels: NDArray[np.int64],
    *,
    rate: float,
    loss: str = "cross entropy",
    in_flight: int | None = None,
) -> TrainedRun:
    """Run one step of stochastic gradient descent over all samples of `values`.

    `values` are (rows, K), (samples, T, K), or images (samples, C, H, W), each of which is one row. `labels`
    (rows,) hold a class for every row of the output. `in_flight` limits the samples in flight, by default to as many as
    all regions can store.

    Raises
    ------
    ModelError
        If the plan is not covered, or weights or rows are missing.
    DeadlockError
        If the program stops.
    """
    check_plan(plan, True, check_any)
    loss_of(plan.graph, loss)
    weights = with_derived(plan.graph, weights)
    check_weights(plan.graph, weights)
    rows, samples = rows_of(plan, values)
    classes = np.asarray(labels).reshape(-1)
    leaving = samples * rows_leaving(plan)
    if len(classes) != leaving:
        raise ModelError(f"{len(classes)} labels for {leaving} output rows; give one for every row")
    output = plan.graph.tensors[leaving_of(plan).tensor]
    size = output.elements // plan.graph.samples * samples // leaving
    if in_flight is not None and in_flight < 1:
        raise ModelError(f"{in_flight} samples in flight are too few; give at least one")
    if len(classes) and not 0 <= classes.min() <= classes.max() < size:
        raise ModelError(
            f"labels go from {classes.min()} to {classes.max()}, and a row has {size} outputs; count classes from 0"
        )
    made = trained_network(plan, samples, rate, loss, in_flight)
    result = stepped(made.program, made.config, made.inputs(weights, rows, classes))
    mean, gradients, updated = made.learned(result)
    return TrainedRun(
        made,
        mean,
        finished(plan.graph, made.outputs(result)),
        without_derived(plan.graph, gradients, are_gradients=True),
        without_derived(plan.graph, updated),
        result,
    )


def compare_training(plan: PipelinedPlan, loss: str | None = None) -> ComparedTraining:
    """Compare step and busy times of the fabric and the event engine for one batch of the plan, with
    unlimited input rate.

    The loss defaults to squared error, or to cross entropy if the model ends with log softmax. The graph has
    no kernel for the loss, so a stage for it is added to the engine's plan.

    Raises
    ------
    ModelError
        If the plan is not covered.
    """
    check_plan(plan, True, check_any)
    loss = loss_of(plan.graph, loss)
    made = trained_network(plan, plan.batch, 0.0, loss)
    plan = with_bundles(plan, made.regions)
    where = made.loss_area
    priced = with_loss(with_ways(plan, *made.ways), loss, where.rows.stop - where.rows.start)
    alternating = engine_run(dataclasses.replace(priced, round_samples=0))[1].step_cycles
    priced = in_rounds(priced, made.batch.in_flight, made.regions)
    engine, measure = engine_run(priced)
    bins = start_bins(engine)
    result = stepped(made.program, made.config, None, bins)
    regions = []
    of_engine = engine_waits(engine, measure.step_cycles, measure.books.tolist())
    for area, stage, books, start, waits in zip(
        (*made.areas, where), priced.stages, measure.books, engine_starts(engine), of_engine, strict=True
    ):
        place = (area.rows, area.cols)
        cells = result.busy[place]
        row, col = np.unravel_index(int(cells.argmax()), cells.shape)
        core = int(area.rows.start + row), int(area.cols.start + col)
        regions.append(
            TrainedTimes(
                area.name,
                float(books[BUSY]),
                float(cells.max()),
                float(cells.mean()),
                waits,
                core_waits(result, core, first_busy(result, area, bins)),
                start,
                first_busy(result, area, bins, area.ahead_cycles),
                stage.in_flight,
                made.batch.in_flight,
            )
        )
    links = busiest_links(plan, made.laid_words, result.link_wavelets / plan.batch, made.loss_cells)
    return ComparedTraining(
        plan.batch,
        measure.step_cycles,
        float(result.cycles),
        tuple(regions),
        links,
        alternating,
        bins.cycles,
        result,
    )
