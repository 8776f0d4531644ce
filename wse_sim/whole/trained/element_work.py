"""Trainable kernels whose family describes the work of a core (:mod:`wse_sim.kernels.contract.element_work`).

Symbols: d samples in flight, x and y of each in their slots; the tables rest on the cores and do not train::

    forward     y = f(x)
    backward    the gradient of y arrives in the slot of y; the gradient of x replaces x and leaves
"""

from __future__ import annotations

from collections.abc import Mapping

from wse_sim.fabric.format.builder import Builder
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.kernels.contract.element_work import WITH_TABLES, WITH_X, Held
from wse_sim.whole.regions.contract import Floats
from wse_sim.whole.regions.element_work import WorkPlace
from wse_sim.whole.regions.pointwise_place import PointwisePlace
from wse_sim.whole.room import HELD_FRACTION, WORK_VECTORS
from wse_sim.whole.trained.pointwise import FP16, TrainedPointwise
from wse_sim.whole.trained.rows import Slots


class TrainedWork(WorkPlace, TrainedPointwise):
    """The work, its gradient, and its tables."""

    learning = ()
    """Tables do not train."""

    def _declare(self, b: Builder, in_flight: int) -> None:
        where, apart = (self.rows, self.columns), self._pitch
        x, y = (
            Slots(
                b.buffer(f"{self.name}.{name}", in_flight * apart, "fp16", where, bank=WITH_X),
                apart,
                self.each,
            )
            for name in ("operand0", "value1")
        )
        self.operands_held, self.values_held = [x], [x, y]
        self.tables = [
            b.buffer(f"{self.name}.parameter{i}", self.each, "fp16", where, bank=WITH_TABLES)
            for i in range(len(self.kernel.parameters))
        ]
        self.scratch = self.scratch_vectors(b)
        self.held, self.sums, self.masters = [], [], []  # nothing trains

    def _turns(self, in_flight: int) -> int:
        """Return 0: each sample has its slot."""
        return 0

    def _forward(self, core: CoreClass, at: int, step: int, n: int) -> None:
        x, y = self._slots(at, step, n)
        self.work.forward(core, y, x, self._rest(n), n)

    def _backward(self, core: CoreClass, at: int, step: int, n: int) -> dict[str, Slots]:
        x, g = self._slots(at, step, n)
        self.work.backward(core, x, g, self._rest(n), n)
        return {self.kernel.inputs[0]: self.operands_held[0].of_turn(at, step)}

    def _rest(self, n: int) -> Held:
        """Return the vectors of all samples."""
        return Held([one.dsd(0, n) for one in self.tables], [one.dsd(0, n) for one in self.scratch])

    def _slots(self, at: int, step: int, n: int) -> tuple[Operand, Operand]:
        """Return the vectors of a sample."""
        x, y = (held.of_turn(at, step).dsd(0, n) for held in self.values_held)
        return x, y

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return every core's part of the tables."""
        return PointwisePlace.values(self, weights)

    def most_in_flight(self) -> int:
        """Return the samples in flight whose operands and results fit next to the tables."""
        size = self.wafer.sram_bytes
        rest = len(self.kernel.parameters) + len(self.work.scratch)
        fixed = FP16 * self._pitch * rest + self.wafer.kernel_code_bytes
        return int(min(HELD_FRACTION * size, size - fixed) // (WORK_VECTORS * FP16 * self._pitch))
