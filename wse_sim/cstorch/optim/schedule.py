"""Schedules in closed form: the value of a group's option as a function of the count of steps, a state tensor.

A captured step runs its Python once, so a schedule cannot compute the next value from the last one in Python.
It is one expression of ``self.last_epoch`` (int64, shape ``()``), built of tensor operations, that holds at every step.
``step()`` adds one to ``last_epoch`` and writes the new value into the groups, in place.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import torch

from wse_sim.cstorch import runtime
from wse_sim.cstorch.faults import program_error

Value = torch.Tensor | float
Lambda = Callable[[torch.Tensor], Value]
Lambdas = Lambda | Sequence[Lambda]
Values = Value | list[Value]  # one for all groups, or one per group


class TagOptions(TypedDict, total=False):
    """The parameter groups of a schedule."""

    param_group_tags: Sequence[str] | str | None


class ScheduleOptions(TagOptions, total=False):
    """Options that every form passes to :class:`Scheduler`."""

    last_epoch: int


class EndOptions(ScheduleOptions, total=False):
    """Options of forms with an optional end."""

    total_iters: int | None


class SequenceOptions(TagOptions, total=False):
    """Options of a sequence, which names its last step."""

    total_iters: int | None


class Scheduler(ABC):
    """Base of all schedules: one option (:attr:`param_group_key`) of the groups of one optimizer.

    Args:
        optimizer: whose groups are scheduled.
        total_iters: steps after which the value stays; None where the form has no end.
        last_epoch: the last step done, as in torch; -1 is a new schedule.
        param_group_tags: only groups that have one of these tags are scheduled; None takes all.
    """

    param_group_key = ""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        total_iters: int | None = None,
        last_epoch: int = -1,
        param_group_tags: Sequence[str] | str | None = None,
    ) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise program_error(
                f"{type(self).__name__} schedules an optimizer and got a {type(optimizer).__name__}; "
                "give the optimizer first"
            )
        self.optimizer = optimizer
        self.total_iters = total_iters
        self.param_group_tags = {param_group_tags} if isinstance(param_group_tags, str) else param_group_tags
        name = type(self).__name__
        self._epoch = runtime.state_tensor(torch.tensor(last_epoch + 1), f"{name}.last_epoch")
        self._evaluated_at: torch.Tensor | None = None
        self._values: list[torch.Tensor] = []
        with torch.no_grad():
            self._take_groups(name)
            self.update_groups()

    # -- the form --------------------------------------------------------------------------------

    @property
    def last_epoch(self) -> torch.Tensor:
        """The count of steps (int64, shape ``()``); assignment copies into it."""
        return self._epoch if self._evaluated_at is None else self._evaluated_at

    @last_epoch.setter
    def last_epoch(self, count: torch.Tensor | int) -> None:
        with torch.no_grad():
            runtime.assign(self._epoch, torch.as_tensor(count))
            if hasattr(self, "_values"):
                self.update_groups()

    @abstractmethod
    def _get_closed_form(self) -> Values:
        """The value at ``self.last_epoch``, or a list with one value per scheduled group."""

    def get(self) -> Values:
        return self._get_closed_form()

    def evaluate(self, epoch: torch.Tensor) -> Values:
        """Return the value at another count of steps, for composite schedules."""
        held, self._evaluated_at = self._evaluated_at, epoch
        try:
            return self._get_closed_form()
        finally:
            self._evaluated_at = held

    # -- groups ----------------------------------------------------------------------------------

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The scheduled groups."""
        if self.param_group_tags is None:
            return self.optimizer.param_groups
        chosen = [
            g for g in self.optimizer.param_groups if set(g.get("tags", ())) & set(self.param_group_tags)
        ]
        if not chosen:
            raise program_error(
                f"{type(self).__name__}: no parameter group has one of the tags {sorted(self.param_group_tags)}; "
                "tag a group with 'tags' or leave param_group_tags out"
            )
        return chosen

    def _take_groups(self, name: str) -> None:
        """Give every scheduled group a separate state tensor; a second schedule reuses it."""
        self._values = []
        for index, group in enumerate(self.groups):
            held = group.get(self.param_group_key)
            if not isinstance(held, torch.Tensor):
                first = 0.0 if held is None else float(held)
                group.setdefault(f"initial_{self.param_group_key}", held)
                held = runtime.state_tensor(torch.tensor(first), f"{name}.{self.param_group_key}.{index}")
                group[self.param_group_key] = held
            self._values.append(held)

    def update_groups(self) -> None:
        """Write the present value into the groups."""
        value = self._get_closed_form()
        values = value if isinstance(value, list | tuple) else [value] * len(self._values)
        if len(values) != len(self._values):
            raise program_error(
                f"{type(self).__name__}: the form gives {len(values)} values for {len(self._values)} parameter groups; "
                "return one tensor, or one per group"
            )
        for held, new in zip(self._values, values, strict=True):
            if isinstance(new, torch.Tensor):
                held.copy_(new)
            else:
                held.fill_(new)

    # -- use -------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, *_args: object, **_kwargs: object) -> None:
        """Count one step; to be called after the optimizer's."""
        self.increment_last_epoch()
        self.update_groups()

    def increment_last_epoch(self) -> None:
        # A step that loss scaling left out does not count; the scaler puts 0 there.
        taken = getattr(self.optimizer, "_taken", None)
        self._epoch.add_(1 if taken is None else taken)

    def get_last_value(self) -> list[torch.Tensor]:
        """Return the present value of every scheduled group (tensors; read them in a step closure)."""
        return list(self._values)

    def state_dict(self) -> dict[str, Any]:
        return {
            "last_epoch": self._epoch,
            **({"total_iters": self.total_iters} if self.total_iters is not None else {}),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the count of steps, and with it the value; the form stays that of this object."""
        if "last_epoch" not in state_dict:
            raise program_error(
                f"{type(self).__name__}: the saved state has no 'last_epoch'; it holds {sorted(state_dict)}"
            )
        with torch.no_grad():
            runtime.assign(self._epoch, torch.as_tensor(state_dict["last_epoch"]))
            self.update_groups()

    def state_tensors(self) -> list[torch.Tensor]:
        """Every tensor that ``step()`` changes."""
        return [self._epoch, *self._values]

    # -- parts of forms --------------------------------------------------------------------------

    def _progress(self, total: float) -> torch.Tensor:
        """Return steps so far over all steps, at most 1."""
        return torch.clamp(self.last_epoch / total, max=1.0)

    def _need_total(self) -> int:
        if self.total_iters is None or self.total_iters <= 0:
            raise program_error(
                f"{type(self).__name__}: total_iters={self.total_iters} must be a positive number of steps"
            )
        return self.total_iters


def check_rising(name: str, milestones: Sequence[int]) -> None:
    """Refuse milestones that do not rise."""
    if any(b <= a for a, b in itertools.pairwise(milestones)):
        raise program_error(f"{name}: milestones {list(milestones)} must increase")
