"""Broadcast of `words` elements from one core along a row (``axis="row"``) or to a rectangle ("both").

Mapping: the root is the north-west core; routers multicast to their core and onward, column 0 southward
and every row eastward; all cores receive.  B = words(elements).

    T = task start + B + hop (P - 1) + 2 T_R + 1,       P - 1 replaced by R + C - 2 on a rectangle

Source: arXiv 2404.15888 (multicast), calibration 1.2 (task start).  Band: exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import numpy as np

from wse_sim.fabric.format.builder import fabric_in, fabric_out
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.base_families import Collective
from wse_sim.kernels.blocks.lines import Line, new_builder, route_broadcast, route_rectangle
from wse_sim.kernels.contract.equations import crossing_cycles, words
from wse_sim.kernels.contract.family import Case, Cost, Dims, How, ProgramOptions, Size, Tiling, asked
from wse_sim.kernels.contract.parameters import Attributes, attribute, sizes
from wse_sim.kernels.contract.registry import register


@dataclass(frozen=True)
class BroadcastAttributes(Attributes):
    """Attributes of the collective; options of the tiling take precedence."""

    axis: str = attribute("row", "how far: along every row, or to the rectangle", choices=("row", "both"))


class Broadcast(Collective):
    """The family of multicasts."""

    name = "broadcast"
    dims = sizes(words="elements that are sent")
    programs = "multicast along rows, or to a rectangle"
    attributes = BroadcastAttributes

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost: words over one link, and hops to the farthest core."""
        _, dtype, attrs = self.asked(tiling, how, "fp32")
        whole = BroadcastAttributes.of(tiling.options, attrs).axis == "both"
        hops: Size = tiling.cols - 1 + (tiling.rows - 1 if whole else 0)
        turn = wafer.turn_cycles + crossing_cycles(tiling.rows - 1, wafer) if whole else 0
        return Cost(
            fabric=words(dims["words"], dtype) * wafer.wavelet_cycles,
            startup=wafer.task_start_cycles,
            idle=1.0 * hops * wafer.hop_cycles + turn + wafer.handover_cycles,
        )

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return a program in which the root sends its buffer x once, and all other cores receive it."""
        _, dtype, attrs = asked(options, "fp32")
        n, rows, cols = int(dims["words"]), int(tiling.rows), int(tiling.cols)
        whole = BroadcastAttributes.of(tiling.options, attrs).axis == "both"
        b = new_builder(rows, cols, wafer)
        x = b.buffer("x", n, dtype)
        root, others = b.core_class("root"), b.core_class("other")
        for k, target, source in ((root, fabric_out(0), x.dsd()), (others, x.dsd(), fabric_in(0))):
            k.busy(b.config.task_start_cycles)
            k.mov(target, source, dtype=dtype, start="none")
        b.place(others, None)
        b.place(root, (0, 0) if whole else (slice(None), 0))
        if whole:
            route_rectangle(b, 0)
        else:
            route_broadcast(Line(b, vertical=False), 0, cols, 0)
        values = np.zeros((rows, cols, n), np.float32)
        sources = values[:1, :1] if whole else values[:, :1]
        sources[...] = np.random.default_rng(int(options.get("seed", 0))).standard_normal(sources.shape)
        if dtype == "fp16":
            values = values.astype(np.float16).astype(np.float32)
        sent = values[:1, :1] if whole else values[:, :1]
        return Case(b.build(), b.config, {"x": values}, {"x": np.broadcast_to(sent, values.shape)})


FAMILY = register(Broadcast())
