"""What a region of a fabric program is: a kernel on the rectangle that the plan gives it.

A kind of region is a class of this contract.  Words of a stream hold two fp16 elements; they come and go token by token,
features in order.  A region takes its operands at *inlets*, moving cores next to its compute cores, and gives its
result at one *outlet*.  Cells send into the outlet one after the other (:mod:`wse_sim.whole.regions.turns`); a stream
may not touch their routers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from wse_sim.compiler.plan import Region, Stage
from wse_sim.errors import ModelError
from wse_sim.fabric.format.builder import Builder
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.hardware import Wafer
from wse_sim.whole.areas import FabricPlace
from wse_sim.whole.paths import STEPS, Cell

PAIR = 2  # fp16 elements of a word
IMAGES = ("conv2d", "pool2d")
"""Families that read and give images."""
IMAGE_AXES = 4  # samples, channels, lines, columns
POINTWISE = ("elementwise", "activation", "generated")
"""Families that work element by element."""
Floats = NDArray[np.float32]
IntArray = NDArray[np.integer]


@dataclass(frozen=True)
class Inlet:
    """The cell at which a tensor ends, or a bundle of it."""

    tensor: str
    cell: Cell
    bundle: int = 0


@dataclass(frozen=True)
class Ports:
    """Colors of a region: of every inlet's stream, of the stream that leaves (and its ways on), its own.

    `others` are color and ways on of further bundles of the result.
    """

    inward: Sequence[int]
    outward: int
    towards: str  # ports by which the outlet's router sends on
    own: Sequence[int]
    others: Sequence[tuple[int, str]] = ()


class PlacedKernel(ABC):
    """A kernel on its region.

    Attributes
    ----------
    family : str
        Of the kernels that it runs.
    title : str
        These kernels in words.
    tokens : int
        Rows of a sample.
    top, left : int
        Fabric row and column of the first compute core.
    height, cols : int
        Rows and columns of cores that compute.
    bundles : dict
        Streams side by side of a tensor, one if it is not named: ranges of the features of a token or pixel.
    """

    family: ClassVar[str]
    title: ClassVar[str]

    def __init__(self, graph: KernelGraph, kernel: Kernel, stage: Stage, wafer: Wafer) -> None:
        self.graph, self.kernel, self.wafer = graph, kernel, wafer
        self.name = stage.name
        self.region: Region = stage.region
        self.compute_cols = self.region.compute_cores // self.region.rows
        self.top = self.region.row
        self.left = self.region.col + self.region.cols - self.compute_cols
        self.tokens = self.tokens_of(graph, kernel)
        self.bundles: dict[str, int] = {}
        self.height, self.cols = self.extent()

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

    @classmethod
    @abstractmethod
    def tokens_of(cls, graph: KernelGraph, kernel: Kernel) -> int:
        """Rows of a sample."""

    @classmethod
    @abstractmethod
    def check(cls, graph: KernelGraph, kernel: Kernel) -> None:
        """The kernel is covered.

        Raises
        ------
        ModelError
            Naming what is not.
        """

    @abstractmethod
    def extent(self) -> tuple[int, int]:
        """(rows, columns) of cores that compute."""

    @property
    @abstractmethod
    def inlets(self) -> tuple[Inlet, ...]:
        """Where operands end."""

    @property
    @abstractmethod
    def senders(self) -> tuple[Cell, ...]:
        """Cells that send the result, the outlet first."""

    @property
    @abstractmethod
    def own_colors(self) -> int:
        """Colors that the region takes for itself."""

    @abstractmethod
    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """Buffers that a run needs, from the parameters by name."""

    @property
    def area(self) -> FabricPlace:
        """Where its compute cores lie."""
        return FabricPlace(self.name, self.rows, self.columns, ahead_cycles=self.ahead_cycles())

    def ahead_cycles(self) -> float:
        """Cycles that a core issues to take in operands of a sample that may come before the last of them."""
        return 0.0

    @property
    def busy_links(self) -> frozenset[tuple[Cell, Cell]]:
        """Links between neighbours that the region fills itself, so that other ways go around them where they can."""
        return frozenset()

    @property
    def link_words(self) -> Mapping[tuple[Cell, Cell], float]:
        """Words of a sample that the region sends over links of its own: results along the cells that send in turn, at least."""
        output, found = self.kernel.outputs[0], dict[tuple[Cell, Cell], float]()
        bundles, words = self.bundles.get(output, 1), self.result_words
        for cells in map(self.bundle_senders, range(bundles)):
            for behind, (here, there) in enumerate(pairwise(reversed(cells)), 1):
                if (there[0] - here[0], there[1] - here[1]) in STEPS:
                    found[here, there] = words * behind / len(cells)
        return found

    @property
    def result_words(self) -> float:
        """Words of a sample in every bundle of the result."""
        output = self.kernel.outputs[0]
        elements = self.graph.tensors[output].elements / self.graph.samples
        return elements / PAIR / self.bundles.get(output, 1)

    # ---- samples on their way -------------------------------------------------------------------------------------

    @property
    def takes_whole(self) -> bool:
        """Whether its inlets take a whole sample in before its first word continues."""
        return False

    @property
    def late_fraction(self) -> float:
        """The fraction of a pass by which results leave after their sums: 1 where they leave during the next sample."""
        return 0.0

    def held_samples(self, tensor: str) -> int | None:
        """Samples of an operand that wait in stores until the work on them begins; None of one without stores."""
        return None

    def hold(self, tensor: str, samples: int) -> None:
        """Make room for that many, as far as there are cores for it; nothing to do without stores."""
        return

    # ---- streams side by side ----------------------------------------------------------------------------------------

    def splits(self, tensor: str) -> tuple[int, ...]:
        """Into how many bundles an operand or the result may be split, the least first."""
        return (1,)

    @property
    def tied(self) -> tuple[str, ...]:
        """Tensors at its ends that have as many bundles each."""
        return ()

    def bundle_senders(self, bundle: int) -> tuple[Cell, ...]:
        """Cells that send a bundle of the result, its outlet first: as many each."""
        each = len(self.senders) // self.bundles.get(self.kernel.outputs[0], 1)
        return self.senders[bundle * each : (bundle + 1) * each]

    def pace(self) -> float:
        """Cycles per sample of the busiest core, its inlets among them; 0 of a kind whose tensors come in one bundle."""
        return 0.0


class RegionKind(PlacedKernel):
    """A kernel on its region, in inference."""

    @abstractmethod
    def build(self, b: Builder, ports: Ports, samples: int) -> None:
        """Write buffers, classes and routes."""


def refused(kernel: Kernel, what: str, remedy: str) -> ModelError:
    """A kernel that is not covered."""
    return ModelError(f"kernel '{kernel.name}' {what}; {remedy}")


def divisor(count: int, most: int) -> int:
    """The largest divisor of `count` up to `most`."""
    return next(found for found in range(min(count, most), 0, -1) if count % found == 0)


def links_between(cells: Set[Cell]) -> frozenset[tuple[Cell, Cell]]:
    """All links from one of the cells to another."""
    pairs = (((row, col), (row + down, col + right)) for row, col in cells for down, right in STEPS)
    return frozenset(pair for pair in pairs if pair[1] in cells)


def rows_in_turn(region: Region, wafer: Wafer) -> int:
    """Rows of a region whose cores may all send in turn: the last one of the wafer is left to streams that pass by.

    Cells that send in turn close a color to others, so a column as high as the wafer would part it.
    """
    return region.rows - (region.rows == wafer.rows > 1)


def stream_order(graph: KernelGraph, tensor: str) -> IntArray | None:
    """Elements of a sample in word order: pixel by pixel for an image, None for other tensors.

    An image is what a convolution or a pooling reads or gives, and what comes of it element by element.
    """
    if tensor not in _images(graph) or len(graph.tensors[tensor].shape) != IMAGE_AXES:
        return None
    shape = graph.tensors[tensor].shape  # (B, C, H, W)
    return np.arange(int(np.prod(shape[1:]))).reshape(shape[1:]).transpose(1, 2, 0).reshape(-1)


def _images(graph: KernelGraph) -> set[str]:
    """Tensors that travel pixel by pixel."""
    ends = [{*kernel.inputs, *kernel.outputs} for kernel in graph.kernels if kernel.family in IMAGES]
    found = set[str]().union(*ends)
    passing = [{*kernel.inputs, *kernel.outputs} for kernel in graph.kernels if kernel.family in POINTWISE]
    while joined := [names for names in passing if names & found and not names <= found]:
        found.update(*joined)
    return found


def bundle_elements(graph: KernelGraph, tensor: str, features: int, bundle: int, of: int) -> IntArray:
    """Elements of a row in the order of a bundle's words, by their places in the tensor; a row is a token or an image."""
    order = stream_order(graph, tensor)
    wide = np.arange(features)[None] if order is None else order.reshape(-1, graph.tensors[tensor].shape[1])
    each = wide.shape[1] // of
    return wide[:, bundle * each : (bundle + 1) * each].reshape(-1)
