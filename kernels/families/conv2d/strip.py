"""The strip of an image that a row of cores stores, and the elements that each filter tap reads from it.

Symbols: l lines of A pixels per core on the side over which the taps slide (results of a convolution,
gradients of a transposed one), c channels, r x s taps with e pixels from one to the next (dilation), stride z,
padding p.  A tap (i, j) maps line a and pixel q of the result to

    forward      line z a + e i - p, pixel z q + e j - p
    transposed   result line z a + u with u = (e i - p) mod z from line a + (u + p - e i) / z; pixels alike

With stride z the results of a transposed convolution fall into z x z residue classes (u, v); each is an
ordinary convolution, with a block of l lines of A sums.  A forward convolution has a single class. The pixels
of a forward strip are stored in z contiguous phases, so that every tap reads a contiguous vector. Storage
order: line, channel, phase, position.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.kernels.contract.family import Attrs, Dims, Size, Tiling
from wse_sim.kernels.families.conv2d.attributes import Conv2dAttributes


@dataclass(frozen=True)
class Tap:
    """Where a tap reads (first stored line, line step, phase, position), and the class that it adds to."""

    i: int
    j: int
    cls: int
    line: int
    step: int
    phase: int
    position: int


@dataclass(frozen=True)
class Strip:
    """Lines per core, pixels per line, taps, stride, padding and dilation; `rows` such strips form the
    image."""

    lines: int
    pixels: int
    r: int
    s: int
    stride: int
    pad: int
    transposed: bool
    rows: int
    height: int  # of the stored image
    width: int
    dilation: int = 1

    @property
    def own(self) -> int:
        """Lines of the image that a row of cores stores."""
        return self.lines if self.transposed else self.lines * self.stride

    def _shift(self, tap: int) -> tuple[int, int]:
        """Return the class of a transposed tap along one axis, and the offset from its result to its
        source."""
        at = self.dilation * tap
        u = (at - self.pad) % self.stride
        return u, (u + self.pad - at) // self.stride

    def reach_of(self, size: int) -> int:
        """Return the number of lines (pixels) from the first to the last of `size` taps, both included."""
        return int(reach_of(size, self.dilation))

    def _margins(self, size: int) -> tuple[int, int]:
        """Return the lines (pixels) that are needed before and after those that a core (a line) owns."""
        if self.transposed:
            shifts = [self._shift(tap)[1] for tap in range(size)]
            return max(0, -min(shifts)), max(0, *shifts)
        return self.pad, max(0, self.reach_of(size) - self.stride - self.pad)

    @property
    def above(self) -> int:
        """Number of lines that arrive from the row above."""
        return self._margins(self.r)[0]

    @property
    def below(self) -> int:
        """Number of lines that arrive from the row below."""
        return self._margins(self.r)[1]

    @property
    def left(self) -> int:
        """Zero pixels before a line."""
        return self._margins(self.s)[0]

    @property
    def held(self) -> int:
        """Lines that a core stores."""
        return self.above + self.own + self.below

    @property
    def phases(self) -> int:
        """Number of phases in which pixels are stored."""
        return 1 if self.transposed else self.stride

    @property
    def reach(self) -> int:
        """Number of positions of a phase that the taps read."""
        return self.pixels + (
            sum(self._margins(self.s))
            if self.transposed
            else ceil_div(self.reach_of(self.s), self.stride) - 1
        )

    @property
    def taps(self) -> tuple[Tap, ...]:
        """All taps, in row order."""
        classes = self.classes
        found = []
        for i, j in np.ndindex(self.r, self.s):
            if self.transposed:
                (u, down), (v, right) = self._shift(i), self._shift(j)
                place = (self.above + down, 1, 0, self.left + right)
                found.append(Tap(i, j, classes.index((u, v)), *place))
            else:
                line, (position, phase) = i * self.dilation, divmod(j * self.dilation, self.stride)
                found.append(Tap(i, j, 0, line, self.stride, phase, position))
        return tuple(found)

    @property
    def classes(self) -> tuple[tuple[int, int], ...]:
        """Classes of results that have taps."""
        if not self.transposed:
            return ((0, 0),)
        pairs = {(self._shift(i)[0], self._shift(j)[0]) for i, j in np.ndindex(self.r, self.s)}
        return tuple(sorted(pairs))

    @property
    def results(self) -> int:
        """Number of sums per core and filter."""
        return len(self.classes) * self.lines * self.pixels


def reach_of(size: Size, dilation: int) -> Size:
    """Number of lines from the first to the last of `size` taps, both included."""
    return (size - 1) * dilation + 1


def padding_of(small: int, large: int, size: int, stride: int) -> int:
    """Return the padding on both sides of `large` lines that gives `small` results."""
    return max(0, ceil_div((small - 1) * stride + size - large, 2))


def strip_of(dims: Dims, tiling: Tiling, attrs: Attrs) -> Strip:
    """Return the strip of a convolution on the rows of its lanes, for one image; all images are equal.

    Raises
    ------
    KernelError
        If a core has several images or a part of a line, or needs lines from beyond its direct neighbours.
    """
    b, h, w, r, s, z, out_h, out_w = (
        int(dims[name]) for name in ("b", "h", "w", "r", "s", "stride", "out_h", "out_w")
    )
    transposed = Conv2dAttributes.of(attrs).transposed
    small, large = ((h, w), (out_h, out_w)) if transposed else ((out_h, out_w), (h, w))
    dilation = Conv2dAttributes.of(attrs).dilation
    reaches = ((r - 1) * dilation + 1, (s - 1) * dilation + 1)
    sides = tuple(zip(small, large, reaches, strict=True))
    # Rounding allows several paddings along each axis; images are padded equally on all sides.
    pad = max(padding_of(few, many, size, z) for few, many, size in sides)
    square = all((many + 2 * pad - size) // z + 1 == few for few, many, size in sides)
    lines = max(h, ceil_div(out_h, z)) if transposed else out_h
    pixels = max(w, ceil_div(out_w, z)) if transposed else out_w
    rows = int(tiling.lanes) * int(tiling.rows) // b
    if not square or not 1 <= rows <= lines:
        raise KernelError(
            f"conv2d: {b} images of {lines} lines on {int(tiling.lanes) * int(tiling.rows)} rows of cores have no fabric "
            "program; it runs square padding and whole lines per core, use 1 to that many rows per image"
        )
    per = ceil_div(lines, rows)
    strip = Strip(per, pixels, r, s, z, pad, transposed, ceil_div(lines, per), h, w, dilation)
    if strip.rows > 1 and max(strip.above, strip.below) > strip.own:
        raise KernelError(
            f"conv2d: {strip.own} lines per core and {r} lines of taps need more than the neighbours' lines; "
            "use fewer rows of cores"
        )
    return strip
