"""Measures the speed of studies: ``python -m benchmarks.studies`` prints JSON.

settings   1,000 settings of one transformer in weight streaming, store included, on 1 and on 2 workers
store      inserting, finding, counting and reading 100,000 rows
engine     an empty task: what the scheduler can hand out per second

Wall times of a machine that does other work are too long: `load` says how busy it was, `cpu_s` is the CPU time of all
processes.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

from benchmarks import measurements
from benchmarks.measurements import Row
from wse_sim.studies.evaluate import DONE, StudyRow
from wse_sim.studies.runner import run_study
from wse_sim.studies.schema import StudySpec, study_from
from wse_sim.studies.store import Store

STORE_ROWS = 100_000
TASKS = 2000
MANY = 1000  # settings of the row that tells what a whole study takes


def transformer_study(runs: int, draws: int) -> StudySpec:
    """Return the settings of GPT-2 small that differ in the machine: what architects ask."""
    over = {
        "wafer.launch_floor_s": {"from": 1e-4, "to": 4e-4},
        "wafer.sram_bytes": {"from": 40_000, "to": 49_152},
        "cluster.memoryx_bytes_per_s": {"from": 5e10, "to": 4e11, "scale": "log"},
        "wafer.clock_hz": {"from": 0.85e9, "to": 1.1e9},
    }
    return study_from(
        {
            "fixed": {"model": "gpt2-small", "mode": "weight-streaming", "seq": 1024, "batch": 112},
            "sample": {"method": "sobol", "runs": runs, "over": over},
            "draws": draws,
        }
    )


def settings(runs: int, workers: int, draws: int) -> Row:
    """Wall seconds of a whole study, start of the workers and capture included."""
    with tempfile.TemporaryDirectory() as folder:
        begun, before = time.perf_counter(), os.times()
        ran = run_study(transformer_study(runs, draws), folder, workers=workers)
        wall, after = time.perf_counter() - begun, os.times()
        with Store(Path(folder) / "runs.sqlite") as store:
            busy = sum(row["seconds"] for row in store.rows(ran.study))
            first, last, early, inside = _steady(store)
    return {
        "runs": runs, "workers": workers, "draws": draws, "wall_s": wall, "cpu_s": sum(after[:4]) - sum(before[:4]), "done": ran.counts[DONE],
        "seconds_in_runs": busy, "runs_per_s": runs / wall,
        "steady_runs_per_s": (runs - early) / (last - first), "steady_busy_fraction": inside / (last - first) / workers,
        "load": os.getloadavg()[0],
    }  # fmt: skip


def _steady(store: Store) -> tuple[float, float, int, float]:
    """Return when the first and the last rows were written (seconds), how many came with the first, and seconds per
    other row.
    """
    rows = store.db.execute("SELECT made_at, seconds FROM runs ORDER BY made_at").fetchall()
    first, last = rows[0][0], rows[-1][0]
    later = [seconds for at, seconds in rows if at > first]
    return first, last, len(rows) - len(later), sum(later)


def store() -> Row:
    """Return the seconds of CPU that a store of 100,000 rows takes."""
    outputs = {f"output_{i}": i / 7 for i in range(30)}
    found: Row = {"rows": STORE_ROWS}
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "s") as opened:
        made, study = opened.made_with({}), opened.study({})
        begun = time.process_time()
        for start in range(0, STORE_ROWS, 50):  # as tasks end
            numbers = range(start, start + 50)
            opened.put(
                [StudyRow(f"{i:032x}", DONE, outputs, {"output_0": 0.0}, {"output_0": 1.0}) for i in numbers],
                made,
            )
        found["insert_s"] = time.process_time() - begun
        opened.add_members(study, ((i, f"{i:032x}", {"batch": i}) for i in range(STORE_ROWS)))
        for name, ask in (
            ("find_s", lambda: opened.finished(f"{i:032x}" for i in range(STORE_ROWS))),
            ("count_s", lambda: opened.counts(study)),
            ("frame_s", lambda: opened.frame(study, ["output_0", "output_1"])),
        ):
            begun = time.process_time()
            ask()
            found[name] = time.process_time() - begun
        found["bytes"] = (Path(folder) / "s").stat().st_size
    return found


def _nothing(number: int) -> int:
    return number


def engine() -> Row:
    """Return the rate of empty tasks through the scheduler, at which it becomes the bottleneck."""
    import distributed

    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.gather(client.map(_nothing, range(100), pure=False))
        begun = time.perf_counter()
        client.gather(client.map(_nothing, range(TASKS), pure=False))
        wall = time.perf_counter() - begun
    return {"tasks": TASKS, "tasks_per_s": TASKS / wall, "load": os.getloadavg()[0]}


def main() -> None:
    """Measure what is requested and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["settings", "store", "engine"])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--draws", type=int, nargs="*", default=[0, 8])
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    parser.add_argument(
        "--keep", metavar="WHERE", help="write the values into docs/measured.json, with the machine"
    )
    given = parser.parse_args()
    found: Row = {"cores": os.cpu_count()}
    if "settings" in given.parts:
        found["settings"] = [settings(given.runs, n, draws) for draws in given.draws for n in given.workers]
        rate = {(row["draws"], row["workers"]): row["runs_per_s"] for row in found["settings"]}
        steady = {(row["draws"], row["workers"]): row["steady_runs_per_s"] for row in found["settings"]}
        both = [draws for draws in given.draws if (draws, 1) in rate and (draws, 2) in rate]
        for name, rates in (("efficiency_1_to_2", rate), ("steady_efficiency_1_to_2", steady)):
            found[name] = {str(draws): rates[draws, 2] / rates[draws, 1] / 2 for draws in both}
    if "store" in given.parts:
        found["store"] = store()
    if "engine" in given.parts:
        found["engine"] = engine()
    print(json.dumps(found, indent=2))
    if given.keep:
        measurements.keep("studies", _kept(found), given.keep)


def _kept(found: Row) -> Row:
    """Return the content of the page: of the settings those with most draws, on one and two workers."""
    kept: Row = {}
    rows = {(row["draws"], row["workers"]): row for row in found.get("settings", ())}
    if rows:
        draws = max(draws for draws, _ in rows)
        pair = [rows[draws, workers] for workers in (1, 2) if (draws, workers) in rows]
        if len(pair) == 2:
            kept |= {
                "runs": pair[0]["runs"],
                "wall_s": [row["wall_s"] for row in pair],
                "steady_runs_per_s": [row["steady_runs_per_s"] for row in pair],
            }
        if pair[-1]["runs"] >= MANY:
            kept["many"] = {key: pair[-1][key] for key in ("runs", "wall_s", "cpu_s")}
        kept["run_s"] = {
            str(each): row["seconds_in_runs"] / row["runs"]
            for (each, workers), row in rows.items()
            if workers == 1
        }
    if "store" in found:
        kept["store"] = found["store"]
    if "engine" in found:
        kept["tasks_per_s"] = found["engine"]["tasks_per_s"]
    return kept


if __name__ == "__main__":
    main()
