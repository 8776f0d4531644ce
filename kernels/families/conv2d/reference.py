"""Reference values of a convolution and of its gradients, tap by tap."""

from __future__ import annotations

from typing import Any

import numpy as np

from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.family import Array


def compute(
    x: Array,
    filters: Array,
    *,
    stride: int = 1,
    padding: int = 0,
    groups: int = 1,
    dilation: int = 1,
    dtype: str = "fp32",
    parts: int = 1,
) -> Array:
    """Convolve x (b, h, w, c) with filters (r, s, c / groups, k): one product per tap, summed in fp32."""
    x, filters = core.rounded(x, dtype), core.rounded(filters, dtype)
    r, s, _, k = filters.shape
    padded = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    out_h, out_w = (
        (padded.shape[axis] - dilation * (size - 1) - 1) // stride + 1 for axis, size in ((1, r), (2, s))
    )
    out = np.zeros((x.shape[0], out_h, out_w, k), np.float32)
    for i, j, g in np.ndindex(r, s, groups):
        pixels = _tap(padded, dilation * i, dilation * j, stride, out_h, out_w)[
            ..., _slice(g, groups, x.shape[-1])
        ]
        part = core.matmul(
            pixels.reshape(-1, pixels.shape[-1]), filters[i, j][:, _slice(g, groups, k)], parts=parts
        )
        out[..., _slice(g, groups, k)] += part.reshape(*out.shape[:-1], -1)
    return core.rounded(out, dtype)


def gradient(
    x: Array,
    filters: Array,
    g: Array,
    *,
    stride: int = 1,
    padding: int = 0,
    groups: int = 1,
    dilation: int = 1,
    dtype: str = "fp32",
    parts: int = 1,
) -> tuple[Any, Any]:
    """Return the gradients of x and of the filters."""
    x, filters, g = core.rounded(x, dtype), core.rounded(filters, dtype), core.rounded(g, dtype)
    r, s, _, k = filters.shape
    padded = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    d_padded, d_filters = np.zeros_like(padded), np.zeros_like(filters)
    for i, j, group in np.ndindex(r, s, groups):
        inputs, outputs = _slice(group, groups, x.shape[-1]), _slice(group, groups, k)
        flat = np.ascontiguousarray(g[..., outputs]).reshape(-1, k // groups)
        pixels = _tap(padded, dilation * i, dilation * j, stride, *g.shape[1:3])[..., inputs].reshape(
            -1, x.shape[-1] // groups
        )
        d_filters[i, j][:, outputs] = core.matmul(pixels.T, flat, parts=parts)
        back = core.matmul(flat, filters[i, j][:, outputs].T, parts=parts)
        target = _tap(d_padded, dilation * i, dilation * j, stride, *g.shape[1:3])
        target[..., inputs] += back.reshape(*g.shape[:3], -1)
    inner = d_padded[:, padding : padded.shape[1] - padding, padding : padded.shape[2] - padding]
    return core.rounded(inner, dtype), core.rounded(d_filters, dtype)


def _tap(x: Array, i: int, j: int, stride: int, out_h: int, out_w: int) -> Array:
    """Return a view of the pixels under the tap i lines down and j pixels to the right, (b, out_h, out_w,
    c)."""
    return x[:, i : i + stride * out_h : stride, j : j + stride * out_w : stride][:, :out_h, :out_w]


def _slice(group: int, groups: int, channels: int) -> slice:
    size = channels // groups
    return slice(group * size, (group + 1) * size)
