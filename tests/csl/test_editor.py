"""What an editor is told: faults of the text at hand, hover, definitions, completions; and the protocol itself."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from wse_sim.csl.language import Definition, Language, builtins

LAYOUT = 'layout { @set_rectangle(1, 1); @set_tile_code(0, 0, "pe.csl", .{}); }\n'
PE = """const tools = @import_module("tools.csl");
var data: [8]f32;
const view = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> data[i] });
var count: u16 = 0;
fn add(step: u16) void {
  var local: u16 = tools.twice(step);
  count += local;
  @fadds(view, view, view);
}
comptime { @export_symbol(add); }
"""
TOOLS = "const factor: u16 = 2;\nfn twice(x: u16) u16 { return x * factor; }\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "layout.csl").write_text(LAYOUT)
    (tmp_path / "pe.csl").write_text(PE)
    (tmp_path / "tools.csl").write_text(TOOLS)
    (tmp_path / "commands_wse2.sh").write_text(
        "cslc --arch=wse2 layout.csl --fabric-dims=8,3 --fabric-offsets=4,1 \\\n  -o out\ncs_python run.py\n"
    )
    return tmp_path / "pe.csl"


def at(word: str, text: str = PE, which: int = 0) -> tuple[int, int]:
    """Line and column of an occurrence of a word."""
    places = [
        (i, k)
        for i, line in enumerate(text.split("\n"))
        for k in range(len(line))
        if line.startswith(word, k)
    ]
    return places[which]


def test_faults_are_those_of_the_text_at_hand_not_of_the_file(source: Path) -> None:
    language = Language()
    assert language.faults(source, PE) == []
    wrong = PE.replace("count += local", "cuont += local")
    (found,) = language.faults(source, wrong)
    assert (found.line, found.column, found.length) == (6, 2, 5)
    assert "'cuont' is not declared; did you mean 'count'" in found.text
    (syntax,) = language.faults(source, PE.replace("count += local;", "count += ;"), syntax_only=True)
    assert syntax.line == 6
    assert language.faults(source, wrong, syntax_only=True) == []
    assert source.read_text() == PE


def test_a_fault_in_another_file_is_told_with_its_place(source: Path) -> None:
    (source.parent / "tools.csl").write_text(TOOLS.replace("x * factor", "x * fctor"))
    (found,) = Language().faults(source, PE)
    assert found.line == 0
    assert "tools.csl:2" in found.text


def test_hover_says_type_memory_and_cycles(source: Path) -> None:
    language = Language()
    language.faults(source, PE)
    said = language.hover(source, PE, *at("data"))
    assert "`data: [8]f32`: 32 bytes at word" in said
    assert "1 core, wse2" in said
    adds = language.hover(source, PE, *at("count += "))
    assert "commands_wse2.sh, wse2" in adds
    assert "cycles per execution" in adds
    assert "cycles per element" in language.hover(source, PE, *at("@fadds"))
    assert language.hover(source, PE, *at("{ .tensor")) == ""


def test_definitions(source: Path) -> None:
    language = Language()
    assert language.definition(source, PE, *at("count", which=1)) == Definition(source, 3, 4)
    assert language.definition(source, PE, *at("local", which=1)) == Definition(source, 5, 6)
    assert language.definition(source, PE, *at("step", which=1)) == Definition(source, 4, 7)
    assert language.definition(source, PE, *at("twice")) == Definition(source.parent / "tools.csl", 1, 3)
    assert language.definition(source, PE, *at("@fadds")) is None
    assert language.definition(source, PE, 99, 0) is None


def test_completions(source: Path) -> None:
    language = Language()
    typing = PE + "fn g() void {\n  @f\n  tools.\n"
    line = PE.count("\n") + 1
    names = [name for name, _ in language.completions(source, typing, line, 4)]
    assert {"@fadds", "@get_dsd", "@activate", "@map"} <= set(names)
    assert language.completions(source, typing, line + 1, 8) == [("factor", "const"), ("twice", "fn")]
    assert ("count", "var") in language.completions(source, typing, line, 0)
    assert len(builtins()) > 100


def message(content: dict[str, Any]) -> bytes:
    body = json.dumps({"jsonrpc": "2.0", **content}).encode()
    return b"Content-Length: %d\r\n\r\n" % len(body) + body


def test_the_server_speaks_the_protocol(source: Path) -> None:
    """One session as an editor has it: open a file with a fault, hover, shut down."""
    pytest.importorskip("pygls")
    uri = source.as_uri()
    wrong = PE.replace("count += local", "cuont += local")
    document = {"uri": uri, "languageId": "csl", "version": 1, "text": wrong}
    line, column = at("@fadds")
    sent = [
        {"id": 1, "method": "initialize", "params": {"processId": None, "rootUri": None, "capabilities": {}}},
        {"method": "initialized", "params": {}},
        {"method": "textDocument/didOpen", "params": {"textDocument": document}},
        {
            "id": 2,
            "method": "textDocument/hover",
            "params": {"textDocument": {"uri": uri}, "position": {"line": line, "character": column}},
        },
        {"id": 3, "method": "shutdown"},
        {"method": "exit"},
    ]
    command = [sys.executable, "-m", "wse_sim.cli", "csl", "lsp"]
    done = subprocess.run(
        command, input=b"".join(message(m) for m in sent), capture_output=True, timeout=120, check=False
    )
    got = [
        json.loads("{" + part.partition("{")[2]) for part in done.stdout.decode().split("Content-Length:")[1:]
    ]
    (told,) = [m["params"] for m in got if m.get("method") == "textDocument/publishDiagnostics"]
    assert told["diagnostics"][0]["range"]["start"] == {"line": 6, "character": 2}
    (answer,) = [m["result"] for m in got if m.get("id") == 2]
    assert "vector operation" in answer["contents"]["value"]
    assert {"hoverProvider", "definitionProvider", "completionProvider"} <= set(
        next(m for m in got if m.get("id") == 1)["result"]["capabilities"]
    )


def test_the_extension_is_whole_json() -> None:
    folder = Path(__file__).parents[2] / "editors" / "vscode"
    package = json.loads((folder / "package.json").read_text())
    grammar = folder / package["contributes"]["grammars"][0]["path"]
    assert json.loads(grammar.read_text())["scopeName"] == "source.csl"
    assert json.loads((folder / "language-configuration.json").read_text())["comments"]["lineComment"] == "//"
    assert '"csl", "lsp"' in (folder / package["main"]).read_text()
