"""The wavelet executor: equal to the oracle in every cycle and value, with bit planes of 64 routers per
machine word."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.executors.base import TRACE_FIELDS, Options, Reason, Run
from wse_sim.fabric.executors.core import OUT_OF_BOUNDS, OUTCOME_FIELDS, STUCK, TWO_INPUTS
from wse_sim.fabric.executors.final_state import Final, finish
from wse_sim.fabric.executors.parts import Parts
from wse_sim.fabric.executors.trees import count_tree_links, link_lengths, turned_inputs
from wse_sim.fabric.executors.wavelet import loop as K
from wse_sim.fabric.executors.wavelet.bands import LINE, STOPPED, make_edges, split_rows
from wse_sim.fabric.executors.wavelet.cores import make_cores
from wse_sim.fabric.executors.wavelet.links import Links, make_links, no_links
from wse_sim.fabric.executors.wavelet.payload import make_payload
from wse_sim.fabric.executors.wavelet.planes import (
    BAND,
    END_CORE,
    FIRST_CORE,
    FULL,
    N_ROWS,
    OCC,
    RECORD,
    SIZES,
    Array,
    Band,
    Routers,
    flush_counters,
    make_routers,
    make_tally,
)
from wse_sim.fabric.format.lower import Lowered
from wse_sim.fabric.format.memory import Inputs, Memory, new_memory
from wse_sim.fabric.format.program import Program
from wse_sim.fabric.threads import SPINS, own_words, run_bands
from wse_sim.jit import is_interpreted


@dataclasses.dataclass(frozen=True)
class Wavelet:
    """The fastest executor that steps every cycle; it counts everything and has time bins.

    ``split`` cuts a program into at most that many bands of rows, one thread each; with ``in_turns`` they share one, as they
    always do without machine code.
    """

    split: Callable[[Program, int], list[Band]] = split_rows
    in_turns: bool = False

    name = "wavelet"

    def can_run(self, program: Program, options: Options) -> Reason | None:
        """Return None for all programs without a trace."""
        return Reason("the wavelet executor has no trace") if options.trace_rows else None

    def run(self, lowered: Lowered, inputs: Inputs | None, options: Options) -> Run:
        """See :class:`wse_sim.fabric.executors.base.Executor`."""
        return self.step(lowered, new_memory(lowered.program, inputs, functional=options.functional), options)

    def step(self, lowered: Lowered, memory: Memory, options: Options) -> Run:
        """See :class:`wse_sim.fabric.executors.base.SteppedExecutor`."""
        parts = Parts()
        program, config = lowered.program, lowered.config
        n, cols, slots = program.n_cores, program.cols, max(1, program.n_slots)
        bands = self.split(program, options.threads)
        in_turns = self.in_turns or is_interpreted()
        lengths = link_lengths(program, config)
        is_slow = config.wavelet_milli > 1000
        is_short = lengths[3] == 1 and config.router_queue_wavelets == 2 and not is_slow
        turned = np.zeros((slots, n), np.uint8) if is_short else turned_inputs(program)
        routers = make_routers(program, bands)
        links = [
            no_links() if is_short else make_links(program, config, routers[i], bands[i], turned)
            for i in range(len(bands))
        ]
        cells = config.router_queue_wavelets * np.array([1, *lengths])
        payload = make_payload(program, turned, functional=options.functional, queue_cells=cells)
        cores = make_cores(lowered, memory, options.bin_count, bands, functional=options.functional)
        tally = make_tally(program, bands, 2 if is_short else links[0].level.shape[4])
        edges = make_edges(program, bands)
        sets = np.array(
            [cols, program.n_slots, -(-cols // 64) + 1, config.round_robin, options.strict, options.max_cycles,
             options.bin_cycles, options.functional, program.has_control, n, len(bands), 1 if in_turns else SPINS],
            np.int64,
        )  # fmt: skip
        outcomes = np.zeros((len(bands), OUTCOME_FIELDS), np.int64)
        loop = K.run_short if is_short else K.run_long
        parts.done("state of routers, queues and cores")
        run_bands(
            [
                functools.partial(
                    loop,
                    routers[i],
                    payload,
                    cores[i],
                    tally[i],
                    links[i],
                    edges,
                    sizes(i, band, cols),
                    sets,
                    outcomes[i],
                )
                for i, band in enumerate(bands)
            ],
            lambda: edges.shown[STOPPED::LINE].fill(-1),
            in_turns=in_turns,
        )
        parts.done("cycles")
        outcome = first_outcome(outcomes)
        waiting = _waiting(program, bands, routers, links if not is_short else None)
        for counts, router in zip(tally, routers, strict=True):
            flush_counters(counts.link_bits, counts.links, router.first_core)
            flush_counters(counts.blocked_bits, counts.blocked, router.first_core)
        count_tree_links(
            payload.copied, program.route, program.cfg_rx, program.cfg_tx, cols, payload.entered, waiting,
            tally[0].links, np.zeros((n + 4, 2), np.int64),
        )  # fmt: skip
        high = np.zeros(n, np.int64)
        for band, counts, router in zip(bands, tally, routers, strict=True):
            here = slice(*band.cores(cols))
            weights = [1, 1] if is_short else [1 << k for k in range(counts.high.shape[1])]
            for k, weight in enumerate(weights):
                high[here] += weight * _of_cores(counts.high[:, k], here, cols, router)
        final = Final(
            cores[0].st, cores[0].lay, outcome, tally[0].links, tally[0].blocked, high, waiting, routers[0].position,
            cores[0].bins, np.zeros((0, TRACE_FIELDS), np.int64),
        )  # fmt: skip
        run = finish(program, final, memory, options)
        parts.done("counters")
        return dataclasses.replace(run, seconds=parts.seconds)


def sizes(i: int, band: Band, cols: int) -> Array:
    """Return the counters of band `i` at cycle 0."""
    size = own_words(SIZES, dtype=np.int64)
    size[BAND], size[N_ROWS] = i, band.n_rows
    size[FIRST_CORE], size[END_CORE] = band.cores(cols)
    return size


def first_outcome(outcomes: Array) -> Array:
    """Return the outcome of the bands as one thread would find it: the earliest fault, and of equal ones that
    of the first core."""
    faults = np.flatnonzero(np.isin(outcomes[:, 0], (TWO_INPUTS, OUT_OF_BOUNDS)))
    if len(faults):
        kind, cycle, core = outcomes[faults, :3].T
        return outcomes[faults[np.lexsort((core, kind == OUT_OF_BOUNDS, cycle))[0]]]  # type: ignore[no-any-return]
    stuck = np.flatnonzero(outcomes[:, 0] == STUCK)
    return outcomes[stuck[0] if len(stuck) else 0]  # type: ignore[no-any-return]


def _of_cores(plane: Array, here: slice, cols: int, routers: Routers) -> npt.NDArray[np.int64]:
    """Bit of the cores `here` in a plane (n_f,) of their band."""
    shift = (np.arange(here.start, here.stop) % cols % 64).astype(np.uint64)
    return ((plane[routers.core_f[here]] >> shift) & np.uint64(1)).astype(np.int64)


def _waiting(
    program: Program, bands: list[Band], routers: list[Routers], links: list[Links] | None
) -> npt.NDArray[np.int32]:
    """Words left in the router queues and on the links, (slots, R, 5)."""
    slots = max(1, program.n_slots)
    waiting = np.zeros((slots, program.n_cores, 5), np.int32)
    for i, band in enumerate(bands):
        here = slice(*band.cores(program.cols))
        for slot in range(slots):
            for p in range(5):
                if links is None:
                    record = slot * RECORD + 8 * p
                    planes = [(1, routers[i].rec[:, record + field]) for field in (OCC, FULL)]
                else:
                    words = links[i].level[:, slot, p, 0]
                    planes = [(1 << k, words[:, k]) for k in range(words.shape[1])]
                    planes += [(1, plane) for plane in links[i].arriving[:, :, slot, p]]
                for weight, plane in planes:
                    if plane.any():
                        bits = weight * _of_cores(plane, here, program.cols, routers[i])
                        waiting[slot, here, p] += bits.astype(np.int32)
    return waiting
