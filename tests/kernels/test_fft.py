"""The family of Fourier transforms: values against numpy, cost against a published run and against the work of plain
sums.
"""

import numpy as np
import pytest

from wse_sim.errors import KernelError
from wse_sim.hardware import load_wafer
from wse_sim.kernels import Tiling, family
from wse_sim.kernels.families.fft import factors_of

FFT = family("fft")
WSE2 = load_wafer("wse2")


@pytest.mark.parametrize(("shape", "axes"), [((3, 16), 1), ((2, 6, 8), 2), ((5, 7), 1), ((4, 6, 10), 3)])
@pytest.mark.parametrize("inverse", [False, True])
def test_values(shape: tuple[int, ...], axes: int, inverse: bool) -> None:
    x = np.random.default_rng(1).standard_normal((*shape, 2)).astype(np.float32)
    found = FFT.compute(x, axes=axes, inverse=inverse)
    points, over = x[..., 0] + 1j * x[..., 1], range(-axes, 0)
    wanted = np.fft.ifftn(points, axes=over, norm="forward") if inverse else np.fft.fftn(points, axes=over)
    np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], wanted, atol=2e-4)


def test_the_published_run() -> None:
    """512^3 points of fp32 on 512 x 512 cores took 959 us at 850 MHz (arXiv 2209.15040); nothing is fitted to it."""
    cost = FFT.cost({"rows": 1, "n": 512, "n2": 512, "n3": 512}, Tiling(512, 512, "streamed"), WSE2, dtype="fp32")  # fmt: skip
    assert float(cost.total) == pytest.approx(959e-6 * 850e6, rel=0.12)


@pytest.mark.parametrize("n", [64, 96, 400, 401])
def test_a_line_on_one_core_has_the_work_of_its_stages(n: int) -> None:
    """A core with its own lines needs 8 n log2 n issue cycles at radix 2 (5 n log2 n operations, 3 of 5 at half rate),
    less than the plain sum of n^2 products.
    """
    lines = 8
    cost = FFT.cost({"rows": lines, "n": n}, Tiling(1, 1, "streamed"), WSE2, dtype="fp32")
    work = float(cost.compute)
    if n == 64:
        assert work == pytest.approx(lines * 8 * n * np.log2(n) / WSE2.add_fp32_memory_per_cycle)
    assert lines * 5 * n * np.log2(n) <= work * WSE2.add_fp32_memory_per_cycle < lines * 8 * n * n
    half = FFT.cost(
        {"rows": lines, "n": n}, Tiling(1, 1, "streamed"), WSE2, dtype="fp32", attrs={"real": True}
    )
    assert float(half.compute) == pytest.approx(work / 2)


def test_more_cores_never_take_longer() -> None:
    """Lines are spread over cores only where that is faster."""
    cores = [1, 2, 8, 32, 128, 512]
    times = [
        float(FFT.cost({"rows": 4, "n": 1024}, Tiling(1, c, "streamed"), WSE2, dtype="fp32").total)
        for c in cores
    ]
    assert times == sorted(times, reverse=True)


def test_factors() -> None:
    assert factors_of(400) == [2, 2, 2, 2, 5, 5]
    assert factors_of(401) == [401]
    assert factors_of(1) == []


@pytest.mark.parametrize(
    ("dims", "attrs"),
    [
        ({"rows": 1, "n": 16, "n2": 16}, {}),  # two axes
        ({"rows": 1, "n": 16}, {"real": True}),  # real numbers
        ({"rows": 1, "n": 12}, {}),  # no power of two
        ({"rows": 1, "n": 2}, {}),  # no butterfly of four
        ({"rows": 5, "n": 16}, {}),  # more lines than cores
    ],
)
def test_what_has_no_program_is_refused(dims: dict[str, int], attrs: dict[str, bool]) -> None:
    """The program has one line of 2^k complex points per core."""
    with pytest.raises(KernelError, match="have no fabric program"):
        FFT.program(dims, Tiling(2, 2, "streamed"), WSE2, attrs=attrs)
    FFT.program({"rows": 4, "n": 16}, Tiling(2, 2, "streamed"), WSE2)
