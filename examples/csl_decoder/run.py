#!/usr/bin/env cs_python
"""Decode tokens through the layer and compare every one with PyTorch."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from cerebras.sdk.runtime.sdkruntimepybind import MemcpyDataType, MemcpyOrder, SdkRuntime
from pieces import Pieces
from reference import Layer, Sizes, random_weights

PHASES = (
    "norm, query, key, value: products",
    "their sum over the rows, rotary position",
    "attention and output: products",
    "sum over the columns",
    "norm, gate, up: products",
    "their sum over the rows",
    "activation, exchanged in the rows",
    "down: products; sum over the columns",
)
ROUNDING = 2.0**-11
"""Of f16, relative.  Nine vectors are rounded to f16 on the way of a token: the input of the projections, query, key, value,
the weights of the softmax, the attended values, the input of gate and up (it counts twice), their product.  A rounding is
0.41 ROUNDING on average (a uniform mantissa), random matrices pass relative errors on, and nine independent ones add up to
1.2 ROUNDING.  Three times that is allowed against PyTorch in f32.  With the same roundings in PyTorch, the order of f32 sums
is what differs (1e-6): now and then it turns a rounding into the neighbouring number, which turns others behind it.  At
worst the last vectors of both branches round independently on both sides: sqrt(2) sqrt(2) 0.41 ROUNDING, so one is allowed."""
ALLOWED, ALLOWED_SAME_ROUNDING = 4 * ROUNDING, ROUNDING


class Device:
    """The rectangle of PEs, with arrays of (rows, columns, elements)."""

    def __init__(self, runner: SdkRuntime) -> None:
        self.runner = runner

    def put(self, name: str, values: np.ndarray, *, halves: bool = False, row: int = 0) -> None:
        """Copy to the rows from `row` on."""
        height, width, count = values.shape
        words = values.astype(np.float16).view(np.uint16) if halves else values.astype(np.float32)
        self.runner.memcpy_h2d(
            self.runner.get_id(name), words.astype(np.uint32 if halves else np.float32).ravel(), 0, row, width, height, count,
            streaming=False, order=MemcpyOrder.ROW_MAJOR, nonblock=False,
            data_type=MemcpyDataType.MEMCPY_16BIT if halves else MemcpyDataType.MEMCPY_32BIT,
        )  # fmt: skip

    def get(self, name: str, rows: int, width: int, count: int, dtype: type = np.float32) -> np.ndarray:
        """Copy from the first rows."""
        found = np.zeros(rows * width * count, np.float32 if dtype is np.float32 else np.uint32)
        self.runner.memcpy_d2h(
            found, self.runner.get_id(name), 0, 0, width, rows, count,
            streaming=False, order=MemcpyOrder.ROW_MAJOR, nonblock=False,
            data_type=MemcpyDataType.MEMCPY_32BIT if dtype is np.float32 else MemcpyDataType.MEMCPY_16BIT,
        )  # fmt: skip
        return found.reshape(rows, width, count)

    def stamps(self, rows: int, columns: int) -> np.ndarray:
        """Cycles at the marks of every PE."""
        words = self.get("stamps", rows, columns, 3 * (len(PHASES) + 1), np.uint16).astype(np.int64)
        return (words.reshape(rows, columns, -1, 3) << np.array([0, 16, 32])).sum(-1)


def relative(found: np.ndarray, expected: torch.Tensor, given: torch.Tensor) -> float:
    """The difference in the 2-norm, over what the layer adds to its input."""
    return float(np.linalg.norm(found - expected.numpy()) / torch.linalg.vector_norm(expected - given))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", default="out", help="folder of the compiled program")
    parser.add_argument("--cmaddr", help="address of the system; without it the simulator")
    parser.add_argument(
        "--filled", type=int, default=64, help="positions that the cache has before the first token"
    )
    parser.add_argument("--tokens", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    params = {k: int(v) for k, v in json.loads((Path(args.name) / "out.json").read_text())["params"].items()}
    sizes = Sizes(*(params[k] for k in ("heads", "groups", "head_size", "hidden", "inner")))
    pieces = Pieces(sizes, params["columns"], params["slots"])
    if args.filled + args.tokens > params["columns"] * params["slots"]:
        raise SystemExit(
            f"{args.filled} + {args.tokens} positions; the cache has {params['columns'] * params['slots']}"
        )

    weights = random_weights(sizes, args.seed)
    plain, same = Layer(sizes, weights), Layer(sizes, weights, halves=True)
    tokens = torch.randn(
        args.filled + args.tokens, sizes.hidden, generator=torch.Generator().manual_seed(args.seed + 1)
    )
    for token in tokens[: args.filled]:
        plain.step(token)
        same.step(token)

    device = Device(SdkRuntime(args.name, cmaddr=args.cmaddr))
    device.runner.load()
    device.runner.run()
    for name, values in pieces.weights(weights).items():
        device.put(name, values, halves=name in ("qkv", "out", "gate_up", "down"))
    for name, values in pieces.cache(same.keys, same.values).items():
        device.put(name, values, halves=True)
    device.put("angle", pieces.turns(args.filled))
    device.put("angle_step", pieces.turns(1))

    worst, worst_same, seconds = 0.0, 0.0, 0.0
    for position in range(args.filled, args.filled + args.tokens):
        token = tokens[position]
        expected, expected_same = plain.step(token), same.step(token)
        device.put("x", pieces.vector(token), row=pieces.rows // 2)
        began = time.process_time()
        device.runner.launch("decode", np.uint16(position), nonblock=False)
        rows = device.get("x", pieces.rows, pieces.columns, pieces.x).reshape(pieces.rows, -1)[
            :, : sizes.hidden
        ]
        seconds += time.process_time() - began
        np.testing.assert_array_equal(rows, np.broadcast_to(rows[0], rows.shape))  # every row has the same
        worst = max(worst, relative(rows[0], expected, token))
        worst_same = max(worst_same, relative(rows[0], expected_same, token))
    stamps = device.stamps(pieces.rows, pieces.columns)
    device.runner.stop()

    cycles = int(stamps[..., -1].max() - stamps[..., 0].min())
    print(f"{pieces.rows} x {pieces.columns} PEs, token at position {position}: {cycles:,} cycles")
    at = [int(stamps[..., 0].min()), *(int(stamps[..., k].max()) for k in range(1, stamps.shape[-1]))]
    for name, first, last in zip(PHASES, at[:-1], at[1:], strict=True):
        print(f"  {last - first:7,}  {name}")
    print(f"{args.tokens * cycles / seconds:,.0f} simulated cycles a second of CPU time ({seconds:.1f} s)")
    print(
        f"difference to PyTorch in f32 {worst:.1e} (allowed {ALLOWED:.1e}), with the same roundings {worst_same:.1e} ({ALLOWED_SAME_ROUNDING:.1e})"
    )
    assert worst < ALLOWED
    assert worst_same < ALLOWED_SAME_ROUNDING
    print("SUCCESS!")


if __name__ == "__main__":
    main()
