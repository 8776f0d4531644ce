"""A trainable dense layer on samples of several tokens: a trainable product, and the cores next to it.

Symbols: T tokens of K inputs and N outputs; R rows of cores; k inputs and v outputs of a core; d samples in
flight::

    moving columns              compute columns
    inlets    > x, twice >>>>   rows of k inputs: forward for the products, backward for the weight gradient
    collectors  < dx <<<<<<<<   sums of dx run west along the rows; collectors receive them and send them in sequence
    residual, then g > > > > >  last row: finishes tokens as their sums arrive; backward multiplies their
                                gradients by the slope and sends them up the columns, twice

Compute cores are those of :mod:`.products`, the others those of :mod:`.dense_inlets`. Every row has an inlet,
and all inlets receive all inputs, so a token needs K / 2 cycles for any number of rows. The gradient of a
residual equals that of the outputs, and the last row sends it.

Inputs may come in several bundles: each goes to a group of rows, which sends the bundle of their gradients. Results may
leave in several bundles: each from a group of columns, and the bundle of their gradients arrives below the first of
these, at a core that deals it out to the group.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from math import inf

import numpy as np

from wse_sim.fabric.format.builder import Builder
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.kernels.blocks.trained_rows import Streams, TrainedRows
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.kernels.contract.family import Tiling
from wse_sim.kernels.families.gemm.attributes import GemmAttributes
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import (
    PAIR,
    Inlet,
    elements_of,
    links_between,
    part_of,
    refused,
    stream_order,
)
from wse_sim.whole.regions.dense import Dense
from wse_sim.whole.regions.dense_shape import DensePlace
from wse_sim.whole.regions.fused_work import items_of
from wse_sim.whole.regions.shared_color import route_rows, route_senders
from wse_sim.whole.room import room_bytes
from wse_sim.whole.trained.contract import Batch, Floats, TrainedKind, TrainedPorts, beyond
from wse_sim.whole.trained.dense_inlets import RECEIVERS, Beside
from wse_sim.whole.trained.products import OWN_COLORS, Products

FP16_BYTES = 2


class TrainedDense(DensePlace, TrainedKind):
    """A product with a weight, the operations fused to it, and all gradients."""

    own_colors = OWN_COLORS

    def make_room(self) -> None:
        """Make room for a row in addition to those of the inputs, and for the cores that send the gradients of the inputs."""
        region = self.region
        if region.rows == 1:
            raise refused(
                self.kernel,
                "trains in a region of one row, but needs one row in addition to those of its inputs",
                "use more cores",
            )
        if not self.has_collectors or region.cols - self.compute_cols > 1:
            return
        if self.compute_cols == 1:
            raise refused(
                self.kernel,
                "trains in a region of two columns, but needs two columns in addition to those of its outputs",
                "use more cores",
            )
        self._move_columns(1)
        self.region = dataclasses.replace(region, compute_cores=region.compute_cores - region.rows)

    @classmethod
    def check(cls, graph: KernelGraph, kernel: Kernel) -> None:
        """Check the kernel as in inference; ReLU and a residual are not fused to the same product."""
        Dense.check(graph, kernel)
        if {"residual", "relu"} <= {*items_of(kernel)}:
            raise refused(
                kernel, "applies ReLU and adds a residual", "plan the graph of inputs_over_rows(graph)"
            )

    def extent(self) -> tuple[int, int]:
        """Return the rows with at least one word plus the last row, and the columns with at least one output."""
        cols = sum(int(ceil_div(size, self._outputs)) for size in self._bundle_sizes)
        return sum(map(len, self.row_groups)) + 1, cols

    def settle(self) -> None:
        """Take the rows and columns that the chosen numbers of bundles need."""
        super().settle()
        self.__dict__.pop("products", None)

    @property
    def _bundle_sizes(self) -> list[int]:
        """Features of every bundle of the result."""
        return [len(elements_of(self.features, i, self.result_bundles)) for i in range(self.result_bundles)]

    @property
    def row_groups(self) -> list[range]:
        """Rows that receive the same bundle of the inputs, and send that of their gradients."""
        rows = min(self.region.rows - 1 - (self.result_bundles > 1), self.inputs // PAIR) // self.streams
        sizes = [len(part_of(self.inputs // PAIR, i, self.streams)) for i in range(self.streams)]
        ends = [0, *accumulate(min(rows, size) for size in sizes)]
        return [range(first, end) for first, end in pairwise(ends)]

    @property
    def _outputs(self) -> int:
        words = int(ceil_div(self.features // PAIR, self.result_bundles))
        return int(PAIR * ceil_div(words, self.compute_cols // self.result_bundles))

    @property
    def row_inputs(self) -> list[int]:
        """Inputs of every row but the last."""
        found = list[int]()
        for i, group in enumerate(self.row_groups):
            whole, rest = divmod(len(part_of(self.inputs // PAIR, i, self.streams)), len(group))
            found += [PAIR * (whole + (j < rest)) for j in range(len(group))]
        return found

    @property
    def kind_of_products(self) -> type[Products]:
        """The class of the compute cores."""
        return Products

    @cached_property
    def products(self) -> Products:
        """The compute cores."""
        place = self.name, self.wafer, self.top, self.left, self.cols
        sizes = self.row_inputs, self._outputs, self.features, self.tokens
        return self.kind_of_products(*place, *sizes, self.items, self.has_dx, bundles=self._bundle_sizes)

    @property
    def has_residual(self) -> bool:
        """Whether a tensor is added to the product."""
        return "residual" in self.items

    @property
    def has_dx(self) -> bool:
        """Whether the gradient of the inputs is needed."""
        return self.kernel.inputs[0] in self.needs

    @property
    def has_collectors(self) -> bool:
        """Whether a second column of moving cores sends the gradient of the inputs."""
        return self.has_dx

    # ---- ports -----------------------------------------------------------------------------------------------------

    @property
    def inlets(self) -> tuple[Inlet, ...]:
        """One inlet next to every row but the last, all receiving the inputs; the residual arrives where the gradient
        of the result does."""
        own = [
            Inlet(self.kernel.inputs[0], (self.top + i, self.left - 1), bundle)
            for bundle, group in enumerate(self.row_groups)
            for i in group
        ]
        if self.has_residual:
            residual = self.kernel.inputs[1]
            own += [Inlet(residual, cell, bundle) for bundle, cell in enumerate(self.gradient_inlets)]
        return tuple(own)

    @property
    def senders(self) -> tuple[Cell, ...]:
        """The cells of the last row, from the first column."""
        return self.products.senders

    def bundle_senders(self, bundle: int) -> tuple[Cell, ...]:
        """Return the cells of the columns with features of a bundle, from the west."""
        group = self.products.groups[bundle]
        return self.senders[group.start : group.stop]

    @property
    def gradient_inlets(self) -> tuple[Cell, ...]:
        """The cell next to the last row; of several bundles, those below the first column of each."""
        if self.result_bundles == 1:
            return ((self.last, self.left - 1),)
        return tuple((self.last + 1, self.left + group.start) for group in self.products.groups)

    @property
    def busy_links(self) -> frozenset[tuple[Cell, Cell]]:
        """Links of the last row, which receives gradients and sends results."""
        return links_between({(self.last, col) for col in range(self.left - 1, self.left + self.cols)})

    @property
    def gradient_order(self) -> tuple[str, ...]:
        """Operands whose gradients leave: the residual's first, since it is the arriving gradient itself."""
        return tuple(tensor for tensor in reversed(self.operands) if tensor in self.needs)

    def gradient_senders(self, tensor: str, bundle: int) -> tuple[Cell, ...]:
        """Return the collectors (gradient of the inputs), or the columns of a bundle (residual)."""
        if tensor == self.kernel.inputs[0]:
            return tuple((self.top + i, self.left - 2) for i in self.row_groups[bundle])
        return self.bundle_senders(bundle)

    # ---- bundles ---------------------------------------------------------------------------------------------------

    def splits(self, tensor: str) -> Sequence[int]:
        """Return the numbers of bundles: up to those that the price counts, each with a row or a column."""
        stated = GemmAttributes.of(self.kernel.attrs)
        if tensor == self.kernel.inputs[0]:
            most = min(stated.most_bundles, self.region.rows - 2, self.inputs // PAIR)
        else:
            most = min(stated.most_results, self.compute_cols, self.features // PAIR)
            most *= self.region.rows > 2
        return range(1, max(1, most) + 1)

    @property
    def tied(self) -> tuple[str, ...]:
        """A residual has as many bundles as the result."""
        return (self.kernel.inputs[1], self.kernel.outputs[0]) if self.has_residual else ()

    def pace(self) -> float:
        """Return the cycles of a sample, both passes, with the chosen bundles; infinite without room for the stated samples
        in flight."""
        rows, samples = self.rows_with_gradients, max(1, GemmAttributes.of(self.kernel.attrs).held_samples)
        return float(np.asarray(rows.cycles())) if rows.held_bytes(samples) <= room_bytes(self.wafer) else inf

    @property
    def rows_with_gradients(self) -> TrainedRows:
        """The layer as the plan prices it, with the chosen bundles."""
        planned = self.stage.region
        tiling = Tiling(planned.rows - 1, planned.compute_cores // planned.rows, mapping="stationary")
        return TrainedRows(
            self.tokens, self.inputs, self.features, ",".join(self.items), tiling, self.wafer, self.has_dx,
            readers=GemmAttributes.of(self.kernel.attrs).readers, streams=Streams(self.streams, self.result_bundles),
        )  # fmt: skip

    # ---- program ---------------------------------------------------------------------------------------------------

    def most_in_flight(self) -> int:
        """Return the samples in flight: limited by the memory of inlets and last row; 0 if the core that buffers the
        residual has no room for one."""
        products, limit = self.products, room_bytes(self.wafer)
        bundle = int(ceil_div(self.inputs, self.streams)) + PAIR
        each, passing = FP16_BYTES * max(products.inputs), FP16_BYTES * bundle
        held = (limit - passing) // (self.tokens * each)
        most = max(0, min(held, products.most_in_flight(limit)))
        return most if self._slots or not self.has_residual else 0

    @property
    def too_large(self) -> str:
        """The residual of a sample, with its bytes, if that is what is too large."""
        if not self.has_residual or self._slots:
            return super().too_large
        need = FP16_BYTES * self.tokens * self.features
        return f"a sample of the residual '{self.kernel.inputs[1]}': {beyond(need, room_bytes(self.wafer))}"

    @property
    def _slots(self) -> int:
        """Samples of a bundle of the residual that the core next to the last row can buffer.

        One is enough for any number in flight: what deals it out waits for no later sample.
        """
        return int(
            min(RECEIVERS, room_bytes(self.wafer) // (FP16_BYTES * self.tokens * max(self._bundle_sizes)))
        )

    def held_samples(self, tensor: str) -> int | None:
        """Return the samples of a residual that wait: those of the buffer, and one on the last row."""
        is_residual = self.has_residual and tensor == self.kernel.inputs[1]
        return self._slots + 1 if is_residual else None

    def build_batch(self, b: Builder, ports: TrainedPorts, batch: Batch) -> None:
        """Write all cores and routes."""
        leaving = {tensor: [color for color, _ in streams] for tensor, streams in ports.leaving.items()}
        for tensor, streams in ports.leaving.items():
            for bundle, (color, towards) in enumerate(streams):
                route_senders(b, color, self.gradient_senders(tensor, bundle), towards)
        self.products.beside = leaving.get(self.kernel.inputs[1], []) if self.has_residual else ()
        self.products.build(b, ports, batch)
        beside = Beside(b, self.products, batch, self._slots)
        back = leaving.get(self.kernel.inputs[0], [])
        for bundle, group in enumerate(self.row_groups):
            for row in group:
                beside.write_row(row, group, ports.inward[row], back[bundle] if back else None)
        route_rows(b, self.products.feed, range(self.top, self.last), self.left, self.cols)
        ends = zip(self.products.groups, self.gradient_inlets, ports.arriving, strict=True)
        for bundle, (columns, cell, color) in enumerate(ends):
            residual = ports.inward[self.height - 1 + bundle] if self.has_residual else None
            beside.write_bundle(columns, cell, color, residual)

    # ---- values and cycles -----------------------------------------------------------------------------------------

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return weights (N, K) and bias (N,) as the buffers of the region."""
        weight, *bias = (weights[name] for name in self.kernel.parameters)
        order = stream_order(self.graph, self.kernel.inputs[0])
        n, k = self._odd
        wide = np.pad(weight if order is None else weight[:, order], ((0, n), (0, k)))
        return self.products.values(wide, np.pad(bias[0], (0, n)) if bias else None)

    @property
    def _odd(self) -> tuple[int, int]:
        """Zeros that pad outputs and inputs to whole words."""
        return self.features - int(self.kernel.dims["n"]), self.inputs - int(self.kernel.dims["k"])

    @property
    def learning(self) -> tuple[tuple[str, str], ...]:
        """The weight, then the bias."""
        return self.products.learning

    def parameters_in(self, held: Sequence[Floats]) -> dict[str, Floats]:
        """Return the weight in its own shape, and the bias (N,)."""
        weight = self.weight_in_place(self.products.weight_of(held[0]))
        biases = (self.products.bias_of(one)[: len(weight)] for one in held[1:])
        return dict(zip(self.kernel.parameters, (weight, *biases), strict=True))

    def weight_in_place(self, weight: Floats) -> Floats:
        """Return a weight with inputs in stream order, and zeros for whole words, as the parameter (N, K)."""
        order = stream_order(self.graph, self.kernel.inputs[0])
        n, k = int(self.kernel.dims["n"]), int(self.kernel.dims["k"])
        return weight[:n, slice(k) if order is None else np.argsort(order)]

    @property
    def start_rows(self) -> slice | None:
        """All rows but the last, which reads a residual before sums arrive."""
        return slice(self.rows.start, self.rows.stop - 1) if self.has_residual else None
