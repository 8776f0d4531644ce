"""Direct 3 x 3 convolution as a fabric program: image lines over rows, channels over columns, weights stream.

Each core holds one line of its c channels with a zero at both ends.  Before the product it multicasts the
line to both neighbours (three colors, by row modulo 3) and receives theirs: three lines, stored one after
another.  A filter tap is a displacement into these lines, so no unfolded copy is stored: the c weights of a
tap trigger multiply-accumulates over the pixels at that displacement.  Sums leave along the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.hardware import Wafer
from wse_sim.kernels.base import Case, Tiling
from wse_sim.kernels.equations import ceil_div
from wse_sim.kernels.lines import new_builder
from wse_sim.kernels.triggered import FEED, SUMS, Shape, route_shape, send_sums

SIDE = 3
LINES = (3, 4, 5)  # colors of the lines, by row modulo 3


def check_convolution(dims: Mapping[str, Any], tiling: Tiling, attrs: Mapping[str, Any]) -> None:
    """What the program can do.

    Raises
    ------
    KernelError
        Unless one image of a same-size 3 x 3 convolution lies with one line per row of cores.
    """
    expected = {"b": 1, "r": SIDE, "s": SIDE, "stride": 1, "out_h": dims["h"], "out_w": dims["w"]}
    wrong = [name for name, value in expected.items() if dims[name] != value]
    if tiling.mapping != "streamed" or int(tiling.lanes) != 1 or int(tiling.rows) != int(dims["h"]):
        wrong.append("rows")
    if int(dims["c"]) % int(tiling.cols):
        wrong.append("cols")
    if wrong or int(attrs.get("groups", 1)) != 1 or attrs.get("transposed", False):
        raise KernelError(
            f"conv2d has no fabric program for this {', '.join(wrong) or 'kind'}; it runs one image, 3 x 3, "
            "stride 1, same size, streamed, one image line per row of cores, whole channels per column"
        )


def convolution_program(dims: Mapping[str, Any], tiling: Tiling, wafer: Wafer, **options: Any) -> Case:
    """The program and the values of a convolution by shifted products."""
    from wse_sim.fabric.builder import fabric_in, fabric_out
    from wse_sim.fabric.classes import WAVELET

    check_convolution(dims, tiling, options.get("attrs") or {})
    height, width, turns = int(dims["h"]), int(dims["w"]), int(dims["k"])
    lane = int(tiling.cols)
    c = int(dims["c"]) // lane
    exact = str(options.get("dtype", "fp16")) == "fp32"
    at_rest, dtype = ("fp32", "fp32") if exact else ("fp16", "mixed")
    # A line of one channel fills whole turns of the banks; taps then start 1 to 5 banks off the sums.
    pitch = wafer.sram_banks * ceil_div(width + SIDE - 1, wafer.sram_banks)
    shape = Shape(height, lane, turns, c * SIDE * SIDE, width, True)
    b = new_builder(height + 1, lane + 1, wafer)
    inner = slice(1, None)
    words = b.buffer("words", shape.f * turns, "fp32", (0, inner))
    sums = b.buffer("sums", width * turns, "fp32", (inner, 0))
    y = b.buffer("y", width, "fp32", (inner, inner), bank=0)
    x = b.buffer("x", SIDE * c * pitch, at_rest, (inner, inner), bank=1)
    feeder, collector = b.core_class("feeder"), b.core_class("collector")
    feeder.mov(fabric_out(FEED), words.dsd(), start="none")
    collector.mov(sums.dsd(), fabric_in(SUMS[1]), start="none")
    b.place(feeder, (0, inner))
    b.place(collector, (inner, 0))
    for i in range(1, height + 1):
        for j in range(1, lane + 1):
            core = b.core_class(f"core {i} {j}")
            if height > 1:
                core.mov(fabric_out(LINES[i % 3]), x.dsd(c * pitch, c * pitch), dtype=at_rest, thread=1)
            for at, other in ((0, i - 1), (2, i + 1)):
                if 1 <= other <= height:
                    line = x.dsd(at * c * pitch, c * pitch)
                    core.mov(line, fabric_in(LINES[other % 3]), dtype=at_rest)
            with core.body(core.data_task(FEED)):
                core.mul(y.dsd(), x.dsd(0, width), WAVELET, dtype=dtype, start="none")
                for tap in range(SIDE * SIDE):
                    # The product above took the first channel of the first tap.
                    first = int(tap == 0)
                    start = (tap // SIDE * c + first) * pitch + tap % SIDE
                    if c > first:
                        core.fmac_vectors(
                            *(y.dsd(), fabric_in(FEED), x.dsd(start, width), width),
                            b_stride=pitch,
                            triggered=True,
                            length=c - first,
                            dtype=dtype,
                            start="none",
                        )
                send_sums(core, shape, j, y)
            b.place(core, (i, j))
    route_shape(b, shape)
    for i in range(1, height + 1):
        sides = ("N" if i > 1 else "") + ("S" if i < height else "")
        if sides:
            b.route(LINES[i % 3], (i, inner), rx="R", tx=sides)
        for other, port in ((i - 1, "N"), (i + 1, "S")):
            if 1 <= other <= height:
                b.route(LINES[other % 3], (i, inner), rx=port, tx="R")
    return _case(b, (height, width, c, lane, turns, pitch), int(options.get("seed", 0)))


def _case(b: Any, sizes: tuple[int, ...], seed: int) -> Case:
    """Whole numbers, so that sums are exact in any order; the reference is the family's `compute`."""
    from wse_sim.kernels.conv2d import FAMILY

    height, width, c, lane, turns, pitch = sizes
    rng = np.random.default_rng(seed)
    image = rng.integers(-2, 3, (1, height, width, lane * c)).astype(np.float32)
    filters = rng.integers(-2, 3, (SIDE, SIDE, lane * c, turns)).astype(np.float32)
    out = FAMILY.compute(image, filters, padding=1)[0]
    lines = np.zeros((height, lane, SIDE, c, pitch), np.float32)
    lines[:, :, 1, :, 1 : width + 1] = image[0].reshape(height, width, lane, c).transpose(0, 2, 3, 1)
    # Per column of cores: turns, then taps, then channels.
    words = filters.reshape(SIDE * SIDE, lane, c, turns).transpose(1, 3, 0, 2).reshape(1, lane, -1)
    inputs = {"words": words, "x": lines.reshape(height, lane, -1)}
    expected = out.transpose(0, 2, 1).reshape(height, 1, -1)
    return Case(b.build(), b.config, inputs, {"sums": expected})
