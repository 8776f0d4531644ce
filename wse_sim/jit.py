"""The one alias of numba: compile flags of every kernel change here.

``NUMBA_DISABLE_JIT=1`` and ``fn.py_func`` run the same code as plain Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def kernel(fn: F) -> F:
    """Compile `fn` to nogil machine code, cached on disk; arrays and scalars only."""
    return cast(F, numba.njit(cache=True, nogil=True)(fn))


def fast_kernel(fn: F) -> F:
    """As :func:`kernel`, with reassociation of floating point (timing arrays, never numerics)."""
    return cast(F, numba.njit(cache=True, nogil=True, fastmath=True)(fn))
