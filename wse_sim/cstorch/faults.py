"""Errors for programs that a compiled machine cannot run, with the user's line, the reason and the remedy.

Every fault is one :class:`ProgramError`.  It is also a ``RuntimeError``, so ``except RuntimeError`` of a
script catches it as it does on the machine.
"""

from __future__ import annotations

import contextlib
import linecache
import logging
import os
import sys
from pathlib import Path
from types import FrameType

from wse_sim.cstorch.stores import of_run
from wse_sim.errors import WseError
from wse_sim.user_code import owner_of

LOG = logging.getLogger("wse_sim.cstorch")
_TORCH = f"torch{os.sep}"


class ProgramError(WseError, RuntimeError):
    """A training script requests something that a compiled program cannot do (exit status 2)."""


class DoesNotFitError(WseError, RuntimeError):
    """The program was captured but does not fit the machine (exit status 1): the bottleneck, need, limit."""


def is_torch(path: str) -> bool:
    """Return whether a file belongs to torch."""
    return path.rpartition(f"-packages{os.sep}")[2].startswith(_TORCH)


def _kind(path: str) -> str:
    """Return the owner of a file: user, library, or machinery (torch, this project, the standard library)."""
    owner = owner_of(path)
    if owner == "installed":
        return "machinery" if is_torch(path) else "library"
    return "user" if owner == "user" else "machinery"


def is_user_call(frame: FrameType | None) -> bool:
    """Return whether a frame is in the user's code or a library, but not in torch, the standard library or
    this project."""
    return frame is not None and _kind(frame.f_code.co_filename) != "machinery"


def user_frame(frame: FrameType | None = None) -> FrameType | None:
    """Return the innermost frame of the user's files, or of a library if there is none."""
    frame = frame or sys._getframe(1)
    library = None
    while frame is not None:
        kind = _kind(frame.f_code.co_filename)
        if kind == "user":
            return frame
        if kind == "library" and library is None:
            library = frame
        frame = frame.f_back  # type: ignore[assignment]
    return library


def where_of(frame: FrameType | None) -> str:
    """``file.py:14: source of the line`` of a frame."""
    if frame is None:
        return ""
    return line_of(frame.f_code.co_filename, frame.f_lineno)


def line_of(path: str, number: int) -> str:
    """Return ``file.py:14: source of the line``; paths below the working folder are relative to it."""
    shown = Path(path)
    with contextlib.suppress(ValueError, OSError):
        shown = shown.resolve().relative_to(Path.cwd())
    source = linecache.getline(path, number).strip().rstrip(":")
    return f"{shown}:{number}: {source}" if source else f"{shown}:{number}"


def program_error(text: str, frame: FrameType | None = None, where: str | None = None) -> ProgramError:
    """Return an error whose message begins with the user's line.

    Parameters
    ----------
    text
        Reason and remedy: "a tensor's contents cannot be read ...; pass it to ...".
    frame
        Frame from which the search for the user's line starts; default: the caller.
    where
        Replaces the line; "" for none.
    """
    if where is None:
        where = where_of(user_frame(frame or sys._getframe(1)))
    return ProgramError(f"{where}: {text}" if where else text)


_said: set[object] = of_run(set())


def note(text: str) -> None:
    """Write a line of progress to the logger ``wse_sim.cstorch``."""
    LOG.info(text)


def warn_once(key: object, text: str) -> None:
    """Log a warning once per process and `key`."""
    if key not in _said:
        _said.add(key)
        LOG.warning(text)


strict = False  # whether a suspicion is a fault


def suspect(key: object, text: str) -> None:
    """Warn once about a program that may not behave as written; with ``--strict`` this is an error.

    Raises
    ------
    ProgramError
        Under ``--strict``.
    """
    if strict:
        raise ProgramError(text)
    warn_once(key, text)


READ = (
    "a tensor's contents cannot be read outside a step closure; "
    "pass it to a function under @cstorch.step_closure"
)
BRANCH = (
    "control flow depends on the values of a tensor (aten::_local_scalar_dense), which a compiled program "
    "does not know; compute both sides and choose with torch.where, or leave out a check that only raises"
)
SHAPE = "the shape of a result depends on values; use fixed shapes, torch.where with a mask"
OUTSIDE = "the compiled model is called outside a traced step; put it into a function under @cstorch.trace"
