"""Storage on a core for what it keeps of a token, or of a sample in flight: each has a separate slot, and inside a loop over tokens
(:mod:`wse_sim.whole.regions.turns`) slots advance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from wse_sim.fabric.format.builder import Buffer
from wse_sim.fabric.format.classes import Operand


@dataclass(frozen=True)
class Slots:
    """Slots in a buffer, `pitch` elements apart, each with `size` elements of a token or of a sample; `at` and `step` select
    the slot of a loop iteration. With `turns`, there are no more slots than that, and items use them round-robin."""

    buffer: Buffer
    pitch: int
    size: int
    at: int = 0
    step: int = 0
    turns: int = 0

    def of_turn(self, first: int, apart: int) -> Slots:
        """Return slot `first`, advancing by `apart` slots per iteration of the enclosing loop; with `turns`, a
        multiple of these."""
        if self.turns:
            first, apart = first % self.turns, apart % self.turns
        return replace(self, at=first * self.pitch, step=apart * self.pitch)

    def dsd(
        self, offset: int = 0, length: int | None = None, stride: int = 1, *, step: int | None = None
    ) -> Operand:
        """Return elements of the slot; with a `step`, of an instruction in a separate loop inside the enclosing one."""
        at, length = self.at + offset, self.size - offset if length is None else length
        if step is None:
            return self.buffer.dsd(at, length, stride, step=self.step)
        return self.buffer.dsd(at, length, stride, step=step, outer_step=self.step)


Held = Buffer | Slots
