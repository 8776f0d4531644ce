"""Parts of a layer on a grid (:mod:`wse_sim.modes.generation.layer`) as runs of fabric programs.

Decode is measured at full size: a matrix-vector product and its K-tree on one line of cores (all parallel
lines are equal), so the program's cycles replace those of the formula. Prefill is measured on a grid of STEPS
x STEPS cores with the tile of the plan; its STEPS steps represent P steps.  Scalar work (exponentials, roots,
starts of short vectors) is measured on one core.

A layer for several tokens at once (:mod:`wse_sim.modes.generation.joined_layer`) is measured like decode, at full
size: a product of n vectors with its K-tree, and statistics of n words. Its products, all-reduces and scalar
work are separate programs that run one after the other.  A whole layer as one program, on fewer cores, takes
96 to 105 % of their sum (docs/generation.md).

No program measures the skew before the products of prefill and its row all-reduces (0.2 % of a layer).
"""

from __future__ import annotations

from collections import Counter

from wse_sim.graph import Attr
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.mesh import best_groups, joined_gemv, mesh_product, tree_allreduce
from wse_sim.kernels.blocks.probes import pointwise_probe
from wse_sim.kernels.contract.equations import ceil_div, ceil_rate, mov_rate, words
from wse_sim.kernels.contract.family import Cost, Probe, Tiling
from wse_sim.modes.base import Layer, Part
from wse_sim.modes.generation.decoder import LayerShape, LayerWork
from wse_sim.modes.generation.grid import Sides, sides
from wse_sim.modes.generation.joined_layer import joined_layer_cycles, met
from wse_sim.modes.generation.layer import decode_layer_cycles, prefill_layer_cycles, work_of

STEPS = 8  # cores per side, and steps, of the probe of a shifting product
ROWS = 4  # rows of the first run of a norm


def decode_parts(
    shape: LayerShape | LayerWork, context: int, grid: Sides, wafer: Wafer, groups: int | None = None
) -> tuple[Part, ...]:
    """Return the parts of one layer for one token with `context` keys on `grid` x `grid`, or (rows, cols),
    cores."""
    work, (rows, cols) = work_of(shape), _counts(grid)
    s, q, d = _tile(context, rows), _tile(work.query, cols), _tile(work.hidden, min(rows, cols))
    # Scores and values, and the products of the layer: each with an all-reduce of its outputs.
    tiles = Counter[tuple[int, int, int]]()
    laid = (
        way for p in work.products if not work.has_squares(p) for way in p.lies(work.hidden, (rows, cols))
    )
    for k, n, line, times in (
        (q, s, cols, 1.0),
        (s, q, rows, 1.0),
        *((int(way.k), int(way.n), int(way.line), way.times) for way in laid),
    ):
        tiles[k, n, line] += times  # type: ignore[assignment]  # a mean over layers need not be whole
    products = [_joined(k, n, 1, runs, line, groups, wafer) for (k, n, line), runs in tiles.items()]
    short = Cost(startup=float(work.instructions(wafer) * wafer.vector_start_cycles))
    return (
        *products,
        _statistics(work.statistics, rows, groups, wafer),
        _exponentials(s + 2 * _tile(int(work.activated), cols), wafer),
        _roots(work, d, wafer),
        Part(
            pointwise_probe("short vectors", "elementwise", d, Tiling(1, 1, "streamed"), short, dtype="fp16")
        ),
    )


def joined_parts(
    shape: LayerShape | LayerWork, tokens: int, grid: Sides, wafer: Wafer, groups: int | None = None
) -> tuple[Part, ...]:
    """Return the parts of one layer for `tokens` joined tokens with contexts of one slot, on `grid` x `grid`,
    or (rows, cols), cores."""
    n, work, (rows, cols) = tokens, work_of(shape), _counts(grid)
    short_side = min(rows, cols)
    q, d, f = _tile(work.query, cols), _tile(work.hidden, short_side), _tile(int(work.activated), cols)
    products = [
        _joined(q, 1, n, 1.0, cols, groups, wafer, "weights"),
        _joined(1, q, n, 1.0, rows, groups, wafer, "weights"),
    ]
    for p in work.products:
        if work.has_squares(p):
            continue  # no program measures experts on separate cores
        more, vectors = met(work, p, n)
        products += [
            _joined(
                int(way.k), int(way.n), int(vectors), float(more) * way.times, int(way.line), groups, wafer
            )
            for way in p.lies(work.hidden, (rows, cols))
        ]
    instructions, shares = float(work.instructions(wafer)), _tile(n, short_side)
    short = Cost(
        compute=(n > 1) * instructions * n * d / wafer.peak_fma_fp16_per_cycle,
        startup=instructions * wafer.vector_start_cycles,
    )
    streamed = Tiling(1, 1, "streamed")
    return (
        *products,
        _statistics(work.statistics, rows, groups, wafer, n),
        _exponentials(shares * (1 + 2 * f), wafer),
        _roots(work, d, wafer, shares),
        Part(pointwise_probe("short vectors", "elementwise", n * d, streamed, short, dtype="fp16")),
    )


def prefill_parts(shape: LayerShape | LayerWork, tokens: int, grid: int, wafer: Wafer) -> tuple[Part, ...]:
    """Return the parts of one layer over `tokens` tokens on `grid` x `grid` cores."""
    work = work_of(shape)
    s, q, f = (int(ceil_div(int(size), grid)) for size in (tokens, work.query, work.activated_in_prompt))
    # No program measures experts, because their fraction of the tokens is a mean.
    products = [
        _shifted((s, _tile(p.k, grid), _tile(p.n, grid)), p.times, grid, wafer)
        for p in work.products
        if p.groups == 1
    ]
    return (*products, _attention(s, q, grid, wafer), _exponentials(2 * s * f, wafer))


def _counts(grid: Sides) -> tuple[int, int]:
    rows, cols = sides(grid)
    return int(rows), int(cols)


def _tile(size: int, grid: int) -> int:
    return int(ceil_div(size, grid))


def _joined(
    k: int, n: int, vectors: int, runs: float, grid: int, groups: int | None, wafer: Wafer, column: str = ""
) -> Part:
    """Return the part for products of `vectors` vectors with a (k, n) tile, and the all-reduce of their sums
    on a line."""
    sums, groups = n * vectors, min(groups or int(best_groups(grid)), grid)
    local = joined_gemv(k, n, vectors, wafer, column=column)
    cost = runs * (local + tree_allreduce(sums, grid, groups, wafer))
    options: dict[str, Attr] = {"groups": groups}
    if vectors > 1:
        options |= {"vectors": vectors, "column": column}
    tile = f"{k} x {n} per core, {grid} cores" + (f", {vectors} vectors" if vectors > 1 else "")
    # The program clears its result first; that is taken to be one of the short vectors that the layer counts.
    clear = wafer.vector_start_cycles + float(ceil_rate(sums, mov_rate("fp16", wafer)))
    small = Tiling(grid, 1, "grid", options=options)
    probe = Probe("product, all-reduce", "gemv", {"m": k * grid, "n": n}, small, "", 1, cost, tile)
    return Part(probe, runs, clear)


def _statistics(count: float, grid: int, groups: int | None, wafer: Wafer, elements: int = 1) -> Part:
    groups = min(groups or int(best_groups(grid)), grid)
    cost, sent = (
        count * tree_allreduce(elements, grid, groups, wafer),
        int(words(elements, "fp16")),
    )
    line = Tiling(1, grid, "grid", "k_tree", options={"groups": groups})
    tile = f"{sent} word{'s' * (sent > 1)}, {grid} cores"
    probe = Probe("all-reduce", "allreduce", {"words": elements}, line, "", 1, cost, tile)
    # Its program starts a task first.
    return Part(probe, count, float(wafer.task_start_cycles))


def _exponentials(count: int, wafer: Wafer) -> Part:
    """Return the part for exponentials: a softmax of as many elements (limited by memory) on one core."""
    held = min(count, wafer.sram_usable_bytes // (4 * 4))
    cost, one = Cost(special=float(count * wafer.exp_cycles)), Tiling(1, 1, "grid")
    probe = Probe(
        "exponentials",
        "softmax",
        {"rows": 1},
        one,
        "cols",
        max(1, held // 2),
        cost,
        f"{count} elements",
        "fp32",
    )
    return Part(probe)


def _roots(work: LayerWork, d: int, wafer: Wafer, times: int = 1) -> Part:
    """Return the part for roots and divisions: an RMS norm on one core."""
    cost = Cost(special=times * float(work.roots * wafer.sqrt_cycles + work.divisions * wafer.divide_cycles))
    one, attrs = Tiling(1, 1, "grid"), {"kind": "rms"}
    probe = Probe(
        "roots and divisions",
        "norm",
        {"cols": d},
        one,
        "rows",
        ROWS,
        cost,
        f"{d} elements",
        "fp32",
        attrs=attrs,
    )
    return Part(probe)


def _shifted(tile: tuple[int, int, int], times: float, grid: int, wafer: Wafer) -> Part:
    m, k, n = tile
    cost = times * mesh_product((m, k, n), grid, wafer, skewed=False)
    dims = {"m": m * STEPS, "k": k * STEPS, "n": n * STEPS}
    small = Tiling(STEPS, STEPS, "grid", "mesh", options={"skew": False})
    return Part(Probe("product", "gemm", dims, small, "", 1, cost, f"{m} x {k} x {n} per core"))


def _attention(s: int, d: int, grid: int, wafer: Wafer) -> Part:
    """Return the part for scores, softmax and values: the program of attention on a grid of STEPS x STEPS
    cores."""
    scores = mesh_product((s, d, s), grid, wafer, skewed=False, left_moves=False, reduce_rows=True)
    cost = (
        scores + mesh_product((s, s, d), grid, wafer, skewed=False) + Cost(special=s * s * wafer.exp_cycles)
    )
    wide = {"b": 1, "heads": 1, "kv_heads": 1, "q": s * STEPS, "kv": s * STEPS, "d": d * STEPS}
    small, tile = Tiling(STEPS, STEPS, "grid"), f"{s} queries, {s} keys, {d} features per core"
    return Part(Probe("scores, softmax, values", "attention", wide, small, "", 1, cost, tile))


def decoded_layer(
    shape: LayerShape | LayerWork, context: int, grid: Sides, wafer: Wafer, groups: int | None = None
) -> Layer:
    """Return the layer for one token with `context` keys, with the parts that programs measure."""
    cost = decode_layer_cycles(shape, context, grid, wafer, groups=groups)
    return Layer("decode", cost, decode_parts(shape, context, grid, wafer, groups))


def joined_layer(
    shape: LayerShape | LayerWork, tokens: int, grid: Sides, wafer: Wafer, groups: int | None = None
) -> Layer:
    """Return the layer for a chunk of `tokens` tokens of a prompt, with the parts that programs measure."""
    return Layer(
        "chunk",
        joined_layer_cycles(shape, tokens, grid, wafer, groups=groups),
        joined_parts(shape, tokens, grid, wafer, groups),
        "the way of shared special functions down a line, and edges of dies, have no program",
    )


def prefilled_layer(shape: LayerShape | LayerWork, tokens: int, grid: int, wafer: Wafer) -> Layer:
    """Return the layer over a prompt, with the parts that programs measure."""
    return Layer(
        "prefill",
        prefill_layer_cycles(shape, tokens, grid, wafer),
        prefill_parts(shape, tokens, grid, wafer),
        "the first skew of the operands and the row all-reduces have no program",
    )
