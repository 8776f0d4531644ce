"""Rows of parameters in front of the tokens of every sample, such as a class token, or the first token alone: one core
per bundle sends them.

Symbols: n rows of parameters, T tokens of D features; the first t are kept (T, or 1 where n = 0); S bundles, each with up
to d = ceil(D / 2 / S) words of every row::

    inlet > T d words; it forwards the first t d >  core: n d stored words, then the received ones  > (n + t) d words

In training gradients go the same way back (:mod:`wse_sim.whole.trained.leading_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np

from wse_sim.fabric.format.builder import Builder, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.kernels.contract.parameters import Attributes
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import (
    PAIR,
    Floats,
    Inlet,
    Out,
    PlacedKernel,
    Ports,
    RegionKind,
    elements_of,
    refused,
    rows_in_turn,
)
from wse_sim.whole.regions.shared_color import route_senders

TOKEN_AXES = 3  # samples, tokens, features
FIRST = "first"  # the movement that keeps the first token of a sample


class RowsPlace(PlacedKernel):
    """Rows of parameters in front of the tokens, or the first token alone: where they lie, and the forward pass."""

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
        return self.result_bundles, 1

    # ---- bundles -----------------------------------------------------------------------------------------------------

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
        return float(self.wafer.wavelet_cycles * rows * ceil_div(self.row_words, self.result_bundles))

    @property
    def row_words(self) -> int:
        """Words of a row."""
        return int(ceil_div(self.graph.tensors[self.kernel.outputs[0]].shape[-1], PAIR))

    @property
    def sizes(self) -> tuple[int, int]:
        """Rows of the parameters, and tokens of a sample that arrive."""
        own = sum(self.graph.tensors[name].shape[-2] for name in self.kernel.parameters)
        return own, rows_of(self.graph, self.kernel.inputs[0])

    def elements(self, bundle: int) -> range:
        """Return the elements of a row that a bundle has."""
        return elements_of(PAIR * self.row_words, bundle, self.result_bundles)

    @property
    def inlets(self) -> tuple[Inlet, ...]:
        """One inlet per bundle, next to its core."""
        name = self.kernel.inputs[0]
        return tuple(Inlet(name, (self.top + i, self.left - 1), i) for i in range(self.result_bundles))

    @property
    def senders(self) -> tuple[Cell, ...]:
        """The cores, one per bundle."""
        return tuple((self.top + i, self.left) for i in range(self.result_bundles))

    # ---- program -----------------------------------------------------------------------------------------------------

    @property
    def widest(self) -> int:
        """Elements of a row in the largest bundle."""
        return max(len(self.elements(bundle)) for bundle in range(self.result_bundles))

    def write(
        self, b: Builder, ways: Sequence[Out], feed: int, passes: Callable[[int, CoreClass, CoreClass], None]
    ) -> None:
        """Write the inlet and the core of every bundle with its color and ports in `ways`; `passes` writes their work."""
        self.height, self.cols = self.extent()
        self.rest = b.buffer(
            f"{self.name}.rows",
            max(1, self.sizes[0] * self.widest),
            "fp16",
            (self.rows, self.columns),
            bank=0,
        )
        self._others = b.buffer(f"{self.name}.others", self.widest, "fp16", (self.rows, self.left - 1))
        for bundle, (color, towards) in enumerate(ways):
            inlet_cell, cell = self.inlets[bundle].cell, self.senders[bundle]
            b.route(feed, inlet_cell, rx="R", tx="E")
            b.route(feed, cell, rx="W", tx="R")
            route_senders(b, color, (cell,), towards)
            inlet, core = (b.core_class(f"{self.name} {what}{bundle}") for what in ("inlet ", ""))
            passes(bundle, inlet, core)
            b.place(inlet, inlet_cell)
            b.place(core, cell)

    def forward(self, bundle: int, inlet: CoreClass, core: CoreClass, colors: tuple[int, int, int]) -> None:
        """Write a sample: the inlet forwards the words of tokens that are kept, the core sends its stored rows first; the
        `colors` bring words to the inlet, to the core and away."""
        (own, coming), each, (inward, feed, outward) = self.sizes, len(self.elements(bundle)), colors
        kept = self.tokens - own
        pass_on(inlet, inward, feed, kept * each)
        self.leave_out(inlet, inward, (coming - kept, each))
        if own:
            core.mov(fabric_out(outward), self.rest.dsd(0, own * each), dtype="fp16", start="none")
        pass_on(core, feed, outward, kept * each)

    def leave_out(self, inlet: CoreClass, inward: int, rows: tuple[int, int]) -> None:
        """Write that an inlet takes a number of rows, of that many elements, which no region needs."""
        with inlet.loop(rows[0]):
            inlet.mov(self._others.dsd(0, rows[1]), fabric_in(inward), dtype="fp16", start="none")

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return every core's part of the parameters; a first token has none."""
        if not self.kernel.parameters:
            return {}
        held = [np.asarray(weights[name], np.float32) for name in self.kernel.parameters]
        rows = np.concatenate([one.reshape(-1, one.shape[-1]) for one in held])
        found = np.zeros((self.result_bundles, 1, len(rows) * self.widest), np.float32)
        for bundle in range(self.result_bundles):
            own = rows[:, self.elements(bundle)].reshape(-1)
            found[bundle, 0, : own.size] = own
        return {f"{self.name}.rows": found}


class JoinedRows(RowsPlace, RegionKind):
    """The same in inference."""

    def build(self, b: Builder, ports: Ports, samples: int) -> None:
        """Write the inlet and the core of every bundle."""
        ways, feed = ports.results, ports.own[0]

        def passes(bundle: int, inlet: CoreClass, core: CoreClass) -> None:
            with inlet.loop(samples), core.loop(samples):
                self.forward(bundle, inlet, core, (ports.inward[bundle], feed, ways[bundle][0]))

        self.write(b, ways, feed, passes)


def pass_on(core: CoreClass, inward: int, outward: int, elements: int) -> None:
    """Write that a core forwards words from a color to another."""
    core.mov(fabric_out(outward), fabric_in(inward), length=elements, dtype="fp16", start="none")


def rows_of(graph: KernelGraph, tensor: str) -> int:
    """Return the rows of a sample of a tensor of tokens."""
    return prod(graph.tensors[tensor].shape[:-1]) // graph.samples
