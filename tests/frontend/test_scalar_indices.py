"""Rows that scalar tensors name are captured with the values of eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from tests.frontend.test_training_flops import Uses, linear  # noqa: E402
from wse_sim.errors import ModelError  # noqa: E402
from wse_sim.frontend import lower  # noqa: E402
from wse_sim.frontend.capture import export  # noqa: E402


def best(y: Tensor) -> Tensor:
    return y.sum(1).argmax()


def written(y: Tensor) -> Tensor:
    """Write a number, a row and an element, the last two times."""
    y = y * 1
    y[best(y)] = 3
    y[:, best(y)] = y.sum(1)
    y[best(y), y.sum(0).argmin()] += 2
    y[best(y)] *= 2
    return y


def matched(y: Tensor) -> Tensor:
    """Write a number to each place that a list of places names, as a detector matches boxes."""
    found, places = torch.zeros(4, dtype=torch.long), y.argmax(0)
    for number in range(3):
        found[places[number]] = number + 1
    return y * found[:, None]


ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "a row": lambda y: y[best(y)],
    "a column": lambda y: y[:, best(y)],
    "an element": lambda y: y[best(y), y.sum(0).argmin()],
    "a new dimension, and one from the end": lambda y: y[None, ..., best(y), None],
    "beside numbers and slices": lambda y: y.expand(2, 4, 4)[1, best(y), 1:3],
    "written": written,
    "matched": matched,
}


@pytest.mark.parametrize("rows", ROWS)
def test_rows_are_those_of_eager_torch(rows: str) -> None:
    """The captured program gives the values of eager PyTorch, for inputs with other places than the example."""
    module = Uses(lambda a, x: ROWS[rows](a(x)), *linear(4, 4))
    program = export(module, (torch.randn(4, 4),), None, training=False).module()
    for seed in range(8):
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(program(x), module(x))
    assert lower(module, (torch.randn(4, 4),), training=True).facts["training_flops"] == "as torch counts"


def test_a_row_that_is_written_in_place_is_refused() -> None:
    """In PyTorch the row is a view, so the whole changes; the copy of a capture would not change it."""

    def changed(y: Tensor) -> Tensor:
        y = y * 1
        y[best(y)].add_(1)
        return y

    with pytest.raises(ModelError, match="a row that a tensor names is written in place"):
        lower(Uses(lambda a, x: changed(a(x)), *linear(4, 4)), (torch.randn(4, 4),))
