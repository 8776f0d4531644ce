"""Interface of a region: a kernel on the rectangle that the plan assigns to it.

Each kind of region is a subclass. Words of a stream contain two fp16 elements; they travel token by token,
features in order. A region receives its operands at *inlets*, moving cores next to its compute cores, and
sends its result from one *outlet*. Cells send into the outlet in sequence
(:mod:`wse_sim.whole.regions.shared_color`); other streams must not use their routers on that color.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.plan import Region, Stage
from wse_sim.errors import ModelError
from wse_sim.fabric.format.builder import Builder
from wse_sim.graph import Kernel, KernelGraph, Phase, frozen
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.on_tables import OnTables
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.kernels.contract.family import Tiling
from wse_sim.kernels.contract.registry import family
from wse_sim.whole.areas import FabricPlace
from wse_sim.whole.paths import STEPS, Cell

PAIR = 2  # fp16 elements of a word
IMAGES = ("conv2d", "pool2d")
"""Families that read and write images."""
IMAGE_AXES = 4  # samples, channels, lines, columns
HEAD_AXES = 4  # samples, heads, tokens, features of a head
POINTWISE = ("elementwise", "activation", "generated")
"""Families of chains of operators on elements."""
Floats = NDArray[np.float32]
K = TypeVar("K", bound="PlacedKernel")
IntArray = NDArray[np.integer]


@dataclass(frozen=True)
class Inlet:
    """The cell at which a tensor, or a bundle of it, arrives."""

    tensor: str
    cell: Cell
    bundle: int = 0


Out = tuple[int, str]
"""The color of a stream that leaves a region, and the ports by which the outlet's router forwards its words."""


@dataclass(frozen=True)
class Ports:
    """Colors of a region: those of its incoming streams in the order of the inlets, those that its own programs use, and the
    streams on which the bundles of its result leave."""

    inward: Sequence[int]
    own: Sequence[int]
    results: Sequence[Out]

    def of_band(self, number: int) -> Self:
        """Return those of one band, of a region in which every bundle of the result has a band with its own inlets."""
        each = len(self.inward) // len(self.results)
        inward = self.inward[number * each : (number + 1) * each]
        return replace(self, inward=inward, results=self.results[number : number + 1])


class PlacedKernel(ABC):
    """A kernel on its region.

    Attributes
    ----------
    family : str
        Family of the kernels that the class implements.
    title : str
        The kernels in words, for messages.
    tokens : int
        Rows of a sample.
    top, left : int
        Fabric row and column of the first compute core.
    height, cols : int
        Rows and columns of compute cores.
    bundles : dict
        Number of parallel streams by tensor (default 1): ranges of the features of a token or pixel.
    """

    family: ClassVar[str]
    title: ClassVar[str]
    wanted_samples: Mapping[str, int] = frozen()
    """Samples of an operand that must be buffered so that the skip does not limit the pace."""

    def __init__(self, graph: KernelGraph, kernel: Kernel, stage: Stage, wafer: Wafer) -> None:
        self.graph, self.kernel, self.wafer = graph, kernel, wafer
        self.stage, self.name = stage, stage.name
        self.region: Region = stage.region
        self.compute_cols = self.region.compute_cores // self.region.rows
        self.top = self.region.row
        self.left = self.region.col + self.region.cols - self.compute_cols
        self.tokens = self.tokens_of(graph, kernel)
        self.bundles: dict[str, int] = {}
        self.make_room()
        self.height, self.cols = self.extent()

    def make_room(self) -> None:
        """Turn compute columns into moving columns where cores next to the compute cores need them: none by default.

        Raises
        ------
        ModelError
            If no compute column would be left.
        """
        return

    def _move_columns(self, count: int) -> None:
        """Turn the first compute columns into moving columns."""
        self.left, self.compute_cols = self.left + count, self.compute_cols - count

    @property
    def alike(self) -> Hashable:
        """Equal for regions whose programs take equal cycles with equal bundles."""
        return self

    @property
    def last(self) -> int:
        """Fabric row of the last compute cores."""
        return self.top + self.height - 1

    @property
    def rows(self) -> slice:
        """Fabric rows of the compute cores."""
        return slice(self.top, self.top + self.height)

    @property
    def columns(self) -> slice:
        """Fabric columns of the compute cores."""
        return slice(self.left, self.left + self.cols)

    @property
    def result_bundles(self) -> int:
        """Number of bundles of the result."""
        return self.bundles.get(self.kernel.outputs[0], 1)

    @classmethod
    @abstractmethod
    def tokens_of(cls, graph: KernelGraph, kernel: Kernel) -> int:
        """Return the rows of a sample."""

    @classmethod
    @abstractmethod
    def check(cls, graph: KernelGraph, kernel: Kernel) -> None:
        """Check that the kernel is supported.

        Raises
        ------
        ModelError
            Naming what is not supported.
        """

    @abstractmethod
    def extent(self) -> tuple[int, int]:
        """Return the rows and columns of compute cores."""

    @property
    @abstractmethod
    def inlets(self) -> tuple[Inlet, ...]:
        """Cells at which operands arrive."""

    @property
    @abstractmethod
    def senders(self) -> tuple[Cell, ...]:
        """Cells that send the result, the outlet first."""

    @property
    @abstractmethod
    def own_colors(self) -> int:
        """Number of colors that the region uses internally."""

    @abstractmethod
    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return the buffers that a run needs, from the parameters by name."""

    @property
    def area(self) -> FabricPlace:
        """The rectangle of its compute cores."""
        return FabricPlace(
            self.name, self.rows, self.columns, ahead_cycles=self.ahead_cycles(), start_rows=self.start_rows
        )

    def ahead_cycles(self) -> float:
        """Return the cycles in which a core reads operands of a sample that may arrive before the last
        operand."""
        return 0.0

    @property
    def start_rows(self) -> slice | None:
        """The rows of the fabric whose first work is the start of the region; None for all."""
        return None

    @property
    def inner_words(self) -> Mapping[tuple[Cell, Cell], float]:
        """Words per sample on the links between neighbours that the region's own traffic fills, without its results."""
        return {}

    @property
    def busy_links(self) -> frozenset[tuple[Cell, Cell]]:
        """Links between neighbours that the region's own traffic fills, so that other routes avoid them."""
        return frozenset(self.inner_words)

    @property
    def link_words(self) -> Mapping[tuple[Cell, Cell], float]:
        """Words per sample on the region's own links; at least the results along the cells that send in
        sequence."""
        found = dict(self.inner_words)
        bundles, words = self.result_bundles, self.result_words
        for cells in map(self.bundle_senders, range(bundles)):
            for behind, (here, there) in enumerate(pairwise(reversed(cells)), 1):
                if (there[0] - here[0], there[1] - here[1]) in STEPS:
                    sent = words * behind / len(cells)
                    found[here, there] = found.get((here, there), 0.0) + sent
        return found

    @property
    def result_words(self) -> float:
        """Words per sample in every bundle of the result."""
        output = self.kernel.outputs[0]
        elements = self.graph.tensors[output].elements / self.graph.samples
        return elements / PAIR / self.result_bundles

    # ---- samples on their way -------------------------------------------------------------------------------------

    @property
    def takes_whole(self) -> bool:
        """Whether its inlets receive a whole sample before they forward its first word."""
        return False

    def held_samples(self, tensor: str) -> int | None:
        """Return the samples of an operand that its stores can buffer; None if the operand has no stores."""
        return None

    def hold(self, tensor: str, samples: int) -> None:
        """State that a skip must not limit the pace: its stores buffer that many samples, as far as cores are available."""
        self.wanted_samples = {**self.wanted_samples, tensor: samples}

    # ---- streams side by side ----------------------------------------------------------------------------------------

    def splits(self, tensor: str) -> Sequence[int]:
        """Return the numbers of bundles into which an operand or the result can be split, in ascending order."""
        return (1,)

    @property
    def tied(self) -> tuple[str, ...]:
        """Tensors that must have the same number of bundles."""
        return ()

    def bundle_senders(self, bundle: int) -> tuple[Cell, ...]:
        """Return the cells that send a bundle of the result, its outlet first; every bundle has equally many."""
        each = len(self.senders) // self.bundles.get(self.kernel.outputs[0], 1)
        return self.senders[bundle * each : (bundle + 1) * each]

    def pace(self) -> float:
        """Return the cycles per sample of the busiest core, including inlets; 0 for kinds whose tensors have
        one bundle."""
        return 0.0

    def priced_cycles(self, phase: Phase = Phase.FORWARD, **stated: object) -> float:
        """Return the cycles per sample of a pass, as the kernel's price on its compute cores has them with further attributes,
        without the fill."""
        kernel = self.kernel.with_samples(1, self.graph.samples)
        tiling = Tiling(self.region.rows, self.compute_cols, "stationary")
        cost = family(kernel.family).cost(
            kernel.dims, tiling, self.wafer, phase=phase, dtype=kernel.dtype, attrs={**kernel.attrs, **stated}
        )
        return float(np.asarray(cost.total - cost.idle))


class RegionKind(PlacedKernel):
    """A kernel on its region, in inference."""

    @property
    def busy_links(self) -> frozenset[tuple[Cell, Cell]]:
        """All links of the region's own traffic: where rows leave one after the other, words of another tensor delay each of them,
        even if the link has room for both at the pace."""
        return frozenset(self.link_words)

    @cached_property
    def alike(self) -> Hashable:
        """Equal for regions with equal programs up to their place on the fabric and the names of tensors."""
        kernel, names = self.kernel, (*self.kernel.inputs, *self.kernel.parameters, *self.kernel.outputs)
        shapes = tuple(
            (self.graph.tensors[name].shape, is_image(self.graph, name), names.index(name)) for name in names
        )
        sizes = self.region.rows, self.region.cols, self.region.compute_cores, self.region.col > 0
        return type(self), kernel.signature, kernel.access, shapes, sizes, self.tokens

    @abstractmethod
    def build(self, b: Builder, ports: Ports, samples: int) -> None:
        """Write the buffers, core classes and routes."""


def has_work(name: str) -> bool:
    """Return whether a family describes the work of a core on its elements (:mod:`wse_sim.kernels.contract.element_work`)."""
    return isinstance(family(name), OnTables)


def is_pointwise(name: str) -> bool:
    """Return whether a family works element by element: operands and result have the same words, in the same order."""
    return name in POINTWISE or has_work(name)


class Kinds(dict[str, type[K]]):
    """Kinds of regions by kernel family; families that describe their work have the kind `of_work`."""

    def __init__(self, kinds: Mapping[str, type[K]], of_work: type[K]) -> None:
        super().__init__(kinds)
        self.of_work = of_work

    def __missing__(self, name: str) -> type[K]:
        if has_work(name):
            return self.of_work
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and has_work(name))


def refused(kernel: Kernel, what: str, remedy: str) -> ModelError:
    """Return the error for a kernel that is not supported."""
    return ModelError(f"kernel '{kernel.name}' {what}; {remedy}")


def check_fixed(kernel: Kernel, is_fixed: object) -> None:
    """Check that a kernel has one layout in its region.

    Raises
    ------
    ModelError
        If it has not.
    """
    if not is_fixed:
        raise refused(
            kernel, "can have several layouts in its region", "plan the graph of inputs_over_rows(graph)"
        )


def divisor(count: int, most: int) -> int:
    """Return the largest divisor of `count` up to `most`."""
    return next(found for found in range(min(count, most), 0, -1) if count % found == 0)


def links_between(cells: Set[Cell]) -> frozenset[tuple[Cell, Cell]]:
    """Return all links between neighbours among the cells."""
    pairs = (((row, col), (row + down, col + right)) for row, col in cells for down, right in STEPS)
    return frozenset(pair for pair in pairs if pair[1] in cells)


def rows_in_turn(region: Region, wafer: Wafer) -> int:
    """Return how many rows of a region may send in sequence; on a region of full height the last row stays
    free for other streams.

    Cells that send in sequence block a color for other streams, so a column of the wafer's full height would
    cut it in two.
    """
    return region.rows - (region.rows == wafer.rows > 1)


def stream_order(graph: KernelGraph, tensor: str) -> IntArray | None:
    """Return the elements of a sample in word order: pixel by pixel for an image, None for other tensors."""
    if not is_image(graph, tensor):
        return None
    shape = graph.tensors[tensor].shape  # (B, C, H, W)
    return np.arange(int(np.prod(shape[1:]))).reshape(shape[1:]).transpose(1, 2, 0).reshape(-1)


def is_image(graph: KernelGraph, tensor: str) -> bool:
    """Return whether a tensor is an image: a convolution or a pooling reads or writes it, or elementwise work derives it from
    one."""
    names = graph.remembered("images", lambda: _images(graph))
    return tensor in names and len(graph.tensors[tensor].shape) == IMAGE_AXES


def _images(graph: KernelGraph) -> set[str]:
    """Return the tensors that travel pixel by pixel."""
    ends = [{*kernel.inputs, *kernel.outputs} for kernel in graph.kernels if kernel.family in IMAGES]
    found = set[str]().union(*ends)
    passing = [{*kernel.inputs, *kernel.outputs} for kernel in graph.kernels if is_pointwise(kernel.family)]
    while joined := [names for names in passing if names & found and not names <= found]:
        found.update(*joined)
    return found


def elements_of(features: int, bundle: int, of: int) -> range:
    """Return the elements of a token of `features` that a bundle has."""
    part = part_of(features // PAIR, bundle, of)
    return range(PAIR * part.start, PAIR * part.stop)


def part_of(words: int, part: int, of: int) -> range:
    """Return the words of a token that bundle `part` of `of` has. Bundles differ by at most one word. Those of a
    multiple of `of` end where these end.

    >>> [list(part_of(7, part, 3)) for part in range(3)]
    [[0, 1], [2, 3], [4, 5, 6]]
    """
    return range(part * words // of, (part + 1) * words // of)


def part_with(word: int, words: int, of: int) -> int:
    """Return the bundle, of `of`, that has a word of a token.

    >>> [part_with(word, 7, 3) for word in range(7)]
    [0, 0, 1, 1, 2, 2, 2]
    """
    return ((word + 1) * of - 1) // words


def bundle_elements(graph: KernelGraph, tensor: str, features: int, bundle: int, of: int) -> IntArray:
    """Return the element indices of a row (a token or an image) in the word order of a bundle."""
    order = stream_order(graph, tensor)
    wide = np.arange(features)[None] if order is None else order.reshape(-1, graph.tensors[tensor].shape[1])
    part = elements_of(wide.shape[1] + wide.shape[1] % PAIR, bundle, of)
    return wide[:, part.start : part.stop].reshape(-1)


def features_of(graph: KernelGraph, tensor: str) -> int:
    """Return the size of the last dimension of a tensor; 1 for a number."""
    return (1, *graph.tensors[tensor].shape)[-1]


def heads_of(graph: KernelGraph, kernel: Kernel) -> int:
    """Return the heads of a token that a norm normalizes one by one; 1 if it normalizes whole tokens, or an image."""
    shape, cols = graph.tensors[kernel.outputs[0]].shape, int(kernel.dims["cols"])
    is_parted = kernel.family == "norm" and len(shape) < IMAGE_AXES and shape[-1] % cols == 0
    return shape[-1] // cols if is_parted else 1


def token_words(graph: KernelGraph, tensor: str) -> int:
    """Return the words of a token, or of a pixel of an image; a token of attention, stored as (samples, heads,
    tokens, d), has the features of all heads."""
    shape = graph.tensors[tensor].shape
    if is_image(graph, tensor):
        return int(ceil_div(shape[1], PAIR))
    heads = shape[1] if len(shape) == HEAD_AXES else 1
    return int(ceil_div(heads * features_of(graph, tensor), PAIR))
