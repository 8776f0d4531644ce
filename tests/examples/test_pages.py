"""Pages for newcomers: every block is executed in order, from an empty folder, as a reader would do it."""

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

pytest.importorskip("torch")

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "install.md", DOCS / "ten-minutes.md", *sorted((DOCS / "howto").glob("*.md"))]
BLOCK = re.compile(r'^```(\w*)(?: title="([^"]*)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
NOT_HERE = "not executed by the tests"


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """Language, title and content of the fenced blocks of a page."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def run_command(line: str) -> int:
    """Status of ``wse-sim ...`` in this process."""
    from wse_sim.cli import app
    from wse_sim.door import run

    program, *words = shlex.split(line, comments=True)
    assert program == "wse-sim", line
    return run(app, words)


@pytest.fixture
def registries() -> Iterator[None]:
    """Modes, placers and views of a page leave with it: other tests list all that are known."""
    modes, homes, placers = list(MODES), dict(view_registry._homes), {one.name for one in registry.placers()}
    yield
    MODES[:] = modes
    view_registry._homes.clear()
    view_registry._homes.update(homes)
    for placer in registry.placers():
        if placer.name not in placers:
            registry.forget_placer(placer.name)


@pytest.mark.slow
@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """Titled blocks are files, Python blocks share a namespace, commands end with status 0; `text` is for readers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MPLBACKEND", "Agg")
    known = set(sys.modules)
    names: dict[str, object] = {}
    ran = 0
    for language, title, text in blocks(page):
        if NOT_HERE in title or language == "text":
            continue
        ran += 1
        if title:
            (tmp_path / title).write_text(text, encoding="utf-8")
        elif language == "python":
            exec(compile(text, page.name, "exec"), names)
        else:
            for line in text.splitlines():
                assert run_command(line) == 0, (line, capsys.readouterr().err)
    assert ran or page.stem == "cluster"
    for name in {path.stem for path in tmp_path.glob("*.py")} & (set(sys.modules) - known):
        del sys.modules[name]


def test_blocks_say_what_they_are():
    """A block without a language holds commands of this project alone, so the test above can run them."""
    for page in PAGES:
        for language, title, text in blocks(page):
            if not language:
                assert all(line.startswith("wse-sim ") for line in text.splitlines()), (page.name, text)
            assert not title or language in ("python", "yaml"), (page.name, title)
