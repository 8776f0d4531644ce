"""Slots of samples in flight: what a core stores of a sample between its forward and its backward pass."""

from __future__ import annotations

from dataclasses import dataclass, replace

from wse_sim.fabric.format.builder import Buffer
from wse_sim.fabric.format.classes import Operand
from wse_sim.kernels.families.attention.pairs import slot_elements


@dataclass(frozen=True)
class Slotted:
    """A buffer of samples, at slot `first`, or that many after the slot of the loop over samples.

    Instructions with a step are in a separate loop inside that loop.
    """

    buffer: Buffer
    size: int
    first: int = 0
    moves: bool = False

    @staticmethod
    def pitch(size: int) -> int:
        """Return the elements from slot to slot."""
        return int(slot_elements(size))

    def dsd(self, offset: int = 0, length: int | None = None, stride: int = 1, *, step: int = 0) -> Operand:
        """Return elements of the slot."""
        apart = self.pitch(self.size)
        moving = apart if self.moves else 0
        length = self.size - offset if length is None else length
        at = self.first * apart + offset
        if step:
            return self.buffer.dsd(at, length, stride, step=step, outer_step=moving)
        return self.buffer.dsd(at, length, stride, step=moving)


@dataclass(frozen=True)
class Turn:
    """A sample of a round: its slot, whether a loop advances it, and whether it is the last of its pass."""

    first: int
    moves: bool = False
    is_last: bool = False

    def of(self, held: Slotted) -> Slotted:
        """Return the slot of this sample."""
        return replace(held, first=self.first, moves=self.moves)
