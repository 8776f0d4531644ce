"""Every example runs unchanged: scripts from an empty folder, the notebook as the site executes it."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

FOLDER = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(FOLDER.glob("*.py"))
RUN_S = 300
PROMISES = {
    "a_fabric_program": "north-west core: [ 1.  3.  5.",  # 2 x + 1 for x = 0, 1, 2
    "a_kernel_on_the_fabric": "256 words, chain",
    "a_wafer_of_your_own": "launch_floor_s x 0.5",
    "a_scheduler_of_your_own": "4 decodes a turn: ",
    "run_a_model": "weight-streaming: ",
    "what_fits": "SRAM: ",
}


def test_every_script_is_listed_and_every_listed_script_exists():
    """The table of the folder names the existing files."""
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    for path in [*SCRIPTS, *FOLDER.glob("*.ipynb")]:
        assert f"`{path.name}`" in text
    assert {path.stem for path in SCRIPTS} == set(PROMISES)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_runs(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """A script runs as `python examples/NAME.py` and prints what it states."""
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script), run_name="__main__")
    assert PROMISES[script.stem] in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("notebook", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path):
    """All code cells run in order, as the site shows them: cards, a map and a plot; the file is stored without outputs."""
    pytest.importorskip("IPython")
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    assert all(cell["outputs"] == [] for cell in cells if cell["cell_type"] == "code")
    command = [sys.executable, str(FOLDER.parent / "docs" / "notebook.py"), str(notebook), str(tmp_path)]
    subprocess.run(command, check=True, timeout=RUN_S)
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert page.count('<div class="cell-output">') >= 4  # two results, a comparison, a data frame
    pictures = sorted(tmp_path.glob("*.png"))
    assert len(pictures) == 2
    assert all(f"({path.name})" in page and path.read_bytes().startswith(b"\x89PNG") for path in pictures)


@pytest.mark.slow
def test_a_broken_notebook_ends_the_site(tmp_path: Path):
    """A cell that raises is named, and the status is 1, so that a page never shows half a notebook."""
    pytest.importorskip("IPython")
    notebook = tmp_path / "broken.ipynb"
    cell = {"cell_type": "code", "source": ["1 / 0"], "outputs": []}
    notebook.write_text(json.dumps({"cells": [cell]}), encoding="utf-8")
    command = [
        sys.executable,
        str(FOLDER.parent / "docs" / "notebook.py"),
        str(notebook),
        str(tmp_path / "out"),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert ended.returncode == 1
    assert "cell 0 failed" in ended.stderr
    assert "ZeroDivisionError" in ended.stderr
