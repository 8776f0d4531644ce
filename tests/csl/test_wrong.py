"""Mistakes that programmers make, put into right programs at random places: each is refused in one sentence with its place and a caret."""

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from wse_sim.csl import CslError, compile_program

from .test_debug import write_gemv

SEED, DRAWS = 20261127, 3


def inside(text: str) -> tuple[str, str]:
    """A statement at the start of a function."""
    return r"^(fn \w+\(\) void \{\n)", rf"\1  {text}\n"


def above(text: str) -> tuple[str, str]:
    """A declaration of the program."""
    return r"^(comptime \{\n)", rf"{text}\n\1"


def within(text: str) -> tuple[str, str]:
    """A statement of the comptime block."""
    return r"^(comptime \{\n)", rf"\1  {text}\n"


# Name: (pattern, what to put in its place, part of the sentence).
MISTAKES = {
    "extra brace": (r"^\}\n", "}\n}\n", "expected a declaration"),
    "assignment by ==": (r"^(var|const) (\w+) = ", r"\1 \2 == ", "a value is given with ="),
    "no type": (*inside("var zz;"), "neither a type nor a value"),
    "no result": (r"\bfn (\w+)\(\) void \{", r"fn \1() {", "void if it has none"),
    "loop without element": (r"\) \|(\w+)\| \{", ") {", "a loop names its element"),
    "else alone": (*inside("else { return; }"), "expected a statement"),
    "comma left out": (r"(\.\w+ = [\w.&]+), (\.\w+ = )", r"\1 \2", "expected ',' or '}'"),
    "structure without dot": (r"(?<=, )\.\{ ?\.(?=tensor|base|memcpy)", "{ .", "a structure is written .{"),
    "a constant is assigned": (*inside("const k0: u16 = 1; k0 = 2;"), "is a constant"),
    "a parameter is assigned": (*inside("n = 3;"), "is a constant"),
    "a size of run time": (*inside("var n0: u16 = 3; var a0: [n0]f32;"), "must be known at compile time"),
    "an array that is not there": (r"\.base_address = &(\w+)", r".base_address = &\1_none", "is not declared"),
    "operation on numbers": (*inside("var s0: f32 = 1.0; @fadds(s0, s0, 2.0);"), "must be a DSD"),
    "asynchronous in memory": (*inside("@fmovs(y_dsd, 0.0, .{ .async = true });"), "needs a fabin_dsd"),
    "a float for integers": (*inside("@add16(y_dsd, y_dsd, 1.5);"), "computes with integers"),
    "a descriptor of other elements": (*inside("@faddh(y_dsd, y_dsd, 1.0);"), "computes with f16 here, and this descriptor has elements of f32"),
    "an unknown option": (*inside("@fmovs(y_dsd, 0.0, .{ .asynch = true });"), "there is no option 'asynch'"),
    "two tasks, one id": (
        *above("task t1() void {}\ntask t2() void {}\ncomptime { @bind_local_task(t1, @get_local_task_id(12)); @bind_local_task(t2, @get_local_task_id(12)); }"),
        "an id can have one task",
    ),
    "a task without an id": (*above("task t1() void {}"), "is bound to no id"),
    "a local task with an argument": (*above("task t1(x: u16) void {}\ncomptime { @bind_local_task(t1, @get_local_task_id(12)); }"), "takes no arguments"),
    "an import without its parameter": (r"\.width = 1, ", "", "needs a value for its parameter 'width'"),
    "a module that imports its importer": (*above('const me = @import_module("pe.csl", .{ .memcpy_params = memcpy_params, .n = n });'), "import each other"),
    "no code": (r"^  @set_tile_code\(.*\n", "", "has no code"),
    "a second rectangle": (r"^(  @set_rectangle.*\n)", r"\1\1", "is called twice"),
    "a name twice": (r"^(  @export_name\(.*\n)", r"\1\1", "exported twice"),
    "a symbol in the layout": (r"^(layout \{\n)", r"\1  @export_symbol(memcpy);\n", "belongs in the program"),
    "a second layout": (r"^(layout \{\n)", r"layout { }\n\1", "a second layout block"),
    "a constant too large": (*inside("const big: i16 = 40000; var use: i16 = big;"), "does not fit type 'i16'"),
    "too much memory": (r"^(fn \w+\(\) void \{\n)", r"var huge = @zeros([30000]f32);\n\1  huge[@as(u16, n)] = 1.0;\n", "bytes of data"),
    "a negative index": (*inside("var a0 = @zeros([4]f32); a0[-1] = 1.0;"), "is outside the array"),
    "a negative shift": (*inside("var a0: u16 = 3; a0 = a0 << -1;"), "must not be negative"),
    "division by zero": (*within("const q0: u16 = 4 / 0;"), "division by zero"),
    "endless recursion": (*above("fn rec(k: u16) u16 { return rec(k + 1); }\ncomptime { @comptime_assert(rec(0) == 1); }"), "calls"),
    "text over two lines": (*above('const tx = "one\ntwo";'), "not closed on its line"),
    "a comment of C": (*above("/* a comment */"), "a comment begins with //"),
    "the and of C": (*inside("var q: bool = true; if (q && q) { }"), "is 'and'"),
    "an increment of C": (*inside("var a0: u16 = 1; a0++;"), "CSL has no ++"),
    "a loop of C": (*inside("for (var i: u16 = 0; i < 3; i += 1) { }"), "a loop over numbers is"),
    "a type first": (*inside("u16 a0 = 1;"), "declared as var a0: u16"),
    "a value from void": (*inside("return 3;"), "expected a value of type 'void'"),
    "a pointer of another type": (*inside("var a0 = @zeros([4]u16); var p0: [*]f32 = &a0;"), "found of type '*[4]u16'"),
    "a number as pointer": (*inside("var a0: u16 = 1; a0.* = 2;"), "is not a pointer"),
    "a field of a number": (*inside("var a0: u16 = 1; a0.x = 2;"), "has no member 'x'"),
    "a label that is not there": (*inside("while (true) { break :outer; }"), "the label 'outer'"),
    "a parameter in a function": (*inside("param z0: u16;"), "declared outside functions"),
    "a color of text": (*inside('const c0 = @get_color("red");'), "takes an integer"),
    "a failed assertion": (*within('@comptime_assert(1 == 2, "told");'), "assertion failed: told"),
    "a function activated": (*inside("const f0 = sys.unblock_cmd_stream; @activate(f0);"), "is a function, and this takes a task"),
    "a task id of memcpy": (*above("task t1() void {}\ncomptime { @bind_local_task(t1, @get_local_task_id(28)); }"), "local_task_id 28 belongs to memcpy"),
    "a color of memcpy": (*above("task t1(w: u32) void {}\ncomptime { @bind_data_task(t1, @get_data_task_id(@get_color(22))); }"), "uses 21, 22, 23"),
    "a builtin misspelt": (*inside("@fmacss(y_dsd, y_dsd, y_dsd, 1.0);"), "did you mean '@fmacs'?"),
    "a type of C": (*inside("var r0: float = 1.0;"), "the type is f32 in CSL"),
    "statements in an arm": (*inside("var s0: u16 = 1; switch (s0) { 1 => s0 = 2, else => s0 = 3 }"), "write => { ... } around statements"),
    "a run-time value at compile time": (*inside("var r0: u16 = 3; comptime var c0: u16 = r0; r0 = c0;"), "'r0' is known only at run time"),
    "a symbol twice": (r"^(  @export_symbol\(.*\n)", r"\1\1", "twice"),
}  # fmt: skip


def sites(pattern: str, folder: Path) -> Iterator[tuple[Path, re.Match[str]]]:
    for file in sorted(folder.glob("*.csl")):
        for match in re.finditer(pattern, file.read_text(), re.MULTILINE):
            yield file, match


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_one_sentence_with_a_place(tmp_path: Path, name: str) -> None:
    """Up to three places each; --strict for those that mean something."""
    pattern, instead, words = MISTAKES[name]
    write_gemv(tmp_path)
    found = list(sites(pattern, tmp_path))
    assert found
    for file, match in random.Random(SEED).sample(found, min(DRAWS, len(found))):
        before = file.read_text()
        file.write_text(
            before[: match.start()] + match.expand(instead.replace("\n", "\\n")) + before[match.end() :]
        )
        with pytest.raises(CslError) as fault:
            compile_program(tmp_path / "layout.csl", params={"n": 8}, memcpy=True, strict=True)
        file.write_text(before)
        head, _, caret = str(fault.value).split("\n")
        assert re.search(r"\.csl:\d+:\d+: \S", head), head
        assert words in head, head
        assert caret.strip() == "^", caret
