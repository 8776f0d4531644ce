"""Models as people write them: tables of tokens, explicit masks, weights as (K, N), dropout, logarithms at the end."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.whole.plans import weights_of
from tests.whole.test_dense_chain import plan_of
from wse_sim import api
from wse_sim.errors import ModelError
from wse_sim.graph import KernelGraph
from wse_sim.whole import host_rows, inputs_over_rows, run_whole, train_whole

T, E, HEADS, WORDS = 4, 16, 2, 12
IDS = torch.arange(3 * T).reshape(3, T) * 5 % WORDS


class Turned(nn.Module):
    """A layer with its weight as (inputs, outputs)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / math.sqrt(inputs))
        self.bias = nn.Parameter(torch.randn(outputs) / 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, outputs)."""
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight).reshape(*x.shape[:-1], -1)


class Spelled(nn.Module):
    """A small language model: tables, causal attention as products, dropout, a logarithm at the end."""

    def __init__(self, fill: float = -math.inf, tied: bool = False) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, E), nn.Embedding(T, E)
        self.norm, self.qkv, self.out = nn.LayerNorm(E), Turned(E, 3 * E), Turned(E, E)
        self.drop, self.head, self.fill = nn.Dropout(0.5), nn.Linear(E, WORDS, bias=False), fill
        self.register_buffer("seen", torch.ones(T, T).tril())
        self.slope: torch.Tensor | None = None  # of scores by distance
        if tied:
            self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> Any:
        """Return the logarithm of the probabilities of every next word."""
        x = self.drop(self.words(ids) + self.places(torch.arange(ids.shape[1])))
        q, k, v = (
            part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(E // HEADS)
        scores = scores if self.slope is None else scores + self.slope
        scores = scores.masked_fill(self.seen == 0, self.fill)
        mixed = self.drop(scores.softmax(-1)) @ v
        x = x + self.drop(self.out(mixed.transpose(1, 2).flatten(2)))
        return F.log_softmax(self.head(x), -1)


def lowered(model: nn.Module, training: bool = False) -> KernelGraph:
    """Return the graph of a model of tokens, as it is on the fabric."""
    how: dict[str, Any] = {"training": True, "optimizer": "sgd"} if training else {}
    return inputs_over_rows(api.lower(model.train(training), (torch.zeros(1, T, dtype=torch.int64),), **how))


@pytest.mark.slow
def test_a_language_model_gives_the_values_of_pytorch() -> None:
    """The host looks tokens up; the fabric computes the rest, including the softmax at the end.

    Seven kernels round to fp16 (2^-11) a few times each.  Without the mask the outputs would differ by far more.
    """
    torch.manual_seed(0)
    model = Spelled()
    graph = lowered(model)
    assert any("the host looks up 'words.weight', 'places.weight'" in note for note in graph.notes)
    assert {kernel.family for kernel in graph} == {"norm", "gemm", "attention", "softmax"}
    rows = host_rows(graph, model, (IDS,))
    with torch.no_grad():
        wanted = model.eval()(IDS).numpy()
        np.testing.assert_array_equal(rows, model.words(IDS) + model.places.weight)
        model.seen.fill_(1.0)
        open_to_all = model(IDS).numpy()
    found = run_whole(plan_of(graph, 48), weights_of(model), rows).outputs
    assert np.abs(found - wanted.reshape(found.shape)).max() < 14 * 2**-11 * np.abs(wanted).max()
    assert np.abs(open_to_all - wanted).max() > 0.1


@pytest.mark.slow
def test_it_trains_without_dropout_and_with_its_tables_at_rest() -> None:
    """Loss, gradients (of weights as they are stored) and the outputs are PyTorch's if dropout is off."""
    torch.manual_seed(0)
    model = Spelled()
    graph = lowered(model, training=True)
    assert any("dropout is left out" in note for note in graph.notes)
    assert any("these tables do not train" in note for note in graph.notes)
    assert any("cross entropy) does the work of 'log_softmax'" in note for note in graph.notes)
    ids = torch.cat([IDS, IDS.flip(1)])[:4]
    labels = (ids * 7 + 1) % WORDS
    plan = plan_of(graph, 48, phase="training", optimizer="sgd", batch=4, mode_options={"replicas": 1})
    rows = host_rows(graph, model, (ids,))
    weights = weights_of(model)
    step = train_whole(plan, weights, rows, labels.numpy().reshape(-1), rate=0.5)
    model.drop.p = 0.0
    outputs = model(ids)
    loss = F.nll_loss(outputs.flatten(0, 1), labels.flatten())
    loss.backward()
    assert abs(step.loss - loss.item()) < 2e-3 * loss.item()
    found = step.outputs.reshape(outputs.shape)
    assert np.abs(found - outputs.detach().numpy()).max() < 14 * 2**-11 * outputs.abs().max().item()
    trained = {name for name, _ in model.named_parameters()} - {"words.weight", "places.weight"}
    assert set(step.gradients) == trained
    for name in trained:
        gradient = model.get_parameter(name).grad.numpy()
        assert np.abs(step.gradients[name] - gradient).max() < 0.01 * np.abs(gradient).max(), name
        np.testing.assert_allclose(step.weights[name], weights[name] - 0.5 * step.gradients[name], atol=1e-6)
    with pytest.raises(
        ModelError, match="part of the cross entropy alone; take that, or leave 'log_softmax' out"
    ):
        train_whole(plan, weights, rows, labels.numpy().reshape(-1), rate=0.5, loss="squared error")


@pytest.mark.slow
def test_a_layer_trains_a_copy_of_a_table() -> None:
    """Its gradient is that of a model whose layer has a weight besides the table; a second step starts from the copy."""
    torch.manual_seed(0)
    model = Spelled(tied=True)
    assert lowered(model).kernel("head").parameters == ("words.weight",)
    graph = lowered(model, training=True)
    assert graph.kernel("head").parameters == ("head.weight",)
    assert any("trains a copy, 'head.weight', without the gradient" in note for note in graph.notes)
    plan = plan_of(graph, 48, phase="training", optimizer="sgd", batch=4, mode_options={"replicas": 1})
    apart = copy.deepcopy(model).eval()
    apart.head.weight = nn.Parameter(model.words.weight.detach().clone())
    ids = torch.cat([IDS, IDS.flip(1)])[:4]
    labels = (ids * 7 + 1) % WORDS
    rows, weights = host_rows(graph, model, (ids,)), weights_of(model)
    del weights["head.weight"]
    for _ in range(2):
        apart.zero_grad()
        F.nll_loss(apart(ids).flatten(0, 1), labels.flatten()).backward()
        step = train_whole(plan, weights, rows, labels.numpy().reshape(-1), rate=0.5)
        wanted = apart.head.weight.grad.numpy()
        assert np.abs(step.gradients["head.weight"] - wanted).max() <= 14 * 2**-11 * np.abs(wanted).max()
        assert "words.weight" not in step.gradients
        with torch.no_grad():
            for name, one in apart.named_parameters():
                if name in step.weights:
                    one -= 0.5 * one.grad
        weights |= step.weights


@pytest.mark.slow
def test_a_mask_that_is_no_triangle_is_not_taken_for_one() -> None:
    """A fill that hides nothing gives other scores than the fabric computes; a sum next to the triangle and a band are values."""
    biased = Spelled()
    biased.slope = torch.linspace(-1.0, 0.0, T * T).reshape(T, T)
    with_both = api.lower(biased.eval(), (IDS[:1],)).kernel("attention")
    assert (with_both.attrs["mask"], with_both.attrs["causal"]) == ("dense", False)
    mild, band = Spelled(fill=-1e-9), Spelled()
    band.seen.copy_(torch.ones(T, T).triu(-1).tril())
    unusual, dense = (api.lower(one.eval(), (IDS[:1],)).kernel("attention").attrs for one in (mild, band))
    assert unusual["unusual"] == "scores"
    assert (dense["mask"], "unusual" in dense) == ("dense", False)
    assert api.lower(Spelled().eval(), (IDS[:1],)).kernel("attention").attrs["causal"]


class Columns(nn.Module):
    """A softmax along the tokens, with as many tokens as features."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(T, T)

    def forward(self, x: torch.Tensor) -> Any:
        """(batch, tokens, features)."""
        return self.layer(x).softmax(1)


def test_a_softmax_of_columns_is_refused() -> None:
    """Its sizes are those of a softmax along the last dimension, but its values differ."""
    from wse_sim.whole import check_graph

    graph = inputs_over_rows(api.lower(Columns(), (torch.zeros(1, T, T),)))
    with pytest.raises(ModelError, match=r"'softmax' reads '.*' in another order than it is stored"):
        check_graph(graph)


@pytest.mark.parametrize("log", [False, True])
def test_a_softmax_region_issues_what_the_plan_prices(log: bool) -> None:
    """The plan counts the instructions of the rows of a core and the words of the ramp, to the cycle."""
    from wse_sim.whole import compare_with_engine

    layer = nn.LogSoftmax(-1) if log else nn.Softmax(-1)
    graph = inputs_over_rows(api.lower(nn.Sequential(nn.Linear(8, 12), layer), (torch.zeros(1, 6, 8),)))
    compared = compare_with_engine(plan_of(graph, 24), 4)
    region = compared.regions[-1]
    assert region.busiest == pytest.approx(region.issued, abs=1.0)
    assert region.engine == pytest.approx(region.issued, rel=0.02)


class TokensFirst(nn.Module):
    """A block as PyTorch has it by default: (tokens, batch, features)."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = nn.TransformerEncoderLayer(E, HEADS, E), nn.Linear(E, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(tokens, batch, 6)."""
        return self.head(self.block(x))


@pytest.mark.slow
def test_tokens_may_come_before_the_batch() -> None:
    """The first dimension of the input counts as samples, and attention shows that it has tokens."""
    torch.manual_seed(0)
    model = TokensFirst().eval()
    graph = inputs_over_rows(api.lower(model, (torch.zeros(T, 1, E),)))
    assert graph.samples == 1
    assert any("the first dimension holds the 4 tokens of one sample" in note for note in graph.notes)
    plan = plan_of(graph, 48)
    x = torch.randn(3, T, E).half().float()
    found = run_whole(plan, weights_of(model), x.numpy()).outputs
    with torch.no_grad():
        wanted = model(x.transpose(0, 1)).transpose(0, 1).numpy()
    assert np.abs(found - wanted.reshape(found.shape)).max() < 16 * 2**-11 * np.abs(wanted).max()


class Counted(nn.Module):
    """A layer on rows of two tables; positions count the words that are no padding (0)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.layer = nn.Embedding(WORDS, E), nn.Embedding(T + 1, E), nn.Linear(E, E)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        is_word = ids.ne(0).int()
        return self.layer(self.words(ids) + self.places((is_word.cumsum(1) * is_word).long()))


def test_the_host_counts_positions() -> None:
    """The sums along the tokens belong to the look-ups, so only the layer is on the fabric."""
    torch.manual_seed(0)
    model = Counted()
    graph = lowered(model)
    assert [kernel.family for kernel in graph] == ["gemm"]
    with torch.no_grad():
        wanted = model(IDS).numpy()
    found = run_whole(plan_of(graph, 16), weights_of(model), host_rows(graph, model, (IDS,))).outputs
    assert np.abs(found - wanted.reshape(found.shape)).max() < 4 * 2**-11 * np.abs(wanted).max()
