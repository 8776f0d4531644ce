"""The order in which a core with inputs works and sends sums, written as loops.

Symbols: B samples; d of them in flight; l passes that sums of input gradients lag behind::

    forward 0 .. d - 1;  backward i - d, forward i for i = d .. B - 1;  backward B - d .. B - 1
    in backward i the sums of i - l are sent west, before the gradients of the weights; the last ones follow

These sums pass along a row of cores. A core far down the row has its part long before the sum arrives. If it
sent its part in the same pass, it would wait for the row in every pass, and so would all cores that receive
the same words. So it sends the part later, by the number of passes that the sum needs to arrive. A buffer of
samples in flight has d slots; sample i uses slot ``i mod d``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

from wse_sim.fabric.format.classes import CoreClass

FORWARD, BACKWARD, WEST, WEIGHTS = "forward", "backward", "west", "weights"
Step = tuple[tuple[str, int], ...]
"""Operations in order, each with its sample."""
Write = Callable[[int], None]
"""Writes one operation for the slot that the innermost loop counts from the given number."""


def steps_of(samples: int, flight: int, lag: int) -> list[Step]:
    """Return all steps of a batch."""

    def backward(i: int) -> Step:
        return ((BACKWARD, i), *([(WEST, i - lag)] if i >= lag else ()), (WEIGHTS, i))

    return [
        *(((FORWARD, i),) for i in range(flight)),
        *((*backward(i - flight), (FORWARD, i)) for i in range(flight, samples)),
        *(backward(i) for i in range(samples - flight, samples)),
        *(((WEST, i),) for i in range(max(0, samples - lag), samples)),
    ]


def write_steps(core: CoreClass, samples: int, flight: int, lag: int, write: Mapping[str, Write]) -> None:
    """Write the steps as loops: in steady state, a loop over all slots, repeated."""
    steps = steps_of(samples, flight, lag)
    head = flight + lag  # from here on a step has all parts
    rounds = max(0, samples - head) // flight
    _write(core, steps[:head], flight, write)
    if rounds:
        with core.loop(rounds):
            _write(core, steps[head : head + flight], flight, write)
    _write(core, steps[head + flight * rounds :], flight, write)


def _write(core: CoreClass, steps: Sequence[Step], flight: int, write: Mapping[str, Write]) -> None:
    """Write loops of steps whose slots advance by one per iteration."""
    slots = [tuple((what, i % flight) for what, i in step) for step in steps]
    # In a run of such steps, slot minus index is constant.
    runs = groupby(enumerate(slots), lambda each: [(what, slot - each[0]) for what, slot in each[1]])
    for _, run in runs:
        members = [step for _, step in run]
        with core.loop(len(members)):
            for what, slot in members[0]:
                write[what](slot)
