"""Trainable rows of parameters in front of the tokens, and the first token alone: the streams of inference, and back.

Symbols: those of :mod:`wse_sim.whole.regions.leading_rows`. In the backward pass the inlet receives the gradient of a
result, (n + t) d words of a bundle, and its core::

    n rows      adds them, over all samples, in fp32
    t rows      forwards them to the region that made the tokens
    T - t rows  sends zeros: tokens that no region reads have no gradient
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from wse_sim.fabric.format.builder import Builder, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.whole.regions.contract import Floats
from wse_sim.whole.regions.leading_rows import RowsPlace, pass_on
from wse_sim.whole.regions.shared_color import route_senders
from wse_sim.whole.room import room_bytes
from wse_sim.whole.trained.contract import ANY, Batch, TrainedKind, TrainedPorts

FP16, FP32 = 2, 4  # bytes


class TrainedLeadingRows(RowsPlace, TrainedKind):
    """The rows, the sums of their gradients, and their update."""

    def pace(self) -> float:
        """Return the cycles in which the largest bundle passes forward and back."""
        return 2 * super().pace()

    def most_in_flight(self) -> int:
        """Return any number, since samples only pass by, unless a core has no room for its rows: fp16, fp32 and their sums."""
        return ANY if (FP16 + 2 * FP32) * self.sizes[0] * self.widest <= room_bytes(self.wafer) else 0

    @property
    def too_large(self) -> str:
        """Words for the rows."""
        return f"{self.sizes[0]} rows of parameters and their gradients"

    # ---- program -----------------------------------------------------------------------------------------------------

    def build_batch(self, b: Builder, ports: TrainedPorts, batch: Batch) -> None:
        """Write the inlet and the core of every bundle, with both passes and the update."""
        (tokens,), feed = self.kernel.inputs, ports.own[0]
        leaving = ports.leaving.get(tokens, ())
        where, size = (self.rows, self.columns), max(1, self.sizes[0] * self.widest)
        master, sums = (
            b.buffer(f"{self.name}.{name}", size, "fp32", where) for name in ("master", "gradient")
        )
        self._sums = sums

        def passes(bundle: int, inlet: CoreClass, core: CoreClass) -> None:
            there = ports.inward[bundle], feed, ports.results[bundle][0]
            back = ports.arriving[bundle], feed, leaving[bundle][0] if leaving else None
            with inlet.loop(batch.rounds), core.loop(batch.rounds):
                with inlet.loop(batch.in_flight), core.loop(batch.in_flight):
                    self.forward(bundle, inlet, core, there)
                with inlet.loop(batch.in_flight), core.loop(batch.in_flight):
                    self._backward(bundle, inlet, core, back)
            if self.sizes[0]:
                core.fmac(master.dsd(), master.dsd(), sums.dsd(), scalar(batch.factor))
                core.mov(self.rest.dsd(), master.dsd())

        self.write(b, ports.results, feed, passes)
        for bundle, (color, towards) in enumerate(leaving):
            route_senders(b, color, self.gradient_senders(tokens, bundle), towards)

    def _backward(
        self, bundle: int, inlet: CoreClass, core: CoreClass, colors: tuple[int, int, int | None]
    ) -> None:
        """Write the gradient of a sample; the `colors` bring it to the inlet, to the core and away, if it is needed."""
        (own, coming), each, (inward, feed, outward) = self.sizes, len(self.elements(bundle)), colors
        kept = self.tokens - own
        pass_on(inlet, inward, feed, own * each)
        if own:
            sums = self._sums.dsd(0, own * each)
            core.add(sums, sums, fabric_in(feed), dtype="mixed", wire="fp16x2", start="none")
        if outward is None:
            self.leave_out(inlet, inward, (kept, each))
            return
        pass_on(inlet, inward, feed, kept * each)
        pass_on(core, feed, outward, kept * each)
        if coming > kept:
            zeros = (coming - kept) * each
            core.mov(fabric_out(outward), scalar(0.0), length=zeros, dtype="fp16", start="none")

    # ---- values ------------------------------------------------------------------------------------------------------

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return the rows in fp32 and as fp16 copies."""
        copies = super().values(weights)
        return copies | {f"{self.name}.master": rows for rows in copies.values()}

    @property
    def learning(self) -> tuple[tuple[str, str], ...]:
        """The sums of gradients and the rows; a first token has none."""
        return ((f"{self.name}.gradient", f"{self.name}.master"),) if self.kernel.parameters else ()

    def parameters_in(self, held: Sequence[Floats]) -> dict[str, Floats]:
        """Return the parameters from the parts (bundles, 1, elements) of the cores."""
        (parts,) = held
        own, width = self.sizes[0], self.graph.tensors[self.kernel.outputs[0]].shape[-1]
        rows = np.zeros((own, width), np.float32)
        for bundle in range(self.result_bundles):
            part = parts[bundle, 0, : own * len(self.elements(bundle))].reshape(own, -1)
            rows[:, self.elements(bundle)] = part
        found, first = dict[str, Floats](), 0
        for name in self.kernel.parameters:
            shape = self.graph.tensors[name].shape
            found[name] = rows[first : first + shape[-2]].reshape(shape)
            first += shape[-2]
        return found
