"""The wavelet executor: cycle for cycle and value for value the oracle, with bit planes of 64 routers per machine word."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.executors.base import TRACE_FIELDS, Options, Reason, Run
from wse_sim.fabric.executors.core import OUTCOME_FIELDS
from wse_sim.fabric.executors.stepped import Final, finish
from wse_sim.fabric.executors.wavelet import loop as K
from wse_sim.fabric.executors.wavelet.cores import make_cores
from wse_sim.fabric.executors.wavelet.links import Links, link_lengths, make_links, no_links
from wse_sim.fabric.executors.wavelet.payload import count_tree_links, make_payload
from wse_sim.fabric.executors.wavelet.planes import (
    FULL,
    OCC,
    RECORD,
    SIZES,
    Array,
    Routers,
    flush_counters,
    make_routers,
    make_tally,
)
from wse_sim.fabric.format.lower import Lowered
from wse_sim.fabric.format.memory import Inputs, Memory, new_memory
from wse_sim.fabric.format.program import Program


class Wavelet:
    """The fastest executor that steps every cycle; it counts everything and has time bins."""

    name = "wavelet"

    def can_run(self, program: Program, options: Options) -> Reason | None:
        """Everything but traces."""
        return Reason("the wavelet executor has no trace") if options.trace_rows else None

    def run(self, lowered: Lowered, inputs: Inputs | None, options: Options) -> Run:
        """See :class:`wse_sim.fabric.executors.base.Executor`."""
        return self.step(lowered, new_memory(lowered.program, inputs, functional=options.functional), options)

    def step(self, lowered: Lowered, memory: Memory, options: Options) -> Run:
        """See :class:`wse_sim.fabric.executors.base.SteppedExecutor`."""
        program, config = lowered.program, lowered.config
        n, cols = program.n_cores, program.cols
        lengths = link_lengths(program, config)
        is_slow = config.wavelet_milli > 1000
        is_short = lengths[3] == 1 and config.router_queue_wavelets == 2 and not is_slow
        routers = make_routers(program)
        links = no_links() if is_short else make_links(program, config, routers)
        cells = config.router_queue_wavelets * np.array([1, *lengths])
        payload = make_payload(program, routers, functional=options.functional, queue_cells=cells)
        cores = make_cores(lowered, memory, options.bins, functional=options.functional)
        tally = make_tally(routers.rec.shape[0], n, 2 if is_short else links.level.shape[4])
        sets = np.array(
            [cols, program.n_slots, -(-cols // 64) + 1, config.round_robin, options.strict, options.max_cycles,
             max(1, options.bin_cycles), options.functional, program.has_control, n], np.int64,
        )  # fmt: skip
        outcome = np.zeros(OUTCOME_FIELDS, np.int64)
        loop = K.run_short if is_short else K.run_slow if is_slow else K.run_long
        loop(routers, payload, cores, tally, links, np.zeros(SIZES, np.int64), sets, outcome)
        waiting = _waiting(program, routers, None if is_short else links)
        flush_counters(tally.link_bits, tally.links, routers.first_core)
        flush_counters(tally.blocked_bits, tally.blocked, routers.first_core)
        count_tree_links(
            payload.copied, program.route, program.cfg_rx, program.cfg_tx, cols, payload.entered, waiting, tally.links,
            np.zeros((n + 4, 2), np.int64),
        )  # fmt: skip
        weights = np.array([1, 1] if is_short else 1 << np.arange(links.level.shape[4]))
        high = sum(weights[k] * _of_cores(tally.high[:, k], program, routers) for k in range(len(weights)))
        final = Final(
            cores.st, cores.lay, outcome, tally.links, tally.blocked, np.asarray(high, np.int64), waiting,
            routers.position, cores.bins, np.zeros((0, TRACE_FIELDS), np.int64),
        )  # fmt: skip
        return finish(program, final, memory, options)


def _of_cores(plane: Array, program: Program, routers: Routers) -> npt.NDArray[np.int64]:
    """Bit (R,) of every core in a plane (n_f,)."""
    shift = (np.arange(program.n_cores) % program.cols % 64).astype(np.uint64)
    return ((plane[routers.core_f] >> shift) & np.uint64(1)).astype(np.int64)


def _waiting(program: Program, routers: Routers, links: Links | None) -> npt.NDArray[np.int32]:
    """Words left in the router queues and on the links, (slots, R, 5)."""
    slots = max(1, program.n_slots)
    waiting = np.zeros((slots, program.n_cores, 5), np.int32)
    for slot in range(slots):
        for p in range(5):
            if links is None:
                record = slot * RECORD + 8 * p
                planes = [(1, routers.rec[:, record + field]) for field in (OCC, FULL)]
            else:
                words = links.level[:, slot, p, 0]
                planes = [(1 << k, words[:, k]) for k in range(words.shape[1])]
                planes += [(1, plane) for plane in links.arriving[:, :, slot, p]]
            for weight, plane in planes:
                if plane.any():
                    waiting[slot, :, p] += (weight * _of_cores(plane, program, routers)).astype(np.int32)
    return waiting
