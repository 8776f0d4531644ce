"""The loop of legacy trainers: they trace one batch themselves, then fetch the results of each step."""

from __future__ import annotations

import pytest
import torch

from wse_sim.cstorch import amp, cbtorch, runtime, step
from wse_sim.cstorch.core import cb_model as cm
from wse_sim.cstorch.core.appliance import ApplianceMode
from wse_sim.cstorch.saver.pt_h5_saver import CerebrasStateDict, PyTorchH5Saver
from wse_sim.cstorch.utils import CSConfig


def batches(number: int):
    draw = torch.Generator().manual_seed(5)
    return [
        (torch.randn(4, 6, generator=draw), torch.randint(0, 3, (4,), generator=draw)) for _ in range(number)
    ]


def network():
    torch.manual_seed(2)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


class Trainer:
    """Forward, backward and update are called for the first batch only; later losses are fetched."""

    def __init__(self, folder, loaded=None) -> None:
        runtime.reset()
        cbtorch.initialize(service_workdir=str(folder), appliance=True)
        cbtorch.env().weight_streaming_mode = True
        self.folder, self.loaded = folder, loaded
        self.model = cbtorch.module(network())
        self.optimizer = cbtorch.optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9))
        self.scaler = amp.GradScaler(loss_scale=8.0, mixed_precision=True)
        self.losses: list[float] = []
        self.write_initial_state()
        self.initial = None  # the closure above waits for the loop
        self.machine = ApplianceMode(folder, folder, CSConfig(num_csx=1, execution_strategy=2), 1)

    def state(self):
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "global_step": len(self.losses),
        }

    @cm.step_closure
    def write_initial_state(self):
        self.initial = self.folder / f"initial_{id(self)}.hdf5"
        PyTorchH5Saver(loaded_checkpoint=self.loaded).save(self.initial, self.state())

    @cm.step_closure
    def keep(self, loss):
        self.losses.append(loss.item())

    @cm.step_closure
    def save(self, path):
        saver = PyTorchH5Saver()
        _, spec = saver.flatten_state_dict(self.state())
        saver.save_spec(path, spec)
        self.machine.save_weights(self.state(), path, 0)

    def train(self, data, checkpoint_steps: int = 2) -> list[float]:
        for number, (x, y) in enumerate(cbtorch.dataloader(data, use_parallel_loader=False)):
            if number == 0:
                cm.set_state_names(self.state())
                self.optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(self.model(x), y)
                self.scaler.scale(loss).backward()
                self.scaler.unscale_(self.optimizer)
                self.scaler.step(self.optimizer)
                self.traced = loss
                with self.machine.build_worker_image():
                    self.machine.compile(cbtorch.state().outputs, 4, False)
                assert self.initial is not None
                self.machine.execute(None, None, 4, len(data), checkpoint_steps, "train", self.initial)
            self.machine.receive_activations(number)
            self.keep(cbtorch.state().get_activation_for_output(self.traced))
            if (number + 1) % checkpoint_steps == 0:
                self.save(self.folder / f"checkpoint_{number + 1}.mdl")
        return self.losses


@pytest.fixture(autouse=True)
def no_simulation(monkeypatch):
    monkeypatch.setattr(step, "prepare", lambda run, program, seconds: None)


def eager(data):
    model, losses = network(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in data:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        (8.0 * loss).backward()
        for p in model.parameters():
            p.grad.mul_(1 / 8.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_legacy_trainer_trains_and_resumes_as_eager_pytorch(tmp_path) -> None:
    data = batches(6)
    wanted = eager(data)
    first = Trainer(tmp_path)
    assert first.train(data[:4]) == wanted[:4]
    assert runtime.settings().mode == "weight-streaming"
    checkpoint = tmp_path / "checkpoint_4.mdl"
    assert PyTorchH5Saver().load_tensor(checkpoint, "global_step") == 4
    assert set(CerebrasStateDict.create(None, checkpoint)["model"]) == set(network().state_dict())
    again = Trainer(tmp_path, checkpoint)
    assert again.train(data[4:]) == wanted[4:]


def test_tensor_that_nothing_tracks_cannot_be_fetched(tmp_path) -> None:
    trainer = Trainer(tmp_path)
    trainer.train(batches(2))
    with pytest.raises(RuntimeError, match="track_object"):
        cbtorch.state().get_activation_for_output(trainer.model[0].weight)


def test_compile_outside_of_the_loop_is_refused(tmp_path) -> None:
    with pytest.raises(RuntimeError, match="without a traced step"):
        Trainer(tmp_path).machine.compile([], 4)


def test_closures_before_the_loop_keep_their_order(tmp_path) -> None:
    """The first checkpoint, requested when the machine is ready, waits for the initial state, which waits for the loop."""
    trainer = Trainer(tmp_path)
    seen: list[object] = []
    cm.step_closure(lambda: seen.append(trainer.initial))()
    assert seen == []
    trainer.train(batches(1))
    assert seen == [trainer.initial]
    assert trainer.initial is not None
