"""Programs with known times: reduce, broadcast, latency, window, vector operations."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.fabric_peer import neighbours
from tests.fabric import kernels
from wse_sim.fabric.format.builder import Builder, Switch, fabric_in, fabric_out
from wse_sim.fabric.format.classes import scalar
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.run import run_program
from wse_sim.hardware import load_wafer

EXECUTORS = ("oracle", "wavelet")


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("cores", "words"), [(4, 1), (4, 256), (16, 16), (64, 256), (256, 1)])
def test_a_chain_reduce_takes_one_word_a_cycle_and_six_cycles_a_core(
    wse2: FabricConfig, executor: str, cores: int, words: int
) -> None:
    """The exact time is T = B + (hop + 2 T_R + 1)(P - 1) + task start."""
    x = np.random.default_rng(1).standard_normal((1, cores, words)).astype(np.float32)
    result = run_program(kernels.chain_reduce(wse2, cores, words), wse2, executor=executor, inputs={"x": x})
    assert result.cycles == words + 6 * (cores - 1) + 56
    total = x[0, -1]
    for i in range(cores - 2, -1, -1):  # the order in which the cores add, in fp32
        total = total + x[0, i]
    np.testing.assert_array_equal(result.read("x")[0, 0], total)


PUBLISHED = [(512, 4096, 4, 9421), (512, 4096, 16, 8989), (512, 4096, 64, 9061), (512, 64, 28, 926.5)]


@pytest.mark.thinned(1)
@pytest.mark.parametrize(("cores", "words", "group", "measured"), PUBLISHED)
def test_the_published_two_phase_reduces_come_out_within_one_percent(
    wse2: FabricConfig, cores: int, words: int, group: int, measured: float
) -> None:
    """The form is 2B + 6(S - 1) + (G - 2)(S + 5) + 77.

    The program adds 2 or 3 cycles: two words of the next leader's stream pass a router whose switch has turned while the
    core there still sends its own last words, and take their places on the link.
    """
    groups = -(-cores // group)
    form = 2 * words + 6 * (group - 1) + (groups - 2) * (group + 5) + 77
    program = kernels.two_phase_reduce(wse2, cores, words, group)
    x = np.ones((1, cores, words), np.float32)
    result = run_program(program, wse2, executor="wavelet", inputs={"x": x})
    assert result.cycles - form in (2, 3)
    assert abs(result.cycles / measured - 1) < 0.01
    np.testing.assert_array_equal(result.read("x")[0, 0], np.full(words, cores, np.float32))


def test_the_published_chain_reduce_comes_out_exactly(wse2: FabricConfig) -> None:
    """512 cores and 4096 words take 7218 cycles: 4096 + 6 * 511 + 56."""
    assert run_program(kernels.chain_reduce(wse2, 512, 4096), wse2, functional=False).cycles == 7218


@pytest.mark.parametrize(("cores", "words"), [(2, 8), (4, 16), (16, 64)])
def test_a_star_reduce_is_bound_by_the_root(wse2: FabricConfig, cores: int, words: int) -> None:
    """The time is T = B (P - 1) + 2 T_R + 1, plus the one hop of the nearest sender."""
    x = np.random.default_rng(2).integers(-8, 8, (1, cores, words)).astype(np.float32)
    result = run_program(kernels.star_reduce(wse2, cores, words), wse2, inputs={"x": x})
    assert result.cycles == words * (cores - 1) + 5 + 1
    np.testing.assert_array_equal(result.read("x")[0, 0], x[0].sum(axis=0))


@pytest.mark.parametrize(("cores", "words"), [(2, 1), (16, 64), (128, 512)])
def test_a_broadcast_reaches_the_last_core_after_its_hops(wse2: FabricConfig, cores: int, words: int) -> None:
    """The time is T = B + P + 2 T_R."""
    x = np.random.default_rng(3).standard_normal((1, cores, words)).astype(np.float32)
    result = run_program(kernels.broadcast(wse2, cores, words), wse2, inputs={"x": x})
    assert result.cycles == words + cores + 4
    assert (result.read("x") == x[:, :1]).all()


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("hops", [1, 4, 16])
def test_a_word_takes_five_cycles_and_one_per_hop(wse2: FabricConfig, executor: str, hops: int) -> None:
    """A word that is sent in cycle 0 is received in 5 + h; the receiver halts in the next cycle."""
    result = run_program(kernels.broadcast(wse2, hops + 1, 1), wse2, executor=executor)
    assert result.halt_cycles[0, -1] == 5 + hops + 1


@pytest.mark.parametrize(("hops", "measured"), [(1, 42), (4, 48), (16, 72)])
def test_a_word_on_the_newer_wafer_takes_two_cycles_a_hop(
    wse3: FabricConfig, hops: int, measured: int
) -> None:
    """The published times are 40 + 2 h: the task start, and the 2 T_R + 3 = 11 cycles of sending and receiving."""
    result = run_program(kernels.broadcast(wse3, hops + 1, 1), wse3)
    assert result.executor == "wavelet"
    assert result.cycles == 11 + 2 * hops
    assert result.cycles + wse3.task_start_cycles == measured


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("hops", [1, 3, 7])
def test_an_unread_stream_stops_after_twelve_words_and_two_per_hop(
    wse2: FabricConfig, executor: str, hops: int
) -> None:
    """The window is 12 + 2 h: 8 in the ring, 2 in each of h + 1 routers, 2 in the input queue."""
    b = Builder(1, hops + 1, wse2)
    x = b.buffer("x", 1)
    source, sink = b.core_class("source"), b.core_class("sink")
    source.mov(fabric_out(0), x.dsd(0, 1, 0), length=100, start="none")
    task = sink.data_task(0, blocked=True)
    with sink.body(task):
        sink.busy(1)
    b.place(source, (0, 0))
    b.place(sink, (0, hops))
    b.route(0, None, rx="W", tx="E")
    b.route(0, (0, 0), rx="R", tx="E")
    b.route(0, (0, hops), rx="W", tx="R")
    result = run_program(b.build(), wse2, executor=executor)
    assert result.deadlock is not None
    assert result.sent[0, 0] == result.words_left == 12 + 2 * hops
    assert result.queue_high[0, 0].tolist() == [2, 8, 0]


def test_a_stall_of_the_receiver_is_felt_one_window_later(wse2: FabricConfig) -> None:
    """Word k leaves the core no earlier than pop(k - 12 - 2h) + h + 2: if the reader pauses, the sender pauses."""
    hops, pause, words = 3, 200, 60
    b = Builder(1, hops + 1, wse2)
    x = b.buffer("x", words)
    source, sink = b.core_class("source"), b.core_class("sink")
    source.mov(fabric_out(0), x.dsd(), start="none")
    sink.busy(pause)
    sink.mov(x.dsd(), fabric_in(0), start="none")
    b.place(source, (0, 0))
    b.place(sink, (0, hops))
    b.route(0, None, rx="W", tx="E")
    b.route(0, (0, 0), rx="R", tx="E")
    b.route(0, (0, hops), rx="W", tx="R")
    result = run_program(b.build(), wse2)
    # last word k = words - 1; the reader pops word j at pause + j
    assert result.halt_cycles[0, 0] - 1 == pause + (words - 1 - 12 - 2 * hops) + hops + 2
    assert result.halt_cycles[0, hops] == pause + words


@pytest.mark.parametrize(("bank", "measured"), [(2, 5130), (0, 10254)])
def test_the_published_vector_operation_shows_the_bank_rule(
    wse2: FabricConfig, bank: int, measured: int
) -> None:
    """5,124 elements take one cycle each plus 6, or two cycles each if both operands are in the same banks."""
    b = Builder(1, 1, wse2)
    c, y = b.buffer("c", 5124, bank=0), b.buffer("y", 5124, bank=bank)
    k = b.core_class("one")
    k.mul(c.dsd(), c.dsd(), y.dsd(), start="loaded")
    b.place(k, None)
    result = run_program(b.build(), wse2)
    assert result.cycles == measured
    assert result.busy[0, 0] == measured


NEWER = [("copy", "fp16", 4.82), ("copy", "fp32", 2.44), ("fma", "fp16", 2.92), ("fma", "fp32", 1 / 1.94)]


@pytest.mark.parametrize(("op", "dtype", "measured"), NEWER)
def test_rates_of_the_newer_wafer(wse3: FabricConfig, op: str, dtype: str, measured: float) -> None:
    """4,096 elements have the measured elements per cycle within one percent, start included.

    Reads of fp32 vectors at one alignment collide (factor 1.94); the plain run that reads 0.5 lies so.
    """
    b = Builder(1, 1, wse3)
    x, y = b.buffer("x", 4096, dtype, bank=0), b.buffer("y", 4096, dtype, bank=0 if dtype == "fp32" else 2)
    k = b.core_class("one")
    if op == "copy":
        k.mov(y.dsd(), x.dsd(), dtype=dtype, start="none")
    else:
        k.fmac(y.dsd(), y.dsd(), x.dsd(), scalar(0.5), dtype=dtype, start="none")
    b.place(k, None)
    assert 4096 / run_program(b.build(), wse3).cycles == pytest.approx(measured, rel=0.01)


def test_a_gemv_pays_the_map_cost_per_element(wse2: FabricConfig) -> None:
    """K elements take 2.1 + ceil(N / 4) cycles each, the sum rounded up: 8 x (2.1 + 4) = 48.8 -> 49."""
    b = Builder(1, 1, wse2)
    y, a, x = b.buffer("y", 16, "fp16", bank=0), b.buffer("a", 128, "fp16", bank=2), b.buffer("x", 8, "fp16")
    k = b.core_class("one")
    k.fmac_vectors(y.dsd(), x.dsd(), a.dsd(), 16, b_stride=16, dtype="fp16", start="none")
    b.place(k, None)
    rng = np.random.default_rng(5)
    values = {n: rng.integers(-4, 5, (1, 1, size)).astype(np.float32) for n, size in (("a", 128), ("x", 8))}
    result = run_program(b.build(), wse2, inputs=values)
    assert result.cycles == 49
    expected = values["a"].reshape(8, 16).T @ values["x"].reshape(8)
    np.testing.assert_array_equal(result.read("y")[0, 0], expected.astype(np.float16))


def test_background_moves_take_their_cycles_from_the_issue_slot(wse2: FabricConfig) -> None:
    """A main thread of 100 cycles and a low-priority move of 160 fp16 (40 cycles) take 140 together, not 100."""
    b = Builder(1, 1, wse2)
    x, y = b.buffer("x", 160, "fp16"), b.buffer("y", 160, "fp16")
    k = b.core_class("one")
    k.mov(y.dsd(), x.dsd(), dtype="fp16", start="none", thread=1)
    k.busy(100)
    b.place(k, None)
    result = run_program(b.build(), wse2)
    assert result.cycles == result.busy[0, 0] == 140


@pytest.mark.parametrize(("queue", "cycles_of_a_word"), [(0, 1.0), (4, 1.5)])
def test_simd_64_moves_two_words_in_one_issue_cycle(
    wse2: FabricConfig, queue: int, cycles_of_a_word: float
) -> None:
    """SIMD-64 needs half the issue cycles; a queue of six words (queue 0) keeps one word per cycle, one of two a pair
    in three cycles.
    """
    n = 400
    b = Builder(1, 2, wse2)
    b.route(0, (0, 0), rx="R", tx="E")
    b.route(0, (0, 1), rx="W", tx="R")
    b.input_queue(0, queue)
    x = b.buffer("x", n, "fp16")
    for col, name in enumerate(("sender", "receiver")):
        k = b.core_class(name)
        target, source = (fabric_out(0), x.dsd()) if col == 0 else (x.dsd(), fabric_in(0))
        k.mov(target, source, dtype="fp16", wire="fp16x4", start="none")
        b.place(k, (0, col))
    values = np.zeros((1, 2, n), np.float32)
    values[0, 0] = np.arange(n)
    result = run_program(b.build(), wse2, inputs={"x": values}, executor="wavelet")
    assert result.busy.tolist() == [[n // 4, n // 4]]
    assert (result.read("x")[0, 1] == values[0, 0]).all()
    # 200 words of two; the first arrives after 6 cycles.
    assert abs(result.cycles - cycles_of_a_word * n / 2) < 8


def test_skew_survives_a_collective(wse2: FabricConfig) -> None:
    """After a broadcast every core is late by its distance to the root; a second one along the row keeps that."""
    cores = 8
    b = Builder(1, cores, wse2)
    x = b.buffer("x", 4)
    source, sink = b.core_class("source"), b.core_class("sink")
    source.mov(fabric_out(0), x.dsd(), start="none")
    source.mov(fabric_out(0), x.dsd(), start="none")
    for _ in range(2):
        sink.mov(x.dsd(), fabric_in(0), start="none")
    b.place(sink, None)
    b.place(source, (0, 0))
    b.route(0, None, rx="W", tx="RE")
    b.route(0, (0, cores - 1), rx="W", tx="R")
    b.route(0, (0, 0), rx="R", tx="E")
    halts = run_program(b.build(), wse2).halt_cycles[0]
    assert halts[0] == 8
    assert halts[1:].tolist() == [8 + 5 + i for i in range(1, cores)]


@pytest.mark.parametrize("executor", ["oracle", "wavelet", "max-plus"])
def test_a_word_pays_every_edge_of_a_die_that_it_crosses(executor: str) -> None:
    """Down 11 rows of dies of 4 rows there are edges before rows 4 and 8; a row of 11 columns crosses none."""
    config = FabricConfig.from_wafer(load_wafer("wse2"), die_crossing_cycles=17, die_edge_rows=(4, 8))
    halts = []
    for vertical in (True, False):
        b = Builder(12 if vertical else 1, 1 if vertical else 12, config)
        x = b.buffer("x", 1)
        source, sink = b.core_class("source"), b.core_class("sink")
        source.mov(fabric_out(0), x.dsd(), start="none")
        sink.mov(x.dsd(), fabric_in(0), start="none")
        for i in range(12):
            place = (i, 0) if vertical else (0, i)
            b.route(
                0, place, rx="R" if i == 0 else "NW"[not vertical], tx="R" if i == 11 else "SE"[not vertical]
            )
            if i in (0, 11):
                b.place(source if i == 0 else sink, place)
        halts.append(int(run_program(b.build(), config, executor=executor).halt_cycles.reshape(-1)[11]))
    assert halts == [5 + 11 + 2 * 17 + 1, 5 + 11 + 1]


def test_turns_cost_what_the_wafer_says(wse2: FabricConfig) -> None:
    """One change of direction adds turn_cycles to the path."""
    config = FabricConfig.from_wafer(load_wafer("wse2"), turn_cycles=20)
    cycles = []
    for c in (wse2, config):
        b = Builder(2, 2, c)
        x = b.buffer("x", 3)
        source, sink = b.core_class("source"), b.core_class("sink")
        source.mov(fabric_out(0), x.dsd(), start="none")
        sink.mov(x.dsd(), fabric_in(0), start="none")
        b.place(source, (0, 0))
        b.place(sink, (1, 1))
        b.route(0, (0, 0), rx="R", tx="E")
        b.route(0, (0, 1), rx="W", tx="S")
        b.route(0, (1, 1), rx="N", tx="R")
        cycles.append(run_program(b.build(), c).cycles)
    assert cycles == [5 + 2 + 3, 5 + 2 + 20 + 3]


def test_slow_links_carry_eight_words_in_nine_cycles(wse2: FabricConfig) -> None:
    """With wavelet_milli = 1125, 800 words take about 900 cycles instead of 800."""
    slow = FabricConfig.from_wafer(load_wafer("wse2"), wavelet_milli=1125)
    fast = run_program(kernels.broadcast(wse2, 4, 800), wse2).cycles
    assert run_program(kernels.broadcast(slow, 4, 800), slow).cycles - fast == pytest.approx(100, abs=2)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_control_wavelet_turns_the_switches_behind_it(wse2: FabricConfig, executor: str) -> None:
    """Core 1 sends, and its control wavelet lets core 2 pass: the control word itself takes the old route."""
    b = Builder(1, 3, wse2)
    x = b.buffer("x", 4)
    from wse_sim.fabric.format.program import Command

    near, far, root = b.core_class("near"), b.core_class("far"), b.core_class("root")
    near.mov(fabric_out(0), x.dsd(0, 2), start="none")
    near.control(0, Command.ADVANCE, start="none")
    far.mov(fabric_out(0), x.dsd(2, 2), start="none")
    root.mov(x.dsd(), fabric_in(0), start="none")
    for i, k in enumerate((root, near, far)):
        b.place(k, (0, i))
    b.route(0, (0, 2), rx="R", tx="W")
    b.route(0, (0, 1), rx="R", tx="W", switch=Switch([{"rx": "E"}]))
    b.route(0, (0, 0), rx="E", tx="R")
    values = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
    result = run_program(b.build(), wse2, executor=executor, inputs={"x": values})
    assert result.deadlock is None
    assert result.read("x")[0, 0].tolist() == [4, 5, 10, 11]
    assert result.sent.sum() == result.received.sum() + 1  # the control wavelet is seen by no core


def test_host_streams_enter_and_leave_over_the_edges(wse2: FabricConfig) -> None:
    """Words come in over the west edge at the channel's rate, are doubled and leave over the east edge."""
    b = Builder(2, 3, wse2)
    k = b.core_class("double")
    k.add(fabric_out(1), fabric_in(0), scalar(1.0), length=6, start="none")
    b.place(k, (slice(None), 1))
    b.host_in("in", 0, 6)
    b.host_out("out", 1, 6)
    b.route(0, (slice(None), 0), rx="W", tx="E")
    b.route(0, (slice(None), 1), rx="W", tx="R")
    b.route(1, (slice(None), 1), rx="R", tx="E")
    b.route(1, (slice(None), 2), rx="W", tx="E")
    values = np.arange(12, dtype=np.float32).reshape(2, 1, 6)
    result = run_program(b.build(), wse2, inputs={"in": values})
    np.testing.assert_array_equal(result.read("out"), values + 1)
    assert result.busy.shape == (2, 3)
    assert result.cycles >= 6 * wse2.io_milli // 1000


@pytest.mark.parametrize("executor", EXECUTORS)
def test_every_core_sends_to_its_neighbour_around_the_edges(wse2: FabricConfig, executor: str) -> None:
    """Of s x s words (s - 1)^2 cross two links; those of the last column cross s - 1 west and one south, those of the
    last row likewise, and the corner's 2 (s - 1).

    A core alternates between sending and receiving; at 0.4 words per cycle each takes 1.25 cycles.  So a word takes 2.5
    cycles, in addition to the filling of queues and the route.
    """
    side, words = 6, 200
    result = run_program(neighbours(wse2, side, words, 0.4), wse2, executor=executor)
    links = 2 * (side - 1) ** 2 + 2 * (side - 1) * side + 2 * (side - 1)
    assert result.link_wavelets[:, :, :4].sum() == links * words
    assert result.link_wavelets[:, :, 4].tolist() == [[words] * side] * side
    assert abs(result.cycles - 2.5 * words) < 20 + 2 * side
