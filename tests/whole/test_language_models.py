"""Layers of language models as people write them: masks added to scores, norms of heads, products of all heads, raised scales."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.whole.test_dense_chain import plan_of
from tests.whole.test_rotation import halves
from wse_sim import api
from wse_sim.errors import ModelError
from wse_sim.graph import KernelGraph, TensorKind
from wse_sim.whole import check_graph, compare_training, compare_with_engine, inputs_over_rows
from wse_sim.whole.trained.coverage import check_any
from wse_sim.whole.values import check_values

T, H, D = 6, 2, 8
ROUNDING = 2**-11  # of fp16


def window(tokens: int = T, width: int = 3) -> torch.Tensor:
    """Return which keys a query sees: itself and those just before it."""
    return torch.ones(tokens, tokens).tril().triu(1 - width).bool()


def slopes(heads: int = H, tokens: int = T) -> torch.Tensor:
    """Return distances times a slope per head, (heads, 1, tokens), as ALiBi has them."""
    return -torch.arange(1.0, heads + 1)[:, None, None] * torch.arange(tokens).flip(0) / 4


class Layer(nn.Module):
    """Attention of separate queries, keys and values; `mix` makes the results of the heads."""

    def __init__(self, heads: int = H, shared: int = H) -> None:
        super().__init__()
        self.heads, self.shared = heads, shared
        self.q, self.k, self.v = (nn.Linear(heads * D, count * D) for count in (heads, shared, shared))
        self.out = nn.Linear(heads * D, heads * D)

    def parts(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return queries, keys and values (batch, heads, tokens, D)."""
        return [one(x).view(len(x), T, -1, D).transpose(1, 2) for one in (self.q, self.k, self.v)]

    def mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.shared)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        return self.out(self.mix(*self.parts(x)).transpose(1, 2).reshape(len(x), T, -1))


class Windowed(Layer):
    """A mask of booleans."""

    def __init__(self, **sizes: int) -> None:
        super().__init__(**sizes)
        self.register_buffer("seen", window())

    def mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.seen)


class Sloped(Layer):
    """Distances per head are added to spelled scores, and a later step hides keys and multiplies what was added."""

    def __init__(self, **sizes: int) -> None:
        super().__init__(**sizes)
        self.register_buffer("slope", slopes(self.heads), persistent=False)
        self.register_buffer("hidden", ~window(width=T), persistent=False)

    def mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = (q @ k.transpose(-1, -2) + self.slope) / math.sqrt(D)
        return torch.softmax(scores.masked_fill(self.hidden, -math.inf), -1) @ v


class Biased(Layer):
    """Samples and heads are one dimension, and a product adds the distances: its scores are ``slope + q k / sqrt(D)``."""

    def __init__(self, **sizes: int) -> None:
        super().__init__(**sizes)
        self.qkv = nn.Linear(self.heads * D, self.heads * 3 * D)
        self.register_buffer("slope", slopes(self.heads), persistent=False)
        self.register_buffer(
            "seen", torch.where(window(width=T), 0.0, torch.finfo(torch.float32).min), persistent=False
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b = len(x)
        q, k, v = (
            one.transpose(1, 2).reshape(b * self.heads, T, D)
            for one in self.qkv(x).view(b, T, self.heads, 3, D).unbind(3)
        )
        scores = (
            self.slope.repeat(b, 1, 1)
            .baddbmm(q, k.transpose(1, 2), beta=1.0, alpha=D**-0.5)
            .view(b, self.heads, T, T)
        )
        weights = torch.softmax(scores + self.seen, -1).view(b * self.heads, T, T)
        mixed = torch.bmm(weights, v).view(b, self.heads, T, D).permute(0, 2, 1, 3).reshape(b, T, -1)
        return self.out(mixed)


class Turns(Layer):
    """Rotary positions of queries and keys."""

    def __init__(self, **sizes: int) -> None:
        super().__init__(**sizes)
        angles = torch.arange(T)[:, None] * torch.tensor([0.3, 1.1, 0.05, 0.7]).repeat(2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def turn(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.cos + halves(x) * self.sin

    def mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return super().mix(self.turn(q), self.turn(k), v)


class Raised(nn.Module):
    """An RMS norm with the scale ``1 + weight``."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features) / 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1.0 + self.weight)


class Centred(nn.Module):
    """A layer norm with a scale only, written out."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(-1, keepdim=True)
        spread = (x - mean).pow(2).mean(-1, keepdim=True)
        return self.weight * ((x - mean) * torch.rsqrt(spread + 1e-5))


class Normed(Turns):
    """Every head of queries and keys has a norm, before (`first`) or behind the exchange of tokens and heads."""

    def __init__(self, first: bool = True, **sizes: int) -> None:
        super().__init__(**sizes)
        self.first, self.of_q, self.of_k = first, nn.RMSNorm(D, eps=1e-6), Raised(D)

    def parts(self, x: torch.Tensor) -> list[torch.Tensor]:
        q, k, v = (one(x).view(len(x), T, -1, D) for one in (self.q, self.k, self.v))
        if self.first:
            return [one.transpose(1, 2) for one in (self.of_q(q), self.of_k(k), v)]
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        return [self.of_q(q), self.of_k(k), v]


class HeadByHead(Turns):
    """One product makes queries, keys and values of the first head, then those of the second."""

    def __init__(self, **sizes: int) -> None:
        super().__init__(**sizes)
        self.norm, self.qkv = Centred(self.heads * D), nn.Linear(self.heads * D, self.heads * 3 * D)

    def parts(self, x: torch.Tensor) -> list[torch.Tensor]:
        return list(self.qkv(self.norm(x)).view(len(x), T, -1, 3 * D).transpose(1, 2).chunk(3, -1))


class Capped(Layer):
    """Scores between -2 and 2, with a window behind."""

    def mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = torch.tanh(q @ k.transpose(2, 3) * D**-0.5 / 2.0) * 2.0
        hidden = torch.where(window(), 0.0, torch.finfo(torch.float32).min)
        return torch.softmax(scores + hidden, -1) @ v


class Listed(Turns):
    """Keys and values of one head are taken by lists of places, and repeated for all queries of spelled scores."""

    def __init__(self) -> None:
        super().__init__(heads=4, shared=1)
        self.qkv = nn.Linear(4 * D, 6 * D, bias=False)

    def parts(self, x: torch.Tensor) -> list[torch.Tensor]:
        whole = (x @ self.qkv.weight.T).view(len(x), T, 6, D)
        return [one.transpose(1, 2) for one in (whole[:, :, :-2], whole[:, :, [-2]], whole[:, :, [-1]])]

    def mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k = self.turn(q), self.turn(k)
        k, v = (one[:, :, None].expand(-1, -1, 4, -1, -1).reshape(len(q), 4, T, D) for one in (k, v))
        scores = q @ k.transpose(2, 3) * D**-0.5
        scores = torch.where(window(width=T), scores, torch.finfo(torch.float32).min)
        return torch.softmax(scores, -1) @ v


class Cached(Turns):
    """Returns its keys and values as well, and a product that makes both."""

    def __init__(self) -> None:
        super().__init__()
        self.kv = nn.Linear(H * D, 2 * H * D)

    def forward(self, x: torch.Tensor) -> Any:
        q = self.q(x).view(len(x), T, -1, D).transpose(1, 2)
        k, v = (one.view(len(x), T, -1, D).transpose(1, 2) for one in self.kv(x).chunk(2, -1))
        k = self.turn(k)
        y = F.scaled_dot_product_attention(self.turn(q), k, v, is_causal=True)
        return {"result": self.out(y.transpose(1, 2).reshape(len(x), T, -1)), "cache": [(k, v)]}


MODELS = {
    "keys and values returned": Cached,
    "lists of places": Listed,
    "window": Windowed,
    "slopes": Sloped,
    "slopes of a product": Biased,
    "norms of heads": Normed,
    "norms behind the exchange": lambda: Normed(first=False),
    "norms of shared heads": lambda: Normed(heads=4, shared=2),
    "head by head": HeadByHead,
}
QUICK = ("window", "norms of shared heads")


def model_of(name: str) -> Any:
    torch.manual_seed(0)
    return MODELS[name]().eval()


def graph_of(model: Layer, **how: Any) -> KernelGraph:
    return inputs_over_rows(api.lower(model, (torch.zeros(1, T, model.heads * D),), **how))


def samples_of(model: Layer) -> np.ndarray:
    return (
        np.random.default_rng(0)
        .standard_normal((4, T, model.heads * D))
        .astype(np.float16)
        .astype(np.float32)
    )


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_values_are_those_of_pytorch(name: str) -> None:
    """Some roundings of values of about one; the period is within some percent of the engine's."""
    model = model_of(name)
    plan = plan_of(graph_of(model), 48)
    checked = check_values(model, plan, samples_of(model))
    assert checked.largest("outputs")[0] <= 6 * ROUNDING
    assert checked.largest("outputs")[1] <= 4 * ROUNDING
    assert abs(compare_with_engine(plan, 6).difference) < 0.06


@pytest.mark.slow
def test_bounded_scores_do_not_train() -> None:
    """In inference they do: three times as large queries come near the bound; a graph that trains says what is missing."""
    torch.manual_seed(0)
    model = Capped().eval()
    with torch.no_grad():
        model.q.weight *= 3
    plan = plan_of(graph_of(model), 48)
    checked = check_values(model, plan, samples_of(model))
    assert checked.largest("outputs")[0] <= 6 * ROUNDING
    assert checked.largest("outputs")[1] <= 4 * ROUNDING
    assert abs(compare_with_engine(plan, 6).difference) < 0.06
    with pytest.raises(
        ModelError, match="bounds its scores by 2, which trains on no program; leave the bound out"
    ):
        check_any(graph_of(model, training=True, optimizer="sgd"))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_they_train(name: str) -> None:
    """Two steps: every gradient and weight within some roundings of PyTorch's."""
    model = model_of(name)
    plan = plan_of(graph_of(model, training=True, optimizer="sgd"), 48)
    labels = np.arange(4 * T) % (model.heads * D)
    checked = check_values(model, plan, samples_of(model), labels, steps=2)
    for kind in ("outputs", "gradient", "update"):
        assert checked.largest(kind)[0] <= 8 * ROUNDING
        assert checked.largest(kind)[1] <= 3 * ROUNDING
    assert abs(compare_training(plan).difference) < 0.15


@pytest.mark.slow
def test_bands_of_heads_have_the_masks_of_their_heads() -> None:
    """Four heads in bands, with a slope per head: on rows for two bands or more."""
    torch.manual_seed(0)
    model = Sloped(heads=4, shared=4).eval()
    graph = graph_of(model)
    assert graph.kernel("attention").attrs["bands"] == 4
    checked = check_values(model, plan_of(graph, 64), samples_of(model))
    assert checked.largest("outputs")[1] <= 4 * ROUNDING


def test_masks_of_a_graph() -> None:
    """A triangle is causal and has no values; a window has a table for all heads, slopes one per head."""
    mask = graph_of(model_of("slopes")).kernel("attention")
    assert mask.parameters == ("attention.mask",)
    assert graph_of(model_of("slopes")).tensors["attention.mask"].shape == (H, T, T)
    assert graph_of(model_of("window")).tensors["attention.mask"].shape[0] == 1


def test_keys_and_values_that_are_returned_stay_on_the_wafer() -> None:
    """One result leaves."""
    graph = graph_of(model_of("keys and values returned"))
    assert "2 results with keys and values for later tokens stay on the wafer" in graph.notes
    assert [name for name, one in graph.tensors.items() if one.kind is TensorKind.OUTPUT] == ["out.out"]


def test_head_by_head_gives_products_of_whole_heads() -> None:
    """Rows 0 to 7 of the weight make queries of the first head, 8 to 15 its keys, 24 to 31 queries of the second."""
    graph = graph_of(model_of("head by head"))
    derived = [
        graph.tensors[one.parameters[0]].derived for one in graph.kernels if one.name.startswith("qkv")
    ]
    assert [one.taken for one in derived if one] == [
        ((0, ((first, D, 1), (first + 3 * D, D, 1))),) for first in (0, D, 2 * D)
    ]


def test_a_mask_of_an_input_is_refused() -> None:
    """Its values are not known before a sample arrives."""

    class Given(Layer):
        def mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=v[..., :1].transpose(-1, -2).expand(-1, -1, T, -1)
            )

    with pytest.raises(ModelError, match="mask that depends on inputs"):
        check_graph(graph_of(Given()))


@pytest.mark.slow
def test_norms_behind_sums_keep_the_pace() -> None:
    """Routes avoid the links on which other layers send their rows, and a store receives two words per cycle; without both it
    takes 16 % longer."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 64, 0.0, activation="gelu", batch_first=True)
    model = nn.Sequential(nn.Linear(64, 64), layer).eval()
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, 11, 64),)))
    assert abs(compare_with_engine(plan_of(graph, 80), 8).difference) < 0.02
