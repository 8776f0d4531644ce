"""Attention that trains, alone on its region: values against autograd, cycles against the closed form, any number in flight."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from tests.generated import examples
from tests.whole.alone import EPS, Alone, Op, check_alone, region_alone, run_alone
from tests.whole.copies import Copies
from tests.whole.test_regions import Heads
from tests.whole.test_trained import copying, training_plan, wanted_loss
from wse_sim.compiler.plan import Region
from wse_sim.kernels.contract.family import Tiling
from wse_sim.kernels.families.attention.pairs import pair_backward, pair_busy, pair_footprint
from wse_sim.whole.run import stepped
from wse_sim.whole.trained import TRAINED, TrainedKind, trained_network
from wse_sim.whole.trained.attention_bands import TrainedBandedAttention

NAME = "attention"


@dataclasses.dataclass(frozen=True)
class Case:
    """T tokens, heads, features of a head; rows and columns of the region; samples, those in flight; heads of queries that
    share one of keys."""

    tokens: int
    heads: int
    width: int
    rows: int
    cols: int
    samples: int
    in_flight: int
    is_causal: bool = False
    moving: int = 2
    group: int = 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the shape of all samples of the queries."""
        return self.samples, self.tokens, self.heads * self.width

    def draw(self, region: TrainedKind) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return random operands, and a random gradient of the result."""
        normal = np.random.default_rng(0).normal
        keys = (*self.shape[:2], self.shape[2] // self.group)
        shapes = dict(zip(region.operands, (self.shape, keys, keys), strict=True))
        return {name: normal(size=shape) for name, shape in shapes.items()}, normal(size=self.shape)


def region_of(case: Case, needs: tuple[int, ...] = (0, 1, 2), bands: int = 1) -> TrainedKind:
    """Return the region on that many rows and columns; operands `needs` have gradients."""
    model = Heads(case.shape[2], case.heads, case.is_causal, case.group)
    plan = training_plan(model, case.shape[1:], 40)
    place = Region(3, 3, case.rows, case.cols + case.moving, case.rows * case.cols)
    stages = [dataclasses.replace(one, region=place) if one.name == NAME else one for one in plan.stages]
    plan = dataclasses.replace(plan, stages=tuple(stages))
    names = next(kernel for kernel in plan.graph.kernels if kernel.name == NAME).inputs
    found = region_alone(TrainedBandedAttention, plan, NAME, [names[i] for i in needs])
    found.bundles = dict.fromkeys(found.tied, bands)
    found.settle()
    return found


def attention(case: Case) -> Op:
    """Return the same in PyTorch."""

    def op(*operands: torch.Tensor) -> torch.Tensor:
        split = (*operands[0].shape[:2], -1, case.width)
        q, k, v = (x.view(split).transpose(1, 2) for x in operands)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=case.is_causal, enable_gqa=case.group > 1)
        return out.transpose(1, 2).reshape(operands[0].shape)

    return op


def run(case: Case, needs: tuple[int, ...] = (0, 1, 2), *, compare: bool = True) -> Alone:
    """Run a batch with random operands and gradient."""
    region = region_of(case, needs)
    operands, gradient = case.draw(region)
    if compare:
        return check_alone(region, attention(case), operands, gradient, {}, in_flight=case.in_flight)
    return run_alone(region, operands, gradient, {}, in_flight=case.in_flight)


CASES = {
    "a pair of tokens on a core": Case(8, 2, 16, 9, 8, 6, 3),
    "one moving column in the region": Case(4, 1, 8, 5, 4, 2, 2, moving=1),
    "one in flight": Case(4, 4, 4, 5, 2, 3, 1),
    "causal": Case(8, 4, 4, 5, 3, 4, 4, is_causal=True),
    "causal, rows of three tokens": Case(6, 1, 8, 2, 7, 4, 2, is_causal=True),
    "a row of cores": Case(7, 2, 6, 3, 8, 4, 2),
    "a column of cores": Case(9, 1, 16, 3, 1, 3, 3),
    "one core": Case(5, 2, 4, 2, 2, 4, 2, is_causal=True),
    "parts of three and two tokens": Case(7, 2, 8, 4, 3, 4, 2, is_causal=True),
    "13 tokens on 4 x 4 of 5 rows": Case(13, 2, 4, 5, 4, 4, 4),
    "streams as long as queues": Case(16, 2, 16, 17, 16, 4, 4),
    "pairs of heads share keys": Case(7, 4, 4, 4, 3, 4, 2, group=2),
    "all heads share keys, causal": Case(6, 3, 4, 4, 4, 4, 4, is_causal=True, group=3),
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", CASES)
def test_values_and_cycles(name: str) -> None:
    """Result and gradients equal autograd's within fp16, and the busiest core issues what its instructions take.

    Sums are fp32; the weights of the values and the gradient of a score are rounded to fp16 (2^-11), then the results.
    """
    case = CASES[name]
    found = run(case)
    region = found.region
    busiest = found.fabric.busy[region.rows, region.columns].max() / case.samples
    how = (region.kernel.dims, region.queries, region.keys, region.wafer, region.kernel.attrs)
    price = float((pair_busy(*how) + pair_backward(*how)).total)
    # Vectors that begin two elements after another's bank collide where tokens have no multiple of four features.
    assert busiest == pytest.approx(price, rel=0 if case.shape[2] % 4 == 0 else 0.1)
    assert case.in_flight <= region.most_in_flight()


@pytest.mark.thinned(1)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("heads", "count", "group"), [(2, 1, 1), (2, 2, 1), (6, 3, 1), (4, 2, 2)])
def test_bands_have_the_heads_of_a_bundle(heads: int, count: int, group: int, is_causal: bool) -> None:
    """Result and gradients of queries, keys and values in bundles equal autograd's."""
    case = Case(7, heads, 4, 12, 3, 4, 2, is_causal, group=group)
    banded = region_of(case, bands=count)
    assert len(banded.gradient_inlets) == count
    operands, gradient = case.draw(banded)
    check_alone(banded, attention(case), operands, gradient, {}, in_flight=case.in_flight)


@pytest.mark.slow
@examples(8)
@given(
    tokens=st.integers(4, 8), heads=st.integers(1, 3), half=st.integers(2, 5), rows=st.integers(2, 9), cols=st.integers(1, 8),
    in_flight=st.integers(1, 4), rounds=st.integers(1, 2), is_causal=st.booleans(), group=st.integers(1, 3),
)  # fmt: skip
def test_any_region_gives_all_streams(
    tokens: int,
    heads: int,
    half: int,
    rows: int,
    cols: int,
    in_flight: int,
    rounds: int,
    is_causal: bool,
    group: int,
) -> None:
    """With random sizes on odd rectangles no run stops, and all values are those of autograd."""
    samples = in_flight * rounds
    run(Case(tokens, heads * group, 2 * half, rows, cols, samples, in_flight, is_causal, group=group))


@pytest.mark.thinned(1)
@pytest.mark.parametrize("needs", [(0,), (1, 2), (2,)])
def test_only_gradients_that_are_asked_for_leave(needs: tuple[int, ...]) -> None:
    """An operand from the host gets no gradient."""
    found = run(Case(4, 2, 4, 4, 4, 4, 2), needs)
    assert set(found.operand_gradients) == {found.region.operands[i] for i in needs}


@pytest.mark.slow
@pytest.mark.parametrize(("rounds", "in_flight"), [(1, 6), (2, 3), (3, 1), (2, 4)])
def test_one_reader_of_all_gradients_stops_nothing(
    rounds: int, in_flight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries, keys and values come from one tensor, by layers that store one sample: one core receives their gradients
    one after the other.

    The streams are as long as all queues on their way, so one that waited for another would stop the batch.  Weights are unit
    matrices: the gradient of the first layer is what attention and the sum make of the loss's.
    """
    monkeypatch.setitem(TRAINED, "gemm", Copies)
    model = copying(nn.Sequential(nn.Linear(32, 32), Heads(32, 2), nn.Linear(32, 32)))
    plan, samples = training_plan(model, (8, 32), 64), rounds * in_flight
    made = trained_network(plan, samples, 0.1, "squared error", in_flight)
    assert made.batch.in_flight == in_flight
    x, labels = torch.randn(samples, 8, 32).half().float(), torch.arange(8 * samples) % 32
    result = stepped(made.program, made.config, made.inputs({}, x.numpy().reshape(-1, 32), labels.numpy()))
    assert result.words_left == 0
    wanted_loss(model(x).reshape(-1, 32), labels, "squared error").backward()
    first = model[0].bias.grad.numpy()
    assert np.abs(made.learned(result)[1]["0.bias"] - first).max() < 16 * EPS * np.abs(first).max()


def test_samples_in_flight_are_bounded_by_the_fullest_core() -> None:
    """As many as it says can be held find room in its memory, and as they are held for d samples, more do not."""
    region = region_of(Case(16, 4, 16, 4, 4, 1, 1))
    most = region.most_in_flight()
    # A core keeps queries of a block of 6 tokens (16 on three rows), keys and values of one of 4, 96 weights: 2 bytes each, in
    # 44,976 bytes less 1,536 of instructions, results, gradients of keys and values, 96 scores and 24 sums, two gradients of
    # results, and less 18 bytes for each of 9 buffers that start in one of 8 banks.
    room = 44_976 - 1_536 - 4 * (384 + 2 * 256 + 96 + 24) - 2 * 96 - 2 * 2 * 384 - 162
    assert most == int(room / (2 * (384 + 2 * 256 + 96)))


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("in_flight", "group"), [(1, 1), (3, 1), (3, 2)])
def test_the_footprint_of_the_kernel_is_that_of_the_built_program(
    in_flight: int, group: int, *, is_causal: bool
) -> None:
    """A compute core's last buffer ends within the gaps of 9 buffers, at most 18 bytes each, below the footprint for as many
    samples in flight; by the sizes of the blocks of the region, as the planner asks for them."""
    model = nn.Sequential(nn.Linear(12, 12), Heads(12, 2, is_causal, group), nn.Linear(12, 4))
    made = trained_network(training_plan(model, (7, 12), 40, in_flight), in_flight)
    region = next(one for one in made.regions if isinstance(one, TrainedBandedAttention))
    band = region.bands[0]
    held = [
        one
        for one in made.program.buffers.values()
        if one.row == band.top and one.col == band.left and one.name.startswith(region.name)
    ]
    assert len(held) == 9
    end = max(one.address + one.length * (2 if one.dtype == "fp16" else 4) for one in held)
    attrs = {**region.kernel.attrs, "bands": len(region.bands), "held_samples": in_flight}
    place = Tiling(region.region.rows, region.compute_cols, "stationary")
    counted = pair_footprint(region.kernel.dims, place, region.wafer, attrs)
    data = float(counted.activations_bytes + counted.buffers_bytes)
    assert data - 162 <= end <= data
    assert made.batch.in_flight == in_flight
