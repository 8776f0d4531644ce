"""Products in which arriving words trigger multiply-accumulates, as fabric programs (both training mappings).

    streamed    weights arrive down the columns, each triggers over the t stationary tokens; sums leave along rows
    gradient    output gradients arrive along the rows, each triggers over the f stationary features; the sums over
                tokens leave up the columns (weight gradient of the streamed mapping)
    stationary  activations arrive along the rows, each triggers over the n stationary outputs; sums leave up the columns

Feeder cores at the head of every line multicast f words per round; the first product overwrites the sums,
later ones are added to them. A core then passes its sums to its neighbour, adding those that arrive from the
core behind. Collectors at the far end store the sums, or send them back to their owners if operations are
fused (:mod:`wse_sim.kernels.blocks.fused_operations`). Words on the wire are fp32 (mixed precision: fp16 operands, fp32
sums).

Zero weights (`density` below 1) are not sent. A non-zero weight is sent in fp16 with the index of its vector,
and a control word ends the round, so a round is as long as its non-zero weights. Every column has the same
number per round. The weight gradient of stationary weights: :mod:`wse_sim.kernels.blocks.outer`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.fabric.format.builder import Buffer, Builder, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.elements import fused_forward
from wse_sim.kernels.blocks.fused_operations import Fused, fused_of
from wse_sim.kernels.blocks.lines import new_builder
from wse_sim.kernels.blocks.products import TiledProduct
from wse_sim.kernels.blocks.shapes import Operands, TriggeredShape
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.kernels.contract.family import Array, Case, Dims, ProgramOptions, Tiling, asked
from wse_sim.kernels.contract.parameters import HALF_SUMS, WeightAttributes

FEED, SUMS = 0, (1, 2)  # colors: words that trigger; sums, alternating by parity


def shape_of(dims: Dims, tiling: Tiling, phase: Phase = Phase.FORWARD) -> TriggeredShape:
    """Return the shape of a product of streamed or stationary weights."""
    m, k, n = (int(dims[name]) for name in "mkn")
    rows, cols, lanes = int(tiling.rows), int(tiling.cols), int(tiling.lanes)
    if tiling.mapping == "stationary":
        return TriggeredShape(cols, rows, m, ceil_div(k, rows), ceil_div(n, cols), False)
    lane = cols // lanes
    if phase is Phase.WEIGHT_GRADIENT:
        return TriggeredShape(lane, rows, n, ceil_div(k, lanes * rows), ceil_div(m, lane), False)
    return TriggeredShape(rows, lane, n, ceil_div(k, lane), ceil_div(m, lanes * rows), True, lanes=lanes)


def triggered_program(
    dims: Dims, tiling: Tiling, wafer: Wafer, *, groups: int = 1, **options: Unpack[ProgramOptions]
) -> Case:
    """Return the program of a product of streamed or stationary weights, or of a weight gradient, with
    `groups` of them.

    Raises
    ------
    KernelError
        For a weight gradient with zero weights.
    """
    phase, attrs = options.get("phase", Phase.FORWARD), options.get("attrs") or {}
    stated = WeightAttributes.of(tiling.options, attrs)
    density = stated.density
    options["attrs"] = {**attrs, "accumulate": stated.accumulate}
    if tiling.mapping == "stationary":
        way = TiledProduct(dims["m"], dims["k"], dims["n"], tiling, wafer, *asked(options)).way
        tiling = Tiling(way.along, way.across, "stationary")
    if phase is Phase.WEIGHT_GRADIENT:
        if density < 1.0:
            raise KernelError(
                f"a weight gradient of density {density:g} has no fabric program; it is computed in full, "
                "leave out density"
            )
        if tiling.mapping == "stationary":
            from wse_sim.kernels.blocks.outer import outer_program

            return outer_program(dims, tiling, wafer, groups=groups, **options)
    shape = replace(shape_of(dims, tiling, phase), groups=groups)
    if density < 1.0:
        shape = replace(shape, kept=max(1, round(density * shape.f)))
    fused = fused_of(fused_forward(attrs, phase))
    return shape_program(shape, wafer, fused=fused, **options)


def shape_program(
    shape: TriggeredShape,
    wafer: Wafer,
    *,
    operands: Operands | None = None,
    fused: Fused | None = None,
    **options: Unpack[ProgramOptions],
) -> Case:
    """Return the program of a shape; operands default to small integers."""
    accumulate = WeightAttributes.of(options.get("attrs")).accumulate
    wide = str(options.get("dtype", "fp16")) == "fp32"
    dtype = "fp32" if wide else ("fp16" if accumulate in HALF_SUMS else "mixed")
    rng = np.random.default_rng(int(options.get("seed", 0)))
    operands = operands or random_operands(shape, rng)
    b = new_builder(*shape.size, wafer)
    bind_queues(b)
    inputs: dict[str, Any] = {}
    expected: dict[str, Any] = {}
    for number, lane in enumerate(shape.lane):
        inputs |= _build_lane(b, lane, number, operands, dtype, fused, wafer)
        totals = _totals(lane, operands.words[number], operands.rest[number])
        if fused:
            more, wanted = fused.values(lane, number, totals, rng)
            inputs |= more
            expected |= wanted
        else:
            expected[f"sums{number}"] = _laid(lane, totals.reshape(shape.feeds, 1, -1))
    return Case(b.build(), b.config, inputs, expected, tolerance=fused.tolerance if fused else 1e-5)


def random_operands(shape: TriggeredShape, rng: np.random.Generator) -> Operands:
    """Return random integer operands, so that sums are exact in any order; `kept` of the f words of a round
    are non-zero."""
    words = rng.integers(1, 4, (shape.lanes, shape.sums, shape.groups, shape.rounds, shape.f))
    words = words * rng.choice((-1, 1), words.shape)
    if shape.kept:
        rank = rng.permuted(np.broadcast_to(np.arange(shape.f), words.shape), axis=-1)
        words = np.where(rank < shape.kept, words, 0)
    if shape.vertical:
        words[:] = words[:1]  # all lanes have the same weights
    rest = rng.integers(-3, 4, (shape.lanes, shape.feeds, shape.sums, shape.groups, shape.f, shape.v))
    return Operands(words.astype(np.float32), rest.astype(np.float32))


def starts_of(shape: TriggeredShape, banks: int) -> tuple[list[int], int]:
    """Return the first elements of each piece's vectors, and of the next group; several groups start in the
    same bank."""
    starts, end = [], 0
    several = shape.groups * len(shape.pieces) > 1
    for words in shape.pieces:
        starts.append(end)
        end += words * shape.v
        end = banks * ceil_div(end, banks) if several else end
    return starts, end


def _build_lane(
    b: Builder,
    shape: TriggeredShape,
    number: int,
    operands: Operands,
    dtype: str,
    fused: Fused | None,
    wafer: Wafer,
) -> dict[str, Any]:
    """Write the cores and routes of one lane; return its inputs."""
    starts, block = starts_of(shape, wafer.sram_banks)
    per_round = shape.kept or shape.f
    words = b.buffer(f"words{number}", per_round * shape.groups * shape.rounds, "fp32", shape.at(0, ...))
    at_rest = "fp32" if dtype == "fp32" else "fp16"
    y = b.buffer(f"y{number}", shape.v, "fp16" if dtype == "fp16" else "fp32", shape.at(..., ...), bank=0)
    x = b.buffer(f"x{number}", shape.groups * block, at_rest, shape.at(..., ...), bank=2)
    feeder, collector = b.core_class("feeder"), b.core_class("collector")
    _feed(feeder, shape, words)
    if fused:
        fused.declare(b, shape, number, at_rest)
        fused.send_back(collector, shape, SUMS[1])
        fused.route(b, shape)
    else:
        length = shape.v * shape.groups * shape.rounds * len(shape.pieces)
        sums = b.buffer(f"sums{number}", length, "fp32", shape.at(..., 0))
        collector.mov(sums.dsd(), fabric_in(SUMS[1]), start="none")
    b.place(feeder, shape.at(0, ...))
    b.place(collector, shape.at(..., 0))
    for j in range(1, shape.sums + 1):
        core = b.core_class(f"core {j}")
        if fused:
            fused.receive(core, shape, j)
        with core.loop(shape.groups), core.loop(shape.rounds):
            for first, length in zip(starts, shape.pieces, strict=True):
                vectors = x.dsd(first, shape.v, outer_step=block if shape.groups > 1 else 0)
                core.fmac_vectors(
                    *(y.dsd(), fabric_in(FEED), vectors, shape.v),
                    b_stride=shape.v,
                    length=length,
                    dtype=dtype,
                    wire="fp32",
                    start="none",
                    triggered=True,
                    fresh=True,
                    indexed=shape.kept > 0,
                    terminate_on_control=shape.kept > 0,
                )
                send_sums(core, shape, j, y)
        if fused:
            fused.apply(core, shape, j, wafer)
        b.place(core, shape.at(..., j))
    route_shape(b, shape)
    return _inputs(shape, number, operands, starts, block)


def _feed(feeder: CoreClass, shape: TriggeredShape, words: Buffer) -> None:
    """Write a feeder: all words in one stream, or only the non-zero ones, with a control word after each
    round."""
    if not shape.kept:
        feeder.mov(fabric_out(FEED), words.dsd(), start="none")
        return
    with feeder.loop(shape.groups * shape.rounds):
        feeder.mov(fabric_out(FEED), words.dsd(0, shape.kept, step=shape.kept), start="none")
        feeder.control(FEED, ignore=False, start="none")


def send_sums(core: CoreClass, shape: TriggeredShape, j: int, y: Buffer) -> None:
    """Send the sums y of position j, added to those from behind unless it is the last position."""
    if j == shape.sums:
        core.mov(fabric_out(SUMS[j % 2]), y.dsd(), start="none")
    else:
        core.add(fabric_out(SUMS[j % 2]), y.dsd(), fabric_in(SUMS[(j + 1) % 2]), start="none")


def bind_queues(b: Builder) -> None:
    """Bind words that trigger to an input queue of six and sums to queues of four, so that short rounds keep
    the links busy."""
    b.input_queue(FEED, 0)
    for color, queue in zip(SUMS, (2, 3), strict=True):
        b.input_queue(color, queue)


def route_shape(b: Builder, shape: TriggeredShape) -> None:
    """Route the multicast of words along the feed, and sums from neighbour to neighbour toward the
    collector."""
    back, onward = ("N", "S") if shape.vertical else ("W", "E")
    toward, behind = ("W", "E") if shape.vertical else ("N", "S")
    b.route(FEED, shape.at(0, ...), rx="R", tx=onward)
    b.route(FEED, shape.at(..., ...), rx=back, tx="R" + onward)
    b.route(FEED, shape.at(shape.feeds, ...), rx=back, tx="R")
    b.route(SUMS[1], shape.at(..., 0), rx=behind, tx="R")
    for j in range(1, shape.sums + 1):
        b.route(SUMS[j % 2], shape.at(..., j), rx="R", tx=toward)
        if j < shape.sums:
            b.route(SUMS[(j + 1) % 2], shape.at(..., j), rx=behind, tx="R")


def _laid(shape: TriggeredShape, values: Array) -> Array:
    """Return values (feed, sums, ...) arranged as rows and columns of the fabric."""
    return values if shape.vertical else values.swapaxes(0, 1)


def _inputs(
    shape: TriggeredShape, number: int, operands: Operands, starts: list[int], block: int
) -> dict[str, Any]:
    """Return the input buffers of one lane: words in send order, vectors at the places of their pieces."""
    words, rest = operands.words[number], operands.rest[number]
    if shape.kept:
        words = packed(words, shape.kept)
    held = np.zeros((shape.feeds, shape.sums, shape.groups, block), np.float32)
    first = 0
    for start, length in zip(starts, shape.pieces, strict=True):
        piece = rest[..., first : first + length, :]
        held[..., start : start + length * shape.v] = piece.reshape(*piece.shape[:3], -1)
        first += length
    return {
        f"words{number}": _laid(shape, words.reshape(1, shape.sums, -1)),
        f"x{number}": _laid(shape, held.reshape(shape.feeds, shape.sums, -1)),
    }


def packed(words: Array, kept: int) -> Array:
    """Return the `kept` words of every round: the index of the vector in the upper half, the fp16 value in
    the lower."""
    order = np.argsort(words == 0, axis=-1, kind="stable")[..., :kept]
    values = np.take_along_axis(words, order, axis=-1).astype(np.float16).view(np.uint16)
    return ((order.astype(np.uint32) << 16) | values).view(np.float32)


def _totals(shape: TriggeredShape, words: Array, rest: Array) -> Array:
    """Return the sums (feeds, groups, rounds, pieces, v) over all cores of a line."""
    totals, first = [], 0
    for length in shape.pieces:
        piece = slice(first, first + length)
        totals.append(np.einsum("jgnf,ijgfv->ignv", words[..., piece], rest[..., piece, :]))
        first += length
    return np.stack(totals, axis=3)
