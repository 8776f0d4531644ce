"""Inverses, determinants and solutions of linear systems, with the FLOPs of torch forward and in training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

import wse_sim  # noqa: E402
from tests.frontend.test_samples import forward_by_torch  # noqa: E402
from tests.frontend.test_training_flops import EQUAL, Uses, by_torch, linear  # noqa: E402
from wse_sim.errors import ModelError  # noqa: E402
from wse_sim.frontend import lower  # noqa: E402
from wse_sim.frontend.training import FLOPS_CHECKED  # noqa: E402

MANY, ROWS = torch.randn(3, 5, 5) + 4 * torch.eye(5), torch.randn(4, 5)


def positive(a: Any, x: Tensor) -> Tensor:
    y = a(x)
    return y @ y.mT + torch.eye(x.shape[-2])


CASES: dict[str, tuple[Callable[..., Tensor], int, Tensor, tuple[int, int, int]]] = {
    "inverse": (lambda a, x: torch.inverse(a(x) + 4 * torch.eye(5)), 1, MANY, (3, 5, 5)),
    "inverse of weights": (lambda a, x: x @ torch.linalg.inv(a.weight), 1, ROWS, (1, 5, 5)),
    "invertible 1 x 1 convolution": (
        lambda a, x: (x @ a.weight).sum() + torch.slogdet(a.weight)[1], 1, ROWS, (1, 5, 0)),
    "determinant": (lambda a, x: torch.det(a(x)), 1, MANY, (3, 5, 0)),
    "logarithm of a determinant": (lambda a, x: torch.logdet(positive(a, x)), 1, MANY, (3, 5, 0)),
    "solution": (
        lambda a, b, x: torch.linalg.solve(a(x) + 4 * torch.eye(5), b(x)[..., :2]), 2, MANY, (3, 5, 2)),
    "solution for vectors": (
        lambda a, b, x: torch.linalg.solve(a(x) + 4 * torch.eye(5), b(x)[..., 0]), 2, MANY, (3, 5, 1)),
    "solution of a frozen system": (lambda a, x: torch.linalg.solve(x, a(x)), 1, MANY, (3, 5, 5)),
    "Cholesky factor": (lambda a, x: torch.linalg.cholesky(positive(a, x)), 1, MANY, (3, 5, 0)),
    "Gaussian process": (
        lambda a, x: torch.linalg.solve_triangular(
            torch.linalg.cholesky(positive(a, x)), a(x), upper=False), 1, ROWS, (1, 4, 0)),
}  # fmt: skip


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", CASES)
def test_both_passes_have_the_flops_of_torch(name: str) -> None:
    """Torch counts no FLOPs of elimination, but products of the gradients: X^T g X^T, and a gradient times a solution."""
    function, layers, x, (b, n, r) = CASES[name]
    module = Uses(function, *(part for _ in range(layers) for part in linear(5, 5)))
    graph = lower(module, (x,), training=False)
    first = next(kernel for kernel in graph if kernel.family == "elimination")
    assert first.dims == {"b": b, "n": n} | ({"r": r} if r else {})
    assert graph.total_flops == forward_by_torch(module, (x,))
    trained = lower(module, (x,), training=True)
    assert trained.total_flops == by_torch(module, (x,))
    assert trained.facts[FLOPS_CHECKED] == EQUAL


def test_a_flow_with_invertible_convolutions_trains_in_both_modes() -> None:
    module = Uses(CASES["invertible 1 x 1 convolution"][0], *linear(5, 5))
    for mode in ("pipelined", "weight-streaming"):
        result = wse_sim.run(module, (ROWS,), mode=mode, batch=8)
        assert result.samples_per_s > 0


def test_a_solution_by_a_cholesky_factor_is_two_triangular_ones() -> None:
    factor = Uses(lambda a, x: torch.cholesky_solve(x, torch.linalg.cholesky(positive(a, x))), *linear(5, 5))
    kinds = [k.attrs["kind"] for k in lower(factor, (MANY,)) if k.family == "elimination"]
    assert kinds == ["cholesky", "triangular", "triangular"]


def test_factors_without_a_rule_have_a_remedy() -> None:
    with pytest.raises(ModelError, match=r"linalg_qr .* has no kernel and no rule; iterate with products"):
        lower(Uses(lambda a, x: torch.linalg.qr(a(x))[0], *linear(5, 5)), (MANY,))
