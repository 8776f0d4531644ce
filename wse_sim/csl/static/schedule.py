"""Analysis of whether data decide the course of a recorded run: every core's tasks are followed in the
recorded order.

The machine is deterministic. Compare a run with a second one that has other data. Up to some cycle both are
equal in everything but data: the tasks that run, and the words in each queue. The next cycle depends on data
only through jumps, addresses, lengths, ids of tasks and queues, the words of control wavelets, and words that
a filter judges. If none of these came from data in the recorded run, the next cycle is equal as well, and so
on to the end: both runs take the same cycles.

So the order of tasks need not be known beforehand: it is that of the recorded run. Two operations at once,
switches, FIFOs and routes that change are followed too. The values that a core reads from the clock, routers
and queues are equal in both runs but are not followed, so a program whose course depends on them is not
proved.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from wse_sim.csl.static import values as V
from wse_sim.csl.static.course import CoreState, NotStaticError, Operand, Tables
from wse_sim.csl.static.proof import Verdict, first_state, one_core
from wse_sim.csl.static.values import Unknown, Value
from wse_sim.csl.static.vector import VectorWalker
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm.image import DATA, Image
from wse_sim.fabric.vm.opcodes import FilterKind, Sys
from wse_sim.hardware.wafer import Wafer

Array = npt.NDArray[Any]
COMMAND, EMPTY_HANDLER, TEARDOWN = 64, 65, 29
MOST_GROUPS_OPCODES = 4_000_000
"""Maximum total number of opcodes that are followed."""


@dataclasses.dataclass(frozen=True)
class Call:
    """Command of the host: a function with its arguments."""

    name: str
    arguments: tuple[int, ...] = ()


class Follower(VectorWalker):
    """Analysis of one core's tasks in a given order; times are not counted."""

    def __init__(
        self,
        tables: Tables,
        number: int,
        state: CoreState,
        judged: frozenset[int],
        place: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(tables, number, state, place)
        self.judged = judged  # colors whose words a filter judges by their index
        for fifo in self.cls.fifos:
            state.memory[fifo.base : fifo.base + fifo.words] = [V.WORD] * fifo.words

    def begin(self, entry: int, registers: Sequence[Value]) -> None:
        """Follow one task from its entry to its end."""
        self.regs = dict(enumerate(registers))
        self._run(entry)

    def fixed(self, value: Value, what: str) -> None:
        """Check that a value does not depend on data.

        Raises
        ------
        NotStaticError
            If it does.
        """
        if isinstance(value, Unknown) and value.is_data:
            raise NotStaticError(f"{what} at {self.where()} depends on {value.cause}")

    def _changed(self, fn: Sys, first: int) -> Value | None:
        if fn.course not in ("changes", "reads"):
            raise NotStaticError(f"{fn.name.lower()} at {self.where()}, which the proof does not follow")
        for i in range(fn.arguments):
            self.fixed(self.get(first + i), f"what {fn.name.lower()} sets")
        if fn in (Sys.IQ_COLOR, Sys.OQ_COLOR):
            queue, color = self.get(first), self.get(first + 1)
            if isinstance(queue, int) and isinstance(color, int):
                colors = self.state.input_color if fn == Sys.IQ_COLOR else self.state.output_color
                colors[queue] = color
        return V.MACHINE if fn.course == "reads" else None

    def _release(self) -> None:
        """Do nothing: times are not counted."""

    def _block(self, op: int, b: int, space: int) -> None:
        self.fixed(self.get(b), "what is blocked")

    def _fifo(self) -> Operand:
        return Operand(S.FIFO)

    def _success(self, operands: list[Operand]) -> Value:
        return V.MACHINE if any(x.form == S.FIFO for x in operands) else 1

    def _on_memory(self, op: int, n: int | None, cost: int, collides: bool, options: dict[str, int]) -> None:
        pass

    def _fabric(self, operands: list[Operand], n: int | None, cost: int, options: dict[str, int]) -> None:
        output = operands[0]
        if output.form != S.OUTPUT:
            return
        if output.dsd >> 52 & 1:
            self.fixed(self._cause_of_words(operands, n), "a control wavelet")
        elif output.color in self.judged and not output.dsd >> 53 & 1:
            self.fixed(self._cause_of_words(operands, n), "a word that a filter judges")

    def _cause_of_words(self, operands: list[Operand], n: int | None) -> Unknown:
        return self._cause(operands, n or 1)


@dataclasses.dataclass(frozen=True)
class Recorded:
    """Recorded run.

    ``picks`` are the tasks that cores began, rows (cycle, core, task, word) in the order of time; ``calls``
    are commands of the host; ``copies`` are (cycle, first word, end) of its copies to cores.
    """

    picks: Array
    calls: Sequence[Call]
    copies: Sequence[tuple[int, int, int]] = ()


def decided_by_data(image: Image, wafer: Wafer, run: Recorded, *, may_place: bool = True) -> list[Verdict]:
    """Return what decides the course of every class; an empty reason means that data do not.

    With ``may_place``, cores whose position matters are followed with their positions.
    """
    tables = Tables.of(one_core(image, wafer, FabricConfig.from_wafer(wafer)), image)
    judged = _judged(image)
    picks = run.picks[np.lexsort((run.picks[:, 0], run.picks[:, 1]))]
    ends = np.searchsorted(picks[:, 1], np.arange(image.n_cores + 1))
    marks = np.searchsorted(np.array([c[0] for c in run.copies], np.int64), picks[:, 0], side="right")
    groups: dict[tuple[int, bytes], list[int]] = {}
    for core in np.flatnonzero(image.core_class >= 0):
        own = slice(ends[core], ends[core + 1])
        is_data = np.isin(
            picks[own, 2], [t.id for t in image.classes[image.core_class[core]].tasks if t.kind == DATA]
        )
        words = np.where(is_data, 0, picks[own, 3])
        key = np.stack([picks[own, 2], words, marks[own]]).tobytes()
        groups.setdefault((int(image.core_class[core]), key), []).append(int(core))
    reasons: dict[int, str] = {}
    left = MOST_GROUPS_OPCODES
    for (k, key), cores in groups.items():
        if k in reasons:
            continue
        order = np.frombuffer(key, np.int64).reshape(3, -1).tolist()
        places: list[tuple[int, int] | None] = [None]
        while places and k not in reasons:
            place = places.pop()
            state = first_state(image.classes[k], int(tables.sets[S.WORDS]), tables.sets, hidden=False)
            follower = Follower(tables, k, state, judged, place)
            try:
                if left < 0:
                    raise NotStaticError(f"more than {MOST_GROUPS_OPCODES:,} opcodes were followed before it")
                _follow(follower, order, run)
            except NotStaticError as why:
                if may_place and place is None and V.POSITION.cause in str(why):
                    places = [(core % image.cols, core // image.cols) for core in cores]
                else:
                    reasons[k] = str(why)
            left -= follower.opcodes
    counts = np.bincount(image.core_class[image.core_class >= 0], minlength=len(image.classes))
    return [
        Verdict(cls.name, int(counts[k]), reasons.get(k, ""))
        for k, cls in enumerate(image.classes)
        if counts[k]
    ]


def _follow(core: Follower, order: list[list[int]], run: Recorded) -> None:
    """Follow all tasks of a core: `order` contains their numbers, words, and the number of host copies before
    each."""
    cls = core.cls
    tasks, words, copied = order
    functions = {s.name: s.address for s in cls.symbols if s.kind == "function"}
    commands: list[tuple[int, tuple[int, ...]]] = [(cls.start, ())] if cls.start >= 0 else []
    commands += [(functions[call.name], call.arguments) for call in run.calls if call.name in functions]
    done = seen = 0
    for task, word, copies in zip(tasks, words, copied, strict=True):
        for _, first, end in run.copies[seen:copies]:
            core.state.memory[first:end] = [V.DATA] * (end - first)
        seen = copies
        if task == COMMAND:
            if done >= len(commands):
                raise NotStaticError("it began a command that is not known")
            entry, arguments = commands[done]
            done += 1
            core.begin(entry, arguments)
        elif task == EMPTY_HANDLER:
            core.begin(dict(cls.empty_handlers)[word], [word])
        elif task == TEARDOWN and word in dict(cls.teardown):
            core.begin(dict(cls.teardown)[word], [word])
        else:
            row = core.tasks[task]
            core.begin(row.entry, [V.WORD if row.kind == DATA else word])


def _judged(image: Image) -> frozenset[int]:
    """Return the colors whose words some filter judges by their index."""
    ranged = [i for i, row in enumerate(image.filters) if row[O.F_KIND] == FilterKind.RANGE]
    own = bool(
        np.any((image.code[:, 0] == O.Op.SYS) & np.isin(image.code[:, 3], (Sys.SET_FILTER, Sys.FILTER_FIELD)))
    )
    chosen = {i + 1 for i, config in enumerate(image.configs) if config.filter in ranged or own}
    return frozenset(color for color in range(24) if np.isin(image.config[color], list(chosen)).any())
