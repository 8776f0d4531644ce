"""Instances of the ISPD 2020 contest: kernels, edges, fabric and weights, read from ``.kgraph`` files."""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wse_sim.compiler.placement.contest_shapes import ContestShapes, inner_convolutions
from wse_sim.compiler.placement.problem import Block, PlacementProblem
from wse_sim.errors import ConfigError
from wse_sim.files import read_text

FORMAL_KEYS = {
    "conv": ("h", "w", "r", "s", "c", "k", "t", "u"),
    "dblock": ("h", "w", "f"),
    "cblock": ("h", "w", "f"),
}

_NODE = re.compile(r"^\s*([A-Za-z]+)\s*\[\s*(\d{1,9})\s*\](?!\s*:)(.*)$")
# Every pattern reads a line once: a word begins only after a non-letter, and the rest matches in one way.
_END = r"(?<![A-Za-z])([A-Za-z]+)\s*\[\s*(\d{1,9})\s*\]"
_EDGE = re.compile(rf"{_END}\s*:\s*(?:\w+\s*)?->\s*{_END}")
_HEADER = re.compile(r"[A-Za-z_]+\s*=\s*(?:'[^']*'|\"[^\"]*\"|[^\s,;]+)(?:[\s,;]+|$)")
_COMMENT = re.compile(r"\(\*.*?(\*\)|$)")
_NAME = re.compile(r"[^\s=:(),'\"]+")
_PAIR = re.compile(r"(?<![A-Za-z_])([A-Za-z_]+)\s*=\s*(?:'([^']*)'|\"([^\"]*)\"|([^\s,]+))")


@dataclass(frozen=True)
class ContestKernel:
    """One kernel of an instance: its name, its kind (conv, dblock, cblock) and its formal arguments in file
    order.
    """

    name: str
    kind: str
    formal: tuple[int, ...]

    def convolutions(self) -> np.ndarray:
        """Return the convolutions of the kernel as rows (m, 7) of H, W, R, S, C, K, T."""
        return inner_convolutions(self.kind, self.formal[:7])


@dataclass(frozen=True)
class ContestGraph:
    """A contest instance: sides of the fabric in tiles, words of memory per tile, weights, kernels and
    edges.
    """

    width: int
    height: int
    memlimit: float
    wdeltat: float
    wlength: float
    wadapter: float
    kernels: tuple[ContestKernel, ...]
    edges: tuple[tuple[int, int], ...]
    name: str = ""

    def problem(self) -> PlacementProblem:
        """Return the instance as a placement problem."""
        span = max(self.width, self.height)
        return PlacementProblem(
            self.width,
            self.height,
            tuple(
                Block(k.name, ContestShapes(k.kind, k.formal[:7], self.memlimit, span)) for k in self.kernels
            ),
            tuple((a, b, 1.0) for a, b in self.edges),
            self.wdeltat,
            self.wlength,
        )


def read_kgraph(path: str | Path) -> ContestGraph:
    """Read a ``.kgraph`` file; white space, line ends and the case of keys do not matter.

    Raises
    ------
    ConfigError
        If the file cannot be read or is not a kernel graph.
    """
    path = Path(path)
    text = read_text(path, "the kernel graph")
    return parse_kgraph(text, path.stem)


def parse_kgraph(text: str, name: str = "") -> ContestGraph:
    """Return the graph that the text of a ``.kgraph`` file describes.

    Raises
    ------
    ConfigError
        If the text is not a valid kernel graph; the message names the line or node and the remedy.
    """
    header: dict[str, str] = {}
    kernels: dict[int, ContestKernel] = {}
    ends: set[int] = set()
    kinds: dict[int, str] = {}
    raw_edges: list[tuple[int, tuple[str, int], tuple[str, int]]] = []  # line, from, to
    inside = False  # whether in a comment over several lines, which may contain header keys
    for number, line in enumerate(text.splitlines(), 1):
        found = [
            (number, (edge[1].lower(), int(edge[2])), (edge[3].lower(), int(edge[4])))
            for edge in _EDGE.finditer(line)
        ]
        node = _NODE.match(line)
        if node and not found:
            kinds.setdefault(int(node[2]), node[1].lower())
        if found:
            raw_edges += found
        elif node and node[1].lower() in ("input", "output"):
            ends.add(int(node[2]))
        elif node:
            index = int(node[2])
            if index in kernels or index in ends:
                raise ConfigError(f"the kernel graph defines node {index} twice; number every node once")
            kernels[index] = _parse_kernel(node[1].lower(), index, node[3], number)
        else:
            rest = line.partition("*)")[2] if inside else line
            rest = _COMMENT.sub("", rest).strip()
            if rest and not inside and not _is_header(rest):
                raise ConfigError(
                    f"line {number} of the kernel graph, {rest[:60]!r}, is not a node, edge, comment or KEY=NUMBER; "
                    "correct it"
                )
            for key, quoted, double, bare in _PAIR.findall(line):
                _note(
                    header, key.lower(), quoted or double or bare, number, is_stated=not inside and bool(rest)
                )
        inside = line.rfind("(*") > line.rfind("*)") or (inside and "*)" not in line)
    if not kernels:
        raise ConfigError("the kernel graph has 0 kernels; give at least one conv, dblock or cblock line")
    order = {index: position for position, index in enumerate(kernels)}
    edges = []
    for number, (first, a), (second, b) in raw_edges:
        for kind, end in ((first, a), (second, b)):
            if end not in kernels and end not in ends:
                raise ConfigError(
                    f"an edge of the kernel graph names node {end}, which is not defined; define it"
                )
            if kind != kinds[end]:
                raise ConfigError(
                    f"line {number} of the kernel graph has an edge of {kind}[{end}], but node {end} is a {kinds[end]}; correct one of them"
                )
        if a in kernels and b in kernels:
            edges.append((order[a], order[b]))
    names = [k.name for k in kernels.values()]
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise ConfigError(f"two kernels of the graph are named {twice!r}; give every kernel its own name")
    return ContestGraph(
        int(_header_number(header, "width")),
        int(_header_number(header, "height")),
        _header_number(header, "memlimit"),
        _header_number(header, "wdeltat"),
        _header_number(header, "wlength"),
        _header_number(header, "wadapter", 0.0),
        tuple(kernels.values()),
        tuple(edges),
        name,
    )


HEADER_KEYS = ("width", "height", "memlimit", "wdeltat", "wlength", "wadapter", "test")


def _is_header(text: str) -> bool:
    """Return whether a line consists of KEY=VALUE items, separated by white space or commas."""
    at = 0
    while at < len(text):
        item = _HEADER.match(text, at)
        if item is None:
            return False
        at = item.end()
    return True


def _note(header: dict[str, str], key: str, value: str, line: int, *, is_stated: bool) -> None:
    """Add a key and its value to the header.

    Raises
    ------
    ConfigError
        If the key is repeated, or is unknown and stated outside a comment (`is_stated`).
    """
    if key in HEADER_KEYS and key in header:
        raise ConfigError(f"line {line} of the kernel graph has {key}={value[:40]} again; state it once")
    if is_stated and key not in HEADER_KEYS:
        near = difflib.get_close_matches(key, HEADER_KEYS, 1)
        hint = f"did you mean {near[0]}?" if near else f"its keys are {', '.join(HEADER_KEYS)}"
        raise ConfigError(f"line {line} of the kernel graph has {key[:40]}, which nothing reads; {hint}")
    header.setdefault(key, value)


def _header_number(header: dict[str, str], key: str, default: float | None = None) -> float:
    """Return the number of a header key: at least 1 for fabric sides and memory, at least 0 for weights."""
    raw = header.get(key)
    if raw is None:
        if default is not None:
            return default
        raise ConfigError(f"the kernel graph has no {key!r} in its header; add a line {key}=NUMBER")
    try:
        value = float(raw)
    except ValueError:
        value = math.nan
    weight = key.startswith("w") and key != "width"
    if not math.isfinite(value) or value < 0 or (not weight and value < 1):
        raise ConfigError(
            f"the kernel graph has {key}={raw}; give a {'non-negative' if weight else 'positive'} number"
        )
    return value


def _parse_kernel(kind: str, index: int, rest: str, line: int) -> ContestKernel:
    """Return the kernel that the rest of a node's line describes."""
    if kind not in FORMAL_KEYS:
        raise ConfigError(f"node {index} of the kernel graph is a {kind!r}; use conv, dblock or cblock")
    found: dict[str, str] = {}
    name = f"k{index}"
    known = (*FORMAL_KEYS[kind], "name", "n")
    for stated, quoted, double, bare in _PAIR.findall(rest):
        key = stated.lower()
        if key in found and key != "name":  # published files name some nodes twice: the last name counts
            raise ConfigError(f"line {line} of the kernel graph has {stated[:40]} twice; state it once")
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"a {kind} has {', '.join(known)}"
            raise ConfigError(
                f"line {line} of the kernel graph has {stated[:40]}, which nothing reads; {hint}"
            )
        found[key] = quoted or double or bare
    name = found.pop("name", name)
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"node {index} of the kernel graph is named {name!r}, which the placement format cannot hold; "
            "use a name without white space, quotes and any of = : ( ) ,"
        )
    if kind == "conv":
        found.setdefault("t", found.get("u", "1"))
        found.setdefault("u", found["t"])
    values = []
    for key in FORMAL_KEYS[kind]:
        raw = found.get(key, "")
        if not (raw.isascii() and raw.isdigit() and len(raw) <= 9 and int(raw) >= 1):
            raise ConfigError(
                f"{kind} {name!r} has {key}={raw[:40] or 'nothing'}; give an integer from 1 to 999999999"
            )
        values.append(int(raw))
    if kind == "conv" and values[6] != values[7]:
        raise ConfigError(
            f"conv {name!r} has strides T={values[6]} and U={values[7]}; the contest takes equal ones"
        )
    return ContestKernel(name, kind, tuple(values))
