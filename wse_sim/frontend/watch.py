"""Watching a capture: what torch prints, what forward() changes on the side, the user's lines."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from wse_sim.errors import ModelError

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without torch's own printing of half-made graphs: the sentence says it."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)


def plain_state(module: torch.nn.Module) -> dict[str, Any]:
    """Numbers, texts and lengths of containers that a module's attributes hold."""
    state: dict[str, Any] = {}
    for path, part in module.named_modules():
        for key, value in vars(part).items():
            name = f"{path}.{key}".lstrip(".")
            if key.startswith("_") or key == "training":
                continue
            if isinstance(value, (bool, int, float, str)):
                state[name] = value
            elif isinstance(value, (list, dict, set)):
                state[name] = len(value)
    return state


def reject_side_effects(before: dict[str, Any], after: dict[str, Any]) -> None:
    changed = [name for name, value in after.items() if before.get(name, value) != value]
    if changed:
        raise ModelError(
            f"the forward pass changes the attribute {changed[0]} ({before[changed[0]]} before, {after[changed[0]]} "
            "after), which a compiled step would do only once; keep counts in a buffer or outside the model"
        )


def reject_assigned_attributes(caught: list[warnings.WarningMessage]) -> None:
    for item in caught:
        match = re.search(r"attributes? (.+?) (?:was|were) assigned during export", str(item.message))
        # torch's recurrent layers list their own parameters again when the export swaps them.
        names = [name for name in match[1].split(", ") if "_flat_weights[" not in name] if match else []
        if names:
            raise ModelError(
                f"the forward pass assigns to {', '.join(names)}, which a compiled step cannot keep; "
                "register it with register_buffer and write in place, or return it"
            )


def user_line(stack: str) -> str:
    """``file:line: code`` of the innermost frame outside torch in a printed stack."""
    lines = stack.splitlines()
    for i in range(len(lines) - 1, -1, -1):
        match = _FRAME.search(lines[i])
        if match and "/torch/" not in match[1] and not match[1].startswith("<"):
            code = lines[i + 1].strip() if i + 1 < len(lines) and not _FRAME.search(lines[i + 1]) else ""
            return f"{match[1]}:{match[2]}" + (f": {code}" if code else "")
    return ""
