"""Cells that receive words in sequence, and cells that send in sequence, on one color.

receive in sequence   the first router passes words to its core (or row of cores); the last word of a part switches it, and
                      it forwards what follows. A control word resets all of them.
send in sequence      the outlet's router takes words from its own core until the last one switches it; then from the next cell.
                      The last word of the farthest cell switches all of them back.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from itertools import pairwise
from typing import TypeVar

import numpy as np

from wse_sim.fabric.format.builder import Builder, Switch, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.fabric.format.program import Command
from wse_sim.kernels.blocks.line_stages import Sharing
from wse_sim.kernels.blocks.lines import Line, ReductionStep, route_broadcast
from wse_sim.whole.paths import BACK, Cell, direction

# By default, a router with a single position removes a command from a control word; `pop="never"` prevents
# this.
K = TypeVar("K", bound=Hashable)
KEEP = Switch([], pop="never")


def route_takers(
    b: Builder,
    color: int,
    inlet: Cell,
    takers: Sequence[Cell],
    across: int = 0,
    spread: str = "E",
    passing: Set[Cell] = frozenset(),
    behind: str = "",
) -> None:
    """Route from `inlet` along `takers`, which are neighbours; each passes words to `across` more cells in
    direction `spread`, and to one in direction `behind`.

    Those in `passing` take nothing. The route to the first taker goes vertically first, then along its row.
    """
    came = _route_to(b, color, inlet, takers[0])
    more = spread if across else ""
    down, right = {"N": (-1, 0), "E": (0, 1), "S": (1, 0)}[spread]
    for i, (r, c) in enumerate(takers):
        step = direction((r, c), takers[i + 1]) if i < len(takers) - 1 else ""
        if (r, c) in passing:
            b.route(color, (r, c), rx=came, tx=step, switch=KEEP)
            came = BACK[step]
            continue
        turning = Switch([{"tx": step}], pop="never") if step else KEEP
        b.route(color, (r, c), rx=came, tx="R" + more + behind, switch=turning)
        came = BACK.get(step, "")
        if behind:
            b.route(color, (r + (behind == "S") - (behind == "N"), c), rx=BACK[behind], tx="R", switch=KEEP)
        for j in range(1, across + 1):
            onward = spread if j < across else ""
            b.route(color, (r + j * down, c + j * right), rx=BACK[spread], tx="R" + onward, switch=KEEP)


def _route_to(b: Builder, color: int, inlet: Cell, first: Cell) -> str:
    """Route from `inlet` to the first taker, vertically first, then along its row; return the port at which words come in there."""
    (row, col), came = inlet, "R"
    down, along = np.sign(first[0] - row), np.sign(first[1] - col)
    way = [inlet, *((r, col) for r in range(row + down, first[0] + down, down or 1) if r != row)]
    way += [(first[0], c) for c in range(col + along, first[1] + along, along or 1) if c != col]
    for here, there in pairwise(way):
        onward = direction(here, there)
        b.route(color, here, rx=came, tx=onward, switch=KEEP)
        came = BACK[onward]
    return came


def route_all(b: Builder, color: int, inlet: Cell, takers: Sequence[Cell]) -> None:
    """Route all words from `inlet` to all of `takers`, which are neighbours."""
    came = _route_to(b, color, inlet, takers[0])
    for i, cell in enumerate(takers):
        step = direction(cell, takers[i + 1]) if i < len(takers) - 1 else ""
        b.route(color, cell, rx=came, tx="R" + step)
        came = BACK.get(step, "")


def route_rows(b: Builder, color: int, rows: range, left: int, cols: int) -> None:
    """Route the words of the core west of column `left` along its row, to all of `cols` columns, on each of the rows."""
    where = slice(rows.start, rows.stop)
    b.route(color, (where, left - 1), rx="R", tx="E")
    for col in range(cols):
        onward = "E" if col < cols - 1 else ""
        b.route(color, (where, left + col), rx="W", tx="R" + onward)


def route_lanes(b: Builder, rows: slice, first: int, lane: int, colors: Sequence[int]) -> Sharing:
    """Route sums along `lane` cores on each of `rows` from column `first`: a chain to the first core, on two colors if there are
    more than two, and a multicast back on the last color."""
    if lane == 1:
        return Sharing(1, (), 0, 0)
    *up, back = colors
    last = lane - 1
    steps = tuple(
        ReductionStep((up[i % 2],) if i < last else (), up[(i - 1) % 2] if i else None, None)
        for i in range(lane)
    )
    for i in range(last):
        b.route(up[i % 2], (rows, first + i + 1), rx="R", tx="W")
        b.route(up[i % 2], (rows, first + i), rx="E", tx="R")
    route_broadcast(Line(b, vertical=False, across=rows, first=first), 0, lane, back)
    return Sharing(lane, steps, back, len(colors))


def deal(core: CoreClass, color: int, shares: Sequence[Sequence[tuple[Operand, int]]], takers: int) -> None:
    """Send a part to each of the takers in sequence: operands with their lengths; the last word of a part
    switches the router."""
    for i, share in enumerate(shares):
        for part, (source, length) in enumerate(share):
            turns = part == len(share) - 1 and i < takers - 1
            core.mov(
                fabric_out(color, "path" if turns else None),
                source,
                length=length,
                dtype="fp16",
                start="none",
            )
    if takers > 1:
        core.control(color, Command.RESET, start="none")


def route_senders(
    b: Builder,
    color: int,
    senders: Sequence[Cell],
    towards: str,
    pop: str = "always",
    passing: Set[Cell] = frozenset(),
) -> None:
    """Route cells that send in sequence, the outlet first; a control word resets all of them if none of them
    pops it. Those in `passing` send nothing."""
    for i, cell in enumerate(senders):
        onward = direction(cell, senders[i - 1]) if i else towards
        behind = direction(cell, senders[i + 1]) if i < len(senders) - 1 else ""
        if cell in passing:
            b.route(color, cell, rx=behind, tx=onward, switch=KEEP)
            continue
        switch = Switch([{"rx": behind}], ring=True, pop=pop) if behind else None
        b.route(color, cell, rx="R", tx=onward, switch=switch)


def cable(
    top: int, left: int, rows: int, lane: int, number: int, groups: int
) -> tuple[tuple[Cell, ...], frozenset[Cell]]:
    """Return the cells of stream `number` of `lane` parallel streams that wind through `groups` groups of `lane`
    columns, from the west, and those among them that only pass its words on.

    A lane is `lane` neighbours in a row, one of each stream. Streams come in on rows above the lanes and turn
    around each other below and above them, so no two of them have a cell in common.
    """
    first, last = top + lane - 1, top + rows - 1 - (lane - 1) * (groups > 1)
    cells = [(first - number, col) for col in range(left, left + number)]
    takers = set[Cell]()
    for group in range(groups):
        is_down = group % 2 == 0
        outer = lane - 1 - number if is_down else number  # rows beyond the lanes, where it turns next
        col = left + group * lane + (number if is_down else lane - 1 - number)
        along = [(row, col) for row in range(first, last + 1)][:: 1 if is_down else -1]
        takers |= set(along)
        if group == 0:
            cells += [(row, col) for row in range(first - number, first)]
        cells += along
        if group < groups - 1:
            turn = last + outer if is_down else first - outer
            onward = left + (group + 1) * lane + (lane - 1 - number if is_down else number)
            down = range(last + 1, turn + 1) if is_down else range(first - 1, turn - 1, -1)
            cells += [(row, col) for row in down]
            cells += [(turn, c) for c in range(col + 1, onward)]
            cells += [(row, onward) for row in reversed(down)]
    return tuple(cells), frozenset(cells) - takers


def place_kinds(
    b: Builder, kinds: Mapping[Cell, K], name: str, write: Callable[[CoreClass, K], None]
) -> None:
    """Write one core class per kind with `write`, and place it at all cells of that kind. Class names are `name` and a number."""
    for number, kind in enumerate(dict.fromkeys(kinds.values())):
        core = b.core_class(f"{name} {number}")
        write(core, kind)
        for cell, own in kinds.items():
            if own == kind:
                b.place(core, cell)


def advance_of(position: int, count: int) -> str | None:
    """Return the switch command of the last word of the sender at a position."""
    if count == 1:
        return None
    return "path" if position == count - 1 else "local"


def send_all(core: CoreClass, out: Operand, source: Operand, thread: int, wire: str = "fp16x2") -> None:
    """Send all elements of `source` concurrently with the main thread, before what other microthreads send."""
    core.mov(out, source, dtype="fp16", wire=wire, start="none", thread=thread, priority="high")


def receive_all(core: CoreClass, color: int, target: Operand, thread: int, priority: str = "high") -> None:
    """Receive all elements of `target` concurrently with the main thread."""
    core.mov(target, fabric_in(color), dtype="fp16", start="none", thread=thread, priority=priority)
