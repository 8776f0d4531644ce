"""Files from untrusted sources execute no code, lead to no other file and take no more memory than their size."""

from __future__ import annotations

import csv
import json
import os
import signal
import sqlite3
from pathlib import Path

import pytest

from tests.children import start_child, status_of
from tests.studies import tasks
from wse_sim.cli import app
from wse_sim.csl.host.commands import run_commands
from wse_sim.door import run as door
from wse_sim.errors import ConfigError, WseError
from wse_sim.files import MAX_DEPTH, csv_cell, read_yaml
from wse_sim.report.pages import as_json
from wse_sim.studies import pool
from wse_sim.studies.folder import Folder
from wse_sim.studies.runner import run_study
from wse_sim.studies.schema import read_study
from wse_sim.studies.store import Store

STUDY = "fixed: {model: fc-mnist, mode: weight-streaming}\ngrid: {batch: [4]}\ndraws: 0\noutputs: [samples_per_s]\n"


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the folder of a study of one run."""
    monkeypatch.setattr(pool, "capture", tasks.capture)
    (tmp_path / "one.yaml").write_text(STUDY)
    run_study(read_study(tmp_path / "one.yaml"), tmp_path / "out", workers=0)
    return tmp_path / "out"


def _set(folder: Path, **columns: object) -> None:
    """Change the one member of a store, as a sender could."""
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
    """The file that the store names runs only with --run-code (then it fails, as it gives no model)."""
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


def test_a_suite_and_a_run_run_no_code_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A factory that a received suite or statement names is not imported; with --run-code it is."""
    (tmp_path / "evil.py").write_text("raise ZeroDivisionError\n")
    spec = f"{tmp_path / 'evil.py'}:f"
    point = {"id": "a", "system": "wse2", "subject": "model.training", "quantity": "samples_per_s", "measured": 9, "unit": "samples/s",
             "evidence": "none", "source": "x", "params": {"mode": "weight_streaming", "model": spec, "batch": 8, "systems": 1}}  # fmt: skip
    (tmp_path / "suite.yaml").write_text(json.dumps({"schema": 1, "points": [point]}))
    (tmp_path / "mine" / "a").mkdir(parents=True)
    (tmp_path / "mine" / "a" / "run.yaml").write_text(
        f"model: {spec}\nwafer: wse2\nbatch: 8\nsystems: 1\nmode: weight-streaming\nsamples_per_s: 9\n"
    )
    for words in (["--data", str(tmp_path / "suite.yaml")], ["--mine", str(tmp_path / "mine")]):
        door(app, ["validate", *words, "--quiet"])
        said = capsys.readouterr()
        assert "then give --run-code" in said.out + said.err
        assert "ZeroDivisionError" not in said.out + said.err
        door(app, ["validate", *words, "--quiet", "--run-code"])
        said = capsys.readouterr()
        assert "ZeroDivisionError" in said.out + said.err


def test_a_store_that_a_file_names_is_only_read(ran: Path, tmp_path: Path) -> None:
    """A received study.json may name any SQLite file: its bytes are unchanged, and no file appears next to it."""
    private = tmp_path / "private"
    private.mkdir()
    db = sqlite3.connect(private / "cookies.sqlite")
    db.execute("CREATE TABLE cookies (name TEXT)")
    db.commit()
    db.close()
    before = (private / "cookies.sqlite").read_bytes()
    link = json.loads((ran / "study.json").read_text()) | {"store": str(private / "cookies.sqlite")}
    (ran / "study.json").write_text(json.dumps(link))
    assert door(app, ["study", "export", str(ran), "--format", "csv"]) == 2
    assert (private / "cookies.sqlite").read_bytes() == before
    assert [path.name for path in private.iterdir()] == ["cookies.sqlite"]


def test_a_store_with_a_view_for_a_table_is_refused(ran: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A view may compute without end."""
    opened, _, _ = Folder.opened(ran)
    db = sqlite3.connect(opened.store)
    db.executescript(
        "ALTER TABLE studies RENAME TO other; CREATE VIEW studies AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
        "SELECT i AS id, '{}' AS spec, i AS begun_at, '' AS digest FROM n;"
    )
    db.close()
    assert door(app, ["study", "plot", str(ran)]) == 2
    assert "holds 'studies', which studies do not write" in capsys.readouterr().err


def test_rows_of_a_killed_study_are_read(ran: Path) -> None:
    """A log of SQLite that is not yet in the file counts for readers too."""
    opened, number, _ = Folder.opened(ran)

    def die_late() -> None:
        store = Store(opened.store)
        store.db.execute("PRAGMA wal_autocheckpoint=0")
        store.db.execute("UPDATE runs SET message='late'")
        os.kill(os.getpid(), signal.SIGKILL)

    assert status_of(start_child(die_late)) == -signal.SIGKILL
    assert (opened.store.parent / "runs.sqlite-wal").stat().st_size
    with Store(opened.store, readonly=True) as store:
        assert [row["message"] for row in store.rows(number)] == ["late"]


def test_tables_hold_no_formulas(ran: Path) -> None:
    """A spreadsheet interprets a text that begins with = + - @ as a formula; numbers below zero remain numbers."""
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


def test_data_of_a_page_cannot_open_or_close_an_element() -> None:
    """`<!--<script>` keeps a script element open over its end; JSON reads the escape back."""
    data = {"name": "<!--<script> </script>"}
    assert "<" not in as_json(data)
    assert json.loads(as_json(data)) == data


def test_aliases_and_nesting_of_yaml_are_bounded(tmp_path: Path) -> None:
    """Ten lines represent 10^8 values; a tenth of them represents its own values."""
    file = tmp_path / "x.yaml"
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 8)]
    file.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="aliases expand to more than"):
        read_yaml(file)
    file.write_text("\n".join(lines[:3]))  # 11 nodes ten times, then the 111 that these are
    assert len(read_yaml(file)["a2"]) == 10
    file.write_text(f"a: {'[' * (MAX_DEPTH + 1)}{']' * (MAX_DEPTH + 1)}")
    with pytest.raises(ConfigError, match="too deeply"):
        read_yaml(file)
    file.write_text("a: &a [*a]")
    with pytest.raises(ConfigError, match="refers to itself"):
        read_yaml(file)


@pytest.mark.slow
def test_the_compiler_imports_nothing_that_lies_beside_a_program(tmp_path: Path) -> None:
    """`cslc` of a command file starts in the program's folder: random.py there belongs to the program, not to Python."""
    (tmp_path / "random.py").write_text("import pathlib\npathlib.Path('MARK').touch()\nraise SystemExit(7)\n")
    (tmp_path / "commands.sh").write_text("cslc none.csl --fabric-dims=8,3\n")
    done = run_commands(tmp_path / "commands.sh", quiet=True, timeout_s=120)
    assert not (tmp_path / "MARK").exists()
    assert done.returncode == 2
    assert "none.csl" in done.stderr
