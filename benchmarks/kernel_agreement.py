"""Compares costs in closed form with fabric programs over sampled (kernel, shape, tiling) points.

    python -m benchmarks.kernel_agreement --json [--seed 0] [--points 240]

Keys: points, median_error, p95_error, max_error (shares), rows (worst first: kernel, params, model and
fabric cycles, error, largest term, deviation of the values from numpy).

Why the worst rows differ:

layout       a copy waits for its neighbour's first word and starts twice; a transpose's streams wait a few cycles
             after every switch.
stencil25    the cost contains the stalls measured in the published run; the program has different ones: 47 starts
             per block, and collisions of every second sum.
fused_gemm   sums return to the cores that store them: half a cycle per sum, 1 / f of a round of f words.
scan         (cumsum of few states per core) a start of 3.1 cycles is 3 in the program, and a step is a few cycles.
conv2d       taps that begin in the bank of the sums take twice as long; the first words wait for the lines.
weight_gradient  streamed: the program multiplies while the gradient arrives, the cost adds the arrival
             (1 / f); stationary: it receives one of the two operands, which the cost omits (1 / v).
sparse_gemm  a control word ends a round.
attention    a core that multicasts also issues its own words; backward, the gradients of keys and values take
             words instead of the sums that the formula counts.  Both show with few queries or keys per core.
reduce       (two_phase) the next leader's stream restarts after a switch, up to 6 cycles.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable

import numpy as np

from benchmarks.agreement_products import PRODUCT_SAMPLES
from benchmarks.agreement_rows import ROW_SAMPLES
from benchmarks.measurements import Row
from wse_sim.bench.command import run_kernel
from wse_sim.hardware import load_wafer

Rng = np.random.Generator


def _line(rng: Rng, **more: object) -> Row:
    return {"cores": int(rng.integers(4, 100)), "words": int(rng.choice([4, 16, 64, 256, 700])), **more}


def _reduce(rng: Rng) -> Row:
    params = _line(rng, algorithm=str(rng.choice(["star", "chain", "tree", "two_phase", "auto"])))
    if params["algorithm"] == "two_phase":
        params["group"] = int(rng.integers(1, params["cores"]))
    return params


def _summa(rng: Rng) -> Row:
    side = int(rng.integers(2, 11))
    sizes = {name: side * int(rng.integers(2, 9)) for name in "mkn"}
    return {**sizes, "rows": side, "cols": side, "bank_conflict": bool(rng.integers(2))}


def _mesh(rng: Rng) -> Row:
    side = int(rng.integers(2, 11))
    sizes = {name: side * int(rng.integers(4, 20)) for name in "mkn"}
    return {
        **sizes,
        "rows": side,
        "cols": side,
        "algorithm": str(rng.choice(["mesh", "cannon"])),
        "dtype": "fp16",
    }


def _gemv(rng: Rng) -> Row:
    rows = int(rng.integers(6, 120))
    k, n = int(rng.integers(4, 40)), int(rng.integers(4, 60))
    return {
        "m": rows * k,
        "n": 2 * n,
        "rows": rows,
        "cols": 2,
        "groups": int(rng.integers(1, max(2, rows // 4))),
    }


def _rows(**more: object) -> Callable[[Rng], Row]:
    def sample(rng: Rng) -> Row:
        rows, cols = (int(v) for v in rng.integers(2, 24, 2))
        return {
            "m": rows * int(rng.integers(1, 8)),
            "n": cols * int(rng.integers(4, 60)),
            "rows": rows,
            "cols": cols,
            **more,
        }

    return sample


def _stencil(rng: Rng) -> Row:
    nz = int(rng.integers(30, 200)) * 2
    return {"nz": nz, "block": nz, "rows": 10, "cols": int(rng.integers(9, 12))}


def _embedding(rng: Rng) -> Row:
    rows, cols = int(rng.integers(2, 9)), int(rng.integers(1, 13))
    tokens, piece = int(rng.integers(8, 16)), int(rng.integers(8, 48))
    return {
        "m": rows * tokens,
        "n": cols * piece,
        "rows": rows,
        "cols": cols,
        "mapping": str(rng.choice(["streamed", "stationary"])),
        "phase": str(rng.choice(["forward", "weight_gradient"])),
        "dtype": str(rng.choice(["fp16", "fp32"])),
    }


def _layout(rng: Rng) -> Row:
    """Return the copies of 400 elements per core and more; transposes on 6 x 6 cores and more."""
    op, side = str(rng.choice(["copy", "transpose"])), int(rng.integers(6, 17))
    elements = int(rng.integers(400, 2000)) if op == "copy" else int(rng.integers(40, 600))
    return {"elements": elements * side * side, "rows": side, "cols": side, "op": op, "dtype": "fp16"}


def _resample(rng: Rng) -> Row:
    mode = str(rng.choice(["nearest", "bilinear"]))
    phase = str(rng.choice(["forward", "input_gradient"])) if mode == "nearest" else "forward"
    sizes = {"side": 4 * int(rng.integers(1, 5)), "c": 4 * int(rng.integers(2, 9)), "scale": 2}
    return {**sizes, "mode": mode, "phase": phase}


def _scan(rng: Rng) -> Row:
    kind = str(rng.choice(["selective", "cumsum", "lstm", "gru", "rnn_tanh"]))
    dtype = str(rng.choice(["fp16", "fp32"]))
    if kind not in {"selective", "cumsum"}:
        sizes = {"steps": int(rng.integers(1, 5)), "batch": int(rng.integers(1, 5))}
        return {
            **sizes,
            "width": 6 * int(rng.integers(2, 7)),
            "rows": 2,
            "cols": 3,
            "kind": kind,
            "dtype": dtype,
        }
    return {
        "steps": int(rng.integers(2, 12)),
        "width": 16 * int(rng.integers(4, 20)),
        "batch": int(rng.integers(2, 9)),
        "kind": kind,
        "dtype": dtype,
        "phase": str(rng.choice(["forward", "input_gradient"])),
    }


SAMPLES: dict[str, tuple[str, int, Callable[[Rng], Row]]] = {
    # label: (kernel, weight, parameters)
    "broadcast": ("broadcast", 2, lambda rng: _line(rng, axis="row")),
    "reduce": ("reduce", 6, _reduce),
    "reduce2d": (
        "reduce2d",
        2,
        lambda rng: {
            "rows": int(rng.integers(2, 20)),
            "cols": int(rng.integers(2, 20)),
            "words": int(rng.choice([4, 32, 200])),
            "algorithm": str(rng.choice(["xy", "snake"])),
        },
    ),
    "allreduce": (
        "allreduce",
        3,
        lambda rng: _line(rng, algorithm=str(rng.choice(["auto", "k_tree", "ring"]))),
    ),
    "allreduce2d": (
        "allreduce2d",
        1,
        lambda rng: {
            "rows": int(rng.integers(2, 20)),
            "cols": int(rng.integers(2, 20)),
            "words": int(rng.choice([4, 32, 200])),
            "algorithm": str(rng.choice(["corner", "rows_columns", "auto"])),
        },
    ),
    "reduce_scatter": ("reduce_scatter", 1, lambda rng: _line(rng, dtype=str(rng.choice(["fp16", "fp32"])))),
    "all_gather": ("all_gather", 1, lambda rng: _line(rng, dtype=str(rng.choice(["fp16", "fp32"])))),
    "point_to_point": (
        "point_to_point",
        1,
        lambda rng: {"hops": int(rng.integers(1, 60)), "words": int(rng.integers(1, 99))},
    ),
    "shift": (
        "shift",
        1,
        lambda rng: {
            "cols": int(rng.integers(20, 60)),
            "distance": int(rng.integers(1, 20)),
            "tile": int(rng.integers(1, 99)),
        },
    ),
    "vector_op": (
        "vector_op",
        2,
        lambda rng: {
            "op": str(rng.choice(["copy", "add", "mul", "fma", "fmac", "max"])),
            "elements": int(rng.integers(10, 3000)),
            "dtype": str(rng.choice(["fp16", "fp32"])),
            "bank_conflict": bool(rng.integers(2)),
        },
    ),
    "gemv": ("gemv", 3, _gemv),
    "gemm summa": ("gemm", 3, _summa),
    "gemm mesh": ("gemm", 2, _mesh),
    "softmax": ("softmax", 2, _rows()),
    "layer norm": ("norm", 1, _rows(kind="layer")),
    "rms norm": ("norm", 1, _rows(kind="rms")),
    "halo": (
        "halo",
        2,
        lambda rng: {
            "nz": int(rng.integers(16, 300)),
            "rows": int(rng.integers(2, 9)),
            "cols": int(rng.integers(2, 9)),
        },
    ),
    "stencil25": ("stencil25", 1, _stencil),
    "embedding": ("embedding", 2, _embedding),
    "layout": ("layout", 2, _layout),
    "resample": ("resample", 1, _resample),
    "cross_entropy": ("cross_entropy", 2, _rows()),
    "scan": ("scan", 2, _scan),
    **PRODUCT_SAMPLES,
    **ROW_SAMPLES,
}


def sample(seed: int, points: int) -> list[tuple[str, str, Row]]:
    """Return (label, kernel, parameters) of `points` points."""
    rng = np.random.default_rng(seed)
    turn = [label for label, (_, weight, _) in SAMPLES.items() for _ in range(weight)]
    chosen = [turn[i % len(turn)] for i in range(points)]
    return [(label, SAMPLES[label][0], SAMPLES[label][2](rng)) for label in chosen]


def agreement(seed: int = 0, points: int = 240) -> Row:
    """Run the points and summarise."""
    wafer = load_wafer("wse2")
    started = time.process_time()
    rows = []
    for label, kernel, params in sample(seed, points):
        report = run_kernel(kernel, params, wafer, timing="both", seed=seed)
        rows.append(
            {
                "kernel": label,
                "params": params,
                "model_cycles": round(report.model_cycles or 0.0, 1),
                "fabric_cycles": report.fabric_cycles,
                "error": report.difference,
                "largest_term": report.largest_term,
                "max_abs_error": report.max_abs_error,
            }
        )
    errors = np.abs([row["error"] for row in rows])
    rows.sort(key=lambda row: -abs(row["error"]))
    return {
        "points": len(rows),
        "median_error": float(np.median(errors)),
        "p95_error": float(np.quantile(errors, 0.95)),
        "max_error": float(errors.max()),
        "max_abs_error": max(row["max_abs_error"] for row in rows),
        "seed": seed,
        "cpu_s": round(time.process_time() - started, 1),
        "rows": rows,
    }


def main(argv: list[str] | None = None) -> int:
    """Print the summary, as JSON or as a table with the worst rows."""
    parser = argparse.ArgumentParser(prog="benchmarks.kernel_agreement", description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--seed", type=int, default=0, help="draw other points")
    parser.add_argument("--points", type=int, default=240, help="number of points")
    options = parser.parse_args(argv)
    result = agreement(options.seed, options.points)
    if options.json:
        print(json.dumps(result, indent=1))
        return 0
    print(
        f"{result['points']} points: median {result['median_error']:.2%}, 95 % {result['p95_error']:.2%}, "
        f"worst {result['max_error']:.2%} ({result['cpu_s']} s of CPU)"
    )
    for row in result["rows"][:15]:
        cycles = f"{row['model_cycles']:>10.0f} {row['fabric_cycles']:>10}"
        print(f"{row['error']:>8.2%} {cycles}  {row['largest_term']:<8} {row['kernel']:<16} {row['params']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
