"""Attention: scores Q K^T, masked softmax, dropout, weighted sum P V.

Symbols: B samples, H heads of d features, q queries and kv keys per sample.

streamed    features H d over the c columns of a lane, the B q queries over the L R rows.  The keys of a
            sample circulate over the rows of that sample, each element triggers a multiply-accumulate
            over the t resident queries; then the values likewise::

                f = ceil(H d / c), t = ceil(B q / (L R))
                Q K^T  kv (f (s + ceil(t/w)) + s + ceil(rho t))      partial sums reduced over a head's columns
                P V    kv (f (s + ceil(t/w)) + s + ceil(t/2))        probabilities broadcast over a head's columns

stationary  one sample after another; its keys and values are stationary, features over rows, keys over
            columns; queries stream::

                k = ceil(H d / R), n = ceil(kv / C), h = ceil(H / R)
                per query  k (s + ceil(n/w)) + h n   +   n (s + ceil(k/w)) + k

grid        inference on P x P cores, fp16, as in WaferLLM: heads are treated as one wide head.  Prefill: score
            (only the keys move, sums are reduced along the row) and score x value are MeshGEMMs.  Decode
            (q = 1): two MeshGEMVs with K-tree all-reduces; the cache is kept balanced by shifting keys and
            values one core per token.  No backward pass.  Equations: :mod:`wse_sim.kernels.families.attention.cost`.

pairs       an attribute: queries over the rows, keys over the columns, as in a whole model on the fabric.  Equations:
            :mod:`wse_sim.kernels.families.attention.pairs`.

softmax     B H q kv elements at e cycles over all cores; attention dropout as many again.
backward    four products (dV, dP, dQ, dK) and a quarter of the special elements.

**Causal scores are computed in full** in these mappings (nothing is skipped above the diagonal), which agrees
with published training rates.  Keys of grouped queries are counted per query head. A dense mask is added to
the scores: one addition per score (forward).  Values may be wider or narrower than keys.

Source: calibration 2.1 (8, 9), 2.4.

Programs: one head of one sample (:mod:`wse_sim.kernels.families.attention.program`), prefill and decode of
the grid (:mod:`wse_sim.kernels.families.attention.grid`).  The option `part` selects one part: scores,
softmax or values; backward: products, scores again (recomputed) or softmax.  Bands of cost against program:
grid 3 %; streamed and stationary 5 % forward and 11 % backward from 12 queries or keys per core.  The costs
of both products are calibrated and leave out the words that a core sends, a fraction of 1 / (t + 2 t / f) of
a streamed product (t queries, f features per core), 1 / (k + 2 k / n) of the stationary value product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Unpack

from wse_sim.errors import KernelError
from wse_sim.graph import Kernel, Phase, Tensor, frozen
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.products import SUM_BYTES, TiledProduct, chain_latency
from wse_sim.kernels.blocks.training import FP32_BYTES
from wse_sim.kernels.contract.equations import add_rate, bytes_of, ceil_div, fill_cycles, per_core, words
from wse_sim.kernels.contract.family import (
    NONE,
    Attrs,
    Case,
    Cost,
    Dims,
    Family,
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
from wse_sim.kernels.contract.parameters import sizes
from wse_sim.kernels.contract.registry import register
from wse_sim.kernels.contract.tape import DATA, Tape
from wse_sim.kernels.families.attention.attributes import AttentionAttributes
from wse_sim.kernels.families.attention.cost import grid_cost, grid_tile, special_cycles
from wse_sim.kernels.families.attention.pairs import pair_cost, pair_footprint
from wse_sim.kernels.families.attention.probes import head_probes
from wse_sim.kernels.families.attention.program import head_program
from wse_sim.kernels.families.attention.reference import compute, gradient
from wse_sim.units import BYTES_PER_DTYPE


class Attention(Family):
    """The family of scaled dot-product attention."""

    name = "attention"
    role = Role.ATTENTION
    named_for = ("scaled_dot_product_attention",)
    dims = sizes(
        b="samples",
        heads="heads of queries",
        kv_heads="heads of keys and values",
        q="queries per head",
        kv="keys per head",
        d="features of a key per head",
    )
    mappings = ("stationary", "streamed", "grid")
    lies = (
        "streamed: queries over rows, a head's features over columns, keys circulate; stationary: "
        "features over rows, keys over columns, queries stream; grid: prefill, decode with a shifting"
        " cache"
    )
    programs = (
        "one head of one sample: streamed and stationary, forward and backward, or a part of either; "
        "grid: prefill and decode"
    )
    bands = "grid 3 %; streamed and stationary 5 % forward, 11 % backward from 12 queries (keys) per core"
    attributes = AttentionAttributes
    color = "#fdae6b"

    def flops(self, dims: Dims, attrs: Attrs = NONE, phase: Phase = Phase.FORWARD) -> Size:
        """Return 2 b heads q kv (d + value width), without causal savings; backward twice that, plus
        recomputed scores."""
        rows = dims["b"] * dims["heads"] * dims["q"] * dims["kv"]
        forward = 2 * rows * (dims["d"] + (AttentionAttributes.of(attrs).value_width or dims["d"]))
        if phase is Phase.FORWARD:
            return forward
        return 2 * forward + (forward // 2 if AttentionAttributes.of(attrs).recompute else 0)

    def flow(self, dims: Dims, attrs: Attrs = NONE) -> Flow:
        """Return the flow: all keys of a sample arrive before the first query; with pairs, all results leave
        at the end."""
        pairs = AttentionAttributes.of(attrs).pairs
        return Flow(rows=1 if pairs else dims["q"], is_barrier=True, parallel=pairs, sums_on_links=True)

    def lay(self, dims: Dims, attrs: Attrs = NONE) -> Lay:
        """Return the layout by pairs: queries and results over the rows; queries enter over one link, keys and values
        over another.

        A second moving column, which collects results, replaces a compute column. In training, sums along the columns take
        two more colors.
        """
        asked_for = AttentionAttributes.of(attrs)
        if not asked_for.pairs:
            return Lay()
        return Lay(
            gives_over="rows",
            least_rows=2,
            least_cols=3,
            more_colors=4 if asked_for.trains else 2,
            most_links=asked_for.bands,
        )

    def notes(self, attrs: Attrs) -> tuple[str, ...]:
        """Return a note that causal masks do not reduce the work."""
        return (
            ("causal masks are not exploited: all q x kv scores are computed and counted",)
            if AttentionAttributes.of(attrs).causal
            else ()
        )

    def matmul_phases(self, phase: Phase) -> int:
        """Return the number of products: two forward, four backward."""
        return 2 if phase is Phase.FORWARD else 4

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Return the bytes of resident keys and values (stationary), one key's partial sums and scores, and
        code."""
        phase, dtype, attrs = self.asked(tiling, how)
        size = bytes_of(dtype)
        if AttentionAttributes.of(tiling.options, attrs).pairs:
            return pair_footprint(dims, tiling, wafer, attrs)
        if tiling.mapping == "grid":
            queries, keys, features = grid_tile(dims, tiling)
            return Footprint(
                activations_bytes=(2.0 * keys + 2.0 * queries) * features * size + queries * keys * size,
                buffers_bytes=2.0 * keys * (features + queries) * size + SUM_BYTES * queries,
                code_bytes=wafer.kernel_code_bytes,
            )
        if tiling.mapping == "stationary":
            k, n = ceil_div(dims["heads"] * dims["d"], tiling.rows), ceil_div(dims["kv"], tiling.cols)
            k_values = ceil_div(
                dims["heads"] * (AttentionAttributes.of(attrs).value_width or dims["d"]), tiling.rows
            )
            heads_here = ceil_div(dims["heads"], tiling.rows)
            copies = 2 if phase is Phase.FORWARD else 4
            return Footprint(
                activations_bytes=1.0 * copies * (k + k_values) / 2 * n * size,
                buffers_bytes=2 * (k * size + heads_here * n * SUM_BYTES),
                code_bytes=wafer.kernel_code_bytes,
            )
        t = ceil_div(dims["b"] * dims["q"], tiling.lanes * tiling.rows)
        f = ceil_div(dims["heads"] * dims["d"], tiling.cols // tiling.lanes)
        scores = per_core(dims["b"] * dims["heads"] * dims["q"] * dims["kv"], tiling)
        return Footprint(
            activations_bytes=1.0 * scores * size,
            buffers_bytes=2 * (t * SUM_BYTES + f * size),
            code_bytes=wafer.kernel_code_bytes,
        )

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost of two products (four backward), and of softmax and dropout elements."""
        phase, dtype, attrs = self.asked(tiling, how)
        forward = phase is Phase.FORWARD
        if AttentionAttributes.of(tiling.options, attrs).pairs:
            return pair_cost(dims, tiling, wafer, phase, attrs)
        if tiling.mapping == "grid":
            if not forward:
                raise KernelError("attention 'grid' has no backward pass; use streamed or stationary")
            return grid_cost(dims, tiling, wafer, attrs)
        parts = self._parts(dims, tiling, wafer, phase, dtype, attrs)
        part = AttentionAttributes.of(tiling.options, attrs).part
        if part and part not in parts:
            raise KernelError(f"attention has no part '{part}' in this phase; use {', '.join(parts)}")
        return parts[part] if part else sum(parts.values(), Cost())

    def _parts(
        self, dims: Dims, tiling: Tiling, wafer: Wafer, phase: Phase, dtype: str, attrs: Attrs
    ) -> dict[str, Cost]:
        """Return the cost by part, streamed or stationary."""
        scores, values = _products(dims, tiling, wafer, dtype, attrs)
        elements = per_core(dims["b"] * dims["heads"] * dims["q"] * dims["kv"], tiling)
        softmax = Cost(special=elements * special_cycles(wafer, attrs, phase))
        if phase is Phase.FORWARD:
            masked = (
                {"mask": _mask(elements, dtype, wafer)}
                if AttentionAttributes.of(attrs).mask == "dense"
                else {}
            )
            return {"scores": scores, **masked, "softmax": softmax, "values": values}
        # If nothing was kept, the backward pass recomputes the scores.
        again = {"scores again": scores} if AttentionAttributes.of(attrs).recompute else {}
        return {"products": 2.0 * (scores + values), **again, "softmax": softmax}

    compute = staticmethod(compute)

    gradient = staticmethod(gradient)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return the program of one head of one sample: forward, backward, or the part that the attribute
        `part` names.

        Raises
        ------
        KernelError
            For a precision other than fp16, or where a line of cores holds several heads or samples.
        """
        dtype = self.asked(tiling, options).dtype
        if tiling.mapping == "grid":
            from wse_sim.kernels.families.attention.grid import grid_program

            return grid_program(dims, tiling, wafer, **options)
        if dtype != "fp16":
            raise KernelError(f"attention in {dtype} has no fabric program; use fp16 (sums are fp32)")
        return head_program(dims, tiling, wafer, **options)

    def probes(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> tuple[Probe, ...]:
        """Return separate probes of the products and of the softmax; none for the grid mapping."""
        phase, dtype, attrs = asked(how)
        if tiling.mapping == "grid" or dtype != "fp16":
            return ()
        parts = self._parts(dims, tiling, wafer, phase, dtype, attrs)
        return head_probes(parts, dims, tiling, phase, attrs)

    def keeps(self, kernel: Kernel, trained: frozenset[str], tensors: Mapping[str, Tensor]) -> Kept:
        """Return inputs, result and the logarithm of each row's sum; also weights and mask, unless they are
        recomputed.

        Only the part of a larger tensor that attention reads is kept (values next to rotated queries and
        keys).
        """
        dims, size = kernel.dims, BYTES_PER_DTYPE[kernel.dtype]
        rows = int(dims["b"] * dims["heads"] * dims["q"])
        scores = rows * dims["kv"]
        pairs = int(dims["b"] * dims.get("kv_heads", dims["heads"]) * dims["kv"])
        whole, parts_bytes = [*kernel.inputs[3:]], 0
        for name, elements in zip(kernel.inputs, (rows, pairs, pairs), strict=False):
            part = int(elements * dims["d"]) * size
            if len(kernel.inputs) >= 3 and name in tensors and tensors[name].bytes > part:
                parts_bytes += part
            else:
                whole.append(name)
        return Kept(
            (*whole, *kernel.outputs),
            own_bytes=rows * FP32_BYTES + parts_bytes,
            again_bytes=scores * size + (scores // 8 if AttentionAttributes.of(kernel.attrs).dropout else 0),
            serial_bytes=scores * size,
            serial_times=int(dims["heads"]),
        )

    def gradients(self, kernel: Kernel, gradient: str, tape: Tape) -> None:
        """Emit four products, or five if the scores are recomputed; products of operands that do not train
        count no FLOPs."""
        attrs = kernel.attrs if tape.recompute == "none" else frozen({**kernel.attrs, "recompute": True})
        outputs = tuple(tape.give(t) for t in tape.inputs(kernel))
        biases = tuple(tape.give_weight(p) for p in tape.weights(kernel))
        if outputs or biases:
            reads = tuple(dict.fromkeys((gradient, *kernel.inputs)))
            flops = int(self.flops(kernel.dims, attrs, DATA)) - self._flops_left_out(kernel, tape)
            tape.emit(kernel, "dx", DATA, reads, outputs + biases, attrs=attrs, flops=flops)

    def _flops_left_out(self, kernel: Kernel, tape: Tape) -> int:
        """Return the FLOPs of gradients that no operand needs.

        Two inputs are the queries, and keys that are also the values; one input is all three. With a mask or
        a parameter among the operands, all gradients count.
        """
        d, given = kernel.dims, kernel.inputs
        stated = AttentionAttributes.of(kernel.attrs)
        if not {*given} - tape.wanted or kernel.parameters or stated.mask or len(given) > 3:
            return 0
        q, k, v = given[0], given[min(1, len(given) - 1)], given[-1]
        of_q, of_k, of_v = (operand in tape.wanted for operand in (q, k, v))
        of_scores = of_q or of_k
        left = ((not of_q) + (not of_k)) * d["d"]
        left += ((not of_v) + (not of_scores)) * (stated.value_width or d["d"])
        return int(2 * d["b"] * d["heads"] * d["q"] * d["kv"] * left)


def _mask(elements: Size, dtype: str, wafer: Wafer) -> Cost:
    """Return the cost of a dense mask, which is added to the scores."""
    return Cost(compute=elements / add_rate(dtype, wafer), startup=wafer.vector_start_cycles)


def _products(dims: Dims, tiling: Tiling, wafer: Wafer, dtype: str, attrs: Attrs) -> tuple[Cost, Cost]:
    """Return the costs of Q K^T and P V: products with stationary queries, or with stationary keys."""
    queries, keys, heads = dims["b"] * dims["q"], dims["kv"], dims["heads"]
    width, wavelet = AttentionAttributes.of(attrs).value_width or dims["d"], wafer.wavelet_cycles
    kn, nk = (replace(tiling, options={**tiling.options, "orientation": way}) for way in ("kn", "nk"))
    how = Phase.FORWARD, dtype, attrs
    scores = TiledProduct(queries, heads * dims["d"], keys, kn, wafer, *how)
    if tiling.mapping == "stationary":
        # Every row of cores has sums of its heads; values are spread like keys, so their sums travel along rows.
        of_scores = scores.cost()
        heads_here = ceil_div(heads, tiling.rows)
        of_values = TiledProduct(queries, keys, heads * width, nk, wafer, *how).cost()
        return replace(of_scores, fabric=of_scores.fabric * heads_here), of_values
    # Sums are reduced over the columns of a head; probabilities are broadcast over them.
    of_head = chain_latency(ceil_div(scores.lane, heads), wafer)
    idle = fill_cycles(tiling.rows, tiling.cols, wafer) + of_head
    broadcast = keys * words(scores.tile[1], dtype) * wavelet
    of_values = TiledProduct(queries, heads * width, keys, kn, wafer, *how).cost()
    return replace(scores.cost(), idle=idle), replace(of_values, fabric=broadcast, idle=idle)


FAMILY = register(Attention())
