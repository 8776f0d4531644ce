"""Placement files of the ISPD 2020 contest (``.paint``), in the form that contestants published.

    include "common.paint"                              library of the contest's tools; ignored
    k1 = conv( H W C K R S T U h w c k )                formal arguments, then execution arguments
    k2 = dblock( H W F h w c1 c2 c3 k1 k2 k3 )
    k3 = cblock( H W F h w c1 c2 c3 c4 k1 k2 k3 k4 )
    k1 : name('k1)                                      label; one quote, as the contest writes it
    k1 : place(x y R0|R90)                              lower-left tile and orientation
    kmap = union( k1 k2 k3 )                            all kernels; may extend over several lines

A kernel ``k07`` of a file is the kernel ``k7`` of the graph if the graph has no ``k07``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from wse_sim.compiler.contest_graph import ContestGraph, ContestKernel
from wse_sim.errors import PlacementError
from wse_sim.files import read_text

INNER_COUNT = {"conv": 1, "dblock": 3, "cblock": 4}
"""Number of convolutions in a kernel of each kind; each convolution has a separate c and k."""

OLD_ORDER_NOTE = (
    "conv arguments are in the order H W R S C K T U of older files of this tool; "
    "other tools expect H W C K R S T U, which --out writes"
)

_SPACE = re.compile(r"(?:\s+|\(\*.*?\*\)|//[^\n]*|#[^\n]*)+", re.DOTALL)
_NAME = r"[^\s=:(),'\"]+"
_STATEMENT = re.compile(
    rf"""include\s*"(?P<include>[^"\n]*)"\s*;?
    | (?P<label>{_NAME})\s*:\s*name\s*\(\s*'?\s*(?P<title>{_NAME})\s*'?\s*\)\s*;?
    | (?P<placed>{_NAME})\s*:\s*place\s*\((?P<place>[^()]*)\)\s*;?
    | (?P<map>{_NAME})\s*=\s*union\s*\((?P<members>[^()]*)\)\s*;?
    | (?P<set>{_NAME})\s*=\s*(?P<kind>[A-Za-z]+)\s*\((?P<arguments>[^()]*)\)\s*;?
    """,
    re.VERBOSE,
)


@dataclass(frozen=True)
class KernelPlace:
    """One placed kernel: its execution arguments, its lower-left tile and whether it is rotated (R90)."""

    name: str
    h: int
    w: int
    c: tuple[int, ...]
    k: tuple[int, ...]
    x: int
    y: int
    rotated: bool


@dataclass
class _Paint:
    """The statements of a placement file, by kernel name of the graph."""

    sets: dict[str, tuple[str, list[int]]] = field(default_factory=dict)
    places: dict[str, tuple[int, int, bool]] = field(default_factory=dict)
    members: list[tuple[str, int]] = field(default_factory=list)


def contest_order(kernel: ContestKernel) -> tuple[int, ...]:
    """Return the formal arguments in the order of placement files: H W C K R S T U for a convolution."""
    if kernel.kind != "conv":
        return kernel.formal
    h, w, r, s, c, k, t, u = kernel.formal
    return (h, w, c, k, r, s, t, u)


def format_placement(graph: ContestGraph, placement: tuple[KernelPlace, ...]) -> str:
    """Return the text of a placement file."""
    lines = ['include "common.paint"']
    for kernel, place in zip(graph.kernels, placement, strict=True):
        numbers = (*contest_order(kernel), place.h, place.w, *place.c, *place.k)
        lines.append(f"{kernel.name} = {kernel.kind}( {' '.join(map(str, numbers))} )")
        lines.append(f"{kernel.name} : name('{kernel.name})")
        lines.append(f"{kernel.name} : place({place.x} {place.y} {'R90' if place.rotated else 'R0'})")
    lines.append(f"kmap = union( {' '.join(kernel.name for kernel in graph.kernels)} )")
    return "\n".join(lines) + "\n"


def read_paint(graph: ContestGraph, path: str | Path) -> tuple[tuple[KernelPlace, ...], tuple[str, ...]]:
    """Read a placement file of `graph`; return the places in the order of its kernels, and notes.

    Raises
    ------
    PlacementError
        If the file cannot be read, is not text, or is not a placement of this graph.
    """
    text = read_text(path, "the placement", PlacementError)
    return parse_paint(graph, text)


def read_placement(graph: ContestGraph, path: str | Path) -> tuple[KernelPlace, ...]:
    """Read a placement file of `graph`; return the places in the order of its kernels."""
    return read_paint(graph, path)[0]


def parse_placement(graph: ContestGraph, text: str) -> tuple[KernelPlace, ...]:
    """Return the kernel places in the text of a placement file, in the order of the graph's kernels."""
    return parse_paint(graph, text)[0]


def parse_paint(graph: ContestGraph, text: str) -> tuple[tuple[KernelPlace, ...], tuple[str, ...]]:
    """Return the kernel places in the text of a placement file, in the order of the graph's kernels, and
    notes.

    Raises
    ------
    PlacementError
        If the text is not a placement of this graph; the message names the line or kernel and the remedy.
    """
    paint = _statements(graph, text)
    result = []
    old = False
    for kernel in graph.kernels:
        if kernel.name not in paint.sets or kernel.name not in paint.places:
            line = "execution arguments" if kernel.name not in paint.sets else "place(...)"
            raise PlacementError(f"kernel {kernel.name!r} has no {line} in the placement; add the line")
        rest, old_order = _execution(kernel, *paint.sets[kernel.name])
        old = old or old_order
        m = INNER_COUNT[kernel.kind]
        x, y, turned = paint.places[kernel.name]
        c, k = tuple(rest[2 : 2 + m]), tuple(rest[2 + m :])
        result.append(KernelPlace(kernel.name, rest[0], rest[1], c, k, x, y, turned))
    return tuple(result), ((OLD_ORDER_NOTE,) if old else ())


def _execution(kernel: ContestKernel, kind: str, numbers: list[int]) -> tuple[list[int], bool]:
    """Return the execution arguments of a line, and whether its formal arguments are in the older order."""
    n, wanted = len(kernel.formal), 2 + 2 * INNER_COUNT[kernel.kind]
    formal, rest = tuple(numbers[:n]), numbers[n:]
    if kind == kernel.kind and len(rest) == wanted:
        if formal == contest_order(kernel):
            return rest, False
        if formal == kernel.formal:
            return rest, True
    raise PlacementError(
        f"kernel {kernel.name!r} is {kind}{tuple(numbers)} in the placement but {kernel.kind}{contest_order(kernel)} "
        f"with {wanted} execution arguments in the graph; correct the line or give the graph it was made for"
    )


def _statements(graph: ContestGraph, text: str) -> _Paint:
    """Return the statements of a file; each may extend over several lines."""
    names = _Names(graph)
    paint = _Paint()
    at = 0
    while True:
        space = _SPACE.match(text, at)
        at = space.end() if space else at
        if at == len(text):
            break
        line = text.count("\n", 0, at) + 1
        found = _STATEMENT.match(text, at)
        if found is None:
            shown = text[at:].splitlines()[0].strip()[:60]
            raise PlacementError(
                f"line {line} of the placement, {shown!r}, is neither 'NAME = KIND( ... )' nor "
                "'NAME : place(X Y R0|R90)' nor include, name(...) or union(...); correct it"
            )
        _take(found, line, names, paint)
        at = found.end()
    for name, line in paint.members:
        if name not in paint.places:
            raise PlacementError(f"union(...) on line {line} names {name!r}, which is not placed; place it")
    return paint


def _take(found: re.Match[str], line: int, names: _Names, paint: _Paint) -> None:
    """Add one statement to `paint`."""
    part = found.groupdict()
    if part["label"] is not None:
        names.of(part["label"], line)
    elif part["map"] is not None:
        paint.members += [(names.of(word, line), line) for word in part["members"].split()]
    elif part["set"] is not None or part["placed"] is not None:
        given = part["set"] or part["placed"]
        name = names.of(given, line)
        if name in (paint.places if part["set"] is None else paint.sets):
            raise PlacementError(
                f"kernel {given!r} on line {line} of the placement is given twice; remove the line"
            )
        words = (part["arguments"] if part["set"] else part["place"]).replace(",", " ").split()
        try:
            if part["set"]:
                paint.sets[name] = (part["kind"].lower(), [int(word) for word in words])
            else:
                x, y, turn = words
                paint.places[name] = (int(x), int(y), {"R0": False, "R90": True}[turn.upper()])
        except (ValueError, KeyError):
            raise PlacementError(
                f"line {line} of the placement, {' '.join(found[0].split())[:60]!r}, has a word that is not allowed "
                "there; give integers and R0 or R90"
            ) from None


class _Names:
    """The kernel names of a graph, and the forms in which a placement file may write them (k07 for k7)."""

    def __init__(self, graph: ContestGraph) -> None:
        self.known = {kernel.name for kernel in graph.kernels}
        self.plain: dict[str, str] = {}
        for kernel in graph.kernels:
            self.plain.setdefault(_without_zeros(kernel.name), kernel.name)

    def of(self, name: str, line: int) -> str:
        """Return the graph's name of a kernel in the file.

        Raises
        ------
        PlacementError
            If the graph has no such kernel.
        """
        found = name if name in self.known else self.plain.get(_without_zeros(name))
        if found is None:
            raise PlacementError(
                f"kernel {name!r} on line {line} of the placement is not in the graph; remove the line or give the "
                "graph it was made for"
            )
        return found


def _without_zeros(name: str) -> str:
    """Return the name without leading zeros in its last number."""
    return re.sub(r"0*(\d+)$", r"\1", name)
