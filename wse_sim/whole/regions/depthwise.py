"""A convolution with one filter per channel: channels over a column of cores, as in pooling.

Symbols: an image of H x W pixels of C channels, padding q, T pixels of the result; P cores in a column, e
channels on each, whole words::

    inlet of every core   >  of every pixel the words of its core, zeros between lines   core: :mod:`wse_sim.kernels.blocks.depthwise`   > in sequence

Filters, bias and a folded batch norm are stored on the core of their channel. Inlets send the zeros between
lines, so that a tap multiplies the whole image in one instruction.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from wse_sim.fabric.format.builder import Buffer, Builder, Place, scalar
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.kernels.blocks.depthwise import DepthwiseCore, has_own_filters
from wse_sim.kernels.blocks.windows import Windows
from wse_sim.kernels.families.conv2d.attributes import Conv2dAttributes
from wse_sim.whole.regions.contract import PAIR, Floats
from wse_sim.whole.regions.convolution import Convolution, folded
from wse_sim.whole.regions.fused_work import items_of
from wse_sim.whole.regions.image_bands import send_pixels
from wse_sim.whole.regions.pooling import RECEIVE, Pooling
from wse_sim.whole.regions.shared_color import receive_all
from wse_sim.whole.regions.turns import alternate

SUMS, FILTERS, BIAS, IMAGE = "sums", "filters", "bias", "image"
BANKS = {SUMS: 0, IMAGE: 3}  # whole words of channels: a tap never begins in the bank of the sums


class Depthwise(Pooling):
    """A depthwise convolution in inference."""

    family = "conv2d"
    title = Convolution.title

    @classmethod
    def check(cls, graph: KernelGraph, kernel: Kernel) -> None:
        """Check the kernel like any convolution."""
        Convolution.check(graph, kernel)

    @staticmethod
    def is_for(kernel: Kernel) -> bool:
        """Return whether a kernel is a depthwise convolution."""
        return kernel.family == "conv2d" and has_own_filters(
            kernel.dims, Conv2dAttributes.of(kernel.attrs).groups
        )

    @cached_property
    def windows(self) -> Windows:
        """Windows over the lines and columns of an image."""
        return Windows.of(self.kernel)

    @property
    def _has_relu(self) -> bool:
        return "relu" in items_of(self.kernel)

    def core_of(self, windows: Windows, words: int) -> DepthwiseCore:  # type: ignore[override]
        """Return the core that has windows, and a number of words of a pixel."""
        return DepthwiseCore(windows, PAIR * words, self._has_relu, self.wafer)

    # ---- program ---------------------------------------------------------------------------------------------------

    def _declare(self, b: Builder, where: Place) -> tuple[list[Buffer], dict[str, Buffer]]:
        cores = [self.core_of(band.windows, self.words) for band in self.bands]
        full, sums = cores[0], max(core.sums * core.each for core in cores)
        own = {
            SUMS: b.buffer(f"{self.name}.{SUMS}", sums, "fp32", where, bank=BANKS[SUMS]),
            FILTERS: b.buffer(f"{self.name}.{FILTERS}", full.taps * full.each, "fp16", where),
            BIAS: b.buffer(f"{self.name}.{BIAS}", full.each, "fp32", where),
        }
        size, bank = max(core.held * core.each for core in cores), BANKS[IMAGE]
        images = [b.buffer(f"{self.name}.{IMAGE}{turn}", size, "fp16", where, bank=bank) for turn in (0, 1)]
        return images, own

    @property
    def gap(self) -> int:
        """Pixels of zeros between lines: the padding behind one and before the next."""
        return 2 * self.windows.columns.around

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
        (feed, *outs), held = ends, self.core_of(windows, words)
        each, sums = held.each, own[SUMS]

        def receive(turn: int) -> None:
            target = images[turn].dsd(held.margin * each, held.received * each)
            receive_all(core, feed, target, RECEIVE)

        def work(turn: int) -> None:
            for line, column in np.ndindex(windows.lines.taps, windows.columns.taps):
                self._emit_tap(core, held, images[turn], own, (line, column))
            if held.has_relu:
                whole = sums.dsd(0, held.sums * each)
                core.max(whole, whole, scalar(0.0))

            def send(to: Operand, pixel: Operand) -> None:
                core.mov(to, pixel, dtype="fp16", start="none")

            send_pixels(core, windows, sums, each, (each, held.pitch * each), (outs[0], outs[1]), send)

        alternate(core, samples, receive, work, (RECEIVE,))

    def _emit_tap(
        self,
        core: CoreClass,
        held: DepthwiseCore,
        image: Buffer,
        own: Mapping[str, Buffer],
        tap: tuple[int, int],
    ) -> None:
        """Write one tap of all channels, channel by channel; the first tap adds to the bias."""
        (line, column), each, stride = tap, held.each, self.windows.lines.stride
        turns, length = held.vector
        place, at = line * self.windows.columns.taps + column, line * held.wide + column
        down = stride * held.wide * each
        with core.loop(each), core.loop(turns):
            sums = own[SUMS].dsd(0, length, each, step=held.pitch * each, outer_step=1)
            met = image.dsd(at * each, length, stride * each, step=down, outer_step=1)
            weight = own[FILTERS].dsd(place * each, 1, 0, outer_step=1)
            before = sums if place else own[BIAS].dsd(0, 1, 0, outer_step=1)
            core.fmac(sums, before, met, weight, length=length, dtype="mixed")

    # ---- values ----------------------------------------------------------------------------------------------------

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return the filters (tap by tap, channels within a tap) and the bias."""
        held = folded(self.kernel, weights)
        first, *more = (np.asarray(held[name], np.float32) for name in self.kernel.parameters[:2])
        filters = first.reshape(len(first), -1)  # (C, taps)
        bias = more[0] if "bias" in items_of(self.kernel) else np.zeros(len(first), np.float32)
        full = self.core_of(self.windows, self.words)
        x = np.zeros((self.height, len(self.bands), full.taps * full.each), np.float32)
        shift = np.zeros((self.height, len(self.bands), full.each), np.float32)
        for i in range(self.height):
            own = PAIR * self.words_of(i)
            channels = slice(i * full.each, i * full.each + own)
            x[i, :, : full.taps * own] = filters[channels].T.reshape(-1)
            shift[i, :, :own] = bias[channels]
        return {f"{self.name}.{FILTERS}": x, f"{self.name}.{BIAS}": shift}
