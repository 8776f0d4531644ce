"""Finds checks in Python code: tests with a side that only raises, such as ``if x.isnan().any(): raise ValueError``.

The result of a check does not determine the work of a program, so its value can be assumed.
"""

from __future__ import annotations

import ast
import dis
import linecache
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

Check = ast.If | ast.Assert
# Functions that give one truth value, if they read one.
TESTS = (
    *(torch.Tensor.__bool__, torch.Tensor.item, torch.equal, torch.Tensor.equal),
    *(torch.allclose, torch.Tensor.allclose, torch.is_nonzero, torch.Tensor.is_nonzero),
)
_HERE = str(Path(__file__).parent)


class PassedChecks(TorchFunctionMode):
    """Lets checks that only raise pass, where tensors have no values and no program is captured."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        answer = passed() if func in TESTS else None
        return func(*args, **(kwargs or {})) if answer is None else answer


def passed() -> bool | None:
    """Return the truth value with which a check in the user's line does not raise; None if it is no such check."""
    frame = _users_frame()
    return None if frame is None else passing(frame)


def current_place() -> tuple[str, int]:
    """Return the file and the number of the current line of the user; ("", 0) if there is none."""
    frame = _users_frame()
    return ("", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _users_frame() -> FrameType | None:
    """Return the innermost frame outside torch and the frontend."""
    frames = (frame for frame, _ in traceback.walk_stack(None))
    return next((frame for frame in frames if _is_users(frame.f_code.co_filename)), None)


def current_line() -> str:
    """Return the current line of the user: the innermost frame outside torch and the frontend."""
    for frame in reversed(traceback.extract_stack()):
        if _is_users(frame.filename):
            return f"{frame.filename}:{frame.lineno}: {frame.line or ''}"
    return ""


def _is_users(filename: str) -> bool:
    """Return whether a file is neither of torch nor of the frontend."""
    return not filename.startswith((_HERE, "<")) and "/torch/" not in filename


def passing(frame: FrameType) -> bool | None:
    """Return the truth value of the expression at work in a frame with which a check does not raise.

    None if the expression is not a part of a check. A check inside ``try`` with ``except`` does not count, because
    the program may continue after it raised.
    """
    return _passing(frame.f_code, frame.f_lasti)


@lru_cache(maxsize=256)
def _checks(path: str) -> tuple[Check, ...]:
    """Return the checks of a file."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return ()
    return tuple(_found(tree))


def _found(node: ast.AST) -> Iterator[Check]:
    if isinstance(node, ast.Assert) or (
        isinstance(node, ast.If) and _raises(node.body) != _raises(node.orelse)
    ):
        yield node
    caught = node.body if isinstance(node, ast.Try) and node.handlers else []
    for child in ast.iter_child_nodes(node):
        if child not in caught:
            yield from _found(child)


def _raises(body: list[ast.stmt]) -> bool:
    """Return whether statements end in ``raise`` and otherwise only assign names."""
    return (
        bool(body) and isinstance(body[-1], ast.Raise) and all(isinstance(s, ast.Assign) for s in body[:-1])
    )


@lru_cache(maxsize=1024)
def _passing(code: CodeType, place: int) -> bool | None:
    found = list(dis.get_instructions(code))
    at = next((i for i, instruction in enumerate(found) if instruction.offset == place), None)
    positions = found[at].positions if at is not None else None
    if at is None or at + 1 >= len(found) or positions is None or positions.lineno is None:
        return None
    line = positions.lineno
    holding = [
        node
        for node in _checks(code.co_filename)
        if node.lineno <= line <= (node.test.end_lineno or node.lineno)
    ]
    if not holding:
        return None
    check = max(holding, key=lambda node: (node.lineno, node.col_offset))
    if found[at].opname.startswith(("POP_JUMP", "JUMP_IF")):
        return _of_jump(check, found[at], found)
    return _of_part(check, found[at])


def _of_jump(check: Check, jump: dis.Instruction, found: list[dis.Instruction]) -> bool | None:
    """Return the truth value with which a jump leaves a check without raising."""
    target = next((i for i in found if i.offset == jump.argval), None)
    if target is None:
        return None
    there, here = _side(check, target), _side(check, found[found.index(jump) + 1])
    return None if there == here else (there < here) == ("TRUE" in jump.opname)


def _side(check: Check, to: dis.Instruction) -> int:
    """Return where an instruction leads: 0 out of the check, 1 to another part of its test, 2 to the raising
    branch."""
    if to.opname == "LOAD_ASSERTION_ERROR":
        return 2
    line = to.positions.lineno if to.positions is not None else None
    if line is None:
        return 0
    if isinstance(check, ast.If):
        suite = check.body if _raises(check.body) else check.orelse
        if suite[0].lineno <= line <= (suite[-1].end_lineno or line):
            return 2
    return 1 if check.lineno <= line <= (check.test.end_lineno or line) else 0


def _of_part(check: Check, read: dis.Instruction) -> bool | None:
    """Return the value of a part of a test with which the check does not raise.

    Between the part and the whole test there may be ``not``, ``and``, ``or`` and ``bool()``.
    """
    wanted: bool = isinstance(check, ast.Assert) or not _raises(check.body)
    part: ast.expr = check.test
    while not _is_at(part, read):
        match part:
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                part, wanted = inner, not wanted
            case ast.BoolOp(values=values):
                inside = [value for value in values if _spans(value, read)]
                if not inside:
                    return None
                part = inside[0]
            case ast.Call(func=ast.Name(id="bool"), args=[inner]):
                part = inner
            case _:
                return None
    return wanted


def _is_at(part: ast.expr, read: dis.Instruction) -> bool:
    """Return whether an instruction computes an expression; the positions of methods' calls begin at their names."""
    at = read.positions
    ends = at is not None and (part.end_lineno, part.end_col_offset) == (at.end_lineno, at.end_col_offset)
    starts = at is not None and (part.lineno, part.col_offset) == (at.lineno, at.col_offset)
    return ends and (starts or isinstance(part, ast.Call))


def _spans(part: ast.expr, read: dis.Instruction) -> bool:
    at = read.positions
    if at is None or at.lineno is None or at.end_lineno is None:
        return False
    starts = (part.lineno, part.col_offset) <= (at.lineno, at.col_offset or 0)
    return starts and (at.end_lineno, at.end_col_offset or 0) <= (
        part.end_lineno or 0,
        part.end_col_offset or 0,
    )
