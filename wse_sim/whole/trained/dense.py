"""A trainable dense layer on samples of several tokens: a trainable product, and the cores next to it.

Symbols: T tokens of K inputs and N outputs; R rows of cores; k inputs and v outputs of a core; d samples in
flight::

    moving columns              compute columns
    inlets    > x, twice >>>>   rows of k inputs: forward for the products, backward for the weight gradient
                                sums of dx run west along the rows; the inlets receive them and send them in sequence
    residual, then g > > > > >  last row: finishes the T tokens of a sample at once; backward multiplies their
                                gradients by the slope and sends them up the columns, twice

Compute cores are those of :mod:`.products`, the others those of :mod:`.dense_moving`. Every row has an inlet,
and all inlets receive all inputs, so a token needs K / 2 cycles for any number of rows. The gradient of a
residual equals that of the outputs: a core behind the end of the last row receives a copy and forwards it. If
an activation follows the residual, the last row sends this gradient.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property

import numpy as np

from wse_sim.compiler.plan import Stage
from wse_sim.fabric.format.builder import Builder
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.activation_slopes import ACTIVATIONS
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import PAIR, Inlet, links_between, refused, stream_order
from wse_sim.whole.regions.dense import Dense
from wse_sim.whole.regions.fused_work import items_of
from wse_sim.whole.regions.shared_color import route_senders
from wse_sim.whole.trained.contract import HELD_FRACTION, Batch, Floats, TrainedKind, TrainedPorts
from wse_sim.whole.trained.dense_inlets import RECEIVERS, Beside
from wse_sim.whole.trained.dense_shared import products_for
from wse_sim.whole.trained.products import OWN_COLORS
from wse_sim.whole.trained.streamed_products import StreamedProducts

FP16_BYTES = 2


class TrainedDense(TrainedKind):
    """A product with a weight, the operations fused to it, and all gradients."""

    family = "gemm"
    title = Dense.title
    own_colors = OWN_COLORS

    def __init__(
        self, graph: KernelGraph, kernel: Kernel, stage: Stage, wafer: Wafer, needs: frozenset[str]
    ) -> None:
        super().__init__(graph, kernel, _with_room(kernel, stage), wafer, needs)

    @classmethod
    def tokens_of(cls, graph: KernelGraph, kernel: Kernel) -> int:
        """Return the rows of a sample."""
        return Dense.tokens_of(graph, kernel)

    @classmethod
    def check(cls, graph: KernelGraph, kernel: Kernel) -> None:
        """Check the kernel as in inference; all fused operations must have a derivative."""
        Dense.check(graph, kernel)
        for item in items_of(kernel):
            if item not in ("bias", "residual", *ACTIVATIONS):
                raise refused(
                    kernel,
                    f"fuses '{item}' to its product",
                    f"training on the whole fabric does {', '.join(ACTIVATIONS)}",
                )

    def extent(self) -> tuple[int, int]:
        """Return the rows with at least one word plus the last row, and the columns with at least one output."""
        rows = min(self.region.rows - 1, self.inputs // PAIR) + 1
        return rows, int(ceil_div(self.features, self._outputs))

    @property
    def inputs(self) -> int:
        """Number of inputs, K, rounded up to whole words: an odd K is padded with a zero."""
        return int(PAIR * ceil_div(self.kernel.dims["k"], PAIR))

    @property
    def features(self) -> int:
        """Number of outputs, N, rounded up to whole words: an odd N is padded with weights of zero."""
        return int(PAIR * ceil_div(self.kernel.dims["n"], PAIR))

    @property
    def _outputs(self) -> int:
        return int(PAIR * ceil_div(ceil_div(self.features, self.compute_cols), PAIR))

    @property
    def items(self) -> tuple[str, ...]:
        """Operations fused to the outputs."""
        return items_of(self.kernel)

    @cached_property
    def products(self) -> StreamedProducts:
        """The compute cores."""
        whole, rest = divmod(self.inputs // PAIR, self.height - 1)
        inputs = [PAIR * (whole + (i < rest)) for i in range(self.height - 1)]
        return products_for(self.items)(
            self.name,
            self.wafer,
            self.top,
            self.left,
            self.cols,
            inputs,
            self._outputs,
            self.features,
            self.tokens,
            self.items,
            self.has_dx,
        )

    @property
    def has_residual(self) -> bool:
        """Whether a tensor is added to the product."""
        return "residual" in self.items

    @property
    def has_dx(self) -> bool:
        """Whether the gradient of the inputs is needed."""
        return self.kernel.inputs[0] in self.needs

    # ---- ports -----------------------------------------------------------------------------------------------------

    @property
    def inlets(self) -> tuple[Inlet, ...]:
        """One inlet next to every row but the last, all receiving the inputs; the residual arrives next to
        the last row."""
        own = [Inlet(self.kernel.inputs[0], (self.top + i, self.left - 1)) for i in range(self.height - 1)]
        if self.has_residual:
            own.append(Inlet(self.kernel.inputs[1], self.gradient_inlet))
        return tuple(own)

    @property
    def senders(self) -> tuple[Cell, ...]:
        """The cells of the last row, from the first column."""
        return self.products.senders

    @property
    def gradient_inlet(self) -> Cell:
        """The cell next to the last row."""
        return self.last, self.left - 1

    @property
    def busy_links(self) -> frozenset[tuple[Cell, Cell]]:
        """Links of the last row, which receives gradients and sends results."""
        return links_between({(self.last, col) for col in range(self.left - 1, self.left + self.cols)})

    @property
    def gradient_order(self) -> tuple[str, ...]:
        """Operands whose gradients leave: the residual's first, since it is the arriving gradient itself."""
        return tuple(tensor for tensor in reversed(self.operands) if tensor in self.needs)

    def gradient_senders(self, tensor: str) -> tuple[Cell, ...]:
        """Return the inlets (gradient of the inputs), or the cell behind the gradient inlet or the last row
        (residual)."""
        if tensor == self.kernel.inputs[0]:
            return tuple((self.top + i, self.left - 1) for i in range(self.height - 1))
        return ((self.last, self.left - 2),) if self.residual_is_last else self.senders

    @property
    def residual_is_last(self) -> bool:
        """Whether no activation follows the residual, so that its gradient equals that of the result."""
        return self.has_residual and self.items[-1] == "residual"

    # ---- program ---------------------------------------------------------------------------------------------------

    def most_in_flight(self) -> int:
        """Return the samples in flight: limited by the memory of inlets, last row, and the core that buffers
        the residual."""
        usable = HELD_FRACTION * FabricConfig.from_wafer(self.wafer).sram_usable_bytes
        most = usable // (FP16_BYTES * self.tokens * max(self.products.inputs))
        if of_last := self.products.held_bytes(1):
            most = min(most, usable // of_last)
        if self.has_residual:
            held = usable // (FP16_BYTES * self.tokens * self.features)
            most = most if held >= RECEIVERS else min(most, held)
        return int(most)

    def build_batch(self, b: Builder, ports: TrainedPorts, batch: Batch) -> None:
        """Write all cores and routes."""
        leaving = {tensor: color for tensor, (color, _) in ports.gradient_out.items()}
        for tensor, (color, towards) in ports.gradient_out.items():
            route_senders(b, color, self.gradient_senders(tensor), towards)
        added = leaving.get(self.kernel.inputs[1]) if self.has_residual else None
        is_heard = added is not None and self.residual_is_last
        self.products.beside = None if is_heard else added
        self.products.build(b, ports, batch)
        beside = Beside(b, self.products, batch)
        for row in range(self.height - 1):
            beside.write_row(row, ports.inward[row], leaving.get(self.kernel.inputs[0]))
        beside.route_rows()
        residual = ports.inward[self.height - 1] if self.has_residual else None
        beside.write_end(ports.gradient_in, residual, is_heard=is_heard)
        if added is not None and is_heard:
            beside.write_listener((self.last, self.left - 2), added)

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
    def reads(self) -> tuple[str, ...]:
        """Buffers with gradients and new weights."""
        return self.products.reads

    def read(self, buffers: Mapping[str, Floats]) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """Return gradients and new weights by parameter, as (N, K) and (N,)."""
        order = stream_order(self.graph, self.kernel.inputs[0])
        n, k = int(self.kernel.dims["n"]), int(self.kernel.dims["k"])
        back = slice(k) if order is None else np.argsort(order)
        gradients, weights = self.products.learned(
            buffers, self.kernel.parameters, lambda weight: weight[:, back]
        )
        return {name: one[:n] for name, one in gradients.items()}, {
            name: one[:n] for name, one in weights.items()
        }

    def ahead_cycles(self) -> float:
        """Return the cycles to receive a residual on the last row."""
        return self.tokens * self._outputs / PAIR * self.has_residual


def _with_room(kernel: Kernel, stage: Stage) -> Stage:
    """Return the stage with one compute column turned into a moving column if the gradient of a residual
    needs it."""
    region = stage.region
    compute = region.compute_cores // region.rows
    if region.rows == 1:
        raise refused(
            kernel,
            "trains in a region of one row, but needs one row in addition to those of its inputs",
            "use more cores",
        )
    if items_of(kernel)[-1:] != ("residual",) or region.cols - compute > 1:
        return stage
    if compute == 1:
        raise refused(kernel, "adds a residual in a region of two columns", "use more cores")
    fewer = dataclasses.replace(region, compute_cores=region.compute_cores - region.rows)
    return dataclasses.replace(stage, region=fewer)
