"""A training script that ran here, its folder handed to ``--mine``: no error by its record; by its printed log the first step's load."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from wse_sim.hardware import load_cluster
from wse_sim.serialize import load
from wse_sim.validation.run import validate
from wse_sim.validation.user_runs import load_mine

SCRIPT = """
import torch
import cerebras.pytorch as cstorch

def batches():
    draw = torch.Generator().manual_seed(0)
    while True:
        yield torch.randn(32, 64, generator=draw), torch.zeros(32, dtype=torch.long)

backend = cstorch.backend("CSX", artifact_dir="runs/recorded/art")
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
compiled = cstorch.compile(model, backend)
optimizer = cstorch.optim.AdamW(model.parameters(), lr=0.1)

@cstorch.trace
def step(x, y):
    loss = torch.nn.functional.cross_entropy(compiled(x), y)
    cstorch.amp.optimizer_step(loss, optimizer, max_gradient_norm=1.0)
    return loss

@cstorch.step_closure
def say(number, loss):
    rate = executor.profiler.rate_tracker
    print(f"| Train Device=CSX, Step={number}, Loss={loss.item():.5f}, Rate={rate.rate:.2f} samples/sec, "
          f"GlobalRate={rate.global_rate:.2f} samples/sec", flush=True)

executor = cstorch.utils.data.DataExecutor(cstorch.utils.data.DataLoader(batches), num_steps=40)
for number, (x, y) in enumerate(executor, 1):
    loss = step(x, y)
    if number % 10 == 0:
        say(number, loss)
"""


@pytest.mark.slow
def test_a_script_of_ours_comes_back_without_error(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "wse_sim.cstorch", "--no-port", "--mode", "weight-streaming", "train.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    logged = tmp_path / "runs" / "logged"
    logged.mkdir()
    (logged / "out.log").write_text(done.stdout, encoding="utf-8")
    folder = "../recorded/art/compile_0_step"
    said = {"graph": folder, "wafer": "wse2", "systems": 1, "batch": 32}
    (logged / "run.yaml").write_text(yaml.safe_dump(said))
    rows = {row.point.id: row for row in validate(load_mine(tmp_path / "runs")).rows}
    assert rows["recorded"].error == pytest.approx(0.0, abs=1e-9)
    assert rows["recorded"].point.evidence == "simulator"
    # GlobalRate at step 40 has the first pass of 16-bit weights and the clipping on top of each step in it
    compiled = json.loads((tmp_path / "runs/recorded/art/run.json").read_text())["compiles"][0]
    graph = load(logged / folder, "graph")
    seconds = 40 * compiled["step_s"] + 2.0 * graph.parameters / load_cluster().memoryx_bytes_per_s
    pure = 40 * (compiled["step_s"] - compiled["on_top_s"])
    assert compiled["on_top_s"] > 0
    assert rows["logged"].error == pytest.approx(seconds / pure - 1.0, abs=1e-5)
