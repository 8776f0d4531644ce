"""Every block of every page is executed as a reader would do it, or states why not."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from wse_sim import view_registry
from wse_sim.compiler.placers import registry
from wse_sim.modes.registry import MODES
from wse_sim.studies.schema import read_study

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.glob("*.md")), *sorted((DOCS / "howto").glob("*.md"))]
BLOCK = re.compile(
    r'(?:<!-- not executed: ([^\n]+) -->\n\n)?^```(\w*)(?: title="([^"]*)")?\n(.*?)^```$',
    re.MULTILINE | re.DOTALL,
)
SHELL = ("", "bash")
READ = {"text", "json"}
"""Languages of blocks for readers: what a command prints, formulas."""
ELSEWHERE = {
    "write-a-kernel": "tests/doors/test_write_a_kernel.py",
    "own-faces": "tests/doors/test_write_a_kernel.py",
    "add-an-operator": "tests/frontend/test_registration.py",
}
"""Pages with a test of their own."""
MARKED = 17
"""Blocks of all pages that are not executed; each has its reason."""
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(page: Path) -> list[tuple[str, str, str, str]]:
    """Return reason why not, language, title and content of the fenced blocks of a page."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def commands(text: str) -> list[str]:
    """Return the lines of a block; a backslash joins one with the next. Those of the README are run by its own test."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and line not in README.splitlines()]


def run_command(line: str) -> int:
    """Return the status of ``wse-sim ...`` in this process."""
    from wse_sim.cli import app
    from wse_sim.door import run

    program, *words = shlex.split(line, comments=True)
    assert program == "wse-sim", line
    return run(app, words)


@pytest.fixture
def registries() -> Iterator[None]:
    """Remove the modes, placers and views of a page after it, because other tests list all that are known."""
    modes, homes, placers = list(MODES), dict(view_registry._homes), {one.name for one in registry.placers()}
    yield
    MODES[:] = modes
    view_registry._homes.clear()
    view_registry._homes.update(homes)
    for placer in registry.placers():
        if placer.name not in placers:
            registry.forget_placer(placer.name)


EXECUTED = [
    page
    for page in PAGES
    if page.stem not in ELSEWHERE and any(not why and kind not in READ for why, kind, _, _ in blocks(page))
]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("page", EXECUTED, ids=lambda page: page.stem)
def test_every_block_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """Titled blocks are files, Python blocks share a namespace, commands end with status 0 or state what does not fit."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MPLBACKEND", "Agg")
    names: dict[str, object] = {"__name__": "__main__"}
    asked = [block for block in blocks(page) if not block[0]]
    for _, _, title, text in asked:
        if title:
            (tmp_path / title).parent.mkdir(exist_ok=True)
            (tmp_path / title).write_text(text, encoding="utf-8")
            monkeypatch.delitem(sys.modules, Path(title).stem, raising=False)  # a file of another test
    known = set(sys.modules)
    for _, language, title, text in asked:
        if title:
            continue
        if language == "python":
            exec(compile(text, page.name, "exec"), names)
        elif language in SHELL:
            for line in commands(text):
                assert run_command(line) == 0, (line, capsys.readouterr().err)
    for name in {path.stem for path in tmp_path.glob("*.py")} & (set(sys.modules) - known):
        del sys.modules[name]


@pytest.mark.parametrize("title", ["sram.yaml", "search.yaml"])
def test_descriptions_of_studies_are_read(title: str, tmp_path: Path):
    """The page of studies shows every key; its files are checked, not run."""
    (text,) = [text for _, _, name, text in blocks(DOCS / "studies.md") if name == title]
    (tmp_path / title).write_text(text, encoding="utf-8")
    assert read_study(tmp_path / title).varied


def test_blocks_say_what_they_are():
    """A block has a language, or commands of this project alone; a reason where it is not executed; the number of
    reasons does not grow.
    """
    marked = 0
    for page in PAGES:
        found = blocks(page)
        fences = len(re.findall(r"^ *```", page.read_text(encoding="utf-8"), re.MULTILINE))
        assert fences == 2 * len(found), f"{page.name}: a block that this test does not see"
        if page.stem in ELSEWHERE:
            assert page.name in (ROOT / ELSEWHERE[page.stem]).read_text(encoding="utf-8")
        for why, language, title, text in found:
            marked += bool(why)
            assert language in ("", "bash", "python", "yaml", *READ), (page.name, language)
            assert not title or language in ("python", "yaml", "json"), (page.name, title)
            if language in SHELL and not why:
                assert all(line.startswith("wse-sim ") for line in commands(text)), (page.name, text)
    assert marked == MARKED


def lines_of(page: Path) -> list[str]:
    """Return the command lines of this project in all code of a page: fenced, indented, with comments."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    return re.findall(r"^(?: {4})?(?:\$ )?(wse-sim [^\n<]*)$", text, re.MULTILINE)


@pytest.mark.slow
def test_every_command_of_every_page_has_its_options():
    """Commands exist and have the given options, including commands that are not executed."""
    from typer.main import get_command

    from wse_sim.cli import app

    whole, seen, faults = get_command(app), 0, []
    for page in [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        for line in lines_of(page):
            words = re.split(r"\s{2,}|\s#", line)[0].replace("[", "").replace("]", "").split()[1:]
            command = whole
            while words and hasattr(command, "commands") and words[0] in command.commands:
                command = command.commands[words.pop(0)]
            command = getattr(command, "commands", {}).get("run", command) if command is not whole else whole
            seen += 1
            if command.context_settings.get("ignore_unknown_options"):
                continue  # it hands its words on
            known = {
                name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)
            }
            if command is whole and words and not words[0].startswith("-"):
                faults.append(f"{page.name}: no command '{words[0]}' in: {line}")
            if command.name == "script":  # what comes behind the script is the script's own
                words = words[: next((i for i, word in enumerate(words) if word.endswith(".py")), None)]
            unknown = {w.partition("=")[0] for w in words if w.startswith("--")} - known - {"--help"}
            faults += [f"{page.name}: no option {name} in: {line}" for name in unknown]
    assert seen > 100
    assert faults == []
