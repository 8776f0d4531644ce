"""Cases that a model of complete transfers gets wrong unless it keeps the time of every word."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fabric_maxplus import gemv, halo, summa
from tests.fabric.executors.maxplus.compare import differences, solve_run
from tests.fabric.kernels import halo_sends_first
from wse_sim.errors import ProgramError
from wse_sim.fabric.executors.maxplus import executor as maxplus
from wse_sim.fabric.executors.maxplus.collisions import meet
from wse_sim.fabric.format.builder import Builder
from wse_sim.fabric.format.classes import fabric_in, fabric_out
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Program
from wse_sim.fabric.run import FabricResult, run_program
from wse_sim.hardware.wafer import load_wafer

CONFIG = FabricConfig.from_wafer(load_wafer("wse2"))


def both(program: Program, **options: object) -> FabricResult:
    """Run both executors, demand equality, return the max-plus result."""
    result = solve_run(program, CONFIG, functional=False, **options)  # type: ignore[arg-type]
    reference = run_program(program, CONFIG, executor="oracle", functional=False)
    assert differences(result, reference) == []
    return result


def two_streams(phase: int, period: int, words: int = 20) -> Program:
    """Cores 0 and 1 send to cores 3 and 2; both streams leave core 1 eastwards."""
    b = Builder(1, 4, CONFIG)
    x = b.buffer("x", words)
    for color, source, target, wait in ((0, 0, 3, 0), (1, 1, 2, phase)):
        send, receive = b.core_class(f"s{color}"), b.core_class(f"r{color}")
        send.busy(wait)
        send.mov(fabric_out(color), x.dsd(), start="none", period=1000 * period)
        receive.mov(x.dsd(), fabric_in(color), start="none")
        b.place(send, (0, source))
        b.place(receive, (0, target))
        b.route(color, (0, source), "R", "E")
        b.route(color, (0, target), "W", "R")
        for between in range(source + 1, target):
            b.route(color, (0, between), "W", "E")
    return b.build()


@pytest.mark.parametrize("phase", range(12))
def test_two_half_rate_streams_are_clean_only_out_of_phase(phase: int) -> None:
    """1/2 + 1/2 = 1, yet in phase they collide every time: a word of core 0 needs one cycle more, so odd waits collide."""
    assert both(two_streams(phase, 2)).certificate.clean == (phase % 2 == 0)


def test_the_certificate_names_the_port_and_the_colors() -> None:
    """The streams share the east output of core (0, 1)."""
    flag = both(two_streams(1, 2)).certificate.flagged[0]
    assert (flag.row, flag.col, flag.port, sorted(flag.colors)) == (0, 1, "E", [0, 1])


def test_streams_that_meet_are_put_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The certificate counts the cores of the component in which they meet."""
    monkeypatch.setattr(maxplus, "ORDERED_COST", 0.0)
    certificate = both(two_streams(1, 1)).certificate
    assert [(c.kind, c.cores) for c in certificate.components] == [("time-ordered", 4)]
    assert not certificate.clean


@pytest.mark.parametrize("vectors", [1, 20])
def test_gemv_fed_from_the_edge_contends_on_its_ramps(vectors: int) -> None:
    """The next vector arrives while the chain of the last one runs, so they contend."""
    certificate = both(gemv(CONFIG, 17, 16, 8, 8, vectors, edge=True)).certificate
    assert certificate.clean == (vectors == 1)
    assert {flag.port for flag in certificate.flagged} == ({"RAMP"} if vectors > 1 else set())


def test_streams_one_after_the_other_are_clean() -> None:
    """20 words of color 0 have left core 1 before those of color 1 arrive."""
    assert both(two_streams(60, 1)).certificate.clean


def test_split_receive_with_a_pause() -> None:
    """Arrival curves are not convex when a receive pauses; the trunk behind the slow core stalls for the fast one."""
    b = Builder(1, 6, CONFIG)
    x = b.buffer("x", 40)
    send, slow, fast = b.core_class("send"), b.core_class("slow"), b.core_class("fast")
    send.mov(fabric_out(0), x.dsd(), start="none")
    slow.mov(x.dsd(0, 7), fabric_in(0), start="none")
    slow.busy(50)
    slow.mov(x.dsd(0, 33), fabric_in(0), start="none", period=3500)
    fast.mov(x.dsd(), fabric_in(0), start="none")
    b.place(send, (0, 0))
    b.place(slow, (0, 2))
    b.place(fast, (0, 5))
    b.route(0, None, "W", "E")
    b.route(0, (0, 0), "R", "E")
    b.route(0, (0, 2), "W", "RE")
    b.route(0, (0, 5), "W", "R")
    assert both(b.build()).certificate.passes == 1  # a slow reader is known beforehand: no speculation


def test_speculation_that_fails_is_repeated() -> None:
    """The reader is fast but late, which only the run shows."""
    b = Builder(1, 3, CONFIG)
    x = b.buffer("x", 40)
    send, late = b.core_class("send"), b.core_class("late")
    send.mov(fabric_out(0), x.dsd(), start="none")
    late.busy(100)
    late.mov(x.dsd(), fabric_in(0), start="none")
    b.place(send, (0, 0))
    b.place(late, (0, 2))
    b.route(0, (0, 0), "R", "E")
    b.route(0, (0, 1), "W", "E")
    b.route(0, (0, 2), "W", "R")
    assert both(b.build()).certificate.passes == 2
    assert both(b.build(), speculate=False).certificate.passes == 1


def test_the_ring_is_first_in_first_out_over_colors() -> None:
    """The first color is blocked by its late reader, so the second one waits although its reader is ready."""
    b = Builder(1, 5, CONFIG)
    x = b.buffer("x", 30)
    send, late, ready = b.core_class("send"), b.core_class("late"), b.core_class("ready")
    send.mov(fabric_out(0), x.dsd(), start="none")
    send.mov(fabric_out(1), x.dsd(0, 5), start="none")
    late.busy(200)
    late.mov(x.dsd(), fabric_in(0), start="none")
    ready.mov(x.dsd(0, 5), fabric_in(1), start="none")
    b.place(send, (0, 2))
    b.place(late, (0, 0))
    b.place(ready, (0, 4))
    for color, near, far, out, back in ((0, 1, 0, "W", "E"), (1, 3, 4, "E", "W")):
        b.route(color, (0, 2), "R", out)
        b.route(color, (0, near), back, out)
        b.route(color, (0, far), back, "R")
    assert both(b.build()).halt_cycles[0, 4] > 200


@pytest.mark.parametrize(("words", "stuck"), [(6, False), (7, True)])
def test_halo_that_sends_first_deadlocks_beyond_the_buffers(words: int, stuck: bool) -> None:
    """Four sends of 7 words do not fit into ring, routers and input queues; the report equals the oracle's."""
    assert (both(halo_sends_first(CONFIG, 6, words)).deadlock is not None) == stuck


LONG = dataclasses.replace(CONFIG, hop_cycles=7)


def stuck_at(b: Builder) -> int:
    """Run a deadlock on links of seven cycles, equal to the oracle's and without a step; no core sends color 1."""
    b.route(1, None, "W", "R")
    program = b.build()
    result = solve_run(program, LONG, functional=False)
    assert result.certificate.clean
    assert result.deadlock is not None
    assert differences(result, run_program(program, LONG, executor="oracle", functional=False)) == []
    return result.cycles


@pytest.mark.parametrize("halfway", ["R", ""])
def test_a_stuck_run_waits_for_the_oldest_word_on_a_link(halfway: str) -> None:
    """Words 2 and 3 are sent in cycles 22 and 23; the reader's queue is full, and word 2 is in transit for 1 + 7 + 7
    cycles behind the ring.

    With a reader halfway, the router there is its own node.
    """
    b = Builder(1, 3, LONG)
    x = b.buffer("x", 4)
    send, read, never = b.core_class("send"), b.core_class("read"), b.core_class("never")
    send.mov(fabric_out(0), x.dsd(0, 2), start="none")
    send.busy(20)
    send.mov(fabric_out(0), x.dsd(0, 2), start="none")
    read.mov(x.dsd(), fabric_in(0), start="none")
    never.mov(x.dsd(), fabric_in(1), start="none")
    b.place(send, (0, 0))
    if halfway:
        b.place(read, (0, 1))
    b.place(never, (0, 2))
    b.route(0, (0, 0), "R", "E")
    b.route(0, (0, 1), "W", "E" + halfway)
    b.route(0, (0, 2), "W", "R")
    assert stuck_at(b) == 22 + LONG.ring_delay_cycles + 1 + 7 + 7


def test_a_stuck_run_waits_for_the_move_that_the_first_credit_allows() -> None:
    """Link and input queue have room for 2 * 7 + 2 words of 17; two are read in cycles 200 and 201.

    The credit of the first is for the link in 201, for the last word in 201 + 7; that move takes a cycle.
    """
    b = Builder(1, 2, LONG)
    x = b.buffer("x", 17)
    send, late = b.core_class("send"), b.core_class("late")
    send.mov(fabric_out(0), x.dsd(), start="none")
    late.busy(200)
    late.mov(x.dsd(0, 2), fabric_in(0), start="none")
    late.mov(x.dsd(), fabric_in(1), start="none")
    b.place(send, (0, 0))
    b.place(late, (0, 1))
    b.route(0, (0, 0), "R", "E")
    b.route(0, (0, 1), "W", "R")
    assert stuck_at(b) == 201 + 7 + 1


def test_a_stuck_run_waits_for_a_credit_of_no_use() -> None:
    """Both links and input queues have room for 2 * 7 + 2 words of 17; the eastern reader takes one in cycle 200.

    Its credit is back in 201 + 7; the last word stays, for it also goes west, where nothing is read.
    """
    b = Builder(1, 3, LONG)
    x = b.buffer("x", 17)
    send, late, never = b.core_class("send"), b.core_class("late"), b.core_class("never")
    send.mov(fabric_out(0), x.dsd(), start="none")
    late.busy(200)
    late.mov(x.dsd(0, 1), fabric_in(0), start="none")
    late.mov(x.dsd(), fabric_in(1), start="none")
    never.mov(x.dsd(), fabric_in(1), start="none")
    b.place(never, (0, 0))
    b.place(send, (0, 1))
    b.place(late, (0, 2))
    b.route(0, (0, 1), "R", "EW")
    b.route(0, (0, 0), "E", "R")
    b.route(0, (0, 2), "W", "R")
    assert stuck_at(b) == 201 + 7


@pytest.mark.parametrize("turns", [1, 5, 30])
def test_kernels_equal_the_oracle(turns: int) -> None:
    """GEMV, SUMMA and the phased halo, looped; all are clean."""
    for program in (
        gemv(CONFIG, 6, 7, 8, 8, turns),
        summa(CONFIG, 3, 4, turns),
        halo(CONFIG, 5, 6, 4, 20, turns),
    ):
        assert both(program).certificate.clean


@pytest.mark.slow
def test_steady_state_adds_turns_and_changes_nothing() -> None:
    """Only a few of 200 turns are simulated; without extrapolation the cycles are the same."""
    program = halo(CONFIG, 6, 6, 5, 30, 200)
    short, full = both(program), both(program, steady=False)
    assert short.certificate.extrapolated_rounds > 150
    assert full.certificate.extrapolated_rounds == 0
    assert short.certificate.period_cycles * 200 == pytest.approx(short.cycles, rel=0.02)


def test_steady_state_is_refused_while_a_queue_fills() -> None:
    """A sender without back-pressure runs ahead by one word in two turns, so no two states are equal before the end."""
    b = Builder(1, 2, CONFIG)
    x = b.buffer("x", 8)
    send, receive = b.core_class("send"), b.core_class("receive")
    with send.loop(12):
        send.mov(fabric_out(0), x.dsd(0, 1), start="none")
    with receive.loop(12):
        receive.mov(x.dsd(0, 1), fabric_in(0), start="none")
        receive.busy(9)
    b.place(send, (0, 0))
    b.place(receive, (0, 1))
    b.route(0, (0, 0), "R", "E")
    b.route(0, (0, 1), "W", "R")
    assert both(b.build()).certificate.extrapolated_rounds == 0


def test_unsupported_components_are_stepped_and_the_others_are_not() -> None:
    """A microthread in row 1 sends only that row to the stepped executor; row 0 keeps its times."""
    b = Builder(2, 3, CONFIG)
    x = b.buffer("x", 10)
    send, thread, receive = b.core_class("send"), b.core_class("thread"), b.core_class("receive")
    send.mov(fabric_out(0), x.dsd())
    thread.mov(fabric_out(0), x.dsd(), thread=1)
    thread.busy(5)
    receive.mov(x.dsd(), fabric_in(0))
    b.place(send, (0, 0))
    b.place(thread, (1, 0))
    b.place(receive, (slice(None), 2))
    b.route(0, (slice(None), 0), "R", "E")
    b.route(0, (slice(None), 1), "W", "E")
    b.route(0, (slice(None), 2), "W", "R")
    certificate = both(b.build()).certificate
    assert [(c.kind, c.cores) for c in certificate.components] == [("clean", 2), ("wavelet", 2)]
    assert not certificate.clean


def test_out_of_bounds_names_core_and_cycle() -> None:
    """Values are applied without a clock, but the fault is that of the stepped executor."""
    b = Builder(1, 1, CONFIG)
    x = b.buffer("x", 4)
    k = b.core_class("k")
    with k.loop(3):
        k.mov(x.dsd(0, 2), x.dsd(0, 2, step=2))
    b.place(k, (0, 0))
    with pytest.raises(ProgramError, match="leaves a buffer in cycle"):
        solve_run(b.build(), CONFIG)


def test_too_many_cycles_are_a_fault() -> None:
    """Too many cycles are a fault as with the stepped executors."""
    with pytest.raises(ProgramError, match="not ended after 50 cycles"):
        solve_run(halo(CONFIG, 3, 3, 4, 30, 5), CONFIG, functional=False, max_cycles=50)


@pytest.mark.parametrize("executor", ["oracle", "wavelet", "max-plus"])
def test_the_last_cycle_that_is_allowed(executor: str) -> None:
    """All executors step cycles 0 to max_cycles - 1: a program of n cycles needs n + 1, and in the last one nothing
    moves.
    """
    program = two_streams(60, 1)
    cycles = run_program(program, CONFIG, executor=executor, functional=False).cycles
    run_program(program, CONFIG, executor=executor, functional=False, max_cycles=cycles + 1)
    with pytest.raises(ProgramError, match="not ended after"):
        run_program(program, CONFIG, executor=executor, functional=False, max_cycles=cycles)


progression = st.tuples(st.integers(0, 40), st.integers(1, 9), st.integers(1, 12))


@given(progression, progression)
def test_progressions_meet_as_their_sets_do(a: tuple[int, int, int], b: tuple[int, int, int]) -> None:
    """Progressions are compared with the sets themselves; a run of one word has step 0."""
    (s1, d1, n1), (s2, d2, n2) = a, b
    d1, d2 = (0 if n1 == 1 else d1), (0 if n2 == 1 else d2)
    cycles = {s1 + i * d1 for i in range(n1)} & {s2 + i * d2 for i in range(n2)}
    assert meet(s1, d1, n1, s2, d2, n2) == bool(cycles)


def test_certificate_is_plain_data() -> None:
    """The command line prints it as JSON."""
    plain = solve_run(two_streams(1, 2), CONFIG, functional=False).certificate.to_dict()
    assert plain["clean"] is False
    assert plain["flagged"][0]["port"] == "E"
    assert isinstance(np.sum([c["cores"] for c in plain["components"]]), np.integer)
