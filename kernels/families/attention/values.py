"""Operands and reference values of the attention programs, in the tiles of the cores.

Tiles are (rows, cols, length). Circulating operands (keys when streamed, queries when stationary) are in
blocks of items, each padded to its pitch; stationary ones are feature-major.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from wse_sim.kernels.blocks.rounds import Blocks, even, pitch
from wse_sim.kernels.contract.family import Array
from wse_sim.kernels.families.attention.reference import compute, gradient


@dataclass(frozen=True)
class Head:
    """One head of one sample on `rows` x `cols` cores: per core `features` of a head, and `others`.

    The items of a phase circulate: keys past t = `others` stationary queries (streamed), or queries past n =
    `others` stationary keys (stationary).
    """

    rows: int
    cols: int
    items: int
    features: int
    others: int
    streams: bool  # keys circulate

    @property
    def owners(self) -> Blocks:
        """The partition of items over the positions that store their scores."""
        return Blocks(self.items, self.cols if self.streams else self.rows)


class Values:
    """One head: random queries, keys, values and gradient of the output, padded to the cores of `head`.

    The program's input queries are already multiplied by the scale of the scores.
    """

    def __init__(self, head: Head, seed: int) -> None:
        self.head = head
        rng = np.random.default_rng(seed)
        features = (head.cols if head.streams else head.rows) * head.features
        rest = (head.rows if head.streams else head.cols) * head.others
        queries, keys = (rest, head.items) if head.streams else (head.items, rest)

        def draw(count: int) -> Array:
            return rng.standard_normal((count, features)).astype(np.float16).astype(np.float32)

        scale = np.float32(features**-0.5)
        q, self.k, self.v, self.d_out = draw(queries), draw(keys), draw(keys), draw(queries)
        self.q = q * scale
        one = tuple(x[None, None] for x in (q, self.k, self.v, self.d_out))
        self.out = compute(*one[:3])[0, 0]
        d_q, d_k, d_v = (x[0, 0] for x in gradient(*one))
        self.gradients = {"d_q": d_q / scale, "d_keys": d_k, "d_values": d_v}
        self.raw = self.q @ self.k.T
        exponentials = np.exp(self.raw - self.raw.max(axis=1, keepdims=True))
        self.p = exponentials / exponentials.sum(axis=1, keepdims=True)
        self.d_p = self.d_out @ self.v.T

    def inputs(self, forward: bool, part: str) -> Mapping[str, Any]:
        """Return the input tiles by buffer name."""
        of_queries, of_keys = self._sides(0.0)
        found = {
            "q": of_queries(self.q),
            "keys": of_keys(self.k),
            "values": of_keys(self.v),
            "d_out": of_queries(self.d_out),
            "d_out again": of_queries(self.d_out),
        }
        if not forward or part == "values":
            found["scores"] = self._scores(self.p, 0.0)
        elif part == "softmax":
            found["scores"] = self._scores(self.raw, 0.0)
        if not forward and part == "softmax":
            found["gradient"] = self._scores(self.d_p, 0.0)
        return found

    def forward(self, part: str) -> Mapping[str, Any]:
        """Return the buffers after a forward pass, or after a part of it."""
        if part == "scores":
            return {"scores": self._scores(self.raw)}
        if part == "softmax":
            return {"scores": self._scores(self.p)}
        return {"out": self._outputs(self.out)}

    def backward(self, part: str) -> Mapping[str, Any]:
        """Return the buffers after a backward pass, or after a part of it."""
        if part == "softmax":
            mean = (self.p * self.d_p).sum(axis=1, keepdims=True)
            return {"gradient": self._scores(self.p * (self.d_p - mean))}
        gradients = self.gradients
        if part == "products":  # without the softmax's gradient between them
            of_keys = {"d_keys": self.d_p.T @ self.q, "d_values": self.p.T @ self.d_out}
            gradients = {"d_q": self.d_p @ self.k, **of_keys}
        _, of_keys_tiles = self._sides(np.nan)
        tiles = {name: of_keys_tiles(gradients[name]) for name in ("d_keys", "d_values")}
        return {"d_q": self._outputs(gradients["d_q"]), **tiles}

    def _sides(self, fill: float) -> tuple[Any, Any]:
        """Return the functions that make tiles of queries and of keys."""
        if self.head.streams:
            return self._resting, lambda x: self._circulating(x, fill)
        return lambda x: self._fed(x, fill), self._resting

    def _outputs(self, x: Array) -> Array:
        """Return outputs by query as the program leaves them: stationary, or at the edge without padding."""
        if self.head.streams:
            return self._resting(x)
        head = self.head
        return x.reshape(head.items, head.rows, head.features).swapaxes(0, 1).reshape(head.rows, 1, -1)

    def _resting(self, x: Array) -> Array:
        """Return (others, features) of the whole head as tiles, feature-major on each core."""
        head = self.head
        over, across = (head.rows, head.cols) if head.streams else (head.cols, head.rows)
        split = x.reshape(over, head.others, across, head.features).transpose(0, 2, 3, 1)
        tiles = split.reshape(over, across, -1)
        return tiles if head.streams else tiles.swapaxes(0, 1)

    def _circulating(self, x: Array, fill: float) -> Array:
        """Return (items, features) as tiles: blocks of items over the rows, features over the columns."""
        head = self.head
        blocks = _blocks(x, head.rows, fill)
        tiles = blocks.reshape(head.rows, -1, head.cols, head.features).transpose(0, 2, 1, 3)
        return _padded(tiles, pitch(head.features), fill)

    def _fed(self, x: Array, fill: float) -> Array:
        """Return (items, features) as tiles: features over the rows, all items at the edge."""
        head = self.head
        tiles = x.reshape(head.items, head.rows, 1, head.features).transpose(1, 2, 0, 3)
        return _padded(tiles, even(head.features), fill)

    def _scores(self, x: Array, fill: float = np.nan) -> Array:
        """Return (queries, keys) as tiles: blocks of items at their owners."""
        head = self.head
        if head.streams:
            blocks = _blocks(x.T, head.cols, fill).reshape(head.cols, -1, head.rows, head.others)
            return _padded(blocks.transpose(2, 0, 1, 3), pitch(head.others), fill)
        blocks = _blocks(x, head.rows, fill).reshape(head.rows, -1, head.cols, head.others)
        return _padded(blocks.swapaxes(1, 2), pitch(head.others), fill)


def _blocks(x: Array, owners: int, fill: float) -> Array:
    """Return the items, padded to equal blocks for all owners."""
    size = -(-len(x) // owners)
    padded = np.full((owners * size, x.shape[1]), fill, np.float32)
    padded[: len(x)] = x
    return padded


def _padded(tiles: Array, apart: int, fill: float) -> Array:
    """Join (rows, cols, items, elements) with `apart` elements from item to item."""
    wide = np.pad(tiles, [(0, 0)] * 3 + [(0, apart - tiles.shape[-1])], constant_values=fill)
    return wide.reshape(*tiles.shape[:2], -1)
