"""Mapping between code rows and source lines."""

from __future__ import annotations

import dataclasses
from pathlib import Path, PurePath

import numpy as np
import numpy.typing as npt

from wse_sim.errors import WseError
from wse_sim.fabric.vm.image import Image
from wse_sim.fabric.vm.opcodes import Op

_COUNTS = (int(Op.ADDI_I64), int(Op.ADD_I64))
NEAR_LINES = 40
"""Maximum number of lines by which a breakpoint on a line without code moves down."""


class DebugError(WseError):
    """Error of a debugger command."""


@dataclasses.dataclass(frozen=True)
class SourceLine:
    """Source line with the code rows at which it begins."""

    file: str
    line: int
    rows: tuple[int, ...]


class LineTable:
    """Source lines of a program image."""

    def __init__(self, image: Image) -> None:
        self.image = image
        source = np.asarray(image.source)
        blank = ("", 0, 0, "")
        places = [image.positions[s] if 0 <= s < len(image.positions) else blank for s in source.tolist()]
        self.places = places
        begins = [i == 0 or _key(p) != _key(places[i - 1]) for i, p in enumerate(places)]
        self.starts: npt.NDArray[np.int64] = np.array(
            [i for i, p in enumerate(places) if begins[i] and p[0] and not p[0].startswith("<")], np.int64
        )
        """Rows that begin a line of the program, libraries left out."""
        self.files = sorted({p[0] for p in places if p[0] and not p[0].startswith("<")})

    def file(self, name: str) -> str:
        """Return the source file that a name, or the end of a path, identifies.

        Raises
        ------
        DebugError
            If no source with code matches.
        """
        wanted = PurePath(name).parts
        for file in self.files:
            if file == name:
                return file
        found = [file for file in self.files if PurePath(file).parts[-len(wanted) :] == wanted]
        found = found or [file for file in self.files if Path(file).resolve() == Path(name).resolve()]
        if not found:
            raise DebugError(
                f"no code comes from '{name}'; the sources with code are {', '.join(self.files)}"
            )
        return found[0]

    def line(self, name: str, line: int) -> SourceLine:
        """Return the code of a line, or of the next line below it that has code.

        Raises
        ------
        DebugError
            If the next :data:`NEAR_LINES` lines have no code.
        """
        file = self.file(name)
        lines = [self.places[row][1] for row in self.starts.tolist() if self.places[row][0] == file]
        below = [k for k in lines if line <= k <= line + NEAR_LINES]
        if not below:
            known = f"{min(lines)} to {max(lines)}" if lines else "none"
            raise DebugError(f"line {line} of {file} has no code below it; lines with code are {known}")
        at = min(below)
        rows = [r for r in self.starts.tolist() if self.places[r][:2] == (file, at)]
        return SourceLine(file, at, tuple(r for r in rows if not self._is_count(r, rows)))

    def _is_count(self, row: int, rows: list[int]) -> bool:
        """Return whether a row only counts a loop's iterations and an earlier row belongs to the same
        position."""
        is_known = any(r < row and self.places[r] == self.places[row] for r in rows)
        return is_known and int(self.image.code[row, 0]) in _COUNTS

    def function(self, name: str) -> SourceLine:
        """Return the first line of a function or task, with the first row of each of its copies.

        Raises
        ------
        DebugError
            If no code has this name.
        """
        rows = [r for r in range(len(self.places)) if self.places[r][3] == name and self._enters(r)]
        if not rows:
            known = ", ".join(sorted({p[3] for p in self.places if p[3] and not p[0].startswith("<")}))
            raise DebugError(f"no function or task '{name}' has code; there are {known}")
        return SourceLine(self.places[rows[0]][0], self.places[rows[0]][1], tuple(rows))

    def _enters(self, row: int) -> bool:
        """Return whether a row is the first of its function; rows that only forward the host's arguments do
        not count."""
        name = self.places[row][3]
        if row and self.places[row - 1][3] == name and int(self.image.code[row - 1, 0]) != int(Op.RET):
            return False
        end = row
        while end < len(self.places) and self.places[end][3] == name and self.places[end] == self.places[row]:
            op, target = int(self.image.code[end, 0]), int(self.image.code[end, 3])
            if op == int(Op.CALL) and self.places[target][3] == name:
                return False
            end += 1
        return True

    def where(self, row: int) -> tuple[str, int, str]:
        """Return file, line and function of a row; empty and 0 if there is no such row."""
        if not 0 <= row < len(self.places):
            return "", 0, ""
        file, line, _, function = self.places[row]
        return file, line, function

    def source(self, row: int) -> list[str]:
        """Return the source lines of a row's file; empty if it cannot be read."""
        try:
            return Path(self.where(row)[0]).read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            return []

    def text(self, row: int) -> str:
        """Return the source line of a row; empty if its file cannot be read."""
        lines, line = self.source(row), self.where(row)[1]
        return lines[line - 1] if 0 < line <= len(lines) else ""


def _key(place: tuple[str, int, int, str]) -> tuple[str, int, str]:
    return place[0], place[1], place[3]
