"""Programs whose course no data decide: what is proved, what is refused and why, and times by max-plus against the machine of CSL.

One file, because all tests share the small programs at its head.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.csl import PROGRAMS
from tests.generated import examples
from wse_sim.csl import CompiledProgram, compile_program
from wse_sim.csl.host.launches import static_launches
from wse_sim.csl.static.course import Operation
from wse_sim.csl.static.fold import fold
from wse_sim.csl.static.launches import Launch, StaticTimes
from wse_sim.csl.static.schedule import Call, Recorded, decided_by_data
from wse_sim.csl.static.table import table
from wse_sim.errors import WseError
from wse_sim.fabric.vm.session import Session
from wse_sim.hardware import load_wafer

ARCHES = ("wse2", "wse3")
HEAD = """
const sys = @import_module("<memcpy/memcpy>", @import_module("<memcpy/get_params>", .{ .width = 2, .height = 1 }).get_params(0));
"""
LAYOUT = """
layout {
  @set_rectangle(2, 1);
  for (@range(u16, 2)) |x| {
    @set_tile_code(x, 0, "pe.csl", .{ .first = x == 0 });
  }
  @set_color_config(0, 0, @get_color(0), .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ EAST } } });
  @set_color_config(1, 0, @get_color(0), .{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } } });
  @set_color_config(1, 0, @get_color(1), .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ WEST } } });
  @set_color_config(0, 0, @get_color(1), .{ .routes = .{ .rx = .{ EAST }, .tx = .{ RAMP } } });
  @export_name("run", fn()void);
  @export_name("data", [*]i16, true);
}
"""
PE = """
param first: bool;
const sys = @import_module("<memcpy/memcpy>", @import_module("<memcpy/get_params>", .{ .width = 2, .height = 1 }).get_params(0));
const next: local_task_id = @get_local_task_id(9);
const other: local_task_id = @get_local_task_id(10);
const out = @get_dsd(fabout_dsd, .{ .fabric_color = @get_color(if (first) 0 else 1), .extent = 8, .output_queue = @get_output_queue(2) });
const in = @get_dsd(fabin_dsd, .{ .fabric_color = @get_color(if (first) 1 else 0), .extent = 8, .input_queue = @get_input_queue(2) });
const memory = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> data[i] });
var data = @zeros([16]i16);
var data_ptr: [*]i16 = &data;
var turns: i16 = 3;
BODY
comptime {
  @bind_local_task(after, next);
  @export_symbol(data_ptr, "data");
  @export_symbol(run);
}
"""
DONE = "task after() void { sys.unblock_cmd_stream(); }"


def program(folder: Path, body: str) -> CompiledProgram:
    """Two cores that run `body`, connected in both directions."""
    (folder / "layout.csl").write_text(LAYOUT)
    (folder / "pe.csl").write_text(PE.replace("BODY", body))
    return compile_program(folder / "layout.csl", memcpy=True)


def machine_cycles(
    compiled: CompiledProgram, function: str, launches: int = 1, apart: int = 1000
) -> list[int]:
    """Cycles of launches on the machine of CSL, from the launch to the last release; `apart` cycles from a release to the next launch."""
    image = compiled.image
    wafer = load_wafer(compiled.options.arch)
    session = Session(image, wafer)
    found = []
    for _ in range(launches):
        session.advance("cycle", cycles=apart if found else 1000)
        begin = session.cycle
        session.launch(0, 0, image.cols, image.rows, function, row_cycles=wafer.launch_row_cycles)
        assert session.advance("commands").reason == "asked"
        found.append(session.cycle - begin - 1)  # the cycle of the release is over when the session returns
    return found


def static(compiled: CompiledProgram, function: str) -> Launch:
    return StaticTimes(compiled.image, load_wafer(compiled.options.arch)).launch(function)


@pytest.mark.thinned(7)
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize(
    ("name", "function", "params"),
    [
        ("gemv", "compute", {"cols": 6, "rows": 2, "m": 4, "n": 4}),
        ("gemv", "compute", {"cols": 3, "rows": 3, "m": 40, "n": 2}),
        ("stencil", "run", {"cols": 4, "rows": 5, "n": 5, "steps": 3}),
        ("loop", "compute", {"n": 4, "turns": 3}),
    ],
)
def test_cycles_are_those_of_the_machine(name: str, function: str, params: dict[str, int], arch: str) -> None:
    """Sums along rows, exchanges between neighbours, scalar code alone: not one cycle apart, launch after launch."""
    compiled = compile_program(PROGRAMS / f"{name}_layout.csl", memcpy=True, arch=arch, params=params)
    times = StaticTimes(compiled.image, load_wafer(arch))
    launches = [times.launch(function) for _ in range(2)]
    assert [launch.cycles for launch in launches] == machine_cycles(compiled, function, 2)
    assert all(launch.bounds == (launch.cycles, launch.cycles) for launch in launches)


REFUSED = {
    "a branch at pe.csl:14 (run) depends on data of the host": """
fn run() void {
  if (data[3] > 0) { @mov16(out, memory); }
  sys.unblock_cmd_stream();
}
task after() void {}""",
    "an address or length at pe.csl:15 (run) depends on data of the host": """
fn run() void {
  const some = @set_dsd_length(memory, @as(u16, data[0]));
  @mov16(out, some);
  sys.unblock_cmd_stream();
}
task after() void {}""",
    "a branch at pe.csl:15 (run) depends on a word that arrived": """
fn run() void {
  if (first) { @mov16(out, memory); } else { @mov16(memory, in); }
  if (!first and data[0] == 1) { turns += 1; }
  sys.unblock_cmd_stream();
}
task after() void {}""",
    "the operation at pe.csl:15 (run) overlaps that at pe.csl:14 (run): two operations share the core": f"""
fn run() void {{
  @mov16(out, memory, .{{ .async = true }});
  @mov16(memory, in, .{{ .async = true, .activate = next }});
}}
{DONE}""",
    "it does not release the command stream by itself": """
fn run() void { turns += 1; }
task after() void {}""",
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_data_may_decide_is_refused(tmp_path: Path, reason: str) -> None:
    """The sentence names the line and where the value came from."""
    found = static(program(tmp_path, REFUSED[reason]), "run")
    assert found.cycles is None
    assert found.reason.replace(str(tmp_path) + "/", "") == reason
    assert reason.split(" at ", maxsplit=1)[0] in table([found])


def test_a_word_beside_an_operation_is_refused(tmp_path: Path) -> None:
    """A data task is open while an operation sends, and takes words later: whether one comes in time to go first depends on times."""
    body = """
fn run() void { if (first) { @mov16(out, memory, .{ .async = true, .activate = next }); } else { @mov16(out, memory); sys.unblock_cmd_stream(); } }
var words: i16 = 0;
task take(word: i16) void { words += 1; if (words == 8) { sys.unblock_cmd_stream(); } }
task after() void { turns += 1; }
comptime { if (first) { @bind_data_task(take, @get_data_task_id(@get_color(1))); } }"""
    found = static(program(tmp_path, body), "run")
    assert "words may start task 'take' during the operation at" in found.reason


def test_words_that_nobody_reads_are_refused(tmp_path: Path) -> None:
    """Both send eight words and read none: they fit into the queues, and stay there."""
    found = static(
        program(
            tmp_path, "fn run() void { @mov16(out, memory); sys.unblock_cmd_stream(); }\ntask after() void {}"
        ),
        "run",
    )
    assert "16 words are left on the fabric" in found.reason


def test_a_launch_is_followed_from_where_the_last_one_ended(tmp_path: Path) -> None:
    """A counter that the program keeps is known: the second launch sends twice as often as the first."""
    body = """
fn run() void {
  turns += 3;
  step();
}
fn step() void {
  if (turns == 3) { sys.unblock_cmd_stream(); turns = 6; return; }
  turns -= 1;
  if (first) { @mov16(out, memory, .{ .async = true, .activate = next }); } else { @mov16(memory, in, .{ .async = true, .activate = next }); }
}
task after() void { step(); }"""
    compiled = program(tmp_path, body)
    times = StaticTimes(compiled.image, load_wafer("wse2"))
    first, second = times.launch("run"), times.launch("run")
    assert [first.cycles, second.cycles] == machine_cycles(compiled, "run", 2)
    assert (second.cycles or 0) > 1.5 * (first.cycles or 0)


def test_a_long_counter_keeps_both_its_words(tmp_path: Path) -> None:
    """From 70,000 in memory, which is 1 x 65,536 and 4,464, eleven turns down to 69,989."""
    body = """
var steps: u32 = 2;
fn run() void {
  steps += 69998;
  while (steps >= 69990) { steps -= 1; turns += 1; }
  sys.unblock_cmd_stream();
}
task after() void {}"""
    compiled = program(tmp_path, body)
    found = static(compiled, "run")
    assert [found.cycles] == machine_cycles(compiled, "run")
    assert (found.cycles or 0) > 11 * 4


def test_a_launch_at_once_finds_cores_at_the_end_of_the_last(tmp_path: Path) -> None:
    """The host launches as soon as all have released: whoever released last still returns from its function."""
    body = "fn run() void { turns += 1; sys.unblock_cmd_stream(); turns += 1; }\ntask after() void {}"
    compiled = program(tmp_path, body)
    times, machine = StaticTimes(compiled.image, load_wafer("wse2")), machine_cycles(compiled, "run", 2, 0)
    first = times.launch("run").cycles
    assert [first, times.launch("run", since=machine[0] + 1).cycles] == machine
    assert machine[1] > machine[0]


def test_issue_cycles_of_an_operation() -> None:
    """A step of 1.5 cycles costs 1 and 2 in turn, the first one rounded up by 999 thousandths: 10 steps cost 15."""
    assert Operation(10, 1, 1500, (), None, "").issue_cycles == 15
    assert Operation(10, 1, 1000, (), None, "").issue_cycles == 10
    assert Operation(9, 2, 1000, (), None, "").issue_cycles == 5


WORK = st.sampled_from(["", "spin(5);", "spin(11);", "@add16(memory, memory, memory);", "@mov16(memory, 7);"])
CHUNKS = st.lists(st.integers(1, 30), min_size=1, max_size=4)


def script(chunks: list[int], total: int) -> list[int]:
    """Lengths that add up to `total`."""
    found, left = [], total
    for chunk in chunks:
        found.append(min(chunk, left))
        left -= found[-1]
    return [n for n in [*found, left] if n]


@examples(25)
@given(
    st.integers(1, 60),
    st.lists(
        st.tuples(CHUNKS, CHUNKS, st.lists(WORK, min_size=3, max_size=3), st.booleans()),
        min_size=3,
        max_size=3,
    ),
)
def test_random_lines_of_cores(
    tmp_path_factory: pytest.TempPathFactory,
    total: int,
    cores: list[tuple[list[int], list[int], list[str], bool]],
) -> None:
    """Three cores pass words east in pieces of any length, with work between; asynchronous ones end in a task that continues.

    The machine lies within the bounds, and where they are one number it is the machine's.
    """
    folder = tmp_path_factory.mktemp("line")
    for x, (reads, writes, work, is_async) in enumerate(cores):
        steps = [("in", n) for n in script(reads, total)] if x > 0 else []
        steps += [("out", n) for n in script(writes, total)] if x < 2 else []
        (folder / f"pe{x}.csl").write_text(line_core(x, steps, work, is_async))
    (folder / "layout.csl").write_text(LINE)
    compiled = compile_program(folder / "layout.csl", memcpy=True)
    found = static(compiled, "run")
    (cycles,) = machine_cycles(compiled, "run")
    assert found.bounds[0] <= cycles <= found.bounds[1]
    assert found.cycles is not None, found.reason


LINE = """
layout {
  @set_rectangle(3, 1);
  @set_tile_code(0, 0, "pe0.csl", .{});
  @set_tile_code(1, 0, "pe1.csl", .{});
  @set_tile_code(2, 0, "pe2.csl", .{});
  @set_color_config(0, 0, @get_color(0), .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ EAST } } });
  @set_color_config(1, 0, @get_color(0), .{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } } });
  @set_color_config(1, 0, @get_color(1), .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ EAST } } });
  @set_color_config(2, 0, @get_color(1), .{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } } });
  @export_name("run", fn()void);
}
"""


def line_core(x: int, steps: list[tuple[str, int]], work: list[str], is_async: bool) -> str:
    """A core of a line: its steps one after the other, each in a branch of a task that counts them."""
    options = ", .{ .async = true, .activate = next }" if is_async else ""
    after = "" if is_async else " @activate(next);"
    arms = []
    for i, (kind, n) in enumerate(steps):
        call = (
            f"@mov16(memory, @set_dsd_length(in, {n}){options})"
            if kind == "in"
            else f"@mov16(out, @set_dsd_length(memory, {n}){options})"
        )
        arms.append(f"  if (step == {i}) {{ step += 1; {work[i % 3]} {call};{after} return; }}")
    body = "\n".join(arms)
    return f"""
const sys = @import_module("<memcpy/memcpy>", @import_module("<memcpy/get_params>", .{{ .width = 3, .height = 1 }}).get_params({x}));
const next: local_task_id = @get_local_task_id(9);
const out = @get_dsd(fabout_dsd, .{{ .fabric_color = @get_color({x % 2}), .extent = 1, .output_queue = @get_output_queue(2) }});
const in = @get_dsd(fabin_dsd, .{{ .fabric_color = @get_color({(x + 1) % 2}), .extent = 1, .input_queue = @get_input_queue(2) }});
var data = @zeros([64]i16);
const memory = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{60}} -> data[i] }});
var step: i16 = 0;
var sum: i16 = 0;
fn spin(n: i16) void {{
  for (@range(i16, n)) |i| {{ sum += i; }}
}}
fn run() void {{ step = 0; @activate(next); }}
task advance() void {{
{body}
  sys.unblock_cmd_stream();
}}
comptime {{
  @bind_local_task(advance, next);
  @export_symbol(run);
}}
"""


EXCHANGE = """
param x: u16;
param last: u16;
const sys = @import_module("<memcpy/memcpy>", @import_module("<memcpy/get_params>", .{ .width = 2, .height = 1 }).get_params(0));
const next: local_task_id = @get_local_task_id(9);
const even = x % 2 == 0;
const out = @get_dsd(fabout_dsd, .{ .fabric_color = @get_color(if (even) 0 else 1), .extent = 12, .output_queue = @get_output_queue(2) });
const in = @get_dsd(fabin_dsd, .{ .fabric_color = @get_color(if (even) 1 else 0), .extent = 12, .input_queue = @get_input_queue(2) });
var data = @zeros([12]i16);
var mine = @zeros([12]i16);
var data_ptr: [*]i16 = &data;
const received = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{12} -> data[i] });
const memory = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{12} -> mine[i] });
var steps: i16 = 0;
var open: i16 = 0;
fn run() void {
  steps += 5;
  begin();
}
fn begin() void {
  open = 0;
  if (x < last) { open += 1; @mov16(out, memory, .{ .async = true, .activate = next }); }
  if (x > 0) { open += 1; @add16(received, received, in, .{ .async = true, .activate = next }); }
}
task after() void {
  open -= 1;
  CHECK
  if (open > 0) { return; }
  steps -= 1;
  if (steps == 0) { sys.unblock_cmd_stream(); return; }
  @add16(memory, memory, received);
  begin();
}
comptime {
  @bind_local_task(after, next);
  @export_symbol(data_ptr, "data");
  @export_symbol(run);
}
"""
EXCHANGE_LAYOUT = """
param cols: u16;
layout {
  @set_rectangle(cols, 2);
  for (@range(u16, cols)) |x| {
    const kind = if (x == 0) 0 else if (x == cols - 1) 4 + x % 2 else 2 + x % 2;
    for (@range(u16, 2)) |y| {
      @set_tile_code(x, y, "pe.csl", .{ .x = kind, .last = if (x == cols - 1) 0 else 9 });
      if (x < cols - 1) { @set_color_config(x, y, @get_color(x % 2), .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ EAST } } }); }
      if (x > 0) { @set_color_config(x, y, @get_color((x + 1) % 2), .{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } } }); }
    }
  }
  @export_name("run", fn()void);
  @export_name("data", [*]i16, true);
}
"""


def exchange(folder: Path, cols: int, check: str = "", arch: str = "wse2") -> CompiledProgram:
    """A line in which every core sends to the east and adds what comes from the west, both at once."""
    (folder / "layout.csl").write_text(EXCHANGE_LAYOUT)
    (folder / "pe.csl").write_text(EXCHANGE.replace("CHECK", check))
    return compile_program(
        folder / "layout.csl", memcpy=True, arch=arch, params={"cols": cols}, out=folder / "out"
    )


def recorded(compiled: CompiledProgram) -> Recorded:
    image = compiled.image
    session = Session(image, load_wafer(compiled.options.arch), schedule=True)
    session.launch(0, 0, image.cols, image.rows, "run")
    assert session.advance("commands").reason == "asked"
    return Recorded(session.picks(), [Call("run")], [(0, *written(compiled))])


def written(compiled: CompiledProgram) -> tuple[int, int]:
    """Words of the array that the host writes."""
    cls = compiled.image.classes[0]
    (pointer,) = (s.address for s in cls.symbols if s.name == "data")
    ((first, words),) = ((a, w) for a, w in cls.memory if a <= pointer < a + len(w))
    at = int(words[pointer - first])
    return at, at + 12


def test_two_operations_at_once_are_followed_in_their_order(tmp_path: Path) -> None:
    """A core that sends and receives at once does not qualify for max-plus; that no data decide its course is proved all the same."""
    compiled = exchange(tmp_path, 6)
    assert "two operations share the core" in static(compiled, "run").reason
    assert not [
        v.reason for v in decided_by_data(compiled.image, load_wafer("wse2"), recorded(compiled)) if v.reason
    ]


def test_a_branch_on_a_word_is_found_in_a_recorded_run(tmp_path: Path) -> None:
    """The zeros of the recorded run never take the branch; the sentence names it."""
    compiled = exchange(tmp_path, 6, "if (data[2] == 7) { open += 1; }")
    reasons = {v.reason for v in decided_by_data(compiled.image, load_wafer("wse2"), recorded(compiled))}
    assert any(reason.endswith("(after) depends on data of the host") for reason in reasons)


def test_a_core_that_asks_where_it_lies_is_followed_from_there(tmp_path: Path) -> None:
    """The branch on data is in the way of the second column alone, and words say on which column a core lies."""
    column = '@import_module("<layout>").get_x_coord()'
    body = """
fn run() void {
  if (COLUMN == WHICH) { if (data[3] > 0) { turns += 1; } }
  sys.unblock_cmd_stream();
}
task after() void {}"""
    for which, found in ((1, True), (2, False)):
        text = body.replace("COLUMN", column).replace("WHICH", str(which))
        compiled = program(tmp_path, text)
        verdicts = decided_by_data(compiled.image, load_wafer("wse2"), recorded(compiled))
        assert any("depends on data of the host" in verdict.reason for verdict in verdicts) == found


@pytest.mark.thinned(1)
@pytest.mark.parametrize("arch", ARCHES)
def test_few_of_many_columns_give_the_cycles_of_all(tmp_path: Path, arch: str) -> None:
    """Forty columns repeat in pairs: eight pairs and the ends are run, two launches, as the machine runs all."""
    compiled = exchange(tmp_path, 40, arch=arch)
    found = fold(compiled.image, load_wafer(arch), [Call("run"), Call("run")])
    assert (found.cols, found.rows) < (40, 2)
    assert found.cycles == machine_cycles(compiled, "run", 2)
    assert [launch.cycles for launch in static_launches(tmp_path / "out", ["run", "run"])] == found.cycles


def test_lines_that_fall_out_of_step_are_not_folded() -> None:
    """Sums that travel east reach every column later: the machine on few columns does not have the cycles of many."""
    compiled = compile_program(
        PROGRAMS / "gemv_layout.csl", memcpy=True, params={"cols": 40, "rows": 1, "m": 4, "n": 4}
    )
    found = fold(compiled.image, load_wafer("wse2"), [Call("compute")])
    assert found.cycles == []
    assert "out of step" in found.reason


def test_command_file_says_what_is_static(tmp_path: Path) -> None:
    """`csl static` without a launch, without a function that exists, and with arguments that are no integers end with a sentence."""
    exchange(tmp_path, 4)
    with pytest.raises(WseError, match=r"use --launch NAME for one of the functions of .*: run\("):
        static_launches(tmp_path / "out", [])
    with pytest.raises(WseError, match="no core has a function 'walk'"):
        static_launches(tmp_path / "out", ["walk"])
    with pytest.raises(WseError, match="--launch is 'run,two'"):
        static_launches(tmp_path / "out", ["run,two"])
