"""Programs of products, convolutions, pooling and elementwise work in every phase: values, cycles, bytes, probes.

Products of integers are exact in any order, so values are compared with the family's `compute` (or numpy)
bit for bit; the bands are those of the docstrings.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from wse_sim.errors import KernelError
from wse_sim.fabric.run import run_program
from wse_sim.graph import Phase
from wse_sim.hardware import load_wafer
from wse_sim.kernels import Tiling, family
from wse_sim.kernels.blocks.chains import ops_of
from wse_sim.kernels.contract.family import Case
from wse_sim.kernels.contract.testing import check_faces
from wse_sim.timing.probes import measure

WSE2 = load_wafer("wse2")
FORWARD, INPUT, WEIGHT = Phase.FORWARD, Phase.INPUT_GRADIENT, Phase.WEIGHT_GRADIENT
# What feeds, collects and rests beside the kernel's own buffers: at most the SRAM of a core.
EDGES = 44_976


def streamed(rows: int, cols: int, **more) -> Tiling:
    return Tiling(rows, cols, "streamed", **more)


def stationary(rows: int, cols: int) -> Tiling:
    return Tiling(rows, cols, "stationary")


def run(case: Case):
    result = run_program(case.program, case.config, inputs=case.inputs)
    assert result.deadlock is None
    return result


def check(name: str, dims, tiling: Tiling, band: float, **options) -> float:
    options = {"dtype": "fp16", **options}
    return check_faces(family(name), dims, tiling, WSE2, band=band, resident_bytes=EDGES, **options)


# ---- products -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize(
    ("dims", "tiling", "phase", "band"),
    [
        ({"m": 64, "k": 60, "n": 50}, streamed(4, 15, lanes=3), FORWARD, 0.005),
        ({"m": 30, "k": 60, "n": 63}, stationary(7, 4), FORWARD, 0.005),  # the faster orientation
        ({"m": 200, "k": 240, "n": 20}, streamed(4, 4), WEIGHT, 0.03),  # 1 / f of 50 features
        # 10 activations and 50 gradients per token: 1 / 50; 30 and 16: 1 / 30, and 8 of 15 issue cycles.
        ({"m": 40, "k": 30, "n": 200}, stationary(4, 4), WEIGHT, 0.04),
        ({"m": 120, "k": 30, "n": 64}, stationary(4, 4), WEIGHT, 0.04),
    ],
)
def test_products_in_all_phases(dims, tiling, phase, band, dtype):
    """Lanes, orientations and both weight gradients give numpy's products in the cycles of the cost."""
    check("gemm", dims, tiling, band, phase=phase, dtype=dtype)


def test_zero_weights_take_no_time():
    """Only the nonzero weights of the 25 vectors per core are used: cycles follow the density."""
    # 25 x 0.2 = 5 words of 16 tokens: 5 x 8 issue cycles and 16 sums per output, and a control word.
    cycles = {}
    for density in (1.0, 0.2):
        case = family("gemm").program(
            {"m": 64, "k": 100, "n": 40}, streamed(4, 4), WSE2, dtype="fp16", attrs={"density": density}
        )
        result = run(case)
        cycles[density] = result.cycles
        assert all(np.array_equal(result.read(name), wanted) for name, wanted in case.expected.items())
    assert cycles[1.0] == pytest.approx(40 * (25 * 8 + 16), rel=0.02)
    assert cycles[0.2] == pytest.approx(40 * (5 * 8 + 16 + 1), rel=0.05)
    check("gemm", {"m": 64, "k": 400, "n": 30}, streamed(4, 4), 0.02, attrs={"density": 0.25})


def test_a_weight_gradient_is_worked_out_in_full():
    """Its program refuses a density with a sentence."""
    with pytest.raises(KernelError, match=r"density 0\.5 has no fabric program"):
        check("gemm", {"m": 64, "k": 64, "n": 8}, streamed(4, 4), 1.0, phase=WEIGHT, attrs={"density": 0.5})


@pytest.mark.thinned(15)
@pytest.mark.parametrize("fused", ["bias", "residual", "bias,gelu", "bias,relu", "bias,residual,silu"])
@pytest.mark.parametrize(
    ("dims", "tiling"),
    [
        ({"m": 64, "k": 200, "n": 50}, streamed(4, 5)),
        ({"m": 128, "k": 100, "n": 20}, streamed(4, 10, lanes=2)),
        ({"m": 50, "k": 200, "n": 44}, stationary(5, 4)),
        ({"m": 48, "k": 200, "n": 28}, stationary(4, 4)),  # 7 outputs per core: half a word is left
        (
            {"m": 7, "k": 400, "n": 64},
            stationary(6, 4),
        ),  # fewer tokens than twice the rows: one core has two of them
        ({"m": 1, "k": 1200, "n": 64}, stationary(6, 4)),  # one core of a column has all its outputs
    ],
)
def test_work_on_outputs(dims, tiling, fused):
    """Sums return to the cores, each with its share, in complete rounds."""
    check("gemm", dims, tiling, 0.02, attrs={"fused": fused})


def test_shares_of_outputs_may_be_uneven_or_none():
    """7 outputs over 5 columns are shares of 2, 2, 2, 1 and none; 3 outputs are three shares of one."""
    for n in (7, 3):
        options = {"dtype": "fp16", "attrs": {"fused": "bias,residual"}}
        case = family("gemm").program({"m": 44, "k": 100, "n": n}, streamed(4, 5), WSE2, **options)
        found, wanted = run(case).read("out0"), case.expected["out0"]
        assert np.array_equal(found[~np.isnan(wanted)], wanted[~np.isnan(wanted)])
        # 44 tokens on 4 rows: 11 each, n outputs of them.
        assert np.count_nonzero(~np.isnan(wanted)) == 44 * n


def test_unknown_fused_work_is_named():
    """One sentence names the item and those that have programs."""
    with pytest.raises(KernelError, match="fused 'mish' has no fabric program; use bias, residual"):
        check("gemm", {"m": 8, "k": 8, "n": 8}, streamed(2, 2), 1.0, attrs={"fused": "bias,mish"})


@examples(12)
@given(
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 12)),
    cores=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    mapping=st.sampled_from(["streamed", "stationary"]),
    phase=st.sampled_from([FORWARD, WEIGHT]),
)
def test_any_shape_gives_the_product(sizes, cores, mapping, phase):
    """Single cores, single words and odd sizes: no core waits forever, and values are numpy's."""
    dims = dict(zip("mkn", sizes, strict=True))
    case = family("gemm").program(dims, Tiling(*cores, mapping), WSE2, dtype="fp16", phase=phase)
    result = run(case)
    assert all(np.array_equal(result.read(name), wanted) for name, wanted in case.expected.items())


@pytest.mark.parametrize("tiling", [streamed(2, 5), stationary(2, 5)])
@pytest.mark.parametrize("b", [4, 9, 16])
def test_several_products_per_core(tiling, b):
    """16 products on 10 cores are two per core, one after another."""
    check("batch_gemm", {"b": b, "m": 40, "k": 30, "n": 24}, tiling, 0.01)


@pytest.mark.parametrize(
    ("dims", "tiling", "phase", "band"),
    [
        ({"m": 90, "k": 192, "n": 30, "groups": 3}, streamed(4, 5), WEIGHT, 0.06),
        ({"m": 192, "k": 60, "n": 30, "groups": 3}, stationary(6, 8), FORWARD, 0.01),
        ({"m": 192, "k": 60, "n": 30, "groups": 3}, stationary(6, 8), INPUT, 0.01),
        ({"m": 90, "k": 192, "n": 60, "groups": 3}, stationary(6, 8), WEIGHT, 0.04),
        ({"m": 192, "k": 20, "n": 20, "groups": 8}, stationary(2, 2), FORWARD, 0.01),
        ({"m": 20, "k": 192, "n": 24, "groups": 8}, stationary(2, 2), WEIGHT, 0.05),
    ],
)
def test_groups(dims, tiling, phase, band):
    """Groups share the stream of weights or the cores; if there are more groups than cores they follow each other."""
    check("grouped_gemm", dims, tiling, band, phase=phase)


# ---- convolution --------------------------------------------------------------------------------


def conv(h, w, c, k, size, stride, pad):
    out = {"out_h": (h + 2 * pad - size) // stride + 1, "out_w": (w + 2 * pad - size) // stride + 1}
    return {"b": 1, "h": h, "w": w, "c": c, "k": k, "r": size, "s": size, "stride": stride, **out}


def turned(dims):
    """Return the dims of the input gradient: channels and sizes change sides."""
    sides = {"h": "out_h", "w": "out_w", "c": "k", "k": "c", "out_h": "h", "out_w": "w"}
    return dims | {name: dims[other] for name, other in sides.items()}


CONVOLUTIONS = [
    (conv(6, 20, 8, 20, 3, 1, 1), (6, 4), 0.07),  # a line per row of cores
    (conv(12, 20, 8, 20, 3, 1, 1), (4, 4), 0.06),
    (conv(12, 20, 8, 20, 3, 2, 1), (3, 4), 0.06),
    (conv(12, 13, 8, 20, 3, 2, 1), (3, 4), 0.06),  # odd lines
    (conv(12, 24, 64, 20, 1, 2, 0), (3, 4), 0.06),  # one tap of sixteen channels
    (conv(12, 24, 16, 16, 5, 1, 2), (3, 4), 0.17),  # one of five taps begins in the bank of the sums
    (conv(24, 24, 4, 16, 7, 2, 3), (3, 4), 0.14),  # one of seven
    (conv(16, 32, 3, 12, 4, 4, 0), (4, 6), 0.12),  # patches: 8 products per core
]


@pytest.mark.thinned(12)
@pytest.mark.parametrize(("dims", "cores", "band"), CONVOLUTIONS)
@pytest.mark.parametrize("phase", [FORWARD, INPUT, WEIGHT])
def test_streamed_convolutions(dims, cores, band, phase):
    """Strides, sizes of taps and paddings, forward and both gradients, as `compute` and `gradient`."""
    attrs = {"transposed": True} if phase is INPUT else {}
    check(
        "conv2d", turned(dims) if phase is INPUT else dims, streamed(*cores), band, phase=phase, attrs=attrs
    )


@pytest.mark.parametrize(
    ("dims", "cores"),
    [
        (conv(6, 10, 8, 24, 3, 1, 1), (4, 3)),
        (conv(8, 9, 8, 24, 3, 2, 1), (4, 3)),
        (conv(8, 8, 24, 24, 1, 2, 0), (4, 3)),
        (conv(8, 8, 4, 24, 7, 2, 3), (4, 3)),
        (conv(8, 8, 6, 24, 4, 4, 0), (4, 3)),
    ],
)
@pytest.mark.parametrize("phase", [FORWARD, INPUT, WEIGHT])
def test_stationary_convolutions(dims, cores, phase):
    """Unfolded pixels are multiplied by stationary filters; a gradient pixel of stride z gives a round per class of
    results.
    """
    # 8 outputs per core and 60 pixels or fewer: the chain of sums and 1 / v of the weight gradient show.
    attrs = {"transposed": True} if phase is INPUT else {}
    check(
        "conv2d", turned(dims) if phase is INPUT else dims, stationary(*cores), 0.10, phase=phase, attrs=attrs
    )


@pytest.mark.parametrize("mapping", ["streamed", "stationary"])
@pytest.mark.parametrize("phase", [FORWARD, INPUT, WEIGHT])
@pytest.mark.parametrize(("channels", "groups"), [((8, 20), 2), ((16, 16), 16), ((32, 32), 8)])
def test_groups_of_channels(channels, groups, mapping, phase):
    """Groups are next to each other on columns; in the depthwise case a column has complete groups and sends no sums."""
    dims = conv(*((12, 20) if mapping == "streamed" else (6, 10)), *channels, 3, 1, 1)
    attrs = {"groups": groups, **({"transposed": True} if phase is INPUT else {})}
    check(
        "conv2d",
        turned(dims) if phase is INPUT else dims,
        Tiling(4, 4, mapping),
        0.12,
        phase=phase,
        attrs=attrs,
    )


@examples(10)
@given(
    image=st.tuples(st.integers(4, 10), st.integers(4, 10)),
    channels=st.tuples(st.integers(1, 5), st.integers(1, 4)),
    size=st.integers(1, 4),
    stride=st.integers(1, 3),
    cores=st.tuples(st.integers(1, 3), st.integers(1, 5)),
    phase=st.sampled_from([FORWARD, INPUT, WEIGHT]),
)
def test_any_convolution_gives_its_values_or_says_why_not(image, channels, size, stride, cores, phase):
    """Odd images, strides above the taps, more columns than channels."""
    dims = conv(*image, *channels, size, stride, (size - 1) // 2)
    attrs = {"transposed": True} if phase is INPUT else {}
    given_dims = turned(dims) if phase is INPUT else dims
    try:
        case = family("conv2d").program(given_dims, streamed(*cores), WSE2, phase=phase, attrs=attrs)
    except KernelError:
        # Only more rows than lines, or lines of taps beyond the neighbours'.
        assert cores[0] > 1
        return
    result = run(case)
    for name, wanted in case.expected.items():
        compared = ~np.isnan(wanted)
        assert np.array_equal(result.read(name)[compared], wanted[compared])


# ---- elementwise work ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("phase", [FORWARD, INPUT])
@pytest.mark.parametrize("function", ["relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid"])
def test_activations(function, phase, dtype):
    """A special element takes e cycles, its gradient a quarter; relu takes a maximum, its gradient two instructions."""
    check(
        "activation",
        {"elements": 3200},
        streamed(4, 4),
        0.001,
        phase=phase,
        dtype=dtype,
        attrs={"function": function},
    )


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("phase", [FORWARD, INPUT])
@pytest.mark.parametrize(
    "ops", ["add", "mul,add", "sub,max,min", "div", "abs,neg", "square,copy", "add,add,add"]
)
def test_chains(ops, phase, dtype):
    """Operators run forward, and their gradients from the last to the first."""
    attrs = {"ops": ops, "inputs": 4}
    check("elementwise", {"elements": 3200}, streamed(4, 4), 0.01, phase=phase, dtype=dtype, attrs=attrs)


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("phase", [FORWARD, INPUT])
@pytest.mark.parametrize("ops", ["silu,mul", "add,relu", "mse_loss,sum", "mul,mean", "add,amax"])
def test_generated_chains(ops, phase, dtype):
    """Reductions run along the row of cores at the end of a chain."""
    dims = {"elements": 12800, "rows": 16, "cols": 800}
    check("generated", dims, streamed(4, 4), 0.04, phase=phase, dtype=dtype, attrs={"ops": ops, "inputs": 3})


@pytest.mark.parametrize("phase", [FORWARD, INPUT])
@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize("window", [2, 3])
def test_pooling(window, kind, phase):
    """The mean or the maximum of a window, and the gradient back to its positions."""
    dims = conv(40, 40, 4, 4, window, 2, (window - 1) // 2)
    check("pool2d", dims, streamed(4, 4), 0.001, phase=phase, attrs={"kind": kind})


@pytest.mark.parametrize("phase", [FORWARD, INPUT])
def test_dropout_applies_one_mask(phase):
    """In the backward pass the mask is drawn again, at a quarter of the cycles."""
    check("dropout", {"elements": 3200}, streamed(4, 4), 0.001, phase=phase, attrs={"p": 0.3})


def test_operators_without_a_program_are_named():
    """One sentence names the operator and those that have programs."""
    with pytest.raises(KernelError, match="elementwise 'where' has no fabric program; use add"):
        check("elementwise", {"elements": 64}, streamed(1, 1), 1.0, attrs={"ops": "where"})
    assert ops_of("residual, mse_loss,maximum") == ["add", "sub", "square", "max"]


# ---- probes ------------------------------------------------------------------------------------

RESNET = conv(56, 56, 64, 64, 3, 1, 1) | {"b": 256}
STRIDED = conv(56, 56, 64, 128, 3, 2, 1) | {"b": 256}
WAFER, REGION = streamed(994, 750, lanes=25), stationary(40, 30)


@pytest.mark.parametrize(
    ("name", "dims", "tiling", "how", "low", "high"),
    [
        ("gemm", {"m": 4096, "k": 2**18, "n": 4096}, WAFER, {"phase": WEIGHT}, 0.9, 1.0),
        ("gemm", {"m": 2048, "k": 4096, "n": 2048}, REGION, {"phase": WEIGHT}, 1.0, 1.1),
        ("gemm", {"m": 4096, "k": 4096, "n": 64}, WAFER, {"attrs": {"density": 0.25}}, 1.0, 1.05),
        ("batch_gemm", {"b": 64, "m": 128, "k": 64, "n": 128}, WAFER, {"attrs": {"heads": 8}}, 0.99, 1.01),
        ("batch_gemm", {"b": 64, "m": 128, "k": 64, "n": 128}, REGION, {}, 0.99, 1.01),
        ("grouped_gemm", {"m": 4096, "k": 512, "n": 512, "groups": 8}, WAFER, {}, 0.99, 1.01),
        ("grouped_gemm", {"m": 4096, "k": 512, "n": 512, "groups": 8}, REGION, {}, 0.99, 1.01),
        ("conv2d", RESNET, WAFER, {}, 0.99, 1.01),
        ("conv2d", turned(RESNET), WAFER, {"phase": INPUT, "attrs": {"transposed": True}}, 0.99, 1.01),
        ("conv2d", turned(STRIDED), WAFER, {"phase": INPUT, "attrs": {"transposed": True}}, 0.99, 1.02),
        ("conv2d", RESNET, REGION, {}, 0.99, 1.1),
        ("conv2d", RESNET | {"c": 512, "k": 512}, WAFER, {"attrs": {"groups": 512}}, 0.99, 1.01),
        ("conv2d", RESNET, WAFER, {"phase": WEIGHT}, 0.85, 1.0),
        ("pool2d", conv(112, 112, 64, 64, 3, 2, 1) | {"b": 64}, REGION, {"phase": INPUT}, 0.99, 1.01),
        (
            "generated",
            {"elements": 2**22, "rows": 64, "cols": 2**16},
            WAFER,
            {"attrs": {"ops": "mse_loss,sum"}},
            0.95,
            1.05,
        ),
        ("optimizer", {"elements": 2**22}, REGION, {"phase": Phase.UPDATE}, 0.99, 1.01),
        (
            "optimizer",
            {"elements": 2**22},
            REGION,
            {"phase": Phase.UPDATE, "attrs": {"algorithm": "sgd", "copy": True}},
            0.99,
            1.01,
        ),
    ],
)
def test_probes_measure_the_tile_of_a_plan(name, dims, tiling, how, low, high):
    """On a few cores with the plan's tile the ratio of steady cycles to the formula is that of the small programs."""
    probes = family(name).probes(dims, tiling, WSE2, **{"dtype": "fp16", **how})
    assert probes
    whole = family(name).cost(dims, tiling, WSE2, **{"dtype": "fp16", **how})
    # What probes stand for is a part of the kernel, and most of it beside fill (depthwise: half is the exchange).
    covered = sum(float(np.asarray(probe.cost.total)) for probe in probes)
    busy = float(np.asarray(whole.total - whole.idle))
    assert 0.5 * busy <= covered <= 1.0001 * busy + 1
    for probe in probes:
        assert low <= measure(probe, WSE2).ratio <= high
