"""Interface of a trainable region: a kernel forward and backward on the rectangle that the plan assigns to
it, and its update.

Symbols: B samples of a batch of T rows each; d of them in flight, where d divides B. Every core runs::

    B / d rounds    forward of samples 0 .. d - 1, then backward of the same samples in the same order
    at the end      the update

No forward pass of a round needs a gradient, so the forward part is an independent pipeline, and the backward
part is the same pipeline reversed. What a backward pass needs (inputs, slopes, statistics) has d slots;
sample i uses slot ``i mod d``.

In addition to the interface of every region (:mod:`wse_sim.whole.regions.contract`), a trainable kind has a
gradient inlet for every bundle of its result, and an outlet for every bundle of the gradient of an operand that
needs one. Gradients travel like their tensors: two fp16 elements per word, token by token, features in order.

Two rules prevent deadlocks. A core may delay words only until words of the same or of earlier samples arrive.
And every inlet receives a whole sample, whatever else waits, because the readers of one tensor get its words
at the same time, and a skip arrives long before the branch. Then no order of readers can deadlock a batch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from wse_sim.compiler.plan import Stage
from wse_sim.fabric.format.builder import Builder
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.hardware import Wafer
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import Floats, Out, PlacedKernel, Ports

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
class TrainedPorts(Ports):
    """Colors of a trainable region: in addition, by bundle, those of the gradient of its result, and the streams on which the
    gradients of operands leave, by operand that needs one."""

    arriving: Sequence[int]
    leaving: Mapping[str, Sequence[Out]]

    def of_band(self, number: int) -> Self:
        """Return those of one band, with its bundle of every gradient."""
        leaving = {tensor: streams[number : number + 1] for tensor, streams in self.leaving.items()}
        return replace(super().of_band(number), arriving=self.arriving[number : number + 1], leaving=leaving)

    def every_way(self) -> list[Out]:
        """Return all streams that leave: bundles of the result, then of the gradients."""
        return [*self.results, *(stream for streams in self.leaving.values() for stream in streams)]


def beyond(need: float, limit: float) -> str:
    """Return by how much bytes exceed those of a core."""
    return f"it takes {need:,.0f} bytes, limit {limit:,.0f} ({need / limit:.3g} times as much)"


class TrainedKind(PlacedKernel):
    """A trainable kernel on its region; `needs` are the operands whose gradients are needed."""

    def __init__(
        self, graph: KernelGraph, kernel: Kernel, stage: Stage, wafer: Wafer, needs: frozenset[str]
    ) -> None:
        self.needs = needs
        super().__init__(graph, kernel, stage, wafer)

    @property
    def gradient_inlets(self) -> tuple[Cell, ...]:
        """Cells at which the bundles of the gradient of the result arrive: by default those of the first operand."""
        return tuple(inlet.cell for inlet in self.inlets if inlet.tensor == self.kernel.inputs[0])

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

    def gradient_senders(self, tensor: str, bundle: int) -> tuple[Cell, ...]:
        """Return the cells that send a bundle of the gradient of an operand in sequence, the outlet first: by default those
        that send this bundle of the result."""
        return self.bundle_senders(bundle)

    @property
    def moving(self) -> frozenset[Cell]:
        """Cells next to the compute cores that have a program; kinds with stores add theirs."""
        ends = [inlet.cell for inlet in self.inlets] + list(self.gradient_inlets)
        for tensor in self.gradient_order:
            for bundle in range(self.bundles.get(tensor, 1)):
                ends += self.gradient_senders(tensor, bundle)
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
    def learning(self) -> tuple[tuple[str, str], ...]:
        """Names of the buffers with a summed gradient and with new weights, in pairs; none without parameters."""
        return ()

    def parameters_in(self, held: Sequence[Floats]) -> dict[str, Floats]:
        """Return the parameters, or their gradients, from one buffer (rows, cols, elements) of every pair."""
        return {}

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the buffers that :meth:`read` needs."""
        return tuple(name for pair in self.learning for name in pair)

    def read(self, buffers: Mapping[str, Floats]) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """Return gradients summed over the batch and new weights, both by parameter, from buffers (rows,
        cols, elements) by name."""
        if not self.learning:
            return {}, {}
        gradients, weights = zip(*self.learning, strict=True)
        return (
            self.parameters_in([buffers[name] for name in gradients]),
            self.parameters_in([buffers[name] for name in weights]),
        )
