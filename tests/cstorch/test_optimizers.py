"""Every optimizer is compared with torch's of the same name, or with its formula; state, groups, errors."""

from __future__ import annotations

import copy
import inspect
import math

import pytest
import torch

from wse_sim.cstorch import optim
from wse_sim.cstorch.faults import ProgramError

STEPS = 100


def descend(make, steps: int = STEPS) -> torch.Tensor:
    """Return the parameters after that many steps on a noisy bowl, the same for every optimizer."""
    draw = torch.Generator().manual_seed(0)
    w = torch.nn.Parameter(torch.randn(6, 4, generator=draw))
    b = torch.nn.Parameter(torch.randn(4, generator=draw))
    optimizer = make([{"params": [w]}, {"params": [b]}])
    for _ in range(steps):
        x = torch.randn(8, 6, generator=draw)
        loss = ((x @ w + b - x[:, :4]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.cat([w.detach().reshape(-1), b.detach()])


CASES = [
    ("SGD", {"lr": 0.05}),
    ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.05, "momentum": 0.8, "dampening": 0.3, "maximize": False}),
    ("Adam", {"lr": 0.01}),
    ("Adam", {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.1, "betas": (0.8, 0.95)}),
    ("Adamax", {"lr": 0.01, "weight_decay": 0.01}),
    ("NAdam", {"lr": 0.01}),
    ("NAdam", {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {"lr": 0.01}),
    ("RAdam", {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("Adagrad", {"lr": 0.1}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.01, "initial_accumulator_value": 0.1}),
    ("Adadelta", {"lr": 0.5, "weight_decay": 0.01}),
    ("ASGD", {"lr": 0.05, "lambd": 1e-2, "t0": 20, "weight_decay": 0.01}),
    ("RMSprop", {"lr": 0.01}),
    ("RMSprop", {"lr": 0.01, "momentum": 0.9, "centered": True, "weight_decay": 0.01}),
    ("Rprop", {"lr": 0.01, "etas": (0.4, 1.3)}),
]
# Where corrections depend on the step through float32 state, the last bit may differ from torch's Python numbers.
NEARLY = {"NAdam", "RAdam", "ASGD"}


@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda v: v if isinstance(v, str) else "-".join(v))
def test_equal_to_torch(name: str, options: dict) -> None:
    ours = descend(lambda groups: getattr(optim, name)(groups, **options))
    torchs = descend(lambda groups: getattr(torch.optim, name)(groups, **options))
    if name in NEARLY or "dampening" in options or "lr_decay" in options:
        torch.testing.assert_close(ours, torchs, rtol=1e-6, atol=1e-6)
    else:
        assert torch.equal(ours, torchs)
    start = descend(lambda groups: torch.optim.SGD(groups, lr=0.0))
    assert (ours - start).abs().max() > 1e-3, "nothing was trained"


@pytest.mark.parametrize("name", sorted({name for name, _ in CASES}))
def test_defaults_are_torchs(name: str) -> None:
    """A script that names no hyperparameter trains as with torch's optimizer of that name."""
    ours, torchs = (
        inspect.signature(getattr(home, name).__init__).parameters for home in (optim, torch.optim)
    )
    shared = [key for key in ours if key in torchs and key not in ("self", "params")]
    assert "lr" in shared
    assert {key: ours[key].default for key in shared} == {key: torchs[key].default for key in shared}


@pytest.mark.parametrize(("name", "options"), CASES, ids=lambda v: v if isinstance(v, str) else "-".join(v))
def test_a_rate_that_is_a_tensor_changes_nothing(name: str, options: dict) -> None:
    """A scheduler makes the rate a tensor; no optimizer may read it or pass it as a number."""

    def scheduled(groups):
        optimizer = getattr(optim, name)(groups, **options)
        optim.lr_scheduler.ConstantLR(optimizer, options["lr"])
        assert all(isinstance(g["lr"], torch.Tensor) for g in optimizer.param_groups)
        return optimizer

    plain = descend(lambda groups: getattr(optim, name)(groups, **options), 25)
    torch.testing.assert_close(descend(scheduled, 25), plain, rtol=1e-5, atol=1e-5)


def lion(p, g, state, t, lr=0.01, b1=0.9, b2=0.99, wd=0.1):
    m = state.setdefault("m", torch.zeros_like(p))
    new = p * (1 - lr * wd) - lr * torch.sign(b1 * m + (1 - b1) * g)
    state["m"] = b2 * m + (1 - b2) * g
    return new


def lamb(p, g, state, t, lr=0.01, b1=0.9, b2=0.999, eps=1e-6, wd=0.1):
    m, v = state.setdefault("m", torch.zeros_like(p)), state.setdefault("v", torch.zeros_like(p))
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    state.update(m=m, v=v)
    u = m / (v.sqrt() + eps) + wd * p
    trust = p.norm() / u.norm() if p.norm() > 0 and u.norm() > 0 else 1.0
    return p - lr * trust * u


def adafactor(p, g, state, t, eps=(1e-30, 1e-3), clip=1.0, decay=-0.8):
    """Shazeer and Stern 2018, algorithm 4: relative step, clipped by root mean square, factored second moment."""
    beta2 = 1 - t**decay
    rho = min(1e-2, 1 / math.sqrt(t))
    rms = lambda x: float(x.norm() / math.sqrt(x.numel()))  # noqa: E731
    alpha = max(eps[1], rms(p)) * rho
    g2 = g * g + eps[0]
    if p.ndim == 2:
        r = state["r"] = beta2 * state.get("r", 0.0) + (1 - beta2) * g2.mean(1)
        c = state["c"] = beta2 * state.get("c", 0.0) + (1 - beta2) * g2.mean(0)
        v = torch.outer(r, c) / r.mean()
    else:
        v = state["v"] = beta2 * state.get("v", 0.0) + (1 - beta2) * g2
    u = g / v.sqrt()
    return p - alpha * u / max(1.0, rms(u) / clip)


class ByFormula(torch.optim.Optimizer):
    """Runs a formula in float64."""

    def __init__(self, groups, formula) -> None:
        super().__init__(groups, {})
        self.formula, self.t = formula, 0

    @torch.no_grad()
    def step(self):
        self.t += 1
        for group in self.param_groups:
            for p in group["params"]:
                own = self.state[p]
                exact = own.setdefault("exact", p.double().clone())
                own["exact"] = self.formula(exact, p.grad.double(), own.setdefault("own", {}), self.t)
                p.copy_(own["exact"])


@pytest.mark.parametrize(
    ("make", "formula"),
    [
        (lambda g: optim.Lion(g, lr=0.01, weight_decay=0.1), lion),
        (lambda g: optim.Lamb(g, lr=0.01, weight_decay=0.1), lamb),
        (optim.Adafactor, adafactor),
    ],
    ids=["Lion", "Lamb", "Adafactor"],
)
def test_equal_to_the_formula(make, formula) -> None:
    wanted = descend(lambda groups: ByFormula(groups, formula))
    torch.testing.assert_close(descend(make), wanted, rtol=2e-5, atol=2e-5)


def test_lamb_moves_a_weight_of_zeros() -> None:
    """The trust ratio is 1 where a norm is zero: a zero bias must not stay zero or become NaN."""
    p = torch.nn.Parameter(torch.zeros(3))
    optimizer = optim.Lamb([p], lr=0.1)
    p.grad = torch.ones(3)
    optimizer.step()
    # m / (sqrt(v) + eps) = 0.1 / (sqrt(0.001) + 1e-6)
    torch.testing.assert_close(p.detach(), torch.full((3,), -0.1 * 0.1 / (math.sqrt(0.001) + 1e-6)))


class Custom(optim.Optimizer):
    """Sets an attribute after the base's constructor and uses it in preinitialize."""

    def __init__(self, params, lr=0.1) -> None:
        super().__init__(params, {"lr": lr}, enable_global_step=True)
        self.start = 3.0

    def preinitialize(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["mean"] = torch.full_like(p, self.start)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                count = self.increment_global_step(p)
                p.sub_(group["lr"] * count * p.grad)


def test_own_optimizer() -> None:
    a, b = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    optimizer = Custom([a, b])
    assert optimizer.state[a]["mean"].tolist() == [3.0, 3.0]
    for _ in range(2):
        a.grad = b.grad = torch.ones(2)
        optimizer.step()
    # -0.1 * (1 + 2): the count is one per step, not one per parameter
    torch.testing.assert_close(b.detach(), torch.full((2,), -0.3))
    assert optimizer.state_names_to_sparsify() == []


def test_state_keeps_its_identity_and_speaks_torchs_language() -> None:
    """A state of torch's AdamW can be loaded into ours in place, and ours into torch's."""

    def built(library):
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 2)
        optimizer = library.AdamW(model.parameters(), lr=0.02)
        return model, optimizer

    def train(model, optimizer, steps):
        for i in range(steps):
            optimizer.zero_grad()
            (model(torch.full((4, 3), 1.0 + i)) ** 2).mean().backward()
            optimizer.step()

    (m1, o1), (m2, o2) = built(torch.optim), built(optim)
    train(m1, o1, 5)
    m2.load_state_dict(m1.state_dict())
    before = {id(v) for s in o2.state.values() for v in s.values()}
    o2.load_state_dict(o1.state_dict())
    assert {id(v) for s in o2.state.values() for v in s.values()} == before
    train(m1, o1, 5)
    train(m2, o2, 5)
    # the fifth step's moments came over, or the sixth step would be a first one
    assert torch.equal(m1.weight, m2.weight)
    m3, o3 = built(torch.optim)
    m3.load_state_dict(m2.state_dict())
    o3.load_state_dict(copy.deepcopy(o2.state_dict()))
    train(m2, o2, 3)
    train(m3, o3, 3)
    torch.testing.assert_close(m2.weight, m3.weight, rtol=1e-6, atol=1e-7)


def test_a_group_added_later_has_state() -> None:
    a, b = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = optim.Adam([a], lr=0.1)
    held = optimizer.state[a]["exp_avg"]
    optimizer.add_param_group({"params": [b]})
    assert optimizer.state[a]["exp_avg"] is held
    assert set(optimizer.state[b]) == {"step", "exp_avg", "exp_avg_sq"}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: optim.SGD(p, lr=-1.0), ["SGD", "lr=-1.0", "at least 0"]),
        (lambda p: optim.SGD(p, lr=0.1, nesterov=True), ["nesterov", "momentum"]),
        (lambda p: optim.Adam(p, betas=(0.9, 1.0)), ["beta2=1.0", "[0.0, 1.0)"]),
        (lambda p: optim.Adam(p, fancy=True), ["fancy"]),
        (lambda p: optim.Adafactor(p, lr=0.1), ["relative_step"]),
        (lambda p: optim.Rprop(p, etas=(1.5, 1.2)), ["etas"]),
        (lambda p: optim.configure_optimizer("AdamV", p), ["AdamV", "AdamW", "Lion"]),
    ],
)
def test_faults_name_value_and_remedy(make, words) -> None:
    with pytest.raises(ProgramError) as caught:
        make([torch.nn.Parameter(torch.ones(2))])
    for word in words:
        assert word in str(caught.value)


def test_configured_by_name_in_any_case() -> None:
    p = torch.nn.Parameter(torch.ones(2))
    assert len(optim.helpers.OPTIMIZERS) == 14
    for name in optim.helpers.OPTIMIZERS:
        made = optim.configure_optimizer(name.lower(), [p], learning_rate=0.25, loss_scaling_factor="dynamic")
        assert type(made).__name__ == name
        assert made.param_groups[0]["lr"] == 0.25
    made = optim.configure_optimizer("adamw", [p], lr="1e-3", foreach=True, weight_decay="0.5")
    assert (made.param_groups[0]["lr"], made.param_groups[0]["weight_decay"]) == (1e-3, 0.5)


def test_parameter_groups() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2))
    groups = optim.configure_param_groups(
        model, {"weight_decay": 0.1, "adjust_learning_rate": {"2.weight": 0.5}}
    )
    sizes = {(g["weight_decay"], g["adjust_learning_rate"]): len(g["params"]) for g in groups}
    # weights 0 and 2 decay, weight 2 at half the rate; two biases, scale and shift of the normalisation do not
    assert sizes == {(0.1, 1.0): 1, (0.1, 0.5): 1, (0.0, 1.0): 4}
