"""The stream executor: exact times of whole transfers, with a certificate that says why they are exact.

    program -> follow routes -> graph of queues -> solve the equations -> certificate -> result
                                     ^ exact windows where speculation failed      |
                                     '---------------------------------------------+-> flagged components: stepped executor

A component is a set of cores and routers joined by links that some word can use; nothing passes between components, so
each gets its times on its own.  Handed to the stepped executor are components with features outside the
equations (tasks, microthreads, control wavelets, merges) and components in which two colors collide.
Everything reported is exact; the certificate says how it was found.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from wse_sim.errors import ProgramError
from wse_sim.fabric import run as stepped
from wse_sim.fabric.deadlock import Deadlock, explain
from wse_sim.fabric.deadlock import _waits_of as waits_of
from wse_sim.fabric.executors import core as C
from wse_sim.fabric.executors.maxplus import advance as K
from wse_sim.fabric.executors.maxplus.certificate import Certificate, Component, Flag, find_collisions
from wse_sim.fabric.executors.maxplus.components import label_components
from wse_sim.fabric.executors.maxplus.fold import Planes, solve_folded
from wse_sim.fabric.executors.maxplus.graph import CORE, F, Reach, follow_routes, unsupported_classes
from wse_sim.fabric.executors.maxplus.order import similar_routers
from wse_sim.fabric.executors.maxplus.sign import by_core
from wse_sim.fabric.executors.maxplus.solve import Solution, longest_loop, solve_program, touched
from wse_sim.fabric.executors.maxplus.steady import MIN_TURNS
from wse_sim.fabric.executors.maxplus.values import apply_values
from wse_sim.fabric.executors.raw import RawRun
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import PORT_NAMES, Program
from wse_sim.fabric.run import MAX_CYCLES, FabricResult

Array = npt.NDArray[Any]
MAX_FLAGS = 1000  # named in the certificate
# What a move in time order costs, in busy core cycles or moves of the wavelet executor: 3 measured on a GEMV of 40,000
# cores, 9 on the 25-point stencil, which needs two passes.  Only the time of a run depends on it.
ORDERED_COST = 8.0


def solve_run(
    program: Program,
    config: FabricConfig,
    *,
    functional: bool = True,
    strict: bool = True,
    inputs: Mapping[str, npt.ArrayLike] | None = None,
    max_cycles: int = MAX_CYCLES,
    delegate: str = "auto",
    speculate: bool = True,
    steady: bool = True,
    fold: bool = True,
) -> FabricResult:
    """Run `program`; ``result.certificate`` is a :class:`Certificate`.

    Parameters
    ----------
    functional, strict, inputs, max_cycles
        As in :func:`wse_sim.fabric.run.run_program`.
    delegate : str
        Stepped executor for flagged components: "auto", "oracle" or "wavelet".
    speculate : bool
        Let words run ahead of credits and verify afterwards; False only costs time.
    steady : bool
        Add turns of a loop once its steady state is proved; False simulates all of them.
    fold : bool
        In timing-only runs without routes from row to row, solve identical rows once.

    Raises
    ------
    ProgramError
        As :func:`wse_sim.fabric.run.run_program`.

    Notes
    -----
    ``link_blocked`` and ``queue_high`` are -1 in cores of clean components (not measured); time bins and
    traces are left to the stepped executors.
    """
    if not 1 <= max_cycles < 2**31:
        raise ProgramError(f"max_cycles = {max_cycles} is outside 1..{2**31 - 1}; use a bound in between")
    wall, cpu = time.perf_counter(), time.process_time()
    options = (config, strict, max_cycles, delegate, speculate, steady)
    result = _folded_run(program, *options) if fold and not functional else None
    if result is None:
        run = _StreamRun(program, *options)
        arena = np.zeros(program.arena_elements if functional else 0, np.float32)
        if inputs and functional:
            stepped._fill(program, arena, inputs)
        run.solve()
        run.delegate_flagged(arena, functional=functional)
        if functional and run.solution is not None:
            inside = apply_values(program, run.found.costs, run.solution, run.skip, arena)
            if not inside:
                run.raise_out_of_bounds(inputs)
        deadlock = run.deadlock()
        result = run.result(program, run.planes(deadlock), arena, deadlock)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    rate = program.n_cores * float(result.cycles) / max(cpu, 1e-9)
    return dataclasses.replace(result, wall_s=wall, cpu_s=cpu, router_cycles_per_s=rate)


def _folded_run(program: Program, *options: Any) -> FabricResult | None:
    """Timing-only result from equal and repeating lines; None if nothing repeats, or cores or words are left over."""
    last: list[_StreamRun] = []

    def solve(part: Program, signing: bool) -> Planes | None:
        if part is program:
            return None
        last[:] = [_StreamRun(part, *options)]
        return last[0].timing(signing)

    try:
        planes = solve_folded(program, solve)
    except ProgramError:
        return None  # the whole program raises it with the right rows
    return last[0].result(program, planes, np.zeros(0, np.float32), None) if planes is not None else None


class _StreamRun:
    """One run: what is clean, what is handed over, and the arrays of the result."""

    def __init__(
        self,
        program: Program,
        config: FabricConfig,
        strict: bool,
        max_cycles: int,
        delegate: str,
        speculate: bool,
        steady: bool,
    ) -> None:
        self.speculate, self.steady = speculate, steady
        self.program, self.config, self.strict, self.max_cycles = program, config, strict, max_cycles
        self.executor = stepped.STEPPED if delegate == "auto" else delegate
        if self.executor not in stepped.EXECUTORS:
            raise ProgramError(f"executor '{delegate}' is unknown; use auto, {', '.join(stepped.EXECUTORS)}")
        self.found: Reach = follow_routes(program, config)
        self.solution: Solution | None = None
        self.skip = np.zeros(program.n_cores, bool)  # cores of components that are handed over
        self.ordered = np.zeros(program.n_cores, bool)  # routers that advance in time order
        self.collisions: list[list[int]] = []  # core, ports, slot, slot
        self.passes = self.words_left = 0
        self.reasons: dict[int, str] = {}  # component label -> why it is handed over
        self.raw: RawRun | None = None
        self._labels: npt.NDArray[np.int32] | None = None

    def timing(self, signing: bool) -> Planes | None:
        """Planes of a timing-only run; None if cores or words are left over, or streams that should be signed were stepped."""
        self.solve(signing=signing)
        if signing and self.skip.any():
            return None
        self.delegate_flagged(np.zeros(0, np.float32), functional=False)
        if self.deadlock() is not None:
            return None
        planes = self.planes(None)
        return None if self.words_left else planes

    def labels(self) -> npt.NDArray[np.int32]:
        """Component per core; computed only if something is not clean."""
        if self._labels is None:
            self._labels = label_components(self.program, self.found)
        return self._labels

    def solve(self, *, signing: bool = False) -> None:
        """Solve what the equations cover; afterwards `skip` names the rest."""
        program = self.program
        refused = unsupported_classes(program)[program.core_class] | (self.found.merged > 0)
        if self.config.wavelet_milli != 1000:
            self._hand_over(program.core_class > 0, "a wavelet takes a link for more than a cycle")
        elif refused.any():
            self._hand_over(refused, "tasks, microthreads, control wavelets or merges")
        if not (program.core_class[~self.skip] > 0).any():
            return
        label = self.labels() if self.steady and longest_loop(program) >= MIN_TURNS else None
        while True:
            self.solution = solve_program(
                program, self.config, self.found, self.skip, self.ordered, label,
                speculate=self.speculate, signing=signing,
            )  # fmt: skip
            if not self._order_collisions(self.solution, always=signing):
                break
        self.solution.count(program, self.found, self.skip)

    def _hand_over(self, cores: npt.NDArray[np.bool_], reason: str) -> None:
        labels = self.labels()
        chosen = np.unique(labels[cores])
        for label in chosen:
            self.reasons.setdefault(int(label), reason)
        self.skip |= np.isin(labels, chosen)

    def _order_collisions(self, solution: Solution, *, always: bool) -> bool:
        """Put routers where colors met in time order, or hand over components where stepping is faster (not if `always`).

        False if no router was added.
        """
        program = self.program
        rows = find_collisions(solution.log, solution.n_log, solution.graph.nodes, program.n_cores)
        if not len(rows):
            return False
        self.passes += solution.passes
        self.collisions += rows[: max(0, MAX_FLAGS - len(self.collisions))].tolist()
        flagged = np.zeros(program.n_cores, bool)
        flagged[rows[:, 0]] = True
        ordered = similar_routers(program, self.labels(), flagged)
        if not always:
            dear = flagged & self._faster_stepped(solution, self.ordered | ordered)
            if dear.any():
                self._hand_over(dear, "two colors meet on an output port")
                self.ordered &= ~self.skip
        self.ordered |= ordered & ~self.skip
        return bool((flagged & ~self.skip).any())

    def _faster_stepped(self, solution: Solution, ordered: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """(R,): cores of components that a stepped executor runs faster than `ordered` routers would."""
        nodes, labels = solution.graph.nodes, self.labels()
        at, moves = nodes[:, CORE], nodes[:, F]
        n = self.program.n_cores
        in_order = np.bincount(labels[at], moves * ordered[at], n)
        stepped_work = np.bincount(labels[at], moves, n) + np.bincount(
            labels, solution.columns[K.BUSY_COUNT], n
        )
        return np.asarray((ORDERED_COST * in_order > stepped_work)[labels])

    def delegate_flagged(self, arena: Array, *, functional: bool) -> None:
        """Step the components that are handed over, all together."""
        if not self.skip.any():
            return
        part = dataclasses.replace(
            self.program, core_class=np.where(self.skip, self.program.core_class, 0).astype(np.int32)
        )
        self.raw = stepped.EXECUTORS[self.executor](
            part, self.config, arena, functional=functional, strict=self.strict, max_cycles=self.max_cycles
        )
        stepped._raise_faults(self.program, self.raw, self.max_cycles)

    def raise_out_of_bounds(self, inputs: Mapping[str, npt.ArrayLike] | None) -> None:
        """Let the stepped executor name core and cycle of an access outside a buffer."""
        stepped.run_program(
            self.program,
            self.config,
            executor=self.executor,
            strict=self.strict,
            inputs=inputs,
            max_cycles=self.max_cycles,
        )

    def deadlock(self) -> Deadlock | None:
        """Why cores stopped; None if all finished."""
        stuck = self.solution is not None and self.solution.stuck(self.skip).any()
        handed = self.raw is not None and int(self.raw.outcome[0]) != stepped.oracle.DONE
        if not stuck and not handed:
            return None
        raw = self._state()
        return explain(self.program, raw)

    def _state(self) -> RawRun:
        """All cores and queues as a stepped executor would leave them."""
        if self.solution is None:
            assert self.raw is not None
            return self.raw
        state = self.solution.as_raw(self.program, self.config)
        if self.raw is None:
            return state
        state.st[self.skip] = self.raw.st[self.skip]
        state.waiting[:, self.skip] = self.raw.waiting[:, self.skip]
        state.position[:, self.skip] = self.raw.position[:, self.skip]
        state.outcome[1] = max(int(state.outcome[1]), int(self.raw.outcome[1]))
        return state

    def planes(self, deadlock: Deadlock | None) -> Planes:
        """Counters per core of both kinds of components, and what tells whether lines repeat."""
        program, n = self.program, self.program.n_cores
        halt, busy, stalled_in, stalled_out, sent, received, anchor = (
            np.zeros(n, np.int64) for _ in range(7)
        )
        links = np.zeros((n, 5) if self.solution is None else 0, np.int64)
        blocked, high = np.broadcast_to(np.int64(-1), (n, 5)), np.broadcast_to(np.int64(-1), (n, 3))
        hashes = firsts = np.zeros((n, 0), np.int64)
        if self.raw is not None:
            blocked, high = blocked.copy(), high.copy()
        if self.solution is not None:
            s = self.solution
            halt, busy, stalled_in, stalled_out, sent, received = s.core_counters(
                deadlock.cycle if deadlock else 0
            )
            anchor, links, self.words_left = s.columns[K.ANCHOR], s.links, s.words_left
            if s.signs is not None:
                hashes, firsts = by_core(s.graph.nodes, s.signs, n, max(1, program.n_slots))
        if self.raw is not None:
            self.words_left += self._merge_raw(
                halt, busy, stalled_in, stalled_out, sent, received, links, blocked, high
            )
            if deadlock:
                self._stall_until(deadlock.cycle, stalled_in, stalled_out)
        planes = {
            "halt": halt, "busy": busy, "stalled_in": stalled_in, "stalled_out": stalled_out, "sent": sent,
            "received": received, "anchor": anchor, "links": links, "blocked": blocked, "high": high, "hashes": hashes,
            "firsts": firsts, "origin": np.arange(n),
        }  # fmt: skip
        shape = program.rows, program.cols
        return {name: plane.reshape(*shape, *plane.shape[1:]) for name, plane in planes.items()}

    def result(self, whole: Program, planes: Planes, arena: Array, deadlock: Deadlock | None) -> FabricResult:
        """Result of `whole`, whose `planes` may repeat those of this run's program."""
        cycles = deadlock.cycle if deadlock else int(planes["halt"].max(initial=0))
        if cycles > self.max_cycles:
            raise ProgramError(
                f"the program has not ended after {self.max_cycles} cycles; raise max_cycles or bound its loops"
            )
        certificate = self._certificate(whole, planes["origin"].reshape(-1))
        user = {name: plane[:, whole.west : whole.cols - whole.east] for name, plane in planes.items()}
        return FabricResult(
            cycles=cycles,
            executor="stream",
            certificate=certificate,
            halt_cycles=user["halt"],
            busy=user["busy"],
            stalled_in=user["stalled_in"],
            stalled_out=user["stalled_out"],
            idle=cycles - user["busy"] - user["stalled_in"] - user["stalled_out"],
            link_wavelets=user["links"],
            link_blocked=user["blocked"],
            queue_high=user["high"],
            sent=user["sent"],
            received=user["received"],
            words_left=self.words_left,
            busy_bins=np.zeros((0, whole.rows, whole.user_cols), np.int32),
            deadlock=deadlock,
            wall_s=0.0,
            cpu_s=0.0,
            router_cycles_per_s=0.0,
            trace=np.zeros((0, 9), np.int64),
            _program=whole,
            _arena=arena,
        )

    def _merge_raw(self, *planes: Array) -> int:
        halt, busy, stalled_in, stalled_out, sent, received, links, blocked, high = planes
        assert self.raw is not None
        raw, skip = self.raw, self.skip
        finished = stepped.finished_cores(raw)
        halt[skip] = np.where(finished, raw.st[:, C.HALT_AT], -1)[skip]
        for i, values in enumerate((busy, stalled_in, stalled_out)):
            values[skip] = raw.st[skip, C.COUNTS + i]
        sent[skip], received[skip] = raw.st[skip, C.SENT], raw.st[skip, C.RECEIVED]
        links[skip], blocked[skip] = raw.links[skip], raw.blocked[skip]
        high[skip, 0], high[skip, 1:] = raw.router_high[skip], raw.st[skip][:, [C.RING_HIGH, C.LEAF_HIGH]]
        leaves = raw.st[:, int(raw.lay[C.LEAF0]) : int(raw.lay[C.THREAD0]) : int(raw.lay[C.LEAF_WIDTH])]
        return int(raw.waiting.sum()) + int(raw.st[:, C.RING_COUNT].sum()) + int(leaves.sum())

    def _stall_until(self, cycle: int, stalled_in: Array, stalled_out: Array) -> None:
        """Components that stopped before the others keep stalling until the last one stops."""
        assert self.raw is not None
        more = cycle - int(self.raw.outcome[1])
        for core in np.flatnonzero(~stepped.finished_cores(self.raw) & self.skip) if more > 0 else ():
            kind = waits_of(self.program, self.raw, int(core))[0][0]
            if kind in ("input", "output"):
                (stalled_in if kind == "input" else stalled_out)[core] += more

    def _certificate(self, whole: Program, origin: npt.NDArray[np.int64]) -> Certificate:
        """`origin`: core of this run's program that every core of `whole` repeats."""
        program = self.program
        weight = np.bincount(origin, minlength=program.n_cores)
        _, first = np.unique(origin, return_index=True)
        has_program = program.core_class > 0
        clean = has_program & ~self.skip
        components = []
        if self.ordered.any():
            in_order = touched(self.labels(), self.ordered)
            for label in np.unique(self.labels()[in_order & clean]):
                cores = int((clean & (self.labels() == label)) @ weight)
                components.append(Component("time-ordered", cores, "two colors meet on an output port"))
            clean &= ~in_order
        if clean.any():
            components.insert(0, Component("clean", int(clean @ weight), ""))
        for label, reason in self.reasons.items():
            cores = int((has_program & (self.labels() == label)) @ weight)
            if cores:
                components.append(Component("wavelet", cores, reason))
        s = self.solution
        skips = s.skips if s else ()
        return Certificate(
            clean=not self.reasons and not self.ordered.any(),
            flagged=tuple(self._flag(whole, int(first[core]), *rest) for core, *rest in self.collisions),
            components=tuple(components),
            passes=self.passes + s.passes if s else 0,
            runs=s.n_log if s else 0,
            folded_rows=whole.rows - program.rows,
            folded_cols=whole.cols - program.cols,
            extrapolated_turns=max((int(skip.turns.max()) for skip in skips), default=0),
            period_cycles=max((int(skip.period.max()) for skip in skips), default=0),
        )

    def _flag(self, whole: Program, core: int, ports: int, slot: int, other: int) -> Flag:
        row, col = divmod(core, whole.cols)
        port = next(name for i, name in enumerate(PORT_NAMES) if (ports >> i) & 1)
        return Flag(row, col - whole.west, port, (int(whole.slot_color[slot]), int(whole.slot_color[other])))
