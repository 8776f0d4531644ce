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

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from wse_sim.fabric.format.builder import Buffer, Builder, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.fabric.format.program import Command
from wse_sim.graph import Kernel, KernelGraph, Phase
from wse_sim.kernels.blocks.line_programs import RowWork
from wse_sim.kernels.blocks.line_stages import MATRIX, Lines, Sharing
from wse_sim.kernels.blocks.rounds import pitch
from wse_sim.kernels.blocks.token_blocks import TokenBlocks, lanes_for, lanes_of
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
    heads_of,
    refused,
    rows_in_turn,
)
from wse_sim.whole.regions.shared_color import (
    advance_of,
    cable,
    deal,
    place_kinds,
    receive_all,
    route_lanes,
    route_senders,
    route_takers,
    send_all,
)
from wse_sim.whole.regions.turns import blocks_in_turn

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
        """Return the rows of a sample: its tokens, even where every head is normalized by itself."""
        return int(kernel.dims["rows"]) // graph.samples // heads_of(graph, kernel)

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
        if heads_of(graph, kernel) > 1 and kernel.dims["cols"] % PAIR:
            raise refused(
                kernel,
                f"normalizes heads of {kernel.dims['cols']} features, but each word contains {PAIR}",
                "use heads of an even number of features",
            )
        if has == ("shift",):
            raise refused(kernel, "has a shift and no scale", "give it a scale of ones")

    def make_room(self) -> None:
        """Count every head of a token that is normalized by itself as a token; they arrive and leave in the order of the token."""
        self.tokens *= heads_of(self.graph, self.kernel)

    @property
    def features(self) -> int:
        """Features of a token."""
        return int(self.kernel.dims["cols"])

    @property
    def lane(self) -> int:
        """Number of bundles, and of cores that share a token."""
        return self.result_bundles

    @property
    def part(self) -> int:
        """Features of a token on a core."""
        return self.features // self.lane

    @property
    def lane_colors(self) -> int:
        """Colors for the statistics of lanes: one between two cores, a second one between two more, one back."""
        return (self.lane > 1) * (1 + min(2, self.lane - 1))

    @property
    def tied(self) -> tuple[str, ...]:
        """Operand and result have the same number of bundles."""
        return self.kernel.inputs[0], self.kernel.outputs[0]

    @property
    @abstractmethod
    def cables(self) -> tuple[tuple[tuple[Cell, ...], frozenset[Cell]], ...]:
        """The cells that the tokens of each bundle pass, and those among them that only forward them."""

    def takers(self, bundle: int = 0) -> tuple[Cell, ...]:
        """Return the cores that have tokens, in token order: those of a bundle."""
        cells, passing = self.cables[bundle]
        return tuple(cell for cell in cells if cell not in passing)

    @property
    def senders(self) -> tuple[Cell, ...]:
        """All cores that have tokens, bundle by bundle in token order, and those that pass them on."""
        return tuple(cell for bundle in range(self.lane) for cell in self.bundle_senders(bundle))

    def bundle_senders(self, bundle: int) -> tuple[Cell, ...]:
        """Return the cores of a bundle that have tokens or pass them on, from the first that has some."""
        cells, passing = self.cables[bundle]
        return cells[next(i for i, cell in enumerate(cells) if cell not in passing) :]

    @property
    def inlets(self) -> tuple[Inlet, ...]:
        """One inlet per bundle, next to the first cell on its way."""
        ways = [cells[0] for cells, _ in self.cables]
        return tuple(
            Inlet(self.kernel.inputs[0], (row, col - 1), bundle) for bundle, (row, col) in enumerate(ways)
        )


def apart(work: RowWork) -> RowWork:
    """Return the same instructions, except that the last one writes to a result buffer instead of over the
    token."""
    *before, last = work.vectors
    return RowWork((*before, replace(last, to="result")), {**work.shapes, "result": work.shapes["x"]})


class CoreKind(NamedTuple):
    """Cores with the same program: sizes of the blocks of a sample, switch commands behind a block and behind the last one, the
    group of columns and the position in its lane, and whether the core leaves the last round early."""

    sizes: tuple[int, ...]
    advance: tuple[str | None, str | None]
    place: tuple[int, int]
    ends_early: bool


class NormRegion(NormPlace, RegionKind):
    """A norm in inference."""

    def splits(self, tensor: str) -> tuple[int, ...]:
        """Return the numbers of bundles with whole words of a token, for which the region has lanes."""
        if heads_of(self.graph, self.kernel) > 1:
            return (1,)
        rows = rows_in_turn(self.region, self.wafer)
        counts = lanes_for(self.features, self.compute_cols)
        return tuple(count for count in counts if lanes_of(rows, self.compute_cols, count))

    @property
    def own_colors(self) -> int:
        """Colors for tokens, and for the statistics of lanes."""
        return 1 + self.lane_colors

    def pace(self) -> float:
        """Return the cycles per sample, as the kernel's price has them with the chosen bundles."""
        return self.priced_cycles(most_bundles=self.lane, least_bundles=self.lane)

    def extent(self) -> tuple[int, int]:
        """Return the rows and columns of the cores that may have tokens."""
        return rows_in_turn(self.region, self.wafer), self.compute_cols

    @property
    def cables(self) -> tuple[tuple[tuple[Cell, ...], frozenset[Cell]], ...]:
        """The cells that the tokens of each bundle pass, and those among them that only forward them."""
        rows, lane = rows_in_turn(self.region, self.wafer), self.lane
        whole = self.compute_cols // lane
        groups = 1 if lanes_of(rows, lane, lane) >= (rows - 2 * (lane - 1)) * whole else whole
        found = []
        for number in range(lane):
            cells, passing = cable(self.top, self.left, rows, lane, number, groups)
            takers = [i for i, cell in enumerate(cells) if cell not in passing][: self.tokens]
            found.append((cells[: takers[-1] + 1], passing))
        return tuple(found)

    @property
    def link_words(self) -> Mapping[tuple[Cell, Cell], float]:
        """Words per sample of tokens passed along the cores, and of results on their way back."""
        words, found = self.tokens * self.features / PAIR / self.lane, dict[tuple[Cell, Cell], float]()
        for inlet, (cells, passing) in zip(self.inlets, self.cables, strict=True):
            left = count = len(cells) - len(passing.intersection(cells))
            for here, there in pairwise([inlet.cell, *cells]):
                found[here, there] = words * left / count
                if here != inlet.cell:
                    found[there, here] = words * left / count
                left -= there not in passing
        return found

    @property
    def blocks(self) -> TokenBlocks:
        """The kernel's own price.

        Raises
        ------
        ModelError
            If a token does not fit in the cores of a lane.
        """
        dims, place = self.kernel.dims, Tiling(1, 1, "stationary")
        found = blocks_of(dims, place, self.wafer, Phase.FORWARD, "fp16", self.kernel.attrs, self.lane)
        if found is None or not found.most:
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

    @property
    def rounds(self) -> tuple[int, int, tuple[int, ...]]:
        """Full rounds of a sample, tokens per block in them, and tokens of every core in the last round
        (empty without one)."""
        cores = len(self.takers())
        block = self.blocks.sizes(ceil_div(self.tokens, cores))[0]
        full, left = divmod(self.tokens, cores * block)
        least, more = divmod(left, cores)
        return full, block, tuple(least + (i < more) for i in range(cores)) if left else ()

    def build(self, b: Builder, ports: Ports, samples: int) -> None:
        """Write an inlet per bundle, the sums of the lanes, and one core class per send order and bundle."""
        self.height, self.cols = self.extent()
        self.sharing = self._sums(b, ports.own[1:])
        self._declare(b)
        for bundle in range(self.lane):
            self._bundle(b, ports.of_band(bundle), samples, bundle)

    def _sums(self, b: Builder, colors: Sequence[int]) -> tuple[Sharing, ...]:
        """Route the sums of all lanes; return them by group of columns."""
        cells = self.takers()
        rows = slice(min(row for row, _ in cells), 1 + max(row for row, _ in cells))
        firsts = sorted({col - (col - self.left) % self.lane for _, col in cells})
        return tuple(route_lanes(b, rows, first, self.lane, colors) for first in firsts)

    def _bundle(self, b: Builder, ports: Ports, samples: int, bundle: int) -> None:
        """Write the inlet and the cores of a bundle."""
        full, block, last = self.rounds
        cells, passing = self.cables[bundle]
        inlet_cell, cores, each = self.inlets[bundle].cell, self.takers(bundle), self.part
        feed, source = ports.own[0], fabric_in(ports.inward[0])
        takers, count = [size for size in last if size], len(cores)
        inlet = b.core_class(f"{self.name} inlet {bundle}")
        with inlet.loop(samples):
            with inlet.loop(full):
                if full:
                    deal(inlet, feed, [[(source, block * each)]] * count, count)
            if takers:
                deal(inlet, feed, [[(source, size * each)] for size in takers], len(takers))
        b.place(inlet, inlet_cell)
        route_takers(b, feed, inlet_cell, cells, passing=passing)
        senders = self.bundle_senders(bundle)
        ((outward, towards),) = ports.results
        route_senders(b, outward, senders, towards, pop="never", passing=passing)
        kinds: dict[Cell, CoreKind] = {}
        for i, cell in enumerate(cores):
            sizes = [block] * full + ([last[i]] if last and last[i] else [])
            turn = advance_of(i, count)
            # Cores without a token leave the last round early: its last core sends a control word after its
            # token that switches the others back.
            is_early = bool(takers) and len(takers) < count
            end = advance_of(i, len(takers)) if is_early and i < len(takers) else turn
            kinds[cell] = CoreKind(
                tuple(sizes),
                (turn, end),
                divmod(cell[1] - self.left, self.lane),
                is_early and i < len(takers),
            )
        name = f"{self.name} {bundle}"
        place_kinds(b, kinds, name, lambda core, kind: self._core(core, ports, samples, kind))

    def _declare(self, b: Builder) -> None:
        """Declare one buffer with the interleaved tokens and results of both halves, and the buffers of all
        other operands."""
        where = (self.rows, self.columns)
        block = self.rounds[1] if self.rounds[0] else max(self.rounds[2])
        layout = self.work.layout(block, self.part, self.wafer)
        self.tokens_held = b.buffer(f"{self.name}.tokens", SIDES * block * self.part, "fp16", where, bank=0)
        self.others: dict[str, Buffer] = {}
        for name, shape in self.work.shapes.items():
            if name in ("x", "result") or shape.within:
                continue
            size, bank = layout.elements(shape.kind), shape.bank
            if shape.kind == MATRIX:
                size, bank = max(self.part * pitch(block), block * pitch(self.part)), 3
            self.others[name] = b.buffer(f"{self.name}.{name}", size, shape.dtype, where, bank=bank)

    def _held(self, side: int, tokens: int) -> Operand:
        return self.tokens_held.dsd(side, tokens * self.part, SIDES)

    def _lines(self, turn: int, tokens: int, sharing: Sharing) -> Lines:
        """Return the instructions on `tokens` tokens of a half."""
        layout = self.work.layout(tokens, self.part, self.wafer)
        steps = (SIDES, SIDES * self.part) if layout.by_row else (SIDES * self.part, SIDES)
        places = {name: (side, *steps) for name, side in (("x", turn), ("result", 2 + turn))}
        buffers = {**self.others, "x": self.tokens_held, "result": self.tokens_held}
        return Lines(self.work.shapes, buffers, layout, sharing, self.wafer, places=places)

    def _core(self, core: CoreClass, ports: Ports, samples: int, kind: CoreKind) -> None:
        ((outward, _),), (group, position), advance = ports.results, kind.place, kind.advance

        def receive(turn: int, tokens: int) -> None:
            receive_all(core, ports.own[0], self._held(turn, tokens), RECEIVE)

        def work(turn: int, tokens: int, is_last: bool) -> None:
            self._lines(turn, tokens, self.sharing[group]).emit(core, self.work.vectors, position)
            closes = is_last and kind.ends_early and advance[1] == "path"
            send_all(
                core,
                fabric_out(outward, None if closes else advance[is_last]),
                self._held(2 + turn, tokens),
                SEND,
            )
            if closes:
                core.join(SEND)
                core.control(outward, Command.RESET, start="none")

        blocks_in_turn(core, samples, kind.sizes, receive, work, RECEIVE)

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return scale and shift of every core's features."""
        names, out = affine_of(self.kernel.attrs), {}
        for name, parameter in zip(names, self.kernel.parameters, strict=True):
            parts = weights[parameter].reshape(self.lane, self.part)
            found = np.zeros((self.height, self.cols, self.part), np.float32)
            for bundle in range(self.lane):
                for row, col in self.takers(bundle):
                    found[row - self.top, col - self.left] = parts[bundle]
            out[f"{self.name}.{name}"] = found
        return out
