"""Data of the static analysis: operations and steps of a core, its state between launches, and the tables of
a program."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy.typing as npt

from wse_sim.csl.static import values as V
from wse_sim.csl.static.values import Value
from wse_sim.errors import WseError
from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm.image import Image

Array = npt.NDArray[Any]


class NotStaticError(WseError):
    """Reason why a core's course is not proved static: a sentence with the place in the source."""


@dataclasses.dataclass(frozen=True)
class Operation:
    """Operation on the fabric: `n` elements in steps of `per_step`; each step takes `milli` / 1000 issue
    cycles.

    ``inputs`` and ``output`` are (color, queue); ``where`` is the place in the source.
    """

    n: int
    per_step: int
    milli: int
    inputs: tuple[tuple[int, int], ...]
    output: tuple[int, int] | None
    where: str

    @property
    def issue_cycles(self) -> int:
        """Issue cycles of the operation without stalls."""
        steps = -(-self.n // self.per_step)
        cost, rest = 0, 999
        for _ in range(steps if self.milli % 1000 else 0):
            total = rest + self.milli
            cycles = max(1, total // 1000)
            rest = max(0, total - 1000 * cycles)
            cost += cycles
        return cost if self.milli % 1000 else steps * max(1, self.milli // 1000)


@dataclasses.dataclass(frozen=True)
class CourseStep:
    """Cycles of the main thread, followed by an operation, or by None at the end of a course.

    ``beside`` is the number of cycles that the main thread continues during the operation.
    """

    cycles: int
    operation: Operation | None
    beside: int = 0


@dataclasses.dataclass
class Course:
    """Actions of a class after a launch.

    ``released`` is the number of cycles from the last operation to the release of the command stream, -1
    without one.
    """

    steps: list[CourseStep]
    released: int = -1

    @property
    def tail_cycles(self) -> int:
        """Cycles from the release of the command stream until the core is idle."""
        return self.steps[-1].cycles - max(0, self.released)


@dataclasses.dataclass
class CoreState:
    """State of one class that persists between launches: memory words, DSRs, task bits."""

    memory: list[Value]
    dsr: dict[int, Value] = dataclasses.field(default_factory=dict)
    load_of: dict[int, int] = dataclasses.field(default_factory=dict)  # DSR number -> row of dsr_loads
    active: int = 0
    blocked: int = 0
    threads_blocked: int = 0
    map_rest: int = 0
    output_color: dict[int, int] = dataclasses.field(default_factory=dict)
    input_color: dict[int, int] = dataclasses.field(default_factory=dict)
    queue_of: dict[int, int] = dataclasses.field(default_factory=dict)  # color -> input queue
    exported: list[tuple[int, int]] = dataclasses.field(
        default_factory=list
    )  # words (first, end) that the host may write

    def forget(self) -> None:
        """Set the words that the host can write to unknown."""
        for first, end in self.exported:
            self.memory[first:end] = [V.DATA] * (end - first)

    def copy(self) -> CoreState:
        """Return an independent copy."""
        return dataclasses.replace(
            self,
            memory=list(self.memory),
            dsr=dict(self.dsr),
            load_of=dict(self.load_of),
            output_color=dict(self.output_color),
            input_color=dict(self.input_color),
            queue_of=dict(self.queue_of),
        )


@dataclasses.dataclass(frozen=True)
class Tables:
    """Data of all classes: code with its costs, settings of the machine, costs of vector operations."""

    image: Image
    code: list[list[int]]
    price: list[int]
    late: list[int]
    issues: list[list[int]]
    loads: list[list[int]]
    vop: Array
    sets: Array

    @classmethod
    def of(cls, machine: S.Machine, image: Image) -> Tables:
        """Return the tables of a machine made from `image`."""
        code = machine.code.reshape(-1, 4)
        rows = [[int(op & 255), int(a), int(b), int(c)] for op, a, b, c in code]
        return cls(
            image, rows, [int(p) for p in code[:, 0] >> 8], machine.late_price.tolist(), machine.issues.tolist(), machine.loads.tolist(),
            machine.vop, machine.sets,
        )  # fmt: skip


@dataclasses.dataclass
class Operand:
    """Operand with its addresses, color or value resolved."""

    form: int  # a form of state.py
    base: int = 0
    step: int = 0  # words
    width: int = 1
    dsd: int = 0
    dsr: int = -1
    color: int = -1
    queue: int = -1
    n: int | None = None  # its length; None for scalars and FIFOs
    endless: bool = False
    value: Value = 0
