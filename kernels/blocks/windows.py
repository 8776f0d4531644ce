"""Windows that slide over an image: which lines and columns they cover, and where they cross its border."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from wse_sim.graph import Kernel
from wse_sim.kernels.blocks.rounds import even
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.kernels.contract.family import NONE, Attrs, Dims
from wse_sim.kernels.contract.parameters import Attributes, attribute

PAIR = 2  # fp16 elements of a word


@dataclass(frozen=True)
class AroundAttributes(Attributes):
    """The padding attribute of families with windows."""

    around: int = attribute(-1, "lines and columns around an image; -1: not given", at_least=-1)


@dataclass(frozen=True)
class Axis:
    """Windows along one direction of an image: `size` pixels, `results` windows of `taps` pixels."""

    size: int
    taps: int
    stride: int
    around: int
    results: int

    def first(self, place: int) -> int:
        """Return the first pixel of a window; negative before the image."""
        return place * self.stride - self.around

    def holds(self, place: int) -> bool:
        """Return whether a window is inside the image."""
        return self.first(place) >= 0 and self.first(place) + self.taps <= self.size

    def spans(self) -> list[tuple[int, int]]:
        """Return windows as (first, count): one by one if they cross a border, all others in one run."""
        inner = [place for place in range(self.results) if self.holds(place)]
        if not inner:
            return [(place, 1) for place in range(self.results)]
        before, after = range(inner[0]), range(inner[-1] + 1, self.results)
        return [*((p, 1) for p in before), (inner[0], len(inner)), *((p, 1) for p in after)]

    @property
    def is_regular(self) -> bool:
        """Whether equal padding on both sides and the stride give this number of results."""
        return (self.size + 2 * self.around - self.taps) // self.stride + 1 == self.results

    @property
    def over(self) -> list[int]:
        """Return the windows that cross a border of the image."""
        return [place for place in range(self.results) if not self.holds(place)]


@dataclass(frozen=True)
class Windows:
    """Windows over the lines and columns of an image with several channels."""

    lines: Axis
    columns: Axis
    channels: int

    def lead(self, together: int) -> int:
        """Return the pixels before a window, if windows begin where `together` pixels do."""
        return -self.columns.around % together

    def grouped(self, together: int, abreast: int) -> Windows:
        """Return windows of `abreast` neighbouring results of a line, on an image that comes `together` pixels of a line at a time,
        in whole words; `together` divides the pixels between two such windows.

        >>> Windows(Axis(224, 7, 2, 3, 112), Axis(224, 7, 2, 3, 112), 3).grouped(2, 2).columns  # 4 j - 3 to 4 j + 5: with one before
        Axis(size=112, taps=5, stride=2, around=2, results=56)
        """
        own, lead = self.columns, self.lead(together)
        apart = own.stride * abreast
        taps = int(ceil_div(lead + own.taps + apart - own.stride, together))
        columns = Axis(
            int(ceil_div(own.size, together)),
            taps,
            apart // together,
            (own.around + lead) // together,
            own.results // abreast,
        )
        return replace(self, columns=columns, channels=even(self.channels * together))

    @classmethod
    def of(cls, kernel: Kernel) -> Windows:
        """Return the windows of a convolution."""
        return cls.sized(kernel.dims, surround(kernel.dims, kernel.attrs))

    @classmethod
    def sized(cls, dims: Dims, around: int) -> Windows:
        """Return the windows for the dimensions of a convolution and a padding of `around` lines and columns."""
        d = {name: int(value) for name, value in dims.items()}
        return cls(
            Axis(d["h"], d["r"], d["stride"], around, d["out_h"]),
            Axis(d["w"], d["s"], d["stride"], around, d["out_w"]),
            d["c"],
        )

    @property
    def most_bands(self) -> int:
        """Bands of lines of the result, so that a line of the image belongs to at most two."""
        lines = self.lines
        return max(1, lines.results // max(1, ceil_div(lines.taps - lines.stride, lines.stride)))

    def bands(self, count: int) -> tuple[Band, ...]:
        """Return the windows of `count` bands of lines of the result, on their lines of the image; all lines belong to a band."""
        return _bands(self, count)

    @property
    def size(self) -> int:
        """Elements of the image."""
        return self.lines.size * self.columns.size * self.channels

    @property
    def run(self) -> int:
        """Elements of a line under a window, rounded up to whole words."""
        return int(even(self.columns.taps * self.channels))

    def at(self, line: int, column: int) -> int:
        """Return the index of the first element of a pixel."""
        return (line * self.columns.size + column) * self.channels


class Band(NamedTuple):
    """Windows of a band of lines: lines `top` to `bottom` of the image; the next band has the last `shared` as well."""

    windows: Windows
    top: int
    bottom: int
    shared: int


@lru_cache(maxsize=4096)
def _bands(windows: Windows, count: int) -> tuple[Band, ...]:
    lines = windows.lines
    ends = [band * lines.results // count for band in range(count + 1)]
    tops = [*(max(0, lines.first(first)) for first in ends[:-1]), lines.size]
    out = []
    for (first, end), (top, after) in zip(pairwise(ends), pairwise(tops), strict=True):
        bottom = max(after, min(lines.size, lines.first(end - 1) + lines.taps))
        own = replace(lines, size=bottom - top, results=end - first, around=top - lines.first(first))
        out.append(Band(replace(windows, lines=own), top, bottom, bottom - after))
    return tuple(out)


def surround(dims: Dims, attrs: Attrs = NONE) -> int:
    """Return the padding of a convolution: the stated one, or the least that gives the result's lines.

    Up to stride 2 this number is unique.
    """
    if (stated := AroundAttributes.of(attrs).around) >= 0:
        return stated
    lines, taps, stride = (int(dims[name]) for name in ("h", "r", "stride"))
    spare = (int(dims["out_h"]) - 1) * stride + taps - lines
    return max(0, (spare + 1) // 2)
