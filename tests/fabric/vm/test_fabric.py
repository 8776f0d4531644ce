"""Words between cores: latency, tasks, queues, FIFOs, microthreads, control wavelets, switches, filters, teardown, color swap.

One file, because every test builds on the small fabrics at its head.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.fabric.vm.assembler import RAMP, Assembly, E, N, S, W, fabin, fabout, line
from wse_sim.fabric.vm import opcodes as O
from wse_sim.fabric.vm.image import CONTROL, DATA, LOCAL, dsd
from wse_sim.fabric.vm.opcodes import Form
from wse_sim.hardware.wafer import load_wafer

EXECUTORS = ["oracle", "fast"]
UNBLOCK = "SYS -1 0 14\nRET"


def numbers(n: int, start: int = 1) -> np.ndarray:
    """n u32 words start, start + 1, ... as 16-bit words."""
    return np.arange(start, start + n, dtype=np.uint32).view(np.uint16)


def control(command: int = 0, task: int = 63, hidden: bool = False, data: int = 0) -> int:
    """Return a control word with one command."""
    return data | task << 16 | command << 22 | int(hidden) << 24


def sender(
    a: Assembly, core: int, color: int, words: int, op: str = "mov32", queue: int = 2, **fields: int
) -> None:
    """A core whose function ``main`` sends 1, 2, ... on a color."""
    issue = a.issue(op, Form.DSD, Form.DSD)
    bound = {"output_colors": ((queue, color),)} if a.arch == "wse3" else {}
    a.add(
        f"main:\nLDK 0 0 0\nLDK 1 0 1\nVEC -1 0 {issue}\n{UNBLOCK}", cores=[core],
        constants=(fabout(color, queue, words, **fields), line(100, words)), memory=((100, numbers(words)),), **bound,
    )  # fmt: skip


def receiver(a: Assembly, core: int, color: int, words: int, op: str = "mov32", queue: int = 3) -> None:
    """A core whose function ``main`` receives words of a color to address 200."""
    issue = a.issue(op, Form.DSD, Form.DSD)
    bound = {"input_colors": ((queue, color),)} if a.arch == "wse3" else {"reads": ((color, queue),)}
    a.add(
        f"main:\nLDK 0 0 0\nLDK 1 0 1\nVEC -1 0 {issue}\n{UNBLOCK}", cores=[core],
        constants=(line(200, words), fabin(color, queue, words)), **bound,
    )  # fmt: skip


def got(s, x: int, n: int, y: int = 0) -> list[int]:
    """n u32 words at address 200."""
    return s.peek(x, y, 200, 2 * n).view(np.uint32).tolist()


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("hops", [1, 4])
def test_a_word_takes_its_time(arch: str, executor: str, hops: int):
    """A word sent at t over h links is read at t + 1 + 2 T_R + h H: both cores start alike, the reader is stalled for exactly that.

    Both begin their operation in the same cycle; the sender's word is written in it, the reader's one issue comes 1 + 2 T_R + h H later.
    """
    a = Assembly(1, hops + 1, arch)
    a.route(0, 1, (RAMP, E))
    for c in range(1, hops):
        a.route(c, 1, (W, E))
    a.route(hops, 1, (W, RAMP))
    sender(a, 0, 1, 1)
    receiver(a, hops, 1, 1)
    s = a.session(executor)
    s.launch(0, 0, 1, 1, "main")
    s.launch(hops, 0, 1, 1, "main")
    assert s.advance("commands").reason == "asked"
    assert got(s, hops, 1) == [1]
    wafer = load_wafer(arch)
    assert s.counters()["stalled_in"][0, hops] == wafer.handover_cycles + hops * wafer.hop_cycles


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("out", [N, E, S, W])
def test_a_word_that_turns_takes_longer_whichever_way_it_turns(executor: str, out: int):
    """Into the middle of 3 x 3 cores from a side and out by another at a right angle: two hops and a turn."""
    beside = {N: (0, -1), E: (1, 0), S: (0, 1), W: (-1, 0)}  # columns, rows
    opposite = {N: S, E: W, S: N, W: E}
    came = E if out in (N, S) else S  # the way of the word before its turn
    (from_x, from_y), (to_x, to_y) = beside[opposite[came]], beside[out]
    first, last = (1 + from_y) * 3 + 1 + from_x, (1 + to_y) * 3 + 1 + to_x
    a = Assembly(3, 3, "wse3")
    a.route(first, 1, (RAMP, came))
    a.route(4, 1, (opposite[came], out))
    a.route(last, 1, (opposite[out], RAMP))
    sender(a, first, 1, 1)
    receiver(a, last, 1, 1)
    s = a.session(executor)
    s.launch(1 + from_x, 1 + from_y, 1, 1, "main")
    s.launch(1 + to_x, 1 + to_y, 1, 1, "main")
    assert s.advance("commands").reason == "asked"
    wafer = load_wafer("wse3")
    waited = s.counters()["stalled_in"][1 + to_y, 1 + to_x]
    assert waited == wafer.handover_cycles + 2 * wafer.hop_cycles + wafer.turn_cycles


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_long_stream_moves_one_word_a_cycle(executor: str):
    """200 words: busy 200 issue cycles, and the whole run is 200 + latency + start."""
    a = Assembly(1, 2)
    a.route(0, 1, (RAMP, E))
    a.route(1, 1, (W, RAMP))
    sender(a, 0, 1, 200)
    receiver(a, 1, 1, 200)
    s = a.session(executor)
    s.launch(0, 0, 2, 1, "main")
    end = s.advance("commands").cycle
    assert got(s, 1, 200) == list(range(1, 201))
    wafer = load_wafer("wse2")
    start = wafer.task_pick_cycles + 2 + wafer.vector_start_loaded_cycles + 2 * wafer.scalar_dsr_load_cycles
    # The start counts from the last load, so the row of the operation lies within it; latency 5 + 1, and the row after it.
    assert end == start + 200 + 6 + 1


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_data_tasks_take_word_by_word_and_can_be_blocked(arch: str, executor: str):
    """A task adds its word to a sum; while it is blocked the words wait in the queue (and in the fabric behind it)."""
    a = Assembly(1, 2, arch)
    a.route(0, 1, (RAMP, E))
    a.route(1, 1, (W, RAMP))
    sender(a, 0, 1, 10)
    task = 1 if arch == "wse2" else 3
    bound = {"reads": ((1, 3),)} if arch == "wse2" else {"input_colors": ((3, 1),)}
    a.add(
        f"release:\nLDI 0 0 {task}\nUNBLOCK 0 0 0\n{UNBLOCK}\nwork:\nLDI 1 0 200\nLD_U32 2 1 0\nADD_U32 2 2 0\nST_32 2 1 0\nEND",
        cores=[1], tasks=[(task, DATA, "work")], blocked=(task,), **bound,
    )  # fmt: skip
    s = a.session(executor)
    s.launch(0, 0, 1, 1, "main", arm=False)
    s.advance()
    assert got(s, 1, 1) == [0]
    assert any("input queue 3 that nothing reads" in str(w) for w in s.status())
    s.launch(1, 0, 1, 1, "release", arm=False)
    s.advance()
    assert got(s, 1, 1) == [55]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_asynchronous_operation_activates_its_task(executor: str):
    """The main thread continues; when all words are sent the task runs and leaves its mark."""
    a = Assembly(1, 2)
    a.route(0, 1, (RAMP, E))
    a.route(1, 1, (W, RAMP))
    issue = (
        a.issue("mov32", Form.DSD, Form.DSD, async_=1)
        if False
        else a.issue("mov32", Form.DSD, Form.DSD, activate=9, **{"async": 1})
    )
    a.add(
        f"main:\nLDK 0 0 0\nLDK 1 0 1\nVEC -1 0 {issue}\nLDI 2 0 400\nSYS 3 0 4\nST_16 3 2 0\nEND\ndone:\nLDI 2 0 400\nLDI 3 0 7\nST_16 3 2 1\n{UNBLOCK}",
        cores=[0], tasks=[(9, LOCAL, "done")], constants=(fabout(1, 2, 20), line(100, 20)), memory=((100, numbers(20)),),
    )  # fmt: skip
    receiver(a, 1, 1, 20)
    s = a.session(executor)
    s.launch(0, 0, 2, 1, "main")
    assert s.advance("commands").reason == "asked"
    s.advance()
    assert s.peek(0, 0, 401, 1)[0] == 7
    assert got(s, 1, 20) == list(range(1, 21))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_fifo_decouples_two_microthreads(executor: str):
    """Words from the host pass fabric -> FIFO -> fabric -> host in order, though the FIFO holds four."""
    a = Assembly(1, 2)
    a.extra["host_colors"] = (5, 6)
    a.route(0, 1, (RAMP, E))
    a.route(1, 1, (W, RAMP))
    from wse_sim.fabric.vm.image import Fifo

    fifo = dsd(O.DsdKind.FIFO, base=0)
    into = a.issue("mov32", Form.DSD, Form.DSD, **{"async": 1})
    a.add(
        f"main:\nLDK 0 0 0\nLDK 1 0 1\nVEC -1 0 {into}\nLDK 0 0 2\nLDK 1 0 0\nVEC -1 0 {into}\n{UNBLOCK}", cores=[0], reads=((5, 2),),
        constants=(fifo, fabin(5, 2, O.ENDLESS), fabout(1, 4, O.ENDLESS)), fifos=(Fifo(300, 8, 2),),
    )  # fmt: skip
    add = a.issue("add32", Form.DSD, Form.DSD, Form.SCALAR)
    a.add(
        f"main:\nLDK 0 0 0\nLDK 1 0 1\nLDI 2 0 100\nVEC -1 0 {add}\n{UNBLOCK}",
        cores=[1],
        constants=(fabout(6, 3, 30), fabin(1, 2, 30)),
        reads=((1, 2),),
    )
    s = a.session(executor)
    s.launch(0, 0, 2, 1, "main")
    s.inject(0, 0, 5, np.arange(30))
    s.expect(1, 0, 6, 30)
    assert s.advance(["commands", "drained", "injected"]).reason == "asked"
    assert s.drain(1, 0, 6).tolist() == [100 + i for i in range(30)]


def test_a_synchronous_operation_on_an_empty_fifo_ends_early():
    """Two elements in, three wanted: the result is false and two have moved."""
    from wse_sim.fabric.vm.image import Fifo

    a = Assembly()
    move = a.issue("mov16", Form.DSD, Form.DSD)
    a.add(
        f"main:\nLDK 0 0 0\nLDK 1 0 1\nVEC 5 0 {move}\nLDK 0 0 2\nLDK 1 0 0\nVEC 6 0 {move}\nLDI 7 0 400\nST_16 5 7 0\nST_16 6 7 1\nRET",
        constants=(dsd(O.DsdKind.FIFO, base=0), line(100, 2), line(200, 3)), memory=((100, np.array([8, 9], np.uint16)),), fifos=(Fifo(300, 8),),
    )  # fmt: skip
    s = a.session()
    s.launch(0, 0, 1, 1, "main", arm=False)
    s.advance()
    assert s.peek(0, 0, 400, 2).tolist() == [1, 0]
    assert s.peek(0, 0, 200, 3).tolist() == [8, 9, 0]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_control_wavelet_runs_its_task_with_its_data(executor: str):
    """Id 40 and data 1234 from core 0: the task of core 1 stores the low half of the word; an id without task is dropped with a warning."""
    a = Assembly(1, 2)
    a.route(0, 1, (RAMP, E))
    a.route(1, 1, (W, RAMP))
    issue = a.issue("mov32", Form.DSD, Form.SCALAR)
    a.add(
        f"main:\nLDK 0 0 0\nLDK 1 0 1\nVEC -1 0 {issue}\nLDK 1 0 2\nVEC -1 0 {issue}\n{UNBLOCK}", cores=[0],
        constants=(fabout(1, 2, 1, control=1), control(task=41), control(task=40, data=1234)),
    )  # fmt: skip
    a.add(
        "data:\nEND\nctrl:\nLDI 1 0 200\nST_16 0 1 0\nEND",
        cores=[1],
        tasks=[(1, DATA, "data"), (40, CONTROL, "ctrl")],
        reads=((1, 2),),
    )
    s = a.session(executor)
    s.launch(0, 0, 1, 1, "main")
    s.advance("commands")
    s.advance()
    assert s.peek(1, 0, 200, 1)[0] == 1234
    assert (
        s.warnings == ["core (1, 0) dropped a control wavelet at cycle 30: no task has its id 41"]
        or "id 41" in s.warnings[0]
    )


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_control_wavelet_can_end_an_operation(executor: str):
    """Three words and a control wavelet: a receive without end terminates with three words."""
    a = Assembly(1, 2)
    a.route(0, 1, (RAMP, E))
    a.route(1, 1, (W, RAMP))
    move, stop = a.issue("mov32", Form.DSD, Form.DSD), a.issue("mov32", Form.DSD, Form.SCALAR)
    a.add(
        f"main:\nLDK 0 0 0\nLDK 1 0 1\nVEC -1 0 {move}\nLDK 0 0 2\nLDK 1 0 3\nVEC -1 0 {stop}\n{UNBLOCK}", cores=[0],
        constants=(fabout(1, 2, 3), line(100, 3), fabout(1, 2, 1, control=1), control()), memory=((100, numbers(3)),),
    )  # fmt: skip
    take = a.issue("mov32", Form.DSD, Form.DSD, on_control=O.OnControl.TERMINATE)
    a.add(
        f"main:\nLDK 0 0 0\nLDK 1 0 1\nVEC -1 0 {take}\n{UNBLOCK}",
        cores=[1],
        constants=(line(200, 50), fabin(1, 3, 50)),
        reads=((1, 3),),
    )
    s = a.session(executor)
    s.launch(0, 0, 2, 1, "main")
    assert s.advance("commands").reason == "asked"
    assert got(s, 1, 4) == [1, 2, 3, 0]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_switches_turn_a_color_around(executor: str):
    """Positions N, W, E, S in ring mode, starting at 1: four control wavelets, each followed by a word: E S N W receive 0 2 4 6."""
    a = Assembly(3, 3)
    a.route(4, 1, (RAMP, N), (RAMP, W), (RAMP, E), (RAMP, S), position=1, ring=True)
    for core, port in ((1, S), (3, E), (5, W), (7, N)):
        a.route(core, 1, (port, RAMP))
    issue = a.issue("mov32", Form.DSD, Form.SCALAR)
    lines = "".join(
        f"LDK 0 0 0\nLDK 1 0 2\nVEC -1 0 {issue}\nLDK 0 0 1\nLDI 1 0 {value}\nVEC -1 0 {issue}\n"
        for value in (1, 2, 4, 6)
    )
    a.add(
        f"main:\n{lines}{UNBLOCK}",
        cores=[4],
        constants=(fabout(1, 2, 1, control=1), fabout(1, 2, 1), control(O.Command.ADVANCE, hidden=True)),
    )
    a.add(
        "work:\nLDI 1 0 200\nST_16 0 1 0\nEND", cores=[1, 3, 5, 7], tasks=[(1, DATA, "work")], reads=((1, 2),)
    )
    s = a.session(executor)
    s.launch(1, 1, 1, 1, "main")
    s.advance("commands")
    s.advance()
    assert [int(s.peek(x, y, 200, 1)[0]) for x, y in ((2, 1), (1, 2), (1, 0), (0, 1))] == [1, 2, 4, 6]


@pytest.mark.parametrize(
    ("pop", "commands", "first", "second"),
    [
        (O.Pop.NEVER, [1, 0], 1, 1),
        (O.Pop.ALWAYS, [1, 0], 1, 0),
        (O.Pop.ON_ADVANCE, [0, 1], 0, 0),
        (O.Pop.ON_ADVANCE_NOP, [0, 1], 0, 1),
    ],
)
@pytest.mark.parametrize("executor", EXECUTORS)
def test_pop_modes_hand_on_the_rest_of_the_list(
    pop: int, commands: list[int], first: int, second: int, executor: str
):
    """A list of two commands passes two routers: each acts on the first that is left, and removes it by its mode."""
    a = Assembly(1, 3)
    a.route(0, 1, (RAMP, E))
    a.route(1, 1, (W, E), (W, E), pop=pop)
    a.route(2, 1, (W, RAMP), (W, RAMP))
    word = control(commands[0], hidden=True) | commands[1] << 25 | 1 << 27
    issue = a.issue("mov32", Form.DSD, Form.SCALAR)
    a.add(
        f"main:\nLDK 0 0 0\nLDK 1 0 1\nVEC -1 0 {issue}\n{UNBLOCK}",
        cores=[0],
        constants=(fabout(1, 2, 1, control=1), word),
    )
    a.add("main:\nLDI 0 0 1\nSYS 1 0 19\nLDI 2 0 200\nST_16 1 2 0\nRET", cores=[1, 2], reads=((1, 2),))
    s = a.session(executor)
    s.launch(0, 0, 1, 1, "main")
    s.advance()
    s.launch(1, 0, 2, 1, "main", arm=False)
    s.advance()
    assert [int(s.peek(x, 0, 200, 1)[0]) for x in (1, 2)] == [first, second]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_an_operation_can_move_its_own_switch(executor: str):
    """advance_switch: after the last of three words to the east the color leads to the south."""
    a = Assembly(2, 2)
    a.route(0, 1, (RAMP, E), (RAMP, S))
    a.route(1, 1, (W, RAMP))
    a.route(2, 1, (N, RAMP))
    move = a.issue("mov32", Form.DSD, Form.DSD)
    a.add(
        f"main:\nLDK 0 0 0\nLDK 1 0 1\nVEC -1 0 {move}\nLDK 0 0 2\nVEC -1 0 {move}\n{UNBLOCK}", cores=[0],
        constants=(fabout(1, 2, 3, advance=1), line(100, 3), fabout(1, 2, 3)), memory=((100, numbers(3)),),
    )  # fmt: skip
    receiver(a, 1, 1, 3)
    receiver(a, 2, 1, 3)
    s = a.session(executor)
    s.launch(0, 0, 2, 1, "main")
    s.launch(0, 1, 1, 1, "main")
    assert s.advance("commands").reason == "asked"
    assert got(s, 1, 3) == got(s, 0, 3, y=1) == [1, 2, 3]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_filters_pass_their_share(executor: str):
    """Range: indices 2 to 4 of 0..7.  Counter: period 4, passes counts 0 and 1; it starts at 3, so words 1, 2, 5, 6."""
    a = Assembly(1, 3)
    a.route(0, 1, (RAMP, E))
    a.route(1, 1, (W, E | RAMP), filter=0)
    a.route(2, 1, (W, RAMP), filter=1)
    a.filters = [
        [O.FilterKind.RANGE, 2, 4, 0, 0, 0, 0, 0, 0, 0],
        [O.FilterKind.COUNTER, 0, 0, 3, 0, 1, 3, 1, 0, 0],
    ]
    words = np.array([i << 16 | 10 + i for i in range(8)], np.uint32)
    issue = a.issue("mov32", Form.DSD, Form.DSD)
    a.add(
        f"main:\nLDK 0 0 0\nLDK 1 0 1\nVEC -1 0 {issue}\n{UNBLOCK}",
        cores=[0],
        constants=(fabout(1, 2, 8), line(100, 8)),
        memory=((100, words.view(np.uint16)),),
    )
    take = a.issue("mov16", Form.DSD, Form.DSD, **{"async": 1})
    a.add(
        f"main:\nLDK 0 0 0\nLDK 1 0 1\nVEC -1 0 {take}\n{UNBLOCK}",
        cores=[1, 2],
        constants=(line(200, 8), fabin(1, 2, 8)),
        reads=((1, 2),),
    )
    s = a.session(executor)
    s.launch(0, 0, 3, 1, "main")
    s.advance()
    assert s.peek(1, 0, 200, 4).tolist() == [12, 13, 14, 0]
    assert s.peek(2, 0, 200, 5).tolist() == [11, 12, 15, 16, 0]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_teardown_stops_a_color_until_its_handler_has_rerouted_it(executor: str):
    """Core 0 sends two words, tears the color down everywhere, sends two more: core 1 turns the color to itself, so the last two are its own."""
    a = Assembly(1, 3)
    a.route(0, 1, (RAMP, E))
    a.route(1, 1, (W, E))
    a.route(2, 1, (W, RAMP))
    move, stop = a.issue("mov32", Form.DSD, Form.DSD), a.issue("mov32", Form.DSD, Form.SCALAR)
    leave = "SYS -1 0 24\nEND"
    a.add(
        f"main:\nLDK 0 0 0\nLDK 1 0 1\nVEC -1 0 {move}\nLDK 0 0 2\nLDK 1 0 3\nVEC -1 0 {stop}\nLDK 0 0 0\nLDK 1 0 1\nVEC -1 0 {move}\n{UNBLOCK}\ntorn:\n{leave}",
        cores=[0], constants=(fabout(1, 2, 2), line(100, 2), fabout(1, 2, 1, control=1), control(O.Command.TEARDOWN, hidden=True)),
        memory=((100, numbers(2)),), teardown=((1, "torn"),),
    )  # fmt: skip
    take = a.issue("mov32", Form.DSD, Form.DSD, **{"async": 1})
    body = f"main:\nLDK 0 0 0\nLDK 1 0 1\nVEC -1 0 {take}\n{UNBLOCK}"
    a.add(
        f"{body}\ntorn:\nMOV 5 0\nLDI 6 0 {W}\nLDI 7 0 {RAMP}\nSYS -1 5 15\n{leave}", cores=[1], constants=(line(200, 4), fabin(1, 2, 4)),
        reads=((1, 2),), teardown=((1, "torn"),),
    )  # fmt: skip
    a.add(
        f"{body}\ntorn:\n{leave}",
        cores=[2],
        constants=(line(200, 4), fabin(1, 2, 4)),
        reads=((1, 2),),
        teardown=((1, "torn"),),
    )
    s = a.session(executor)
    s.launch(0, 0, 3, 1, "main")
    assert s.advance("commands").reason == "asked"
    s.advance()
    assert got(s, 1, 3) == [1, 2, 0]
    assert got(s, 2, 3) == [1, 2, 0]


@pytest.mark.parametrize("swap", [1, 3])
@pytest.mark.parametrize("executor", EXECUTORS)
def test_colors_swap_on_the_way(executor: str, swap: int):
    """Colors 0 and 1 flip on every link to the east: words sent on 1 arrive as 0, 1, 0 at cores 1, 2, 3, and as 1 at the sender itself.

    If both axes swap, they flip once more on their way to every core.
    """
    a = Assembly(1, 4)
    for color in (0, 1):
        a.route(0, color, (RAMP, RAMP | E), swap=swap)
        for c in (1, 2):
            a.route(c, color, (W, RAMP | E), swap=swap)
        a.route(3, color, (W, RAMP), swap=swap)
    issue = a.issue("mov32", Form.DSD, Form.SCALAR)
    work = "red:\nLDI 1 0 200\nST_16 0 1 0\nEND\nblue:\nLDI 1 0 201\nST_16 0 1 0\nEND"
    tasks = [(0, DATA, "red"), (1, DATA, "blue")]
    a.add(
        f"main:\nLDK 0 0 0\nLDI 1 0 5\nVEC -1 0 {issue}\n{UNBLOCK}\n{work}",
        cores=[0],
        tasks=tasks,
        constants=(fabout(1, 2, 1),),
    )
    a.add(work, cores=[1, 2, 3], tasks=tasks)
    s = a.session(executor)
    s.launch(0, 0, 1, 1, "main")
    s.advance()
    assert [s.peek(x, 0, 200, 2).tolist() for x in range(4)] == [[0, 5], [5, 0], [0, 5], [5, 0]][
        :: 1 if swap == 1 else -1
    ]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_two_inputs_at_once_are_a_fault_in_strict_mode(executor: str):
    """Words from west and from east meet in one cycle; without strict the inputs take turns."""
    a = Assembly(1, 3)
    a.route(0, 1, (RAMP, E))
    a.route(2, 1, (RAMP, W))
    a.route(1, 1, (W | E, RAMP))
    sender(a, 0, 1, 4)
    sender(a, 2, 1, 4)
    receiver(a, 1, 1, 8)
    s = a.session(executor)
    s.launch(0, 0, 3, 1, "main")
    outcome = s.advance("commands")
    assert outcome.reason == "fault"
    assert "two directions" in str(outcome.fault)
    s = a.session(executor, strict=False)
    s.launch(0, 0, 3, 1, "main")
    assert s.advance("commands").reason == "asked"
    assert sorted(got(s, 1, 8)) == [1, 1, 2, 2, 3, 3, 4, 4]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_waits_for_ever_are_named(executor: str):
    """Ten words are wanted, six come: the wait names core, color, queue and line; a color without queue is named at its router."""
    a = Assembly(1, 3)
    a.route(0, 1, (RAMP, E))
    a.route(1, 1, (W, RAMP))
    a.route(2, 4, (RAMP, W))
    a.route(1, 4, (E, RAMP))
    sender(a, 0, 1, 6)
    receiver(a, 1, 1, 10)
    sender(a, 2, 4, 1)
    s = a.session(executor)
    s.launch(0, 0, 3, 1, "main")
    assert s.advance("commands").reason == "waits"
    text = [str(w) for w in s.status()]
    assert any(
        t.startswith("core (1, 0) at pe.csl:") and "did not unblock the command stream" in t for t in text
    )
    assert any("waits for a word of color 1 in input queue 3" in t for t in text)
    assert any(
        "words of color 4 that came from E: no input queue of the core is bound to it" in t for t in text
    )


@pytest.mark.parametrize("executor", EXECUTORS)
def test_priorities_of_microthreads_decide_the_slot(executor: str):
    """The main thread multiplies 100 elements in memory: a high microthread sends beside it, a low one after it.  Beside scalar code both send."""
    spans = {}
    for priority in (O.Priority.HIGH, O.Priority.LOW):
        for work in ("NOP\n" * 100, "LDK 0 0 2\nLDK 1 0 2\nLDK 2 0 2\nVEC -1 0 {multiply}\n"):
            a = Assembly(1, 2)
            a.route(0, 1, (RAMP, E))
            a.route(1, 1, (W, RAMP))
            issue = a.issue("mov32", Form.DSD, Form.DSD, priority=priority, **{"async": 1})
            multiply = a.issue("fmuls", Form.DSD, Form.DSD, Form.DSD)
            a.add(
                f"main:\nLDK 0 0 0\nLDK 1 0 1\nVEC -1 0 {issue}\n" + work.format(multiply=multiply) + UNBLOCK, cores=[0],
                constants=(fabout(1, 2, 30), line(100, 30), line(400, 100)), memory=((100, numbers(30)),),
            )  # fmt: skip
            receiver(a, 1, 1, 30)
            s = a.session(executor)
            s.launch(0, 0, 2, 1, "main")
            s.advance("commands")
            spans[priority, work[:3]] = int(s.counters()["stalled_in"][0, 1])
    assert spans[O.Priority.HIGH, "NOP"] == spans[O.Priority.LOW, "NOP"] == 6
    assert spans[O.Priority.HIGH, "LDK"] == 6
    assert spans[O.Priority.LOW, "LDK"] > 100


def test_two_halves_travel_in_one_word():
    """simd_32: eight f16 take four words."""
    a = Assembly(1, 2)
    a.route(0, 1, (RAMP, E))
    a.route(1, 1, (W, RAMP))
    sender(a, 0, 1, 8, "fmovh", simd=O.Simd.SIMD_32)
    issue = a.issue("fmovh", Form.DSD, Form.DSD)
    a.add(
        f"main:\nLDK 0 0 0\nLDK 1 0 1\nVEC -1 0 {issue}\n{UNBLOCK}",
        cores=[1],
        constants=(line(200, 8), fabin(1, 3, 8, simd=1)),
        reads=((1, 3),),
    )
    s = a.session()
    s.launch(0, 0, 2, 1, "main")
    s.advance("commands")
    assert s.peek(1, 0, 200, 8).tolist() == numbers(8)[:8].tolist()
    assert s.counters()["sent"][0, 0] == 4


def test_the_index_of_an_operation():
    """.index is the high half of outgoing words, and moves a memory operand by that many 16-bit words."""
    a = Assembly(1, 2)
    a.route(0, 1, (RAMP, E))
    a.route(1, 1, (W, RAMP))
    send = a.issue("mov16", Form.DSD, Form.DSD, index=4)
    a.add(
        f"main:\nLDK 0 0 0\nLDK 1 0 1\nLDI 4 0 3\nVEC -1 0 {send}\n{UNBLOCK}", cores=[0],
        constants=(fabout(1, 2, 2, wavelet_index=1), line(100, 2, wavelet_index=1)), memory=((100, np.arange(10, dtype=np.uint16)),),
    )  # fmt: skip
    receiver(a, 1, 1, 2)
    s = a.session()
    s.launch(0, 0, 2, 1, "main")
    s.advance("commands")
    assert got(s, 1, 2) == [3 << 16 | 3, 3 << 16 | 4]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_order_of_tasks(executor: str):
    """Three tasks are activated at once: 20 was given high priority and goes first, then 11 and 14 by number; a data task with a word comes last."""
    a = Assembly()
    a.extra["host_colors"] = (3,)
    mark = "LDI 7 0 200\nLD_U16 8 7 0\nADDI_U16 8 8 1\nST_16 8 7 0\nADD_U16 9 7 8\nST_16 {} 9 0\nEND"
    text = "main:\nLDI 0 0 20\nLDI 1 0 1\nSYS -1 0 34\nLDI 0 0 14\nACT 0 0 0\nLDI 0 0 11\nACT 0 0 0\nLDI 0 0 20\nACT 0 0 0\nRET\n"
    for number in (3, 11, 14, 20):
        text += f"t{number}:\nLDI 10 0 {number}\n" + mark.format(10) + "\n"
    a.add(
        text,
        tasks=[(11, LOCAL, "t11"), (14, LOCAL, "t14"), (20, LOCAL, "t20"), (3, DATA, "t3")],
        reads=((3, 2),),
    )
    s = a.session(executor)
    s.launch(0, 0, 1, 1, "main", arm=False)
    s.inject(0, 0, 3, [1])
    s.advance()
    assert s.peek(0, 0, 201, 4).tolist() == [20, 11, 14, 3]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_core_can_change_its_own_filter(executor: str):
    """Both cores begin with indices 2 to 4; core 1 moves the upper limit of its own filter to 6, core 2 keeps the image's."""
    a = Assembly(1, 3)
    a.route(0, 1, (RAMP, E))
    a.route(1, 1, (W, E | RAMP), filter=0)
    a.route(2, 1, (W, RAMP), filter=0)
    a.filters = [[O.FilterKind.RANGE, 2, 4, 0, 0, 0, 0, 0, 0, 0]]
    words = np.array([i << 16 | 10 + i for i in range(8)], np.uint32)
    issue = a.issue("mov32", Form.DSD, Form.DSD)
    a.add(
        "main:\n" + "NOP\n" * 20 + f"LDK 0 0 0\nLDK 1 0 1\nVEC -1 0 {issue}\n{UNBLOCK}",
        cores=[0],
        constants=(fabout(1, 2, 8), line(100, 8)),
        memory=((100, words.view(np.uint16)),),
    )
    take = a.issue("mov16", Form.DSD, Form.DSD, **{"async": 1})
    body = f"LDK 0 0 0\nLDK 1 0 1\nVEC -1 0 {take}\n{UNBLOCK}"
    constants = (line(200, 8), fabin(1, 2, 8))
    a.add(
        f"main:\nLDI 3 0 1\nLDI 4 0 {O.F_MAX}\nLDI 5 0 6\nSYS -1 3 28\n{body}",
        cores=[1],
        constants=constants,
        reads=((1, 2),),
    )
    a.add(f"main:\n{body}", cores=[2], constants=constants, reads=((1, 2),))
    s = a.session(executor)
    s.launch(0, 0, 3, 1, "main")
    s.advance()
    assert s.peek(1, 0, 200, 6).tolist() == [12, 13, 14, 15, 16, 0]
    assert s.peek(2, 0, 200, 4).tolist() == [12, 13, 14, 0]


def test_registers_that_are_not_modelled_are_refused():
    """A read by address is a fault that says what to use."""
    a = Assembly()
    a.add("main:\nLDI 0 0 77\nSYS 1 0 38\nRET")
    s = a.session()
    s.launch(0, 0, 1, 1, "main")
    assert "configuration register 77 is not modelled" in str(s.advance("commands").fault)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_host_takes_words_beyond_the_edge(executor: str):
    """Two words, a control wavelet and two words leave over the eastern edge: the host asked for three, gets three, then the last."""
    a = Assembly(1, 2)
    a.route(0, 1, (RAMP, E))
    a.route(1, 1, (W, E))
    move, stop = a.issue("mov32", Form.DSD, Form.DSD), a.issue("mov32", Form.DSD, Form.SCALAR)
    send = f"LDK 0 0 0\nLDK 1 0 1\nVEC -1 0 {move}\n"
    a.add(
        f"main:\n{send}LDK 0 0 2\nLDK 1 0 3\nVEC -1 0 {stop}\n{send}{UNBLOCK}", cores=[0],
        constants=(fabout(1, 2, 2), line(100, 2), fabout(1, 2, 1, control=1), control(O.Command.ADVANCE, hidden=True)), memory=((100, numbers(2)),),
    )  # fmt: skip
    s = a.session(executor)
    s.launch(0, 0, 1, 1, "main")
    s.expect(1, 0, 1, 3)
    assert s.advance(["commands", "drained"]).reason == "asked"
    assert s.drain(1, 0, 1).tolist() == [1, 2, 1]
    s.expect(1, 0, 1, 1)
    assert s.advance("drained").reason == "asked"
    assert s.drain(1, 0, 1).tolist() == [2]
