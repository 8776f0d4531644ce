"""Counts work for tests: a clock measures the machine, a count measures the program."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def python_calls(function: Callable[[], Any]) -> tuple[int, Any]:
    """Return (Python functions entered while `function` ran, its answer): the same on every machine.

    Work inside numpy, numba or the plotting library is not counted, so the count does not grow with the size of
    arrays: it tells a loop over cores or tilings from one call for all of them.
    """
    count = 0

    def enter(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(enter)
    try:
        answer = function()
    finally:
        sys.setprofile(before)
    return count, answer
