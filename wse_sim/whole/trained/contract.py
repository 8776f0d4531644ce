"""Interface of a trainable region: a kernel forward and backward on the rectangle that the plan assigns to
it, and its update.

Symbols: B samples of a batch of T rows each; d of them in flight, where d divides B. Every core runs::

    B / d rounds    forward of samples 0 .. d - 1, then backward of the same samples in the same order
    at the end      the update

No forward pass of a round needs a gradient, so the forward part is an independent pipeline, and the backward
part is the same pipeline reversed. What a backward pass needs (inputs, slopes, statistics) has d slots;
sample i uses slot ``i mod d``.

In addition to the interface of every region (:mod:`wse_sim.whole.regions.contract`), a trainable kind has one
gradient inlet, where the gradient of its result arrives, and an outlet for the gradient of every operand that
needs one. Gradients travel like their tensors: two fp16 elements per word, token by token, features in order.

Two rules prevent deadlocks. A core may delay words only until words of the same or of earlier samples arrive.
And every inlet receives a whole sample, whatever else waits, because the readers of one tensor get its words
at the same time, and a skip arrives long before the branch. Then no order of readers can deadlock a batch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wse_sim.compiler.plan import Stage
from wse_sim.fabric.format.builder import Builder
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.hardware import Wafer
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import Floats, PlacedKernel

ANY = 10**6
"""Samples in flight of regions that keep nothing of them."""


@dataclass(frozen=True)
class Batch:
    """A batch: its samples, those in flight (a divisor), and the update factor of a summed gradient, - rate /
    rows of the batch."""

    samples: int
    in_flight: int
    factor: float

    @property
    def rounds(self) -> int:
        """Number of rounds of forward and backward passes."""
        return self.samples // self.in_flight


@dataclass(frozen=True)
class TrainedPorts:
    """Colors of a trainable region, and the ports by which its outlets send.

    Attributes
    ----------
    inward : Sequence[int]
        Colors of the operands, in the order of the inlets.
    outward, towards
        Color of the result, ports by which its outlet sends.
    gradient_in : int
        Color of the gradient of the result, which arrives at the gradient inlet.
    gradient_out : Mapping[str, tuple[int, str]]
        By operand that needs a gradient: its color, and the ports by which its outlet sends.
    own : Sequence[int]
        Colors that the region uses internally.
    others, gradients_in, gradients_out
        Further bundles: color and ports of the result, colors of its gradient, color and ports of gradients of operands.
    """

    inward: Sequence[int]
    outward: int
    towards: str
    gradient_in: int
    gradient_out: Mapping[str, tuple[int, str]]
    own: Sequence[int]
    others: Sequence[tuple[int, str]] = ()
    gradients_in: Sequence[int] = ()
    gradients_out: Mapping[str, Sequence[tuple[int, str]]] = field(default_factory=dict)

    @property
    def results(self) -> list[tuple[int, str]]:
        """Color and ports of every bundle of the result."""
        return [(self.outward, self.towards), *self.others]

    @property
    def arriving(self) -> list[int]:
        """Colors of every bundle of the gradient of the result."""
        return [self.gradient_in, *self.gradients_in]

    def leaving(self, tensor: str) -> list[tuple[int, str]]:
        """Return color and ports of every bundle of the gradient of an operand; empty if it is not needed."""
        first = [self.gradient_out[tensor]] if tensor in self.gradient_out else []
        return [*first, *self.gradients_out.get(tensor, ())]


def beyond(need: float, limit: float) -> str:
    """Return by how much bytes exceed those of a core."""
    return f"it takes {need:,.0f} bytes, limit {limit:,.0f} ({need / limit:.3g} times as much)"


class TrainedKind(PlacedKernel):
    """A trainable kernel on its region; `needs` are the operands whose gradients are needed."""

    def __init__(
        self, graph: KernelGraph, kernel: Kernel, stage: Stage, wafer: Wafer, needs: frozenset[str]
    ) -> None:
        super().__init__(graph, kernel, stage, wafer)
        self.needs = needs

    @property
    @abstractmethod
    def gradient_inlet(self) -> Cell:
        """Cell at which the gradient of the result arrives."""

    @property
    def gradient_inlets(self) -> tuple[Cell, ...]:
        """Cells at which the bundles of the gradient of the result arrive."""
        return (self.gradient_inlet,)

    def settle(self) -> None:
        """Take the rows and columns that the chosen numbers of bundles need."""
        self.height, self.cols = self.extent()

    @property
    def gradient_order(self) -> tuple[str, ...]:
        """Operands whose gradients leave, in the order in which the gradients of one sample are sent."""
        return tuple(tensor for tensor in self.operands if tensor in self.needs)

    @property
    def operands(self) -> tuple[str, ...]:
        """Tensors that arrive, in the order of the inlets."""
        return tuple(dict.fromkeys(inlet.tensor for inlet in self.inlets))

    @abstractmethod
    def gradient_senders(self, tensor: str) -> tuple[Cell, ...]:
        """Return the cells that send the gradient of an operand in sequence, the outlet first; of its first bundle."""

    def bundle_gradient_senders(self, tensor: str, bundle: int) -> tuple[Cell, ...]:
        """Return the cells that send a bundle of the gradient of an operand, the outlet first."""
        return self.gradient_senders(tensor)

    @property
    def moving(self) -> frozenset[Cell]:
        """Cells next to the compute cores that have a program; kinds with stores add theirs."""
        ends = [inlet.cell for inlet in self.inlets] + list(self.gradient_inlets)
        for tensor in self.gradient_order:
            for bundle in range(self.bundles.get(tensor, 1)):
                ends += self.bundle_gradient_senders(tensor, bundle)
        return frozenset(ends)

    @abstractmethod
    def most_in_flight(self) -> int:
        """Return the number of samples that the fullest core can store."""

    @property
    def too_large(self) -> str:
        """Words for the data that a core has no room for, if it can store no sample."""
        return "what the backward pass of a sample needs"

    @abstractmethod
    def build_batch(self, b: Builder, ports: TrainedPorts, batch: Batch) -> None:
        """Write buffers, core classes and routes of a batch and its update."""

    @property
    @abstractmethod
    def reads(self) -> tuple[str, ...]:
        """Names of the buffers that :meth:`read` needs."""

    @abstractmethod
    def read(self, buffers: Mapping[str, Floats]) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """Return gradients summed over the batch and new weights, both by parameter, from buffers (rows,
        cols, elements) by name."""
