"""Operators that write in place are captured with the values of eager torch, also through views and masks."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from tests.frontend.test_training_flops import Uses, by_torch, linear  # noqa: E402
from wse_sim.errors import ModelError  # noqa: E402
from wse_sim.frontend import lower  # noqa: E402
from wse_sim.frontend.capture import export  # noqa: E402
from wse_sim.frontend.decompositions import decomposed  # noqa: E402
from wse_sim.frontend.functional import NotFollowedError, functional, made_functional  # noqa: E402
from wse_sim.frontend.obstacles import DECIDED  # noqa: E402
from wse_sim.frontend.program_reader import operator_of  # noqa: E402
from wse_sim.frontend.regions import without_regions  # noqa: E402
from wse_sim.frontend.training import FLOPS_CHECKED  # noqa: E402


def functional_values(module: nn.Module, x: Tensor) -> Any:
    """Return the result of the captured program; no operator of it writes in place."""
    program = made_functional(without_regions(export(module, (x.clone(),), None, False)))
    program = decomposed(program, lambda target: operator_of(target)[0])
    for node in program.graph.nodes:
        assert not (isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable), node
    with torch.no_grad():
        return program.module()(x.clone())


def in_no_grad(y: Tensor) -> None:
    with torch.no_grad():
        y.mul_(1.5)


VIEWS: list[Callable[[Tensor], Tensor]] = [
    lambda y: y[..., 1:] if y.shape[-1] > 1 else y,
    lambda y: y[..., ::2],
    lambda y: y.transpose(0, -1),
    lambda y: y.select(0, 0) if y.dim() > 1 else y,
    lambda y: y.chunk(2, -1)[0],
    lambda y: y.unbind(0)[-1] if y.dim() > 1 else y,
    lambda y: y.unsqueeze(0),
    lambda y: y.reshape(-1),
    lambda y: y.diagonal(dim1=-2, dim2=-1) if y.dim() > 1 else y,
    lambda y: y.narrow(0, 0, 1),
    lambda y: y.detach(),
    lambda y: y.permute(*reversed(range(y.dim()))),
    lambda y: y.split(1, 0)[-1],
    lambda y: y.unfold(-1, 1, 1),
]
WRITES: list[Callable[[Tensor, Tensor], object]] = [
    lambda y, v: y.add_(v),
    lambda y, v: y.__iadd__(v),
    lambda y, v: y.mul_(0.5),
    lambda y, v: y.__setitem__((..., slice(0, 1)), 1.5),
    lambda y, v: y.__setitem__(..., v),
    lambda y, v: y.masked_fill_(y > 0.2, -1.0),
    lambda y, v: y.__setitem__(y < 0, v),
    lambda y, v: y.__setitem__(y < 0, y[y < 0] * 2 + 1),
    lambda y, v: y.copy_(torch.where(y > 0, y, v)),
    lambda y, v: y.index_put_((torch.tensor([0, 0]),), torch.tensor(0.5), accumulate=True),
    lambda y, v: y.__setitem__(torch.tensor([0]), 2.0),
    lambda y, v: y.scatter_(0, torch.zeros_like(y, dtype=torch.long), 0.75),
    lambda y, v: y.scatter_add_(-1, torch.zeros_like(y, dtype=torch.long), y.clone()),
    lambda y, v: y.index_add_(0, torch.tensor([0]), y[:1].clone()),
    lambda y, v: y[1:].copy_(y[:-1].clone()),
    lambda y, v: y[..., 1:].__iadd__(y[..., :-1].clone()),
    lambda y, v: y.masked_scatter_(y > 0, y.clone()),
    lambda y, v: y.put_(torch.zeros(1, dtype=torch.long), v.reshape(1)),
    lambda y, v: F.relu(y, inplace=True),
    lambda y, v: torch.add(y, 1.0, out=y),
    lambda y, v: y.cumsum_(0),
    lambda y, v: y.fill_diagonal_(0.25) if y.dim() == 2 else y.zero_(),
    lambda y, v: torch._foreach_mul_([y], 0.5),
    lambda y, v: in_no_grad(y),
    lambda y, v: y.data.add_(0.1),
]


class Writes(nn.Module):
    """A drawn sequence of views, writes and results on a pool of tensors that share memory."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed, self.fc = seed, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        drawn, h = random.Random(self.seed), self.fc(x)
        pool = [h, h * 2, torch.zeros_like(x), x.clone()]
        for _ in range(drawn.randrange(4, 10)):
            one, kind = drawn.choice(pool), drawn.random()
            if kind < 0.4:
                pool.append(drawn.choice(VIEWS)(one))
            elif kind < 0.9:
                drawn.choice(WRITES)(one, pool[0].mean())
            else:
                pool.append(one * 1.5 + 0.1)
        return tuple(one * 1.0 for one in pool)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 60, 10))
def test_programs_that_write_in_place(first: int) -> None:
    """Sixty drawn programs give eager values, and are lowered in both phases."""
    for seed in range(first, first + 10):
        check_written(seed)


def check_written(seed: int) -> None:
    torch.manual_seed(seed)
    module, x = Writes(seed), torch.randn(2, 4, 4)
    with torch.no_grad():
        wanted = module(x.clone())
    torch.testing.assert_close(functional_values(module, x), wanted, msg=f"program {seed}")
    lower(module, (x,))
    try:
        trains = any(result.requires_grad for result in module(x.clone()))
    except RuntimeError:
        return  # eager torch refuses writes to some views of what has gradients
    if not trains:
        with pytest.raises(ModelError, match="has no parameters that train"):
            lower(module, (x,), training=True)
        return
    verdict = lower(module, (x,), training=True).facts[FLOPS_CHECKED]
    assert verdict != "differ from torch's"  # torch does not count backward passes that it refuses


class WritesOnce(nn.Module):
    """One write to one view of a result; the view and the whole are read again."""

    def __init__(self, view: Callable[[Tensor], Tensor], write: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        self.view, self.write, self.fc = view, write, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = self.fc(x)
        part = self.view(y)
        self.write(part, y.mean())
        return y * 2, part * 3, self.view(y) * 4


TORCHS_OWN_WAY = {"aten.add.out", "aten.unfold.default"}
"""Writes that are not followed: to an operand that is named, and to windows that overlap."""


def test_writes_are_followed_without_a_second_trace() -> None:
    """Each write to some view, and each view with some write, gives the values of eager torch."""
    x, left = torch.randn(4, 4), set()
    for place, write in enumerate(WRITES):
        module = WritesOnce(VIEWS[place % len(VIEWS)], write)
        program = without_regions(export(module, (x.clone(),), None, False))
        try:
            program = functional(program)
        except NotFollowedError as fault:
            left.add(str(fault))
            continue
        with torch.no_grad():
            torch.testing.assert_close(program.module()(x.clone()), module(x.clone()))
    assert left <= TORCHS_OWN_WAY


def scaled(a: Any, x: Tensor) -> Tensor:
    y = a(x)
    y[y > 0] *= 2
    return y


def bent(a: Any, x: Tensor) -> Tensor:
    y, mask = a(x), x[..., 0] > 0
    y[mask, 1:] = y[mask, 1:].tanh() + torch.ones(3)
    return y


def columns(a: Any, x: Tensor) -> Tensor:
    y, mask = a(x), x[0, :, 0] > 0
    taken = F.softplus(y[:, mask])
    taken += 1
    y[:, mask] = taken
    return y


def losses(a: Any, x: Tensor) -> Tensor:
    y, mask = a(x), x.sum(-1) > 0
    labels = torch.where(x[..., 0] > 1, -100, x.argmax(-1))
    return F.cross_entropy(y[mask], labels[mask]) + F.mse_loss(y[mask], x[mask], reduction="sum")


def extremes(a: Any, x: Tensor) -> Tensor:
    y = a(x)
    return y[x > 0].abs().max() - y[x > 0].min() + torch.masked_select(y, x > 0).mean()


def rows(a: Any, x: Tensor) -> Tensor:
    return a(x[x[..., 0] > 0])


def returned(a: Any, x: Tensor) -> Tensor:
    return a(x)[x > 0]


def counted(a: Any, x: Tensor) -> Tensor:
    y = a(x)
    return y * y[x > 0].shape[0]


def outdated(a: Any, x: Tensor) -> Tensor:
    y = a(x)
    taken = y[y > 0]
    y.neg_()
    y[y > 0] = taken
    return y


@pytest.mark.thinned(3)
@pytest.mark.parametrize("function", [scaled, bent, columns, losses, extremes])
def test_elements_that_a_mask_selects_are_computed_at_their_places(function: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    module, x = Uses(function, *linear(4, 4)), torch.randn(2, 4, 4)
    with torch.no_grad():
        torch.testing.assert_close(functional_values(module, x), module(x.clone()))
    graph = lower(module, (x,), training=True)
    assert graph.total_flops == by_torch(module, (x,))
    assert any("elements that a mask selects" in note for note in graph.notes)


@pytest.mark.parametrize("function", [rows, returned, counted])
def test_a_number_of_elements_that_values_decide_is_that_of_the_example(
    function: Callable[..., Tensor],
) -> None:
    """Rows of a product, a result and a size, with the FLOPs of one run; a note states this."""
    torch.manual_seed(1)
    module, x = Uses(function, *linear(4, 4)), torch.randn(2, 4, 4)
    graph = lower(module, (x,), training=True)
    assert graph.total_flops == by_torch(module, (x,))
    assert any(note.startswith(DECIDED) for note in graph.notes)


def test_a_mask_that_is_computed_again_from_what_was_written_fails() -> None:
    """Other elements are positive then, so the model fails with its example as well."""
    with pytest.raises(ModelError, match=r"y\[y > 0\] = taken: forward\(\) also fails without a capture"):
        lower(Uses(outdated, *linear(4, 4)), (torch.randn(2, 4, 4),))


def test_a_buffer_that_is_written_may_have_two_names() -> None:
    """Spectral norm writes its vectors in training; a layer that is two attributes has each of them twice."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = self.again = nn.utils.spectral_norm(nn.Linear(8, 8))
            self.last = nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.first(x).relu_())

    graph = lower(Twice(), torch.randn(3, 8), training=True)
    # Of the first product no gradient of x; of the power iteration, whose products torch does not count: W^T u, W v, and
    # u W v with its gradient.
    assert graph.facts[FLOPS_CHECKED] == "as torch counts"
    products = 2 * (2 * 3 * 8 * 8) + 3 * (2 * 3 * 8 * 4)
    assert 0 <= graph.total_flops - products <= 6 * (2 * 8 * 8)
