"""Training graphs against AOTAutograd's joint graph: the same FLOPs and the same products."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.frontend import oracle  # noqa: E402
from wse_sim.frontend import load_model  # noqa: E402
from wse_sim.frontend.parameters import parse_parameters  # noqa: E402
from wse_sim.frontend.zoo import build  # noqa: E402

_SMALL = {"layers": 2, "hidden": 64, "heads": 4, "ffn": 160, "seq": 24, "vocab": 101}

FAMILIES = {
    "gpt": {"family": "decoder", **_SMALL},
    "gpt without dropout": {"family": "decoder", **_SMALL, "dropout": 0.0},
    "gpt untied": {"family": "decoder", **_SMALL, "tied": False},
    "llama": {"family": "decoder", **_SMALL, "kv_heads": 4, "activation": "swiglu", "positions": "rotary"},
    "gpt-j": {"family": "decoder", **_SMALL, "positions": "rotary", "parallel_residual": True, "rotary_dim": 8},
    "bert": {"family": "encoder", **_SMALL},
    "bert with 5 masked": {"family": "encoder", **_SMALL, "mlm_positions": 5},
    "mlp": {"family": "mlp", "layers": 3, "hidden": 50, "input": 784, "classes": 10, "activation": "relu"},
    "resnet": {"family": "resnet", "layers": 18, "input": 64, "classes": 10, "activation": "relu"},
    "resnet deep": {"family": "resnet", "layers": 50, "input": 64, "classes": 10, "activation": "relu"},
    "vit": {"family": "vit", "layers": 2, "hidden": 64, "heads": 4, "ffn": 128, "input": 32, "patch": 8, "classes": 10},
    "dit": {"family": "dit", "layers": 2, "hidden": 64, "heads": 4, "ffn": 128, "input": 16, "patch": 2, "classes": 10},
    "unet": {
        "family": "unet", "layers": 1, "hidden": 32, "heads": 4, "input": 16, "context": 7, "context_width": 24,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_training_costs_what_the_joint_graph_costs(name: str) -> None:
    """Forward, input gradients and weight gradients: FLOPs and shapes, product by product."""
    graph = load_model(FAMILIES[name], training=True)
    module, args = build(parse_parameters(FAMILIES[name]), loss=True)
    joint = oracle.joint(module, args)
    assert graph.total_flops == oracle.flops_of(joint)
    assert oracle.products_in(graph) == oracle.products_of(joint)
