"""What a region that trains is: a kernel forward and backward on the rectangle that the plan gives it, and its update.

Symbols: B samples of a batch of T rows each; d of them in flight, where d divides B.  Every core runs ::

    B / d rounds    forward of samples 0 .. d - 1, then backward of the same samples in the same order
    at the end      the update

No forward pass of a round needs a gradient, so the forward part is a pipeline that runs by itself, and the backward part
the same pipeline reversed.  What a backward pass needs (inputs, slopes, statistics) has d slots; sample i uses slot
``i mod d``.

In addition to what every region has (:mod:`wse_sim.whole.regions.contract`), a kind that trains has one gradient inlet, where the gradient of
its result ends, and an outlet for the gradient of every operand that needs one.  Gradients travel as their tensors do:
two fp16 elements a word, token by token, features in order.  A core may hold words back only for words of the same
sample or of earlier ones; and every inlet takes in a whole sample, whatever the others wait for: the readers of one tensor get
its words together, and a skip comes long before the branch.  Then no order of readers can stop a batch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wse_sim.compiler.plan import Stage
from wse_sim.fabric.format.builder import Builder
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.hardware import Wafer
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import Floats, PlacedKernel

HELD_FRACTION = 0.7
"""Of a core's memory that samples in flight may take; the rest is for weights, instructions and what passes."""


@dataclass(frozen=True)
class Batch:
    """Samples of a batch, those in flight (a divisor), and the factor of a summed gradient: - rate / rows of the batch."""

    samples: int
    in_flight: int
    factor: float

    @property
    def rounds(self) -> int:
        """Times that forward and backward alternate."""
        return self.samples // self.in_flight


@dataclass(frozen=True)
class TrainedPorts:
    """Colors of a region that trains, and the ports by which its outlets send on.

    Attributes
    ----------
    inward : Sequence[int]
        Colors of the operands, in the order of the inlets.
    outward, towards
        Color of the result, ports by which its outlet sends on.
    gradient_in : int
        Color of the gradient of the result, which ends at the gradient inlet.
    gradient_out : Mapping[str, tuple[int, str]]
        By operand that needs a gradient: its color, and the ports by which its outlet sends on.
    own : Sequence[int]
        The region's own colors.
    """

    inward: Sequence[int]
    outward: int
    towards: str
    gradient_in: int
    gradient_out: Mapping[str, tuple[int, str]]
    own: Sequence[int]


class TrainedKind(PlacedKernel):
    """A kernel that trains, on its region; `needs` are the operands whose gradients are requested."""

    def __init__(
        self, graph: KernelGraph, kernel: Kernel, stage: Stage, wafer: Wafer, needs: frozenset[str]
    ) -> None:
        super().__init__(graph, kernel, stage, wafer)
        self.needs = needs

    @property
    @abstractmethod
    def gradient_inlet(self) -> Cell:
        """Where the gradient of the result ends."""

    @property
    def gradient_order(self) -> tuple[str, ...]:
        """Operands whose gradients leave, in the order in which those of one sample come."""
        return tuple(tensor for tensor in self.operands if tensor in self.needs)

    @property
    def operands(self) -> tuple[str, ...]:
        """Tensors that come in, in the order of the inlets."""
        return tuple(dict.fromkeys(inlet.tensor for inlet in self.inlets))

    @abstractmethod
    def gradient_senders(self, tensor: str) -> tuple[Cell, ...]:
        """Cells that send the gradient of an operand in turn, the outlet first."""

    @property
    def moving(self) -> frozenset[Cell]:
        """Cells next to the compute cores that have a program; kinds with further ones (stores) add them."""
        ends = [inlet.cell for inlet in self.inlets] + [self.gradient_inlet]
        for tensor in self.gradient_order:
            ends += self.gradient_senders(tensor)
        return frozenset(ends)

    @abstractmethod
    def most_in_flight(self) -> int:
        """Samples that the fullest core can hold."""

    @abstractmethod
    def build_batch(self, b: Builder, ports: TrainedPorts, batch: Batch) -> None:
        """Write buffers, classes and routes of a batch and its update."""

    @property
    @abstractmethod
    def reads(self) -> tuple[str, ...]:
        """Buffers that :meth:`read` needs."""

    @abstractmethod
    def read(self, buffers: Mapping[str, Floats]) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """(gradients summed over the batch, new weights) by parameter, from buffers (rows, cols, elements) by name."""
