"""The judge: a verdict for every request, with the place of a fault, and a process that stays as it is."""

import json
import time

import numpy as np
import pytest

from wse_sim.csl.judge import answers, judge

LAYOUT = """
param n: i16;
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 2, .height = 1 });
layout {
  @set_rectangle(2, 1);
  for (@range(i16, 2)) |x| { @set_tile_code(x, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(x), .n = n }); }
  @export_name("x", [*]f32, true); @export_name("y", [*]f32, false); @export_name("saxpy", fn(f32)void);
}
"""
PE = """
param memcpy_params: comptime_struct; param n: i16;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
var x: [n]f32; var y = @zeros([n]f32); var px: [*]f32 = &x; const py: [*]f32 = &y;
const dx = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{n} -> x[i] });
const dy = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{n} -> y[i] });
fn saxpy(a: f32) void { @fmacs(dy, dy, dx, a); sys.unblock_cmd_stream(); }
comptime { @export_symbol(px, "x"); @export_symbol(py, "y"); @export_symbol(saxpy); }
"""
GOOD = {
    "files": {"layout.csl": LAYOUT, "pe.csl": PE}, "params": {"n": 3}, "inputs": {"x": [[[1, 2, 3], [4, 5, 6]]]}, "calls": [["saxpy", 2.0]],
    "expected": {"y": [[[2, 4, 6], [8, 10, 12]]]}, "outputs": ["y"],
}  # fmt: skip


def changed(**keys: object) -> dict[str, object]:
    return {**GOOD, **keys}


def with_pe(old: str, new: str) -> dict[str, object]:
    assert old in PE
    return changed(files={"layout.csl": LAYOUT, "pe.csl": PE.replace(old, new)})


def test_a_right_kernel_passes_with_its_cycles_and_outputs() -> None:
    verdict = judge(GOOD)
    assert verdict.passed, verdict.message
    assert np.array_equal(verdict.outputs["y"], [[[2, 4, 6], [8, 10, 12]]])
    assert len(verdict.cycles) == 1
    assert 5 < verdict.cycles[0] < 200
    assert judge(GOOD).cycles == verdict.cycles
    longer = judge(changed(params={"n": 300}, inputs={}, expected={}, outputs=[]))
    assert longer.cycles[0] > verdict.cycles[0] + 250
    assert longer.spare_bytes < verdict.spare_bytes - 2000


@pytest.mark.parametrize(
    ("request_", "stage", "message", "line"),
    [
        (with_pe("@fmacs(dy, dy, dx, a)", "@fmacs(dy, dy, dx)"), "compile", "@fmacs takes", 7),
        (with_pe("sys.unblock_cmd_stream();", ""), "run", "waits forever: nothing has happened since cycle", 0),
        (with_pe("@fmacs(dy, dy, dx, a)", "@fmacs(dy, dy, dx, a + 1.0)"), "check", "'y' has 6 wrong of 6 values: core (0, 0) [0] is 3.0, not 2.0", 0),
        (with_pe("@fmacs(dy, dy, dx, a);", "while (true) {}"), "run", "is still running after 5,000 cycles", 0),
        (changed(calls=["scale"]), "run", "the functions are saxpy", 0),
        (changed(calls=["saxpy"]), "run", "takes 1 arguments", 0),
        (changed(inputs={"z": [1]}), "run", "the variables are x, y", 0),
        (changed(inputs={"x": [1, 2, 3, 4]}), "run", "has 6 words and 8 are given", 0),
        (changed(inputs={"x": [[1, 2], [3]]}), "run", "do not fit", 0),
        (changed(folder="x"), "request", "either `files` or `folder`", 0),
        (changed(files={"../a.csl": ""}), "request", "files has the name", 0),
        (changed(parms={"n": 3}), "request", "request.parms", 0),
    ],
)  # fmt: skip
def test_a_fault_is_a_verdict_with_its_place(
    request_: dict[str, object], stage: str, message: str, line: int
) -> None:
    verdict = judge({**request_, "cycles": 5000})
    assert (verdict.stage, verdict.line) == (stage, line), verdict.message
    assert message in verdict.message
    assert not verdict.passed
    assert line == 0 or verdict.file == "pe.csl"


def test_the_sanitizer_fails_a_kernel_that_is_right_by_luck() -> None:
    """x was never written: its zeros give the expected zeros."""
    request = changed(inputs={}, expected={"y": 0})
    assert judge(request).passed
    verdict = judge({**request, "sanitize": True})
    assert verdict.stage == "check"
    assert "first: pe.csl:7 (saxpy): core (0, 0)" in verdict.message
    assert "reads word 0 of 'x', which was never written" in verdict.message


def test_a_line_in_is_a_line_out() -> None:
    lines = [json.dumps(GOOD), "", "{", "[1]", json.dumps(changed(expected={"y": 1}))]
    got = [json.loads(line) for line in answers(lines)]
    assert [row["stage"] for row in got] == ["passed", "request", "request", "check"]
    assert all("\n" not in line for line in answers(lines))


@pytest.mark.slow
def test_two_hundred_small_runs_take_less_than_a_minute_of_this_process() -> None:
    judge(GOOD)
    began = time.process_time()
    assert all(judge(GOOD).passed for _ in range(200))
    assert time.process_time() - began < 60


def test_a_program_at_rest_takes_no_cycles() -> None:
    """Without a command stream the end is where nothing can happen, not the limit; without a call nothing happens at all."""
    quiet = judge({k: v for k, v in GOOD.items() if k in ("files", "params")} | {"memcpy": False})
    assert quiet.passed, quiet.message
    assert quiet.cycles == [0]
    without = with_pe("sys.unblock_cmd_stream();", "") | {"memcpy": False}
    verdict = judge(without)
    assert verdict.passed, verdict.message
    assert 5 < verdict.cycles[0] < 200
