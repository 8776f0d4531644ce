"""Cores that are not stepped in every cycle: when a core may sleep, and how the skipped cycles are
counted."""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.executors import core as C
from wse_sim.fabric.format import program as P
from wse_sim.fabric.format.program import Kind, Program
from wse_sim.jit import helper_kernel, inlined_kernel


def slots_read(program: Program) -> npt.NDArray[np.uint64]:
    """Bit mask of slots that instructions and tasks of a class take words from."""
    masks = np.zeros(len(program.class_names), np.uint64)
    owner, code = np.asarray(program.class_of_instruction()), program.code
    for place in (P.A, P.B):
        reads = (code[:, P.OP] > P.Op.CONTROL) & (code[:, place + P.KIND] == Kind.FABRIC)
        slots = np.uint64(1) << code[reads, place + P.BUF].astype(np.uint64)
        np.bitwise_or.at(masks, owner[reads], slots)
    for c in range(len(masks)):
        for row in program.tasks[program.class_tasks[c] : program.class_tasks[c + 1]]:
            if row[P.T_KIND] == P.TaskKind.DATA:
                masks[c] |= np.uint64(1) << np.uint64(row[P.T_KEY])
            elif row[P.T_KIND] == P.TaskKind.CONTROL:
                masks[c] |= np.uint64((1 << program.n_slots) - 1)
    return masks


@inlined_kernel
def may_sleep_until_done(st, c, lay, code):
    """True if the main thread keeps the issue slot for several cycles and no microthread precedes it."""
    if st[c, lay[C.THREAD0] + C.INSTR] == C.NO_INSTR or st[c, lay[C.THREAD0] + C.LEFT] < 2:
        return False
    for k in range(1, lay[C.THREADS]):
        row = np.int64(st[c, lay[C.THREAD0] + k * C.THREAD_FIELDS + C.INSTR])
        if row != C.NO_INSTR and code[row, P.PRIORITY] < 2:
            return False
    return True


@helper_kernel
def add_busy(bins, c, first, last, width):
    """Add busy cycles first .. last - 1 of a core to the time bins."""
    t = first
    while t < last and t // width < bins.shape[0]:
        end = min(last, (t // width + 1) * width)
        bins[t // width, c] += np.int32(end - t)
        t = end


@inlined_kernel
def account(st, c, t, bins, width):
    """Count the cycles since the core's last step under the state that it had."""
    state = np.int64(st[c, C.STATE])
    if state == 0 or st[c, C.SINCE] >= t:
        return
    st[c, C.COUNTS + state - 1] += np.int32(t - st[c, C.SINCE])
    if state == C.BUSY and bins.shape[0] > 0:
        add_busy(bins, c, np.int64(st[c, C.SINCE]), t, width)
