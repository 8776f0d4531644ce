"""Volumes, dilated taps, antialiased images: values against PyTorch, cost against programs, FLOPs against torch's
counter.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tests.generated import examples
from wse_sim.errors import KernelError
from wse_sim.fabric.run import run_program
from wse_sim.frontend import lower
from wse_sim.graph import Phase
from wse_sim.hardware import load_wafer
from wse_sim.kernels import Tiling, family
from wse_sim.kernels.families.conv2d.cost import turns_cost
from wse_sim.kernels.families.conv2d.volume import planes_of, slices_halo

WSE2 = load_wafer("wse2")
EXAMPLES = examples(12)
FORWARD, INPUT, WEIGHT = Phase.FORWARD, Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def channels_first(x: np.ndarray) -> torch.Tensor:
    """Return (b, ..., c) as PyTorch has it; it asks for a gradient."""
    return torch.tensor(np.moveaxis(x, -1, 1).copy(), requires_grad=True)


def channels_last(x: torch.Tensor) -> np.ndarray:
    return np.moveaxis(x.detach().numpy(), 1, -1)


@EXAMPLES
@given(
    size=st.tuples(st.integers(4, 6), st.integers(4, 7), st.integers(4, 7)),
    taps=st.sampled_from([1, 2, 3]),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 2),
    groups=st.integers(1, 2),
    rank=st.sampled_from([2, 3]),
    seed=st.integers(0, 99),
)
def test_convolutions_and_their_gradients(size, taps, stride, dilation, groups, rank, seed):
    """2-D and 3-D convolutions, strided, dilated and grouped, equal PyTorch's."""
    c, k, padding = 2 * groups, 3 * groups, taps // 2 * dilation
    x, f = draw(seed, 2, *size[-rank:], c), draw(seed + 1, *(taps,) * rank, c // groups, k)
    tx = channels_first(x)
    tf = torch.tensor(np.moveaxis(f, (-1, -2), (0, 1)).copy(), requires_grad=True)
    how = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    out = (F.conv2d if rank == 2 else F.conv3d)(tx, tf, **how)
    g = draw(seed + 2, *out.shape)
    out.backward(torch.tensor(g))
    kind = family(f"conv{rank}d")
    np.testing.assert_allclose(kind.compute(x, f, **how), channels_last(out), atol=1e-3)
    dx, df = kind.gradient(x, f, np.moveaxis(g, 1, -1), **how)
    np.testing.assert_allclose(dx, channels_last(tx.grad), atol=1e-3)
    np.testing.assert_allclose(df, np.moveaxis(tf.grad.numpy(), (0, 1), (-1, -2)), atol=1e-3)


@EXAMPLES
@given(size=st.integers(4, 8), window=st.integers(1, 3), stride=st.integers(1, 2), seed=st.integers(0, 99))
def test_pooling_of_volumes(size, window, stride, seed):
    """Windows extend over slices, lines and pixels."""
    x = draw(seed, 2, size, size, size, 3)
    for kind, pool in (("max", F.max_pool3d), ("avg", F.avg_pool3d)):
        wanted = channels_last(pool(channels_first(x), window, stride))
        found = family("pool3d").compute(x, window=window, stride=stride, kind=kind)
        np.testing.assert_allclose(found, wanted, atol=1e-5)


@EXAMPLES
@given(
    size=st.tuples(st.integers(3, 12), st.integers(3, 12)),
    out=st.tuples(st.integers(2, 12), st.integers(2, 12)),
    mode=st.sampled_from(["bilinear", "bicubic"]),
    seed=st.integers(0, 99),
)
def test_antialiased_images(size, out, mode, seed):
    """Two products with sparse matrices of weights; no row has more of them than the cost counts taps."""
    x = draw(seed, 1, *size, 2)
    wanted = channels_last(F.interpolate(channels_first(x), out, mode=mode, antialias=True))
    kind = family("resample")
    np.testing.assert_allclose(kind.compute(x, *out, mode=mode, antialias=True), wanted, atol=1e-4)
    from wse_sim.kernels.families.resample import passes, weights_of

    dims = {"b": 1, "h": size[0], "w": size[1], "c": 2, "out_h": out[0], "out_w": out[1]}
    along, across = passes(dims, mode)
    assert (np.count_nonzero(weights_of(size[1], out[1], mode), axis=1) <= along).all()
    assert (np.count_nonzero(weights_of(size[0], out[0], mode), axis=1) <= across).all()


def volume(stride: int = 1, **changes: int) -> dict[str, int]:
    """Make two result slices of 12 x 24 pixels, 4 channels, 20 filters of 3 x 3 x 3."""
    dims = {
        "b": 1,
        "d": 2 * stride,
        "h": 12 * stride,
        "w": 24 * stride,
        "c": 4,
        "k": 20,
        "t": 3,
        "r": 3,
        "s": 3,
    }
    out = {"out_d": 2, "out_h": 12, "out_w": 24}
    return {**dims, "stride": stride, "stride_d": stride, **out, **changes}


@pytest.mark.parametrize("phase", [FORWARD, INPUT, WEIGHT])
def test_a_program_of_slices(phase):
    """The values are those of the 2-D convolution of 24 channels; the cycles those of the formula without the exchange."""
    dims, attrs = volume(c=8), {"transposed": True} if phase is INPUT else {}
    tiling = Tiling(6, 4, "streamed")
    case = family("conv3d").program(dims, tiling, WSE2, phase=phase, attrs=attrs)
    result = run_program(case.program, case.config, inputs=case.inputs)
    for name, wanted in case.expected.items():
        compared = ~np.isnan(wanted)
        assert np.array_equal(result.read(name)[compared], wanted[compared])
    (planes,) = planes_of(dims, attrs)
    how = {"phase": phase, "dtype": "fp16", "attrs": attrs}
    formula = turns_cost(planes.dims, tiling, WSE2, how).total
    assert result.cycles == pytest.approx(float(formula), rel=0.12)


def test_the_exchange_by_hand():
    """One line of both slices per row of cores needs two halo lines; a slice per row needs the neighbouring slices as
    well.
    """
    # 12 lines on 12 rows: (1 + 2) lines x 2 slices - 1 x 2 = 4, of 24 pixels and ceil(4 / 4) channels.
    assert slices_halo(volume(), Tiling(12, 4, "streamed"), {}) == 4 * 24
    # 24 rows: one line of one slice each: (1 + 2)(1 + 2) - 1 = 8.
    assert slices_halo(volume(), Tiling(24, 4, "streamed"), {}) == 8 * 24
    # Taps two apart reach over five lines: (1 + 4)(1 + 4) - 1 = 24.
    assert slices_halo(volume(), Tiling(24, 4, "streamed"), {"dilation": 2}) == 24 * 24
    costs = [family("conv3d").cost(volume(), Tiling(rows, 4, "streamed"), WSE2) for rows in (12, 24)]
    assert [cost.ramp for cost in costs] == [
        2 * 4 * 24 / 2,
        2 * 8 * 24 / 2,
    ]  # sent and received, two per word


def test_classes_of_a_transposed_convolution():
    """Three taps of stride 2 give slices with one and with two taps; their products add up to the FLOPs."""
    dims = {**volume(2), "d": 2, "h": 12, "w": 24, "out_d": 4, "out_h": 24, "out_w": 48}
    attrs = {"transposed": True}
    classes = planes_of(dims, attrs)
    assert [(p.dims["c"], p.count) for p in classes] == [(4, 1), (8, 1)]
    kind = family("conv3d")
    flops = [family("conv2d").flops(p.dims, attrs) * p.count for p in classes]
    assert sum(flops) == kind.flops(dims, attrs) == 2 * 2 * 12 * 24 * 4 * 20 * 27
    with pytest.raises(KernelError, match="stride 2 along depth has no fabric program"):
        kind.program(dims, Tiling(6, 4, "streamed"), WSE2, attrs=attrs)


@pytest.mark.parametrize("mapping", ["streamed", "stationary"])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_dilated_program(mapping, transposed):
    """Taps two pixels apart use the pixels of PyTorch's dilation; the cycles are those of adjacent taps."""
    dims = {"b": 1, "h": 12, "w": 24, "c": 4, "k": 20, "r": 3, "s": 3, "stride": 1, "out_h": 12, "out_w": 24}
    attrs = {"dilation": 2, "transposed": transposed}
    tiling = Tiling(4, 4, mapping)
    kind = family("conv2d")
    case = kind.program(dims, tiling, WSE2, attrs=attrs)
    result = run_program(case.program, case.config, inputs=case.inputs)
    for name, wanted in case.expected.items():
        compared = ~np.isnan(wanted)
        assert np.array_equal(result.read(name)[compared], wanted[compared])
    assert result.cycles == pytest.approx(float(kind.cost(dims, tiling, WSE2, attrs=attrs).total), rel=0.12)


class Volumes(nn.Module):
    """Convolutions of 1 to 3 dimensions: strided, dilated, grouped, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Sequential(nn.Conv1d(4, 8, 5, 2, 2), nn.ConvTranspose1d(8, 4, 4, 2, 1, dilation=1))
        self.wide = nn.Conv1d(4, 4, 3, padding=4, dilation=4, groups=2)
        self.first = nn.Conv3d(1, 8, 3, (1, 2, 2), 1, bias=False)
        self.norm = nn.BatchNorm3d(8)
        self.pool = nn.MaxPool3d((1, 2, 2))
        self.second = nn.Conv3d(8, 8, 3, padding=2, dilation=2, groups=4)
        self.up = nn.ConvTranspose3d(8, 4, 2, 2)

    def forward(self, lines: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        x = self.second(self.pool(torch.relu(self.norm(self.first(x)))))
        x = F.interpolate(self.up(x), scale_factor=2.0, mode="trilinear")
        return x.mean() + self.wide(self.line(lines)).mean()


@pytest.mark.thinned(1)
@pytest.mark.parametrize("training", [False, True])
def test_flops_equal_those_of_the_counter(training):
    """Forward, and backward with it, exactly; but torch counts the weight gradient of a group as if all channels met."""
    model, args = Volumes(), (torch.randn(2, 4, 64), torch.randn(2, 1, 4, 32, 32))
    with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(training):
        loss = model.train(training)(*args)
        if training:
            loss.backward()
    graph = lower(model, args, training=training)
    grouped = [k for k in graph if k.phase is WEIGHT and k.attrs.get("groups", 1) > 1]
    too_many = sum(k.flops * (k.attrs["groups"] - 1) for k in grouped)
    assert len(grouped) == 2 * training
    assert graph.total_flops == counter.get_total_flops() - too_many
    assert {"conv3d", "pool3d"} <= {kernel.family for kernel in graph}
