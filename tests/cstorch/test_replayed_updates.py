"""Optimizers, schedules, scaling, clipping, metrics and resume in a captured step: replay equals eager, bit for bit."""

from __future__ import annotations

import itertools

import pytest
import torch

from wse_sim import cstorch
from wse_sim.cstorch import runtime, simulated
from wse_sim.cstorch.compiled import Compiled

STEPS = 8


@pytest.fixture(autouse=True)
def no_simulation(monkeypatch):
    """Do not compile the captured step, because these tests only compare values."""

    def compiled(run, program, trace_s):
        found = Compiled(program.name, None, None, 1, True, 0.0, 0.0)
        run.compiled.append(found)
        return found

    monkeypatch.setattr(simulated, "compile_program", compiled)


def loader(shuffle: bool = False):
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(64, 6, generator=draw)
    y = (x[:, 0] > 0).long()
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8, shuffle=shuffle)


class Net(torch.nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.up, self.norm, self.down = torch.nn.Linear(6, 12), torch.nn.LayerNorm(12), torch.nn.Linear(12, 2)
        self.drop = torch.nn.Dropout(dropout)

    def forward(self, x):
        return self.down(self.drop(torch.tanh(self.norm(self.up(x)))))


class Job:
    """A training job: it creates all objects and trains a number of steps on one kind of backend."""

    def __init__(
        self,
        kind: str,
        folder,
        make,
        scaler=None,
        schedule=None,
        clip=None,
        dropout: float = 0.0,
        checkpoint_steps: int = 0,
    ):
        runtime.reset()
        self.backend = cstorch.backend(kind, artifact_dir=str(folder))
        torch.manual_seed(1)
        self.model = Net(dropout)
        self.compiled = cstorch.compile(self.model, self.backend)
        self.compiled.train()
        self.optimizer = make(self.model.parameters())
        self.schedule = None if schedule is None else schedule(self.optimizer)
        self.scaler = None if scaler is None else scaler()
        self.clip, self.checkpoint_steps = clip or {}, checkpoint_steps
        self.losses: list[float] = []
        self.rates: list[float] = []

    def parts(self) -> dict:
        named = {
            "model": self.model,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "scaler": self.scaler,
        }
        return {name: part for name, part in named.items() if part is not None}

    def run(self, steps: int, save_to=None, dataloader=None, poison: int | None = None) -> list[float]:
        @cstorch.trace
        def step(x, y):
            loss = torch.nn.functional.cross_entropy(self.compiled(x), y)
            cstorch.amp.optimizer_step(loss, self.optimizer, self.scaler, **self.clip)
            if self.schedule is not None:
                self.schedule.step()
            return loss, self.optimizer.param_groups[0]["lr"]

        @cstorch.step_closure
        def after(loss, lr):
            self.losses.append(loss.item())
            self.rates.append(float(lr) if lr is not None else 0.0)

        @cstorch.checkpoint_closure
        def save():
            cstorch.save({name: part.state_dict() for name, part in self.parts().items()}, save_to)

        executor = cstorch.utils.data.DataExecutor(
            dataloader or cstorch.utils.data.DataLoader(loader),
            num_steps=steps,
            checkpoint_steps=self.checkpoint_steps,
        )
        for number, (x, y) in enumerate(executor, start=1):
            if number == poison:
                x = x * float("inf")
            after(*step(x, y))
            if save_to is not None:
                save()
        return self.losses

    def load(self, path) -> None:
        state = cstorch.load(path)
        for name, part in self.parts().items():
            part.load_state_dict(state[name])


def weights(job: Job) -> torch.Tensor:
    with runtime.internal():
        return torch.cat([runtime.host_value(p).detach().reshape(-1) for p in job.model.parameters()])


def whole(params):
    return cstorch.optim.AdamW(params, lr=0.01, weight_decay=0.1)


def warm_then_decay(optimizer):
    entry = {"scheduler": "Linear", "initial_learning_rate": 0.0, "end_learning_rate": 0.02, "total_iters": 5}
    return cstorch.optim.configure_lr_scheduler(
        optimizer,
        [
            entry,
            {**entry, "scheduler": "CosineDecay", "initial_learning_rate": 0.02, "end_learning_rate": 0.001},
        ],
    )


def dynamic():
    return cstorch.amp.GradScaler("dynamic", init_scale=2.0**10, steps_per_increase=4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "clip", [{"max_gradient_norm": 0.5}, {"max_gradient_value": 0.05}], ids=lambda c: next(iter(c))
)
def test_schedule_scaling_and_clipping_replay_as_eager(clip, tmp_path) -> None:
    eager = Job("CPU", tmp_path, whole, dynamic, warm_then_decay, clip)
    wanted = eager.run(STEPS)
    replayed = Job("CSX", tmp_path, whole, dynamic, warm_then_decay, clip)
    assert replayed.run(STEPS) == wanted
    assert replayed.rates == eager.rates
    # the rate that a step leaves behind: 0.02 k / 5 after k steps of warming up
    assert replayed.rates[:5] == pytest.approx([0.02 * k / 5 for k in range(1, 6)])
    with runtime.internal():
        assert float(runtime.host_value(replayed.scaler.get_scale())) == 2.0 ** (10 + STEPS // 4)


@pytest.mark.slow
def test_a_captured_step_leaves_out_what_overflows(tmp_path) -> None:
    job = Job("CSX", tmp_path, whole, dynamic, warm_then_decay)
    job.run(STEPS, poison=3)
    assert len(job.losses) == STEPS
    assert torch.isfinite(weights(job)).all()
    # step 3 does not count: the rate stays where step 2 left it
    assert job.rates[2] == job.rates[1]
    assert job.rates[3] == pytest.approx(0.02 * 3 / 5)


@pytest.mark.slow
def test_resume_is_the_uninterrupted_run(tmp_path) -> None:
    """With dropout, schedule and dynamic scaling: the same random numbers, rates and scales after the resume."""
    options = {"scaler": dynamic, "schedule": warm_then_decay, "dropout": 0.3, "checkpoint_steps": 5}
    uninterrupted = Job("CSX", tmp_path, whole, **options).run(10)
    first = Job("CSX", tmp_path, whole, **options)
    assert first.run(5, save_to=tmp_path / "c.mdl") == uninterrupted[:5]
    second = Job("CSX", tmp_path, whole, **options)
    torch.manual_seed(1)
    second.load(tmp_path / "c.mdl")

    class Rest:
        """The rest of the first pass, then the next one, whose start draws the same random number as before."""

        def __iter__(self):
            yield from itertools.islice(loader(), 5, None)
            yield from loader()

    rest = second.run(5, dataloader=cstorch.utils.data.DataLoader(Rest))
    assert rest == uninterrupted[5:]


@pytest.mark.slow
def test_own_optimizer_built_before_compile_trains_the_model(tmp_path) -> None:
    runtime.reset()
    backend = cstorch.backend("CSX", artifact_dir=str(tmp_path))
    torch.manual_seed(1)
    model = Net()
    optimizer = cstorch.optim.Adam(model.parameters(), lr=0.01)
    compiled = cstorch.compile(model, backend)
    losses = []

    @cstorch.trace
    def step(x, y):
        loss = torch.nn.functional.cross_entropy(compiled(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    @cstorch.step_closure
    def after(loss):
        losses.append(loss.item())

    for x, y in cstorch.utils.data.DataExecutor(cstorch.utils.data.DataLoader(loader), num_steps=STEPS):
        after(step(x, y))
    eager = Job("CPU", tmp_path, lambda params: cstorch.optim.Adam(params, lr=0.01)).run(STEPS)
    assert losses == eager


def test_metrics_in_a_captured_evaluation(tmp_path) -> None:
    runtime.reset()
    backend = cstorch.backend("CSX", artifact_dir=str(tmp_path))
    torch.manual_seed(1)
    model = Net()
    accuracy = cstorch.metrics.AccuracyMetric("accuracy")
    compiled = cstorch.compile(model, backend)
    compiled.eval()

    @cstorch.trace
    @torch.no_grad()
    def step(x, y):
        logits = compiled(x)
        accuracy(labels=y, predictions=logits.argmax(-1))
        return logits

    for _ in range(2):  # the second execution starts anew
        for x, y in cstorch.utils.data.DataExecutor(cstorch.utils.data.DataLoader(loader), num_steps=8):
            step(x, y)
        data = loader().dataset.tensors
        torch.manual_seed(1)
        wanted = (Net().eval()(data[0]).argmax(-1) == data[1]).float().mean()
        assert float(accuracy) == pytest.approx(float(wanted))
