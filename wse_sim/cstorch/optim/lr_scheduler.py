"""Schedules of the learning rate, in closed form (the forms are in :mod:`wse_sim.cstorch.optim.scheduler`).

A schedule of one's own is a subclass of :class:`LRScheduler` that overrides ``_get_closed_form_lr`` with one tensor
expression of ``self.last_epoch``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Unpack

import torch

from wse_sim.cstorch.faults import program_error
from wse_sim.cstorch.optim import scheduler as forms
from wse_sim.cstorch.optim.schedule import EndOptions, Lambdas, ScheduleOptions, SequenceOptions, Values
from wse_sim.cstorch.optim.scheduler import Scheduler, Value

Optimizer = torch.optim.Optimizer


class LRScheduler(Scheduler):
    """Base of all schedules of the learning rate: ``LRScheduler(optimizer, total_iters=None, last_epoch=-1)``."""

    param_group_key = "lr"

    def _get_closed_form(self) -> Values:
        value = self._get_closed_form_lr()
        if value is None:
            raise program_error(
                f"{type(self).__name__}: _get_closed_form_lr gave nothing; return the rate as a tensor"
            )
        return value

    def _get_closed_form_lr(self) -> Values:
        """Return the learning rate at ``self.last_epoch``."""
        return super()._get_closed_form()  # type: ignore[safe-super]

    def get_last_lr(self) -> list[torch.Tensor]:
        """Return the present learning rate of every group (tensors; read them in a step closure)."""
        return self.get_last_value()

    def get_lr(self) -> list[torch.Tensor]:
        return self.get_last_value()


class ConstantLR(LRScheduler, forms.ConstantScheduler):
    def __init__(
        self,
        optimizer: Optimizer,
        learning_rate: float,
        total_iters: int | None = None,
        **keywords: Unpack[ScheduleOptions],
    ) -> None:
        forms.ConstantScheduler.__init__(self, optimizer, learning_rate, total_iters, **keywords)


class PolynomialLR(LRScheduler, forms.PolynomialScheduler):
    def __init__(
        self,
        optimizer: Optimizer,
        initial_learning_rate: float,
        end_learning_rate: float,
        total_iters: int,
        power: float = 1.0,
        cycle: bool = False,
        **keywords: Unpack[ScheduleOptions],
    ) -> None:
        forms.PolynomialScheduler.__init__(
            self, optimizer, initial_learning_rate, end_learning_rate, total_iters, power, cycle, **keywords
        )


class LinearLR(LRScheduler, forms.LinearScheduler):
    def __init__(
        self,
        optimizer: Optimizer,
        initial_learning_rate: float,
        end_learning_rate: float,
        total_iters: int,
        cycle: bool = False,
        **keywords: Unpack[ScheduleOptions],
    ) -> None:
        forms.LinearScheduler.__init__(
            self, optimizer, initial_learning_rate, end_learning_rate, total_iters, cycle, **keywords
        )


class ExponentialLR(LRScheduler, forms.ExponentialScheduler):
    def __init__(
        self,
        optimizer: Optimizer,
        initial_learning_rate: float,
        total_iters: int,
        decay_rate: float,
        staircase: bool = False,
        **keywords: Unpack[ScheduleOptions],
    ) -> None:
        forms.ExponentialScheduler.__init__(
            self, optimizer, initial_learning_rate, total_iters, decay_rate, staircase, **keywords
        )


class InverseExponentialTimeDecayLR(LRScheduler, forms.InverseExponentialTimeDecayScheduler):
    def __init__(
        self,
        optimizer: Optimizer,
        initial_learning_rate: float,
        step_exponent: float,
        total_iters: int,
        decay_rate: float,
        staircase: bool = False,
        **keywords: Unpack[ScheduleOptions],
    ) -> None:
        forms.InverseExponentialTimeDecayScheduler.__init__(
            self,
            optimizer,
            initial_learning_rate,
            step_exponent,
            total_iters,
            decay_rate,
            staircase,
            **keywords,
        )


class InverseSquareRootDecayLR(LRScheduler, forms.InverseSquareRootDecayScheduler):
    def __init__(
        self,
        optimizer: Optimizer,
        initial_learning_rate: float = 1.0,
        scale: float = 1.0,
        warmup_steps: float = 1.0,
        **keywords: Unpack[EndOptions],
    ) -> None:
        forms.InverseSquareRootDecayScheduler.__init__(
            self, optimizer, initial_learning_rate, scale, warmup_steps, **keywords
        )


class CosineDecayLR(LRScheduler, forms.CosineDecayScheduler):
    def __init__(
        self,
        optimizer: Optimizer,
        initial_learning_rate: float,
        end_learning_rate: float,
        total_iters: int,
        **keywords: Unpack[ScheduleOptions],
    ) -> None:
        forms.CosineDecayScheduler.__init__(
            self, optimizer, initial_learning_rate, end_learning_rate, total_iters, **keywords
        )


class PiecewiseConstantLR(LRScheduler, forms.PiecewiseConstantScheduler):
    def __init__(
        self,
        optimizer: Optimizer,
        learning_rates: Sequence[float],
        milestones: Sequence[int],
        **keywords: Unpack[EndOptions],
    ) -> None:
        forms.PiecewiseConstantScheduler.__init__(self, optimizer, learning_rates, milestones, **keywords)


class MultiStepLR(LRScheduler, forms.MultiStepScheduler):
    def __init__(
        self,
        optimizer: Optimizer,
        initial_learning_rate: float,
        gamma: float,
        milestones: Sequence[int],
        **keywords: Unpack[EndOptions],
    ) -> None:
        forms.MultiStepScheduler.__init__(
            self, optimizer, initial_learning_rate, gamma, milestones, **keywords
        )


class StepLR(LRScheduler, forms.StepScheduler):
    def __init__(
        self,
        optimizer: Optimizer,
        initial_learning_rate: float,
        step_size: int,
        gamma: float,
        **keywords: Unpack[EndOptions],
    ) -> None:
        forms.StepScheduler.__init__(self, optimizer, initial_learning_rate, step_size, gamma, **keywords)


class CosineAnnealingLR(LRScheduler, forms.CosineAnnealingScheduler):
    def __init__(
        self,
        optimizer: Optimizer,
        initial_learning_rate: float,
        T_max: int,
        eta_min: float = 0.0,
        **keywords: Unpack[EndOptions],
    ) -> None:
        forms.CosineAnnealingScheduler.__init__(
            self, optimizer, initial_learning_rate, T_max, eta_min, **keywords
        )


class CosineAnnealingWarmRestarts(LRScheduler, forms.CosineAnnealingWarmRestartsScheduler):
    def __init__(
        self,
        optimizer: Optimizer,
        initial_learning_rate: float,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        *_legacy: bool,
        **keywords: Unpack[EndOptions],
    ) -> None:
        forms.CosineAnnealingWarmRestartsScheduler.__init__(
            self, optimizer, initial_learning_rate, T_0, T_mult, eta_min, **keywords
        )


class LambdaLR(LRScheduler, forms.LambdaScheduler):
    """The rate times a function of the count of steps, from ``set_lr_lambda`` (or ``set_value_lambda``) of a subclass, or given."""

    def __init__(
        self,
        optimizer: Optimizer,
        initial_learning_rate: float = 1.0,
        lr_lambda: Lambdas | None = None,
        **keywords: Unpack[EndOptions],
    ) -> None:
        forms.LambdaScheduler.__init__(self, optimizer, initial_learning_rate, lr_lambda, **keywords)

    def set_lr_lambda(self) -> Lambdas:
        return forms.LambdaScheduler.set_value_lambda(self)

    def set_value_lambda(self) -> Lambdas:
        return self.set_lr_lambda()


class MultiplicativeLR(LRScheduler, forms.MultiplicativeScheduler):
    def __init__(
        self,
        optimizer: Optimizer,
        initial_learning_rate: float,
        coefficient: float,
        **keywords: Unpack[EndOptions],
    ) -> None:
        forms.MultiplicativeScheduler.__init__(
            self, optimizer, initial_learning_rate, coefficient, **keywords
        )


class OneCycleLR(LRScheduler, forms.OneCycleScheduler):
    def __init__(
        self,
        optimizer: Optimizer,
        initial_learning_rate: float,
        max_lr: float,
        total_steps: int = 1000,
        pct_start: float = 0.3,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        anneal_strategy: str = "cos",
        *_legacy: bool,
        **keywords: Unpack[EndOptions],
    ) -> None:
        forms.OneCycleScheduler.__init__(
            self,
            optimizer,
            initial_learning_rate,
            max_lr,
            total_steps,
            pct_start,
            final_div_factor,
            three_phase,
            anneal_strategy,
            **keywords,
        )


class CyclicLR(LRScheduler, forms.CyclicScheduler):
    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float,
        max_lr: float,
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_mode: str = "cycle",
        scale_fn: Callable[[torch.Tensor], Value] | None = None,
        **keywords: Unpack[EndOptions],
    ) -> None:
        if not callable(scale_fn):
            scale_fn = None  # older trainers give whether steps are counted on, which has no meaning here
        forms.CyclicScheduler.__init__(
            self,
            optimizer,
            base_lr,
            max_lr,
            step_size_up,
            step_size_down,
            mode,
            gamma,
            scale_mode,
            scale_fn,
            **keywords,
        )


class SequentialLR(LRScheduler, forms.SequentialScheduler):
    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[Scheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
        **keywords: Unpack[SequenceOptions],
    ) -> None:
        forms.SequentialScheduler.__init__(self, optimizer, schedulers, milestones, last_epoch, **keywords)


class ChainedScheduler(LRScheduler, forms.ChainedScheduler):
    def __init__(
        self,
        schedulers: Sequence[Scheduler],
        optimizer: Optimizer | None = None,
        **keywords: Unpack[EndOptions],
    ) -> None:
        forms.ChainedScheduler.__init__(self, schedulers, optimizer, **keywords)


class ChainedLR(ChainedScheduler):
    """Alias of :class:`ChainedScheduler`."""


class ScalePerParamLR(LRScheduler, forms.ScalePerParamScheduler):
    """A schedule times the ``adjust_learning_rate`` of each group."""

    factor_key = "adjust_learning_rate"

    def __init__(self, optimizer: Optimizer, scheduler: Scheduler, **keywords: Unpack[EndOptions]) -> None:
        forms.ScalePerParamScheduler.__init__(self, optimizer, scheduler, **keywords)
