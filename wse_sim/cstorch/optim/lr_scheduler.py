"""Schedules of the learning rate, in closed form (the forms are in :mod:`wse_sim.cstorch.optim.scheduler`).

A schedule of one's own is a subclass of :class:`LRScheduler` that overrides ``_get_closed_form_lr`` with one tensor
expression of ``self.last_epoch``.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Unpack

import torch

from wse_sim.cstorch.faults import program_error
from wse_sim.cstorch.optim import scheduler as forms
from wse_sim.cstorch.optim.schedule import EndOptions, Lambdas, Values
from wse_sim.cstorch.optim.scheduler import Scheduler, Value

Optimizer = torch.optim.Optimizer

# What a form calls a value is here a rate: each schedule of this module takes its form's arguments under these names.
RATES = {
    "val": "learning_rate",
    "vals": "learning_rates",
    "initial_val": "initial_learning_rate",
    "end_val": "end_learning_rate",
    "base_val": "base_lr",
    "max_val": "max_lr",
    "lambdas": "lr_lambda",
}


class LRScheduler(Scheduler):
    """Base of all schedules of the learning rate: ``LRScheduler(optimizer, total_iters=None, last_epoch=-1)``."""

    param_group_key = "lr"

    if TYPE_CHECKING:  # a checker cannot see renamed arguments, so it takes any

        def __init__(self, optimizer: object, *arguments: object, **keywords: object) -> None: ...

    def __init_subclass__(cls) -> None:
        """Give a schedule that inherits its constructor from a form the form's arguments as rates."""
        super().__init_subclass__()
        source = next(base for base in cls.__mro__ if "__init__" in vars(base))
        if source is not Scheduler and not issubclass(source, LRScheduler):
            cls.__init__ = renamed(vars(source)["__init__"], cls.__name__)  # type: ignore[method-assign]

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


def renamed(constructor: FunctionType, schedule: str) -> FunctionType:
    """Return a copy of a form's constructor for a schedule whose arguments have the names of :data:`RATES`."""
    code = constructor.__code__
    rates = code.replace(
        co_varnames=tuple(RATES.get(name, name) for name in code.co_varnames),
        co_cellvars=tuple(RATES.get(name, name) for name in code.co_cellvars),
    )
    copy = FunctionType(
        rates, constructor.__globals__, "__init__", constructor.__defaults__, constructor.__closure__
    )
    copy.__annotations__ = {RATES.get(k, k): v for k, v in constructor.__annotations__.items()}
    copy.__qualname__ = f"{schedule}.__init__"
    copy.__kwdefaults__ = constructor.__kwdefaults__
    return copy


class ConstantLR(LRScheduler, forms.ConstantScheduler):
    pass


class PolynomialLR(LRScheduler, forms.PolynomialScheduler):
    pass


class LinearLR(LRScheduler, forms.LinearScheduler):
    pass


class ExponentialLR(LRScheduler, forms.ExponentialScheduler):
    pass


class InverseExponentialTimeDecayLR(LRScheduler, forms.InverseExponentialTimeDecayScheduler):
    pass


class InverseSquareRootDecayLR(LRScheduler, forms.InverseSquareRootDecayScheduler):
    pass


class CosineDecayLR(LRScheduler, forms.CosineDecayScheduler):
    pass


class PiecewiseConstantLR(LRScheduler, forms.PiecewiseConstantScheduler):
    pass


class MultiStepLR(LRScheduler, forms.MultiStepScheduler):
    pass


class StepLR(LRScheduler, forms.StepScheduler):
    pass


class CosineAnnealingLR(LRScheduler, forms.CosineAnnealingScheduler):
    pass


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

    def set_lr_lambda(self) -> Lambdas:
        return forms.LambdaScheduler.set_value_lambda(self)

    def set_value_lambda(self) -> Lambdas:
        return self.set_lr_lambda()


class MultiplicativeLR(LRScheduler, forms.MultiplicativeScheduler):
    pass


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
    pass


class ChainedScheduler(LRScheduler, forms.ChainedScheduler):
    pass


class ChainedLR(ChainedScheduler):
    """Alias of :class:`ChainedScheduler`."""


class ScalePerParamLR(LRScheduler, forms.ScalePerParamScheduler):
    """A schedule times the ``adjust_learning_rate`` of each group."""

    factor_key = "adjust_learning_rate"
