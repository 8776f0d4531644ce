"""The page on writing a kernel: its file and its test run unchanged."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from wse_sim.kernels.contract.registry import restored

PAGE = Path(__file__).parents[2] / "docs" / "write-a-kernel.md"


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
        exec(compile(snippet.group(1), "docs/write-a-kernel.md", "exec"), {})


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
