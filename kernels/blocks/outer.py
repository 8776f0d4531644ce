"""Weight gradient of stationary weights as a fabric program: sums are stationary, both operands stream.

A core stores the sums of k features and n outputs. Per token the activations of its features arrive along the
row and the output gradients of its columns down the column. One of the two is received, two fp16 elements per
word; every word of the other then triggers a multiply-accumulate with it, whichever takes less time::

    per token   words(u) + v ceil(u / w),     u = k and v = n, or u = n and v = k

Nothing leaves before the last token, so the third copy of a layer (activations, deltas, weight gradients)
needs no reduction. The cost counts k ceil(n / w); the program takes a fraction 1 / v more, for the received
words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import numpy as np

from wse_sim.fabric.format.builder import Buffer, Builder, Place, fabric_in, fabric_out
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.lines import new_builder
from wse_sim.kernels.contract.equations import ceil_div, ceil_rate, fma_rate, words
from wse_sim.kernels.contract.family import Array, Case, Dims, ProgramOptions, Tiling

WORDS, VECTORS = 0, 1  # colors: words that trigger; vectors that are received


def outer_program(
    dims: Dims,
    tiling: Tiling,
    wafer: Wafer,
    *,
    groups: int = 1,
    operands: Sequence[tuple[Array, Array, Array]] | None = None,
    **options: Unpack[ProgramOptions],
) -> Case:
    """Return the program of (m features) x (k tokens) x (n outputs): m over rows, n over columns, `groups` in
    sequence.

    `operands` gives, per group, activations (k, m), gradients (k, n) and their product (m, n); by default
    they are random.
    """
    rows, cols, tokens = int(tiling.rows), int(tiling.cols), int(dims["k"])
    k, n = ceil_div(int(dims["m"]), rows), ceil_div(int(dims["n"]), cols)
    wide = str(options.get("dtype", "fp16")) == "fp32"
    rng = np.random.default_rng(int(options.get("seed", 0)))
    activations = rng.integers(-3, 4, (rows, 1, groups, tokens, k)).astype(np.float32)
    gradients = rng.integers(-3, 4, (1, cols, groups, tokens, n)).astype(np.float32)
    total = None
    if operands is not None:
        found = [(tiles(a.T, rows), tiles(g.T, cols), tiles(p, rows)) for a, g, p in operands]
        activations = np.stack([a.transpose(0, 2, 1) for a, _, _ in found], axis=1)[:, None]
        gradients = np.stack([g.transpose(0, 2, 1) for _, g, _ in found], axis=1)[None]
        products = [tiles(p.transpose(2, 0, 1), cols).transpose(2, 0, 3, 1) for _, _, p in found]
        total = np.stack(products, axis=2)
    size = "fp32" if wide else "fp16"
    w = fma_rate(size, wafer)
    # Activations trigger products with gradients, or vice versa.
    by_row = words(n, size) + k * ceil_rate(n, w) <= words(k, size) + n * ceil_rate(k, w)
    v, u = (k, n) if by_row else (n, k)
    b = new_builder(rows + 1, cols + 1, wafer)
    b.input_queue(WORDS, 0)
    b.input_queue(VECTORS, 1)
    west, north, inner = (slice(1, None), 0), (0, slice(1, None)), (slice(1, None), slice(1, None))
    place_words, place_vectors = (west, north) if by_row else (north, west)
    at_rest, dtype = ("fp32", "fp32") if wide else ("fp16", "mixed")
    sent = b.buffer("words", groups * tokens * v, "fp32", place_words)
    vectors = b.buffer("vectors", groups * tokens * u, at_rest, place_vectors)
    sums, vector = (
        b.buffer("sums", groups * u * v, "fp32", inner, bank=0),
        b.buffer("vector", u, at_rest, inner, bank=2),
    )
    _place(
        b,
        (sent, vectors, sums, vector),
        (place_words, place_vectors, inner),
        (groups, tokens, v),
        (at_rest, dtype),
    )
    _route(b, bool(by_row), rows, cols)
    triggers, received = (activations, gradients) if by_row else (gradients, activations)
    if total is None:
        total = np.einsum("rgtk,cgtn->rcgkn", activations[:, 0], gradients[0])
    if not by_row:
        total = total.swapaxes(3, 4)
    inputs = {
        "words": triggers.reshape(*triggers.shape[:2], -1),
        "vectors": received.reshape(*received.shape[:2], -1),
        "sums": np.zeros((rows, cols, groups * u * v), np.float32),
    }
    return Case(b.build(), b.config, inputs, {"sums": total.reshape(rows, cols, -1)})


def tiles(values: Array, parts: int) -> Array:
    """Return the values with the first dimension in `parts` equal pieces, padded with zeros."""
    size = ceil_div(values.shape[0], parts)
    padded = np.zeros((parts * size, *values.shape[1:]), np.float32)
    padded[: values.shape[0]] = values
    return padded.reshape(parts, size, *values.shape[1:])


def _place(
    b: Builder,
    buffers: tuple[Buffer, ...],
    places: tuple[Place, ...],
    rounds: tuple[int, int, int],
    types: tuple[str, str],
) -> None:
    """Write the feeders of words and of vectors, and the cores between them."""
    sent, vectors, sums, vector = buffers
    at_rest, dtype = types
    (groups, tokens, v), u = rounds, vector.length
    of_words, of_vectors, core = b.core_class("words"), b.core_class("vectors"), b.core_class("core")
    of_words.mov(fabric_out(WORDS), sent.dsd(), start="none")
    with of_vectors.loop(groups * tokens):  # a vector of odd length ends with half a word
        of_vectors.mov(fabric_out(VECTORS), vectors.dsd(0, u, step=u), dtype=at_rest, start="none")
    with core.loop(groups), core.loop(tokens):
        core.mov(vector.dsd(), fabric_in(VECTORS), dtype=at_rest, start="none")
        core.fmac_vectors(
            *(sums.dsd(0, u, outer_step=u * v if groups > 1 else 0), fabric_in(WORDS), vector.dsd(), u),
            dst_stride=u,
            triggered=True,
            length=v,
            dtype=dtype,
            start="none",
        )
    for found, where in zip((of_words, of_vectors, core), places, strict=True):
        b.place(found, where)


def _route(b: Builder, by_row: bool, rows: int, cols: int) -> None:
    """Route words along rows and vectors down columns, or vice versa."""
    along, down = (WORDS, VECTORS) if by_row else (VECTORS, WORDS)
    inner = slice(1, None)
    b.route(along, (inner, 0), rx="R", tx="E")
    b.route(along, (inner, inner), rx="W", tx="RE")
    b.route(along, (inner, cols), rx="W", tx="R")
    b.route(down, (0, inner), rx="R", tx="S")
    b.route(down, (inner, inner), rx="N", tx="RS")
    b.route(down, (rows, inner), rx="N", tx="R")
