"""Rotary positions: values against PyTorch, gradients against autograd, programs against values and cost."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from wse_sim.errors import KernelError
from wse_sim.graph import Phase
from wse_sim.hardware import load_wafer
from wse_sim.kernels import Tiling, family
from wse_sim.kernels.contract.testing import check_faces
from wse_sim.kernels.families.rotary.core import Turning

WSE2 = load_wafer("wse2")
HEADS = {
    "halves": (16, 16, 16),
    "neighbours": (2, 16, 16),
    "rows and columns of an image": (8, 16, 16),
    "the first features": (8, 8, 16),
    "odd halves": (6, 12, 12),
}
"""Features of a block, that turn, of a head."""


def turned(x: torch.Tensor, block: int, count: int) -> torch.Tensor:
    """Return (-x2, x1) of the halves of every block of the first `count` features, and zeros for the others."""
    halves = x[..., :count].unflatten(-1, (-1, 2, block // 2))
    first = torch.stack([-halves[..., 1, :], halves[..., 0, :]], -2).flatten(-3)
    return torch.cat([first, torch.zeros_like(x[..., count:])], -1)


@pytest.mark.parametrize("name", HEADS)
def test_values_and_gradients_are_those_of_pytorch(name: str) -> None:
    """Five tokens of two heads; angles differ from feature to feature, so that partners have different sines."""
    block, count, width = HEADS[name]
    work = Turning(width, "fp32", block, count)
    x, g = torch.randn(2, 5, 2, width, requires_grad=True), torch.randn(2, 5, 2, width)
    cosines, sines = torch.randn(5, count), torch.randn(5, count)
    wide = [torch.cat([one, rest.expand(5, -1)], -1)[:, None] for one, rest in (
        (cosines, torch.ones(width - count)), (sines, torch.zeros(width - count)),
    )]  # fmt: skip
    y = x * wide[0] + turned(x, block, count) * wide[1]
    y.backward(g)
    tables = [
        work.table(i, one.numpy(), 2 * width).reshape(5, 2, width) for i, one in enumerate((cosines, sines))
    ]
    values = family("rotary").compute(x.detach().numpy(), *tables, block=block, turned=count)
    np.testing.assert_allclose(values, y.detach().numpy(), atol=1e-5)
    back = work.gradient_values(x.detach().numpy(), g.numpy(), *tables)
    np.testing.assert_allclose(back, x.grad.numpy(), atol=1e-5)


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.INPUT_GRADIENT])
@pytest.mark.parametrize("name", HEADS)
def test_programs_have_these_values_and_the_cycles_of_the_cost(name: str, phase: Phase, dtype: str) -> None:
    """About 60 heads on each of 2 x 3 cores; halves of three elements begin in two banks and two half words."""
    block, count, width = HEADS[name]
    dims = {"elements": 6 * 60 * width, "cols": width}
    attrs = {"block": block, "turned": count}
    band = 0.35 if name == "odd halves" else 0.01
    resident = 5 * 60 * width * 4  # x, y, two tables and products
    check_faces(
        family("rotary"), dims, Tiling(2, 3, "streamed"), WSE2,
        band=band, resident_bytes=resident, phase=phase, dtype=dtype, attrs=attrs,
    )  # fmt: skip


def test_blocks_that_are_no_pairs_are_refused() -> None:
    """Three features are no pairs, and 8 of 12 features are no blocks of 6."""
    for block, count in ((3, 12), (6, 8), (12, 24)):
        with pytest.raises(KernelError, match="give blocks of an even number of features"):
            family("rotary").cost(
                {"elements": 24, "cols": 12}, Tiling(1, 1), WSE2, attrs={"block": block, "turned": count}
            )
