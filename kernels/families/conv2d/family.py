"""2-D convolution of b images (h, w, c) with k filters of (r, s), direct (no unfolded copy is stored).

Mapping: pixels over the rows of lanes in strips of image lines, input channels and filter taps over the
columns, as a product (M, K) x (K, N):

    forward          M = b out_h out_w,     K = c r s,     N = k / groups
    transposed       M = b h w,             K = c r s,     N = k / groups
    weight gradient  M = c r s,  tokens = b out_h out_w,   N = k / groups

An input gradient is a transposed convolution (attribute `transposed`) with its own dims: c and k are swapped,
and so are input and output. The weight gradient has the dims of the forward kernel. Groups occupy adjacent
columns. Strips exchange halo lines with their neighbours before the product:

    halo = words(lines w ceil(c / c_lane)), sent and received (streamed), when a strip is a part of an image
    lines = max(0, e - stride), transposed (e - 1) // stride, of taps that reach over e = (r - 1) dilation + 1 lines

A core with several lines issues line by line, so a line of odd length rounds up. A transposed convolution
gives min(r, stride) min(s, stride) sums per pixel. A column of streamed weights with whole groups sends none.

unfolded (an attribute): runs of s c elements in whole words, as in a whole model on the fabric; equations
with W = r ceil(s c / 2) words: :mod:`wse_sim.kernels.blocks.word_rows`; at least the time in which the inlet
of a row receives and sends its words. apart (an attribute): depthwise, with channels over the rows and bands of lines over the
columns; equations: :mod:`wse_sim.kernels.blocks.depthwise`. trains (an attribute): the same in a model that trains;
equations: :mod:`wse_sim.kernels.families.conv2d.training_cost`.

Equations of the product: :mod:`wse_sim.kernels.blocks.products`.  Programs:
:mod:`wse_sim.kernels.families.conv2d.convolve` (streamed, forward and transposed),
:mod:`wse_sim.kernels.families.conv2d.gradient` (streamed weight gradient),
:mod:`wse_sim.kernels.families.conv2d.flow` (stationary, all phases).  Band of cost against program: 6 % from
16 filters and 16 pixels per line (17 % if one tap of 5 or more reads from the bank of the sums); weight
gradients as those of gemm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Unpack

import numpy as np

from wse_sim.graph import Kernel, Phase, frozen
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.depthwise import depthwise_cost, depthwise_footprint
from wse_sim.kernels.blocks.elements import fused_cost, fused_forward, fused_probes
from wse_sim.kernels.blocks.probes import product_probe
from wse_sim.kernels.blocks.products import WeightProduct, product_lay
from wse_sim.kernels.blocks.training import before_fusion, product_gradients, unfused
from wse_sim.kernels.contract.equations import bytes_of, per_core, words
from wse_sim.kernels.contract.family import (
    NONE,
    Asked,
    Attrs,
    Case,
    Cost,
    Dims,
    Flow,
    Footprint,
    How,
    Lay,
    Probe,
    ProgramOptions,
    Role,
    Size,
    Tiling,
    asked,
)
from wse_sim.kernels.contract.parameters import sizes
from wse_sim.kernels.contract.registry import register
from wse_sim.kernels.contract.tape import Tape
from wse_sim.kernels.families.conv2d.attributes import Conv2dAttributes
from wse_sim.kernels.families.conv2d.convolve import convolution_program
from wse_sim.kernels.families.conv2d.cost import (
    as_product,
    halo_elements,
    line_pixels,
    store_bytes,
    turns_cost,
    unfolded_cost,
)
from wse_sim.kernels.families.conv2d.flow import flowing_program
from wse_sim.kernels.families.conv2d.gradient import gradient_program
from wse_sim.kernels.families.conv2d.probes import streamed_probe
from wse_sim.kernels.families.conv2d.reference import compute, gradient
from wse_sim.kernels.families.conv2d.training_cost import last_row_bytes, trained_cost


class SlidingProduct(WeightProduct):
    """A convolution over some axes of an image or a volume."""

    attributes = Conv2dAttributes
    takes_epilogue = True
    takes_affine = True
    color = "#a1d99b"
    mappings = ("stationary", "streamed")
    axes: Mapping[str, str] = {"h": "r", "w": "s"}
    """Sizes of the image over which a filter slides, with those of the filter."""

    def flops(self, dims: Dims, attrs: Attrs = NONE, phase: Phase = Phase.FORWARD) -> Size:
        """Return the FLOPs: in every phase 2 per weight of a group and position over which the filter
        slides."""
        stated = Conv2dAttributes.of(attrs)
        found = 2 * dims["b"] * (dims["c"] * dims["k"] // stated.groups)
        for side, taps in self.axes.items():
            found = found * dims[side if stated.transposed else f"out_{side}"] * dims[taps]
        return found

    def gradients(self, kernel: Kernel, gradient: str, tape: Tape) -> None:
        """Emit the filters' gradient with the forward dims; the input gradient slides over the result's
        gradient."""
        gradient, own = before_fusion(kernel, gradient, tape)
        d, attrs = kernel.dims, unfused(kernel)
        # Channels and sizes of input and output are swapped.
        sides = {"c": d["k"], "k": d["c"]}
        for side in self.axes:
            sides |= {side: d[f"out_{side}"], f"out_{side}": d[side]}
        sliding = {**attrs, "transposed": not Conv2dAttributes.of(attrs).transposed}
        of_weights, of_inputs = (d, kernel.sample_dim, True), (frozen({**d, **sides}), sliding)
        product_gradients(kernel, gradient, own, tape, of_weights=of_weights, of_inputs=of_inputs)


class Conv2d(SlidingProduct):
    """The family of 2-D convolutions."""

    name = "conv2d"
    role = Role.MIXER
    dims = sizes(
        b="images",
        h="lines of an image",
        w="pixels of a line",
        c="input channels",
        k="output channels",
        r="lines of a filter",
        s="columns of a filter",
        stride="pixels from one position to the next",
        out_h="lines of the result",
        out_w="columns of the result",
    )
    lies = (
        "streamed: image lines over rows, channels and taps over columns, halo lines first; "
        "stationary: unfolded pixels meet filters at rest"
    )
    programs = "both mappings, all phases; strides, taps, padding, groups"
    bands = "6 %; 17 % where one tap of five and more meets the bank of the sums; weight gradient as gemm"

    def flow(self, dims: Dims, attrs: Attrs = NONE) -> Flow:
        """Return the flow: line by line; after a whole image if trained or depthwise; partial sums travel;
        zero weights are not sent."""
        waits = Conv2dAttributes.of(attrs).trains
        if Conv2dAttributes.of(attrs).apart:
            return Flow(rows=dims["out_h"], is_barrier=True)
        return Flow(rows=dims["out_h"], is_barrier=waits, sums_on_links=True, skips_zero_weights=True)

    def lay(self, dims: Dims, attrs: Attrs = NONE) -> Lay:
        """Return the layout of products; one link for every stream if the kernel trains on the whole fabric, where an
        inlet then stores at least one image, with all its channels."""
        stated, lay = Conv2dAttributes.of(attrs), product_lay(attrs)
        if stated.apart:
            return Lay()
        if not stated.trains:
            return replace(lay, least_rows=2) if stated.unfolded else lay
        held = bytes_of("fp16") * dims["h"] * dims["w"] * dims["c"]
        return replace(lay, most_links=1, store_bytes=held)

    def store_bytes(self, dims: Dims, tiling: Tiling, wafer: Wafer, attrs: Attrs = NONE) -> Size:
        """Return the bytes of an inlet of unfolded pixels: two images of the channels that it receives, fewer with more
        rows, which have their own streams."""
        stated = Conv2dAttributes.of(attrs)
        if stated.unfolded and not stated.trains and tiling.mapping == "stationary":
            return store_bytes(dims, tiling.rows, wafer, attrs)
        return super().store_bytes(dims, tiling, wafer, attrs)

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Return the footprint of the product, plus halo lines; if trained on the whole fabric, at least the
        last row's."""
        phase, dtype, attrs = self.asked(tiling, how)
        if _is_apart(tiling, phase, attrs):
            return depthwise_footprint(dims, attrs, tiling, wafer)
        base = as_product(dims, tiling, wafer, Asked(phase, dtype, attrs)).footprint()
        halo = halo_elements(dims, tiling, attrs) * bytes_of(dtype)
        buffers = base.buffers_bytes + halo
        if Conv2dAttributes.of(attrs).trains and tiling.mapping == "stationary" and phase is Phase.FORWARD:
            rest = base.weights_bytes + base.activations_bytes + base.code_bytes
            buffers = np.maximum(buffers, last_row_bytes(dims, tiling, wafer, attrs) - rest)
        return Footprint(base.weights_bytes, base.activations_bytes, buffers, base.code_bytes)

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost of the product, of the exchange of halo lines, and of the fused operations."""
        phase, dtype, attrs = self.asked(tiling, how)
        streamed = tiling.mapping == "streamed"
        if Conv2dAttributes.of(attrs).trains and not streamed:
            return trained_cost(dims, tiling, wafer, phase, attrs)
        if _is_apart(tiling, phase, attrs):
            return depthwise_cost(dims, attrs, tiling, wafer)
        if Conv2dAttributes.of(attrs).unfolded and not streamed and phase is Phase.FORWARD:
            return unfolded_cost(dims, tiling, wafer, attrs)
        halo = words(halo_elements(dims, tiling, attrs), dtype) * wafer.wavelet_cycles * streamed
        start = 4 * wafer.vector_start_cycles * (halo > 0)
        whole = turns_cost(dims, tiling, wafer, how) + Cost(ramp=2.0 * halo, startup=1.0 * start)
        return whole + fused_cost(fused_forward(attrs, phase), per_core(results(dims), tiling), wafer, dtype)

    compute = staticmethod(compute)

    gradient = staticmethod(gradient)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return the program of stationary lines and streamed weights, or of stationary filters and unfolded
        pixels; without fused operations."""
        if tiling.mapping == "stationary":
            return flowing_program(dims, tiling, wafer, **options)
        if options.get("phase", Phase.FORWARD) is Phase.WEIGHT_GRADIENT:
            return gradient_program(dims, tiling, wafer, **options)
        return convolution_program(dims, tiling, wafer, **options)

    def probes(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> tuple[Probe, ...]:
        """Return a probe of the product on a small rectangle with the same tile, and probes of the fused
        operations.

        No probe measures the exchange of lines.
        """
        wanted = asked(how)
        phase, dtype, attrs = wanted
        product = as_product(dims, tiling, wafer, wanted)
        fused = fused_probes(fused_forward(attrs, phase), per_core(results(dims), tiling), wafer, dtype)
        if tiling.mapping == "stationary":
            return product_probe("product", product), *fused
        cost, line = turns_cost(dims, tiling, wafer, how), line_pixels(dims, attrs)[1]
        return (streamed_probe(dims, product, line, cost), *fused)


def _is_apart(tiling: Tiling, phase: Phase, attrs: Attrs) -> bool:
    return tiling.mapping == "stationary" and phase is Phase.FORWARD and Conv2dAttributes.of(attrs).apart


def results(dims: Dims) -> Size:
    """Return the number of elements of the result."""
    return dims["b"] * dims.get("out_d", 1) * dims["out_h"] * dims["out_w"] * dims["k"]


FAMILY = register(Conv2d())
