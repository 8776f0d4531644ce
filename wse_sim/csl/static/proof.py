"""Static classes of a program and their courses: one per class, or one per core if its position matters.

Data are the words that the host may write: exported variables that are not functions, and the targets of
their pointers. All other memory is known at compile time, or was computed from known values.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from wse_sim.csl.static import values as V
from wse_sim.csl.static.core import Core
from wse_sim.csl.static.course import CoreState, Course, NotStaticError, Tables
from wse_sim.errors import WseError
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.vm import state as S
from wse_sim.fabric.vm.build import make_machine
from wse_sim.fabric.vm.image import DATA, CoreClass, Image
from wse_sim.fabric.vm.state import Machine
from wse_sim.hardware.wafer import Wafer

Array = npt.NDArray[Any]
_WORDS, _IS_WSE3 = S.WORDS, S.IS_WSE3
MOST_PLACES = 2_048
"""Maximum number of a class's cores that are followed one by one because their positions matter."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Result for one class: its name, its number of cores, and why it is not static ("" if it is)."""

    name: str
    cores: int
    reason: str


@dataclasses.dataclass
class Proved:
    """Courses of one launch.

    ``course_of`` (R,) is each core's index in `courses`, -1 for a core without a program; ``verdicts`` has
    one entry per class.
    """

    courses: list[Course]
    course_of: Array
    verdicts: list[Verdict]


class Proof:
    """Analysis of a program's classes from launch to launch.

    Raises
    ------
    ProgramError
        If the image is inconsistent.
    """

    def __init__(self, image: Image, wafer: Wafer) -> None:
        self.image, self.wafer = image, wafer
        self.config = FabricConfig.from_wafer(wafer)
        self.tables = Tables.of(one_core(image, wafer, self.config), image)
        self.used = [int(k) for k in np.unique(image.core_class) if k >= 0]
        self._words = int(self.tables.sets[_WORDS])
        self._states: dict[tuple[int, int], CoreState] = {}  # (class, core; -1 while all cores agree)
        self._launches: dict[int, list[tuple[list[int], tuple[int, ...]]]] = {k: [] for k in self.used}
        self._failed: dict[int, str] = {}
        for k in self.used:
            try:
                self._first(k)
            except NotStaticError as why:
                self._failed[k] = str(why)

    def _first(self, k: int) -> None:
        """Compute the states of a class before the first command, for each core if positions matter."""
        try:
            self._states[k, -1] = self._begin(k, None)
        except NotStaticError as why:
            cores = np.flatnonzero(self.image.core_class == k)
            if not _needs_places(why, cores):
                raise
            self._split(k, cores)

    def _begin(self, k: int, place: tuple[int, int] | None) -> CoreState:
        """Return the state of a class, or of one core of it, after the code that runs before the first
        command of the host."""
        cls = self.image.classes[k]
        state = first_state(cls, self._words, self.tables.sets)
        core = Core(self.tables, k, state, place)
        course = core.begin_alone(cls.start)
        if any(step.operation for step in course.steps):
            raise NotStaticError("it uses the fabric before the first command of the host")
        return state

    def _place(self, core: int) -> tuple[int, int]:
        y, x = divmod(int(core), self.image.cols)
        return x, y

    def _split(self, k: int, cores: Array) -> None:
        """Give every core of a class a separate state, and repeat the earlier launches with its position."""
        self._states.pop((k, -1), None)
        for core in cores:
            place = self._place(core)
            state = self._begin(k, place)
            for entries, arguments in self._launches[k]:
                self._followed(k, state, place, entries, arguments)
            self._states[k, int(core)] = state

    def launch(self, name: str, arguments: tuple[int, ...] = ()) -> Proved:
        """Return the courses of a call of function `name` on all cores that have it; other cores run their
        active tasks.

        Raises
        ------
        WseError
            If no class has the function.
        """
        image = self.image
        entries = {
            k: [s.address for s in image.classes[k].symbols if s.kind == "function" and s.name == name]
            for k in self.used
        }
        if not any(entries.values()):
            raise WseError(f"no core has a function '{name}'; name an exported function")
        found = Proved([], np.full(image.n_cores, -1, np.int32), [])
        seen: dict[str, int] = {}
        for k in self.used:
            cores = np.flatnonzero(image.core_class == k)
            reason = self._failed.get(k, "")
            if not reason:
                try:
                    self._class(found, seen, k, cores, entries[k], arguments)
                except NotStaticError as why:
                    reason = self._failed[k] = str(why)
            found.verdicts.append(Verdict(image.classes[k].name, len(cores), reason))
        return found

    def _class(
        self,
        found: Proved,
        seen: dict[str, int],
        k: int,
        cores: Array,
        entries: list[int],
        arguments: tuple[int, ...],
    ) -> None:
        """Add the courses of one class to `found`: one for all its cores if possible, else one per core."""
        if (k, -1) in self._states:
            state = self._states[k, -1].copy()
            try:
                course = self._followed(k, state, None, entries, arguments)
            except NotStaticError as why:
                if not _needs_places(why, cores):
                    raise
                self._split(k, cores)
            else:
                self._states[k, -1] = state
                self._launches[k].append((entries, arguments))
                found.course_of[cores] = _number(found, seen, course)
                return
        for core in cores:
            course = self._followed(k, self._states[k, int(core)], self._place(core), entries, arguments)
            found.course_of[core] = _number(found, seen, course)

    def _followed(
        self,
        k: int,
        state: CoreState,
        place: tuple[int, int] | None,
        entries: list[int],
        arguments: tuple[int, ...],
    ) -> Course:
        core = Core(self.tables, k, state, place)
        course = core.launch(entries[0], arguments) if entries else core.wait()
        if entries and course.released < 0:
            raise NotStaticError("it does not release the command stream by itself")
        return course


def _needs_places(why: NotStaticError, cores: Array) -> bool:
    """Return whether following the cores one by one, with their positions, may help."""
    return V.POSITION.cause in str(why) and len(cores) <= MOST_PLACES


def _number(found: Proved, seen: dict[str, int], course: Course) -> int:
    """Return the index of a course; equal courses share one index."""
    key = repr((course.steps, course.released))
    if key not in seen:
        seen[key] = len(found.courses)
        found.courses.append(course)
    return seen[key]


def one_core(image: Image, wafer: Wafer, config: FabricConfig) -> Machine:
    """Return a machine of one core that has the tables of `image`."""
    small = dataclasses.replace(
        image, rows=1, cols=1, core_class=np.zeros(1, np.int32), config=np.zeros((24, 1), np.uint16)
    )
    return make_machine(
        small, config, wafer.output_queue_wavelets, wafer.scalar_costs(), strict=True, profile=False
    )


def first_state(cls: CoreClass, words: int, sets: Array, *, hidden: bool = True) -> CoreState:
    """Return the state at cycle 0; with `hidden`, words that the host may write are unknown."""
    memory: list[V.Value] = [0] * words
    for address, data in cls.memory:
        memory[address : address + len(data)] = [int(w) for w in data]
    state = CoreState(
        memory,
        active=_mask(cls.active),
        blocked=_mask(cls.blocked),
        threads_blocked=_mask(cls.blocked_threads),
    )
    state.output_color = dict(cls.output_colors)
    state.input_color = dict(cls.input_colors)
    state.queue_of = {color: queue for queue, color in cls.input_colors} | dict(cls.reads)
    if not sets[_IS_WSE3]:
        own = 8
        for task in cls.tasks:
            if task.kind == DATA and task.id not in state.queue_of:
                state.queue_of[task.id] = own
                own += 1
    if not hidden:
        return state
    starts = sorted({symbol.address for symbol in cls.symbols if symbol.kind == "var"})
    for symbol in cls.symbols:
        if symbol.kind != "var" or not symbol.exported:
            continue
        address, end = symbol.address, symbol.address + symbol.words
        if symbol.type.startswith(("[*]", "*")):
            held = memory[address]
            address = held if isinstance(held, int) else address
            end = next((start for start in starts if start > address), words)  # up to the next variable
        state.exported.append((address, end))
    state.forget()
    return state


def _mask(ids: tuple[int, ...]) -> int:
    return sum(1 << i for i in set(ids))
