"""A dense layer that trains on samples of several tokens, alone on its fabric: values against autograd, cycles on paper."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import Phase, given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from tests.generated import examples
from tests.whole.alone import Alone, check_alone, issued_by_core, region_alone
from tests.whole.test_trained import training_plan
from wse_sim.compiler.plan import Region
from wse_sim.errors import ModelError
from wse_sim.graph import TensorKind
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole.coverage import forward_kernel
from wse_sim.whole.trained import trained_network
from wse_sim.whole.trained.dense import TrainedDense
from wse_sim.whole.trained.rounds import regions_of, with_bundles


class Layer(nn.Module):
    """A layer after another one, which makes its inputs; with `skip`, one whose outputs are added to its own."""

    def __init__(self, sizes: tuple[int, int], act: nn.Module, *, bias: bool, skip: bool) -> None:
        super().__init__()
        self.first, self.layer, self.act = nn.Linear(sizes[0], sizes[0]), nn.Linear(*sizes, bias=bias), act
        self.skip = nn.Linear(*sizes) if skip else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        out = self.layer(self.first(x))
        return self.act(out if self.skip is None else out + self.skip(x))


@dataclass(frozen=True)
class Case:
    """K and N, tokens of a sample, samples of a batch and in flight; the work on the outputs."""

    sizes: tuple[int, int] = (8, 12)
    tokens: int = 4
    samples: int = 4
    in_flight: int = 2
    side: int = 16
    act: Callable[[], nn.Module] = nn.ReLU
    bias: bool = True
    skip: bool = False
    needs: tuple[str, ...] | None = None
    bundles: tuple[int, int] = (1, 1)  # of the inputs, and of the results


def plan_of_layer(case: Case) -> tuple[dict[str, np.ndarray], PipelinedPlan, str]:
    """Return the parameters that fp16 holds, the plan, and the stage of the layer: with a skip the last one, which adds
    it.
    """
    torch.manual_seed(0)
    model = Layer(case.sizes, case.act(), bias=case.bias, skip=case.skip)
    plan = training_plan(model, (case.tokens, case.sizes[0]), case.side, batch=case.samples)
    weights = {name: value.half().float().numpy() for name, value in model.state_dict().items()}
    return weights, plan, plan.stages[-1].name


def checked(case: Case, times: int = 1) -> Alone:
    """Return a batch of random operands and gradients, `times` as long as planned, all values compared."""
    weights, plan, stage = plan_of_layer(case)
    region = region_alone(TrainedDense, plan, stage, case.needs)
    heard, given = case.bundles
    region.bundles = {region.kernel.inputs[0]: heard, region.kernel.outputs[0]: given}
    region.bundles |= dict.fromkeys(region.kernel.inputs[1:], given)
    region.settle()
    rng, (k, n) = np.random.default_rng(1), case.sizes
    features = {name: k if place == 0 else n for place, name in enumerate(region.operands)}
    shape = (times * case.samples, case.tokens)
    operands = {name: rng.normal(size=(*shape, f)).astype(np.float16) for name, f in features.items()}
    gradient = rng.normal(size=(*shape, n)).astype(np.float16)

    def sums(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        added, parameters = others[: case.skip], others[case.skip :]
        return F.linear(x, *parameters) + (added[0] if added else 0.0)

    z = sums(
        *(torch.tensor(value).float() for value in operands.values()),
        *(torch.tensor(weights[name]) for name in region.kernel.parameters),
    )
    gradient[np.abs(z.numpy()) < 0.01] = 0  # a rounded sum may be on the other side of the kink of ReLU
    act = case.act()
    return check_alone(
        region,
        lambda *given: act(sums(*given)),
        operands,
        gradient,
        weights,
        in_flight=case.in_flight,
    )


CASES = {
    "bias and ReLU": Case(),
    "neither": Case(act=nn.Identity, bias=False, tokens=3, in_flight=4),
    "features that do not divide": Case((22, 26), 5, 6, 3, 24),
    "one column": Case((8, 2), 3, 4, 4),
    "one row with inputs": Case((2, 6), 2, act=nn.Identity),
    "one token": Case((24, 10), 1, 6, 3, 24),
    "sixteen tokens": Case((16, 12), 16, 4, 4, 24),
    "a residual last": Case((16, 24), 5, 4, 2, 32, nn.Identity, skip=True),
    "more samples of a residual than microthreads": Case((8, 8), 2, 18, 9, 32, nn.Identity, skip=True),
    "more than all their priorities": Case((8, 8), 2, 24, 24, 32, nn.Identity, skip=True),
    "inputs of the host": Case(needs=()),
    "bundles of the inputs": Case((22, 10), 4, 6, 3, 32, bundles=(3, 1)),
    "bundles of the results": Case((12, 22), 4, 6, 3, 32, bundles=(1, 3)),
    "bundles of both, of unlike sizes": Case((26, 30), 3, 4, 2, 40, bundles=(3, 4)),
    "bundles of the inputs, a residual": Case((16, 24), 5, 4, 2, 32, nn.Identity, skip=True, bundles=(2, 1)),
    "bundles of both, a residual": Case((16, 24), 5, 4, 2, 40, nn.Identity, skip=True, bundles=(3, 2)),
    "ReLU, no bias": Case((10, 14), 5, 3, 3, bias=False),
}


ENDS = [(nn.Identity, False), (nn.ReLU, False), (nn.Identity, True)]
"""Work on the outputs of a layer that trains: none, ReLU, or a residual."""


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_autograd_and_cycles_those_of_the_program(name: str) -> None:
    """Outputs, gradients of inputs, residual, weight and bias, and the update, of a batch and of one twice as long.

    What a core issues is counted from its program as well (:func:`tests.whole.alone.check_alone`).
    """
    case = CASES[name]
    checked(case), checked(case, 2)


@pytest.mark.slow
@examples(5, phases=[Phase.generate])
@given(
    st.integers(3, 12), st.integers(3, 12), st.integers(1, 5), st.integers(1, 3),
    st.sampled_from(ENDS),
)  # fmt: skip
def test_any_size_trains(
    half_k: int, half_n: int, tokens: int, in_flight: int, ends: tuple[type[nn.Module], bool]
) -> None:
    """Sizes are even, with two rounds of some samples."""
    act, skip = ends
    checked(Case((2 * half_k, 2 * half_n), tokens, 2 * in_flight, in_flight, 24, act, skip=skip))


@pytest.mark.slow
@examples(12, phases=[Phase.generate])
@given(
    st.integers(2, 40), st.integers(2, 40), st.integers(2, 16), st.integers(14, 48),
    st.sampled_from(ENDS), st.booleans(),
)  # fmt: skip
def test_plan_has_the_price_of_the_region(
    half_k: int, half_n: int, tokens: int, side: int, ends: tuple[type[nn.Module], bool], bias: bool
) -> None:
    """The compiler's closed form equals the program's cycles.

    Forward and backward are priced by themselves.  Where the last row is busiest in one pass and the others in the other,
    the plan has more than any core, but never more than both.  And no pass is faster than the streams on their links.
    """
    sizes, (act, skip) = (2 * half_k, 2 * half_n), ends
    _, plan, _ = plan_of_layer(Case(sizes, tokens, side=side, act=act, bias=bias, skip=skip))
    regions = regions_of(plan, plan.stages)
    for stage in with_bundles(plan, regions).stages:
        kernel = plan.graph.kernel(stage.kernels[0])
        needs = tuple(x for x in kernel.inputs if plan.graph.tensors[x].kind is not TensorKind.INPUT)
        region = next(one for one in regions if one.name == stage.name)
        priced = stage.forward_parts["compute"] + stage.backward_parts["compute"]
        cores = issued_by_core(region)
        both = float(cores[:-1].max()), float(cores[-1].max())
        assert max(both) <= priced <= min(1.6 * max(both), sum(both))
        heard, given = (region.bundles.get(name, 1) for name in (kernel.inputs[0], kernel.outputs[0]))
        widest = max(region.inputs / heard, region.features / given)
        assert stage.forward_cycles >= tokens * widest / 2
        assert stage.backward_cycles >= tokens * (region.features / given if not needs else widest) / 2


def wide_layer(case: Case, cols: int, *, rows: int = 4) -> TrainedDense:
    """Return the layer on `rows` rows of inputs and `cols` columns, each row and pair of columns with a stream."""
    _, plan, stage = plan_of_layer(case)
    moving, beside = 8, 24  # columns of cores that move data, and of routes
    wafer = plan.wafer.derive(
        rows=60, cols=cols + beside, program_rows=60, program_cols=cols + beside, io_channels_per_edge=2
    )
    place = next(one for one in plan.stages if one.name == stage)
    region = Region(30, 4, rows + 2, cols + moving, cols * (rows + 2))
    kernel = forward_kernel(plan, stage)
    found = TrainedDense(
        plan.graph, kernel, dataclasses.replace(place, region=region), wafer, frozenset(kernel.inputs)
    )
    found.bundles = {kernel.inputs[0]: rows // 2, kernel.outputs[0]: cols // 4}
    found.settle()
    assert found.cols == cols
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "together"), [(12, 3), (5, 5)])
def test_input_gradients_of_several_tokens_run_through_many_columns_together(
    tokens: int, together: int
) -> None:
    """4 rows of 4 inputs, 48 columns of 12 outputs: 4 x 6 + 12 = 36 cycles per token forward, and 6 + 4 x 6 + 12 x 2 + 4 = 58
    backward.

    The sums of b tokens take 6 cycles per column and one per sum, and 12 inputs wait in the queue of a row, those of three tokens:
    (48 x 6 + 4 b) / (b + 3) cycles per token are 73 for b = 1, 59.2 for 2 and 50 for 3, so b is the least divisor from 3 on.
    """
    case = Case((16, 576), tokens, 4, 4, 64, nn.Identity)
    region = wide_layer(case, 48)
    assert region.products.together == together
    rng = np.random.default_rng(0)
    weights = {
        name: rng.normal(size=region.graph.tensors[name].shape).astype(np.float16).astype(np.float32) / 8
        for name in region.kernel.parameters
    }
    cycles = {}
    for samples in (2, 4):
        x = {region.operands[0]: rng.normal(size=(samples, tokens, 16)).astype(np.float16)}
        gradient = rng.normal(size=(samples, tokens, 576)).astype(np.float16)
        run = check_alone(region, F.linear, x, gradient, weights, in_flight=samples)
        cycles[samples] = run.fabric.cycles
    per_token = (cycles[4] - cycles[2]) / 2 / tokens
    assert 36 + 58 <= per_token < 1.25 * (36 + 58)


@pytest.mark.parametrize(("act", "skip"), ENDS)
@pytest.mark.parametrize("in_flight", [1, 3])
def test_bytes_of_the_last_row_are_those_of_its_program(
    act: type[nn.Module], skip: bool, in_flight: int
) -> None:
    """The last buffer of the program's last row ends where the count says; a residual waits in two buffers, whatever is in
    flight."""
    model = nn.Sequential(Layer((12, 20), act(), bias=True, skip=skip), nn.Linear(20, 4))
    made = trained_network(
        training_plan(model, (6, 12), 32, 2 * in_flight), 2 * in_flight, most_in_flight=in_flight
    )
    program, region = made.program, made.regions[-2]
    assert isinstance(region, TrainedDense)
    assert region.has_residual is skip
    products = region.products
    held = [
        one
        for one in program.buffers.values()
        if one.name.startswith(f"{region.name}.") and one.row == products.last and one.col >= products.left
    ]
    ends = [one.address + one.length * (2 if one.dtype == "fp16" else 4) for one in held]
    assert max(ends) == products.last_row_bytes(in_flight)
    size = 2 * products.tokens * products.outputs  # bytes of a sample
    more = products.last_row_bytes(in_flight + 2) - products.last_row_bytes(in_flight)
    assert more == (2 * size if act is nn.ReLU else 0)


@pytest.mark.slow
def test_trees_go_around_links_of_others() -> None:
    """Words of two trees on one link go at half pace each: no link has two, nor one that the loss deals tokens out on."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    made = trained_network(training_plan(model, (16, 64), 32, 16), 16)
    links = [(parent, cell) for tree in made.trees for cell, parent in tree.parents.items()]
    links += pairwise(made.loss_place.cells)
    assert len(links) > 40
    assert len(set(links)) == len(links)


def test_a_region_of_one_row_is_refused() -> None:
    """It takes one row next to those of its inputs."""
    _, plan, stage = plan_of_layer(Case())
    place = next(one for one in plan.stages if one.name == stage)
    region = place.region.__class__(0, 0, 1, 8, 6)
    kernel = plan.graph.kernel(next(name for name in place.kernels))
    flat = type(place)(**(place.__dict__ | {"region": region}))
    with pytest.raises(ModelError, match="one row"):
        TrainedDense(plan.graph, kernel, flat, plan.wafer, frozenset())
