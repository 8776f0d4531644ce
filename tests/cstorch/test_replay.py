"""A step is captured once and replayed: its values are those of eager PyTorch, bit for bit."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn
from torch.nn import functional

import wse_sim.cstorch as cstorch
from wse_sim.cstorch import runtime
from wse_sim.cstorch.execution import begin_execution
from wse_sim.cstorch.faults import ProgramError

STEPS = 10


class Attention(nn.Module):
    """One block of a transformer; causal or not, with dropout drawn again in every step."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.tokens, self.places = nn.Embedding(31, 16), nn.Embedding(8, 16)
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(16, 31, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        q, k, v = (z.unflatten(-1, (2, 8)).transpose(1, 2) for z in self.qkv(self.norm(x)).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2)
        return self.head(x + self.drop(self.out(y))).flatten(0, 1)


def mlp():
    return nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 5)), lambda g: (
        torch.randn(8, 12, generator=g), torch.randint(0, 5, (8,), generator=g))  # fmt: skip


def conv():
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 5),
    )
    return model, lambda g: (torch.randn(6, 2, 8, 8, generator=g), torch.randint(0, 5, (6,), generator=g))


def gpt():
    return Attention(True), lambda g: (ids := torch.randint(0, 31, (4, 8), generator=g), ids.flatten())


def bert():
    return Attention(False), lambda g: (
        ids := torch.randint(0, 31, (4, 8), generator=g),
        (ids + 1).flatten() % 31,
    )


OPTIMIZERS = {
    "SGD": {"lr": 0.1, "momentum": 0.9}, "Adam": {"lr": 1e-2}, "AdamW": {"lr": 1e-2}, "Adamax": {"lr": 1e-2}, "NAdam": {"lr": 1e-2},
    "RAdam": {"lr": 1e-2}, "Adagrad": {"lr": 1e-2}, "Adadelta": {"lr": 1.0}, "Adafactor": {"lr": 1e-2, "relative_step": False},
    "ASGD": {"lr": 1e-2}, "RMSprop": {"lr": 1e-3}, "Rprop": {"lr": 1e-3}, "Lamb": {"lr": 1e-2}, "Lion": {"lr": 1e-3},
}  # fmt: skip


@contextlib.contextmanager
def loop(steps: int, **options):
    """Run an execution by hand: feed(batch), then end_step()."""
    execution = begin_execution(None, num_steps=steps, **options)
    try:
        yield execution
    finally:
        execution.finish()


def trained(kind: str, make, optimizer: str, steps: int) -> tuple[list[float], list[torch.Tensor], int]:
    """Return losses, final weights, and how often the step's Python ran."""
    runtime.reset()
    cstorch.backend(kind)
    torch.manual_seed(0)
    model, batch = make()
    compiled = cstorch.compile(model)
    chosen = getattr(cstorch.optim, optimizer)(model.parameters(), **OPTIMIZERS[optimizer])
    ran = 0

    @cstorch.trace
    def step(x, y):
        nonlocal ran
        ran += 1
        loss = functional.cross_entropy(compiled(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        chosen.step()
        chosen.zero_grad()
        return loss

    losses: list[float] = []
    read = cstorch.step_closure(lambda loss: losses.append(loss.item()))
    draw = torch.Generator().manual_seed(3)
    with loop(steps, checkpoint_steps=steps) as execution:
        for _ in range(steps):
            x, y = execution.feed(batch(draw))
            read(step(x, y))
            execution.end_step()
    return losses, [runtime.host_value(p).clone() for p in model.parameters()], ran


def no_simulation(monkeypatch):
    from wse_sim.cstorch import step

    monkeypatch.setattr(step, "prepare", lambda run, program, seconds: None)


MODELS = [mlp, conv, gpt, bert]


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("make", "optimizer"),
    [(MODELS[i % 4], name) for i, name in enumerate(OPTIMIZERS)],
    ids=lambda v: getattr(v, "__name__", v),
)
def test_replay_is_eager_bit_for_bit(make, optimizer, monkeypatch):
    """Every optimizer once, every model three times; the slow test has all pairs and a hundred steps."""
    no_simulation(monkeypatch)
    eager, weights, ran = trained("CPU", make, optimizer, STEPS)
    replayed, same, once = trained("CSX", make, optimizer, STEPS)
    assert replayed == eager
    assert all(torch.equal(a, b) for a, b in zip(weights, same, strict=True))
    assert (ran, once) == (STEPS, 1)


@pytest.mark.slow
@pytest.mark.parametrize("make", MODELS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_hundred_steps_are_eager_bit_for_bit(make, optimizer, monkeypatch):
    no_simulation(monkeypatch)
    assert trained("CPU", make, optimizer, 100)[:1] == trained("CSX", make, optimizer, 100)[:1]


def test_parameters_keep_identity_and_ties_through_compile(monkeypatch):
    no_simulation(monkeypatch)
    cstorch.backend("CSX")
    model = Attention(True)
    before = {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)}
    early = cstorch.optim.SGD(model.parameters(), lr=0.1)
    values = [p.detach().clone() for p in model.parameters()]
    assert cstorch.compile(model) is model
    assert {name: id(p) for name, p in model.named_parameters(remove_duplicate=False)} == before
    assert model.head.weight is model.tokens.weight
    assert all(isinstance(p, nn.Parameter) for p in model.parameters())
    assert str(next(model.parameters()).device) == "csx:0"

    @cstorch.trace
    def step(ids):
        functional.cross_entropy(model(ids), ids.flatten()).backward()
        early.step()  # made before compile: it must train the weights that the model uses
        early.zero_grad()

    with loop(1, checkpoint_steps=1) as execution:
        step(execution.feed((torch.zeros(2, 8, dtype=torch.long),))[0])
        execution.end_step()
    assert any(
        not torch.equal(runtime.host_value(p), v) for p, v in zip(model.parameters(), values, strict=True)
    )


def test_gradients_that_survive_the_step_are_summed_by_hand(monkeypatch):
    """Two backward passes per update: eager PyTorch adds gradients up, so does replay."""
    no_simulation(monkeypatch)
    cstorch.backend("CSX")
    torch.manual_seed(0)
    model = cstorch.compile(nn.Linear(3, 1))
    weight = runtime.host_value(model.weight).clone().requires_grad_()
    bias = runtime.host_value(model.bias).clone().requires_grad_()
    sums: list[float] = []

    @cstorch.trace
    def step(x):
        model(x).sum().backward()
        return model.weight.grad.sum()

    keep = cstorch.step_closure(lambda total: sums.append(total.item()))
    expected = []
    with loop(3) as execution:
        for i in range(3):
            x = torch.full((2, 3), float(i + 1))
            keep(step(execution.feed((x,))[0]))
            execution.end_step()
            functional.linear(x, weight, bias).sum().backward()
            expected.append(weight.grad.sum().item())
    assert sums == expected
    assert expected == [6.0, 18.0, 36.0]  # 2 x 3 x (1, 1 + 2, 1 + 2 + 3)


def test_a_closure_sees_the_last_value_of_the_step(monkeypatch):
    no_simulation(monkeypatch)
    cstorch.backend("CSX")
    model = cstorch.compile(nn.Linear(2, 1))
    counter = runtime.state_tensor(torch.zeros(()), "counter")
    seen: list[float] = []
    keep = cstorch.step_closure(lambda value: seen.append(value.item()))

    @cstorch.trace
    def step(x):
        keep(counter)  # asked for here, changed below
        counter.add_(1)
        return model(x).sum()

    with loop(3) as execution:
        for _ in range(3):
            step(execution.feed((torch.ones(1, 2),))[0])
            execution.end_step()
    assert seen == [1.0, 2.0, 3.0]


def fault(body, monkeypatch, batch=None, checkpoint_steps=0) -> str:
    """Return the sentence that a step earns."""
    no_simulation(monkeypatch)
    cstorch.backend("CSX")
    model = cstorch.compile(nn.Linear(4, 4))
    step = cstorch.trace(lambda x: body(model, x))
    with pytest.raises(ProgramError) as caught, loop(2, checkpoint_steps=checkpoint_steps) as execution:  # noqa: PT012
        for _ in range(2):
            step(execution.feed((batch if batch is not None else torch.ones(2, 4),))[0])
            execution.end_step()
    assert isinstance(caught.value, RuntimeError)
    return str(caught.value)


READS = {
    "item": lambda m, x: m(x).sum().item(),
    "float": lambda m, x: float(m(x).sum()),
    "print": lambda m, x: str(m(x)),
    "f-string": lambda m, x: f"{m(x).sum():.3f}",
    "tolist": lambda m, x: m(x).tolist(),
    "numpy": lambda m, x: m(x).detach().numpy(),
    "cpu": lambda m, x: m(x).cpu(),
    "to cpu": lambda m, x: m(x).to("cpu"),
}
BRANCHES = {
    "if": lambda m, x: 1 if m(x).sum() > 0 else 0,
    "and": lambda m, x: (x > 0).all() and x,
    "any": lambda m, x: bool((x > 0).any()),
    "equal": lambda m, x: torch.equal(x, m(x)),
    "range": lambda m, x: list(range(x.long().sum())),
}
SHAPES = {
    "boolean index": lambda m, x: m(x)[x[:, 0] > 0],
    "nonzero": lambda m, x: torch.nonzero(m(x)),
    "masked_select": lambda m, x: torch.masked_select(x, x > 0),
    "unique": lambda m, x: torch.unique(x),
    "where": lambda m, x: torch.where(x > 0),
}
NUMBERS = {
    "alpha": lambda m, x: torch.add(m(x), x, alpha=x.sum()),
    "value": lambda m, x: torch.addcdiv(m(x), x, x, value=x.sum()),
    "sub": lambda m, x: m(x).sub(x, alpha=x.mean()),
}


@pytest.mark.parametrize("body", READS.values(), ids=READS)
def test_reading_a_value_in_the_step_names_the_line_and_the_closure(body, monkeypatch):
    sentence = fault(body, monkeypatch)
    assert "test_replay.py:" in sentence
    assert "step closure" in sentence


@pytest.mark.parametrize("body", BRANCHES.values(), ids=BRANCHES)
def test_control_flow_on_a_tensor_names_torch_where(body, monkeypatch):
    sentence = fault(body, monkeypatch)
    assert "test_replay.py:" in sentence
    assert "torch.where" in sentence


@pytest.mark.parametrize("body", SHAPES.values(), ids=SHAPES)
def test_a_shape_by_value_names_fixed_shapes(body, monkeypatch):
    sentence = fault(body, monkeypatch)
    assert "test_replay.py:" in sentence
    assert "fixed shapes" in sentence


@pytest.mark.parametrize("body", NUMBERS.values(), ids=NUMBERS)
def test_a_traced_tensor_as_a_number_names_the_argument(body, monkeypatch):
    sentence = fault(body, monkeypatch)
    assert "takes a number" in sentence
    assert "multiply by the tensor" in sentence


def test_plain_constants_of_the_step_may_be_read(monkeypatch):
    """Tensors made in the step from numbers alone are known: Python may read them."""
    no_simulation(monkeypatch)
    cstorch.backend("CSX")
    model = cstorch.compile(nn.Linear(4, 4))
    rates = []

    @cstorch.trace
    def step(x):
        rates.extend(torch.linspace(0, 1, 3).tolist())
        return model(x).sum()

    with loop(1) as execution:
        step(execution.feed((torch.ones(2, 4),))[0])
    assert rates == [0.0, 0.5, 1.0]


def test_targets_of_32_bits_are_taken(monkeypatch):
    no_simulation(monkeypatch)
    cstorch.backend("CSX")
    model = cstorch.compile(nn.Linear(4, 4))
    losses: list[float] = []
    keep = cstorch.step_closure(lambda loss: losses.append(loss.item()))
    step = cstorch.trace(lambda x, y: functional.cross_entropy(model(x), y))
    x, y = torch.ones(2, 4), torch.tensor([1, 3], dtype=torch.int32)
    with loop(1) as execution:
        keep(step(*execution.feed((x, y))))
    weight, bias = runtime.host_value(model.weight, metric=True), runtime.host_value(model.bias, metric=True)
    assert losses == [functional.cross_entropy(functional.linear(x, weight, bias), y.long()).item()]


def retraced(body, steps: int, monkeypatch) -> tuple[int, int]:
    """Return (times that Python ran, compiles) of a step under retrace_every_iteration."""
    compiles = []
    from wse_sim.cstorch import step as steps_of

    monkeypatch.setattr(steps_of, "prepare", lambda run, program, seconds: compiles.append(program))
    cstorch.backend("CSX", retrace_every_iteration=True)
    model = cstorch.compile(nn.Linear(4, 4))
    ran = 0

    @cstorch.trace
    def step(x):
        nonlocal ran
        ran += 1
        return body(model, x, ran)

    with loop(steps) as execution:
        for _ in range(steps):
            step(execution.feed((torch.ones(2, 4),))[0])
            execution.end_step()
    return ran, len(compiles)


def test_retracing_runs_python_at_every_step_and_compiles_what_is_new(monkeypatch):
    """A number that changes gives a new graph; three different graphs alternate in six steps."""
    assert retraced(lambda m, x, n: m(x).sum(), 6, monkeypatch) == (6, 1)
    runtime.reset()
    assert retraced(lambda m, x, n: m(x).sum() * float(n % 3), 6, monkeypatch) == (6, 3)


def test_a_step_with_a_new_graph_every_time_is_stopped(monkeypatch):
    with pytest.raises(ProgramError, match=r"different graph at every call \(8 so far; first difference: "):
        retraced(lambda m, x, n: m(x).sum() * float(n), 20, monkeypatch)


class Recurrent(nn.Module):
    """A bidirectional LSTM keeps weak references to its weights, and a fused kernel with a workspace."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.LSTM(5, 6, batch_first=True, bidirectional=True), nn.Linear(12, 3)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])


def recurrent():
    return Recurrent(), lambda g: (torch.randn(4, 7, 5, generator=g), torch.randint(0, 3, (4,), generator=g))


def test_recurrent_networks_train_and_save_between_executions(monkeypatch, tmp_path):
    no_simulation(monkeypatch)
    monkeypatch.setitem(OPTIMIZERS, "SGD", {"lr": 0.5})
    eager, replayed = trained("CPU", recurrent, "SGD", 6)[0], trained("CSX", recurrent, "SGD", 6)[0]
    # eager PyTorch takes its fused kernel, replay the steps one by one: equal to rounding
    torch.testing.assert_close(torch.tensor(replayed), torch.tensor(eager), rtol=1e-4, atol=1e-5)
    model = nn.Linear(2, 2)
    cstorch.compile(model)
    optimizer = cstorch.optim.SGD(model.parameters(), lr=0.1)
    schedule = cstorch.optim.lr_scheduler.LinearLR(
        optimizer, initial_learning_rate=0.1, end_learning_rate=0.0, total_iters=4
    )
    parts = {"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
    cstorch.save(parts, tmp_path / "c.mdl")  # the rate is a tensor of the wafer
    saved = cstorch.load(tmp_path / "c.mdl", map_location="cpu")
    assert float(saved["optimizer"]["param_groups"][0]["lr"]) == pytest.approx(0.1)
