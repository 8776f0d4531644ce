"""Language services for editors of CSL: errors, hover, definitions and completions, from the project's parser
and evaluator.

Nothing here depends on an editor; :mod:`wse_sim.csl.language_server` implements the protocol. Lines and
columns count from 0, as in editors. A file is compiled by the command files (``commands*.sh``) in its folder,
or else one folder above, with the editor's text instead of the file.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import shutil
import time
from functools import cache
from pathlib import Path

import numpy as np

from wse_sim.atomic_files import scratch
from wse_sim.csl import tree
from wse_sim.csl.compiler import CompiledProgram, compile_program
from wse_sim.csl.diagnostics import SOURCES, CslError
from wse_sim.csl.host.commands import parse_cslc
from wse_sim.csl.lower import RUN_TIME
from wse_sim.csl.modules import library_names
from wse_sim.csl.parse import parse
from wse_sim.errors import WseError
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.vm.arithmetic import COST, COST_MEMORY, operation_table
from wse_sim.fabric.vm.build import priced_code
from wse_sim.fabric.vm.opcodes import VECTOR_OPS
from wse_sim.hardware import load_wafer

_WORD = re.compile(r"@?[A-Za-z_]\w*")
_IMPORT = re.compile(r"""(?:const|var)\s+(\w+)\s*=\s*@import_module\(\s*"([^"]+)\"""")
_MEMBER = re.compile(r"([A-Za-z_]\w*)\.(\w*)$")
MOST_FILES, MOST_BYTES = 400, 20_000_000
QUICK_S = 1.0


@dataclasses.dataclass(frozen=True)
class Problem:
    """Error at a position of a file: line and column from 0, and the number of characters to mark."""

    line: int
    column: int
    length: int
    text: str


@dataclasses.dataclass(frozen=True)
class Definition:
    """Position in a file, with line and column from 0."""

    path: Path
    line: int
    column: int


@dataclasses.dataclass(frozen=True)
class Build:
    """Compiled program with the name of its command file."""

    commands: str
    program: CompiledProgram


class Language:
    """Language services; keeps the last compiled programs of each file."""

    def __init__(self) -> None:
        self._builds: dict[Path, list[Build]] = {}
        self._seconds: dict[Path, float] = {}

    # -- faults

    def is_quick(self, path: Path) -> bool:
        """Return whether the file's last compilation took at most :data:`QUICK_S` seconds, so that it can be
        compiled at every change."""
        return self._seconds.get(path, 0.0) <= QUICK_S

    def faults(self, path: Path, text: str, *, syntax_only: bool = False) -> list[Problem]:
        """Return the errors of a file with this text: its syntax error, or else the first error of each
        build."""
        try:
            parse(text, str(path))
        except CslError as fault:
            return [_problem(fault, text)]
        if syntax_only:
            return []
        began_s = time.perf_counter()
        found: dict[Problem, None] = {}
        builds = []
        for commands, arguments in _commands(path):
            try:
                builds.append(Build(commands.name, _compiled(path, text, commands.parent, arguments)))
            except CslError as fault:
                place = SOURCES.place(fault.at)
                if place is not None and Path(place[0].name).name == path.name:
                    found[_problem(fault, text)] = None
                elif place is not None:
                    found[
                        Problem(
                            0,
                            0,
                            1,
                            f"{commands.name}: {Path(place[0].name).name}:{place[1]}: {fault.sentence}",
                        )
                    ] = None
            except WseError as fault:
                found[Problem(0, 0, 1, f"{commands.name}: {fault}")] = None
        if builds:
            self._builds[path] = builds
        self._seconds[path] = time.perf_counter() - began_s
        return list(found)

    # -- hover

    def hover(self, path: Path, text: str, line: int, column: int) -> str:
        """Describe the word at a position (type and memory) and the cycles of its line; empty if nothing is
        known."""
        word = _word_at(text, line, column)
        builds = self._builds.get(path, [])
        said = []
        if word.startswith("@"):
            said.append(_builtin(word, builds))
        elif word:
            for build in builds:
                said += _symbol(word, path, build.program)
        said += [cost for build in builds[:2] if (cost := _line_cost(path, line + 1, build))]
        return "\n\n".join(dict.fromkeys(s for s in said if s))

    # -- definitions and completions

    def definition(self, path: Path, text: str, line: int, column: int) -> Definition | None:
        """Return the declaration of the name at a position: in the function above, in the file, or in an
        imported file; None if not found."""
        lines = text.split("\n")
        word = _word_at(text, line, column)
        if not word or word.startswith("@"):
            return None
        start = _start_of(lines[line], column)
        owner = re.search(r"([A-Za-z_]\w*)\.$", lines[line][:start])
        if owner is not None:
            other = _imported(path, text, owner[1])
            return None if other is None else _declared(other, other.read_text(encoding="utf-8"), word, None)
        return _declared(path, text, word, line)

    def completions(self, path: Path, text: str, line: int, column: int) -> list[tuple[str, str]]:
        """Return completions (name, kind) at a position: builtins after @, members after a module's name,
        libraries in an import, and otherwise names of the file."""
        before = text.split("\n")[line][:column]
        if re.search(r"@\w*$", before):
            return [(name, "builtin") for name in builtins()]
        if re.search(r'@import_module\(\s*"<[\w/]*$', before):
            return [(name, "library") for name in library_names()]
        member = _MEMBER.search(before)
        if member is not None:
            other = _imported(path, text, member[1])
            return [] if other is None else _names(other.read_text(encoding="utf-8"))
        return _names(text)


@cache
def builtins() -> tuple[str, ...]:
    """Return the names of all builtins, with their @, in order."""
    return tuple(sorted(name for name in RUN_TIME if not name.startswith("@__")))


def _problem(fault: CslError, text: str) -> Problem:
    line, column = max(0, fault.line - 1), max(0, fault.column - 1)
    lines = text.split("\n")
    word = _WORD.match(lines[line], column) if line < len(lines) else None
    return Problem(line, column, len(word[0]) if word else 1, fault.sentence)


def _commands(path: Path) -> list[tuple[Path, list[str]]]:
    """Return the ``cslc`` command lines in the command files next to a source, or else one folder above."""
    found = []
    for folder in (path.parent, path.parent.parent):
        for file in sorted(folder.glob("commands*.sh")):
            lines = file.read_text(encoding="utf-8", errors="replace").replace("\\\n", " ").splitlines()
            for line in lines:
                try:
                    words = shlex.split(line, comments=True)
                except ValueError:
                    continue
                if words[:1] == ["cslc"] and not any("$" in word for word in words):
                    found.append((file, words[1:]))
        if found:
            return found
    return found


def _compiled(path: Path, text: str, folder: Path, arguments: list[str]) -> CompiledProgram:
    """Compile a copy of a folder's sources, with `text` instead of the file."""
    layout, options = parse_cslc(arguments)
    options.pop("out", None)
    with scratch("editor") as place:
        size = 0
        for i, source in enumerate(sorted(folder.rglob("*.csl"))):
            size += source.stat().st_size
            if i >= MOST_FILES or size > MOST_BYTES:
                raise WseError(
                    f"the folder {folder.name} holds more than {MOST_FILES} sources or {MOST_BYTES:,} bytes; open a smaller one"
                )
            copy = place / source.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
        if path.is_relative_to(folder):
            (place / path.relative_to(folder)).write_text(text, encoding="utf-8")
        return compile_program(place / layout, **options)


def _start_of(line: str, column: int) -> int:
    return next((m.start() for m in _WORD.finditer(line) if m.start() <= column <= m.end()), column)


def _word_at(text: str, line: int, column: int) -> str:
    lines = text.split("\n")
    if not 0 <= line < len(lines):
        return ""
    return next((m[0] for m in _WORD.finditer(lines[line]) if m.start() <= column <= m.end()), "")


def _builtin(name: str, builds: list[Build]) -> str:
    if name not in builtins():
        return ""
    if name[1:] not in VECTOR_OPS:
        return f"`{name}`: builtin of CSL"
    arches = sorted({build.program.options.arch for build in builds}) or ["wse2", "wse3"]
    rows = []
    for arch in arches:
        row = operation_table(FabricConfig.from_wafer(load_wafer(arch)))[VECTOR_OPS.index(name[1:])]
        rows.append(
            f"{arch}: {row[COST] / 1000:g} cycles per element, {row[COST_MEMORY] / 1000:g} with two sources in memory"
        )
    return f"`{name}`: vector operation; {'; '.join(rows)}"


def _symbol(word: str, path: Path, program: CompiledProgram) -> list[str]:
    """Describe a variable or function in each class of a program; at most four classes."""
    found = []
    for k, cls in enumerate(program.image.classes):
        for symbol in cls.symbols:
            if word not in (symbol.name, symbol.name.rpartition("#")[2].partition(".")[2]):
                continue
            cores = int(np.count_nonzero(program.image.core_class == k))
            where = f"class {cls.name.rpartition(':')[2] or cls.name}, {cores} core{'s' * (cores != 1)}, {program.options.arch}"
            memory = f": {2 * symbol.words} bytes at word {symbol.address}" if symbol.kind == "var" else ""
            found.append(f"`{word}: {symbol.type}`{memory} ({where})")
    return found[:4]


def _line_cost(path: Path, line: int, build: Build) -> str:
    """Describe the cycles of a line's scalar code for one execution; empty if it has no code."""
    image = build.program.image
    rows = [
        i for i, (file, at, _, _) in enumerate(image.positions) if at == line and Path(file).name == path.name
    ]
    if not rows:
        return ""
    picked = np.isin(image.source, rows)
    code, late = priced_code(image, load_wafer(image.arch).scalar_costs())
    cycles = int((code.reshape(-1, 4)[picked, 0] >> 8).sum() + late[picked].sum())
    n = int(picked.sum())
    return f"{build.commands}, {image.arch}: {n} instruction{'s' * (n != 1)}, {cycles} cycles per execution, without the elements of vector operations"


def _imported(path: Path, text: str, name: str) -> Path | None:
    """Return the file that a module's name refers to; None for a library or a missing file."""
    for match in _IMPORT.finditer(text):
        if match[1] == name and not match[2].startswith("<"):
            for candidate in (path.parent / match[2], path.parent / f"{match[2]}.csl"):
                if candidate.is_file():
                    return candidate
    return None


def _names(text: str) -> list[tuple[str, str]]:
    """Return (name, kind) of the declarations at the top level of a file, found by a pattern if it cannot be
    parsed."""
    try:
        items = parse(text, "<editor>").items
    except CslError:
        return sorted(
            {
                (m[2], m[1])
                for m in re.finditer(
                    r"^(?:export |extern )?(const|var|param|fn|task)\s+(\w+)", text, re.MULTILINE
                )
            }
        )
    return sorted(
        {(item.name, item.kind) for item in items if isinstance(item, (tree.Declaration, tree.Function))}
    )


def _declared(path: Path, text: str, word: str, line: int | None) -> Definition | None:
    """Return the declaration of a name: the nearest one at or above `line`, parameters and loop variables
    included, or else the first one of the file."""
    names = rf"\b(?:const|var|param|fn|task)\s+({word})\b|[(,]\s*(?:comptime\s+)?({word})\s*:|\|[^|\n]*\b({word})\b[^|\n]*\|"
    found = []
    for i, shown in enumerate(text.split("\n")):
        for match in re.finditer(names, shown.partition("//")[0]):
            found.append((i, match.start(match.lastindex or 0)))
    if not found:
        return None
    above = [place for place in found if line is not None and place[0] <= line]
    i, column = above[-1] if above else found[0]
    return Definition(path, i, column)
