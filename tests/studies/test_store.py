"""The store: committed rows survive a kill -9, keys cover everything that a run depends on, faults are one sentence."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from wse_sim.errors import WseError
from wse_sim.hardware.wafer import read_wafer
from wse_sim.studies.evaluate import DIED, DONE, MISFIT, StudyRow
from wse_sim.studies.schema import study_from
from wse_sim.studies.settings import Resolver
from wse_sim.studies.store import Store

FIXED = {"model": "fc-mnist", "mode": "weight-streaming"}


def key(setting=None, **more):
    spec = study_from({"fixed": FIXED, **more})
    return Resolver(spec).request({**FIXED, **(setting or {})}).key


def test_a_key_says_what_the_run_depends_on_and_nothing_else():
    plain = key()
    assert key({"batch": 112}) == plain  # the default, stated
    assert key({"wafer.sram_bytes": 49152}) == plain  # a constant at its value
    assert key({"pipelined.placer": "peel"}) == plain  # an option of a mode that does not run
    assert key(outputs=["mfu"], about="other words", constraints=["batch > 1"]) == plain
    assert key({"wafer": "wse2"}) == plain
    others = [
        key({"batch": 113}), key({"wafer.sram_bytes": 49153}), key({"cluster.swarmx_hop_s": 1e-6}), key({"seq": 5}),
        key({"model": "gpt2-small"}), key({"model.hidden": 65}), key({"wafer": "wse3"}), key({"seed": 1}),
        key({"optimizer": "sgd"}), key(draws=0), key({"chip.most_power_w": 9e4}), key({"wafer.dead_rows": [3]}),
    ]  # fmt: skip
    assert len({plain, *others}) == len(others) + 1


def test_a_wafer_of_ones_own_with_equal_constants_is_the_same_run(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("name: wse2\nbase: wse2\n", encoding="utf-8")
    assert key({"wafer": str(path)}) == key()
    path.write_text(
        "name: other\nbase: wse2\nconstants:\n  rows: {value: 990, unit: '1', source: s, evidence: assumed}\n"
        "  program_rows: {value: 980, unit: '1', source: s, evidence: assumed}\n",
        encoding="utf-8",
    )
    read_wafer.cache_clear()
    assert key({"wafer": str(path)}) != key()


def test_rows_come_back_as_they_went_in_and_a_finished_run_stays(tmp_path):
    rows = [
        StudyRow(
            "a", DONE, {"mfu": 0.1 + 0.2}, {"mfu": 0.2}, {"mfu": 0.4}, "weight-streaming", "compute", "", 0.5
        ),
        StudyRow("b", MISFIT, {}, {}, {}, "pipelined", "SRAM", "too large", 0.1),
        StudyRow("c", DIED, message="gone"),
    ]
    with Store(tmp_path / "s") as store:
        made = store.made_with({"version": 1})
        assert store.made_with({"version": 1}) == made
        store.put(rows, made)
        assert [store.run(row.key) for row in rows] == rows
        store.put([StudyRow("a", DONE, {"mfu": 9.0}), StudyRow("c", DONE, {"mfu": 1.0})], made)
        assert store.run("a") == rows[0]  # counted once
        assert store.run("c") == StudyRow("c", DONE, {"mfu": 1.0})  # a run that died is tried again
        assert store.finished(["a", "b", "c", "d"]) == {"a", "b", "c"}


def test_a_frame_has_one_row_per_member_in_order(tmp_path):
    with Store(tmp_path / "s") as store:
        made, study = store.made_with({}), store.study({"name": 1})
        store.put(
            [
                StudyRow("a", DONE, {"mfu": 0.3}, {"mfu": 0.2}, {"mfu": 0.4}),
                StudyRow("b", MISFIT, binding="SRAM"),
            ],
            made,
        )
        store.add_members(study, [(2, "a", {"batch": 2}), (1, "b", {"batch": 1}), (0, "a", {"batch": 0})])
        frame = store.frame(study, ["mfu"])
        assert store.counts(study) == {"done": 2, "misfit": 1, "refused": 0, "died": 0, "missing": 0}
    assert frame["batch"].tolist() == [0, 1, 2]
    assert frame["mfu.high"].dropna().tolist() == [0.4, 0.4]
    assert frame["binding"].tolist()[1] == "SRAM"


WRITER = """
import sys
from wse_sim.studies.evaluate import DONE, Row
from wse_sim.studies.store import Store
with Store(sys.argv[1]) as store:
    made, number = store.made_with({}), 0
    while True:
        store.put([Row(f"{number + i}", DONE, {"x": float(number)}) for i in range(50)], made)
        number += 50
        print(number, flush=True)
"""


@pytest.mark.slow
def test_committed_rows_outlive_a_kill_and_no_transaction_is_torn(tmp_path):
    path = tmp_path / "s"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    said = 0
    for line in writer.stdout:
        said = int(line)
        if said >= 500:
            break
    os.kill(writer.pid, signal.SIGKILL)
    rest = writer.stdout.read().split()
    writer.wait(60)
    said = int(rest[-1]) if rest else said
    with Store(path) as store:
        kept = store.db.execute("SELECT count(*) FROM runs").fetchone()[0]
        assert store.db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    assert kept >= said
    assert kept % 50 == 0


def test_two_writers_take_turns(tmp_path):
    with Store(tmp_path / "s") as one, Store(tmp_path / "s") as two:
        made = one.made_with({})
        one.put([StudyRow("a", DONE)], made)
        two.put([StudyRow("a", DONE), StudyRow("b", DONE)], made)
        assert one.finished(["a", "b"]) == {"a", "b"}


def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path):
    with Store(tmp_path / "s") as store:
        made = store.made_with({})
        store.put([StudyRow("a", DONE)], made)
        pages = store.db.execute("PRAGMA page_count").fetchone()[0]
        store.db.execute(f"PRAGMA max_page_count={pages + 4}")
        with pytest.raises(WseError, match="make room and run the same command"):
            store.put([StudyRow(f"{i}", DONE, message="x" * 500) for i in range(1000)], made)
        assert store.finished(["a", "0", "999"]) == {"a"}
        store.db.execute("PRAGMA max_page_count=1000000")
        store.put([StudyRow("b", DONE)], made)  # room was made


def test_what_is_no_store_is_one_sentence(tmp_path):
    (tmp_path / "text").write_text("no database, but long enough to be taken for one " * 40, encoding="utf-8")
    with pytest.raises(WseError, match="is not a store of runs or is damaged"):
        Store(tmp_path / "text")
    with pytest.raises(WseError, match="run the study first"):
        Store(tmp_path / "none", readonly=True)
    with pytest.raises(WseError, match="cannot be used"):
        Store(tmp_path)
    other = sqlite3.connect(tmp_path / "new")
    other.execute("CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
    other.execute("INSERT INTO about VALUES ('schema', '99')")
    other.commit()
    other.close()
    with pytest.raises(WseError, match="has schema 99"):
        Store(tmp_path / "new")


@pytest.mark.slow
def test_a_hundred_thousand_rows_stay_usable(tmp_path):
    """The limits are not tight: far below what would delay a study, even on a busy machine."""
    with Store(tmp_path / "s") as store:
        made, study = store.made_with({}), store.study({})
        for start in range(0, 100_000, 5000):
            rows = [StudyRow(f"{i:032x}", DONE, {"mfu": i / 1e5}) for i in range(start, start + 5000)]
            store.put(rows, made)
            store.add_members(study, [(i, f"{i:032x}", {"batch": i}) for i in range(start, start + 5000)])
        begun = time.process_time()
        assert len(store.finished(f"{i:032x}" for i in range(0, 100_000, 100))) == 1000
        assert store.counts(study)["done"] == 100_000
        assert store.seconds_of("weight-streaming") is None
        assert time.process_time() - begun < 5.0
