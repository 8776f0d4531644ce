"""Converts the final state of a stepped executor (:mod:`wse_sim.fabric.executors.core`) to the contract's
result."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wse_sim.errors import ProgramError
from wse_sim.fabric.executors import core as C
from wse_sim.fabric.executors.base import (
    WAITS_INPUT,
    WAITS_OUTPUT,
    WAITS_TASK,
    WAITS_THREAD,
    Counters,
    Counts,
    Options,
    Run,
    Waits,
)
from wse_sim.fabric.format import program as P
from wse_sim.fabric.format.memory import Memory
from wse_sim.fabric.format.program import Kind, Op, Program


class Final(NamedTuple):
    """State rows and layout of the cores, outcome, and counters per router at the end of a loop."""

    st: npt.NDArray[np.int32]  # (R, width)
    lay: npt.NDArray[np.int64]
    outcome: npt.NDArray[np.int64]
    links: Counts  # (R, 5)
    blocked: Counts  # (R, 5)
    router_high: Counts  # (R,)
    waiting: Counts  # (slots, R, 5): words left in router queues
    position: Counts  # (slots, R): switch positions
    bins: npt.NDArray[np.int32]  # (bins, R)
    trace: npt.NDArray[np.int64]


def finish(program: Program, final: Final, memory: Memory, options: Options) -> Run:
    """Return the run of `program` that ended in the state `final`; faults of the program raise an error."""
    raise_faults(program, final.outcome, options.max_cycles)
    st, lay = final.st, final.lay
    finished = finished_cores(st, lay)
    halt = st[:, C.HALT_AT].astype(np.int64)
    stuck = int(final.outcome[0]) == C.STUCK
    leaves = st[:, int(lay[C.LEAF0]) : int(lay[C.THREAD0]) : int(lay[C.LEAF_WIDTH])]
    counters = Counters(
        halt=np.where(finished, halt, -1),
        busy=st[:, C.COUNTS],
        stalled_in=st[:, C.COUNTS + 1],
        stalled_out=st[:, C.COUNTS + 2],
        sent=st[:, C.SENT],
        received=st[:, C.RECEIVED],
        links=final.links,
        blocked=final.blocked,
        queue_high=np.column_stack([final.router_high, st[:, [C.RING_HIGH, C.LEAF_HIGH]]]),
    )
    in_routers = int(final.waiting.sum())
    return Run(
        cycles=int(final.outcome[1]) if stuck else int(halt.max(initial=0)),
        counters=counters,
        memory=memory,
        waits=_waits(program, final, ~finished) if stuck else None,
        words_left=in_routers + int(st[:, C.RING_COUNT].sum()) + int(leaves.sum()),
        busy_bins=final.bins,
        trace=final.trace,
        end=int(final.outcome[1]),
        wanted=_wanted_ports(program, final) if in_routers else None,
    )


def _wanted_ports(program: Program, final: Final) -> npt.NDArray[np.bool_]:
    """Return (R, 5): output ports for which words wait at open inputs."""
    wanted = np.zeros(program.n_cores, np.uint8)
    for slot in range(program.n_slots):
        cfg, position = program.route[slot], final.position[slot]
        here = ((final.waiting[slot] > 0) << np.arange(5)).sum(axis=1)
        wanted |= np.where(here & program.cfg_rx[cfg, position], program.cfg_tx[cfg, position], 0).astype(
            np.uint8
        )
    return np.asarray((wanted[:, None] >> np.arange(5)) & 1, np.bool_)


def raise_faults(program: Program, outcome: npt.NDArray[np.int64], max_cycles: int) -> None:
    """Raise an error for undefined behaviour that a loop found.

    Raises
    ------
    ProgramError
        Two inputs of a color in one cycle, an access outside a buffer, or not finished within `max_cycles`.
    """
    kind, cycle, core, slot = (int(x) for x in outcome[:4])
    if kind == C.TWO_INPUTS:
        raise ProgramError(
            f"core {program.core_name(core)}: two inputs of color {program.slot_color[slot]} in cycle {cycle} are "
            "undefined on the machine; separate them in time, use another color, or strict=False to serialise"
        )
    if kind == C.OUT_OF_BOUNDS:
        name = program.class_names[program.core_class[core]]
        raise ProgramError(
            f"core {program.core_name(core)} of class '{name}' leaves a buffer in cycle {cycle}; check offsets, steps and "
            "lengths"
        )
    if kind == C.TOO_LONG:
        raise not_ended(max_cycles)


def not_ended(max_cycles: int) -> ProgramError:
    """Return the error for a program that exceeds the limit of cycles."""
    return ProgramError(
        f"the program has not ended after {max_cycles} cycles; raise max_cycles or bound its loops"
    )


def finished_cores(st: npt.NDArray[np.int32], lay: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return (R,) bool: halted, without program, or idle with nothing active."""
    main = st[:, C.MAIN]
    first = int(lay[C.THREAD0]) + C.INSTR + C.THREAD_FIELDS
    no_thread = (st[:, first :: C.THREAD_FIELDS] == C.NO_INSTR).all(axis=1)
    ended = (main == C.MAIN_IDLE) & (st[:, C.ACTIVE] == 0) & no_thread
    return (main == C.MAIN_NONE) | (main == C.MAIN_HALTED) | ended


def _waits(program: Program, final: Final, unfinished: npt.NDArray[np.bool_]) -> Waits:
    st, lay = final.st, final.lay
    cores = np.flatnonzero(unfinished)
    leaf0, thread0, width = int(lay[C.LEAF0]), int(lay[C.THREAD0]), int(lay[C.LEAF_WIDTH])
    held = st[:, leaf0 + C.Q_COUNT : thread0 : width].T  # (slots, R)
    records = st[:, thread0:].reshape(len(st), -1, C.THREAD_FIELDS)[cores]
    wants = wanted(
        program,
        cores,
        records[:, :, C.INSTR],
        records[:, :, C.ITEMS],
        held=held,
        ring_room=int(lay[C.RING_SIZE]) - st[:, C.RING_COUNT].astype(np.int64),
        pc=np.where(st[:, C.MAIN] == C.MAIN_RUNNING, st[:, C.PC], -1),
    )
    head = C.RING0 + C.RING_FIELDS * st[:, C.RING_HEAD].astype(np.int64) + C.R_META
    oldest = st[np.arange(len(st)), head].astype(np.int64) & 255
    return Waits(
        unfinished,
        wants,
        np.where(st[:, C.RING_COUNT] > 0, oldest, -1),
        held >= lay[C.DEPTH0 : C.DEPTH0 + len(held), None],
        final.waiting,
        final.position,
    )


def wanted(
    program: Program,
    cores: Counts,
    instructions: Counts,
    items: Counts,
    *,
    held: Counts,
    ring_room: Counts,
    pc: Counts,
) -> npt.NDArray[np.int64]:
    """Rows (core, WAITS_*, slot) of `cores`, in their order.

    ``instructions``, ``items`` (cores, threads): row of the code, negative if none, and elements left.  ``held``
    (slots, R) words in input queues, ``ring_room`` (R,) free cells of the ring, ``pc`` (R,) row of a running main
    thread or -1.
    """
    code, found = program.code, []
    for i, core in enumerate(cores):
        here = []
        for row, left in zip(instructions[i], items[i], strict=True):
            if row < 0:
                continue
            words = 2 if code[row, P.WIRE] == P.Wire.FP16X4 and left > 2 else 1
            for place in (P.A, P.B):
                slot = int(code[row, place + P.BUF])
                if code[row, place + P.KIND] == Kind.FABRIC and held[slot, core] < words:
                    here.append((core, WAITS_INPUT, slot))
            if code[row, P.D + P.KIND] == Kind.FABRIC and ring_room[core] < words:
                here.append((core, WAITS_OUTPUT, int(code[row, P.D + P.BUF])))
        if not here:
            joins = pc[core] >= 0 and len(code) and code[pc[core], P.OP] in (Op.JOIN, Op.HALT)
            here = [(core, WAITS_THREAD if joins else WAITS_TASK, -1)]
        found += here
    return np.array(found, np.int64).reshape(-1, 3)
