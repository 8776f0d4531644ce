"""A decoder layer of the Qwen2 kind in PyTorch, token by token with a cache; weights are random and rounded to f16."""

from __future__ import annotations

from dataclasses import dataclass

import torch

EPS, THETA = 1e-6, 1e6


@dataclass(frozen=True)
class Sizes:
    """Of a layer: heads of queries, heads of keys and values, elements of a head, of the hidden state and of the gated network."""

    heads: int
    groups: int
    head_size: int
    hidden: int
    inner: int


class Layer:
    """The layer with its cache.  `halves`: round to f16 what the PEs round (inputs of products, the cache); else all in f32."""

    def __init__(self, sizes: Sizes, weights: dict[str, torch.Tensor], *, halves: bool = False) -> None:
        self.sizes, self.weights = sizes, weights
        self.rounded = (lambda t: t.half().float()) if halves else (lambda t: t)
        self.keys = torch.zeros(0, sizes.groups, sizes.head_size)
        self.values = torch.zeros(0, sizes.groups, sizes.head_size)

    def step(self, x: torch.Tensor) -> torch.Tensor:
        """The next token: `hidden` elements in, as many out."""
        w, r = self.weights, self.rounded
        x = x + w["o_proj"] @ r(self._attention(x))
        normed, scale = self._norm(x, w["norm_2"])
        gate, up = scale * (w["gate_proj"] @ normed), scale * (w["up_proj"] @ normed)
        return x + w["down_proj"] @ r(torch.nn.functional.silu(gate) * up)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.rounded(x * weight), torch.rsqrt((x * x).mean() + EPS)

    def _attention(self, x: torch.Tensor) -> torch.Tensor:
        w, s, r = self.weights, self.sizes, self.rounded
        normed, scale = self._norm(x, w["norm_1"])
        q, k, v = (
            (scale * (w[f"{n}_proj"] @ normed) + w[f"{n}_bias"]).view(-1, s.head_size)
            for n in ("q", "k", "v")
        )
        position = len(self.keys)
        self.keys = torch.cat([self.keys, r(turned(k, position))[None]])
        self.values = torch.cat([self.values, r(v)[None]])
        q = r(turned(q, position) / s.head_size**0.5).view(s.groups, -1, s.head_size)
        scores = torch.einsum("ghd,pgd->ghp", q, self.keys)
        weights = torch.exp(scores - scores.amax(-1, keepdim=True))
        mixed = torch.einsum("ghp,pgd->ghd", r(weights), self.values) / weights.sum(-1, keepdim=True)
        return mixed.reshape(-1)


def angles(position: int, head_size: int) -> torch.Tensor:
    """Rotary angles of a position, one for every two elements of a head."""
    return position / THETA ** (torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)


def turned(heads: torch.Tensor, position: int) -> torch.Tensor:
    """Rotary position: element i of the first half of a head and element i of the second turn together."""
    at = angles(position, heads.shape[-1])
    cosine, sine = at.cos().float(), at.sin().float()
    first, second = heads.chunk(2, -1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


def random_weights(sizes: Sizes, seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights with which vectors keep their size; matrices (outputs, inputs) are numbers of f16."""
    generator = torch.Generator().manual_seed(seed)
    queries, keys = sizes.heads * sizes.head_size, sizes.groups * sizes.head_size
    shapes = {
        "q_proj": (queries, sizes.hidden),
        "k_proj": (keys, sizes.hidden),
        "v_proj": (keys, sizes.hidden),
        "o_proj": (sizes.hidden, queries),
        "gate_proj": (sizes.inner, sizes.hidden),
        "up_proj": (sizes.inner, sizes.hidden),
        "down_proj": (sizes.hidden, sizes.inner),
    }
    found = {
        name: (torch.randn(shape, generator=generator) / shape[1] ** 0.5).half().float()
        for name, shape in shapes.items()
    }
    for name, size in (("q_bias", queries), ("k_bias", keys), ("v_bias", keys)):
        found[name] = torch.randn(size, generator=generator) / 2
    for name in ("norm_1", "norm_2"):
        found[name] = 1 + torch.randn(sizes.hidden, generator=generator) / 8
    return found
