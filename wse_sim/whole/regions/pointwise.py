"""Elementwise work and activations that are not fused to a product: x + y, silu(g) u, relu(x), x + p.

Symbols: E elements of a sample, P cores in a serpentine over the R rows and C columns; e elements of a core,
whole words, E divided by the number of cores and rounded up; the last core has the rest::

    an inlet per operand  >  e elements to every core of the serpentine in sequence  >  operators  >  back and out

Each core has the same part of every operand, so cores are independent. A core receives the parts of the next
sample while it works, in two buffers per operand. Parameters are stored on the cores, expanded to the size of
the result. Per sample and core, for n operands from regions::

    e / 2 (n + 1) words + sum over operators of (o + e / rate, or e special elements)

An operand that arrives earlier than another, over a shorter path of the model, waits in stores before its
inlet: cores that buffer two samples each. Operands and result may travel in S parallel bundles. The region
then consists of S bands of R / S rows, each with a serpentine, inlets and stores for the features of its
bundle.

An operand may have one pixel, which all pixels of an image meet (the factors of squeeze and excitation). It goes to all
cores, which have whole pixels and work pixel by pixel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import ceil

from wse_sim.fabric.format.builder import Buffer, Builder, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import (
    PAIR,
    Floats,
    Ports,
    RegionKind,
)
from wse_sim.whole.regions.pointwise_place import (
    CORE_SLOTS,
    STORES,
    PointwisePlace,
    emit_operators,
    met_by,
)
from wse_sim.whole.regions.shared_color import receive_all, route_senders, send_all
from wse_sim.whole.regions.stores import LAST_SLOTS
from wse_sim.whole.regions.turns import RELAY_SLOTS, alternate


class Pointwise(PointwisePlace, RegionKind):
    """Elementwise work in inference."""

    def pace(self) -> float:
        """Return the cycles per sample, as the kernel's price has them with the chosen bundles."""
        return self.priced_cycles(most_bundles=self.result_bundles, least_bundles=self.result_bundles)

    def most_stores(self, tensor: str) -> int:
        """Return one store for every two kernels on the longer path plus the one that deals; more stores
        would delay the operand.

        If more samples have to wait, there are more.
        """
        wanted = ceil((self.wanted_samples.get(tensor, 0) - LAST_SLOTS - CORE_SLOTS) / RELAY_SLOTS)
        return max(min(STORES, 1 + ceil(self.kernels_before(tensor) / 2)), 1 + wanted)

    @property
    def busy_links(self) -> frozenset[tuple[Cell, Cell]]:
        """Links of the operands to and along the serpentine, and of the result on its way back."""
        if self.result_bundles > 1:
            return frozenset[tuple[Cell, Cell]]().union(*(band.busy_links for band in self.bands))
        snake = [*pairwise(self.snake)]
        links = {*snake, *((there, here) for here, there in snake)}
        return frozenset(links.union(*map(self._dealing, self.stores.values())))

    @property
    def result_words(self) -> float:
        """Words of a sample in one band."""
        return self.elements / PAIR / self.result_bundles

    def _dealing(self, cells: Sequence[Cell]) -> list[tuple[Cell, Cell]]:
        """Return the links from the core that deals an operand out to the first core of the serpentine."""
        first, (row, col) = cells[0], self.snake[0]
        up = [(r, first[1]) for r in range(first[0], row, -1)]
        return [*pairwise([*up, *((row, c) for c in range(first[1], col + 1))])]

    @property
    def link_words(self) -> Mapping[tuple[Cell, Cell], float]:
        """Words per sample of operands to and along the serpentine, and of results on their way back."""
        if self.result_bundles > 1:
            return {link: words for band in self.bands for link, words in band.link_words.items()}
        count, held = len(self.snake), len(self.shared) * self.pixel / PAIR
        words = (len(self.stores) - len(self.shared)) * self.elements / PAIR
        along = {link: held + words * (count - i) / count for i, link in enumerate(pairwise(self.snake), 1)}
        for name, cells in self.stores.items():
            for link in self._dealing(cells):
                along[link] = along.get(link, 0.0) + self.count_in(name, self.elements) / PAIR
        return {**super().link_words, **along}

    # ---- program -----------------------------------------------------------------------------------------------------

    def build(self, b: Builder, ports: Ports, samples: int) -> None:
        """Write all bands."""
        for number, band in enumerate(self.bands):
            band.build_band(b, ports.of_band(number), samples)

    def build_band(self, b: Builder, ports: Ports, samples: int) -> None:
        """Write inlets and stores, then the cores of the serpentine."""
        feeds, links = ports.own[: len(self.kernel.inputs)], ports.own[len(self.kernel.inputs) :]
        for name, color, feed in zip(self.kernel.inputs, ports.inward, feeds, strict=True):
            self.take_in(b, name, color, feed, links, samples)
        snake, ((outward, towards),) = self.snake, ports.results
        route_senders(b, outward, snake, towards)
        self._declare(b)

        def write(core: CoreClass, advance: str | None, count: int) -> None:
            self._core(core, feeds, outward, samples, advance, count)

        self.write_cores(b, write)

    def _declare(self, b: Builder) -> None:
        """Declare the buffers; the running value is two banks away from the other operands, and from the first one if a later
        operator reads it too. Pixels begin in even banks, so one that meets all of them begins in an odd one."""
        where = (self.rows, self.columns)
        is_read_again = self.kernel.inputs[0] in met_by(self.kernel)

        def buffer(name: str, bank: int, size: int = self.each) -> Buffer:
            return b.buffer(f"{self.name}.{name}", size, "fp16", where, bank=bank)

        self.taken = [
            [
                buffer(
                    f"operand{i} {turn}",
                    1 if name in self.shared else 2 if i or is_read_again else 0,
                    self.count_in(name, self.each),
                )
                for i, name in enumerate(self.kernel.inputs)
            ]
            for turn in (0, 1)
        ]
        self.results = [buffer(f"result{turn}", 0) for turn in (0, 1)]
        self.held = [buffer(f"parameter{i}", 2) for i in range(len(self.kernel.parameters))]

    def _core(
        self,
        core: CoreClass,
        feeds: Sequence[int],
        outward: int,
        samples: int,
        advance: str | None,
        count: int,
    ) -> None:
        threads, names = tuple(range(1, len(feeds) + 1)), self.kernel.inputs
        at_once = self.pixel if self.shared else count

        def receive(turn: int) -> None:
            for thread, feed, target, name in zip(threads, feeds, self.taken[turn], names, strict=True):
                receive_all(core, feed, target.dsd(0, self.count_in(name, count)), thread)

        def work(turn: int) -> None:
            held = {"operand": self.taken[turn], "parameter": self.held}

            def part(buffer: Buffer) -> Operand:
                is_shared = (
                    buffer in self.taken[turn] and names[self.taken[turn].index(buffer)] in self.shared
                )
                return buffer.dsd(0, at_once, step=0 if is_shared or at_once == count else at_once)

            others = [
                scalar(taken) if kind == "number" else part(held[kind][int(taken)])
                for kind, taken in self.others
            ]
            with core.loop(count // at_once):
                self.emit(core, part(self.results[turn]), part(self.taken[turn][0]), others, at_once)
            result = self.results[turn].dsd(0, count)
            send_all(core, fabric_out(outward, advance), result, len(feeds) + 1)

        alternate(core, samples, receive, work, threads)

    def emit(
        self, core: CoreClass, result: Operand, value: Operand, others: Sequence[Operand], count: int
    ) -> None:
        """Write the work on the `count` elements of a core."""
        emit_operators(core, self.operators, result, value, others, self.wafer)

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return every core's part of the parameters."""
        if self.share > 1 or self.result_bundles == 1:
            return super().values(weights)
        return {name: value for band in self.bands for name, value in band.values(weights).items()}
