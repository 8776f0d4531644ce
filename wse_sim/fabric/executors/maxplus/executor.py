"""The max-plus executor: exact times of whole transfers, with a certificate that states why they are exact.

    program -> follow routes -> graph of queues -> solve the equations -> certificate -> run
                                     ^ exact windows where speculation failed      |
                                     '---------------------------------------------+-> flagged components: stepped executor

A component is a set of cores and routers that are connected by links which some word can use. Nothing passes
between components, so each is solved independently. The stepped executor runs components that break a premise
of the equations (:mod:`~wse_sim.fabric.executors.maxplus.premises`: tasks, microthreads, commands, merges)
and components in which two colors collide.  Everything reported is exact; the certificate states how it was
found, and lists every premise.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from wse_sim.errors import ProgramError
from wse_sim.fabric.executors.base import (
    TRACE_FIELDS,
    WAITS_INPUT,
    WAITS_OUTPUT,
    Counters,
    Counts,
    Options,
    Reason,
    Run,
    SteppedExecutor,
    Waits,
)
from wse_sim.fabric.executors.certificate import Certificate, Component, Flag, PremiseCheck
from wse_sim.fabric.executors.final_state import not_ended
from wse_sim.fabric.executors.maxplus import records as K
from wse_sim.fabric.executors.maxplus.collisions import find_collisions
from wse_sim.fabric.executors.maxplus.components import label_components
from wse_sim.fabric.executors.maxplus.dataflow import apply_dataflow, is_dataflow
from wse_sim.fabric.executors.maxplus.fold import Planes, solve_folded
from wse_sim.fabric.executors.maxplus.graph import CORE, F, Reach, follow_routes
from wse_sim.fabric.executors.maxplus.order import similar_routers
from wse_sim.fabric.executors.maxplus.premises import (
    CHECKED,
    CLOSED,
    MEETING,
    PREMISES,
    ROOM,
    Premise,
    words_out,
)
from wse_sim.fabric.executors.maxplus.sign import by_core
from wse_sim.fabric.executors.maxplus.solve import Solution, longest_loop, solve_program, touched
from wse_sim.fabric.executors.maxplus.steady import MIN_ROUNDS
from wse_sim.fabric.executors.maxplus.values import apply_values
from wse_sim.fabric.executors.parts import Parts
from wse_sim.fabric.format.lower import Lowered
from wse_sim.fabric.format.memory import Inputs, Memory, new_memory
from wse_sim.fabric.format.program import PORT_NAMES, Program

MAX_FLAGS = 1000  # named in the certificate
# What a move in time order costs, in busy core cycles or moves of the wavelet executor: 3 measured on a GEMV of 40,000
# cores, 9 on the 25-point stencil, which needs two passes.  Only the time of a run depends on it.
ORDERED_COST = 8.0


@dataclasses.dataclass(frozen=True)
class MaxPlus:
    """Solves equations instead of stepping cycles; ``certificate`` of its runs says how.

    ``stepped`` runs flagged components.  ``speculate``: let words run ahead of credits and verify afterwards; False
    only costs time.  ``steady``: add rounds of a loop once its steady state is proved; False simulates all of them.
    ``fold``: solve repeating rows and columns once; with values, only where they do not depend on times.

    Blocked cycles and queue marks are -1 in cores of clean components (not measured).
    """

    stepped: SteppedExecutor
    speculate: bool = True
    steady: bool = True
    fold: bool = True

    name = "max-plus"

    def can_run(self, program: Program, options: Options) -> Reason | None:
        """Return None for all programs without traces and time bins."""
        if options.bins or options.trace_rows:
            return Reason("the max-plus executor has no time bins and no trace")
        return None

    def run(self, lowered: Lowered, inputs: Inputs | None, options: Options) -> Run:
        """See :class:`wse_sim.fabric.executors.base.Executor`."""
        parts = Parts()
        memory = new_memory(lowered.program, inputs, functional=options.functional)
        parts.done("memory")
        if self.fold and (not options.functional or is_dataflow(lowered.program)):
            folded = self._folded(lowered, dataclasses.replace(options, functional=False))
            parts.done("times of repeating lines")
            if folded is not None and not options.functional:
                return dataclasses.replace(folded, seconds=parts.seconds)
            if folded is not None and apply_dataflow(lowered, memory):
                parts.done("values")
                return dataclasses.replace(folded, memory=memory, seconds=parts.seconds)
            if folded is not None:  # a fault of the program: it is raised with core and cycle
                memory = new_memory(lowered.program, inputs, functional=True)
        whole = _Whole(self, lowered, options)
        whole.solve()
        parts.done("times")
        whole.delegate_flagged(memory)
        parts.done("stepped components")
        if whole.left:
            return whole.stepped(inputs)
        if options.functional and whole.solution is not None:
            if not apply_values(lowered, whole.solution, whole.skip, memory):
                self.stepped.run(lowered, inputs, options)  # names core and cycle of the access
                raise RuntimeError("values left a buffer that the stepped run did not leave")
        stop = whole.stop_cycle()
        planes = whole.planes(stop)
        waits = None if stop is None else whole.waits()
        run = whole.run(lowered.program, planes, memory, stop, waits)
        parts.done("values and counters")
        return dataclasses.replace(run, seconds=parts.seconds)

    def _folded(self, lowered: Lowered, options: Options) -> Run | None:
        """Return a timing-only run from equal and repeating lines; None if nothing repeats, or cores or words
        are left over."""
        last: list[_Whole] = []

        def solve(part: Program, signing: bool) -> Planes | None:
            if part is lowered.program:
                return None
            last[:] = [_Whole(self, dataclasses.replace(lowered, program=part), options)]
            return last[0].timing(signing)

        try:
            planes = solve_folded(lowered.program, solve)
        except ProgramError:
            return None  # the whole program raises it with the right rows
        if planes is None:
            return None
        return last[0].run(lowered.program, planes, np.zeros(0, np.float32), None, None)


class _Whole:
    """The solution of one program: components for the equations, components for stepping, and the arrays of
    the run."""

    def __init__(self, executor: MaxPlus, lowered: Lowered, options: Options) -> None:
        self.executor, self.lowered, self.options = executor, lowered, options
        self.program = program = lowered.program
        self.found: Reach = follow_routes(program)
        self.solution: Solution | None = None
        self.skip = np.zeros(program.n_cores, bool)  # cores of components that are handed over
        self.ordered = np.zeros(program.n_cores, bool)  # routers that advance in time order
        self.collisions: list[list[int]] = []  # core, ports, slot, slot
        self.passes = self.words_left = 0
        self.left = 0  # words of stepped components that left them
        self.broken: dict[str, npt.NDArray[np.bool_]] = {}  # name of a premise -> cores (R,) that break it
        self.reasons: dict[int, str] = {}  # component label -> why it is handed over
        self.handed: Run | None = None
        self._labels: npt.NDArray[np.int32] | None = None

    def timing(self, signing: bool) -> Planes | None:
        """Return the planes of a timing-only run; None if cores or words are left over, or streams that should be
        signed were stepped.
        """
        self.solve(signing=signing)
        if signing and self.skip.any():
            return None
        self.delegate_flagged(np.zeros(0, np.float32))
        if self.left or self.stop_cycle() is not None:
            return None
        planes = self.planes(None)
        return None if self.words_left else planes

    def labels(self) -> npt.NDArray[np.int32]:
        """Component per core; computed only if something is not clean."""
        if self._labels is None:
            self._labels = label_components(self.program, self.found)
        return self._labels

    def solve(self, *, signing: bool = False) -> None:
        """Solve what the equations cover; afterwards `skip` marks the rest."""
        program = self.program
        for premise in CHECKED:
            self.broken[premise.name] = broken = premise.broken(self.lowered, self.found)
            if broken.any():
                self._hand_over(broken, premise.otherwise)
        if not (program.core_class[~self.skip] > 0).any():
            return
        label = self.labels() if self.executor.steady and longest_loop(program) >= MIN_ROUNDS else None
        while True:
            self.solution = solve_program(
                self.lowered, self.found, self.skip, self.ordered, label,
                speculate=self.executor.speculate, signing=signing, threads=self.options.threads,
            )  # fmt: skip
            self.broken[ROOM.name] = self.broken.get(ROOM.name, False) | self.solution.ahead
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
        """Where two colors contend for a router, fix their order by arrival time (or step the component, if cheaper).

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
        self.broken[MEETING.name] = self.broken.get(MEETING.name, False) | flagged
        ordered = similar_routers(program, self.labels(), flagged)
        if not always:
            dear = flagged & self._faster_stepped(solution, self.ordered | ordered)
            if dear.any():
                self._hand_over(dear, MEETING.otherwise)
                self.ordered &= ~self.skip
        self.ordered |= ordered & ~self.skip
        return bool((flagged & ~self.skip).any())

    def _faster_stepped(self, solution: Solution, ordered: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return (R,): cores of components for which stepping is faster than `ordered` routers."""
        nodes, labels = solution.graph.nodes, self.labels()
        at, moves = nodes[:, CORE], nodes[:, F]
        n = self.program.n_cores
        in_order = np.bincount(labels[at], moves * ordered[at], n)
        stepped_work = np.bincount(labels[at], moves, n) + np.bincount(
            labels, solution.columns[K.BUSY_COUNT], n
        )
        return np.asarray((ORDERED_COST * in_order > stepped_work)[labels])

    def delegate_flagged(self, memory: Memory) -> None:
        """Step all components that the equations do not cover, in one run."""
        if not self.skip.any():
            return
        part = dataclasses.replace(
            self.program, core_class=np.where(self.skip, self.program.core_class, 0).astype(np.int32)
        )
        lowered = dataclasses.replace(self.lowered, program=part)
        self.handed = self.executor.stepped.step(lowered, memory, self.options)
        self.left = words_out(self.handed.counters.links, self.skip, self.program.cols)

    def stepped(self, inputs: Inputs | None) -> Run:
        """Return the run with everything stepped, because a word left its component."""
        run = self.executor.stepped.run(self.lowered, inputs, self.options)
        has_program = self.program.core_class > 0
        self.skip[:], self.broken[CLOSED.name] = True, has_program
        self.reasons = dict.fromkeys(np.unique(self.labels()[has_program]).tolist(), CLOSED.otherwise)
        self.ordered[:], self.solution = False, None
        return dataclasses.replace(
            run, certificate=self._certificate(self.program, np.arange(self.program.n_cores))
        )

    def stop_cycle(self) -> int | None:
        """Return the cycle in which everything had stopped while cores wait; None if all finished."""
        stuck = self.solution is not None and self.solution.stuck(self.skip).any()
        if not stuck and (self.handed is None or self.handed.waits is None):
            return None
        return self._end()

    def _end(self) -> int:
        """Return the cycle from which nothing moves."""
        solved = self.solution.end if self.solution is not None else 0
        return max(solved, (self.handed.end or 0) if self.handed is not None else 0)

    def waits(self) -> Waits:
        """Return what all cores wait for, in the form of a stepped executor."""
        handed = None if self.handed is None else self.handed.waits
        if self.solution is None:
            assert handed is not None
            return handed
        solved = self.solution.waits(self.lowered, self.skip)
        if handed is None:
            return solved
        skip = self.skip
        wants = np.concatenate([solved.wants, handed.wants])
        return Waits(
            np.where(skip, handed.unfinished, solved.unfinished),
            wants[np.argsort(wants[:, 0], kind="stable")],
            np.where(skip, handed.ring_slot, solved.ring_slot),
            np.where(skip, handed.full, solved.full),
            np.where(skip[:, None], handed.waiting, solved.waiting),
            np.where(skip, handed.position, solved.position),
        )

    def planes(self, stop: int | None) -> Planes:
        """Return counters per core of both kinds of components, and the data that show whether lines repeat."""
        program, n = self.program, self.program.n_cores
        zeros = np.zeros(n, np.int64)
        planes: Planes = dict.fromkeys(
            ("halt", "busy", "stalled_in", "stalled_out", "sent", "received", "anchor"), zeros
        )
        planes |= {
            "links": np.zeros((n, 5) if self.solution is None else 0, np.int64),
            "blocked": np.broadcast_to(np.int64(-1), (n, 5)),
            "queue_high": np.broadcast_to(np.int64(-1), (n, 3)),
            "hashes": np.zeros((n, 0), np.int64),
            "firsts": np.zeros((n, 0), np.int64),
            "origin": np.arange(n),
        }
        if self.solution is not None:
            s = self.solution
            planes |= s.core_counters(stop or 0)
            planes["anchor"], planes["links"], self.words_left = s.columns[K.ANCHOR], s.links, s.words_left
            if s.signs is not None:
                planes["hashes"], planes["firsts"] = by_core(
                    s.graph.nodes, s.signs, n, max(1, program.n_slots)
                )
        if self.handed is not None:
            self.words_left += self.handed.words_left
            for name, values in self._handed_counters(stop).items():
                chosen = self.skip.reshape(-1, *(1,) * (values.ndim - 1))
                planes[name] = np.where(chosen, values, planes[name])
        shape = program.rows, program.cols
        return {name: plane.reshape(*shape, *plane.shape[1:]) for name, plane in planes.items()}

    def _handed_counters(self, stop: int | None) -> dict[str, Counts]:
        """Return the counters of stepped components; those that stopped early stall until `stop`, and block
        until the end."""
        assert self.handed is not None
        counters = {
            field.name: getattr(self.handed.counters, field.name) for field in dataclasses.fields(Counters)
        }
        waits = self.handed.waits
        if waits is not None and stop is not None and stop > self.handed.cycles:
            cores, first = np.unique(waits.wants[:, 0], return_index=True)
            kinds = waits.wants[first, 1]
            for kind, name in ((WAITS_INPUT, "stalled_in"), (WAITS_OUTPUT, "stalled_out")):
                counters[name] = counters[name].copy()
                counters[name][cores[kinds == kind]] += stop - self.handed.cycles
        if self.handed.wanted is not None and self.handed.end is not None:
            counters["blocked"] = counters["blocked"] + (self._end() - self.handed.end) * self.handed.wanted
        return counters

    def run(
        self, whole: Program, planes: Planes, memory: Memory, stop: int | None, waits: Waits | None
    ) -> Run:
        """Run of `whole`, whose `planes` may repeat those of this program; `stop` as in :meth:`stop_cycle`."""
        cycles = int(planes["halt"].max(initial=0)) if stop is None else stop
        # Copies leave no word behind, so nothing moves after their last core has halted.
        if max(cycles, self._end() if whole is self.program else 0) >= self.options.max_cycles:
            raise not_ended(self.options.max_cycles)
        flat = {name: plane.reshape(whole.n_cores, *plane.shape[2:]) for name, plane in planes.items()}
        return Run(
            cycles=cycles,
            counters=Counters(**{field.name: flat[field.name] for field in dataclasses.fields(Counters)}),
            memory=memory,
            waits=waits,
            words_left=self.words_left,
            busy_bins=np.zeros((0, whole.n_cores), np.int32),
            trace=np.zeros((0, TRACE_FIELDS), np.int64),
            certificate=self._certificate(whole, flat["origin"]),
        )

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
                components.append(Component("time-ordered", cores, MEETING.otherwise))
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
            extrapolated_rounds=max((int(skip.rounds.max()) for skip in skips), default=0),
            period_cycles=max((int(skip.period.max()) for skip in skips), default=0),
            premises=tuple(self._check(premise, weight) for premise in PREMISES),
        )

    def _check(self, premise: Premise, weight: npt.NDArray[np.int64]) -> PremiseCheck:
        broken = int(weight[self.broken[premise.name]].sum()) if premise.name in self.broken else 0
        return PremiseCheck(premise.name, premise.holds, premise.otherwise, broken)

    def _flag(self, whole: Program, core: int, ports: int, slot: int, other: int) -> Flag:
        row, col = divmod(core, whole.cols)
        port = next(name for i, name in enumerate(PORT_NAMES) if (ports >> i) & 1)
        return Flag(row, col - whole.west, port, (int(whole.slot_color[slot]), int(whole.slot_color[other])))
