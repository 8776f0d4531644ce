"""The one alias of numba: compile flags of every kernel change here, and what numba lacks stands here.

``NUMBA_DISABLE_JIT=1`` and ``fn.py_func`` run the same code as plain Python, for a debugger.

Machine code is kept on disk.  A stored function is valid while its own file **and** the files that this file imports
from the package, directly or not, are as they were: numba itself looks at the own file only, and would keep on
running the old body of a helper that was inlined from another file.  What is stored for other sources is not even
unpickled, and what cannot be unpickled, because it names a class that has moved since, counts as not stored.
"""

from __future__ import annotations

import functools
import os
import pickle
import re
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.caching import IndexDataCacheFile
from numba.core.compiler import CompilerBase
from numba.core.dispatcher import Dispatcher
from numba.extending import lower_builtin, type_callable
from numba.np.arrayobj import make_array
from numpy.typing import NDArray

from wse_sim import compile_time
from wse_sim.jit_helpers import CallerCompiler, HelperCompiler, HelperStored

if TYPE_CHECKING:
    from llvmlite.ir import IRBuilder
    from llvmlite.ir import Value as IRValue
    from numba.core.base import BaseContext
    from numba.core.typing import BaseContext as TypingContext
    from numba.core.typing import Signature

F = TypeVar("F", bound=Callable[..., Any])

compile_time.watch()

_PACKAGE = Path(__file__).parent
_IMPORT = re.compile(r"^\s*from (wse_sim[\w.]*) import ([\w, ]+|\([^)]*\))", re.MULTILINE)


def kernel(fn: F) -> F:
    """Compile `fn` to nogil machine code, cached on disk; arrays and scalars only."""
    return _compiled(fn, no_cfunc_wrapper=True)


def bare_kernel(fn: F) -> F:
    """:func:`kernel` for functions that allocate nothing.

    It omits numba's reference counts, atomic operations on every array of every helper call that take half of
    the time of a fabric step.
    """
    return _compiled(fn, _nrt=False, no_cfunc_wrapper=True)


def helper_kernel(fn: F) -> F:
    """:func:`bare_kernel` for functions that only jitted code calls: without the Python wrapper, which takes
    long to compile."""
    return _compiled(fn, HelperCompiler, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def inlined_kernel(fn: F) -> F:
    """:func:`helper_kernel`, always inlined: numba passes an array as 5 to 7 arguments, which makes calls
    expensive."""
    flags = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return _compiled(fn, HelperCompiler, _nrt=False, **flags)


def _compiled(fn: F, compiler: type[CompilerBase] = CallerCompiler, **flags: bool) -> F:
    njit: Callable[..., Callable[[F], F]] = numba.njit
    try:
        compiled = njit(cache=True, nogil=True, pipeline_class=compiler, **flags)(fn)
    except (
        RuntimeError
    ):  # neither the package's folder nor the user's can be written: compiled again by each process
        return njit(nogil=True, pipeline_class=compiler, **flags)(fn)
    if isinstance(compiled, Dispatcher):  # not so under NUMBA_DISABLE_JIT=1
        # numba offers no way to add files to the stamp of a stored function: this is the one place that sets it.
        cache = getattr(compiled, "_cache")  # noqa: B009
        if compiler is HelperCompiler:
            cache._impl = HelperStored(fn)
        cache._cache_file = _Stored(
            cache._cache_path, cache._impl.filename_base, sources_stamp(fn.__code__.co_filename)
        )
    return compiled


class _Stored(IndexDataCacheFile):  # type: ignore[misc]
    """The machine code of one function on disk."""

    _UNREADABLE = (AttributeError, ImportError, EOFError, pickle.UnpicklingError)

    def __init__(self, folder: str, name: str, stamp: int) -> None:
        super().__init__(folder, name, stamp)
        self._version = (self._version, stamp)  # numba looks at the version before it unpickles the rest

    def load(self, key: object) -> Any:
        """Load the stored machine code of a signature; None if there is none or it cannot be read."""
        try:
            return super().load(key)
        except self._UNREADABLE:
            return None

    def save(self, key: object, data: object) -> None:
        """Store if there is room; an index that cannot be read is replaced."""
        try:
            super().save(key, data)
        except self._UNREADABLE:
            self.flush()
            super().save(key, data)
        except OSError:  # a full disk, a limit on files: compiled again by the next process
            return


@functools.cache
def sources_stamp(file: str) -> int:
    """Checksum of `file` and of the files that it imports from this package, directly or through others."""
    return zlib.crc32(b"".join(path.read_bytes() for path in sorted(_sources(Path(file)))))


def _sources(file: Path) -> set[Path]:
    seen: set[Path] = set()
    open_files = [file]
    while open_files:
        path = open_files.pop()
        if path not in seen and (found := _imported(path)) is not None:
            seen.add(path)
            open_files += found
    return seen


@functools.cache
def _imported(path: Path) -> tuple[Path, ...] | None:
    """Return the files that a file may import from this package, None if there is no such file."""
    if not path.is_file():
        return None
    found: list[Path] = []
    for parent, names in _IMPORT.findall(path.read_text(encoding="utf-8")):
        folder = _PACKAGE.joinpath(*parent.split(".")[1:])
        found.append(folder.with_suffix(".py"))
        found += [folder / f"{name}.py" for name in re.findall(r"(\w+)(?: as \w+)?", names)]
    return tuple(found)


def trailing_zeros(word: int) -> int:
    """Index (int64) of the lowest set bit of a uint64; 64 for 0.  One machine instruction in jitted code."""
    bits = int(word)
    return (bits & -bits).bit_length() - 1 if bits else 64


def population(word: int) -> int:
    """Number (int64) of set bits of a uint64.  One machine instruction in jitted code."""
    return int(word).bit_count()


@type_callable(trailing_zeros)
@type_callable(population)
def _type_of_bits(context: TypingContext) -> Callable[[types.Type], types.Type | None]:
    return lambda word: types.int64 if word == types.uint64 else None


@lower_builtin(trailing_zeros, types.uint64)
def _lower_trailing_zeros(
    context: BaseContext, builder: IRBuilder, signature: object, args: Sequence[IRValue]
) -> IRValue:
    return builder.cttz(args[0], context.get_constant(types.boolean, 0))


@lower_builtin(population, types.uint64)
def _lower_population(
    context: BaseContext, builder: IRBuilder, signature: object, args: Sequence[IRValue]
) -> IRValue:
    return builder.ctpop(args[0])


def load_acquire(words: NDArray[np.int64], i: int) -> int:
    """Entry `i` of an int64 array (n,) that another thread stores: all that it wrote before is seen from here on."""
    return int(words[i])


def store_release(words: NDArray[np.int64], i: int, word: int) -> None:
    """Store entry `i` of an int64 array (n,) for another thread, after all that was written before."""
    words[i] = word


def give_way() -> None:
    """Let another thread have this processor core."""
    time.sleep(0)


def _is_shared(words: types.Type, i: types.Type) -> bool:
    return words == types.Array(types.int64, 1, "C") and isinstance(i, types.Integer)


@type_callable(give_way)
def _type_of_give_way(context: TypingContext) -> Callable[[], types.Type]:
    return lambda: types.none


@lower_builtin(give_way)
def _lower_give_way(
    context: BaseContext, builder: IRBuilder, signature: Signature, args: Sequence[IRValue]
) -> IRValue:
    if os.name == "posix":  # elsewhere threads share cores by their time slices alone
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
    return context.get_dummy_value()


@type_callable(load_acquire)
def _type_of_load(context: TypingContext) -> Callable[[types.Type, types.Type], types.Type | None]:
    return lambda words, i: types.int64 if _is_shared(words, i) else None


@type_callable(store_release)
def _type_of_store(
    context: TypingContext,
) -> Callable[[types.Type, types.Type, types.Type], types.Type | None]:
    return lambda words, i, word: types.none if _is_shared(words, i) and word == types.int64 else None


_turn = threading.Lock()  # for threads of the interpreter, as a simulator of GPUs starts them


def atomic_or(words: NDArray[np.uint64], i: int, bits: int) -> None:
    """Set `bits` (uint64) of entry `i` of a uint64 array (n,) that other threads change as well."""
    with _turn:
        words[i] |= bits


def atomic_and(words: NDArray[np.uint64], i: int, bits: int) -> None:
    """Keep only `bits` (uint64) of entry `i` of a uint64 array (n,) that other threads change as well."""
    with _turn:
        words[i] &= bits


def atomic_min(values: NDArray[np.int64], i: int, value: int) -> None:
    """Lower entry `i` of an int64 array (n,) to `value` (int64), unless it is lower; other threads may do the same."""
    with _turn:
        values[i] = min(values[i], value)


def rounded_product(a: float, b: float) -> float:
    """Product (float32) of two float32, rounded before anything is added to it: GPUs would fuse the two operations."""
    return np.float32(a * b)  # type: ignore[return-value]


@type_callable(rounded_product)
def _type_of_product(context: TypingContext) -> Callable[[types.Type, types.Type], types.Type | None]:
    return lambda a, b: types.float32 if a == b == types.float32 else None


@lower_builtin(rounded_product, types.float32, types.float32)
def _lower_product(
    context: BaseContext, builder: IRBuilder, signature: Signature, args: Sequence[IRValue]
) -> IRValue:
    if not builder.module.triple.startswith("nvptx"):
        return builder.fmul(*args)
    kind = ir.FunctionType(ir.FloatType(), [ir.FloatType()] * 2)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, "__nv_fmul_rn"), args)


def _type_of_atomic(entry: types.Type) -> Callable[..., Callable[..., types.Type | None]]:
    def of_arguments(words: types.Type, i: types.Type, value: types.Type) -> types.Type | None:
        is_typed = words == types.Array(entry, 1, "C") and value == entry
        return types.none if is_typed and isinstance(i, types.Integer) else None

    return lambda context: of_arguments


def _lower_atomic(operation: str) -> Callable[..., IRValue]:
    def lower(
        context: BaseContext, builder: IRBuilder, signature: Signature, args: Sequence[IRValue]
    ) -> IRValue:
        builder.atomic_rmw(operation, _pointer(context, builder, signature, args), args[2], "monotonic")
        return context.get_dummy_value()

    return lower


for _atomic, _operation, _entry in (
    (atomic_or, "or", types.uint64),
    (atomic_and, "and", types.uint64),
    (atomic_min, "min", types.int64),
):
    type_callable(_atomic)(_type_of_atomic(_entry))
    lower_builtin(_atomic, types.Array, types.Integer, _entry)(_lower_atomic(_operation))


def _pointer(
    context: BaseContext, builder: IRBuilder, signature: Signature, args: Sequence[IRValue]
) -> IRValue:
    kind = signature.args[0]
    i = context.cast(builder, args[1], signature.args[1], types.intp)
    words = make_array(kind)(context, builder, args[0])
    return cgutils.get_item_pointer(context, builder, kind, words, [i], wraparound=False)


@lower_builtin(load_acquire, types.Array, types.Integer)
def _lower_load(
    context: BaseContext, builder: IRBuilder, signature: Signature, args: Sequence[IRValue]
) -> IRValue:
    word = context.get_data_type(types.int64)
    return builder.load_atomic(_pointer(context, builder, signature, args), "acquire", 8, typ=word)


@lower_builtin(store_release, types.Array, types.Integer, types.int64)
def _lower_store(
    context: BaseContext, builder: IRBuilder, signature: Signature, args: Sequence[IRValue]
) -> IRValue:
    builder.store_atomic(args[2], _pointer(context, builder, signature, args), "release", 8)
    return context.get_dummy_value()


def is_interpreted() -> bool:
    """True under ``NUMBA_DISABLE_JIT=1``."""
    return bool(getattr(numba.config, "DISABLE_JIT", False))
