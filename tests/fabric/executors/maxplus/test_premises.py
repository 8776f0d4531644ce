"""The premises of the equations: a program that violates one is stepped, and the certificate states which."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.fabric.executors.maxplus.compare import differences, solve_run
from wse_sim.fabric.executors.certificate import Certificate
from wse_sim.fabric.executors.maxplus import graph
from wse_sim.fabric.executors.maxplus.premises import PREMISES
from wse_sim.fabric.format.builder import Buffer, Builder, CoreClass, Switch
from wse_sim.fabric.format.classes import fabric_in, fabric_out
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Command, Program
from wse_sim.fabric.run import FabricResult, run_program
from wse_sim.hardware.wafer import load_wafer

CONFIG = FabricConfig.from_wafer(load_wafer("wse2"))
NEWER = FabricConfig.from_wafer(load_wafer("wse3"))
SHORT_LINKS = FabricConfig.from_wafer(load_wafer("wse2"), router_queue_wavelets=1, hop_cycles=3)
SHORT_INPUTS = FabricConfig.from_wafer(load_wafer("wse2"), default_input_wavelets=1)
Make = Callable[[FabricConfig], Program]


def both(program: Program, config: FabricConfig = CONFIG) -> FabricResult:
    """Run oracle and max-plus, demand equality in all that is counted, return the max-plus result."""
    result = solve_run(program, config)
    assert differences(result, run_program(program, config, executor="oracle"), tuple(program.buffers)) == []
    return result


def broken(certificate: Certificate | None) -> dict[str, int]:
    """Return the premises that some core broke."""
    assert certificate is not None
    assert [check.name for check in certificate.premises] == [premise.name for premise in PREMISES]
    return {check.name: check.broken for check in certificate.premises if check.broken}


def row_of_three(
    config: FabricConfig, send: Callable[[CoreClass, Buffer], object], switch: Switch | None = None
) -> Program:
    """Return the middle core of three sends as `send` says, at first to the west; both others receive two words."""
    b = Builder(1, 3, config)
    x = b.buffer("x", 4)
    sender, receiver = b.core_class("sender"), b.core_class("receiver")
    send(sender, x)
    receiver.mov(x.dsd(0, 2), fabric_in(0), start="none")
    b.place(sender, (0, 1))
    b.place(receiver, (0, 0))
    b.route(0, (0, 0), "E", "R")
    b.route(0, (0, 1), "R", "W", switch)
    b.route(0, (0, 2), "W", "R")
    if switch is not None:
        b.place(receiver, (0, 2))
    return b.build()


def two_words(k: CoreClass, x: Buffer) -> None:
    """Send two words; this is the simplest sender."""
    k.mov(fabric_out(0), x.dsd(0, 2), start="none")


def west_then_east(config: FabricConfig) -> Program:
    """Send two words west, one command that turns the output, and two words east."""

    def send(k: CoreClass, x: Buffer) -> None:
        two_words(k, x)
        k.control(0, Command.ADVANCE, start="none")
        two_words(k, x)

    return row_of_three(config, send, Switch([{"tx": "E"}]))


def marked(config: FabricConfig, advance: str = "local") -> Program:
    """Send the same words; the mark of the last word to the west turns the output."""

    def send(k: CoreClass, x: Buffer) -> None:
        k.mov(fabric_out(0), x.dsd(0, 1), start="none")
        k.mov(fabric_out(0, advance), x.dsd(1, 1), start="none")
        two_words(k, x)

    return row_of_three(config, send, Switch([{"tx": "E"}]))


def long_row(config: FabricConfig) -> Program:
    """Send 20 words over five links; the routers between are not nodes of the graph."""
    b = Builder(1, 6, config)
    x = b.buffer("x", 20)
    sender, receiver = b.core_class("sender"), b.core_class("receiver")
    sender.mov(fabric_out(0), x.dsd(), start="none")
    receiver.mov(x.dsd(), fabric_in(0), start="none")
    b.place(sender, (0, 0))
    b.place(receiver, (0, 5))
    b.route(0, None, "W", "E")
    b.route(0, (0, 0), "R", "E")
    b.route(0, (0, 5), "W", "R")
    return b.build()


def threaded(config: FabricConfig) -> Program:
    """Let a microthread send in addition to the main thread."""

    def send(k: CoreClass, x: Buffer) -> None:
        k.mov(fabric_out(0), x.dsd(0, 2), thread=1)
        k.busy(9)

    return row_of_three(config, send)


def paired(config: FabricConfig) -> Program:
    """Send with SIMD-64: two wavelets of two fp16 per step."""
    b = Builder(1, 2, config)
    h = b.buffer("h", 8, "fp16")
    sender, receiver = b.core_class("sender"), b.core_class("receiver")
    sender.mov(fabric_out(0), h.dsd(), dtype="fp16", wire="fp16x4")
    receiver.mov(h.dsd(), fabric_in(0), dtype="fp16", wire="fp16x4")
    b.place(sender, (0, 0))
    b.place(receiver, (0, 1))
    b.route(0, (0, 0), "R", "E")
    b.route(0, (0, 1), "W", "R")
    return b.build()


def merging(config: FabricConfig) -> Program:
    """Let both neighbours send to the middle core, the eastern one later."""
    b = Builder(1, 3, config)
    x = b.buffer("x", 4)
    early, late, receiver = b.core_class("early"), b.core_class("late"), b.core_class("receiver")
    two_words(early, x)
    late.busy(40)
    two_words(late, x)
    receiver.mov(x.dsd(), fabric_in(0))
    for k, col, rx, tx in ((early, 0, "R", "E"), (receiver, 1, "EW", "R"), (late, 2, "R", "W")):
        b.place(k, (0, col))
        b.route(0, (0, col), rx, tx)
    return b.build()


def shut(config: FabricConfig) -> Program:
    """Let the middle router accept words only from its own core, without a command: the words from the west wait
    forever.
    """
    b = Builder(1, 3, config)
    x = b.buffer("x", 4)
    sender, receiver = b.core_class("sender"), b.core_class("receiver")
    two_words(sender, x)
    receiver.mov(x.dsd(0, 2), fabric_in(0))
    b.place(sender, (0, 0))
    b.place(receiver, (0, 2))
    b.route(0, (0, 0), "R", "E")
    b.route(0, (0, 1), "R", "E", Switch([{"rx": "W"}]))
    b.route(0, (0, 2), "W", "R")
    return b.build()


CASES: tuple[tuple[str, Make, FabricConfig, set[str]], ...] = (
    ("rate", lambda config: row_of_three(config, two_words), NEWER, {"rate"}),
    ("links", long_row, SHORT_LINKS, {"depth"}),
    ("inputs", long_row, SHORT_INPUTS, {"depth"}),
    ("thread", threaded, CONFIG, {"thread"}),
    ("command", west_then_east, CONFIG, {"command", "switch"}),
    ("mark", marked, CONFIG, {"command", "switch"}),
    ("pair", paired, CONFIG, {"pair"}),
    ("merge", merging, CONFIG, {"merge"}),
    ("input", shut, CONFIG, {"input"}),
)


@pytest.mark.parametrize(("make", "config", "names"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_a_component_that_breaks_a_premise_is_stepped(
    make: Make, config: FabricConfig, names: set[str]
) -> None:
    """The result is the oracle's, and the certificate names the premise."""
    certificate = both(make(config), config).certificate
    assert set(broken(certificate)) == names
    assert certificate is not None
    assert not certificate.clean
    assert "wavelet" in {component.kind for component in certificate.components}


def test_the_plain_program_breaks_nothing() -> None:
    """Two words pass one hop: the first is received at 5 + 1, the last at 7, so the receiver halts in cycle 8."""
    result = both(row_of_three(CONFIG, two_words))
    assert result.cycles == 8
    assert broken(result.certificate) == {}


def test_a_switch_that_no_command_can_turn_keeps_its_initial_position() -> None:
    """Its other positions neither connect components nor make them merge: position 1 of three is in force."""
    b = Builder(1, 3, CONFIG)
    x = b.buffer("x", 4)
    sender, receiver = b.core_class("sender"), b.core_class("receiver")
    two_words(sender, x)
    receiver.mov(x.dsd(0, 2), fabric_in(0))
    b.place(sender, (0, 1))
    b.place(receiver, (0, 2))
    b.route(0, (0, 0), "E", "R")
    b.route(0, (0, 1), "R", "W", Switch([{"tx": "E"}, {"tx": "WE"}], initial=1))
    b.route(0, (0, 2), "W", "R")
    certificate = both(b.build()).certificate
    assert broken(certificate) == {}
    assert certificate is not None
    assert certificate.clean


def test_words_reach_cores_behind_a_switch_that_turns() -> None:
    """The run takes 11 cycles: the third word leaves in cycle 3, after the command, and is received at 3 + 5 + 1, the
    last at 10.
    """
    result = both(west_then_east(CONFIG))
    assert result.deadlock is None
    assert result.cycles == 11


def test_words_that_leave_their_component_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """If routes are followed wrongly, at initial positions only, everything is stepped, and the certificate states
    this.
    """
    monkeypatch.setattr(graph, "steered_slots", lambda program: np.zeros(max(1, program.n_slots), bool))
    certificate = both(west_then_east(CONFIG)).certificate
    assert broken(certificate) == {"command": 1, "closed": 3}
    assert certificate is not None
    assert [(c.kind, c.cores) for c in certificate.components if c.cores] == [("wavelet", 2), ("wavelet", 1)]


def stopped_beside(cycles: int) -> Program:
    """Row 0 is stepped and has words for a core that never reads; row 1 is solved, busy for `cycles`, and then waits
    forever.
    """
    b = Builder(2, 3, CONFIG)
    x = b.buffer("x", 40)
    thread, other, waits = b.core_class("thread"), b.core_class("other"), b.core_class("waits")
    thread.mov(fabric_out(0), x.dsd(), thread=1)
    thread.busy(5)
    other.busy(3)
    waits.busy(cycles)
    waits.mov(x.dsd(0, 1), fabric_in(1))
    b.place(thread, (0, 0))
    b.place(other, (0, 2))
    b.place(waits, (1, 0))
    b.route(0, (0, 0), "R", "E")
    b.route(0, (0, 1), "W", "E")
    b.route(0, (0, 2), "W", "R")
    b.route(1, (1, 0), "E", "R")
    b.route(1, (1, 1), "R", "W")
    return b.build()


@pytest.mark.parametrize("cycles", [10, 500])
def test_blocked_cycles_of_stepped_components_go_on_to_the_end_of_all(cycles: int) -> None:
    """Nothing moves in row 0 after about 50 cycles, but its words want their ports until row 1 has stopped as well."""
    result = both(stopped_beside(cycles))
    assert result.deadlock is not None
    assert result.link_blocked[0, 0, 1] >= cycles - 60
    assert (result.link_blocked[1] == -1).all()


def test_the_certificate_is_one_line_for_people() -> None:
    """Cores are grouped by the method that gave their times, with the reason; equal kinds are combined."""
    plain, stepped = (
        both(make(CONFIG)).certificate for make in (lambda c: row_of_three(c, two_words), merging)
    )
    assert plain is not None
    assert plain.sentence() == "clean: exact by the equations"
    assert stepped is not None
    assert stepped.sentence() == "exact: 3 cores stepped (merges)"


def test_every_premise_says_what_holds_and_what_happens_otherwise() -> None:
    """Each premise has a unique name."""
    assert len({premise.name for premise in PREMISES}) == len(PREMISES)
    assert all(premise.holds and premise.otherwise for premise in PREMISES)
