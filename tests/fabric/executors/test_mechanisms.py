"""One test per rule of routers and queues, with cycles computed by hand: it fails if the rule is removed."""

from __future__ import annotations

import numpy as np
import pytest

from wse_sim.fabric.format.builder import Builder, Switch, fabric_in, fabric_out
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Command
from wse_sim.fabric.run import BusyBins, FabricResult, run_program
from wse_sim.hardware import load_wafer

EXECUTORS = ("oracle", "wavelet")
both = pytest.mark.parametrize("executor", EXECUTORS)


@both
def test_a_multicast_waits_for_its_slowest_branch(wse2: FabricConfig, executor: str) -> None:
    """Core 1 reads from cycle 200 on, core 2 at once: core 2 receives two words, then one for each word that core 1
    reads.

    Core 1 reads word k in 200 + k; its queue of two lets its router move word k in 200 + k - 2 + 1, and core 2, one
    hop on, reads it two cycles later: the last of n in 200 + n.
    """
    words = 40
    b = Builder(1, 3, wse2)
    x = b.buffer("x", words)
    source, slow, fast = (b.core_class(name) for name in ("source", "slow", "fast"))
    source.mov(fabric_out(0), x.dsd(), start="none")
    slow.busy(200)
    for k in (slow, fast):
        k.mov(x.dsd(), fabric_in(0), start="none")
    for col, (k, rx, tx) in enumerate(((source, "R", "E"), (slow, "W", "RE"), (fast, "W", "R"))):
        b.place(k, (0, col))
        b.route(0, (0, col), rx=rx, tx=tx)
    halts = run_program(b.build(), wse2, executor=executor).halt_cycles[0]
    assert halts[1:].tolist() == [200 + words, 201 + words]


def _two_colors_over_one_link(config: FabricConfig, executor: str, words: int) -> FabricResult:
    """Let colors 0 and 1 from cores 0 and 1 meet on the link from core 1 to core 2; cores 2 and 3 read them."""
    b = Builder(1, 4, config)
    x = b.buffer("x", words)
    for color in (0, 1):
        source, sink = b.core_class(f"source {color}"), b.core_class(f"sink {color}")
        source.mov(fabric_out(color), x.dsd(), start="none")
        sink.mov(x.dsd(), fabric_in(color), start="none")
        b.place(source, (0, color))
        b.place(sink, (0, 2 + color))
        b.route(color, (0, slice(color, 3 + color)), rx="W", tx="E")
        b.route(color, (0, color), rx="R", tx="E")
        b.route(color, (0, 2 + color), rx="W", tx="R")
    return run_program(b.build(), config, executor=executor)


@both
def test_colors_take_turns_on_a_link(wse2: FabricConfig, executor: str) -> None:
    """With round robin both streams of 100 words take about 200 cycles, and the link carries one word in each."""
    result = _two_colors_over_one_link(wse2, executor, 100)
    assert result.link_wavelets[0, 1, 1] == 200
    assert abs(int(result.halt_cycles[0, 2]) - int(result.halt_cycles[0, 3])) <= 4
    assert result.halt_cycles[0, 2] == pytest.approx(200, abs=12)


@both
def test_fixed_arbitration_lets_the_first_color_pass(executor: str) -> None:
    """Color 0 arrives as if it were alone: 100 words over two hops in 100 + 5 + 2 cycles; color 1 after it."""
    fixed = FabricConfig.from_wafer(load_wafer("wse2"), round_robin=False)
    result = _two_colors_over_one_link(fixed, executor, 100)
    assert result.halt_cycles[0, 2] == 100 + 5 + 2
    assert result.halt_cycles[0, 3] >= 200


@both
@pytest.mark.parametrize("queue", range(8))
def test_input_queues_have_the_documented_sizes(wse2: FabricConfig, executor: str, queue: int) -> None:
    """Without a reader the window of a stream over one hop is 8 + 2 * 2 and the words of its input queue."""
    b = Builder(1, 2, wse2)
    x = b.buffer("x", 1)
    source, sink = b.core_class("source"), b.core_class("sink")
    source.mov(fabric_out(0), x.dsd(0, 1, 0), length=100, start="none")
    task = sink.data_task(0, blocked=True)
    with sink.body(task):
        sink.busy(1)
    b.place(source, (0, 0))
    b.place(sink, (0, 1))
    b.route(0, (0, 0), rx="R", tx="E")
    b.route(0, (0, 1), rx="W", tx="R")
    b.input_queue(0, queue)
    result = run_program(b.build(), wse2, executor=executor)
    documented = (6, 6, 4, 4, 2, 2, 2, 2)[queue]
    assert result.sent[0, 0] == 12 + documented
    assert result.queue_high[0, 1, 2] == documented


@both
def test_time_bins_say_when_a_core_was_busy(wse2: FabricConfig, executor: str) -> None:
    """A core is busy for 25 cycles, waits for the other core until 65, and is busy for 5 more, in bins of 10 cycles."""
    b = Builder(1, 2, wse2)
    x = b.buffer("x", 5)
    early, late = b.core_class("early"), b.core_class("late")
    early.busy(25)
    early.mov(x.dsd(), fabric_in(0), start="none")
    late.busy(59)  # its words arrive 6 cycles after they are sent
    late.mov(fabric_out(0), x.dsd(), start="none")
    b.place(early, (0, 0))
    b.place(late, (0, 1))
    b.route(0, (0, 0), rx="E", tx="R")
    b.route(0, (0, 1), rx="R", tx="W")
    result = run_program(b.build(), wse2, executor=executor, bins=BusyBins(8, 10))
    assert result.busy_bins[:, 0, 0].tolist() == [10, 10, 5, 0, 0, 0, 5, 0]
    assert result.busy_bins[:, 0, 1].tolist() == [10, 10, 10, 10, 10, 10, 4, 0]
    assert result.stalled_in[0, 0] == 65 - 25


def _switched_row(
    config: FabricConfig, executor: str, switch: Switch, commands: list[Command]
) -> list[float]:
    """Return the words that core 0 receives from core 1, which sends 1.0 and a control wavelet per command, and from
    core 2, which sends -1.0.

    Core 1's router takes words from its core in the first position and from core 2 in the second.
    """
    b = Builder(1, 3, config)
    x = b.buffer("x", 8)
    root, near, far = (b.core_class(name) for name in ("root", "near", "far"))
    root.mov(x.dsd(), fabric_in(0), length=8, start="none")
    for command in commands:
        near.mov(fabric_out(0), x.dsd(0, 1), start="none")
        near.control(0, command, start="none")
    for _ in range(8 - len(commands)):
        far.mov(fabric_out(0), x.dsd(0, 1), start="none")
        far.control(0, Command.NOP, Command.ADVANCE, start="none")  # its own router takes the first
    for col, k in enumerate((root, near, far)):
        b.place(k, (0, col))
    b.route(0, (0, 0), rx="E", tx="R")
    b.route(0, (0, 1), rx="R", tx="W", switch=switch)
    b.route(0, (0, 2), rx="R", tx="W")
    values = np.zeros((1, 3, 8), np.float32)
    values[0, 1, 0], values[0, 2, 0] = 1.0, -1.0
    result = run_program(b.build(), config, executor=executor, inputs={"x": values})
    assert result.deadlock is None
    return [float(v) for v in result.read("x")[0, 0]]


@both
def test_a_ring_of_positions_alternates(wse2: FabricConfig, executor: str) -> None:
    """Every control wavelet advances, and the first position follows the last: the two cores alternate."""
    turns = _switched_row(wse2, executor, Switch([{"rx": "E"}], ring=True), [Command.ADVANCE] * 4)
    assert turns == [1, -1] * 4


@both
def test_without_a_ring_the_last_position_stays(wse2: FabricConfig, executor: str) -> None:
    """One word of core 1 passes; core 2's commands have no further effect."""
    assert _switched_row(wse2, executor, Switch([{"rx": "E"}]), [Command.ADVANCE]) == [1] + [-1] * 7


@both
def test_no_operation_leaves_the_switch(wse2: FabricConfig, executor: str) -> None:
    """Three words of core 1 pass with control wavelets without effect, and the fourth advances."""
    commands = [Command.NOP, Command.NOP, Command.NOP, Command.ADVANCE]
    assert _switched_row(wse2, executor, Switch([{"rx": "E"}]), commands) == [1] * 4 + [-1] * 4


@both
@pytest.mark.parametrize(("pop", "advances"), [("always", True), ("on_advance", False), ("never", False)])
def test_a_popped_command_uncovers_the_next_one(
    wse2: FabricConfig, executor: str, pop: str, advances: bool
) -> None:
    """Commands (NOP, ADVANCE) pass router 2, then router 1, which opens to its own core if it reads ADVANCE.

    Router 1 reads ADVANCE only if router 2 has removed the NOP; else its core's word never gets out.
    """
    b = Builder(1, 4, wse2)
    x = b.buffer("x", 1)
    root, own, sender = (b.core_class(name) for name in ("root", "own", "sender"))
    root.mov(x.dsd(), fabric_in(0), start="none")
    own.mov(fabric_out(0), x.dsd(), start="none")
    sender.control(0, Command.NOP, Command.ADVANCE, start="none")
    b.place(root, (0, 0))
    b.place(own, (0, 1))
    b.place(sender, (0, 3))
    b.route(0, (0, 0), rx="E", tx="R")
    for col in (1, 2):
        b.route(0, (0, col), rx="E", tx="W", switch=Switch([{"rx": "R"}], pop=pop))
    b.route(0, (0, 3), rx="R", tx="W", switch=Switch([{"rx": "E"}], pop="never"))
    result = run_program(b.build(), wse2, executor=executor, inputs={"x": np.full((1, 4, 1), 3.0)})
    assert (result.deadlock is None) is advances


@both
def test_a_reset_returns_to_the_first_position(wse2: FabricConfig, executor: str) -> None:
    """There are three positions: own core, core 2, core 2; core 2's RESET restores the route to the own core."""
    b = Builder(1, 3, wse2)
    x = b.buffer("x", 3)
    root, near, far = (b.core_class(name) for name in ("root", "near", "far"))
    root.mov(x.dsd(), fabric_in(0), start="none")
    near.mov(fabric_out(0), x.dsd(0, 1), start="none")
    near.control(0, Command.ADVANCE, start="none")
    near.mov(fabric_out(0), x.dsd(0, 1), start="none")
    far.mov(fabric_out(0), x.dsd(0, 1), start="none")
    far.control(0, Command.NOP, Command.RESET, start="none")
    for col, k in enumerate((root, near, far)):
        b.place(k, (0, col))
    b.route(0, (0, 0), rx="E", tx="R")
    b.route(0, (0, 1), rx="R", tx="W", switch=Switch([{"rx": "E"}, {"rx": "E"}]))
    b.route(0, (0, 2), rx="R", tx="W")
    values = np.array([[[0, 0, 0], [1, 0, 0], [2, 0, 0]]], np.float32)
    result = run_program(b.build(), wse2, executor=executor, inputs={"x": values})
    assert result.deadlock is None
    assert result.read("x")[0, 0].tolist() == [1, 2, 1]


@both
@pytest.mark.parametrize("cores", [9, 12])
def test_a_control_wavelet_that_no_core_is_to_see_is_not_seen_far_away(
    wse2: FabricConfig, executor: str, cores: int
) -> None:
    """Every router removes a command, and there are eight; the last core still receives two words behind them, the
    second in n + 6.

    The first is sent in cycle 0 and received in 5 + (n - 1), the control wavelet and the second follow: 5 + n - 1 + 2.
    """
    b = Builder(1, cores, wse2)
    x = b.buffer("x", 2)
    source, sink = b.core_class("source"), b.core_class("sink")
    source.mov(fabric_out(0), x.dsd(0, 1), start="none")
    source.control(0, Command.NOP, start="none")
    source.mov(fabric_out(0), x.dsd(1, 1), start="none")
    sink.mov(x.dsd(), fabric_in(0), start="none")
    b.place(source, (0, 0))
    b.place(sink, (0, cores - 1))
    b.route(0, (0, slice(1, cores - 1)), rx="W", tx="E")
    b.route(0, (0, 0), rx="R", tx="E")
    b.route(0, (0, cores - 1), rx="W", tx="R")
    result = run_program(b.build(), wse2, executor=executor)
    assert result.received[0, -1] == 2
    assert result.cycles == cores + 7
    assert result.words_left == 0


@both
def test_a_long_count_does_not_hide_short_steps_beside_it(wse2: FabricConfig, executor: str) -> None:
    """One core counts 500 cycles; the other takes 40 steps of one cycle meanwhile and ends after 40."""
    b = Builder(1, 2, wse2)
    long, short = b.core_class("long"), b.core_class("short")
    long.busy(500)
    with short.loop(40):
        short.busy(1)
    b.place(long, (0, 0))
    b.place(short, (0, 1))
    assert run_program(b.build(), wse2, executor=executor).halt_cycles[0].tolist() == [500, 40]
