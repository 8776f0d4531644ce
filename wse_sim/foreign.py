"""Code of the user's that runs inside a command: factories, kernel files, placements, forward functions.

What goes wrong there is the user's to mend: one sentence with their file and line, exit status 2.  A program that
they end themselves (``sys.exit``) is a fault too: their exit status never becomes ours unseen.
"""

from __future__ import annotations

import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wse_sim.errors import WseError

_OURS = str(Path(__file__).resolve().parent)
# Folders whose files are nobody's to mend: the standard library and installed packages.
_INSTALLED = tuple(
    {
        str(Path(path).resolve())
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_path(name))
    }
    | {str(Path(sys.prefix).resolve() / "bin")}
)


def is_foreign(filename: str) -> bool:
    """Whether a file is neither ours nor installed: the user wrote it."""
    if filename.startswith("<"):
        return False
    path = str(Path(filename).resolve())
    # Our folders of kernels, configurations and suites are links: their files resolve to places beside the package.
    ours = (_OURS, *(str(entry.resolve()) for entry in Path(_OURS).iterdir() if entry.is_symlink()))
    return not path.startswith((*_INSTALLED, *ours))


def place_of(fault: BaseException) -> str:
    """``file:line`` of the user's code that raised `fault` or something that led to it; "" if none did."""
    seen: set[int] = set()
    pending: BaseException | None = fault
    while pending is not None and id(pending) not in seen:
        seen.add(id(pending))
        if isinstance(pending, SyntaxError) and pending.filename and is_foreign(pending.filename):
            return f"{pending.filename}:{pending.lineno}"
        for frame, line in reversed(list(traceback.walk_tb(pending.__traceback__))):
            if is_foreign(frame.f_code.co_filename):
                return f"{frame.f_code.co_filename}:{line}"
        pending = pending.__cause__ or pending.__context__
    return ""


def sentence(fault: BaseException, where: str) -> str:
    """What the user's code did, in one sentence with the remedy."""
    if isinstance(fault, SystemExit):
        return f"{where}: ends the program (exit {fault.code!r}); return a value instead"
    if isinstance(fault, SyntaxError):
        return f"{where}: does not parse ({fault.msg}); correct the syntax"
    text = " ".join(str(fault).split())
    text = f": {text[:200]}" if text else ""
    return f"{where}: raises {type(fault).__name__}{text}; correct it there"


@contextmanager
def guarded(what: str, kind: type[WseError]) -> Iterator[None]:
    """Turn whatever the user's code raises in this block into one sentence; `what` stands in for an unknown place.

    Raises
    ------
    WseError
        Of class `kind`, with file and line.
    """
    try:
        yield
    except (WseError, KeyboardInterrupt):
        raise
    except BaseException as fault:  # code of others may raise anything
        raise kind(sentence(fault, place_of(fault) or what)) from fault
