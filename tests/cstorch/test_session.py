"""The loop of the oldest interface: an ordinary one, inside a Session, over several passes through the data."""

from __future__ import annotations

import pytest
import torch

from tests.cstorch.test_appliance import batches, eager, network
from wse_sim.cstorch import cbtorch, runtime, step
from wse_sim.cstorch.faults import ProgramError


@pytest.fixture(autouse=True)
def no_simulation(monkeypatch):
    monkeypatch.setattr(step, "prepare", lambda run, program, seconds: None)


def trained(folder, passes: int, leave_at: int | None = None) -> list[float]:
    """Return the losses as a closure reads them; the loop may be left by `break` in step `leave_at`."""
    cbtorch.initialize(service_workdir=str(folder))
    model = cbtorch.module(network())
    optimizer = cbtorch.optimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    loader = cbtorch.dataloader(batches(4), use_parallel_loader=False)
    losses: list[float] = []
    with cbtorch.Session(loader, mode="train") as session:
        for _ in range(passes):
            for x, y in loader:
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(x), y)
                (8.0 * loss).backward()
                for p in model.parameters():
                    p.grad.mul_(1 / 8.0)
                optimizer.step()
                session.add_step_closure(lambda value: losses.append(value.item()), args=(loss,))
                if leave_at is not None and runtime.run().execution.iteration == leave_at:
                    break
    return losses


def test_two_passes_are_one_execution_and_equal_eager_pytorch(tmp_path) -> None:
    """Momentum continues from one pass to the next, bit for bit."""
    assert trained(tmp_path, 2) == eager(batches(4) * 2)
    assert runtime.run().executions == 1


def test_a_loop_that_is_left_ends_its_last_step(tmp_path) -> None:
    """The step that contains `break` is completed, and its closures run."""
    assert trained(tmp_path, 1, leave_at=3) == eager(batches(4)[:3])


def test_a_session_needs_a_run_and_a_known_mode() -> None:
    """Each fault is reported in one sentence."""
    with pytest.raises(ProgramError, match="call initialize"), cbtorch.Session():
        pass
    with pytest.raises(ProgramError, match="mode 'predict' is unknown"):
        cbtorch.Session(mode="predict")
