"""Convolutions of images with any number of channels: how the host sends them, several results of a line at a time, values beside
PyTorch, and cycles.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.whole.plans import weights_of
from tests.whole.test_dense_chain import plan_of
from wse_sim import api
from wse_sim.errors import ModelError
from wse_sim.kernels.blocks.windows import Axis, Windows
from wse_sim.whole import compare_with_engine, inputs_over_rows, network, run_whole
from wse_sim.whole.coverage import check_graph
from wse_sim.whole.host_values import in_whole_words
from wse_sim.whole.regions.convolution import Convolution

CASES: dict[str, tuple[list[nn.Module], tuple[int, int, int], int, int]] = {
    # layers, image, pixels that come as one, links of the host
    "one channel": ([nn.Conv2d(1, 4, 3, 1, 1), nn.ReLU()], (1, 8, 10), 2, 1),
    "as in VGG": ([nn.Conv2d(3, 4, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2)], (3, 8, 8), 2, 3),
    "as in ResNet": ([nn.Conv2d(3, 4, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], (3, 12, 16), 4, 3),
    "as in AlexNet": ([nn.Conv2d(3, 4, 11, 4, 2, bias=False), nn.MaxPool2d(3, 2)], (3, 27, 27), 12, 9),
    "an odd number of results": ([nn.Conv2d(5, 4, 5)], (5, 7, 11), 1, 3),
    "lines of odd length": ([nn.Conv2d(7, 4, 3, 2, 1)], (7, 9, 9), 2, 7),
    "a wide stride without zeros": ([nn.Conv2d(1, 8, 7, 4), nn.ReLU(), nn.Conv2d(8, 4, 2)], (1, 15, 23), 12, 6),
    "an odd stride": ([nn.Conv2d(3, 4, 5, 3, 1)], (3, 9, 12), 12, 18),
}  # fmt: skip


EXACT = ("as in VGG", "as in ResNet", "lines of odd length")
"""Cases whose inlets do not wait for their last row: words that routers hold shorten that wait, and no price counts them."""


@pytest.mark.parametrize("name", CASES)
def test_images_of_odd_channels_come_over_several_links(name: str) -> None:
    """Three images are in flight. The result is that of PyTorch, no word is left, and the fabric takes what the plan states."""
    layers, shape, together, links = CASES[name]
    torch.manual_seed(5)
    model = nn.Sequential(*layers).half().float()
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, *shape),)))
    first = graph.kernels[0]
    assert first.attrs["together"] == together
    plan = plan_of(graph, 40)
    images = torch.randn(3, *shape).half().float()
    run = run_whole(plan, weights_of(model), images.numpy())
    with torch.no_grad():
        wanted = model(images).numpy().reshape(3, -1)
    assert np.abs(run.outputs - wanted).max() < 4 * len(plan.stages) * 2.0**-11 * np.abs(wanted).max()
    assert run.fabric.words_left == 0
    found = compare_with_engine(plan, 4)
    assert next(stream.links for stream in found.streams if stream.tensor == "input") == links
    least = 0.97 if name in EXACT else 0.8
    assert least * plan.pace_cycles < found.fabric_period < 1.035 * plan.pace_cycles
    assert found.engine_period == pytest.approx(plan.pace_cycles, rel=0.01)


@pytest.mark.parametrize("stride", [1, 2, 3, 4])
@pytest.mark.parametrize("taps", [1, 3, 5, 7, 11])
def test_windows_of_several_results_have_the_pixels_of_each(taps: int, stride: int) -> None:
    """Tap s of result j is pixel j z - q + s of a line; it is where the filters of result j mod p are, in window j // p."""
    for size in range(taps, 30):
        for around in range((taps + 1) // 2):
            results = (size + 2 * around - taps) // stride + 1
            axis = Axis(size, taps, stride, around, results)
            windows = Windows(axis, axis, 3)
            for abreast in (n for n in (1, 2, 3, 4) if results % n == 0):
                for together in (n for n in (1, 2, 4) if stride * abreast % n == 0):
                    _check(windows, together, abreast)


def _check(windows: Windows, together: int, abreast: int) -> None:
    found, own = windows.grouped(together, abreast), windows.columns
    assert found.channels in (3 * together, 3 * together + 1)
    assert found.channels % 2 == 0
    assert (found.columns.size - 1) * together < own.size <= found.columns.size * together
    assert found.columns.results * abreast == own.results
    for result in range(own.results):
        window, number = divmod(result, abreast)
        place = windows.lead(together) + number * own.stride
        assert place + own.taps <= found.columns.taps * together
        assert found.columns.first(window) * together + place == own.first(result)


@pytest.mark.parametrize("name", CASES)
def test_every_element_of_an_image_is_sent_once(name: str) -> None:
    """What is sent has the elements of the image, a line of the image in a line, and zeros that fill words and lines."""
    layers, shape, _, _ = CASES[name]
    graph = inputs_over_rows(api.lower(nn.Sequential(*layers), (torch.zeros(1, *shape),)))
    images = np.arange(1.0, 1 + 2 * np.prod(shape), dtype=np.float32).reshape(2, *shape)
    sent = in_whole_words(graph, images)
    assert sent.shape[1:] == graph.tensors["input"].shape[1:]
    assert sent.shape[1] % 2 == 0
    for image, lines in zip(images, sent, strict=True):
        for line in range(shape[1]):
            got = np.sort(lines[:, line].reshape(-1))
            assert np.array_equal(got[got > 0], np.sort(image[:, line].reshape(-1)))
    assert sent.sum() == images.sum()


def test_cycles_of_several_pixels_on_paper() -> None:
    """3 channels of 8 x 8 pixels to 4 filters of 3 x 3, four pixels at a time: windows of 3 lines of 4 x 2 pixels are 36 words, two for
    each of 18 rows, and 8 columns have two of the 16 filters.  4 cycles for products and 2 for sums of 16 windows are 96; one pixel at a
    time takes at least 4 x 64.
    """
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False))
    plan = plan_of(inputs_over_rows(api.lower(model, (torch.zeros(1, 3, 8, 8),))), 40)
    (region,) = network.network_program(plan, 1).regions
    assert isinstance(region, Convolution)
    assert (region.abreast, region.height, region.cols) == (4, 19, 8)
    found = compare_with_engine(plan, 4)
    assert found.regions[0].busiest == 96


def test_an_image_of_odd_channels_that_no_host_sends_is_refused() -> None:
    """A pooling passes three channels on, and words hold channels of one pixel."""
    model = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(3, 4, 3))
    with pytest.raises(ModelError, match="3 channels"):
        check_graph(inputs_over_rows(api.lower(model, (torch.zeros(1, 3, 8, 8),))))
