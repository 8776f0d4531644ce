# mypy: allow-untyped-defs, no-check-untyped-defs
"""Values of a program whose times were derived from a part of it: cores exchange words without a clock.

If every route is a tree and every core has one thread, the order in which a core reads and sends does not depend on times, and words
reach all leaves of a tree in the order of sending (a Kahn process network). So any order of execution gives the values of the machine.
A source logs its words in a ring with as many cells as the machine has on the longest route to a leaf (output ring, router queues, input
queue). So a program that ends on the machine also ends here, and memory does not grow with time.
"""

from __future__ import annotations

import numpy as np

from wse_sim.fabric.executors import core as C
from wse_sim.fabric.executors.maxplus.premises import unsupported_classes
from wse_sim.fabric.executors.maxplus.records import OP_ENDLOOP, OP_HALT, OP_LOOP
from wse_sim.fabric.executors.maxplus.values import STARTED, THREAD, WIDTH
from wse_sim.fabric.executors.trees import ROOT, grow_trees, link_lengths, tree_slots, turned_inputs
from wse_sim.fabric.format import program as P
from wse_sim.fabric.format.lower import C_PER, Lowered
from wse_sim.fabric.format.memory import Memory
from wse_sim.fabric.format.program import Program
from wse_sim.jit import bare_kernel, helper_kernel

_FIRST_VECTOR_OP, _FABRIC = P.FIRST_VECTOR_OP, int(P.Kind.FABRIC)
OP, LEVEL, TARGET = P.OP, P.LEVEL, P.TARGET
A_KIND, A_SLOT, B_KIND, B_SLOT = P.A + P.KIND, P.A + P.BUF, P.B + P.KIND, P.B + P.BUF
D_KIND, D_SLOT = P.D + P.KIND, P.D + P.BUF
RAMP = 4


def is_dataflow(program: Program) -> bool:
    """Return whether the values of `program` are independent of times."""
    return bool(tree_slots(program, dead_ends=True).all()) and not unsupported_classes(program).any()


@helper_kernel
def has_room(k, cells, written, oldest, at_oldest, first_leaf, leaves, left):
    """Return whether tree `k` has room for a word; if not, record its oldest word and the leaves that have
    not read it."""
    if written[k] - oldest[k] < cells[k]:
        return True
    oldest[k], at_oldest[k] = written[k], 0
    for j in range(first_leaf[k], first_leaf[k + 1]):
        behind = left[leaves[j]]
        if behind < oldest[k]:
            oldest[k], at_oldest[k] = behind, 0
        at_oldest[k] += behind == oldest[k]
    return written[k] - oldest[k] < cells[k]


@helper_kernel
def take(k, leaf, base, cells, log, left, oldest, at_oldest, writer, stack, size):
    """Return the next word of tree `k` at `leaf`; wake its source if that waited for room."""
    word = np.int64(log[base[k] + left[leaf] % cells[k]])
    if writer[k] >= 0 and left[leaf] == oldest[k]:
        at_oldest[k] -= 1
        if at_oldest[k] == 0:
            stack[size[0]] = writer[k]
            size[0] += 1
            writer[k] = -1
    left[leaf] += 1
    return word


@bare_kernel
def flow(
    st, pcs, lay, code, costs, params, buffers, arena, tree, base, cells, log, left, written, oldest, at_oldest, first_leaf,
    leaves, reader, writer, following, stack, size,
):  # fmt: skip
    """Run all cores to their end; return the number of cores that do not finish, -1 on an access outside a
    buffer."""
    n = st.shape[0]
    running = 0
    for i in range(n):
        c = n - 1 - i
        if pcs[c] >= 0:
            stack[size[0]] = c
            size[0] += 1
            running += 1
    while size[0] > 0:
        size[0] -= 1
        c = np.int64(stack[size[0]])
        blocked = False
        while not blocked:
            row = np.int64(pcs[c])
            op, level = code[row, OP], code[row, LEVEL]
            if op == OP_HALT:
                running -= 1
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
                        return -1
                    st[c, STARTED] = 1
                per = costs[row, C_PER]
                leaf_a = code[row, A_SLOT] * n + c if code[row, A_KIND] == _FABRIC else np.int64(-1)
                leaf_b = code[row, B_SLOT] * n + c if code[row, B_KIND] == _FABRIC else np.int64(-1)
                out = code[row, D_SLOT] * n + c if code[row, D_KIND] == _FABRIC else np.int64(-1)
                into = np.int64(tree[out]) if out >= 0 else np.int64(-1)
                while st[c, THREAD + C.ITEMS] > 0:
                    items = np.int64(st[c, THREAD + C.ITEMS])
                    elements = items if per == 0 else min(per, items)
                    for leaf in (leaf_a, leaf_b):
                        if leaf < 0 or blocked:
                            continue
                        k = np.int64(tree[leaf])
                        if k < 0:  # no core sends: this core never ends
                            blocked = True
                        elif left[leaf] >= written[k]:
                            following[c], reader[k] = reader[k], c
                            blocked = True
                    if not blocked and out >= 0:
                        if into < 0:
                            blocked = True
                        elif not has_room(into, cells, written, oldest, at_oldest, first_leaf, leaves, left):
                            writer[into] = c
                            blocked = True
                    if blocked:
                        break
                    word_a, word_b = np.int64(0), np.int64(0)
                    if leaf_a >= 0:
                        k = np.int64(tree[leaf_a])
                        word_a = take(
                            k, leaf_a, base, cells, log, left, oldest, at_oldest, writer, stack, size
                        )
                    if leaf_b >= 0:
                        k = np.int64(tree[leaf_b])
                        word_b = take(
                            k, leaf_b, base, cells, log, left, oldest, at_oldest, writer, stack, size
                        )
                    index = np.int64(st[c, THREAD + C.INDEX])
                    word = C.run_elements(
                        st, c, THREAD, row, index, elements, word_a, word_b, code, buffers, arena
                    )
                    if out >= 0:
                        log[base[into] + written[into] % cells[into]] = np.uint32(word & 0xFFFFFFFF)
                        written[into] += 1
                        other = np.int64(reader[into])
                        reader[into] = -1
                        while other >= 0:
                            stack[size[0]] = other
                            size[0] += 1
                            other = np.int64(following[other])
                    st[c, THREAD + C.ITEMS] = np.int32(items - elements)
                    st[c, THREAD + C.INDEX] += np.int32(elements)
                if blocked:
                    break
                st[c, STARTED] = 0
            pcs[c] += 1
    return running


def apply_dataflow(lowered: Lowered, memory: Memory) -> bool:
    """Write the values of all cores into `memory`; False if an access leaves its buffer or a core does not end."""
    program, config = lowered.program, lowered.config
    n, slots = program.n_cores, max(1, program.n_slots)
    queue_cells = config.router_queue_wavelets * np.array([1, *link_lengths(program, config)])
    roots = (program.cfg_rx[:, 0] == ROOT)[program.route]
    tree, cells = np.full((slots, n), -1, np.int32), np.zeros(int(roots.sum()), np.int64)
    grow_trees(
        roots, program.route, program.cfg_rx, program.cfg_tx, turned_inputs(program), program.die_edges, program.cols,
        queue_cells, tree, cells, np.zeros((n + 4, 2), np.int64),
    )  # fmt: skip
    cells += config.ring_wavelets + int(program.input_depth.max(initial=2))
    to_core = np.zeros((slots, n), np.bool_)
    to_core[: program.n_slots] = ((program.cfg_tx[:, 0] >> RAMP) & 1).astype(bool)[program.route]
    leaves = np.flatnonzero(to_core & (tree >= 0))
    owner = tree.reshape(-1)[leaves]
    leaves = leaves[np.argsort(owner, kind="stable")]
    first_leaf = np.r_[0, np.cumsum(np.bincount(owner, minlength=len(cells)))].astype(np.int64)
    base = np.cumsum(cells) - cells
    lay = np.zeros(C.DEPTH0, np.int64)
    lay[C.COLS], lay[C.FUNCTIONAL] = program.cols, 1
    written, oldest, at_oldest = (np.zeros(len(cells), np.int64) for _ in range(3))
    reader, writer = (np.full(len(cells), -1, np.int32) for _ in range(2))
    running: int = flow(
        np.zeros((n, WIDTH), np.int32), program.class_entry[program.core_class].astype(np.int32), lay, program.code,
        lowered.costs, program.params, program.buffer_table, memory, tree.reshape(-1), base, cells,
        np.zeros(int(cells.sum()) + 1, np.uint32), np.zeros(slots * n, np.int32), written, oldest, at_oldest, first_leaf,
        leaves, reader, writer, np.full(n, -1, np.int32), np.zeros(2 * n + 1, np.int32), np.zeros(1, np.int64),
    )  # fmt: skip
    return running == 0
