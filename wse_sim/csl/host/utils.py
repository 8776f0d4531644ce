"""Helpers that scripts of the host use: time stamps, 16-bit data in 32-bit items."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, SupportsInt

import numpy as np

from wse_sim.csl.host.arrays import HostError

if TYPE_CHECKING:
    import numpy.typing as npt


def float_to_hex(value: float) -> str:
    """The bits of an fp32 number as hexadecimal text."""
    return hex(struct.unpack("<I", struct.pack("<f", value))[0])


def make_u48(words: Sequence[int] | np.ndarray) -> int:
    """A 48-bit time stamp from three 16-bit words, the lowest first."""
    low, middle, high = (int(word) & 0xFFFF for word in words[:3])
    return low | middle << 16 | high << 32


def sub_ts(words: Sequence[int] | np.ndarray) -> int:
    """Cycles between two time stamps of three words each: the second minus the first."""
    return make_u48(words[3:]) - make_u48(words[:3])


def calculate_cycles(timestamp_buf: object) -> int:
    """Cycles between two time stamps packed into three fp32 (six 16-bit words, start first)."""
    bits = np.ascontiguousarray(timestamp_buf, np.float32).view(np.uint16)
    if bits.size < 6:
        raise HostError(f"time stamps need six words, {bits.size} are given; pass three fp32 of one core")
    return sub_ts(bits.ravel()[:6])


def memcpy_view(arr: np.ndarray, datatype: npt.DTypeLike) -> np.ndarray:
    """A view of 32-bit items as `datatype` (16 or 32 bits): 16-bit elements are the low halves."""
    kind = np.dtype(datatype)
    if arr.dtype.itemsize != 4 or kind.itemsize not in (2, 4):
        raise HostError(
            f"a view of {arr.dtype} as {kind} is not possible; items of 32 bits, elements of 16 or 32"
        )
    if kind.itemsize == 4:
        return arr.view(kind)
    return np.ndarray(arr.shape, kind, buffer=arr.data, strides=arr.strides)


def input_array_to_u32(np_arr: np.ndarray, sentinel: int | None = None, fast_dim_sz: int = 1) -> np.ndarray:
    """16-bit (or 32-bit) elements as flat uint32 items; the high half is zero, or with
    a `sentinel` other than 0 the index modulo `fast_dim_sz`."""
    flat = np.ascontiguousarray(np_arr).ravel()
    if flat.dtype.itemsize == 4:
        return flat.view(np.uint32)
    if flat.dtype.itemsize != 2:
        raise HostError(f"elements of {flat.dtype} have no 16 or 32 bits; convert the array first")
    low = flat.view(np.uint16).astype(np.uint32)
    if not sentinel:  # public scripts give 0 where they want zeros
        return low
    return low | (np.arange(flat.size, dtype=np.uint32) % np.uint32(fast_dim_sz)) << np.uint32(16)


def cast_uint32(value: SupportsInt) -> int:
    """The 32 bits of a number as an unsigned integer: floats by their fp32 (or fp16) bits, integers wrapped."""
    if isinstance(value, np.float16):
        return int(value.view(np.uint16))
    if isinstance(value, float | np.floating):
        return int(np.float32(value).view(np.uint32))
    return int(value) & 0xFFFFFFFF
