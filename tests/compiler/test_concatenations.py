"""Concatenations continue an earlier one in the captured model, and become trees of concatenations on the wafer."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from wse_sim import api  # noqa: E402
from wse_sim.compiler.concatenations import concatenated_in_parts, most_operands  # noqa: E402
from wse_sim.frontend import lower  # noqa: E402
from wse_sim.graph import Kernel, KernelGraph, Phase  # noqa: E402
from wse_sim.hardware import load_wafer  # noqa: E402
from wse_sim.kernels import check_graph  # noqa: E402


class Pieces(nn.Module):
    """Layers side by side, whose results are concatenated; a part of the sample itself comes first."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 3) for _ in range(count))
        self.last = nn.Linear(3 * count + 4, 2)

    def forward(self, x):
        return self.last(torch.cat([x, *(torch.relu(layer(x)) for layer in self.layers)], 1))


class Unrolled(nn.Module):
    """A recurrent cell step by step; the results of all steps are stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 4)

    def forward(self, x):
        state, states = x.new_zeros(x.shape[0], 4), []
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
            states.append(state)
        return torch.stack(states, 1)


class Grown(nn.Module):
    """Every layer reads the results of all layers before it, as in DenseNets."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4 + 3 * i, 3) for i in range(count))

    def forward(self, x):
        found = [x]
        for layer in self.layers:
            found.append(torch.relu(layer(torch.cat(found, 1))))
        return torch.cat(found, 1)


def concatenations(graph: KernelGraph, phase: Phase) -> list[Kernel]:
    return [k for k in graph.kernels if k.phase is phase and k.attrs.get("op") == "cat"]


def one_sample(model: nn.Module, shape: tuple[int, ...], training: bool) -> KernelGraph:
    return lower(model, (torch.zeros(1, *shape),), training=training, optimizer="sgd")


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("count", [4, 24, 40])
def test_parts_are_few_and_every_operand_is_taken_once(count, training):
    wafer = load_wafer("wse2")
    graph = one_sample(Pieces(count), (4,), training)
    (whole,) = concatenations(graph, Phase.FORWARD)
    parted = concatenated_in_parts(graph, wafer)
    check_graph(parted)
    # 24 colors: 3 of the host, 3 for each direction of a kernel; 2 for a stream with gradients. A third of the streams, and one:
    # 18 / 3 + 1 = 7 operands in inference, 7 // 3 + 1 = 3 in training.
    most = 3 if training else 7
    assert most_operands(wafer, training) == most
    tree = concatenations(parted, Phase.FORWARD)
    assert all(len(kernel.inputs) <= most for kernel in tree)
    inner = {name for kernel in tree for name in kernel.outputs} - set(whole.outputs)
    assert [name for k in tree for name in k.inputs if name not in inner] == list(whole.inputs)
    assert tree[-1].outputs == whole.outputs
    assert len(tree) == levels(count + 1, most)
    if training:
        back = concatenations(parted, Phase.INPUT_GRADIENT)
        (gradient,) = concatenations(graph, Phase.INPUT_GRADIENT)
        made = [name for kernel in back for name in kernel.outputs if name not in {k.inputs[0] for k in back}]
        assert sorted(made) == sorted(gradient.outputs)
        assert {kernel.forward for kernel in back} <= {kernel.name for kernel in tree}
        for kernel in (*tree, *back):
            one, many = (kernel.outputs, kernel.inputs) if kernel in tree else (kernel.inputs, kernel.outputs)
            whole_size, sizes = (sum(parted.tensors[n].elements for n in names) for names in (one, many))
            assert whole_size - sizes in (0, 4)  # the sample itself has no gradient
    assert (parted is graph) == (count + 1 <= most)


def test_gradients_in_another_order_than_operands_are_all_made():
    """The gradient kernel lists them backwards, and the sample itself, the first operand, has none."""
    graph = one_sample(Pieces(8), (4,), True)
    whole = next(k for k in graph.kernels if k.phase is Phase.INPUT_GRADIENT and k.attrs.get("op") == "cat")
    turned = replace(whole, outputs=whole.outputs[::-1])
    graph = replace(graph, kernels=tuple(turned if k is whole else k for k in graph.kernels))
    parted = concatenated_in_parts(graph, load_wafer("wse2"))
    made = [name for kernel in parted.kernels for name in kernel.outputs]
    assert set(whole.outputs) <= {*made}
    assert len(made) == len({*made})


def levels(operands: int, most: int) -> int:
    """Return the kernels of a tree with at most `most` operands each."""
    total = 1
    while operands > most:
        operands = -(-operands // most)
        total += operands
    return total


@pytest.mark.parametrize("training", [False, True])
def test_a_layer_continues_the_concatenation_of_the_layer_before(training):
    """Each concatenation has two operands, that of the sample alone is none; products are those that torch counts."""
    model, x = Grown(9), torch.zeros(2, 4)
    graph = lower(model, (x,), training=training)
    kernels = concatenations(graph, Phase.FORWARD)
    assert [len(kernel.inputs) for kernel in kernels] == [2] * 9
    with FlopCounterMode(display=False) as counter:
        result = model(x)
        if training:
            result.sum().backward()
    assert graph.total_flops == counter.get_total_flops()


def test_another_dimension_is_another_concatenation():
    """Rows of a, b and c do not begin with features of a and b."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x):
            a, b, c = (layer(x) for layer in self.layers)
            return torch.cat([a, b], 1), torch.cat([a, b, c], 0), torch.cat([b, a, c], 1)

    graph = lower(Both(), (torch.zeros(2, 4),))
    assert sorted(len(kernel.inputs) for kernel in concatenations(graph, Phase.FORWARD)) == [2, 3, 3]


@pytest.mark.parametrize(("model", "shape"), [(Pieces(24), (4,)), (Unrolled(), (12, 4)), (Grown(12), (4,))])
def test_training_of_many_concatenated_tensors_fits_a_pipeline(model, shape):
    """Before, all streams ended in one region: 25 tensors needed 52 of 15 colors."""
    plan = api.compile(one_sample(model, shape, True), "wse2", mode="pipelined", batch=8)
    assert plan.pace_cycles > 0
    assert max(stream.color for stream in plan.streams) < 15
