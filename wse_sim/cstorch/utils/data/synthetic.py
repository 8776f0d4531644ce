"""Synthetic samples of a given structure."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence

import torch
from torch.utils import _pytree as pytree

from wse_sim.cstorch import faults

# A tensor (every sample the same), a function of the sample's index, a TensorSpec, or a structure of these.
Leaf = torch.Tensor | Callable[[int], torch.Tensor]
SampleSpec = Leaf | Sequence["SampleSpec"] | Mapping[str, "SampleSpec"]
"""A structure whose leaves are tensors or functions of the index."""


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """Random values of a shape: integers in ``[low, high)`` or normal ones."""

    shape: Sequence[int]
    dtype: torch.dtype = torch.float32
    low: int = 0
    high: int = 2
    seed: int = 0

    def __call__(self, index: int) -> torch.Tensor:
        draw = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        if self.dtype.is_floating_point:
            return torch.randn(tuple(self.shape), generator=draw).to(self.dtype)
        return torch.randint(self.low, self.high, tuple(self.shape), generator=draw).to(self.dtype)


class SyntheticDataset(torch.utils.data.Dataset):
    """Samples made from a specification.

    Args:
        sample_spec: a structure whose leaves are tensors, functions of the index or :class:`TensorSpec`.
        num_samples: the length; None stands for as many as anyone asks for.
    """

    def __init__(self, sample_spec: SampleSpec, num_samples: int | None = None) -> None:
        if num_samples is not None and num_samples < 1:
            raise faults.program_error(f"SyntheticDataset: num_samples={num_samples} must be at least 1")
        leaves = pytree.tree_leaves(sample_spec)
        wrong = [x for x in leaves if not isinstance(x, torch.Tensor) and not callable(x)]
        if not leaves or wrong:
            what = f"a {type(wrong[0]).__name__}" if wrong else "nothing"
            raise faults.program_error(
                f"SyntheticDataset: the specification holds {what}; leaves are tensors or functions of the index"
            )
        self.sample_spec = sample_spec
        self.num_samples = num_samples

    def __len__(self) -> int:
        return sys.maxsize if self.num_samples is None else self.num_samples

    def __getitem__(self, index: int) -> object:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return pytree.tree_map(
            lambda leaf: leaf if isinstance(leaf, torch.Tensor) else leaf(index), self.sample_spec
        )
