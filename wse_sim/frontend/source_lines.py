"""Lines of the user's code for the operators of a capture.

Torch records for an operator only the lines of functions that are called forward(), so a fault in a helper function
would be reported at the line that calls it. During a capture, the lines of helper functions are recorded too.
"""

from __future__ import annotations

import contextlib
import re
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

from torch.fx import Node
from torch.fx.proxy import TracerBase

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_LIBRARY = sysconfig.get_paths()["stdlib"]
_HERE = str(Path(__file__).parent)


@contextlib.contextmanager
def helpers_recorded() -> Iterator[None]:
    """Let torch record the lines of the user's helper functions within the block."""
    before = TracerBase._filter_traceback_frames
    TracerBase._filter_traceback_frames = _of_user  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        TracerBase._filter_traceback_frames = before  # type: ignore[method-assign]


def _of_user(_: TracerBase, stack: traceback.StackSummary) -> traceback.StackSummary:
    """Return the frames of functions called forward(), and those of the user's functions that they call."""
    forwards = [place for place, frame in enumerate(stack) if frame.name == "forward"]
    packages = {_package(stack[place].filename) for place in forwards}
    return traceback.StackSummary.from_list(
        [
            frame
            for place, frame in enumerate(stack)
            if frame.name == "forward"
            or (forwards and place > forwards[0] and _is_helper(frame.filename, packages))
        ]
    )


def _is_helper(file: str, packages: set[str]) -> bool:
    """Return whether a file is the user's or of an installed package that has a forward() of the model."""
    if file.startswith((_HERE, "<")) or "/torch/" in file:
        return False
    package = _package(file)
    return package in packages if package else not file.startswith(_LIBRARY)


def _package(file: str) -> str:
    """Return the installed package of a file; "" if it is of none."""
    return file.rpartition("/site-packages/")[2].partition("/")[0] if "/site-packages/" in file else ""


def _is_ours(file: str) -> bool:
    """Return whether a file is one of the frontend's that replace functions of torch during a capture."""
    return file.endswith(
        tuple(
            f"wse_sim/frontend/{name}.py"
            for name in ("branch_folding", "expansions", "alignments", "raising_checks")
        )
    )


def user_line(stack: str) -> str:
    """Return ``file:line: code`` of the innermost frame outside torch in a printed stack, or ""."""
    lines = stack.splitlines()
    for i in range(len(lines) - 1, -1, -1):
        match = _FRAME.search(lines[i])
        if match and "/torch/" not in match[1] and not match[1].startswith("<") and not _is_ours(match[1]):
            code = lines[i + 1].strip() if i + 1 < len(lines) and not _FRAME.search(lines[i + 1]) else ""
            return f"{match[1]}:{match[2]}" + (f": {code}" if code else "")
    return ""


def place_of(node: Node) -> str:
    """Return the operator of a node and the line of the user that calls it."""
    line = user_line(node.meta.get("stack_trace") or node.stack_trace or "")
    target = str(node.target)
    name = target.removeprefix("aten.").partition(".")[0] + "()" if target.startswith("aten.") else "a tensor"
    return f"{name} at {line}" if line else str(node.name)
