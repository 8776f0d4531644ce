"""State of a program on a GPU: bit planes with 64 routers per word, payload, cores, counters.

Word f of row r and word column w is f = (r + 1) stride + w + 1 with stride = words per row + 1: neighbours
are f - stride, f + stride, f - 1, f + 1, and words outside the fabric are zero. Consecutive threads process
consecutive words, so one plane of one slot is contiguous in memory: ``rec[slot, plane, word]``. Planes of
input p: OCC (one word in the queue), FULL (a second one as well), RX (the switch takes this input), POP
(chosen in this cycle; copied slots only). TX of output q. HERE: a word may leave. GO: it leaves in this
cycle.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.executors import core as C
from wse_sim.fabric.executors.base import Options
from wse_sim.fabric.executors.sleep import slots_read
from wse_sim.fabric.executors.trees import ROOT, grow_trees, link_lengths, tree_slots, turned_inputs
from wse_sim.fabric.format.lower import Lowered
from wse_sim.fabric.format.memory import Memory
from wse_sim.fabric.format.program import Program

Array = npt.NDArray[Any]

OCC, FULL, RX, TX, POP = 0, 5, 10, 15, 20  # + port
HERE, GO = 25, 26
PLANES = 27
RAMP = 4
IN_PORTS = 31
COUNTER_BITS = 12
NEVER = np.int64(1) << 62

# Settings of a run.
(COLS, SLOTS, STRIDE, ROUND_ROBIN, STRICT, BIN, VALUES, CONTROL, N_CORES, N_WORDS) = range(10)
TWO_INPUTS, OUT_OF_BOUNDS = range(2)  # places of `faults`
SPREAD = 64  # a fault is (cycle R + core) SPREAD + slot, so that the first is the smallest
ALIVE = 3  # the marks of three cycles: of this one, of the last, and of the next


class Routes(NamedTuple):
    """Constants of a run."""

    ports: Array  # uint16 (slots, n_f): inputs in any switch position of any router, outputs << 5
    used: Array  # uint64 (n_f,): slots with a route
    shared: Array  # uint64 (n_f,): routers where two slots may want one output
    first_core: Array  # int64 (n_f,): core of bit 0; -1 outside
    stations: Array  # int32: cores with a program, and routers that copy words
    route: Array
    cfg_rx: Array
    cfg_tx: Array
    cfg_positions: Array
    cfg_ring: Array
    cfg_pop: Array
    copied: Array  # int64 (slots,): rank among the slots whose words are copied, -1 for trees
    tree: Array  # int32 (slots, R): tree that ends or starts in this core
    base: Array  # int64 (trees,): where its log starts
    size: Array  # int64 (trees,)


class BitPlanes(NamedTuple):
    """State of all routers."""

    rec: Array  # uint64 (slots, PLANES, n_f)
    closed: Array  # uint64 (slots n_f,): the core has no room
    ramp: Array  # uint64 (slots n_f,): words that enter from the core in this cycle
    from_ramp: Array  # uint64 (n_f,): slots of these
    switched: Array  # uint64 (slots n_f,): routers whose switch moved
    has_switched: Array  # uint64 (n_f,): slots of these
    active: Array  # uint64 (n_f,): slots with a word in a queue
    moving: Array  # uint64 (n_f,): slots with moves in this cycle
    visited: Array  # uint64 (n_f,): routers where a core must look
    position: Array  # uint8 (slots, R)
    pointer: Array  # uint8 (R,): slot after the one granted last


class GridPayload(NamedTuple):
    """Words in transit, as in the wavelet executor: logs of trees, and queue cells of copied slots."""

    cells: Array  # uint32 (queues, 2); queue = (copied[slot] 5 + port) R + core
    flags: Array  # uint8 (queues, 2)
    first: Array  # uint8 (queues,): cell of the oldest word; only its receiver writes it
    free: Array  # uint8 (queues,): cell of the next word; only its sender writes it
    log: Array  # uint32
    entered: Array  # int32 (slots, R): words that left the core's ramp
    left: Array  # int32 (slots, R): words that reached the core


class GridCores(NamedTuple):
    """State and program of all cores (:mod:`wse_sim.fabric.executors.core`), and the cycle in which each is
    stepped next."""

    st: Array
    lay: Array
    code: Array
    costs: Array
    params: Array
    tasks: Array
    class_tasks: Array
    buffers: Array
    arena: Array
    reads: Array  # uint64 (classes,): slots that the class takes words from
    bins: Array  # int32 (bins, R): busy cycles
    wake: Array  # int64 (R,): next cycle that the core takes; NEVER while it sleeps
    ring_due: (
        Array  # int64 (R,): cycle from which the oldest word of its ring may leave; NEVER if it is empty
    )


class GridTally(NamedTuple):
    """Counters: int64 (R, 5), and their low bits as 64 bit-sliced counters per word of routers."""

    links: Array
    link_bits: Array  # uint64 (5, COUNTER_BITS, n_f)
    blocked: Array
    blocked_bits: Array
    high: Array  # uint64 (2, n_f): some router queue held a word; held two


class Marks(NamedTuple):
    """Outcome of a cycle."""

    alive: Array  # int64 (ALIVE,): something moved, worked or counts, by cycle mod ALIVE
    faults: Array  # int64 (2,): the first fault of each kind
    clock: Array  # int64 (1,): last cycle that was stepped


class RunSettings(NamedTuple):
    """Settings of a run."""

    sets: Array  # int64: COLS and those after it


class RunState(NamedTuple):
    """Complete state of a run."""

    routes: Routes
    planes: BitPlanes
    payload: GridPayload
    cores: GridCores
    tally: GridTally
    marks: Marks
    settings: RunSettings


def words_of(bits: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint64]:
    """Convert bool (..., rows, cols) to planes uint64 (..., n_f)."""
    *front, rows, cols = bits.shape
    per_row = -(-cols // 64)
    padded = np.zeros((*front, rows, per_row * 64), np.bool_)
    padded[..., :cols] = bits
    packed = np.packbits(padded, axis=-1, bitorder="little").view(np.uint64)
    plane = np.zeros((*front, rows + 2, per_row + 1), np.uint64)
    plane[..., 1:-1, 1:] = packed
    return np.concatenate(
        [plane.reshape(*front, (rows + 2) * (per_row + 1)), np.zeros((*front, 2), np.uint64)], axis=-1
    )


def bits_of(planes: npt.NDArray[np.uint64], rows: int, cols: int) -> npt.NDArray[np.bool_]:
    """Convert planes (..., n_f) to bool (..., R): the inverse of :func:`words_of`."""
    front, per_row = planes.shape[:-1], -(-cols // 64)
    inner = planes[..., :-2].reshape(*front, rows + 2, per_row + 1)[..., 1:-1, 1:]
    bits = np.unpackbits(np.ascontiguousarray(inner).view(np.uint8), axis=-1, bitorder="little")
    return bits[..., :cols].reshape(*front, rows * cols).astype(np.bool_)


def make_state(lowered: Lowered, memory: Memory, options: Options) -> RunState:
    """Return the complete state at cycle 0."""
    program, config = lowered.program, lowered.config
    n, slots, cols = program.n_cores, max(1, program.n_slots), program.cols
    position = np.zeros((slots, n), np.uint8)
    position[: program.n_slots] = program.cfg_initial[program.route]
    is_copied = np.zeros(slots, np.bool_)
    is_copied[: program.n_slots] = ~tree_slots(program)
    routes = _routes(program, is_copied, functional=options.functional)
    n_f = len(routes.used)
    st, lay = C.make_state(program, config, functional=options.functional)
    queues = int(is_copied.sum()) * 5 * n
    has_main = st[:, C.MAIN] == C.MAIN_RUNNING
    per_word = np.zeros((5, n_f), np.uint64)
    per_slot = np.zeros((3, slots * n_f), np.uint64)
    planes = BitPlanes(
        _route_planes(program, position), closed=per_slot[0], ramp=per_slot[1], from_ramp=per_word[0],
        switched=per_slot[2], has_switched=per_word[1], active=per_word[2], moving=per_word[3], visited=per_word[4],
        position=position, pointer=np.zeros(n, np.uint8),
    )  # fmt: skip
    payload = GridPayload(
        np.zeros((queues, 2), np.uint32), np.zeros((queues, 2), np.uint8), np.zeros(queues, np.uint8),
        np.zeros(queues, np.uint8), np.zeros(int(routes.size.sum()), np.uint32), np.zeros((slots, n), np.int32),
        np.zeros(routes.tree.shape, np.int32),
    )  # fmt: skip
    cores = GridCores(
        st, lay, program.code, lowered.costs, program.params, program.tasks, program.class_tasks,
        program.buffer_table, memory, slots_read(program), np.zeros((options.bin_count, n), np.int32),
        np.where(has_main, np.int64(0), NEVER), np.full(n, NEVER),
    )  # fmt: skip
    tally = GridTally(
        np.zeros((n, 5), np.int64), np.zeros((5, COUNTER_BITS, n_f), np.uint64),
        np.zeros((n, 5), np.int64), np.zeros((5, COUNTER_BITS, n_f), np.uint64), np.zeros((2, n_f), np.uint64),
    )  # fmt: skip
    marks = Marks(np.zeros(ALIVE, np.int64), np.full(2, NEVER), np.zeros(1, np.int64))
    sets = np.array(
        [cols, program.n_slots, -(-cols // 64) + 1, config.round_robin, options.strict, options.bin_cycles,
         options.functional, program.has_control, n, n_f], np.int64,
    )  # fmt: skip
    return RunState(routes, planes, payload, cores, tally, marks, RunSettings(sets))


def _ports(program: Program, cfg: npt.NDArray[np.integer], port: int) -> npt.NDArray[np.bool_]:
    """Return bool (slots, rows, cols): routers whose configurations (n_cfg, ...) contain `port`."""
    named: npt.NDArray[np.bool_] = np.any((cfg.reshape(len(cfg), -1) >> port) & 1, axis=1)
    named[0] = False
    return named[program.route].reshape(program.n_slots, program.rows, program.cols)


def _routes(program: Program, is_copied: npt.NDArray[np.bool_], *, functional: bool) -> Routes:
    n, slots, cols = program.n_cores, len(is_copied), program.cols
    n_f = words_of(np.zeros((program.rows, cols), np.bool_)).shape[-1]
    ports, used = np.zeros((slots, n_f), np.uint16), np.zeros(n_f, np.uint64)
    outputs = np.zeros((5, program.rows, cols), np.uint8)
    for p in range(5):
        inputs = words_of(_ports(program, program.cfg_rx, p))
        leaving = _ports(program, program.cfg_tx, p)
        outputs[p] = np.minimum(leaving.sum(axis=0), 2)
        ports[: program.n_slots] |= (inputs != 0).astype(np.uint16) << np.uint16(p)
        ports[: program.n_slots] |= (words_of(leaving) != 0).astype(np.uint16) << np.uint16(5 + p)
    for slot in range(slots):
        used |= (ports[slot] != 0).astype(np.uint64) << np.uint64(slot)
    shared = words_of((outputs == 2).any(axis=0))
    first_core = np.full(n_f, -1, np.int64)
    stride = -(-cols // 64) + 1
    rows, words = np.divmod(np.arange(program.rows * (stride - 1)), stride - 1)
    first_core[(rows + 1) * stride + words + 1] = rows * cols + 64 * words
    copies = (program.route[is_copied[: program.n_slots]] != 0).any(axis=0)
    has_program = program.class_entry[program.core_class] >= 0
    tree, sizes = np.zeros((slots, n) if functional else (0, 0), np.int32), np.zeros(0, np.int64)
    if functional:
        is_tree = ~is_copied[: program.n_slots]
        roots = (program.cfg_rx[:, 0] == ROOT)[program.route] & is_tree[:, None]
        sizes = np.zeros(int(roots.sum()), np.int64)
        grow_trees(
            roots, program.route, program.cfg_rx, program.cfg_tx, turned_inputs(program), program.die_edges, cols,
            np.full(5, 2, np.int64), tree, sizes, np.zeros((n + 4, 2), np.int64),
        )  # fmt: skip
    return Routes(
        ports, used, shared, first_core, np.flatnonzero(copies | has_program).astype(np.int32), program.route,
        program.cfg_rx, program.cfg_tx, program.cfg_positions, program.cfg_ring, program.cfg_pop,
        np.where(is_copied, np.cumsum(is_copied) - 1, -1), tree, np.cumsum(sizes) - sizes, sizes,
    )  # fmt: skip


def _route_planes(program: Program, position: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    shape = (program.n_slots, program.rows, program.cols)
    here = position[: program.n_slots]
    n_f = words_of(np.zeros(shape[1:], np.bool_)).shape[-1]
    rec = np.zeros((len(position), PLANES, n_f), np.uint64)
    for plane, cfg in ((RX, program.cfg_rx), (TX, program.cfg_tx)):
        now = cfg[program.route, here] * (program.route != 0)
        for p in range(5):
            rec[: program.n_slots, plane + p] = words_of(((now >> p) & 1).astype(np.bool_).reshape(shape))
    return rec


def is_short(lowered: Lowered) -> bool:
    """Return whether every link is one cycle long, queues have two words and a port takes one word per cycle."""
    config = lowered.config
    longest = link_lengths(lowered.program, config)[3]
    return bool(longest == 1 and config.router_queue_wavelets == 2 and config.wavelet_milli <= 1000)
