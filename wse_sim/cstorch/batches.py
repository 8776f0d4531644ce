"""Determines the number of samples in a batch."""

from __future__ import annotations

import torch
from torch.utils import _pytree as pytree


def infer_batch_size(batch: object) -> int | None:
    """Return the samples in a batch: the first dimension on which its tensors agree; None if they do not or there is
    none.
    """
    sizes = {int(t.shape[0]) for t in pytree.tree_leaves(batch) if isinstance(t, torch.Tensor) and t.ndim > 0}
    return sizes.pop() if len(sizes) == 1 else None
