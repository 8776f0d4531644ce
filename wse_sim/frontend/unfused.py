"""Replaces functions of torch that a capture cannot follow by their definition while a program is captured.

``flex_attention``, which torch compiles on its own: scores, what the user's functions make of them, softmax, values.  Where
scores are left alone it is torch's scaled product with a mask.

Packed sequences, whose number of rows depends on values: they are padded, as a machine of fixed shapes runs them, and a note
says so.  All sequences take as many steps as the longest may have.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import _VF, Tensor
from torch.nn import functional
from torch.nn.attention import flex_attention as flex

PADDED = "packed: sequences of a batch are padded to its longest; torch leaves the steps behind the end of shorter ones out"


def _attention(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Callable[..., Tensor], block_mask: tuple[Any, ...],
    scale: float, *_: object,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute flex_attention: (results, log-sum-exp, largest scores)."""
    heads, rows, cols = query.shape[1], query.shape[-2], key.shape[-2]
    if key.shape[1] != heads:
        key, value = (x.repeat_interleave(heads // x.shape[1], 1) for x in (key, value))
    places = (
        torch.arange(query.shape[0]).view(-1, 1, 1, 1),
        torch.arange(heads).view(-1, 1, 1),
        torch.arange(rows).view(-1, 1),
        torch.arange(cols),
    )
    seen = torch.as_tensor(block_mask[-1](*places))
    scores = query @ key.mT * scale
    changed = score_mod(scores, *places)
    if changed is scores:
        out = functional.scaled_dot_product_attention(query, key, value, seen.expand(-1, -1, rows, cols) if seen.dim() > 2 else seen.expand(rows, cols), scale=scale)  # fmt: skip
    else:
        changed = changed.masked_fill(~seen.expand(changed.shape), float("-inf"))
        out = changed.softmax(-1) @ value
    return out, changed.logsumexp(-1), changed.amax(-1)


class _Padded:
    """A packed sequence in padded form: rows (steps x batch), with the complete batch in every step."""

    def __init__(self) -> None:
        self.lengths: Tensor | None = None
        self.used = False

    def pack(self, x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Any]:
        """Return the rows of all steps, and how many each has."""
        self.lengths, self.used = lengths, True
        rows = x.transpose(0, 1) if batch_first else x
        return rows.flatten(0, 1), _Sizes([rows.shape[1]] * rows.shape[0])

    def pad(
        self, rows: Tensor, sizes: Sequence[int], batch_first: bool, value: float, total: int | None
    ) -> tuple[Tensor, Tensor]:
        """Return separate steps and samples, with the original lengths."""
        x = rows.unflatten(0, (len(sizes), sizes[0]))
        lengths = self.lengths if self.lengths is not None else torch.full((sizes[0],), len(sizes))
        return (x.transpose(0, 1) if batch_first else x), lengths

    def layer(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a recurrent layer so that it takes packed sequences as padded ones."""

        def inner(x: Tensor, sizes: Any, *rest: Any) -> Any:
            if not isinstance(sizes, _Sizes):
                return run(x, sizes, *rest)
            hidden, weights, *how = rest
            out, *states = run(x.unflatten(0, (len(sizes), sizes[0])), hidden, weights, *how, False)
            return out.flatten(0, 1), *states

        return inner


class _Sizes(list[int]):
    """The rows of each step, as a list, because a capture would not know the values of a tensor."""

    device = torch.device("cpu")

    def size(self, dim: int = 0) -> int:
        """Return the number of steps."""
        return len(self)

    def is_pinned(self) -> bool:
        """Return False: the sizes are not in memory that could be pinned."""
        return False

    def to(self, *_: object, **__: object) -> _Sizes:
        """Return the object itself: it is on no device."""
        return self


@contextlib.contextmanager
def defined() -> Iterator[list[str]]:
    """Run these functions by their definition within the block; yields notes on those that were used."""
    notes: list[str] = []
    padded = _Padded()
    held: Any = _VF
    changed: dict[str, Any] = {"_pack_padded_sequence": padded.pack, "_pad_packed_sequence": padded.pad}
    changed |= {name: padded.layer(getattr(_VF, name)) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")}
    module: Any = flex
    before = module.flex_attention_hop, module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
    module.flex_attention_hop, module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = _attention, True
    vars(held).update(changed)
    try:
        yield notes
        if padded.used:
            notes.append(PADDED)
    finally:
        for name in changed:
            del vars(held)[name]
        module.flex_attention_hop, module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = before
