"""Operators decomposed once per sort: values as in torch, calls distinguished, complete programs where that fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._decomp import decomposition_table

from wse_sim.frontend import load_model
from wse_sim.frontend.capture import export
from wse_sim.frontend.parts import NotBySortError, by_sort

ATEN = torch.ops.aten


class _Several(nn.Module):
    """Equal calls, calls with other shapes and arguments, several results, a result that is returned."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        a = torch.addcmul(x, x, y) + torch.addcmul(y, x, x)  # one tensor twice is another sort
        b = torch.addcmul(a, a.t(), y, value=0.5)
        low, high = torch.aminmax(torch.addcmul(b[:2], b[:2], b[:2]), dim=1)
        return torch.addcmul(b, x, y), low - high


@pytest.mark.slow  # torch.export
def test_parts_compute_what_the_operators_compute() -> None:
    """The program with parts gives the values of the module, has no operator of the table, and keeps positions and
    lines.
    """
    generator = torch.Generator().manual_seed(5)
    x, y = (torch.randn(4, 4, generator=generator) for _ in range(2))
    program = torch.export.export(_Several(), (x, y))
    table = {op: decomposition_table[op] for op in (ATEN.addcmul.default, ATEN.aminmax.default)}
    made = by_sort(program, table)
    assert not {node.target for node in made.graph.nodes} & set(table)
    made.graph.lint()
    for own, torchs in zip(made.module()(x, y), _Several()(x, y), strict=True):
        torch.testing.assert_close(own, torchs)
    assert all(node.meta["stack_trace"] for node in made.graph.nodes if node.op == "call_function")


@pytest.mark.slow  # torch.export
def test_parts_with_constants_need_the_whole_program() -> None:
    """A constant of a part is an input of the program, so the program is unchanged."""

    def part(x: Tensor, dim: int) -> Tensor:
        return x * torch.tensor([1.0, 2.0])

    class Module(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cumsum(x, 0) + 1

    program = torch.export.export(Module(), (torch.ones(2),))
    before = str(program.graph)
    with pytest.raises(NotBySortError):
        by_sort(program, {ATEN.cumsum.default: part})
    assert str(program.graph) == before


@pytest.mark.slow  # torch.export
def test_counters_of_batch_norms_leave_a_program_as_it_was_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training of a network with batch norms traces its program once: there is no decomposition, and none for a
    counter.
    """
    again: list[object] = []
    whole: Callable[..., object] = torch.export.ExportedProgram.run_decompositions
    monkeypatch.setattr(
        torch.export.ExportedProgram,
        "run_decompositions",
        lambda *args, **kwargs: again.append(args) or whole(*args, **kwargs),
    )
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
    )
    graph = load_model((net, torch.zeros(2, 3, 8, 8)), training=True)
    assert [kernel.family for kernel in graph.kernels].count("conv2d") == 5  # no gradient of the input
    assert not again
    assert any(
        "add_" in str(node.target) for node in export(net, (torch.zeros(2, 3, 8, 8),), None, True).graph.nodes
    )
