"""Recurrent layers of torch are captured: their lists of parameters are not state of the model."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from tests.frontend.test_training_flops import by_torch  # noqa: E402
from wse_sim.errors import ModelError  # noqa: E402
from wse_sim.frontend import lower  # noqa: E402
from wse_sim.frontend.capture import export  # noqa: E402
from wse_sim.frontend.training import FLOPS_CHECKED  # noqa: E402

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", sorted(GATES))
def test_a_recurrent_layer_is_one_scan_per_layer(kind: str):
    """g gates of h numbers from h inputs and h states at each of s steps have 2 s g h (h + h) FLOPs per layer."""
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
    """A model that adds its last result to the next input is refused, and the error names only that attribute."""
    with pytest.raises(ModelError, match=r"assigns to self\.last, which"):
        lower(Keeps(), (torch.randn(1, 4, 8),))


class Cell(nn.Module):
    """Three steps of a cell."""

    def __init__(self, kind: str, wide: int = 8, units: int = 16) -> None:
        super().__init__()
        self.cell, self.units = getattr(nn, kind)(wide, units), units

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = None
        for step in range(3):
            state = self.cell(x[:, step], state)
        return state[0] if isinstance(state, tuple) else state


@pytest.mark.thinned(1)
@pytest.mark.parametrize("kind", ["GRUCell", "LSTMCell", "RNNCell"])
def test_a_cell_is_two_products_a_step(kind: str):
    """FLOPs equal torch's counter in inference and training: neither the gradient of the input nor that of a zero state
    is requested.
    """
    counts = {}
    for training in (False, True):
        with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(training):
            made = Cell(kind)(torch.randn(4, 3, 8))
            if training:
                made.sum().backward()
        counts[training] = counter.get_total_flops()
        graph = lower(Cell(kind), (torch.zeros(4, 3, 8),), training=training)
        assert graph.total_flops == counts[training]
    assert counts[False] == 3 * 2 * 4 * (8 + 16) * {"GRUCell": 3, "LSTMCell": 4, "RNNCell": 1}[kind] * 16


@pytest.mark.parametrize("kind", ["GRUCell", "LSTMCell", "RNNCell"])
def test_a_spelled_cell_computes_what_torch_does(kind: str):
    """The program in eager torch is compared with the module in fp32."""
    module, x = Cell(kind), torch.randn(4, 3, 8)
    program = export(module, (x,), None, training=False)
    assert torch.allclose(program.module()(x), module(x), atol=1e-6)
    assert not [n for n in program.graph.nodes if "_cell." in str(n.target) and n.op == "call_function"]


class Starts(nn.Module):
    """A recurrent layer whose initial states are learned, computed or constant."""

    def __init__(self, kind: str, h: str, c: str) -> None:
        super().__init__()
        self.layer, self.states = getattr(nn, kind)(8, 8, batch_first=True), (h, c)
        self.given = nn.ParameterDict({name: torch.randn(1, 1, 8) for name in "hc"})
        self.made = nn.ModuleDict({name: nn.Linear(4, 8) for name in "hc"})

    def state(self, name: str, how: str, z: torch.Tensor) -> torch.Tensor:
        if how == "learned":
            return self.given[name].expand(-1, len(z), -1).contiguous()
        return torch.tanh(self.made[name](z))[None] if how == "computed" else torch.zeros(1, len(z), 8)

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        h, c = (self.state(name, how, z) for name, how in zip("hc", self.states, strict=True))
        return self.layer(x, (h, c) if isinstance(self.layer, nn.LSTM) else h)[0]


STARTS = ("constant", "learned", "computed")


@pytest.mark.parametrize(("h", "c"), [(h, c) for h in STARTS for c in STARTS])
def test_gradients_of_initial_states_are_counted(h: str, c: str) -> None:
    """Back in time, the product of the first step is computed only for a hidden state that trains."""
    for kind in GATES if c == "constant" else ("LSTM",):
        module, args = Starts(kind, h, c), (torch.randn(2, 5, 8), torch.randn(2, 4))
        graph = lower(module, args, training=True)
        assert graph.total_flops == by_torch(module, args)
        assert graph.facts[FLOPS_CHECKED] == "as torch counts"
    for parameter in module.layer.parameters():  # only the states train
        parameter.requires_grad = False
    if (h, c) != ("constant", "constant"):
        assert lower(module, args, training=True).total_flops == by_torch(module, args)
