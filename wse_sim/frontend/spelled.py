"""Functions of torch that stand for several operators, spelled out while a program is captured.

A cell of a recurrent layer becomes two products and what follows them, so that it has products, epilogues and gradients
like any other module.  The products are those that torch's counter counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def _gates(x: Tensor, h: Tensor, weights: tuple[Tensor | None, ...]) -> tuple[Tensor, Tensor]:
    """The products of the input and of the state: (batch, gates x units) each."""
    w_x, w_h, b_x, b_h = (*weights, None, None)[:4]
    if w_x is None or w_h is None:
        raise TypeError("a recurrent cell takes two weights")
    return functional.linear(x, w_x, b_x), functional.linear(h, w_h, b_h)


def _gru(x: Tensor, h: Tensor, *weights: Tensor | None) -> Tensor:
    """r = s(a_r + c_r), z = s(a_z + c_z), n = tanh(a_n + r c_n); h' = n + z (h - n)."""
    (a_r, a_z, a_n), (c_r, c_z, c_n) = (part.chunk(3, -1) for part in _gates(x, h, weights))
    reset, update = torch.sigmoid(a_r + c_r), torch.sigmoid(a_z + c_z)
    new = torch.tanh(a_n + reset * c_n)
    return new + update * (h - new)


def _lstm(x: Tensor, state: tuple[Tensor, Tensor], *weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """c' = s(f) c + s(i) tanh(g); h' = s(o) tanh(c'); gates in the order i, f, g, o."""
    h, c = state
    a, b = _gates(x, h, weights)
    i, f, g, o = (a + b).chunk(4, -1)
    kept = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(kept), kept


def _plain(activation: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def cell(x: Tensor, h: Tensor, *weights: Tensor | None) -> Tensor:
        a, b = _gates(x, h, weights)
        return activation(a + b)

    return cell


SPELLED: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.gru_cell: _gru,
    torch.lstm_cell: _lstm,
    torch.rnn_tanh_cell: _plain(torch.tanh),
    torch.rnn_relu_cell: _plain(torch.relu),
}
"""What is called in place of a function of torch, with the same arguments."""
