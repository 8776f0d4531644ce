"""A convolution that trains, alone on its fabric: outputs, gradients and updates compared with autograd, cycles with
paper.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.whole.alone import EPS, Alone, check_alone, issued, region_alone, run_alone
from tests.whole.test_trained import training_plan
from wse_sim.errors import ModelError
from wse_sim.whole import train_whole
from wse_sim.whole.trained.convolution import TrainedConvolution

CASES: dict[str, tuple[dict[str, Any], tuple[int, int, int], int, int, int]] = {
    # convolution, image, side of the wafer, samples, of them in flight
    "zeros around": ({"sizes": (2, 4, 3), "padding": 1}, (2, 6, 6), 12, 2, 1),
    "stride 2, two rounds": ({"sizes": (4, 6, 3), "stride": 2, "padding": 1}, (4, 8, 8), 16, 4, 2),
    "no bias, all in flight": ({"sizes": (4, 6, 3), "padding": 1, "bias": False}, (4, 6, 6), 16, 3, 3),
    "one tap, lines of odd length": ({"sizes": (2, 4, 1)}, (2, 5, 7), 12, 6, 3),
    "one channel, stride 2": ({"sizes": (1, 4, 3), "stride": 2, "padding": 1}, (1, 8, 8), 12, 6, 2),
    "even taps, a line without readers": ({"sizes": (4, 6, 2), "stride": 2}, (4, 7, 7), 8, 6, 3),
    "wide borders, many columns": ({"sizes": (2, 16, 5), "padding": 2}, (2, 5, 4), 12, 2, 2),
    "one pixel of the result": ({"sizes": (2, 4, 4)}, (2, 4, 4), 8, 3, 1),
}


def region_of(conv: nn.Conv2d, image: tuple[int, ...], side: int, **how: Any) -> TrainedConvolution:
    """Return the region of a convolution with ReLU."""
    plan = training_plan(nn.Sequential(conv, nn.ReLU()), image, side)
    region = region_alone(TrainedConvolution, plan, plan.stages[0].name, **how)
    assert isinstance(region, TrainedConvolution)
    return region


def checked(name: str, **how: Any) -> tuple[Alone, int]:
    """Return a case against PyTorch, and its number of samples."""
    options, image, side, samples, in_flight = CASES[name]
    torch.manual_seed(0)
    conv = nn.Conv2d(*options["sizes"], **{key: value for key, value in options.items() if key != "sizes"})
    region = region_of(conv, image, side, **how)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(samples, *image)).astype(np.float16)
    result = region.graph.tensors[region.kernel.outputs[0]].shape[1:]
    gradient = rng.normal(size=(samples, *result)).astype(np.float16)
    weights = {f"0.{name}": value.detach().half().float().numpy() for name, value in conv.named_parameters()}

    def op(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return torch.relu(nn.functional.conv2d(x, weight, bias, conv.stride, conv.padding))

    operands = {region.kernel.inputs[0]: images}
    return check_alone(region, op, operands, gradient, weights, in_flight=in_flight), samples


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_autograd_and_cycles_those_of_the_program(name: str) -> None:
    """Output, gradients of image, filters and bias, new weights; cores issue what their program says (``check_alone``)."""
    checked(name, **({"needs": ()} if CASES[name][1][0] % 2 else {}))


@pytest.mark.slow
def test_images_of_the_host_need_no_gradient() -> None:
    """No gradient is sent west, and no image of gradients is stored."""
    run, _ = checked("stride 2, two rounds", needs=())
    assert run.operand_gradients == {}
    with_gradient, _ = checked("stride 2, two rounds")
    assert issued(run.region) < issued(with_gradient.region)
    assert run.fabric.busy.sum() < with_gradient.fabric.busy.sum()


def test_cycles_of_a_row_on_paper() -> None:
    """4 channels of one tap to 6 filters on two columns or more of v = 2 outputs, k = 2 inputs, T = 16 pixels.

    Forward k products of one cycle and v sums, 4 cycles; backward v / 2 words of gradients, k products, v products of
    the gradient of the inputs, k sums west, 7 cycles: 16 x 11 = 176.  The last row takes v sums and sends v / 2 words,
    takes v / 2 words of gradients and sends them twice, 16 x 6 = 96.  The slope of 16 elements, which are those of 8
    pixels, takes 6 + 16 cycles; the gradient of the bias, two of them a cycle, 21 + 16: 96 + 44 + 37 = 177.
    """
    conv = nn.Conv2d(4, 6, 1)
    region = region_of(conv, (4, 4, 4), 12)
    assert (region.products.inputs, region.products.outputs) == ([2, 2], 2)
    assert issued(region) == 177


def test_memory_limits_the_images_in_flight() -> None:
    """An image of 8 channels of 16 x 16 pixels takes 4 KB, and two of its kind in fp32 pass: some seven fit."""
    region = region_of(nn.Conv2d(8, 8, 3, padding=1), (8, 16, 16), 24)
    assert 3 <= region.most_in_flight() <= 8


def test_an_odd_number_of_channels_sends_no_gradient() -> None:
    """A word holds two channels of a pixel.  Images of the host need none."""
    conv = nn.Conv2d(1, 4, 3, padding=1)
    with pytest.raises(ModelError, match="odd"):
        region_of(conv, (1, 4, 6), 12)
    assert region_of(conv, (1, 4, 6), 12, needs=()).gradient_order == ()


PRICED: dict[str, tuple[tuple[int, ...], dict[str, int], tuple[int, int, int], int]] = {
    # filters of two convolutions, how, image, side of the wafer
    "stride 2, few rows": ((4, 16, 32), {"stride": 2, "padding": 1}, (4, 16, 16), 12),
    "stride 2, more": ((4, 16, 32), {"stride": 2, "padding": 1}, (4, 16, 16), 24),
    "rows of several pairs": ((8, 12, 6), {}, (8, 7, 7), 12),
    "one channel": ((1, 8, 16), {"padding": 1}, (1, 8, 8), 16),
    "no bias": ((2, 8, 4), {"padding": 1, "bias": 0}, (2, 6, 6), 10),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PRICED)
def test_the_plan_prices_what_cores_issue(name: str) -> None:
    """Busiest compute cores of both convolutions, forward and back, within 4 % of the plan; one link for every stream.

    The plan has one sum of the busiest core forward and the busiest back.  These are two cores where the last row is
    the busiest one way and a row with inputs the other, so it may be dearer than one core.
    """
    sizes, how, image, side = PRICED[name]
    first, second = (nn.Conv2d(a, b, 3, **how) for a, b in itertools.pairwise(sizes))
    model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.LazyLinear(4))
    with torch.no_grad():
        model(torch.zeros(1, *image))
    plan = training_plan(model, image, side)
    for stage in plan.stages[:2]:
        needs = {"needs": ()} if stage is plan.stages[0] else {}
        region = region_alone(TrainedConvolution, plan, stage.name, **needs)
        priced = stage.forward_parts["compute"] + stage.backward_parts["compute"]
        assert issued(region) <= priced <= 1.04 * issued(region)
        assert stage.cycles_per_sample >= priced
        assert stage.barrier
    assert all(stream.width == 1 for stream in plan.streams)


def test_gradients_of_a_pixel_are_dealt_with_a_control_word() -> None:
    """36 pixels of 8 filters on four columns: four words, and one that turns the routers back.  Rows of two inputs are done before
    the next pixel arrives, so the plan has these cycles backward."""
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)
    )
    plan = training_plan(model, (4, 12, 12), 48)
    region = region_alone(TrainedConvolution, plan, "0", ())
    rng, samples = np.random.default_rng(0), 2
    weights = {name: rng.normal(size=region.graph.tensors[name].shape) for name in region.kernel.parameters}
    images = {region.operands[0]: rng.normal(size=(samples, 4, 12, 12))}
    run = run_alone(region, images, rng.normal(size=(samples, 8, 6, 6)), weights, in_flight=2)
    assert region.cols == 4
    assert (
        run.fabric.busy[region.gradient_inlets[0]] / samples == plan.stages[0].backward_cycles == 36 * (4 + 1)
    )


NETWORKS: dict[str, tuple[list[nn.Module], tuple[int, int, int], int, int, str]] = {
    # layers, image, side of the wafer, samples, loss
    "strides": (
        [nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.ReLU(),
         nn.Flatten(), nn.Linear(24, 8), nn.ReLU(), nn.Linear(8, 4)],
        (1, 8, 8), 20, 4, "cross entropy",
    ),
    "three of them, no bias": (
        [nn.Conv2d(3, 4, 3, bias=False), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 6, 2, stride=2), nn.ReLU(),
         nn.Flatten(), nn.Linear(24, 6), nn.Linear(6, 4)],
        (3, 6, 6), 24, 3, "squared error",
    ),
}  # fmt: skip


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_of_convolutions_trains_as_in_pytorch(name: str) -> None:
    """Several samples in flight; loss, outputs, gradients and new weights, the flatten's order folded into the reader.

    Values are fp16 where they rest or travel, so a gradient has passed two roundings per layer on either way.
    """
    torch.manual_seed(3)
    layers, image, side, samples, loss = NETWORKS[name]
    model = nn.Sequential(*layers).float()
    plan = training_plan(model, image, side, batch=samples)
    for parameter in model.parameters():
        parameter.data = parameter.data.half().float()
    weights = {key: value.detach().clone().numpy() for key, value in model.named_parameters()}
    images, labels = torch.randn(samples, *image).half(), torch.arange(samples) % 4
    run = train_whole(plan, weights, images.float().numpy(), labels.numpy(), rate=0.5, loss=loss)
    assert run.made.batch.in_flight > 1
    outputs = model(images.float())
    if loss == "cross entropy":
        wanted = nn.functional.cross_entropy(outputs, labels)
    else:
        wanted = 0.5 * ((outputs - nn.functional.one_hot(labels, 4)) ** 2).sum() / samples
    wanted.backward()
    bound = 4 * len(plan.stages) * EPS
    assert run.loss == pytest.approx(wanted.item(), rel=bound)
    assert np.abs(run.outputs - outputs.detach().numpy()).max() < bound * np.abs(run.outputs).max()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None
        gradient = parameter.grad.numpy()
        largest = np.abs(gradient).max()
        assert np.abs(run.gradients[key] - gradient).max() < bound * largest, key
        moved = run.weights[key] - weights[key]
        assert np.abs(moved + 0.5 * gradient).max() < bound * 0.5 * largest, key
    assert run.fabric.words_left == 0
