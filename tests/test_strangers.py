"""Files that come from strangers run no code, lead to no other file and take no more memory than they are large."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.studies import tasks
from wse_sim.cli import app
from wse_sim.csl.host.commands import run_commands
from wse_sim.door import run as door
from wse_sim.errors import ConfigError, WseError
from wse_sim.files import MAX_DEPTH, csv_cell, read_yaml
from wse_sim.report.html import _json as page_json
from wse_sim.studies import pool
from wse_sim.studies.folder import Folder
from wse_sim.studies.page import _json as study_json
from wse_sim.studies.runner import run_study
from wse_sim.studies.schema import read_study
from wse_sim.studies.store import Store

STUDY = "fixed: {model: fc-mnist, mode: weight-streaming}\ngrid: {batch: [4]}\ndraws: 0\noutputs: [samples_per_s]\n"


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a study of one run."""
    monkeypatch.setattr(pool, "capture", tasks.capture)
    (tmp_path / "one.yaml").write_text(STUDY)
    run_study(read_study(tmp_path / "one.yaml"), tmp_path / "out", workers=0)
    return tmp_path / "out"


def _set(folder: Path, **columns: object) -> None:
    """Change the one member of a store, as somebody who passes it on could."""
    opened, _, _ = Folder.opened(folder)
    with Store(opened.store) as store:
        for name, value in columns.items():
            table = "members" if name == "parameters" else "runs"
            store.db.execute(f"UPDATE {table} SET {name} = ?", (value,))
        store.db.commit()


@pytest.mark.parametrize("what", ["model", "mode", "pipelined.placer"])
def test_a_result_of_a_study_runs_no_code_unasked(
    ran: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    """The file that the store names runs with --run-code only (then it fails, as it gives no model)."""
    monkeypatch.chdir(ran)
    Path("evil.py").write_text("import pathlib\npathlib.Path('MARK').touch()\nf = None\n")
    setting = {"model": "fc-mnist", "mode": "weight-streaming", "batch": 4} | {what: "evil.py:f"}
    _set(ran, parameters=json.dumps(setting))
    assert door(app, ["study", "result", str(ran), "0"]) == 2
    assert "read that file, then give --run-code" in capsys.readouterr().err
    assert not Path("MARK").exists()
    if what == "model":
        assert door(app, ["study", "result", str(ran), "0", "--run-code"]) == 2
        assert Path("MARK").exists()


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "..", ".x", "", "a\nb", "a\\b"])
def test_a_study_is_named_by_no_path(ran: Path, name: str) -> None:
    link = ran / "study.json"
    link.write_text(json.dumps(json.loads(link.read_text()) | {"name": name}))
    with pytest.raises(WseError, match="give a plain name"):
        Folder.opened(ran)


def test_tables_hold_no_formulas(ran: Path) -> None:
    """A spreadsheet takes a text that begins with = + - @ for a formula; numbers below zero stay numbers."""
    _set(ran, message="=cmd|'/c calc'!A0", outputs=json.dumps({"@x": -1.5}))
    assert door(app, ["study", "export", str(ran), "--format", "csv"]) == 0
    with (ran / "study.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["message"] == "'=cmd|'/c calc'!A0"
    assert row["'@x"] == "-1.5"
    assert [csv_cell(value) for value in ("+1", "@a", "\tx", "a=1", -1, None)] == [
        "'+1",
        "'@a",
        "'\tx",
        "a=1",
        -1,
        None,
    ]


@pytest.mark.parametrize("write", [page_json, study_json])
def test_data_of_a_page_cannot_open_or_close_an_element(write: Callable[[dict[str, str]], str]) -> None:
    """`<!--<script>` keeps a script element open over its end; JSON reads the escape back."""
    data = {"name": "<!--<script> </script>"}
    assert "<" not in write(data)
    assert json.loads(write(data)) == data


def test_aliases_and_nesting_of_yaml_are_bounded(tmp_path: Path) -> None:
    """Ten lines stand for 10^8 values; the tenth of them stands for what it says."""
    file = tmp_path / "x.yaml"
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 8)]
    file.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="aliases stand for more than"):
        read_yaml(file)
    file.write_text("\n".join(lines[:3]))  # 11 nodes ten times, then the 111 that these are
    assert len(read_yaml(file)["a2"]) == 10
    file.write_text(f"a: {'[' * (MAX_DEPTH + 1)}{']' * (MAX_DEPTH + 1)}")
    with pytest.raises(ConfigError, match="too deeply"):
        read_yaml(file)
    file.write_text("a: &a [*a]")
    with pytest.raises(ConfigError, match="stands for itself"):
        read_yaml(file)


def test_the_compiler_imports_nothing_that_lies_beside_a_program(tmp_path: Path) -> None:
    """`cslc` of a command file starts in the program's folder: random.py there is the program's, not Python's."""
    (tmp_path / "random.py").write_text("import pathlib\npathlib.Path('MARK').touch()\nraise SystemExit(7)\n")
    (tmp_path / "commands.sh").write_text("cslc none.csl --fabric-dims=8,3\n")
    done = run_commands(tmp_path / "commands.sh", quiet=True, timeout_s=120)
    assert not (tmp_path / "MARK").exists()
    assert done.returncode == 2
    assert "none.csl" in done.stderr
