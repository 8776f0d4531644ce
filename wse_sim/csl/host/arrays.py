"""Arrays of the host against words of the cores: orders, widths, views.

A copy moves an array of ``h * w * elem`` items of 32 bits between the host and a region of w columns and h rows:

    ROW_MAJOR   C order of (h, w, elem)
    COL_MAJOR   C order of (elem, w, h)

With MEMCPY_16BIT an item carries one 16-bit element in its low half.
"""

from __future__ import annotations

import enum
import operator
from dataclasses import dataclass
from typing import Any, Required, TypedDict

import numpy as np
import numpy.typing as npt

from wse_sim.errors import WseError

Array = npt.NDArray[Any]


class MemcpyDataType(enum.IntEnum):
    """Width of the elements on the cores."""

    MEMCPY_16BIT = 0
    MEMCPY_32BIT = 1


class MemcpyOrder(enum.IntEnum):
    """Order of the items of a host array."""

    ROW_MAJOR = 0
    COL_MAJOR = 1


class HostError(WseError, RuntimeError):
    """A call of the host that cannot be done; also a RuntimeError, so that scripts can catch it."""


class StoppedError(HostError):
    """A program that came to a bad end: a sentence with the cause, below it who waits for it."""

    keeps_lines = True


TWICE = "is called twice; a runtime loads, runs and stops once"
"""End of the sentence about a call in the life of a runtime that comes again."""


class Transfer(TypedDict, total=False):
    """Keywords of the memcpy calls: `streaming`, width of the elements and order of the items (all to be given), and not to wait."""

    streaming: Required[bool]
    data_type: Required[int]
    order: Required[int]
    nonblock: bool


REQUIRED = {"data_type": "MemcpyDataType.MEMCPY_32BIT", "order": "MemcpyOrder.ROW_MAJOR"}
"""Keywords that every copy gives, besides `streaming`, each with an example."""


@dataclass(frozen=True)
class CopyWay:
    """How a copy is done: the keywords of its call."""

    streaming: bool
    data_type: int
    order: int
    nonblock: bool = False

    @classmethod
    def of(cls, call: str, how: Transfer) -> CopyWay:
        """The keywords of a call.

        Raises
        ------
        HostError
            If one is unknown, or one of `streaming`, `data_type` and `order` is missing.
        """
        for name in how:
            if name not in Transfer.__annotations__:
                raise HostError(f"{call} has no keyword '{name}'; use {', '.join(Transfer.__annotations__)}")
        if "streaming" not in how:
            raise HostError(
                f"{call} needs streaming=True (words of a color) or streaming=False (an exported array)"
            )
        for name, example in REQUIRED.items():
            if name not in how:
                raise HostError(f"{call} has no {name}; give one, such as {name}={example}")
        for name, kind in (("data_type", MemcpyDataType), ("order", MemcpyOrder)):
            if name in how and how[name] not in list(kind):  # type: ignore[literal-required]
                known = " or ".join(f"{kind.__name__}.{m.name}" for m in kind)
                raise HostError(f"{call}: {name} is {how[name]!r}; it must be {known}")  # type: ignore[literal-required]
        return cls(**how)


def whole(value: object, what: str) -> int:
    """An integer that a script gives, also as a number of numpy.

    Raises
    ------
    HostError
        If it is not one.
    """
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise HostError(
            f"{what} is {value!r}; it must be an integer (get_id gives that of an exported name)"
        ) from error


def host_items(array: object, count: int, what: str) -> Array:
    """The first `count` 32-bit items of a host array, flat, sharing its memory.

    Raises
    ------
    HostError
        If it is not a numpy array of at least `count` contiguous items of 32 bits.
    """
    if not isinstance(array, np.ndarray):
        raise HostError(f"{what}: a {type(array).__name__} is not a numpy array; give one of 32-bit items")
    if array.dtype.itemsize != 4:
        raise HostError(
            f"{what}: items of {array.dtype} have {8 * array.dtype.itemsize} bits but needs 32; "
            "16-bit data goes into the low half of uint32 (sdk_utils.input_array_to_u32, memcpy_view)"
        )
    if array.size < count:
        raise HostError(
            f"{what}: the array has {array.size} items, the region takes {count}; it needs at least width x height x elements"
        )
    if not array.flags.c_contiguous:
        raise HostError(f"{what}: the array is not contiguous; use numpy.ascontiguousarray")
    return array.reshape(-1).view(np.uint32)[:count]


def to_region(items: Array, w: int, h: int, n: int, order: int) -> Array:
    """Items of the host as (h, w, n)."""
    if order == MemcpyOrder.ROW_MAJOR:
        return items.reshape(h, w, n)
    return items.reshape(n, w, h).transpose(2, 1, 0)


def from_region(region: Array, order: int) -> Array:
    """Items of (h, w, n) in the order of the host, flat."""
    return (region if order == MemcpyOrder.ROW_MAJOR else region.transpose(2, 1, 0)).ravel()


def to_words(region: Array, data_type: int) -> Array:
    """32-bit items (h, w, n) as 16-bit words of the cores (h, w, n or 2 n)."""
    if data_type == MemcpyDataType.MEMCPY_16BIT:
        return (region & 0xFFFF).astype(np.uint16)
    h, w, n = region.shape
    return np.ascontiguousarray(region).view(np.uint16).reshape(h, w, 2 * n)


def from_words(words: Array, data_type: int) -> Array:
    """16-bit words of the cores as 32-bit items: inverse of :func:`to_words`, 16-bit elements zero-extended."""
    if data_type == MemcpyDataType.MEMCPY_16BIT:
        return words.astype(np.uint32)
    h, w, n = words.shape
    return np.ascontiguousarray(words).view(np.uint32).reshape(h, w, n // 2)


def argument_word(value: object, kind: str, name: str) -> int:
    """The 32-bit word of an argument of a function, by the exported type `kind`.

    Raises
    ------
    HostError
        If the value does not fit the type.
    """
    number = value.item() if isinstance(value, np.generic) else value
    if isinstance(number, bool):
        number = int(number)
    if kind in ("f32", "f16"):
        kinds = (np.float32, np.uint32) if kind == "f32" else (np.float16, np.uint16)
        if not isinstance(number, int | float):
            raise HostError(f"argument '{name}' is a {type(value).__name__}; it must be a number ({kind})")
        return int(np.asarray(number, kinds[0]).view(kinds[1]))
    if not isinstance(number, int):
        raise HostError(f"argument '{name}' is {value!r}; it must be an integer ({kind})")
    bits = 16 if kind.endswith("16") else 32
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind.startswith("i") else (0, (1 << bits) - 1)
    if kind == "bool":
        low, high = 0, 1
    if not low <= number <= high:
        raise HostError(f"argument '{name}' is {number}; {kind} goes from {low} to {high}")
    return number & 0xFFFFFFFF
