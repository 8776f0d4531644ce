"""Programs in other styles than the public examples: streams under other names, registers by hand, tables of structures, bits of values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from wse_sim.csl import CslError, compile_program
from wse_sim.csl.host.arrays import HostError, MemcpyDataType, MemcpyOrder
from wse_sim.csl.host.runtime import SdkRuntime

from .machine import Machine, compile_text

STREAMS = """
param width: i16; param height: i16;
const up: color = @get_color(5); const down: color = @get_color(6);
const host = @import_module("<memcpy/get_params>", .{ .width = width, .height = height, .MEMCPYH2D_1 = up, .MEMCPYD2H_1 = down });
fn place(x: i16, y: i16) void {
  @set_tile_code(x, y, "pe.csl", .{ .host = host.get_params(x), .cfg = .{ .scale = 2.0, .colors = .{ .feed = up, .drain = down } } });
}
layout {
  @set_rectangle(width, height);
  var y: i16 = 0;
  while (y < height) : (y += 1) { for (@range(i16, width)) |x| { place(x, y); } }
  @export_name("n", [*]u16, true);
}
"""
STREAMED = """
param host: comptime_struct; param cfg: comptime_struct;
const sys = @import_module("<memcpy/memcpy>", host);
const iq = @get_input_queue(3); const oq = @get_output_queue(4);
const id = if (@is_arch("wse3")) @get_data_task_id(iq) else @get_data_task_id(cfg.colors.feed);
const out = @get_dsd(fabout_dsd, .{ .extent = 1, .fabric_color = cfg.colors.drain, .output_queue = oq });
var n = @zeros([3]u16); const where: [*]u16 = &n;
task take(x: f32) void { n[0] += 1; @fmovs(out, x * cfg.scale + 1.0); }
comptime {
  @bind_data_task(take, id);
  @initialize_queue(iq, .{ .color = cfg.colors.feed });
  if (@is_arch("wse3")) { @initialize_queue(oq, .{ .color = cfg.colors.drain }); }
  @export_symbol(where, "n");
}
"""
HALF = MemcpyDataType.MEMCPY_16BIT


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_streams_are_found_by_what_the_layout_binds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arch: str
) -> None:
    """No parameter is called MEMCPY...: the colors are those that <memcpy/get_params> was given; every core answers 2 x + 1."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "layout.csl").write_text(STREAMS)
    (tmp_path / "pe.csl").write_text(STREAMED)
    program = compile_program(
        "layout.csl", arch=arch, params={"width": 3, "height": 2}, memcpy=True, out="out"
    )
    assert program.image.host_colors == (5, 6)
    runner = SdkRuntime("out")
    runner.load()
    runner.run()
    for order, (x, y, w, h, k) in ((MemcpyOrder.ROW_MAJOR, (0, 0, 3, 2, 4)), (MemcpyOrder.COL_MAJOR, (1, 1, 2, 1, 3))):  # fmt: skip
        sent = np.arange(w * h * k, dtype=np.float32)
        got = np.zeros_like(sent)
        runner.memcpy_h2d(
            5,
            sent,
            x,
            y,
            w,
            h,
            k,
            streaming=True,
            order=order,
            nonblock=True,
            data_type=MemcpyDataType.MEMCPY_32BIT,
        )
        runner.memcpy_d2h(
            got, 6, x, y, w, h, k, streaming=True, order=order, data_type=MemcpyDataType.MEMCPY_32BIT
        )
        assert got.tolist() == (2 * sent + 1).tolist()
    counts = np.zeros(6, np.uint32)
    n = runner.get_id("n")
    runner.memcpy_d2h(counts, n, 0, 0, 3, 2, 1, streaming=False, data_type=HALF, order=MemcpyOrder.ROW_MAJOR)
    assert counts.tolist() == [4, 4, 4, 4, 4 + 3, 4 + 3]
    x = np.zeros(6, np.uint32)
    calls = [
        (lambda: runner.memcpy_h2d(7, x, 0, 0, 3, 2, 1, streaming=True, order=MemcpyOrder.ROW_MAJOR, data_type=MemcpyDataType.MEMCPY_32BIT), "color 7 is not a host stream; the program binds 5, 6"),
        (lambda: runner.memcpy_d2h(x, n, 0, 0, 3, 2, 1, streaming=True, order=MemcpyOrder.ROW_MAJOR, data_type=MemcpyDataType.MEMCPY_32BIT), "is not a host stream"),
        (lambda: runner.memcpy_d2h(x, "n", 0, 0, 3, 2, 1, streaming=False, order=MemcpyOrder.ROW_MAJOR, data_type=MemcpyDataType.MEMCPY_32BIT), "is 'n'; it must be an integer"),
        (lambda: runner.memcpy_d2h(x, n, 0, 0, 3.5, 2, 1, streaming=False, order=MemcpyOrder.ROW_MAJOR, data_type=MemcpyDataType.MEMCPY_32BIT), "width is 3.5"),
        (lambda: runner.memcpy_d2h(x, n, 0, 0, 3, 2, 1, streaming=False, order="C", data_type=MemcpyDataType.MEMCPY_32BIT), "order is 'C'; it must be MemcpyOrder.ROW_MAJOR or"),
        (lambda: runner.memcpy_d2h(x, n, 0, 0, 3, 2, 1, streaming=False, data_type=16, order=MemcpyOrder.ROW_MAJOR), "data_type is 16; it must be"),
        # three 16-bit words, and one more that fills the last word of 32 bits; five do not go in
        (lambda: runner.memcpy_h2d(n, np.zeros(5, np.uint32), 0, 0, 1, 1, 5, streaming=False, data_type=HALF, order=MemcpyOrder.ROW_MAJOR), r"needs 5 words, and 'n' of core \(0, 0\) has 3"),
        (lambda: runner.memcpy_h2d(n, np.zeros(3, np.uint32), 2, 1, 1, 1, 3, streaming=False, order=MemcpyOrder.ROW_MAJOR, data_type=MemcpyDataType.MEMCPY_32BIT), r"needs 6 words, and 'n' of core \(2, 1\) has 3"),
    ]  # fmt: skip
    for call, words in calls:
        with pytest.raises(HostError, match=words):
            call()
    runner.memcpy_h2d(
        n,
        np.zeros(2, np.uint32),
        0,
        0,
        1,
        1,
        2,
        streaming=False,
        order=MemcpyOrder.ROW_MAJOR,
        data_type=MemcpyDataType.MEMCPY_32BIT,
    )
    runner.stop()


def run(folder: Path, text: str, exports: str, **files: str) -> Machine:
    symbols = "".join(f'@export_symbol({n}, "{n}"); ' for n in exports.split())
    machine = Machine(
        compile_text(folder, f"{text}\ncomptime {{ {symbols} @export_symbol(run); }}\n", **files)
    )
    machine.session.advance()  # what comptime blocks load
    machine.call("run")
    return machine


def test_circular_buffers_and_boxes_through_registers(tmp_path: Path) -> None:
    """Element k of a circular buffer of n is k mod n; the box takes rows 1 and 2, columns 0 and 2."""
    text = """
    var a = [5]i16{ 0, 1, 2, 3, 4 }; var f = [4]f32{ 1.0, 2.0, 3.0, 4.0 }; var box = [3, 4]i16{ 0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23 };
    var x = @zeros([12]i16); var y = @zeros([7]f32); var z = @zeros([4]i16);
    const whole = @get_dsd(circbuf_dsd, .{ .base_address = &a, .extent = 12 });
    const part = @get_dsd(circbuf_dsd, .{ .base_address = &f[1], .extent = 7, .wraparound = 3 });
    const odd = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{2, 2} -> box[i + 1, 2 * j] });
    const xd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{12} -> x[i] }); const yd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{7} -> y[i] });
    const zd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> z[i] });
    const r = @get_dsr(dsr_src1, 2); const s = @get_dsr(dsr_src1, 3); const q = @get_dsr(dsr_src1, 4);
    comptime { @load_to_dsr_xdsr(s, @get_xdsr(3), part); }
    fn run() void {
      @load_to_dsr_xdsr(r, @get_xdsr(2), whole); @load_to_dsr_xdsr_sr(q, @get_xdsr(4), .{ @get_sr(0), @get_sr(1) }, odd);
      @mov16(xd, r); @fmovs(yd, s); @mov16(zd, q);
    }
    """
    machine = run(tmp_path, text, "x y z")
    assert machine.read("x").tolist() == [k % 5 for k in range(12)]
    assert machine.read("y").tolist() == [2.0 + k % 3 for k in range(7)]
    assert machine.read("z").tolist() == [10, 12, 20, 22]


def test_a_fifo_in_registers_of_the_program(tmp_path: Path) -> None:
    """What goes in through one register comes out through the other, although nobody names the FIFO."""
    text = """
    var buffer = @zeros([8]i16); var a = [5]i16{ 1, 2, 3, 4, 5 }; var b = @zeros([5]i16);
    const fifo = @allocate_fifo(buffer, .{ .dest = @get_dsr(dsr_dest, 4), .src = @get_dsr(dsr_src1, 4), .xdsr = @get_xdsr(1) });
    const ad = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{5} -> a[i] }); const bd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{5} -> b[i] });
    const push = @get_dsr(dsr_fifo_dest, 4); const pop = @get_dsr(dsr_fifo_src1, @get_dsr(dsr_src1, 4));
    fn run() void { @mov16(push, ad); @mov16(bd, pop); }
    """
    assert run(tmp_path, text, "b").read("b").tolist() == [1, 2, 3, 4, 5]


def test_bits_of_structures_and_arrays(tmp_path: Path) -> None:
    """The low word is the first field, at compile time as at run time; 1.0 has the words 0 and 0x3f80."""
    text = """
    const H = packed struct { lo: u16, hi: i16 };
    const known = @bitcast(H, @as(u32, 0xffff0003)); const words = @bitcast([2]u16, @as(f32, 1.0)); const two = @bitcast(f32, [2]u16{ 0, 0x4000 });
    var later: u32 = 0x12345678; var back: u32; var o = @zeros([4]i16); var f: f32;
    fn run() void {
      o[0] = known.hi; o[1] = @as(i16, known.lo); o[2] = @as(i16, words[1]); f = two;
      const h = @bitcast(H, later); o[3] = h.hi; back = @bitcast(u32, H{ .lo = 1, .hi = 2 });
    }
    """
    machine = run(tmp_path, text, "o f back")
    assert machine.read("o").tolist() == [-1, 3, 0x3F80, 0x1234]
    assert machine.read("f")[0] == 2.0
    assert machine.read("back")[0] == 0x20001


def test_fields_of_packed_structures_share_words(tmp_path: Path) -> None:
    """The first field has the lowest bits, at compile time, in memory, in registers and through pointers; neighbours keep their bits."""
    text = """
    const E = enum(u3) { A, B = 5 }; const In = packed struct { p: bool, q: i5 };
    const H = packed struct { a: u4, s: i3, e: E, in: In, w: u17, f: f32, z: i2 };
    const U = union { w: u16, h: packed struct { lo: u4, hi: u12 } };
    const known = @bitcast(packed struct { lo: u4, hi: u12 }, @as(u16, 0xabc5)); const back = @bitcast(u12, packed struct { a: u8, b: u4 }{ .a = 2, .b = 1 });
    const start = H{ .a = 9, .s = -2, .e = E.B, .in = In{ .p = true, .q = -7 }, .w = 0x1abcd, .f = 1.5, .z = -1 };
    var g: H = start; var t = [2]H{ start, start }; var u = U{ .w = 0x1234 }; var o = @zeros([16]i32); var n: i16 = 3; var j: u16 = 1;
    fn sum(h: H) i32 { return @as(i32, h.w) + @as(i32, h.z); }
    fn run() void {
      o[0] = @as(i32, known.hi); o[1] = @as(i32, back); o[2] = @as(i32, g.a) + 100 * @as(i32, g.s); o[3] = @as(i32, @as(u16, g.e)); o[4] = g.in.q;
      o[5] = @as(i32, g.w); o[6] = @as(i32, 2.0 * g.f); o[7] = sum(g);
      var h: H = g; h.s = @as(i3, n - 4); h.in = In{ .p = false, .q = @as(i5, n) }; h.f = @as(f32, n); o[8] = @as(i32, h.a) + 100 * @as(i32, h.s) + 1000 * @as(i32, h.in.q);
      t[j].w = 5; const p = &t[j]; p.w += 1; o[9] = @as(i32, t[j].w) + 100 * @as(i32, t[j].z); o[10] = @as(i32, t[0].w);
      o[11] = @as(i32, u.h.hi); u.h.lo = 15; o[12] = @as(i32, u.w);
      const l = @bitcast(packed struct { lo: u4, hi: u12 }, u.w); o[13] = @as(i32, l.hi); o[14] = @as(i32, @bitcast(u16, l)); o[15] = @as(i32, h.f);
    }
    """
    wanted = [
        0xABC,
        0x102,
        -191,
        5,
        -7,
        0x1ABCD,
        3,
        0x1ABCC,
        2909,
        -94,
        0x1ABCD,
        0x123,
        0x123F,
        0x123,
        0x123F,
        3,
    ]
    assert run(tmp_path, text, "o").read("o").tolist() == wanted


def test_a_failed_assertion_shows_its_condition(tmp_path: Path) -> None:
    text = "var n: u16 = 3; fn run() void { @assert(n + 1 > 4); }\ncomptime { @export_symbol(run); }"
    machine = Machine(compile_text(tmp_path, text))
    machine.session.launch(0, 0, 1, 1, "run", (), arm=False)
    assert "assertion failed: @assert(n + 1 > 4)" in str(machine.session.advance().fault)


def test_a_union_starts_with_the_field_that_is_given(tmp_path: Path) -> None:
    """Zeros of another field, a structure, do not overwrite it."""
    text = """
    const U = union { w: u32, h: struct { a: u16, b: u16 } };
    var global = U{ .w = 0x30002 }; var o = @zeros([2]u16); var n: u32 = 0x50004;
    fn run() void { var local = U{ .w = n }; o[0] = global.h.a; o[1] = local.h.b; }
    """
    assert run(tmp_path, text, "o").read("o").tolist() == [2, 5]


def test_tables_of_structures_functions_and_modules_with_types(tmp_path: Path) -> None:
    """1 x 2 + 3 x 8 over the table = 26; f(f(1)) for add and double = 3 + 4; three times 1.5 x 2 = 9."""
    text = """
    const Op = struct { code: u16, gain: f32 };
    const table = [3]Op{ Op{ .code = 1, .gain = 2.0 }, .{ .code = 2, .gain = 4.0 }, .{ .code = 5, .gain = 8.0 } };
    fn add(x: i16) i16 { return x + 1; } fn double(x: i16) i16 { return 2 * x; }
    fn twice(comptime f: fn(i16)i16, x: i16) i16 { return f(f(x)); }
    const calls = .{ add, double };
    const shared = @import_module("shared.csl"); const cfg: shared.Config = .{ .n = 3, .gain = 2.0, .c = @get_color(4) };
    const m = @import_module("m.csl", .{ .cfg = cfg, .T = f32 });
    var s: f32; var k: i16; var r: f32; var g: f32; var j: u16 = 2;
    fn run() void {
      inline for (table) |op, i| { if (op.code != 2) s += op.gain * @as(f32, i + 1); }
      inline for (@range(u16, 2)) |i| { k += twice(calls[i], 1); }
      r = m.f(1.5); g = table[j].gain;
    }
    """
    shared = "const Config = struct { n: u16, gain: f32, c: color };"
    module = """
    const shared = @import_module("shared.csl"); param cfg: shared.Config; param T: type; var kept = @zeros([cfg.n]T);
    fn f(x: T) T { for (@range(u16, cfg.n)) |i| { kept[i] = x * cfg.gain; } var s: T = 0; for (kept) |b| { s += b; } return s; }
    """
    machine = run(tmp_path, text, "s k r g", shared=shared, m=module)
    assert [float(machine.read(n)[0]) for n in ("s", "k", "r", "g")] == [26.0, 7.0, 9.0, 8.0]


HALVES = "const H = packed struct { a: u4, b: u12 };"
BUFFER = "var a = [8]i16{ 0, 1, 2, 3, 4, 5, 6, 7 };"
REFUSED = {
    "wraparound": (f"{BUFFER} const c = @get_dsd(circbuf_dsd, .{{ .base_address = &a, .extent = 12, .wraparound = 9 }}); fn run() void {{ _ = c; }}", "must be 1 to 8"),
    "no wraparound": (f"{BUFFER} const c = @get_dsd(circbuf_dsd, .{{ .base_address = &a[2], .extent = 12 }}); fn run() void {{ _ = c; }}", "needs .wraparound"),
    "bits": (f"{HALVES} var x: u32; fn run() void {{ const h = @bitcast(H, x); x = h.a; }}", r"from 'u32' \(32 bits\) to 'H' \(16 bits\)"),
    "address of bits": (f"{HALVES} var h: H; fn run() void {{ const p = &h.b; p.* = 1; }}", "has no address; copy it into a variable"),
    "an array inside a word": ("const H = packed struct { a: u4, b: [2]u16 }; var h: H; fn run() void { h.a = 1; }", "begins or ends inside a word"),
    "too wide": ("const H = struct { a: u16, b: u16 }; var x: u16; fn run() void { const h = @bitcast(H, x); x = h.a; }", "both must have the same width"),
    "fifo length": (f"{BUFFER} const q = @allocate_fifo(a); fn run() void {{ @set_fifo_read_length(q, 3); }}", "change that one with @set_dsd_length"),
    "rotating": ("task t() void {} comptime { @bind_rotating_tasks(t, t, @get_local_task_id(9), .{ .limit = 3 }); } fn run() void {}", "exists only on wse3"),
    "half a fifo": (f"{BUFFER} const q = @allocate_fifo(a, .{{ .dest = @get_dsr(dsr_dest, 1) }}); fn run() void {{ _ = q; }}", "together, or none of them"),
    "register of another file": ("const r = @get_dsr(dsr_fifo_dest, @get_dsr(dsr_src1, 1)); fn run() void { _ = r; }", "of a dsr_dest"),
    "no xdsr": (f"{BUFFER} const c = @get_dsd(circbuf_dsd, .{{ .base_address = &a, .extent = 12 }}); fn run() void {{ @load_to_dsr_xdsr(@get_dsr(dsr_src1, 1), @get_sr(1), c); }}", "a value of @get_xdsr"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_there_is_said_with_the_remedy(tmp_path: Path, name: str) -> None:
    text, words = REFUSED[name]
    with pytest.raises(CslError, match=words):
        run(tmp_path, text, "")


LAYERED = """
param P: u16 = 3; param use_fast: bool = true; param gain: f32 = 0.5;
const memcpy = @import_module("<memcpy/get_params>", .{ .width = P, .height = P });
const helper = @import_module("parts/help.csl", .{ .P = P });
layout {
  @set_rectangle(P, P);
  for (@range(u16, P)) |row| { for (@range(u16, P)) |col| {
    const where = if (row == 0 or col == 0 or row == P - 1 or col == P - 1) .{ .edge = true } else .{ .edge = false };
    var given = @concat_structs(.{ .gain = gain, .fast = use_fast }, where);
    given = @concat_structs(given, .{ .host = memcpy.get_params(@as(i16, col)), .pos = .{ .x = col, .y = row }, .c = helper.colors });
    @set_tile_code(col, row, if (where.edge) "edge.csl" else "core.csl", given);
    helper.line(col, row);
  } }
  @export_name("out", [*]f32, true); @export_name("mark", fn()void); @export_name("all", fn(i16, bool)void);
}
"""
HELP = """
param P: u16; const colors = .{ .a = @get_color(1) };
fn line(x: u16, y: u16) void {
  const last = x == P - 1;
  switch (x) {
    0 => @set_color_config(x, y, colors.a, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ EAST } } }),
    else => {
      if (last) { @set_color_config(x, y, colors.a, .{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } } }); }
      else { @set_color_config(x, y, colors.a, .{ .routes = .{ .rx = .{ WEST }, .tx = .{ EAST, RAMP } } }); }
    },
  }
}
"""
COMMON = """
param gain: f32; param pos: comptime_struct; param tag: i16; param c: comptime_struct;
var out = @zeros([4]f32); var ptr: [*]f32 = &out;
const iq = @get_input_queue(2); const oq = @get_output_queue(2);
const to = @get_dsd(fabout_dsd, .{ .extent = 1, .fabric_color = c.a, .output_queue = oq });
const from = @get_dsd(fabin_dsd, .{ .extent = 1, .fabric_color = c.a, .input_queue = iq });
fn fill(k: i16, negative: bool) void {
  const sign: f32 = if (negative) -1.0 else 1.0;
  out[0] = sign * gain * @as(f32, k); out[1] = @as(f32, pos.x) + 10.0 * @as(f32, pos.y); out[2] = @as(f32, tag);
  if (pos.x == 0) { @fmovs(to, out[1]); } else { var t: f32; @fmovs(&t, from); out[3] = t; }
}
comptime {
  @export_symbol(ptr, "out");
  if (@is_arch("wse3")) {
    if (pos.x == 0) { @initialize_queue(oq, .{ .color = c.a }); } else { @initialize_queue(iq, .{ .color = c.a }); }
  }
}
"""
KIND = """
param host: comptime_struct; param gain: f32; param fast: bool; param edge: bool; param pos: comptime_struct; param c: comptime_struct;
const sys = @import_module("<memcpy/memcpy>", host);
const common = @import_module("common.csl", .{ .gain = gain, .pos = pos, .tag = TAG, .c = c });
fn all(k: i16, negative: bool) void { common.fill(k, negative); sys.unblock_cmd_stream(); }
fn mark() void { if (edge) { common.out[2] = 7.0; } sys.unblock_cmd_stream(); }
comptime { @export_symbol(all); @export_symbol(mark); }
"""


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_a_layout_of_modules_and_chosen_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arch: str
) -> None:
    """Files chosen by position, routes set by an imported function, colors in a structure: each row hears 10 y from its first core."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "parts").mkdir()
    texts = {"layout": LAYERED, "parts/help": HELP, "common": COMMON, "edge": KIND.replace("TAG", "1"), "core": KIND.replace("TAG", "2")}  # fmt: skip
    for name, text in texts.items():
        (tmp_path / f"{name}.csl").write_text(text)
    compile_program("layout.csl", arch=arch, params={"P": 4}, memcpy=True, out="out")
    runner = SdkRuntime("out")
    runner.load()
    runner.run()
    runner.launch("all", 3, True)
    runner.launch("mark")
    got = np.zeros(64, np.float32)
    runner.memcpy_d2h(
        got,
        runner.get_id("out"),
        0,
        0,
        4,
        4,
        4,
        streaming=False,
        order=MemcpyOrder.ROW_MAJOR,
        data_type=MemcpyDataType.MEMCPY_32BIT,
    )
    runner.stop()
    for y, x in np.ndindex(4, 4):
        edge = x in (0, 3) or y in (0, 3)
        wanted = [-1.5, x + 10 * y, 7 if edge else 2, 10 * y if x else 0]
        assert got.reshape(4, 4, 4)[y, x].tolist() == wanted
