"""Errors for calls of torch that do not apply to the wafer: pickled models, batches divided over GPUs."""

from __future__ import annotations

from typing import Any

import torch

from wse_sim.cstorch import faults
from wse_sim.cstorch.tensors import WaferTensor

_plain_save = torch.save
_DIVIDERS: dict[type[torch.nn.Module], Any] = {
    kind: kind.__init__ for kind in (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
}


def _saved(obj: object, *args: Any, **kwargs: Any) -> None:
    """Call ``torch.save``, but refuse complete models on the wafer."""
    if isinstance(obj, torch.nn.Module) and any(isinstance(p, WaferTensor) for p in obj.parameters()):
        raise faults.program_error(
            "torch.save of a whole model writes the wafer's tensors with it; "
            "save model.state_dict() with cstorch.save in a function under @cstorch.checkpoint_closure"
        )
    _plain_save(obj, *args, **kwargs)


def _divided(self: torch.nn.Module, *args: object, **kwargs: object) -> None:
    raise faults.program_error(
        f"{type(self).__name__} divides a batch over GPUs, and the systems of a cluster divide it by themselves; "
        "leave it out and set num_csx"
    )


def enter() -> None:
    """Reject these calls until :func:`leave` is called."""
    torch.save = _saved
    for kind in _DIVIDERS:
        kind.__init__ = _divided  # type: ignore[method-assign,assignment]


def leave() -> None:
    """Undo :func:`enter`."""
    torch.save = _plain_save
    for kind, plain in _DIVIDERS.items():
        kind.__init__ = plain  # type: ignore[method-assign]
