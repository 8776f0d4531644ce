"""Pictures show names as they are: a dollar sign of a model's name begins no formula."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def plain_text(draw: Callable[P, R]) -> Callable[P, R]:
    """A function that draws, so that matplotlib reads no text as mathematics (which fails on what is none)."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> R:
        import matplotlib as mpl

        with mpl.rc_context({"text.parse_math": False}):
            return draw(*args, **kwargs)

    return drawn
