"""Obstacles between a model and the machine: the first one is raised, or all are collected
(:mod:`wse_sim.frontend.doctor`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from wse_sim.errors import ModelError
from wse_sim.frontend.faults import REASONS


@dataclass
class Obstacle:
    """One obstacle: the user's line, the reason, the remedy, and the fraction of the FLOPs that it affects.

    `kind` is "capture" (Python code that a compiled program cannot have), "operator" (no kernel), "gradient"
    (the family has no gradient rule), "model" (the model as a whole) or "slow". `node` is the operator or
    kernel concerned; `products` is the number of matrix products before it in the program. The fraction is of
    the forward FLOPs, for "slow" of the cycles; it is None if it is not known.
    """

    line: str
    reason: str
    remedy: str
    kind: str
    node: str = ""
    products: int | None = None
    fraction: float | None = None

    @property
    def refuses(self) -> bool:
        """Whether the model is rejected because of it."""
        return self.kind != "slow"


DECIDED = "values: one run with the example arguments"
"""How the note begins of a model whose work depends on values (:mod:`wse_sim.frontend.example_values`)."""

_found: ContextVar[list[Obstacle] | None] = ContextVar("obstacles", default=None)


_guesses: ContextVar[bool] = ContextVar("guesses", default=False)


@contextmanager
def collecting(*, guess: bool = False) -> Iterator[list[Obstacle]]:
    """Collect obstacles within the block instead of raising the first, and yield the list of them.

    With `guess`, the capture also continues after errors of torch, with a guess instead of the result
    (:mod:`wse_sim.frontend.substitutes`).
    """
    found: list[Obstacle] = []
    mark, guessing = _found.set(found), _guesses.set(guess)
    try:
        yield found
    finally:
        _found.reset(mark)
        _guesses.reset(guessing)


def guesses() -> bool:
    """Return whether the capture continues after errors of torch."""
    return _guesses.get()


def is_collecting() -> bool:
    """Return whether obstacles are collected."""
    return _found.get() is not None


def met(fault: ModelError, kind: str, line: str = "", *, node: str = "", products: int | None = None) -> None:
    """Raise a fault, or record it as an obstacle while obstacles are collected.

    The message of a raised fault begins with the user's line `line`, if that is known.

    Raises
    ------
    ModelError
        The fault, unless obstacles are collected.
    """
    found = _found.get()
    if found is None:
        if line and line not in str(fault):
            raise type(fault)(f"{line}: {fault}") from fault
        raise fault
    obstacle = obstacle_of(fault, kind, line)
    obstacle.node, obstacle.products = node, products
    if all((o.line, o.reason) != (obstacle.line, obstacle.reason) for o in found):
        found.append(obstacle)


def obstacle_of(fault: ModelError, kind: str, line: str = "") -> Obstacle:
    """Return an obstacle from an error message, split into place, reason and remedy."""
    text = " ".join(str(fault).split())
    said, _, remedy = text.rpartition("; ")
    said, remedy = (said, remedy) if said else (text, "")
    place = re.match(rf"(?P<place>\S+\.py:\d+.*?): (?P<reason>(?:{_REASONS}).*)", said) or re.match(
        r"(?P<place>\S+\.py:\d+(?:: [^:]*?[^:])?): (?P<reason>.*)", said
    )
    if place and (not line or said.startswith(line)):
        line, said = place["place"], place["reason"]
    return Obstacle(line, said, remedy, kind)


_REASONS = "|".join(map(re.escape, REASONS))  # a line of code may contain colons itself
