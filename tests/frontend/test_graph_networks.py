"""Graph networks with fixed edges: gather by source, sum by target, masks of edges that become lists of places."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from wse_sim.errors import ModelError
from wse_sim.frontend import lower

NODES, EDGES, WIDTH = 12, 40, 8
LIST = torch.randint(0, NODES, (2, EDGES), generator=torch.Generator().manual_seed(1))
LOOPS = int((LIST[0] == LIST[1]).sum())


class Convolution(nn.Module):
    """Sums neighbours without loops, adds each node itself, divides by the degree: a graph convolution."""

    def __init__(self, edges: torch.Tensor | None = LIST) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, 4)
        if edges is not None:
            self.register_buffer("edges", edges)

    def forward(self, x: torch.Tensor, edges: torch.Tensor | None = None) -> torch.Tensor:
        edges = self.edges if edges is None else edges
        edges = edges[:, edges[0] != edges[1]]
        itself = torch.arange(NODES).repeat(2, 1)
        source, target = torch.cat([edges, itself], dim=1)
        degree = torch.zeros(NODES).index_add(0, target, torch.ones(source.numel()))
        y = self.fc(x)
        return torch.zeros_like(y).index_add(0, target, y[source]) / degree[:, None]


def test_edges_in_a_buffer_and_as_an_argument_are_captured_as_they_are():
    """A mask of edges changes the number of edges: it is worked out from the example's edges, and a note says so."""
    held = lower(Convolution(), (torch.zeros(NODES, WIDTH),))
    given = lower(Convolution(None), (torch.zeros(NODES, WIDTH), LIST))
    assert held.total_flops == given.total_flops == 2 * NODES * WIDTH * 4
    for graph in (held, given):
        assert any(note.startswith("values: a choice of elements at") for note in graph.notes)
        (gather,) = [k for k in graph if k.attrs.get("op") == "gather"]
        assert graph.tensors[gather.outputs[0]].shape == (EDGES - LOOPS + NODES, 4)


def test_edges_without_values_are_refused_in_one_sentence():
    """On "meta" nobody knows which edges are loops."""
    with pytest.raises(ModelError, match="depends on values"):
        lower(Convolution(None), (torch.zeros(NODES, WIDTH), LIST.to("meta")))


class Picking(nn.Module):
    """A constant mask picks rows of activations; counts repeat rows; classes that occur are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, 4)
        self.register_buffer("mask", torch.arange(NODES) % 3 == 0)
        self.register_buffer("counts", torch.arange(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)[self.mask]
        y = y.repeat_interleave(self.counts, dim=0)
        return y * torch.unique(self.counts).numel() + torch.nonzero(self.counts).sum()


def test_constant_masks_and_counts_say_the_shape():
    """4 of 12 rows are picked; repeated 0, 1, 2 and 3 times they are 6."""
    graph = lower(Picking(), (torch.zeros(NODES, WIDTH),), training=True)
    shapes = [graph.tensors[k.outputs[0]].shape for k in graph if k.phase.value == "forward"]
    assert shapes[0] == (NODES, 4)
    assert (4, 4) in shapes
    assert shapes[-1] == (6, 4)
