"""The k largest of each row of (rows, cols), for the routing of a mixture of experts; k = cols sorts the row.

Mapping: a row lies over p columns of a lane, p the largest power of two with p <= C // L, p <= cores // rows
and at least PIECE elements per core (a short row, one score per expert, stays on one core: p = 1);
e = ceil(cols/p) elements of n = ceil(rows p / cores) rows per core.

    select  k passes: maximum of the rows, all-reduced; its place (a sum of positions), all-reduced; its mask.
            List of instructions: `_pass` below; equation: :mod:`wse_sim.kernels.blocks.line_stages`.
    sort    T = n (A + B log2(2 e)) 4 (o + e / max) + 2 (2 p - 2 - log2 p) words(n e) + 2 B (o + 2 T_R + 1)
            A = log2 e (log2 e + 1) / 2 stages within a core, B = log2 p (log2 p + 1) / 2 exchanges

The faster of both (a bitonic sort of pairs value, index: each stage is a minimum, a maximum and two selections;
an exchange over distance d sends d pieces through its middle link, and the distances of all exchanges
add up to 2 p - 2 - log2 p).

Program: select, forward; values of a row differ (equal ones are found as one, with the sum of their places), and
their places add up to what fp32 holds (5,792 columns).
Band of cost against program: 2 %.  Source: vector rates of the SDK documentation; the network of Batcher.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.graph import Kernel, Phase, Tensor
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.line_programs import LineTile, RowWork, line_probe, line_program, wanted_of
from wse_sim.kernels.blocks.line_stages import FEATURE, MATRIX, ROW, Shape, Vector
from wse_sim.kernels.blocks.shared import OnRows
from wse_sim.kernels.blocks.training import moved_gradient
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.equations import (
    bytes_of,
    ceil_div,
    check_tiling,
    max_rate,
    words,
)
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
from wse_sim.kernels.contract.parameters import (
    sizes,
)
from wse_sim.kernels.contract.registry import register
from wse_sim.kernels.contract.tape import Tape

# A row is spread over more cores only while each keeps this many elements: below, starts outweigh work.
PIECE = 16


class TopK(OnRows):
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
        """The rows of a core, values and indices of the largest elements, code."""
        dtype = asked(how).dtype
        check_tiling(self.name, tiling, self.mappings)
        _, n, e = spread(dims, tiling)
        # The piece and its mask (or its indices), and the winners; a sort exchanges as much as it holds.
        more = e + 2 * np.minimum(dims["k"], e)
        return Footprint(
            buffers_bytes=1.0 * n * (e + more) * bytes_of(dtype), code_bytes=wafer.kernel_code_bytes
        )

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """The faster of k passes and a sort; backward scatters k gradients per row."""
        phase, dtype, _ = asked(how)
        check_tiling(self.name, tiling, self.mappings)
        p, n, e = spread(dims, tiling)
        if phase is not Phase.FORWARD:
            passes = 1.0 * n * ceil_div(dims["k"], p)
            return Cost(compute=passes, startup=wafer.vector_start_cycles + 0.0 * passes)
        ways = (select_cost(dims["k"], p, n, e, wafer, dtype), _sort(p, n, e, wafer, dtype))
        better = np.asarray(ways[1].total < ways[0].total)
        parts = zip(ways[0].parts().values(), ways[1].parts().values(), strict=True)
        chosen = [np.where(better, b, a) for a, b in parts]
        return Cost(*(value if value.ndim else float(value) for value in chosen))

    def compute(self, x: Array, k: int, *, dtype: str = "fp32") -> tuple[Any, Any]:
        """Values and indices of the k largest of each row: k times find the maximum and mask it."""
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
        """The k largest of random rows by k passes: every core of a row ends with values and places.

        Raises
        ------
        KernelError
            For a backward pass, and where a sort is the faster way.
        """
        phase, dtype, _ = wanted_of(options)
        check_tiling(self.name, tiling, self.mappings)
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
        # Every value once in a row, in quarters that fp16 holds.
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
        """One line of cores with its rows; the scatter of a backward pass keeps its formula."""
        return line_probe(self, dims, tiling, wafer, how) if asked(how).phase is Phase.FORWARD else ()

    def keeps(self, kernel: Kernel, trained: frozenset[str], tensors: Mapping[str, Tensor]) -> Kept:
        """Only sizes."""
        return Kept()

    def gradients(self, kernel: Kernel, gradient: str, tape: Tape) -> None:
        """The gradients go back to where the values were."""
        moved_gradient(kernel, gradient, tape, "scatter")


def spread(dims: Dims, tiling: Tiling) -> tuple[Any, Any, Any]:
    """(cores per row, rows per core, elements per core of a row)."""
    cores = tiling.rows * tiling.cols
    most = np.minimum(tiling.cols // tiling.lanes, np.maximum(1, cores // dims["rows"]))
    most = np.maximum(1, np.minimum(most, dims["cols"] // PIECE))
    p = 2 ** np.floor(np.log2(most)).astype(np.int64)
    return p, ceil_div(dims["rows"] * p, cores), ceil_div(dims["cols"], p)


# What a value found in an earlier pass is replaced by, with the sign turned; fp16 holds it.
HIDDEN = 3e4


def _shapes(dtype: str, i: int) -> dict[str, Shape]:
    """Buffers of pass i."""
    return {
        "x": Shape(MATRIX, dtype),
        "other": Shape(MATRIX, dtype),
        "position": Shape(FEATURE),
        "hidden": Shape(ROW, dtype, bank=0),
        f"value {i}": Shape(ROW, dtype),
        f"place {i}": Shape(ROW, bank=0),
    }


def _pass(i: int, all_places: float = 1.0) -> tuple[Vector, ...]:
    """Find the maximum of every row, where it is, and hide it; `other` is 1 where an element is not it.

    Its place is the sum of `all_places` less those of the others (`position` is negated).
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
    """k passes over n rows of e elements on each of p cores."""
    return k * RowWork(_pass(0), _shapes(dtype, 0)).cost(n, e, p, 1, wafer)


def _sort(p: Size, n: Size, e: Size, wafer: Wafer, dtype: str) -> Cost:
    """Bitonic sort of p pieces of e pairs."""
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
