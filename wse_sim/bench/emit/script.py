"""The host script and the values that it sends and expects."""

from __future__ import annotations

import numpy as np

from wse_sim.kernels.contract.family import Case

SCRIPT = '''"""{about}: fills the buffers, runs, compares, prints the cycles from the first start to the last end."""

import argparse
import json

import numpy as np
from cerebras.sdk.runtime.sdkruntimepybind import MemcpyDataType, MemcpyOrder, SdkRuntime
from cerebras.sdk.sdk_utils import input_array_to_u32, memcpy_view

WIDTH, HEIGHT = {cols}, {rows}
TOLERANCE = {tolerance!r}  # of the largest value

parser = argparse.ArgumentParser()
parser.add_argument("--name", default="out")
parser.add_argument("--cmaddr")
args = parser.parse_args()
runner = SdkRuntime(args.name, cmaddr=args.cmaddr)
runner.load()
runner.run()
order = MemcpyOrder.ROW_MAJOR


def kind(dtype):
    return MemcpyDataType.MEMCPY_16BIT if np.dtype(dtype).itemsize == 2 else MemcpyDataType.MEMCPY_32BIT


def write(name, values):
    items = input_array_to_u32(values.ravel()) if values.dtype.itemsize == 2 else values.ravel()
    runner.memcpy_h2d(runner.get_id(name), items, 0, 0, WIDTH, HEIGHT, values.shape[2], streaming=False,
                      order=order, data_type=kind(values.dtype), nonblock=False)


def read(name, count, dtype):
    items = np.zeros(HEIGHT * WIDTH * count, np.uint32)
    runner.memcpy_d2h(items, runner.get_id(name), 0, 0, WIDTH, HEIGHT, count, streaming=False,
                      order=order, data_type=kind(dtype), nonblock=False)
    values = memcpy_view(items, np.dtype(dtype)) if np.dtype(dtype).itemsize == 2 else items.view(dtype)
    return np.array(values).reshape(HEIGHT, WIDTH, count)


data = np.load("data.npz")
for key in data.files:
    if key.startswith("input_"):
        write(key[len("input_"):], data[key])
runner.launch("set_lengths", nonblock=False)
runner.launch("run", nonblock=False)
for key in data.files:
    if key.startswith("expected_"):
        wanted = data[key]
        got = read(key[len("expected_"):], wanted.shape[2], wanted.dtype).astype(np.float32)
        where = ~np.isnan(wanted)  # only cores that hold a part of the result
        limit = TOLERANCE * max(1.0, float(np.abs(wanted[where]).max()))
        np.testing.assert_allclose(got[where], wanted[where].astype(np.float32), rtol=0, atol=limit)
stamps = read("stamps", 6, np.uint16).astype(np.int64)
runner.stop()
start, end = (stamps[..., i] + (stamps[..., i + 1] << 16) + (stamps[..., i + 2] << 32) for i in (0, 3))
print("cycles:", int(end.max() - start.min()))
print("SUCCESS!")
'''
"""A program for the host; its fields are about, cols, rows, tolerance."""


def values_of(case: Case) -> dict[str, np.ndarray]:
    """Inputs and expected values of all cores (rows, cols, length) in the type of their buffer."""
    found = {}
    for prefix, values in (("input", case.inputs), ("expected", case.expected)):
        for key, value in values.items():
            info = case.program.buffers[key]
            dtype = np.float16 if info.dtype == "fp16" else np.float32
            full = np.full(
                (case.program.rows, case.program.cols, info.length),
                np.nan if prefix == "expected" else 0.0,
                np.float32,
            )
            full[info.row : info.row + info.rows, info.col : info.col + info.cols] = value
            found[f"{prefix}_{key}"] = full.astype(dtype)
    return found
