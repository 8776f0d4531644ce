"""Resources that all cores of a streamed model share: colors, buffers, and the kinds of columns in a lane."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from wse_sim.fabric.format.builder import Buffer, Builder, Operand, Param
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.activation_slopes import Slopes
from wse_sim.whole.streaming.layout import StreamedLayer, StreamedLayout


@dataclass(frozen=True)
class Colors:
    """Colors of the program; a pair alternates from core to core."""

    weights: int = 0  # down the columns
    gradients: int = 1  # along the lanes, sent by every core in sequence
    sums: tuple[int, int] = (2, 3)  # along the lanes
    back: int = 4  # results, from the last column of a lane to their owners
    rising: int = 5  # weights from the row below to the row above
    along: tuple[int, int] = (6, 7)  # sums of weight gradients along the columns
    arriving: tuple[int, int] = (8, 9)  # on the outer rows, from the west and from the east edge
    leaving: tuple[int, int] = (10, 11)
    between: tuple[tuple[int, int], tuple[int, int]] = ((12, 13), (14, 15))  # lanes, on the outer rows


COLORS = Colors()
GRADIENTS_QUEUE = 1
QUEUES = {
    0: (COLORS.weights,),
    GRADIENTS_QUEUE: (COLORS.gradients, *COLORS.arriving, COLORS.rising),
    2: COLORS.sums,
    3: (COLORS.back,),
    4: COLORS.along,
    5: (*COLORS.between[0], *COLORS.between[1]),
}
"""Input queues of the colors; colors that share a queue never meet on a core."""


@dataclass(frozen=True)
class ColumnKind:
    """Cores with the same program: their position in the lane, and in the chain of sums along the columns."""

    is_first: bool  # of the columns of a lane
    is_last: bool
    parity: int  # of the column
    ends: tuple[bool, ...]  # of every layer: whether the column is the last owner of its outputs
    begins: bool  # the sums along its column
    row_parity: int  # along the sums


MOST_AT_ONCE = 64
"""Most fp32 elements between the steps of a function: more would save few cycles and cost memory."""


def _opposite(bank: int) -> int:
    """Return the opposite bank: values are where :class:`Slopes` has slopes and vice versa, so that products
    read x and sums in order."""
    return 2 - bank


@dataclass
class Cores:
    """The builder, and the buffers of the cores: two vectors that one instruction reads are in different banks."""

    b: Builder
    wafer: Wafer
    layout: StreamedLayout

    def __post_init__(self) -> None:
        lay, area = self.layout, self.layout.area
        self.where = (slice(area.row, area.row + area.rows), slice(area.col, area.col + area.cols))
        sizes = lay.sizes
        sums = max(lay.held, *sizes)
        self.y = self._over("sums", sums, "fp32", 0)
        self.x = [self._over(f"x{p}", size * lay.apart, "fp16", 2) for p, size in enumerate(sizes)]
        self.raw = self._over("results", max(sizes) * lay.held, "fp32", 0)
        self.bias = self._over("bias", 2 * max(sizes), "fp32", 2)
        self.ones = self._over("ones", lay.apart, "fp16", 1)
        if lay.is_training:
            self.g = [self._over(f"g{p}", size * lay.apart, "fp16", 2) for p, size in enumerate(sizes)]
            self.slope = self._over("slope", max(sizes) * lay.apart, "fp16", 0)
            self.wanted = self._over("wanted", sizes[-1] * lay.apart, "fp16", 0)
            self.real = self._over("real", sizes[-1] * lay.apart, "fp16", 0)
            self._slopes()

    def _over(self, name: str, length: int, dtype: str, bank: int) -> Buffer:
        return self.b.buffer(name, length, dtype, self.where, bank=bank)

    def _slopes(self) -> None:
        """Declare stored derivatives of functions, unless they follow from the outputs, and scratch buffers
        to compute them."""
        lay = self.layout
        curved = [layer for layer in lay.layers if layer.function not in (None, "relu")]
        self.slopes = {
            layer.number: self._over(f"slopes{layer.number}", layer.outputs * lay.apart, "fp16", 0)
            for layer in curved
        }
        between = [Slopes(str(layer.function), self.wafer).scratch for layer in curved]
        banks = max(between, key=len) if between else ()
        size = max((self.bent_at_once(layer)[0] for layer in curved), default=0)
        self._scratch = [
            self._over(f"between{i}", size, "fp32", _opposite(bank)) for i, bank in enumerate(banks)
        ]

    def scratch_of(self, slopes: Slopes, size: int) -> list[Operand]:
        """Return the scratch buffers of one function: the first ones, since all functions start with the same
        banks."""
        return [buffer.dsd(0, size) for buffer in self._scratch[: len(slopes.scratch)]]

    def bent_at_once(self, layer: StreamedLayer) -> tuple[int, int, int]:
        """Return the elements of an activation per instruction, the distance to the next ones, and the number
        of instructions.

        A function is expensive, so padding should be skipped; but short vectors are expensive as well, since
        every instruction has a start.
        """
        lay, whole = self.layout, layer.outputs * self.layout.apart
        one, every = (Slopes(str(layer.function), self.wafer).cycles(n) for n in (lay.held, whole))
        if lay.is_training and whole <= MOST_AT_ONCE and every < layer.outputs * one:
            return whole, 0, 1
        return lay.held, lay.apart, layer.outputs

    def per_column(self, count: Callable[[int], int]) -> Param:
        """Return a per-core parameter that depends only on the column in the lane."""
        lay = self.layout
        values = np.zeros((self.b.rows, self.b.cols), np.int32)
        values[self.where] = np.tile([count(col) for col in range(lay.cols)], lay.lanes)
        return self.b.param(values)

    def kinds(self) -> dict[ColumnKind, list[tuple[int, int]]]:
        """Return the kinds of cores with their fabric cells."""
        lay, found = self.layout, dict[ColumnKind, list[tuple[int, int]]]()
        last_owners = [layer.n - 1 for layer in lay.layers]
        for col in range(lay.cols):
            down = lay.stream_of(col).is_downward
            ends = tuple(
                lay.is_training and col == last // layer.outputs
                for last, layer in zip(last_owners, lay.layers, strict=True)
            )
            for row in range(lay.area.rows):
                along = row if down else lay.area.rows - 1 - row
                begins, parity = (along == 0, along % 2) if lay.is_training else (False, 0)
                kind = ColumnKind(col == 0, col == lay.cols - 1, col % 2, ends, begins, parity)
                cells = found.setdefault(kind, [])
                cells += [(lay.area.row + row, lay.fabric_col(lane, col)) for lane in range(lay.lanes)]
        return found

    def place(self, core: CoreClass, cells: Iterable[tuple[int, int]]) -> None:
        """Assign a core class to cells."""
        mask = np.zeros((self.b.rows, self.b.cols), bool)
        mask[tuple(np.array(list(cells)).T)] = True
        self.b.place(core, mask)
