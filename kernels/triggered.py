"""Products in which arriving words trigger multiply-accumulates, as fabric programs (both training mappings).

streamed    weights come down the columns, each triggers over the t tokens at rest; sums leave along rows
gradient    output gradients come along the rows, each triggers over the f features at rest; the sums over
            tokens leave up the columns (weight gradient of the streamed mapping)
stationary  activations come along the rows, each triggers over the n outputs at rest; sums leave up the columns

One lane is built (lanes are equal and independent).  Feeder cores at the head of every line multicast f
words per turn; a data task multiplies the first, accumulates the other f - 1 and passes the sums to its
neighbour, adding what comes from behind; collectors at the far end store them.  Words on the wire are
fp32 (mixed precision: fp16 at rest, fp32 sums).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.base import Case, Tiling
from wse_sim.kernels.equations import ceil_div
from wse_sim.kernels.lines import new_builder

FEED, SUMS = 0, (1, 2)  # colors: words that trigger; sums, alternating by parity


@dataclass(frozen=True)
class Shape:
    """`feeds` cores along a multicast, `sums` along a reduction; f words per turn over vectors of v."""

    feeds: int
    sums: int
    turns: int
    f: int
    v: int
    vertical: bool  # words come down the columns

    def at(self, feed: Any, total: Any) -> tuple[Any, Any]:
        """Place of a position along the feed and along the sums."""
        return (feed, total) if self.vertical else (total, feed)


def shape_of(dims: Mapping[str, Any], tiling: Tiling) -> Shape:
    """The shape of one lane of the tiling."""
    m, k, n = (int(dims[name]) for name in "mkn")
    rows, cols, lanes = int(tiling.rows), int(tiling.cols), int(tiling.lanes)
    if tiling.mapping == "streamed":
        lane = cols // lanes
        return Shape(rows, lane, n, ceil_div(k, lane), ceil_div(m, lanes * rows), True)
    return Shape(cols, rows, m, ceil_div(k, rows), ceil_div(n, cols), False)


def triggered_program(dims: Mapping[str, Any], tiling: Tiling, wafer: Wafer, **options: Any) -> Case:
    """Program of a product of streamed or stationary weights, or of a streamed weight gradient.

    Raises
    ------
    KernelError
        For a weight gradient of another mapping.
    """
    if options.get("phase", Phase.FORWARD) is not Phase.WEIGHT_GRADIENT:
        return shape_program(shape_of(dims, tiling), wafer, **options)
    if tiling.mapping != "streamed":
        raise KernelError(
            f"the weight gradient of mapping '{tiling.mapping}' has no fabric program; use streamed"
        )
    lane = int(tiling.cols) // int(tiling.lanes)
    tokens = ceil_div(int(dims["k"]), int(tiling.lanes) * int(tiling.rows))
    shape = Shape(lane, int(tiling.rows), int(dims["n"]), tokens, ceil_div(int(dims["m"]), lane), False)
    return shape_program(shape, wafer, **options)


def shape_program(shape: Shape, wafer: Wafer, groups: int = 1, **options: Any) -> Case:
    """The program of a shape; with `groups` that many products follow each other, each with vectors of its own."""
    from wse_sim.fabric.builder import fabric_in, fabric_out
    from wse_sim.fabric.classes import WAVELET

    dtype = "fp32" if str(options.get("dtype", "fp16")) == "fp32" else "mixed"
    b = new_builder(*shape.at(shape.feeds + 1, shape.sums + 1), wafer)
    inner, outer = slice(1, None), slice(1, None)
    turns = groups * shape.turns
    words = b.buffer("words", shape.f * turns, "fp32", shape.at(0, outer))
    sums = b.buffer("sums", shape.v * turns, "fp32", shape.at(inner, 0))
    y = b.buffer("y", shape.v, "fp32", shape.at(inner, outer), bank=0)
    at_rest = "fp32" if dtype == "fp32" else "fp16"
    # The second vector of x, where the accumulation starts, lies two banks off the sums, in every group.
    bank = (2 - shape.v * (2 if at_rest == "fp32" else 1)) % wafer.sram_banks
    block = (
        shape.f * shape.v if groups == 1 else wafer.sram_banks * ceil_div(shape.f * shape.v, wafer.sram_banks)
    )
    x = b.buffer("x", groups * block, at_rest, shape.at(inner, outer), bank=bank)
    word = b.buffer("word", 1, "fp32", shape.at(inner, outer)) if groups > 1 else None

    feeder, collector = b.core_class("feeder"), b.core_class("collector")
    feeder.mov(fabric_out(FEED), words.dsd(), start="none")
    collector.mov(sums.dsd(), fabric_in(SUMS[1]), start="none")
    b.place(feeder, shape.at(0, outer))
    b.place(collector, shape.at(inner, 0))
    for j in range(1, shape.sums + 1):
        core = b.core_class(f"core {j}")
        if word is None:
            with core.body(core.data_task(FEED)):
                core.mul(y.dsd(), x.dsd(0, shape.v), WAVELET, dtype=dtype, start="none")
                _rest_of_turn(core, shape, j, y, x.dsd(shape.v), dtype)
        else:
            # Vectors of the next group: a step of the outer loop.
            with core.loop(groups), core.loop(shape.turns):
                core.mov(word.dsd(), fabric_in(FEED), start="none")
                vectors = x.dsd(0, shape.v, outer_step=block)
                core.mul(y.dsd(), vectors, word.dsd(0, 1, 0), length=shape.v, dtype=dtype, start="none")
                _rest_of_turn(core, shape, j, y, x.dsd(shape.v, outer_step=block), dtype)
        b.place(core, shape.at(inner, j))
    route_shape(b, shape)
    return _case(b, shape, int(options.get("seed", 0)), groups, block)


def _rest_of_turn(core: Any, shape: Shape, j: int, y: Any, vectors: Any, dtype: str) -> None:
    """The other f - 1 words of a turn, then the sums to the neighbour."""
    from wse_sim.fabric.builder import fabric_in

    if shape.f > 1:
        core.fmac_vectors(
            *(y.dsd(), fabric_in(FEED), vectors, shape.v),
            b_stride=shape.v,
            triggered=True,
            length=shape.f - 1,
            dtype=dtype,
            start="none",
        )
    send_sums(core, shape, j, y)


def send_sums(core: Any, shape: Shape, j: int, y: Any) -> None:
    """Position j passes on its sums y, with what comes from behind unless it is the last."""
    from wse_sim.fabric.builder import fabric_in, fabric_out

    if j == shape.sums:
        core.mov(fabric_out(SUMS[j % 2]), y.dsd(), start="none")
    else:
        core.add(fabric_out(SUMS[j % 2]), y.dsd(), fabric_in(SUMS[(j + 1) % 2]), start="none")


def route_shape(b: Any, shape: Shape) -> None:
    """Multicast of the words along the feed; sums hop toward the collector."""
    back, onward = ("N", "S") if shape.vertical else ("W", "E")
    toward, behind = ("W", "E") if shape.vertical else ("N", "S")
    lines, inner = slice(1, None), slice(1, None)
    b.route(FEED, shape.at(0, lines), rx="R", tx=onward)
    b.route(FEED, shape.at(inner, lines), rx=back, tx="R" + onward)
    b.route(FEED, shape.at(shape.feeds, lines), rx=back, tx="R")
    b.route(SUMS[1], shape.at(inner, 0), rx=behind, tx="R")
    for j in range(1, shape.sums + 1):
        b.route(SUMS[j % 2], shape.at(inner, j), rx="R", tx=toward)
        if j < shape.sums:
            b.route(SUMS[(j + 1) % 2], shape.at(inner, j), rx=behind, tx="R")


def _case(b: Any, shape: Shape, seed: int, groups: int, block: int) -> Case:
    """Whole numbers, so that sums are exact in any order."""
    rng = np.random.default_rng(seed)
    words = rng.integers(-3, 4, (shape.sums, groups, shape.turns, shape.f)).astype(np.float32)
    rest = rng.integers(-3, 4, (shape.feeds, shape.sums, groups, shape.f, shape.v)).astype(np.float32)
    total = np.einsum("jgnf,ijgfv->ignv", words, rest).reshape(shape.feeds, 1, -1)
    flat_rest = rest.reshape(shape.feeds, shape.sums, groups, -1)
    gap = ((0, 0), (0, 0), (0, 0), (0, block - flat_rest.shape[-1]))
    padded = np.pad(flat_rest, gap).reshape(shape.feeds, shape.sums, -1)
    arrays = {"words": words.reshape(1, shape.sums, -1), "x": padded, "sums": total}
    if not shape.vertical:
        arrays = {name: values.swapaxes(0, 1) for name, values in arrays.items()}
    inputs = {"words": arrays["words"], "x": arrays["x"]}
    return Case(b.build(), b.config, inputs, {"sums": arrays["sums"]})
