"""Fabric programs along lines of cores: routes and instructions that the collectives share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wse_sim.errors import KernelError
from wse_sim.fabric.format.builder import Buffer, Builder, Index, Switch, fabric_in, fabric_out
from wse_sim.fabric.format.classes import CoreClass
from wse_sim.fabric.format.config import FabricConfig
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.trees import LineTree, stream_colors


def new_builder(rows: int, cols: int, wafer: Wafer) -> Builder:
    """Return a builder of `rows` x `cols` cores; the fabric is imported here, so that pricing does not load
    it."""
    return Builder(rows, cols, FabricConfig.from_wafer(wafer))


@dataclass(frozen=True)
class Line:
    """Position of a line of cores: a whole row or column of a rectangle, or all of them in parallel."""

    builder: Builder
    vertical: bool
    across: Index = field(default_factory=lambda: slice(None))  # the rows (or columns) that hold such a line
    first: int = 0  # the column (or row) of position 0

    def place(self, position: int) -> tuple[Any, Any]:
        """Builder place of one position of the line."""
        at = self.first + position
        return (at, self.across) if self.vertical else (self.across, at)

    def toward(self, side: int) -> str:
        """Return the port that leads to smaller (-1) or larger (+1) positions."""
        return ("N" if side < 0 else "S") if self.vertical else ("W" if side < 0 else "E")


@dataclass(frozen=True)
class ReductionStep:
    """The part of one core in a reduction: colors received in order, color sent, router to advance."""

    receives: tuple[int, ...]
    sends: int | None
    advances: str | None


def route_reduce(
    line: Line, tree: LineTree, first_color: int, *, is_repeated: bool = False
) -> tuple[list[ReductionStep], int]:
    """Set the routes of a reduction; return each core's part and the number of colors used.

    With `is_repeated`, the last word of the farthest child resets the routers that it crossed, so the same
    routes serve the next reduction. A core may start that one when it has received the result of this one.
    Two-phase trees do not support this.
    """
    if 1 < tree.group < tree.cores:
        if is_repeated:
            raise KernelError("a reduction of two phases cannot be repeated on its routes; use another tree")
        return _route_two_phase(line, tree, first_color), 2
    colors = stream_colors(tree, first_color)
    advance: dict[int, str | None] = {}
    for (v, side), color in colors.items():
        mine = sorted((c for c in tree.children[v] if (c > v) == (side > 0)), key=lambda c: abs(c - v))
        far, here = mine[-1], set(mine)
        inward, outward = line.toward(-side), line.toward(side)
        line.builder.route(color, line.place(v), rx=outward, tx="R")
        for at in range(v + side, far, side):
            if at in here:
                passing = Switch([{"rx": outward, "tx": inward}], ring=is_repeated)
                line.builder.route(color, line.place(at), rx="R", tx=inward, switch=passing)
                advance[at] = "local"
            else:
                line.builder.route(color, line.place(at), rx=outward, tx=inward)
        line.builder.route(color, line.place(far), rx="R", tx=inward)
        advance[far] = "path" if is_repeated and len(mine) > 1 else None
    parent = tree.parents()
    steps = []
    for v, kids in enumerate(tree.children):
        receives = tuple(colors[v, 1 if c > v else -1] for c in kids)
        up = parent[v]
        sends = None if up < 0 else colors[up, 1 if v > up else -1]
        steps.append(ReductionStep(receives, sends, advance.get(v)))
    return steps, len(set(colors.values()))


def _route_two_phase(line: Line, tree: LineTree, first: int) -> list[ReductionStep]:
    """Set the routes of a two-phase reduction on two colors.

    In a group with colors (y, x), cores at an odd distance from their leader send on y, the others on x. The
    last word of each advances the routers that it passes. Those of x then let the next leader's stream cross,
    which therefore never competes with the group's own words for a link. The leader's router on y switches
    from receiving to sending. So neighbouring groups swap their colors. The leader of the last group receives
    from no other leader and sends on x at once.
    """
    low, high = line.toward(-1), line.toward(1)
    route, place, size = line.builder.route, line.place, tree.group
    last = (tree.cores - 1) // size
    passing, turning = Switch([{"rx": high, "tx": low}]), Switch([{"rx": "R", "tx": low}])
    steps = []
    for v in range(tree.cores):
        group, at = divmod(v, size)
        far, parity = group == last, (group - 1 if group == last and last else group) % 2
        y, x = first + parity, first + 1 - parity
        end = min(size, tree.cores - group * size) - 1
        if at == 0:
            if far:
                route(x, place(v), rx="R", tx=low)
            else:
                route(x, place(v), rx=high, tx="R")
            if end:
                route(y, place(v), rx=high, tx="R", switch=turning if 0 < group < last else None)
            elif not far:
                route(y, place(v), rx="R", tx=low)
            receives = ((y,) if end else ()) + (() if far else (x,))
            steps.append(ReductionStep(receives, None if v == 0 else (x if far else y), None))
            continue
        mine, nxt = (y, x) if at % 2 else (x, y)
        for color, rx, tx in ((mine, "R", low), (nxt, high, "R")):
            if color == nxt and at == end:
                if color == x and not far:
                    route(color, place(v), rx=high, tx=low)
            else:
                route(color, place(v), rx=rx, tx=tx, switch=passing if color == x and not far else None)
        steps.append(ReductionStep((nxt,) if at < end else (), mine, "path"))
    return steps


def emit_reduce(
    k: CoreClass, step: ReductionStep, x: Buffer, dtype: str, start: str = "none", op: str = "add"
) -> None:
    """Emit the instructions of one core: add incoming streams, and forward the last sum to the parent as it
    is formed.

    The first instruction starts as `start` specifies ("none": its start is part of the task start). All
    others pay a vector start.
    """
    out = None if step.sends is None else fabric_out(step.sends, step.advances)
    if not step.receives and out is not None:
        k.mov(out, x.dsd(), dtype=dtype, start=start)
    for i, color in enumerate(step.receives):
        is_last = i == len(step.receives) - 1 and out is not None
        target = out if is_last else x.dsd()
        combine = getattr(k, op)
        combine(target, x.dsd(), fabric_in(color), dtype=dtype, start=start if i == 0 else "code")


def route_broadcast(line: Line, root: int, cores: int, color: int) -> None:
    """Multicast from `root` to both ends of the line on one color."""
    low, high = line.toward(-1), line.toward(1)
    sides = [side for side, exists in ((low, root > 0), (high, root < cores - 1)) if exists]
    if sides:
        line.builder.route(color, line.place(root), rx="R", tx="".join(sides))
    for first, last, source, onward in ((root + 1, cores - 1, low, high), (root - 1, 0, high, low)):
        step = 1 if last >= first and onward == high else -1
        if (last - first) * step < 0 or not 0 <= first < cores:
            continue
        for at in range(first, last + step, step):
            line.builder.route(color, line.place(at), rx=source, tx="R" if at == last else "R" + onward)


def route_rectangle(builder: Builder, color: int) -> None:
    """Multicast from the north-west core to all: southward in column 0, eastward in every row."""
    rows, cols = builder.rows, builder.cols
    route_broadcast(Line(builder, vertical=False), 0, cols, color)
    if rows > 1:
        east = "E" if cols > 1 else ""
        builder.route(color, (slice(None), 0), rx="N", tx="RS" + east)
        builder.route(color, (rows - 1, 0), rx="N", tx="R" + east)
        builder.route(color, (0, 0), rx="R", tx="S" + east)


@dataclass(frozen=True)
class LinePart:
    """One core's part in an all-reduce along a line: its step of the reduction, and the colors of the
    multicast back."""

    step: ReductionStep
    gets: int | None
    gives: tuple[int, ...]


def route_allreduce(
    line: Line, tree: LineTree, first_color: int, *, is_repeated: bool = False
) -> tuple[list[LinePart], int]:
    """Set the routes of an all-reduce; return each core's part and the number of colors used.

    With `is_repeated`, the same routes can serve several all-reduces, one after the other.
    """
    root, cores = tree.root, tree.cores
    steps, used = route_reduce(line, tree, first_color, is_repeated=is_repeated)
    back = {-1: first_color + used, 1: first_color + used + 1}
    for side, low, high in ((-1, 0, root), (1, root, cores - 1)):
        if low < high:
            _route_one_way(line, root, side, back[side], high if side > 0 else low)
    ways = tuple(back[way] for way, exists in ((-1, root > 0), (1, root < cores - 1)) if exists)
    parts = [
        LinePart(step, None if v == root else back[1 if v > root else -1], ways if v == root else ())
        for v, step in enumerate(steps)
    ]
    return parts, used + 2


def emit_allreduce(
    k: CoreClass, part: LinePart, x: Buffer, dtype: str, start: str = "none", op: str = "add"
) -> None:
    """Emit the instructions of one core; the first one starts as `start` specifies."""
    emit_reduce(k, part.step, x, dtype, start, op)
    if part.gets is not None:
        k.mov(x.dsd(), fabric_in(part.gets), dtype=dtype)
    for color in part.gives:
        k.mov(fabric_out(color), x.dsd(), dtype=dtype)


def place_allreduce(
    line: Line,
    tree: LineTree,
    x: Buffer,
    dtype: str,
    first_color: int,
    before: Callable[[CoreClass], None] | None = None,
) -> int:
    """Write routes, classes and places of an all-reduce on the buffer x; `before(k)` writes preceding code.

    Return the number of colors used.
    """
    b = line.builder
    parts, used = route_allreduce(line, tree, first_color)
    classes: dict[LinePart, Any] = {}
    for v, part in enumerate(parts):
        if part not in classes:
            classes[part] = k = b.core_class(f"allreduce {len(classes)}")
            if before is None:
                k.busy(b.config.task_start_cycles)
            else:
                before(k)  # the call pays L, its first instruction o
            emit_allreduce(k, part, x, dtype, "none" if before is None else "code")
        b.place(classes[part], line.place(v))
    return used


def place_rows_columns(
    b: Builder,
    trees: tuple[LineTree, LineTree],
    x: Buffer,
    dtype: str,
    name: str = "allreduce",
    before: Callable[[CoreClass], None] | None = None,
    after: Callable[[CoreClass], None] | None = None,
) -> None:
    """Write an all-reduce of x along rows, then one along columns on other colors; `before(k)` and `after(k)` write
    other work of the same task."""
    row_parts, used = route_allreduce(Line(b, vertical=False), trees[0], 0)
    column_parts, _ = route_allreduce(Line(b, vertical=True), trees[1], used)
    classes: dict[tuple[LinePart, LinePart], CoreClass] = {}
    for row, col in np.ndindex(b.rows, b.cols):
        key = (row_parts[col], column_parts[row])
        if key not in classes:
            classes[key] = k = b.core_class(f"{name} {len(classes)}")
            k.busy(b.config.task_start_cycles)
            if before is not None:
                before(k)
            emit_allreduce(k, key[0], x, dtype, "code" if before is not None else "none")
            emit_allreduce(k, key[1], x, dtype, "code" if before is not None or b.cols > 1 else "none")
            if after is not None:
                after(k)
        b.place(classes[key], (row, col))


def _route_one_way(line: Line, root: int, side: int, color: int, end: int) -> None:
    """Route the multicast from the root to one end of the line."""
    outward, inward = line.toward(side), line.toward(-side)
    line.builder.route(color, line.place(root), rx="R", tx=outward)
    for v in range(root + side, end + side, side):
        line.builder.route(color, line.place(v), rx=inward, tx="R" if v == end else "R" + outward)
