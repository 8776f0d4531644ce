"""One layer of a language model on a P x P grid, as WaferLLM runs it: prefill and decode.

Built from the kernels of :mod:`wse_sim.kernels.blocks.mesh`.  As published (:class:`LayerShape`):
every head is treated as full (keys and values are hidden x hidden, nothing is saved for grouped queries), fp16
throughout, every dimension is padded to a multiple of P, no embedding, no output head, no sampling::

    prefill  nine products: q k v o, score, score x value, up, gate, down; softmax s^2 E; silu 2 s f E;
             four short row all-reduces (norms, softmax)
    decode   nine gemv and thirteen all-reduces; `fused` joins q k v and up gate: ten all-reduces

Other layers (:class:`LayerWork`, read from a graph) are sums of the same terms: every product with its all-reduce, an
all-reduce for every statistic, E for every special function.  Scores and values keep the width of all queries: keys of a
group are multiplied with every query of the group.  Heads lie over whole lines, as published.

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
from wse_sim.modes.generation.apart import apart_cycles
from wse_sim.modes.generation.decoder import Decoder, LayerShape, LayerWork, stated_layer
from wse_sim.modes.generation.packed import unpacked_cycles
from wse_sim.units import cycles_to_s


def prefill_layer_cycles(shape: LayerShape | LayerWork, tokens: Count, grid: Count, wafer: Wafer) -> Cost:
    """Cycles of one layer over `tokens` tokens on `grid` x `grid` cores.

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
        # Experts take turns on the whole grid, each with its share of the tokens.
        rows = ceil_div(ceil_div(int(p.share * tokens), p.groups), grid)
        cost = cost + p.times / p.share * p.groups * product(rows, *tile[1:], skewed=True)
    elements = ceil_div(work.activated_in_prompt, grid)
    # A weight is unpacked once, before its tile moves; experts of the prompt are all met.
    unpacking = sum(p.groups / p.share * unpacked_cycles(work, p, grid) for p in work.products)
    scalar = Cost(compute=unpacking, special=(s * s + 2.0 * s * elements) * wafer.exp_cycles)
    return cost + scalar + (work.norms + work.means + 2.0) * _row_allreduce(s, grid, wafer)


def work_of(shape: LayerShape | LayerWork) -> LayerWork:
    """A layer as a list of products."""
    return shape.work() if isinstance(shape, LayerShape) else shape


def _row_allreduce(n: Size, grid: Count, wafer: Wafer) -> Cost:
    """Chain to the middle of the row from both sides, multicast back."""
    half = grid // 2
    return Cost(
        fabric=2.0 * n * wafer.wavelet_cycles,
        startup=4 * wafer.vector_start_cycles,
        idle=chain_latency(half + 1, wafer) + half * wafer.hop_cycles,
    )


def decode_layer_cycles(
    shape: LayerShape | LayerWork,
    context: Count,
    grid: Count,
    wafer: Wafer,
    *,
    groups: Size | None = None,
    fused: bool = False,
) -> Cost:
    """Cycles of one layer for one token with `context` keys on `grid` x `grid` cores.

    `groups` of the K-tree (default about sqrt(grid)); `fused` all-reduces q k v and up gate together.
    """
    work, lines = work_of(shape), best_groups(grid) if groups is None else groups
    s, q = ceil_div(context, grid), ceil_div(work.query, grid)
    cost = mesh_gemv(q, s, wafer) + mesh_gemv(s, q, wafer)
    cost = cost + work.statistics * tree_allreduce(1, grid, lines, wafer, vertical=True)
    cost = cost + tree_allreduce(s, grid, lines, wafer) + tree_allreduce(q, grid, lines, wafer, vertical=True)
    for p in work.products:
        if work.has_squares(p):
            cost = cost + apart_cycles(work, p, 1, grid, wafer)
            continue
        outputs = ceil_div(p.n, grid)
        sums = p.operands if fused else p.times
        length = ceil_div(outputs * p.times, sums) if fused else outputs
        cost = cost + p.times * mesh_gemv(ceil_div(p.k, grid), outputs, wafer)
        back = min(sums, p.returns(work.hidden))
        cost = cost + (sums - back) * tree_allreduce(length, grid, lines, wafer, vertical=True)
        cost = cost + back * tree_allreduce(length, grid, lines, wafer)
    roots = work.roots * wafer.sqrt_cycles + work.divisions * wafer.divide_cycles
    elements = (s + 2.0 * ceil_div(work.activated, grid)) * wafer.exp_cycles
    unpacking = sum(unpacked_cycles(work, p, grid) for p in work.products)
    short = work.instructions(wafer) * wafer.vector_start_cycles
    return cost + Cost(compute=unpacking, special=elements + roots, startup=short)


def ends_cycles(
    decoder: Decoder, grid: Count, wafer: Wafer, *, groups: Size | None = None, tokens: int = 1
) -> Cost:
    """Return the cycles of a token before the first and after the last layer: embedding, head, argmax.

    Rows of the table are spread over the rows of cores, features over the columns: the row of a token is
    multicast down its columns, those of a prompt one after the other. The argmax is found on each core, then
    among all of them: its value, then its index.
    """
    groups = best_groups(grid) if groups is None else groups
    piece = words(ceil_div(decoder.hidden, grid), "fp16")
    cost = Cost(
        fabric=float(tokens) * piece * wafer.wavelet_cycles,
        startup=wafer.task_start_cycles,
        idle=1.0 * grid * wafer.hop_cycles + wafer.handover_cycles,
    )
    if decoder.head is None:
        return cost
    k, n = (ceil_div(size, grid) for size in decoder.head)
    head = mesh_gemv(k, n, wafer) + tree_allreduce(n, grid, groups, wafer, vertical=True)
    largest = Cost(compute=n / wafer.max_fp16_per_cycle, startup=2 * wafer.vector_start_cycles)
    return cost + head + largest + 2.0 * tree_allreduce(1, grid, groups, wafer)


@dataclass(frozen=True)
class GridRate:
    """Speed of a model on a grid: tokens per second, cycles of one layer, its largest part."""

    tokens_per_s: float
    cycles_per_layer: float
    binding: str


def prefill(model: Mapping[str, Any], wafer: Wafer, *, grid: int, tokens: int) -> GridRate:
    """Prefill rate of a model stated by `layers` and the sizes of :func:`stated_layer`."""
    shape = stated_layer(model)
    cost = prefill_layer_cycles(shape, tokens, grid, wafer)
    return _rate(cost, tokens, int(model["layers"]), wafer)


def decode(
    model: Mapping[str, Any], wafer: Wafer, *, grid: int, context: int, groups: int | None = None
) -> GridRate:
    """Decode rate of a model stated by `layers` and the sizes of :func:`stated_layer`."""
    shape = stated_layer(model)
    cost = decode_layer_cycles(shape, context, grid, wafer, groups=groups)
    return _rate(cost, 1, int(model["layers"]), wafer)


def _rate(cost: Cost, tokens: int, layers: int, wafer: Wafer) -> GridRate:
    cycles = float(np.asarray(cost.total))
    parts = {name: float(np.asarray(part)) for name, part in cost.parts().items()}
    binding = max(parts, key=lambda name: parts[name])
    return GridRate(tokens / cycles_to_s(layers * cycles, wafer.clock_hz), cycles, binding)
