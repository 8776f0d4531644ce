"""Constructors of optimizers and schedules with their types as objects; see :mod:`wse_sim.cstorch.signatures`."""

from __future__ import annotations

import torch

from wse_sim.cstorch.appliance.utils.classes import retrieve_all_subclasses
from wse_sim.cstorch.optim.lr_scheduler import LRScheduler
from wse_sim.cstorch.optim.optimizer import Number, Optimizer
from wse_sim.cstorch.optim.scheduler import Scheduler
from wse_sim.cstorch.optim.weight_decay_scheduler import WeightDecayScheduler
from wse_sim.cstorch.signatures import evaluate


def evaluate_all() -> None:
    """Evaluate the annotations of every optimizer and schedule."""
    plain: dict[object, object] = {Number: float, torch.Tensor: float, Optimizer: torch.optim.Optimizer}
    for kind in retrieve_all_subclasses(Optimizer):  # type: ignore[type-abstract]
        evaluate(kind, plain, kept=("params",))
    # Rates may be tensors in a program, and are numbers in a configuration.
    for base in (LRScheduler, WeightDecayScheduler):
        for schedule in retrieve_all_subclasses(base):
            evaluate(schedule, {**plain, Scheduler: base})
    for schedule in retrieve_all_subclasses(Scheduler):  # type: ignore[type-abstract]
        evaluate(schedule, plain)
