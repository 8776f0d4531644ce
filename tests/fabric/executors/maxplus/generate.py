"""Random programs on static routes: trees, shared links, split and fused transfers, slow readers, loops, deadlocks."""

from __future__ import annotations

import random

import numpy as np

from wse_sim.fabric.format.builder import Builder
from wse_sim.fabric.format.classes import fabric_in, fabric_out
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Program

Cell = tuple[int, int]
_OPPOSITE = {"N": "S", "S": "N", "E": "W", "W": "E"}
_STEP = {"N": (-1, 0), "S": (1, 0), "E": (0, 1), "W": (0, -1)}
BUFFER = 64


def _path(rng: random.Random, a: Cell, b: Cell, x_first: bool) -> list[str]:
    """Return the moves from a to b."""
    rows = ["S" if b[0] > a[0] else "N"] * abs(b[0] - a[0])
    cols = ["E" if b[1] > a[1] else "W"] * abs(b[1] - a[1])
    return cols + rows if x_first else rows + cols


class _Color:
    """Routes of one color: one input and a set of outputs per router."""

    def __init__(self) -> None:
        self.rx: dict[Cell, str] = {}
        self.tx: dict[Cell, set[str]] = {}
        self.trees: list[tuple[Cell, list[Cell]]] = []

    def grow(self, rng: random.Random, source: Cell, targets: list[Cell], merge: bool) -> None:
        """Add a tree; targets that would need a second input somewhere are dropped unless `merge`."""
        if source in self.rx and not merge:
            return
        rx, tx = dict(self.rx), {k: set(v) for k, v in self.tx.items()}
        if source in rx:
            if "R" not in rx[source]:
                rx[source] += "R"
        else:
            rx[source] = "R"
        tx.setdefault(source, set())
        own, reached = {source}, []
        x_first = rng.random() < 0.5
        for target in targets:
            at, ok, new_rx, new_tx, new_own = (
                source,
                True,
                dict(rx),
                {k: set(v) for k, v in tx.items()},
                set(own),
            )
            for move in _path(rng, source, target, x_first):
                new_tx.setdefault(at, set()).add(move)
                at = (at[0] + _STEP[move][0], at[1] + _STEP[move][1])
                came = _OPPOSITE[move]
                if at in new_rx:
                    if came not in new_rx[at]:
                        if not merge or at in new_own:
                            ok = False
                            break
                        new_rx[at] += came
                    elif at not in new_own:
                        ok = False
                        break
                else:
                    new_rx[at] = came
                new_own.add(at)
                new_tx.setdefault(at, set())
            if ok:
                new_tx[at].add("R")
                rx, tx, own = new_rx, new_tx, new_own
                reached.append(target)
        if reached and tx[source]:
            self.rx, self.tx = rx, tx
            self.trees.append((source, reached))


def random_program(
    seed: int, config: FabricConfig, *, merges: float = 0.0, contention: float = 0.5
) -> tuple[Program, dict[str, np.ndarray]]:
    """Return a program and the values of its buffers."""
    rng = random.Random(seed)
    rows, cols = rng.randint(1, 5), rng.randint(2, 8)
    cells = [(r, c) for r in range(rows) for c in range(cols)]
    colors = [_Color() for _ in range(rng.randint(1, 4))]
    spread = rng.random() < contention
    for color in colors:
        merging = rng.random() < merges
        for _ in range(rng.randint(1, 3)):
            source = rng.choice(cells)
            near = cells if spread else [c for c in cells if c[0] == source[0] or c[1] == source[1]]
            targets = rng.sample(near, min(len(near), rng.randint(1, 6)))
            if rng.random() < 0.9:
                targets = [c for c in targets if c != source]
            color.grow(rng, source, targets, merging)
    b = Builder(rows, cols, config)
    buffer = b.buffer("x", BUFFER)
    turns = rng.choice((1, 1, 1, rng.randint(2, 5), rng.randint(8, 40)))
    swap = rng.choice((0.0, 0.0, 0.0, 0.1, 0.5))
    fuse = rng.choice((0.0, 0.0, 0.1, 0.5))
    transfers = [
        (k, source, targets, rng.randint(1, rng.choice((3, 12, 40))))
        for k, color in enumerate(colors)
        for source, targets in color.trees
        for _ in range(rng.choice((1, 1, 2)))
    ]
    rng.shuffle(transfers)
    todo: dict[Cell, list[tuple[str, int, int]]] = {}
    for k, source, targets, n in transfers:
        todo.setdefault(source, []).append(("send", k, n))
        for target in targets:
            todo.setdefault(target, []).append(("recv", k, n))
    for cell, ops in todo.items():
        for i in range(len(ops) - 1):
            if rng.random() < swap:
                ops[i], ops[i + 1] = ops[i + 1], ops[i]
        core = b.core_class(f"c{cell[0]}_{cell[1]}")
        own = rng.choice((0, 1)) * rng.randint(0, 60)
        if own:
            core.busy(own)
        if turns > 1:
            with core.loop(turns):
                _body(rng, core, buffer, ops, fuse)
        else:
            _body(rng, core, buffer, ops, fuse)
        b.place(core, cell)
    for k, color in enumerate(colors):
        for cell, rx in color.rx.items():
            b.route(k, cell, rx, "".join(sorted(color.tx[cell])))
        if not color.rx:
            b.route(k, None, "", "")
        if rng.random() < 0.3:
            b.input_queue(k, rng.randrange(8))
    values = np.random.default_rng(seed).integers(-4, 5, (rows, cols, BUFFER)).astype(np.float32)
    return b.build(), {"x": values}


def _body(rng: random.Random, core, buffer, ops: list[tuple[str, int, int]], fuse: float) -> None:
    i = 0
    while i < len(ops):
        kind, k, n = ops[i]
        if rng.random() < 0.3:
            core.busy(rng.randint(1, 30))
        period = rng.choice((0, 0, 0, 0, 1500, 2000, 3250, 5000))
        start = rng.choice(("none", "none", "code", "loaded"))
        following = ops[i + 1] if i + 1 < len(ops) else None
        if (
            kind == "recv"
            and following
            and following[0] != kind
            and following[1:] != (k, n)
            and rng.random() < fuse
        ):
            m = following[2]
            fused = min(n, m)
            if rng.random() < 0.5:
                core.mov(fabric_out(following[1]), fabric_in(k), length=fused, start=start, period=period)
            else:
                core.add(
                    fabric_out(following[1]), fabric_in(k), buffer.dsd(0, fused), start=start, period=period
                )
            if n > fused:
                core.mov(buffer.dsd(5, n - fused), fabric_in(k), start=start)
            if m > fused:
                core.mov(fabric_out(following[1]), buffer.dsd(3, m - fused), start=start)
            i += 2
            continue
        if (
            kind == "recv"
            and following
            and following[0] == "recv"
            and following[1] != k
            and rng.random() < fuse
        ):
            fused = min(n, following[2])
            core.add(buffer.dsd(1, fused), fabric_in(k), fabric_in(following[1]), start=start, period=period)
            if n > fused:
                core.add(buffer.dsd(5, n - fused), fabric_in(k), buffer.dsd(9, n - fused), start=start)
            if following[2] > fused:
                core.mov(buffer.dsd(3, following[2] - fused), fabric_in(following[1]), start=start)
            i += 2
            continue
        parts = [n]
        if n > 1 and rng.random() < 0.3:
            first = rng.randint(1, n - 1)
            parts = [first, n - first]
        for part in parts:
            if rng.random() < 0.08:  # a microthread that is joined at once
                thread, local = rng.randint(1, 2), buffer.dsd(rng.randint(0, 8), part)
                target, source = (fabric_out(k), local) if kind == "send" else (local, fabric_in(k))
                core.mov(target, source, start=start, period=period, thread=thread)
                core.join(thread)
            elif kind == "send":
                core.mov(fabric_out(k), buffer.dsd(rng.randint(0, 8), part), start=start, period=period)
            elif rng.random() < 0.2:
                core.fmac_vectors(
                    buffer.dsd(0, 16),
                    fabric_in(k),
                    buffer.dsd(20, 16),
                    rng.randint(1, 9),
                    length=part,
                    start=start,
                )
            else:
                core.mov(buffer.dsd(rng.randint(0, 8), part), fabric_in(k), start=start, period=period)
            if len(parts) > 1 and rng.random() < 0.7:
                core.busy(rng.randint(1, 40))
        if rng.random() < 0.1:
            core.add(buffer.dsd(0, 9), buffer.dsd(10, 9), buffer.dsd(30, 9), start=start)
        i += 1
