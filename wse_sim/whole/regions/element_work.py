"""Kernels whose family describes the work of a core (:mod:`wse_sim.kernels.contract.element_work`), such as rotary positions.

Symbols: a core has whole units of u elements of some tokens; the tables of these elements rest on it. Where they lie, how words
arrive and leave, and the bundles are those of elementwise work.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from wse_sim.fabric.format.builder import Buffer, Builder
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.graph import Kernel, KernelGraph, TensorKind
from wse_sim.kernels.blocks.on_tables import OnTables
from wse_sim.kernels.contract.element_work import ElementWork, Held
from wse_sim.kernels.contract.registry import family
from wse_sim.whole.regions.contract import PAIR, Floats, is_image, refused
from wse_sim.whole.regions.pointwise import Pointwise
from wse_sim.whole.regions.pointwise_place import PointwisePlace, Taken


def work_of(kernel: Kernel) -> ElementWork:
    """Return the work of a core in fp16.

    Raises
    ------
    TypeError
        If the family of the kernel does not describe it (:func:`wse_sim.whole.regions.contract.has_work`).
    """
    found = family(kernel.family)
    if not isinstance(found, OnTables):
        raise TypeError(f"family {kernel.family} does not describe its work")
    return found.work(kernel.dims, kernel.attrs)


class WorkPlace(PointwisePlace):
    """Cores that do the work which the family of their kernel describes, in both passes."""

    @property
    def work(self) -> ElementWork:
        """Return the work of a core."""
        return work_of(self.kernel)

    @property
    def operators(self) -> tuple[str, ...]:
        """Return none: the work has no operators."""
        return ()

    @property
    def others(self) -> tuple[Taken, ...]:
        """Return the tables, in the order of the parameters."""
        return tuple(("parameter", number) for number in range(len(self.kernel.parameters)))

    @property
    def unit(self) -> int:
        """Elements that stay together on a core."""
        return self.work.unit

    @classmethod
    def check(cls, graph: KernelGraph, kernel: Kernel) -> None:
        """Check that the kernel has one operand of whole units, in the shape of its result, and constant tables.

        Raises
        ------
        ModelError
            If it does not.
        """
        work, result = work_of(kernel), graph.tensors[kernel.outputs[0]]
        tables = [graph.tensors[name] for name in kernel.parameters]
        if len(tables) != len(work.tables) or len(kernel.inputs) != 1:
            raise refused(
                kernel,
                f"has {len(kernel.inputs)} operands and {len(tables)} constant tables of known layout; on the whole fabric family "
                f"{kernel.family} takes one operand and {len(work.tables)} tables ({', '.join(work.tables)})",
                "give it tables that depend on no input, and queries and keys between the layers that make them and attention",
            )
        features = result.shape[-1]
        if features % work.unit or work.unit % PAIR:
            raise refused(
                kernel,
                f"works on units of {work.unit} of {features} features",
                "use whole units of an even size",
            )
        given = graph.tensors[kernel.inputs[0]]
        if is_image(graph, result.name) or prod(given.shape) != prod(result.shape):
            raise refused(
                kernel,
                f"reads {given.shape} for a result of shape {result.shape}",
                "work on tokens of equal size",
            )
        for table in tables:
            if table.kind is not TensorKind.CONSTANT:
                raise refused(
                    kernel, f"reads table '{table.name}', which is no constant", "register it as a buffer"
                )
            if features % table.shape[-1] and table.shape[-1] > work.unit:
                raise refused(
                    kernel, f"spreads table '{table.name}' of shape {table.shape} over {features} features",
                    "give one for the features of a token or of a unit",
                )  # fmt: skip

    def scratch_vectors(self, b: Builder) -> list[Buffer]:
        """Declare the scratch vectors of the cores."""
        return [
            b.buffer(f"{self.name}.scratch{i}", self.each, "fp16", (self.rows, self.columns), bank=bank)
            for i, bank in enumerate(self.work.scratch)
        ]

    def held_values(self, number: int, parameter: Floats) -> Floats:
        """Return a table with all features of a token."""
        features = self.graph.tensors[self.kernel.outputs[0]].shape[-1]
        return self.work.table(number, parameter, features)


class WorkRegion(WorkPlace, Pointwise):
    """The work in inference."""

    def splits(self, tensor: str) -> Sequence[int]:
        """Return the numbers of bundles of whole units."""
        units = PAIR * self.token_words // self.unit
        return [count for count in super().splits(tensor) if units % count == 0]

    def _declare(self, b: Builder) -> None:
        super()._declare(b)
        self.scratch = self.scratch_vectors(b)

    def emit(
        self, core: CoreClass, result: Operand, value: Operand, others: Sequence[Operand], count: int
    ) -> None:
        """Write the work on the `count` elements of a core."""
        scratch = [one.dsd(0, count) for one in self.scratch]
        self.work.forward(core, result, value, Held(others, scratch), count)
