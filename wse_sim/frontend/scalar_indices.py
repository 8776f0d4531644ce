"""Takes and writes the rows that scalar tensors name, such as ``x[scores.argmax()]``, whose values torch would read.

The scalars become lists of one place. In PyTorch such a row shares memory with the whole, here it is a copy, so
a later write in place to it is refused, unless it is written back (``x[i] += 1``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._export.non_strict_utils import _NonStrictTorchFunctionHandler as _Handler

from wse_sim.errors import ModelError


class ScalarRows:
    """The rows that scalar tensors name in one capture; `line` returns the user's line."""

    def __init__(self, line: Callable[[], str]) -> None:
        self.taken: dict[int, tuple[Tensor, int, str]] = {}
        self.line = line

    def call(self, func: Callable[..., object], args: Sequence[Any]) -> tuple[object] | None:
        """Return the result of an indexing by scalar tensors; None for any other call."""
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        scalars = _scalars(index)
        if not scalars:
            return None
        whole = args[0][tuple(slice(None) if isinstance(part, Tensor) else part for part in index)]
        dims = _dims_of(index, whole.dim())
        rows = whole.movedim(dims, tuple(range(len(dims))))
        places = tuple(scalar.reshape(1) for scalar in scalars)
        if func is Tensor.__setitem__:
            self.taken.pop(id(args[2]), None)
            rows[places] = args[2]
            return (None,)
        row = rows[places][0]
        self.taken[id(row)] = row, row._version, self.line()
        return (row,)

    def check(self) -> None:
        """Check that no row was written in place without being written back.

        Raises
        ------
        ModelError
            With the line that took the row.
        """
        for row, version, line in self.taken.values():
            if row._version != version:
                raise ModelError(
                    f"{line}: a row that a tensor names is written in place, which a capture does not see; "
                    "write it by its index, x[i] = ..."
                )


@contextmanager
def scalars_stay() -> Iterator[None]:
    """Let torch's tracer pass on scalar tensors as indices within the block; it would read their values."""
    override = _Handler._override

    def passed_on(handler: _Handler, func: object, args: Sequence[Any], kwargs: object) -> object:
        if func is Tensor.__getitem__ and _scalars(args[1] if isinstance(args[1], tuple) else (args[1],)):
            return func, args, kwargs
        return override(handler, func, args, kwargs)

    _Handler._override = passed_on
    try:
        yield
    finally:
        _Handler._override = override


def _scalars(index: Sequence[object]) -> list[Tensor]:
    """Return the integer scalars of an index; none if it has other tensors or lists."""
    found = [part for part in index if isinstance(part, Tensor)]
    if any(x.dim() or x.dtype is torch.bool or x.is_floating_point() for x in found):
        return []
    plain = (Tensor, int, slice, type(None), type(...))
    return found if all(isinstance(part, plain) for part in index) else []


def _dims_of(index: Sequence[object], rank: int) -> tuple[int, ...]:
    """Return the dimensions of a result of `rank` dimensions at which an index with whole dimensions has tensors."""
    kept = [part for part in index if type(part) is not int]
    if not any(part is ... for part in kept):
        kept.append(...)
    at = next(i for i, part in enumerate(kept) if part is ...)
    kept[at : at + 1] = [slice(None)] * (rank - len(kept) + 1)
    return tuple(place for place, part in enumerate(kept) if isinstance(part, Tensor))
