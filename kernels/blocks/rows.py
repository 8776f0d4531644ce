"""Row-wise kernels on a grid (softmax, norms), written by hand: their stages, cost and fabric program.

Mapping: each core holds f = ceil(cols/C) elements of t = ceil(rows/R) rows, fp32.  A stage is one vector
instruction per row, one instruction over all t f elements or over the t statistics, or an all-reduce of
the t statistics along the row of cores (reduce along the best tree, multicast back).

Symbols: o = vector_start_cycles, E = exp_cycles; rates of the vector unit per stage::

    T = task start + sum over stages of { t (o + f / w) | o + n / w | n E | reduce + multicast }
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.fabric.format.builder import Buffer, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.fabric.format.program import Fn
from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.lines import Line, Step, emit_reduce, new_builder, route_broadcast, route_reduce
from wse_sim.kernels.blocks.trees import LineTree, best_tree, multicast_back, reduce_cycles
from wse_sim.kernels.contract.equations import ceil_div, ceil_rate, words
from wse_sim.kernels.contract.family import Array, Case, Cost, Size, Tiling

X, STATISTIC, MASK, PICKED = "x", "statistic", "mask", "picked"


@dataclass(frozen=True)
class Stage:
    """`kind`: "row" x = x op statistic per row; "fold" statistic = statistic op x (or + x x) per row;
    "map" fn over a buffer; "scale" statistic = statistic * value (+ add); "share" all-reduce with op;
    "pick" picked = sum of x times a mask per row; "minus" statistic = statistic - picked.
    """

    kind: str
    op: str = "add"
    buffer: str = X
    value: float = 1.0
    add: float = 0.0


def _tile(rows: Size, cols: Size, tiling: Tiling) -> tuple[Any, Any]:
    return ceil_div(rows, tiling.rows), ceil_div(cols, tiling.cols)


def _tree(t: int, tiling: Tiling, wafer: Wafer) -> LineTree:
    return best_tree(int(tiling.cols), "auto", 0, int(np.max(words(t, "fp32"))), wafer)


def stages_cost(stages: Sequence[Stage], rows: Size, cols: Size, tiling: Tiling, wafer: Wafer) -> Cost:
    """Sum over the stages; the number of core columns is one integer."""
    t, f = _tile(rows, cols, tiling)
    o = wafer.vector_start_cycles
    scalars = {"exp": wafer.exp_cycles, "log": wafer.exp_cycles, "reciprocal": wafer.divide_cycles}
    scalars["rsqrt"] = wafer.sqrt_cycles + wafer.divide_cycles
    # One operand of a row stage is a scalar of that row, so sums run at the rate of one memory operand.
    rates = {
        "add": wafer.add_fp32_per_cycle,
        "sub": wafer.add_fp32_per_cycle,
        "mul": wafer.mul_fp32_per_cycle,
    }
    rates |= {"max": wafer.max_fp32_per_cycle}
    total = Cost(startup=wafer.task_start_cycles)
    tree = _tree(t, tiling, wafer)
    for stage in stages:
        n = t if stage.buffer == STATISTIC else t * f
        if stage.kind == "row":
            total = total + Cost(compute=t * ceil_rate(f, rates[stage.op]), startup=t * o)
        elif stage.kind == "fold":
            rate = wafer.fma_fp32_per_cycle if stage.op == "mac" else min(1.0, rates[stage.op])
            total = total + Cost(compute=t * ceil_rate(f, min(1.0, rate)), startup=t * o)
        elif stage.kind == "map":
            total = total + Cost(special=1.0 * n * scalars[stage.op], startup=o)
        elif stage.kind == "scale":
            count = 1 + (stage.add != 0.0)
            adds = ceil_rate(t, wafer.add_fp32_per_cycle) if stage.add else 0.0
            total = total + Cost(compute=ceil_rate(t, wafer.mul_fp32_per_cycle) + adds, startup=count * o)
        elif stage.kind == "pick":
            total = total + Cost(compute=t * ceil_rate(f, min(1.0, wafer.fma_fp32_per_cycle)), startup=t * o)
        elif stage.kind == "minus":
            total = total + Cost(compute=ceil_rate(t, wafer.add_fp32_memory_per_cycle), startup=o)
        else:
            up = float(reduce_cycles(tree, words(t, "fp32"), wafer)[0]) if tree.cores > 1 else 0.0
            first = Cost(startup=o, fabric=up) if tree.cores > 1 else Cost()
            total = total + first + multicast_back(t, tree, wafer, "fp32")
    return total


def grid_values(
    name: str, dims: Mapping[str, Any], tiling: Tiling, options: Mapping[str, Any], is_plain: bool = True
) -> Array:
    """Random rows for a program on a grid; `is_plain`: the attributes ask for what that program does.

    Raises
    ------
    KernelError
        If something else than the forward pass is asked, or the matrix does not fill the tiles.
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


def stages_program(
    stages: Sequence[Stage],
    rows: int,
    cols: int,
    tiling: Tiling,
    wafer: Wafer,
    values: Array,
    wanted: Array,
    mask: Array | None = None,
) -> Case:
    """The program; `values`, `wanted`, `mask` are matrices (rows, cols) that fill the tiles exactly.

    With a `mask` the result is a column (rows,) of `wanted` statistics, which every core of a row holds.
    """
    t, f = _tile(rows, cols, tiling)
    height, width = int(tiling.rows), int(tiling.cols)
    b = new_builder(height, width, wafer)
    # Statistics lie two banks off the elements.
    x, statistic = b.buffer(X, t * f, bank=0), b.buffer(STATISTIC, t, bank=2)
    buffers = {X: x, STATISTIC: statistic}
    if mask is not None:
        buffers |= {MASK: b.buffer(MASK, t * f, bank=2), PICKED: b.buffer(PICKED, t, bank=0)}
    line = Line(b, vertical=False)
    tree = _tree(t, tiling, wafer)
    # Switches turn once: every all-reduce has its own colors.
    shares, color = [], 0
    for _ in [stage for stage in stages if stage.kind == "share"]:
        steps, used = route_reduce(line, tree, color)
        route_broadcast(line, 0, width, color + used)
        shares.append((steps, color + used))
        color += used + 1
    classes: dict[Any, Any] = {}
    for v in range(width):
        key = (v == 0, *(steps[v] for steps, _ in shares))
        if key not in classes:
            classes[key] = k = b.core_class(f"rows {len(classes)}")
            k.busy(b.config.task_start_cycles)
            turns = iter(shares)
            for stage in stages:
                if stage.kind != "share":
                    _emit(k, stage, buffers, (t, f))
                elif width > 1:
                    steps, back = next(turns)
                    _share(
                        k,
                        stage.op,
                        buffers[PICKED if stage.buffer == PICKED else STATISTIC],
                        steps[v],
                        back,
                        v == 0,
                    )
        b.place(classes[key], line.place(v))

    def tiles(matrix: Array) -> Array:
        return matrix.reshape(height, t, width, f).transpose(0, 2, 1, 3).reshape(height, width, t * f)

    if mask is None:
        return Case(b.build(), b.config, {X: tiles(values)}, {X: tiles(wanted)}, tolerance=1e-4)
    column = np.broadcast_to(wanted.reshape(height, 1, t), (height, width, t))
    inputs = {X: tiles(values), MASK: tiles(mask)}
    return Case(b.build(), b.config, inputs, {STATISTIC: column}, tolerance=1e-4)


def _share(k: CoreClass, op: str, statistic: Buffer, step: Step, back: int, is_root: bool) -> None:
    """Reduce along the row, multicast back."""
    emit_reduce(k, step, statistic, "fp32", start="code", op=op)
    if is_root:
        k.mov(fabric_out(back), statistic.dsd())
    else:
        k.mov(statistic.dsd(), fabric_in(back))


def _emit(k: CoreClass, stage: Stage, buffers: Mapping[str, Buffer], tile: tuple[int, int]) -> None:
    """The instructions of a stage within one core."""
    (t, f), x, statistic = tile, buffers[X], buffers[STATISTIC]
    if stage.kind == "pick":
        with k.loop(t):
            k.mac(
                buffers[PICKED].dsd(0, 1, 0, step=1),
                x.dsd(0, f, step=f),
                buffers[MASK].dsd(0, f, step=f),
                length=f,
            )
    elif stage.kind == "minus":
        k.sub(statistic.dsd(), statistic.dsd(), buffers[PICKED].dsd())
    elif stage.kind in {"row", "fold"}:
        with k.loop(t):
            row, one = x.dsd(0, f, step=f), statistic.dsd(0, 1, 0, step=1)
            if stage.kind == "row":
                getattr(k, stage.op)(row, row, one, length=f)
            elif stage.op == "mac":
                k.mac(one, row, row, length=f)
            else:
                getattr(k, stage.op)(one, one, row, length=f)
    elif stage.kind == "map":
        target = buffers[stage.buffer].dsd()
        k.map(Fn[stage.op.upper()], target, target)
    elif stage.kind == "scale":
        k.mul(statistic.dsd(), statistic.dsd(), scalar(stage.value))
        if stage.add:
            k.add(statistic.dsd(), statistic.dsd(), scalar(stage.add))
