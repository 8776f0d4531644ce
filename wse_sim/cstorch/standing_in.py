"""Replacements of operators that torch cannot run on tensors without values.

* If the lengths of an operator's internal results depend on values, the replacement returns their maximum
  length: a script sees the same shapes.
* In the lowering, an operator that torch's capture rejects is a marker with the recorded shapes; it has no
  rule, so its price is that of the bytes that it moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

_aten = torch.ops.aten


@torch.library.custom_op("wse_sim::unruled", mutates_args=())
def _unruled(given: list[torch.Tensor], sizes: list[int], ranks: list[int], name: str) -> list[torch.Tensor]:
    """Return zeros of the stated sizes; `sizes` are those of all results, `ranks` are the dimensions of each."""
    made, start = [], 0
    for rank in ranks:
        made.append(given[0].new_zeros(sizes[start : start + rank]))
        start += rank
    return made


_unruled.register_fake(_unruled._init_fn)


def made_or_moved(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], recorded: object
) -> object:
    """Return the result of an operator under capture; where torch refuses it, a mark of the shapes that were
    `recorded`.
    """
    try:
        return func(*args, **kwargs)
    except Exception:  # of any type: the recording shows that the operator runs
        leaves, spec = pytree.tree_flatten(recorded)
        given = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        shapes = [tuple(x.shape) for x in leaves if isinstance(x, torch.Tensor)]
        if not given or not shapes or func._schema.is_mutable:
            raise
        sizes = [size for shape in shapes for size in shape]
        made = iter(torch.ops.wse_sim.unruled(given, sizes, [len(s) for s in shapes], func._schema.name))
        return pytree.tree_unflatten([next(made) if isinstance(x, torch.Tensor) else x for x in leaves], spec)


def without_values(func: OpOverload, args: Sequence[Any]) -> object:
    """Return a result of the longest sizes that the arguments allow; None for operators that are not known here."""
    if func in (_aten._ctc_loss.default, _aten._ctc_loss.Tensor):
        scores, targets = args[:2]
        steps, samples = scores.shape[:2]
        longest = targets.shape[1] if targets.dim() == 2 else targets.shape[0]
        return scores.new_empty(samples), scores.new_empty(samples, steps, 2 * longest + 1)
    if func in (_aten._ctc_loss_backward.default, _aten._ctc_loss_backward.Tensor):
        return torch.empty_like(args[1])
    return None
