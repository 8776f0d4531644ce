"""How often images follow each other through convolutions and residual blocks: the fabric beside the plan."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.whole.plans import corner
from wse_sim import api
from wse_sim.kernels.families.conv2d import cost
from wse_sim.modes.base import expect
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole import bundles, compare_with_engine, inputs_over_rows

SIDE = 40


def planned(
    model: nn.Module, shape: tuple[int, int, int], base: str = "wse2", placer: str = "shelves"
) -> PipelinedPlan:
    """Return the plan of a model on a corner of a wafer."""
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, *shape),)))
    plan = api.compile(graph, corner(SIDE, base), mode="pipelined", batch=32, replicas=1, placer=placer)
    return expect(plan, PipelinedPlan)


def two() -> nn.Module:
    """Two convolutions; 8 x 8 pixels of 8 channels between them are 256 words, and both work on an image for 256 cycles: 64 pixels,
    each of one word per row for two filters (2 cycles) and two sums.  With several pixels at a time they take less."""
    return nn.Sequential(nn.Conv2d(2, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1))


@pytest.mark.parametrize(("base", "relay", "word"), [("wse2", 6, 1.0), ("wse3", 12, 1.125)])
def test_inlets_of_one_stream_wait_for_the_last_row(
    base: str, relay: int, word: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """36 rows have a word of 64 pixels each, 4 cycles per word; the last one finishes an image 35 relays after the first, and its inlet
    14 words, in a queue, before it.  Then 256 words of the image after the next arrive, and the first row begins it two periods after this
    image: 340 and 461 cycles, where links alone allow 256 and 288.

    With this placer the stream comes to the middle of the rows; words that wait in routers do not make the first row earlier.
    """
    monkeypatch.setattr(cost, "MOST_ABREAST", 1)
    monkeypatch.setattr(bundles, "token_words", lambda *_: 1)
    found = compare_with_engine(planned(two(), (2, 16, 16), base, "peel"), 8)
    assert {stream.links for stream in found.streams} == {1}
    assert found.fabric_period == pytest.approx((256 + 35 * relay - 14 * 3 + word * 256) / 2, rel=0.05)


@pytest.mark.parametrize(("base", "most", "rel"), [("wse2", 1, 0.03), ("wse3", 1, 0.13), ("wse2", 4, 0.03)])
def test_two_convolutions_keep_the_pace_of_the_plan(
    base: str, most: int, rel: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan has the wait for the last row, so it takes several links, and is no longer 29 and 51 % too fast.  Words in routers between the
    regions shorten the wait, more so on a WSE-3, whose links hold more of them.
    """
    monkeypatch.setattr(cost, "MOST_ABREAST", most)
    plan = planned(two(), (2, 16, 16), base)
    found = compare_with_engine(plan, 8)
    assert most > 1 or next(stream.links for stream in found.streams if stream.tensor == "1.out") >= 2
    assert found.engine_period == pytest.approx(plan.pace_cycles, rel=0.01)
    assert found.fabric_period == pytest.approx(found.engine_period, rel=rel)


class Strided(nn.Module):
    """A residual block of stride 2, whose shortcut has one tap."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.up, self.down = nn.Conv2d(4, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, padding=1)
        self.short = nn.Conv2d(4, 16, 1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, channels, lines, columns)."""
        x = self.stem(x).relu()
        return (self.down(self.up(x).relu()) + self.short(x)).relu()


def test_a_store_receives_while_it_deals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two operands of 288 words take all 576 cycles of a link.  A store that dealt before it received would take 288 cycles for each,
    and more where both operands share the link: 616 cycles were measured."""
    monkeypatch.setattr(cost, "MOST_ABREAST", 1)
    found = compare_with_engine(planned(Strided(), (2, 12, 12)), 16)
    assert found.engine_period == 2 * 288
    assert found.fabric_period == pytest.approx(576, rel=0.04)


def test_links_of_a_narrow_image_of_odd_channels_bind() -> None:
    """Lines of three pixels of three channels get a channel of zeros: 48 pixels of two words.  A link brings a word per cycle, and
    while an inlet fills the queues of its row with the first seven words of a sample, it receives none.
    """
    plan = planned(nn.Conv2d(3, 4, 3, padding=1), (3, 16, 3))
    assert plan.pace_cycles == 48 * 2 + 7
    assert 48 * 2 <= compare_with_engine(plan, 4).fabric_period <= plan.pace_cycles
