"""Trainable elementwise work and activations: cores in a serpentine, each with its part of every operand,
forward and backward.

Symbols: value v_0 the first operand, v_i = op_i(v_{i-1}, operand); g the gradient of the last value. Of the d
samples in flight a core stores what the backward pass reads, slopes and factors of products; other vectors have
slots for three samples, used round-robin::

    function   v_i = f(v_{i-1})      g = g f'(v_{i-1})              in place; the forward pass computes and stores f'
    product    v_i = v_{i-1} r       gradient of r: g v_{i-1};  g = g r
    sum        v_i = v_{i-1} + r     gradient of r: g                difference: -g
    bound      v_i = max(v_{i-1}, number)     like a function; no gradient passes where the number is the result
    parameter  p as large as the result: its gradients are summed in fp32 on the core that has the element, and the core
               updates it; nothing is summed over cores

The inlet of the operand that arrives last deals out that operand, then gradients of the result. Gradients of
several operands leave one after the other: the microthread of an earlier one has priority.

Operands, result and their gradients may travel in several bundles: then the region consists of bands of rows, each with
the features of one bundle, its own inlets and its own stores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from wse_sim.fabric.format.builder import Buffer, Builder, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.graph import Kernel, KernelGraph, Phase
from wse_sim.kernels.blocks.activation_slopes import (
    ACTIVATIONS,
    BOUNDS,
    Slopes,
    cycles_of_kept,
    emit_bound,
)
from wse_sim.kernels.blocks.rounds import pitch
from wse_sim.kernels.contract.parameters import Attributes
from wse_sim.kernels.families.generated.family import laps_of
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import PAIR, Floats, bundle_elements, refused
from wse_sim.whole.regions.pointwise_place import PointwisePlace, Taken, met_by, numbers_in, operators_of
from wse_sim.whole.regions.shared_color import receive_all, route_senders, send_all
from wse_sim.whole.regions.turns import slot_by_slot
from wse_sim.whole.room import HELD_FRACTION, MOVING_SLOTS, vectors_of
from wse_sim.whole.trained.contract import Batch, TrainedKind, TrainedPorts
from wse_sim.whole.trained.rows import Slots

BINARY = ("add", "sub", "mul")
FP16, FP32 = 2, 4  # bytes
MOST_THREADS = 8
MOST_SAMPLES = 1 << 30  # in flight, of work whose backward pass reads nothing


class TrainedPointwise(PointwisePlace, TrainedKind):
    """Elementwise work, its gradients and the update of its parameters."""

    @classmethod
    def check(cls, graph: KernelGraph, kernel: Kernel) -> None:
        """Check the kernel as in inference; operators need derivatives, and parameters the size of a sample."""
        super().check(graph, kernel)
        known = (*BINARY, *ACTIVATIONS)
        rest = iter(met_by(kernel))
        for op in operators_of(kernel):
            is_bound = op in BOUNDS and isinstance(next(rest), float) if op in (*BINARY, *BOUNDS) else False
            if op not in known and not is_bound:
                raise refused(
                    kernel,
                    f"does '{op}'",
                    f"training on the whole fabric does {', '.join(known)}, and {' and '.join(BOUNDS)} with a number",
                )
        if len(kernel.inputs) > MOST_THREADS // 2:
            raise refused(
                kernel,
                f"has {len(kernel.inputs)} operands, limit {MOST_THREADS // 2} in training",
                "combine them two by two, with a layer between",
            )
        result = graph.tensors[kernel.outputs[0]]
        for name in kernel.parameters:
            if graph.tensors[name].elements != prod(result.shape[1:]):
                raise refused(
                    kernel,
                    f"spreads parameter '{name}' of shape {graph.tensors[name].shape} over a result of shape {result.shape}",
                    "train one as large as a sample, or let a norm scale and shift",
                )

    @property
    def laps(self) -> int:  # type: ignore[override]
        """The kernel states how many; fewer if cores would have too few elements."""
        stated = self.kernel.attrs.get("laps", 1)
        return int(laps_of(stated, self.elements, self.most_cores)) if isinstance(stated, int) else 1

    @property
    def _last(self) -> str:
        """An operand without stores: one of those with the longest path."""
        return next(name for name in self.kernel.inputs if not self.waits(name))

    @property
    def gradient_inlets(self) -> tuple[Cell, ...]:
        """The inlets of the operand that arrives last."""
        return tuple(band.stores[self._last][0] for band in self.bands)

    @property
    def moving(self) -> frozenset[Cell]:
        """Cells that move data, including stores."""
        stores = [cells for band in self.bands for cells in band.stores.values()]
        return super().moving | {cell for cells in stores for cell in cells}

    @property
    def least_rows(self) -> int:
        """Least rows of a band: one per inlet; further stores are where cores are left."""
        return len(self.kernel.inputs)

    def pace(self) -> float:
        """Return the cycles of a sample, both passes, with the chosen bundles."""
        each, count = max(band.each for band in self.bands), len(self.kernel.inputs)
        largest = max(band.elements for band in self.bands)
        readers, cycles = Attributes.of(self.kernel.attrs).readers, 0.0
        for phase, streams in ((Phase.FORWARD, count), (Phase.INPUT_GRADIENT, max(count, readers))):
            work = (count + 1) * each / PAIR + float(
                cycles_of_kept(self.operators, phase, each, self.wafer, numbers_in(self.kernel))
            )
            work *= max(band.laps for band in self.bands)
            cycles += max(work, streams * largest / PAIR * self.wafer.wavelet_cycles)
        return cycles

    @property
    def _pitch(self) -> int:
        return pitch(self.each)

    @property
    def _banks(self) -> tuple[int, ...]:
        """Banks of the scratch buffers, for the function that needs most."""
        used = (Slopes(op, self.wafer).scratch for op in self.operators if op in ACTIVATIONS)
        return max(used, key=len, default=())

    # ---- program -----------------------------------------------------------------------------------------------------

    def build_batch(self, b: Builder, ports: TrainedPorts, batch: Batch) -> None:
        """Write all bands."""
        for number, band in enumerate(self.bands):
            band.build_band(b, ports.of_band(number), batch)

    def build_band(self, b: Builder, ports: TrainedPorts, batch: Batch) -> None:
        """Write inlets and stores, then the cores of the serpentine."""
        names = self.kernel.inputs
        feeds, links = ports.own[: len(names)], ports.own[len(names) :]
        for name, color, feed in zip(names, ports.inward, feeds, strict=True):
            cells = self.stores[name]
            if name == self._last:
                inlet = b.core_class(f"{self.name} inlet of {name}")
                with inlet.loop(batch.rounds):
                    for arriving in (color, *ports.arriving):
                        with inlet.loop(batch.in_flight * self.laps):
                            self.deal(inlet, feed, arriving)
                b.place(inlet, cells[0])
                self.route_feed(b, feed, cells[0])
            else:
                self.take_in(b, name, color, feed, links, batch.samples)
        for color, towards in ports.every_way():
            route_senders(b, color, self.snake, towards)
        self._declare(b, batch.in_flight * self.laps)

        def write(core: CoreClass, advance: str | None, n: int) -> None:
            self._core(core, ports, feeds, batch, advance, n)

        self.write_cores(b, write)

    def _declare(self, b: Builder, in_flight: int) -> None:
        """Declare the buffers: values in one bank, what they are combined with (derivatives, operands,
        parameters) two banks away."""
        where, apart = (self.rows, self.columns), self._pitch

        def buffer(name: str, length: int, dtype: str, bank: int) -> Buffer:
            return b.buffer(f"{self.name}.{name}", length, dtype, where, bank=bank)

        is_read = vectors_of(self.kernel)

        def slots(name: str, bank: int) -> Slots:
            turns = 0 if is_read[name] else self._turns(in_flight)
            return Slots(
                buffer(name, (turns or in_flight) * apart, "fp16", bank), apart, self.each, turns=turns
            )

        self.operands_held = [slots(f"operand{i}", 2 if i else 0) for i in range(len(self.kernel.inputs))]
        self.values_held = [self.operands_held[0]]
        self.slopes = {}
        for i, op in enumerate(self.operators):
            is_function = op in (*ACTIVATIONS, *BOUNDS)
            in_place = is_function or self._others()[i] in self._numbers
            self.values_held.append(self.values_held[-1] if in_place else slots(f"value{i}", 0))
            if is_function:
                self.slopes[i] = slots(f"slope{i}", 2)
        self.met = buffer("met", self.each, "fp16", 0)
        self.scratch = [buffer(f"scratch{i}", self.each, "fp32", bank) for i, bank in enumerate(self._banks)]
        count = len(self.kernel.parameters)
        self.held = [buffer(f"parameter{i}", self.each, "fp16", 2) for i in range(count)]
        self.sums = [buffer(f"gradient{i}", self.each, "fp32", 2) for i in range(count)]
        self.masters = [buffer(f"master{i}", self.each, "fp32", 0) for i in range(count)]

    def _turns(self, in_flight: int) -> int:
        """Return the slots of vectors that only pass through, used round-robin; 0 if each sample, or lap of one, has its slot."""
        return MOVING_SLOTS if in_flight > MOVING_SLOTS else 0

    def _core(
        self,
        core: CoreClass,
        ports: TrainedPorts,
        feeds: Sequence[int],
        batch: Batch,
        advance: str | None,
        n: int,
    ) -> None:
        takers = tuple(range(1, len(feeds) + 1))
        first_sender = len(feeds) + 1
        senders = range(first_sender, first_sender + max(1, len(ports.leaving)))
        result = self.values_held[-1]

        def receive(at: int, step: int) -> None:
            for thread, feed, held in zip(takers, feeds, self.operands_held, strict=True):
                receive_all(core, feed, held.of_turn(at, step).dsd(0, n), thread)

        def take(at: int, step: int) -> None:
            feed = feeds[self.kernel.inputs.index(self._last)]
            receive_all(core, feed, result.of_turn(at, step).dsd(0, n), takers[0])

        def send(color: int, held: Slots, thread: int) -> None:
            send_all(core, fabric_out(color, advance), held.dsd(0, n), thread)

        def forward(at: int, step: int) -> None:
            self._forward(core, at, step, n)
            send(ports.results[0][0], result.of_turn(at, step), first_sender)

        def backward(at: int, step: int) -> None:
            found = self._backward(core, at, step, n)
            # The gradient of an earlier operand goes first: none of its words may wait behind those of a
            # later operand.
            for thread in senders:
                core.join(thread)
            for thread, (tensor, ((color, _),)) in zip(senders, ports.leaving.items(), strict=False):
                send(color, found[tensor], thread)

        with core.loop(batch.rounds):
            for take_in, work, threads in ((receive, forward, takers), (take, backward, takers[:1])):
                for thread in senders:
                    core.join(thread)
                take_in(0, 0)

                def one(
                    first: int,
                    step: int,
                    more: bool,
                    take_in: Callable[[int, int], None] = take_in,
                    work: Callable[[int, int], None] = work,
                    threads: Sequence[int] = threads,
                ) -> None:
                    for thread in threads:
                        core.join(thread)
                    if more:
                        take_in(first + 1, step)
                    work(first, step)

                count = batch.in_flight * self.laps
                slot_by_slot(core, count, one, max(1, self._turns(count)))
        for master, sums, copy in zip(self.masters, self.sums, self.held, strict=True):
            core.fmac(master.dsd(), master.dsd(), sums.dsd(), scalar(batch.factor))
            core.mov(copy.dsd(), master.dsd())

    @property
    def _numbers(self) -> tuple[Taken, ...]:
        return tuple(taken for taken in self.others if taken[0] == "number")

    def _others(self) -> list[Taken | None]:
        """Return by operator its second operand: an operand or parameter with its index, or a number; None
        for a function."""
        rest = iter(self.others)
        return [next(rest) if op in (*BINARY, *BOUNDS) else None for op in self.operators]

    def _other(self, taken: Taken, at: int, step: int) -> Buffer | Slots:
        kind, number = taken[0], int(taken[1])
        return self.held[number] if kind == "parameter" else self.operands_held[number].of_turn(at, step)

    def _forward(self, core: CoreClass, at: int, step: int, n: int) -> None:
        for i, (op, taken) in enumerate(zip(self.operators, self._others(), strict=True)):
            x, y = self.values_held[i].of_turn(at, step), self.values_held[i + 1].of_turn(at, step)
            if taken is None:
                slope = self.slopes[i].of_turn(at, step).dsd(0, n)
                made = Slopes(op, self.wafer)
                scratch = [one.dsd() for one in self._scratch_of(made, n)]
                made.emit(core, y.dsd(0, n), slope, scratch)
            elif op in BOUNDS:
                vectors = y.dsd(0, n), x.dsd(0, n), self.slopes[i].of_turn(at, step).dsd(0, n)
                emit_bound(core, op, vectors, float(taken[1]), self.wafer)
            elif taken[0] == "number":
                getattr(core, op)(y.dsd(0, n), x.dsd(0, n), scalar(taken[1]), dtype="fp16")
            else:
                other = self._other(taken, at, step)
                getattr(core, op)(y.dsd(0, n), x.dsd(0, n), other.dsd(0, n), dtype="fp16")

    def _scratch_of(self, made: Slopes, n: int) -> list[Buffer]:
        rest = [replace(one, length=n) for one in self.scratch]
        return [rest.pop(next(i for i, one in enumerate(rest) if one.bank == bank)) for bank in made.scratch]

    def _backward(self, core: CoreClass, at: int, step: int, n: int) -> dict[str, Slots]:
        """Write the gradients of the operands and return their slots by tensor; the value's gradient moves
        through the value buffers."""
        found: dict[str, Slots] = {}
        for i, (op, taken) in reversed(list(enumerate(zip(self.operators, self._others(), strict=True)))):
            g = self.values_held[i + 1].of_turn(at, step).dsd(0, n)
            before = self.values_held[i].of_turn(at, step)
            value = before.dsd(0, n)
            if taken is None or op in BOUNDS:
                core.mul(value, g, self.slopes[i].of_turn(at, step).dsd(0, n), dtype="fp16")
                continue
            if taken[0] == "number":
                if op == "mul":
                    core.mul(value, g, scalar(taken[1]), dtype="fp16")
                continue
            kind, number = taken[0], int(taken[1])
            other = self._other(taken, at, step)
            if kind == "parameter":
                sums = self.sums[number].dsd(0, n)
                if op == "mul":
                    core.mac(sums, g, value, dtype="mixed")
                else:
                    core.add(sums, sums, g, dtype="mixed")
            elif op == "mul":
                core.mul(self.met.dsd(0, n), g, value, dtype="fp16")
            # The gradient of the value overwrites the value, that of the operand overwrites the operand.
            if op == "mul":
                core.mul(value, g, other.dsd(0, n), dtype="fp16")
            else:
                core.mov(value, g, dtype="fp16")
            if kind == "operand":
                to = other.dsd(0, n)
                if op == "mul":
                    core.mov(to, self.met.dsd(0, n), dtype="fp16")
                elif op == "sub":
                    core.mul(to, g, scalar(-1.0), dtype="fp16")
                else:
                    core.mov(to, g, dtype="fp16")
                found[self.kernel.inputs[number]] = self.operands_held[number].of_turn(at, step)
        found[self.kernel.inputs[0]] = self.operands_held[0].of_turn(at, step)
        return found

    # ---- values, memory, cycles --------------------------------------------------------------------------------------

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return the parameters in fp32 and as fp16 copies."""
        return {
            f"{band.name}.{kind}{i}": band.parts(weights[name])
            for band in self.bands
            for i, name in enumerate(self.kernel.parameters)
            for kind in ("parameter", "master")
        }

    @property
    def learning(self) -> tuple[tuple[str, str], ...]:
        """The sums of gradients and the parameters, band by band."""
        return tuple(
            (f"{band.name}.gradient{i}", f"{band.name}.master{i}")
            for i in range(len(self.kernel.parameters))
            for band in self.bands
        )

    def parameters_in(self, held: Sequence[Floats]) -> dict[str, Floats]:
        """Return the parameters, assembled from the parts of the cores."""
        found, parts = dict[str, Floats](), iter(held)
        result, count = self.kernel.outputs[0], len(self.bands)
        for name in self.kernel.parameters:
            width = self.graph.tensors[name].elements // self.tokens
            rows = np.zeros((self.tokens, width + self.filling), np.float32)
            for number, band in enumerate(self.bands):
                own = bundle_elements(self.graph, result, rows.shape[1], number, count)
                rows[:, own] = band.assembled(next(parts)).reshape(self.tokens, -1)
            found[name] = rows[:, :width].reshape(self.graph.tensors[name].shape)
        return found

    def assembled(self, parts: Floats) -> Floats:
        """Return the elements of a band from the parts (rows, cols, elements) of its cores."""
        return np.concatenate(
            [parts[r - self.top, c - self.left, : self.count_of(k)] for k, (r, c) in enumerate(self.snake)]
        )

    def most_in_flight(self) -> int:
        """Return the samples in flight whose operands, values and derivatives fit next to parameters and
        scratch."""
        return min(band._most_of_band() for band in self.bands)

    def _most_of_band(self) -> int:
        is_read = vectors_of(self.kernel).values()
        read, size = sum(is_read), self.wafer.sram_bytes
        fixed = (
            self._pitch * (FP16 + len(self._banks) * FP32 + len(self.kernel.parameters) * (FP16 + 2 * FP32))
            + self.wafer.kernel_code_bytes
        )
        vectors = int(min(HELD_FRACTION * size, size - fixed) // (FP16 * self._pitch))
        if vectors < (MOVING_SLOTS + 1) * read + MOVING_SLOTS * (len(is_read) - read):
            return min(vectors // len(is_read), MOVING_SLOTS) // self.laps
        if not read:
            return MOST_SAMPLES
        return (vectors - MOVING_SLOTS * (len(is_read) - read)) // read // self.laps
