"""The runner: an interrupted script drains its closures, leaves its report, and reports if the loader is too slow."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from wse_sim.cstorch import outcome, runtime

SCRIPT = """
import os, signal, time
import torch
import cerebras.pytorch as cstorch

def batches():
    draw = torch.Generator().manual_seed(0)
    while True:
        time.sleep(0.02)  # 8 samples in 20 ms: at most 400 samples/s, the wafer takes thousands
        yield torch.randn(8, 4, generator=draw), torch.zeros(8, dtype=torch.long)

backend = cstorch.backend("CSX", artifact_dir="artifacts")
model = torch.nn.Linear(4, 3)
compiled = cstorch.compile(model, backend)
optimizer = cstorch.optim.SGD(model.parameters(), lr=0.1)

@cstorch.trace
def step(x, y):
    loss = torch.nn.functional.cross_entropy(compiled(x), y)
    cstorch.amp.optimizer_step(loss, optimizer)
    return loss

@cstorch.step_closure
def say(number, loss):
    print(f"step {number} loss {loss.item():.6f}", flush=True)

executor = cstorch.utils.data.DataExecutor(cstorch.utils.data.DataLoader(batches), num_steps=100, checkpoint_steps=100)
for number, (x, y) in enumerate(executor, 1):
    say(number, step(x, y))
    if number == 5:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
"""


@pytest.mark.slow
def test_an_interrupted_script_drains_its_closures_and_leaves_its_report(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    ours = ["--no-port", "--measure-input", "--progress", "--report", "out"]
    done = subprocess.run(
        [sys.executable, "-m", "wse_sim.cstorch", *ours, "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's "&" would hide the key
    )
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    # the closure of the step at work ran too
    lines = [line for line in done.stdout.splitlines() if line.startswith("step ")]
    assert [line.split()[1] for line in lines] == ["1", "2", "3", "4", "5"]
    # the loader delivers 400 samples/s at most, and the run says that it binds
    facts = json.loads((tmp_path / "artifacts" / "performance.json").read_text(encoding="utf-8"))
    assert facts["steps"] == 5
    assert facts["samples_per_sec"] < 400
    assert facts["input_bound_seconds"] > 0.9 * facts["wafer_seconds"]
    assert "bound by input workers" in done.stderr
    assert "done: 5 steps" in done.stderr
    # the report: page, maps, trace, and the losses that were printed
    out = tmp_path / "out"
    assert {"report.html", "heatmap_compute.png", "timeline.pftrace", "loss.csv", "run.json"} <= {
        p.name for p in out.iterdir()
    }
    rows = list(csv.DictReader((out / "loss.csv").read_text(encoding="utf-8").splitlines()))
    # the script printed six decimals, the file keeps the digits of a float: they differ by a rounding
    printed = [float(line.split()[3]) for line in lines]
    assert [float(row["loss"]) for row in rows] == pytest.approx(printed, abs=1e-6)
    times = [float(row["wafer_s"]) for row in rows]
    assert times == sorted(times)
    assert times[0] > 0.02  # a batch takes the loader 20 ms
    assert 'id="loss"' in (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("status", "kept"), [(outcome.INTERRUPTED, True), (0, False), (1, False)])
def test_only_a_script_that_ended_takes_the_place_of_an_earlier_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, kept: bool
) -> None:
    """The report of an interrupted script has only its first steps: it is written to an empty folder, but does not
    replace another report.
    """
    run = runtime.Run()
    run.backend = SimpleNamespace(is_csx=True)  # type: ignore[assignment]
    run.compiled = [SimpleNamespace(result=object())]  # type: ignore[list-item]
    run.options.report = str(tmp_path)
    monkeypatch.setattr(runtime.Run, "executes", False)
    written: list[Path] = []
    monkeypatch.setattr(outcome, "_report", lambda run, folder: written.append(folder) or folder)
    outcome.finish(run, status)
    assert written == [tmp_path]
    (tmp_path / outcome.PAGE).write_text("earlier", encoding="utf-8")
    outcome.finish(run, status)
    assert written == [tmp_path] * (1 if kept else 2)
