"""Trainable pooling: channels over a column of cores; each core remembers which pixels were the maximum.

Symbols: an image of H x W pixels of C channels, T pixels of the result; P cores in a column, e channels on
each, whole words; d samples in flight::

    inlet       of every pixel the words of each core in sequence: images forward, then gradients of the result
    forward     reduces the windows; for a maximum, stores which tap it was      > T pixels out, the cores in sequence
    backward    gradients to the maximum's taps; of a mean to all taps           > H W pixels out, the cores in sequence

The next input arrives during the work. Instructions: :mod:`wse_sim.kernels.blocks.pooling_core_training`. Per
sample, forward and backward::

    core     (H W + T) e + sum over instructions of (o + elements / rate)
    inlet    (H W + T) (C / 2 + 1), unless a core has all channels
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial

import numpy as np

from wse_sim.fabric.format.builder import Buffer, Builder, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.kernels.blocks.pooling_core import IMAGE, LINES, RESULT, BufferPart
from wse_sim.kernels.blocks.pooling_core_training import BANKS, IMAGE_BACK, KEPT, TAKEN, TrainedPoolCore
from wse_sim.kernels.families.attention.pairs import slot_elements
from wse_sim.whole.regions.contract import PAIR, Floats, Inlet
from wse_sim.whole.regions.pooling import LEAST, PoolingPlace
from wse_sim.whole.regions.shared_color import advance_of, deal, receive_all, route_senders, route_takers
from wse_sim.whole.regions.turns import in_turn
from wse_sim.whole.room import HELD_FRACTION
from wse_sim.whole.trained.contract import ANY, Batch, TrainedKind, TrainedPorts
from wse_sim.whole.trained.rows import Held, Slots

RECEIVE = 1  # microthread
FP16, FP32 = 2, 4  # bytes


class TrainedPooling(PoolingPlace, TrainedKind):
    """Pooling and its gradient."""

    @cached_property
    def core(self) -> TrainedPoolCore:
        """The fullest core."""
        return TrainedPoolCore(self.windows, PAIR * self.words, self.is_max, self.wafer)

    @property
    def inlets(self) -> tuple[Inlet, ...]:
        """One inlet, next to the first core."""
        return (Inlet(self.kernel.inputs[0], (self.top, self.left - 1)),)

    def most_in_flight(self) -> int:
        """Return the samples in flight whose maximum masks fit next to one image, its gradient and
        intermediate results."""
        sizes = self.core.sizes
        kept = FP16 * sum(int(slot_elements(sizes[name])) for name in KEPT if name in sizes)
        fixed = sum(self._bytes(name) * size for name, size in sizes.items() if name not in KEPT)
        fixed += self._bytes(TAKEN) * sizes[TAKEN]  # two of them
        spare = self.wafer.sram_bytes - self.wafer.kernel_code_bytes - fixed
        if not kept:
            return ANY if spare > 0 else 0
        return max(0, int(min(HELD_FRACTION * self.wafer.sram_bytes, spare) // kept))

    def _bytes(self, buffer: str) -> int:
        return PAIR * self.core.wide_of(buffer)

    # ---- program ---------------------------------------------------------------------------------------------------

    def build_batch(self, b: Builder, ports: TrainedPorts, batch: Batch) -> None:
        """Write the inlet, and one core class per core."""
        feed, inlet = ports.own[0], b.core_class(f"{self.name} inlet")
        elements = [PAIR * self.words_of(i) for i in range(self.height)]
        pixels, results = self.core.pixels, self.core.results
        with inlet.loop(batch.rounds):
            for color, count in ((ports.inward[0], pixels), (ports.arriving[0], results)):
                with inlet.loop(batch.in_flight * count):
                    deal(inlet, feed, [[(fabric_in(color), share)] for share in elements], self.height)
        b.place(inlet, self.inlets[0].cell)
        route_takers(b, feed, self.inlets[0].cell, self.senders)
        for color, towards in ports.every_way():
            route_senders(b, color, self.senders, towards)
        self._declare(b, batch.in_flight)
        for i, cell in enumerate(self.senders):
            core = b.core_class(f"{self.name} {i}")
            self._write_core(core, ports, batch, i)
            b.place(core, cell)

    def _declare(self, b: Builder, in_flight: int) -> None:
        where = (self.rows, self.columns)

        def buffer(name: str, kind: str, size: int) -> Buffer:
            dtype = "fp16" if self._bytes(kind) == FP16 else "fp32"
            return b.buffer(f"{self.name}.{name}", size, dtype, where, bank=BANKS[kind])

        sizes = self.core.sizes
        self._taken = [buffer(f"{TAKEN}{turn}", TAKEN, sizes[TAKEN]) for turn in (0, 1)]
        self._held = {
            name: buffer(name, name, size) for name, size in sizes.items() if name not in (TAKEN, *KEPT)
        }
        self._kept = {
            name: Slots(
                buffer(name, name, in_flight * int(slot_elements(size))), int(slot_elements(size)), size
            )
            for name, size in sizes.items()
            if name in KEPT
        }

    def _write_core(self, core: CoreClass, ports: TrainedPorts, batch: Batch, position: int) -> None:
        advance = advance_of(position, self.height)
        pooled = TrainedPoolCore(self.windows, PAIR * self.words_of(position), self.is_max, self.wafer)
        each, lines, columns = pooled.each, self.windows.lines, self.windows.columns

        def receive(pixels: int, turn: int) -> None:
            receive_all(core, ports.own[0], self._taken[turn].dsd(0, pixels * each), RECEIVE)

        def send(color: int, pixel: Operand, scale: bool) -> None:
            out = fabric_out(color, advance)
            if scale:
                core.mul(out, pixel, scalar(1.0 / (lines.taps * columns.taps)), dtype="fp16", start="none")
            else:
                core.mov(out, pixel, dtype="fp16", start="none")

        def forward(now: int, first: int, apart: int) -> None:
            for step in pooled.forward():
                self.emit(core, step, partial(self._operand, now, (first, apart)))
            with core.loop(lines.results), core.loop(columns.results):
                pixel = self._held[RESULT].dsd(0, each, step=each, outer_step=pooled.wide * each)
                send(ports.results[0][0], pixel, not self.is_max)

        def backward(now: int, first: int, apart: int) -> None:
            if not self.needs:
                return
            for step in pooled.backward():
                self.emit(core, step, partial(self._operand, now, (first, apart)))
            at = columns.around * each
            for ((color, _),) in ports.leaving.values():
                with core.loop(lines.size), core.loop(columns.size):
                    pixel = self._held[IMAGE_BACK].dsd(at, each, step=each, outer_step=pooled.pitch)
                    send(color, pixel, not self.is_max)

        with core.loop(batch.rounds):
            in_turn(core, batch.in_flight, lambda turn: receive(pooled.pixels, turn), forward, (RECEIVE,))
            in_turn(core, batch.in_flight, lambda turn: receive(pooled.results, turn), backward, (RECEIVE,))

    def _operand(self, now: int, slot: tuple[int, int], at: BufferPart, length: int) -> Operand:
        """Return elements of a buffer; `now` selects the one that is taken, `slot` (first, apart) that of a sample."""
        held: Held
        if at.buffer in self._kept:
            held = self._kept[at.buffer].of_turn(*slot)
        else:
            held = self._taken[now] if at.buffer == TAKEN else self._held[at.buffer]
        return held.dsd(at.first, length, at.stride, step=at.apart)

    # ---- values and cycles -----------------------------------------------------------------------------------------

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return the padding around the image of a maximum."""
        if not self.is_max:
            return {}
        names = [name for name in (IMAGE, LINES) if name in self.core.sizes]
        return {
            f"{self.name}.{name}": np.full((self.height, self.cols, self.core.sizes[name]), LEAST, np.float32)
            for name in names
        }
