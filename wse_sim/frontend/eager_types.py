"""Makes ``type(x) is torch.Tensor`` in a user's file true during a capture.

Captured tensors are of classes of torch's own, which ``isinstance`` knows as tensors, and ``type()`` does not.  While a
module is captured, the files of its classes see a `type` that answers as in eager mode.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor


class _AsEager(type):
    def __call__(cls, *args: object, **kwargs: object) -> object:
        if len(args) == 1 and type(args[0]) in (FunctionalTensor, FakeTensor):
            return torch.Tensor
        return type.__call__(type, *args, **kwargs)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, type)

    def __subclasscheck__(cls, value: type) -> bool:
        return issubclass(value, type)


class EagerType(type, metaclass=_AsEager):
    """A replacement of the builtin ``type`` that reports captured tensors as tensors."""


def _is_torch(name: str) -> bool:
    return name.partition(".")[0] in ("torch", "builtins", "wse_sim")


@contextlib.contextmanager
def types_as_eager(module: torch.nn.Module) -> Iterator[None]:
    """Let the files of a module's classes see :class:`EagerType`, unless they are torch's or define `type` themselves."""
    names = {base.__module__ for part in module.modules() for base in type(part).__mro__}
    files = [vars(sys.modules[name]) for name in sorted(names) if name in sys.modules and not _is_torch(name)]
    changed = [names_of_file for names_of_file in files if "type" not in names_of_file]
    for names_of_file in changed:
        names_of_file["type"] = EagerType
    try:
        yield
    finally:
        for names_of_file in changed:
            names_of_file.pop("type", None)
