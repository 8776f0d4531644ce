"""Makes ``type(x) is torch.Tensor`` true in a user's file during a capture, as in eager mode.

Captured tensors are instances of torch's own subclasses, so ``isinstance`` recognises them, but ``type()``
does not. While a module is captured, `type` in the files of its classes is a replacement that returns
``torch.Tensor`` for them.
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
    """A replacement of the builtin ``type`` that returns ``torch.Tensor`` for captured tensors."""


def _is_torch(name: str) -> bool:
    return name.partition(".")[0] in ("torch", "builtins", "wse_sim")


@contextlib.contextmanager
def types_as_eager(module: torch.nn.Module) -> Iterator[None]:
    """Set `type` to :class:`EagerType` in the files of a module's classes within the block.

    Torch's own files and files that define `type` themselves do not change.
    """
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
