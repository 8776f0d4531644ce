"""Concatenations, slices and shuffles of channels: which channels views take, the values of models that have them, and what a model
costs whose weights are split by hand.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from tests.whole.test_dense_chain import plan_of
from wse_sim import api
from wse_sim.errors import ModelError
from wse_sim.graph.access import channels_of, runs_of
from wse_sim.whole import check_graph, compare_with_engine, inputs_over_rows
from wse_sim.whole.values import check_values

Function = Callable[..., torch.Tensor]


class Layers(nn.Module):
    """Named layers, and the function of them that is the model."""

    def __init__(self, function: Function, **layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.function = nn.ModuleDict(layers), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, ...)."""
        return self.function(self.layers, x)


def shuffled(x: torch.Tensor, groups: int = 2) -> torch.Tensor:
    """Return the channels of an image in the order of ShuffleNet."""
    batch, channels, *sides = x.shape
    return x.view(batch, groups, channels // groups, *sides).transpose(1, 2).reshape(x.shape)


# ---- which channels a view takes -----------------------------------------------------------------------------------


@given(st.lists(st.integers(-1, 9), min_size=1, max_size=20))
def test_runs_are_the_channels(channels: list[int]) -> None:
    assert channels_of(runs_of(np.array(channels))).tolist() == channels


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "shuffle": shuffled,
    "first half": lambda x: x[:, : x.shape[1] // 2],
    "second half": lambda x: x.chunk(2, 1)[1],
    "later": lambda x: x[:, 2:],
    "every second": lambda x: x[:, 1::2],
}


@settings(max_examples=12, deadline=None)
@given(st.lists(st.sampled_from([*VIEWS]), min_size=1, max_size=3))
def test_a_graph_states_the_channels_that_a_view_takes(names: list[str]) -> None:
    """PyTorch applies the views to the numbers of 24 channels."""

    def taken(x: torch.Tensor) -> torch.Tensor:
        for name in names:
            x = x if x.shape[1] % 4 else VIEWS[name](x)
        return x

    numbers = taken(torch.arange(24.0).reshape(1, 24, 1, 1)).flatten().long().tolist()
    model = Layers(
        lambda of, x: of["b"](taken(of["a"](x))), a=nn.Conv2d(2, 24, 1), b=nn.Conv2d(len(numbers), 4, 1)
    )
    reader = api.lower(model, (torch.zeros(1, 2, 3, 3),)).kernel("layers.b")
    if numbers == list(range(24)):
        assert reader.access.slices == ()
    else:
        ((name, runs),) = reader.access.slices
        assert (name, channels_of(runs).tolist()) == ("layers.a.out", numbers)


# ---- models --------------------------------------------------------------------------------------------------------


def branches() -> Layers:
    """Two branches of odd and even size, joined."""

    def run(of: nn.ModuleDict, x: torch.Tensor) -> torch.Tensor:
        return of["c"](torch.cat([torch.relu(of["a"](x)), of["b"](x)], -1))

    return Layers(run, a=nn.Linear(14, 11), b=nn.Linear(14, 8), c=nn.Linear(19, 6))


def gated() -> Layers:
    """A gate, whose result is joined with the tokens; the last slice takes an odd part of it."""

    def run(of: nn.ModuleDict, x: torch.Tensor) -> torch.Tensor:
        x = of["a"](x)
        gate, values = of["b"](x).chunk(2, -1)
        joined = torch.cat([torch.relu(gate) * values, x], -1)
        return of["c"](joined) + of["d"](joined[..., 3:15])

    return Layers(run, a=nn.Linear(10, 8), b=nn.Linear(8, 24), c=nn.Linear(20, 6), d=nn.Linear(12, 6))


def dense_block() -> Layers:
    """A dense block: every layer reads all before it, through a batch norm."""

    def run(of: nn.ModuleDict, x: torch.Tensor) -> torch.Tensor:
        found = [of["stem"](x)]
        for i in range(2):
            found.append(of[f"conv{i}"](F.relu(of[f"norm{i}"](torch.cat(found, 1)))))
        return of["last"](F.avg_pool2d(of["down"](torch.cat(found, 1)), 2).flatten(1))

    convs = {f"conv{i}": nn.Conv2d(6 + 4 * i, 4, 3, padding=1, bias=False) for i in range(2)}
    norms = {f"norm{i}": nn.BatchNorm2d(6 + 4 * i) for i in range(2)}
    ends = {"stem": nn.Conv2d(2, 6, 3, padding=1), "down": nn.Conv2d(14, 6, 1), "last": nn.Linear(24, 4)}
    return Layers(run, **convs, **norms, **ends)


def shuffle_net() -> Layers:
    """Half of the channels pass, then all are shuffled; three channels of a half are no part of whole words."""

    def run(of: nn.ModuleDict, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat([of["stem"](x), of["other"](x)], 1)
        for i in range(2):
            passes, rest = shuffled(x).chunk(2, 1)
            x = torch.cat([passes, F.relu(of[f"norm{i}"](of[f"conv{i}"](rest)))], 1)
        return of["last"](of["depth"](shuffled(x)).mean((2, 3)))

    halves = {f"conv{i}": nn.Conv2d(6, 6, 1, bias=False) for i in range(2)}
    norms = {f"norm{i}": nn.BatchNorm2d(6) for i in range(2)}
    ends = {"stem": nn.Conv2d(2, 6, 3, padding=1), "other": nn.Conv2d(2, 6, 1), "last": nn.Linear(12, 4)}
    return Layers(run, **halves, **norms, **ends, depth=nn.Conv2d(12, 12, 3, padding=1, groups=12))


def cross_stage() -> Layers:
    """A block of two slices of a convolution, and a residual on one of them (CSP)."""

    def run(of: nn.ModuleDict, x: torch.Tensor) -> torch.Tensor:
        parts = list(F.relu(of["stem"](x)).chunk(2, 1))
        parts.append(parts[-1] + F.silu(of["block"](parts[-1])))
        joined = F.max_pool2d(torch.cat(parts, 1), 2)
        return of["last"](F.silu(of["down"](joined)).mean((2, 3)))

    return Layers(
        run,
        stem=nn.Conv2d(2, 12, 3, padding=1),
        block=nn.Conv2d(6, 6, 3, padding=1),
        down=nn.Conv2d(18, 8, 1),
        last=nn.Linear(8, 4),
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "branches": (branches, (14,), 32),
    "gated": (gated, (5, 10), 48),
    "dense block": (dense_block, (2, 4, 4), 64),
    "shuffled": (shuffle_net, (2, 4, 4), 72),
    "cross stage": (cross_stage, (2, 4, 4), 64),
}


def made(name: str) -> tuple[nn.Module, tuple[int, ...], int]:
    """Return a model with statistics that are not trivial."""
    make, shape, side = MODELS[name]
    torch.manual_seed(0)
    model = make().eval()
    for one in model.modules():
        if isinstance(one, nn.BatchNorm2d):
            assert one.running_mean is not None
            assert one.running_var is not None
            one.running_mean.normal_()
            one.running_var.uniform_(0.5, 2.0)
    return model, shape, side


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", MODELS)
def test_models_give_the_values_and_the_cycles(name: str) -> None:
    """Values are PyTorch's but for rounding to fp16 (2^-11) a few times; no kernel moves data."""
    model, shape, side = made(name)
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, *shape),)))
    graph.validate()
    assert "layout" not in {kernel.family for kernel in graph}
    plan = plan_of(graph, side)
    values = np.random.default_rng(0).normal(size=(4, *shape)).astype(np.float32)
    checked = check_values(model, plan, values)
    assert max(checked.largest("outputs")) < 2.0**-9
    assert abs(compare_with_engine(plan).difference) < 0.06


@pytest.mark.parametrize("name", ["branches", pytest.param("cross stage", marks=pytest.mark.slow)])
def test_parts_train(name: str) -> None:
    """Gradients of parts are those of the whole weight, which autograd finds."""
    model, shape, side = made(name)
    graph = inputs_over_rows(api.lower(model, (torch.zeros(1, *shape),), training=True, optimizer="sgd"))
    plan = plan_of(graph, 2 * side, batch=4, phase="training")
    values = np.random.default_rng(0).normal(size=(4, *shape)).astype(np.float32)
    checked = check_values(model, plan, values, np.arange(4), steps=2)
    assert {one.name for one in checked.values if one.kind == "gradient"} == dict(
        model.named_parameters()
    ).keys()
    assert max(checked.largest("gradient")) < 2.0**-8


def test_a_concatenation_costs_what_split_weights_cost() -> None:
    """c [a; b] = c_a a + c_b b, with the weights split by hand: regions of equal cycles, and as many."""

    def split(of: nn.ModuleDict, x: torch.Tensor) -> torch.Tensor:
        a, b = torch.relu(of["a"](x)), of["b"](x)
        return of["cb"](b) + of["ca"](a)

    by_hand = Layers(
        split,
        a=nn.Linear(14, 11),
        b=nn.Linear(14, 8),
        ca=nn.Linear(11, 6, bias=False),
        cb=nn.Linear(8, 6),
    )
    plans = [
        plan_of(inputs_over_rows(api.lower(model, (torch.zeros(1, 14),))), 32, batch=16)
        for model in (branches(), by_hand)
    ]
    one, other = ([stage.cycles_per_sample for stage in plan.stages] for plan in plans)
    assert sorted(one) == sorted(other)
    assert plans[0].pace_cycles == plans[1].pace_cycles
    cycles = [compare_with_engine(plan).cycles_per_sample for plan in plans]
    assert cycles[0] == pytest.approx(cycles[1], rel=0.01)


def test_composed_prices_are_those_of_the_same_parts() -> None:
    graph = api.lower(branches(), (torch.zeros(1, 14),))
    composed = plan_of(graph, 32, mode_options={"prices": "composed"})
    simulated = plan_of(inputs_over_rows(graph), 32)
    assert [stage.name for stage in composed.stages] == [stage.name for stage in simulated.stages]
    assert composed.pace_cycles == simulated.pace_cycles


# ---- what stays refused --------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Function, str]] = {
    "output": (lambda of, x: torch.cat([of["a"](x), of["b"](x)], -1), "moves elements"),
    "norm": (lambda of, x: of["c"](of["n"](torch.cat([of["a"](x), of["b"](x)], -1))), "moves elements"),
    "many parts": (
        lambda of, x: of["e"](torch.cat([of["a"](x * i) for i in range(1, 14)], -1)),
        "moves elements",
    ),
    "constant": (lambda of, x: of["c"](torch.cat([of["a"](x), torch.ones(1, 8)], -1)), "moves elements"),
    "permuted sum": (lambda of, x: of["d"](of["a"](x) + of["a"](x).flip(-1)), "moves elements|another order"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_readers_are_refused(name: str) -> None:
    function, said = REFUSED[name]
    layers = {"a": nn.Linear(6, 8), "b": nn.Linear(6, 8), "c": nn.Linear(16, 4), "d": nn.Linear(8, 4)}
    layers["e"] = nn.Linear(104, 4)
    graph = api.lower(Layers(function, **layers, n=nn.LayerNorm(16)), (torch.zeros(1, 6),))
    with pytest.raises(ModelError, match=said):
        check_graph(inputs_over_rows(graph))


def test_odd_parts_of_images_are_refused() -> None:
    """A word has two channels."""
    model = Layers(
        lambda of, x: of["c"](torch.cat([of["a"](x), of["b"](x)], 1)),
        a=nn.Conv2d(2, 3, 1),
        b=nn.Conv2d(2, 5, 1),
        c=nn.Conv2d(8, 4, 1),
    )
    with pytest.raises(ModelError, match="even number"):
        check_graph(inputs_over_rows(api.lower(model, (torch.zeros(1, 2, 4, 4),))))
