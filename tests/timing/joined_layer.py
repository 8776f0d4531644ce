"""A whole joined layer as one fabric program: n tokens of a prompt pass attention and a gated network, resident weights.

Symbols: a grid of P x P cores; d, q, f features of the stream, of queries and of the network on a core; n tokens, the last of
P positions, one on each row; H heads, each on P / H columns::

    stream   features over rows, copies over columns    statistic, queries, keys, values, up, gate: sums down the columns
    queries  features over columns, copies over rows    scores: along the columns of a head; output, down: along the rows
    keys, values of a position on its row               maximum, sum, values of a softmax: down the columns

All sums down the columns take the same colors one after the other, those along rows too: a core begins a sum when it has the
result of the one before, so its parent has taken in all of that, and the last word of a farthest child has turned back the routers
that it crossed.  Special functions of n > 1 tokens are shared by the cores of a line, which hold copies: each takes a piece, then all of them
hear all pieces on two colors, one each way, on which they send in turn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from wse_sim.fabric.format.builder import Buffer, Switch, fabric_in, fabric_out, scalar
from wse_sim.fabric.format.classes import CoreClass, Operand
from wse_sim.fabric.format.program import Fn
from wse_sim.hardware import Wafer
from wse_sim.kernels.blocks.lines import Line, LinePart, emit_allreduce, new_builder, route_allreduce
from wse_sim.kernels.blocks.trees import k_tree
from wse_sim.kernels.families.gemv import emit_joined
from wse_sim.modes.generation.decoder import LayerWork, Product

EPSILON = 1e-3
LOWEST = -1e4  # added to scores of later positions


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of a layer: P, groups of its trees, features of a core, tokens, heads."""

    grid: int
    groups: int
    d: int
    q: int
    f: int
    tokens: int
    heads: int = 1
    head_groups: int = 2

    def work(self) -> LayerWork:
        """The same as the closed form reads it."""
        hidden, query, ffn = (size * self.grid for size in (self.d, self.q, self.f))
        products = (Product(hidden, query, 3.0, 1.0), Product(query, hidden, 1.0, 1.0),
                    Product(hidden, ffn, 2.0, 1.0), Product(ffn, hidden, 1.0, 1.0))  # fmt: skip
        return LayerWork(hidden, query, query, products, float(ffn), float(ffn), 0)


@dataclasses.dataclass(frozen=True)
class Shared:
    """Work that the first `senders` of the `cores` of a line do piece by piece; then all cores hear all pieces."""

    colors: tuple[int, int]  # toward smaller, toward larger positions
    cores: int
    senders: int

    def route(self, line: Line) -> None:
        """Routes of one line; the nearest sender goes first, the last word of the farthest turns all back."""
        last, route, (up, down) = self.senders - 1, line.builder.route, self.colors
        low, high = line.toward(-1), line.toward(1)
        for at in range(self.cores):
            where, onward = line.place(at), high if at < self.cores - 1 else ""
            if 0 < at <= last:
                heard = Switch([{"rx": high, "tx": low + "R"}], ring=True) if at < last else None
                route(up, where, rx="R", tx=low, switch=heard)
            elif at == 0:
                route(up, where, rx=high, tx="R")
            if at > last or not onward:
                route(down, where, rx=low, tx="R" + onward)
            else:
                heard = Switch([{"rx": low, "tx": high + "R"}], ring=True) if at else None
                route(down, where, rx="R", tx=high, switch=heard)

    def emit(self, k: CoreClass, values: Buffer, at: int, work: Callable[[Operand], None]) -> None:
        """`work` on the piece of core `at`, then hear the others."""
        last, size, (up, down) = self.senders - 1, values.length // self.senders, self.colors
        if at <= last:
            mine = values.dsd(at * size, size)
            work(mine)
            if at > 0:
                k.mov(fabric_out(up, "path" if at == last > 1 else "local"), mine, dtype="fp16", thread=1)
            if at < self.cores - 1:
                k.mov(fabric_out(down, "path" if at == 0 else "local"), mine, dtype="fp16", thread=2)
        below, above = min(at, last + 1), max(0, last - at)
        for count, color, first, step in (
            (above, up, (at + 1) * size, size),
            (below, down, (below - 1) * size, -size),
        ):
            with k.loop(count):
                if count:
                    k.mov(values.dsd(first, size, step=step), fabric_in(color), dtype="fp16", start="none")
        for thread in (1, 2):
            k.join(thread)


class Writer:
    """Writes the program of one kind of core; values of several tokens lie feature after feature where `is_together`."""

    def __init__(self, layer: JoinedLayer, k: CoreClass, row: int, col: int) -> None:
        self.layer, self.k, self.row, self.col = layer, k, row, col
        self.n, self.buffers, self.is_together = layer.sizes.tokens, layer.buffers, layer.is_together

    def vector(self, name: str, token: int) -> Operand:
        """All features of one token."""
        buffer, n = self.buffers[name], self.n
        size = buffer.length // n
        return buffer.dsd(token, size, stride=n) if self.is_together else buffer.dsd(token * size, size)

    def scaled(self, name: str, source: str, factor: str, *, of_token: bool) -> None:
        """name = factor x source, with a factor for each token or each feature."""
        k, n, x, y, s = self.k, self.n, self.buffers[source], self.buffers[name], self.buffers[factor]
        size = x.length // n
        apart, within = (1, n) if of_token == self.is_together else (size, 1)
        inner = size if of_token else n
        if n == 1:
            if of_token:
                k.mul(y.dsd(), x.dsd(), s.dsd(0, x.length, stride=0), dtype="fp16")
            else:
                k.mul(y.dsd(), x.dsd(), s.dsd(), dtype="fp16")
            return
        if not of_token:
            apart, within = (n, 1) if self.is_together else (1, size)
        target, b = y.dsd(0, inner, stride=within), x.dsd(0, inner, stride=within)
        k.fmac_vectors(
            target, s.dsd(0, s.length), b, inner, dst_stride=apart, b_stride=apart, fresh=True, dtype="fp16"
        )

    def statistic(self, name: str, source: str) -> None:
        """Sums of the squares of every token."""
        k, n, x, s, squares = (
            self.k,
            self.n,
            self.buffers[source],
            self.buffers[name],
            self.buffers["squares"],
        )
        size = x.length // n
        k.mul(squares.dsd(), x.dsd(), x.dsd(), dtype="fp16")
        k.mov(s.dsd(), scalar(0.0), dtype="fp16")
        if n == 1:
            k.add(s.dsd(0, size, stride=0), s.dsd(0, size, stride=0), squares.dsd(), dtype="fp16")
            return
        b = squares.dsd(0, n) if self.is_together else squares.dsd(0, n, stride=size)
        stride = n if self.is_together else 1
        k.fmac_vectors(s.dsd(0, n), self.buffers["ones"].dsd(0, size), b, n, b_stride=stride, dtype="fp16")

    def reduced(self, line: str, name: str, op: str = "add") -> None:
        """An all-reduce down the column, along the row, or along the columns of a head."""
        part = self.layer.parts[line][self.row if line == "down" else self.col]
        emit_allreduce(self.k, part, self.buffers[name], "fp16", "code", op)

    def shared(self, line: str, name: str, work: Callable[[Operand], None]) -> None:
        """Work on all elements of a buffer that cores of a line hold copies of; alone if it is not shared."""
        shared, whole = self.layer.shared.get(line), self.buffers[name].dsd()
        if shared is None:
            work(whole)
            return
        at = self.row if line == "down" else self.col % self.layer.head_columns
        shared.emit(self.k, self.buffers[name], at, work)

    def norm(self, target: str, weight: str) -> None:
        """RMS norm of the stream."""
        k, hidden = self.k, self.layer.sizes.d * self.layer.sizes.grid
        self.statistic("s", "x")
        self.reduced("down", "s")

        def root(piece: Operand) -> None:
            k.mul(piece, piece, scalar(1.0 / hidden), dtype="fp16")
            k.add(piece, piece, scalar(EPSILON), dtype="fp16")
            k.map(Fn.SQRT, piece, piece, dtype="fp16")
            k.map(Fn.RECIPROCAL, piece, piece, dtype="fp16")

        self.shared("down", "s", root)
        self.scaled(target, "x", "s", of_token=True)
        self.scaled(target, target, weight, of_token=False)

    def product(self, line: str, y: str, x: str, a: str) -> None:
        """A product with weights and the all-reduce of its sums."""
        b, wafer = self.buffers, self.layer.wafer
        emit_joined(
            self.k, b[y], b[x], b[a], self.n, wafer, "fp16", is_together=self.is_together and self.n > 1
        )
        self.reduced(line, y)

    def rotate(self, name: str) -> None:
        """Rotary positions: the first half of a core's features turns with the second, or even ones with odd ones."""
        k, x, t = self.k, self.buffers[name], self.buffers
        half = x.length // 2
        first, second = (
            (x.dsd(0, half), x.dsd(half, half))
            if self.is_together
            else (x.dsd(0, half, stride=2), x.dsd(1, half, stride=2))
        )
        k.mul(t["turned"].dsd(0, half), second, t["sin"].dsd(), dtype="fp16")
        k.mul(t["turned"].dsd(half, half), first, t["sin"].dsd(), dtype="fp16")
        k.mul(first, first, t["cos"].dsd(), dtype="fp16")
        k.mul(second, second, t["cos"].dsd(), dtype="fp16")
        k.sub(first, first, t["turned"].dsd(0, half), dtype="fp16")
        k.add(second, second, t["turned"].dsd(half, half), dtype="fp16")

    def keep(self) -> None:
        """The row of a token's position keeps its key and value."""
        token = self.row - (self.layer.sizes.grid - self.n)
        if token >= 0:
            for kept, new in (("keys", "k"), ("values", "v")):
                self.k.mov(self.buffers[kept].dsd(), self.vector(new, token), dtype="fp16")

    def attention(self) -> None:
        """Scores, softmax, values: a product for every token; each row has one position."""
        k, b, loop = self.k, self.buffers, round(self.layer.wafer.loop_cycles)
        scores, size = b["scores"], self.layer.sizes.q
        k.mov(scores.dsd(), scalar(0.0), dtype="fp16")
        for token in range(self.n):
            k.busy(loop)
            k.fmac_vectors(
                scores.dsd(token, 1),
                self.vector("q", token),
                b["keys"].dsd(),
                1,
                b_stride=1,
                dtype="fp16",
                start="none",
            )
        k.busy(loop)
        self.reduced("head", "scores")
        k.add(scores.dsd(), scores.dsd(), b["mask"].dsd(), dtype="fp16")
        k.mov(b["s"].dsd(), scores.dsd(), dtype="fp16")
        self.reduced("down", "s", "max")
        k.sub(scores.dsd(), scores.dsd(), b["s"].dsd(), dtype="fp16")
        self.shared("head", "scores", lambda piece: k.map(Fn.EXP, piece, piece, dtype="fp16"))
        k.mov(b["s"].dsd(), scores.dsd(), dtype="fp16")
        self.reduced("down", "s")
        self.shared("down", "s", lambda piece: k.map(Fn.RECIPROCAL, piece, piece, dtype="fp16"))
        k.mul(scores.dsd(), scores.dsd(), b["s"].dsd(), dtype="fp16")
        k.mov(b["o"].dsd(), scalar(0.0), dtype="fp16")
        for token in range(self.n):
            k.busy(loop)
            k.fmac_vectors(
                self.vector("o", token),
                scores.dsd(token, 1),
                b["values"].dsd(),
                size,
                b_stride=size,
                dtype="fp16",
                start="none",
            )
        k.busy(loop)
        self.reduced("down", "o")

    def write(self) -> None:
        """The layer."""
        k, b = self.k, self.buffers
        k.busy(self.layer.builder.config.task_start_cycles)
        self.norm("xn", "norm 1")
        for name in "qkv":
            self.product("down", name, "xn", f"w{name}")
        self.rotate("q")
        self.rotate("k")
        self.keep()
        self.attention()
        self.product("along", "z", "o", "wo")
        k.add(b["x"].dsd(), b["x"].dsd(), b["z"].dsd(), dtype="fp16")
        self.norm("xn", "norm 2")
        self.product("down", "gate", "xn", "wgate")
        self.product("down", "up", "xn", "wup")
        self.shared("down", "gate", lambda piece: k.map(Fn.SILU, piece, piece, dtype="fp16"))
        k.mul(b["h"].dsd(), b["gate"].dsd(), b["up"].dsd(), dtype="fp16")
        self.product("along", "z", "h", "wdown")
        k.add(b["x"].dsd(), b["x"].dsd(), b["z"].dsd(), dtype="fp16")


class JoinedLayer:
    """The program of a layer and what it is given."""

    def __init__(self, sizes: Sizes, wafer: Wafer, *, is_together: bool) -> None:
        self.sizes, self.wafer, self.is_together = sizes, wafer, is_together
        self.builder = new_builder(sizes.grid, sizes.grid, wafer)
        self.buffers = self._declared()
        self.head_columns = sizes.grid // sizes.heads
        self.shared: dict[str, Shared] = {}
        self.parts = self._routed()

    def _declared(self) -> dict[str, Buffer]:
        s, n = self.sizes, self.sizes.tokens
        covered, weights = (2, None) if self.is_together and n > 1 else (None, 2)
        vectors = {
            "x": s.d,
            "z": s.d,
            "squares": s.d,
            "q": s.q,
            "k": s.q,
            "v": s.q,
            "gate": s.f,
            "up": s.f,
            "turned": s.q,
        }
        lengths = {name: (size * n, 0) for name, size in vectors.items()}
        lengths |= {name: (size * n, covered) for name, size in {"xn": s.d, "o": s.q, "h": s.f}.items()}
        tiles = {
            "wq": s.d * s.q,
            "wk": s.d * s.q,
            "wv": s.d * s.q,
            "wo": s.q * s.d,
            "wgate": s.d * s.f,
            "wup": s.d * s.f,
            "wdown": s.f * s.d,
        }
        lengths |= {name: (size, weights) for name, size in tiles.items()}
        lengths |= dict.fromkeys(("s", "scores", "mask"), (n, 0))
        lengths |= dict.fromkeys(("sin", "cos"), (s.q * n // 2, None))
        lengths |= {
            "keys": (s.q, 2),
            "values": (s.q, 2),
            "norm 1": (s.d, None),
            "norm 2": (s.d, None),
            "ones": (max(s.d, 2), None),
        }
        return {
            name: self.builder.buffer(name, size, "fp16", bank=bank) for name, (size, bank) in lengths.items()
        }

    def _routed(self) -> dict[str, list[LinePart]]:
        s, b, order = self.sizes, self.builder, self.wafer.stream_order
        down, along = (Line(b, vertical=vertical) for vertical in (True, False))
        tree = k_tree(s.grid, s.groups, order)
        parts: dict[str, list[LinePart]] = {}
        parts["down"], first = route_allreduce(down, tree, 0, is_repeated=True)
        parts["along"], used = route_allreduce(along, tree, first, is_repeated=True)
        first += used
        parts["head"] = parts["along"]
        if s.heads > 1:
            parts["head"] = []
            for head in range(s.heads):
                piece = Line(b, vertical=False, first=head * self.head_columns)
                own, used = route_allreduce(
                    piece, k_tree(self.head_columns, s.head_groups, order), first, is_repeated=True
                )
                parts["head"] += own
            first += used
        if s.tokens > 1:
            heads = [Line(b, vertical=False, first=head * self.head_columns) for head in range(s.heads)]
            for line, cores, places in (("down", s.grid, [down]), ("head", self.head_columns, heads)):
                self.shared[line] = Shared((first, first + 1), cores, min(s.tokens, cores))
                first += 2
                for place in places:
                    self.shared[line].route(place)
        return parts

    def program(self) -> None:
        """Write every core; those that do the same share a class."""
        size, n = self.sizes.grid, self.sizes.tokens
        kinds: dict[Any, npt.NDArray[np.bool_]] = {}
        for row, col in np.ndindex(size, size):
            of_row = self.parts["down"][row], min(row, n), max(row, size - n - 1)
            of_col = self.parts["along"][col], self.parts["head"][col], min(col % self.head_columns, n)
            kinds.setdefault((*of_row, *of_col), np.zeros((size, size), bool))[row, col] = True
        for number, mask in enumerate(kinds.values()):
            k = self.builder.core_class(f"core {number}")
            Writer(self, k, *map(int, np.argwhere(mask)[0])).write()
            self.builder.place(k, mask)
