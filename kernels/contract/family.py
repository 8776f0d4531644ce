"""The contract of a kernel: four faces, and the registry that finds them.

1. ``footprint(dims, tiling, wafer)``: bytes of SRAM per core.
2. ``cost(dims, tiling, wafer)``: cycles by cause; closed form, vectorised over tilings.
3. ``compute(...)``: the numerics, tile by tile as the cores would do it.
4. ``program(dims, tiling, wafer)``: the fabric program.

A dimension or a tiling field may be an integer or an integer array: all formulas broadcast, so one
call prices 100,000 tilings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Protocol, TypedDict, Unpack, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from wse_sim.errors import KernelError
from wse_sim.graph import Phase
from wse_sim.hardware import Wafer

Number = float | NDArray[np.float64]
Count = int | NDArray[np.int64]
Dims = Mapping[str, Any]


class How(TypedDict, total=False):
    """What a face may be asked beside dimensions and tiling; read it with :func:`asked`."""

    phase: Phase
    dtype: str
    attrs: Mapping[str, Any] | None


class Asked(NamedTuple):
    """The phase of training, the precision and the attributes of a kernel."""

    phase: Phase
    dtype: str
    attrs: Mapping[str, Any]


def asked(how: How, dtype: str = "fp16") -> Asked:
    """What was asked, with the defaults filled in: forward, `dtype`, no attributes."""
    return Asked(how.get("phase", Phase.FORWARD), how.get("dtype", dtype), how.get("attrs") or {})


@dataclass(frozen=True)
class Tiling:
    """How a kernel lies on its rectangle of `rows` x `cols` cores.

    `algorithm` names a mapping of the family; "" is the family's default for its `mapping`:
    "stationary" (weights rest in a region, activations stream: pipelined), "streamed" (activations
    rest on the whole rectangle, weights stream: weight streaming) or "grid" (both tiled on a square
    grid, operands shift: inference).  `lanes` are copies of the layer inside the rectangle, each of
    ``cols // lanes`` columns, that share the batch.
    """

    rows: Count
    cols: Count
    mapping: str = "stationary"
    algorithm: str = ""
    lanes: Count = 1
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Footprint:
    """Bytes of SRAM per core (of the fullest core)."""

    weights_bytes: Number = 0
    activations_bytes: Number = 0
    buffers_bytes: Number = 0
    code_bytes: Number = 0

    @property
    def total_bytes(self) -> Number:
        """Sum of all parts."""
        return self.weights_bytes + self.activations_bytes + self.buffers_bytes + self.code_bytes


@dataclass(frozen=True)
class Cost:
    """Cycles of one invocation, split by cause; the parts add up to the whole.

    `compute` arithmetic issue cycles of the busiest core; `special` transcendental and random
    elements; `fabric` waiting for words on links beyond the arithmetic; `ramp` words through the ramp
    beyond the arithmetic; `startup` vector starts, loops, task activations; `idle` fill, skew, waiting.
    """

    compute: Number = 0.0
    special: Number = 0.0
    fabric: Number = 0.0
    ramp: Number = 0.0
    startup: Number = 0.0
    idle: Number = 0.0

    # An array times a cost is a cost of arrays, not an array of costs.
    __array_ufunc__ = None

    @property
    def total(self) -> Number:
        """Cycles of the invocation."""
        return self.compute + self.special + self.fabric + self.ramp + self.startup + self.idle

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __mul__(self, factor: Number) -> Cost:
        return Cost(*(getattr(self, f.name) * factor for f in fields(self)))

    __rmul__ = __mul__

    def parts(self) -> dict[str, Number]:
        """The parts by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True)
class Corner:
    """A small run of a program that measures a steady part of a large kernel.

    The kernel is far too large to be stepped core by core, so a corner of its rectangle is run: a few
    cores (`tiling`) that hold the same tile as the cores of the plan, for `start` and for twice as many
    turns along dimension `step` of `dims` (all the others are given); without a `step` the corner is run
    once, in whole.  The ratio r of the (steady) cycles, fabric over formula, then corrects the share `cost`
    of the kernel's formula that this corner stands for::

        cycles = C + sum over corners of (r - 1) cost.total

    `part` names what it is ("product", "scores"), `family` the family whose program and cost are run,
    with `phase`, `dtype`, `attrs`; `tile` is a short text of the tile for tables.
    """

    part: str
    family: str
    dims: Dims
    tiling: Tiling
    step: str
    start: int
    cost: Cost
    tile: str
    dtype: str = "fp16"
    phase: Phase = Phase.FORWARD
    attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A fabric program ready to run: its inputs, and the values that buffers must hold afterwards.

    `inputs` and `expected` are arrays (rows, cols, length) per buffer; NaN is not compared.
    """

    program: Any
    config: Any
    inputs: Mapping[str, NDArray[Any]]
    expected: Mapping[str, NDArray[Any]]
    tolerance: float = 1e-5


@runtime_checkable
class KernelFamily(Protocol):
    """What a kernel file provides; a module-level ``FAMILY`` object is registered."""

    name: str
    dims: tuple[str, ...]
    mappings: tuple[str, ...]

    def flops(self, dims: Dims) -> Any:
        """FLOPs (2 per multiply-accumulate; 0 for families without matrix products)."""

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Bytes of SRAM per core."""

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Cycles by cause."""


class Family:
    """Base of the families in this library: what a family without that face answers.

    A family sets `name`, `dims`, `mappings` and overrides what it has, in the order of the faces.
    """

    name: str = ""
    dims: tuple[str, ...] = ()
    mappings: tuple[str, ...] = ("stationary", "streamed")

    def flops(self, dims: Dims) -> Any:
        """FLOPs: none, unless the family multiplies matrices."""
        return 0 * dims[self.dims[0]]

    def matmul_phases(self, phase: Phase) -> int:
        """Matrix products of one invocation: each has the launch floor of weight streaming."""
        return 0

    def compute(self, *operands: Any, **options: Any) -> Any:
        """Values as the cores would work them out.

        Raises
        ------
        KernelError
            If the family has no numerics.
        """
        raise KernelError(f"kernel '{self.name}' has no numerics; write its `compute` face")

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Any) -> Any:
        """The fabric program.

        Raises
        ------
        KernelError
            If the family has no program for this mapping.
        """
        raise KernelError(
            f"kernel '{self.name}' has no fabric program for mapping '{tiling.mapping}'; use --timing model"
        )

    def corners(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> tuple[Corner, ...]:
        """Small runs that measure this kernel on the fabric; none if it has no program for them.

        What no corner stands for keeps its formula.
        """
        return ()
