"""Closed forms of the step count for the sparsity and for the fractions to drop, and the steps at which masks change."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from wse_sim.cstorch import faults


class StepFraction(ABC):
    """A fraction between 0 and 1 as a function of the step count t (an int64 tensor)."""

    @abstractmethod
    def __call__(self, t: torch.Tensor) -> torch.Tensor:
        """Return the fraction at t."""

    def start(self) -> float:
        """Return the fraction at step 0."""
        return float(self(torch.tensor(0)))


@dataclass
class Constant(StepFraction):
    """``value``."""

    value: float

    def __call__(self, t: torch.Tensor) -> torch.Tensor:
        return torch.full_like(t, self.value, dtype=torch.float32)


@dataclass
class Linear(StepFraction):
    """``init + slope t``."""

    init: float
    slope: float

    def __call__(self, t: torch.Tensor) -> torch.Tensor:
        return torch.clamp(self.init + self.slope * t, 0.0, 1.0)


@dataclass
class Exponential(StepFraction):
    """``final + (init - final) e^(gamma t)``, gamma below 0."""

    init: float
    gamma: float
    final: float = 1.0

    def __call__(self, t: torch.Tensor) -> torch.Tensor:
        return torch.clamp(self.final + (self.init - self.final) * torch.exp(self.gamma * t), 0.0, 1.0)


@dataclass
class Polynomial(StepFraction):
    """``final + (init - final) (1 - t / T)^power``: with power 3 the gradual magnitude pruning of its paper."""

    init: float
    final: float
    total_steps: int
    power: float = 3.0

    def __call__(self, t: torch.Tensor) -> torch.Tensor:
        left = 1 - torch.clamp(t / self.total_steps, max=1.0)
        return self.final + (self.init - self.final) * left**self.power


@dataclass
class Cosine(StepFraction):
    """Follows half a cosine wave from ``init`` to ``minimum``, over ``half_period`` steps."""

    init: float
    half_period: float
    minimum: float = 0.0

    def __call__(self, t: torch.Tensor) -> torch.Tensor:
        wave = 0.5 * (1 + torch.cos(math.pi * torch.clamp(t / self.half_period, max=1.0)))
        return self.minimum + (self.init - self.minimum) * wave


@dataclass
class Steps(StepFraction):
    """Levels that are selected by the number of the update."""

    levels: Sequence[float]
    update: UpdateSchedule

    def __call__(self, t: torch.Tensor) -> torch.Tensor:
        value = torch.full_like(t, self.levels[0], dtype=torch.float32)
        for level, step in zip(self.levels[1:], self.update.first(len(self.levels) - 1), strict=False):
            value = torch.where(t < step, value, level)
        return value


class UpdateSchedule(ABC):
    """Schedule of the steps at which masks change."""

    @abstractmethod
    def is_update_step(self, t: torch.Tensor) -> torch.Tensor:
        """Return whether masks change at this step, as a tensor."""

    @abstractmethod
    def first(self, count: int) -> list[int]:
        """Return the first update steps."""


@dataclass
class FreqUpdateSchedule(UpdateSchedule):
    """Updates masks every ``freq`` steps from ``start`` on, before ``stop``."""

    freq: int = 1
    start: int = 0
    stop: int | None = None

    def __post_init__(self) -> None:
        if self.freq < 1 or self.start < 0:
            raise faults.program_error(
                f"the update of sparsity every {self.freq} steps from {self.start} on is invalid; give freq >= 1 and start >= 0"
            )

    def is_update_step(self, t: torch.Tensor) -> torch.Tensor:
        found = (t >= self.start) & ((t - self.start) % self.freq == 0)
        return found if self.stop is None else found & (t < self.stop)

    def first(self, count: int) -> list[int]:
        return [self.start + i * self.freq for i in range(1, count + 1)]


@dataclass
class ListUpdateSchedule(UpdateSchedule):
    """Updates masks at listed steps."""

    steps: Sequence[int]

    def is_update_step(self, t: torch.Tensor) -> torch.Tensor:
        found = torch.zeros_like(t, dtype=torch.bool)
        for step in self.steps:
            found = found | (t == step)
        return found

    def first(self, count: int) -> list[int]:
        return sorted(self.steps)[:count]


FORMS = {
    "constant": Constant,
    "linear": Linear,
    "exp": Exponential,
    "exponential": Exponential,
    "polynomial": Polynomial,
    "power": Polynomial,
    "cosine": Cosine,
}


def form_of(value: object, update: UpdateSchedule) -> StepFraction:
    """Return a form from a number, a list of levels, a dict with ``type``, or a form.

    Raises:
        ProgramError: shares out of range, an unknown type, wrong arguments.
    """
    if isinstance(value, StepFraction):
        return value
    if isinstance(value, int | float):
        if not 0 <= value < 1:
            raise faults.program_error(f"sparsity {value} must be a fraction of zeros from 0 to below 1")
        return Constant(float(value))
    if isinstance(value, Mapping):
        rest = {k: v for k, v in value.items() if k != "type"}
        cls = FORMS.get(str(value.get("type", "constant")).lower())
        if cls is None:
            raise faults.program_error(
                f"the schedule of sparsity '{value.get('type')}' is unknown; the types are {', '.join(FORMS)}"
            )
        try:
            return cls(**rest)  # type: ignore[no-any-return]
        except TypeError as fault:
            raise faults.program_error(
                f"the schedule of sparsity {dict(value)} does not fit {cls.__name__}: {fault}"
            ) from None
    if isinstance(value, Sequence) and value:
        return Steps([float(v) for v in value], update)
    raise faults.program_error(
        f"sparsity is a fraction, a list of fractions or a dict with 'type'; got {value!r}"
    )


def update_of(value: object) -> UpdateSchedule:
    """Return when masks change: by a schedule, a dict with ``freq`` or ``steps``, or at every step."""
    if isinstance(value, UpdateSchedule):
        return value
    if value is None:
        return FreqUpdateSchedule()
    if isinstance(value, Mapping):
        if "steps" in value:
            return ListUpdateSchedule(list(value["steps"]))
        known = {k: value[k] for k in ("freq", "start", "stop") if value.get(k) is not None}
        return FreqUpdateSchedule(**known)
    if isinstance(value, Sequence):
        return ListUpdateSchedule(list(value))
    raise faults.program_error(
        f"the update of sparsity is a dict with freq, start and stop, or a list of steps; got {value!r}"
    )
