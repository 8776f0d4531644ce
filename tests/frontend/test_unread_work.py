"""Work of forward() that changes buffers stays in the graph; what reaches no result is left out, with a note."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import wse_sim  # noqa: E402
from tests.frontend.test_training_flops import EQUAL, Uses, by_torch, linear  # noqa: E402
from wse_sim.frontend import lower, lower_exported, program_reader  # noqa: E402
from wse_sim.frontend.training import FLOPS_CHECKED  # noqa: E402

IMAGES, ONE = torch.randn(2, 4, 6, 6), 2 * 2 * 4 * 4 * 9 * 36
"""Two images, and the FLOPs of a 3 x 3 convolution of their 4 channels to 4 channels."""
NOTE = "forward: "


class Recurrent(nn.Module):
    """The block of R2U-Net, whose second convolution is overwritten by an equal third one."""

    def __init__(self, norm: bool, inplace: bool) -> None:
        super().__init__()
        norms = [nn.BatchNorm2d(4)] if norm else []
        self.conv = nn.Sequential(conv(), *norms, nn.ReLU(inplace))

    def forward(self, x: Tensor) -> Tensor:
        for i in range(2):
            if i == 0:
                x = self.conv(x)
            out = self.conv(x + x)
        return out


class Codebook(nn.Module):
    """The codebook of a VQ-VAE, which no gradient trains: it follows the rows that are nearest to its own."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(8, 4)
        self.register_buffer("codes", torch.randn(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        z = self.into(x)
        with torch.no_grad():
            near = F.one_hot((z @ self.codes.T).argmax(-1), 16).to(z.dtype)
            taken = near @ self.codes
            if self.training:
                self.codes.mul_(0.9).add_(near.T @ z, alpha=0.1)
        return z + (taken - z).detach()


def counted(module: nn.Module, *args: Tensor) -> int:
    """Return the FLOPs of one real forward pass by torch's counter."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module.eval()(*args)
    return counter.get_total_flops()


def conv() -> nn.Module:
    return nn.Conv2d(4, 4, 3, padding=1)


def told(graph: wse_sim.KernelGraph) -> list[str]:
    return [note for note in graph.notes if note.startswith(NOTE)]


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("blocks", [1, 2])
def test_statistics_of_an_overwritten_result_are_work(blocks: int, inplace: bool) -> None:
    """A block runs three convolutions; two have gradients of weights and operand, but the first one of no operand.

    Two equal blocks, of which one is captured, have the second block's operand gradient, too.
    """
    module = nn.Sequential(*(Recurrent(True, inplace) for _ in range(blocks)))
    graph = lower(module, (IMAGES,), training=True)
    assert graph.total_flops == (7 * blocks - 1) * ONE == by_torch(module, (IMAGES,))
    assert graph.facts[FLOPS_CHECKED] == EQUAL
    assert not told(graph)
    assert wse_sim.run(graph, mode="weight-streaming", phase="training").samples_per_s > 0


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("blocks", [1, 2])
def test_an_overwritten_result_is_left_out_and_told(blocks: int, inplace: bool) -> None:
    """Without batch norm, and in inference, the second of three convolutions of a block changes nothing."""
    module = nn.Sequential(*(Recurrent(False, inplace) for _ in range(blocks)))
    for training, count in ((False, counted(module, IMAGES)), (True, by_torch(module, (IMAGES,)))):
        graph = lower(module, (IMAGES,), training=training)
        assert count - graph.total_flops == blocks * ONE
        assert [note.partition(" reach")[0] for note in told(graph)] == [
            f"forward: {blocks * ONE:,} of {3 * blocks * ONE:,} FLOPs"
        ]
        assert graph.facts.get(FLOPS_CHECKED, EQUAL) == EQUAL
    with_norm = nn.Sequential(*(Recurrent(True, inplace) for _ in range(blocks)))
    assert lower(with_norm, (IMAGES,)).total_flops == 2 * blocks * ONE


def test_a_codebook_that_follows_its_rows_is_work() -> None:
    """Four products of 6 rows in training, (8 x 4) twice with its gradient, (4 x 16) thrice: distances, choice, change."""
    module, x = Codebook(), torch.randn(6, 8)
    graph = lower(module, (x,), training=True)
    assert graph.total_flops == 2 * 6 * (2 * 8 * 4 + 3 * 4 * 16) == by_torch(module, (x,))
    assert graph.facts[FLOPS_CHECKED] == EQUAL
    assert lower(module, (x,)).total_flops == 2 * 6 * (8 * 4 + 2 * 4 * 16) == counted(module, x)


def only_shape(a: Any, b: Any, x: Tensor) -> Tensor:
    return b(x) + torch.zeros_like(a(x))  # type: ignore[no-any-return]


def added_to_nothing(a: Any, b: Any, x: Tensor) -> Tensor:
    h = a(x)
    h[:, 0] += x[:, 0]
    return b(x)  # type: ignore[no-any-return]


def written_into_a_part(a: Any, b: Any, x: Tensor) -> Tensor:
    h = torch.zeros_like(x)
    h[:, :4] = a(x)[:, :4]
    return b(h)  # type: ignore[no-any-return]


CASES: dict[str, tuple[Callable[..., Any], int]] = {
    "only its shape": (only_shape, 1),
    "a result with a write in place": (added_to_nothing, 1),
    "written into a part of what is read": (written_into_a_part, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_reads_are_followed_through_memory(name: str) -> None:
    """A product of 6 rows by 8 x 8 weights is read, or not; so it is in an exported program."""
    function, left = CASES[name]
    module, x = Uses(function, *linear(8, 8, 8)), torch.randn(6, 8)
    one = 2 * 6 * 8 * 8
    for training in (False, True):
        graph = lower(module, (x,), training=training)
        again = lower_exported(torch.export.export(module, (x,)), training=training)
        count = by_torch(module, (x,)) if training else counted(module, x)
        assert count - graph.total_flops == left * one
        assert again.total_flops == graph.total_flops
        for one_graph in (graph, again):
            assert len(told(one_graph)) == left
            assert one_graph.facts.get(FLOPS_CHECKED, EQUAL) == EQUAL


def test_the_check_does_not_share_the_pruning(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of the first of two convolutions only changes statistics; without the rule for them it is missing."""
    module = Uses(lambda a, norm, b, x: (norm(a(x)), b(x))[1], conv(), nn.BatchNorm2d(4), conv())
    graph = lower(module, (IMAGES,), training=True)
    assert graph.total_flops == 3 * ONE == by_torch(module, (IMAGES,))
    assert graph.facts[FLOPS_CHECKED] == EQUAL
    monkeypatch.setattr(program_reader, "changes_statistics", lambda *_: False)
    graph = lower(module, (IMAGES,), training=True)
    assert graph.total_flops == 2 * ONE
    assert graph.facts[FLOPS_CHECKED] == "differ from torch's"
