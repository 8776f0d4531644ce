"""Pooling: channels over the rows of cores, bands of lines over the columns; each core stores its channels of an image, or
of a band.

Symbols: an image of H x W pixels of C channels, T pixels of the result; P cores in a column, e channels on
each, whole words::

    inlet of every row   >  of every pixel the words of its row     core: :mod:`wse_sim.kernels.blocks.pooling_core`     > out in sequence

An inlet receives all channels, or those of a bundle, and drops those of other rows. The next image arrives
while the current one is processed. Means are scaled as they leave::

    core     H W e / 2 received + T e / 2 sent + sum over instructions of (o + elements / rate)
    inlet    H W C / 2, of the channels that it receives

With several columns of cores (:mod:`wse_sim.whole.regions.image_bands`)::

    inlet of every row   >  collector  <  band 0 <  band 1 ...    the collectors of the rows send in sequence
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np

from wse_sim.fabric.format.builder import Buffer, Builder, Place, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.fabric.format.program import Fn
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.kernels.blocks.pooling_core import (
    BANKS,
    IMAGE,
    LINES,
    RESULT,
    BufferPart,
    PooledCore,
    PoolStep,
    bands_on,
    words_apart,
)
from wse_sim.kernels.blocks.windows import Band, Windows
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.kernels.families.pool2d import Pool2dAttributes
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import PAIR, Floats, Inlet, PlacedKernel, Ports, RegionKind, refused
from wse_sim.whole.regions.image_bands import ImageBuffers, ImageInlet, send_pixels
from wse_sim.whole.regions.shared_color import (
    advance_of,
    place_kinds,
    receive_all,
    route_senders,
    route_takers,
)
from wse_sim.whole.regions.turns import alternate

RECEIVE = 1  # microthread
LEAST = -65504.0  # of fp16


class PoolingPlace(PlacedKernel):
    """Maximum or mean of windows: channels over a column of cores."""

    family = "pool2d"
    title = "pooling"

    @cached_property
    def windows(self) -> Windows:
        """Windows over the lines and columns of an image."""
        return Windows.sized(self.kernel.dims, Pool2dAttributes.of(self.kernel.attrs).around)

    @property
    def own_colors(self) -> int:
        """One color, for images."""
        return 1

    @property
    def is_max(self) -> bool:
        """Whether it takes the maximum instead of the mean."""
        return Pool2dAttributes.of(self.kernel.attrs).kind == "max"

    @property
    def channel_words(self) -> int:
        """Words of a pixel."""
        return self.windows.channels // PAIR

    @property
    def words(self) -> int:
        """Words of a pixel on the fullest core."""
        return int(words_apart(self.windows.channels, self.region.rows))

    @classmethod
    def tokens_of(cls, graph: KernelGraph, kernel: Kernel) -> int:
        """Return 1: an image is one row."""
        return 1

    @classmethod
    def check(cls, graph: KernelGraph, kernel: Kernel) -> None:
        """Check for one image, whole windows, and an even number of channels."""
        attrs = Pool2dAttributes.of(kernel.attrs)
        if attrs.uneven:
            raise refused(
                kernel,
                "has windows that are cut off, dilated or of several sizes",
                "use padding without ceil_mode, and averages that count it",
            )
        if int(kernel.dims["c"]) % PAIR:
            raise refused(
                kernel,
                f"has {int(kernel.dims['c'])} channels, but each word contains {PAIR}",
                "use an even number of channels",
            )

    def extent(self) -> tuple[int, int]:
        """Return the size of a column of cores."""
        return int(ceil_div(self.channel_words, self.words)), 1

    @property
    def senders(self) -> tuple[Cell, ...]:
        """All cores, in channel order."""
        return tuple((self.top + i, self.left) for i in range(self.height))

    def words_of(self, core: int) -> int:
        """Return the words of a pixel that a core stores."""
        return min(self.words, self.channel_words - core * self.words)

    def emit(self, core: CoreClass, step: PoolStep, operand: Callable[[BufferPart, int], Operand]) -> None:
        """Write an instruction; `operand` returns the operand for a part of a buffer and a number of elements."""
        dtype = "fp16" if self.is_max else "fp32"
        with core.loop(step.turns):
            to, *reads = (operand(each, step.length) for each in (step.to, *step.reads))
            if step.op == "step":
                period = round(1000 / self.wafer.max_fp16_per_cycle)
                core.map(Fn.STEP, to, *reads, dtype=dtype, period=period)
            else:
                getattr(core, step.op)(to, *(reads or [scalar(0.0)]), dtype=dtype)


class Pooling(PoolingPlace, RegionKind):
    """Pooling in inference."""

    @cached_property
    def bands(self) -> tuple[Band, ...]:
        """Bands of lines of the result, one per column of cores with an image."""
        return self.windows.bands(int(bands_on(self.windows, self.compute_cols)))

    def extent(self) -> tuple[int, int]:
        """Return the size of the columns of cores: the first of several collects the results of the others."""
        return super().extent()[0], len(self.bands) + self.is_collected

    @property
    def is_collected(self) -> bool:
        """Whether the first column collects the results of the bands."""
        return len(self.bands) > 1

    @property
    def image_columns(self) -> slice:
        """Fabric columns of the cores with an image."""
        return slice(self.left + self.is_collected, self.left + self.cols)

    @property
    def own_colors(self) -> int:
        """Colors for images, and for results that are collected."""
        return 1 + self.is_collected

    @property
    def inlets(self) -> tuple[Inlet, ...]:
        """One inlet next to every row of cores."""
        tensor, each = self.kernel.inputs[0], self.height // self.bundles.get(self.kernel.inputs[0], 1)
        return tuple(Inlet(tensor, (self.top + i, self.left - 1), i // each) for i in range(self.height))

    def splits(self, tensor: str) -> tuple[int, ...]:
        """Return the numbers of bundles for which every bundle has the same number of whole rows of cores."""
        if self.channel_words % self.height:
            return (1,)
        return tuple(count for count in range(1, self.height + 1) if self.height % count == 0)

    def pace(self) -> float:
        """Return the cycles per sample, as the kernel's price has them with the chosen bundles."""
        heard = self.bundles.get(self.kernel.inputs[0], 1)
        return self.priced_cycles(
            most_bundles=heard, most_results=self.result_bundles, least_bundles=0, least_results=0
        )

    def core_of(self, windows: Windows, words: int) -> PooledCore:
        """Return the core that has windows, and a number of words of a pixel."""
        return PooledCore(windows, PAIR * words, self.is_max, self.wafer)

    def _band_cores(self, words: int) -> list[PooledCore]:
        """Return the cores of a row, band by band."""
        return [self.core_of(band.windows, words) for band in self.bands]

    @property
    def inner_words(self) -> Mapping[tuple[Cell, Cell], float]:
        """Words per sample on the links of the rows: images eastward, and results of bands westward."""
        found, width = dict[tuple[Cell, Cell], float](), self.windows.columns
        for row, place in enumerate(self.inlets):
            image = result = 0.0
            cells, words = self._row(row), self.words_of(row)
            before = [place.cell, *([(self.top + row, self.left)] * self.is_collected), *cells[:-1]]
            for here, there, band in zip(
                reversed(before[-len(cells) :]), reversed(cells), reversed(self.bands), strict=True
            ):
                image += band.windows.lines.size * width.size * words
                result += band.windows.lines.results * width.results * words
                found[here, there] = image
                if self.is_collected:
                    found[there, here] = result
            if self.is_collected:
                found[before[0], before[1]] = image
        return found

    # ---- program ---------------------------------------------------------------------------------------------------

    def build(self, b: Builder, ports: Ports, samples: int) -> None:
        """Write the inlets, and one core class per send order, band and number of channels."""
        feed, where = ports.own[0], (self.rows, self.image_columns)
        self._route_feed(b, feed)
        self._write_inlets(b, ports.inward, feed, samples)
        images, own = self._declare(b, where)
        for bundle, (color, towards) in enumerate(ports.results):
            cells = self.bundle_senders(bundle)
            route_senders(b, color, cells, towards)

            def write(core: CoreClass, kind: tuple[int, str | None], color: int = color) -> None:
                (words, advance), count = kind, self.windows.lines.results * self.windows.columns.results
                out = fabric_out(color, advance)
                if not self.is_collected:
                    self._write_core(
                        core, (feed, out, out), images, own, samples, words, self.bands[0].windows
                    )
                    return
                with core.loop(samples * count):
                    arriving = fabric_in(ports.own[1])
                    core.mov(out, arriving, length=PAIR * words, dtype="fp16", start="none")

            kinds = {
                cell: (self.words_of(cell[0] - self.top), advance_of(i, len(cells)))
                for i, cell in enumerate(cells)
            }
            place_kinds(b, kinds, f"{self.name} bundle {bundle}", write)
        if self.is_collected:
            self._write_bands(b, feed, ports.own[1], images, own, samples)

    def _row(self, row: int) -> list[Cell]:
        """Return the cores with an image in a row, band by band."""
        return [(self.top + row, col) for col in range(self.image_columns.start, self.image_columns.stop)]

    def _route_feed(self, b: Builder, feed: int) -> None:
        """Route the words of an inlet to the cores of its row, which take them in sequence."""
        for row, place in enumerate(self.inlets):
            route_takers(b, feed, place.cell, self._row(row))

    def _write_bands(
        self,
        b: Builder,
        feed: int,
        collected: int,
        images: list[Buffer],
        own: Mapping[str, Buffer],
        samples: int,
    ) -> None:
        """Write the cores of the bands, which send in sequence to the first core of their row."""
        kinds: dict[Cell, tuple[int, int]] = {}
        for row in range(self.height):
            cells = self._row(row)
            b.route(collected, (self.top + row, self.left), rx="E", tx="R")
            route_senders(b, collected, cells, "W")
            kinds |= {cell: (self.words_of(row), number) for number, cell in enumerate(cells)}

        def write(core: CoreClass, kind: tuple[int, int]) -> None:
            words, number = kind
            out = fabric_out(collected), fabric_out(collected, advance_of(number, len(self.bands)))
            self._write_core(core, (feed, *out), images, own, samples, words, self.bands[number].windows)

        place_kinds(b, kinds, f"{self.name} band", write)

    def _declare(self, b: Builder, where: Place) -> tuple[list[Buffer], dict[str, Buffer]]:
        """Declare two image buffers, and all other buffers of a core."""
        cores, dtype = self._band_cores(self.words), "fp16" if self.is_max else "fp32"
        held, size = max(core.held for core in cores), max(core.pixels * core.each for core in cores)
        own = {
            key: b.buffer(f"{self.name}.{key}", held, dtype, where, bank=BANKS[key])
            for key in (LINES, RESULT)
        }
        images = [
            b.buffer(f"{self.name}.{IMAGE}{turn}", size, "fp16", where, bank=BANKS[IMAGE]) for turn in (0, 1)
        ]
        return images, own

    @property
    def gap(self) -> int:
        """Pixels of zeros that an inlet sends between lines."""
        return 0

    def _write_inlets(self, b: Builder, inward: Sequence[int], feed: int, samples: int) -> None:
        """Write the inlets: each forwards its row's words of a pixel and discards the other words."""
        heard = self.channel_words // self.bundles.get(self.kernel.inputs[0], 1)
        cells, width = (self.rows, self.left - 1), PAIR * self.words
        buffers = ImageBuffers(
            b.buffer(f"{self.name}.others", PAIR * heard, "fp16", cells),
            b.buffer(f"{self.name}.zeros", max(1, self.gap * width), "fp16", cells),
            b.buffer(
                f"{self.name}.shared",
                max(1, max(band.shared for band in self.bands) * self.windows.columns.size * width),
                "fp16",
                cells,
            ),
        )
        for i, (place, color) in enumerate(zip(self.inlets, inward, strict=True)):
            core, own = b.core_class(f"{self.name} inlet {i}"), self.words_of(i)
            before = i * self.words - place.bundle * heard
            inlet = ImageInlet(
                core,
                (color, feed),
                buffers,
                self.windows.columns.size,
                (before, own, heard - before - own),
                self.gap,
            )
            with core.loop(samples):
                inlet.deal(self.bands)
            b.place(core, place.cell)

    def _write_core(
        self,
        core: CoreClass,
        ends: tuple[int, Operand, Operand],
        images: list[Buffer],
        own: Mapping[str, Buffer],
        samples: int,
        words: int,
        windows: Windows,
    ) -> None:
        (feed, out, last_out), pooled = ends, self.core_of(windows, words)
        columns, each = windows.columns, pooled.each

        def receive(turn: int) -> None:
            target = images[turn].dsd(0, pooled.pixels * each)
            receive_all(core, feed, target, RECEIVE)

        def work(turn: int) -> None:
            def operand(at: BufferPart, length: int) -> Operand:
                buffer = images[turn] if at.buffer == IMAGE else own[at.buffer]
                return buffer.dsd(at.first, length, at.stride, step=at.apart)

            for step in pooled.steps():
                self.emit(core, step, operand)
            result = own[RESULT if columns.taps > 1 else LINES]

            def send(to: Operand, pixel: Operand) -> None:
                if self.is_max:
                    core.mov(to, pixel, dtype="fp16", start="none")
                else:
                    part = scalar(1.0 / (windows.lines.taps * columns.taps))
                    core.mul(to, pixel, part, dtype="fp16", start="none")

            send_pixels(
                core,
                windows,
                result,
                each,
                (columns.stride * each, pooled.pitch * each),
                (out, last_out),
                send,
            )

        alternate(core, samples, receive, work, (RECEIVE,))

    # ---- values and cycles -----------------------------------------------------------------------------------------

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return the padding next to the lines of a maximum."""
        if not self.is_max:
            return {}
        size = max(core.held for core in self._band_cores(self.words))
        found = np.full((self.height, len(self.bands), size), LEAST, np.float32)
        return {f"{self.name}.{LINES}": found}
