"""Compile flags of the stepped executors, and two machine instructions that numba does not offer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numba import types
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])


def bare_kernel(fn: F) -> F:
    """As :func:`wse_sim.jit.kernel` for functions that allocate nothing.

    Without numba's reference counts: they are atomic operations on every array of every helper call, half of
    the time of a step.
    """
    return numba.njit(cache=True, nogil=True, _nrt=False)(fn)  # type: ignore[no-any-return]


def inlined_kernel(fn: F) -> F:
    """As :func:`bare_kernel`, always inlined: a call hands over five to seven words per array."""
    return numba.njit(cache=True, nogil=True, _nrt=False, forceinline=True)(fn)  # type: ignore[no-any-return]


@intrinsic
def trailing_zeros(typing_context: Any, word: Any) -> Any:
    """Index (int64) of the lowest set bit of a uint64; 64 for 0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], context.get_constant(types.boolean, 0))

    return types.int64(types.uint64), codegen


@intrinsic
def population(typing_context: Any, word: Any) -> Any:
    """Number (int64) of set bits of a uint64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.uint64), codegen
