"""A study on workers that a job queue starts: dask-jobqueue with its local back end, instead of SLURM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_S = 180
SCRIPT = """
from dask_jobqueue.local import LocalCluster
from wse_sim.studies.runner import run_study

if __name__ == "__main__":
    host = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(cores=1, processes=1, memory="1GB", scheduler_options=host) as cluster:
        cluster.scale(jobs=1)
        spec = {"fixed": {"model": "fc-mnist", "mode": "weight-streaming"}, "grid": {"batch": [64, 128]}, "draws": 0}
        print(run_study(spec, "out", scheduler=cluster.scheduler_address).counts["done"])
"""


@pytest.mark.slow
def test_a_study_runs_on_a_job_queue(tmp_path: Path) -> None:
    """Both settings have results; the workers are jobs that the queue started."""
    pytest.importorskip("dask_jobqueue")
    (tmp_path / "queue_study.py").write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "queue_study.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    )
    assert done.stdout.split()[-1] == "2"
