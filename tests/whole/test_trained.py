"""Training of networks of regions: routes of gradients, sums, loss; every value against PyTorch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from benchmarks.drawn_models import Gated
from tests.generated import examples
from tests.whole.alone import EPS, region_alone, run_alone
from tests.whole.copies import Copies
from tests.whole.test_dense_chain import plan_of
from tests.whole.test_regions import Block, Heads
from wse_sim import api
from wse_sim.errors import ModelError
from wse_sim.modes.pipelined.plan import PipelinedPlan
from wse_sim.whole import inputs_over_rows
from wse_sim.whole.paths import Grid
from wse_sim.whole.run import stepped
from wse_sim.whole.trained import TRAINED, trained_network
from wse_sim.whole.trees import found_way
from wse_sim.whole.values import check_values

RATE = 0.05


class Skip(nn.Module):
    """A layer, then two with a skip around them."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(features, features) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        x = self.a(x)
        return x + self.c(self.b(x))


def training_plan(model: nn.Module, shape: tuple[int, ...], side: int, batch: int = 8) -> PipelinedPlan:
    """Return the plan of a batch with plain gradient descent."""
    graph = api.lower(model, (torch.zeros(1, *shape),), training=True, optimizer="sgd")
    return plan_of(inputs_over_rows(graph), side, phase="training", optimizer="sgd", batch=batch)


@pytest.mark.parametrize("in_flight", [1, 2, 6])
def test_a_region_alone_gets_and_gives_all_streams(in_flight: int) -> None:
    """The bench for kinds of regions: operands in, result out, its gradient in, gradients of operands out."""
    plan = training_plan(Skip(8), (4, 8), 16)
    region = region_alone(Copies, plan, "c")
    rng = np.random.default_rng(0)
    x, y, g = (rng.normal(size=(6, 4, 8)).astype(np.float16) for _ in range(3))
    first, second = region.operands
    run = run_alone(region, {first: x, second: y}, g, {}, in_flight=in_flight)
    assert np.array_equal(run.output, (x + y).astype(np.float32))
    assert all(np.array_equal(found, g.astype(np.float32)) for found in run.operand_gradients.values())
    assert set(run.operand_gradients) == {first, second}


class Blocks(nn.Module):
    """Nested skips, and a tensor with three readers."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d, self.e = (nn.Linear(features, features) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        x = self.a(x)
        y = x + self.c(self.b(x))
        return x + self.e(self.d(y))


def wanted_loss(outputs: torch.Tensor, labels: torch.Tensor, loss: str) -> torch.Tensor:
    """Return the mean over rows in PyTorch."""
    if loss == "cross entropy":
        return nn.functional.cross_entropy(outputs, labels)
    return 0.5 * ((outputs - nn.functional.one_hot(labels, outputs.shape[-1])) ** 2).sum() / len(labels)


def copying(model: nn.Module) -> nn.Module:
    """Return the model with unit matrices for weights."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            nn.init.eye_(layer.weight)
            nn.init.zeros_(layer.bias)
    return model


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("samples", "most"), [(1, 1), (6, 1), (6, 2), (6, 3), (6, 6), (7, 5)])
@pytest.mark.parametrize("loss", ["cross entropy", "squared error"])
def test_sums_stores_and_loss_of_a_network_of_copies(
    samples: int, most: int, loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs, loss and the gradient at every layer, with any number of samples in flight and rounds.

    Weights are unit matrices, so the gradient of a layer's result is what ways, stores and sums make of the loss's:
    2 + 1 for `a` with its three readers, of which two come through two layers.
    """
    monkeypatch.setitem(TRAINED, "gemm", Copies)
    model = copying(Blocks(8))
    plan = training_plan(model, (4, 8), 24)
    made = trained_network(plan, samples, 0.1, loss, most)
    x = torch.randn(samples, 4, 8).half().float()
    labels = torch.arange(samples * 4) % 8
    result = stepped(made.program, made.config, made.inputs({}, x.numpy().reshape(-1, 8), labels.numpy()))
    assert result.words_left == 0
    assert made.batch.in_flight == max(d for d in range(1, most + 1) if samples % d == 0)
    outputs = model(x).reshape(-1, 8)
    wanted = wanted_loss(outputs, labels, loss)
    wanted.backward()
    assert np.abs(made.outputs(result) - outputs.detach().numpy()).max() < 4 * EPS * outputs.abs().max()
    mean, gradients, _ = made.learned(result)
    assert mean == pytest.approx(wanted.item(), rel=4 * EPS)
    for name, found in gradients.items():
        # Up to eight gradients are added up on the way to the first layer, each a rounding of fp16.
        parameter = dict(model.named_parameters())[name].grad.numpy()
        assert np.abs(found - parameter).max() < 8 * EPS * np.abs(parameter).max(), name
    assert len(gradients) == 5


class Woven(nn.Module):
    """Layers that each read one earlier result and add another one, according to `reads`; unread results are joined at
    the end.
    """

    def __init__(self, features: int, reads: list[tuple[int, int]]) -> None:
        super().__init__()
        self.reads = list(reads)
        unread = set(range(len(reads) + 1)) - {i % (n + 1) for n, pair in enumerate(reads) for i in pair}
        while len(unread) > 1:
            first, second, *_ = sorted(unread)
            unread = (unread - {first, second}) | {len(self.reads) + 1}
            self.reads.append((first, second))
        self.layers = nn.ModuleList(nn.Linear(features, features) for _ in range(len(self.reads) + 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        found = [self.layers[0](x)]
        for n, (a, b) in enumerate(self.reads):
            branch = self.layers[n + 1](found[a % (n + 1)])
            other = b % (n + 1)
            found.append(branch if other == a % (n + 1) else branch + found[other])
        return found[-1]


@pytest.mark.slow
@examples(12)
@given(
    reads=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6),
    rounds=st.integers(1, 3),
    in_flight=st.integers(1, 4),
)
def test_no_order_of_readers_stops_a_batch(reads: list[tuple[int, int]], rounds: int, in_flight: int) -> None:
    """Skips around and across each other, branches, any number of readers; queues are short and cores hold one sample.

    All words come through, and the first layer gets the gradient that PyTorch says.
    """
    model = copying(Woven(4, reads))
    plan = training_plan(model, (2, 4), 32)
    samples = rounds * in_flight
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TRAINED, "gemm", Copies)
        made = trained_network(plan, samples, 0.1, "squared error", in_flight)
    x = (torch.randint(-4, 5, (samples, 2, 4)) / 8).float()
    labels = torch.arange(2 * samples) % 4
    result = stepped(made.program, made.config, made.inputs({}, x.numpy().reshape(-1, 4), labels.numpy()))
    assert result.words_left == 0
    outputs = model(x).reshape(-1, 4)
    wanted_loss(outputs, labels, "squared error").backward()
    first = model.layers[0].bias.grad.numpy()
    _, gradients, _ = made.learned(result)
    assert np.abs(gradients["layers.0.bias"] - first).max() < 16 * EPS * np.abs(first).max()


class NormedHeads(nn.Module):
    """Attention of three norms of one norm, and a norm of its result."""

    def __init__(self, features: int, heads: int, is_causal: bool = False) -> None:
        super().__init__()
        self.first, self.q, self.k, self.v, self.last = (nn.LayerNorm(features) for _ in range(5))
        self.heads, self.is_causal = heads, is_causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        x = self.first(x)
        split = (*x.shape[:2], self.heads, -1)
        q, k, v = (norm(x).view(*split).transpose(1, 2) for norm in (self.q, self.k, self.v))
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        return self.last(out.transpose(1, 2).reshape(x.shape))


class Around(nn.Module):
    """A layer, and a skip around a norm and two layers; the sum is the output."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(features, features), nn.LayerNorm(features)
        self.up, self.down = nn.Linear(features, 2 * features), nn.Linear(2 * features, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        x = self.first(x)
        return x + self.down(torch.relu(self.up(self.norm(x))))


def encoder(features: int) -> nn.Module:
    """A block as PyTorch has it: norms last, queries, keys and values by one product."""
    return nn.TransformerEncoderLayer(features, 2, 2 * features, dropout=0.0, batch_first=True)


class Positions(nn.Module):
    """A parameter for every element of a sample, and an activation of it that no layer does."""

    def __init__(self, tokens: int, features: int) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(tokens, features))
        self.norm, self.layer = nn.LayerNorm(features), nn.Linear(features, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, features)."""
        return self.layer(nn.functional.relu(self.norm(x)) + self.positions)


@dataclass
class Case:
    """A model, the shape of a sample, the side of its wafer, samples of a batch."""

    model: Any
    shape: tuple[int, ...]
    side: int
    samples: int = 6


CASES = {
    "norms": Case(
        lambda: nn.Sequential(nn.LayerNorm(8), nn.RMSNorm(8, eps=1e-5), nn.LayerNorm(8)), (4, 8), 24
    ),
    "tokens": Case(lambda: nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 6)), (5, 8), 24),
    "skip": Case(lambda: Skip(8), (4, 8), 24),
    "woven": Case(lambda: Blocks(8), (4, 8), 40),
    "heads": Case(lambda: Heads(16, 2), (6, 16), 40),
    "block": Case(lambda: Block(16, 2), (4, 16), 64, 4),
    "encoder of PyTorch": Case(lambda: encoder(16), (4, 16), 48, 4),
    "images": Case(
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2)),
        (2, 7, 7),
        32,
        4,
    ),
    "a skip in bundles": Case(lambda: Around(64), (4, 64), 48, 4),
    "gated": Case(lambda: nn.Sequential(nn.Linear(8, 8), Gated(8, 16)), (4, 8), 64),
    "positions": Case(lambda: Positions(4, 8), (4, 8), 40),
    "attention of norms": Case(lambda: NormedHeads(16, 2), (6, 16), 40),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "loss"),
    [*((name, "cross entropy") for name in CASES), ("skip", "squared error"), ("heads", "squared error")],
)
def test_two_steps_equal_those_of_pytorch(name: str, loss: str) -> None:
    """Loss, every output, every gradient and the change of every weight in two steps are compared with a PyTorch that
    rounds where streams do.

    Roundings (2^-11 relative) differ only where fp32 sums of another order are rounded the other way; eight of them are the bound.
    """
    case = CASES[name]
    torch.manual_seed(1)
    model = case.model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((parameter + 0.1 * torch.randn_like(parameter)).half())
        x = torch.randn(case.samples, *case.shape).half().float()
        outputs = model(x).flatten(0, -2) if len(case.shape) == 2 else model(x).flatten(1)
    plan = training_plan(model, case.shape, case.side, case.samples)
    labels = torch.randint(0, outputs.shape[-1], (len(outputs),)).numpy()
    found = check_values(model, plan, x.numpy(), labels, rate=RATE, loss=loss, steps=2)
    for kind in found.kinds:
        assert found.worst(kind).rounded_error < 8 * EPS, found.worst(kind)
    assert found.turned_on_fabric <= 1


@pytest.mark.slow
def test_a_skip_and_the_output_come_in_bundles() -> None:
    """The tensors at norm, sum and loss take the links that the pace needs, and every tensor as many at all its ends."""
    made = trained_network(training_plan(Around(64), (4, 64), 48, 4), 4)
    counts: dict[str, set[int]] = {}
    for region in made.regions:
        for name, count in region.bundles.items():
            counts.setdefault(name, set()).add(count)
    assert all(len(found) == 1 for found in counts.values())
    norm, last = (next(one for one in made.regions if one.name == name) for name in ("norm", "down"))
    assert min(min(counts[name]) for name in norm.tied) > 1
    assert counts[last.kernel.outputs[0]] == {len(made.from_loss)} != {1}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["skip", "block", "encoder of PyTorch"])
def test_a_skip_with_room_for_one_sample_stops_no_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All samples of the batch are in flight, and the core that buffers a residual holds one of them."""
    monkeypatch.setattr("wse_sim.whole.trained.dense.RECEIVERS", 1)
    test_two_steps_equal_those_of_pytorch(name, "cross entropy")


def test_the_command_trains_a_network(wse: Any, tmp_path: Path) -> None:
    """It uses the same entry point as a chain: step and busy cycles of every region and of the loss."""
    counts = {"rows": 32, "cols": 32, "program_rows": 32, "program_cols": 32, "io_channels_per_edge": 8}
    lines = [
        f"  {key}: {{value: {n}, unit: '1', source: here, evidence: assumed}}" for key, n in counts.items()
    ]
    file = tmp_path / "small.yaml"
    file.write_text("\n".join(["name: small", "base: wse2", "constants:", *lines]))
    words = "--mode pipelined --phase training --optimizer sgd --batch 8 --quiet --json --whole-fabric"
    ran = wse("run", "tests.whole.test_trained:small", *words.split(), "--wafer", str(file))
    assert ran.status == 0, ran.err
    found = json.loads(ran.out)["whole_fabric"]
    assert [region["name"] for region in found["regions"]] == ["0", "1", "3", "loss"]
    assert found["fabric_step"] > max(region["busiest"] for region in found["regions"])


def small() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return a norm and two layers on samples of four tokens."""
    layers = [nn.LayerNorm(8), nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 6)]
    return nn.Sequential(*layers), (torch.zeros(1, 4, 8),)


def test_a_model_whose_output_does_not_leave_is_refused() -> None:
    """An activation at the end belongs to the layer before it, so that no stream gives its result to the host."""
    plan = training_plan(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), (4, 8), 16)
    with pytest.raises(ModelError, match="let a layer without an activation come last"):
        trained_network(plan, 8)


def test_a_way_goes_around_a_wall_of_its_color() -> None:
    """A wall of the first color leaves one gap at the end of 9 rows: 8 cells down, 4 across and 8 up. Without a gap, the second
    color is straight.
    """
    grid = Grid(9, 5)
    grid.take(0, [(row, 2) for row in range(8)])
    ends = (0, 0), (0, 4)
    assert (first := found_way(grid, ends[0], [ends[1]], [ends[0]], lambda _: 1.0, [0]))
    assert first.hops(ends[1]) == 20
    fresh = Grid(9, 5)
    fresh.take(0, [(row, 2) for row in range(9)])
    assert found_way(fresh, ends[0], [ends[1]], [ends[0]], lambda _: 1.0, [0]) is None
    assert (way := found_way(fresh, ends[0], [ends[1]], [ends[0]], lambda _: 1.0, [0, 1]))
    assert (way.color, way.hops(ends[1])) == (1, 4)
