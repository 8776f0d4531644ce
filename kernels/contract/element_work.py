"""The work of a core on its elements of one tensor: y = f(x, tables), and the gradient of x.

A family that describes its work this way has programs wherever its kernels run: alone, in a region of a pipeline,
forward and backward in training, and in CSL. The simulator places the elements, streams the operand in and the result out,
and keeps the tables on the cores. A core has whole *units* of consecutive elements of a token; no unit reads another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.graph import Phase
from wse_sim.hardware import Wafer

BANKS = 4
"""Two vectors are in the same bank if they begin a multiple of this number of 16-bit words apart."""
WITH_X, WITH_TABLES = 0, 2
"""Banks in which x and y begin, and in which tables begin."""
Floats = NDArray[np.float32]
Rounded = Callable[[Floats], Floats]


class Held(NamedTuple):
    """The tables and the scratch vectors on a core."""

    tables: Sequence[Operand]
    scratch: Sequence[Operand]


@dataclass(frozen=True)
class ElementWork(ABC):
    """Work on units of elements.

    Vectors of a core: x and y begin in one memory bank, tables in another one, so that an instruction reads x or y together
    with a table at the same place without a conflict.

    Attributes
    ----------
    unit : int
        Elements of a token that stay together on a core; an even number.
    dtype : str
        Precision of all vectors.
    tables : tuple of str
        Names of the tables, constants of the model with (tokens, features) elements, or fewer that are repeated.
    """

    unit: int
    dtype: str = "fp16"
    tables: ClassVar[tuple[str, ...]] = ()

    @property
    def scratch(self) -> tuple[int, ...]:
        """Banks of the scratch vectors that it needs: :data:`WITH_X` or :data:`WITH_TABLES`."""
        return ()

    @property
    def table_width(self) -> int:
        """Features of a unit for which the model's tables have values."""
        return self.unit

    @abstractmethod
    def values(self, x: Floats, *tables: Floats, rounded: Rounded) -> Floats:
        """Return y of units (..., unit), with tables of the same shape; `rounded` rounds what an instruction stores.

        Only arithmetic and indexing: tensors of PyTorch take the place of the arrays when a model is checked.
        """

    @abstractmethod
    def forward(self, core: CoreClass, y: Operand, x: Operand, held: Held, count: int) -> None:
        """Write the instructions for `count` elements, whole units."""

    @abstractmethod
    def backward(self, core: CoreClass, x: Operand, g: Operand, held: Held, count: int) -> None:
        """Write the instructions that replace x by its gradient; g is the gradient of y."""

    @abstractmethod
    def unit_cycles(self, phase: Phase, wafer: Wafer) -> float:
        """Return the issue cycles of one unit, without vector starts."""

    @abstractmethod
    def starts(self, phase: Phase) -> int:
        """Return the number of vector starts, however many units a core has."""

    def table(self, number: int, values: Floats, features: int) -> Floats:
        """Return table `number` as the cores store it, (rows, features), from the model's constant; rows of fewer
        features are repeated."""
        rows = np.asarray(values, np.float32).reshape(-1, np.shape(values)[-1])
        return np.tile(rows, (1, features // rows.shape[-1]))

    def gradient_values(self, x: Floats, g: Floats, *tables: Floats) -> Floats:
        """Return the gradient of x by differences of :meth:`values`: exact where y is linear (or quadratic) in x."""
        found = np.zeros_like(x)
        for place in range(self.unit):
            step = np.zeros(self.unit, np.float32)
            step[place] = 1.0
            above, below = (self.values(at, *tables, rounded=np.asarray) for at in (x + step, x - step))
            found[..., place] = ((above - below) / 2 * g).sum(-1)
        return found

    def on_units(
        self,
        core: CoreClass,
        instruction: str,
        vectors: Sequence[Operand],
        places: Sequence[int],
        length: int,
        count: int,
        *,
        every: int = 0,
    ) -> None:
        """Write an instruction, such as "add", on `length` elements of every unit (or of every `every` elements), which begin at
        `places` in the `vectors`, the result first; all units together pay one start."""
        every = every or self.unit
        pairs = list(zip(vectors, places, strict=True))
        write = getattr(core, instruction)
        write(*(part(vector, first, length) for vector, first in pairs), dtype=self.dtype)
        if count > every:
            with core.loop(count // every - 1):
                operands = (part(vector, first + every, length, step=every) for vector, first in pairs)
                write(*operands, dtype=self.dtype, start="none")


def part(
    operand: Operand, first: int, length: int | None = None, stride: int = 1, *, step: int = 0
) -> Operand:
    """Return elements of a vector of a core, from `first`; `step` is added per turn of a loop around the instruction."""
    found = replace(operand, offset=operand.offset + first, length=length, stride=stride)
    return replace(found, step=step, outer_step=operand.step) if step else found
