"""Every command and every Python example of the README is run: docs never promise what is not there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.csl.test_host import COMMANDS as COMMAND_FILE
from tests.csl.test_host import LAYOUT, PE, RUN
from wse_sim.validation import suite

torch = pytest.importorskip("torch")

PROGRAM = {"layout.csl": LAYOUT, "pe.csl": PE, "run.py": RUN, "commands_wse2.sh": COMMAND_FILE}

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
    """The list below is not empty by accident."""
    assert len(COMMANDS) >= 8
    text = README.read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text


def one_point_per_subject(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the last point of each subject in the suites that ship: the values of all are golden numbers."""
    read = suite.load_suite

    def few(path: Path | None = None) -> suite.Suite:
        whole = read(path)
        last = {point.subject: point for point in whole.points}
        return whole.model_copy(update={"points": tuple(last.values())}) if path is None else whole

    monkeypatch.setattr(suite, "load_suite", few)


@pytest.fixture(scope="module")
def study_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the README's study, which its next line draws."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "examples").symlink_to(README.parent / "examples")
    return folder


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(
            line, marks=[pytest.mark.xdist_group("study of the README")] if " study " in line else []
        )
        for line in COMMANDS
    ],
)
def test_a_command_of_the_readme_runs(
    wse, command: str, tmp_path: Path, study_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """As printed, from an empty folder, or one that holds the script or the program that the command names."""
    monkeypatch.chdir(study_folder if command.startswith("wse-sim study") else tmp_path)
    if command.startswith("wse-sim validate"):
        one_point_per_subject(monkeypatch)
    if command.startswith("wse-sim study plot") and not (study_folder / "out").exists():  # if run by itself
        assert wse(*shlex.split(COMMANDS[COMMANDS.index(command) - 1])[1:]).status == 0
    if command.startswith("wse-sim csl run"):
        (tmp_path / "DIR").mkdir()
        for name, text in PROGRAM.items():
            (tmp_path / "DIR" / name).write_text(text, encoding="utf-8")
        assert wse(*shlex.split(command)[1:]).status == 0
        assert (tmp_path / "out" / "csl" / "report.html").stat().st_size > 10_000
        return
    ran = wse(*shlex.split(command)[1:])
    assert ran.status in (0, 1), ran.err
    assert ran.out.strip()
    assert "fault of the simulator" not in ran.err


@pytest.mark.thinned(1)
@pytest.mark.parametrize("source", [text for kind, text in BLOCKS if kind == "python"])
def test_a_python_example_of_the_readme_runs(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As printed, from an empty folder; a training script by its runner, which prints the losses of the log."""
    monkeypatch.chdir(tmp_path)
    if "import cerebras" in source:
        (tmp_path / "train.py").write_text(source, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "wse_sim.cli", "script", "train.py"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert [
            line for line in README.read_text(encoding="utf-8").splitlines() if line.startswith("step ")
        ] == [line for line in done.stdout.splitlines() if line.startswith("step ")]
        return
    exec(compile(source, str(README), "exec"), {})


PAGES = [README, *sorted(README.parent.glob("[A-Z]*.md")), *sorted((README.parent / "docs").glob("*.md"))]


def anchors(page: Path) -> set[str]:
    """Names of the headings of a page, as GitHub and the documentation site make them."""
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
