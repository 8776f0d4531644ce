"""The forms of schedules, for any option of a group: see :mod:`wse_sim.cstorch.optim.schedule`.

One file: a list of forms, each a few lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Unpack

import torch

from wse_sim.cstorch.faults import program_error
from wse_sim.cstorch.optim.composite import ChainedScheduler, ScalePerParamScheduler, SequentialScheduler
from wse_sim.cstorch.optim.schedule import (
    EndOptions,
    Lambdas,
    ScheduleOptions,
    Scheduler,
    Value,
    Values,
    check_rising,
)

__all__ = [
    "ChainedScheduler",
    "ConstantScheduler",
    "CosineAnnealingScheduler",
    "CosineAnnealingWarmRestartsScheduler",
    "CosineDecayScheduler",
    "CyclicScheduler",
    "ExponentialScheduler",
    "InverseExponentialTimeDecayScheduler",
    "InverseSquareRootDecayScheduler",
    "LambdaScheduler",
    "LinearScheduler",
    "MultiStepScheduler",
    "MultiplicativeScheduler",
    "OneCycleScheduler",
    "PiecewiseConstantScheduler",
    "PolynomialScheduler",
    "ScalePerParamScheduler",
    "Scheduler",
    "SequentialScheduler",
    "StepScheduler",
    "Value",
]


class ConstantScheduler(Scheduler):
    """Keeps the value ``v``."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        val: float,
        total_iters: int | None = None,
        **keywords: Unpack[ScheduleOptions],
    ) -> None:
        self.val = val
        super().__init__(optimizer, total_iters, **keywords)

    def _get_closed_form(self) -> Values:
        return self.val


class PolynomialScheduler(Scheduler):
    """``(v0 - v1) (1 - t / T)^power + v1`` up to T; with ``cycle`` T grows by whole multiples."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_val: float,
        end_val: float,
        total_iters: int,
        power: float = 1.0,
        cycle: bool = False,
        **keywords: Unpack[ScheduleOptions],
    ) -> None:
        self.initial_val, self.end_val, self.power, self.cycle = initial_val, end_val, power, cycle
        super().__init__(optimizer, total_iters, **keywords)

    def _get_closed_form(self) -> Values:
        total = self._need_total()
        if self.cycle:
            turns = torch.clamp(torch.ceil(self.last_epoch / total), min=1.0)
            left = 1 - self.last_epoch / (total * turns)
        else:
            left = 1 - self._progress(total)
        return (self.initial_val - self.end_val) * left**self.power + self.end_val


class LinearScheduler(PolynomialScheduler):
    """Follows a straight line from the first value to the last."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_val: float,
        end_val: float,
        total_iters: int,
        cycle: bool = False,
        **keywords: Unpack[ScheduleOptions],
    ) -> None:
        super().__init__(optimizer, initial_val, end_val, total_iters, 1.0, cycle, **keywords)

    def _get_closed_form(self) -> Values:
        if self.cycle:
            return super()._get_closed_form()
        return self.initial_val + (self.end_val - self.initial_val) * self._progress(self._need_total())


class ExponentialScheduler(Scheduler):
    """``v0 rate^(t / T)``; ``staircase`` takes whole multiples of T."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_val: float,
        total_iters: int,
        decay_rate: float,
        staircase: bool = False,
        **keywords: Unpack[ScheduleOptions],
    ) -> None:
        self.initial_val, self.decay_rate, self.staircase = initial_val, decay_rate, staircase
        super().__init__(optimizer, total_iters, **keywords)

    def _get_closed_form(self) -> Values:
        exponent = self.last_epoch / self._need_total()
        return self.initial_val * self.decay_rate ** (torch.floor(exponent) if self.staircase else exponent)


class InverseExponentialTimeDecayScheduler(Scheduler):
    """``v0 / (1 + rate t^e / T^e)``; ``staircase`` takes the floor of the quotient of times."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_val: float,
        step_exponent: float,
        total_iters: int,
        decay_rate: float,
        staircase: bool = False,
        **keywords: Unpack[ScheduleOptions],
    ) -> None:
        self.initial_val, self.step_exponent = initial_val, step_exponent
        self.decay_rate, self.staircase = decay_rate, staircase
        super().__init__(optimizer, total_iters, **keywords)

    def _get_closed_form(self) -> Values:
        quotient = (self.last_epoch / self._need_total()) ** self.step_exponent
        return self.initial_val / (
            1.0 + self.decay_rate * (torch.floor(quotient) if self.staircase else quotient)
        )


class InverseSquareRootDecayScheduler(Scheduler):
    """``v0 scale / sqrt(max(t, warm))``."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_val: float = 1.0,
        scale: float = 1.0,
        warmup_steps: float = 1.0,
        **keywords: Unpack[EndOptions],
    ) -> None:
        self.initial_val, self.scale, self.warmup_steps = initial_val, scale, warmup_steps
        super().__init__(optimizer, **keywords)

    def _get_closed_form(self) -> Values:
        return (
            self.initial_val
            * self.scale
            / torch.sqrt(torch.clamp(self.last_epoch.float(), min=float(self.warmup_steps)))
        )


class CosineDecayScheduler(Scheduler):
    """Follows half a cosine wave from the first value to the last, over T steps."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_val: float,
        end_val: float,
        total_iters: int,
        **keywords: Unpack[ScheduleOptions],
    ) -> None:
        self.initial_val, self.end_val = initial_val, end_val
        super().__init__(optimizer, total_iters, **keywords)

    def _get_closed_form(self) -> Values:
        wave = 0.5 * (1.0 + torch.cos(math.pi * self._progress(self._need_total())))
        return self.end_val + (self.initial_val - self.end_val) * wave


class PiecewiseConstantScheduler(Scheduler):
    """``vals[i]`` between the milestones ``i - 1`` and ``i``."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        vals: Sequence[float],
        milestones: Sequence[int],
        **keywords: Unpack[EndOptions],
    ) -> None:
        name = type(self).__name__
        if len(vals) != len(milestones) + 1:
            raise program_error(
                f"{name}: {len(vals)} values need {len(vals) - 1} milestones and got {len(milestones)}"
            )
        check_rising(name, milestones)
        self.vals, self.milestones = list(vals), list(milestones)
        super().__init__(optimizer, **keywords)

    def _get_closed_form(self) -> Values:
        value = torch.full_like(self.last_epoch, self.vals[0], dtype=torch.float32)
        for milestone, after in zip(self.milestones, self.vals[1:], strict=True):
            value = torch.where(self.last_epoch < milestone, value, after)
        return value


class MultiStepScheduler(Scheduler):
    """``v0 gamma^n`` after n milestones."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_val: float,
        gamma: float,
        milestones: Sequence[int],
        **keywords: Unpack[EndOptions],
    ) -> None:
        check_rising(type(self).__name__, milestones)
        self.initial_val, self.gamma, self.milestones = initial_val, gamma, list(milestones)
        super().__init__(optimizer, **keywords)

    def _get_closed_form(self) -> Values:
        value = torch.full_like(self.last_epoch, self.initial_val, dtype=torch.float32)
        for n, milestone in enumerate(self.milestones, start=1):
            value = torch.where(self.last_epoch < milestone, value, self.initial_val * self.gamma**n)
        return value


class StepScheduler(Scheduler):
    """``v0 gamma^floor(t / size)``."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_val: float,
        step_size: int,
        gamma: float,
        **keywords: Unpack[EndOptions],
    ) -> None:
        self.initial_val, self.step_size, self.gamma = initial_val, step_size, gamma
        super().__init__(optimizer, **keywords)

    def _get_closed_form(self) -> Values:
        return self.initial_val * self.gamma ** torch.floor(self.last_epoch / self.step_size)


class CosineAnnealingScheduler(Scheduler):
    """Follows the cosine between the first value and ``eta_min``, with a half wave of ``T_max`` steps; it continues
    after T_max.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_val: float,
        T_max: int,
        eta_min: float = 0.0,
        **keywords: Unpack[EndOptions],
    ) -> None:
        self.initial_val, self.T_max, self.eta_min = float(initial_val), T_max, eta_min
        super().__init__(optimizer, **keywords)

    def _get_closed_form(self) -> Values:
        wave = (1 + torch.cos(math.pi * self.last_epoch / self.T_max)) / 2
        return self.eta_min + (self.initial_val - self.eta_min) * wave


class CosineAnnealingWarmRestartsScheduler(Scheduler):
    """Half waves of the cosine of ``T_0``, ``T_0 T_mult``, ``T_0 T_mult^2`` ... steps, each from the first value down."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_val: float,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        **keywords: Unpack[EndOptions],
    ) -> None:
        name = type(self).__name__
        if T_0 <= 0 or int(T_0) != T_0:
            raise program_error(f"{name}: T_0={T_0} must be a positive integer")
        if T_mult < 1 or int(T_mult) != T_mult:
            raise program_error(f"{name}: T_mult={T_mult} must be an integer of at least 1")
        self.initial_val, self.T_0, self.T_mult, self.eta_min = initial_val, T_0, T_mult, eta_min
        super().__init__(optimizer, **keywords)

    def _get_closed_form(self) -> Values:
        t = self.last_epoch
        if self.T_mult == 1:
            fraction = (t % self.T_0) / self.T_0
        else:
            # Restart n starts at T_0 (m^n - 1) / (m - 1).  The logarithm only proposes n; comparing whole
            # numbers corrects it, since it may fall short by one rounding at a restart itself.
            m = self.T_mult
            n = torch.floor(torch.log((t * (m - 1)).double() / self.T_0 + 1) / math.log(m))
            n = torch.where(self._start(n + 1) <= t, n + 1, n)
            n = torch.where(self._start(n) > t, n - 1, n)
            fraction = ((t - self._start(n)) / (self.T_0 * m**n)).float()
        return self.eta_min + (self.initial_val - self.eta_min) * (1 + torch.cos(math.pi * fraction)) / 2

    def _start(self, n: torch.Tensor) -> torch.Tensor:
        return self.T_0 * torch.round((self.T_mult**n - 1) / (self.T_mult - 1))


class LambdaScheduler(Scheduler):
    """``v0`` times a function of the count of steps; a subclass overrides :meth:`set_value_lambda` or gives ``lambdas``."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_val: float = 1.0,
        lambdas: Lambdas | None = None,
        **keywords: Unpack[EndOptions],
    ) -> None:
        self.initial_val = initial_val
        if lambdas is not None:
            self.__dict__["set_value_lambda"] = lambda: lambdas
        super().__init__(optimizer, **keywords)

    def set_value_lambda(self) -> Lambdas:
        """Return the function of the count of steps, or a list with one per group."""
        return lambda epoch: 0.95**epoch

    def _get_closed_form(self) -> Values:
        functions = self.set_value_lambda()
        if callable(functions):
            return self.initial_val * functions(self.last_epoch)
        return [self.initial_val * f(self.last_epoch) for f in functions]


class MultiplicativeScheduler(Scheduler):
    """``v0 coefficient^t``."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_val: float,
        coefficient: float,
        **keywords: Unpack[EndOptions],
    ) -> None:
        self.initial_val, self.coefficient = initial_val, coefficient
        super().__init__(optimizer, **keywords)

    def _get_closed_form(self) -> Values:
        return self.initial_val * self.coefficient ** self.last_epoch.float()


class OneCycleScheduler(Scheduler):
    """Rises to the peak and falls to almost nothing, in two phases or three (Smith and Topin 2017).

    Up from ``v0`` to ``max_val`` until ``pct_start`` of ``total_steps``; then down to ``v0 / final_div_factor``
    (three phases: to ``v0`` first, as long as the way up, then on to the end).
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_val: float,
        max_val: float,
        total_steps: int = 1000,
        pct_start: float = 0.3,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        anneal_strategy: str = "cos",
        **keywords: Unpack[EndOptions],
    ) -> None:
        name = type(self).__name__
        if anneal_strategy not in {"cos", "linear"}:
            raise program_error(f"{name}: anneal_strategy='{anneal_strategy}' is neither 'cos' nor 'linear'")
        if not 0 <= pct_start <= 1:
            raise program_error(f"{name}: pct_start={pct_start} must be between 0 and 1")
        if total_steps <= 0:
            raise program_error(f"{name}: total_steps={total_steps} must be positive")
        self.initial_val, self.max_val, self.end_val = initial_val, max_val, initial_val / final_div_factor
        self.total_steps, self.pct_start = total_steps, pct_start
        self.three_phase, self.anneal_strategy = three_phase, anneal_strategy
        keywords["total_iters"] = total_steps
        super().__init__(optimizer, **keywords)

    def _get_closed_form(self) -> Values:
        up, last = self.pct_start * self.total_steps - 1.0, self.total_steps - 1.0
        if self.three_phase:
            down = 2 * up
            phases = [
                (0.0, up, self.initial_val, self.max_val),
                (up, down, self.max_val, self.initial_val),
                (down, last, self.initial_val, self.end_val),
            ]
        else:
            phases = [(0.0, up, self.initial_val, self.max_val), (up, last, self.max_val, self.end_val)]
        value = self._anneal(*phases[-1])
        for phase in reversed(phases[:-1]):
            value = torch.where(self.last_epoch <= phase[1], self._anneal(*phase), value)
        return value

    def _anneal(self, start: float, end: float, first: float, last: float) -> torch.Tensor:
        fraction = torch.clamp((self.last_epoch - start) / (end - start or 1.0), 0.0, 1.0)
        if self.anneal_strategy == "cos":
            fraction = (1 - torch.cos(math.pi * fraction)) / 2
        return first + (last - first) * fraction


class CyclicScheduler(Scheduler):
    """Follows triangles between ``base_val`` and ``max_val`` (Smith 2015).

    Modes: ``triangular``; ``triangular2`` halves the height each cycle; ``exp_range`` multiplies it by ``gamma^t``.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        base_val: float,
        max_val: float,
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_mode: str = "cycle",
        scale_fn: Callable[[torch.Tensor], Value] | None = None,
        **keywords: Unpack[EndOptions],
    ) -> None:
        if mode not in {"triangular", "triangular2", "exp_range"} and scale_fn is None:
            raise program_error(
                f"{type(self).__name__}: mode='{mode}' is none of 'triangular', 'triangular2', 'exp_range'; choose one or give scale_fn"
            )
        self.base_val, self.max_val, self.mode, self.gamma = base_val, max_val, mode, gamma
        self.step_size_up = step_size_up
        self.step_size_down = step_size_up if step_size_down is None else step_size_down
        self.scale_mode, self.scale_fn = scale_mode, scale_fn
        super().__init__(optimizer, **keywords)

    def _get_closed_form(self) -> Values:
        total = self.step_size_up + self.step_size_down
        up_fraction = self.step_size_up / total
        cycle = torch.floor(1 + self.last_epoch / total)
        x = 1.0 + self.last_epoch / total - cycle
        height = torch.where(x <= up_fraction, x / up_fraction, (x - 1) / (up_fraction - 1))
        if self.scale_fn is not None:
            scale = self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        elif self.mode == "triangular":
            scale = 1.0
        elif self.mode == "triangular2":
            scale = 0.5 ** (cycle - 1)
        else:
            scale = self.gamma ** self.last_epoch.float()
        return self.base_val + (self.max_val - self.base_val) * height * scale
