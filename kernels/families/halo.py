"""Five-point stencil with halo exchange: y = c x + sum over the four neighbours of d x_neighbour.

Mapping: one column of nz cells per core.  Every core sends its column to its four neighbours (one microthread
per direction) and multiplies arriving columns directly from the fabric.  Two colors per direction,
alternating by parity, so that a router sends on one and receives on the other.

    T = task start + 9 o + 9 B'          B' = nz (fp32) issue cycles of each of 4 sends, 1 product and
                                         4 multiply-accumulates, in one issue slot

Cores at the edge of the rectangle run fewer instructions, so interior cores set the time.  Source: vector
start and shared issue slot of calibration 1.1.  Band: 5 %.
"""

from __future__ import annotations

from typing import Unpack

import numpy as np

from wse_sim.fabric.format.builder import fabric_in, fabric_out, scalar
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.lines import new_builder
from wse_sim.kernels.contract.equations import bytes_of, ceil_rate, check_tiling
from wse_sim.kernels.contract.family import (
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
    sizes,
)
from wse_sim.kernels.contract.registry import register

CENTRE, NEIGHBOUR = 0.5, 0.125
DIRECTIONS = (("E", 0, 1), ("W", 0, -1), ("S", 1, 0), ("N", -1, 0))
OPPOSITE = {"E": "W", "W": "E", "N": "S", "S": "N"}


class Halo(Family):
    """The family of nearest-neighbour stencils."""

    name = "halo"
    dims = sizes(nz="cells of a core's column")
    mappings = ("grid",)

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Return the bytes of two columns and code."""
        dtype = asked(how, dtype="fp32").dtype
        return Footprint(
            activations_bytes=2.0 * dims["nz"] * bytes_of(dtype), code_bytes=wafer.kernel_code_bytes
        )

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost: issue cycles and starts of the core with the most neighbours."""
        check_tiling(self.name, tiling, self.mappings)
        nz = dims["nz"]
        neighbours = np.minimum(2, tiling.rows - 1) + np.minimum(2, tiling.cols - 1)
        zero = 0.0 * (nz * neighbours)
        product = ceil_rate(nz, wafer.mul_fp32_per_cycle)
        arrive = nz * max(wafer.wavelet_cycles, 1.0 / wafer.fma_fp32_per_cycle)
        return Cost(
            compute=product + neighbours * arrive,
            ramp=neighbours * nz * wafer.wavelet_cycles + zero,
            startup=wafer.task_start_cycles + (2 * neighbours + 1) * wafer.vector_start_cycles + zero,
        )

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return a program in which every core starts with a column x and ends with y."""
        nz, rows, cols = int(dims["nz"]), int(tiling.rows), int(tiling.cols)
        b = new_builder(rows, cols, wafer)
        x, y = b.buffer("x", nz, bank=0), b.buffer("y", nz, bank=2)
        row, col = np.mgrid[0:rows, 0:cols]
        kinds: dict[tuple[tuple[int, int], ...], list[tuple[int, int]]] = {}
        for at in zip(row.ravel().tolist(), col.ravel().tolist(), strict=True):
            kinds.setdefault(_exchanges(at, rows, cols), []).append(at)
        for number, (exchanges, places) in enumerate(kinds.items()):
            k = b.core_class(f"cell {number}")
            k.busy(b.config.task_start_cycles)
            for thread, (send, _) in enumerate((e for e in exchanges if e[0] >= 0), 1):
                k.mov(fabric_out(send), x.dsd(), thread=thread, priority="medium")
            k.mul(y.dsd(), x.dsd(), scalar(CENTRE))
            for _, receive in exchanges:
                if receive >= 0:
                    k.fmac(y.dsd(), y.dsd(), fabric_in(receive), scalar(NEIGHBOUR))
            mask = np.zeros((rows, cols), bool)
            mask[tuple(np.transpose(places))] = True
            b.place(k, mask)
        for index, (port, down, right) in enumerate(DIRECTIONS):
            parity = (row + col) % 2
            inside = (row + down >= 0) & (row + down < rows) & (col + right >= 0) & (col + right < cols)
            behind = (row - down >= 0) & (row - down < rows) & (col - right >= 0) & (col - right < cols)
            for p in (0, 1):
                b.route_mask(2 * index + p, inside & (parity == p), rx="R", tx=port)
                b.route_mask(2 * index + 1 - p, behind & (parity == p), rx=OPPOSITE[port], tx="R")
        values = np.random.default_rng(int(options.get("seed", 0))).integers(-8, 9, (rows, cols, nz))
        values = values.astype(np.float32)
        padded = np.pad(values, ((1, 1), (1, 1), (0, 0)))
        around = padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]
        return Case(b.build(), b.config, {"x": values}, {"y": CENTRE * values + NEIGHBOUR * around})


def _exchanges(at: tuple[int, int], rows: int, cols: int) -> tuple[tuple[int, int], ...]:
    """Return, per direction, the color to send on and the color to receive on; -1 if there is none."""
    row, col = at
    parity = (row + col) % 2
    found = []
    for index, (_, down, right) in enumerate(DIRECTIONS):
        inside = 0 <= row + down < rows and 0 <= col + right < cols
        behind = 0 <= row - down < rows and 0 <= col - right < cols
        found.append((2 * index + parity if inside else -1, 2 * index + 1 - parity if behind else -1))
    return tuple(found)


FAMILY = register(Halo())
