"""What programs of other people do, one story each: recursion, generics, pointers, structures, strings, loops with labels, libraries."""

from pathlib import Path

import numpy as np
import pytest

from .machine import Machine, compile_text


def run(folder: Path, text: str, exports: str, entry: str = "run", arch: str = "wse2") -> Machine:
    symbols = "".join(f'  @export_symbol({n}, "{n}");\n' for n in exports.split())
    machine = Machine(
        compile_text(folder, f"{text}\ncomptime {{\n{symbols}  @export_symbol({entry});\n}}\n", arch=arch)
    )
    machine.call(entry)
    return machine


def test_a_function_that_ends_by_calling_itself_loops_without_end_of_memory(tmp_path: Path) -> None:
    text = """
    var n: u16 = 5000; var total: u32 = 0;
    fn again() void { if (n > 0) { total += @as(u32, n); n -= 1; other(); } }
    fn other() void { total += 1; again(); }
    fn run() void { again(); }
    """
    assert run(tmp_path, text, "total").read("total")[0] == 5000 * 5001 // 2 + 5000


def test_a_function_that_calls_itself_in_between(tmp_path: Path) -> None:
    text = "fn fib(n: u16) u32 { if (n < 2) { return @as(u32, n); } return fib(n - 1) + fib(n - 2); }"
    text += " var x: u16 = 12; var y: u32 = 0; fn run() void { y = fib(x); }"
    assert run(tmp_path, text, "y").read("y")[0] == 144


def test_generic_functions_are_made_per_type(tmp_path: Path) -> None:
    text = """
    fn sum(comptime T: type, comptime n: u16, p: [*]T) T { var s: T = 0; for (@range(u16, n)) |i| { s += p[i]; } return s; }
    var a = [4]f32{ 0.5, 1.5, 2.0, 4.0 }; var b = [3]i16{ -4, 9, 2 }; var x: f32; var y: i16;
    fn run() void { x = sum(f32, 4, &a); y = sum(i16, 3, &b); }
    """
    machine = run(tmp_path, text, "x y")
    assert machine.read("x")[0] == 8.0
    assert machine.read("y")[0] == 7


def test_labels_leave_and_repeat_the_right_loop(tmp_path: Path) -> None:
    text = """
    var seen = @zeros([6]u16); var limit: u16 = 6;
    fn run() void {
      outer: for (@range(u16, limit)) |i| {
        var j: u16 = 0;
        while (true) : (j += 1) {
          if (j == 3 and i == 4) break :outer;
          if (j > i) continue :outer;
          seen[i] += 1;
        }
      }
    }
    """
    # i = 0..3 count to i + 1; at i = 4 the loop is left when j is 3
    assert run(tmp_path, text, "seen").read("seen").tolist() == [1, 2, 3, 4, 3, 0]


def test_values_chosen_at_run_time(tmp_path: Path) -> None:
    text = """
    var k: u16 = 2; var r = @zeros([4]i32);
    fn pick(n: u16) i32 { return switch (n) { 0 => 10, 1, 2 => -20, else => 30 }; }
    fn run() void {
      r[0] = if (k == 2) -1 else 1;
      r[1] = pick(k) + pick(0);
      r[2] = blk: { if (k > 5) break :blk @as(i32, 3); break :blk @as(i32, 4); };
      const both: bool = k == 2 and r[0] < 0;
      r[3] = @as(i32, both);
    }
    """
    assert run(tmp_path, text, "r").read("r").tolist() == [-1, -10, 4, 1]


def test_vectors_by_descriptors_that_change_while_running(tmp_path: Path) -> None:
    text = """
    var a = @zeros([12]f32); var b = @constants([12]f32, 2.0); var n: u16 = 4;
    var d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{12} -> a[i] });
    const e = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{12} -> b[i] });
    fn run() void {
      d = @set_dsd_length(d, n);
      d = @increment_dsd_offset(d, 3, f32);
      @fadds(d, @set_dsd_length(e, n), 1.0);
      const whole = @get_dsd(mem1d_dsd, .{ .base_address = &a, .extent = n + 8, .stride = 1 });
      @fmacs(whole, whole, e, 0.5);
    }
    """
    a = np.zeros(12)
    a[3:7] = 3.0
    a += 2.0 * 0.5
    machine = run(tmp_path, text, "a")
    assert machine.read("a").tolist() == a.tolist()


def test_map_calls_a_function_per_element(tmp_path: Path) -> None:
    text = """
    const math = @import_module("<math>");
    var a = [6]f32{ 1.0, 4.0, 9.0, 16.0, 25.0, 36.0 }; var b = @zeros([3]f32); var t: f32 = 0.0;
    const every_other = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> a[2 * i + 1] });
    const out = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> b[i] });
    fn plus(x: f32, scale: f32, sum: *f32) f32 { return sum.* + x * scale; }
    fn run() void { @map(math.sqrt_f32, every_other, out); @map(plus, out, 10.0, &t, &t); }
    """
    machine = run(tmp_path, text, "b t")
    assert machine.read("b").tolist() == [2.0, 4.0, 6.0]
    assert machine.read("t")[0] == 120.0


def test_structures_unions_enums_and_complex_numbers(tmp_path: Path) -> None:
    text = """
    const complex = @import_module("<complex>");
    const mode = enum(u16) { slow, fast = 7 };
    const word = union { whole: u32, part: u16 };
    var w: word; var m: mode = mode.slow; var re: f32; var im: f32; var low: u16; var number: u16;
    fn run() void {
      const z = complex.multiply_complex(complex.get_complex_64(1.0, 2.0), complex.get_complex_64(3.0, -1.0));
      re = z.real; im = z.imag;
      w.whole = 0x12345678; low = w.part;
      if (m == mode.slow) { m = mode.fast; }
      number = @as(u16, m);
    }
    """
    machine = run(tmp_path, text, "re im low number")
    assert [machine.read(n)[0] for n in ("re", "im", "low", "number")] == [5.0, 5.0, 0x5678, 7]


def test_control_words_have_the_bits_of_the_hardware(tmp_path: Path) -> None:
    """Command k < 3 is at bit 22 + 3k, else at 3k - 8; its ignore bit at 24 + 3k (k < 2), else at 3k - 6; no task: 31 at bit 16."""
    text = """
    const ctrl = @import_module("<control>"); const op = ctrl.opcode; var w = @zeros([3]u32); var data: u16 = 6;
    fn run() void {
      w[0] = ctrl.encode_single_payload(op.SWITCH_ADV, false, @get_control_task_id(40), data);
      w[1] = ctrl.encode_payload(2, [2]op{ op.SWITCH_ADV, op.TEARDOWN }, [2]bool{ true, false }, true, {});
      w[2] = ctrl.encode_control_task_payload(@get_control_task_id(9));
    }
    """
    ignored = sum(1 << b for b in (0, 3, 6, 9, 12, 15))
    expected = [40 << 16 | 1 << 22 | 6, 31 << 16 | 1 << 22 | 1 << 24 | 3 << 25 | ignored, 9 << 16]
    assert run(tmp_path, text, "w").read("w").tolist() == expected


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_code_for_the_other_generation_is_not_looked_at(tmp_path: Path, arch: str) -> None:
    text = """
    var r: u16 = 0;
    fn run() void { if (@is_arch("wse3")) { r = 3; only_there(); } else { r = 2; } }
    const only_there = if (@is_arch("wse3")) there else nothing_declared;
    fn there() void { r += 30; }
    """
    assert run(tmp_path, text, "r", arch=arch).read("r")[0] == (33 if arch == "wse3" else 2)


def test_text_in_the_log(tmp_path: Path) -> None:
    text = """
    const p = @import_module("<simprint>"); var n: u16 = 42; var x: f32 = 0.5;
    const quiet = @import_module("<simprint>", .{ .enable = false });
    fn run() void { p.fmt("{d} {X} {b} {f} {{}", .{ n, n, n, x }); p.print_string("a{b}\\n"); quiet.print_string("never"); p.fmt_with_coords("n={d}", .{ n }); }
    """
    machine = run(tmp_path, text, "n")
    found = "".join(q.text for q in machine.session.prints())
    assert found == "42 002A 0000000000101010 0.5 {}\na{b}\nPE(0,0): n=42\n"


def test_a_box_of_a_matrix_by_extents_and_jumps(tmp_path: Path) -> None:
    """The inner 2 x 3 of a 4 x 5 matrix: after three elements the address moves over the two of the frame."""
    text = """
    var a = @zeros([20]f32); var base: [*]f32 = &a;
    fn run() void {
      const box = @get_dsd(mem4d_dsd, .{ .base_address = &base[6], .stride = .{ 1, 3 }, .extent = .{ 2, 3 } });
      @fmovs(box, 1.5);
    }
    """
    wanted = np.zeros((4, 5), np.float32)
    wanted[1:3, 1:4] = 1.5
    assert np.array_equal(run(tmp_path, text, "a").read("a").reshape(4, 5), wanted)


def test_an_arriving_color_without_a_queue(tmp_path: Path) -> None:
    """Older programs give a color and no queue: both ends of a loop through the router find one."""
    text = """
    const c = @get_color(4); var a = [3]f32{ 1.0, 2.0, 3.0 }; var b = @zeros([3]f32);
    const from = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> a[i] });
    const to = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> b[i] });
    const out = @get_dsd(fabout_dsd, .{ .extent = 3, .fabric_color = c, .output_queue = @get_output_queue(1) });
    const in = @get_dsd(fabin_dsd, .{ .extent = 3, .fabric_color = c });
    fn run() void { @fmovs(out, from, .{ .async = true }); @fmovs(to, in); }
    comptime { @set_local_color_config(c, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ RAMP } } }); }
    """
    assert run(tmp_path, text, "a b").read("b").tolist() == [1.0, 2.0, 3.0]


def test_division_by_a_known_number_costs_no_division(tmp_path: Path) -> None:
    """A divisor of run time takes the loop of shifts and subtractions (24 cycles), a known one far less."""
    text = """
    var n: u16 = 77; var d: u16 = 8; var r: u16 = 0;
    fn slow() void { r = n / d; }
    fn quick() void { r = n / 8; }
    comptime { @export_symbol(slow); }
    """
    machine = run(tmp_path, text, "n d r", entry="quick")
    assert machine.read("r")[0] == 9
    assert machine.call("slow") - machine.call("quick") > 15
