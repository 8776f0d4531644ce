"""Run a fabric program: ``run_program(program, config) -> FabricResult``."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from wse_sim.errors import ProgramError
from wse_sim.fabric.deadlock import Deadlock, explain
from wse_sim.fabric.executors import core as C
from wse_sim.fabric.executors import oracle
from wse_sim.fabric.executors.oracle import run_oracle
from wse_sim.fabric.executors.raw import RawRun
from wse_sim.fabric.executors.wavelet.executor import run_wavelet
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Program

Array = npt.NDArray[Any]
MAX_CYCLES = 50_000_000

EXECUTORS: dict[str, Callable[..., RawRun]] = {"oracle": run_oracle, "wavelet": run_wavelet}
"""Stepped executors by name; all take (program, config, arena, functional=, strict=, max_cycles=, bins=, ...)."""

STEPPED = "wavelet"  # the faster of the two; both are exact for every program and wafer


@dataclasses.dataclass(frozen=True)
class FabricResult:
    """What happened; arrays are (rows, cols) of the user's cores, ports in the order N, E, S, W, RAMP.

    ``halt_cycles`` is -1 where a core never finished.  ``busy + stalled_in + stalled_out + idle = cycles`` in every
    core.  ``link_blocked`` counts cycles in which a wavelet wanted the port and none moved over it.
    ``queue_high`` (rows, cols, 3): largest number of words in one router queue, the output ring, one input queue.
    ``busy_bins`` (bins, rows, cols): busy cycles per time bin.  ``certificate`` is None for stepped executors.
    """

    cycles: int
    executor: str
    certificate: Any
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
    _program: Program = dataclasses.field(repr=False)
    _arena: Array = dataclasses.field(repr=False)

    def read(self, name: str) -> Array:
        """Values of a buffer at the end: (rows, cols, length) of its rectangle, float32 or float16.

        Raises
        ------
        ProgramError
            If the buffer is unknown or the run was timing-only.
        """
        values = _view(self._program, self._arena, name)
        return values.astype(np.float16 if self._program.buffers[name].dtype == "fp16" else np.float32)


def _view(program: Program, arena: Array, name: str) -> Array:
    if name not in program.buffers:
        raise ProgramError(
            f"buffer '{name}' is unknown; the program has {', '.join(program.buffers) or 'none'}"
        )
    if arena.size == 0:
        raise ProgramError(f"buffer '{name}' has no values in a timing-only run; use functional=True")
    info = program.buffers[name]
    size = info.rows * info.cols * info.length
    return arena[info.base : info.base + size].reshape(info.rows, info.cols, info.length)


def _fill(program: Program, arena: Array, inputs: Mapping[str, npt.ArrayLike]) -> None:
    for name, values in inputs.items():
        view = _view(program, arena, name)
        data = np.asarray(values, np.float32)
        if program.buffers[name].dtype == "fp16":
            data = data.astype(np.float16).astype(np.float32)
        try:
            view[...] = data
        except ValueError as fault:
            raise ProgramError(
                f"buffer '{name}' takes values of shape {view.shape} but got {data.shape}; give (rows, cols, length)"
            ) from fault


# From so many cores on equations beat stepping by far; below, stepping is fast and counts everything.
STREAM_CORES = 16_384


def run_program(
    program: Program,
    config: FabricConfig,
    *,
    executor: str = "auto",
    functional: bool = True,
    strict: bool = True,
    inputs: Mapping[str, npt.ArrayLike] | None = None,
    max_cycles: int = MAX_CYCLES,
    bins: int | None = None,
    bin_cycles: int = 1000,
    trace_rows: int = 0,
) -> FabricResult:
    """Run `program` on the fabric of `config`.

    Parameters
    ----------
    executor : str
        "auto", "oracle", "wavelet" or "stream".  "auto" steps small programs, which counts everything, and solves
        large ones with the stream executor, which steps what its certificate does not cover.
    functional : bool
        False: timing only; no values are stored and none travel.
    strict : bool
        Two inputs of one color in the same cycle raise; otherwise they are serialised.
    inputs : mapping
        Values (rows, cols, length) per buffer name, in place at cycle 0.
    bins, bin_cycles : int
        Number and length of time bins of busy cycles.
    trace_rows : int
        Record up to so many events (oracle only); see :mod:`wse_sim.fabric.wseviz`.

    Raises
    ------
    ProgramError
        Undefined behaviour (core, color, cycle), access outside a buffer, or no end within `max_cycles`.  A deadlock
        does not raise: ``result.deadlock`` explains it.
    """
    name = executor
    if executor == "auto":
        steps = program.n_cores < STREAM_CORES or bins or trace_rows
        name = "oracle" if trace_rows else STEPPED if steps else "stream"
    if name not in EXECUTORS and name != "stream":
        raise ProgramError(f"executor '{executor}' is unknown; use auto, {', '.join(EXECUTORS)}, stream")
    if name == "stream" and (bins or trace_rows):
        raise ProgramError(
            "the stream executor has no time bins and no trace; use executor='wavelet' or 'oracle'"
        )
    if name == "wavelet" and trace_rows:
        raise ProgramError("the wavelet executor has no trace; use executor='oracle'")
    if not 1 <= max_cycles < 2**31:
        raise ProgramError(f"max_cycles = {max_cycles} is outside 1..{2**31 - 1}; use a bound in between")
    if name == "stream":
        from wse_sim.fabric.executors.maxplus.executor import (
            solve_run,  # it hands flagged components back to this module
        )

        return solve_run(
            program, config, functional=functional, strict=strict, inputs=inputs, max_cycles=max_cycles
        )
    arena = np.zeros(program.arena_elements if functional else 0, np.float32)
    if inputs and functional:
        _fill(program, arena, inputs)
    options: dict[str, Any] = {"bins": bins or 0, "bin_cycles": bin_cycles}
    if trace_rows:
        options["trace_rows"] = trace_rows
    wall, cpu = time.perf_counter(), time.process_time()
    raw = EXECUTORS[name](
        program, config, arena, functional=functional, strict=strict, max_cycles=max_cycles, **options
    )
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    _raise_faults(program, raw, max_cycles)
    return _result(program, name, raw, arena, wall, cpu)


def _raise_faults(program: Program, raw: RawRun, max_cycles: int) -> None:
    kind, cycle, core, slot = (int(x) for x in raw.outcome[:4])
    if kind == oracle.TWO_INPUTS:
        raise ProgramError(
            f"core {program.core_name(core)}: two inputs of color {program.slot_color[slot]} in cycle {cycle} are "
            "undefined on the machine; separate them in time, use another color, or strict=False to serialise"
        )
    if kind == oracle.OUT_OF_BOUNDS:
        name = program.class_names[program.core_class[core]]
        raise ProgramError(
            f"core {program.core_name(core)} of class '{name}' leaves a buffer in cycle {cycle}; check offsets, steps and "
            "lengths"
        )
    if kind == oracle.TOO_LONG:
        raise ProgramError(
            f"the program has not ended after {max_cycles} cycles; raise max_cycles or bound its loops"
        )


def _result(
    program: Program, executor: str, raw: RawRun, arena: Array, wall: float, cpu: float
) -> FabricResult:
    shape = (program.rows, program.cols)
    user = slice(program.west, program.cols - program.east)

    def plane(values: Array, dtype: type = np.int64) -> Array:
        return np.ascontiguousarray(values.reshape(*shape, *values.shape[1:])[:, user]).astype(dtype)

    stuck = int(raw.outcome[0]) == oracle.STUCK
    halt = raw.st[:, C.HALT_AT].astype(np.int64)
    cycles = int(raw.outcome[1]) if stuck else int(halt.max(initial=0))
    finished = finished_cores(raw)
    busy, stalled_in, stalled_out = (raw.st[:, C.COUNTS + i].astype(np.int64) for i in range(3))
    in_core = raw.st[:, [C.RING_HIGH, C.LEAF_HIGH]]
    left = int(raw.waiting.sum()) + int(raw.st[:, C.RING_COUNT].sum())
    left += int(raw.st[:, int(raw.lay[C.LEAF0]) : int(raw.lay[C.THREAD0]) : int(raw.lay[C.LEAF_WIDTH])].sum())
    return FabricResult(
        cycles=cycles,
        executor=executor,
        certificate=None,
        halt_cycles=plane(np.where(finished, halt, -1)),
        busy=plane(busy),
        stalled_in=plane(stalled_in),
        stalled_out=plane(stalled_out),
        idle=plane(cycles - busy - stalled_in - stalled_out),
        link_wavelets=plane(raw.links),
        link_blocked=plane(raw.blocked),
        queue_high=plane(np.column_stack([raw.router_high, in_core])),
        sent=plane(raw.st[:, C.SENT]),
        received=plane(raw.st[:, C.RECEIVED]),
        words_left=left,
        busy_bins=np.ascontiguousarray(raw.bins.reshape(-1, *shape)[:, :, user]),
        deadlock=explain(program, raw) if stuck else None,
        wall_s=wall,
        cpu_s=cpu,
        router_cycles_per_s=program.n_cores * float(raw.outcome[1]) / max(cpu, 1e-9),
        trace=raw.trace,
        _program=program,
        _arena=arena,
    )


def finished_cores(raw: RawRun) -> npt.NDArray[np.bool_]:
    """Bool (R,): halted, without program, or idle with nothing active."""
    st, thread0 = raw.st, int(raw.lay[C.THREAD0])
    main = st[:, C.MAIN]
    no_thread = (st[:, thread0 + C.INSTR + C.THREAD_FIELDS :: C.THREAD_FIELDS] == C.NO_INSTR).all(axis=1)
    ended = (main == C.MAIN_IDLE) & (st[:, C.ACTIVE] == 0) & no_thread
    return (main == C.MAIN_NONE) | (main == C.MAIN_HALTED) | ended
