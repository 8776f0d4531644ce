"""All layers of a trainable plan as one program, and the buffers of a run.

Symbols: B samples; r the learning rate, so weights change by ``- r / B`` times their summed gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.coloring import HOST_COLORS, KERNEL_COLORS
from wse_sim.fabric.format.builder import Builder
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Program
from wse_sim.modes.pipelined.loss import LOSS, loss_cores
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole.areas import FabricPlace
from wse_sim.whole.coverage import chain_of, forward_kernel
from wse_sim.whole.layout import PAIR, RegionLayout
from wse_sim.whole.paths import Cell
from wse_sim.whole.stream_routes import Cycles, Ends, Links, leg_links, legs_cycles, link_map
from wse_sim.whole.training.cores import write_cores
from wse_sim.whole.training.data_cores import (
    write_gradient_inlet,
    write_inlet,
    write_loss_inlet,
    write_losses,
)
from wse_sim.whole.training.layer import TrainedLayer
from wse_sim.whole.training.loss import check_loss, one_hot
from wse_sim.whole.training.samples_in_flight import Chains, in_flight
from wse_sim.whole.training.stream_layouts import Legs, laid_out, route_backward, route_cells, route_forward
from wse_sim.whole.training.values import Floats, tiles

PASSES = 2  # of a sample: forward and backward


@dataclass(frozen=True)
class TrainingProgram:
    """A trainable plan as one program over a batch of `rows` samples."""

    plan: PipelinedPlan
    program: Program
    config: FabricConfig
    layouts: tuple[RegionLayout, ...]
    legs: Legs
    in_flight: tuple[int, ...]
    rows: int

    @property
    def areas(self) -> tuple[FabricPlace, ...]:
        """The regions in the order of the plan's stages."""
        return tuple(
            FabricPlace(one.name, slice(one.top, one.last + 1), slice(one.left, one.left + one.cols))
            for one in self.layouts
        )

    @property
    def ways(self) -> tuple[Cycles, Cycles]:
        """Travel cycles of a word between regions: forward, and of gradients."""
        names, wafer = [one.name for one in self.layouts], self.plan.wafer
        found: tuple[dict[Ends, float], dict[Ends, float]] = {}, {}
        for legs, cycles in zip((self.legs.forward[:-1], self.legs.backward), found, strict=True):
            for leg, ends in zip(legs, pairwise(names), strict=True):
                cycles[leg.stream.tensor, *ends] = legs_cycles([leg.cells], wafer)
        return found

    @property
    def laid_words(self) -> NDArray[np.float64]:
        """Words per sample on every link, summed over all streams and gradients: (rows, cols, 4), in the
        order N, E, S, W."""
        wafer = self.plan.wafer
        return link_map(self._links(), wafer.rows, wafer.cols)

    def _links(self) -> Links:
        for leg in (*self.legs.inputs, *self.legs.forward, *self.legs.backward):
            yield from leg_links(leg.cells, len(leg.elements) / PAIR)
        logits = self.legs.forward[-1]
        edge = logits.cells[-1]
        over = "E" if edge[1] == self.plan.wafer.cols - 1 else "W"
        yield edge, over, len(logits.elements) / PAIR

    @property
    def loss_cells(self) -> tuple[Cell, ...]:
        """All cores of the loss."""
        return self.legs.loss

    @property
    def loss_area(self) -> FabricPlace:
        """The first core of the loss."""
        row, col = self.legs.loss[0]
        return FabricPlace(LOSS, slice(row, row + 1), slice(col, col + 1))

    def inputs(
        self, weights: Mapping[str, Floats], values: Floats, labels: NDArray[np.int64]
    ) -> dict[str, Floats]:
        """Return the input buffers of a run by name, from parameters by name, samples (rows, K) and labels
        (rows,)."""
        out: dict[str, Floats] = {}
        for layout in self.layouts:
            weight, *bias = forward_kernel(self.plan, layout.name).parameters
            out[f"{layout.name}.x"] = out[f"{layout.name}.master"] = tiles(layout, weights[weight])
            if "bias" in layout.items:
                wide = np.zeros((1, layout.cols, layout.outputs), np.float32)
                wide.reshape(-1)[: layout.n] = weights[bias[0]]
                out[f"{layout.name}.bias"] = out[f"{layout.name}.master bias"] = wide
        for number, leg in enumerate(self.legs.inputs):
            held = np.zeros((len(values), len(leg.elements)), np.float16)
            real = min(leg.elements.stop, values.shape[1]) - leg.elements.start
            held[:, :real] = values[:, leg.elements.start : leg.elements.start + real]
            out[f"host in {number}"] = held.reshape(-1).view(np.float32)[None, None]
        wanted, count = one_hot(labels, len(self.legs.forward[-1].elements)), len(self.legs.loss)
        for i, name in enumerate(self.losses):
            out[f"{name}.wanted"] = wanted[i::count].reshape(1, 1, -1)
        return out

    @property
    def losses(self) -> tuple[str, ...]:
        """Names of the cores of the loss."""
        count = len(self.legs.loss)
        return ("loss",) if count == 1 else tuple(f"loss {i}" for i in range(count))


def training_program(
    plan: PipelinedPlan,
    rows: int,
    rate: float = 0.0,
    loss: str = "cross entropy",
    room: tuple[int, int] = (0, 0),
) -> TrainingProgram:
    """Build the program that trains on a batch of `rows` samples with learning rate `rate` (of the mean
    loss).

    `room`: extra samples per region, and extra passes ahead of its last row, beyond what is certain to be
    buffered; see :mod:`wse_sim.whole.training.samples_in_flight`.

    Raises
    ------
    ModelError
        If the plan is not covered.
    """
    check_loss(loss)
    kernels, streams = chain_of(plan)
    layouts, legs = laid_out(
        plan, kernels, streams, min(rows, loss_cores(plan, loss, int(kernels[-1].dims["n"])))
    )
    wafer = plan.wafer
    config = FabricConfig.from_wafer(wafer)
    relay = config.ring_delay_cycles + config.hop_cycles + 2  # out of the ring, over a link, into a queue
    chains = Chains(relay, plan.pace_cycles / PASSES)
    flights = in_flight(layouts, legs, config, rows, room, chains)
    b = Builder(wafer.rows, wafer.cols, config)
    first = wafer.colors - HOST_COLORS - 2 * KERNEL_COLORS
    colors = tuple(range(first, wafer.colors - HOST_COLORS))
    for color, queue in zip(colors, (0, 2, 3, 1, 4, 5), strict=True):
        b.input_queue(color, queue)
    for p, (layout, flight) in enumerate(zip(layouts, flights, strict=True)):
        layer = TrainedLayer(b, wafer, layout, rows, flight, colors, p > 0, chains)
        _write_layer(layer, legs, p, -rate / rows, loss)
    _write_host(b, legs, rows, wafer.cols)
    return TrainingProgram(
        plan, b.build(), config, layouts, legs, tuple(flight.rows for flight in flights), rows
    )


def _write_layer(layer: TrainedLayer, legs: Legs, p: int, factor: float, loss: str) -> None:
    """Write layer number `p`: its cores, and the routes on which its outputs and gradients leave."""
    out, back = legs.forward[p], legs.backward[p - 1] if p else None
    is_last = p + 1 == len(legs.forward)
    for number in range(len(layer.layout.fed)):
        write_inlet(layer, number, legs.into(p, number))
    if is_last and len(legs.loss) > 1:
        gradients = layer.wafer.colors - 1  # the last of the host's, which no stream has
        write_losses(layer, legs.loss, out.color, gradients, loss)
        write_gradient_inlet(layer, gradients)
    elif is_last:
        write_loss_inlet(layer, out.color, loss)
    else:
        write_gradient_inlet(layer, legs.backward[p].color)
    write_cores(layer, out.color, None if back is None else back.color, factor)
    route_forward(layer.b, layer.layout, out, layer.wafer.cols)
    if back is not None:
        route_backward(layer.b, layer.layout, back)


def _write_host(b: Builder, legs: Legs, rows: int, cols: int) -> None:
    """Add the host streams at the edges: samples in, logits out."""
    for number, leg in enumerate(legs.inputs):
        row, col = leg.cells[0]
        words = rows * len(leg.elements) // PAIR
        b.host_in(f"host in {number}", leg.color, words, row, "W" if col == 0 else "E")
        route_cells(b, leg.color, leg.cells, "W" if col == 0 else "E", "R")
    logits = legs.forward[-1]
    row, col = logits.cells[-1]
    words = rows * len(logits.elements) // PAIR
    b.host_out("host out", logits.color, words, row, "E" if col == cols - 1 else "W")
