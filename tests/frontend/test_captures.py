"""What published models do in forward(): caches that they fill, weights on "meta" beside values, work on constants."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from wse_sim.errors import ModelError
from wse_sim.frontend import lower


class Cached(nn.Module):
    """Attention biases by device, as in vision transformers: gathered once from a weight, then kept."""

    def __init__(self, of_the_input: bool) -> None:
        super().__init__()
        self.fc, self.biases = nn.Linear(8, 8), nn.Parameter(torch.zeros(4, 9))
        self.register_buffer("index", torch.zeros(8, 8, dtype=torch.long), persistent=False)
        self.cache: dict[str, torch.Tensor] = {}
        self.of_the_input = of_the_input

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        device = str(x.device)
        if device not in self.cache:
            self.cache[device] = self.biases[:, self.index]
        if self.of_the_input:
            self.cache["last"] = 2 * x
        return self.fc(x) + self.cache[device].sum(0)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_cache_of_weights_is_worked_out_in_each_step(device):
    """The note names it; the user's module keeps an empty cache."""
    with torch.device(device):
        model = Cached(of_the_input=False)
    graph = lower(model, (torch.zeros(8, 8, device=device),), training=True)
    assert [note for note in graph.notes if "cache['cpu'] filled in forward() depend on no input" in note]
    assert "biases" in {name for k in graph for name in k.parameters}
    assert model.cache == {}


def test_a_cache_of_inputs_is_refused():
    """What is kept from one step to the next is a state, which a compiled step does not have."""
    with pytest.raises(
        ModelError, match=r"assigns to self\.cache\['last'\], which a compiled step cannot keep"
    ):
        lower(Cached(of_the_input=True), (torch.zeros(8, 8),))


class Tied(nn.Module):
    """One weight under two names, a plain tensor beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 8), nn.Linear(8, 50, bias=False)
        self.head.weight = self.embed.weight
        self.scale = torch.ones(8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids) * self.scale)


def test_a_module_on_meta_stays_tied():
    """Weights get no memory, but stay the same weight; plain tensors move with them."""
    with torch.device("meta"):
        model = Tied()
    graph = lower(model, (torch.zeros(2, 4, dtype=torch.long, device="meta"),))
    assert {name for k in graph for name in k.parameters} >= {"embed.weight"}
    assert "head.weight" not in graph.tensors
    assert model.scale.device.type == "meta"
