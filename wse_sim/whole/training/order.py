"""The order in which a core with inputs works and sends sums, written as loops.

Symbols: B samples; d of them in flight; l passes that sums of gradients of the inputs lag behind::

    forward 0 .. d - 1;  backward i - d, forward i for i = d .. B - 1;  backward B - d .. B - 1
    in backward i the sums of i - l are sent west, before the gradients of the weights; the last ones follow

These sums pass a row of cores, one after the other.  A core far down the row has its own part long before the sum arrives.
One that sent it in the same pass would wait for the row in every pass, and with it all cores that take the same words; so
it sends it as many passes later as the sum is on its way.  A buffer of samples in flight has d slots; sample i uses slot
``i mod d``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

from wse_sim.fabric.format.classes import CoreClass

FORWARD, BACKWARD, WEST, WEIGHTS = "forward", "backward", "west", "weights"
Step = tuple[tuple[str, int], ...]
"""What is done one after the other, each with its sample."""
Write = Callable[[int], None]
"""Writes one of them for the slot that the innermost loop counts from the number given."""


def steps_of(samples: int, flight: int, lag: int) -> list[Step]:
    """All steps of a batch."""

    def backward(i: int) -> Step:
        return ((BACKWARD, i), *([(WEST, i - lag)] if i >= lag else ()), (WEIGHTS, i))

    return [
        *(((FORWARD, i),) for i in range(flight)),
        *((*backward(i - flight), (FORWARD, i)) for i in range(flight, samples)),
        *(backward(i) for i in range(samples - flight, samples)),
        *(((WEST, i),) for i in range(max(0, samples - lag), samples)),
    ]


def write_steps(core: CoreClass, samples: int, flight: int, lag: int, write: Mapping[str, Write]) -> None:
    """The steps as loops: the steady ones are a loop over all slots, times."""
    steps = steps_of(samples, flight, lag)
    head = flight + lag  # from here on a step has all parts
    rounds = max(0, samples - head) // flight
    _write(core, steps[:head], flight, write)
    if rounds:
        with core.loop(rounds):
            _write(core, steps[head : head + flight], flight, write)
    _write(core, steps[head + flight * rounds :], flight, write)


def _write(core: CoreClass, steps: Sequence[Step], flight: int, write: Mapping[str, Write]) -> None:
    """Loops of steps that differ by their slots alone, each by one from turn to turn."""
    slots = [tuple((what, i % flight) for what, i in step) for step in steps]
    # Of such steps in a row, slot less number is the same.
    runs = groupby(enumerate(slots), lambda each: [(what, slot - each[0]) for what, slot in each[1]])
    for _, run in runs:
        members = [step for _, step in run]
        with core.loop(len(members)):
            for what, slot in members[0]:
                write[what](slot)
