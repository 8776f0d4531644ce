"""A trainable convolution: a product over the pixels of the result, between cores that unfold images and fold
gradients.

Symbols: an image of H x W pixels of C channels, padding q; N filters of r x s taps and stride z; T = H' W'
pixels of the result; a row of cores has k of the K = r even(s C) taps and channels. Next to every row is one
core that stores the images in flight::

    forward     an image arrives during the work on the one before;  k elements of it per pixel of the result   > row
    backward    the same elements again, all pixels                                                            > row
                sums of the row, all pixels  >  the gradient of the image (:mod:`wse_sim.whole.trained.image_gradient`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from wse_sim.compiler.plan import Stage
from wse_sim.fabric.format.builder import Buffer, Builder, fabric_in
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.rounds import even
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.kernels.families.conv2d.attributes import Conv2dAttributes
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.contract import PAIR, Floats, IntArray, refused
from wse_sim.whole.regions.convolution import Convolution
from wse_sim.whole.regions.shared_color import route_rows
from wse_sim.whole.regions.windows import Part, Unfolding, Windows
from wse_sim.whole.room import room_bytes
from wse_sim.whole.trained.contract import Batch, TrainedPorts
from wse_sim.whole.trained.dense import TrainedDense
from wse_sim.whole.trained.dense_inlets import Beside
from wse_sim.whole.trained.image_gradient import Folding, FoldingCores
from wse_sim.whole.trained.pixels import PixelProducts

RECEIVE = 1  # microthread of the cores next to the rows
MOST_STRIDE = 2
INSTRUCTION_BYTES = 8192  # bytes that such a core reserves for its program; it has no weights


class TrainedConvolution(TrainedDense):
    """A convolution with stationary filters: a dense layer whose tokens are unfolded pixels, forward and backward."""

    family = "conv2d"
    title = Convolution.title

    def __init__(
        self, graph: KernelGraph, kernel: Kernel, stage: Stage, wafer: Wafer, needs: frozenset[str]
    ) -> None:
        self.windows = Windows.of(kernel)
        super().__init__(graph, kernel, stage, wafer, needs)
        self.tokens = self.windows.lines.results * self.windows.columns.results
        if self.has_dx and self.windows.channels % PAIR:
            raise refused(
                kernel,
                f"sends gradients of {self.windows.channels} channels, an odd number, but each word contains {PAIR}",
                "use an even number of channels",
            )

    @classmethod
    def tokens_of(cls, graph: KernelGraph, kernel: Kernel) -> int:
        """Return 1: an image is one row."""
        return 1

    @classmethod
    def check(cls, graph: KernelGraph, kernel: Kernel) -> None:
        """Check the kernel as in inference; groups, large strides and a folded batch norm are not supported."""
        Convolution.check(graph, kernel)
        if Conv2dAttributes.of(kernel.attrs).groups != 1:
            raise refused(
                kernel,
                "has groups, which the whole fabric supports in inference only",
                "train a plain torch.nn.Conv2d",
            )
        if int(kernel.dims["stride"]) > MOST_STRIDE:
            raise refused(
                kernel,
                f"has stride {int(kernel.dims['stride'])}, limit {MOST_STRIDE} in training",
                "use a smaller one",
            )
        if Conv2dAttributes.of(kernel.attrs).eps > 0:
            raise refused(
                kernel,
                "fuses a batch norm",
                "train without one; the whole fabric supports it in inference only",
            )

    @property
    def features(self) -> int:
        """Number of filters, N."""
        return int(self.kernel.dims["k"])

    @property
    def kind_of_products(self) -> type[PixelProducts]:
        """The class of the compute cores."""
        return PixelProducts

    has_collectors = False
    """Inlets sum the gradient of the image."""

    @property
    def inputs(self) -> int:
        """Taps and channels of a window, in whole words."""
        return sum(self.row_inputs)

    @property
    def row_groups(self) -> list[range]:
        """Rows that receive the image: all of them, as many as have words."""
        return [range(len(self.words))]

    @property
    def row_inputs(self) -> list[int]:
        """Inputs of every row but the last."""
        return [PAIR * len(words) for words in self.words]

    @cached_property
    def words(self) -> list[IntArray]:
        """First elements of the words of every row, as indices into the runs of a window.

        Words are assigned by pair of channels, so that few rows share a pair, and no row has two if that
        makes no row longer. With an odd number of channels they are assigned run by run.
        """
        run, channels = self.windows.run, self.windows.channels
        first = np.arange(0, self.windows.lines.taps * run, PAIR)
        rows = min(max(1, self.region.rows - 1), len(first))
        if channels % PAIR:
            return np.array_split(first, rows)
        pairs = first[np.argsort(first % run % channels, kind="stable")].reshape(channels // PAIR, -1)
        each = ceil_div(pairs.shape[1], ceil_div(pairs.size, rows))
        if each * len(pairs) <= rows:
            return [part for pair in pairs for part in np.array_split(pair, each)]
        return np.array_split(pairs.reshape(-1), rows)

    @property
    def _order(self) -> IntArray:
        """Elements of the runs of a window in the order of rows."""
        return (np.concatenate(self.words)[:, None] + np.arange(PAIR)).reshape(-1)

    def _parts(self, row: int) -> list[Part]:
        """Return the parts of a window's runs that a row takes."""
        out: list[Part] = []
        for word in self.words[row].tolist():
            line, inside = divmod(word, self.windows.run)
            if out and (out[-1][0], out[-1][1] + out[-1][2]) == (line, inside):
                out[-1] = (line, out[-1][1], out[-1][2] + PAIR)
            else:
                out.append((line, inside, PAIR))
        return out

    @cached_property
    def folding(self) -> Folding:
        """Geometry of the cores that sum the gradient of the image."""
        return Folding(self.windows, self.words)

    # ---- ports -----------------------------------------------------------------------------------------------------

    def gradient_senders(self, tensor: str, bundle: int) -> tuple[Cell, ...]:
        """Return the topmost inlet, and the inlets below whose words it forwards."""
        return self.folding.cells(self.inlets[0].cell)

    @property
    def busy_links(self) -> frozenset[tuple[Cell, Cell]]:
        """Links along the rows of inputs."""
        cols = range(self.left - 1, self.left + self.cols - 1)
        return frozenset(((row, col), (row, col + 1)) for row in range(self.top, self.last) for col in cols)

    def most_in_flight(self) -> int:
        """Return the samples in flight: limited by images in an inlet and by results in the last row."""
        passing = self.folding.held_bytes if self.has_dx else 0
        held = int((self.wafer.sram_usable_bytes - passing - INSTRUCTION_BYTES) // (2 * self._image))
        return max(0, min(held, self.products.most_in_flight(room_bytes(self.wafer))))

    @property
    def _image(self) -> int:
        """Elements of an image, including the one that pads the last run."""
        return int(even(self.windows.size + 1))

    # ---- program ---------------------------------------------------------------------------------------------------

    def build_batch(self, b: Builder, ports: TrainedPorts, batch: Batch) -> None:
        """Write products, the inlets next to them, and the inlet of gradients."""
        self.products.build(b, ports, batch)
        self._declare(b, batch)
        folds = None
        if self.has_dx:
            (back,) = ports.leaving[self.kernel.inputs[0]]
            along, top = self.products.along[0], self.inlets[0].cell
            folds = FoldingCores(b, self.name, self.folding, top, along, self.products.sums, back)
        for row, inlet in enumerate(self.inlets):
            core = b.core_class(f"{self.name} inlet {row}")
            self._inlet(core, row, ports.inward[0], folds, batch)
            b.place(core, inlet.cell)
        route_rows(b, self.products.feed, range(self.top, self.last), self.left, self.cols)
        beside = Beside(b, self.products, batch, 0)
        beside.write_bundle(self.products.groups[0], self.gradient_inlets[0], ports.arriving[0], None)

    def _declare(self, b: Builder, batch: Batch) -> None:
        cells = (slice(self.top, self.last), self.left - 1)
        self._unfolding = Unfolding(b, self.name, cells, self.windows)
        self._images = [
            b.buffer(f"{self.name}.image{slot}", self._image, "fp16", cells)
            for slot in range(batch.in_flight)
        ]

    def _inlet(self, core: CoreClass, row: int, color: int, folds: FoldingCores | None, batch: Batch) -> None:
        """Write an inlet: it stores images and unfolds them, forward and backward."""
        feed, parts = self.products.feed, self._parts(row)

        def receive(image: Buffer) -> None:
            # The next image arrives while the row computes; dealing has priority.
            target = image.dsd(0, self.windows.size)
            core.mov(target, fabric_in(color), dtype="fp16", start="none", thread=RECEIVE, priority="low")

        with core.loop(batch.rounds):
            receive(self._images[0])
            for slot, image in enumerate(self._images):
                core.join(RECEIVE)
                if slot < batch.in_flight - 1:
                    receive(self._images[slot + 1])
                self._unfolding.emit_parts(core, feed, image, parts)
            for image in self._images:
                if folds is None:
                    self._unfolding.emit_parts(core, feed, image, parts)
                else:
                    folds.sample(core, row)
                    self._unfolding.emit_parts(core, feed, image, parts, folds.last_lines(core, row))
                    folds.end(core, row)

    def splits(self, tensor: str) -> Sequence[int]:
        """Return one: image and result have one stream each."""
        return (1,)

    def pace(self) -> float:
        """Return 0: nothing is chosen by it."""
        return 0.0

    # ---- values ----------------------------------------------------------------------------------------------------

    def values(self, weights: Mapping[str, Floats]) -> dict[str, Floats]:
        """Return filters (N, C, r, s) as (N, K), in padded runs of taps and channels, and the bias (N,)."""
        windows, (name, *bias) = self.windows, self.kernel.parameters
        lines = windows.lines.taps
        runs = weights[name].transpose(0, 2, 3, 1).reshape(self.features, lines, -1)
        wide = np.zeros((self.features, lines, windows.run), np.float32)
        wide[:, :, : runs.shape[2]] = runs
        ordered = wide.reshape(self.features, -1)[:, self._order]
        return self.products.values(ordered, weights[bias[0]] if bias else None)

    def weight_in_place(self, weight: Floats) -> Floats:
        """Return filters as (N, C, r, s)."""
        windows = self.windows
        lines, taps, c = windows.lines.taps, windows.columns.taps, windows.channels
        runs = weight[:, np.argsort(self._order)].reshape(self.features, lines, windows.run)
        return runs[:, :, : taps * c].reshape(self.features, lines, taps, c).transpose(0, 3, 1, 2)
