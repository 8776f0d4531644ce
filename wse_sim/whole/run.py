"""Run a whole model on the fabric, and hold its times against the event engine's.

Symbols: c(s), b(s) cycles and busy cycles of a run of s samples; the steady figures are of samples s + 1 to 2 s::

    period  (c(2 s) - c(s)) / s          busy of a core  (b(2 s) - b(s)) / s

The event engine's busy time of a region stands beside that of its busiest core.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

import numpy as np
from numpy.typing import NDArray

from wse_sim.engine.books import BUSY
from wse_sim.engine.options import Options
from wse_sim.engine.trace import RunTrace
from wse_sim.errors import DeadlockError, ModelError
from wse_sim.fabric.executors.base import BusyBins
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Program
from wse_sim.fabric.result import FabricResult
from wse_sim.fabric.run import run_program
from wse_sim.graph import Kernel, KernelGraph, Phase
from wse_sim.graph.kernel_graph import frozen
from wse_sim.hardware import Wafer
from wse_sim.kernels.contract.equations import BYTES_PER_WAVELET, ceil_div
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.result import PipelinedMeasure
from wse_sim.modes.pipelined.run import PipelinedRun
from wse_sim.whole.layout import PAIR, RegionLayout
from wse_sim.whole.program import Whole, whole_program

FIRST_CYCLES = BusyBins(512, 8)
"""Where the first starts are looked for; a run is counted on in its last bin."""


@dataclass(frozen=True)
class WholeRun:
    """What a run gave: outputs (rows, N) in fp16, and all counters of the fabric."""

    whole: Whole
    outputs: NDArray[np.float16]
    fabric: FabricResult


@dataclass(frozen=True)
class RegionTimes:
    """Cycles per sample of one region: as the engine counts them, of the busiest core, of the mean compute core.

    `issued` is what the instructions of the busiest core take by the wafer's rates (:func:`issued_cycles`).  `waits` are
    cycles stalled on input, stalled on output and idle: of the region in the engine, of that core on the fabric.
    `started` are the cycles at which the first sample starts.
    """

    name: str
    engine: float
    busiest: float
    mean: float
    issued: float
    engine_waits: tuple[float, float, float]
    waits: tuple[float, float, float]
    engine_started: float
    started: float


@dataclass(frozen=True)
class StreamLinks:
    """Links side by side that a stream uses, and how long its ways are, beside what the plan gives it."""

    tensor: str
    planned_links: int
    links: int
    planned_hops: int
    least_hops: int
    most_hops: int


@dataclass(frozen=True)
class Compared:
    """Cycles per sample in a steady stream of samples."""

    engine_period: float
    fabric_period: float
    regions: tuple[RegionTimes, ...]
    streams: tuple[StreamLinks, ...]
    link_words: tuple[float, float]  # of a sample on the busiest link outside of compute cores: plan, fabric
    whole: Whole = field(repr=False)

    @property
    def difference(self) -> float:
        """Period of the fabric over that of the engine, less one."""
        return self.fabric_period / self.engine_period - 1

    @property
    def same_order(self) -> bool:
        """Whether regions start their first samples in the same order."""
        engine = [region.engine_started for region in self.regions]
        fabric = [region.started for region in self.regions]
        return bool(np.array_equal(np.argsort(engine, kind="stable"), np.argsort(fabric, kind="stable")))

    def as_json(self) -> dict[str, object]:
        """Plain numbers."""
        return {
            "engine_period_cycles": self.engine_period,
            "fabric_period_cycles": self.fabric_period,
            "regions": [dataclasses.asdict(region) for region in self.regions],
            "streams": [dataclasses.asdict(stream) for stream in self.streams],
            "busiest_link_words_per_sample": dict(zip(("plan", "fabric"), self.link_words, strict=True)),
            "same_order_of_starts": self.same_order,
        }

    def text(self) -> str:
        """A few lines for the screen."""
        head = (
            f"whole model on the fabric, input free: {self.fabric_period:.6g} cycles per sample, {self.engine_period:.6g} by the "
            f"event engine ({self.difference:+.1%})"
        )
        rows = [
            f"  {r.name}: busiest core {r.busiest:.6g} cycles per sample, {r.engine:.6g} in the plan "
            f"({r.busiest / r.engine - 1:+.1%}); its instructions take {r.issued:.6g}"
            for r in self.regions
        ]
        links = [
            f"  {s.tensor}: {s.links} of {s.planned_links} planned links, ways of {s.least_hops} to {s.most_hops} "
            f"links, {s.planned_hops} in the plan"
            for s in self.streams
        ]
        return "\n".join([head, *rows, *links])


def inputs_over_rows(graph: KernelGraph) -> KernelGraph:
    """The graph with every product laid with its inputs over the rows of its region, its outputs over the columns.

    The gradient of the inputs reads the same weights, so it has the gradients of the outputs over the columns.
    """

    def laid(kernel: Kernel) -> Kernel:
        way = "nk" if kernel.phase is Phase.INPUT_GRADIENT else "kn"
        return dataclasses.replace(kernel, attrs=frozen({**kernel.attrs, "orientation": way}))

    kernels = tuple(laid(kernel) if kernel.family == "gemm" else kernel for kernel in graph.kernels)
    return dataclasses.replace(graph, kernels=kernels)


def run_whole(
    plan: PipelinedPlan, weights: Mapping[str, NDArray[np.float32]], values: NDArray[np.float32]
) -> WholeRun:
    """The outputs of all sample rows `values` (rows, K), with `weights` by the names of the graph's parameters.

    Raises
    ------
    ModelError
        If the plan is not covered, or weights are missing.
    DeadlockError
        If the program stops.
    """
    check_weights(plan.graph, weights)
    whole = whole_program(plan, len(values))
    result = stepped(whole.program, whole.config, whole.inputs(dict(weights), np.asarray(values, np.float32)))
    names = [name for name in whole.program.buffers if name.startswith("host out")]
    return WholeRun(whole, whole.outputs({name: result.read(name) for name in names}), result)


def compare_with_engine(plan: PipelinedPlan, samples: int = 16) -> Compared:
    """Steady period and busy times of both simulators; the input is free in both.

    Raises
    ------
    ModelError
        If the plan is not covered.
    """
    rows = max(1, plan.stages[0].rows_per_sample)
    once, twice = whole_program(plan, samples * rows), whole_program(plan, 2 * samples * rows)
    first, second = (
        stepped(once.program, once.config, None, FIRST_CYCLES),
        stepped(twice.program, twice.config, None),
    )
    engine = PipelinedRun(plan, Options(steps=2), None, RunTrace(is_on=False, unit_s=1.0))
    engine.execute()
    measure = PipelinedMeasure(engine)
    per_sample = {
        name: (getattr(second, name) - getattr(first, name)) / samples
        for name in ("busy", "stalled_in", "stalled_out", "idle", "link_wavelets")
    }
    regions = []
    links = per_sample["link_wavelets"][:, :, :4].copy()
    for layout, books, region in zip(once.layouts, measure.books, engine.regions, strict=True):
        place = (slice(layout.top, layout.last + 1), slice(layout.left, layout.left + layout.cols))
        cells = per_sample["busy"][place]
        core = np.unravel_index(int(cells.argmax()), cells.shape)
        started = int(np.flatnonzero(first.busy_bins[(slice(None), *place)].any(axis=(1, 2)))[0])
        links[place] = 0
        regions.append(
            RegionTimes(
                layout.name,
                float(books[BUSY]) / plan.batch,
                float(cells.max()),
                float(cells.mean()),
                rows * issued_cycles(layout, plan.wafer),
                _three(books[BUSY + 1 :] / plan.batch),
                _three([per_sample[name][place][core] for name in ("stalled_in", "stalled_out", "idle")]),
                float(region.forward.starts[0][0]),
                float(started * FIRST_CYCLES.cycles),
            )
        )
    return Compared(
        measure.step_cycles / plan.batch,
        (second.cycles - first.cycles) / samples,
        tuple(regions),
        _stream_links(once),
        (float(plan.link_bytes_per_sample.max()) / BYTES_PER_WAVELET, float(links.max())),
        once,
    )


def _three(values: Sequence[float] | NDArray[np.float64]) -> tuple[float, float, float]:
    first, second, third = (float(value) for value in values)
    return first, second, third


def _stream_links(whole: Whole) -> tuple[StreamLinks, ...]:
    hops: dict[str, list[int]] = {}
    streams = {way.stream.tensor: way.stream for way in whole.ways}
    for way in whole.ways:
        hops.setdefault(way.stream.tensor, []).append(len(way.cells) - 1)
    return tuple(
        StreamLinks(name, streams[name].width, len(found), streams[name].hops, min(found), max(found))
        for name, found in hops.items()
    )


def issued_cycles(layout: RegionLayout, wafer: Wafer) -> float:
    """Cycles that the busiest core of a region issues per sample row.

    With k inputs and n outputs of a core, w multiply-accumulates per cycle, o the start of a vector instruction::

        core              k ceil(n / w) + n
        of the last row   k ceil(n / w) + n + sum over bias and activation of (o + n / rate) + n / 2

    The event engine counts ``k ceil(n / w) + n + sum of (o + n / (R rate))``: outputs spread over all R rows.
    """
    n = layout.outputs
    each = [len(row.inputs) * ceil_div(n, wafer.fma_mixed_per_cycle) + n for row in layout.rows]
    rates = {"bias": wafer.add_fp16_per_cycle, "relu": wafer.max_fp16_per_cycle}
    finish = sum(ceil(wafer.vector_start_cycles) + ceil(n / rates[item]) for item in layout.items)
    last = each[-1] + finish + n // PAIR
    if len(layout.rows) == 1:  # no sums come from above: its own are moved instead
        last += ceil(wafer.vector_start_cycles) + ceil(n / wafer.mov_fp32_per_cycle) - n
    return float(max(*each, last))


def check_weights(graph: KernelGraph, weights: Mapping[str, NDArray[np.float32]]) -> None:
    """All parameters of the forward kernels are there.

    Raises
    ------
    ModelError
        Naming those that are missing.
    """
    wanted = (name for kernel in graph.kernels if kernel.phase is Phase.FORWARD for name in kernel.parameters)
    if missing := [name for name in wanted if name not in weights]:
        raise ModelError(f"weights '{', '.join(missing)}' are missing; give the state of the module by name")


def stepped(
    program: Program,
    config: FabricConfig,
    inputs: Mapping[str, NDArray[np.float32]] | None,
    bins: BusyBins | None = None,
) -> FabricResult:
    """The program stepped to its end, with values if there are `inputs`.

    Raises
    ------
    DeadlockError
        If it stops before.
    """
    result = run_program(
        program, config, executor="wavelet", functional=inputs is not None, inputs=inputs, bins=bins
    )
    if result.deadlock is not None:
        held = " -> ".join(result.deadlock.cycle_of_waits)
        raise DeadlockError(f"the whole model stopped at cycle {result.cycles}, waiting in a ring: {held}")
    return result
