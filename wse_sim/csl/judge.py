"""Judge of generated programs: one call compiles, runs, checks and times a kernel, in a persistent process.

A request names the sources and what to do with them (:class:`JudgeRequest`); the answer (:class:`Judgement`)
contains the stage reached and the reason for a failure, with file, line and column. Files are written only to
a scratch folder, and no state is kept between two requests.

    >>> answer = judge({"files": {"layout.csl": "layout { @set_rectangle(2, 1) }"}, "calls": ["compute"]})
    >>> answer.passed, answer.stage, answer.file, answer.line
    (False, 'compile', 'layout.csl', 1)
"""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wse_sim.atomic_files import scratch
from wse_sim.csl.compiler import CompiledProgram, Export, compile_program
from wse_sim.csl.diagnostics import SOURCES, CslError
from wse_sim.csl.host.arrays import argument_word
from wse_sim.csl.host.memory import memory_map
from wse_sim.csl.host.record import address_of
from wse_sim.errors import ConfigError, WseError
from wse_sim.fabric.vm.report import Fault
from wse_sim.fabric.vm.session import Outcome, Session
from wse_sim.hardware import load_wafer

Values = int | float | bool | list[object]
HOST_CYCLES = 1000
"""Cycles that pass before a command of the host, in which the program's own start-up code runs."""
STAGES = ("request", "compile", "run", "check", "passed", "simulator")
_TYPES = {"f32": "<f4", "f16": "<f2", "i32": "<i4", "u32": "<u4", "i16": "<i2", "u16": "<u2"}
_NAME = re.compile(r"[\w.-]+(/[\w.-]+)*")
MOST_SHOWN = 5


class JudgeRequest(BaseModel):
    """Request to compile, run and check a program.

    The sources are ``files`` (name to text) or ``folder``; ``layout`` is the file with the layout block.
    ``inputs`` and ``expected`` are values of exported arrays, (rows, cols, elements) or broadcastable to that
    shape. ``calls`` are exported functions in order, each a name or [name, arguments...]; without calls, the
    program must start on its own. A value is correct if it differs from the expected one by at most ``atol``
    + ``rtol`` times the expected value. ``cycles`` limits the simulated cycles per call.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    files: dict[str, str] = Field(default_factory=dict)
    folder: str = ""
    layout: str = "layout.csl"
    arch: str = "wse2"
    params: dict[str, int | float | str] = Field(default_factory=dict)
    colors: dict[str, int] = Field(default_factory=dict)
    memcpy: bool = True
    strict: bool = False
    sanitize: bool = False
    inputs: dict[str, Values] = Field(default_factory=dict)
    calls: tuple[str | tuple[str | int | float, ...], ...] = ()
    expected: dict[str, Values] = Field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    rtol: float = Field(default=1e-5, ge=0)
    atol: float = Field(default=1e-6, ge=0)
    cycles: int = Field(default=20_000_000, ge=1, le=1 << 40)


@dataclasses.dataclass
class Judgement:
    """Verdict on a request.

    ``stage`` is the stage at which it ended (see :data:`STAGES`), "passed" for a correct program, and
    ``message`` one sentence with the reason for a failure. ``file``, ``line`` and ``column`` are the place of
    an error in the sources, if it has one. ``cycles`` has one entry per call, from its start until all cores
    have released the command stream or are idle. ``outputs`` are the requested arrays (rows, cols, elements),
    and ``findings`` those of the sanitizer. ``spare_bytes`` is the free memory of the fullest core, and
    ``seconds`` the wall time of the request.
    """

    stage: str = "request"
    message: str = ""
    file: str = ""
    line: int = 0
    column: int = 0
    cycles: list[int] = dataclasses.field(default_factory=list)
    outputs: dict[str, Any] = dataclasses.field(default_factory=dict)
    findings: list[str] = dataclasses.field(default_factory=list)
    spare_bytes: int = 0
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether the program is correct."""
        return self.stage == "passed"

    def as_dict(self) -> dict[str, object]:
        """Return the verdict as a dictionary for JSON."""
        return {"passed": self.passed, **dataclasses.asdict(self)}


class _FaultedError(WseError):
    """Run-time fault of the judged program."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        super().__init__(f"the program faulted: {fault}")


def judge(request: JudgeRequest | Mapping[str, Any]) -> Judgement:
    """Compile, run, check and time a program.

    Errors of the request, the sources and the run become part of the verdict; none is raised.
    """
    began, verdict = time.perf_counter(), Judgement()
    try:
        asked = request if isinstance(request, JudgeRequest) else _request(request)
        with scratch("judge") as place:
            try:
                _judge(asked, _sources(asked, place), verdict)
            except WseError as fault:
                raise _without(f"{place}/", fault) from None
            finally:
                verdict.findings = [text.replace(f"{place}/", "") for text in verdict.findings]
    except CslError as fault:
        found = SOURCES.place(fault.at)
        verdict.message = fault.sentence
        if found is not None:
            verdict.file, verdict.line, verdict.column = Path(found[0].name).name, found[1], found[2]
    except WseError as fault:
        verdict.message = str(fault)
        if isinstance(fault, _FaultedError) and fault.fault.place is not None:
            file, verdict.line, verdict.column = fault.fault.place
            verdict.file = Path(file).name
    except Exception as fault:
        verdict.stage, verdict.message = (
            "simulator",
            f"fault of the simulator: {type(fault).__name__}: {fault}",
        )
    verdict.seconds = time.perf_counter() - began
    return verdict


def answers(lines: Iterable[str]) -> Iterator[str]:
    """Judge each request, a line of JSON, and yield its verdict as a line of JSON; empty lines are
    skipped."""
    for line in lines:
        if not line.strip():
            continue
        try:
            asked = json.loads(line)
            if not isinstance(asked, dict):
                raise ValueError("it is not an object")
        except ValueError as fault:
            verdict = Judgement(
                message=f"the request is not a JSON object ({fault}); give one object per line"
            )
        else:
            verdict = judge(asked)
        yield json.dumps(verdict.as_dict())


def _without(folder: str, fault: WseError) -> WseError:
    """Return the error with the scratch folder's path removed from its text."""
    if isinstance(fault, _FaultedError):
        where = fault.fault.where.replace(folder, "")
        return _FaultedError(dataclasses.replace(fault.fault, where=where))
    return fault if isinstance(fault, CslError) else WseError(str(fault).replace(folder, ""))


def _request(stated: Mapping[str, Any]) -> JudgeRequest:
    try:
        asked = JudgeRequest.model_validate(dict(stated))
    except ValidationError as fault:
        first = fault.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(
            f"request.{where}: {first['msg']}; the keys are {', '.join(JudgeRequest.model_fields)}"
        ) from None
    if bool(asked.files) == bool(asked.folder):
        raise ConfigError("a request gives either `files` or `folder`")
    for name in asked.files:
        if not _NAME.fullmatch(name) or ".." in name:
            raise ConfigError(
                f"files has the name '{name[:60]}'; use names like src/pe.csl, below the folder of the layout"
            )
    return asked


def _sources(asked: JudgeRequest, place: Path) -> Path:
    """Write the request's files, if any, and return the path of the layout file."""
    if asked.folder:
        return Path(asked.folder) / asked.layout
    for name, text in asked.files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text, encoding="utf-8")
    return place / asked.layout


def _judge(asked: JudgeRequest, layout: Path, verdict: Judgement) -> None:
    verdict.stage = "compile"
    program = compile_program(
        layout,
        arch=asked.arch,
        params=asked.params,
        colors=asked.colors,
        memcpy=asked.memcpy,
        strict=asked.strict,
    )
    verdict.spare_bytes = min((row.spare for row in memory_map(program.image)), default=0)
    verdict.stage = "run"
    session = Session(program.image, load_wafer(asked.arch), sanitize=asked.sanitize)
    exports = {e.name: e for e in program.exports}
    session.advance("cycle", cycles=HOST_CYCLES)
    for name, values in asked.inputs.items():
        _write(program, session, _variable(exports, name), values)
    for call in asked.calls or ((),):
        verdict.cycles.append(
            _call(program, session, exports, [call] if isinstance(call, str) else list(call), asked.cycles)
        )
    for name in asked.outputs:
        verdict.outputs[name] = _read(program, session, _variable(exports, name), None).tolist()
    if asked.sanitize:
        verdict.findings = [str(found) for found in session.findings(at_end=True)]
    verdict.stage = "check"
    for name, values in asked.expected.items():
        _check(program, session, _variable(exports, name), values, asked)
    if verdict.findings:
        raise WseError(
            f"the sanitizer found {len(verdict.findings)} places, the first: {verdict.findings[0]}"
        )
    verdict.stage = "passed"


def _call(
    program: CompiledProgram, session: Session, exports: Mapping[str, Export], call: list[Any], most: int
) -> int:
    """Run a call and return its cycles; without a call, run the program's own start-up code."""
    start = session.cycle
    if not call:
        return _look(session, session.advance("idle", cycles=most), most) - start
    name, *arguments = call
    export = exports.get(str(name))
    if export is None or export.kind != "Func":
        known = ", ".join(e.name for e in exports.values() if e.kind == "Func") or "none"
        raise WseError(f"'{name}' is not an exported function; the functions are {known}")
    if len(arguments) != len(export.inputs):
        raise WseError(
            f"'{name}' takes {len(export.inputs)} arguments ({export.type}), {len(arguments)} are given"
        )
    words = [argument_word(a, kind, label) for a, (label, kind) in zip(arguments, export.inputs, strict=True)]
    waits = program.options.memcpy
    rows_apart = load_wafer(program.options.arch).launch_row_cycles
    session.launch(0, 0, program.width, program.height, export.name, words, arm=waits, row_cycles=rows_apart)
    took = _look(session, session.advance("commands" if waits else "idle", cycles=most), most) - start
    session.advance("cycle", cycles=HOST_CYCLES)
    return took


def _look(session: Session, outcome: Outcome, most: int) -> int:
    """Return the cycle at which a run ended.

    Raises
    ------
    WseError
        If the run failed or did not end.
    """
    if outcome.reason == "fault":
        assert outcome.fault is not None
        raise _FaultedError(outcome.fault)
    if outcome.reason == "waits":
        raise WseError(f"the program waits forever: {session.proof().text()}")
    if outcome.reason == "cycle":
        raise WseError(
            f"the program is still running after {most:,} cycles: {'; '.join(session.doing()[:3])}"
        )
    return outcome.quiet if outcome.reason == "idle" else outcome.cycle


def _variable(exports: Mapping[str, Export], name: str) -> Export:
    export = exports.get(name)
    if export is None or export.kind != "Var":
        known = ", ".join(e.name for e in exports.values() if e.kind == "Var") or "none"
        raise WseError(f"'{name}' is not an exported variable; the variables are {known}")
    return export


def _dtype(export: Export) -> np.dtype[Any]:
    kind = export.type.rpartition("]")[2].removeprefix("const ").strip()
    if kind not in _TYPES:
        raise WseError(
            f"'{export.name}' has elements of type '{kind}'; the judge reads and writes {', '.join(_TYPES)}"
        )
    return np.dtype(_TYPES[kind])


def _places(program: CompiledProgram, session: Session, name: str) -> dict[int, tuple[int, int]]:
    """Return word address and size (in words) of a variable on each core that has it; a pointer is followed
    with its present value."""
    image, found = program.image, {}
    for core, k in enumerate(int(k) for k in image.core_class):
        place = address_of(program, k, name)
        if place is None:
            continue
        y, x = divmod(core, image.cols)
        at = int(session.peek(x, y, place[0], 1)[0]) if place[1] else place[0]
        room = next(
            (
                s.address + s.words - at
                for s in image.classes[k].symbols
                if s.kind == "var" and 0 <= at - s.address < s.words
            ),
            0,
        )
        found[core] = (at, room)
    if not found:
        raise WseError(f"no core has a symbol '{name}'; export it in the program of the cores")
    return found


def _array(program: CompiledProgram, export: Export, values: Values) -> npt.NDArray[Any]:
    """Broadcast values to (rows, cols, elements).

    Raises
    ------
    WseError
        If they cannot be broadcast or converted.
    """
    try:
        given = np.asarray(values, np.float64 if _dtype(export).kind == "f" else np.int64)
        if given.ndim > 3:
            raise ValueError(f"{given.ndim} dimensions")
        n = given.shape[-1] if given.ndim else 1
        return np.broadcast_to(given, (program.height, program.width, n))
    except (ValueError, TypeError, OverflowError) as fault:
        raise WseError(
            f"the values of '{export.name}' do not fit {program.height} rows x {program.width} columns x elements ({fault}); give one core's list, or rows of columns of lists"
        ) from None


def _write(program: CompiledProgram, session: Session, export: Export, values: Values) -> None:
    data, kind = _array(program, export, values), _dtype(export)
    if (
        kind.kind != "f"
        and data.size
        and not np.iinfo(kind).min <= int(data.min()) <= int(data.max()) <= np.iinfo(kind).max
    ):
        raise WseError(
            f"a value of '{export.name}' does not fit '{export.type}'; use {np.iinfo(kind).min} to {np.iinfo(kind).max}"
        )
    for core, (at, room) in _places(program, session, export.name).items():
        y, x = divmod(core, program.image.cols)
        words = np.ascontiguousarray(data[y, x].astype(kind)).view(np.uint16)
        if len(words) > room:
            raise WseError(
                f"'{export.name}' of core ({x}, {y}) has {room} words and {len(words)} are given; give fewer elements"
            )
        session.poke(x, y, at, words)


def _read(
    program: CompiledProgram, session: Session, export: Export, elements: int | None
) -> npt.NDArray[Any]:
    """Return the elements (rows, cols, elements) of a variable; cores without the variable give zeros.

    If `elements` is not given, return as many elements as the core with the smallest array has.
    """
    kind, places = _dtype(export), _places(program, session, export.name)
    size = kind.itemsize // 2
    n = min(room for _, room in places.values()) // size if elements is None else elements
    found = np.zeros((program.height, program.width, n), kind)
    for core, (at, room) in places.items():
        y, x = divmod(core, program.image.cols)
        if n * size > room:
            raise WseError(
                f"'{export.name}' of core ({x}, {y}) has {room // size} elements and {n} are expected"
            )
        found[y, x] = session.peek(x, y, at, n * size).view(kind)
    return found


def _check(
    program: CompiledProgram, session: Session, export: Export, values: Values, asked: JudgeRequest
) -> None:
    wanted = _array(program, export, values)
    got = _read(program, session, export, wanted.shape[-1])
    has = np.zeros((program.height, program.width), bool)
    for core in _places(program, session, export.name):
        has[divmod(core, program.image.cols)] = True
    wrong = (
        ~np.isclose(got.astype(np.float64), wanted, rtol=asked.rtol, atol=asked.atol, equal_nan=True)
        & has[:, :, None]
    )
    if not wrong.any():
        return
    shown = [
        f"core ({x}, {y}) [{i}] is {got[y, x, i]!s}, not {wanted[y, x, i]!s}"
        for y, x, i in np.argwhere(wrong)[:MOST_SHOWN]
    ]
    raise WseError(
        f"'{export.name}' has {int(wrong.sum()):,} wrong of {int(has.sum()) * wanted.shape[-1]:,} values: {'; '.join(shown)}"
    )


__all__ = ["JudgeRequest", "Judgement", "answers", "judge"]
