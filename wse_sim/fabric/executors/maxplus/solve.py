"""Driver of the solver: solve, repeat with exact windows where speculation failed, return times and counters.

The attempts share one file, because they pass state to each other.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from wse_sim.errors import ProgramError
from wse_sim.fabric.executors.base import Waits
from wse_sim.fabric.executors.final_state import wanted
from wse_sim.fabric.executors.maxplus import records as K
from wse_sim.fabric.executors.maxplus.advance import solve
from wse_sim.fabric.executors.maxplus.components import label_components
from wse_sim.fabric.executors.maxplus.counters import count_links, speculated_too_far
from wse_sim.fabric.executors.maxplus.graph import (
    CORE,
    LOGGED,
    MASK,
    RUN_N,
    RUN_START,
    RUN_STEP,
    SLOT,
    F,
    Graph,
    Reach,
    build_graph,
)
from wse_sim.fabric.executors.maxplus.graph import LEAF as NODE_LEAF
from wse_sim.fabric.executors.maxplus.graph import READ as NODE_READ
from wse_sim.fabric.executors.maxplus.order import order_routers
from wse_sim.fabric.executors.maxplus.sign import SIGN_FIELDS
from wse_sim.fabric.executors.maxplus.steady import Skip, SteadyState, release_round
from wse_sim.fabric.format import program as P
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.lower import Lowered
from wse_sim.fabric.format.program import Program
from wse_sim.fabric.threads import cut
from wse_sim.jit import kernel


@dataclasses.dataclass
class Solution:
    """Times of all actors outside the components that were never built.

    ``cores`` int32 (R, RING + 3 ring cells): records of :mod:`~wse_sim.fabric.executors.maxplus.records`; ``log`` (n_log, 4) arithmetic runs.
    """

    graph: Graph
    cores: npt.NDArray[np.int32]
    times: npt.NDArray[np.int32]
    log: npt.NDArray[np.int32]
    n_log: int
    passes: int
    built: npt.NDArray[np.bool_]
    config: FabricConfig
    ahead: npt.NDArray[np.bool_]  # (R,): sources whose words ran ahead of credits and found no room
    skips: tuple[Skip, ...] = ()
    signs: npt.NDArray[np.int64] | None = None
    links: npt.NDArray[np.int64] = dataclasses.field(default_factory=lambda: np.zeros((0, 5), np.int64))
    words_left: int = 0
    end: int = 0
    waiting: npt.NDArray[np.int32] | None = None

    def stuck(self, ignore: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return (R,): cores outside `ignore` that wait forever."""
        return (self.columns[K.STATE] == K.READY) & ~ignore

    @functools.cached_property
    def columns(self) -> dict[int, npt.NDArray[np.int64]]:
        """Fields of the core records, gathered in one pass."""
        table = gather(self.cores, np.array(RESULT_FIELDS))
        return dict(zip(RESULT_FIELDS, table, strict=True))

    def count(self, program: Program, found: Reach, ignore: npt.NDArray[np.bool_]) -> None:
        """Fill links, words left and the cycle after the last event of all components outside `ignore`."""
        n, slots = program.n_cores, max(1, program.n_slots)
        is_stuck = bool(self.stuck(ignore).any())
        self.links = np.zeros((n, 5), np.int64)
        self.waiting = np.zeros((slots, n, 5) if is_stuck else (1, 1, 5), np.int32)
        end, left = count_links(
            program.cols, program.route, found.tx, self.graph.turns, found.sends, program.core_class, ~self.built, ignore,
            found.shared, self.config.hop_cycles, self.config.turn_cycles, program.die_edges, self.config.die_crossing_cycles,
            self.config.router_queue_wavelets,
            self.graph.nodes, self.times, self.links, self.waiting, is_stuck, self.graph.solid,
            np.zeros(4 * n + 8, np.int64), np.zeros(4 * n + 8, np.int64), np.zeros((n + 1, 4), np.int64),
        )  # fmt: skip
        in_ring = (self.columns[K.PUSHED] - self.columns[K.POPPED])[~ignore]
        self.words_left = int(left) + int(in_ring.sum())
        self.end = max(int(end), int(self.columns[K.TIME][~ignore].max(initial=0)))
        for core in np.flatnonzero((self.cores[:, K.PUSHED] > self.cores[:, K.POPPED]) & ~ignore):
            cell = K.RING + 2 * (int(self.cores[core, K.POPPED]) & (ring_cells(self.config) - 1))
            self.end = max(self.end, int(self.cores[core, cell + 1]) + self.config.ring_delay_cycles)

    def core_counters(self, end: int) -> dict[str, npt.NDArray[np.int64]]:
        """Counters (R,) by name, see :class:`~wse_sim.fabric.executors.base.Counters`; a stuck core stalls until `end`."""
        columns = self.columns
        state, t = columns[K.STATE], columns[K.TIME]
        stalled_in, stalled_out = columns[K.IN_COUNT].copy(), columns[K.OUT_COUNT].copy()
        for core in np.flatnonzero(state == K.READY) if end > 0 else ():
            if columns[K.WAIT][core] == K.WAIT_RING:
                stalled_in[core] += columns[K.RING_READY][core] - t[core]
                stalled_out[core] += end - columns[K.RING_READY][core]
            else:
                stalled_in[core] += end - t[core]
        return {
            "halt": np.where(state == K.READY, -1, t),
            "busy": columns[K.BUSY_COUNT],
            "stalled_in": stalled_in,
            "stalled_out": stalled_out,
            "sent": columns[K.PUSHED],
            "received": columns[K.RECEIVED],
        }

    def waits(self, lowered: Lowered, ignore: npt.NDArray[np.bool_]) -> Waits:
        """Return what the stuck cores outside `ignore` wait for, and the content of the queues."""
        program, config = lowered.program, lowered.config
        n, slots = program.n_cores, max(1, program.n_slots)
        stuck = self.stuck(ignore)
        at, nodes = np.flatnonzero(stuck), self.graph.nodes
        in_ring = self.columns[K.PUSHED] - self.columns[K.POPPED]
        ring_slot = np.full(n, -1, np.int64)
        for core in np.flatnonzero(in_ring > 0):
            cell = K.RING + 2 * (int(self.cores[core, K.POPPED]) & (ring_cells(config) - 1))
            ring_slot[core] = nodes[self.cores[core, cell], SLOT]
        held = np.zeros((slots, n), np.int64)
        leaves = np.flatnonzero(nodes[:, NODE_LEAF] >= 0)
        held[nodes[leaves, SLOT], nodes[leaves, CORE]] = nodes[leaves, F] - nodes[leaves, NODE_READ]
        pc = self.cores[:, K.PC].astype(np.int64)
        wants = wanted(
            program, at, pc[at, None], np.zeros((len(at), 1), np.int64), held=held,
            ring_room=config.ring_wavelets - in_ring, pc=pc + 1,
        )  # fmt: skip
        position = np.zeros((slots, n), np.uint8)
        position[: program.n_slots] = program.cfg_initial[program.route]
        waiting = self.waiting
        if waiting is None or waiting.shape[1] != n:
            waiting = np.zeros((slots, n, 5), np.int32)
        depth = np.full(slots, np.iinfo(np.int64).max)
        depth[: program.n_slots] = program.input_depth
        return Waits(stuck, wants, ring_slot, held >= depth[:, None], waiting, position)


RESULT_FIELDS = (
    K.STATE, K.TIME, K.IN_COUNT, K.OUT_COUNT, K.WAIT, K.RING_READY, K.BUSY_COUNT, K.PUSHED, K.POPPED, K.RECEIVED,
    K.ANCHOR,
)  # fmt: skip


@kernel
def gather(cores, fields):  # type: ignore[no-untyped-def]
    """int64 (len(fields), R): chosen fields of all records."""
    table = np.empty((len(fields), cores.shape[0]), np.int64)
    for c in range(cores.shape[0]):
        for i in range(len(fields)):
            table[i, c] = cores[c, fields[i]]
    return table


def ring_cells(config: FabricConfig) -> int:
    """Return the cells of the ring arrays: a power of two."""
    return 1 << (config.ring_wavelets - 1).bit_length()


@kernel
def start_cores(cores, core_class, entry, skip):  # type: ignore[no-untyped-def]
    """Fill the zeroed records of all cores for cycle 0."""
    for c in range(cores.shape[0]):
        first = entry[core_class[c]]
        if first < 0 or skip[c]:
            cores[c, K.STATE], cores[c, K.WAIT] = K.ABSENT, K.WAIT_NOTHING
        else:
            cores[c, K.PC], cores[c, K.WAIT] = first, K.WAIT_START
        cores[c, K.LAST_POP] = -1


@kernel
def flush_runs(nodes, log, s):  # type: ignore[no-untyped-def]
    """Log the open arithmetic run of every node; False if there is no room."""
    for u in range(nodes.shape[0]):
        if nodes[u, LOGGED] and nodes[u, RUN_N] > 0:
            if s[K.S_LOG] >= log.shape[0]:
                return False
            i = s[K.S_LOG]
            log[i, 0], log[i, 1] = u, nodes[u, RUN_START]
            log[i, 2], log[i, 3] = nodes[u, RUN_STEP], nodes[u, RUN_N]
            s[K.S_LOG] = i + 1
            nodes[u, RUN_N] = 0
    return True


def grown(log: npt.NDArray[np.int32], used: int, room: int) -> npt.NDArray[np.int32]:
    """Return a larger log with the same entries."""
    bigger = np.empty((2 * len(log) + room, 4), np.int32)
    bigger[:used] = log[:used]
    return bigger


def longest_loop(program: Program) -> int:
    """Return the largest number of rounds of any outer loop."""
    loops = (program.code[:, P.OP] == P.Op.LOOP) & (program.code[:, P.LEVEL] == 0)
    rounds = [
        int(row[P.N]) if row[P.N_PARAM] < 0 else int(program.params[row[P.N_PARAM]].max(initial=0))
        for row in program.code[loops]
    ]
    return max(rounds, default=0)


def touched(label: npt.NDArray[np.int32], cores: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return (R,): cores in a component that contains one of `cores`."""
    marked = np.zeros(len(label), bool)
    marked[label[cores]] = True
    return marked[label]


def solve_program(
    lowered: Lowered,
    found: Reach,
    skip: npt.NDArray[np.bool_],
    ordered: npt.NDArray[np.bool_],
    label: npt.NDArray[np.int32] | None,
    *,
    speculate: bool,
    signing: bool = False,
    threads: int = 1,
) -> Solution:
    """Solve the equations of all components outside `skip`; no speculated time remains unverified.

    Up to `threads` groups of components are solved in parallel, unless routers are ordered, loops pause or
    streams are signed.

    Routers of `ordered` (R,) advance in time order.  `label`: component per core, if rounds of loops may be added
    once they are steady; None simulates all of them.  `signing`: give every router its own node and sign all streams.
    """
    program = lowered.program
    n, slots = program.n_cores, max(1, program.n_slots)
    exact = np.zeros(slots * n, bool)
    in_order = np.zeros(n, bool)
    if ordered.any():  # no speculation and no pauses where the clock matters
        in_order = touched(label_components(program, found), ordered)
        exact = np.tile(in_order, slots)
    passes, ahead = 0, np.zeros(n, bool)
    while True:
        passes += 1
        graph = build_graph(lowered, found, skip, exact, ordered, speculate=speculate, whole=signing)
        attempt = _Attempt(lowered, graph, skip, in_order, label, signing=signing)
        if threads > 1 and label is None and not signing and not ordered.any():
            attempt.group = groups_of(
                label_components(program, found), ~skip & (program.core_class > 0), threads
            )
        if not attempt.run():
            roots = np.flatnonzero(attempt.violated)
            trees = graph.nodes[roots, SLOT].astype(np.int64) * n + graph.nodes[roots, CORE]
            if exact[trees].all():
                raise RuntimeError(
                    "a tree with exact windows broke them"
                )  # a fault of this module, not of the program
            exact[trees] = True
            ahead[trees % n] = True
        elif attempt.complete():
            return Solution(
                graph,
                attempt.cores,
                attempt.times,
                attempt.log,
                attempt.n_log,
                passes,
                ~skip,
                lowered.config,
                ahead,
                attempt.skips(),
                attempt.signs if signing else None,
            )
        else:
            label = None


def groups_of(
    label: npt.NDArray[np.int32], at_work: npt.NDArray[np.bool_], n: int
) -> npt.NDArray[np.int64] | None:
    """Group (R,) of every core, at most `n`, each of whole components and about equally many cores `at_work`; None for less than two."""
    names, number = np.unique(label, return_inverse=True)
    weights = np.bincount(number, at_work, len(names)).astype(np.int64)
    busy = np.flatnonzero(weights)
    n = min(n, len(busy))
    if n < 2:
        return None
    group_of_label = np.zeros(len(names), np.int64)
    for start in cut(weights[busy], n):
        group_of_label[busy[start:]] += 1
    return group_of_label[number]


class _Attempt:
    """One run of the kernel over a fresh graph."""

    def __init__(
        self,
        lowered: Lowered,
        graph: Graph,
        skip: npt.NDArray[np.bool_],
        in_order: npt.NDArray[np.bool_],
        label: npt.NDArray[np.int32] | None,
        *,
        signing: bool,
    ) -> None:
        program, config = lowered.program, lowered.config
        nodes, n = graph.nodes, program.n_cores
        self.program, self.graph = program, graph
        self.ops = K.decode(program, lowered.costs)
        self.group: npt.NDArray[np.int64] | None = None  # components that threads of their own solve
        self.skip = skip
        self.cores = np.zeros((n, K.RING + 3 * ring_cells(config)), np.int32)
        start_cores(self.cores, program.core_class, program.class_entry, skip)
        self.times = np.zeros(max(1, graph.pool), np.int32)
        self.stack = np.zeros(n + len(nodes) + 1, np.int32)
        self.margin = int(nodes[:, MASK].max(initial=0)) + 16
        self.log = np.empty((int((nodes[:, LOGGED] > 0).sum()) * 2 + self.margin + 1024, 4), np.int32)
        self.n_log = 0
        self.violated = np.zeros(len(nodes), np.uint8)
        self.steady = SteadyState(nodes, label, n) if label is not None else None
        self.ordered = order_routers(nodes, int(graph.order_of.max(initial=-1)) + 1)
        s = self.settings = np.zeros(K.N_SETTINGS, np.int64)
        s[K.S_RING], s[K.S_RING_MASK] = config.ring_wavelets, ring_cells(config) - 1
        s[K.S_DELAY], s[K.S_QUEUE], s[K.S_MARGIN] = (
            config.ring_delay_cycles,
            config.router_queue_wavelets,
            self.margin,
        )
        s[K.S_PAUSE] = self.steady is not None
        self.signs = np.zeros((2 * len(nodes) if signing else 1, SIGN_FIELDS), np.int64)
        s[K.S_SIGN] = signing
        s[K.S_TURNS], s[K.S_SLOTS] = config.round_robin, program.n_slots
        if self.steady is not None:
            assert label is not None
            self.steady.free[label[in_order]] = 1
            self.cores[:, K.LIMIT] = np.where(in_order, K.LATEST, 1)

    def _solve(self) -> None:
        s, graph, ordered = self.settings, self.graph, self.ordered
        code = K.DecodedProgram(self.ops, self.program.params, graph.leaf_of, graph.ring_of)
        while True:
            net = K.Actors(
                graph.nodes, self.times, self.cores, self.stack, self.log, self.violated, self.signs
            )
            ended = solve(net, code, ordered, s)
            if ended == K.TOO_LONG:
                raise ProgramError(f"the program runs longer than {K.LATEST} cycles; bound its loops")
            if ended == K.EMPTY:
                return
            self.log = grown(self.log, int(s[K.S_LOG]), self.margin)

    def _solve_groups(self, group: npt.NDArray[np.int64]) -> None:
        """Solve every group on a separate thread, with separate core records, stack and log; groups share no
        nodes."""
        n = int(group.max()) + 1
        with ThreadPoolExecutor(n) as pool:
            parts = list(pool.map(lambda i: self._solve_group(group != i), range(n)))
        for i, part in enumerate(parts):
            self.cores[group == i] = part.cores[group == i]
        logs = [part.log[: part.settings[K.S_LOG]] for part in parts]
        used = sum(len(log) for log in logs)
        self.log = np.empty((used + len(self.log), 4), np.int32)
        np.concatenate(logs, out=self.log[:used])
        self.settings[K.S_LOG] = used

    def _solve_group(self, others: npt.NDArray[np.bool_]) -> _Attempt:
        """Solve the cores outside `others`."""
        part = copy.copy(self)
        part.cores, part.stack, part.settings = (
            np.zeros_like(self.cores),
            np.zeros_like(self.stack),
            self.settings.copy(),
        )
        part.log = np.empty_like(self.log)
        start_cores(part.cores, self.program.core_class, self.program.class_entry, self.skip | others)
        part._solve()
        return part

    def _flush(self) -> None:
        while not flush_runs(self.graph.nodes, self.log, self.settings):
            self.log = grown(self.log, int(self.settings[K.S_LOG]), self.margin)

    def run(self) -> bool:
        """Solve to the end; False if a speculation failed (see ``violated``)."""
        nodes, cores, s = self.graph.nodes, self.cores, self.settings
        while True:
            if self.group is None:
                self._solve()
            else:
                self._solve_groups(self.group)
            if self.steady is None or not (cores[:, K.WAIT] == K.WAIT_TURN).any():
                break
            if self.violated.any():
                return False
            self._flush()
            rounds = self.steady.boundary(nodes, self.times, cores, self.log, self.signs, s)
            release_round(cores, rounds, self.steady.free, self.steady.label, self.stack, s)
        return not speculated_too_far(nodes, s[K.S_QUEUE], self.violated)

    def complete(self) -> bool:
        """Close the log; False if the skipped rounds would need too many copies in it."""
        self._flush()
        self.n_log = int(self.settings[K.S_LOG])
        if self.steady is None or not self.steady.skips:
            return True
        completed = self.steady.complete_log(self.log, self.n_log, self.graph.nodes)
        if completed is None:
            return False
        self.log, self.n_log = completed
        return True

    def skips(self) -> tuple[Skip, ...]:
        """Return the extrapolated loop iterations."""
        return tuple(self.steady.skips) if self.steady is not None else ()
