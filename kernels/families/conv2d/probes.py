"""Probe of a convolution: a small convolution whose cores have the tile of the plan.

Symbols: f words per round and t pixels per core of the plan (dims M, K, N of the product).  With streamed
weights, the t pixels become lines of the image (or one shorter line if a core has a part of one), and f
becomes channels times taps, over as many columns as one channel needs. Stationary weights are multiplied by
unfolded pixels, so their probe is that of the product.
"""

from __future__ import annotations

from wse_sim.graph import Attr
from wse_sim.kernels.blocks.probes import ROUNDS, SIDE, steady
from wse_sim.kernels.blocks.products import TiledProduct
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.kernels.contract.family import Cost, Dims, Probe, Size, Tiling
from wse_sim.kernels.families.conv2d.attributes import Conv2dAttributes

Sizes = dict[str, int]


def streamed_probe(dims: Dims, product: TiledProduct, line: Size, cost: Cost) -> Probe:
    """Return the probe of streamed weights; `cost`: of the product on the whole rectangle; `line`: pixels per
    line."""
    tiling, gradient = product.tiling, product.is_gradient
    lane, (f, t) = int(product.lane), map(int, product.tile)
    lines = max(1, round(t / int(line)))
    width = ceil_div(t, lines)
    stated = Conv2dAttributes.of(tiling.options, product.attrs)
    transposed, groups = stated.transposed, stated.groups
    kept = groups >= lane and groups > 1 and not gradient
    if gradient:
        sizes, cols = _features(dims, f)
    elif kept:
        each = ceil_div(groups, lane)
        sizes, cols = {**_taps(dims), "c": 2 * each * int(dims["c"]) // groups}, 2
    else:
        taps = int(dims["r"]) * int(dims["s"])
        cols = max(SIDE, ceil_div(taps, f))
        sizes = {**_taps(dims), "c": max(1, round(f * cols / taps))}
    stride = int(dims["stride"])
    height = 2 if lines * (1 if transposed else stride) >= sizes["r"] - 1 else 1
    sides = _sides(sizes, stride, lines * height, width, transposed)
    attrs: dict[str, Attr] = {"accumulate": stated.accumulate or "fp32"}
    attrs |= {"transposed": True} if transposed else {}
    attrs |= {"groups": 2 * ceil_div(groups, lane)} if kept else {}
    step = Conv2dAttributes.of(attrs).groups
    # The cores that feed and collect hold the words of all rounds, fp32.
    per_round = step * max(f * lines, t * stride * stride, t * sizes["r"])
    start = step * max(1, min(ROUNDS, product.wafer.sram_usable_bytes // (2 * 4 * per_round)))
    return Probe(
        part="product",
        family="conv2d",
        dims={"b": 1, "stride": stride, **sizes, **sides},
        tiling=Tiling(height, cols, "streamed"),
        step="k",
        start=start,
        cost=steady(cost),
        tile=f"{f} words on {lines} lines of {width}",
        dtype=product.dtype,
        phase=product.phase,
        attrs=attrs,
    )


def _taps(dims: Dims) -> Sizes:
    return {name: int(dims[name]) for name in ("r", "s")}


def _features(dims: Dims, f: int) -> tuple[Sizes, int]:
    """Return channels and taps for about f products per pixel, the same in all columns of a weight
    gradient."""
    r, s = int(dims["r"]), int(dims["s"])
    if f >= r * s:
        return {"r": r, "s": s, "c": SIDE * round(f / (r * s))}, SIDE
    return {"r": max(1, round(f / s)), "s": min(s, f), "c": SIDE}, SIDE


def _sides(sizes: Sizes, stride: int, lines: int, width: int, transposed: bool) -> Sizes:
    """Return sizes of image and result for `lines` x `width` pixels; square taps are padded to about whole
    strides."""
    r, s = sizes["r"], sizes["s"]
    pad = max(0, (r - stride) // 2) if r == s else 0
    large = {
        "h": stride * (lines - 1) + max(stride, r - 2 * pad),
        "w": stride * (width - 1) + max(stride, s - 2 * pad),
    }
    small = {"h": lines, "w": width}
    image, result = (small, large) if transposed else (large, small)
    return {**image, "out_h": result["h"], "out_w": result["w"]}
