"""Regions of several kinds as one fabric program: values against PyTorch, cycles against closed forms."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.whole.plans import beside_pytorch, corner, weights_of
from tests.whole.test_dense_chain import plan_of
from wse_sim import api
from wse_sim.fabric.format.count import issued_cycles
from wse_sim.modes.base import expect
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole import compare_with_engine, inputs_over_rows, run_whole
from wse_sim.whole.network import network_program
from wse_sim.whole.regions.dense import Dense


class Heads(nn.Module):
    """Attention of `heads` heads on its own layers, before the sum with a skip around it; a `group` of queries' heads shares
    one of keys."""

    def __init__(self, features: int, heads: int, is_causal: bool = False, group: int = 1) -> None:
        super().__init__()
        self.q, self.o = (nn.Linear(features, features) for _ in range(2))
        self.k, self.v = (nn.Linear(features, features // group) for _ in range(2))
        self.heads, self.is_causal, self.group = heads, is_causal, group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        split = (*x.shape[:2], -1, x.shape[2] // self.heads)
        q, k, v = (layer(x).view(*split).transpose(1, 2) for layer in (self.q, self.k, self.v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal, enable_gqa=self.group > 1)
        return self.o(out.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    """A transformer block: norms before attention and before two layers, a skip around each."""

    def __init__(self, features: int, heads: int, activation: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(features), nn.LayerNorm(features)
        self.heads, self.activation = Heads(features, heads), activation or nn.GELU()
        self.up, self.down = nn.Linear(features, 4 * features), nn.Linear(4 * features, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        x = x + self.heads(self.first(x))
        return x + self.down(self.activation(self.up(self.second(x))))


class Perceptron(nn.Module):
    """A block without attention, RMS norm."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(features, eps=1e-5)
        self.up, self.down = nn.Linear(features, 2 * features), nn.Linear(2 * features, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        return x + self.down(F.silu(self.up(self.norm(x))))


@dataclass
class Case:
    """A model, the shape of a sample, the side of its wafer."""

    model: Any
    shape: tuple[int, int]
    side: int
    samples: int = 3


CASES = {
    "tokens": Case(lambda: nn.Sequential(nn.Linear(24, 40), nn.ReLU(), nn.Linear(40, 10)), (6, 24), 24, 4),
    "a region of one column": Case(
        lambda: nn.Sequential(nn.Linear(8, 2), nn.GELU(), nn.Linear(2, 6)), (3, 8), 16
    ),
    "activations": Case(
        lambda: nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 12), nn.Sigmoid(), nn.Linear(12, 4)),
        (5, 8),
        24,
    ),
    "norm": Case(lambda: nn.Sequential(nn.LayerNorm(24, eps=0.5), nn.Linear(24, 24)), (7, 24), 24),
    "norms of fewer parameters": Case(
        lambda: nn.Sequential(
            nn.LayerNorm(12, bias=False),
            nn.Linear(12, 12),
            nn.LayerNorm(12, elementwise_affine=False),
            nn.Linear(12, 12),
            nn.RMSNorm(12, eps=1e-5, elementwise_affine=False),
        ),
        (5, 12),
        32,
    ),
    "more tokens than rows": Case(lambda: nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16)), (40, 8), 24, 2),
    "perceptrons": Case(lambda: nn.Sequential(Perceptron(16), Perceptron(16)), (4, 16), 40),
    "attention": Case(lambda: Heads(16, 2), (6, 16), 40),
    "causal attention": Case(lambda: Heads(16, 4, is_causal=True), (12, 16), 32, 2),
    "rows that send before long work": Case(
        lambda: nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)), (8, 32), 24, 4
    ),
    "words handed on to rows": Case(
        lambda: nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32)), (16, 32), 40, 3
    ),
    "block": Case(lambda: Block(16, 2), (4, 16), 64, 5),
    "two blocks": Case(lambda: nn.Sequential(Block(32, 2), Block(32, 2)), (8, 32), 96),
}


def made(case: Case) -> tuple[nn.Module, PipelinedPlan]:
    """Return the model with all parameters away from their defaults, and its plan."""
    torch.manual_seed(0)
    model = case.model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((parameter + 0.1 * torch.randn_like(parameter)).half())
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, *case.shape),)))
    return model, plan_of(graph, case.side)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", CASES)
def test_outputs_equal_those_of_pytorch(name: str) -> None:
    """Samples in flight are compared with PyTorch in fp32: a kernel rounds to fp16 (2^-11) a few times, and so do those
    after it.
    """
    case = CASES[name]
    model, plan = made(case)
    x = torch.randn(case.samples, *case.shape).half().float()
    run, wanted = beside_pytorch(model, plan, x)
    bound = 2 * len(plan.stages) * 2.0**-11 * np.abs(wanted).max()
    assert np.abs(run.outputs - wanted).max() < bound
    assert (
        np.abs(wanted - wanted.mean(axis=0)).max() > 10 * bound
    )  # the bound would tell one row from another
    assert run.fabric.words_left == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["tokens", "norm", "norms of fewer parameters", "perceptrons", "attention", "causal attention", "block"],
)
def test_busiest_cores_issue_what_their_instructions_take(name: str) -> None:
    """Cycles of every region's busiest core follow from the wafer's rates; a sample is delayed only by a region."""
    _, plan = made(CASES[name])
    found = compare_with_engine(plan, 4)
    for region, kind in zip(found.regions, found.whole.regions, strict=True):
        assert region.busiest == pytest.approx(region.issued, abs=0.5), region
        if isinstance(kind, Dense):  # a closed form of its own
            assert kind.issued_cycles() == pytest.approx(region.issued, abs=0.5), region
        assert region.busiest + sum(region.waits) == pytest.approx(found.fabric_period, abs=0.3)
    assert found.fabric_period >= 0.95 * max(region.busiest for region in found.regions)


@pytest.mark.slow
def test_a_tensor_with_several_readers_leaves_once() -> None:
    """The first norm of a block feeds three layers: its words fork on the route, and every layer receives all of them."""
    case = CASES["block"]
    model, plan = made(case)
    weights = weights_of(model)
    run = run_whole(plan, weights, np.ones((2, *case.shape), np.float32))
    tree = next(tree for tree in run.whole.trees if tree.producer == "first")
    words = 2 * case.shape[0] * case.shape[1] // 2
    assert len(tree.sinks) == 3
    assert [int(run.fabric.received[sink]) for sink in tree.sinks] == [words] * 3
    # Every core of the norm sends its tokens once; with one tree, its links carry a word once.
    outlet = run.fabric.link_wavelets[tree.source][:4]
    assert outlet[["N", "E", "S", "W"].index(tree.ports(tree.source)[0])] == words


@pytest.mark.slow
def test_a_wide_stream_goes_in_bundles_to_rows_with_an_inlet_each() -> None:
    """64 features a token take 32 cycles on one link, longer than the cores need; two bundles take 16 each.

    Every inlet hears the words of its bundle and of no other: half of a token.  Both bundles together are the tensor, word by word.
    """
    layers = (nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))
    case = Case(lambda: nn.Sequential(*layers), (8, 64), 32, 4)
    model, plan = made(case)
    x = torch.randn(case.samples, *case.shape).half().float()
    weights = weights_of(model)
    run = run_whole(plan, weights, x.numpy())
    between = [tree for tree in run.whole.trees if tree.producer == plan.stages[0].name]
    assert len(between) > 1
    sinks = [sink for tree in between for sink in tree.sinks]
    assert len(set(sinks)) == len(sinks)
    heard = case.samples * 8 * 64 // 2 // len(between)
    assert [int(run.fabric.received[sink]) for sink in sinks] == [heard] * len(sinks)
    with torch.no_grad():
        wanted = model(x).numpy().reshape(run.outputs.shape)
    assert np.abs(run.outputs - wanted).max() < 6 * 2.0**-11 * np.abs(wanted).max()


@pytest.mark.slow
def test_a_result_goes_to_the_host_in_bundles_where_one_link_is_too_slow() -> None:
    """Two layers 48-96-48 of 12 tokens: 12 x 24 words are 288 cycles on one link; every bundle ends in its own core."""
    case = Case(lambda: nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 48)), (12, 48), 48)
    model, plan = made(case)
    x = torch.randn(3, *case.shape).half().float()
    run = run_whole(plan, {key: value.numpy() for key, value in model.state_dict().items()}, x.numpy())
    ends = [tree.host for tree in run.whole.trees if tree.host]
    assert len(set(ends)) == len(ends) > 1
    with torch.no_grad():
        wanted = model(x).numpy().reshape(run.outputs.shape)
    assert np.abs(run.outputs - wanted).max() < 4 * 2.0**-11 * np.abs(wanted).max()
    assert compare_with_engine(plan, 6).fabric_period < 288


@pytest.mark.slow
def test_the_plan_prices_a_layer_as_its_busiest_core_issues() -> None:
    """Whole words, outputs finished by the last row: the engine's busy time of a layer is that of its program."""
    for name in ("tokens", "norm", "two blocks"):
        _, plan = made(CASES[name])
        found = compare_with_engine(plan, 2)
        for region, kind in zip(found.regions, found.whole.regions, strict=True):
            if isinstance(kind, Dense):
                assert region.engine == pytest.approx(region.issued, rel=0.05), region


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "shape", "side"),
    [
        (lambda: Block(32, 2, nn.ReLU()), (8, 32), 96),
        (lambda: Heads(32, 2, is_causal=True), (16, 32), 64),
        (lambda: nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True), (8, 32), 64),
    ],
)
def test_a_plan_keeps_what_cores_issue_apart_from_what_they_wait_for(
    model: Any, shape: Any, side: int
) -> None:
    """What a region is busy with in the plan is what the instructions of its busiest core take, written apart.

    Attention waits for sums of its row, and a layer for a last row that finishes outputs.
    """
    _, plan = made(Case(model, shape, side))
    stages, one, two = plan.stages, network_program(plan, 1), network_program(plan, 2)
    issued = issued_cycles(two.program, two.config) - issued_cycles(one.program, one.config)
    for stage, area in zip(stages, one.areas, strict=True):
        of_core = issued[area.rows, area.cols].max()
        assert stage.forward_cycles - sum(stage.forward_stalls) == pytest.approx(of_core, rel=0.03)
    attention = next(stage for stage in stages if stage.family == "attention")
    assert attention.forward_stalls[0] > 0.05 * attention.forward_cycles


@pytest.mark.slow
def test_a_region_may_start_late_in_a_short_run() -> None:
    """One sample takes a long route: the last of 18 regions starts near the middle of a run of two samples."""
    _, plan = made(Case(lambda: nn.Sequential(Block(16, 2), Block(16, 2)), (4, 16), 96))
    found = compare_with_engine(plan, 1)
    starts = [region.started for region in found.regions]
    assert max(starts) > 0.45 * found.fabric.cycles
    assert starts[0] < 100  # the first has its words at once


@pytest.mark.slow
def test_a_column_sends_into_two_bundles_where_features_do_not_part_at_columns() -> None:
    """64 features on columns of 6 are ten columns and two thirds; a result of 8 tokens over one link would take 256 cycles.

    Two bundles or more leave; each has as many features, so a column has some of both, and values stay PyTorch's.
    """
    torch.manual_seed(0)
    sizes = (64, 64, 64, 32)
    layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2]).half().float()
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, 8, 64),)))
    plan = expect(api.compile(graph, wafer=corner(32), mode="pipelined", batch=64, replicas=1), PipelinedPlan)
    x = torch.randn(2, 8, 64).half().float()
    ran = run_whole(plan, {name: value.numpy() for name, value in model.state_dict().items()}, x.numpy())
    with torch.no_grad():
        wanted = model(x).numpy().reshape(ran.outputs.shape)
    assert np.abs(ran.outputs - wanted).max() < 2e-3 * np.abs(wanted).max()
    second = network_program(plan, 1).regions[1]
    count = second.bundles[second.kernel.outputs[0]]
    cells = [cell for bundle in range(count) for cell in second.bundle_senders(bundle)]
    assert count > 1
    assert len(cells) > len(set(cells)) == second.cols
