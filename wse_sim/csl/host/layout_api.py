"""SdkLayout: programs described in Python by code regions, colors, ports, connections and host streams.

A description is translated to a layout file in CSL (``OUT.csl`` next to the output folder), which the
compiler processes as any other. Colors without a number get one. Connected ports share one color, because a
wavelet keeps its color. The path between two ports is a shortest one over routers at which the color is free.

One file, because it is one class of the vendor's interface with the objects that its methods create.
"""

from __future__ import annotations

import enum
import itertools
import json
import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from wse_sim.atomic_files import together, write_whole
from wse_sim.csl.compiler import compile_program
from wse_sim.csl.host.arrays import HostError
from wse_sim.csl.release import integer_params
from wse_sim.files import claim_folder

EXTRA_FILE = "layout.json"
SYMBOLS_FILE = "symbols.npz"
MARGIN = 1  # additional columns and rows for paths between regions and to the host
SWITCHING = {"wse2": tuple(range(24)), "wse3": (*range(10), 12, 13, 16, 17, 20, 21)}
"""Colors that may have several switch positions."""


class SdkTarget(enum.Enum):
    """Generation of the wafer-scale engine."""

    WSE2 = "wse2"
    WSE3 = "wse3"


class Edge(enum.Enum):
    """Side of a code region."""

    TOP = "NORTH"
    RIGHT = "EAST"
    BOTTOM = "SOUTH"
    LEFT = "WEST"


class Route(enum.Enum):
    """Port of a router."""

    NORTH = "NORTH"
    EAST = "EAST"
    SOUTH = "SOUTH"
    WEST = "WEST"
    RAMP = "RAMP"


STEP = {"NORTH": (0, -1), "EAST": (1, 0), "SOUTH": (0, 1), "WEST": (-1, 0)}
OPPOSITE = {"NORTH": "SOUTH", "EAST": "WEST", "SOUTH": "NORTH", "WEST": "EAST"}
PORT = {"NORTH": 0, "EAST": 1, "SOUTH": 2, "WEST": 3}


class SimfabConfig:
    """Settings of a simulated fabric; none of them changes a result here."""

    def __init__(self, **settings: object) -> None:
        self.settings = settings


@dataclass(frozen=True)
class Platform:
    """Machine that a program is compiled for."""

    target: SdkTarget


def get_platform(
    cmaddr: str | None = None, config: SimfabConfig | None = None, target: SdkTarget = SdkTarget.WSE3
) -> Platform:
    """Return the simulated machine of a generation.

    Raises
    ------
    HostError
        If `cmaddr` names a real system.
    """
    if cmaddr:
        raise HostError(f"cmaddr '{cmaddr}' names a real system; this is a simulator: leave it out")
    return Platform(target)


@dataclass(frozen=True)
class IntVector:
    """Column and row of a core."""

    x: int
    y: int


@dataclass(frozen=True)
class IntRectangle:
    """Rectangle from its upper left core (included) to its lower right core (not included)."""

    upper_left: IntVector
    lower_right: IntVector


_SERIAL = itertools.count()


@dataclass(eq=False)
class Color:
    """Color with a name; the compiler chooses the number if none is given."""

    name: str
    id: int | None = None
    serial: int = field(default_factory=lambda: next(_SERIAL))


@dataclass
class RoutingPosition:
    """Input and output ports of one switch position."""

    rx: tuple[Route, ...] = ()
    tx: tuple[Route, ...] = ()

    def set_input(self, routes: Iterable[Route]) -> RoutingPosition:
        """Set the ports from which words arrive, and return the position."""
        self.rx = tuple(routes)
        return self

    def set_output(self, routes: Iterable[Route]) -> RoutingPosition:
        """Set the ports to which words are sent, and return the position."""
        self.tx = tuple(routes)
        return self


@dataclass(frozen=True)
class EdgeRouting:
    """Switch positions for the cores on one side of a region."""

    edge: Edge
    positions: tuple[RoutingPosition, ...]


def get_edge_routing(edge: Edge, positions: Iterable[RoutingPosition]) -> EdgeRouting:
    """Return switch positions for the cores on one side, which override those of the region."""
    return EdgeRouting(edge, tuple(positions))


@dataclass(eq=False)
class Port:
    """Cores on one side of a region at which a color enters or leaves the region."""

    region: CodeRegion
    color: Color
    edge: Edge
    positions: tuple[RoutingPosition, ...]
    size: int
    is_input: bool

    def cores(self) -> list[tuple[int, int]]:
        """Return the (column, row) of the port's cores on the fabric, in order."""
        return [(self.region.x + x, self.region.y + y) for x, y in self.region.side(self.edge)]


@dataclass(eq=False)
class CodeRegion:
    """Rectangle of cores that run one source file."""

    layout: SdkLayout
    file: str
    name: str
    width: int
    height: int
    x: int = -1
    y: int = -1
    params: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    routes: dict[tuple[int, int, Color], tuple[RoutingPosition, ...]] = field(default_factory=dict)
    symbols: list[tuple[str, np.ndarray, int, int]] = field(default_factory=list)

    def place(self, x: int, y: int) -> None:
        """Place the region with its north-west core at column x, row y of the fabric.

        Raises
        ------
        HostError
            If x or y is negative.
        """
        if x < 0 or y < 0:
            raise HostError(f"region '{self.name}' is placed at ({x}, {y}); columns and rows count from 0")
        self.x, self.y = int(x), int(y)

    def color(self, name: str) -> Color:
        """Return a new color with this name."""
        return Color(name)

    def cells(self) -> Iterator[tuple[int, int]]:
        """Iterate over all cores as (column, row) within the region."""
        return itertools.product(range(self.width), range(self.height))

    def side(self, edge: Edge) -> list[tuple[int, int]]:
        """Return the cores of a side from west to east or north to south, as (column, row) within the
        region."""
        if edge in (Edge.TOP, Edge.BOTTOM):
            return [(x, 0 if edge is Edge.TOP else self.height - 1) for x in range(self.width)]
        return [(0 if edge is Edge.LEFT else self.width - 1, y) for y in range(self.height)]

    def set_param_all(self, name: str | Color, value: object = None) -> None:
        """Set a parameter of all cores, by name and value, or by a color under the color's name."""
        for at in self.cells():
            self._set(at, name, value)

    def set_param(self, at: IntVector, name: str | Color, value: object = None) -> None:
        """Set a parameter of one core.

        Raises
        ------
        HostError
            If the core is outside the region.
        """
        self._set((at.x, at.y), name, value)

    def set_param_range(self, where: IntRectangle, name: str | Color, value: object = None) -> None:
        """Set a parameter of the cores of a rectangle.

        Raises
        ------
        HostError
            If a core is outside the region.
        """
        for at in self._within(where):
            self._set(at, name, value)

    def _set(self, at: tuple[int, int], name: str | Color, value: object) -> None:
        self._check(at)
        key = name.name if isinstance(name, Color) else name
        self.params.setdefault(at, {})[key] = name if isinstance(name, Color) else value

    def _check(self, at: tuple[int, int]) -> None:
        if not (0 <= at[0] < self.width and 0 <= at[1] < self.height):
            raise HostError(f"core {at} is outside region '{self.name}' of {self.width} x {self.height}")

    def _within(self, where: IntRectangle) -> Iterator[tuple[int, int]]:
        first, beyond = where.upper_left, where.lower_right
        return itertools.product(range(first.x, beyond.x), range(first.y, beyond.y))

    def set_symbol_all(self, name: str, array: object, x_size: int, y_size: int) -> None:
        """Cut a matrix of y_size x x_size values into equal tiles and initialise the variable `name` of each
        core with its tile.

        Raises
        ------
        HostError
            If the matrix cannot be cut into equal tiles.
        """
        values = np.ascontiguousarray(array)
        if values.size != x_size * y_size or x_size % self.width or y_size % self.height:
            raise HostError(
                f"symbol '{name}': {values.size} values as {y_size} x {x_size} do not cut into {self.height} x {self.width} equal tiles"
            )
        self.symbols.append(
            (name, values.reshape(y_size, x_size), y_size // self.height, x_size // self.width)
        )

    def paint(self, at: IntVector, color: Color, positions: Iterable[RoutingPosition]) -> None:
        """Set the routes of a color at one core.

        Raises
        ------
        HostError
            If the core is outside the region.
        """
        self._check((at.x, at.y))
        self.routes[at.x, at.y, color] = tuple(positions)

    def paint_all(
        self, color: Color, positions: Iterable[RoutingPosition], edges: Iterable[EdgeRouting] = ()
    ) -> None:
        """Set the routes of a color at all cores; `edges` overrides them for the cores of some sides."""
        for x, y in self.cells():
            self.routes[x, y, color] = tuple(positions)
        for edge in edges:
            for x, y in self.side(edge.edge):
                self.routes[x, y, color] = edge.positions

    def paint_range(self, where: IntRectangle, color: Color, positions: Iterable[RoutingPosition]) -> None:
        """Set the routes of a color at the cores of a rectangle.

        Raises
        ------
        HostError
            If a core is outside the region.
        """
        for at in self._within(where):
            self._check(at)
            self.routes[(*at, color)] = tuple(positions)

    def create_input_port(
        self, color: Color, edge: Edge, positions: Iterable[RoutingPosition], size: int, *_: object
    ) -> Port:
        """Create a port through which a color enters over a side; that side becomes the input of all
        positions."""
        return self._port(color, edge, positions, size, is_input=True)

    def create_output_port(
        self, color: Color, edge: Edge, positions: Iterable[RoutingPosition], size: int, *_: object
    ) -> Port:
        """Create a port through which a color leaves over a side; that side becomes the output of all
        positions."""
        return self._port(color, edge, positions, size, is_input=False)

    def _port(
        self, color: Color, edge: Edge, positions: Iterable[RoutingPosition], size: int, *, is_input: bool
    ) -> Port:
        side = (Route[edge.value],)
        full = tuple(
            RoutingPosition(side, p.tx) if is_input else RoutingPosition(p.rx, side) for p in positions
        )
        port = Port(self, color, edge, full, int(size), is_input)
        for x, y in self.side(edge):
            self.routes[x, y, color] = full
        return port


@dataclass(frozen=True)
class Stream:
    """Host stream, identified by its number in the output folder."""

    index: int


class SdkLayout:
    """Description of a whole program."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self.regions: list[CodeRegion] = []
        self.connections: list[tuple[Port, Port]] = []
        self.streams: list[Port] = []

    def create_code_region(self, file: str, name: str, width: int, height: int) -> CodeRegion:
        """Create a region of `width` x `height` cores that run a source file.

        Raises
        ------
        HostError
            If a side is less than 1.
        """
        if width < 1 or height < 1:
            raise HostError(f"region '{name}' of {width} x {height} has no core; give both sides at least 1")
        region = CodeRegion(self, str(file), name, int(width), int(height))
        self.regions.append(region)
        return region

    def connect(self, source: Port, target: Port) -> None:
        """Connect an output port to an input port with the same number of cores, core by core.

        Raises
        ------
        HostError
            If the ports are of the wrong kind or differ in size.
        """
        if source.is_input or not target.is_input:
            raise HostError("connect takes an output port and an input port, in this order")
        a, b = len(source.cores()), len(target.cores())
        if a != b:
            raise HostError(
                f"an output port of {a} cores ('{source.region.name}') cannot be connected to an input port of {b} "
                f"('{target.region.name}'); give both the same number"
            )
        self.connections.append((source, target))

    def create_input_stream(self, port: Port, *_: object, **__: object) -> Stream:
        """Create a stream from the host to an input port of one core.

        Raises
        ------
        HostError
            If the port is an output port or has several cores.
        """
        return self._stream(port, want_input=True)

    def create_output_stream(self, port: Port, *_: object, **__: object) -> Stream:
        """Create a stream from an output port of one core to the host.

        Raises
        ------
        HostError
            If the port is an input port or has several cores.
        """
        return self._stream(port, want_input=False)

    def _stream(self, port: Port, *, want_input: bool) -> Stream:
        if port.is_input != want_input:
            raise HostError(
                f"the port of '{port.region.name}' is an {'in' if port.is_input else 'out'}put port; take the other kind"
            )
        if len(port.cores()) != 1:
            raise HostError(
                f"a host stream needs a port of one core; that of '{port.region.name}' has {len(port.cores())}"
            )
        self.streams.append(port)
        return Stream(len(self.streams) - 1)

    # -- compilation

    def compile(self, out_prefix: str = "out", **_: object) -> str:
        """Compute the routes, write the layout file and compile it; return the output folder.

        Raises
        ------
        HostError
            If there is no region, regions overlap, colors run out or a path is blocked.
        CslError
            If a source has errors.
        """
        plan = _Plan(self)
        out = Path(out_prefix)
        source = Path(f"{out_prefix}.csl")
        claim_folder(out, "out_prefix")
        write_whole(source, plan.text())
        is_strict, sdk = os.environ.get("WSE_SIM_CSL_STRICT") == "1", os.environ.get("WSE_SIM_CSL_SDK", "")
        program = compile_program(source, arch=self.platform.target.value, strict=is_strict, sdk=sdk)
        with together(out) as part:
            program.write(part)
            streams = json.dumps({"streams": plan.stream_places()}, indent=1)
            (part / EXTRA_FILE).write_text(streams + "\n", encoding="utf-8")
            plan.save_symbols(part / SYMBOLS_FILE)
        return str(out)


class _Plan:
    """Color numbers, routes of all cores and paths of all connections of a layout."""

    def __init__(self, layout: SdkLayout) -> None:
        self.layout = layout
        self.arch = layout.platform.target.value
        if not layout.regions:
            raise HostError("the layout has no code region; create one")
        self._place_missing()
        self.owner = self._owners()
        self.cols = max(r.x + r.width for r in layout.regions) + MARGIN
        self.rows = max(r.y + r.height for r in layout.regions) + MARGIN
        self.groups: dict[int, int] = {}
        self.number = self._numbers()
        self.routes: dict[tuple[int, int, int], tuple[RoutingPosition, ...]] = {}
        for region in layout.regions:
            for (x, y, color), positions in region.routes.items():
                self.routes[region.x + x, region.y + y, self.number[color.serial]] = positions
        for source, target in layout.connections:
            number = self.number[source.color.serial]
            for a, b in zip(source.cores(), target.cores(), strict=True):
                self._path(number, a, source.edge.value, b, target.edge.value)
        self.taps = [self._tap(port) for port in layout.streams]

    def _place_missing(self) -> None:
        """Place the regions without a position at the north-west, or to the east of those that have one, in a
        row."""
        at = max((r.x + r.width + MARGIN for r in self.layout.regions if r.x >= 0), default=0)
        for region in self.layout.regions:
            if region.x < 0:
                region.place(at, 0)
                at += region.width + MARGIN

    def _owners(self) -> dict[tuple[int, int], CodeRegion]:
        owner: dict[tuple[int, int], CodeRegion] = {}
        for region in self.layout.regions:
            for x, y in region.cells():
                at = (region.x + x, region.y + y)
                if at in owner:
                    raise HostError(
                        f"regions '{owner[at].name}' and '{region.name}' are both on core {at}; place them apart"
                    )
                owner[at] = region
        return owner

    def _find(self, serial: int) -> int:
        while self.groups.setdefault(serial, serial) != serial:
            serial = self.groups[serial]
        return serial

    def _numbers(self) -> dict[int, int]:
        """Return a number for every color: connected colors share one, and colors with several switch
        positions get one that supports them."""
        colors: dict[int, Color] = {}
        switching: set[int] = set()
        for region in self.layout.regions:
            for params in region.params.values():
                colors.update({v.serial: v for v in params.values() if isinstance(v, Color)})
            for (_, _, color), positions in region.routes.items():
                colors[color.serial] = color
                if len(positions) > 1:
                    switching.add(color.serial)
        for source, target in self.layout.connections:
            self.groups[self._find(target.color.serial)] = self._find(source.color.serial)
        fixed: dict[int, int] = {}
        for serial, color in colors.items():
            if color.id is not None:
                group = self._find(serial)
                if fixed.setdefault(group, color.id) != color.id:
                    raise HostError(
                        f"color '{color.name}' has number {color.id}, but a port it is connected to has {fixed[group]}; use one number"
                    )
        groups = sorted(
            {self._find(s) for s in colors}, key=lambda g: (g not in {self._find(s) for s in switching}, g)
        )
        free = [c for c in (*SWITCHING[self.arch], *range(24)) if c not in fixed.values()]
        free = list(dict.fromkeys(free))
        for group in groups:
            if group not in fixed:
                if not free:
                    raise HostError(
                        f"the layout needs {len(groups)} colors, the fabric has 24; reuse colors where their routes do not meet"
                    )
                fixed[group] = free.pop(0)
        return {serial: fixed[self._find(serial)] for serial in colors}

    def _path(
        self, color: int, start: tuple[int, int], leaves: str, end: tuple[int, int], enters: str
    ) -> None:
        """Add routes from the side `leaves` of core `start` to the side `enters` of core `end`."""
        first = (start[0] + STEP[leaves][0], start[1] + STEP[leaves][1])
        if first == end and enters == OPPOSITE[leaves]:
            return
        last = (end[0] + STEP[enters][0], end[1] + STEP[enters][1])
        came = self._search(color, first, last)
        if came is None:
            raise HostError(
                f"no path is free for color {color} from core {start} ({leaves}) to core {end} ({enters}); move the regions apart"
            )
        cores = [last]
        while cores[-1] != first:
            cores.append(came[cores[-1]])
        self._lay(color, cores[::-1], OPPOSITE[leaves], end)

    def _search(
        self, color: int, first: tuple[int, int], last: tuple[int, int] | None
    ) -> dict[tuple[int, int], tuple[int, int]] | None:
        """Return the predecessors of a breadth-first search over routers that do not use the color; None if
        there is no path.

        The search ends at `last`, or without one covers all reachable routers.
        """

        def is_free(at: tuple[int, int]) -> bool:
            return self._inside(at) and (*at, color) not in self.routes

        if not is_free(first) or (last is not None and not is_free(last)):
            return None
        came: dict[tuple[int, int], tuple[int, int]] = {first: first}
        queue = deque([first])
        while queue:
            here = queue.popleft()
            if here == last:
                return came
            for dx, dy in STEP.values():
                there = (here[0] + dx, here[1] + dy)
                if there not in came and is_free(there):
                    came[there] = here
                    queue.append(there)
        return came if last is None else None

    def _tap(self, port: Port) -> tuple[int, int, int, str]:
        """Return (column, row, color, side) of the place at which the host sends or receives a stream's
        words.

        An output stream is routed to the edge of the fabric first.
        """
        (x, y), color, side = port.cores()[0], self.number[port.color.serial], port.edge.value
        if port.is_input:
            return x, y, color, side
        first = (x + STEP[side][0], y + STEP[side][1])
        if not self._inside(first):
            return x, y, color, side
        edges = [at for at in itertools.product(range(self.cols), range(self.rows)) if self._way_out(at)]
        best: list[tuple[int, int]] | None = None
        came = self._search(color, first, None)
        for last in edges if came is not None else ():
            if came is not None and last in came:
                cores = [last]
                while cores[-1] != first:
                    cores.append(came[cores[-1]])
                if best is None or len(cores) < len(best):
                    best = cores
        if best is None:
            raise HostError(
                f"no path is free for color {color} from core {(x, y)} to the edge of the fabric; move '{port.region.name}'"
            )
        out = self._way_out(best[0])
        beyond = (best[0][0] + STEP[out][0], best[0][1] + STEP[out][1])
        self._lay(color, best[::-1], OPPOSITE[side], beyond)
        return *best[0], color, out

    def _inside(self, at: tuple[int, int]) -> bool:
        return 0 <= at[0] < self.cols and 0 <= at[1] < self.rows

    def _way_out(self, at: tuple[int, int]) -> str:
        """Return the side over which a core of the rim leaves the rectangle, or ""."""
        return next((s for s, (dx, dy) in STEP.items() if not self._inside((at[0] + dx, at[1] + dy))), "")

    def _lay(self, color: int, cores: list[tuple[int, int]], entered: str, end: tuple[int, int]) -> None:
        """Add routes along `cores`, from the side `entered` of the first to the neighbour `end` of the
        last."""
        for here, following in zip(cores, [*cores[1:], end], strict=True):
            side = next(s for s, (dx, dy) in STEP.items() if (here[0] + dx, here[1] + dy) == following)
            self.routes[*here, color] = (RoutingPosition((Route[entered],), (Route[side],)),)
            entered = OPPOSITE[side]

    def stream_places(self) -> list[dict[str, Any]]:
        """Return the places at which the host sends or receives words, as JSON data."""
        return [
            {"x": x, "y": y, "color": color, "port": PORT[side], "input": port.is_input}
            for (x, y, color, side), port in zip(self.taps, self.layout.streams, strict=True)
        ]

    def text(self) -> str:
        """Return the layout file in CSL."""
        lines = ["// Made from a Python layout.", "layout {", f"  @set_rectangle({self.cols}, {self.rows});"]
        for y, x in itertools.product(range(self.rows), range(self.cols)):
            region = self.owner.get((x, y))
            if region is None:
                lines.append(f'  @set_tile_code({x}, {y}, "<empty>", .{{}});')
                continue
            params = region.params.get((x - region.x, y - region.y), {})
            numbers = integer_params(region.file)
            fields = ", ".join(f".{n} = {self._literal(v, n in numbers)}" for n, v in params.items())
            path = json.dumps(str(Path(region.file).resolve()))
            lines.append(f"  @set_tile_code({x}, {y}, {path}, .{{ {fields} }});")
        for (x, y, color), positions in sorted(self.routes.items(), key=lambda item: item[0]):
            lines.append(f"  @set_color_config({x}, {y}, @get_color({color}), {_config(positions)});")
        return "\n".join([*lines, "}"]) + "\n"

    def _literal(self, value: object, as_number: bool = False) -> str:
        if isinstance(value, Color):
            number = self.number[value.serial]
            return str(number) if as_number else f"@get_color({number})"
        if isinstance(value, bool | np.bool_):
            return "true" if value else "false"
        if isinstance(value, int | np.integer):
            return str(int(value))
        if isinstance(value, float | np.floating):
            return repr(float(value))
        raise HostError(
            f"a parameter is a {type(value).__name__}; give an integer, a float, a truth value or a Color"
        )

    def save_symbols(self, path: Path) -> None:
        """Write the initial values of variables, one array per symbol and core."""
        found = {}
        for region in self.layout.regions:
            for name, values, rows, cols in region.symbols:
                for x, y in region.cells():
                    tile = values[y * rows : (y + 1) * rows, x * cols : (x + 1) * cols]
                    found[f"{region.x + x} {region.y + y} {name}"] = np.ascontiguousarray(tile)
        if found:
            np.savez_compressed(path, **found)  # type: ignore[arg-type]


def _config(positions: tuple[RoutingPosition, ...]) -> str:
    """Return a color configuration in CSL: the routes of the first position, and switches for the others.

    Raises
    ------
    HostError
        If a position differs from the first in both input and output, or has several ports where it
        differs.
    """

    def sides(routes: tuple[Route, ...]) -> str:
        return ", ".join(route.value for route in routes)

    first, *more = positions
    text = f".{{ .routes = .{{ .rx = .{{ {sides(first.rx)} }}, .tx = .{{ {sides(first.tx)} }} }}"
    if more:
        parts = []
        for i, position in enumerate(more, 1):
            if position.rx == first.rx and len(position.tx) == 1:
                parts.append(f".pos{i} = .{{ .tx = {sides(position.tx)} }}")
            elif position.tx == first.tx and len(position.rx) == 1:
                parts.append(f".pos{i} = .{{ .rx = {sides(position.rx)} }}")
            else:
                raise HostError(
                    "a switch position may differ from the first in its input or in its output, with one side each"
                )
        text += f", .switches = .{{ {', '.join(parts)} }}"
    return text + " }"
