"""Schedules as trainers of 1.8 make them: all arguments by position, and a last one without effect."""

from __future__ import annotations

import math

import pytest

from tests.cstorch.test_schedules import course, optimizer
from wse_sim.cstorch.faults import ProgramError
from wse_sim.cstorch.optim import lr_scheduler

# Name: (arguments after the optimizer, rate of step t by hand).
SCHEDULES = {
    "Constant": ((0.1, 5), lambda t: 0.1),
    "Polynomial": ((0.2, 0.1, 10, 1.0, False), lambda t: 0.2 - 0.01 * t),
    "Exponential": ((0.4, 2, 0.5, False), lambda t: 0.4 * 0.5 ** (t / 2)),
    "InverseExponentialTimeDecay": ((0.4, 1.0, 2, 0.5, False), lambda t: 0.4 / (1 + 0.5 * t / 2)),
    "InverseSquareRootDecay": ((1.0, 3.0, 2), lambda t: 3.0 / math.sqrt(max(t, 2))),
    "CosineDecay": ((0.2, 0.0, 8), lambda t: 0.1 * (1 + math.cos(math.pi * t / 8))),
    "MultiStep": ((0.8, 0.5, [2, 4]), lambda t: 0.8 * 0.5 ** ((t >= 2) + (t >= 4))),
    "Step": ((0.8, 0.5, 3), lambda t: 0.8 * 0.5 ** (t // 3)),
    "CosineAnnealing": ((0.2, 8, 0.0), lambda t: 0.1 * (1 + math.cos(math.pi * t / 8))),
    "CosineAnnealingWarmRestarts": ((0.2, 4, 1, 0.0), lambda t: 0.1 * (1 + math.cos(math.pi * (t % 4) / 4))),
    "Multiplicative": ((0.8, 0.5), lambda t: 0.8 * 0.5**t),
    "CyclicLR": ((0.1, 0.5, 4, 4, "triangular", 1.0, "cycle"), lambda t: 0.1 + 0.4 * (t if t < 4 else 8 - t) / 4),
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEDULES)
def test_arguments_have_their_legacy_places(name: str) -> None:
    """The rate of six steps by each schedule's formula."""
    values, rate = SCHEDULES[name]
    schedule = getattr(lr_scheduler, name)(optimizer(), *values, False)
    assert course(schedule, 6) == pytest.approx([rate(t) for t in range(6)], rel=1e-6)


def test_other_arguments_are_a_sentence_and_words_may_be_legacy() -> None:
    """`decay_steps` is `total_iters`; the error for one argument too many lists the arguments."""
    rates = lr_scheduler
    schedule = rates.Polynomial(optimizer(), 0.2, 0.1, decay_steps=10)
    assert course(schedule, 2) == pytest.approx([0.2, 0.19])
    with pytest.raises(ProgramError, match="Step takes at most 4 arguments after the optimizer"):
        rates.Step(optimizer(), 0.1, 0.5, 3, False, 7)
