"""Optimizers as everywhere; schedules with the arguments of the oldest interface."""

from wse_sim.cstorch.cbtorch.optim import lr_scheduler as _schedules
from wse_sim.cstorch.optim import *  # noqa: F403
from wse_sim.cstorch.optim import __all__ as __all__

lr_scheduler = _schedules  # type: ignore[misc]
