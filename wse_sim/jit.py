"""The one alias of numba: compile flags of every kernel change here, and what numba lacks stands here.

``NUMBA_DISABLE_JIT=1`` and ``fn.py_func`` run the same code as plain Python, for a debugger.

Machine code is kept on disk.  A stored function is valid while its own file **and** the files that this file imports
from the package, directly or not, are as they were: numba itself looks at the own file only, and would keep on
running the old body of a helper that was inlined from another file.
"""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba import types
from numba.core.dispatcher import Dispatcher
from numba.extending import lower_builtin, type_callable

F = TypeVar("F", bound=Callable[..., Any])

_PACKAGE = Path(__file__).parent
_IMPORT = re.compile(r"^\s*from (wse_sim[\w.]*) import ([\w, ]+|\([^)]*\))", re.MULTILINE)


def kernel(fn: F) -> F:
    """Compile `fn` to nogil machine code, cached on disk; arrays and scalars only."""
    return _compiled(fn)


def bare_kernel(fn: F) -> F:
    """As :func:`kernel` for functions that allocate nothing.

    Without numba's reference counts: they are atomic operations on every array of every helper call, half of
    the time of a step of the fabric.
    """
    return _compiled(fn, _nrt=False, no_cfunc_wrapper=True)


def helper_kernel(fn: F) -> F:
    """As :func:`bare_kernel` for jitted callers alone: without the wrapper for Python, which takes long to compile."""
    return _compiled(fn, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def inlined_kernel(fn: F) -> F:
    """As :func:`helper_kernel`, always inlined: numba passes an array as 5 to 7 arguments, so calls are dear."""
    return _compiled(fn, _nrt=False, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def _compiled(fn: F, **flags: bool) -> F:
    njit: Any = numba.njit
    compiled: Any = njit(cache=True, nogil=True, **flags)(fn)
    if isinstance(compiled, Dispatcher):  # not so under NUMBA_DISABLE_JIT=1
        # numba offers no way to add files to the stamp of a stored function: this is the one place that sets it.
        stored: Any = getattr(compiled, "_cache")._cache_file  # noqa: B009
        stored._source_stamp = (stored._source_stamp, sources_stamp(fn.__code__.co_filename))
    return compiled  # type: ignore[no-any-return]


@functools.cache
def sources_stamp(file: str) -> int:
    """Checksum of `file` and of the files that it imports from this package, directly or through others."""
    return zlib.crc32(b"".join(path.read_bytes() for path in sorted(_sources(Path(file)))))


def _sources(file: Path) -> set[Path]:
    seen: set[Path] = set()
    open_files = [file]
    while open_files:
        path = open_files.pop()
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        for parent, names in _IMPORT.findall(path.read_text()):
            folder = _PACKAGE.joinpath(*parent.split(".")[1:])
            open_files.append(folder.with_suffix(".py"))
            open_files += [folder / f"{name}.py" for name in re.findall(r"(\w+)(?: as \w+)?", names)]
    return seen


def trailing_zeros(word: int) -> int:
    """Index (int64) of the lowest set bit of a uint64; 64 for 0.  One machine instruction in jitted code."""
    bits = int(word)
    return (bits & -bits).bit_length() - 1 if bits else 64


def population(word: int) -> int:
    """Number (int64) of set bits of a uint64.  One machine instruction in jitted code."""
    return int(word).bit_count()


@type_callable(trailing_zeros)
@type_callable(population)
def _type_of_bits(context: object) -> Any:
    return lambda word: types.int64 if word == types.uint64 else None


@lower_builtin(trailing_zeros, types.uint64)
def _lower_trailing_zeros(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return builder.cttz(args[0], context.get_constant(types.boolean, 0))


@lower_builtin(population, types.uint64)
def _lower_population(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return builder.ctpop(args[0])
