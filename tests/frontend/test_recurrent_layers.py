"""Recurrent layers of torch are captured: the lists of parameters that they keep are no state of the model."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from wse_sim.errors import ModelError  # noqa: E402
from wse_sim.frontend import lower  # noqa: E402

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@pytest.mark.parametrize("kind", sorted(GATES))
def test_a_recurrent_layer_is_one_scan_per_layer(kind: str):
    """g gates of h numbers from h inputs and h states at each of s steps: 2 s g h (h + h) FLOP a layer."""
    layer = getattr(nn, kind)(32, 32, num_layers=2, batch_first=True)
    graph = lower(layer, (torch.randn(1, 10, 32),))
    assert {kernel.family for kernel in graph.kernels} == {"scan"}
    assert sum(kernel.flops for kernel in graph.kernels) == 2 * (2 * 10 * GATES[kind] * 32 * 64)


class Keeps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(8, 8, batch_first=True)
        self.last = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = self.layer(x if self.last is None else x + self.last)[0]
        return self.last


def test_state_of_ones_own_is_still_refused():
    """A model that adds its last result to the next input is told so, and only of that attribute."""
    with pytest.raises(ModelError, match=r"assigns to self\.last, which"):
        lower(Keeps(), (torch.randn(1, 4, 8),))
