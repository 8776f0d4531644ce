"""Rows of a parameter in front of the tokens of every sample, such as a class token: one core sends both.

Symbols: n rows of the parameter, T tokens of D features::

    inlet > T D / 2 words >  core: n D stored elements, then the received ones   > (n + T) D / 2 words out
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from wse_sim.fabric.format.builder import Builder, fabric_in, fabric_out
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import Floats, Inlet, Ports, RegionKind, refused
from wse_sim.whole.regions.shared_color import route_senders

TOKEN_AXES = 3  # samples, tokens, features


class JoinedRows(RegionKind):
    """Rows of a parameter in front of the tokens, in inference."""

    family = "layout"
    title = "rows before the tokens"
    own_colors = 1

    @classmethod
    def tokens_of(cls, graph: KernelGraph, kernel: Kernel) -> int:
        """Return the rows of a sample of the output."""
        return int(graph.tensors[kernel.outputs[0]].shape[-2])

    @classmethod
    def check(cls, graph: KernelGraph, kernel: Kernel) -> None:
        """Check for one parameter in front of one tensor of tokens with the same number of features."""
        shapes = [graph.tensors[name].shape for name in (*kernel.parameters, *kernel.inputs, *kernel.outputs)]
        is_joined = (
            kernel.access.order == (*kernel.parameters, *kernel.inputs)
            and len(kernel.parameters) == len(kernel.inputs) == 1
            and all(len(shape) in (TOKEN_AXES - 1, TOKEN_AXES) for shape in shapes)
            and len({shape[-1] for shape in shapes}) == 1
            and shapes[0][-2] + shapes[1][-2] == shapes[2][-2]
        )
        if not is_joined:
            raise refused(
                kernel,
                "moves elements, but a whole model on the fabric only puts rows of a parameter before the tokens",
                "leave it out",
            )

    def extent(self) -> tuple[int, int]:
        """Return one core."""
        return 1, 1

    @property
    def sizes(self) -> tuple[int, int]:
        """Elements of the parameter, and of the tokens of a sample."""
        own = self.graph.tensors[self.kernel.parameters[0]].elements
        return own, self.graph.tensors[self.kernel.inputs[0]].elements // self.graph.samples

    @property
    def inlets(self) -> tuple[Inlet, ...]:
        """One inlet, next to the core."""
        return (Inlet(self.kernel.inputs[0], (self.top, self.left - 1)),)

    @property
    def senders(self) -> tuple[Cell, ...]:
        """The core."""
        return ((self.top, self.left),)

    def build(self, b: Builder, ports: Ports, samples: int) -> None:
        """Write the inlet, which forwards all words, and the core, which sends its stored rows first."""
        (own, coming), feed, cell = self.sizes, ports.own[0], self.inlets[0].cell
        b.route(feed, cell, rx="R", tx="E")
        b.route(feed, self.senders[0], rx="W", tx="R")
        inlet = b.core_class(f"{self.name} inlet")
        with inlet.loop(samples):
            inlet.mov(fabric_out(feed), fabric_in(ports.inward[0]), length=coming, dtype="fp16", start="none")
        b.place(inlet, cell)
        route_senders(b, ports.outward, self.senders, ports.towards)
        rest = b.buffer(f"{self.name}.rows", own, "fp16", (self.rows, self.columns), bank=0)
        core = b.core_class(self.name)
        with core.loop(samples):
            core.mov(fabric_out(ports.outward), rest.dsd(), dtype="fp16", start="none")
            core.mov(fabric_out(ports.outward), fabric_in(feed), length=coming, dtype="fp16", start="none")
        b.place(core, self.senders[0])

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return the parameter as a buffer."""
        rows = np.asarray(weights[self.kernel.parameters[0]], np.float32)
        return {f"{self.name}.rows": rows.reshape(1, 1, -1)}
