"""Work of a core on one token after another: vector instructions of one row, and storage per token.

A core receives `count` tokens into two alternating buffers; what it stores of a token is in a separate slot.
Inside the loop over pairs of tokens, slots advance by two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    """Slots of `pitch` elements per token in a buffer; `at` and `step` select the slot of a loop iteration."""

    buffer: Buffer
    pitch: int
    at: int = 0
    step: int = 0

    def of_turn(self, first: int, apart: int) -> Slots:
        """Return the slot of token `first`, advancing by `apart` tokens per iteration of the enclosing loop."""
        return replace(self, at=first * self.pitch, step=apart * self.pitch)

    def dsd(self, offset: int, length: int, stride: int = 1) -> Operand:
        """Return elements of the slot."""
        return self.buffer.dsd(self.at + offset, length, stride, step=self.step)


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


def in_turn(
    core: CoreClass,
    count: int,
    receive: Callable[[int], None],
    work: Callable[[int, int, int], None],
    threads: Sequence[int],
) -> None:
    """Process `count` items in two buffers: while one is processed, `threads` receive the next into the
    other.

    `work` gets the buffer (0 or 1), the first token, and the tokens per loop iteration.
    """

    def turn(now: int, first: int, apart: int, *, more: bool) -> None:
        for thread in threads:
            core.join(thread)
        if more:
            receive(1 - now)
        work(now, first, apart)

    receive(0)
    pairs, rest = divmod(count - 1, 2)
    if pairs:
        with core.loop(pairs):
            turn(0, 0, 2, more=True)
            turn(1, 1, 2, more=True)
    if rest:
        turn(0, 2 * pairs, 0, more=True)
    turn(rest, count - 1, 0, more=False)
