"""Gathers and scatters: values as in PyTorch, cycles of the ring computed by hand and on the fabric."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from wse_sim.errors import KernelError
from wse_sim.graph import Phase
from wse_sim.hardware import load_wafer
from wse_sim.kernels import family
from wse_sim.kernels.contract.family import Tiling
from wse_sim.kernels.contract.testing import check_faces
from wse_sim.timing.probes import measure

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


@pytest.mark.parametrize("op", ["gather", "add", "max", "mul"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize(
    ("rows", "cols", "vocab", "ids", "width"), [(1, 2, 5, 10, 8), (4, 4, 16, 32, 64), (6, 1, 36, 72, 5)]
)
def test_the_cost_is_that_of_the_program(op, dtype, rows, cols, vocab, ids, width):
    """In fp32 they agree within a cycle or two, in 16 bits within 3 %: values, cycles and SRAM of the program."""
    dims, tiling = {"rows": ids, "cols": width, "vocab": vocab}, Tiling(rows, cols, "streamed")
    band = 0.005 if dtype == "fp32" else 0.03
    how = {"dtype": dtype, "attrs": {"op": op}}
    case = FAMILY.program(dims, tiling, WSE2, **how)
    at_rest = sum(b.length * b.element_bytes for n, b in case.program.buffers.items() if "passing" not in n)
    check_faces(FAMILY, dims, tiling, WSE2, band=band, resident_bytes=at_rest, **how)


def test_a_gather_by_hand():
    """Four cores have 16 vectors of 16 fp32 features on one column, and 8 are taken per core.

    A block has 4 vectors, 64 words: 3 steps move it in and out (128 cycles) with two starts (12); 8 vectors take 21 + 8
    cycles each (two words move per cycle); the task starts in 56.  Nothing waits: 13 + 64 < 140.
    """
    cost = FAMILY.cost({"rows": 32, "cols": 16, "vocab": 16}, Tiling(4, 1, "streamed"), WSE2, dtype="fp32")
    assert cost.total == 3 * (128 + 12) + 8 * (21 + 8) + 56


def test_tables_of_samples_lie_beside_each_other():
    """With as many tables as rows of cores each core has its own and nothing travels; twice as many take twice as long."""
    tiling = Tiling(8, 4, "streamed")
    dims = {"rows": 6, "cols": 16, "vocab": 32, "tables": 8}
    one, two = (FAMILY.cost({**dims, "tables": n}, tiling, WSE2, dtype="fp32") for n in (8, 16))
    assert one.ramp == one.idle == 0
    assert two.total == 2 * one.total
    assert FAMILY.cost({**dims, "tables": 1}, tiling, WSE2, dtype="fp32").ramp > 0
    with pytest.raises(KernelError, match="has no program"):
        FAMILY.program(dims, tiling, WSE2)


@pytest.mark.parametrize("op", ["max", "mul"])
def test_gradients_of_what_met_are_more_than_a_gather(op):
    """One core has 4 vectors of 8 fp32 features and a table of 3: nothing travels, so the parts can be added by hand.

    Maximum: two gathers (4 starts of 21 and 8 / 2 cycles, a task of 56), a scatter-add (a clearing of 24 words in 12 and 21
    cycles, 4 adds of 21 + 8, a task), two passes over 32 numbers and 24 quotients, three starts.
    Product: a pass over 24, a gather, 32 quotients, two starts.
    """
    how = {"dtype": "fp32", "phase": Phase.INPUT_GRADIENT, "attrs": {"op": op}}
    dims, one = {"rows": 4, "cols": 8, "vocab": 3}, Tiling(1, 1, "streamed")
    found = FAMILY.cost(dims, one, WSE2, **how)
    gather, add = 4 * (21 + 8 / 2) + 56, 12 + 21 + 4 * (21 + 8) + 56
    parts = {
        "max": 2 * gather + add + 2 * 32 + 24 * WSE2.divide_cycles + 3 * 21,
        "mul": gather + 24 + 32 * WSE2.divide_cycles + 2 * 21,
    }
    assert found.total == parts[op]
    assert FAMILY.footprint(dims, one, WSE2, **how).buffers_bytes == 4 * 8 * (2 * 3 + 4)
    with pytest.raises(KernelError, match="forward"):
        FAMILY.program(dims, one, WSE2, **how)


@pytest.mark.parametrize("op", ["gather", "add", "max"])
@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.INPUT_GRADIENT])
def test_probes_measure_the_ring_and_the_vectors(op, phase):
    """The measured cycles by block size and by number of vectors agree with the formula within 3 %."""
    dims = {"rows": 3000, "cols": 640, "vocab": 2000}
    probes = FAMILY.probes(
        dims, Tiling(50, 40, "streamed"), WSE2, dtype="fp32", phase=phase, attrs={"op": op}
    )
    assert {probe.part.split(": ")[1] for probe in probes} == {"vectors", "ring"}
    for probe in probes:
        assert measure(probe, WSE2).ratio == pytest.approx(1, abs=0.03)
    whole = FAMILY.cost(dims, Tiling(50, 40, "streamed"), WSE2, dtype="fp32", phase=phase, attrs={"op": op})
    assert sum(probe.cost.total for probe in probes) <= whole.total
    assert not FAMILY.probes(dims, Tiling(50, 40, "streamed"), WSE2, attrs={"op": "set"})
