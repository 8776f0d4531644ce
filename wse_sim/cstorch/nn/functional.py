"""Replacements for torch functions that read tensor values, written without reads."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from wse_sim.cstorch import faults


def one_hot(array: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """Return one-hot vectors of integers (int64, shape ``(..., num_classes)``).

    Raises:
        ProgramError: the number of classes is not given; to find it, values would have to be read.
    """
    if num_classes < 1:
        raise faults.program_error(
            f"one_hot: num_classes={num_classes} would be found from values, which are not known; give the number of classes"
        )
    return (array.unsqueeze(-1) == torch.arange(num_classes, device=array.device)).to(torch.int64)


def sparse_matmul(input: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:  # noqa: A002
    """Return the product of each token with the weights of the expert that it was given.

    Rows are sorted by expert and multiplied in one grouped product, so each costs one expert.

        out[..., o] = sum over i of input[..., i] * weights[o, indices[...], i]

    Parameters
    ----------
    input
        ``(..., features)``: a row for each choice of a token.
    indices
        ``(...)``: the expert of each row.
    weights
        ``(out_features, experts, features)``.
    """
    rows, chosen = input.reshape(-1, input.shape[-1]), indices.reshape(-1).to(torch.int64)
    if rows.shape[-1] == 1 or weights.shape[0] % 8 or rows.shape[-1] % 8:
        # Narrower than a grouped product may be: biases, small tests.
        picked = weights.permute(1, 0, 2)[chosen]
        return (picked * rows.unsqueeze(1)).sum(-1).reshape(*indices.shape, -1)
    order = torch.argsort(chosen)
    ends = torch.cumsum(one_hot(chosen, weights.shape[1]).sum(0), 0).to(torch.int32)
    grouped = F.grouped_mm(rows[order], weights.permute(1, 2, 0), offs=ends)
    return grouped[torch.argsort(order)].reshape(*indices.shape, -1)


def sparse_act_matmul(
    input: torch.Tensor,  # noqa: A002
    mask: torch.Tensor,
    weight: torch.Tensor,
    dense_capacity: int | None = None,
) -> torch.Tensor:
    """Multiply the tokens whose mask is 1; the result is 0 for the others.

    Parameters
    ----------
    input
        ``(batch, tokens, features)``.
    mask
        ``(batch, tokens)`` of zeros and ones.
    weight
        ``(out_features, features)``.
    dense_capacity
        Tokens for which the machine leaves room; the result does not depend on it, and the simulation counts all tokens.
    """
    return F.linear(input, weight) * mask.unsqueeze(-1).to(input.dtype)
