"""Bit planes of the wavelet executor: 64 routers per machine word, one record per (word of routers, slot).

Word f of row r and word column w is f = (r + 1) stride + w + 1 with stride = words per row + 1: neighbours are f - stride,
f + stride, f - 1, f + 1, and the one padding word of a row is the left end of the next.

A record has one cache line per port.  That of port p holds, of the queue at this input, the planes OCC (a word that may
leave is there), FULL (no free cell, as the sender sees it), POP and PUSH (moves of this cycle), RX (the current switch
position takes this input) and TURNED (the link into it changes direction); then TX of the output on the other side, so
that a stream that goes straight on touches one line; that of the ramp LEAF_FULL (no room in the core) as well.
"""

# Jitted functions take arrays and scalars; numba infers their types.
# mypy: allow-untyped-defs, no-check-untyped-defs

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.format.program import Program
from wse_sim.fabric.threads import own_words
from wse_sim.jit import bare_kernel, helper_kernel, inlined_kernel, trailing_zeros

Array = npt.NDArray[Any]

OCC, FULL, POP, PUSH, RX, TX, TURNED = range(7)  # in the line of port p: + 8 p; TX of output q: see tx_at
RAMP = 4
LEAF_FULL = 8 * RAMP + 7
RECORD = 40
ONE, ZERO, TOP = np.uint64(1), np.uint64(0), np.uint64(63)
IN_PORTS = 31
COUNTER_BITS = 12

# Settings of a run.
(COLS, SLOTS, STRIDE, ROUND_ROBIN, STRICT, MAX_CYCLES, BIN, VALUES, CONTROL, N_CORES, BANDS, SPINS) = range(
    12
)
# Of a band: lengths of the lists and flags of the cycle, where it is in time, and what it consists of.
(N_WORK, N_TOUCHED, N_RUN, N_NEXT, N_RINGS, N_TIMED, MOVED, PENDING, PARITY, IN_ORDER) = range(10)
(CLOCK, PHASE, SOONEST, REST, AHEAD, BAND, FIRST_CORE, END_CORE, N_ROWS) = range(10, 19)
SIZES = 19


class Routers(NamedTuple):
    """State of all routers (n_f words, R cores), the worklist, and the decisions of one word of routers in a
    cycle."""

    rec: Array  # uint64 (n_f, slots * RECORD)
    ports: Array  # uint16 (n_f, slots): inputs in any switch position of any router, outputs << 5
    shared: Array  # uint64 (n_f,): routers where two slots may want one output
    first_core: Array  # int64 (n_f,): core of bit 0
    core_f: Array  # int64 (R,)
    pointer: Array  # uint8 (R,): slot after the one granted last
    route: Array
    position: Array  # uint8 (slots, R)
    cfg_rx: Array
    cfg_tx: Array
    cfg_positions: Array
    cfg_ring: Array
    cfg_pop: Array
    active: Array  # uint64 (n_f,): slots with a word that may leave
    touched: Array  # uint64 (n_f,): slots with pops or pushes in this cycle
    listed: Array  # uint8 (n_f,): member of `work`
    work: Array  # int64 (n_f,)
    touched_list: Array  # int64 (n_f,)
    slots: Array  # int64 (64,): slots of the word that is deciding
    eligible: Array  # uint64 (64,): its routers whose word on slots[k] moves
    chosen: Array  # uint64 (64, 5): the input each takes
    wanted: Array  # uint64 (5,): outputs that a word waits for
    granted: Array  # uint64 (5,): outputs that carry one
    counted: Array  # uint64 (5,): of those, moves that the end of the run cannot infer
    slow: Array  # uint64 (5,): outputs still busy with an earlier word


class Tally(NamedTuple):
    """Counters: int64 (R, 5) and their low bits as 64 bit-sliced counters per word of routers."""

    links: Array
    link_bits: Array  # uint64 (n_f, 5, COUNTER_BITS)
    blocked: Array
    blocked_bits: Array
    high: Array  # uint64 (n_f, levels): largest number of words in one router queue, bit-sliced


class Band(NamedTuple):
    """Rows first .. end - 1 of the fabric, of `rows`: what one thread steps.

    The rows of words above and below are *ghosts*: of the neighbour's queues that this band fills.  A band without a
    neighbour leaves them empty.
    """

    first: int
    end: int
    rows: int

    @property
    def n_rows(self) -> int:
        """Rows of the band."""
        return self.end - self.first

    def cores(self, cols: int, *, ghosts: bool = False) -> tuple[int, int]:
        """Return the first core and the one after the last, including ghost rows if requested."""
        if ghosts:
            return max(0, self.first - 1) * cols, min(self.rows, self.end + 1) * cols
        return self.first * cols, self.end * cols

    def words(self, cols: int) -> int:
        """Return the words of routers, padding and ghosts included."""
        return (self.n_rows + 2) * (-(-cols // 64) + 1) + 2


def make_routers(program: Program, bands: list[Band]) -> list[Routers]:
    """Empty queues, routes at their initial positions; what belongs to single routers is one array for all bands."""
    n, slots, cols = program.n_cores, max(1, program.n_slots), program.cols
    stride = -(-cols // 64) + 1
    cores = np.arange(n, dtype=np.int64)
    above = np.repeat([band.first for band in bands], [band.n_rows * cols for band in bands])
    core_f = (cores // cols - above + 1) * stride + (cores % cols) // 64 + 1
    position = np.zeros((slots, n), np.uint8)
    position[: program.n_slots] = program.cfg_initial[program.route]
    pointer = np.zeros(n, np.uint8)
    routers = []
    for band in bands:
        n_f, (first, end) = band.words(cols), band.cores(cols)
        first_core = np.zeros(n_f, np.int64)
        own = cores[first:end][::-1]
        first_core[core_f[own]] = own - (own % cols) % 64
        rec, shared = own_words(n_f, slots * RECORD), np.zeros(n_f, np.uint64)
        ports = np.zeros((n_f, slots), np.uint16)
        fill_routes(
            rec, ports, program.route, position, program.cfg_rx, program.cfg_tx, shared, core_f, cols, first, end
        )  # fmt: skip
        fill_ghosts(ports, program.route, program.cfg_rx, cols, band.first, band.end, band.rows)
        bits, lists = own_words(2, n_f), own_words(2, n_f, dtype=np.int64)
        ports_of_word = own_words(4, 5)
        routers.append(Routers(
            rec, ports, shared, first_core, core_f, pointer, program.route, position, program.cfg_rx,
            program.cfg_tx, program.cfg_positions, program.cfg_ring, program.cfg_pop, active=bits[0], touched=bits[1],
            listed=np.zeros(n_f, np.uint8), work=lists[0], touched_list=lists[1], slots=own_words(64, dtype=np.int64),
            eligible=own_words(64), chosen=own_words(64, 5), wanted=ports_of_word[0],
            granted=ports_of_word[1], counted=ports_of_word[2], slow=ports_of_word[3],
        ))  # fmt: skip
    return routers


def make_tally(program: Program, bands: list[Band], levels: int) -> list[Tally]:
    """Counters at zero; `levels` bits for the high-water marks."""
    links, blocked = (np.zeros((program.n_cores, 5), np.int64) for _ in range(2))
    tally = []
    for band in bands:
        n_f = band.words(program.cols)
        link_bits, blocked_bits = (np.zeros((n_f, 5, COUNTER_BITS), np.uint64) for _ in range(2))
        tally.append(Tally(links, link_bits, blocked, blocked_bits, np.zeros((n_f, levels), np.uint64)))
    return tally


@inlined_kernel
def tx_at(q):
    """Place of the TX plane of output q in a record."""
    return TX + 8 * RAMP if q == RAMP else TX + 8 * (q ^ 2)


@inlined_kernel
def touch(f, slot, routers, size):
    """Remember that (f, slot) changes in this cycle."""
    if routers.touched[f] == ZERO:
        routers.touched_list[size[N_TOUCHED]] = f
        size[N_TOUCHED] += 1
    routers.touched[f] |= ONE << np.uint64(slot)


@inlined_kernel
def count_bits(counters, totals, f, port, bits, first_core):
    """Add `bits` to 64 bit-sliced counters; overflows go to `totals`."""
    k = 0
    while bits != ZERO and k < COUNTER_BITS:
        old = counters[f, port, k]
        counters[f, port, k] = old ^ bits
        bits = old & bits
        k += 1
    while bits != ZERO:
        totals[first_core[f] + trailing_zeros(bits), port] += np.int64(1) << COUNTER_BITS
        bits &= bits - ONE


@bare_kernel
def flush_counters(counters, totals, first_core):
    """Add the bit slices to `totals`."""
    for f in range(counters.shape[0]):
        for port in range(5):
            for k in range(COUNTER_BITS):
                bits = counters[f, port, k]
                while bits != ZERO:
                    totals[first_core[f] + trailing_zeros(bits), port] += np.int64(1) << k
                    bits &= bits - ONE


@helper_kernel
def set_route_bits(rec, f, b, slot, rx, tx):
    """Write the current switch position of one router into the route planes."""
    mask = ONE << b
    for p in range(5):
        o = slot * RECORD
        rec[f, o + RX + 8 * p] = (rec[f, o + RX + 8 * p] & ~mask) | (mask if (rx >> p) & 1 else ZERO)
        i = o + tx_at(p)
        rec[f, i] = (rec[f, i] & ~mask) | (mask if (tx >> p) & 1 else ZERO)


@bare_kernel
def fill_routes(rec, ports, route, position, cfg_rx, cfg_tx, shared, core_f, cols, first, end):
    """Route planes of cores first .. end - 1 at the initial positions; routers where two slots may want one output."""
    for core in range(first, end):
        b = np.uint64((core % cols) & 63)
        seen = np.int64(0)
        for slot in range(route.shape[0]):
            cfg = route[slot, core]
            if cfg == 0:
                continue
            k = position[slot, core]
            set_route_bits(rec, core_f[core], b, slot, np.int64(cfg_rx[cfg, k]), np.int64(cfg_tx[cfg, k]))
            inputs, outputs = np.int64(0), np.int64(0)
            for j in range(4):
                inputs |= np.int64(cfg_rx[cfg, j])
                outputs |= np.int64(cfg_tx[cfg, j])
            ports[core_f[core], slot] |= np.uint16(inputs | (outputs << 5))
            if outputs & seen:
                shared[core_f[core]] |= ONE << b
            seen |= outputs


@bare_kernel
def fill_ghosts(ports, route, cfg_rx, cols, first, end, rows):
    """Inputs of the ghosts of rows first .. end - 1: the one that looks at the band, where the neighbour has it."""
    stride = (cols + 63) // 64 + 1
    for side in range(2):
        row, place, port = (first - 1, 0, 2) if side == 0 else (end, end - first + 1, 0)
        if row < 0 or row >= rows:
            continue
        for slot in range(route.shape[0]):
            for col in range(cols):
                cfg = route[slot, row * cols + col]
                for j in range(4):
                    if (np.int64(cfg_rx[cfg, j]) >> port) & 1 and cfg != 0:
                        ports[place * stride + col // 64 + 1, slot] |= np.uint16(1 << port)
