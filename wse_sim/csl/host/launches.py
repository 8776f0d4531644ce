"""The launches of a running script beside what the proof says of them: whether they are static, and their cycles both ways."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path

from wse_sim.csl.compiler import CompiledProgram
from wse_sim.csl.static.launches import Launch, StaticTimes
from wse_sim.csl.static.proof import Verdict
from wse_sim.errors import WseError
from wse_sim.fabric.vm.image import Image
from wse_sim.hardware.wafer import Wafer, load_wafer

STATIC_VARIABLE = "WSE_SIM_CSL_STATIC"
"""Environment variable with a file to which every launch appends one line of JSON."""


class LaunchWatch:
    """Follows the launches of one program while the machine runs them."""

    def __init__(self, image: Image, wafer: Wafer, path: Path) -> None:
        self.times, self.path = StaticTimes(image, wafer), path
        self._open: Launch | None = None
        self._began = 0
        self._began_s = 0.0

    @classmethod
    def asked(cls, image: Image, wafer: Wafer) -> LaunchWatch | None:
        """A watch if the environment asks for one."""
        path = os.environ.get(STATIC_VARIABLE)
        return cls(image, wafer, Path(path)) if path else None

    def launch(self, name: str, words: list[int], cycle: int) -> None:
        """A launch begins in `cycle`."""
        self._open = self.times.launch(name, tuple(words), since=cycle - self._began)
        self._began, self._began_s = cycle, time.process_time()

    def released(self, cycle: int) -> None:
        """All command streams were released before `cycle`."""
        if self._open is None:
            return
        found = dataclasses.replace(
            self._open, machine_cycles=cycle - self._began - 1, machine_s=time.process_time() - self._began_s
        )
        self._open = None
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(found.as_dict()) + "\n")

    def spoil(self, reason: str) -> None:
        """The host did what the proof does not follow."""
        self.times.spoil(reason)


def kept_launches(path: Path) -> list[Launch]:
    """The launches that a watch wrote to `path`."""
    if not path.is_file():
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [
        Launch(**{**row, "verdicts": tuple(Verdict(**verdict) for verdict in row["verdicts"])})
        for row in rows
    ]


def static_launches(folder: Path, launches: list[str]) -> list[Launch]:
    """What is said of launches ``NAME`` or ``NAME,1,2`` of the program in an output folder, one after the other.

    Raises
    ------
    WseError
        If the folder holds no program, or a launch names no function or arguments that are no integers.
    """
    program = CompiledProgram.read(folder)
    times = StaticTimes(program.image, load_wafer(program.options.arch))
    found = []
    for text in launches:
        name, *arguments = text.split(",")
        try:
            words = tuple(int(a, 0) & 0xFFFFFFFF for a in arguments)
        except ValueError:
            raise WseError(f"--launch is '{text}'; give NAME,1,2 with integers") from None
        found.append(times.launch(name, words))
    return found
