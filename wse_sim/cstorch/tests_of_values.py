"""Finds tests of values that do not determine the graph: checks that only raise, and queries of libraries before they
read values.

A step knows no values while it is recorded.  A branch on one is refused, for the graph would depend on it.  Two kinds do not:

* ``if (variance < 0).any(): raise ...`` and ``assert mask.any()`` in modules that a script imports: one side only raises.
  The other side is recorded, and a warning says that the check is not made.  In the script itself, whose author can
  move the check into a closure, it is refused as every other branch;
* ``if is_compiling() or not mask.all()``: a library asks torch whether it is traced, and does not look at values then.
  While a step is recorded the answer is yes for libraries and the script; torch's own code, whose kernels must stay those of
  eager PyTorch, is told no.
"""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import FrameType

import torch

from wse_sim.cstorch import faults
from wse_sim.frontend import raising_checks


def passing(frame: FrameType | None) -> bool | None:
    """Return the truth value with which the test at work in a frame does not raise; None in the script itself, or if no
    side only raises.
    """
    if frame is None or frame.f_globals.get("__name__") == "__main__":
        return None
    found = raising_checks.passing(frame)
    if found is not None:
        line = faults.line_of(frame.f_code.co_filename, frame.f_lineno)
        faults.warn_once(
            ("check", line),
            f"{line}: this check reads a tensor, which a compiled program cannot do; it is skipped",
        )
    return found


@contextmanager
def believed() -> Iterator[None]:
    """Let torch answer libraries that they are traced."""
    names = "is_compiling", "is_exporting", "_is_compiling_flag"
    before = [getattr(torch.compiler, name) for name in names]
    asked: list[object] = []

    def compiling() -> bool:
        frame = sys._getframe(1)
        asked[:] = [_asking(frame)]
        return not faults.is_torch(frame.f_code.co_filename)

    def exporting() -> bool:
        # Whoever asks in one breath whether torch compiles and does not export has kernels for the compiler alone.
        frame = sys._getframe(1)
        return not faults.is_torch(frame.f_code.co_filename) and asked == [_asking(frame)]

    for name, value in zip(names, (compiling, exporting, True), strict=True):
        setattr(torch.compiler, name, value)
    try:
        yield
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(torch.compiler, name, value)


def _asking(frame: FrameType) -> tuple[int, int]:
    """Return the statement that asks, skipping a one-line wrapper function."""
    caller = frame.f_back or frame
    found = [node for node in _tests(caller.f_code.co_filename) if node[0] <= caller.f_lineno <= node[1]]
    first = max(found)[0] if found else caller.f_lineno
    return id(caller), first


@lru_cache(maxsize=64)
def _tests(path: str) -> tuple[tuple[int, int], ...]:
    """Return the first and last lines of the tests of a file."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return ()
    tests = [n.test for n in ast.walk(tree) if isinstance(n, ast.If | ast.IfExp | ast.While)]
    return tuple((test.lineno, test.end_lineno or test.lineno) for test in tests)
