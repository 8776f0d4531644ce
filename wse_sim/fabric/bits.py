"""Compile flags of the stepped executors, and two machine instructions that numba does not offer."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba import types
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])


def _helpers_checksum() -> int:
    """Checksum of the files whose functions call each other."""
    folder = Path(__file__).parent
    names = ("bits.py", "core.py", "lower.py", "oracle.py", "program.py", "values.py")
    files = [folder / name for name in names]
    files += [file for kind in ("wavelet", "stream") for file in sorted(folder.glob(f"{kind}*.py"))]
    return zlib.crc32(b"".join(file.read_bytes() for file in files))


_CHECKSUM = _helpers_checksum()


def _compiled(fn: F, **flags: bool) -> F:
    njit: Any = numba.njit
    compiled = njit(cache=True, nogil=True, _nrt=False, **flags)(fn)
    # numba's cache notices changes of a function's own file only; add the files of its helpers to the stamp.
    cache_file: Any = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if hasattr(cache_file, "_source_stamp"):
        cache_file._source_stamp = (cache_file._source_stamp, _CHECKSUM)
    return compiled  # type: ignore[no-any-return]


def bare_kernel(fn: F) -> F:
    """As :func:`wse_sim.jit.kernel` for functions that allocate nothing.

    Without numba's reference counts: they are atomic operations on every array of every helper call, half of
    the time of a step.
    """
    return _compiled(fn, no_cfunc_wrapper=True)


def helper_kernel(fn: F) -> F:
    """As :func:`bare_kernel` for jitted callers alone: without the wrapper for Python, which takes long to compile."""
    return _compiled(fn, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def inlined_kernel(fn: F) -> F:
    """As :func:`helper_kernel`, always inlined: a call hands over five to seven words per array."""
    return _compiled(fn, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)


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
