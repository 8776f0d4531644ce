"""Loops over samples, tokens or blocks of them, in the few buffers that a core has for them.

While an item is in one buffer, the next one arrives in another. Items are the same program in every iteration of a
loop over pairs of them (or over three), but for the slots that an instruction advances by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Protocol

from wse_sim.fabric.format.classes import CoreClass

RELAY_SLOTS = 3  # samples in a core that forwards them
Item = Callable[[int, int, int], None]
"""Writes an item: its buffer (0 or 1), the first item of the loop, and the items per iteration."""


class ItemWithNext(Protocol):
    """Writes an item, like :data:`Item`; it is also told whether another one follows."""

    def __call__(self, buffer: int, first: int, step: int, /, *, more: bool) -> None:
        """Write it."""
        ...


def in_pairs(core: CoreClass, count: int, item: Item) -> None:
    """Process `count` items in two alternating buffers."""
    if count > 1:
        with core.loop(count // 2):
            item(0, 0, 2)
            item(1, 1, 2)
    if count % 2:
        item(0, count - 1, 0)


def with_next(core: CoreClass, count: int, item: ItemWithNext) -> None:
    """Process `count` items in two alternating buffers; the last one starts no other."""
    in_pairs(core, count - 1, partial(item, more=True))
    item((count - 1) % 2, count - 1, 0, more=False)


def in_turn(
    core: CoreClass, count: int, receive: Callable[[int], None], work: Item, threads: Sequence[int]
) -> None:
    """Process `count` items in two buffers: while one is processed, `threads` receive the next into the other."""

    def turn(now: int, first: int, step: int, *, more: bool) -> None:
        for thread in threads:
            core.join(thread)
        if more:
            receive(1 - now)
        work(now, first, step)

    receive(0)
    with_next(core, count, turn)


def alternate(
    core: CoreClass,
    count: int,
    receive: Callable[[int], None],
    work: Callable[[int], None],
    threads: Sequence[int],
) -> None:
    """Process items as :func:`in_turn`, whose programs differ by the buffer alone."""
    in_turn(core, count, receive, lambda now, _first, _step: work(now), threads)


def slot_by_slot(
    core: CoreClass, count: int, item: Callable[[int, int, bool], None], together: int = 1
) -> None:
    """Process `count` items, each in its slot; `item` gets the first slot of a loop, the slots per iteration, and whether
    another item follows. An iteration has `together` items."""
    iterations, rest = divmod(count - 1, together)
    if iterations:
        with core.loop(iterations):
            for first in range(together):
                item(first, together, True)
    for first in range(count - 1 - rest, count - 1):
        item(first, 0, True)
    item(count - 1, 0, False)


def blocks_in_turn(
    core: CoreClass,
    samples: int,
    sizes: Sequence[int],
    receive: Callable[[int, int], None],
    work: Callable[[int, int, bool], None],
    thread: int,
) -> None:
    """Process blocks of `sizes` of every sample in two buffers: while one is processed, `thread` receives the
    next into the other.

    `receive` gets buffer and size; `work` also gets whether the block is the last of its sample.
    """

    def sample(now: int, *, more: bool) -> int:
        following = [*sizes[1:], sizes[0] if more else 0]
        is_last = [False] * (len(sizes) - 1) + [True]
        for turn, alike in groupby(zip(sizes, following, is_last, strict=True)):
            pairs, rest = divmod(len(list(alike)), 2)
            with core.loop(pairs):
                for buffer in (now, 1 - now) if pairs else ():
                    one(buffer, turn)
            if rest:
                one(now, turn)
                now = 1 - now
        return now

    def one(now: int, turn: tuple[int, int, bool]) -> None:
        size, following, is_last = turn
        core.join(thread)
        if following:
            receive(1 - now, following)
        work(now, size, is_last)

    now, together = 0, 1 + len(sizes) % 2  # samples after which the first buffer is the next one again
    receive(now, sizes[0])
    with core.loop((samples - 1) // together):
        for _ in range(together if samples > together else 0):
            now = sample(now, more=True)
    for _ in range((samples - 1) % together):
        now = sample(now, more=True)
    sample(now, more=False)


def relay(
    core: CoreClass,
    count: int,
    slots: int,
    receive: Callable[[int], None],
    send: Callable[[int], None],
    threads: tuple[int, int],
) -> None:
    """Pass `count` samples through two or three buffers, on a thread each: one leaves while the next arrives, and with three one
    waits."""
    coming, leaving = threads

    def turn(now: int, *, more: bool) -> None:
        core.join(coming)
        if slots < RELAY_SLOTS:
            core.join(leaving)  # from the buffer of the next
        if more:
            receive((now + 1) % slots)
        if slots == RELAY_SLOTS:
            core.join(leaving)
        send(now)

    receive(0)
    rounds, rest = divmod(count - 1, slots)
    with core.loop(rounds):
        for now in range(slots):
            turn(now, more=True)
    for now in range(rest):
        turn(now, more=True)
    turn(rest, more=False)
