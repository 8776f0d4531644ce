"""Trainable layer and RMS norm: columns of cores that receive tokens in sequence, forward and backward; each column has
one bundle of the features.

Symbols: a token x of D features, m its mean (RMS: 0), s its deviation (RMS: root of the mean square), g the
gradient of the result, a and b scale and shift; T tokens per sample, t of them on each of R cores::

    forward    n = (x - m) / s;   y = a n + b                        n and 1 / s stay on the core, for d samples
    backward   da += g n;  db += g                                   fp32
               h = a g;   dx = (h - n mean(h n) - mean(h)) / s       RMS: without mean(h)
    update     da and db summed up the column, the sums sent down;   every core: a' += factor da in fp32, a = a' in fp16

An inlet per bundle deals out tokens, then gradients of the same tokens, on one color. With k bundles, k neighbours share
a token, and add its statistics and means along their row; bundles come in on k rows, so their words cross no link twice.
Per sample and core::

    t (instructions forward + instructions backward + D / (2 k) words in and out, twice + waits for the others)

The instructions are those of the kernel's own programs, forward and for both gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf

import numpy as np

from wse_sim.fabric.format.builder import Buffer, Builder, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.kernels.blocks.line_programs import RowWork
from wse_sim.kernels.blocks.line_stages import FEATURE, MATRIX, Lines, RowLayout, Vector
from wse_sim.kernels.blocks.rounds import pitch
from wse_sim.kernels.blocks.token_blocks import lanes_for
from wse_sim.kernels.contract.parameters import Attributes
from wse_sim.kernels.families.norm import (
    affine_of,
    forward_work,
    input_gradient_work,
    lane_bytes,
    lane_costs,
    weight_gradient_work,
)
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import Floats, check_fixed, divisor, heads_of, rows_in_turn
from wse_sim.whole.regions.norm import NormPlace
from wse_sim.whole.regions.shared_color import (
    advance_of,
    cable,
    deal,
    receive_all,
    route_lanes,
    route_senders,
    route_takers,
    send_all,
)
from wse_sim.whole.regions.turns import in_turn
from wse_sim.whole.room import room_bytes
from wse_sim.whole.trained.contract import Batch, TrainedKind, TrainedPorts
from wse_sim.whole.trained.rows import Held, Slots

RECEIVE, SEND = 1, 2  # microthreads
FP16, FP32 = 2, 4  # bytes
GRADIENTS = {"scale": "d_scale", "shift": "d_shift"}


class TrainedNorm(NormPlace, TrainedKind):
    """A norm, its gradients and the update of its parameters."""

    @classmethod
    def check(cls, graph: KernelGraph, kernel: Kernel) -> None:
        """Check the kernel as in inference; it must be laid out on one column of cores."""
        super().check(graph, kernel)
        check_fixed(kernel, kernel.attrs.get("whole", False))

    def splits(self, tensor: str) -> Sequence[int]:
        """Return the numbers of bundles with whole words of a token, for which the region has rows and columns."""
        if heads_of(self.graph, self.kernel) > 1:
            return (1,)
        rows, stated = rows_in_turn(self.region, self.wafer), Attributes.of(self.kernel.attrs)
        return lanes_for(self.features, min(rows, self.compute_cols, stated.most_bundles))

    def pace(self) -> float:
        """Return the cycles of a sample, both passes, with the chosen bundles; infinite without room for the stated samples
        in flight."""
        if self.most_in_flight() < max(1, Attributes.of(self.kernel.attrs).held_samples):
            return inf
        rows = rows_in_turn(self.region, self.wafer)
        passes = lane_costs(self.kernel.dims, rows, self.lane, self.wafer, "fp16", self.kernel.attrs)
        return sum(float(np.asarray(cost.total)) for cost in passes.values())

    def extent(self) -> tuple[int, int]:
        """Return the rows of cores, with those on which further bundles come in, and a column per bundle."""
        turning = self.lane - 1
        return divisor(self.tokens, rows_in_turn(self.region, self.wafer) - turning) + turning, self.lane

    @property
    def cores(self) -> int:
        """Cores of a column that have tokens."""
        return self.height - (self.lane - 1)

    @property
    def each(self) -> int:
        """Tokens of a core."""
        return self.tokens // self.cores

    @property
    def cables(self) -> tuple[tuple[tuple[Cell, ...], frozenset[Cell]], ...]:
        """The cells that the tokens of each bundle pass, to a column of cores that have them."""
        rows = self.cores + self.lane - 1
        return tuple(cable(self.top, self.left, rows, self.lane, bundle, 1) for bundle in range(self.lane))

    @property
    def own_colors(self) -> int:
        """Colors for tokens and gradients from the inlet; for sums up the column (two), and down again; for lanes."""
        return self._column_colors + self.lane_colors

    @property
    def _column_colors(self) -> int:
        return 4 if self.affine and self.cores > 1 else 1

    @property
    def affine(self) -> tuple[str, ...]:
        """Which of "scale" and "shift" the layer has."""
        return affine_of(self.kernel.attrs)

    @property
    def _has_dx(self) -> bool:
        return bool(self.needs)

    @property
    def _apart(self) -> int:
        """Offset from scale to shift: shift and stored tokens, scale and gradients are in different banks."""
        return pitch(self.part) + 2

    # ---- instructions ------------------------------------------------------------------------------------------------

    @cached_property
    def forward(self) -> RowWork:
        """Instructions from a token "x" to its normalized form "kept", and to "result" if there are
        parameters."""
        found = forward_work("fp16", self.kernel.attrs, self.features)
        place = next(i for i, vector in enumerate(found.vectors) if vector.to == "x")
        *before, normal = found.vectors[: place + 1]
        after = (
            replace(vector, to="result", of=tuple("kept" if name == "x" else name for name in vector.of))
            for vector in found.vectors[place + 1 :]
        )
        vectors = (*before, replace(normal, to="kept"), *after)
        own = [vector for vector in vectors if self._is_emitted(vector)]
        x = found.shapes["x"]
        return RowWork(tuple(own), {**found.shapes, "kept": x, "result": x})

    @cached_property
    def backward(self) -> RowWork:
        """Instructions from a gradient "g" to the sums of parameter gradients, and to the token's gradient
        "result"."""
        attrs = self.kernel.attrs
        sums = weight_gradient_work("fp16", attrs)
        wanted = {GRADIENTS[name] for name in self.affine}
        vectors = [vector for vector in sums.vectors if vector.to in wanted and vector.of != (0.0,)]
        shapes = {name: replace(sums.shapes[name], within="", half=0) for name in wanted}
        rows = input_gradient_work("fp16", attrs, self.features)
        if self._has_dx:
            *others, last = rows.vectors
            vectors += [*others, replace(last, to="result")]
        own = [vector for vector in vectors if self._is_emitted(vector)]
        return RowWork(tuple(own), {**rows.shapes, **shapes, "result": rows.shapes["g"]})

    def _is_emitted(self, vector: Vector) -> bool:
        """Return whether a core does it for every token: sums of parameters over the cores wait for the update."""
        return not vector.collective or (vector.collective == "share" and self.lane > 1)

    # ---- program -----------------------------------------------------------------------------------------------------

    def build_batch(self, b: Builder, ports: TrainedPorts, batch: Batch) -> None:
        """Write the inlets, the sums of the lanes, and one core class per core."""
        self._declare(b, batch.in_flight * self.each)
        first = self.bundle_senders(0)
        rows = slice(first[0][0], first[-1][0] + 1)
        self.sharing = route_lanes(b, rows, self.left, self.lane, ports.own[self._column_colors :])
        for bundle in range(self.lane):
            self._column(b, bundle, ports.of_band(bundle), batch)

    def _column(self, b: Builder, bundle: int, ports: TrainedPorts, batch: Batch) -> None:
        """Write the inlet and the cores of a bundle."""
        own, inlet = ports.own, b.core_class(f"{self.name} inlet {bundle}")
        feed = own[0]
        with inlet.loop(batch.rounds):
            for color in (*ports.inward, *ports.arriving):
                with inlet.loop(batch.in_flight * self.each):
                    share = [(fabric_in(color), self.part)]
                    deal(inlet, feed, [share] * self.cores, self.cores)
        cell, senders = self.inlets[bundle].cell, self.bundle_senders(bundle)
        b.place(inlet, cell)
        cells, passing = self.cables[bundle]
        route_takers(b, feed, cell, cells, passing=passing)
        for color, towards in ports.every_way():
            route_senders(b, color, senders, towards)
        if self.affine and self.cores > 1:
            self._route_sums(b, own, senders)
        for i, place in enumerate(senders):
            core = b.core_class(f"{self.name} {bundle} {i}")
            self._core(core, bundle, ports, batch, i)
            b.place(core, place)

    def _declare(self, b: Builder, tokens: int) -> None:
        """Declare the buffers; whole rows alternate between two banks without conflicts; `tokens` normalized
        tokens are stored."""
        where = (self.rows, self.columns)

        def buffer(name: str, length: int, dtype: str, bank: int) -> Buffer:
            return b.buffer(f"{self.name}.{name}", length, dtype, where, bank=bank)

        features, apart = self.part, pitch(self.part)
        self.taken = [buffer(f"taken{i}", features, "fp16", 2) for i in (0, 1)]
        self.results = [buffer(f"result{i}", features, "fp16", 0) for i in (0, 1)]
        self.kept = Slots(buffer("kept", tokens * apart, "fp16", 0), apart, features)
        self.inverse = Slots(buffer("inverse", tokens, "fp16", 0), 1, 1)
        self.scratch: dict[str, Held] = {}
        layout = RowLayout(1, features, by_row=True)
        for name, shape in (*self.forward.shapes.items(), *self.backward.shapes.items()):
            is_elsewhere = shape.kind in (MATRIX, FEATURE) or shape.within or name == "inverse"
            if not is_elsewhere and name not in self.scratch:
                self.scratch[name] = buffer(name, layout.elements(shape.kind), shape.dtype, shape.bank)
        if not self.affine:
            return
        size = len(self.affine) * self._apart
        self.sums, self.master = buffer("gradients", size, "fp32", 0), buffer("master", size, "fp32", 2)
        self.copies = [buffer(f"copy{i}", size, "fp16", bank) for i, bank in enumerate(self._banks)]

    @property
    def _banks(self) -> tuple[int, ...]:
        """Banks of the fp16 copies: one copy if there is a shift; a lone scale is multiplied with tokens in
        bank 0 and gradients in bank 2."""
        return (0,) if len(self.affine) > 1 else (2, 0)

    def _core(self, core: CoreClass, bundle: int, ports: TrainedPorts, batch: Batch, row: int) -> None:
        tokens, advance = batch.in_flight * self.each, advance_of(row, self.cores)
        apart, own, layout = self._apart, ports.own, RowLayout(1, self.part, by_row=True)
        ((outward, _),) = ports.results

        def receive(turn: int) -> None:
            receive_all(core, own[0], self.taken[turn].dsd(), RECEIVE)

        def send(color: int, held: Held) -> None:
            send_all(core, fabric_out(color, advance), held.dsd(0, self.part), SEND)

        def emit(work: RowWork, buffers: Mapping[str, Held]) -> None:
            Lines(work.shapes, buffers, layout, self.sharing, self.wafer).emit(core, work.vectors, bundle)

        def parameters(which: int) -> dict[str, Held]:
            return {
                name: Slots(self.copies[which], apart, self.part, i * apart)
                for i, name in enumerate(self.affine)
            }

        def forward(now: int, first: int, step: int) -> None:
            kept = self.kept.of_turn(first, step)
            buffers = {**self.scratch, "x": self.taken[now], "kept": kept, "result": self.results[now]}
            buffers |= {"by": self.inverse.of_turn(first, step)}
            if self.affine:
                buffers |= parameters(0)
            emit(self.forward, buffers)
            send(outward, self.results[now] if self.affine else kept)

        def backward(now: int, first: int, step: int) -> None:
            buffers = {**self.scratch, "g": self.taken[now], "result": self.results[now]}
            buffers |= {"x": self.kept.of_turn(first, step), "inverse": self.inverse.of_turn(first, step)}
            if self.affine:
                buffers |= parameters(-1)
                buffers |= {
                    GRADIENTS[name]: Slots(self.sums, apart, self.part, i * apart)
                    for i, name in enumerate(self.affine)
                }
            emit(self.backward, buffers)
            for ((color, _),) in ports.leaving.values():
                send(color, self.results[now])

        with core.loop(batch.rounds):
            # The last result of one pass may be in the buffer that the other pass uses first.
            core.join(SEND)
            in_turn(core, tokens, receive, forward, (RECEIVE,))
            core.join(SEND)
            in_turn(core, tokens, receive, backward, (RECEIVE,))
        if self.affine:
            self._update(core, own, row, batch.factor)

    def _update(self, core: CoreClass, own: Sequence[int], row: int, factor: float) -> None:
        """Sum the gradients up the column and send the sums down; then update the fp32 parameters and their
        copies."""
        sums = self.sums.dsd()
        if self.cores > 1:
            up, down = own[1:3], own[3]
            if row == self.cores - 1:
                core.mov(fabric_out(up[row % 2]), sums, start="none")
            elif row:
                core.add(fabric_out(up[row % 2]), sums, fabric_in(up[(row + 1) % 2]), start="none")
            else:
                core.add(sums, sums, fabric_in(up[1]), start="none")
                core.mov(fabric_out(down), sums, start="none")
            if row:
                core.mov(sums, fabric_in(down), start="none")
        core.fmac(self.master.dsd(), self.master.dsd(), sums, scalar(factor))
        for copy in self.copies:
            core.mov(copy.dsd(), self.master.dsd())

    def _route_sums(self, b: Builder, own: Sequence[int], senders: Sequence[Cell]) -> None:
        up, down = own[1:3], own[3]
        last = self.cores - 1
        for i, cell in enumerate(senders):
            if i:
                b.route(up[i % 2], cell, rx="R", tx="N")
            if i < last:
                b.route(up[(i + 1) % 2], cell, rx="S", tx="R")
            b.route(down, cell, rx="N" if i else "R", tx=("R" if i else "") + ("S" if i < last else ""))

    # ---- values, memory, cycles --------------------------------------------------------------------------------------

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return the parameters for every core, in fp32 and as fp16 copies."""
        if not self.affine:
            return {}
        row = np.zeros((self.lane, len(self.affine), self._apart), np.float32)
        for i, name in enumerate(self.kernel.parameters):
            row[:, i, : self.part] = weights[name].reshape(self.lane, -1)
        held = np.broadcast_to(row.reshape(1, self.lane, -1), (self.height, self.lane, row[0].size))
        names = ["master", *(f"copy{i}" for i in range(len(self._banks)))]
        return {f"{self.name}.{name}": held for name in names}

    @property
    def learning(self) -> tuple[tuple[str, str], ...]:
        """The sums of gradients and the parameters."""
        return ((f"{self.name}.gradients", f"{self.name}.master"),) if self.affine else ()

    def parameters_in(self, held: Sequence[Floats]) -> dict[str, Floats]:
        """Return the parameters of the first core of every column; all cores have the same."""
        lanes = held[0][self.lane - 1].reshape(self.lane, len(self.affine), -1)[..., : self.part]
        rows = lanes.swapaxes(0, 1).reshape(len(self.affine), -1)
        return dict(zip(self.kernel.parameters, rows, strict=True))

    def most_in_flight(self) -> int:
        """Return the samples in flight whose normalized tokens and deviations fit next to parameters and
        buffers."""
        rows = rows_in_turn(self.region, self.wafer)
        fixed, each = lane_bytes(self.kernel.dims, rows, self.lane, self.wafer, self.kernel.attrs)
        return int((room_bytes(self.wafer) - fixed) // each)
