"""Gather and scatter by index: read vectors from a table, or write vectors to a table (add, combine or
replace).

Mapping: b tables of N vectors of F features, E vectors per table.  Features are spread over the columns, f =
ceil(F / C); the vectors of a table over p = min(R / b, N) cores of a column, B = ceil(N / p) and e = ceil(E /
p) per core. The R / p segments of a column process their ceil(b p / R) tables one after the other. The table
travels once around the p cores on a folded ring (:mod:`wse_sim.kernels.blocks.ring`), block by block, so a
core need not know where a vector is stored:

    gather    a core forwards each block and copies the vectors that it needs
    scatter   a core adds its vectors for a block to the arriving sums and forwards them; a sum ends at its owner

Symbols: w = words(B f), i = issue cycles of a block (w; w / 2 for 16 bits), o_l = vector_start_loaded_cycles,
o = vector_start_cycles, d = flight of a word to the next rank, v = o + f / rate (one vector taken or added), D = o_l + d + w
(2 o_l for 16 bits)::

    gather    T = (p - 1) max(2 i + 2 o_l + v e / p, D) + v e / p     (16 bits: (p - 1) max(2 i + 2 o_l, D) + v e)
    scatter   T = (p - 1) max(2 i + 2 o_l, D) + v e + o + B f / rate     (sums start at zero)

A sum is read from and written to the same bank, so 16-bit additions run at half their rate. Maxima, minima
and products travel like sums.

Gradients of combined vectors, with n = e f, m = B f, d = divide_cycles (x the vectors, y the result, g its
gradient)::

    max, min    g goes to the vectors that equal the result, in equal parts if there are several:
                gather of y, comparison (n), scatter-add of it, g over that (m d), gather, product (n)
    mul         g y (m), gather, quotient by x (n d)
    set         for the table: g, with zeros at the indices that were written

Assumed: indices are distributed evenly, so each core needs e / p vectors of each block. If the targets of a
graph are concentrated in a few blocks, all cores wait for the fullest one, which is not counted. Indices are
constants or inputs of the program; their bytes are not counted. A mean is priced as a sum. Program: one
table, not "set".  Band of cost against program: 2 % (fp32), 14 % (16 bits, blocks of few words).  Source: the
ring of arXiv 2404.15888.

Gather and scatter share this file, because they use the same ring.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.fabric.format.builder import Buffer, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass, Travel
from wse_sim.graph import Kernel, Phase, Tensor, frozen
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.lines import Line, new_builder
from wse_sim.kernels.blocks.probes import ROUNDS, SIDE
from wse_sim.kernels.blocks.ring import WIDE, ring, route_ring
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.equations import add_rate, bytes_of, ceil_div, max_rate, mov_rate, words
from wse_sim.kernels.contract.family import (
    Array,
    Case,
    Cost,
    Dims,
    Family,
    Footprint,
    How,
    Kept,
    Probe,
    ProgramOptions,
    Tiling,
    asked,
)
from wse_sim.kernels.contract.parameters import Attributes, attribute, sizes
from wse_sim.kernels.contract.registry import register
from wse_sim.kernels.contract.tape import DATA, Tape

MEETS = {"add": np.add, "max": np.maximum, "min": np.minimum, "mul": np.multiply}
"""How a scatter combines vectors with the same index; "set" keeps the last."""
NEUTRAL = {"add": 0.0, "max": -6e4, "min": 6e4, "mul": 1.0}
"""Initial values of the blocks of a scatter; representable in fp16."""
BENT = ("max", "min", "mul")
"""Operators whose gradient needs the vectors and the result."""


@dataclass(frozen=True)
class IndexedAttributes(Attributes):
    """Attributes of work by index."""

    op: str = attribute(
        "gather",
        "gather reads; add, max, min, mul and set write, and state how vectors of equal indices combine",
        choices=("gather", *MEETS, "set"),
    )


class Indexed(Family):
    """The family of gathers and scatters of activations."""

    name = "indexed"
    cheaper = "gather fewer or shorter vectors; where a product of them makes them shorter, gather after it"
    dims = sizes(
        rows="vectors read or written per table",
        cols="features of a vector",
        vocab="vectors of a table",
    )
    more_dims = sizes(tables="tables (samples)")
    lies = "features over columns; vectors of a table over the cores of a column"
    programs = "gather and scatter (add, max, min, mul) of one table"
    bands = "fp32 2 %, 16 bits 14 % (small blocks)"
    band = 0.14
    attributes = IndexedAttributes

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Two blocks in transit and code; table and result are tensors. Gradients of combined vectors also
        store what was taken."""
        phase, dtype, attrs = self.asked(tiling, how)
        lot = _Lot(dims, tiling)
        taken = lot.e if phase is Phase.INPUT_GRADIENT and IndexedAttributes.of(attrs).op in BENT else 0
        return Footprint(
            buffers_bytes=(2.0 * lot.block + taken) * lot.f * bytes_of(dtype),
            code_bytes=wafer.kernel_code_bytes,
        )

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost: one trip around the ring and a start per vector; several trips for gradients of
        combined vectors."""
        phase, dtype, attrs = self.asked(tiling, how)
        lot, op = _Lot(dims, tiling), IndexedAttributes.of(attrs).op
        total = _between(lot, op, wafer, dtype) if phase is Phase.INPUT_GRADIENT else Cost()
        for moved, times in _moves(op, phase):
            total = total + times * _moved(lot, moved, wafer, dtype)
        return lot.turns * total

    def compute(
        self,
        table: Array,
        ids: Array,
        values: Array | None = None,
        *,
        op: str = "gather",
        dtype: str = "fp32",
    ) -> Array:
        """Return vectors of a table (N, F) by id, or a table into which the vectors of `values` (E, F) were
        scattered.

        Raises
        ------
        KernelError
            If a scatter has no vectors.
        """
        found = core.rounded(table, dtype).copy()
        if op == "gather":
            return found[np.asarray(ids)]
        if values is None:
            raise KernelError(f"indexed '{op}' writes vectors; give values of shape (ids, features)")
        if op == "set":
            found[np.asarray(ids)] = core.rounded(values, dtype)
        else:
            MEETS[op].at(found, np.asarray(ids), core.rounded(values, dtype))
        return core.rounded(found, dtype)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return a program with one table around a column of cores; every core needs equally many vectors of
        each block.

        Raises
        ------
        KernelError
            For several tables, or more cores than vectors.
        """
        phase, dtype, attrs = self.asked(tiling, options, "fp32")
        op = IndexedAttributes.of(attrs).op
        lot, rows, cols = _Lot(dims, tiling), int(tiling.rows), int(tiling.cols)
        backward = phase is not Phase.FORWARD and op in BENT
        if int(dims.get("tables", 1)) > 1 or int(lot.p) < rows or op == "set" or backward:
            raise KernelError(
                f"indexed '{op}' of {dims.get('tables', 1)} tables of {dims['vocab']} vectors on {rows} rows of cores has no "
                "program; gather, add, max, min or mul with one table of at least as many vectors as rows, forward"
            )
        return _program(lot, rows, cols, op, wafer, dtype, int(options.get("seed", 0)))

    def probes(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> tuple[Probe, ...]:
        """Return a probe of the ring on a few cores, stepped by block size, and one of a core's vectors; none
        for "set"."""
        phase, dtype, attrs = asked(how)
        lot, op = _Lot(dims, tiling), IndexedAttributes.of(attrs).op
        if op == "set":
            return ()
        f, p = int(lot.f), min(SIDE, int(lot.p))
        # A run with twice the block stores it three times.
        block = int(min(lot.block, max(1, wafer.sram_usable_bytes // (12 * bytes_of(dtype) * f))))
        found: list[Probe] = []
        for moved, times in _moves(op, phase):
            all_ = lot.turns * times * _moved(lot, moved, wafer, dtype)
            starts = lot.turns * times * lot.e * wafer.vector_start_cycles
            # One core, on which no block travels, stepped by the number of its vectors.
            own = Probe(
                part=f"{moved}: vectors",
                family=self.name,
                dims={"cols": f, "vocab": block},
                tiling=Tiling(1, 1, "streamed"),
                step="rows",
                start=ROUNDS,
                cost=Cost(compute=all_.compute, startup=starts),
                tile=f"{f} features of a vector",
                dtype=dtype,
                attrs={"op": moved},
            )
            found.append(own)
            if p > 1:
                around = replace(
                    own,
                    part=f"{moved}: ring",
                    dims={"cols": f, "rows": p},
                    tiling=Tiling(p, 1, "streamed"),
                    step="vocab",
                    start=block * p,
                    cost=Cost(ramp=all_.ramp, idle=all_.idle),
                    tile=f"blocks of {block} vectors",
                )
                found.append(around)
        return tuple(found)

    def keeps(self, kernel: Kernel, trained: frozenset[str], tensors: Mapping[str, Tensor]) -> Kept:
        """Return nothing to keep; for a maximum, minimum or product, its operands and its result."""
        bent = IndexedAttributes.of(kernel.attrs).op in BENT
        return Kept((*kernel.inputs[:2], *kernel.outputs)) if bent else Kept()

    def gradients(self, kernel: Kernel, gradient: str, tape: Tape) -> None:
        """Emit the gradients: those of a gather are scatter-added to the table, those of a scatter are
        gathered."""
        op, wanted = IndexedAttributes.of(kernel.attrs).op, tape.inputs(kernel)
        if not wanted:
            return
        if op in BENT:  # one kernel for both gradients: see the module's docstring
            reads = tuple(dict.fromkeys((gradient, *kernel.inputs[:2], *kernel.outputs)))
            tape.emit(kernel, "dx", DATA, reads, tuple(tape.give(t) for t in wanted), parameters=())
            return
        if op == "gather":
            moved, tables = wanted[:1], list[str]()
        else:  # inputs are the vectors, then the table into which they were written
            moved = [t for t in wanted if t == kernel.inputs[0]]
            tables = [t for t in wanted if t != kernel.inputs[0]]
        for table in tables:
            if op == "set":
                tape.emit(kernel, "dt", DATA, (gradient,), (tape.give(table),), parameters=())
            elif tape.tensors[table].elements == tape.tensors[gradient].elements:  # in any view
                tape.add(table, gradient)
        if moved:
            back = frozen(op="add" if op == "gather" else "gather")
            tape.emit(kernel, "dx", DATA, (gradient,), (tape.give(moved[0]),), attrs=back, parameters=())


def _moves(op: str, phase: Phase) -> tuple[tuple[str, int], ...]:
    """Return what travels around the ring, as pairs of kind (as in the programs) and repetitions."""
    if phase is Phase.INPUT_GRADIENT and op in BENT:
        return (("gather", 1),) if op == "mul" else (("gather", 2), ("add", 1))
    return ((op, 1),)


def _moved(lot: _Lot, op: str, wafer: Wafer, dtype: str) -> Cost:
    """Return the cost of one trip around the ring, for one table."""
    takes = op == "gather"
    wide, steps, loaded = dtype in WIDE, lot.p - 1, wafer.vector_start_loaded_cycles
    w = words(lot.block * lot.f, dtype) * wafer.wavelet_cycles
    issue = np.ceil(w / 2) if wide else 1.0 * w
    # Sums are read from and written to one bank, which slows additions of four elements per cycle.
    meets = add_rate(dtype, wafer) / (2 if wide else 1)
    if op in ("max", "min"):
        meets = min(meets, max_rate(dtype, wafer))
    rate = mov_rate(dtype, wafer) if takes else meets
    own = lot.e * (wafer.vector_start_cycles + np.ceil(lot.f / rate))
    flight = (2 * steps - 1) / np.maximum(1, steps) * wafer.hop_cycles + wafer.handover_cycles
    busy = 2 * issue + 2 * loaded + (own / lot.p if takes and not wide else 0.0)
    wait = np.maximum(0.0, (1 + wide) * loaded + flight + w - busy)
    clears = 0.0 if takes else wafer.vector_start_cycles + np.ceil(lot.block * lot.f / mov_rate(dtype, wafer))
    return Cost(
        compute=lot.e * np.ceil(lot.f / rate) + clears,
        ramp=2.0 * steps * issue,
        startup=2.0 * steps * loaded + lot.e * wafer.vector_start_cycles + wafer.task_start_cycles,
        idle=steps * wait,
    )


def _between(lot: _Lot, op: str, wafer: Wafer, dtype: str) -> Cost:
    """Return the local work of gradients of combined vectors, for one table."""
    if op not in BENT:
        return Cost()
    passes, quotients = (lot.block, lot.e) if op == "mul" else (2 * lot.e, lot.block)
    starts = 2 if op == "mul" else 3
    return Cost(
        compute=np.ceil(passes * lot.f / add_rate(dtype, wafer)),
        special=1.0 * quotients * lot.f * wafer.divide_cycles,
        startup=1.0 * starts * wafer.vector_start_cycles,
    )


class _Lot:
    """Sizes per core, with the symbols of the module's docstring."""

    def __init__(self, dims: Dims, tiling: Tiling) -> None:
        tables, vocab = dims.get("tables", 1), dims["vocab"]
        self.p = np.maximum(1, np.minimum(tiling.rows // np.minimum(tables, tiling.rows), vocab))
        self.turns = ceil_div(tables, tiling.rows // self.p)
        self.block, self.e = ceil_div(vocab, self.p), ceil_div(dims["rows"], self.p)
        self.f = ceil_div(dims["cols"], tiling.cols)


def _program(lot: _Lot, rows: int, cols: int, op: str, wafer: Wafer, dtype: str, seed: int) -> Case:
    """Return program, inputs and expected results; ids are the same in all columns."""
    takes = op == "gather"
    p, block, f = rows, int(lot.block), int(lot.f)
    e = int(lot.e)
    rng = np.random.default_rng(seed)
    # Vector n of a core is read from (or added to) block n modulo p of the ring.
    ids = np.arange(e) % p * block + rng.integers(0, block, (p, e))
    table = rng.integers(-9, 9, (p * block, cols, f)).astype(np.float32)
    brought = rng.integers(-9, 9, (p, e, cols, f)).astype(np.float32)
    if op == "mul":  # products that fp16 can represent
        brought = rng.choice(np.array([-1, 1, 2], np.float32), (p, e, cols, f))
    b = new_builder(rows, cols, wafer)
    x = b.buffer("table" if takes else "vectors", (block if takes else e) * f, dtype, bank=0)
    y = b.buffer("result", (e if takes else block) * f, dtype, bank=1)
    passing = [b.buffer(f"passing {i}", block * f, dtype, bank=1) for i in (0, 1)]
    line, order = Line(b, vertical=True), ring(p)
    sends, receives, colors = route_ring(line, order, 0) if p > 1 else ([0] * p, [0] * p, 0)
    for color in range(colors):
        b.input_queue(color, 0)
    for rank, position in enumerate(order):
        k = b.core_class(f"rank {rank}")
        k.busy(b.config.task_start_cycles)
        turn = _Turn(
            k, p, block * f, f, ids[rank], x, y, passing, dtype, op, sends[position], receives[position]
        )
        (turn.gather if takes else turn.scatter)(rank)
        b.place(k, line.place(position))
    at = np.argsort(order)  # rank of each position
    blocks = table.reshape(p, block, cols, f).swapaxes(1, 2).reshape(p, cols, block * f)
    if takes:
        found = table[ids].swapaxes(1, 2).reshape(p, cols, e * f)
        return Case(b.build(), b.config, {"table": blocks[at]}, {"result": found[at]})
    sums = np.full_like(table, core.rounded(np.float32(NEUTRAL[op]), dtype))
    MEETS[op].at(sums, ids.reshape(-1), brought.reshape(-1, cols, f))
    sums = sums.reshape(p, block, cols, f).swapaxes(1, 2).reshape(p, cols, block * f)
    own = brought.swapaxes(1, 2).reshape(p, cols, e * f)
    return Case(b.build(), b.config, {"vectors": own[at]}, {"result": sums[at]})


@dataclass(frozen=True)
class _Turn:
    """Parameters of one core of the ring; `ids` are the indices of its vectors."""

    core: CoreClass
    cores: int
    size: int
    f: int
    ids: Array
    x: Buffer
    y: Buffer
    passing: list[Buffer]
    dtype: str
    op: str
    sends: int
    receives: int

    def _send(self, block: Buffer) -> None:
        how: Travel = {"dtype": self.dtype, "wire": WIDE.get(self.dtype)}
        self.core.mov(fabric_out(self.sends), block.dsd(), start="loaded", thread=1, priority="medium", **how)

    def _receive(self, block: Buffer) -> None:
        how: Travel = {"dtype": self.dtype, "wire": WIDE.get(self.dtype)}
        self.core.mov(block.dsd(), fabric_in(self.receives), start="loaded", **how)

    def _own(self, number: int) -> list[tuple[int, int]]:
        """Return (vector, place in its block) for the core's vectors of a block."""
        size = self.size // self.f
        return [
            (v, int(place) % size)
            for v, place in enumerate(self.ids)
            if int(place) // size == number % self.cores
        ]

    def gather(self, rank: int) -> None:
        """Send the core's block; receive and forward the other blocks, and copy the core's vectors from
        each."""
        held = self.x
        for step in range(self.cores):
            if step:
                held = self.passing[step % 2]
                self._receive(held)
                self.core.join(1)
            if step + 1 < self.cores:
                self._send(held)
            for vector, place in self._own(rank - step):
                self.core.mov(
                    self.y.dsd(vector * self.f, self.f), held.dsd(place * self.f, self.f), dtype=self.dtype
                )

    def scatter(self, rank: int) -> None:
        """Start the sums of the preceding block; receive sums, add the core's vectors and forward them; keep
        the core's own block."""
        for step in range(self.cores):
            held = self.y if step + 1 == self.cores else self.passing[step % 2]
            if step:
                self._receive(held)
                self.core.join(1)
            else:
                self.core.mov(held.dsd(), scalar(NEUTRAL[self.op]), dtype=self.dtype)
            for vector, place in self._own(rank - 1 - step):
                into = held.dsd(place * self.f, self.f)
                meet = getattr(self.core, self.op)  # add, max, min, mul
                meet(into, into, self.x.dsd(vector * self.f, self.f), dtype=self.dtype)
            if step + 1 < self.cores:
                self._send(held)


FAMILY = register(Indexed())
