"""The k largest of each row of (rows, cols), for the routing of a mixture of experts; k = cols sorts the row.

Mapping: a row is spread over p columns of a lane, p the largest power of two with p <= C // L, p <= cores //
rows and at least PIECE elements per core (a short row, one score per expert, stays on one core: p = 1); e =
ceil(cols/p) elements of n = ceil(rows p / cores) rows per core.

    select  k passes: maximum of the rows, all-reduced; its place (a sum of positions), all-reduced; its mask.
            List of instructions: `_pass` below; equation: :mod:`wse_sim.kernels.blocks.line_stages`.
    sort    T = n (A + B log2(2 e)) 4 (o + e / max) + 2 (2 p - 2 - log2 p) words(n e) + 2 B (o + 2 T_R + 1)
            A = log2 e (log2 e + 1) / 2 stages within a core, B = log2 p (log2 p + 1) / 2 exchanges

The faster one is used (the sort is a bitonic sort of pairs (value, index): each stage is a minimum, a maximum
and two selections; an exchange over distance d sends d pieces through its middle link, and the distances of
all exchanges add up to 2 p - 2 - log2 p).

Program: select, forward. The values of a row must differ (equal ones are found as one, with the sum of their
positions), and the sum of positions must be exact in fp32 (5,792 columns). Band of cost against program: 2 %.
Source: vector rates of the SDK documentation; the network of Batcher.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.graph import Kernel, Phase, Tensor
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.line_programs import LineTile, OnLines, RowWork, line_program
from wse_sim.kernels.blocks.line_stages import FEATURE, MATRIX, ROW, Shape, Vector
from wse_sim.kernels.blocks.training import moved_gradient
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.equations import bytes_of, ceil_div, max_rate, words
from wse_sim.kernels.contract.family import (
    Array,
    Case,
    Cost,
    Dims,
    Footprint,
    How,
    Kept,
    Probe,
    ProgramOptions,
    Role,
    Size,
    Tiling,
    asked,
)
from wse_sim.kernels.contract.parameters import sizes
from wse_sim.kernels.contract.registry import register
from wse_sim.kernels.contract.tape import Tape

# Fewest elements of a row per core; with fewer, instruction starts would take longer than the work.
PIECE = 16


class TopK(OnLines):
    """The family of the k largest of a row."""

    name = "topk"
    cheaper = "take the largest of fewer numbers, or sort outside the model"
    role = Role.CHOICE
    dims = sizes(rows="rows", cols="elements of a row", k="largest elements that are kept")
    mappings = ("stationary", "streamed")
    lies = "a long row over the columns of a lane, a short row on one core"
    programs = (
        "select, forward; a sort (k near the length of a long row) and the scatter of gradients have "
        "a cost only"
    )
    bands = "1 %"

    def tile(self, dims: Dims, tiling: Tiling) -> tuple[Any, Any, Any]:
        """(cores per row, rows per core, elements per core of a row)."""
        return spread(dims, tiling)

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Return the bytes of a core's rows, values and indices of the largest elements, and code."""
        dtype = self.asked(tiling, how).dtype
        _, n, e = spread(dims, tiling)
        # The piece, its mask (or indices), and the largest elements; a sort exchanges as much as it stores.
        more = e + 2 * np.minimum(dims["k"], e)
        return Footprint(
            buffers_bytes=1.0 * n * (e + more) * bytes_of(dtype), code_bytes=wafer.kernel_code_bytes
        )

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost of k passes or of a sort, whichever is faster; backward scatters k gradients per
        row."""
        phase, dtype, _ = self.asked(tiling, how)
        p, n, e = spread(dims, tiling)
        if phase is not Phase.FORWARD:
            passes = 1.0 * n * ceil_div(dims["k"], p)
            return Cost(compute=passes, startup=wafer.vector_start_cycles + 0.0 * passes)
        return select_cost(dims["k"], p, n, e, wafer, dtype).or_faster(_sort(p, n, e, wafer, dtype))

    def compute(self, x: Array, k: int, *, dtype: str = "fp32") -> tuple[Any, Any]:
        """Return values and indices of the k largest of each row: k times, find the maximum and mask it."""
        rest = core.rounded(x, dtype).copy()
        values, indices = [], []
        for _ in range(k):
            best = core.row_reduce(rest, core.MAXIMUM)
            at = np.argmax(rest == best, axis=-1)[..., None]
            np.put_along_axis(rest, at, -np.inf, axis=-1)
            values.append(best)
            indices.append(at)
        return np.concatenate(values, axis=-1), np.concatenate(indices, axis=-1)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return the program of k passes over random rows: every core of a row ends with the values and
        positions.

        Raises
        ------
        KernelError
            For a backward pass, and if a sort is faster.
        """
        phase, dtype, _ = self.asked(tiling, options, "fp32")
        p, n, e = (int(v) for v in spread(dims, tiling))
        k = int(dims["k"])
        sorts = _sort(p, n, e, wafer, dtype).total < select_cost(k, p, n, e, wafer, dtype).total
        if phase is not Phase.FORWARD or sorts:
            what = "a sort" if phase is Phase.FORWARD else "the backward pass"
            raise KernelError(
                f"topk: {what} has no fabric program; use fewer k of a forward pass, or --timing model"
            )
        tile = LineTile(int(tiling.rows), p, n, e)
        rng = np.random.default_rng(int(options.get("seed", 0)))
        # Every value occurs once in a row, in quarters that fp16 can represent.
        x = rng.permuted(np.tile(np.arange(tile.cols, dtype=np.float32) / 4, (tile.rows, 1)), axis=1)
        values, places = self.compute(x, k)
        wanted = {f"value {i}": values[:, i] for i in range(k)} | {
            f"place {i}": places[:, i] for i in range(k)
        }
        shapes = {name: shape for i in range(k) for name, shape in _shapes(dtype, i).items()}
        positions = np.arange(tile.cols, dtype=np.float32)
        work = RowWork(tuple(vector for i in range(k) for vector in _pass(i, positions.sum())), shapes)
        inputs = {"x": x, "position": -positions, "hidden": np.full(tile.rows, -HIDDEN)}
        return line_program(work, tile, wafer, inputs, wanted)

    def probes(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> tuple[Probe, ...]:
        """Return a probe on one line of cores with its rows; no probe measures the scatter of a backward
        pass."""
        return super().probes(dims, tiling, wafer, **how) if asked(how).phase is Phase.FORWARD else ()

    def keeps(self, kernel: Kernel, trained: frozenset[str], tensors: Mapping[str, Tensor]) -> Kept:
        """Return nothing: the backward pass needs only sizes."""
        return Kept()

    def gradients(self, kernel: Kernel, gradient: str, tape: Tape) -> None:
        """Emit the scatter of the gradients to the positions of the values."""
        moved_gradient(kernel, gradient, tape, "scatter")


def spread(dims: Dims, tiling: Tiling) -> tuple[Any, Any, Any]:
    """(cores per row, rows per core, elements per core of a row)."""
    cores = tiling.rows * tiling.cols
    most = np.minimum(tiling.cols // tiling.lanes, np.maximum(1, cores // dims["rows"]))
    most = np.maximum(1, np.minimum(most, dims["cols"] // PIECE))
    p = 2 ** np.floor(np.log2(most)).astype(np.int64)
    return p, ceil_div(dims["rows"] * p, cores), ceil_div(dims["cols"], p)


# Replacement of a value that an earlier pass found, with the sign reversed; fp16 can represent it.
HIDDEN = 3e4


def _shapes(dtype: str, i: int) -> dict[str, Shape]:
    """Return the buffers of pass i."""
    return {
        "x": Shape(MATRIX, dtype),
        "other": Shape(MATRIX, dtype),
        "position": Shape(FEATURE),
        "hidden": Shape(ROW, dtype, bank=0),
        f"value {i}": Shape(ROW, dtype),
        f"place {i}": Shape(ROW, bank=0),
    }


def _pass(i: int, all_places: float = 1.0) -> tuple[Vector, ...]:
    """Return the instructions that find the maximum of every row and its position, and mask it; `other`: 1
    elsewhere.

    The position is `all_places` minus the sum of the other positions (`position` is negated).
    """
    value, place = f"value {i}", f"place {i}"
    return (
        Vector("mov", value, (-HIDDEN,)),
        Vector("max", value, (value, "x")),
        Vector("share max", value),
        Vector("sub", "other", (value, "x")),
        Vector("step", "other", ("other",)),
        Vector("mov", place, (0.0,)),
        Vector("fmac", place, (place, "other", "position")),
        Vector("share add", place),
        Vector("add", place, (place, all_places)),
        Vector("fmac", "other", ("hidden", "other", 2 * HIDDEN)),
        Vector("min", "x", ("x", "other")),
    )


def select_cost(k: Size, p: Size, n: Size, e: Size, wafer: Wafer, dtype: str) -> Cost:
    """Return the cost of k passes over n rows of e elements on each of p cores."""
    return k * RowWork(_pass(0), _shapes(dtype, 0)).cost(n, e, p, 1, wafer)


def _sort(p: Size, n: Size, e: Size, wafer: Wafer, dtype: str) -> Cost:
    """Return the cost of a bitonic sort of p pieces of e pairs."""
    across, within = np.log2(p), np.ceil(np.log2(e))
    exchanges = across * (across + 1) / 2
    stages = n * (within * (within + 1) / 2 + exchanges * (1 + within))
    links = 2 * p - 2 - across
    return Cost(
        compute=4 * stages * e / max_rate(dtype, wafer),
        startup=(4 * stages + 2 * exchanges) * wafer.vector_start_cycles,
        fabric=2.0 * links * words(n * e, dtype) * wafer.wavelet_cycles,
        idle=2 * exchanges * (wafer.handover_cycles),
    )


FAMILY = register(TopK())
