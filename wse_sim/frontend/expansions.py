"""Expands functions of torch that represent several operators while a program is captured.

A cell of a recurrent layer becomes two products and elementwise operators, so that it has products, epilogues
and gradients like any other module; torch's FLOP counter counts the same products. An ``einsum`` over several
operands contracts two at a time, a bilinear form is one product and a sum, and a CTC loss is one operator
over all frames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from wse_sim.frontend.alignments import ctc_loss
from wse_sim.frontend.classify import spelled_out


def _gates(x: Tensor, h: Tensor, weights: tuple[Tensor | None, ...]) -> tuple[Tensor, Tensor]:
    """Return the products of the input and of the state, (batch, gates x units) each."""
    w_x, w_h, b_x, b_h = (*weights, None, None)[:4]
    if w_x is None or w_h is None:
        raise TypeError("a recurrent cell takes two weights")
    return functional.linear(x, w_x, b_x), functional.linear(h, w_h, b_h)


def _gru(x: Tensor, h: Tensor, *weights: Tensor | None) -> Tensor:
    """Return h' = n + z (h - n) with r = s(a_r + c_r), z = s(a_z + c_z), n = tanh(a_n + r c_n).

    s is the sigmoid, a the products of the input, c those of the state.
    """
    (a_r, a_z, a_n), (c_r, c_z, c_n) = (part.chunk(3, -1) for part in _gates(x, h, weights))
    reset, update = torch.sigmoid(a_r + c_r), torch.sigmoid(a_z + c_z)
    new = torch.tanh(a_n + reset * c_n)
    return new + update * (h - new)


def _lstm(x: Tensor, state: tuple[Tensor, Tensor], *weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return h' = s(o) tanh(c') and c' = s(f) c + s(i) tanh(g).

    The gates are in the order i, f, g, o; s is the sigmoid.
    """
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


def _bilinear(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return y_o = x W_o y as one product with all W_o, and sums over its result times y."""
    outs, width, inner = weight.shape
    met = functional.linear(x, weight.transpose(1, 2).reshape(outs * inner, width))
    made = (met.unflatten(-1, (outs, inner)) * y.unsqueeze(-2)).sum(-1)
    return made if bias is None else made + bias


def _einsum(equation: Any, *operands: Any) -> Tensor:
    """Return an einsum over more than two operands, contracted two at a time in torch's order."""
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or len(operands) < 3:
        return torch.einsum(equation, *operands)
    parts, out = _letters(equation.replace(" ", ""), operands)
    left = list(zip(parts, operands, strict=True))
    for places in _path(",".join(parts) + "->" + out, operands):
        taken = [left.pop(place) for place in sorted(places, reverse=True)][::-1]
        needed = set(out).union(*(part for part, _ in left))
        kept = (
            out if not left else "".join(dict.fromkeys(c for part, _ in taken for c in part if c in needed))
        )
        made = torch.einsum(",".join(part for part, _ in taken) + "->" + kept, *(x for _, x in taken))
        left.append((kept, made))
    return left[0][1]


def _path(equation: str, operands: tuple[Tensor, ...]) -> list[tuple[int, ...]]:
    """Return the operands of each contraction step: by opt_einsum if torch uses it, else left to right."""
    if torch.backends.opt_einsum.is_available() and torch.backends.opt_einsum.enabled:
        from opt_einsum import contract_path

        how = torch.backends.opt_einsum.strategy or "auto"
        path = contract_path(equation, *(tuple(x.shape) for x in operands), optimize=how, shapes=True)[0]
        return [tuple(places) for places in path]
    # The result of a step is appended to the list of operands.
    count = len(operands)
    return [(0, 1), *((0, count - step - 1) for step in range(1, count - 1))]


def _letters(equation: str, operands: tuple[Tensor, ...]) -> tuple[list[str], str]:
    """Return the letters of each operand and of the result; an ellipsis is replaced by unused letters."""
    left, arrow, out = equation.partition("->")
    if not arrow:  # the result has the letters that occur once, in alphabetical order
        letters = left.replace(",", "").replace("...", "")
        out = "..." * ("..." in left) + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    parts = left.split(",")
    if "..." not in left:
        return parts, out
    return spelled_out(parts, out, [tuple(x.shape) for x in operands])


def _diagonal_filled(x: Tensor, fill_value: float, wrap: bool = False) -> Tensor:
    """Fill the diagonal of a matrix by a view of it, which may itself be a view of another tensor."""
    if x.dim() != 2 or wrap:
        return x.fill_diagonal_(fill_value, wrap)
    x.diagonal().fill_(fill_value)
    return x


def _of_lists(name: str) -> Callable[..., list[Tensor]]:
    """Return a function that applies a method of tensors to each tensor of a list, with its operand."""
    method = getattr(Tensor, name)

    def each(tensors: Sequence[Tensor], *operands: object, **how: object) -> list[Tensor]:
        lists = [x if isinstance(x, (list, tuple)) else [x] * len(tensors) for x in operands]
        return [method(x, *given, **how) for x, *given in zip(tensors, *lists, strict=True)]

    return each


_FOREACH = (
    *("add", "sub", "mul", "div", "neg", "abs", "exp", "log", "sqrt", "lerp", "addcmul", "addcdiv"),
    *("clamp_min", "clamp_max", "reciprocal", "pow", "maximum", "minimum"),
)
SPELLED: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.bilinear: _bilinear,
    torch.ctc_loss: ctc_loss,
    functional.ctc_loss: ctc_loss,
    torch.einsum: _einsum,
    torch.gru_cell: _gru,
    torch.lstm_cell: _lstm,
    torch.rnn_tanh_cell: _plain(torch.tanh),
    torch.rnn_relu_cell: _plain(torch.relu),
    Tensor.fill_diagonal_: _diagonal_filled,
    **{
        getattr(torch, f"_foreach_{name}"): _of_lists(name)
        for one in _FOREACH
        for name in (one, f"{one}_")
        if hasattr(torch, f"_foreach_{name}") and hasattr(Tensor, name)
    },
}
"""Replacements of torch functions, with the same arguments."""
