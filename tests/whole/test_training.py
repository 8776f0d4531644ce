"""A batch of training of a dense chain on the fabric: every value against PyTorch, time against the event engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.whole.test_dense_chain import graph_of, network, plan_of
from wse_sim import api
from wse_sim.errors import ModelError
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole import compare_training, compare_with_engine, inputs_over_rows, train_whole
from wse_sim.whole.trained import trained_network

RATE = 0.5


def training_plan(model: nn.Sequential, side: int, batch: int = 16) -> PipelinedPlan:
    """Return the plan of a training with plain gradient descent."""
    graph = graph_of(model, model[0].in_features, training=True, optimizer="sgd")
    return plan_of(inputs_over_rows(graph), side, phase="training", optimizer="sgd", batch=batch)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("loss", ["cross entropy", "squared error"])
@pytest.mark.parametrize(
    ("sizes", "side", "rows"),
    [((16, 8, 6), 16, 6), ((33, 21, 14, 7), 24, 13), ((40, 10), 16, 5), ((24, 40, 24, 6), 40, 9)],
)
def test_loss_gradients_and_update_equal_those_of_pytorch(
    sizes: tuple[int, ...], side: int, rows: int, loss: str
) -> None:
    """Odd sizes, one to three layers, batches that the samples in flight do not divide, and smaller ones; sums that lag behind.

    Weights, activations and gradients are fp16 (2^-11 relative) where they rest or travel, sums fp32: a gradient has
    passed two roundings per layer on either way.  PyTorch computes in fp32 from the same fp16 weights and inputs.
    """
    model = network(sizes)
    plan = training_plan(model, side)
    x = torch.randn(rows, sizes[0]).half()
    labels = torch.arange(rows) % sizes[-1]
    for parameter in model.parameters():
        parameter.data = parameter.data.half().float()
    weights = {name: value.detach().clone().numpy() for name, value in model.state_dict().items()}
    run = train_whole(plan, weights, x.float().numpy(), labels.numpy(), rate=RATE, loss=loss)

    outputs = model(x.float())
    if loss == "cross entropy":
        wanted = nn.functional.cross_entropy(outputs, labels)
    else:
        wanted = 0.5 * ((outputs - nn.functional.one_hot(labels, sizes[-1])) ** 2).sum() / rows
    wanted.backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    bound = 4 * len(plan.stages) * 2.0**-11
    assert run.loss == pytest.approx(wanted.item(), rel=bound)
    assert np.abs(run.outputs - outputs.detach().numpy()).max() < bound * np.abs(run.outputs).max()
    for name, parameter in model.named_parameters():
        gradient = parameter.grad.numpy()
        largest = np.abs(gradient).max()
        assert np.abs(run.gradients[name] - gradient).max() < bound * largest, name
    optimizer.step()
    for name, parameter in model.named_parameters():
        moved = np.abs(parameter.detach().numpy() - weights[name]).max()
        assert np.abs(run.weights[name] - parameter.detach().numpy()).max() < bound * moved, name
    assert run.fabric.words_left == 0


def test_rows_of_an_odd_number_of_features_train_in_whole_words() -> None:
    """Five rows a sample, seven features between the layers, nine logits: a zero fills the last word of each."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 7), nn.ReLU(), nn.Linear(7, 9))
    graph = api.lower(model, (torch.zeros(1, 5, 16),), training=True, optimizer="sgd")
    plan = plan_of(inputs_over_rows(graph), 24, phase="training", optimizer="sgd", batch=6)
    for parameter in model.parameters():
        parameter.data = parameter.data.half().float()
    weights = {name: value.detach().clone().numpy() for name, value in model.state_dict().items()}
    x, labels = torch.randn(6, 5, 16).half().float(), torch.randint(0, 9, (30,))
    run = train_whole(plan, weights, x.numpy(), labels.numpy(), rate=RATE)
    wanted = nn.functional.cross_entropy(model(x).reshape(30, 9), labels)
    wanted.backward()
    assert run.loss == pytest.approx(wanted.item(), rel=2.0**-8)
    for name, parameter in model.named_parameters():
        gradient = parameter.grad.numpy()
        assert np.abs(run.gradients[name] - gradient).max() < 2.0**-8 * np.abs(gradient).max(), name


@pytest.mark.slow
def test_the_step_takes_what_the_event_engine_says() -> None:
    """Within 10 %, as requested for training, and the busiest core of every region within 12 %."""
    found = compare_training(training_plan(network((64, 32, 32, 10)), 24, batch=64))
    assert abs(found.difference) < 0.1, found.text()
    for region in found.regions:
        assert region.busiest == pytest.approx(region.engine, rel=0.12), region


@pytest.mark.slow
def test_every_row_of_a_loss_takes_the_same_cycles() -> None:
    """10 logits in words, a difference and a sum of squares with an element a cycle, the gradient in words: 5 + 2 (21 + 10) + 5.
    Labels of 10 elements end in the middle of a bank, so those of the second row would be in the bank of the logits."""
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 10))
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, 6, 12),), training=True, optimizer="sgd"))
    plan = plan_of(graph, 32, phase="training", optimizer="sgd", batch=8)
    loss = compare_training(plan).regions[-1]
    assert loss.busiest == 8 * (5 + 2 * (21 + 10) + 5)
    assert loss.busiest == pytest.approx(loss.engine, rel=0.02)


def test_a_longer_batch_takes_its_samples_more() -> None:
    """Between 48 and 96 samples every sample takes the same time: the pipeline is full."""
    plan = training_plan(network((16, 8, 6)), 16)
    cycles = [
        train_whole(plan, _zeros(plan), np.zeros((rows, 16), np.float32), np.zeros(rows, np.int64), rate=0.1,
                    loss="squared error").fabric.cycles
        for rows in (24, 48, 96)
    ]  # fmt: skip
    assert cycles[2] - cycles[1] == pytest.approx(2 * (cycles[1] - cycles[0]), rel=0.05)


def _zeros(plan: PipelinedPlan) -> dict[str, np.ndarray]:
    shapes = {name: plan.graph.tensors[name].shape for k in plan.graph.kernels for name in k.parameters}
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def test_what_does_not_train_is_refused_in_one_sentence() -> None:
    """A wrong phase, an unknown loss and missing weights are refused."""
    model = network((16, 8))
    trains = training_plan(model, 16)
    infers = plan_of(inputs_over_rows(graph_of(model, 16)), 16)
    with pytest.raises(ModelError, match="made for training; use train_whole"):
        compare_with_engine(trains)
    with pytest.raises(ModelError, match="made for inference; use run_whole"):
        compare_training(infers)
    with pytest.raises(ModelError, match="loss 'hinge' is unknown; use one of cross entropy, squared error"):
        trained_network(trains, 4, loss="hinge")
    adam = graph_of(model, 16, training=True, optimizer="adamw")
    adam_plan = plan_of(inputs_over_rows(adam), 16, phase="training", optimizer="adamw")
    with pytest.raises(
        ModelError, match=r"kernel '0.update' updates by adamw, but the whole fabric updates by sgd"
    ):
        compare_training(adam_plan)
    none = _zeros(trains)
    with pytest.raises(ModelError, match="3 labels for 2 output rows; give one for every row"):
        train_whole(trains, none, np.zeros((2, 16), np.float32), np.zeros(3, np.int64), rate=0.1)
    with pytest.raises(
        ModelError, match="labels go from 0 to 8, and a row has 8 outputs; count classes from 0"
    ):
        train_whole(trains, none, np.zeros((2, 16), np.float32), np.array([0, 8]), rate=0.1)
    with pytest.raises(ModelError, match=r"weights '0\.weight, 0\.bias' are missing"):
        train_whole(trains, {}, np.zeros((2, 16), np.float32), np.zeros(2, np.int64), rate=0.1)
