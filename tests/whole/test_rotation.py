"""Rotary positions and shared heads of keys: values of the fabric are those of PyTorch, and the plan's period is the fabric's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.whole.plans import weights_of
from tests.whole.test_dense_chain import plan_of
from wse_sim import api
from wse_sim.errors import ModelError
from wse_sim.graph import frozen
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole import (
    check_graph,
    compare_training,
    compare_with_engine,
    constants_of,
    inputs_over_rows,
    run_whole,
)
from wse_sim.whole.parallel_links import link_attributes
from wse_sim.whole.regions.element_work import WorkRegion
from wse_sim.whole.values import check_values

T, D = 6, 8
ROUNDING = 2**-11  # of fp16


def halves(x: torch.Tensor) -> torch.Tensor:
    """Return (-x2, x1) of the halves of a head."""
    return torch.cat([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1)


def neighbours(x: torch.Tensor) -> torch.Tensor:
    """Return (-x2, x1) of neighbours."""
    return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)


def backwards(x: torch.Tensor) -> torch.Tensor:
    """Return (x2, -x1), a rotation in the other direction."""
    return torch.cat([x[..., x.shape[-1] // 2 :], -x[..., : x.shape[-1] // 2]], -1)


class Turned(nn.Module):
    """Attention of one product of queries, keys and values; the first features of queries and keys are turned."""

    def __init__(
        self,
        pairs: Callable[[torch.Tensor], torch.Tensor],
        heads: int = 2,
        shared: int = 2,
        turned: int = D,
    ) -> None:
        super().__init__()
        self.pairs, self.heads, self.shared, self.turned = pairs, heads, shared, turned
        self.qkv = nn.Linear(heads * D, (heads + 2 * shared) * D)
        self.out = nn.Linear(heads * D, heads * D, bias=False)
        angles = torch.arange(T)[:, None] * torch.tensor([0.3, 1.1, 0.05, 0.7])[: turned // 2]
        wide = angles.repeat_interleave(2, 1) if pairs is neighbours else torch.cat([angles, angles], 1)
        self.register_buffer("cos", wide.cos(), persistent=False)
        self.register_buffer("sin", wide.sin(), persistent=False)

    def turn(self, x: torch.Tensor) -> torch.Tensor:
        """Turn (batch, heads, tokens, D)."""
        first, rest = x[..., : self.turned], x[..., self.turned :]
        first = first * self.cos + self.pairs(first) * self.sin
        return first if self.turned == D else torch.cat([first, rest], -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        whole = self.qkv(x).view(len(x), T, -1, D).transpose(1, 2)
        q, k, v = whole.split([self.heads, self.shared, self.shared], 1)
        y = F.scaled_dot_product_attention(
            self.turn(q), self.turn(k), v, is_causal=True, enable_gqa=self.heads != self.shared
        )
        return self.out(y.transpose(1, 2).reshape(len(x), T, -1))


class Image(Turned):
    """Half of a head turns by the row of a token of an image of three columns, the other half by its column."""

    def __init__(self) -> None:
        super().__init__(halves)
        places = torch.arange(T)
        angles = torch.stack([places // 3, places % 3], -1)[..., None] * torch.tensor([0.3, 1.1])
        wide = torch.cat([angles, angles], -1).flatten(1)
        self.register_buffer("cos", wide.cos(), persistent=False)
        self.register_buffer("sin", wide.sin(), persistent=False)

    def turn(self, x: torch.Tensor) -> torch.Tensor:
        """Turn (batch, heads, tokens, D)."""
        parts = zip(x.chunk(2, -1), self.cos.chunk(2, -1), self.sin.chunk(2, -1), strict=True)
        return torch.cat([part * cos + halves(part) * sin for part, cos, sin in parts], -1)


MODELS = {
    "halves": lambda: Turned(halves),
    "neighbours": lambda: Turned(neighbours),
    "a part of the features": lambda: Turned(halves, turned=4),
    "rows and columns of an image": Image,
    "shared heads": lambda: Turned(halves, heads=4, shared=2),
}


def example(model: Turned) -> tuple[torch.Tensor]:
    """Return one sample."""
    return (torch.zeros(1, T, model.heads * D),)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", MODELS)
def test_turned_queries_and_keys_give_the_values_of_pytorch(name: str) -> None:
    """Six roundings of values of about one; a rounded reference is nearer, and the busiest core takes what the plan says."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    plan = plan_of(inputs_over_rows(api.lower(model, example(model))), 48)
    x = np.random.default_rng(0).standard_normal((4, T, model.heads * D)).astype(np.float16)
    checked = check_values(model, plan, x.astype(np.float32))
    assert checked.largest("outputs")[0] <= 6 * ROUNDING
    assert checked.largest("outputs")[1] <= 4 * ROUNDING
    compared = compare_with_engine(plan)
    assert abs(compared.difference) < 0.05
    turned = [one for one in compared.regions if one.name.startswith("rotary")]
    assert len(turned) == 2
    assert all(one.busiest == pytest.approx(one.engine, abs=2) for one in turned)


@pytest.mark.slow
def test_rotations_travel_in_bundles_of_whole_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four heads of queries and two of keys: one or two bundles. Outputs of `run_whole` need the tables as weights."""
    torch.manual_seed(0)
    model = MODELS["shared heads"]().eval()
    graph = inputs_over_rows(api.lower(model, example(model)))
    (attention,) = [kernel for kernel in graph.kernels if kernel.family == "attention"]
    assert attention.attrs["bands"] == 2
    turned = [kernel for kernel in graph.kernels if kernel.family == "rotary"]
    links = link_attributes(graph, {}, {kernel.outputs[0]: 2 for kernel in turned})
    graph = dataclasses.replace(
        graph,
        kernels=tuple(
            dataclasses.replace(one, attrs=frozen({**one.attrs, **links[one.name]})) for one in graph.kernels
        ),
    )
    whole = WorkRegion.splits
    monkeypatch.setattr(WorkRegion, "splits", lambda self, tensor: [n for n in whole(self, tensor) if n > 1])
    plan = plan_of(graph, 48)
    x = torch.randn(3, T, 4 * D).half().float()
    weights = weights_of(model)
    tables = constants_of(graph, model, (x[:1],))
    assert {value.shape for value in tables.values()} == {(T, D)}
    with torch.no_grad():
        wanted = model(x).numpy()
    outputs = run_whole(plan, weights | tables, x.numpy()).outputs
    assert np.abs(outputs.reshape(wanted.shape) - wanted).max() <= 6 * ROUNDING * np.abs(wanted).max()


def test_parts_of_a_product_are_layers() -> None:
    """Of 4 + 2 + 2 heads of 8 features, queries take 32 and keys and values 16 each."""
    model = MODELS["shared heads"]()
    graph = inputs_over_rows(api.lower(model, example(model)))
    products = [kernel for kernel in graph.kernels if kernel.name.startswith("qkv")]
    assert [kernel.dims["n"] for kernel in products] == [4 * D, 2 * D, 2 * D]
    assert [kernel.parameters[0] for kernel in products] == [
        "qkv.weight[0:32]", "qkv.weight[32:48]", "qkv.weight[48:64]",
    ]  # fmt: skip
    assert graph.notes == (
        "2 rotations of positions work on tokens as products make them",
        "1 product is taken in parts; on the fabric every part is a layer",
    )


def test_another_rotation_has_no_program_and_keeps_its_plain_price() -> None:
    """Its pairs are not recognised: a simulation refuses its kernels, and they alone have plain prices."""
    model = Turned(backwards)
    graph = api.lower(model, example(model))
    with pytest.raises(ModelError, match=r"kernel '.*' "):
        check_graph(inputs_over_rows(graph))
    plan = api.compile(graph, "wse2", mode="pipelined", batch=8, prices="composed")
    assert isinstance(plan, PipelinedPlan)
    layers = [one for one in plan.graph.kernels if one.family == "gemm"]
    assert layers
    assert all(one.attrs["orientation"] == "kn" for one in layers)
    assert "which have none" in plan.notes[-1]


def test_tables_of_an_input_are_refused() -> None:
    """Positions that a sample brings are no constants."""

    class Given(Turned):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.cos, self.sin = x[0, :, :D].cos(), x[0, :, :D].sin()
            return super().forward(x)

    model = Given(halves)
    with pytest.raises(ModelError):
        check_graph(inputs_over_rows(api.lower(model, example(model))))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_turned_queries_and_keys_train(name: str) -> None:
    """Two steps: every gradient and weight within some roundings of PyTorch's; the busiest cores take what the plan says."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    graph = inputs_over_rows(api.lower(model, example(model), training=True, optimizer="sgd"))
    plan = plan_of(graph, 48)
    x = np.random.default_rng(0).standard_normal((4, T, model.heads * D)).astype(np.float16)
    labels = np.arange(4 * T) % (model.heads * D)
    checked = check_values(model, plan, x.astype(np.float32), labels, steps=2)
    for kind in ("outputs", "gradient", "update"):
        assert checked.largest(kind)[0] <= 6 * ROUNDING
        assert checked.largest(kind)[1] <= 2 * ROUNDING
    compared = compare_training(plan)
    assert abs(compared.difference) < 0.05
    turned = [one for one in compared.regions if one.name.startswith("rotary")]
    assert len(turned) == 2
    assert all(one.busiest == one.engine for one in turned)


class Layer(nn.Module):
    """A layer of LLaMA between products: norms, rotary positions, heads that share keys, a gated network."""

    def __init__(self) -> None:
        super().__init__()
        n = 2 * D
        self.first, self.turned = nn.Linear(n, n, bias=False), Turned(halves, shared=1)
        self.gate, self.up, self.down = (
            nn.Linear(*size, bias=False) for size in ((n, 2 * n), (n, 2 * n), (2 * n, n))
        )
        self.norms = nn.ModuleList(nn.RMSNorm(n) for _ in range(3))
        self.head = nn.Linear(n, 10, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        x = self.first(x)
        x = x + self.turned(self.norms[0](x))
        y = self.norms[1](x)
        return self.head(self.norms[2](x + self.down(F.silu(self.gate(y)) * self.up(y))))


@pytest.mark.slow
def test_a_layer_of_llama_trains() -> None:
    """Two steps, a dozen roundings between the loss and the first weight."""
    torch.manual_seed(0)
    model = Layer().eval()
    graph = api.lower(model, (torch.zeros(1, T, 2 * D),), training=True, optimizer="sgd")
    plan = plan_of(inputs_over_rows(graph), 96)
    x = np.random.default_rng(0).standard_normal((4, T, 2 * D)).astype(np.float16).astype(np.float32)
    checked = check_values(model, plan, x, np.arange(4 * T) % 10, steps=2)
    for kind in ("outputs", "gradient", "update"):
        assert max(checked.largest(kind)) <= 12 * ROUNDING


def test_order_of_shared_heads_is_needed() -> None:
    """Without it the fabric might give a query the keys of another group."""
    model = MODELS["shared heads"]()
    graph = inputs_over_rows(api.lower(model, example(model)))
    kernels = tuple(
        dataclasses.replace(one, access=dataclasses.replace(one.access, heads=()))
        if one.family == "attention"
        else one
        for one in graph.kernels
    )
    with pytest.raises(
        ModelError, match="shares 2 heads of keys among 4 of queries in an order that is not known"
    ):
        check_graph(dataclasses.replace(graph, kernels=kernels))
