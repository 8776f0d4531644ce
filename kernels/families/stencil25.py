"""25-point stencil of the wave equation, eighth order in space, one column of nz cells per core.

Mapping: x and y over the cores, z in memory, worked through in blocks of b cells (16 neighbour columns
of a block must fit).  Per block 43 vector instructions: 17 products (the centre, and four neighbours in
each of four directions straight from the fabric), 16 sums of these, 8 multiply-accumulates along z, 2
for the step in time.  A core's column travels four hops in each direction on one of five colors per
direction (its position modulo five), multicast to the four cores it crosses.

    T = 43 o + nz c + b m
    c = 17 / mul + 16 / add + 10 / fma + 4 + stalls    (WSE-2: 47 + stalls; 4: a word sent in each direction)
    m   exposed exchange of the first block, per cell

The 43 starts count once per step, because waits hide those of later blocks. Memory stalls are those of the
published profile (11.6 % of the cycles per cell; `stencil_memory_stall_cycles`).  The wait for neighbours
(`stencil_neighbour_wait_cycles`) and m (`stencil_first_block_wait_cycles`) are **fitted**: they are the
remainder of the slope of four silicon points (62.76 cycles per cell), a seventh of the cost, and no
publication explains them. The program does not have them: it takes 61.0 busy cycles per cell in one block
(the 47, and 14 for bank conflicts in its layout), and waits 118 cycles per step for any number of cells.
Source: arXiv 2204.03775, calibration 1.6.  Band: cost 0.5 % of the long silicon runs; program 8 % of the cost
for blocks of 50 cells and more (it pays 47 starts per block, sends included).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.fabric.format.builder import Buffer, Builder, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.lines import new_builder
from wse_sim.kernels.contract.equations import bytes_of, ceil_rate, check_tiling
from wse_sim.kernels.contract.family import (
    Array,
    Case,
    Cost,
    Dims,
    Family,
    Footprint,
    How,
    ProgramOptions,
    Tiling,
    asked,
)
from wse_sim.kernels.contract.parameters import (
    Attributes,
    attribute,
    sizes,
)
from wse_sim.kernels.contract.registry import register

PRODUCTS, SUMS, ACCUMULATES = 17, 16, 10
INSTRUCTIONS = PRODUCTS + SUMS + ACCUMULATES
REACH = 4
SENDS = 4  # per cell, one in each direction; they take issue cycles like the products
WEIGHTS = (-205 / 72, 8 / 5, -1 / 5, 8 / 315, -1 / 560)  # second derivative, eighth order
COURANT = 0.1
DIRECTIONS = (("E", 0, 1), ("W", 0, -1), ("S", 1, 0), ("N", -1, 0))
OPPOSITE = {"E": "W", "W": "E", "N": "S", "S": "N"}


@dataclass(frozen=True)
class StencilAttributes(Attributes):
    """Attributes of a stencil: steps in time."""

    steps: int = attribute(1, "steps in time", at_least=1)


class Stencil25(Family):
    """The family of 25-point stencils."""

    name = "stencil25"
    dims = sizes(nz="cells of a core's column", block="cells that are worked on at a time")
    mappings = ("grid",)
    attributes = StencilAttributes

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Return the bytes of two wave fields, a result, and the 16 neighbour columns of a block."""
        dtype = asked(how, dtype="fp32").dtype
        size = bytes_of(dtype)
        return Footprint(
            activations_bytes=2.0 * dims["nz"] * size,
            buffers_bytes=(4 * REACH + 2.0) * dims["block"] * size,
            code_bytes=wafer.kernel_code_bytes,
        )

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost of one step."""
        check_tiling(self.name, tiling, self.mappings)
        nz, block = dims["nz"], np.minimum(dims["block"], dims["nz"])
        return Cost(
            compute=PRODUCTS * ceil_rate(nz, wafer.mul_fp32_per_cycle)
            + SUMS * ceil_rate(nz, wafer.add_fp32_memory_per_cycle)
            + ACCUMULATES * ceil_rate(nz, wafer.fma_fp32_per_cycle),
            ramp=nz * wafer.stencil_memory_stall_cycles,
            fabric=nz * (SENDS + wafer.stencil_neighbour_wait_cycles)
            + block * wafer.stencil_first_block_wait_cycles,
            startup=INSTRUCTIONS * wafer.vector_start_cycles,
        )

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return the program of `steps` steps (option, default 1); u and u_old are swapped after every
        step."""
        nz, rows, cols = int(dims["nz"]), int(tiling.rows), int(tiling.cols)
        block = min(int(dims["block"]), nz)
        attrs = options.get("attrs") or {}
        if nz % block:
            block = next(size for size in range(block, 0, -1) if nz % size == 0)
        if min(rows, cols) <= 2 * REACH:
            raise KernelError(
                f"stencil25 on {rows} x {cols} cores has no interior; use more than {2 * REACH} rows and columns"
            )
        b = new_builder(rows, cols, wafer)
        u, old = b.buffer("u", nz + 2 * REACH), b.buffer("old", nz + 2 * REACH)
        # The neighbour columns are contiguous at an odd distance (one guard cell), so every second sum has a
        # bank conflict with `acc`: 8 cycles per cell. The published layout is not known; this one was chosen
        # because it is close to the 7.4 cycles of the profile.
        far = b.buffer("far", 4 * REACH * (block | 1), bank=0)
        acc = b.buffer("acc", block, bank=0)
        row, col = np.mgrid[0:rows, 0:cols]
        _route(b, row, col)
        steps = StencilAttributes.of(tiling.options, attrs).steps
        kinds = _kinds(row, col)
        for number, (exchange, mask) in enumerate(kinds.items()):
            k = b.core_class(f"cell {number}")
            for step in range(steps):
                now, then = (u, old) if step % 2 == 0 else (old, u)
                with k.loop(nz // block):
                    _block(k, exchange, now, then, far, acc, block)
            b.place(k, mask)
        return _case(b, nz, steps, int(options.get("seed", 0)))


def _route(b: Builder, row: Array, col: Array) -> None:
    """Set the routes: color 5 d + p carries the columns of the cores at position p (modulo 5) in direction
    d."""
    for d, (port, down, right) in enumerate(DIRECTIONS):
        along = col if right else row
        size = along.max() + 1
        sign = down + right
        for p in range(REACH + 1):
            # Distance from the sender of color p, in the direction of travel.
            distance = (sign * (along - p)) % (REACH + 1)
            sender = along - sign * distance
            exists = (sender >= 0) & (sender < size)
            ahead = (along + sign >= 0) & (along + sign < size)
            color = (REACH + 1) * d + p
            b.route_mask(color, (distance == 0) & ahead, rx="R", tx=port)
            middle = exists & (distance > 0)
            b.route_mask(color, middle & (distance < REACH) & ahead, rx=OPPOSITE[port], tx="R" + port)
            b.route_mask(color, middle & ((distance == REACH) | ~ahead), rx=OPPOSITE[port], tx="R")


def _kinds(row: Array, col: Array) -> dict[Any, Any]:
    """Group cores by their exchange: (color, 0) for a send, (color, distance) for a receive, in order.

    In sub-step p the cores at position p of a line send, and all others of the line receive that stream at
    the same time. All cores keep this order, so no multicast waits for a core that is busy with another one.
    """
    kinds: dict[Any, Any] = {}
    for at in zip(row.ravel().tolist(), col.ravel().tolist(), strict=True):
        exchange = []
        for p in range(REACH + 1):
            for d, (_, down, right) in enumerate(DIRECTIONS):
                along, size, sign = (at[1], col.max() + 1, right) if right else (at[0], row.max() + 1, down)
                distance = (sign * (along - p)) % (REACH + 1)
                is_sender = distance == 0
                if 0 <= (along + sign if is_sender else along - sign * distance) < size:
                    exchange.append(((REACH + 1) * d + p, int(distance)))
        kinds.setdefault(tuple(exchange), np.zeros(row.shape, bool))[at] = True
    return kinds


def _block(
    k: CoreClass,
    exchange: Sequence[tuple[int, int]],
    now: Buffer,
    then: Buffer,
    far: Buffer,
    acc: Buffer,
    block: int,
) -> None:
    """Emit the 43 instructions of one block and the 4 sends; cells outside the wafer are zero."""
    centre = now.dsd(REACH, block, step=block)
    k.mul(acc.dsd(), centre, scalar(3 * WEIGHTS[0]))
    received, pitch = 0, block | 1
    for color, distance in exchange:
        if distance == 0:
            k.mov(fabric_out(color), centre)
        else:
            k.mul(far.dsd(received * pitch, block), fabric_in(color), scalar(WEIGHTS[distance]))
            received += 1
    for i in range(received):
        k.add(acc.dsd(), acc.dsd(), far.dsd(i * pitch, block))
    for distance in range(1, REACH + 1):
        for offset in (-distance, distance):
            k.fmac(
                acc.dsd(), acc.dsd(), now.dsd(REACH + offset, block, step=block), scalar(WEIGHTS[distance])
            )
    target = then.dsd(REACH, block, step=block)
    # u_new = (u + courant / 2 laplacian) - u_old / 2, written over u_old.
    k.fmac(acc.dsd(), centre, acc.dsd(), scalar(COURANT / 2))
    k.fmac(target, acc.dsd(), target, scalar(-0.5))


def _case(b: Builder, nz: int, steps: int, seed: int) -> Case:
    rng = np.random.default_rng(seed)
    shape = (b.rows, b.cols, nz + 2 * REACH)
    fields = [np.zeros(shape, np.float32), np.zeros(shape, np.float32)]
    for field in fields:
        field[:, :, REACH:-REACH] = rng.integers(-4, 5, (b.rows, b.cols, nz))
    inputs = {"u": fields[0].copy(), "old": fields[1].copy()}
    for step in range(steps):
        now, then = fields[step % 2].astype(np.float64), fields[(step + 1) % 2]
        padded = np.pad(now, ((REACH, REACH), (REACH, REACH), (0, 0)))
        inner = slice(REACH, -REACH)
        total = 3 * WEIGHTS[0] * now[:, :, inner]
        for distance in range(1, REACH + 1):
            for axis in range(3):
                for sign in (-distance, distance):
                    total = total + WEIGHTS[distance] * np.roll(padded, sign, axis)[inner, inner, inner]
        then[:, :, inner] = (now[:, :, inner] + COURANT / 2 * total) - 0.5 * then[:, :, inner]
    expected = {"u": fields[0], "old": fields[1]}
    return Case(b.build(), b.config, inputs, expected, tolerance=1e-3)


FAMILY = register(Stencil25())
