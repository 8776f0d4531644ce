"""Layer and RMS norm: whole tokens on all cores of the region, block by block.

Symbols: T tokens of D features per sample on n cores, at most T of R C, in a serpentine over the columns;
blocks of b tokens::

    inlet > block by block, from core to core >      core: statistics, scale, shift      > back along the cores and out

Cores are independent, so there are no collectives. In a round every core takes a block, n b tokens in all.
The last round of a sample spreads the remaining tokens evenly: the first cores have one more, and cores
without any are skipped. Cores receive and send in token order, and the outlet is the core that receives
first. Instructions, blocks and price, words included, are those of the kernel itself
(:mod:`wse_sim.kernels.blocks.token_blocks`).

A core stores its tokens contiguously as they arrived, so one instruction receives a block and one sends it;
the vectors of a feature are strided. Two blocks of tokens and two of results are interleaved, four elements
apart: so all elements of a block are in one memory bank, and the statistics in another. One link carries the
tokens: T D / 2 words per sample, which the price of the plan includes as `link_words`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from wse_sim.fabric.format.builder import Buffer, Builder, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.fabric.format.program import Command
from wse_sim.graph import Kernel, KernelGraph, Phase
from wse_sim.kernels.blocks.line_programs import RowWork
from wse_sim.kernels.blocks.line_stages import MATRIX, Lines, Sharing
from wse_sim.kernels.blocks.rounds import pitch
from wse_sim.kernels.blocks.token_blocks import TokenBlocks
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.kernels.contract.family import Tiling
from wse_sim.kernels.families.norm import affine_of, blocks_of
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import (
    PAIR,
    Floats,
    Inlet,
    PlacedKernel,
    Ports,
    RegionKind,
    refused,
    rows_in_turn,
)
from wse_sim.whole.regions.turns import (
    advance_of,
    blocks_in_turn,
    deal,
    receive_all,
    route_senders,
    route_takers,
    winding,
)

RECEIVE, SEND = 1, 2  # microthreads
SIDES = 4  # two blocks of tokens, two of results


def affine_parts(kernel: Kernel) -> dict[str, object]:
    """Return the attribute of a norm with fewer parameters than its kind: only a scale, or none."""
    if kernel.family != "norm" or len(kernel.parameters) >= len(affine_of(kernel.attrs)):
        return {}
    return {"affine": ("none", "scale")[len(kernel.parameters)]}


class NormPlace(PlacedKernel):
    """A normalization over the features of every token, on cores that receive tokens in sequence."""

    family = "norm"
    title = "layer and RMS norms"

    @classmethod
    def tokens_of(cls, graph: KernelGraph, kernel: Kernel) -> int:
        """Return the rows of a sample."""
        return int(kernel.dims["rows"]) // graph.samples

    @classmethod
    def check(cls, graph: KernelGraph, kernel: Kernel) -> None:
        """Check for a layer or RMS norm of one operand; a shift requires a scale."""
        kind = str(kernel.attrs.get("kind", "layer"))
        if kind not in ("layer", "rms"):
            raise refused(kernel, f"is a {kind} norm", "a whole model on the fabric has layer and rms norms")
        has = affine_of(kernel.attrs)
        if len(kernel.inputs) != 1 or len(kernel.parameters) != len(has):
            raise refused(
                kernel,
                f"has {len(kernel.inputs)} operands and {len(kernel.parameters)} parameters, a {kind} norm on the "
                f"fabric one and {len(has)}",
                "scale and shift by parameters of the norm",
            )
        if has == ("shift",):
            raise refused(kernel, "has a shift and no scale", "give it a scale of ones")

    @property
    def features(self) -> int:
        """Features of a token."""
        return int(self.kernel.dims["cols"])

    @property
    def inlets(self) -> tuple[Inlet, ...]:
        """One inlet, next to the first core."""
        return (Inlet(self.kernel.inputs[0], (self.top, self.left - 1)),)


def apart(work: RowWork) -> RowWork:
    """Return the same instructions, except that the last one writes to a result buffer instead of over the
    token."""
    *before, last = work.vectors
    return RowWork((*before, replace(last, to="result")), {**work.shapes, "result": work.shapes["x"]})


class NormRegion(NormPlace, RegionKind):
    """A norm in inference."""

    own_colors = 1

    def extent(self) -> tuple[int, int]:
        """Return the rows and columns of the serpentine that the tokens need."""
        rows = rows_in_turn(self.region, self.wafer)
        count = min(self.tokens, rows * self.compute_cols)
        return min(count, rows), ceil_div(count, rows)

    @cached_property
    def senders(self) -> tuple[Cell, ...]:
        """All cores that have tokens, in token order."""
        count = min(self.tokens, rows_in_turn(self.region, self.wafer) * self.compute_cols)
        return winding(self.top, self.left, self.height, count)

    @property
    def link_words(self) -> Mapping[tuple[Cell, Cell], float]:
        """Words per sample of tokens passed along the cores, and of results on their way back."""
        words, count = self.tokens * self.features / PAIR, len(self.senders)
        links = pairwise([self.inlets[0].cell, *self.senders])
        return {**super().link_words, **{link: words * (count - i) / count for i, link in enumerate(links)}}

    @cached_property
    def blocks(self) -> TokenBlocks:
        """The kernel's own price.

        Raises
        ------
        ModelError
            If a token does not fit in a core.
        """
        dims, place = self.kernel.dims, Tiling(1, 1, "stationary")
        found = blocks_of(dims, place, self.wafer, Phase.FORWARD, "fp16", self.kernel.attrs)
        if found is None:
            raise refused(
                self.kernel,
                f"has tokens of {self.features} features, and a core does not have room for two of them and two results",
                "use fewer features",
            )
        return found

    @cached_property
    def work(self) -> RowWork:
        """The instructions; the last one writes to a result buffer, so that the next token can arrive
        meanwhile."""
        return apart(self.blocks.work)

    @cached_property
    def rounds(self) -> tuple[int, int, tuple[int, ...]]:
        """Full rounds of a sample, tokens per block in them, and tokens of every core in the last round
        (empty without one)."""
        cores = len(self.senders)
        block = self.blocks.sizes(ceil_div(self.tokens, cores))[0]
        full, left = divmod(self.tokens, cores * block)
        least, more = divmod(left, cores)
        return full, block, tuple(least + (i < more) for i in range(cores)) if left else ()

    def build(self, b: Builder, ports: Ports, samples: int) -> None:
        """Write the inlet, and one core class per send order."""
        full, block, last = self.rounds
        feed, source = ports.own[0], fabric_in(ports.inward[0])
        takers, count = [size for size in last if size], len(self.senders)
        inlet = b.core_class(f"{self.name} inlet")
        with inlet.loop(samples):
            with inlet.loop(full):
                if full:
                    deal(inlet, feed, [[(source, block * self.features)]] * count, count)
            if takers:
                deal(inlet, feed, [[(source, size * self.features)] for size in takers], len(takers))
        b.place(inlet, self.inlets[0].cell)
        route_takers(b, feed, self.inlets[0].cell, self.senders, 0, "E")
        route_senders(b, ports.outward, self.senders, ports.towards, pop="never")
        self._declare(b)
        kinds: dict[tuple[object, ...], CoreClass] = {}
        for i, cell in enumerate(self.senders):
            sizes = [block] * full + ([last[i]] if last and last[i] else [])
            turn = advance_of(i, count)
            # Cores without a token leave the last round early: its last core sends a control word after its
            # token that switches the others back.
            is_early = bool(takers) and len(takers) < count
            end = advance_of(i, len(takers)) if is_early and i < len(takers) else turn
            kind = (tuple(sizes), turn, end, is_early and i < len(takers))
            if kind not in kinds:
                kinds[kind] = b.core_class(f"{self.name} {len(kinds)}")
                self._core(kinds[kind], ports, samples, sizes, (turn, end), ends_early=bool(kind[-1]))
            b.place(kinds[kind], cell)

    def _declare(self, b: Builder) -> None:
        """Declare one buffer with the interleaved tokens and results of both halves, and the buffers of all
        other operands."""
        where = (self.rows, self.columns)
        block = self.rounds[1] if self.rounds[0] else max(self.rounds[2])
        layout = self.work.layout(block, self.features, self.wafer)
        self.tokens_held = b.buffer(
            f"{self.name}.tokens", SIDES * block * self.features, "fp16", where, bank=0
        )
        self.others: dict[str, Buffer] = {}
        for name, shape in self.work.shapes.items():
            if name in ("x", "result") or shape.within:
                continue
            size, bank = layout.elements(shape.kind), shape.bank
            if shape.kind == MATRIX:
                size, bank = max(self.features * pitch(block), block * pitch(self.features)), 3
            self.others[name] = b.buffer(f"{self.name}.{name}", size, shape.dtype, where, bank=bank)

    def _held(self, side: int, tokens: int) -> Operand:
        return self.tokens_held.dsd(side, tokens * self.features, SIDES)

    def _lines(self, turn: int, tokens: int) -> Lines:
        """Return the instructions on `tokens` tokens of a half."""
        layout = self.work.layout(tokens, self.features, self.wafer)
        steps = (SIDES, SIDES * self.features) if layout.by_row else (SIDES * self.features, SIDES)
        places = {name: (side, *steps) for name, side in (("x", turn), ("result", 2 + turn))}
        buffers = {**self.others, "x": self.tokens_held, "result": self.tokens_held}
        return Lines(self.work.shapes, buffers, layout, Sharing(1, (), 0, 0), self.wafer, places=places)

    def _core(
        self,
        core: CoreClass,
        ports: Ports,
        samples: int,
        sizes: list[int],
        advance: tuple[str | None, str | None],
        *,
        ends_early: bool,
    ) -> None:
        def receive(turn: int, tokens: int) -> None:
            receive_all(core, ports.own[0], self._held(turn, tokens), RECEIVE)

        def work(turn: int, tokens: int, is_last: bool) -> None:
            self._lines(turn, tokens).emit(core, self.work.vectors, 0)
            closes = is_last and ends_early and advance[1] == "path"
            core.mov(
                fabric_out(ports.outward, None if closes else advance[is_last]),
                self._held(2 + turn, tokens),
                dtype="fp16",
                start="none",
                thread=SEND,
                priority="high",
            )
            if closes:
                core.join(SEND)
                core.control(ports.outward, Command.RESET, start="none")

        blocks_in_turn(core, samples, sizes, receive, work, RECEIVE)

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return scale and shift for every core."""
        names = affine_of(self.kernel.attrs)
        return {
            f"{self.name}.{name}": np.broadcast_to(
                weights[parameter].reshape(1, 1, -1), (self.height, self.cols, self.features)
            )
            for name, parameter in zip(names, self.kernel.parameters, strict=True)
        }
