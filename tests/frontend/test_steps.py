"""Elementwise work step by step: its steps, computed with numpy, give PyTorch's values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from wse_sim import api
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.graph.access import START
from wse_sim.serialize import decode, encode

Floats = np.ndarray
DONE: dict[str, Callable[..., Floats]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "square": np.square,
    "reciprocal": np.reciprocal,
    "sqrt": np.sqrt,
    "rsqrt": lambda v: 1 / np.sqrt(v),
    "exp": np.exp,
    "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
    "silu": lambda v: v / (1 + np.exp(-v)),
    "softplus": lambda v: np.log1p(np.exp(v)),
}
WORK: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "a factor": lambda x, _: x * 0.5,
    "one minus": lambda x, _: 1 - x,
    "less": lambda x, _: x - 3,
    "a part": lambda x, _: x / 4,
    "a number over x": lambda x, _: 2 / (x + 3),
    "a square": lambda x, _: x**2,
    "a root": lambda x, _: (x + 2) ** 0.5,
    "one over a root": lambda x, _: (x * 2 + 4) ** -0.5,
    "bounds": lambda x, _: x.clamp(-0.3, 0.4),
    "an upper bound": lambda x, _: x.clamp(max=0.2),
    "a lower bound": lambda x, _: torch.clamp_min(x, 0.1),
    "up to six": lambda x, _: F.relu6(9 * x),
    "hard tanh": lambda x, _: F.hardtanh(x, -0.2, 0.6),
    "hard swish": lambda x, _: F.hardswish(x),
    "a leaky relu": lambda x, _: F.leaky_relu(x, 0.3),
    "hard sigmoid": lambda x, _: F.hardsigmoid(4 * x),
    "a steep softplus": lambda x, _: F.softplus(x, beta=2.0),
    "quick gelu": lambda x, _: x * torch.sigmoid(1.702 * x),
    "alpha of a sum": lambda x, y: torch.add(x, y, alpha=3) * 2,
    "alpha of a difference": lambda x, y: torch.sub(x, y, alpha=3) * 2,
    "alpha of a number": lambda x, _: torch.sub(x, 2, alpha=3),
    "a difference, turned": lambda x, y: (y - (x * 2 + 1)) * 0.5,
    "a quotient in a chain": lambda x, y: (x - 2) / (y) + 1,
    "a quotient, turned": lambda x, y: y / (x * 0.5 + 2),
    "a difference first": lambda x, y: torch.exp(x - y) - 1,
}


class Two(nn.Module):
    """Work on two inputs."""

    def __init__(self, work: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.work = work

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Combine both (batch, features); the second one affects every result."""
        return self.work(x, y)


def graph_of(work: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> KernelGraph:
    """Return its graph."""
    return api.lower(Two(work), (torch.zeros(1, 8), torch.zeros(1, 8)))


def worked_out(kernels: tuple[Kernel, ...], values: dict[str, Floats]) -> Floats:
    """Return the last result, step by step."""
    value = np.zeros(0)
    for kernel in kernels:
        assert kernel.access.steps, kernel
        value = values[START] = values[str(kernel.access.steps[0][1])]
        for op, taken in kernel.access.steps[1:]:
            others = [] if taken == "" else [values[taken] if isinstance(taken, str) else taken]
            value = DONE[op](value, *others)
        values[kernel.outputs[0]] = value
    return value


@pytest.mark.parametrize("name", WORK)
def test_steps_are_what_pytorch_does(name: str) -> None:
    """Inputs are random numbers between -1 and 1."""
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-1, 1, (2, 1, 8))
    found = worked_out(graph_of(WORK[name]).kernels, {"x": x, "y": y})
    wanted = WORK[name](torch.tensor(x), torch.tensor(y)).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize(
    "work",
    [
        lambda x, _: x**3,
        lambda x, _: F.elu(x) * 2,
        lambda x, y: torch.tanh(x) * 2 + torch.tanh(y) * 3,
        lambda x, y: torch.div(x, y, rounding_mode="floor") * 2,
        lambda x, _: (x * 2) * (x * 2),
        lambda x, _: F.hardswish(x * 2),
    ],
)
def test_what_is_no_row_of_steps_has_none(work: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    """A cube, a function by parts, two parallel values, integer quotients, a value combined with itself, and
    a function that reads its own value twice behind another operator have no steps.
    """
    assert not any(kernel.access.steps for kernel in graph_of(work).kernels)


def test_names_alone_suffice_without_numbers() -> None:
    """Steps are stated only where they add information; files store them."""
    assert not any(kernel.access.steps for kernel in graph_of(lambda x, y: torch.relu(x + y)).kernels)
    (kernel,) = graph_of(lambda x, y: (x - y) * 0.5).kernels
    assert kernel.access.steps == (("", "x"), ("sub", "y"), ("mul", 0.5))
    assert decode(encode(kernel, {}), {}).access.steps == kernel.access.steps
