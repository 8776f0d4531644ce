"""Replaces devices that forward() names: a capture has one device, and the plan assigns work to cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

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


@contextmanager
def modules_stay() -> Iterator[None]:
    """Let ``module.to(...)`` return the module as it is within the block, if it would only move the weights.

    Torch replaces the weights of a module that moves, which a program under capture cannot do.
    """
    moved: Callable[..., torch.nn.Module] = torch.nn.Module.to

    def to(self: torch.nn.Module, *args: object, **kwargs: object) -> torch.nn.Module:
        leaves = [x for x in (*args, *kwargs.values()) if x is not None]
        types = {
            x if isinstance(x, torch.dtype) else x.dtype
            for x in leaves
            if isinstance(x, torch.dtype | torch.Tensor)
        }
        own = {x.dtype for x in (*self.parameters(), *self.buffers()) if x.is_floating_point()}
        return self if own <= types or not types else moved(self, *args, **kwargs)

    stays = {"to": to, "cuda": lambda self, *_: self, "cpu": lambda self: self}
    before = {name: getattr(torch.nn.Module, name) for name in stays}
    for name, function in stays.items():
        setattr(torch.nn.Module, name, function)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(torch.nn.Module, name, function)


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _is_accelerator(value: object) -> bool:
    if isinstance(value, torch.device):
        return value.type in ACCELERATORS
    return isinstance(value, str) and value.partition(":")[0] in ACCELERATORS
