"""Small kernels of the tests: reduce, broadcast, halo, as fabric programs."""

from __future__ import annotations

import numpy as np

from wse_sim.fabric.format.builder import Builder, Switch, fabric_in, fabric_out
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Program


def chain_reduce(config: FabricConfig, cores: int, words: int, start: int | None = None) -> Program:
    """Return a row of `cores` adds its vectors towards core 0; two colors alternate by parity."""
    b = Builder(1, cores, config)
    start = config.task_start_cycles if start is None else start
    x = b.buffer("x", words)
    for parity in (0, 1):
        send, receive = parity, 1 - parity
        k = b.core_class(f"middle {parity}")
        k.busy(start)
        k.add(fabric_out(send), fabric_in(receive), x.dsd(), start="none")
        here = (0, slice(parity, cores, 2))
        b.place(k, here)
        b.route(send, here, rx="R", tx="W")
        b.route(receive, here, rx="E", tx="R")
    root = b.core_class("root")
    root.busy(start)
    root.add(x.dsd(), fabric_in(1), x.dsd(), start="none")
    b.place(root, (0, 0))
    b.route(0, (0, 0), rx="E", tx="R")  # the root sends nothing
    tail = b.core_class("tail")
    tail.busy(start)
    tail.mov(fabric_out((cores - 1) % 2), x.dsd(), start="none")
    b.place(tail, (0, cores - 1))
    return b.build()


def two_phase_reduce(config: FabricConfig, cores: int, words: int, group: int) -> Program:
    """Build chains inside groups, then a chain over the leaders, whose streams cross the groups by switches.

    Core j of group g sends on color (j + g) mod 2 and receives on the other one, so a leader's stream of phase 2
    arrives on the color of its phase 1.  The last wavelet of a core's phase 1 turns both colors' switches to W.
    """
    b = Builder(1, cores, config)
    start = config.task_start_cycles
    x = b.buffer("x", words)
    index = np.arange(cores)
    offset, send = index % group, (index % group + index // group) % 2
    groups = -(-cores // group)
    is_last = (index + 1) % group == 0
    is_last[-1] = True
    for color in (0, 1):
        for j in range(cores):
            mine = send[j] == color
            if offset[j] == 0:
                rx, tx, switch = ("R", "W", None) if mine else ("E", "R", None)
                if j == 0 and mine:
                    continue
            elif mine:
                rx, tx, switch = "R", "W", Switch([{"rx": "E"}])
            elif is_last[j]:
                rx, tx, switch = "E", "W", None
            else:
                rx, tx, switch = "E", "R", Switch([{"tx": "W"}])
            if j == cores - 1:
                if not mine:
                    continue
                switch = None
            if (j // group + 1) % 2 != color or j >= (groups - 1) * group:
                switch = (
                    None  # the next leader's stream crosses on the other color; nobody crosses the far group
                )
                if offset[j] > 0 and not mine and is_last[j]:
                    continue
            b.route(color, (0, j), rx=rx, tx=tx, switch=switch)
    for color in (0, 1):
        k = b.core_class(f"member {color}")
        k.busy(start)
        k.add(fabric_out(color, advance="path"), fabric_in(1 - color), x.dsd(), start="none")
        tail = b.core_class(f"tail {color}")
        tail.busy(start)
        tail.mov(fabric_out(color, advance="path"), x.dsd(), start="none")
        leader = b.core_class(f"leader {color}")
        leader.busy(start)
        leader.add(x.dsd(), fabric_in(1 - color), x.dsd(), start="none")
        leader.add(fabric_out(color), fabric_in(1 - color), x.dsd())
        for j in index[send == color]:
            b.place(leader if offset[j] == 0 else tail if is_last[j] else k, (0, int(j)))
    far = b.core_class("far leader")
    first = (groups - 1) * group
    far.busy(start)
    if first == cores - 1:
        far.mov(fabric_out(int(send[first])), x.dsd(), start="none")
    else:
        far.add(fabric_out(int(send[first])), fabric_in(1 - int(send[first])), x.dsd(), start="none")
    b.place(far, (0, first))
    root = b.core_class("root")
    root.busy(start)
    root.add(x.dsd(), fabric_in(1), x.dsd(), start="none")
    root.add(x.dsd(), fabric_in(1), x.dsd())
    b.place(root, (0, 0))
    return b.build()


def star_reduce(config: FabricConfig, cores: int, words: int) -> Program:
    """Let every core send its vector to core 0 on one color; switches pass one stream after the other."""
    b = Builder(1, cores, config)
    x = b.buffer("x", words)
    k = b.core_class("sender")
    k.mov(fabric_out(0, advance="local"), x.dsd(), start="none")
    b.place(k, (0, slice(1, cores)))
    b.route(0, (0, slice(1, cores)), rx="R", tx="W", switch=Switch([{"rx": "E"}]))
    b.route(0, (0, cores - 1), rx="R", tx="W")
    root = b.core_class("root")
    with root.loop(cores - 1):
        root.add(x.dsd(), fabric_in(0), x.dsd(), start="none")
    b.place(root, (0, 0))
    b.route(0, (0, 0), rx="E", tx="R")
    return b.build()


def broadcast(config: FabricConfig, cores: int, words: int) -> Program:
    """Multicast the vector of core 0 along the row."""
    b = Builder(1, cores, config)
    x = b.buffer("x", words)
    source, sink = b.core_class("source"), b.core_class("sink")
    source.mov(fabric_out(0), x.dsd(), start="none")
    sink.mov(x.dsd(), fabric_in(0), start="none")
    b.place(sink, None)
    b.place(source, (0, 0))
    b.route(0, None, rx="W", tx="RE")
    b.route(0, (0, cores - 1), rx="W", tx="R")
    b.route(0, (0, 0), rx="R", tx="E")
    return b.build()


def halo_sends_first(config: FabricConfig, size: int, words: int) -> Program:
    """Exchange with four neighbours on a grid without wrap-around: all sends, then all receives, on eight colors."""
    b = Builder(size, size, config)
    x = b.buffer("x", 8 * words)
    moves = (("E", "W", 0, 1), ("W", "E", 0, -1), ("S", "N", 1, 0), ("N", "S", -1, 0))
    row, col = np.divmod(np.arange(size * size), size)
    parity = ((row + col) % 2).reshape(size, size)
    row, col = row.reshape(size, size), col.reshape(size, size)
    has = [
        ((row + dr >= 0) & (row + dr < size) & (col + dc >= 0) & (col + dc < size)) for _, _, dr, dc in moves
    ]
    for d, (out, back, _, _) in enumerate(moves):
        receives = has[d ^ 1]  # a word that moves in direction d comes from the other side
        for p in (0, 1):
            b.route_mask(2 * d + p, has[d] & (parity == p), rx="R", tx=out)
            b.route_mask(2 * d + p, receives & (parity == 1 - p), rx=back, tx="R")
    kinds = parity.copy()
    for d in range(4):
        kinds = kinds * 2 + has[d]
    for kind in np.unique(kinds):
        mask = kinds == kind
        p, here = int(parity[mask][0]), [bool(has[d][mask][0]) for d in range(4)]
        k = b.core_class(f"halo {kind}")
        for d in range(4):
            if here[d]:
                k.mov(fabric_out(2 * d + p), x.dsd(0, words), start="none")
        for d in range(4):
            if here[d ^ 1]:
                k.mov(x.dsd((4 + d) * words, words), fabric_in(2 * d + 1 - p), start="none")
        b.place(k, mask)
    return b.build()
