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
    """A graph convolution: it sums neighbours without loops, adds each node itself, and divides by the degree."""

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


@pytest.mark.slow
def test_edges_in_a_buffer_and_as_an_argument_are_captured_as_they_are():
    """A mask of edges changes the number of edges: it is computed from the example's edges, and a note states this."""
    held = lower(Convolution(), (torch.zeros(NODES, WIDTH),))
    given = lower(Convolution(None), (torch.zeros(NODES, WIDTH), LIST))
    assert held.total_flops == given.total_flops == 2 * NODES * WIDTH * 4
    for graph in (held, given):
        assert any(note.startswith("values: a choice of elements at") for note in graph.notes)
        (gather,) = [k for k in graph if k.attrs.get("op") == "gather"]
        assert graph.tensors[gather.outputs[0]].shape == (EDGES - LOOPS + NODES, 4)


def test_edges_without_values_are_refused_in_one_sentence():
    """On "meta" it is unknown which edges are loops."""
    with pytest.raises(ModelError, match="depends on values"):
        lower(Convolution(None), (torch.zeros(NODES, WIDTH), LIST.to("meta")))


class Picking(nn.Module):
    """A constant mask selects rows of activations; counts repeat rows; occurring classes are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, 4)
        self.register_buffer("mask", torch.arange(NODES) ** 0.5 % 1 == 0)  # squares: irregular steps
        self.register_buffer("counts", torch.arange(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)[self.mask]
        y = y.repeat_interleave(self.counts, dim=0)
        return y * torch.unique(self.counts).numel() + torch.nonzero(self.counts).sum()


@pytest.mark.slow
def test_constant_masks_and_counts_say_the_shape():
    """4 of 12 rows, the squares, are selected; repeated 0, 1, 2 and 3 times they are 6."""
    graph = lower(Picking(), (torch.zeros(NODES, WIDTH),), training=True)
    shapes = [graph.tensors[k.outputs[0]].shape for k in graph if k.phase.value == "forward"]
    assert shapes[0] == (NODES, 4)
    assert (4, 4) in shapes
    assert shapes[-1] == (6, 4)


@pytest.mark.slow
def test_edges_become_work_by_index_and_gradients_go_back():
    """There are 12 nodes, EDGES without loops, and 12 loops added: features are gathered and added, and so are
    gradients.
    """
    edges = EDGES - LOOPS + NODES
    graph = lower(Convolution(), (torch.zeros(NODES, WIDTH),), training=True)
    found = [(k.attrs["op"], k.phase.value, dict(k.dims)) for k in graph if k.family == "indexed"]
    dims = {"rows": edges, "cols": 4, "vocab": NODES}
    assert [item[2] for item in found] == [dims] * 4
    assert [(op, phase) for op, phase, _ in found] == [
        ("gather", "forward"),
        ("add", "forward"),
        ("gather", "input_gradient"),
        ("add", "input_gradient"),
    ]


class ByElement(nn.Module):
    """Selects by a separate index for each feature, and by one per vector; writes into a batch of tables."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("own", torch.randint(0, 6, (2, 3, 4)))
        self.register_buffer("shared", torch.randint(0, 6, (2, 3, 1)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = x.gather(1, self.own)
        b = x.gather(1, self.shared.expand(-1, -1, 4))
        return x.clone().index_put((torch.arange(2)[:, None], torch.tensor([[0, 1, 2]])), a + b)


@pytest.mark.slow
def test_which_part_of_an_index_is_a_vector():
    """In (2, 6, 4) there are 8 columns of 6 elements each, 2 tables of 6 vectors, or one table of 12 vectors."""
    graph = lower(ByElement(), (torch.zeros(2, 6, 4),))
    found = [dict(k.dims) for k in graph if k.family == "indexed"]
    assert found == [
        {"tables": 8, "rows": 3, "cols": 1, "vocab": 6},
        {"tables": 2, "rows": 3, "cols": 4, "vocab": 6},
        {"rows": 6, "cols": 4, "vocab": 12},
    ]


class Largest(nn.Module):
    """The largest of the neighbours, written to the first rows of the nodes' own product."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.own = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.fc(x)
        index = LIST[1][:, None].expand(-1, 4)
        most = torch.zeros(NODES, 4).scatter_reduce(0, index, made[LIST[0]], "amax", include_self=False)
        return self.own(x).index_copy(0, torch.tensor([0, 2, 1]), most[:3])


def test_gradients_of_a_largest_and_of_what_was_put():
    """A maximum passes its gradient to the largest element, which needs vectors and result; a write hides the table's
    rows.
    """
    graph = lower(Largest(), (torch.zeros(NODES, WIDTH),), training=True)
    kernels = {(k.attrs["op"], k.name.rpartition(".")[2]): k for k in graph if k.family == "indexed"}
    largest = kernels["max", "dx"]
    assert dict(largest.dims) == {"rows": EDGES, "cols": 4, "vocab": NODES}
    shapes = [graph.tensors[name].shape for name in (*largest.inputs, *largest.outputs)]
    # The gradient, the vectors and the result are read; the gradient of the vectors is written.
    assert sorted(shapes) == sorted([(NODES, 4), (EDGES, 4), (NODES, 4), (EDGES, 4)])
    assert ("set", "dt") in kernels
    assert ("gather", "dx") in kernels
    assert kernels["set", "dt"].outputs != kernels["set", "dt"].inputs
