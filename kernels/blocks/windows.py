"""Windows that slide over an image: which lines and columns they cover, and where they cross its border."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from wse_sim.graph import Kernel
from wse_sim.kernels.blocks.rounds import even
from wse_sim.kernels.contract.family import NONE, Dims
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
    before: int = 0  # padding elements before a run; the others follow it

    def aligned(self) -> Windows:
        """Return the windows with padding before a run if words at a border then start at even elements."""
        run, first = self.columns.taps * self.channels, self.columns.around * self.channels
        turned = run % PAIR and first % PAIR and self.columns.stride * self.channels % PAIR == 0
        return replace(self, before=int(bool(turned)))

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


def surround(dims: Dims, attrs: Mapping[str, Any] = NONE) -> int:
    """Return the padding of a convolution: the stated one, or the least that gives the result's lines.

    Up to stride 2 this number is unique.
    """
    if (stated := AroundAttributes.of(attrs).around) >= 0:
        return stated
    lines, taps, stride = (int(dims[name]) for name in ("h", "r", "stride"))
    spare = (int(dims["out_h"]) - 1) * stride + taps - lines
    return max(0, (spare + 1) // 2)
