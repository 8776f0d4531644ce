"""A convolution: a dense layer on the pixels of an image, whose inlet unfolds it.

Symbols: an image of H x W pixels of C channels, q lines and columns of zeros around it; N filters of r x s taps and
stride z; T = H' W' pixels of the result.  A sample is one row of words, pixel by pixel, channels in order::

    inlet of every row   image at rest, zeros around it; for every pixel of the result its part of r runs of s C elements  >
                         rows and columns of products and the last row as in a dense layer of T tokens

The image comes to all inlets at once.  Runs are filled up to whole words by an element of the next pixel, which meets zero weights; so K = r even(s C) inputs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from wse_sim.compiler.plan import Stage
from wse_sim.fabric.format.builder import Builder, fabric_in
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.graph import Kernel, KernelGraph
from wse_sim.hardware import Wafer
from wse_sim.kernels.families.conv2d.attributes import Conv2dAttributes
from wse_sim.whole.regions.contract import PAIR, Floats, Inlet, refused
from wse_sim.whole.regions.dense import Dense, items_of
from wse_sim.whole.regions.flowing import Flowing
from wse_sim.whole.regions.turns import alternate
from wse_sim.whole.regions.windows import Unfolding, Windows

RECEIVE = 1  # microthread of the inlet
ITEMS = ("bias", "relu")
MOST_STRIDE = 2  # from wider ones a kernel does not tell how many zeros lie around the image


class Convolution(Dense):
    """Filters at rest; unfolded pixels stream."""

    family = "conv2d"
    title = "convolutions"

    def __init__(self, graph: KernelGraph, kernel: Kernel, stage: Stage, wafer: Wafer) -> None:
        super().__init__(graph, kernel, stage, wafer)
        self.tokens = self._dim("out_h") * self._dim("out_w")

    @classmethod
    def tokens_of(cls, graph: KernelGraph, kernel: Kernel) -> int:
        """An image is one row."""
        return 1

    @classmethod
    def check(cls, graph: KernelGraph, kernel: Kernel) -> None:
        """One image, filters of one group side by side, an even number of them; bias and ReLU."""
        attrs, items = Conv2dAttributes.of(kernel.attrs), items_of(kernel)
        for item in items:
            if item not in ITEMS:
                raise refused(
                    kernel,
                    f"fuses '{item}' to its convolution",
                    f"a convolution on the fabric does {', '.join(ITEMS)}",
                )
        if len(kernel.inputs) != 1 or len(kernel.parameters) != 1 + ("bias" in items):
            raise refused(kernel, "is no convolution of one image with one weight", "use torch.nn.Conv2d")
        if attrs.groups != 1 or attrs.dilation != 1 or attrs.transposed:
            raise refused(kernel, "has groups or dilation, or is transposed", "use a plain torch.nn.Conv2d")
        if int(kernel.dims["stride"]) > MOST_STRIDE:
            raise refused(
                kernel, f"has stride {int(kernel.dims['stride'])}, limit {MOST_STRIDE}", "use a smaller one"
            )
        if int(kernel.dims["k"]) % PAIR:
            raise refused(
                kernel,
                f"has {int(kernel.dims['k'])} filters, and words hold {PAIR}",
                "use an even number of filters",
            )

    @property
    def inputs(self) -> int:
        """K."""
        return self._dim("r") * self._run

    @property
    def features(self) -> int:
        """N."""
        return self._dim("k")

    @property
    def is_better_shared(self) -> bool:
        """No activation of it is slow."""
        return False

    def _dim(self, name: str) -> int:
        return int(self.kernel.dims[name])

    @property
    def _run(self) -> int:
        """Elements of a line under a filter, whole words."""
        return Windows.of(self.kernel).run

    # ---- inlets ----------------------------------------------------------------------------------------------------

    @property
    def inlets(self) -> tuple[Inlet, ...]:
        """Beside every row with inputs: all hear the image."""
        return tuple(Inlet(self.kernel.inputs[0], (self.top + i, self.left - 1)) for i in range(self.fed))

    def _inlet(self, b: Builder, color: int, feed: int, samples: int) -> None:
        """An inlet for every row, and the routes of what it unfolds."""
        rows, size = slice(self.top, self.top + self.fed), Windows.of(self.kernel).size
        cells = (rows, self.left - 1)
        # A word that fills up the last run lies behind the image.
        images = [b.buffer(f"{self.name}.image{turn}", size + 1, "fp16", cells) for turn in (0, 1)]
        unfolding = Unfolding(b, self.name, cells, Windows.of(self.kernel))
        for i, words in enumerate(self._dealt()[: self.fed]):
            inlet, ends = b.core_class(f"{self.name} inlet {i}"), (PAIR * words[0], PAIR * (words[-1] + 1))

            def receive(turn: int, inlet: CoreClass = inlet) -> None:
                # Beside the deals, which go first: the image comes in while the row is busy.
                target = images[turn].dsd(0, size)
                inlet.mov(
                    target, fabric_in(color), dtype="fp16", start="none", thread=RECEIVE, priority="low"
                )

            def work(turn: int, inlet: CoreClass = inlet, ends: tuple[int, int] = ends) -> None:
                unfolding.emit(inlet, feed, images[turn], int(ends[0]), int(ends[1]))

            alternate(inlet, samples, receive, work, (RECEIVE,))
            b.place(inlet, self.inlets[i].cell)
        self._route_rows(b, feed)

    def _weight(self, weights: Mapping[str, Floats]) -> Floats:
        """Filters (N, C, r, s) as (N, K): runs of taps and channels, filled up."""
        filters = weights[self.kernel.parameters[0]].transpose(0, 2, 3, 1)
        runs = filters.reshape(self.features, self._dim("r"), -1)
        wide = np.zeros((self.features, self._dim("r"), self._run), np.float32)
        wide[:, :, : runs.shape[2]] = runs
        return wide.reshape(self.features, -1)


class FlowingConvolution(Flowing, Convolution):
    """A convolution whose last row has no inputs."""
