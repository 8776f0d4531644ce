"""Attention by pairs of a query and a key, in inference and training: partition of the tokens, and the work
on a core's pairs.

Rows of cores have the queries and columns the keys of a sample, `t` and `n` on the fullest core
(:mod:`wse_sim.kernels.families.attention.pairs`); other cores have one less if the tokens are not divisible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod, sqrt
from typing import NamedTuple, Protocol

import numpy as np

from wse_sim.fabric.format.builder import Buffer, scalar
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.fabric.format.program import Fn
from wse_sim.graph import Kernel, KernelGraph, TensorKind
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.kernels.contract.family import Tiling
from wse_sim.kernels.families.attention.attributes import AttentionAttributes
from wse_sim.kernels.families.attention.pairs import pair_tile
from wse_sim.whole.regions.contract import (
    Floats,
    IntArray,
    PlacedKernel,
    check_fixed,
    refused,
)

QUERIES, KEYS = 1, 2  # microthreads
MASKED = -3e4  # below every score; its exponential is zero


class Vectors(Protocol):
    """A buffer, or the part of one that belongs to a sample."""

    def dsd(self, offset: int = 0, length: int | None = None, stride: int = 1, *, step: int = 0) -> Operand:
        """Return some of its elements, as :meth:`wse_sim.fabric.format.builder.Buffer.dsd` does."""


class PairBuffers(NamedTuple):
    """What a core stores of a sample.

    `queries` and `keys` are numbers of tokens; the vectors are queries, keys with values, scores, fp16
    weights, the mask of the scores, and results.
    """

    queries: int
    keys: int
    q: Vectors
    kv: Vectors
    scores: Vectors
    weights: Vectors
    mask: Vectors
    out: Vectors


def part_of(buffer: Buffer, length: int) -> Buffer:
    """Return the first `length` elements of a buffer, for a core with less data than the fullest one."""
    return replace(buffer, length=length)


class AttentionByPairs(PlacedKernel):
    """Softmax of scaled products of queries and keys, times values: layout of the region, and the work on a
    core's pairs."""

    family = "attention"
    title = "attention"

    @classmethod
    def tokens_of(cls, graph: KernelGraph, kernel: Kernel) -> int:
        """Return the rows of a sample."""
        return int(kernel.dims["q"])

    @classmethod
    def check(cls, graph: KernelGraph, kernel: Kernel) -> None:
        """Check that queries, keys and values belong to one sample and have equal numbers of heads, with no
        mask but one that depends on no input."""
        dims, attrs = kernel.dims, AttentionAttributes.of(kernel.attrs)
        if len(set(kernel.inputs)) != 3:
            raise refused(
                kernel,
                f"reads {len(set(kernel.inputs))} tensors, attention on the fabric queries, keys and values",
                "give each its own layer",
            )
        check_fixed(kernel, attrs.pairs)
        if attrs.dropout or bool(attrs.mask) != bool(kernel.parameters):
            raise refused(
                kernel,
                "has a mask that depends on inputs or trains, or dropout, in addition to its operands",
                "leave them out, or use is_causal",
            )
        if attrs.mask and not is_mask(graph, kernel):
            raise refused(
                kernel,
                f"has a mask of {' and '.join(str(graph.tensors[name].shape) for name in kernel.parameters)} that is not one number "
                "for every score of a sample",
                "make it a buffer of (queries, keys), with or without a dimension of heads before them",
            )
        if attrs.unusual:
            what = {
                "scores": "changes its scores by more than a factor and a mask",
                "order": "reads features that are not stored head by head",
            }[attrs.unusual]
            raise refused(
                kernel, what, "use torch.nn.functional.scaled_dot_product_attention on (B, T, H, d)"
            )
        heads, tokens = int(dims["heads"]), int(dims["q"])
        shared = int(dims.get("kv_heads", heads))
        if shared != heads and not kernel.access.heads:
            raise refused(
                kernel,
                f"shares {shared} heads of keys among {heads} of queries in an order that is not known",
                "give queries, keys and values equal numbers of heads",
            )
        features = int(heads * dims["d"])
        sizes = [int(dims["b"]) * tokens * count * int(dims["d"]) for count in (heads, shared, shared)]
        shapes = [graph.tensors[name].shape for name in kernel.inputs]
        if dims["q"] != dims["kv"] or heads % shared or [prod(shape) for shape in shapes] != sizes:
            raise refused(
                kernel,
                f"has operands of shapes {', '.join(map(str, shapes))}, attention on the fabric three of {tokens} tokens of "
                f"{features} features",
                "give queries, keys and values equal numbers of tokens and heads",
            )

    def parted(self, cols: int) -> tuple[int, int]:
        """Return the rows and columns that the partition of the tokens needs, given `cols` compute columns."""
        place = Tiling(self.region.rows, cols, "stationary")
        queries, keys = pair_tile(self.tokens, place, self.kernel.attrs)
        return ceil_div(self.tokens, int(queries)), ceil_div(self.tokens, int(keys))

    def parts(self, lines: int) -> list[IntArray]:
        """Return contiguous blocks of tokens for every row, or for every column."""
        return np.array_split(np.arange(self.tokens), lines)

    @property
    def heads(self) -> int:
        """Number of heads, H."""
        return int(self.kernel.dims["heads"])

    @property
    def width(self) -> int:
        """Features of a head, d."""
        return int(self.kernel.dims["d"])

    @property
    def features(self) -> int:
        """Features of a token, H d."""
        return self.heads * self.width

    @property
    def group(self) -> int:
        """Heads of queries that share a head of keys and values."""
        return self.heads // int(self.kernel.dims.get("kv_heads", self.heads))

    @property
    def key_features(self) -> int:
        """Features of a key or a value."""
        return self.features // self.group

    @property
    def queries(self) -> int:
        """Queries of the fullest core."""
        return ceil_div(self.tokens, self.height)

    @property
    def keys(self) -> int:
        """Keys of the fullest core."""
        return ceil_div(self.tokens, self.cols)

    @property
    def scale(self) -> float:
        """Factor of the scores; 1 / sqrt(d) by default."""
        return float(self.kernel.attrs.get("scale", 0.0)) or 1 / sqrt(self.width)

    @property
    def masks(self) -> bool:
        """Whether values are added to the scores: a query ignores later keys, or the model has a mask."""
        return AttentionAttributes.of(self.kernel.attrs).masks

    # ---- pieces of the program ------------------------------------------------------------------------------------

    def _scores(self, core: CoreClass, held: PairBuffers) -> None:
        self._products(core, held, held.q)
        cap = AttentionAttributes.of(self.kernel.attrs).cap
        core.mul(held.scores.dsd(), held.scores.dsd(), scalar(self.scale / cap if cap else self.scale))
        if cap:
            period = round(1000 * self.wafer.special_element_cycles)
            core.map(Fn.TANH, held.scores.dsd(), held.scores.dsd(), dtype="fp32", period=period)
            core.mul(held.scores.dsd(), held.scores.dsd(), scalar(cap))
        if self.masks:
            core.add(held.scores.dsd(), held.scores.dsd(), held.mask.dsd())

    def _products(self, core: CoreClass, held: PairBuffers, rows: Vectors, first: int = 0) -> None:
        """Multiply every query row with every key (`first`: 0) or every value (1)."""
        t, n, d = held.queries, held.keys, self.width
        core.mov(held.scores.dsd(), scalar(0.0))
        core.busy(round(self.wafer.vector_start_cycles))
        for a, key, one in np.ndindex(t, n, self.group):
            with core.loop(self.heads // self.group):
                core.mac(
                    held.scores.dsd(one * t * n + a * n + key, 1, 0, step=self.group * t * n),
                    rows.dsd(a * self.features + one * d, d, step=self.group * d),
                    held.kv.dsd((2 * key + first) * self.key_features, d, step=d),
                    length=d, dtype="mixed", start="none",
                )  # fmt: skip

    def _values(self, core: CoreClass, held: PairBuffers) -> None:
        core.mov(held.weights.dsd(), held.scores.dsd(), dtype="mixed")
        self._to_queries(core, held, held.weights, first=1)

    def _to_queries(self, core: CoreClass, held: PairBuffers, weights: Vectors, first: int) -> None:
        """Sum keys (`first`: 0) or values (1) for every query, weighted by `weights`."""
        t, n, d = held.queries, held.keys, self.width
        core.busy(round(self.wafer.vector_start_cycles))
        for a, key, one in np.ndindex(t, n, self.group):
            with core.loop(self.heads // self.group):
                out = held.out.dsd(a * self.features + one * d, d, step=self.group * d)
                token = held.kv.dsd((2 * key + first) * self.key_features, d, step=d)
                weight = weights.dsd(one * t * n + a * n + key, 1, 0, step=self.group * t * n)
                weighted(core, out, token, weight, d, is_first=key == 0)

    # ---- values ----------------------------------------------------------------------------------------------------

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return the mask of every core for its pairs; empty without a mask."""
        if not self.masks:
            return {}
        size, tokens = self.heads * self.queries * self.keys, self.tokens
        if self.kernel.parameters:
            whole = np.maximum(weights[self.kernel.parameters[0]].reshape(-1, tokens, tokens), MASKED)
        else:
            whole = np.triu(np.full((1, tokens, tokens), MASKED, np.float32), 1)
        whole = np.broadcast_to(whole, (self.heads, tokens, tokens))
        mask = np.zeros((self.height, self.cols, size), np.float32)
        for i, queries in enumerate(self.parts(self.height)):
            for j, keys in enumerate(self.parts(self.cols)):
                own = whole[:, queries][:, :, keys].reshape(-1)
                mask[i, j, : own.size] = own
        return {f"{self.name}.mask": mask}


def is_mask(graph: KernelGraph, kernel: Kernel) -> bool:
    """Return whether attention has one constant mask, with a number for every score of a sample, of one head or all."""
    heads, tokens = int(kernel.dims["heads"]), int(kernel.dims["q"])
    held = [graph.tensors[name] for name in kernel.parameters]
    shapes = [(count, tokens, tokens) for count in (1, heads)]
    return len(held) == 1 and held[0].kind is TensorKind.CONSTANT and held[0].shape in shapes


def weighted(
    core: CoreClass, out: Operand, vector: Operand, weight: Operand, length: int, *, is_first: bool
) -> None:
    """Multiply a vector by a weight, and add the product to `out` unless it is the first one."""
    if is_first:
        core.mul(out, vector, weight, length=length, dtype="mixed", start="none")
    else:
        core.fmac(out, out, vector, weight, length=length, dtype="mixed", start="none")
