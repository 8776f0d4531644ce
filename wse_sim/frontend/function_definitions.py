"""Replaces functions of torch that a capture cannot follow by their definition while a program is captured.

``flex_attention``, which torch compiles separately, becomes scores, the user's functions of them, a softmax
and a product with the values. If the scores are not changed, it becomes torch's scaled dot-product attention
with a mask. An index by tensors inside ``torch.vmap``, as in functions of masks, is the operator ``index``.

Packed sequences, whose number of rows depends on values, are padded, as on a machine with fixed shapes, and a
note states this. All sequences have as many steps as the longest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch._dynamo._trace_wrapped_higher_order_op as index_hop
from torch import _VF, Tensor
from torch.nn import functional
from torch.nn.attention import flex_attention as flex

PADDED = "packed: sequences of a batch are padded to its longest; torch skips the steps after the end of shorter ones"


def _attention(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Callable[..., Tensor], block_mask: tuple[Any, ...],
    scale: float, *_: object,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the results of flex_attention: outputs, log-sum-exp and largest scores."""
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
        """Return the rows of all steps, and the number of rows of each step."""
        self.lengths, self.used = lengths, True
        rows = x.transpose(0, 1) if batch_first else x
        return rows.flatten(0, 1), _Sizes([rows.shape[1]] * rows.shape[0])

    def pad(
        self, rows: Tensor, sizes: Sequence[int], batch_first: bool, value: float, total: int | None
    ) -> tuple[Tensor, Tensor]:
        """Return the rows as a padded tensor of steps and samples, with the original lengths."""
        x = rows.unflatten(0, (len(sizes), sizes[0]))
        lengths = self.lengths if self.lengths is not None else torch.full((sizes[0],), len(sizes))
        return (x.transpose(0, 1) if batch_first else x), lengths

    def layer(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a recurrent layer so that it accepts packed sequences in padded form."""

        def inner(x: Tensor, sizes: Any, *rest: Any) -> Any:
            if not isinstance(sizes, _Sizes):
                return run(x, sizes, *rest)
            hidden, weights, *how = rest
            out, *states = run(x.unflatten(0, (len(sizes), sizes[0])), hidden, weights, *how, False)
            return out.flatten(0, 1), *states

        return inner


class _Sizes(list[int]):
    """The number of rows of each step, as a list, because a capture would not know the values of a tensor."""

    device = torch.device("cpu")

    def size(self, dim: int = 0) -> int:
        """Return the number of steps."""
        return len(self)

    def is_pinned(self) -> bool:
        """Return False: the sizes are not in pinned memory."""
        return False

    def to(self, *_: object, **__: object) -> _Sizes:
        """Return the object itself, because it is on no device."""
        return self


@contextlib.contextmanager
def defined() -> Iterator[list[str]]:
    """Run these functions by their definition within the block; the yielded list receives notes."""
    notes: list[str] = []
    padded = _Padded()
    held: Any = _VF
    changed: dict[str, Any] = {"_pack_padded_sequence": padded.pack, "_pad_packed_sequence": padded.pad}
    changed |= {name: padded.layer(getattr(_VF, name)) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")}
    module: Any = flex
    before = module.flex_attention_hop, module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
    module.flex_attention_hop, module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = _attention, True
    vars(held).update(changed)
    names = vars(index_hop)
    index, names["mod_index"] = names["mod_index"], torch.ops.aten.index
    try:
        yield notes
        if padded.used:
            notes.append(PADDED)
    finally:
        names["mod_index"] = index
        for name in changed:
            del vars(held)[name]
        module.flex_attention_hop, module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = before
