"""Softmax or log softmax over the features of every token: whole tokens on all cores, block by block, laid
out like a norm.

The instructions are those of the kernel's own program for whole rows: maximum, difference, exponentials, sum,
quotient (or the logarithm of the sum, and its difference). Symbols and price as in
:mod:`wse_sim.whole.regions.norm`.
"""

from __future__ import annotations

from collections.abc import Mapping

from wse_sim.graph import Kernel, KernelGraph
from wse_sim.kernels.blocks.token_blocks import TokenBlocks
from wse_sim.kernels.families.softmax import whole_blocks
from wse_sim.whole.regions.contract import Floats, check_fixed, refused
from wse_sim.whole.regions.norm import NormRegion


class SoftmaxRegion(NormRegion):
    """Softmax of every token, in inference."""

    family = "softmax"
    title = "softmax"

    @classmethod
    def check(cls, graph: KernelGraph, kernel: Kernel) -> None:
        """Check for a softmax over the last dimension of one operand."""
        shapes = [graph.tensors[name].shape for name in (*kernel.inputs, *kernel.outputs)]
        if len(shapes) != 2 or shapes[0] != shapes[1] or shapes[0][-1] != kernel.dims["cols"]:
            raise refused(kernel, "is not a softmax of one tensor over its last dimension", "give it dim=-1")
        check_fixed(kernel, kernel.attrs.get("whole", False))

    @property
    def blocks(self) -> TokenBlocks:
        """The kernel's own price."""
        return whole_blocks(self.kernel.dims, self.wafer, "fp16", self.kernel.attrs, self.lane)

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return no buffers: a softmax has no parameters."""
        return {}
