"""Block recomputation in the pipeline: between the two passes, only the inputs of each block are stored.

Symbols: d_i is the longest path (in periods) from stage i to the end of the model, e_i that to the end of its
block.

A stage that stores what its backward pass reads does so for ``2 d_i + 2`` samples. With recomputation a
sample runs forward through a block a second time, just before its gradient arrives, so a stage stores it for
``2 e_i + 2`` samples only. The inputs of the block stay with its first stage for ``2 d_i + 2`` samples. The
cost is a third pass: the time of a stage is twice its forward time plus its backward time. Assumed: the
second pass starts early enough to delay no gradient. Its words follow those of the first pass on the same
streams. The order of samples is fixed, so the stages need no negotiation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from wse_sim.graph import KernelGraph
from wse_sim.graph.blocks import block_input_bytes, block_numbers
from wse_sim.graph.kernel_graph import frozen

NOTE = (
    "activations do not fit: every block runs forward again before its backward pass, "
    "only block inputs are kept for all samples in flight"
)
Edges = list[tuple[str, str]]


@dataclass(frozen=True)
class BlockRecompute:
    """The stages that run forward twice, and the bytes that each block's first stage stores per sample."""

    blocks: Mapping[str, int] = field(default_factory=frozen)  # stage -> block
    held_bytes: Mapping[str, float] = field(
        default_factory=frozen
    )  # stage -> inputs of its block, per sample

    def runs_again(self, stage: str) -> bool:
        """Return whether a stage belongs to a block that is recomputed."""
        return stage in self.blocks

    def inner_edges(self, edges: Edges) -> Edges:
        """Return the edges whose two ends are in the same block."""
        return [(a, b) for a, b in edges if a in self.blocks and self.blocks[a] == self.blocks.get(b)]


def block_recompute(graph: KernelGraph) -> BlockRecompute:
    """Return the blocks of a training graph; empty if the graph has no repeated blocks or does not train."""
    if not graph.training:
        return BlockRecompute()
    blocks = block_numbers(graph)
    first: dict[int, str] = {}
    for name, number in blocks.items():  # in dataflow order
        first.setdefault(number, name)
    held = {first[number]: size for number, size in block_input_bytes(graph, blocks).items()}
    return BlockRecompute(frozen(blocks), frozen(held))
