"""Relayed shift: a tile of every core of a square travels L columns to the east, core by core.

The cores of the first P = C - L columns of R x C cores start with a tile of t elements each; the last P
columns end with these tiles. Cores in between receive a tile into memory and send it on. Then the last column
multicasts one value back over its row.

Symbols: hop = hop_cycles, T_H = handover_cycles, w = wavelet_cycles, o = vector_start_cycles, L_f = loop_cycles (a call that
loads descriptors), S = step_cycles (what a core spends on a step of a shifting product besides its arithmetic), t_0 =
task_start_cycles.  An element travels in its own wavelet: a plain 16-bit move does not pack pairs::

    relay  = hop + T_H + w t + L_f + 2 o          from sending a tile to sending it on, one column further
    busy   = S + 2 ceil(t/2)                            from one tile to the next; moves share the issue slot with the code
    behind = max(0, busy - relay)                       wait of a tile for the one ahead of it, once

    T = t_0 + T_H + 1 + hop + w (t - 1) + (L - 1) relay + min(P - 1, L - 1) behind + L_f + t_0 + T_H + 1 + L hop

The tile of the first column has the most tiles ahead of it. Each delays it once instead of at every core: a
delayed core forwards the tile late, and the next core is free by then. The message back is separate, sent by
a call. o, L_f and S are fitted together to twelve of these runs on a CS-3 and to 38 products; the cost of the
shifts differs by 2.5 % on average, 5.7 % at most.  The program moves an element as a pair whose other half is
zero, two pairs per issue cycle, so that both moves of a core keep the pace. Source: task start and hops of
single messages, L_f, o and S of products on grids.  Band: 2 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.fabric.format.builder import Buffer, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.lines import Line, new_builder, route_broadcast
from wse_sim.kernels.contract.equations import bytes_of, ceil_div, check_tiling
from wse_sim.kernels.contract.family import Case, Cost, Dims, Family, Footprint, How, ProgramOptions, Tiling
from wse_sim.kernels.contract.parameters import sizes
from wse_sim.kernels.contract.registry import register

MOVE: dict[str, Any] = {"dtype": "fp16", "wire": "fp16x4", "priority": "high"}
EAST, BACK = (0, 1), 2  # colors: two for the shift, alternating by column; one for the message back


@dataclass(frozen=True)
class _Turn:
    """Work of one column: `called` cycles before a tile is sent, `after` cycles until the next one is read."""

    core: CoreClass
    arriving: Operand
    leaving: Operand
    called: int
    after: int
    start: int

    def receive(self, tile: Buffer, start: str = "code") -> None:
        """Start a microthread that receives a tile."""
        self.core.mov(tile.dsd(), self.arriving, start=start, thread=2, **MOVE)

    def send(self, tile: Buffer, start: str = "code") -> None:
        """Start a microthread that sends a tile."""
        self.core.mov(self.leaving, tile.dsd(), start=start, thread=1, **MOVE)

    def relay(self, tile: Buffer, following: Buffer | None, *, is_last: bool = False) -> None:
        """Wait for a tile, start to receive the `following` one, and send the tile on."""
        self.core.join(2)
        self.core.busy(self.called)
        self.core.join(1)
        if following is not None:
            self.receive(following)
        else:
            self.core.busy(self.start)
        self.send(tile)
        if not is_last:
            self.core.busy(self.after)


class Shift(Family):
    """The family of relayed shifts."""

    name = "shift"
    dims = sizes(tile="elements of a tile", distance="columns that a tile travels")
    mappings = ("grid",)

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Return the bytes of a core's tile, of an arriving and a leaving tile, and of code."""
        dtype = self.asked(tiling, how).dtype
        return Footprint(
            activations_bytes=3.0 * dims["tile"] * bytes_of(dtype), code_bytes=wafer.kernel_code_bytes
        )

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost of the first message, relays, waits for tiles ahead, and the message back."""
        check_tiling(self.name, tiling, self.mappings)
        senders = _senders(dims, tiling)
        relays = dims["distance"] - 1
        sent, o, ramps = (
            dims["tile"] * wafer.wavelet_cycles,
            wafer.vector_start_cycles,
            wafer.handover_cycles,
        )
        starts = wafer.loop_cycles + 2 * o
        stolen = 2.0 * ceil_div(dims["tile"], 2)
        behind = np.maximum(0.0, wafer.step_cycles - starts - wafer.hop_cycles - ramps - sent + stolen)
        hops = 2.0 * wafer.hop_cycles * dims["distance"]
        return Cost(
            fabric=sent * dims["distance"] - wafer.wavelet_cycles,
            startup=2.0 * wafer.task_start_cycles + wafer.loop_cycles + relays * starts,
            idle=hops + 2.0 * (ramps + 1) + ramps * relays + np.minimum(senders - 1, relays) * behind,
        )

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return a program in which every row passes its tiles on, and the last column then sends a value
        back."""
        dtype = str(options.get("dtype", "fp16"))
        distance, rows, cols, t = int(dims["distance"]), int(tiling.rows), int(tiling.cols), int(dims["tile"])
        senders = int(_senders(dims, tiling))
        b = new_builder(rows, cols, wafer)
        x, y = b.buffer("x", 2 * t, dtype), b.buffer("y", 2 * t, dtype)
        passing = [b.buffer(f"passing {i}", 2 * t, dtype) for i in (0, 1)]
        done = b.buffer("done", 1, dtype)
        for color in EAST:
            b.input_queue(color, color)  # longer queues keep a stream of pairs at full rate
        here = np.arange(cols)
        # Tiles that pass through a column: from senders to its west, with destinations to its east.
        through = np.maximum(0, np.minimum(here, senders) - np.maximum(0, here - distance + 1))
        called, lead = round(wafer.loop_cycles), b.config.task_start_cycles
        after = max(0, round(wafer.step_cycles) - called - 2 * b.config.start_code_cycles)
        for column in range(cols):
            core, tiles = b.core_class(f"column {column}"), int(through[column])
            arriving, leaving = fabric_in(EAST[(column - 1) % 2]), fabric_out(EAST[column % 2])
            stays = column >= distance
            turn = _Turn(core, arriving, leaving, called, after, b.config.start_code_cycles)
            core.busy(lead)
            if tiles or stays:
                turn.receive(passing[0] if tiles else y, start="none")
            if column < senders:
                turn.send(x, start="none")
                core.busy(after if tiles else 0)
            if tiles > 2:
                with core.loop((tiles - 1) // 2):
                    turn.relay(passing[0], passing[1])
                    turn.relay(passing[1], passing[0])
            if tiles and tiles % 2 == 0:
                turn.relay(passing[0], passing[1])
            if tiles:
                turn.relay(passing[(tiles - 1) % 2], y if stays else None, is_last=True)
            core.join(2)
            if column == distance:
                core.busy(called + lead)
                core.mov(fabric_out(BACK), done.dsd(), start="none", dtype=dtype)
            elif column < distance:
                core.mov(done.dsd(), fabric_in(BACK), start="none", dtype=dtype)
            b.place(core, (slice(None), column))
            if column < cols - 1:
                b.route(EAST[column % 2], (slice(None), column), rx="R", tx="E")
            if column:
                b.route(EAST[(column - 1) % 2], (slice(None), column), rx="W", tx="R")
        route_broadcast(Line(b, vertical=False), distance, distance + 1, BACK)
        values = np.zeros((rows, cols, 2 * t), np.float32)
        values[:, :senders, ::2] = np.random.default_rng(int(options.get("seed", 0))).integers(
            -99, 99, (rows, senders, t)
        )
        expected = np.full(values.shape, np.nan, np.float32)
        expected[:, distance:] = values[:, :senders]
        answer = np.zeros((rows, cols, 1), np.float32)
        answer[:, distance] = 1.0
        answered = np.where(here[None, :, None] <= distance, 1.0, np.nan) + 0.0 * answer
        return Case(b.build(), b.config, {"x": values, "done": answer}, {"y": expected, "done": answered})


def _senders(dims: Dims, tiling: Tiling) -> int:
    """Return the columns that have a tile.

    Raises
    ------
    KernelError
        If the distance leaves none.
    """
    senders = int(np.min(tiling.cols - dims["distance"]))
    if senders < 1 or int(np.min(dims["distance"])) < 1:
        raise KernelError(
            f"shift: a distance of {dims['distance']} on {tiling.cols} columns leaves no column that sends; use a "
            f"distance from 1 to {int(np.max(tiling.cols)) - 1}"
        )
    return tiling.cols - dims["distance"]


FAMILY = register(Shift())
