"""Cores of a layer that move data: inlets deal out inputs, and the core next to the last row deals out
gradients.

Symbols: a bundle of rows 0 .. r - 1 of k_0 .. k_{r-1} inputs; a *word* holds two::

    round t < min k_i / 2    a word to every row: each router takes one word, which switches it, so the next word goes further down;
                             a control word resets all of them
    last round               a word to the rows that have one more

Routes of words that the inlet deals out: down the first column, and east along every row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wse_sim.fabric.format.builder import Buffer, Operand, Switch, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.fabric.format.program import Command
from wse_sim.whole.layout import PAIR
from wse_sim.whole.paths import Cell, direction
from wse_sim.whole.regions.shared_color import KEEP, advance_of, route_senders
from wse_sim.whole.training.layer import TrainedLayer
from wse_sim.whole.training.loss import LossBuffers, loss_buffers, write_loss
from wse_sim.whole.training.stream_layouts import Leg

LEAVING = 1  # microthread that takes the words of samples for other cores of the loss
COMING = 1  # microthread of an inlet that takes the next sample


def write_inlet(layer: TrainedLayer, number: int, leg: Leg) -> None:
    """Write the core that stores the inputs of samples in flight and deals them out, one word to every row in
    rotation.

    A leg with several inlets brings each of them the whole sample. The next sample arrives while one is dealt
    out, so there is one slot more than samples in flight: the slot of sample i - d receives i + 1 after its
    inputs were dealt out again.
    """
    lay, b, size, d = layer.layout, layer.b, len(leg.elements), layer.slots
    cell = lay.inlet(number)
    begin = sum(len(lay.rows[i].inputs) for fed in lay.fed[:number] for i in fed) - leg.elements.start
    held = b.buffer(f"{lay.name}.held {number}", (d + 1) * size, "fp16", cell)
    core = b.core_class(f"{lay.name} inlet {number}")
    counts = [len(lay.rows[i].inputs) // PAIR for i in lay.fed[number]]
    offsets = np.cumsum([0, *counts]).tolist()
    least = min(counts)

    def deal_round(rows: int, slot: int, done: int, is_looped: bool) -> None:
        step, outer_step = (PAIR, size) if is_looped else (size, 0)
        for i in range(rows):
            first = slot * size + begin + PAIR * (offsets[i] + done)
            word = held.dsd(first, PAIR, step=step, outer_step=outer_step)
            advance = "path" if i < len(counts) - 1 else None
            core.mov(fabric_out(layer.feed, advance), word, dtype="fp16", start="none")
        if len(counts) > 1:
            core.control(layer.feed, Command.RESET, start="none")

    def deal(slot: int) -> None:
        with core.loop(least):
            deal_round(len(counts), slot, 0, True)
        if max(counts) > least:
            deal_round(sum(count > least for count in counts), slot, least, False)

    def take(slot: int) -> None:
        into = held.dsd(slot * size, size, step=size)
        core.mov(into, fabric_in(leg.color), dtype="fp16", start="none", thread=COMING, priority="high")

    def both(samples: int, again: int, slot: int) -> None:
        """Deal `samples` samples again from slot `again` on, alternating with as many new ones from `slot` on."""
        with core.loop(samples):
            deal(again)
            core.join(COMING)
            take(again)
            deal(slot)

    with core.loop(1):
        take(0)
    more = layer.rows - d - 1  # samples that go out after the first d, less the last
    with core.loop(d + min(more, 0)):
        core.join(COMING)
        take(1)
        deal(0)
    rounds, left = divmod(max(more, 0), d + 1)
    with core.loop(rounds):
        both(1, 0, d)
        both(d, 1, 0)
    both(min(left, 1), 0, d)
    both(max(left - 1, 0), 1, 0)
    with core.loop(1):
        if more >= 0:
            deal(left)
        core.join(COMING)
        deal((left - 1) % (d + 1) if more >= 0 else d - 1)
    first = left + 1 if more >= 0 else 0
    with core.loop(d - left):
        deal(first % (d + 1))
    with core.loop(left):
        deal(0)
    b.place(core, cell)
    _route_inputs(layer, number)


def _route_inputs(layer: TrainedLayer, number: int) -> None:
    """Set the routes of what inlet `number` deals out."""
    lay, b, fed = layer.layout, layer.b, layer.layout.fed[number]
    b.route(layer.feed, lay.inlet(number), rx="R", tx="E", switch=KEEP)
    onward = "E" if lay.cols > 1 else ""
    for i in fed:
        passing = Switch([{"tx": "S"}], pop="never") if i != fed[-1] else KEEP
        arriving = "W" if i == fed[0] else "N"
        b.route(layer.feed, (lay.top + i, lay.left), rx=arriving, tx="R" + onward, switch=passing)
        for j in range(1, lay.cols):
            more = "E" if j < lay.cols - 1 else ""
            b.route(layer.feed, (lay.top + i, lay.left + j), rx="W", tx="R" + more, switch=KEEP)


def write_gradient_inlet(layer: TrainedLayer, arriving: int) -> None:
    """Write the core next to the last row: it deals the gradients that arrive on a color to the columns of
    that row."""
    lay = layer.layout
    core = layer.b.core_class(f"{lay.name} gradients in")
    with core.loop(layer.rows):
        _deal_gradients(layer, core, [fabric_in(arriving) for _ in range(lay.cols)])
    _place_beside_last_row(layer, core)


def write_loss_inlet(layer: TrainedLayer, logits: int, loss: str) -> None:
    """Write the core next to the last row of the last layer: it receives logits on a color and deals out the
    loss gradients."""
    lay = layer.layout
    sizes = [lay.sent(col) for col in range(lay.cols)]
    offsets = np.cumsum([0, *sizes]).tolist()
    core = layer.b.core_class(f"{lay.name} gradients in")
    held = loss_buffers(layer.b, (lay.last, lay.left - 1), offsets[-1], layer.rows)
    with core.loop(layer.rows):
        label = held.wanted.dsd(0, lay.n, step=held.gradient.length)
        write_loss(core, loss, held, lay.n, logits, label, held.gradient.dsd(0, lay.n))
        parts = [held.gradient.dsd(offset, size) for offset, size in zip(offsets, sizes, strict=False)]
        _deal_gradients(layer, core, parts)
    _place_beside_last_row(layer, core)


def write_losses(layer: TrainedLayer, cells: Sequence[Cell], logits: int, back: int, loss: str) -> None:
    """Write the loss on several cores behind the one next to the last row: each receives every n-th sample
    and drops the others.

    Gradients return in the order of the samples, on a separate color; the nearest core sends first.
    """
    lay, b, count = layer.layout, layer.b, len(cells)
    size = sum(lay.sent(col) for col in range(lay.cols))
    for i, cell in enumerate(cells):
        own = len(range(i, layer.rows, count))
        held = loss_buffers(b, cell, size, own, name=f"loss {i}")
        scrap = b.buffer(f"loss {i}.scrap", 1, "fp32", cell)
        core = b.core_class(f"loss {i}")

        def leave(samples: int, core: CoreClass = core, scrap: Buffer = scrap) -> None:
            if samples:
                core.mov(
                    scrap.dsd(0, 1, 0), fabric_in(logits), length=samples * size // PAIR, start="none",
                    thread=LEAVING, priority="high",
                )  # fmt: skip

        def one(
            number: int, others: int, core: CoreClass = core, held: LossBuffers = held, i: int = i
        ) -> None:
            core.join(LEAVING)
            label = held.wanted.dsd(number * size, lay.n, step=size)
            write_loss(
                core, loss, held, lay.n, logits, label, held.gradient.dsd(0, lay.n), lambda: leave(others)
            )
            core.mov(fabric_out(back, advance_of(i, count)), held.gradient.dsd(), dtype="fp16", start="none")

        leave(i)
        with core.loop(own - 1):
            one(0, count - 1)
        one(own - 1, layer.rows - 1 - i - (own - 1) * count)  # a step has an effect only inside a loop
        b.place(core, cell)
    route_senders(b, back, cells, direction(cells[0], (lay.last, lay.left - 1)))
    b.route(back, (lay.last, lay.left - 1), rx=direction((lay.last, lay.left - 1), cells[0]), tx="R")


def _deal_gradients(layer: TrainedLayer, core: CoreClass, parts: Sequence[Operand]) -> None:
    """Deal the gradients of one sample, a part to every column; the last word of a part switches the router
    to the next."""
    lay = layer.layout
    for col, part in enumerate(parts):
        advance = "path" if col < lay.cols - 1 else None
        core.mov(fabric_out(layer.deal, advance), part, length=lay.sent(col), dtype="fp16", start="none")
    if lay.cols > 1:
        core.control(layer.deal, Command.RESET, start="none")


def _place_beside_last_row(layer: TrainedLayer, core: CoreClass) -> None:
    """Place the core, and route the gradients that it deals out."""
    lay, b = layer.layout, layer.b
    cell = (lay.last, lay.left - 1)
    b.place(core, cell)
    b.route(layer.deal, cell, rx="R", tx="E", switch=KEEP)
    for col in range(lay.cols):
        passing = Switch([{"tx": "E"}], pop="never") if col < lay.cols - 1 else KEEP
        b.route(layer.deal, (lay.last, lay.left + col), rx="W", tx="R", switch=passing)
