"""Integer weights: PT2E's quantise and dequantise around a product, and torchao's weight-only products."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.ao.quantization.fx import _decomposed  # noqa: E402, F401  (registers the operators)

from wse_sim.frontend import lower, lower_exported  # noqa: E402
from wse_sim.graph import KernelGraph, TensorKind  # noqa: E402

Q = torch.ops.quantized_decomposed
WIDTHS = ((16, 32), (32, 8))


class Converted(nn.Module):
    """Two layers as PT2E leaves them: frozen int8 weights, activations of 8 bits, unread fp32 weights."""

    def __init__(self) -> None:
        super().__init__()
        for i, (k, n) in enumerate(WIDTHS):
            self.register_parameter(f"weight{i}", nn.Parameter(torch.zeros(n, k)))
            self.register_parameter(f"bias{i}", nn.Parameter(torch.zeros(n)))
            self.register_buffer(f"frozen{i}", torch.zeros(n, k, dtype=torch.int8))
            self.register_buffer(f"scale{i}", torch.ones(n))
            self.register_buffer(f"zero{i}", torch.zeros(n, dtype=torch.int64))

    def _linear(self, i: int, x: Any) -> Any:
        x = Q.dequantize_per_tensor(
            Q.quantize_per_tensor(x, 0.1, 0, 0, 255, torch.uint8), 0.1, 0, 0, 255, torch.uint8
        )
        frozen, scale, zero = (getattr(self, f"{name}{i}") for name in ("frozen", "scale", "zero"))
        weight = Q.dequantize_per_channel(frozen, scale, zero, 0, -128, 127, torch.int8)
        return nn.functional.linear(x, weight, getattr(self, f"bias{i}"))

    def forward(self, x: Any) -> Any:
        return self._linear(1, torch.relu(self._linear(0, x)))


def check_int8(graph: KernelGraph) -> None:
    """Check for two products with int8 weights and no other trace of the quantisation."""
    assert [(k.family, k.attrs["weights"], k.attrs["fused"]) for k in graph] == [
        ("gemm", "int8", "bias,relu"),
        ("gemm", "int8", "bias"),
    ]
    assert [tuple(k.dims.values()) for k in graph] == [(4, *widths) for widths in WIDTHS]
    weights = [t for t in graph.tensors.values() if t.kind is TensorKind.PARAMETER]
    assert sum(t.bytes for t in weights if t.dtype == "int8") == 16 * 32 + 32 * 8
    assert graph.parameters == 16 * 32 + 32 * 8 + 32 + 8  # the fp32 weights are gone


def test_dequantise_linear_quantise() -> None:
    """The pattern that PT2E writes is one int8 product, from a module and from an exported program."""
    args = (torch.zeros(4, 16),)
    check_int8(lower(Converted(), args))
    check_int8(lower_exported(torch.export.export(Converted(), args)))


def _two_layers() -> tuple[Any, tuple[Any, ...]]:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).eval(), (torch.randn(4, 16),)


def test_pt2e_of_torchao() -> None:
    """A model that torchao's PT2E converted is used unchanged."""
    pytest.importorskip("torchao")
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    module, args = _two_layers()
    quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = prepare_pt2e(torch.export.export(module, args).module(), quantizer)
        prepared(*args)
        converted = convert_pt2e(prepared)
    check_int8(lower(converted, args))
    check_int8(lower_exported(torch.export.export(converted, args)))


def test_weight_only_of_torchao() -> None:
    """`quantize_` with int8 weights: products keep 8 bits, the scales are applied after them."""
    pytest.importorskip("torchao")
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    module, args = _two_layers()
    quantize_(module, Int8WeightOnlyConfig())
    graph = lower(module, args)
    products = [k for k in graph if k.family == "gemm"]
    assert [k.attrs["weights"] for k in products] == ["int8", "int8"]
    assert [tuple(k.dims.values()) for k in products] == [(4, *widths) for widths in WIDTHS]
