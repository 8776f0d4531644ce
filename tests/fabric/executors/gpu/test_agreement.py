"""The GPU executor against the oracle: the work of its threads, in any order, and its kernels in numba's simulator."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fabric.agreement import disagreements
from tests.fabric.executors.gpu.host_grid import HostGrid
from tests.fabric.executors.test_differential import CONFIG
from tests.fabric.executors.test_threads import compare
from tests.fabric.kernels import halo_sends_first
from tests.generated import examples, seeds
from wse_sim.errors import ProgramError
from wse_sim.fabric.executors.gpu.device import what_is_missing
from wse_sim.fabric.executors.gpu.executor import Gpu
from wse_sim.fabric.executors.gpu.planes import bits_of, words_of
from wse_sim.fabric.format.builder import Builder, fabric_in, fabric_out
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Program
from wse_sim.fabric.run import run_program


def on_host(threads: int, seed: int = 0, cycles: int = 1000) -> Gpu:
    """Return the executor without a GPU: `threads` threads in changing orders, `cycles` cycles a call."""
    return Gpu(lambda: HostGrid(threads, seed), lambda: None, cycles)


INTERPRETED = """
from tests.fabric.executors.gpu import test_agreement as here
for seed in (2, 3, 4, 5, 8, 9, 10, 11):
    here.compare(seed, here.CONFIG, here.on_host(1 + seed % 13, seed, 37 if seed % 2 else 1000), 1)
"""


@pytest.mark.slow
def test_threads_as_plain_python_equal_the_oracle() -> None:
    """Eight short programs, interpreted: compiling the executor takes longer than all other quick tests of a folder."""
    out = subprocess.run(
        [sys.executable, "-W", "error", "-c", INTERPRETED],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert out.returncode == 0, out.stderr


@pytest.mark.slow
def test_threads_in_any_order_equal_the_oracle() -> None:
    """One to thirteen threads; routes, multicast, merges, switches, tasks, microthreads, deadlocks, faults, time bins."""
    for seed in seeds(0, 250):
        compare(seed, CONFIG, on_host(1 + seed % 13, seed, 37 if seed % 2 else 1000), 1)


@pytest.mark.slow
@examples(60)
@given(st.integers(10**6, 10**9), st.integers(1, 200), st.booleans(), st.sampled_from([1, 2, 4]))
def test_threads_equal_the_oracle_on_programs_that_hypothesis_picks(
    seed: int, threads: int, round_robin: bool, ramp_cycles: int
) -> None:
    """Seeds are random, with more threads than words, other arbitration and ramps."""
    config = dataclasses.replace(CONFIG, round_robin=round_robin, ramp_cycles=ramp_cycles)
    compare(seed, config, on_host(threads, seed), 1)


@pytest.mark.slow
def test_threads_equal_the_oracle_on_a_thousand_programs() -> None:
    """The same for the thousand programs of the slow tests."""
    for seed in seeds(200_000, 1000):
        compare(seed, CONFIG, on_host(1 + seed % 29, seed), 1)


def streams_at_edges(config: FabricConfig, cols: int) -> Program:
    """Words move east over all columns of row 0, west over row 1, and up and down between rows 2 and 3 in the last
    columns.
    """
    b = Builder(4, cols, config)
    x = b.buffer("x", 40)
    last = cols - 1
    paths = [((3, last), (2, last), "N", "S")]
    if cols > 1:
        paths += [
            ((0, 0), (0, last), "E", "W"),
            ((1, last), (1, 0), "W", "E"),
            ((2, last - 1), (3, last - 1), "S", "N"),
        ]
    for color, (source, sink, out, back) in enumerate(paths):
        if source[0] == sink[0]:
            b.route(color, (source[0], slice(0, cols)), rx=back, tx=out)
        b.route(color, source, rx="R", tx=out)
        b.route(color, sink, rx=back, tx="R")
        k = b.core_class(f"source {color}")
        k.mov(fabric_out(color), x.dsd(), start="none")
        b.place(k, source)
        k = b.core_class(f"sink {color}")
        k.add(x.dsd(), fabric_in(color), x.dsd(), start="none")
        b.place(k, sink)
    return b.build()


@pytest.mark.slow
@pytest.mark.parametrize("cols", [1, 2, 63, 64, 65, 128, 129])
def test_streams_cross_the_edges_of_words(wse2: FabricConfig, cols: int) -> None:
    """Fabrics are as wide as a machine word, one router narrower and one wider: the sink has the sum of both vectors."""
    program = streams_at_edges(wse2, cols)
    rng = np.random.default_rng(cols)
    inputs = {"x": rng.integers(-99, 99, (4, cols, 40)).astype(np.float32)}
    expected, found = (
        run_program(program, wse2, executor=one, inputs=inputs) for one in ("oracle", on_host(7))
    )
    assert not disagreements(expected, found, values=False)
    sums = found.read("x")
    assert np.array_equal(sums[2, cols - 1], inputs["x"][3, cols - 1] + inputs["x"][2, cols - 1])
    if cols > 1:
        assert np.array_equal(sums[0, cols - 1], inputs["x"][0, 0] + inputs["x"][0, cols - 1])
        assert np.array_equal(sums[1, 0], inputs["x"][1, cols - 1] + inputs["x"][1, 0])


def test_planes_hold_every_router_once() -> None:
    """Bits of 3 x 70 routers: in words of 64 with padding, and back; outside is zero."""
    bits = np.random.default_rng(0).random((2, 3, 70)) < 0.5
    planes = words_of(bits)
    assert planes.shape == (2, (3 + 2) * (2 + 1) + 2)
    assert np.array_equal(bits_of(planes, 3, 70), bits.reshape(2, -1))
    assert sum(int(word).bit_count() for word in planes.ravel()) == bits.sum()


@pytest.mark.slow
def test_a_deadlock_is_told_as_by_the_oracle(wse2: FabricConfig) -> None:
    """The cycle, the cores and the cycle of waits are those of the oracle."""
    program = halo_sends_first(wse2, 6, 8)
    expected, found = (run_program(program, wse2, executor=one) for one in ("oracle", on_host(4)))
    assert expected.deadlock is not None
    assert not disagreements(expected, found, values=False)


@pytest.mark.slow
def test_too_many_cycles_are_a_fault(wse2: FabricConfig) -> None:
    """Too many cycles are a fault as on every executor, whether or not the bound is the end of a launch."""
    program = streams_at_edges(wse2, 65)
    for cycles in (10, 7):
        with pytest.raises(ProgramError, match="has not ended after 30 cycles"):
            run_program(program, wse2, executor=on_host(3, cycles=cycles), max_cycles=30)


def test_long_links_are_refused(wse3: FabricConfig) -> None:
    """One sentence names the executor to use."""
    with pytest.raises(ProgramError, match=r"links of one cycle.*\(WSE-3 has\); use executor='wavelet'"):
        run_program(streams_at_edges(wse3, 3), wse3, executor=on_host(3))


def test_without_a_gpu_the_user_is_told_what_is_missing(wse2: FabricConfig) -> None:
    """One sentence states what is needed, how to get it, and what to use instead; no default chooses the executor."""
    program = streams_at_edges(wse2, 3)
    nowhere = Gpu(missing=lambda: "no GPU with a driver was found")
    with pytest.raises(
        ProgramError,
        match=r"needs an NVIDIA GPU, its driver and numba-cuda \(pip install 'wse-sim\[gpu\]'\), but no GPU with a driver was "
        r"found; use executor='max-plus' or 'wavelet'",
    ):
        run_program(program, wse2, executor=nowhere)
    with pytest.raises(ProgramError, match="the gpu executor has no trace; use executor='oracle'"):
        run_program(program, wse2, executor=on_host(3), trace_rows=5)


@pytest.mark.slow
def test_the_command_line_tells_what_is_missing_before_it_works() -> None:
    """The command ends with one sentence and status 2; on a machine with a GPU it runs."""
    out = subprocess.run(
        [sys.executable, "-m", "wse_sim.cli", "kernel", "reduce", "--param", "cores=4", "--param", "words=8", "--executor", "gpu"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if what_is_missing() is None:
        assert out.returncode == 0, out.stderr
        return
    assert out.returncode == 2
    assert "the gpu executor needs an NVIDIA GPU" in out.stderr.splitlines()[-1]
    assert "Traceback" not in out.stderr


@pytest.mark.slow
def test_kernels_equal_the_oracle_in_the_simulator_of_a_gpu() -> None:
    """Every kernel runs in numba's simulator: threads of the system that wait for each other, with real atomic
    operations.
    """
    out = subprocess.run(
        [sys.executable, "-m", "tests.fabric.executors.gpu.simulated"],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert out.returncode == 0, out.stderr
    told = json.loads(out.stdout)
    assert told["simulated"] is True
    assert told["persistent"] >= 6
    assert told["launches"] >= 3
    assert told["differ"] == {}
