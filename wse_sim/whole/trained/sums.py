"""Gradients of a tensor with several readers: a core that adds them up, and stores in which early ones wait.

Symbols: R readers; a sample has T N elements, so w = T N / 2 words::

    sum     takes the first gradient of a sample into one of two buffers while it works on the sample before;
            adds the others, each as a whole sample, and sends the last sum on          (R - 1) w cycles, and w received
    store   holds two samples: hands one on while it receives the next

Gradients come in a fixed order: that of the regions which send them (:mod:`wse_sim.whole.trained.order`).  A skip's comes first, as many
regions before the others as it goes around; each of those has a sample or two in hand, so as many stores keep it.
"""

from __future__ import annotations

from collections.abc import Sequence

from wse_sim.fabric.format.builder import Builder, fabric_in, fabric_out
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.turns import alternate, receive_all

RECEIVE = 1  # microthread
MOST_STORES = 6


def write_sum(
    b: Builder, name: str, cell: Cell, inward: Sequence[int], outward: int, size: int, samples: int
) -> None:
    """The core that adds gradients of `size` elements which come on the colors `inward`, the first ones first."""
    core = b.core_class(name)
    slots = [b.buffer(f"{name}.slot{turn}", size, "fp16", cell) for turn in (0, 1)]
    first, *others = inward

    def receive(turn: int) -> None:
        receive_all(core, first, slots[turn].dsd(), RECEIVE)

    def add(turn: int) -> None:
        held = slots[turn].dsd()
        for color in others[:-1]:
            core.add(held, held, fabric_in(color), dtype="fp16", start="none")
        core.add(fabric_out(outward), held, fabric_in(others[-1]), dtype="fp16", start="none")

    alternate(core, samples, receive, add, (RECEIVE,))
    b.place(core, cell)


def write_store(
    b: Builder, name: str, cell: Cell, inward: int, outward: int, size: int, samples: int
) -> None:
    """The core in which two samples of `size` elements wait."""
    core = b.core_class(name)
    slots = [b.buffer(f"{name}.slot{turn}", size, "fp16", cell) for turn in (0, 1)]

    def receive(turn: int) -> None:
        receive_all(core, inward, slots[turn].dsd(), RECEIVE)

    def hand_on(turn: int) -> None:
        core.mov(fabric_out(outward), slots[turn].dsd(), dtype="fp16", start="none")

    alternate(core, samples, receive, hand_on, (RECEIVE,))
    b.place(core, cell)
