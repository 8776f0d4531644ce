"""Consecutive dense layers as one fabric program: values against PyTorch, times against closed forms and the engine."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.whole.plans import corner, weights_of
from wse_sim import api
from wse_sim.compiler.plan import Infeasible
from wse_sim.errors import ModelError
from wse_sim.graph import KernelGraph
from wse_sim.hardware import load_wafer
from wse_sim.kernels.blocks.word_rows import hearing_cycles
from wse_sim.modes.base import expect
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.options import RunOptions
from wse_sim.whole import compare_with_engine, inputs_over_rows, run_whole
from wse_sim.whole.network import Network

CASES = {
    "three layers": ((196, 64, 64, 10), 48),
    "shares longer than the queues": ((400, 120, 84, 10), 16),
    "odd sizes": ((33, 21, 7), 20),
    "one layer": ((64, 64), 24),
    "four equal layers": ((48, 48, 48, 48, 48), 32),
    "narrow in the middle": ((128, 16, 96), 32),
}


def network(sizes: tuple[int, ...]) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def graph_of(model: nn.Module, inputs: int, **how: Any) -> KernelGraph:
    """Return the kernel graph of a network of `inputs` inputs."""
    return api.lower(model, (torch.zeros(1, inputs),), **how)


def plan_of(graph: KernelGraph, side: int, **how: Any) -> PipelinedPlan:
    """Return the pipelined plan of an inference."""
    options = RunOptions(mode="pipelined", wafer=corner(side), **({"phase": "inference", "batch": 64} | how))
    plan = api.plan_of(graph, options)
    assert isinstance(plan, PipelinedPlan), isinstance(plan, Infeasible) and plan.message
    return plan


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[nn.Sequential, PipelinedPlan]:
    sizes, side = CASES[request.param]
    model = network(sizes)
    return model, plan_of(inputs_over_rows(graph_of(model, sizes[0])), side)


@pytest.mark.thinned(1)
def test_outputs_equal_those_of_pytorch(case: tuple[nn.Sequential, PipelinedPlan]) -> None:
    """Five samples in flight.  Every layer rounds to fp16 (2^-11 relative) twice: sums, and sums with bias."""
    model, plan = case
    torch.manual_seed(1)
    x = torch.randn(5, model[0].in_features).half()
    weights = weights_of(model)
    run = run_whole(plan, weights, x.float().numpy())
    with torch.no_grad():
        wanted = model.half()(x).float().numpy()
    model.float()
    bound = 4 * len(plan.stages) * 2.0**-11 * np.abs(wanted).max()
    assert np.abs(run.outputs - wanted).max() < bound
    assert np.abs(run.outputs).max() > 100 * bound  # the bound would tell values from none
    assert run.fabric.words_left == 0


@pytest.mark.slow
@pytest.mark.thinned(1)
def test_period_is_that_of_the_busiest_core_and_follows_from_instructions(
    case: tuple[nn.Sequential, PipelinedPlan],
) -> None:
    """The busiest core sets the pace, or an inlet that receives a word per cycle (odd sizes: 17 words, and 2 that it
    sends on).
    """
    _, plan = case
    found = compare_with_engine(plan, 8)
    for region in found.regions:
        assert region.busiest == pytest.approx(region.issued, abs=0.5), region
        # All of a core's time is there: what it issues, waits for, and idles.
        assert region.busiest + sum(region.waits) == pytest.approx(found.fabric_period, abs=0.01)
    assert found.same_order
    slowest = max(region.busiest for region in found.regions)
    # Eight samples more do not use up what were between the regions: a period may be a cycle or two short.
    assert found.fabric_period >= 0.98 * slowest
    # A core that turns the routers of its rows back takes a cycle more than its price (narrow in the middle: 17 cycles, not 16).
    assert found.fabric_period == pytest.approx(found.engine_period, rel=0.03, abs=1.01)
    # The engine's pace is that of its slowest region as well: links and routers hold the samples on their way.
    assert found.engine_period == pytest.approx(plan.pace_cycles, rel=1e-3)


@pytest.mark.slow
def test_cycles_of_a_finishing_core_on_paper() -> None:
    """64 to 64 on 24 rows and 16 columns: n = 4 outputs of a column, two words of inputs in the fullest of 23 rows.

    A row: 4 inputs at 4 outputs, two multiply-accumulates a cycle, and 4 sums: 12 cycles.  The last row has no inputs:
    4 sums arrive, 2 words leave.  The first row adds the bias as its sums leave.
    """
    plan = plan_of(inputs_over_rows(graph_of(network((64, 64)), 64)), 24)
    region = compare_with_engine(plan, 8).regions[0]
    assert region.busiest == 12
    assert region.engine == 12


@pytest.mark.slow
def test_more_samples_take_more_time_and_give_the_same_rows() -> None:
    """The first rows do not depend on later ones."""
    model = network((33, 21, 7))
    plan = plan_of(inputs_over_rows(graph_of(model, 33)), 20)
    weights = weights_of(model)
    x = np.random.default_rng(0).normal(size=(6, 33)).astype(np.float32)
    few, many = run_whole(plan, weights, x[:2]), run_whole(plan, weights, x)
    assert np.array_equal(few.outputs, many.outputs[:2])
    assert few.fabric.cycles < many.fabric.cycles


def test_rows_of_odd_features_are_filled_up_to_whole_words() -> None:
    """Samples of 5 rows: 15 features come, 9 are between (GELU of the element beyond is 0), 7 leave; none of the rows shifts."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(15, 9), nn.GELU(), nn.Linear(9, 7))
    plan = plan_of(inputs_over_rows(api.lower(model, (torch.zeros(1, 5, 15),))), 20)
    x = torch.randn(3, 5, 15).half()
    weights = weights_of(model)
    outputs = run_whole(plan, weights, x.float().numpy()).outputs
    with torch.no_grad():
        wanted = model.half()(x).float().numpy().reshape(15, 7)
    assert outputs.shape == wanted.shape
    assert np.abs(outputs - wanted).max() < 8 * 2.0**-11 * np.abs(wanted).max()


def test_every_word_of_a_sample_crosses_the_edge_once() -> None:
    """33 inputs are 17 words in, 7 outputs are 4 words out, per sample; the host cores count them."""
    model = network((33, 21, 7))
    plan = plan_of(inputs_over_rows(graph_of(model, 33)), 20)
    weights = weights_of(model)
    run = run_whole(plan, weights, np.ones((3, 33), np.float32))
    assert isinstance(run.whole, Network)
    buffers = run.whole.program.buffers
    for side, words in (("in", 17), ("out", 4)):
        assert (
            sum(one.length for name, one in buffers.items() if name.startswith(f"host {side}")) == 3 * words
        )
    first, second = run.whole.regions
    # Every inlet hears its bundle of the words, which differ by one; 21 activations are 11 words.
    for region, count in ((first, 17), (second, 11)):
        for inlet in region.inlets:
            of = region.bundles.get(inlet.tensor, 1)
            assert 3 * (count // of) <= run.fabric.received[inlet.cell] <= 3 * -(-count // of)
        heard = {inlet.bundle: int(run.fabric.received[inlet.cell]) for inlet in region.inlets}
        assert sum(heard.values()) == 3 * count


class RunningSums(nn.Module):
    """A kernel that a whole model on the fabric does not have."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, features)."""
        return torch.cumsum(x, -1)


def test_what_is_not_covered_is_refused_in_one_sentence() -> None:
    """Every refusal names the fault and the remedy."""
    model = network((16, 8))
    graph = graph_of(model, 16)
    good = plan_of(inputs_over_rows(graph), 16)
    x = np.zeros((1, 16), np.float32)
    with pytest.raises(ModelError, match=r"weights '0\.weight, 0\.bias' are missing"):
        run_whole(good, {}, x)
    with pytest.raises(ModelError, match="can have two layouts"):
        compare_with_engine(plan_of(graph, 16, mode_options={"prices": "plain"}))
    trains = plan_of(inputs_over_rows(graph_of(model, 16, training=True)), 16, phase="training")
    with pytest.raises(ModelError, match="made for training"):
        compare_with_engine(trains)
    with pytest.raises(ModelError, match="on at most 40,000"):
        compare_with_engine(dataclasses.replace(good, wafer=load_wafer("wse2")))
    sums = nn.Sequential(nn.Linear(16, 8), RunningSums())
    with pytest.raises(ModelError, match="is of family scan"):
        compare_with_engine(plan_of(inputs_over_rows(graph_of(sums, 16)), 16))
    rows = plan_of(inputs_over_rows(api.lower(model, (torch.zeros(1, 2, 16),))), 16)
    weights = weights_of(model)
    with pytest.raises(ModelError, match="3 rows are not an integer number of samples of 2 rows"):
        run_whole(rows, weights, np.zeros((3, 16), np.float32))


def test_bundles_that_one_core_hears_come_over_one_ramp() -> None:
    """38 words at 2 cycles each; at one cycle, they and twice the row's own 3 words."""
    slow = load_wafer("wse2").derive(wavelet_cycles=2.0)
    assert hearing_cycles(2 * 19, 3, slow, 2) == 2 * 38
    assert hearing_cycles(2 * 19, 3, load_wafer("wse2"), 2) == 38 + 2 * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "side", "cycles"), [((114, 18), 20, 2.0), ((128, 128, 128, 32), 32, 1.125)]
)
def test_slow_links_keep_the_price(sizes: tuple[int, ...], side: int, cycles: float) -> None:
    """With the larger of bundles and cycles of a word the first one took 65 % more than its price, the second one 4 %."""
    graph = inputs_over_rows(graph_of(network(sizes), sizes[0]))
    slow = corner(side, wavelet_cycles=cycles)
    plan = expect(api.compile(graph, slow, mode="pipelined", batch=64, replicas=1), PipelinedPlan)
    found = compare_with_engine(plan)
    assert found.fabric_period == pytest.approx(found.engine_period, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("placer", ["shelves", "peel"])
def test_every_region_has_a_column_that_moves_data(placer: str) -> None:
    """A layer with 10 outputs would fit one column of 24 rows; nothing could hand it its inputs there."""
    graph = inputs_over_rows(graph_of(network((400, 120, 84, 10)), 400))
    made = api.compile(graph, mode="pipelined", wafer=corner(24), batch=64, replicas=1, placer=placer)
    plan = expect(made, PipelinedPlan)
    for stage in plan.stages:
        assert stage.region.compute_cores <= stage.region.rows * (stage.region.cols - 1)
    assert compare_with_engine(plan, 4).fabric_period > 0
