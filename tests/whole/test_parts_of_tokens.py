"""Parts of a token in parallel streams: they differ by at most one word, and every word is in one of them."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.whole.plans import corner
from wse_sim import api
from wse_sim.graph.kernel_graph import frozen
from wse_sim.kernels.contract.equations import largest_of
from wse_sim.kernels.contract.parameters import Bundles, spaced
from wse_sim.modes.base import expect
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole import bundles, compare_with_engine, inputs_over_rows, run_whole
from wse_sim.whole.regions.contract import POINTWISE, part_of, part_with
from wse_sim.whole.regions.dense_shape import evenly, most_heard

WAFER = corner(40)


@given(st.integers(1, 400), st.data())
def test_every_word_is_in_one_part(words: int, data: st.DataObject) -> None:
    of = data.draw(st.integers(1, words))
    parts = [part_of(words, part, of) for part in range(of)]
    assert [word for part in parts for word in part] == list(range(words))
    assert {len(part) for part in parts} <= {words // of, -(-words // of)}
    assert [part_with(word, words, of) for word in range(words)] == [
        number for number, part in enumerate(parts) for _ in part
    ]
    assert largest_of(6 * words, of, Bundles(of, words)) == 6 * max(map(len, parts))


@given(st.integers(1, 200), st.data())
def test_a_row_hears_the_parts_that_have_its_words(words: int, data: st.DataObject) -> None:
    """Counted word by word."""
    rows, of = data.draw(st.integers(1, words)), data.draw(st.integers(1, words))
    shares = evenly(words, rows, data.draw(st.integers(1, rows)))
    assert (sum(shares), len(shares)) == (words, rows)
    ends = np.cumsum([0, *shares])
    heard = [
        sum(
            len(part_of(words, one, of)) for one in {part_with(word, words, of) for word in range(first, end)}
        )
        for first, end in pairwise(ends)
    ]
    assert most_heard(words, of, shares) == max(heard)


def test_tried_numbers_are_at_most_an_eighth_apart() -> None:
    tried = spaced(range(1, 1001))
    assert (tried[0], tried[-1]) == (1, 1000)
    assert all(after <= 1.125 * before + 1 for before, after in pairwise(tried))


class Gate(nn.Module):
    """A product of two layers of 22 features, 11 words."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.out = nn.Linear(26, 22), nn.Linear(26, 22), nn.Linear(22, 14)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.one(x)) * self.other(x))


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3, 5])
def test_streams_of_unlike_size_give_the_values_of_pytorch(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """11 words in two, three and five streams into elementwise work and out of it, and into layers."""

    monkeypatch.setattr(bundles, "tried", lambda counts, _: [count] if count in counts else sorted(counts))
    torch.manual_seed(count)
    model = Gate()
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, 7, 26),)))
    # Two rows of inputs to a stream in a layer, and as many to a band of elementwise work.
    pins = {"gemm": {"pin_rows": 2 * count + 1, "pin_cols": 10}}
    other = {"pin_rows": 2 * count, "pin_cols": 5}
    kernels = tuple(
        dataclasses.replace(one, attrs=frozen({**one.attrs, **pins.get(one.family, other)}))
        for one in graph.kernels
    )
    graph = dataclasses.replace(graph, kernels=kernels)
    plan = expect(api.compile(graph, WAFER, mode="pipelined", batch=8, replicas=1), PipelinedPlan)
    x = torch.randn(3, 7, 26).half().float()
    run = run_whole(plan, {name: value.numpy() for name, value in model.state_dict().items()}, x.numpy())
    middle = next(region for region in run.whole.regions if region.kernel.family in POINTWISE)
    assert set(middle.bundles.values()) == {count}
    with torch.no_grad():
        wanted = model(x).numpy().reshape(run.outputs.shape)
    assert np.abs(run.outputs - wanted).max() < 8 * 2.0**-11 * np.abs(wanted).max()
    assert run.fabric.words_left == 0


@pytest.mark.parametrize("features", [74, 62])
def test_a_prime_number_of_words_takes_several_streams(features: int) -> None:
    """37 and 31 words per token have no divisor. In one stream, 14 tokens take at least 14 x 31 = 434 cycles to arrive at an
    inlet; in several, the layer keeps the pace of its products (84 cycles on 17 rows)."""
    layer = nn.Linear(features, 16)
    graph = inputs_over_rows(api.lower(layer, (torch.zeros(1, 14, features),)))
    plan = expect(api.compile(graph, corner(16), mode="pipelined", batch=16, replicas=1), PipelinedPlan)
    assert plan.pace_cycles < 200
    found = compare_with_engine(plan)
    # Inlets that share a stream take its words in step: up to 12 % more than their price.
    assert found.cycles_per_sample <= 1.12 * plan.pace_cycles
    samples = np.random.default_rng(0).normal(size=(4, 14, features)).astype(np.float16)
    weights = {name: value.detach().numpy() for name, value in layer.state_dict().items()}
    wanted = layer(torch.tensor(samples, dtype=torch.float32)).detach().numpy()
    np.testing.assert_allclose(
        run_whole(plan, weights, samples).outputs.reshape(wanted.shape), wanted, atol=4e-3
    )


@pytest.mark.parametrize("base", ["wse2", "wse3"])
def test_rows_that_finish_tokens_in_rotation_wait_for_their_sums(base: str) -> None:
    """Finishing one of 8 tokens costs
    two GELUs of 240 cycles.  The sums of the last token pass eight rows and come back, during which the first of these
    rows has no other work: without that wait the fabric is 8 % (WSE-2) or 15 % (WSE-3) slower than the price."""
    model = nn.Sequential(nn.Linear(88, 36), nn.GELU())
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, 8, 88),)))
    plan = expect(api.compile(graph, corner(48, base), mode="pipelined", batch=16, replicas=1), PipelinedPlan)
    found = compare_with_engine(plan)
    assert found.cycles_per_sample == pytest.approx(plan.pace_cycles, rel=0.015)
