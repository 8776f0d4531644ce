"""What a joined layer is given, and what PyTorch makes of it in float32."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from tests.timing.joined_layer import EPSILON, LOWEST, JoinedLayer
from wse_sim.kernels.contract.family import Case


def held(layer: JoinedLayer, values: np.ndarray, size: int) -> np.ndarray:
    """Values (tokens, features) piece by piece of a line, as cores hold them."""
    order = (1, 2, 0) if layer.is_together else (1, 0, 2)
    return (
        values.reshape(layer.sizes.tokens, layer.sizes.grid, size)
        .transpose(order)
        .reshape(layer.sizes.grid, -1)
    )


def case_of(layer: JoinedLayer, seed: int = 0) -> Case:
    """The program with random weights, and what PyTorch makes of them in float32."""
    s, p, n = layer.sizes, layer.sizes.grid, layer.sizes.tokens
    random = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> torch.Tensor:
        values = (
            torch.randn(shape, generator=random) / shape[0] ** 0.5
            if len(shape) > 1
            else 1 + 0.2 * torch.randn(shape, generator=random)
        )
        return values.half().float()

    hidden, query, ffn = p * s.d, p * s.q, p * s.f
    weights = {
        "wq": drawn(hidden, query),
        "wk": drawn(hidden, query),
        "wv": drawn(hidden, query),
        "wo": drawn(query, hidden),
        "wgate": drawn(hidden, ffn),
        "wup": drawn(hidden, ffn),
        "wdown": drawn(ffn, hidden),
    }
    norms = {"norm 1": drawn(hidden), "norm 2": drawn(hidden)}
    x = torch.randn((n, hidden), generator=random).half().float()
    keys, values = (torch.randn((p, query), generator=random).half().float() for _ in range(2))
    angle = torch.randn((n, p, s.q // 2), generator=random)
    result, new_keys, new_values = _by_torch(layer, x, weights, norms, keys, values, angle)
    inputs = {
        name: _tiles(layer, matrix.numpy(), along=name in ("wo", "wdown")) for name, matrix in weights.items()
    }
    inputs["wq"] = inputs["wq"] / (query // s.heads) ** 0.5
    by_row = {"x": held(layer, x.numpy(), s.d)} | {
        name: norm.numpy().reshape(p, s.d) for name, norm in norms.items()
    }
    allowed = np.arange(p)[:, None] <= p - n + np.arange(n)[None]
    by_row["mask"] = np.where(allowed, 0.0, LOWEST)
    by_col = {
        name: held(layer, turn(angle).reshape(n, -1).numpy(), s.q // 2)
        for name, turn in (("sin", torch.sin), ("cos", torch.cos))
    }
    inputs |= {
        name: np.broadcast_to(found[:, None], (p, p, found.shape[-1])) for name, found in by_row.items()
    }
    inputs |= {name: np.broadcast_to(found[None], (p, p, found.shape[-1])) for name, found in by_col.items()}
    inputs |= {name: old.numpy().reshape(p, p, s.q) for name, old in (("keys", keys), ("values", values))}
    inputs["ones"] = np.ones((p, p, max(s.d, 2)))
    expected = {
        "x": np.broadcast_to(held(layer, result.numpy(), s.d)[:, None], (p, p, s.d * n)),
        "keys": new_keys.numpy().reshape(p, p, s.q), "values": new_values.numpy().reshape(p, p, s.q),
    }  # fmt: skip
    layer.program()
    return Case(
        layer.builder.build(),
        layer.builder.config,
        {k: np.asarray(v, np.float32) for k, v in inputs.items()},
        expected,
    )


def _tiles(layer: JoinedLayer, matrix: np.ndarray, *, along: bool) -> np.ndarray:
    p = layer.sizes.grid
    k, n = (size // p for size in matrix.shape)
    return matrix.reshape(p, k, p, n).transpose((2, 0, 1, 3) if along else (0, 2, 1, 3)).reshape(p, p, k * n)


def _by_torch(
    layer: JoinedLayer,
    x: torch.Tensor,
    weights: dict[str, torch.Tensor],
    norms: dict[str, torch.Tensor],
    keys: torch.Tensor,
    values: torch.Tensor,
    angle: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What leaves the layer, and all keys and values."""
    s, p, n = layer.sizes, layer.sizes.grid, layer.sizes.tokens

    def normed(name: str, rows: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(rows, rows.shape[-1:], norms[name], EPSILON)

    def rotated(rows: torch.Tensor) -> torch.Tensor:
        pieces = rows.reshape(n, p, s.q)
        if layer.is_together:
            first, second = pieces[..., : s.q // 2], pieces[..., s.q // 2 :]
        else:
            first, second = pieces[..., ::2], pieces[..., 1::2]
        turned = first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()
        together = torch.cat(turned, -1) if layer.is_together else torch.stack(turned, -1)
        return together.reshape(n, -1)

    a = normed("norm 1", x)
    keys, values = keys.clone(), values.clone()
    keys[p - n :], values[p - n :] = rotated(a @ weights["wk"]), a @ weights["wv"]

    def heads(rows: torch.Tensor) -> torch.Tensor:
        return rows.reshape(len(rows), s.heads, -1).transpose(0, 1)

    allowed = torch.arange(p)[None] <= p - n + torch.arange(n)[:, None]
    seen = functional.scaled_dot_product_attention(
        heads(rotated(a @ weights["wq"])), heads(keys), heads(values), allowed
    )
    x = x + seen.transpose(0, 1).reshape(n, -1) @ weights["wo"]
    a = normed("norm 2", x)
    return (
        x + (functional.silu(a @ weights["wgate"]) * (a @ weights["wup"])) @ weights["wdown"],
        keys,
        values,
    )
