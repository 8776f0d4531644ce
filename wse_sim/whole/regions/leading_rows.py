"""Rows of parameters in front of the tokens of every sample, such as a class token, or the first token alone: one core
per bundle sends them.

Symbols: n rows of parameters, T tokens of D features; the first t are kept (T, or 1 where n = 0); S bundles, each with up
to d = ceil(D / 2 / S) words of every row::

    inlet > T d words; it forwards the first t d >  core: n d stored words, then the received ones  > (n + t) d words
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from wse_sim.fabric.format.builder import Builder, fabric_in, fabric_out
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.kernels.contract.parameters import Attributes
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import (
    PAIR,
    Floats,
    Inlet,
    Ports,
    RegionKind,
    part_of,
    refused,
    rows_in_turn,
)
from wse_sim.whole.regions.shared_color import route_senders

TOKEN_AXES = 3  # samples, tokens, features
FIRST = "first"  # the movement that keeps the first token of a sample


class JoinedRows(RegionKind):
    """Rows of parameters in front of the tokens, or the first token alone, in inference."""

    family = "layout"
    title = "rows before the tokens"
    own_colors = 1

    @classmethod
    def tokens_of(cls, graph: KernelGraph, kernel: Kernel) -> int:
        """Return the rows of a sample of the output."""
        return rows_of(graph, kernel.outputs[0])

    @classmethod
    def check(cls, graph: KernelGraph, kernel: Kernel) -> None:
        """Check for parameters in front of one tensor of tokens, all with the same number of features, or for a first
        token."""
        if kernel.attrs.get("op") == FIRST:
            return
        shapes = [graph.tensors[name].shape for name in (*kernel.parameters, *kernel.inputs, *kernel.outputs)]
        is_joined = (
            kernel.access.order == (*kernel.parameters, *kernel.inputs)
            and kernel.parameters
            and len(kernel.inputs) == 1
            and all(len(shape) in (TOKEN_AXES - 1, TOKEN_AXES) for shape in shapes)
            and len({shape[-1] for shape in shapes}) == 1
            and sum(shape[-2] for shape in shapes[:-1]) == shapes[-1][-2]
        )
        if not is_joined:
            raise refused(
                kernel,
                "moves elements, but a whole model on the fabric only puts rows of parameters before the tokens",
                "leave it out",
            )

    def extent(self) -> tuple[int, int]:
        """Return one core per bundle, one below the other."""
        return self.streams, 1

    # ---- bundles -----------------------------------------------------------------------------------------------------

    @property
    def streams(self) -> int:
        """Number of bundles of the tokens and of the result."""
        return self.bundles.get(self.kernel.outputs[0], 1)

    @property
    def tied(self) -> tuple[str, ...]:
        """Tokens and result have the same number of bundles."""
        return self.kernel.inputs[0], self.kernel.outputs[0]

    def splits(self, tensor: str) -> range:
        """Return the numbers of bundles for which there is a row of cores each, up to the number that the price counts."""
        most = Attributes.of(self.kernel.attrs).most_bundles
        return range(1, max(1, min(most, rows_in_turn(self.region, self.wafer), self.row_words)) + 1)

    def pace(self) -> float:
        """Return the cycles in which the largest bundle arrives and leaves."""
        rows = max(self.sizes[1], self.tokens)
        return float(self.wafer.wavelet_cycles * rows * ceil_div(self.row_words, self.streams))

    @property
    def row_words(self) -> int:
        """Words of a row."""
        return int(ceil_div(self.graph.tensors[self.kernel.outputs[0]].shape[-1], PAIR))

    @property
    def sizes(self) -> tuple[int, int]:
        """Rows of the parameters, and tokens of a sample that arrive."""
        own = sum(self.graph.tensors[name].shape[-2] for name in self.kernel.parameters)
        return own, rows_of(self.graph, self.kernel.inputs[0])

    def _elements(self, bundle: int) -> int:
        """Return the elements of a row in a bundle."""
        return PAIR * len(part_of(self.row_words, bundle, self.streams))

    @property
    def inlets(self) -> tuple[Inlet, ...]:
        """One inlet per bundle, next to its core."""
        name = self.kernel.inputs[0]
        return tuple(Inlet(name, (self.top + i, self.left - 1), i) for i in range(self.streams))

    @property
    def senders(self) -> tuple[Cell, ...]:
        """The cores, one per bundle."""
        return tuple((self.top + i, self.left) for i in range(self.streams))

    # ---- program -----------------------------------------------------------------------------------------------------

    def build(self, b: Builder, ports: Ports, samples: int) -> None:
        """Write the inlets, which forward the words of tokens that are kept, and the cores, which send their stored rows
        first."""
        self.height, self.cols = self.extent()
        (own, coming), feed = self.sizes, ports.own[0]
        kept, widest = self.tokens - own, max(map(self._elements, range(self.streams)))
        rest = b.buffer(f"{self.name}.rows", max(1, own * widest), "fp16", (self.rows, self.columns), bank=0)
        others = b.buffer(f"{self.name}.others", widest, "fp16", (self.rows, self.left - 1))
        ways = [(ports.outward, ports.towards), *ports.others]
        for bundle, (outward, towards) in enumerate(ways):
            (inlet_cell, cell), each = (
                (self.inlets[bundle].cell, self.senders[bundle]),
                self._elements(bundle),
            )
            b.route(feed, inlet_cell, rx="R", tx="E")
            b.route(feed, cell, rx="W", tx="R")
            inlet, source = b.core_class(f"{self.name} inlet {bundle}"), fabric_in(ports.inward[bundle])
            with inlet.loop(samples):
                inlet.mov(fabric_out(feed), source, length=kept * each, dtype="fp16", start="none")
                with inlet.loop(coming - kept):
                    inlet.mov(others.dsd(0, each), source, dtype="fp16", start="none")
            b.place(inlet, inlet_cell)
            route_senders(b, outward, (cell,), towards)
            core = b.core_class(f"{self.name} {bundle}")
            with core.loop(samples):
                if own:
                    core.mov(fabric_out(outward), rest.dsd(0, own * each), dtype="fp16", start="none")
                core.mov(fabric_out(outward), fabric_in(feed), length=kept * each, dtype="fp16", start="none")
            b.place(core, cell)

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return every core's part of the parameters; a first token has none."""
        if not self.kernel.parameters:
            return {}
        held = [np.asarray(weights[name], np.float32) for name in self.kernel.parameters]
        rows = np.concatenate([one.reshape(-1, one.shape[-1]) for one in held])
        parts = [part_of(self.row_words, bundle, self.streams) for bundle in range(self.streams)]
        found = np.zeros((self.streams, 1, self.sizes[0] * PAIR * max(map(len, parts))), np.float32)
        for bundle, part in enumerate(parts):
            own = rows[:, PAIR * part.start : PAIR * part.stop].reshape(-1)
            found[bundle, 0, : own.size] = own
        return {f"{self.name}.rows": found}


def rows_of(graph: KernelGraph, tensor: str) -> int:
    """Return the rows of a sample of a tensor of tokens."""
    return prod(graph.tensors[tensor].shape[:-1]) // graph.samples
