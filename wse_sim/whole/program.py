"""One fabric program from a pipelined plan: regions, the streams between them, host streams at the edges.

Colors are those of the plan: every stream has its own, host streams two of the host copy, and kernels three (inputs,
and sums alternating by row).  What a bundle needs beside plain routes:

* leaving: every column of the last row sends its outputs on the color of the stream.  Its own router first takes from
  its ramp; its last word turns the switch, and the router passes on what comes from the west.  The last word of the
  westernmost column turns all of them back.
* arriving: the inlet deals words out on the color of the inputs.  The first router of a row takes a word into its
  row and is turned by it: it passes on to the rows below.  A control word after every round resets all of them.

A core works sample row by sample row: multiply-accumulates triggered by the words, then its sums with those from
above.  Cores of the last row round the sums to fp16, add the bias, apply the activation and send from a microthread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.coloring import HOST_COLORS, KERNEL_COLORS
from wse_sim.compiler.streams import HOST
from wse_sim.fabric.format.builder import Builder, Switch, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Command, Program
from wse_sim.graph import Kernel
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole.areas import FabricArea, StreamLinks
from wse_sim.whole.bundles import BundleWay, laid_out
from wse_sim.whole.covered import chain_of, forward_kernel
from wse_sim.whole.layout import PAIR, RegionLayout, issued_cycles
from wse_sim.whole.paths import BACK, direction

# Routers of one position take a command, and one core's leave to overlook it, off a control word, unless told not to.
KEEP = Switch([], pop="never")


@dataclass(frozen=True)
class Whole:
    """A plan as one program; `rows` sample rows pass through."""

    plan: PipelinedPlan
    program: Program
    config: FabricConfig
    layouts: tuple[RegionLayout, ...]
    ways: tuple[BundleWay, ...]
    rows: int

    @property
    def areas(self) -> tuple[FabricArea, ...]:
        """The regions in the order of the plan's stages."""
        rows = max(1, self.plan.stages[0].rows_per_sample)
        return tuple(
            FabricArea(
                one.name,
                slice(one.top, one.last + 1),
                slice(one.left, one.left + one.cols),
                rows * issued_cycles(one, self.plan.wafer),
            )
            for one in self.layouts
        )

    @property
    def stream_links(self) -> tuple[StreamLinks, ...]:
        """The streams, with a link for every bundle."""
        hops: dict[str, list[int]] = {}
        streams = {way.stream.tensor: way.stream for way in self.ways}
        for way in self.ways:
            hops.setdefault(way.stream.tensor, []).append(len(way.cells) - 1)
        return tuple(
            StreamLinks(name, streams[name].width, len(found), streams[name].hops, min(found), max(found))
            for name, found in hops.items()
        )

    def inputs(
        self, weights: dict[str, NDArray[np.float32]], values: NDArray[np.float32]
    ) -> dict[str, NDArray[np.float32]]:
        """Buffers of a run: parameters of the graph by name, and the rows of all samples (rows, K)."""
        out: dict[str, NDArray[np.float32]] = {}
        for layout in self.layouts:
            kernel = forward_kernel(self.plan, layout.name)
            into = [way for way in self.ways if way.stream.consumer == layout.name]
            order = [e for way in sorted(into, key=lambda way: way.bundle) for e in way.elements]
            out |= _weights(layout, kernel, weights, order)
        for way in self.ways:
            if way.stream.producer == HOST:
                words = _chosen(values, way.elements).astype(np.float16).reshape(-1).view(np.float32)
                out[_host_name("in", way)] = words[None, None]
        return out

    def outputs(self, read: dict[str, NDArray[np.float32]]) -> NDArray[np.float16]:
        """(rows, N) from what the host collected."""
        layout = self.layouts[-1]
        found = np.zeros((self.rows, PAIR * ceil_div(layout.n, PAIR)), np.float16)
        for way in self.ways:
            if way.stream.consumer == HOST:
                words = np.ascontiguousarray(read[_host_name("out", way)].reshape(self.rows, -1))
                found[:, way.elements] = words.view(np.float16)
        return found[:, : layout.n]


def whole_program(plan: PipelinedPlan, rows: int) -> Whole:
    """The program through which `rows` sample rows pass.

    Raises
    ------
    ModelError
        If the plan is not the inference of one chain of dense layers with inputs over rows, or cannot be laid out.
    """
    kernels, streams = chain_of(plan)
    layouts, ways = laid_out(plan, kernels, streams)
    wafer = plan.wafer
    config = FabricConfig.from_wafer(wafer)
    b = Builder(wafer.rows, wafer.cols, config)
    first = wafer.colors - HOST_COLORS - KERNEL_COLORS
    feed, sums = first, (first + 1, first + 2)
    for color, queue in ((feed, 0), (sums[0], 2), (sums[1], 3)):
        b.input_queue(color, queue)
    for position, layout in enumerate(layouts):
        into = [way for way in ways if way.stream is streams[position]]
        out = streams[position + 1]
        _Layer(b, layout, rows, feed, sums, out.color).build(into)
    for way in ways:
        _route_way(b, way, wafer.cols, layouts)
        _host(b, way, rows, wafer.cols)
    return Whole(plan, b.build(), config, layouts, ways, rows)


# ---- instructions and routes ----------------------------------------------------------------------------------------


@dataclass
class _Layer:
    """Writes one layer into a builder."""

    b: Builder
    layout: RegionLayout
    rows: int  # sample rows
    feed: int
    sums: tuple[int, int]
    color: int  # of the stream that leaves

    def build(self, into: Sequence[BundleWay]) -> None:
        """Buffers, classes and routes of the region."""
        lay, b = self.layout, self.b
        rows, cols = slice(lay.top, lay.last + 1), slice(lay.left, lay.left + lay.cols)
        most = max(len(row.inputs) for row in lay.rows)
        self.y = b.buffer(f"{lay.name}.y", lay.outputs, "fp32", (rows, cols), bank=0)
        self.x = b.buffer(f"{lay.name}.x", most * lay.outputs, "fp16", (rows, cols), bank=2)
        self.outs = [
            b.buffer(f"{lay.name}.out{i}", lay.outputs, "fp16", (lay.last, cols), bank=0) for i in (0, 1)
        ]
        self.bias = b.buffer(f"{lay.name}.bias", lay.outputs, "fp16", (lay.last, cols), bank=2)
        for way in into:
            self._inlet(way)
        for i in range(len(lay.rows) - 1):
            core = b.core_class(f"{lay.name} row {i}")
            with core.loop(self.rows):
                self._products(core, i)
                self._pass_on(core, i)
            b.place(core, (lay.top + i, cols))
        self._sum_routes()
        for bundle in range(len(lay.outlets)):
            self._outlet(bundle)

    def _inlet(self, way: BundleWay) -> None:
        """The core that takes a bundle in, and the routes of the rows that it feeds."""
        lay, b = self.layout, self.b
        fed = lay.fed[way.bundle]
        core = b.core_class(f"{lay.name} inlet {way.bundle}")
        words = [len(lay.rows[i].inputs) // PAIR for i in fed]
        with core.loop(self.rows):
            with core.loop(min(words)):
                self._deal(core, way.stream.color, len(fed), len(fed))
            if max(words) > min(words):
                self._deal(core, way.stream.color, words.count(max(words)), len(fed))
        b.place(core, lay.inlet(way.bundle))
        b.route(self.feed, lay.inlet(way.bundle), rx="R", tx="E", switch=KEEP)
        onward = "E" if lay.cols > 1 else ""
        for i in fed:
            passing = Switch([{"tx": "S"}], pop="never") if i != fed[-1] else KEEP
            back = "W" if i == fed[0] else "N"
            b.route(self.feed, (lay.top + i, lay.left), rx=back, tx="R" + onward, switch=passing)
            for j in range(1, lay.cols):
                more = "E" if j < lay.cols - 1 else ""
                b.route(self.feed, (lay.top + i, lay.left + j), rx="W", tx="R" + more, switch=KEEP)

    def _deal(self, core: CoreClass, color: int, count: int, of: int) -> None:
        """A word to each of the first `count` of `of` rows."""
        for i in range(count):
            advance = "path" if i < of - 1 else None
            core.mov(
                fabric_out(self.feed, advance), fabric_in(color), length=PAIR, dtype="fp16", start="none"
            )
        if of > 1:
            core.control(self.feed, Command.RESET, start="none")

    def _products(self, core: CoreClass, i: int) -> None:
        v = self.layout.outputs
        core.fmac_vectors(
            self.y.dsd(), fabric_in(self.feed), self.x.dsd(0, v), v,
            b_stride=v, length=len(self.layout.rows[i].inputs), dtype="mixed", wire="fp16x2", start="none",
            triggered=True, fresh=True,
        )  # fmt: skip

    def _pass_on(self, core: CoreClass, i: int) -> None:
        here, above = self.sums[i % 2], self.sums[(i + 1) % 2]
        if i:
            core.add(fabric_out(here), self.y.dsd(), fabric_in(above), start="none")
        else:
            core.mov(fabric_out(here), self.y.dsd(), start="none")

    def _sum_routes(self) -> None:
        lay, last = self.layout, len(self.layout.rows) - 1
        cols = slice(lay.left, lay.left + lay.cols)
        for i in range(last + 1):
            if i < last:
                self.b.route(self.sums[i % 2], (lay.top + i, cols), rx="R", tx="S")
            if i:
                self.b.route(self.sums[(i + 1) % 2], (lay.top + i, cols), rx="N", tx="R")

    def _outlet(self, bundle: int) -> None:
        """The last row's columns of a bundle: finish the sums and send."""
        lay, b = self.layout, self.b
        cols = lay.bundle_cols(bundle)
        kinds: dict[tuple[int, str | None], list[int]] = {}
        for col in cols:
            advance = None if len(cols) == 1 else ("path" if col == cols[0] else "local")
            kinds.setdefault((lay.sent(col), advance), []).append(col)
        for (length, advance), members in kinds.items():
            core = b.core_class(f"{lay.name} last row, {length} {advance or ''} of bundle {bundle}")
            with core.loop(self.rows // 2):
                for turn in (0, 1):
                    self._finish(core, turn, length, advance)
            if self.rows % 2:
                self._finish(core, 0, length, advance)
            for col in members:
                b.place(core, (lay.last, lay.left + col))

    def _finish(self, core: CoreClass, turn: int, length: int, advance: str | None) -> None:
        """A sample row of the last row.  While its outputs wait for their turn on the link, the next go beside them."""
        lay, out, last = self.layout, self.outs[turn], len(self.layout.rows) - 1
        self._products(core, last)
        if last:
            core.add(out.dsd(), self.y.dsd(), fabric_in(self.sums[(last + 1) % 2]), start="none")
        else:
            core.mov(out.dsd(), self.y.dsd())
        for item in lay.items:
            if item == "bias":
                core.add(out.dsd(), out.dsd(), self.bias.dsd(), dtype="fp16")
            else:
                core.max(out.dsd(), out.dsd(), scalar(0.0), dtype="fp16")
        core.join(1)
        core.mov(fabric_out(self.color, advance), out.dsd(0, length), dtype="fp16", start="none", thread=1)


def _route_way(b: Builder, way: BundleWay, cols: int, layouts: Sequence[RegionLayout]) -> None:
    """Routes of one bundle: its columns turn by turn, then every cell of its way."""
    color, cells = way.stream.color, way.cells
    from_host, to_host = way.stream.producer == HOST, way.stream.consumer == HOST
    last = ("E" if cells[-1][1] == cols - 1 else "W") if to_host else "R"
    steps = [direction(a, c) for a, c in pairwise(cells)]
    towards = [*steps, last]
    if from_host:
        arriving = "W" if cells[0][1] == 0 else "E"
        b.route(color, cells[0], rx=arriving, tx=towards[0])
    else:
        layout = next(one for one in layouts if one.name == way.stream.producer)
        members = layout.bundle_cols(way.bundle)
        for col in members:
            onward = towards[0] if col == members[-1] else "E"
            passing = Switch([{"rx": "W"}], ring=True) if col != members[0] else None
            b.route(color, (layout.last, layout.left + col), rx="R", tx=onward, switch=passing)
    for cell, came, onward in zip(cells[1:], steps, towards[1:], strict=True):
        b.route(color, cell, rx=BACK[came], tx=onward)


def _host(b: Builder, way: BundleWay, rows: int, cols: int) -> None:
    words = rows * len(way.elements) // PAIR
    if way.stream.producer == HOST:
        row, col = way.cells[0]
        b.host_in(_host_name("in", way), way.stream.color, words, row, "W" if col == 0 else "E")
    if way.stream.consumer == HOST:
        row, col = way.cells[-1]
        b.host_out(_host_name("out", way), way.stream.color, words, row, "E" if col == cols - 1 else "W")


# ---- values ----------------------------------------------------------------------------------------------------------


def _host_name(side: str, way: BundleWay) -> str:
    return f"host {side} {way.bundle}"


def _chosen(values: NDArray[np.float32], elements: Sequence[int]) -> NDArray[np.float32]:
    """Columns of `values` by number; zeros for numbers beyond them, which fill up a word."""
    index = np.asarray(elements)
    held = np.zeros((len(values), len(index)), np.float32)
    real = index < values.shape[1]
    held[:, real] = values[:, index[real]]
    return held


def _weights(
    layout: RegionLayout, kernel: Kernel, weights: dict[str, NDArray[np.float32]], order: Sequence[int]
) -> dict[str, NDArray[np.float32]]:
    """Weights (N, K) and bias (N,) as the buffers of the region; inputs come in `order`."""
    most, v, cols = max(len(row.inputs) for row in layout.rows), layout.outputs, layout.cols
    wide = np.zeros((cols * v, len(order)), np.float32)
    wide[: layout.n] = _chosen(weights[kernel.parameters[0]], order)
    x = np.zeros((len(layout.rows), cols, most, v), np.float32)
    for i, row in enumerate(layout.rows):
        count = len(row.inputs)
        x[i, :, :count] = wide[:, row.inputs].T.reshape(count, cols, v).swapaxes(0, 1)
    out = {f"{layout.name}.x": x.reshape(len(layout.rows), cols, -1)}
    if "bias" in layout.items:
        bias = np.zeros(cols * v, np.float32)
        bias[: layout.n] = weights[kernel.parameters[1]]
        out[f"{layout.name}.bias"] = bias.reshape(1, cols, v)
    return out
