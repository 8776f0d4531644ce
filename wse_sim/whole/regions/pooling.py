"""Pooling: channels over a column of cores; each core stores its channels of a whole image.

Symbols: an image of H x W pixels of C channels, T pixels of the result; P cores in a column, e channels on
each, whole words::

    inlet of every core   >  of every pixel the words of its core     core: :mod:`wse_sim.kernels.blocks.pooling_core`     > out in sequence

An inlet receives all channels, or those of a bundle, and drops those of other cores. The next image arrives
while the current one is processed. Means are scaled as they leave::

    core     H W e / 2 received + T e / 2 sent + sum over instructions of (o + elements / rate)
    inlet    H W C / 2, of the channels that it receives
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from wse_sim.fabric.format.builder import Buffer, Builder, Place, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.kernels.blocks.pooling_core import BANKS, IMAGE, LINES, RESULT, PooledCore, Step, words_apart
from wse_sim.kernels.blocks.windows import Windows
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.kernels.families.pool2d import Pool2dAttributes
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import PAIR, Floats, Inlet, PlacedKernel, Ports, RegionKind, refused
from wse_sim.whole.regions.shared_color import advance_of, alternate, route_senders

RECEIVE = 1  # microthread
LEAST = -65504.0  # of fp16


class PoolingPlace(PlacedKernel):
    """Maximum or mean of windows: channels over a column of cores."""

    family = "pool2d"
    title = "pooling"
    own_colors = 1

    @cached_property
    def windows(self) -> Windows:
        """Windows over the lines and columns of an image."""
        return Windows.sized(self.kernel.dims, Pool2dAttributes.of(self.kernel.attrs).around)

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


class Pooling(PoolingPlace, RegionKind):
    """Pooling in inference."""

    @property
    def inlets(self) -> tuple[Inlet, ...]:
        """One inlet next to every core."""
        tensor, each = self.kernel.inputs[0], self.height // self.bundles.get(self.kernel.inputs[0], 1)
        return tuple(Inlet(tensor, (self.top + i, self.left - 1), i // each) for i in range(self.height))

    def splits(self, tensor: str) -> tuple[int, ...]:
        """Return the numbers of bundles for which every bundle has the same number of whole cores."""
        if self.channel_words % self.height:
            return (1,)
        return tuple(count for count in range(1, self.height + 1) if self.height % count == 0)

    def pace(self) -> float:
        """Return the cycles per sample; cores wait to send in sequence, and a link brings a word per
        `wavelet_cycles`."""
        core = self._core(self.words)
        heard = self.channel_words // self.bundles.get(self.kernel.inputs[0], 1)
        cores = self.height // self.bundles.get(self.kernel.outputs[0], 1)
        return max(
            core.issued_cycles() + core.turn_cycles(cores), core.pixels * heard * self.wafer.wavelet_cycles
        )

    def _core(self, words: int) -> PooledCore:
        return PooledCore(self.windows, PAIR * words, self.is_max, self.wafer)

    # ---- program ---------------------------------------------------------------------------------------------------

    def build(self, b: Builder, ports: Ports, samples: int) -> None:
        """Write the inlets, and one core class per send order and number of channels."""
        feed, where = ports.own[0], (self.rows, self.columns)
        b.route(feed, (self.rows, self.left - 1), rx="R", tx="E")
        b.route(feed, where, rx="W", tx="R")
        self._write_inlets(b, ports.inward, feed, samples)
        images, own = self._declare(b, where)
        for bundle, (color, towards) in enumerate([(ports.outward, ports.towards), *ports.others]):
            cells = self.bundle_senders(bundle)
            route_senders(b, color, cells, towards)
            kinds = [
                (self.words_of(cell[0] - self.top), advance_of(i, len(cells))) for i, cell in enumerate(cells)
            ]
            for words, advance in dict.fromkeys(kinds):
                core = b.core_class(f"{self.name} {words} {advance or ''} of bundle {bundle}")
                self._write_core(core, (feed, fabric_out(color, advance)), images, own, samples, words)
                for cell, kind in zip(cells, kinds, strict=True):
                    if kind == (words, advance):
                        b.place(core, cell)

    def _declare(self, b: Builder, where: Place) -> tuple[list[Buffer], dict[str, Buffer]]:
        """Declare two image buffers, and all other buffers of a core."""
        full, dtype = self._core(self.words), "fp16" if self.is_max else "fp32"
        own = {
            key: b.buffer(f"{self.name}.{key}", full.held, dtype, where, bank=BANKS[key])
            for key in (LINES, RESULT)
        }
        size = full.pixels * full.each
        images = [
            b.buffer(f"{self.name}.{IMAGE}{turn}", size, "fp16", where, bank=BANKS[IMAGE]) for turn in (0, 1)
        ]
        return images, own

    def _write_inlets(self, b: Builder, inward: Sequence[int], feed: int, samples: int) -> None:
        """Write the inlets: each forwards its core's words of a pixel and discards the other words."""
        heard = self.channel_words // self.bundles.get(self.kernel.inputs[0], 1)
        cells, pixels = (self.rows, self.left - 1), self._core(self.words).pixels
        others = b.buffer(f"{self.name}.others", PAIR * heard, "fp16", cells)
        for i, (place, color) in enumerate(zip(self.inlets, inward, strict=True)):
            inlet, own = b.core_class(f"{self.name} inlet {i}"), self.words_of(i)
            before = i * self.words - place.bundle * heard
            whole = own == heard
            with inlet.loop(samples), inlet.loop(1 if whole else pixels):
                for words, is_own in ((before, False), (own, True), (heard - before - own, False)):
                    if words:
                        target = fabric_out(feed) if is_own else others.dsd(0, PAIR * words)
                        count = PAIR * words * (pixels if whole else 1)
                        inlet.mov(target, fabric_in(color), length=count, dtype="fp16", start="none")
            b.place(inlet, place.cell)

    def _write_core(
        self,
        core: CoreClass,
        ends: tuple[int, Operand],
        images: list[Buffer],
        own: Mapping[str, Buffer],
        samples: int,
        words: int,
    ) -> None:
        (feed, out), pooled = ends, self._core(words)
        lines, columns, each = self.windows.lines, self.windows.columns, pooled.each

        def receive(turn: int) -> None:
            target = images[turn].dsd(0, pooled.pixels * each)
            core.mov(target, fabric_in(feed), dtype="fp16", start="none", thread=RECEIVE, priority="high")

        def work(turn: int) -> None:
            for step in pooled.steps():
                self._emit(core, step, {**own, IMAGE: images[turn]})
            result = own[RESULT if columns.taps > 1 else LINES]
            with core.loop(lines.results), core.loop(columns.results):
                pixel = result.dsd(0, each, step=columns.stride * each, outer_step=pooled.pitch * each)
                if self.is_max:
                    core.mov(out, pixel, dtype="fp16", start="none")
                else:
                    part = scalar(1.0 / (lines.taps * columns.taps))
                    core.mul(out, pixel, part, dtype="fp16", start="none")

        alternate(core, samples, receive, work, (RECEIVE,))

    def _emit(self, core: CoreClass, step: Step, buffers: Mapping[str, Buffer]) -> None:
        dtype = "fp16" if self.is_max else "fp32"

        def operand(place: tuple[str, int]) -> Operand:
            apart = step.apart[0 if place[0] == step.to[0] else 1]
            return buffers[place[0]].dsd(place[1], step.length, step.stride, step=apart)

        with core.loop(step.turns):
            if len(step.reads) == 1:
                core.mov(operand(step.to), operand(step.reads[0]), dtype=dtype)
                return
            combine = core.max if self.is_max else core.add
            combine(operand(step.to), *map(operand, step.reads), dtype=dtype)

    # ---- values and cycles -----------------------------------------------------------------------------------------

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return the padding next to the lines of a maximum."""
        if not self.is_max:
            return {}
        size = self._core(self.words).held
        return {f"{self.name}.{LINES}": np.full((self.height, self.cols, size), LEAST, np.float32)}

    def issued_cycles(self) -> float:
        """Return the issue cycles of the first core, which has the most channels."""
        return self._core(self.words).issued_cycles()
