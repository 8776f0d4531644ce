"""Static analysis of a script's launches: whether each one is static, with its analysed and its simulated
cycles."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from wse_sim.csl.compiler import CompiledProgram
from wse_sim.csl.static.fold import Folded, fold
from wse_sim.csl.static.launches import Launch, StaticTimes
from wse_sim.csl.static.proof import Verdict
from wse_sim.csl.static.schedule import Call, Recorded, decided_by_data
from wse_sim.csl.static.table import ALL_AT_ONCE, course_text, table
from wse_sim.errors import WseError
from wse_sim.fabric.vm.image import Image
from wse_sim.hardware.wafer import Wafer, load_wafer

STATIC_VARIABLE = "WSE_SIM_CSL_STATIC"
"""Environment variable with a file to which every launch appends one line of JSON."""


class LaunchWatch:
    """Recorder of a program's launches; compares the static analysis with the simulation."""

    def __init__(self, image: Image, wafer: Wafer, path: Path) -> None:
        self.times, self.path = StaticTimes(image, wafer), path
        self._open: Launch | None = None
        self._calls: list[Call] = []
        self._copies: list[tuple[int, int, int]] = []
        self._began = 0
        self._began_s = 0.0

    @classmethod
    def asked(cls, image: Image, wafer: Wafer) -> LaunchWatch | None:
        """Return a recorder if the environment requests one, else None."""
        path = os.environ.get(STATIC_VARIABLE)
        return cls(image, wafer, Path(path)) if path else None

    def launch(self, name: str, words: list[int], cycle: int) -> None:
        """Record that a launch begins in `cycle`."""
        self._calls.append(Call(name, tuple(words)))
        self._open = self.times.launch(name, tuple(words), since=cycle - self._began)
        self._began, self._began_s = cycle, time.process_time()

    def released(self, cycle: int) -> None:
        """Record that all cores have released their command stream before `cycle`, which ends the open
        launch."""
        if self._open is None:
            return
        found = dataclasses.replace(
            self._open, machine_cycles=cycle - self._began - 1, machine_s=time.process_time() - self._began_s
        )
        self._open = None
        self._write({"launch": found.as_dict()})

    def _write(self, row: dict[str, object]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def copied(self, cycle: int, first: int, end: int) -> None:
        """Record that the host writes words `first` to `end` (not included) of some cores' memories in
        `cycle`."""
        self._copies.append((cycle, first, end))

    def end(self, picks: npt.NDArray[np.int64]) -> None:
        """Write what decides the course of each class; `picks` are the tasks that the cores started."""
        run = Recorded(picks, self._calls, self._copies)
        verdicts = decided_by_data(self.times.image, self.times.wafer, run)
        self._write({"course": [dataclasses.asdict(verdict) for verdict in verdicts]})

    def spoil(self, reason: str) -> None:
        """Record a host action that the static analysis does not support."""
        self.times.spoil(reason)


@dataclasses.dataclass(frozen=True)
class Found:
    """Findings for the runs of a command file: its launches, and for every run what decides the course of its
    classes."""

    launches: list[Launch]
    courses: list[list[Verdict]]

    def as_text(self) -> str:
        """Format the findings as a table for a terminal."""
        return "\n".join([table(self.launches), *(course_text(course) for course in self.courses)])


def read_found(path: Path) -> Found:
    """Read the findings that recorders have written to `path`; empty if the file does not exist."""
    found = Found([], [])
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    for row in map(json.loads, lines):
        if "course" in row:
            found.courses.append([Verdict(**verdict) for verdict in row["course"]])
        else:
            launch = row["launch"]
            verdicts = tuple(Verdict(**verdict) for verdict in launch["verdicts"])
            found.launches.append(
                Launch(**{**launch, "verdicts": verdicts, "bounds": tuple(launch["bounds"])})
            )
    return found


def static_launches(folder: Path, launches: list[str]) -> list[Launch]:
    """Analyse launches ``NAME`` or ``NAME,1,2`` of the program in an output folder, one after the other.

    Raises
    ------
    WseError
        If the folder contains no program, no launch is given (the message lists the functions), a
        function does not exist, or an argument is not an integer.
    """
    program = CompiledProgram.read(folder)
    if not launches:
        functions = [f"{e.name}{e.type.removeprefix('fn')}" for e in program.exports if e.kind == "Func"]
        raise WseError(
            f"no launch is given; use --launch NAME for one of the functions of {folder}: {', '.join(functions) or 'there are none'}"
        )
    calls = _calls(launches)
    wafer = load_wafer(program.options.arch)
    times = StaticTimes(program.image, wafer)
    found = [times.launch(call.name, call.arguments) for call in calls]
    return (
        found
        if all(launch.cycles is not None for launch in found)
        else _folded(found, program.image, wafer, calls)
    )


def _folded(found: list[Launch], image: Image, wafer: Wafer, calls: list[Call]) -> list[Launch]:
    """Return the launches with cycles from a smaller rectangle, if the rectangle's rows or columns repeat."""
    begin = time.process_time()
    try:
        folded = fold(image, wafer, calls)
    except WseError as fault:
        folded = Folded([], reason=str(fault))
    if folded.reason:
        why = f"; as a smaller rectangle: {folded.reason}"
        return [
            launch if launch.cycles is not None else dataclasses.replace(launch, reason=launch.reason + why)
            for launch in found
        ]
    how = f"{folded.cols} x {folded.rows} cores run, lines repeat"
    if folded.later_cycles:
        how += f", {ALL_AT_ONCE}"
    run_s = (time.process_time() - begin) / len(calls)
    return [
        dataclasses.replace(
            launch,
            cycles=cycles,
            bounds=(cycles, cycles + folded.later_cycles),
            reason="",
            verdicts=(),
            how=how,
            run_s=run_s,
        )
        for launch, cycles in zip(found, folded.cycles, strict=True)
    ]


def _calls(launches: list[str]) -> list[Call]:
    found = []
    for text in launches:
        name, *arguments = text.split(",")
        try:
            words = tuple(int(a, 0) & 0xFFFFFFFF for a in arguments)
        except ValueError:
            raise WseError(f"--launch is '{text}'; give NAME,1,2 with integers") from None
        found.append(Call(name, words))
    return found
