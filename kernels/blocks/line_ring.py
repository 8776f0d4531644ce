"""Slots for the lines of an image in a core that reads windows line by line: those under windows, and those that arrive meanwhile.

Symbols: H lines; windows of r lines with stride z, q lines of padding; a step is B lines of windows. Line l of an image is stored in
slot (l + shift) mod L, L a multiple of B z and at least (B - 1) z + r + B z, so that lines that arrive together never wrap around::

    before step 0    the (B - 1) z + r - q lines of its windows arrive
    during a step    the B z lines that the next one adds; during the last one those of the next image, if their slots are free
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.windows import PAIR, Axis, Windows
from wse_sim.kernels.contract.equations import BYTES_PER_WAVELET, ceil_div


@dataclass(frozen=True)
class LineRing:
    """Slots for lines of an image, under windows along `axis`; a step has `block` windows."""

    axis: Axis
    block: int

    @property
    def unit(self) -> int:
        """Lines that a step adds."""
        return self.block * self.axis.stride

    @property
    def slots(self) -> int:
        """Lines that are stored."""
        least = (self.block - 1) * self.axis.stride + self.axis.taps + self.unit
        return int(ceil_div(least, self.unit)) * self.unit

    @property
    def shift(self) -> int:
        """Slot of line 0."""
        return (self.axis.around - self.axis.taps + self.axis.stride) % self.unit

    @property
    def period(self) -> int:
        """Steps after which lines are in the same slots."""
        return self.slots // self.unit

    def slot(self, line: int) -> int:
        """Return the slot of a line."""
        return (line + self.shift) % self.slots

    @cached_property
    def steps(self) -> tuple[range, ...]:
        """The windows of every step."""
        results = self.axis.results
        return tuple(
            range(first, min(first + self.block, results)) for first in range(0, results, self.block)
        )

    def _needed(self, step: int) -> int:
        """Return the lines that have arrived before a step."""
        if step < 0:
            return 0
        return min(self.axis.size, max(0, self.axis.first(self.steps[step][-1]) + self.axis.taps))

    def arrives(self, step: int) -> range:
        """Return the lines that a step adds; after the last one, those behind the last window."""
        end = self._needed(step) if step < len(self.steps) else self.axis.size
        return range(self._needed(step - 1), end)

    @cached_property
    def overlaps(self) -> bool:
        """Whether the lines of the first step of the next image may arrive during the last step."""
        if self.arrives(len(self.steps)):
            return False
        read = range(max(0, self.axis.first(self.steps[-1][0])), self.axis.size)
        return {*map(self.slot, read)}.isdisjoint(map(self.slot, self.arrives(0)))

    @cached_property
    def steady(self) -> range:
        """The steps with windows inside the image during which all lines of a further step arrive."""
        found = [
            step
            for step, windows in enumerate(self.steps[:-1])
            if self.axis.holds(windows[0]) and len(self.arrives(step + 1)) == self.unit
            and self._needed(step + 1) - self.axis.taps == self.axis.first(self.steps[step + 1][-1])
        ]  # fmt: skip
        return range(found[0], found[-1] + 1) if found else range(0)

    def runs(self, step: int) -> list[tuple[int, int]]:
        """Return the windows of a step as (first, count): those whose lines are a stride apart in their slots."""
        out: list[tuple[int, int]] = []
        for place in self.steps[step]:
            first, count = out[-1] if out else (place, 0)
            if count and self._follows(first, place):
                out[-1] = first, count + 1
            else:
                out.append((place, 1))
        return out

    def _follows(self, first: int, place: int) -> bool:
        axis, apart = self.axis, (place - first) * self.axis.stride
        return (
            axis.holds(first)
            and axis.holds(place)
            and all(
                self.slot(axis.first(place) + tap) == self.slot(axis.first(first) + tap) + apart
                for tap in range(axis.taps)
            )
        )


@lru_cache(maxsize=1024)
def ring_of(axis: Axis, most: int) -> LineRing | None:
    """Return the longest steps with at most `most` slots, if possible with images that overlap; None if no step has so few."""
    rings = [LineRing(axis, block) for block in range(axis.results, 0, -1)]
    rings = [ring for ring in rings if ring.slots <= most]
    if not rings:
        return None
    longer = [ring for ring in rings if 2 * ring.block >= rings[0].block]
    return next((ring for ring in longer if ring.overlaps), rings[0])


def held_in(windows: Windows, wafer: Wafer) -> LineRing | None:
    """Return the lines that a core holds; None if it has room for two images, or none for the lines of a step."""
    if images_bytes(windows) <= wafer.sram_usable_bytes:
        return None
    room = wafer.sram_usable_bytes - wafer.kernel_code_bytes
    return ring_of(windows.lines, int(room) // _line_bytes(windows))


def has_room(windows: Windows, wafer: Wafer) -> bool:
    """Return whether a core has room for two images, or for the lines of a step."""
    return images_bytes(windows) <= wafer.sram_usable_bytes or held_in(windows, wafer) is not None


def images_bytes(windows: Windows) -> int:
    """Return the bytes of two images."""
    return 2 * windows.lines.size * _line_bytes(windows)


def held_bytes(windows: Windows, wafer: Wafer) -> int:
    """Return the bytes of two images, or of the lines that a core holds; of the fewest lines if it has no room for them."""
    if images_bytes(windows) <= wafer.sram_usable_bytes:
        return images_bytes(windows)
    ring = held_in(windows, wafer) or LineRing(windows.lines, 1)
    return ring.slots * _line_bytes(windows)


def _line_bytes(windows: Windows) -> int:
    return BYTES_PER_WAVELET * windows.columns.size * windows.channels // PAIR
