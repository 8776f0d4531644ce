"""Where a dense layer is on its region, how its words are dealt over the rows, and what it costs.

Symbols as in :mod:`wse_sim.whole.regions.dense`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, pairwise
from math import ceil

import numpy as np

from wse_sim.compiler.plan import Stage
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.word_rows import TURN_CYCLES, hearing_cycles, stored_cycles
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import (
    PAIR,
    Inlet,
    IntArray,
    RegionKind,
    links_between,
    refused,
    stream_order,
)
from wse_sim.whole.regions.fused import ITEMS, items_of, work_cycles
from wse_sim.whole.regions.turns import RELAY_SLOTS

DEALT = 3  # words that a row takes at a time; its queue holds twice as many
MOST_HEARD = 3  # bundles that the core next to a row hears, on a microthread each
STORES = 3  # cores in which a residual waits, where the region has room
STORED_FRACTION = 0.8  # of a core's memory that three samples in a store may take; with more there are two
LAST_SLOTS = 2  # samples in the store that deals them out
QUEUED_WORDS = 14  # of sums between two cores: output queue, router, input queue


class DenseShape(RegionKind):
    """A dense layer as it lies."""

    family = "gemm"
    title = "dense layers"
    relays = True
    """Whether its colors suffice for cores that hand words on."""
    wanted_samples = 0
    """Samples of a residual that have to wait, so that a skip does not set the pace."""
    apart = 0
    """Stores without samples."""

    def __init__(self, graph: KernelGraph, kernel: Kernel, stage: Stage, wafer: Wafer) -> None:
        super().__init__(graph, kernel, stage, wafer)
        if "residual" in self.items and self.height == 1 and self.left - 2 < self.region.col:
            # The store takes the place of a compute column.
            if self.compute_cols == 1:
                raise refused(
                    kernel, "adds a residual in a region of one row and two columns", "use more cores"
                )
            self.left, self.compute_cols = self.left + 1, self.compute_cols - 1
            self.height, self.cols = self.extent()

    @classmethod
    def tokens_of(cls, graph: KernelGraph, kernel: Kernel) -> int:
        """Rows of a sample."""
        return int(kernel.dims["m"]) // graph.samples

    @classmethod
    def check(cls, graph: KernelGraph, kernel: Kernel) -> None:
        """One activation and one weight (N, K), inputs over the rows; items that have a program."""
        for item in items_of(kernel):
            if item not in ITEMS:
                raise refused(
                    kernel,
                    f"fuses '{item}' to its product",
                    f"a whole model on the fabric does {', '.join(ITEMS)}",
                )
        items = items_of(kernel)
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
                f"holds its weight as {shape}, a whole model on the fabric as {wanted}",
                "use torch.nn.Linear",
            )
        if kernel.attrs.get("orientation", "best") != "kn":
            raise refused(
                kernel, "has two possible layouts in its region", "plan the graph of inputs_over_rows(graph)"
            )

    @property
    def inputs(self) -> int:
        """K, whole words: an odd one has an element of zeros behind it."""
        return int(PAIR * ceil_div(self.kernel.dims["k"], PAIR))

    @property
    def features(self) -> int:
        """N, whole words: an odd one has a column of zeros behind it."""
        return int(PAIR * ceil_div(self.kernel.dims["n"], PAIR))

    @property
    def items(self) -> tuple[str, ...]:
        """Work on the outputs."""
        return items_of(self.kernel)

    @property
    def streams(self) -> int:
        """Bundles in which the inputs come in."""
        return self.bundles.get(self.kernel.inputs[0], 1)

    @property
    def words(self) -> list[int]:
        """Words of a token that every row takes: the last one fewer, by the work on the outputs that it has besides."""
        return self._shares(self.inputs // PAIR, self.fed, has_last=True)

    @property
    def heard(self) -> list[list[int]]:
        """Bundles of the inputs that the inlet of every row hears: those in which it has words."""
        each = self.inputs // PAIR // self.streams
        rows = self._dealt()[: self.fed]
        return [list(range(int(words[0]) // each, int(words[-1]) // each + 1)) for words in rows]

    def _shares(self, words: int, rows: int, *, has_last: bool) -> list[int]:
        """Words of each of some rows, with the last one of the region among them or not."""
        others = rows - has_last
        if not others:
            return [words]
        if not has_last and rows % self.streams == 0:
            # As many rows for each bundle, so that none hears two.
            whole, rest = divmod(words // self.streams, rows // self.streams)
            return [whole + (i < rest) for i in range(rows // self.streams)] * self.streams
        last = 0
        if has_last:
            each = self.tokens * PAIR * ceil_div(self.outputs, self.wafer.fma_mixed_per_cycle)
            less = max(0, ceil(self._last_more() / each))
            most = next(m for m in range(1, words + 1) if m * others + max(1, m - less) >= words)
            last = max(1, min(most - less, words // rows), words - most * others)
        whole, rest = divmod(words - last, others)
        return [*(whole + (i < rest) for i in range(others)), *([last] if has_last else [])]

    @property
    def fed(self) -> int:
        """Rows that take inputs."""
        return self.height

    @property
    def outputs(self) -> int:
        """Of a column: whole words."""
        return int(PAIR * ceil_div(ceil_div(self.features, self.compute_cols), PAIR))

    def extent(self) -> tuple[int, int]:
        """Rows with at least a word, columns with at least an output."""
        return min(self.region.rows, self.inputs // PAIR), int(ceil_div(self.features, self.outputs))

    @property
    def is_narrow(self) -> bool:
        """Whether a residual leaves room for one inlet only: there is one moving column."""
        return "residual" in self.items and self.height > 1 and self.left - 2 < self.region.col

    @property
    def inlets(self) -> tuple[Inlet, ...]:
        """In addition to every row that takes inputs, or next to the first; of a residual at the last store."""
        name, rows = self.kernel.inputs[0], [[0]] if self.is_narrow else self.heard
        if self.is_relayed:
            first = [next(i for i, heard in enumerate(rows) if g in heard) for g in range(self.streams)]
            return tuple(Inlet(name, (self.top + i, self.left - 2), g) for g, i in enumerate(first))
        here = tuple(
            Inlet(name, (self.top + i, self.left - 1), bundle)
            for i, bundles in enumerate(rows)
            for bundle in bundles
        )
        if "residual" not in self.items:
            return here
        return (*here, Inlet(self.kernel.inputs[1], self.stores[-1]))

    @property
    def is_relayed(self) -> bool:
        """Whether cores behind those next to the rows hear the bundles, and hand every row its words: where hearing all takes too long."""
        has_room = self.relays and self.left - 2 >= self.region.col and "residual" not in self.items
        if not has_room or self.fed == 1:
            return False
        return self._hearing_cycles() > max(self.issued_cycles(), self._relay_cycles())

    @property
    def busy_links(self) -> frozenset[tuple[Cell, Cell]]:
        """Those of inputs and sums; between cells next to the rows and those that hand words on to them."""
        found = frozenset(self._inner_words)
        if not self.is_relayed:
            return found
        beside = {(self.top + i, self.left - 1) for i in range(self.fed)}
        return found | links_between(beside | {inlet.cell for inlet in self.inlets})

    @property
    def link_words(self) -> Mapping[tuple[Cell, Cell], float]:
        """Inputs, sums and results."""
        return {**super().link_words, **self._inner_words}

    @property
    def _inner_words(self) -> Mapping[tuple[Cell, Cell], float]:
        """Inputs along the rows, sums down the columns."""
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
    def stores(self) -> tuple[Cell, ...]:
        """Where a residual waits, two samples in each: the one next to the last row deals it out, others stand above it.

        They stand behind the inlets, or below the only one.
        """
        first, rows = self.left - 1 - (not self.is_narrow), self.height - self.is_narrow
        columns = first - self.region.col + 1
        count = min(max(min(STORES, rows), self.wanted_stores), self.store_room)
        # Up the column next to the inlets, down the one west of it, and so on.
        ways = [
            [(self.last - i, first - j) for i in range(rows)][:: -1 if j % 2 else 1] for j in range(columns)
        ]
        return tuple(chain.from_iterable(ways))[:count]

    @property
    def store_room(self) -> int:
        """Cores that may be stores."""
        return (self.left - (not self.is_narrow) - self.region.col) * (self.height - self.is_narrow)

    @property
    def slots(self) -> int:
        """Samples in every other store: three where they are wanted and a core has room, and two where that is enough.

        A store of three sends while it receives, which costs short samples some cycles.
        """
        each = 2.0 * (self.stored + self.cols * self.outputs)
        is_wanted = self.wanted_samples > LAST_SLOTS * (min(STORES, self.store_room) - self.apart)
        has_room = RELAY_SLOTS * each <= STORED_FRACTION * self.wafer.sram_usable_bytes
        return RELAY_SLOTS if is_wanted and has_room else LAST_SLOTS

    @property
    def stored(self) -> int:
        """Elements of a sample in a store."""
        return self.tokens * self.features

    @property
    def wanted_stores(self) -> int:
        """As many as hold the samples that a skip needs: two in the one next to the last row, three in every other."""
        return 1 + self.apart + max(0, ceil((self.wanted_samples - LAST_SLOTS) / self.slots))

    @property
    def takes_whole(self) -> bool:
        """Every inlet holds whole samples."""
        return self.tokens > 1 and not self.is_narrow

    @property
    def late_fraction(self) -> float:
        """The last row finishes all tokens of a sample, which leave during the next one."""
        return 1 - 1 / self.tokens

    def hold(self, tensor: str, samples: int) -> None:
        """Make room in the stores of a residual."""
        if self.held_samples(tensor) is not None:
            self.wanted_samples = samples

    def held_samples(self, tensor: str) -> int | None:
        """Count those of a residual in its stores."""
        if "residual" not in self.items or tensor != self.kernel.inputs[-1]:
            return None
        return self.samples_in(len(self.stores))

    def samples_in(self, stores: int) -> int:
        """Samples that a number of stores holds, one behind the other."""
        return LAST_SLOTS + self.slots * (stores - self.apart - 1)

    @property
    def senders(self) -> tuple[Cell, ...]:
        """The last row, from its end."""
        return tuple((self.last, self.left + col) for col in reversed(range(self.cols)))

    @property
    def is_westward(self) -> bool:
        """Whether the outlet is the first column, next to the moving ones."""
        return False

    @property
    def own_colors(self) -> int:
        """Inputs, sums of even and of odd rows; a residual, or words of even and of odd bundles on their way to the rows."""
        return 3 + ("residual" in self.items) + 2 * self.is_relayed

    @property
    def held(self) -> int:
        """Tokens that come in while as many are dealt out."""
        return self.tokens

    def sent(self, position: int) -> int:
        """Elements that the column at a position from the outlet sends."""
        return min(self.outputs, self.features - position * self.outputs)

    def _sent_into(self, bundle: int, position: int) -> tuple[int, int]:
        """First element that the column at a position from the outlet sends into a bundle, and the one behind its last."""
        each = self.features // self.bundles.get(self.kernel.outputs[0], 1)
        before = position * self.outputs
        return max(0, bundle * each - before), min(self.sent(position), (bundle + 1) * each - before)

    def bundle_senders(self, bundle: int) -> tuple[Cell, ...]:
        """Columns that have features of a bundle."""
        spans = [self._sent_into(bundle, position) for position in range(self.cols)]
        return tuple(cell for cell, (first, end) in zip(self.senders, spans, strict=True) if first < end)

    def splits(self, tensor: str) -> tuple[int, ...]:
        """Of inputs and result: bundles of as many whole words; of the result no more than columns have outputs for."""
        if tensor == self.kernel.outputs[0]:
            most = self.features // self.outputs
            return tuple(count for count in range(1, most + 1) if self.features % (PAIR * count) == 0) or (1,)
        if self.kernel.inputs.count(tensor) != 1 or tensor != self.kernel.inputs[0]:
            return (1,)
        if self.is_narrow or stream_order(self.graph, tensor) is not None:
            return (1,)
        words = self.inputs // PAIR
        most = min(words, MOST_HEARD * self.fed)
        return tuple(count for count in range(1, most + 1) if words % count == 0)

    def _dealt(self) -> list[IntArray]:
        """The words that every row takes of a token, by their places in the stream."""
        if not self.is_narrow:
            ends = np.cumsum([0, *self.words])
            return [np.arange(first, end) for first, end in pairwise(ends)]
        rows = np.concatenate([np.repeat(np.arange(count), words) for count, words in self._deals()])
        return [np.flatnonzero(rows == i) for i in range(self.height)]

    def _deals(self) -> list[tuple[int, int]]:
        """How a token is dealt out: to that many rows, with equal numbers of words; no more than wait in a row's queue."""
        out, done = [], 0
        for level in sorted(set(self.words)):
            takers = sum(count >= level for count in self.words)
            while done < level:
                words = min(level - done, DEALT)
                out.append((takers, words))
                done += words
        return out

    def _part(self, row: int, bundle: int) -> tuple[int, int]:
        """First element of a row in a bundle of a token, and how many it has there."""
        words, size = self._dealt()[row], self.inputs // self.streams
        first, end = PAIR * int(words[0]) - bundle * size, PAIR * int(words[-1]) + PAIR - bundle * size
        return max(0, first), min(end, size) - max(0, first)

    def issued_cycles(self) -> float:
        """As the module states; a region of one row moves its sums instead of adding to those from above."""
        v, wafer = self.outputs, self.wafer
        each = [PAIR * words * ceil_div(v, wafer.fma_mixed_per_cycle) + v for words in self.words]
        o = ceil(wafer.vector_start_cycles)
        last = self.tokens * each[-1] + self._finish_cycles()
        if self.height == 1:
            last += self.tokens * (o + ceil(v / wafer.mov_fp32_per_cycle) - v)
        return float(max(self.tokens * max(each), last))

    def held_up_cycles(self) -> float:
        """Cycles per sample that rows wait for the last one: it finishes outputs while queues between cores fill with sums."""
        if self.height == 1:
            return 0.0
        each = self.issued_cycles() / self.tokens
        return max(0.0, self._finish_cycles() - each * QUEUED_WORDS / self.outputs)

    def pace(self) -> float:
        """An inlet hears a bundle and deals out its row's words; all columns of a bundle send over one link.

        A store of a residual takes every word in and hands it out (:mod:`wse_sim.kernels.blocks.word_rows`).
        """
        each = self.wafer.wavelet_cycles
        heard = self._relay_cycles() if self.is_relayed else self._hearing_cycles()
        sent = each * self.features / PAIR / self.bundles.get(self.kernel.outputs[0], 1)
        beside = max(heard, self.tokens * sent, self.handed_cycles())
        return float(max(self.issued_cycles() + self.held_up_cycles(), beside))

    def handed_cycles(self) -> float:
        """Cycles per sample of the busiest core that keeps a residual or hands it on; 0 without."""
        return ("residual" in self.items) * self.tokens * float(stored_cycles(self.features, self.outputs))

    def ahead_cycles(self) -> float:
        """A residual, on the last row."""
        return self.tokens * self.outputs / PAIR * ("residual" in self.items)

    def _last_more(self) -> float:
        """What the last row issues per sample beyond the others."""
        return self._finish_cycles()

    def _finish_cycles(self) -> float:
        """What the last row issues per sample in addition to products and sums."""
        size = self.tokens * self.outputs
        return size / PAIR * (1 + ("residual" in self.items)) + work_cycles(self.items, size, self.wafer)

    def _relay_cycles(self) -> float:
        """Of a sample, in a core that hands a bundle on: an instruction a row and one that turns the rows back."""
        most = max(sum(g in heard for heard in self.heard) for g in range(self.streams))
        words = self.inputs / PAIR / self.streams
        return self.tokens * (self.wafer.wavelet_cycles * words + TURN_CYCLES * (most + 1))

    def _hearing_cycles(self) -> float:
        """Of a sample, in a core next to a row that hears its bundles and deals out its words."""
        most = 1 if self.is_narrow else max(map(len, self.heard))
        words = most * self.inputs / PAIR / self.streams
        return self.tokens * float(hearing_cycles(words, max(self.words), self.wafer))
