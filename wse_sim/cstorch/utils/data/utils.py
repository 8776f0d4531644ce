"""Computes sizes of batches and runs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Generator, Iterable, Iterator, Sized
from typing import Any, Protocol, runtime_checkable

from wse_sim.cstorch import faults
from wse_sim.cstorch.batches import infer_batch_size as infer_batch_size  # noqa: PLC0414  (trainers import it from here)


def compute_num_steps(
    dataloader: object,
    initial_step: int = 0,
    num_steps: int | None = None,
    max_steps: int | None = None,
    num_epochs: int | None = None,
    steps_per_epoch: int | None = None,
    grad_accum_steps: int = 1,
) -> int:
    """Return the number of batches that remain.

    Args:
        dataloader: its length is the default of ``steps_per_epoch``.
        initial_step: steps done before (by a resumed run); counts against ``max_steps``.
        num_steps: steps of this run; excludes ``num_epochs``.
        max_steps: steps of all runs together.
        num_epochs: passes over the data.
        steps_per_epoch: steps that make a pass.
        grad_accum_steps: batches per step.

    Raises:
        ProgramError: both or neither of the groups are given, or nothing is left to run.
    """
    check_counts(
        "compute_num_steps",
        num_steps=num_steps,
        max_steps=max_steps,
        num_epochs=num_epochs,
        steps_per_epoch=steps_per_epoch,
        grad_accum_steps=grad_accum_steps,
    )
    if num_steps is not None and num_epochs is not None:
        raise faults.program_error(
            f"num_steps={num_steps} and num_epochs={num_epochs} exclude each other; give one of them"
        )
    limits = []
    if num_steps is not None:
        limits.append(num_steps)
    if num_epochs is not None:
        per_epoch = steps_per_epoch
        if per_epoch is None:
            length = length_of(dataloader)
            if length is None:
                raise faults.program_error(
                    "num_epochs needs the length of the data, which is unknown; give steps_per_epoch"
                )
            per_epoch = length // grad_accum_steps
        limits.append(num_epochs * per_epoch)
    if max_steps is not None:
        limits.append(max_steps - initial_step)
    if not limits:
        raise faults.program_error(
            "the number of steps is not given; give num_steps, max_steps or num_epochs"
        )
    left = min(limits)
    if left <= 0:
        raise faults.program_error(
            f"no step is left to run: {initial_step} steps are done of max_steps={max_steps}, and an epoch of "
            "this data may be empty; raise max_steps or give more data"
        )
    return left * grad_accum_steps


def check_counts(owner: str, **counts: int | None) -> None:
    for name, value in counts.items():
        if value is not None and (isinstance(value, bool) or int(value) != value or value < 1):
            raise faults.program_error(f"{owner}: {name}={value} must be an integer of at least 1")


def length_of(loader: object) -> int | None:
    """Return the batches of one pass, or None."""
    if not isinstance(loader, Sized):
        return None
    try:
        return len(loader)
    except TypeError:
        return None


@runtime_checkable
class BatchSource(Protocol):
    """Methods of a loader that an executor calls; see :class:`wse_sim.cstorch.utils.data.dataloader.DataLoader`."""

    @property
    def dataloader(self) -> Any: ...
    def limit(self) -> int | None: ...
    def batches(self, endless: bool = True, workers: int = 1) -> Generator[Any, None, None]: ...


@dataclasses.dataclass
class Schedule:
    """The steps that belong to one of several ranges; they count from 0."""

    @dataclasses.dataclass
    class Range:
        """Steps ``start, start + step, ...`` below ``end`` (None: without end), and the last one if it is wanted."""

        start: int = 0
        end: int | None = None
        step: int = 1
        include_last: bool = False

        def match(self, step: int) -> bool:
            if self.include_last and self.end is not None and step == self.end - 1:
                return True
            inside = step >= self.start and (self.end is None or step < self.end)
            return inside and (step - self.start) % self.step == 0

        def range(self) -> range:
            """Return the steps without the additional last one.

            Raises:
                ProgramError: the range has no end.
            """
            if self.end is None:
                raise faults.program_error("Schedule.Range: a range without an end has no length; give end")
            return range(self.start, self.end, self.step)

        def next_immediate_step(self, step: int) -> int:
            """Return the first step that is not before `step`; the end if there is none."""
            return next((s for s in self if s >= step), step if self.end is None else self.end)

        def __iter__(self) -> Iterator[int]:
            if self.end is None:
                yield from itertools.count(self.start, self.step)
            else:
                steps = self.range()
                yield from steps
                if self.include_last and self.end - 1 >= self.start and self.end - 1 not in steps:
                    yield self.end - 1

        def __len__(self) -> int:
            return sum(1 for _ in self) if self.end is not None else len(self.range())

    ranges: list[Range] = dataclasses.field(default_factory=list)

    def match(self, step: int) -> bool:
        return any(r.match(step) for r in self.ranges)

    def match_after(self, step: int) -> Iterable[int]:
        """Yield the matching steps from ``step`` on (without end if a range has none)."""
        ends = [r.end for r in self.ranges]
        bounded = [e for e in ends if e is not None]
        limit = max(bounded) if len(bounded) == len(ends) and bounded else None
        while limit is None or step < limit:
            if self.match(step):
                yield step
            step += 1
