"""Run a complete model on the fabric and compare its times with the event engine's.

With c(s), b(s) the cycles and busy cycles of a run of s samples, the steady state is measured over samples s
+ 1 to 2 s::

    period  (c(2 s) - c(s)) / s          busy of a core  (b(2 s) - b(s)) / s

The event engine's busy time of a region is compared with that of its busiest core.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wse_sim.engine.accounts import BUSY, STALLED_OUTPUT
from wse_sim.engine.options import Options
from wse_sim.engine.trace import RunTrace
from wse_sim.errors import DeadlockError, ModelError
from wse_sim.fabric.executors.base import BusyBins
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.count import issued_cycles
from wse_sim.fabric.format.program import Program
from wse_sim.fabric.result import FabricResult
from wse_sim.fabric.run import run_program
from wse_sim.graph import KernelGraph, Phase, TensorKind
from wse_sim.kernels.contract.equations import BYTES_PER_WAVELET
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.result import PipelinedMeasure
from wse_sim.modes.pipelined.run import PipelinedRun
from wse_sim.whole.areas import StreamLinks
from wse_sim.whole.coverage import check_plan, forward_kernel
from wse_sim.whole.host_values import in_whole_words
from wse_sim.whole.network import Network, leaving_of, network_program
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions import KINDS
from wse_sim.whole.regions.convolution import statistics_of
from wse_sim.whole.skips import FullSkip, full_skips, without_limit
from wse_sim.whole.split_products import with_derived
from wse_sim.whole.start_times import engine_starts, first_busy, same_order, start_bins, steady_waits
from wse_sim.whole.tokens import rows_read

SKIP_SETS = 0.002
"""A full skip is reported if it adds at least this fraction of a period."""


@dataclass(frozen=True)
class WholeRun:
    """Results of a run: outputs (rows, N) in fp16, and all counters of the fabric."""

    whole: Network
    outputs: NDArray[np.float16]
    fabric: FabricResult


@dataclass(frozen=True)
class RegionTimes:
    """Busy cycles of one region, per sample in inference and of a batch in training: in the engine, of its busiest core, and of
    its mean compute core.

    `waits` are cycles stalled on input, stalled on output and idle, the region's in the engine and that core's on the
    fabric. `started` is the cycle at which the first sample starts.
    """

    name: str
    engine: float
    busiest: float
    mean: float
    engine_waits: tuple[float, float, float]
    waits: tuple[float, float, float]
    engine_started: float
    started: float

    def told(self, each: str) -> str:
        """Return a part of a line for the terminal; `each` says of what the cycles are."""
        return (
            f"  {self.name}: busiest core {self.busiest:.6g} cycles{each}, {self.engine:.6g} in the plan "
            f"({100 * (self.busiest / self.engine - 1):+.1f} %)"
        )


@dataclass(frozen=True)
class SteadyTimes(RegionTimes):
    """Cycles per sample; `issued` is the issue time of the busiest core's instructions, counted from the program
    (:mod:`wse_sim.fabric.format.count`)."""

    issued: float


class ComparedRegions:
    """Regions in the event engine and on the fabric, where starts are known to `starts_within` cycles: a bin."""

    regions: Sequence[RegionTimes]
    starts_within: float

    @property
    def same_order(self) -> bool:
        """Whether regions start their first samples in the same order."""
        return same_order(
            [region.engine_started for region in self.regions],
            [region.started for region in self.regions],
            self.starts_within,
        )


@dataclass(frozen=True)
class LinkWords:
    """Words per sample on links: the busiest link between regions, and a map.

    The plan routes a stream from the middle of a region to the middle of the next (`plan`). The program
    routes it to inlets, in bundles: `laid` is the load that these routes predict, `fabric` the counted load,
    and `unequal` the number of links outside all regions on which they differ. Moving cores also distribute
    the incoming words, so their busiest link (`moving`) carries more. `streams` is the predicted map (rows,
    cols, 4).
    """

    plan: float
    laid: float
    fabric: float
    moving: float
    unequal: int
    streams: NDArray[np.float64] = field(repr=False, compare=False)

    def as_json(self) -> dict[str, float]:
        """Return the loads of the busiest links by name."""
        names = ("plan", "laid", "fabric", "moving", "unequal")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Compared(ComparedRegions):
    """Steady-state cycles per sample on the fabric and in the event engine."""

    engine_period: float
    fabric_period: float
    regions: tuple[SteadyTimes, ...]
    streams: tuple[StreamLinks, ...]
    link_words: LinkWords
    starts_within: float
    whole: Network = field(repr=False)
    fabric: FabricResult = field(repr=False)  # the longer run
    free_period: float = 0.0  # of the engine with unlimited buffers for skips
    full: tuple[FullSkip, ...] = ()  # skips that limit the engine's pace

    @property
    def difference(self) -> float:
        """Relative difference of the periods: fabric / engine - 1."""
        return self.fabric_period / self.engine_period - 1

    @property
    def cycles_per_sample(self) -> float:
        """Period on the fabric, in cycles per sample."""
        return self.fabric_period

    def as_json(self) -> dict[str, object]:
        """Return all numbers as a JSON-serializable dictionary."""
        return {
            "engine_period_cycles": self.engine_period,
            "fabric_period_cycles": self.fabric_period,
            "regions": [dataclasses.asdict(region) for region in self.regions],
            "streams": [dataclasses.asdict(stream) for stream in self.streams],
            "busiest_link_words_per_sample": self.link_words.as_json(),
            "same_order_of_starts": self.same_order,
            "free_skips_period_cycles": self.free_period,
            "full_skips": [dataclasses.asdict(skip) for skip in self.full],
        }

    def text(self) -> str:
        """Return a summary of a few lines for the terminal."""
        head = (
            f"whole model on the fabric, input free: {self.fabric_period:.6g} cycles per sample, {self.engine_period:.6g} by the "
            f"event engine ({100 * self.difference:+.1f} %)"
        )
        rows = [f"{r.told(' per sample')}; its instructions take {r.issued:.6g}" for r in self.regions]
        links = [
            f"  {s.tensor}: {s.links} of {s.planned_links} planned links, routes of {s.least_hops} to {s.most_hops} "
            f"links, {s.planned_hops} in the plan"
            for s in self.streams
        ]
        skips = [
            f"  {skip.told()} ({self.free_period:.6g} cycles per sample with room)" for skip in self.full
        ]
        return "\n".join([head, *skips, *rows, *links])


def run_whole(
    plan: PipelinedPlan, weights: Mapping[str, NDArray[np.float32]], values: NDArray[np.float32]
) -> WholeRun:
    """Run all samples and return their outputs; `weights` are by parameter name of the graph.

    `values` are (rows, K), (samples, T, K), or images (samples, C, H, W), each of which is one row.

    Raises
    ------
    ModelError
        If the plan is not covered, or weights are missing.
    DeadlockError
        If the program stops.
    """
    weights = with_derived(plan.graph, weights)
    check_weights(plan.graph, weights)
    rows, samples = rows_of(plan, values)
    whole = program_of(plan, samples)
    result = stepped(whole.program, whole.config, whole.values(weights, rows))
    return WholeRun(whole, whole.outputs(result), result)


def rows_of(plan: PipelinedPlan, values: NDArray[np.float32]) -> tuple[NDArray[np.float32], int]:
    """Return all rows (samples T, K) of `values`, in any shape that :func:`run_whole` takes, and the number
    of samples.

    Raises
    ------
    ModelError
        If rows of a sample are missing.
    """
    taken = next(
        plan.graph.tensors[name]
        for kernel in plan.graph.kernels
        for name in kernel.inputs
        if plan.graph.tensors[name].kind is TensorKind.INPUT
    )
    features = taken.elements // plan.graph.samples // rows_per_sample(plan)
    values = in_whole_words(plan.graph, values)
    if np.size(values) % features:
        raise ModelError(
            f"the samples have the shape {np.shape(values)}, and a row has {features} features; give whole rows"
        )
    # An image that is flattened before it reaches the fabric is one row as well.
    rows = np.asarray(values, np.float32).reshape(-1, features)
    samples, left = divmod(len(rows), rows_per_sample(plan))
    if left or not samples:
        raise ModelError(
            f"{len(rows)} rows are not an integer number of samples of {rows_per_sample(plan)} rows; give all rows of "
            "every sample"
        )
    return rows, samples


def compare_with_engine(plan: PipelinedPlan, samples: int = 16) -> Compared:
    """Compare steady period and busy times of the fabric and the event engine, with unlimited input rate.

    Raises
    ------
    ModelError
        If the plan is not covered.
    """
    once, twice = program_of(plan, samples), program_of(plan, 2 * samples)
    second = stepped(twice.program, twice.config, None)
    laid = once.laid_plan()
    engine, measure = engine_run(laid)
    bins = start_bins(engine)
    first = stepped(once.program, once.config, None, bins)
    per_sample = {
        name: (getattr(second, name) - getattr(first, name)) / samples
        for name in ("busy", "stalled_out", "link_wavelets")
    }
    issued = (issued_cycles(twice.program, twice.config) - issued_cycles(once.program, once.config)) / samples
    engine_period = measure.step_cycles / plan.batch
    free_period = engine_run(without_limit(laid, once.regions))[1].step_cycles / plan.batch
    full = full_skips(laid, once.regions) if engine_period > free_period * (1 + SKIP_SETS) else ()
    period = (second.cycles - first.cycles) / samples
    regions = []
    for area, books, start in zip(once.areas, measure.books, engine_starts(engine), strict=True):
        place = (area.rows, area.cols)
        cells = per_sample["busy"][place]
        core = np.unravel_index(int(cells.argmax()), cells.shape)
        regions.append(
            SteadyTimes(
                area.name,
                float(books[BUSY]) / plan.batch,
                float(cells.max()),
                float(cells.mean()),
                steady_waits(engine_period, books[BUSY] / plan.batch, books[STALLED_OUTPUT] / plan.batch),
                steady_waits(period, cells.max(), per_sample["stalled_out"][place][core]),
                start,
                first_busy(first, area, bins, area.ahead_cycles),
                float(issued[place].max()),
            )
        )
    return Compared(
        engine_period,
        period,
        tuple(regions),
        once.stream_links,
        busiest_links(plan, 2 * twice.laid_words - once.laid_words, per_sample["link_wavelets"]),
        bins.cycles,
        once,
        second,
        free_period,
        full,
    )


def engine_run(plan: PipelinedPlan) -> tuple[PipelinedRun, PipelinedMeasure]:
    """Run two batches in the event engine with unlimited input rate; return the run and its measures."""
    engine = PipelinedRun(plan, Options(steps=2), None, RunTrace(is_on=False, unit_s=1.0))
    engine.execute()
    return engine, PipelinedMeasure(engine)


def busiest_links(
    plan: PipelinedPlan,
    laid: NDArray[np.float64],
    words: NDArray[np.floating],
    further: Iterable[Cell] = (),
) -> LinkWords:
    """Return the busiest links of the plan, of the routes (`laid`) and of the counted `words` (rows, cols, at
    least 4).

    The `further` cells, those of a loss, distribute words as regions do, so they do not count as links
    between regions.
    """
    planned, counted = plan.link_bytes_per_sample / BYTES_PER_WAVELET, words[:, :, :4]
    between, moving = np.ones(counted.shape[:2], bool), np.zeros(counted.shape[:2], bool)
    for cell in further:
        between[cell] = False
    for stage in plan.stages:
        region = stage.region
        rows = slice(region.row, region.row + region.rows)
        between[rows, region.col : region.col + region.cols] = False
        moving_cols = region.cols - region.compute_cores // region.rows
        moving[rows, region.col : region.col + moving_cols] = True

    def most(values: NDArray[np.floating], where: NDArray[np.bool_]) -> float:
        return float(values[where].max(initial=0.0))

    unequal = int((~np.isclose(laid, counted))[between].sum())
    return LinkWords(
        most(planned, between),
        most(laid, between),
        most(counted, between),
        most(counted, moving),
        unequal,
        laid,
    )


def program_of(plan: PipelinedPlan, samples: int) -> Network:
    """Build the program of an inference plan."""
    check_plan(plan)
    return network_program(plan, samples)


def rows_per_sample(plan: PipelinedPlan) -> int:
    """Return the rows per sample of the input; an image is one row."""
    first = forward_kernel(plan, plan.stages[0].name)
    return rows_read(plan.graph, first) or KINDS[first.family].tokens_of(plan.graph, first)


def rows_leaving(plan: PipelinedPlan) -> int:
    """Return the rows per sample of the output; 1 if the model pools its tokens."""
    output = leaving_of(plan).tensor
    kernels = [forward_kernel(plan, stage.name) for stage in plan.stages]
    last = next(kernel for kernel in kernels if output in kernel.outputs)
    return KINDS[last.family].tokens_of(plan.graph, last)


def check_weights(graph: KernelGraph, weights: Mapping[str, NDArray[np.float32]]) -> None:
    """Check that weights are given for all parameters of the forward kernels.

    Raises
    ------
    ModelError
        Naming those that are missing.
    """
    forward = [kernel for kernel in graph.kernels if kernel.phase is Phase.FORWARD]
    wanted = [name for kernel in forward for name in (*kernel.parameters, *statistics_of(kernel))]
    if missing := [name for name in wanted if name not in weights]:
        raise ModelError(f"weights '{', '.join(missing)}' are missing; give the state of the module by name")


def stepped(
    program: Program,
    config: FabricConfig,
    inputs: Mapping[str, NDArray[np.float32]] | None,
    bins: BusyBins | None = None,
) -> FabricResult:
    """Run the program to its end; `inputs` None means timing only.

    Raises
    ------
    DeadlockError
        If it deadlocks.
    """
    result = run_program(
        program, config, executor="wavelet", functional=inputs is not None, inputs=inputs, bins=bins
    )
    if result.deadlock is not None:
        raise DeadlockError(f"the whole model stopped: {result.deadlock.told()}")
    return result
