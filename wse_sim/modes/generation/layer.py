"""One layer of a language model on a P x P grid, as WaferLLM runs it: prefill and decode.

Built from the kernels of :mod:`wse_sim.kernels.blocks.mesh`.  As published: every head is treated as full (keys
and values are hidden x hidden, nothing is saved for grouped queries), fp16 throughout, every dimension
is padded to a multiple of P, no embedding, no output head, no sampling.

prefill  nine products: q k v o, score, score x value, up, gate, down; softmax s^2 E; silu 2 s f E;
         four short row all-reduces (norms, softmax)
decode   nine gemv and thirteen all-reduces; `fused` joins q k v and up gate: ten all-reduces

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
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.kernels.contract.family import Cost
from wse_sim.units import cycles_to_s

# Counted in the published decode kernels: short vector instructions of a layer, and the scalar code
# (two roots, two divisions of norms, one division of the softmax) beside exp and silu.
DECODE_SHORT_INSTRUCTIONS = 37
DECODE_ROOTS, DECODE_DIVISIONS = 2, 5


@dataclass(frozen=True)
class LayerShape:
    """Sizes of one transformer layer with a gated feed-forward network."""

    hidden: int
    ffn: int


def prefill_layer_cycles(shape: LayerShape, tokens: Any, grid: Any, wafer: Wafer) -> Cost:
    """Cycles of one layer over `tokens` tokens on `grid` x `grid` cores.

    Example
    -------
    >>> from wse_sim.hardware import load_wafer
    >>> wafer = load_wafer("wse2")
    >>> cost = prefill_layer_cycles(LayerShape(4096, 14336), 4096, 480, wafer)
    >>> float(round(4096 * wafer.clock_hz / (32 * cost.total), -2))  # LLaMA-3 8B, tokens per second
    20300.0
    """
    s, d, f = ceil_div(tokens, grid), ceil_div(shape.hidden, grid), ceil_div(shape.ffn, grid)

    def product(m: Any, k: Any, n: Any, *, skewed: bool) -> Cost:
        return mesh_product((m, k, n), grid, wafer, skewed=skewed)

    qkv = product(s, d, d, skewed=True) + 2.0 * product(s, d, d, skewed=False)
    score = mesh_product((s, d, s), grid, wafer, skewed=False, left_moves=False, reduce_rows=True)
    value, out = product(s, s, d, skewed=True), product(s, d, d, skewed=True)
    up, gate = product(s, d, f, skewed=True), product(s, d, f, skewed=False)
    down = product(s, f, d, skewed=True)
    scalar = Cost(special=(s * s + 2.0 * s * f) * wafer.exp_cycles)
    return qkv + score + value + out + up + gate + down + scalar + 4.0 * _row_allreduce(s, grid, wafer)


def _row_allreduce(n: Any, grid: Any, wafer: Wafer) -> Cost:
    """Chain to the middle of the row from both sides, multicast back."""
    half = grid // 2
    return Cost(
        fabric=2.0 * n * wafer.wavelet_cycles,
        startup=4 * wafer.vector_start_cycles,
        idle=chain_latency(half + 1, wafer) + half * wafer.hop_cycles,
    )


def decode_layer_cycles(
    shape: LayerShape, context: Any, grid: Any, wafer: Wafer, *, groups: Any = None, fused: bool = False
) -> Cost:
    """Cycles of one layer for one token with `context` keys on `grid` x `grid` cores.

    `groups` of the K-tree (default about sqrt(grid)); `fused` all-reduces q k v and up gate together.
    """
    groups = best_groups(grid) if groups is None else groups
    s, d, f = ceil_div(context, grid), ceil_div(shape.hidden, grid), ceil_div(shape.ffn, grid)
    joined = [3 * d, 2 * f] if fused else [d, d, d, f, f]
    # norm, softmax maximum and sum, score x value, norm (down the columns); score, o, down (along the rows)
    lengths = [1, 1, 1, d, 1, s, d, d, *joined]
    cost = Cost()
    for length in lengths:
        cost = cost + tree_allreduce(length, grid, groups, wafer)
    for k, n in ((d, d), (d, d), (d, d), (d, d), (d, s), (s, d), (d, f), (d, f), (f, d)):
        cost = cost + mesh_gemv(k, n, wafer)
    roots = DECODE_ROOTS * wafer.sqrt_cycles + DECODE_DIVISIONS * wafer.divide_cycles
    # The published loop of the activation covers d, not f, elements.
    elements = (s + 2.0 * d) * wafer.exp_cycles
    return cost + Cost(
        special=elements + roots, startup=DECODE_SHORT_INSTRUCTIONS * wafer.vector_start_cycles
    )


@dataclass(frozen=True)
class GridRate:
    """Speed of a model on a grid: tokens per second, cycles of one layer, its largest part."""

    tokens_per_s: float
    cycles_per_layer: float
    binding: str


def prefill(model: Mapping[str, Any], wafer: Wafer, *, grid: int, tokens: int) -> GridRate:
    """Prefill rate of a model stated by `hidden`, `ffn` and `layers`."""
    shape = LayerShape(int(model["hidden"]), int(model["ffn"]))
    cost = prefill_layer_cycles(shape, tokens, grid, wafer)
    return _rate(cost, tokens, int(model["layers"]), wafer)


def decode(
    model: Mapping[str, Any], wafer: Wafer, *, grid: int, context: int, groups: int | None = None
) -> GridRate:
    """Decode rate of a model stated by `hidden`, `ffn` and `layers`."""
    shape = LayerShape(int(model["hidden"]), int(model["ffn"]))
    cost = decode_layer_cycles(shape, context, grid, wafer, groups=groups)
    return _rate(cost, 1, int(model["layers"]), wafer)


def _rate(cost: Cost, tokens: int, layers: int, wafer: Wafer) -> GridRate:
    cycles = float(np.asarray(cost.total))
    parts = {name: float(np.asarray(part)) for name, part in cost.parts().items()}
    binding = max(parts, key=lambda name: parts[name])
    return GridRate(tokens / cycles_to_s(layers * cycles, wafer.clock_hz), cycles, binding)
