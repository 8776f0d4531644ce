"""Weights may have any name: that of an operator, of an input, or of a module's method."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from wse_sim.frontend import lower
from wse_sim.frontend.trace import Node, NodeRef, Trace

NAMES = ("matmul", "mul", "relu", "linear", "add", "t", "x", "add_1", "mul_")
"""What torch's export calls the nodes of the model's program, and a name that none has."""


class Named(nn.Module):
    """A product with a parameter of some name, a buffer of another, and a layer."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        setattr(self, name, nn.Parameter(torch.ones(20, 16)))
        self.register_buffer("sum_1", torch.ones(16))
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        y = F.relu(x @ getattr(self, self.name) * 2.0) + self.sum_1
        y = self.layer(y) + 1
        return y.t() @ y + y.sum(0) + y.sum(1).sum()


def counted(model: nn.Module, x: torch.Tensor, training: bool) -> int:
    with FlopCounterMode(display=False) as counter:
        result = model(x)
        if training:
            result.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_weight_may_be_called_like_an_operator(name, training):
    model, x = Named(name), torch.ones(6, 20)
    graph = lower(model, (x,), training=training)
    # y = x W, 2 * 6 * 20 * 16; the layer, 2 * 6 * 16 * 16; y' y, 2 * 16 * 6 * 16.
    assert graph.total_flops == counted(model, x, training)
    assert training or graph.total_flops == 2 * 6 * 16 * (20 + 16 + 16)
    assert name in graph.tensors
    assert len(graph.kernels) == len(lower(Named("weight"), (x,), training=training).kernels)


def test_a_prefix_that_is_dropped_keeps_weights_and_operators_apart():
    """The weight model.add becomes add, which was the operator's name."""
    weight, x = Node("model.add", "model.add", kind="parameter"), Node("model_x", "model_x", kind="input")
    add = Node("add", "add", args=(NodeRef("model_x"), NodeRef("model.add")))
    trace = Trace("m", {node.name: node for node in (weight, x, add)}, (NodeRef("add"),))
    trace.drop_prefix("model", ["x"])
    assert list(trace.nodes) == ["add", "x", "add_"]
    assert trace.nodes["add_"].refs() == [NodeRef("x"), NodeRef("add")]
    assert trace.outputs == (NodeRef("add_"),)
