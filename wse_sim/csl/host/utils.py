"""Helper functions for host scripts: time stamps, 16-bit data in 32-bit items, and the exported functions of
a program."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsInt

import numpy as np

from wse_sim.csl.host.arrays import HostError

if TYPE_CHECKING:
    import numpy.typing as npt


def float_to_hex(value: float) -> str:
    """Return the bits of an fp32 number as hexadecimal text."""
    return hex(struct.unpack("<I", struct.pack("<f", value))[0])


def make_u48(words: Sequence[int] | np.ndarray) -> int:
    """Return the 48-bit time stamp of three 16-bit words, lowest word first."""
    low, middle, high = (int(word) & 0xFFFF for word in words[:3])
    return low | middle << 16 | high << 32


def sub_ts(words: Sequence[int] | np.ndarray) -> int:
    """Return the cycles between two time stamps of three 16-bit words each; the earlier one is first."""
    return make_u48(words[3:]) - make_u48(words[:3])


def calculate_cycles(timestamp_buf: object) -> int:
    """Return the cycles between two time stamps that are packed into three fp32 numbers (six 16-bit words,
    earlier first).

    Raises
    ------
    HostError
        If there are fewer than six words.
    """
    bits = np.ascontiguousarray(timestamp_buf, np.float32).view(np.uint16)
    if bits.size < 6:
        raise HostError(f"time stamps need six words, {bits.size} are given; pass three fp32 of one core")
    return sub_ts(bits.ravel()[:6])


def memcpy_view(arr: np.ndarray, datatype: npt.DTypeLike) -> np.ndarray:
    """Return a view of 32-bit items as elements of 8, 16 or 32 bits; narrower elements are the low bits.

    Raises
    ------
    HostError
        If the items or the elements have another size.
    """
    kind = np.dtype(datatype)
    if arr.dtype.itemsize != 4 or kind.itemsize not in (1, 2, 4):
        raise HostError(
            f"a view of {arr.dtype} as {kind} is not possible; items of 32 bits, elements of 8, 16 or 32"
        )
    if kind.itemsize == 4:
        return arr.view(kind)
    return np.ndarray(arr.shape, kind, buffer=arr.data, strides=arr.strides)


def input_array_to_u32(np_arr: np.ndarray, sentinel: int | None = None, fast_dim_sz: int = 1) -> np.ndarray:
    """Return 16-bit or 32-bit elements as flat uint32 items.

    The high half of a 16-bit element's item is zero, or the index modulo `fast_dim_sz` if `sentinel` is given
    and not 0.

    Raises
    ------
    HostError
        If the elements have neither 16 nor 32 bits.
    """
    flat = np.ascontiguousarray(np_arr).ravel()
    if flat.dtype.itemsize == 4:
        return flat.view(np.uint32)
    if flat.dtype.itemsize != 2:
        raise HostError(f"elements of {flat.dtype} have neither 16 nor 32 bits; convert the array first")
    low = flat.view(np.uint16).astype(np.uint32)
    if not sentinel:  # public scripts pass 0 for zeros
        return low
    return low | (np.arange(flat.size, dtype=np.uint32) % np.uint32(fast_dim_sz)) << np.uint32(16)


def cast_uint32(value: SupportsInt) -> int:
    """Return the 32 bits of a number as an unsigned integer: a float's fp32 or fp16 bits, or an integer
    modulo 2**32."""
    if isinstance(value, np.float16):
        return int(value.view(np.uint16))
    if isinstance(value, float | np.floating):
        return int(np.float32(value).view(np.uint32))
    return int(value) & 0xFFFFFFFF


PRIMITIVES = ("f32", "f16", "i32", "u32", "i16", "u16", "i8", "u8", "bool")
"""Types of arguments that a host can pass to an exported function."""
Callables = dict[str, tuple[list[str], list[str]]]


def is_valid_primitive_type(name: str) -> bool:
    """Return whether a host can pass an argument of this type."""
    return name in PRIMITIVES


def parse_host_callable_api(rpc_symbols: Sequence[Mapping[str, Any]]) -> Callables:
    """Return the argument names and types of every exported function, from the rows of ``out_rpc.json``.

    Raises
    ------
    HostError
        If an argument has a type that the host cannot pass.
    """
    found: Callables = {}
    for symbol in rpc_symbols:
        if symbol.get("kind") != "Func":
            continue
        pairs = [
            (i["name"], i["type"]) if isinstance(i, Mapping) else (i[0], i[1])
            for i in symbol.get("inputs", ())
        ]
        wrong = next((kind for _, kind in pairs if not is_valid_primitive_type(kind)), None)
        if wrong is not None:
            raise HostError(f"'{symbol['name']}' takes a '{wrong}'; a host gives {', '.join(PRIMITIVES)}")
        found[symbol["name"]] = ([name for name, _ in pairs], [kind for _, kind in pairs])
    return found


def get_api_info_dict_from_json(json_path: str | os.PathLike[str]) -> Callables:
    """Return the argument names and types of the exported functions in a file ``out_rpc.json``.

    Raises
    ------
    HostError
        If the file cannot be read.
    """
    try:
        rows = json.loads(Path(json_path).read_text(encoding="utf-8"))["rpc_symbols"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as fault:
        raise HostError(
            f"'{json_path}' lists no exported names ({fault}); give the out_rpc.json of a compiled program"
        ) from None
    return parse_host_callable_api(rows)


def get_api_info_dict(app_path: str | os.PathLike[str]) -> Callables:
    """Return the argument names and types of the exported functions of an output folder.

    Raises
    ------
    HostError
        If the folder contains no compiled program.
    """
    return get_api_info_dict_from_json(Path(app_path) / "bin" / "out_rpc.json")


_KINDS: dict[type, tuple[str, ...]] = {
    float: ("f32",), np.float32: ("f32",), np.float16: ("f16",), int: ("i32", "u32", "i16", "u16"), np.int64: ("i32",),
    np.int32: ("i32",), np.uint32: ("u32",), np.uint64: ("u32",), np.int16: ("i16",), np.uint16: ("u16",),
}  # fmt: skip


def check_rpc_api(name: str, arg_list: Sequence[object], api_info_dict: Callables) -> bool:
    """Return True if the arguments fit the exported function `name`.

    Raises
    ------
    HostError
        If there is no such function, or the arguments differ from its own in number or type.
    """
    if name not in api_info_dict:
        raise HostError(
            f"'{name}' is not an exported function; the exported functions are {', '.join(api_info_dict) or 'none'}"
        )
    wanted = api_info_dict[name][1]
    if len(wanted) != len(arg_list):
        raise HostError(f"'{name}' takes {len(wanted)} arguments, {len(arg_list)} are given")
    for arg, kind in zip(arg_list, wanted, strict=True):
        if kind not in _KINDS.get(type(arg), ()):
            raise HostError(
                f"'{name}': {arg!r} is a {type(arg).__name__}, and the argument is of type {kind}"
            )
    return True


def output_name(option_list: Sequence[str]) -> str:
    """Return the output folder in options of ``cslc``: ``-o NAME`` or ``-o=NAME``; ``out`` by default."""
    found = "out"
    for k, word in enumerate(option_list):
        if word.startswith("-o="):
            found = word[3:]
        elif word in ("-o", "--o") and k + 1 < len(option_list):
            found = option_list[k + 1]
    return found
