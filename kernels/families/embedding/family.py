"""Embedding: rows vectors of cols elements gathered from a table of vocab rows.

Mapping, streamed: the vectors of a core row's tokens enter at the west edge and travel along the row; the
first link of the row carries all of them.  Stationary: vocab of the table over rows, cols over columns; each
token id is multicast and the owning row sends its vector down the column.

    streamed    T = ceil(rows/R) words(cols) + fill of one row + o - (hop + 2 T_R + 1)
    stationary  T = rows (task + ceil(cols/C) / 2) + fill
    backward    the same words in the opposite direction, added (scatter-add) at their destination

Source: link width and data task cost; table look-up on the wafer is not published.
Program, streamed: a feeder column sends the pieces of the first core of every row, then of the second; the
last word of each piece switches the router of its core, so that the next piece passes.  The others: see
:mod:`wse_sim.kernels.families.embedding.lookup`.  Band: 2 % (streamed), 5 % (at rest, from 20 tokens: pieces are relayed down the column).
"""

from __future__ import annotations

from typing import Unpack

import numpy as np

from wse_sim.fabric.format.builder import Switch, fabric_in, fabric_out
from wse_sim.graph import Kernel, Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.base_families import OnRows
from wse_sim.kernels.blocks.lines import new_builder
from wse_sim.kernels.blocks.probes import ROUNDS, SIDE
from wse_sim.kernels.blocks.products import weight_bytes
from wse_sim.kernels.blocks.training import input_gradient, weight_gradient
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.equations import bytes_of, ceil_div, fill_cycles, words
from wse_sim.kernels.contract.family import (
    Array,
    Case,
    Cost,
    Dims,
    Footprint,
    How,
    Probe,
    ProgramOptions,
    Role,
    Tiling,
    asked,
)
from wse_sim.kernels.contract.parameters import sizes
from wse_sim.kernels.contract.registry import register
from wse_sim.kernels.contract.tape import Tape
from wse_sim.kernels.families.embedding.lookup import (
    gather_program,
    gradient_program,
    streamed_gradient_program,
)


class Embedding(OnRows):
    """The family of table look-ups."""

    name = "embedding"
    cheaper = "look fewer rows up at a time; the pipelined mode leaves the table on the wafer"
    role = Role.TABLE
    dims = sizes(rows="vectors that are looked up", cols="features of a vector", vocab="vectors of the table")
    mappings = ("stationary", "streamed")
    lies = "streamed: tokens over rows, features over columns; stationary: vocabulary over rows"
    programs = "both mappings; gather and scatter-add"
    bands = "streamed 2 %, stationary 5 %"
    color = "#c7e9c0"

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Bytes per core: code, one vector in flight, and the core's part of the table if it is stationary."""
        phase, dtype, attrs = self.asked(tiling, how)
        vector = 2.0 * ceil_div(dims["cols"], tiling.cols) * bytes_of(dtype)
        if tiling.mapping == "streamed":
            return Footprint(buffers_bytes=vector, code_bytes=wafer.kernel_code_bytes)
        per_weight = weight_bytes(tiling, attrs, dtype, phase)
        table = 1.0 * ceil_div(dims["vocab"], tiling.rows) * ceil_div(dims["cols"], tiling.cols) * per_weight
        return Footprint(weights_bytes=table, buffers_bytes=vector, code_bytes=wafer.kernel_code_bytes)

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost: words over the edge links (streamed), or a task and a vector per token
        (stationary)."""
        dtype = self.asked(tiling, how).dtype
        idle = fill_cycles(tiling.rows, tiling.cols, wafer)
        if tiling.mapping == "streamed":
            per_row = ceil_div(dims["rows"], tiling.rows) * words(dims["cols"], dtype)
            # Every row has its own edge link; the receiving instruction starts while the first word travels.
            idle = fill_cycles(1, tiling.cols, wafer) + 0.0 * per_row
            first = wafer.hop_cycles + wafer.handover_cycles
            startup = np.maximum(0.0, wafer.vector_start_cycles - first)
            return Cost(fabric=per_row * wafer.wavelet_cycles, startup=startup, idle=idle)
        piece = words(ceil_div(dims["cols"], tiling.cols), dtype) * wafer.wavelet_cycles
        tokens = dims["rows"]
        return Cost(
            ramp=1.0 * tokens * piece, startup=tokens * (wafer.data_task_cycles + 0.0 * piece), idle=idle
        )

    def compute(self, ids: Array, table: Array, *, dtype: str = "fp32") -> Array:
        """Return the rows of the table by id."""
        return core.rounded(table, dtype)[np.asarray(ids)]

    def gradient(self, ids: Array, g: Array, vocab: int, *, dtype: str = "fp32") -> Array:
        """Return the gradients, scatter-added into a table of `vocab` rows in fp32."""
        return core.rounded(core.scatter_add(ids, g, vocab), dtype)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return the program of the gather, or of the gradient's transport and sums, in both mappings."""
        phase, dtype, _ = self.asked(tiling, options, "fp32")
        rows, cols = int(tiling.rows), int(tiling.cols)
        tokens, f = int(dims["rows"]), ceil_div(int(dims["cols"]), cols)
        forward, seed = phase is Phase.FORWARD, int(options.get("seed", 0))
        if tiling.mapping == "streamed":
            t = ceil_div(tokens, rows)
            if not forward:
                return streamed_gradient_program(rows, cols, t, f, wafer, dtype, seed)
            return self._streamed_gather(rows, cols, t, f, int(dims["vocab"]), wafer, dtype, seed)
        at_rest = gather_program if forward else gradient_program
        return at_rest(rows, cols, tokens, f, ceil_div(int(dims["vocab"]), rows), wafer, dtype, seed)

    def _streamed_gather(
        self, rows: int, cols: int, t: int, f: int, vocab: int, wafer: Wafer, dtype: str, seed: int
    ) -> Case:
        """Return a program in which each row of cores receives the vectors of its tokens, one piece per
        column."""
        rng = np.random.default_rng(seed)
        table = rng.integers(-9, 9, (vocab, cols * f)).astype(np.float32)
        ids = rng.integers(0, len(table), (rows, t))
        pieces = self.compute(ids, table).reshape(rows, t, cols, f).swapaxes(1, 2)
        b = new_builder(rows, cols + 1, wafer)
        vectors = b.buffer("vectors", t * cols * f, dtype, (slice(None), 0))
        y = b.buffer("y", t * f, dtype, (slice(None), slice(1, None)))
        feeder, core = b.core_class("feeder"), b.core_class("core")
        for j in range(cols):
            feeder.mov(fabric_out(0, "path"), vectors.dsd(j * t * f, t * f), dtype=dtype, start="none")
        core.mov(y.dsd(), fabric_in(0), dtype=dtype)
        b.place(feeder, (slice(None), 0))
        b.place(core, (slice(None), slice(1, None)))
        b.route(0, (slice(None), 0), rx="R", tx="E")
        if cols > 1:
            b.route(0, (slice(None), slice(1, cols)), rx="W", tx="R", switch=Switch([{"rx": "W", "tx": "E"}]))
        b.route(0, (slice(None), cols), rx="W", tx="R")
        expected = pieces.reshape(rows, cols, t * f)
        inputs = {"vectors": expected.reshape(rows, 1, -1)}
        return Case(b.build(), b.config, inputs, {"y": expected})

    def probes(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> tuple[Probe, ...]:
        """Return a probe on a few rows and columns with the pieces of the plan, stepped by token."""
        phase, dtype, _ = asked(how)
        cost = self.cost(dims, tiling, wafer, **how)
        f = int(ceil_div(dims["cols"], tiling.cols))
        streamed = tiling.mapping == "streamed"
        # Columns of a streamed row share its link; those of a stationary table are equal and independent.
        rows, cols = (1, SIDE) if streamed else (SIDE, 1)
        return (
            Probe(
                part="gather" if phase is Phase.FORWARD else "gradient",
                family=self.name,
                dims={"cols": f * cols, "vocab": SIDE * rows},
                tiling=Tiling(rows, cols, tiling.mapping),
                step="rows",
                start=ROUNDS,
                cost=Cost(
                    fabric=cost.fabric,
                    ramp=cost.ramp,
                    startup=0.0 * cost.startup if streamed else cost.startup,
                ),
                tile=f"{f} features of a vector",
                dtype=dtype,
                phase=phase,
            ),
        )

    def gradients(self, kernel: Kernel, gradient: str, tape: Tape) -> None:
        """Emit the scatter-add of gradients into the table; if the table is an activation, this is its
        gradient."""
        if not weight_gradient(kernel, (*kernel.inputs, gradient), tape):
            input_gradient(kernel, (gradient,), tape)


FAMILY = register(Embedding())
