"""Work of a core on one token after another: vector instructions of one row, and storage per token.

What a core stores of a token, or of a sample in flight, is in a separate slot. Inside a loop over tokens
(:mod:`wse_sim.whole.regions.turns`), slots advance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wse_sim.fabric.format.builder import Buffer, scalar
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.fabric.format.program import Fn
from wse_sim.kernels.blocks.line_stages import (
    FUNCTIONS,
    ROW,
    RowLayout,
    Shapes,
    Sharing,
    Vector,
    is_wide,
    precision,
)
from wse_sim.kernels.blocks.rounds import even


@dataclass(frozen=True)
class Slots:
    """Slots in a buffer, `pitch` elements apart, each with `size` elements of a token or of a sample; `at` and `step` select
    the slot of a loop iteration."""

    buffer: Buffer
    pitch: int
    size: int
    at: int = 0
    step: int = 0

    def of_turn(self, first: int, apart: int) -> Slots:
        """Return slot `first`, advancing by `apart` slots per iteration of the enclosing loop."""
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


def emit_row(
    core: CoreClass,
    vectors: Sequence[Vector],
    shapes: Shapes,
    buffers: Mapping[str, Held],
    features: int,
    place: tuple[Sharing, int],
) -> None:
    """Emit instructions on one row of `features` elements; each pays one vector start. Sums over the cores of a row of
    cores are those of the position in `place`."""
    sharing, position = place
    layout = RowLayout(1, features, by_row=True)
    for vector in vectors:
        if vector.collective:
            held = buffers[vector.to]
            assert isinstance(held, Buffer)  # statistics
            sharing.reduce(core, position, vector.op.split()[1], held)
            sharing.multicast(core, position, held)
            continue
        wide = is_wide(vector, shapes)

        def operand(name: str | float, wide: bool = wide) -> Operand:
            if not isinstance(name, str):
                return scalar(name)
            shape = shapes[name]
            size = layout.elements(shape.kind)
            buffer = buffers[shape.within or name]
            if wide and shape.kind == ROW:
                return buffer.dsd(shape.half * even(size), 1, 0)
            return buffer.dsd(shape.half * even(size), size)

        operands = [operand(name) for name in (vector.to, *vector.of)]
        length = features if wide else layout.elements(shapes[vector.to].kind)
        how: dict[str, Any] = {"length": length, "dtype": precision(vector, shapes)}
        if vector.op in FUNCTIONS:
            core.map(Fn[vector.op.upper()], *operands, **how)
        else:
            getattr(core, vector.op)(*operands, **how)
