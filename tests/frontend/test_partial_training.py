"""Partial training: a frozen parameter has no gradient, no stream and no update."""

from __future__ import annotations

import pytest
import torch

import wse_sim
from wse_sim.errors import ModelError
from wse_sim.frontend.api import load_model, lower
from wse_sim.frontend.partial import matches
from wse_sim.graph import KernelGraph, Phase

SMALL = {"family": "decoder", "layers": 3, "hidden": 64, "heads": 4, "ffn": 128, "vocab": 500, "seq": 16,
         "positions": "rotary", "activation": "swiglu"}  # fmt: skip


def updated(graph: KernelGraph) -> set[str]:
    """Return the parameters that an optimizer kernel writes."""
    return {name for kernel in graph if kernel.phase is Phase.UPDATE for name in kernel.parameters}


class Tower(torch.nn.Module):
    """Three linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.middle, self.top = (torch.nn.Linear(8, 8, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.top(torch.relu(self.middle(torch.relu(self.low(x))))).sum()


@pytest.mark.parametrize(
    ("name", "pattern", "holds"),
    [
        ("h.3.mlp.up.weight", "h.3", True),
        ("h.31.mlp.up.weight", "h.3", False),
        ("h.3.ln_1.weight", "*.ln_*, lm_head", True),
        ("lm_head.weight", "*.ln_*, lm_head", True),
        ("wte.weight", "*.ln_*, lm_head", False),
    ],
)
def test_a_pattern_holds_for_names_and_for_paths_that_lead_to_them(
    name: str, pattern: str, holds: bool
) -> None:
    """`h.3` is the third block, not the thirty-first."""
    assert matches(name, pattern) is holds


def test_an_option_freezes_as_requires_grad_does() -> None:
    """The kernels are the same, whether PyTorch or the option freezes the parameters."""
    module = Tower()
    module.low.weight.requires_grad_(False)
    args = (torch.zeros(4, 8),)
    said = lower(module, args, training=True)
    asked = lower(Tower(), args, training=True, train="middle,top")
    assert [kernel.name for kernel in said] == [kernel.name for kernel in asked]
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    assert updated(asked) == updated(said) == trained
    assert asked.trained_parameters == sum(p.numel() for p in module.parameters() if p.requires_grad)


@pytest.mark.slow
def test_gradients_stop_where_nothing_before_them_trains() -> None:
    """If only the last block trains, one block of three has gradient kernels, and only its gradients leave the wafer."""
    graph = load_model(SMALL, training=True, train="h.2")
    back = [
        k.layer
        for k in graph
        if k.phase in (Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT) and k.layer.startswith("h.")
    ]
    assert back
    assert {layer.split(".")[1] for layer in back} == {"2"}
    plan = wse_sim.compile(graph, "wse2", mode="weight-streaming", batch=4)
    sent = sum(phase.gradient_bytes for phase in plan.phases)
    # One block: four projections of 64 x 64, three of 64 x 128, two norms of 64; 2 bytes each.
    assert sent == 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64)


@pytest.mark.slow
def test_adapters_train_and_the_model_rests() -> None:
    """Rank 4 on q, k, v (64 to 192) and the output (64 to 64) of three blocks; the user's module is unchanged."""
    graph = load_model(SMALL, training=True, lora=4)
    assert graph.trained_parameters == 3 * 4 * ((64 + 192) + (64 + 64))
    assert all("lora" in name for name in updated(graph))
    module = Tower()
    lowered = lower(module, (torch.zeros(4, 8),), training=True, lora=2, lora_on="top")
    assert updated(lowered) == {"top.lora_A.weight", "top.lora_B.weight"}
    assert isinstance(module.top, torch.nn.Linear)
    assert all(p.requires_grad for p in module.parameters())


@pytest.mark.slow
def test_a_frozen_model_moves_less_and_is_faster() -> None:
    """Weights are sent twice instead of three times, and no gradients return: the step shrinks by a third or more."""
    runs = {
        name: wse_sim.run("gpt2-small", mode="weight-streaming", batch=8, seq=128, wafer="wse3", **more)
        for name, more in (("all", {}), ("head", {"train": "ln_f"}))
    }
    assert runs["head"].step_s < 0.67 * runs["all"].step_s


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"train": "nowhere"}, "--train nowhere names no parameter that trains; there are for example"),
        ({"lora": 4, "lora_on": "nowhere"}, "--lora-on nowhere names no linear layer; there are for example"),
    ],
)
def test_a_pattern_that_holds_for_nothing_is_refused(more: dict, message: str) -> None:
    """The error is one sentence with names that exist."""
    with pytest.raises(ModelError, match=message):
        load_model(SMALL, training=True, **more)


def test_a_graph_that_is_read_already_cannot_be_frozen() -> None:
    """The option applies when a model is read."""
    graph = load_model(SMALL, training=True)
    with pytest.raises(ModelError, match="when the model is loaded"):
        wse_sim.run(graph, train="h.2")
