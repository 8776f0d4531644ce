"""Types that several files use: arguments of users, and plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Union

if TYPE_CHECKING:
    import torch
    from torch.utils.hooks import RemovableHandle

T = TypeVar("T")

Plain = str | int | float | bool | None

MicroBatch = str | int | dict[str, Any]
"""A micro-batch size: "auto", "explore", "disable", a number, or limits to explore."""


class Watcher(Protocol):
    """A listener, which attaches hooks to a model."""

    def watch(self, model: torch.nn.Module) -> Iterable[RemovableHandle]:
        """Attach hooks, which the end of the execution removes."""


class StepSchedule(Protocol):
    """A schedule of steps."""

    def match(self, step: int) -> bool:
        """Return whether a step is one of them."""


class Writer(Protocol):
    """Receives summaries: TensorBoard's writer, or one with the same methods."""

    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None) -> object:
        """Store a number under a name."""


Location = Union[str, "torch.device", dict[str, str], Callable[..., Any]]
"""Where a checkpoint's tensors go, as torch.load takes it."""
