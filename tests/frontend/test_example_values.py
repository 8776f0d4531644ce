"""Models whose values decide what they do: the example arguments decide, FLOPs are those of torch's run of the example,
and a note states it.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from tests.frontend.test_expert_choices import counted  # noqa: E402
from tests.frontend.test_forward import check_wired  # noqa: E402
from wse_sim import run  # noqa: E402
from wse_sim.errors import ModelError  # noqa: E402
from wse_sim.frontend import diagnose, lower  # noqa: E402
from wse_sim.frontend.obstacles import DECIDED  # noqa: E402

ROWS, WIDE = 12, 8
Read = Callable[[Tensor, nn.Module], Tensor]


class Decides(nn.Module):
    """A layer before and after a function that reads the values of the first one's result."""

    def __init__(self, read: Read) -> None:
        super().__init__()
        self.first, self.second, self.read = nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE), read

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.first(x), self.second)


def halved(y: Tensor, layer: nn.Module) -> Tensor:
    while float(y.abs().max()) > 0.1:
        y = layer(y) / 4
    return y


def suppressed(y: Tensor, layer: nn.Module) -> Tensor:
    """Choose rows by their sum, and leave out those that are near a chosen one."""
    order, picked = y.sum(-1).argsort(descending=True), list[int]()
    while order.numel() > 0:
        picked.append(int(order[0].item()))
        order = order[1:][(y[order[1:]] - y[order[0]]).abs().sum(-1) > 2.0]
    return layer(y[picked])


def matched(y: Tensor, layer: nn.Module) -> Tensor:
    """The matching of a detection loss, outside torch."""
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(torch.cdist(y, y[:5].flip(0)).detach().cpu().numpy())
    return F.l1_loss(layer(y[torch.as_tensor(rows)]), y[torch.as_tensor(columns)])


def grouped(y: Tensor, layer: nn.Module) -> Tensor:
    kinds, counts = torch.unique((y.sum(-1) > 0).long(), return_counts=True)
    parts = y.split(counts.tolist())
    return torch.cat([layer(part).mean(0, keepdim=True) for part in parts]) * kinds[:, None]


def written(y: Tensor, layer: nn.Module) -> Tensor:
    out, mask = torch.zeros_like(y), y[:, 0] > 0
    out[mask] = layer(y[mask])
    return out


READS: dict[str, Read] = {
    "while": halved,
    "item": lambda y, layer: layer(y) / max((y > 0).sum().item(), 1),
    "where": lambda y, layer: layer(y[torch.where(y[:, 0] > 0)[0]]),
    "nonzero": lambda y, layer: layer(y[(y[:, 0] > 0).nonzero().squeeze(-1)]),
    "unique": grouped,
    "rows": lambda y, layer: layer(torch.unique((y > 0).float(), True, False, False, 0)),
    "chosen": lambda y, layer: layer(torch.masked_select(y, y[:, :1] > 0).view(-1, WIDE)),
    "repeated": lambda y, layer: layer(y.repeat_interleave((y[:, 0] > 0) + 1, 0)),
    "slice": lambda y, layer: layer(y[: (y[:, 0] > 0).sum() + 1]),
    "operand": lambda y, layer: layer(y.tile((y[0] > -9).sum() // 4, 1)),
    "one hot": lambda y, layer: layer(
        F.one_hot((y > 0).sum(-1)).float() @ y.new_ones(99, WIDE)[: (y > 0).sum(-1).max() + 1]
    ),
    "suppressed": suppressed,
    "matched": matched,
    "written": written,
}


@pytest.mark.thinned(9)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", READS)
def test_flops_are_those_of_the_example(name: str, training: bool) -> None:
    torch.manual_seed(3)
    module, x = Decides(READS[name]), torch.randn(ROWS, WIDE)
    graph = lower(module, (x,), training=training)
    check_wired(graph)
    assert graph.total_flops == counted(module, x, training=training)
    (note,) = [note for note in graph.notes if note.startswith(DECIDED)]
    assert "test_example_values.py:" in note
    assert not diagnose(module, (x,)).refused


def test_another_example_has_other_work() -> None:
    """With k positive rows the second layer has k rows: 2 x 8 x 8 (12 + k) FLOPs."""

    class Chooses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDE, WIDE)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer((x + self.layer(x).sum() * 0)[x[:, 0] > 0])

    for positive in (3, 7):
        x = -torch.ones(ROWS, WIDE)
        x[:positive] = 1
        assert lower(Chooses(), (x,)).forward_flops == 2 * WIDE * WIDE * (ROWS + positive)


def test_a_model_without_values_runs_with_random_ones() -> None:
    """A note states that weights are random. Integers without values (masks, ids) could be anything, so they are refused."""
    with torch.device("meta"):
        module = Decides(READS["item"])
    graph = lower(module, (torch.randn(ROWS, WIDE),))
    assert graph.forward_flops == 2 * 2 * ROWS * WIDE * WIDE
    assert any("random numbers" in note for note in graph.notes)

    class Masked(nn.Module):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return x if mask.any() else -x

    with pytest.raises(ModelError, match="control flow depends on the values"):
        lower(Masked(), (torch.randn(4), torch.empty(4, dtype=torch.bool, device="meta")))


def test_a_model_that_fails_on_its_example_is_said_to() -> None:
    """The values that it reads are no obstacle; the line that fails is."""

    def widest(y: Tensor, layer: nn.Module) -> Tensor:
        count = max((y[:, 0] > -99).sum().item(), 1)
        return layer(y.topk(int(count))[0])  # 12 of 8 elements

    with pytest.raises(ModelError, match=r"topk.*also fails without a capture.*out of range"):
        lower(Decides(widest), (torch.randn(ROWS, WIDE),))


def test_a_loop_without_end_is_refused() -> None:
    """The run with the example stops after many reads, and the sentence is that of the capture."""

    def forever(y: Tensor, layer: nn.Module) -> Tensor:
        while y.abs().sum() > 0:
            y = y + 1
        return layer(y)

    with pytest.raises(ModelError, match="control flow depends on the values"):
        lower(Decides(forever), (torch.randn(ROWS, WIDE),))


def test_a_run_stays_on_the_machine() -> None:
    """A model that names an accelerator is captured on a machine without one, also if it reads values."""
    moved: Read = lambda y, layer: layer(y.cuda()[torch.zeros(ROWS, device="cuda") < 1]).to("cuda")  # noqa: E731
    kept: Read = lambda y, layer: layer(y[y.sum(-1).cuda() > 0])  # noqa: E731
    assert lower(Decides(moved), (torch.randn(ROWS, WIDE),)).forward_flops == 4 * ROWS * WIDE * WIDE
    graph = lower(Decides(kept), (torch.randn(ROWS, WIDE),))
    assert any(note.startswith(DECIDED) for note in graph.notes)


def test_a_run_changes_neither_the_model_nor_random_numbers() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(WIDE)

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(x + torch.rand_like(x))
            return y if y.max() > 0 else -y

    module = Counts()
    state, before = torch.random.get_rng_state(), {k: v.clone() for k, v in module.state_dict().items()}
    lower(module, (torch.randn(ROWS, WIDE),), training=True)
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    torch.random.set_rng_state(state)
    first = torch.rand(3)
    torch.random.set_rng_state(state)
    lower(module, (torch.ones(ROWS, WIDE),), training=True)
    assert torch.equal(torch.rand(3), first)


def _rate(given: tuple[Any, ...]) -> float:
    module, args = given
    return float(run(module, args, mode="pipelined", phase="training", batch=4).samples_per_s)


@pytest.mark.slow
def test_a_worker_of_a_pool_places_a_model_alone() -> None:
    """A worker of multiprocessing.Pool may have no workers; a placement that wants some runs in it, with the same result."""
    given = (
        nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 32, 3), nn.Flatten()),
        (torch.zeros(1, 3, 16, 16),),
    )
    with multiprocessing.get_context("fork").Pool(1) as pool:
        rates = pool.map(_rate, [given])
    np.testing.assert_allclose(rates, [_rate(given)], rtol=0.05)
