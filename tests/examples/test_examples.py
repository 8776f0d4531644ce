"""Every example runs as it stands: scripts from an empty folder, the notebook cell by cell."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

pytest.importorskip("torch")

FOLDER = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(FOLDER.glob("*.py"))
PROMISES = {
    "a_fabric_program": "north-west core: [ 1.  3.  5.",  # 2 x + 1 for x = 0, 1, 2
    "a_kernel_on_the_fabric": "256 words, chain",
    "a_wafer_of_your_own": "launch_floor_s x 0.5",
    "a_scheduler_of_your_own": "4 decodes a turn: ",
    "run_a_model": "weight-streaming: ",
    "what_fits": "SRAM: ",
}


def test_every_script_is_listed_and_every_listed_script_exists():
    """The table of the folder names the files that are there."""
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    for path in [*SCRIPTS, *FOLDER.glob("*.ipynb")]:
        assert f"`{path.name}`" in text
    assert {path.stem for path in SCRIPTS} == set(PROMISES)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_runs(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """As `python examples/NAME.py`; it prints what it promises."""
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script), run_name="__main__")
    assert PROMISES[script.stem] in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("notebook", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """All code cells in order, in one namespace, without a screen; the file is stored without outputs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    cells = [
        cell
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    assert len(cells) >= 4
    names: dict[str, object] = {}
    for number, cell in enumerate(cells):
        assert cell["outputs"] == []
        exec(compile("".join(cell["source"]), f"{notebook.name}[{number}]", "exec"), names)
    assert "samples/s" in capsys.readouterr().out
