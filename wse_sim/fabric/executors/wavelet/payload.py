"""Storage of the payload of wavelets whose bits travel through the planes of the wavelet executor.

On a slot whose routes are *trees* (every router has one switch position and takes one input, and no word carries a
command) words leave a source and reach every leaf in one order.  So the source logs the words it sends, a leaf reads
word i of the log as its word i, and nothing is copied on the way.  With c(e) cells in queue e, at most the sum of c
along the longest path of the tree are under way: the size of the (circular) log.  The same order tells how many words
crossed each link: those that entered the tree less those that still wait on the way.

On every other slot each queue holds its words and their flags, and a move copies them.
"""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.executors import core as C
from wse_sim.fabric.executors.core import leaf_push
from wse_sim.fabric.executors.router import advanced, neighbour, popped_payload
from wse_sim.fabric.executors.trees import ROOT, grow_trees, tree_slots
from wse_sim.fabric.executors.wavelet.cores import wake_core
from wse_sim.fabric.executors.wavelet.planes import (
    COLS,
    CONTROL,
    LEAF_FULL,
    N_CORES,
    ONE,
    RAMP,
    RECORD,
    VALUES,
    ZERO,
    Array,
    set_route_bits,
    tx_at,
)
from wse_sim.fabric.format import program as P
from wse_sim.fabric.format.program import Program
from wse_sim.jit import helper_kernel, inlined_kernel, trailing_zeros

LEAF0, LEAF_WIDTH, DEPTH0, Q_COUNT = C.LEAF0, C.LEAF_WIDTH, C.DEPTH0, C.Q_COUNT
FLAG_DATA, FLAG_CONTROL, FLAG_LOCAL, ADVANCE = (
    P.FLAG_DATA,
    P.FLAG_CONTROL,
    P.FLAG_ADVANCE_LOCAL,
    int(P.Command.ADVANCE),
)


class Payload(NamedTuple):
    """Words under way; a queue of a copied slot is e = (copied[slot] * 5 + port) * R + core."""

    copied: Array  # int64 (slots,): rank among the slots whose words are copied, -1 for trees
    cells: Array  # uint32 (queues, cells)
    flags: Array  # uint8 (queues, cells)
    first: Array  # int32 (queues,): cell of the oldest word; only its receiver writes it
    free: Array  # int32 (queues,): cell of the next word; only its sender writes it
    log: Array  # uint32: the logs of all sources, one after the other
    tree: Array  # int32 (slots, R): tree that ends or starts in this core
    base: Array  # int64 (trees,): where its log starts
    size: Array  # int64 (trees,)
    entered: Array  # int32 (slots, R): words that left the core's ramp
    left: Array  # int32 (slots, R): words that reached the core


def make_payload(
    program: Program, turned: npt.NDArray[np.uint8], *, functional: bool, queue_cells: npt.NDArray[np.int64]
) -> Payload:
    """Empty queues and logs.

    ``turned`` (slots, R): inputs whose link changes direction, as a port mask.  ``queue_cells`` = (cells of the queue at
    a ramp, of one behind each kind of link: straight, a turn, both over the edge of a die).
    """
    n, slots = program.n_cores, max(1, program.n_slots)
    is_tree = np.ones(slots, np.bool_)
    is_tree[: program.n_slots] = tree_slots(program)
    copied = np.where(is_tree, -1, np.cumsum(~is_tree) - 1)
    queues, cells = int((~is_tree).sum()) * 5 * n, int(queue_cells.max())
    tree = np.zeros((slots, n) if functional else (0, 0), np.int32)
    sizes = np.zeros(0, np.int64)
    if functional:
        roots = (program.cfg_rx[:, 0] == ROOT)[program.route] & is_tree[: program.n_slots, None]
        sizes = np.zeros(int(roots.sum()), np.int64)
        grow_trees(
            roots, program.route, program.cfg_rx, program.cfg_tx, turned, program.die_edges, program.cols, queue_cells,
            tree, sizes, np.zeros((n + 4, 2), np.int64),
        )  # fmt: skip
    base = np.cumsum(sizes) - sizes
    return Payload(
        copied, np.zeros((queues, cells), np.uint32), np.zeros((queues, cells), np.uint8), np.zeros(queues, np.int32),
        np.zeros(queues, np.int32), np.zeros(int(sizes.sum()), np.uint32), tree, base, sizes,
        np.zeros((slots, n), np.int32), np.zeros(tree.shape, np.int32),
    )  # fmt: skip


@inlined_kernel
def append(payload, e, word, flag):
    """Append a word to queue `e`; the planes have checked that there is space."""
    i = np.int64(payload.free[e])
    payload.cells[e, i], payload.flags[e, i] = np.uint32(word & 0xFFFFFFFF), np.uint8(flag)
    payload.free[e] = np.int32((i + 1) % payload.cells.shape[1])


@inlined_kernel
def enter(payload, slot, core, word, flag, sets):
    """Log a word that leaves the ring of `core`."""
    if payload.copied[slot] >= 0:
        append(payload, (payload.copied[slot] * 5 + RAMP) * sets[N_CORES] + core, word, flag)
        return
    if sets[VALUES]:
        k = payload.tree[slot, core]
        i = payload.base[k] + payload.entered[slot, core] % payload.size[k]
        payload.log[i] = np.uint32(word & 0xFFFFFFFF)
    payload.entered[slot, core] += np.int32(1)


@inlined_kernel
def hand_over(core, f, b, slot, word, flag, t, routers, cores, size):
    """Append a word to the input queue of `core`, and wake the core."""
    st, lay = cores.st, cores.lay
    leaf_push(st[core], core, slot, word, flag, t, lay)
    if st[core, lay[LEAF0] + slot * lay[LEAF_WIDTH] + Q_COUNT] >= lay[DEPTH0 + slot]:
        routers.rec[f, slot * RECORD + LEAF_FULL] |= ONE << b
    cores.fresh[core] = np.int32(t)
    wake_core(core, cores, size)


@inlined_kernel
def deliver(f, slot, bits, t, routers, payload, cores, size, sets):
    """Deliver the next word of its tree to every core of `bits`."""
    while bits != ZERO:
        i = trailing_zeros(bits)
        bits &= bits - ONE
        core = routers.first_core[f] + i
        word = np.int64(0)
        if sets[VALUES]:
            k = payload.tree[slot, core]
            word = np.int64(payload.log[payload.base[k] + payload.left[slot, core] % payload.size[k]])
            payload.left[slot, core] += np.int32(1)
        hand_over(core, f, np.uint64(i), slot, word, np.int64(FLAG_DATA), t, routers, cores, size)


@helper_kernel
def copy_words(f, slot, p, bits, t, routers, payload, cores, size, sets):
    """Move the head words of queues p of `bits` to all outputs; commands act on the switches."""
    rec, o, cols = routers.rec, slot * RECORD, sets[COLS]
    first = payload.copied[slot] * 5
    while bits != ZERO:
        b = np.uint64(trailing_zeros(bits))
        bits &= bits - ONE
        core = routers.first_core[f] + np.int64(b)
        e = (first + p) * sets[N_CORES] + core
        i = np.int64(payload.first[e])
        word, flag = np.int64(payload.cells[e, i]), np.int64(payload.flags[e, i])
        payload.first[e] = np.int32((i + 1) % payload.cells.shape[1])
        hidden = flag == FLAG_CONTROL and (word >> 24) & 1 == 1  # no core sees it
        onward = 0 if flag == FLAG_LOCAL else flag
        tx = np.int64(0)
        for q in range(5):
            tx |= np.int64((rec[f, o + tx_at(q)] >> b) & ONE) << q
        if flag != 0:
            cfg = routers.route[slot, core]
            command = word & 3 if flag == FLAG_CONTROL else np.int64(ADVANCE)
            k = advanced(
                np.int64(routers.position[slot, core]), cfg, command, routers.cfg_positions, routers.cfg_ring
            )
            routers.position[slot, core] = k
            if flag == FLAG_CONTROL:
                word = popped_payload(word, routers.cfg_pop[cfg], command)
            # for the next cycle: no other word looks at these planes
            set_route_bits(
                rec, f, b, slot, np.int64(routers.cfg_rx[cfg, k]), np.int64(routers.cfg_tx[cfg, k])
            )
        for q in range(4):
            if (tx >> q) & 1:
                append(
                    payload, (first + (q + 2) % 4) * sets[N_CORES] + neighbour(core, q, cols), word, onward
                )
        if (tx >> RAMP) & 1 and not hidden:
            hand_over(core, f, b, slot, word, flag if flag == FLAG_CONTROL else 0, t, routers, cores, size)


@helper_kernel
def unseen_controls(f, slot, bits, chosen, payload, routers, sets):
    """Routers of `bits` whose head word is a control wavelet that no core sees: it needs no room in the core."""
    unseen = ZERO
    if not sets[CONTROL] or payload.copied[slot] < 0:
        return unseen
    while bits != ZERO:
        b = np.uint64(trailing_zeros(bits))
        bits &= bits - ONE
        for p in range(5):
            if (chosen[p] >> b) & ONE != ZERO:
                e = (payload.copied[slot] * 5 + p) * sets[N_CORES] + routers.first_core[f] + np.int64(b)
                word = np.int64(payload.cells[e, payload.first[e]])
                if payload.flags[e, payload.first[e]] == FLAG_CONTROL and (word >> 24) & 1 == 1:
                    unseen |= ONE << b
    return unseen
