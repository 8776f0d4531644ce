"""The result of a fabric run: arrays (rows, cols) of the user's cores."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.deadlock import Deadlock, explain
from wse_sim.fabric.executors.base import Run
from wse_sim.fabric.executors.certificate import Certificate
from wse_sim.fabric.format.memory import Memory, buffer_view
from wse_sim.fabric.format.program import Program

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class FabricResult:
    """Result of a run; arrays are (rows, cols) of the user's cores, ports in the order N, E, S, W, RAMP.

    ``halt_cycles`` is -1 if a core never finished. ``busy + stalled_in + stalled_out + idle = cycles`` in
    every core. ``link_blocked`` counts cycles in which a wavelet requested the port and none moved over it.
    ``queue_high`` (rows, cols, 3): largest number of words in one router queue, the output ring, one input
    queue. ``busy_bins`` (bins, rows, cols): busy cycles per time bin. ``certificate`` is None if every cycle
    was stepped. ``timings_s``: wall time of the simulator's work, by part.
    """

    cycles: int
    executor: str
    certificate: Certificate | None
    halt_cycles: Array
    busy: Array
    stalled_in: Array
    stalled_out: Array
    idle: Array
    link_wavelets: Array
    link_blocked: Array
    queue_high: Array
    sent: Array
    received: Array
    words_left: int
    busy_bins: Array
    deadlock: Deadlock | None
    wall_s: float
    cpu_s: float
    router_cycles_per_s: float
    trace: Array
    timings_s: Mapping[str, float]
    _program: Program = dataclasses.field(repr=False)
    _memory: Memory = dataclasses.field(repr=False)

    def read(self, name: str) -> Array:
        """Return the values of a buffer at the end: (rows, cols, length) of its rectangle, float32 or float16.

        Raises
        ------
        ProgramError
            If the buffer is unknown or the run was timing-only.
        """
        values = buffer_view(self._program, self._memory, name)
        return values.astype(np.float16 if self._program.buffers[name].dtype == "fp16" else np.float32)


def result_of(
    program: Program, executor: str, run: Run, wall_s: float, cpu_s: float, timings_s: Mapping[str, float]
) -> FabricResult:
    """Return the report of one run of `program`."""
    shape = (program.rows, program.cols)
    user = slice(program.west, program.cols - program.east)

    def plane(values: Array, dtype: type = np.int64) -> Array:
        return np.ascontiguousarray(values.reshape(*shape, *values.shape[1:])[:, user]).astype(dtype)

    counted = run.counters
    busy, stalled_in, stalled_out = (
        plane(values) for values in (counted.busy, counted.stalled_in, counted.stalled_out)
    )
    return FabricResult(
        cycles=run.cycles,
        executor=executor,
        certificate=run.certificate,
        halt_cycles=plane(counted.halt),
        busy=busy,
        stalled_in=stalled_in,
        stalled_out=stalled_out,
        idle=run.cycles - busy - stalled_in - stalled_out,
        link_wavelets=plane(counted.links),
        link_blocked=plane(counted.blocked),
        queue_high=plane(counted.queue_high),
        sent=plane(counted.sent),
        received=plane(counted.received),
        words_left=run.words_left,
        busy_bins=np.ascontiguousarray(run.busy_bins.reshape(-1, *shape)[:, :, user]),
        deadlock=None if run.waits is None else explain(program, run.waits, run.cycles),
        wall_s=wall_s,
        cpu_s=cpu_s,
        router_cycles_per_s=program.n_cores * float(run.cycles) / max(cpu_s, 1e-9),
        trace=run.trace,
        timings_s=timings_s,
        _program=program,
        _memory=run.memory,
    )
