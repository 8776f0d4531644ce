"""Analysis of one core of a class from the start of a function to its end, one operation after the other.

The course of a program is *static* if no unknown value decides a jump, an address, a length or which task
runs. The analysis follows the core as the machine runs it, and returns its activity on the fabric as a list
of steps:

    CourseStep  cycles of the main thread before it, then one operation on the fabric of n steps of `milli` / 1000 cycles

The cycles between two operations are those of the machine: costs of opcodes, starts and cycles of operations
on memory, starts of tasks. A core is not static if the order of its actions could depend on times: with two
operations at once, a FIFO, or a task during an operation.
"""

from __future__ import annotations

import dataclasses

from wse_sim.csl.static import values as V
from wse_sim.csl.static.course import (
    CoreState,
    Course,
    CourseStep,
    NotStaticError,
    Operand,
    Operation,
    Tables,
)
from wse_sim.csl.static.values import Value
from wse_sim.csl.static.vector import VectorWalker
from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm.image import DATA, LOCAL
from wse_sim.fabric.vm.issue_times import MAPPED
from wse_sim.fabric.vm.opcodes import Sys


@dataclasses.dataclass
class _Open:
    """Operation that overlaps the main thread."""

    thread: int
    operation: Operation
    activate: int
    unblock: int
    before: int
    beside: int = 0


class Core(VectorWalker):
    """Analysis of one core; :meth:`launch` returns its course and updates its state."""

    def __init__(self, tables: Tables, number: int, state: CoreState, place: tuple[int, int] | None = None):
        super().__init__(tables, number, state, place)
        self.order = sorted(
            self.cls.tasks, key=lambda task: (not task.high_priority, task.kind != LOCAL, task.id)
        )
        self.open: _Open | None = None
        self.course = Course([])
        self.takes_words = True
        self.passed: dict[int, str] = {}  # data tasks that could have run during an operation, with its place

    # -- the run

    def launch(self, entry: int, arguments: tuple[int, ...] = ()) -> Course:
        """Return the course of a call of the function at `entry`, until the core is idle.

        Raises
        ------
        NotStaticError
            If the course is not static; the message is the reason.
        """
        self.spent = int(self.t.sets[S.PICK])
        self.regs = dict(enumerate(arguments))
        self.state.forget()
        self._run(entry)
        return self.wait()

    def begin_alone(self, entry: int) -> Course:
        """Return the course before the first command: code at `entry` (-1: none), then active tasks; no word
        arrives."""
        self.takes_words = False
        return self.launch(entry) if entry >= 0 else self.wait()

    def wait(self) -> Course:
        """Return the course of a core without a command: active tasks run, then it is idle."""
        while self._next_task():
            pass
        self._add(CourseStep(self.spent, None))
        return self.course

    def _add(self, step: CourseStep) -> None:
        self.course.steps.append(step)
        self.spent = 0

    def _next_task(self) -> bool:
        task = next((t for t in self.order if self._is_runnable(t.id)), None)
        if task is None:
            if self.open is None:
                return self._take_word()
            self._close()
            return True
        if self.open is not None and max(self.open.activate, self.open.unblock) >= 0:
            raise NotStaticError(
                f"task '{task.name}' overlaps the operation at {self.open.operation.where}, whose end starts a task: their order depends on times"
            )
        self.state.active &= ~(1 << task.id)
        self.spent += int(self.t.sets[S.PICK])
        self.regs = {0: 0}
        self._run(task.entry)
        return True

    def _is_runnable(self, task: int) -> bool:
        return bool(self.state.active >> task & 1) and not self.state.blocked >> task & 1

    def _take_word(self) -> bool:
        """Run a data task on a word that arrives, if only one color can bring it; return whether there is
        such a task."""
        ready = [t for t in self.order if t.kind == DATA and not self.state.blocked >> t.id & 1]
        if not ready or not self.takes_words or self.course.released >= 0:
            return False
        if len(ready) > 1:
            raise NotStaticError(
                f"words start task '{ready[0].name}' or '{ready[1].name}': their order depends on times"
            )
        task, (color, queue) = ready[0], self._channel(ready[0].id)
        if task.id in self.passed:
            raise NotStaticError(
                f"words may start task '{task.name}' during the operation at {self.passed[task.id]}: their order depends on times"
            )
        self._add(
            CourseStep(self.spent, Operation(1, 1, 1000, ((color, queue),), None, f"task '{task.name}'"))
        )
        self.spent = int(self.t.sets[S.PICK]) - 1
        self.regs = {0: V.WORD}
        self._run(task.entry)
        return True

    def _channel(self, task: int) -> tuple[int, int]:
        if self.t.sets[S.IS_WSE3]:
            return self.state.input_color.get(task, -1), task
        return task, self.state.queue_of.get(task, -1)

    def _close(self) -> None:
        """Complete the operation in flight, which may start a task."""
        done = self.open
        assert done is not None
        self.open = None
        for task in self.order:  # a word that starts it later makes the course not static
            if task.kind == DATA and not self.state.blocked >> task.id & 1:
                self.passed[task.id] = done.operation.where
        self.course.steps.append(CourseStep(done.before, done.operation, done.beside + self.spent))
        self.spent = 0
        if done.activate >= 0:
            self.state.active |= 1 << done.activate
        if done.unblock >= 0:
            self.state.blocked &= ~(1 << done.unblock)

    # -- operations and machine functions

    def _release(self) -> None:
        if self.open is not None:
            raise NotStaticError(
                f"the command stream is released at {self.where()} while an operation is in flight"
            )
        if self.course.released < 0:
            self.course.released = self.spent - self.t.late[self.pc]

    def _changed(self, fn: Sys, first: int) -> Value | None:
        """Reject a function that changes or reads routers or queues."""
        raise NotStaticError(
            f"{fn.name.lower()} at {self.where()} changes the machine while the program runs"
        )

    def _on_memory(self, op: int, n: int | None, cost: int, collides: bool, options: dict[str, int]) -> None:
        """Add the cycles of an operation on memory, for which the main thread waits."""
        if options["is_async"]:
            raise NotStaticError(f"an operation on memory overlaps the main thread at {self.where()}")
        if self.open is not None:
            raise NotStaticError(
                f"the operation at {self.where()} overlaps that at {self.open.operation.where}: two operations share the core"
            )
        if n is None:
            raise NotStaticError(f"an operation without end at {self.where()}")
        sets, cycles = self.t.sets, self._memory_cycles(n, cost, collides, op)
        if self.t.late[self.pc] > MAPPED // 2:
            milli = (
                self.state.map_rest + int(sets[S.MAP_MILLI]) + (int(sets[S.MAP_VECTOR_MILLI]) if n > 1 else 0)
            )
            self.state.map_rest = milli % 1000
            cycles += milli // 1000
        self.spent += cycles
        self._finish(options)

    def _fifo(self) -> Operand:
        raise NotStaticError(f"a FIFO at {self.where()}: when it is empty or full depends on times")

    def _sends_control(self) -> None:
        raise NotStaticError(
            f"control wavelets leave at {self.where()}: switches move while the program runs"
        )

    def _fabric(self, operands: list[Operand], n: int | None, cost: int, options: dict[str, int]) -> None:
        where = self.where()
        if self.open is not None:
            raise NotStaticError(
                f"the operation at {where} overlaps that at {self.open.operation.where}: two operations share the core"
            )
        if n is None:
            raise NotStaticError(f"the operation at {where} has no end")
        if options["on_control"]:
            raise NotStaticError(f"a control wavelet ends the operation at {where}")
        simd = max((x.dsd >> 54) & 3 for x in operands if x.form in (S.INPUT, S.OUTPUT))
        if simd >= O.Simd.SIMD_64:
            raise NotStaticError(f"the operation at {where} moves two wavelets a step, which is stepped")
        if self.course.released >= 0:
            raise NotStaticError(f"the operation at {where} follows the release of the command stream")
        inputs = tuple((x.color, x.queue) for x in operands[1:3] if x.form == S.INPUT)
        output = (operands[0].color, operands[0].queue) if operands[0].form == S.OUTPUT else None
        per_step = 2 if simd else 1
        operation = Operation(n, per_step, max(1000, cost * per_step), inputs, output, where)
        if options["is_async"]:
            self.open = _Open(1, operation, options["activate"], options["unblock"], self.spent)
            self.spent = 0
            return
        self._add(CourseStep(self.spent, operation))
        self._finish(options)
