"""The wavelet executor: cycle for cycle and value for value the oracle, with bit planes of 64 routers per machine word."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wse_sim.fabric import core as C
from wse_sim.fabric import program as P
from wse_sim.fabric import wavelet_kernel as K
from wse_sim.fabric.config import FabricConfig
from wse_sim.fabric.lower import lower
from wse_sim.fabric.oracle import turning_outputs
from wse_sim.fabric.program import Kind, Program
from wse_sim.fabric.raw import RawRun


def supports(program: Program, config: FabricConfig) -> bool:
    """True for links of one cycle and one wavelet per cycle; other wafers run on the oracle."""
    plain = config.hop_cycles == 1 and config.wavelet_milli == 1000 and config.router_queue_wavelets == 2
    return plain and (config.turn_cycles == 0 or not turning_outputs(program).any())


def _reads(program: Program) -> npt.NDArray[np.uint64]:
    """Bit mask of slots that instructions and tasks of a class take words from."""
    masks = np.zeros(len(program.class_names), np.uint64)
    starts = np.array(program.class_entry[1:], np.int64)
    owner = np.searchsorted(starts, np.arange(len(program.code)), side="right")
    for i in np.flatnonzero(program.code[:, P.OP] > P.Op.CONTROL):
        for place in (P.A, P.B):
            if program.code[i, place + P.KIND] == Kind.FABRIC:
                masks[owner[i]] |= np.uint64(1) << np.uint64(program.code[i, place + P.BUF])
    for c in range(len(masks)):
        for row in program.tasks[program.class_tasks[c] : program.class_tasks[c + 1]]:
            if row[P.T_KIND] == P.TaskKind.DATA:
                masks[c] |= np.uint64(1) << np.uint64(row[P.T_KEY])
            elif row[P.T_KIND] == P.TaskKind.CONTROL:
                masks[c] |= np.uint64((1 << program.n_slots) - 1)
    return masks


def _aligned_words(rows: int, width: int) -> npt.NDArray[np.uint64]:
    """Zeros (rows, width) that start at a cache line of 64 bytes."""
    raw = np.zeros(rows * width + 8, np.uint64)
    skip = -(raw.ctypes.data // 8) % 8
    return raw[skip : skip + rows * width].reshape(rows, width)


def run_wavelet(
    program: Program,
    config: FabricConfig,
    arena: npt.NDArray[np.float32],
    *,
    functional: bool,
    strict: bool,
    max_cycles: int,
    bins: int = 0,
    bin_cycles: int = 1,
) -> RawRun:
    """Run `program`; `arena` is changed in place when `functional`."""
    n, slots, cols = program.n_cores, max(1, program.n_slots), program.cols
    words = -(-cols // 64)
    stride = words + 1
    n_f = (program.rows + 2) * stride + 2
    cores = np.arange(n, dtype=np.int64)
    core_f = (cores // cols + 1) * stride + (cores % cols) // 64 + 1
    first_core = np.zeros(n_f, np.int64)
    first_core[core_f[::-1]] = (cores - (cores % cols) % 64)[::-1]
    payload = functional or program.has_control
    st, lay = C.make_state(program, config, functional=functional)
    sets = np.array(
        [cols, program.n_slots, stride, config.round_robin, strict, max_cycles, max(1, bin_cycles), payload,
         program.has_control, n], np.int64,
    )  # fmt: skip
    rec = _aligned_words(n_f, slots * K.RECORD)
    shared = np.zeros(n_f, np.uint64)
    position = np.zeros((slots, n), np.uint8)
    position[: program.n_slots] = program.cfg_initial[program.route]
    K.fill_routes(rec, program.route, position, program.cfg_rx, program.cfg_tx, shared, core_f, cols)
    cells = slots * 5 * n_f * 64
    cells0, cells1 = (np.zeros(cells if payload else 64, np.uint32) for _ in range(2))
    flags0, flags1 = (np.zeros(cells if program.has_control else 64, np.uint8) for _ in range(2))
    links, blocked = np.zeros((n, 5), np.int64), np.zeros((n, 5), np.int64)
    link_bits, blocked_bits = (np.zeros((n_f, 5, K.COUNTER_BITS), np.uint64) for _ in range(2))
    high = np.zeros((n_f, 2), np.uint64)
    busy_bins = np.zeros((bins, n), np.int32)
    outcome = np.zeros(5, np.int64)
    K.loop(
        sets, rec, shared, first_core, core_f, program.route, position, program.cfg_rx, program.cfg_tx,
        program.cfg_positions, program.cfg_ring, program.cfg_pop, np.zeros(n, np.uint8), cells0, cells1, flags0, flags1,
        _reads(program), st, lay, program.code, lower(program, config), program.params, program.tasks,
        program.class_tasks, program.buffer_table, arena, links, link_bits, blocked, blocked_bits, high, busy_bins,
        outcome, K.router_scratch(n_f), K.core_scratch(n), *np.zeros((3, 5), np.uint64),
    )  # fmt: skip
    K.flush_counters(link_bits, links, first_core)
    K.flush_counters(blocked_bits, blocked, first_core)
    bit = (cores % cols) % 64
    router_high = sum(
        ((high[core_f, k] >> bit.astype(np.uint64)) & np.uint64(1)).astype(np.int64) for k in (0, 1)
    )
    waiting = _waiting(rec, core_f, bit, slots)
    return RawRun(
        st,
        lay,
        outcome,
        links,
        blocked,
        np.asarray(router_high),
        waiting,
        position,
        busy_bins,
        np.zeros((0, 9), np.int64),
    )


def _waiting(
    rec: npt.NDArray[np.uint64], core_f: npt.NDArray[np.int64], bit: npt.NDArray[np.int64], slots: int
) -> npt.NDArray[np.uint8]:
    """Words left in the router queues, (slots, R, 5)."""
    waiting = np.zeros((slots, len(core_f), 5), np.uint8)
    shift = bit.astype(np.uint64)
    for slot in range(slots):
        for p in range(5):
            for field in (K.OCC, K.FULL):
                plane = rec[:, slot * K.RECORD + field + 8 * p]
                if plane.any():
                    waiting[slot, :, p] += ((plane[core_f] >> shift) & np.uint64(1)).astype(np.uint8)
    return waiting
