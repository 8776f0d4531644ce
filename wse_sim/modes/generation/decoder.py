"""Reads a decoder from its graph: the products of one token, and of a prompt, in a layer.

Everything is counted over the whole graph and divided by the number of layers (attention kernels), so blocks
may differ: a mixture of experts in every second one, norms on heads, keys for groups of heads. Products that
read the same vector are counted separately, as in the published kernels: one matrix for queries, keys and
values is three products.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from wse_sim.errors import ModelError
from wse_sim.graph import Kernel, KernelGraph, TensorKind
from wse_sim.hardware import Wafer
from wse_sim.kernels.contract.equations import SPECIAL_FUNCTIONS, ceil_div
from wse_sim.kernels.contract.family import Count, Link, Role, Size
from wse_sim.kernels.contract.registry import family, role_of
from wse_sim.modes.generation.grid import Lying, Sides, sides
from wse_sim.serialize import saved

# Short vector instructions of a layer: the published decode kernels have two norms, rotary positions and a gated
# network (`decode_layer_instructions` of a wafer); what other layers have more or less is counted here.
NORM_INSTRUCTIONS = 6  # square, sum, scale, weight, and the moves around an all-reduce
MEAN_INSTRUCTIONS = 3  # that a layer norm has in addition to those of a root-mean-square norm
ROTARY_INSTRUCTIONS = 6  # of queries or keys: two halves, two tables, a sum
GATE_INSTRUCTIONS = 2


@saved
@dataclass(frozen=True)
class Product:
    """A matrix of k inputs and n outputs that a token multiplies `times` times in a layer, with `operands`
    different vectors.

    With experts, there are `groups` such matrices and each token uses `share` of them; both are 1 without
    experts.
    """

    k: int
    n: int
    times: float
    operands: float
    groups: int = 1
    share: float = 1.0

    def lies(self, hidden: int, grid: Sides) -> tuple[Lying, ...]:
        """Return how its matrices are on the cores: with inputs over the rows of cores and outputs over the
        columns, or reversed."""
        rows, cols = sides(grid)
        back = min(self.times, self.returns(hidden))
        ways = (
            Lying(self.times - back, ceil_div(self.k, rows), ceil_div(self.n, cols), rows, vertical=True),
            Lying(back, ceil_div(self.k, cols), ceil_div(self.n, rows), cols, vertical=False),
        )
        return tuple(way for way in ways if way.times)

    def returns(self, hidden: int) -> float:
        """Return how often its sums run along the rows: results with features of the layer return to where
        its inputs are.

        Among the square matrices (queries, keys, values, output) one in four returns.
        """
        if self.n != hidden:
            return 0.0
        return 0.25 * self.times if self.k == hidden else self.times


@dataclass(frozen=True)
class LayerShape:
    """Sizes of a layer of the published kernels: it has a gated network, and every head has its own keys."""

    hidden: int
    ffn: int

    def work(self) -> LayerWork:
        """Return the layer as a list of products."""
        d, f = self.hidden, self.ffn
        # The published loop of the activation covers d, not f, elements of a token, but all of a prompt.
        return LayerWork(
            hidden=d, query=d, key=d, products=(Product(d, d, 4.0, 2.0), Product(d, f, 2.0, 1.0), Product(f, d, 1.0, 1.0)),
            activated=float(d), activated_in_prompt=float(f), tables=4 * d * d + 3 * d * f,
        )  # fmt: skip


@saved
@dataclass(frozen=True)
class LayerWork:
    """The work of a layer on one token; counts are means over the layers of a model."""

    hidden: int
    query: int  # total features of all heads
    key: int  # total features of all stored heads
    products: tuple[Product, ...]
    activated: float  # elements of a token with a special function
    activated_in_prompt: float
    tables: int  # weights of a layer
    norms: float = 2.0
    means: float = 0.0  # norms that also subtract a mean
    choices: float = 0.0  # experts that are selected, one after the other
    more_instructions: float = 0.0  # short vector instructions beyond those of the published kernels
    bits: int = 16  # of a stored weight
    unpack_cycles: float = 0.0  # of a weight that is stored in fewer bits and used in fp16
    expert_loads: tuple[float, ...] = ()  # probability that a token uses each expert; (): all equal
    is_identical: bool = False  # all tokens of a turn use the same experts
    is_apart: bool = False  # every expert has its own cores

    def weights_of_core(self, grid: Sides) -> float:
        """Return the elements of all weights of a layer on one core of a grid, including experts that a token
        does not use."""
        tiles = ((p, float(self.tile(p, grid))) for p in self.products)
        return sum(p.times / p.share * self.tables_of_core(p) * tile for p, tile in tiles)

    def has_squares(self, product: Product) -> bool:
        """Return whether the matrices of a product are on separate squares."""
        return self.is_apart and product.groups > 1

    def tables_of_core(self, product: Product) -> int:
        """Return the number of experts with a tile on each core."""
        return 1 if self.has_squares(product) else product.groups

    def tile(self, product: Product, grid: Sides) -> Size:
        """Return the elements of one matrix of a product on a core, averaged over matrices of both
        directions."""
        own = self.expert_sides(grid) if self.has_squares(product) else grid
        ways = product.lies(self.hidden, own)
        return sum(way.times * way.k * way.n for way in ways) / product.times

    @property
    def experts(self) -> int:
        """Number of experts of a layer; 1 if it has none."""
        return max((p.groups for p in self.products), default=1)

    @property
    def picked(self) -> tuple[tuple[float, int], ...]:
        """Probabilities that a token uses an expert, each with the number of experts that have it."""
        share = max((p.share for p in self.products if p.groups > 1), default=1.0)
        alike = share / self.experts
        return tuple(sorted(Counter(self.expert_loads).items())) or ((alike, self.experts),)

    def expert_sides(self, grid: Sides) -> tuple[Count, Count]:
        """Return the rows and columns of cores of one expert, if the grid is divided into equal parts."""
        across = math.isqrt(self.experts - 1) + 1
        rows, cols = (np.maximum(1, length // across) for length in sides(grid))
        return rows, cols

    @property
    def widest(self) -> int:
        """Outputs of the widest product, totalled over the experts of a token."""
        return max(round(p.n * p.share) for p in self.products)

    @property
    def statistics(self) -> float:
        """Number of all-reduces of one number: norms, means, softmax maximum and sum, maxima that select
        experts."""
        return self.norms + self.means + 2.0 + self.choices

    def instructions(self, wafer: Wafer) -> float:
        """Return the short vector instructions per token: those of the published kernels, corrected for this
        layer."""
        return max(1.0, wafer.decode_layer_instructions + self.more_instructions)

    @property
    def roots(self) -> float:
        """Number of square roots per token."""
        return self.norms

    @property
    def divisions(self) -> float:
        """Number of divisions per token: two per norm, and one in the softmax."""
        return 2.0 * self.norms + 1.0


@dataclass(frozen=True)
class Decoder:
    """A decoder: its layers, and the embedding and head around them."""

    layers: int
    context: int
    layer: LayerWork
    head: tuple[int, int] | None = None  # hidden and outputs of the head; None: the graph has none
    tables: int = 0  # elements of embeddings and head, tied ones once
    unpriced: tuple[tuple[str, int], ...] = ()  # families without a price here, and their kernels

    @property
    def hidden(self) -> int:
        """Features of the residual stream."""
        return self.layer.hidden

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on layers that mix tokens other than by attention."""
        if not self.unpriced:
            return ()
        listed = ", ".join(f"{count} of {family}" for family, count in self.unpriced)
        return (
            f"too fast: kernels that mix tokens other than by attention have no price in this mode ({listed}), nor their "
            f"state a place; 'layers' are the {self.layers} with attention, with the products of the others divided among them",
        )

    @property
    def key_width(self) -> int:
        """Features of the stored keys of a layer."""
        return self.layer.key


def stated_layer(model: Mapping[str, Any]) -> LayerShape | LayerWork:
    """Return a layer from its sizes: the published one, or a list of products if the sizes go beyond the
    published kernels.

    Those sizes are a head size (`head_dim`), norms on heads (`qk_norm`) and experts (`experts`,
    `experts_per_token`).
    """
    hidden, ffn = int(model["hidden"]), int(model["ffn"])
    if not any(model.get(name) for name in ("head_dim", "qk_norm", "experts")):
        return LayerShape(hidden, ffn)
    heads = int(model["heads"])
    width = int(model.get("head_dim") or hidden // heads)
    query, key = heads * width, int(model.get("kv_heads") or heads) * width
    groups = int(model.get("experts") or 1)
    share = float(model.get("experts_per_token") or 1) if groups > 1 else 1.0
    products = [
        Product(hidden, query, 1.0, 1.0),
        Product(hidden, key, 2.0, 0.0),
        Product(query, hidden, 1.0, 1.0),
        Product(hidden, ffn, 2.0 * share, 1.0, groups, share),
        Product(ffn, hidden, share, 1.0, groups, share),
    ]
    if groups > 1:
        products.append(Product(hidden, groups, 1.0, 1.0))
    on_heads = 2.0 * bool(model.get("qk_norm"))
    return LayerWork(
        hidden=hidden, query=query, key=key, products=tuple(products), activated=share * ffn,
        activated_in_prompt=share * ffn, tables=round(sum(p.times / p.share * p.groups * p.k * p.n for p in products)),
        norms=2.0 + on_heads, choices=share if groups > 1 else 0.0,
        more_instructions=NORM_INSTRUCTIONS * on_heads,
    )  # fmt: skip


def decoder_of(graph: KernelGraph) -> Decoder:
    """Read a decoder from the inference graph of its whole context.

    Raises
    ------
    ModelError
        If it is a training graph, has no attention, or its attention sees later tokens.
    """
    return graph.remembered("decoder", lambda: _Reader(graph).decoder())


def _is_dense(kernel: Kernel) -> bool:
    """Return whether a kernel is a product with one weight matrix."""
    return role_of(kernel) is Role.PRODUCT and "groups" not in kernel.dims


def _link(kernel: Kernel) -> Link | None:
    return family(kernel.family).link(kernel.attrs)


class _Reader:
    """Counts the kernels of a graph, per token and layer."""

    def __init__(self, graph: KernelGraph) -> None:
        self.graph = graph
        if graph.training:
            raise ModelError(
                f"'{graph.name}' is a training graph; generation needs the inference graph of a decoder"
            )
        self.attention = [kernel for kernel in graph.kernels if role_of(kernel) is Role.ATTENTION]
        if not self.attention:
            raise ModelError(
                f"'{graph.name}' has no kernel of attention, so it is not a decoder that generation knows; give a model "
                "whose attention is scaled_dot_product_attention"
            )
        if not all(kernel.attrs.get("causal", False) for kernel in self.attention):
            raise ModelError(
                f"'{graph.name}' has attention that sees later tokens; generation needs a decoder with causal attention"
            )
        self.layers = len(self.attention)
        self.tokens = int(self.attention[0].dims["q"]) * int(self.attention[0].dims["b"])
        self.context = int(self.attention[0].dims["kv"])
        self.head = self._head()

    def decoder(self) -> Decoder:
        first = self.attention[0].dims
        width = int(first["d"])
        hidden = self._hidden()
        norms = [kernel for kernel in self.graph.kernels if role_of(kernel) is Role.NORM]
        means = sum(kernel.attrs.get("kind") == "layer" for kernel in norms)
        rotary = sum(role_of(kernel) is Role.POSITIONS for kernel in self.graph.kernels)
        chosen = sum(
            int(k.dims["k"])
            for k in self.graph.kernels
            if role_of(k) is Role.CHOICE and self._per_token(k, "rows")
        )
        activated = sum(self._activated()) / self.layers
        embeddings = [kernel for kernel in self.graph.kernels if role_of(kernel) is Role.TABLE]
        outside = {
            name
            for kernel in (*embeddings, *([self.head] if self.head else []))
            for name in kernel.parameters
        }
        weights = [t for t in self.graph.tensors.values() if t.kind is TensorKind.PARAMETER]
        more_instructions = (
            NORM_INSTRUCTIONS * (len(norms) / self.layers - 2.0)
            + MEAN_INSTRUCTIONS * means / self.layers
            + ROTARY_INSTRUCTIONS * (rotary / self.layers - 2.0)
            - GATE_INSTRUCTIONS * (not self._is_gated())
            + sum(self._biases()) / self.layers
        )
        layer = LayerWork(
            hidden=hidden,
            query=int(first["heads"]) * width,
            key=int(first["kv_heads"]) * width,
            products=self._products(),
            activated=activated,
            activated_in_prompt=activated,
            tables=round(sum(t.elements for t in weights if t.name not in outside) / self.layers),
            norms=len(norms) / self.layers,
            means=means / self.layers,
            choices=chosen / self.layers,
            more_instructions=more_instructions,
        )
        head = None if self.head is None else (int(self.head.dims["k"]), int(self.head.dims["n"]))
        return Decoder(
            layers=self.layers,
            context=self.context,
            layer=layer,
            head=head,
            tables=sum(t.elements for t in weights if t.name in outside),
            unpriced=self._unpriced(hidden),
        )

    def _unpriced(self, hidden: int) -> tuple[tuple[str, int], ...]:
        """Return mixers without a cost here: those with results as large as the hidden states; smaller ones
        select experts."""
        wide = (
            kernel.family
            for kernel in self.graph.kernels
            if role_of(kernel) is Role.MIXER
            and sum(self.graph.tensors[name].elements for name in kernel.outputs) >= self.tokens * hidden
        )
        return tuple(sorted(Counter(wide).items()))

    def _head(self) -> Kernel | None:
        """Return the product whose result is the output of the graph."""
        outputs = {t.name for t in self.graph.tensors.values() if t.kind is TensorKind.OUTPUT}
        last = [k for k in self.graph.kernels if _is_dense(k) and not outputs.isdisjoint(k.outputs)]
        return last[-1] if last else None

    def _hidden(self) -> int:
        """Return the features of the residual stream: the width of most norms, or of the embedding."""
        widths = Counter(int(k.dims["cols"]) for k in self.graph.kernels if role_of(k) is Role.NORM)
        wide = {cols: count for cols, count in widths.items() if cols != int(self.attention[0].dims["d"])}
        for kernel in self.graph.kernels:
            if role_of(kernel) is Role.TABLE:
                return int(kernel.dims["cols"])
        return max(
            wide or widths, key=lambda cols: (wide or widths)[cols], default=int(self.attention[0].dims["d"])
        )

    def _per_token(self, kernel: Kernel, dim: str) -> bool:
        return int(kernel.dims.get(dim, 0)) == self.tokens

    def _products(self) -> tuple[Product, ...]:
        """Return all products with weights except the head; equal products are merged."""
        found: dict[tuple[int, int, int, float], list[float]] = {}
        seen: set[str] = set()
        for kernel in self.graph.kernels:
            if kernel is self.head or not kernel.parameters or role_of(kernel) is not Role.PRODUCT:
                continue
            k, n, share = int(kernel.dims["k"]), int(kernel.dims["n"]), int(kernel.dims["m"]) / self.tokens
            groups = int(kernel.dims.get("groups", 1))
            for part in self._parts(n) if groups == 1 else (n,):
                entry = found.setdefault((k, part, groups, share), [0.0, 0.0])
                entry[0] += share
                entry[1] += kernel.inputs[0] not in seen
                seen.add(kernel.inputs[0])
        return tuple(
            Product(k, n, times / self.layers, operands / self.layers, groups, share)
            for (k, n, groups, share), (times, operands) in found.items()
        )

    def _parts(self, n: int) -> tuple[int, ...]:
        """Return the parts of a product: three if one matrix makes queries, keys and values."""
        dims = self.attention[0].dims
        query, key = (int(dims[name]) * int(dims["d"]) for name in ("heads", "kv_heads"))
        return (query, key, key) if n == query + 2 * key else (n,)

    def _activated(self) -> Iterator[float]:
        """Yield the elements of a token that need a special function, by kernel."""
        for kernel in self.graph.kernels:
            said = {str(kernel.attrs.get(name, "")) for name in ("function", "ops", "fused")}
            names = {name for text in said for name in text.split(",")}
            dense, dims = _is_dense(kernel), kernel.dims
            if names & SPECIAL_FUNCTIONS and (dense or _link(kernel) is not None):
                elements = int(dims["m"]) * int(dims["n"]) if dense else int(dims["elements"])
                yield elements / self.tokens

    def _is_gated(self) -> bool:
        """Return whether a chain of operators multiplies two tensors: a function and its gate in one pass."""
        links = (_link(kernel) for kernel in self.graph.kernels)
        return any(link and "," in link.ops and "mul" in link.ops and link.operands > 1 for link in links)

    def _biases(self) -> Iterator[int]:
        for kernel in self.graph.kernels:
            if _is_dense(kernel) and kernel is not self.head:
                yield int("bias" in str(kernel.attrs.get("fused", "")).split(","))
