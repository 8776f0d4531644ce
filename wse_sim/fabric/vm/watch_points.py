"""Watch points: whether something happened to words of memory, to a color in a router, or to a queue since the last reset.

They read the shadows of the sanitizer, so the session must keep these.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np

from wse_sim.fabric.vm import state as S

_NOBODY = -99
"""Origin of the last word of a router that no word has."""


class WatchPoint(Protocol):
    """An event of one core."""

    core: int

    def reset(self, machine: S.Machine) -> None:
        """Reset the state: report only changes from here on."""

    def is_hit(self, machine: S.Machine) -> bool:
        """Whether it happened since the last reset."""


@dataclasses.dataclass
class MemoryWatch:
    """Words `address` to `address` + `words` of a core are written, with another value or the same."""

    core: int
    address: int
    words: int
    before: tuple[int, ...] = ()

    def _span(self, machine: S.Machine) -> slice:
        first = self.core * int(machine.sets[S.WORDS]) + self.address
        return slice(first, first + self.words)

    def reset(self, machine: S.Machine) -> None:
        """Keep the present value, forget who wrote."""
        self.before = self.now(machine)
        machine.written[self._span(machine)] = 0

    def now(self, machine: S.Machine) -> tuple[int, ...]:
        """Return the current words of the variable."""
        return tuple(int(word) for word in machine.memory[self._span(machine)])

    def is_hit(self, machine: S.Machine) -> bool:
        """Whether it was written."""
        return bool(machine.written[self._span(machine)].any()) or self.now(machine) != self.before


@dataclasses.dataclass
class ColorWatch:
    """Watch for a word of a color, by its slot, that passes the router of a core."""

    core: int
    slot: int

    def _row(self, machine: S.Machine) -> int:
        return self.slot * machine.core.shape[0] + self.core

    def reset(self, machine: S.Machine) -> None:
        """Forget the last word."""
        machine.merged[self._row(machine), 1] = _NOBODY

    def is_hit(self, machine: S.Machine) -> bool:
        """Return whether a watched word passed since the last look."""
        return bool(machine.merged[self._row(machine), 1] != _NOBODY)


@dataclasses.dataclass
class QueueWatch:
    """Watch for a word that enters an input or an output queue of a core."""

    core: int
    queue: int
    is_input: bool
    before: int = -1

    def _last(self, machine: S.Machine) -> int:
        """The cycle of the last word."""
        if self.is_input:
            return int(machine.iq_last[self.queue, self.core])
        return int(np.max(machine.oq_from[self.queue, self.core, :, 2]))

    def reset(self, machine: S.Machine) -> None:
        """Keep the cycle of the last word."""
        self.before = self._last(machine)

    def is_hit(self, machine: S.Machine) -> bool:
        """Return whether another word arrived."""
        return self._last(machine) != self.before
