# mypy: disable-error-code="assignment"
"""Values of a solved program, applied instruction by instruction without a clock.

A core with one thread executes its instructions in the same order for any times, and the words of a source
arrive everywhere in the order of sending. So each source has one list of words, in which every reader has a
separate position. No core runs further than its times allow: at most READ words per input queue and PUSHED
words sent.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.executors import core as C
from wse_sim.fabric.executors.maxplus import records as K
from wse_sim.fabric.executors.maxplus.graph import IS_RING, READ, ROOT, F
from wse_sim.fabric.executors.maxplus.records import OP_ENDLOOP, OP_HALT, OP_LOOP
from wse_sim.fabric.executors.maxplus.solve import Solution
from wse_sim.fabric.format import program as P
from wse_sim.fabric.format.lower import C_PER, Lowered
from wse_sim.jit import kernel

_FIRST_VECTOR_OP, _FABRIC = P.FIRST_VECTOR_OP, int(P.Kind.FABRIC)
OP, LEVEL, TARGET = P.OP, P.LEVEL, P.TARGET
A_KIND, A_SLOT, B_KIND, B_SLOT = P.A + P.KIND, P.A + P.BUF, P.B + P.KIND, P.B + P.BUF
D_KIND, D_SLOT = P.D + P.KIND, P.D + P.BUF

# State row of a core: the fields of :mod:`core` that values need, then one thread record, then what follows.
THREAD = C.RING0
WIDTH = THREAD + C.THREAD_FIELDS + 2
STARTED, SENT_WORDS = WIDTH - 2, WIDTH - 1


@kernel
def apply(  # type: ignore[no-untyped-def]
    st, pcs, sent_limit, lay, code, costs, params, buffers, arena, leaf_of, ring_of, nodes, offset, words, written, read_at,
    waiting, following, stack,
):  # fmt: skip
    """Run all cores to where their times end; False on an access outside a buffer."""
    n = st.shape[0]
    size = np.int64(0)
    for c in range(n - 1, -1, -1):
        if pcs[c] >= 0:
            stack[size] = c
            size += 1
    while size > 0:
        size -= 1
        c = np.int64(stack[size])
        while True:
            row = np.int64(pcs[c])
            op, level = code[row, OP], code[row, LEVEL]
            if op == OP_HALT:
                break
            count = C.count_of(c, row, code, params)
            if op == OP_LOOP:
                st[c, C.TURNS_LEFT + level], st[c, C.TURN + level] = count, 0
                if count == 0:
                    pcs[c] = code[row, TARGET]
            elif op == OP_ENDLOOP:
                st[c, C.TURNS_LEFT + level] -= 1
                if st[c, C.TURNS_LEFT + level] > 0:
                    st[c, C.TURN + level] += 1
                    pcs[c] = code[row, TARGET]
            elif op >= _FIRST_VECTOR_OP:
                if st[c, STARTED] == 0:
                    if C.begin(st, c, THREAD, row, count, lay, code, costs, buffers) != 0:
                        return False
                    st[c, STARTED] = 1
                blocked = False
                while st[c, THREAD + C.ITEMS] > 0:
                    items = np.int64(st[c, THREAD + C.ITEMS])
                    per = costs[row, C_PER]
                    elements = items if per == 0 else min(per, items)
                    a = (
                        np.int64(leaf_of[c, code[row, A_SLOT]])
                        if code[row, A_KIND] == _FABRIC
                        else np.int64(-1)
                    )
                    b = (
                        np.int64(leaf_of[c, code[row, B_SLOT]])
                        if code[row, B_KIND] == _FABRIC
                        else np.int64(-1)
                    )
                    ring = (
                        np.int64(ring_of[c, code[row, D_SLOT]])
                        if code[row, D_KIND] == _FABRIC
                        else np.int64(-1)
                    )
                    blocked = (code[row, A_KIND] == _FABRIC and a < 0) or (
                        code[row, B_KIND] == _FABRIC and b < 0
                    )
                    wanted = np.int64(-1)
                    for u in (a, b):
                        if u < 0 or blocked:
                            continue
                        if read_at[u] >= nodes[u, READ]:
                            blocked = True
                        elif read_at[u] >= written[nodes[u, ROOT]]:
                            wanted = nodes[u, ROOT]
                    if ring >= 0 and st[c, SENT_WORDS] >= sent_limit[c]:
                        blocked = True
                    if blocked:
                        break
                    if wanted >= 0:
                        following[c] = waiting[wanted]
                        waiting[wanted] = c
                        blocked = True
                        break
                    word_a, word_b = np.int64(0), np.int64(0)
                    if a >= 0:
                        word_a = np.int64(words[offset[nodes[a, ROOT]] + read_at[a]])
                        read_at[a] += 1
                    if b >= 0:
                        word_b = np.int64(words[offset[nodes[b, ROOT]] + read_at[b]])
                        read_at[b] += 1
                    first = np.int64(st[c, THREAD + C.INDEX])
                    out = C.run_elements(
                        st, c, THREAD, row, first, elements, word_a, word_b, code, buffers, arena
                    )
                    if ring >= 0:
                        words[offset[ring] + written[ring]] = np.uint32(out)
                        written[ring] += 1
                        st[c, SENT_WORDS] += 1
                        other = waiting[ring]
                        waiting[ring] = -1
                        while other >= 0:
                            stack[size] = other
                            size += 1
                            other = following[other]
                    st[c, THREAD + C.ITEMS] = items - elements
                    st[c, THREAD + C.INDEX] += elements
                if blocked:
                    break
                st[c, STARTED] = 0
            pcs[c] += 1
    return True


def apply_values(
    lowered: Lowered,
    solution: Solution,
    skip: npt.NDArray[np.bool_],
    arena: npt.NDArray[np.float32],
) -> bool:
    """Write the values of all cores outside `skip` into `arena`; False if an access leaves its buffer."""
    program, costs = lowered.program, lowered.costs
    nodes, cores, n = solution.graph.nodes, solution.cores, program.n_cores
    st = np.zeros((n, WIDTH), np.int32)
    lay = np.zeros(C.DEPTH0, np.int64)
    lay[C.COLS], lay[C.FUNCTIONAL] = program.cols, 1
    runs = (cores[:, K.STATE] != K.ABSENT) & ~skip
    pcs = np.where(runs, program.class_entry[program.core_class], -1).astype(np.int32)
    # words that still sit in the ring were sent as well
    sent = np.where(nodes[:, IS_RING] == 1, nodes[:, F], 0).astype(np.int64)
    cells = len(cores[0, K.RING :]) // 3
    for core in np.flatnonzero(cores[:, K.PUSHED] > cores[:, K.POPPED]):
        for j in range(int(cores[core, K.POPPED]), int(cores[core, K.PUSHED])):
            sent[cores[core, K.RING + 2 * (j & (cells - 1))]] += 1
    offset = np.zeros(len(nodes) + 1, np.int64)
    np.cumsum(sent, out=offset[1:])
    words = np.zeros(int(offset[-1]) + 1, np.uint32)
    ok: bool = apply(
        st, pcs, cores[:, K.PUSHED].copy(), lay, program.code, costs, program.params, program.buffer_table, arena,
        solution.graph.leaf_of, solution.graph.ring_of, nodes, offset, words, np.zeros(len(nodes), np.int64),
        np.zeros(len(nodes), np.int64), np.full(len(nodes), -1, np.int32), np.full(n, -1, np.int32), np.zeros(2 * n + 1, np.int32),
    )  # fmt: skip
    return ok
