"""Attention on P x P cores as a fabric program: prefill and decode as in WaferLLM (fp16; heads treated as one
wide head).

Symbols: m queries, n keys, d features per core; r and c the ring ranks of a core's row and column.

prefill  scores: only the keys move, around the folded rings of the columns.  In step s a row of rank r has key block
         r - s; its partial scores (each core has its own features) go around the ring of the row, added as they pass,
         and end at rank -s: there the value product needs them first, so nothing is skewed afterwards.
         softmax: statistics of a query all-reduced along the row.
         values: MeshGEMM of the probabilities and the values.
decode   one query: keys and values of the oldest tokens move one row up (the shift of the cache); each core
         multiplies its piece of the query with its keys, the row all-reduces the scores; maximum and sum
         all-reduce down the columns; each core multiplies the probabilities with its values, the column
         all-reduces the output.  All-reduces go over K-trees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.fabric.format.builder import Buffer, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.fabric.format.program import Fn
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.line_stages import Lines, RowLayout, Sharing
from wse_sim.kernels.blocks.lines import Line, LinePart, emit_allreduce, new_builder, route_allreduce
from wse_sim.kernels.blocks.mesh import best_groups
from wse_sim.kernels.blocks.ring import WIDE, ring, route_ring
from wse_sim.kernels.blocks.trees import k_tree
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.kernels.contract.family import Array, Case, Dims, ProgramOptions, Tiling
from wse_sim.kernels.families.attention.attributes import AttentionAttributes
from wse_sim.kernels.families.attention.cost import SOFTMAX, SOFTMAX_SHAPES
from wse_sim.kernels.families.attention.reference import compute


@dataclass(frozen=True)
class GridTile:
    """m queries, n keys, d features per core of a grid of `side` x `side`."""

    side: int
    m: int
    n: int
    d: int


def grid_program(dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
    """Return the program of prefill, or of decode if there is a single query.

    Raises
    ------
    KernelError
        For several samples, a single core, or a rectangle that is not square.
    """
    side = int(tiling.rows)
    if side != int(tiling.cols) or side < 2 or dims["b"] != 1:
        raise KernelError(
            f"attention 'grid': {dims['b']} samples on {side} x {tiling.cols} cores have no fabric program; "
            "use one sample on a square of at least 2 x 2 cores"
        )
    m, n = ceil_div(int(dims["q"]), side), ceil_div(int(dims["kv"]), side)
    tile = GridTile(side, m, n, ceil_div(int(dims["heads"]) * int(dims["d"]), side))
    seed = int(options.get("seed", 0))
    if dims["q"] == 1:
        groups = AttentionAttributes.of(tiling.options, options.get("attrs")).groups or int(best_groups(side))
        return _decode(tile, groups, wafer, seed)
    return _prefill(tile, wafer, seed)


def _operands(tile: GridTile, queries: int, seed: int) -> tuple[Any, Any, Any, Any]:
    """Return scaled queries, keys, values and the expected output of one wide head."""
    rng = np.random.default_rng(seed)
    wide, keys = tile.side * tile.d, tile.side * tile.n
    q, k, v = (
        rng.standard_normal((count, wide)).astype(np.float16).astype(np.float32)
        for count in (queries, keys, keys)
    )
    out = compute(q[None, None], k[None, None], v[None, None])[0, 0]
    return q * np.float32(wide**-0.5), k, v, out


def _tiles(x: Array, side: int) -> Array:
    """Return a matrix (rows, cols) as column-major tiles of the grid: (side, side, cols x rows)."""
    height, width = x.shape[0] // side, x.shape[1] // side
    return x.reshape(side, height, side, width).transpose(0, 2, 3, 1).reshape(side, side, width * height)


# ---- prefill ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TileShift:
    """A tile that moves along a ring while the current one is multiplied: two buffers, colors by position."""

    buffers: tuple[Any, Any]
    sends: list[int]
    receives: list[int]

    def start(self, core: CoreClass, now: int, position: int, thread: int) -> None:
        """Send the current tile and receive the next one, on two microthreads."""
        moves = (
            (fabric_out(self.sends[position]), self.buffers[now].dsd()),
            (self.buffers[1 - now].dsd(), fabric_in(self.receives[position])),
        )
        for more, (target, source) in enumerate(moves):
            core.mov(
                target, source, dtype="fp16", wire=WIDE["fp16"], thread=thread + more, start="none", priority="medium"
            )  # fmt: skip


def _multiply(
    core: CoreClass,
    left: Buffer,
    right: Buffer,
    y: Buffer,
    sizes: tuple[int, int, int],
    wafer: Wafer,
    fresh: bool,
) -> None:
    """Add right (k, n) times left (k, m) to y (n, m), one map per k; with `fresh` the first one replaces
    y."""
    m, k, n = sizes

    def some(first: int, rounds: int, replaces: bool) -> None:
        with core.loop(rounds):
            core.busy(round(wafer.loop_cycles))
            core.fmac_vectors(
                *(y.dsd(), right.dsd(first * n, n, step=n), left.dsd(first * m, m, step=m), m),
                dst_stride=m,
                fresh=replaces,
                dtype="fp16",
                start="none",
            )

    # The last one goes first, so that the others start in the bank in which their tile starts.
    if fresh:
        some(k - 1, 1, True)
    some(0, k - fresh, False)


def _prefill(tile: GridTile, wafer: Wafer, seed: int) -> Case:
    p, m, n, d = tile.side, tile.m, tile.n, tile.d
    b = new_builder(p, p, wafer)
    order = ring(p)
    rank = np.argsort(order)
    row, column = Line(b, vertical=False), Line(b, vertical=True)
    down = route_ring(column, order, 0)
    along = route_ring(row, order, down[2])
    # Sums travel around the ring in reverse order, so that the owner of the next step is the core that
    # started this sum.
    back = route_ring(row, order[::-1], down[2] + along[2])
    sharing = Sharing.along(row, p, down[2] + along[2] + back[2])

    q = b.buffer("q", d * m, "fp16", bank=2)
    y, out = b.buffer("y", n * m, "fp16", bank=0), b.buffer("out", d * m, "fp16", bank=0)
    keys, values = (
        TileShift((b.buffer(f"{name}0", d * n, "fp16"), b.buffer(f"{name}1", d * n, "fp16")), *down[:2])
        for name in ("keys", "values")
    )
    scores = b.buffer("scores", n * m, "fp16", bank=2)
    weights = TileShift((scores, b.buffer("weights", n * m, "fp16", bank=2)), *along[:2])
    buffers = {"scores": scores, "statistic": b.buffer("statistic", m, bank=0)}
    lines = Lines(SOFTMAX_SHAPES, buffers, RowLayout(m, n), sharing, wafer, apart=m)

    for i, j in np.ndindex(p, p):
        core = b.core_class(f"core {i} {j}")
        for step in range(p):
            core.busy(round(wafer.step_cycles))
            keys.start(core, step % 2, i, 1)
            _multiply(core, q, keys.buffers[step % 2], y, (m, d, n), wafer, True)
            for thread in (1, 2):
                core.join(thread)
            _pass_sums(core, y, scores, (back[0][j], back[1][j]), int(rank[j] + step) % p, p)
        lines.emit(core, SOFTMAX, j)
        for step in range(p):
            now = step % 2
            core.busy(round(wafer.step_cycles))
            values.start(core, now, i, 1)
            weights.start(core, now, j, 3)
            _multiply(core, weights.buffers[now], values.buffers[now], out, (m, n, d), wafer, step == 0)
            for thread in range(1, 5):
                core.join(thread)
        b.place(core, (i, j))

    q_values, k_values, v_values, wanted = _operands(tile, p * m, seed)
    at, inner = np.mgrid[0:p, 0:p]
    # Values (n, d) by rows of a key; row rank r and column rank c start with block r + c.
    v_tiles = v_values.reshape(p, n, p, d).transpose(0, 2, 1, 3).reshape(p, p, n * d)
    inputs = {
        "q": _tiles(q_values, p),
        # The keys of block r, features of the column: (d, n).
        "keys0": _tiles(k_values, p)[rank],
        "values0": v_tiles[(rank[at] + rank[inner]) % p, inner],
    }
    return Case(b.build(), b.config, inputs, {"out": _tiles(wanted, p)}, tolerance=2e-2)


def _pass_sums(
    core: CoreClass, y: Buffer, kept: Buffer, colors: tuple[int, int], behind: int, cores: int
) -> None:
    """Write a core's part in the sum of a step; `behind`: its distance in ranks from the owner (0: the owner)."""
    sends, receives = colors
    if behind == 0:
        core.add(kept.dsd(), y.dsd(), fabric_in(receives), dtype="fp16", start="none")
    elif behind == cores - 1:
        core.mov(fabric_out(sends), y.dsd(), dtype="fp16", start="none")
    else:
        core.add(fabric_out(sends), y.dsd(), fabric_in(receives), dtype="fp16", start="none")


# ---- decode ----------------------------------------------------------------------------------------


def _decode(tile: GridTile, groups: int, wafer: Wafer, seed: int) -> Case:
    p, n, d = tile.side, tile.n, tile.d
    b = new_builder(p, p, wafer)
    row, column, shares, color = Line(b, vertical=False), Line(b, vertical=True), [], 2
    tree, loop = k_tree(p, groups, wafer.stream_order), round(wafer.loop_cycles)
    for line in (row, column, column, column):
        parts, used = route_allreduce(line, tree, color)
        shares.append(parts)
        color += used
    _route_up(column, p)

    def share(core: CoreClass, part: LinePart, of: Buffer, op: str) -> None:
        core.busy(loop)  # the call; its first instruction pays o
        emit_allreduce(core, part, of, "fp16", "code", op)

    x, out = b.buffer("scores", n, "fp16", bank=0), b.buffer("out", d, "fp16", bank=0)
    keys, values = b.buffer("keys", d * n, "fp16", bank=2), b.buffer("values", n * d, "fp16", bank=2)
    q, one = b.buffer("q", d, "fp16"), b.buffer("one", 1, "fp16")
    new = b.buffer("new", 2 * d, "fp16")
    for i, j in np.ndindex(p, p):
        core = b.core_class(f"core {i} {j}")
        _shift_cache(core, i, p, keys, values, new, (n, d))
        core.busy(loop)
        core.fmac_vectors(x.dsd(), q.dsd(), keys.dsd(), n, b_stride=n, fresh=True, dtype="fp16", start="none")
        share(core, shares[0][j], x, "add")
        core.mov(one.dsd(), scalar(-6e4), dtype="fp16")
        core.max(one.dsd(0, 1, 0), one.dsd(0, 1, 0), x.dsd(), length=n, dtype="fp16")
        share(core, shares[1][i], one, "max")
        core.sub(x.dsd(), x.dsd(), one.dsd(0, 1, 0), length=n, dtype="fp16")
        core.map(Fn.EXP, x.dsd(), x.dsd(), dtype="fp16")
        core.mov(one.dsd(), scalar(0.0), dtype="fp16")
        core.add(one.dsd(0, 1, 0), one.dsd(0, 1, 0), x.dsd(), length=n, dtype="fp16")
        share(core, shares[2][i], one, "add")
        core.map(Fn.RECIPROCAL, one.dsd(), one.dsd(), dtype="fp16")
        core.mul(x.dsd(), x.dsd(), one.dsd(0, 1, 0), length=n, dtype="fp16")
        core.busy(loop)
        core.fmac_vectors(
            out.dsd(), x.dsd(), values.dsd(), d, b_stride=d, fresh=True, dtype="fp16", start="none"
        )
        share(core, shares[3][i], out, "add")
        b.place(core, (i, j))

    q_values, k_values, v_values, wanted = _operands(tile, 1, seed)
    pieces = np.broadcast_to(q_values.reshape(1, p, d), (p, p, d))
    before = _before_shift(k_values, v_values, tile)
    expected = np.broadcast_to(wanted.reshape(1, p, d), (p, p, d))
    return Case(b.build(), b.config, {"q": pieces, **before}, {"out": expected}, tolerance=2e-2)


def _route_up(column: Line, side: int) -> None:
    """Route one hop toward row 0, on two colors that alternate by row."""
    for v in range(1, side):
        column.builder.route(v % 2, column.place(v), rx="R", tx="N")
        column.builder.route(v % 2, column.place(v - 1), rx="S", tx="R")


def _shift_cache(
    core: CoreClass, i: int, side: int, keys: Buffer, values: Buffer, new: Buffer, tile: tuple[int, int]
) -> None:
    """Move a core's oldest key and value one row up, into the slots of those that left that row.

    They arrive in a spare slot, because all rows send at once. Row 0 has a free slot; the last row takes the
    new token, which it already has.
    """
    n, d = tile
    places = (keys.dsd(0, d, n), values.dsd(0, d))
    for thread, place in enumerate(places, 1):
        if i > 0:
            core.mov(fabric_out(i % 2), place, length=d, dtype="fp16", thread=thread)
    for number in range(2):
        if i < side - 1:
            core.mov(new.dsd(number * d, d), fabric_in((i + 1) % 2), dtype="fp16")
    for thread in (1, 2):
        core.join(thread)
    for number, place in enumerate(places):
        core.mov(place, new.dsd(number * d, d), length=d, dtype="fp16")


def _before_shift(k: Array, v: Array, tile: GridTile) -> dict[str, Any]:
    """Return the cache before the shift: each core's first key and value are one row lower, and its last are
    new."""
    p, n, d = tile.side, tile.n, tile.d
    keys = k.reshape(p, n, p, d).transpose(0, 2, 3, 1).copy()
    values = v.reshape(p, n, p, d).transpose(0, 2, 1, 3).copy()
    new = np.zeros((p, p, 2 * d), np.float32)
    new[-1] = np.concatenate([keys[-1, :, :, 0], values[-1, :, 0]], axis=-1)
    keys[..., 0] = np.roll(keys[..., 0], 1, axis=0)
    values[:, :, 0] = np.roll(values[:, :, 0], 1, axis=0)
    return {"keys": keys.reshape(p, p, -1), "values": values.reshape(p, p, -1), "new": new}
