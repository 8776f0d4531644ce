"""Direct convolution with streamed weights as a fabric program: image lines over rows, channels and taps over columns.

A row of cores stores a strip of lines (:mod:`wse_sim.kernels.families.conv2d.strip`), a column f = ceil(c r s
/ columns) of the c r s (channel, tap) pairs.  Before the product every core sends its first lines up and its
last lines down and receives the lines around its own.  A tap is a displacement into these lines, so no
unfolded copy is stored: a weight triggers a multiply-accumulate over the pixels of a line at that
displacement; with l lines per core it arrives l times, once per line.  Sums leave along the rows.

Groups occupy adjacent columns; the program contains one group. If a column has whole groups (depthwise), its
sums are complete and stay on their core.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from wse_sim.fabric.format.builder import Buffer, Builder, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.lines import new_builder
from wse_sim.kernels.blocks.triggered_products import (
    FEED,
    SUMS,
    TriggeredShape,
    bind_queues,
    route_shape,
    send_sums,
)
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.kernels.contract.family import Array, Attrs, Case, Dims, ProgramOptions, Tiling
from wse_sim.kernels.families.conv2d.attributes import Conv2dAttributes
from wse_sim.kernels.families.conv2d.reference import compute, gradient
from wse_sim.kernels.families.conv2d.strip import Strip, Tap, strip_of

UP, DOWN = (3, 4), (5, 6)  # colors of lines that move up and down, by parity of the row


@dataclass(frozen=True)
class Column:
    """Taps of a column of cores, as (tap, first channel, channels); channels are counted from `first`."""

    first: int
    runs: tuple[tuple[Tap, int, int], ...]


@dataclass(frozen=True)
class LaneConvolution:
    """A convolution on one lane: strip, channels, filters and columns; the `groups` of a column run in
    sequence."""

    strip: Strip
    channels: int
    filters: int
    columns: tuple[Column, ...]
    local: int  # most channels of a column
    groups: int = 1
    kept: bool = False  # sums stay in place


def layer_of(dims: Dims, tiling: Tiling, attrs: Attrs) -> LaneConvolution:
    """Return the convolution of one group, or of the groups of one column."""
    groups, lane = Conv2dAttributes.of(attrs).groups, int(tiling.cols) // int(tiling.lanes)
    strip, taps = strip_of(dims, tiling, attrs), int(dims["r"]) * int(dims["s"])
    channels, filters = int(dims["c"]) // groups, int(dims["k"]) // groups
    cols = max(1, lane // groups)
    f = ceil_div(channels * taps, cols)
    columns = []
    for start in range(0, cols * f, f):
        first, end = start // taps, min(start + f, channels * taps)
        runs = []
        for number, tap in enumerate(strip.taps):
            low, high = ceil_div(max(0, start - number), taps), ceil_div(max(0, end - number), taps)
            if high > low:
                runs.append((tap, low - first, high - low))
        columns.append(Column(first, tuple(runs)))
    local = max((low + n for column in columns for _, low, n in column.runs), default=1)
    kept = groups >= lane and groups > 1
    return LaneConvolution(
        strip, channels, filters, tuple(columns), local, ceil_div(groups, lane) if kept else 1, kept
    )


def convolution_program(dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
    """Return the program of a convolution, forward or transposed, with its values.

    Raises
    ------
    KernelError
        For shapes without a program (see :func:`wse_sim.kernels.families.conv2d.strip.strip_of`).
    """
    layer = layer_of(dims, tiling, options.get("attrs") or {})
    program = _Program(layer, wafer, str(options.get("dtype", "fp16")) == "fp32")
    for i in range(1, layer.strip.rows + 1):
        for j in range(1, len(layer.columns) + 1):
            program.core(i, j)
    return program.case(dims, int(options.get("seed", 0)))


class _Program:
    """Buffers, routes and cores of a layer."""

    def __init__(self, layer: LaneConvolution, wafer: Wafer, wide: bool) -> None:
        self.layer, self.strip = layer, layer.strip
        strip = layer.strip
        self.at_rest, self.dtype = ("fp32", "fp32") if wide else ("fp16", "mixed")
        banks = wafer.sram_banks
        # Vectors of one tap have the same bank offset from the sums in all channels.
        self.phase_pitch = banks // 2 * ceil_div(strip.reach, banks // 2)
        self.channel_pitch = strip.phases * self.phase_pitch
        self.line_pitch = layer.local * layer.groups * self.channel_pitch
        self.repeat = strip.lines
        self.words_per_round = [sum(n for _, _, n in column.runs) * self.repeat for column in layer.columns]
        rounds = layer.groups * layer.filters
        self.shape = TriggeredShape(
            strip.rows, len(layer.columns), rounds, max(self.words_per_round), strip.results, True
        )
        self.builder = b = new_builder(strip.rows + 1, len(layer.columns) + 1, wafer)
        bind_queues(b)
        self.words = b.buffer("words", max(self.words_per_round) * rounds, "fp32", self.shape.at(0, ...))
        kept = strip.results * (rounds if layer.kept else 1)
        inner = self.shape.at(..., ...)
        self.y = b.buffer("y", kept, "fp32", inner, bank=0)
        self.x = b.buffer("x", strip.held * self.line_pitch, self.at_rest, inner, bank=self._bank(banks))
        self._edges()
        self._routes()

    def _bank(self, banks: int) -> int:
        """Return the bank of the image that has the fewest conflicts with reads of the sums."""
        size = 1 if self.at_rest == "fp16" else 2
        starts = [(2 * tap.cls * self._class_size, size * tap.position) for tap in self.strip.taps]
        half = banks // 2
        return min(range(1, 1 + half), key=lambda bank: sum((bank + x - y) % half == 0 for y, x in starts))

    @property
    def _class_size(self) -> int:
        return self.strip.lines * self.strip.pixels

    def _edges(self) -> None:
        """Write the feeders of every column, and the collectors."""
        b, shape, rounds = self.builder, self.shape, self.shape.rounds
        for j, count in enumerate(self.words_per_round, 1):
            feeder = b.core_class(f"feeder {j}")
            if count:
                feeder.mov(fabric_out(FEED), self.words.dsd(0, count * rounds), start="none")
            b.place(feeder, shape.at(0, j))
        if not self.layer.kept:
            sums = b.buffer("sums", shape.v * rounds, "fp32", shape.at(..., 0))
            collector = b.core_class("collector")
            collector.mov(sums.dsd(), fabric_in(SUMS[1]), start="none")
            b.place(collector, shape.at(..., 0))

    def _routes(self) -> None:
        b, strip, inner = self.builder, self.strip, slice(1, None)
        if self.layer.kept:
            b.route(FEED, (0, inner), rx="R", tx="S")
            b.route(FEED, (inner, inner), rx="N", tx="RS")
            b.route(FEED, (strip.rows, inner), rx="N", tx="R")
        else:
            route_shape(b, self.shape)
        exchange_routes(b, strip)

    def core(self, i: int, j: int) -> None:
        """Write the core in row i and column j: the exchange of lines, then the rounds."""
        core = self.builder.core_class(f"core {i} {j}")
        exchange(core, self.x, self.strip, i, self.line_pitch, self.at_rest)
        layer = self.layer
        with core.loop(layer.groups), core.loop(layer.filters):
            seen: set[int] = set()
            for tap, low, count in layer.columns[j - 1].runs:
                self._tap(core, tap, low, count, tap.cls not in seen)
                seen.add(tap.cls)
            if not layer.kept:
                send_sums(core, self.shape, j, self.y)
        self.builder.place(core, (i, j))

    def _tap(self, core: CoreClass, tap: Tap, low: int, count: int, fresh: bool) -> None:
        """Write the words of one tap: one line of all channels, or all lines channel by channel."""
        strip, pixels = self.strip, self.strip.pixels
        start = (
            tap.line * self.line_pitch
            + low * self.channel_pitch
            + tap.phase * self.phase_pitch
            + tap.position
        )
        block = tap.cls * self._class_size
        group = self.layer.local * self.channel_pitch if self.layer.groups > 1 else 0
        how: dict[str, Any] = {"triggered": True, "dtype": self.dtype, "start": "none"}
        kept = (
            {"step": strip.results, "outer_step": strip.results * self.layer.filters}
            if self.layer.kept
            else {}
        )
        if strip.lines == 1:
            x = self.x.dsd(start, pixels, outer_step=group)
            y = self.y.dsd(block, pixels, **kept)
            channel = self.channel_pitch
            core.fmac_vectors(
                y, fabric_in(FEED), x, pixels, b_stride=channel, length=count, fresh=fresh, **how
            )
            return
        how |= {"dst_stride": pixels, "b_stride": tap.step * self.line_pitch, "length": strip.lines}
        singles = count if self.layer.kept else 1
        for channel in range(singles):
            x = self.x.dsd(start + channel * self.channel_pitch, pixels, outer_step=group)
            y = self.y.dsd(block, pixels, **kept)
            core.fmac_vectors(y, fabric_in(FEED), x, pixels, fresh=fresh and channel == 0, **how)
        if count > singles:
            with core.loop(count - singles):
                x = self.x.dsd(start + self.channel_pitch, pixels, step=self.channel_pitch)
                core.fmac_vectors(self.y.dsd(block, pixels), fabric_in(FEED), x, pixels, **how)

    def case(self, dims: Dims, seed: int) -> Case:
        """Return the case with integer values, whose sums are exact in any order; the reference is the
        family's `compute`."""
        layer, strip = self.layer, self.strip
        rng = np.random.default_rng(seed)
        channels, filters = layer.groups * layer.channels, layer.filters
        image = rng.integers(-2, 3, (strip.height, strip.width, channels)).astype(np.float32)
        weights = rng.integers(-2, 3, (strip.r, strip.s, layer.channels, layer.groups * filters))
        weights = weights.astype(np.float32)
        held = np.stack([self._held(image, column) for column in layer.columns], axis=1)
        words = np.zeros((1, len(layer.columns), self.words.length), np.float32)
        for j, column in enumerate(layer.columns):
            parts = [
                weights[tap.i, tap.j, column.first + low : column.first + low + count]
                for tap, low, count in column.runs
            ]
            if parts:
                flat = np.repeat(np.concatenate(parts), self.repeat, axis=0).T.reshape(-1)
                words[0, j, : flat.size] = flat
        result = reference(strip, image, weights, layer.groups, (int(dims["out_h"]), int(dims["out_w"])))
        wanted = blocks(strip, result)  # (rows, filters, results)
        name = "y" if layer.kept else "sums"
        return Case(
            self.builder.build(),
            self.builder.config,
            {"words": words, "x": held},
            {name: wanted.reshape(strip.rows, 1, -1)},
        )

    def _held(self, image: Array, column: Column) -> Array:
        """Return the lines (rows, stored elements) of a column's channels; lines that a neighbour sends are
        zero."""
        layer, strip = self.layer, self.strip
        local, pitch = layer.local * layer.groups, (strip.phases, self.phase_pitch)
        held = np.zeros((strip.rows, strip.held, local, *pitch), np.float32)
        channels = image[..., column.first : column.first + local]
        for i, line in np.ndindex(strip.rows, strip.held):
            source = i * strip.own + line - strip.above
            sent = (line < strip.above and i > 0) or (line >= strip.above + strip.own and i < strip.rows - 1)
            if sent or not 0 <= source < strip.height:
                continue
            for pixel in range(strip.width):
                position, phase = divmod(pixel + strip.left, strip.phases)
                if position < self.phase_pitch:
                    held[i, line, : channels.shape[-1], phase, position] = channels[source, pixel]
        return held.reshape(strip.rows, -1)


def exchange(core: CoreClass, x: Buffer, strip: Strip, i: int, pitch: int, dtype: str) -> None:
    """Write the exchange of row i (from 1): send its first lines up and last lines down, receive the adjacent
    ones."""
    first, own = strip.above, strip.own
    up, down = i > 1 and strip.below > 0, i < strip.rows and strip.above > 0
    if up:
        core.mov(fabric_out(UP[i % 2]), x.dsd(first * pitch, strip.below * pitch), dtype=dtype, thread=1)
    if down:
        last = x.dsd((first + own - strip.above) * pitch, strip.above * pitch)
        core.mov(fabric_out(DOWN[i % 2]), last, dtype=dtype, thread=2)
    if i > 1 and strip.above:
        core.mov(x.dsd(0, strip.above * pitch), fabric_in(DOWN[(i - 1) % 2]), dtype=dtype)
    if i < strip.rows and strip.below:
        core.mov(x.dsd((first + own) * pitch, strip.below * pitch), fabric_in(UP[(i + 1) % 2]), dtype=dtype)
    # Sums share the output queue with the lines and must not overtake them.
    for thread, sent in ((1, up), (2, down)):
        if sent:
            core.join(thread)


def exchange_routes(b: Builder, strip: Strip) -> None:
    """Route lines from every row to the rows above and below."""
    inner = slice(1, None)
    for i in range(1, strip.rows + 1):
        if i > 1:
            if strip.below:
                b.route(UP[i % 2], (i, inner), rx="R", tx="N")
            if strip.above:
                b.route(DOWN[(i - 1) % 2], (i, inner), rx="N", tx="R")
        if i < strip.rows:
            if strip.above:
                b.route(DOWN[i % 2], (i, inner), rx="R", tx="S")
            if strip.below:
                b.route(UP[(i + 1) % 2], (i, inner), rx="S", tx="R")


def reference(strip: Strip, image: Array, weights: Array, groups: int, out: tuple[int, int]) -> Array:
    """Return the result (height, width, filters) of `compute`, or of `gradient` for a transposed
    convolution."""
    how: dict[str, Any] = {"stride": strip.stride, "padding": strip.pad, "groups": groups}
    how["dilation"] = strip.dilation
    if not strip.transposed:
        result = compute(image[None], weights, **how)[0]
        return result[: out[0], : out[1]]
    filters = weights.shape[-1] // groups
    # Filters of the forward pass (r, s, results per group, gradients): channels and filters are swapped.
    turned = weights.reshape(*weights.shape[:3], groups, filters).transpose(0, 1, 4, 3, 2)
    forward = turned.reshape(strip.r, strip.s, filters, -1)
    before = np.zeros((1, *out, weights.shape[-1]), np.float32)
    return gradient(before, forward, image[None], **how)[0][0]


def blocks(strip: Strip, result: Array) -> Array:
    """Return results as (rows, filters, sums of a core): by class, line and pixel; NaN beyond the image."""
    z = strip.stride if strip.transposed else 1
    lines, pixels = strip.rows * strip.lines, strip.pixels
    padded = np.full((lines * z, pixels * z, result.shape[-1]), np.nan, np.float32)
    height, width = min(result.shape[0], lines * z), min(result.shape[1], pixels * z)
    padded[:height, :width] = result[:height, :width]
    parts = [
        padded[u::z, v::z].reshape(strip.rows, strip.lines * pixels, -1).transpose(0, 2, 1)
        for u, v in strip.classes
    ]
    return np.concatenate(parts, axis=-1)
