"""A study runs in one process and on workers, is interrupted and continued, and loses workers; every run is counted
once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.doors.test_interrupts import gone
from tests.studies import tasks
from wse_sim import api, worker_processes
from wse_sim.errors import WseError
from wse_sim.studies import pool as pools
from wse_sim.studies import standstill
from wse_sim.studies.evaluate import DIED, DONE, MISFIT, REFUSED
from wse_sim.studies.folder import Folder
from wse_sim.studies.runner import run_study
from wse_sim.studies.schema import study_from
from wse_sim.studies.store import Store
from wse_sim.studies.study_plan import plan

FIXED = {"model": "fc-mnist", "mode": "weight-streaming"}
# A small wafer: its maps are made in no time.
SMALL = {"wafer.rows": 60, "wafer.cols": 60, "wafer.program_rows": 58, "wafer.program_cols": 56}


@pytest.fixture(autouse=True)
def _handmade(monkeypatch):
    monkeypatch.setattr(pools, "capture", tasks.capture)


def study(**more):
    more.setdefault("draws", 0)
    return study_from({"fixed": {**FIXED, **SMALL}, **more})


def frame_of(out, spec=None):
    folder, number, _ = Folder.opened(out)
    with Store(folder.store) as store:
        return store.frame(number)


def test_a_row_has_the_numbers_of_a_run(tmp_path):
    spec = study(grid={"batch": [64, 96]}, draws=4)
    ran = run_study(spec, tmp_path, workers=0)
    assert ran.counts[DONE] == 2
    rows = frame_of(tmp_path)
    wafer = api.load_wafer().derive(rows=60, cols=60, program_rows=58, program_cols=56)
    result = api.run(tasks.handmade(True), mode="weight-streaming", batch=96, wafer=wafer)
    row = rows.iloc[1]
    for name in ("samples_per_s", "step_s", "mfu"):
        assert row[name] == getattr(result, name)
    assert row["binding"] == result.binding
    assert row["samples_per_s.low"] < row["samples_per_s"] < row["samples_per_s.high"]


@pytest.mark.slow
def test_the_same_command_again_runs_nothing_and_a_wider_study_only_what_is_new(tmp_path):
    first = run_study(study(grid={"batch": [8, 16]}), tmp_path / "a", store=tmp_path / "s", workers=0)
    again = run_study(study(grid={"batch": [8, 16]}), tmp_path / "a", store=tmp_path / "s", workers=0)
    wider = run_study(study(grid={"batch": [4, 8, 16]}), tmp_path / "b", store=tmp_path / "s", workers=0)
    assert (first.reused, again.reused, wider.reused) == (0, 2, 2)
    assert len(frame_of(tmp_path / "a")) == 2
    assert len(frame_of(tmp_path / "b")) == 3


def test_what_does_not_fit_is_a_row_with_what_binds(tmp_path):
    spec = study(grid={"wafer.sram_bytes": [4200, 49152, 2**30], "systems": [1, 500]})
    ran = run_study(spec, tmp_path, workers=0)
    rows = frame_of(tmp_path).set_index(["wafer.sram_bytes", "systems"])
    assert rows.loc[(49152, 1), "status"] == DONE
    assert rows.loc[(4200, 1), "status"] == MISFIT
    assert "SRAM" in rows.loc[(4200, 1), "binding"]
    assert rows.loc[(2**30, 1), "binding"] == "wafer area"
    assert "cannot be built" in rows.loc[(2**30, 1), "message"]
    # 500 systems exceed the cluster: a sentence of the compiler, not the end of the study.
    assert rows.loc[(49152, 500), "status"] == REFUSED
    assert "cluster" in rows.loc[(49152, 500), "message"]
    assert sum(ran.counts.values()) == 6


def test_values_that_do_not_go_together_are_rows_too(tmp_path):
    spec = study(grid={"wafer.sram_reserved_bytes": [4176, 60000]})
    study_plan = plan(spec)
    assert len(study_plan.faults) == 1
    run_study(spec, tmp_path, workers=0)
    rows = frame_of(tmp_path)
    assert rows["status"].tolist() == [DONE, REFUSED]
    assert "reserve less" in rows["message"][1]


def test_equal_area_trades_cores_for_memory(tmp_path):
    spec = study_from(
        {"fixed": FIXED, "grid": {"wafer.sram_bytes": [49152, 131072]}, "derive": ["equal-area"], "draws": 0}
    )
    run_study(spec, tmp_path, workers=0)
    rows = frame_of(tmp_path)
    assert rows["cores"][0] == 996 * 757
    assert rows["cores"][1] < 0.6 * rows["cores"][0]
    assert rows["cores_mm2"][1] == pytest.approx(rows["cores_mm2"][0], rel=0.01)


def test_two_commands_on_one_folder_are_one_sentence(tmp_path):
    with Folder(tmp_path).locked(), pytest.raises(WseError, match=f"process {os.getpid()}.*works in"):
        run_study(study(grid={"batch": [8]}), tmp_path, workers=0)
    run_study(study(grid={"batch": [8]}), tmp_path, workers=0)


COMMAND = """
import sys
from tests.studies import tasks
from tests.studies.test_runner import study
from wse_sim.studies import pool
from wse_sim.studies.runner import run_study
pool.capture = tasks.capture
run_study(study(grid={"batch": list(range(8, 128))}), sys.argv[1], workers=0, say=lambda text: print(text, flush=True))
"""


@pytest.mark.slow
def test_a_command_that_is_killed_goes_on_where_it_was(tmp_path):
    command = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert command.stdout is not None
    command.stdout.readline()
    command.stdout.readline()
    os.kill(command.pid, signal.SIGKILL)
    command.wait(60)
    ran = run_study(study(grid={"batch": list(range(8, 128))}), tmp_path, workers=0)
    assert ran.reused > 0
    assert ran.counts[DONE] == 120
    assert len(set(frame_of(tmp_path)["key"])) == 120


@pytest.fixture(scope="module")
def cluster():
    """Start a scheduler and three worker processes on this machine, like a user's own cluster."""
    distributed = pytest.importorskip("distributed")
    dask = pytest.importorskip("dask")
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(
            n_workers=3,
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",
            silence_logs=50,
            memory_limit=0,
        ) as made,
    ):
        yield made


@pytest.mark.slow
def test_a_worker_is_killed_while_it_works_and_every_run_is_counted_once(tmp_path, cluster):
    spec = study(grid={"batch": list(range(8, 128))})
    seen: list[str] = []
    killed: list[int] = []

    def kill_one(text: str) -> None:
        seen.append(text)
        if not killed:  # rows have begun to come: the workers are at work
            busy = next(w for w in cluster.workers.values() if w.pid is not None)
            killed.append(busy.pid)
            os.kill(busy.pid, signal.SIGKILL)

    ran = run_study(spec, tmp_path, scheduler=cluster.scheduler_address, say=kill_one)
    assert killed
    assert len(seen) > 3
    assert ran.counts == {DONE: 120, MISFIT: 0, REFUSED: 0, DIED: 0, "missing": 0}
    rows = frame_of(tmp_path)
    assert sorted(rows["batch"]) == list(range(8, 128))
    assert len(set(rows["key"])) == 120
    alone = run_study(study(grid={"batch": [8, 127]}), tmp_path / "alone", workers=0)
    assert alone.counts[DONE] == 2
    few = frame_of(tmp_path / "alone").set_index("batch")["samples_per_s"]
    assert rows.set_index("batch").loc[[8, 127], "samples_per_s"].tolist() == few.tolist()


@pytest.mark.slow
def test_a_worker_of_ours_that_is_stopped_is_ended_and_every_run_is_done(tmp_path, monkeypatch):
    """It keeps its connection and does not work, so the engine would wait for it; both workers are stopped, one after
    the other.
    """
    pytest.importorskip("distributed")
    monkeypatch.setattr(worker_processes, "LOOK_S", 0.25)
    monkeypatch.setattr(worker_processes, "QUIET_LOOKS", 8)
    made, stopped = [], []
    real = pools.Watch
    monkeypatch.setattr(pools, "Watch", lambda client, cluster: made.append(cluster) or real(client, cluster))

    def stop(text: str) -> None:
        if not stopped:
            stopped.extend(w.pid for w in made[0].workers.values())
            for number in stopped:
                os.kill(number, signal.SIGSTOP)

    ran = run_study(study(grid={"batch": list(range(8, 128))}), tmp_path, workers=2, say=stop)
    assert len(stopped) == 2
    assert ran.counts == {DONE: 120, MISFIT: 0, REFUSED: 0, DIED: 0, "missing": 0}
    assert gone(stopped, 10.0)


@pytest.mark.slow
def test_workers_elsewhere_that_are_stopped_are_one_sentence(tmp_path, cluster, monkeypatch):
    """They are stopped while they work and before; finished rows are kept, and the same study continues when they do."""
    monkeypatch.setattr(standstill, "ASK_LOOKS", 1)
    monkeypatch.setattr(worker_processes, "LOOK_S", 0.5)
    monkeypatch.setattr(worker_processes, "QUIET_LOOKS", 8)
    monkeypatch.setattr(pools, "ANSWER_S", 3.0)
    spec, numbers = study(grid={"batch": list(range(8, 128))}), [w.pid for w in cluster.workers.values()]

    def stop(text: str = "") -> None:
        for number in numbers:
            os.kill(number, signal.SIGSTOP)

    try:
        with pytest.raises(
            WseError, match=r"no worker of the scheduler has responded for 4 s.*run the same command"
        ):
            run_study(spec, tmp_path, scheduler=cluster.scheduler_address, say=stop)
        with pytest.raises(WseError, match="has not answered for 3 s"):
            run_study(spec, tmp_path, scheduler=cluster.scheduler_address)
    finally:
        for number in numbers:
            os.kill(number, signal.SIGCONT)
    monkeypatch.undo()
    monkeypatch.setattr(pools, "capture", tasks.capture)
    again = run_study(spec, tmp_path, scheduler=cluster.scheduler_address)
    assert again.counts[DONE] == 120
    assert again.reused > 0


def test_what_gives_no_sign_for_some_looks_is_still():
    still = standstill.Stillness()
    for look in range(6):
        found = still.look({"works": float(look), "stands": 3.0, "late": min(look, 3)}, looks=3)
        assert found == ([] if look < 3 else ["stands"])
    assert still.look({"late": 3}, looks=3) == ["late"]
    assert still.look({"late": 3, "new": 0}, looks=3) == ["late"]


@pytest.mark.slow
def test_the_setting_that_ends_its_worker_is_found_and_the_others_run(tmp_path, cluster, monkeypatch):
    spec, out = study(grid={"batch": [11, 12, 13, 14]}), tmp_path / "hungry"
    with monkeypatch.context() as patch:
        patch.setattr(pools, "evaluate", tasks.hungry)
        patch.setattr("wse_sim.studies.runner.cut", lambda requests, *_: [pools.Portion(tuple(requests))])
        ran = run_study(spec, out, scheduler=cluster.scheduler_address)
    assert ran.counts[DIED] == 1
    assert ran.counts[DONE] == 3
    rows = frame_of(out).set_index("batch")
    assert rows.loc[13, "status"] == DIED
    assert "out of memory" in rows.loc[13, "message"]
    again = run_study(spec, out, scheduler=cluster.scheduler_address)
    assert again.counts[DONE] == 4  # it is tried again, and lives


@pytest.mark.slow
def test_a_result_that_dies_with_its_worker_before_it_is_read_is_computed_again(tmp_path, cluster):
    """The worker ends after the task and before the client asks for the rows: the task runs again."""
    (request,) = plan(study(grid={"batch": [8]})).requests.values()
    pool = pools.Dask(scheduler=cluster.scheduler_address)
    try:
        pool.submit(pools.Portion((request,)))
        (future,) = pool._tasks
        pool._client.gather(future)
        (where,) = pool._client.who_has([future])[future.key]
        os.kill(pool._client.run(os.getpid, workers=[where])[where], signal.SIGKILL)
        while future.status == "finished":  # the scheduler has not told yet
            time.sleep(0.01)
        assert [row.status for (row,) in pool.finished()] == [DONE]
    finally:
        pool.close()


SCHEDULER = """
import time
import distributed
made = distributed.LocalCluster(n_workers=1, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address="127.0.0.1:0", silence_logs=50)
print(made.scheduler_address, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_a_scheduler_that_is_killed_is_one_sentence_and_rows_are_kept(tmp_path, capfd):
    """The engine's own messages do not appear; the same study continues elsewhere."""
    pytest.importorskip("distributed")
    its = subprocess.Popen(
        [sys.executable, "-c", SCHEDULER],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert its.stdout is not None
    address = its.stdout.readline().strip()
    spec = study(grid={"batch": list(range(8, 2008))})
    try:
        with pytest.raises(WseError, match=r"can no longer be reached.*run the same command to continue"):
            run_study(spec, tmp_path, scheduler=address, say=lambda text: os.kill(its.pid, signal.SIGKILL))
    finally:
        its.kill()
        its.wait(60)
    assert "Traceback" not in capfd.readouterr().err
    kept = frame_of(tmp_path)["batch"].tolist()
    assert 0 < len(kept) < 2000
    few = study(grid={"batch": kept[:100]})
    again = run_study(few, tmp_path / "few", store=tmp_path / "runs.sqlite", workers=0)
    assert again.reused == again.counts[DONE] == len(kept[:100])


FULL = """
import resource, sys
from tests.studies import tasks
from tests.studies.test_runner import study
from wse_sim.door import run as door
from wse_sim.cli import app
from wse_sim.studies import pool
pool.capture = tasks.capture
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sys.exit(door(app, ["study", sys.argv[2], "--out", sys.argv[3], "--workers", "0", "--quiet"]))
"""


@pytest.mark.slow
def test_a_disk_that_fills_while_a_study_runs_loses_no_row(tmp_path):
    """Files may grow to only 300 kB: the system refuses more, as a full disk does; with room the same command
    completes.
    """
    import yaml

    (tmp_path / "s.yaml").write_text(
        yaml.safe_dump({"fixed": {**FIXED, **SMALL}, "draws": 0, "grid": {"batch": list(range(8, 208))}}),
        encoding="utf-8",
    )
    words = [str(tmp_path / "s.yaml"), str(tmp_path / "out")]
    full = subprocess.run(
        [sys.executable, "-c", FULL, "300000", *words], capture_output=True, text=True, check=False
    )
    assert full.returncode == 2
    assert full.stderr.count("\n") == 1
    assert "make room and run the same command" in full.stderr
    room = subprocess.run(
        [sys.executable, "-c", FULL, "100000000", *words], capture_output=True, text=True, check=False
    )
    assert room.returncode == 0, room.stderr
    assert "200 runs: 200 with a result" in room.stdout
    assert "were in the store" in room.stdout
    assert len(set(frame_of(tmp_path / "out")["key"])) == 200


@pytest.mark.slow
def test_a_worker_that_runs_out_of_memory_is_a_row_and_the_others_run(tmp_path, monkeypatch):
    """A setting takes 3 GB on workers of 1.5 GB: their nannies end them, the row states this, and the others have
    results.
    """
    pytest.importorskip("distributed")
    monkeypatch.setattr(pools, "evaluate", tasks.memory_hungry)
    spec = study(grid={"batch": [11, 12, 13, 14]})
    ran = run_study(spec, tmp_path, workers=1, memory_limit="1.5GB")
    assert (ran.counts[DONE], ran.counts[DIED]) == (3, 1)
    row = frame_of(tmp_path).set_index("batch").loc[13]
    assert "out of memory" in row["message"]
    assert "give workers more memory" in row["message"]


@pytest.mark.slow
def test_no_scheduler_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(pools, "CONNECT_S", 0.5)
    with pytest.raises(WseError, match=r"cannot be reached.*check the address"):
        run_study(study(grid={"batch": [8]}), tmp_path, scheduler="tcp://127.0.0.1:9")


@pytest.mark.slow
def test_without_the_engine_the_sentence_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(pools.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(WseError, match=r"pip install 'wse-sim\[study\]'.*--workers 0"):
        run_study(study(grid={"batch": [8]}), tmp_path, workers=2)


def test_a_study_is_planned_in_chunks_and_few_tasks_wait(tmp_path, monkeypatch):
    """With chunks of 5 settings and tasks of 2, no setting is lost or run twice, and few tasks wait."""
    from wse_sim.studies import runner, study_plan

    spec = study(grid={"batch": [8, 8.0, *range(9, 27)], "micro_batch": [None]}, constraints=["batch != 11"])
    monkeypatch.setattr(runner, "planned_chunks", lambda given: study_plan.planned_chunks(given, 5))
    monkeypatch.setattr(runner, "cut", lambda requests, *_: [pools.Portion((one,)) for one in requests])
    waiting, ran = [], []
    submit, evaluate = pools.Inline.submit, pools.evaluate
    monkeypatch.setattr(
        pools.Inline, "submit", lambda pool, task: (submit(pool, task), waiting.append(pool.pending))
    )
    monkeypatch.setattr(
        pools,
        "evaluate",
        lambda graph, requests: ran.extend(r.key for r in requests) or evaluate(graph, requests),
    )
    texts: list[str] = []
    done = run_study(spec, tmp_path, workers=0, say=texts.append)
    frame = frame_of(tmp_path)
    assert frame["batch"].tolist() == [8, 8, 9, 10, *range(12, 27)]
    assert done.counts[DONE] == len(frame) == 19
    assert len(ran) == len(set(ran)) == 18  # 8 and 8.0 are one run
    assert max(waiting) <= runner.AHEAD + 1
    assert texts[-1].startswith("18 of 18 runs")
    again = run_study(spec, tmp_path, workers=0)
    assert (again.reused, len(ran)) == (18, 18)


def test_a_task_carries_differences_and_a_worker_makes_the_same_requests_of_them(tmp_path):
    """Other constants, chips, options and models give equal requests, in a fraction of the bytes."""
    import pickle

    from wse_sim.studies.request_differences import pack, unpack

    grid = {
        "batch": [8, 9],
        "wafer.sram_bytes": [49152, 131072],
        "wafer": ["wse2", "wse3"],
        "chip.most_power_w": [3e4, 9e4],
        "cluster.swarmx_hop_s": [1e-6, 5e-6],
    }
    settings = plan(study_from({"fixed": FIXED, "grid": grid, "draws": 0, "derive": ["equal-area"]}))
    requests = list(settings.requests.values())
    base = requests[3]
    assert len(requests) == 32
    for request in requests:
        assert unpack(pickle.loads(pickle.dumps(pack(request, base))), base) == request
    near = [one for one in requests if one.options.wafer.name == base.options.wafer.name]
    assert len(near) == 16
    assert len(pickle.dumps([pack(one, base) for one in near])) < len(pickle.dumps(near)) / 5


def test_a_summary_names_the_causes_of_runs_without_a_result(tmp_path):
    """The summary has bottlenecks, and sentences without their numbers, each with its count."""
    from wse_sim.studies.runner import summary

    ran = run_study(
        study(grid={"wafer.sram_bytes": [4200, 4300, 49152], "systems": [1, 500, 600]}), tmp_path, workers=0
    )
    lines = summary(ran).splitlines()
    assert lines[0].startswith("9 runs: 1 with a result, ")
    assert sum(int(line.split()[0]) for line in lines[1:]) == 8
    assert any(line.startswith("  6 x refused: N systems exceed the N of cluster") for line in lines[1:]), (
        lines
    )
    assert "  2 x does not fit: SRAM" in lines, lines


def test_a_study_of_program_rows_alone_is_told_that_no_area_moves():
    """With rows along, or without either, nothing is said."""
    from wse_sim.studies.schema import remarks

    (text,) = remarks(study_from({"fixed": FIXED, "grid": {"wafer.program_rows": [58, 60]}}))
    assert "'wafer.rows'" in text
    both = {"zip": [{"wafer.program_rows": [58, 60], "wafer.rows": [60, 62]}]}
    assert remarks(study_from({"fixed": FIXED, **both})) == []
    assert remarks(study_from({"fixed": FIXED, "grid": {"batch": [8]}})) == []
