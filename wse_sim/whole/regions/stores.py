"""Stores: cores that buffer samples of a tensor, or parts of them, on their way to cores that take them later.

Each store receives a sample while it passes on the one before: to the store before it, and the first one to those that take it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wse_sim.fabric.format.builder import Buffer, Builder, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.whole.paths import BACK, Cell, direction
from wse_sim.whole.regions.shared_color import send_all
from wse_sim.whole.regions.turns import alternate, relay

LAST_SLOTS = 2  # samples in the store that deals them out
STORE, HAND_ON = 1, 2  # microthreads of a store


def write_stores(
    b: Builder,
    name: str,
    cells: Sequence[Cell],
    colors: Sequence[int],
    size: int,
    slots: int,
    count: int,
    deal: Callable[[CoreClass, Buffer], None],
    wire: str = "fp16x4",
) -> None:
    """Write neighbouring stores of `count` samples of `size` elements, which arrive on `colors`, a color for each of them; the first
    one hands a buffer out by `deal`, the others have `slots` buffers, :data:`LAST_SLOTS` or :data:`RELAY_SLOTS`.

    A store receives while it deals: otherwise a link brings the next sample only after the one before is dealt.
    """

    for i, cell in enumerate(cells):
        store = b.core_class(f"{name} store {i}")
        turns = range(slots if i else LAST_SLOTS)
        held = [b.buffer(f"{name}.slot{i} {turn}", size, "fp16", cell) for turn in turns]
        _write(store, held, (colors[i], colors[i - 1] if i else None), count, deal, wire)
        if i:
            onward = direction(cell, cells[i - 1])
            b.route(colors[i - 1], cell, rx="R", tx=onward)
            b.route(colors[i - 1], cells[i - 1], rx=BACK[onward], tx="R")
        b.place(store, cell)


def _write(
    store: CoreClass,
    held: Sequence[Buffer],
    colors: tuple[int, int | None],
    count: int,
    deal: Callable[[CoreClass, Buffer], None],
    wire: str,
) -> None:
    """Write one store; the `colors` bring samples and take them away, None if it deals them out."""
    coming, leaving = colors

    def receive(turn: int) -> None:
        store.mov(
            held[turn].dsd(), fabric_in(coming),
            dtype="fp16", wire=wire, start="none", thread=STORE, priority="low",
        )  # fmt: skip

    if leaving is None:
        alternate(store, count, receive, lambda turn: deal(store, held[turn]), (STORE,))
        return
    onward = fabric_out(leaving)

    def hand_on(turn: int) -> None:
        send_all(store, onward, held[turn].dsd(), HAND_ON, wire)

    relay(store, count, len(held), receive, hand_on, (STORE, HAND_ON))
