"""The programs of the benchmark, compiled from CSL: their values are numpy's, on both generations and with both executors."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.csl import PROGRAMS, address, check_gemv, fill_gemv
from wse_sim.csl import compile_program
from wse_sim.fabric.vm.session import Session
from wse_sim.hardware.wafer import load_wafer


def session_of(name: str, arch: str, executor: str, *, threads: int = 1, **params: int) -> Session:
    """Return a session of a program of the benchmark."""
    program = compile_program(PROGRAMS / f"{name}_layout.csl", arch=arch, memcpy=True, params=params)
    return Session(program.image, load_wafer(arch), executor=executor, threads=threads)


@pytest.mark.parametrize("executor", ["oracle", "fast"])
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_matrix_times_vector(arch: str, executor: str):
    """Sums of four tiles travel along three rows."""
    s = session_of("gemv", arch, executor, cols=4, rows=3, m=5, n=3)
    tiles, x = fill_gemv(s, 5, 3)
    s.launch(0, 0, 4, 3, "compute")
    assert s.advance("commands").reason == "asked"
    assert check_gemv(s, tiles, x) < 1e-6


@pytest.mark.parametrize("executor", ["oracle", "fast"])
def test_five_point_stencil(executor: str):
    """Three steps of u + 0.1 (neighbours - 4 u), zero beyond the edge, on 4 x 3 columns of 12 cells: more words than any queue holds."""
    s = session_of("stencil", "wse2", executor, cols=4, rows=3, n=12, steps=3)
    u = np.random.default_rng(2).standard_normal((3, 4, 12)).astype(np.float32)
    s.poke_region(0, 0, 4, 3, address(s, "u"), u.view(np.uint16))
    s.launch(0, 0, 4, 3, "run")
    assert s.advance("commands").reason == "asked"
    got = s.peek_region(0, 0, 4, 3, address(s, "u"), 24).view(np.float32)
    want = u.astype(np.float64)
    for _ in range(3):
        p = np.pad(want, ((1, 1), (1, 1), (0, 0)))
        want = want + 0.1 * (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - 4 * want)
    np.testing.assert_allclose(got, want, atol=2e-6)
