"""Filters of parameters by name, and other small helpers."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable

import torch

from wse_sim.cstorch import faults

FilterCallable = Callable[[str, torch.nn.Parameter], bool]


def convert_glob_to_regex(pattern: str) -> re.Pattern[str] | None:
    """Return the regular expression of a name pattern; ``re:`` in front marks one that is a regular expression already.

    Raises:
        ProgramError: the regular expression is malformed.
    """
    if pattern is None:
        return None
    try:
        return re.compile(pattern[3:] if pattern.startswith("re:") else fnmatch.translate(pattern))
    except re.error as fault:
        raise faults.program_error(
            f"the name pattern '{pattern}' is not a regular expression ({fault})"
        ) from None


def make_param_filter(patterns: str | Iterable[str] | FilterCallable) -> FilterCallable:
    """Return a function of name and parameter that is true if one of the patterns matches."""
    if callable(patterns):
        return patterns
    wanted = [patterns] if isinstance(patterns, str) else list(patterns)
    compiled = [convert_glob_to_regex(p) for p in wanted]

    def fits(name: str, _parameter: object = None) -> bool:
        return any(c is not None and c.search(name) is not None for c in compiled)

    return fits


def is_ltc_mlir_mode_enabled() -> bool:
    """Return True: older releases ask whether the later tracer is in use."""
    return True
