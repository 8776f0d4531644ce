"""Replaces the CTC loss in a captured program by a gather, one operator for all frames, and a reduction.

``torch.ctc_loss`` creates tensors whose sizes depend on the values of the lengths. Here every sequence is
padded to the longest length that its arguments allow; the true length of a sequence only selects the frame
and the states of its result.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

Lengths = Tensor | list[int] | tuple[int, ...]


@torch.library.custom_op("wse_sim::ctc", mutates_args=())
def ctc(emissions: Tensor, skips: Tensor) -> Tensor:
    """Return the CTC loss of every sequence.

    `emissions` are (frames, sequences, states), `skips` are (sequences, states). The operator has no
    implementation, because a capture needs only the shape of its result.
    """
    raise NotImplementedError("wse_sim::ctc has no values")


@ctc.register_fake
def _(emissions: Tensor, skips: Tensor) -> Tensor:
    return emissions.new_empty(emissions.shape[1])


def _kept(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])


def _gradient(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
    (emissions,) = ctx.saved_tensors  # type: ignore[attr-defined]
    return torch.empty_like(emissions), None


ctc.register_autograd(_gradient, setup_context=_kept)


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    reduction: int | str = 1,
    zero_infinity: bool = False,
) -> Tensor:
    """Compute :func:`torch.ctc_loss` as a gather, a sum over all alignments, and the requested reduction.

    `log_probs` are (frames, sequences, classes), or (frames, classes) for one sequence. `reduction` is
    torch's number or name: 0 or "none", 1 or "mean", 2 or "sum".
    """
    alone = log_probs.dim() == 2
    scores = log_probs.unsqueeze(1) if alone else log_probs
    labels = _rows(targets, target_lengths, scores.shape[1])
    spread = torch.stack([torch.full_like(labels, blank), labels], -1).flatten(1)
    states = functional.pad(spread, (0, 1), value=blank)
    emissions = scores.gather(2, states.expand(scores.shape[0], -1, -1))
    skips = (states != blank) & (states != functional.pad(states, (2, 0), value=blank)[:, :-2])
    loss = ctc(emissions, skips)
    if zero_infinity:
        loss = torch.where(loss == float("inf"), torch.zeros_like(loss), loss)
    if reduction in (1, "mean"):
        sizes = torch.as_tensor(target_lengths).to(loss.dtype).clamp_min(1)
        return (loss / sizes).mean()
    if reduction in (2, "sum"):
        return loss.sum()
    return loss[0] if alone else loss


def _rows(targets: Tensor, lengths: Lengths, sequences: int) -> Tensor:
    """Return labels as (sequences, labels); concatenated labels are cut into rows of the longest length."""
    if targets.dim() == 2:
        return targets
    if sequences == 1:
        return targets.unsqueeze(0)
    count = targets.shape[0]
    longest = max(lengths) if isinstance(lengths, (list, tuple)) else -(-count // sequences)
    return functional.pad(targets, (0, max(0, sequences * longest - count)))[: sequences * longest].unflatten(
        0, (sequences, longest)
    )
