"""Random programs that repeat from row to row: streams down and up, systolic neighbours, chains along the rows."""

from __future__ import annotations

import random
from typing import Any

from wse_sim.fabric.format.builder import Builder
from wse_sim.fabric.format.classes import fabric_in, fabric_out
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.fabric.format.program import Program

BUFFER = 64
Step = dict[str, Any]


def random_regular_program(seed: int, config: FabricConfig) -> Program:
    """Draw 20 to 48 rows (or, one time in three, columns) of cores that are equal except for the ends and, rarely, a
    slow line between them.
    """
    rng = random.Random(seed)
    lines, across = rng.randint(20, 48), rng.randint(1, 4)
    turned = rng.random() < 0.3
    size = (across, lines) if turned else (lines, across)
    b = Builder(*size, config)
    x = b.buffer("x", BUFFER)
    steps = [_step(rng) for _ in range(rng.randint(1, 4))]
    color = 0
    for step in steps:
        step["color"] = color
        color += 1 if step["kind"] == "stream" else 2
    turns = rng.choice((1, 1, rng.randint(2, 5), rng.randint(8, 20)))
    slow = rng.randrange(lines) if rng.random() < 0.1 else -1
    own = rng.choice((0, 0, rng.randint(1, 90)))
    ports = {"back": "W", "forth": "E", "left": "N", "right": "S"} if turned else {
        "back": "N", "forth": "S", "left": "W", "right": "E"
    }  # fmt: skip
    classes: dict[object, Any] = {}
    for line in range(lines):
        for place in range(across):
            at = (place, line) if turned else (line, place)
            where = [_position(step, line, lines, place, across) for step in steps]
            key = line == slow, *[(i == 0, i == n - 1, i % 2) for i, n in where]
            if key not in classes:
                core = classes[key] = b.core_class(f"{len(classes)}")
                if own:
                    core.busy(own)
                with core.loop(turns):
                    if line == slow:
                        core.busy(37)
                    for step in steps:
                        _add(core, x, step, line, lines, place, across)
            b.place(classes[key], at)
            for step in steps:
                _route(b, at, ports, step, line, lines, place, across)
    return b.build()


def _step(rng: random.Random) -> Step:
    return {
        "kind": rng.choice(("stream", "stream", "neighbour", "chain")),
        "upwards": rng.random() < 0.5,
        "words": rng.randint(1, 12),
        "busy": rng.choice((0, 0, rng.randint(1, 25))),
        "period": rng.choice((0, 0, 1500, 2000, 4000)),
        "start": rng.choice(("none", "none", "loaded")),
        "fused": rng.random() < 0.5,
    }


def _position(step: Step, line: int, lines: int, place: int, across: int) -> tuple[int, int]:
    """Return the index along the step's direction, and the number of positions."""
    index, count = (place, across) if step["kind"] == "chain" else (line, lines)
    return (count - 1 - index if step["upwards"] else index), count


def _add(core: Any, x: Any, step: Step, line: int, lines: int, place: int, across: int) -> None:
    index, count = _position(step, line, lines, place, across)
    words, timing = step["words"], {"start": step["start"], "period": step["period"]}
    if step["busy"]:
        core.busy(step["busy"])
    if step["kind"] == "stream":
        if index == 0:
            core.mov(fabric_out(step["color"]), x.dsd(0, words), start=step["start"])
        else:
            core.mov(x.dsd(0, words), fabric_in(step["color"]), **timing)
        return
    receive, send = step["color"] + (index + 1) % 2, step["color"] + index % 2
    if 0 < index < count - 1 and step["fused"]:
        core.add(fabric_out(send), fabric_in(receive), x.dsd(0, words), **timing)
        return
    if index > 0:
        core.mov(x.dsd(0, words), fabric_in(receive), **timing)
    if index < count - 1:
        core.mov(fabric_out(send), x.dsd(0, words), start=step["start"])


def _route(
    b: Builder, at: tuple[int, int], ports: dict[str, str], step: Step, line: int, lines: int, place: int, across: int
) -> None:  # fmt: skip
    index, count = _position(step, line, lines, place, across)
    back, forth = ("left", "right") if step["kind"] == "chain" else ("back", "forth")
    source, target = (forth, back) if step["upwards"] else (back, forth)
    rx, tx = ports[source], ports[target]
    if step["kind"] == "stream":
        b.route(
            step["color"],
            at,
            "R" if index == 0 else rx,
            (tx if index < count - 1 else "") + ("R" if index else ""),
        )
        return
    if index > 0:
        b.route(step["color"] + (index + 1) % 2, at, rx, "R")
    if index < count - 1:
        b.route(step["color"] + index % 2, at, "R", tx)
    for parity in (0, 1):
        if count == 1 or (index == 0 and parity == 1) or (index == count - 1 and parity == index % 2):
            b.route(step["color"] + parity, at, "", "")
