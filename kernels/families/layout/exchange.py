"""Transpose of a matrix tiled on P x P cores as a fabric program: every tile crosses to the mirrored core.

Half of a tile's words travel along the row to the diagonal and then along the column, the other half along
the column first. So every link carries the words of one stream only, at most (P - 1) b / 2 for tiles of b
words::

    A   above the diagonal, first half     west to the diagonal, then south to the mirrored core
    B   below, first half                  east to the diagonal, then north
    C   above, second half                 south to the diagonal, then west
    D   below, second half                 north to the diagonal, then east

A core sends its first half, then its second, because both at once would halve the rate of the shared ramp.
The second halves run one round behind the first, so the exchange takes P rounds of b / 2.

Cores share a stream's color in sequence: a router injects its core's words first, and the last of them
switches it to pass words from farther out. A receiving router delivers words until the last word of its tile
switches it to pass the rest. So streams of one line follow each other without gaps, and no core relays words.
A tile has two rows, each a half; the stride with which a row is stored transposes it. In fp32 a core sends
and receives at the same time, with one issue cycle per word for each: half the rate of a link.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wse_sim.fabric.format.builder import Buffer, Builder, Switch, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass, Travel
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.lines import new_builder
from wse_sim.kernels.blocks.ring import WIDE
from wse_sim.kernels.contract.family import Array, Case


def tile_shape(n: int) -> tuple[int, int]:
    """Return (rows, columns) of a tile of n elements: two rows, or one if n is odd."""
    rows = 1 if n % 2 else 2
    return rows, n // rows


def tile_halves(n: int, x: Buffer, y: Buffer) -> list[tuple[Any, Any]]:
    """Return operands (as sent, as received transposed) of both halves: the tile's rows, or the halves of its
    only row."""
    rows, cols = tile_shape(n)
    if rows == 2:
        return [(x.dsd(row * cols, cols), y.dsd(row, cols, 2)) for row in (0, 1)]
    cuts = ((0, n - n // 2), (n - n // 2, n // 2))
    return [(x.dsd(first, count), y.dsd(first, count)) for first, count in cuts if count > 0]


def exchange_program(n: int, p: int, wafer: Wafer, dtype: str, seed: int) -> Case:
    """Return the program that transposes a matrix of tiles of n elements on p x p cores."""
    b = new_builder(p, p, wafer)
    halves = tile_halves(n, b.buffer("x", n, dtype), b.buffer("y", n, dtype))
    for number in range(len(halves) if p > 1 else 0):
        _route(b, p, 2 * number, along_row=number == 0)
        for color in (
            2 * number,
            2 * number + 1,
        ):  # a core receives on one of them; six words keep pairs at full rate
            b.input_queue(color, number)
    rows, cols = np.mgrid[0:p, 0:p]
    for name, where, side in (("above", cols > rows, 0), ("below", cols < rows, 1)):
        if where.any():
            core = b.core_class(name)
            _cross(core, halves, dtype, side)
            b.place(core, where)
    core = b.core_class("diagonal")
    for own, turned in halves:
        core.mov(turned, own, dtype=dtype)
    b.place(core, rows == cols)
    return _case(b, n, p, seed)


def _route(b: Builder, p: int, first: int, *, along_row: bool) -> None:
    """Set the routes of the two mirrored streams of one half: colors `first` (from above) and `first` + 1
    (from below)."""
    for i, j in np.ndindex(p, p):
        for color, above in ((first, True), (first + 1, False)):
            # Toward the diagonal, and from it to the mirrored core.
            inward = ("W" if above else "E") if along_row else ("S" if above else "N")
            outward = ("S" if above else "N") if along_row else ("W" if above else "E")
            behind, before = _opposite(inward), _opposite(outward)
            if i == j:
                has_source = i < p - 1 if (above == along_row) else i > 0
                if has_source:
                    b.route(color, (i, j), rx=behind, tx=outward)
            elif (j > i) == above:
                far = j in (0, p - 1) if along_row else i in (0, p - 1)
                passing = None if far else Switch([{"rx": behind}])
                b.route(color, (i, j), rx="R", tx=inward, switch=passing)
            else:
                far = i in (0, p - 1) if along_row else j in (0, p - 1)
                passing = None if far else Switch([{"tx": outward}])
                b.route(color, (i, j), rx=before, tx="R", switch=passing)


def _opposite(port: str) -> str:
    return {"N": "S", "S": "N", "E": "W", "W": "E"}[port]


def _cross(core: CoreClass, halves: list[tuple[Any, Any]], dtype: str, side: int) -> None:
    """Send one half after the other, while those of the mirrored core arrive."""
    how: Travel = {"dtype": dtype, "wire": WIDE.get(dtype)}
    for number, (_, turned) in enumerate(halves):
        color = fabric_in(2 * number + 1 - side)
        core.mov(turned, color, thread=number + 1, priority="medium", start="none", **how)
    for number, (own, _) in enumerate(halves):
        core.mov(fabric_out(2 * number + side, "path"), own, **how)
    for number in range(len(halves)):
        core.join(number + 1)


def _case(b: Builder, n: int, p: int, seed: int) -> Case:
    h, w = tile_shape(n)
    matrix = np.random.default_rng(seed).integers(-99, 99, (p * h, p * w)).astype(np.float32)

    def tiles(values: Array, height: int, width: int) -> Array:
        return values.reshape(p, height, p, width).swapaxes(1, 2).reshape(p, p, n)

    return Case(b.build(), b.config, {"x": tiles(matrix, h, w)}, {"y": tiles(matrix.T, w, h)})
