"""Cost of one layer of a language model on a grid of P x Q cores, as in WaferLLM (on squares): prefill and
decode.

Built from the kernels of :mod:`wse_sim.kernels.blocks.mesh`.  As published (:class:`LayerShape`): heads are
treated as one wide head (keys and values are hidden x hidden, without savings for grouped queries), fp16
throughout, every dimension is padded to a multiple of the line, no embedding, no output head, no sampling::

    prefill  nine products: q k v o, score, score x value, up, gate, down; softmax s^2 E; silu 2 s f E;
             four short row all-reduces (norms, softmax)
    decode   nine gemv and thirteen all-reduces; `fused` joins q k v and up gate: ten all-reduces

Other layers (:class:`LayerWork`, read from a graph) are sums of the same terms: every product with its
all-reduce, an all-reduce for every statistic, E for every special function.  Scores and values have the width
of all queries: the keys of a group are multiplied by every query of the group. Heads are spread over whole
lines, as published. The published grids are squares. On a rectangle decode has the same terms, each for the
line along which it runs (:mod:`wse_sim.modes.generation.grid`); prefill has no closed form there, because
tiles cannot shift on a rectangle.

Source: calibration 1.3 and 1.4; the published points agree within 1 % (tests).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.mesh import best_groups, mesh_gemv, mesh_product, tree_allreduce
from wse_sim.kernels.blocks.products import chain_latency
from wse_sim.kernels.contract.equations import ceil_div, words
from wse_sim.kernels.contract.family import Cost, Count, Size
from wse_sim.modes.generation.decoder import Decoder, LayerShape, LayerWork, stated_layer
from wse_sim.modes.generation.expert_cores import apart_cycles
from wse_sim.modes.generation.grid import Sides, sides
from wse_sim.modes.generation.quantized_weights import unpacked_cycles
from wse_sim.units import cycles_to_s


def prefill_layer_cycles(shape: LayerShape | LayerWork, tokens: Count, grid: Count, wafer: Wafer) -> Cost:
    """Return the cost of one layer over `tokens` tokens on `grid` x `grid` cores.

    Example
    -------
    >>> from wse_sim.hardware import load_wafer
    >>> wafer = load_wafer("wse2")
    >>> cost = prefill_layer_cycles(LayerShape(4096, 14336), 4096, 480, wafer)
    >>> float(round(4096 * wafer.clock_hz / (32 * cost.total), -2))  # LLaMA-3 8B, tokens per second
    20300.0
    """
    work = work_of(shape)
    s, q = ceil_div(tokens, grid), ceil_div(work.query, grid)

    def product(m: Size, k: Size, n: Size, *, skewed: bool) -> Cost:
        return mesh_product((m, k, n), grid, wafer, skewed=skewed)

    cost = mesh_product((s, q, s), grid, wafer, skewed=False, left_moves=False, reduce_rows=True)
    cost = cost + product(s, s, q, skewed=True)
    for p in work.products:
        tile = (s, ceil_div(p.k, grid), ceil_div(p.n, grid))
        if p.groups == 1:
            later = p.times - p.operands
            cost = cost + p.operands * product(*tile, skewed=True) + later * product(*tile, skewed=False)
            continue
        # Experts run one after the other on the whole grid, each with its part of the tokens.
        rows = ceil_div(ceil_div(int(p.share * tokens), p.groups), grid)
        cost = cost + p.times / p.share * p.groups * product(rows, *tile[1:], skewed=True)
    elements = ceil_div(work.activated_in_prompt, grid)
    # A weight is unpacked once, before its tile moves; a prompt uses all experts.
    unpacking = sum(p.groups / p.share * unpacked_cycles(work, p, grid) for p in work.products)
    scalar = Cost(compute=unpacking, special=(s * s + 2.0 * s * elements) * wafer.exp_cycles)
    return cost + scalar + (work.norms + work.means + 2.0) * _row_allreduce(s, grid, wafer)


def reduced(n: Size, line: Count, groups: Size | None, wafer: Wafer, *, vertical: bool = False) -> Cost:
    """Return the cost of an all-reduce of n elements along lines of `line` cores, by default in about
    sqrt(line) groups."""
    lines = best_groups(line) if groups is None else np.minimum(groups, line)
    return tree_allreduce(n, line, lines, wafer, vertical=vertical)


def work_of(shape: LayerShape | LayerWork) -> LayerWork:
    """Return a layer as a list of products."""
    return shape.work() if isinstance(shape, LayerShape) else shape


def _row_allreduce(n: Size, grid: Count, wafer: Wafer) -> Cost:
    """Return the cost of a row all-reduce: chains from both ends to the middle, then a multicast back."""
    half = grid // 2
    return Cost(
        fabric=2.0 * n * wafer.wavelet_cycles,
        startup=4 * wafer.vector_start_cycles,
        idle=chain_latency(half + 1, wafer) + half * wafer.hop_cycles,
    )


def decode_layer_cycles(
    shape: LayerShape | LayerWork,
    context: Count,
    grid: Sides,
    wafer: Wafer,
    *,
    groups: Size | None = None,
    fused: bool = False,
) -> Cost:
    """Return the cost of one layer for one token with `context` keys on `grid` x `grid`, or (rows, cols),
    cores.

    `groups` of the K-tree (default about the root of a line); `fused` all-reduces q k v and up gate together.
    """
    work, (rows, cols) = work_of(shape), sides(grid)
    s, q = ceil_div(context, rows), ceil_div(work.query, cols)
    cost = mesh_gemv(q, s, wafer) + mesh_gemv(s, q, wafer)
    cost = cost + work.statistics * reduced(1, rows, groups, wafer, vertical=True)
    cost = cost + reduced(s, cols, groups, wafer) + reduced(q, rows, groups, wafer, vertical=True)
    for p in work.products:
        if work.has_squares(p):
            cost = cost + apart_cycles(work, p, 1, grid, wafer)
            continue
        left = p.operands if fused else p.times  # all-reduces
        for way in reversed(p.lies(work.hidden, grid)):
            sums = left if way.vertical else min(left, way.times)
            left = left - sums
            length = ceil_div(way.n * p.times, p.operands) if fused else way.n
            cost = cost + way.times * mesh_gemv(way.k, way.n, wafer)
            cost = cost + sums * reduced(length, way.line, groups, wafer, vertical=way.vertical)
    roots = work.roots * wafer.sqrt_cycles + work.divisions * wafer.divide_cycles
    elements = (s + 2.0 * ceil_div(work.activated, cols)) * wafer.exp_cycles
    unpacking = sum(unpacked_cycles(work, p, grid) for p in work.products)
    short = work.instructions(wafer) * wafer.vector_start_cycles
    return cost + Cost(compute=unpacking, special=elements + roots, startup=short)


def ends_cycles(
    decoder: Decoder, grid: Sides, wafer: Wafer, *, groups: Size | None = None, tokens: int = 1
) -> Cost:
    """Return the cycles of a token before the first and after the last layer: embedding, head, argmax.

    Rows of the table are spread over the columns of cores, features over the rows: the row of a token is
    multicast along its rows, those of a prompt one after the other. The argmax is found on each core, then
    among all of them: its value, then its index.
    """
    rows, cols = sides(grid)
    piece = words(ceil_div(decoder.hidden, rows), "fp16")
    cost = Cost(
        fabric=float(tokens) * piece * wafer.wavelet_cycles,
        startup=wafer.task_start_cycles,
        idle=1.0 * cols * wafer.hop_cycles + wafer.handover_cycles,
    )
    if decoder.head is None:
        return cost
    k, n = ceil_div(decoder.head[0], rows), ceil_div(decoder.head[1], cols)
    head = mesh_gemv(k, n, wafer) + reduced(n, rows, groups, wafer, vertical=True)
    largest = Cost(compute=n / wafer.max_fp16_per_cycle, startup=2 * wafer.vector_start_cycles)
    return cost + head + largest + 2.0 * reduced(1, cols, groups, wafer)


@dataclass(frozen=True)
class GridRate:
    """Speed of a model on a grid: tokens per second, cycles of one layer, its largest part."""

    tokens_per_s: float
    cycles_per_layer: float
    binding: str


def prefill(model: Mapping[str, Any], wafer: Wafer, *, grid: int, tokens: int) -> GridRate:
    """Return the prefill rate of a model with `layers` layers of the sizes of :func:`stated_layer`."""
    shape = stated_layer(model)
    cost = prefill_layer_cycles(shape, tokens, grid, wafer)
    return _rate(cost, tokens, int(model["layers"]), wafer)


def decode(
    model: Mapping[str, Any], wafer: Wafer, *, grid: int, context: int, groups: int | None = None
) -> GridRate:
    """Return the decode rate of a model with `layers` layers of the sizes of :func:`stated_layer`."""
    shape = stated_layer(model)
    cost = decode_layer_cycles(shape, context, grid, wafer, groups=groups)
    return _rate(cost, 1, int(model["layers"]), wafer)


def _rate(cost: Cost, tokens: int, layers: int, wafer: Wafer) -> GridRate:
    cycles = float(np.asarray(cost.total))
    parts = {name: float(np.asarray(part)) for name, part in cost.parts().items()}
    binding = max(parts, key=lambda name: parts[name])
    return GridRate(tokens / cycles_to_s(layers * cycles, wafer.clock_hz), cycles, binding)
