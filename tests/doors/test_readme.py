"""Every command and every Python example of the README is executed, so that pages describe what exists."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from wse_sim.validation import suite

torch = pytest.importorskip("torch")

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
COMMANDS = [
    line.partition("#")[0].strip()
    for kind, text in BLOCKS
    if not kind
    for line in text.splitlines()
    if line.startswith("wse-sim ")
]


def test_the_readme_has_commands():
    """The list below must not be empty by accident."""
    assert len(COMMANDS) >= 8
    text = README.read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text


def one_point_per_subject(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep only the last point of each subject in the shipped suites; the values of all are golden numbers."""
    read = suite.load_suite

    def few(path: Path | None = None) -> suite.Suite:
        whole = read(path)
        last = {point.subject: point for point in whole.points}
        return whole.model_copy(update={"points": tuple(last.values())}) if path is None else whole

    monkeypatch.setattr(suite, "load_suite", few)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one folder for all commands, because some of them read what an earlier one wrote."""
    made = tmp_path_factory.mktemp("reader")
    (made / "examples").symlink_to(README.parent / "examples")
    return made


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_runs(wse, command: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    """As printed, in the order of the page; one that is run by itself is preceded by the line before it."""
    monkeypatch.chdir(folder)
    if command.startswith("wse-sim validate"):
        one_point_per_subject(monkeypatch)
    words = shlex.split(command)[1:]
    read = {"study plot": words[2:], "csl run": words[2:]}.get(" ".join(words[:2]))
    if read and not (folder / read[0]).exists():
        assert wse(*shlex.split(COMMANDS[COMMANDS.index(command) - 1])[1:]).status == 0
    ran = wse(*words)
    assert ran.status in (0, 1), ran.err
    assert ran.out.strip()
    assert "fault of the simulator" not in ran.err


@pytest.mark.slow
@pytest.mark.parametrize("source", [text for kind, text in BLOCKS if kind == "python"])
def test_a_python_example_of_the_readme_runs(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As printed, from an empty folder."""
    monkeypatch.chdir(tmp_path)
    exec(compile(source, str(README), "exec"), {})


@pytest.mark.slow
def test_the_training_script_prints_the_losses_that_it_states(tmp_path: Path):
    """The log in its docstring, to the digit, in its own process."""
    script = README.parent / "examples" / "scripts" / "train_linear.py"
    done = subprocess.run(
        [sys.executable, "-m", "wse_sim.cli", "script", str(script)],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    stated, printed = (
        [line for line in text.splitlines() if line.startswith("step ")]
        for text in (script.read_text(encoding="utf-8"), done.stdout)
    )
    assert stated == printed != []


PAGES = [
    page
    for folder in (README.parent, README.parent / "docs", README.parent / "docs" / "howto")
    for page in sorted(folder.glob("*.md"))
    if not page.is_symlink()
]


def anchors(page: Path) -> set[str]:
    """Return the names of the headings of a page, as GitHub and the documentation site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {
        re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", re.sub(r"[`*]", "", title)).strip().lower())
        for title in titles
    }


def test_links_of_the_pages_lead_somewhere() -> None:
    """Relative links of README, CONTRIBUTING, CHANGELOG and docs name files that exist, and headings that they have."""
    for page in PAGES:
        links = re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)", page.read_text(encoding="utf-8"))
        for target, anchor in links:
            found = page.parent / target if target else page
            assert found.exists(), f"{page.name} links to {target}"
            if anchor and found.suffix == ".md":
                assert anchor in anchors(found), (
                    f"{page.name} links to {target}#{anchor}, which has no such heading"
                )


def test_a_link_without_its_heading_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One `wafer`: its parts, and words\n```\n# a comment\n```\n## 2 x 2\n")
    assert anchors(page) == {"one-wafer-its-parts-and-words", "2-x-2"}
