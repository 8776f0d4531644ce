"""The sanitizer's look at every access and every word: what it notes, and the shadows that it keeps in addition to memory and queues.

Nothing of it runs unless ``sets[WATCH]`` is set.  Scalar code pays nothing for it: while the sanitizer watches, the limit that every
access is compared with is 0 (SCALAR_WORDS), so that each access takes the way of a fault, where it is looked at and then done.
"""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

import numpy as np

from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm.memory import next_address
from wse_sim.jit import helper_kernel

# Kinds of findings.
UNWRITTEN, BEYOND, BEYOND_VECTOR, THREAD_TAKEN, QUEUE_SHARED, LUCK, NULL = range(7)
KINDS = 7
# Columns of a finding: kind, core, cycle, row of code, four numbers that depend on the kind.
FINDING_FIELDS, MOST_FINDINGS = 8, 4096
# Columns of a shadow of a word: core that sent it (-1: the host), row of code, cycle.
FROM_FIELDS = 3
_STORES = (int(O.Op.ST_16), int(O.Op.ST_32), int(O.Op.ST_64), int(O.Op.STX_16), int(O.Op.STX_32))
_INDEXED = (
    int(O.Op.LDX_I16),
    int(O.Op.LDX_U16),
    int(O.Op.LDX_I32),
    int(O.Op.LDX_U32),
    int(O.Op.STX_16),
    int(O.Op.STX_32),
)
_TWO = (
    int(O.Op.LD_I32),
    int(O.Op.LD_U32),
    int(O.Op.ST_32),
    int(O.Op.LDX_I32),
    int(O.Op.LDX_U32),
    int(O.Op.STX_32),
)
_FOUR = (int(O.Op.LD_64), int(O.Op.ST_64))
FIRST_WORD = 16


@helper_kernel
def note(kind, c, t, pc, a, b, d, e, m):
    """Count a finding at a row of code; the first one of a kind there is kept whole."""
    m.found_count[kind, pc] += 1
    n = m.size[S.N_FOUND]
    if m.found_count[kind, pc] == 1 and n < m.found.shape[0]:
        row = m.found[n]
        row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7] = kind, c, t, pc, a, b, d, e
        m.size[S.N_FOUND] = n + 1


@helper_kernel
def look_at_words(c, t, pc, address, width, is_store, m):
    """Words that are stored count as written; a load of words that are not is noted."""
    words = m.sets[S.WORDS]
    if address < 0 or address + width > words:
        return
    for i in range(address, address + width):
        if is_store:
            m.written[c * words + i] = 1
        elif m.written[c * words + i] == 0:
            note(UNWRITTEN, c, t, pc, i, 0, 0, 0, m)
            return


@helper_kernel
def look_at_scalar(op, base, index, k, c, t, pc, m):
    """A load or store of scalar code: whether it stays in the variable that it names."""
    is_indexed, is_store, width = False, False, 1
    for other in _INDEXED:
        is_indexed = is_indexed or op == other
    for other in _STORES:
        is_store = is_store or op == other
    for other in _TWO:
        width = 2 if op == other else width
    for other in _FOUR:
        width = 4 if op == other else width
    words, cls = m.sets[S.WORDS], m.core[c, S.CLASS]
    at = base + index * width if is_indexed else base + k
    if at < 0 or at + width > words:
        return
    named = np.int64(0)
    if 0 <= base < words:
        named = np.int64(m.owner[cls, base])
    if not is_indexed and FIRST_WORD <= k < words and m.owner[cls, k] != 0 and m.owner[cls, at] != named:
        named = np.int64(m.owner[cls, k])  # an address that the code names, and an offset in a register
    last = np.int64(m.owner[cls, at + width - 1])
    if at < FIRST_WORD:
        note(NULL, c, t, pc, at, is_store, 0, 0, m)
    elif named != 0 and (np.int64(m.owner[cls, at]) != named or last != named):
        note(BEYOND, c, t, pc, at, named, is_store, 0, m)
    look_at_words(c, t, pc, at, width, is_store, m)


@helper_kernel
def look_at_operation(c, t, k, m):
    """An operation of thread `k` on memory alone: all words that it reads, then those that it writes."""
    th = m.threads[k, c]
    pc, n, op = np.int64(th[S.T_PC]), np.int64(th[S.T_REST]), np.int64(th[S.T_OP]) - 1
    for turn in range(4):
        place = (turn + 1) % 4
        o = S.OPERAND0 + place * S.OPERAND_FIELDS
        if th[o + S.P_FORM] != S.MEMORY:
            continue
        width, address, stride = (
            np.int64(m.vop[op, place]),
            np.int64(th[o + S.P_ADDRESS]),
            np.int64(th[o + S.P_STRIDE]),
        )
        c0, c1, c2, c3 = th[o + S.P_C0], th[o + S.P_C1], th[o + S.P_C2], th[o + S.P_C3]
        for _ in range(n if place < 3 else 1):
            look_at_words(c, t, pc, address, width, place == 0, m)
            address = next_address(th[o + S.P_KIND], address, stride, th, o, m.shapes, m.rings)
        th[o + S.P_C0], th[o + S.P_C1], th[o + S.P_C2], th[o + S.P_C3] = c0, c1, c2, c3


@helper_kernel
def look_at_queues(c, t, k, m):
    """An operation of thread `k` begins: whether another one of the core uses the same queue in the same direction."""
    th = m.threads[k, c]
    for place in range(3):
        o = S.OPERAND0 + place * S.OPERAND_FIELDS
        form, q = th[o + S.P_FORM], th[o + S.P_QUEUE]
        if form != S.INPUT and form != S.OUTPUT:
            continue
        for other in range(S.N_THREADS):
            if other == k or m.threads[other, c, S.T_OP] <= 0:
                continue
            for there in range(3):
                p = S.OPERAND0 + there * S.OPERAND_FIELDS
                if m.threads[other, c, p + S.P_FORM] == form and m.threads[other, c, p + S.P_QUEUE] == q:
                    is_input = np.int64(1 if form == S.INPUT else 0)
                    note(
                        QUEUE_SHARED,
                        c,
                        t,
                        np.int64(th[S.T_PC]),
                        q,
                        m.threads[other, c, S.T_PC],
                        is_input,
                        0,
                        m,
                    )


@helper_kernel
def sent_by(c, t, pc, q, m):
    """The word that was put last into output queue `q` comes from core `c` and row `pc`."""
    i = (np.int64(m.oq_head[q, c]) + m.oq_count[q, c] - 1) % m.out_depth[q]
    m.oq_from[q, c, i, 0], m.oq_from[q, c, i, 1], m.oq_from[q, c, i, 2] = c, pc, t


@helper_kernel
def entered(e, source, m):
    """The word that came last into queue `e` of a router has the origin `source`."""
    i = (np.int64(m.q_head[e]) + np.int64(m.q_count[e]) - 1) % m.sets[S.CAP]
    for k in range(FROM_FIELDS):
        m.q_from[e, i, k] = source[k]


@helper_kernel
def delivered(c, q, source, m):
    """Record `source` as the origin of the last word in input queue `q`."""
    i = (np.int64(m.iq_head[q, c]) + m.iq_count[q, c] - 1) % m.in_depth[q]
    for k in range(FROM_FIELDS):
        m.iq_from[q, c, i, k] = source[k]


@helper_kernel
def came_from_host(origin, t):
    """A word that the host sends."""
    origin[0], origin[1], origin[2] = -1, 0, t


@helper_kernel
def look_at_meeting(c, rs, port, rx, is_control, source, t, m):
    """A word passes a router: whether chance alone put it behind the last one, which came from another side by the same route.

    What one core sends can depend on what another one sent only as fast as a word travels, a link a cycle.  Two words that were sent closer
    in time than that know nothing of each other; if the route takes words from both sides (`rx`) and no command of a switch is between them,
    their order is that of their arrival.
    """
    last = m.merged[rs]
    takes_both = last[0] != 0 and last[0] != port + 1 and (rx >> max(np.int64(0), last[0] - 1)) & 1 != 0
    if takes_both and last[1] >= 0 and source[0] >= 0 and last[1] != source[0]:
        cols = m.sets[S.COLS]
        apart = abs(last[1] % cols - source[0] % cols) + abs(last[1] // cols - source[0] // cols)
        if source[2] < last[3] + apart:
            slot = rs // (m.sets[S.ROWS] * cols)
            note(LUCK, c, t, source[1], source[0], last[1], last[2], slot, m)
    last[0], last[1], last[2], last[3] = port + 1, source[0], source[1], source[2]
    if is_control:
        last[0] = 0
