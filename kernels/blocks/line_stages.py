"""Rows of a matrix along lines of cores (softmax, norms, sums), as a short list of vector instructions.

Mapping: a row of the matrix spreads over the p cores of a line, f elements each; a core holds t rows.  A
buffer holds the matrix, one value per row (t) or per feature (f), or two of either.  The matrix is stored
feature-major (an instruction of two dimensions covers the t rows of a feature, then the next feature) or
row-major (the f features of a row).

An instruction of two dimensions runs once per feature (or row) after a single start; one over values per row
runs once. Symbols: o = vector_start_cycles, w the rate for the operands' types, B words of a collective along
a line of p cores::

    T = sum over instructions of { o + f ceil(t / w) | o + ceil(t / w) | collective }
    reduce, sink   B + (p - 1)(hop + 2 T_R + 1) + o       a chain to the first core of the line, of the column
    multicast      B + (p - 1) hop + 2 T_R + 1 + o        from the first core of the line
    share          both
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from wse_sim.fabric.format.builder import Buffer, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.fabric.format.program import Fn
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.lines import Line, ReductionStep, emit_reduce, route_broadcast, route_reduce
from wse_sim.kernels.blocks.rounds import even, pitch
from wse_sim.kernels.blocks.trees import LineTree, chain
from wse_sim.kernels.contract.equations import ceil_rate, relay_cycles
from wse_sim.kernels.contract.family import Cost, Size

MATRIX, ROW, FEATURE, TWO_ROWS, TWO_FEATURES = "matrix", "row", "feature", "two rows", "two features"
FUNCTIONS = ("exp", "log", "reciprocal", "rsqrt", "step")
COLLECTIVES = ("share", "reduce", "sink", "multicast")


@dataclass(frozen=True)
class Vector:
    """An instruction `to` = `op`(`of`), or a collective of `to`; operands are buffer names or a number.

    Operators: add, sub, mul, max, min, mov, mac (to += a b), fmac (a + b c), a function.  Collectives: "share add"
    (or max; all-reduce along the line), "reduce add" (to its first core), "sink add" (down the column to its first
    core), "multicast" (from the first core of the line).
    """

    op: str
    to: str
    of: tuple[str | float, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The buffers of the instruction."""
        return (self.to, *(name for name in self.of if isinstance(name, str)))

    @property
    def collective(self) -> str:
        """Kind of collective; "" for an instruction of the core itself."""
        kind = self.op.split()[0]
        return kind if kind in COLLECTIVES else ""


@dataclass(frozen=True)
class Shape:
    """Content and precision of a buffer.

    If two results are reduced together they share one buffer: `within` names it, `half` selects the half.
    Matrices start in separate banks; other vectors in `bank`, by default not that of the first matrix.
    """

    kind: str
    dtype: str = "fp32"
    within: str = ""
    half: int = 0
    bank: int = 2


Shapes = Mapping[str, Shape]
N = TypeVar("N", int, Size)


@dataclass(frozen=True)
class RowLayout(Generic[N]):
    """`t` rows of `f` features per core, feature-major or `by_row`."""

    t: N
    f: N
    by_row: bool = False

    @property
    def rounds(self) -> N:
        """Rounds of an instruction of two dimensions."""
        return self.t if self.by_row else self.f

    @property
    def length(self) -> N:
        """Elements of one round."""
        return self.f if self.by_row else self.t

    def elements(self, kind: str) -> N:
        """Elements of a buffer, those between rounds not counted."""
        sizes = {MATRIX: self.t * self.f, ROW: self.t, FEATURE: self.f}
        # Both halves start in the same bank.
        return {**sizes, TWO_ROWS: 2 * even(self.t), TWO_FEATURES: 2 * even(self.f)}[kind]


def precision(vector: Vector, shapes: Shapes) -> str:
    """Return "fp16" or "fp32" if all operands have that type, else "mixed"."""
    kinds = {shapes[name].dtype for name in vector.names}
    return kinds.pop() if len(kinds) == 1 else "mixed"


def rate(vector: Vector, shapes: Shapes, layout: RowLayout[N], wafer: Wafer) -> float:
    """Return the elements per cycle of an instruction that is not a function."""
    one = (ROW if layout.by_row else FEATURE) if is_wide(vector, shapes) else ""
    vectors = {name for name in vector.names if shapes[name].kind != one}
    speed = operator_rate(vector.op, precision(vector, shapes), wafer, len(vectors & set(vector.of)))
    if vector.to not in vectors:
        return np.minimum(1.0, speed) if np.ndim(speed) else min(1.0, speed)  # a single accumulator
    # Of three vectors, two are read at a time.
    return speed / wafer.bank_conflict_factor if vector.op == "mac" and len(vectors) == 3 else speed


def operator_rate(op: str, dtype: str, wafer: Wafer, reads: int) -> float:
    """Return the elements per cycle of an operator that reads `reads` vectors, by data type."""
    half, mixed = dtype == "fp16", dtype == "mixed"
    if op in {"max", "min"}:
        return wafer.max_fp16_per_cycle if half else wafer.max_fp32_per_cycle
    if op == "mov":
        return wafer.mov_fp16_per_cycle if half else wafer.mov_fp32_per_cycle
    if half:
        return wafer.add_fp16_per_cycle if op in {"add", "sub"} else wafer.fma_fp16_per_cycle
    if mixed:
        return wafer.fma_mixed_per_cycle
    if op in {"add", "sub"}:
        return wafer.add_fp32_memory_per_cycle if reads == 2 else wafer.add_fp32_per_cycle
    return wafer.mul_fp32_per_cycle if op == "mul" else wafer.fma_fp32_per_cycle


def function_cycles(op: str, wafer: Wafer) -> float:
    """Return the cycles of a function per element."""
    root = wafer.sqrt_cycles + wafer.divide_cycles
    scalar = {"exp": wafer.exp_cycles, "log": wafer.exp_cycles, "reciprocal": wafer.divide_cycles}
    return {**scalar, "rsqrt": root, "step": 1.0}[op]


def is_wide(vector: Vector, shapes: Shapes) -> bool:
    """Return whether an instruction runs over the whole matrix."""
    return any(shapes[name].kind == MATRIX for name in vector.names)


def issued(
    vectors: Sequence[Vector], shapes: Shapes, layout: RowLayout[N], wafer: Wafer
) -> tuple[Any, Any, Any]:
    """Return the issue cycles of a core as (arithmetic, scalar functions, starts), without collectives."""
    zero: Size = 0.0 * (layout.t * layout.f)
    compute, special, starts = zero, zero, zero
    for vector in vectors:
        if vector.collective:
            continue
        starts = starts + wafer.vector_start_cycles
        wide = is_wide(vector, shapes)
        rounds, length = (
            (layout.rounds, layout.length) if wide else (1, layout.elements(shapes[vector.to].kind))
        )
        if vector.op in FUNCTIONS:
            special = special + rounds * length * function_cycles(vector.op, wafer)
            continue
        compute = compute + rounds * ceil_rate(length, rate(vector, shapes, layout, wafer))
    return compute, special, starts


def collective_cost(
    vector: Vector, shapes: Shapes, layout: RowLayout[Size], line: Size, column: Size, wafer: Wafer
) -> Cost:
    """Return the cost of a collective along a line of `line` cores, or down a `column` of cores; zero on a
    single core."""
    cores = column if vector.collective == "sink" else line
    words = 1.0 * layout.elements(shapes[vector.to].kind) * wafer.wavelet_cycles
    up = Cost(fabric=words, startup=wafer.vector_start_cycles, idle=(cores - 1) * relay_cycles(wafer))
    back = Cost(
        fabric=words,
        startup=wafer.vector_start_cycles,
        idle=(cores - 1) * wafer.hop_cycles + wafer.handover_cycles,
    )
    found = {"share": up + back, "multicast": back}.get(vector.collective, up)
    several: Size = 1.0 * (np.asarray(cores) > 1)
    return found * (several if np.ndim(cores) else float(several))


def vectors_cost(
    vectors: Sequence[Vector], shapes: Shapes, layout: RowLayout[Size], line: Size, column: Size, wafer: Wafer
) -> Cost:
    """Return the total cost of the instructions, including collectives."""
    compute, special, starts = issued(vectors, shapes, layout, wafer)
    total = Cost(compute=compute, special=special, startup=starts)
    for vector in vectors:
        if vector.collective:
            total = total + collective_cost(vector, shapes, layout, line, column, wafer)
    return total


@dataclass(frozen=True)
class Sharing:
    """Collectives along lines of `cores` on their own colors: a chain, or another tree, to position 0, a multicast back."""

    cores: int
    steps: tuple[ReductionStep, ...]
    back: int
    colors: int

    @classmethod
    def along(cls, line: Line, cores: int, first_color: int, tree: LineTree | None = None) -> Sharing:
        """Set the routes of a line; a single core needs none."""
        if cores == 1:
            return cls(1, (), 0, 0)
        steps, used = route_reduce(line, tree or chain(cores), first_color, is_repeated=True)
        route_broadcast(line, 0, cores, first_color + used)
        return cls(cores, tuple(steps), first_color + used, used + 1)

    def reduce(self, k: CoreClass, position: int, op: str, x: Buffer) -> None:
        """Reduce x along the chain to position 0."""
        if self.steps:
            emit_reduce(k, self.steps[position], x, "fp32", start="code", op=op)

    def multicast(self, k: CoreClass, position: int, x: Buffer) -> None:
        """Multicast x from position 0 to all positions."""
        if self.steps and position == 0:
            k.mov(fabric_out(self.back), x.dsd())
        elif self.steps:
            k.mov(x.dsd(), fabric_in(self.back))


@dataclass(frozen=True)
class Lines:
    """Vector instructions on the cores of lines: shapes and buffers by name, `apart` elements between rounds.

    `places` gives the layout of matrices that differ: offset, stride within a round, step from round to
    round.
    """

    shapes: Shapes
    buffers: Mapping[str, Any]
    layout: RowLayout[int]
    sharing: Sharing
    wafer: Wafer
    down: Sharing | None = None
    apart: int = 0
    places: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)

    def emit(
        self, k: CoreClass, vectors: Sequence[Vector], position: int, rounds: int | None = None, row: int = 0
    ) -> None:
        """Emit the instructions of the core at `position` of its line, in `rounds` if it has fewer than other
        cores."""
        count = self.layout.rounds if rounds is None else rounds
        for vector in vectors:
            if vector.collective:
                self._collective(k, vector, position, row)
            elif is_wide(vector, self.shapes):
                k.busy(round(self.wafer.vector_start_cycles))
                with k.loop(count):
                    self._instruction(k, vector, self.layout.length, "none")
            else:
                self._instruction(k, vector, self.layout.elements(self.shapes[vector.to].kind), "code")

    def scalar_rest(self, k: CoreClass, vectors: Sequence[Vector], cycles: float, rounds: int) -> None:
        """Add scalar code so that these instructions take `cycles` in total, if they take less."""
        by_row = self.layout.by_row
        layout = RowLayout(rounds, self.layout.f, True) if by_row else RowLayout(self.layout.t, rounds)
        parts = issued(vectors, self.shapes, layout, self.wafer)
        k.busy(max(0, round(cycles - float(sum(parts)))))

    def _collective(self, k: CoreClass, vector: Vector, position: int, row: int) -> None:
        buffer, op = self.buffers[vector.to], [*vector.op.split(), "add"][1]
        if vector.collective == "sink":
            if self.down is not None:
                self.down.reduce(k, row, op, buffer)
            return
        if vector.collective != "multicast":
            self.sharing.reduce(k, position, op, buffer)
        if vector.collective != "reduce":
            self.sharing.multicast(k, position, buffer)

    def _instruction(self, k: CoreClass, vector: Vector, length: int, start: str) -> None:
        wide = is_wide(vector, self.shapes)
        operands = [
            self._operand(name, wide) if isinstance(name, str) else scalar(name)
            for name in (vector.to, *vector.of)
        ]
        how: dict[str, Any] = {"length": length, "dtype": precision(vector, self.shapes), "start": start}
        if vector.op in FUNCTIONS:
            k.map(Fn[vector.op.upper()], *operands, **how)
        else:
            getattr(k, vector.op)(*operands, **how)

    def _operand(self, name: str, wide: bool) -> Operand:
        """Return the operand of a round: elements of the matrix, all values per row (feature), or the round's
        single value."""
        shape, layout = self.shapes[name], self.layout
        buffer, size = self.buffers[shape.within or name], layout.elements(shape.kind)
        if shape.kind == MATRIX:
            offset, stride, step = self.places.get(name, (0, 1, self.apart or pitch(layout.length)))
            return buffer.dsd(offset, layout.length, stride, step=step)
        if not wide or (shape.kind == ROW) != layout.by_row:
            return buffer.dsd(shape.half * even(size), size)
        return buffer.dsd(shape.half * even(size), 1, 0, step=1)
