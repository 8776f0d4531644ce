"""Error messages of CSL programs: file, line, column, the source line, and one sentence.

A position (`at`) is one integer for the whole process: the offset in a file plus the base of that file.
"""

from __future__ import annotations

import bisect
import sys
from dataclasses import dataclass, field
from functools import cached_property

from wse_sim.errors import WseError

NOWHERE = -1
MOST_SHOWN = 200
"""Number of characters of a long source line that are shown around a position."""


@dataclass
class Source:
    """Text of one file, with the position of its first character."""

    name: str
    text: str
    base: int = 0

    @cached_property
    def starts(self) -> list[int]:
        """Offset of the first character of every line."""
        found = [0]
        for i, c in enumerate(self.text):
            if c == "\n":
                found.append(i + 1)
        return found


@dataclass
class Sources:
    """Files that this process has read, in the order of reading."""

    files: list[Source] = field(default_factory=list)
    bases: list[int] = field(default_factory=list)
    end: int = 0

    def add(self, name: str, text: str) -> Source:
        """Add a file that was read, and return it with its base."""
        source = Source(name, text, self.end)
        self.files.append(source)
        self.bases.append(self.end)
        self.end += len(text) + 1
        return source

    def place(self, at: int) -> tuple[Source, int, int] | None:
        """Return source, line and column (both from 1) of a position, or None."""
        if at < 0 or not self.files:
            return None
        source = self.files[bisect.bisect_right(self.bases, at) - 1]
        offset = at - source.base
        line = bisect.bisect_right(source.starts, offset)
        return source, line, offset - source.starts[line - 1] + 1


SOURCES = Sources()


class CslError(WseError):
    """Error of a CSL program; the message begins with `file:line:column:`."""

    keeps_lines = True  # the source line and the caret have their own lines

    def __init__(self, at: int, message: str) -> None:
        self.at = at
        self.sentence = message
        super().__init__(f"{where(at)}: {message}{quote(at)}")

    @property
    def line(self) -> int:
        """Line of the error, counted from 1; 0 if unknown."""
        place = SOURCES.place(self.at)
        return place[1] if place else 0

    @property
    def column(self) -> int:
        """Column of the error, counted from 1; 0 if unknown."""
        place = SOURCES.place(self.at)
        return place[2] if place else 0


def where(at: int) -> str:
    """Return `file:line:column` of a position."""
    place = SOURCES.place(at)
    return f"{place[0].name}:{place[1]}:{place[2]}" if place else "<program>"


def quote(at: int) -> str:
    """Return the source line of a position with a caret under the column, each on its own line; empty for a
    blank line."""
    place = SOURCES.place(at)
    if place is None:
        return ""
    source, line, column = place
    begin = source.starts[line - 1]
    return pointed(source.text[begin : begin + column + MOST_SHOWN].split("\n", 1)[0], column)


def pointed(text: str, column: int) -> str:
    """Return a source line with a caret under a column (from 1), in the form of :func:`quote`; a long line is
    cut around the column."""
    begin = max(0, column - MOST_SHOWN // 2)
    text, column = text[begin : begin + MOST_SHOWN], min(column, MOST_SHOWN // 2)
    if not text.strip():
        return ""
    lead = "".join("\t" if c == "\t" else " " for c in text[: column - 1])
    return f"\n    {text}\n    {lead}^"


def warn(at: int, message: str) -> None:
    """Print a warning with its position to standard error."""
    print(f"{where(at)}: warning: {message}", file=sys.stderr)
