"""The family of linear systems: values against numpy, cycles against the program, cost against the work of the sums."""

import numpy as np
import pytest

from wse_sim.errors import KernelError
from wse_sim.hardware import load_wafer
from wse_sim.kernels import Tiling, family
from wse_sim.kernels.contract.testing import check_faces

ELIMINATION = family("elimination")
WSE2 = load_wafer("wse2")


def matrices(*shape: int) -> np.ndarray:
    """Return symmetric matrices with positive eigenvalues."""
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    return np.asarray(x @ x.swapaxes(-1, -2) / shape[-1] + 2 * np.eye(shape[-1]), np.float32)


@pytest.mark.parametrize(("n", "r"), [(1, 1), (5, 3), (12, 12)])
def test_values(n: int, r: int) -> None:
    x, y = matrices(3, n, n), np.random.default_rng(3).standard_normal((3, n, r)).astype(np.float32)
    np.testing.assert_allclose(ELIMINATION.compute(x, y), np.linalg.solve(x, y), atol=1e-4)
    np.testing.assert_allclose(ELIMINATION.compute(x, kind="cholesky"), np.linalg.cholesky(x), atol=1e-4)
    upper = np.triu(x)
    np.testing.assert_allclose(
        ELIMINATION.compute(upper, y, kind="triangular"), np.linalg.solve(upper, y), atol=1e-4
    )
    pivots = np.diagonal(ELIMINATION.compute(x), axis1=-2, axis2=-1)
    np.testing.assert_allclose(pivots.prod(-1), np.linalg.det(x), rtol=1e-4)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize(("n", "r"), [(8, 3), (13, 1), (16, 16), (24, 0)])
@pytest.mark.parametrize("kind", ["solve", "triangular", "cholesky"])
def test_the_program_takes_the_cycles_of_the_cost(kind: str, n: int, r: int, dtype: str) -> None:
    dims = {"b": 4, "n": n} | ({"r": r} if r and kind != "cholesky" else {})
    if kind == "triangular" and not r:
        dims["r"] = 1
    check_faces(
        ELIMINATION, dims, Tiling(2, 2, "streamed"), WSE2, band=0.005, attrs={"kind": kind}, dtype=dtype
    )


def test_the_work_is_that_of_the_sums() -> None:
    """n^3 / 3 + n^2 r products, one per cycle in fp32, are most of the cycles of a large matrix on one core."""
    n, r = 96, 8
    cost = ELIMINATION.cost({"b": 1, "n": n, "r": r}, Tiling(1, 1, "streamed"), WSE2, dtype="fp32")
    products = n**3 / 3 + n * n * r
    assert products < float(cost.compute) < 1.4 * products


def test_more_cores_never_take_longer() -> None:
    """Matrices are spread over cores only where that is faster; a matrix beyond a core's SRAM needs several."""
    for dims in ({"b": 64, "n": 32, "r": 4}, {"b": 1, "n": 500}):
        cores = [1, 4, 16, 64, 256, 4096, 65536]
        times = [
            float(ELIMINATION.cost(dims, Tiling(1, c, "streamed"), WSE2, dtype="fp32").total) for c in cores
        ]
        assert times == sorted(times, reverse=True)
        assert times[-1] < np.inf
    assert times[0] == np.inf


@pytest.mark.parametrize("dims", [{"b": 5, "n": 8}, {"b": 1, "n": 200}])
def test_what_has_no_program_is_refused(dims: dict[str, int]) -> None:
    """The program has a matrix per core, and 200 x 200 numbers of fp32 are 160,000 bytes."""
    with pytest.raises(KernelError, match="have no fabric program"):
        ELIMINATION.program(dims, Tiling(2, 2, "streamed"), WSE2)
