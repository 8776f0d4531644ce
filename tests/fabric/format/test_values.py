"""fp32 and fp16 arithmetic of the cores against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from wse_sim.fabric.format.builder import Builder, fabric_in, fabric_out
from wse_sim.fabric.format.classes import scalar
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Fn
from wse_sim.fabric.format.values import bits_f16, f16_bits
from wse_sim.fabric.run import run_program


def test_every_fp16_value_survives_the_way_to_fp32_and_back() -> None:
    """All 65,536 bit patterns except not-a-number are equal after the round trip."""
    bits = np.arange(65536, dtype=np.uint16)
    values = bits.view(np.float16)
    for b, v in zip(bits[::7], values[::7], strict=True):
        if not np.isnan(v):
            assert bits_f16(int(b)) == np.float32(v)
            assert f16_bits(np.float32(v)) == int(b)


def test_rounding_to_fp16_is_that_of_numpy() -> None:
    """Random fp32 numbers over all relevant exponents are rounded as in numpy, ties included."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(4000) * 10.0 ** rng.uniform(-9, 6, 4000)).astype(np.float32)
    ties = (np.arange(1, 2000, dtype=np.float32) * 2 + 1) / 4096
    with np.errstate(over="ignore"):
        for v in np.concatenate(
            [x, ties, np.array([65519.99, 65520, 1e9, 2**-25, 2**-24 * 1.5], np.float32)]
        ):
            assert f16_bits(v) == int(np.float16(v).view(np.uint16))


OPS = ("add", "sub", "mul", "max", "mac", "fmac")


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("op", OPS)
def test_vector_operations_equal_numpy(wse2: FabricConfig, op: str, dtype: str) -> None:
    """fp32 rounds every operation; an fp16 multiply-add rounds the fp32 sum once."""
    n, rng = 33, np.random.default_rng(7)
    b = Builder(1, 1, wse2)
    d, x, y = (b.buffer(name, n, dtype) for name in "dxy")
    k = b.core_class("one")
    if op == "fmac":
        k.fmac(d.dsd(), x.dsd(), y.dsd(), scalar(0.75), dtype=dtype)
    else:
        getattr(k, op)(d.dsd(), x.dsd(), y.dsd(), dtype=dtype)
    b.place(k, None)
    host = np.float32 if dtype == "fp32" else np.float16
    vx, vy, vd = (rng.standard_normal(n).astype(host) for _ in range(3))
    result = run_program(
        b.build(), wse2, inputs={"d": vd[None, None], "x": vx[None, None], "y": vy[None, None]}
    )
    f = np.float32
    expected = {
        "add": lambda: f(vx) + f(vy),
        "sub": lambda: f(vx) - f(vy),
        "mul": lambda: f(vx) * f(vy),
        "max": lambda: np.maximum(vx, vy),
        "mac": lambda: f(vd) + f(vx) * f(vy),
        "fmac": lambda: f(vx) + f(vy) * f(0.75),
    }[op]().astype(host)
    np.testing.assert_array_equal(result.read("d")[0, 0], expected)


def test_mixed_precision_accumulates_in_fp32(wse2: FabricConfig) -> None:
    """Products of fp16 are exact in fp32; the dot product goes into one scalar cell."""
    n = 64
    b = Builder(1, 1, wse2)
    acc, x, y = b.buffer("acc", 1), b.buffer("x", n, "fp16"), b.buffer("y", n, "fp16")
    k = b.core_class("dot")
    k.mac(acc.dsd(0, n, 0), x.dsd(), y.dsd(), length=n, dtype="mixed")
    b.place(k, None)
    rng = np.random.default_rng(3)
    vx, vy = (rng.standard_normal(n).astype(np.float16) for _ in range(2))
    result = run_program(b.build(), wse2, inputs={"x": vx[None, None], "y": vy[None, None]})
    expected = np.float32(0)
    for a, c in zip(vx.astype(np.float32), vy.astype(np.float32), strict=True):
        expected = np.float32(expected + a * c)
    assert result.read("acc")[0, 0, 0] == expected


def test_fp16_travels_two_to_a_wavelet(wse2: FabricConfig) -> None:
    """33 elements are 17 wavelets; values arrive unchanged."""
    b = Builder(1, 2, wse2)
    x = b.buffer("x", 33, "fp16")
    source, sink = b.core_class("source"), b.core_class("sink")
    source.mov(fabric_out(0), x.dsd(), dtype="fp16", start="none")
    sink.mov(x.dsd(), fabric_in(0), dtype="fp16", start="none")
    b.place(source, (0, 0))
    b.place(sink, (0, 1))
    b.route(0, (0, 0), rx="R", tx="E")
    b.route(0, (0, 1), rx="W", tx="R")
    values = np.random.default_rng(2).standard_normal((1, 2, 33)).astype(np.float16)
    result = run_program(b.build(), wse2, inputs={"x": values})
    assert result.sent[0, 0] == 17
    np.testing.assert_array_equal(result.read("x")[0, 1], values[0, 0])


def test_functions_are_rounded_once(wse2: FabricConfig) -> None:
    """silu and exp in double precision, stored as fp16; cost per element from the wafer."""
    b = Builder(1, 1, wse2)
    x, y = b.buffer("x", 5, "fp16"), b.buffer("y", 5, "fp16")
    k = b.core_class("one")
    k.map(Fn.EXP, y.dsd(), x.dsd(), dtype="fp16", start="none")
    b.place(k, None)
    values = np.array([[[-2, -1, 0, 1, 2.5]]], np.float16)
    result = run_program(b.build(), wse2, inputs={"x": values})
    assert result.cycles == 5 * 52
    np.testing.assert_array_equal(
        result.read("y"), np.exp(values.astype(np.float64)).astype(np.float32).astype(np.float16)
    )


@pytest.mark.parametrize(
    ("fn", "torch_name"),
    [(Fn.SIGMOID, "sigmoid"), (Fn.ERF, "erf"), (Fn.SOFTPLUS, "softplus"), (Fn.SIN, "sin"), (Fn.COS, "cos")],
)
def test_functions_are_those_of_torch(wse2: FabricConfig, fn: Fn, torch_name: str) -> None:
    """Scalar functions in fp32 against torch's double precision."""
    torch = pytest.importorskip("torch")
    b = Builder(1, 1, wse2)
    x = b.buffer("x", 101)
    k = b.core_class("one")
    k.map(fn, x.dsd(), x.dsd())
    b.place(k, None)
    values = np.linspace(-9, 9, 101, dtype=np.float32).reshape(1, 1, -1)
    function = getattr(torch, torch_name, None) or getattr(torch.nn.functional, torch_name)
    wanted = function(torch.from_numpy(values.astype(np.float64))).numpy()
    np.testing.assert_allclose(
        run_program(b.build(), wse2, inputs={"x": values}).read("x"), wanted, rtol=1e-6
    )


def test_indexed_words_pick_their_vector_and_the_first_replaces_the_sums(wse2: FabricConfig) -> None:
    """Three words (index, value) of four vectors, ended by a control wavelet, twice: 3 x 5 + 1 cycles a turn."""
    b = Builder(1, 2, wse2)
    words, x = b.buffer("words", 6, where=(0, 0)), b.buffer("x", 4 * 5, where=(0, 1))
    y = b.buffer("y", 5, where=(0, 1), bank=2)
    source, sink = b.core_class("source"), b.core_class("sink")
    with source.loop(2):
        source.mov(fabric_out(0), words.dsd(0, 3, step=3), start="none")
        source.control(0, ignore=False, start="none")
    with sink.loop(2):
        sink.fmac_vectors(
            *(y.dsd(), fabric_in(0), x.dsd(0, 5), 5),
            b_stride=5, triggered=True, fresh=True, indexed=True, length=4, terminate_on_control=True, start="none",
        )  # fmt: skip
    b.place(source, (0, 0))
    b.place(sink, (0, 1))
    b.route(0, (0, 0), rx="R", tx="E")
    b.route(0, (0, 1), rx="W", tx="R")
    index, value = np.array([3, 0, 2, 1, 3, 0], np.uint32), np.array([2, -1, 0.5, 4, 3, -2], np.float16)
    packed = ((index << 16) | value.view(np.uint16)).view(np.float32).reshape(1, 1, 6)
    vectors = np.arange(20, dtype=np.float32)
    result = run_program(b.build(), wse2, inputs={"words": packed, "x": vectors.reshape(1, 1, 20)})
    wanted = value[3:].astype(np.float32) @ vectors.reshape(4, 5)[index[3:]]
    np.testing.assert_array_equal(result.read("y")[0, 0], wanted)
    assert int(result.busy[0, 1]) == 2 * (3 * 5 + 1)
