"""Programs that move data or recur: layout, resampling, embedding, scans; each against its cost, numpy and the
footprint.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from wse_sim.errors import KernelError
from wse_sim.fabric.run import run_program
from wse_sim.graph import Phase
from wse_sim.hardware import load_wafer
from wse_sim.kernels import Tiling, family
from wse_sim.kernels.contract.testing import check_faces
from wse_sim.timing.probes import measure

WSE2 = load_wafer("wse2")
BACKWARD = {"phase": Phase.INPUT_GRADIENT}
GRADIENT = {"phase": Phase.WEIGHT_GRADIENT}


@pytest.mark.parametrize(
    ("op", "side", "elements", "dtype", "band"),
    [
        ("copy", (2, 7), 23, "fp16", 0.03),
        ("copy", (2, 4), 400, "fp32", 0.02),
        ("fill", (2, 2), 300, "fp16", 0.0),
        ("transpose", (6, 6), 200, "fp16", 0.03),
        ("permute", (12, 12), 60, "fp16", 0.04),
        ("t", (5, 5), 77, "fp16", 0.05),
        ("transpose", (8, 8), 400, "fp32", 0.04),
    ],
)
def test_layout(op: str, side: tuple[int, int], elements: int, dtype: str, band: float) -> None:
    """Copies to a neighbour and transposes of a tiled matrix; own operand, neighbour's and result are resident."""
    rows, cols = side
    size = 2 if dtype == "fp16" else 4
    check_faces(
        family("layout"), {"elements": elements * rows * cols}, Tiling(rows, cols, "streamed"), WSE2,
        band=band, dtype=dtype, attrs={"op": op}, resident_bytes=3 * size * elements,
    )  # fmt: skip


def test_a_transpose_loads_every_link_with_half_a_tile_per_core() -> None:
    """With 8 x 8 cores and tiles of 400 fp16 the busiest link carries 7 half tiles of 100 words, and no link carries
    more.
    """
    case = family("layout").program(
        {"elements": 400 * 64}, Tiling(8, 8, "streamed"), WSE2, dtype="fp16", attrs={"op": "transpose"}
    )
    result = run_program(case.program, case.config, functional=False)
    assert result.link_wavelets[..., :4].max() == 7 * 100


def test_layouts_without_a_program_say_why() -> None:
    """A view takes no cycles; a rectangle is not transposed in place."""
    with pytest.raises(KernelError, match="addresses only"):
        family("layout").program({"elements": 9}, Tiling(1, 1, "streamed"), WSE2, attrs={"op": "view"})
    with pytest.raises(KernelError, match="use a square"):
        family("layout").program({"elements": 9}, Tiling(1, 3, "streamed"), WSE2, attrs={"op": "transpose"})
    assert (
        family("layout").probes({"elements": 9}, Tiling(1, 1, "streamed"), WSE2, attrs={"op": "view"}) == ()
    )


@pytest.mark.parametrize(
    ("attrs", "how"),
    [
        ({"mode": "nearest"}, {}),
        ({"op": "upsample_nearest2d"}, BACKWARD),
        ({"op": "upsample_bilinear2d"}, {}),
        ({"mode": "bicubic"}, {}),
    ],
)
def test_resampling(attrs: dict, how: dict) -> None:
    """Twice as many pixels in each direction, 112 outputs per core; source, taps and outputs are resident."""
    dims = {"b": 1, "h": 4, "w": 8, "c": 14, "out_h": 8, "out_w": 16}
    check_faces(
        family("resample"), dims, Tiling(4, 4, "streamed"), WSE2,
        band=0.02, dtype="fp16", attrs=attrs, resident_bytes=17 * 2 * 112, **how,
    )  # fmt: skip


def test_the_operator_decides_how_many_taps_a_pixel_has() -> None:
    """Bilinear and bicubic operators weigh 4 and 16 taps, nearest copies one."""
    dims = {"b": 1, "h": 8, "w": 8, "c": 64, "out_h": 16, "out_w": 16}
    cycles = {
        op: family("resample")
        .cost(dims, Tiling(2, 2, "streamed"), WSE2, dtype="fp16", attrs={"op": op})
        .total
        for op in ("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d")
    }
    # 4,096 outputs per core: a quarter cycle to copy; half a cycle per mixed multiply-accumulate; starts of 21
    assert list(cycles.values()) == [1024 + 21, 4 * (2048 + 21), 16 * (2048 + 21)]
    with pytest.raises(KernelError, match="same whole multiple"):
        family("resample").program({**dims, "out_h": 12}, Tiling(2, 2, "streamed"), WSE2)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("how", [{}, GRADIENT])
@pytest.mark.parametrize(("mapping", "band"), [("streamed", 0.02), ("stationary", 0.05)])
def test_embedding(mapping: str, band: float, how: dict, dtype: str) -> None:
    """Gather and scatter-add, with odd pieces of 11 elements; ids, vectors and gradients wait at the edges."""
    dims = {"rows": 40, "cols": 55, "vocab": 33}
    tiling = Tiling(4, 5, mapping)
    check_faces(
        family("embedding"), dims, tiling, WSE2, band=band, dtype=dtype, resident_bytes=4000, **how
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "band"), [("lstm", 0.02), ("gru", 0.03), ("rnn_tanh", 0.03), ("rnn_relu", 0.2)]
)
def test_a_recurrence_with_weights_on_a_row_of_cores(kind: str, band: float) -> None:
    """Three steps of two samples with 64 units; inputs of the gates and the cells' state are resident.

    The cost leaves out the starts of a step, which show where no special elements take their time.
    """
    for dtype in ("fp32", "fp16"):
        check_faces(
            family("scan"), {"steps": 3, "width": 64, "batch": 2}, Tiling(1, 4, "stationary"), WSE2,
            band=band, dtype=dtype, attrs={"kind": kind}, resident_bytes=4000,
        )  # fmt: skip


@pytest.mark.parametrize("kind", ["gru", "rnn_tanh", "rnn_relu"])
def test_recurrences_equal_pytorch(kind: str) -> None:
    """Four steps of three samples; the biases are part of the input's products."""
    torch.manual_seed(0)
    made = torch.nn.GRU(5, 7) if kind == "gru" else torch.nn.RNN(5, 7, nonlinearity=kind[4:])
    x = torch.randn(4, 3, 5)
    with torch.no_grad():
        made.bias_hh_l0.zero_()
        wanted = made(x)[0].numpy()
        gates = (x @ made.weight_ih_l0.T + made.bias_ih_l0).numpy()
    first = np.zeros((3, 7), np.float32)
    weights = made.weight_hh_l0.detach().numpy().T
    found = family("scan").compute(gates, weights, first, first, kind=kind)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("kind", ["selective", "cumsum"])
@pytest.mark.parametrize("how", [{}, BACKWARD])
def test_recurrences_without_weights(kind: str, how: dict) -> None:
    """Scans run forward and backward in time; operands of all steps are resident."""
    for dtype in ("fp32", "fp16"):
        dims = {"steps": 6, "width": 64, "batch": 10}
        check_faces(
            family("scan"), dims, Tiling(4, 4, "streamed"), WSE2,
            band=0.02, dtype=dtype, attrs={"kind": kind}, resident_bytes=6000, **how,
        )  # fmt: skip


def test_recurrences_differ_in_gates_and_special_elements() -> None:
    """A gru has three of an lstm's four gates and 3 special elements instead of 5; a plain one has a quarter, and 1 or
    none.
    """
    dims, tiling = {"steps": 10, "width": 512, "batch": 4}, Tiling(8, 8, "stationary")
    cost = {
        kind: family("scan").cost(dims, tiling, WSE2, dtype="fp16", attrs={"kind": kind})
        for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    }
    assert cost["gru"].compute / cost["lstm"].compute == pytest.approx(3 / 4)
    assert cost["gru"].special / cost["lstm"].special == pytest.approx(3 / 5)
    assert cost["rnn_tanh"].compute / cost["lstm"].compute == pytest.approx(1 / 4)
    assert cost["rnn_relu"].special == 0 < cost["rnn_tanh"].special
    with pytest.raises(KernelError, match="on one row of cores"):
        family("scan").program(dims, tiling, WSE2, attrs={"kind": "gru"})


PROBES = [
    ("layout", {"elements": 40_000_000}, "streamed", {"attrs": {"op": "cat"}}),
    ("layout", {"elements": 3_000_000}, "stationary", {"attrs": {"op": "permute"}}),
    ("embedding", {"rows": 1024, "cols": 768, "vocab": 50_257}, "streamed", {}),
    ("embedding", {"rows": 1024, "cols": 768, "vocab": 50_257}, "stationary", GRADIENT),
    (
        "resample",
        {"b": 1, "h": 32, "w": 32, "c": 640, "out_h": 64, "out_w": 64},
        "stationary",
        {"attrs": {"op": "upsample_nearest2d"}},
    ),
    ("scan", {"steps": 50, "width": 1024, "batch": 8}, "stationary", {"attrs": {"kind": "lstm"}}),
    (
        "scan",
        {"steps": 900, "width": 1536, "batch": 8},
        "streamed",
        {"attrs": {"kind": "selective"}, **BACKWARD},
    ),
]


@pytest.mark.parametrize(("name", "dims", "mapping", "how"), PROBES)
def test_probes_measure_large_kernels(name: str, dims: dict, mapping: str, how: dict) -> None:
    """A run of a few cores represents most of a kernel on 100 x 120, and agrees with its formula within 5 %."""
    tiling, how = Tiling(100, 120, mapping), {"dtype": "fp16", **how}
    probes = family(name).probes(dims, tiling, WSE2, **how)
    cost = family(name).cost(dims, tiling, WSE2, **how)
    stands = sum(float(np.asarray(probe.cost.total)) for probe in probes)
    assert 0.5 * float(cost.total) < stands <= float(cost.total)
    for probe in probes:
        assert int(probe.tiling.rows) * int(probe.tiling.cols) <= 64
        assert measure(probe, WSE2).ratio == pytest.approx(1.0, abs=0.05)
        shorter = dataclasses.replace(probe, start=max(1, probe.start // 2))
        assert measure(shorter, WSE2).ratio == pytest.approx(measure(probe, WSE2).ratio, abs=0.05)
