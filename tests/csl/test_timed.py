"""Programs that count their own cycles: the number is that of their time stamps, and faults say what to give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wse_sim.csl.timed import timed_cycles, timed_run
from wse_sim.errors import ConfigError, WseError
from wse_sim.hardware import load_wafer
from wse_sim.validation.predict import predict
from wse_sim.validation.suite import Point, load_suite, shipped_suite

LAYOUT = """
param n: u16;
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 2, .height = 1 });
layout {
  @set_rectangle(2, 1);
  for (@range(u16, 2)) |x| {
    @set_tile_code(x, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(x), .n = n * (x + 1) });
  }
  @export_name("run", fn(u16)void);
  @export_name("stamps", [*]u16, false);
}
"""
PE = """
param memcpy_params: comptime_struct;
param n: u16;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
const time = @import_module("<time>");
var stamps = @zeros([6]u16);
var stamps_pointer: [*]u16 = &stamps;
var a = @zeros([604]f32);
const a_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{n} -> a[i] });
fn run(turns: u16) void {
  time.enable_tsc();
  time.get_timestamp(@ptrcast(*[3]u16, &stamps[0]));
  for (@range(u16, turns)) |_| { @fmuls(a_dsd, a_dsd, 2.0); }
  time.get_timestamp(@ptrcast(*[3]u16, &stamps[3]));
  sys.unblock_cmd_stream();
}
comptime { @export_symbol(run); @export_symbol(stamps_pointer, "stamps"); }
"""


def stated(folder: Path, **more: Any) -> dict[str, Any]:
    (folder / "layout.csl").write_text(LAYOUT)
    (folder / "pe.csl").write_text(PE)
    return {"layout": "layout.csl", "params": {"n": 100}, "launch": [["run", 3]], "stamps": "stamps", **more}


def cycles(folder: Path, **more: Any) -> float:
    return timed_cycles(folder, timed_run(stated(folder, **more), "point"), load_wafer("wse2"), "wse2")


def test_cores_of_different_work_differ_by_their_elements(tmp_path: Path) -> None:
    """One core multiplies 100 elements three times, the other 200: 300 cycles more, an element a cycle."""
    low, high = cycles(tmp_path, over="min"), cycles(tmp_path, over="max")
    assert high - low == 300
    assert cycles(tmp_path, over="mean") == (low + high) / 2
    assert cycles(tmp_path, over="max", per=3, offset=30) == (high - 30) / 3


def test_a_point_runs_where_its_sources_are(tmp_path: Path) -> None:
    """A suite states a program; without its sources the row states where they come from."""
    program = stated(tmp_path, over="max")
    point = Point(
        id="p",
        subject="csl.program",
        params={"program": program},
        quantity="cycles",
        measured=600.0,
        source="S",
    )
    assert predict(point, sources=tmp_path).predicted == cycles(tmp_path, over="max")
    missing = predict(point)
    assert missing.predicted is None
    assert "--sources" in missing.reason


@pytest.mark.parametrize(
    ("more", "named"),
    [({"stamps": ""}, "stamps"), ({"over": "sum"}, "program.over"), ({"turns": 3}, "program.turns"), ({"per": 0}, "per")],
)  # fmt: skip
def test_a_run_that_states_nothing_is_refused(tmp_path: Path, more: dict[str, Any], named: str) -> None:
    """Each fault names its key."""
    with pytest.raises(ConfigError, match=named):
        timed_run(stated(tmp_path, **more), "point")


def test_a_name_that_no_core_has(tmp_path: Path) -> None:
    """The sentence names the array."""
    with pytest.raises(WseError, match="ticks"):
        cycles(tmp_path, stamps="ticks")


def test_every_point_of_the_shipped_suite_states_a_run() -> None:
    """All published rows are well formed: they fail for their sources alone."""
    points = load_suite(shipped_suite("suite_csl.yaml")).points
    assert len(points) > 50
    for point in points:
        timed_run(point.params["program"], point.id)
        assert "--sources" in predict(point).reason


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_alignments_of_two_vectors(tmp_path: Path, arch: str) -> None:
    """fp32 elements are two words apart in eight banks, so four alignments differ: starts equal modulo 8 words collide."""
    body = PE.replace("@fmuls(a_dsd, a_dsd, 2.0)", "@fmuls(a_dsd, a_dsd, b_dsd)")
    took = []
    for gap in range(4):
        program = stated(tmp_path, over="min")
        vector = f"const b_dsd = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{n}} -> a[i + 200 + {gap}] }});"
        (tmp_path / "pe.csl").write_text(body.replace("fn run", f"{vector}\nfn run"))
        took.append(timed_cycles(tmp_path, timed_run(program, "point"), load_wafer(arch), arch))
    assert sum(cycles > min(took) for cycles in took) == 1
    assert max(took) - min(took) == pytest.approx(300 * (load_wafer(arch).bank_conflict_factor - 1), abs=3)


@pytest.mark.parametrize(("since", "took"), [(None, 2), (0, 1)])
def test_a_program_that_traces_its_clock(tmp_path: Path, since: int | None, took: int) -> None:
    """Three values of one core: the cycle of the last, or its distance from an earlier one; a number too high is refused."""
    (tmp_path / "layout.csl").write_text(
        'layout { @set_rectangle(1, 1); @set_tile_code(0, 0, "pe.csl", .{}); }'
    )
    (tmp_path / "pe.csl").write_text(
        """
const times = @import_module("<debug>", .{ .buffer_size = 100 });
var a = @zeros([300]f32);
const a_dsd = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{300} -> a[i] });
task work() void { times.trace_timestamp(); @fmuls(a_dsd, a_dsd, 2.0); times.trace_timestamp(); @fmuls(a_dsd, a_dsd, 2.0); times.trace_timestamp(); }
comptime { @bind_local_task(work, @get_local_task_id(9)); @activate(@get_local_task_id(9)); }
"""
    )
    program = {"layout": "layout.csl", "memcpy": False, "trace": [0, 0, took], "since": since}
    program = {key: value for key, value in program.items() if value is not None}
    cycles = timed_cycles(tmp_path, timed_run(program, "point"), load_wafer("wse2"), "wse2")
    # a vector of 300 in 300 cycles, and the loads of its descriptor, its start and a time stamp around each
    around = cycles - (took if since is None else took - since) * 300
    assert 0 < around < took * 100
    with pytest.raises(WseError, match="traced 3 values"):
        timed_cycles(
            tmp_path, timed_run({**program, "trace": [0, 0, 3]}, "point"), load_wafer("wse2"), "wse2"
        )
