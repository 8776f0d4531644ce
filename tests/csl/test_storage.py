"""Modules of one program: what `extern` and `export` share, where imports are looked for, modules that import each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from wse_sim.csl import CslError

from .machine import Machine, compile_text

USER = "comptime { @export_symbol(run); @export_symbol(x); }"


def ran(folder: Path, text: str, **files: str) -> Machine:
    machine = Machine(compile_text(folder, f"{text}\n{USER}", **files))
    machine.call("run")
    return machine


SHARED = {
    "by name": ("export var x: i16 = 5; const m = @import_module(\"sub.csl\"); fn run() void { x = 9; m.bump(); }",
                "extern var x: i16; fn bump() void { x += 1; }", 10),
    "by linkname": ("export var x: i16 linkname(\"z\") = 5; const m = @import_module(\"sub.csl\"); fn run() void { m.bump(); }",
                    "extern var y: i16 linkname(\"z\"); fn bump() void { y += 1; }", 6),
    "in one file": ("export var x: i16 = 5; extern var y: i16 linkname(\"x\"); fn run() void { y = 7; }", "", 7),
    "extern first": ("extern var x: i16; const m = @import_module(\"sub.csl\"); fn run() void { x += 2; m.bump(); }",
                     "export var x: i16 = 40; fn bump() void { x += 1; }", 43),
    "a function": ("export var x: i16 = 1; export fn twice(a: i16) i16 { return 2 * a; } const m = @import_module(\"sub.csl\"); fn run() void { m.go(); }",
                   "extern var x: i16; extern fn twice(a: i16) i16; fn go() void { x = twice(4); }", 8),
    "a name by parameter": ("const a = @import_module(\"sub.csl\", .{ .n = \"one\" }); const b = @import_module(\"sub.csl\", .{ .n = \"two\" }); var x: i16; "
                            "extern var q: i16 linkname(\"two\"); fn run() void { a.v = 5; b.v = 6; x = q; }",
                            "param n: comptime_string; export var v: i16 linkname(n);", 6),
}  # fmt: skip


@pytest.mark.parametrize("name", SHARED)
def test_an_extern_is_the_exported_variable(tmp_path: Path, name: str) -> None:
    """One place in memory: what one module writes, the other reads."""
    text, sub, wanted = SHARED[name]
    assert ran(tmp_path, text, sub=sub).read("x")[0] == wanted


def test_an_array_is_shared_with_its_descriptor(tmp_path: Path) -> None:
    sub = "extern var x: [3]i16; const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> x[i] }); fn go() void { @add16(d, d, @as(i16, 10)); }"
    text = 'export var x = [3]i16{ 1, 2, 3 }; const m = @import_module("sub.csl"); fn run() void { m.go(); }'
    assert ran(tmp_path, text, sub=sub).read("x").tolist() == [11, 12, 13]


def test_an_exported_variable_has_its_place_though_nothing_reads_it(tmp_path: Path) -> None:
    program = compile_text(tmp_path, "export var kept: i16 = 7; var x: u16; fn run() void { x = 1; } " + USER)
    assert "kept" in {s.name for s in program.image.classes[0].symbols}


REFUSED = {
    "type": ("export var x: i16 = 5;", "extern var x: i32; fn go() void { x = 1; }", "'x' has type 'i32' here and 'i16'"),
    "kind": ("export var x: i16 = 5;", "extern const x: i16; fn go() void { _ = x; }", "is a 'const' here and a 'var'"),
    "twice": ("export var x: i16 = 5;", "export var x: i16 = 6; fn go() void { x = 1; }", "is exported at .* already"),
    "nowhere": ("var x: i16;", "extern var y: i16; fn go() void { y = 1; }", "no module of the program exports it"),
    "value": ("var x: i16;", "extern var y: i16 = 3; fn go() void { y = 1; }", "'y' is extern and has a value"),
    "no type": ("var x: i16;", "extern var y; fn go() void { y = 1; }", "needs a type|expected"),
    "body": ("var x: i16;", "extern fn f() void {} fn go() void { f(); }", "'f' is extern and has a body"),
    "no body": ("var x: i16;", "export fn f() void; fn go() void { f(); }", "'f' is exported without a body"),
    "each other": ("var x: i16;", "const m = @import_module(\"pe.csl\"); fn go() void {}", "modules import each other in a cycle: pe.csl imports sub.csl imports pe.csl"),
    "itself": ("var x: i16;", "const m = @import_module(\"sub.csl\"); fn go() void {}", "sub.csl imports sub.csl"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_modules_cannot_share_is_one_sentence(tmp_path: Path, name: str) -> None:
    text, sub, words = REFUSED[name]
    with pytest.raises(CslError, match=words) as fault:
        ran(tmp_path, f'{text} const m = @import_module("sub.csl"); fn run() void {{ m.go(); }}', sub=sub)
    assert fault.value.line == 1


def test_a_module_that_imports_itself_with_other_parameters_ends(tmp_path: Path) -> None:
    """A chain of four instances, each with its own number: 3 + 2 + 1 + 0."""
    sub = 'param n: u16; const next = if (n > 0) @import_module("sub.csl", .{ .n = n - 1 }) else {}; fn sum() u16 { if (n > 0) { return n + next.sum(); } else { return 0; } }'
    text = 'const m = @import_module("sub.csl", .{ .n = 3 }); var x: u16; fn run() void { x = m.sum(); }'
    assert ran(tmp_path, text, sub=sub).read("x")[0] == 6


def test_imports_are_found_from_the_folder_of_the_layout(tmp_path: Path) -> None:
    """The program is in src/, its library in lib/ beside src/: both the importer's folder and the layout's are looked in."""
    for name, text in {
        "src/program.csl": 'const m = @import_module("lib/five.csl"); const n = @import_module("near.csl"); var x: u16; fn run() void { x = m.five() + n.one; } ' + USER,
        "src/near.csl": "const one: u16 = 1;",
        "lib/five.csl": "fn five() u16 { return 5; }",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    layout = 'layout { @set_rectangle(1, 1); @set_tile_code(0, 0, "src/program.csl", .{}); }'
    machine = Machine(compile_text(tmp_path, "", layout))
    machine.call("run")
    assert machine.read("x")[0] == 6
