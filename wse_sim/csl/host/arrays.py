"""Conversion between arrays of the host and words of the cores: order, width and views.

A copy moves an array of ``h * w * elem`` 32-bit items between the host and a region of w columns and h rows:

    ROW_MAJOR   C order of (h, w, elem)
    COL_MAJOR   C order of (elem, w, h)

With MEMCPY_16BIT each item contains one 16-bit element in its low half.
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
    """Width of the elements in the cores' memory."""

    MEMCPY_16BIT = 0
    MEMCPY_32BIT = 1


class MemcpyOrder(enum.IntEnum):
    """Order of the items of a host array."""

    ROW_MAJOR = 0
    COL_MAJOR = 1


class HostError(WseError, RuntimeError):
    """Error of a call of the host interface; also a RuntimeError, so that host scripts can catch it."""


class StoppedError(HostError):
    """Error of a program that failed or deadlocked: a sentence with the cause, followed by lines with the
    cores that wait for it."""

    keeps_lines = True


TWICE = "is called twice; a runtime loads, runs and stops once"
"""End of the message for a repeated call of load, run or stop."""


class Transfer(TypedDict, total=False):
    """Keywords of the memcpy calls.

    ``streaming``, ``data_type`` (width of the elements) and ``order`` (order of the items) are required;
    ``nonblock`` returns without waiting.
    """

    streaming: Required[bool]
    data_type: Required[int]
    order: Required[int]
    nonblock: bool


REQUIRED = {"data_type": "MemcpyDataType.MEMCPY_32BIT", "order": "MemcpyOrder.ROW_MAJOR"}
"""Required keywords of a copy, besides `streaming`, each with an example."""


@dataclass(frozen=True)
class CopyWay:
    """Options of a copy: the keywords of a memcpy call."""

    streaming: bool
    data_type: int
    order: int
    nonblock: bool = False

    @classmethod
    def of(cls, call: str, how: Transfer) -> CopyWay:
        """Return the options of a call after checking its keywords.

        Raises
        ------
        HostError
            If a keyword is unknown or has an invalid value, or `streaming`, `data_type` or `order` is
            missing.
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
    """Return an integer that a script passed, as a Python or NumPy number.

    Raises
    ------
    HostError
        If the value is not an integer.
    """
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise HostError(
            f"{what} is {value!r}; it must be an integer (get_id gives that of an exported name)"
        ) from error


def host_items(array: object, count: int, what: str) -> Array:
    """Return the first `count` 32-bit items of a host array as a flat view of its memory.

    Raises
    ------
    HostError
        If it is not a NumPy array with at least `count` contiguous 32-bit items.
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
    """Reshape flat items of the host to (h, w, n)."""
    if order == MemcpyOrder.ROW_MAJOR:
        return items.reshape(h, w, n)
    return items.reshape(n, w, h).transpose(2, 1, 0)


def from_region(region: Array, order: int) -> Array:
    """Flatten items (h, w, n) in the order of the host."""
    return (region if order == MemcpyOrder.ROW_MAJOR else region.transpose(2, 1, 0)).ravel()


def to_words(region: Array, data_type: int) -> Array:
    """Convert 32-bit items (h, w, n) to 16-bit words of the cores: (h, w, n) for 16-bit elements, else (h, w,
    2 n)."""
    if data_type == MemcpyDataType.MEMCPY_16BIT:
        return (region & 0xFFFF).astype(np.uint16)
    h, w, n = region.shape
    return np.ascontiguousarray(region).view(np.uint16).reshape(h, w, 2 * n)


def from_words(words: Array, data_type: int) -> Array:
    """Convert 16-bit words of the cores to 32-bit items: the inverse of :func:`to_words`; 16-bit elements are
    zero-extended."""
    if data_type == MemcpyDataType.MEMCPY_16BIT:
        return words.astype(np.uint32)
    h, w, n = words.shape
    return np.ascontiguousarray(words).view(np.uint32).reshape(h, w, n // 2)


def argument_word(value: object, kind: str, name: str) -> int:
    """Return the 32-bit word that passes a value to a function argument of type `kind`.

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
