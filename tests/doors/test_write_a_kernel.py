"""The pages on writing a kernel: their files and tests run unchanged."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from wse_sim.kernels.contract.registry import restored

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "howto" / "own-faces.md"
FILES = ("axial_core.py", "axial.py", "test_axial.py")


def saved(folder: Path) -> None:
    """Save the files of docs/write-a-kernel.md, all that it has."""
    text = (DOCS / "write-a-kernel.md").read_text(encoding="utf-8")
    files = re.findall(r'```python title="(.*?)"\n(.*?)```', text, re.S)
    assert tuple(name for name, _ in files) == FILES
    for name, content in files:
        (folder / name).write_text(content, encoding="utf-8")


@pytest.mark.slow
def test_a_family_in_three_files_runs_everywhere(tmp_path: Path) -> None:
    """Alone forward and backward, and on the whole fabric in inference and training, with the values of PyTorch."""
    saved(tmp_path)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_axial.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-2000:]
    assert "4 passed" in ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["forward", "input_gradient"])
def test_a_family_in_three_files_is_a_program_in_csl(tmp_path: Path, phase: str) -> None:
    """Its script compares every value of the run."""
    saved(tmp_path)
    what = "--param elements=512 --param n=16 --param dtype=fp16 --param rows=2 --param cols=2"
    lines = (
        f"kernel axial --kernels axial.py {what} --param phase={phase} --emit csl out",
        "csl run out/commands_wse2.sh",
    )
    for line in lines:
        ran = subprocess.run(
            [sys.executable, "-m", "wse_sim.cli", *line.split()],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
    assert "SUCCESS" in ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["pipelined", "weight-streaming"])
@pytest.mark.parametrize("phase", ["inference", "training"])
def test_a_family_in_three_files_runs_in_both_modes(tmp_path: Path, mode: str, phase: str) -> None:
    """A model of its test is simulated, with a kernel for each rotation."""
    saved(tmp_path)
    model = (
        "from test_axial import *\n\n\ndef block():\n    return Block(), (torch.zeros(1, T, HEADS * D),)\n"
    )
    (tmp_path / "model.py").write_text(model, encoding="utf-8")
    line = f"run model.py:block --mode {mode} --phase {phase} --batch 16 --json"
    ran = subprocess.run(
        [sys.executable, "-m", "wse_sim.cli", *line.split()],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["samples_per_s"] > 0


def test_the_snippet_under_test_it_runs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader saves the first block as saxpy.py and runs the block under "Test it": its own faces agree."""
    text = PAGE.read_text(encoding="utf-8")
    file = re.search(r"```python\n(.*?)```", text, re.S)
    snippet = re.search(r"Test it:.*?```python\n(.*?)```", text, re.S)
    assert file is not None
    assert snippet is not None
    (tmp_path / "saxpy.py").write_text(file.group(1), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with restored():
        exec(compile(snippet.group(1), "docs/howto/own-faces.md", "exec"), {})


@pytest.mark.slow
def test_the_command_of_the_page_runs_in_an_empty_folder(tmp_path: Path) -> None:
    """The folder contains only saxpy.py: cost and program agree within the band that the page states."""
    text = PAGE.read_text(encoding="utf-8")
    file, line = (
        re.search(r"```python\n(.*?)```", text, re.S),
        re.search(r"```bash\nwse-sim (.*?)\n```", text, re.S),
    )
    assert file is not None
    assert line is not None
    (tmp_path / "saxpy.py").write_text(file.group(1), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "wse_sim.cli", *line.group(1).split(), "--json"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert abs(found["difference"]) <= 0.01
