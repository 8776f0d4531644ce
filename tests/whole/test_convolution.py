"""Convolutions on the fabric: images pass pixel by pixel through regions whose inlets unfold them, compared with
PyTorch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.whole.plans import corner, weights_of
from tests.whole.test_dense_chain import plan_of as planned
from wse_sim import api
from wse_sim.errors import ModelError
from wse_sim.kernels.blocks.windows import Axis, Windows
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole import bundles, compare_with_engine, inputs_over_rows, network, run_whole
from wse_sim.whole.coverage import check_graph
from wse_sim.whole.regions.pooling import Pooling

CASES: dict[str, tuple[list[nn.Module], tuple[int, int, int], int]] = {
    "strides and zeros around": (
        [nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 6, 3, stride=2, padding=1), nn.ReLU(),
         nn.Flatten(), nn.Linear(54, 8)],
        (1, 12, 12), 20,
    ),
    "odd channels, even taps, lines longer than columns": (
        [nn.Conv2d(3, 4, 2), nn.ReLU(), nn.Flatten(), nn.Linear(80, 6)], (3, 6, 5), 16,
    ),
    "maxima over a border, then means": (
        [nn.MaxPool2d(3, 2, 1), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(24, 6)], (4, 12, 12), 20,
    ),
    "means over a border, a mean of the whole": (
        [nn.Conv2d(2, 8, 3), nn.AvgPool2d(3, 1, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)], (2, 7, 9), 20,
    ),
    "a filter for every channel, then groups of channels": (
        [nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.ReLU(), nn.Conv2d(6, 8, 1), nn.Conv2d(8, 8, 5, 2, 2, groups=8, bias=False),
         nn.Conv2d(8, 4, 3, padding=1, groups=2)], (6, 7, 9), 20,
    ),
    "wide strides, as patches have them": (
        [nn.Conv2d(2, 4, 3, stride=3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=3, padding=1), nn.Flatten(), nn.Linear(16, 6)],
        (2, 12, 14), 20,
    ),
    "an image comes out, no bias": ([nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1, bias=False)], (2, 4, 6), 16),
}  # fmt: skip


def made(name: str) -> tuple[nn.Sequential, PipelinedPlan]:
    """Return model and plan of a case."""
    layers, shape, side = CASES[name]
    model = nn.Sequential(*layers).float()
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, *shape),)))
    plan = api.compile(graph, mode="pipelined", wafer=corner(side), batch=16, replicas=1)
    assert isinstance(plan, PipelinedPlan)
    return model, plan


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", CASES)
def test_images_come_out_as_from_pytorch(name: str) -> None:
    """Three images are in flight. Every layer rounds to fp16 (2^-11 relative) twice: sums, and sums with bias."""
    torch.manual_seed(2)
    model, plan = made(name)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    images = torch.randn(3, *CASES[name][1]).half()
    run = run_whole(plan, weights_of(model), images.float().numpy())
    with torch.no_grad():
        wanted = model.half()(images).float().numpy().reshape(3, -1)
    bound = 4 * len(plan.stages) * 2.0**-11 * np.abs(wanted).max()
    assert np.abs(run.outputs - wanted).max() < bound
    assert np.abs(run.outputs).max() > 50 * bound  # the bound would tell values from none
    assert run.fabric.words_left == 0


class Residual(nn.Module):
    """Two convolutions with batch norms and a skip around them, behind a first one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.start = (
            nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(4, eps=0.1),
        )
        self.up, self.middle = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.down, self.end = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.last = nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, channels, lines, columns)."""
        x = self.start(self.first(x)).relu()
        y = self.middle(self.up(x)).relu()
        x = (self.end(self.down(y)) + x).relu()
        return self.last(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


@pytest.mark.slow
def test_a_residual_block_with_batch_norms() -> None:
    """Statistics away from their defaults are folded into filters and bias; the sum is its own region, where the skip
    waits.
    """
    torch.manual_seed(4)
    model = Residual().eval()
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            moved = value + 0.3 * torch.randn_like(value)
            value.copy_(moved.abs().half() if "var" in name else moved.half())
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, 2, 10, 10),)))
    assert [kernel.family for kernel in graph.kernels if "sum" in kernel.name] == ["generated"]
    plan = api.compile(graph, mode="pipelined", wafer=corner(24), batch=16, replicas=1)
    assert isinstance(plan, PipelinedPlan)
    images = torch.randn(5, 2, 10, 10).half().float()
    run = run_whole(plan, weights_of(model), images.numpy())
    with torch.no_grad():
        wanted = model(images).numpy()
    assert np.abs(run.outputs - wanted).max() < 2 * len(plan.stages) * 2.0**-11 * np.abs(wanted).max()
    weights = weights_of(model)
    del weights["end.running_var"]
    with pytest.raises(ModelError, match="running_var"):
        run_whole(plan, weights, images.numpy())


@pytest.mark.slow
def test_a_residual_sum_keeps_the_pace_of_its_link() -> None:
    """16 x 16 pixels of 4 channels are 512 words: the sum's operands arrive over one link, 2 x (512 words and one that
    turns back).

    So much the plan states of its work and its wait for words.  The pooling behind it takes longer, and holds up the skip as well.
    """
    model = Residual().eval()
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, 2, 32, 32),)))
    plan = api.compile(graph, mode="pipelined", wafer=corner(40), batch=16, replicas=1)
    assert isinstance(plan, PipelinedPlan)
    found = compare_with_engine(plan, 8)
    total = next(region for region in found.regions if region.name.endswith("sum"))
    assert total.engine + total.engine_waits[0] == pytest.approx(2 * 513, abs=1)
    assert found.fabric_period == pytest.approx(found.engine_period, rel=0.05)
    for region, stage in zip(found.regions, plan.stages, strict=True):
        stated = min(region.engine, stage.cycles_per_sample)  # the engine's time has that of blocked lines
        assert region.busiest == pytest.approx(stated, rel=0.01), region


@pytest.mark.slow
def test_a_column_of_pooling_hears_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of all pixels of 16 channels arrives in one stream: eight words of each of 8 x 8 pixels pass every
    inlet.

    Cores compute meanwhile, so that is a sample's time; in streams side by side it is that of a core.
    """
    layers = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 2))
    graph = inputs_over_rows(api.lower(layers, (torch.zeros(1, 16, 8, 8),)))
    plan = api.compile(graph, mode="pipelined", wafer=corner(16), batch=16, replicas=1)
    assert isinstance(plan, PipelinedPlan)
    several = compare_with_engine(plan, 8)
    assert several.fabric_period == pytest.approx(several.regions[0].issued, rel=0.01)
    monkeypatch.setattr(bundles, "token_words", lambda *_: 1)
    assert compare_with_engine(plan, 8).fabric_period == pytest.approx(8 * 8 * 8, rel=0.01)


GROUPED = "a filter for every channel, then groups of channels"


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", ["strides and zeros around", "maxima over a border, then means", GROUPED])
def test_regions_issue_what_their_instructions_take(name: str) -> None:
    """Cycles of the busiest core of every region are compared, and all start in the order of the layers."""
    _, plan = made(name)
    found = compare_with_engine(plan, 4)
    for region in found.regions:
        assert region.busiest == pytest.approx(region.issued, abs=1.0), region
        # The plan has the programs' closed forms, and a pooling's wait for its links (3.3 of 72 cycles in the first case).
        assert region.engine == pytest.approx(region.busiest, rel=0.05)
    assert found.same_order


@pytest.mark.slow
def test_cycles_of_a_convolution_on_paper() -> None:
    """4 channels of 4 x 6 pixels to 2 filters of one tap on a column of v = 2 outputs have T = 24 pixels.

    Two pixels are computed at a time, on two columns.  Rows with k = 2 inputs, two of each pixel: 2 x 1 products (two a cycle) and 2
    sums, 4 cycles for both, 48.  The last row has no inputs; two sums come and a word leaves: 3 cycles.
    """
    _, plan = made("an image comes out, no bias")
    region = compare_with_engine(plan, 4).regions[1]
    assert region.busiest == region.engine == 48


def test_a_layer_has_columns_for_the_links_that_its_reader_needs() -> None:
    """Six lines of 512 pixels of 16 channels are 96 KiB, and a core has less than 48 KiB: the reader takes them over four links.

    The first layer gives them over as many only if each has the four filters of a column.
    """
    model = nn.Sequential(nn.Conv2d(2, 16, 1), nn.Conv2d(16, 32, 3, stride=2, padding=1))
    plan = planned(inputs_over_rows(api.lower(model, (torch.zeros(1, 2, 8, 512),))), 20)
    first, second = network.network_program(plan, 1).regions
    assert first.bundles["0.out"] == second.bundles["0.out"] == 4
    assert first.cols >= 4
    assert plan.pace_cycles == pytest.approx(max(first.pace(), second.pace()), rel=0.01)


@pytest.mark.parametrize(
    ("shape", "bands", "cycles"),
    [
        # One line of the result, one band.  In: 64 words.  Lines: a copy of 64 elements (four a cycle) and a maximum of 64 (one a cycle),
        # as two lines 64 elements apart are in one bank.  Columns: T = 16 pixels; two channels one after the other.  Out: 16 words.
        ((4, 2, 32), 1, 64 + (2 * 21 + 16 + 64) + 2 * (21 + 16) + 16),
        # Four lines of the result, a band each.  In: 16 words.  Lines: a maximum of two lines of 16 elements in one bank, each twice as
        # long.  Columns: both channels at once, 14 maxima with the gap between the last two pixels.  Out: 4 words.
        ((4, 8, 8), 4, 16 + (21 + 2 * 16) + (21 + 14) + 4),
    ],
)
def test_cycles_of_a_pooling_on_paper(shape: tuple[int, int, int], bands: int, cycles: int) -> None:
    """Maxima of 2 x 2 of 4 channels need two rows of cores with e = 2 channels each, start o = 21."""
    model = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 4))
    plan = planned(inputs_over_rows(api.lower(model, (torch.zeros(1, *shape),))), 16)
    found = compare_with_engine(plan, 4)
    pooling = found.whole.regions[0]
    assert isinstance(pooling, Pooling)
    assert (pooling.height, len(pooling.bands)) == (2, bands)
    assert found.regions[0].busiest == cycles


BANDED: dict[str, tuple[list[nn.Module], tuple[int, int, int]]] = {
    "maxima whose windows share a line": ([nn.MaxPool2d(3, 2, 1)], (4, 15, 9)),
    "means of windows with a line between them": ([nn.AvgPool2d(2, 3)], (6, 14, 11)),
    "wide filters on one row and several": ([nn.Conv2d(6, 6, 5, padding=2, groups=6), nn.ReLU()], (6, 16, 7)),
    "strided filters whose last lines nobody reads": (
        [nn.Conv2d(4, 4, 3, stride=2, groups=4, bias=False)],
        (4, 18, 12),
    ),
}


@pytest.mark.parametrize("name", BANDED)
def test_columns_of_cores_have_bands_of_lines(name: str) -> None:
    """Values of three images beside PyTorch in fp32; the cores of a row take and send their bands in sequence, in the time of the
    plan, which is less than that of a single column.
    """
    torch.manual_seed(7)
    layers, shape = BANDED[name]
    model = nn.Sequential(*layers).half().float()
    plan = planned(inputs_over_rows(api.lower(model, (torch.zeros(1, *shape),))), 20)
    images = torch.randn(3, *shape).half().float()
    run = run_whole(plan, weights_of(model), images.numpy())
    with torch.no_grad():
        wanted = model(images).numpy().reshape(3, -1)
    assert np.abs(run.outputs - wanted).max() < 4 * 2.0**-11 * np.abs(wanted).max()
    assert run.fabric.words_left == 0
    found = compare_with_engine(plan, 6)
    (region,) = found.whole.regions
    assert isinstance(region, Pooling)
    assert len(region.bands) > 2
    assert found.regions[0].busiest == pytest.approx(found.regions[0].issued, abs=1)
    assert found.fabric_period == pytest.approx(plan.pace_cycles, rel=0.03)
    assert plan.pace_cycles < 0.7 * region.core_of(region.windows, region.words).issued_cycles()


@pytest.mark.parametrize("taps", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_every_line_of_the_result_has_its_lines_in_its_band(taps: int, stride: int) -> None:
    """Bands tile the result, have all lines of the image in order, and no line is in three of them."""
    for size in range(taps, 24):
        for around in range(0, (taps + 1) // 2):
            results = (size + 2 * around - taps) // stride + 1
            axis = Axis(size, taps, stride, around, results)
            windows = Windows(axis, Axis(4, 1, 1, 0, 4), 2)
            for count in range(1, windows.most_bands + 1):
                bands = windows.bands(count)
                assert sum(band.windows.lines.results for band in bands) == results
                place, holders = 0, np.zeros(size, int)
                for band, after in zip(bands, [*bands[1:], None], strict=True):
                    own = band.windows.lines
                    assert own.size == band.bottom - band.top
                    holders[band.top : band.bottom] += 1
                    for line in range(own.results):
                        read = {
                            n for n in range(axis.first(place), axis.first(place) + taps) if 0 <= n < size
                        }
                        here = {band.top + own.first(line) + tap for tap in range(taps)}
                        assert read == {n for n in here if band.top <= n < band.bottom}
                        place += 1
                    assert band.bottom - band.shared == (after.top if after else size)
                assert holders.min() >= 1
                assert holders.max() <= 2


def test_poolings_that_are_not_whole_are_refused() -> None:
    """A window that is cut off at the border and averages without padding are refused."""
    for pool in (nn.MaxPool2d(2, ceil_mode=True), nn.AvgPool2d(3, 2, 1, count_include_pad=False)):
        graph = inputs_over_rows(
            api.lower(nn.Sequential(pool, nn.Conv2d(4, 4, 1)), (torch.zeros(1, 4, 7, 7),))
        )
        with pytest.raises(ModelError, match="cut off"):
            check_graph(graph)


@pytest.mark.slow
def test_images_come_in_several_streams_where_one_would_be_late() -> None:
    """16 x 16 pixels of 4 channels are 512 words.  A region whose rows take 256 cycles has inlets that also send: one word for each
    of T = 64 pixels.  One stream would take 512 + 64 cycles; two streams of two channels take 256 + 64.
    """
    torch.manual_seed(3)
    layers = [
        nn.Conv2d(4, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
    ]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 32)).half().float()
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, 4, 16, 16),)))
    plan = api.compile(graph, mode="pipelined", wafer=corner(24), batch=16, replicas=1)
    assert isinstance(plan, PipelinedPlan)
    found = compare_with_engine(plan, 4)
    assert next(stream.links for stream in found.streams if stream.tensor == "input") == 2
    assert found.regions[0].busiest == 256
    assert found.fabric_period == found.engine_period == 256 + 64
    images = torch.randn(3, 4, 16, 16).half()
    run = run_whole(plan, weights_of(model), images.float().numpy())
    with torch.no_grad():
        wanted = model(images.float()).numpy()
    assert np.abs(run.outputs - wanted).max() < 6 * 2.0**-11 * np.abs(wanted).max()


def test_every_word_of_a_pixel_may_come_over_its_own_link() -> None:
    """24 x 24 pixels of 16 channels are 4,608 words.  One word of every pixel to each of eight rows is 576 words, as many as the cycles
    that 144 results of two products and two sums take; queues of 14 words are filled first.
    """
    torch.manual_seed(5)
    model = nn.Sequential(nn.Conv2d(16, 4, 1, stride=2)).half().float()
    plan = planned(inputs_over_rows(api.lower(model, (torch.zeros(1, 16, 24, 24),))), 20)
    found = compare_with_engine(plan, 4)
    assert next(stream.links for stream in found.streams if stream.tensor == "input") == 8
    assert found.regions[0].busiest == 144 * 4 == 24 * 24
    assert plan.pace_cycles == 576 + 14
    assert found.fabric_period == pytest.approx(plan.pace_cycles, rel=0.02)
    images = torch.randn(2, 16, 24, 24).half().float()
    with torch.no_grad():
        wanted = model(images).numpy().reshape(2, -1)
    outputs = run_whole(plan, weights_of(model), images.numpy()).outputs
    assert np.abs(outputs - wanted).max() < 4 * 2.0**-11 * np.abs(wanted).max()


class Wide(nn.Module):
    """A block of 24 channels around which a skip leads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.up, self.down = (
            nn.Conv2d(4, 24, 1),
            nn.Conv2d(24, 24, 3, padding=1),
            nn.Conv2d(24, 24, 1),
        )
        self.last = nn.Conv2d(24, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, channels, lines, columns)."""
        x = self.first(x).relu()
        return self.last((self.down(self.up(x).relu()) + x).relu())


def test_a_residual_sum_takes_images_over_several_links() -> None:
    """Two operands of 8 x 8 pixels of 12 words take 1,536 cycles on one link, and a control word each: in three bands 512 + 2,
    more than the pace, so there are four, of 384 + 2."""
    torch.manual_seed(6)
    model = Wide().half().float()
    plan = planned(inputs_over_rows(api.lower(model, (torch.zeros(1, 4, 8, 8),))), 40)
    regions = network.network_program(plan, 2).regions
    total = next(region for region in regions if region.name.endswith("sum"))
    assert [total.bundles[name] for name in (*total.kernel.inputs, *total.kernel.outputs)] == [4, 4, 4]
    assert (plan.pace_cycles, total.pace()) == (512, 386)
    assert compare_with_engine(plan, 6).fabric_period == pytest.approx(512, rel=0.15)
    images = torch.randn(3, 4, 8, 8).half().float()
    with torch.no_grad():
        wanted = model(images).numpy().reshape(3, -1)
    outputs = run_whole(plan, weights_of(model), images.numpy()).outputs
    assert np.abs(outputs - wanted).max() < 10 * 2.0**-11 * np.abs(wanted).max()


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(2, 4, (3, 1), padding=(1, 0)),
        nn.Conv2d(2, 4, (1, 3), padding=(0, 1)),
        nn.Conv2d(2, 4, 3, padding=(1, 0)),
        nn.Conv2d(2, 4, 3, stride=(1, 2), padding=1),
        nn.Conv2d(2, 4, 3, stride=(2, 1), padding=1),
    ],
    ids=repr,
)
def test_unlike_directions_are_refused(conv: nn.Conv2d) -> None:
    """A kernel has one stride, and its padding follows from the lines of its result: columns must agree."""
    graph = inputs_over_rows(api.lower(nn.Sequential(conv, nn.ReLU()), (torch.zeros(1, 2, 6, 6),)))
    with pytest.raises(ModelError, match="same stride and padding"):
        check_graph(graph)


@pytest.mark.parametrize(("stride", "padding"), [((4, 3), 0), (4, (0, 1))])
def test_wide_strides_that_differ_are_refused(stride: Any, padding: Any) -> None:
    """8 x 8 pixels give 2 x 2 results in both cases, so sizes alone would not show it."""
    model = nn.Sequential(nn.Conv2d(2, 4, 4, stride=stride, padding=padding))
    assert model(torch.zeros(1, 2, 8, 8)).shape == (1, 4, 2, 2)
    with pytest.raises(ModelError, match="different strides or padding along lines and along columns"):
        check_graph(inputs_over_rows(api.lower(model, (torch.zeros(1, 2, 8, 8),))))


def test_an_image_that_no_inlet_holds_in_so_few_streams_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Six lines of 16 x 1,024 elements are 192 KiB: an inlet holds those of an eighth of the channels."""
    model = nn.Sequential(nn.Conv2d(2, 16, 1), nn.ReLU(), nn.Conv2d(16, 4, 3, stride=2, padding=1))
    plan = planned(inputs_over_rows(api.lower(model, (torch.zeros(1, 2, 4, 1024),))), 48)
    assert all(region.bundles["1.out"] > 1 for region in network.network_program(plan, 2).regions)
    monkeypatch.setattr(bundles, "token_words", lambda *_: 1)
    with pytest.raises(ModelError, match="needs more than 1 parallel streams"):
        network.network_program(plan, 2)
