"""The interface of an executor: its options, its input and its result.

An executor is one file or folder next to this one and one line in the list of :mod:`wse_sim.fabric.run`.
Nothing outside it knows how it stores cores, queues or instructions: all results are returned by name. R =
rows x cols cores of the program, including fill-in columns, in row-major order; ports N, E, S, W, RAMP; slot
= index of a color that the program uses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.executors.certificate import Certificate
from wse_sim.fabric.format.lower import Lowered
from wse_sim.fabric.format.memory import Inputs, Memory
from wse_sim.fabric.format.program import Program

MAX_CYCLES = 50_000_000
TRACE_FIELDS = 9
TRACE_MOVE, TRACE_ISSUE = 0, 1  # kinds of events

Counts = npt.NDArray[np.integer]


class BusyBins(NamedTuple):
    """Busy cycles of every core are counted in `number` bins of `cycles` each; later cycles are not counted."""

    number: int
    cycles: int = 1000


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a run: what it computes and records.

    ``functional``: compute and move values; False is timing only. ``strict``: two inputs of one color in one
    cycle raise an error; otherwise they are serialised. ``bins``: count busy cycles over time.
    ``trace_rows``: events to record. ``threads``: most threads to use, if the executor supports it; results
    do not depend on it.
    """

    functional: bool = True
    strict: bool = True
    max_cycles: int = MAX_CYCLES
    bins: BusyBins | None = None
    trace_rows: int = 0
    threads: int = 1

    @property
    def bin_count(self) -> int:
        """Number of time bins."""
        return self.bins.number if self.bins else 0

    @property
    def bin_cycles(self) -> int:
        """Length of a time bin in cycles, at least 1."""
        return max(1, self.bins.cycles) if self.bins else 1


@dataclasses.dataclass(frozen=True)
class Reason:
    """Reason why an executor cannot run a program: a clause that begins with the executor's name."""

    text: str


@dataclasses.dataclass(frozen=True)
class Counters:
    """Counters of every core and link, (R,) or (R, 5); -1 if an executor does not count.

    ``halt`` is the cycle in which a core finished, -1 if it never did. ``blocked`` counts cycles in which a
    wavelet requested the port and none moved over it. ``queue_high`` (R, 3): most words in one router queue,
    the output ring, one input queue.
    """

    halt: Counts
    busy: Counts
    stalled_in: Counts
    stalled_out: Counts
    sent: Counts
    received: Counts
    links: Counts
    blocked: Counts
    queue_high: Counts


WAITS_INPUT, WAITS_OUTPUT, WAITS_THREAD, WAITS_TASK = range(4)


class Waits(NamedTuple):
    """State of a deadlocked fabric: nothing can move, although cores have not finished."""

    unfinished: npt.NDArray[np.bool_]  # (R,)
    wants: npt.NDArray[
        np.int64
    ]  # rows (core, WAITS_*, slot or -1), cores in order: all that each unfinished core waits for
    ring_slot: npt.NDArray[np.int64]  # (R,): slot of the oldest word in the output ring, -1 if it is empty
    full: npt.NDArray[np.bool_]  # (slots, R): the core's input queue has no room
    waiting: Counts  # (slots, R, 5): words left in the router queue of an input port
    position: Counts  # (slots, R): switch position


@dataclasses.dataclass(frozen=True)
class Run:
    """Result of a run.

    ``cycles``: the cycle in which the last core finished, or in which everything had stopped. ``waits`` is
    None unless the program stopped with unfinished cores. ``words_left``: words in queues. ``busy_bins``
    (bins, R). ``trace`` (events, 9), see :mod:`wse_sim.fabric.wseviz`. ``certificate``: how times were found,
    None if by stepping. ``end``: the cycle from which nothing moves, if known; words that no core reads may
    still move after ``cycles``. ``wanted`` (R, 5), None if no router has a word then: ports for which words
    wait forever. ``seconds``: wall time of the parts of the executor's work, if it reports them.
    """

    cycles: int
    counters: Counters
    memory: Memory
    waits: Waits | None
    words_left: int
    busy_bins: npt.NDArray[np.int32]
    trace: npt.NDArray[np.int64]
    certificate: Certificate | None = None
    end: int | None = None
    wanted: npt.NDArray[np.bool_] | None = None
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)


class Executor(Protocol):
    """Interface of an executor of fabric programs."""

    @property
    def name(self) -> str:
        """Name of the executor for users."""

    def can_run(self, program: Program, options: Options) -> Reason | None:
        """Return None, or why this program cannot be run with these options."""

    def run(self, lowered: Lowered, inputs: Inputs | None, options: Options) -> Run:
        """Run to the end, with `inputs` (rows, cols, length) per buffer in place at cycle 0.

        Raises
        ------
        ProgramError
            Undefined behaviour, access outside a buffer, or not finished within ``options.max_cycles``.  A
            deadlock does not raise; ``waits`` of the run describes it.
        """


class SteppedExecutor(Executor, Protocol):
    """Advances all cores cycle by cycle; runs every program on every wafer."""

    def step(self, lowered: Lowered, memory: Memory, options: Options) -> Run:
        """Run like ``run``, with memory from the caller, which is modified in place."""
