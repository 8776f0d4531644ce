"""Row-wise kernels on a grid (softmax, norms, losses), written by hand: cost and fabric program of a list of vectors.

Mapping: each core holds f = ceil(cols/C) elements of t = ceil(rows/R) rows, fp32, and t values of every
statistic.  The work is a list of :class:`~wse_sim.kernels.blocks.line_stages.Vector`, as in the training
kernels. Here a vector that combines elements with a statistic is one instruction per row. A vector of
elements only, or of statistics only, is one instruction over all t f or all t of them. A collective is an
all-reduce of the t statistics along the row of cores (up the best tree, multicast back).

Symbols: o = vector_start_cycles, E = cycles of a function; rates w of the vector unit per vector::

    T = task start + sum over vectors of { t (o + f / w) | o + t / w | o + n E | reduce + multicast }

A sum over a row has a single accumulator: one element a cycle at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.fabric.format.builder import Buffer, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.fabric.format.program import Fn
from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.line_stages import FUNCTIONS, Vector, function_cycles, operator_rate
from wse_sim.kernels.blocks.lines import (
    Line,
    ReductionStep,
    emit_reduce,
    new_builder,
    route_broadcast,
    route_reduce,
)
from wse_sim.kernels.blocks.trees import LineTree, best_tree, multicast_back, reduce_cycles
from wse_sim.kernels.contract.equations import ceil_div, ceil_rate, words
from wse_sim.kernels.contract.family import Array, Case, Cost, Dims, Footprint, Size, Tiling

MATRICES = frozenset({"x", "mask"})  # buffers of elements; the others hold a value per row


def _is_per_row(vector: Vector) -> bool:
    """Return whether a vector combines elements with a statistic of their row."""
    return not MATRICES.isdisjoint(vector.names) and not MATRICES.issuperset(vector.names)


def _tile(rows: Size, cols: Size, tiling: Tiling) -> tuple[Any, Any]:
    return ceil_div(rows, tiling.rows), ceil_div(cols, tiling.cols)


def _tree(t: int, tiling: Tiling, wafer: Wafer) -> LineTree:
    return best_tree(int(tiling.cols), "auto", 0, int(np.max(words(t, "fp32"))), wafer)


def grid_footprint(rows: Size, cols: Size, tiling: Tiling, wafer: Wafer) -> Footprint:
    """Return the bytes of a core: its elements and one statistic in fp32, with a gap between their banks."""
    t, f = _tile(rows, cols, tiling)
    return Footprint(
        activations_bytes=4.0 * t * f, buffers_bytes=4 * t + 8, code_bytes=wafer.kernel_code_bytes
    )


def grid_cost(vectors: Sequence[Vector], rows: Size, cols: Size, tiling: Tiling, wafer: Wafer) -> Cost:
    """Return the cost of all vectors; the number of core columns must be one integer."""
    t, f = _tile(rows, cols, tiling)
    tree = _tree(t, tiling, wafer)
    costs = (
        _shared(t, tree, wafer) if vector.collective else _issued(vector, t, f, wafer) for vector in vectors
    )
    return sum(costs, Cost(startup=wafer.task_start_cycles))


def _shared(t: Size, tree: LineTree, wafer: Wafer) -> Cost:
    """Return the cost of an all-reduce of the statistics along a row of cores."""
    up = float(reduce_cycles(tree, words(t, "fp32"), wafer)[0]) if tree.cores > 1 else 0.0
    first = Cost(startup=wafer.vector_start_cycles, fabric=up) if tree.cores > 1 else Cost()
    return first + multicast_back(t, tree, wafer, "fp32")


def _issued(vector: Vector, t: Size, f: Size, wafer: Wafer) -> Cost:
    """Return the cost of a vector: one instruction, or one per row."""
    o, op = wafer.vector_start_cycles, vector.op
    if op in FUNCTIONS:
        n = t * f if vector.to in MATRICES else t
        return Cost(special=1.0 * n * function_cycles(op, wafer), startup=o)
    if _is_per_row(vector):
        # One operand is a scalar of the row, so its sums run at the rate of one memory operand.
        speed = operator_rate(op, "fp32", wafer, 1)
        return Cost(
            compute=t * ceil_rate(f, speed if vector.to in MATRICES else min(1.0, speed)), startup=t * o
        )
    reads = sum(isinstance(operand, str) for operand in vector.of)
    return Cost(compute=ceil_rate(t, operator_rate(op, "fp32", wafer, reads)), startup=o)


def grid_values(
    name: str, dims: Dims, tiling: Tiling, options: Mapping[str, Any], is_plain: bool = True
) -> Array:
    """Return random rows for a program on a grid; `is_plain` tells whether the grid program supports the
    attributes.

    Raises
    ------
    KernelError
        If a phase other than forward is requested, or the matrix does not fill the tiles.
    """
    if options.get("phase", Phase.FORWARD) is not Phase.FORWARD or not is_plain:
        raise KernelError(
            f"kernel '{name}': mapping grid has a program of the plain forward pass only; use streamed or stationary"
        )
    rows, cols = int(dims["rows"]), int(dims["cols"])
    if rows % int(tiling.rows) or cols % int(tiling.cols):
        raise KernelError(
            f"kernel '{name}': {rows} x {cols} does not fill {tiling.rows} x {tiling.cols} cores; use multiples"
        )
    rng = np.random.default_rng(int(options.get("seed", 0)))
    return rng.standard_normal((rows, cols)).astype(np.float32)


def grid_program(
    vectors: Sequence[Vector],
    rows: int,
    cols: int,
    tiling: Tiling,
    wafer: Wafer,
    values: Array,
    wanted: Array,
    mask: Array | None = None,
) -> Case:
    """Return the program; `values`, `wanted`, `mask` are matrices (rows, cols) that fill the tiles exactly.

    With a `mask` the result is a column (rows,) of `wanted` statistics, which every core of a row stores.
    """
    t, f = _tile(rows, cols, tiling)
    height, width = int(tiling.rows), int(tiling.cols)
    b = new_builder(height, width, wafer)
    # Statistics start two banks away from the elements.
    buffers = {"x": b.buffer("x", t * f, bank=0), "statistic": b.buffer("statistic", t, bank=2)}
    if mask is not None:
        buffers |= {"mask": b.buffer("mask", t * f, bank=2), "picked": b.buffer("picked", t, bank=0)}
    line = Line(b, vertical=False)
    tree = _tree(t, tiling, wafer)
    # Switches advance only once, so every all-reduce has separate colors.
    fractions, color = [], 0
    for _ in [vector for vector in vectors if vector.collective]:
        steps, used = route_reduce(line, tree, color)
        route_broadcast(line, 0, width, color + used)
        fractions.append((steps, color + used))
        color += used + 1
    classes: dict[tuple[object, ...], CoreClass] = {}
    for v in range(width):
        key = (v == 0, *(steps[v] for steps, _ in fractions))
        if key not in classes:
            classes[key] = k = b.core_class(f"rows {len(classes)}")
            k.busy(b.config.task_start_cycles)
            rounds = iter(fractions)
            for vector in vectors:
                if not vector.collective:
                    _emit(k, vector, buffers, (t, f))
                elif width > 1:
                    steps, back = next(rounds)
                    _share(k, vector.op.split()[1], buffers[vector.to], steps[v], back, v == 0)
        b.place(classes[key], line.place(v))

    def tiles(matrix: Array) -> Array:
        return matrix.reshape(height, t, width, f).transpose(0, 2, 1, 3).reshape(height, width, t * f)

    if mask is None:
        return Case(b.build(), b.config, {"x": tiles(values)}, {"x": tiles(wanted)}, tolerance=1e-4)
    column = np.broadcast_to(wanted.reshape(height, 1, t), (height, width, t))
    inputs = {"x": tiles(values), "mask": tiles(mask)}
    return Case(b.build(), b.config, inputs, {"statistic": column}, tolerance=1e-4)


def _share(k: CoreClass, op: str, statistic: Buffer, step: ReductionStep, back: int, is_root: bool) -> None:
    """Emit the all-reduce of a statistic: reduce along the row, multicast back."""
    emit_reduce(k, step, statistic, "fp32", start="code", op=op)
    if is_root:
        k.mov(fabric_out(back), statistic.dsd())
    else:
        k.mov(statistic.dsd(), fabric_in(back))


def _emit(k: CoreClass, vector: Vector, buffers: Mapping[str, Buffer], tile: tuple[int, int]) -> None:
    """Emit the instructions of a vector on one core."""
    t, f = tile
    if vector.op in FUNCTIONS:
        k.map(Fn[vector.op.upper()], buffers[vector.to].dsd(), buffers[str(vector.of[0])].dsd())
    elif _is_per_row(vector):
        with k.loop(t):
            rows = [
                buffers[name].dsd(0, f, step=f) if name in MATRICES else buffers[name].dsd(0, 1, 0, step=1)
                for name in vector.names
            ]
            getattr(k, vector.op)(*rows, length=f)
    else:
        operands = (buffers[item].dsd() if isinstance(item, str) else scalar(item) for item in vector.of)
        getattr(k, vector.op)(buffers[vector.to].dsd(), *operands)
