"""Cost of a convolution as a matrix product, plus the extra cost of lines, sums and halos."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.products import product
from wse_sim.kernels.blocks.word_rows import PAIR, WordRows
from wse_sim.kernels.contract.equations import ceil_div, ceil_rate, fma_rate
from wse_sim.kernels.contract.family import Cost, Dims, How, Size, Tiling, asked
from wse_sim.kernels.families.conv2d.attributes import Conv2dAttributes
from wse_sim.kernels.families.conv2d.strip import reach_of

MOST_STREAMS = 4  # parallel streams of an image


def most_streams(dims: Dims) -> int:
    """Return the largest number of parallel streams of an image, each with equally many whole words of a pixel."""
    return max(n for n in range(1, MOST_STREAMS + 1) if n == 1 or int(dims["c"]) % (PAIR * n) == 0)


def turns_cost(dims: Dims, tiling: Tiling, wafer: Wafer, how: How) -> Cost:
    """Return the cost of the convolution as a product, without the exchange of halo lines."""
    phase, dtype, attrs = asked(how)
    m, k, n = as_product(dims, phase, attrs)
    whole = product(m, k, n, tiling, wafer, dtype, attrs, phase)
    issue = issue_per_pixel(dims, tiling, m, phase, attrs, dtype, wafer)
    sums = sums_per_pixel(dims, tiling, phase, attrs)
    return replace(whole, compute=whole.compute * issue, fabric=whole.fabric * sums)


def unfolded_cost(dims: Dims, tiling: Tiling, wafer: Wafer, attrs: Mapping[str, Any]) -> Cost:
    """Return the cost of pixels unfolded into runs of whole words, which are spread over the rows.

    The inlet of a row receives the image, or some channels of it, two words per cycle, and sends the words of
    its row. A link carries one word per `wavelet_cycles`, of the image or of the result.
    """
    pixels = dims["b"] * dims["out_h"] * dims["out_w"]
    words = dims["r"] * ceil_div(dims["s"] * dims["c"], PAIR)
    found = WordRows(
        pixels, words, dims["k"], Conv2dAttributes.of(attrs).fused, tiling, wafer, waits=True
    ).cost()
    others = np.maximum(1, tiling.rows - 1)
    streams = most_streams(dims)
    heard = dims["b"] * dims["h"] * dims["w"] * dims["c"] / PAIR / np.minimum(streams, others)
    sent = 1.0 * pixels * ceil_div(words, np.minimum(others, words))
    leaving = 1.0 * pixels * dims["k"] / PAIR / np.minimum(MOST_STREAMS, tiling.cols)
    link = wafer.wavelet_cycles * np.maximum(heard, leaving)
    pace = found.compute + found.fabric + found.stalled_input
    return found + Cost(stalled_input=np.maximum(0.0, np.maximum(heard / 2 + sent, link) - pace))


def as_product(dims: Dims, phase: Phase, attrs: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Return (M, K, N) of the convolution as a matrix product."""
    lines, per_line = line_pixels(dims, attrs)
    pixels = dims["b"] * lines * per_line
    features = dims["c"] * dims["r"] * dims["s"]
    stated = Conv2dAttributes.of(attrs)
    # Unfolded pixels are multiplied by all filters, which have zeros for the channels of other groups.
    outputs = ceil_div(dims["k"], 1 if stated.unfolded else stated.groups)
    if phase is Phase.WEIGHT_GRADIENT:
        return features, pixels, outputs
    return pixels, features, outputs


def line_pixels(dims: Dims, attrs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the lines and pixels over which the taps slide: those of the result, or of the input if
    transposed."""
    if not Conv2dAttributes.of(attrs).transposed:
        return dims["out_h"], dims["out_w"]
    stride = dims["stride"]
    return (
        np.maximum(dims["h"], ceil_div(dims["out_h"], stride)),
        np.maximum(dims["w"], ceil_div(dims["out_w"], stride)),
    )


def issue_per_pixel(
    dims: Dims, tiling: Tiling, pixels: Size, phase: Phase, attrs: Mapping[str, Any], dtype: str, wafer: Wafer
) -> Size:
    """Return issue cycles of whole lines over those of as many pixels in one vector: a line of odd length
    rounds up."""
    if tiling.mapping != "streamed" or phase is Phase.WEIGHT_GRADIENT:
        return 1.0
    w = fma_rate(dtype, wafer, Conv2dAttributes.of(tiling.options, attrs).accumulate)
    line = line_pixels(dims, attrs)[1]
    several = ceil_div(pixels, tiling.lanes * tiling.rows) >= 2 * line
    return np.where(several, ceil_rate(line, w) * w / line, 1.0)


def sums_per_pixel(dims: Dims, tiling: Tiling, phase: Phase, attrs: Mapping[str, Any]) -> Size:
    """Return the words of sums that leave per word of the product: results per pixel of a transposed
    convolution.

    No sums leave if a column of streamed weights has whole groups, because its sums are complete.
    """
    if phase is Phase.WEIGHT_GRADIENT:
        return 1
    groups, lane = Conv2dAttributes.of(attrs).groups, tiling.cols // tiling.lanes
    leave = 1 - (tiling.mapping == "streamed") * (groups > 1) * (groups >= np.asarray(lane))
    if not Conv2dAttributes.of(attrs).transposed:
        return leave
    return leave * np.minimum(dims["r"], dims["stride"]) * np.minimum(dims["s"], dims["stride"])


def halo_lines(taps: Size, stride: Size, attrs: Mapping[str, Any]) -> Size:
    """Return the neighbours' lines that a strip needs: max(0, reach - stride), or (reach - 1) // stride if
    transposed."""
    stated = Conv2dAttributes.of(attrs)
    reach = reach_of(taps, stated.dilation)
    return (reach - 1) // stride if stated.transposed else np.maximum(0, reach - stride)


def halo_elements(dims: Dims, tiling: Tiling, attrs: Mapping[str, Any]) -> Size:
    """Return the elements that a strip receives from its neighbours, for its channels, if it is a part of an
    image."""
    lines = halo_lines(dims["r"], dims["stride"], attrs)
    channels = ceil_div(dims["c"], tiling.cols // tiling.lanes)
    shared = np.asarray(tiling.lanes * tiling.rows) > dims["b"]
    return lines * dims["w"] * channels * shared
