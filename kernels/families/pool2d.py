"""2-D pooling (max or avg) of b images (h, w, c) over windows of (r, s).

Mapping: outputs spread over all cores, n = ceil(b out_h out_w c / cores); r s vector instructions, each
over the n outputs with the stride of the window in memory.

    T = r s (o + n / rate)          rate: maximum (max) or addition (avg)
    backward: the gradient is added back to the window: the same instructions; of a maximum by the masks
    that the forward pass kept, a selection at the rate of maxima (assumed)

apart (an attribute): channels over the rows of cores, bands of lines over the columns, as in a whole model on the
fabric; equations: :mod:`wse_sim.kernels.blocks.pooling_core`, of one that trains :mod:`wse_sim.kernels.blocks.pooling_core_training`.

Source: vector rates of the SDK documentation.  Program: both kinds and phases; the positions of a window are
stored as planes two banks away from the result. In cost and program, 3-D pooling of volumes (d, h, w, c) over
windows of (t, r, s) is 2-D pooling of d h lines with windows of t r lines.  Band of cost against program: 1 %
from 50 outputs per core.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np

from wse_sim.fabric.format.builder import scalar
from wse_sim.graph import Kernel, Phase, Tensor
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.base_families import OnElements
from wse_sim.kernels.blocks.chains import Chain
from wse_sim.kernels.blocks.pooling_core import CoreOf, PooledCore, apart_bytes, apart_cost
from wse_sim.kernels.blocks.pooling_core_training import trained_apart_cost
from wse_sim.kernels.blocks.probes import arrival_probes, sized_probe
from wse_sim.kernels.blocks.windows import PAIR, Windows
from wse_sim.kernels.contract import numerics as core
from wse_sim.kernels.contract.equations import add_rate, bytes_of, max_rate, per_core, pointwise
from wse_sim.kernels.contract.family import (
    Array,
    Case,
    Cost,
    Dims,
    Footprint,
    How,
    Kept,
    Probe,
    ProgramOptions,
    Size,
    Tiling,
    asked,
)
from wse_sim.kernels.contract.parameters import Attributes, attribute, sizes
from wse_sim.kernels.contract.registry import register


@dataclass(frozen=True)
class Pool2dAttributes(Attributes):
    """Attributes of a pooling."""

    kind: str = attribute("max", "maximum or mean of a window", choices=("max", "avg"))
    around: int = attribute(
        0, "lines and columns around an image, of zeros or of the least number", at_least=0
    )
    apart: bool = attribute(
        False, "stationary: channels over the rows of cores, bands of lines over the columns"
    )
    trains: bool = attribute(
        False, "apart: columns of windows before lines, and of a maximum it is kept which pixel won"
    )
    uneven: bool = attribute(False, "windows are cut off at the border, dilated, or differ in size")


class Pool2d(OnElements):
    """The family of 2-D pooling."""

    name = "pool2d"
    dims = sizes(
        b="images",
        h="lines of an image",
        w="pixels of a line",
        c="channels",
        r="lines of a window",
        s="columns of a window",
        stride="pixels from window to window",
        out_h="lines of the result",
        out_w="columns of the result",
    )
    mappings = ("stationary", "streamed")
    lies = "outputs over all cores"
    programs = "max and avg, forward and backward"
    bands = "1 %"
    attributes = Pool2dAttributes
    rows_by: tuple[str, ...] = ("out_h",)
    moves = True

    def elements(self, dims: Dims) -> Size:
        """Return the number of results."""
        return dims["b"] * dims["out_h"] * dims["out_w"] * dims["c"]

    def footprint(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Footprint:
        """Return the bytes of the operands' stage buffers and of code."""
        phase, _, attrs = self.asked(tiling, how)
        dims, stated = flat(dims), Pool2dAttributes.of(attrs)
        if stated.apart and not stated.trains and phase is Phase.FORWARD and tiling.mapping == "stationary":
            core_of, windows = _core_of(dims, stated, wafer)
            return Footprint(
                buffers_bytes=apart_bytes(core_of, windows, tiling), code_bytes=wafer.kernel_code_bytes
            )
        return super().footprint(dims, tiling, wafer, **how)

    def cost(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> Cost:
        """Return the cost: one vector instruction per position of the window."""
        phase, dtype, attrs = self.asked(tiling, how)
        dims, stated = flat(dims), Pool2dAttributes.of(attrs)
        is_max = stated.kind == "max"
        if stated.apart and tiling.mapping == "stationary":
            if stated.trains or phase is not Phase.FORWARD:
                return trained_apart_cost(dims, stated.around, is_max, phase is Phase.FORWARD, tiling, wafer)
            core_of, windows = _core_of(dims, stated, wafer)
            return apart_cost(core_of, windows, dims, tiling, wafer, stated)
        rate = max_rate(dtype, wafer) if is_max else add_rate(dtype, wafer)
        taps = dims["r"] * dims["s"]
        inputs = max(1.0, dims["h"] * dims["w"] / (dims["out_h"] * dims["out_w"]))
        how_often = {"issue": taps / rate, "instructions": taps, "inputs": round(inputs)}
        return pointwise(self.elements(dims), tiling, wafer, dtype=dtype, **how_often)

    def compute(
        self,
        x: Array,
        *,
        window: int = 2,
        stride: int = 2,
        padding: int = 0,
        kind: str = "max",
        dtype: str = "fp32",
    ) -> Array:
        """Pool x (b, h, w, c): one vector instruction per position of the window."""
        is_max = kind == "max"
        fill = -np.inf if is_max else 0.0
        pads = ((0, 0), (padding, padding), (padding, padding), (0, 0))
        padded = np.pad(core.rounded(x, dtype), pads, constant_values=fill)
        out_h, out_w = ((padded.shape[axis] - window) // stride + 1 for axis in (1, 2))
        total: Array | None = None
        for i, j in np.ndindex(window, window):
            view = padded[:, i : i + stride * out_h : stride, j : j + stride * out_w : stride][
                :, :out_h, :out_w
            ]
            total = view if total is None else core.binary("max" if is_max else "add", total, view)
        assert total is not None  # a window has an element
        return core.rounded(total, dtype) if is_max else core.binary("mul", total, 1.0 / window**2, dtype)

    def program(self, dims: Dims, tiling: Tiling, wafer: Wafer, **options: Unpack[ProgramOptions]) -> Case:
        """Return the program: one vector instruction per window position on every core; positions are stored
        as planes."""
        phase, dtype, attrs = asked(options, "fp32")
        dims = flat(dims)
        c = Chain(
            tiling, int(per_core(self.elements(dims), tiling)), wafer, dtype, int(options.get("seed", 0))
        )
        is_max, taps = Pool2dAttributes.of(attrs).kind == "max", int(dims["r"]) * int(dims["s"])
        (_gather if phase is Phase.FORWARD else _scatter)(c, is_max, taps)
        return c.case()

    def probes(self, dims: Dims, tiling: Tiling, wafer: Wafer, **how: Unpack[How]) -> tuple[Probe, ...]:
        """Return a probe on the outputs of one core."""
        cost, dims = self.cost(dims, tiling, wafer, **how), flat(dims)
        outputs = int(per_core(self.elements(dims), tiling))
        dtype = asked(how).dtype
        # A backward run stores two planes per window position; with more outputs only a part is run.
        most = wafer.sram_usable_bytes // (bytes_of(dtype) * (2 * int(dims["r"] * dims["s"]) + 2)) - 8
        one = dict.fromkeys(Pool2d.dims, 1) | {name: dims[name] for name in ("r", "s", "stride")}
        tile = f"{outputs} outputs of {dims['r']} x {dims['s']}"
        own = sized_probe("outputs", Pool2d.name, one | {"c": outputs}, "c", most, cost, tile, asked(how))
        return (own, *arrival_probes(cost, dtype))

    def keeps(self, kernel: Kernel, trained: frozenset[str], tensors: Mapping[str, Tensor]) -> Kept:
        """Return the inputs, in which the backward pass finds the maximum; none for an average."""
        return Kept() if Pool2dAttributes.of(kernel.attrs).kind == "avg" else Kept(kernel.inputs)


def _core_of(dims: Dims, stated: Pool2dAttributes, wafer: Wafer) -> tuple[CoreOf, Windows]:
    """Return what makes a core of a pooling apart, and the windows of the complete image."""
    is_max = stated.kind == "max"
    windows = Windows.sized(dims, stated.around)
    return (lambda part, words: PooledCore(part, PAIR * words, is_max, wafer)), windows


def _gather(c: Chain, is_max: bool, taps: int) -> None:
    """Emit the maximum or the mean over the positions of the window."""
    y, fraction = c.buffer("y", bank=0).dsd(), scalar(1.0 / taps)
    planes = [c.whole(-99, 99) if is_max else c.whole(-9, 10) for _ in range(taps)]
    for i, plane in enumerate(planes):
        tap = c.buffer(f"tap{i}", plane).dsd()
        if is_max:
            c.core.max(y, tap, y if i else scalar(-6e4), dtype=c.dtype)
        elif i:
            c.core.fmac(y, y, tap, fraction, dtype=c.dtype)
        else:
            c.core.mul(y, tap, fraction, dtype=c.dtype)
    c.expected["y"] = np.max(planes, axis=0) if is_max else np.mean(planes, axis=0)


def _scatter(c: Chain, is_max: bool, taps: int) -> None:
    """Emit the gradient of the positions: added to that of the maximum, or in equal parts to each."""
    gradient = c.whole()
    g = c.buffer("g", gradient).dsd()
    winner = c.rng.integers(0, taps, gradient.shape)
    for i in range(taps):
        before = c.whole()
        tap = c.buffer(f"tap{i}", before, bank=0).dsd()
        if is_max:
            mask = (winner == i).astype(np.float32)
            won = c.buffer(f"won{i}", mask).dsd()
            period = c.period(1.0 / max_rate(c.dtype, c.wafer))
            c.core.fmac(tap, tap, g, won, dtype=c.dtype, period=period)
            c.expected[f"tap{i}"] = before + gradient * mask
        else:
            c.core.fmac(tap, tap, g, scalar(1.0 / taps), dtype=c.dtype)
            c.expected[f"tap{i}"] = (before + gradient / taps).astype(np.float32)


def flat(dims: Dims) -> Dims:
    """Return the 2-D pooling with the same inputs, outputs and positions per window."""
    if "d" not in dims:
        return dims
    same = {name: dims[name] for name in ("b", "w", "c", "s", "stride", "out_w")}
    return {
        **same,
        "h": dims["d"] * dims["h"],
        "r": dims["t"] * dims["r"],
        "out_h": dims["out_d"] * dims["out_h"],
    }


class Pool3d(Pool2d):
    """The family of 3-D pooling: in cost and program a 2-D one."""

    name = "pool3d"
    dims = sizes(
        b="volumes",
        d="slices of a volume",
        h="lines of a slice",
        w="pixels of a line",
        c="channels",
        t="slices of a window",
        r="lines of a window",
        s="columns of a window",
        stride="pixels from window to window",
        out_d="slices of the result",
        out_h="lines of the result",
        out_w="columns of the result",
    )
    lies = "as pool2d"
    programs = "as pool2d"
    rows_by = ("out_d", "out_h")
    bands = ""

    def compute(
        self,
        x: Array,
        *,
        window: int = 2,
        stride: int = 2,
        padding: int = 0,
        kind: str = "max",
        dtype: str = "fp32",
    ) -> Array:
        """Pool x (b, d, h, w, c): 2-D pooling of every slice, then the slices of a window."""
        is_max = kind == "max"
        how: dict[str, Any] = {"window": window, "stride": stride, "padding": padding, "kind": kind}
        planes = super().compute(x.reshape(-1, *x.shape[2:]), **how, dtype=dtype)
        planes = planes.reshape(x.shape[0], x.shape[1], *planes.shape[1:])
        pads = ((0, 0), (padding, padding), (0, 0), (0, 0), (0, 0))
        padded = np.pad(planes, pads, constant_values=-np.inf if is_max else 0.0)
        out_d = (padded.shape[1] - window) // stride + 1
        total: Array = padded[:, 0::stride][:, :out_d]
        for tap in range(1, window):
            total = core.binary("max" if is_max else "add", total, padded[:, tap::stride][:, :out_d])
        return core.rounded(total, dtype) if is_max else core.binary("mul", total, 1.0 / window, dtype)


FAMILY = register(Pool2d())
register(Pool3d())
