"""Half types, loss scaling and clipping, compared with a scalar model of the rule and with torch."""

from __future__ import annotations

import pytest
import torch

from wse_sim.cstorch import amp, optim, runtime
from wse_sim.cstorch.faults import ProgramError


@pytest.fixture(autouse=True)
def restored():
    held, mixed = runtime.settings().half_dtype, dict(amp._mixed)
    yield
    runtime.settings().half_dtype = held
    amp._mixed.update(mixed)


def run(scaler, pattern: str, optimizer=None) -> list[float]:
    """Return the scale after each step; in ``pattern`` a '.' is a finite gradient and an 'x' one with an inf."""
    p = torch.nn.Parameter(torch.zeros(3))
    optimizer = optimizer or optim.SGD([p], lr=1.0)
    p = optimizer.param_groups[0]["params"][0]
    scales = []
    for mark in pattern:
        optimizer.zero_grad()
        weight = torch.tensor([1.0, 1.0, float("inf") if mark == "x" else 1.0])
        scaler.scale((p * weight).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(float(scaler.get_scale()))
    return scales


def model(pattern: str, scale: float, every: int, tolerance: float, low: float, high: float) -> list[float]:
    """The rule in plain code: the scale doubles after that many good steps in a row, and halves at the fraction of bad
    ones.
    """
    good = steps = bad = 0
    out = []
    for mark in pattern:
        steps += 1
        if mark == "x":
            good, bad = 0, bad + 1
            if bad / steps >= tolerance:
                scale, steps, bad = max(low, scale / 2), 0, 0
        else:
            good += 1
            if good % every == 0:
                scale, steps, bad = min(high, scale * 2), 0, 0
        out.append(scale)
    return out


@pytest.mark.parametrize("tolerance", [0.0, 0.05, 0.3])
@pytest.mark.parametrize(
    "pattern", ["." * 20, "xxxxxxxxxxxx", "....x....x..x.x.........", ".........x.........x.........x"]
)
def test_dynamic_scale_follows_the_rule(pattern: str, tolerance: float) -> None:
    scaler = amp.GradScaler("dynamic", 8.0, 4, 0.5, 32.0, tolerance)
    assert run(scaler, pattern) == model(pattern, 8.0, 4, tolerance, 0.5, 32.0)


def test_a_skipped_step_changes_nothing() -> None:
    """Weights, moments, the step count and the schedule are unchanged if a gradient is not finite."""

    def trained(pattern: str):
        p = torch.nn.Parameter(torch.ones(3))
        optimizer = optim.AdamW([p], lr=0.1)
        schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.1, 1, 0.5)
        scaler = amp.GradScaler("dynamic", 4.0)
        for mark in pattern:
            optimizer.zero_grad()
            scaler.scale(
                (p * torch.tensor([1.0, 2.0, float("nan") if mark == "x" else 3.0])).sum()
            ).backward()
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
        state = {k: v.clone() for k, v in optimizer.state[p].items()}
        return p.detach(), state, float(optimizer.param_groups[0]["lr"]), int(schedule.last_epoch)

    p1, s1, lr1, n1 = trained("..x.xx.")
    p2, s2, lr2, n2 = trained("....")
    assert torch.equal(p1, p2)
    assert all(torch.equal(s1[k], s2[k]) for k in s1)
    assert (lr1, n1) == (lr2, n2) == (pytest.approx(0.1 * 0.5**4), 4)


def test_scaling_by_a_power_of_two_is_exact() -> None:
    def weights(scaler, **clip):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        optimizer = optim.Adam(net.parameters(), lr=0.01)
        for i in range(10):
            x = torch.randn(16, 4, generator=torch.Generator().manual_seed(i))
            amp.optimizer_step(net(x).square().mean(), optimizer, scaler, **clip)
        return torch.cat([p.detach().reshape(-1) for p in net.parameters()])

    plain = weights(None)
    assert torch.equal(weights(amp.GradScaler(1024.0)), plain)
    assert torch.equal(weights(amp.GradScaler("dynamic", 2.0**12, 3)), plain)
    assert torch.equal(
        weights(amp.GradScaler(64.0), max_gradient_norm=0.1), weights(None, max_gradient_norm=0.1)
    )
    assert torch.equal(weights(None, max_gradient_val=1e-3), weights(None, max_gradient_value=1e-3))
    assert not torch.equal(weights(None, max_gradient_value=1e-3), plain)


def test_state_goes_into_a_checkpoint_and_back() -> None:
    first, second = (amp.GradScaler("dynamic", 8.0, 3, 0.5, 64.0) for _ in range(2))
    run(first, "..x..")
    tensors = [id(t) for t in second.state_tensors()]
    second.load_state_dict(first.state_dict())
    assert [id(t) for t in second.state_tensors()] == tensors
    assert run(first, ".....x") == run(second, ".....x")
    with pytest.raises(ProgramError, match="'scale'"):
        second.load_state_dict({"step": 1})


def test_half_types() -> None:
    assert amp.set_half_dtype("cbfloat16") is torch.float16
    assert (amp.is_cbfloat(), amp.get_half_dtype_str(), amp.get_half_dtype()) == (
        True,
        "cbfloat16",
        torch.float16,
    )
    assert amp.set_half_dtype(torch.bfloat16) is torch.bfloat16
    assert not amp.is_cbfloat()
    amp.enable_mixed_precision(True)
    assert (amp.get_floating_point_dtype(), amp.get_floating_point_dtype_str()) == (
        torch.bfloat16,
        "bfloat16",
    )
    with amp.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.bfloat16
    amp.enable_mixed_precision(False)
    assert amp.get_floating_point_dtype() is torch.float32
    with amp.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32


def test_level_of_a_callable() -> None:
    assert torch.equal(
        amp.pol(bwd_level=0)(torch.nn.ReLU())(torch.tensor([-1.0, 2.0])), torch.tensor([0.0, 2.0])
    )
    with amp.pol(level=2):
        pass
    assert amp.current_pol() == runtime.settings().precision_level


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: amp.GradScaler("dinamic"), ["dinamic", "dynamic"]),
        (lambda: amp.GradScaler(-2.0), ["-2.0"]),
        (lambda: amp.GradScaler("dynamic", min_loss_scale=4.0, max_loss_scale=2.0), ["4.0", "2.0"]),
        (lambda: amp.GradScaler("dynamic", steps_per_increase=0), ["steps_per_increase=0"]),
        (lambda: amp.GradScaler("dynamic", overflow_tolerance=5), ["overflow_tolerance"]),
        (lambda: amp.set_half_dtype("float8"), ["float8", "cbfloat16"]),
        (lambda: amp.pol(level=3), ["level=3", "0, 1, 2"]),
        (lambda: amp.optimizer_step(None, None, None, 1.0, 1.0), ["max_gradient_norm", "max_gradient_value"]),
        (lambda: amp.GradScaler("dynamic").update(), ["unscale_"]),
    ],
)
def test_faults_name_value_and_remedy(make, words) -> None:
    with pytest.raises(ProgramError) as caught:
        make()
    for word in words:
        assert word in str(caught.value)
