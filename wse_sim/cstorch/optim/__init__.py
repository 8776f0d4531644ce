"""Optimizers and schedules for a captured step."""

from wse_sim.cstorch.optim import legacy_schedules, lr_scheduler, scheduler, weight_decay_scheduler
from wse_sim.cstorch.optim.adam import Adam, Adamax, AdamBase, AdamW, NAdam, RAdam
from wse_sim.cstorch.optim.gradient import ASGD, SGD, Lion, Rprop
from wse_sim.cstorch.optim.helpers import (
    configure_lr_scheduler,
    configure_optimizer,
    configure_optimizer_params,
    configure_param_groups,
    configure_scheduler,
    configure_scheduler_params,
    configure_weight_decay_scheduler,
)
from wse_sim.cstorch.optim.optimizer import Optimizer, ParamsT
from wse_sim.cstorch.optim.scaled import Adadelta, Adafactor, Adagrad, Lamb, RMSprop
from wse_sim.cstorch.optim.typed import evaluate_all

__all__ = [
    "ASGD",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamBase",
    "AdamW",
    "Adamax",
    "Lamb",
    "Lion",
    "NAdam",
    "Optimizer",
    "ParamsT",
    "RAdam",
    "RMSprop",
    "Rprop",
    "configure_lr_scheduler",
    "configure_optimizer",
    "configure_optimizer_params",
    "configure_param_groups",
    "configure_scheduler",
    "configure_scheduler_params",
    "configure_weight_decay_scheduler",
    "lr_scheduler",
    "scheduler",
    "weight_decay_scheduler",
]

legacy_schedules.add_names()
evaluate_all()
