"""Points of products, convolutions, pooling and elementwise work for :mod:`benchmarks.kernel_agreement`.

Tiles as the compiler makes them, scaled down in cores and turns only: from 8 words and 8 elements of a vector up, and
from 30 elements per core for elementwise work.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.measurements import Row

Rng = np.random.Generator
Sampler = Callable[[Rng], Row]
DTYPES, MAPPINGS = ("fp16", "fp32"), ("streamed", "stationary")
BACKWARD, PHASES = ("forward", "input_gradient"), ("forward", "input_gradient", "weight_gradient")


def _one(rng: Rng, choices: tuple[str, ...]) -> str:
    return str(rng.choice(choices))


def _tile(rng: Rng, most: int = 9) -> tuple[int, int, int, int, int]:
    """Return (rows, columns, words f, vector t, turns)."""
    rows, cols = (int(v) for v in rng.integers(2, most, 2))
    return rows, cols, int(rng.integers(12, 40)), int(rng.integers(4, 20)) * 2, int(rng.integers(20, 60))


def triggered(mapping: str) -> Sampler:
    """Forward products of one or two lanes."""

    def sample(rng: Rng) -> Row:
        rows, cols = (int(v) for v in rng.integers(2, 12, 2))
        f, t = int(rng.integers(8, 40)), int(rng.integers(4, 25)) * 2
        lanes = int(rng.integers(1, 3)) if mapping == "streamed" else 1
        m, k, n = lanes * rows * t, cols * f, int(rng.integers(20, 80))
        if mapping == "stationary":
            m, k, n = int(rng.integers(20, 80)), rows * f, cols * t
        cores = {"rows": rows, "cols": lanes * cols, "lanes": lanes}
        return {"m": m, "k": k, "n": n, **cores, "algorithm": mapping, "dtype": "fp16"}

    return sample


def _weight_gradient(rng: Rng) -> Row:
    rows, cols, f, t, n = _tile(rng)
    how = {"rows": rows, "cols": cols, "dtype": _one(rng, DTYPES), "mapping": _one(rng, MAPPINGS)}
    if how["mapping"] == "streamed":
        return {**how, "m": cols * 2 * f, "k": rows * t, "n": n}
    return {**how, "m": rows * f, "k": n, "n": cols * t}


def _sparse_gemm(rng: Rng) -> Row:
    rows, cols, f, t, n = _tile(rng)
    density = float(rng.choice([0.1, 0.25, 0.5]))
    words = max(f, round(8 / density))
    return {"m": rows * t, "k": cols * words, "n": n, "rows": rows, "cols": cols, "density": density}


def _fused_gemm(rng: Rng) -> Row:
    rows, cols, f, t, _ = _tile(rng, 7)
    fused = _one(rng, ("bias", "residual", "bias,gelu", "bias,relu", "bias,residual"))
    how = {"rows": rows, "cols": cols, "mapping": _one(rng, MAPPINGS), "fused": fused}
    turns = int(rng.integers(4, 12))
    if how["mapping"] == "streamed":
        return {**how, "m": rows * t, "k": cols * 2 * f, "n": cols * turns}
    # As many rows as columns: one orientation, equal shares.
    return {**how, "cols": rows, "m": rows * turns, "k": rows * 2 * f, "n": rows * t}


def _grouped_gemm(rng: Rng) -> Row:
    rows, cols, f, t, n = _tile(rng)
    groups, phase = int(rng.integers(2, 4)), _one(rng, PHASES)
    how = {"rows": rows, "cols": cols, "dtype": "fp16", "groups": groups, "phase": phase, "n": n}
    if phase == "weight_gradient":
        return {**how, "m": cols * 2 * f, "k": groups * rows * t, "mapping": "streamed"}
    if rng.integers(2):
        return {**how, "m": groups * rows * t, "k": cols * f, "mapping": "streamed"}
    # A square of cores per group, and as many features as outputs.
    return {
        **how,
        "rows": 3,
        "cols": 3 * groups,
        "m": groups * n,
        "k": 3 * f,
        "n": 3 * f,
        "mapping": "stationary",
    }


def _batch_gemm(rng: Rng) -> Row:
    """Return a row of cores per product, or two products."""
    rows, cols, f, t, n = _tile(rng)
    how = {"rows": rows, "cols": cols, "b": rows, "dtype": "fp16", "mapping": _one(rng, MAPPINGS)}
    if rng.integers(3) == 0:
        return {**how, "b": 2 * rows * cols, "m": 2 * t, "k": f, "n": n // 2}
    if how["mapping"] == "streamed":
        return {**how, "m": cols * t, "k": f, "n": n}
    return {**how, "m": n, "k": cols * f // 2 + 8, "n": cols * t // 2}


def _conv2d(rng: Rng) -> Row:
    """Return the lines of 16 pixels and more, 9 products per core and more; few turns, so that lines are exchanged
    once.
    """
    rows, cols = (int(v) for v in rng.integers(2, 7, 2))
    taps, stride = (int(v) for v in rng.choice([(1, 1), (1, 2), (3, 1), (3, 2)]))
    phase, mapping = _one(rng, PHASES), _one(rng, MAPPINGS)
    each = int(rng.integers(1, 4)) if taps > 1 else int(rng.integers(12, 30))
    how = {"rows": rows, "cols": cols, "taps": taps, "stride": stride, "phase": phase, "mapping": mapping}
    width, filters = 2 * int(rng.integers(8, 16)), int(rng.integers(24, 60))
    if mapping == "streamed":
        lines = int(rng.integers(1, 4)) if phase != "input_gradient" else 1
        wide = 2 if phase == "weight_gradient" else 1
        return {**how, "lines": lines, "w": width, "c": wide * cols * each, "k": filters}
    # A square of cores and as many words as outputs per core.
    how |= {"rows": 3, "cols": 3, "lines": 1, "w": width // 2}
    return {**how, "c": 3 * each, "k": 3 * 2 * int(rng.integers(4, 12))}


def _pool2d(rng: Rng) -> Row:
    sizes = {
        "side": 4 * int(rng.integers(3, 9)),
        "c": int(rng.integers(6, 20)),
        "window": int(rng.integers(2, 4)),
    }
    how = {"kind": _one(rng, ("max", "avg")), "phase": _one(rng, BACKWARD), "dtype": _one(rng, DTYPES)}
    return {**sizes, **how}


def _elements(**choices: tuple[str, ...]) -> Sampler:
    def sample(rng: Rng) -> Row:
        chosen = {name: _one(rng, values) for name, values in choices.items()}
        return {"elements": 16 * int(rng.integers(30, 600)), **chosen}

    return sample


ALGORITHMS = ("sgd", "momentum", "adam", "adamw")
CHAINS = ("add", "mul", "mul,add", "sub,max", "add,add,add", "div,min")
GENERATED = ("silu,mul", "gelu,mul", "add,relu", "mul,add,mul")
FUNCTIONS = ("relu", "gelu", "silu", "tanh")

PRODUCT_SAMPLES: dict[str, tuple[str, int, Sampler]] = {
    # label: (kernel, weight, parameters)
    "gemm streamed": ("gemm", 4, triggered("streamed")),
    "gemm stationary": ("gemm", 3, triggered("stationary")),
    "sparse_gemm": ("sparse_gemm", 2, _sparse_gemm),
    "fused_gemm": ("fused_gemm", 2, _fused_gemm),
    "weight_gradient": ("weight_gradient", 4, _weight_gradient),
    "batch_gemm": ("batch_gemm", 2, _batch_gemm),
    "grouped_gemm": ("grouped_gemm", 3, _grouped_gemm),
    "conv2d": ("conv2d", 5, _conv2d),
    "pool2d": ("pool2d", 1, _pool2d),
    "optimizer": ("optimizer", 2, _elements(algorithm=ALGORITHMS)),
    "dropout": ("dropout", 1, _elements(dtype=DTYPES, phase=BACKWARD)),
    "activation": ("activation", 1, _elements(function=FUNCTIONS, dtype=DTYPES, phase=BACKWARD)),
    "elementwise": ("elementwise", 2, _elements(ops=CHAINS, dtype=DTYPES, phase=BACKWARD)),
    "generated": ("generated", 2, _elements(ops=GENERATED, dtype=DTYPES, phase=BACKWARD)),
}
