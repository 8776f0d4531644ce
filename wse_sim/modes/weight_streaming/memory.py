"""Memory of weight streaming: the needs of a micro-batch, and what is spilled."""

from __future__ import annotations

from dataclasses import dataclass

from wse_sim.graph import Kernel, KernelGraph, Phase
from wse_sim.graph.blocks import block_input_bytes, block_numbers
from wse_sim.kernels import family


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes of activations of one micro-batch.

    Fields: tensors for the backward pass; block inputs; working memory of one block; operands and results of
    one kernel.
    """

    kept: float
    block_inputs: float
    working: float
    largest_kernel: float


def memory_need(graph: KernelGraph) -> MemoryNeed:
    """Return the bytes at the fullest moment: while a block runs, or the head between forward and backward.

    Kernels after the last block (head, loss) run when no block does, so the larger of the two counts.
    """
    blocks = block_numbers(graph)
    forward = [k for k in graph.kernels if k.phase is Phase.FORWARD]
    largest = max((_operand_bytes(graph, kernel) for kernel in forward), default=0.0)
    if not graph.training:
        return MemoryNeed(0.0, 0.0, largest, largest)
    per_block: dict[int | None, float] = {}
    gradient: dict[int | None, float] = {}
    for kernel in forward:
        number = blocks.get(kernel.name)
        per_block[number] = per_block.get(number, 0.0) + _working_bytes(graph, kernel)
        gradient[number] = max(gradient.get(number, 0.0), _output_bytes(graph, kernel))
    # A gradient of the largest tensor is in use next to what the forward pass saved; the loss writes its
    # gradient over the saved probabilities.
    inside = [per_block[n] + gradient[n] for n in per_block if n is not None]
    working = max(max(inside, default=0.0), per_block.get(None, 0.0))
    return MemoryNeed(
        kept=float(sum(k.saved_bytes for k in forward)),
        block_inputs=sum(block_input_bytes(graph, blocks).values()),
        working=working,
        largest_kernel=largest,
    )


def _operand_bytes(graph: KernelGraph, kernel: Kernel) -> float:
    tensors = (graph.tensors[name] for name in (*kernel.inputs, *kernel.outputs) if name in graph.tensors)
    return float(sum(t.bytes for t in tensors if t.per_sample))


def _output_bytes(graph: KernelGraph, kernel: Kernel) -> float:
    return float(sum(graph.tensors[name].bytes for name in kernel.outputs if name in graph.tensors))


def _working_bytes(graph: KernelGraph, kernel: Kernel) -> float:
    """Return the bytes that a kernel needs while its block runs: attention scores exist for one head at a time."""
    kept = family(kernel.family).keeps(kernel, frozenset(), graph.tensors)
    serial = min(float(kept.serial_bytes), float(kernel.saved_bytes))
    return kernel.saved_bytes - serial + serial / kept.serial_times


def spilled_by_block(graph: KernelGraph, blocks: dict[str, int], spilled: float) -> dict[int, float]:
    """Return the spilled bytes of each block; the earliest blocks are needed last, so they are spilled
    first."""
    fractions: dict[int, float] = {}
    left = spilled
    for number, size in sorted(block_input_bytes(graph, blocks).items()):
        if left <= 0:
            break
        fractions[number] = min(size, left)
        left -= fractions[number]
    if left > 0 and fractions:  # kept tensors beyond block inputs (no recomputation) spill evenly
        extra = left / len(fractions)
        fractions = {number: size + extra for number, size in fractions.items()}
    return fractions
