"""Faults, deadlock, counters, trace and capacity of fabric programs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.fabric import kernels
from tests.work import python_calls
from wse_sim.errors import ConfigError, DeadlockError, ProgramError
from wse_sim.fabric.format.builder import Builder, fabric_in, fabric_out
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Command, Program
from wse_sim.fabric.run import BusyBins, run_program
from wse_sim.fabric.wseviz import export_trace
from wse_sim.hardware import load_wafer

EXECUTORS = ("oracle", "wavelet")


def _two_inputs(config: FabricConfig) -> Program:
    b = Builder(1, 3, config)
    x = b.buffer("x", 8)
    source, sink = b.core_class("source"), b.core_class("sink")
    source.mov(fabric_out(5), x.dsd(0, 4), start="none")
    sink.mov(x.dsd(0, 8), fabric_in(5), start="none")
    b.place(source, None)
    b.place(sink, (0, 1))
    b.route(5, (0, 0), rx="R", tx="E")
    b.route(5, (0, 2), rx="R", tx="W")
    b.route(5, (0, 1), rx="WE", tx="R")
    return b.build()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_two_inputs_of_one_color_in_one_cycle_are_an_error(wse2: FabricConfig, executor: str) -> None:
    """Both words reach core (0, 1) in cycle 5: undefined on the machine, serialised when lenient."""
    program = _two_inputs(wse2)
    with pytest.raises(ProgramError, match=r"core \(0, 1\): two inputs of color 5 in cycle 5"):
        run_program(program, wse2, executor=executor)
    result = run_program(program, wse2, executor=executor, strict=False)
    assert result.received[0, 1] == 8


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("words", "runs"), [(4, True), (6, True), (7, False), (12, False)])
def test_all_sends_before_receives_deadlock_beyond_the_buffers(
    wse2: FabricConfig, executor: str, words: int, runs: bool
) -> None:
    """Four neighbours, one ring of 8 words over all colors: 6 words per neighbour fit, 7 do not."""
    result = run_program(kernels.halo_sends_first(wse2, 16, words), wse2, executor=executor)
    assert (result.deadlock is None) is runs
    assert (result.halt_cycles >= 0).all() == runs
    if result.deadlock is not None:
        assert (result.halt_cycles == -1).all()
        assert result.deadlock.unfinished == 256
        assert len(result.deadlock.cycle_of_waits) >= 2
        assert "color" in result.deadlock.message()
        with pytest.raises(DeadlockError):
            raise result.deadlock.error()


def test_a_missing_sender_is_a_deadlock_without_a_cycle(wse2: FabricConfig) -> None:
    """The receiver waits for a color that no core sends."""
    b = Builder(1, 2, wse2)
    x = b.buffer("x", 1)
    k = b.core_class("sink")
    k.mov(x.dsd(), fabric_in(3), start="none")
    b.place(k, (0, 1))
    b.route(3, (0, 0), rx="R", tx="E")
    b.route(3, (0, 1), rx="W", tx="R")
    deadlock = run_program(b.build(), wse2).deadlock
    assert deadlock is not None
    assert str(deadlock.waits[0]) == "core (0, 1) waits for a word of color 3"
    assert deadlock.cycle_of_waits == ()


@pytest.mark.slow
def test_a_deadlock_is_one_sentence_and_a_list(wse2: FabricConfig, tmp_path: Path) -> None:
    """10,000 cores wait for each other: the sentence names the first, counts the others and names the file with all of
    them.
    """
    deadlock = run_program(kernels.halo_sends_first(wse2, 100, 8), wse2).deadlock
    assert deadlock is not None
    path = tmp_path / "made" / "waits.txt"
    told = deadlock.told(path)
    assert str(deadlock) == deadlock.message()
    assert told == f"{deadlock}; all waits are listed in {path}"
    assert re.match(
        r"deadlock at cycle \d+: core \(0, 0\) waits for .*, and 9,999 other cores wait; cycle of waits: ",
        told,
    )
    assert len(told) < 500 + len(str(path))
    lines = path.read_text().splitlines()
    assert {line.partition(" waits")[0] for line in lines if " waits for " in line} >= {
        f"core ({row}, {col})" for row in range(100) for col in range(100)
    }
    assert set(deadlock.cycle_of_waits) <= set(lines)


def test_a_list_of_waits_that_cannot_be_written_goes_elsewhere(wse2: FabricConfig, tmp_path: Path) -> None:
    """Where the path is a folder, or none is given, the sentence names a temporary file."""
    deadlock = run_program(kernels.halo_sends_first(wse2, 4, 8), wse2).deadlock
    assert deadlock is not None
    for path in (tmp_path, None):
        written = Path(deadlock.told(path).rpartition(" in ")[2])
        assert written.read_text().startswith("deadlock at cycle ")
        written.unlink()


def test_faults_name_core_color_and_limit(wse2: FabricConfig) -> None:
    """Every builder fault is one sentence with the offending value."""
    with pytest.raises(ProgramError, match=r"color 24 is not in 0\.\.23"):
        Builder(1, 1, wse2).route(24, None, rx="R", tx="R")
    with pytest.raises(ProgramError, match="does not fit the fabric of 996 x 757"):
        Builder(2000, 10, wse2)
    b = Builder(1, 2, wse2)
    b.route(0, (0, 0), rx="R", tx="E")
    with pytest.raises(ProgramError, match=r"color 0 leaves core \(0, 0\) to the E"):
        b.build()
    b = Builder(1, 1, wse2)
    b.buffer("x", 10000)
    b.buffer("y", 2000)
    with pytest.raises(ProgramError, match="ends at byte 48000 of core"):
        b.build()
    with pytest.raises(ConfigError, match="'hops' is unknown"):
        FabricConfig.from_wafer(load_wafer("wse2"), hops=2)
    b = Builder(1, 2, wse2)
    x = b.buffer("x", 4)
    k = b.core_class("mute")
    k.mov(fabric_out(0), x.dsd(), start="none")
    b.place(k, (0, 1))
    b.route(0, (0, 1), rx="W", tx="R")
    with pytest.raises(ProgramError, match=r"core \(0, 1\) sends color 0 but no route"):
        b.build()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_leaving_a_buffer_in_a_loop_is_caught(wse2: FabricConfig, executor: str) -> None:
    """Turn 2 of the loop would write elements 4..7 of a buffer of 6."""
    b = Builder(1, 1, wse2)
    x = b.buffer("x", 6)
    k = b.core_class("runaway")
    with k.loop(3):
        k.mov(x.dsd(0, 2, step=2), x.dsd(0, 2), start="none")
    with k.loop(2):
        k.mov(x.dsd(0, 4, step=4), x.dsd(0, 4), start="none")
    b.place(k, None)
    with pytest.raises(ProgramError, match="class 'runaway' leaves a buffer"):
        run_program(b.build(), wse2, executor=executor)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_every_cycle_of_a_core_is_counted_once(wse2: FabricConfig, executor: str) -> None:
    """busy + stalled + idle = cycles; sent words are received; the ramps carry what the links deliver."""
    result = run_program(kernels.chain_reduce(wse2, 16, 40), wse2, executor=executor, bins=BusyBins(20, 10))
    total = result.busy + result.stalled_in + result.stalled_out + result.idle
    assert (total == result.cycles).all()
    assert result.idle.min() >= 0
    assert result.sent.sum() == result.received.sum() == 15 * 40
    assert result.link_wavelets[:, :, 3].sum() == result.link_wavelets[:, :, 4].sum() == 15 * 40
    assert result.words_left == 0
    np.testing.assert_array_equal(result.busy_bins.sum(axis=0), result.busy)


def test_two_runs_are_equal(wse2: FabricConfig) -> None:
    """The same program gives the same cycles, counters and values."""
    program = kernels.halo_sends_first(wse2, 8, 5)
    values = {"x": np.random.default_rng(0).standard_normal((8, 8, 40))}
    first, second = (run_program(program, wse2, inputs=values) for _ in range(2))
    assert first.cycles == second.cycles
    np.testing.assert_array_equal(first.read("x"), second.read("x"))
    np.testing.assert_array_equal(first.link_blocked, second.link_blocked)


def test_timing_does_not_depend_on_values(wse2: FabricConfig) -> None:
    """A timing-only run has the same clock and stores nothing."""
    program = kernels.two_phase_reduce(wse2, 24, 30, 6)
    full, timing = run_program(program, wse2), run_program(program, wse2, functional=False)
    np.testing.assert_array_equal(full.halt_cycles, timing.halt_cycles)
    with pytest.raises(ProgramError, match="timing-only"):
        timing.read("x")


def test_the_trace_lands_every_hop_one_cycle_later(wse2: FabricConfig) -> None:
    """There is a line for each departure, and the arrival on the neighbour in the next cycle, within the requested
    bounds.
    """
    program = kernels.broadcast(wse2, 4, 2)
    result = run_program(program, wse2, executor="oracle", trace_rows=1000)
    lines = export_trace(program, wse2, result).splitlines()
    assert lines[0] == "@0 dimX=4, dimY=1"
    assert any(
        line.startswith("@4 P0.0 (hwtile) wavelet C0 ctrl=0") and "landing=R departing=/E    /" in line
        for line in lines
    )
    assert any(
        line.startswith("@5 P1.0 (hwtile) wavelet C0") and "landing=W departing=/E   R/" in line
        for line in lines
    )
    assert any("[EX OP] ^ 0x" in line and "MOV" in line for line in lines)
    cycles = [int(line[1 : line.index(" ")]) for line in lines]
    assert cycles == sorted(cycles)
    bounded = export_trace(program, wse2, result, cycles=(5, 6), region=(0, 1, 1, 1)).splitlines()[1:]
    assert bounded
    assert all(line.split(" ")[1].startswith("P1.0") and line[1] in "56" for line in bounded)


def _crossing(config: FabricConfig, rows: int, cols: int) -> Program:
    """Use eight colors along all rows and columns, and three classes."""
    b = Builder(rows, cols, config)
    x = b.buffer("x", 8)
    for color in range(0, 8, 2):
        b.route(color, (slice(None), slice(1, cols - 1)), rx="W", tx="RE")
        b.route(color, (slice(None), 0), rx="R", tx="E")
        b.route(color, (slice(None), cols - 1), rx="W", tx="R")
        b.route(color + 1, (slice(1, rows - 1), slice(None)), rx="N", tx="RS")
        b.route(color + 1, (0, slice(None)), rx="R", tx="S")
        b.route(color + 1, (rows - 1, slice(None)), rx="N", tx="R")
    k = b.core_class("sink")
    k.mov(x.dsd(), fabric_in(0), start="none")
    source = b.core_class("source")
    source.mov(fabric_out(0), x.dsd(), start="none")
    b.place(k, None)
    b.place(source, (slice(None), 0))
    return b.build()


def test_a_program_for_the_whole_wafer_is_built_at_once(wse2: FabricConfig) -> None:
    """754 k cores take the same calls as 600, so nothing loops over cores; 300 MB are enough."""
    _crossing(wse2, 5, 6)  # what happens once, at the first program
    small, _ = python_calls(lambda: _crossing(wse2, 20, 30))
    calls, program = python_calls(lambda: _crossing(wse2, 996, 757))
    assert calls <= 1.1 * small + 100
    assert program.nbytes() < 300e6


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_color_is_read_in_pairs_where_no_control_word_comes(wse2: FabricConfig, executor: str) -> None:
    """Core 0 sends four words to core 1, which reads two at a time; on the same color core 2 sends a control word to
    core 3.

    A control word from core 0 would come to core 1, between two words of a pair at worst.
    """

    def program(steers: int) -> Program:
        b = Builder(1, 4, wse2)
        for source in (0, 2):
            b.route(0, (0, source), rx="R", tx="E")
            b.route(0, (0, source + 1), rx="W", tx="R")
        x = b.buffer("x", 8, "fp16")
        sender, reader, third = (b.core_class(name) for name in ("sender", "reader", "third"))
        sender.mov(fabric_out(0), x.dsd(), dtype="fp16", start="none")
        reader.mov(x.dsd(), fabric_in(0), dtype="fp16", wire="fp16x4", start="none")
        (sender, third)[steers // 2].control(0, Command.RESET, start="none")
        for core, place in ((sender, 0), (reader, 1), (third, 2)):
            b.place(core, (0, place))
        return b.build()

    found = run_program(program(2), wse2, executor=executor)
    assert found.deadlock is None
    assert found.busy[0].tolist() == [4, 2, 1, 0]
    with pytest.raises(ProgramError, match=r"control wavelets to core \(0, 1\), which reads it in pairs"):
        program(0)
