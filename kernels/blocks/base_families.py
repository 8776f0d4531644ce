"""Common base classes of families: work on elements in place, on rows, and on lines of cores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

from wse_sim.graph import Kernel, Tensor
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.probes import elements_probe
from wse_sim.kernels.blocks.training import pointwise_gradient
from wse_sim.kernels.contract.equations import bytes_of, ceil_div, pointwise_footprint
from wse_sim.kernels.contract.family import (
    NONE,
    Attrs,
    Dims,
    Family,
    Footprint,
    How,
    Kept,
    Lay,
    Probe,
    Size,
    Tiling,
    lay_of_operands,
)
from wse_sim.kernels.contract.parameters import WordAttributes, sizes
from wse_sim.kernels.contract.tape import Tape


class OnePass(Family):
    """A family whose backward pass is one kernel, which reads the result's gradient and what was kept."""

    moves = False  # the gradient needs only that of the result, as for a copy

    def keeps(self, kernel: Kernel, trained: frozenset[str], tensors: Mapping[str, Tensor]) -> Kept:
        """Return the inputs, or nothing if the gradient needs only that of the result."""
        return Kept() if self.moves else Kept(kernel.inputs)

    def gradients(self, kernel: Kernel, gradient: str, tape: Tape) -> None:
        """Emit one pass with the result's gradient and the stored tensors as its operands."""
        pointwise_gradient(kernel, gradient, tape, moves=self.moves)


class OnElements(OnePass):
    """A family that works on each element in place, spread over all cores of the rectangle."""

    dims: Mapping[str, str] = sizes(elements="elements")
    mappings = ("stationary", "streamed")
    lies = "elements over all cores"
    programs = "forward and backward"
    bands = "1 %"

    def elements(self, dims: Dims) -> Size:
        """Return the number of elements that are spread over the cores."""
        return dims["elements"]

    def operands(self, attrs: Attrs = NONE) -> int:
        """Return the number of operands."""
        link = self.link(attrs)
        return 1 if link is None else link.operands

    def lay(self, dims: Dims, attrs: Attrs = NONE) -> Lay:
        """With whole words, operands enter at separate cores."""
        return lay_of_operands(self.operands(attrs)) if WordAttributes.of(attrs).in_words else Lay()

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Return the bytes of stage buffers, one per operand and one for the result, and of code."""
        _, dtype, attrs = self.asked(tiling, how)
        return pointwise_footprint(
            self.elements(dims), tiling, wafer, dtype, buffers=self.operands(attrs) + 1
        )

    def probes(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> tuple[Probe, ...]:
        """Return a probe on the elements of one core."""
        return elements_probe(self, dims, tiling, wafer, how)


class OnRows(Family):
    """A family that works row by row: a row is finished as soon as its operands have arrived."""

    rows_by = ("rows",)


class Collective(Family):
    """A family that reduces or distributes vectors along lines or over a rectangle of cores, one vector per
    core."""

    dims: Mapping[str, str] = sizes(words="elements per core")
    mappings = ("grid",)
    lies = "every line or the rectangle holds one vector per core"
    bands = "exact"
    in_pieces = False  # the vector is padded to a whole piece per core of a row

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Return the bytes of the vector and of code."""
        size, length = bytes_of(self.asked(tiling, how, "fp32").dtype), dims["words"]
        if self.in_pieces:
            length = tiling.cols * ceil_div(length, tiling.cols)
        return Footprint(activations_bytes=1.0 * length * size, code_bytes=wafer.kernel_code_bytes)
