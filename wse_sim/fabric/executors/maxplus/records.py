"""Records of the solver: fields of a core, settings of a run, the decoded program, and the arrays that a visit needs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.format import program as P
from wse_sim.fabric.format.lower import C_MILLI, C_PER, C_START
from wse_sim.fabric.format.program import Program

Array = npt.NDArray[Any]

# Fields of a core, one record; the ring follows: (node, x0) per cell, then the pop times of the last cells.
(PC, TIME, STATE, STEPS, STARTED, MILLI, ROUNDS, ROUNDS_END, PUSHED, POPPED, LAST_POP, WAIT, QUEUED, IN_COUNT, OUT_COUNT, BUSY_COUNT) = (
    0, 1, 2, 3, 4, 5, 6, 10, 10, 11, 12, 13, 14, 15, 16, 17,
)  # fmt: skip
RECEIVED, LIMIT, RING_READY, ANCHOR, RING = 18, 19, 20, 21, 22
NO_STEP, ARRIVAL, OWN_CLOCK = 0, 1, 2  # what the first step with a fabric operand waited for (ANCHOR)
READY, HALTED, ABSENT = 0, 1, 2
WAIT_NOTHING, WAIT_RING, WAIT_TURN, WAIT_NEVER, WAIT_START = -1, -2, -3, -4, -5

# Settings and scalars of a run.
(S_SIZE, S_RING, S_RING_MASK, S_DELAY, S_QUEUE, S_LOG, S_PAUSE, S_MARGIN, S_FRESH) = range(9)
# Clock and load of the ordered routers, round robin or not, slots; sign the streams or not.
(S_NOW, S_HANGING, S_TURNS, S_SLOTS, S_SIGN) = range(9, 14)
N_SETTINGS = 14
EMPTY, LOG_FULL, TOO_LONG = 0, 1, 2
LATEST = 2**30

OP_HALT, OP_LOOP, OP_ENDLOOP, OP_BUSY = (int(op) for op in (P.Op.HALT, P.Op.LOOP, P.Op.ENDLOOP, P.Op.BUSY))

# Columns of the decoded program: what a visit needs, in one cache line; slots are -1 where the operand is not fabric.
(O_OP, O_N, O_PARAM, O_LEVEL, O_TARGET, O_A, O_B, O_D, O_START, O_PER, O_MILLI, O_WHOLE, O_PART) = range(13)
OP_FIELDS = 16


def decode(program: Program, costs: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """int64 (n_instr, OP_FIELDS): fields and costs of every instruction."""
    code = program.code
    ops = np.zeros((max(1, len(code)), OP_FIELDS), np.int64)
    for column, field in (
        (O_OP, P.OP),
        (O_N, P.N),
        (O_PARAM, P.N_PARAM),
        (O_LEVEL, P.LEVEL),
        (O_TARGET, P.TARGET),
    ):
        ops[: len(code), column] = code[:, field]
    joins = ops[: len(code), O_OP] == P.Op.JOIN  # of a thread that is idle by then
    ops[: len(code)][joins, O_OP], ops[: len(code)][joins, O_N], ops[: len(code)][joins, O_PARAM] = (
        OP_BUSY,
        0,
        -1,
    )
    vector = code[:, P.OP] >= P.FIRST_VECTOR_OP
    for column, place in ((O_A, P.A), (O_B, P.B), (O_D, P.D)):
        fabric = vector & (code[:, place + P.KIND] == P.Kind.FABRIC)
        ops[: len(code), column] = np.where(fabric, code[:, place + P.BUF], -1)
    for column, field in ((O_START, C_START), (O_PER, C_PER), (O_MILLI, C_MILLI)):
        ops[: len(code), column] = costs[:, field]
    ops[:, O_WHOLE], ops[:, O_PART] = np.divmod(ops[:, O_MILLI], 1000)
    return ops


class Actors(NamedTuple):
    """Actors and their state. ``times``: moves and reads of all nodes in circular buffers."""

    nodes: Array
    times: Array
    cores: Array
    stack: Array
    log: Array
    violated: Array
    signs: Array


class DecodedProgram(NamedTuple):
    """Decoded instructions, parameters per core, and the nodes (R, slots) of input queues and rings."""

    ops: Array
    params: Array
    leaf_of: Array
    ring_of: Array


class Rules(NamedTuple):
    """Scalars that no visit changes; ``pops``: column of the cores' records where the pop times of the ring begin."""

    queue: int
    delay: int
    ring: int
    ring_mask: int
    pops: int
    pausing: int
    signing: int
    in_turns: int
    slots: int
