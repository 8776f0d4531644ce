"""Prepares modules and arguments for a capture.

Tensors on "meta" become fake tensors on "cpu", and every input becomes a separate tensor.
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from wse_sim.frontend.containers import hold
from wse_sim.frontend.watch import quiet

T = TypeVar("T")


def as_fake(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Return a copy of a module on "meta" with fake tensors on "cpu", and its arguments likewise.

    Tied weights stay tied. If nothing is on "meta", the module and its arguments are returned as they are.
    The user's module is never changed.
    """
    tensors = [*module.parameters(), *module.buffers()]
    if not any(t.device.type == "meta" for t in tensors) and not _any_meta((args, kwargs)):
        return module, args, kwargs
    module = copy.deepcopy(module)
    made: dict[int, Any] = {}

    def fake(x: Any) -> Any:
        """Return the fake tensor on "cpu" for a tensor, the same one in every call."""
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) not in made:
            new = FakeTensor(mode, torch.empty_like(x, device="meta"), cpu)
            if isinstance(x, torch.nn.Parameter):  # as nn.Parameter does, which would copy the tensor
                new.requires_grad_(x.requires_grad)._is_param = True
            made[id(x)] = new
        return made[id(x)]

    mode, cpu = FakeTensorMode(allow_non_fake_inputs=True), torch.device("cpu")
    for part in module.modules():
        for kept in (part._parameters, part._buffers):
            kept.update({key: fake(value) for key, value in kept.items()})
        for key, value in list(vars(part).items()):
            if key in ("_parameters", "_buffers", "_modules") or not _any_meta(value):
                continue
            if isinstance(value, torch.Tensor):  # torch converts buffers to its fake mode, but not attributes
                delattr(part, key)
                part.register_buffer(key, fake(value), persistent=False)
            else:
                hold(part, key, pytree.tree_map(fake, value))
    args, kwargs = pytree.tree_map(fake, (args, kwargs))
    return module, args, kwargs


def run_without_values(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """Return the result of a module without a capture, on fake tensors; a copy of the module runs.

    Raises
    ------
    Exception
        What forward() raises, and what torch raises if a value is read.
    """
    on_meta = pytree.tree_map_only(torch.Tensor, lambda x: x.to("meta"), (args, kwargs))
    fake, given, named = as_fake(copy.deepcopy(module).to("meta"), *on_meta)
    with torch.no_grad(), quiet():
        return fake(*given, **named)


def told_apart(values: T) -> T:
    """Return the arguments with repeated tensors copied, because torch would take them for one input."""
    seen: set[int] = set()

    def once(x: object) -> object:
        if not isinstance(x, torch.Tensor) or id(x) not in seen:
            seen.add(id(x))
            return x
        return x.detach().clone()

    return pytree.tree_map(once, values)


def with_more_samples(values: T, factor: int) -> T | None:
    """Return arguments with `factor` times as many samples; None if some cannot be repeated.

    The number of samples is the first dimension of the first tensor. Tensors of the same first dimension are
    repeated, others are not.
    """
    tensors = [x for x in pytree.tree_leaves(values) if isinstance(x, torch.Tensor)]
    first = next((x for x in tensors if x.dim()), None)
    if first is None or any(type(x) is not torch.Tensor or x.is_sparse for x in tensors):
        return None
    samples = first.shape[0]

    def repeated(x: object) -> object:
        if not isinstance(x, torch.Tensor) or not x.dim() or x.shape[0] != samples:
            return x
        return torch.cat([x.detach()] * factor)

    return pytree.tree_map(repeated, values)


def _any_meta(values: object) -> bool:
    return any(isinstance(x, torch.Tensor) and x.device.type == "meta" for x in pytree.tree_leaves(values))
