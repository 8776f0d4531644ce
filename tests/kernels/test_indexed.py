"""Gathers and scatters: values as PyTorch has them, cycles of the ring worked out by hand and met on the fabric."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from wse_sim.errors import KernelError
from wse_sim.hardware import load_wafer
from wse_sim.kernels import family
from wse_sim.kernels.contract.family import Tiling
from wse_sim.kernels.contract.testing import check_faces

FAMILY, WSE2 = family("indexed"), load_wafer("wse2")


@pytest.mark.parametrize(
    ("op", "torch_op"), [("add", "sum"), ("max", "amax"), ("min", "amin"), ("mul", "prod")]
)
def test_scatters_are_those_of_torch(op, torch_op):
    rng = np.random.default_rng(3)
    table, values = rng.normal(size=(6, 4)).astype(np.float32), rng.normal(size=(20, 4)).astype(np.float32)
    ids = rng.integers(0, 6, 20)
    index = torch.from_numpy(ids)[:, None].expand(-1, 4)
    wanted = torch.from_numpy(table).scatter_reduce(0, index, torch.from_numpy(values), torch_op)
    np.testing.assert_allclose(FAMILY.compute(table, ids, values, op=op), wanted, rtol=1e-5)
    np.testing.assert_array_equal(FAMILY.compute(table, ids), table[ids])
    with pytest.raises(KernelError, match="give values"):
        FAMILY.compute(table, ids, op=op)


@pytest.mark.parametrize("op", ["gather", "add"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize(
    ("rows", "cols", "vocab", "ids", "width"), [(1, 2, 5, 10, 8), (4, 4, 16, 32, 64), (6, 1, 36, 72, 5)]
)
def test_the_cost_is_that_of_the_program(op, dtype, rows, cols, vocab, ids, width):
    """In fp32 within a cycle or two, in 16 bits within 3 %: values, cycles and SRAM of the program."""
    dims, tiling = {"rows": ids, "cols": width, "vocab": vocab}, Tiling(rows, cols, "streamed")
    band = 0.005 if dtype == "fp32" else 0.03
    how = {"dtype": dtype, "attrs": {"op": op}}
    case = FAMILY.program(dims, tiling, WSE2, **how)
    at_rest = sum(b.length * b.element_bytes for n, b in case.program.buffers.items() if "passing" not in n)
    check_faces(FAMILY, dims, tiling, WSE2, band=band, resident_bytes=at_rest, **how)


def test_a_gather_by_hand():
    """Four cores, 16 vectors of 16 fp32 features on one column, 8 taken per core.

    A block has 4 vectors, 64 words: 3 steps move it in and out (128 cycles) with two starts (12); 8 vectors take 21 + 8
    cycles each (two words move per cycle); the task starts in 56.  Nothing waits: 13 + 64 < 140.
    """
    cost = FAMILY.cost({"rows": 32, "cols": 16, "vocab": 16}, Tiling(4, 1, "streamed"), WSE2, dtype="fp32")
    assert cost.total == 3 * (128 + 12) + 8 * (21 + 8) + 56


def test_tables_of_samples_lie_beside_each_other():
    """As many tables as rows of cores: each core has its own and nothing travels; twice as many take twice as long."""
    tiling = Tiling(8, 4, "streamed")
    dims = {"rows": 6, "cols": 16, "vocab": 32, "tables": 8}
    one, two = (FAMILY.cost({**dims, "tables": n}, tiling, WSE2, dtype="fp32") for n in (8, 16))
    assert one.ramp == one.idle == 0
    assert two.total == 2 * one.total
    assert FAMILY.cost({**dims, "tables": 1}, tiling, WSE2, dtype="fp32").ramp > 0
    with pytest.raises(KernelError, match="has no program"):
        FAMILY.program(dims, tiling, WSE2)
