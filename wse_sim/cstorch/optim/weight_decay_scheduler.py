"""Schedules of the weight decay: every form of :mod:`wse_sim.cstorch.optim.scheduler`, on the option ``weight_decay``.

Arguments are those of the form (``val``, ``initial_val``, ``end_val``, ``total_iters`` ...).
"""

from __future__ import annotations

import torch

from wse_sim.cstorch.optim import scheduler as forms
from wse_sim.cstorch.optim.scheduler import Scheduler


class WeightDecayScheduler(Scheduler):
    """Base of all schedules of the weight decay."""

    param_group_key = "weight_decay"

    def get_last_wd(self) -> list[torch.Tensor]:
        """Return the present weight decay of every group."""
        return self.get_last_value()


class ConstantWD(WeightDecayScheduler, forms.ConstantScheduler):
    pass


class PolynomialWD(WeightDecayScheduler, forms.PolynomialScheduler):
    pass


class LinearWD(WeightDecayScheduler, forms.LinearScheduler):
    pass


class ExponentialWD(WeightDecayScheduler, forms.ExponentialScheduler):
    pass


class InverseExponentialTimeDecayWD(WeightDecayScheduler, forms.InverseExponentialTimeDecayScheduler):
    pass


class InverseSquareRootDecayWD(WeightDecayScheduler, forms.InverseSquareRootDecayScheduler):
    pass


class CosineDecayWD(WeightDecayScheduler, forms.CosineDecayScheduler):
    pass


class PiecewiseConstantWD(WeightDecayScheduler, forms.PiecewiseConstantScheduler):
    pass


class MultiStepWD(WeightDecayScheduler, forms.MultiStepScheduler):
    pass


class StepWD(WeightDecayScheduler, forms.StepScheduler):
    pass


class CosineAnnealingWD(WeightDecayScheduler, forms.CosineAnnealingScheduler):
    pass


class CosineAnnealingWarmRestartsWD(WeightDecayScheduler, forms.CosineAnnealingWarmRestartsScheduler):
    pass


class LambdaWD(WeightDecayScheduler, forms.LambdaScheduler):
    pass


class MultiplicativeWD(WeightDecayScheduler, forms.MultiplicativeScheduler):
    pass


class OneCycleWD(WeightDecayScheduler, forms.OneCycleScheduler):
    pass


class CyclicWD(WeightDecayScheduler, forms.CyclicScheduler):
    pass


class SequentialWD(WeightDecayScheduler, forms.SequentialScheduler):
    pass


class ChainedWD(WeightDecayScheduler, forms.ChainedScheduler):
    pass


class ScalePerParamWD(WeightDecayScheduler, forms.ScalePerParamScheduler):
    pass
