"""Reference values of attention and of its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from wse_sim.kernels.blocks.softmax import softmax, softmax_gradient
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.family import Array


def compute(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    mask: Array | None = None,
    keep: Array | None = None,
    dtype: str = "fp32",
    parts: int = 1,
) -> Array:
    """Return softmax(q k^T / sqrt(d) + mask) v for q (b, heads, q, d) and k, v (b, kv_heads, kv, d).

    `keep` is a dropout mask with its scale. All scores are computed; with a causal mask some are then masked.
    """
    return _forward(q, k, v, causal, mask, keep, dtype, parts)[0]


def _forward(
    q: Array, k: Array, v: Array, causal: bool, mask: Array | None, keep: Array | None, dtype: str, parts: int
) -> tuple[Any, Any, Any, Any]:
    q, k, v = (np.asarray(x, np.float32) for x in (q, k, v))
    shared = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, shared, axis=1), np.repeat(v, shared, axis=1)
    scores = core.matmul(q, k.swapaxes(-1, -2), dtype, parts=parts)
    scores = core.binary("mul", scores, q.shape[-1] ** -0.5, dtype)
    if mask is not None:
        scores = core.binary("add", scores, mask, dtype)
    if causal:
        hidden = np.triu(np.ones(scores.shape[-2:], bool), 1 + scores.shape[-1] - scores.shape[-2])
        scores = np.where(hidden, np.float32(-np.inf), scores)
    weights = softmax(scores, dtype=dtype, parts=parts)
    used = weights if keep is None else core.binary("mul", weights, keep, dtype)
    return core.matmul(used, v, dtype, parts=parts), weights, used, (k, v)


def gradient(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    *,
    causal: bool = False,
    mask: Array | None = None,
    keep: Array | None = None,
    dtype: str = "fp32",
    parts: int = 1,
) -> tuple[Any, Any, Any]:
    """Return the gradients of q, k and v: four products and the softmax gradient; scores are recomputed."""
    _, weights, used, (keys, values) = _forward(q, k, v, causal, mask, keep, dtype, parts)
    q, g, heads = np.asarray(q, np.float32), np.asarray(g, np.float32), np.shape(k)[1]
    d_values = core.matmul(used.swapaxes(-1, -2), g, dtype, parts=parts)
    d_used = core.matmul(g, values.swapaxes(-1, -2), dtype, parts=parts)
    d_weights = d_used if keep is None else core.binary("mul", d_used, keep, dtype)
    d_scores = softmax_gradient(weights, d_weights, dtype=dtype, parts=parts)
    d_scores = core.binary("mul", d_scores, q.shape[-1] ** -0.5, dtype)
    d_q = core.matmul(d_scores, keys, dtype, parts=parts)
    d_keys = core.matmul(d_scores.swapaxes(-1, -2), q, dtype, parts=parts)

    def shared(x: Array) -> Array:
        return x.reshape(x.shape[0], heads, -1, *x.shape[2:]).sum(axis=2)

    return d_q, shared(d_keys), shared(d_values)
