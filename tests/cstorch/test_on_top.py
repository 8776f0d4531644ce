"""The work of a captured step in addition to its model is found in the record: norm, clip, scaling, schedule."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from wse_sim import cstorch
from wse_sim.cstorch import on_top, runtime, step
from wse_sim.cstorch.execution import begin_execution


def kernels(monkeypatch, update, optimizer="AdamW") -> dict[str, tuple]:
    """Return the additional kernels of one training step by name; `update(model, optimizer, loss)` is its second half."""
    programs = []
    monkeypatch.setattr(step, "prepare", lambda run, program, seconds: programs.append(program))
    cstorch.backend("CSX")
    model = cstorch.compile(
        torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    )
    options = {"relative_step": False} if optimizer == "Adafactor" else {}
    chosen = getattr(cstorch.optim, optimizer)(model.parameters(), lr=0.01, **options)

    @cstorch.trace
    def one(x, y):
        loss = functional.cross_entropy(model(x), y)
        update(model, chosen, loss)
        return loss

    execution = begin_execution(None, num_steps=1)
    one(*execution.feed((torch.randn(4, 6), torch.zeros(4, dtype=torch.long))))
    execution.end_step()
    execution.finish()
    return {name: (kind, dims, attrs) for name, kind, dims, attrs in on_top.wanted(programs[0])}


PARAMETERS = 6 * 8 + 8 + 8 * 3 + 3


def plain(model, optimizer, loss):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def by_norm(model, optimizer, loss):
    cstorch.amp.optimizer_step(loss, optimizer, max_gradient_norm=1.0)


def by_hand(model, optimizer, loss):
    """Compute the norm as a sum of sums of squares."""
    loss.backward()
    total = sum((p.grad * p.grad).sum() for p in model.parameters())
    factor = torch.clamp(1.0 / (total.sqrt() + 1e-6), max=1.0)
    for p in model.parameters():
        p.grad.mul_(factor)
    optimizer.step()
    optimizer.zero_grad()


def by_value(model, optimizer, loss):
    cstorch.amp.optimizer_step(loss, optimizer, max_gradient_value=0.1)


@pytest.mark.parametrize("update", [by_norm, by_hand])
def test_a_norm_of_all_gradients_is_found(update, monkeypatch) -> None:
    found = kernels(monkeypatch, update)
    assert found["gradient norm"] == ("gradient_norm", {"elements": PARAMETERS}, {})
    assert found["gradient clipping"] == ("gradient_scale", {"elements": PARAMETERS}, {})


def test_clipping_by_value_needs_no_norm(monkeypatch) -> None:
    found = kernels(monkeypatch, by_value)
    assert "gradient norm" not in found
    assert found["gradient clipping"][2] == {"op": "clip"}


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "Lamb", "Adafactor"])
def test_norms_of_single_parameters_are_the_optimizers_own(optimizer, monkeypatch) -> None:
    """Lamb and Adafactor take norms of one parameter at a time; nothing is clipped."""
    found = kernels(monkeypatch, plain, optimizer)
    assert not {"gradient norm", "gradient clipping", "loss scaling"} & set(found)


@pytest.mark.parametrize(("scale", "check"), [(64.0, False), ("dynamic", True)])
def test_dynamic_scaling_also_looks_for_infinities(scale, check, monkeypatch) -> None:
    cstorch.backend("CSX")
    scaler = cstorch.amp.GradScaler(scale)
    found = kernels(
        monkeypatch, lambda model, optimizer, loss: cstorch.amp.optimizer_step(loss, optimizer, scaler)
    )
    assert found["loss scaling"] == ("gradient_scale", {"elements": PARAMETERS}, {"check": check})


def test_the_schedule_is_the_longest_chain_of_operators_on_numbers(monkeypatch) -> None:
    counts = {}
    for extra in (0, 5):
        runtime.reset()
        cstorch.backend("CSX")
        number = runtime.state_tensor(torch.tensor(1.0), "number")

        def update(model, optimizer, loss, extra=extra, number=number):
            plain(model, optimizer, loss)
            value = number
            for _ in range(extra):
                value = value * 0.5
            if extra:
                number.copy_(value)

        counts[extra] = kernels(monkeypatch, update, "SGD").get("schedule and counters")
    assert counts[0] is None
    assert counts[5][1]["operators"] == 6  # five products, and the copy that keeps the last
