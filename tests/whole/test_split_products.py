"""One product for queries, keys and values: the positions of its slices, the three layers it becomes, and PyTorch's own
modules.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.whole.plans import beside_pytorch
from tests.whole.test_dense_chain import plan_of
from wse_sim import api
from wse_sim.errors import ModelError
from wse_sim.graph import KernelGraph
from wse_sim.whole import check_graph, inputs_over_rows, run_whole
from wse_sim.whole.values import check_values

T, E, HEADS = 4, 16, 2


def layer(**how: object) -> nn.TransformerEncoderLayer:
    """Return a block of a transformer, as PyTorch has it."""
    return nn.TransformerEncoderLayer(E, HEADS, 2 * E, batch_first=True, **how)


class SelfAttention(nn.Module):
    """Queries, keys and values from one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(E, HEADS, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        return self.attention(x, x, x, need_weights=False)[0]


class Causal(nn.Module):
    """A block whose tokens do not see later ones."""

    def __init__(self) -> None:
        super().__init__()
        self.block = layer()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        return self.block(x, src_mask=nn.Transformer.generate_square_subsequent_mask(T))


def stacked(first: bool) -> nn.Sequential:
    """Two blocks and a layer."""
    blocks = nn.TransformerEncoder(layer(norm_first=first, activation="gelu"), 2, enable_nested_tensor=False)
    return nn.Sequential(blocks, nn.Linear(E, 6))


MODELS = {
    "attention": (SelfAttention, 48),
    "norms first": (lambda: layer(norm_first=True), 64),
    "norms last": (layer, 64),
    "causal": (Causal, 64),
    "two blocks, norms first": (lambda: stacked(True), 96),
    "two blocks, norms last": (lambda: stacked(False), 96),
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", MODELS)
def test_modules_of_pytorch_give_their_values(name: str) -> None:
    """Dropout is off in eval(); every kernel rounds to fp16 (2^-11) a few times, and so do those after it."""
    make, side = MODELS[name]
    torch.manual_seed(0)
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((parameter + 0.1 * torch.randn_like(parameter)).half())
    plan = plan_of(inputs_over_rows(api.lower(model, (torch.zeros(1, T, E),))), side)
    x = torch.randn(2, T, E).half().float()
    run, wanted = beside_pytorch(model, plan, x)
    bound = 2 * len(plan.stages) * 2.0**-11 * np.abs(wanted).max()
    assert np.abs(run.outputs - wanted).max() < bound
    assert (
        np.abs(wanted - wanted.mean(axis=0)).max() > 10 * bound
    )  # the bound would tell one row from another
    assert run.fabric.words_left == 0


class Packed(nn.Module):
    """One layer for queries, keys and values, and a way to split its outputs."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.qkv, self.order = nn.Linear(E, 3 * E), order

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        q, k, v = ORDERS[self.order](self.qkv(x))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)


def by_heads(part: torch.Tensor) -> torch.Tensor:
    """Reshape (batch, tokens, features) to (batch, heads, tokens, features of a head)."""
    return part.view(*part.shape[:2], HEADS, -1).transpose(1, 2)


Taken = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]
ORDERS: dict[str, Taken] = {
    "chunk": lambda h: tuple(by_heads(part) for part in h.chunk(3, dim=-1)),
    "split": lambda h: tuple(by_heads(part) for part in h.split(E, dim=2)),
    "slices": lambda h: tuple(by_heads(h[..., i * E : (i + 1) * E]) for i in range(3)),
    "unbind": lambda h: h.reshape(*h.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0),
    "values first": lambda h: tuple(by_heads(part) for part in reversed(h.chunk(3, dim=-1))),
    "heads first": lambda h: h.view(*h.shape[:2], HEADS, 3, -1).permute(3, 0, 2, 1, 4).unbind(0),
    "features first": lambda h: tuple(
        part.reshape(*h.shape[:2], -1, HEADS).permute(0, 3, 1, 2) for part in h.chunk(3, dim=-1)
    ),
}


def lowered(order: str, batch: int = 1) -> KernelGraph:
    """Return the kernel graph of one way."""
    return api.lower(Packed(order), (torch.zeros(batch, T, E),))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("order", ORDERS)
def test_where_the_slices_lie_is_told_from_the_views(order: str, batch: int) -> None:
    """One after the other, head by head, with any views. The graph cannot state every other order."""
    packed = lowered(order, batch).kernel("attention").attrs.get("packed", False)
    assert packed == (order in ("chunk", "split", "slices", "unbind"))


def test_a_product_for_all_three_becomes_three_layers() -> None:
    """Rows 0 to 15, 16 to 31, 32 to 47 of weight and bias; as much work as before, and a note that says so."""
    before = lowered("chunk")
    graph = inputs_over_rows(before)
    parts = [kernel for kernel in graph if kernel.family == "gemm"]
    assert [kernel.name for kernel in parts] == ["qkv.q", "qkv.k", "qkv.v"]
    assert [kernel.parameters for kernel in parts] == [
        (f"qkv.weight[{first}:{first + E}]", f"qkv.bias[{first}:{first + E}]") for first in (0, E, 2 * E)
    ]
    assert graph.kernel("attention").inputs == tuple(kernel.outputs[0] for kernel in parts)
    assert (graph.forward_flops, graph.parameters) == (before.forward_flops, before.parameters)
    assert "three layers" in graph.notes[-1]
    graph.validate()


@pytest.mark.thinned(1)
@pytest.mark.parametrize("order", ["values first", "heads first", "features first"])
def test_another_order_has_its_own_rows_of_the_weight(order: str) -> None:
    """Values before keys, or queries, keys and values of each head together: the shapes are equal, the numbers differ."""
    torch.manual_seed(0)
    model = Packed(order).eval()
    plan = plan_of(inputs_over_rows(api.lower(model, (torch.zeros(1, T, E),))), 48)
    x = torch.randn(2, T, E).half().float().numpy()
    assert max(check_values(model, plan, x).largest("outputs")) < 6 * 2.0**-11


class Spelled(nn.Module):
    """Attention whose scores are modified by `change`."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor] | None) -> None:
        super().__init__()
        self.qkv, self.change = nn.Linear(E, 3 * E), change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        q, k, v = ORDERS["chunk"](self.qkv(x))
        if self.change is None:
            out = F.scaled_dot_product_attention(q, k, v, scale=0.9)
        else:
            out = self.change(q @ k.transpose(-2, -1)).softmax(-1) @ v
        return out.transpose(1, 2).reshape(x.shape)


CHANGES = {
    "named": (None, 0.9),
    "none": (lambda scores: scores, 1.0),
    "quotient": (lambda scores: scores / 5.0, 0.2),
    "tensor": (lambda scores: scores * torch.tensor(0.5), 0.5),
    "as usual": (lambda scores: scores * (E / HEADS) ** -0.5, 0.0),
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", CHANGES)
def test_scores_have_the_factor_that_the_model_says(name: str) -> None:
    """1 / sqrt(d) is the factor of most models, but not of all."""
    change, scale = CHANGES[name]
    torch.manual_seed(0)
    model = Spelled(change)
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, T, E),)))
    assert graph.kernel("attention").attrs.get("scale", 0.0) == pytest.approx(scale)
    x = 2 * torch.randn(2, T, E).half().float()
    weights = {key: (8 * value).half().float().numpy() for key, value in model.state_dict().items()}
    model.load_state_dict({key: torch.tensor(value) for key, value in weights.items()})
    outputs = run_whole(plan_of(graph, 48), weights, x.numpy()).outputs
    with torch.no_grad():
        wanted = model(x).numpy().reshape(outputs.shape)
    assert np.abs(outputs - wanted).max() < 0.01 * np.abs(wanted).max()


def test_scores_that_pass_more_than_a_factor_are_refused() -> None:
    """A function twice has the same cost in the plan, but gives different values."""
    graph = api.lower(Spelled(lambda scores: torch.tanh(torch.tanh(scores))), (torch.zeros(1, T, E),))
    with pytest.raises(ModelError, match=r"changes its scores by more than a factor"):
        check_graph(inputs_over_rows(graph))


def test_heads_that_lie_feature_by_feature_are_refused() -> None:
    """Layers of their own: (tokens, features of a head, heads) has the shape of (tokens, heads, features)."""

    class Strided(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(E, E) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (
                layer(x).view(1, T, E // HEADS, HEADS).permute(0, 3, 1, 2)
                for layer in (self.q, self.k, self.v)
            )
            return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)

    graph = api.lower(Strided(), (torch.zeros(1, T, E),))
    with pytest.raises(ModelError, match=r"are not stored head by head"):
        check_graph(inputs_over_rows(graph))
