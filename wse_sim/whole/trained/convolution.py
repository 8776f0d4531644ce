"""A convolution that trains: a product that trains on the pixels of the result, between cores that unfold images and fold gradients.

Symbols: an image of H x W pixels of C channels, q lines and columns of zeros around it; N filters of r x s taps and stride z;
T = H' W' pixels of the result; a row of cores has k of the K = r even(s C) taps and channels.  Beside every row lies one
core, which keeps the images in flight::

    forward     an image arrives beside the work on the one before;  k elements of it per pixel of the result   > row
    backward    the same elements again, all pixels                                                            > row
                sums of the row  >  added to an image of gradients in fp32;  a line to which no further sums
                come, plus that of the row below  >  row above; the highest core sends the sum of all rows

Lines are rounded to fp16 before they are added up over the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from wse_sim.compiler.plan import Stage
from wse_sim.fabric.format.builder import Buffer, Builder, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.rounds import even
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import PAIR, Floats, Inlet, refused
from wse_sim.whole.regions.convolution import Convolution
from wse_sim.whole.regions.dense import items_of
from wse_sim.whole.regions.turns import deal, route_takers
from wse_sim.whole.regions.windows import At, Unfolding, Windows
from wse_sim.whole.trained.contract import HELD_FRACTION, Batch, TrainedKind, TrainedPorts
from wse_sim.whole.trained.products import OWN_COLORS, Products

RECEIVE, COLLECT, CHAIN = 1, 2, 3  # microthreads of the cores beside the rows


@dataclass(frozen=True)
class Folded:
    """The image of gradients, with places for what falls on the zeros around it.

    Symbols: `pitch` elements from a line to the next, `inside` the first element of the image.
    """

    windows: Windows

    @property
    def pitch(self) -> int:
        """With the zeros on both sides."""
        columns = self.windows.columns
        return (columns.size + 2 * columns.around) * self.windows.channels

    @property
    def inside(self) -> int:
        """Behind the zeros above and on the left."""
        return self.windows.lines.around * self.pitch + self.windows.columns.around * self.windows.channels

    @property
    def row(self) -> int:
        """Elements of a line of the image."""
        return self.windows.columns.size * self.windows.channels

    @property
    def size(self) -> int:
        """Elements, with the one that fills up the last run."""
        lines = self.windows.lines
        return int(even((lines.size + 2 * lines.around) * self.pitch + 1))

    def part(self, held: Buffer, run: tuple[int, int, int], at: At) -> Operand:
        """Where the gradients of a run (line under the window, first element, number) are added."""
        windows, (tap, inside, count) = self.windows, run
        down, along = windows.lines.stride * self.pitch, windows.columns.stride * windows.channels
        place = tap * self.pitch + inside + at.line * down + at.column * along
        return at.part(held, place, count, (down, along))

    def finished(self) -> list[tuple[int, int]]:
        """(first, number) of the lines of the image to which no further sums come, after every line of the result."""
        lines, out, done = self.windows.lines, list[tuple[int, int]](), 0
        for y in range(lines.results):
            ready = lines.size if y == lines.results - 1 else min(lines.size, max(0, lines.first(y + 1)))
            out.append((done, ready - done))
            done = ready
        return out

    def stretches(self) -> list[tuple[int, int]]:
        """(first, number) of lines of the result after which as many lines are finished: they can be one loop."""
        finished, out = self.finished(), list[tuple[int, int]]()
        for y, (_, count) in enumerate(finished):
            if out and finished[out[-1][0]][1] == count:
                out[-1] = (out[-1][0], out[-1][1] + 1)
            else:
                out.append((y, 1))
        return out


class TrainedConvolution(TrainedKind):
    """Filters at rest; unfolded pixels stream, forward and backward."""

    family = "conv2d"
    title = Convolution.title
    own_colors = OWN_COLORS

    def __init__(
        self, graph: KernelGraph, kernel: Kernel, stage: Stage, wafer: Wafer, needs: frozenset[str]
    ) -> None:
        self.windows = Windows.of(kernel)
        self.folded = Folded(self.windows)
        super().__init__(graph, kernel, stage, wafer, needs)
        self.tokens = self.windows.lines.results * self.windows.columns.results
        if self.region.rows < 2:
            raise refused(kernel, "trains in a region of one row, limit two", "use more cores")
        if self.has_dx and self.folded.row % PAIR:
            raise refused(
                kernel,
                f"sends gradients of lines of {self.folded.row} elements, an odd number, and words hold {PAIR}",
                "use an even number of channels",
            )

    @classmethod
    def tokens_of(cls, graph: KernelGraph, kernel: Kernel) -> int:
        """An image is one row."""
        return 1

    @classmethod
    def check(cls, graph: KernelGraph, kernel: Kernel) -> None:
        """As in inference."""
        Convolution.check(graph, kernel)

    @property
    def features(self) -> int:
        """N."""
        return int(self.kernel.dims["k"])

    @property
    def has_dx(self) -> bool:
        """Whether the gradient of the image is asked for."""
        return self.kernel.inputs[0] in self.needs

    def extent(self) -> tuple[int, int]:
        """Rows with at least a word and the last one, columns with at least an output."""
        words = self.windows.lines.taps * self.windows.run // PAIR
        return min(self.region.rows - 1, words) + 1, int(ceil_div(self.features, self._outputs))

    @property
    def _outputs(self) -> int:
        return int(PAIR * ceil_div(ceil_div(self.features, self.compute_cols), PAIR))

    @cached_property
    def products(self) -> Products:
        """The compute cores."""
        items, words = items_of(self.kernel), self.windows.lines.taps * self.windows.run // PAIR
        whole, rest = divmod(words, self.height - 1)
        inputs = [PAIR * (whole + (i < rest)) for i in range(self.height - 1)]
        return Products(
            self.name,
            self.wafer,
            self.top,
            self.left,
            self.cols,
            inputs,
            self._outputs,
            self.features,
            self.tokens,
            "bias" in items,
            "relu" in items,
            self.has_dx,
        )

    # ---- ports -----------------------------------------------------------------------------------------------------

    @property
    def inlets(self) -> tuple[Inlet, ...]:
        """Beside every row but the last: all hear the image."""
        cells = [(self.top + i, self.left - 1) for i in range(self.height - 1)]
        return tuple(Inlet(self.kernel.inputs[0], cell) for cell in cells)

    @property
    def senders(self) -> tuple[Cell, ...]:
        """The last row."""
        return self.products.senders

    @property
    def gradient_inlet(self) -> Cell:
        """Beside the last row."""
        return self.last, self.left - 1

    def gradient_senders(self, tensor: str) -> tuple[Cell, ...]:
        """The highest of the inlets."""
        return (self.inlets[0].cell,)

    def most_in_flight(self) -> int:
        """As many images as an inlet holds beside those that pass, and results as the last row holds."""
        usable = FabricConfig.from_wafer(self.wafer).sram_usable_bytes
        most = max(count for _, count in self.folded.finished())
        passing = self.has_dx * (4 * self.folded.size + 2 * most * self.folded.row)
        held = int(min(HELD_FRACTION * usable, usable - passing) // (2 * self._image))
        return max(0, min(held, int(HELD_FRACTION * usable // self.products.held_bytes(1))))

    @property
    def _image(self) -> int:
        """Elements of an image, and of the one that fills up the last run."""
        return int(even(self.windows.size + 1))

    # ---- program ---------------------------------------------------------------------------------------------------

    def build_batch(self, b: Builder, ports: TrainedPorts, batch: Batch) -> None:
        """Products, the inlets beside them, and the inlet of gradients."""
        self.products.build(b, ports, batch)
        self._declare(b, batch)
        back = ports.gradient_out[self.kernel.inputs[0]] if self.has_dx else None
        begin = 0
        for i, count in enumerate(self.products.inputs):
            core, cell = b.core_class(f"{self.name} inlet {i}"), self.inlets[i].cell
            self._inlet(core, i, (begin, begin + count), ports.inward[0], back, batch)
            b.place(core, cell)
            begin += count
        feed, cells = ports.own[0], (slice(self.top, self.last), self.left - 1)
        b.route(feed, cells, rx="R", tx="E")
        for col in range(self.cols):
            onward = "E" if col < self.cols - 1 else ""
            b.route(feed, (slice(self.top, self.last), self.left + col), rx="W", tx="R" + onward)
        if back is not None:
            self._route_chain(b, back)
        self._gradient_inlet(b, ports.gradient_in, batch)

    def _declare(self, b: Builder, batch: Batch) -> None:
        cells, folded = (slice(self.top, self.last), self.left - 1), self.folded
        self._unfolding = Unfolding(b, self.name, cells, self.windows)
        self._images = [
            b.buffer(f"{self.name}.image{slot}", self._image, "fp16", cells)
            for slot in range(batch.in_flight)
        ]
        if self.has_dx:
            most = max(count for _, count in folded.finished())
            self._gradients = b.buffer(f"{self.name}.folded", folded.size, "fp32", cells)
            self._leaving = b.buffer(f"{self.name}.leaving", most * folded.row, "fp16", cells)

    def _inlet(
        self,
        core: CoreClass,
        row: int,
        share: tuple[int, int],
        color: int,
        back: tuple[int, str] | None,
        batch: Batch,
    ) -> None:
        """Keeps images and unfolds them, forward and backward."""
        feed = self.products.feed

        def receive(image: Buffer) -> None:
            # Beside the deals, which go first: the next image comes in while the row is busy.
            target = image.dsd(0, self.windows.size)
            core.mov(target, fabric_in(color), dtype="fp16", start="none", thread=RECEIVE, priority="low")

        with core.loop(batch.rounds):
            receive(self._images[0])
            for slot, image in enumerate(self._images):
                core.join(RECEIVE)
                if slot < batch.in_flight - 1:
                    receive(self._images[slot + 1])
                self._unfolding.emit(core, feed, image, *share)
            for image in self._images:
                self._unfolding.emit(core, feed, image, *share)
                if back is not None:
                    self._fold(core, row, share, back[0])
            if back is not None:
                core.join(CHAIN)

    def _fold(self, core: CoreClass, row: int, share: tuple[int, int], back: int) -> None:
        """The sums of a sample, line by line of the result; after each the finished lines leave."""
        finished, columns = self.folded.finished(), self.windows.columns.results
        for line, count in self.folded.stretches():
            with core.loop(count):
                with core.loop(columns):
                    self._collect(core, share, At(line, 0, "yx"))
                self._emit(core, row, finished[line], back)

    def _collect(self, core: CoreClass, share: tuple[int, int], at: At) -> None:
        """Sums of a pixel, added where its elements came from."""
        for run in self._unfolding.parts(*share):
            part = self.folded.part(self._gradients, run, at)
            core.add(
                part, part, fabric_in(self.products.along[0]), start="none", thread=COLLECT, priority="high"
            )

    def _emit(self, core: CoreClass, row: int, lines: tuple[int, int], back: int) -> None:
        """Finished lines, with those of the rows below, go to the row above; their place is cleared."""
        first, count = lines
        if not count:
            return
        folded, sums = self.folded, self.products.sums
        core.join(COLLECT)
        core.join(CHAIN)
        place, step = folded.inside + first * folded.pitch, count * folded.pitch
        for j in range(count):
            line = self._gradients.dsd(place + j * folded.pitch, folded.row, step=step)
            core.mov(self._leaving.dsd(j * folded.row, folded.row), line, start="none")
        finished = self._gradients.dsd(place, (count - 1) * folded.pitch + folded.row, step=step)
        core.mov(finished, scalar(0.0), start="none")
        target = fabric_out(sums[row % 2] if row else back)
        leaving = self._leaving.dsd(0, count * folded.row)
        if row == len(self.products.inputs) - 1:
            core.mov(target, leaving, dtype="fp16", start="none", thread=CHAIN)
        else:
            below = fabric_in(sums[(row + 1) % 2])
            core.add(target, leaving, below, dtype="fp16", start="none", thread=CHAIN)

    def _route_chain(self, b: Builder, back: tuple[int, str]) -> None:
        """Up the column of the inlets, on the colors of sums, which lie free there."""
        col = self.left - 1
        b.route(back[0], (self.top, col), rx="R", tx=back[1])
        for i in range(1, len(self.products.inputs)):
            color = self.products.sums[i % 2]
            b.route(color, (self.top + i, col), rx="R", tx="N")
            b.route(color, (self.top + i - 1, col), rx="S", tx="R")

    def _gradient_inlet(self, b: Builder, color: int, batch: Batch) -> None:
        """Deals the gradients of a pixel to the columns of the last row; places beyond N take zeros."""
        products, cell = self.products, self.gradient_inlet
        core = b.core_class(f"{self.name} gradients in")
        shares: list[list[tuple[Operand, int]]] = []
        for col in range(self.cols):
            sent = products.sent(col)
            share: list[tuple[Operand, int]] = [(fabric_in(color), sent)]
            if sent < products.outputs:
                zeros = b.buffer(f"{self.name}.spare", products.outputs - sent, "fp16", cell)
                share.append((zeros.dsd(), products.outputs - sent))
            shares.append(share)
        with core.loop(batch.samples), core.loop(self.tokens):
            deal(core, products.deal, shares, self.cols)
        b.place(core, cell)
        route_takers(b, products.deal, cell, products.senders, 0, "E")

    # ---- values and cycles -----------------------------------------------------------------------------------------

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """Filters (N, C, r, s) as (N, K): runs of taps and channels, filled up; the bias (N,)."""
        windows, (name, *bias) = self.windows, self.kernel.parameters
        lines = windows.lines.taps
        runs = weights[name].transpose(0, 2, 3, 1).reshape(self.features, lines, -1)
        wide = np.zeros((self.features, lines, windows.run), np.float32)
        wide[:, :, : runs.shape[2]] = runs
        return self.products.values(wide.reshape(self.features, -1), weights[bias[0]] if bias else None)

    @property
    def reads(self) -> tuple[str, ...]:
        """Gradients and new weights."""
        return self.products.reads

    def read(self, buffers: Mapping[str, Floats]) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """As the contract says; filters (N, C, r, s)."""
        held, windows = [buffers[name] for name in self.reads], self.windows
        out: list[dict[str, Floats]] = [{}, {}]
        for found, tiles in zip(out, held[:2], strict=True):
            lines, taps, c = windows.lines.taps, windows.columns.taps, windows.channels
            runs = self.products.weight_of(tiles).reshape(self.features, lines, windows.run)
            filters = runs[:, :, : taps * c].reshape(self.features, lines, taps, c)
            found[self.kernel.parameters[0]] = filters.transpose(0, 3, 1, 2)
        for found, bias in zip(out, held[2:], strict=False):
            found[self.kernel.parameters[1]] = self.products.bias_of(bias)
        return out[0], out[1]

    def issued_cycles(self) -> float:
        """Of the busiest compute core, both ways."""
        return self.products.issued_cycles()

    def update_cycles(self) -> float:
        """Of the busiest compute core."""
        return self.products.update_cycles()
