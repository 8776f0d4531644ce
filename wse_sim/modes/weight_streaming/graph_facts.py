"""Facts of a graph for weight streaming that do not depend on the machine, and the traffic of a phase on a
machine.

Facts are cached with the graph (:meth:`KernelGraph.remembered`), since a study prices one graph on many
machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from wse_sim.compiler.scores import without_scores
from wse_sim.graph import Kernel, KernelGraph, Phase, Tensor, TensorKind
from wse_sim.graph.blocks import block_numbers
from wse_sim.hardware import Wafer
from wse_sim.kernels import family
from wse_sim.kernels.contract.equations import fill_cycles, relay_cycles
from wse_sim.modes.weight_streaming.memory import MemoryNeed, memory_need
from wse_sim.modes.weight_streaming.plan import STREAMED_WEIGHT_BYTES
from wse_sim.modes.weight_streaming.work import Work, with_recompute
from wse_sim.units import BYTES_PER_DTYPE, BYTES_PER_WAVELET

INDEX_BYTES = 2  # a sparse weight carries its 16-bit index in the other half of its wavelet


def _summed_outputs(graph: KernelGraph, item: Work) -> int:
    """Return the elements that a product of streamed weights sums over the columns of a lane: all of its results.

    Parallel products have separate results; their input gradients are one product with one result.
    """
    kernel = item.kernel
    if not kernel.flops or kernel.phase not in (Phase.FORWARD, Phase.INPUT_GRADIENT):
        return 0
    outputs = kernel.outputs if kernel.phase is Phase.FORWARD else kernel.outputs[:1]
    return sum(graph.tensors[name].elements for name in outputs)


def streamed_bytes(sizes: Iterable[tuple[int, int]], density: float) -> float:
    """Return the bytes of weights streamed to the wafer; a weight includes its index if zeros are left out."""
    index_bytes = INDEX_BYTES if density < 1 else 0.0
    return sum(elements * (size * density + index_bytes * density) for elements, size in sizes)


def whole_words(kernel: Kernel, columns: int) -> float:
    """Return the ratio of a round's weights in whole words to its weights: a column takes ``2 ceil(ceil(K /
    c) / 2)``."""
    rest = int(family(kernel.family).at_rest(kernel.dims, kernel.phase))
    return columns * 2 * ceil(ceil(rest / columns) / 2) / rest if rest else 1.0


def _size_of(weight: Tensor) -> tuple[int, int]:
    """Return the elements of a weight, and the bytes per element in the stream (16 bits or int8)."""
    return weight.elements, min(STREAMED_WEIGHT_BYTES, BYTES_PER_DTYPE[weight.dtype])


def _weights(graph: KernelGraph, item: Work) -> list[Tensor]:
    """Return the weights that stream in for a kernel, or whose gradients stream out."""
    names: dict[str, None] = {}
    for member in item.members:
        kernel = graph.kernel(member)
        owner = graph.kernel(kernel.forward) if kernel.forward else kernel
        if kernel.phase is Phase.INPUT_GRADIENT and kernel.family != owner.family:
            continue  # a sum of gradients is named after its forward kernel, but reads no weight
        names.update(dict.fromkeys(owner.parameters))
    weights = (graph.tensors[name] for name in names if name in graph.tensors)
    gradient = item.kernel.phase is Phase.WEIGHT_GRADIENT
    return [t for t in weights if t.kind is TensorKind.PARAMETER and (t.trains or not gradient)]


@dataclass(frozen=True)
class Fact:
    """Machine-independent facts of a phase: computed once per graph."""

    item: Work
    name: str
    number: int | None  # of its block
    sizes: tuple[tuple[int, int], ...]  # of weights that stream: elements, bytes of each
    dense_bytes: float  # total of all these weights
    elements: int
    matmul_phases: int
    skips_zero_weights: bool
    output_elements: int


def work_of(graph: KernelGraph, recompute: str) -> Sequence[Work]:
    """Return the kernels of a step in order, with parallel products merged and recomputed kernels
    repeated."""
    return graph.remembered(("work", recompute), lambda: with_recompute(graph, recompute))


def need_of(graph: KernelGraph) -> MemoryNeed:
    """Return the bytes that the passes keep and use."""
    return graph.remembered("memory need", lambda: memory_need(graph))


def graph_without_scores(graph: KernelGraph) -> KernelGraph:
    """Return the graph with attention scores recomputed."""
    return graph.remembered("without scores", lambda: without_scores(graph))


def graph_kept(graph: KernelGraph, recompute: str) -> KernelGraph:
    """Return the graph with what is stored between phases under a recomputation policy: all, or all but
    attention scores."""
    return graph_without_scores(graph) if recompute == "attention" else graph


def least_recompute(graph: KernelGraph, capacity: float) -> str:
    """Return the least recomputation with which the rest fits without spilling; "full" if there is none."""
    if not graph.training:
        return "none"
    for recompute, candidate in (("none", graph), ("attention", graph_without_scores(graph))):
        need = need_of(candidate)
        if need.kept + need.working <= capacity:
            return recompute
    return "full"


def facts_of(graph: KernelGraph, recompute: str) -> Sequence[Fact]:
    """Return the facts of every phase of a step, in order."""
    return graph.remembered(
        ("facts", recompute), lambda: tuple(_read_facts(graph, work_of(graph, recompute)))
    )


def _read_facts(graph: KernelGraph, work: Iterable[Work]) -> Iterable[Fact]:
    blocks = block_numbers(graph)
    for item in work:
        kernel, sizes = item.kernel, tuple(_size_of(weight) for weight in _weights(graph, item))
        elements = sum(size[0] for size in sizes)
        known = family(kernel.family)
        yield Fact(
            item=item,
            name=f"{kernel.name}{' (again)' if item.recompute else ''}",
            number=blocks.get(kernel.forward or kernel.name),
            sizes=sizes,
            dense_bytes=streamed_bytes(sizes, 1.0),
            elements=elements,
            matmul_phases=known.matmul_phases(kernel.phase),
            skips_zero_weights=known.flow(kernel.dims, kernel.attrs).skips_zero_weights,
            output_elements=_summed_outputs(graph, item) if elements else 0,
        )


def bytes_spilled(resident: float, need: MemoryNeed, capacity: float) -> float:
    """Return the bytes spilled in the forward pass: all that is stored between the passes, or nothing."""
    if resident + need.working <= capacity:
        return 0.0
    return resident + max(0.0, need.working - capacity)


def way_cycles(wafer: Wafer, lanes: int, *, is_gradient: bool) -> float:
    """Return the cycles from the edge to the farthest core, plus the chain of sums: along a lane, for
    gradients along a column."""
    cores = wafer.program_rows if is_gradient else wafer.program_cols // lanes
    fill = fill_cycles(wafer.program_rows, wafer.program_cols, wafer)
    return float(fill + (cores - 1) * relay_cycles(wafer))


def ahead_bytes(kernel: Kernel, wafer: Wafer, lanes: int) -> float:
    """Return the bytes between the edge and a column's cores: two rounds at the feeding core, and the content
    of queues.

    These are its output queues, two routers and the input queue of the next core.
    """
    columns = wafer.program_cols // lanes
    rest = int(family(kernel.family).at_rest(kernel.dims, kernel.phase))
    rounds = 2 * ceil(ceil(rest / columns) / 2)
    outgoing = max(wafer.output_queue_wavelets) + wafer.ramp_cycles
    queues = outgoing + 2 * wafer.router_queue_wavelets + wafer.input_queue_wavelets[0]
    return float(BYTES_PER_WAVELET * columns * (rounds + queues))
