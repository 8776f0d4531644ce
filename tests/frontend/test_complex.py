"""Complex numbers and Fourier transforms in models: kernels, FLOPs against torch's counter, sizes in words."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from wse_sim.errors import UnsupportedOpError
from wse_sim.frontend import lower
from wse_sim.graph import KernelGraph, TensorKind


class Of(nn.Module):
    """A linear layer, a function of its result, another linear layer."""

    def __init__(self, function: Callable[[Tensor], Tensor], width: int) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(16, 16), nn.Linear(width, 4), function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))


def of_family(graph: KernelGraph, name: str) -> list[Any]:
    return [kernel for kernel in graph.kernels if kernel.family == name]


@pytest.mark.parametrize(
    ("function", "width", "wanted"),
    [
        (lambda x: torch.fft.fft(x).abs(), 16, {"rows": 12, "n": 16}),
        (lambda x: torch.fft.irfft(torch.fft.rfft(x)), 16, {"rows": 12, "n": 16}),
        (lambda x: torch.fft.fft2(x).real, 16, {"rows": 3, "n": 16, "n2": 4}),
        (lambda x: torch.stft(x[:, 0].repeat(1, 8), 32, 8,
                              return_complex=False, onesided=True)[..., 0].mean(-1), 17, {"rows": 3 * 17, "n": 32}),
    ],
    ids=["abs", "there and back", "two axes", "stft"],
)  # fmt: skip
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_transforms_are_kernels(function: Callable[[Tensor], Tensor], width: int, wanted: Any) -> None:
    graph = lower(Of(function, width), (torch.randn(3, 4, 16),), training=True)
    kernels = of_family(graph, "fft")
    forward = [k for k in kernels if k.phase == "forward"]
    assert forward
    assert all({n: k.dims[n] for n in wanted} == wanted for k in forward)
    assert len(kernels) == 2 * len(forward)  # a transform of the gradient for each
    assert graph.facts["training_flops"] == "as torch counts"


class Spectral(nn.Module):
    """The spectral convolution of a Fourier neural operator, with complex weights."""

    def __init__(self, channels: int = 8, modes: int = 4) -> None:
        super().__init__()
        self.modes = modes
        self.weights = nn.Parameter(torch.rand(channels, channels, modes, modes, dtype=torch.cfloat))

    def forward(self, x: Tensor) -> Tensor:
        m = self.modes
        there = torch.fft.rfft2(x)
        out = torch.zeros_like(there)
        out[..., :m, :m] = torch.einsum("bixy,ioxy->boxy", there[..., :m, :m], self.weights)
        return torch.fft.irfft2(out, s=x.shape[-2:])


@pytest.mark.slow
def test_complex_weights_train_and_meet_pairs() -> None:
    """A complex product is four real ones: 8 FLOPs for each pair of numbers, three times in training; weights are
    pairs.
    """
    x = torch.randn(2, 8, 16, 16)
    graph = lower(nn.Sequential(nn.Conv2d(8, 8, 1), Spectral()), (x,), training=True)
    products = [k for k in graph.kernels if k.family == "batch_gemm"]
    assert [k.flops for k in products] == [8 * 2 * 8 * 8 * 16] * 3
    weights = graph.tensors["1.weights"]
    assert (weights.kind, weights.shape) == (TensorKind.PARAMETER, (8, 8, 4, 4, 2))
    assert graph.facts["training_flops"] == "as torch counts"
    assert any(k.family == "optimizer" and k.dims["elements"] == 2 * 8 * 8 * 16 for k in graph.kernels)


def test_elementwise_work_on_pairs() -> None:
    """A product of complex numbers is two products and a sum per word; its magnitude is a product, a sum and a root."""

    def turned(x: Tensor) -> Tensor:
        z = torch.complex(x, x)
        return (z * torch.polar(x, x)).abs()

    graph = lower(Of(turned, 16), (torch.randn(6, 16),), skip=["elementwise chain"])
    by_ops = {k.attrs["ops"]: k.dims["elements"] for k in of_family(graph, "elementwise")}
    assert by_ops == {"cos,mul": 2 * 96, "mul,mul,add": 2 * 96, "mul,mul,add,sqrt": 96}


def test_functions_that_nobody_knows_are_refused_with_a_line() -> None:
    with pytest.raises(
        UnsupportedOpError, match=r"operator tan at .*test_complex.py.* works on complex numbers"
    ):
        lower(Of(lambda x: torch.tan(torch.complex(x, x)).real, 16), (torch.randn(6, 16),))
