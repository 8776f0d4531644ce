"""Mixtures of experts that loop over their experts: tokens are spread evenly, and the FLOPs are those that torch counts with
the routing of real values, because each token is computed by the same number of experts whichever these are.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from tests.frontend.test_forward import check_wired  # noqa: E402
from wse_sim.frontend import lower  # noqa: E402
from wse_sim.frontend.obstacles import DECIDED  # noqa: E402

WIDE, INNER, EXPERTS, TOP = 16, 24, 8, 2
SAMPLES, TOKENS = 2, 32


class _Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDE, INNER), nn.Linear(INNER, WIDE)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.up(x)))


class _Mixture(nn.Module):
    """Experts of their own modules; `add` adds the results of one expert."""

    def __init__(self, add: Callable[..., None]) -> None:
        super().__init__()
        self.gate, self.add = nn.Linear(WIDE, EXPERTS, bias=False), add
        self.experts = nn.ModuleList(_Expert() for _ in range(EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x := x.flatten(0, 1)).softmax(-1).topk(TOP)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            self.add(out, x, expert, chosen == number, weights)
        return out.view(SAMPLES, -1, WIDE)


def _by_places(out: Tensor, x: Tensor, expert: nn.Module, chosen: Tensor, weights: Tensor) -> None:
    token, slot = torch.where(chosen)
    out.index_add_(0, token, expert(x[token]) * weights[token, slot, None])


def _by_list(out: Tensor, x: Tensor, expert: nn.Module, chosen: Tensor, weights: Tensor) -> None:
    token = chosen.any(-1).nonzero().squeeze(-1)
    if token.numel() == 0:
        return
    out[token] += expert(x[token]) * (weights * chosen).sum(-1)[token, None]


def _by_mask(out: Tensor, x: Tensor, expert: nn.Module, chosen: Tensor, weights: Tensor) -> None:
    mask = chosen.any(-1)
    if mask.any():
        out[mask] += expert(x[mask]) * (weights * chosen).sum(-1)[mask][:, None]


class _Stacked(nn.Module):
    """Experts whose weights are one tensor; the last `idle` ones have no weights and return what they get."""

    def __init__(self, experts: int = EXPERTS, top: int = TOP, idle: int = 0) -> None:
        super().__init__()
        self.gate, self.top, self.idle = nn.Linear(WIDE, experts, bias=False), top, idle
        self.up = nn.Parameter(torch.randn(experts, INNER, WIDE))
        self.down = nn.Parameter(torch.randn(experts - idle, INNER, WIDE))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x := x.flatten(0, 1)).softmax(-1).topk(self.top)
        out = torch.zeros_like(x)
        mask = F.one_hot(chosen, len(self.up)).permute(2, 1, 0)
        for number in (mask.sum((-1, -2)) > 0).nonzero():
            expert = int(number[0])
            slot, token = torch.where(mask[expert])
            made = x[token]
            if expert < len(self.down):
                made = F.silu(F.linear(made, self.up[expert])) @ self.down[expert]
            out.index_add_(0, token, made * weights[token, slot, None])
        return out.view(SAMPLES, -1, WIDE)


class _Named(nn.Module):
    """Experts by name; each token takes one, within a capacity that leaves out none of evenly spread ones."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDE, EXPERTS, bias=False)
        self.experts = nn.ModuleDict({f"expert_{i}": _Expert() for i in range(EXPERTS)})

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x := x.flatten(0, 1)).softmax(-1)
        chosen = F.one_hot(weights.argmax(-1), EXPERTS)
        chosen = chosen * (chosen.cumsum(0) <= len(x))
        out = torch.zeros_like(x)
        for number in (chosen.sum(0) > 0).nonzero():
            (token,) = torch.where(chosen[:, number[0]])
            made = self.experts[f"expert_{number[0]}"](x[token])
            out.index_add_(0, token, made * weights.amax(-1)[token, None])
        return out.view(SAMPLES, -1, WIDE)


class _Sorted(nn.Module):
    """Rows in the order of their experts, whose counts are read."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDE, EXPERTS, bias=False)
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDE, WIDE))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x := x.flatten(0, 1)).topk(TOP)
        counts = torch.zeros(len(x), EXPERTS).scatter(1, chosen, 1).long().sum(0).tolist()
        order = chosen.flatten().argsort()
        rows = x[order.div(TOP, rounding_mode="trunc")].split(counts)
        made = torch.cat([F.linear(part, self.weight[i]) for i, part in enumerate(rows)])
        made = made * weights.flatten()[order][:, None]
        return torch.zeros_like(x).index_add(0, order // TOP, made).view(SAMPLES, -1, WIDE)


_MODELS: dict[str, Callable[[], nn.Module]] = {
    "places": lambda: _Mixture(_by_places),
    "list": lambda: _Mixture(_by_list),
    "mask": lambda: _Mixture(_by_mask),
    "stacked": _Stacked,
    "named": _Named,
    "sorted": _Sorted,
}


def counted(module: nn.Module, x: Tensor, *, training: bool) -> int:
    """FLOPs that torch counts in a run of a module, with its backward pass in training."""
    with FlopCounterMode(display=False) as counter:
        made = module(x)
        if training:
            made.sum().backward()
    return int(counter.get_total_flops())


@pytest.mark.parametrize(
    ("name", "training"),
    [*((name, False) for name in _MODELS), ("places", True), ("stacked", True), ("sorted", True)],
)
def test_flops_are_those_of_any_routing(name: str, training: bool) -> None:
    module, x = _MODELS[name](), torch.randn(SAMPLES, TOKENS, WIDE)
    graph = lower(module, (x,), training=training)
    check_wired(graph)
    assert graph.total_flops == counted(module, x, training=training)
    assert any(note.startswith("experts: the experts chosen at ") for note in graph.notes)


def test_every_module_of_a_list_gets_the_mean_number_of_tokens() -> None:
    graph = lower(_Mixture(_by_places), (torch.randn(SAMPLES, TOKENS, WIDE),))
    rows = [k.dims["m"] for k in graph if k.family == "gemm" and k.dims["n"] == INNER]
    assert rows == [SAMPLES * TOKENS * TOP // EXPERTS] * EXPERTS


def test_experts_in_one_tensor_are_grouped_products_of_all_of_them() -> None:
    """Each of two shares has the tokens of one choice, and half of the experts."""
    graph = lower(_Stacked(), (torch.randn(SAMPLES, TOKENS, WIDE),))
    found = [k.dims for k in graph if k.family == "grouped_gemm" and k.dims["n"] == INNER]
    assert [(d["m"], d["groups"]) for d in found] == [(SAMPLES * TOKENS, EXPERTS // TOP)] * TOP


def test_experts_without_weights_get_their_share() -> None:
    """4 of 12 experts return what they get, so of 3 experts that a token takes 2 compute, each for a third of all experts."""
    graph = lower(_Stacked(experts=12, top=3, idle=4), (torch.randn(SAMPLES, TOKENS, WIDE),))
    found = [k.dims for k in graph if k.family == "grouped_gemm" and k.dims["n"] == INNER]
    assert [(d["m"], d["groups"]) for d in found] == [(SAMPLES * TOKENS, 4)] * 2


def test_a_choice_that_is_not_one_of_experts_is_that_of_the_example() -> None:
    class Stops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(WIDE, EXPERTS)

        def forward(self, x: Tensor) -> Tensor:
            y = self.head(x)
            return y if (y.argmax(-1) == 0).any() else y * 2

    graph = lower(Stops(), (torch.randn(SAMPLES, TOKENS, WIDE),))
    assert not any(note.startswith("experts:") for note in graph.notes)
    assert any(note.startswith(DECIDED) for note in graph.notes)


def test_gradients_reach_what_rows_were_added_to_through_a_view() -> None:
    """Rows of one layer are added to rows of another one, in two dimensions, and the sum is read in three."""

    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = (nn.Linear(WIDE, WIDE) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            rows, places = x.flatten(0, 1), torch.arange(0, SAMPLES * TOKENS, 3)
            out = torch.zeros_like(rows).index_add(0, places, self.first(rows[places]))
            out = out.index_add(0, places, self.second(rows[places]))
            return self.third(self.third(x)) + out.view(x.shape)

    module, x = Adds(), torch.randn(SAMPLES, TOKENS, WIDE)
    assert lower(module, (x,), training=True).total_flops == counted(module, x, training=True)
