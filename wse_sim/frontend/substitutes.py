"""Makes substitutes for results that torch rejects, so that the doctor can examine the rest of the model.

A product gets an operand of the size that its weight requires, a reshape returns the requested shape, and a
selection by an unknown mask selects all elements. Any other result, also that of a module whose Python code
fails, is assumed to have the shape of an operand. These are guesses: the obstacle is certain, but everything
after it is examined with a guess.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn import functional
from torch.utils import _pytree as pytree

from wse_sim.errors import ModelError, WseError
from wse_sim.frontend.classify import PRODUCTS
from wse_sim.frontend.faults import sentence_of
from wse_sim.frontend.obstacles import met
from wse_sim.frontend.watch import forward_again, stand_in

Seen = Callable[[], int]
Function = Callable[..., Any]
Named = Mapping[str, Any]

_CONVOLUTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)
_PRODUCTS = (torch.matmul, torch.bmm, torch.mm, Tensor.matmul, Tensor.__matmul__, Tensor.bmm, Tensor.mm)
_SHAPES = (Tensor.view, Tensor.reshape, torch.reshape)
_ARRAYS = (Tensor.numpy, Tensor.__array__)


def products_seen() -> int:
    """Return the number of matrix products in the program under capture so far."""
    mode = get_proxy_mode()
    nodes = mode.tracer.graph.nodes if mode is not None else ()
    return sum(str(node.target).split(".")[1] in PRODUCTS for node in nodes if "." in str(node.target))


def substitute(func: Function, args: Sequence[Any], kwargs: Named) -> object:
    """Return a substitute for the result of a call that failed; None if no operand is a tensor.

    Raises
    ------
    Exception
        If torch also rejects the call with repaired operands.
    """
    first = _first(args, kwargs)
    if first is None:
        return None
    if func in _ARRAYS:
        return np.zeros(tuple(first.shape), "float32" if first.is_floating_point() else "int64")
    if func is functional.linear or func in _CONVOLUTIONS:
        weight = args[1] if len(args) > 1 else kwargs["weight"]
        return func(_fitting(func, first, weight, args, kwargs), *args[1:], **kwargs)
    if func in _PRODUCTS and isinstance(args[1], Tensor):
        return _made_of(first, (*first.shape[:-1], args[1].shape[-1]))
    if func in _SHAPES:
        return _made_of(first, _asked(first, args[1:]))
    tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    largest = max(tensors, key=Tensor.numel)
    return _made_of(largest, tuple(largest.shape))


def _first(args: Sequence[Any], kwargs: Named) -> Tensor | None:
    return next((x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)), None)


def _fitting(func: Function, x: Tensor, weight: Tensor, args: Sequence[Any], kwargs: Named) -> Tensor:
    """Return an operand with the features or channels that a weight requires."""
    if func is functional.linear:
        return _made_of(x, (*x.shape[:-1], weight.shape[1]), weight.dtype)
    groups = args[6] if len(args) > 6 else kwargs.get("groups", 1)
    places = weight.dim() - 2
    return _made_of(x, (x.shape[0], weight.shape[1] * groups, *x.shape[-places:]), weight.dtype)


def _made_of(x: Tensor, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
    """Return a tensor of a given shape that depends on x, so that later results still depend on it."""
    made = x.new_zeros(shape, dtype=dtype or x.dtype)
    return made + x.sum().to(made.dtype) if x.is_floating_point() and made.is_floating_point() else made


def _asked(x: Tensor, sizes: Sequence[Any]) -> tuple[int, ...]:
    flat = sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    rest = max(1, prod(int(n) for n in flat if n != -1))
    return tuple(int(n) if n != -1 else max(1, x.numel() // rest) for n in flat)


def last_operator() -> torch.fx.Node | None:
    """Return the last operator of the program under capture; None outside a capture."""
    mode = get_proxy_mode()
    return next(iter(reversed(mode.tracer.graph.nodes)), None) if mode is not None else None


def forget_after(last: torch.fx.Node | None) -> None:
    """Remove the operators after `last`, which a failed call left behind."""
    mode = get_proxy_mode()
    if mode is None or last is None:
        return
    for node in reversed(list(mode.tracer.graph.nodes)):
        if node is last or node.users:
            return
        mode.tracer.graph.erase_node(node)


@contextmanager
def modules_go_on(module: torch.nn.Module, seen: Seen, latest: Callable[[], Tensor | None]) -> Iterator[None]:
    """Let modules whose forward() raises within the block report an obstacle and return a substitute.

    A submodule returns zeros of the shape of its first operand. The module itself returns the `latest`
    result, so that the part before the fault is examined. `seen` counts the matrix products of the capture.
    """

    def going_on(part: torch.nn.Module, forward: Function) -> Function:
        @stand_in
        @functools.wraps(forward)
        def inner(*args: object, **kwargs: object) -> object:
            last = last_operator()
            try:
                return forward(*args, **kwargs)
            except (WseError, MemoryError):
                raise
            except Exception as fault:
                like = _first(args, kwargs) if part is not module else latest()
                if like is None:
                    raise
                if part is not module:
                    forget_after(last)
                met(ModelError(sentence_of(fault, type(part).__name__)), "capture", products=seen())
                return _made_of(like, tuple(like.shape)) if part is not module else like

        return inner

    changed = [
        part
        for part in module.modules()
        if "forward" not in vars(part) and not isinstance(part, torch.jit.ScriptModule)
    ]
    for part in changed:
        part.forward = going_on(part, part.forward)  # type: ignore[method-assign]
    try:
        yield
    finally:
        forward_again([*module.modules(), *changed])
