"""Merge consecutive elementwise links into one generated kernel: one pass over the operands, one result."""

from __future__ import annotations

import dataclasses

from wse_sim.graph import Kernel, Tensor, frozen
from wse_sim.kernels.contract.family import Link


def one_pass(first: Link, second: Link, reader: Kernel, result: Tensor) -> Kernel:
    """Return the kernel that does `first` and then `second`, replacing `reader`, the kernel of the second
    link.

    `result` is the output of the reader: its last dimension gives the columns.
    """
    elements, cols = reader.dims["elements"], max(1, result.shape[-1] if result.shape else 1)
    return dataclasses.replace(
        reader,
        family="generated",
        dims=frozen(elements=elements, rows=max(1, elements // cols), cols=cols),
        attrs=frozen(ops=f"{first.ops},{second.ops}", inputs=first.operands + second.operands - 1),
    )
