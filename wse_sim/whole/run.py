"""Run a whole model on the fabric, and hold its times against the event engine's.

Symbols: c(s), b(s) cycles and busy cycles of a run of s samples; the steady figures are of samples s + 1 to 2 s::

    period  (c(2 s) - c(s)) / s          busy of a core  (b(2 s) - b(s)) / s

The event engine's busy time of a region stands beside that of its busiest core.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wse_sim.engine.books import BUSY, STALLED_OUTPUT
from wse_sim.engine.options import Options
from wse_sim.engine.trace import RunTrace
from wse_sim.errors import DeadlockError, ModelError
from wse_sim.fabric.executors.base import BusyBins
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Program
from wse_sim.fabric.result import FabricResult
from wse_sim.fabric.run import run_program
from wse_sim.frontend.training import add_training
from wse_sim.graph import Kernel, KernelGraph, Phase, TensorKind
from wse_sim.graph.kernel_graph import frozen
from wse_sim.kernels.contract.equations import BYTES_PER_WAVELET
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.modes.pipelined.result import PipelinedMeasure
from wse_sim.modes.pipelined.run import PipelinedRun
from wse_sim.whole.areas import Made, StreamLinks
from wse_sim.whole.covered import check_plan, forward_kernel, is_chain
from wse_sim.whole.factors import with_affine, with_scales
from wse_sim.whole.front import (
    behind_host,
    forward_graph,
    with_rows_of_host,
    with_tokens_first,
    without_dropout,
    without_logarithm,
)
from wse_sim.whole.network import leaving_of, network_program
from wse_sim.whole.packed import turned, unpacked, with_slices
from wse_sim.whole.regions import KINDS
from wse_sim.whole.regions.contract import POINTWISE
from wse_sim.whole.regions.convolution import statistics_of
from wse_sim.whole.regions.depthwise import Depthwise
from wse_sim.whole.regions.fused import items_of
from wse_sim.whole.regions.norm import affine_parts
from wse_sim.whole.side_by_side import PACKED, link_attributes, packed_tensors
from wse_sim.whole.spelled import with_steps
from wse_sim.whole.starts import engine_starts, first_busy, same_order, start_bins, steady_waits
from wse_sim.whole.summed import summed_apart
from wse_sim.whole.tokens import rows_read, with_pooled_tokens

PRODUCTS = ("gemm", "conv2d")
BACKWARD = (Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT)
"""Families that lie with their inputs over the rows of a region."""

LAYS: dict[str, dict[str, object]] = {
    "attention": {"pairs": True},
    "layout": {"joined": True},
    "softmax": {"whole": True},
    "conv2d": {"unfolded": True},
    "gemm": {"word_rows": True},
    "pool2d": {"apart": True},
    **{family: {"in_words": True} for family in POINTWISE},
}
"""Attributes of kernels that lie on the fabric in one of several ways."""
TRAINED_LAYS: dict[str, dict[str, object]] = {
    "attention": {"collected": True},
    "generated": {"trains": True},
    "norm": {"whole": True},
    "pool2d": {"trains": True},
}
"""Further ones of kernels that train."""
SUMS = "dsum"
"""What kernels are called that add up the gradients of a tensor with several readers."""
MEETS = PRODUCTS
"""Families whose price in training has the slope of what is fused to them."""


@dataclass(frozen=True)
class WholeRun:
    """What a run gave: outputs (rows, N) in fp16, and all counters of the fabric."""

    whole: Made
    outputs: NDArray[np.float16]
    fabric: FabricResult


@dataclass(frozen=True)
class RegionTimes:
    """Cycles per sample of one region: as the engine counts them, of the busiest core, of the mean compute core.

    `issued` is what the instructions of the busiest core take by the wafer's rates (:class:`wse_sim.whole.areas.FabricArea`).
    `waits` are
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
class LinkWords:
    """Words of a sample on the busiest link between regions, by the plan and on the fabric, and on that of moving cores.

    The plan leads a stream from the middle of a region to that of the next.  On the fabric it ends at inlets in the moving
    columns, which also deal its words out; so only links outside of all regions are the same ones.
    """

    plan: float
    fabric: float
    moving: float


@dataclass(frozen=True)
class Compared:
    """Cycles per sample in a steady stream of samples."""

    engine_period: float
    fabric_period: float
    regions: tuple[RegionTimes, ...]
    streams: tuple[StreamLinks, ...]
    link_words: LinkWords
    starts_within: float  # cycles: starts on the fabric are known to a bin
    whole: Made = field(repr=False)
    fabric: FabricResult = field(repr=False)  # the longer run

    @property
    def difference(self) -> float:
        """Period of the fabric over that of the engine, less one."""
        return self.fabric_period / self.engine_period - 1

    @property
    def same_order(self) -> bool:
        """Whether regions start their first samples in the same order."""
        return same_order(
            [region.engine_started for region in self.regions],
            [region.started for region in self.regions],
            self.starts_within,
        )

    def as_json(self) -> dict[str, object]:
        """Plain numbers."""
        return {
            "engine_period_cycles": self.engine_period,
            "fabric_period_cycles": self.fabric_period,
            "regions": [dataclasses.asdict(region) for region in self.regions],
            "streams": [dataclasses.asdict(stream) for stream in self.streams],
            "busiest_link_words_per_sample": dataclasses.asdict(self.link_words),
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


def inputs_over_rows(graph: KernelGraph, *, streamed: bool = False) -> KernelGraph:
    """The graph with its kernels laid as they lie on the fabric, so that the plan prices what is stepped.

    Products have their inputs over the rows of their regions, their outputs over the columns.  The gradient of the inputs
    reads the same weights, so it has the gradients of the outputs over the columns.  Attention has queries over the rows,
    keys over the columns; in training, a norm has its rows on one column of cores; in inference, convolutions have whole words
    and finish on their last row.  A product that makes queries, keys and values at once becomes three
    (:mod:`wse_sim.whole.packed`), and a convolution with a residual sum two kernels (:mod:`wse_sim.whole.summed`).

    With `streamed` weights a kernel has the whole wafer and no region, so nothing of regions is priced.
    """
    return laid_graph(_prepared(graph), streamed=streamed)


def laid_graph(graph: KernelGraph, *, streamed: bool = False) -> KernelGraph:
    """The attributes that :func:`inputs_over_rows` gives, on the kernels of `graph` as they are: none is split or left out."""
    forward = {kernel.name: kernel for kernel in graph.kernels if kernel.phase is Phase.FORWARD}
    # A chain of dense layers with one row a sample has a program of its own, and networks that train as well.
    is_network = not streamed and not is_chain(_without_loss(graph))
    in_regions = not graph.training and is_network
    dense = _trained_rows(graph) if graph.training and is_network else {}
    links = link_attributes(graph) if in_regions else {}
    packed = packed_tensors(graph) if is_network else set()
    makers = {kernel.name for kernel in forward.values() if packed.intersection(kernel.outputs)}

    def trained(kernel: Kernel) -> dict[str, object]:
        if not graph.training or kernel.family != "conv2d":
            return dense.get(kernel.name, {})
        owner = forward.get(kernel.forward, kernel)
        return {"trains": True, "has_bias": "bias" in items_of(owner)}

    def laid(kernel: Kernel) -> dict[str, object]:
        if kernel.family in PRODUCTS:
            orientation = "nk" if kernel.phase is Phase.INPUT_GRADIENT else "kn"
            held = LAYS.get(kernel.family, {}) if in_regions else {}
            if in_regions and Depthwise.is_for(kernel):
                held = {"apart": True}
            if {kernel.name, kernel.forward} & makers and kernel.family == "gemm":
                held = {**held, "layers": PACKED}
            return {"orientation": orientation, **held, **(trained(kernel) if is_network else {})}
        # A pass back has no parameters of its own: those of the kernel whose name it continues.
        passed = kernel if kernel.name in forward else forward.get(kernel.name.rpartition(".")[0], kernel)
        lays = LAYS.get(kernel.family, {}) | (affine_parts(passed) if passed.family == kernel.family else {})
        owner = forward.get(kernel.forward) if kernel.family == "activation" else None
        if is_network and owner is not None and owner.family in MEETS:
            lays = lays | {"met": True}
        if is_network and kernel.name.startswith(f"{kernel.forward}.{SUMS}"):
            lays = lays | {"between": True}
        return lays | (TRAINED_LAYS.get(kernel.family, {}) if graph.training else {})

    kernels = tuple(
        dataclasses.replace(
            kernel, attrs=frozen({**kernel.attrs, **laid(kernel), **links.get(kernel.name, {})})
        )
        for kernel in graph.kernels
    )
    return dataclasses.replace(graph, kernels=kernels)


def _without_loss(graph: KernelGraph) -> KernelGraph:
    """The graph without a cross entropy of its own: on the fabric a loss lies beside the last layer."""
    kernels = tuple(kernel for kernel in graph.kernels if kernel.family != "cross_entropy")
    return dataclasses.replace(graph, kernels=kernels)


def _prepared(graph: KernelGraph) -> KernelGraph:
    """The graph of the kernels that lie on the fabric; of one that trains, the gradients follow from them by rule."""
    if not graph.training:
        found = with_pooled_tokens(with_rows_of_host(behind_host(with_tokens_first(graph))))
        return summed_apart(unpacked(turned(with_steps(with_scales(with_affine(found))))))
    forward = forward_graph(graph)
    found = without_logarithm(without_dropout(with_tokens_first(forward)))
    found = with_pooled_tokens(with_rows_of_host(behind_host(found, trains=True)))
    found = summed_apart(unpacked(turned(with_steps(with_scales(found)))))
    if found is forward:
        return graph
    return add_training(
        found, optimizer=str(graph.facts["optimizer"]), recompute=str(graph.facts["recompute"])
    )


def _trained_rows(graph: KernelGraph) -> dict[str, dict[str, object]]:
    """What the passes of dense layers say of themselves in a network that trains, by kernel.

    The pass with the weight gradient counts all that happens backward, so it knows the work on the outputs, and whether
    gradients of the inputs follow.
    """
    out: dict[str, dict[str, object]] = {}
    back = [kernel for kernel in graph.kernels if kernel.phase in BACKWARD]
    for layer in graph.kernels:
        if layer.family != "gemm" or layer.phase is not Phase.FORWARD:
            continue
        passes = [kernel for kernel in back if kernel.forward == layer.name]
        of_weights = [kernel for kernel in passes if kernel.phase is Phase.WEIGHT_GRADIENT]
        products = [kernel for kernel in passes if kernel.family == "gemm"]
        if len(of_weights) != 1 or of_weights[0] not in products:
            continue  # a layer that does not train as regions do: the check of its kind says so
        out |= {kernel.name: {"trained_rows": True} for kernel in (layer, *products)}
        finished = ",".join(items_of(layer))
        out[of_weights[0].name] |= {"finished": finished, "passes_on": len(products) > 1}
    return out


def run_whole(
    plan: PipelinedPlan, weights: Mapping[str, NDArray[np.float32]], values: NDArray[np.float32]
) -> WholeRun:
    """The outputs of all samples, with `weights` by the names of the graph's parameters.

    `values` are (rows, K), (samples, T, K), or images (samples, C, H, W), each of which is one row.

    Raises
    ------
    ModelError
        If the plan is not covered, or weights are missing.
    DeadlockError
        If the program stops.
    """
    weights = with_slices(plan.graph, weights)
    check_weights(plan.graph, weights)
    rows, samples = rows_of(plan, values)
    whole = program_of(plan, samples)
    result = stepped(whole.program, whole.config, whole.inputs(dict(weights), rows))
    names = [name for name in whole.program.buffers if name.startswith("host out")]
    return WholeRun(whole, whole.outputs({name: result.read(name) for name in names}), result)


def rows_of(plan: PipelinedPlan, values: NDArray[np.float32]) -> tuple[NDArray[np.float32], int]:
    """All rows (samples T, K), and the number of samples, of `values` as :func:`run_whole` takes them.

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
    if np.size(values) % features:
        raise ModelError(
            f"the samples have the shape {np.shape(values)}, and a row has {features} features; give whole rows"
        )
    # An image that is flattened before it comes to the fabric is one row as well.
    rows = np.asarray(values, np.float32).reshape(-1, features)
    samples, left = divmod(len(rows), rows_per_sample(plan))
    if left or not samples:
        raise ModelError(
            f"{len(rows)} rows are no whole number of samples, which have {rows_per_sample(plan)} rows; give all rows of "
            "every sample"
        )
    return rows, samples


def compare_with_engine(plan: PipelinedPlan, samples: int = 16) -> Compared:
    """Steady period and busy times of both simulators; the input is free in both.

    Raises
    ------
    ModelError
        If the plan is not covered.
    """
    once, twice = program_of(plan, samples), program_of(plan, 2 * samples)
    second = stepped(twice.program, twice.config, None)
    engine = PipelinedRun(plan, Options(steps=2), None, RunTrace(is_on=False, unit_s=1.0))
    engine.execute()
    bins = start_bins(engine)
    first = stepped(once.program, once.config, None, bins)
    measure = PipelinedMeasure(engine)
    per_sample = {
        name: (getattr(second, name) - getattr(first, name)) / samples
        for name in ("busy", "stalled_out", "link_wavelets")
    }
    engine_period = measure.step_cycles / plan.batch
    period = (second.cycles - first.cycles) / samples
    regions = []
    for area, books, start in zip(once.areas, measure.books, engine_starts(engine), strict=True):
        place = (area.rows, area.cols)
        cells = per_sample["busy"][place]
        core = np.unravel_index(int(cells.argmax()), cells.shape)
        regions.append(
            RegionTimes(
                area.name,
                float(books[BUSY]) / plan.batch,
                float(cells.max()),
                float(cells.mean()),
                area.issued_cycles,
                steady_waits(engine_period, books[BUSY] / plan.batch, books[STALLED_OUTPUT] / plan.batch),
                steady_waits(period, cells.max(), per_sample["stalled_out"][place][core]),
                start,
                first_busy(first, area, bins, area.ahead_cycles),
            )
        )
    return Compared(
        engine_period,
        period,
        tuple(regions),
        once.stream_links,
        busiest_links(plan, per_sample["link_wavelets"]),
        bins.cycles,
        once,
        second,
    )


def busiest_links(plan: PipelinedPlan, words: NDArray[np.floating]) -> LinkWords:
    """Words of a sample on the busiest links, by the plan and of `words` (rows, cols, 4 or more)."""
    planned, counted = plan.link_bytes_per_sample / BYTES_PER_WAVELET, words[:, :, :4]
    between, moving = np.ones(counted.shape[:2], bool), np.zeros(counted.shape[:2], bool)
    for stage in plan.stages:
        region = stage.region
        rows = slice(region.row, region.row + region.rows)
        between[rows, region.col : region.col + region.cols] = False
        moving_cols = region.cols - region.compute_cores // region.rows
        moving[rows, region.col : region.col + moving_cols] = True

    def most(values: NDArray[np.floating], where: NDArray[np.bool_]) -> float:
        return float(values[where].max(initial=0.0))

    return LinkWords(most(planned, between), most(counted, between), most(counted, moving))


def program_of(plan: PipelinedPlan, samples: int) -> Made:
    """The program of a plan of inference."""
    check_plan(plan)
    return network_program(plan, samples)


def rows_per_sample(plan: PipelinedPlan) -> int:
    """Rows of a sample that enter; an image is one row."""
    first = forward_kernel(plan, plan.stages[0].name)
    return rows_read(plan.graph, first) or KINDS[first.family].tokens_of(plan.graph, first)


def rows_leaving(plan: PipelinedPlan) -> int:
    """Rows of a sample that leave; one where pooling makes one of all its tokens."""
    output = leaving_of(plan).tensor
    kernels = [forward_kernel(plan, stage.name) for stage in plan.stages]
    last = next(kernel for kernel in kernels if output in kernel.outputs)
    return KINDS[last.family].tokens_of(plan.graph, last)


def check_weights(graph: KernelGraph, weights: Mapping[str, NDArray[np.float32]]) -> None:
    """All parameters of the forward kernels are there.

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
        raise DeadlockError(f"the whole model stopped: {result.deadlock.told()}")
    return result
