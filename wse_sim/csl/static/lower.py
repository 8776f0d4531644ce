"""Lowering of courses to a fabric program with the same times.

A course becomes a class of the program format: BUSY for the cycles of the main thread, and a transfer with
its own period for every operation. A transfer carries one word per step. The program ends where the command
stream is released.

If the main thread continues during an asynchronous operation, the machine begins the next task at the later
of the operation's end and the end of that stretch of the main thread. The program begins it at the end of the
operation, plus the cycles by which the stretch is longer than the operation's own issue cycles
(:class:`Keep`), which is exact if the operation never waits. NONE is never later than the machine and ALL
never earlier, as far as no arbitration decides. Both usually give the same program if no stretch is longer
than its operation.
"""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from wse_sim.csl.static.course import Course, NotStaticError, Operation
from wse_sim.csl.static.proof import Proved
from wse_sim.fabric.format.builder import Builder, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Op, Program
from wse_sim.fabric.vm.image import ColorConfig, Image
from wse_sim.hardware.wafer import Wafer

Array = npt.NDArray[Any]
_LETTERS = "NESWR"


class Keep(Enum):
    """Operations whose longer stretches of the main thread are kept: none, those that only send, or all."""

    NONE = 0
    SENDS = 1
    ALL = 2


@dataclasses.dataclass(frozen=True)
class LoweredLaunch:
    """Fabric program of one launch, with its constants.

    ``has_longer`` states that a stretch of the main thread is longer than the operation that it overlaps, so
    that :class:`Keep` makes a difference. ``is_exact`` states that every core sends through queues of one
    depth and each color is read through queues of one depth, as the program format requires.
    """

    program: Program
    config: FabricConfig
    has_longer: bool
    is_exact: bool


def lower(
    image: Image, wafer: Wafer, proved: Proved, keep: Keep = Keep.SENDS, busy_until: Array | None = None
) -> LoweredLaunch:
    """Return a fabric program with the times of `proved`; `busy_until` (R,) is the number of cycles in which
    each core is not yet free.

    Raises
    ------
    NotStaticError
        If a color in use has a filter, a color swap or a torn-down route, which the program format does
        not have.
    """
    depths = {depth for course in proved.courses for depth in _output_depths(course, wafer)}
    probe = FabricConfig.from_wafer(wafer)
    ring = min(depths, default=max(wafer.output_queue_wavelets)) + probe.ring_delay_cycles
    config = FabricConfig.from_wafer(wafer, ring_wavelets=ring)
    b = Builder(image.rows, image.cols, config)
    b.buffer("memory", 1)
    used, queues = _colors(proved)
    course_of = proved.course_of.reshape(image.rows, image.cols)
    longer = False
    late = None
    if busy_until is not None and busy_until.any():
        late = b.param(busy_until.reshape(image.rows, image.cols))
    for i, course in enumerate(proved.courses):
        k = b.core_class(f"course {i}")
        if late is not None:
            k.busy(late)
        longer |= _write(k, b, course, keep)
        b.place(k, course_of == i)
    exact = len(depths) <= 1
    for color in sorted(used):
        _route(b, image, color)
        of_color = {
            config.input_queue_wavelets[q]
            if q < len(config.input_queue_wavelets)
            else config.default_input_wavelets: q
            for q in queues.get(color, ())
        }
        if of_color:
            queue = of_color[min(of_color)]
            if queue < len(config.input_queue_wavelets):
                b.input_queue(color, queue)
        exact &= len(of_color) <= 1
    return LoweredLaunch(b.build(), config, longer, exact)


def _operations(course: Course) -> list[Operation]:
    return [step.operation for step in course.steps if step.operation is not None]


def _output_depths(course: Course, wafer: Wafer) -> set[int]:
    queues = {op.output[1] for op in _operations(course) if op.output is not None}
    return {wafer.output_queue_wavelets[q] for q in queues}


def _colors(proved: Proved) -> tuple[set[int], dict[int, set[int]]]:
    """Return the colors in use, and the input queues of each."""
    used: set[int] = set()
    queues: dict[int, set[int]] = {}
    for course in proved.courses:
        for op in _operations(course):
            if op.output is not None:
                used.add(op.output[0])
            for color, queue in op.inputs:
                used.add(color)
                queues.setdefault(color, set()).add(queue)
    return used, queues


def _route(b: Builder, image: Image, color: int) -> None:
    """Add the routes of one color at the start of the program."""
    chosen = image.config[color].reshape(image.rows, image.cols)
    for number in np.unique(chosen):
        if number == 0:
            continue
        config = image.configs[number - 1]
        _check(config, color)
        rx, tx = config.positions[config.position]
        b.route_mask(color, chosen == number, _ports(rx), _ports(tx))


def _check(config: ColorConfig, color: int) -> None:
    what = (
        "a filter"
        if config.filter >= 0
        else "a color swap"
        if config.swap
        else "a torn-down route"
        if config.teardown
        else ""
    )
    if what:
        raise NotStaticError(f"color {color} has {what}, which the program format does not have")


def _ports(mask: int) -> str:
    return "".join(letter for i, letter in enumerate(_LETTERS) if mask >> i & 1)


@dataclasses.dataclass(frozen=True)
class _Item:
    """Cycles of the main thread, followed by an operation."""

    busy: int
    operation: Operation


def _items(course: Course, keep: Keep) -> tuple[list[_Item], int, bool]:
    """Return a course's operations, the cycles after the last one, and whether a stretch is longer than the
    operation that it overlaps."""
    items, carried, has_longer = [], 0, False
    for step in course.steps:
        if step.operation is None:
            break
        longer = max(0, step.beside - step.operation.issue_cycles)
        items.append(_Item(step.cycles + carried, step.operation))
        is_kept = keep == Keep.ALL or (keep == Keep.SENDS and not step.operation.inputs)
        carried = longer if is_kept else 0
        has_longer |= longer > 0
    end = course.released if course.released >= 0 else course.steps[-1].cycles
    return items, end + carried, has_longer


def _write(k: CoreClass, b: Builder, course: Course, keep: Keep) -> bool:
    """Write a course to a class, with repetitions as loops; return whether `keep` makes a difference."""
    items, end, has_longer = _items(course, keep)
    memory = b._buffers["memory"].dsd(0, 1, 0)
    at = 0
    while at < len(items):
        period, turns = _repetition(items, at)
        if turns > 1:
            with k.loop(turns):
                for item in items[at : at + period]:
                    _write_item(k, memory, item)
        else:
            _write_item(k, memory, items[at])
        at += period * turns
    k.busy(end)
    return has_longer


MOST_PERIOD = 64


def _repetition(items: list[_Item], at: int) -> tuple[int, int]:
    """Return the shortest period that repeats at least twice from `at` on, and how often; (1, 1) if there is
    none."""
    for period in range(1, min(MOST_PERIOD, (len(items) - at) // 2) + 1):
        turns = 1
        while items[at + turns * period : at + (turns + 1) * period] == items[at : at + period]:
            turns += 1
        if turns > 1:
            return period, turns
    return 1, 1


def _write_item(k: CoreClass, memory: Operand, item: _Item) -> None:
    op = item.operation
    if item.busy:
        k.busy(item.busy)
    steps = -(-op.n // op.per_step)
    if steps == 0:  # an empty operation takes one issue cycle
        k.busy(1)
        return
    target = fabric_out(op.output[0]) if op.output is not None else memory
    sources = [fabric_in(color) for color, _ in op.inputs] or [memory]
    if len(sources) == 2:
        k.vector(Op.ADD, target, *sources, length=steps, start="none", period=op.milli)
    else:
        k.vector(Op.MOV, target, sources[0], length=steps, start="none", period=op.milli)
