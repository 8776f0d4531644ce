"""Draws models, wafers and choices at random, for measurements and tests of whole models on the fabric.

    case = drawn(7)             the case of a seed: kind, phase, wafer, placer and batch are drawn as well
    case.model, case.shape      with parameters away from their defaults, in fp16 numbers

Kinds take turns over successive seeds, so any 12 of them have one of each.  Sizes are small: every core is stepped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from random import Random

import torch
from torch import nn

from benchmarks.whole_fabric import Attention, Block, GatedBlock
from benchmarks.whole_images import Around as AroundImage
from benchmarks.whole_images import Residual, moved
from wse_sim.hardware import Wafer, load_wafer

Made = tuple[nn.Module, tuple[int, ...]]
"""A model, and the shape of a sample."""
ACTIVATIONS: tuple[type[nn.Module], ...] = (nn.ReLU, nn.GELU, nn.SiLU)
PLACERS = ("shelves", "snake", "peel")
EVEN = (16, 24, 32, 48, 64)


class Around(nn.Module):
    """A layer, then others with a skip around them, and an activation of the sum."""

    def __init__(self, features: int, inner: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.first, self.inner, self.after = nn.Linear(features, features), inner, after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        x = self.first(x)
        return self.after(x + self.inner(x))


class Branches(nn.Module):
    """Two layers on one tensor, and the sum, difference or product of their results."""

    def __init__(self, features: int, hidden: int, sign: str) -> None:
        super().__init__()
        self.a, self.b, self.sign = nn.Linear(features, hidden), nn.Linear(features, hidden), sign

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        p, q = self.a(x), self.b(x)
        return p + q if self.sign == "+" else p - q if self.sign == "-" else p * q


class Gated(nn.Module):
    """The second half of a LLaMA block: RMS norm, a gate with SiLU, and a skip around both."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(features, eps=1e-5)
        self.gate, self.up = (nn.Linear(features, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def two(features: int, hidden: int, activation: type[nn.Module]) -> nn.Sequential:
    """Two layers with an activation between."""
    return nn.Sequential(nn.Linear(features, hidden), activation(), nn.Linear(hidden, features))


PARTS: tuple[Callable[[int, int, type[nn.Module]], nn.Module], ...] = (
    lambda n, h, a: Block(n, a()),
    lambda n, h, a: Around(n, two(n, h, a), nn.Identity()),
    lambda n, h, a: Around(n, nn.Sequential(nn.LayerNorm(n), nn.Linear(n, n)), a()),
    lambda n, h, a: Around(n, Around(n, nn.Linear(n, n), a()), nn.Identity()),
    lambda n, h, a: nn.Sequential(nn.RMSNorm(n, eps=1e-5), Attention(n, 2)),
    lambda n, h, a: Gated(n, h),
    two,
)


def parts_model(rng: Random) -> Made:
    """One to three parts on a few tokens."""
    features, tokens = rng.choice((8, 16, 24)), rng.choice((2, 4, 6))
    layers = [
        rng.choice(PARTS)(features, rng.choice((8, 32, 48)), rng.choice(ACTIVATIONS))
        for _ in range(rng.randint(1, 3))
    ]
    return nn.Sequential(*layers, nn.Linear(features, 6)), (tokens, features)


def image_model(rng: Random) -> Made:
    """Convolutions and pooling, then a layer or two."""
    while True:
        channels, side = rng.choice((1, 2, 4)), rng.choice((8, 9, 12))
        shape, layers = (channels, side, side), list[nn.Module]()
        for _ in range(rng.randint(1, 2)):
            filters = rng.choice((4, 8))
            layers += [nn.Conv2d(channels, filters, 3, rng.choice((1, 2)), 1), nn.ReLU()]
            channels = filters
            pool = rng.choice((None, nn.MaxPool2d(2), nn.AvgPool2d(2), nn.MaxPool2d(3, 1, 1)))
            layers += [] if pool is None else [pool]
        flat = nn.Sequential(*layers, nn.Flatten())
        try:
            size = flat(torch.zeros(1, *shape)).shape[1]
        except RuntimeError:  # a window that is larger than what is left of the image
            continue
        head: list[nn.Module] = [nn.Linear(size, 10)]
        if rng.random() < 0.5:
            head = [nn.Linear(size, 16), rng.choice(ACTIVATIONS)(), nn.Linear(16, 10)]
        return nn.Sequential(*flat, *head), shape


# ---- kinds ---------------------------------------------------------------------------------------------------------


def _layers(rng: Random, sizes: list[int], activation: type[nn.Module]) -> nn.Sequential:
    bias = rng.random() < 0.8
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b, bias=bias), activation()]
    return nn.Sequential(*layers[:-1])


def _chain(rng: Random) -> Made:
    sizes = [rng.randint(16, 200), *(rng.randint(10, 140) for _ in range(rng.randint(1, 4)))]
    return _layers(rng, sizes, nn.ReLU), (sizes[0],)


def _streamed(rng: Random) -> Made:
    sizes = [rng.randint(16, 200), *(rng.randint(10, 120) for _ in range(rng.randint(1, 3)))]
    return _layers(rng, sizes, nn.ReLU), (sizes[0],)


def _tokens(rng: Random) -> Made:
    sizes = [2 * rng.randint(8, 40) for _ in range(rng.randint(2, 4))]
    return _layers(rng, sizes, rng.choice(ACTIVATIONS)), (rng.randint(4, 16), sizes[0])


def _norms(rng: Random) -> Made:
    features, layers = rng.choice(EVEN), list[nn.Module]()
    for _ in range(rng.randint(1, 2)):
        layers += [
            rng.choice((nn.LayerNorm(features), nn.RMSNorm(features, eps=1e-5))),
            nn.Linear(features, features),
        ]
    return nn.Sequential(*layers), (rng.randint(4, 16), features)


def _attention(rng: Random) -> Made:
    features = rng.choice((16, 32, 48))
    return Attention(features, rng.choice((1, 2, 4)), is_causal=rng.random() < 0.5), (
        rng.choice((4, 8, 12, 16)),
        features,
    )


def _block(rng: Random) -> Made:
    features, tokens = rng.choice(((16, 4), (16, 8), (32, 8), (24, 6)))
    blocks = [
        Block(features, rng.choice(ACTIVATIONS)(), rng.choice((1, 2, 4))) for _ in range(rng.randint(1, 2))
    ]
    return nn.Sequential(*blocks), (tokens, features)


def _gate(rng: Random) -> Made:
    features, hidden, tokens = rng.choice((16, 24, 32)), 2 * rng.randint(8, 48), rng.randint(3, 12)
    make = rng.choice((Gated, GatedBlock))
    return make(features, hidden), (tokens, features)


def _encoder(rng: Random) -> Made:
    features, heads = rng.choice((16, 32)), rng.choice((1, 2, 4))
    layer = nn.TransformerEncoderLayer(
        features, heads, features * rng.choice((1, 2, 4)), dropout=0.0, batch_first=True,
        norm_first=rng.random() < 0.5, activation=rng.choice(("relu", "gelu")),
    )  # fmt: skip
    return layer, (rng.choice((4, 6, 8, 12)), features)


def _residual(rng: Random, *, training: bool) -> Made:
    """Batch norms are folded into filters in inference; in training there are none."""
    channels, side = rng.choice((4, 8)), rng.choice((8, 12, 16))
    first: list[nn.Module] = [nn.Conv2d(2, channels, 3, stride=2, padding=1), nn.ReLU()]
    for _ in range(rng.randint(1, 2)):
        wider = rng.choice((channels, 2 * channels)) if training else channels
        first += [AroundImage(channels, wider) if training else Residual(channels)]
        channels = wider
    return nn.Sequential(
        *first, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 2 * rng.randint(2, 6))
    ), (2, side, side)


def _depthwise(rng: Random) -> Made:
    """Alternating filters for every channel and filters of one tap; these do not train on the fabric."""
    channels, side = 2 * rng.randint(1, 4), rng.choice((8, 10, 12))
    layers: list[nn.Module] = []
    shape = (channels, side, side)
    for _ in range(rng.randint(1, 3)):
        filters, step = 2 * rng.randint(2, 8), rng.choice((1, 1, 2))
        layers += [
            nn.Conv2d(channels, channels, 3, stride=step, padding=1, groups=channels),
            nn.ReLU(),
            nn.Conv2d(channels, filters, 1),
            nn.ReLU(),
        ]
        channels = filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)), shape


def _branches(rng: Random) -> Made:
    features, tokens = rng.choice(EVEN), rng.randint(3, 16)
    inner = rng.choice(
        (
            lambda: Around(features, two(features, 2 * rng.randint(8, 32), nn.ReLU), nn.Identity()),
            lambda: Around(features, nn.Linear(features, features), rng.choice(ACTIVATIONS)()),
            lambda: Branches(features, features, rng.choice("+-*")),
        )
    )
    return nn.Sequential(inner(), nn.Linear(features, 2 * rng.randint(4, 16))), (tokens, features)


KINDS = (
    "chain", "tokens", "norms", "attention", "block", "gate", "encoder layer", "convolutions", "residual", "depthwise", "branches",
    "streamed",
)  # fmt: skip
LARGE = ("attention", "block", "gate", "encoder layer")
"""Kinds of many regions, which are not on the least wafers."""


@dataclass(frozen=True)
class Case:
    """A model and its run; `side` rows and columns of cores are available to programs."""

    seed: int
    kind: str
    model: nn.Module = dataclasses.field(repr=False)
    shape: tuple[int, ...]
    training: bool
    side: int
    base: str
    placer: str
    batch: int

    @property
    def is_streamed(self) -> bool:
        """True if weights are streamed instead of a pipeline."""
        return self.kind == "streamed"

    @property
    def phase(self) -> str:
        """The phase by its name in options."""
        return "training" if self.training else "inference"

    def wafer(self) -> Wafer:
        """Return a corner of a wafer; with rows outside the programs for streamed weights, whose edges carry what four
        streams do.
        """
        outer = (2 if self.training else 1) if self.is_streamed else 0
        size = {"rows": self.side + 2 * outer, "cols": self.side}
        size |= {"program_rows": self.side, "program_cols": self.side}
        found = load_wafer(self.base).derive(
            **size, io_channels_per_edge=2 if self.is_streamed else self.side // 4
        )
        return found.derive(io_bytes_per_s=4 * 4 * found.clock_hz) if self.is_streamed else found


def drawn(seed: int) -> Case:
    """Return the case of a seed, the same on every machine."""
    rng = Random(seed)
    torch.manual_seed(seed)
    kind = KINDS[seed % len(KINDS)]
    training = kind != "depthwise" and rng.random() < 0.55
    side = rng.choice((32, 40, 48, 64) if kind in LARGE else (16, 20, 24, 32, 40, 48))
    base = "wse3" if rng.random() < 0.25 else "wse2"
    placer, batch = rng.choice(PLACERS), rng.choice((8, 12, 16, 24, 32))
    if kind == "streamed":
        side, batch = rng.choice((16, 20, 24)), rng.choice((32, 64, 96))
    make: dict[str, Callable[[Random], Made]] = {
        "chain": _chain,
        "tokens": _tokens,
        "norms": _norms,
        "attention": _attention,
        "block": _block,
        "gate": _gate,
        "encoder layer": _encoder,
        "convolutions": image_model,
        "residual": lambda r: _residual(r, training=training),
        "depthwise": _depthwise,
        "branches": _branches,
        "streamed": _streamed,
    }
    model, shape = make[kind](rng)
    return Case(seed, kind, moved(model), shape, training, side, base, placer, batch)
