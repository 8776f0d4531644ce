"""Functions whose torch versions read values, written without a read."""

from __future__ import annotations

import torch

from wse_sim.cstorch import faults


def one_hot(array: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """One-hot vectors of whole numbers (int64, shape ``(..., num_classes)``).

    Raises:
        ProgramError: the number of classes is not given; to find it, values would have to be read.
    """
    if num_classes < 1:
        raise faults.program_error(
            f"one_hot: num_classes={num_classes} would be found from values, which are not known; give the number of classes"
        )
    return (array.unsqueeze(-1) == torch.arange(num_classes, device=array.device)).to(torch.int64)
