"""Work of a training step on all gradients before the update: norm, scale or clip, and the step's scalars.

Mapping: gradients are stored with the weights, n = ceil(elements / cores) per core; only scalars travel::

    gradient_norm   s = sum g g (one accumulator); all-reduce of s; f = min(1, c / (sqrt(s) + eps))
    gradient_scale  g = g f                        or clip: g = min(max(g, -c), c)
                    with `check`: s = sum 0 g, which is NaN if any g is infinite; all-reduce of s
    schedule        k operators on a scalar, one after the other; multicast of it to all cores
    T = task start + instructions (o + ceil(n / w)) + all-reduce of one word over the rectangle + functions

In weight streaming this work runs where the gradients are, in the memory service: `server_bytes` per
gradient. None of these kernels has a gradient, because updates are not differentiated. Source: vector rates
of the SDK documentation; the all-reduce is that of the family allreduce2d (rows, then columns). Band of cost
against program: 3 % (start of the last columns).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.fabric.format.builder import fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.fabric.format.program import Fn
from wse_sim.graph import Kernel
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.lines import new_builder, place_rows_columns, route_rectangle
from wse_sim.kernels.blocks.trees import LineTree
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.equations import ceil_rate, check_tiling, per_core
from wse_sim.kernels.contract.family import (
    Array,
    Attrs,
    Case,
    Cost,
    Dims,
    Family,
    Footprint,
    How,
    ProgramOptions,
    Tiling,
)
from wse_sim.kernels.contract.parameters import Attributes, attribute, sizes
from wse_sim.kernels.contract.registry import register
from wse_sim.kernels.families.collectives.allreduce import allreduce_tree
from wse_sim.kernels.families.collectives.allreduce2d import FAMILY as ALLREDUCE
from wse_sim.kernels.families.collectives.broadcast import FAMILY as BROADCAST

EPS = 1e-6
"""Keeps the clipping factor finite; the same value as in torch's clip_grad_norm_."""
OPS = ("scale", "clip")


class _OfGradients(Family):
    """Common base of the families of this file: their mappings, and no gradients."""

    mappings = ("stationary", "streamed")
    dims: Mapping[str, str] = sizes(elements="gradients")
    server_bytes = 0

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Return the bytes of a few numbers and code; gradients are counted with the weights."""
        check_tiling(self.name, tiling, self.mappings)
        return Footprint(
            buffers_bytes=16.0 + 0 * per_core(dims[next(iter(self.dims))], tiling),
            code_bytes=wafer.kernel_code_bytes,
        )

    def has_gradient(self, kernel: Kernel) -> bool:
        """False: it is a part of the update."""
        return False


class GradientNorm(_OfGradients):
    """The norm of all gradients, and the factor that clips them to it."""

    name = "gradient_norm"
    lies = "where the weights rest; one number travels over the rectangle and back"
    programs = "sum of squares and the factor of clipping"
    bands = "0.3 %"
    color = "#fdd0a2"
    server_bytes = 4  # read every gradient

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost: sum of squares, all-reduce of one word, root and quotient on every core."""
        check_tiling(self.name, tiling, self.mappings)
        n = per_core(dims["elements"], tiling)
        local = Cost(
            compute=ceil_rate(n, min(1.0, wafer.fma_fp32_per_cycle)) + 1.0,
            startup=2.0 * wafer.vector_start_cycles,
        )
        factor = Cost(
            compute=3.0,
            special=1.0 * wafer.sqrt_cycles + wafer.divide_cycles,
            startup=5.0 * wafer.vector_start_cycles,
        )
        return local + _total_cost(tiling, wafer) + factor

    def compute(self, gradients: Array, *, limit: float = 1.0) -> tuple[Any, Any]:
        """Return (norm of all gradients, factor that scales it to at most `limit`) in fp32."""
        g = core.as_float(gradients)
        norm = np.sqrt(np.sum(core.unary("square", g), dtype=np.float32))
        return norm, np.minimum(np.float32(1), np.float32(limit) / (norm + np.float32(EPS)))

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return a program in which every core starts with its gradients and ends with the factor."""
        rows, cols, n = int(tiling.rows), int(tiling.cols), int(per_core(dims["elements"], tiling))
        b = new_builder(rows, cols, wafer)
        g, s, limit = b.buffer("g", n, bank=0), b.buffer("s", 1, bank=2), 0.5

        def before(k: CoreClass) -> None:
            k.mov(s.dsd(), scalar(0.0))
            k.mac(s.dsd(length=n, stride=0), g.dsd(), g.dsd())

        def after(k: CoreClass) -> None:
            k.map(Fn.SQRT, s.dsd(), s.dsd())
            k.add(s.dsd(), s.dsd(), scalar(EPS))
            k.map(Fn.RECIPROCAL, s.dsd(), s.dsd())
            k.mul(s.dsd(), s.dsd(), scalar(limit))
            k.min(s.dsd(), s.dsd(), scalar(1.0))

        place_rows_columns(b, _trees(tiling, wafer), s, "fp32", "core", before, after)
        values = _values(options, rows, cols, n)
        _, factor = self.compute(values, limit=limit)
        return Case(
            b.build(),
            b.config,
            {"g": values},
            {"s": np.full((rows, cols, 1), factor, np.float32)},
            tolerance=1e-4,
        )


@dataclass(frozen=True)
class ScaleAttributes(Attributes):
    """Attributes of a scaling: by a factor or to a range, and whether it checks for infinities."""

    op: str = attribute("scale", "by a factor, or to a range", choices=OPS)
    check: bool = attribute(False, "whether infinities are looked for")


class GradientScale(_OfGradients):
    """All gradients times a number, or clipped to a range."""

    name = "gradient_scale"
    lies = "where the weights rest; one number travels over the rectangle and back"
    programs = "scale, clip, search for infinities"
    bands = "0.3 %"
    attributes = ScaleAttributes
    color = "#fdbe85"
    server_bytes = 8  # read and write every gradient

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Price of one instruction to scale or two to clip; a check costs one more and an all-reduce of one word."""
        check_tiling(self.name, tiling, self.mappings)
        op, check = _asked_scale(how.get("attrs") or {})
        n, o = per_core(dims["elements"], tiling), wafer.vector_start_cycles
        if op == "clip":
            compute, starts = 2.0 * ceil_rate(n, wafer.max_fp32_per_cycle), 2
        else:
            compute, starts = 1.0 * ceil_rate(n, wafer.mul_fp32_per_cycle), 1
        if not check:
            return Cost(compute=compute, startup=wafer.task_start_cycles + o * starts + 0.0 * n)
        compute = compute + ceil_rate(n, min(1.0, wafer.fma_fp32_per_cycle)) + 1.0
        return Cost(compute=compute, startup=o * (starts + 2.0) + 0.0 * n) + _total_cost(tiling, wafer)

    def compute(
        self, gradients: Array, factor: float = 1.0, *, op: str = "scale", limit: float = 1.0
    ) -> tuple[Any, bool]:
        """Return (gradients scaled by `factor` or clipped to `limit`, whether all of them are finite)."""
        g = core.as_float(gradients)
        out = np.clip(g, -limit, limit) if op == "clip" else core.binary("mul", g, factor)
        return out, bool(np.isfinite(g).all())

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return the program; with `check`, every core ends with a sum that is NaN unless all gradients are
        finite."""
        op, check = _asked_scale(options.get("attrs") or {})
        rows, cols, n = int(tiling.rows), int(tiling.cols), int(per_core(dims["elements"], tiling))
        b = new_builder(rows, cols, wafer)
        g, factor, limit = b.buffer("g", n, bank=0), 0.25, 0.5
        values = _values(options, rows, cols, n)
        wanted, _ = self.compute(values, factor, op=op, limit=limit)
        expected = {"g": wanted}

        def change(k: CoreClass) -> None:
            if op == "clip":
                k.max(g.dsd(), g.dsd(), scalar(-limit))
                k.min(g.dsd(), g.dsd(), scalar(limit))
            else:
                k.mul(g.dsd(), g.dsd(), scalar(factor))

        if not check:
            k = b.core_class("core")
            k.busy(b.config.task_start_cycles)
            change(k)
            b.place(k, None)
            return Case(b.build(), b.config, {"g": values}, expected, tolerance=1e-5)
        s = b.buffer("s", 1, bank=2)

        def before(k: CoreClass) -> None:
            change(k)
            k.mov(s.dsd(), scalar(0.0))
            k.fmac(s.dsd(length=n, stride=0), s.dsd(length=n, stride=0), g.dsd(), scalar(0.0))

        place_rows_columns(b, _trees(tiling, wafer), s, "fp32", "core", before)
        return Case(
            b.build(),
            b.config,
            {"g": values},
            {**expected, "s": np.zeros((rows, cols, 1), np.float32)},
            tolerance=1e-5,
        )


class Schedule(_OfGradients):
    """Numbers of the step (learning rate, counters, loss scale): `operators` on one core, then a multicast."""

    name = "schedule"
    dims = sizes(operators="operators, one after another")
    lies = "one core, then a multicast"
    programs = "a chain of operators on one number"
    bands = "exact"
    color = "#fee6ce"

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost: one start and one element per operator, then a multicast of one word to all
        cores."""
        check_tiling(self.name, tiling, self.mappings)
        k, element = dims["operators"], 1.0 / wafer.fma_fp32_per_cycle
        local = Cost(compute=np.ceil(element) * k, startup=1.0 * k * wafer.vector_start_cycles)
        if int(np.max(tiling.rows * tiling.cols)) == 1:
            return local + Cost(startup=wafer.task_start_cycles + 0.0 * k)
        whole = replace(tiling, mapping="grid", options={**tiling.options, "axis": "both"})
        way = BROADCAST.cost({"words": 1}, whole, wafer, dtype="fp32")
        return local + way + Cost(startup=1.0 * wafer.vector_start_cycles)

    def compute(
        self, count: float, *, factor: float = 1.0, offset: float = 0.0, operators: int = 1
    ) -> np.float32:
        """Repeat x = x * factor + offset `operators` times, in fp32."""
        x = np.float32(count)
        for _ in range(operators):
            x = np.float32(x * np.float32(factor) + np.float32(offset))
        return x

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return a program in which the north-west core computes the number, and every core ends with it."""
        rows, cols, count = int(tiling.rows), int(tiling.cols), int(dims["operators"])
        b = new_builder(rows, cols, wafer)
        x, one = b.buffer("x", 1, bank=0), b.buffer("one", 1, bank=2)
        factor = 0.5
        root = b.core_class("root")
        root.busy(b.config.task_start_cycles)
        for _ in range(count):
            root.fmac(x.dsd(), one.dsd(), x.dsd(), scalar(factor))
        if rows * cols > 1:
            other = b.core_class("other")
            root.mov(fabric_out(0), x.dsd())
            other.mov(x.dsd(), fabric_in(0))
            route_rectangle(b, 0)
            b.place(other, None)
        b.place(root, (0, 0))
        start = np.zeros((rows, cols, 1), np.float32)
        start[0, 0] = 8.0
        wanted = self.compute(8.0, factor=factor, offset=1.0, operators=count)
        return Case(
            b.build(), b.config, {"x": start, "one": np.ones_like(start)}, {"x": np.full_like(start, wanted)}
        )


def _asked_scale(attrs: Attrs) -> tuple[str, bool]:
    stated = ScaleAttributes.of(attrs)
    if stated.op not in OPS:
        raise KernelError(f"gradient_scale has no operator '{stated.op}'; use one of {', '.join(OPS)}")
    return stated.op, stated.check


def _values(options: Mapping[str, Any], rows: int, cols: int, n: int) -> Array:
    draw = np.random.default_rng(int(options.get("seed", 0)))
    return draw.standard_normal((rows, cols, n)).astype(np.float32)


def _rectangle(tiling: Tiling) -> Tiling:
    return Tiling(int(tiling.rows), int(tiling.cols), "grid", "rows_columns")


def _total_cost(tiling: Tiling, wafer: Wafer) -> Cost:
    """Return the cost of an all-reduce of one word over the rectangle, after other work of the same task, per
    tiling."""
    if np.ndim(tiling.rows) == 0 and np.ndim(tiling.cols) == 0:
        start = wafer.vector_start_cycles if int(tiling.rows) * int(tiling.cols) > 1 else 0
        whole = ALLREDUCE.cost({"words": 1}, _rectangle(tiling), wafer, dtype="fp32")
        return whole + Cost(startup=1.0 * start)
    sides = np.stack(np.broadcast_arrays(tiling.rows, tiling.cols), axis=-1)
    unique, place = np.unique(sides.reshape(-1, 2), axis=0, return_inverse=True)
    costs = [_total_cost(Tiling(int(rows), int(cols)), wafer) for rows, cols in unique]
    names = costs[0].parts()
    return Cost(
        **{
            name: np.array([c.parts()[name] for c in costs])[place.reshape(sides.shape[:-1])]
            for name in names
        }
    )


def _trees(tiling: Tiling, wafer: Wafer) -> tuple[LineTree, LineTree]:
    """Return the trees along a row and along a column of an all-reduce of one word."""
    rows, cols = (
        allreduce_tree(1, Tiling(1, int(side), "grid", "auto"), wafer, "fp32", {})
        for side in (tiling.rows, tiling.cols)
    )
    return cols, rows


NORM = register(GradientNorm())
SCALE = register(GradientScale())
SCHEDULE = register(Schedule())
