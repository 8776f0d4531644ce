"""Two scripts in one process do not see each other's state, in either order."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.overrides import _get_current_function_mode_stack

from tests.cstorch.test_appliance import batches
from wse_sim import cstorch
from wse_sim.cstorch import amp, checkpoint, counters, faults, runtime, step, summaries
from wse_sim.cstorch.metrics import metric


@pytest.fixture(autouse=True)
def no_simulation(monkeypatch):
    monkeypatch.setattr(step, "prepare", lambda run, program, seconds: None)


def script(folder: Path, name: str, *, reads: str = "") -> list[float]:
    """Return the losses of four steps with dropout; it leaves a checkpoint with the state of the random numbers, and
    may end by reading one.
    """
    runtime.reset()
    backend = cstorch.backend("CSX", artifact_dir=str(folder / name))
    torch.manual_seed(2)
    layers = torch.nn.Linear(6, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3)
    with backend.device:
        model = torch.nn.Sequential(*layers)
    compiled = cstorch.compile(model, backend)
    optimizer = cstorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.0)

    @cstorch.trace
    def train(x, y):
        loss = torch.nn.functional.cross_entropy(compiled(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    losses: list[float] = []

    @cstorch.step_closure
    def keep(loss):
        losses.append(loss.item())

    loader = cstorch.utils.data.DataLoader(lambda: batches(4))
    for x, y in cstorch.utils.data.DataExecutor(loader, num_steps=4, checkpoint_steps=4):
        keep(train(x, y))
    checkpoint.save({"w": layers[0].weight.detach()}, folder / f"{name}.mdl")
    if reads:
        checkpoint.load(folder / f"{reads}.mdl")
    return losses


@pytest.mark.slow
def test_two_scripts_in_both_orders(tmp_path: Path) -> None:
    """A script that ends with reading a checkpoint passed its random state to the next one with the same seed."""
    alone = script(tmp_path, "alone")
    script(tmp_path, "first", reads="alone")
    assert script(tmp_path, "second") == alone
    assert script(tmp_path, "third", reads="alone") == alone


def test_a_reset_empties_the_stores_of_modules() -> None:
    amp._mixed["enabled"] = True
    counters.count("words", 3)
    faults._said.add("once")
    metric._counts["accuracy"] = 2
    summaries._scopes.append("scope")
    summaries._latest["loss"] = torch.ones(1)
    checkpoint._random.update(seed=2)
    checkpoint._kept.append(Path("old.mdl"))
    runtime.reset()
    assert not any(
        (counters._counters, faults._said, metric._counts, summaries._scopes, summaries._latest, checkpoint._random, checkpoint._kept)
    )  # fmt: skip
    assert amp._mixed == {"enabled": None}


def test_a_reset_removes_its_own_mode_only() -> None:
    """A script may have entered a mode of torch after its backend; a reset must not remove that one instead."""
    cstorch.backend("CSX")
    with torch.overrides.TorchFunctionMode() as entered:
        runtime.reset()
        assert _get_current_function_mode_stack() == [entered]
    assert not _get_current_function_mode_stack()
