"""The interface of a kernel family: all methods that the rest of the simulator calls.

On a rectangle of cores:

    1. footprint(dims, tiling, wafer): bytes of SRAM per core
    2. cost(dims, tiling, wafer): cycles by cause; closed form, vectorized over tilings
    3. compute(...): the numerics, tile by tile as on the cores
    4. program(dims, tiling, wafer): the fabric program; `probes` lists small runs of it

In the graph of a model:

    5. dims and attributes: the only names that a kernel of the family may state
    6. flops(dims, attrs, phase): the only place where FLOPs are counted
    7. flow(dims, attrs): how samples pass through the kernel; lay(dims, attrs): over which cores they enter and leave
    8. keeps(kernel, ...) and gradients(kernel, tape): what training needs

A dimension or a tiling field may be an integer or an integer array: all formulas broadcast, so one call
prices 100,000 tilings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from wse_sim.errors import KernelError, ModelError
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Program
from wse_sim.graph import Kernel, Phase, Tensor
from wse_sim.hardware import Wafer
from wse_sim.kernels.contract.parameters import Attributes, Parameter, parameters_of
from wse_sim.kernels.contract.tape import Tape

NONE: Mapping[str, Any] = MappingProxyType({})
Count = int | NDArray[np.int64]
Size = float | NDArray[Any]  # in a formula: a number, or an array with one value per tiling
Number = Size
Array = NDArray[Any]  # values of a tensor or of a buffer
Dims = Mapping[str, Any]
Attrs = Mapping[str, Any]  # attributes of a kernel


class How(TypedDict, total=False):
    """Keyword arguments of a family's methods in addition to dimensions and tiling; read them with :func:`asked`."""

    phase: Phase
    dtype: str
    attrs: Attrs | None


class ProgramOptions(How, total=False):
    """Keyword arguments of a program, including the seed of its values."""

    seed: int


class Asked(NamedTuple):
    """The phase of training, the precision and the attributes of a kernel."""

    phase: Phase
    dtype: str
    attrs: Attrs


def asked(how: How, dtype: str = "fp16") -> Asked:
    """Return the arguments with defaults filled in: forward phase, `dtype`, no attributes."""
    return Asked(how.get("phase", Phase.FORWARD), how.get("dtype", dtype), how.get("attrs") or {})


@dataclass(frozen=True)
class Flow:
    """How samples pass through a kernel.

    `rows`: pieces in which a sample flows (0: as many as its producer has). `is_barrier`: the first row
    leaves only after the last has arrived. `parallel`: different cores have rows, or parts of rows, so one leaves
    after the time of its core. `sums_on_links`: partial sums travel between the cores of the kernel.
    `skips_zero_weights`: streamed zero weights are not sent and cost nothing.
    """

    rows: int = 0
    is_barrier: bool = False
    parallel: bool = False
    sums_on_links: bool = False
    skips_zero_weights: bool = False


@dataclass(frozen=True)
class Lay:
    """Layout of a kernel in its region, as far as its attributes determine it; the defaults leave everything
    open.

    `takes_over`, `gives_over`: the cores over which operands enter and results leave, "rows" or "cols" ("" is
    either); they limit the number of parallel links. `least_rows` of the region, and `least_cols` that
    compute. `store_bytes` of the fullest core next to them. `more_colors` that it uses in addition to the
    three of a kernel. `rows_without_inputs`: rows of the region without weights. `most_links`: parallel links
    of every stream to and from it (0: limited only by the cores). `in_turn`: cores of a column send one after the
    other, so a region of the wafer's full height leaves a row to other streams.
    """

    takes_over: str = ""
    gives_over: str = ""
    least_rows: int = 1
    least_cols: int = 1
    store_bytes: Size = 0
    more_colors: int = 0
    rows_without_inputs: int = 0
    most_links: int = 0
    in_turn: bool = False


def lay_of_operands(count: int) -> Lay:
    """Return the layout of a kernel with a separate inlet core per operand: one in each of two rows, two
    columns for more."""
    return Lay(least_rows=min(count, 2), least_cols=1 + (count > 2), in_turn=True)


@dataclass(frozen=True)
class Kept:
    """What the gradients of a forward kernel need.

    `tensors` are tensors of the graph that they read; `own_bytes` are private to the kernel. A backward pass
    can recompute `again_bytes` of them instead of storing them; `serial_bytes` of those exist for one of
    `serial_times` pieces of work at a time while the kernel runs.
    """

    tensors: tuple[str, ...] = ()
    own_bytes: int = 0
    again_bytes: int = 0
    serial_bytes: int = 0
    serial_times: int = 1


class Role(StrEnum):
    """The role of a kernel in a network, for readers of whole graphs."""

    PRODUCT = "product"  # (m, k) times weights (k, n), or a matrix per group of rows
    ATTENTION = "attention"
    NORM = "norm"
    TABLE = "table"  # rows of a weight are looked up
    CHOICE = "choice"  # the largest of a row
    POSITIONS = "positions"  # positions turn features of queries and keys
    MIXER = "mixer"  # tokens or features are combined other than by attention and by products with weights
    OTHER = "other"


STRAIGHT_PARTS = ("bias", "residual", "scale")
"""Parts of an epilogue with the identity or a constant as derivative; any other part is a function of each
element."""


@dataclass(frozen=True)
class Link:
    """Elementwise work of a kernel, as seen by the rules that merge kernels.

    `ops`: operators in order, comma-separated. `operands`: number of tensors that it reads. `part`: name of
    the work if it is fused to a product: one of :data:`STRAIGHT_PARTS`, or a function such as "gelu"; "" if
    it cannot be fused.
    """

    ops: str
    operands: int = 1
    part: str = ""

    @property
    def bends(self) -> bool:
        """Whether it is a function of a single operand that an epilogue can contain."""
        return bool(self.part) and self.part not in STRAIGHT_PARTS


@dataclass(frozen=True)
class Tiling:
    """How a kernel is mapped to its rectangle of `rows` x `cols` cores.

    `algorithm` names a mapping of the family; "" is the family's default for its `mapping`: "stationary"
    (weights are stationary in a region, activations stream: pipelined), "streamed" (activations are
    stationary on the whole rectangle, weights stream: weight streaming) or "grid" (both tiled on a square
    grid, operands shift: inference). `lanes` are copies of the layer inside the rectangle, each of ``cols //
    lanes`` columns, that share the batch.

    Example
    -------
    >>> Tiling(rows=4, cols=6, mapping="streamed", lanes=2).cols // 2  # columns of a lane
    3
    """

    rows: Count
    cols: Count
    mapping: str = "stationary"
    algorithm: str = ""
    lanes: Count = 1
    options: Mapping[str, Any] = field(default_factory=dict)


def check_tiling(name: str, tiling: Tiling, mappings: tuple[str, ...]) -> None:
    """Check that the family has the mapping, and that the rectangle has cores.

    Raises
    ------
    KernelError
        If not; the message gives value, limit and remedy.
    """
    if tiling.mapping not in mappings:
        raise KernelError(f"kernel '{name}' has no mapping '{tiling.mapping}'; use {', '.join(mappings)}")
    for label, value in (("rows", tiling.rows), ("cols", tiling.cols), ("lanes", tiling.lanes)):
        least = value if isinstance(value, int) else np.min(value)
        if least < 1:
            raise KernelError(
                f"kernel '{name}': {label} is {least}; a tiling needs at least 1, enlarge the rectangle"
            )
    if np.any(np.asarray(tiling.lanes) > np.asarray(tiling.cols)):
        raise KernelError(
            f"kernel '{name}': {np.max(tiling.lanes)} lanes do not fit in {np.min(tiling.cols)} columns; use fewer lanes"
        )


@dataclass(frozen=True)
class Footprint:
    """Bytes of SRAM per core (of the fullest core).

    Example
    -------
    >>> Footprint(weights_bytes=2048, buffers_bytes=512).total_bytes
    2560
    """

    weights_bytes: Size = 0
    activations_bytes: Size = 0
    buffers_bytes: Size = 0
    code_bytes: Size = 0

    @property
    def total_bytes(self) -> Size:
        """Sum of all parts."""
        return self.weights_bytes + self.activations_bytes + self.buffers_bytes + self.code_bytes


STALLS = ("stalled_input", "stalled_output")
"""Causes of the cycles in which a core issues no instruction."""


@dataclass(frozen=True)
class Cost:
    """Cycles of one invocation, split by cause; the parts add up to the whole.

    `compute`: arithmetic issue cycles of the busiest core. `special`: transcendental functions and random
    numbers. `fabric`: waiting for words on links, beyond the arithmetic. `ramp`: words through the ramp,
    beyond the arithmetic. `startup`: vector starts, loops, task activations. `idle`: fill, skew, waiting.

    A cost that includes both the issue cycles of the busiest core and the pace of the kernel gives their
    difference as `stalled_input` (the core waits for words or sums of other cores) and `stalled_output` (it
    waits for space at the destination). Both are part of the pace; the region is not busy meanwhile.

    Example
    -------
    >>> cost = Cost(compute=100.0, startup=8.0) + 2 * Cost(fabric=10.0)
    >>> cost.total, cost.parts()["fabric"]
    (128.0, 20.0)
    """

    compute: Size = 0.0
    special: Size = 0.0
    fabric: Size = 0.0
    ramp: Size = 0.0
    startup: Size = 0.0
    idle: Size = 0.0
    stalled_input: Size = 0.0
    stalled_output: Size = 0.0

    # An array times a cost is a cost of arrays, not an array of costs.
    __array_ufunc__ = None

    @property
    def total(self) -> Size:
        """Cycles of the invocation."""
        parts = self.compute + self.special + self.fabric + self.ramp + self.startup + self.idle
        return parts + self.stalled_input + self.stalled_output

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(own + more for own, more in zip(self._all, other._all, strict=True)))

    def __mul__(self, factor: Size) -> Cost:
        return Cost(*(own * factor for own in self._all))

    __rmul__ = __mul__

    def or_faster(self, other: Cost) -> Cost:
        """Return, for each shape, the cost with the smaller total."""
        return self.replaced(np.asarray(other.total) < np.asarray(self.total), other)

    def replaced(self, where: Size, other: Cost) -> Cost:
        """Return the cost with that of `other` for the shapes where a condition holds."""
        if not np.ndim(where):
            return other if where else self
        pairs = zip(self._all, other._all, strict=True)
        return Cost(*(np.where(where, theirs, own) for own, theirs in pairs))

    @property
    def _all(self) -> tuple[Size, ...]:
        """Return the parts in field order; written out for speed, because a plan adds costs ten thousand
        times."""
        issued = self.compute, self.special, self.fabric, self.ramp, self.startup, self.idle
        return *issued, self.stalled_input, self.stalled_output

    def parts(self) -> dict[str, Size]:
        """Return the parts by name; the stalled ones only if they are not zero."""
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: part for name, part in parts.items() if name not in STALLS or np.any(part)}


@dataclass(frozen=True)
class Probe:
    """A small run of a program that measures a steady part of a large kernel.

    The kernel is too large to be stepped core by core, so a probe runs instead: a few cores (`tiling`) with
    the same tile as the cores of the plan. It runs twice, with `start` and with twice as many rounds along
    dimension `step` of `dims` (the other dimensions are given); without a `step` it runs once, completely.
    Its (steady) cycles are divided by the cycles that the formula predicts for it. This ratio r scales
    `cost`, the term of the full kernel's formula that the probe represents::

        cycles = C + sum over probes of (r - 1) cost.total

    `part`: name of the measured part ("product", "scores"). `family`: family whose program and cost are run,
    with `phase`, `dtype`, `attrs`. `tile`: short description of the tile for tables.
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
    attrs: Attrs = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A fabric program that is ready to run: its inputs, and the expected values of its buffers.

    `inputs` and `expected` are arrays (rows, cols, length) per buffer; NaN is not compared.

    Example
    -------
    >>> from wse_sim.hardware import load_wafer
    >>> from wse_sim.kernels import family
    >>> case = family("vector_op").program({"elements": 16}, Tiling(1, 1), load_wafer())
    >>> sorted(case.expected)  # the buffer that holds the result
    ['x']
    """

    program: Program
    config: FabricConfig
    inputs: Mapping[str, NDArray[Any]]
    expected: Mapping[str, NDArray[Any]]
    tolerance: float = 1e-5


class Family:
    """Base class of kernel families, with the defaults of all methods.

    A family sets `name`, `dims`, `mappings`, `attributes`, `band`, and overrides the methods that it has, in
    this order. `dims` are the names of its sizes, or names and meanings
    (:func:`wse_sim.kernels.contract.parameters.sizes`); `more_dims` are further ones that a kernel may, but
    need not, state.

    Example
    -------
    >>> from wse_sim.kernels import family
    >>> vector = family("vector_op")
    >>> vector.name, vector.mappings
    ('vector_op', ('grid',))
    """

    name: str = ""
    dims: Mapping[str, str] | tuple[str, ...] = ()
    more_dims: Mapping[str, str] | tuple[str, ...] = ()
    mappings: tuple[str, ...] = ("stationary", "streamed")
    attributes: type[Attributes] = Attributes
    role: Role = Role.OTHER  # what it is in a network
    named_for: tuple[str, ...] = ()  # operators whose kernels are called after the family
    takes_epilogue: bool = False  # bias, scale, residual and one activation can be fused to its results
    takes_affine: bool = False  # a constant scale and shift per channel after it can go into its weights
    shards_weights: bool = False  # users may choose the rows and columns of cores for its weights
    sums_rows: bool = False  # sums over rows, which the careful precision computes in fp32
    rows_by: tuple[str, ...] = ()  # sizes whose product is the pieces in which a sample flows
    flows: Flow = Flow()  # how samples pass through it otherwise, unless attributes change that
    lies: str = ""  # its layout on the cores: text of the documentation's tables
    programs: str = ""  # which parts have fabric programs
    bands: str = ""  # `band` in words, where it differs between programs
    band: float = 0.03  # largest fraction by which `cost` may differ from the cycles of `program`
    cheaper: str = ""  # how a model can do with less of it
    color: str = "#eeeeee"  # of its box in pictures of graphs

    @classmethod
    def sizes(cls) -> tuple[Parameter, ...]:
        """Return the sizes of a kernel, optional ones last; a default of 1 means that there is none."""
        given = (cls.dims, cls.more_dims)
        said = [dict.fromkeys(names, "") if isinstance(names, tuple) else names for names in given]
        return tuple(Parameter(name, 1, text) for names in said for name, text in names.items())

    @classmethod
    def parameters(cls) -> Mapping[str, Parameter]:
        """Return the attributes that a kernel may state, by name: types, ranges, defaults, meanings."""
        return parameters_of(cls.attributes)

    def asked(self, tiling: Tiling, how: How, dtype: str = "fp16") -> Asked:
        """Check that the family has the mapping and the rectangle cores; return the arguments with defaults filled in.

        Raises
        ------
        KernelError
            As :func:`check_tiling`.
        """
        check_tiling(self.name, tiling, self.mappings)
        return asked(how, dtype)

    def flops(self, dims: Dims, attrs: Attrs = NONE, phase: Phase = Phase.FORWARD) -> Size:
        """Return the FLOPs of a kernel, 2 per multiply-accumulate of a matrix product; 0 if the family has no
        products."""
        return 0 * dims[next(iter(self.dims))]

    def flow(self, dims: Dims, attrs: Attrs = NONE) -> Flow:
        """Return how samples pass through the kernel: as `rows_by` and `flows` state it."""
        return replace(
            self.flows, rows=prod(dims.get(name, 0) for name in self.rows_by) if self.rows_by else 0
        )

    def parts_of_core(self, dims: Dims, tiling: Tiling, attrs: Attrs = NONE) -> int:
        """Return the parts of a sample, one after the other, in which results of a core leave, if its attributes state
        them; else 0."""
        return 0

    def lay(self, dims: Dims, attrs: Attrs = NONE) -> Lay:
        """Return the layout in a region; by default nothing is determined."""
        return Lay()

    def store_bytes(self, dims: Dims, tiling: Tiling, wafer: Wafer, attrs: Attrs = NONE) -> Size:
        """Return the bytes of the fullest core next to the compute cores; by default those of :meth:`lay`,
        for any region."""
        return self.lay(dims, attrs).store_bytes

    def at_rest(self, dims: Dims, phase: Phase = Phase.FORWARD) -> Size:
        """Return the elements per round that are combined with stationary operands on a lane's columns; 0 if
        undetermined.

        This applies to streamed weights. A core receives its part of a round in whole words of two 16-bit
        elements.
        """
        return 0

    def link(self, attrs: Attrs = NONE) -> Link | None:
        """Return the operation on each element, if the kernel does nothing else; None otherwise."""
        return None

    def is_affine(self, attrs: Attrs = NONE) -> bool:
        """Return whether the kernel only scales and shifts each channel by constants."""
        return False

    def widens(self, phase: Phase) -> str:
        """Return the dimension along which kernels that read the same tensor can be merged; "" if they
        cannot."""
        return ""

    def notes(self, attrs: Attrs) -> tuple[str, ...]:
        """Return notes for readers of a plan on kernels with these attributes."""
        return ()

    def matmul_phases(self, phase: Phase) -> int:
        """Return the number of matrix products per invocation; each has the launch floor in weight
        streaming."""
        return 0

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Return the bytes of SRAM per core.

        Raises
        ------
        KernelError
            If the family does not declare it.
        """
        raise KernelError(f"kernel '{self.name}' has no footprint; write its `footprint` face")

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cycles by cause.

        Raises
        ------
        KernelError
            If the family does not declare it.
        """
        raise KernelError(f"kernel '{self.name}' has no cost; write its `cost` face")

    def compute(self, *operands: Any, **options: Any) -> Any:
        """Return the values that the cores compute.

        Raises
        ------
        KernelError
            If the family has no numerics.
        """
        raise KernelError(f"kernel '{self.name}' has no numerics; write its `compute` face")

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return the fabric program with inputs and expected values.

        Raises
        ------
        KernelError
            If the family has no program for this mapping.
        """
        raise KernelError(
            f"kernel '{self.name}' has no fabric program for mapping '{tiling.mapping}'; use --timing model"
        )

    def probes(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> tuple[Probe, ...]:
        """Return small runs that measure this kernel on the fabric; none if it has no program.

        Terms that no probe measures keep their formula.
        """
        return ()

    def has_gradient(self, kernel: Kernel) -> bool:
        """Return whether the results of a kernel have a gradient; those of comparisons do not."""
        return True

    def keeps(self, kernel: Kernel, trained: frozenset[str], tensors: Mapping[str, Tensor]) -> Kept:
        """Return what the gradients need of the forward pass; by default the kernel's inputs.

        `trained` contains the tensors that get a gradient, `tensors` all tensors of the graph.
        """
        return Kept(kernel.inputs)

    def gradients(self, kernel: Kernel, gradient: str, tape: Tape) -> None:
        """Write the gradient kernels of a forward kernel on the tape; `gradient` is the gradient tensor of
        its result.

        Raises
        ------
        ModelError
            If the family has no rule.
        """
        raise ModelError(
            f"kernel '{kernel.name}': family '{self.name}' has no gradient; "
            "write its method `gradients`, or capture the model for inference"
        )
