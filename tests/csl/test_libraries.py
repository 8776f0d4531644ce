"""Libraries that move data between cores, against numpy: collectives in random sequences, the count over a rectangle, the FFT."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.generated import examples
from wse_sim.csl import compile_program
from wse_sim.csl.host.arrays import MemcpyDataType, MemcpyOrder
from wse_sim.csl.host.runtime import SdkRuntime
from wse_sim.csl.host.utils import input_array_to_u32, memcpy_view

CALLS, COUNT, PROGRAM = 4, 5, ("broadcast", "scatter", "gather", "reduce")

COLLECTIVES_LAYOUT = """
param width: u16;
param height: u16;
const memcpy = @import_module("<memcpy/get_params>", .{ .width = width, .height = height });
const c2d = @import_module("<collectives_2d/params>");
layout {
  @set_rectangle(width, height);
  for (@range(u16, width)) |x| {
    for (@range(u16, height)) |y| {
      const params = c2d.get_params(x, y, .{
        .x_colors = .{ @get_color(0), @get_color(1) }, .x_entrypoints = .{ @get_local_task_id(8), @get_local_task_id(9) },
        .y_colors = .{ @get_color(4), @get_color(5) }, .y_entrypoints = .{ @get_local_task_id(10), @get_local_task_id(11) },
      });
      @set_tile_code(x, y, "pe.csl", .{ .memcpy_params = memcpy.get_params(x), .c2d_params = params });
    }
  }
  @export_name("plan", [*]u32, true);
  @export_name("data", [*]u32, true);
  @export_name("result", [*]u32, true);
  @export_name("run_x", fn()void);
  @export_name("run_y", fn()void);
}
"""
COLLECTIVES_PE = """
param memcpy_params: comptime_struct;
param c2d_params: comptime_struct;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
const mpi_x = @import_module("<collectives_2d/pe>", .{ .dim_params = c2d_params.x });
const mpi_y = @import_module("<collectives_2d/pe>", .{ .dim_params = c2d_params.y });
const CALLS: u16 = 4;
const COUNT: u16 = 5;
const SLOT: u16 = 64;
const x_id = @get_local_task_id(14);
const y_id = @get_local_task_id(15);
var plan_of = @zeros([3 * CALLS]u32);       // what, root, steps of waiting before the call
var data_of = @zeros([CALLS * SLOT]u32);
var result_of = @zeros([CALLS * SLOT]u32);
var plan: [*]u32 = &plan_of;
var data: [*]u32 = &data_of;
var result: [*]u32 = &result_of;
var call: u16 = 0;
var waited: u32 = 0;
fn floats(p: [*]u32) [*]f32 { return @ptrcast([*]f32, p); }
fn next(comptime mpi: imported_module, id: local_task_id) void {
  if (call == CALLS) { sys.unblock_cmd_stream(); return; }
  if (waited < plan_of[3 * call + 2]) { waited += 1; @activate(id); return; }
  waited = 0;
  const what = plan_of[3 * call];
  const root = @as(u16, plan_of[3 * call + 1]);
  const from = @ptrcast([*]u32, &data_of[call * SLOT]);
  const to = @ptrcast([*]u32, &result_of[call * SLOT]);
  call += 1;
  if (what == 0) { mpi.broadcast(root, from, COUNT, id); }
  else if (what == 1) { mpi.scatter(root, from, to, COUNT, id); }
  else if (what == 2) { mpi.gather(root, from, to, COUNT, id); }
  else { mpi.reduce_fadds(root, floats(from), floats(to), COUNT, id); }
}
task next_x() void { next(mpi_x, x_id); }
task next_y() void { next(mpi_y, y_id); }
fn run_x() void { mpi_x.init(); call = 0; @activate(x_id); }
fn run_y() void { mpi_y.init(); call = 0; @activate(y_id); }
comptime {
  @bind_local_task(next_x, x_id);
  @bind_local_task(next_y, y_id);
  @export_symbol(plan); @export_symbol(data); @export_symbol(result);
  @export_symbol(run_x); @export_symbol(run_y);
}
"""
SLOT = 64


class Grid:
    """A compiled program with its host; symbols are read and written as (height, width, elements)."""

    def __init__(self, folder: Path, width: int, height: int) -> None:
        self.runner = SdkRuntime(str(folder))
        self.runner.load()
        self.runner.run()
        self.width, self.height = width, height

    def write(self, name: str, values: np.ndarray, *, halves: bool = False) -> None:
        h, w, n = values.shape
        kind = MemcpyDataType.MEMCPY_16BIT if halves else MemcpyDataType.MEMCPY_32BIT
        items = input_array_to_u32(values.ravel()) if halves else values.ravel()
        self.runner.memcpy_h2d(self.runner.get_id(name), items, 0, 0, w, h, n, streaming=False, order=MemcpyOrder.ROW_MAJOR,
                               data_type=kind, nonblock=False)  # fmt: skip

    def read(self, name: str, n: int, dtype: type = np.uint32, *, halves: bool = False) -> np.ndarray:
        kind = MemcpyDataType.MEMCPY_16BIT if halves else MemcpyDataType.MEMCPY_32BIT
        items = np.zeros(self.width * self.height * n, np.uint32)
        self.runner.memcpy_d2h(items, self.runner.get_id(name), 0, 0, self.width, self.height, n, streaming=False,
                               order=MemcpyOrder.ROW_MAJOR, data_type=kind, nonblock=False)  # fmt: skip
        values = memcpy_view(items, np.dtype(dtype)) if halves else items.view(dtype)
        return values.reshape(self.height, self.width, n)


@pytest.fixture(scope="module", autouse=True)
def _in_a_folder_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A run leaves its log in the folder that it was started in, as the vendor's does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("runs"))
        yield


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compile texts once per set of parameters."""
    known: dict[tuple[object, ...], Path] = {}

    def build(layout: str, pe: str | None, arch: str, **params: int) -> Path:
        key = (layout, arch, *sorted(params.items()))
        if key not in known:
            folder = tmp_path_factory.mktemp("program")
            (folder / "layout.csl").write_text(layout)
            if pe is not None:
                (folder / "pe.csl").write_text(pe)
            compile_program(
                folder / "layout.csl", arch=arch, params=params, memcpy=True, out=str(folder / "out")
            )
            known[key] = folder / "out"
        return known[key]

    return build


def expected(what: int, root: int, data: np.ndarray) -> dict[int, np.ndarray]:
    """What each PE of a line holds after a call; `data` is (PEs, SLOT) words."""
    n = COUNT
    if PROGRAM[what] == "broadcast":
        return dict.fromkeys(range(len(data)), data[root, :n])
    if PROGRAM[what] == "scatter":
        return {p: data[root, p * n : (p + 1) * n] for p in range(len(data))}
    if PROGRAM[what] == "gather":
        return {root: data[:, :n].ravel()}
    return {root: data[:, :n].view(np.float32).sum(axis=0, dtype=np.float32).view(np.uint32)}


@examples(25)
@given(st.data())
def test_collectives_in_random_sequences(compiled: Callable[..., Path], data: st.DataObject) -> None:
    """Four calls one behind the other with any roots; each PE enters each call at its own time, so neighbours are ahead and behind."""
    along_row = data.draw(st.booleans(), "along the row")
    size = data.draw(st.sampled_from([1, 2, 3, 6]), "size")
    arch = data.draw(st.sampled_from(["wse2", "wse3"]), "arch")
    width, height = (size, 1) if along_row else (1, size)
    grid = Grid(compiled(COLLECTIVES_LAYOUT, COLLECTIVES_PE, arch, width=width, height=height), width, height)
    calls = data.draw(
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, size - 1)), min_size=CALLS, max_size=CALLS),
        "calls",
    )
    delays = np.array(
        data.draw(
            st.lists(st.sampled_from([0, 0, 1, 40]), min_size=size * CALLS, max_size=size * CALLS), "delays"
        )
    ).reshape(size, CALLS)
    rng = np.random.default_rng(size)
    # integers as f32: every order of the additions gives the same sum
    words = rng.integers(0, 1000, (size, CALLS, SLOT)).astype(np.float32).view(np.uint32)
    plan = np.array(
        [[[what, root, delay] for (what, root), delay in zip(calls, row, strict=True)] for row in delays]
    )
    grid.write("plan", plan.reshape(height, width, -1).astype(np.uint32))
    grid.write("data", words.reshape(height, width, -1))
    grid.runner.launch("run_x" if along_row else "run_y", nonblock=False)
    sources = grid.read("data", CALLS * SLOT).reshape(size, CALLS, SLOT)
    results = grid.read("result", CALLS * SLOT).reshape(size, CALLS, SLOT)
    grid.runner.stop()
    for k, (what, root) in enumerate(calls):
        found = sources if PROGRAM[what] == "broadcast" else results
        for pe, values in expected(what, root, words[:, k]).items():
            assert np.array_equal(found[pe, k, : len(values)], values), (PROGRAM[what], root, pe)


TALLY_LAYOUT = """
param width: u16;
param height: u16;
param wanted: u32;
const out_color = @get_color(8);
const memcpy = @import_module("<memcpy/get_params>", .{ .width = width, .height = height });
const tally = @import_module("<kernels/tally/layout>", .{ .kernel_height = height, .kernel_width = width, .phase2_tally = wanted,
  .colors = [3]color{ @get_color(1), @get_color(2), @get_color(3) }, .output_color = out_color });
layout {
  @set_rectangle(width, height);
  for (@range(u16, width)) |x| {
    for (@range(u16, height)) |y| {
      @set_tile_code(x, y, "pe.csl", .{ .memcpy_params = memcpy.get_params(x), .tally_params = tally.get_params(x, y) });
    }
  }
  @export_name("bumps", [*]u32, true);
  @export_name("total", [*]u32, true);
  @export_name("run", fn()void);
}
"""
TALLY_PE = """
param memcpy_params: comptime_struct;
param tally_params: comptime_struct;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
const bump_id = @get_local_task_id(10);
const end_id = @get_local_task_id(11);
const tally = @import_module("<kernels/tally/pe>", @concat_structs(tally_params,
  .{ .input_queues = [2]u16{ 2, 3 }, .output_queues = [2]u16{ 4, 5 }, .callback = end_id }));
var bumps_of = @zeros([2]u32);  // number of bumps, how many of them before the signal
var bumps: [*]u32 = &bumps_of;
var total_of = @zeros([2]u32);
var total: [*]u32 = &total_of;
var count: u32 = 0;
task bump() void {
  if (count == bumps_of[1]) { tally.signal_completion(); }
  if (count < bumps_of[0]) { tally.bump_tally(count + 1); @activate(bump_id); }
  count += 1;
}
task end() void { total_of[0] = tally.local_tally; total_of[1] += 1; sys.unblock_cmd_stream(); }
fn run() void {
  @activate(bump_id);
  if (!tally_params.is_end) { sys.unblock_cmd_stream(); }
}
comptime {
  @bind_local_task(bump, bump_id);
  @bind_local_task(end, end_id);
  @export_symbol(bumps); @export_symbol(total); @export_symbol(run);
}
"""


@examples(6)
@given(st.data())
def test_tally_counts_every_bump_once(compiled: Callable[..., Path], data: st.DataObject) -> None:
    """Bump number k adds k + 1; the end comes once, at the north-east PE, with at least the wanted sum (here: all of it)."""
    arch = data.draw(st.sampled_from(["wse2", "wse3"]))
    width, height = data.draw(st.sampled_from([(1, 1), (3, 2), (2, 5)]))
    n = data.draw(st.integers(0, 4))
    wanted = width * height * n * (n + 1) // 2
    early = data.draw(st.integers(0, n))
    grid = Grid(
        compiled(TALLY_LAYOUT, TALLY_PE, arch, width=width, height=height, wanted=wanted), width, height
    )
    plan = np.zeros((height, width, 2), np.uint32)
    plan[..., 0], plan[..., 1] = n, early
    grid.write("bumps", plan)
    grid.runner.launch("run", nonblock=False)
    ends = grid.read("total", 2)
    grid.runner.stop()
    assert ends[..., 1].sum() == ends[0, width - 1, 1] == 1
    assert ends[0, width - 1, 0] == wanted


FFT_LAYOUT = """
param n: u16;
param width: i16;
param half: i16;
const memcpy = @import_module("<memcpy/get_params>", .{ .width = width, .height = width });
const fft = @import_module("<kernels/fft/fft3d_layout>", .{ .width = width, .memcpy = memcpy });
layout {
  @set_rectangle(width, width);
  fft.FFT_kernel(width, n, if (half == 1) f16 else f32);
}
"""


@pytest.mark.parametrize(
    ("arch", "n", "width", "half", "norm", "inverse"),
    [("wse3", 8, 2, False, 0, False), ("wse2", 4, 4, False, 1, True), ("wse3", 4, 1, True, 2, False)],
)
def test_fft_in_three_dimensions(compiled: Callable[..., Path], arch: str, n: int, width: int, half: bool, norm: int, inverse: bool) -> None:  # fmt: skip
    """Against numpy; rounding grows with the stages: 3 log2 n additions of numbers of the size of the result."""
    grid = Grid(compiled(FFT_LAYOUT, None, arch, n=n, width=width, half=int(half)), width, width)
    real = np.float16 if half else np.float32
    p = n // width
    rng = np.random.default_rng(1)
    x = (rng.uniform(-1, 1, (n, n, n)) + 1j * rng.uniform(-1, 1, (n, n, n))).astype(np.complex64)  # [y, x, z]
    angle = 2 * np.pi * np.arange(n // 2) / n
    twiddles = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(real).ravel()
    grid.write("twiddle_array", np.broadcast_to(twiddles, (width, width, n)).copy(), halves=half)
    # PE (x // p, y // p) holds [z, y % p, x % p]
    tiles = x.reshape(width, p, width, p, n).transpose(0, 2, 4, 1, 3)
    pairs = np.stack([tiles.real, tiles.imag], axis=-1).astype(real).reshape(width, width, -1)
    grid.write("X", pairs, halves=half)
    grid.runner.launch("csfftExecC2C", np.int16(norm), np.int16(inverse), nonblock=False)
    back = grid.read("X", 2 * p * p * n, real, halves=half).astype(np.float32)
    cycles = grid.read("fft_time", 2)
    grid.runner.stop()
    found = (back[..., 0::2] + 1j * back[..., 1::2]).reshape(width, width, n, p, p).transpose(0, 3, 1, 4, 2)
    transform = np.fft.ifftn if inverse else np.fft.fftn
    wanted = transform(x, norm=("backward", "ortho", "forward")[norm])
    size = np.abs(wanted).max()
    unit = 2.0**-11 if half else 2.0**-24
    assert np.abs(found.reshape(n, n, n) - wanted).max() < 3 * np.log2(n) * 4 * unit * size
    assert cycles[..., 0].max() > 0
