"""A convolution that trains: a product that trains on the pixels of the result, between cores that unfold images and fold gradients.

Symbols: an image of H x W pixels of C channels, q lines and columns of zeros around it; N filters of r x s taps and stride z;
T = H' W' pixels of the result; a row of cores has k of the K = r even(s C) taps and channels.  Beside every row lies one
core, which keeps the images in flight, with their zeros::

    forward     an image arrives beside the work on the one before;  k elements of it per pixel of the result   > row
    backward    the same elements again                                                                        > row
                sums of the row  >  added to an image of gradients in fp32;  a line to which no further sums
                come, plus that of the row below  >  row above; the highest core sends the sum of all rows

Sums of several pixels are under way at a time (AHEAD).  Lines are rounded to fp16 before they are added up over the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from wse_sim.whole.regions.turns import deal, receive_all, route_takers
from wse_sim.whole.trained.contract import HELD_FRACTION, Batch, TrainedKind, TrainedPorts
from wse_sim.whole.trained.products import OWN_COLORS, Products

RECEIVE, COLLECT, CHAIN = 1, 2, 3  # microthreads of the cores beside the rows
AHEAD = 2  # pixels whose elements are sent before the sums of the first one are taken


Pieces = list[tuple[int, int]]
"""(place, elements) of the parts of an image that a row takes for the first pixel of the result."""


@dataclass(frozen=True)
class At:
    """The pixel (y, x) of the result, plus what the loops around an instruction count.

    Two `loops` are of lines and of pixels; one is of pixels, or of lines (`by_line`).
    """

    x: int
    y: int
    loops: int
    by_line: bool = False


@dataclass(frozen=True)
class Window:
    """Where the elements under a filter lie in an image with its zeros.

    Attributes
    ----------
    height, width, channels : int
        H, W and C of the image.
    lines, taps, stride : int
        r, s and z of the filters.
    out_height, out_width : int
        H' and W' of the result.
    """

    height: int
    width: int
    channels: int
    lines: int
    taps: int
    stride: int
    out_height: int
    out_width: int

    @classmethod
    def of(cls, kernel: Kernel) -> Window:
        """The window of a convolution."""
        names = ("h", "w", "c", "r", "s", "stride", "out_h", "out_w")
        return cls(*(int(kernel.dims[name]) for name in names))

    @property
    def around(self) -> int:
        """q, the only number that gives so many lines of the result."""
        spare = (self.out_height - 1) * self.stride + self.lines - self.height
        return max(0, (spare + 1) // 2)

    @property
    def run(self) -> int:
        """Elements of a line under a filter, filled up to whole words."""
        return int(even(self.taps * self.channels))

    @property
    def pitch(self) -> int:
        """Elements from a line of the image with its zeros to the next."""
        return (self.width + 2 * self.around) * self.channels

    @property
    def row(self) -> int:
        """Elements of a line of the image."""
        return self.width * self.channels

    @property
    def size(self) -> int:
        """Elements of an image with its zeros, and of the pixel that fills up the last run."""
        return int(even((self.height + 2 * self.around) * self.pitch + 1))

    @property
    def inside(self) -> int:
        """The first element of the image."""
        return self.around * (self.pitch + self.channels)

    def part(self, held: Buffer, place: int, count: int, at: At) -> Operand:
        """Elements of an image from `place` on for a pixel of the result."""
        over, down = self.stride * self.channels, self.stride * self.pitch
        step = (down if at.by_line else over) if at.loops else 0
        outer_step = down if at.loops == 2 else 0
        return held.dsd(place + at.x * over + at.y * down, count, step=step, outer_step=outer_step)

    def pieces(self, begin: int, end: int) -> Pieces:
        """(place, elements) of elements `begin` to `end` under the first filter."""
        out, first = [], begin
        while first < end:
            line, inside = divmod(first, self.run)
            count = min(end - first, self.run - inside)
            out.append((line * self.pitch + inside, count))
            first += count
        return out

    def finished(self) -> list[tuple[int, int]]:
        """(first, count) of the lines of the image to which no further sums come, after every line of the result."""
        out, done = [], 0
        for y in range(self.out_height):
            ready = min(self.height, max(0, self.stride * (y + 1) - self.around))
            ready = self.height if y == self.out_height - 1 else ready
            out.append((done, ready - done))
            done = ready
        return out


class TrainedConvolution(TrainedKind):
    """Filters at rest; unfolded pixels stream, forward and backward."""

    family = "conv2d"
    title = Convolution.title
    own_colors = OWN_COLORS

    def __init__(
        self, graph: KernelGraph, kernel: Kernel, stage: Stage, wafer: Wafer, needs: frozenset[str]
    ) -> None:
        self.window = Window.of(kernel)
        super().__init__(graph, kernel, stage, wafer, needs)
        self.tokens = self.window.out_height * self.window.out_width
        if self.region.rows < 2:
            raise refused(kernel, "trains in a region of one row, limit two", "use more cores")
        if self.has_dx and self.window.row % PAIR:
            raise refused(
                kernel,
                f"sends gradients of lines of {self.window.row} elements, an odd number, and words hold {PAIR}",
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
        words = self.window.lines * self.window.run // PAIR
        return min(self.region.rows - 1, words) + 1, int(ceil_div(self.features, self._outputs))

    @property
    def _outputs(self) -> int:
        return int(PAIR * ceil_div(ceil_div(self.features, self.compute_cols), PAIR))

    @cached_property
    def products(self) -> Products:
        """The compute cores."""
        items, words = items_of(self.kernel), self.window.lines * self.window.run // PAIR
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
        window, size = self.window, 2 * self.window.size
        passing = 2 * window.height * window.row + self.has_dx * (2 * size + 4 * window.row * window.height)
        held = int(min(HELD_FRACTION * usable, usable - passing) // size)
        return max(0, min(held, int(HELD_FRACTION * usable // self.products.held_bytes(1))))

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
        window, cells = self.window, (slice(self.top, self.last), self.left - 1)
        self._arriving = b.buffer(f"{self.name}.arriving", window.height * window.row, "fp16", cells)
        self._images = b.buffer(f"{self.name}.images", batch.in_flight * window.size, "fp16", cells)
        if self.has_dx:
            most = max(count for _, count in window.finished())
            self._folded = b.buffer(f"{self.name}.folded", window.size, "fp32", cells)
            self._leaving = b.buffer(f"{self.name}.leaving", most * window.row, "fp16", cells)

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
        window, d = self.window, batch.in_flight
        pieces = window.pieces(*share)
        with core.loop(batch.rounds):
            receive_all(core, color, self._arriving.dsd(), RECEIVE)
            for slot in range(d):
                core.join(RECEIVE)
                inside = self._images.dsd(slot * window.size + window.inside, window.row, step=window.pitch)
                with core.loop(window.height):
                    line = self._arriving.dsd(0, window.row, step=window.row)
                    core.mov(inside, line, dtype="fp16", start="none")
                if slot < d - 1:
                    receive_all(core, color, self._arriving.dsd(), RECEIVE)
                self._unfold_all(core, slot, pieces)
            for slot in range(d):
                if back is None:
                    self._unfold_all(core, slot, pieces)
                else:
                    self._fold_all(core, row, slot, pieces, back[0])
            if back is not None:
                core.join(CHAIN)

    def _unfold_all(self, core: CoreClass, slot: int, pieces: Pieces) -> None:
        with core.loop(self.window.out_height), core.loop(self.window.out_width):
            self._unfold(core, slot, pieces, At(0, 0, 2))

    def _unfold(self, core: CoreClass, slot: int, pieces: Pieces, at: At) -> None:
        """Elements of a row of cores for one pixel of the result."""
        for place, count in pieces:
            part = self.window.part(self._images, slot * self.window.size + place, count, at)
            core.mov(fabric_out(self.products.feed), part, dtype="fp16", start="none")

    def _fold_all(self, core: CoreClass, row: int, slot: int, pieces: Pieces, back: int) -> None:
        """A sample backward: elements again, and sums of the row, AHEAD pixels later."""
        window = self.window
        ahead, finished = min(AHEAD, window.out_width), window.finished()
        for x in range(ahead):
            self._unfold(core, slot, pieces, At(x, 0, 0))
        for y, lines in _stretches(finished[:-1]):
            with core.loop(lines):
                self._fold_line(core, slot, pieces, y, ahead, more=True)
                self._emit(core, row, finished[y], back, looped=True)
        self._fold_line(core, slot, pieces, window.out_height - 1, ahead, more=False)
        self._emit(core, row, finished[-1], back, looped=False)

    def _fold_line(
        self, core: CoreClass, slot: int, pieces: Pieces, y: int, ahead: int, *, more: bool
    ) -> None:
        """Sums of a line of the result, plus what the loop around it counts; elements of the next one if there is `more`."""
        out_width, level = self.window.out_width, int(more)
        with core.loop(out_width - ahead):
            self._collect(core, pieces, At(0, y, 1 + level))
            self._unfold(core, slot, pieces, At(ahead, y, 1 + level))
        for x in range(ahead):
            self._collect(core, pieces, At(out_width - ahead + x, y, level, by_line=True))
            if more:
                self._unfold(core, slot, pieces, At(x, y + 1, level, by_line=True))

    def _collect(self, core: CoreClass, pieces: Pieces, at: At) -> None:
        """Sums of a pixel, added where its elements came from."""
        for place, count in pieces:
            part = self.window.part(self._folded, place, count, at)
            core.add(
                part, part, fabric_in(self.products.along[0]), start="none", thread=COLLECT, priority="high"
            )

    def _emit(self, core: CoreClass, row: int, lines: tuple[int, int], back: int, *, looped: bool) -> None:
        """Finished lines, with those of the rows below, go to the row above; their place is cleared."""
        first, count = lines
        if not count:
            return
        window, sums = self.window, self.products.sums
        core.join(COLLECT)
        core.join(CHAIN)
        place, step = window.inside + first * window.pitch, count * window.pitch * looped
        for j in range(count):
            line = self._folded.dsd(place + j * window.pitch, window.row, step=step)
            core.mov(self._leaving.dsd(j * window.row, window.row), line, start="none")
        finished = self._folded.dsd(place, (count - 1) * window.pitch + window.row, step=step)
        core.mov(finished, scalar(0.0), start="none")
        target = fabric_out(sums[row % 2] if row else back)
        leaving = self._leaving.dsd(0, count * window.row)
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
                zeros = b.buffer(f"{self.name}.zeros", products.outputs - sent, "fp16", cell)
                share.append((zeros.dsd(), products.outputs - sent))
            shares.append(share)
        with core.loop(batch.samples), core.loop(self.tokens):
            deal(core, products.deal, shares, self.cols)
        b.place(core, cell)
        route_takers(b, products.deal, cell, products.senders, 0, "E")

    # ---- values and cycles -----------------------------------------------------------------------------------------

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """Filters (N, C, r, s) as (N, K): runs of taps and channels, filled up; the bias (N,)."""
        window, (name, *bias) = self.window, self.kernel.parameters
        runs = weights[name].transpose(0, 2, 3, 1).reshape(self.features, window.lines, -1)
        wide = np.zeros((self.features, window.lines, window.run), np.float32)
        wide[:, :, : runs.shape[2]] = runs
        return self.products.values(wide.reshape(self.features, -1), weights[bias[0]] if bias else None)

    @property
    def reads(self) -> tuple[str, ...]:
        """Gradients and new weights."""
        return self.products.reads

    def read(self, buffers: Mapping[str, Floats]) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """As the contract says; filters (N, C, r, s)."""
        held, window = [buffers[name] for name in self.reads], self.window
        out: list[dict[str, Floats]] = [{}, {}]
        for found, tiles in zip(out, held[:2], strict=True):
            runs = self.products.weight_of(tiles).reshape(self.features, window.lines, window.run)
            real = runs[:, :, : window.taps * window.channels]
            filters = real.reshape(self.features, window.lines, window.taps, window.channels)
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


def _stretches(finished: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """(first, number) of lines of the result after which as many lines of the image are finished."""
    out: list[tuple[int, int]] = []
    for y, (_, count) in enumerate(finished):
        if out and finished[out[-1][0]][1] == count:
            out[-1] = (out[-1][0], out[-1][1] + 1)
        else:
            out.append((y, 1))
    return out
