"""The contract of executors: which one is chosen, which one refuses, and that a new one needs only its own file."""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import pytest

from tests.fabric.executors.gpu.host_grid import HostGrid
from tests.fabric.kernels import halo_sends_first
from tests.fabric.random_programs import random_program
from wse_sim.errors import ProgramError
from wse_sim.fabric.executors.base import BusyBins, Counters, Options, Reason, Run
from wse_sim.fabric.executors.gpu.executor import Gpu
from wse_sim.fabric.executors.oracle import Oracle
from wse_sim.fabric.format.builder import Builder
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.lower import Lowered, lower
from wse_sim.fabric.format.memory import Inputs, new_memory
from wse_sim.fabric.format.program import Program
from wse_sim.fabric.run import EXECUTORS, Listed, choose_executor, run_program


def busy_cores(config: FabricConfig, rows: int, cols: int) -> Program:
    """Return the cores that are busy for ten cycles."""
    b = Builder(rows, cols, config)
    k = b.core_class("k")
    k.busy(10)
    b.place(k, (slice(0, rows), slice(0, cols)))
    return b.build()


@pytest.mark.parametrize(
    ("size", "options", "expected"),
    [
        ((2, 3), Options(), "wavelet"),
        ((128, 128), Options(), "max-plus"),
        ((128, 128), Options(bins=BusyBins(4)), "wavelet"),
        ((2, 3), Options(trace_rows=10), "oracle"),
    ],
)
def test_the_first_that_can_run_a_program_of_this_size_is_chosen(
    wse2: FabricConfig, size: tuple[int, int], options: Options, expected: str
) -> None:
    """16,384 cores are solved; time bins are stepped; traces are recorded by the oracle."""
    assert choose_executor(busy_cores(wse2, *size), options).name == expected


WITHOUT_GPU = Gpu(lambda: HostGrid(threads=5, seed=1), lambda: None)
# Machine code of the GPU's executor for the host takes long to compile and is used by no other quick test.
CHEAP_OR_SLOW = [
    pytest.param(listed, marks=pytest.mark.slow) if listed.executor.name == "gpu" else listed
    for listed in EXECUTORS
]


@pytest.mark.parametrize("listed", CHEAP_OR_SLOW, ids=lambda listed: listed.executor.name)
def test_every_executor_fills_in_the_whole_contract(wse2: FabricConfig, listed: Listed) -> None:
    """Counters are (R,) or (R, n); a stopped run states for what every unfinished core waits."""
    made = random_program(5, wse2)
    executor = WITHOUT_GPU if listed.executor.name == "gpu" else listed.executor
    assert executor.can_run(made.program, Options()) is None
    cycles = {
        run_program(made.program, wse2, executor=one, inputs=made.inputs, strict=False).cycles
        for one in (Oracle(), executor)
    }
    assert len(cycles) == 1
    stopped = halo_sends_first(wse2, 4, 8)
    run = executor.run(lower(stopped, wse2), None, Options())
    for field in dataclasses.fields(Counters):
        assert len(getattr(run.counters, field.name)) == stopped.n_cores
    assert run.waits is not None
    assert set(run.waits.wants[:, 0]) == set(np.flatnonzero(run.waits.unfinished))
    assert (np.diff(run.waits.wants[:, 0]) >= 0).all()


@pytest.mark.parametrize("listed", CHEAP_OR_SLOW, ids=lambda listed: listed.executor.name)
def test_no_executor_changes_the_program(wse2: FabricConfig, listed: Listed) -> None:
    """One program runs on several executors one after the other, here and in the random comparisons."""
    executor = WITHOUT_GPU if listed.executor.name == "gpu" else listed.executor
    for seed in range(12):
        made = random_program(seed, wse2)
        before = {
            field.name: array.tobytes()
            for field in dataclasses.fields(made.program)
            if isinstance(array := getattr(made.program, field.name), np.ndarray)
        }
        assert len(before) > 10
        with contextlib.suppress(ProgramError):
            run_program(made.program, wse2, executor=executor, inputs=made.inputs, strict=False)
        after = {name: getattr(made.program, name).tobytes() for name in before}
        assert before == after


class Sleeper:
    """An executor that finishes every program at once."""

    name = "sleeper"

    def can_run(self, program: Program, options: Options) -> Reason | None:
        return Reason("the sleeper has no values") if options.functional else None

    def run(self, lowered: Lowered, inputs: Inputs | None, options: Options) -> Run:
        n = lowered.program.n_cores
        one, ports = np.zeros(n, np.int64), np.zeros((n, 5), np.int64)
        counters = Counters(one, one, one, one, one, one, ports, ports, ports[:, :3])
        memory = new_memory(lowered.program, inputs, functional=options.functional)
        return Run(0, counters, memory, None, 0, np.zeros((0, n), np.int32), np.zeros((0, 9), np.int64))


def test_an_executor_of_ones_own_is_run_as_it_is(wse2: FabricConfig) -> None:
    """No other file refers to it."""
    result = run_program(busy_cores(wse2, 2, 3), wse2, executor=Sleeper(), functional=False)
    assert (result.executor, result.cycles, result.busy.shape) == ("sleeper", 0, (2, 3))


def test_an_executor_that_cannot_run_says_why_and_names_those_that_can(wse2: FabricConfig) -> None:
    """Each error is one sentence."""
    program = busy_cores(wse2, 2, 3)
    with pytest.raises(ProgramError, match=r"max-plus executor has no time bins.*'wavelet' or 'oracle'"):
        run_program(program, wse2, executor="max-plus", bins=BusyBins(3))
    with pytest.raises(ProgramError, match="wavelet executor has no trace; use executor='oracle'"):
        run_program(program, wse2, executor="wavelet", trace_rows=3)
    with pytest.raises(ProgramError, match="'eager' is unknown; use auto, max-plus, wavelet, oracle"):
        run_program(program, wse2, executor="eager")
    with pytest.raises(ProgramError, match="the sleeper has no values"):
        run_program(program, wse2, executor=Sleeper())


@pytest.mark.parametrize("executor", ["oracle", "wavelet", "max-plus"])
def test_parts_of_a_run_take_its_time(wse2: FabricConfig, executor: str) -> None:
    """Parts follow each other, so together they take no longer than the run; those of stepping have its cycles."""
    result = run_program(busy_cores(wse2, 20, 3), wse2, executor=executor)
    assert 0 < sum(result.timings_s.values()) <= result.wall_s
    assert any("cycles" in part for part in result.timings_s) == (executor == "wavelet")


def test_the_former_name_of_max_plus_works_and_warns(wse2: FabricConfig) -> None:
    """Scripts with the former name continue to work."""
    program = busy_cores(wse2, 2, 3)
    with pytest.warns(FutureWarning, match="'stream' is now called 'max-plus'"):
        result = run_program(program, wse2, executor="stream")
    assert result.executor == "max-plus"
    assert result.cycles == run_program(program, wse2, executor=Oracle()).cycles == 10
