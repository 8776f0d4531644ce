"""Schedules by their older names: another order of arguments, ``disable_lr_steps_reset`` as the last one.

Trainers of release 1.8 give all arguments by their place.

Example:
    ``Step(optimizer, 0.1, 0.5, 30)`` is ``StepLR(optimizer, 0.1, step_size=30, gamma=0.5)``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from wse_sim.cstorch.faults import program_error
from wse_sim.cstorch.optim import lr_scheduler as present
from wse_sim.cstorch.optim.helpers import ELDER_WORDS, WITHOUT_EFFECT
from wse_sim.cstorch.optim.lr_scheduler import LRScheduler

# Name -> the present schedule, and its arguments after the optimizer in the older order.
_SCHEDULES: dict[str, tuple[type[LRScheduler], str]] = {
    "Constant": (present.ConstantLR, "learning_rate total_iters"),
    "Polynomial": (
        present.PolynomialLR,
        "initial_learning_rate end_learning_rate total_iters power cycle",
    ),
    "Exponential": (present.ExponentialLR, "initial_learning_rate total_iters decay_rate staircase"),
    "InverseExponentialTimeDecay": (
        present.InverseExponentialTimeDecayLR,
        "initial_learning_rate step_exponent total_iters decay_rate staircase",
    ),
    "InverseSquareRootDecay": (
        present.InverseSquareRootDecayLR,
        "initial_learning_rate scale warmup_steps",
    ),
    "CosineDecay": (present.CosineDecayLR, "initial_learning_rate end_learning_rate total_iters"),
    "MultiStep": (present.MultiStepLR, "initial_learning_rate gamma milestones"),
    "Step": (present.StepLR, "initial_learning_rate gamma step_size"),
    "CosineAnnealing": (present.CosineAnnealingLR, "initial_learning_rate T_max eta_min"),
    "Lambda": (present.LambdaLR, "initial_learning_rate"),
    "Multiplicative": (present.MultiplicativeLR, "initial_learning_rate coefficient"),
}


def _legacy(name: str, form: type[LRScheduler], order: str) -> Callable[..., LRScheduler]:
    """Return a function, no class: trainers list the subclasses of a schedule, which have one name each."""
    words = [*order.split(), "disable_lr_steps_reset"]

    def schedule(optimizer: torch.optim.Optimizer, *values: object, **keywords: object) -> LRScheduler:
        if len(values) > len(words):
            raise program_error(
                f"{name} takes at most {len(words)} arguments after the optimizer ({', '.join(words)}), got {len(values)}"
            )
        given = dict(zip(words, values, strict=False))
        given |= {ELDER_WORDS.get(word, word): value for word, value in keywords.items()}
        return form(optimizer, **{k: v for k, v in given.items() if k not in WITHOUT_EFFECT})  # type: ignore[arg-type]

    schedule.__name__ = schedule.__qualname__ = name
    schedule.__doc__ = form.__doc__
    return schedule


SCHEDULES = {name: _legacy(name, *described) for name, described in _SCHEDULES.items()}
SCHEDULES |= {"Linear": present.LinearLR, "PiecewiseConstant": present.PiecewiseConstantLR}


def add_names() -> None:
    """Add the older names to the module of the present ones."""
    for name, schedule in SCHEDULES.items():
        setattr(present, name, schedule)
