"""The smallest region that trains: one core that sums its operands and copies gradients, so that a network consists
only of routes.
"""

from __future__ import annotations

from collections.abc import Mapping

from wse_sim.fabric.format.builder import Builder, fabric_in, fabric_out
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import Inlet
from wse_sim.whole.trained import Batch, TrainedKind, TrainedPorts
from wse_sim.whole.trained.contract import Floats


class Copies(TrainedKind):
    """A dense layer whose weight is the identity matrix (and whose bias is 0), with or without a residual."""

    family = "gemm"
    title = "copies"
    own_colors = 0

    @classmethod
    def tokens_of(cls, graph: KernelGraph, kernel: Kernel) -> int:
        """Return the rows of a sample."""
        return int(kernel.dims["m"]) // graph.samples

    @classmethod
    def check(cls, graph: KernelGraph, kernel: Kernel) -> None:
        """Accept all kernels."""

    def extent(self) -> tuple[int, int]:
        """Return one core."""
        return 1, 1

    @property
    def cell(self) -> Cell:
        """Return the core."""
        return self.top, self.left

    @property
    def inlets(self) -> tuple[Inlet, ...]:
        """Return the core for every operand."""
        return tuple(Inlet(name, self.cell) for name in self.kernel.inputs)

    @property
    def senders(self) -> tuple[Cell, ...]:
        """Return the core."""
        return (self.cell,)

    @property
    def gradient_order(self) -> tuple[str, ...]:
        """Return the order, the residual first."""
        return tuple(tensor for tensor in reversed(self.operands) if tensor in self.needs)

    def most_in_flight(self) -> int:
        """Return that nothing is stored."""
        return 10**6

    def build_batch(self, b: Builder, ports: TrainedPorts, batch: Batch) -> None:
        """Process one sample at a time."""
        core, size = b.core_class(self.name), self.tokens * int(self.kernel.dims["n"])
        held = b.buffer(f"{self.name}.held", size, "fp16", self.cell)
        total = b.buffer(f"{self.name}.total", size, "fp32", self.cell)
        other = b.buffer(f"{self.name}.other", size, "fp16", self.cell)
        b.place(core, self.cell)
        for color, towards in ports.every_way():
            b.route(color, self.cell, rx="R", tx=towards)
        how = {"dtype": "fp16", "start": "none"}
        with core.loop(batch.rounds):
            with core.loop(batch.in_flight):
                for color in ports.inward[1:]:  # a skip comes long before the branch
                    core.mov(other.dsd(), fabric_in(color), thread=1, priority="high", **how)
                core.mov(held.dsd(), fabric_in(ports.inward[0]), **how)
                for _ in ports.inward[1:]:
                    core.join(1)
                    core.add(held.dsd(), held.dsd(), other.dsd(), **how)
                core.mov(fabric_out(ports.results[0][0]), held.dsd(), **how)
            with core.loop(batch.in_flight):
                core.mov(held.dsd(), fabric_in(ports.arriving[0]), **how)
                core.add(total.dsd(), total.dsd(), held.dsd())
                for tensor in self.gradient_order:
                    core.mov(fabric_out(ports.leaving[tensor][0][0]), held.dsd(), **how)

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return no parameters."""
        return {}

    @property
    def reads(self) -> tuple[str, ...]:
        """Read the results of the batch."""
        return (f"{self.name}.total",)

    def read(self, buffers: Mapping[str, Floats]) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """Return the gradient of the bias; nothing learns."""
        total = buffers[f"{self.name}.total"].reshape(self.tokens, -1).sum(axis=0)
        return {self.kernel.parameters[1]: total}, {}
