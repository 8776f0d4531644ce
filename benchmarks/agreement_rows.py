"""Points of attention and of row-wise kernels for :mod:`benchmarks.kernel_agreement`.

Tiles as the compiler makes them, scaled down in cores and in keys (queries): 4 to 24 features and 6 to 40 queries or
keys per core, from 48 items up; rows from one per core (a loss over a vocabulary) to dozens (norms of many tokens).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.agreement_products import BACKWARD, DTYPES, PHASES, Sampler

Rng = np.random.Generator


def _attention(mapping: str) -> Sampler:
    """One head of one sample: some lines of cores have its features, others its queries or keys."""

    def sample(rng: Rng) -> dict[str, Any]:
        over, lines = int(rng.integers(1, 6)), int(rng.integers(2, 7))
        features, others, items = (
            int(rng.integers(4, 25)),
            int(rng.integers(6, 41)),
            int(rng.integers(48, 97)),
        )
        how = {"mapping": mapping, "phase": str(rng.choice(BACKWARD)), "dropout": bool(rng.integers(2))}
        wide = {"d": over * features}
        if mapping == "streamed":
            return {**how, **wide, "q": lines * others, "kv": items, "rows": lines, "cols": over}
        return {**how, **wide, "kv": lines * others, "q": items, "rows": over, "cols": lines}

    return sample


def _grid_attention(rng: Rng) -> dict[str, Any]:
    side = int(rng.integers(2, 9))
    q, kv, d = (side * int(v) for v in rng.integers(4, 17, 3))
    if rng.integers(2):
        side, q = int(rng.integers(4, 25)), 1
        kv, d = (side * int(v) for v in rng.integers(4, 25, 2))
    return {"mapping": "grid", "q": q, "kv": kv, "d": d, "rows": side, "cols": side}


def _rows(mappings: tuple[str, ...], phases: tuple[str, ...], **more: tuple[str, ...]) -> Sampler:
    """Rows along lanes, t per core, f features per core."""

    def sample(rng: Rng) -> dict[str, Any]:
        rows, cols, t, f = (
            int(v) for v in (*rng.integers(2, 9, 2), rng.integers(1, 33), rng.integers(4, 65))
        )
        how = {name: str(rng.choice(values)) for name, values in more.items()}
        how |= {"mapping": str(rng.choice(mappings)), "dtype": str(rng.choice(DTYPES))}
        if len(phases) > 1:
            how["phase"] = str(rng.choice(phases))
        return {"m": rows * t, "n": cols * f, "rows": rows, "cols": cols, **how}

    return sample


def _losses(rng: Rng) -> dict[str, Any]:
    """Losses with more cores than rows (each over complete lines of cores), or with complete rows on every core."""
    rows, cols, f = (int(v) for v in (*rng.integers(2, 9, 2), rng.integers(8, 200)))
    m, n = (rows, cols * f) if rng.integers(2) else (rows * cols * int(rng.integers(1, 9)), f)
    how = {"mapping": "streamed", "dtype": str(rng.choice(DTYPES)), "phase": str(rng.choice(BACKWARD))}
    return {"m": m, "n": n, "rows": rows, "cols": cols, **how}


def _topk(rng: Rng) -> dict[str, Any]:
    rows, cols = (int(v) for v in rng.integers(2, 9, 2))
    how = {"rows": rows, "cols": cols, "dtype": str(rng.choice(DTYPES)), "k": int(rng.integers(1, 5))}
    return {"m": rows * cols * int(rng.integers(2, 20)), "n": int(rng.choice([8, 16, 64])), **how}


LANES = ("streamed",)
ROW_SAMPLES: dict[str, tuple[str, int, Sampler]] = {
    # label: (kernel, weight, parameters)
    "attention streamed": ("attention", 3, _attention("streamed")),
    "attention stationary": ("attention", 3, _attention("stationary")),
    "attention grid": ("attention", 2, _grid_attention),
    "softmax rows": ("softmax", 1, _losses),
    "loss": ("cross_entropy", 1, _losses),
    "norm rows": ("norm", 2, _rows(LANES, PHASES, kind=("layer", "rms"))),
    "row_reduce": ("row_reduce", 1, _rows((*LANES, "stationary"), BACKWARD, op=("sum", "mean"))),
    "topk": ("topk", 1, _topk),
}
