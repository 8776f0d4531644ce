"""The GPU executor: every cycle of the oracle, on an NVIDIA GPU.  `docs/gpu.md` has the measured speed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from wse_sim.errors import ProgramError
from wse_sim.fabric.executors.base import TRACE_FIELDS, Options, Reason, Run
from wse_sim.fabric.executors.core import DONE, OUTCOME_FIELDS
from wse_sim.fabric.executors.final_state import Final, finish
from wse_sim.fabric.executors.gpu.device import Cuda, GpuDevice, what_is_missing
from wse_sim.fabric.executors.gpu.loop import end_cores, outcome_of
from wse_sim.fabric.executors.gpu.planes import (
    COUNTER_BITS,
    FULL,
    N_CORES,
    OCC,
    RunState,
    bits_of,
    is_short,
    make_state,
)
from wse_sim.fabric.executors.parts import Parts
from wse_sim.fabric.executors.trees import count_tree_links
from wse_sim.fabric.format.lower import Lowered
from wse_sim.fabric.format.memory import Inputs, Memory, new_memory
from wse_sim.fabric.format.program import Program

CYCLES = 2000  # cycles of one launch: some hundredths of a second, after which the host checks for interrupts


@dataclasses.dataclass(frozen=True)
class Gpu:
    """Steps every cycle on a GPU; counts everything and has time bins.

    ``missing`` returns what is missing for a device, None if there is one; ``device`` creates it. ``cycles``
    cycles are stepped per call.
    """

    device: Callable[[], GpuDevice] = Cuda
    missing: Callable[[], str | None] = what_is_missing
    cycles: int = CYCLES

    name = "gpu"

    def can_run(self, program: Program, options: Options) -> Reason | None:
        """Return None for all programs without a trace, if there is a GPU."""
        if options.trace_rows:
            return Reason("the gpu executor has no trace")
        missing = self.missing()
        if missing:
            needs = "an NVIDIA GPU, its driver and numba-cuda (pip install 'wse-sim[gpu]')"
            return Reason(f"the gpu executor needs {needs}, but {missing}")
        return None

    def run(self, lowered: Lowered, inputs: Inputs | None, options: Options) -> Run:
        """See :class:`wse_sim.fabric.executors.base.Executor`; a wafer with long links raises a ProgramError."""
        return self.step(lowered, new_memory(lowered.program, inputs, functional=options.functional), options)

    def step(self, lowered: Lowered, memory: Memory, options: Options) -> Run:
        """See :class:`wse_sim.fabric.executors.base.SteppedExecutor`."""
        if not is_short(lowered):
            raise ProgramError(
                "the gpu executor steps links of one cycle with queues of two words, and the program or its wafer has "
                "others (WSE-3 has); use executor='wavelet'"
            )
        parts, device = Parts(), self.device()
        state = make_state(lowered, memory, options)
        parts.done("state of routers, queues and cores")
        there, t, ended = device.upload(state), 0, None
        while ended is None:
            until = min(t + self.cycles, options.max_cycles)
            device.advance(there, t, until)
            ended = outcome_of(device.marks(there), int(state.settings.sets[N_CORES]), options.max_cycles)
            t = until
        device.download(there, state)
        parts.done("cycles")
        run = _finish(lowered.program, state, ended, memory, options)
        parts.done("counters")
        return dataclasses.replace(run, seconds=parts.seconds)


def _finish(
    program: Program, state: RunState, ended: tuple[int, int, int, int], memory: Memory, options: Options
) -> Run:
    outcome = np.zeros(OUTCOME_FIELDS, np.int64)
    outcome[:4] = ended
    if ended[0] == DONE:
        outcome[0] = end_cores(ended[1], state.cores, state.settings.sets)
    rows, cols, n = program.rows, program.cols, program.n_cores
    rec, tally, routes = state.planes.rec, state.tally, state.routes
    held = bits_of(rec[:, OCC : OCC + 5], rows, cols).astype(np.int32)
    held += bits_of(rec[:, FULL : FULL + 5], rows, cols)
    waiting = np.ascontiguousarray(held.transpose(0, 2, 1))
    links, blocked = (
        total + _counted(bits, rows, cols)
        for total, bits in ((tally.links, tally.link_bits), (tally.blocked, tally.blocked_bits))
    )
    count_tree_links(
        routes.copied, program.route, program.cfg_rx, program.cfg_tx, cols, state.payload.entered, waiting, links,
        np.zeros((n + 4, 2), np.int64),
    )  # fmt: skip
    high = bits_of(tally.high, rows, cols).sum(axis=0)
    final = Final(
        state.cores.st, state.cores.lay, outcome, links, blocked, high, waiting, state.planes.position,
        state.cores.bins, np.zeros((0, TRACE_FIELDS), np.int64),
    )  # fmt: skip
    return finish(program, final, memory, options)


def _counted(bits: npt.NDArray[np.uint64], rows: int, cols: int) -> npt.NDArray[np.int64]:
    """Convert bit slices (5, COUNTER_BITS, n_f) to counters (R, 5)."""
    counts = np.zeros((rows * cols, 5), np.int64)
    for k in range(COUNTER_BITS):
        counts += bits_of(bits[:, k], rows, cols).T.astype(np.int64) << k
    return counts
