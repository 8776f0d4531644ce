"""Parallel bands of rows: for any number and division of rows, every result is that of one thread and of the oracle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fabric.agreement import disagreements
from tests.fabric.executors.test_differential import CONFIG, NEWER, other_wafers
from tests.fabric.kernels import halo_sends_first
from tests.fabric.random_programs import random_program
from tests.generated import examples, seeds
from wse_sim.errors import ProgramError
from wse_sim.fabric.executors.base import Executor
from wse_sim.fabric.executors.wavelet.bands import (
    CALM,
    LINE,
    UNDECIDED,
    Edges,
    agree,
    bands_of,
    show,
    split_rows,
)
from wse_sim.fabric.executors.wavelet.executor import Wavelet
from wse_sim.fabric.executors.wavelet.planes import BAND, BANDS, SPINS, Array, Band
from wse_sim.fabric.format.builder import Builder, fabric_in, fabric_out
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Program
from wse_sim.fabric.run import BusyBins, FabricResult, run_program
from wse_sim.fabric.threads import cut
from wse_sim.jit import kernel

N = (2, 3, 5)


def uneven(program: Program, n: int) -> list[Band]:
    """Return the bands that begin at rows which no one balanced."""
    rng = np.random.default_rng(program.n_cores + n)
    rows = np.arange(1, program.rows)
    return bands_of(program, sorted(rng.choice(rows, min(n, program.rows) - 1, replace=False).tolist()))


IN_TURNS = Wavelet(in_turns=True)  # a test must not depend on who gets the processor
UNEVEN = Wavelet(uneven, in_turns=True)


def outcome(seed: int, config: FabricConfig, executor: str | Executor, threads: int) -> FabricResult | str:
    """Return the result or fault of a random program."""
    made = random_program(seed, config)
    try:
        return run_program(
            made.program, config, executor=executor, inputs=made.inputs, strict=seed % 4 == 0,
            functional=seed % 7 != 1, max_cycles=200_000, bins=BusyBins(5, 37), threads=threads,
        )  # fmt: skip
    except ProgramError as fault:
        return str(fault)


def compare(seed: int, config: FabricConfig, executor: str | Executor, threads: int) -> None:
    """Require the same fault, the same deadlock, or the same counters and values as the oracle."""
    expected = outcome(seed, config, "oracle", 1)
    found = outcome(seed, config, executor, threads)
    if isinstance(expected, str) or isinstance(found, str):
        assert expected == found, f"seed {seed}"
        return
    differ = disagreements(expected, found, values=seed % 7 != 1)
    assert not differ, f"seed {seed}, {threads} threads: {differ}"


@pytest.mark.thinned(1)
@pytest.mark.parametrize("threads", N)
@pytest.mark.parametrize("executor", [IN_TURNS, UNEVEN], ids=["even", "uneven"])
def test_bands_equal_the_oracle(executor: Executor, threads: int) -> None:
    """Programs have one to six rows: bands of one row, of several, and fewer rows than threads."""
    for seed in seeds(1000 * threads, 120):
        compare(seed, CONFIG, executor, threads)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("executor", [IN_TURNS, UNEVEN], ids=["even", "uneven"])
def test_bands_equal_the_oracle_on_the_newer_wafer(executor: Executor) -> None:
    """Long links, turns and slow ports: words in transit cross the edges of bands as well."""
    for seed in seeds(0, 150):
        compare(seed, NEWER, executor, N[seed % 3])


@pytest.mark.slow
@examples(80)
@given(st.integers(0, 10**9), other_wafers(), st.sampled_from(N))
def test_bands_equal_the_oracle_on_other_wafers(seed: int, config: FabricConfig, threads: int) -> None:
    """Wafers have unusual links, queues and ramps, and edges of dies that are edges of bands."""
    compare(seed, config, UNEVEN, threads)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in N[1:])])
def test_threads_equal_the_oracle(threads: int) -> None:
    """The test uses threads of the system; if there are more than processors, they may wait minutes for each other."""
    for seed in range(12):
        compare(seed, (CONFIG, NEWER)[seed % 2], "wavelet", threads)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(2))
def test_bands_equal_the_oracle_on_a_thousand_programs(block: int) -> None:
    """This is the slow test."""
    for seed in seeds(500 * block, 500):
        compare(seed, NEWER if seed % 4 == 0 else CONFIG, UNEVEN if seed % 3 else IN_TURNS, N[seed % 3])


def loop_through_rows(config: FabricConfig, rows: int, busy: tuple[int, ...]) -> Program:
    """Send a word down a column; each core counts `busy` cycles before it sends the word on."""
    b = Builder(rows, 1, config)
    x = b.buffer("x", 1)
    for row in range(rows):
        k = b.core_class(f"row {row}")
        mine, before = row % 2, (row + 1) % 2
        if row > 0:
            k.mov(x.dsd(), fabric_in(before), start="none")
        k.busy(busy[row])
        if row < rows - 1:
            k.mov(fabric_out(mine), x.dsd(), start="none")
            b.route(mine, (row, 0), "R", "S")
            b.route(mine, (row + 1, 0), "N", "R")
        b.place(k, (row, 0))
    return b.build()


def test_bands_jump_together(wse2: FabricConfig) -> None:
    """Only one core counts at a time, for a thousand cycles and for ten thousand: all bands skip that time.

    All counts follow each other, so the end is later than their sum.
    """
    busy = (1000, 10_000, 20, 3000)
    program = loop_through_rows(wse2, 4, busy)
    results = [run_program(program, wse2, executor=IN_TURNS, threads=n) for n in (1, 2, 4)]
    oracle = run_program(program, wse2, executor="oracle")
    assert oracle.cycles > sum(busy)
    for result in results:
        assert not disagreements(oracle, result, values=False)


def test_all_bands_stop_in_one_cycle(wse2: FabricConfig) -> None:
    """A deadlock over all rows has the same cycle, the same blocked cycles, and the same waiting cores."""
    program = halo_sends_first(wse2, 6, 8)
    expected = run_program(program, wse2, executor="oracle")
    assert expected.deadlock is not None
    for threads in (2, 3, 6):
        found = run_program(program, wse2, executor=IN_TURNS, threads=threads)
        assert not disagreements(expected, found, values=False)


@pytest.mark.parametrize("late", [0, 3])
def test_the_first_fault_of_all_bands_is_named(wse2: FabricConfig, late: int) -> None:
    """Every row leaves its buffer, row `late` last: the fault is that of the first cycle, and in it of the first core."""
    b = Builder(4, 1, wse2)
    x = b.buffer("x", 4)
    for row in range(4):
        k = b.core_class(f"row {row}")
        k.busy(40 if row == late else 20)
        with k.loop(9):
            k.mov(x.dsd(0, 2, step=2), x.dsd(0, 2), start="none")
        b.place(k, (row, 0))
    program = b.build()
    faults = []
    for threads in (1, 2, 4):
        with pytest.raises(ProgramError, match="leaves a buffer") as caught:
            run_program(program, wse2, executor=IN_TURNS, threads=threads)
        faults.append(str(caught.value))
    assert len(set(faults)) == 1
    assert f"({1 if late == 0 else 0}, 0)" in faults[0]


def test_rows_are_cut_by_what_they_hold(wse2: FabricConfig) -> None:
    """Half of 1 1 1 1 4 4 is 6, which is in the fifth row, so that row stays with the first band; every band has a row."""
    assert cut(np.array([1, 1, 1, 1, 4, 4]), 2) == [5]
    assert cut(np.array([9, 1, 1, 1]), 3) == [1, 2]
    assert cut(np.array([1, 1, 1, 9]), 3) == [2, 3]
    program = halo_sends_first(wse2, 6, 8)
    assert [(band.first, band.end) for band in split_rows(program, 9)] == [(i, i + 1) for i in range(6)]


def test_less_than_one_thread_is_refused(wse2: FabricConfig) -> None:
    """The error is one sentence."""
    with pytest.raises(ProgramError, match="threads = 0 is less than 1; use 1 or the number of free"):
        run_program(halo_sends_first(wse2, 2, 8), wse2, threads=0)


@kernel
def as_band(band: int, t: int, rest: int, ahead: int, shown: Array, words: Array) -> int:
    """Return the action of `band` of three after cycle `t`, once it has published its state; it looks once at the
    others and does not wait.
    """
    size, sets = np.zeros(19, np.int64), np.zeros(12, np.int64)
    size[BAND], sets[BANDS], sets[SPINS] = band, 3, 1
    edges = Edges(shown, words, words)
    show(t, rest, ahead, edges, size)
    return agree(t, rest, ahead, edges, size, sets)


def test_a_late_band_learns_of_a_jump_from_one_that_followed_it() -> None:
    """Three bands are calm after cycle 7, and counts end in 90 cycles.  The middle one jumps, the first follows; both have
    shown cycle 97 when the last one, which looks at the first one first, looks up: it must jump as far, not step.
    """
    shown, words = np.zeros(3 * LINE, np.int64), np.zeros((2, 3, 2, 0), np.uint64)
    assert as_band(0, 7, CALM, 90, shown, words) == UNDECIDED  # no one else has shown cycle 7
    assert as_band(2, 7, CALM, 120, shown, words) == UNDECIDED
    assert as_band(1, 7, CALM, 200, shown, words) == 90
    as_band(1, 97, 0, 0, shown, words)  # continues; the first looks at it first
    assert as_band(0, 7, CALM, 90, shown, words) == 90
    as_band(0, 97, 0, 0, shown, words)
    assert as_band(2, 7, CALM, 120, shown, words) == 90
