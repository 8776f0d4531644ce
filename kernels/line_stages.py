"""Rows of a matrix along lines of cores (softmax, norms, sums), as a short list of vector instructions.

Mapping: a row of the matrix spreads over the p cores of a line, f elements each; a core holds t rows.  A buffer holds
the matrix, one value per row (t) or one per feature (f).  The matrix lies feature-major (element j of row i at
j t + i: an instruction covers the t rows of a feature) or row-major (the f features of a row).

An instruction of two dimensions runs once per feature (or row) behind one start; one over values per row runs once.
With o = vector_start_cycles and the rate w of the operands' types, feature-major::

    T = sum over instructions of { o + f ceil(t / w) | o + t / w | all-reduce of t words along the line }

All-reduces go up a chain to the first core of the line and come back as a multicast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wse_sim.hardware import Wafer
from wse_sim.kernels.equations import ceil_rate
from wse_sim.kernels.lines import Line, Step, route_broadcast, route_reduce
from wse_sim.kernels.rows import share
from wse_sim.kernels.trees import chain

MATRIX, ROW, FEATURE = "matrix", "row", "feature"
FUNCTIONS = ("exp", "log", "reciprocal", "rsqrt", "step")


@dataclass(frozen=True)
class Vector:
    """An instruction `to` = `op`(`of`): add, sub, mul, max, min, mov, mac (to += a b), fmac (a + b c), a function,
    or "share add", "share max" (all-reduce of `to` along the line).  Operands are buffer names or a number.
    """

    op: str
    to: str
    of: tuple[str | float, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The buffers of the instruction."""
        return (self.to, *(name for name in self.of if isinstance(name, str)))

    @property
    def is_shared(self) -> bool:
        """True for an all-reduce."""
        return self.op.startswith("share")


@dataclass(frozen=True)
class Shape:
    """What a buffer holds, and its precision."""

    kind: str
    dtype: str = "fp32"


Shapes = Mapping[str, Shape]


@dataclass(frozen=True)
class Layout:
    """`t` rows of `f` features per core, feature-major or `by_row`."""

    t: Any
    f: Any
    by_row: bool = False

    @property
    def turns(self) -> Any:
        """Turns of an instruction of two dimensions."""
        return self.t if self.by_row else self.f

    @property
    def length(self) -> Any:
        """Elements of one turn."""
        return self.f if self.by_row else self.t

    def elements(self, kind: str) -> Any:
        """Elements of a buffer."""
        return {MATRIX: self.t * self.f, ROW: self.t, FEATURE: self.f}[kind]


def precision(vector: Vector, shapes: Shapes) -> str:
    """fp16 or fp32 if all operands are, else mixed."""
    kinds = {shapes[name].dtype for name in vector.names}
    return kinds.pop() if len(kinds) == 1 else "mixed"


def rate(vector: Vector, shapes: Shapes, wafer: Wafer) -> float:
    """Elements per cycle of an instruction that is no function."""
    dtype = precision(vector, shapes)
    half, mixed = dtype == "fp16", dtype == "mixed"
    if vector.op in {"max", "min"}:
        return wafer.max_fp16_per_cycle if half else wafer.max_fp32_per_cycle
    if vector.op == "mov":
        return wafer.mov_fp16_per_cycle if half else wafer.mov_fp32_per_cycle
    if half:
        return wafer.add_fp16_per_cycle if vector.op in {"add", "sub"} else wafer.fma_fp16_per_cycle
    if mixed:
        return wafer.fma_mixed_per_cycle
    if vector.op in {"add", "sub"}:
        both = len(vector.names) == 3
        return wafer.add_fp32_memory_per_cycle if both else wafer.add_fp32_per_cycle
    return wafer.mul_fp32_per_cycle if vector.op == "mul" else wafer.fma_fp32_per_cycle


def function_cycles(op: str, wafer: Wafer) -> float:
    """Cycles of a function of one element."""
    root = wafer.sqrt_cycles + wafer.divide_cycles
    scalar = {"exp": wafer.exp_cycles, "log": wafer.exp_cycles, "reciprocal": wafer.divide_cycles}
    return {**scalar, "rsqrt": root, "step": 1.0}[op]


def is_wide(vector: Vector, shapes: Shapes) -> bool:
    """True for an instruction over the matrix."""
    return any(shapes[name].kind != ROW for name in vector.names)


def issued(vectors: Sequence[Vector], shapes: Shapes, layout: Layout, wafer: Wafer) -> tuple[Any, Any, Any]:
    """(arithmetic, scalar functions, starts) that a core issues, in cycles; all-reduces aside."""
    zero = 0.0 * (layout.t * layout.f)
    compute, special, starts = zero, zero, zero
    for vector in vectors:
        if vector.is_shared:
            continue
        starts = starts + wafer.vector_start_cycles
        wide = is_wide(vector, shapes)
        turns, length = (layout.turns, layout.length) if wide else (1, layout.t)
        if vector.op in FUNCTIONS:
            special = special + turns * length * function_cycles(vector.op, wafer)
            continue
        speed = rate(vector, shapes, wafer)
        if wide and layout.by_row and shapes[vector.to].kind == ROW:
            speed = min(1.0, speed)  # a single accumulator
        compute = compute + turns * ceil_rate(length, speed)
    return compute, special, starts


@dataclass(frozen=True)
class Sharing:
    """All-reduces along a line on colors of their own."""

    steps: tuple[Step, ...]
    back: int
    colors: int

    @classmethod
    def along(cls, line: Line, cores: int, first_color: int) -> Sharing:
        """Routes of a line of `cores`; none for a single core."""
        if cores == 1:
            return cls((), 0, 0)
        steps, used = route_reduce(line, chain(cores), first_color)
        route_broadcast(line, 0, cores, first_color + used)
        return cls(tuple(steps), first_color + used, used + 1)

    def emit(self, k: Any, position: int, op: str, x: Any) -> None:
        """All-reduce `x` of every core of the line."""
        if self.steps:
            share(k, op, x, self.steps[position], self.back, position == 0)


@dataclass(frozen=True)
class Lines:
    """Vector instructions on the cores of lines: shapes and buffers by name.

    The elements of a turn start `pitch` after those of the last (or as many as a turn has).
    """

    shapes: Shapes
    buffers: Mapping[str, Any]
    layout: Layout
    sharing: Sharing
    wafer: Wafer
    pitch: int = 0

    def emit(self, k: Any, vectors: Sequence[Vector], position: int, turns: int | None = None) -> None:
        """The instructions of the core at `position` of its line, in `turns` if it holds fewer than others."""
        count = self.layout.turns if turns is None else turns
        for vector in vectors:
            if vector.is_shared:
                self.sharing.emit(k, position, vector.op.split()[1], self.buffers[vector.to])
            elif is_wide(vector, self.shapes):
                k.busy(round(self.wafer.vector_start_cycles))
                with k.loop(count):
                    self._instruction(k, vector, self.layout.length, "none")
            else:
                self._instruction(k, vector, self.layout.t, "code")

    def scalar_rest(self, k: Any, vectors: Sequence[Vector], cycles: float, turns: int) -> None:
        """Scalar code that makes these instructions take `cycles` in all, if they take less."""
        by_row = self.layout.by_row
        layout = Layout(turns, self.layout.f, True) if by_row else Layout(self.layout.t, turns)
        parts = issued(vectors, self.shapes, layout, self.wafer)
        k.busy(max(0, round(cycles - float(sum(parts)))))

    def _instruction(self, k: Any, vector: Vector, length: int, start: str) -> None:
        from wse_sim.fabric.builder import scalar
        from wse_sim.fabric.program import Fn

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

    def _operand(self, name: str, wide: bool) -> Any:
        """The elements of a turn: of the matrix, all values per row (feature), or the one of this turn."""
        kind, buffer, layout = self.shapes[name].kind, self.buffers[name], self.layout
        if kind == MATRIX:
            return buffer.dsd(0, layout.length, step=self.pitch or layout.length)
        if not wide or (kind == ROW) != layout.by_row:
            return buffer.dsd(0, layout.elements(kind))
        return buffer.dsd(0, 1, 0, step=1)
