"""Schedules that combine other schedules: one after another, several at once, or scaled by group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack

import torch

from wse_sim.cstorch.faults import program_error
from wse_sim.cstorch.optim.schedule import (
    EndOptions,
    Scheduler,
    SequenceOptions,
    Value,
    Values,
    check_rising,
)


class SequentialScheduler(Scheduler):
    """Runs one schedule after another; schedule i counts from its milestone."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        schedulers: Sequence[Scheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
        **keywords: Unpack[SequenceOptions],
    ) -> None:
        name = type(self).__name__
        if not schedulers:
            raise program_error(f"{name}: got no schedulers; give at least one")
        if len(milestones) != len(schedulers) - 1:
            raise program_error(
                f"{name}: {len(schedulers)} schedulers need {len(schedulers) - 1} milestones and got {len(milestones)}"
            )
        check_rising(name, milestones)
        _check_same_optimizer(name, optimizer, schedulers)
        self._schedulers, self._milestones = list(schedulers), list(milestones)
        total = keywords.get("total_iters")
        last_total = self._schedulers[-1].total_iters
        if total is None and last_total is not None:
            total = (self._milestones[-1] if self._milestones else 0) + last_total
        self.param_group_key = self._schedulers[0].param_group_key
        keywords["total_iters"] = total
        super().__init__(optimizer, last_epoch=last_epoch, **keywords)

    def _get_closed_form(self) -> Values:
        many = [s.evaluate(self._count(i)) for i, s in enumerate(self._schedulers)]
        if any(isinstance(v, list) for v in many):
            rows = [v if isinstance(v, list) else [v] * len(self._values) for v in many]
            return [self._choose([row[g] for row in rows]) for g in range(len(self._values))]
        return self._choose(many)  # type: ignore[arg-type]

    def _count(self, i: int) -> torch.Tensor:
        """Return the steps of schedule i so far; 0 before its milestone."""
        return self.last_epoch if i == 0 else torch.clamp(self.last_epoch - self._milestones[i - 1], min=0)

    def _choose(self, values: list[Value]) -> Value:
        value = values[0]
        for milestone, after in zip(self._milestones, values[1:], strict=True):
            value = torch.where(
                self.last_epoch < milestone, _tensor(value, self.last_epoch), _tensor(after, self.last_epoch)
            )
        return value

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "_schedulers": [s.state_dict() for s in self._schedulers]}


class ChainedScheduler(Scheduler):
    """Runs several schedules at once: the first gives the value, and each later one multiplies it by its value over its
    first value.
    """

    def __init__(
        self,
        schedulers: Sequence[Scheduler],
        optimizer: torch.optim.Optimizer | None = None,
        **keywords: Unpack[EndOptions],
    ) -> None:
        name = type(self).__name__
        if isinstance(schedulers, torch.optim.Optimizer):
            # (optimizer, schedulers) is the order of every other schedule.
            schedulers, optimizer = optimizer, schedulers  # type: ignore[assignment]
        if not schedulers:
            raise program_error(f"{name}: got no schedulers; give at least one")
        optimizer = optimizer or schedulers[0].optimizer
        _check_same_optimizer(name, optimizer, schedulers)
        self._schedulers = list(schedulers)
        self.param_group_key = self._schedulers[0].param_group_key
        super().__init__(optimizer, **keywords)

    def _get_closed_form(self) -> Values:
        value = self._schedulers[0].evaluate(self.last_epoch)
        zero = torch.zeros_like(self.last_epoch)
        for other in self._schedulers[1:]:
            now, first = other.evaluate(self.last_epoch), other.evaluate(zero)
            value = _pairwise(value, _pairwise(now, first, lambda a, b: a / b), lambda a, b: a * b)
        return value

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "_schedulers": [s.state_dict() for s in self._schedulers]}


class ScalePerParamScheduler(Scheduler):
    """Another schedule, times the factor that a group names (:attr:`factor_key`); groups without one take 1."""

    factor_key = ""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        scheduler: Scheduler,
        **keywords: Unpack[EndOptions],
    ) -> None:
        _check_same_optimizer(type(self).__name__, optimizer, [scheduler])
        self._scheduler_nested = scheduler
        self.param_group_key = scheduler.param_group_key
        self.factor_key = self.factor_key or f"adjust_{self.param_group_key}"
        keywords.setdefault("total_iters", scheduler.total_iters)
        super().__init__(optimizer, **keywords)

    def _get_closed_form(self) -> Values:
        value = self._scheduler_nested.evaluate(self.last_epoch)
        values = value if isinstance(value, list) else [value] * len(self._values)
        return [v * (g.get(self.factor_key) or 1.0) for v, g in zip(values, self.groups, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "_scheduler_nested": self._scheduler_nested.state_dict()}


def _tensor(value: Value, like: torch.Tensor) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.full_like(like, value, dtype=torch.float32)


def _pairwise(a: Values, b: Values, function: Callable[[Value, Value], Value]) -> Values:
    if isinstance(a, list) or isinstance(b, list):
        n = max(len(x) for x in (a, b) if isinstance(x, list))
        rows = [x if isinstance(x, list) else [x] * n for x in (a, b)]
        return [function(x, y) for x, y in zip(*rows, strict=True)]
    return function(a, b)


def _check_same_optimizer(
    name: str, optimizer: torch.optim.Optimizer, schedulers: Sequence[Scheduler]
) -> None:
    for scheduler in schedulers:
        if not isinstance(scheduler, Scheduler):
            raise program_error(
                f"{name}: a {type(scheduler).__module__}.{type(scheduler).__name__} is not a schedule in closed form; "
                "use one of cstorch.optim.lr_scheduler"
            )
        if scheduler.optimizer is not optimizer:
            raise program_error(
                f"{name}: {type(scheduler).__name__} schedules another optimizer; all must share one"
            )
