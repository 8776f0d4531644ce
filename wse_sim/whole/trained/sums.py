"""Gradients of a tensor with several readers: a core that adds them, and stores that buffer early ones.

Symbols: R readers; a sample has T N elements, so w = T N / 2 words::

    sum     receives the first gradient of a sample into one of two buffers while it works on the sample before;
            adds the others, each as a whole sample, and sends the last sum          (R - 1) w cycles, and w received
    store   buffers two samples: sends one while it receives the next

Gradients arrive in a fixed order: that of the regions that send them (:mod:`wse_sim.whole.trained.order`).
The gradient of a skip arrives first, ahead of the others by the number of regions that the skip bypasses;
each of those has one or two samples in process, so as many stores buffer it.
"""

from __future__ import annotations

from collections.abc import Sequence

from wse_sim.fabric.format.builder import Builder, fabric_in, fabric_out
from wse_sim.whole.paths import Cell
from wse_sim.whole.regions.shared_color import receive_all
from wse_sim.whole.regions.turns import alternate

RECEIVE = 1  # microthread
MOST_STORES = 6


def write_sum(
    b: Builder, name: str, cell: Cell, inward: Sequence[int], outward: int, size: int, samples: int
) -> None:
    """Write the core that adds gradients of `size` elements from the colors `inward`, in their order."""
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
