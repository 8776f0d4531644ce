"""Layout of a dense layer on its region: how its words are dealt to the rows, and what it costs.

Symbols as in :mod:`wse_sim.whole.regions.dense`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from math import ceil

import numpy as np

from wse_sim.graph import Kernel, KernelGraph
from wse_sim.kernels.blocks.word_rows import (
    MOST_HEARD,
    flowing_cycles,
    hearing_cycles,
    residual_cycles,
)
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import (
    PAIR,
    Inlet,
    IntArray,
    PlacedKernel,
    RegionKind,
    divisor,
    elements_of,
    is_image,
    part_of,
    part_with,
    refused,
)
from wse_sim.whole.regions.fused_work import ITEMS, items_of
from wse_sim.whole.regions.stores import LAST_SLOTS
from wse_sim.whole.regions.turns import RELAY_SLOTS

STORES = 3  # most cores that store a residual, if the region has room
STORED_FRACTION = 0.8  # of a core's memory that three samples in a store may take; beyond it a store has two


@lru_cache(maxsize=1024)
def evenly(words: int, rows: int, parts: int) -> tuple[int, ...]:
    """Return the words of every row if each of `parts` groups of rows has a part of them, evenly spread.

    >>> evenly(10, 4, 1), evenly(10, 4, 3)
    ((2, 3, 2, 3), (1, 2, 3, 4))
    """
    out: list[int] = []
    for part in range(parts):
        mine = rows // parts + (part < rows % parts)
        of_part = len(part_of(words, part, parts))
        out += [len(part_of(of_part, i, mine)) for i in range(mine)]
    return tuple(out)


@lru_cache(maxsize=4096)
def most_heard(words: int, streams: int, shares: tuple[int, ...]) -> int:
    """Return the words of all bundles with words of a row, for the row with the most. The token has `words` words in
    `streams` bundles; rows take `shares`.

    >>> most_heard(10, 2, (2, 3, 2, 3)), most_heard(10, 3, (2, 3, 2, 3))
    (5, 7)
    """
    ends = np.cumsum((0, *shares))
    first, last = ends[:-1][ends[1:] > ends[:-1]], ends[1:][ends[1:] > ends[:-1]] - 1
    lowest, highest = ((first + 1) * streams - 1) // words, ((last + 1) * streams - 1) // words
    return int(np.max((highest + 1) * words // streams - lowest * words // streams))


class DensePlace(PlacedKernel):
    """Sizes of a dense layer and the operations fused to it, in both passes."""

    family = "gemm"
    title = "dense layers"

    @classmethod
    def tokens_of(cls, graph: KernelGraph, kernel: Kernel) -> int:
        """Return the rows of a sample."""
        return int(kernel.dims["m"]) // graph.samples

    @property
    def inputs(self) -> int:
        """Inputs, K, rounded up to whole words: an odd K is padded with a zero."""
        return int(PAIR * ceil_div(self.kernel.dims["k"], PAIR))

    @property
    def features(self) -> int:
        """Outputs, N, rounded up to whole words: an odd N is padded with a column of zeros."""
        return int(PAIR * ceil_div(self.kernel.dims["n"], PAIR))

    @property
    def items(self) -> tuple[str, ...]:
        """Operations fused to the outputs."""
        return items_of(self.kernel)

    @property
    def streams(self) -> int:
        """Number of bundles of the inputs."""
        return self.bundles.get(self.kernel.inputs[0], 1)


class DenseShape(DensePlace, RegionKind):
    """Layout and cost of a dense layer on its region."""

    def make_room(self) -> None:
        """Make room for the last row, and for the stores of a residual next to the inlets."""
        if self.region.rows == 1:
            raise refused(self.kernel, "has a region of one row, limit 2", "use more cores")
        if "residual" not in self.items or self.left - 2 >= self.region.col:
            return
        if self.compute_cols == 1:
            raise refused(self.kernel, "adds a residual in a region of two columns", "use more cores")
        self._move_columns(1)

    @classmethod
    def check(cls, graph: KernelGraph, kernel: Kernel) -> None:
        """Check for one activation and one weight (N, K), inputs over the rows, and supported fused
        operations."""
        items = items_of(kernel)
        for item in items:
            if item not in ITEMS:
                raise refused(
                    kernel,
                    f"fuses '{item}' to its product",
                    f"a whole model on the fabric does {', '.join(ITEMS)}",
                )
        if len(kernel.inputs) != 1 + ("residual" in items) or len(kernel.parameters) != 1 + ("bias" in items):
            raise refused(
                kernel,
                "is not a product of one activation with one weight",
                "make the model of torch.nn.Linear",
            )
        shape = graph.tensors[kernel.parameters[0]].shape
        wanted = (int(kernel.dims["n"]), int(kernel.dims["k"]))
        if shape != wanted:
            raise refused(
                kernel,
                f"holds its weight as {shape}, but a whole model on the fabric needs {wanted}",
                "use torch.nn.Linear",
            )
        if kernel.attrs.get("orientation", "best") != "kn":
            raise refused(
                kernel, "can have two layouts in its region", "plan the graph of inputs_over_rows(graph)"
            )

    @property
    def words(self) -> list[int]:
        """Words of a token that every row takes, evenly spread; the last row takes none."""
        return [*self._shares(self.inputs // PAIR, self.fed), 0]

    @property
    def heard(self) -> list[list[int]]:
        """Bundles that the inlet of every row receives: those with words of the row."""
        all_words, of = self.inputs // PAIR, self.streams
        ends = pairwise(accumulate(self.words[: self.fed], initial=0))
        return [
            list(range(part_with(first, all_words, of), part_with(end - 1, all_words, of) + 1))
            for first, end in ends
        ]

    def _shares(self, words: int, rows: int) -> list[int]:
        """Return the words of each of `rows` rows: over all rows or by group of rows with a bundle, whichever is faster."""
        groups = {1, min(self.streams, rows)}
        spread = [list(evenly(words, rows, parts)) for parts in sorted(groups)]
        return min(spread, key=self._fed_cycles)

    def _fed_cycles(self, shares: Sequence[int]) -> float:
        """Return the cycles per token of a row with its inlet, which receives all bundles with words of the
        row."""
        each = max(shares)
        row = PAIR * each * ceil_div(self.outputs, self.wafer.fma_mixed_per_cycle) + self.outputs
        return float(max(row, hearing_cycles(self._most_heard(shares), each, self.wafer, self.tokens)))

    def _most_heard(self, shares: Sequence[int]) -> int:
        """Return the words per token of all bundles with words of a row, for the row with the most."""
        return most_heard(self.inputs // PAIR, self.streams, tuple(shares))

    @property
    def fed(self) -> int:
        """Number of rows that take inputs: all but the last."""
        return self.height - 1

    @property
    def outputs(self) -> int:
        """Outputs of a column, rounded up to whole words."""
        return int(PAIR * ceil_div(ceil_div(self.features, self.compute_cols), PAIR))

    def extent(self) -> tuple[int, int]:
        """Return the rows with at least one word plus the last row, and the columns with at least one output."""
        return min(self.region.rows, self.inputs // PAIR + 1), int(ceil_div(self.features, self.outputs))

    @property
    def inlets(self) -> tuple[Inlet, ...]:
        """Inlets next to every row that takes inputs; the residual arrives at the last store."""
        name = self.kernel.inputs[0]
        here = tuple(
            Inlet(name, (self.top + i, self.left - 1), bundle)
            for i, bundles in enumerate(self.heard)
            for bundle in bundles
        )
        return (
            *here,
            *(
                Inlet(self.kernel.inputs[1], self.stores_of(bundle)[-1], bundle)
                for bundle in range(self.residuals)
            ),
        )

    @property
    def inner_words(self) -> Mapping[tuple[Cell, Cell], float]:
        """Words per sample of inputs along the rows and of sums down the columns."""
        columns, words = range(self.left, self.left + self.cols), self.words
        along = {
            ((self.top + i, col - 1), (self.top + i, col)): float(self.tokens * words[i])
            for i in range(self.fed)
            for col in columns
        }
        sums = float(self.tokens * self.outputs)
        return along | {
            ((row, col), (row + 1, col)): sums for row in range(self.top, self.last) for col in columns
        }

    @property
    def residuals(self) -> int:
        """Number of bundles of the residual; 0 without one."""
        return self.bundles.get(self.kernel.inputs[1], 1) if "residual" in self.items else 0

    @property
    def stores(self) -> tuple[Cell, ...]:
        """Cells that buffer a residual, or its first bundle."""
        return self.stores_of(0)

    def stores_of(self, bundle: int) -> tuple[Cell, ...]:
        """Return the cells that buffer a bundle of a residual; the first one deals it out, the others are
        upstream of it.

        They are behind the inlets. Every bundle has as many rows of moving cores, the bundle of the first columns the
        lowest.
        """
        first, rows = self.left - 2, self._rows_of_stores
        columns = first - self.region.col + 1
        count = min(max(min(STORES, rows), self.wanted_stores), self.store_room)
        bottom = self._row_of(bundle)
        # Up the column next to the inlets, down the one west of it, and so on.
        ways = [[(bottom - i, first - j) for i in range(rows)][:: -1 if j % 2 else 1] for j in range(columns)]
        return tuple(chain.from_iterable(ways))[:count]

    def _row_of(self, bundle: int) -> int:
        """Return the fabric row over which a bundle of a residual enters the columns."""
        return self.last - (self.residuals - 1 - bundle) * self._rows_of_stores

    @property
    def _rows_of_stores(self) -> int:
        return self.height // max(1, self.residuals)

    @property
    def store_room(self) -> int:
        """Number of cores that may be stores of a bundle."""
        return (self.left - 1 - self.region.col) * self._rows_of_stores

    @property
    def slots(self) -> int:
        """Parts of a sample in every store but the last: three if needed and if memory allows, else two.

        A store of three parts sends while it receives, which costs some cycles for short samples.
        """
        each = 2.0 * self.stored
        parts = self._wanted_parts
        is_wanted = parts > LAST_SLOTS * min(STORES, self.store_room)
        has_room = RELAY_SLOTS * each <= STORED_FRACTION * self.wafer.sram_usable_bytes
        return RELAY_SLOTS if is_wanted and has_room else LAST_SLOTS

    @property
    def unit(self) -> int:
        """Tokens that a store receives and passes on at a time: the most for which there is room thrice, of
        those that divide a sample."""
        each = 2.0 * max(len(self.part_of_residual(bundle)) for bundle in range(max(1, self.residuals)))
        room = STORED_FRACTION * self.wafer.sram_usable_bytes
        return divisor(self.tokens, max(1, int(room / RELAY_SLOTS / each)))

    @property
    def stored(self) -> int:
        """Elements of a part of a sample in a store with the largest bundle."""
        return self.unit * max(len(self.part_of_residual(bundle)) for bundle in range(max(1, self.residuals)))

    def part_of_residual(self, bundle: int) -> range:
        """Return the elements of a token that a bundle of the residual has."""
        return elements_of(self.features, bundle, max(1, self.residuals))

    @property
    def _wanted_parts(self) -> float:
        """Parts of samples of the residual that must be buffered."""
        return self.wanted_samples.get(self.kernel.inputs[-1], 0) * self.tokens / self.unit

    @property
    def wanted_stores(self) -> int:
        """Stores of a bundle that hold the samples which a skip needs: two parts in the one that deals them
        out, `slots` in each other."""
        parts = self._wanted_parts
        return 1 + max(0, ceil((parts - LAST_SLOTS) / self.slots))

    @property
    def takes_whole(self) -> bool:
        """Whether every inlet receives whole samples first."""
        return self.tokens > 1

    def held_samples(self, tensor: str) -> int | None:
        """Return the samples of a residual that the stores hold."""
        if "residual" not in self.items or tensor != self.kernel.inputs[-1]:
            return None
        parts = LAST_SLOTS + self.slots * (len(self.stores) - 1)
        return max(1, parts * self.unit // self.tokens)

    @property
    def senders(self) -> tuple[Cell, ...]:
        """The cells of the last row, from its end."""
        return tuple((self.last, self.left + col) for col in reversed(range(self.cols)))

    @property
    def own_colors(self) -> int:
        """Colors for inputs, sums of even and odd rows, and for even and odd bundles of a residual."""
        return 3 + min(2, self.residuals)

    def sent(self, position: int) -> int:
        """Return the elements that the column at a position from the outlet sends."""
        return min(self.outputs, self.features - position * self.outputs)

    def _sent_into(self, bundle: int, position: int, bundles: int = 0) -> tuple[int, int]:
        """Return the range of elements, (first, end), of the column at a position from the outlet that are in
        a bundle, by default of the result."""
        part = elements_of(self.features, bundle, bundles or self.result_bundles)
        before = position * self.outputs
        return max(0, part.start - before), min(self.sent(position), part.stop - before)

    def bundle_senders(self, bundle: int) -> tuple[Cell, ...]:
        """Return the cells of the columns that have features of a bundle."""
        spans = [self._sent_into(bundle, position) for position in range(self.cols)]
        return tuple(cell for cell, (first, end) in zip(self.senders, spans, strict=True) if first < end)

    def splits(self, tensor: str) -> Sequence[int]:
        """Return the numbers of bundles: a column has features of at most two bundles, and an inlet receives at
        most three."""
        if tensor == self.kernel.outputs[0]:
            return range(1, max(1, self.most_of_columns) + 1)
        if self.kernel.inputs.count(tensor) != 1:
            return (1,)
        if tensor != self.kernel.inputs[0]:
            return range(1, max(1, min(self.height, self.cols, self.most_of_columns)) + 1)
        if is_image(self.graph, tensor):
            return (1,)
        words, fed = self.inputs // PAIR, self.fed
        most = ceil_div(words, fed)  # words of the fullest row
        # Rows of one bundle each: as many in every bundle, or as many words. A row of several has all of them.
        return [
            count
            for count in range(1, min(words, MOST_HEARD * fed) + 1)
            if min(count, ceil_div(most - 1, words // count) + 1) <= MOST_HEARD
            or fed % count == 0
            or count % fed == 0
        ]

    @property
    def most_of_columns(self) -> int:
        """Largest number of bundles of results for which each has at least the features of a column."""
        return self.features // self.outputs

    def _dealt(self) -> list[IntArray]:
        """Return the word indices that every row takes of a token, in stream order."""
        return [np.arange(first, end) for first, end in pairwise(np.cumsum([0, *self.words]))]

    def _part(self, row: int, bundle: int) -> tuple[int, int]:
        """Return the first element of a row in a bundle of a token, and their number."""
        words, part = self._dealt()[row], elements_of(self.inputs, bundle, self.streams)
        first, end = PAIR * int(words[0]) - part.start, PAIR * int(words[-1]) + PAIR - part.start
        return max(0, first), min(end, len(part)) - max(0, first)

    def issued_cycles(self) -> float:
        """Return the issue cycles per sample of the busiest core, which has inputs or is in the last row."""
        v, wafer = self.outputs, self.wafer
        each = PAIR * max(self.words) * ceil_div(v, wafer.fma_mixed_per_cycle) + v
        return float(self.tokens * max(each, flowing_cycles(self.items, v, wafer)))

    def pace(self) -> float:
        """Return the cycles per sample; limits are issue cycles, inlets that receive a bundle and deal out
        their words, and output links.

        A store of a residual receives and sends every word (:mod:`wse_sim.kernels.blocks.word_rows`).
        """
        each = self.wafer.wavelet_cycles
        sent = each * ceil_div(self.features // PAIR, self.result_bundles)
        beside = max(self._hearing_cycles(), self.tokens * sent, self.handed_cycles())
        return float(max(self.issued_cycles(), beside))

    def handed_cycles(self) -> float:
        """Return the cycles per sample of the busiest core that stores or passes on a residual, or of a link
        that it shares with sums; 0 without one. Before its bundles are chosen, it has as many as possible."""
        if "residual" not in self.items:
            return 0.0
        bundles = self.bundles.get(self.kernel.inputs[1]) or self.splits(self.kernel.inputs[1])[-1]
        return self.tokens * float(residual_cycles(self.features, self.outputs, bundles, self.wafer))

    @property
    def start_rows(self) -> slice | None:
        """All rows but the last, which reads a residual before sums arrive."""
        return slice(self.rows.start, self.rows.stop - 1) if "residual" in self.items else None

    def _hearing_cycles(self) -> float:
        """Return the cycles per sample of an inlet that receives its bundles and deals out its words."""
        shares = self.words[: self.fed]
        heard = hearing_cycles(self._most_heard(shares), max(shares), self.wafer, self.tokens)
        return self.tokens * float(heard)
