"""Normalisation of (rows, cols): layer, rms, batch or group norm.

Mappings. stationary: every core of the region processes whole tokens in blocks, and receives and sends their
words; cost and memory in :mod:`wse_sim.kernels.blocks.token_blocks`, as in the program of a whole model on
the fabric. streamed, and stationary if a token does not fit in a core: cols (hidden) over the c = C // L
columns of a lane, rows (tokens) over the L R rows of lanes; each core has f = ceil(cols/c) features of t =
ceil(rows/(L R)) tokens.

    forward          layer: sum, sum of squares, scale and offset per token, scale and shift per feature: 4 passes
                     rms: sum of squares, scale per token, scale per feature: 3 passes
    input gradient   with x the normalised input:  g s,  sum of g and of g x (rms: of g x),  g - x mean(g x) - mean(g),
                     times 1 / deviation: 6 passes (rms: 4)
    weight gradient  sums over the tokens of g x and of g (rms: of g x), then a chain down the columns

whole (an attribute): rows over the R rows of cores, one after the other, as in a whole model that trains on
the fabric. In the forward pass and for the input gradient, D / 2 words of a row are also received and sent. If they
travel over k links, k neighbours share a row on R - (k - 1) rows of cores, and add their statistics; a core next to the
region sums the gradients of Q readers::

    links            T D / (2 k) forward, Q T D / (2 k) backward, cycles of a word on a link each
affine: a norm without a shift, or without scale and shift, leaves out their instructions.

A pass is an instruction over the t f elements (o + f ceil(t / w), or row by row if that is faster).
Statistics are fp32 vectors of length t; both are reduced together along the lane (chain and multicast), with
a root and a division per token. Batch and group norm are priced as layer norm, features over columns in both
mappings.  The list of instructions is `_work` below, its equation and its program
:mod:`wse_sim.kernels.blocks.line_stages`.  A pipelined region also waits for its operands over the west edge
and for the fill, which the program leaves out.

Source: vector rates of the SDK documentation; reduce as in calibration 1.2.  Band of cost against program: 3 %.

grid: written by hand, the same instructions with rows over the rows of cores and features over the columns.  Band: 3 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np

from wse_sim.graph import Kernel, Phase, Tensor
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.line_programs import (
    LineTile,
    OnLines,
    RowWork,
    grid_cost,
    grid_footprint,
    grid_tile,
    grid_tree,
    lane_tile,
    line_program,
)
from wse_sim.kernels.blocks.line_stages import FEATURE, MATRIX, ROW, TWO_FEATURES, TWO_ROWS, Shape, Vector
from wse_sim.kernels.blocks.products import weight_bytes
from wse_sim.kernels.blocks.rounds import pitch
from wse_sim.kernels.blocks.token_blocks import TokenBlocks, lanes_for, linked_cost
from wse_sim.kernels.blocks.training import FP32_BYTES, input_gradient, weight_gradient
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.equations import bytes_of, ceil_div, edge_wait, fill_cycles, least_share, words
from wse_sim.kernels.contract.family import (
    NONE,
    Array,
    Attrs,
    Case,
    Cost,
    Dims,
    Flow,
    Footprint,
    How,
    Kept,
    Lay,
    Probe,
    ProgramOptions,
    Role,
    Size,
    Tiling,
    asked,
)
from wse_sim.kernels.contract.parameters import Attributes, attribute, sizes
from wse_sim.kernels.contract.recent import recent
from wse_sim.kernels.contract.registry import register
from wse_sim.kernels.contract.tape import Tape

FP16_BYTES = 2
BUFFERS = 20  # of a core that trains, at most
MOST_LANES = 64
"""Most neighbours that share a row in training, which are tried."""


@dataclass(frozen=True)
class NormAttributes(Attributes):
    """Attributes of a normalisation; `statistics` of a batch norm: "batch" or "running"."""

    kind: str = attribute(
        "layer", "set of elements of each statistic", choices=("layer", "rms", "group", "batch")
    )
    eps: float = attribute(1e-5, "addend of the variance, or of the mean square", at_least=0.0)
    whole: bool = attribute(
        False, "rows on one column of cores, one after the other, as they train in a whole model"
    )
    affine: str = attribute(
        "",
        "scale and shift of normalised rows; empty: as the kind has them",
        choices=("", "scale", "shift", "none"),
    )
    statistics: str = attribute(
        "", "batch norms: statistics of the batch, or running ones", choices=("", "batch", "running")
    )
    passes_on: bool = attribute(
        True, "with whole, in training: gradients of its operand are asked for, stated on all its passes"
    )


class Norm(OnLines):
    """The family of normalisations."""

    name = "norm"
    cheaper = (
        "normalise fewer or shorter rows; a norm with a mean reads them once more than one without (RMS)"
    )
    role = Role.NORM
    dims = sizes(rows="rows with their own statistics", cols="elements of a row")
    mappings = ("stationary", "streamed", "grid")
    lies = "stationary: whole rows on all cores; streamed: rows along the lanes; grid as softmax"
    programs = "layer and rms, forward and both gradients"
    bands = "1 %; grid 3 %"
    attributes = NormAttributes
    color = "#dadaeb"
    sums_rows = True

    def is_affine(self, attrs: Attrs = NONE) -> bool:
        """Return whether the norm has running statistics, so that it only scales and shifts each channel."""
        return NormAttributes.of(attrs).statistics == "running"

    def flow(self, dims: Dims, attrs: Attrs = NONE) -> Flow:
        """Return the flow: row by row; with a fabric layout different cores have rows."""
        return Flow(rows=dims["rows"], parallel=_is_laid(attrs))

    def lay(self, dims: Dims, attrs: Attrs = NONE) -> Lay:
        """Return the layout: with a fabric layout, rows enter and leave over the rows of cores, in sequence
        on each link; lanes need colors for their statistics."""
        said = NormAttributes.of(attrs)
        if not _is_laid(attrs):
            return Lay()
        several = said.most_bundles > 1
        colors = several * (4 if said.whole else 1)  # in training, sums of parameters travel on others
        most = max(1, said.most_bundles)
        return Lay("rows", "rows", most_links=most, more_colors=colors, in_turn=True)

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Return the bytes of statistics, scale and shift, a stage buffer and code."""
        phase, dtype, attrs = self.asked(tiling, how)
        if tiling.mapping == "grid":
            return grid_footprint(_work(phase, dtype, attrs), grid_tile(dims, tiling), wafer)
        if NormAttributes.of(attrs).whole:
            # Two rows, two results, scale and shift: a core receives the next row while it works.
            size = bytes_of(dtype) * dims["cols"]
            return Footprint(
                weights_bytes=2.0 * size, buffers_bytes=4 * size, code_bytes=wafer.kernel_code_bytes
            )
        blocks = blocks_of(dims, tiling, wafer, Phase.FORWARD, dtype, attrs)
        if blocks is not None:
            kept = weight_bytes(tiling, attrs, dtype, phase) - blocks.parameter_bytes
            return blocks.footprint(int(dims["rows"]), tiling.rows * tiling.cols, max(0.0, kept))
        f, t = (
            ceil_div(dims["cols"], tiling.cols // tiling.lanes),
            ceil_div(dims["rows"], tiling.lanes * tiling.rows),
        )
        # All rows of a sample are on the cores at once; with streamed weights the compiler counts them.
        tile = t * f * bytes_of(dtype) * (tiling.mapping == "stationary" and in_tokens(attrs))
        return Footprint(
            weights_bytes=2.0 * f * bytes_of(dtype),
            buffers_bytes=2 * f * bytes_of(dtype) + 8 * t + tile,
            code_bytes=wafer.kernel_code_bytes,
        )

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost: vector passes, all-reduces of statistics, a root and a division per token, waiting
        at the edge."""
        phase, dtype, attrs = self.asked(tiling, how)
        if tiling.mapping == "grid":
            return grid_cost(_work(phase, dtype, attrs), grid_tile(dims, tiling), wafer)
        lane, t, f = self.tile(dims, tiling)
        if NormAttributes.of(attrs).whole:
            return whole_cost(dims, tiling, wafer, phase, dtype, attrs)
        blocks = blocks_of(dims, tiling, wafer, phase, dtype, attrs)
        if blocks is not None:
            local = blocks_cost(dims, tiling, wafer, phase, dtype, attrs)
            return local + Cost(idle=fill_cycles(tiling.rows, tiling.cols, wafer))
        local = _work(phase, dtype, attrs).cost(t, f, lane, tiling.rows, wafer)
        if phase is Phase.WEIGHT_GRADIENT or tiling.mapping != "stationary":
            return local
        busy = local.compute + local.special + local.startup
        elements = dims["rows"] * dims["cols"] * (1 if phase is Phase.FORWARD else 2)
        return local + Cost(
            fabric=edge_wait(elements, busy, tiling, dtype, wafer),
            idle=fill_cycles(tiling.rows, tiling.cols, wafer),
        )

    tile = staticmethod(lane_tile)

    def compute(
        self,
        x: Array,
        scale: Array | None = None,
        shift: Array | None = None,
        *,
        kind: str = "layer",
        eps: float = 1e-5,
        dtype: str = "fp32",
        parts: int = 1,
    ) -> Array:
        """Normalise the last dimension of x; for group and batch norm, move the groups there first."""
        normal, _ = _normalised(x, kind, eps, dtype, parts)
        if scale is not None:
            normal = core.binary("mul", normal, core.rounded(scale, dtype))
        if shift is not None:
            normal = core.binary("add", normal, core.rounded(shift, dtype))
        return core.rounded(normal, dtype)

    def gradient(
        self,
        x: Array,
        scale: Array,
        g: Array,
        *,
        kind: str = "layer",
        eps: float = 1e-5,
        dtype: str = "fp32",
        parts: int = 1,
    ) -> tuple[Any, Any, Any]:
        """Return the gradients of x, scale and shift."""
        normal, inverse = _normalised(x, kind, eps, dtype, parts)
        g = core.rounded(g, dtype)
        rows = (-1, normal.shape[-1])
        d_scale = core.row_reduce(core.binary("mul", g, normal).reshape(rows).T, core.SUM)[:, 0]
        d_shift = core.row_reduce(g.reshape(rows).T, core.SUM)[:, 0]
        scaled = core.binary("mul", g, core.rounded(scale, dtype))
        width = np.float32(normal.shape[-1])
        along = core.row_reduce(core.binary("mul", scaled, normal), core.SUM, parts) / width
        rest = core.binary("sub", scaled, core.binary("mul", normal, along))
        if kind != "rms":
            rest = core.binary("sub", rest, core.row_reduce(scaled, core.SUM, parts) / width)
        return core.binary("mul", rest, inverse, dtype), d_scale, d_shift

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return the program of a layer or RMS norm, forward or a gradient, of rows along lanes.

        Stationary: one block of whole rows on every core of a column.
        """
        phase, dtype, attrs = self.asked(tiling, options, "fp32")
        said = NormAttributes.of(attrs)
        kind, eps = said.kind, said.eps
        lane, t, f = (int(v) for v in self.tile(dims, tiling))
        is_grid = tiling.mapping == "grid"
        tile = grid_tile(dims, tiling) if is_grid else LineTile(int(tiling.rows), lane, t, f)
        blocks = None if said.whole else blocks_of(dims, tiling, wafer, phase, dtype, attrs)
        if blocks is not None:
            size = blocks.sizes(ceil_div(int(dims["rows"]), int(tiling.rows * tiling.cols)))[0]
            tile = LineTile(int(tiling.rows), 1, size, blocks.features)
        rng = np.random.default_rng(int(options.get("seed", 0)))
        x, g = rng.standard_normal((2, tile.rows, tile.cols)).astype(np.float32)
        scale, shift = rng.standard_normal((2, tile.cols)).astype(np.float32)
        work, has = _work(phase, dtype, attrs, tile.cols), affine_of(attrs)
        tree = grid_tree(work, tile, wafer) if is_grid else None
        if "scale" not in has:
            scale = np.ones_like(scale)
        if phase is Phase.FORWARD:
            wanted = self.compute(x, scale, shift if "shift" in has else None, kind=kind, eps=eps)
            inputs = {"x": x, "scale": scale, "shift": shift}
            return line_program(work, tile, wafer, _known(inputs, work), {"x": wanted}, tree=tree)
        d_x, d_scale, d_shift = self.gradient(x, scale, g, kind=kind, eps=eps)
        normal, inverse = _normalised(x, kind, eps, "fp32", 1)
        if phase is Phase.WEIGHT_GRADIENT:
            sums = _known({"d_scale": d_scale, "d_shift": d_shift}, work)
            return line_program(work, tile, wafer, {"x": normal, "g": g}, sums, at_first=True)
        inputs = {"x": normal, "g": g, "scale": scale, "inverse": inverse}
        return line_program(work, tile, wafer, inputs, {"g": d_x}, tree=tree)

    def probes(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> tuple[Probe, ...]:
        """Return a probe on a block of whole rows or on a line of cores with its rows; on a few lines for a
        weight gradient."""
        if tiling.mapping == "grid":
            return ()
        blocks = (
            None if NormAttributes.of(asked(how).attrs).whole else blocks_of(dims, tiling, wafer, *asked(how))
        )
        if blocks is None:
            return super().probes(dims, tiling, wafer, **how)
        cores = int(tiling.rows * tiling.cols)
        block = {"rows": blocks.sizes(ceil_div(int(dims["rows"]), cores))[0], "cols": dims["cols"]}
        (probe,) = super().probes(block, Tiling(1, 1, "streamed"), wafer, **how)
        # The program of the kernel alone neither receives nor sends words.
        local = replace(blocks.cost(int(dims["rows"]), cores), ramp=0.0)
        return (replace(probe, cost=replace(local, startup=0.0) if probe.step else local),)

    def keeps(self, kernel: Kernel, trained: frozenset[str], tensors: Mapping[str, Tensor]) -> Kept:
        """Return the inputs and two fp32 moments per row (per column for a batch norm)."""
        count = kernel.dims["cols" if NormAttributes.of(kernel.attrs).kind == "batch" else "rows"]
        return Kept(kernel.inputs, 2 * count * FP32_BYTES)

    def gradients(self, kernel: Kernel, gradient: str, tape: Tape) -> None:
        """Emit the gradients of scale and shift, then that of the input."""
        reads = tuple(dict.fromkeys((gradient, *kernel.inputs)))
        weight_gradient(kernel, reads, tape)
        input_gradient(kernel, reads, tape)


def _known(values: Mapping[str, Any], work: RowWork) -> dict[str, Any]:
    """Return those values that the instructions use."""
    return {name: value for name, value in values.items() if name in work.shapes}


def _work(phase: Phase, dtype: str, attrs: Attrs, cols: int = 1) -> RowWork:
    """Return the instructions of a phase; `cols`: features of a whole row, which do not affect the cost."""
    if phase is Phase.FORWARD:
        return forward_work(dtype, attrs, cols)
    if phase is Phase.WEIGHT_GRADIENT:
        return weight_gradient_work(dtype, attrs)
    return input_gradient_work(dtype, attrs, cols)


def affine_of(attrs: Attrs) -> tuple[str, ...]:
    """Return which of "scale" and "shift" a norm has."""
    said = NormAttributes.of(attrs)
    if said.affine:
        return () if said.affine == "none" else (said.affine,)
    return ("scale",) if said.kind == "rms" else ("scale", "shift")


def forward_work(dtype: str, attrs: Attrs, cols: int = 1) -> RowWork:
    """Return the instructions of the forward pass over `cols` features of a whole row."""
    said = NormAttributes.of(attrs)
    found = (_rms if said.kind == "rms" else _layer)(dtype, cols, said.eps)
    has = affine_of(attrs)
    vectors = {
        ("scale", "shift"): (Vector("fmac", "x", ("shift", "x", "scale")),),
        ("scale",): (Vector("mul", "x", ("x", "scale")),),
        ("shift",): (Vector("add", "x", ("x", "shift")),),
        (): (),
    }[has]
    return RowWork(
        (*found.vectors, *vectors), {**found.shapes, **{name: Shape(FEATURE, dtype) for name in has}}
    )


def in_tokens(attrs: Attrs) -> bool:
    """Return whether rows are tokens that can be distributed over cores: true for layer and RMS norms."""
    return NormAttributes.of(attrs).kind in ("layer", "rms")


def _is_laid(attrs: Attrs) -> bool:
    """Return whether the attributes state the layout of the norm's streams on the fabric."""
    said = NormAttributes.of(attrs)
    return said.whole or said.most_bundles > 0


def blocks_cost(dims: Dims, tiling: Tiling, wafer: Wafer, phase: Phase, dtype: str, attrs: Attrs) -> Cost:
    """Return the cost of blocks of tokens; on the fabric over the number of links that is fastest, words of a
    link included."""
    return linked_cost(
        lambda lane: blocks_of(dims, tiling, wafer, phase, dtype, attrs, lane),
        dims,
        tiling,
        wafer,
        NormAttributes.of(attrs),
    )


def blocks_of(
    dims: Dims, tiling: Tiling, wafer: Wafer, phase: Phase, dtype: str, attrs: Attrs, lane: int = 1
) -> TokenBlocks | None:
    """Return blocks of tokens that the cores of a lane share; None for other layouts, or if a token does not
    fit, which the fabric refuses."""
    if tiling.mapping != "stationary" or not in_tokens(attrs):
        return None
    trains = bool(tiling.options.get("training", False))
    found = _blocks(int(dims["cols"]), wafer, phase, dtype, attrs, trains, lane)
    return found if found.most or NormAttributes.of(attrs).most_bundles else None


@recent(64)
def _blocks(
    cols: int, wafer: Wafer, phase: Phase, dtype: str, attrs: Attrs, trains: bool, lane: int
) -> TokenBlocks:
    """Return blocks of tokens of `cols` features on `lane` cores; many shapes use the same ones."""
    blocks, parameter_bytes = (6, bytes_of(dtype) + FP32_BYTES) if trains else (4, bytes_of(dtype))
    forward = TokenBlocks(
        _work(Phase.FORWARD, dtype, attrs, cols), cols // lane, dtype, wafer,
        blocks=blocks, parameter_bytes=parameter_bytes, lane=lane,
    )  # fmt: skip
    if phase is Phase.FORWARD:
        return forward
    work, tensors = _work(phase, dtype, attrs, cols), 3
    if phase is Phase.WEIGHT_GRADIENT:
        # The gradients have already arrived for the input gradient, and their sums stay on the cores until
        # the end of the batch.
        added = tuple(vector for vector in work.vectors if vector.op in ("mac", "add"))
        work, tensors = RowWork(added, work.shapes), 0
    return TokenBlocks(work, cols, dtype, wafer, tensors, forward=forward)


def whole_cost(dims: Dims, tiling: Tiling, wafer: Wafer, phase: Phase, dtype: str, attrs: Attrs) -> Cost:
    """Return the cost of one pass of rows that are on one core each, or on the number of neighbours with which all passes
    together are fastest."""
    said = NormAttributes.of(attrs)
    found, least = Cost(), np.inf + 0.0 * tiling.rows * tiling.cols
    for lane in lanes_for(int(dims["cols"]), min(said.most_bundles, MOST_LANES)):
        passes = lane_costs(dims, tiling.rows, lane, wafer, dtype, attrs)
        fixed, each = lane_bytes(dims, tiling.rows, lane, wafer, attrs)
        has_room = (
            fixed + max(1, said.held_samples) * each + wafer.kernel_code_bytes <= wafer.sram_usable_bytes
        )
        is_possible = (tiling.cols >= lane) & (tiling.rows >= lane) & (lane >= said.least_bundles) & has_room
        total = np.where(is_possible, sum(one.total for one in passes.values()), np.inf)
        found = found.replaced(total < least, passes[phase])
        least = np.minimum(total, least)
    down_and_back = Cost(idle=2.0 * wafer.hop_cycles * tiling.rows)
    return found.replaced(np.isinf(least), Cost(stalled_input=least)) + down_and_back


def lane_bytes(dims: Dims, rows: Size, lane: int, wafer: Wafer, attrs: Attrs) -> tuple[Size, Size]:
    """Return the bytes of a core with its part of rows that `lane` neighbours share, in a region of `rows` rows of cores:
    fixed ones, and those of each sample in flight.

    Fixed: two rows and two results, parameters in fp32 with their gradients and fp16 copies, and few numbers of a row with
    the gaps before buffers that start in their bank. In flight: normalized rows, and a deviation of each.
    """
    apart, parameters = pitch(dims["cols"] // lane), len(affine_of(attrs))
    copies = 2 if parameters == 1 else 1
    fixed = 4 * FP16_BYTES * apart + parameters * (apart + 2) * (2 * FP32_BYTES + copies * FP16_BYTES)
    gaps = BUFFERS * (FP16_BYTES * wafer.sram_banks + 2 * FP32_BYTES)
    each = least_share(int(dims["rows"]), np.maximum(1, rows - (lane - 1)))
    return fixed + gaps, each * FP16_BYTES * (apart + 1)


@recent(2 * MOST_LANES)
def lane_costs(
    dims: Dims, rows: Size, lane: int, wafer: Wafer, dtype: str, attrs: Attrs
) -> dict[Phase, Cost]:
    """Return the cost of every pass of rows that are on `lane` neighbours each, in a region of `rows` rows of cores:
    instructions row by row, words received and sent meanwhile, and the words of a link.

    A weight gradient sums gradients that have already arrived for the input gradient, if there is one. Its sums
    stay on the cores and travel down the column once per batch, which is not counted.
    """
    tokens, features, stated = int(dims["rows"]), dims["cols"] // lane, NormAttributes.of(attrs)
    each = least_share(tokens, np.maximum(1, rows - (lane - 1)))
    link = wafer.wavelet_cycles * tokens * words(features, dtype)
    found = {}
    back = Phase.INPUT_GRADIENT if stated.passes_on else Phase.WEIGHT_GRADIENT
    for phase, streams in ((Phase.FORWARD, 1), (back, stated.readers)):
        row = _work(phase, dtype, attrs).cost(1, features, lane, 1, wafer)
        # The next row waits for the sums of the other cores too.
        row = replace(row, idle=0.0 * row.idle, stalled_input=row.idle)
        moved = 1.0 + (phase is not Phase.WEIGHT_GRADIENT)  # words received, and sent
        cost = each * (row + Cost(ramp=moved * words(features, dtype)))
        found[phase] = cost + Cost(stalled_input=np.maximum(0.0, streams * link - cost.total))
    if not stated.passes_on:
        return found | {Phase.INPUT_GRADIENT: Cost()}
    sums = _work(Phase.WEIGHT_GRADIENT, dtype, attrs)
    added = tuple(vector for vector in sums.vectors if vector.op in ("mac", "add"))
    found[Phase.WEIGHT_GRADIENT] = each * RowWork(added, sums.shapes).cost(1, features, 1, 1, wafer)
    return found


# Two statistics per row, reduced together, and scale and offset of the elements, in their precision.
STATISTICS = {
    "sums": Shape(TWO_ROWS),
    "first": Shape(ROW, within="sums"),
    "second": Shape(ROW, within="sums", half=1),
}


def _layer(dtype: str, cols: int, eps: float) -> RowWork:
    """Return the instructions that replace x by (x - mean) / deviation; the variance is E[x x] - mean
    mean."""
    shapes = {
        "x": Shape(MATRIX, dtype),
        **STATISTICS,
        "offset": Shape(ROW, bank=0),
        "by": Shape(ROW, dtype),
        "plus": Shape(ROW, dtype),
    }
    vectors = (
        Vector("mov", "sums", (0.0,)),
        Vector("add", "first", ("first", "x")),
        Vector("mac", "second", ("x", "x")),
        Vector("share add", "sums"),
        Vector("mul", "sums", ("sums", 1.0 / cols)),
        Vector("mul", "offset", ("first", -1.0)),
        Vector("fmac", "second", ("second", "offset", "first")),
        Vector("add", "second", ("second", eps)),
        Vector("rsqrt", "second", ("second",)),
        Vector("mul", "offset", ("offset", "second")),
        Vector("mov", "by", ("second",)),
        Vector("mov", "plus", ("offset",)),
        Vector("fmac", "x", ("plus", "x", "by")),
    )
    return RowWork(vectors, shapes)


def _rms(dtype: str, cols: int, eps: float) -> RowWork:
    """Return the instructions that replace x by x / root of the mean square."""
    shapes = {
        "x": Shape(MATRIX, dtype),
        "second": Shape(ROW),
        "by": Shape(ROW, dtype),
    }
    vectors = (
        Vector("mov", "second", (0.0,)),
        Vector("mac", "second", ("x", "x")),
        Vector("share add", "second"),
        Vector("mul", "second", ("second", 1.0 / cols)),
        Vector("add", "second", ("second", eps)),
        Vector("rsqrt", "second", ("second",)),
        Vector("mov", "by", ("second",)),
        Vector("mul", "x", ("x", "by")),
    )
    return RowWork(vectors, shapes)


def input_gradient_work(dtype: str, attrs: Attrs, cols: int = 1) -> RowWork:
    """Return the instructions that replace g by (g s - x mean(g s x) - mean(g s)) / deviation; x is the
    normalised input."""
    is_rms, is_scaled = NormAttributes.of(attrs).kind == "rms", "scale" in affine_of(attrs)
    shapes = {
        "g": Shape(MATRIX, dtype),
        "x": Shape(MATRIX, dtype),
        **STATISTICS,
        "inverse": Shape(ROW, dtype),
        "scale": Shape(FEATURE, dtype),
        "by": Shape(ROW, dtype),
        "plus": Shape(ROW, dtype),
    }
    sums = [Vector("mac", "second", ("g", "x"))]
    rest = [Vector("mov", "by", ("second",)), Vector("fmac", "g", ("g", "x", "by"))]
    if is_rms:
        del shapes["first"], shapes["plus"]
        shapes |= {"sums": Shape(ROW), "second": Shape(ROW, within="sums")}
    else:
        sums.insert(0, Vector("add", "first", ("first", "g")))
        rest += [Vector("mov", "plus", ("first",)), Vector("add", "g", ("g", "plus"))]
    scaled = [Vector("mul", "g", ("g", "scale"))] if is_scaled else []
    if not is_scaled:
        del shapes["scale"]
    vectors = (
        *scaled,
        Vector("mov", "sums", (0.0,)),
        *sums,
        Vector("share add", "sums"),
        Vector("mul", "sums", ("sums", -1.0 / cols)),
        *rest,
        Vector("mul", "g", ("g", "inverse")),
    )
    return RowWork(vectors, shapes)


def weight_gradient_work(dtype: str, attrs: Attrs) -> RowWork:
    """Return the instructions that sum g x and g over the rows; x is the normalised input."""
    has = affine_of(attrs)
    shapes = {"g": Shape(MATRIX, dtype), "x": Shape(MATRIX, dtype)}
    sums = {
        "scale": Vector("mac", "d_scale", ("g", "x")),
        "shift": Vector("add", "d_shift", ("d_shift", "g")),
    }
    vectors = tuple(sums[name] for name in has)
    if len(has) == 1:
        to = vectors[0].to
        shapes[to] = Shape(FEATURE)
        return RowWork((Vector("mov", to, (0.0,)), *vectors, Vector("sink add", to)), shapes)
    shapes |= {"sums": Shape(TWO_FEATURES), "d_scale": Shape(FEATURE, within="sums")}
    shapes["d_shift"] = Shape(FEATURE, within="sums", half=1)
    return RowWork((Vector("mov", "sums", (0.0,)), *vectors, Vector("sink add", "sums")), shapes)


def _normalised(x: Array, kind: str, eps: float, dtype: str, parts: int) -> tuple[Any, Any]:
    """Return (x - mean) / deviation and 1 / deviation, with fp32 statistics."""
    x = core.rounded(x, dtype)
    width = np.float32(x.shape[-1])
    if kind != "rms":
        x = core.binary("sub", x, core.row_reduce(x, core.SUM, parts) / width)
    inverse = core.unary("rsqrt", core.row_reduce(x, core.SQUARES, parts) / width + np.float32(eps))
    return core.binary("mul", x, inverse), inverse


FAMILY = register(Norm())
