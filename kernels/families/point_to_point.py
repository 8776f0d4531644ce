"""One message of `words` wavelets from one core to another, `hops` links away in one direction.

    T = task start + T_H + 1 + hop hops + (B - 1)

T_H = handover_cycles: both ramps and the receiving core; 1: its instruction. Source: the published intercept
of 40 cycles on a CS-3 (29 + 10 + 1), and 2 cycles per hop there.  Band: exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.fabric.format.builder import fabric_in, fabric_out
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.lines import new_builder
from wse_sim.kernels.contract.equations import bytes_of, words
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
from wse_sim.kernels.contract.parameters import Attributes, attribute, sizes
from wse_sim.kernels.contract.registry import register

DIRECTIONS = ("N", "E", "S", "W")


@dataclass(frozen=True)
class PointToPointAttributes(Attributes):
    """Attributes of a message."""

    direction: str = attribute("W", "direction in which it travels", choices=DIRECTIONS)


class PointToPoint(Family):
    """The family of single messages."""

    name = "point_to_point"
    dims = sizes(words="elements of the message", hops="links")
    mappings = ("grid",)
    attributes = PointToPointAttributes

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Return the bytes of the message and code."""
        dtype = asked(how, dtype="fp32").dtype
        return Footprint(
            activations_bytes=1.0 * dims["words"] * bytes_of(dtype), code_bytes=wafer.kernel_code_bytes
        )

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost of start, hops and further words."""
        dtype = self.asked(tiling, how, "fp32").dtype
        return Cost(
            fabric=(words(dims["words"], dtype) - 1) * wafer.wavelet_cycles,
            startup=wafer.task_start_cycles,
            idle=1.0 * dims["hops"] * wafer.hop_cycles + wafer.handover_cycles + 1,
        )

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return a program in which the first core of a line sends x and the last one receives it."""
        dtype, n, hops = str(options.get("dtype", "fp32")), int(dims["words"]), int(dims["hops"])
        towards = PointToPointAttributes.of(tiling.options, options.get("attrs")).direction
        if towards not in DIRECTIONS:
            raise KernelError(f"point_to_point: direction '{towards}' is none of N, E, S, W")
        vertical, reverse = towards in "NS", towards in "NW"
        b = new_builder(hops + 1 if vertical else 1, 1 if vertical else hops + 1, wafer)
        x = b.buffer("x", n, dtype)
        source = {"N": "S", "S": "N", "E": "W", "W": "E"}[towards]

        def at(i: int) -> tuple[int, int]:
            i = hops - i if reverse else i
            return (i, 0) if vertical else (0, i)

        sender, receiver = b.core_class("sender"), b.core_class("receiver")
        sender.busy(b.config.task_start_cycles)
        sender.mov(fabric_out(0), x.dsd(), dtype=dtype, start="none")
        receiver.mov(x.dsd(), fabric_in(0), dtype=dtype, start="none")
        b.place(sender, at(0))
        b.place(receiver, at(hops))
        b.route(0, at(0), rx="R", tx=towards)
        for i in range(1, hops):
            b.route(0, at(i), rx=source, tx=towards)
        b.route(0, at(hops), rx=source, tx="R")
        values = np.zeros((b.rows, b.cols, n), np.float32)
        values[at(0)] = np.random.default_rng(int(options.get("seed", 0))).integers(-99, 99, n)
        expected = np.full(values.shape, np.nan, np.float32)
        expected[at(hops)] = values[at(0)]
        return Case(b.build(), b.config, {"x": values}, {"x": expected})


FAMILY = register(PointToPoint())
