"""Parts of fabric programs in which the cores of a line alternate: senders in sequence, rings of sums.

A sequence of items (the keys or the queries of a sample) is owned by the cores of a line in blocks.

    multicast   the owner of an item sends it to the whole line. One color; the router of every core goes through
                three switch positions (receive from the low side; inject; receive from the high side), and the
                owner ends its block with a control wavelet that switches its own router and the next.
    ring        a partial sum per item starts on the core after the owner and visits every core, which adds its part; it
                ends at the owner: every core spends one issue cycle per word, including the owner. Neighbours exchange
                on two colors alternating by parity; the last core reaches the first through all routers on a third.

With each new owner the ring starts one core later, so each core waits once for a sum to travel around the
ring.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import overload

from wse_sim.fabric.format.builder import Buffer, Switch, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.fabric.format.program import Command
from wse_sim.kernels.blocks.lines import Line
from wse_sim.kernels.contract.equations import ceil_div
from wse_sim.kernels.contract.family import Size

RING_COLORS = 3
SENDER = 1  # microthread that multicasts

# Words of the next item that may be sent before the current sum has left: two wait in the sender's own input
# queue and two in its router, so that none blocks the sum in the shared output queue.
WORDS_AHEAD = 4


@overload
def even(elements: int) -> int: ...


@overload
def even(elements: Size) -> Size: ...


def even(elements: Size) -> Size:
    """Return the number of elements, rounded up to whole words of two."""
    return elements + elements % 2


def pitch(elements: int) -> int:
    """Return the elements from one vector to the next, so that all start in the same bank modulo four."""
    return 4 * int(ceil_div(elements, 4))


@dataclass(frozen=True)
class Blocks:
    """Partition of `items` over `cores` positions in order: `size` items each, and the rest for the last
    owner."""

    items: int
    cores: int

    @property
    def size(self) -> int:
        """Items of the first owner."""
        return int(ceil_div(self.items, self.cores))

    def of(self, position: int) -> tuple[int, int]:
        """Return the range of a position: its first item, and the one after its last."""
        position %= self.cores
        return min(position * self.size, self.items), min((position + 1) * self.size, self.items)

    def count(self, position: int) -> int:
        """Return the number of items of a position."""
        first, end = self.of(position)
        return end - first


Cuts = tuple[tuple[int, int], ...]


def stretches(items: int, *cuts: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the ranges into which the ends of `cuts` divide 0 .. items, in order."""
    edges = sorted({0, items, *(edge for cut in cuts for edge in cut)})
    yield from pairwise(edges)


def route_turns(line: Line, cores: int, color: int, *, loop_back: bool) -> None:
    """Route multicasts by every core of the line in sequence; with `loop_back` the sender also receives its
    own words."""
    low, high, own = line.toward(-1), line.toward(1), "R" if loop_back else ""
    if cores == 1:
        if loop_back:
            line.builder.route(color, line.place(0), rx="R", tx="R")
        return
    for v in range(cores):
        back, onward = low if v else "", high if v < cores - 1 else ""
        positions = [{"rx": "R", "tx": back + onward + own}, {"rx": high, "tx": "R" + back}]
        switch = Switch(positions, initial=1 if v == 0 else 0)
        line.builder.route(color, line.place(v), rx=low, tx="R" + onward, switch=switch)


def end_turn(k: CoreClass, color: int) -> None:
    """End a sender's block: a control wavelet lets the next core inject."""
    k.control(color, Command.ADVANCE, Command.ADVANCE, start="none")


@dataclass(frozen=True)
class Sender:
    """A core that multicasts the items `block` of the sequence from a microthread, two elements per word.

    `sent` has `length` elements per item, a pitch apart. The core also receives its own words, so it may send
    only the first words of an item before its main thread reaches that item.
    """

    core: CoreClass
    color: int
    sent: Buffer
    length: int
    block: tuple[int, int]

    @property
    def cuts(self) -> Cuts:
        """The ranges in which the program differs: the block, and its last item."""
        first, end = self.block
        return ((first, end), (max(first, end - 1), end))

    def begin(self, start: int) -> None:
        """Send the first words of the block before the rounds from item `start` on."""
        if start == self.block[0] < self.block[1]:
            self._send(0, 0, 0)

    def rest(self, start: int) -> None:
        """In a round, send the words of the item that were not sent ahead."""
        if self._sends(start) and self.length > 2 * WORDS_AHEAD:
            self._send(start, 2 * WORDS_AHEAD, 0)

    def ahead(self, start: int) -> None:
        """In a round, after all words of the item have arrived, send the first words of the next item or end
        the block."""
        if self._sends(start) and start < self.block[1] - 1:
            self._send(start, 0, 1)
        elif self._sends(start):
            self.core.join(SENDER)
            end_turn(self.core, self.color)

    def _sends(self, start: int) -> bool:
        return self.block[0] <= start < self.block[1]

    def _send(self, start: int, element: int, later: int) -> None:
        apart = pitch(self.length)
        count = self.length - element if element else min(self.length, 2 * WORDS_AHEAD)
        offset = (max(start - self.block[0], 0) + later) * apart + element
        self.core.mov(
            fabric_out(self.color),
            self.sent.dsd(offset, count, step=apart),
            dtype="fp16",
            thread=SENDER,
            priority="medium",
            start="none",
        )


@dataclass(frozen=True)
class Ring:
    """A ring of sums over the `cores` of a line on three colors from `first_color` on."""

    cores: int
    first_color: int

    def route(self, line: Line) -> None:
        """Set the routes from every core to the next, and from the last to the first."""
        low, high, route = line.toward(-1), line.toward(1), line.builder.route
        last = self.cores - 1
        if last == 0:
            return
        for v in range(last):
            route(self.sends(v), line.place(v), rx="R", tx=high)
            route(self.sends(v), line.place(v + 1), rx=low, tx="R")
        route(self.sends(last), line.place(last), rx="R", tx=low)
        for v in range(1, last):
            route(self.sends(last), line.place(v), rx=high, tx=low)
        route(self.sends(last), line.place(0), rx=high, tx="R")

    def sends(self, position: int) -> int:
        """Return the color on which a position sends to the next."""
        return self.first_color + (2 if position == self.cores - 1 else position % 2)

    def emit(self, k: CoreClass, position: int, owner: int, y: Operand, kept: Operand | None) -> None:
        """Emit one core's instructions for the sum of an item: `y` is its part, `kept` the destination on the
        owner."""
        if self.cores == 1 and kept is not None:
            k.mov(kept, y, dtype="mixed", start="none")
            return
        arriving = fabric_in(self.sends((position - 1) % self.cores))
        if position == owner and kept is not None:
            k.add(kept, y, arriving, start="none")
        elif position == (owner + 1) % self.cores:
            k.mov(fabric_out(self.sends(position)), y, start="none")
        else:
            k.add(fabric_out(self.sends(position)), y, arriving, start="none")
