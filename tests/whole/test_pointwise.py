"""Elementwise work and activations on the fabric, and models that need them: gated layers, sums of branches, positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.drawn_models import Gated
from tests.whole.plans import beside_pytorch
from tests.whole.test_dense_chain import plan_of
from tests.whole.test_regions import Case, made
from wse_sim import api
from wse_sim.errors import ModelError
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole import check_graph, compare_with_engine, inputs_over_rows, run_whole
from wse_sim.whole.regions.pointwise import Pointwise
from wse_sim.whole.run import program_of


class Of(nn.Module):
    """Two layers, two parameters, and a function of all."""

    def __init__(self, function: Callable[..., torch.Tensor], tokens: int, features: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(features, features), nn.Linear(features, features)
        self.p, self.row = nn.Parameter(torch.ones(tokens, features)), nn.Parameter(torch.ones(features))
        self.norm, self.function = nn.LayerNorm(features), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        return self.function(self, x)


def of(function: Callable[..., Any], tokens: int, features: int, side: int = 32, samples: int = 3) -> Case:
    """Return a case of such a model."""
    return Case(lambda: Of(function, tokens, features), (tokens, features), side, samples)


CASES = {
    "gated": Case(lambda: Gated(16, 40), (6, 16), 48, 4),
    "two gated": Case(lambda: nn.Sequential(Gated(8, 16), Gated(8, 16)), (3, 8), 64, 5),
    "activation after a norm": of(lambda m, x: m.a(F.relu(m.norm(x))), 5, 12),
    "special function alone": of(lambda m, x: m.a(F.gelu(m.norm(x))), 3, 8),
    "positions": of(lambda m, x: m.a(x + m.p), 5, 12),
    "scales": of(lambda m, x: m.b(m.norm(x) * m.row), 4, 6),
    "product of branches": of(lambda m, x: m.norm(m.a(x) * m.b(x)), 7, 8),
    "difference of branches": of(lambda m, x: m.norm(m.a(x) - m.b(x)), 4, 10),
    "early operand": of(
        lambda m, x: m.norm(x := m.norm(x)) * torch.sigmoid(m.b(F.relu(m.a(x)))), 4, 8, samples=7
    ),
    "input as an operand": of(lambda m, x: m.a(x * torch.tanh(m.b(x))), 4, 8, samples=6),
    "one word": of(lambda m, x: m.a(torch.tanh(m.norm(x))), 1, 2, 16),
    "a skip of a scaled branch": of(lambda m, x: x + m.row * m.norm(m.a(x)), 4, 8),
    "parameters between operands": of(lambda m, x: ((m.norm(x) + m.p) * m.b(x) + m.row) * m.a(x), 5, 8),
    "numbers": of(lambda m, x: m.a((3 - m.norm(x)) * 0.5 + 1), 3, 8),
    "a square over a sum": of(lambda m, x: m.a(2 / (m.norm(x) ** 2 + 1)), 3, 8),
    "clamp": of(lambda m, x: m.a(m.norm(x).clamp(-0.5, 1.0)), 3, 8),
    "half a step": of(lambda m, x: m.norm(x + 0.5 * m.a(x)), 4, 8),
    "relu up to six": of(lambda m, x: m.b(F.relu6(4 * m.a(x))), 3, 8),
    "a difference in a chain": of(lambda m, x: m.norm((m.a(x) - m.b(x)) * 0.5 - m.row), 4, 8),
    "a difference from a function": of(lambda m, x: m.norm(m.a(x)) - torch.tanh(m.norm(m.b(x))), 4, 8),
    "a factor of the second operand": of(lambda m, x: m.norm(torch.sub(m.a(x), m.b(x), alpha=0.5)), 4, 8),
    "quick gelu": of(lambda m, x: m.b((y := m.a(x)) * torch.sigmoid(1.702 * y)), 3, 8),
    "largest": of(lambda m, x: m.norm(torch.maximum(m.a(x), m.b(x))), 4, 6),
}


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", CASES)
def test_outputs_equal_those_of_pytorch(name: str) -> None:
    """Samples in flight are compared with PyTorch in fp32: every kernel rounds to fp16 a few times."""
    case = CASES[name]
    model, plan = made(case)
    x = torch.randn(case.samples, *case.shape).half().float()
    run, wanted = beside_pytorch(model, plan, x)
    bound = 3 * len(plan.stages) * 2.0**-11 * np.abs(wanted).max()
    assert np.abs(run.outputs - wanted).max() < bound
    assert run.fabric.words_left == 0


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", ["gated", "special function alone", "positions", "early operand"])
def test_busiest_cores_issue_what_their_operators_take(name: str) -> None:
    """By the wafer's rates: words in and out, a start and the elements of every operator; and that is what the plan counts."""
    _, plan = made(CASES[name])
    found = compare_with_engine(plan, 4)
    pointwise = [
        one
        for one, region in zip(found.regions, found.whole.regions, strict=True)
        if isinstance(region, Pointwise)
    ]
    assert pointwise
    for region in pointwise:
        assert region.busiest == pytest.approx(region.issued, abs=0.5), region
        # The plan counts a parameter as words that arrive.
        assert region.engine == pytest.approx(region.issued, rel=0.1 if name == "positions" else 0.02)


def test_an_early_operand_waits_in_stores() -> None:
    """The norm's result goes around two kernels: its region stores it for them, before the one that sends it on."""
    _, plan = made(CASES["early operand"])
    region = region_of(plan, "Pointwise")
    early, late = sorted(region.kernel.inputs, key=lambda name: len(region.stores[name]), reverse=True)
    assert (len(region.stores[early]), len(region.stores[late])) == (2, 1)
    assert region.waits(early)
    assert not region.waits(late)


def region_of(plan: PipelinedPlan, kind: str) -> Any:
    """Return the first region of a kind."""
    return next(one for one in program_of(plan, 1).regions if type(one).__name__ == kind)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (lambda m, x: (m.norm(m.a(x)) - 1) / m.norm(m.b(x)), "the order of its operands"),
        (lambda m, x: m.a(F.elu(m.norm(x))), "'elu' is not a single operator"),
        (lambda m, x: m.a(m.norm(x) ** 3), "'pow' is not a single operator"),
        (lambda m, x: F.silu(m.p) * m.norm(x) + m.a(x), "which of them reads a parameter"),
        (
            lambda m, x: (y := m.norm(x)).exp() * 2 + torch.tanh(y) * 3,
            "give each operator its own tensor",
        ),
        (
            lambda m, x: m.norm(torch.tanh(m.a(x)) * 2 + torch.tanh(m.b(x)) * 3),
            "give each operator its own tensor",
        ),
    ],
)
def test_what_the_graph_does_not_tell_is_refused(function: Callable[..., Any], match: str) -> None:
    """Orders of operands, and the value from which an operator continues, are refused in one sentence and never
    guessed.
    """
    graph = inputs_over_rows(api.lower(Of(function, 4, 8), (torch.zeros(1, 4, 8),)))
    with pytest.raises(ModelError, match=match):
        check_graph(graph)


@pytest.mark.slow
def test_images_pass_pixel_by_pixel() -> None:
    """A product of two convolutions is read by a third: all three streams have the pixels of an image in a row."""

    class Images(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Conv2d(2, 2, 3, padding=1) for _ in range(3))
            self.last = nn.Linear(32, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.tanh(self.c(self.a(x) * self.b(x)) * self.a(x))
            return self.last(x.flatten(1))

    torch.manual_seed(0)
    model = Images()
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, 2, 4, 4),)))
    plan = plan_of(graph, 40)
    x = torch.randn(3, 2, 4, 4).half().float()
    run = run_whole(
        plan, {key: value.detach().numpy() for key, value in model.state_dict().items()}, x.numpy()
    )
    with torch.no_grad():
        wanted = model(x).numpy()
    assert np.abs(run.outputs - wanted).max() < 3 * len(plan.stages) * 2.0**-11 * np.abs(wanted).max()


class Packed(nn.Module):
    """A gated layer whose gate and values come from one product."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.both, self.down, self.function = nn.Linear(8, 24), nn.Linear(12, 8), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        return x + self.down(self.function(self.both(x)))


def _chunked(y: torch.Tensor) -> torch.Tensor:
    a, b = y.chunk(2, -1)
    return a * F.gelu(b)


PACKED = {
    "glu": F.glu,
    "chunks, the second bent": _chunked,
    "slices, the first bent": lambda y: F.silu(y[..., :12]) * y[..., 12:],
    "slices that overlap": lambda y: y[..., :12] * y[..., 6:18],
}


@pytest.mark.parametrize("name", PACKED)
def test_a_product_that_is_read_in_parts_becomes_two(name: str) -> None:
    """Each part is its own layer with its rows of the weight; values are PyTorch's."""
    case = Case(lambda: Packed(PACKED[name]), (4, 8), 40, 3)
    model, plan = made(case)
    assert [stage.name for stage in plan.stages][:2] == ["both.part0", "both.part1"]
    assert any("channels; on the fabric the weights around do this" in note for note in plan.graph.notes)
    x = torch.randn(case.samples, *case.shape).half().float()
    run, wanted = beside_pytorch(model, plan, x)
    assert np.abs(run.outputs - wanted).max() < 3 * len(plan.stages) * 2.0**-11 * np.abs(wanted).max()
