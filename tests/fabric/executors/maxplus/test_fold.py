"""Repeating rows and columns are solved once: comparison with the oracle on all of them."""

from __future__ import annotations

import collections
import dataclasses

import numpy as np
import pytest

from benchmarks.fabric_maxplus import gemv, halo
from tests.fabric.executors.maxplus.compare import differences, solve_run
from tests.fabric.executors.maxplus.regular import BUFFER, random_regular_program
from tests.fabric.executors.maxplus.test_fuzz import OTHER, WSE2
from tests.generated import cases, seeds
from wse_sim.errors import ProgramError
from wse_sim.fabric.executors.base import Options
from wse_sim.fabric.executors.certificate import Certificate
from wse_sim.fabric.executors.maxplus import fold
from wse_sim.fabric.executors.maxplus.dataflow import is_dataflow
from wse_sim.fabric.executors.maxplus.executor import MaxPlus, _Whole
from wse_sim.fabric.executors.maxplus.records import ARRIVAL, OWN_CLOCK
from wse_sim.fabric.executors.wavelet.executor import Wavelet
from wse_sim.fabric.format.builder import Builder
from wse_sim.fabric.format.classes import fabric_in, fabric_out
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.lower import lower
from wse_sim.fabric.format.program import Program
from wse_sim.fabric.run import FabricResult, run_program


def both(program: Program, config: FabricConfig = WSE2) -> FabricResult:
    """Run both executors without values; they must agree in every core."""
    result = solve_run(program, config, functional=False)
    reference = run_program(program, config, executor="oracle", functional=False)
    assert differences(result, reference) == []
    return result


def copies(certificate: Certificate) -> int:
    """Return the number of rows and columns that were not solved."""
    return certificate.folded_rows + certificate.folded_cols


def fuzz(seeds: range, config: FabricConfig) -> collections.Counter[str]:
    """Run random repeating programs; count the folded ones."""
    seen: collections.Counter[str] = collections.Counter()
    for seed in seeds:
        certificate = both(random_regular_program(seed, config), config).certificate
        seen["folded"] += copies(certificate) > 0
        seen["folded, time-ordered"] += copies(certificate) > 0 and not certificate.clean
        seen["folded, extrapolated"] += copies(certificate) > 0 and certificate.extrapolated_rounds > 0
        seen["refused"] += copies(certificate) == 0
    return seen


def test_random_repeating_programs_equal_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few periods are kept, so ends and transients are near: an unproved copy would be wrong."""
    monkeypatch.setattr(fold, "KEPT", (3, 5, 9))
    seen = fuzz(range(60), WSE2) + fuzz(range(200, 230), OTHER)
    assert seen["folded"] > 25
    assert min(seen["folded, time-ordered"], seen["folded, extrapolated"], seen["refused"]) > 4


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_many_random_repeating_programs_equal_the_oracle(monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    """1,000 programs, half of them on the other machine."""
    monkeypatch.setattr(fold, "KEPT", (3, 5, 9))
    found = fuzz(seeds(100_000 + 2000 * part, 500), WSE2 if part % 2 else OTHER)
    assert found["folded"] > cases(500) // 4


def test_pipelined_gemv_contends_and_its_rows_repeat() -> None:
    """Every ramp is contended; row i does what row i - 1 did, one cycle (a hop) later."""
    certificate = both(gemv(WSE2, 40, 20, 8, 8, 20, edge=True)).certificate
    assert [c.kind for c in certificate.components] == ["time-ordered"]
    assert certificate.components[0].cores == 800
    assert (certificate.folded_rows, certificate.folded_cols) == (30, 0)


def test_halo_repeats_in_both_directions() -> None:
    """All cores start together, so copies are not shifted; the effect of the ends moves inwards by one core per turn."""
    certificate = both(halo(WSE2, 40, 44, 4, 20, 3)).certificate
    assert certificate.folded_rows > 20
    assert certificate.folded_cols > 20


def column(config: FabricConfig, lines: int, own: int, tail: int) -> Program:
    """Return a word travels down a column of cores that compute `own` cycles before they look at it; the last sends
    after `tail`.
    """
    b = Builder(lines, 2, config)
    x = b.buffer("x", 4)
    top, middle, last = b.core_class("top"), b.core_class("middle"), b.core_class("last")
    top.mov(fabric_out(0), x.dsd(), start="none")
    middle.busy(own)
    middle.mov(x.dsd(), fabric_in(0), start="none")
    last.busy(tail)
    last.mov(fabric_out(1), x.dsd(), start="none")
    last.mov(x.dsd(), fabric_in(0), start="none")
    sink = b.core_class("sink")
    sink.mov(x.dsd(), fabric_in(1), start="none")
    b.route(0, (slice(None), 0), "N", "RS")
    b.route(0, (0, 0), "R", "S")
    b.route(0, (lines - 1, 0), "N", "R")
    b.route(1, (lines - 1, 0), "R", "E")
    b.route(1, (lines - 1, 1), "W", "R")
    b.place(top, (0, 0))
    b.place(middle, (slice(1, lines - 1), 0))
    b.place(last, (lines - 1, 0))
    b.place(sink, (lines - 1, 1))
    return b.build()


def test_a_line_behind_the_copies_that_starts_by_its_own_clock_prevents_them() -> None:
    """The last core sends at once, independently of the wave: shifting it with the wave would be wrong by one cycle per
    row.
    """
    assert copies(both(column(WSE2, 60, 0, 3)).certificate) == 0


def test_cores_that_are_still_busy_when_the_wave_comes_prevent_copies() -> None:
    """With 30 cycles of own work the first rows are late for the wave, and later rows are not."""
    assert copies(both(column(WSE2, 60, 30, 0)).certificate) == 0


def test_the_first_step_waits_for_a_word_or_for_the_clock_of_the_core() -> None:
    """The word decides as long as the oracle's reader ends in the same cycle, however long it works before it looks."""
    ends, anchors = [], []
    for own in range(10):
        program = column(WSE2, 4, own, 3)
        ends.append(int(run_program(program, WSE2, executor="oracle", functional=False).halt_cycles[1, 0]))
        solver = MaxPlus(Wavelet(), speculate=True, steady=True, fold=False)
        planes = _Whole(solver, lower(program, WSE2), Options(functional=False)).timing(signing=True)
        assert planes is not None
        anchors.append(int(planes["anchor"][1, 0]))
    assert anchors == [ARRIVAL if end == ends[0] else OWN_CLOCK for end in ends]
    assert set(anchors) == {ARRIVAL, OWN_CLOCK}


def with_values(program: Program, config: FabricConfig, seed: int) -> FabricResult:
    """Return the runs with values of both executors; they must agree in every core and every value."""
    rng = np.random.default_rng(seed)
    inputs = {"x": rng.standard_normal((program.rows, program.cols, BUFFER)).astype(np.float32)}
    result = solve_run(program, config, inputs=inputs)
    reference = run_program(program, config, executor="oracle", inputs=inputs)
    assert differences(result, reference, ("x",)) == []
    return result


def test_values_of_copies_are_those_of_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times come from a few lines, values from all: every core has its own values."""
    monkeypatch.setattr(fold, "KEPT", (3, 5, 9))
    folded = 0
    for seed in range(300, 330):
        config = WSE2 if seed % 3 else OTHER
        folded += copies(with_values(random_regular_program(seed, config), config, seed).certificate) > 0
    assert folded > 8


def test_contended_gemv_with_values_is_not_stepped() -> None:
    """Two colors meet on every ramp; rows repeat in time but not in value: y = A x + the partial sums of the row."""
    rows, cols, n = 40, 6, 4
    program = gemv(WSE2, rows, cols, n, n, 3, edge=True)
    rng = np.random.default_rng(0)
    inputs = {
        name: rng.integers(-3, 4, (rows, cols, size)).astype(np.float32)
        for name, size in (("a", n * n), ("x", n))
    }
    result = solve_run(program, WSE2, inputs=inputs)
    assert copies(result.certificate) > 0
    assert [c.kind for c in result.certificate.components] == ["time-ordered"]
    reference = run_program(program, WSE2, executor="oracle", inputs=inputs)
    assert differences(result, reference, ("a", "x", "y")) == []
    assert np.abs(result.read("y")).max() > 0


def test_rows_that_a_switch_leads_are_folded_for_timing_only() -> None:
    """If the order of words depends on times, values cannot be separated from them."""
    program = gemv(WSE2, 40, 6, 4, 4, 1)
    assert is_dataflow(program)
    moved = dataclasses.replace(program, cfg_positions=program.cfg_positions + 1)
    assert not is_dataflow(moved)
    assert copies(solve_run(program, WSE2, functional=False, fold=False).certificate) == 0
    assert copies(solve_run(program, WSE2, functional=False).certificate) > 0
    assert copies(solve_run(program, WSE2).certificate) > 0


def test_a_fault_in_a_copied_row_is_named() -> None:
    """All rows repeat in time, and all leave their buffer in the third round; the fault names the first core of the
    first cycle.
    """
    b = Builder(40, 1, WSE2)
    x = b.buffer("x", 4)
    k = b.core_class("k")
    with k.loop(3):
        k.mov(x.dsd(0, 2), x.dsd(0, 2, step=2))
    b.place(k, (slice(None), 0))
    with pytest.raises(ProgramError, match=r"core \(0, 0\) of class 'k' leaves a buffer in cycle"):
        solve_run(b.build(), WSE2)
