"""Weight gradient of a convolution with streamed weights as a fabric program.

The image is stationary as in :mod:`wse_sim.kernels.families.conv2d.convolve`, channels innermost; the
gradients of one filter come along the rows, one word per pixel of the strip.  A word is multiplied by the s
taps of its line in one instruction, because those pixels and their channels are one contiguous vector. It
arrives once per line of taps.  A core sums f = r s c products, its fraction of a filter's gradient, and
passes the sums up the column.

Columns share the channels, or, with more columns than channels, the lines of taps of a channel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from wse_sim.errors import KernelError
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
from wse_sim.kernels.contract.family import Case, Dims, ProgramOptions, Tiling, asked
from wse_sim.kernels.families.conv2d.attributes import Conv2dAttributes
from wse_sim.kernels.families.conv2d.convolve import exchange, exchange_routes
from wse_sim.kernels.families.conv2d.reference import gradient
from wse_sim.kernels.families.conv2d.strip import Strip, strip_of


@dataclass(frozen=True)
class Share:
    """Partition over the columns of cores: `channels` each, or `parts` columns per channel with `lines` of taps."""

    columns: int
    channels: int
    parts: int
    lines: int

    def of(self, j: int) -> tuple[int, int]:
        """(first channel, first line of taps) of column j (from 0)."""
        return j // self.parts * self.channels, j % self.parts * self.lines


def share_of(channels: int, r: int, lane: int) -> Share:
    """Return the partition over the columns of a lane."""
    if channels >= lane:
        each = ceil_div(channels, lane)
        return Share(ceil_div(channels, each), each, 1, r)
    lines = ceil_div(r, lane // channels)
    parts = ceil_div(r, lines)
    return Share(channels * parts, 1, parts, lines)


def gradient_program(dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
    """Return the program and the values of the filters' gradient; dims are those of the forward convolution.

    Raises
    ------
    KernelError
        For transposed and dilated convolutions, and for shapes without a program.
    """
    _, dtype, attrs = asked(options)
    if Conv2dAttributes.of(attrs).transposed:
        raise KernelError("conv2d: the weight gradient of a transposed convolution has no fabric program")
    if Conv2dAttributes.of(attrs).dilation > 1:
        raise KernelError(
            "conv2d: the weight gradient of a dilated convolution has no fabric program (its taps are no contiguous "
            "vector); use --timing model"
        )
    groups, lane = Conv2dAttributes.of(attrs).groups, int(tiling.cols) // int(tiling.lanes)
    strip, filters = strip_of(dims, tiling, attrs), max(1, int(dims["k"]) // groups)
    channels = int(dims["c"]) // groups * ceil_div(groups, lane)
    share = share_of(channels, strip.r, max(1, lane // groups))
    at_rest, dtype = ("fp32", "fp32") if dtype == "fp32" else ("fp16", "mixed")
    vector = strip.s * share.channels
    tokens = strip.lines * strip.pixels
    shape = TriggeredShape(
        share.columns, strip.rows, filters, tokens * share.lines, vector * share.lines, False
    )
    b = new_builder(*shape.size, wafer)
    bind_queues(b)
    pixels = max(strip.stride * (strip.pixels - 1) + strip.s, strip.width + strip.pad)
    pitch = pixels * share.channels
    words = b.buffer("words", shape.f * filters, "fp32", shape.at(0, ...))
    sums = b.buffer("sums", shape.v * filters, "fp32", shape.at(..., 0))
    y = b.buffer("y", shape.v, "fp32", shape.at(..., ...), bank=0)
    lines = strip.held + share.lines * share.parts - strip.r  # the last part may read beyond the taps
    bank = _bank(strip, share, pitch, 1 if at_rest == "fp16" else 2)
    x = b.buffer("x", lines * pitch, at_rest, shape.at(..., ...), bank=bank)
    _edges(b, shape, words, sums)
    for j in range(share.columns):
        for i in range(1, strip.rows + 1):
            core = b.core_class(f"core {i} {j}")
            exchange(core, x, strip, i, pitch, at_rest)
            with core.loop(filters):
                _tokens(core, strip, share, (x, y), share.of(j)[1] * pitch, pitch, dtype)
                send_sums(core, shape, i, y)
            b.place(core, (i, 1 + j))
    route_shape(b, shape)
    exchange_routes(b, strip)
    return _case(b, strip, share, shape, (lines, pixels), int(options.get("seed", 0)))


def _bank(strip: Strip, share: Share, pitch: int, size: int) -> int:
    """Return the bank of the image for which the fewest pixels start in the bank of the sums."""
    pixel = strip.stride * share.channels * size
    starts = np.arange(strip.pixels)[:, None] * pixel + np.arange(strip.lines) * strip.stride * pitch * size
    return min(range(1, 5), key=lambda bank: int(np.count_nonzero((starts + bank) % 4 == 0)))


def _edges(b: Builder, shape: TriggeredShape, words: Buffer, sums: Buffer) -> None:
    """Write the feeders at the west and the collectors at the north."""
    feeder, collector = b.core_class("feeder"), b.core_class("collector")
    feeder.mov(fabric_out(FEED), words.dsd(), start="none")
    collector.mov(sums.dsd(), fabric_in(SUMS[1]), start="none")
    b.place(feeder, shape.at(0, ...))
    b.place(collector, shape.at(..., 0))


def _tokens(
    core: CoreClass, strip: Strip, share: Share, buffers: tuple[Any, Any], start: int, pitch: int, dtype: str
) -> None:
    """Write the products of all pixels: the first pixel replaces the sums, then its line, then the other
    lines."""
    x, y = buffers
    vector = strip.s * share.channels
    pixel, line = strip.stride * share.channels, strip.stride * pitch

    def words(first: int, fresh: bool = False, **steps: int) -> None:
        core.fmac_vectors(
            *(y.dsd(0, vector), fabric_in(FEED), x.dsd(start + first, vector, **steps), vector),
            dst_stride=vector,
            b_stride=pitch,
            length=share.lines,
            dtype=dtype,
            triggered=True,
            fresh=fresh,
            start="none",
        )

    words(0, fresh=True)
    if strip.pixels > 1:
        with core.loop(strip.pixels - 1):
            words(pixel, step=pixel)
    if strip.lines > 1:
        with core.loop(strip.lines - 1), core.loop(strip.pixels):
            words(line, step=pixel, outer_step=line)


def _case(
    b: Builder, strip: Strip, share: Share, shape: TriggeredShape, stored: tuple[int, int], seed: int
) -> Case:
    """Return the case with integer values; the reference is the family's `gradient`."""
    lines, pixels = stored
    rng = np.random.default_rng(seed)
    channels = share.columns // share.parts * share.channels
    image = rng.integers(-2, 3, (1, strip.height, strip.width, channels)).astype(np.float32)
    out = (strip.rows * strip.lines, strip.pixels)
    given = rng.integers(-2, 3, (*out, shape.rounds)).astype(np.float32)
    given[_out_lines(strip) :] = 0.0
    held = np.zeros((strip.rows, share.columns, lines, pixels, share.channels), np.float32)
    for j in range(share.columns):
        first = share.of(j)[0]
        for i, line in np.ndindex(strip.rows, strip.held):
            source = i * strip.own + line - strip.above
            sent = (line < strip.above and i > 0) or (line >= strip.above + strip.own and i < strip.rows - 1)
            if not sent and 0 <= source < strip.height:
                place = slice(strip.pad, strip.pad + strip.width)
                held[i, j, line, place] = image[0, source, :, first : first + share.channels]
    words = given.reshape(strip.rows, strip.lines * strip.pixels, shape.rounds).transpose(0, 2, 1)
    words = np.repeat(words, share.lines, axis=-1).reshape(strip.rows, 1, -1)
    filters = np.zeros((strip.r, strip.s, channels, shape.rounds), np.float32)
    kept = given[None, : _out_lines(strip)]
    wanted = gradient(image, filters, kept, stride=strip.stride, padding=strip.pad)[1]
    sums = np.full((1, share.columns, shape.rounds, share.lines, strip.s, share.channels), np.nan, np.float32)
    for j in range(share.columns):
        first, tap = share.of(j)
        part = wanted[tap : tap + share.lines, :, first : first + share.channels]
        sums[0, j, :, : part.shape[0]] = part.transpose(3, 0, 1, 2)
    inputs = {"words": words, "x": held.reshape(strip.rows, share.columns, -1)}
    return Case(b.build(), b.config, inputs, {"sums": sums.reshape(1, share.columns, -1)})


def _out_lines(strip: Strip) -> int:
    """Return the lines of results of the image."""
    return min(strip.rows * strip.lines, (strip.height + 2 * strip.pad - strip.r) // strip.stride + 1)
