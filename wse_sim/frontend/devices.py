"""Replaces devices that forward() names: a capture has one device, and the plan assigns work to cores."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils import _pytree as pytree

ACCELERATORS = frozenset(["cuda", "hip", "mps", "xpu", "npu", "hpu", "xla", "mtia"])
_MOVES = (torch.Tensor.cuda, torch.Tensor.xpu)


def on_one_device(
    func: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object], here: torch.device
) -> tuple[tuple[object, ...], dict[str, object]] | None:
    """Replace every accelerator in the arguments of a call by the device `here`; None if there is none.

    Example
    -------
    >>> on_one_device(torch.zeros, (2,), {"device": "cuda:1"}, torch.device("cpu"))
    ((2,), {'device': device(type='cpu')})
    """
    if func is torch.device or (not kwargs and func not in _MOVES and all(map(_is_tensor, args))):
        return None
    leaves, spec = pytree.tree_flatten((args, kwargs))
    if func not in _MOVES and not any(map(_is_accelerator, leaves)):
        return None
    placed = [here if _is_accelerator(x) else x for x in leaves]
    args, kwargs = pytree.tree_unflatten(placed, spec)
    return args, kwargs


def is_move(func: Callable[..., object]) -> bool:
    """Return whether a method moves a tensor to an accelerator and does nothing else."""
    return func in _MOVES


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _is_accelerator(value: object) -> bool:
    if isinstance(value, torch.device):
        return value.type in ACCELERATORS
    return isinstance(value, str) and value.partition(":")[0] in ACCELERATORS
