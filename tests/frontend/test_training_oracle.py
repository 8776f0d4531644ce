"""Training graphs are compared with AOTAutograd's joint graph: the same FLOPs and the same products."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.frontend import oracle  # noqa: E402
from tests.frontend.families import CASES, FAMILIES  # noqa: E402
from wse_sim.frontend import load_model  # noqa: E402
from wse_sim.frontend.parameters import parse_parameters  # noqa: E402
from wse_sim.frontend.zoo import build  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_training_costs_what_the_joint_graph_costs(name: str) -> None:
    """Forward pass, input gradients and weight gradients have the same FLOPs and shapes, product by product."""
    graph = load_model(FAMILIES[name], training=True)
    module, args = build(parse_parameters(FAMILIES[name]), loss=True)
    joint = oracle.joint(module, args)
    assert graph.total_flops == oracle.flops_of(joint)
    assert oracle.products_in(graph) == oracle.products_of(joint)
