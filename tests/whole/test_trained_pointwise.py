"""Elementwise work and activations that train, alone on their fabric: values against PyTorch, cycles against closed forms."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from benchmarks.whole_images import Around
from tests.generated import examples
from tests.whole.alone import Alone, check_alone, issued, region_alone
from tests.whole.test_trained import training_plan
from wse_sim.errors import ModelError
from wse_sim.fabric.format.builder import Builder
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.kernels import family
from wse_sim.kernels.blocks.activation_slopes import ACTIVATIONS
from wse_sim.kernels.contract.family import Tiling
from wse_sim.whole.room import HELD_FRACTION, vectors_of
from wse_sim.whole.trained.pointwise import TrainedPointwise

TORCH: dict[str, Callable[..., torch.Tensor]] = {
    "relu": F.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "square": torch.square,
    "exp": torch.exp,
    "abs": torch.abs,
    "neg": torch.neg,
}
WORK: dict[str, Callable[..., torch.Tensor]] = {
    **{name: (lambda a, f=f: f(a)) for name, f in TORCH.items()},
    "gate": lambda a, b: F.silu(a) * b,
    "sum": lambda a, b: a + b,
    "difference": lambda a, b: a - b,
    "product": lambda a, b: a * b,
    "positions": lambda a, p: a + p,
    "scaled by a parameter": lambda a, p: a * p,
    "numbers": lambda a: 2 * torch.sigmoid(3 - 2 * a) - 1,
    "bounds": lambda a: torch.clamp(a, -0.4, 0.7),
    "a bound on one side": lambda a: torch.clamp(2 * a, max=1.0),
    "relu6": lambda a: F.relu6(3 * a),
    "numbers between operands": lambda a, b, c: (1 - (a - b)) * c * 0.5,
    "chain": lambda a, b, c: torch.tanh((a + b) * c),
}
PARAMETERS = ("positions", "scaled by a parameter")


class Worked(nn.Module):
    """Norms, and work on their results."""

    def __init__(self, work: str, tokens: int, features: int) -> None:
        super().__init__()
        count = WORK[work].__code__.co_argcount - (work in TORCH)
        self.given = count - (work in PARAMETERS)
        self.norms = nn.ModuleList(nn.LayerNorm(features) for _ in range(self.given))
        if work in PARAMETERS:
            self.p = nn.Parameter(torch.ones(tokens, features))
        self.work = work

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        operands = [norm(x) for norm in self.norms]
        return WORK[self.work](*operands, *([self.p] if self.work in PARAMETERS else []))


@cache
def region(work: str, tokens: int, features: int, side: int = 16) -> TrainedPointwise:
    """Return the region of the work in a plan of training."""
    plan = training_plan(Worked(work, tokens, features), (tokens, features), side)
    found = region_alone(TrainedPointwise, plan, plan.stages[-1].name)
    assert isinstance(found, TrainedPointwise)
    return found


def checked(
    found: TrainedPointwise, work: str, *, samples: int, in_flight: int, spread: float = 1.0
) -> Alone:
    """Return a batch of random values against autograd."""
    rng = np.random.default_rng(0)
    shape = found.graph.tensors[found.kernel.outputs[0]].shape[1:]
    operands = {name: rng.normal(0, spread, (samples, *shape)) for name in found.operands}
    weights = {
        name: rng.normal(1, 0.5, found.graph.tensors[name].shape).astype(np.float16).astype(np.float32)
        for name in found.kernel.parameters
    }
    gradient = rng.normal(size=(samples, *shape))
    # A few roundings to fp16, of numbers some times as large as the result.
    return check_alone(found, WORK[work], operands, gradient, weights, in_flight=in_flight, roundings=6)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("work", WORK)
def test_values_equal_those_of_autograd(work: str) -> None:
    """Result, gradients of all operands and parameters, updated parameters; three rounds of two samples."""
    checked(region(work, 6, 10), work, samples=6, in_flight=2)


@pytest.mark.parametrize(
    ("work", "read"),
    [("gelu", {"slope0"}), ("sum", set()), ("product", {"operand0", "operand1"}),
     ("gate", {"slope0", "operand0", "operand1"}), ("chain", {"value0", "operand2", "slope2"}),
     ("scaled by a parameter", {"operand0"}), ("positions", set()), ("bounds", {"slope0", "slope1"})],
)  # fmt: skip
def test_a_core_stores_what_the_backward_pass_reads(work: str, read: set[str]) -> None:
    """Slopes and factors of products of all samples in flight; of other vectors, three slots serve 4, 7 and 8 samples.

    The derivative of tanh((a + b) c) needs a + b, c and the slope of tanh; that of a + b needs nothing.
    """
    found = region(work, 6, 10)
    assert {name for name, is_read in vectors_of(found.kernel).items() if is_read} == read
    for in_flight in (4, 7, 8):
        checked(found, work, samples=2 * in_flight, in_flight=in_flight)


def test_bytes_in_flight_are_those_of_the_buffers() -> None:
    """A core of silu(a) b has 3 vectors of every sample and 3 slots of the result: as many samples as fit, and no more."""
    found = region("gate", 6, 10)
    most, builder = found.most_in_flight(), Builder(16, 16, FabricConfig.from_wafer(found.wafer))
    found._declare(builder, most)
    buffers = {one.buffer for one in (*found.values_held, *found.operands_held, *found.slopes.values())}
    in_bytes = 2 * sum(buffer.length for buffer in buffers)
    vector = 2 * found._pitch
    assert in_bytes == vector * (3 * most + 3)
    assert in_bytes <= HELD_FRACTION * found.wafer.sram_bytes < in_bytes + 3 * vector


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("work", "count"), [("tanh", 3), ("gate", 2), ("positions", 4), ("sum", 2)])
def test_bands_have_the_features_of_a_bundle(work: str, count: int) -> None:
    """Values of operands and parameters in bundles equal those of autograd; features do not divide."""
    found = region.__wrapped__(work, 5, 14, 24)
    rows = max(found.region.rows, 2 * count)  # a plan may give work that is not the slowest a single row
    found.region = dataclasses.replace(
        found.region, row=0, rows=rows, compute_cores=rows * found.compute_cols
    )
    found.bundles = dict.fromkeys(found.tied, count)
    found.settle()
    assert len(found.bands) == len(set(found.gradient_inlets)) == count
    checked(found, work, samples=4, in_flight=2)


@pytest.mark.parametrize(
    ("tokens", "cores", "laps"), [(8, 4, 4), (8, 8, 2), (8, 16, 1), (6, 4, 2), (5, 4, 1)]
)
def test_a_slow_function_works_in_laps(tokens: int, cores: int, laps: int) -> None:
    """A lap is a part of a sample that goes around all cores: up to 4 of equal size that leave 16 elements to each.

    8 x 32 = 256 elements: 4 laps of 16 on 4 cores, 2 on 8 and one on 16. 6 tokens have 2 laps of equal size, 5 have one. Results are those of autograd in three rounds, and the price is what the cores issue.
    """
    found = region.__wrapped__("gelu", tokens, 32, 24)
    found.compute_cols, found.left = 1, found.region.col + 1
    found.region = dataclasses.replace(found.region, row=0, rows=cores, cols=2, compute_cores=cores)
    found.settle()
    assert found.laps == laps
    assert cost_of(found) == issued(found)
    checked(found, "gelu", samples=6, in_flight=2)


@pytest.mark.parametrize("function", [name for name in ACTIVATIONS if name != "exp"])
def test_slopes_of_large_and_small_operands(function: str) -> None:
    """Operands up to 60 and more: squares and cubes stay in range, and tails of slopes go to 0 or 1."""
    checked(region(function, 6, 10), function, samples=2, in_flight=2, spread=20.0)


@pytest.mark.slow
@examples(6)
@given(
    work=st.sampled_from(sorted(WORK)),
    tokens=st.integers(1, 6),
    features=st.integers(1, 8).map(lambda half: 2 * half),
    rounds=st.integers(1, 3),
    in_flight=st.integers(1, 3),
)
def test_any_size_and_any_number_in_flight(
    work: str, tokens: int, features: int, rounds: int, in_flight: int
) -> None:
    """One core and many, one sample a round and several."""
    checked(region(work, tokens, features), work, samples=rounds * in_flight, in_flight=in_flight)


@pytest.mark.parametrize("work", ["bounds", "relu6", "square", "exp", "abs", "neg", "numbers", "silu", "sum"])
def test_work_costs_what_it_issues(work: str) -> None:
    """The price of both passes is the issued cycles, with instructions of bounds as given in the comment."""
    found = region(work, 6, 10)
    priced = cost_of(found)
    assert priced == issued(found)
    if work == "bounds":
        # Twice a bound and a step of an element a cycle, a difference and a product of four; words in and out, both ways.
        n, start = found.each, 21
        assert priced == 2 * (3 * start + 2 * n + -(-n // 4)) + 2 * (start + -(-n // 4)) + 2 * n


def cost_of(found: TrainedPointwise) -> float:
    """Return the cycles that the kernels of a region issue by their price."""
    graph, place = found.graph, Tiling(found.region.rows, found.compute_cols, "stationary")
    kernels = [one for one in graph.kernels if found.kernel.name in (one.name, one.forward)]
    costs = [
        family(one.family).cost(one.dims, place, found.wafer, phase=one.phase, dtype="fp16", attrs=one.attrs)
        for one in kernels
        if one.family == "generated"
    ]
    return sum(float(cost.ramp + cost.compute + cost.special + cost.startup) for cost in costs)


def test_a_sum_behind_a_convolution_costs_what_it_issues() -> None:
    """36 elements of 4 filters: sum and ReLU with its slope forward, a product and two copies back, three words each way."""
    model = nn.Sequential(Around(2, 4), nn.Flatten(), nn.Linear(36, 6))
    plan = training_plan(model, (2, 6, 6), 32)
    stage = next(stage for stage in plan.stages if stage.name.endswith(".sum"))
    found = region_alone(TrainedPointwise, plan, stage.name)
    assert isinstance(found, TrainedPointwise)
    priced = cost_of(found)
    n, start = found.each, 21
    forward, backward = start + -(-n // 4) + 2 * (start + n), 3 * (start + -(-n // 4))
    assert priced == forward + backward + 6 * n / 2
    assert priced == issued(found)


def test_inlets_find_room_in_a_region_of_one_row() -> None:
    """Two operands beside four columns of which one moves data: the second inlet takes a compute column."""
    plan = training_plan(Worked("gate", 4, 6), (4, 6), 16)
    stage = plan.stages[-1]

    def of(cols: int) -> TrainedPointwise:
        row = dataclasses.replace(stage.region, rows=1, cols=cols, compute_cores=cols - 1)
        kernel = plan.graph.kernel(stage.name)
        narrow = dataclasses.replace(stage, region=row)
        return TrainedPointwise(plan.graph, kernel, narrow, plan.wafer, frozenset(kernel.inputs))

    assert len({inlet.cell for inlet in of(4).inlets}) == 2
    checked(of(4), "gate", samples=4, in_flight=2)
    with pytest.raises(ModelError, match="2 operands in a region of 2 columns and one row; use more cores"):
        of(2)


def test_a_parameter_that_is_spread_is_refused() -> None:
    """Its gradient would be a sum over cores; in inference it is covered."""

    class Spread(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.p = nn.LayerNorm(8), nn.Parameter(torch.ones(8))

        def forward(self, x: torch.Tensor) -> Any:
            return self.norm(x) + self.p

    plan = training_plan(Spread(), (4, 8), 16)
    with pytest.raises(ModelError, match="spreads parameter 'p'"):
        region_alone(TrainedPointwise, plan, plan.stages[-1].name)
