"""Attention of one head of one sample as a fabric program (mappings streamed and stationary).

Built from the phases of :mod:`wse_sim.kernels.families.attention.circulate`: p = product, s = spread
(stationary outer product).

streamed    r x c cores: t queries per row of cores, f features per column.  Keys and values circulate down the columns
            from the rows that store them; one column stores the scores of a block of keys.

                forward   p scores = K Q^T (ring along the row), softmax, s out += P V
                backward  p dP = V dO^T (ring along the row), softmax, s dQ += dS K,
                          p dV = P dO and p dK = dS Q: scores along the row, ring down the column

stationary  r x c cores: k features per row of cores, n keys per column.  Queries stream in at the edge, outputs
            leave there; one row stores the scores of a block of queries.

                forward   p scores = Q K^T (ring down the column), softmax, p out = P V (leaves along the row)
                backward  p dP = dO V^T, softmax, p dQ = dS K (leaves), s dV += dO P, s dK += Q dS

Softmax: statistics of a query are all-reduced along the row. A score takes the calibrated cycles of a special
element (mask, exponential, quotient, dropout); scalar code takes the cycles that its vector instructions do
not issue.

A core that multicasts also issues its words, which the cost leaves out. Scores above the diagonal of a causal
mask are computed like all others. Mask and dropout take cycles of the scalar code, but do not change values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.fabric.format.builder import Buffer
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.line_stages import Lines, RowLayout, Sharing
from wse_sim.kernels.blocks.rounds import Blocks, pitch
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.kernels.contract.family import Case, Dims, ProgramOptions, Tiling, asked
from wse_sim.kernels.families.attention.attributes import AttentionAttributes
from wse_sim.kernels.families.attention.circulate import (
    BuiltRectangle,
    Feed,
    KeptSums,
    Rounds,
    SentSums,
    VectorRun,
    product,
    ring,
    spread,
)
from wse_sim.kernels.families.attention.cost import SOFTMAX, SOFTMAX_GRADIENT, SOFTMAX_SHAPES, special_cycles
from wse_sim.kernels.families.attention.values import Head, Values


def head_of(dims: Dims, tiling: Tiling) -> Head:
    """Return the cores of one head of one sample.

    Raises
    ------
    KernelError
        If a line of cores holds several samples or heads.
    """
    rows, cols, lanes = int(tiling.rows), int(tiling.cols), int(tiling.lanes)
    b, heads, q, kv, d = (int(dims[name]) for name in ("b", "heads", "q", "kv", "d"))
    if tiling.mapping == "stationary":
        _check(heads <= rows, f"{heads} heads on {rows} rows", "one row per head")
        k, n = int(ceil_div(heads * d, rows)), int(ceil_div(kv, cols))
        return Head(int(ceil_div(d, k)), int(ceil_div(kv, n)), b * q, k, n, False)
    lane = cols // lanes
    _check(heads <= lane, f"{heads} heads on {lane} columns of a lane", "one column per head")
    _check(b <= lanes * rows, f"{b} samples on {lanes * rows} rows", "one row per sample")
    t, f = int(ceil_div(b * q, lanes * rows)), int(ceil_div(heads * d, lane))
    return Head(int(ceil_div(q, t)), int(ceil_div(d, f)), kv, f, t, True)


def _check(fits: bool, what: str, least: str) -> None:
    if not fits:
        raise KernelError(
            f"attention: {what} have no fabric program; use at least {least}, or --timing model"
        )


def head_program(dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
    """Return the program of one head of one sample, forward or backward; the attribute `part` selects one
    part.

    Parts: scores, softmax, values; backward: products (all four) and softmax.
    """
    phase, _, attrs = asked(options)
    head, part = head_of(dims, tiling), AttentionAttributes.of(tiling.options, attrs).part
    forward = phase is Phase.FORWARD
    build = {
        (True, True): _streamed_forward,
        (True, False): _streamed_backward,
        (False, True): _stationary_forward,
        (False, False): _stationary_backward,
    }[head.streams, forward]
    region = BuiltRectangle(head.rows, head.cols, head.items, wafer, edge=not head.streams)
    build(region, head, special_cycles(wafer, attrs, phase), part)
    program = region.build()
    values = Values(head, int(options.get("seed", 0)))
    expected = values.forward(part) if forward else values.backward(part)
    inputs = {name: x for name, x in values.inputs(forward, part).items() if name in program.buffers}
    size = max(float(np.nanmax(abs(x))) for x in expected.values())
    return Case(program, region.builder.config, inputs, expected, tolerance=4e-3 * max(1.0, size))


def _softmax(region: BuiltRectangle, head: Head, buffers: Mapping[str, Any], cycles: float) -> None:
    """Add a phase of the softmax, or of its gradient if one is given, with `cycles` per score in total."""
    vectors = SOFTMAX_GRADIENT if "gradient" in buffers else SOFTMAX
    size = head.owners.size
    layout = RowLayout(head.others, size) if head.streams else RowLayout(size, head.others, by_row=True)
    buffers = {
        **buffers,
        "statistic": region.buffer("statistic", layout.t, bank=2 if "gradient" in buffers else 0),
    }
    sharing = Sharing.along(region.row, head.cols, region.colors)
    region.take(sharing.colors)
    lines = Lines(SOFTMAX_SHAPES, buffers, layout, sharing, region.wafer)

    def phase(core: CoreClass, i: int, j: int) -> None:
        own = head.owners.count(j if head.streams else i)
        lines.scalar_rest(core, vectors, cycles * own * head.others, own)
        lines.emit(core, vectors, j, own)

    region.phases.append(phase)


def _scores(region: BuiltRectangle, head: Head, name: str, bank: int) -> Buffer:
    return region.buffer(name, head.owners.size * pitch(head.others), "fp16", bank)


def _pieces(region: BuiltRectangle, head: Head, name: str, dtype: str = "fp16") -> Buffer:
    """Return keys or values in the rows that store them (streamed)."""
    return region.buffer(name, Blocks(head.items, head.rows).size * pitch(head.features), dtype)


def _streamed_forward(region: BuiltRectangle, head: Head, cycles: float, part: str) -> None:
    t, f = head.others, head.features
    scores = _scores(region, head, "scores", 2)
    if part in {"", "scores"}:
        # Queries and sums start in banks that do not conflict.
        rest = VectorRun(region.buffer("q", f * t, "fp16", 0), f, t, apart=t)
        sums = KeptSums(region, ring(region, vertical=False), scores, t, vertical=False)
        source = Rounds(region, _pieces(region, head, "keys"), f, vertical=True)
        product(region, source, rest, region.buffer("y", t, bank=2), sums)
    if part in {"", "softmax"}:
        _softmax(region, head, {"scores": scores}, cycles)
    if part in {"", "values"}:
        source = Rounds(region, _pieces(region, head, "values"), f, vertical=True)
        arrived, out = region.buffer("arrived", t, "fp16", 2), region.buffer("out", f * t, bank=0)
        spread(region, source, scores, t, arrived, out, vertical=False)


def _streamed_backward(region: BuiltRectangle, head: Head, cycles: float, part: str) -> None:
    t, f = head.others, head.features
    scores, gradient = _scores(region, head, "scores", 2), _scores(region, head, "gradient", 0)
    if part == "softmax":
        _softmax(region, head, {"scores": scores, "gradient": gradient}, cycles)
        return
    q, d_out = (region.buffer(name, f * t, "fp16", 0) for name in ("q", "d_out"))
    y, z = region.buffer("y", t, bank=2), region.buffer("z", f, bank=2)
    sums = KeptSums(region, ring(region, vertical=False), gradient, t, vertical=False)
    source = Rounds(region, _pieces(region, head, "values"), f, vertical=True)
    product(region, source, VectorRun(d_out, f, t, apart=t), y, sums)
    if part == "":
        _softmax(region, head, {"scores": scores, "gradient": gradient}, cycles)
    source = Rounds(region, _pieces(region, head, "keys"), f, vertical=True)
    arrived, d_q = region.buffer("arrived", t, "fp16", 0), region.buffer("d_q", f * t, bank=2)
    spread(region, source, gradient, t, arrived, d_q, vertical=False)
    down = ring(region, vertical=True)
    for sent, rest, name in ((scores, d_out, "d_values"), (gradient, q, "d_keys")):
        by_query = VectorRun(rest, t, f, apart=1, stride=t)
        kept = KeptSums(region, down, _pieces(region, head, name, "fp32"), f, vertical=True)
        product(region, Rounds(region, sent, t, vertical=False), by_query, z, kept)


def _stationary_forward(region: BuiltRectangle, head: Head, cycles: float, part: str) -> None:
    k, n = head.features, head.others
    scores = _scores(region, head, "scores", 2)
    if part in {"", "scores"}:
        rest = VectorRun(region.buffer("keys", k * n, "fp16", 0), k, n, apart=n)
        sums = KeptSums(region, ring(region, vertical=True), scores, n, vertical=True)
        product(region, Feed(region, "q", k), rest, region.buffer("y", n, bank=2), sums)
    if part in {"", "softmax"}:
        _softmax(region, head, {"scores": scores}, cycles)
    if part in {"", "values"}:
        rest = VectorRun(region.buffer("values", n * k, "fp16", 0), n, k, apart=1, stride=n)
        source = Rounds(region, scores, n, vertical=True)
        product(region, source, rest, region.buffer("z", k, bank=2), SentSums(region, "out", k))


def _stationary_backward(region: BuiltRectangle, head: Head, cycles: float, part: str) -> None:
    k, n = head.features, head.others
    scores, gradient = _scores(region, head, "scores", 2), _scores(region, head, "gradient", 0)
    if part == "softmax":
        _softmax(region, head, {"scores": scores, "gradient": gradient}, cycles)
        return
    keys, values = (region.buffer(name, k * n, "fp16", 0) for name in ("keys", "values"))
    y, z = region.buffer("y", n, bank=2), region.buffer("z", k, bank=2)
    sums = KeptSums(region, ring(region, vertical=True), gradient, n, vertical=True)
    d_out = Feed(region, "d_out", k)
    product(region, d_out, VectorRun(values, k, n, apart=n), y, sums)
    if part == "":
        _softmax(region, head, {"scores": scores, "gradient": gradient}, cycles)
    source = Rounds(region, gradient, n, vertical=True)
    product(region, source, VectorRun(keys, n, k, apart=1, stride=n), z, SentSums(region, "d_q", k))
    for feed, owned, name, bank in (("d_out again", scores, "d_values", 2), ("q", gradient, "d_keys", 0)):
        arrived = region.buffer(f"arrived {name}", n, "fp16", bank)
        out = region.buffer(name, k * n, bank=2 - bank)
        spread(region, Feed(region, feed, k), owned, n, arrived, out, vertical=True)
