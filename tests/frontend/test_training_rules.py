"""Training by rules: emitted kernels, kept values, and the effect of recomputation and optimizers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from tests.frontend.families import FAMILIES  # noqa: E402
from tests.frontend.test_forward import check_wired  # noqa: E402
from tests.generated import examples  # noqa: E402
from wse_sim.frontend import add_training, load_model, lower  # noqa: E402
from wse_sim.graph import Phase, TensorKind  # noqa: E402


def kept(graph: Any) -> int:
    return sum(k.saved_bytes for k in graph)


def test_two_layers_by_hand() -> None:
    """fc, relu, fc on 3 rows have these kernels, dimensions and kept values."""
    model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5))
    graph = lower(model, (torch.randn(3, 10),), training=True)
    check_wired(graph)
    assert [(k.name, k.family, str(k.phase)) for k in graph] == [
        ("0", "gemm", "forward"),
        ("2", "gemm", "forward"),
        ("2.dw", "gemm", "weight_gradient"),
        ("2.dx", "gemm", "input_gradient"),
        ("0.dact", "activation", "input_gradient"),
        ("0.dw", "gemm", "weight_gradient"),
        ("0.update", "optimizer", "update"),
        ("2.update", "optimizer", "update"),
    ]
    assert graph.kernel("2.dw").dims == {"m": 20, "k": 3, "n": 5}
    assert graph.kernel("2.dw").sample_dim == "k"
    assert graph.kernel("2.dx").dims == {"m": 3, "k": 5, "n": 20}
    assert graph.kernel("0.dw").dims == {"m": 10, "k": 3, "n": 20}
    # Kept: x (3 x 10) and relu's result (3 x 20), which is also the second product's operand; 2 bytes each.
    assert kept(graph) == 2 * (30 + 60)
    # Forward 2 x 3 x (200 + 100); the first layer has no input gradient.
    assert graph.total_flops == 2 * 3 * (2 * 200 + 3 * 100)


def test_residual_gradients_are_summed_once() -> None:
    """x reaches the loss by two routes: there is one sum, and the product's input gradient is one of its parts."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            y = self.a(x)
            return y + self.b(y)

    graph = lower(Residual(), (torch.randn(2, 8),), training=True)
    check_wired(graph)
    total = graph.kernel("b.dsum")
    assert (total.family, total.attrs["inputs"]) == ("elementwise", 2)
    assert total.outputs[0] in graph.kernel("a.dw").inputs


def test_gelu_keeps_its_operand() -> None:
    """gelu's gradient needs its operand, relu's its result."""
    sizes = {}
    for name, function in (("gelu", nn.GELU()), ("relu", nn.ReLU())):
        model = nn.Sequential(nn.Linear(10, 20), function, nn.Linear(20, 5))
        sizes[name] = kept(lower(model, (torch.randn(3, 10),), training=True))
    assert sizes["gelu"] - sizes["relu"] == 2 * 3 * 20


@pytest.mark.slow
def test_attention_keeps_or_recomputes() -> None:
    """Attention weights are 2 x heads x q x kv bytes per layer; recomputing them costs their product."""
    none = load_model(FAMILIES["gpt without dropout"], training=True)
    again = load_model(FAMILIES["gpt without dropout"], training=True, recompute="attention")
    assert kept(none) - kept(again) == 2 * (2 * 4 * 24 * 24)
    assert again.total_flops - none.total_flops == 2 * (2 * 24 * 24 * 64)
    full = load_model(FAMILIES["gpt without dropout"], training=True, recompute="full")
    assert full.facts["recompute"] == "full"


@pytest.mark.slow
def test_dropout_only_in_training() -> None:
    """Learned positions drop a tenth unless stated otherwise, rotary ones nothing, and inference never drops."""
    count = lambda g: sum(k.family == "dropout" and k.phase is Phase.FORWARD for k in g)  # noqa: E731
    assert count(load_model(FAMILIES["gpt"])) == 0
    training = load_model(FAMILIES["gpt"], training=True)
    assert count(training) == 1 + 2 * 2
    assert {k.attrs["dropout"] for k in training if k.family == "attention"} == {0.1}
    assert count(load_model(FAMILIES["llama"], training=True)) == 0


@pytest.mark.thinned(1)
@pytest.mark.parametrize(("optimizer", "state"), [("sgd", 0), ("momentum", 4), ("adamw", 8)])
def test_optimizers(optimizer: str, state: int) -> None:
    """Every parameter is updated once; the moments are fp32."""
    graph = load_model(FAMILIES["gpt"], training=True, optimizer=optimizer)
    updates = [k for k in graph if k.phase is Phase.UPDATE]
    assert sum(k.dims["elements"] for k in updates) == graph.parameters
    updates = [k for k in graph if k.phase is Phase.UPDATE]
    assert sum(int(k.attrs["state_bytes"]) for k in updates) == state * graph.parameters
    assert sum(graph.tensors[t].bytes for k in updates for t in k.inputs) == 4 * graph.parameters
    assert {k.attrs["algorithm"] for k in updates} == {optimizer}


@pytest.mark.slow
def test_precision_levels() -> None:
    """Training stores fp32; products compute in the level's type; inference stores that type."""
    for precision, dtype in (
        ("mixed", "fp16"),
        ("bf16", "bf16"),
        (1, "fp16"),
        ("cbfloat16:0", "cbfloat16"),
        ("cbfloat16", "cbfloat16"),
        ("fp32", "fp32"),
    ):
        training = load_model(FAMILIES["mlp"], training=True, precision=precision)
        weights = {t.dtype for t in training.tensors.values() if t.kind is TensorKind.PARAMETER}
        assert weights == {"fp32"}
        assert {k.dtype for k in training if k.family == "gemm"} == {dtype}
        # Products read a 16-bit copy of the fp32 weights, which the update writes.
        assert {k.attrs["copy"] for k in training if k.phase is Phase.UPDATE} == {dtype != "fp32"}
        inference = load_model(FAMILIES["mlp"], precision=precision)
        assert {t.dtype for t in inference.tensors.values() if t.kind is TensorKind.PARAMETER} == {dtype}
    assert load_model(FAMILIES["mlp"]).kernels[0].attrs["accumulate"] == "fp32"
    assert load_model(FAMILIES["mlp"], precision="fp16").kernels[0].attrs["accumulate"] == "fp16"


def test_broadcast_addends_are_reduced() -> None:
    """A position table added to every sample gets the sum over samples as its gradient."""

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.fc = nn.Parameter(torch.zeros(6, 4)), nn.Linear(4, 3)

        def forward(self, x: Any, t: Any) -> Any:
            return F.cross_entropy(self.fc(x + self.table).flatten(0, 1), t)

    graph = lower(Positions(), (torch.randn(2, 6, 4), torch.zeros(12, dtype=torch.long)), training=True)
    check_wired(graph)
    reduced = next(k for k in graph if k.family == "reduce")
    assert reduced.phase is Phase.WEIGHT_GRADIENT
    assert reduced.dims == {"rows": 24, "cols": 2}
    assert reduced.sample_dim == "cols"


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", ["gpt", "bert", "llama", "resnet", "vit", "mlp", "dit"])
def test_training_graphs_are_wired(name: str) -> None:
    """Every tensor is made before it is read, and every weight has a gradient and an update."""
    graph = load_model(FAMILIES[name], training=True, batch=3)
    check_wired(graph)
    parameters = {t.name for t in graph.tensors.values() if t.kind is TensorKind.PARAMETER}
    assert {p for k in graph if k.phase is Phase.UPDATE for p in k.parameters} == parameters
    made = Counter(t for k in graph for t in k.outputs)
    assert max(made.values()) == 1


@pytest.mark.slow
@examples(4)
@given(
    layers=st.integers(2, 5), heads=st.sampled_from([1, 2, 4]), width=st.sampled_from([4, 8]), ffn=st.integers(8, 40),
    seq=st.integers(2, 30), gated=st.booleans(), batch=st.integers(1, 9),
)  # fmt: skip
def test_any_decoder(
    layers: int, heads: int, width: int, ffn: int, seq: int, gated: bool, batch: int
) -> None:
    """Blocks fold to one, FLOPs follow the closed form, training is three times inference."""
    h, vocab = heads * width, 50
    model = {
        "family": "decoder", "layers": layers, "hidden": h, "heads": heads, "ffn": ffn, "seq": seq, "vocab": vocab,
        "activation": "swiglu" if gated else "gelu", "positions": "rotary" if gated else "learned",
    }  # fmt: skip
    graph = load_model(model, training=True, batch=batch)
    macs = layers * seq * (4 * h * h + (3 if gated else 2) * h * ffn + 2 * seq * h) + seq * h * vocab
    assert graph.forward_flops == 2 * macs * batch
    assert graph.total_flops == 3 * graph.forward_flops
    assert [r.count for r in graph.repeats] == [layers]


def test_add_training_equals_the_door() -> None:
    """A forward graph with `add_training` equals the graph of `training=True`, if nothing is dropped."""
    model = {**FAMILIES["mlp"]}
    forward = load_model(model)
    trained = add_training(forward, optimizer="sgd")
    assert trained.training
    assert trained.forward_flops == forward.forward_flops
    assert Counter(k.phase for k in trained)[Phase.UPDATE] == 4


@pytest.mark.slow
def test_half_type_and_level_are_two_settings():
    """At level 0 kernels that sum over rows compute in fp32, at level 2 products sum in the half type; the type is
    unchanged.
    """
    graphs = {
        (half, level): load_model(FAMILIES["gpt"], precision=f"{half}:{level}")
        for half in ("fp16", "bf16", "cbfloat16")
        for level in (0, 1, 2)
    }
    for (half, level), graph in graphs.items():
        products = {k.attrs["accumulate"] for k in graph.kernels if k.family == "gemm"}
        norms = {k.dtype for k in graph.kernels if k.family == "norm"}
        assert products == {half if level == 2 else "fp32"}
        assert norms == {"fp32" if level == 0 else half}
        assert {k.dtype for k in graph.kernels if k.family == "gemm"} == {half}
