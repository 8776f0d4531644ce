"""The sanitizer: what it finds, with line, core and cycle, and that it finds nothing in programs that are right and changes no cycle."""

from pathlib import Path

import numpy as np
import pytest

from wse_sim.csl.host.memory import memory_map
from wse_sim.errors import ProgramError
from wse_sim.fabric.vm.findings import Finding
from wse_sim.fabric.vm.session import Session
from wse_sim.hardware.wafer import load_wafer

from .machine import compile_text
from .test_waits import HEAD, HEAR, HEARS, LAYOUT, MID, SEND, SENDS, color

ONE = """
var a: [4]u16; var b = @zeros([4]u16); var wide = @zeros([2]u32); var n: i16 = 4; var s: u16 = 0; var never: f32; var got: f32 = 0.0;
var i: i16 = 0; var p: [*]u16 = &b;
const da = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> a[i] });
const db = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> b[i] });
fn beyond() void { i = 0; while (i <= n) : (i += 1) { s += b[i]; } }
fn writes() void { wide[n] = 7; }
fn pointer() void { p[n + 1] = 3; }
fn unwritten() void { @add16(db, da, 1); }
fn never_read() void { got = never; }
fn vector() void { const far = @set_dsd_length(db, @as(u16, n) + 2); @mov16(far, 3); }
fn fine() void { @mov16(da, 3); @add16(db, da, 1); i = 0; while (i < n) : (i += 1) { s += b[i]; } never = 1.0; got = never; p[3] = 1; }
comptime { @export_symbol(beyond); @export_symbol(writes); @export_symbol(pointer); @export_symbol(unwritten); @export_symbol(never_read);
  @export_symbol(vector); @export_symbol(fine); }
"""


def run_one(folder: Path, name: str, *, sanitize: bool = True) -> Session:
    session = Session(compile_text(folder, ONE).image, load_wafer("wse2"), sanitize=sanitize)
    session.launch(0, 0, 1, 1, name, arm=False)
    assert session.advance().reason == "idle"
    return session


@pytest.mark.parametrize(
    ("name", "kind", "line", "text"),
    [
        ("beyond", "bounds", 6, "reads word 4 of 'b', which has words 0 to 3"),
        ("writes", "bounds", 7, "writes word 8 of 'wide', which has words 0 to 3"),
        ("pointer", "bounds", 8, "writes word 5 of 'b'"),
        ("unwritten", "unwritten", 9, "reads word 0 of 'a', which was never written"),
        ("never_read", "unwritten", 10, "reads word 0 of 'never', which was never written"),
        ("vector", "bounds", 11, "a vector operation that begins in 'b' writes"),
    ],
)
def test_one_fault_of_each_kind(tmp_path: Path, name: str, kind: str, line: int, text: str) -> None:
    (found,) = run_one(tmp_path, name).findings(at_end=True)
    assert found.kind == kind
    assert found.where.endswith(f"pe.csl:{line} ({name})")
    assert text in found.text
    assert (found.x, found.y) == (0, 0)
    assert 0 < found.cycle < 300


def test_a_right_program_has_no_finding_and_the_same_cycles_and_memory(tmp_path: Path) -> None:
    watched, plain = run_one(tmp_path, "fine"), run_one(tmp_path, "fine", sanitize=False)
    assert watched.findings(at_end=True) == []
    assert watched.cycle == plain.cycle
    assert np.array_equal(watched.machine.memory, plain.machine.memory)
    with pytest.raises(ProgramError, match="sanitize=True"):
        plain.findings()


@pytest.mark.parametrize("sanitize", [False, True])
def test_boxes_of_three_dimensions_are_watched_without_a_trace(tmp_path: Path, sanitize: bool) -> None:
    """Words 6 i + 3 j + k of one array, i, j, k below 2, are those of another plus one: a watched walk leaves all counters as
    they were.
    """
    text = """
      var a: [12]u16; var b = @zeros([12]u16);
      const all = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{12} -> a[i] });
      const from = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j, k|{2, 2, 2} -> a[6 * i + 3 * j + k] });
      const into = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j, k|{2, 2, 2} -> b[6 * i + 3 * j + k] });
      fn box() void { @mov16(all, 6); @add16(into, from, 1); }
      comptime { @export_symbol(box); @export_symbol(b); }
    """
    session = Session(compile_text(tmp_path, text).image, load_wafer("wse2"), sanitize=sanitize)
    session.launch(0, 0, 1, 1, "box", arm=False)
    assert session.advance().reason == "idle"
    place = {s.name: s for s in session.image.classes[0].symbols}["b"]
    assert session.peek(0, 0, place.address, 12).tolist() == [7, 7, 0, 7, 7, 0, 7, 7, 0, 7, 7, 0]
    assert not sanitize or session.findings(at_end=True) == []


def test_what_the_host_writes_is_written(tmp_path: Path) -> None:
    session = Session(compile_text(tmp_path, ONE).image, load_wafer("wse2"), sanitize=True)
    place = {s.name: s for s in session.image.classes[0].symbols}["a"]
    assert session.unwritten(0, 0, 1, 1, place.address, 4) == [(0, 0, place.address)]
    session.poke(0, 0, place.address, [1, 2, 3])
    assert session.unwritten(0, 0, 1, 1, place.address, 4) == [(0, 0, place.address + 3)]
    session.poke_region(0, 0, 1, 1, place.address, [[[1, 2, 3, 4]]])
    session.launch(0, 0, 1, 1, "unwritten", arm=False)
    session.advance()
    assert session.findings(at_end=True) == []


def run_three(folder: Path, layout: str, left: str, right: str, mid: str = MID) -> list[Finding]:
    program = compile_text(folder, "", layout, left=HEAD + left, mid=mid, right=HEAD + right, idle=MID)
    session = Session(program.image, load_wafer("wse2"), sanitize=True)
    for x in range(program.width):
        session.launch(x, 0, 1, 1, "f", arm=False)
    session.advance()
    return session.findings(at_end=True)


def left_over(folder: Path, taken: int) -> list[Finding]:
    """Eight words are sent, one in every cycle, and `taken` of them are read."""
    few = (
        HEAR.replace(".extent = 8", f".extent = {taken}")
        + f"\nconst few = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{taken}}} -> a[i] }});"
    )
    return run_three(
        folder, LAYOUT.format(through="EAST"), SEND, few.replace("@mov32(mem, in)", "@mov32(few, in)")
    )


def test_words_that_nothing_reads_are_named_with_the_line_that_sent_them(tmp_path: Path) -> None:
    """Eight words are sent and four are taken; the rest is in the queue, the fifth at its head."""
    found = left_over(tmp_path, 4)
    assert {f.kind for f in found} == {"unread words"}
    assert all("left.csl" in f.where and (f.x, f.y) == (0, 0) for f in found)
    assert sum(f.times for f in found) == 4
    (last,) = left_over(tmp_path, 7)  # the eighth word left three cycles after the fifth
    assert (last.times, last.cycle) == (1, found[0].cycle + 3)


MEETING = """
const c = @get_color(3);
layout {
  @set_rectangle(4, 1);
  @set_tile_code(0, 0, "left.csl", .{}); @set_tile_code(1, 0, "mid.csl", .{}); @set_tile_code(2, 0, "idle.csl", .{});
  @set_tile_code(3, 0, "right.csl", .{});
  @set_color_config(0, 0, c, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ EAST } } });
  @set_color_config(1, 0, c, .{ .routes = .{ .rx = .{ WEST, EAST }, .tx = .{ RAMP } } });
  @set_color_config(2, 0, c, .{ .routes = .{ .rx = .{ EAST }, .tx = .{ WEST } } });
  @set_color_config(3, 0, c, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ WEST } } });
}
"""
ONCE = (
    color(SEND.split("fn f")[0], "c", 1)
    + "const one = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{1} -> a[i] });"
)
TAKES = (
    HEAD
    + color(HEARS, "c").replace("= 8", "= 2")
    + "const two = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{2} -> a[i] });"
)


def test_two_senders_whose_words_meet_by_luck(tmp_path: Path) -> None:
    """Both send in one cycle and one is a link nearer: two cycles later, and the other word is first."""
    sends = ONCE + "fn f() void { @mov32(out, one); }"
    found = run_three(tmp_path, MEETING, sends, sends, TAKES + "fn f() void { @mov32(two, in); }")
    (luck,) = [f for f in found if f.kind == "race"]
    assert "two senders on color 3" in luck.text
    assert "their order is a race" in luck.text
    assert "router of core (1, 0)" in luck.text


def test_two_senders_in_an_order_that_takes_longer_than_light_are_no_finding(tmp_path: Path) -> None:
    """The right core sends a hundred cycles later: it may have waited for the left one."""
    late = "var k: u16 = 0; fn f() void { while (k < 40) : (k += 1) {} @mov32(out, one); }"
    found = run_three(
        tmp_path,
        MEETING,
        ONCE + "fn f() void { @mov32(out, one); }",
        ONCE + late,
        TAKES + "fn f() void { @mov32(two, in); }",
    )
    assert found == []


def test_a_route_that_is_turned_between_two_words_decides_their_order(tmp_path: Path) -> None:
    """The middle core hears the right one only after it has turned the route: no luck, however close the words were sent."""
    layout = MEETING.replace("rx = .{ WEST, EAST }", "rx = .{ WEST }")
    turns = """
const config = @import_module("<tile_config>");
fn f() void { @mov32(first, in); turn(); @mov32(first, in); }
fn turn() void { config.color_config.reset_routes(c, .{ .rx = .{ EAST }, .tx = .{ RAMP } }); }
"""
    one = "const first = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{1} -> a[i] });" + turns
    mid = HEAD + color(HEARS, "c").replace("= 8", "= 1") + one
    sends = ONCE + "fn f() void { @mov32(out, one); }"
    assert run_three(tmp_path, layout, sends, sends, mid) == []


def test_two_operations_on_one_queue_and_a_thread_that_is_taken(tmp_path: Path) -> None:
    many = "var big = @zeros([200]u32); const long = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{200} -> big[i] });"
    out = color(SENDS, "c", 200) + many
    both = "fn f() void { @mov32(out, long, .{ .async = true }); @mov32(out, long, .{ .async = true }); }"
    layout = LAYOUT.format(through="EAST")
    found = run_three(tmp_path, layout, out + both, HEAR)
    (taken,) = [f for f in found if f.kind == "microthread in use"]
    assert "microthread 3 while it runs the operation of" in taken.text
    main = "fn f() void { @mov32(out, long, .{ .async = true }); @mov32(out, long); }"
    found = run_three(tmp_path, layout, out + main, HEAR)
    (shared,) = [f for f in found if f.kind == "queue shared"]
    assert "output queue 3" in shared.text


def test_the_memory_map_adds_up_and_names_the_deepest_frames(tmp_path: Path) -> None:
    """Frames of functions that are never live together share memory: the deeper chain counts."""
    text = """
var big: [100]u32; var small: u16 = 0;
fn leaf(x: u16) u16 { var buffer = @zeros([30]u16); buffer[x] = x; return buffer[x + 1]; }
fn other() void { var buffer = @zeros([10]u16); buffer[small] = 1; small += buffer[0]; }
fn top() void { var held = @zeros([6]u16); held[small] = 2; small = leaf(held[0]); other(); big[small] = 1; }
comptime { @export_symbol(top); }
"""
    image = compile_text(tmp_path, text).image
    (row,) = memory_map(image)
    cls = image.classes[0]
    assert row.code + row.variables + row.constants + row.frames + 32 + row.spare == 49_152
    assert row.code == 2 * cls.code_words
    assert row.frames == 2 * (6 + 30)
    assert row.deepest == (("top", 12), ("leaf", 60))
    assert row.symbols[0] == ("big", "[100]u32", 400)
