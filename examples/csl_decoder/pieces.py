"""How the PEs hold weights, cache and angles: arrays of (rows, columns, elements)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from reference import Sizes, angles

Array = npt.NDArray[np.float32]


class Pieces:
    """Cuts a layer for `columns` of PEs with `slots` positions in the cache of each."""

    def __init__(self, sizes: Sizes, columns: int, slots: int) -> None:
        self.sizes, self.columns, self.slots = sizes, columns, slots
        self.per_group = sizes.heads // sizes.groups
        self.group_rows = 4 + 2 * self.per_group
        self.rows = self.group_rows * sizes.groups
        self.x = -(-sizes.hidden // columns)
        self.inner = -(-sizes.inner // self.rows)
        self.piece = sizes.head_size // 2
        quarter = self.piece // 2
        # a half has two quarters of the head that turn together
        self.elements = [
            [
                *range(h * quarter, (h + 1) * quarter),
                *range(self.piece + h * quarter, self.piece + (h + 1) * quarter),
            ]
            for h in (0, 1)
        ]

    def weights(self, w: dict[str, torch.Tensor]) -> dict[str, Array]:
        """What is loaded once."""
        projections = self._heads(*(w[f"{n}_proj"] for n in "qkv"))
        outputs = self._queries(w["o_proj"].T)
        gate, up = (self._inner(self._columns(w[n])) for n in ("gate_proj", "up_proj"))
        down = self._inner(self._columns(w["down_proj"].T))
        return {
            "norm_1": self._every_row(self._columns(w["norm_1"])),
            "norm_2": self._every_row(self._columns(w["norm_2"])),
            "bias": self._every_column(self._heads(*(w[f"{n}_bias"] for n in "qkv"))),
            # (row, output, column, input) becomes (row, column, input, output): column behind column
            "qkv": self._flat(self._columns(projections).transpose(0, 2, 3, 1)),
            "out": self._flat(self._columns(outputs).transpose(0, 2, 1, 3)),
            "gate_up": self._flat(np.concatenate([gate, up], 1).transpose(0, 2, 3, 1)),
            "down": self._flat(down.transpose(0, 2, 1, 3)),
        }

    def cache(self, keys: torch.Tensor, values: torch.Tensor) -> dict[str, Array]:
        """Keys and values of (positions, groups, elements) in the rows of queries."""
        found = {
            name: np.zeros((self.rows, self.columns, self.piece, self.slots), np.float32)
            for name in ("keys", "values")
        }
        for name, given in (("keys", keys), ("values", values)):
            for position, heads in enumerate(given.numpy()):
                slot, column = divmod(position, self.columns)
                for row in range(self.rows):
                    group, place = divmod(row, self.group_rows)
                    if place >= 4:
                        found[name][row, column, :, slot] = heads[group][self.elements[row % 2]]
        found["values"] = found["values"].transpose(0, 1, 3, 2)
        return {name: self._flat(a) for name, a in found.items()}

    def turns(self, position: int) -> Array:
        """Cosines and sines of a position's angles, in every PE those of its half."""
        at = angles(position, self.sizes.head_size).reshape(2, -1)
        both = torch.cat([at.cos(), at.sin()], 1).float().numpy()
        return self._every_column(np.tile(both, (self.rows // 2, 1)))

    def vector(self, x: torch.Tensor) -> Array:
        """The hidden state in one row of PEs."""
        return self._columns(x)[None]

    def _columns(self, matrix: torch.Tensor | Array) -> Array:
        """The last axis as (columns, elements), zero behind its end."""
        a = np.asarray(matrix, np.float32)
        spare = [(0, 0)] * (a.ndim - 1) + [(0, self.columns * self.x - a.shape[-1])]
        return np.pad(a, spare).reshape(*a.shape[:-1], self.columns, self.x)

    def _inner(self, a: Array) -> Array:
        """The first axis as (rows, elements), zero behind its end."""
        spare = [(0, self.rows * self.inner - a.shape[0])] + [(0, 0)] * (a.ndim - 1)
        return np.pad(a, spare).reshape(self.rows, self.inner, *a.shape[1:])

    def _heads(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Array:
        """(outputs of all heads, ...) as (rows, elements of half a head, ...)."""
        q, k, v = (t.view(-1, self.sizes.head_size, *t.shape[1:]) for t in (q, k, v))
        heads = []
        for group in range(self.sizes.groups):
            heads += [v[group], k[group], *q[group * self.per_group : (group + 1) * self.per_group]]
        return np.stack([head[self.elements[half]].numpy() for head in heads for half in (0, 1)])

    def _queries(self, q: torch.Tensor) -> Array:
        """The same for the heads of queries alone, zero in the other rows."""
        nothing = torch.zeros(self.sizes.groups * self.sizes.head_size, q.shape[1])
        return self._heads(q, nothing, nothing)

    def _every_row(self, a: Array) -> Array:
        return np.broadcast_to(a, (self.rows, *a.shape))

    def _every_column(self, a: Array) -> Array:
        return np.broadcast_to(a[:, None], (self.rows, self.columns, a.shape[-1]))

    def _flat(self, a: Array) -> Array:
        return a.reshape(self.rows, self.columns, -1)
