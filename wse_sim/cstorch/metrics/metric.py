"""The base of evaluation metrics: sums that are state of the step, and a value computed from them at the end."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from typing import Any

import torch

from wse_sim.cstorch import runtime
from wse_sim.cstorch.stores import of_run

_live: weakref.WeakSet[Metric] = weakref.WeakSet()
_counts: dict[str, int] = of_run({})

# True while a step is looked at for its kernels only: metrics then do nothing.
silent = False


class Metric(ABC):
    """A metric of an evaluation.

    A subclass makes its state in ``reset`` (older ones in ``init_state``, or by :meth:`register_state`), adds to it in ``update`` and gives the value
    in ``compute``.  Tensors that are assigned to attributes are state: they are carried from step to step.

    Args:
        name: of the metric in reports; one that exists already gets a number.
        compute_on_system: taken for programs that give it; sums are always kept on the wafer.
    """

    def __init__(self, name: str | None = None, compute_on_system: bool = True) -> None:
        base = name or type(self).__name__
        n = _counts.get(base, 0)
        _counts[base] = n + 1
        self.name = base if n == 0 else f"{base}_{n}"
        self.compute_on_system = compute_on_system
        self._first: dict[str, torch.Tensor] = {}
        _live.add(self)
        # State must exist before the step.
        getattr(self, "init_state", self.reset)()

    # -- state -----------------------------------------------------------------------------------

    def register_state(self, name: str, tensor: torch.Tensor, persistent: bool = False) -> None:
        """Register a tensor as state under an attribute's name; :meth:`reset` restores its present value."""
        self._first[name] = tensor.detach().clone()
        self.__dict__[name] = runtime.state_tensor(
            tensor.detach().clone(), f"{self.name}.{name}", metric=True
        )

    def __setattr__(self, name: str, value: object) -> None:
        if not isinstance(value, torch.Tensor) or name.startswith("_"):
            super().__setattr__(name, value)
        elif name not in self._first:
            self.register_state(name, value)
        elif value is not self.__dict__[name]:
            with torch.no_grad():
                self.__dict__[name].copy_(value)

    def reset(self) -> None:
        """Reset all state to its initial values."""
        with torch.no_grad():
            for name, value in self._first.items():
                self.__dict__[name].copy_(value)

    reset_state = reset

    @property
    def num_updates(self) -> int:
        return len(self._first)

    # -- use -------------------------------------------------------------------------------------

    @abstractmethod
    def update(self, *args: Any, **keywords: Any) -> None:
        """Add a batch."""

    @abstractmethod
    def compute(self) -> torch.Tensor | float:
        """Return the value over all batches so far."""

    def __call__(self, *args: object, **keywords: object) -> None:
        if not silent:
            with torch.no_grad():
                self.update(*args, **keywords)

    forward = __call__

    def value(self) -> float:
        """Value as a number; available at the end of an execution, or in a step closure."""
        with torch.no_grad(), runtime.internal():
            computed = self.compute()
            if isinstance(computed, torch.Tensor):
                computed = runtime.host_value(computed, metric=True)
        return float(computed)

    def __float__(self) -> float:
        return self.value()

    def __str__(self) -> str:
        return str(self.value())


def get_all_metrics() -> dict[str, Metric]:
    """Return all metrics of the program by name."""
    return {m.name: m for m in sorted(_live, key=lambda m: m.name)}


def compute_all_metrics() -> dict[str, float]:
    """Return the values of all metrics by name."""
    return {name: m.value() for name, m in get_all_metrics().items()}


def reset_all() -> None:
    """Start all metrics again, as every execution does."""
    with runtime.internal():
        for metric in list(_live):
            metric.reset()
