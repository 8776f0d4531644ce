"""Cost of a convolution as a matrix product, plus the extra cost of lines, sums and halos."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from wse_sim.graph import Phase
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.line_ring import has_room, held_bytes, held_in
from wse_sim.kernels.blocks.products import TiledProduct, chain_latency
from wse_sim.kernels.blocks.windows import Windows, surround
from wse_sim.kernels.blocks.word_rows import PAIR, QUEUED_WORDS, WordRows
from wse_sim.kernels.contract.equations import ceil_div, ceil_rate, divisors, up_to
from wse_sim.kernels.contract.family import Asked, Attrs, Cost, Dims, How, Size, Tiling, asked
from wse_sim.kernels.families.conv2d.attributes import Conv2dAttributes
from wse_sim.kernels.families.conv2d.strip import reach_of

MOST_ABREAST = 4
"""Most pixels of a result that are computed at a time: one takes at least two cycles for products of a word and two filters, and two for
their sums, and a link between regions a cycle."""


def streams_of(dims: Dims, attrs: Attrs) -> tuple[int, ...]:
    """Return the numbers of parallel streams of an image, each with equally many whole words of a pixel."""
    return divisors(windows_in(dims, attrs).channels // PAIR, Conv2dAttributes.of(attrs).most_bundles)


def abreast_of(dims: Dims, attrs: Attrs) -> tuple[int, ...]:
    """Return how many neighbouring pixels of a line of the result a region may compute at a time, as one pixel with as many
    times the filters.

    These have zeros for the inputs of each other, so it is faster only where a core has few weights.
    """
    together, apart = Conv2dAttributes.of(attrs).together, int(dims["stride"])
    return tuple(n for n in divisors(int(dims["out_w"]), MOST_ABREAST) if apart * n % together == 0)


def store_bytes(dims: Dims, rows: Size, wafer: Wafer, attrs: Attrs) -> Size:
    """Return the bytes of two images, or of their parts in a stream, in an inlet of a region of `rows` rows, all but one of
    which may have their own streams; if they are too large, of the lines that it holds."""
    counts = streams_of(dims, attrs)
    most = up_to(counts, np.maximum(1, np.asarray(rows) - 1))
    held = [held_bytes(windows_in(dims, attrs, count), wafer) for count in counts]
    return np.array(held)[np.searchsorted(counts, most)]


def windows_in(dims: Dims, attrs: Attrs, streams: int = 1, abreast: int = 0) -> Windows:
    """Return the windows of results that are computed at a time, over the channels of one of several streams."""
    abreast = abreast or abreast_of(dims, attrs)[0]
    found = Windows.sized(dims, surround(dims, attrs)).grouped(Conv2dAttributes.of(attrs).together, abreast)
    return replace(found, channels=found.channels // streams)


def turns_cost(dims: Dims, tiling: Tiling, wafer: Wafer, how: How) -> Cost:
    """Return the cost of the convolution as a product, without the exchange of halo lines."""
    product = as_product(dims, tiling, wafer, asked(how))
    whole, issue = product.cost(), issue_per_pixel(dims, product)
    sums = sums_per_pixel(dims, tiling, product.phase, product.attrs)
    return replace(whole, compute=whole.compute * issue, fabric=whole.fabric * sums)


def unfolded_cost(dims: Dims, tiling: Tiling, wafer: Wafer, attrs: Attrs) -> Cost:
    """Return the cost of a convolution on the fabric that computes as many pixels at a time as is fastest; the busiest core has
    the least work of those that are equally fast."""

    def faster(found: Cost, other: Cost) -> Cost:
        new, old = np.asarray(other.total), np.asarray(found.total)
        return found.replaced(
            (new < old) | ((new == old) & (other.stalled_input > found.stalled_input)), other
        )

    ways = (abreast_cost(dims, tiling, wafer, attrs, abreast) for abreast in abreast_of(dims, attrs))
    return reduce(faster, ways)


def abreast_cost(dims: Dims, tiling: Tiling, wafer: Wafer, attrs: Attrs, abreast: int) -> Cost:
    """Return the cost of `abreast` pixels at a time, unfolded into runs of whole words, which are spread over the rows.

    The inlet of a row receives the image, or some channels of it, two words per cycle, stores two of them, and sends the
    words of its row. A link carries one word per `wavelet_cycles`, of the image or of the result. The image comes in the
    number of streams that is fastest; every stream has its own rows, which share its words, and a stream of the result has
    the filters of at least a column.  Two images in an inlet limit the pace too (:func:`refill_cycles`).
    """
    stated, whole = Conv2dAttributes.of(attrs), windows_in(dims, attrs, 1, abreast)
    own = whole.lines.results * whole.columns.results
    pixels, words, k = dims["b"] * own, dims["r"] * whole.run // PAIR, dims["k"] * abreast
    found = WordRows(pixels, words, k, stated.fused, tiling, wafer).cost()
    fed = np.minimum(np.maximum(1, tiling.rows - 1), words)
    v = PAIR * ceil_div(ceil_div(k, tiling.cols), PAIR)
    per_word = pixels * PAIR * ceil_div(v, wafer.fma_mixed_per_cycle)
    results = up_to(divisors(int(dims["k"]) // PAIR, stated.most_results), np.maximum(1, k // v))
    leaving = np.where(results >= stated.least_results, pixels * k / PAIR / results, np.inf)
    busy, image = found.compute + found.fabric, whole.size / PAIR
    more, beside = 0.0 * busy, np.inf + 0.0 * busy
    for streams in streams_of(dims, attrs):
        each, heard = ceil_div(words / streams, np.maximum(1, fed // streams)), dims["b"] * image / streams
        extra = per_word * (each - ceil_div(words, fed))
        # Until the queues of its row are full, an inlet sends every cycle and receives nothing.
        link = np.maximum(wafer.wavelet_cycles * heard + QUEUED_WORDS, wafer.wavelet_cycles * leaving)
        inlet = np.maximum(heard / 2 + pixels * each, link)
        work, dealt = (busy + extra) / dims["b"], own * each
        windows = windows_in(dims, attrs, streams, abreast)
        inlet = np.maximum(inlet, dims["b"] * waiting_cycles(work, dealt, windows, fed, wafer))
        is_possible = (fed >= streams) & has_room(windows, wafer) & (streams >= stated.least_bundles)
        inlet = np.where(is_possible, inlet, np.inf)
        is_less = np.maximum(busy + extra, inlet) < np.maximum(busy + more, beside)
        more, beside = np.where(is_less, extra, more), np.where(is_less, inlet, beside)
    return found + Cost(compute=more, stalled_input=np.maximum(0.0, beside - busy - more))


def refill_cycles(work: Size, dealt: Size, words: Size, rows: Size, wafer: Wafer) -> Size:
    """Return the least cycles per image of `rows` rows whose inlets store two images and receive `words` words of each; an inlet
    deals out `dealt` words per image, on which its row works for `work` cycles.

    The last row finishes an image a chain of rows later than the first one, and its inlet a queue of Q words before it.  Then that inlet
    has room for the image after the next, which arrives at all inlets at once: a maker sends all streams of an image at the same time,
    and routers hold few words.  The first row begins it when it is complete, two periods after this image::

        2 T >= work + chain of rows - Q (work / dealt - 1) + cycles of the words on the link

    >>> from wse_sim.hardware import load_wafer
    >>> float(refill_cycles(256, 64, 256, 36, load_wafer("wse2")))
    340.0
    """
    queued = QUEUED_WORDS * (work / dealt - 1)
    return (work + chain_latency(rows, wafer) - queued + wafer.wavelet_cycles * words) / 2


def waiting_cycles(work: Size, dealt: Size, windows: Windows, rows: Size, wafer: Wafer) -> Size:
    """Return :func:`refill_cycles` of inlets that store two images; of inlets that store lines, the cycles between two images in the
    same way, step by step: the last row begins a step a chain later than the first one, and then the lines of the next one arrive."""
    words, ring = windows.size / PAIR, held_in(windows, wafer)
    if ring is None:
        return refill_cycles(work, dealt, words, rows, wafer)
    late = chain_latency(rows, wafer) - QUEUED_WORDS * (work / dealt - 1)
    line = wafer.wavelet_cycles * words / windows.lines.size
    works = [work * len(places) / windows.lines.results for places in ring.steps]
    lines = [len(ring.arrives(step)) for step in range(len(ring.steps) + 1)]
    done = arrived = 0.0 * work
    images = [done]
    for _ in range(4):  # until the time between images is steady
        for one, more in zip(works, lines[1:], strict=True):
            free = np.maximum(done + late, arrived)  # the last row begins the step
            done, arrived = np.maximum(done, arrived) + one, free + line * more
        arrived = (arrived if ring.overlaps else np.maximum(arrived, done + late)) + line * lines[0]
        images.append(done)
    return (images[-1] - images[-3]) / 2


def as_product(dims: Dims, tiling: Tiling, wafer: Wafer, how: Asked) -> TiledProduct:
    """Return the convolution as a matrix product."""
    lines, per_line = line_pixels(dims, how.attrs)
    pixels = dims["b"] * lines * per_line
    features = dims["c"] * dims["r"] * dims["s"]
    stated = Conv2dAttributes.of(how.attrs)
    # Unfolded pixels are multiplied by all filters, which have zeros for the channels of other groups.
    outputs = ceil_div(dims["k"], 1 if stated.unfolded else stated.groups)
    m, k = (features, pixels) if how.phase is Phase.WEIGHT_GRADIENT else (pixels, features)
    return TiledProduct(m, k, outputs, tiling, wafer, *how)


def line_pixels(dims: Dims, attrs: Attrs) -> tuple[Any, Any]:
    """Return the lines and pixels over which the taps slide: those of the result, or of the input if
    transposed."""
    if not Conv2dAttributes.of(attrs).transposed:
        return dims["out_h"], dims["out_w"]
    stride = dims["stride"]
    return (
        np.maximum(dims["h"], ceil_div(dims["out_h"], stride)),
        np.maximum(dims["w"], ceil_div(dims["out_w"], stride)),
    )


def issue_per_pixel(dims: Dims, product: TiledProduct) -> Size:
    """Return issue cycles of whole lines over those of as many pixels in one vector: a line of odd length
    rounds up."""
    if product.tiling.mapping != "streamed" or product.is_gradient:
        return 1.0
    w, line = product.rate, line_pixels(dims, product.attrs)[1]
    return np.where(product.tile[1] >= 2 * line, ceil_rate(line, w) * w / line, 1.0)


def sums_per_pixel(dims: Dims, tiling: Tiling, phase: Phase, attrs: Attrs) -> Size:
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


def halo_lines(taps: Size, stride: Size, attrs: Attrs) -> Size:
    """Return the neighbours' lines that a strip needs: max(0, reach - stride), or (reach - 1) // stride if
    transposed."""
    stated = Conv2dAttributes.of(attrs)
    reach = reach_of(taps, stated.dilation)
    return (reach - 1) // stride if stated.transposed else np.maximum(0, reach - stride)


def halo_elements(dims: Dims, tiling: Tiling, attrs: Attrs) -> Size:
    """Return the elements that a strip receives from its neighbours, for its channels, if it is a part of an
    image."""
    lines = halo_lines(dims["r"], dims["stride"], attrs)
    channels = ceil_div(dims["c"], tiling.cols // tiling.lanes)
    shared = np.asarray(tiling.lanes * tiling.rows) > dims["b"]
    return lines * dims["w"] * channels * shared
