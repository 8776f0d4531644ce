"""Premises of the equations, each with its check: a component that violates one is stepped instead of solved.

Those of :data:`CHECKED` are decided before the solution, from program and wafer alone. Routes are followed
over all switch positions that a command can select, so words of a component cannot reach another one. Three
more are checked on the results, by :mod:`~wse_sim.fabric.executors.maxplus.executor`:

* ``room``: words that ran ahead of credits found room; otherwise the tree is solved again with exact windows.
* ``meeting``: no two colors use an output port in one cycle; otherwise their routers move in time order, or
  are stepped.
* ``closed``: no word of a stepped component left it; otherwise the whole program is stepped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.executors.maxplus.graph import MERGE, SHUT, TURNS, Reach, steering
from wse_sim.fabric.format import program as P
from wse_sim.fabric.format.lower import Lowered
from wse_sim.fabric.format.program import Op, Program

Cores = npt.NDArray[np.bool_]

FULL_RATE = 2  # words for every cycle of a link: one that moves, one whose credit is on its way back
_TASKS = (Op.TASK_END, Op.ACTIVATE, Op.BLOCK, Op.UNBLOCK)


@dataclasses.dataclass(frozen=True)
class Premise:
    """``holds`` states the premise, ``otherwise`` is the reason in the certificate for a component that
    violates it."""

    name: str
    holds: str
    otherwise: str


@dataclasses.dataclass(frozen=True)
class Checked(Premise):
    """A premise that program and wafer alone decide; ``broken`` (R,) names the cores that break it."""

    broken: Callable[[Lowered, Reach], Cores]


def _holding(program: Program, rows: npt.NDArray[np.bool_]) -> Cores:
    """Return (n_classes,): classes with one of the instructions `rows`."""
    found = np.zeros(len(program.class_names), bool)
    found[program.class_of_instruction()[rows]] = True
    return found


def _threaded(program: Program) -> Cores:
    """Return (n_classes,): classes with tasks or microthreads that share the issue slot.

    A microthread that the main thread joins (or awaits by HALT) at once never shares it: it is equal to the same
    instruction on the main thread.
    """
    code = program.code
    following = np.roll(code, -1, axis=0)  # a class ends with HALT or TASK_END
    joined = (following[:, P.OP] == Op.HALT) | (
        (following[:, P.OP] == Op.JOIN) & (following[:, P.THREAD] == code[:, P.THREAD])
    )
    is_vector = code[:, P.OP] >= P.FIRST_VECTOR_OP
    bad = is_vector & (((code[:, P.THREAD] > 0) & ~joined) | (code[:, P.DONE_KIND] != 0))
    bad |= np.isin(code[:, P.OP], _TASKS)
    return np.asarray(_holding(program, bad) | (np.diff(program.class_tasks) > 0))


def _commanding(program: Program) -> Cores:
    """Return (n_classes,): classes that send control wavelets or advance marks."""
    return _holding(program, steering(program))


def _paired(program: Program) -> Cores:
    """Return (n_classes,): classes that move two words in a step."""
    code = program.code
    return _holding(program, (code[:, P.OP] > Op.CONTROL) & (code[:, P.WIRE] == P.Wire.FP16X4))


def unsupported_classes(program: Program) -> Cores:
    """Return (n_classes,): classes that break a premise about cores."""
    return _threaded(program) | _commanding(program) | _paired(program)


def _of_classes(chosen: Callable[[Program], Cores]) -> Callable[[Lowered, Reach], Cores]:
    return lambda lowered, found: chosen(lowered.program)[lowered.program.core_class]


def _slow_links(lowered: Lowered, found: Reach) -> Cores:
    return np.asarray((lowered.program.core_class > 0) & (lowered.config.wavelet_milli != 1000))


def _shallow_queues(lowered: Lowered, found: Reach) -> Cores:
    program = lowered.program
    if lowered.config.router_queue_wavelets < FULL_RATE:
        return np.asarray(program.core_class > 0)
    shallow = np.flatnonzero(program.input_depth < FULL_RATE)
    return np.asarray((found.inputs[shallow] > 0).any(axis=0))


CHECKED = (
    Checked(
        "rate",
        "a link takes a word in every cycle",
        "a wavelet takes a link for more than a cycle",
        _slow_links,
    ),
    Checked(
        "depth",
        "queues hold two words for every cycle of the link before them",
        "queues too short for a word in every cycle",
        _shallow_queues,
    ),
    Checked(
        "thread",
        "a core runs one thread: no task, no microthread in addition to the main thread",
        "tasks or concurrent microthreads",
        _of_classes(_threaded),
    ),
    Checked(
        "command",
        "no core sends a control wavelet or an advance mark",
        "control wavelets or advance marks",
        _of_classes(_commanding),
    ),
    Checked(
        "pair",
        "every step of an instruction moves one word",
        "steps of two words (SIMD-64)",
        _of_classes(_paired),
    ),
    Checked(
        "merge",
        "a router gets every color by one input",
        "merges",
        lambda lowered, found: (found.marks & MERGE) > 0,
    ),
    Checked(
        "switch",
        "no switch on a route can move",
        "switches that control words may move",
        lambda lowered, found: (found.marks & TURNS) > 0,
    ),
    Checked(
        "input",
        "every input at which words arrive is open",
        "words wait at an input that is shut",
        lambda lowered, found: (found.marks & SHUT) > 0,
    ),
)

ROOM = Premise(
    "room", "words that ran ahead of credits found room", "solved again with exact windows, in one pass more"
)
MEETING = Premise(
    "meeting", "no two colors meet on an output port in one cycle", "two colors meet on an output port"
)
CLOSED = Premise(
    "closed", "no word of a stepped component left it", "a word left its component: everything is stepped"
)
PREMISES: tuple[Premise, ...] = (*CHECKED, ROOM, MEETING, CLOSED)


def words_out(links: npt.NDArray[np.integer], inside: npt.NDArray[np.bool_], cols: int) -> int:
    """Return the words that went over links (R, 5) from cores `inside` (R,) to others."""
    there = inside.reshape(-1, cols)
    moved = links.reshape(*there.shape, 5)
    ways = (
        (moved[1:, :, 0], there[1:], there[:-1]), (moved[:, :-1, 1], there[:, :-1], there[:, 1:]),
        (moved[:-1, :, 2], there[:-1], there[1:]), (moved[:, 1:, 3], there[:, 1:], there[:, :-1]),
    )  # fmt: skip
    return sum(int(words[here & ~other].sum()) for words, here, other in ways)
