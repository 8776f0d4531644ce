"""Programs of random operators in random order, for tests of the complete front end.

A program is a list of steps (operator, two numbers).  It works on a pool of tensors, which begins with the arguments: a
step picks the operator's operands among those that suit it by the two numbers, puts its result into the pool, and is left
out where nothing suits.  What no step reads is a result of the module.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Step = tuple[int, int, int]
MOST = 4096  # elements of a tensor in the pool


class Program(nn.Module):
    """The module of a list of steps; weights are created when the first forward pass needs them."""

    def __init__(self, steps: list[Step], args: tuple[Tensor, ...]) -> None:
        super().__init__()
        self.steps = steps
        self.weights, self.parts = nn.ParameterList(), nn.ModuleList()
        self.is_built, self.next = False, [0, 0]
        self.names: list[str] = []
        torch.manual_seed(0)
        with torch.no_grad():
            self.forward(*args)
        self.is_built = True

    def weight(self, *shape: int) -> Tensor:
        """Return the next weight."""
        if not self.is_built:
            self.weights.append(nn.Parameter(torch.randn(shape)))
        self.next[0] += 1
        return self.weights[self.next[0] - 1]

    def part(self, make: Callable[[], nn.Module]) -> nn.Module:
        """Return the next submodule."""
        if not self.is_built:
            self.parts.append(make())
        self.next[1] += 1
        return self.parts[self.next[1] - 1]

    def forward(self, *args: Tensor) -> Any:
        """Run all steps; return the tensors that none of them reads."""
        at, self.next = self.next, [0, 0]
        pool, read = list(args), set[int]()
        for number, (op, one, two) in enumerate(self.steps):
            name, (fits, run, count) = OPERATORS[op % len(OPERATORS)]
            able = [i for i, x in enumerate(pool) if x.is_floating_point() and fits(x)]
            if not able:
                continue
            picked = [able[one % len(able)]]
            if count > 1:  # of equal shape, or one that is repeated
                shape = pool[picked[0]].shape
                same = [
                    i for i in able if pool[i].shape == shape or (count == 3 and _repeats(pool[i], shape))
                ]
                picked.append(same[two % len(same)])
            made = run(self, two, *(pool[i] for i in picked))
            if not self.is_built:
                self.names.append(f"{number} {name} {picked} {tuple(made.shape)}")
            if made.numel() <= MOST:
                pool.append(made)
                read.update(picked)
        self.next = at
        found = [x for i, x in enumerate(pool) if i not in read and i >= len(args) and x.is_floating_point()]
        return tuple(found)


def _any(x: Tensor) -> bool:
    return x.dim() > 0


def _repeats(x: Tensor, shape: torch.Size) -> bool:
    """Return whether a tensor is repeated to a shape."""
    pairs = zip(reversed(x.shape), reversed(shape), strict=False)
    return x.dim() <= len(shape) and all(a in (1, b) for a, b in pairs)


def _rank(*ranks: int) -> Callable[[Tensor], bool]:
    return lambda x: x.dim() in ranks


def _dim(x: Tensor, two: int) -> int:
    return two % x.dim()


def _width(p: Program, two: int) -> int:
    return (1, 3, 4, 8)[two % 4]


def _linear(p: Program, two: int, x: Tensor) -> Tensor:
    wide = _width(p, two)
    return F.linear(x, p.weight(wide, x.shape[-1]), p.weight(wide) if two % 2 else None)


def _frozen(p: Program, two: int, x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.relu(_linear(p, two, x))


def _normed_weight(p: Program, two: int, x: Tensor) -> Tensor:
    w = p.weight(4, x.shape[-1])
    return F.linear(x, w / (w.norm(dim=-1, keepdim=True) + 1))


def _own_weights(p: Program, two: int, x: Tensor) -> Tensor:
    w = _linear(p, two, x.mean(1))
    return torch.bmm(x, w[:, None].expand(-1, x.shape[-1], -1))


def _made_weight(p: Program, two: int, x: Tensor) -> Tensor:
    """A layer whose complete weights another layer makes."""
    wide, made = x.shape[-1], x.reshape(-1, x.shape[-1]).mean(0)
    w = F.linear(made, p.weight(3 * wide, wide))
    return F.linear(x, w.view(3, wide), p.weight(3) if two % 2 else None)


def _low_rank(p: Program, two: int, x: Tensor) -> Tensor:
    w = p.weight(4, 2) @ (p.weight(2, x.shape[-1]).detach() if two % 3 == 0 else p.weight(2, x.shape[-1]))
    return F.linear(x, w, p.weight(4) if two % 2 else None)


def _squared_weight(p: Program, two: int, x: Tensor) -> Tensor:
    w = p.weight(x.shape[-1], x.shape[-1])
    return x @ (w @ w.t())


def _modulated(p: Program, two: int, x: Tensor) -> Tensor:
    b, c, n = x.shape
    w = p.weight(4, c, 1)[None] * F.linear(x.mean(-1), p.weight(c, c))[:, None, :, None]
    return F.conv1d(x.reshape(1, b * c, n), w.reshape(4 * b, c, 1), groups=b).reshape(b, 4, n)


def _attention(p: Program, two: int, x: Tensor) -> Tensor:
    wide = x.shape[-1]
    part = p.part(lambda: nn.MultiheadAttention(wide, 2 if wide % 2 == 0 else 1, batch_first=True))
    made = part(x, x, x, need_weights=bool(two % 2))
    return made[0] + made[1].mean() if two % 2 else made[0]


def _recurrent(kind: str) -> Callable[[Program, int, Tensor], Tensor]:
    def run(p: Program, two: int, x: Tensor) -> Tensor:
        make = lambda: getattr(nn, kind)(x.shape[-1], 4, 1 + two % 2, batch_first=True)  # noqa: E731
        return p.part(make)(x)[0]

    return run


def _sdpa(p: Program, two: int, x: Tensor) -> Tensor:
    q, k, v = (F.linear(x, p.weight(8, x.shape[-1])).unflatten(-1, (2, 4)).transpose(1, 2) for _ in range(3))
    made = F.scaled_dot_product_attention(q, k, v, is_causal=bool(two % 2))
    return made.transpose(1, 2).flatten(2)


def _spelled(p: Program, two: int, x: Tensor) -> Tensor:
    q, k, v = (F.linear(x, p.weight(4, x.shape[-1])) for _ in range(3))
    return torch.softmax(q @ k.transpose(-1, -2) / 2, -1) @ v


def _again(p: Program, two: int, x: Tensor) -> Tensor:
    w = p.weight(4, x.shape[-1])
    return checkpoint(lambda y: torch.tanh(F.linear(y, w)), x, use_reentrant=False)


def _conv(**how: Any) -> Callable[[Program, int, Tensor], Tensor]:
    def run(p: Program, two: int, x: Tensor) -> Tensor:
        c = x.shape[1]
        groups = c if how.get("apart") else 1
        return F.conv1d(
            x, p.weight(c if groups > 1 else 4, c // groups, 1 + two % 2), groups=groups, padding=1
        )

    return run


def _conv2d(p: Program, two: int, x: Tensor) -> Tensor:
    return F.conv2d(
        x, p.weight(3, x.shape[1], 1 + two % 2, 2), p.weight(3), padding=1, stride=1 + two // 2 % 2
    )


def _mask(x: Tensor) -> Tensor:
    return torch.arange(x.shape[-1], device=x.device) % 2 == 0


def _written(x: Tensor, d: int) -> Tensor:
    y = x.clone()
    y.select(d, 0).fill_(1.0)
    y[..., -1:] = 0.5 * x[..., :1]
    return y


def _looked_up(p: Program, two: int, x: Tensor) -> Tensor:
    return F.embedding(x.argmax(-1), p.weight(x.shape[-1], 4))


def _batch_norm(p: Program, two: int, x: Tensor) -> Tensor:
    return p.part(lambda: nn.BatchNorm1d(x.shape[1]))(x)


Operator = tuple[Callable[[Tensor], bool], Callable[..., Tensor], int]
_MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    **{
        name: getattr(torch, name)
        for name in ("relu", "tanh", "sigmoid", "abs", "square", "neg", "sin", "erf")
    },
    **{
        name: getattr(F, name)
        for name in ("gelu", "silu", "softplus", "elu", "leaky_relu", "hardswish", "mish")
    },
    "exp": lambda x: x.clamp(-2, 2).exp(),
    "root": lambda x: (x.abs() + 1).sqrt(),
    "power": lambda x: x**3,
    "scale": lambda x: 0.5 * x + 1,
    "detach": lambda x: x.detach(),
    "clone": lambda x: x.clone(),
    "dropout": lambda x: F.dropout(x, 0.1),
    "in place": lambda x: x.clone().mul_(2).relu_(),
    "positive": lambda x: torch.where(x > 0, x, 0.1 * x),
    "whole": lambda x: x.square().mean(),
    "steps": torch.round,
    "signs": torch.sign,
    "rounded": lambda x: x + (x.round() - x).detach(),
}
_WITH_DIM: dict[str, Callable[[Tensor, int], Tensor]] = {
    "softmax": lambda x, d: x.softmax(d),
    "log_softmax": lambda x, d: x.log_softmax(d),
    "sum": lambda x, d: x.sum(d),
    "mean": lambda x, d: x.mean(d, keepdim=True),
    "max": lambda x, d: x.amax(d),
    "variance": lambda x, d: x.var(d, correction=0),
    "norm": lambda x, d: x.norm(dim=d),
    "cumsum": lambda x, d: x.cumsum(d),
    "first": lambda x, d: x.select(d, 0),
    "half": lambda x, d: x.chunk(2, d)[-1],
    "taken": lambda x, d: x.index_select(d, torch.tensor([0, 0], device=x.device)),
    "unsqueeze": lambda x, d: x.unsqueeze(d) if x.dim() < 4 else x,
    "flip": lambda x, d: x.flip(d),
    "roll": lambda x, d: x.roll(1, d),
    "twice": lambda x, d: torch.cat([x, x], d),
    "turned": lambda x, d: x.transpose(d, 0),
    "best": lambda x, d: x.topk(1, d)[0],
    "normalize": lambda x, d: F.normalize(x, dim=d),
    "triangle": lambda x, d: x.tril() if x.dim() > 1 else x,
    "masked": lambda x, d: x.masked_fill(_mask(x), -1.0),
    "where": lambda x, d: torch.where(_mask(x), x, 0.0),
    "logarithm of sums": lambda x, d: x.logsumexp(d),
    "product": lambda x, d: x.clamp(-1, 1).prod(d),
    "gated": lambda x, d: F.glu(torch.cat([x, x], d), d),
    "written": _written,
    "sorted": lambda x, d: x.sort(d)[0],
    "places": lambda x, d: x[..., [0, -1]],
    "gathered": lambda x, d: x.gather(d, torch.zeros_like(x, dtype=torch.long)),
    "scattered": lambda x, d: torch.zeros_like(x).scatter(d, torch.zeros_like(x, dtype=torch.long), x),
    "parts": lambda x, d: sum(x.unbind(d)),
    "split": lambda x, d: torch.stack(x.split(1, d)).sum(0),
    "centred": lambda x, d: x - x.mean(d, keepdim=True),
    "spread": lambda x, d: x.std(d, keepdim=True),
    "windows": lambda x, d: x.unfold(d, 1, 1) if x.dim() < 4 else x,
    "outer": lambda x, d: x.unsqueeze(-1) * x.unsqueeze(-2) if x.dim() < 4 else x,
}
_TWO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "subtract": torch.sub,
    "times": torch.mul,
    "over": lambda x, y: x / (y.abs() + 1),
    "least": torch.minimum,
    "joined": lambda x, y: torch.cat([x, y], -1),
    "stacked": lambda x, y: torch.stack([x, y]) if x.dim() < 4 else x + y,
    "like": lambda x, y: F.cosine_similarity(x, y, dim=-1),
    "error": F.mse_loss,
    "straight through": lambda x, y: x + (y - x).detach(),
}
_BROADCAST: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "shifted by": torch.add,
    "scaled by": torch.mul,
    "divided by": lambda x, y: x / (y.square() + 1),
    "larger of": torch.maximum,
}
OPERATORS: list[tuple[str, Operator]] = [
    *((n, (lambda x: True, lambda p, two, x, f=f: f(x), 1)) for n, f in _MAPS.items()),
    *((n, (_any, lambda p, two, x, f=f: f(x, _dim(x, two)), 1)) for n, f in _WITH_DIM.items()),
    *((n, (_any, lambda p, two, x, y, f=f: f(x, y), 2)) for n, f in _TWO.items()),
    *((n, (lambda x: True, lambda p, two, x, y, f=f: f(x, y), 3)) for n, f in _BROADCAST.items()),
    ("looked up", (_any, _looked_up, 1)),
    ("batch norm", (lambda x: x.dim() in (2, 3) and len(x) > 1, _batch_norm, 1)),
    ("prelu", (_any, lambda p, two, x: F.prelu(x, p.weight(1)), 1)),
    ("linear", (_any, _linear, 1)),
    ("frozen linear", (_any, _frozen, 1)),
    ("normed weight", (_any, _normed_weight, 1)),
    ("made weight", (_any, _made_weight, 1)),
    ("low rank", (_any, _low_rank, 1)),
    ("squared weight", (_rank(2, 3, 4), _squared_weight, 1)),
    ("checkpoint", (_any, _again, 1)),
    ("weight of samples", (_rank(3), _own_weights, 1)),
    ("modulated", (_rank(3), _modulated, 1)),
    ("bias", (_any, lambda p, two, x: x + p.weight(x.shape[-1]), 1)),
    ("gain", (_any, lambda p, two, x: x * p.weight(x.shape[-1]), 1)),
    ("matmul", (_rank(2, 3, 4), lambda p, two, x: x @ p.weight(x.shape[-1], _width(p, two)), 1)),
    ("left matmul", (_rank(2, 3, 4), lambda p, two, x: p.weight(_width(p, two), x.shape[-2]) @ x, 1)),
    ("gram", (_rank(2, 3, 4), lambda p, two, x, y: x @ y.transpose(-1, -2), 2)),
    ("einsum", (_rank(3), lambda p, two, x, y: torch.einsum("bij,bkj->bki", x, y), 2)),
    ("addmm", (_rank(2), lambda p, two, x: torch.addmm(p.weight(4), x, p.weight(x.shape[-1], 4)), 1)),
    ("layer norm", (_any, lambda p, two, x: F.layer_norm(x, x.shape[-1:], p.weight(x.shape[-1])), 1)),
    ("rms norm", (_any, lambda p, two, x: F.rms_norm(x, x.shape[-1:], p.weight(x.shape[-1])), 1)),
    ("group norm", (_rank(3, 4), lambda p, two, x: F.group_norm(x, 1, p.weight(x.shape[1])), 1)),
    ("convolution", (_rank(3), _conv(), 1)),
    ("depthwise", (_rank(3), _conv(apart=True), 1)),
    ("convolution 2d", (_rank(4), _conv2d, 1)),
    ("transposed", (_rank(3), lambda p, two, x: F.conv_transpose1d(x, p.weight(x.shape[1], 3, 2), stride=2), 1)),
    ("pool", (lambda x: x.dim() == 3 and x.shape[-1] > 1, lambda p, two, x: F.avg_pool1d(x, 2), 1)),
    ("largest", (lambda x: x.dim() == 3 and x.shape[-1] > 1, lambda p, two, x: F.max_pool1d(x, 2), 1)),
    ("larger", (_rank(3), lambda p, two, x: F.interpolate(x, scale_factor=2.0), 1)),
    ("pad", (_any, lambda p, two, x: F.pad(x, (1, 0)), 1)),
    ("attention", (_rank(3), _attention, 1)),
    ("sdpa", (_rank(3), _sdpa, 1)),
    ("spelled attention", (_rank(3), _spelled, 1)),
    *((kind, (_rank(3), _recurrent(kind), 1)) for kind in ("RNN", "GRU", "LSTM")),
    ("flatten", (_rank(3, 4), lambda p, two, x: x.flatten(1), 1)),
    ("line", (_rank(2), lambda p, two, x: x.unflatten(-1, (-1, 1)), 1)),
    ("squeeze", (_any, lambda p, two, x: x.squeeze(), 1)),
    ("permute", (_rank(3), lambda p, two, x: x.permute(*((1, 2, 0), (2, 0, 1), (0, 2, 1))[two % 3]), 1)),
    ("repeat", (lambda x: x.dim() > 0 and prod(x.shape) < 512, lambda p, two, x: x.repeat(2, *[1] * (x.dim() - 1)), 1)),
    ("classes", (_rank(2), lambda p, two, x: F.cross_entropy(x, torch.zeros(len(x), dtype=torch.long, device=x.device)), 1)),
]  # fmt: skip
