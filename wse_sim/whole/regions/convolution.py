"""A convolution: a dense layer on the pixels of an image, which its inlets unfold.

Symbols: an image of H x W pixels of C channels, padding q; N filters of r x s taps and stride z; T = H' W'
pixels of the result. A sample is one row of words, pixel by pixel, channels in order::

    inlet of every row   stores two images; sends its part of r runs of s C elements for every pixel of the result  >
                         rows and columns of products and the last row as in a dense layer of T tokens

An image arrives at all inlets as one stream, or in G parallel bundles of C / G channels, one per row; so K = r s C inputs.
Padding zeros are sent by separate instructions (:mod:`wse_sim.whole.regions.windows`).

A region may compute p neighbouring pixels of a line at a time, as one pixel of p N filters, which have zeros for taps of each
other: K = r (s + (p - 1) z) C inputs, T = H' W' / p. Every bundle of the result has its channels of the first pixel, then of the
next one, so words leave in the same order. The host may send f pixels of a line as one of f C channels, to fill words; windows then
begin where f pixels do, with zeros for those before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from wse_sim.compiler.plan import Stage
from wse_sim.fabric.format.builder import Builder, Place, fabric_in
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.line_ring import LineRing, has_room, held_in
from wse_sim.kernels.contract.equations import divisors
from wse_sim.kernels.contract.family import Cost, Tiling
from wse_sim.kernels.families.conv2d.attributes import Conv2dAttributes
from wse_sim.kernels.families.conv2d.cost import abreast_cost, abreast_of, windows_in
from wse_sim.whole.frozen_layers import frozen_layers
from wse_sim.whole.regions.contract import PAIR, Floats, Inlet, Ports, refused, token_words
from wse_sim.whole.regions.dense import Dense
from wse_sim.whole.regions.fused_work import items_of
from wse_sim.whole.regions.shared_color import route_rows
from wse_sim.whole.regions.turns import alternate
from wse_sim.whole.regions.windows import Unfolding, Windows

RECEIVE = 1  # microthread of the inlet
IMAGE_QUEUE = 1  # of an inlet: a deep one
ITEMS = ("bias", "relu")
Dealing = Callable[[CoreClass, tuple[int, int], tuple[int, int], int], None]
"""Writes an inlet, from its colors (in, out), the elements of a window that it deals out, and the number of samples."""


class Convolution(Dense):
    """A convolution with stationary filters and streamed, unfolded pixels."""

    family = "conv2d"
    title = "convolutions"

    def __init__(
        self, graph: KernelGraph, kernel: Kernel, stage: Stage, wafer: Wafer, abreast: int = 0
    ) -> None:
        self.abreast = abreast or abreast_of(kernel.dims, kernel.attrs)[0]
        super().__init__(graph, kernel, stage, wafer)
        self.tokens = self._dim("out_h") * self._dim("out_w") // self.abreast

    @classmethod
    def tokens_of(cls, graph: KernelGraph, kernel: Kernel) -> int:
        """Return 1: an image is one row."""
        return 1

    @classmethod
    def check(cls, graph: KernelGraph, kernel: Kernel) -> None:
        """Check for one image, an even number of filters, and no fused operations but bias and ReLU."""
        attrs, items = Conv2dAttributes.of(kernel.attrs), items_of(kernel)
        for item in items:
            if item not in ITEMS:
                raise refused(
                    kernel,
                    f"fuses '{item}' to its convolution",
                    f"a convolution on the fabric does {', '.join(ITEMS)}",
                )
        count = 1 + ("bias" in items) + (attrs.eps > 0)
        if len(kernel.inputs) != 1 or len(kernel.parameters) != count:
            raise refused(kernel, "is not a convolution of one image with one weight", "use torch.nn.Conv2d")
        if attrs.dilation != 1 or attrs.transposed:
            raise refused(kernel, "has dilation or is transposed", "use a plain torch.nn.Conv2d")
        windows = Windows.of(kernel)
        own = windows.columns
        own = replace(own, size=own.size - attrs.unread, results=own.results - attrs.spare)
        if attrs.uneven or not (windows.lines.is_regular and own.is_regular):
            raise refused(
                kernel,
                "has different strides or padding along lines and along columns",
                "use the same stride and padding in both directions",
            )
        trains = graph.training and kernel.name not in frozen_layers(graph)
        if not trains and graph.tensors[kernel.inputs[0]].shape[1] % PAIR:
            raise refused(
                kernel,
                f"reads an image of {int(kernel.dims['c'])} channels, but each word contains {PAIR}",
                "give it the image that the host sends, or use an even number of channels",
            )
        if int(kernel.dims["k"]) % PAIR:
            raise refused(
                kernel,
                f"has {int(kernel.dims['k'])} filters, but each word contains {PAIR}",
                "use an even number of filters",
            )

    @property
    def inputs(self) -> int:
        """Number of inputs, K."""
        return self.streams * self._dim("r") * self.windows.run

    @property
    def features(self) -> int:
        """Number of filters of the pixels that are computed at a time, p N."""
        return self._dim("k") * self.abreast

    def _dim(self, name: str) -> int:
        return int(self.kernel.dims[name])

    @property
    def windows(self) -> Windows:
        """The windows over the channels of one bundle."""
        return windows_in(self.kernel.dims, self.kernel.attrs, self.streams, self.abreast)

    @property
    def ring(self) -> LineRing | None:
        """Slots of an inlet for lines; None if it stores two images."""
        return held_in(self.windows, self.wafer)

    @property
    def takes_whole(self) -> bool:
        """Whether inlets wait for a whole image."""
        return self.ring is None

    # ---- inlets ----------------------------------------------------------------------------------------------------

    @property
    def words(self) -> list[int]:
        """Words of a pixel that every row takes, the last one none; a row has one bundle."""
        each, (rows, more) = self.inputs // PAIR // self.streams, divmod(self.fed, self.streams)
        most = self._shares(each, rows + 1) if more else []
        return [*more * most, *(self.streams - more) * self._shares(each, rows), 0]

    @property
    def inlets(self) -> tuple[Inlet, ...]:
        """One inlet next to every row with inputs; all receive the image, or the bundle of their row."""
        each = self.inputs // PAIR // self.streams
        ends = [int(words[-1]) // each for words in self._dealt()[: self.fed]]
        return tuple(
            Inlet(self.kernel.inputs[0], (self.top + i, self.left - 1), bundle)
            for i, bundle in enumerate(ends)
        )

    def build(self, b: Builder, ports: Ports, samples: int) -> None:
        """Write the region, with deep input queues at the inlets."""
        for color in set(ports.inward):
            b.input_queue(color, IMAGE_QUEUE)
        super().build(b, ports, samples)

    def _inlet(self, b: Builder, colors: Sequence[int], feed: int, samples: int) -> None:
        """Write an inlet per row, and the routes of the unfolded words."""
        rows = slice(self.top, self.top + self.fed)
        cells, each = (rows, self.left - 1), self.inputs // PAIR // self.streams
        deal = self._of_lines(b, cells) if self.ring else self._of_images(b, cells)
        for i, (words, place) in enumerate(zip(self._dealt(), self.inlets, strict=False)):
            inlet, before = b.core_class(f"{self.name} inlet {i}"), place.bundle * each
            ends = (PAIR * (int(words[0]) - before), PAIR * (int(words[-1]) + 1 - before))
            deal(inlet, (colors[i], feed), ends, samples)
            b.place(inlet, place.cell)
        route_rows(b, feed, range(self.top, self.top + self.fed), self.left, self.cols)

    def _of_images(self, b: Builder, cells: Place) -> Dealing:
        """Return what writes an inlet that stores two images."""
        size = self.windows.size
        images = [b.buffer(f"{self.name}.image{turn}", size, "fp16", cells) for turn in (0, 1)]
        unfolding = Unfolding(b, self.name, cells, self.windows)

        def write(inlet: CoreClass, colors: tuple[int, int], ends: tuple[int, int], samples: int) -> None:
            def receive(turn: int) -> None:
                _receive(inlet, colors[0], images[turn].dsd(0, size))

            def work(turn: int) -> None:
                unfolding.emit(inlet, colors[1], images[turn], *ends)

            alternate(inlet, samples, receive, work, (RECEIVE,))

        return write

    def _of_lines(self, b: Builder, cells: Place) -> Dealing:
        """Return what writes an inlet that stores the lines under windows and those that arrive meanwhile."""
        windows, ring = self.windows, self.ring
        assert ring is not None  # the caller has asked
        size, last = windows.columns.size * windows.channels, len(ring.steps) - 1
        held = b.buffer(f"{self.name}.lines", ring.slots * size, "fp16", cells)
        unfolding = Unfolding(b, self.name, cells, windows, ring.slot)

        def write(inlet: CoreClass, colors: tuple[int, int], ends: tuple[int, int], samples: int) -> None:
            parts = list(unfolding.parts(*ends))

            def receive(lines: range) -> None:
                if lines:
                    place, count = ring.slot(lines.start) * size, len(lines) * size
                    _receive(inlet, colors[0], held.dsd(place, count))

            def emit(step: int, *, more: bool) -> None:
                inlet.join(RECEIVE)
                if step < last or ring.arrives(last + 1):
                    receive(ring.arrives(step + 1))
                elif more and ring.overlaps:
                    receive(ring.arrives(0))
                for place, count in ring.runs(step):
                    unfolding.emit_lines(inlet, colors[1], held, (place, count), parts)

            def image(*, more: bool) -> None:
                turns = len(ring.steady) // ring.period
                again = ring.steady[: turns * ring.period]
                for step in range(again.start):
                    emit(step, more=more)
                with inlet.loop(turns):
                    for step in again[: ring.period]:
                        emit(step, more=more)
                for step in range(again.stop, last + 1):
                    emit(step, more=more)
                if ring.arrives(last + 1):
                    inlet.join(RECEIVE)
                if more and not ring.overlaps:
                    receive(ring.arrives(0))

            receive(ring.arrives(0))
            with inlet.loop(samples - 1):
                image(more=True)
            image(more=False)

        return write

    def pace(self) -> float:
        """Return the cycles per sample, as the kernel's price has them with the chosen bundles."""
        heard, given = self.streams, self.result_bundles
        stated = {
            "most_bundles": heard,
            "least_bundles": heard,
            "most_results": given,
            "least_results": given,
        }
        return float(np.asarray(self._cost(stated).total))

    @property
    def fastest_cycles(self) -> tuple[float, float]:
        """Cycles per sample with the best numbers of bundles, and those of the busiest core."""
        words = token_words(self.graph, self.kernel.inputs[0]), self._dim("k") // PAIR
        stated = {"most_bundles": words[0], "least_bundles": 0, "most_results": words[1], "least_results": 0}
        cost = self._cost(stated)
        return float(np.asarray(cost.total)), float(np.asarray(cost.compute + cost.fabric))

    def _cost(self, stated: Mapping[str, object]) -> Cost:
        """Return the kernel's price on its compute cores with further attributes, without the fill."""
        kernel = self.kernel.with_samples(1, self.graph.samples)
        place = Tiling(self.region.rows, self.compute_cols, "stationary")
        attrs = {**kernel.attrs, **stated}
        return replace(abreast_cost(kernel.dims, place, self.wafer, attrs, self.abreast), idle=0.0)

    def splits(self, tensor: str) -> Sequence[int]:
        """Return the numbers of bundles of whole words: an image has a row and room for two images in an inlet for every bundle, a
        result equally many channels in each."""
        if tensor == self.kernel.outputs[0]:
            return divisors(self._dim("k") // PAIR, super().splits(tensor)[-1])
        channels = windows_in(self.kernel.dims, self.kernel.attrs).channels
        return self._with_room(divisors(channels // PAIR, self.fed))

    def _with_room(self, counts: Iterable[int]) -> tuple[int, ...]:
        """Return those numbers of bundles of an image for which an inlet can store two of its bundle, or the lines under a
        window."""
        dims, attrs = self.kernel.dims, self.kernel.attrs
        return tuple(n for n in counts if has_room(windows_in(dims, attrs, n, self.abreast), self.wafer))

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return filters and bias with a batch norm folded into them."""
        found = folded(self.kernel, weights)
        if "bias" in self.items:
            name = self.kernel.parameters[1]
            found = {**found, name: self._in_stream_order(np.stack(self.abreast * [found[name]]))}
        return super().values(found)

    def _weight(self, weights: Mapping[str, Floats]) -> Floats:
        """Return filters (N, C, r, s) as (p N, K): bundles of channels, in each of them runs of taps and channels.

        A filter of a group has zeros for the channels of other groups.
        """
        attrs, own = Conv2dAttributes.of(self.kernel.attrs), Windows.of(self.kernel)
        filters = among_all(weights[self.kernel.parameters[0]], attrs.groups).transpose(0, 2, 3, 1)
        taps, channels, together = self.windows.columns.taps, own.channels * attrs.together, attrs.together
        wide = np.zeros((self.abreast, *filters.shape[:2], taps * together, own.channels), np.float32)
        for number, first in enumerate(range(0, self.abreast * own.columns.stride, own.columns.stride)):
            place = own.lead(together) + first
            wide[number, :, :, place : place + own.columns.taps] = filters
        runs = wide.reshape(*wide.shape[:3], taps, channels)
        runs = np.pad(runs, [(0, 0)] * 4 + [(0, channels % PAIR)])
        parts = np.stack(np.split(runs, self.streams, axis=-1), axis=2)
        return self._in_stream_order(parts.reshape(*wide.shape[:2], -1))

    def _in_stream_order(self, each: Floats) -> Floats:
        """Return values (p, N, ...) of the filters of every pixel as (p N, ...): bundle by bundle, pixels in order."""
        bundles, (_, filters, *rest) = self.result_bundles, each.shape
        parts = each.reshape(self.abreast, bundles, filters // bundles, *rest)
        return parts.swapaxes(0, 1).reshape(-1, *rest)


def _receive(inlet: CoreClass, color: int, target: Operand) -> None:
    """Receive elements while the row computes; dealing has priority."""
    inlet.mov(
        target, fabric_in(color),
        dtype="fp16", wire="fp16x4", start="none", thread=RECEIVE, priority="low",
    )  # fmt: skip


def among_all(filters: Floats, groups: int) -> Floats:
    """Return grouped filters (N, C / groups, r, s) as (N, C, r, s), with zeros for the channels of other
    groups."""
    if groups == 1:
        return filters
    wide = np.zeros((groups, len(filters) // groups, groups, *filters.shape[1:]), np.float32)
    wide[np.arange(groups), :, np.arange(groups)] = filters.reshape(groups, -1, *filters.shape[1:])
    return wide.reshape(len(filters), -1, *filters.shape[2:])


def statistics_of(kernel: Kernel) -> tuple[str, ...]:
    """Return the names of running mean and variance of a batch norm that is folded into a convolution; ()
    without one."""
    if kernel.family != "conv2d" or not Conv2dAttributes.of(kernel.attrs).eps:
        return ()
    module = kernel.parameters[1].rpartition(".")[0]
    return tuple(f"{module}.running_{what}".lstrip(".") for what in ("mean", "var"))


def folded(kernel: Kernel, weights: Mapping[str, Floats]) -> Mapping[str, Floats]:
    """Return the weights with a batch norm folded in: w g / sqrt(var + eps), b - mean g / sqrt(var + eps)."""
    if not (names := statistics_of(kernel)):
        return weights
    filters, scale, shift = (np.asarray(weights[name]) for name in kernel.parameters)
    mean, variance = (np.asarray(weights[name]) for name in names)
    factor = scale / np.sqrt(variance + Conv2dAttributes.of(kernel.attrs).eps)
    held = {
        kernel.parameters[0]: filters * factor[:, None, None, None],
        kernel.parameters[1]: shift - mean * factor,
    }
    return {**weights, **held}
