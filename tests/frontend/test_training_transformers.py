"""Training graphs of transformers models are compared with the joint graph: FLOPs and products."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.frontend import oracle  # noqa: E402
from tests.frontend.test_doors import HF  # noqa: E402
from wse_sim.frontend import lower  # noqa: E402


class Loss(torch.nn.Module):
    """A model with its loss, the mean cross entropy of its logits."""

    def __init__(self, model: Any, **fixed: Any) -> None:
        super().__init__()
        self.model, self.fixed = model, fixed

    def forward(self, inputs: Any, target: Any) -> Any:
        logits = self.model(inputs, **self.fixed).logits
        return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama", "gptj", "gpt_neox", "opt", "vit"])
def test_training_costs_what_the_joint_graph_costs(kind: str) -> None:
    """Forward pass, input gradients and weight gradients of models by other authors."""
    transformers = pytest.importorskip("transformers")
    architecture, sizes, _, _ = HF[kind]
    model = getattr(transformers, architecture)
    config = model.config_class(**sizes)
    for name in ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob"):
        if hasattr(config, name):
            setattr(config, name, 0.0)
    image = kind == "vit"
    inputs = torch.randn(2, 3, 32, 32) if image else torch.zeros(2, 12, dtype=torch.long)
    target = torch.zeros(inputs.shape[:1] if image else inputs.shape, dtype=torch.long)
    module = Loss(model(config), **({} if image else {"use_cache": False}))
    graph = lower(module, (inputs, target), training=True)
    joint = oracle.joint(module, (inputs, target))
    assert graph.total_flops == oracle.flops_of(joint)
    assert oracle.products_in(graph) == oracle.products_of(joint)
