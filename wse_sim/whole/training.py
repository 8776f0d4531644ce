"""Training of a chain of dense layers as one fabric program: a batch forward and backward, loss, update.

Symbols: k inputs and n outputs of a core; d samples in flight in a region; i a sample::

    moving columns              compute columns
    inlet     > x, twice >>>>   row of k inputs: forward for the products, backward for the weight gradient
    loss or g > > > > > > > >   last row: a column takes its n gradients, multiplies by the slope, and
                                sends them up its column, twice: as a vector, and as words that trigger
                                sums of dx run west along the rows; the first column sends them, row by row

Order of every core: forward of the first d samples; then backward of i - d and forward of i; then backward of the rest;
then the update.  The inlet keeps the inputs of the d samples, so both products of a pass are triggered by words from
the link.  Loss: the moving core beside the last row takes the logits, too; softmax and cross entropy in fp32.
Gradients add up in fp32 over the batch; the update is ``w -= r / B g`` on fp32 weights, rounded to fp16 for the products.

Colors: six per layer, as the plan sets aside (operands; sums, alternating by row) each way.  The gradients that the
last row takes travel on the color of sums that no core of that row uses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.coloring import HOST_COLORS, KERNEL_COLORS
from wse_sim.compiler.plan import Stream
from wse_sim.compiler.streams import HOST
from wse_sim.errors import ModelError
from wse_sim.fabric.format.builder import Buffer, Builder, Operand, Switch, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Command, Fn, Program
from wse_sim.graph import Kernel
from wse_sim.hardware import Wafer
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole.bundles import chain_of, forward_kernel
from wse_sim.whole.layout import PAIR, RegionLayout, lay_for_training
from wse_sim.whole.paths import BACK, Cell, Grid, direction

KEEP = Switch([], pop="never")
OUT, CAST, BACKWARD = (
    1,
    2,
    3,
)  # microthreads that send outputs, gradients up a column, gradients of the inputs
LOSSES = ("cross entropy", "squared error")
LAST_IN_FLIGHT, MORE_IN_FLIGHT = (
    3,
    4,
)  # samples in flight of the last region; of any other beyond the next one
INLET_SHARE = 0.8  # of a sample's time that an inlet may work, so that cores do not wait for it
ROWS_AHEAD = 2  # forward passes that the rows with inputs may be ahead of the finishing row

Floats = NDArray[np.float32]
Pass = Callable[[int], None]


class NoWayError(ModelError):
    """A stream finds no way on its color."""


@dataclass(frozen=True)
class Leg:
    """One way of words from cell to cell on a color; `stream` tells between whom."""

    stream: Stream
    color: int
    cells: tuple[Cell, ...]
    elements: range  # of a sample


@dataclass(frozen=True)
class TrainingProgram:
    """A plan that trains as one program over a batch of `rows` samples."""

    plan: PipelinedPlan
    program: Program
    config: FabricConfig
    layouts: tuple[RegionLayout, ...]
    feeds: tuple[Leg, ...]  # the bundles of the input
    outlet: Leg  # the logits on their way to the host
    in_flight: tuple[int, ...]
    rows: int

    def inputs(
        self, weights: Mapping[str, Floats], values: Floats, labels: NDArray[np.int64]
    ) -> dict[str, Floats]:
        """Buffers of a run: parameters by name, samples (rows, K), labels (rows,)."""
        out: dict[str, Floats] = {}
        for layout in self.layouts:
            kernel = forward_kernel(self.plan, layout.name)
            wide = np.zeros((layout.cols * layout.outputs, PAIR * ceil_div(layout.k, PAIR)), np.float32)
            wide[: layout.n, : layout.k] = weights[kernel.parameters[0]]
            tiles = _tiles(layout, wide)
            out[f"{layout.name}.x"] = out[f"{layout.name}.master"] = tiles
            if "bias" in layout.items:
                bias = np.zeros(layout.cols * layout.outputs, np.float32)
                bias[: layout.n] = weights[kernel.parameters[1]]
                held = bias.reshape(1, layout.cols, -1)
                out[f"{layout.name}.bias"] = out[f"{layout.name}.master bias"] = held
        for number, leg in enumerate(self.feeds):
            held = np.zeros((len(values), len(leg.elements)), np.float16)
            real = min(leg.elements.stop, values.shape[1]) - leg.elements.start
            held[:, :real] = values[:, leg.elements.start : leg.elements.start + real]
            out[f"host in {number}"] = held.reshape(-1).view(np.float32)[None, None]
        wanted = np.zeros((len(labels), len(self.outlet.elements)), np.float32)
        wanted[np.arange(len(labels)), labels] = 1
        out["loss.wanted"] = wanted.reshape(1, 1, -1)
        return out


def training_program(
    plan: PipelinedPlan, rows: int, rate: float = 0.0, loss: str = "cross entropy"
) -> TrainingProgram:
    """The program that trains on a batch of `rows` samples with learning rate `rate` (of the mean loss).

    Raises
    ------
    ModelError
        If the plan is not covered.
    """
    if loss not in LOSSES:
        raise ModelError(f"loss '{loss}' is unknown; use one of {', '.join(LOSSES)}")
    kernels, streams = chain_of(plan, training=True)
    for kernel in plan.graph.kernels:
        if (algorithm := kernel.attrs.get("algorithm", "sgd")) != "sgd":
            raise ModelError(
                f"kernel '{kernel.name}' updates by {algorithm}, the whole fabric by sgd; use optimizer=sgd"
            )
    layouts, (legs_in, forward, backward) = _laid_out(plan, kernels, streams)
    in_flight = _in_flight(plan, rows)
    wafer = plan.wafer
    config = FabricConfig.from_wafer(wafer)
    b = Builder(wafer.rows, wafer.cols, config)
    first = wafer.colors - HOST_COLORS - 2 * KERNEL_COLORS
    colors = range(first, wafer.colors - HOST_COLORS)
    for color, queue in zip(colors, (0, 2, 3, 1, 4, 5), strict=True):
        b.input_queue(color, queue)
    for p, layout in enumerate(layouts):
        layer = _TrainedLayer(b, wafer, layout, rows, in_flight[p], tuple(colors), -rate / rows, loss)
        layer.declare(has_dx=p > 0)
        for leg in legs_in[p]:
            layer.inlet(leg)
        is_last = p + 1 == len(layouts)
        layer.gradient_inlet(None if is_last else backward[p].color, forward[p].color)
        layer.cores(forward[p].color, backward[p - 1].color if p else None)
        _route_forward(b, layout, forward[p], wafer.cols, to_loss=is_last)
        if p:
            _route_backward(b, layout, backward[p - 1])
    for number, leg in enumerate(legs_in[0]):
        row, col = leg.cells[0]
        words = rows * len(leg.elements) // PAIR
        b.host_in(f"host in {number}", leg.color, words, row, "W" if col == 0 else "E")
        _route_cells(b, leg.color, leg.cells, "W" if col == 0 else "E", "R")
    row, col = forward[-1].cells[-1]
    words = rows * len(forward[-1].elements) // PAIR
    b.host_out("host out", forward[-1].color, words, row, "E" if col == wafer.cols - 1 else "W")
    return TrainingProgram(plan, b.build(), config, layouts, tuple(legs_in[0]), forward[-1], in_flight, rows)


# ---- where things lie ----------------------------------------------------------------------------------------


def _in_flight(plan: PipelinedPlan, rows: int) -> tuple[int, ...]:
    """Samples in flight of every region.

    Passes alternate, so a region must be ahead of the next by the samples that are on their way there and back; being
    further ahead, its outputs would fill the links before the first gradient comes back.
    """
    return tuple(min(rows, LAST_IN_FLIGHT + MORE_IN_FLIGHT * p) for p in reversed(range(len(plan.stages))))


Legs = tuple[list[list[Leg]], list[Leg], list[Leg]]


def _laid_out(
    plan: PipelinedPlan, kernels: Sequence[Kernel], streams: Sequence[Stream]
) -> tuple[tuple[RegionLayout, ...], Legs]:
    """Layouts and ways with as many bundles of the input as find a way."""
    # An inlet issues three times the words of its bundle: in, out forward, out backward.
    issued = 3 * ceil_div(int(kernels[0].dims["k"]), PAIR)
    links = min(streams[0].width, ceil(issued / (INLET_SHARE * plan.stages[0].cycles_per_sample)))
    while True:
        layouts = _layouts(plan, kernels, links)
        links = len(layouts[0].fed)
        for order in (1, -1):
            try:
                return layouts, _legs(plan, layouts, streams, order)
            except NoWayError:
                if links == 1 and order < 0:
                    raise
        links -= 1


def _layouts(plan: PipelinedPlan, kernels: Sequence[Kernel], links: int) -> tuple[RegionLayout, ...]:
    """Layouts with one bundle between regions, and as many of the input as find rows."""
    out = []
    for p, (kernel, stage) in enumerate(zip(kernels, plan.stages, strict=True)):
        words = ceil_div(int(kernel.dims["k"]), PAIR)
        tried = (lay_for_training(kernel, stage, n) for n in range(1 if p else min(links, words), 0, -1))
        found = next((layout for layout in tried if layout is not None), None)
        if found is None:
            raise ModelError(
                f"stage '{stage.name}' has {stage.region.rows} rows, and a layer that trains has one beside those "
                "of its inputs; use more cores"
            )
        out.append(found)
    return tuple(out)


def _legs(
    plan: PipelinedPlan, layouts: Sequence[RegionLayout], streams: Sequence[Stream], order: int
) -> Legs:
    """Ways into every region; ways out of it; ways of gradients to all but the last.

    Ways of the input are sought from the first bundle to the last, or the other way round (`order` -1).
    """
    wafer = plan.wafer
    grid = Grid(wafer.rows, wafer.cols)
    for p, layout in enumerate(layouts):
        row, left = layout.last, layout.left
        grid.take(streams[p + 1].color, ((row, left - 1 + col) for col in range(layout.cols + 1)))
        if p:
            grid.take(streams[p].color + 1, ((layout.top + i, left) for i in range(len(layout.rows) - 1)))
    count, point = len(layouts[0].fed), streams[0].route[0]
    top = min(max(0, point[0] - count // 2), wafer.rows - count)
    edge = [(top + g, point[1]) for g in range(count)]
    grid.take(streams[0].color, edge)
    for p, layout in enumerate(layouts):  # ends are taken before ways are sought
        grid.take(streams[p].color, (layout.inlet(g) for g in range(len(layout.fed))))
        if p + 1 < len(layouts):
            grid.take(streams[p + 1].color + 1, [(layout.last, layout.left - 1)])

    def leg(
        stream: Stream, color: int, start: Cell, end: Cell, at: Sequence[RegionLayout], elements: range
    ) -> Leg:
        cells = grid.path(color, start, end, grid.planned(stream), [one.region for one in at])
        if cells is None:
            raise NoWayError(
                f"tensor '{stream.tensor}' finds no way from '{stream.producer}' to '{stream.consumer}' on color "
                f"{color}; use another placer or a larger wafer"
            )
        return Leg(stream, color, tuple(cells), elements)

    into: list[list[Leg]] = []
    forward: list[Leg] = []
    backward: list[Leg] = []
    for p, layout in enumerate(layouts):
        if p:
            into.append([forward[-1]])
        else:
            stream = streams[0]
            stops = [sum(len(layout.rows[i].inputs) for i in layout.fed[g]) for g in range(count)]
            ends = np.cumsum([0, *stops]).tolist()
            found = {
                g: leg(stream, stream.color, edge[g], layout.inlet(g), [layout], range(ends[g], ends[g + 1]))
                for g in range(count)[::order]
            }
            into.append([found[g] for g in range(count)])
        beside = (layout.last, layout.left - 1)
        after = layouts[p + 1] if p + 1 < len(layouts) else None
        stream = streams[p + 1]
        end = after.inlet(0) if after else stream.route[-1]
        outputs = range(sum(layout.sent(col) for col in range(layout.cols)))
        at = [layout, after] if after else [layout]
        out = leg(stream, stream.color, beside, end, at, outputs)
        forward.append(replace(out, cells=((layout.last, layout.left), *out.cells)))
        if after:
            start = (after.top, after.left)
            backward.append(leg(stream, stream.color + 1, start, beside, [layout, after], outputs))
    return into, forward, backward


# ---- instructions ------------------------------------------------------------------------------------------------


@dataclass
class _TrainedLayer:
    """Writes one layer into a builder."""

    b: Builder
    wafer: Wafer
    layout: RegionLayout
    rows: int  # samples
    slots: int  # samples in flight
    colors: tuple[int, ...]
    factor: float  # of the summed gradient in the update
    loss: str

    def declare(self, has_dx: bool) -> None:
        """Buffers of all cores."""
        lay, b = self.layout, self.b
        self.feed, *sums, self.cast, east, west = self.colors
        self.sums, self.along = (sums[0], sums[1]), (east, west)
        self.last = len(lay.rows) - 1
        self.deal = self.sums[
            self.last % 2
        ]  # of gradients along the last row: none of its cores sends sums on it
        self.has_dx, self.has_bias = has_dx, "bias" in lay.items
        rows, cols = slice(lay.top, lay.last + 1), slice(lay.left, lay.left + lay.cols)
        most, v = max(len(row.inputs) for row in lay.rows), lay.outputs

        def over(name: str, length: int, dtype: str, bank: int) -> Buffer:
            return b.buffer(f"{lay.name}.{name}", length, dtype, (rows, cols), bank=bank)

        self.y, self.p = over("y", v, "fp32", 0), over("p", most, "fp32", 0)
        self.x, self.g = over("x", most * v, "fp16", 2), over("g", v, "fp16", 2)
        self.dw, self.master = over("dw", most * v, "fp32", 0), over("master", most * v, "fp32", 4)
        end = (lay.last, cols)
        self.out = b.buffer(f"{lay.name}.out", self.slots * v, "fp16", end, bank=0)
        self.own = b.buffer(f"{lay.name}.own", v, "fp16", end, bank=0)
        self.bias = b.buffer(f"{lay.name}.bias", v, "fp16", end, bank=2)
        self.db = over("db", v, "fp32", 0)
        self.slope = b.buffer(f"{lay.name}.slope", v, "fp16", end, bank=2)
        self.master_bias = b.buffer(f"{lay.name}.master bias", v, "fp32", end, bank=4)
        self.dx = b.buffer(f"{lay.name}.dx", self.slots * most, "fp16", (rows, lay.left), bank=0)

    # the order of passes, the same for all cores of the layer

    def _schedule(self, core: CoreClass, d: int, forward: Pass, backward: Pass) -> None:
        """Passes of all samples, `d` in flight; both write that of the slot which the innermost loop counts."""
        turns, left = divmod(self.rows - d, d)
        with core.loop(d):
            forward(0)
        with core.loop(turns), core.loop(d):
            backward(0)
            forward(0)
        with core.loop(left):
            backward(0)
            forward(0)
        with core.loop(d - left):
            backward(left)
        with core.loop(left):
            backward(0)

    # moving cores

    def inlet(self, leg: Leg) -> None:
        """The core that keeps the inputs of samples in flight and deals them out, a word to every row in turn."""
        lay, b, size = self.layout, self.b, len(leg.elements)
        number = next(g for g in range(len(lay.fed)) if lay.inlet(g) == leg.cells[-1])
        fed = lay.fed[number]
        cell = lay.inlet(number)
        held = b.buffer(f"{lay.name}.held {number}", self.slots * size, "fp16", cell)
        core = b.core_class(f"{lay.name} inlet {number}")
        counts = [len(lay.rows[i].inputs) // PAIR for i in fed]
        offsets = np.cumsum([0, *counts]).tolist()
        least = min(counts)

        def turn(of: int, slot: int, done: int, in_round: bool) -> None:
            for i in range(of):
                steps = (PAIR, size) if in_round else (size, 0)
                word = held.dsd(
                    slot * size + PAIR * (offsets[i] + done), PAIR, step=steps[0], outer_step=steps[1]
                )
                advance = "path" if i < len(fed) - 1 else None
                core.mov(fabric_out(self.feed, advance), word, dtype="fp16", start="none")
            if len(fed) > 1:
                core.control(self.feed, Command.RESET, start="none")

        def deal(slot: int) -> None:
            with core.loop(least):
                turn(len(fed), slot, 0, True)
            if max(counts) > least:
                turn(sum(count > least for count in counts), slot, least, False)

        def forward(slot: int) -> None:
            core.mov(held.dsd(slot * size, size, step=size), fabric_in(leg.color), dtype="fp16", start="none")
            deal(slot)

        self._schedule(core, self.slots, forward, deal)
        b.place(core, cell)
        b.route(self.feed, cell, rx="R", tx="E", switch=KEEP)
        onward = "E" if lay.cols > 1 else ""
        for i in fed:
            passing = Switch([{"tx": "S"}], pop="never") if i != fed[-1] else KEEP
            b.route(
                self.feed,
                (lay.top + i, lay.left),
                rx="W" if i == fed[0] else "N",
                tx="R" + onward,
                switch=passing,
            )
            for j in range(1, lay.cols):
                more = "E" if j < lay.cols - 1 else ""
                b.route(self.feed, (lay.top + i, lay.left + j), rx="W", tx="R" + more, switch=KEEP)

    def gradient_inlet(self, arriving: int | None, logits: int) -> None:
        """Beside the last row: deals the gradients that arrive to its columns; without any, those of the loss."""
        lay, b = self.layout, self.b
        cell = (lay.last, lay.left - 1)
        core = b.core_class(f"{lay.name} gradients in")
        sizes = [lay.sent(col) for col in range(lay.cols)]
        offsets = np.cumsum([0, *sizes]).tolist()
        loss = None if arriving is not None else self._loss_buffers(cell, offsets[-1])
        with core.loop(self.rows):
            if loss is not None:
                self._loss(core, logits, *loss)
            for col, size in enumerate(sizes):
                source = fabric_in(arriving) if arriving is not None else loss[0].dsd(offsets[col], size)  # type: ignore[index]
                advance = "path" if col < lay.cols - 1 else None
                core.mov(fabric_out(self.deal, advance), source, length=size, dtype="fp16", start="none")
            if lay.cols > 1:
                core.control(self.deal, Command.RESET, start="none")
        b.place(core, cell)
        b.route(self.deal, cell, rx="R", tx="E", switch=KEEP)
        for col in range(lay.cols):
            passing = Switch([{"tx": "E"}], pop="never") if col < lay.cols - 1 else KEEP
            b.route(self.deal, (lay.last, lay.left + col), rx="W", tx="R", switch=passing)

    def _loss_buffers(self, cell: Cell, size: int) -> tuple[Buffer, ...]:
        b = self.b
        return (
            b.buffer("loss.gradient", size, "fp16", cell),
            b.buffer("loss.logits", size, "fp16", cell),
            b.buffer("loss.exponentials", size, "fp32", cell, bank=0),
            b.buffer("loss.statistic", 1, "fp32", cell),
            b.buffer("loss.total", 2, "fp32", cell),
            b.buffer("loss.wanted", size * self.rows, "fp16", cell, bank=2),
            b.buffer("loss.logarithm", 1, "fp32", cell),
        )

    def _loss(
        self,
        core: CoreClass,
        logits: int,
        gradient: Buffer,
        arrived: Buffer,
        values: Buffer,
        statistic: Buffer,
        total: Buffer,
        wanted: Buffer,
        logarithm: Buffer,
    ) -> None:
        """Gradient softmax(z) - y; the two totals are the sums of log of sum of exp(z - max), and of z - max at y.

        Squared error: gradient z - y, the first total is the sum of its squares.
        """
        # What fills up the last word is no logit: its gradient stays 0.
        size, real = gradient.length, self.layout.n
        one = statistic.dsd(0, real, stride=0)
        label = wanted.dsd(0, real, step=size)
        logit, value, slope = arrived.dsd(0, real), values.dsd(0, real), gradient.dsd(0, real)
        core.mov(arrived.dsd(), fabric_in(logits), dtype="fp16", start="none")
        if self.loss == "squared error":
            core.sub(slope, logit, label)
            core.mac(total.dsd(0, real, stride=0), slope, slope)
            return
        core.mov(statistic.dsd(), scalar(-3e38))
        core.max(one, one, logit)
        core.sub(value, logit, one)
        core.mac(total.dsd(1, real, stride=0), value, label)
        core.map(Fn.EXP, value, value)
        core.mov(statistic.dsd(), scalar(0.0))
        core.add(one, one, value)
        core.map(Fn.LOG, logarithm.dsd(), statistic.dsd())
        core.add(total.dsd(0, 1), total.dsd(0, 1), logarithm.dsd())
        core.map(Fn.RECIPROCAL, statistic.dsd(), statistic.dsd())
        core.mul(value, value, one)
        core.sub(slope, value, label)

    # compute cores

    def cores(self, out: int, back: int | None) -> None:
        """Classes and routes of all rows; `out` and `back` are the colors on which outputs and gradients leave."""
        lay, b = self.layout, self.b
        for i in range(self.last):
            kinds: dict[tuple[bool, bool, int], list[int]] = {}
            for col in range(lay.cols):
                kinds.setdefault((col == 0, col == lay.cols - 1, col % 2), []).append(col)
            for (is_first, is_final, _), members in kinds.items():
                core = b.core_class(f"{lay.name} row {i} columns {members[0]} to {members[-1]}")
                self._core(core, i, members[0], is_first, is_final, back)
                for col in members:
                    b.place(core, (lay.top + i, lay.left + col))
        ends: dict[tuple[int, bool], list[int]] = {}
        for col in range(lay.cols):
            ends.setdefault((lay.sent(col), col == lay.cols - 1), []).append(col)
        for (sent, is_final), members in ends.items():
            core = b.core_class(f"{lay.name} last row columns {members[0]} to {members[-1]}")
            self._finishing(core, sent, is_final, out)
            for col in members:
                b.place(core, (lay.last, lay.left + col))
        self._routes()

    def _core(
        self, core: CoreClass, i: int, col: int, is_first: bool, is_final: bool, back: int | None
    ) -> None:
        """A core with inputs: products, sums of gradients of the inputs, weight gradient; then the update."""
        v, k, most = self.layout.outputs, len(self.layout.rows[i].inputs), self.p.length
        here, above = self.sums[i % 2], self.sums[(i + 1) % 2]

        def forward(slot: int) -> None:
            core.fmac_vectors(
                self.y.dsd(), fabric_in(self.feed), self.x.dsd(0, v), v,
                b_stride=v, length=k, dtype="mixed", wire="fp16x2", start="none", triggered=True, fresh=True,
            )  # fmt: skip
            if i:
                core.add(fabric_out(here), self.y.dsd(), fabric_in(above), start="none")
            else:
                core.mov(fabric_out(here), self.y.dsd(), start="none")

        def backward(slot: int) -> None:
            core.mov(self.g.dsd(), fabric_in(self.cast), dtype="fp16", start="none")
            core.fmac_vectors(
                self.dw.dsd(0, v), fabric_in(self.feed), self.g.dsd(), v,
                dst_stride=v, length=k, dtype="mixed", wire="fp16x2", start="none", triggered=True,
            )  # fmt: skip
            if i == 0 and self.has_bias:
                core.add(self.db.dsd(), self.db.dsd(), self.g.dsd())
            if back is None:
                return
            core.fmac_vectors(
                self.p.dsd(0, k), fabric_in(self.cast), self.x.dsd(0, k, stride=v), k,
                b_stride=1, length=v, dtype="mixed", wire="fp16x2", start="none", triggered=True, fresh=True,
            )  # fmt: skip
            result = self.dx.dsd(slot * most, k, step=most)
            self._pass_west(core, col, self.p.dsd(0, k), is_first, is_final, result)
            if is_first:
                advance = None if self.last == 1 else ("path" if i == self.last - 1 else "local")
                core.join(BACKWARD)
                core.mov(fabric_out(back, advance), result, dtype="fp16", start="none", thread=BACKWARD)

        self._schedule(core, self.slots, forward, backward)
        if self.has_bias:  # the first row has added up the gradients of the bias; they pass down as sums do
            if i:
                core.mov(fabric_out(here), fabric_in(above), length=v, start="none")
            else:
                core.mov(fabric_out(here), self.db.dsd(), start="none")
        core.fmac(self.master.dsd(), self.master.dsd(), self.dw.dsd(), scalar(self.factor))
        core.mov(self.x.dsd(), self.master.dsd())

    def _finishing(self, core: CoreClass, sent: int, is_final: bool, out: int) -> None:
        """A core of the last row: outputs of a column; backward its gradients, sent up twice."""
        lay, v = self.layout, self.layout.outputs
        above = self.sums[(self.last + 1) % 2]
        own = self.own.dsd()

        def forward(slot: int) -> None:
            result = self.out.dsd(slot * v, v, step=v)
            core.mov(result, fabric_in(above), start="none")
            if self.has_bias:
                core.add(result, result, self.bias.dsd(), dtype="fp16")
            if "relu" in lay.items:
                core.max(result, result, scalar(0.0), dtype="fp16")
            advance = None if lay.cols == 1 else ("path" if is_final else "local")
            core.join(OUT)
            leaving = self.out.dsd(slot * v, sent, step=v)
            core.mov(fabric_out(out, advance), leaving, dtype="fp16", start="none", thread=OUT)

        def first(slot: int) -> None:
            core.join(CAST)
            core.mov(self.own.dsd(0, sent), fabric_in(self.deal), dtype="fp16", start="none")
            if "relu" in lay.items:
                # A send of these outputs may wait for its turn yet: the slope is written elsewhere.
                period = round(1000 / self.wafer.max_fp16_per_cycle)
                result = self.out.dsd(slot * v, v, step=v)
                core.map(Fn.STEP, self.slope.dsd(), result, dtype="fp16", period=period)
                core.mul(own, own, self.slope.dsd(), dtype="fp16")
            core.mov(fabric_out(self.cast), own, dtype="fp16", start="none", thread=CAST)

        def again() -> None:
            if self.has_dx:
                core.join(CAST)
                core.mov(fabric_out(self.cast), own, dtype="fp16", start="none", thread=CAST)

        # A backward pass is followed by a forward pass, which frees the core while the rows take the first copy.
        d = max(1, self.slots - ROWS_AHEAD)
        turns, left = divmod(self.rows - d, d)
        with core.loop(d):
            forward(0)
        for times in (turns, None):
            with core.loop(1 if times is None else times), core.loop(left if times is None else d):
                first(0)
                if d == self.slots:  # the next outputs wait for this gradient
                    again()
                forward(0)
                if d < self.slots:
                    again()
        for slots, start in ((d - left, left), (left, 0)):
            with core.loop(slots):
                first(start)
                again()
        if self.has_bias:
            core.mov(self.db.dsd(), fabric_in(above), start="none")
            core.fmac(self.master_bias.dsd(), self.master_bias.dsd(), self.db.dsd(), scalar(self.factor))
            core.mov(self.bias.dsd(), self.master_bias.dsd())

    def _pass_west(
        self, core: CoreClass, col: int, own: Operand, is_first: bool, is_final: bool, result: Operand
    ) -> None:
        """Sums along a row: the last column begins, the first keeps them."""
        here, behind = self.along[col % 2], self.along[(col + 1) % 2]
        if is_first and is_final:
            core.mov(result, own)
        elif is_first:
            core.add(result, own, fabric_in(behind), start="none")
        elif is_final:
            core.mov(fabric_out(here), own, start="none")
        else:
            core.add(fabric_out(here), own, fabric_in(behind), start="none")

    def _routes(self) -> None:
        lay, b = self.layout, self.b
        cols = slice(lay.left, lay.left + lay.cols)
        for i in range(self.last + 1):
            row = lay.top + i
            if i < self.last:
                b.route(self.sums[i % 2], (row, cols), rx="R", tx="S")
            if i:
                b.route(self.sums[(i + 1) % 2], (row, cols), rx="N", tx="R")
            if i == self.last:
                b.route(self.cast, (row, cols), rx="R", tx="N")
                continue
            b.route(self.cast, (row, cols), rx="S", tx="R" + ("N" if i else ""))
            if not self.has_dx:
                continue
            for col in range(lay.cols):
                if col:
                    b.route(self.along[col % 2], (row, lay.left + col), rx="R", tx="W")
                if col < lay.cols - 1:
                    b.route(self.along[(col + 1) % 2], (row, lay.left + col), rx="E", tx="R")


# ---- routes of streams -------------------------------------------------------------------------------------------


def _route_cells(
    b: Builder, color: int, cells: Sequence[Cell], arriving: str, last: str, extra: str = ""
) -> None:
    """The cells of a way: `arriving` into the first, `last` out of the last one; the first also to `extra`."""
    steps = [direction(a, c) for a, c in pairwise(cells)]
    came = [arriving, *(BACK[step] for step in steps)]
    for n, (cell, rx, tx) in enumerate(zip(cells, came, [*steps, last], strict=True)):
        b.route(color, cell, rx=rx, tx=tx + (extra if n == 0 else ""))


def _route_forward(b: Builder, layout: RegionLayout, leg: Leg, cols: int, *, to_loss: bool) -> None:
    """The columns of the last row send westward in turn, the first first; then the way; the loss core listens."""
    for col in range(layout.cols):
        passing = Switch([{"rx": "E"}], ring=True) if col < layout.cols - 1 else None
        b.route(leg.color, (layout.last, layout.left + col), rx="R", tx="W", switch=passing)
    last = "R"
    if leg.stream.consumer == HOST:
        last = "E" if leg.cells[-1][1] == cols - 1 else "W"
    _route_cells(b, leg.color, leg.cells[1:], "E", last, "R" if to_loss else "")


def _route_backward(b: Builder, layout: RegionLayout, leg: Leg) -> None:
    """The rows of the first column send upward in turn, the top one first; then the way."""
    steps = [direction(a, c) for a, c in pairwise(leg.cells)]
    count = len(layout.rows) - 1  # the last row has no inputs
    for i in range(count):
        passing = Switch([{"rx": "S"}], ring=True) if i < count - 1 else None
        onward = "N" if i else steps[0]
        b.route(leg.color, (layout.top + i, layout.left), rx="R", tx=onward, switch=passing)
    _route_cells(b, leg.color, leg.cells[1:], BACK[steps[0]], "R")


# ---- values ----------------------------------------------------------------------------------------------------------


def _tiles(layout: RegionLayout, wide: Floats) -> Floats:
    """(N, K) as (rows, cols, inputs x outputs) of the cores."""
    most, v, cols = max(len(row.inputs) for row in layout.rows), layout.outputs, layout.cols
    x = np.zeros((len(layout.rows), cols, most, v), np.float32)
    for i, row in enumerate(layout.rows):
        count = len(row.inputs)
        x[i, :, :count] = wide[:, row.inputs].T.reshape(count, cols, v).swapaxes(0, 1)
    return x.reshape(len(layout.rows), cols, -1)


def untiled(layout: RegionLayout, tiles: Floats) -> Floats:
    """(N, K) from the tiles of all cores."""
    v, cols = layout.outputs, layout.cols
    x = tiles.reshape(len(layout.rows), cols, -1, v)
    wide = np.zeros((cols * v, PAIR * ceil_div(layout.k, PAIR)), np.float32)
    for i, row in enumerate(layout.rows):
        count = len(row.inputs)
        wide[:, row.inputs] = x[i, :, :count].swapaxes(0, 1).reshape(count, cols * v).T
    return wide[: layout.n, : layout.k]
