"""Cycles that a CSL program measures itself: compile it, call its functions, read its time stamps.

A run is described by

    layout    the file with the layout block, below the folder of the sources
    params    parameters of the layout;  colors: numbers of colors
    memcpy    whether the host interface's library is available (true)
    launch    exported functions in order: a name, or [name, arguments...]; without any the
              program starts by itself
    stamps    exported array of three 32-bit words per core: start and end, 48 bits each, as in
              the public examples
    trace     [x, y, number]: instead of `stamps`, the cycle at which a core traced its value
              `number` (debug library)
    since     number of the traced value at which the count starts; cycle 0 by default
    over      mean, max or min of end - start over the cores; span: last end - first start
    per       calls between the two stamps (1)
    offset    cycles that the source subtracts (0)

or by `commands` (a command file, run unchanged in a copy of its folder) and `printed` (a pattern whose group
is the number that the host script prints).

Values of the data stay zero: the cycles of such a program must not depend on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wse_sim.csl.compiler import CompiledProgram, compile_program
from wse_sim.csl.host.commands import printed_by
from wse_sim.errors import ConfigError, WseError
from wse_sim.fabric.vm.session import Session
from wse_sim.files import is_file
from wse_sim.hardware.wafer import Wafer

HOST_CYCLES = 1000
"""Cycles that pass before a command of the host, in which the program's own start-up code runs."""
OVER = ("mean", "max", "min")
"""Ways to reduce the cores' cycles to one number, besides `span`."""


class TimedRun(BaseModel):
    """Program and the quantities to read from it, with the keys of the module's docstring."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    layout: str = ""
    params: dict[str, int | float | str] = Field(default_factory=dict)
    colors: dict[str, int] = Field(default_factory=dict)
    memcpy: bool = True
    launch: tuple[str | tuple[str | int, ...], ...] = ()
    stamps: str = ""
    trace: tuple[int, int, int] | None = None
    since: int | None = None
    over: str = "mean"
    per: float = Field(default=1.0, gt=0)
    offset: float = 0.0
    commands: str = ""
    printed: str = ""


def timed_run(stated: Mapping[str, Any], name: str) -> TimedRun:
    """Return the run that a mapping describes; `name` is its name in messages.

    Raises
    ------
    ConfigError
        If a key is unknown, missing or invalid.
    """
    try:
        run = TimedRun.model_validate(dict(stated))
    except ValidationError as fault:
        first = fault.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{name}: program.{where}: {first['msg']}") from None
    if bool(run.layout) == bool(run.commands):
        raise ConfigError(f"{name}: a program gives either `layout` or `commands`")
    if run.layout and bool(run.stamps) == bool(run.trace):
        raise ConfigError(f"{name}: a layout gives either `stamps` or `trace`")
    if run.over not in (*OVER, "span"):
        raise ConfigError(f"{name}: program.over is '{run.over}'; use {', '.join((*OVER, 'span'))}")
    return run


def timed_cycles(folder: Path, run: TimedRun, wafer: Wafer, arch: str) -> float:
    """Simulate a run and return its cycles, reduced as the run describes.

    Raises
    ------
    WseError
        If the program cannot be compiled, faults, waits forever or has no such stamps.
    """
    if run.commands:
        return (printed_by(folder / run.commands, run.printed) - run.offset) / run.per
    path = folder / run.layout
    if not is_file(path, "source", WseError):
        raise WseError(f"there is no file '{path}'; give the folder of the sources by --sources")
    program = compile_program(path, arch=arch, params=run.params, colors=run.colors, memcpy=run.memcpy)
    session = Session(program.image, wafer)
    for call in run.launch:
        session.advance("cycle", cycles=HOST_CYCLES)
        function, *arguments = [call] if isinstance(call, str) else call
        words = [int(a) for a in arguments]
        session.launch(
            0, 0, program.width, program.height, str(function), words, row_cycles=wafer.launch_row_cycles
        )
        _finish(session, "commands")
    if not run.launch:
        _finish(session, "idle")
    if run.trace is not None:
        x, y, number = run.trace
        traced = [p.cycle for p in session.prints() if p.traced and (p.x, p.y) == (x, y)]
        if max(number, run.since or 0) >= len(traced):
            raise WseError(
                f"core ({x}, {y}) traced {len(traced)} values, but number {max(number, run.since or 0)} is requested"
            )
        before = 0 if run.since is None else traced[run.since]
        return (traced[number] - before - run.offset) / run.per
    start, end = stamps_of(_words(program, session, run.stamps))
    return (over_cores(start, end, run.over) - run.offset) / run.per


def stamps_of(words: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return start and end of every core in cycles, from (cores, 6) 16-bit words: 48 bits each, lowest word
    first."""
    weights = np.int64(1) << np.array([0, 16, 32], np.int64)
    return words[:, :3] @ weights, words[:, 3:] @ weights


def over_cores(start: npt.NDArray[np.int64], end: npt.NDArray[np.int64], over: str) -> float:
    """Reduce the cores' cycles to one number: their mean, max or min, or the span from the first start to the
    last end."""
    took = end - start
    cycles = {"mean": took.mean(), "max": took.max(), "min": took.min(), "span": end.max() - start.min()}
    return float(cycles[over])


def _finish(session: Session, until: Any) -> None:
    outcome = session.advance(until)
    if outcome.reason == "fault":
        raise WseError(f"the program stopped: {outcome.fault}")
    if outcome.reason == "waits":
        raise WseError(f"the program waits forever: {'; '.join(str(w) for w in session.status()[:2])}")


def _words(program: CompiledProgram, session: Session, name: str) -> npt.NDArray[np.int64]:
    """Return the (cores, 6) words of the time stamps, for every core that has them.

    Raises
    ------
    WseError
        If no core has them.
    """
    image = program.image
    found = []
    for core, k in enumerate(image.core_class):
        symbols = (
            [s for s in image.classes[k].symbols if s.name == name and s.kind == "var"] if k >= 0 else []
        )
        if not symbols:
            continue
        y, x = divmod(core, image.cols)
        address = symbols[0].address
        if symbols[0].type.startswith(("[*]", "*")):
            address = int(session.peek(x, y, address, 1)[0])
        found.append(session.peek(x, y, address, 6))
    if not found:
        raise WseError(f"no core has a variable '{name}'; name the exported array of the time stamps")
    return np.array(found, np.int64)
